"""Views with versions of their own: are they born in turn, and is the plan one that can be relied on?"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import strategies as st

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning import AutoAssist, Frozen, Refurbish, Standard
from dalirefurb.planning.refurbish import ReferenceCount
from dalirefurb.planning.views import Views
from dalirefurb.testing import PlannerContract
from dalirefurb.testing.plans import Replay, pairs
from tests.planners import FEWER, refurbishing

WAITING = ({}, {"drop_last": True}, {"shards": 5})


def pairs_of(planner, epochs):
    """Versions of all views of each sample, epoch after epoch."""
    count, served = planner.planner.num_samples, defaultdict(list)
    for epoch in epochs:
        for plan in planner.epoch(epoch):
            version = dict(zip(plan.indices.tolist(), plan.version.tolist(), strict=True))
            for sample in (index for index in version if index < count):
                versions = tuple(version[sample + view * count] for view in range(planner.views))
                served[sample].append((epoch, versions))
    return served


class TestViewsKeepTheContract(PlannerContract):
    examples = FEWER.max_examples
    shards_differ = 4  # views of one sample

    def planners(self):
        return st.builds(lambda planner, views: Views(planner, views=views), refurbishing(), st.integers(2, 4))


class TestViewsOfStandardKeepTheContract(PlannerContract):
    examples = 3
    shards_differ = 3

    def planners(self):
        inner = st.builds(Standard, st.integers(6, 20), batch_size=st.just(4), shards=st.sampled_from([1, 2]))
        return st.builds(Views, inner, views=st.just(3))


@pytest.mark.parametrize(
    ("inner", "views"),
    [
        (Refurbish(19, batch_size=10, reuse_factor=5, drop_last=True), 2),
        (Refurbish(7, batch_size=4, reuse_factor=3, drop_last=True), 3),
        (Refurbish(7, batch_size=4, reuse_factor=3, drop_last=True), 2),
    ],
)
def test_samples_that_wait_in_two_epochs_on_end_hit_what_is_stored_and_nothing_else(inner, views):
    planner, stored, twice = Views(inner, views=views), {}, 0
    latest = dict.fromkeys(range(inner.num_samples), -1)
    for epoch in range(30):
        for batch in range(len(planner)):
            numbers = np.array([*stored], np.int64)
            held = np.array([*stored.values()], np.int64)
            assert planner.wanted(epoch, batch, numbers, held).all()
            plan = planner.plan(epoch, batch)
            rows = zip(plan.indices.tolist(), plan.version.tolist(), plan.miss.tolist(), strict=True)
            assert all(miss == (stored.get(index) != version) for index, version, miss in rows)
            for index in plan.evict.tolist():
                del stored[index]
            kept = plan.keep & plan.miss
            stored |= dict(zip(plan.indices[kept].tolist(), plan.version[kept].tolist(), strict=True))
            assert len(stored) <= planner.peak_slots
            for index in plan.indices[plan.indices < inner.num_samples].tolist():
                twice += epoch - latest[index] == 3
                latest[index] = epoch
    assert twice > 0


@pytest.mark.parametrize(("samples", "views"), [(5, 2), (5, 3), (7, 2)])
def test_a_version_that_ends_while_its_sample_waits_twice_is_not_wanted(samples, views):
    planner = Views(Refurbish(samples, batch_size=samples // 2 + 1, reuse_factor=3, drop_last=True), views=views)
    served = [{pair for plan in planner.epoch(epoch) for pair in pairs(plan)} for epoch in range(16)]
    for epoch in range(8):
        held = sorted(set().union(*served[: epoch + 1]))
        found = planner.wanted(epoch, 0, *np.array(held).T).tolist()
        coming = set().union(*served[epoch:])
        assert [pair for pair, wanted in zip(held, found, strict=True) if wanted] == sorted(coming.intersection(held))


def test_views_whose_versions_all_end_together_have_slots_for_all():
    planner = Views(Refurbish(10, batch_size=5, reuse_factor=3, evict_shuffler=ReferenceCount()), views=2)
    replay = Replay()
    for epoch in range(9):
        for plan in planner.epoch(epoch):
            replay.carry_out(plan)
    assert replay.peak == planner.peak_slots == 20


@pytest.mark.parametrize("waiting", WAITING)
def test_at_reuse_factor_2_no_two_versions_are_served_together_twice(waiting):
    planner = Views(Refurbish(23, batch_size=10, reuse_factor=2, seed=1, **waiting), views=2)
    for served in pairs_of(planner, range(12)).values():
        pairs = [pair for _, pair in served]
        assert len({*pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("inner", "even"),
    [
        (Standard(23, batch_size=10), True),
        (Refurbish(20, batch_size=5, reuse_factor=2), True),
        (Refurbish(23, batch_size=10, reuse_factor=2, drop_last=True), False),
        (Refurbish(23, batch_size=10, reuse_factor=2, shards=2), False),
        (Refurbish(20, batch_size=5, reuse_factor=3), False),
    ],
)
def test_it_says_whether_batches_miss_equally(inner, even):
    planner = Views(inner, views=2)
    assert planner.reuse.even == even
    misses = [plan.miss.mean() for epoch in range(2, 20) for plan in planner.epoch(epoch)]
    assert not even or max(misses) == min(misses)  # Where it is told, training waits for no batch longer.


def test_at_reuse_factor_2_a_view_is_born_in_each_epoch():
    planner = Views(Refurbish(20, batch_size=5, reuse_factor=2), views=2)
    kinds = Counter(tuple(pair for _, pair in each) for each in pairs_of(planner, range(5)).values())
    assert kinds == {
        ((0, 0), (0, 1), (2, 1), (2, 3), (4, 3)): 10,
        ((0, 0), (1, 0), (1, 2), (3, 2), (3, 4)): 10,
    }
    for epoch in range(1, 5):
        for plan in planner.epoch(epoch):
            misses = plan.miss.reshape(2, 5)
            assert (misses.sum(axis=0) == 1).all()  # a file is decoded once
            assert {*plan.evict.tolist()} == {*plan.indices[~plan.miss].tolist()}
    assert planner.shard_slots == (20,)


@pytest.mark.parametrize("waiting", WAITING)
@pytest.mark.parametrize(("reuse_factor", "views", "most"), [(3, 2, 2), (4, 2, 2), (3, 3, 1), (4, 4, 1), (6, 2, 3)])
def test_versions_are_served_together_until_one_of_them_ends(waiting, reuse_factor, views, most):
    planner = Views(Refurbish(23, batch_size=10, reuse_factor=reuse_factor, **waiting), views=views)
    longest = 0
    for served in pairs_of(planner, range(reuse_factor, 6 * reuse_factor)).values():
        for epoch, versions in served:
            phases = {(epoch - born) for born in versions}
            assert max(phases) < reuse_factor
            shifts = [view * reuse_factor // views for view in range(views)]
            assert {(born - shift) % reuse_factor for born, shift in zip(versions, shifts, strict=True)} == {
                versions[0] % reuse_factor
            }
        longest = max(longest, *Counter(pair for _, pair in served).values())
    assert longest == most


def test_the_first_view_is_planned_as_without_views():
    inner = Refurbish(23, batch_size=10, reuse_factor=3, shards=5, coverage=0.7, seed=5)
    planner = Views(inner, views=3)
    for epoch in range(9):
        for own, plan in zip(planner.epoch(epoch), inner.epoch(epoch), strict=True):
            for name in ("indices", "version", "miss", "keep"):
                first = getattr(own, name).reshape(5, 3, 2)[:, 0].reshape(-1)
                assert first.tolist() == getattr(plan, name).tolist()
            numbers = own.indices.reshape(5, 3, 2)
            assert (numbers - numbers[:, :1] == 23 * np.arange(3)[:, None]).all()


def test_a_batch_of_ten_billion_samples_is_planned_alone():
    planner = Views(Refurbish(10**10, batch_size=64, reuse_factor=2), views=2)
    plan = planner.plan(7, 10**6)
    assert (len(plan.indices), int(plan.miss.sum())) == (128, 64)


@pytest.mark.parametrize("planner", [Frozen(8, batch_size=4), AutoAssist(Standard(8, batch_size=4), lag=2)])
def test_planners_whose_versions_are_not_born_in_turn_are_refused(planner):
    with pytest.raises(ConfigurationError, match="planner must be a Refurbish or Standard where views is a number"):
        Views(planner, views=2)
