"""Loaders whose settings are given flat, so that tests can vary one of them."""

from __future__ import annotations

from typing import Any

from dalirefurb import BadSamplePolicy, Loader, Prefetch, Recipe
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store

_PREFETCH = {"num_threads", "replicas", "look_ahead", "batches_per_group", "reading_threads"}
_BAD_SAMPLES = {"on_bad_sample", "quarantine", "max_pixels"}


def flat_loader(
    source: Source, recipe: Recipe, planner: Planner, store: Store | None = None, **settings: Any
) -> Loader:
    """Make a loader; settings are its own arguments, and those of `Prefetch` and `BadSamplePolicy`."""
    prefetch = {name: settings.pop(name) for name in _PREFETCH & settings.keys()}
    bad_samples = {name: settings.pop(name) for name in _BAD_SAMPLES & settings.keys()}
    settings.setdefault("prefetch", Prefetch(**prefetch))
    settings.setdefault("bad_samples", BadSamplePolicy(**bad_samples))
    return Loader(source, recipe, planner, store, **settings)
