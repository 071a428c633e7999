"""What every planner promises, whatever its technique, and that its fingerprint sees every argument."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import strategies as st

from dalirefurb import planning
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.closed_form import ClosedFormPlanner
from dalirefurb.planning.planner import DerivedPlanner, Planner
from dalirefurb.testing import PlannerContract
from dalirefurb.testing.plans import pairs
from tests.planners import FEWER, KINDS


class TestPlanners(PlannerContract):
    """Each of our kinds is held to the contract."""

    examples = FEWER.max_examples

    @pytest.fixture(autouse=True, params=KINDS)
    def _kind(self, request):
        self.tried = KINDS[request.param]
        self.wants_exactly = self.tried.wants_exactly

    def planners(self):
        return self.tried.planners

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

    public = {each for each in kinds(Planner) if hasattr(planning, each.__name__)} - {DerivedPlanner}
    assert public == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_any_other_argument_makes_another_fingerprint(kind):
    tried = KINDS[kind]
    names = {each.name for each in fields(kind) if each.init}
    assert names - tried.changes.keys() == tried.fixed
    every = [tried.arguments, *({**tried.arguments, name: value} for name, value in tried.changes.items())]
    fingerprints = {json.dumps(kind(**arguments).fingerprint()) for arguments in every}
    assert len(fingerprints) == len(every)


def test_every_kind_has_another_fingerprint():
    fingerprints = {json.dumps(kind(**tried.arguments).fingerprint()) for kind, tried in KINDS.items()}
    assert len(fingerprints) == len(KINDS)
