"""Levels: images of numbers deeper than 8 bits as 256 levels, from black to white of the range that they declare."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import interval
from dalirefurb.errors import warn

if TYPE_CHECKING:
    from PIL import Image

ValueRange = tuple[float, float]
"""The numbers of black and of white."""

_DEEP = 65535
_DARK = 1 / 8
"""Share of a range below which what fills it is hardly meant to."""

_BITS, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
"""Tags of TIFF: bits of a number, and what the numbers mean; 0: white is zero."""


class NearlyBlackWarning(UserWarning):
    """An image fills hardly any of the range that it declares."""


class LevelsError(ValueError):
    """Numbers cannot be made levels of; says why, and what helps."""


class Levels:
    """Makes 256 levels of numbers of any depth. Thread-safe.

    Numbers of 16 bits without sign go from 0, black, to 65535, white, and a file may declare another largest one. Where
    the numbers of an image fill less than an eighth of that, as those of a 12-bit scanner in 16 bits do, one warning
    names the first such image.

    Args:
        value_range: Numbers of black and white in images deeper than 8 bits, in place of what these declare; what lies
            beyond is black or white. None: as they declare.
    """

    def __init__(self, value_range: ValueRange | None = None) -> None:
        self.value_range = checked_range(value_range)
        self._warned = False
        self._tables: dict[float, NDArray[np.uint8]] = {}

    def of(self, values: NDArray[Any], name: str, declared: float | None = None) -> NDArray[np.uint8]:
        """Return levels of the same shape.

        Args:
            values: Numbers of an image.
            name: Name of the image, for messages.
            declared: Largest number that the image declares; None: 65535 for 16 bits without sign, else it is unknown.

        Raises:
            LevelsError: If their range is not known, or they are not finite.
        """
        is_16_bit = values.dtype.kind == "u" and values.dtype.itemsize == 2
        if declared is None and is_16_bit:
            declared = _DEEP
        low, high = self.value_range or (0.0, declared)
        if high is None:
            raise LevelsError(
                f"its pixels are {values.dtype}, of which no range is declared: pass value_range=(low, high), the "
                f"numbers of black and white, to the source"
            )
        if self.value_range is None and values.size:
            self.warn_if_dark(float(values.max()), high, name)
        if not is_16_bit:
            if not np.isfinite(values).all():
                raise LevelsError("some of its pixels are not finite")
            return _scaled(values, low, high)
        table = self._tables.get(high)
        if table is None:
            table = self._tables[high] = _scaled(np.arange(_DEEP + 1), low, high)
        levels: NDArray[np.uint8] = table[values]
        return levels

    def of_image(self, image: Image.Image, name: str) -> NDArray[np.uint8]:
        """Return the levels of a PIL image, RGB of shape (height, width, 3); alpha is dropped.

        Raises:
            LevelsError: If it has more than 8 bits a channel, and their range is not known.
        """
        if image.mode.startswith(("I", "F")):
            tags = getattr(image, "tag_v2", {})
            levels = self.of(np.asarray(image), name, _declared(image, tags))
            if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
                levels = 255 - levels
            return np.repeat(levels[..., np.newaxis], 3, axis=2)
        if "transparency" in image.info or image.mode in ("La", "RGBa"):
            # Else Pillow warns of palettes that are part transparent, and knows no way from what alpha has darkened.
            image = image.convert("LA" if image.mode == "La" else "RGBA")
        return np.asarray(image.convert("RGB"))

    def warn_if_dark(self, largest: float, declared: float, name: str) -> None:
        """Warn once of an image that fills hardly any of its range, but for one that is black."""
        if 0 < largest < _DARK * declared and not self._warned:
            self._warned = True
            warn(
                f"{name} is served nearly black: its largest number is {largest:,.0f}, of {declared:,.0f} that it "
                f"declares; if it has fewer bits than that, pass value_range=(0, {2 ** int(largest).bit_length() - 1}) "
                f"to the source, else filter this warning",
                NearlyBlackWarning,
            )


def checked_range(value_range: ValueRange | None) -> ValueRange | None:
    """Return the numbers of black and white as plain floats.

    Raises:
        ConfigurationError: If they are not a low and a higher number.
    """
    if value_range is None:
        return None
    remedy = "pass the numbers of black and white, such as (0, 4095) for 12 bits"
    wanted = "two numbers, low < high"  # Of what has no end all would be black.
    return interval("value_range", value_range, wanted, lambda low, high: -math.inf < low < high < math.inf, remedy)


def _declared(image: Image.Image, tags: Any) -> float | None:
    """Return the largest number that an image of one deep channel declares."""
    if image.mode.startswith("I;16"):
        return float(2 ** min(tags.get(_BITS, (16,))[0], 16) - 1)
    return _DEEP if image.mode == "I" and image.format in ("PNG", "PPM") else None


def _scaled(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Return the nearest levels of numbers."""
    levels = (values.astype(np.float64) - low) * (255 / (high - low))
    return np.rint(np.clip(levels, 0, 255)).astype(np.uint8)
