"""Stages that paint over windows of an image: random erasing, and cutout; and noise to paint with.

A level is a mean plus a standard deviation times the sum of eight random bytes, which is nearly normal: its share below
any number differs from the normal distribution's by 0.004 at most, and its tails end at 4.9 standard deviations.
All is integer arithmetic of 32 bits up to that sum, so that NumPy, kernels and DALI's operators make the same levels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, KernelCall, Numbers, Parameters, Sizes
from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD
from dalirefurb.augment.stage import Arrays, Fill, Node, Parameter, Size, Stage, check_fill, checked_size, sides_of
from dalirefurb.checks import Interval, integer, number, require
from dalirefurb.rng import between

KEYS = 2**31
"""How many keys there are: 0 .. 2**31 - 1."""

LONGEST_SIDE = 2**16
"""Pixels that a window of noise has in each direction, at most, if DALI's operators make it."""

ROW, FIRST, SECOND, THIRD = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F
"""Odd multipliers: of a row's number, and of the steps that mix bits."""

_BASE = 512  # of two digits that DALI counts in
_BYTES = 8
_MIDDLE = _BYTES * 255 / 2
_DEVIATION = math.sqrt(_BYTES * (256**2 - 1) / 12)


class Noise(NamedTuple):
    """How levels are made of sums of bytes: scale * sum + shift, for each channel.

    Attributes:
        scale: Scale of each channel.
        shift: Shift of each channel.
    """

    scale: tuple[float, float, float]
    shift: tuple[float, float, float]

    @classmethod
    def of(cls, means: Sequence[float], stds: Sequence[float]) -> Noise:
        """Make noise of the channels' means and standard deviations, of pixels in 0..1."""
        scale = 255 * np.array(stds) / _DEVIATION
        shift = 255 * np.array(means) - scale * _MIDDLE
        # What single precision makes of them, as all who compute levels do.
        rounded = np.array([scale, shift], np.float32).tolist()
        return cls(*map(tuple, rounded))

    def levels(self, sums: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Turn sums of bytes, shape (..., 3), into levels: whole numbers in 0 .. 255."""
        scale, shift = np.array(self, np.float32)
        levels: NDArray[np.float32] = np.rint(sums.astype(np.float32) * scale + shift).clip(0, 255)
        return levels


def byte_sums(keys: NDArray[np.int32], row: int = 0, columns: int = 3) -> NDArray[np.uint32]:
    """Return sums of random bytes.

    Args:
        keys: Keys, shape (n,).
        row: Number of the row of pixels.
        columns: Levels of a row, three to a pixel.

    Returns:
        Sums of the row's levels, shape (n, columns).
    """
    place = np.uint32(row * ROW % 2**32) + np.arange(columns, dtype=np.uint32)
    sums: NDArray[np.uint32] = _mixed(keys.astype(np.uint32)[:, None] * np.uint32(THIRD) + place, np.uint32)
    return sums


def _mixed(bits: Any, whole: Callable[[int], Any]) -> Any:
    """Return the sums of the eight bytes that 32 bits each become, in whatever arithmetic has `whole` numbers."""
    bits = (bits ^ (bits >> whole(16))) * whole(FIRST)
    bits = (bits ^ (bits >> whole(13))) * whole(SECOND)
    bits = bits ^ (bits >> whole(16))
    more = (bits ^ (bits >> whole(15))) * whole(THIRD)
    more = more ^ (more >> whole(13))
    byte = whole(0x00FF00FF)
    pairs = (bits & byte) + ((bits >> whole(8)) & byte) + (more & byte) + ((more >> whole(8)) & byte)
    return (pairs & whole(0xFFFF)) + (pairs >> whole(16))


def paint_noise(images: Node, window: Node, key: Node, noise: Noise, *, as_wide: bool | None = None) -> Node:
    """Paint noise over a window of each image by DALI's operators; call it where conditionals are enabled.

    Args:
        images: HWC uint8 images with 3 channels, on "cpu" or "gpu".
        window: First row, first column, height and width, shape (4,), as a CPU node; images without pixels there stay.
        key: Key of the noise, as a CPU node.
        noise: How levels are made.
        as_wide: Whether the noise is made as wide as the image, of which the window's part is pasted; None: on a GPU.
            There DALI 2.4 reads everything that it pastes by the lines of the first image.
    """
    from nvidia.dali import fn, types

    if window[2] * window[3] > 0:
        size = images.shape(dtype=types.INT32)[:2]
        wide = images.device == "gpu" if as_wide is None else as_wide
        painted = fn.multi_paste(
            images,
            _levels(window[2], size[1] if wide else window[3], key, noise, images.device),
            out_anchors=fn.stack(types.Constant(np.zeros(2, np.int32)), window[:2]),
            output_size=size,
            **({"shapes": fn.stack(size, window[2:])} if wide else {}),
        )
    else:
        painted = images
    return painted


def _whole(value: int) -> Node:
    from nvidia.dali import types

    return types.Constant(value, dtype=types.UINT32)


def _first(values: Node, count: Node) -> Node:
    from nvidia.dali import fn, types

    start = types.Constant(np.zeros(1, np.int32))
    return fn.slice(values, start=start, shape=fn.reshape(count, shape=[1]), axes=[0])


def _counted(count: Node) -> Node:
    """Return 0, 1, ..., shape (count,), of a table of two digits: one of all numbers would be megabytes of a graph."""
    from nvidia.dali import fn, types

    low = types.Constant(np.arange(_BASE, dtype=np.uint32)[None])
    high = types.Constant(np.arange(0, 3 * LONGEST_SIDE, _BASE, dtype=np.uint32))
    rows = _first(high, count // types.Constant(_BASE, dtype=types.INT32) + types.Constant(1, dtype=types.INT32))
    return _first(fn.reshape(fn.reshape(rows, shape=[-1, 1]) + low, shape=[-1]), count)


def _levels(height: Node, width: Node, key: Node, noise: Noise, device: str) -> Node:
    """Return levels of noise, as `byte_sums` and `Noise.levels` say."""
    from nvidia.dali import fn, types

    rows = fn.reshape(_counted(height), shape=[-1, 1, 1])
    row = fn.reshape(_counted(width * types.Constant(3, dtype=types.INT32)), shape=[1, -1, 3])
    start = fn.cast(key, dtype=types.UINT32) * _whole(THIRD)
    if device == "gpu":
        rows, row, start = rows.gpu(), row.gpu(), start.gpu()
    sums = fn.cast(_mixed(start + rows * _whole(ROW) + row, _whole), dtype=types.FLOAT)
    scale, shift = (types.Constant(np.array([[each]], np.float32), device=device) for each in noise)
    return fn.reshape(fn.cast(sums * scale + shift, dtype=types.UINT8), layout="HWC")


Channels = tuple[float, float, float]
"""One number for each channel."""

SCALE, RATIO = (0.02, 0.33), (0.3, 3.3)
"""What random erasing takes, as torchvision publishes it: shares of the area, and height divided by width."""


class PaintedWindows(Stage):
    """A stage that paints over windows, each with one colour or with noise. Subclasses say which."""

    probability: float

    keeps_place = True

    @property
    @abstractmethod
    def windows(self) -> int:
        """Number of windows of an image, at most."""

    @property
    def noise(self) -> Noise | None:
        """What is painted, if it is another colour for each pixel."""
        return None

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """First row and column, height and width of windows, 0 where there is none; levels, or keys of noise."""
        window = Parameter("int32", (self.windows, 4))
        if self.noise is None:
            return {"window": window, "levels": Parameter("float32", (self.windows, 3))}
        return {"window": window, "key": Parameter("int32", (self.windows,))}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Nothing painted; windows are too many to be counted."""
        return np.array([1 - self.probability]) if self.probability < 1 else np.empty(0)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """For each window its place and size; levels, or a key of noise with its means and deviations."""
        noise = self.noise

        def at(place: int) -> KernelCall:
            def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
                numbers[:, :4] = parameters["window"][:, place]
                if noise is None:
                    numbers[:, 4:7] = parameters["levels"][:, place]
                else:
                    numbers[:, 4], numbers[:, 5:8], numbers[:, 8:11] = parameters["key"][:, place], *noise

            def choose(parameters: Parameters) -> NDArray[np.int64]:
                return np.where(parameters["window"][:, place, 2:].all(axis=1), 0, UNTOUCHED)

            return KernelCall(["erasing.paint" if noise is None else "erasing.noise"], write, choose)

        return [at(place) for place in range(self.windows)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn, types

        for place in range(self.windows):
            window = parameters["window"][place]
            if self.noise is None:
                places, levels = fn.cast(window, dtype=types.FLOAT), parameters["levels"][place]
                images = fn.erase(images, anchor=places[:2], shape=places[2:], axes=[0, 1], fill_value=levels)
            else:
                images = paint_noise(images, window, parameters["key"][place], self.noise)
        return images


@dataclass(frozen=True)
class RandomErasing(PaintedWindows):
    """Paint over a window of random area and aspect ratio (Zhong et al., AAAI 2020).

    The published procedure of torchvision's and timm's `RandomErasing`: up to ten attempts for each window, then none.
    These erase after normalisation, where 0 is the mean colour; here levels are painted, which are normalised later:
    put it last. Random colours have their mean and deviation, but are rounded to levels, and cut off at 0 and 255.

    Attributes:
        probability: Probability that an image is painted over at all.
        scale: Least and greatest share of the image's area, all windows together.
        ratio: Least and greatest height divided by width, drawn uniformly in its logarithm.
        value: What is painted: a level 0 .. 255, or one for each of 3 channels; "mean", the levels of `mean`;
            "channel", a random colour for each window, as timm's "rand"; "pixel", a random colour for each pixel, as
            timm's "pixel" and torchvision's "random".
        count: Number of windows, or its least and greatest, drawn uniformly, as of timm.
        mean: Means of random colours' channels, of pixels in 0..1, as of `Output`.
        std: Standard deviations of random colours' channels, of pixels in 0..1, as of `Output`.
    """

    probability: float = 0.5
    scale: Interval = SCALE
    ratio: Interval = RATIO
    value: Fill | Literal["mean", "channel", "pixel"] = "mean"
    count: int | tuple[int, int] = 1
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    name: str = "random_erasing"

    ATTEMPTS = 10

    def __post_init__(self) -> None:
        name, published = self.name, "leave it out for the published one"
        self._share()
        shares, ratios = "two numbers with 0 < low <= high <= 1", "two numbers with 0 < low <= high < inf"
        self._interval("scale", shares, lambda low, high: 0 < low <= high <= 1, published)
        self._interval("ratio", ratios, lambda low, high: 0 < low <= high < math.inf, published)
        if not (isinstance(self.value, str) and self.value in ("mean", "channel", "pixel")):
            remedy = 'torchvision\'s 0 is "mean" here, as it comes after normalisation, and its "random" is "pixel"'
            check_fill(f"{name}: value", self.value, '3 of them, or "mean", "channel" or "pixel"', remedy)
        wanted = "an int of at least 1, or two with 1 <= low <= high"
        require(len(self.counts) == 2, f"{name}: count", wanted, self.count, "1 is usual")
        low, high = (integer(f"{name}: count", each, 1, None, "1 is usual") for each in self.counts)
        require(low <= high, f"{name}: count", wanted, self.count, "1 is usual")
        for field in ("mean", "std"):
            given, remedy = getattr(self, field), "pass the output's, of pixels in 0..1"
            channels: Any = given if isinstance(given, tuple) and len(given) == 3 else (None,)
            within = "in 0..1, for each of 3 channels"
            channels = [number(f"{name}: {field}", each, within, lambda v: 0 <= v <= 1, remedy) for each in channels]
            object.__setattr__(self, field, tuple(channels))

    @property
    def counts(self) -> tuple[int, int]:
        """Least and greatest number of windows."""
        return self.count if isinstance(self.count, tuple) else (self.count, self.count)

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """Whether to paint and how many windows; of each area and ratio of all attempts, row, column and key."""
        return 2 + self.windows * (2 * self.ATTEMPTS + 3)

    @property
    def windows(self) -> int:
        return self.counts[1]

    @property
    def noise(self) -> Noise | None:
        """Levels of `mean` and `std`, if pixels differ."""
        return Noise.of(self.mean, self.std) if self.value == "pixel" else None

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image too long for DALI's noise; see `Stage.refusal`."""
        long = (np.maximum(heights, widths) > LONGEST_SIDE) & (self.value == "pixel")
        return self._first_unfit(long, (heights, widths), f"have at most {LONGEST_SIDE:,} pixels a side")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw windows: of each one's attempts the first that is smaller than its image; see `Stage.draw`."""
        rows, (least, most) = len(uniforms), self.counts
        counts = least + np.floor(uniforms[:, 1] * (most - least + 1))
        counts = np.where(uniforms[:, 0] < self.probability, counts, 0)[:, None]  # (n, 1)
        of_window = uniforms[:, 2:].reshape(rows, self.windows, 2 * self.ATTEMPTS + 3)
        attempts = of_window[..., :-3].reshape(rows, self.windows, self.ATTEMPTS, 2)
        heights, widths = heights[:, None, None], widths[:, None, None]
        area = heights * widths * between(self.scale, attempts[..., 0]) / np.maximum(counts, 1)[..., None]
        ratio = np.exp(between(np.log(self.ratio), attempts[..., 1]))
        height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))  # (n, windows, ATTEMPTS)
        fits = (height < heights) & (width < widths)
        first = fits.argmax(axis=2)[..., None]
        painted = fits.any(axis=2) & (np.arange(self.windows) < counts)  # (n, windows)
        height, width = (np.take_along_axis(side, first, axis=2)[..., 0] for side in (height, width))
        row = np.floor(of_window[..., -3] * (heights[..., 0] - height + 1))
        column = np.floor(of_window[..., -2] * (widths[..., 0] - width + 1))
        window = (np.stack([row, column, height, width], axis=2) * painted[..., None]).astype(np.int32)
        keys = np.floor(of_window[..., -1] * KEYS).astype(np.int32)
        return {"window": window, **({"levels": self._levels(keys)} if self.noise is None else {"key": keys})}

    def _levels(self, keys: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the colours of windows, given keys, (n, windows): float32 of shape (n, windows, 3)."""
        if self.value == "channel":
            sums = byte_sums(keys.ravel())
            return Noise.of(self.mean, self.std).levels(sums).reshape(*keys.shape, 3)
        levels = np.rint(255 * np.array(self.mean)) if self.value == "mean" else self.value
        return np.full((*keys.shape, 3), levels, np.float32)


@dataclass(frozen=True)
class Cutout(PaintedWindows):
    """Paint over a square whose centre may be any pixel, as far as it is inside (DeVries and Taylor 2017).

    The paper takes 16 pixels of CIFAR-10's images, 8 where there are 100 classes, of one size whatever is drawn. It
    paints after normalisation, where 0 is the mean colour: for that pass the levels of the output's mean as `fill`. Of
    an odd side its code leaves a pixel out.

    Attributes:
        size: Side of the square in pixels, or a height and a width.
        probability: Probability that an image is painted over at all.
        fill: Level 0 .. 255, or one for each of 3 channels.
        holes: Number of squares.
    """

    size: Size
    probability: float = 1.0
    fill: Fill = 0
    holes: int = 1
    name: str = "cutout"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(f"{self.name}: size", self.size))
        self._share()
        check_fill(f"{self.name}: fill", self.fill)
        integer(f"{self.name}: holes", self.holes, 1, None, "1 is usual")

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """Whether to paint; row and column of each centre."""
        return 1 + 2 * self.holes

    @property
    def windows(self) -> int:
        return self.holes

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        sides = np.stack([heights, widths], axis=1)[:, None]  # (n, 1, 2)
        centres = np.floor(uniforms[:, 1:].reshape(len(uniforms), self.holes, 2) * sides)
        length = np.array(sides_of(self.size))
        first = centres - length // 2
        begin, end = first.clip(0), np.minimum(first + length, sides)  # (n, holes, 2)
        painted = (uniforms[:, 0] < self.probability)[:, None, None]
        window = np.concatenate([begin, (end - begin) * painted], axis=2).astype(np.int32)
        return {"window": window, "levels": np.full((*window.shape[:2], 3), self.fill, np.float32)}
