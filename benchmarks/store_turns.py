"""How does a store take its turn? With a loader of its own, for whole epochs; what it uses is noted batch by batch.

    turn   make, resume ▏ an epoch ▏ drop its files ▏ not timed ▏ timed batches ▏ rest of the epoch ▏ state, close

What is timed is of one epoch, so of what it reads it has read nothing before. In the epoch before that the loader comes
to have the memory that it writes to: whose pages are touched for the first time, on a virtual machine often fetched
from its host, which takes longer than to read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import harness
from harness import Contender, Entrant, Slice
from loaders import default_placement, endless
from page_cache import Usage, drop

from dalirefurb import Loader, Recipe
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store


class StoreTurns:
    """A loader of default placement with one store, which stays open, a turn of whole epochs at a time.

    Args:
        stack: Closes the store.
        name: For tables and results.
        source: Of samples.
        recipe: Where it splits.
        planner: What is served.
        store: Nobody else's.
    """

    def __init__(
        self, stack: ExitStack, name: str, source: Source, recipe: Recipe, planner: Planner, store: Store
    ) -> None:
        self._name = name
        self._source = source
        self._recipe = recipe
        self._planner = planner
        self._store = stack.enter_context(store)
        self._state: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """For tables and results."""
        return self._name

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Make the loader, go on where it was, serve an epoch, let another one be timed, finish it and close."""
        with Loader(self._source, self._recipe, self._planner, self._store) as loader:
            if self._state is not None:
                loader.load_state_dict(self._state)
            batches = endless(loader)
            for _ in islice(batches, len(self._planner)):
                pass
            # Nothing of the next epoch is on its way when the files are dropped.
            batches.close()
            batches = endless(loader)
            yield Contender(self.name, default_placement(), loader.batches_ahead, batches)
            self._state = loader.state_dict()
            for _ in islice(batches, -self._state["batch"] % len(self._planner)):
                pass
            self._state = loader.state_dict()
            batches.close()

    def settle(self) -> None:
        """Serve epochs: the first one fills the store, the second one the memory that it reads into."""
        with self.turn() as contender:
            for _ in islice(contender.batches, len(self._planner)):
                pass


class Metered:
    """An entrant whose usage is noted, and whose files are not in the page cache when its contender is first asked.

    Args:
        entrant: Takes the turns.
        cold: The files.

    Attributes:
        usages: Of each turn, after each batch that was asked for.
    """

    def __init__(self, entrant: Entrant, cold: Sequence[Path] = ()) -> None:
        self._entrant = entrant
        self._cold = cold
        self.usages: list[list[Usage]] = []

    @property
    def name(self) -> str:
        """For tables and results."""
        return self._entrant.name

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
