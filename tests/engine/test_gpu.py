"""What holds on a GPU: the same promises, on each placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali.pipeline import Pipeline

from dalirefurb import (
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    Stats,
    auto_augment,
    evaluate,
    rand_augment,
    trivial_augment,
)
from dalirefurb.augment.policies.layers import RandAugmentLayer
from dalirefurb.augment.policies.operations import (
    AUTO_AUGMENT_OPERATIONS,
    OPERATIONS,
    WIDE_OPERATIONS,
    BinnedTable,
    Chosen,
    Group,
    Operation,
)
from dalirefurb.dali import Graph
from dalirefurb.engine.backend_factory import BackendFactory
from dalirefurb.engine.finals import _laid_out
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.kernel_choice import Devices
from dalirefurb.image_batch import Images, Rows
from dalirefurb.store import Store, StoreSpec
from dalirefurb.store.device.store import DeviceStore
from tests.occupied import Spin
from tests.one_batch import operate, operation_pipeline
from tests.pictures import picture, write_folder
from tests.placements import NEEDS_GPU, ON_GPU, Placement
from tests.store.device_scenes import planned

pytestmark = NEEDS_GPU

SIZE = 64
NUM_SAMPLES = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    root: Path = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return ImageFolder(root)


def serve(
    folder: ImageFolder,
    recipe: Recipe,
    store: Store | None,
    placement: Placement,
    *,
    replicas: int = 2,
) -> tuple[list[torch.Tensor], Stats]:
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7)
    partial_device, final_device = placement
    with Loader(
        folder,
        recipe,
        planner,
        store,
        partial_device=partial_device,
        final_device=final_device,
        prefetch=Prefetch(replicas=replicas),
    ) as loader:
        served = [images.clone() for _ in range(5) for images, _ in loader]
        return served, loader.stats()


RECIPES = {
    "paper, split after decoding": rand_augment(SIZE, split="random_resized_crop"),
    "paper, split in the middle": rand_augment(SIZE, split="rand_augment_2"),
    "crop_last": rand_augment(SIZE, order="crop_last"),
    "auto_augment, split in the middle": auto_augment(SIZE, split="auto_augment_2"),
    "trivial_augment": trivial_augment(SIZE),
    "evaluate": evaluate(SIZE),
}


@pytest.mark.parametrize("placement", ON_GPU)
@pytest.mark.parametrize("name", RECIPES)
def test_tensors_are_the_same_with_and_without_a_store(folder: ImageFolder, placement: Placement, name: str) -> None:
    recipe = RECIPES[name]
    expected, _ = serve(folder, recipe, None, placement, replicas=1)
    served, stats = serve(folder, recipe, MemoryStore(), placement)
    assert stats.hits > 0
    assert stats.recomputed == 0
    for number, (one, other) in enumerate(zip(expected, served, strict=True)):
        assert torch.equal(one, other), f"batch {number}"


@pytest.mark.parametrize("placement", ON_GPU)
def test_images_and_labels_are_on_the_gpu(folder: ImageFolder, placement: Placement) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3)
    partial_device, final_device = placement
    with Loader(
        folder,
        rand_augment(SIZE),
        planner,
        partial_device=partial_device,
        final_device=final_device,
        with_indices=True,
        pin_memory=True,
    ) as loader:
        images, labels, indices = next(iter(loader))
    assert images.device.type == "cuda"
    assert images.device == labels.device
    assert indices.device.type == "cpu"


def test_pinned_images_and_labels_are_those_of_ordinary_memory(folder: ImageFolder) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3)
    recipe = rand_augment(SIZE, channels_last=True)
    with (
        Loader(folder, recipe, planner, MemoryStore(), pin_memory=True) as pinned,
        Loader(folder, recipe, planner, MemoryStore()) as ordinary,
    ):
        for _ in range(3):
            for (images, labels), (other_images, other_labels) in zip(pinned, ordinary, strict=True):
                assert images.is_pinned()
                assert labels.is_pinned()
                assert images.is_contiguous(memory_format=torch.channels_last)
                assert torch.equal(images, other_images)
                assert torch.equal(labels, other_labels)
                assert torch.equal(images.to("cuda", non_blocking=True).cpu(), other_images)


@pytest.mark.parametrize("placement", ON_GPU)
def test_the_layout_of_the_images_changes_no_value(folder: ImageFolder, placement: Placement) -> None:
    recipe = rand_augment(SIZE, dtype="float16", order="crop_last")
    expected, _ = serve(folder, recipe, None, placement)
    served, _ = serve(folder, recipe.with_output(channels_last=True), None, placement)
    for one, other in zip(expected, served, strict=True):
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(one, other)


@pytest.mark.parametrize("placement", ON_GPU)
def test_pixels_stay_close_to_those_of_the_cpu(folder: ImageFolder, placement: Placement) -> None:
    """Most pixels agree; the rest differ by decoding, resampling and rounding on the device."""
    recipe = rand_augment(SIZE, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    expected, _ = serve(folder, recipe, None, ("cpu", "cpu"))
    served, _ = serve(folder, recipe, None, placement)
    differences = torch.cat([(one - other.cpu()).abs().flatten() for one, other in zip(expected, served, strict=True)])
    assert differences.mean() < 2.0
    assert (differences <= 2).float().mean() > 0.9


@pytest.mark.parametrize("name", RECIPES)
def test_a_final_part_by_kernels_makes_the_bits_of_the_cpu(folder: ImageFolder, name: str) -> None:
    pytest.importorskip("cupy")
    expected, _ = serve(folder, RECIPES[name], MemoryStore(), ("cpu", "cpu"))
    served, _ = serve(folder, RECIPES[name], MemoryStore(), ("cpu", "gpu"))
    for number, (one, other) in enumerate(zip(expected, served, strict=True)):
        assert torch.equal(one, other.cpu()), f"batch {number}"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_what_another_thread_builds_is_on_the_device_that_was_current_where_the_runners_were_made() -> None:
    with torch.cuda.device(1):
        factory = BackendFactory(
            rand_augment(SIZE),
            "dali",
            Devices("gpu", "gpu"),
            max_rows=6,
            depths=Prefetch(num_threads=1, replicas=1, look_ahead=1, batches_per_group=1).depths(
                Standard(NUM_SAMPLES, batch_size=6)
            ),
        )
    with ThreadPoolExecutor(1) as thread:
        replicas = thread.submit(factory.build, "partial").result()
    (replica,) = replicas._replicas
    assert replica._pipeline.device_id == 1
    factory.close()


TABLES = {
    "rand_augment": (OPERATIONS, 31),
    "auto_augment": (AUTO_AUGMENT_OPERATIONS, 10),
    "trivial_augment": (WIDE_OPERATIONS, 31),
}
EXACT = (Group.IDENTITY, Group.POSTERIZE, Group.SOLARIZE)


@pytest.fixture(scope="module")
def pipelines() -> tuple[Any, Any]:
    """Operations on the CPU, and on the GPU."""
    layer = RandAugmentLayer()
    return operation_pipeline(layer), operation_pipeline(layer, "gpu", device_id=torch.cuda.current_device())


@pytest.mark.parametrize(
    ("policy", "row"), [(policy, row) for policy, (rows, _) in TABLES.items() for row in range(len(rows))]
)
def test_an_operation_is_on_the_gpu_what_it_is_on_the_cpu(pipelines: tuple[Any, Any], policy: str, row: int) -> None:
    """At every magnitude and sign: within 2 levels, as both are near Pillow's.

    Warps are exact, but where a source lies between two pixels; rotations by a right angle put all of them there.
    """
    operations, num_bins = TABLES[policy]
    operation: Operation = operations[row]
    image = np.asarray(picture(3, height=224, width=230))
    bins = np.arange(num_bins).repeat(2)
    sizes = np.full(2 * num_bins, 224), np.full(2 * num_bins, 230)
    parameters = BinnedTable(operations, num_bins).parameters(
        Chosen(np.full(2 * num_bins, row), bins, np.tile([False, True], num_bins)), heights=sizes[0], widths=sizes[1]
    )
    on_cpu, on_gpu = (np.stack(operate(each, [image] * (2 * num_bins), parameters)) for each in pipelines)
    difference = np.abs(on_cpu.astype(int) - on_gpu).max(axis=3)
    if operation.group is Group.WARP:
        differing = (difference > 0).mean(axis=(1, 2))
        assert np.median(differing) < 0.01
        assert (differing > 0.25).sum() <= 2
    else:
        assert difference.max() <= (0 if operation.group in EXACT else 2)


SLOT_SHAPE = (8, 9, 3)
SLOTS = 6


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture
def busy(cupy: Any) -> Callable[[], None]:
    """Keep the current stream busy for some 100 ms."""
    return Spin(cupy).stream


@pytest.fixture(params=[False, True], ids=["device", "pinned host"])
def device_store(cupy: Any, request: pytest.FixtureRequest) -> Iterator[DeviceStore]:
    with DeviceStore(pinned_host=request.param) as store:
        store.open(StoreSpec(SLOT_SHAPE, SLOTS, {}))
        yield store


def stream(cupy: Any) -> Any:
    return cupy.cuda.Stream(non_blocking=True)


def images_like(seed: int, count: int = SLOTS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SLOT_SHAPE), dtype=np.uint8)


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_device_store_returns_what_was_put(cupy: Any, device_store: DeviceStore, where: str) -> None:
    indices, images = np.arange(SLOTS), images_like(0)
    assert device_store.put(indices, indices, list(images) if where == "host" else cupy.asarray(images)).all()
    asked, rows = np.array([5, 9, 0, 3, 3]), np.array([6, 2, 0, 4, 5])
    with device_store.get(asked, asked) as lease:
        assert lease.found.tolist() == [True, False, True, True, True]
        out = cupy.zeros((7, *SLOT_SHAPE), np.uint8)
        lease.gather(out, rows)
        np.testing.assert_array_equal(out.get()[rows[lease.found]], images[asked[lease.found]])
        for sample, index in zip(lease.samples, asked, strict=True):
            assert sample is None or (sample == images[index]).all()


def test_put_waits_for_what_makes_its_samples(cupy: Any, device_store: DeviceStore, busy: Callable[[], None]) -> None:
    indices, images = np.arange(SLOTS), images_like(1)
    made, samples = cupy.asarray(images), cupy.zeros((SLOTS, *SLOT_SHAPE), np.uint8)
    cupy.cuda.Device().synchronize()
    with stream(cupy):
        busy()
        samples[...] = made
        device_store.put(indices, indices, samples)
    with device_store.get(indices, indices) as lease:
        np.testing.assert_array_equal(np.stack(lease.samples), images)


def test_what_changes_the_samples_waits_for_put(cupy: Any, device_store: DeviceStore, busy: Callable[[], None]) -> None:
    indices, images = np.arange(SLOTS), images_like(2)
    samples = cupy.asarray(images)
    cupy.cuda.Device().synchronize()
    with device_store.memory.on_stream():
        busy()
    with stream(cupy):
        device_store.put(indices, indices, samples)
        samples.fill(0)
    with device_store.get(indices, indices) as lease:
        np.testing.assert_array_equal(np.stack(lease.samples), images)


def test_a_gathered_batch_is_there_for_the_callers_stream_and_not_before_that_is_through_with_it(
    cupy: Any, device_store: DeviceStore, busy: Callable[[], None]
) -> None:
    indices, images = np.arange(SLOTS), images_like(3)
    device_store.put(indices, indices, list(images))
    out = cupy.full((SLOTS, *SLOT_SHAPE), 7, np.uint8)
    before, after = cupy.zeros_like(out), cupy.zeros_like(out)
    cupy.cuda.Device().synchronize()
    with stream(cupy), device_store.get(indices, indices) as lease:
        busy()
        before[...] = out
        lease.gather(out, indices)
    cupy.cuda.Device().synchronize()
    assert (before == 7).all()
    out.fill(0)
    cupy.cuda.Device().synchronize()
    with device_store.memory.on_stream():
        busy()
    with stream(cupy) as reading, device_store.get(indices, indices) as lease:
        lease.gather(out, indices)
        after[...] = out
        np.testing.assert_array_equal(after.get(stream=reading), images)


def test_a_slot_is_taken_again_only_after_it_was_gathered(
    cupy: Any, device_store: DeviceStore, busy: Callable[[], None]
) -> None:
    indices, images = np.arange(SLOTS), images_like(4)
    device_store.put(indices, indices, list(images))
    out = cupy.zeros((SLOTS, *SLOT_SHAPE), np.uint8)
    cupy.cuda.Device().synchronize()
    with device_store.memory.on_stream():
        busy()
    with device_store.get(indices, indices) as lease:
        lease.gather(out, indices)
    device_store.evict(indices)
    assert device_store.put(indices, indices, list(images_like(5))).all()
    np.testing.assert_array_equal(out.get(), images)


@pytest.mark.alone
@pytest.mark.parametrize("pinned_host", [False, True])
def test_closing_a_device_store_gives_the_memory_back(cupy: Any, pinned_host: bool) -> None:
    slots, shape = 2000, (224, 224, 3)
    free_before, _ = cupy.cuda.Device().mem_info
    with DeviceStore(pinned_host=pinned_host) as store:
        store.open(StoreSpec(shape, slots, {}))
        store.put(np.arange(100), np.zeros(100, np.int64), [np.zeros(shape, np.uint8)] * 100)
        taken = free_before - cupy.cuda.Device().mem_info[0]
        assert (taken >= store.nbytes) == (not pinned_host)
    assert free_before - cupy.cuda.Device().mem_info[0] < 0.1 * slots * 224 * 224 * 3


@pytest.mark.parametrize("pinned_host", [False, True])
@pytest.mark.parametrize("placement", ON_GPU)
def test_tensors_are_the_same_with_and_without_a_device_store(
    cupy: Any, folder: ImageFolder, placement: Placement, pinned_host: bool
) -> None:
    recipe = RECIPES["crop_last"]
    expected, _ = serve(folder, recipe, None, placement)
    served, stats = serve(folder, recipe, DeviceStore(pinned_host=pinned_host), placement)
    assert stats.hits > 0
    assert stats.recomputed == 0
    assert all(torch.equal(one, other) for one, other in zip(expected, served, strict=True))


def test_a_final_graph_makes_the_same_of_what_is_laid_out_on_the_gpu_and_of_images_from_the_host(
    cupy: Any, busy: Callable[[], None]
) -> None:
    """It is written late, and again at once: the graph must wait for it, and must have read it by then."""
    recipe = rand_augment(SIZE, raw=True, order="crop_last")
    plan = next(iter(Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7).epoch(0)))
    images = [np.asarray(picture(row, height=SIZE, width=SIZE)) for row in range(6)]
    feeds = InputBuilder(recipe, seed=7, entering=(SIZE, SIZE, 3)).final(plan, images, plan.indices)
    made: dict[str, list[np.ndarray]] = {}
    with DeviceStore() as store:
        store.open(StoreSpec((SIZE, SIZE, 3), 6, {}))
        store.put(plan.indices[:4], plan.version[:4], images[:4])
        for entering in ("cpu", "gpu"):
            graph = Graph(recipe, "final", "cpu", "gpu", entering)
            pipeline = Pipeline.deserialize(
                graph.serialize(max_batch_size=6, num_threads=2),
                num_threads=2,
                device_id=torch.cuda.current_device(),
                prefetch_queue_depth=1,
                exec_dynamic=True,
            )
            made[entering] = []
            for _ in range(3):
                with store.memory.on_stream(), store.get(plan.indices[:4], plan.version[:4]) as lease:
                    busy()
                    group = planned(np.arange(4), lease, count=6)
                    batch = _laid_out(store, group, [Rows(np.array([4, 5]), Images(images[4:]))])
                    for name, feed in feeds.items():
                        partial = name == "partial"
                        fed = batch if partial and entering == "gpu" else feed
                        pipeline.feed_input(name, fed, layout="HWC" if partial else None)
                    batch.fill(0)
                pipeline.schedule_run()
                (output,) = pipeline.share_outputs()
                made[entering].append(np.array(output.as_cpu().as_tensor()))
                pipeline.release_outputs()
    for on_host, on_gpu in zip(made["cpu"], made["gpu"], strict=True):
        np.testing.assert_array_equal(on_host, on_gpu)
