"""AutoAssist: trains on samples that an Assistant expects the model to find hard, and fills batches with them.

The technique is after Zhang, Yu and Dhillon ("AutoAssist: A Framework to Accelerate Training of Deep Neural Networks",
NeurIPS 2019). A light Assistant, logistic regression on low-resolution pixels, learns to predict g, the probability
that the loss of a sample exceeds the threshold T, the moving average of the losses. Algorithm 1: a candidate is
accepted if u1 < 1 - gamma, and otherwise with probability g; the confidence gamma is the moving average of the
Assistant's accuracy. `docs/techniques.md` lists what differs.

    another planner's epochs   a b c d e f g h | d a h g c e b f | ...    one stream of candidates
    accepted                   a b c d e f g h |   a h     e b   | ...    the first epoch whole, then the hard ones
    batches of 4              [a b c d][e f g h]  [a h     e b]           always full; `len` of them are an epoch

How it is intended to behave (if the code differs, that is a bug):

* Batch k is planned with the losses of the batches up to k - lag, learned from in their order, whenever they came. So
  plans are a function of (seed, losses) alone, and training on the losses is asynchronous within the lag.
* A rejected candidate is neither read nor decoded.
* Candidates come in the order of another planner's epochs, rather than drawn independently as published; so a batch
  that spans two epochs may have a sample twice, as published.
* Of an `Echo` every repeat is a candidate of its own. The first one accepted is computed, the others
  use its partial image; where none is accepted the sample is not read.
* A batch that has considered `num_samples` candidates accepts all further ones, so that it fills however easy they are.
* With several ranks each has an Assistant, which chooses from the candidates of the rank's shards and learns from their
  losses alone. So what is served depends on the number of ranks, and a run goes on with the same number only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dalirefurb.checks import require
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask, joined
from dalirefurb.planning.echo import BatchEcho
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import DerivedPlanner, Planner

Accepts = Callable[[Indices, Indices], Mask]
"""Tells which of n candidates are accepted, shape (n,), from their indices and servings, each of shape (n,)."""


def _candidates(plan: BatchPlan) -> tuple[BatchPlan, Indices]:
    """Return the candidates of an inner batch, in order, and by number the last one that each eviction waits for.

    Batches are cut anew: repeats that the inner planner serves in one batch may come to be in two. So what is
    repeated is kept until its last row, and evicted after it, unless the inner planner keeps or evicts it then.
    """
    places = np.arange(len(plan.indices))
    evicted_after = np.full(len(plan.evict), len(places) - 1)
    repeated, which, counts = np.unique(plan.indices, return_inverse=True, return_counts=True)
    if len(repeated) == len(places):
        return plan, evicted_after
    last = np.zeros(len(repeated), np.int64)
    np.maximum.at(last, which, places)
    again = last[which] > places
    ends = np.flatnonzero((counts[which] > 1) & ~again & ~plan.keep & ~np.isin(plan.indices, plan.evict))
    evict = np.concatenate([plan.indices[ends], plan.evict])
    return replace(plan, keep=plan.keep | again, evict=evict), np.concatenate([ends, evicted_after])


class CandidateStream:
    """Cuts full batches out of the candidates of all epochs of the inner planner."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._known: tuple[tuple[int, int], BatchPlan, Indices] | None = None

    def batch(self, epoch: int, row: int, accepts: Accepts | None = None) -> tuple[BatchPlan, int, int, int]:
        """Consider candidates until a batch is full.

        Args:
            epoch: Number of the inner epoch of the first candidate to consider.
            row: Number of that candidate in its epoch.
            accepts: What chooses; None accepts all. The first inner epoch is accepted whole, and so is what comes once
                a batch has considered as many candidates as there are samples.

        Returns:
            The batch, inner epoch and row of the next candidate to consider, and how many were considered.
        """
        parts: list[BatchPlan] = []
        epochs: list[int] = []
        considered, needed = 0, self._planner.batch_size
        while needed:
            if row == self._planner.rows_per_epoch:
                epoch, row = epoch + 1, 0
            (number,), (first,) = self._planner.batches_of(np.array([row]))
            at = epoch, int(number)
            if self._known is None or self._known[0] != at:  # It is planned once as long as it is the present one.
                self._known = at, *_candidates(self._planner.plan(*at))
            _, rows, evicted_after = self._known
            start, stop = int(first), len(rows.indices)
            if accepts is None or epoch == 0 or considered >= self._planner.num_samples:
                accepted = np.arange(start, stop)
            else:
                stop = min(stop, start + self._planner.num_samples - considered)
                accepted = start + np.flatnonzero(accepts(rows.indices[start:stop], rows.serving[start:stop]))
            accepted = accepted[:needed]
            needed -= len(accepted)
            if not needed:
                stop = int(accepted[-1]) + 1
            evictions = slice(*np.searchsorted(evicted_after, (start, stop)))
            parts.append(rows.part(accepted, evict=rows.evict[evictions]))
            epochs.append(epoch)
            considered, row = considered + stop - start, row + stop - start
        return _batch_of(parts, epochs), epoch, row, considered


def _batch_of(parts: Sequence[BatchPlan], epochs: Sequence[int]) -> BatchPlan:
    """Join parts of inner epochs, numbered `epochs`, to a batch that the store can carry out as one.

    All evictions come before anything is stored, so what is evicted after its row is not kept: in the same epoch, where
    a sample is evicted after the last of its rows, or in a later one.
    """
    plan = joined(parts)
    last_evicted = {index: epoch for part, epoch in zip(parts, epochs, strict=True) for index in part.evict.tolist()}
    row_epochs = np.repeat(epochs, [len(part.indices) for part in parts]).tolist()
    stays = [
        last_evicted.get(index, -1) < epoch for index, epoch in zip(plan.indices.tolist(), row_epochs, strict=True)
    ]
    return replace(plan, keep=plan.keep & np.array(stays), evict=np.array([*last_evicted], np.int64)).read_only()


@dataclass(frozen=True)
class AutoAssist(DerivedPlanner):
    """Describes what an `Assistant` chooses from, and how it learns; it keeps nothing itself.

    The arguments of every planner are those of the inner one. Every batch is full; an epoch has as many batches as the
    inner planner's, and what an epoch leaves of the candidates goes to the next.

    >>> import numpy as np
    >>> from dalirefurb.planning.assistant import Assistant
    >>> from dalirefurb.planning.refurbish import Standard
    >>> planner = AutoAssist(Standard(100, batch_size=10), lag=2)
    >>> def image(index):
    ...     return np.full((8, 8, 3), index, np.uint8)
    >>> assistant = Assistant(planner, lambda indices: [image(index) for index in indices])
    >>> for _ in range(100):
    ...     indices = assistant.plan().indices
    ...     assistant.serve()
    ...     assistant.observe(indices < 20)  # only dark images are hard
    >>> report = assistant.report()
    >>> f"{report.accuracy:.0%} right, {report.saved:.0%} saved, {np.mean(indices < 20):.0%} hard"
    '87% right, 57% saved, 40% hard'

    Attributes:
        planner: Planner that gives the candidates: `Standard`, `Refurbish`, another that serves no sample twice an
            epoch, or an `Echo` of one of them.
        lag: Batches between a loss and the first plan that it acts on, at least 1, and more than a loader plans ahead;
            it says how many if they are too few.
        learning_rate: Learning rate of the Assistant, above 0. At most 4 is stable whatever the images.
        weight_decay: Weight decay of the Assistant, at least 0.
        loss_momentum: Momentum of the moving average of the losses, per batch, in [0, 1).
        accuracy_momentum: Momentum of the moving average of the Assistant's accuracy, per batch, in [0, 1).
        resolution: Pixels a side by which the Assistant judges.
    """

    lag: int = field(kw_only=True)
    learning_rate: float = field(default=2.0, kw_only=True)
    weight_decay: float = field(default=1e-4, kw_only=True)
    loss_momentum: float = field(default=0.9, kw_only=True)
    accuracy_momentum: float = field(default=0.9, kw_only=True)
    resolution: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_padding()
        wanted = "one that knows its batches before an epoch begins, not by losses that come meanwhile"
        assisted = isinstance(self.planner, AutoAssist)
        require(not assisted, "planner", wanted, self.planner, "pass its inner planner")
        wanted = "one that repeats samples, not batches, since each is chosen by itself and no batch stays whole"
        require(not isinstance(self.planner, BatchEcho), "planner", wanted, self.planner, "pass Echo(planner, ...)")
        wanted = "one that is no control, since no other training has the order that losses decide"
        require(not isinstance(self.planner, Fresh), "planner", wanted, self.planner, "pass Standard(...)")
        wanted = f"one of at most {1 << 31} samples, of each of which an Assistant keeps features"
        remedy = "train on parts of the source one after the other"
        require(self.num_samples <= 1 << 31, "planner", wanted, self.planner, remedy)
        self._integer("lag", 1, None, "pass more than the batches that the loader plans ahead")
        self._integer("resolution", 1, None, "pass the pixels a side to judge images by")
        remedy = "leave it out for the default"
        self._number("learning_rate", "above 0", lambda rate: 0 < rate < math.inf, remedy)
        self._number("weight_decay", "of at least 0", lambda decay: 0 <= decay < math.inf, remedy)
        for momentum in ("loss_momentum", "accuracy_momentum"):
            self._number(momentum, "in [0, 1)", lambda share: 0 <= share < 1, remedy)

    @property
    def any_world_size(self) -> bool:
        return self.planner.any_world_size

    @property
    def feedback_lag(self) -> int:
        return self.lag

    def for_rank(self, *, rank: int, world_size: int) -> AutoAssist:
        """Return what plans a rank's part: its Assistant chooses among the candidates of the rank's shards."""
        return replace(self, planner=self.planner.for_rank(rank=rank, world_size=world_size))

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        Their sum holds for an `Assistant`'s plans, too. Of what the inner planner stores after one of its batches some
        is missing; of its next batch, all rows may be stored before it frees a slot.
        """
        rows = self._width if self.planner.peak_slots else 0
        return tuple(min(slots + rows, self.num_samples) for slots in self.planner.shard_slots)

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        """Plan one batch of an Assistant that accepts every candidate; see `Planner.plan`."""
        epoch, batch = self._check(epoch, batch)
        candidate = (epoch * len(self) + batch) * self.batch_size
        return CandidateStream(self.planner).batch(*divmod(candidate, self.planner.rows_per_epoch))[0]
