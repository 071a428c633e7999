"""How many hits the memory of a tiered store serves, of the most it could: counted, without pictures and a clock.

A version that an epoch serves once, and that lies in memory when the epoch begins, is one hit. So memory serves at most
as many hits an epoch as it has slots, whatever lies where.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from claims import Claim, Spread, claim_table, say
from numpy.typing import NDArray

from dalirefurb import Refurbish, SmartCache
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.store import DiskStore, MemoryStore, StoreSpec, Tier, TieredStore

LEAST_OF_MOST = 0.98
_PIXELS = np.zeros((1, 1, 1), np.uint8)
_EPOCHS = 5
_BATCHES = 50


def most_hits(planner: Planner, slots: int, epochs: Iterable[int]) -> NDArray[np.int64]:
    """Return how many hits of each epoch so many slots can serve at most, shape (epochs,).

    >>> most_hits(Frozen(100, batch_size=10), 30, range(3)).tolist()
    [0, 30, 30]
    """
    hits = [sum(int(np.count_nonzero(~plan.miss)) for plan in planner.epoch(epoch)) for epoch in epochs]
    return np.minimum(hits, slots)


def count_hits(planner: Planner, store: TieredStore, epochs: Iterable[int]) -> NDArray[np.int64]:
    """Bring an open store of single pixels through some epochs; return each tier's hits, shape (epochs, tiers)."""
    lent = [store.hits]
    for epoch in epochs:
        for plan in planner.epoch(epoch):
            with store.get(plan.indices, plan.version) as lease:
                kept = np.flatnonzero(~lease.found & plan.keep)
            store.evict(plan.evict)
            store.put(plan.indices[kept], plan.version[kept], [_PIXELS] * len(kept))
        lent.append(store.hits)
    return np.diff(lent, axis=0)


def compare_tiers(num_samples: int, shares: Sequence[float], folder: Path) -> dict[str, Any]:
    """Count for several planners, each with some shares of its slots in memory, at first and after a restart."""
    batch_size = num_samples // _BATCHES
    planners = {
        "Refurbish, 2": Refurbish(num_samples, batch_size=batch_size, reuse_factor=2),
        "Refurbish, 3": Refurbish(num_samples, batch_size=batch_size, reuse_factor=3),
        "SmartCache": SmartCache(
            num_samples, batch_size=batch_size, num_cache_objects=num_samples // 2, replace_percent=0.1
        ),
        "Frozen": Frozen(num_samples, batch_size=batch_size),
    }
    runs = {"begun": range(_EPOCHS), "begun again": range(_EPOCHS, 2 * _EPOCHS)}
    counted = []
    for number, (name, share) in enumerate(product(planners, shares)):
        planner, path = planners[name], folder / f"counted_{number}"
        slots = int(share * planner.peak_slots)
        of_most = {run: _of_most(planner, slots, path, epochs) for run, epochs in runs.items()}
        counted.append({"name": f"{name}, {100 * share:.0f} % in memory", "slots": slots, "of_most": of_most})
    claims = [
        Claim(f"{each['name']}, {run}", Spread.of(of_most), LEAST_OF_MOST)
        for each in counted
        for run, of_most in each["of_most"].items()
    ]
    say(claim_table(claims, "hits from memory / the most, from the second epoch on"))
    return {"counted": counted, "claims": claims}


def _of_most(planner: Planner, slots: int, path: Path, epochs: range) -> list[float]:
    """Open a store that has so many slots in memory, and begins with what is in its file; count after one epoch."""
    with TieredStore.of(Tier(MemoryStore(), slots), Tier(DiskStore(path))) as store:
        store.open(StoreSpec(_PIXELS.shape, planner.peak_slots, {}))
        hits = count_hits(planner, store, epochs)[1:, 0]
    of_most: list[float] = (hits / most_hits(planner, slots, epochs[1:])).tolist()
    return of_most
