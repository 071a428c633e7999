"""What a loader takes of memory is known, and made to fit, or refused, before it takes any."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    TieredStore,
    rand_augment,
)
from dalirefurb.augment import CenterCrop, CopyPaste, Custom, Mosaic, RandomCrop3D, Resize, VolumeOutput
from dalirefurb.engine import backend_factory, memory
from dalirefurb.engine.configuration import Configuration
from dalirefurb.engine.finals import _laid_out
from dalirefurb.engine.kernel_choice import Devices
from dalirefurb.engine.memory import BESIDE_STORE, DEVICE, HOST, STORE, Account, Needs
from dalirefurb.errors import ConfigurationError, OutOfMemoryError
from dalirefurb.image_batch import Images, Rows
from dalirefurb.kernels.cuda.counting import row_bytes
from dalirefurb.planning import Frozen
from dalirefurb.store import DeviceStore, Store, StoreSpec
from dalirefurb.store.base import Taken
from dalirefurb.store.device import memory as device_memory
from dalirefurb.system import resources
from dalirefurb.system.resources import budget_bytes
from dalirefurb.targets import InstanceMasks, Masks
from tests.ordered_device import OrderedDevice
from tests.store.device_scenes import planned

SIZE = 32
NUM_SAMPLES = 64
ROWS = 16
RECIPE = rand_augment(SIZE, raw=True)
SPEC = StoreSpec((SIZE, SIZE, 3), NUM_SAMPLES, {})
READ = DECODED = PARTIAL = ROWS * SIZE * SIZE * 3
FINAL = 4 * PARTIAL
PLANNER = Refurbish(NUM_SAMPLES, batch_size=ROWS, reuse_factor=2)
CPU, CPU_GPU, GPU_GPU = Devices(), Devices("cpu", "gpu"), Devices("gpu", "gpu")
STAYING = Devices("gpu", "gpu", "gpu", "gpu")


def account(
    devices: Devices,
    *,
    recipe: Recipe = RECIPE,
    shape: tuple[int, int, int] | None = (SIZE, SIZE, 3),
    source: Any = None,
    planes: bool = False,
    kernels: str = "dali",
    apart: bool = True,
    pin_memory: bool = False,
    serves: str = "final",
    spec: StoreSpec | None = SPEC,
    store: Store | None = None,
    views: tuple[Recipe, ...] = (),
    sample_bytes: int | None = None,
) -> Account:
    labels = np.zeros(NUM_SAMPLES)
    given = {"image_shape": shape, "name": lambda _: "nowhere", "labels": labels, "annotations": None, "planes": planes}
    source = source or SimpleNamespace(**given)
    configuration: Any = SimpleNamespace(
        recipe=recipe,
        source=source,
        kernels=kernels,
        pin_memory=pin_memory,
        serves=serves,
        views=views,
        finished_together=len(views) > 0,
    )
    configuration.apart = lambda _: apart
    way = Configuration.way(configuration, PLANNER)
    taken = Taken() if store is None else store.takes(SPEC)
    return Account(configuration, ROWS, devices, way, spec, taken, sample_bytes)


def counted(devices: Devices, *, apart: bool = True, given: dict[str, Any] | None = None, **options: Any) -> Needs:
    prefetch = Prefetch(num_threads=8, **(given or {}))
    depths = prefetch.depths(PLANNER, devices=(devices.partial, devices.final), apart=apart)
    return account(devices, apart=apart, **options).needs(depths)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> OrderedDevice:
    device = OrderedDevice()
    device.install(monkeypatch)
    return device


def test_what_a_sample_takes_is_what_its_arrays_take(tmp_path: Path) -> None:
    image = SIZE * SIZE * 3
    assert account(CPU).row_bytes == (image, image, image, 4 * image)
    assert account(CPU, recipe=RECIPE.with_output(dtype="float16")).row_bytes[3] == 2 * image
    brain = RECIPE.with_output(dtype="bfloat16")
    assert [account(CPU, recipe=brain, kernels=kernels).row_bytes[3] for kernels in ("numba", "dali")] == [
        2 * image,
        4 * image,
    ]
    varying, stored = rand_augment(SIZE).at(1), replace(SPEC, slot_shape=None, arena_bytes=NUM_SAMPLES * 1234)
    of_files = account(CPU, recipe=varying, shape=None, spec=stored).row_bytes
    assert of_files == (100_000, 600_000, 1234, 4 * image)
    grey, half = RECIPE.with_output(channels=1), RECIPE.with_output(dtype="float16")
    assert account(CPU, recipe=grey, views=(half,)).row_bytes[3] == 4 * image // 3 + 2 * image
    for name, nbytes in (("large", 9000), ("small", 1000)):
        (tmp_path / name).write_bytes(bytes(nbytes))
    names = [str(tmp_path / "large")] * 64 + [str(tmp_path / "small")] * 64
    files = SimpleNamespace(image_shape=None, name=names.__getitem__, labels=np.zeros(128), annotations=None)
    assert account(CPU, recipe=varying, source=files, spec=None).row_bytes[:3] == (5000, 30_000, 30_000)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("where", [HOST, DEVICE])
@pytest.mark.parametrize("devices", [CPU, CPU_GPU, GPU_GPU, STAYING])
def test_more_work_at_a_time_takes_more(devices: Devices, where: str, apart: bool) -> None:
    def taken(replicas: int = 1, look_ahead: int = 1, recipe: Recipe = RECIPE) -> int:
        given = {"replicas": replicas, "look_ahead": look_ahead}
        return counted(devices, apart=apart, given=given, recipe=recipe)[where].total()

    if where == DEVICE and devices == CPU:
        assert taken() == 0
        return
    assert taken() <= taken(replicas=2)
    assert taken() < taken(look_ahead=2) or (where == HOST and devices != CPU)
    decoding = taken(recipe=rand_augment(SIZE)) - taken()
    assert (decoding >= memory.DECODER_BYTES) == (where == DEVICE and devices.partial == "gpu")


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("devices", "where"), [(GPU_GPU, DEVICE), (CPU, HOST)])
def test_no_more_final_images_are_counted_than_there_can_be(devices: Devices, where: str, apart: bool) -> None:
    """Each group more that is on its way is counted once."""
    one, two = (
        counted(devices, apart=apart, given={"replicas": 1, "look_ahead": ahead})[where]["final images on their way"]
        for ahead in (1, 2)
    )
    assert two - one == FINAL


def test_final_images_are_counted_for_groups_of_hits_which_are_the_longest() -> None:
    """As are their masks, and what a GPU is brought for them."""
    depths = Prefetch(num_threads=8, batches_per_group=2).depths(PLANNER)
    masks = Masks([np.zeros((SIZE, SIZE), np.uint8)] * NUM_SAMPLES)
    source = SimpleNamespace(image_shape=(SIZE, SIZE, 3), labels=np.zeros(NUM_SAMPLES), annotations={"masks": masks})
    one, two = (
        [
            account(CPU, source=source).needs(longest)[HOST]["final images on their way"],
            account(CPU, source=source).needs(longest)[HOST]["masks on their way"],
            account(CPU_GPU, kernels="cuda").needs(longest)[HOST]["partial images for the final part"],
            account(CPU_GPU, kernels="cuda").needs(longest)[DEVICE]["images on their way in kernels"],
        ]
        for longest in (replace(depths, hits_per_group=most) for most in (2, 4))
    )
    assert all(one)
    assert two == [2 * each for each in one]


@pytest.mark.parametrize(
    ("kernels", "apart", "counts"),
    [
        ("numba", False, {"images on their way in threads": 1, "final images on their way": 28}),
        ("numba", True, {"images on their way in threads": 1, "partial": 5, "final images on their way": 28}),
        ("dali", False, {"decoding": 1, "final images on their way": 28}),
        ("dali", True, {"decoding": 1, "partial": 4, "final images on their way": 16, "work on final images": 1}),
    ],
)
def test_what_is_counted_is_what_each_way_has(kernels: str, apart: bool, counts: dict[str, int]) -> None:
    """In multiples of the partial images of a group; where one part does all there are none."""
    needs = counted(CPU, kernels=kernels, apart=apart, given={"replicas": 1, "look_ahead": 1})[HOST]
    partial, threads = "partial images on their way", needs["threads"] // PARTIAL
    usual = {"samples as they were read": 4, "threads": threads}
    expected = {partial if name == "partial" else name: times for name, times in (counts | usual).items()}
    assert {name: nbytes // PARTIAL for name, nbytes in needs.items() if nbytes} == expected


def test_what_kernels_leave_to_dali_is_counted() -> None:
    """Levels between the two, and float32 for bfloat16, as DALI makes."""
    own = Custom(lambda images: images, "own")
    brain = RECIPE.with_output(dtype="bfloat16")
    mixed = Recipe([*brain.stages, own], brain.output, brain.split)
    by_kernels, by_both = (
        counted(CPU, recipe=recipe, kernels="numba", given={"replicas": 1, "look_ahead": 1}, store=MemoryStore())[HOST]
        for recipe in (brain, mixed)
    )
    # Kernels alone write into the room that the store has beside its slots, of four groups.
    assert [needs["partial images on their way"] for needs in (by_kernels, by_both)] == [PARTIAL, 4 * PARTIAL]
    between = by_both["images between kernels and DALI"]
    assert between % PARTIAL == 0
    assert between >= 4 * PARTIAL
    assert "images between kernels and DALI" not in by_kernels
    assert account(CPU, recipe=mixed, kernels="numba").row_bytes[3] == FINAL // ROWS


def test_a_volume_takes_labels_of_voxels_beside_its_values() -> None:
    recipe = Recipe([RandomCrop3D((8, 9, 10))], VolumeOutput((8, 9, 10), dtype="float16", channels=2), 1)
    voxels = 8 * 9 * 10
    assert account(CPU, recipe=recipe, shape=None, spec=None, sample_bytes=12345, kernels="numba").row_bytes == (
        12345,
        12345,
        12345,
        2 * 2 * voxels + 8 * voxels,
    )
    of_volumes = account(CPU, recipe=recipe, shape=None, spec=None, sample_bytes=12345, kernels="numba")
    needs = of_volumes.needs(Prefetch(num_threads=8, look_ahead=9).of_volumes(PLANNER))[HOST]
    # One is finished, and three are handed over; two are begun, two wait, and two are finished.
    assert needs["final images on their way"] == (1 + 3) * ROWS * (2 * 2 * voxels + 8 * voxels)
    assert needs["partial images on their way"] == (2 + 2 + 2) * ROWS * 12345


def test_samples_as_they_were_read_are_counted_from_where_they_are_read_to_where_they_are_let_go() -> None:
    """With split 0 a group has its samples until it is stored."""
    name, given = "samples as they were read", {"replicas": 1, "look_ahead": 3}
    file = ROWS * memory.FILE_BYTES
    assert counted(CPU, given=given)[HOST][name] == (2 + 2 + 1) * READ
    encoded = rand_augment(SIZE)
    assert counted(CPU, given=given, recipe=encoded)[HOST][name] == (2 + 2 + 1) * file
    assert counted(CPU, given=given, recipe=encoded.at(0), apart=False)[HOST][name] == (2 + 3 + 2 + 2) * file


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_thread_and_each_pipeline_that_decodes_is_counted(replicas: int) -> None:
    given, encoded = {"replicas": replicas, "look_ahead": 2}, rand_augment(SIZE)
    by_dali, by_kernels, of_arrays = (
        counted(CPU, given=given, kernels=kernels, recipe=recipe)[HOST]
        for kernels, recipe in (("dali", encoded), ("numba", encoded), ("dali", RECIPE))
    )
    assert by_dali["threads"] == by_kernels["threads"] == 8 * 2**22
    on_gpu, encoded_on_gpu = (
        counted(GPU_GPU, given=given, recipe=recipe)[DEVICE]["decoding"] for recipe in (RECIPE, encoded)
    )
    assert on_gpu == replicas * (2 * DECODED + 3 * PARTIAL)
    assert encoded_on_gpu - on_gpu == replicas * 2**28
    # Two groups are begun, two wait, and two are finished.
    assert of_arrays["partial images on their way"] == (2 + 2 + 2) * PARTIAL
    assert (by_dali["decoding"], by_kernels["decoding"]) == (replicas * DECODED, DECODED)
    assert of_arrays["decoding"] == replicas * PARTIAL


@pytest.mark.parametrize("devices", [CPU, CPU_GPU])
def test_work_on_each_view_is_counted(devices: Devices) -> None:
    given = {"replicas": 2, "look_ahead": 3}
    one, two = (counted(devices, given=given, views=views) for views in ((), (RECIPE.view(2),)))
    where = HOST if devices == CPU else DEVICE
    names = ["work on final images", "final images on their way"]
    names += ["partial images for the final part"] * (where == DEVICE)
    assert all(two[where][name] == 2 * one[where][name] > 0 for name in names)
    assert one[where][names[0]] == 2 * PARTIAL * (1 if where == HOST else 3)
    if where == DEVICE:
        assert one[DEVICE][names[2]] == one[HOST][names[2]] == 3 * PARTIAL


def test_views_by_kernels_have_threads_of_their_own_and_one_group_in_work() -> None:
    given = {"replicas": 2, "look_ahead": 9}
    one, two = (counted(CPU, given=given, kernels="numba", views=views)[HOST] for views in ((), (RECIPE.view(2),)))
    name = "images on their way in threads"
    assert two[name] == 2 * one[name] == 2 * 8 * 6 * SIZE * SIZE
    assert two["final images on their way"] == (1 + 3) * 2 * FINAL
    assert two["partial images on their way"] == (4 + 2 + 2) * PARTIAL


def test_a_thread_has_two_images_of_the_largest_size_that_a_stage_makes() -> None:
    stages = [Resize((SIZE, 2 * SIZE)), CenterCrop(SIZE)]
    needs = counted(CPU, kernels="numba", recipe=Recipe(stages, Output(SIZE), 0), given={"replicas": 1})[HOST]
    assert needs["images on their way in threads"] == 8 * 2 * 3 * SIZE * 2 * SIZE


def test_of_a_gpu_all_that_nobody_has_is_free_and_what_torch_holds_in_vain_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (300, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 20)
    assert (memory.free_bytes(), memory.unused_bytes()) == (300, 30)


def test_of_samples_that_lie_as_planes_each_thread_has_rgb_of_one() -> None:
    given = {"replicas": 1, "look_ahead": 1}
    without, needs = (counted(CPU, planes=each, kernels="numba", given=given)[HOST] for each in (False, True))
    assert needs - without == {"images on their way in threads": 8 * DECODED // ROWS}


def test_partial_images_are_counted_in_place_of_final_ones() -> None:
    needs = counted(CPU, serves="partial", kernels="numba", given={"replicas": 1, "look_ahead": 1})[HOST]
    assert needs["final images on their way"] == 4 * PARTIAL
    assert "work on final images" not in needs


@pytest.mark.parametrize("images", [1, 4, 9])
def test_masks_of_objects_are_counted_for_a_batch_of_images_that_have_the_most(images: int) -> None:
    """One or two of them, a byte a pixel, beside images of 12 bytes a pixel; in a mosaic those of all of its images."""
    recipe = RECIPE if images == 1 else Recipe([Mosaic(SIZE, images=images)], RECIPE.output, split=0)
    triangle = [[0, 0, 9, 0, 9, 9]]
    masks = InstanceMasks([[triangle], [triangle, triangle]] * (NUM_SAMPLES // 2))
    source = SimpleNamespace(image_shape=(SIZE, SIZE, 3), labels=np.zeros(NUM_SAMPLES), annotations={"masks": masks})
    needs = counted(CPU, source=source, recipe=recipe)[HOST]
    assert needs["masks on their way"] == images * needs["final images on their way"] // 6 > 0


@pytest.mark.parametrize(("dtype", "nbytes"), [("int64", 8), ("uint8", 1)])
def test_masks_are_counted_by_their_type(dtype: str, nbytes: int) -> None:
    masks = Masks([np.zeros((SIZE, SIZE), np.uint8)] * NUM_SAMPLES, dtype=dtype)
    source = SimpleNamespace(image_shape=(SIZE, SIZE, 3), labels=np.zeros(NUM_SAMPLES), annotations={"masks": masks})
    needs = counted(CPU, source=source)[HOST]
    assert needs["masks on their way"] == nbytes * needs["final images on their way"] // 12 > 0


def test_what_is_pasted_is_counted_beside_masks() -> None:
    """A byte for each pixel of a partial image, of any size."""
    triangle = [[0, 0, 9, 0, 9, 9]]
    source = SimpleNamespace(
        image_shape=(SIZE, SIZE, 3),
        labels=np.zeros(NUM_SAMPLES),
        annotations={"masks": InstanceMasks([[triangle]] * NUM_SAMPLES)},
    )
    stages = [Resize((SIZE, 2 * SIZE)), CopyPaste(), CenterCrop(SIZE)]
    needs = counted(CPU, source=source, recipe=Recipe(stages, Output(SIZE), split=1))[HOST]
    # Of two images an object each, and what is pasted, which is twice as wide.
    assert needs["masks on their way"] == 4 * needs["final images on their way"] // 12


def test_what_kernels_on_a_gpu_work_in_is_counted() -> None:
    """Of a crop at the end nothing: it is made with what comes out; of what a layer prepares what its kernels need."""
    given = {"replicas": 2, "look_ahead": 1}
    by_dali, brought, staying = (
        counted(devices, kernels=kernels, given=given)
        for devices, kernels in ((CPU_GPU, "dali"), (CPU_GPU, "cuda"), (STAYING, "cuda"))
    )
    of_final, of_partial = (row_bytes(part, (SIZE, SIZE)) for part in (RECIPE.final, RECIPE.partial))
    assert "work on final images" in by_dali[DEVICE]
    for needs in (brought, staying):
        assert "work on final images" not in needs[DEVICE]
    assert brought[DEVICE]["images on their way in kernels"] == ROWS * of_final
    assert staying[DEVICE]["images on their way in kernels"] == ROWS * (of_partial + of_final)
    name = "partial images for the final part"
    assert (brought[HOST][name], brought[DEVICE][name]) == (2 * PARTIAL * 5 // 4, PARTIAL * 5 // 4)
    assert "partial images for the final part" not in staying[HOST] + staying[DEVICE]
    assert staying[DEVICE]["decoding"] == 2 * 2 * PARTIAL


def test_images_in_pinned_memory_are_counted_beside_those_they_are_copied_from() -> None:
    pinned, plain = (counted(CPU, pin_memory=pin_memory)[HOST].total() for pin_memory in (True, False))
    assert pinned - plain == 4 * FINAL


@pytest.mark.parametrize("pinned_host", [False, True])
def test_what_a_device_store_and_a_group_laid_out_take_is_counted(device: OrderedDevice, pinned_host: bool) -> None:
    with DeviceStore(pinned_host=pinned_host) as store:
        needs = counted(STAYING, store=store)
        where, other = (HOST, DEVICE) if pinned_host else (DEVICE, HOST)
        assert needs[other][STORE] == 0
        store.open(SPEC)
        assert device.nbytes("pinned" if pinned_host else "device") == needs[where][STORE]
        images = list(np.zeros((ROWS, SIZE, SIZE, 3), np.uint8))
        for first in (0, ROWS):
            keys = np.arange(first, first + ROWS)
            store.put(keys, keys, images)
            others = [Rows(np.arange(8, ROWS), Images(images[8:]))]
            with store.get(keys[:8], keys[:8]) as lease, store.memory.on_stream():
                _laid_out(store, planned(np.arange(8), lease, count=ROWS), others)
        taken = device.nbytes("temporary")
        # And the numbers of slots and rows.
        assert taken <= needs[DEVICE]["partial images laid out"] + 100 * ROWS * 8
        # What is open takes nothing any more.
        again = counted(STAYING, store=store)
        assert again[DEVICE][STORE] == again[HOST][STORE] == 0


def test_of_large_groups_a_kernel_takes_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "partial images laid out"
    whole = counted(STAYING)[DEVICE][name]
    monkeypatch.setattr(memory, "KERNEL_BYTES", PARTIAL // 2)
    assert whole - counted(STAYING)[DEVICE][name] == 2 * PARTIAL
    assert PARTIAL < device_memory.KERNEL_BYTES


def test_of_a_tiered_store_the_tier_on_the_device_is_counted(device: OrderedDevice) -> None:
    store = TieredStore(device=SPEC.nbytes // 4, memory="50%")
    spare = SPEC.nbytes * 3 // 4  # As many again, for images on their way.
    assert store.takes(SPEC) == (SPEC.nbytes * 3 // 4 + spare, SPEC.nbytes // 4)


def test_what_a_store_in_memory_takes_is_what_it_sets_aside() -> None:
    image = SIZE * SIZE * 3
    assert MemoryStore().takes(SPEC) == (2 * SPEC.nbytes, 0)
    assert MemoryStore(max_bytes=10 * image + 1).takes(SPEC) == (20 * image, 0)
    many = replace(SPEC, slots=100_000)
    assert MemoryStore().takes(many).host == (100_000 + (32 << 20) // image) * image
    varying = replace(SPEC, slot_shape=None, arena_bytes=10**9)
    assert MemoryStore().takes(varying) == (10**9, 0)
    assert MemoryStore(max_bytes=7).takes(varying) == (7, 0)
    assert MemoryStore(max_bytes=10**12).takes(varying) == (10**9, 0)
    assert MemoryStore(max_bytes=10**12).takes(SPEC) == MemoryStore().takes(SPEC)
    with MemoryStore() as store:
        store.open(SPEC)
        assert store.takes(SPEC) == (0, 0)


@pytest.fixture
def arrays() -> Arrays:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), dtype=np.uint8)
    return Arrays(images, np.arange(NUM_SAMPLES))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU that torch finds, and what is made for it."""
    made: list[str] = []

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(backend_factory, "Replicas", lambda *_, **__: made.append("pipelines"))
    monkeypatch.setattr(backend_factory, "release_unused_memory", lambda: None)
    return made


def load(arrays: Arrays, store: Store | None, recipe: Recipe = RECIPE, **options: Any) -> None:
    with Loader(arrays, recipe, PLANNER, store, final_device="gpu", kernels="dali", **options):
        pass


@pytest.mark.parametrize("kind", ["none", "memory", "device"])
def test_a_loader_that_does_not_fit_is_refused_before_it_takes_anything(
    device: OrderedDevice, made: list[str], arrays: Arrays, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"none": None, "memory": MemoryStore(), "device": DeviceStore()}[kind]
    monkeypatch.setattr(memory, "free_bytes", lambda: 700_000)
    with pytest.raises(
        OutOfMemoryError,
        match=r"^the GPU's memory must hold what the loader takes, [\d.]+ [KM]B \(.*final images on their "
        r"way [\d.]+ [KM]B.*\), but 700\.00 KB are free: use smaller batches, .*a smaller store .*fewer threads",
    ) as caught:
        load(arrays, store, partial_device="cpu")
    assert ("the store's slots" in str(caught.value)) == (kind == "device")
    assert made == []
    assert store is None or store.nbytes == 0
    assert device.nbytes("device") == 0
    needed = re.search(r"takes, ([\d.]+)( [KM]B)", str(caught.value))
    assert needed is not None
    monkeypatch.setattr(memory, "free_bytes", lambda: int(1.01 * budget_bytes(needed[1] + needed[2])))
    load(arrays, store, partial_device="cpu")
    assert made.count("pipelines") == (1 if store is None else 2)


def test_memory_of_the_gpu_that_torch_holds_and_does_not_use_is_named(
    device: OrderedDevice, made: list[str], arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    monkeypatch.setattr(memory, "unused_bytes", lambda: 3_000_000)
    with pytest.raises(
        OutOfMemoryError, match=r"call torch\.cuda\.empty_cache\(\), since torch holds 3\.00 MB that it"
    ):
        load(arrays, DeviceStore())
    monkeypatch.setattr(memory, "unused_bytes", lambda: 0)
    with pytest.raises(OutOfMemoryError, match=r"but 1\.00 KB are free: use smaller batches"):
        load(arrays, DeviceStore())


@pytest.mark.parametrize(("free", "told"), [(1000, r"1\.00 KB"), (0, "0 B")])
def test_a_loader_that_pins_more_than_there_is_is_refused(
    device: OrderedDevice, made: list[str], arrays: Arrays, monkeypatch: pytest.MonkeyPatch, free: int, told: str
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**34)
    monkeypatch.setattr(memory, "available_bytes", lambda: free)
    with pytest.raises(OutOfMemoryError, match=rf"^memory must hold .*slots.*, but {told} are free: use"):
        load(arrays, DeviceStore(pinned_host=True))
    assert made == []
    assert device.nbytes("pinned") == 0


def test_what_is_chosen_explicitly_is_taken_and_counted(
    device: OrderedDevice, made: list[str], arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Prefetch(num_threads=8, replicas=1, look_ahead=1, batches_per_group=1)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2_500_000)
    with pytest.raises(OutOfMemoryError, match=r"none, in place of Prefetch\(look_ahead=9\)$"):
        load(arrays, DeviceStore(), partial_device="gpu", prefetch=Prefetch(num_threads=8, look_ahead=9))
    load(arrays, DeviceStore(), partial_device="gpu", prefetch=small)


def test_on_the_cpu_no_gpu_is_asked(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: pytest.fail("it is asked"))
    with Loader(arrays, RECIPE, PLANNER, MemoryStore()) as loader:
        next(iter(loader))


def room(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Have the machine leave so many bytes."""
    monkeypatch.setattr(resources, "_machine", lambda _: [nbytes])
    monkeypatch.setattr(resources, "_groups", lambda _: [])


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing count that other tests left, and a collector would find in the middle of one."""
    monkeypatch.setattr(resources, "_takers", WeakValueDictionary())


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> list[Needs]:
    """What each loader takes that is made; threads take nothing, beside which images of this size would be little."""
    monkeypatch.setattr(memory, "THREAD_BYTES", 0)
    needed: list[Needs] = []

    def fitted(account: Account, *arguments: Any, fitted: Any = Account.fitted) -> Any:
        depths, needs = fitted(account, *arguments)
        needed.append(needs)
        return depths, needs

    monkeypatch.setattr(Account, "fitted", fitted)
    return needed


def served(arrays: Arrays, **options: Any) -> tuple[list[torch.Tensor], int]:
    """The images of two epochs, and how many batches were made ahead."""
    with MemoryStore() as store, Loader(arrays, RECIPE, PLANNER, store, **options) as loader:
        return [images for _ in range(2) for images, _ in loader], loader.batches_ahead


def test_where_memory_is_short_less_is_on_its_way_and_the_same_is_served(
    arrays: Arrays, needed: list[Needs], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefetch = Prefetch(num_threads=8)
    usual, ahead = served(arrays, prefetch=prefetch)
    room(monkeypatch, needed[0][HOST].total())
    assert served(arrays, prefetch=prefetch)[1] == ahead
    assert not caplog.records
    room(monkeypatch, needed[0][HOST].total() - 1)
    images, less_ahead = served(arrays, prefetch=prefetch)
    assert less_ahead < ahead
    assert all(torch.equal(*pair) for pair in zip(images, usual, strict=True))
    assert needed[2][HOST].total() < needed[0][HOST].total()
    assert re.search(
        r"^memory must hold what the loader takes, .*look_ahead \d+ -> \d+.*the same is served",
        caplog.messages[0],
    )
    room(monkeypatch, needed[0][HOST][STORE] + 1000)
    with pytest.raises(
        OutOfMemoryError, match=r"the store's slots 196\.61 KB, .* 197\.61 KB are free: use smaller bat"
    ):
        served(arrays, prefetch=prefetch)


def test_where_the_system_does_not_say_what_is_free_a_loader_is_made(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    with Loader(arrays, RECIPE, PLANNER, MemoryStore()) as loader:
        next(iter(loader))
    assert not caplog.records


def test_of_several_ranks_each_counts_its_own_rows(arrays: Arrays, needed: list[Needs]) -> None:
    for planner, rank in (
        (PLANNER, (0, 1)),
        (Refurbish(NUM_SAMPLES, batch_size=2 * ROWS, reuse_factor=2, shards=2), (1, 2)),
    ):
        with Loader(arrays, RECIPE, planner, rank=rank, prefetch=Prefetch(num_threads=1, look_ahead=1)) as loader:
            iter(loader)
    name = "final images on their way"
    assert needed[0][HOST][name] == needed[1][HOST][name] > 0


def test_a_budget_is_what_a_loader_takes_beside_its_store(
    arrays: Arrays, needed: list[Needs], caplog: pytest.LogCaptureFixture
) -> None:
    usual, ahead = served(arrays)
    most = needed[0][BESIDE_STORE].total()
    assert most == needed[0][HOST].total() - needed[0][HOST][STORE]
    images, less_ahead = served(arrays, prefetch=Prefetch(memory=most - 1))
    assert less_ahead < ahead
    assert needed[1][BESIDE_STORE].total() < most
    assert all(torch.equal(*pair) for pair in zip(images, usual, strict=True))
    assert not caplog.records  # It is what was asked for.
    with pytest.raises(
        OutOfMemoryError, match=r"beside the store, of which Prefetch says how much, must .* 2\.00 KB are"
    ):
        served(arrays, prefetch=Prefetch(memory="2KB"))
    with pytest.raises(ConfigurationError, match=r"'16GB', '500MiB' or '60%', got 'a lot'"):
        Prefetch(memory="a lot")


def test_what_was_chosen_is_kept_and_named_where_it_does_not_fit(
    arrays: Arrays, needed: list[Needs], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Prefetch(num_threads=2, look_ahead=40, batches_per_group=4)
    served(arrays, prefetch=chosen)
    room(monkeypatch, needed[0][HOST].total() // 2)
    with pytest.raises(OutOfMemoryError, match=r"in place of Prefetch\(look_ahead=40, batches_per_group=4\)$"):
        served(arrays, prefetch=chosen)
    served(arrays, prefetch=Prefetch(num_threads=2))


@pytest.mark.parametrize("final_device", ["cpu", "gpu"])
def test_depths_shrink_to_the_least_and_no_number_that_was_chosen_does(final_device: Any) -> None:
    for given in ({}, {"look_ahead": 5}, {"batches_per_group": 3}, {"replicas": 4}):
        prefetch = Prefetch(num_threads=8, **given)
        planner = Frozen(1000, batch_size=4)
        depths = prefetch.depths(planner, hits_together=True, devices=("cpu", final_device), apart=True)
        steps = [depths]
        while smaller := prefetch.smaller(steps[-1]):
            steps.append(smaller)
        wholes = [account(CPU).needs(each)[HOST].total() for each in steps]
        assert wholes == sorted(wholes, reverse=True)
        assert all(each.replicas * each.threads_each == 8 for each in steps)
        assert all(1 <= each.final_replicas <= each.replicas for each in steps)
        least = vars(steps[-1])
        names = ("replicas", "look_ahead", "batches_per_group", "ready", "read_ahead")
        assert {name: least[name] for name in names} == {**dict.fromkeys(names, 1), **given} | (
            {"look_ahead": 4} if "replicas" in given else {}
        )
        assert steps[-1].hits_per_group == steps[-1].batches_per_group


def test_two_loaders_count_each_other(arrays: Arrays, needed: list[Needs], monkeypatch: pytest.MonkeyPatch) -> None:
    """What one promises, and has not touched, the other one does not have."""
    room(monkeypatch, 2**33)
    before = resources.available_bytes()
    assert before is not None
    with MemoryStore() as store, Loader(arrays, RECIPE, PLANNER, store) as loader:
        assert resources.available_bytes() == before - needed[0][HOST].total()
        room(monkeypatch, needed[0][HOST].total() * 5 // 3)
        with MemoryStore() as other, Loader(arrays, RECIPE, PLANNER, other) as validation:
            assert validation.batches_ahead < loader.batches_ahead
            assert needed[0][HOST].total() + needed[1][HOST].total() <= needed[0][HOST].total() * 5 // 3
        room(monkeypatch, 2**33)
        assert resources.available_bytes() == before - needed[0][HOST].total()
        batches = 0
        while batches <= loader.batches_ahead:
            batches += sum(1 for _ in loader)
        # All that waits is there now, which the system knows, and what was stored.
        images = SIZE * SIZE * 3
        assert resources.available_bytes() == before - store.nbytes * 2 + images * store._opened().slot_table.fresh  # type: ignore[attr-defined]
        loader.close()
        assert resources.promised_bytes() <= store.nbytes * 2
    assert resources.available_bytes() == before


def test_a_loader_that_is_collected_gives_its_share_back(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 2**33)
    before = resources.promised_bytes()
    loader = Loader(arrays, RECIPE, PLANNER)
    assert resources.promised_bytes() > before
    del loader
    gc.collect()
    assert resources.promised_bytes() == before


def test_a_closed_loader_that_is_kept_promises_nothing(arrays: Arrays) -> None:
    before = resources.promised_bytes()
    loader = Loader(arrays, RECIPE, PLANNER)
    loader.close()
    assert resources.promised_bytes() == before
    assert len(loader) == 4


@pytest.mark.parametrize("shape", [(SIZE, SIZE, 3), None])
def test_a_store_promises_what_no_sample_has_been_in(shape: tuple[int, int, int] | None) -> None:
    before = resources.promised_bytes()
    image = SIZE * SIZE * 3
    spec = StoreSpec(shape, NUM_SAMPLES, {}, 0 if shape else 2 * NUM_SAMPLES * image)
    with MemoryStore() as store:
        taken = store.takes(spec).host
        store.open(spec)
        assert resources.promised_bytes() - before == taken
        keys = np.arange(NUM_SAMPLES // 2)
        store.put(keys, keys, [*np.zeros((len(keys), SIZE, SIZE, 3), np.uint8)])
        assert resources.promised_bytes() - before == (taken - len(keys) * image if shape else taken // 2)
    assert resources.promised_bytes() == before


class Promising:
    """What is going to take memory."""

    untouched_bytes = 1000


def test_what_a_process_promises_is_taken_off_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several processes of a machine has as much, and makes promises of its own."""
    room(monkeypatch, 9000)
    monkeypatch.setattr(resources, "local_processes", lambda: 3)
    taker = Promising()
    resources.promise_to(taker)
    assert resources.available_bytes() == 2000
    del taker
    assert resources.available_bytes() == 3000
