"""CacheClient: where each row's partial image comes from, and what the store keeps, as the plan says; and its plans.

How it is intended to behave (if the code differs, that is a bug):

* A row that the store does not hold is computed, whatever the plan expected.
* No version is computed twice while it is at hand: a row whose version another row of its group, or a group on its
  way, computes, shares that image.
* A batch group that is committed has first evicted what the plan no longer needs, then stored what it computed: a store
  of the plan's `peak_slots` always has room.
* What replaces a bad sample is never stored, and a sample known to be bad is not asked for.

Where nothing but reading is partial the same holds of encoded samples: what is computed is what is read. The store's
are copied when a group is looked up, and looked at as what is read is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.engine.batch_group import BatchGroup, Position
from dalirefurb.engine.in_flight import InFlightImages, InFlightVersions, SharedRows, known, part_repeats
from dalirefurb.errors import NothingKeptWarning, warn
from dalirefurb.image_batch import Image, Images, Rows
from dalirefurb.planning.batch_plan import BatchPlan, Indices
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.reader import Reader, Samples
from dalirefurb.store import Lease, Store

_LARGEST = (1 << 31) - 1
"""Bytes of an encoded sample that a store can keep: it counts the sides of what it holds in 32 bits."""


class AskedRows(NamedTuple):
    """Rows that the store was asked for.

    Attributes:
        rows: Rows of the group, ascending, int64 of shape (n,); the store may have found only some of them.
        lease: What it has found, and pinned until the lease is released.
    """

    rows: NDArray[np.int64]
    lease: Lease


@dataclass(frozen=True, eq=False)
class CachePlan:
    """A batch group whose rows are pinned in the store, shared with other rows, or computed.

    Nothing of it changes but what the lease holds. What is not known yet is a future, and known once the groups before
    it have come as far.

    Attributes:
        group: The batch group.
        compute: Rows of the group to compute, ascending, int64 of shape (n,).
        reading: Future of the source's samples for `compute`, in the order of its rows.
        kept: Whether the plan keeps the image of each of `compute` beyond the group, bool of shape (n,).
        asked: Rows that the store was asked for, with its lease; None without a store.
        shared: Rows whose images are computed for other rows.
        computed: Images of `compute`.
        pasted: Of each batch what `CopyPaste` pastes: above 0 where pixels of a row's partner are, uint8 of shape
            (B, H, W). Known before the images, if there is such a stage.
    """

    group: BatchGroup
    compute: NDArray[np.int64]
    reading: Future[Samples]
    kept: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    asked: AskedRows | None = None
    shared: Sequence[SharedRows] = ()
    computed: InFlightImages = field(default_factory=InFlightImages)
    pasted: Future[Sequence[NDArray[np.uint8]]] = field(default_factory=Future)

    @property
    def plan(self) -> BatchPlan:
        """The plan of all rows."""
        return self.group.plan

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are made for this group, ascending, int64: neither pinned nor shared."""
        return self.compute

    def begin(self, samples: Samples) -> Samples:
        """Make known which samples were read; return those to compute from."""
        self.computed.shown.set_result(samples.indices)
        return samples

    @cached_property
    def shown(self) -> Indices:
        """Index of the sample that each row shows, the plan's or what replaces it, int64 of shape (B,)."""
        if not len(self.compute) and not self.shared:
            return self.plan.indices
        shown = self.plan.indices.copy()
        if len(self.compute):
            shown[self.compute] = known(self.computed.shown)
        for rows, images, places in self.shared:
            shown[rows] = known(images.shown)[places]
        return shown

    def partial_sizes(self) -> NDArray[np.int64]:
        """Return heights and widths of all partial images, shape (B, 2), once those to compute are known."""
        sizes = np.empty((len(self.plan.indices), 2), np.int64)
        sizes[self.compute] = known(self.computed.sizes)
        rows, images = self.pinned_images()
        sizes[rows] = images.places.sizes
        for rows, images_elsewhere, places in self.shared:
            sizes[rows] = known(images_elsewhere.sizes)[places]
        return sizes

    def partial_images(self) -> Images:
        """Return the partial image of each row, once they are computed."""
        return Images.joined(len(self.plan.indices), [*self.unpinned_images(), self.pinned_images()])

    def found(self) -> NDArray[np.int64]:
        """Return the rows that the store had, int64."""
        return np.empty(0, np.int64) if self.asked is None else self.asked.rows[self.asked.lease.found]

    def pinned_images(self) -> Rows:
        """Return the rows that the store has, with their partial images."""
        if self.asked is None:
            return Rows(np.empty(0, np.int64), Images(()))
        return Rows(self.found(), self.asked.lease.images)

    def unpinned_images(self) -> list[Rows]:
        """Return all other rows with their partial images, once they are computed."""
        return [Rows(self.compute, known(self.computed.images)), *self.shared_images()]

    def shared_images(self) -> list[Rows]:
        """Return the rows whose images are computed for others, with these images, once they are computed."""
        return [Rows(rows, known(images.images).chosen(places)) for rows, images, places in self.shared]

    def storable(self) -> NDArray[np.int64]:
        """Return the places among `compute` of what the store is to keep: what shows the plan's own sample."""
        return np.flatnonzero(self.kept & (known(self.computed.shown) == self.plan.indices[self.compute]))

    def to_store(self, places: NDArray[np.int64]) -> Sequence[Image]:
        """Return what the store is given of some of `compute`, by their places among these, shape (p,)."""
        return known(self.computed.images).chosen(places)

    def release(self) -> None:
        """Give back what the store has pinned."""
        if self.asked is not None:
            self.asked.lease.release()


@dataclass(frozen=True, eq=False)
class EncodedCachePlan(CachePlan):
    """A batch group whose samples the store keeps encoded: `compute` are all rows that are not shared.

    Attributes:
        held: Whether the store had the sample of each of `compute`, bool of shape (n,).
    """

    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are read for this group, ascending, int64."""
        return self.compute[~self.held]

    def found(self) -> NDArray[np.int64]:
        """Return the rows that the store had, int64."""
        return self.compute[self.held]

    def begin(self, samples: Samples) -> Samples:
        """Make known what was read, or the store had; return the samples of all rows, shape (B,)."""
        super().begin(samples)
        self.computed.images.set_result(Images(samples.data))
        self.computed.sizes.set_result(np.stack((samples.heights, samples.widths), axis=1))
        if not self.shared:
            return samples
        sizes = self.partial_sizes()
        return Samples([*self.partial_images()], sizes[:, 0], sizes[:, 1], self.shown)

    def storable(self) -> NDArray[np.int64]:
        places, files = super().storable(), self.reading.result().as_read
        return places[[len(files[place]) <= _LARGEST for place in places.tolist()]] if len(places) else places

    def to_store(self, places: NDArray[np.int64]) -> Sequence[Image]:
        files = self.reading.result().as_read
        return [files[place].reshape(-1, 1, 1) for place in places.tolist()]


class CacheClient:
    """Carries out the part of a plan that concerns the store. Without a store every row is computed.

    One thread looks up, another commits; before either begins, the training loop's thread has it retain.

    Args:
        reader: Reader of the samples.
        store: Store of partial images, or of encoded samples as they were read; None: every row is computed.
        caches_encoded: Whether the store holds encoded samples as they were read, not partial images.
    """

    def __init__(self, reader: Reader, store: Store | None, *, caches_encoded: bool = False) -> None:
        self._reader = reader
        self._store = store
        self._caches_encoded = caches_encoded
        self._in_flight = InFlightVersions()
        self._began = False

    def retain(self, planner: Planner, start: Position) -> None:
        """After a jump to `start`, evict what its epoch asks for no more; warn if all that a run begins with goes."""
        begins, self._began = not self._began, True
        if self._store is None or not len(self._store):
            return
        indices, versions = self._store.held()
        known = np.flatnonzero((indices >= 0) & (indices < planner.num_samples))
        indices, versions = indices[known], versions[known]
        wanted = planner.wanted(*start, indices, versions)
        # The store of a run that goes on is ahead of its state, perhaps in the next epoch.
        ahead = begins and any(start) and planner.wanted(start[0] + 1, 0, indices, versions).any()
        if begins and not (wanted.any() or ahead):
            warn(
                f"to begin with hits a store must hold what is served next, but {self._store!r} holds nothing of epoch "
                f"{start[0]}, and gives up what it holds: go on where its run stopped, by load_state_dict (each rank "
                f"with its own path), or keep decoded images for every run, by Kept(source, path)",
                NothingKeptWarning,
            )
        self._store.retain(indices[wanted], versions[wanted])

    def announce(self, group: BatchGroup) -> None:
        """Tell the store what a group that comes soon will ask it for."""
        if self._store is not None:
            hits = ~group.plan.miss
            self._store.prefetch(group.plan.indices[hits], group.plan.version[hits])

    def lookup(self, group: BatchGroup) -> CachePlan:
        """Find out where each row's partial image comes from, and start to read what must be computed."""
        plan = group.plan
        if self._store is None:
            rows = np.arange(len(plan.indices))
            return CachePlan(group, rows, self._reader.read(plan.indices, plan.version))
        # What is in flight comes first: a group that commits in between has put its images into the store by then.
        shared = self._in_flight.find(plan.indices, plan.version)
        missing = np.ones(len(plan.indices), np.bool_)
        for rows, _, _ in shared:
            missing[rows] = False
        if self._caches_encoded:
            return self._lookup_encoded(group, np.flatnonzero(missing), shared, self._store)
        asked = np.flatnonzero(missing & ~self._reader.bad(plan.indices))
        lease = self._store.get(plan.indices[asked], plan.version[asked])
        missing[asked[lease.found]] = False
        compute, repeats, places = _parted(plan, np.flatnonzero(missing))
        try:
            reading = self._reader.read(plan.indices[compute], plan.version[compute])
        except BaseException:
            lease.release()
            raise
        images = self._in_flight.add(plan.indices[compute], plan.version[compute])
        if len(repeats):
            shared.append(SharedRows(repeats, images, places))
        return CachePlan(group, compute, reading, _kept(group, compute), AskedRows(asked, lease), shared, images)

    def _lookup_encoded(
        self, group: BatchGroup, missing: NDArray[np.int64], shared: list[SharedRows], store: Store
    ) -> EncodedCachePlan:
        """Start to read what the store does not have of rows, shape (n,), and to look at what it has."""
        plan = group.plan
        rows, repeats, places = _parted(plan, missing)
        indices, versions = plan.indices[rows], plan.version[rows]
        asked = np.flatnonzero(~self._reader.bad(indices))
        samples: list[Image | None] = [None] * len(rows)
        with store.get(indices[asked], versions[asked]) as lease:
            for row, sample in zip(asked.tolist(), lease.samples, strict=True):
                samples[row] = None if sample is None else sample.reshape(-1).copy()
        held = np.array([sample is not None for sample in samples], np.bool_)
        reading = self._reader.read(indices, versions, samples)
        images = self._in_flight.add(indices, versions)
        if len(repeats):
            shared.append(SharedRows(repeats, images, places))
        kept = _kept(group, rows) & ~held
        return EncodedCachePlan(group, rows, reading, kept, shared=shared, computed=images, held=held)

    def commit(self, cache_plan: CachePlan) -> NDArray[np.bool_]:
        """Bring the store to where the plan wants it after a group.

        Returns:
            For each image that the plan keeps, whether it was stored.
        """
        cache_plan.release()
        if self._store is None:
            return np.empty(0, np.bool_)
        plan, found = cache_plan.plan, cache_plan.found()
        # What another plan left, this one may not keep; and it evicts only what it expected.
        in_vain = plan.indices[found[plan.miss[found] & ~plan.keep[found]]]
        evicted = np.concatenate([plan.evict, in_vain]) if len(in_vain) else plan.evict
        if len(evicted):
            self._store.evict(evicted)
        if not len(cache_plan.compute):
            return np.empty(0, np.bool_)
        places = cache_plan.storable()
        rows = cache_plan.compute[places]
        stored = np.empty(0, np.bool_)
        if len(rows):
            stored = self._store.put(plan.indices[rows], plan.version[rows], cache_plan.to_store(places))
        self._in_flight.remove(cache_plan.computed)
        return stored

    def abandon(self, cache_plans: Iterable[CachePlan]) -> None:
        """Forget groups that will not be served. Never fails: the store's error would hide why it came to this."""
        for cache_plan in cache_plans:
            cache_plan.reading.cancel()
            with suppress(Exception):
                cache_plan.release()
            self._in_flight.remove(cache_plan.computed)


def _parted(plan: BatchPlan, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Part rows that are at hand nowhere, ascending, (n,), into those to compute and those that repeat one of them.

    Returns:
        The rows to compute, the others, and for each of the others the place of its own among the former, each int64.
    """
    first, repeats, places = part_repeats(plan.indices[rows], plan.version[rows])
    return rows[first], rows[repeats], places


def _kept(group: BatchGroup, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of `rows` the plan keeps beyond the group, shape (n,)."""
    plan = group.plan
    kept = plan.keep[rows]
    if len(group.plans) == 1 or not len(rows):
        return kept
    evicted = np.flatnonzero(np.isin(plan.indices[rows], plan.evict))
    if not len(evicted):
        return kept
    rows, indices = rows[evicted], plan.indices[rows[evicted]]
    ends = np.cumsum([len(each.indices) for each in group.plans])
    for end, later in zip(ends[:-1], group.plans[1:], strict=True):
        kept[evicted] &= ~((rows < end) & np.isin(indices, later.evict))
    return kept
