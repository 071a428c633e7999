"""Several open stores as one: each version is in one of them, from when it is put until it is evicted.

How it is intended to behave (if the code differs, that is a bug):

* A version goes to the fastest tier that takes it, and stays there: nothing moves.
* What any tier holds is held, is found, and is not put again.

That needs no plan, and where a planner serves a version at most once an epoch no placement serves more from the fast
tiers. Each of their slots serves at most one hit an epoch, of what lies there when the epoch begins: what takes the
slot later was served or computed just then, so its own hit comes in an epoch after. And by then all slots are full,
since one that is freed takes the next version that is computed; but for those freed after an epoch's last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import NO_KEYS, Contents, Keys, Store
from dalirefurb.store.key_index import Numbers, distinct
from dalirefurb.store.lease import Lease
from dalirefurb.store.spec import StoreSpec


class Tiers(Contents):
    """What several open stores hold. One call at a time changes it, and `get` waits for none.

    Args:
        spec: What all of them together are open for.
        stores: The stores, from the fastest.

    Attributes:
        hits: Samples that each store has lent, shape (tiers,).
    """

    def __init__(self, spec: StoreSpec, stores: Sequence[Store]) -> None:
        super().__init__(spec)
        self.hits = np.zeros(len(stores), np.int64)
        self._stores = stores
        # Of this opening: whoever comes late must not touch what a later one holds.
        self._tiers = [store._opened() for store in stores]
        self._changing = Lock()
        self._counting = Lock()
        # Stores that last may have been open without each other.
        for faster, slower in combinations(self._tiers, 2):
            slower.evict(*faster.held())

    def get(self, keys: Keys) -> Lease:
        """Lend samples: tiers are asked in turn for what was not found yet."""
        parts: list[tuple[Numbers, Images]] = []
        missing = np.arange(len(keys[0]))
        with ExitStack() as leases:
            for number, tier in enumerate(self._tiers):
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

    def prefetch(self, keys: Keys) -> None:
        """Let each tier prepare what it holds."""
        for tier in self._tiers:
            tier.prefetch(keys)

    def held(self, indices: Numbers | None = None) -> Keys:
        """Tell what all tiers hold."""
        held = [NO_KEYS, *(tier.held(indices) for tier in self._tiers)]
        return np.concatenate([keys[0] for keys in held]), np.concatenate([keys[1] for keys in held])

    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Keep samples, each in the fastest tier that takes it."""
        with self._changing:
            if len(distinct(keys[0])) == len(samples) and not len(self.held(keys[0])[0]):
                return self._fill(keys, samples)
            # What goes makes room for those after it.
            rows = np.arange(len(samples))[:, None]
            return np.array([self._replace(_rows(keys, row), samples[row[0]]) for row in rows], np.bool_)

    def evict(self, indices: Numbers, versions: Numbers | None = None) -> None:
        """Forget indices, or some of their versions, in all tiers."""
        with self._changing:
            self._evict(indices, versions)

    def retain(self, keys: Keys) -> None:
        """Forget all but these versions."""
        with self._changing:
            for tier in self._tiers:
                tier.retain(keys)

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores:
            store.close()

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples."""
        return sum(tier.nbytes for tier in self._tiers)

    def __len__(self) -> int:
        """Count the versions held."""
        return sum(map(len, self._tiers))

    def _replace(self, key: Keys, sample: Image) -> bool:
        """Put one version, shape (1,), after evicting its index's older ones, in whichever tier these are."""
        indices, versions = self.held(key[0])
        if (versions == key[1]).any():
            return True
        is_older = versions < key[1]
        self._evict(indices[is_older], versions[is_older])
        return bool(self._fill(key, [sample])[0])

    def _evict(self, indices: Numbers, versions: Numbers | None) -> None:
        for tier in self._tiers:
            tier.evict(indices, versions)

    def _fill(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Put versions that none holds; what a tier declines goes to the next slower one."""
        stored = np.zeros(len(samples), np.bool_)
        for tier in self._tiers:
            rows = np.flatnonzero(~stored)
            if not len(rows):
                break
            stored[rows] = tier.put(_rows(keys, rows), _chosen(samples, rows))
        return stored


def _rows(keys: Keys, rows: Numbers) -> Keys:
    """Return some of n versions."""
    return keys[0][rows], keys[1][rows]


def _chosen(samples: Sequence[Image], rows: Numbers) -> Sequence[Image]:
    """Return some of n samples: as they are given if all are chosen, for a tier may know where they lie."""
    return samples if len(rows) == len(samples) else [samples[row] for row in rows.tolist()]
