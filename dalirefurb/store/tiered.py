"""TieredStore: fast tiers take what their budgets allow, slower ones the rest.

A version goes to the fastest tier that takes it, and stays there; what any tier holds is not put again. Where a planner
serves a version at most once an epoch no placement serves more from the fast tiers. Each of their slots serves at most
one hit an epoch, of what lies there when the epoch begins, and by then all slots are full: what takes one later was
served or computed just then, so its own hit comes in an epoch after.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from operator import attrgetter
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError, warn
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import Contents, Keys, LayeredContents, Lease, Store, Taken
from dalirefurb.store.device.store import DeviceStore
from dalirefurb.store.disk.layout import Layout
from dalirefurb.store.disk.store import DiskStore
from dalirefurb.store.memory import MemoryStore
from dalirefurb.store.slot_table import Numbers, distinct
from dalirefurb.store.spec import StoreSpec
from dalirefurb.system.processes import local_processes
from dalirefurb.system.resources import Budget, amount, available_bytes, budget_bytes, bytes_on_disk, checked_budget


class _Tiers(LayeredContents):
    """What several open stores hold, from the fastest. One `put` at a time adds to it; no other call waits for it."""

    def __init__(self, spec: StoreSpec, stores: Sequence[Store]) -> None:
        super().__init__(spec, stores)
        self.hits = np.zeros(len(stores), np.int64)  # samples that each store has lent
        self._putting = Lock()
        self._counting = Lock()
        # Stores that last may have been open without each other.
        for faster, slower in combinations(self._layers, 2):
            slower.evict(*faster.held())

    def get(self, keys: Keys) -> Lease:
        """Lend samples: tiers are asked in turn for what was not found yet."""
        parts: list[tuple[Numbers, Images]] = []
        missing = np.arange(len(keys[0]))
        with ExitStack() as leases:
            for number, tier in enumerate(self._layers):
                if not len(missing):
                    break
                lease = tier.get(_rows(keys, missing))
                leases.callback(lease.release)
                parts.append((missing[lease.found], lease.images))
                missing = missing[~lease.found]
                with self._counting:
                    self.hits[number] += len(lease.images)
            release = leases.pop_all().close
        found = np.ones(len(keys[0]), np.bool_)
        found[missing] = False
        places = np.cumsum(found) - 1
        images = Images.joined(int(found.sum()), [(places[rows], part) for rows, part in parts])
        return Lease(found, images, release)

    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Keep samples, each in the fastest tier that takes it."""
        with self._putting:
            if len(distinct(keys[0])) == len(samples) and not len(self.held(keys[0])[0]):
                return self._fill(keys, samples)
            # What goes makes room for those after it.
            rows = np.arange(len(samples))[:, None]
            return np.array([self._replace(_rows(keys, row), samples[row[0]]) for row in rows], np.bool_)

    def _replace(self, key: Keys, sample: Image) -> bool:
        """Put one version, shape (1,), after evicting its index's older ones, in whichever tier these are."""
        indices, versions = self.held(key[0])
        if (versions == key[1]).any():
            return True
        is_older = versions < key[1]
        self.evict(indices[is_older], versions[is_older])
        return bool(self._fill(key, [sample])[0])

    def _fill(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Put versions that none holds; what a tier declines goes to the next slower one."""
        stored = np.zeros(len(samples), np.bool_)
        for tier in self._layers:
            rows = np.flatnonzero(~stored)
            if not len(rows):
                break
            # As they are given if all are left: a tier may know where they lie.
            left = samples if len(rows) == len(samples) else [samples[row] for row in rows.tolist()]
            stored[rows] = tier.put(_rows(keys, rows), left)
        return stored


def _rows(keys: Keys, rows: Numbers) -> Keys:
    """Return some of n versions."""
    return keys[0][rows], keys[1][rows]


@dataclass(frozen=True)
class Tier:
    """One store of several.

    Attributes:
        store: The store, which is opened and closed with the others.
        budget: The most to set aside: bytes, "16GB", or "60%" of what is available; None for all that is needed.
        available: Function that tells what is available, in bytes, or None.
        nbytes: Function that tells what the store sets aside, in bytes, if it is opened for a given `StoreSpec`.
    """

    store: Store
    budget: Budget | None = None
    available: Callable[[], int | None] = available_bytes
    nbytes: Callable[[StoreSpec], int] = attrgetter("nbytes")

    def __post_init__(self) -> None:
        require(isinstance(self.store, Store), "store", "a store", self.store, "pass such as MemoryStore()")
        checked_budget(self.budget)

    def slots(self, spec: StoreSpec) -> int:
        """Return how many slots the budget pays for, at most those asked for."""
        if self.budget is None or not spec.slots:
            return spec.slots
        slot_bytes = -(-self.nbytes(spec) // spec.slots)
        return min(spec.slots, budget_bytes(self.budget, available=self.available) // slot_bytes)


class TieredStore(Store):
    """Keeps samples in GPU memory, host memory and on a disk: each in the fastest that has room when it is put.

        TieredStore(memory="60%", path="/local/cache")    # the rest on disk
        TieredStore(memory="16GB")                        # the rest is computed again

    A sample stays where it is until it is evicted. No other placement serves more from the faster tiers, where an epoch
    serves each version at most once (`Refurbish`, `SmartCache`, `Frozen`). For `Echo` give memory half as many slots as
    its buffer has rows.

    Each tier has the slots that its budget pays for and that faster ones lack; one without any stays closed. Where
    samples vary in size, how many fit is not known, and a tier without a budget has all. If the budgets pay for fewer
    slots than are asked for, `open` warns.

    Args:
        device: Budget for slots in the memory of the current CUDA device; None for no such tier.
        memory: Budget for slots in host memory; None for no such tier.
        disk: Budget for a file; None for all that is needed.
        path: The file, see `DiskStore`; None for no such tier.

    Shares of memory and disk are of an equal part of it for each process that trains on the machine.

    Raises:
        ConfigurationError: There is no tier, there is a budget for a disk but no path, or there is no device.
    """

    def __init__(
        self,
        *,
        device: Budget | None = None,
        memory: Budget | None = None,
        disk: Budget | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if disk is not None and path is None:
            raise ConfigurationError(f"a disk tier needs a file, but disk={disk!r} came without path: pass path=...")
        tiers = []
        if device is not None:
            store = DeviceStore()
            tiers.append(Tier(store, device, lambda: store.memory.available_bytes(pinned=False)))
        if memory is not None:
            tiers.append(Tier(MemoryStore(), memory))
        if path is not None:
            tiers.append(_disk_tier(path, disk))
        self._begin(tiers)

    @classmethod
    def of(cls, *tiers: Tier) -> TieredStore:
        """Make one of any stores, from the fastest to the slowest, which nobody else uses.

        Raises:
            ConfigurationError: There is no tier, or what is none.
        """
        for each in tiers:
            require(isinstance(each, Tier), "tiers", "of Tier", each, "pass such as Tier(MemoryStore())")
        store = cls.__new__(cls)
        store._begin(tiers)
        return store

    def _begin(self, tiers: Sequence[Tier]) -> None:
        if not tiers:
            raise ConfigurationError(
                "a TieredStore needs at least one tier, got none: pass memory='60%', path=... or both"
            )
        super().__init__()
        self._tiers = tuple(tiers)

    def _open(self, spec: StoreSpec) -> Contents:
        stores: list[Store] = []
        parts = self._parts(spec)
        missing = spec.slots - sum(part.slots for _, part in parts)
        try:
            for tier, part in parts:
                tier.store.open(part)
                stores.append(tier.store)
            contents = _Tiers(spec, stores)
            if missing > 0:
                held = spec.slots - missing
                warn(
                    f"the plan needs {spec.slots} slots, {amount(spec.nbytes)}, but the tiers' budgets pay for "
                    f"{held}: what has no slot is computed again; raise a budget, or use a coverage of "
                    f"{held / spec.slots:.2f} times the present one",
                )
        except BaseException:
            for store in stores:
                store.close()
            raise
        return contents

    def _takes(self, spec: StoreSpec) -> Taken:
        taken = [tier.store.takes(each) for tier, each in self._parts(spec)]
        return Taken(sum(each.host for each in taken), sum(each.device for each in taken))

    def _parts(self, spec: StoreSpec) -> list[tuple[Tier, StoreSpec]]:
        """Return the tiers that have slots, and what each is opened for."""
        parts, missing = [], spec.slots
        for tier in self._tiers:
            slots = tier.slots(spec) if missing > 0 else 0
            if spec.slot_shape is not None:
                slots = min(slots, missing)
            if slots:
                parts.append((tier, replace(spec, slots=slots, arena_bytes=spec.arena_bytes * slots // spec.slots)))
                missing -= slots
        return parts

    @property
    def hits(self) -> tuple[int, ...]:
        """Samples lent by each tier that is open, from the fastest, since it was opened."""
        contents = self._opened()
        assert isinstance(contents, _Tiers)
        return tuple(contents.hits.tolist())


def _disk_tier(path: str | os.PathLike[str], budget: Budget | None) -> Tier:
    def available() -> int | None:
        # None of a folder that is not there, say: the store tells, once opened.
        return bytes_on_disk(path, processes=local_processes())

    return Tier(DiskStore(path), budget, available, lambda spec: Layout(spec).samples_bytes)
