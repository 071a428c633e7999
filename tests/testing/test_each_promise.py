"""Is each promise of a contract looked at, and broken ones told of as what they are?"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import Phase, settings

from dalirefurb import MemoryStore, Refurbish
from dalirefurb.augment import Stage
from dalirefurb.image_batch import Images
from dalirefurb.testing import PlannerContract, StageContract, StoreContract, StoreMachine
from dalirefurb.testing import stage as staging
from dalirefurb.testing.plans import ROWS, Replay, check_form, check_parts
from tests.testing.test_contracts import (
    CARRIED,
    FORM,
    Altered,
    Boasting,
    Brighter,
    Lazy,
    altering,
    contract_of,
    planner_contract_of,
)


@pytest.fixture(autouse=True)
def _any_example_will_do() -> Iterator[None]:
    """What is found need not be made small."""
    usual = settings.get_current_profile_name()
    settings.register_profile("any", settings(), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("any")
    yield
    settings.load_profile(usual)


PROMISES = {
    StoreContract: [
        "it_behaves_as_a_dictionary_while_leases_are_held",
        "what_is_put_is_copied",
        "what_is_put_beside_what_is_held_is_what_it_is",
        "what_is_lent_keeps_its_slot_until_it_is_released",
        "without_slots_everything_is_declined",
        "opening_again_for_the_same_keeps_the_contents",
        "a_lease_from_before_closing_is_harmless_to_what_is_opened_after",
        "what_is_put_while_it_is_closed_and_opened_again_is_not_in_it",
        "threads_see_whole_samples_of_the_version_they_asked_for",
    ],
    PlannerContract: [
        FORM,
        "plans_are_the_same_asked_twice_or_out_of_order",
        "any_batch_is_planned_alone_as_in_its_epoch",
        "an_epoch_and_a_batch_may_be_integers_of_numpy",
        "a_copy_plans_the_same_and_takes_along_nothing_that_was_planned",
        "threads_that_plan_at_once_get_what_each_would_get_alone",
        "what_is_wanted_after_a_jump_is_what_will_be_served",
        "no_serving_of_a_sample_comes_twice",
        "a_version_is_a_miss_in_the_first_row_that_serves_it_and_in_no_other",
        "a_version_that_a_batch_does_not_keep_is_served_in_no_later_batch",
        CARRIED,
        "after_a_jump_no_version_is_computed_twice_for_want_of_slots",
        "ranks_together_plan_what_one_process_would_and_each_its_own_shards",
        "a_rank_that_there_is_not_is_refused_and_the_only_one_plans_all",
        "equal_planners_have_equal_fingerprints_of_json_and_others_have_others",
        "an_epoch_or_a_batch_that_there_is_not_is_refused",
    ],
    StageContract: [
        "any_other_field_makes_another_fingerprint_and_another_repr",
        "a_copy_is_equal_and_tells_the_same_of_itself",
        "another_code_version_makes_another_fingerprint",
        "it_draws_what_its_parameters_declare",
        "what_is_drawn_for_a_row_depends_on_its_key_and_its_size_alone",
        "it_says_of_each_row_where_things_go_or_of_none",
        "what_is_shown_comes_from_where_it_is_said",
        "what_is_made_of_an_image_depends_on_it_alone_and_is_as_large_as_is_said",
    ],
}


@pytest.mark.parametrize("contract", PROMISES)
def test_a_contract_has_a_test_of_each_promise(contract: type) -> None:
    found = [name.removeprefix("test_") for name in vars(contract) if name.startswith("test_")]
    assert found == PROMISES[contract]


def test_any_call_of_a_store_is_made_and_looked_at() -> None:
    """A rule or an invariant of Hypothesis is a function that has been marked as one."""
    marks = {name: " ".join(vars(each)) for name, each in vars(StoreMachine).items() if inspect.isfunction(each)}
    made, seen = ([name for name, mark in marks.items() if kind in mark] for kind in ("_rule", "_invariant"))
    assert sorted(made) == sorted(
        [
            *("put", "make_some_in_its_room", "put_what_was_made_there", "have_no_more_of_what_was_made_there"),
            *("get", "release", "prefetch", "evict", "evict_versions", "ask_what_it_holds_of_some", "retain", "clear"),
            *("open_again", "close_and_open", "fill_it_with_its_largest_sample"),
            "release_what_was_lent_before_closing",
        ]
    )
    assert sorted(seen) == [
        "every_lease_shows_the_pixels_it_was_given",
        "it_holds_what_the_dictionary_holds",
        "what_was_made_in_its_room_stays_as_it_is",
    ]


# Stores


class Blurred(MemoryStore):
    """Keeps other pixels than are put."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        return super().put(indices, versions, [sample // 2 for sample in samples])


class Tired(MemoryStore):
    """Takes nothing once it has been opened twice."""

    opened = 0

    def open(self, spec: Any) -> None:
        self.opened += 1
        super().open(spec)

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        return np.zeros(len(indices), np.bool_) if self.opened > 1 else super().put(indices, versions, samples)


class Cleared(MemoryStore):
    """Takes nothing once it has been cleared."""

    cleared = False

    def clear(self) -> None:
        self.cleared = True
        super().clear()

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        return np.zeros(len(indices), np.bool_) if self.cleared else super().put(indices, versions, samples)


class Generous(MemoryStore):
    """Takes the place of what is lent."""

    def evict(self, indices: Any, versions: Any = None) -> None:
        spec = self._contents.spec  # type: ignore[union-attr]
        super().evict(indices, versions)
        self.close()
        self.open(spec)


class Hoarding(MemoryStore):
    """Gives back no slot that it has lent."""

    def get(self, indices: Any, versions: Any) -> Any:
        super().get(indices, versions)
        return super().get(indices, versions)


class Full(MemoryStore):
    """Says that it holds more than it has slots for."""

    def __len__(self) -> int:
        return 6


@pytest.mark.parametrize(
    ("kind", "test", "message"),
    [
        (Boasting, "what_is_put_beside_what_is_held_is_what_it_is", "put says True of sample 5, but not get"),
        (Blurred, "what_is_put_beside_what_is_held_is_what_it_is", "a sample must be what was put"),
        (Generous, "what_is_lent_keeps_its_slot_until_it_is_released", "what is lent must keep its slot, but of 5"),
        (Hoarding, "what_is_lent_keeps_its_slot_until_it_is_released", "must give all slots back, but put says"),
        (
            Tired,
            "a_lease_from_before_closing_is_harmless_to_what_is_opened_after",
            "a lease of an earlier opening must take no slot of a later one, but put says",
        ),
        (Cleared, "threads_see_whole_samples_of_the_version_they_asked_for", "an empty store must have all of its"),
        (Full, "threads_see_whole_samples_of_the_version_they_asked_for", "5 slots hold 6 versions"),
        (Full, "what_is_put_while_it_is_closed_and_opened_again_is_not_in_it", "assert 6 == 0"),
    ],
)
def test_a_store_that_breaks_a_promise_is_found(kind: type[MemoryStore], test: str, message: str) -> None:
    contract = contract_of(kind)
    contract.rounds = 2  # type: ignore[misc]
    with kind() as store:
        store.open(contract.spec())
        with pytest.raises(AssertionError, match=message):
            getattr(contract, f"test_{test}")(store)


class Stuck(MemoryStore):
    """Has threads wait for what does not come."""

    def __init__(self) -> None:
        super().__init__()
        self.comes = threading.Event()

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            self.comes.wait()
        return super().put(indices, versions, samples)


def test_threads_that_wait_for_ever_are_told_and_do_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    join, waited = threading.Thread.join, list[threading.Thread]()

    def a_moment(thread: threading.Thread, timeout: float | None = None) -> None:
        waited.append(thread)
        join(thread, 0.01)

    contract = contract_of(Stuck)
    contract.rounds = 1  # type: ignore[misc]
    with Stuck() as store:
        store.open(contract.spec())
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", a_moment)
            with pytest.raises(AssertionError, match="threads must not wait for each other for ever"):
                contract.test_threads_see_whole_samples_of_the_version_they_asked_for(store)
        store.comes.set()
        for thread in waited:
            thread.join()
    assert len(waited) == 4
    assert all(thread.daemon for thread in waited)


class Short(MemoryStore):
    """Has room for one less than it is asked for."""

    def reserve(self, count: int) -> Any:
        return super().reserve(count - 1)


class Shared(MemoryStore):
    """Lends the same room again."""

    room: Any = None

    def reserve(self, count: int) -> Any:
        self.room = self.room or super().reserve(count)
        return self.room


class Undead(MemoryStore):
    """Says that it holds something when it is closed."""

    def __len__(self) -> int:
        try:
            return super().__len__() or 1
        except Exception:
            return 1


class Vague(MemoryStore):
    """Names all that it holds, whatever it is asked for."""

    def held(self, indices: Any = None) -> Any:
        return super().held()


class Mirrored(MemoryStore):
    """Lends what does not lie as an image does."""

    def get(self, indices: Any, versions: Any) -> Any:
        lease = super().get(indices, versions)
        lease.images = Images([None if sample is None else sample[:, ::-1] for sample in lease.samples])
        return lease


class Fading(MemoryStore):
    """Lends what becomes something else."""

    def get(self, indices: Any, versions: Any) -> Any:
        lease = super().get(indices, versions)
        faded = [sample // 2 for sample in lease.images]
        for sample in faded:
            sample.flags.writeable = False
        lease.images = Images(faded)
        return lease


def use_room(machine: StoreMachine) -> None:
    machine.make_some_in_its_room(2)
    machine.make_some_in_its_room(2)
    machine.what_was_made_in_its_room_stays_as_it_is()


def borrow(machine: StoreMachine) -> None:
    machine.put([(1, 0)], [1] * 5)
    machine.get([(1, 0)])
    machine.every_lease_shows_the_pixels_it_was_given()


def ask(machine: StoreMachine) -> None:
    machine.put([(1, 0), (2, 0)], [1] * 5)
    machine.ask_what_it_holds_of_some([1])


@pytest.mark.parametrize(
    ("kind", "use", "message"),
    [
        (Short, use_room, "reserve must lend room for 2 images or None, got 1"),
        (Shared, use_room, "room must be nobody else's while somebody has it"),
        (Undead, StoreMachine.close_and_open, "a closed store must say that it holds nothing, got 1"),
        (Lazy, StoreMachine.fill_it_with_its_largest_sample, "an empty store must have room for its largest sample"),
        (Vague, ask, r"held\(\[1\]\) must name \[\(1, 0\)\], got \[\(1, 0\), \(2, 0\)\]"),
        (Mirrored, borrow, "lent samples must be C-contiguous"),
        (Fading, borrow, "lent samples must stay as they are until released"),
    ],
)
def test_a_store_that_does_not_do_what_it_is_asked_for_is_found(
    kind: type[MemoryStore], use: Callable[[StoreMachine], None], message: str
) -> None:
    machine = StoreMachine(lambda folder: kind(), contract_of(kind).spec(), "nothing")
    try:
        with pytest.raises(AssertionError, match=message):
            use(machine)
    finally:
        machine.teardown()


def test_what_is_lent_when_a_store_is_closed_is_looked_at_afterwards() -> None:
    machine = StoreMachine(lambda folder: MemoryStore(), contract_of(MemoryStore).spec(), "nothing")
    try:
        machine.put([(1, 0)], [1] * 5)
        machine.get([(1, 0), (2, 0)])
        machine.make_some_in_its_room(1)
        machine.close_and_open()
        assert (machine.images, machine.leases, machine.rooms) == ({}, [], [])
        assert (len(machine.closed), len(machine.closed_rooms)) == (1, 1)
        machine.every_lease_shows_the_pixels_it_was_given()
        machine.it_holds_what_the_dictionary_holds()
        _, written = machine.closed_rooms[0]
        written[0][:] = 0
        with pytest.raises(AssertionError, match="room must be nobody else's"):
            machine.what_was_made_in_its_room_stays_as_it_is()
        _, expected = machine.closed[0]
        expected[1] = expected[0]
        with pytest.raises(AssertionError, match="a lease must have a sample where one was found, or None"):
            machine.every_lease_shows_the_pixels_it_was_given()
    finally:
        machine.teardown()


# Planners


@dataclass(frozen=True)
class Halved(Altered):
    def epoch(self, epoch: int) -> Iterator[Any]:
        return iter([*super().epoch(epoch)][1:])


@dataclass(frozen=True)
class Unlisted(Altered):
    def plan(self, epoch: int, batch: int) -> Any:
        return super().plan(epoch, batch).indices


@dataclass(frozen=True)
class Curious(Altered):
    """Wants versions that there are not."""

    def wanted(self, epoch: int, batch: int, indices: Any, versions: Any) -> Any:
        return super().wanted(epoch, batch, indices, versions) | (versions >= 99)


@dataclass(frozen=True)
class OfTuples(Altered):
    def fingerprint(self) -> Any:
        return {"planner": (1, 2)}


@dataclass(frozen=True)
class OfItself(Altered):
    def fingerprint(self) -> Any:
        return {"planner": id(self)}


class Unequal(Altered):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class OfAnyRank(Altered):
    def for_rank(self, *, rank: int, world_size: int) -> Any:
        return super().for_rank(rank=rank % world_size, world_size=world_size)


@dataclass(frozen=True)
class Peaked(Altered):
    peak_slots: ClassVar[int] = 99  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "test", "message"),
    [
        (Halved, FORM, r"epoch must yield \d plans, got \d"),
        (Unlisted, FORM, "plan must return a BatchPlan, got "),
        (
            altering(lambda plan: {name: np.tile(getattr(plan, name), 2) for name in ROWS}),
            FORM,
            "a batch must have 1 to 4 rows, got 8",
        ),
        (Peaked, CARRIED, "peak_slots must be the sum of shard_slots"),
        (Curious, "what_is_wanted_after_a_jump_is_what_will_be_served", "versions that there are not must not be"),
        (OfTuples, "equal_planners_have_equal_fingerprints_of_json_and_others_have_others", "must be JSON, got"),
        (
            OfItself,
            "equal_planners_have_equal_fingerprints_of_json_and_others_have_others",
            "equal planners must have equal fingerprints",
        ),
    ],
)
def test_a_planner_that_breaks_a_promise_is_found(kind: type[Altered], test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(planner_contract_of(kind), f"test_{test}")()


def test_a_planner_whose_copies_are_others_is_found() -> None:
    with pytest.raises(AssertionError, match="a copy must equal its planner"):
        planner_contract_of(Unequal).test_a_copy_plans_the_same_and_takes_along_nothing_that_was_planned(replace)


def test_a_planner_of_any_rank_is_found() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        planner_contract_of(OfAnyRank).test_a_rank_that_there_is_not_is_refused_and_the_only_one_plans_all()


def cut(plan: Any, rows: slice) -> Any:
    return replace(plan, **{name: getattr(plan, name)[rows].copy() for name in ROWS}).read_only()


@pytest.mark.parametrize(
    ("planner", "least"),
    [
        (Refurbish(12, batch_size=4, reuse_factor=2), 1),
        (Refurbish(12, batch_size=4, reuse_factor=2, drop_last=True), 4),
        (Refurbish(12, batch_size=4, reuse_factor=2, shards=2), 4),
    ],
)
def test_a_batch_may_be_short_where_the_last_one_of_an_epoch_may(planner: Refurbish, least: int) -> None:
    plan = planner.plan(0, 0)
    check_form(planner, plan)
    if least == 1:
        check_form(planner, cut(plan, slice(1)))
    for rows in range(least):
        with pytest.raises((AssertionError, ValueError), match=f"{least} to 4 rows, got {rows}|zero-size"):
            check_form(planner, cut(plan, slice(rows)))


def test_parts_of_a_plan_that_are_not_the_ranks_own_are_found() -> None:
    planner = Refurbish(16, batch_size=4, reuse_factor=2, shards=2)
    ranks = [planner.for_rank(rank=rank, world_size=2) for rank in (0, 1)]
    epoch, batch = next(
        (epoch, batch) for epoch in range(4) for batch in range(4) if len(planner.plan(epoch, batch).evict)
    )
    plan, (first, second) = planner.plan(epoch, batch), [rank.plan(epoch, batch) for rank in ranks]
    check_parts(planner, plan, [first, second])
    check_parts(planner, plan, [plan])
    with pytest.raises(AssertionError, match="indices of all ranks, one after another, must be the batch's"):
        check_parts(planner, plan, [second, first])
    serving = replace(second, serving=second.serving + 1)
    with pytest.raises(AssertionError, match="serving of all ranks, one after another, must be the batch's"):
        check_parts(planner, plan, [first, serving])
    with pytest.raises(AssertionError, match="rank 0 serves samples of the ranks "):
        check_parts(planner, plan, [cut(plan, slice(3)), cut(plan, slice(3, 4))])
    others = [replace(part, evict=np.array([99])) for part in (first, second)]
    with pytest.raises(AssertionError, match=r"rank 0 must evict \[.*\], got \[99\]"):
        check_parts(planner, plan, others)


def test_the_most_that_was_ever_stored_is_counted() -> None:
    replay, plan = Replay(), Refurbish(12, batch_size=4, reuse_factor=2).plan(0, 0)
    replay.carry_out(plan)
    stored = [*replay.stored]
    assert replay.peak == len(stored) > 0
    replay.carry_out(replace(plan, keep=np.zeros(4, np.bool_), evict=np.array(stored)))
    assert (replay.stored, replay.peak) == ({}, len(stored))


# Stages


class Renamed(Brighter):
    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return {"other": super().draw(uniforms, heights, widths)["added"]}


class Wide(Brighter):
    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return {"added": np.repeat(super().draw(uniforms, heights, widths)["added"][:, None], 2, axis=1)}


class Strided(Brighter):
    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return {"added": super().draw(uniforms.repeat(2, axis=0), heights, widths)["added"][::2]}


class Uncounted(Brighter):
    def output_sizes(self, heights: Any, widths: Any) -> Any:
        return heights[:1], widths[:1]


class Fixed(Brighter):
    fixed_size = (8, 8)

    def output_sizes(self, heights: Any, widths: Any) -> Any:
        return heights, widths


class Unnamed(Brighter):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


class Placed(Brighter):
    """Leaves everything where it is, and says so itself."""

    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return np.tile(np.eye(3), (len(heights), 1, 1))


class Stepless(Placed):
    def steps(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return None


class Twice(Placed):
    def steps(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return [2 * self.matrices(parameters, heights, widths)]


class Sometimes(Brighter):
    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return np.tile(np.eye(3), (len(heights), 1, 1)) if len(heights) > 1 else None


class OfItsBatch(Placed):
    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return super().matrices(parameters, heights, widths) * max(len(heights), 1)


class Flat(Placed):
    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return 0 * super().matrices(parameters, heights, widths)


class Mapless(Placed):
    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return super().matrices(parameters, heights, widths)[:, :2]

    def steps(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return [super().matrices(parameters, heights, widths)]


def stage_contract_of(kind: type[Stage], **limits: Any) -> StageContract:
    class Contract(StageContract):
        def stages(self) -> Sequence[Any]:
            return kind(), kind("other"), kind(most=30)  # type: ignore[call-arg]

    for name, value in limits.items():
        setattr(Contract, name, value)
    return Contract()


DRAWN, SAID = "it_draws_what_its_parameters_declare", "it_says_of_each_row_where_things_go_or_of_none"


@pytest.mark.parametrize(
    ("kind", "test", "arguments", "message"),
    [
        (Renamed, DRAWN, (3,), r"draw must return \['added'\], got \['other'\]"),
        (Wide, DRAWN, (3,), r"added must have shape \(3,\), got \(3, 2\)"),
        (Strided, DRAWN, (3,), "added must be C-contiguous"),
        (Uncounted, DRAWN, (3,), "output_sizes must return 3 of each"),
        (Fixed, DRAWN, (3,), r"fixed_size is \(8, 8\), but output_sizes says"),
        (Unnamed, "a_copy_is_equal_and_tells_the_same_of_itself", (), "a copy must be equal, got"),
        (Stepless, SAID, (), "matrices and steps must both be None, or neither"),
        (Twice, SAID, (), "matrices must be its steps one after the other"),
        (Sometimes, SAID, (), "matrices must return None for any rows, or for none"),
        (OfItsBatch, SAID, (), "must be as among others"),
        (Flat, SAID, (), "maps must have an inverse"),
    ],
)
def test_a_stage_that_breaks_a_promise_is_found(
    kind: type[Brighter], test: str, arguments: tuple[int, ...], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(stage_contract_of(kind), f"test_{test}")(*arguments)


def moved(columns: int = 0, levels: int = 0, batch: int = 0) -> staging.Maker:
    """Return what makes images a little to the left, a little brighter, and by how many there are."""

    def made(pictures: Any, parameters: Any) -> list[Any]:
        added = levels + batch * (len(pictures) == 1)
        return [np.roll(picture, -columns, axis=1) + np.uint8(added) for picture in pictures]

    return made


MADE, SHOWN = (
    "what_is_made_of_an_image_depends_on_it_alone_and_is_as_large_as_is_said",
    "what_is_shown_comes_from_where_it_is_said",
)


@pytest.mark.parametrize(
    ("test", "makers", "message"),
    [
        (MADE, {"DALI": moved(batch=1)}, r"image \d+ must be the same in any batch, but not by DALI in the batch \[\d"),
        (MADE, {"kernels": moved(batch=1)}, "must be the same in any batch, but not by kernels"),
        (SHOWN, {"DALI": moved(2)}, "DALI shows row 0 from 2.0 pixels beside what is said"),
        (SHOWN, {"kernels": moved(), "DALI": moved(-2)}, "DALI shows row 0 from 2.0 pixels beside what is said"),
        (SHOWN, {"kernels": moved(levels=1)}, "kernels must show all that matrices says is shown of row 0"),
        (SHOWN, {"kernels": moved(1), "DALI": moved(-1)}, None),
    ],
)
def test_pixels_that_break_a_promise_are_found(
    test: str, makers: dict[str, staging.Maker], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "makers_of", lambda stage: makers)
    check = getattr(stage_contract_of(Placed), f"test_{test}")
    if message is None:
        check()
    else:
        with pytest.raises(AssertionError, match=message):
            check()


class Away(Placed):
    """Says that nothing is where it could be seen."""

    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return super().matrices(parameters, heights, widths) + 500 * np.eye(3, k=2)


def test_what_is_shown_though_it_is_said_to_be_from_outside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "makers_of", lambda stage: {"DALI": moved()})
    with pytest.raises(AssertionError, match=r"DALI shows row 0 from 500.0 pixels beside what is said"):
        getattr(stage_contract_of(Away), f"test_{SHOWN}")()


@pytest.mark.parametrize(("apart", "most", "found"), [(1, 1, False), (2, 1, True), (2, 2, False), (9, None, False)])
def test_kernels_that_are_further_from_dali_than_is_said_are_found(
    apart: int, most: int | None, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dark(levels: int) -> staging.Maker:
        return lambda pictures, parameters: [picture // 2 + np.uint8(levels) for picture in pictures]

    check = getattr(stage_contract_of(Placed, levels_apart=most), f"test_{MADE}")
    for makers in ({"kernels": dark(0), "DALI": dark(apart)}, {"kernels": dark(apart), "DALI": dark(0)}):
        monkeypatch.setattr(staging, "makers_of", lambda stage, makers=makers: makers)
        if found:
            with pytest.raises(AssertionError, match=f"kernels must be {most} levels from DALI, are {apart}"):
                check()
        else:
            check()


def test_what_keeps_its_place_or_is_not_to_be_compared_is_not_compared() -> None:
    class Kept(Brighter):
        keeps_place = True

    for kind, limits in ((Kept, {}), (Placed, {"pixels_apart": None}), (Brighter, {})):
        with pytest.raises(pytest.skip.Exception, match="what keeps its place"):
            stage_contract_of(kind, **limits).test_what_is_shown_comes_from_where_it_is_said()
