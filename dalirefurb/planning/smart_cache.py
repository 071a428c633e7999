"""SmartCache: a window of cached samples that runs over the data set, round by round.

The technique is SmartCache of NVIDIA Clara Train 3.1: only what is cached is trained on, and after each round some of
it is replaced. A seeded permutation puts the samples in a running order that never ends, by starting again:

    running order    a  b  c  d  e  f  a  b  c  d          6 samples, 4 cached, 0.5: 2 are replaced
    round 0         [M  M  M  M]                           M: enters, a miss
    round 1               [.  .  M  M]                     .: is there already, a hit
    round 2                     [.  .  M  M]

What enters in a round is a miss of that round, spread evenly over its batches, each of which waits for its own. So a
round has the tensors and the work of a cache that a second thread fills for the next round, without that thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np

from dalirefurb.checks import integer, require
from dalirefurb.errors import warn
from dalirefurb.planning.batch_plan import Indices
from dalirefurb.planning.closed_form import ClosedFormPlanner
from dalirefurb.planning.shuffle import Run
from dalirefurb.planning.whole_numbers import around, pieces


@dataclass(frozen=True)
class SmartCache(ClosedFormPlanner):
    """Serves the samples of a window, each once a round, and moves the window on after the round.

    A round is an epoch. What enters is computed on the path of the batch that serves it, ahead of time as any miss, and
    not in the background of the round before. A sample's version is the round in which it entered: all are alike with
    `recipe.at(recipe.deterministic_prefix)`, and what stays is never read again. Of 100 samples 50 are cached:

    >>> planner = SmartCache(100, batch_size=10, num_cache_objects=50, replace_percent=0.1)
    >>> planner.replaced, planner.peak_slots
    (5, 45)
    >>> [sum(int(plan.miss.sum()) for plan in planner.epoch(number)) for number in range(4)]
    [50, 5, 5, 5]
    >>> [planner.coverage_after(rounds) for rounds in (1, 2, 11)]
    [0.5, 0.55, 1.0]

    The window wraps around, and never holds a sample twice. What enters is not in the window, so never more samples are
    replaced than there are outside it, as in Clara Train and in MONAI; a window that holds all of them stays for ever.
    Each shard has a window of its own, over its samples.

    Attributes:
        num_cache_objects: Samples of a round, in batch_size..num_samples, of all shards together; best a multiple of
            batch_size, which it has to be with several shards.
        replace_percent: Share of a round's samples that is replaced after each round, in 0..1, rounded up to whole
            samples of each shard, which is much where windows are small; 0.1 is 10 %. At most the samples that are not
            cached are replaced. 0 for validation: the first window stays for ever.
    """

    num_cache_objects: int = field(kw_only=True)
    replace_percent: float = field(kw_only=True)

    code_version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "leave it out, and make num_cache_objects a multiple of batch_size"
        wanted = "False, since a round serves the whole window"
        require(not self.drop_last, "drop_last", wanted, self.drop_last, remedy)
        name, remedy = "num_cache_objects", "a window fills a batch, and holds no sample twice"
        self._integer(name, self.batch_size, self.num_samples, remedy)
        self._share("replace_percent", "pass 0.1 for 10 %")
        rest = self.num_cache_objects % self.batch_size
        fitting = self.num_cache_objects - rest
        wanted = f"a multiple of batch_size={self.batch_size} with several shards"
        require(rest == 0 or self.shards == 1, name, wanted, self.num_cache_objects, f"pass {fitting}")
        if rest:
            warn(
                f"num_cache_objects={self.num_cache_objects} is no multiple of batch_size={self.batch_size}, so the "
                f"last batch of a round has {rest} rows: pass num_cache_objects={fitting}",
            )

    def __len__(self) -> int:
        """Batches per round."""
        return -(-self.num_cache_objects // self.batch_size)

    @property
    def replaced(self) -> int:
        """Samples that are replaced after each round.

        `replace_percent` is read as the decimals it is written in, so that 0.28 of 25 is 7.
        """
        return sum(self._replaced)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        They are those that stay: each batch frees at least as many slots as it fills, once the window is there. With
        several shards their misses are rounded to whole ones, so that some more may be stored for a while.
        """
        extra = self.order.extra_slots(shards=self.shards, batches=len(self), samples=self._window)
        stay = [self._window - replaced for replaced in self._replaced]
        return tuple(min(each + extra, self._window) if each else 0 for each in stay)

    def coverage_after(self, rounds: int) -> float:
        """Return the share of the data set that the first `rounds` rounds have served.

        Raises:
            ConfigurationError: If `rounds` is not an int, or is negative.
        """
        rounds = integer("rounds", rounds, 0, None, "pass the number of rounds served")
        seen = [self._window + (rounds - 1) * replaced if rounds else 0 for replaced in self._replaced]
        return sum(map(min, seen, self.shard_samples)) / self.num_samples

    def runs(self, epoch: int, shard: int) -> list[Run]:
        """Return the places of a shard in the window of a round.

        The window of round e begins at place e R of the running order, where R samples are replaced. Its last R places
        miss, its first R ones are left after the round.
        """
        size, replaced, samples = self._window, self._replaced[shard], self.shard_samples[shard]
        stays = [(0, size - replaced if epoch else 0)]
        keeps = [(replaced, size)]
        return [
            Run(first, 1, last - first, not stayed, kept)
            for start, stop, (stayed, kept) in pieces(size, [stays, keeps])
            for first, last in around(samples, epoch * replaced + start, stop - start)
        ]

    def likeness(self, shard: int) -> tuple[int, int]:
        """Return the samples of a shard, and how many of them a round replaces."""
        return self.shard_samples[shard], self._replaced[shard]

    def versions(self, epoch: int, shards: Indices, places: Indices) -> Indices:
        """Return the rounds in which the samples at n places entered; of those that are not there, one to come."""
        replaced, samples = (np.array(each)[shards] for each in (self._replaced, self.shard_samples))
        running = (places - epoch * replaced) % samples  # from the window's beginning on
        entered = np.maximum(epoch * replaced + running - self._window, -1) // np.maximum(replaced, 1) + 1
        versions: Indices = np.where(running < self._window, entered, epoch + 1)
        return versions

    @property
    def _window(self) -> int:
        """Samples of a shard in a round."""
        return self.num_cache_objects // self.shards

    @cached_property
    def _replaced(self) -> tuple[int, ...]:
        """Those of each shard that are replaced after it, shape (shards,): never more than are not in its window."""
        share = math.ceil(Fraction(str(self.replace_percent)) * self._window)
        return tuple(min(share, samples - self._window) for samples in self.shard_samples)
