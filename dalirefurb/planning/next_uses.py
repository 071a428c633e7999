"""The next use of each version, known beforehand, since a plan knows its epochs to come."""

from __future__ import annotations

import numpy as np

from dalirefurb.planning.batch_plan import Indices
from dalirefurb.planning.planner import Planner

NEVER = -1
"""Stands for the next use of a version that is not served again."""

_EPOCHS_AHEAD = 64


def next_uses(planner: Planner, epoch: int) -> list[Indices]:
    """Return for each row of each batch of an epoch when its version is served next, in a later batch.

    >>> from dalirefurb.planning.refurbish import Refurbish
    >>> planner = Refurbish(4, batch_size=2, reuse_factor=2)
    >>> [plan.indices.tolist() for number in (1, 2) for plan in planner.epoch(number)]
    [[3, 0], [2, 1], [2, 1], [0, 3]]
    >>> [uses.tolist() for uses in next_uses(planner, 1)]
    [[5, -1], [4, -1]]

    Returns:
        One array of shape (B,) for each batch: numbers of batches, counted from the first of epoch 0, or `NEVER`. A
        version that is kept, but in none of the 64 epochs to come served, counts as not served again.
    """
    plans = list(planner.epoch(epoch))
    kept = np.zeros(planner.num_samples, np.bool_)
    for plan in plans:
        kept[plan.indices] = False
        kept[plan.indices[plan.keep]] = True
    # The first use of each sample that comes after what was looked at, and the version used then.
    uses, version = _first_uses(planner, epoch + 1, kept)
    found = []
    for batch, plan in reversed(list(enumerate(plans, epoch * len(planner)))):
        found.append(np.where(version[plan.indices] == plan.version, uses[plan.indices], NEVER))
        # Of a sample that a batch serves in two versions the first row counts: the older version is the one held.
        uses[plan.indices], version[plan.indices[::-1]] = batch, plan.version[::-1]
    return found[::-1]


def turns(uses: list[Indices], epoch: int) -> list[Indices]:
    """Take uses in one epoch for equal, if no version is served in two batches of this one.

    Whatever is held is held over the end of the epoch then, and slots serve as many versions in the next epoch as they
    hold at its beginning: to move one for another that is used a little sooner gains nothing, unless its slot stays
    free for want of a version at hand, as in epochs of a few batches.

    >>> turns([np.array([5, NEVER]), np.array([4, 3])], 0)
    [array([ 4, -1]), array([4, 2])]
    >>> turns([np.array([1, NEVER]), np.array([4, 3])], 0)
    [array([ 1, -1]), array([4, 3])]

    Args:
        uses: The `next_uses` of an epoch.
        epoch: Number of the epoch.

    Returns:
        The same, or for each of them the first batch of its epoch.
    """
    end = (epoch + 1) * len(uses)
    if any(((each != NEVER) & (each < end)).any() for each in uses):
        return uses
    return [np.where(each == NEVER, NEVER, each // len(uses) * len(uses)) for each in uses]


def _first_uses(planner: Planner, epoch: int, kept: np.typing.NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Return when each sample is used first from `epoch` on, and in which version, each of shape (num_samples,).

    As many epochs are looked at as it takes to meet all samples that are `kept`, shape (num_samples,).
    """
    uses, version = np.full((2, planner.num_samples), NEVER, np.int64)
    for number in range(epoch, epoch + _EPOCHS_AHEAD):
        if not (kept & (uses == NEVER)).any():
            break
        for batch, plan in enumerate(planner.epoch(number), number * len(planner)):
            rows = np.flatnonzero(uses[plan.indices] == NEVER)[::-1]
            uses[plan.indices[rows]], version[plan.indices[rows]] = batch, plan.version[rows]
    return uses, version
