"""Which samples are cached in a round? A window that runs over the data set.

The technique is SmartCache of NVIDIA Clara Train 3.1: only what is cached is trained on, and after each round some of
it is replaced. A seeded permutation puts the samples in a running order that never ends, by starting again:

    running order    a  b  c  d  e  f  a  b  c  d          6 samples, 4 cached, 0.5: 2 are replaced
    round 0         [M  M  M  M]                           M: enters, a miss
    round 1               [.  .  M  M]                     .: is there already, a hit
    round 2                     [.  .  M  M]

What enters in a round is a miss of that round, spread evenly over its batches. So a round has the tensors and the work
of a cache that a second thread fills for the round to come, without that thread and the slots that it fills.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dalirefurb.errors import ConfigurationError
from dalirefurb.plan import BatchPlan, Planner, batch_plans, integer
from dalirefurb.rng import permutation
from dalirefurb.shuffle import BatchShuffler

_ORDER = BatchShuffler()


@dataclass(frozen=True)
class SmartCache(Planner):
    """Serves the samples of a window, each once a round, and moves the window on after the round.

    A round is an epoch. Its version of a sample is the round in which the sample entered. With
    `recipe.at(recipe.deterministic_prefix)` all versions of a sample are alike, and a sample that stays is never read
    again. The worked example, 100 samples of which 50 are cached:

    >>> planner = SmartCache(100, batch_size=10, num_cache_objects=50, replace_percent=0.1)
    >>> planner.replaced, planner.peak_slots
    (5, 45)
    >>> [sum(int(plan.miss.sum()) for plan in planner.epoch(number)) for number in range(4)]
    [50, 5, 5, 5]
    >>> [planner.coverage_after(rounds) for rounds in (1, 2, 11)]
    [0.5, 0.55, 1.0]

    The window wraps around, and never holds a sample twice. Where it and the samples to come together exceed the data,
    some samples that leave enter again at once, in a new version. Each shard has a window of its own, over its samples.

    Attributes:
        num_cache_objects: Samples of a round, in batch_size..num_samples, of all shards together; best a multiple of
            batch_size, which it has to be with several shards.
        replace_percent: Share of them that is replaced after each round, in 0..1, rounded up to whole samples of each
            shard, which is much where windows are small; 0.1 is 10 %. 0 for validation: the first window stays for
            ever.
    """

    num_cache_objects: int = field(kw_only=True)
    replace_percent: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_last:
            raise ConfigurationError(
                "drop_last must be False, since a round serves the whole window, got True: leave it out, and "
                "make num_cache_objects a multiple of batch_size"
            )
        remedy = "a window fills a batch, and holds no sample twice"
        object.__setattr__(
            self,
            "num_cache_objects",
            integer("num_cache_objects", self.num_cache_objects, self.batch_size, self.num_samples, remedy),
        )
        share = self.replace_percent
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not (number and 0 <= share <= 1):
            raise ConfigurationError(f"replace_percent must be a number in 0..1, got {share!r}: pass 0.1 for 10 %")
        object.__setattr__(self, "replace_percent", float(share))
        rest = self.num_cache_objects % self.batch_size
        fitting = self.num_cache_objects - rest
        if rest and self.shards > 1:
            raise ConfigurationError(
                f"num_cache_objects must be a multiple of batch_size with several shards, got {self.num_cache_objects} "
                f"and {self.batch_size}: pass {fitting}"
            )
        if rest:
            warnings.warn(
                f"num_cache_objects should be a multiple of batch_size, got {self.num_cache_objects} and "
                f"{self.batch_size}, so the last batch of a round has {rest} rows: pass {fitting}",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Batches per round."""
        return -(-self.num_cache_objects // self.batch_size)

    @property
    def replaced(self) -> int:
        """Samples that are replaced after each round.

        `replace_percent` is read as the decimals it is written in, so that 0.28 of 25 is 7.
        """
        return self.shards * self._replaced

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        They are those that stay: each batch frees at least as many slots as it fills, once the window is there. With
        several shards their misses are rounded to whole ones, so that some more may be stored for a while.
        """
        stay = self._window - self._replaced
        extra = _ORDER.extra_slots(shards=self.shards, batches=len(self), samples=self._window)
        return (min(stay + extra, self._window) if stay else 0,) * self.shards

    def coverage_after(self, rounds: int) -> float:
        """Return the share of the data set that the first `rounds` rounds have served.

        Raises:
            ConfigurationError: If `rounds` is not an int, or is negative.
        """
        rounds = integer("rounds", rounds, 0, None, "pass the number of rounds served")
        seen = self._window + (rounds - 1) * self._replaced if rounds else 0
        return sum(min(seen, samples) for samples in self.shard_samples) / self.num_samples

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one round; see `Planner.epoch`."""
        epoch = integer("epoch", epoch, 0, None, "epochs count from 0")
        size, replaced = self._window, self._replaced
        window = epoch * replaced + np.arange(size)  # places in each shard's running order
        entered = np.maximum(window - size, -1) // max(replaced, 1) + 1  # the round in which a place enters
        shards = range(self.shards)
        indices = np.concatenate([owned[window % len(owned)] for owned in map(self.owned, shards)])
        entered = np.tile(entered, self.shards)
        miss = entered == epoch
        keep = np.tile(window >= (epoch + 1) * replaced, self.shards)
        order = _ORDER.order(
            [size * shard + permutation(size, self._seed_of(shard), "smart cache", epoch) for shard in shards],
            miss,
            keep,
            batch_size=self.batch_size,
            seed=self.seed,
            epoch=epoch,
        )
        miss, keep = miss[order], keep[order]
        return batch_plans(
            indices=indices[order],
            version=entered[order],
            serving=np.broadcast_to(np.int64(epoch), len(order)),
            miss=miss,
            keep=keep,
            evict=~(miss | keep),
            batch_size=self.batch_size,
        )

    @property
    def _window(self) -> int:
        """Samples of a shard in a round."""
        return self.num_cache_objects // self.shards

    @property
    def _replaced(self) -> int:
        """Those that are replaced after it."""
        return math.ceil(Fraction(str(self.replace_percent)) * self._window)
