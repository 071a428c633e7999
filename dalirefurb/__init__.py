"""Data refurbishing for PyTorch on NVIDIA DALI.

Partially augmented samples are cached and reused a few times; the final augmentation is fresh at every use
(Lee et al., "Refurbish Your Training Data", USENIX ATC 2021).
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dalirefurb.augment import Custom as Custom
    from dalirefurb.augment.output import Output as Output
    from dalirefurb.augment.presets import auto_augment as auto_augment
    from dalirefurb.augment.presets import evaluate as evaluate
    from dalirefurb.augment.presets import rand_augment as rand_augment
    from dalirefurb.augment.presets import simple as simple
    from dalirefurb.augment.presets import timm_augment as timm_augment
    from dalirefurb.augment.presets import trivial_augment as trivial_augment
    from dalirefurb.augment.recipe import Recipe as Recipe
    from dalirefurb.broadcast.attached import Attached as Attached
    from dalirefurb.broadcast.server import Broadcast as Broadcast
    from dalirefurb.engine.cuda_prefetch import CudaPrefetch as CudaPrefetch
    from dalirefurb.engine.partial_sizes import propose_coverage as propose_coverage
    from dalirefurb.engine.prefetch import Prefetch as Prefetch
    from dalirefurb.engine.rank import Rank as Rank
    from dalirefurb.engine.stats import Stats as Stats
    from dalirefurb.errors import DalirefurbError as DalirefurbError
    from dalirefurb.keep.kept import Kept as Kept
    from dalirefurb.loader import Loader as Loader
    from dalirefurb.mix import Mix as Mix
    from dalirefurb.partial_source import PartialSource as PartialSource
    from dalirefurb.planning import AutoAssist as AutoAssist
    from dalirefurb.planning import Echo as Echo
    from dalirefurb.planning import Evaluate as Evaluate
    from dalirefurb.planning import Refurbish as Refurbish
    from dalirefurb.planning import SmartCache as SmartCache
    from dalirefurb.planning import Standard as Standard
    from dalirefurb.reading.bad_samples import BadSamplePolicy as BadSamplePolicy
    from dalirefurb.source import Arrays as Arrays
    from dalirefurb.source import Concat as Concat
    from dalirefurb.source import FileList as FileList
    from dalirefurb.source import HuggingFaceImages as HuggingFaceImages
    from dalirefurb.source import ImageFolder as ImageFolder
    from dalirefurb.source import TarShards as TarShards
    from dalirefurb.source import TorchDataset as TorchDataset
    from dalirefurb.source import Volumes as Volumes
    from dalirefurb.store import Compressed as Compressed
    from dalirefurb.store import DiskStore as DiskStore
    from dalirefurb.store import MemoryStore as MemoryStore
    from dalirefurb.store import TieredStore as TieredStore
    from dalirefurb.tuning.tune import tune as tune

_HOMES = {
    "Arrays": "source",
    "Attached": "broadcast.attached",
    "AutoAssist": "planning",
    "BadSamplePolicy": "reading.bad_samples",
    "Broadcast": "broadcast.server",
    "Compressed": "store",
    "Concat": "source",
    "CudaPrefetch": "engine.cuda_prefetch",
    "Custom": "augment",
    "DalirefurbError": "errors",
    "DiskStore": "store",
    "Echo": "planning",
    "Evaluate": "planning",
    "FileList": "source",
    "HuggingFaceImages": "source",
    "ImageFolder": "source",
    "Kept": "keep.kept",
    "Loader": "loader",
    "MemoryStore": "store",
    "Mix": "mix",
    "Output": "augment.output",
    "PartialSource": "partial_source",
    "Prefetch": "engine.prefetch",
    "Rank": "engine.rank",
    "Recipe": "augment.recipe",
    "Refurbish": "planning",
    "SmartCache": "planning",
    "Standard": "planning",
    "Stats": "engine.stats",
    "TarShards": "source",
    "TieredStore": "store",
    "TorchDataset": "source",
    "Volumes": "source",
    "auto_augment": "augment.presets",
    "evaluate": "augment.presets",
    "propose_coverage": "engine.partial_sizes",
    "rand_augment": "augment.presets",
    "simple": "augment.presets",
    "timm_augment": "augment.presets",
    "trivial_augment": "augment.presets",
    "tune": "tuning.tune",
}

_MOVED = {
    "BatchEcho": "planning",
    "DeviceStore": "store",
    "Diagnosis": "tuning",
    "Frozen": "planning",
    "Verdict": "tuning",
    "airbench": "augment.published",
    "convnext": "augment.published",
    "deit3": "augment.published",
    "resnet_strikes_back": "augment.published",
    "simclr": "augment.published",
    "simplified": "augment.presets",
}
"""Where names live that were here before: 0.1 still finds them, 0.2 will not."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that torch and DALI are loaded only where needed."""
    if name == "__version__":
        return importlib.metadata.version("dalirefurb")
    home = _HOMES.get(name) or _MOVED.get(name)
    if home is None:
        raise AttributeError(f"module 'dalirefurb' has no attribute {name!r}")
    if name in _MOVED:
        from dalirefurb.errors import warn

        warn(
            f"dalirefurb.{name} will be gone in dalirefurb 0.2: from dalirefurb.{home} import {name}",
            DeprecationWarning,
        )
    value = getattr(importlib.import_module(f"dalirefurb.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
