"""Decoder of all files but those that are proven to be shown alike by DALI: as Pillow shows them.

Of several frames the first is taken, the orientation that a file states is applied, and alpha is dropped. What is
deeper than 8 bits is scaled from the range that it declares.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image, __version__

from dalirefurb.reading.formats import PNG_DEPTH, Header, whole_png
from dalirefurb.source.levels import Levels, LevelsError, NearlyBlackWarning

_ORIENTATION, _BITS, _PLANES = 274, 258, 284
"""Tags of EXIF data and TIFF; the last one is 2 if each colour is in a plane of its own."""

_LONGEST = 2**31 - 1
_RUN_PROGRAMS = ("EPS",)
"""Formats for which Pillow starts another program."""

_CODESTREAM = b"\xff\x4f\xff\x51"
"""Markers with which the image in a JPEG 2000 file begins, followed by its size."""

_DEPTH = 42
"""Place of the bits of a codestream's first component, less one."""


class PillowError(Exception):
    """Pillow cannot decode an image, or must not; says why."""


def pillow_version() -> str:
    """Return Pillow's version, by which what it decodes may differ."""
    return __version__


class PillowDecoder:
    """Decodes images with Pillow. Thread-safe.

    Args:
        max_pixels: Largest number of pixels in an image; a larger image is refused before it is decoded. None: any
            size.
        levels: Levels of what is deeper than 8 bits.
    """

    def __init__(self, max_pixels: int | None, levels: Levels) -> None:
        self.max_pixels = max_pixels
        self._levels = levels
        Image.init()

    def header(self, encoded: NDArray[np.uint8]) -> Header:
        """Return what an image's header says.

        Raises:
            PillowError: If Pillow cannot read it.
        """
        with _refusing(), self._opened(encoded) as image:
            width, height = image.size
            if max(width, height) > _LONGEST:
                raise PillowError(f"its header declares {height} x {width} pixels, which no decoder takes")
            # To find it, Pillow decodes some images as a whole.
            orientation = _orientation(image) if self.takes(*image.size) else 1
            # Of a TIFF Pillow tells the size that it has when it is turned.
            turned = orientation > 4 and image.format != "TIFF"
        return Header(width, height) if turned else Header(height, width)

    def __call__(self, encoded: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Return the image in a file, shape (length,), upright, uint8 of shape (height, width, 3).

        Raises:
            PillowError: If Pillow cannot decode it, or it is too large.
        """
        with _refusing(), self._opened(encoded) as image:
            if self.takes(*image.size):
                image.load()
            if not self.takes(*image.size):  # Before, or of what is chosen of several, as in an icon.
                raise PillowError(f"{image.height} x {image.width} are more than {self.max_pixels:,} pixels")
            pixels = self._pixels(image, encoded, name)
            return np.ascontiguousarray(_TURNS[_orientation(image)](pixels))

    def takes(self, height: int, width: int) -> bool:
        """Tell whether an image of so many rows and columns is not too large."""
        return self.max_pixels is None or height * width <= self.max_pixels

    def _pixels(self, image: Image.Image, encoded: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Return an image as it is stored; of colours that are deeper than 8 bits Pillow shows 8."""
        bits = _bits(image, encoded)
        if wrong := _shown_wrong(image, bits):
            raise PillowError(f"{wrong}: store it as a PNG")
        if image.mode.startswith(("I", "F")) or bits <= 8:
            return self._levels.of_image(image, name)
        deepest = float(2**bits - 1)
        values = self._deep_colours(image, encoded)
        if values is not None:
            return self._levels.of(values, name, deepest)
        if self._levels.value_range is not None:
            raise PillowError(
                f"its colours are of {bits} bits, of which Pillow gives 8, so that no value_range can be applied: "
                f"store it as a PNG"
            )
        pixels = self._levels.of_image(image, name)
        self._levels.warn_if_dark(float(pixels.max(initial=0)) / 255 * deepest, deepest, name)
        return pixels

    def _deep_colours(self, image: Image.Image, encoded: NDArray[np.uint8]) -> NDArray[np.uint16] | None:
        """Return the numbers of a PNG or JPEG 2000 whose header can be read in one way only, (height, width, 3)."""
        stream = encoded
        if image.format == "JPEG2000" and image.mode in ("RGB", "RGBA"):
            stream = encoded[encoded.tobytes().index(_CODESTREAM) :]
        elif image.format != "PNG" or whole_png(encoded.data) is None:
            return None
        from dalirefurb.dali import GraphError, decoder  # Slow to load, and seldom needed.

        try:
            values = decoder(os.getpid(), deep=True)(stream)
        except GraphError:
            return None
        return values if values.shape == (image.height, image.width, 3) else None

    def _opened(self, encoded: NDArray[np.uint8]) -> Image.Image:
        """Open an image as `Image.open` does, but for its limit on pixels, which all threads of a process share."""
        content, reason = encoded.tobytes(), "of no format that Pillow knows" if len(encoded) else "empty"
        for name in Image.ID:
            factory, accepts = Image.OPEN[name]
            accepted = False
            try:
                accepted = accepts is None or accepts(content[:16]) is True
                if accepted and name not in _RUN_PROGRAMS:
                    return factory(io.BytesIO(content), "")
            except (SyntaxError, IndexError, TypeError, struct.error) as error:
                if accepted and accepts is not None:
                    reason = f"as {name}: {error}"
        raise PillowError(reason)


@contextmanager
def _refusing() -> Iterator[None]:
    """Make a `PillowError` of whatever is wrong with an image."""
    try:
        yield
    except (PillowError, NearlyBlackWarning):
        raise
    except LevelsError as error:
        raise PillowError(str(error)) from error
    except Exception as error:  # Every format has its own.
        raise PillowError(f"{type(error).__name__}: {error}") from error


def _orientation(image: Image.Image) -> int:
    """Return the orientation that is yet to be applied; 1 where what is said of it is broken."""
    try:
        stated = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Whatever Pillow meets in it.
        return 1
    return stated if stated in _TURNS else 1


_TURNS = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels[::-1].swapaxes(0, 1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels[:, ::-1].swapaxes(0, 1),
}
"""What is done to (height, width, 3) for each orientation."""


def _shown_wrong(image: Image.Image, bits: int) -> str:
    """Say what Pillow shows otherwise than it is meant, without an error; nothing if it is not known to."""
    if image.format == "JPEG2000" and image.mode == "LA" and bits > 8:
        return f"of gray and alpha of {bits} bits Pillow shows what is brightest as black"
    in_planes = image.format == "TIFF" and getattr(image, "tag_v2", {}).get(_PLANES) == 2
    if in_planes and (image.mode == "La" or (bits > 8 and image.info.get("compression") == "raw")):
        return "Pillow puts planes of this kind together wrongly"
    return ""


def _bits(image: Image.Image, encoded: NDArray[np.uint8]) -> int:
    """Return how many bits a file declares for each colour, where they may be more than 8."""
    if image.format == "PNG":
        return int(encoded[PNG_DEPTH])
    if image.format == "TIFF":
        return int(max(getattr(image, "tag_v2", {}).get(_BITS, (8,))))
    if image.format == "JPEG2000":
        return int(encoded[encoded.tobytes().index(_CODESTREAM) + _DEPTH] & 0x7F) + 1
    return 8
