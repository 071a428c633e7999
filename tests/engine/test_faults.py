"""Every call can fail: the error reaches the training loop, and what is served before and after it is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, product
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dalirefurb import (
    Arrays,
    AutoAssist,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    TorchDataset,
    Volumes,
    simple,
)
from dalirefurb.augment import Custom, RandomFlip3D, VolumeOutput
from dalirefurb.augment.stage import Arrays as Parameters
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip
from dalirefurb.dali import Replicas
from dalirefurb.engine.backend_factory import KernelsThenGraph
from dalirefurb.engine.backends import BothPartsBackend
from dalirefurb.engine.finals import FinalGraph, FinalKernels
from dalirefurb.engine.volumes import FinalVolumes, VolumeRunner
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.difficulty import FeatureTable
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Lease
from tests.endings import nothing_left, wait_for_threads
from tests.engine.test_bit_identity import Batches, assert_same
from tests.faults import Fault, limited, turns
from tests.loading import flat_loader
from tests.pictures import jpeg, picture
from tests.resuming import losses_of

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 32
EPOCH, BATCHES = 3, 6
REFURBISH = Refurbish(12, batch_size=4, reuse_factor=2, seed=3)


@contextmanager
def told(fault: Fault | None) -> Iterator[list[Exception]]:
    """Let no error through that the fault has caused; list it."""
    heard: list[Exception] = []
    try:
        yield heard
    except Exception as error:
        if fault is None or not fault.caused(error):
            raise
        heard.append(error)


@dataclass(frozen=True)
class UsersFlip(HorizontalFlip):
    """A user's own stage."""

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Parameters:
        return super().draw(uniforms, heights, widths)


@dataclass(frozen=True)
class Case:
    """A short training.

    Attributes:
        planner: Of 3 batches an epoch.
        stored: Whether there is a store.
        batches_per_group: Of the loader.
        kernels: Of the loader.
        encoded: Whether files are stored, as they were read.
        views: Whether there are two images of each sample.
        volumes: Whether samples are volumes.
        dali_from: Name of the stage from which on DALI does what kernels have begun; empty: one of them does all.
    """

    planner: Planner
    stored: bool = True
    batches_per_group: int = 1
    kernels: Literal["dali", "numba"] = "dali"
    encoded: bool = False
    views: bool = False
    volumes: bool = False
    dali_from: str = ""

    def train(
        self, store: MemoryStore | None, fault: Fault | None = None, batches_wanted: int = BATCHES
    ) -> tuple[Batches, int]:
        """Serve two epochs; go on after an error, which must be the fault. Return batches and errors."""
        served: Batches = []
        errors = 0
        with self._loader(store) as loader:
            batches = iter(loader)
            while len(served) < batches_wanted:
                with told(fault) as heard:
                    batch = next(batches, None)
                errors += len(heard)
                if heard:
                    continue
                if batch is None:
                    batches = iter(loader)
                    continue
                images, labels = batch
                if isinstance(self.planner, AutoAssist):
                    loader.observe(losses_of(images))
                served.append((torch.stack(images) if self.views else images.clone(), labels))
        return served, errors

    def _loader(self, store: MemoryStore | None) -> Loader:
        flip = HorizontalFlip if self.kernels == "numba" else UsersFlip
        recipe, view = (Recipe([flip(name="early"), flip(name=name)], Output(SIZE), 1) for name in ("late", "other"))
        if self.dali_from:
            stages, place, split = [CenterCrop(SIZE), *recipe.stages], 2, 2
            if self.dali_from == "early":
                place, split = 1, 3
            stages.insert(place, Custom(lambda images: images, "dali"))
            recipe = Recipe(stages, Output(SIZE), split)
        prefetch = {"num_threads": 1, "look_ahead": 1, "batches_per_group": self.batches_per_group}
        if self.encoded:
            return flat_loader(Files(), simple(SIZE, split=0), self.planner, store, kernels=self.kernels, **prefetch)
        if self.volumes:
            stages = [RandomFlip3D(name="early"), RandomFlip3D(name="late")]
            return flat_loader(VOLUMES, Recipe(stages, VolumeOutput((5, 4, 3)), 1), self.planner, store, **prefetch)
        views = [view] if self.views else ()
        return flat_loader(SOURCE, recipe, self.planner, store, views=views, kernels=self.kernels, **prefetch)


class Files(Source):
    """Encoded pictures."""

    encoded = True
    labels = np.arange(12)

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [FILES[index] for index in indices.tolist()]

    def name(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "Files"}


FILES = [np.frombuffer(jpeg(picture(i, height=SIZE, width=SIZE + i)), np.uint8) for i in range(12)]
SOURCE = Arrays(np.stack([np.asarray(picture(i, height=SIZE, width=SIZE)) for i in range(12)]), np.arange(12))
VOLUMES = Volumes([np.random.default_rng(i).random((5, 4, 3), np.float32) for i in range(12)], labels=np.arange(12))
CASES = {
    "refurbished": Case(REFURBISH),
    "refurbished, runs of two": Case(REFURBISH, batches_per_group=2),
    "not stored": Case(Standard(12, batch_size=4), stored=False),
    "assisted": Case(AutoAssist(REFURBISH, lag=8)),
}
GRAPH_CALLS: list[tuple[type, str]] = [(Arrays, "read"), (Replicas, "submit"), (Replicas, "collect")]
STORE = ("open", "get", "put", "evict", "prefetch", "held", "retain", "close")
CALLS: list[tuple[str, type, str]] = [
    *((name, owner, method) for name in CASES for owner, method in GRAPH_CALLS),
    *(("refurbished", MemoryStore, method) for method in STORE),
    *(("refurbished, runs of two", MemoryStore, method) for method in ("get", "put", "prefetch")),
    ("assisted", MemoryStore, "get"),
    ("assisted", FeatureTable, "fill"),
    ("refurbished", Lease, "release"),
    ("refurbished", UsersFlip, "draw"),
    ("refurbished", Refurbish, "plan"),
    ("refurbished, runs of two", Refurbish, "plan"),
]
CASES["files"] = Case(REFURBISH, encoded=True)
CALLS += [
    ("files", Files, "read"),
    ("files", Replicas, "collect"),
    *(("files", MemoryStore, method) for method in ("get", "put", "evict", "retain")),
    ("files", Lease, "release"),
]
if find_spec("numba"):
    from dalirefurb.kernels.runner import KernelRunner

    CASES["by kernels"] = Case(REFURBISH, kernels="numba")
    CALLS += [("by kernels", KernelRunner, "submit"), ("by kernels", KernelRunner, "collect_partial")]
    CASES["views"] = Case(REFURBISH, kernels="numba", views=True)
    CALLS += [("views", FinalKernels, "submit"), ("views", FinalKernels, "collect")]
    CASES["DALI in the end"] = Case(REFURBISH, kernels="numba", dali_from="late")
    CASES["DALI from the first part on"] = Case(REFURBISH, kernels="numba", dali_from="early")
    CALLS += [("DALI in the end", each, "collect") for each in (BothPartsBackend, FinalGraph)]
    CALLS += [("DALI from the first part on", KernelsThenGraph, "collect")]
    CASES["volumes"] = Case(REFURBISH, kernels="numba", volumes=True)
    CALLS += [("volumes", owner, method) for owner in (VolumeRunner, FinalVolumes) for method in ("submit", "collect")]
WEEKLY = {
    *(call for call in CALLS if call[0] == "refurbished, runs of two"),
    *(("not stored", owner, method) for owner, method in GRAPH_CALLS[:2]),
    *(("assisted", owner, method) for owner, method in GRAPH_CALLS[:2]),
    ("refurbished", Replicas, "collect"),
    ("files", Replicas, "collect"),
    ("files", MemoryStore, "get"),
    ("files", MemoryStore, "evict"),
    ("files", MemoryStore, "retain"),
    ("files", Lease, "release"),
    ("assisted", MemoryStore, "get"),
}
"""A run of the same graph, and a store that evicts and retains, fails in the same lines in every case: each of these
calls is made to fail in one or two of the cases always, and in these weekly."""
SELDOM = {"open", "close", "held", "retain", "fill"}
"""Called once or twice in a run."""


@pytest.fixture(scope="module")
def expected() -> dict[str, Batches]:
    return {name: case.train(None)[0] for name, case in CASES.items()}


# A second loader begins anew over what the first one left.
@pytest.mark.filterwarnings("ignore::dalirefurb.errors.NothingKeptWarning")
@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [
        pytest.param(*call, id=f"{call[0]}-{call[1].__name__}.{call[2]}", marks=[pytest.mark.weekly] * (call in WEEKLY))
        for call in CALLS
    ],
)
def test_a_call_that_fails_is_told_and_changes_nothing_that_is_served(
    name: str, owner: type, method: str, expected: dict[str, Batches]
) -> None:
    """Each call of a run in turn, in a run of its own."""
    case = CASES[name]
    failed = arrived = 0
    with nothing_left():
        for nth in turns():
            with limited(), Fault(owner, method, nth).installed() as fault:
                store = MemoryStore() if case.stored else None
                with told(fault) as heard:
                    served, errors = case.train(store, fault)
                if heard:  # The loader could not be made.
                    served, errors = case.train(store)[0], 1
                assert errors <= 1
                assert_same(expected[name], served)
                more_errors = 0
                with told(fault):  # The store may be opened in vain, too.
                    again, more_errors = case.train(store, fault, EPOCH)
                    assert_same(expected[name][:EPOCH], again)
                with told(fault):
                    if store is not None:
                        store.close()
            wait_for_threads()
            if fault.raised is None:
                break
            failed, arrived = nth, arrived + errors + more_errors
    batches = EPOCH if method == "evict" else BATCHES  # A first epoch evicts nothing.
    assert failed >= (1 if method in SELDOM else batches // case.batches_per_group)
    # What is read or made in runs is tried once more, sample by sample or batch by batch.
    assert arrived or method in ("read", "close") or case.batches_per_group > 1


class StoppingSource(Arrays):
    """A source with a bug that looks like the end of an iteration."""

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        if 5 in indices:
            raise StopIteration
        return super().read(indices)


def loader_of(source: Arrays, store: MemoryStore | None = None) -> Loader:
    recipe = Recipe([HorizontalFlip()], Output(SIZE), split=1)
    return Loader(source, recipe, REFURBISH, store, prefetch=Prefetch(num_threads=1), kernels="dali")


def test_what_a_source_raises_names_the_sample_and_has_its_cause() -> None:
    source = StoppingSource(np.stack(SOURCE.read(np.arange(12))), np.arange(12))
    with limited(), loader_of(source) as loader:
        with pytest.raises(SampleError, match=r"sample 5 .*the source failed to read it \(StopIteration: \)") as caught:
            list(loader)
        assert caught.value.index == 5
        assert isinstance(caught.value.__cause__, StopIteration)


def test_stop_iteration_in_a_store_does_not_end_the_epoch() -> None:
    with (
        limited(),
        Fault(MemoryStore, "get", 3, StopIteration).installed() as fault,
        loader_of(SOURCE, MemoryStore()) as loader,
    ):
        with pytest.raises(LoaderError, match="StopIteration was raised where a batch is made") as caught:
            list(loader)
        assert fault.caused(caught.value)


def test_an_injected_fault_is_one_call_and_gone_afterwards() -> None:
    read: Any = Arrays.read
    with Fault(Arrays, "read", 2).installed() as fault:
        SOURCE.read(np.arange(1))
        with pytest.raises(Exception, match="call 2 of read"):
            SOURCE.read(np.arange(1))
        SOURCE.read(np.arange(1))
    assert fault.caused(fault.raised)
    assert not fault.caused(LoaderError("another"))
    assert Arrays.read is read


# ---- faults that stay


@dataclass(frozen=True)
class Finite(Standard):
    """Has a schedule of two epochs."""

    error: ClassVar[type[BaseException]] = ValueError

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        if epoch >= 2:
            raise self.error("two epochs only")
        return super().plan(epoch, batch)


@pytest.mark.parametrize(
    ("stored", "batches_per_group", "kernels"),
    [
        # Each pair of the three is always tried, and all triples weekly.
        pytest.param(*each, marks=[] if each[0] ^ (each[1] == 1) ^ (each[2] is None) else pytest.mark.weekly)
        for each in product([False, True], [1, 4], ["dali", None])
    ],
)
def test_batches_before_one_whose_final_part_fails_are_served_whatever_runs_together(
    monkeypatch: pytest.MonkeyPatch, stored: bool, batches_per_group: int, kernels: Literal["dali"] | None
) -> None:
    monkeypatch.setattr(Recipe, "refusal", lambda *_, **__: None)  # Else it would fail where samples are read.
    planner = Refurbish(32, batch_size=4, reuse_factor=2)
    images = [np.full((40, 40, 3), index, np.uint8) for index in range(32)]
    small = int(list(planner.epoch(0))[2].indices[0])
    images[small] = images[small][:20, :20]
    source = TorchDataset([(image, 0) for image in images], labels=np.zeros(32, np.int64), thread_safe=True)
    recipe = Recipe([CenterCrop(32)], Output(32), split=0)
    store = MemoryStore() if stored else None
    with (
        limited(),
        nothing_left(),
        Loader(
            source, recipe, planner, store, prefetch=Prefetch(batches_per_group=batches_per_group), kernels=kernels
        ) as loader,
    ):
        batches = iter(loader)
        assert len(list(islice(batches, 2))) == 2
        for _ in range(2):
            with pytest.raises(DalirefurbError, match="at least 32 x 32 pixels, got 20 x 20"):
                next(batches)


@pytest.mark.parametrize("batches_per_group", [1, 3, None])
def test_all_batches_that_were_planned_before_planning_fails_are_served(batches_per_group: int | None) -> None:
    planner = Finite(64, batch_size=4)
    source = Arrays(np.zeros((64, SIZE, SIZE, 3), np.uint8), np.arange(64))
    recipe = Recipe([HorizontalFlip()], Output(SIZE), split=1)
    with (
        limited(),
        nothing_left(),
        Loader(source, recipe, planner, prefetch=Prefetch(batches_per_group=batches_per_group)) as loader,
    ):
        for epoch in range(2):
            labels = torch.cat([labels for _, labels in loader])
            assert labels.tolist() == [int(index) for plan in planner.epoch(epoch) for index in plan.indices]
        for _ in range(2):
            with pytest.raises(ValueError, match="two epochs only"):
                next(iter(loader))


class Exiting(Finite):
    error = SystemExit


def test_what_is_raised_to_end_a_program_reaches_the_training_loop() -> None:
    source, recipe = Arrays(np.zeros((8, SIZE, SIZE, 3), np.uint8), np.arange(8)), Recipe([], Output(SIZE), split=0)
    with limited(60), nothing_left(), Loader(source, recipe, Exiting(8, batch_size=4)) as loader:
        loader.set_epoch(2)
        with pytest.raises(SystemExit, match="two epochs only"):
            next(iter(loader))


class Odd(Arrays):
    """Images of which one is another thing.

    Attributes:
        odd: Index of that one.
    """

    odd = -1

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[Any]]:
        pairs = zip(super().read(indices), indices.tolist(), strict=True)
        return [np.zeros(3) if index == self.odd else image for image, index in pairs]


def test_where_a_later_batch_of_a_later_group_fails_those_before_it_are_served_each_in_its_place() -> None:
    planner = Standard(12, batch_size=2)
    source = Odd(np.zeros((12, 8, 8, 3), np.uint8), np.arange(12))
    source.odd = int(planner.plan(0, 3).indices[0])
    recipe, prefetch = Recipe([HorizontalFlip()], Output(8), split=0), Prefetch(batches_per_group=2)
    with Loader(source, recipe, planner, prefetch=prefetch) as loader:
        batches = iter(loader)
        for batch in range(3):
            assert next(batches)[1].tolist() == planner.plan(0, batch).indices.tolist()
            state = loader.state_dict()
            assert (state["epoch"], state["batch"]) == (0, batch + 1)
        with pytest.raises(SampleError, match=f"sample {source.odd} "):
            next(batches)
        assert loader.state_dict() == state
