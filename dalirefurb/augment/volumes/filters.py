"""Stages of volumes that look at more than one voxel, or at all of them: what nnU-Net trains with, and what it costs.

All that is shown by then is made before, in single precision, so they belong behind a crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.volumes.stages import (
    RandomCrop3D,
    RandomFlip3D,
    RandomScaleIntensity,
    SometimesStage,
    VolumeStage,
    check_probability,
)
from dalirefurb.augment.volumes.voxels import AXES, Voxels
from dalirefurb.checks import Interval, flag, number


@dataclass(frozen=True)
class RandomAffine3D(RandomCrop3D):
    """Cut a window out at random, turned by any angles, and larger or smaller than in the volume.

    Its voxels are taken from where the volume is cached, so that nothing needs to be cut out larger before.

    Attributes:
        degrees: The most by which it is turned around each axis, either way.
        scale: Between which factors the size of what is in the window is, drawn uniformly; above 1 it is larger.
        turned: Probability that it is turned.
        scaled: Probability that it is of another size.
    """

    degrees: float = 30.0
    scale: Interval = (0.7, 1.4)
    turned: float = 0.2
    scaled: float = 0.2
    name: str = "affine"

    num_uniforms: ClassVar[int] = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        number(f"{self.name}: degrees", self.degrees, "in 0..180", lambda each: 0 <= each <= 180, "30 is usual")
        _check_factors(self, "scale")
        check_probability(self, "turned")
        check_probability(self, "scaled")

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Show the window, which is a plain one unless something else is drawn."""
        voxels.scale(1.0)
        start = self.drawn_start(voxels, uniforms)
        turned, scaled = uniforms[4] < self.turned, uniforms[8] < self.scaled
        if not turned and not scaled:
            voxels.crop(start, self.size, self.fill)
            return
        matrix = np.eye(AXES) / (rng.between(self.scale, uniforms[9]) if scaled else 1.0)
        for axis, drawn in enumerate(uniforms[5:8].tolist()):
            angle = math.radians(self.degrees) * (2 * drawn - 1) * turned
            one, other = (each for each in range(AXES) if each != axis)
            turn = np.eye(AXES)
            turn[[one, other], [one, other]] = math.cos(angle)
            turn[one, other], turn[other, one] = -math.sin(angle), math.sin(angle)
            matrix = matrix @ turn
        middle = (np.array(self.size) - 1) / 2
        voxels.resample(np.column_stack([matrix, middle + start - matrix @ middle]), self.size, self.fill)


def _check_factors(stage: VolumeStage, field: str, most: float = math.inf) -> None:
    wanted = f"two numbers, 0 < low <= high {'< inf' if most == math.inf else f'<= {most:g}'}"
    stage._interval(field, wanted, lambda low, high: 0 < low <= high <= most and high < math.inf, "pass (0.7, 1.0)")


@dataclass(frozen=True)
class RandomGaussianNoise(SometimesStage):
    """Add noise to each value, drawn from a normal distribution.

    Attributes:
        std: The most that its standard deviation is; it is drawn uniformly from 0 on.
        probability: Probability that it is done.
    """

    std: float = 0.1
    probability: float = 0.1
    name: str = "gaussian_noise"

    num_uniforms: ClassVar[int] = 4

    def __post_init__(self) -> None:
        number(f"{self.name}: std", self.std, "above 0", lambda each: 0 < each < math.inf, "0.1 is usual for 0 .. 1")
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        std, *key = drawn
        voxels.compute(partial(_noisy, std=self.std * std, key=np.array(key)))


def _noisy(image: NDArray[np.float32], *, std: float, key: NDArray[np.float64]) -> NDArray[np.float32]:
    noise = rng.generator(key).standard_normal(image.shape, np.float32)
    noise *= np.float32(std)
    image += noise
    return image


@dataclass(frozen=True)
class RandomGaussianSmooth(SometimesStage):
    """Blur an image by a Gaussian filter, mirrored at the borders and cut off at 4 standard deviations, as SciPy's.

    Attributes:
        sigma: Between which its standard deviation is, in voxels, drawn uniformly.
        probability: Probability that it is done.
    """

    sigma: Interval = (0.5, 1.0)
    probability: float = 0.2
    name: str = "gaussian_smooth"

    def __post_init__(self) -> None:
        _check_factors(self, "sigma")
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        voxels.smooth(rng.between(self.sigma, drawn[0]))


@dataclass(frozen=True)
class RandomContrast(SometimesStage):
    """Move all values of a channel away from their mean, or towards it, within the limits that they had.

    Attributes:
        factor: Between which their distance is multiplied, drawn uniformly.
        probability: Probability that it is done.
    """

    factor: Interval = (0.75, 1.25)
    probability: float = 0.15
    name: str = "contrast"

    def __post_init__(self) -> None:
        _check_factors(self, "factor")
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        voxels.compute(partial(_contrasted, factor=rng.between(self.factor, drawn[0])))


def _contrasted(image: NDArray[np.float32], *, factor: float) -> NDArray[np.float32]:
    for channel in image:
        mean, least, most = np.float32(channel.mean(dtype=np.float64)), channel.min(), channel.max()
        channel -= mean
        channel *= np.float32(factor)
        channel += mean
        np.clip(channel, least, most, out=channel)
    return image


@dataclass(frozen=True)
class RandomGamma(SometimesStage):
    """Raise all values of a channel, brought to 0 .. 1, to a power, and bring them back to mean and spread as before.

    Attributes:
        gamma: Between which the power is, drawn uniformly.
        probability: Probability that it is done.
        invert: Whether it is done to the values' negatives.
    """

    gamma: Interval = (0.7, 1.5)
    probability: float = 0.3
    invert: bool = False
    name: str = "gamma"

    def __post_init__(self) -> None:
        _check_factors(self, "gamma")
        flag(f"{self.name}: invert", self.invert)
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        sign = -1 if self.invert else 1
        voxels.compute(partial(_raised, gamma=rng.between(self.gamma, drawn[0]), sign=np.float32(sign)))


def _raised(image: NDArray[np.float32], *, gamma: float, sign: np.float32) -> NDArray[np.float32]:
    tiny = np.float32(1e-7)
    for channel in image:
        channel *= sign
        before = np.float32(channel.mean(dtype=np.float64)), np.float32(channel.std(dtype=np.float64))
        least = channel.min()
        spread = channel.max() - least
        channel -= least
        channel /= spread + tiny
        # By logarithms, which NumPy has vectors for, in a sixth of the time of its powers.
        with np.errstate(divide="ignore"):
            np.log(channel, out=channel)
        channel *= np.float32(gamma)
        np.exp(channel, out=channel)
        # That of 0 .. 1 to that of before; what is in between does not matter.
        mean, std = np.float32(channel.mean(dtype=np.float64)), np.float32(channel.std(dtype=np.float64))
        channel -= mean
        channel *= before[1] / (std + tiny)
        channel += before[0]
        channel *= sign
    return image


@dataclass(frozen=True)
class RandomLowResolution(SometimesStage):
    """Show an image as if it had fewer voxels: the nearest of them, and values linearly between.

    Attributes:
        zoom: Between which share of the voxels along each axis is left, drawn uniformly, at most 1.
        probability: Probability that it is done.
    """

    zoom: Interval = (0.5, 1.0)
    probability: float = 0.25
    name: str = "low_resolution"

    def __post_init__(self) -> None:
        _check_factors(self, "zoom", 1.0)
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        voxels.compute(partial(_coarse, zoom=rng.between(self.zoom, drawn[0])))


def _coarse(image: NDArray[np.float32], *, zoom: float) -> NDArray[np.float32]:
    sides = image.shape[1:]
    fewer = [max(1, round(side * zoom)) for side in sides]
    nearest = [((np.arange(few) + 0.5) * side / few).astype(np.int64) for side, few in zip(sides, fewer, strict=True)]
    image = image[np.ix_(np.arange(len(image)), *nearest)]
    for axis, side, few in reversed([*zip((1, 2, 3), sides, fewer, strict=True)]):  # along lines while there are few
        places = np.clip((np.arange(side) + 0.5) * few / side - 0.5, 0, few - 1)
        first = places.astype(np.int64)
        share = (places - first).astype(np.float32).reshape(-1, *[1] * (AXES - axis))
        one, other = image.take(first, axis), image.take(np.minimum(first + 1, few - 1), axis)
        other -= one
        other *= share
        image = one + other
    return image


def nn_unet(size: Any, *, foreground: float = 0.33) -> list[VolumeStage]:
    """Return the stages that nnU-Net trains with, as far as they are known here, for volumes of mean 0 and spread 1.

    Values are taken linearly between voxels where nnU-Net takes cubic splines (F. Isensee et al., nnU-Net, 2021).

    Args:
        size: Side of the windows in voxels, or their depth, height and width.
        foreground: Share of the windows that are drawn around a voxel of the foreground.
    """
    return [
        RandomAffine3D(size, foreground),
        RandomGaussianNoise(math.sqrt(0.1)),
        RandomGaussianSmooth(),
        RandomScaleIntensity(0.25, 0.15),
        RandomContrast(),
        RandomLowResolution(),
        RandomGamma(probability=0.1, invert=True, name="inverted_gamma"),
        RandomGamma(),
        RandomFlip3D(),
    ]
