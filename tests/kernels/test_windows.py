"""A resize that is cropped right after makes the crop's window only: the same pixels, whatever the image's shape."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    FileList,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    evaluate,
)
from dalirefurb.augment import (
    CenterCrop,
    Decode,
    HorizontalFlip,
    RandAugmentLayer,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomRotation,
    Resize,
)
from dalirefurb.augment.stage import LONGEST_SIDE, MOST_PIXELS
from dalirefurb.augment.stages.resize import WHOLE_PIXELS
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.errors import SampleError
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.one_batch import levels, serve
from tests.pictures import picture

Picture = NDArray[np.uint8]

KERNELS: list[Kernels] = ["dali", *(["numba"] if find_spec("numba") else [])]  # type: ignore[list-item]
SIDES = [(300, 320), (97, 130), (32, 36), (36, 36), (36, 37), (200, 90), (65, 500), (1, 1), (1, 50), (50, 1), (3, 700)]
LEVELS: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}
"""Leave pixels as they are: 0 .. 255."""

BOTH = pytest.mark.parametrize("kernels", KERNELS)
INTERPOLATIONS = ["bilinear", "nearest", "bicubic", "lanczos", "random"]


def noise(*shapes: tuple[int, int]) -> list[Picture]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def png(image: Picture) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def write(folder: Path, images: list[Picture]) -> list[Path]:
    paths = [folder / f"{number:02}_{image.shape[0]}x{image.shape[1]}.png" for number, image in enumerate(images)]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(png(image))
    return paths


def served(paths: list[Path], recipe: Recipe, kernels: Kernels, **options: Any) -> tuple[dict[int, Picture], Any]:
    """What each sample becomes, and what is said of bad ones."""
    planner = Standard(len(paths), batch_size=len(paths), seed=1)
    options = {"num_threads": 1, "on_bad_sample": "replace", "with_indices": True, **options}
    with flat_loader(FileList(paths, [0] * len(paths)), recipe, planner, kernels=kernels, **options) as loader:
        found = {
            index: image.numpy().copy()
            for images, _, indices in loader
            for index, image in zip(indices.tolist(), images, strict=True)
        }
        return found, loader.bad_samples()


# The window's pixels


@pytest.mark.parametrize(("interpolation", "split"), in_turn(INTERPOLATIONS, [0, 2]))
def test_dalis_window_has_the_pixels_of_the_whole_image(interpolation: Any, split: int) -> None:
    recipe = Recipe([Resize(36, interpolation), CenterCrop(32)], levels(32), 1)
    pictures = noise(*SIDES)
    assert np.array_equal(serve(recipe.at(split), pictures), serve(recipe, pictures))


@pytest.mark.parametrize(
    ("shape", "interpolation"),
    in_turn([(1, 5000), (5000, 1), (2, 9000), (7, 30_000)], ["bilinear", "lanczos", "random"]),
)
def test_dalis_window_of_what_would_be_large_is_that_of_the_whole_image_within_a_level(
    shape: tuple[int, int], interpolation: Any
) -> None:
    recipe = Recipe([Resize(64, interpolation), CenterCrop(56)], levels(56), 1)
    assert 64 * 64 * max(shape) // min(shape) > WHOLE_PIXELS
    pictures = noise(shape)
    assert np.abs(serve(recipe.at(2), pictures) - serve(recipe, pictures)).max() <= 1


@pytest.mark.parametrize("shape", [(12, 40), (640, 40)])  # The second one is made lower.
def test_dalis_window_of_what_is_resized_to_two_sides_is_that_of_the_whole_image(shape: tuple[int, int]) -> None:
    recipe = Recipe([Resize((64, 300_000)), CenterCrop(56)], levels(56), 1)
    assert WHOLE_PIXELS < 64 * 300_000
    pictures = noise(shape)
    assert np.abs(serve(recipe.at(2), pictures) - serve(recipe, pictures)).max() <= 1


@pytest.mark.skipif("numba" not in KERNELS, reason="Numba is not installed")
@pytest.mark.parametrize(("interpolation", "flipped"), in_turn(INTERPOLATIONS, [False, True]))
def test_the_kernels_window_has_the_pixels_of_the_whole_image(interpolation: Any, flipped: bool) -> None:
    from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
    from tests.kernels.test_kernels import parameters_of, part

    pipeline = DecodePipeline(None, max_rows=1, num_threads=2)
    flip = (HorizontalFlip(),) if flipped else ()
    stages = (Resize(36, interpolation), *flip, CenterCrop(32))
    # Of what is drawn, and of nearest pixels, which are found otherwise there: at some cost.
    longest = [(1, 20_000), (20_000, 1)] if interpolation in ("random", "nearest") else []
    pictures = noise(*SIDES * 2, (1, 5000), (5000, 1), *longest, (2, 3001), (700, 900))
    drawn = parameters_of(Recipe(stages, levels(32), 0), pictures)
    feeds = {f"{stage}/{name}": rows for stage, named in drawn.items() for name, rows in named.items()}
    window, whole = (part(some, None, DecodePipelines([], pipeline)) for some in (stages, stages[:-1]))
    crop = part(stages[-1:], None, DecodePipelines([], pipeline))
    window.submit({"sample": pictures, **feeds})
    whole.submit({"sample": pictures, **feeds})
    crop.submit({"sample": list(whole.collect()), **feeds})
    for one, other in zip(window.collect(), crop.collect(), strict=True):
        assert np.array_equal(one, other)
    pipeline.pool.close()


@pytest.mark.skipif("numba" not in KERNELS, reason="Numba is not installed")
def test_crops_are_made_on_the_way_where_they_lie_inside_and_come_right_after() -> None:
    from dalirefurb.augment.kernel_call import Code
    from dalirefurb.kernels.lower import steps_of

    resize, flip, crop = Resize(36), HorizontalFlip(), CenterCrop(32)
    padded = RandomCrop(36, margin=8, padding=4)
    cases = [
        ((resize, crop), [Code.RESIZE]),
        ((resize, flip, crop), [Code.RESIZE]),
        ((resize, crop, flip), [Code.RESIZE, Code.FLIP]),
        ((resize, RandomCrop(32, margin=4)), [Code.RESIZE]),
        ((resize, padded), [Code.RESIZE, Code.CROP]),
        ((resize, RandAugmentLayer(), crop), [Code.RESIZE, Code.OTHER, Code.CROP]),
        ((resize, crop, CenterCrop(8, name="again")), [Code.RESIZE, Code.CROP]),
        ((RandomApply(RandomRotation(20)), crop), [Code.WARP, Code.CROP]),
        ((resize, RandomApply(padded)), [Code.RESIZE, Code.OTHER]),
    ]
    for stages, codes in cases:
        steps = steps_of(stages)
        assert steps is not None
        assert [step.code for step in steps] == codes


# Extreme images


@BOTH
def test_an_extreme_image_is_served_and_the_others_of_its_batch_are_exact(kernels: Kernels, tmp_path: Path) -> None:
    good = [np.asarray(picture(seed, height=60 + seed, width=90)) for seed in range(6)]
    extreme = noise((1, 300_000), (300_000, 1), (1, 5000), (3, 40_000), (2, 65_537))
    paths = write(tmp_path, good + extreme)
    recipe = evaluate(56, **LEVELS)
    alone, _ = served(paths[: len(good)], recipe, kernels)
    together, bad = served(paths, recipe, kernels)
    assert bad == []
    assert sorted(together) == list(range(len(paths)))
    for index, image in alone.items():
        assert np.array_equal(image, together[index])
    for index, image in enumerate(extreme, len(good)):
        assert np.abs(together[index] - reference(image, 64, 56)).max() <= 1


def reference(image: Picture, side: int, size: int) -> NDArray[np.float64]:
    """The centre of an image that is enlarged bilinearly, in double precision."""
    blended = image.astype(np.float64)
    for axis in sorted((0, 1), key=lambda axis: -image.shape[axis]):  # The window of the long one is little to enlarge.
        length, shorter = image.shape[axis], min(image.shape[:2])
        full = side * length // shorter
        places = np.rint((full - size) / 2) + np.arange(size) + 0.5
        places = places * length / full - 0.5
        first = np.floor(places).astype(np.int64)
        share = (places - first).reshape(-1, *[1] * (2 - axis))
        one, other = (blended.take(np.clip(first + step, 0, length - 1), axis) for step in (0, 1))
        blended = one * (1 - share) + other * share
    return np.rint(blended).transpose(2, 0, 1)


@pytest.mark.skipif("numba" not in KERNELS, reason="Numba is not installed")
def test_an_extreme_image_takes_little_memory() -> None:
    from dalirefurb.kernels.lower import steps_of
    from dalirefurb.kernels.program import Scratch

    steps = steps_of((Resize(256), CenterCrop(224)))
    assert steps is not None
    for height, width in ((1, 300_000), (300_000, 1), (1, 10**8), (3000, 30_000)):
        before = np.array([height]), np.array([width])
        after = steps[0].output_sizes(*before)
        assert Scratch().with_step(steps[0], before, after).nbytes < 2 << 20


@BOTH
def test_files_of_public_reports_are_served(kernels: Kernels, shared_data: Path) -> None:
    paths = [shared_data / "reports" / name for name in ("1x130000.png", "1x5000.png")]
    found, bad = served(paths, evaluate(**LEVELS), kernels)
    assert bad == []
    for index, path in enumerate(paths):
        image = np.asarray(Image.open(path).convert("RGB"))
        assert np.abs(found[index] - reference(image, 256, 224)).max() <= 1


@pytest.mark.skipif("numba" not in KERNELS, reason="Numba is not installed")
@pytest.mark.parametrize("width", [520, 5000, 30_000, 131_072, pytest.param(1_000_000, marks=pytest.mark.weekly)])
def test_a_row_of_very_many_pixels_is_averaged_as_by_the_triangle_within_a_level(width: int) -> None:
    from dalirefurb.augment import RandomResizedCrop
    from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
    from tests.kernels.test_kernels import part

    pipeline, target = DecodePipeline(None, max_rows=1, num_threads=1), 8
    (image,) = noise((1, width))
    image[0, : width // 3] //= 4
    kernels = part([RandomResizedCrop(target)], None, DecodePipelines([], pipeline))
    windows = {"start": np.zeros((1, 2), np.int32), "shape": np.array([[1, width]], np.int32)}
    kernels.submit({"sample": [image], **{f"random_resized_crop/{name}": rows for name, rows in windows.items()}})
    (made,) = kernels.collect()
    scale = width / target
    places = np.arange(-width, 2 * width)
    for x in range(target):
        weights = np.maximum(0, 1 - np.abs(places - ((x + 0.5) * scale - 0.5)) / scale)
        row = image[0].astype(np.float64)[np.clip(places, 0, width - 1)]
        assert np.abs(made[:, x] - weights @ row / weights.sum()).max() <= 1
    pipeline.pool.close()


@pytest.mark.skipif("numba" not in KERNELS, reason="Numba is not installed")
def test_a_window_of_very_many_pixels_is_mirrored_and_cropped_as_any_other() -> None:
    from dalirefurb.augment import RandomResizedCrop
    from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
    from tests.kernels.test_kernels import part

    pipeline = DecodePipeline(None, max_rows=1, num_threads=1)

    def made(image: Picture, left: int, width: int, *then: Any) -> Picture:
        kernels = part([RandomResizedCrop((8, 13)), *then], None, DecodePipelines([], pipeline))
        drawn = {"start": np.array([[1, left]]), "shape": np.array([[2, width]])}
        feeds = {f"random_resized_crop/{name}": rows.astype(np.int32) for name, rows in drawn.items()}
        flip, crop = {"flip/mirror": np.ones(1, np.int32)}, {"center_crop/start": np.array([[0, 2]], np.int32)}
        kernels.submit({"sample": [image], **feeds, **flip, **crop})
        return np.array(next(iter(kernels.collect())))

    (image,) = noise((4, 3000))
    image[:, :1000] //= 4
    whole = made(image, 7, 2500)
    assert np.array_equal(whole, made(np.ascontiguousarray(image[:, 7:2507]), 0, 2500))
    moved = made(image, 7, 2500, HorizontalFlip(), CenterCrop(8))
    assert np.array_equal(moved, whole[:, ::-1][:, 2:10])
    pipeline.pool.close()


# What is too large


@BOTH
def test_what_would_become_too_large_is_named_and_the_others_are_exact(kernels: Kernels, tmp_path: Path) -> None:
    """Between the two stages the whole image would be stored."""
    good = [np.asarray(picture(seed, height=60 + seed, width=90)) for seed in range(3)]
    paths = write(tmp_path, [*good, *noise((1, 300_000), (1, 1000))])
    recipe = evaluate(112, split=2)
    alone, _ = served(paths[:3], recipe, kernels)
    for options in ({}, {"max_pixels": 400_000}, {"max_pixels": None}):
        together, bad = served(paths, recipe, kernels, **options)
        named = {3: "128 x 38400000", 4: "128 x 128000"} if options.get("max_pixels", 0) else {3: "128 x 38400000"}
        assert {sample.index for sample in bad} == set(named)
        for sample in bad:
            assert named[sample.index] in sample.reason
            assert sample.reason.startswith("resize: an image must have ")
        for index, image in alone.items():
            assert np.array_equal(image, together[index])
    with pytest.raises(SampleError, match=r"sample 3 \(.*1x300000.png\): resize: an image must have .* at most"):
        served(paths, recipe, kernels, on_bad_sample="raise")


@BOTH
@pytest.mark.parametrize("stored", [False, True])
def test_an_array_that_would_become_too_large_is_named(kernels: Kernels, stored: bool) -> None:
    images = np.zeros((4, 2, 5000, 3), np.uint8)
    recipe = Recipe([Resize(64), CenterCrop(32)], Output(32), 1)
    store = MemoryStore() if stored else None
    source, planner = Arrays(images, np.zeros(4, np.int64)), Standard(4, batch_size=2)
    reason = r"resize: an image must have 1,000,000 pixels at most, but one of 2 x 5000 would become 64 x 160000"
    reason += ": pass max_pixels=10240000 if it is genuine, or crop right after it, in the same part"
    with (
        Loader(
            source,
            recipe,
            planner,
            store,
            kernels=kernels,
            prefetch=Prefetch(num_threads=1),
            bad_samples=BadSamplePolicy(max_pixels=10**6),
        ) as loader,
        pytest.raises(SampleError, match=reason),
    ):
        list(loader)


@pytest.mark.skipif("numba" not in KERNELS, reason="numba is not installed")
@pytest.mark.parametrize(
    ("crop", "interpolation", "kind"),
    in_turn(
        [CenterCrop((24, 31)), RandomCrop((24, 31)), RandomCrop((24, 31), padding=3)],
        ["bilinear", "nearest"],
        [RandomAffine, RandomRotation],
    ),
)
def test_a_crop_behind_a_warp_is_made_with_it_to_the_same_bits(kind: Any, interpolation: Any, crop: Any) -> None:
    """Split between the two, the whole warp is made; else its window alone."""
    more: dict[str, Any] = {"translate": (0.2, 0.1), "scale": (0.7, 1.5), "shear": 10} if kind is RandomAffine else {}
    warp = kind(25, interpolation=interpolation, fill=(1, 2, 3), **more)
    images = np.stack(noise(*[(61, 83)] * 24))
    made = []
    for split in range(4):
        recipe = Recipe([warp, crop, HorizontalFlip()], Output((24, 31), **LEVELS), split)
        planner = Refurbish(len(images), batch_size=8, reuse_factor=2, seed=1)
        with Loader(Arrays(images, np.arange(24)), recipe, planner, MemoryStore(), kernels="numba") as loader:
            made.append(np.concatenate([batch.numpy() for batch, _ in loader]))
    assert len(np.unique(made[0])) > 200
    assert all(np.array_equal(each, made[0]) for each in made)


def refusal(recipe: Recipe, height: int, width: int, max_pixels: int | None = None) -> str | None:
    found = recipe.refusal(np.array([50, height]), np.array([60, width]), max_pixels=max_pixels)
    assert found is None or found[0] == 1
    return found and found[1]


def test_only_what_is_made_counts() -> None:
    recipe = Recipe([Decode(), Resize(256), CenterCrop(224)], Output(224), 3)
    assert refusal(recipe, 1, 300_000, 10**8) is None
    assert "256 x 76800000" in (refusal(recipe.at(2), 1, 300_000, 10**8) or "")
    assert refusal(recipe.at(2), 1, 1000, 256 * 256_000) is None
    assert "65,535,999 pixels at most" in (refusal(recipe.at(2), 1, 1000, 256 * 256_000 - 1) or "")
    apart = Recipe([Decode(), Resize(256), HorizontalFlip(), CenterCrop(224)], Output(224), 4)
    assert "256 x 76800000" in (refusal(apart, 1, 300_000, 10**8) or "")


def test_what_cannot_be_counted_in_the_bits_that_there_are_is_refused_at_any_max_pixels() -> None:
    window = Recipe([Decode(), Resize(256), CenterCrop(224)], Output(224), 3)
    assert refusal(window, 1, 8_388_607) is None
    assert "2,147,483,647 pixels at most" in (refusal(window, 1, 8_388_608) or "")
    whole = Recipe([Decode(), Resize(2), CenterCrop(2)], Output(2), 2)
    assert refusal(whole, 1, LONGEST_SIDE // 2) is None
    assert "16,777,216 pixels a side at most" in (refusal(whole, 1, LONGEST_SIDE // 2 + 1) or "")
    operations = Recipe([Decode(), RandAugmentLayer(), Resize(8), CenterCrop(8)], Output(8), 4)
    assert refusal(operations, 1000, MOST_PIXELS // 1000) is None
    assert "715,827,882 pixels at most" in (refusal(operations, 1000, MOST_PIXELS // 1000 + 1) or "")
