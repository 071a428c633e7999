"""Plans for up to 10 billion samples, of which no array is ever made."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.refurbish import Frozen, Refurbish, Standard
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.planning.whole_numbers import scaled
from dalirefurb.testing.plans import listed, pairs

LARGEST = 10**10


@st.composite
def planners(draw, *kinds):
    """Planners of many samples, in batches of some dozen rows."""
    shards = draw(st.sampled_from([1, 1, 2, 8]))
    batch_size = shards * draw(st.integers(4, 12))
    num_samples = draw(st.one_of(st.integers(10_000, 10**6), st.integers(10**9, LARGEST), st.just(LARGEST)))
    arguments = {"batch_size": batch_size, "shards": shards, "seed": draw(st.integers(0, 9))}
    kind = draw(st.sampled_from(kinds))
    if kind is SmartCache:
        window = num_samples // batch_size // 2 * batch_size
        share = draw(st.sampled_from([0.0001, 0.1, 0.7]))
        return SmartCache(num_samples, num_cache_objects=window, replace_percent=share, **arguments)
    arguments["drop_last"] = draw(st.booleans())
    if kind is Refurbish:
        reuse = {"reuse_factor": draw(st.integers(1, 5)), "coverage": draw(st.sampled_from([1.0, 0.3]))}
        return Refurbish(num_samples, **arguments, **reuse)
    return kind(num_samples, **arguments)


def some_batches(draw, planner, count=6):
    """Numbers of neighbouring batches, and of others."""
    first = draw(st.integers(0, len(planner) - 2))
    return sorted(
        {first, first + 1, 0, len(planner) - 1, *draw(st.lists(st.integers(0, len(planner) - 1), max_size=count))}
    )


@given(data=st.data())
def test_batches_share_no_sample_and_stay_in_their_shards(data):
    planner = data.draw(planners(Standard, Refurbish, Frozen, SmartCache))
    epoch = data.draw(st.integers(0, 20))
    plans = [planner.plan(epoch, batch) for batch in some_batches(data.draw, planner)]
    served = np.concatenate([plan.indices for plan in plans])
    assert 0 <= served.min() <= served.max() < planner.num_samples
    assert len(set(served.tolist())) == len(served)
    width = planner.batch_size // planner.shards
    for plan in plans:
        if planner.shards > 1:
            assert planner.owners(plan.indices).tolist() == np.repeat(np.arange(planner.shards), width).tolist()
        assert plan.evict.tolist() == plan.indices[~(plan.miss | plan.keep)].tolist() or isinstance(planner, Frozen)


@given(data=st.data())
def test_where_a_sample_is_served_is_the_inverse_of_which_one_is(data):
    """A version is wanted up to its batch, and after it if it is kept; one of another epoch is not."""
    planner = data.draw(planners(Standard, Refurbish, Frozen, SmartCache))
    epoch = data.draw(st.integers(0, 12))
    for batch in some_batches(data.draw, planner, count=3):
        plan = planner.plan(epoch, batch)
        for position in {0, max(0, batch - 1), batch}:
            assert planner.wanted(epoch, position, plan.indices, plan.version).all()
        if batch + 1 < len(planner):
            later = planner.wanted(epoch, batch + 1, plan.indices, plan.version)
            assert later.tolist() == plan.keep.tolist()
        assert not planner.wanted(epoch, batch, plan.indices, plan.version + 1).any()
        for shard in range(planner.shards):
            mine = planner.wanted(epoch, batch, plan.indices, plan.version, range(shard, shard + 1))
            assert mine.tolist() == (planner.owners(plan.indices) == shard).tolist()


@given(data=st.data())
def test_a_version_is_a_miss_once_and_a_hit_until_it_ends(data):
    """Followed through epochs by the inverse: in which of an epoch's batches a sample is, its version is served."""
    planner = data.draw(planners(Refurbish))
    first = data.draw(st.integers(0, 6))
    batch = data.draw(st.integers(0, len(planner) - 1))
    plan = planner.plan(first, batch)
    for epoch in range(first + 1, first + planner.reuse_factor + 1):
        lives = planner.wanted(epoch, 0, plan.indices, plan.version)
        ends = plan.version + planner.reuse_factor if planner.reuse_factor > 1 else plan.version + 1
        assert not lives[epoch >= ends].any()
        if not planner.drop_last and planner.shards == 1:
            kept = plan.keep & (epoch < first + 2)
            assert lives[kept].all()
            assert not lives[~plan.keep].any()


@given(data=st.data())
def test_batches_miss_within_one_of_their_share_of_the_epoch(data):
    planner = data.draw(planners(Refurbish, SmartCache))
    epoch = data.draw(st.integers(1, 20))
    plans = [planner.plan(epoch, batch) for batch in some_batches(data.draw, planner)]
    misses = [int(plan.miss.sum()) for plan in plans if len(plan.indices) == planner.batch_size]
    assert max(misses) - min(misses) <= 1


@given(data=st.data())
def test_ranks_plan_their_rows_of_the_batch(data):
    planner = data.draw(planners(Standard, Refurbish, Frozen, SmartCache))
    epoch, batch = data.draw(st.integers(0, 9)), data.draw(st.integers(0, len(planner) - 1))
    whole = planner.plan(epoch, batch)
    parts = [
        planner.for_rank(rank=rank, world_size=planner.shards).plan(epoch, batch) for rank in range(planner.shards)
    ]
    for name in ("indices", "version", "miss", "keep", "evict"):
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(whole, name).tolist()


@pytest.mark.parametrize("reuse_factor", [2, 3, 5])
def test_the_peak_is_exact_in_the_large(reuse_factor):
    planner = Refurbish(LARGEST, batch_size=1000, reuse_factor=reuse_factor)
    assert planner.peak_slots == LARGEST - LARGEST // reuse_factor
    for epoch in (3, 4):  # as many are stored at each end of an epoch, and each batch frees what it fills
        for batch in (0, 10**5, len(planner) - 1):
            plan = planner.plan(epoch, batch)
            assert abs(int((plan.miss & plan.keep).sum()) - len(plan.evict)) <= 1


@pytest.mark.parametrize("kind", [Echo, BatchEcho])
@pytest.mark.parametrize(
    "inner", [Standard(LARGEST, batch_size=60, shards=2), Refurbish(10**9, batch_size=7, reuse_factor=3)]
)
def test_echoes_go_on_from_any_batch_as_if_they_had_come_there(kind, inner):
    arguments = {"echoing_factor": 2.3, "buffer_size": 40}
    planner = kind(inner, **arguments)
    for first in (10**6, len(planner) - 90):
        plans = [listed(planner.plan(3, batch)) for batch in range(first, first + 80)]
        for batch in (first + 60, first + 31, first + 79):
            assert listed(kind(inner, **arguments).plan(3, batch)) == plans[batch - first]
        seen = set()
        for batch in range(first, first + 80):
            plan = planner.plan(3, batch)
            assert seen.isdisjoint(rows for rows, miss in zip(pairs(plan), plan.miss.tolist(), strict=True) if miss)
            assert seen.isdisjoint(pairs(plan, "serving"))
            seen |= {*pairs(plan)}


def test_an_evaluation_of_any_size_is_in_order_and_whole():
    planner = Evaluate(LARGEST + 7, batch_size=1000, coverage=0.5)
    ranks = [planner.for_rank(rank=rank, world_size=3) for rank in range(3)]
    ends = []
    for batch in (0, 10**6, len(ranks[0]) - 1):
        rows = np.concatenate([rank.plan(1, batch).indices for rank in ranks])
        assert np.diff(rows).tolist() == [1] * (len(rows) - 1)
        ends += [(int(rows[0]), int(rows[-1]))]
    assert (ends[0][0], ends[-1][1]) == (0, LARGEST + 6)
    assert all(before[1] < after[0] for before, after in pairwise(ends))
    assert planner.peak_slots == round(0.5 * (LARGEST + 7))


PLANNING = """
import re, sys
from pathlib import Path
from dalirefurb.planning.refurbish import Refurbish
planner = Refurbish(10**9, batch_size=8192, reuse_factor=3, shards=8)
mine = planner.for_rank(rank=int(sys.argv[1]), world_size=8)
rows = 0
for epoch in (0, 1, 7):
    for batch in (*range(40), len(mine) - 1):
        rows += len(mine.plan(epoch, batch).indices)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(rows, int(peak[1]) / 1024)
"""


@pytest.mark.parametrize("rank", [0, *(pytest.param(rank, marks=pytest.mark.weekly) for rank in range(1, 7)), 7])
def test_each_of_8_ranks_plans_a_billion_samples_in_less_than_200_mb(rank):
    command = [sys.executable, "-c", PLANNING, str(rank)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout
    rows, peak_mib = told.split()
    assert int(rows) == 3 * 41 * 1024
    assert float(peak_mib) < 200


@pytest.mark.parametrize("numbers", [[0, 2**31], [2**31, 2**31 + 9], [5]])
@pytest.mark.parametrize("factor", [2**30, 2**32, 2**34, 2**40])
def test_products_that_do_not_fit_into_64_bits_are_divided_as_whole_numbers(numbers, factor):
    found = scaled(np.array(numbers), factor, 5, factor // 3)
    assert found.tolist() == [(number * factor + 5) // (factor // 3) for number in numbers]
