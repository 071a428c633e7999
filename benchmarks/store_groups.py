"""Stores that take turns with each other, on one planner, one recipe and one state of the disk, and what each one did.

    turn   make, resume ▏ an epoch ▏ drop its files ▏ drained ▏ timed batches ▏ rest of the epoch ▏ state, close

What is timed is of one epoch, so of what it reads it has read nothing before. In the epoch before that the loader comes
to have the memory that it writes to: whose pages are touched for the first time, on a virtual machine often fetched
from its host, which takes longer than to read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import numpy as np
from claims import Claim, Spread, claim_table, say, table
from harness import Contender, Entrant, Slice
from loaders import LoaderTurns, default_placement, endless
from page_cache import Usage, drop
from tier_hits import most_hits

from dalirefurb import Recipe
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store, TieredStore

_LOOKED_AT = range(3, 6)


class StoreTurns(LoaderTurns):
    """A loader of default placement whose turns are of whole epochs; its first epoch fills the store."""

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Make the loader, go on where it was, serve an epoch, let another one be timed, finish it and close."""
        with self._resumed() as loader:
            batches = endless(loader)
            for _ in islice(batches, len(self._planner)):
                pass
            # Nothing of the next epoch is on its way when the files are dropped.
            batches.close()
            batches = endless(loader)
            yield Contender(self.name, default_placement(), loader.batches_ahead, batches)
            for _ in islice(batches, -loader.state_dict()["batch"] % len(self._planner)):
                pass
            self._state = loader.state_dict()
            batches.close()


class Metered:
    """An entrant whose usage is noted, and whose files are not in the page cache when its contender is first asked.

    Args:
        entrant: Takes the turns.
        cold: The files.

    Attributes:
        usages: Of each turn, after each batch that was asked for.
    """

    def __init__(self, entrant: Entrant, cold: Sequence[Path] = ()) -> None:
        self.name = entrant.name
        self._entrant = entrant
        self._cold = cold
        self.usages: list[list[Usage]] = []

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Let it take its turn."""
        with self._entrant.turn() as contender:
            drop(self._cold)
            self.usages.append([])
            yield replace(contender, batches=self._noted(contender.batches, self.usages[-1]))

    def timed(self, slices: Sequence[Slice]) -> list[Usage]:
        """Return what it used in each round while the clock ran."""
        own = harness.by_round(slices, self.name)
        pairs = zip(self.usages, own, strict=True)
        return [usages[-1] - usages[-1 - len(each.batch_s)] for usages, each in pairs]

    @staticmethod
    def _noted(batches: Iterator[int], usages: list[Usage]) -> Generator[int, None, None]:
        images = 0
        for each in batches:
            images += each
            usages.append(Usage.now(images))
            yield each


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
        turns = StoreTurns(self._stack, name, self._source, self._recipe, self.planner, make_store=lambda: store)
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

    def take_turns(
        self, rounds: int, timed_batches: int, timed_s: float = 0.0
    ) -> tuple[list[dict[str, Any]], list[Slice], dict[str, list[float]]]:
        """Interleave; return what each one did, the slices, and images/s of each."""
        sizes: dict[str, Any] = {"timed_batches": timed_batches, "timed_s": timed_s, "most_rotations": 0}
        slices = harness.interleave(self._turns, rounds=rounds, **sizes)
        speeds = harness.speeds_of(slices)
        return [self._served(turns, slices, speeds[turns.name]) for turns in self._turns], slices, speeds

    def _served(self, turns: Metered, slices: Sequence[Slice], speeds: Sequence[float]) -> dict[str, Any]:
        """Summarise what one contender did while the clock ran, a usage for each round."""
        usages = turns.timed(slices)
        # What share of hits the fastest tier served, and the most that it could.
        fast = most = None
        if turns.name in self._tiered:
            store, slots, before = self._tiered[turns.name]
            hits = np.subtract(store.hits, before)
            possible = [most_hits(self.planner, count, _LOOKED_AT).sum() for count in (slots, self.planner.num_samples)]
            fast, most = float(hits[0] / hits.sum()), float(possible[0] / possible[1])
        return {
            "name": turns.name,
            "images_per_s": Spread.of(speeds),
            "megabytes_per_s": Spread.of([speed * self._sample_bytes / 1e6 for speed in speeds]),
            "cpu_us": Spread.of([1e6 * each.cpu_s / each.images for each in usages]),
            "from_disk": Spread.of([each.disk_bytes / each.images / self._sample_bytes for each in usages]),
            "fast_hits": fast,
            "most_fast": most,
            "usages": usages,
        }


def group(
    name: str, served: Sequence[Mapping[str, Any]], claims: Sequence[Claim], slices: Sequence[Slice]
) -> dict[str, Any]:
    """Print what contenders did that have `name` in common, and return it for the JSON."""
    cells = (
        "{name}",
        "{images_per_s:0}",
        "{megabytes_per_s.median:.0f}",
        "{cpu_us.median:.0f}",
        "{from_disk.median:.2f}",
    )
    tiers = ("{fast_hits:.2f}", "{most_fast:.2f}")
    rows = []
    for each in served:
        shares = ["", ""] if each["fast_hits"] is None else [cell.format_map(each) for cell in tiers]
        rows.append([*(cell.format_map(each) for cell in cells), *shares])
    heading = ["images/s [quartiles]", "MB/s", "CPU us an image", "from disk", "hits in memory", "the most"]
    say(table([name, *heading], rows), claim_table(claims))
    return {"name": name, "served": served, "claims": claims, "slices": slices}
