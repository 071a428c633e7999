"""The store whose slots are on a device: NumPy runs the code that CuPy runs on a GPU, where `test_gpu` looks at it."""

from __future__ import annotations

import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from nvidia.dali.pipeline import pipeline_def

from dalirefurb import Arrays, Loader, Prefetch, Recipe, Refurbish, rand_augment
from dalirefurb.augment.stage import Device
from dalirefurb.dali import Graph, Replica, Replicas
from dalirefurb.engine import backend_factory, build, memory
from dalirefurb.engine.finals import _laid_out
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import ConfigurationError, OutOfMemoryError, StoreError
from dalirefurb.image_batch import Images
from dalirefurb.reading.reader import Samples
from dalirefurb.store import Lease, Store, StoreSpec
from dalirefurb.store.device import memory as device_memory
from dalirefurb.store.device.memory import device_images, gather, scatter
from dalirefurb.store.device.store import DeviceLease, DeviceStore
from dalirefurb.testing import StoreContract
from dalirefurb.testing.store_machine import SHAPE, SLOTS, image, ints
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.pictures import picture
from tests.pipelines import devices_of_operators
from tests.store.device_scenes import planned
from tests.store.test_store import EXAMPLES, ROUNDS, OurMachine

EMPTY = 77
"""What a batch holds before anything is gathered."""


class DenselyPut(DeviceStore):
    """A device store that is given samples as one array of the device."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        dense = len(samples) and len({sample.shape for sample in samples}) == 1
        return super().put(indices, versions, np.stack(samples) if dense else samples)


class PutAsLeft(DeviceStore):
    """A device store that is given samples as a graph leaves them there: rows of an array that has others, too."""

    def put(self, indices: Any, versions: Any, samples: Any) -> Any:
        dense = len(samples) and len({sample.shape for sample in samples}) == 1
        if dense:
            others = np.full_like(samples[0], EMPTY)
            array = np.stack([each for sample in reversed(samples) for each in (others, sample)])
            samples = Images(array).chosen(np.arange(2 * len(samples))[::-2])
        return super().put(indices, versions, samples)


MAKES: dict[str, Callable[[], DeviceStore]] = {
    "device": lambda: DeviceStore(device="cpu"),
    "device, samples there": lambda: DenselyPut(device="cpu"),
    "device, samples of a graph": lambda: PutAsLeft(device="cpu"),
    "pinned host": lambda: DeviceStore(device="cpu", pinned_host=True),
    "pinned host, samples on the device": lambda: DenselyPut(device="cpu", pinned_host=True),
}


@pytest.fixture(params=MAKES.values(), ids=MAKES.keys())
def make(request: pytest.FixtureRequest) -> Callable[[], DeviceStore]:
    value: Callable[[], DeviceStore] = request.param
    return value


@pytest.fixture
def store(make: Callable[[], DeviceStore]) -> Iterator[DeviceStore]:
    with make() as store:
        assert isinstance(store, DeviceStore)
        store.open(StoreSpec(SHAPE, SLOTS, {}))
        yield store


def gathered(lease: DeviceLease, rows: np.ndarray, num_rows: int) -> np.ndarray:
    out = np.full((num_rows, *SHAPE), EMPTY, np.uint8)
    lease.gather(out, rows)
    return out


class DeviceMachine(OurMachine):
    """Looks at leases by gathering, too."""

    @invariant()
    def every_lease_gathers_the_pixels_it_was_given(self) -> None:
        for lease, expected in [*self.leases, *self.closed]:
            rows = np.arange(len(expected))[::-1] + 1
            out = gathered(lease, rows, len(expected) + 2)
            for row, pixels in zip(rows, expected, strict=True):
                if pixels is not None:
                    np.testing.assert_array_equal(out[row], pixels)
            if not lease.found.any():
                assert (out == EMPTY).all()


class TestDevice(StoreContract):
    """Each way to make one, and to give it samples."""

    machine = DeviceMachine
    examples = EXAMPLES
    rounds = ROUNDS

    @pytest.fixture(autouse=True)
    def _make(self, make: Callable[[], DeviceStore]) -> None:
        self.make = make

    def store(self, folder: Path) -> DeviceStore:
        return self.make()

    def test_what_is_put_while_it_is_closed_and_opened_again_is_not_in_it(self, opened: Store) -> None:
        if type(opened) is not DeviceStore:
            pytest.skip("it looks at samples before it puts them, and so puts them after")
        super().test_what_is_put_while_it_is_closed_and_opened_again_is_not_in_it(opened)


@given(data=st.data())
def test_a_batch_gathered_from_slots_and_scattered_to_others_is_the_same(data: st.DataObject) -> None:
    num_slots, num_rows = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), unique=True)), np.int64)
    slots = np.array([data.draw(st.integers(0, num_slots - 1)) for _ in rows], np.int64)
    slab = np.random.default_rng(0).integers(0, 256, (num_slots, *SHAPE), dtype=np.uint8)
    out = np.full((num_rows, *SHAPE), EMPTY, np.uint8)
    gather(np, slab, slots, out, rows)
    np.testing.assert_array_equal(out[rows], slab[slots])

    places = data.draw(st.permutations(range(12)))[: len(rows)]
    for samples in (out, list(out)):
        target = np.full((12, *SHAPE), EMPTY, np.uint8)
        scatter(np, target, places, samples, rows.tolist())
        np.testing.assert_array_equal(target[places], slab[slots])
        assert (np.delete(target, places, axis=0) == EMPTY).all()


def test_what_is_too_much_for_one_kernel_is_scattered_by_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "KERNEL_BYTES", 2 * 60)
    samples = [image(value) for value in range(7)]
    target = np.zeros((9, *SHAPE), np.uint8)
    scatter(np, target, [8, 1, 2, 3, 4, 5, 6], samples, [6, 5, 4, 3, 2, 1, 0])
    np.testing.assert_array_equal(target[[8, 1, 2, 3, 4, 5, 6]], samples[::-1])


def test_a_slot_gathered_into_two_rows_is_in_both(store: DeviceStore) -> None:
    store.put(ints(0), ints(0), [image(0)])
    with store.get(ints(0, 0), ints(0, 0)) as lease:
        out = gathered(lease, ints(2, 0), 3)
    np.testing.assert_array_equal(out[[0, 2]], [image(0)] * 2)


class Torn(list[np.ndarray]):
    """Samples that can be looked at, but not copied."""

    def __init__(self, samples: list[np.ndarray], error: BaseException) -> None:
        super().__init__(samples)
        self.error = error

    def __getitem__(self, place: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("pinned_host", [False, True])
def test_a_sample_whose_copying_failed_is_not_held(pinned_host: bool) -> None:
    indices = np.arange(SLOTS)
    with DeviceStore(device="cpu", pinned_host=pinned_host) as store:
        store.open(StoreSpec(SHAPE, SLOTS, {}))
        with pytest.raises(OSError, match="gone"):
            store.put(indices, indices, Torn([image(0)] * SLOTS, OSError("gone")))
        assert len(store) == 0
        assert not store.put(indices, indices, Torn([image(0)] * SLOTS, MemoryError("full"))).any()
        assert len(store) == 0
        assert store.put(indices, indices, [image(0)] * SLOTS).all()


def test_a_lease_outlives_its_store_and_the_slots_go_with_it(store: DeviceStore) -> None:
    store.put(ints(0), ints(0), [image(0)])
    lease = store.get(ints(0), ints(0))
    room = weakref.ref(lease._room)
    store.close()
    np.testing.assert_array_equal(gathered(lease, ints(0), 1)[0], image(0))
    lease.release()
    assert room() is None


def test_only_pinned_host_memory_is_looked_at_without_a_copy() -> None:
    for pinned_host in (False, True):
        with DeviceStore(device="cpu", pinned_host=pinned_host) as store:
            store.open(StoreSpec(SHAPE, 1, {}))
            store.put(ints(0), ints(0), [image(0)])
            with store.get(ints(0), ints(0)) as one, store.get(ints(0), ints(0)) as other:
                assert np.shares_memory(one.samples[0], other.samples[0]) == pinned_host
                assert one.samples[0] is one.samples[0]


def test_a_batch_that_does_not_fit_is_refused(store: DeviceStore) -> None:
    lease = store.get(ints(0, 1), ints(0, 0))
    expected = (
        r"must be numpy.ndarray of uint8 and shape \(B, 4, 5, 3\), but is ndarray of {}: make it with numpy.empty"
    )
    for out, what in (
        (np.zeros((2, 4, 5, 4), np.uint8), r"uint8 and \(2, 4, 5, 4\)"),
        (np.zeros((2, *SHAPE), np.int16), r"int16 and \(2, 4, 5, 3\)"),
    ):
        with pytest.raises(ConfigurationError, match=expected.format(what)):
            lease.gather(out, ints(0, 1))
    out = np.zeros((2, *SHAPE), np.uint8)
    for rows in (ints(0), ints(0, 2), ints(-1, 0)):
        expected = re.escape(f"0..1, for each of the 2 samples asked for, but are {rows.tolist()}")
        with pytest.raises(ConfigurationError, match=expected):
            lease.gather(out, rows)
    lease.release()
    assert lease.samples == []
    with pytest.raises(StoreError, match="held to be gathered from, but this one was released: gather before that"):
        lease.gather(out, ints(0, 1))


def test_samples_of_varying_size_are_refused_with_the_remedies() -> None:
    expected = "have one size, but these vary: end the partial part with a crop or a resize, or use a MemoryStore"
    with pytest.raises(ConfigurationError, match=expected):
        DeviceStore(device="cpu").open(StoreSpec(None, 1, {}, 64))


@pytest.mark.parametrize("max_bytes", [50 * 10**6, "50MB"])
def test_more_than_max_bytes_is_refused_with_both_numbers_and_the_remedies(max_bytes: int | str) -> None:
    expected = (
        "1000 slots need 150.53 MB and 50.00 MB are allowed by max_bytes: "
        "use pinned_host=True, a smaller reuse factor, a coverage below 1 or a smaller image"
    )
    store = DeviceStore(device="cpu", max_bytes=max_bytes)
    with pytest.raises(OutOfMemoryError, match=expected):
        store.open(StoreSpec((224, 224, 3), 1000, {}))
    assert store.nbytes == 0
    store.open(StoreSpec((224, 224, 3), 10, {}))
    assert (store.nbytes, store.slot_shape) == (10 * 224 * 224 * 3, (224, 224, 3))


@pytest.mark.parametrize("pinned_host", [False, True])
def test_what_a_device_lends_cannot_be_written(pinned_host: bool) -> None:
    store = DeviceStore(device="cpu", pinned_host=pinned_host)
    store.open(StoreSpec(SHAPE, 1, {}))
    store.put(ints(0), ints(0), [image(0)])
    with store.get(ints(0), ints(0)) as lease:
        assert lease.samples[0] is not None
        assert not lease.samples[0].flags.writeable


@pytest.mark.parametrize("pinned_host", [False, True])
def test_a_share_is_of_the_memory_that_the_slots_are_in(pinned_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    store = DeviceStore(device="cpu", pinned_host=pinned_host, max_bytes="50%")
    monkeypatch.setattr(store.memory, "available_bytes", lambda *, pinned: asked.append(pinned) or 2 * 240)
    spec = StoreSpec(SHAPE, 4, {})
    assert store.takes(spec) == (240, 0), "the device is the CPU"
    store.open(spec)
    store.close()
    with pytest.raises(OutOfMemoryError, match="but 5 slots need 300 B and 240 B are allowed by max_bytes: use"):
        store.open(StoreSpec(SHAPE, 5, {}))
    assert asked == [pinned_host] * 2


@pytest.mark.parametrize("pinned_host", [False, True])
def test_more_than_there_is_is_refused(pinned_host: bool) -> None:
    shape = (224, 224, 3)
    where, remedy = (
        ("host's", "use a smaller reuse") if pinned_host else ("device's", "use pinned_host=True, a smaller")
    )
    with pytest.raises(OutOfMemoryError, match=f"must fit in the {where} memory, .*: {remedy}"):
        DeviceStore(device="cpu", pinned_host=pinned_host, max_bytes=1).open(StoreSpec(shape, 1, {}))
    with pytest.raises(OutOfMemoryError, match=r"need 1505280\.00 TB and \d+\.\d\d [MG]B are available"):
        DeviceStore(device="cpu", pinned_host=pinned_host).open(StoreSpec(shape, 10**13, {}))
    full = DeviceStore(device="cpu", pinned_host=pinned_host)
    full.memory.available_bytes = lambda *, pinned: 0  # type: ignore[method-assign]
    with pytest.raises(OutOfMemoryError, match="and 0 B are available"):
        full.open(StoreSpec(shape, 1, {}))
    with pytest.raises(OutOfMemoryError, match="TB and they cannot be allocated"):
        DeviceStore(device="cpu", pinned_host=pinned_host, max_bytes=10**19).open(StoreSpec(shape, 10**13, {}))


def test_where_there_is_no_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    expected = r"needs CuPy, which is not installed: python -m pip install .dalirefurb\[gpu\].*; or use a MemoryStore"
    with pytest.raises(ConfigurationError, match=expected):
        DeviceStore()
    with pytest.raises(ConfigurationError, match=r"device must be 'gpu', or 'cpu' .* but is 'cuda'"):
        DeviceStore(device="cuda")  # type: ignore[arg-type]


def test_where_cupy_has_no_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise RuntimeError("libnvrtc.so.13 was not found")

    runtime = SimpleNamespace(runtimeGetVersion=lambda: 13010)
    cuda = SimpleNamespace(is_available=lambda: True, nvrtc=SimpleNamespace(getVersion=absent), runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    expected = (
        r"NVRTC, .*\(libnvrtc\.so\.13 was not found\): pip install 'cupy-cuda13x\[ctk\]>=14', or use a MemoryStore"
    )
    with pytest.raises(ConfigurationError, match=expected):
        DeviceStore()


def test_where_there_is_no_gpu_the_error_says_what_to_use() -> None:
    pytest.importorskip("cupy")
    done = subprocess.run(
        [sys.executable, "-c", "from dalirefurb.store.device import DeviceStore; DeviceStore()"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert "needs a CUDA device, but CuPy finds none: use a MemoryStore" in done.stderr


SIZE = 16
NUM_SAMPLES = 23
BATCH_SIZE = 6


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    images = [np.asarray(picture(index, height=SIZE, width=SIZE)) for index in range(NUM_SAMPLES)]
    return Arrays(np.stack(images), np.arange(NUM_SAMPLES))


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return rand_augment(SIZE, raw=True, order="crop_last")


def refurbish() -> Refurbish:
    return Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=3, seed=7)


def test_tensors_are_the_same_with_and_without_a_device_store(
    arrays: Arrays, recipe: Recipe, make: Callable[[], DeviceStore]
) -> None:
    def serve(store: DeviceStore | None, batches_per_group: int) -> tuple[list[torch.Tensor], Any]:
        with Loader(
            arrays, recipe, refurbish(), store, prefetch=Prefetch(replicas=1, batches_per_group=batches_per_group)
        ) as loader:
            return [images.clone() for _ in range(4) for images, _ in loader], loader.stats()

    expected, _ = serve(None, 1)
    for batches_per_group in (1, 2):
        served, stats = serve(make(), batches_per_group)
        assert stats.hits > 0
        assert (stats.recomputed, stats.declined) == (0, 0)
        assert all(torch.equal(one, other) for one, other in zip(expected, served, strict=True))


def test_what_a_loader_borrows_never_leaves_the_device(
    arrays: Arrays, recipe: Recipe, make: Callable[[], DeviceStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(lease: DeviceLease) -> None:
        raise AssertionError("a sample was asked for on the host")

    monkeypatch.setattr(DeviceLease, "samples", property(look, lambda lease, samples: None))
    with Loader(arrays, recipe, refurbish(), make(), prefetch=Prefetch(replicas=1)) as loader:
        for _ in range(3):
            for _ in loader:
                pass
        assert loader.stats().hits > 0


def laid_out(store: DeviceStore, lease: Lease, rows: np.ndarray, others: list[Any], count: int) -> np.ndarray:
    made: np.ndarray = _laid_out(store, planned(rows, lease, count=count), others)
    return made


def test_a_final_graph_makes_the_same_of_what_is_laid_out_and_of_images(
    arrays: Arrays, recipe: Recipe, store: DeviceStore
) -> None:
    """Hits are gathered, the rest is scattered between them; the next run must leave nothing of the one before."""
    store.close()
    store.open(StoreSpec((SIZE, SIZE, 3), NUM_SAMPLES, {}))
    input_builder = InputBuilder(recipe, seed=7, entering=arrays.image_shape)
    graph = Graph(recipe, "final")
    serialized = graph.serialize(max_batch_size=BATCH_SIZE, num_threads=1)
    replica = Replica.of(graph, serialized, num_threads=1, device_id=None)
    for number, plan in enumerate(islice(refurbish().epoch(0), 4)):
        images = arrays.read(plan.indices)
        hits = np.arange(len(images)) % 3 != number % 4
        store.put(plan.indices[hits], plan.version[hits], [images[row] for row in np.flatnonzero(hits)])
        leased = np.random.default_rng(number).permutation(len(images))
        misses = np.flatnonzero(~hits)
        apart = [(np.array([row]), Images([images[row]])) for row in misses.tolist()]
        # As a graph leaves them: one array, of which some rows are asked for.
        together = [(misses, Images(np.stack(images)).chosen(misses))]
        others = apart if number % 2 else together
        with store.get(plan.indices[leased], plan.version[leased]) as lease:
            batch = laid_out(store, lease, leased, others, len(images))
            np.testing.assert_array_equal(batch, np.stack(images))
        replica.submit({**input_builder.final(plan, images, plan.indices), "partial": batch})
        of_what_is_laid_out = np.array(replica.collect().as_tensor())
        replica.submit(input_builder.final(plan, images, plan.indices))
        np.testing.assert_array_equal(of_what_is_laid_out, np.array(replica.collect().as_tensor()))


@pytest.mark.parametrize(("order", "entering"), in_turn(["paper", "crop_last"], ["cpu", "gpu"]))
def test_a_final_graph_on_the_gpu_takes_partial_images_where_it_is_told(order: Any, entering: Device) -> None:
    graph = Graph(rand_augment(64, order=order), "final", "gpu", "gpu", entering)
    assert graph.serialize(max_batch_size=4, num_threads=1)
    pipeline: Any = pipeline_def(enable_conditionals=True)(graph.trace)(
        batch_size=4, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    pipeline.serialize()
    devices = devices_of_operators(pipeline)
    assert {entry.name: devices[entry.name] for entry in graph.inputs} == {
        entry.name: entering if entry.name == "partial" else "cpu" for entry in graph.inputs
    }


@pytest.mark.parametrize("arguments", [("whole", "gpu", "gpu"), ("partial", "gpu", "gpu"), ("final", "cpu", "cpu")])
def test_only_a_final_graph_on_the_gpu_is_fed_there(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"the part is {arguments[0]!r} and its final_device {arguments[2]!r}"):
        Graph(rand_augment(64), *arguments, entering_device="gpu")


def test_a_store_on_another_device_than_the_loaders_is_refused(
    arrays: Arrays, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeviceStore(device="cpu")
    monkeypatch.setattr(store.memory, "device_id", 1, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ConfigurationError, match="made on device 1 and device 0 is current: call"):
        Loader(arrays, recipe, refurbish(), store)


def test_what_a_partial_graph_leaves_on_the_device_gets_into_a_batch_and_into_slots_from_there(
    arrays: Arrays, recipe: Recipe, store: DeviceStore
) -> None:
    store.close()
    graph = Graph(recipe, "partial")
    plan = next(iter(refurbish().epoch(0)))
    samples = arrays.read(plan.indices)
    sides = np.full(len(samples), SIZE)
    input_builder = InputBuilder(recipe, seed=7, entering=arrays.image_shape)
    feeds, _ = input_builder.partial(plan.indices, plan.version, Samples(samples, sides, sides, plan.indices))
    replica = Replica.of(
        graph, graph.serialize(max_batch_size=BATCH_SIZE, num_threads=1), num_threads=1, device_id=None
    )
    replica.submit(feeds)
    left = replica.collect()
    expected = np.array(left.as_tensor())
    store.open(StoreSpec(expected.shape[1:], NUM_SAMPLES, {}))
    images = device_images(store.memory, left)
    assert images.whole is not None
    assert np.shares_memory(images.whole[0], np.asarray(left.as_tensor()))
    some = np.array([3, 0, 2])
    assert store.put(plan.indices[some], plan.version[some], images.chosen(some)).all()
    others = np.setdiff1d(np.arange(len(samples)), some)
    with store.get(plan.indices[some], plan.version[some]) as lease:
        batch = laid_out(store, lease, some, [(others, images.chosen(others))], len(samples))
        np.testing.assert_array_equal(batch, expected)


class OnTheHost(Replicas):
    """Runs a graph that is meant for a GPU on the host, and sees to it that it could be made for one."""

    def __init__(self, graph: Graph, count: int, *, max_batch_size: int, num_threads: int, device_id: int | None):
        assert graph.serialize(max_batch_size=max_batch_size, num_threads=num_threads)
        self.inputs = graph.inputs
        here = Graph(graph.recipe, graph.part)
        super().__init__(here, count, max_batch_size=max_batch_size, num_threads=num_threads, device_id=None)


@pytest.mark.parametrize("partial_device", ["cpu", "gpu"])
def test_a_loader_whose_final_part_is_on_the_gpu_is_put_together_and_serves_what_the_host_serves(
    arrays: Arrays, recipe: Recipe, partial_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the GPU: its graphs run here, and its memory is NumPy's."""

    def served(store: DeviceStore | None, **options: Any) -> list[torch.Tensor]:
        with flat_loader(arrays, recipe, refurbish(), store, **options) as loader:
            return [images.clone() for _ in range(2) for images, _ in loader]

    expected = served(None, kernels="dali")
    views = []
    view = build.device_images
    monkeypatch.setattr(build, "device_images", lambda memory, computed: views.append(1) or view(memory, computed))
    monkeypatch.setattr(backend_factory, "Replicas", OnTheHost)
    monkeypatch.setattr(backend_factory, "release_unused_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**34)
    store = DeviceStore(device="cpu")
    store.device = "gpu"
    with store:
        made = served(store, partial_device=partial_device, final_device="gpu")
        assert len(store)
    assert all(torch.equal(*pair) for pair in zip(made, expected, strict=True))
    assert bool(views) == (partial_device == "gpu")
