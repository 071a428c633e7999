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
  waits for another machine, takes next to none. What other processes compute is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from dalirefurb.engine.bottleneck import Facts, by_pillow, find, is_filling
from dalirefurb.engine.stats import Stats
from dalirefurb.engine.verdict import POTENTIAL_ABOVE, Verdict, verdict_of

LEAST_STEPS = 16
"""Steps of the training loop below which nothing is said, but where an epoch has fewer."""

_LEAST_PARTS = 4
_WIDEST_SPREAD = 1.1
_AS_FAST = 1.1
_SHARED = "but the model shares the loader's cores, so that waiting says little"
_DOCTOR = "see by `dalirefurb doctor` what else takes the cores, and ask again"


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
    few = f"known steps: only {stats.steps}" if stats.steps < LEAST_STEPS and missing <= 0 else ""

    def because(cause: str, change: str, verdict: Verdict = Verdict.INCONCLUSIVE) -> Diagnosis:
        cause = "; ".join(filter(None, (few, cause, by_pillow(stats))))
        return Diagnosis(verdict, waiting, stats.images_per_s, cause, change, stats.steps, facts.shared)

    if facts.batches == 1 and not stats.steps:
        return because("an epoch of one batch has no step between two", "a smaller batch_size would give it more")
    if missing > 0:
        return because(f"{stats.steps} steps of training are too few to tell", f"ask again after {missing} more")
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
        return because(
            "but in an epoch that computes more images than those after it will", "ask again in the next epoch"
        )
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
    if facts.reuse_factor is None or facts.reuse_factor > 1:
        other = "reuse_factor=1" if facts.reuse_factor else "Standard"
    else:
        other = "Refurbish, reuse_factor=3"
    times = _times_first_epoch(stats, facts, first_epoch)
    now = "" if times is None else f" (now {times:.1f} times those of the first epoch, which computed all)"
    return f"compare images/s with those of {other}{now}"


def _times_first_epoch(stats: Stats, facts: Facts, first_epoch: Stats | None) -> float | None:
    """Return how many times as fast training is as in the first epoch, if that computed more and is long enough."""
    reuses = facts.reuse_factor is not None and facts.reuse_factor > 1
    if not reuses or is_filling(stats, facts) or first_epoch is None or first_epoch.steps < LEAST_STEPS:
        return None
    return stats.images_per_s / first_epoch.images_per_s


NOTHING_SERVED = diagnose(Stats(), Facts())
"""The diagnosis of a loader that has not begun."""
