"""Resizes by each interpolation: kernels as Pillow, bit for bit, but bilinear; DALI's operators nearly."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import binomtest

from dalirefurb.augment import CenterCrop, Decode, HorizontalFlip, Letterbox, RandomResizedCrop, Resize, Stage
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.augment.stages.resize import RANDOM
from dalirefurb.errors import ConfigurationError
from tests.one_batch import levels, serve
from tests.pictures import jpeg, picture
from tests.stages import MAKERS, Maker, Picture, drawn, drawn_for_size, made

UNLIKELY = 1e-4
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}
SIDES = [(300, 320), (97, 130), (64, 64), (1, 1), (1, 50), (50, 1), (2, 3), (3, 700), (700, 3), (1, 3000), (200, 90)]

SHARP = pytest.mark.parametrize("interpolation", FILTERS)
BY_BOTH = pytest.mark.parametrize("by", MAKERS)


def noise(*shapes: tuple[int, int]) -> list[Picture]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def rows_first(image: Picture, height: int, width: int) -> bool:
    """Whether Pillow adds rows up before columns, from version 13 on."""
    return image.shape[0] - height > max(0, 2 * (image.shape[1] - width))


def resized(image: Picture, height: int, width: int, interpolation: str) -> Picture:
    """Pillow's of version 13, whichever is installed: one direction at a time."""
    between = (image.shape[1], height) if rows_first(image, height, width) else (width, image.shape[0])
    pillow = Image.fromarray(image)
    for size in (between, (width, height)):
        pillow = pillow.resize(size, FILTERS[interpolation])
    return np.asarray(pillow)


def window_of(image: Picture, parameters: Any, row: int) -> Picture:
    (top, left), (height, width) = parameters["start"][row], parameters["shape"][row]
    return np.ascontiguousarray(image[top : top + height, left : left + width])


def made_by_kernels(stages: list[Stage], pictures: list[Picture]) -> tuple[list[Picture], Any]:
    """What kernels make of pictures in one part, and what was drawn."""
    pytest.importorskip("numba")
    from dalirefurb.kernels.lower import steps_of
    from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
    from tests.kernels.runners import runner_of

    heights, widths, _ = np.array([each.shape for each in pictures]).T
    indices = np.arange(len(pictures))
    arrays, _, _ = draw(tuple(stages), seed=0, indices=indices, numbers=0 * indices, heights=heights, widths=widths)
    steps = steps_of(tuple(stages))
    assert steps is not None
    runner = runner_of(steps, None, DecodePipelines([], DecodePipeline(None, max_rows=1, num_threads=1)))
    feeds = {f"{stage}/{name}": rows for stage, named in arrays.items() for name, rows in named.items()}
    runner.submit({"sample": pictures, **feeds})
    return [np.array(image) for image in runner.collect()], arrays


# Kernels


@pytest.mark.parametrize("stage", [Resize((56_470, 24), "nearest"), Letterbox((56_470, 24), interpolation="nearest")])
def test_a_kernel_finds_the_nearest_rows_of_long_images(stage: Stage) -> None:
    """Sums in single precision, as DALI's, are eleven rows off there."""
    rows = np.arange(40_000)
    picture = np.zeros((len(rows), 17, 3), np.uint8)
    picture[..., 0], picture[..., 1] = rows[:, None] % 256, rows[:, None] // 256
    (after,) = made(stage, [picture], by="kernels")
    places = (2 * np.arange(len(after)) + 1) * len(rows)
    apart = places % (2 * len(after)) > 0  # elsewhere it lies between two
    shown = after[..., 0] + 256 * after[..., 1].astype(np.int64)
    assert apart.sum() > 56_000
    assert (shown == places[:, None] // (2 * len(after)))[apart].all()


@SHARP
@pytest.mark.parametrize("size", [(64, 64), (1, 1), (7, 300), (256, 31), (500, 2), (180, 260)])
def test_a_kernel_makes_pillows_pixels_of_noise(interpolation: Any, size: tuple[int, int]) -> None:
    """Its black and white make all that a filter overshoots; the last size is where Pillow just begins with columns."""
    pictures = [image // 128 * 255 for image in noise(*SIDES)] + noise(*SIDES)
    stage = Resize(size, interpolation)
    for before, after in zip(pictures, made(stage, pictures, by="kernels"), strict=True):
        assert np.array_equal(after, resized(before, *size, interpolation))


@SHARP
@pytest.mark.parametrize("size", [(40, 80), (40, 2), (250, 31)])
def test_a_kernel_mirrors_what_it_resizes_whichever_way_it_goes_first(
    interpolation: Any, size: tuple[int, int]
) -> None:
    pictures = noise(*SIDES)
    ways = {rows_first(image, *size) for image in pictures}
    images, _ = made_by_kernels([Resize(size, interpolation), HorizontalFlip(1.0)], pictures)
    for before, after in zip(pictures, images, strict=True):
        assert np.array_equal(after, resized(before, *size, interpolation)[:, ::-1])
    assert ways == {False, True}


@SHARP
@pytest.mark.parametrize("size", [32, 224, 384])
def test_a_kernel_makes_pillows_pixels_of_photographs(interpolation: Any, size: int, photos: Any) -> None:
    pictures = [np.asarray(Image.open(path).convert("RGB")) for path in photos[::24]]
    stage = RandomResizedCrop(size, interpolation=interpolation)
    parameters = drawn(stage, pictures)
    for row, (before, after) in enumerate(zip(pictures, made(stage, pictures, by="kernels"), strict=True)):
        assert np.array_equal(after, resized(window_of(before, parameters, row), size, size, interpolation))


@SHARP
def test_the_installed_pillow_makes_the_same_in_one_call(interpolation: Any, photos: Any) -> None:
    """Where it does not, another version begins with another direction, or sums up otherwise."""
    pictures = [np.asarray(Image.open(path).convert("RGB")) for path in photos[::48]] + noise(*SIDES)
    rows = 0
    for size in ((224, 224), (60, 280), (300, 100), (500, 600), (20, 90), (1, 700)):
        after = made(Resize(size, interpolation), pictures, by="kernels")
        for before, ours in zip(pictures, after, strict=True):
            rows += rows_first(before, *size)
            if int(PIL.__version__.partition(".")[0]) < 13 and rows_first(before, *size):
                continue  # It always began with the columns.
            theirs = np.asarray(Image.fromarray(before).resize(size[::-1], FILTERS[interpolation]))
            told = (
                f"kernels follow Pillow 13.0, but Pillow {PIL.__version__} resizes {before.shape} to {size} otherwise"
            )
            assert np.array_equal(ours, theirs), f"{told}: follow it in kernels/pixels/resample.py, and raise VERSION"
    assert rows > 20


@SHARP
@pytest.mark.parametrize("width", [1000, 5000, 60_000])
def test_a_very_long_row_is_pillows(interpolation: Any, width: int) -> None:
    (image,) = noise((2, width))
    (ours,) = made(Resize((3, 8), interpolation), [image], by="kernels")
    assert np.array_equal(ours, resized(image, 3, 8, interpolation))


@SHARP
def test_a_mirrored_window_and_a_cropped_one_are_those_of_the_whole(interpolation: Any) -> None:
    pictures = noise(*SIDES, (120, 90))
    after, arrays = made_by_kernels([RandomResizedCrop(40, interpolation=interpolation), HorizontalFlip()], pictures)
    windows, mirror = arrays["random_resized_crop"], arrays["flip"]["mirror"]
    assert set(mirror) == {0, 1}
    for row, (before, image) in enumerate(zip(pictures, after, strict=True)):
        whole = resized(window_of(before, windows, row), 40, 40, interpolation)
        assert np.array_equal(image, whole[:, ::-1] if mirror[row] else whole)
    after, arrays = made_by_kernels([Resize((60, 50), interpolation), HorizontalFlip(), CenterCrop((33, 21))], pictures)
    for row, (before, image) in enumerate(zip(pictures, after, strict=True)):
        whole = resized(before, 60, 50, interpolation)
        whole = whole[:, ::-1] if arrays["flip"]["mirror"][row] else whole
        (top, left) = arrays["center_crop"]["start"][row]
        assert np.array_equal(image, whole[top : top + 33, left : left + 21])


@pytest.mark.parametrize("size", [(224, 224), (64, 64), (150, 40), (7, 7), (400, 400)])
def test_bilinear_is_within_a_level_of_pillows_but_at_the_border(size: tuple[int, int], photos: Any) -> None:
    """The border is repeated, where Pillow leaves out what is beyond it: most is that of a frame one pixel wide."""
    frame = np.pad(np.zeros((298, 298, 3), np.uint8), ((1, 1), (1, 1), (0, 0)), constant_values=255)
    pictures = [frame, *noise((300, 320)), *(np.asarray(Image.open(path).convert("RGB")) for path in photos[::48])]
    furthest = []
    for before, after in zip(pictures, made(Resize(size), pictures, by="kernels"), strict=True):
        theirs = Image.fromarray(before).resize(size[::-1], Image.Resampling.BILINEAR)
        difference = np.abs(after.astype(int) - np.asarray(theirs))
        assert difference[1:-1, 1:-1].max() <= 1
        furthest.append(difference.max())
    assert max(furthest) <= 60
    assert furthest[0] > 50 or size != (7, 7)
    assert 9 < max(furthest[2:]) <= 18 or size != (224, 224)


# DALI's operators


@SHARP
def test_dalis_operator_is_pillows_but_where_a_row_overshoots_and_at_borders(interpolation: Any, photos: Any) -> None:
    """The cubic has the same parameter. Of 1,000 pixels 992 are within 1 level, and the mean is within a quarter."""
    pictures = [np.asarray(Image.open(path).convert("RGB")) for path in photos[::24]]
    stage = RandomResizedCrop(224, interpolation=interpolation)
    ours, theirs = (np.stack(made(stage, pictures, by=by)).astype(int) for by in MAKERS)
    difference = np.abs(ours - theirs)[:, 6:-6, 6:-6]
    assert difference.max() <= 48
    assert (difference > 1).mean() < 8e-3
    assert difference.mean() < 0.25
    assert np.abs(ours - theirs).max() <= 64


# Drawn interpolations


@pytest.mark.parametrize("stage", [RandomResizedCrop(8, interpolation="random"), Resize(8, "random")])
def test_either_interpolation_is_drawn_half_of_the_time(stage: Stage) -> None:
    _, arrays = drawn_for_size(stage, height=30, width=40)
    chosen = arrays["interpolation"]
    assert set(chosen.tolist()) == {0, 1}
    assert binomtest(int(chosen.sum()), len(chosen)).pvalue > UNLIKELY


@BY_BOTH
@pytest.mark.parametrize("make", [RandomResizedCrop, lambda size, interpolation: Resize((24, 31), interpolation)])
def test_each_image_is_as_if_its_interpolation_were_that_of_all(make: Any, by: Maker) -> None:
    pictures = noise(*SIDES * 4)
    stage = make(24, interpolation="random")
    parameters = dict(drawn(stage, pictures))
    after = made(stage, pictures, parameters, by=by)
    chosen = parameters.pop("interpolation")
    assert 10 < chosen.sum() < 34
    for number, interpolation in enumerate(RANDOM):
        alone = made(make(24, interpolation=interpolation), pictures, parameters, by=by)
        for row in np.flatnonzero(chosen == number):
            assert np.array_equal(after[row], alone[row])


def test_windows_do_not_depend_on_the_interpolation() -> None:
    _, plain = drawn_for_size(RandomResizedCrop(8), height=30, width=40, rows=100)
    _, random = drawn_for_size(RandomResizedCrop(8, interpolation="random"), height=30, width=40, rows=100)
    assert all(np.array_equal(plain[name], random[name]) for name in ("start", "shape"))


def test_a_drawn_interpolation_is_an_outcome() -> None:
    assert Resize(8, "random").outcomes.tolist() == [0.5, 0.5]
    assert Resize(8, "random").random
    assert Resize(8, "bicubic").outcomes.tolist() == [1.0]
    assert not Resize(8, "bicubic").random
    assert len(RandomResizedCrop(8, interpolation="random").outcomes) == 0


# In recipes


def encoded(count: int) -> list[NDArray[np.uint8]]:
    pictures = [picture(number, height=60 + 7 * number, width=90 - 3 * number) for number in range(count)]
    return [np.frombuffer(jpeg(each), np.uint8) for each in pictures]


@pytest.mark.parametrize("interpolation", ["bicubic", "lanczos", "random"])
def test_a_crop_fused_with_decoding_serves_the_bits_of_a_crop_after_it(interpolation: Any) -> None:
    recipe = Recipe([Decode(), RandomResizedCrop(32, interpolation=interpolation)], levels(32), 2)
    assert np.array_equal(serve(recipe, encoded(8)), serve(recipe.at(1), encoded(8)))


@pytest.mark.parametrize("interpolation", ["bicubic", "lanczos", "random"])
@pytest.mark.parametrize("split", [2, 3])
def test_a_resize_and_a_crop_serve_the_same_in_one_part_and_in_two(interpolation: Any, split: int) -> None:
    recipe = Recipe([Decode(), Resize(40, interpolation), CenterCrop(32)], levels(32), 1)
    assert np.array_equal(serve(recipe.at(split), encoded(8)), serve(recipe, encoded(8)))


# Arguments


@pytest.mark.parametrize("interpolation", ["cubic", "BICUBIC", 2, None])
@pytest.mark.parametrize("make", [lambda **given: Resize(8, **given), lambda **given: RandomResizedCrop(8, **given)])
def test_an_interpolation_that_there_is_not_is_refused(make: Any, interpolation: Any) -> None:
    message = (
        'interpolation must be "nearest", "bilinear", "bicubic", "lanczos" or "random", got '
        f"{interpolation!r}: choose one"
    )
    with pytest.raises(ConfigurationError, match=message):
        make(interpolation=interpolation)


def test_of_images_that_would_become_too_long_the_first_is_named() -> None:
    heights, widths = np.array([9, 1, 1, 9]), np.array([9, 3_000_000, 4_000_000, 9])
    refused = Resize(1000).refusal(heights, widths)
    assert refused is not None
    assert refused[0] == 1
    must = "images must become 2,147,483,647 pixels at most on the longer side"
    assert refused[1].startswith(f"resize: {must}, got 1 x 3000000; crop")
    assert Resize(1).refusal(np.array([1]), np.array([2**31 - 1])) is None
    assert Resize(1).refusal(np.array([2**31]), np.array([1])) is not None
