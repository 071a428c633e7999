"""Stages that map coordinates: rotations, affine maps and changes of perspective, as torchvision draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import Code, KernelCall, matrix_and_fill, where_drawn
from dalirefurb.augment.maps import Maps, inverted, unmoved
from dalirefurb.augment.stage import Arrays, Fill, Interpolation, Node, Parameter, WarpingStage, outcomes_between
from dalirefurb.checks import Interval, interval, number, require
from dalirefurb.rng import between


class Warp(WarpingStage):
    """One map of coordinates for each image. Subclasses say which."""

    parameters: ClassVar[Mapping[str, Parameter]] = {"matrix": Parameter("float32", (3, 3))}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        return parameters["matrix"].astype(np.float64)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall([f"warp.{self.interpolation}"], matrix_and_fill(self.fill), code=Code.WARP)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        return self.warp(images, parameters["matrix"])


@dataclass(frozen=True)
class RandomRotation(Warp):
    """Rotate about the centre by a random angle; the size stays, as torchvision's `RandomRotation`.

    Attributes:
        degrees: Greatest angle d of at least 0, which is in -d .. d, or the least and the greatest, in degrees; turns
            counterclockwise are positive.
        interpolation: Interpolation, "nearest" or "bilinear".
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends.
    """

    degrees: float | Interval
    interpolation: Interpolation = "nearest"
    fill: Fill = 0
    name: str = "random_rotation"

    num_uniforms = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "degrees", _angles(self.name, self.degrees))

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return outcomes_between(self.degrees)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        angles = np.radians(between(self.degrees, uniforms[:, 0]))
        cosines, sines = np.cos(angles), np.sin(angles)
        return {"matrix": _about_centre((cosines, -sines, sines, cosines), heights, widths).astype(np.float32, "C")}


@dataclass(frozen=True)
class RandomAffine(Warp):
    """Rotate, shear, scale and shift at random about the centre; the size stays, as torchvision's `RandomAffine`.

    Attributes:
        degrees: Greatest angle d of at least 0, which is in -d .. d, or the least and the greatest, in degrees; turns
            clockwise are positive, other than in `RandomRotation`.
        translate: Greatest shifts, as shares 0 .. 1 of the width and of the height; they are whole pixels. None: there
            are none.
        scale: Least and greatest scale; None: 1.
        shear: Greatest angle of a shear along x, or the least and the greatest, or those along x and along y, four
            numbers, in degrees between -90 and 90; None: there is none.
        interpolation: Interpolation, "nearest" or "bilinear".
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends.
    """

    degrees: float | Interval
    translate: Interval | None = None
    scale: Interval | None = None
    shear: float | Interval | tuple[float, float, float, float] | None = None
    interpolation: Interpolation = "nearest"
    fill: Fill = 0
    name: str = "random_affine"

    num_uniforms = 6  # angle, shifts, scale, shears

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "degrees", _angles(self.name, self.degrees))
        if self.translate is not None:
            wanted, remedy = "two shares in 0..1, of width and height", "pass such as (0.1, 0.1)"
            self._interval("translate", wanted, lambda x, y: 0 <= x <= 1 and 0 <= y <= 1, remedy)
        if self.scale is not None:
            wanted, remedy = "two finite numbers with 0 < low <= high", "pass such as (0.9, 1.1)"
            self._interval("scale", wanted, lambda a, b: 0 < a <= b < math.inf, remedy)
        if self.shear is not None:
            object.__setattr__(self, "shear", _shears(self.name, self.shear))

    @property
    def _ranges(self) -> tuple[Interval, Interval, Interval, Interval]:
        """Angle, scale, and shears along x and y; from least to greatest."""
        shear: Any = self.shear or (0.0, 0.0, 0.0, 0.0)
        return self.degrees, self.scale or (1.0, 1.0), shear[:2], shear[2:]  # type: ignore[return-value]

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return outcomes_between(*self._ranges, (0.0, max(self.translate or (0.0, 0.0))))

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        angle, scale, x, y = (
            between(each, uniforms[:, column]) for each, column in zip(self._ranges, (0, 3, 4, 5), strict=True)
        )
        angle, x, y = np.radians([angle, x, y])
        # torchvision's: turned after a shear along y, after one along x. Its determinant is 1.
        cosine, sine = np.cos(angle - y) / np.cos(y), np.sin(angle - y) / np.cos(y)
        across, along = -cosine * np.tan(x) - np.sin(angle), -sine * np.tan(x) + np.cos(angle)
        inverse = along / scale, -across / scale, -sine / scale, cosine / scale
        matrices = _about_centre(inverse, heights, widths)
        if self.translate is not None:
            most = np.stack([widths, heights], axis=1) * self.translate  # (n, 2)
            shifts = np.rint(most * (2 * uniforms[:, 1:3] - 1))
            matrices[:, :2, 2] -= np.einsum("nij,nj->ni", matrices[:, :2, :2], shifts)
        return {"matrix": matrices.astype(np.float32, "C")}


@dataclass(frozen=True)
class RandomPerspective(Warp):
    """Change the perspective with a probability, as torchvision's `RandomPerspective`: corners move inwards at random.

    An image of one row or column stays as it is, and so does one three of whose corners would come to lie on a line.

    Attributes:
        distortion_scale: Share 0 .. 1 of half the width and of half the height by which a corner moves, at most.
        probability: Probability that an image is changed.
        interpolation: Interpolation, "nearest" or "bilinear".
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends.
    """

    distortion_scale: float = 0.5
    probability: float = 0.5
    interpolation: Interpolation = "bilinear"
    fill: Fill = 0
    name: str = "random_perspective"

    num_uniforms = 9  # whether, and x and y of each corner
    parameters: ClassVar[Mapping[str, Parameter]] = {"warped": Parameter("int32"), **Warp.parameters}

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("distortion_scale", "probability"):
            self._share(field)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Not changed; changes are too many to be counted."""
        chance = self.probability if self.distortion_scale else 0.0
        return np.array([1 - chance]) if chance < 1 else np.empty(0)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        sides = np.stack([widths, heights], axis=1)[:, None]  # (n, 1, 2)
        most = np.trunc(self.distortion_scale * (sides // 2))
        moved = np.floor(uniforms[:, 1:].reshape(-1, 4, 2) * (most + 1))  # (n, corners, x and y)
        far = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], bool)  # clockwise, from the corner at (0, 0)
        ends = np.where(far, sides - most - 1 + moved, moved)
        warped = uniforms[:, 0] < self.probability
        matrices, exists = _perspectives(ends, sides[:, 0] - 1)
        return {"warped": (warped & exists).astype(np.int32), "matrix": matrices.astype(np.float32, "C")}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        """Return what is drawn, with the middle of the image before the horizon; see `Stage.matrices`."""
        maps = super().matrices(parameters, heights, widths)
        # In the result the middle is seen as it is where its third coordinate is above 0; maps that are drawn have 1 at
        # the result's corner, which can be behind the horizon.
        middles = np.stack([widths / 2, heights / 2, np.ones(len(heights))], axis=1)
        maps *= np.where(np.einsum("ni,ni->n", inverted(maps)[:, 2], middles) < 0, -1.0, 1.0)[:, None, None]
        return np.where((parameters["warped"] > 0)[:, None, None], maps, unmoved(len(maps)))

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        kernels, write = [f"warp.perspective_{self.interpolation}"], matrix_and_fill(self.fill)
        return [KernelCall(kernels, write, where_drawn("warped"))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        warped = parameters["warped"]
        if warped:  # noqa: SIM108 - DALI traces statements
            made = self.warp(images, parameters["matrix"])
        else:
            made = images
        return made


def _angles(name: str, degrees: object) -> Interval:
    """Return the least and the greatest angle."""
    remedy = "pass such as 15, or (-15, 15)"
    if not isinstance(degrees, tuple):
        most = number(f"{name}: degrees", degrees, "of at least 0, or two", lambda d: 0 <= d < math.inf, remedy)
        return -most, most
    wanted = "two finite numbers with low <= high"
    return interval(f"{name}: degrees", degrees, wanted, lambda a, b: -math.inf < a <= b < math.inf, remedy)


def _shears(name: str, shear: Any) -> tuple[float, float, float, float]:
    """Return the least and the greatest angle along x, and those along y."""
    remedy = "pass such as 10, (-10, 10), or (-10, 10, -5, 5)"
    if not isinstance(shear, tuple):
        most = number(f"{name}: shear", shear, "in 0..90, less than 90, or two or four", lambda d: 0 <= d < 90, remedy)
        shear = -most, most
    wanted = "two or four angles, between -90 and 90, with low <= high"
    require(len(shear) in (2, 4), f"{name}: shear", wanted, shear, remedy)
    x, y = (
        interval(f"{name}: shear", each, wanted, lambda low, high: -90 < low <= high < 90, remedy)
        for each in (shear[:2], shear[2:] or (0.0, 0.0))
    )
    return *x, *y


def _about_centre(linear: Sequence[NDArray[np.float64]], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
    """Return maps that keep images' centres where they are, given xx, xy, yx and yy of each, (n,)."""
    matrices = unmoved(len(heights))
    matrices[:, :2, :2] = np.stack(linear, axis=1).reshape(-1, 2, 2)
    centres = np.stack([widths, heights], axis=1) / 2
    matrices[:, :2, 2] = centres - np.einsum("nij,nj->ni", matrices[:, :2, :2], centres)
    return matrices


def _perspectives(ends: NDArray[np.float64], sides: NDArray[np.int64]) -> tuple[Maps, NDArray[np.bool_]]:
    """Return the maps that take the ends of corners back to these, and which of them there are.

    Args:
        ends: Where corners end, clockwise from that at (0, 0), (n, 4, 2).
        sides: Lengths in x and y of the rectangles whose corners they are, (n, 2).
    """
    (x0, x1, x2, x3), (y0, y1, y2, y3) = ends.transpose(2, 1, 0)
    # From the unit square to the ends (Heckbert 1989, section 2.2.3), each number as a polynomial of whole ones.
    whole = (x1 - x2) * (y3 - y2) - (y1 - y2) * (x3 - x2)
    bend_x, bend_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    g, h = bend_x * (y3 - y2) - bend_y * (x3 - x2), (x1 - x2) * bend_y - (y1 - y2) * bend_x
    a, b, c = (x1 - x0) * whole + g * x1, (x3 - x0) * whole + h * x3, x0 * whole
    d, e, f = (y1 - y0) * whole + g * y1, (y3 - y0) * whole + h * y3, y0 * whole
    # Its inverse, times the sides.
    inverse = np.array(
        [
            [e * whole - f * h, c * h - b * whole, b * f - c * e],
            [f * g - d * whole, a * whole - c * g, c * d - a * f],
            [d * h - e * g, b * g - a * h, a * e - b * d],
        ]
    ).transpose(2, 0, 1)
    inverse[:, :2] *= sides[:, :, None]
    areas = [(x1 - x0) * (y3 - y0) - (y1 - y0) * (x3 - x0), whole, whole + g, whole + h]
    exists = np.all([*(area != 0 for area in areas), inverse[:, 2, 2] != 0, *(sides.T > 0)], axis=0)
    matrices = np.where(exists[:, None, None], inverse, np.eye(3))
    return matrices / matrices[:, 2:, 2:], exists
