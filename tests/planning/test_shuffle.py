import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb.planning.shuffle import BatchOrder, BatchShuffler, PlainShuffler, share_misses, spread

CHI_SQUARE_29 = 58.3  # 0.1 % of draws exceed it, 29 degrees of freedom


@st.composite
def epochs(draw):
    """Arguments of `order`: rows per shard, miss and keep."""
    shards = draw(st.integers(1, 4))
    width = draw(st.integers(1, 5))
    size = width * draw(st.integers(1, 8))
    if shards == 1:
        size += draw(st.integers(0, width - 1))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    positions = random.permutation(shards * size)
    rows = [positions[positions % shards == shard] for shard in range(shards)]
    miss = random.random(shards * size) < draw(st.sampled_from([0, 0.3, 0.9, 1]))
    keep = random.random(shards * size) < draw(st.sampled_from([0, 0.5, 1]))
    return rows, miss, keep, shards * width


def arrange(shuffler: BatchOrder, arguments, *, epoch: int = 0):
    rows, miss, keep, batch_size = arguments
    return shuffler.order(rows, miss, keep, batch_size=batch_size, seed=1, epoch=epoch)


def batches(array, batch_size):
    return [array[start : start + batch_size] for start in range(0, len(array), batch_size)]


@pytest.mark.parametrize("shuffler", [BatchShuffler(), PlainShuffler()])
@given(arguments=epochs())
def test_every_row_is_placed_once_in_the_slice_of_its_shard(shuffler, arguments):
    rows, _, _, batch_size = arguments
    order = arrange(shuffler, arguments)
    assert sorted(order) == sorted(np.concatenate(rows))
    width = batch_size // len(rows)
    assert all(np.arange(len(order)) // width % len(rows) == order % len(rows))


@given(arguments=epochs())
def test_every_run_of_shards_in_a_batch_misses_within_one_of_its_share(arguments):
    rows, miss, _, batch_size = arguments
    order = arrange(BatchShuffler(), arguments)
    shards, width = len(rows), batch_size // len(rows)
    owned = [miss[positions].sum() for positions in rows]
    for batch in batches(order, batch_size):
        for first in range(shards):
            for last in range(first, shards):
                cut = batch[first * width : (last + 1) * width]
                share = sum(owned[first : last + 1]) * len(batch) / len(order)
                assert abs(miss[cut].sum() - share) < 1


@given(arguments=epochs())
def test_with_one_shard_stored_and_evicted_versions_are_spread_evenly(arguments):
    rows, miss, keep, batch_size = arguments
    if len(rows) > 1:
        return
    order = arrange(BatchShuffler(), arguments)
    for chosen in (miss & keep, ~miss & ~keep):
        done = np.cumsum([chosen[batch].sum() for batch in batches(order, batch_size)])
        share = np.minimum(np.arange(1, len(done) + 1) * batch_size, len(order)) / len(order)
        assert all(abs(done - share * chosen[order].sum()) < 2)


@pytest.mark.parametrize("shards", [1, 3])
def test_the_place_in_a_batch_says_nothing_about_hit_or_miss_or_keep(shards):
    size, width = 600, 30
    miss = np.arange(size) % 7 < 2
    keep = np.arange(size) % 11 < 6
    rows = [np.arange(shard, size, shards) for shard in range(shards)]
    places = np.zeros((3, width))
    for epoch in range(60):
        order = arrange(BatchShuffler(), (rows, miss, keep, width), epoch=epoch).reshape(-1, width)
        places += [miss[order].sum(axis=0), keep[order].sum(axis=0), (order // shards < 100).sum(axis=0)]
    mean = places.mean(axis=1, keepdims=True)
    assert all(((places - mean) ** 2 / mean).sum(axis=1) < CHI_SQUARE_29)


def test_the_plain_shuffler_varies_more_in_misses_per_batch():
    size, width = 6000, 60
    rows = [np.random.default_rng(0).permutation(size)]
    miss, keep = np.arange(size) % 3 == 0, np.ones(size, bool)
    misses = {
        type(shuffler): [miss[batch].sum() for batch in batches(arrange(shuffler, (rows, miss, keep, width)), width)]
        for shuffler in (BatchShuffler(), PlainShuffler())
    }
    assert np.ptp(misses[BatchShuffler]) <= 1
    assert np.ptp(misses[PlainShuffler]) > 10


@given(st.integers(0, 30), st.integers(0, 30))
def test_every_prefix_of_a_spread_holds_its_share_rounded_down(chosen, others):
    mixed = spread(np.arange(chosen), chosen + np.arange(others))
    assert sorted(mixed) == list(range(chosen + others))
    for prefix in range(1, chosen + others + 1):
        assert (mixed[:prefix] < chosen).sum() == prefix * chosen // (chosen + others)


@given(st.data())
def test_shares_of_misses_sum_to_what_each_shard_has_and_fit_into_cells(data):
    shards, width, count = data.draw(st.tuples(st.integers(2, 5), st.integers(1, 6), st.integers(1, 40)))
    misses = data.draw(st.lists(st.integers(0, width * count), min_size=shards, max_size=shards))
    shares = share_misses(misses, num_rows=count * shards * width, batch_size=shards * width)
    assert shares.shape == (count, shards)
    assert shares.sum(axis=0).tolist() == misses
    assert shares.min() >= 0
    assert shares.max() <= width


def test_misses_of_a_shard_stay_within_twice_the_discrepancy_of_van_der_corput():
    for count in (1, 2, 3, 7, 12, 21, 32, 43):
        for extra in range(1, count):
            for before in range(count):
                shares = share_misses([before, extra], num_rows=2 * count, batch_size=2)[:, 1]
                lead = np.cumsum(shares) - np.arange(1, count + 1) * extra / count
                assert abs(lead).max() <= 2 * (math.log2(count) / 3 + 1)
