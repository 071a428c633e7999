"""Plans of small planners: what is read off them, whether they have their form, and what carrying them out takes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dalirefurb.planning import BatchPlan, Planner
from dalirefurb.planning.batch_plan import Indices, Mask

ROWS = ("indices", "version", "serving", "miss", "keep")
FIELDS = (*ROWS, "evict")

Pair = tuple[int, int]
"""Index of a sample, and its version or serving."""


def listed(plan: BatchPlan, *without: str) -> dict[str, list[int]]:
    """Return a plan's arrays as lists, by their names."""
    return {name: getattr(plan, name).tolist() for name in FIELDS if name not in without}


def pairs(plan: BatchPlan, name: str = "version") -> list[Pair]:
    """Return index and version, or serving, of every row of a batch."""
    return list(zip(plan.indices.tolist(), getattr(plan, name).tolist(), strict=True))


def pairs_where(plan: BatchPlan, mask: Mask) -> set[Pair]:
    """Return index and version of some rows."""
    return {pair for pair, chosen in zip(pairs(plan), mask.tolist(), strict=True) if chosen}


def owned(planner: Planner, shard: int) -> Indices:
    """Return the samples of one shard, in their fixed order."""
    return planner.members(shard, np.arange(planner.shard_samples[shard]))


def again(planner: Planner) -> Planner:
    """Make an equal planner that has computed nothing yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replace(planner)


class Replay:
    """What is stored, as a plan says: frees, then stores, after each batch.

    Attributes:
        stored: The version of each sample that is stored.
        peak: The most samples that ever were.
    """

    def __init__(self) -> None:
        self.stored: dict[int, int] = {}
        self.peak = 0

    def carry_out(self, plan: BatchPlan) -> None:
        """Do what a batch's plan says once the batch is served."""
        computed = {*plan.indices[plan.miss].tolist()}
        for index in plan.evict.tolist():
            assert index in self.stored or index in computed, f"{index} is evicted, but was neither stored nor computed"
            self.stored.pop(index, None)
        for index, version in pairs_where(plan, plan.keep):
            stored = self.stored.setdefault(index, version)
            assert stored == version, f"version {version} of {index} is to be kept, but {stored} is still in its slot"
        self.peak = max(self.peak, len(self.stored))


def check_form(planner: Planner, plan: BatchPlan) -> None:
    """See whether a plan has the form that whoever carries it out relies on."""
    assert isinstance(plan, BatchPlan), f"plan must return a BatchPlan, got {plan!r}"
    arrays = {name: getattr(plan, name) for name in FIELDS}
    count = len(plan.indices)
    for name, array in arrays.items():
        dtype = np.bool_ if name in ("miss", "keep") else np.int64
        assert array.dtype == dtype, f"{name} must be {np.dtype(dtype)}, got {array.dtype}"
        assert not array.flags.writeable, f"{name} must be read-only: return plan.read_only()"
        shape = (count,) if name in ROWS else (len(plan.evict),)
        assert array.shape == shape, f"{name} must have shape {shape}, got {array.shape}"
    full = planner.shards > 1 or planner.drop_last
    least = planner.batch_size if full else 1
    assert least <= count <= planner.batch_size, f"a batch must have {least} to {planner.batch_size} rows, got {count}"
    assert len(set(plan.evict.tolist())) == len(plan.evict), f"evict must name a sample once, got {plan.evict}"
    others = {*plan.indices.tolist(), *plan.evict.tolist()} - set(range(planner.num_samples))
    assert not others, f"samples must be in 0..{planner.num_samples - 1}, got {sorted(others)}"
    assert min(plan.version.min(), plan.serving.min()) >= 0, "versions and servings must be at least 0"


def check_parts(planner: Planner, plan: BatchPlan, parts: Sequence[BatchPlan]) -> None:
    """See whether the parts of all ranks are the plan, and each has samples of its own shards alone."""
    for name in ROWS:
        rows = np.concatenate([getattr(part, name) for part in parts]).tolist()
        assert rows == getattr(plan, name).tolist(), f"{name} of all ranks, one after another, must be the batch's"
    owner, share = planner.owners(plan.evict), planner.shards // len(parts)
    for rank, part in enumerate(parts):
        owners = planner.owners(part.indices) // share
        assert (owners == rank).all(), f"rank {rank} serves samples of the ranks {owners}"
        expected = plan.evict[owner // share == rank].tolist()
        assert part.evict.tolist() == expected, f"rank {rank} must evict {expected}, got {part.evict}"
