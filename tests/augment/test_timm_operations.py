"""Are timm's operations Pillow's, at any magnitude?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from dalirefurb.augment.policies.operations import Chosen, Group
from dalirefurb.augment.policies.timm_layers import TimmRandAugmentLayer, table_of
from dalirefurb.augment.policies.timm_operations import OPERATIONS
from tests.augment.test_operations import PHOTOS, PICTURES
from tests.one_batch import operate, operation_pipeline

Picture = NDArray[np.uint8]

NAMES = tuple(name for name in OPERATIONS if name != "Identity")
TABLE = table_of(NAMES)
FILL = (10, 200, 30)
MAGNITUDES = (0, 0.01, 1.7, 3, 5, 7.49, 9, 10)


def _affine(image: Image.Image, *numbers: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR, fillcolor=FILL)


def _added(image: Image.Image, added: int) -> Image.Image:
    return image.point([min(level + added, 255) if level < 128 else level for level in range(256)] * 3)


def _posterized(image: Image.Image, bits: int) -> Image.Image:
    """Keep some bits, 0 among them, which not every version of Pillow does."""
    return image.point([level & (256 - 2 ** (8 - bits)) for level in range(256)] * 3)


Pillow = Callable[[Image.Image, float], Image.Image]


def _blends(name: str, enhance: Any) -> dict[str, Pillow]:
    return {
        name: lambda image, share: enhance(image).enhance(0.1 + 1.8 * share),
        f"{name}Increasing": lambda image, share: enhance(image).enhance(max(0.1, 1 + 0.9 * share)),
    }


# What Pillow does at a share of the range, negative where the operation is negated.
PILLOW: Mapping[str, Pillow] = {
    "AutoContrast": lambda image, share: ImageOps.autocontrast(image),
    "Equalize": lambda image, share: ImageOps.equalize(image),
    "Invert": lambda image, share: ImageOps.invert(image),
    "Rotate": lambda image, share: image.rotate(30 * share, Image.Resampling.BILINEAR, fillcolor=FILL),
    "Posterize": lambda image, share: _posterized(image, int(4 * share)),
    "PosterizeIncreasing": lambda image, share: _posterized(image, 4 - int(4 * share)),
    "PosterizeOriginal": lambda image, share: _posterized(image, 4 + int(4 * share)),
    "Solarize": lambda image, share: ImageOps.solarize(image, int(256 * share)),
    "SolarizeIncreasing": lambda image, share: ImageOps.solarize(image, 256 - int(256 * share)),
    "SolarizeAdd": lambda image, share: _added(image, int(110 * share)),
    **_blends("Color", ImageEnhance.Color),
    **_blends("Contrast", ImageEnhance.Contrast),
    **_blends("Brightness", ImageEnhance.Brightness),
    **_blends("Sharpness", ImageEnhance.Sharpness),
    "ShearX": lambda image, share: _affine(image, 1, 0.3 * share, 0, 0, 1, 0),
    "ShearY": lambda image, share: _affine(image, 1, 0, 0, 0.3 * share, 1, 0),
    "TranslateXRel": lambda image, share: _affine(image, 1, 0, 0.45 * share * image.width, 0, 1, 0),
    "TranslateYRel": lambda image, share: _affine(image, 1, 0, 0, 0, 1, 0.45 * share * image.height),
    "Desaturate": lambda image, share: ImageEnhance.Color(image).enhance(0.5 - 0.5 * share),
    "GaussianBlur": lambda image, share: image.filter(ImageFilter.GaussianBlur(0.1 + 1.9 * share)),
    # The uniform number is a half here.
    "GaussianBlurRand": lambda image, share: image.filter(ImageFilter.GaussianBlur(0.1 + (2 * share - 0.1) / 2)),
}
EXACT = ("Invert", *(name for name in NAMES if name.startswith(("Posterize", "Solarize"))))
BLENDED = tuple(name for name in NAMES if name.startswith(("Color", "Contrast", "Brightness", "Sharpness", "Desat")))
WARPS = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
BLURS = ("GaussianBlur", "GaussianBlurRand")


class Everything(TimmRandAugmentLayer):
    """A layer whose graph has every group."""

    groups = tuple(Group)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return operation_pipeline(Everything("all", "bilinear", FILL))


def _served(
    pipeline: Any, name: str, magnitude: float, pictures: list[Picture], *, negated: bool = False
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return what an operation makes of pictures, and what Pillow does."""
    count = len(pictures)
    drawn = Chosen(
        np.full(count, 1 + NAMES.index(name)),
        np.full(count, float(magnitude)),
        np.full(count, negated),
        np.full(count, 0.5),
    )
    sides = np.array([picture.shape[:2] for picture in pictures])
    ours = operate(pipeline, pictures, TABLE.parameters(drawn, heights=sides[:, 0], widths=sides[:, 1]))
    share = (-magnitude if negated else magnitude) / 10
    theirs = [np.asarray(PILLOW[name](Image.fromarray(picture), share)) for picture in pictures]
    return [(one.astype(np.int64), other.astype(np.int64)) for one, other in zip(ours, theirs, strict=True)]


CASES = [
    (name, magnitude, negated)
    for name in NAMES
    for magnitude in MAGNITUDES
    for negated in ((False, True) if OPERATIONS[name].signed else (False,))
]


def of(*names: str) -> pytest.MarkDecorator:
    """Run a test for every case of these operations."""
    cases = [case for case in CASES if case[0] in names]
    return pytest.mark.parametrize(("name", "magnitude", "negated"), cases)


@of(*EXACT)
def test_bits_and_thresholds_are_exactly_pillows(pipeline: Any, name: str, magnitude: float, negated: bool) -> None:
    for ours, theirs in _served(pipeline, name, magnitude, list(PICTURES.values()), negated=negated):
        assert np.array_equal(ours, theirs)


@of(*BLENDED, "AutoContrast")
def test_blends_are_pillows_within_two_levels(pipeline: Any, name: str, magnitude: float, negated: bool) -> None:
    for ours, theirs in _served(pipeline, name, magnitude, list(PICTURES.values()), negated=negated):
        assert abs(ours - theirs).max() <= 2
        assert (abs(ours - theirs) > 1).mean() < 0.002


@of(*WARPS)
def test_warps_are_pillows_but_for_the_border(pipeline: Any, name: str, magnitude: float, negated: bool) -> None:
    """Coordinates are in steps of 1/32 pixel, and the outermost pixels are blended with the fill."""
    photos = [PICTURES[name] for name in PHOTOS]
    drawn = _served(pipeline, name, magnitude, photos, negated=negated)
    whole = _served(pipeline, name, magnitude, [np.full_like(photo, 255) for photo in photos], negated=negated)
    for (ours, theirs), (ours_covered, theirs_covered) in zip(drawn, whole, strict=True):
        inside = (ours_covered == 255).all(axis=2) & (theirs_covered == 255).all(axis=2)
        outside = (ours_covered == FILL).all(axis=2) & (theirs_covered == FILL).all(axis=2)
        assert inside.mean() > 0.5
        assert 1 - inside.mean() - outside.mean() < 0.06
        assert abs(ours - theirs)[inside].mean() < 0.8
        assert np.quantile(abs(ours - theirs)[inside], 0.999) <= 12
        assert (ours == theirs)[outside].all()


@of(*BLURS)
def test_a_blur_is_as_wide_as_pillows(pipeline: Any, name: str, magnitude: float, negated: bool) -> None:
    for ours, theirs in _served(pipeline, name, magnitude, [PICTURES[name] for name in PHOTOS]):
        assert abs(ours - theirs).mean() < 1.3
        blurred, sharp = (np.abs(np.diff(each, axis=1)).mean() for each in (ours, theirs))
        assert blurred == pytest.approx(sharp, rel=0.15)


def test_a_blur_reaches_as_far_as_six_pixels(pipeline: Any) -> None:
    line = np.zeros((31, 31, 3), np.uint8)
    line[:, 15] = 255
    ((ours, _),) = _served(pipeline, "GaussianBlur", 10, [line])  # a standard deviation of 2
    weights = np.exp(-(np.arange(-6, 7) ** 2) / 8)
    assert abs(ours[15, 9:22, 0] - 255 * weights / weights.sum()).max() < 1
    assert (np.flatnonzero(ours[15, :, 0]) == np.arange(9, 22)).all()


def test_a_translation_that_is_no_whole_number_of_pixels_blends_two(pipeline: Any) -> None:
    row = np.repeat(np.arange(0, 200, 2, dtype=np.uint8)[None, :, None], 3, axis=2)  # levels 0, 2, 4, ...
    ((ours, _),) = _served(pipeline, "TranslateXRel", 10 / 45 / 2, [row])  # half a pixel
    assert np.array_equal(ours[0, :-1, 0], np.arange(1, 199, 2))
