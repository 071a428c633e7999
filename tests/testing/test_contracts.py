"""Do contracts find what breaks a promise, and say what must hold and what was seen?"""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

from dalirefurb import MemoryStore, Refurbish, Standard
from dalirefurb.augment import Parameter, Stage
from dalirefurb.image_batch import Images
from dalirefurb.planning import DerivedPlanner
from dalirefurb.testing import PlannerContract, StageContract, StoreContract, StoreMachine

# Stores


class Boasting(MemoryStore):
    """Says that it holds whatever is put."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        return np.ones_like(super().put(indices, versions, samples))


class Lent(MemoryStore):
    """Lends what it was given, not a copy."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        self.given = samples
        return super().put(indices, versions, samples)

    def get(self, indices: Any, versions: Any) -> Any:
        lease = super().get(indices, versions)
        lease.images = Images(self.given)
        return lease


class Late(MemoryStore):
    """Looks which opening it puts into when it has looked at the samples."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        return super().put(indices, versions, list(samples))


class Absent(MemoryStore):
    """Begins anew whenever it is opened."""

    def open(self, spec: Any) -> None:
        super().open(spec)
        self.clear()


class Confused(MemoryStore):
    """Lends the first version of what is asked for, whichever that is."""

    def get(self, indices: Any, versions: Any) -> Any:
        return super().get(indices, 0 * versions)


def contract_of(kind: type[MemoryStore]) -> StoreContract:
    class Contract(StoreContract):
        def store(self, folder: Path) -> MemoryStore:
            return kind()

    return Contract()


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    with request.param() as store:
        store.open(contract_of(request.param).spec())
        yield store


def test_a_store_that_holds_less_than_it_says_is_found() -> None:
    machine = StoreMachine(lambda folder: Boasting(), contract_of(Boasting).spec(), "nothing")
    machine.put([(index, 0) for index in range(5)], [1] * 5)
    with pytest.raises(AssertionError, match="5 slots must hold no more, lent ones included"):
        machine.put([(5, 0)], [1] * 5)
    machine.teardown()


def test_a_store_that_takes_what_it_has_no_slots_for_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a store without slots must hold nothing"):
        contract_of(Boasting).test_without_slots_everything_is_declined(tmp_path)


class Stubborn(MemoryStore):
    """Evicts nothing."""

    def evict(self, indices: Any, versions: Any = None) -> None:
        return


class Shy(MemoryStore):
    """Says that what it held already it does not hold."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        with self.get(indices, versions) as lease:
            there = lease.found.copy()
        return super().put(indices, versions, samples) & ~there


class Lazy(MemoryStore):
    """Holds nothing though there is room."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        return np.zeros(len(indices), np.bool_)


class Modest(MemoryStore):
    """Takes more than it says."""

    @property
    def nbytes(self) -> int:
        return 59


class Miscounting(MemoryStore):
    def __len__(self) -> int:
        return super().__len__() + 1


class Blind(MemoryStore):
    """Lends nothing."""

    def get(self, indices: Any, versions: Any) -> Any:
        return super().get(indices, versions + 99)


class Careworn(MemoryStore):
    """Lends what can be written to."""

    def get(self, indices: Any, versions: Any) -> Any:
        lease = super().get(indices, versions)
        lease.images = Images([sample.copy() for sample in lease.images])
        return lease


class Wasteful(MemoryStore):
    """Forgets what is wanted, too."""

    def retain(self, indices: Any, versions: Any) -> None:
        super().retain(indices[:0], versions[:0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Stubborn, r"held\(\) must name \[\(1, 0\)\], got \[\(0, 0\), \(1, 0\)\]"),
        (Shy, r"put must answer True for \(1, 0\), which is held already"),
        (Lazy, r"put must hold \(0, 0\), since only 0 of 5 slots are taken"),
        (Modest, "60 bytes are taken, but nbytes says 59"),
        (Miscounting, "len must count the 1 versions held, got 2"),
        (Blind, r"of \[\(1, 0\)\] get must find \[True\], got \[False\]"),
        (Careworn, "lent samples must be read-only"),
        (Wasteful, r"held\(\) must name \[\(1, 0\)\], got \[\]"),
    ],
)
def test_a_store_that_is_no_dictionary_is_found(kind: type[MemoryStore], message: str) -> None:
    machine = StoreMachine(lambda folder: kind(), contract_of(kind).spec(), "nothing")

    def see() -> None:
        machine.it_holds_what_the_dictionary_holds()
        machine.every_lease_shows_the_pixels_it_was_given()

    def use() -> None:
        machine.put([(0, 0)], [1] * 5)
        see()
        machine.put([(1, 0)], [1] * 5)
        machine.evict([0])
        see()
        machine.put([(1, 0)], [1] * 5)
        machine.get([(1, 0)])
        see()
        machine.retain([(1, 0), (2, 0)])
        see()

    try:
        with pytest.raises(AssertionError, match=message):
            use()
    finally:
        machine.teardown()


@pytest.mark.parametrize("opened", [Absent], indirect=True)
def test_a_store_that_forgets_when_it_is_opened_again_is_found(opened: MemoryStore) -> None:
    with pytest.raises(AssertionError, match="opened for the same must keep what it holds"):
        contract_of(Absent).test_opening_again_for_the_same_keeps_the_contents(opened)


@pytest.mark.parametrize("opened", [Confused], indirect=True)
def test_a_store_that_gives_another_version_is_found(opened: MemoryStore) -> None:
    with pytest.raises(AssertionError, match=r"threads must not disturb each other: .*all levels must be"):
        contract_of(Confused).test_threads_see_whole_samples_of_the_version_they_asked_for(opened)


@pytest.mark.parametrize("opened", [Lent], indirect=True)
def test_a_store_that_copies_nothing_is_found(opened: MemoryStore) -> None:
    with pytest.raises(AssertionError, match="put must copy samples, but lends what was given"):
        contract_of(Lent).test_what_is_put_is_copied(opened)


@pytest.mark.parametrize("opened", [Late], indirect=True)
def test_a_store_that_puts_into_a_later_opening_is_found(opened: MemoryStore) -> None:
    with pytest.raises(AssertionError, match="a call that began before closing must not be held after it"):
        contract_of(Late).test_what_is_put_while_it_is_closed_and_opened_again_is_not_in_it(opened)


# Planners


@dataclass(frozen=True)
class Altered(DerivedPlanner):
    """Refurbishes, but for what a wrong one does otherwise."""

    @property
    def shard_slots(self) -> tuple[int, ...]:
        return self.planner.shard_slots

    def plan(self, epoch: int, batch: int) -> Any:
        epoch, batch = self._check(epoch, batch)
        return self.planner.plan(epoch, batch)


@dataclass(frozen=True)
class Pessimistic(Altered):
    def plan(self, epoch: int, batch: int) -> Any:
        plan = super().plan(epoch, batch)
        return replace(plan, miss=np.ones_like(plan.miss)).read_only()


@dataclass(frozen=True)
class Writeable(Altered):
    def plan(self, epoch: int, batch: int) -> Any:
        plan = super().plan(epoch, batch)
        return replace(plan, evict=plan.evict.copy())


@dataclass(frozen=True)
class Stingy(Altered):
    @property
    def shard_slots(self) -> tuple[int, ...]:
        return tuple(slots // 2 for slots in self.planner.shard_slots)


@dataclass(frozen=True)
class Unchecked(Altered):
    def plan(self, epoch: int, batch: int) -> Any:
        return self.planner.plan(abs(int(epoch)), int(batch) % len(self))


@dataclass(frozen=True)
class Counting(Altered):
    """Plans another epoch each time."""

    def plan(self, epoch: int, batch: int) -> Any:
        epoch, batch = self._check(epoch, batch)
        vars(self)["asked"] = vars(self).get("asked", 0) + 1
        return self.planner.plan(vars(self)["asked"], batch)


@dataclass(frozen=True)
class Backwards(Altered):
    """Says that an epoch begins with its end."""

    def epoch(self, epoch: int) -> Any:
        return iter([*super().epoch(epoch)][::-1])


@dataclass(frozen=True)
class Laden(Altered):
    """Keeps what it has planned, where copies take it along."""

    def plan(self, epoch: int, batch: int) -> Any:
        return vars(self).setdefault("plans", {}).setdefault((epoch, batch), super().plan(epoch, batch))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class Greedy(Altered):
    """Wants whatever a store may have."""

    def wanted(self, epoch: int, batch: int, indices: Any, versions: Any) -> Any:
        return versions < 99


@dataclass(frozen=True)
class Unvaried(Altered):
    def plan(self, epoch: int, batch: int) -> Any:
        plan = super().plan(epoch, batch)
        return replace(plan, serving=np.zeros_like(plan.serving)).read_only()


@dataclass(frozen=True)
class Careless(Altered):
    """Keeps nothing."""

    def plan(self, epoch: int, batch: int) -> Any:
        plan = super().plan(epoch, batch)
        return replace(plan, keep=np.zeros_like(plan.keep)).read_only()


class OfTwoShards(Altered):
    """Does not know what a rank plans without the rest of a batch."""


@dataclass(frozen=True)
class Shared(Altered):
    """Has samples that the second shard does not own."""

    def owners(self, indices: Any) -> Any:
        return np.zeros_like(indices)


@dataclass(frozen=True)
class Nameless(Altered):
    def fingerprint(self) -> Any:
        return {"planner": type(self).__name__}


def altering(change: Callable[[Any], dict[str, Any]]) -> type[Altered]:
    """Return planners whose plans are changed so."""

    class Changed(Altered):
        def plan(self, epoch: int, batch: int) -> Any:
            plan = super().plan(epoch, batch)
            return replace(plan, **change(plan)).read_only()

    return Changed


@dataclass(frozen=True)
class Hoarding(Altered):
    """Has a slot for each sample, and frees none."""

    @property
    def shard_slots(self) -> tuple[int, ...]:
        return (self.num_samples,)

    def plan(self, epoch: int, batch: int) -> Any:
        plan = super().plan(epoch, batch)
        return replace(plan, evict=plan.evict[:0].copy()).read_only()


@dataclass(frozen=True)
class Sentimental(Hoarding):
    """Keeps what it serves in an epoch, and does not ask for it again."""

    def plan(self, epoch: int, batch: int) -> Any:
        plan = super().plan(epoch, batch)
        return replace(plan, keep=plan.keep | (epoch == 7)).read_only()


@dataclass(frozen=True)
class Unwanting(Altered):
    """Wants nothing that a store has."""

    def wanted(self, epoch: int, batch: int, indices: Any, versions: Any) -> Any:
        return np.zeros(len(indices), np.bool_)


@dataclass(frozen=True)
class Long(Altered):
    """Says that an epoch has more rows than it has."""

    rows_per_epoch: ClassVar[int] = 99  # type: ignore[assignment]


@dataclass(frozen=True)
class Slotless(Altered):
    @property
    def shard_slots(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class Undivided(Altered):
    """Has every rank serve all."""

    def for_rank(self, *, rank: int, world_size: int) -> Any:
        return self


FORM = "batches_have_the_shapes_types_and_limits_of_a_plan"
CARRIED = "carrying_plans_out_every_hit_is_at_hand_within_the_slots_and_nothing_is_stored_in_vain"


@pytest.mark.parametrize(
    ("change", "test", "message"),
    [
        (lambda plan: {"version": plan.version.astype(np.int32)}, FORM, "version must be int64, got int32"),
        (lambda plan: {"miss": plan.miss.astype(np.uint8)}, FORM, "miss must be bool, got uint8"),
        (lambda plan: {"keep": plan.keep[1:].copy()}, FORM, r"keep must have shape \(\d,\), got"),
        (lambda plan: {"evict": np.repeat(plan.indices[:1], 2)}, FORM, "evict must name a sample once"),
        (lambda plan: {"evict": np.array([99])}, FORM, r"samples must be in 0\.\.\d+, got \[99\]"),
        (lambda plan: {"indices": plan.indices + 99}, FORM, r"samples must be in 0\.\.\d+, got \["),
        (lambda plan: {"version": plan.version - 1}, FORM, "versions and servings must be at least 0"),
        (lambda plan: {"serving": plan.serving - 1}, FORM, "versions and servings must be at least 0"),
        (lambda plan: {"miss": np.zeros_like(plan.miss)}, CARRIED, "of epoch 0 is a hit, but nobody holds it"),
        (lambda plan: {"evict": np.arange(12)}, CARRIED, "is evicted, but was neither stored nor computed"),
    ],
)
def test_plans_that_break_a_promise_are_found(change: Any, test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(planner_contract_of(altering(change)), f"test_{test}")()


@pytest.mark.parametrize(
    ("kind", "test", "message"),
    [
        (Hoarding, CARRIED, "is to be kept, but 0 is still in its slot"),
        (Sentimental, CARRIED, "stay stored, but are not asked for any more"),
        (Slotless, CARRIED, "shard_slots must have a number for each shard"),
        (Long, FORM, r"rows_per_epoch must be \d+, got 99"),
        (Unwanting, "what_is_wanted_after_a_jump_is_what_will_be_served", "on is wanted"),
        (Stingy, "after_a_jump_no_version_is_computed_twice_for_want_of_slots", "is computed twice"),
        (Undivided, "ranks_together_plan_what_one_process_would_and_each_its_own_shards", "ranks need"),
        (Backwards, "any_batch_is_planned_alone_as_in_its_epoch", "must be as in its epoch"),
        (Greedy, "what_is_wanted_after_a_jump_is_what_will_be_served", "on is wanted"),
        (Unvaried, "no_serving_of_a_sample_comes_twice", "come twice"),
        (Careless, "a_version_that_a_batch_does_not_keep_is_served_in_no_later_batch", "were not kept, but"),
        (Shared, "ranks_together_plan_what_one_process_would_and_each_its_own_shards", "owners must say 1"),
        (
            Nameless,
            "equal_planners_have_equal_fingerprints_of_json_and_others_have_others",
            "other planners must have other fingerprints",
        ),
        (Pessimistic, "a_version_is_a_miss_in_the_first_row_that_serves_it_and_in_no_other", "miss is True"),
        (Writeable, "batches_have_the_shapes_types_and_limits_of_a_plan", "evict must be read-only"),
        (
            Stingy,
            "carrying_plans_out_every_hit_is_at_hand_within_the_slots_and_nothing_is_stored_in_vain",
            "slots of .* are taken",
        ),
        (Counting, "plans_are_the_same_asked_twice_or_out_of_order", "must be planned as before"),
    ],
)
def test_a_planner_that_breaks_a_promise_is_found(kind: type[Altered], test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(planner_contract_of(kind), f"test_{test}")()


@dataclass(frozen=True)
class Hasty(Altered):
    """Wants nothing that the batch at hand serves."""

    def wanted(self, epoch: int, batch: int, indices: Any, versions: Any) -> Any:
        plan = self.plan(epoch, batch)
        at_hand = {*zip(plan.indices.tolist(), plan.version.tolist(), strict=True)}
        others = [pair not in at_hand for pair in zip(indices.tolist(), versions.tolist(), strict=True)]
        return super().wanted(epoch, batch, indices, versions) & np.array(others, np.bool_)


def test_a_planner_that_may_want_too_much_and_wants_too_little_is_found() -> None:
    contract = planner_contract_of(Hasty)
    contract.wants_exactly = False  # type: ignore[misc]
    with pytest.raises(AssertionError, match="what the rest of the epoch serves must be wanted"):
        contract.test_what_is_wanted_after_a_jump_is_what_will_be_served()


def test_what_a_planner_raises_in_one_of_several_threads_is_told() -> None:
    @dataclass(frozen=True)
    class OfOneThread(Altered):
        def plan(self, epoch: int, batch: int) -> Any:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("another thread")
            return super().plan(epoch, batch)

    with pytest.raises(RuntimeError, match="another thread"):
        planner_contract_of(OfOneThread).test_threads_that_plan_at_once_get_what_each_would_get_alone()


def test_a_planner_that_takes_any_number_is_found() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        planner_contract_of(Unchecked).test_an_epoch_or_a_batch_that_there_is_not_is_refused(-1)


def test_a_planner_whose_copies_take_plans_along_is_found() -> None:
    with pytest.raises(AssertionError, match="a pickled planner must hold no plans"):
        planner_contract_of(Laden).test_a_copy_plans_the_same_and_takes_along_nothing_that_was_planned(copy.copy)


def planner_contract_of(kind: type[Altered]) -> PlannerContract:
    class Contract(PlannerContract):
        examples = 5

        def planners(self) -> Any:
            sizes = {
                "batch_size": st.just(4),
                "reuse_factor": st.just(2),
                "shards": st.just(1 + (kind in (OfTwoShards, Shared, Undivided))),
            }
            if kind is Sentimental:
                del sizes["reuse_factor"]
            inner = st.builds(Standard if kind is Sentimental else Refurbish, st.integers(12, 20), **sizes)
            return st.builds(kind, inner)

    return Contract()


def test_what_keeps_promises_passes() -> None:
    contract = planner_contract_of(Altered)
    contract.test_carrying_plans_out_every_hit_is_at_hand_within_the_slots_and_nothing_is_stored_in_vain()
    contract.test_plans_are_the_same_asked_twice_or_out_of_order()
    planner_contract_of(OfTwoShards).test_ranks_together_plan_what_one_process_would_and_each_its_own_shards()


# Stages


@dataclass(frozen=True)
class Brighter(Stage):
    """Adds a random number of levels."""

    name: str = "brighter"
    most: int = 20
    num_uniforms: ClassVar[int] = 1
    parameters: ClassVar = {"added": Parameter("float32")}

    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return {"added": (self.most * uniforms[:, 0]).astype(np.float32)}

    def apply(self, images: Any, parameters: Any) -> Any:
        from nvidia.dali import fn

        return fn.cast_like(images + parameters["added"], images)


class OfItsBatch(Brighter):
    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return super().draw(uniforms / uniforms.max(initial=1e-9), heights, widths)


class OfDoubles(Brighter):
    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return {"added": self.most * uniforms[:, 0]}


class Forgetful(Brighter):
    def fingerprint(self) -> Any:
        return {"stage": "brighter", "name": self.name}


class Smaller(Brighter):
    fixed_size = (8, 8)


@pytest.mark.parametrize(
    ("kind", "test", "arguments", "message"),
    [
        (OfItsBatch, "what_is_drawn_for_a_row_depends_on_its_key_and_its_size_alone", (), "must be as drawn among"),
        (OfDoubles, "it_draws_what_its_parameters_declare", (1,), "added must be float32, got float64"),
        (Forgetful, "any_other_field_makes_another_fingerprint_and_another_repr", (), "another field must make"),
        (Forgetful, "another_code_version_makes_another_fingerprint", (), "must have code_version in it"),
        (
            Smaller,
            "what_is_made_of_an_image_depends_on_it_alone_and_is_as_large_as_is_said",
            (),
            r"output_sizes says \[\[8, 8\], .*, but DALI makes \[\[64, 64\]",
        ),
    ],
)
def test_a_stage_that_breaks_a_promise_is_found(
    kind: type[Brighter], test: str, arguments: tuple[int, ...], message: str
) -> None:
    class Contract(StageContract):
        def stages(self) -> Any:
            return kind(), kind("other"), kind(most=30)

    with pytest.raises(AssertionError, match=message):
        getattr(Contract(), f"test_{test}")(*arguments)


def test_a_field_that_no_variant_has_and_sizes_that_are_all_refused_are_told() -> None:
    class Contract(StageContract):
        sizes = ()

        def stages(self) -> Any:
            return Brighter(), Brighter("other")

    with pytest.raises(AssertionError, match=r"must vary each field alone, but does not vary \['most'\]"):
        Contract().test_any_other_field_makes_another_fingerprint_and_another_repr()
    with pytest.raises(AssertionError, match=r"brighter must take an image of sizes=\(\): set sizes"):
        Contract().test_it_draws_what_its_parameters_declare(1)


# All


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StoreContract().store(Path()), r"define store\(self, folder\)"),
        (lambda: PlannerContract().planners(), r"define planners\(self\)"),
        (lambda: StageContract().stages(), r"define stages\(self\)"),
    ],
)
def test_a_contract_of_nothing_says_what_to_define(call: Any, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        call()


@pytest.mark.parametrize("package", ["hypothesis", "pytest"])
def test_a_missing_package_is_named_with_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dalirefurb.testing")
    monkeypatch.setitem(sys.modules, package, None)
    message = rf'but {package} cannot be imported: python -m pip install "dalirefurb\[test\]"'
    with pytest.raises(ImportError, match=message):
        importlib.import_module("dalirefurb.testing")
