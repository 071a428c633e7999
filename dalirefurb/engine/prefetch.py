"""Prefetch: how many copies of the pipelines work, and how far ahead.

    store told ─▶ files read ─▶ partial part ─▶ waiting ─▶ final part ─▶ handed over
    announced      admitted     partial_ahead     READY    look_ahead         1

The numbers below are of runs that are at each step at a time, at most. Where one step makes final images, those that
wait are final, and the next step is the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dalirefurb.checks import integer
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.system.cores import usable_cores
from dalirefurb.system.launch_env import local_processes

READY = 2
"""Runs whose partial images wait for the final part, at most."""

_MAX_REPLICAS = 8
_FINAL_RUNS = 3
_PARTIAL_RUNS = 2
_ROWS_PER_RUN = 256
_MOST_ROWS_PER_RUN = 2048
_PIXELS_PER_RUN = _ROWS_PER_RUN * 224 * 224
_RUNS_PER_EPOCH = 4
_ADMITTED = 8
_ADMITTED_WITH_LAG = 2
_ANNOUNCED = 4


@dataclass(frozen=True)
class Prefetch:
    """Numbers of copies and of runs.

    Attributes:
        replicas: Number of copies of each part's pipeline.
        threads_each: Number of CPU threads of each copy of a pipeline.
        batches_per_run: Largest number of batches that run together.
        hits_per_run: Largest number of batches that run together where the plan has nothing to compute; at least
            `batches_per_run`.
        look_ahead: Number of runs in the final part at a time, finished ones included; a run of n times as many batches
            counts n times.
        partial_ahead: Number of runs in the partial part at a time.
        admitted: Number of runs whose files are read before the runs enter the partial part, beside the runs that are
            in it.
        announced: Number of runs of which the store is told before their files are read, beside the `admitted` runs.
    """

    replicas: int
    threads_each: int
    batches_per_run: int
    hits_per_run: int
    look_ahead: int
    admitted: int
    announced: int

    @property
    def partial_ahead(self) -> int:
        """Runs of the partial part at a time: two per replica, and no more than of the final part."""
        return min(self.look_ahead, _PARTIAL_RUNS * self.replicas)

    @property
    def runs_made(self) -> int:
        """Runs whose images can be made, partly at least, before they are asked for."""
        return self.partial_ahead + READY + self.look_ahead + 1

    @property
    def batches_made(self) -> int:
        """Batches of these runs."""
        return self.runs_made * self.batches_per_run

    @property
    def batches_planned(self) -> int:
        """Batches that can be planned before they are asked for."""
        return self.batches_made + (self.admitted + self.announced) * self.batches_per_run


def choose_prefetch(
    planner: Planner,
    *,
    num_threads: int | None,
    replicas: int | None,
    look_ahead: int | None,
    batches_per_run: int | None,
    pixels: int | None = None,
    hits_together: bool = False,
) -> Prefetch:
    """Fill in what is None; for the arguments see `Loader`.

    Where samples are arrays of one shape, `pixels` are those of one on its way, at most: a run of small ones takes more
    of them. Of encoded images even 256 take long to decode. With `hits_together` twice as many rows run together where
    nothing is to be computed: all that a run costs then, beside the final part, is Python's time.

    Raises:
        ConfigurationError: If a number is not positive, or an Assistant's lag is too short.
    """
    num_threads = _positive("num_threads", num_threads, default=max(1, usable_cores() // local_processes()))
    replicas = _positive("replicas", replicas, default=min(_MAX_REPLICAS, num_threads))
    together = _positive("batches_per_run", batches_per_run, default=1)
    prefetch = Prefetch(
        replicas=replicas,
        threads_each=-(-num_threads // replicas),
        batches_per_run=together,
        hits_per_run=together,
        look_ahead=_positive("look_ahead", look_ahead, default=_FINAL_RUNS * replicas),
        admitted=_ADMITTED,
        announced=_ANNOUNCED,
    )
    if planner.feedback_lag is not None:
        return _within_lag(
            replace(prefetch, admitted=_ADMITTED_WITH_LAG, announced=0),
            planner.feedback_lag,
            adjustable=look_ahead is None,
        )
    if batches_per_run is None:
        rows = _ROWS_PER_RUN if pixels is None else _PIXELS_PER_RUN // pixels
        rows = min(max(rows, _ROWS_PER_RUN), _MOST_ROWS_PER_RUN)
        most = max(1, len(planner) // _RUNS_PER_EPOCH)
        together = max(1, min(rows // planner.batch_size, most))
        of_hits = min(2 * rows, _MOST_ROWS_PER_RUN) // planner.batch_size if hits_together else 0
        of_hits = min(of_hits, most, prefetch.look_ahead * together)
        prefetch = replace(prefetch, batches_per_run=together, hits_per_run=max(together, of_hits))
    return prefetch


def _within_lag(prefetch: Prefetch, lag: int, *, adjustable: bool) -> Prefetch:
    """Plan no batch before the losses that it depends on are there."""
    while adjustable and prefetch.look_ahead > 1 and prefetch.batches_planned >= lag:
        prefetch = replace(prefetch, look_ahead=prefetch.look_ahead - 1)
    if prefetch.batches_planned >= lag:
        least = replace(prefetch, look_ahead=1, batches_per_run=1).batches_planned + 1
        raise ConfigurationError(
            f"lag must exceed the batches planned ahead, got lag={lag} and {prefetch.batches_planned} batches: "
            f"pass AutoAssist(..., lag={prefetch.batches_planned + 1}), or a smaller look_ahead or batches_per_run "
            f"(lag={least} is the least for look_ahead=1, batches_per_run=1)"
        )
    return prefetch


def _positive(name: str, value: int | None, *, default: int) -> int:
    return default if value is None else integer(name, value, 1, None, "pass a positive number, or None")
