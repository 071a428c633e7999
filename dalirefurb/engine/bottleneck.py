"""Bottleneck: what a loader's threads spend their time on, and the one change that would help most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.prefetch import Depths
from dalirefurb.engine.stats import Stats
from dalirefurb.planning.planner import Planner, RankPlanner
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.store import Store
from dalirefurb.system.cores import usable_cores
from dalirefurb.system.sharing import local_processes

_NOTICEABLE = 0.05
"""Share of images from which on it is said that the store has lost or refused them."""

_MOSTLY_REUSED = 0.25
"""Share of computed images up to which what is done to all images is taken to cost more than computing these."""

_MOST_USES = 3
"""Uses of a partial image beyond which another one saves little and costs diversity."""

_MOSTLY = 0.5
_ENOUGH_READING_THREADS = 16
_FAR_FROM_STEADY = 0.5
_ALL = 0.95


@dataclass(frozen=True)
class Facts:
    """What decides a loader's work, beside what it has done.

    Attributes:
        reuse_factor: Epochs in which a partial image is used; None: the planner is of another technique.
        coverage: Share of the samples whose partial images are cached, 0..1.
        slots: Partial images that the plan keeps at once, at most.
        store: Name of the store's class; empty where there is none.
        encoded: Whether the store holds samples as they were read (split 0).
        final_stages: Stages of the recipe's final part.
        threads: CPU threads that compute.
        reading_threads: Threads that read files.
        cores: Cores that this process may use.
        shared: Whether the model computes on these cores, too.
        batches: Batches of an epoch.
    """

    reuse_factor: int | None = None
    coverage: float = 1.0
    slots: int = 0
    store: str = ""
    encoded: bool = False
    final_stages: int = 1
    threads: int = 1
    reading_threads: int = 4
    cores: int = 1
    shared: bool = False
    batches: int = 1000

    @classmethod
    def of(cls, planner: Planner, recipe: Recipe, store: Store | None, depths: Depths) -> Facts:
        """Gather them for what a rank carries out."""
        inner = planner.planner if isinstance(planner, RankPlanner) else planner
        refurbish = inner if isinstance(inner, Refurbish) else None
        return cls(
            reuse_factor=refurbish.reuse_factor if refurbish else 1 if isinstance(inner, Standard) else None,
            coverage=refurbish.coverage if refurbish else 1.0,
            slots=planner.peak_slots,
            store="" if store is None else type(store).__name__,
            encoded=recipe.caches_encoded,
            final_stages=len(recipe.final),
            threads=depths.replicas * depths.threads_each,
            reading_threads=depths.reading_threads,
            cores=max(1, usable_cores() // local_processes()),
            shared=model_shares_cores(),
            batches=len(planner),
        )

    def steady_misses(self, *, reuse_factor: int | None = None, coverage: float | None = None) -> float | None:
        """Return the share of images that a later epoch computes, by the plan; None if no formula says it.

        Args:
            reuse_factor: Reuse factor to take instead of the planner's.
            coverage: Coverage to take instead of the planner's.
        """
        uses = reuse_factor or self.reuse_factor
        covered = self.coverage if coverage is None else coverage
        return None if uses is None else 1 - covered + covered / uses


def model_shares_cores() -> bool:
    """Tell whether a model that computes does so on the loader's cores: without a CUDA device it has no others."""
    return not torch.cuda.is_available()


def is_filling(stats: Stats, facts: Facts) -> bool:
    """Tell whether what was done is mostly of an epoch that computes more than later ones, such as the first."""
    if not facts.slots or not stats.samples:
        return False
    planned = (stats.misses - stats.recomputed) / stats.samples
    steady = facts.steady_misses()
    return planned > (_ALL if steady is None else steady + _FAR_FROM_STEADY * (1 - steady))


class Bottleneck(NamedTuple):
    """What holds a loader back.

    Attributes:
        cause: What it is, a clause of a sentence.
        change: The one change that would help most, and what it would do.
    """

    cause: str
    change: str


def find(stats: Stats, facts: Facts) -> Bottleneck:
    """Find what holds a loader back that training waits for."""
    return next(_candidates(stats, facts))


def _candidates(stats: Stats, facts: Facts) -> Iterator[Bottleneck]:
    """Yield what may hold a loader back, the first one first."""
    planned_hits = stats.hits + stats.recomputed
    put = stats.stored + stats.declined
    if facts.slots and not facts.store:
        yield Bottleneck(
            "there is no store, so nothing is reused",
            f"a MemoryStore() would keep the {facts.slots:,} images that the plan reuses",
        )
    if stats.declined > _NOTICEABLE * put:
        yield Bottleneck(
            f"the store had no room for {_percent(stats.declined / put)} of what it was to keep",
            f"room for all {facts.slots:,} images that the plan reuses, in a TieredStore with a disk if memory is "
            f"short, would leave {_left(facts.steady_misses(), stats)} to compute",
        )
    if stats.recomputed > _NOTICEABLE * planned_hits:
        yield Bottleneck(
            f"{_percent(stats.recomputed / planned_hits)} of the images to be reused were not in the store",
            "a store that began empty fills within a few epochs; if it goes on, look for what empties it",
        )
    times = {
        _computing: stats.graph_wait_s,
        _files: stats.reading_wait_s,
        _storing: stats.storing_s,
        _handling: stats.planning_s + stats.preparing_s,
    }
    most = max(times, key=lambda name: times[name])
    yield most(stats, facts)


def _computing(stats: Stats, facts: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly compute."""
    misses = stats.misses / max(stats.samples, 1)
    few = misses <= _MOSTLY_REUSED
    cause = f"the loader's threads mostly computed {'final images' if few else 'images'}, {_percent(misses)} of "
    cause += "them from the start"
    if facts.threads < facts.cores:
        return Bottleneck(cause, f"Prefetch(num_threads={facts.cores}) would use all cores, not {facts.threads}")
    if not few and (change := _fewer_misses(stats, facts)):
        return Bottleneck(cause, change)
    if not few and facts.reuse_factor is None:
        return Bottleneck(cause, "a planner that reuses more would leave fewer, by a larger echoing_factor for example")
    if facts.encoded:
        return Bottleneck(cause, "a later split would keep images that are decoded already: recipe.at(1) or more")
    if facts.slots and facts.final_stages:
        return Bottleneck(cause, "a later split would do less at each use, and so does a preset's order='crop_last'")
    return Bottleneck(cause, "more cores, smaller images or a GPU for the final part would help; reuse would not")


def _files(stats: Stats, facts: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly wait for files."""
    cause = "the loader's threads mostly waited for files"
    if stats.pillow_s > _MOSTLY * stats.reading_wait_s:
        change = "files of a kind that DALI decodes, JPEG, PNG or WebP of 8 bits, would leave this to its threads"
        return Bottleneck(f"{cause} to be decoded", change)
    if facts.reading_threads < _ENOUGH_READING_THREADS:
        threads = min(4 * facts.reading_threads, _ENOUGH_READING_THREADS)
        change = f"Prefetch(reading_threads={threads}) would read more of them at a time, if disk or network can"
        return Bottleneck(cause, change)
    kept = "" if facts.encoded else ", or Frozen with recipe.at(0) and a store, which reads each file once"
    return Bottleneck(cause, _fewer_misses(stats, facts) or f"a faster disk would help{kept}")


def by_pillow(stats: Stats) -> str:
    """Say which share of what was computed Pillow decoded, and how long that took; nothing if there was none."""
    if not stats.pillow_images:
        return ""
    share = _percent(stats.pillow_images / max(stats.files, 1))
    return f"Pillow decoded {share} of the files that were read, in {stats.pillow_s:.1f} s of their threads' time"


def _storing(_: Stats, facts: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly read and write the store."""
    cause = f"the loader's threads mostly worked on the {facts.store or 'store'}"
    changes = {
        "Compressed": "the store without Compressed would take more room and less time",
        "DiskStore": "a faster disk would help, or a TieredStore that keeps a part in memory",
        "TieredStore": "more memory for its first tier would help",
    }
    return Bottleneck(cause, changes.get(facts.store, "smaller partial images would help: an earlier crop or resize"))


def _handling(_: Stats, __: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly plan, and draw parameters."""
    cause = "the loader's threads mostly planned batches and drew parameters"
    return Bottleneck(cause, "larger batches, or more of them together (Prefetch(batches_per_group=...)), would help")


def _fewer_misses(stats: Stats, facts: Facts) -> str | None:
    """Return the change that leaves the fewest images to compute, if there is one."""
    if facts.reuse_factor is None:
        return None
    changes = {}
    if facts.reuse_factor < _MOST_USES:
        uses = facts.reuse_factor + 1
        store = "" if facts.store else " with a MemoryStore()"
        changes[f"reuse_factor={uses}{store}"] = facts.steady_misses(reuse_factor=uses)
    if facts.coverage < 1 and facts.reuse_factor > 1:
        changes["coverage=1"] = facts.steady_misses(coverage=1.0)
    if not changes:
        return None
    change = min(changes, key=lambda name: changes[name] or 0.0)
    return f"{change} would leave {_left(changes[change], stats)} to compute"


def _left(share: float | None, stats: Stats) -> str:
    """Say how many images would be left, and how many there are."""
    now = _percent(stats.misses / max(stats.samples, 1))
    return f"fewer than {now} of the images" if share is None else f"{_percent(share)} of the images, not {now},"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
