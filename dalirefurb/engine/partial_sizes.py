"""Sizes of partial images in bytes, what a store is opened for, and the largest share of samples that a budget holds.

A coverage is part of the plan. A store never takes one from the memory at hand: it is proposed here, read by the user,
and passed to the planner, so that every run that continues this one, and every machine, has the same.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.calls import explains
from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Refurbish
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.source.contract import without_targets
from dalirefurb.store import DeviceStore, Store
from dalirefurb.store.disk.layout import Layout
from dalirefurb.store.spec import StoreSpec
from dalirefurb.system.resources import Budget, amount, available_bytes, budget_bytes, bytes_on_disk

if TYPE_CHECKING:
    from dalirefurb.engine.configuration import Configuration

PROBES = 256
"""Samples that are looked at, at most."""

_CHANNELS = 3


@dataclass(frozen=True)
class PartialSizes:
    """Bytes of what is cached: partial images, or encoded ones.

    Attributes:
        slot_shape: Shape (H, W, C) of each partial image, None where the sizes vary.
        mean_bytes: Mean size of a partial image in bytes.
        std_bytes: Standard deviation of the sizes of partial images in bytes.
        largest_bytes: Size in bytes of the largest partial image that was seen.
        mean_error_bytes: Standard error of `mean_bytes` in bytes; 0 if all images were seen.
    """

    slot_shape: tuple[int, int, int] | None
    mean_bytes: float
    std_bytes: float = 0.0
    largest_bytes: float = 0.0
    mean_error_bytes: float = 0.0

    @classmethod
    def seen(cls, nbytes: NDArray[Any], num_samples: int) -> PartialSizes:
        """Return what the sizes of some images, shape (n,), say of those of all samples, whose sizes vary."""
        std = float(nbytes.std())
        error = mean_error(std, len(nbytes), num_samples)
        return cls(None, float(nbytes.mean()), std, float(nbytes.max()), error)

    def arena_bytes(self, slots: int) -> int:
        """Return the size of an arena for this many images of varying size; 0 where slots are fixed.

        The sum of many sizes is close to normal: its mean, four standard deviations of it and of the mean's estimate,
        and room for gaps between images.
        """
        if self.slot_shape is not None:
            return 0
        unsure = slots**0.5 * self.std_bytes + slots * self.mean_error_bytes
        return int(1.1 * slots * self.mean_bytes + 4 * unsure + 4 * self.largest_bytes)

    def specs(self, planner: Planner) -> list[StoreSpec]:
        """Say what the stores of as many ranks as there are shards have room for; one that needs none is left out."""
        return [StoreSpec(self.slot_shape, n, {}, self.arena_bytes(n)) for n in planner.shard_slots if n]


def mean_error(std: float, seen: int, num_samples: int) -> float:
    """Return the standard error of a mean of which so many of all samples were seen; 0 if all were."""
    return std / seen**0.5 if seen < num_samples else 0.0


def partial_sizes(source: Source, recipe: Recipe, reader: Reader, *, seed: int) -> PartialSizes:
    """Find out how large the partial images of a source are; where they vary, some samples are read, chosen by a seed.

    Raises:
        SampleError: A sample cannot be used, and the reader does not replace bad ones.
    """
    entering = source.image_shape
    size = recipe.partial_size(None if entering is None else entering[:2])
    if size is not None:
        shape = (*size, _CHANNELS)
        return PartialSizes(shape, float(size[0] * size[1] * _CHANNELS))
    probes = rng.permutation(len(source), seed, "size probes")[:PROBES]
    if recipe.caches_encoded:
        nbytes = reader.lengths(probes)
    else:
        heights, widths = reader.sizes(probes)
        for stage in recipe.partial:
            heights, widths = stage.output_sizes(heights, widths)
        nbytes = _CHANNELS * heights * widths
    return PartialSizes.seen(nbytes, len(source))


@dataclass(frozen=True)
class Proposal:
    """A coverage, and what it means.

    Attributes:
        coverage: Share of the samples to cache, to be passed to `Refurbish`, in as few digits as say it exactly.
        num_samples: Number of samples in the source.
        covered: Number of samples that are cached.
        reuse_factor: Number of uses of a cached version.
        slots: Largest number of versions that are held at one time.
        nbytes: Number of bytes that the slots take.
        budget_bytes: Number of bytes that the slots may take.
        misses_per_epoch: Number of partial images that an epoch computes, on average, after the first epoch, which
            computes all.
    """

    coverage: float
    num_samples: int
    covered: int
    reuse_factor: int
    slots: int
    nbytes: int
    budget_bytes: int
    misses_per_epoch: int

    def __str__(self) -> str:
        """Say it in three lines."""
        share = self.misses_per_epoch / self.num_samples
        of_all = "" if self.covered == self.num_samples else f"; all cached, it would be {1 / self.reuse_factor:.1%}"
        return (
            f"coverage={self.coverage}: {self.covered:,} of {self.num_samples:,} samples are cached, in "
            f"{self.slots:,} slots of together {amount(self.nbytes)}; the budget is {amount(self.budget_bytes)}\n"
            f"after the first epoch, an epoch computes {self.misses_per_epoch:,} partial images, {share:.1%} of all"
            f"{of_all}\n"
            f"pass coverage={self.coverage} to Refurbish, the same in every run that is to continue this one"
        )

    __repr__ = __str__


@explains
def propose_coverage(
    source: Source,
    recipe: Recipe,
    planner: Refurbish,
    budget: Budget,
    *,
    path: str | os.PathLike[str] | None = None,
) -> Proposal:
    """Find the largest coverage whose plan fits a budget.

    Args:
        source: Source of the samples, as for `Loader`.
        recipe: Recipe, as for `Loader`. Where its partial images vary in size, the headers of some samples are read,
            and the bytes are those that a store sets aside for such images.
        planner: Planner, as for `Loader`; its own coverage does not matter. Each of its shards counts as a rank, with a
            store of its own.
        budget: "16GB", "60%" or bytes. A share is of the memory that this process can still take, or with `path` of
            the space on that disk that is free, or taken by that file. The plan is that of all ranks: where they are on
            several machines, name the bytes of all of them together.
        path: Path of a `DiskStore`'s file. By default the budget is for memory.

    Raises:
        ConfigurationError: If nothing fits, or the plan caches nothing whatever its coverage.
        SampleError: If a header cannot be read, or an image has a size that a stage cannot take.
    """
    if not isinstance(planner, Refurbish) or planner.reuse_factor == 1:
        raise ConfigurationError(
            f"coverage is for plans that reuse versions, so the planner must be a Refurbish with a reuse_factor of at "
            f"least 2, got {planner!r}: pass one"
        )
    remedy = "pass the share of the volumes that the budget holds, each of as many bytes as a partial volume has"
    require(not source.volumes, "source", "a source of images, not of volumes", source, remedy)
    planner.check_samples(len(source))
    limit = budget_bytes(budget, available=available_bytes if path is None else lambda: bytes_on_disk(path))
    with closing(Reader(source, max_batch_size=64, num_threads=1, refusal=recipe.refusal)) as reader:
        sizes = partial_sizes(source, recipe, reader, seed=planner.seed)

    def covering(covered: int) -> Refurbish:
        return replace(planner, coverage=_coverage(covered, planner.num_samples))

    def nbytes(covered: int) -> int:
        specs = sizes.specs(covering(covered))
        return sum(spec.nbytes if path is None else Layout(spec).nbytes for spec in specs)

    covered = bisect_right(range(1, planner.num_samples + 1), limit, key=nbytes)
    if covered == 0:
        raise ConfigurationError(
            f"the budget must hold at least one partial image, but is {limit} bytes, and one needs {nbytes(1)}: "
            f"pass a larger budget, or a recipe whose partial images are smaller"
        )
    chosen = covering(covered)
    return Proposal(
        coverage=chosen.coverage,
        num_samples=planner.num_samples,
        covered=covered,
        reuse_factor=planner.reuse_factor,
        slots=chosen.peak_slots,
        nbytes=nbytes(covered),
        budget_bytes=limit,
        misses_per_epoch=round(planner.num_samples * chosen.reuse.misses),
    )


def _coverage(covered: int, num_samples: int) -> float:
    """Return the shortest decimal that covers exactly this many samples, as `Refurbish` rounds.

    >>> _coverage(320_292, 1_281_167), _coverage(333, 1000), _coverage(7, 7)
    (0.25, 0.333, 1.0)
    """
    decimals = (round(covered / num_samples, digits) for digits in range(1, 16))
    return next(value for value in decimals if value > 0 and round(value * num_samples) == covered)


def store_spec(
    store: Store,
    configuration: Configuration,
    planner: Planner,
    reader: Reader,
    probes: PartialSizes | None = None,
) -> StoreSpec:
    """Say what a store is opened for, if it is to hold the partial images of a recipe, of whose sizes `probes` tell.

    Where nothing in them is random, the seed does not matter.

    Nor do the final stages, unless those up to the first that makes one size of all refuse images of some sizes, or
    make too large ones: the store holds none of these. What is refused as too large decides, too: else a store would
    serve it. Of encoded samples the source alone decides: whether one is refused is found out again.
    """
    source, recipe, fingerprint = configuration.source, configuration.recipe, configuration.fingerprint
    if recipe.caches_encoded and isinstance(store, DeviceStore):
        raise ConfigurationError(
            "a DeviceStore is for decoded images, but split 0 caches encoded ones: use a MemoryStore, or a split of 1 "
            "or more"
        )
    sizes = probes or partial_sizes(source, recipe, reader, seed=planner.seed)
    partial = {"source": without_targets(fingerprint["source"]), "encoded": True}
    if not recipe.caches_encoded:
        partial = _decided_by(configuration, planner, reader, varying=sizes.slot_shape is None)
    # So does what is behind the samples here and now. What changes from now on, the next loader notices.
    if content := source.content():
        partial["content"] = content
    slots = planner.peak_slots
    return StoreSpec(sizes.slot_shape, slots, partial, sizes.arena_bytes(slots))


def _decided_by(configuration: Configuration, planner: Planner, reader: Reader, *, varying: bool) -> dict[str, Any]:
    """Return what decides partial images, as JSON values."""
    source, recipe, fingerprint = configuration.source, configuration.recipe, configuration.fingerprint
    partial: dict[str, Any] = {key: fingerprint[key] for key in ("source", "partial_device", "kernels", "versions")}
    partial["source"] = without_targets(partial["source"])
    partial["stages"] = [stage.fingerprint() for stage in configuration.whole[0].partial]
    partial["seed"] = planner.seed if any(stage.random for stage in recipe.partial) else None
    if configuration.whole[0].encoded or source.image_shape is None:
        partial["max_pixels"] = reader.max_pixels
    final = [stage for each in (recipe, *configuration.views) for stage in _of_varying_size(each.final)]
    if varying and any(_refuses(type(stage)) for stage in final):
        partial["final_stages"] = [stage.fingerprint() for stage in final]
    return partial


def _of_varying_size(stages: Sequence[Stage]) -> Sequence[Stage]:
    """Return the stages that images of varying size may enter: those behind were asked when the recipe was made."""
    sized = [stage.fixed_size is not None for stage in stages]
    return stages[: sized.index(True) + 1] if True in sized else stages


def _refuses(kind: type[Stage]) -> bool:
    """Tell whether a kind of stage refuses images of some sizes, or makes some that are too large."""
    return kind.refusal is not Stage.refusal or kind.output_sizes is not Stage.output_sizes
