"""What a store is opened for: the size of what a recipe caches, with all that decides it."""

from __future__ import annotations

from typing import Any

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.partial_sizes import partial_sizes
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, Store, StoreSpec


def store_spec(
    store: Store, source: Source, recipe: Recipe, planner: Planner, reader: Reader, fingerprint: dict[str, Any]
) -> StoreSpec:
    """Say what a store is opened for, if it is to hold the partial images of a recipe.

    Where nothing in them is random, the seed does not matter.

    Nor do the final stages, unless they refuse images of some sizes, or make too large ones: the store holds none of
    these. What is refused as too large decides, too: else a store would serve it. Of encoded samples the source alone
    decides: whether one is refused is found out again.
    """
    if recipe.caches_encoded and isinstance(store, DeviceStore):
        raise ConfigurationError(
            "a DeviceStore is for decoded images, but split 0 caches encoded ones: use a MemoryStore, or a split of 1 "
            "or more"
        )
    sizes = partial_sizes(source, recipe, reader, seed=planner.seed)
    partial = {"source": fingerprint["source"], "encoded": True}
    if not recipe.caches_encoded:
        partial = _made_by(source, recipe, planner, reader, fingerprint, varying=sizes.slot_shape is None)
    # So does what is behind the samples here and now. What changes from now on, the next loader notices.
    if content := source.content():
        partial["content"] = content
    slots = planner.peak_slots
    return StoreSpec(sizes.slot_shape, slots, partial, sizes.arena_bytes(slots))


def _made_by(
    source: Source, recipe: Recipe, planner: Planner, reader: Reader, fingerprint: dict[str, Any], *, varying: bool
) -> dict[str, Any]:
    """Return what decides partial images, as JSON values."""
    partial: dict[str, Any] = {key: fingerprint[key] for key in ("source", "partial_device", "kernels", "versions")}
    partial["stages"] = [stage.fingerprint() for stage in recipe.partial]
    partial["seed"] = planner.seed if any(stage.random for stage in recipe.partial) else None
    if source.encoded or source.image_shape is None:
        partial["max_pixels"] = reader.max_pixels
    if varying and any(_refuses(type(stage)) for stage in recipe.final):
        partial["final_stages"] = [stage.fingerprint() for stage in recipe.final]
    return partial


def _refuses(kind: type[Stage]) -> bool:
    """Tell whether a kind of stage refuses images of some sizes, or makes some that are too large."""
    return kind.refusal is not Stage.refusal or kind.output_sizes is not Stage.output_sizes
