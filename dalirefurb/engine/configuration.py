"""Configuration of a loader: what decides its batches, checked before anything is built."""

from __future__ import annotations

import warnings
from types import NoneType
from typing import Any

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device
from dalirefurb.dali import Graph, cut_window, versions
from dalirefurb.engine.backend_factory import Kernels
from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels import VERSION
from dalirefurb.planning.planner import DerivedPlanner, Planner
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.store import Store


def check_kinds(source: object, recipe: object, planner: object, store: object) -> None:
    """Refuse what is of another kind than it should be, an argument at another one's place for example.

    Raises:
        ConfigurationError: If one is.
    """
    for name, given, kind, remedy in (
        ("source", source, Source, "pass ImageFolder(path) for a folder, Arrays(images, labels) for arrays"),
        ("recipe", recipe, Recipe, "pass rand_augment(224), or another preset"),
        ("planner", planner, Planner, "pass Refurbish(len(source), batch_size=64, reuse_factor=3), or another one"),
        ("store", store, (Store, NoneType), "pass MemoryStore(), DiskStore(path), or None"),
    ):
        if not isinstance(given, kind):
            what = f"the class {given.__name__} itself" if isinstance(given, type) else f"a {type(given).__name__}"
            raise ConfigurationError(
                f"{name} must be a {name}, got {what}: {remedy}; the order is Loader(source, recipe, planner, store)"
            )


def configuration(
    source: Source,
    recipe: Recipe,
    planner: Planner,
    *,
    partial_device: Device,
    final_device: Device,
    kernels: Kernels,
    policy: BadSamplePolicy,
) -> dict[str, Any]:
    """Check what can be checked before anything is built; for the arguments see `Loader`.

    Returns:
        Everything that decides the batches, as JSON values, the same on all ranks.

    Raises:
        ConfigurationError: If the parts do not fit together.
    """
    _check_fit(source, recipe, planner)
    _check_draws(recipe, planner)
    if recipe.caches_encoded and partial_device != final_device:
        raise ConfigurationError(
            f"with split 0 decoding is final, so both parts must be on one device, got partial_device="
            f"{partial_device!r} and final_device={final_device!r}: pass {final_device!r} for both, or a split of 1 or "
            f"more"
        )
    if Graph(traced(recipe), "final", partial_device, final_device).needs_gpu:
        _check_gpu()
    return {
        "source": source.fingerprint(),
        "recipe": recipe.fingerprint(),
        "planner": planner.fingerprint(),
        "partial_device": partial_device,
        "kernels": f"numba {VERSION}" if kernels == "numba" else kernels,
        "versions": versions() | policy.versions(),
        **policy.fingerprint(),
    }


def _check_fit(source: Source, recipe: Recipe, planner: Planner) -> None:
    if len(source) != planner.num_samples:
        raise ConfigurationError(
            f"planner and source must have the same number of samples, got {planner.num_samples} and {len(source)}; "
            f"pass len(source) to the planner"
        )
    shape, size = source.image_shape, recipe.output.size
    if shape is not None and recipe.final_size(shape[:2]) != (size, size):
        height, width = recipe.final_size(shape[:2]) or ("?", "?")
        raise ConfigurationError(
            f"the recipe must leave images of the output's size {size} x {size}, but makes {height} x {width} of the "
            f"source's {shape[0]} x {shape[1]}; make the recipe for the size of the source's images"
        )
    if recipe.caches_encoded and planner.feedback_lag is not None:
        raise ConfigurationError(
            "AutoAssist looks at partial images, but split 0 caches encoded ones: use a split of 1 or more"
        )
    if source.encoded != recipe.encoded:
        needs, gives = ("encoded images", "arrays") if recipe.encoded else ("arrays", "encoded images")
        raise ConfigurationError(
            f"the recipe starts from {needs}, but the source gives {gives}; "
            f"make the recipe with raw={not source.encoded}"
        )


def _check_draws(recipe: Recipe, planner: Planner) -> None:
    """Warn of a SmartCache that would serve a draw of the partial part for as long as a sample stays."""
    while isinstance(planner, DerivedPlanner):
        planner = planner.planner
    random = [stage.name for stage in recipe.partial if stage.random]
    if random and isinstance(planner, SmartCache):
        warnings.warn(
            f"with SmartCache the partial part should not be random, since a sample is served as it was drawn when it "
            f"entered until it is replaced, got {', '.join(random)} in it: pass recipe.at(recipe.deterministic_prefix)",
            stacklevel=4,
        )


def traced(recipe: Recipe) -> Recipe:
    """Return the recipe by which graphs and kernels are made.

    Where what is cached is encoded, they do both parts together, which make the same at every split. One behind a
    window lets this be decoded alone; else a resize stays together with the crop that may follow it.
    """
    if not recipe.caches_encoded:
        return recipe
    behind = recipe.at(min(2, len(recipe.stages)))
    return behind if cut_window(behind) else recipe.at(1)


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "a part is placed on 'gpu', but torch finds no CUDA device; use partial_device='cpu', final_device='cpu'"
        )
