"""Contract of planners: plans that whoever carries them out can rely on, and parts of them for ranks."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning import BatchPlan, Planner
from dalirefurb.testing.plans import Pair, Replay, again, check_form, check_parts, listed, owned, pairs, pairs_where

_EPOCHS = range(8)
_LATER = range(8, 15)
"""Long enough for a version to be asked for again: an epoch waited, and six uses."""


class PlannerContract:
    """What every planner promises: plans by numbers alone, whose hits are at hand, within its slots, for any ranks.

    Derive a class whose name begins with "Test", and say by `planners` which planners are tried: small ones, of a few
    dozen samples at most, since each is asked for many epochs. `Planner` says all of it in one paragraph.

    Attributes:
        wants_exactly: Whether `wanted` names what will be served and nothing else; False: up to a batch more.
        examples: Planners for each test; None: as many as Hypothesis is told.
        shards_differ: By how many samples shards may differ.
    """

    wants_exactly: ClassVar[bool] = True
    examples: ClassVar[int | None] = None
    shards_differ: ClassVar[int] = 1

    def planners(self) -> st.SearchStrategy[Planner]:
        """Return a strategy of Hypothesis that draws planners, such as `st.builds(Mine, st.integers(4, 40), ...)`."""
        raise NotImplementedError("a contract needs planners: define planners(self) to return a strategy of yours")

    def for_each(self, check: Callable[..., None], **more: st.SearchStrategy[Any]) -> None:
        """Have something hold for planners, and for what else it takes by name."""
        options = settings(
            deadline=None,
            max_examples=self.examples or settings().max_examples,
            suppress_health_check=[HealthCheck.too_slow],
        )
        options(given(planner=self.planners(), **more)(check))()

    def test_batches_have_the_shapes_types_and_limits_of_a_plan(self) -> None:
        """An epoch has `len(planner)` batches, none of them empty, and each of its plans the form of `BatchPlan`."""

        def check(planner: Planner) -> None:
            for epoch in _EPOCHS[:4]:
                plans = list(planner.epoch(epoch))
                assert len(plans) == len(planner) > 0, f"epoch must yield {len(planner)} plans, got {len(plans)}"
                for plan in plans:
                    check_form(planner, plan)
            rows = sum(len(plan.indices) for plan in planner.epoch(0))
            assert planner.rows_per_epoch == rows, f"rows_per_epoch must be {rows}, got {planner.rows_per_epoch}"

        self.for_each(check)

    def test_plans_are_the_same_asked_twice_or_out_of_order(self) -> None:
        """A plan is a function of the planner's arguments, of epoch and batch, whatever was asked before."""

        def check(planner: Planner) -> None:
            forth = {epoch: [listed(plan) for plan in planner.epoch(epoch)] for epoch in range(5)}
            other = again(planner)
            for epoch in reversed(range(5)):
                for each in (other, planner):
                    plans = [listed(plan) for plan in each.epoch(epoch)]
                    assert plans == forth[epoch], f"epoch {epoch} must be planned as before"

        self.for_each(check)

    def test_any_batch_is_planned_alone_as_in_its_epoch(self) -> None:
        """A batch can be planned without those before it."""

        def check(planner: Planner, epoch: int, data: st.DataObject) -> None:
            plans = [listed(plan) for plan in planner.epoch(epoch)]
            for batch in data.draw(st.permutations(range(len(planner))))[:4]:
                for each in (again(planner), planner):
                    assert listed(each.plan(epoch, batch)) == plans[batch], f"batch {batch} must be as in its epoch"

        self.for_each(check, epoch=st.sampled_from([0, 1, 2, 5]), data=st.data())

    def test_an_epoch_and_a_batch_may_be_integers_of_numpy(self) -> None:
        """NumPy's numbers are taken for what they are, and do not overflow."""

        def check(planner: Planner, epoch: int, of: Any, data: st.DataObject) -> None:
            batch = data.draw(st.integers(0, min(255, len(planner) - 1)))
            plan, other = planner.plan(epoch, batch), again(planner)
            assert listed(other.plan(of(epoch), of(batch))) == listed(plan)
            assert listed(next(again(planner).epoch(of(epoch)))) == listed(planner.plan(epoch, 0))
            wanted = planner.wanted(epoch, batch, plan.indices, plan.version)
            assert other.wanted(of(epoch), of(batch), plan.indices, plan.version).tolist() == wanted.tolist()

        kinds = st.sampled_from([np.uint8, np.int32, np.int64, np.uint64])
        self.for_each(check, epoch=st.integers(0, 5), of=kinds, data=st.data())

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda planner: pickle.loads(pickle.dumps(planner))])
    def test_a_copy_plans_the_same_and_takes_along_nothing_that_was_planned(
        self, copied: Callable[[Planner], Planner]
    ) -> None:
        """A planner can be copied, and sent to other processes, whatever it was asked."""

        def check(planner: Planner) -> None:
            plans = [listed(plan) for plan in planner.epoch(1)]
            assert b"BatchPlan" not in pickle.dumps(planner), "a pickled planner must hold no plans"
            other = copied(planner)
            assert other == planner, f"a copy must equal its planner, got {other}"
            for batch in reversed(range(len(planner))):
                plan = other.plan(1, batch)
                assert listed(plan) == plans[batch], f"a copy must plan batch {batch} as its planner"
                check_form(planner, plan)

        self.for_each(check)

    def test_threads_that_plan_at_once_get_what_each_would_get_alone(self) -> None:
        """Several threads may ask at once."""

        def check(planner: Planner) -> None:
            expected = {epoch: [listed(plan) for plan in again(planner).epoch(epoch)] for epoch in range(3)}
            together = threading.Barrier(3)

            def plan_epochs(first: int) -> list[list[dict[str, list[int]]]]:
                together.wait()
                return [[listed(plan) for plan in planner.epoch(epoch % 3)] for epoch in range(first, first + 3)]

            with ThreadPoolExecutor(3) as threads:
                for first, got in enumerate(threads.map(plan_epochs, range(3))):
                    assert got == [expected[epoch % 3] for epoch in range(first, first + 3)]

        self.for_each(check)

    def test_what_is_wanted_after_a_jump_is_what_will_be_served(self) -> None:
        """`wanted` finds, of the versions that a store may hold, those that are served from a batch on."""

        def check(planner: Planner, epoch: int, data: st.DataObject) -> None:
            batch = data.draw(st.integers(0, len(planner) - 1))
            past = [plan for number in range(epoch) for plan in planner.epoch(number)]
            present = [*planner.epoch(epoch)]
            later = [plan for number in range(epoch + 1, epoch + 9) for plan in planner.epoch(number)]
            held = sorted({pair for plan in [*past, *present] for pair in pairs(plan)})
            coming = {pair for plan in [*present[batch:], *later] for pair in pairs(plan)}
            indices, versions = np.array(held).T
            found = planner.wanted(epoch, batch, indices, versions).tolist()
            wanted = {pair for pair, chosen in zip(held, found, strict=True) if chosen}
            if self.wants_exactly:
                assert wanted == coming.intersection(held), f"what is served from batch {batch} of {epoch} on is wanted"
            else:
                soon = {pair for plan in present[batch:] for pair in pairs(plan)}
                assert wanted >= soon.intersection(held), "what the rest of the epoch serves must be wanted"
                assert len(wanted - coming) <= planner.batch_size, "a batch that is never served is wanted, at most"
            unknown = again(planner).wanted(epoch, batch, indices, versions + 99)
            assert not unknown.any(), "versions that there are not must not be wanted"

        self.for_each(check, epoch=st.integers(0, 4), data=st.data())

    def test_no_serving_of_a_sample_comes_twice(self) -> None:
        """Final augmentation is drawn by sample and serving, afresh each time."""

        def check(planner: Planner) -> None:
            plans = [plan for epoch in _EPOCHS for plan in planner.epoch(epoch)]
            servings = Counter(pair for plan in plans for pair in pairs(plan, "serving"))
            twice = [pair for pair, count in servings.items() if count > 1]
            assert not twice, f"these (index, serving) come twice: {twice}"

        self.for_each(check)

    def test_a_version_is_a_miss_in_the_first_row_that_serves_it_and_in_no_other(self) -> None:
        """What was computed once is a hit, until its version changes."""

        def check(planner: Planner) -> None:
            served: set[Pair] = set()
            for epoch in _EPOCHS:
                for plan in planner.epoch(epoch):
                    for pair, miss in zip(pairs(plan), plan.miss.tolist(), strict=True):
                        assert miss == (pair not in served), f"(index, version) {pair} of epoch {epoch}: miss is {miss}"
                        served.add(pair)

        self.for_each(check)

    def test_a_version_that_a_batch_does_not_keep_is_served_in_no_later_batch(self) -> None:
        """What is not kept is not asked for again."""

        def check(planner: Planner) -> None:
            given_up: set[Pair] = set()
            for epoch in _EPOCHS:
                for plan in planner.epoch(epoch):
                    returned = given_up.intersection(pairs(plan))
                    assert not returned, f"(index, version) {returned} were not kept, but epoch {epoch} has them"
                    given_up |= pairs_where(plan, ~plan.keep) - pairs_where(plan, plan.keep)

        self.for_each(check)

    def test_carrying_plans_out_every_hit_is_at_hand_within_the_slots_and_nothing_is_stored_in_vain(self) -> None:
        """Who frees `evict` after a batch, then stores the misses that it keeps, needs `shard_slots`, and no more."""

        def check(planner: Planner) -> None:
            assert len(planner.shard_slots) == planner.shards, "shard_slots must have a number for each shard"
            assert planner.peak_slots == sum(planner.shard_slots), "peak_slots must be the sum of shard_slots"
            replay = Replay()
            for epoch in _EPOCHS:
                for plan in planner.epoch(epoch):
                    made_here: set[Pair] = set()
                    for pair, miss in zip(pairs(plan), plan.miss.tolist(), strict=True):
                        if miss:
                            made_here.add(pair)
                        at_hand = replay.stored.get(pair[0]) == pair[1] or pair in made_here
                        assert at_hand, f"(index, version) {pair} of epoch {epoch} is a hit, but nobody holds it"
                    replay.carry_out(plan)
                    used = np.bincount(planner.owners(np.array([*replay.stored], np.int64)), minlength=planner.shards)
                    assert all(used <= planner.shard_slots), f"{used} slots of {planner.shard_slots} are taken"
            stored = {*replay.stored.items()}
            replay.carry_out(planner.plan(_LATER[0], 0))  # may still evict what an earlier batch served last
            asked_for = {pair for epoch in _LATER for plan in planner.epoch(epoch) for pair in pairs(plan)}
            in_vain = (stored & replay.stored.items()) - asked_for
            assert not in_vain, f"(index, version) {in_vain} stay stored, but are not asked for any more"

        self.for_each(check)

    def test_after_a_jump_no_version_is_computed_twice_for_want_of_slots(self) -> None:
        """With `peak_slots` slots, in which `wanted` leaves what is served, nothing is computed again after jumps."""
        if not self.wants_exactly:
            pytest.skip("wanted may name up to a batch more, which takes slots")

        def carry_out(plan: BatchPlan, stored: dict[int, int], slots: int) -> list[Pair]:
            rows = [(pair, keep) for pair, keep in zip(pairs(plan), plan.keep.tolist(), strict=True)]
            computed = [(pair, keep) for pair, keep in rows if stored.get(pair[0]) != pair[1]]
            for index in [*plan.evict.tolist(), *plan.indices[plan.miss & ~plan.keep].tolist()]:
                stored.pop(index, None)
            for (index, version), keep in computed:
                if keep and (index in stored or len(stored) < slots):
                    stored[index] = version
            return [pair for pair, _ in computed]

        def check(planner: Planner, data: st.DataObject) -> None:
            positions = st.tuples(st.integers(0, 12), st.integers(0, len(planner) - 1))
            stored: dict[int, int] = {}
            for epoch, batch in [(0, 0), data.draw(positions), data.draw(positions)]:
                held = np.array([*stored.items()], np.int64).reshape(-1, 2)
                stored = dict(held[planner.wanted(epoch, batch, *held.T)].tolist())
                computed: set[Pair] = set()
                for number in range(batch, batch + data.draw(st.integers(1, 3 * len(planner)))):
                    plan = planner.plan(epoch + number // len(planner), number % len(planner))
                    for pair in carry_out(plan, stored, planner.peak_slots):
                        assert pair not in computed, f"(index, version) {pair} is computed twice"
                        computed.add(pair)

        self.for_each(check, data=st.data())

    def test_ranks_together_plan_what_one_process_would_and_each_its_own_shards(self) -> None:
        """For every world size that divides the shards; where losses act on plans, each rank chooses by itself."""

        def check(planner: Planner) -> None:
            if planner.feedback_lag is not None:
                return
            members = [owned(planner, shard) for shard in range(planner.shards)]
            for shard, own in enumerate(members):
                owners = planner.owners(own)
                assert (owners == shard).all(), f"owners must say {shard} of the shard's members, got {owners}"
            every = sorted(np.concatenate(members).tolist())
            assert every == list(range(planner.num_samples)), "each sample must be a member of one shard"
            larger = max(map(len, members)) - min(map(len, members))
            assert larger <= self.shards_differ, f"shards must be equally large, within {self.shards_differ}"
            for world_size in [size for size in range(1, planner.shards + 1) if planner.shards % size == 0]:
                ranks = [planner.for_rank(rank=rank, world_size=world_size) for rank in range(world_size)]
                if not planner.any_world_size:
                    slots = sum(rank.peak_slots for rank in ranks)
                    assert slots == planner.peak_slots, f"ranks need {slots} slots, one process {planner.peak_slots}"
                for epoch in _EPOCHS[:4]:
                    parts = zip(*(rank.epoch(epoch) for rank in ranks), strict=True)
                    for plan, part in zip(planner.epoch(epoch), parts, strict=True):
                        check_parts(planner, plan, part)

        self.for_each(check)

    def test_a_rank_that_there_is_not_is_refused_and_the_only_one_plans_all(self) -> None:
        """`for_rank` refuses what is not below the world size; a rank's planner says how many rows it has."""

        def check(planner: Planner) -> None:
            for world_size in (1, planner.shards):
                with pytest.raises(ConfigurationError, match="rank must be an int"):
                    planner.for_rank(rank=world_size, world_size=world_size)
            assert planner.for_rank(rank=0, world_size=1).fingerprint() == planner.fingerprint()
            if planner.feedback_lag is not None:
                return
            rows = max(len(plan.indices) for plan in planner.epoch(0)) if planner.any_world_size else planner.batch_size
            for rank in range(planner.shards):
                mine = planner.for_rank(rank=rank, world_size=planner.shards)
                assert (len(mine), mine.batch_size) == (len(planner), rows // planner.shards)
                assert mine.peak_slots == planner.shard_slots[rank]

        self.for_each(check)

    def test_equal_planners_have_equal_fingerprints_of_json_and_others_have_others(self) -> None:
        """A saved state is told by it: every argument is in it."""

        def check(planner: Planner, other: Planner) -> None:
            fingerprint = planner.fingerprint()
            assert json.loads(json.dumps(fingerprint)) == fingerprint, f"a fingerprint must be JSON, got {fingerprint}"
            assert again(planner).fingerprint() == fingerprint, "equal planners must have equal fingerprints"
            same = other.fingerprint() == fingerprint
            assert same == (other == planner), f"other planners must have other fingerprints, got {fingerprint} of both"

        self.for_each(check, other=self.planners())

    @pytest.mark.parametrize("wrong", [-1, 1.0])
    def test_an_epoch_or_a_batch_that_there_is_not_is_refused(self, wrong: Any) -> None:
        """A number that is none, or out of range, is an error at once; `Planner._check` raises it."""

        def check(planner: Planner) -> None:
            asks: list[Callable[[Any], object]] = [planner.epoch, lambda number: planner.plan(number, 0)]
            for ask in asks:
                with pytest.raises(ConfigurationError, match=r"epoch must be an int of at least 0, got .*: epochs"):
                    ask(wrong)
            for batch in (wrong, len(planner), 10**6):
                with pytest.raises(ConfigurationError, match=rf"batch must be an int in 0..{len(planner) - 1}, got"):
                    planner.plan(0, batch)

        self.for_each(check)
