"""Stages of volumes that look at several voxels do what SciPy and NumPy do, wherever what they look at is cached."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, zoom

pytest.importorskip("numba")

from dalirefurb import Loader, MemoryStore, Recipe, Refurbish, Volumes
from dalirefurb.augment import (
    CenterCrop3D,
    IntensityWindow,
    RandomAffine3D,
    RandomContrast,
    RandomCrop3D,
    RandomFlip3D,
    RandomGamma,
    RandomGaussianNoise,
    RandomGaussianSmooth,
    RandomLowResolution,
    RandomRotate90,
    RandomScaleIntensity,
    RandomShiftIntensity,
    VolumeOutput,
    VolumeStage,
    Voxels,
    nn_unet,
)
from dalirefurb.engine.volumes import carried_through
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.kernels.volumes import gather
from tests.in_turn import in_turn
from tests.volumes.reference import volumes

SIZE = (9, 12, 10)


def through(stages: list[Any], image: NDArray[Any], mask: NDArray[Any], *drawn: list[float]) -> Any:
    named = [replace(stage, name=str(place)) for place, stage in enumerate(stages)]
    uniforms = {f"{place}/uniforms": np.array(each) for place, each in enumerate(drawn)}
    made = carried_through(named, {"image": image, "mask": mask}, uniforms, 0).made()
    return made["image"], made["mask"]


def volume(seed: int = 0, shape: tuple[int, ...] = (15, 14, 17), dtype: str = "float32") -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 50, (2, *shape)).astype(dtype), rng.integers(0, 4, shape).astype(np.uint8)


def matrix_of(drawn: list[float], degrees: float, scale: tuple[float, float]) -> NDArray[np.float64]:
    """The turns around each axis, one after the other, and the size."""
    made = np.eye(3) / (scale[0] + (scale[1] - scale[0]) * drawn[9])
    for axis in range(3):
        angle = np.radians(degrees) * (2 * drawn[5 + axis] - 1)
        turn = np.eye(3)
        one, other = [each for each in range(3) if each != axis]
        turn[one, one] = turn[other, other] = np.cos(angle)
        turn[one, other], turn[other, one] = -np.sin(angle), np.sin(angle)
        made = made @ turn
    return made


@pytest.mark.parametrize(("seed", "dtype"), in_turn(range(8), ["float32", "int16"]))
def test_a_window_is_turned_and_scaled_as_scipy_does(seed: int, dtype: str) -> None:
    image, mask = volume(seed, dtype=dtype)
    drawn = np.random.default_rng(seed).random(10).tolist()
    turned, scaled = ((1, 1), (1, 0), (0, 1))[seed % 3]
    degrees, scale = 80 * turned, (0.5, 1.6) if scaled else (1.0, 1.0)
    stage = RandomAffine3D(SIZE, fill=7.0, turned=turned, scaled=scaled, degrees=80, scale=(0.5, 1.6))
    found, labels = through([stage], image, mask, drawn)
    middle = (np.array(SIZE) - 1) / 2
    rooms = [there - side for there, side in zip(mask.shape, SIZE, strict=True)]
    start = [int(place * (room + 1)) for place, room in zip(drawn[1:4], rooms, strict=True)]
    places = np.indices(SIZE).reshape(3, -1) - middle[:, None]
    places = (matrix_of(drawn, degrees, scale) @ places + (middle + start)[:, None]).reshape(3, *SIZE)
    for channel, wanted in zip(found, image.astype(np.float64), strict=True):
        expected = map_coordinates(wanted, places, order=1, mode="grid-constant", cval=7.0)
        assert np.abs(channel - expected).max() < 1e-3
    nearest = np.floor(places + 0.5).astype(int)
    inside = ((nearest >= 0) & (nearest < np.array(mask.shape).reshape(3, 1, 1, 1))).all(axis=0)
    expected = np.where(inside, mask[tuple(np.where(inside, nearest, 0))], 0)
    assert (labels != expected).mean() < 0.002


def test_unless_it_is_turned_or_scaled_a_window_is_a_crop() -> None:
    image, mask = volume()
    drawn = [0.9, 0.3, 0.6, 0.1, *[0.99] * 6]
    found = through([RandomAffine3D(SIZE)], image, mask, drawn)
    wanted = through([RandomCrop3D(SIZE)], image, mask, drawn[:4])
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
    whole, _ = through([RandomAffine3D(SIZE)], image.astype(np.int16), mask, drawn)
    assert whole.dtype == np.float32  # As of those that are turned.
    assert np.array_equal(whole, found[0].astype(np.int16))
    around = [through([stage(20, fill=7.0)], image, mask, drawn[:each])[0] for stage, each in AFFINE_AND_CROP]
    assert np.array_equal(*around)
    assert (around[0] == 7.0).any()


AFFINE_AND_CROP: list[tuple[Any, int]] = [(RandomAffine3D, 10), (RandomCrop3D, 4)]


def test_whether_it_is_turned_and_whether_it_is_scaled_are_drawn_apart() -> None:
    image, mask = volume()
    for turned, scaled in ((True, False), (False, True)):
        drawn = [0.9, 0.3, 0.6, 0.1, 0.1 if turned else 0.2, 0.7, 0.8, 0.9, 0.1 if scaled else 0.2, 0.7]
        found = through([RandomAffine3D(SIZE)], image, mask, drawn)
        wanted = through([RandomAffine3D(SIZE, turned=float(turned), scaled=float(scaled))], image, mask, drawn)
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_factors_are_drawn_between_their_limits() -> None:
    image, mask = volume()
    for stage, field in (
        (RandomGaussianSmooth, "sigma"),
        (RandomContrast, "factor"),
        (RandomGamma, "gamma"),
        (RandomLowResolution, "zoom"),
    ):
        made = [
            through([stage(limits, 1.0)], image, mask, [0.0, 0.25])[0]
            for limits in ((0.4, 0.8), (0.5, 0.5), (0.4, 0.4))
        ]
        assert np.allclose(made[0], made[1], atol=1e-4), field
        assert not np.allclose(made[0], made[2], atol=1e-4), field


LIMITS: list[tuple[Any, list[Any], list[Any], str]] = [
    (lambda each: RandomAffine3D(8, degrees=each), [0, 180], [-0.1, 180.1, math.nan], "affine: degrees must be a num"),
    (
        lambda each: RandomGaussianNoise(each),
        [0.01, 9],
        [0, -1, math.inf, math.nan],
        "gaussian_noise: std must be a number above 0",
    ),
    (lambda each: RandomScaleIntensity(each), [0.01, 9], [0, -1, math.inf], "scale_intensity: factor must be a number"),
    (lambda each: RandomShiftIntensity(each), [0.01, 9], [0, -1, math.inf], "shift_intensity: offset must be a number"),
    *(
        (make, [(0.1, 0.1), (1, most)], [(0, 1), (1, 0.5), (-1, 1), (1, over), 1.0], f"{told} {upper}, got")  # type: ignore[misc]
        for make, told, most, over, upper in (
            (lambda each: RandomAffine3D(8, scale=each), "affine: scale", 4, math.inf, "< inf"),
            (lambda each: RandomGaussianSmooth(each), "gaussian_smooth: sigma", 4, math.inf, "< inf"),
            (lambda each: RandomContrast(each), "contrast: factor", 4, math.inf, "< inf"),
            (lambda each: RandomGamma(each), "gamma: gamma", 4, math.inf, "< inf"),
            (lambda each: RandomLowResolution(each), "low_resolution: zoom", 1, 1.1, "<= 1"),
        )
        for told in [f"{told} must be two numbers, 0 < low <= high"]
    ),
    *(
        (make, [0, 1], [-0.1, 1.1, math.nan], f"{told} must be a number in 0..1, got")  # type: ignore[misc]
        for make, told in (
            (lambda each: RandomAffine3D(8, turned=each), "affine: turned"),
            (lambda each: RandomAffine3D(8, scaled=each), "affine: scaled"),
            (lambda each: RandomAffine3D(8, foreground=each), "affine: foreground"),
            (lambda each: RandomGaussianNoise(probability=each), "gaussian_noise: probability"),
            (lambda each: RandomGaussianSmooth(probability=each), "gaussian_smooth: probability"),
            (lambda each: RandomContrast(probability=each), "contrast: probability"),
            (lambda each: RandomGamma(probability=each), "gamma: probability"),
            (lambda each: RandomLowResolution(probability=each), "low_resolution: probability"),
            (lambda each: RandomScaleIntensity(probability=each), "scale_intensity: probability"),
            (lambda each: RandomShiftIntensity(probability=each), "shift_intensity: probability"),
            (lambda each: RandomCrop3D(8, foreground=each), "crop: foreground"),
            (lambda each: RandomFlip3D(probability=each), "flip: probability"),
            (lambda each: RandomRotate90(probability=each), "rotate90: probability"),
        )
    ),
    *(
        (make, [-3e37, 7], [3.1e38, -math.inf, math.nan, None], f"{told}: fill must be a number in single precision")  # type: ignore[misc]
        for make, told in (
            (lambda each: CenterCrop3D(8, fill=each), "center_crop"),
            (lambda each: RandomCrop3D(8, fill=each), "crop"),
            (lambda each: RandomAffine3D(8, fill=each), "affine"),
        )
    ),
    (lambda each: IntensityWindow(*each), [(0, 0.1)], [(1, 1), (2, 1), (0, math.inf)], "window must be two numbers"),
    (
        lambda each: RandomFlip3D(each),
        [(0,), (2, 0, 1), 1],
        [(), (0, 0), (3,), (-1,), (1.0,)],
        "flip: axes must be some of 0, 1, 2",
    ),
    (
        lambda each: RandomRotate90(axes=each),
        [(0, 1), (2, 0)],
        [(0, 0), (0, 3), (1,), (0, 1, 2), 0],
        "rotate90: axes must be two of 0, 1, 2",
    ),
    (
        lambda each: VolumeOutput(8, mean=each),
        [0, -5.5],
        [math.nan, math.inf, "0", (1, 2)],
        "output: mean must be a num",
    ),
    (lambda each: VolumeOutput(8, std=each), [0.1, 9], [0, -1, math.inf, (1, 2)], "output: std must be a number above"),
    (
        lambda each: VolumeOutput(8, channels=each),
        [1, 7],
        [0, 1.5, True],
        "output: channels must be an int of at least",
    ),
    (lambda each: VolumeOutput(each), [1, (1, 2, 3)], [0, (8, 8), True], "output: size must be a positive integer, or"),
    (lambda each: RandomRotate90(max_quarters=each), [1, 3], [0, 4, 1.5], "rotate90: max_quarters must be an int in 1"),
]


@pytest.mark.parametrize(
    ("make", "taken", "refused", "told"), LIMITS, ids=[told.split(" must")[0] for *_, told in LIMITS]
)
def test_arguments_are_taken_up_to_their_limits(make: Any, taken: list[Any], refused: list[Any], told: str) -> None:
    for each in taken:
        make(each)
    for each in refused:
        with pytest.raises(ConfigurationError) as raised:
            make(each)
        assert str(raised.value).startswith(told), each


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_turn_is_of_any_number_of_quarters_up_to_the_most(most: int) -> None:
    image, mask = volume()
    for drawn in (0.0, 0.4, 0.6, 0.99):
        found = through([RandomRotate90(0.5, (2, 0), most)], image, mask, [0.4, drawn])
        quarters = 1 + int(drawn * most)
        assert np.array_equal(found[0], np.rot90(image, quarters, (3, 1)))
        assert np.array_equal(found[1], np.rot90(mask, quarters, (2, 0)))


class Turned(VolumeStage):
    name = "turned"

    def __init__(self, quarters: int) -> None:
        self.quarters = quarters

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        voxels.turn(self.quarters, (1, 2))


@pytest.mark.parametrize("quarters", [-1, 0, 4, 7])
def test_a_stage_of_ones_own_turns_by_any_number_of_quarters(quarters: int) -> None:
    image, mask = volume()
    made = carried_through([Turned(quarters)], {"image": image, "mask": mask}, {}, 0).made()
    assert np.array_equal(made["image"], np.rot90(image, quarters, (2, 3)))
    assert np.array_equal(made["mask"], np.rot90(mask, quarters, (1, 2)))


@pytest.mark.parametrize("flipped", [False, True])
def test_a_window_beside_a_volume_that_was_padded_has_the_fill_alone(flipped: bool) -> None:
    image, mask = volume(1, (4, 5, 6))
    padded, labels = np.full((2, 20, 20, 20), 9.0, np.float32), np.zeros((20, 20, 20), np.uint8)
    padded[:, 8:12, 8:13, 7:13], labels[8:12, 8:13, 7:13] = image, mask
    if flipped:
        padded, labels = np.flip(padded, (1, 2, 3)), np.flip(labels)
    stages = [CenterCrop3D(20, fill=9.0), RandomFlip3D((0, 1, 2), 0.5), RandomCrop3D(3)]
    for places in product((0.0, 0.38, 0.56, 0.99), repeat=3):
        found = through(stages, image, mask, [], [0.0 if flipped else 0.9] * 3, [0.9, *places])
        own = tuple(slice(start, start + 3) for start in (int(18 * place) for place in places))
        assert np.array_equal(found[0], padded[(slice(None), *own)])
        assert np.array_equal(found[1], labels[own])


@pytest.mark.parametrize(
    "before", [[], [IntensityWindow(-60, 60)], [RandomFlip3D()], [IntensityWindow(-60, 60), RandomCrop3D((14, 11, 12))]]
)
def test_what_comes_before_is_made_as_far_as_it_is_seen_alone(
    before: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same as of all that is shown."""
    image, mask = volume(3, (21, 20, 23), "int16")
    stage = RandomAffine3D(SIZE, turned=1.0, scaled=1.0)
    drawn = [np.random.default_rng(2).random(each.num_uniforms).tolist() for each in (*before, stage)]
    found, labels = through([*before, stage], image, mask, *drawn)
    whole, whole_mask = through(before, image, mask, *drawn[:-1]) if before else (image, mask)
    wanted, wanted_labels = through([stage], whole, whole_mask, drawn[-1])
    assert np.array_equal(found, wanted)
    assert np.array_equal(labels, wanted_labels)


@pytest.mark.parametrize("shape", [(15, 14, 17), (1, 1, 1), (2, 9, 3), (30, 1, 5)])
def test_blur_is_scipys(shape: tuple[int, ...]) -> None:
    image, mask = volume(1, shape)
    for drawn in (0.0, 0.6, 0.999):
        found, labels = through([RandomGaussianSmooth((0.5, 2.0), 1.0)], image, mask, [0.0, drawn])
        sigma = 0.5 + 1.5 * drawn
        wanted = np.stack([gaussian_filter(each.astype(np.float64), sigma) for each in image])
        assert np.abs(found - wanted).max() < 1e-3
        assert np.array_equal(labels, mask)


def test_contrast_keeps_mean_and_limits_of_each_channel() -> None:
    image, mask = volume(2, dtype="int16")
    found, _ = through([RandomContrast((1.5, 1.5), 1.0)], image, mask, [0.0, 0.3])
    for channel, given in zip(found, image.astype(np.float64), strict=True):
        wanted = np.clip((given - given.mean()) * 1.5 + given.mean(), given.min(), given.max())
        assert np.abs(channel - wanted).max() < 1e-3


@pytest.mark.parametrize("invert", [False, True])
def test_gamma_keeps_mean_and_spread_of_each_channel(invert: bool) -> None:
    image, mask = volume(2)
    found, _ = through([RandomGamma((0.7, 0.7), 1.0, invert)], image, mask, [0.0, 0.3])
    sign = -1 if invert else 1
    for channel, given in zip(found, sign * image.astype(np.float64), strict=True):
        raised = ((given - given.min()) / np.ptp(given)) ** 0.7
        wanted = sign * ((raised - raised.mean()) / raised.std() * given.std() + given.mean())
        assert np.abs(channel - wanted).max() < 1e-2


def test_gamma_leaves_a_channel_of_one_value_as_it_is() -> None:
    image, mask = volume(2)
    image[0] = 7.0
    found, _ = through([RandomGamma((0.7, 0.7), 1.0)], image, mask, [0.0, 0.3])
    assert (found[0] == 7.0).all()
    assert np.isfinite(found[1]).all()


def test_noise_is_normal_and_the_samples_own() -> None:
    image, mask = np.zeros((1, 40, 40, 40), np.float32), np.zeros((40, 40, 40), np.uint8)
    one, again, other = (
        through([RandomGaussianNoise(2.0, 1.0)], image, mask, [0.0, 0.25, key, 0.7])[0] for key in (0.1, 0.1, 0.2)
    )
    assert np.array_equal(one, again)
    assert abs(float(one.std()) - 0.5) < 0.01
    assert abs(float(one.mean())) < 0.02
    for another in (other, through([RandomGaussianNoise(2.0, 1.0)], image, mask, [0.0, 0.25, 0.1, 0.6])[0]):
        assert abs(np.corrcoef(one.ravel(), another.ravel())[0, 1]) < 0.02
    two, _ = through([RandomGaussianNoise(2.0, 1.0)], image.repeat(2, 0), mask, [0.0, 0.25, 0.1, 0.7])
    assert abs(np.corrcoef(*two.reshape(2, -1))[0, 1]) < 0.02


@pytest.mark.parametrize(("left", "shape"), [(0.6, (15, 14, 17)), (0.3, (1, 9, 4))])
def test_fewer_voxels_are_the_nearest_and_values_are_linear_between(left: float, shape: tuple[int, ...]) -> None:
    image, mask = volume(4, shape)
    found, _ = through([RandomLowResolution((left, left), 1.0)], image, mask, [0.0, 0.5])
    for channel, given in zip(found, image.astype(np.float64), strict=True):
        fewer = [max(round(side * left), 1) for side in given.shape]
        kept = [((np.arange(few) + 0.5) * side / few).astype(int) for side, few in zip(given.shape, fewer, strict=True)]
        coarse = given[np.ix_(*kept)]
        factors = [side / few for side, few in zip(given.shape, fewer, strict=True)]
        wanted = zoom(coarse, factors, order=1, mode="nearest", grid_mode=True)
        assert np.abs(channel - wanted).max() < 1e-3
    same, _ = through([RandomLowResolution((1.0, 1.0), 1.0)], image, mask, [0.0, 0.5])
    assert np.array_equal(same, image)


def test_nn_unets_stages_have_its_numbers() -> None:
    assert nn_unet(96) == [
        RandomAffine3D(96, 0.33, fill=0, degrees=30, scale=(0.7, 1.4), turned=0.2, scaled=0.2),
        RandomGaussianNoise(0.1**0.5, 0.1),
        RandomGaussianSmooth((0.5, 1), 0.2),
        RandomScaleIntensity(0.25, 0.15),
        RandomContrast((0.75, 1.25), 0.15),
        RandomLowResolution((0.5, 1), 0.25),
        RandomGamma((0.7, 1.5), 0.1, True, "inverted_gamma"),
        RandomGamma((0.7, 1.5), 0.3),
        RandomFlip3D((0, 1, 2), 0.5),
    ]
    assert nn_unet(96, foreground=0.5)[0] == RandomAffine3D(96, 0.5)


def test_nn_unets_stages_serve_the_same_at_every_split_and_with_a_store() -> None:
    given = volumes(6, least=12, most=20)
    source = Volumes([image / 60 for image, _ in given], [mask for _, mask in given])
    stages = [replace(stage, **often(stage)) for stage in nn_unet(SIZE)]
    planner = Refurbish(6, batch_size=3, reuse_factor=1, seed=3)
    served = []
    for split in range(len(stages) + 1):
        with Loader(source, Recipe(stages, VolumeOutput(SIZE), split), planner) as loader:
            served.append([copy.deepcopy(batch) for _ in range(2) for batch in loader])
    assert all(equal(each, served[0]) for each in served)
    recipe, planner = Recipe(stages, VolumeOutput(SIZE), 6), Refurbish(6, batch_size=3, reuse_factor=3, seed=3)
    made = []
    for store in (None, MemoryStore()):
        with Loader(source, recipe, planner, store) as loader:
            made.append([copy.deepcopy(batch) for _ in range(4) for batch in loader])
    assert equal(*made)
    assert not equal(made[0][:2], served[0][:2])


def often(stage: Any) -> dict[str, float]:
    return {name: 0.6 for name in ("turned", "scaled", "probability") if hasattr(stage, name)}


def equal(one: Any, other: Any) -> bool:
    pairs = [pair for batches in zip(one, other, strict=True) for pair in zip(*batches, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("place", [-100, -7, 13, 100])
def test_of_what_lies_beside_a_volume_there_is_the_fill_and_nothing_else_is_written(
    axis: int, place: int, direction: int
) -> None:
    image, _ = volume(1, (4, 5, 6))
    start = [place if each == axis else 2 for each in range(3)]
    limits = [(0, side) for side in image.shape[1:]]
    shown: Any = SimpleNamespace(
        start=start, axes=[0, 1, 2], directions=[direction] * 3, shape=[3, 4, 5], limits=limits
    )
    room = np.full(2060, 7, np.float32)
    gather(image[0], shown, 9.0, np.empty((0, 3), np.float32), room[1000:1060].reshape(3, 4, 5))
    assert (room[1000:1060] == 9).all()
    room[1000:1060] = 7
    assert (room == 7).all()


class Cut(VolumeStage):
    name = "cut"

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        voxels.compute(lambda image: image[:, 1:])


def test_what_a_stage_of_ones_own_cannot_do_is_refused() -> None:
    image, mask = volume()
    with pytest.raises(LoaderError, match="shape"):
        carried_through([Cut()], {"image": image, "mask": mask}, {}, 0)
    with pytest.raises(ConfigurationError, match="gamma: invert must be True or False"):
        RandomGamma(invert=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_what_is_turned_is_as_long_both_ways_whichever_is_longer(axes: tuple[int, int]) -> None:
    turn, (first, second) = RandomRotate90(axes=axes), axes
    for lengths in ((96, 64), (64, 96)):
        shape = [48, 48, 48]
        shape[first], shape[second] = lengths
        with pytest.raises(ConfigurationError, match=f"along axis {first} as along axis {second}, got .*{lengths[0]}"):
            turn.leaves((shape[0], shape[1], shape[2]))
    shape = [64, 64, 64]
    shape[3 - first - second] = 96
    assert turn.leaves((shape[0], shape[1], shape[2])) == tuple(shape)
