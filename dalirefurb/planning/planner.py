"""Planner: what decides the batches of an epoch, before any data is touched. With those that plan over another planner.

A planner is a function of (seed, epoch, batch): it returns a `BatchPlan`, and the loader carries it out. A planner
decides and never acts; it keeps no state, and what it knows of samples is formulas: nothing grows with their number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import CheckedFields, epoch_of, flag, integer, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask
from dalirefurb.rng import Bijection, key

P = TypeVar("P", bound="Planner")
T = TypeVar("T")

_MOST_SAMPLES = 1 << 40
_LATEST = "_latest_made"


class Reuse(NamedTuple):
    """How often versions are used, which decides what share of an epoch's rows miss.

    Attributes:
        factor: Uses of a version, at least 1.
        coverage: Share of the samples whose versions are cached; the others always miss.
        even: Whether the batches of an epoch miss equally, within one.
    """

    factor: int = 1
    coverage: float = 1.0
    even: bool = True

    @property
    def misses(self) -> float:
        """Share of an epoch's rows that miss, on average, once all that is cached was computed."""
        return 1 - self.coverage + self.coverage / self.factor


@dataclass(frozen=True)
class Planner(CheckedFields, metaclass=TakesNumbers):
    """Decides which sample is served in which batch with which version. Subclasses are frozen dataclasses.

    Plans are global. A fixed permutation gives every sample a position; the sample at position p belongs to
    shard p % shards, and each shard fills a fixed contiguous slice of every batch.

    What every planner promises: an epoch has `len(self)` batches, none of them empty, and each can be planned alone. A
    version is a miss in the first row that serves it and in no other; a row that its batch does not keep is served in
    no later one. Who frees `evict` after a batch and then stores the misses that are kept has every hit at hand, within
    `shard_slots`. A serving never comes twice for one sample. A shard's rows are of its own samples. All fields are the
    fingerprint, as JSON values.

    Attributes:
        num_samples: Samples in the source, in 1..2**40; on construction also the source itself.
        batch_size: Rows of a global batch, in 1..num_samples.
        seed: The run's seed.
        shards: Slices of a batch that keep their samples; a divisor of batch_size. Every world size that
            divides it serves the same global batches. With more than one, only full batches are served.
        drop_last: Whether samples that fill no batch wait for the next epoch instead of making a short one.
        serves_once: Whether an epoch serves a sample at most once.
        code_version: Version of the planner, raised when the same arguments come to mean other plans.
        may_be_short: Whether `batch_size` may exceed the number of samples.
    """

    num_samples: int
    _: KW_ONLY
    batch_size: int
    seed: int = 0
    shards: int = 1
    drop_last: bool = False

    serves_once: ClassVar[bool] = True
    code_version: ClassVar[int] = 2
    may_be_short: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if hasattr(self.num_samples, "read") and hasattr(self.num_samples, "__len__"):  # a source, which stands for it
            object.__setattr__(self, "num_samples", len(self.num_samples))
        self._integer("num_samples", 1, None, "pass len(source), of a source that holds a sample")
        remedy = "train on parts of the source one after the other"
        require(self.num_samples <= _MOST_SAMPLES, "num_samples", f"at most {_MOST_SAMPLES}", self.num_samples, remedy)
        remedy = "a batch has a row at least" + ("" if self.may_be_short else ", and no more than there are samples")
        self._integer("batch_size", 1, None if self.may_be_short else self.num_samples, remedy)
        self._integer("seed", None, None, "pass an int")
        self._integer("shards", 1, None, "pass 1, or the largest world size to train on")
        if self.batch_size % self.shards:
            raise ConfigurationError(
                f"shards must divide batch_size, got shards={self.shards} and batch_size={self.batch_size}: "
                f"pass a batch_size that is a multiple of {self.shards}, or fewer shards"
            )
        flag("drop_last", self.drop_last)

    @abstractmethod
    def plan(self, epoch: int, batch: int) -> BatchPlan:
        """Plan one batch, the same for the same numbers whatever was asked before. The plan's arrays are read-only.

        Args:
            epoch: Number of the epoch, from 0.
            batch: Number of the batch in it, in 0..len(self)-1.

        Raises:
            ConfigurationError: If there is no such batch.
        """

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one epoch, batch by batch.

        It is no generator function, so that it refuses a number when it is called.

        Raises:
            ConfigurationError: If `epoch` is not an int, or is negative.
        """
        epoch, _ = self._check(epoch)
        return (self.plan(epoch, batch) for batch in range(len(self)))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        """Plan the rows and evictions of some neighbouring shards of one batch; see `plan`.

        A planner that knows them without the rest of the batch does it without the rest.
        """
        plan = self.plan(epoch, batch)
        if len(shards) == self.shards:
            return plan
        width = len(plan.indices) // self.shards
        owners = self.owners(plan.evict)
        mine = (owners >= shards.start) & (owners < shards.stop)
        return plan.part(slice(shards.start * width, shards.stop * width), evict=plan.evict[mine])

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        """Tell which versions of samples are served from a batch on, and so are worth their slots after a jump to it.

        This one plans the epoch to tell; a planner that has a formula for it uses that.

        Args:
            epoch: Number of the epoch.
            batch: Number of the batch.
            indices: Samples, shape (n,).
            versions: Versions of the samples, shape (n,).
            shards: Neighbouring shards of which samples are wanted, by default all.

        Returns:
            Shape (n,).
        """
        wanted: set[tuple[int, int]] = set()
        for earlier in range(len(self)):
            plan = self.plan_part(epoch, earlier, range(self.shards) if shards is None else shards)
            rows = np.ones(len(plan.indices), np.bool_)
            if earlier < batch:
                gone = set(plan.evict.tolist())
                wanted = {pair for pair in wanted if pair[0] not in gone} if gone else wanted
                rows = plan.keep
            wanted.update(zip(plan.indices[rows].tolist(), plan.version[rows].tolist(), strict=True))
        pairs = zip(indices.tolist(), versions.tolist(), strict=True)
        return np.fromiter((pair in wanted for pair in pairs), np.bool_, len(indices))

    @abstractmethod
    def __len__(self) -> int:
        """Batches per epoch."""

    @cached_property
    def rows_per_epoch(self) -> int:
        """Rows of all batches of an epoch: all batches but the last one have `batch_size`."""
        last = len(self) - 1
        return last * self.batch_size + len(self.plan(0, last).indices)

    def batches_of(self, rows: Indices) -> tuple[Indices, Indices]:
        """Return the batch of each of n rows of an epoch, by its number, and its number in the batch, each (n,)."""
        return np.divmod(rows, self.batch_size)

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

    @property
    def reuse(self) -> Reuse | None:
        """How often versions are used; None where no formula says what share of the rows miss."""
        return None

    @property
    def feedback_lag(self) -> int | None:
        """Batches between the losses of one and the first plan that they act on, at least 1; None: they act on none."""
        return None

    def check_samples(self, count: int) -> None:
        """Refuse a source that has not as many samples as are planned.

        Raises:
            ConfigurationError: If it has more of them, or fewer.
        """
        if count != self.num_samples:
            raise ConfigurationError(
                f"planner and source must have the same number of samples, got {self.num_samples} and {count}; pass "
                f"len(source) to the planner"
            )

    def for_rank(self, *, rank: int, world_size: int) -> Planner:
        """Return what plans the part of rank `rank` of `world_size`.

        Raises:
            ConfigurationError: If `world_size` does not divide the shards, or `rank` is not below it.
        """
        shards = self._shards_of(rank=rank, world_size=world_size)
        return self if len(shards) == self.shards else RankPlanner(self, rank=rank, world_size=world_size)

    @property
    def any_world_size(self) -> bool:
        """Whether any number of ranks divides the batches, by `for_rank`, whatever the shards."""
        return False

    @property
    def division(self) -> tuple[int, ...]:
        """What an epoch is divided into, where that depends on the number of ranks; otherwise nothing."""
        return ()

    @property
    def padded(self) -> bool:
        """Whether the last rows of a batch can be there only to fill it up, see `padding`."""
        return False

    def padding(self, batch: int) -> int:
        """Count the last rows of a batch, by its number in the epoch, that only fill it up."""
        return 0

    @cached_property
    def shard_samples(self) -> tuple[int, ...]:
        """Count the samples of each shard, shape (shards,)."""
        return tuple(len(range(shard, self.num_samples, self.shards)) for shard in range(self.shards))

    def members(self, shard: int, places: Indices) -> Indices:
        """Return the samples at n places of a shard's fixed order, in 0..shard_samples[shard]-1, shape (n,)."""
        return self._deal.values(self.shards * places + shard)

    def owners(self, indices: Indices) -> Indices:
        """Return the shard that owns each sample, shape (n,), values in 0..shards-1."""
        if self.shards == 1:
            return np.zeros(len(indices), np.int64)
        return self._deal.positions(indices) % self.shards

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the plans, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"planner": type(self).__name__, "version": self.code_version, **values}

    @property
    def _width(self) -> int:
        """Rows of a batch that one shard fills."""
        return self.batch_size // self.shards

    @cached_property
    def _deal(self) -> Bijection:
        """The fixed order: the sample at each position."""
        return Bijection(self.num_samples, key(self.seed, "deal"))

    def _check(self, epoch: int, batch: int = 0) -> tuple[int, int]:
        """Refuse a batch that there is not; return the numbers as plain ints, with which nothing overflows."""
        return (
            epoch_of(epoch),
            integer("batch", batch, 0, len(self) - 1, "batches of an epoch count from 0"),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but what was made last: copies and other processes make their own."""
        return {name: value for name, value in dict(self.__dict__).items() if name != _LATEST}

    def _latest(self, name: str, of: object, make: Callable[[], T]) -> T:
        """Return what was made for the same thing last time, or make it: it saves time and changes nothing."""
        latest = self.__dict__.setdefault(_LATEST, {})
        known = latest.get(name)
        if known is None or known[0] != of:
            known = latest[name] = of, make()
        made: T = known[1]
        return made

    def _as(self, kind: type[P], **more: Any) -> P:
        """Return a planner of another kind, with the arguments that every planner has and `more`."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(Planner)}, **more)

    def _shards_of(self, *, rank: int, world_size: int) -> range:
        """Return the shards that a rank owns."""
        integer("world_size", world_size, 1, None, "pass the number of processes")
        if self.shards % world_size:
            raise ConfigurationError(
                f"world_size must divide shards, got world_size={world_size} and shards={self.shards}: "
                f"give the planner shards={world_size} or a multiple of it; or give the loader rank=(0, 1), "
                f"to serve whole batches in each process"
            )
        integer("rank", rank, 0, world_size - 1, "ranks count from 0")
        share = self.shards // world_size
        return range(rank * share, (rank + 1) * share)


@dataclass(frozen=True)
class DerivedPlanner(Planner):
    """Takes the arguments of every planner from an inner one.

    Attributes:
        planner: The inner planner.
    """

    num_samples: int = field(init=False, repr=False)
    batch_size: int = field(init=False, repr=False)
    seed: int = field(init=False, repr=False)
    shards: int = field(init=False, repr=False)
    drop_last: bool = field(init=False, repr=False)
    planner: Planner

    def __post_init__(self) -> None:
        remedy = "pass Standard(...) or Refurbish(...)"
        require(isinstance(self.planner, Planner), "planner", "a planner", self.planner, remedy)
        for inherited in fields(Planner):
            object.__setattr__(self, inherited.name, getattr(self.planner, inherited.name))
        super().__post_init__()

    def _refuse_padding(self) -> None:
        """Refuse an inner planner of which some rows would be taken for samples.

        Raises:
            ConfigurationError: If it is one.
        """
        wanted = "one that serves no rows that only fill a batch up, since they would be served as samples"
        require(not self.planner.padded, "planner", wanted, self.planner, "leave pad out")

    def __len__(self) -> int:
        """Batches per epoch: as many as the inner planner's."""
        return len(self.planner)

    def members(self, shard: int, places: Indices) -> Indices:
        return self.planner.members(shard, places)

    def owners(self, indices: Indices) -> Indices:
        return self.planner.owners(indices)

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "planner": type(self).__name__, "inner": self.planner.fingerprint()}


@dataclass(frozen=True)
class RankPlanner(DerivedPlanner):
    """Plans what rank `rank` of `world_size` serves, evicts and stores of another planner's batches.

    It has the samples, the seed and the number of batches of that planner, and a part of each batch's rows.

    >>> from dalirefurb.planning.refurbish import Standard
    >>> whole = Standard(8, batch_size=4, shards=2)
    >>> parts = [RankPlanner(whole, rank=rank, world_size=2) for rank in range(2)]
    >>> [plan.indices.tolist() for plan in whole.epoch(0)]
    [[7, 6, 1, 4], [2, 3, 0, 5]]
    >>> [[plan.indices.tolist() for plan in part.epoch(0)] for part in parts]
    [[[7, 6], [2, 3]], [[1, 4], [0, 5]]]

    Attributes:
        planner: Planner that plans the batches, with a number of shards that `world_size` divides.
        rank: Number of the part, from 0.
        world_size: Number of parts.
    """

    rank: int = field(kw_only=True)
    world_size: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._part  # noqa: B018 - refuses a rank that there is not
        # A part is not parted again.
        object.__setattr__(self, "shards", 1)
        object.__setattr__(self, "batch_size", self.planner.batch_size // self.world_size)

    @cached_property
    def _part(self) -> range:
        """Shards of the rank."""
        return self.planner._shards_of(rank=self.rank, world_size=self.world_size)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of the rank's samples that are ever stored at once, at most, shape (1,)."""
        return (sum(self.planner.shard_slots[self._part.start : self._part.stop]),)

    @property
    def reuse(self) -> Reuse | None:
        return self.planner.reuse

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self.planner.plan_part(epoch, batch, self._part)

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        return self.planner.wanted(epoch, batch, indices, versions, self._part)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the planner's batches; on every rank the same."""
        return self.planner.fingerprint()
