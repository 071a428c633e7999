import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb.planning.closed_form import ClosedFormPlanner
from dalirefurb.planning.shuffle import BatchOrder, BatchShuffler, PlainShuffler, Run, Strata, misses_before, rows_of

CACHE_AWARE = BatchShuffler()
CHI_SQUARE_29 = 58.3  # 0.1 % of draws exceed it, 29 degrees of freedom


@dataclass(frozen=True)
class Given(ClosedFormPlanner):
    """Plans the runs that it is given, of each shard, in every epoch."""

    given: tuple[tuple[Run, ...], ...] = field(kw_only=True)
    by: BatchOrder = field(kw_only=True, default=CACHE_AWARE)

    @property
    def order(self):
        return self.by

    @property
    def shard_slots(self):
        return self.shard_samples

    def __len__(self):
        return -(-rows_of(self.given[0]) // self._width)

    def runs(self, epoch, shard):
        return self.given[shard]

    def versions(self, epoch, shards, places):
        return np.zeros(len(places), np.int64)


@st.composite
def planners(draw, by=CACHE_AWARE):
    """Shards whose places are parted at random into misses and hits, that are kept or not, in runs of two steps."""
    shards = draw(st.integers(1, 4))
    width = draw(st.integers(1, 5))
    size = width * draw(st.integers(1, 8))
    if shards == 1:
        size += draw(st.integers(0, width - 1))
    given_runs = []
    for _ in range(shards):
        ends = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=5))})
        runs = []
        for start, stop in pairwise(ends):
            for first in range(min(2, stop - start)):
                miss, keep = draw(st.booleans()), draw(st.booleans())
                runs.append(Run(start + first, 2, len(range(start + first, stop, 2)), miss, keep))
        given_runs.append(tuple(runs))
    arguments = {"batch_size": shards * width, "shards": shards, "seed": draw(st.integers(0, 99))}
    return Given(shards * size, given=tuple(given_runs), by=by, **arguments)


def flags(planner):
    """Whether each sample misses, and whether it is kept, each of shape (num_samples,)."""
    miss, keep = np.zeros((2, planner.num_samples), np.bool_)
    for shard, runs in enumerate(planner.given):
        for first, step, size, misses, keeps in runs:
            samples = planner.members(shard, first + step * np.arange(size))
            miss[samples], keep[samples] = misses, keeps
    return miss, keep


@pytest.mark.parametrize("shuffler", [BatchShuffler(), PlainShuffler()])
@given(data=st.data())
def test_every_row_is_served_once_in_the_slice_of_its_shard_with_what_its_run_says(shuffler, data):
    planner = data.draw(planners(shuffler))
    plans = list(planner.epoch(2))
    served = np.concatenate([plan.indices for plan in plans])
    assert sorted(served) == list(range(planner.num_samples))
    width = planner.batch_size // planner.shards
    assert all(np.arange(len(served)) // width % planner.shards == planner.owners(served))
    miss, keep = flags(planner)
    for plan in plans:
        assert plan.miss.tolist() == miss[plan.indices].tolist()
        assert plan.keep.tolist() == keep[plan.indices].tolist()
        assert plan.evict.tolist() == plan.indices[~(plan.miss | plan.keep)].tolist()


@given(planner=planners())
def test_every_run_of_shards_in_a_batch_misses_within_one_of_its_share(planner):
    miss, _ = flags(planner)
    width = planner.batch_size // planner.shards
    misses = [
        miss[planner.members(shard, np.arange(planner.shard_samples[shard]))].sum() for shard in range(planner.shards)
    ]
    for plan in planner.epoch(0):
        for first in range(planner.shards):
            for last in range(first, planner.shards):
                share = sum(misses[first : last + 1]) * len(plan.indices) / planner.num_samples
                assert abs(plan.miss[first * width : (last + 1) * width].sum() - share) < 1


@given(planner=planners())
def test_with_one_shard_stored_and_evicted_versions_are_spread_evenly(planner):
    if planner.shards > 1:
        return
    plans = list(planner.epoch(0))
    share = np.cumsum([len(plan.indices) for plan in plans]) / planner.num_samples
    for chosen in ([plan.miss & plan.keep for plan in plans], [~plan.miss & ~plan.keep for plan in plans]):
        done = np.cumsum([each.sum() for each in chosen])
        assert all(abs(done - share * done[-1]) < 2)


@pytest.mark.parametrize("shards", [1, 3])
def test_the_place_in_a_batch_says_nothing_about_hit_or_miss_or_keep(shards):
    width = 30
    runs = (
        Run(0, 1, 40, True, True),
        Run(40, 1, 30, True, False),
        Run(70, 1, 50, False, True),
        Run(120, 1, 80, False, False),
    )
    planner = Given(200 * shards, batch_size=width, shards=shards, given=(runs,) * shards)
    low = np.concatenate([planner.members(shard, np.arange(60)) for shard in range(shards)])
    places = np.zeros((3, width))
    for epoch in range(60 * 3 // shards):
        for plan in planner.epoch(epoch):
            if len(plan.indices) == width:
                places += [plan.miss, plan.keep, np.isin(plan.indices, low)]
    mean = places.mean(axis=1, keepdims=True)
    assert all(((places - mean) ** 2 / mean).sum(axis=1) < CHI_SQUARE_29)


@given(st.data())
def test_shares_of_misses_sum_to_what_each_shard_has_and_fit_into_cells(data):
    shards, width, count = data.draw(st.tuples(st.integers(2, 5), st.integers(1, 6), st.integers(1, 40)))
    misses = data.draw(st.lists(st.integers(0, width * count), min_size=shards, max_size=shards))
    rows = {"num_rows": count * shards * width, "batch_size": shards * width}
    before = np.array([misses_before(misses, batch, **rows) for batch in range(count + 1)])
    assert before[0].tolist() == [0] * shards
    assert before[-1].tolist() == misses
    shares = np.diff(before, axis=0)
    assert shares.min() >= 0
    assert shares.max() <= width
    some = range(data.draw(st.integers(0, shards - 1)), shards)
    assert misses_before(misses, count // 2, **rows, shards=some) == before[count // 2, some.start :].tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 21, *(pytest.param(n, marks=pytest.mark.weekly) for n in (32, 43))])
def test_misses_of_a_shard_stay_within_twice_the_discrepancy_of_van_der_corput(count):
    for extra in range(1, count):
        for before in range(count):
            done = [
                misses_before([before, extra], batch, num_rows=2 * count, batch_size=2)[1] for batch in range(count + 1)
            ]
            lead = np.array(done) - np.arange(count + 1) * extra / count
            assert abs(lead).max() <= 2 * (math.log2(count) / 3 + 1)


@pytest.mark.parametrize("size", [10, 600, 10**12])
def test_strata_find_what_they_serve(size):
    strata = Strata(
        [[Run(0, 3, size, True, True), Run(1, 3, size, True, False)], [Run(2, 3, size, False, True)]],
        [np.uint64(1), np.uint64(2)],
    )
    for number, start in ((0, size // 2), (1, size // 3)):
        positions = np.arange(start, start + 6)
        places, _, keep = strata.rows(np.full(6, number), positions)
        found, kept = strata.find(number, places)
        assert found.tolist() == positions.tolist()
        assert kept.tolist() == keep.tolist()
        other, _ = strata.find(1 - number, places)
        assert set(other.tolist()) == {-1}
