"""What every planner promises, whatever its technique."""

import copy
import json
import pickle
import threading
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb import planning
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.closed_form import ClosedFormPlanner
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen, ReferenceCount, Refurbish, Standard
from dalirefurb.planning.shuffle import PlainShuffler
from dalirefurb.planning.smart_cache import SmartCache
from tests.planners import (
    FEWER,
    FIELDS,
    Replay,
    autoassists,
    batch_echoes,
    evaluations,
    example_echoes,
    frozen,
    listed,
    owned,
    pairs,
    refurbishing,
    smartcaches,
    standards,
)

ROWS = FIELDS[:5]
EPOCHS = range(8)
LATER = range(8, 15)
"""Long enough for a version to be asked for again: as long as the largest reuse factor drawn, and an epoch waited."""

# Planners of each kind, in half of the cases one of those that were or would be hardest to get right.
KINDS = {
    "Standard": st.one_of(st.just(Standard(13, batch_size=4, shards=2)), standards()),
    "Refurbish": st.one_of(
        st.sampled_from(
            [
                Refurbish(5, batch_size=4, reuse_factor=5, shards=2, drop_last=True),
                Refurbish(60, batch_size=6, reuse_factor=3, batch_shuffler=PlainShuffler()),
                Refurbish(103, batch_size=8, reuse_factor=5, shards=4),
                Refurbish(100, batch_size=8, reuse_factor=3, coverage=0.5),
                Refurbish(61, batch_size=8, reuse_factor=3, shards=2, evict_shuffler=ReferenceCount()),
                Refurbish(120, batch_size=12, reuse_factor=2, shards=12),
            ]
        ),
        refurbishing(),
    ),
    "Evaluate": st.one_of(st.just(Evaluate(9, batch_size=8)), evaluations()),
    "Frozen": st.one_of(st.just(Frozen(5, batch_size=4, shards=2)), frozen()),
    "Echo": st.one_of(
        st.sampled_from(
            [
                Echo(Standard(24, batch_size=1), echoing_factor=2, buffer_size=5),
                Echo(Refurbish(60, batch_size=12, reuse_factor=2), echoing_factor=2, buffer_size=0),
                Echo(Refurbish(60, batch_size=6, reuse_factor=3), echoing_factor=2.5, buffer_size=12),
                Echo(Refurbish(61, batch_size=8, reuse_factor=2, shards=4), echoing_factor=1.5, buffer_size=9),
            ]
        ),
        example_echoes(),
    ),
    "BatchEcho": st.one_of(
        st.sampled_from(
            [
                BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2), echoing_factor=2.3),
                BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2, shards=3), echoing_factor=2.3, buffer_size=4),
                BatchEcho(Standard(60, batch_size=4), echoing_factor=2, buffer_size=3),
                BatchEcho(Refurbish(60, batch_size=4, reuse_factor=3), echoing_factor=1, buffer_size=5),
                BatchEcho(Refurbish(61, batch_size=8, reuse_factor=2, shards=4), echoing_factor=2.3, buffer_size=5),
            ]
        ),
        batch_echoes(),
    ),
    "SmartCache": st.one_of(
        st.sampled_from(
            [
                SmartCache(10, batch_size=4, num_cache_objects=8, replace_percent=0.5),  # 2 can enter, not 4
                SmartCache(10, batch_size=5, num_cache_objects=10, replace_percent=0.3),
                SmartCache(65, batch_size=8, num_cache_objects=64, replace_percent=0.4, shards=4),
            ]
        ),
        smartcaches(),
    ),
    "AutoAssist": st.one_of(
        st.sampled_from(
            [
                AutoAssist(Refurbish(5, batch_size=4, reuse_factor=2), lag=3),  # epochs in every batch
                AutoAssist(Refurbish(13, batch_size=4, reuse_factor=3), lag=2),
                AutoAssist(Echo(Standard(13, batch_size=4), echoing_factor=2.5, buffer_size=5), lag=2),
                AutoAssist(Echo(Refurbish(13, batch_size=4, reuse_factor=2), echoing_factor=2, buffer_size=0), lag=2),
            ]
        ),
        autoassists(),
    ),
}


def again(planner):
    """Make an equal planner that has computed nothing yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return replace(planner)


def rows_where(plan, mask):
    """Return index and version of some rows."""
    return {pair for pair, chosen in zip(pairs(plan), mask.tolist(), strict=True) if chosen}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return KINDS[request.param]


def test_every_planner_is_held_to_the_contract():
    def kinds(parent):
        return {each for child in parent.__subclasses__() for each in (child, *kinds(child))}

    public = {each.__name__ for each in kinds(Planner) if hasattr(planning, each.__name__)} - {"DerivedPlanner"}
    assert public == KINDS.keys()


@FEWER
@given(data=st.data())
def test_batches_have_the_shapes_types_and_limits_of_the_contract(kind, data):
    planner = data.draw(kind)
    for epoch in EPOCHS[:4]:
        plans = list(planner.epoch(epoch))
        assert len(plans) == len(planner) > 0
        for plan in plans:
            assert isinstance(plan, BatchPlan)
            arrays = [getattr(plan, name) for name in FIELDS]
            assert [array.dtype for array in arrays] == [np.int64, np.int64, np.int64, np.bool_, np.bool_, np.int64]
            assert not any(array.flags.writeable for array in arrays)
            assert {array.shape for array in arrays[:5]} == {plan.indices.shape}
            assert plan.evict.ndim == plan.indices.ndim == 1
            assert 0 < len(plan.indices) <= planner.batch_size
            assert len(set(plan.evict.tolist())) == len(plan.evict)
            assert {*plan.indices.tolist(), *plan.evict.tolist()} <= set(range(planner.num_samples))
            assert min(plan.version.min(), plan.serving.min()) >= 0
            if planner.shards > 1 or planner.drop_last:
                assert len(plan.indices) == planner.batch_size


@FEWER
@given(data=st.data())
def test_plans_are_the_same_asked_twice_or_out_of_order(kind, data):
    planner = data.draw(kind)
    forth = {epoch: [listed(plan) for plan in planner.epoch(epoch)] for epoch in range(5)}
    other = again(planner)
    for epoch in reversed(range(5)):
        assert [listed(plan) for plan in other.epoch(epoch)] == forth[epoch]
        assert [listed(plan) for plan in planner.epoch(epoch)] == forth[epoch]


@FEWER
@given(data=st.data())
def test_any_batch_is_planned_alone_as_in_its_epoch(kind, data):
    planner = data.draw(kind)
    epoch = data.draw(st.sampled_from([0, 1, 2, 5]))
    plans = [listed(plan) for plan in planner.epoch(epoch)]
    for batch in data.draw(st.permutations(range(len(planner))))[:4]:
        assert listed(again(planner).plan(epoch, batch)) == plans[batch]
        assert listed(planner.plan(epoch, batch)) == plans[batch]


@FEWER
@given(data=st.data())
def test_an_epoch_and_a_batch_may_be_integers_of_numpy(kind, data):
    planner = data.draw(kind)
    epoch, of = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([np.uint8, np.int32, np.int64, np.uint64]))
    batch = data.draw(st.integers(0, min(255, len(planner) - 1)))
    plan = planner.plan(epoch, batch)
    other = again(planner)
    assert listed(other.plan(of(epoch), of(batch))) == listed(plan)
    assert listed(next(again(planner).epoch(of(epoch)))) == listed(planner.plan(epoch, 0))
    wanted = planner.wanted(epoch, batch, plan.indices, plan.version)
    assert other.wanted(of(epoch), of(batch), plan.indices, plan.version).tolist() == wanted.tolist()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda planner: pickle.loads(pickle.dumps(planner))])
@FEWER
@given(data=st.data())
def test_a_copy_plans_the_same_and_takes_along_nothing_that_was_planned(kind, copied, data):
    planner = data.draw(kind)
    plans = [listed(plan) for plan in planner.epoch(1)]
    assert b"BatchPlan" not in pickle.dumps(planner)
    other = copied(planner)
    assert other == planner
    for batch in reversed(range(len(planner))):
        plan = other.plan(1, batch)
        assert listed(plan) == plans[batch]
        assert not any(getattr(plan, name).flags.writeable for name in FIELDS)


@FEWER
@given(data=st.data())
def test_threads_that_plan_at_once_get_what_each_would_get_alone(kind, data):
    planner = data.draw(kind)
    expected = {epoch: [listed(plan) for plan in again(planner).epoch(epoch)] for epoch in range(3)}
    got = {}

    def plan_epochs(thread):
        got[thread] = [[listed(plan) for plan in planner.epoch(epoch % 3)] for epoch in range(thread, thread + 3)]

    threads = [threading.Thread(target=plan_epochs, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        assert got[number] == [expected[epoch % 3] for epoch in range(number, number + 3)]


@FEWER
@given(data=st.data())
def test_what_is_wanted_after_a_jump_is_what_will_be_served(kind, data):
    """Of all versions that a store may hold; of echoes also the rest of an inner batch that is half read."""
    planner = data.draw(kind)
    epoch = data.draw(st.integers(0, 4))
    batch = data.draw(st.integers(0, len(planner) - 1))
    past = [plan for number in range(epoch) for plan in planner.epoch(number)]
    present = [*planner.epoch(epoch)]
    future = present[batch:] + [plan for number in range(epoch + 1, epoch + 9) for plan in planner.epoch(number)]
    held = {pair for plan in [*past, *present] for pair in pairs(plan)}
    coming = {pair for plan in future for pair in pairs(plan)}
    indices, versions = np.array(sorted(held)).T
    found = planner.wanted(epoch, batch, indices, versions)
    wanted = {pair for pair, chosen in zip(sorted(held), found.tolist(), strict=True) if chosen}
    if isinstance(planner, (Echo, BatchEcho, AutoAssist)):
        assert wanted >= held & coming & {pair for plan in present[batch:] for pair in pairs(plan)}
        assert len(wanted - coming) <= planner.batch_size
    else:
        assert wanted == held & coming
    assert not again(planner).wanted(epoch, batch, indices, versions + 99).any()


@FEWER
@given(data=st.data())
def test_what_is_made_in_a_later_epoch_is_not_wanted_after_a_jump_back(kind, data):
    """A store that has been further on holds it already: kept, it would take the slots of what is served before."""
    planner = data.draw(kind)
    if not isinstance(planner, ClosedFormPlanner):
        return
    epoch = data.draw(st.integers(0, 4))
    batch = data.draw(st.integers(0, len(planner) - 1))
    later = {pair for number in range(epoch + 1, epoch + 4) for plan in planner.epoch(number) for pair in pairs(plan)}
    if unborn := sorted(pair for pair in later if pair[1] > epoch):  # A version is the epoch of its birth.
        assert not planner.wanted(epoch, batch, *np.array(unborn).T).any()


@FEWER
@given(data=st.data())
def test_no_serving_of_a_sample_comes_twice(kind, data):
    planner = data.draw(kind)
    servings = [pair for epoch in EPOCHS for plan in planner.epoch(epoch) for pair in pairs(plan, "serving")]
    assert len(set(servings)) == len(servings)


@FEWER
@given(data=st.data())
def test_a_version_is_planned_as_a_miss_in_the_first_row_that_serves_it_and_in_no_other(kind, data):
    planner = data.draw(kind)
    served = set()
    for epoch in EPOCHS:
        for plan in planner.epoch(epoch):
            for pair, miss in zip(pairs(plan), plan.miss.tolist(), strict=True):
                assert miss == (pair not in served)
                served.add(pair)


@FEWER
@given(data=st.data())
def test_a_version_that_a_batch_does_not_keep_is_served_in_no_later_batch(kind, data):
    planner = data.draw(kind)
    given_up = set()
    for epoch in EPOCHS:
        for plan in planner.epoch(epoch):
            assert given_up.isdisjoint(pairs(plan))
            given_up |= rows_where(plan, ~plan.keep) - rows_where(plan, plan.keep)


@FEWER
@given(data=st.data())
def test_carrying_the_plans_out_every_hit_is_at_hand_no_shard_takes_more_slots_and_nothing_is_stored_in_vain(
    kind, data
):
    planner = data.draw(kind)
    assert len(planner.shard_slots) == planner.shards
    assert planner.peak_slots == sum(planner.shard_slots)
    replay = Replay()
    for epoch in EPOCHS:
        for plan in planner.epoch(epoch):
            made_here = set()
            for (index, version), miss in zip(pairs(plan), plan.miss.tolist(), strict=True):
                if miss:
                    made_here.add((index, version))
                assert replay.stored.get(index) == version or (index, version) in made_here
            replay.carry_out(plan)
            owners = planner.owners(np.array(list(replay.stored), np.int64))
            assert all(np.bincount(owners, minlength=planner.shards) <= planner.shard_slots)
    stored = {*replay.stored.items()}
    replay.carry_out(next(iter(planner.epoch(LATER[0]))))  # may still evict what an earlier batch served last
    asked_for = {pair for epoch in LATER for plan in planner.epoch(epoch) for pair in pairs(plan)}
    assert stored & replay.stored.items() <= asked_for


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"AutoAssist", "Echo", "BatchEcho"}))
@FEWER
@given(data=st.data())
def test_after_a_jump_no_version_is_computed_twice_for_want_of_slots(kind, data):
    planner = data.draw(KINDS[kind])
    stored = {}

    def carry_out(plan):
        computed = [(pair, keep) for pair, keep in zip(pairs(plan), plan.keep.tolist(), strict=True)]
        computed = [(pair, keep) for pair, keep in computed if stored.get(pair[0]) != pair[1]]
        for index in [*plan.evict.tolist(), *plan.indices[plan.miss & ~plan.keep].tolist()]:
            stored.pop(index, None)
        for (index, version), keep in computed:
            if keep and (index in stored or len(stored) < planner.peak_slots):
                stored[index] = version
        return [pair for pair, _ in computed]

    def some_position():
        return data.draw(st.integers(0, 12)), data.draw(st.integers(0, len(planner) - 1))

    for epoch, batch in [(0, 0), some_position(), some_position()]:
        held = np.array([*stored.items()], np.int64).reshape(-1, 2)
        stored = dict(held[planner.wanted(epoch, batch, *held.T)].tolist())
        computed = set()
        for number in range(batch, batch + data.draw(st.integers(1, 3 * len(planner)))):
            for pair in carry_out(planner.plan(epoch + number // len(planner), number % len(planner))):
                assert pair not in computed
                computed.add(pair)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"AutoAssist"}))
@FEWER
@given(data=st.data())
def test_the_union_over_ranks_is_the_plan_for_every_world_size_that_divides_the_shards(kind, data):
    planner = data.draw(KINDS[kind])
    for world_size in [size for size in range(1, planner.shards + 1) if planner.shards % size == 0]:
        ranks = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
        parts_of = [planner.for_rank(**rank) for rank in ranks]
        if not planner.any_world_size:
            assert sum(part.peak_slots for part in parts_of) == planner.peak_slots
        for epoch in EPOCHS[:4]:
            for plan, *parts in zip(planner.epoch(epoch), *(part.epoch(epoch) for part in parts_of), strict=True):
                for name in ROWS:
                    rows = np.concatenate([getattr(part, name) for part in parts])
                    assert rows.tolist() == getattr(plan, name).tolist()
                assert sorted(np.concatenate([part.evict for part in parts])) == sorted(plan.evict)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"AutoAssist"}))
@FEWER
@given(data=st.data())
def test_a_rank_serves_and_evicts_only_samples_of_its_shards(kind, data):
    planner = data.draw(KINDS[kind])
    members = [set(owned(planner, shard).tolist()) for shard in range(planner.shards)]
    assert sorted(set().union(*members)) == list(range(planner.num_samples))
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for rank in range(planner.shards):
        mine = planner.for_rank(rank=rank, world_size=planner.shards)
        for epoch in EPOCHS[:4]:
            for part in mine.epoch(epoch):
                assert members[rank] >= {*part.indices.tolist(), *part.evict.tolist()}
                assert planner.owners(part.indices).tolist() == [rank] * len(part.indices)


@FEWER
@given(data=st.data())
def test_what_plans_for_a_rank_yields_its_part_and_a_rank_that_there_is_not_is_refused(kind, data):
    planner = data.draw(kind)
    for world_size in (1, planner.shards):
        with pytest.raises(ConfigurationError, match="rank must be an int"):
            planner.for_rank(rank=world_size, world_size=world_size)
    assert planner.for_rank(rank=0, world_size=1).fingerprint() == planner.fingerprint()
    if planner.feedback_lag is not None:
        return  # Each rank's Assistant chooses among its own candidates.
    for rank in range(planner.shards):
        mine = planner.for_rank(rank=rank, world_size=planner.shards)
        rows = max(len(plan.indices) for plan in planner.epoch(0)) if planner.any_world_size else planner.batch_size
        assert (len(mine), mine.batch_size) == (len(planner), rows // planner.shards)
        assert mine.peak_slots == planner.shard_slots[rank]
        width = mine.batch_size
        for whole, part in zip(planner.epoch(1), mine.epoch(1), strict=True):
            rows = slice(None) if planner.shards == 1 else slice(rank * width, (rank + 1) * width)
            for name in ROWS:
                assert getattr(part, name).tolist() == getattr(whole, name)[rows].tolist()
            assert part.evict.tolist() == whole.evict[planner.owners(whole.evict) == rank].tolist()


@FEWER
@given(data=st.data())
def test_the_fingerprints_of_equal_planners_are_equal_and_json(kind, data):
    planner = data.draw(kind)
    fingerprint = planner.fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint == again(planner).fingerprint()


PLAIN = {"num_samples": 24, "batch_size": 4}
SHARDED = {"num_samples": 25, "batch_size": 2, "seed": 1, "shards": 2, "drop_last": True}
INNER, OTHER_INNER = Standard(**PLAIN), Refurbish(**PLAIN, reuse_factor=2)

# Of each kind its arguments, and another value for each of them; those left out have but one value that works.
CHANGES = [
    (Standard, PLAIN, SHARDED),
    (Frozen, PLAIN, SHARDED),
    (Evaluate, PLAIN, {"num_samples": 25, "batch_size": 2, "seed": 1, "coverage": 0.5, "pad": True}),
    (
        Refurbish,
        {**PLAIN, "reuse_factor": 2},
        {
            **SHARDED,
            "reuse_factor": 3,
            "coverage": 0.5,
            "evict_shuffler": ReferenceCount(),
            "batch_shuffler": PlainShuffler(),
        },
    ),
    (
        SmartCache,
        {**PLAIN, "num_cache_objects": 8, "replace_percent": 0.5},
        {"num_samples": 25, "batch_size": 2, "seed": 1, "shards": 2, "num_cache_objects": 12, "replace_percent": 0.25},
    ),
    (
        Echo,
        {"planner": INNER, "echoing_factor": 2, "buffer_size": 4},
        {"planner": OTHER_INNER, "echoing_factor": 1.5, "buffer_size": 5},
    ),
    (
        BatchEcho,
        {"planner": INNER, "echoing_factor": 2},
        {"planner": OTHER_INNER, "echoing_factor": 1.5, "buffer_size": 2},
    ),
    (
        AutoAssist,
        {"planner": INNER, "lag": 2},
        {
            "planner": OTHER_INNER,
            "lag": 3,
            "learning_rate": 1.0,
            "weight_decay": 0.1,
            "loss_momentum": 0.5,
            "accuracy_momentum": 0.5,
            "resolution": 4,
        },
    ),
]
KINDS_OF_CHANGES = [make.__name__ for make, *_ in CHANGES]


@pytest.mark.parametrize(("make", "arguments", "changes"), CHANGES, ids=KINDS_OF_CHANGES)
def test_any_other_argument_makes_another_fingerprint(make, arguments, changes):
    names = {each.name for each in fields(make) if each.init}
    fixed = {SmartCache: {"drop_last"}, Evaluate: {"drop_last", "shards"}}
    assert names - changes.keys() <= fixed.get(make, set())
    planners = [make(**arguments), *(make(**{**arguments, name: value}) for name, value in changes.items())]
    assert len({json.dumps(planner.fingerprint()) for planner in planners}) == len(planners)


def test_every_kind_has_another_fingerprint():
    planners = [make(**arguments) for make, arguments, _ in CHANGES]
    assert {*KINDS_OF_CHANGES} == KINDS.keys()
    assert len({json.dumps(planner.fingerprint()) for planner in planners}) == len(KINDS)


@pytest.mark.parametrize(("make", "arguments"), [each[:2] for each in CHANGES], ids=KINDS_OF_CHANGES)
@pytest.mark.parametrize("epoch", [-1, 1.0, True])
def test_an_epoch_that_is_no_count_is_refused_at_once(make, arguments, epoch):
    planner = make(**arguments)
    for ask in (planner.epoch, lambda number: planner.plan(number, 0)):
        with pytest.raises(ConfigurationError, match=r"epoch must be an int of at least 0, got .*: epochs count from"):
            ask(epoch)


@pytest.mark.parametrize(("make", "arguments"), [each[:2] for each in CHANGES], ids=KINDS_OF_CHANGES)
@pytest.mark.parametrize("batch", [-1, 1.0, None, 10**6])
def test_a_batch_that_there_is_not_is_refused(make, arguments, batch):
    planner = make(**arguments)
    batch = len(planner) if batch is None else batch
    with pytest.raises(ConfigurationError, match=rf"batch must be an int in 0..{len(planner) - 1}, got"):
        planner.plan(0, batch)
