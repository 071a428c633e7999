"""Which stores take turns with each other, and what did each one do? One planner, one recipe, one state of the disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np
from harness import Claim, Entrant, Slice, Spread
from page_cache import Usage
from store_turns import Metered, StoreTurns

from dalirefurb import Recipe
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store, TieredStore

_LOOKED_AT = range(3, 6)


@dataclass(frozen=True)
class Served:
    """What one contender did.

    Attributes:
        name: As in the slices.
        images_per_s: Over the rounds.
        megabytes_per_s: Of partial images, over the rounds.
        cpu_us: An image, of all threads, over the rounds.
        from_disk: Bytes fetched from the disk for each byte served, over the rounds.
        fast_hits: Share of hits that the fastest tier served, None for a single store.
        first_come: The same, if versions stayed where they are put first.
        usages: While the clock ran, one a round.
    """

    name: str
    images_per_s: Spread
    megabytes_per_s: Spread
    cpu_us: Spread
    from_disk: Spread
    fast_hits: float | None
    first_come: float | None
    usages: list[Usage]

    def row(self) -> list[str]:
        """Write a row of a table."""
        shares = [f"{share:.2f}" if share is not None else "" for share in (self.fast_hits, self.first_come)]
        return [
            self.name,
            self.images_per_s.show(0),
            f"{self.megabytes_per_s.median:.0f}",
            f"{self.cpu_us.median:.0f}",
            f"{self.from_disk.median:.2f}",
            *shares,
        ]


@dataclass(frozen=True)
class Group:
    """Contenders that took turns.

    Attributes:
        name: What they have in common.
        served: One each.
        claims: Ratios of figures of one round.
        slices: Every slice of every round.
    """

    name: str
    served: list[Served]
    claims: list[Claim]
    slices: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        heading = ["images/s [quartiles]", "MB/s", "CPU us an image", "from disk", "hits in memory", "first come"]
        return (
            f"{harness.table([self.name, *heading], [each.row() for each in self.served])}\n\n"
            f"{harness.table(['ratio', 'median [quartiles]', ''], [claim.show() for claim in self.claims])}\n"
        )


class Entries:
    """Contenders to be, all of one plan.

    Args:
        stack: Closes their stores.
        source: Of samples.
        recipe: Where it splits.
        planner: What is served.
        sample_bytes: Of a partial image.
        cold: Whether files are dropped from the page cache before each turn.

    Attributes:
        planner: What is served.
    """

    def __init__(
        self, stack: ExitStack, source: Source, recipe: Recipe, planner: Planner, *, sample_bytes: int, cold: bool
    ) -> None:
        self.planner = planner
        self._stack = stack
        self._source = source
        self._recipe = recipe
        self._sample_bytes = sample_bytes
        self._cold = cold
        self._turns: list[Metered] = []
        # Tiered stores by name, their slots in memory, and hits of each tier before the first turn.
        self._tiered: dict[str, tuple[TieredStore, int, tuple[int, ...]]] = {}

    def add(self, name: str, store: Store, path: Path | None = None) -> None:
        """Fill a store, whose file is at `path`, and let a loader take turns with it."""
        turns = StoreTurns(self._stack, name, self._source, self._recipe, self.planner, store)
        turns.settle()
        self.add_other(turns, path)

    def add_tiered(self, name: str, path: Path, slots: int) -> None:
        """Fill a store of so many slots in memory and the rest in a file, and let a loader take turns with it."""
        store = TieredStore(memory=slots * self._sample_bytes, path=path)
        self.add(name, store, path)
        self._tiered[name] = store, slots, store.hits

    def add_other(self, entrant: Entrant, path: Path | None) -> None:
        """Let somebody take turns who reads a file."""
        self._turns.append(Metered(entrant, [path] if self._cold and path is not None else []))

    def take_turns(self, rounds: int, timed_batches: int, timed_s: float = 0.0) -> tuple[list[Served], list[Slice]]:
        """Interleave, and summarise the rounds."""
        slices = harness.interleave(self._turns, rounds=rounds, timed_batches=timed_batches, timed_s=timed_s)
        return [self._served(turns, slices) for turns in self._turns], slices

    def _served(self, turns: Metered, slices: Sequence[Slice]) -> Served:
        usages = turns.timed(slices)
        fast = stay = None
        if turns.name in self._tiered:
            store, slots, before = self._tiered[turns.name]
            hits = np.subtract(store.hits, before)
            fast, stay = float(hits[0] / hits.sum()), first_come(self.planner, slots)
        speeds = harness.per_round(slices, turns.name)
        return Served(
            turns.name,
            Spread.of(speeds),
            Spread.of([speed * self._sample_bytes / 1e6 for speed in speeds]),
            Spread.of([1e6 * each.cpu_s / each.images for each in usages]),
            Spread.of([each.disk_bytes / each.images / self._sample_bytes for each in usages]),
            fast,
            stay,
            usages,
        )


def first_come(planner: Planner, slots: int) -> float:
    """Return the share of hits that `slots` in memory would serve if versions stayed where they are put first.

    A version goes to memory if there is room when it is computed, and otherwise to the disk, until it is evicted.

    >>> from dalirefurb import Frozen
    >>> first_come(Frozen(100, batch_size=10), 30)
    0.3
    """
    in_memory = np.zeros(planner.num_samples, np.bool_)
    hits = fast = 0
    for epoch in range(_LOOKED_AT.stop):
        for plan in planner.epoch(epoch):
            if epoch in _LOOKED_AT:
                hits += int(np.count_nonzero(~plan.miss))
                fast += int(np.count_nonzero(in_memory[plan.indices[~plan.miss]]))
            in_memory[plan.evict] = False
            born = plan.indices[plan.miss & plan.keep]
            in_memory[born[: slots - np.count_nonzero(in_memory)]] = True
    return fast / hits
