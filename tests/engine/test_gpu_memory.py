"""What a loader takes of a GPU's memory is known, and refused, before it takes any."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, DeviceStore, Loader, MemoryStore, Prefetch, Recipe, Refurbish, TieredStore, rand_augment
from dalirefurb.engine import backend_factory, build, gpu_memory
from dalirefurb.engine.backend_factory import Devices
from dalirefurb.engine.gpu_memory import GroupSizes
from dalirefurb.errors import OutOfMemoryError
from dalirefurb.image_batch import Images
from dalirefurb.store import Store, StoreSpec, available
from dalirefurb.store.device import gather
from dalirefurb.store.device.batch_buffer import BatchBuffer
from dalirefurb.store.device.store import DeviceLease
from tests.ordered_device import OrderedDevice

SIZE = 32
NUM_SAMPLES = 64
ROWS = 16
RECIPE = rand_augment(SIZE, raw=True)
SPEC = StoreSpec((SIZE, SIZE, 3), NUM_SAMPLES, {})
SIZES = GroupSizes.of(RECIPE, (SIZE, SIZE, 3), SPEC, ROWS)
PLANNER = Refurbish(NUM_SAMPLES, batch_size=ROWS, reuse_factor=2)
CPU_GPU, GPU_GPU = Devices("cpu", "gpu"), Devices("gpu", "gpu")
STAYING = Devices("gpu", "gpu", "gpu", "gpu")


def counted(
    devices: Devices, sizes: GroupSizes = SIZES, *, apart: bool = True, encoded: bool = True, **given: Any
) -> gpu_memory.GpuMemory:
    store = given.pop("store", None)
    depths = Prefetch(num_threads=8, **given).depths(PLANNER, devices=(devices.partial, devices.final), apart=apart)
    return gpu_memory.gpu_memory(depths, devices, sizes, apart=apart, encoded=encoded, store=store, spec=SPEC)


def on_device(*arguments: Any, **options: Any) -> int:
    return sum(counted(*arguments, **options).device.values())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> OrderedDevice:
    device = OrderedDevice()
    device.install(monkeypatch)
    return device


def test_the_sizes_of_a_group_are_those_of_its_arrays() -> None:
    assert SIZES.decoded == np.empty((ROWS, SIZE, SIZE, 3), np.uint8).nbytes
    assert SIZES.partial == np.empty((ROWS, SIZE, SIZE, 3), np.uint8).nbytes
    assert SIZES.final == np.empty((ROWS, 3, SIZE, SIZE), np.float32).nbytes
    half = GroupSizes.of(RECIPE.with_output(dtype="float16"), (SIZE, SIZE, 3), SPEC, ROWS)
    assert half.final == SIZES.final // 2
    varying, stored = rand_augment(SIZE).at(1), replace(SPEC, slot_shape=None, arena_bytes=NUM_SAMPLES * 1234)
    assert GroupSizes.of(varying, None, stored, ROWS).partial == ROWS * 1234
    assert GroupSizes.of(varying, None, None, ROWS).partial == ROWS * gpu_memory.DECODED_BYTES


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("devices", [CPU_GPU, GPU_GPU, STAYING])
def test_more_work_at_a_time_takes_more(devices: Devices, apart: bool) -> None:
    least = on_device(devices, apart=apart, replicas=1, look_ahead=1)
    assert least < on_device(devices, apart=apart, replicas=2, look_ahead=1)
    assert least < on_device(devices, apart=apart, replicas=1, look_ahead=2)
    for part in ("partial", "final"):
        larger = replace(SIZES, **{part: 2 * getattr(SIZES, part)})
        assert least < on_device(devices, larger, apart=apart, replicas=1, look_ahead=1)
    assert least - on_device(devices, apart=apart, encoded=False, replicas=1, look_ahead=1) == (
        gpu_memory.DECODER_BYTES if devices.partial == "gpu" else 0
    )


@pytest.mark.parametrize("apart", [False, True])
def test_no_more_final_images_are_counted_than_there_can_be(apart: bool) -> None:
    """Each group more that is on its way is counted once."""
    one, two = (counted(GPU_GPU, apart=apart, replicas=1, look_ahead=ahead).device for ahead in (1, 2))
    name = "final images on their way"
    assert two[name] - one[name] == SIZES.final


@pytest.mark.parametrize("pinned_host", [False, True])
def test_what_a_device_store_and_its_buffer_allocate_is_counted(device: OrderedDevice, pinned_host: bool) -> None:
    with DeviceStore(pinned_host=pinned_host) as store:
        memory = counted(STAYING, store=store)
        where, other = (memory.pinned, memory.device) if pinned_host else (memory.device, memory.pinned)
        assert other["the store's slots"] == 0
        store.open(SPEC)
        assert device.nbytes("pinned" if pinned_host else "device") == where["the store's slots"]
        before = device.nbytes("device")
        buffer = BatchBuffer(store, max_rows=ROWS, max_groups=5)
        laid_out = device.nbytes("device") - before
        images = list(np.zeros((ROWS, SIZE, SIZE, 3), np.uint8))
        for first in (0, ROWS):
            keys = np.arange(first, first + ROWS)
            store.put(keys, keys, images)
            with store.get(keys[:8], keys[:8]) as lease, buffer.on_stream():
                assert isinstance(lease, DeviceLease)
                buffer.fill(ROWS, lease, np.arange(8), [(np.arange(8, ROWS), Images(images[8:]))])
        taken = laid_out + device.nbytes("temporary")
        # And the numbers of slots and rows.
        assert taken <= memory.device["partial images laid out"] + 100 * ROWS * 8
        # What is open takes nothing any more.
        again = counted(STAYING, store=store)
        assert again.device["the store's slots"] == again.pinned["the store's slots"] == 0


def test_of_large_groups_a_kernel_takes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "partial images laid out"
    whole = counted(STAYING).device[name]
    monkeypatch.setattr(gpu_memory, "KERNEL_BYTES", SIZES.partial // 2)
    assert whole - counted(STAYING).device[name] == 2 * SIZES.partial
    assert SIZES.partial < gather.KERNEL_BYTES


def test_of_a_tiered_store_the_tier_on_the_device_is_counted(device: OrderedDevice) -> None:
    store = TieredStore(device=SPEC.nbytes // 4, memory="50%")
    assert store.gpu_bytes(SPEC, pinned=False) == SPEC.nbytes // 4
    assert store.gpu_bytes(SPEC, pinned=True) == 0
    assert MemoryStore().gpu_bytes(SPEC, pinned=False) == 0


@pytest.fixture
def arrays() -> Arrays:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), dtype=np.uint8)
    return Arrays(images, np.arange(NUM_SAMPLES))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU that torch finds, and what is made for it."""
    made: list[str] = []

    def make_buffer(*_: Any, **__: Any) -> Any:
        made.append("a buffer")
        return SimpleNamespace(images=None)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(backend_factory, "Replicas", lambda *_, **__: made.append("pipelines"))
    monkeypatch.setattr(backend_factory, "release_unused_memory", lambda: None)
    monkeypatch.setattr(build, "BatchBuffer", make_buffer)
    return made


def load(arrays: Arrays, store: Store | None, recipe: Recipe = RECIPE, **options: Any) -> None:
    with Loader(arrays, recipe, PLANNER, store, final_device="gpu", **options):
        pass


@pytest.mark.parametrize("kind", ["none", "memory", "device"])
def test_a_loader_that_does_not_fit_is_refused_before_it_takes_anything(
    device: OrderedDevice, made: list[str], arrays: Arrays, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"none": None, "memory": MemoryStore(), "device": DeviceStore()}[kind]
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda: 1_000_000)
    with pytest.raises(
        OutOfMemoryError,
        match=r"^the GPU's memory must hold what the loader takes of it, which is [\d.]+ MB \(.*final images on their "
        r"way [\d.]+ [KM]B.*\), but 1\.00 MB are free: use a smaller store .*Prefetch\(replicas=1.* smaller batch size",
    ) as caught:
        load(arrays, store, partial_device="cpu")
    assert ("the store's slots" in str(caught.value)) == (kind == "device")
    assert made == []
    assert store is None or store.nbytes == 0
    assert device.nbytes("device") == 0
    needed = float(re.search(r"which is ([\d.]+) MB", str(caught.value))[1])  # type: ignore[index]
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda: int(1.01e6 * needed))
    load(arrays, store, partial_device="cpu")
    assert made.count("pipelines") == (1 if store is None else 2)
    assert made.count("a buffer") == (kind == "device")


def test_a_loader_that_pins_more_than_there_is_is_refused(
    device: OrderedDevice, made: list[str], arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda: 2**34)
    monkeypatch.setattr(available, "available_bytes", lambda: 1000)
    with pytest.raises(OutOfMemoryError, match=r"^pinned memory must hold .*slots.*, but 1\.00 KB are free: use"):
        load(arrays, DeviceStore(pinned_host=True))
    assert made == []
    assert device.nbytes("pinned") == 0


def test_what_is_chosen_explicitly_is_taken_and_counted(
    device: OrderedDevice, made: list[str], arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Prefetch(num_threads=8, replicas=1, look_ahead=1, batches_per_group=1)
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda: 2_500_000)
    with pytest.raises(OutOfMemoryError):
        load(arrays, DeviceStore(), partial_device="gpu", prefetch=Prefetch(num_threads=8, look_ahead=6))
    load(arrays, DeviceStore(), partial_device="gpu", prefetch=small)


def test_on_the_cpu_no_gpu_is_asked(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "free_bytes", lambda: pytest.fail("it is asked"))
    with Loader(arrays, RECIPE, PLANNER, MemoryStore()) as loader:
        next(iter(loader))
