import json
import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import groupby

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.echo_stream import EchoStream
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import RankPlanner
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.rng import key, numbered_keys
from dalirefurb.testing.plans import Replay, listed
from tests.planners import FEWER, batch_echoes, digest, example_echoes, inner_planners, joined

EPOCHS = range(7)


def repeats(units, total, *, seed, epoch):
    """How often each of `units` things is repeated, of `total` repeats in all."""
    return np.bincount(EchoStream(units, total, 1, seed=seed, epoch=epoch).leaving(0, total).units, minlength=units)


def leave_buffer(size, buffer_size, *, seed, epoch):
    """When each of `size` things leaves the buffer, if none is repeated."""
    return np.argsort(EchoStream(size, size, max(1, buffer_size), seed=seed, epoch=epoch).leaving(0, size).units)


def echoes():
    return st.one_of(example_echoes(), batch_echoes())


FULL_BUFFER = Echo(Standard(64, batch_size=1), echoing_factor=2, buffer_size=5)
REUSING = Echo(Refurbish(60, batch_size=6, reuse_factor=3), echoing_factor=2.5, buffer_size=12)
SHARDED = Echo(Refurbish(61, batch_size=8, reuse_factor=2, shards=4), echoing_factor=1.5, buffer_size=9)
BATCHES = BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2), echoing_factor=2.3)
SHUFFLED = BatchEcho(Refurbish(61, batch_size=8, reuse_factor=2, shards=4), echoing_factor=2.3, buffer_size=5)


def pairs(planner, epoch, name="version"):
    """Index and version, or serving, of every row of an epoch."""
    return list(zip(joined(planner, epoch, "indices").tolist(), joined(planner, epoch, name).tolist(), strict=True))


@FEWER
@given(planner=example_echoes())
@example(planner=Echo(Standard(100, batch_size=10), echoing_factor=1.15, buffer_size=0))  # 114.99... in floats
def test_an_epoch_has_the_echoing_factors_share_of_rows_in_len_batches(planner):
    share = Fraction(str(planner.echoing_factor)) * planner.fresh_samples
    unit = planner.batch_size if planner.drop_last or planner.shards > 1 else 1
    for epoch in EPOCHS:
        sizes = [len(plan.indices) for plan in planner.epoch(epoch)]
        assert sum(sizes) == math.floor(share / unit) * unit
        assert len(sizes) == len(planner)
        assert set(sizes[:-1]) <= {planner.batch_size}
        assert 0 < sizes[-1] <= planner.batch_size


@FEWER
@given(planner=echoes())
def test_fresh_samples_are_the_rows_of_the_inner_planner(planner):
    for epoch in EPOCHS:
        inner = pairs(planner.planner, epoch)
        assert planner.fresh_samples == len(inner)
        assert set(pairs(planner, epoch)) == set(inner)
        assert joined(planner, epoch, "miss").sum() == joined(planner.planner, epoch, "miss").sum()


def test_over_the_standard_planner_one_row_of_each_sample_is_a_miss():
    for planner in (
        Echo(Standard(50, batch_size=8), echoing_factor=2.7, buffer_size=20),
        BatchEcho(Standard(50, batch_size=8), echoing_factor=2.7),
    ):
        assert planner.fresh_samples == 50
        for epoch in EPOCHS:
            misses = joined(planner, epoch, "indices")[joined(planner, epoch, "miss")]
            assert sorted(misses) == list(range(50))


@FEWER
@given(planner=echoes())
def test_a_row_is_served_floor_or_ceil_of_the_echoing_factor_times(planner):
    fewest, most = math.floor(planner.echoing_factor), math.ceil(planner.echoing_factor)
    for epoch in EPOCHS:
        counts = Counter(pairs(planner, epoch))
        assert fewest <= min(counts.values()) <= max(counts.values()) <= most


@FEWER
@given(planner=echoes())
@example(planner=REUSING)
@example(planner=BATCHES)
@example(planner=SHUFFLED)
def test_between_epochs_the_store_holds_what_the_inner_planner_leaves_there(planner):
    echoed, inner = Replay(), Replay()
    for epoch in EPOCHS:
        for plan in planner.epoch(epoch):
            assert {*plan.evict.tolist()} <= {*plan.indices.tolist()}
            echoed.carry_out(plan)
        for plan in planner.planner.epoch(epoch):
            inner.carry_out(plan)
        assert echoed.stored == inner.stored


@FEWER
@given(planner=inner_planners())
def test_an_echoing_factor_of_1_without_a_buffer_is_the_inner_planner(planner):
    for echo in (
        Echo(planner, echoing_factor=1, buffer_size=0),
        Echo(planner, echoing_factor=1, buffer_size=1),
        BatchEcho(planner, echoing_factor=1),
        BatchEcho(planner, echoing_factor=1, buffer_size=0),
    ):
        for epoch in EPOCHS:
            for expected, plan in zip(planner.epoch(epoch), echo.epoch(epoch), strict=True):
                assert {**listed(plan), "evict": sorted(plan.evict)} == {
                    **listed(expected),
                    "evict": sorted(expected.evict),
                }
        assert echo.peak_slots >= planner.peak_slots
        assert (echo.peak_slots == 0) == (planner.peak_slots == 0)


@FEWER
@given(planner=example_echoes())
@example(planner=SHARDED)
def test_without_a_buffer_a_shards_repeats_follow_each_other_in_the_inner_order(planner):
    planner = replace(planner, buffer_size=0)
    for epoch in EPOCHS:
        for rank in range(planner.shards):
            echo, inner = (
                RankPlanner(each, rank=rank, world_size=planner.shards) for each in (planner, planner.planner)
            )
            assert [pair for pair, _ in groupby(pairs(echo, epoch))] == pairs(inner, epoch)


def test_each_shard_shuffles_in_its_part_of_the_buffer():
    def distance(buffer_size):
        """How many places early a row leaves, at most, of the rows of a shard."""
        planner = Echo(Standard(800, batch_size=16, shards=4), echoing_factor=1, buffer_size=buffer_size)
        early = []
        for rank in range(4):
            order, inner = (pairs(RankPlanner(each, rank=rank, world_size=4), 0) for each in (planner, planner.planner))
            early.append(max(inner.index(pair) - place for place, pair in enumerate(order)))
        return early

    assert distance(7) == [0] * 4
    assert all(5 < early < 10 for early in distance(40))


def test_shards_repeat_and_shuffle_independently():
    planner = Echo(Standard(800, batch_size=16, shards=4), echoing_factor=1.5, buffer_size=80)
    orders = set()
    for rank in range(4):
        echo, inner = (pairs(RankPlanner(each, rank=rank, world_size=4), 0) for each in (planner, planner.planner))
        orders.add(tuple(inner.index(pair) for pair in echo))
    assert len(orders) == 4


@FEWER
@given(planner=batch_echoes())
def test_without_a_buffer_batch_echoing_repeats_whole_batches_in_order(planner):
    planner = replace(planner, buffer_size=min(planner.buffer_size, 1))
    for epoch in EPOCHS:
        plans = planner.epoch(epoch)
        counts = repeats(len(planner.planner), len(planner), seed=planner.seed, epoch=epoch)
        for inner, count in zip(planner.planner.epoch(epoch), counts.tolist(), strict=True):
            for repeat in range(count):
                plan = next(plans)
                assert plan.indices.tolist() == inner.indices.tolist()
                assert plan.version.tolist() == inner.version.tolist()
                assert plan.serving.tolist() == (inner.serving * math.ceil(planner.echoing_factor) + repeat).tolist()
        assert next(plans, None) is None
        assert len(planner) == math.floor(Fraction(str(planner.echoing_factor)) * len(planner.planner))


@FEWER
@given(planner=batch_echoes())
@example(planner=BatchEcho(Standard(61, batch_size=8), echoing_factor=2.5))
@example(planner=BatchEcho(Standard(5, batch_size=5), echoing_factor=2.5))
def test_smaller_batches_count_as_often_as_the_first_epoch_repeats_them(planner):
    assert planner.rows_per_epoch == Fresh(planner).rows_per_epoch == len(joined(planner, 0, "indices"))


@FEWER
@given(planner=batch_echoes())
@example(planner=SHUFFLED)
def test_a_buffer_shuffles_whole_batches_and_changes_nothing_else_in_them(planner):
    in_order = replace(planner, buffer_size=1)
    for epoch in EPOCHS:
        shuffled, expected = ([listed(plan) for plan in each.epoch(epoch)] for each in (planner, in_order))
        leaves = leave_buffer(len(expected), planner.buffer_size, seed=planner.seed, epoch=epoch)
        for plan, place in zip(expected, leaves.tolist(), strict=True):
            assert all(shuffled[place][name] == plan[name] for name in ("indices", "version", "serving"))


def test_repeats_of_a_batch_are_farther_apart_the_larger_the_buffer():
    apart = []
    for buffer_size in (1, 8, 128):
        planner = BatchEcho(Standard(400, batch_size=1), echoing_factor=2, buffer_size=buffer_size)
        first, second = np.argsort(joined(planner, 0, "indices"), kind="stable").reshape(400, 2).T
        apart.append((second - first).mean())
    assert apart[0] == 1
    assert apart == sorted(apart)
    assert apart[-1] > 64


@pytest.mark.parametrize("kind", [Echo, BatchEcho])
def test_epochs_and_seeds_have_orders_of_their_own(kind):
    orders = {
        tuple(joined(echo, epoch, "indices").tolist())
        for seed in range(4)
        for epoch in range(12)
        for echo in [kind(Standard(50, batch_size=5, seed=seed), echoing_factor=1.5, buffer_size=10)]
    }
    assert len(orders) == 48


def test_whole_batches_leave_a_buffer_in_another_order_every_epoch():
    """Of an inner planner that has but one order."""

    class Fixed(Standard):
        def plan_part(self, epoch, batch, shards):
            plan = super().plan_part(0, batch, shards)
            return replace(plan, serving=plan.serving + epoch)

    echo = BatchEcho(Fixed(50, batch_size=5), echoing_factor=2, buffer_size=4)
    assert len({tuple(joined(echo, epoch, "indices").tolist()) for epoch in range(20)}) == 20


@given(units=st.integers(1, 50), extra=st.integers(0, 120), epoch=st.integers(0, 9))
def test_repeats_sum_to_the_total_and_are_the_floor_or_ceil_of_their_mean(units, extra, epoch):
    counts = repeats(units, units + extra, seed=3, epoch=epoch)
    mean = Fraction(units + extra, units)
    assert len(counts) == units
    assert counts.sum() == units + extra
    assert set(counts.tolist()) <= {math.floor(mean), math.ceil(mean)}


def test_every_row_is_repeated_as_often_as_every_other_in_the_long_run():
    counts = sum(repeats(8, 11, seed=0, epoch=epoch) - 1 for epoch in range(800))
    deviation = math.sqrt(800 * 3 / 8 * 5 / 8)
    assert abs(counts - 300).max() < 4 * deviation


@given(size=st.integers(1, 60), buffer_size=st.integers(0, 70), epoch=st.integers(0, 5))
def test_rows_leave_the_buffer_as_they_leave_a_list_that_is_refilled(size, buffer_size, epoch):
    leaves = leave_buffer(size, buffer_size, seed=1, epoch=epoch)
    places = min(max(1, buffer_size), size)
    buffer, left = list(range(places)), []
    drawn_keys = numbered_keys(np.arange(size - places, dtype=np.uint64), key(1, "echo buffer", epoch))
    for row, drawn in enumerate(drawn_keys.tolist(), places):
        left.append(buffer[drawn % places])
        buffer[drawn % places] = row
    assert np.argsort(leaves)[: size - places].tolist() == left
    assert sorted(np.argsort(leaves)[size - places :]) == sorted(buffer)
    assert sorted(leaves) == list(range(size))


@given(units=st.integers(1, 40), extra=st.integers(0, 60), buffer_size=st.integers(1, 50), data=st.data())
def test_what_leaves_is_the_same_from_any_place_of_the_stream_on(units, extra, buffer_size, data):
    """With the places of first and last repeats, as far as they lie among those asked for."""
    total = units + extra
    whole = EchoStream(units, total, buffer_size, seed=1, epoch=2).leaving(0, total)
    stream = EchoStream(units, total, buffer_size, seed=1, epoch=2)
    for _ in range(4):
        start = data.draw(st.integers(0, total - 1))
        stop = data.draw(st.integers(start + 1, total))
        part = stream.leaving(start, stop)
        assert part.units.tolist() == whole.units[start:stop].tolist()
        assert part.repeats.tolist() == whole.repeats[start:stop].tolist()
        first, last = whole.first[start:stop], whole.last[start:stop]
        assert np.minimum(part.last, stop).tolist() == np.minimum(last, stop).tolist()
        assert np.maximum(part.first, start - 1).tolist() == np.maximum(first, start - 1).tolist()
        read, begun = stream.entered(start)
        left = Counter(whole.units[:start].tolist())
        counts = np.bincount(whole.units, minlength=units)
        entered = [unit for unit in range(units) if counts[:unit].sum() < min(start + buffer_size, total)]
        assert read == len(entered)
        assert begun.tolist() == [unit for unit in entered if left[unit] < counts[unit]]


def test_a_buffer_that_holds_the_epoch_shuffles_it_evenly():
    places = np.zeros((6, 6))
    for epoch in range(900):
        places[np.arange(6), leave_buffer(6, 6, seed=0, epoch=epoch)] += 1
    assert ((places - 150) ** 2 / 150).sum() < 52.6  # 0.1 % of draws exceed it, 25 degrees of freedom


def test_two_repeats_meet_in_a_batch_less_often_the_larger_the_buffer():
    met = []
    for buffer_size in (0, 64, 256, 1024):
        planner = Echo(Standard(4096, batch_size=64), echoing_factor=2, buffer_size=buffer_size)
        met.append(sum(64 - len(set(plan.indices.tolist())) for plan in planner.epoch(0)) / 4096)
    assert met[0] == 1
    assert met == sorted(met, reverse=True)
    assert met[-1] < 0.1


def test_echoing_needs_no_slot_where_nothing_is_repeated_or_reused():
    assert Echo(Standard(50, batch_size=5), echoing_factor=1, buffer_size=20).peak_slots == 0
    assert BatchEcho(Standard(50, batch_size=5), echoing_factor=1).peak_slots == 0
    assert BatchEcho(Standard(50, batch_size=5), echoing_factor=1, buffer_size=7).peak_slots == 0


@pytest.mark.parametrize(
    ("planner", "peak"),
    [
        (FULL_BUFFER, 5),
        (BatchEcho(Standard(60, batch_size=3), echoing_factor=2), 3),
        (BatchEcho(Standard(60, batch_size=3), echoing_factor=2, buffer_size=5), 15),
        (BatchEcho(Refurbish(60, batch_size=3, reuse_factor=2), echoing_factor=1, buffer_size=5), 30 + 4 * 3),
        (BatchEcho(Standard(60, batch_size=3), echoing_factor=2, buffer_size=99), 60),
        (BatchEcho(Standard(60, batch_size=6, shards=2), echoing_factor=2), 6),
        (BatchEcho(Standard(60, batch_size=6, shards=2), echoing_factor=2, buffer_size=3), 18),
    ],
)
def test_the_peak_is_not_exceeded_and_nearly_reached(planner, peak):
    replay = Replay()
    for epoch in range(20):
        for plan in planner.epoch(epoch):
            replay.carry_out(plan)
    assert planner.peak_slots == peak
    assert 0.8 * peak <= replay.peak <= peak


ROWS = Echo(Standard(8192, batch_size=1024), echoing_factor=4, buffer_size=4096)
LONG_BATCHES = BatchEcho(Standard(65536, batch_size=1024), echoing_factor=2, buffer_size=4)


@pytest.mark.parametrize(
    ("planner", "batches"),
    [(ROWS, range(len(ROWS))), (ROWS, range(len(ROWS))[::-1]), (LONG_BATCHES, range(len(LONG_BATCHES)))],
    ids=["rows", "rows, going back", "batches"],
)
def test_an_epoch_takes_no_more_memory_than_what_is_buffered(planner, batches):
    """Rows, or batches, that have left for the last time are let go of, and what was buffered before a jump."""
    tracemalloc.start()
    try:
        for number, batch in enumerate(batches):
            planner.plan(0, batch)
            if number == len(batches) // 4:
                before, _ = tracemalloc.get_traced_memory()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 300_000


def test_a_fingerprint_is_json_and_holds_the_inner_planners():
    inner = Refurbish(9, batch_size=6, reuse_factor=3, seed=4)
    echo = Echo(inner, echoing_factor=2, buffer_size=np.int64(8))
    mine = {"version": 2, "num_samples": 9, "batch_size": 6, "seed": 4, "shards": 1, "drop_last": False}
    assert json.loads(json.dumps(echo.fingerprint())) == {
        **mine,
        "planner": "Echo",
        "echoing_factor": 2.0,
        "buffer_size": 8,
        "inner": inner.fingerprint(),
    }
    batch_echo = BatchEcho(inner, echoing_factor=1.5)
    assert json.loads(json.dumps(batch_echo.fingerprint())) == {
        **mine,
        "planner": "BatchEcho",
        "echoing_factor": 1.5,
        "inner": inner.fingerprint(),
    }
    assert replace(batch_echo, buffer_size=0).fingerprint() == batch_echo.fingerprint()
    assert replace(batch_echo, buffer_size=2).fingerprint() == {**batch_echo.fingerprint(), "buffer_size": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"echoing_factor": 0.5}, "echoing_factor must be a number of at least 1, got 0.5: pass the mean number of"),
        ({"echoing_factor": math.nan}, "echoing_factor must be a number of at least 1, got nan"),
        ({"echoing_factor": math.inf}, "echoing_factor must be a number of at least 1, got inf"),
        ({"echoing_factor": True}, "echoing_factor must be a number of at least 1, got True"),
        ({"echoing_factor": "2"}, "echoing_factor must be a number of at least 1, got '2'"),
        (
            {"buffer_size": -1},
            "buffer_size must be an int of at least 0, got -1: pass the ",
        ),
        ({"buffer_size": 1.5}, "buffer_size must be an int of at least 0, got 1.5"),
        ({"planner": 8}, "planner must be a planner, got 8: pass Standard(...) or Refurbish(...)"),
        (
            {"planner": BATCHES},
            "planner must be one that serves no sample twice in an epoch, got BatchEcho(planner=Refurbish(",
        ),
        (
            {"planner": AutoAssist(Standard(8, batch_size=4), lag=2)},
            "planner must be one that knows its batches before an epoch begins, not by losses that come meanwhile, "
            "got AutoAssist(planner=Standard(",
        ),
    ],
)
def test_an_argument_that_cannot_work_is_refused_with_its_value_and_a_remedy(arguments, message):
    arguments = {"planner": Standard(8, batch_size=4), "echoing_factor": 2, "buffer_size": 8, **arguments}
    for kind in (Echo, BatchEcho):
        with pytest.raises(ConfigurationError) as refusal:
            kind(**arguments)
        assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("kind", [Echo, BatchEcho])
def test_of_an_assistants_choice_the_other_order_is_proposed(kind):
    inner = Standard(8, batch_size=4)
    with pytest.raises(ConfigurationError) as refusal:
        kind(AutoAssist(inner, lag=2), echoing_factor=2, buffer_size=4)
    assert str(refusal.value).endswith("pass AutoAssist(Echo(planner, ...), lag=...), which chooses among repeats")
    assert len(AutoAssist(Echo(inner, echoing_factor=2, buffer_size=4), lag=2)) == 4


def test_a_buffer_is_refused_in_its_own_unit():
    inner = Standard(8, batch_size=4)
    with pytest.raises(ConfigurationError, match="pass the rows to shuffle among, 0 for none"):
        Echo(inner, echoing_factor=2, buffer_size=-1)
    with pytest.raises(ConfigurationError, match="pass the batches to shuffle among, 1 for none"):
        BatchEcho(inner, echoing_factor=2, buffer_size=-1)


def test_plans_are_those_on_record():
    """A change here is a breaking change."""
    small = Echo(Standard(4, batch_size=3, seed=7), echoing_factor=1.5, buffer_size=2)
    names = ("indices", "serving", "miss", "keep", "evict")
    assert [{name: getattr(plan, name).tolist() for name in names} for plan in small.epoch(2)] == [
        {
            "indices": [0, 0, 1],
            "serving": [5, 4, 4],
            "miss": [True, False, True],
            "keep": [False, False, True],
            "evict": [],
        },
        {
            "indices": [1, 2, 3],
            "serving": [5, 4, 4],
            "miss": [False, True, True],
            "keep": [False, False, False],
            "evict": [1],
        },
    ]
    assert digest(SHARDED, (0, 1, 5)) == "44ccfa324176afebcb94527de894525c30cb3e98450e9319337689659aa54d77"
    reusing = Echo(Refurbish(5003, batch_size=64, reuse_factor=3, seed=1), echoing_factor=2.3, buffer_size=256)
    assert digest(reusing, (0, 1, 5)) == "3f8ac60e6504cd9c2451e0236a1c20da51fad8dc69b13aa4752508d38ad21622"
    assert (
        digest(BatchEcho(reusing.planner, echoing_factor=2.3), (0, 1, 5))
        == "ab810483c3870294aba79ef58924c8bf51eae73c8969758e91b30d240b56de4e"
    )
    shuffled = BatchEcho(reusing.planner, echoing_factor=2.3, buffer_size=16)
    assert digest(shuffled, (0, 1, 5)) == "b846b6946dc62e40ba245d192fa1105ddeee9600936edb9031ff47002a7ae3ca"
