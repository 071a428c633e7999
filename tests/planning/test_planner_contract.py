"""What every planner promises, whatever its technique, and that its fingerprint sees every argument."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import strategies as st

from dalirefurb import planning
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.closed_form import ClosedFormPlanner
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen, ReferenceCount, Refurbish, Standard
from dalirefurb.planning.shuffle import PlainShuffler
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.testing import PlannerContract
from dalirefurb.testing.plans import pairs
from tests.planners import (
    FEWER,
    autoassists,
    batch_echoes,
    controls,
    evaluations,
    example_echoes,
    frozen,
    refurbishing,
    smartcaches,
    standards,
)

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
    "Fresh": st.one_of(
        st.sampled_from(
            [
                Fresh(Refurbish(61, batch_size=8, reuse_factor=3, shards=4)),
                Fresh(BatchEcho(Refurbish(61, batch_size=6, reuse_factor=2), echoing_factor=2.3, buffer_size=4)),
            ]
        ),
        controls(),
    ),
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


class TestPlanners(PlannerContract):
    """Each of our kinds is held to the contract."""

    examples = FEWER.max_examples

    @pytest.fixture(autouse=True, params=KINDS)
    def _kind(self, request):
        self.kind = request.param
        self.wants_exactly = self.kind not in ("Echo", "BatchEcho", "AutoAssist")

    def planners(self):
        return KINDS[self.kind]

    def test_what_is_made_in_a_later_epoch_is_not_wanted_after_a_jump_back(self):
        """A store that has been further on holds it already: kept, it would take the slots of what is served before."""

        def check(planner, epoch, data):
            if not isinstance(planner, ClosedFormPlanner):
                return
            batch = data.draw(st.integers(0, len(planner) - 1))
            plans = [plan for number in range(epoch + 1, epoch + 4) for plan in planner.epoch(number)]
            later = {pair for plan in plans for pair in pairs(plan)}
            if unborn := sorted(pair for pair in later if pair[1] > epoch):  # A version is the epoch of its birth.
                assert not planner.wanted(epoch, batch, *np.array(unborn).T).any()

        self.for_each(check, epoch=st.integers(0, 4), data=st.data())

    def test_a_bool_is_no_epoch(self):
        def check(planner):
            for ask in (planner.epoch, lambda number: planner.plan(number, 0)):
                with pytest.raises(ConfigurationError, match="epoch must be an int of at least 0, got True: epochs"):
                    ask(True)

        self.for_each(check)


def test_every_planner_is_held_to_the_contract():
    def kinds(parent):
        return {each for child in parent.__subclasses__() for each in (child, *kinds(child))}

    public = {each.__name__ for each in kinds(Planner) if hasattr(planning, each.__name__)} - {"DerivedPlanner"}
    assert public == KINDS.keys()


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
    (Fresh, {"planner": INNER}, {"planner": OTHER_INNER}),
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
