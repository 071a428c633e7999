"""A loader goes on exactly where it was, from any moment; a state that cannot be meant is refused."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dalirefurb import (
    Arrays,
    AutoAssist,
    Concat,
    DiskStore,
    Echo,
    Evaluate,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    evaluate,
    planning,
    rand_augment,
    simple,
)
from dalirefurb.dali import versions
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.errors import ConfigurationError, LoaderError, StateMismatchError
from dalirefurb.planning import BatchEcho, Fresh, Frozen
from dalirefurb.planning.planner import DerivedPlanner, Planner
from dalirefurb.reading.pillow_decoder import pillow_version
from dalirefurb.source import Source
from dalirefurb.store import Store
from dalirefurb.trainers.trainer_loader import TrainerLoader
from tests.engine.test_bit_identity import assert_same
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.pictures import write_folder
from tests.planners import untried
from tests.resuming import Record, assert_resumes_everywhere, batches_of, record

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 32
NUM_SAMPLES = 15
EPOCHS = 3
STANDARD = Standard(NUM_SAMPLES, batch_size=4, seed=7)
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=2, seed=7)
ECHO = Echo(STANDARD, echoing_factor=2, buffer_size=6)

TECHNIQUES: dict[str, tuple[Recipe, Planner]] = {
    "standard": (simple(SIZE), STANDARD),
    "refurbished": (rand_augment(SIZE), REFURBISH),
    "refurbished in part": (simple(SIZE), Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=3, coverage=0.6, seed=7)),
    "files refurbished": (rand_augment(SIZE, split=0), REFURBISH),
    "echoed before decoding": (simple(SIZE, split=0), ECHO),
    "echoed before augmentation": (simple(SIZE, split=1), ECHO),
    "echoed after augmentation": (simple(SIZE, split=3), ECHO),
    "batches echoed": (simple(SIZE, split=1), BatchEcho(STANDARD, echoing_factor=1.5)),
    "batches echoed and shuffled": (
        simple(SIZE, split=1),
        BatchEcho(REFURBISH, echoing_factor=2, buffer_size=3),
    ),
    "SmartCache": (
        simple(SIZE, split=1),
        SmartCache(NUM_SAMPLES, batch_size=4, num_cache_objects=12, replace_percent=0.25, seed=7),
    ),
    "evaluated": (evaluate(SIZE), Evaluate(NUM_SAMPLES, batch_size=4, seed=7)),
    "frozen": (simple(SIZE), Frozen(NUM_SAMPLES, batch_size=4, seed=7)),
    "a control": (rand_augment(SIZE), Fresh(REFURBISH)),
    "assisted": (simple(SIZE), AutoAssist(REFURBISH, lag=9, accuracy_momentum=0.5)),
    "echoed and assisted": (simple(SIZE, split=1), AutoAssist(ECHO, lag=9, accuracy_momentum=0.5)),
}
_OTHERS = untried((planner for _, planner in TECHNIQUES.values()), num_samples=NUM_SAMPLES, batch_size=4, seed=7)
TECHNIQUES |= {name: (simple(SIZE), planner) for name, planner in _OTHERS.items()}


@runtime_checkable
class Stateful(Protocol):
    """What torchdata's protocol of this name asks for."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class LargeSource(Source):
    """As many samples as ImageNet has; none can be read."""

    labels = np.zeros(1_281_167, np.int64)
    encoded = True
    image_shape = None

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        raise NotImplementedError

    def name(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "LargeSource"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


@pytest.fixture(scope="module")
def recorded(source: ImageFolder) -> Callable[..., Record]:
    """What each technique serves without a store, on other threads than those that resume it."""

    @cache
    def look_up(name: str, kernels: Kernels | None = None) -> Record:
        recipe, planner = TECHNIQUES[name]
        prefetch = Prefetch(num_threads=2, replicas=2)
        with Loader(source, recipe, planner, prefetch=prefetch, kernels=kernels) as loader:
            return record(loader, planner, epochs=EPOCHS)

    return look_up


def loader_of(source: ImageFolder, name: str, store: Store | None = None, **changes: Any) -> Loader:
    recipe, planner = TECHNIQUES[name]
    return flat_loader(source, recipe, planner, store, **{"num_threads": 1, "look_ahead": 1, **changes})


def test_every_technique_is_resumed() -> None:
    public = {each for each in vars(planning).values() if isinstance(each, type) and issubclass(each, Planner)}
    planners = public - {Planner, DerivedPlanner}
    assert {type(planner) for _, planner in TECHNIQUES.values()} == planners


@pytest.mark.parametrize(("name", "where"), in_turn([*TECHNIQUES], ["in memory", "on disk", "always anew"]))
def test_restoring_serves_the_same_remaining_tensors(
    name: str, where: str, source: ImageFolder, recorded: Callable[..., Record], tmp_path: Path
) -> None:
    """At all places once a store is used; a new one is empty whatever the place, so an epoch of them is tried.

    One on disk is as empty as one in memory: for it two places are enough, and DALI computes. Weekly a new one is at
    every place.
    """
    numbers, kernels = count(), "dali" if where == "on disk" else None

    @contextmanager
    def resume() -> Iterator[Loader]:
        store = DiskStore(tmp_path / str(next(numbers))) if where == "on disk" else MemoryStore()
        with store, loader_of(source, name, store, kernels=kernels) as loader:
            yield loader

    planner = TECHNIQUES[name][1]
    cold_at = {"in memory": range(len(planner) + 1), "on disk": (1, len(planner)), "always anew": None}
    assert_resumes_everywhere(recorded(name, kernels), planner, resume, cold_at=cold_at[where])


def test_an_epoch_that_is_left_early_is_resumed_where_it_was_left(
    source: ImageFolder, recorded: Callable[..., Record]
) -> None:
    with loader_of(source, "refurbished", MemoryStore()) as loader:
        assert len(list(islice(loader, 1))) == 1
        state = loader.state_dict()
        assert len(list(islice(loader, 2))) == 2
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 2)
        loader.load_state_dict(state)
        rest = list(islice(batches_of(loader, REFURBISH), EPOCHS * len(REFURBISH) - 1))
    assert_same(recorded("refurbished").batches[1:], rest)


def test_a_loop_that_goes_on_while_a_state_is_loaded_says_so(source: ImageFolder) -> None:
    with loader_of(source, "refurbished") as loader:
        start = loader.state_dict()
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(start)
        with pytest.raises(LoaderError, match=r"must end before .* load_state_dict has moved it to batch 0 of epoch 0"):
            list(batches)
        assert loader.state_dict() == start


def test_a_loader_is_what_torchdata_calls_stateful(source: ImageFolder) -> None:
    with loader_of(source, "refurbished") as loader:
        assert isinstance(loader, Stateful)


def test_what_is_done_to_a_state_does_not_reach_the_loader(source: ImageFolder) -> None:
    with loader_of(source, "refurbished") as loader:
        state = loader.state_dict()
        before = json.dumps(state)
        state["fingerprint"]["planner"].clear()
        state["epoch"] = 7
        assert json.dumps(loader.state_dict()) == before


def test_a_state_is_small_however_many_samples_there_are() -> None:
    source = LargeSource()
    refurbish = Refurbish(len(source), batch_size=256, reuse_factor=3)
    with Loader(source, rand_augment(224), refurbish, prefetch=Prefetch(num_threads=1), kernels="dali") as loader:
        assert len(json.dumps(loader.state_dict())) < 10_000


VERSIONS = versions() | {"pillow": pillow_version()}

BAD_STATES = [
    pytest.param(lambda state: None, (), "it must be a mapping, got NoneType", id="nothing"),
    pytest.param(lambda state: [*state], (), "it must be a mapping, got list", id="a list"),
    pytest.param(lambda state: {}, ("batch", "epoch", "fingerprint", "format"), "it must hold .*but lacks", id="empty"),
    pytest.param(lambda state: without(state, "batch"), ("batch",), "lacks batch; load an earlier", id="no batch"),
    pytest.param(lambda state: {**state, "format": 99}, ("format",), "format 1, got 99; .*load it with", id="format"),
    pytest.param(lambda state: {**state, "epoch": -1}, ("epoch",), "int of at least 0, got -1", id="epoch"),
    pytest.param(lambda state: {**state, "batch": 4}, ("batch",), r"in 0\.\.3, got 4: an epoch has 4", id="batch"),
    pytest.param(lambda state: {**state, "batch": 1.5}, ("batch",), r"in 0\.\.3, got 1\.5", id="half a batch"),
    pytest.param(
        lambda state: {**state, "fingerprint": 3}, ("fingerprint",), "these differ: fingerprint;", id="fingerprint"
    ),
    pytest.param(lambda state: {**state, "epoch": 2**63}, ("epoch",), "at most 2147483647, got 9223372", id="far"),
    pytest.param(lambda state: {**state, "format": True}, ("format",), "format 1, got True;", id="a bool"),
    pytest.param(
        lambda state: {**state, "fingerprint": {**state["fingerprint"], "versions": {**VERSIONS, "dali": "0.1"}}},
        ("versions.dali",),
        "these differ: versions.dali; build the loader as it was .*; where a version differs, another version of dali",
        id="version of DALI",
    ),
]


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(("change", "keys", "message"), BAD_STATES)
def test_a_state_that_cannot_be_meant_is_refused_and_changes_nothing(
    change: Callable[[dict[str, Any]], Any], keys: tuple[str, ...], message: str, source: ImageFolder
) -> None:
    with loader_of(source, "refurbished") as loader:
        batches = iter(loader)
        next(batches)
        before = loader.state_dict()
        with pytest.raises(StateMismatchError, match=message) as caught:
            loader.load_state_dict(change(loader.state_dict()))
        assert caught.value.keys == keys
        assert loader.state_dict() == before
        assert len(list(batches)) == 3


ARRAYS = Arrays(np.zeros((12, 32, 32, 3), np.uint8), np.arange(12) % 3)


@pytest.mark.parametrize(
    ("other", "keys"),
    [
        (ARRAYS.subset(range(2, 8)), ("source.indices",)),
        (ARRAYS.subset(range(8)).subset(range(6)), ("source.of",)),
        (ARRAYS, ("planner.num_samples", "source")),
        (Concat([ARRAYS.subset(range(6)), ARRAYS]).subset(range(6)), ("source.of",)),
    ],
    ids=["other samples", "a subset of a subset", "the whole", "of several"],
)
def test_of_another_source_only_what_is_topmost_is_named(other: Source, keys: tuple[str, ...]) -> None:
    def loader_of_arrays(arrays: Source) -> Loader:
        planner = Refurbish(len(arrays), batch_size=3, reuse_factor=2)
        return Loader(arrays, simple(32, raw=True), planner, MemoryStore())

    with loader_of_arrays(ARRAYS.subset(range(6))) as first, loader_of_arrays(other) as second:
        message = f"these differ: {', '.join(keys)}; .* with the same samples and labels in the same order$"
        with pytest.raises(StateMismatchError, match=message) as caught:
            second.load_state_dict(first.state_dict())
        assert caught.value.keys == keys


@pytest.mark.parametrize(
    "change",
    [
        lambda state: without(state, "losses"),
        lambda state: {**state, "weights": state["weights"][:-8]},
        lambda state: {**state, "indices": state["indices"][:-1]},
        lambda state: {**state, "indices": ""},
        lambda state: {**state, "served": "two"},
        lambda state: {**state, "candidates": None},
        lambda state: {**state, "row": -1},
        lambda state: [],
    ],
)
def test_an_assistants_state_that_is_damaged_is_refused_and_changes_nothing(
    change: Callable[[dict[str, Any]], Any], source: ImageFolder, recorded: Callable[..., Record]
) -> None:
    expected = recorded("assisted").batches
    with loader_of(source, "assisted") as loader:
        batches = batches_of(loader, TECHNIQUES["assisted"][1])
        next(batches)
        state = loader.state_dict()
        with pytest.raises(StateMismatchError, match="the Assistant's part of the state must be") as caught:
            loader.load_state_dict({**state, "assistant": change(state["assistant"])})
        assert caught.value.keys == ("assistant",)
        assert loader.state_dict() == state
        assert_same(expected[1:6], list(islice(batches, 5)))
        with pytest.raises(StateMismatchError, match="lacks assistant"):
            loader.load_state_dict(without(state, "assistant"))


def test_of_a_state_that_is_damaged_neither_the_assistant_nor_bad_samples_are_taken(source: ImageFolder) -> None:
    with loader_of(source, "assisted", on_bad_sample="replace") as loader:
        batches = batches_of(loader, TECHNIQUES["assisted"][1])
        next(batches)
        earlier = loader.state_dict()
        next(batches)
        state = loader.state_dict()
        with pytest.raises(StateMismatchError, match="bad_samples of a state must be triples"):
            loader.load_state_dict({**earlier, "bad_samples": [3]})
        with pytest.raises(StateMismatchError, match="the Assistant's part of the state must be"):
            loader.load_state_dict({**earlier, "bad_samples": [[3, "name", "reason"]], "assistant": {}})
        assert loader.state_dict() == state


OTHER_VALUES: list[Any] = [
    *(None, True, False, -1, 2**31, 2**63, 2**64, 10**400, 1.5, float("nan"), float("inf"), "", "x", "\u00e9", b"AAAA"),
    *([], [None], {}, {"x": 1}, {1: 2, "x": None}, (), np.float32(0.5), np.arange(3), np.array(1), torch.ones(2)),
]


def parts_of(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in a state, the whole and lists and mappings included."""
    yield path
    inner = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in inner:
        yield from parts_of(value, (*path, key))


def changed(state: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """Return a copy in which `change` was applied to the container of a value, and its key."""
    whole = {"state": copy.deepcopy(state)}
    inner: Any = whole
    for key in ("state", *path)[:-1]:
        inner = inner[key]
    change(inner, ("state", *path)[-1])
    return whole["state"]


def put(value: Any) -> Callable[[Any, Any], None]:
    def change(container: Any, key: Any) -> None:
        container[key] = value

    return change


def add(container: Any, key: Any) -> None:
    if isinstance(container[key], dict):
        container[key][3] = container[key]["more"] = 1
    elif isinstance(container[key], list):
        container[key].append(1)


def remove(container: Any, key: Any) -> None:
    del container[key]


def is_in(state: Any, given: Any) -> bool:
    """Whether a mapping has all of a state's values, more of its own aside."""
    if isinstance(state, dict):
        return all(is_in(value, given.get(key)) for key, value in state.items())
    return bool(np.all(state == given))


def refusal_of(loader: Loader, state: Any) -> StateMismatchError | None:
    try:
        loader.load_state_dict(state)
    except StateMismatchError as refusal:
        return refusal
    return None


@pytest.mark.parametrize("name", [pytest.param("refurbished", marks=pytest.mark.weekly), "evaluated", "assisted"])
def test_a_state_with_any_value_changed_is_what_is_loaded_or_refused_by_name(name: str, source: ImageFolder) -> None:
    with loader_of(source, name) as loader:
        batches = batches_of(loader, TECHNIQUES[name][1])
        for _ in range(6):
            next(batches)
        state = loader.state_dict()
        changes = [*map(put, OTHER_VALUES), add, remove]
        refused = 0
        for path in parts_of(state):
            for change in changes if path else changes[:-1]:
                given = changed(state, path, change)
                if (refusal := refusal_of(loader, given)) is None:
                    # What is not asked for is left out: unknown keys, and the division where an epoch begins.
                    assert path[:1] == ("division",) or is_in(loader.state_dict(), given), (path, given)
                    loader.load_state_dict(state)
                    continue
                refused += 1
                assert all(isinstance(key, str) and key for key in refusal.keys), (path, refusal)
                assert refusal.keys or not isinstance(given, dict), (path, refusal)
                assert not re.search(r": ;|object|Traceback|sequence|ambiguous|Error|convert", str(refusal)), refusal
                assert loader.state_dict() == state
        assert refused > 500
        assert loader.state_dict() == state


@pytest.mark.parametrize("epoch", [2**31, 2**63 - 1, 2**63, 2**64, 10**30, np.uint64(2**63)])
def test_an_epoch_without_end_is_refused_wherever_it_is_named(epoch: Any, source: ImageFolder) -> None:
    with loader_of(source, "refurbished") as loader:
        for ask in (loader.set_epoch, loader.planner.epoch, lambda number: loader.planner.plan(number, 0)):
            with pytest.raises(ConfigurationError, match=r"epoch must be at most 2147483647, got \d+: epochs "):
                ask(epoch)
        with pytest.raises(StateMismatchError, match=r"epoch must be at most 2147483647, got \d+: epochs ") as caught:
            loader.load_state_dict({**loader.state_dict(), "epoch": epoch})
        assert caught.value.keys == ("epoch",)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_the_last_epoch_is_planned_as_any_other(name: str) -> None:
    planner = TECHNIQUES[name][1]
    for batch in range(len(planner)):
        if planner.feedback_lag is None:
            plan = planner.plan(2**31 - 1, batch)
            assert ((plan.indices >= 0) & (plan.indices < NUM_SAMPLES) & (plan.version >= 0)).all()
            assert planner.wanted(2**31 - 1, batch, plan.indices, plan.version)[~plan.miss].all()


@pytest.mark.parametrize("given", [None, 3, "state", [], {"ranks": 3}, {"ranks": None}, {"ranks": [3]}])
def test_what_is_no_state_of_a_trainers_loader_is_refused(given: Any, source: ImageFolder) -> None:
    with loader_of(source, "refurbished") as loader, pytest.raises(StateMismatchError, match="is not what state_dict"):
        TrainerLoader(loader).load_state_dict(given)


def test_a_loader_that_is_pickled_says_where_to_make_it(source: ImageFolder) -> None:
    with loader_of(source, "refurbished") as loader:
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LoaderError, match=r"cannot be pickled.*make it, and views of it, in the process"):
                copied(loader)
