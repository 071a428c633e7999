"""Diagnosis: whether training waits for a loader, and the one change that would help most.

What it presumes of a training loop:

* The time from a batch to the request for the next one is the model's. Validation in the middle of an epoch, or a
  checkpoint, counts as the model's, too, so that training waits for a larger share of its own time than is said.
* A model on a GPU is asked for a result now and then, such as a loss to print, or the queue of kernels is full. A loop
  that runs ahead of its GPU for long waits for data while the GPU works, which is no loss, but is said to be one.
* The model has cores of its own. One on the loader's cores is slowed by the loader, in time that counts as the
  model's, so that loading costs more than what is waited. Without a CUDA device that is said, and no verdict that
  training does not wait is given, unless the loop hardly computes: in some steps the CPU time of this process is looked
  at, but that of its loaders' threads, so that it does not matter on which threads a step computes. One that sleeps, or
  waits for another machine, takes next to none.
* No other process takes its cores. Where one does, it is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.prefetch import Depths
from dalirefurb.engine.stats import POTENTIAL_ABOVE, Stats, Verdict, verdict_of
from dalirefurb.planning.planner import Planner, Reuse
from dalirefurb.store import Store
from dalirefurb.system.processes import local_processes
from dalirefurb.system.resources import usable_cores

LEAST_STEPS = 16
"""Steps of the training loop below which nothing is said, but where an epoch has fewer."""

_LEAST_PARTS = 4
_WIDEST_SPREAD = 1.1
_AS_FAST = 1.1
_SHARED = "but the model shares the loader's cores, so that waiting says little"
_DOCTOR = "see by `dalirefurb doctor` what else takes the cores, and try again"

_NOTICEABLE = 0.05
"""Share of images from which on it is said that the store has lost or refused them."""

_MOSTLY_REUSED = 0.25
"""Share of computed images up to which what is done to all images is taken to cost more than computing these."""

_MOST_USES = 3
"""Uses of a partial image beyond which another one saves little and costs diversity."""

_MOSTLY = 0.5
_ENOUGH_READING_THREADS = 16
_FAR_FROM_STEADY = 0.5
_OTHERS = 0.2
"""Share of the cores from which on it is said that other processes took them."""

_ALL = 0.95

Bottleneck = tuple[str, str]
"""What holds a loader back, a clause of a sentence; and the one change that would help most, and what it would do."""


@dataclass(frozen=True)
class Facts:
    """What decides a loader's work, beside what it has done.

    Attributes:
        reuse: How often partial images are used; None: by what no formula says.
        slots: Partial images that the plan keeps at once, at most.
        store: Name of the store's class; empty where there is none.
        caches_encoded: Whether the store holds samples as they were read (split 0).
        final_stages: Stages of the recipe's final part.
        later_split: Whether a later split would leave something random behind it.
        fallback_stage: Name of the stage from which on DALI does what compiled kernels have begun; empty if none.
        threads: CPU threads that compute.
        reading_threads: Threads that read files.
        cores: Cores that this process may use.
        shared: Whether the model computes on these cores, too.
        others: Cores that other processes kept busy, on average, as far as is known.
        batches: Batches of an epoch.
    """

    reuse: Reuse | None = None
    slots: int = 0
    store: str = ""
    caches_encoded: bool = False
    final_stages: int = 1
    later_split: bool = True
    fallback_stage: str = ""
    threads: int = 1
    reading_threads: int = 4
    cores: int = 1
    shared: bool = False
    others: float = 0.0
    batches: int = 1000

    @classmethod
    def of(
        cls, planner: Planner, recipe: Recipe, store: Store | None, depths: Depths, fallback_stage: str | None = None
    ) -> Facts:
        """Gather them for what a rank carries out."""
        return cls(
            reuse=planner.reuse,
            slots=planner.peak_slots,
            store="" if store is None else type(store).__name__,
            caches_encoded=recipe.caches_encoded,
            final_stages=len(recipe.final),
            later_split=any(stage.random for stage in recipe.final[1:]),
            fallback_stage=fallback_stage or "",
            threads=depths.replicas * depths.threads_each,
            reading_threads=depths.reading_threads,
            cores=max(1, usable_cores() // local_processes()),
            shared=model_shares_cores(),
            batches=len(planner),
        )


@dataclass(frozen=True)
class Diagnosis:
    """What `Loader.diagnose` finds. As text it is one line.

    >>> print(Diagnosis(Verdict.NOT_DETECTED, 0.01, 1210.0, "", "leave the loader as it is"))
    NOT DETECTED: training waited for data in 1 % of its time (1,210 images/s): leave the loader as it is

    Attributes:
        verdict: Whether the loader holds training back.
        waiting: Share of its time in which training waited for data, 0..1; NaN if it is not known.
        images_per_s: Images that training got through in a second, on this rank, pauses between epochs left out; NaN if
            it is not known.
        cause: What the loader's threads did meanwhile, or why nothing is said, a clause; empty where nothing waits.
        change: The one change that would help most, and what it would do.
        steps: Steps of the training loop that it is made of.
        shared: Whether the model shares the loader's cores, so that loading costs more than the waiting.
    """

    verdict: Verdict
    waiting: float
    images_per_s: float
    cause: str
    change: str
    steps: int = 0
    shared: bool = False

    @property
    def headspace(self) -> float:
        """How many times as fast training would be if data cost nothing, at least 1; NaN if it is not known.

        Where the model shares the loader's cores it is more than that.
        """
        return 1 / max(1 - self.waiting, 1e-9)

    def __str__(self) -> str:
        known = self.waiting == self.waiting
        limited = self.headspace > POTENTIAL_ABOVE and not self.shared
        most = f", at most {self.headspace * self.images_per_s:,.0f}" if limited else ""
        measured = (
            f"training waited for data in {100 * self.waiting:.0f} % of its time ({self.images_per_s:,.0f} images/s"
            f"{most})"
        )
        said = "; ".join(([measured] if known else []) + ([self.cause] if self.cause else []))
        return f"{self.verdict}: {said}: {self.change}"

    __repr__ = __str__


def least_steps(facts: Facts) -> int:
    """Return the steps below which nothing is said: `LEAST_STEPS`, or all of an epoch where these are fewer."""
    return max(1, min(LEAST_STEPS, facts.batches - 1))


def diagnose(stats: Stats, facts: Facts, parts: Sequence[Stats] = (), *, first_epoch: Stats | None = None) -> Diagnosis:
    """Say whether training waits for a loader: a pure function of what was done.

    Training would be (wait + work) / work times as fast if data cost nothing. Above 1.5 the verdict is DETECTED, above
    1.1 it is POTENTIAL, else NOT DETECTED. It is INCONCLUSIVE if training does wait, but in an epoch that computes more
    images than later ones will; if fewer than 16 steps are known, or than an epoch has; if quartiles of the parts are
    more than 10 % apart and have two verdicts; and if training does not wait, but the model shares the loader's cores.

    Args:
        stats: What was done in the time that is looked at.
        facts: What decides the loader's work.
        parts: The same, parted by time.
        first_epoch: What was done in the first epoch, which computes all images; None: it is not known.
    """
    headspace = stats.headspace
    waiting = 1 - 1 / headspace
    missing = least_steps(facts) - stats.steps
    few = f"known from {stats.steps} steps only" if stats.steps < LEAST_STEPS and missing <= 0 else ""

    def because(cause: str, change: str, verdict: Verdict = Verdict.INCONCLUSIVE) -> Diagnosis:
        cause = "; ".join(filter(None, (few, cause, _by_pillow(stats), _by_others(facts))))
        return Diagnosis(verdict, waiting, stats.images_per_s, cause, change, stats.steps, facts.shared)

    if facts.batches == 1 and not stats.steps:
        return because("an epoch of one batch has no step between two", "smaller batches would give it more")
    if missing > 0:
        return because(f"{stats.steps} steps of training are too few to tell", f"train for {missing} more")
    spread = _spread(parts)
    if spread is not None:
        low, high = (f"{100 * (1 - 1 / each):.0f} %" for each in spread)
        return because(f"but that varied, with quartiles of {low} and {high}", _DOCTOR)
    verdict = verdict_of(headspace)
    if verdict is Verdict.NOT_DETECTED and facts.shared:
        return because(_SHARED, _compare(stats, facts, first_epoch))
    if verdict is Verdict.NOT_DETECTED:
        return because("", _leave(stats, facts, first_epoch), verdict)
    if is_filling(stats, facts):
        return because("but in an epoch that computes more images than those after it will", "train for another epoch")
    cause, change = find(stats, facts)
    if facts.shared:
        cause, change = f"{_SHARED}; {cause}", f"{change}; {_compare(stats, facts, first_epoch)}"
    return because(cause, change, verdict)


def _spread(parts: Sequence[Stats]) -> tuple[float, float] | None:
    """Return the quartiles of the parts' headspaces, if they are too far apart for one verdict."""
    spaces = [part.headspace for part in parts if part.steps]
    if len(spaces) < _LEAST_PARTS:
        return None
    low, _, high = quantiles(spaces, n=4, method="inclusive")
    return (low, high) if high > _WIDEST_SPREAD * low and verdict_of(low) != verdict_of(high) else None


def _leave(stats: Stats, facts: Facts, first_epoch: Stats | None) -> str:
    """Say what to do where training does not wait."""
    times = _times_first_epoch(stats, facts, first_epoch)
    if times is None:
        return "leave the loader as it is"
    if times > _AS_FAST:
        # Perhaps the model works on the loader's cores.
        now = f"training is {times:.1f} times as fast as in the first epoch, which computed all"
        return f"leave the loader as it is: {now}"
    return "reuse_factor=1 would be as fast, and every image fresh, since the first epoch, which computed all, was"


def _compare(stats: Stats, facts: Facts, first_epoch: Stats | None) -> str:
    """Say what to compare with, where waiting does not tell what loading costs."""
    if facts.reuse is None:
        other = "standard training"
    else:
        other = "reuse_factor=1" if facts.reuse.factor > 1 else "refurbishing with reuse_factor=3"
    times = _times_first_epoch(stats, facts, first_epoch)
    now = "" if times is None else f" (now {times:.1f} times those of the first epoch, which computed all)"
    return f"compare images/s with those of {other}{now}"


def _times_first_epoch(stats: Stats, facts: Facts, first_epoch: Stats | None) -> float | None:
    """Return how many times as fast training is as in the first epoch, if that computed more and is long enough."""
    reuses = facts.reuse is not None and facts.reuse.factor > 1
    if not reuses or is_filling(stats, facts) or first_epoch is None or first_epoch.steps < LEAST_STEPS:
        return None
    return stats.images_per_s / first_epoch.images_per_s


def model_shares_cores() -> bool:
    """Tell whether a model that computes does so on the loader's cores: without a CUDA device it has no others."""
    return not torch.cuda.is_available()


def is_filling(stats: Stats, facts: Facts) -> bool:
    """Tell whether what was done is mostly of an epoch that computes more than later ones, such as the first."""
    if not facts.slots or not stats.samples:
        return False
    planned = (stats.misses - stats.recomputed) / stats.samples
    most = _ALL if facts.reuse is None else facts.reuse.misses + _FAR_FROM_STEADY * (1 - facts.reuse.misses)
    return planned > most


def find(stats: Stats, facts: Facts) -> Bottleneck:
    """Find what holds a loader back that training waits for."""
    planned_hits = stats.hits + stats.recomputed
    put = stats.stored + stats.declined
    if facts.slots and not facts.store:
        return (
            "there is no store, so nothing is reused",
            f"a MemoryStore() would keep the {facts.slots:,} images that the plan reuses",
        )
    if stats.declined > _NOTICEABLE * put:
        return (
            f"the store had no room for {_percent(stats.declined / put)} of what it was to keep",
            f"room for all {facts.slots:,} images that the plan reuses, in a TieredStore with a disk if memory is "
            f"short, would leave {_left(facts.reuse, stats)} to compute",
        )
    if stats.recomputed > _NOTICEABLE * planned_hits:
        return (
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
    return most(stats, facts)


def _computing(stats: Stats, facts: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly compute."""
    misses = stats.misses / max(stats.samples, 1)
    few = misses <= _MOSTLY_REUSED
    cause = f"the loader's threads mostly computed {'final images' if few else 'images'}, {_percent(misses)} of "
    cause += "them from the start"
    if facts.fallback_stage:
        cause += f", and from stage {facts.fallback_stage!r} on by DALI's operators, which are slower than kernels"
    if facts.threads < facts.cores:
        return cause, f"Prefetch(num_threads={facts.cores}) would use all cores, not {facts.threads}"
    if not few and (change := _fewer_misses(stats, facts)):
        return cause, change
    if not few and facts.reuse is None:
        return cause, "a planner that reuses more would leave fewer, by a larger echoing factor for example"
    if facts.caches_encoded:
        return cause, "a later split would keep images that are decoded already: recipe.at(1) or more"
    if facts.fallback_stage:
        return cause, f"a KernelStage in the place of {facts.fallback_stage!r} would leave all to kernels"
    if facts.slots and facts.final_stages:
        order = "a preset's order='crop_last' would do less at each use"
        return cause, f"a later split, or {order}" if facts.later_split else order
    return cause, "more cores, smaller images or a GPU for the final part would help; reuse would not"


def _files(stats: Stats, facts: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly wait for files."""
    cause = "the loader's threads mostly waited for files"
    if stats.pillow_s > _MOSTLY * stats.reading_wait_s:
        change = "files of a kind that DALI decodes, JPEG, PNG or WebP of 8 bits, would leave this to its threads"
        return f"{cause} to be decoded", change
    if facts.reading_threads < _ENOUGH_READING_THREADS:
        threads = min(4 * facts.reading_threads, _ENOUGH_READING_THREADS)
        change = f"Prefetch(reading_threads={threads}) would read more of them at a time, if disk or network can"
        return cause, change
    kept = "" if facts.caches_encoded else ", or Frozen with recipe.at(0) and a store, which reads each file once"
    return cause, _fewer_misses(stats, facts) or f"a faster disk would help{kept}"


def _storing(_: Stats, facts: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly read and write the store."""
    changes = {
        "Compressed": "the store without Compressed would take more room and less time",
        "DiskStore": "a faster disk would help, or a TieredStore that keeps a part in memory",
        "TieredStore": "more memory for its first tier would help",
    }
    change = changes.get(facts.store, "smaller partial images would help: an earlier crop or resize")
    return f"the loader's threads mostly worked on the {facts.store or 'store'}", change


def _handling(_: Stats, __: Facts) -> Bottleneck:
    """What helps where the loader's threads mostly plan, and draw parameters."""
    cause = "the loader's threads mostly planned batches and drew parameters"
    return cause, "larger batches, or more of them together (Prefetch(batches_per_group=...)), would help"


def _fewer_misses(stats: Stats, facts: Facts) -> str | None:
    """Return the change that leaves the fewest images to compute, if there is one."""
    reuse, changes = facts.reuse, dict[str, Reuse]()
    if reuse is not None and reuse.factor < _MOST_USES:
        store = "" if facts.store else " with a MemoryStore()"
        changes[f"reuse_factor={reuse.factor + 1}{store}"] = reuse._replace(factor=reuse.factor + 1)
    if reuse is not None and reuse.coverage < 1 and reuse.factor > 1:
        changes["coverage=1"] = reuse._replace(coverage=1.0)
    if not changes:
        return None
    change = min(changes, key=lambda name: changes[name].misses)
    return f"{change} would leave {_left(changes[change], stats)} to compute"


def _left(reuse: Reuse | None, stats: Stats) -> str:
    """Say how many images would be left, and how many there are."""
    now = _percent(stats.misses / max(stats.samples, 1))
    return f"fewer than {now} of the images" if reuse is None else f"{_percent(reuse.misses)} of the images, not {now},"


def _by_pillow(stats: Stats) -> str:
    """Say which share of what was computed Pillow decoded, and how long that took; nothing if there was none."""
    if not stats.pillow_images:
        return ""
    share = _percent(stats.pillow_images / max(stats.files, 1))
    return f"Pillow decoded {share} of the files that were read, in {stats.pillow_s:.1f} s of their threads' time"


def _by_others(facts: Facts) -> str:
    """Say how many cores other processes took; nothing if that is little."""
    if facts.others < _OTHERS * facts.cores:
        return ""
    return f"other processes took {facts.others:.1f} of {facts.cores} cores meanwhile"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


NOTHING_SERVED = diagnose(Stats(), Facts())
"""The diagnosis of a loader that has not begun."""
