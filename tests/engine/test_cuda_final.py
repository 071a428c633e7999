"""Do parts by kernels on a GPU serve what the CPU serves? Here the CUDA source runs on this processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from PIL import Image

from dalirefurb import (
    Arrays,
    AutoAssist,
    BadSamplePolicy,
    DiskStore,
    Echo,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    auto_augment,
    rand_augment,
)
from dalirefurb.augment import Custom, GaussianBlur, HorizontalFlip, KernelStage, RandomErasing
from dalirefurb.dali import GraphError, Replicas, located
from dalirefurb.engine import backend_factory, build, configuration, cuda, kernel_choice, memory
from dalirefurb.engine.cuda import CudaDevice, CudaFinal
from dalirefurb.engine.kernel_choice import Devices, begun_on_gpu, choose_kernels
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.image_batch import Places
from dalirefurb.kernels.cuda.program import Launch
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.reader import Reader, Samples
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, Store
from dalirefurb.store.device.memory import DeviceMemory
from tests.faults import Fault, FaultError
from tests.kernels.cuda_host import COMPILER, compiled, launch_on
from tests.kernels.test_cuda import DARKENED, darkened
from tests.pictures import write_folder

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler (g++ or clang++)")

COUNT, BATCH = 22, 6
BOTH: dict[str, Any] = {"partial_device": "gpu", "kernels": "cuda"}
REFURBISH = Refurbish(COUNT, batch_size=BATCH, reuse_factor=3, seed=4)


class HostLauncher:
    """Runs a source that is compiled for this processor."""

    def __init__(self, text: str) -> None:
        self._library = compiled(text)

    def launch(self, launch: Launch, rows: int, page: int) -> None:
        launch_on(self._library, launch.function, page, launch.step, launch.blocks, rows)


class HostDevice(CudaDevice):
    """This processor as a GPU."""

    decodes_on = "cpu"

    def launcher(self, text: str) -> HostLauncher:
        return HostLauncher(text)


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the library take this processor for a GPU."""
    monkeypatch.setattr(
        build, "cuda_device", lambda store: HostDevice(DeviceMemory() if store is None else store.memory)
    )
    monkeypatch.setattr(kernel_choice, "_installed", lambda package: True)
    monkeypatch.setattr(backend_factory, "release_unused_memory", lambda: None)
    monkeypatch.setattr(configuration, "_check_gpu", lambda: None)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 40)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=COUNT))


def on_gpu(store: DeviceStore) -> DeviceStore:
    store.device = "gpu"
    return store


STORES: dict[str, Callable[[Any], Store | None]] = {
    "none": lambda _: None,
    "memory": lambda _: MemoryStore(),
    "disk": lambda folder: DiskStore(folder / "store"),
    "device": lambda _: on_gpu(DeviceStore(device="cpu")),
    "pinned host": lambda _: on_gpu(DeviceStore(device="cpu", pinned_host=True)),
}

RECIPES: dict[str, Callable[[], Recipe]] = {
    "rand_augment": lambda: rand_augment(32),
    "crop last": lambda: rand_augment(32, order="crop_last"),
    "auto_augment": lambda: auto_augment(32, split=3),
    "of any size": lambda: rand_augment(32).at(1),
    "float16": lambda: rand_augment(32, dtype="float16", channels_last=True),
    "bfloat16": lambda: rand_augment(32, dtype="bfloat16"),
    "more": lambda: Recipe(
        [*rand_augment(32).stages, GaussianBlur(5), RandomErasing(0.8, value="pixel"), HorizontalFlip(name="last")],
        rand_augment(32).output,
        2,
    ),
}


def served(loader: Loader, epochs: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    with loader:
        return [(images.clone(), labels) for _ in range(epochs) for images, labels in loader]


def same(one: list[tuple[torch.Tensor, torch.Tensor]], other: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    assert len(one) == len(other) > 0
    for (images, labels), (others, other_labels) in zip(one, other, strict=True):
        assert images.dtype == others.dtype
        assert images.is_contiguous() == others.is_contiguous()
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def loader_of(folder: Source, recipe: Recipe, planner: Planner, store: Store | None, **settings: Any) -> Loader:
    return Loader(folder, recipe, planner, store, final_device="gpu", **settings)


CHOSEN = {
    *(("rand_augment", store, "both parts") for store in STORES),
    ("rand_augment", "memory", "final part"),
    ("of any size", "memory", "final part"),
    ("float16", "memory", "both parts"),
    ("more", "memory", "final part"),
}
"""Each store, sizes that differ, a type that is rounded to, and all kinds of kernels; each part."""

PLACED = [
    pytest.param(
        recipe,
        store,
        devices,
        id=f"{recipe}-{store}-{place}",
        marks=[] if (recipe, store, place) in CHOSEN else pytest.mark.weekly,
    )
    for place, devices in (("final part", {}), ("both parts", BOTH))
    for recipe in RECIPES
    for store in STORES
    if recipe != "of any size" or store not in ("device", "pinned host")  # whose slots have one size
]


@pytest.mark.parametrize(("recipe", "store", "devices"), PLACED)
@pytest.mark.filterwarnings("ignore:Refurbish reuses partial images, but there is no store")
def test_parts_on_the_gpu_serve_what_the_cpu_serves(
    folder: ImageFolder, recipe: str, store: str, devices: dict[str, Any], tmp_path: Any
) -> None:
    made = RECIPES[recipe]()
    expected = served(Loader(folder, made, REFURBISH, MemoryStore(), kernels="numba"))
    with loader_of(folder, made, REFURBISH, STORES[store](tmp_path), **devices) as loader:
        assert "kernels: cuda" in repr(loader)
        same(served(loader), expected)
        assert store == "none" or loader.stats().hits > 0


@pytest.mark.parametrize(
    "planner",
    [
        Standard(COUNT, batch_size=BATCH, seed=1),
        Echo(Standard(COUNT, batch_size=BATCH, seed=1), echoing_factor=2, buffer_size=8),
        SmartCache(COUNT, batch_size=BATCH, num_cache_objects=12, replace_percent=0.25, seed=1),
        Refurbish(COUNT, batch_size=1, reuse_factor=2, seed=1, drop_last=True),
    ],
    ids=lambda planner: type(planner).__name__,
)
@pytest.mark.filterwarnings("ignore:with SmartCache the partial part should not be random")
def test_every_planner_is_served_alike(folder: ImageFolder, planner: Planner) -> None:
    recipe = rand_augment(32)
    expected = served(Loader(folder, recipe, planner, MemoryStore(), kernels="numba"))
    for devices in ({}, BOTH):
        same(served(loader_of(folder, recipe, planner, on_gpu(DeviceStore(device="cpu")), **devices)), expected)


def test_groups_of_many_batches_and_of_few_share_memory_in_turn(folder: ImageFolder) -> None:
    recipe, settings = rand_augment(32), Prefetch(look_ahead=5, batches_per_group=3)
    expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    same(served(loader_of(folder, recipe, REFURBISH, MemoryStore(), prefetch=settings)), expected)


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_state_of_the_cpu_goes_on_on_the_gpu_and_back(folder: ImageFolder, epoch: int) -> None:
    recipe = rand_augment(32)
    expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    per_epoch = len(expected) // 4
    with Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba") as loader:
        for _ in range(epoch):
            list(loader)
        list(islice(loader, 2))
        state = loader.state_dict()
    with loader_of(folder, recipe, REFURBISH, MemoryStore()) as loader:
        loader.load_state_dict(state)
        rest = [(images.clone(), labels) for images, labels in loader.resume()]
        same(rest, expected[per_epoch * epoch + 2 : per_epoch * (epoch + 1)])
        state = loader.state_dict()
    with Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba") as loader:
        loader.load_state_dict(state)
        again = [(images.clone(), labels) for images, labels in loader]
        same(again, expected[per_epoch * (epoch + 1) : per_epoch * (epoch + 2)])


def test_bad_samples_are_replaced_alike(folder: ImageFolder, tmp_path: Any) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    names = [folder.name(index) for index in range(COUNT)]
    names[3] = names[17] = str(broken)
    source, policy = FileList(names, [0] * COUNT), BadSamplePolicy("replace")
    recipe = rand_augment(32)
    expected = served(Loader(source, recipe, REFURBISH, MemoryStore(), kernels="numba", bad_samples=policy))
    gpu = Loader(source, recipe, REFURBISH, MemoryStore(), final_device="gpu", bad_samples=policy)
    same(served(gpu), expected)


def test_partial_images_by_dali_are_finished_alike(folder: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = rand_augment(32, order="crop_last").at(1)
    expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    for module in (backend_factory, build, configuration, kernel_choice):
        monkeypatch.setattr(module, "done_by", lambda *_: None)
    same(served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="cuda", final_device="gpu")), expected)


# Both parts


@pytest.mark.parametrize("split", range(1, 5))
def test_both_parts_are_made_alike_at_every_split(folder: ImageFolder, split: int) -> None:
    recipe = rand_augment(32).at(split)
    expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    same(served(loader_of(folder, recipe, REFURBISH, MemoryStore(), **BOTH)), expected)


def test_a_gpu_begins_with_images_that_are_decoded(folder: ImageFolder) -> None:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 32, 32, 3), np.uint8)
    source, recipe = Arrays(images, np.arange(COUNT)), rand_augment(32, raw=True)
    expected = served(Loader(source, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    same(served(loader_of(source, recipe, REFURBISH, on_gpu(DeviceStore(device="cpu")), **BOTH)), expected)


def test_views_are_finished_of_what_a_gpu_began(folder: ImageFolder) -> None:
    recipe = rand_augment(32).at(1)
    given: dict[str, Any] = {"views": [recipe.view(2)]}

    def images(loader: Loader) -> list[torch.Tensor]:
        with loader:
            return [torch.stack(views) for _ in range(3) for views, _ in loader]

    expected = images(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba", **given))
    made = images(loader_of(folder, recipe, REFURBISH, MemoryStore(), **given, **BOTH))
    assert all(torch.equal(*pair) for pair in zip(made, expected, strict=True))


def test_losses_change_the_plan_of_a_gpu_as_that_of_a_cpu(folder: ImageFolder) -> None:
    """An Assistant looks at partial images on the host."""
    recipe = rand_augment(32)
    streams = []
    for devices in ({"kernels": "numba"}, {"final_device": "gpu", **BOTH}):
        planner = AutoAssist(Standard(COUNT, batch_size=BATCH, seed=1), lag=8)
        near = Prefetch(look_ahead=1, batches_per_group=1)
        with Loader(folder, recipe, planner, prefetch=near, **devices) as loader:
            streams.append([])
            for _ in range(5):
                for images, labels in loader:
                    streams[-1].append(images.clone())
                    loader.observe(labels.double())
    assert len(streams[0]) > 6
    assert all(torch.equal(*pair) for pair in zip(*streams, strict=True))


def test_a_gpu_is_given_decoded_images_among_encoded_ones(folder: ImageFolder, tmp_path: Any) -> None:
    """A GIF is decoded by Pillow."""
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 40), np.uint8)).save(tmp_path / "image.gif")
    names = [folder.name(index) for index in range(COUNT)]
    names[5] = names[11] = str(tmp_path / "image.gif")
    source, recipe = FileList(names, [0] * COUNT), rand_augment(32)
    expected = served(Loader(source, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    with loader_of(source, recipe, REFURBISH, MemoryStore(), **BOTH) as loader:
        same(served(loader), expected)
        assert loader.stats().pillow_images > 0


def among_gifs(folder: ImageFolder, tmp_path: Path, others: dict[int, str]) -> FileList:
    """Files of which every second one is decoded by Pillow, and some are others."""
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 40), np.uint8)).save(tmp_path / "image.gif")
    names = [folder.name(index) if index % 2 else str(tmp_path / "image.gif") for index in range(COUNT)]
    return FileList([others.get(index, name) for index, name in enumerate(names)], [0] * COUNT)


def test_samples_that_the_gpus_decoder_refuses_are_named_and_replaced(folder: ImageFolder, tmp_path: Any) -> None:
    whole = Path(folder.name(3)).read_bytes()
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(whole[: len(whole) // 3] + bytes(40))
    source, recipe = among_gifs(folder, tmp_path, {index: str(broken) for index in (3, 17)}), rand_augment(32)
    policy = BadSamplePolicy("replace")
    expected = served(Loader(source, recipe, REFURBISH, MemoryStore(), kernels="numba", bad_samples=policy))
    with loader_of(source, recipe, REFURBISH, MemoryStore(), bad_samples=policy, **BOTH) as loader:
        same(served(loader), expected)
        assert [each.index for each in loader.bad_samples()] == [3, 17]


@pytest.mark.parametrize("said", ["Failed to decode sample #0 : nothing", "the decoded image is of another size than"])
def test_of_a_sample_that_the_gpus_decoder_makes_nothing_of_or_another_size_the_row_is_told(
    folder: ImageFolder, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Its row of the batch, not that among those which the decoder is given."""
    source, planner, told = among_gifs(folder, tmp_path, {}), Standard(COUNT, batch_size=BATCH), list[int]()
    encoded = [index for index in planner.plan(0, 0).indices.tolist() if index % 2]

    def taller(images: Any) -> Places:
        places = located(images)
        places.sizes[0, 0] += 1
        return places

    def failing(_: Replicas) -> None:
        raise GraphError(said)

    def reconsider(_: Reader, samples: Samples, error: GraphError) -> bool:
        assert error.row is not None
        told.append(int(samples.indices[error.row]))
        return False

    if said.startswith("Failed"):
        monkeypatch.setattr(Replicas, "collect", failing)
    else:
        monkeypatch.setattr(cuda, "located", taller)
    monkeypatch.setattr(Reader, "reconsider", reconsider)
    with (
        loader_of(source, rand_augment(32), planner, None, **BOTH) as loader,
        pytest.raises(LoaderError, match=f"batch 0 of epoch 0 failed in the graph: {said}"),
    ):
        next(iter(loader))
    assert told[0] == encoded[0] != planner.plan(0, 0).indices[0]


def test_a_kernel_of_the_users_for_a_gpu_serves_what_its_function_serves(folder: ImageFolder) -> None:
    own = KernelStage(darkened, "darkened", uniforms=1, cuda=DARKENED)
    base = rand_augment(32)
    for split, devices in ((3, BOTH), (2, {})):
        recipe = Recipe([*base.stages[:2], own, *base.stages[2:]], base.output, split)
        expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"))
        same(served(loader_of(folder, recipe, REFURBISH, MemoryStore(), **devices)), expected)


def test_a_kernel_of_the_users_that_makes_other_levels_is_refused(folder: ImageFolder) -> None:
    own = KernelStage(darkened, "darkened", uniforms=1, cuda=DARKENED.replace("0.5f +", "0.4f +"))
    recipe = Recipe([*rand_augment(32).stages, own], rand_augment(32).output, split=3)
    with (
        pytest.raises(ConfigurationError, match=r"'darkened': cuda must make the levels .* row 0, column 0 is \["),
        loader_of(folder, recipe, REFURBISH, MemoryStore()) as loader,
    ):
        next(iter(loader))


def test_of_a_kernel_of_the_users_the_first_pixel_that_differs_is_told_with_what_both_make(
    folder: ImageFolder,
) -> None:
    source = DARKENED.replace("Pixel given", "if (y == 3 && x > 4) factor = 0.0f;\n  Pixel given")
    own = KernelStage(darkened, "darkened", uniforms=1, cuda=source)
    recipe = Recipe([*rand_augment(32).stages, own], rand_augment(32).output, split=3)
    said = r"image of 24 x 40 .* in row 3, column 5 is \[0, 0, 0\] in place of \[[1-9]\d*, [1-9]\d*, [1-9]\d*\]: see"
    with pytest.raises(ConfigurationError, match=said), loader_of(folder, recipe, REFURBISH, MemoryStore()) as loader:
        next(iter(loader))


def test_a_loader_says_who_begins_on_the_gpu(folder: ImageFolder) -> None:
    recipe, devices = rand_augment(32), Devices("gpu", "gpu")
    assert begun_on_gpu("cuda", recipe, devices)
    assert not begun_on_gpu("dali", recipe, devices)
    assert not begun_on_gpu("cuda", recipe, CPU_GPU)
    own = Recipe([recipe.stages[0], Custom(lambda images: images, "own"), *recipe.stages[1:]], recipe.output, 3)
    assert choose_kernels(None, own, devices) == "cuda"
    assert not begun_on_gpu("cuda", own, devices)


# What is chosen

CPU_GPU = Devices("cpu", "gpu")


def test_kernels_are_chosen_for_a_final_part_on_a_gpu_whose_stages_have_some() -> None:
    recipe = rand_augment(32)
    assert choose_kernels(None, recipe, CPU_GPU) == "cuda"
    assert choose_kernels("dali", recipe, CPU_GPU) == "dali"
    assert choose_kernels(None, recipe.at(0), Devices("gpu", "gpu")) == "dali"
    own = Recipe([*recipe.stages, Custom(lambda images: images, "own")], recipe.output, recipe.split)
    assert choose_kernels(None, own, CPU_GPU) == "dali"


@pytest.mark.parametrize(
    ("recipe", "devices", "said"),
    [
        (rand_augment(32), Devices(), r"is for a final part on a GPU, got final_device='cpu'"),
        (rand_augment(32).at(0), Devices("gpu", "gpu"), r"split 0 caches encoded ones"),
        (
            Recipe([*rand_augment(32).stages, Custom(lambda images: images, "own")], rand_augment(32).output, 2),
            CPU_GPU,
            r"needs stages that have kernels for a GPU",
        ),
    ],
)
def test_kernels_that_cannot_be_had_on_a_gpu_are_refused(recipe: Recipe, devices: Devices, said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"kernels='cuda' .*{said}"):
        choose_kernels("cuda", recipe, devices)


@pytest.mark.parametrize("missing", ["cupy", "numba"])
def test_without_cupy_or_numba_dali_does_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(kernel_choice, "_installed", lambda package: package != missing)
    assert choose_kernels(None, rand_augment(32), CPU_GPU) == "dali"
    with pytest.raises(ConfigurationError, match=r"kernels='cuda' needs CuPy and Numba"):
        choose_kernels("cuda", rand_augment(32), CPU_GPU)


# What goes wrong


@pytest.mark.parametrize(
    ("devices", "fault"),
    [
        pytest.param({}, Fault(HostLauncher, "launch", 7, RuntimeError), id="final part, launch"),
        pytest.param({}, Fault(CudaFinal, "collect", 2), id="final part, collect"),
        pytest.param(BOTH, Fault(HostLauncher, "launch", 7, RuntimeError), id="both parts, launch"),
    ],
)
def test_what_fails_is_an_error_of_its_batch_and_changes_no_other(
    folder: ImageFolder, devices: dict[str, Any], fault: Fault
) -> None:
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def serve(batches: Iterable[Any]) -> None:
        for images, labels in batches:
            found.append((images.clone(), labels))

    recipe = rand_augment(32)
    expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"), epochs=2)
    with loader_of(folder, recipe, REFURBISH, MemoryStore(), **devices) as loader, fault.installed():
        batches = iter(loader)
        with pytest.raises((FaultError, RuntimeError), match=r"call \d of (launch|collect)"):
            serve(batches)
        serve(batches)
        serve(loader)
    same(found, expected)


def test_images_and_labels_are_right_when_read_much_later(folder: ImageFolder) -> None:
    recipe = rand_augment(32)
    expected = served(Loader(folder, recipe, REFURBISH, MemoryStore(), kernels="numba"))
    with loader_of(folder, recipe, REFURBISH, MemoryStore()) as loader:
        kept: Iterator[Any] = iter([batch for _ in range(4) for batch in loader])
        same(list(kept), expected)
    assert np.isfinite(expected[0][0].numpy()).all()
