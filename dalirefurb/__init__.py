"""Data refurbishing for PyTorch on NVIDIA DALI.

Partially augmented samples are cached and reused a few times; the final augmentation is fresh at every use
(Lee et al., "Refurbish Your Training Data", USENIX ATC 2021).
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dalirefurb.augment.output import Output as Output
    from dalirefurb.augment.presets import auto_augment as auto_augment
    from dalirefurb.augment.presets import evaluate as evaluate
    from dalirefurb.augment.presets import rand_augment as rand_augment
    from dalirefurb.augment.presets import simple as simple
    from dalirefurb.augment.presets import simplified as simplified
    from dalirefurb.augment.presets import timm_augment as timm_augment
    from dalirefurb.augment.presets import trivial_augment as trivial_augment
    from dalirefurb.augment.published import airbench as airbench
    from dalirefurb.augment.published import convnext as convnext
    from dalirefurb.augment.published import deit3 as deit3
    from dalirefurb.augment.published import resnet_strikes_back as resnet_strikes_back
    from dalirefurb.augment.published import simclr as simclr
    from dalirefurb.augment.recipe import Recipe as Recipe
    from dalirefurb.augment.stages.custom import Custom as Custom
    from dalirefurb.engine.cuda_prefetch import CudaPrefetch as CudaPrefetch
    from dalirefurb.engine.diagnosis import Diagnosis as Diagnosis
    from dalirefurb.engine.prefetch import Prefetch as Prefetch
    from dalirefurb.engine.rank import Rank as Rank
    from dalirefurb.engine.stats import Stats as Stats
    from dalirefurb.engine.verdict import Verdict as Verdict
    from dalirefurb.errors import DalirefurbError as DalirefurbError
    from dalirefurb.loader import Loader as Loader
    from dalirefurb.mix import Mix as Mix
    from dalirefurb.planning.auto_assist import AutoAssist as AutoAssist
    from dalirefurb.planning.echo import BatchEcho as BatchEcho
    from dalirefurb.planning.echo import Echo as Echo
    from dalirefurb.planning.evaluate import Evaluate as Evaluate
    from dalirefurb.planning.refurbish import Frozen as Frozen
    from dalirefurb.planning.refurbish import Refurbish as Refurbish
    from dalirefurb.planning.refurbish import Standard as Standard
    from dalirefurb.planning.smart_cache import SmartCache as SmartCache
    from dalirefurb.reading.bad_sample_policy import BadSamplePolicy as BadSamplePolicy
    from dalirefurb.reading.coverage import propose_coverage as propose_coverage
    from dalirefurb.source import Arrays as Arrays
    from dalirefurb.source import Concat as Concat
    from dalirefurb.source import FileList as FileList
    from dalirefurb.source import HuggingFaceImages as HuggingFaceImages
    from dalirefurb.source import ImageFolder as ImageFolder
    from dalirefurb.source import TarShards as TarShards
    from dalirefurb.source import TorchDataset as TorchDataset
    from dalirefurb.store import DeviceStore as DeviceStore
    from dalirefurb.store import DiskStore as DiskStore
    from dalirefurb.store import MemoryStore as MemoryStore
    from dalirefurb.store import TieredStore as TieredStore
    from dalirefurb.store.compressed import Compressed as Compressed
    from dalirefurb.tuning.tune import tune as tune

_HOMES = {
    "Arrays": "source",
    "AutoAssist": "planning.auto_assist",
    "BadSamplePolicy": "reading.bad_sample_policy",
    "BatchEcho": "planning.echo",
    "Compressed": "store.compressed",
    "Concat": "source",
    "CudaPrefetch": "engine.cuda_prefetch",
    "Custom": "augment.stages.custom",
    "DalirefurbError": "errors",
    "DeviceStore": "store",
    "Diagnosis": "engine.diagnosis",
    "DiskStore": "store",
    "Echo": "planning.echo",
    "Evaluate": "planning.evaluate",
    "FileList": "source",
    "Frozen": "planning.refurbish",
    "HuggingFaceImages": "source",
    "ImageFolder": "source",
    "Loader": "loader",
    "MemoryStore": "store",
    "Mix": "mix",
    "Output": "augment.output",
    "Prefetch": "engine.prefetch",
    "Rank": "engine.rank",
    "Recipe": "augment.recipe",
    "Refurbish": "planning.refurbish",
    "SmartCache": "planning.smart_cache",
    "Standard": "planning.refurbish",
    "Stats": "engine.stats",
    "TarShards": "source",
    "TieredStore": "store",
    "TorchDataset": "source",
    "Verdict": "engine.verdict",
    "airbench": "augment.published",
    "auto_augment": "augment.presets",
    "convnext": "augment.published",
    "deit3": "augment.published",
    "evaluate": "augment.presets",
    "propose_coverage": "reading.coverage",
    "rand_augment": "augment.presets",
    "resnet_strikes_back": "augment.published",
    "simclr": "augment.published",
    "simple": "augment.presets",
    "simplified": "augment.presets",
    "timm_augment": "augment.presets",
    "trivial_augment": "augment.presets",
    "tune": "tuning.tune",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that torch and DALI are loaded only where needed."""
    if name == "__version__":
        return importlib.metadata.version("dalirefurb")
    if name not in _HOMES:
        raise AttributeError(f"module 'dalirefurb' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dalirefurb.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
