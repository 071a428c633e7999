"""Assistant: the mutable part of AutoAssist, which learns which candidates the model finds hard.

It is one of the three things here that change, beside the store and the loader. What it learns is in `difficulty`, and
all else about it in `auto_assist`.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.checks import epoch_of, integer, number
from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.planning.auto_assist import AutoAssist, CandidateStream
from dalirefurb.planning.batch_plan import BatchPlan, Indices
from dalirefurb.planning.difficulty import Belief, Compute, Difficulty, FeatureTable
from dalirefurb.planning.planner import Planner


@dataclass(frozen=True)
class AssistantReport:
    """What an Assistant did until the batch served last.

    Attributes:
        candidates: Number of samples that the Assistant considered.
        accepted: Number of samples that were served.
        accuracy: Moving average of the Assistant's accuracy, which is its confidence gamma.
        threshold: Moving average of the losses.
    """

    candidates: int
    accepted: int
    accuracy: float
    threshold: float

    @property
    def accepted_fraction(self) -> float:
        """Share of the candidates that was served."""
        return self.accepted / self.candidates if self.candidates else 1.0

    @property
    def saved(self) -> float:
        """Share of the operations of training on every candidate that was not spent.

        It says nothing about how fast the loss falls: compare the samples that were trained on, to equal loss.
        """
        return 1 - self.accepted_fraction


@dataclass(frozen=True, slots=True, eq=False)
class _Moment:
    """What an Assistant believes before it learns for the next batch, and the candidate that it considers next."""

    belief: Belief
    candidates: int = 0
    epoch: int = 0
    row: int = 0


class Assistant:
    """Plans batches of the samples that it expects to be hard, and learns from their losses which ones are.

    A batch is planned, then served, then observed; some may be planned ahead. The owner thread plans; the training loop
    may serve, observe and ask for state and report meanwhile.

    Rows are planned as misses whose version this Assistant has not served yet: their birth was rejected, or it was
    served before `restore`.

    Args:
        planner: The `AutoAssist` that says what to choose from, and how to learn.
        compute: Function that makes the images whose features are missing, after a resume.

    Attributes:
        features: Table of the features of samples, which are put there once they are seen.
        chooses_from: Planner of the candidates.
        planned: Number of batches planned.
        served: Number of batches handed to the training loop.
        observed: Number of batches whose losses are known.
    """

    def __init__(self, planner: AutoAssist, compute: Compute) -> None:
        self.features = FeatureTable(planner.num_samples, resolution=planner.resolution)
        self.chooses_from = planner.planner
        self._planner = planner
        self._difficulty = Difficulty(planner, self.features, compute)
        self._stream = CandidateStream(planner.planner)
        self._planning = threading.Lock()  # held first, while the next batch is planned or chosen
        self._lock = threading.Lock()  # guards what both threads use
        self._start(_Moment(Belief(np.zeros(planner.resolution**2 * 3 + 1))))

    @classmethod
    def of(cls, planner: Planner, compute: Compute) -> Assistant | None:
        """Return the Assistant of a planner, which knows no features yet; None if losses act on none of its plans."""
        return cls(planner, compute) if isinstance(planner, AutoAssist) else None

    def _start(self, moment: _Moment, *, served: int = 0, observed: int = 0) -> None:
        """Begin where the moment is, with nothing planned ahead and no version served."""
        self._moment = moment
        self._last_version = np.full(self._planner.num_samples, -1)
        self._ahead: dict[int, tuple[_Moment, BatchPlan]] = {}  # from batch `served` on, each with the moment before it
        self._indices: dict[int, Indices] = {}  # of the last batches served
        self._losses: dict[int, NDArray[np.float32]] = {}  # of those of them that were observed
        self.served, self.observed, self.planned = served, observed, served

    def ready(self) -> bool:
        """Tell whether the next batch can be planned: whether the losses of the batch `lag` before it are known."""
        return self.planned - self._planner.lag < self.observed

    def plan(self) -> BatchPlan:
        """Plan the next batch.

        Raises:
            ConfigurationError: If it is not `ready`.
        """
        with self._planning:
            with self._lock:
                number, lag = self.planned, self._planner.lag
                if number in self._ahead:
                    self.planned += 1
                    return self._ahead[number][1]
                if not self.ready():
                    raise ConfigurationError(
                        f"batch {number} needs the losses of batch {number - lag} (lag={lag}), got those of the first "
                        f"{self.observed} batches: observe the losses of each batch that is served, or pass a larger "
                        f"lag"
                    )
                seen = (self._indices[number - lag], self._losses[number - lag]) if number >= lag else None
            moment = self._moment
            belief = self._difficulty.learned(moment.belief, *seen, first=number == lag) if seen else moment.belief
            plan, after = self._chosen(moment, belief)
            with self._lock:
                self._ahead[number] = moment, plan
                self._moment = after
                self.planned += 1
            return plan

    def serve(self) -> None:
        """Count one more planned batch as handed to the training loop.

        Raises:
            ConfigurationError: If none is planned.
        """
        with self._lock:
            if self.served == self.planned:
                raise ConfigurationError(
                    f"a batch must be planned to be served, got {self.served} served of {self.planned} planned: "
                    f"call plan first"
                )
            self._indices[self.served] = self._ahead[self.served][1].indices
            self.served += 1
            # Whatever an interrupt keeps from being dropped here is dropped next time.
            needed = self.served - self._planner.lag
            for kept, first in ((self._ahead, self.served), (self._indices, needed), (self._losses, needed)):
                for past in [number for number in kept if number < first]:
                    del kept[past]

    def observe(self, losses: ArrayLike) -> None:
        """Take the loss of each row of the oldest batch that was served and not observed yet, shape (batch_size,).

        Raises:
            ConfigurationError: If there is no such batch, or the losses are not one finite number a row.
        """
        values = np.asarray(losses, np.float32)
        if values.shape != (self._planner.batch_size,):
            raise ConfigurationError(
                f"losses must be one number for each row of the batch, shape ({self._planner.batch_size},), got shape "
                f"{values.shape}: pass each sample's own loss (reduction='none')"
            )
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise ConfigurationError(
                f"losses must be finite, got {values[row]} in row {row} of batch {self.observed}: stop training, or "
                f"lower its learning rate"
            )
        with self._lock:
            if self.observed == self.served:
                raise ConfigurationError(
                    f"losses must be those of a served batch, got losses for batch {self.observed} when "
                    f"{self.served} were served: call observe once after each batch"
                )
            self._losses[self.observed] = values.copy()
            self.observed += 1

    def rewind(self) -> None:
        """Go back to the batch that is to be served next: plan it and those after it again, the same."""
        with self._planning, self._lock:
            self.planned = self.served

    @property
    def upcoming(self) -> tuple[int, int]:
        """Which candidate was not considered yet for what was served: the inner epoch, and the row in it."""
        with self._lock:
            moment = self._present()
        epochs, row = divmod(moment.row, self.chooses_from.rows_per_epoch)
        return moment.epoch + epochs, row

    def report(self) -> AssistantReport:
        """Return what was done until the batch served last; what is planned ahead does not count."""
        with self._lock:
            moment, accepted = self._present(), self.served * self._planner.batch_size
        return AssistantReport(moment.candidates, accepted, moment.belief.accuracy, moment.belief.threshold)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on from batch number `served`, as JSON values.

        Besides the weights, these are the indices and losses of the last `lag` batches: 11 bytes a row.
        """
        with self._lock:
            moment = self._present()
            belief = moment.belief
            return {
                "served": self.served,
                "observed": self.observed,
                "candidates": moment.candidates,
                "epoch": moment.epoch,
                "row": moment.row,
                "threshold": belief.threshold,
                "accuracy": belief.accuracy,
                "weights": _packed([belief.weights], "<f8"),
                "indices": _packed((self._indices[n] for n in self._indices if n < self.served), "<i4"),
                "losses": _packed((self._losses[n] for n in self._losses if n < self.observed), "<f4"),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken, of an Assistant with the same planner.

        Plans are the same from there, but that versions served before are planned as misses once more.

        Raises:
            StateMismatchError: If it is damaged; nothing is changed then.
        """
        try:
            averages = [
                number(each, state[each], "", lambda x: 0 <= x < 1e99, "") for each in ("threshold", "accuracy")
            ]
            candidates, row, served, observed = (
                integer(name, state[name], 0, None, "") for name in ("candidates", "row", "served", "observed")
            )
            weights = _unpacked(state["weights"], "<f8").astype(np.float64)
            moment = _Moment(Belief(weights, *averages), candidates, epoch_of(state["epoch"]), row)
            indices = _unpacked(state["indices"], "<i4").astype(np.int64).reshape(-1, self._planner.batch_size)
            losses = _unpacked(state["losses"], "<f4").astype(np.float32).reshape(-1, self._planner.batch_size)
            needed = min(served, self._planner.lag)
            sound = (
                observed <= served
                and row <= self._planner.planner.rows_per_epoch
                and np.isfinite(weights).all()
                and np.isfinite(losses).all()
                and len(weights) == len(self._moment.belief.weights)
                and needed <= len(indices) <= served
                and needed - (served - observed) <= len(losses) <= observed
                and ((indices >= 0) & (indices < self._planner.num_samples)).all()
            )
        except (LookupError, TypeError, ValueError, OverflowError):  # A `ConfigurationError` is a `ValueError`.
            sound = False
        if not sound:
            raise StateMismatchError(
                ("assistant",),
                "the Assistant's part of the state must be what state_dict returned, but it is damaged; load an "
                "earlier state, or start anew",
            )
        with self._planning, self._lock:
            self._start(moment, served=served, observed=observed)
            self._indices = dict(enumerate(indices, served - len(indices)))
            self._losses = dict(enumerate(losses, observed - len(losses)))

    def _present(self) -> _Moment:
        """Return the moment before batch number `served`."""
        return self._ahead[self.served][0] if self.served in self._ahead else self._moment

    def _chosen(self, moment: _Moment, belief: Belief) -> tuple[BatchPlan, _Moment]:
        """Choose the next batch by what is believed now; return it, and the moment after it."""
        accepts = partial(self._difficulty.accepts, belief)
        plan, epoch, row, considered = self._stream.batch(moment.epoch, moment.row, accepts)
        first = np.zeros(len(plan.indices), np.bool_)  # rows of their index and version in the batch
        first[np.unique((plan.version << 32) + plan.indices, return_index=True)[1]] = True
        # A sample that is in the batch twice has been served by its second row.
        new = (self._last_version[plan.indices] != plan.version) & first
        self._last_version[plan.indices] = plan.version
        after = _Moment(belief, moment.candidates + considered, epoch, row)
        return replace(plan, miss=plan.miss | new).read_only(), after


def _packed(arrays: Iterable[NDArray[Any]], dtype: str) -> str:
    """Write arrays, one after the other, as base64."""
    return base64.b64encode(b"".join(array.astype(dtype).tobytes() for array in arrays)).decode()


def _unpacked(text: str, dtype: str) -> NDArray[Any]:
    """Read what `_packed` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype)
