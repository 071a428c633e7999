import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb.errors import ConfigurationError
from dalirefurb.plan import BatchPlan, batch_plans
from dalirefurb.refurbish import Refurbish, Standard

ROWS = ("indices", "version", "serving", "miss", "keep")


@st.composite
def sharded(draw):
    """Planners of 1 to 12 shards."""
    shards = draw(st.integers(1, 12))
    batch_size = shards * draw(st.integers(1, 3))
    return Refurbish(
        draw(st.integers(batch_size, 5 * batch_size)),
        batch_size=batch_size,
        reuse_factor=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 9)),
        shards=shards,
        coverage=draw(st.sampled_from([1.0, 0.5])),
    )


@given(planner=sharded())
def test_the_union_over_ranks_is_the_plan_for_every_world_size_that_divides_the_shards(planner):
    for world_size in range(1, planner.shards + 1):
        if planner.shards % world_size:
            continue
        for epoch in range(planner.reuse_factor + 2):
            for plan in planner.epoch(epoch):
                parts = [planner.part(plan, rank=rank, world_size=world_size) for rank in range(world_size)]
                for name in ROWS:
                    joined = np.concatenate([getattr(part, name) for part in parts])
                    assert joined.tolist() == getattr(plan, name).tolist()
                evictions = np.concatenate([part.evict for part in parts])
                assert sorted(evictions) == sorted(plan.evict)


@given(planner=sharded())
def test_a_rank_serves_keeps_and_evicts_only_samples_of_its_shards(planner):
    world_size = planner.shards
    owned = [set(planner.owned(shard).tolist()) for shard in range(planner.shards)]
    assert sorted(set().union(*owned)) == list(range(planner.num_samples))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    for epoch in range(planner.reuse_factor + 2):
        for plan in planner.epoch(epoch):
            for rank in range(world_size):
                part = planner.part(plan, rank=rank, world_size=world_size)
                assert owned[rank] >= {*part.indices.tolist(), *part.evict.tolist()}
                assert planner.owners(part.indices).tolist() == [rank] * len(part.indices)


def test_slots_of_the_parts_sum_to_the_peak():
    planner = Refurbish(1000, batch_size=24, reuse_factor=3, shards=12)
    for world_size in (1, 2, 3, 4, 6, 12):
        parts = [planner.part_slots(rank=rank, world_size=world_size) for rank in range(world_size)]
        assert sum(parts) == planner.peak_slots


def test_a_batch_plan_names_its_counts():
    plan = next(Refurbish(9, batch_size=6, reuse_factor=3).epoch(4))
    assert repr(plan) == "BatchPlan(6 rows: 2 misses, 4 hits; keeps 4, evicts 2)"


def test_a_batch_plan_cannot_be_written_to():
    for plan in Refurbish(9, batch_size=6, reuse_factor=3).epoch(4):
        for name in (*ROWS, "evict"):
            assert not getattr(plan, name).flags.writeable


def test_a_batch_plan_has_the_types_of_its_contract():
    for plan in Refurbish(9, batch_size=6, reuse_factor=3).epoch(4):
        types = [getattr(plan, name).dtype for name in (*ROWS, "evict")]
        assert types == [np.int64, np.int64, np.int64, np.bool_, np.bool_, np.int64]


@given(st.integers(0, 20), st.integers(1, 7))
def test_cutting_an_epoch_into_batches_loses_no_row_and_no_eviction(num_rows, batch_size):
    rows, odd = np.arange(num_rows), np.arange(num_rows) % 2 == 1
    plans: list[BatchPlan] = list(
        batch_plans(indices=rows, version=rows, serving=rows, miss=odd, keep=~odd, evict=odd, batch_size=batch_size)
    )
    assert len(plans) == -(-num_rows // batch_size)
    for number, plan in enumerate(plans):
        expected = list(range(number * batch_size, min((number + 1) * batch_size, num_rows)))
        assert plan.indices.tolist() == plan.version.tolist() == plan.serving.tolist() == expected
        assert plan.evict.tolist() == plan.indices[plan.miss].tolist() == plan.indices[~plan.keep].tolist()


def test_a_fingerprint_is_json_and_names_every_argument():
    planner = Refurbish(np.int64(9), batch_size=np.int32(6), reuse_factor=3, coverage=1)
    assert json.loads(json.dumps(planner.fingerprint())) == {
        "planner": "Refurbish",
        "version": 1,
        "num_samples": 9,
        "batch_size": 6,
        "seed": 0,
        "shards": 1,
        "drop_last": False,
        "reuse_factor": 3,
        "coverage": 1.0,
        "evict_shuffler": "EvictShuffler()",
        "batch_shuffler": "BatchShuffler()",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 0}, "num_samples must be an int of at least 1, got 0: pass the length of a source"),
        ({"num_samples": 8.0}, "num_samples must be an int of at least 1, got 8.0"),
        ({"batch_size": 0}, "batch_size must be an int in 1..8, got 0: a batch cannot exceed num_samples"),
        ({"batch_size": 9}, "batch_size must be an int in 1..8, got 9: a batch cannot exceed num_samples"),
        ({"batch_size": True}, "batch_size must be an int in 1..8, got True"),
        ({"seed": 0.5}, "seed must be an int, got 0.5: pass an int"),
        ({"shards": 0}, "shards must be an int of at least 1, got 0: pass 1, or the largest world size"),
        (
            {"shards": 3},
            "shards must divide batch_size, got shards=3 and batch_size=4: "
            "pass a batch_size that is a multiple of 3, or fewer shards",
        ),
        ({"drop_last": 1}, "drop_last must be True or False, got 1: pass a bool"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_with_its_value_and_a_remedy(arguments, message):
    arguments = {"num_samples": 8, "batch_size": 4, **arguments}
    with pytest.raises(ConfigurationError) as refusal:
        Standard(arguments.pop("num_samples"), **arguments)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, 3, "world_size must divide shards, got world_size=3 and shards=4: give the planner shards=3 or"),
        (2, 2, "rank must be an int in 0..1, got 2: ranks count from 0"),
        (0, 0, "world_size must be an int of at least 1, got 0: pass the number of processes"),
    ],
)
def test_a_rank_outside_the_world_or_a_world_that_splits_shards_is_refused(rank, world_size, message):
    planner = Standard(8, batch_size=4, shards=4)
    plan = next(planner.epoch(0))
    for call in (
        lambda: planner.part(plan, rank=rank, world_size=world_size),
        lambda: planner.part_slots(rank=rank, world_size=world_size),
    ):
        with pytest.raises(ConfigurationError) as refusal:
            call()
        assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("epoch", [-1, 1.0, True])
def test_an_epoch_that_is_no_count_is_refused_at_once(epoch):
    with pytest.raises(ConfigurationError, match=r"epoch must be an int of at least 0, got .*count from 0"):
        Standard(8, batch_size=4).epoch(epoch)
