"""Assistant: the mutable part of AutoAssist, which learns which candidates the model finds hard.

It is one of the three things here that change, beside the store and the loader. All else about it is in `auto_assist`.
"""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.planning.auto_assist import AutoAssist, Candidates, batch_of
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask
from dalirefurb.planning.features import FeatureTable
from dalirefurb.planning.planner import Planner
from dalirefurb.rng import uniforms

Compute = Callable[[Indices], Sequence[NDArray[np.uint8]]]
"""Makes the partial images of version 0 of samples, HWC."""


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
    """What an Assistant knows before it learns for the next batch, and the candidate that it considers next."""

    weights: NDArray[np.float64]
    threshold: float = 0.0
    accuracy: float = 0.0
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
        features: Table where features are found, and put if they were missing; it has the planner's samples and
            resolution.
        compute: Function that makes the images whose features are missing, after a resume.

    Raises:
        ConfigurationError: If `features` does not fit the planner.
    """

    def __init__(self, planner: AutoAssist, features: FeatureTable, compute: Compute) -> None:
        expected, given = (planner.num_samples, planner.resolution), (features.num_samples, features.resolution)
        if given != expected:
            raise ConfigurationError(
                f"features must have the planner's samples and resolution, {expected[0]} and {expected[1]}, got "
                f"{given[0]} and {given[1]}: pass FeatureTable(planner.num_samples, resolution=planner.resolution)"
            )
        self._planner = planner
        self._features = features
        self._compute = compute
        self._planning = threading.Lock()  # held first, while the next batch is planned or chosen
        self._lock = threading.Lock()  # guards what both threads use
        self._candidates: Candidates | None = None
        self._start(_Moment(np.zeros(planner.resolution**2 * 3 + 1)))

    @classmethod
    def of(cls, planner: Planner, compute: Compute) -> Assistant | None:
        """Return the Assistant of a planner, which knows no features yet; None if losses act on none of its plans."""
        assisted = AutoAssist.among(planner)
        if assisted is None:
            return None
        return cls(assisted, FeatureTable(assisted.num_samples, resolution=assisted.resolution), compute)

    @property
    def features(self) -> FeatureTable:
        """Features of the samples that were computed."""
        return self._features

    @property
    def chooses_from(self) -> Planner:
        """Plans the candidates."""
        return self._planner.planner

    def _start(self, moment: _Moment, *, served: int = 0, observed: int = 0) -> None:
        """Begin where the moment is, with nothing planned ahead and no version served."""
        self._moment = moment
        self._last_version = np.full(self._planner.num_samples, -1)
        self._ahead: dict[int, tuple[_Moment, BatchPlan]] = {}  # from batch `served` on, each with the moment before it
        self._indices: dict[int, Indices] = {}  # of the last batches served
        self._losses: dict[int, NDArray[np.float32]] = {}  # of those of them that were observed
        self._served, self._observed, self._planned = served, observed, served

    @property
    def planned(self) -> int:
        """Batches planned."""
        return self._planned

    @property
    def served(self) -> int:
        """Batches handed to the training loop."""
        return self._served

    @property
    def observed(self) -> int:
        """Batches whose losses are known."""
        return self._observed

    def ready(self) -> bool:
        """Tell whether the next batch can be planned: whether the losses of the batch `lag` before it are known."""
        return self._planned - self._planner.lag < self._observed

    def plan(self) -> BatchPlan:
        """Plan the next batch.

        Raises:
            ConfigurationError: If it is not `ready`.
        """
        with self._planning:
            with self._lock:
                number, lag = self._planned, self._planner.lag
                if number in self._ahead:
                    self._planned += 1
                    return self._ahead[number][1]
                if not self.ready():
                    raise ConfigurationError(
                        f"batch {number} needs the losses of batch {number - lag} (lag={lag}), got those of the first "
                        f"{self._observed} batches: observe the losses of each batch that is served, or pass a larger "
                        f"lag"
                    )
                seen = (self._indices[number - lag], self._losses[number - lag]) if number >= lag else None
            moment = self._moment
            learned = self._learned(moment, *seen, first=number == lag) if seen else moment
            plan, after = self._chosen(learned)
            with self._lock:
                self._ahead[number] = moment, plan
                self._moment = after
                self._planned += 1
            return plan

    def serve(self) -> None:
        """Count one more planned batch as handed to the training loop.

        Raises:
            ConfigurationError: If none is planned.
        """
        with self._lock:
            if self._served == self._planned:
                raise ConfigurationError(
                    f"a batch must be planned to be served, got {self._served} served of {self._planned} planned: "
                    f"call plan first"
                )
            self._indices[self._served] = self._ahead[self._served][1].indices
            self._served += 1
            # Whatever an interrupt keeps from being dropped here is dropped next time.
            needed = self._served - self._planner.lag
            for kept, first in ((self._ahead, self._served), (self._indices, needed), (self._losses, needed)):
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
                f"losses must be finite, got {values[row]} in row {row} of batch {self._observed}: stop training, or "
                f"lower its learning rate"
            )
        with self._lock:
            if self._observed == self._served:
                raise ConfigurationError(
                    f"losses must be those of a served batch, got losses for batch {self._observed} when "
                    f"{self._served} were served: call observe once after each batch"
                )
            self._losses[self._observed] = values.copy()
            self._observed += 1

    def rewind(self) -> None:
        """Go back to the batch that is to be served next: plan it and those after it again, the same."""
        with self._planning, self._lock:
            self._planned = self._served

    @property
    def upcoming(self) -> tuple[int, int]:
        """Which candidate was not considered yet for what was served: the inner epoch, and the row in it."""
        with self._lock:
            moment = self._present()
        return moment.epoch, moment.row

    def report(self) -> AssistantReport:
        """Return what was done until the batch served last; what is planned ahead does not count."""
        with self._lock:
            moment, accepted = self._present(), self._served * self._planner.batch_size
        return AssistantReport(moment.candidates, accepted, moment.accuracy, moment.threshold)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on from batch number `served`, as JSON values.

        Besides the weights, these are the indices and losses of the last `lag` batches: 11 bytes a row.
        """
        with self._lock:
            moment = self._present()
            return {
                "served": self._served,
                "observed": self._observed,
                "candidates": moment.candidates,
                "epoch": moment.epoch,
                "row": moment.row,
                "threshold": moment.threshold,
                "accuracy": moment.accuracy,
                "weights": _packed([moment.weights], "<f8"),
                "indices": _packed((self._indices[n] for n in self._indices if n < self._served), "<i4"),
                "losses": _packed((self._losses[n] for n in self._losses if n < self._observed), "<f4"),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken, of an Assistant with the same planner.

        Plans are the same from there, but that versions served before are planned as misses once more.

        Raises:
            StateMismatchError: If it is damaged; nothing is changed then.
        """
        try:
            numbers = {name: state[name] for name in ("threshold", "accuracy", "candidates", "epoch", "row")}
            moment = _Moment(_unpacked(state["weights"], "<f8").astype(np.float64), **numbers)
            indices = _unpacked(state["indices"], "<i4").astype(np.int64).reshape(-1, self._planner.batch_size)
            losses = _unpacked(state["losses"], "<f4").astype(np.float32).reshape(-1, self._planner.batch_size)
            served, observed = int(state["served"]), int(state["observed"])
            needed = min(served, self._planner.lag)
            sound = (
                all(isinstance(number, (int, float)) and number >= 0 for number in (*numbers.values(), observed))
                and observed <= served
                and len(moment.weights) == len(self._moment.weights)
                and len(indices) >= needed
                and len(losses) >= needed - (served - observed)
                and ((indices >= 0) & (indices < self._planner.num_samples)).all()
            )
        except (KeyError, TypeError, ValueError):
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
        return self._ahead[self._served][0] if self._served in self._ahead else self._moment

    def _learned(self, moment: _Moment, indices: Indices, losses: NDArray[np.float32], *, first: bool) -> _Moment:
        """Compare with the threshold, update the averages, and take one gradient step."""
        planner = self._planner
        kept = 0.0 if first else planner.loss_momentum
        threshold = kept * moment.threshold + (1 - kept) * float(losses.mean(dtype=np.float64))
        hard = losses > threshold
        inputs = self._inputs(indices)
        expected = _logistic(inputs @ moment.weights)
        accuracy = float(np.mean((expected > 0.5) == hard))
        gradient = inputs.T @ (expected - hard) / len(losses)
        gradient[:-1] += planner.weight_decay * moment.weights[:-1]
        return replace(
            moment,
            weights=moment.weights - planner.learning_rate * gradient,
            threshold=threshold,
            accuracy=planner.accuracy_momentum * moment.accuracy + (1 - planner.accuracy_momentum) * accuracy,
        )

    def _chosen(self, moment: _Moment) -> tuple[BatchPlan, _Moment]:
        """Consider candidates until a batch is full."""
        planner = self._planner
        epoch, row, considered = moment.epoch, moment.row, 0
        parts: list[BatchPlan] = []
        epochs: list[int] = []
        needed = planner.batch_size
        while needed:
            candidates = self._candidates_of(epoch)
            if row == len(candidates):
                epoch, row = epoch + 1, 0
                continue
            stop = min(row + 2 * planner.batch_size, len(candidates))
            choosy = epoch > 0 and considered < planner.num_samples
            if choosy:
                stop = min(stop, row + planner.num_samples - considered)
            accepted = row + np.flatnonzero(
                self._accepts(candidates, row, stop, moment) if choosy else np.ones(stop - row)
            )
            accepted = accepted[:needed]
            needed -= len(accepted)
            if not needed:
                stop = int(accepted[-1]) + 1
            parts.append(candidates.accept(accepted, start=row, stop=stop))
            epochs.append(epoch)
            considered, row = considered + stop - row, stop
        plan = batch_of(parts, epochs)
        # A sample that is in the batch twice has been served by its second row.
        new = (self._last_version[plan.indices] != plan.version) & _first_rows(plan)
        self._last_version[plan.indices] = plan.version
        after = replace(moment, epoch=epoch, row=row, candidates=moment.candidates + considered)
        return replace(plan, miss=plan.miss | new).read_only(), after

    def _accepts(self, candidates: Candidates, start: int, stop: int, moment: _Moment) -> Mask:
        """Decide about candidates `start` to `stop`, as Algorithm 1 does; those that gamma lets in need no features."""
        indices, serving = candidates.rows.indices[start:stop], candidates.rows.serving[start:stop]
        doubt, luck = uniforms(self._planner.seed, "auto assist", indices, serving, 2).T
        accepts: Mask = doubt < 1 - moment.accuracy
        judged = np.flatnonzero(~accepts)
        if len(judged):
            accepts[judged] = luck[judged] < _logistic(self._inputs(indices[judged]) @ moment.weights)
        return accepts

    def _inputs(self, indices: Indices) -> NDArray[np.float64]:
        """Return features over the square root of their number, and a 1 for the bias, shape (n, features + 1)."""
        missing = self._features.missing(indices)
        if len(missing):
            self._features.fill(missing, self._compute(missing))
        rows = self._features.rows(indices)
        return np.column_stack([rows / math.sqrt(rows.shape[1]), np.ones(len(rows))])

    def _candidates_of(self, epoch: int) -> Candidates:
        """Plan an inner epoch, once as long as it is the present one."""
        if self._candidates is None or self._candidates.epoch != epoch:
            self._candidates = self._planner.candidates(epoch)
        return self._candidates


def _first_rows(plan: BatchPlan) -> Mask:
    """Return which rows are the first of their index and version, shape (B,)."""
    first = np.zeros(len(plan.indices), np.bool_)
    first[np.unique((plan.version << 32) + plan.indices, return_index=True)[1]] = True
    return first


def _logistic(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-values)), without overflow."""
    probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0, -values))
    return probabilities


def _packed(arrays: Iterable[NDArray[Any]], dtype: str) -> str:
    """Write arrays, one after the other, as base64."""
    return base64.b64encode(b"".join(array.astype(dtype).tobytes() for array in arrays)).decode()


def _unpacked(text: str, dtype: str) -> NDArray[Any]:
    """Read what `_packed` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype)
