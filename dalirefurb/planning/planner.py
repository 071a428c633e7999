"""Planner and BatchPlan: what an epoch will do, made before any data is touched.

A planner is a function of (seed, epoch): it yields one `BatchPlan` per batch, and the loader carries it out.
A planner decides and never acts; it keeps no state but the fixed permutation that deals samples to shards.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import key, permutation

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BatchPlan:
    """What one batch will do, one row per sample in serving order. The arrays are read-only.

    >>> none = np.zeros(3, bool)
    >>> rows = np.arange(3)
    >>> BatchPlan(rows, version=rows, serving=rows, miss=~none, keep=none, evict=rows[:1])
    BatchPlan(3 rows: 3 misses, 0 hits; keeps 0, evicts 1)

    Attributes:
        indices: Samples to serve, shape (B,).
        version: Which draw of the partial augmentation each row has, shape (B,).
        serving: Which draw of the final augmentation each row has, shape (B,); never repeats for one index.
        miss: Whether the partial augmentation is expected to run, shape (B,).
        keep: Whether this version is served again later, so that it is worth a slot, shape (B,).
        evict: Indices whose slots are free once this batch is served, shape (k,).
    """

    indices: Indices
    version: Indices
    serving: Indices
    miss: Mask
    keep: Mask
    evict: Indices

    def read_only(self) -> BatchPlan:
        """Forbid writing to the arrays, which nobody else may have, and return the plan."""
        for each in fields(self):
            getattr(self, each.name).flags.writeable = False
        return self

    def __repr__(self) -> str:
        rows, misses = len(self.indices), int(self.miss.sum())
        return (
            f"BatchPlan({rows} rows: {misses} misses, {rows - misses} hits; "
            f"keeps {int(self.keep.sum())}, evicts {len(self.evict)})"
        )


@dataclass(frozen=True)
class Planner(ABC):
    """Decides which sample is served in which batch with which version. Subclasses are frozen dataclasses.

    Plans are global. A fixed permutation gives every sample a position; the sample at position p belongs to
    shard p % shards, and each shard fills a fixed contiguous slice of every batch.

    Attributes:
        num_samples: Samples in the source, at least 1.
        batch_size: Rows of a global batch, in 1..num_samples.
        seed: The run's seed.
        shards: Slices of a batch that keep their samples; a divisor of batch_size. Every world size that
            divides it serves the same global batches. With more than one, only full batches are served.
        drop_last: Whether samples that fill no batch wait for the next epoch instead of making a short one.
        version: Raised when the same arguments come to mean other plans.
    """

    num_samples: int
    _: KW_ONLY
    batch_size: int
    seed: int = 0
    shards: int = 1
    drop_last: bool = False

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self._integer("num_samples", 1, None, "pass the length of a source that holds a sample")
        self._integer("batch_size", 1, self.num_samples, "a batch cannot exceed num_samples")
        self._integer("seed", None, None, "pass an int")
        self._integer("shards", 1, None, "pass 1, or the largest world size to train on")
        if self.batch_size % self.shards:
            raise ConfigurationError(
                f"shards must divide batch_size, got shards={self.shards} and batch_size={self.batch_size}: "
                f"pass a batch_size that is a multiple of {self.shards}, or fewer shards"
            )
        if not isinstance(self.drop_last, bool):
            raise ConfigurationError(f"drop_last must be True or False, got {self.drop_last!r}: pass a bool")

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one epoch, the same for the same number whatever was asked before.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            ConfigurationError: If `epoch` is not an int, or is negative.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Batches per epoch."""

    @property
    @abstractmethod
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        It holds for whoever frees the slots in `evict` after a batch before storing the misses it keeps.
        """

    @property
    def peak_slots(self) -> int:
        """Versions that are ever stored at once, at most, over all shards."""
        return sum(self.shard_slots)

    def part_slots(self, *, rank: int, world_size: int) -> int:
        """Return the part of `peak_slots` that rank `rank` of `world_size` needs.

        Raises:
            ConfigurationError: If `world_size` does not divide the shards, or `rank` is not below it.
        """
        shards = self._shards_of(rank=rank, world_size=world_size)
        return sum(self.shard_slots[shards.start : shards.stop])

    def part(self, plan: BatchPlan, *, rank: int, world_size: int) -> BatchPlan:
        """Cut out of a global batch the rows and evictions that rank `rank` of `world_size` carries out.

        Raises:
            ConfigurationError: If `world_size` does not divide the shards, or `rank` is not below it.
        """
        shards = self._shards_of(rank=rank, world_size=world_size)
        if world_size == 1:
            return plan
        rows = len(plan.indices) // world_size
        mine = slice(rank * rows, (rank + 1) * rows)
        owners = self.owners(plan.evict)
        return BatchPlan(
            indices=plan.indices[mine],
            version=plan.version[mine],
            serving=plan.serving[mine],
            miss=plan.miss[mine],
            keep=plan.keep[mine],
            evict=plan.evict[(owners >= shards.start) & (owners < shards.stop)],
        )

    @property
    def shard_samples(self) -> tuple[int, ...]:
        """Count the samples of each shard, shape (shards,)."""
        return tuple(len(range(shard, self.num_samples, self.shards)) for shard in range(self.shards))

    def owned(self, shard: int) -> Indices:
        """Return the samples of one shard in their fixed order, shape (n,), read-only."""
        return self._deal[shard :: self.shards]

    def owners(self, indices: Indices) -> Indices:
        """Return the shard that owns each sample, shape (n,), values in 0..shards-1."""
        if self.shards == 1:
            return np.zeros(len(indices), np.int64)
        return self._position[indices] % self.shards

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the plans, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"planner": type(self).__name__, "version": self.version, **values}

    @property
    def _width(self) -> int:
        """Rows of a batch that one shard fills."""
        return self.batch_size // self.shards

    def _seed_of(self, shard: int) -> int:
        """Return the seed of what a shard draws by itself; the first one draws as if it were alone."""
        return self.seed if shard == 0 else int(key(self.seed, "shard", shard))

    @cached_property
    def _deal(self) -> Indices:
        """Sample at each position, shape (num_samples,)."""
        return _read_only(permutation(self.num_samples, self.seed, "deal"))

    @cached_property
    def _position(self) -> Indices:
        """Position of each sample, shape (num_samples,): the inverse of the deal."""
        position = np.empty_like(self._deal)
        position[self._deal] = np.arange(self.num_samples)
        return position

    def _integer(self, name: str, least: int | None, most: int | None, remedy: str) -> None:
        """Check an argument and make it a plain int."""
        object.__setattr__(self, name, integer(name, getattr(self, name), least, most, remedy))

    def _shards_of(self, *, rank: int, world_size: int) -> range:
        """Return the shards that a rank owns."""
        integer("world_size", world_size, 1, None, "pass the number of processes")
        if self.shards % world_size:
            raise ConfigurationError(
                f"world_size must divide shards, got world_size={world_size} and shards={self.shards}: "
                f"give the planner shards={world_size} or a multiple of it; or give the loader rank=0, world_size=1, "
                f"to serve whole batches in each process"
            )
        integer("rank", rank, 0, world_size - 1, "ranks count from 0")
        share = self.shards // world_size
        return range(rank * share, (rank + 1) * share)


def integer(name: str, value: object, least: int | None, most: int | None, remedy: str) -> int:
    """Return an integer argument as a plain int; NumPy's integers pass, bools and floats do not.

    Raises:
        ConfigurationError: If `value` is not an integer in least..most; None is no limit.
    """
    limits = "" if least is None else f" in {least}..{most}" if most is not None else f" of at least {least}"
    refusal = ConfigurationError(f"{name} must be an int{limits}, got {value!r}: {remedy}")
    if isinstance(value, (bool, np.bool_)):
        raise refusal
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refusal from None
    if (least is not None and number < least) or (most is not None and number > most):
        raise refusal
    return number


def batch_plans(
    *,
    indices: Indices,
    version: Indices,
    serving: Indices,
    miss: Mask,
    keep: Mask,
    evict: Mask,
    batch_size: int,
) -> Iterator[BatchPlan]:
    """Cut an epoch's rows, each array of shape (n,), into batches; the last one may be short.

    `evict` marks the rows after whose batch the row's sample gives up its slot. Batches are read-only views.
    """
    evicted_rows = np.flatnonzero(evict)
    starts = np.arange(0, len(indices) + batch_size, batch_size)
    evictions = np.searchsorted(evicted_rows, starts).tolist()
    evicted = _read_only(indices[evicted_rows])
    indices, version, serving = _read_only(indices), _read_only(version), _read_only(serving)
    miss, keep = _read_only(miss), _read_only(keep)
    for batch, start in enumerate(range(0, len(indices), batch_size)):
        rows = slice(start, start + batch_size)
        yield BatchPlan(
            indices=indices[rows],
            version=version[rows],
            serving=serving[rows],
            miss=miss[rows],
            keep=keep[rows],
            evict=evicted[evictions[batch] : evictions[batch + 1]],
        )


def joined(plans: Sequence[BatchPlan]) -> BatchPlan:
    """Put the rows and evictions of consecutive batches into one."""
    if len(plans) == 1:
        return plans[0]
    return BatchPlan(
        **{each.name: np.concatenate([getattr(plan, each.name) for plan in plans]) for each in fields(BatchPlan)}
    )


def side_by_side(parts: Sequence[NDArray[Any]], *, width: int) -> NDArray[Any]:
    """Fill batches with the rows of all shards, each of shape (n,): `width` rows of each in turn.

    >>> side_by_side([np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8])], width=2).tolist()
    [1, 2, 5, 6, 3, 4, 7, 8]

    Args:
        parts: What each shard has for its rows. Only one that is alone may leave a short batch.
        width: Rows of a batch that one shard fills.
    """
    if len(parts) == 1:
        return parts[0]
    return np.stack([part.reshape(-1, width) for part in parts], axis=1).reshape(-1)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
