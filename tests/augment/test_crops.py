"""Crops at any place and of mirrored borders, and flips: the pixels that NumPy cuts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from dalirefurb import ImageFolder, Loader, Standard
from dalirefurb.augment import (
    CenterCrop,
    Decode,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Stage,
    VerticalFlip,
)
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.errors import ConfigurationError
from tests.one_batch import levels, serve
from tests.pictures import write_folder
from tests.stages import MAKERS, Maker, Picture, drawn, drawn_for_size, made

UNLIKELY = 1e-4

BY_BOTH = pytest.mark.parametrize("by", MAKERS)


def noise(*shapes: tuple[int, int]) -> list[Picture]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


# Crops of images of any size


@BY_BOTH
@pytest.mark.parametrize("padding_mode", ["constant", "reflect"])
@pytest.mark.parametrize(("size", "padding"), [((16, 12), 0), ((16, 12), 4), ((30, 31), 6), ((1, 1), 3), ((5, 4), 1)])
def test_a_crop_is_cut_of_what_numpy_pads(size: tuple[int, int], padding: int, padding_mode: Any, by: Maker) -> None:
    """torchvision's `RandomCrop`: padded first, by zeros or as its padding mode "reflect"."""
    stage = RandomCrop(size, padding=padding, padding_mode=padding_mode)
    least = [max(side - 2 * padding, padding + 1, 1) for side in size]
    pictures = noise(*[(least[0] + extra, least[1] + 2 * extra) for extra in (0, 1, 2, 17)] * 12)
    starts = drawn(stage, pictures)["start"] + padding
    added = ((padding, padding), (padding, padding), (0, 0))
    for before, after, (row, column) in zip(pictures, made(stage, pictures, by=by), starts, strict=True):
        padded = np.pad(before, added, mode=padding_mode)
        assert np.array_equal(after, padded[row : row + size[0], column : column + size[1]])
    assert len({tuple(start) for start in starts.tolist()}) > 3


@pytest.mark.parametrize("margin", [None, 3])
@pytest.mark.parametrize("padding_mode", ["constant", "reflect"])
def test_every_place_is_equally_likely(margin: int | None, padding_mode: Any) -> None:
    stage = RandomCrop(8, margin=margin, padding=2, padding_mode=padding_mode)
    _, arrays = drawn_for_size(stage, height=7, width=7)
    row, column = arrays["start"].T + 2
    assert chisquare(np.bincount(row * 4 + column, minlength=16)).pvalue > UNLIKELY


def test_places_depend_on_each_images_own_size() -> None:
    stage = RandomCrop(8)
    uniforms = np.array([[0.0, 0.999], [0.999, 0.0], [0.5, 0.5]])
    starts = stage.draw(uniforms, np.array([8, 20, 9]), np.array([30, 8, 8]))["start"]
    assert starts.tolist() == [[0, 22], [12, 0], [1, 0]]


def test_places_of_images_of_any_size_are_outcomes_without_number() -> None:
    assert len(RandomCrop(8).outcomes) == 0
    assert len(RandomCrop(8, padding=2, padding_mode="reflect").outcomes) == 0
    assert len(RandomCrop(8, margin=4, padding=2, padding_mode="reflect").outcomes) == 25


@pytest.mark.parametrize("split", [0, 1, 2, 3])
def test_every_split_of_a_resize_a_crop_and_a_flip_serves_the_same_bits(split: int) -> None:
    """DeiT III's simple augmentation: the shorter side is resized, the borders are mirrored, and any place is cut."""
    pictures = noise((40, 60), (70, 33), (32, 32), (90, 40))
    crop = RandomCrop(32, padding=4, padding_mode="reflect")
    recipe = Recipe([Resize(32, "bicubic"), crop, HorizontalFlip()], Output(32), 0)
    assert np.array_equal(serve(recipe.at(split), pictures), serve(recipe, pictures))


@BY_BOTH
def test_a_mirrored_border_may_be_as_wide_as_the_image_but_one_pixel(by: Maker) -> None:
    stage = RandomCrop(13, margin=0, padding=4, padding_mode="reflect")
    pictures = noise(*[(5, 5)] * 5)
    for before, after in zip(pictures, made(stage, pictures, by=by), strict=True):
        assert np.array_equal(after, np.pad(before, ((4, 4), (4, 4), (0, 0)), mode="reflect"))


@pytest.mark.parametrize(
    ("stage", "size", "message"),
    [
        (
            RandomCrop(8),
            (7, 9),
            r"images must have at least 8 x 8 pixels \(size 8 - 2 \* padding 0\), got 7 x 9; put a",
        ),
        (RandomCrop((8, 6), margin=4), (11, 10), r"images must be 12 x 10 pixels \(size \(8, 6\) .*, got 11 x 10"),
        (
            RandomCrop(8),
            (9, 7),
            r"at least 8 x 8 pixels \(size 8 - 2 \* padding 0\), got 9 x 7; put a resize before it",
        ),
        (RandomCrop((8, 6), margin=4), (12, 11), r"images must be 12 x 10 pixels .*, got 12 x 11"),
        (RandomCrop(8, padding=4, padding_mode="reflect"), (9, 4), "sides of more than 4 pixels, .*, got 9 x 4; put a"),
        (RandomCrop((8, 6), padding=2), (3, 9), r"at least 4 x 2 pixels \(size \(8, 6\) - 2 \* padding 2\), got 3 x 9"),
        (
            RandomCrop(8, padding=4, padding_mode="reflect"),
            (4, 9),
            r"have sides of more than 4 pixels, the padding that",
        ),
    ],
)
def test_an_image_that_is_too_small_is_refused(stage: RandomCrop, size: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        drawn(stage, noise(size))


def test_black_may_be_wider_than_the_image_that_it_is_around() -> None:
    heights, widths = np.array([4]), np.array([9])
    assert RandomCrop(8, padding=4).refusal(heights, widths) is None
    assert RandomCrop(8, padding=3, padding_mode="reflect").refusal(heights, widths) is None
    assert RandomCrop(16, padding=3, padding_mode="reflect").refusal(heights, widths) is not None


@pytest.mark.parametrize("padding_mode", ["edge", 1, None])
def test_another_padding_is_refused(padding_mode: Any) -> None:
    message = f'random_crop: padding_mode must be "constant" or "reflect", got {padding_mode!r}: choose one'
    with pytest.raises(ConfigurationError, match=message):
        RandomCrop(8, padding=2, padding_mode=padding_mode)


def test_a_margin_is_checked_where_there_is_one() -> None:
    for margin in (-1, 1.5, True, "1"):
        with pytest.raises(ConfigurationError, match="random_crop: margin must be an int of at least 0, got"):
            RandomCrop(8, margin=margin)  # type: ignore[arg-type]


def test_a_padding_of_zeros_is_fingerprinted_as_before() -> None:
    """So that stores and states of recipes stay."""
    assert RandomCrop(32, margin=8, padding=4).fingerprint() == {
        "stage": "RandomCrop",
        "version": 1,
        "size": 32,
        "margin": 8,
        "padding": 4,
        "name": "random_crop",
    }
    assert HorizontalFlip().fingerprint() == {
        "stage": "HorizontalFlip",
        "version": 1,
        "probability": 0.5,
        "name": "flip",
    }
    assert set(RandomResizedCrop(8).fingerprint()) == {
        *("stage", "version", "size", "scale", "ratio", "interpolation", "name")
    }


# Flips


@BY_BOTH
def test_a_vertical_flip_mirrors_top_and_bottom_exactly(by: Maker) -> None:
    pictures = noise(*[(33, 20), (1, 7), (7, 1), (1, 1), (2, 2)] * 8)
    stage = VerticalFlip()
    mirror = drawn(stage, pictures)["mirror"]
    assert set(mirror) == {0, 1}
    for before, after, mirrored in zip(pictures, made(stage, pictures, by=by), mirror, strict=True):
        assert np.array_equal(after, before[::-1] if mirrored else before)


@pytest.mark.parametrize("probability", [0.0, 0.2, 1.0])
def test_a_vertical_flip_happens_with_its_probability(probability: float) -> None:
    stage = VerticalFlip(probability)
    _, arrays = drawn_for_size(stage, height=32, width=32)
    assert binomtest(int(arrays["mirror"].sum()), 20_000, probability).pvalue > UNLIKELY
    assert stage.outcomes.tolist() == [probability, 1 - probability]


def test_flips_of_both_kinds_are_drawn_apart_and_serve_the_same_at_every_split() -> None:
    pictures = noise(*[(24, 24)] * 40)
    recipe = Recipe([HorizontalFlip(), VerticalFlip()], levels(24), 0)
    first = serve(recipe, pictures)
    across, over = (drawn(stage, pictures)["mirror"] for stage in recipe.stages)
    assert not np.array_equal(across, over)
    for before, after, one, other in zip(pictures, first, across, over, strict=True):
        expected = before[:: -1 if other else 1, :: -1 if one else 1]
        assert np.array_equal(after, expected.transpose(2, 0, 1))
    assert all(np.array_equal(serve(recipe.at(split), pictures), first) for split in (1, 2))


@pytest.mark.parametrize("probability", [-0.1, 1.1, "often"])
def test_an_impossible_probability_is_refused(probability: Any) -> None:
    message = f"vertical_flip: probability must be a number in 0..1, got {probability!r}"
    with pytest.raises(ConfigurationError, match=message):
        VerticalFlip(probability)


def blackened(kind: type[Stage]) -> type[Stage]:
    """Return a class of a user's, derived from one of ours, whose images are black."""

    def apply(self: Stage, images: Any, parameters: Any) -> Any:
        made = kind.apply(self, images, parameters)
        return made - made

    return type(f"Black{kind.__name__}", (kind,), {"apply": apply})


@pytest.mark.parametrize("kernels", [None, "dali"])
@pytest.mark.parametrize(
    "stages",
    [
        [blackened(RandomResizedCrop)(32)],
        [RandomResizedCrop(32), blackened(HorizontalFlip)(1.0)],
        [blackened(Resize)(40), CenterCrop(32)],
        [Resize(40), blackened(CenterCrop)(32)],
        [Resize((40, 40)), blackened(RandomCrop)(32, margin=8)],
        [Resize((40, 40)), blackened(RandomCrop)(32, margin=12, padding=2), HorizontalFlip()],
    ],
    ids=lambda stages: " > ".join(type(stage).__name__ for stage in stages),
)
def test_a_class_that_is_derived_from_ours_is_asked_for_its_own_images(
    stages: list[Stage], kernels: Any, tmp_path: Path
) -> None:
    """Whatever is made in one step of stages of ours that come one after the other."""
    source = ImageFolder(write_folder(tmp_path, num_samples=4))
    for split in (1, 2, len(stages) + 1):
        recipe = Recipe([Decode(), *stages], levels(32), split)
        with Loader(source, recipe, Standard(4, batch_size=4), kernels=kernels) as loader:
            (images, _), *_ = loader
        assert not images.any()
