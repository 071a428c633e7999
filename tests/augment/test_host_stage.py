"""Any Python function of an image is served as a stage of the library's would be, with numbers of each sample's own."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow

pytest.importorskip("numba")

from dalirefurb import Arrays, FileList, Loader, MemoryStore, Prefetch, Recipe, Refurbish
from dalirefurb.augment import CenterCrop, Decode, HorizontalFlip, HostStage, RandomApply, RandomCrop
from dalirefurb.augment.stage import draw
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.kernels.host import HostFunction
from dalirefurb.kernels.record import DONE, RAISED
from dalirefurb.targets import Annotated, Masks
from tests.one_batch import levels

HEIGHT, WIDTH, COUNT = 20, 28, 24
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)


def noisy(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Add noise, and write to what is given."""
    image += rng.integers(0, 20, image.shape, np.uint8)
    return image


def turned(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.rot90(image)


def planner_of(**options: Any) -> Refurbish:
    return Refurbish(COUNT, **{"batch_size": 8, "reuse_factor": 2, "seed": 1, **options})


def batches(
    stages: list[Any], size: Any, split: int, *, store: bool = True, epochs: int = 3, **options: Any
) -> list[torch.Tensor]:
    recipe = Recipe(stages, levels(size), split)
    source = Arrays(IMAGES, np.arange(COUNT))
    with Loader(source, recipe, planner_of(), MemoryStore() if store else None, **options) as loader:
        return [images.clone() for _ in range(epochs) for images, _ in loader]


def test_a_function_is_given_an_image_of_its_own_and_numbers_of_the_samples_version() -> None:
    stage = HostStage(noisy, "mine")
    recipe = Recipe([stage], levels((HEIGHT, WIDTH)), 1)
    planner = planner_of(batch_size=COUNT)
    sides = np.full(COUNT, HEIGHT), np.full(COUNT, WIDTH)
    with Loader(Arrays(IMAGES, np.arange(COUNT)), recipe, planner, MemoryStore()) as loader:
        for epoch in range(3):
            ((images, labels),) = loader
            plan = planner.plan(epoch, 0)
            drawn, _, _ = draw(
                (stage,), seed=1, indices=plan.indices, numbers=plan.version, heights=sides[0], widths=sides[1]
            )
            assert labels.tolist() == plan.indices.tolist()
            for image, index, (one, other) in zip(images, plan.indices, drawn["mine"]["uniforms"], strict=True):
                key = np.array([int(one * 2**53), int(other * 2**53)], np.uint64)
                wanted = noisy(IMAGES[index].copy(), np.random.Generator(np.random.Philox(key=key)))
                assert np.array_equal(image.numpy().transpose(1, 2, 0), wanted)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("split", [0, 1, 2, 3])
def test_it_is_served_alike_with_a_store_and_without_wherever_the_split(split: int, threads: int) -> None:
    """What a function writes to its image changes none that is cached."""
    stages = [RandomCrop((16, 20)), HostStage(noisy, "one"), HostStage(noisy, "other")]
    cached = batches(stages, (16, 20), split, prefetch=Prefetch(num_threads=threads))
    fresh = batches(stages, (16, 20), split, store=False)
    assert len(cached) == 9
    assert all(map(torch.equal, cached, fresh))
    assert not torch.equal(cached[0].sort(0).values, cached[3].sort(0).values)


def test_it_runs_inside_other_stages_and_changes_sizes() -> None:
    stages = [HostStage(turned, "turned", size=(WIDTH, HEIGHT)), RandomApply(HostStage(noisy, "mine"), 0.0)]
    for split in range(3):
        (made, *_) = batches([*stages, HorizontalFlip(1.0)], (WIDTH, HEIGHT), split, epochs=1)
        shown = planner_of().plan(0, 0).indices
        assert np.array_equal(made.numpy().transpose(0, 2, 3, 1), np.rot90(IMAGES[shown], axes=(1, 2))[:, :, ::-1])


def test_an_epoch_goes_on_at_any_batch_with_the_same_numbers() -> None:
    recipe = Recipe([HostStage(noisy, "one"), HostStage(noisy, "other")], levels((HEIGHT, WIDTH)), 1)
    source, wanted, states = Arrays(IMAGES, np.arange(COUNT)), list[torch.Tensor](), list[Any]()
    with Loader(source, recipe, planner_of(), MemoryStore()) as loader:
        for _ in range(2):
            for images, _ in loader:
                wanted.append(images.clone())
                states.append(loader.state_dict())
    for place, state in enumerate(states[:-1]):
        with Loader(source, recipe, planner_of(), MemoryStore()) as loader:
            loader.load_state_dict(state)
            images, _ = next(iter(loader))
            assert torch.equal(images, wanted[place + 1])


@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("files", [False, True])
def test_what_it_raises_is_raised_in_the_loop_with_stage_and_sample(split: int, files: bool, tmp_path: Path) -> None:
    """After the batches before; whether images are decoded or at hand."""
    planner = planner_of()
    bad = int(planner.plan(0, 1).indices[3])
    paths = [tmp_path / f"{number}.png" for number in range(COUNT)]
    for image, path in zip(IMAGES, paths, strict=True):
        Pillow.fromarray(image).save(path)

    def picky(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if np.array_equal(image, IMAGES[bad]):
            raise KeyError("no such colour")
        return image

    source = FileList(paths, [*range(COUNT)]) if files else Arrays(IMAGES, np.arange(COUNT))
    stages = [*([Decode()] if files else []), HostStage(picky, "picky"), HorizontalFlip()]
    recipe = Recipe([*stages, CenterCrop((HEIGHT, WIDTH))], levels((HEIGHT, WIDTH)), split)
    with Loader(source, recipe, planner, MemoryStore()) as loader:
        stream = iter(loader)
        next(stream)
        with pytest.raises(LoaderError) as raised:
            next(stream)
    said = str(raised.value)
    assert said.startswith("batch 1 of epoch 0 failed in the graph: stage 'picky' must not fail, ")
    assert f"but of sample {bad}, which source.name({bad}) names, its function raised KeyError: 'no such" in said
    assert isinstance(raised.value.__cause__, KeyError)


def test_an_error_that_nobody_asked_for_is_forgotten_when_its_numbers_come_again() -> None:
    """As of a batch that was begun behind one that failed: another stage may fail then."""
    fails = True

    def sometimes(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if fails and image.shape[0] == HEIGHT:
            raise ValueError("not now")
        return image

    function, numbers, out = HostFunction(HostStage(sometimes, "mine")), np.zeros(16), np.empty_like(IMAGES[0])
    call = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 10)(function.address)
    given = IMAGES.ctypes.data, *(HEIGHT, WIDTH) * 2, numbers.ctypes.data, 0, 0, out.ctypes.data
    assert call(*given) == RAISED
    fails = False
    assert call(*given) == DONE
    assert np.array_equal(out, IMAGES[0])
    assert function.raised(numbers.ctypes.data, None) is None


def test_what_is_no_error_of_the_users_is_raised_in_the_loop_too() -> None:
    """Python would print what an exit raises in a function that C calls, and go on."""

    def leaving(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if image.shape != (16, 16, 3):
            raise SystemExit(3)
        return image

    with pytest.raises(LoaderError, match=r"stage 'leaving' must not fail, .* RuntimeError: it raised SystemExit$"):
        batches([HostStage(leaving, "leaving")], (HEIGHT, WIDTH), 0)


@pytest.mark.parametrize(("split", "bad"), [(0, 5), (1, 0)])
def test_what_it_raises_of_a_further_view_is_told_by_the_samples_number(split: int, bad: int) -> None:
    """Inside of the loader such a view is a sample of its own, with a number that the source does not know."""
    keys = list[list[int]]()

    def picky(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        if rng.bit_generator.state["state"]["key"].tolist() in keys:
            raise KeyError("no such colour")
        return image

    stage = HostStage(picky, "picky")
    drawn, _, _ = draw(
        (stage,),
        seed=1,
        indices=np.array([COUNT + bad]),
        numbers=np.zeros(1, np.int64),
        heights=np.array([HEIGHT]),
        widths=np.array([WIDTH]),
    )
    keys.append([int(each * 2**53) for each in drawn["picky"]["uniforms"][0]])
    recipe = Recipe([stage], levels((HEIGHT, WIDTH)), split)
    with (
        pytest.raises(LoaderError, match=rf"but of sample {bad}, which source\.name\({bad}\) names"),
        Loader(Arrays(IMAGES, np.arange(COUNT)), recipe, planner_of(), MemoryStore(), views=2) as loader,
    ):
        list(loader)


def of_floats(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    return image / 2


def of_grey(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image[..., 0]


def larger(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.pad(image, ((1, 0), (0, 0), (0, 0)))


def of_numpys_own_numbers(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    return image + np.random.randint(0, 200, image.shape).astype(np.uint8)  # noqa: NPY002 - as users may


def of_numbers_in_one_buffer(image: NDArray[np.uint8], buffer: Any = np.empty((16, 16, 3), np.uint8)) -> Any:  # noqa: B008
    buffer[...] = np.random.randint(0, 200, image.shape)  # noqa: NPY002 - as users may
    return buffer


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            of_floats,
            "must return uint8 levels of shape (16, 16, 3), got float64 of (16, 16, 3): pass such as image.ast",
        ),
        (of_grey, "must return uint8 levels of shape (16, 16, 3), got uint8 of (16, 16)"),
        (
            larger,
            "must return uint8 levels of shape (16, 16, 3), got uint8 of (17, 16, 3): declare HostStage(..., size",
        ),
        (of_numpys_own_numbers, "two runs on one image differ: take all random numbers from rng"),
        (of_numbers_in_one_buffer, "two runs on one image differ: take all random numbers from rng"),
    ],
)
def test_a_function_that_makes_no_image_is_refused_before_any_batch(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        batches([HostStage(function, "mine")], (HEIGHT, WIDTH), 0)
    assert str(refused.value).startswith("stage 'mine'")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HostStage(3, "mine"), "stage 'mine': function must be callable, got 3"),  # type: ignore[arg-type]
        (lambda: HostStage(lambda: 0, "mine"), "of (image, rng), or of (image), beside what has defaults, got '()'"),
        (lambda: HostStage(lambda a, b, c: 0, "mine"), "of (image, rng), or of (image), beside what has defaults, got"),
        (lambda: HostStage(lambda *all: all[0], "mine"), "got '(*all)': pass such as lambda image, rng: f(image, rng)"),
        (lambda: HostStage(turned, "mine", size=0), "mine: size must be"),
        (lambda: HostStage(turned, "mine", keeps_place=1), "mine: keeps_place must be"),  # type: ignore[arg-type]
        (
            lambda: batches([HostStage(turned, "mine")], (HEIGHT, WIDTH), 0, kernels="dali"),
            "stage 'mine' is run by kernels on the CPU, but this recipe is run by DALI's operators",
        ),
    ],
)
def test_wrong_uses_are_refused_in_one_line(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_masks_stay_where_it_says_so_and_are_refused_elsewhere() -> None:
    labels = np.arange(HEIGHT * WIDTH, dtype=np.int32).reshape(HEIGHT, WIDTH)
    source = Annotated(Arrays(IMAGES, np.arange(COUNT)), {"mask": Masks([labels] * COUNT)})
    for keeps_place in (True, False):
        stages = [HorizontalFlip(1.0), HostStage(noisy, "mine", keeps_place=keeps_place)]
        recipe = Recipe(stages, levels((HEIGHT, WIDTH)), 1)
        if not keeps_place:
            with pytest.raises(ConfigurationError, match="mine"):
                Loader(source, recipe, planner_of())
            continue
        with Loader(source, recipe, planner_of()) as loader:
            for _, masks in loader:
                assert (masks.numpy() == labels[:, ::-1]).all()


def test_what_keeps_its_place_and_has_a_size_of_its_own_is_moved_by_what_follows() -> None:
    """A border on the right and below, then a flip."""
    labels = np.arange(HEIGHT * WIDTH, dtype=np.int32).reshape(HEIGHT, WIDTH)

    def bordered(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.pad(image, ((0, 4), (0, 6), (0, 0)))

    source = Annotated(Arrays(IMAGES, np.arange(COUNT)), {"mask": Masks([labels] * COUNT, fill=-1)})
    size = HEIGHT + 4, WIDTH + 6
    border = HostStage(bordered, "border", size=size, keeps_place=True)
    for split in range(3):
        with Loader(source, Recipe([border, HorizontalFlip(1.0)], levels(size), split), planner_of()) as loader:
            for _, masks in loader:
                assert (masks.numpy() == np.pad(labels, ((0, 4), (0, 6)), constant_values=-1)[:, ::-1]).all()


@pytest.mark.parametrize(
    ("function", "random"),
    [
        (lambda image, strength=2: image, False),
        (lambda image, rng=None: image, True),
        (lambda image, other: image, True),
        (np.flip, False),
        (np.ascontiguousarray, False),
        (itemgetter(slice(None, None, -1)), False),  # written in C, and Python does not know what it takes
        (partial(np.roll, shift=1), False),
    ],
)
def test_what_has_a_default_is_not_given_the_generator(function: Callable[..., Any], random: bool) -> None:
    assert HostStage(function, "mine").random is random


def test_a_thread_keeps_what_is_its_own_from_image_to_image() -> None:
    """Threads of DALI's, too: else a pipeline that is made for each would be made for each image."""
    own, made = threading.local(), list[int]()

    def counted(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if not hasattr(own, "made"):
            own.made = True
            made.append(threading.get_native_id())
        return image

    batches([HostStage(counted, "mine")], (HEIGHT, WIDTH), 1, epochs=4, store=False, prefetch=Prefetch(num_threads=2))
    assert len(made) == len(set(made)) <= 8


def test_what_was_raised_is_told_of_the_batch_that_raised_it_alone() -> None:
    """And it goes with the loader: an error has images in its frames."""
    fails = True

    def sometimes(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if fails and image.shape[0] == HEIGHT:
            raise ValueError("not now")
        return image

    recipe = Recipe([HostStage(sometimes, "one"), HostStage(sometimes, "other")], levels((HEIGHT, WIDTH)), 1)
    with Loader(Arrays(IMAGES, np.arange(COUNT)), recipe, planner_of(), MemoryStore()) as loader:
        for _ in range(3):
            with pytest.raises(LoaderError, match=r"stage 'one' .* not now"):
                for _ in loader:
                    pass
        fails = False
        assert sum(1 for _ in loader) == 3
    del loader
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is HostFunction]
    assert not any(each._stage.function is sometimes for each in kept)


def test_its_fingerprint_has_its_name_revision_and_size_and_not_its_function() -> None:
    one, other = HostStage(noisy, "mine"), HostStage(turned, "mine")
    assert one.fingerprint() == other.fingerprint()
    for differing in (HostStage(noisy, "mine", revision=2), HostStage(noisy, "mine", size=8)):
        assert differing.fingerprint() != one.fingerprint()
    assert (one.random, other.random) == (True, False)


_LEFT = """
import sys, time
import numpy as np
from dalirefurb import Arrays, Loader, MemoryStore, Output, Prefetch, Recipe, Refurbish
from dalirefurb.augment import HostStage

def slow(image, rng):
    time.sleep(0.02)
    return image

images = np.zeros((64, 32, 32, 3), np.uint8)
recipe = Recipe([HostStage(slow, "slow")], Output(32), 1)
planner, prefetch = Refurbish(64, batch_size=8, reuse_factor=2), Prefetch(num_threads=3)
loader = Loader(Arrays(images, np.arange(64)), recipe, planner, MemoryStore(), prefetch=prefetch)
for images, labels in loader:
    break
print("left", flush=True)
if sys.argv[1] == "raise":
    raise ValueError("in the loop")
"""


@pytest.mark.parametrize("ending", [pytest.param("exit", marks=pytest.mark.weekly), "raise"])
def test_a_program_that_leaves_the_loop_ends_while_functions_run(ending: str) -> None:
    """Threads that have no Python's lock ask for it then."""
    done = subprocess.run([sys.executable, "-c", _LEFT, ending], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("left\n", 1 if ending == "raise" else 0)
    assert ("ValueError: in the loop" in done.stderr) == (ending == "raise")
