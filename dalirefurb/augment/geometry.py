"""Stages that choose pixels: decoding, cropping, resizing and flipping.

Windows are drawn on the host, so a crop can be decoded by region when decoding and cropping are both partial, and is
sliced from the cached image, bit-identically, when they are not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays, Interpolation, Node, Parameter, Sizes, Stage, interpolation_type
from dalirefurb.errors import ConfigurationError

Device = Literal["cpu", "gpu"]

WHOLE_PIXELS = 2**24
"""Of a resized image that is cropped right after, at most, if DALI's operators make the whole of it first; of a larger
one they make the window alone, which can be a level off. Kernels always do, exactly."""

_LONGEST_SIDE = 2**31 - 1
"""Where the window of a crop can begin, which is said in 32 bits."""


@dataclass(frozen=True)
class Decode(Stage):
    """Decode encoded bytes to RGB: EXIF orientation applied, alpha dropped, 16 bits scaled to 8."""

    name: str = "decode"

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Decode whole images on the CPU."""
        return self.decode(images, "cpu")

    def decode(self, encoded: Node, device: Device) -> Node:
        """Decode whole images; "gpu" decodes by nvJPEG from bytes on the host."""
        from nvidia.dali import fn

        return fn.decoders.image(encoded, **self._arguments(device))

    def decode_region(self, encoded: Node, device: Device, start: Node, shape: Node) -> Node:
        """Decode windows only: the same pixels as decoding the whole and slicing.

        Args:
            encoded: Bytes, shape (length,), on the host.
            device: Where the pixels are wanted.
            start: First row and column, int32 (2,), in the oriented image.
            shape: Height and width in pixels, int32 (2,).
        """
        from nvidia.dali import fn

        return fn.decoders.image_slice(encoded, start=start, shape=shape, axes=[0, 1], **self._arguments(device))

    def _arguments(self, device: Device) -> dict[str, Any]:
        from nvidia.dali.types import DALIImageType

        if device == "cpu":
            return {"device": "cpu", "output_type": DALIImageType.RGB}
        # The hardware engine would take a share of each batch, so a sample's bits would depend on its neighbours.
        return {"device": "mixed", "output_type": DALIImageType.RGB, "hw_decoder_load": 0.0}


class Window(Stage):
    """A stage that begins by cutting a window; its parameters include `start` and `shape`, int32 (2,)."""

    @abstractmethod
    def apply_to_window(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Do what follows the cut."""

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Cut the window and go on from there."""
        from nvidia.dali import fn

        cut = fn.slice(images, start=parameters["start"], shape=parameters["shape"], axes=[0, 1])
        return self.apply_to_window(cut, parameters)


@dataclass(frozen=True)
class RandomResizedCrop(Window):
    """Crop a window of random area and aspect ratio, resize it to a square, anti-aliased.

    The published procedure of torchvision's `RandomResizedCrop`: up to ten attempts, then a central crop.

    Attributes:
        size: Side of the result in pixels.
        scale: Least and greatest share of the image's area.
        ratio: Least and greatest width divided by height, drawn uniformly in its logarithm.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    name: str = "random_resized_crop"

    ATTEMPTS = 10

    def __post_init__(self) -> None:
        require_positive(f"{self.name}: size", self.size)
        for field, (low, high), limit in (("scale", self.scale, 1.0), ("ratio", self.ratio, np.inf)):
            if not 0 < low <= high <= limit:
                raise ConfigurationError(
                    f"{self.name}: {field} must be two numbers with 0 < low <= high"
                    f"{' <= 1' if limit == 1 else ''}, got ({low}, {high})"
                )

    @property
    def num_uniforms(self) -> int:
        """Area, ratio, row and column of each attempt."""
        return 4 * self.ATTEMPTS

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The window."""
        return {"start": Parameter("int32", (2,)), "shape": Parameter("int32", (2,))}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Too many to count."""
        return np.empty(0)

    @property
    def fixed_size(self) -> tuple[int, int]:
        """A square of `size`."""
        return self.size, self.size

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw windows; see `Stage.draw`."""
        count = len(uniforms)
        window, fits = self._first_fit(uniforms.reshape(count, self.ATTEMPTS, 4), heights, widths)
        if not fits.all():
            misfits = np.flatnonzero(~fits)
            window[misfits] = self._central(heights[misfits], widths[misfits])
        return {
            "start": np.ascontiguousarray(window[:, :2], dtype=np.int32),
            "shape": np.ascontiguousarray(window[:, 2:], dtype=np.int32),
        }

    def _first_fit(
        self, attempts: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return for each row the first of k attempts that lies within the image.

        Args:
            attempts: Uniforms for area, ratio, row and column, shape (n, k, 4).
            heights: Of the images, shape (n,).
            widths: Likewise.

        Returns:
            Row, column, height and width of the windows, shape (n, 4), and whether any attempt fits, shape (n,).
        """
        low, high = self.scale
        area = (heights * widths)[:, None] * (low + (high - low) * attempts[..., 0])  # (n, k)
        low, high = np.log(self.ratio)
        ratio = np.exp(low + (high - low) * attempts[..., 1])
        width = np.rint(np.sqrt(area * ratio))
        height = np.rint(np.sqrt(area / ratio))
        fits = (width > 0) & (width <= widths[:, None]) & (height > 0) & (height <= heights[:, None])
        first = np.arange(len(attempts)), fits.argmax(axis=1)
        width, height = width[first], height[first]
        row = np.floor(attempts[..., 2][first] * (heights - height + 1))
        column = np.floor(attempts[..., 3][first] * (widths - width + 1))
        return np.stack([row, column, height, width], axis=1), fits[first]

    def _central(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the largest central window whose ratio is allowed, (n, 4); a pixel at least."""
        low, high = self.ratio
        ratio = widths / heights
        width = np.where(ratio > high, np.rint(heights * high).clip(1), widths)
        height = np.where(ratio < low, np.rint(widths / low).clip(1), heights)
        return np.stack([(heights - height) // 2, (widths - width) // 2, height, width], axis=1)

    def apply_to_window(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Resize."""
        from nvidia.dali import fn

        return fn.resize(images, size=(self.size, self.size), interp_type=interpolation_type(self.interpolation))


@dataclass(frozen=True)
class Resize(Stage):
    """Resize so that the shorter side is `size` pixels, anti-aliased; the aspect ratio stays."""

    size: int
    interpolation: Interpolation = "bilinear"
    name: str = "resize"

    def __post_init__(self) -> None:
        require_positive(f"{self.name}: size", self.size)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Height and width of the result."""
        return {"size": Parameter("float32", (2,))}

    def output_sizes(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Sizes:
        """Scale the longer side and round it down, as torchvision."""
        shorter = np.minimum(heights, widths)
        return self.size * heights // shorter, self.size * widths // shorter

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that would become so long that its pixels have no numbers; see `Stage.refusal`."""
        longer = np.maximum(*self.output_sizes(heights, widths))
        if not (longer > _LONGEST_SIDE).any():
            return None
        row = int(longer.argmax())
        return row, (
            f"{self.name}: an image's longer side must become {_LONGEST_SIDE:,} pixels at most, but of "
            f"{heights[row]} x {widths[row]} it becomes {longer[row]:,}; crop before it, or leave the image out"
        )

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Compute the sizes; see `Stage.draw`."""
        return {"size": np.stack(self.output_sizes(heights, widths), axis=1).astype(np.float32)}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Resize."""
        from nvidia.dali import fn

        return fn.resize(images, size=parameters["size"], interp_type=interpolation_type(self.interpolation))


@dataclass(frozen=True)
class RandomCrop(Stage):
    """Crop a square at a random place.

    Attributes:
        size: Side of the result in pixels.
        margin: Pixels by which each side of the image, padding included, exceeds `size`; there are (margin + 1)^2
            places. Images of another size are refused.
        padding: Pixels of 0 added to each side first.
    """

    size: int
    margin: int
    padding: int = 0
    name: str = "random_crop"

    def __post_init__(self) -> None:
        require_positive(f"{self.name}: size", self.size)
        if self.padding < 0 or self.margin < 0:
            raise ConfigurationError(
                f"{self.name}: padding and margin must be at least 0, got {self.padding} and {self.margin}"
            )

    @property
    def num_uniforms(self) -> int:
        """Row and column."""
        return 2

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The first row and column or, without padding, how far between the first place (0) and the last (1)."""
        if self.padding:
            return {"start": Parameter("int32", (2,))}
        return {"row_position": Parameter("float32"), "column_position": Parameter("float32")}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each place."""
        places = (self.margin + 1) ** 2
        return np.full(places, 1 / places)

    @property
    def fixed_size(self) -> tuple[int, int]:
        """A square of `size`."""
        return self.size, self.size

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that does not have `size`, `margin` and `padding`'s size; see `Stage.refusal`."""
        expected = self.size + self.margin - 2 * self.padding
        other = np.flatnonzero((heights != expected) | (widths != expected))
        if not len(other):
            return None
        row = int(other[0])
        return row, (
            f"{self.name}: images must be {expected} x {expected} pixels (size {self.size} + margin "
            f"{self.margin} - 2 * padding {self.padding}), got {heights[row]} x {widths[row]}; put a resize "
            f"before it or change its margin"
        )

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw places; see `Stage.draw`.

        Raises:
            ConfigurationError: If an image does not have `size`, `margin` and `padding`'s size.
        """
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        if self.padding:
            return {"start": (np.floor(uniforms * (self.margin + 1)) - self.padding).astype(np.int32)}
        rows, columns = (
            (np.floor(each * (self.margin + 1)) / max(self.margin, 1)).astype(np.float32) for each in uniforms.T
        )
        return {"row_position": rows, "column_position": columns}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Cut the window; what lies outside the image is 0."""
        from nvidia.dali import fn

        if self.padding:
            return fn.slice(
                images,
                start=parameters["start"],
                shape=[self.size, self.size],
                axes=[0, 1],
                out_of_bounds_policy="pad",
                fill_values=[0],
            )
        return fn.crop(images, **self.crop_arguments(parameters))

    def crop_arguments(self, parameters: Mapping[str, Node]) -> dict[str, Any]:
        """Return the window as arguments of DALI's cropping operators; without padding only."""
        return {
            "crop": (self.size, self.size),
            "crop_pos_y": parameters["row_position"],
            "crop_pos_x": parameters["column_position"],
        }


@dataclass(frozen=True)
class CenterCrop(Stage):
    """Crop a square from the centre.

    Attributes:
        size: Side of the result in pixels.
    """

    size: int
    name: str = "center_crop"

    def __post_init__(self) -> None:
        require_positive(f"{self.name}: size", self.size)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The first row and column."""
        return {"start": Parameter("int32", (2,))}

    @property
    def fixed_size(self) -> tuple[int, int]:
        """A square of `size`."""
        return self.size, self.size

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image smaller than `size`; see `Stage.refusal`."""
        smaller = np.flatnonzero((heights < self.size) | (widths < self.size))
        if not len(smaller):
            return None
        row = int(smaller[0])
        return row, (
            f"{self.name}: images must have at least {self.size} x {self.size} pixels, got "
            f"{heights[row]} x {widths[row]}; put a resize before it"
        )

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Compute the places; see `Stage.draw`.

        Raises:
            ConfigurationError: If an image is smaller than `size`.
        """
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        # Halves are rounded to even, as torchvision does.
        return {"start": np.rint((np.stack([heights, widths], axis=1) - self.size) / 2).astype(np.int32)}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Cut the window."""
        from nvidia.dali import fn

        return fn.slice(images, start=parameters["start"], shape=[self.size, self.size], axes=[0, 1])


def window_of(stage: Stage, following: Sequence[Stage]) -> CenterCrop | None:
    """Return the crop right after a resize, before which the whole need not be made; None for any other stages."""
    crop = following[0] if following and type(stage) is Resize else None
    return crop if type(crop) is CenterCrop else None


def resized_window(resize: Stage, crop: CenterCrop, images: Node, parameters: Mapping[str, Node]) -> Node:
    """Resize and crop; of an image that would have more than `WHOLE_PIXELS`, make the window alone.

    Args:
        resize: A `Resize`.
        crop: What comes right after it.
        images: See `Stage.apply`.
        parameters: Of both.
    """
    size = parameters["size"]
    if size[0] * size[1] > WHOLE_PIXELS:
        made = _window_alone(resize, crop, images, parameters["start"])
    else:
        made = crop.apply(resize.apply(images, parameters), parameters)
    return made


def _window_alone(resize: Stage, crop: CenterCrop, images: Node, start: Node) -> Node:
    """Make the pixels of a crop from those of the source that they depend on.

    Places are computed in double precision, and handed to DALI relative to these: it takes them in single precision.
    """
    from nvidia.dali import fn, math
    from nvidia.dali.types import DALIDataType

    assert isinstance(resize, Resize)

    def exact(node: Node) -> Node:
        return fn.cast(node, dtype=DALIDataType.FLOAT64)

    sides = images.shape(dtype=DALIDataType.INT64)[:2]
    full = sides * resize.size // math.min(sides[0], sides[1])
    sides, scale, start = exact(sides), exact(sides) / exact(full), exact(start)
    begin, end = start * scale, (start + crop.size) * scale
    reach = math.max(scale, 1.0) + 1.0
    first = math.max(math.floor(begin - reach), 0.0)
    last = math.min(math.ceil(end + reach), sides)
    needed = fn.slice(
        images,
        start=fn.cast(first, dtype=DALIDataType.INT32),
        shape=fn.cast(last - first, dtype=DALIDataType.INT32),
        axes=[0, 1],
    )
    return fn.resize(
        needed,
        size=(crop.size, crop.size),
        roi_start=fn.cast(begin - first, dtype=DALIDataType.FLOAT),
        roi_end=fn.cast(end - first, dtype=DALIDataType.FLOAT),
        interp_type=interpolation_type(resize.interpolation),
    )


@dataclass(frozen=True)
class HorizontalFlip(Stage):
    """Mirror left and right with a probability."""

    probability: float = 0.5
    name: str = "flip"

    def __post_init__(self) -> None:
        if not (isinstance(self.probability, Real) and 0 <= self.probability <= 1):
            raise ConfigurationError(f"{self.name}: probability must be a number in 0..1, got {self.probability!r}")

    @property
    def num_uniforms(self) -> int:
        """Whether."""
        return 1

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """1 to mirror, 0 not to."""
        return {"mirror": Parameter("int32")}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Mirrored or not."""
        return np.array([self.probability, 1 - self.probability])

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw whether to mirror; see `Stage.draw`."""
        return {"mirror": (uniforms[:, 0] < self.probability).astype(np.int32)}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Mirror the samples drawn; the others are not even copied."""
        from nvidia.dali import fn

        mirror = parameters["mirror"]
        if mirror:  # noqa: SIM108 - DALI traces statements
            flipped = fn.flip(images, horizontal=1)
        else:
            flipped = images
        return flipped


def require_positive(what: str, value: int) -> None:
    """Refuse a size that is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what} must be a positive integer, got {value!r}")
