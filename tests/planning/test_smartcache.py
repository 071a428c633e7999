import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.testing.plans import Replay, owned
from tests.planners import PERCENTS, digest, joined, smartcaches

WRAPPING = SmartCache(10, batch_size=4, num_cache_objects=8, replace_percent=0.5)  # 2 are not cached, half are 4
WHOLE = SmartCache(10, batch_size=5, num_cache_objects=10, replace_percent=0.3)
SHARDED = SmartCache(65, batch_size=8, num_cache_objects=48, replace_percent=0.4, shards=4)  # 5 of 12 are 5, 4, 4, 4
NEARLY_ALL = SmartCache(65, batch_size=8, num_cache_objects=64, replace_percent=0.1, shards=4)  # 1, 0, 0, 0 replaced
ROUNDS = range(12)


def versions(planner, epoch):
    """The version of each sample of a round."""
    indices = joined(planner, epoch, "indices").tolist()
    return dict(zip(indices, joined(planner, epoch, "version").tolist(), strict=True))


@given(planner=smartcaches())
@example(planner=WRAPPING)
@example(planner=WHOLE)
def test_a_round_serves_a_window_that_never_repeats_an_index(planner):
    for epoch in ROUNDS:
        sizes = [len(plan.indices) for plan in planner.epoch(epoch)]
        assert len(sizes) == len(planner)
        assert set(sizes[:-1]) <= {planner.batch_size}
        indices = joined(planner, epoch, "indices").tolist()
        assert len(indices) == len(set(indices)) == planner.num_cache_objects
        assert set(indices) <= set(range(planner.num_samples))


@given(planner=smartcaches())
@example(planner=WRAPPING)
@example(planner=WHOLE)
@example(planner=SHARDED)
@example(planner=NEARLY_ALL)
def test_a_round_replaces_the_ceiling_of_each_shards_percentage_by_samples_that_are_not_cached(planner):
    window = planner.num_cache_objects // planner.shards
    share = math.ceil(Fraction(str(planner.replace_percent)) * window)
    replaced = [min(share, samples - window) for samples in planner.shard_samples]
    assert planner.replaced == sum(replaced)
    rounds = [versions(planner, epoch) for epoch in ROUNDS]
    for epoch, (before, after) in enumerate(pairwise(rounds), 1):
        entered = after.keys() - before.keys()
        assert (
            np.bincount(planner.owners(np.array([*entered], np.int64)), minlength=planner.shards).tolist() == replaced
        )
        assert {after[index] for index in entered} <= {epoch}
        assert all(after[index] == before[index] for index in after.keys() & before.keys())


@pytest.mark.parametrize("percent", [0, 0.01, 0.25, 1])
def test_a_window_that_holds_all_samples_computes_each_of_them_once(percent):
    planner = SmartCache(61, batch_size=1, num_cache_objects=61, replace_percent=percent)
    assert [joined(planner, epoch, "miss").sum() for epoch in range(4)] == [61, 0, 0, 0]
    assert planner.replaced == 0
    assert planner.peak_slots == 61


@pytest.mark.parametrize(("size", "replaced"), [(60, 1), (50, 11), (49, 12), (48, 12), (40, 10)])
def test_no_more_samples_are_replaced_than_there_are_outside_the_window(size, replaced):
    """A quarter of the window, rounded up, or the others of 61, if these are fewer."""
    planner = SmartCache(61, batch_size=1, num_cache_objects=size, replace_percent=0.25)
    assert planner.replaced == replaced
    assert sum(joined(planner, epoch, "miss").sum() for epoch in range(4)) == size + 3 * replaced


@given(planner=smartcaches(percents=PERCENTS[1:]))
@example(planner=WRAPPING)
@example(planner=SHARDED)
@example(planner=NEARLY_ALL)
def test_over_enough_rounds_every_sample_of_a_shard_is_seen_equally_often_within_one_stay(planner):
    window = planner.num_cache_objects // planner.shards
    share = math.ceil(Fraction(str(planner.replace_percent)) * window)
    rounds = -(-(max(planner.shard_samples) - window) // share) + 1
    entered = np.zeros(planner.num_samples, np.int64)
    for epoch in range(3 * rounds):
        indices = joined(planner, epoch, "indices")
        entered[indices[joined(planner, epoch, "miss")]] += 1
        if epoch == rounds - 1:
            assert entered.min() == 1
        assert all(np.ptp(entered[owned(planner, shard)]) <= 1 for shard in range(planner.shards))


@given(planner=smartcaches())
def test_the_reported_coverage_is_the_share_that_was_seen(planner):
    seen = set()
    assert planner.coverage_after(0) == 0
    for epoch in ROUNDS:
        seen |= {*versions(planner, epoch)}
        assert planner.coverage_after(epoch + 1) == len(seen) / planner.num_samples


@given(planner=smartcaches())
@example(planner=WRAPPING)
@example(planner=WHOLE)
@example(planner=SHARDED)
@example(planner=NEARLY_ALL)
def test_the_peak_of_one_shard_is_reached_and_the_store_holds_what_stays(planner):
    replay = Replay()
    for epoch in ROUNDS:
        for plan in planner.epoch(epoch):
            assert plan.miss.tolist() == (plan.version == epoch).tolist()
            assert {*plan.serving.tolist()} == {epoch}
            replay.carry_out(plan)
        after = versions(planner, epoch + 1)
        assert len(replay.stored) == planner.num_cache_objects - planner.replaced
        assert all(after[index] == version for index, version in replay.stored.items())
    stays = planner.num_cache_objects - planner.replaced
    assert stays <= replay.peak <= planner.peak_slots <= planner.num_cache_objects
    assert planner.shards > 1 or planner.peak_slots == stays


def test_several_shards_take_few_slots_more_than_what_stays():
    planner = SmartCache(1 << 20, batch_size=256, num_cache_objects=1 << 16, replace_percent=0.1, shards=8)
    assert planner.peak_slots - (planner.num_cache_objects - planner.replaced) <= 8 * 15


@given(planner=smartcaches())
def test_batches_miss_within_one_of_their_share(planner):
    for epoch in ROUNDS:
        plans = list(planner.epoch(epoch))
        misses = sum(plan.miss.sum() for plan in plans)
        for plan in plans:
            assert abs(plan.miss.sum() - misses * len(plan.indices) / planner.num_cache_objects) < 1


def test_for_validation_the_first_window_stays():
    planner = SmartCache(40, batch_size=5, num_cache_objects=20, replace_percent=0)
    first = versions(planner, 0)
    for epoch in (1, 2, 1000):
        assert versions(planner, epoch) == first
        assert not joined(planner, epoch, "miss").any()
        assert joined(planner, epoch, "keep").all()
    assert planner.peak_slots == 20
    assert planner.coverage_after(1000) == 0.5


@pytest.mark.parametrize(
    ("size", "percent", "replaced"),
    [(25, 0.28, 7), (100, 0.07, 7), (50, 0.1, 5), (50, 0.11, 6), (3, 0.01, 1), (7, 1, 7)],
)
def test_the_ceiling_is_taken_of_exact_decimals(size, percent, replaced):
    """In floats 25 x 0.28 and 100 x 0.07 exceed 7."""
    assert SmartCache(200, batch_size=1, num_cache_objects=size, replace_percent=percent).replaced == replaced


def test_the_order_within_a_round_and_the_running_order_depend_on_the_seed():
    orders = {
        tuple(joined(planner, epoch, "indices").tolist())
        for seed in range(4)
        for planner in [SmartCache(60, batch_size=6, num_cache_objects=30, replace_percent=0, seed=seed)]
        for epoch in range(8)
    }
    assert len(orders) == 32


@pytest.mark.parametrize("shards", [1, 4])
def test_a_window_that_is_replaced_as_a_whole_needs_no_slots(shards):
    assert SmartCache(64, batch_size=8, num_cache_objects=32, replace_percent=1, shards=shards).peak_slots == 0


def test_a_miss_is_anywhere_in_its_batch_equally_often():
    planner = SmartCache(400, batch_size=8, num_cache_objects=80, replace_percent=0.25)
    counts = sum(plan.miss.astype(int) for epoch in range(1, 201) for plan in planner.epoch(epoch))
    assert counts.sum() == 4000
    assert ((counts - 500) ** 2 / 500).sum() < 24.3  # 0.1 % of draws exceed it, 7 degrees of freedom


def test_a_window_that_is_no_multiple_of_the_batch_size_is_warned_about_where_it_is_made():
    with pytest.warns(
        UserWarning, match="num_cache_objects=50 is no multiple of batch_size=8, so the last batch of a "
    ) as seen:
        SmartCache(100, batch_size=8, num_cache_objects=50, replace_percent=0.1)
    assert str(seen[0].message).endswith("round has 2 rows: pass num_cache_objects=48")
    assert seen[0].filename == __file__


def test_a_fingerprint_is_json_and_names_every_argument():
    planner = SmartCache(100, batch_size=10, num_cache_objects=np.int64(50), replace_percent=1, seed=3)
    assert json.loads(json.dumps(planner.fingerprint())) == {
        "planner": "SmartCache",
        "version": 3,
        "num_samples": 100,
        "batch_size": 10,
        "seed": 3,
        "shards": 1,
        "drop_last": False,
        "num_cache_objects": 50,
        "replace_percent": 1.0,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"num_cache_objects": 101},
            "num_cache_objects must be an int in 10..100, got 101: a window fills a batch, and holds no sample twice",
        ),
        ({"num_cache_objects": 9}, "num_cache_objects must be an int in 10..100, got 9"),
        ({"num_cache_objects": 0.5}, "num_cache_objects must be an int in 10..100, got 0.5"),
        ({"replace_percent": 10}, "replace_percent must be a number in 0..1, got 10: pass 0.1 for 10 %"),
        ({"replace_percent": -0.1}, "replace_percent must be a number in 0..1, got -0.1"),
        ({"replace_percent": math.nan}, "replace_percent must be a number in 0..1, got nan"),
        ({"replace_percent": True}, "replace_percent must be a number in 0..1, got True"),
        (
            {"shards": 2, "num_cache_objects": 55},
            "num_cache_objects must be a multiple of batch_size=10 with several shards, got 55: pass 50",
        ),
        ({"drop_last": True}, "drop_last must be False, since a round serves the whole window, got True: leave it out"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_with_its_value_and_a_remedy(arguments, message):
    with pytest.raises(ConfigurationError) as refusal:
        SmartCache(100, **{"batch_size": 10, "num_cache_objects": 50, "replace_percent": 0.1, **arguments})
    assert str(refusal.value).startswith(message)


def test_a_number_of_rounds_that_is_no_count_is_refused():
    with pytest.raises(ConfigurationError, match="rounds must be an int of at least 0, got -1: pass the number of"):
        WRAPPING.coverage_after(-1)


def test_plans_are_those_on_record():
    """A change here is a breaking change."""
    small = SmartCache(7, batch_size=2, num_cache_objects=4, replace_percent=0.3, seed=7)
    names = ("indices", "version", "miss", "keep", "evict")
    assert [{name: getattr(plan, name).tolist() for name in names} for plan in small.epoch(2)] == [
        {"indices": [5, 2], "version": [2, 1], "miss": [True, False], "keep": [True, False], "evict": [2]},
        {"indices": [4, 6], "version": [2, 1], "miss": [True, False], "keep": [True, False], "evict": [6]},
    ]
    sharded = SmartCache(65, batch_size=8, num_cache_objects=40, replace_percent=0.4, shards=4)
    assert digest(sharded, (0, 1, 40)) == "dbdaf3f2c7ca5658bd2a86d1a0e1a98d382a48da8097309f3f1f0a91ae00d087"
    assert digest(SHARDED, (0, 1, 40)) == "cb3dbebfdc2f3b938a21c36c838131101e078de17f3f78529c242f43d3c30b0d"
    large = SmartCache(5003, batch_size=64, num_cache_objects=1024, replace_percent=0.1, seed=1)
    assert digest(large, (0, 1, 40)) == "02418e073bc55c3a54a44157b90c56a2df854601e76479efef86ac3459b1d6a6"
