"""Fallback decoder: what DALI cannot decode and Pillow can is written anew, uncompressed.

GIF, AVIF, ICO and many others. Of several frames the first is taken, EXIF orientation is applied, and alpha is dropped,
as DALI does.
"""

from __future__ import annotations

import importlib.util
import io
import struct
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError

if TYPE_CHECKING:
    from PIL import Image

_DEEPER = ("I", "F")
"""Modes with more than 8 bits a channel begin so. Pillow would cut their values off at 255."""

_RUN_PROGRAMS = ("EPS",)
"""Formats for which Pillow starts another program."""


class PillowError(Exception):
    """Pillow cannot decode an image, or must not; says why."""


class PillowDecoder:
    """Decodes with Pillow what DALI cannot. Thread-safe.

    Args:
        max_pixels: Largest number of pixels in an image; a larger image is refused before it is decoded. None: any
            size.

    Raises:
        ConfigurationError: If Pillow is not installed.
    """

    def __init__(self, max_pixels: int | None) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise ConfigurationError(
                "fallback_decoder='pillow' needs Pillow, which cannot be found: pip install pillow, or leave it out"
            )
        from PIL import Image

        self._max_pixels = max_pixels
        Image.preinit()
        Image.init()

    @property
    def version(self) -> str:
        """Pillow's."""
        import PIL

        return PIL.__version__

    def __call__(self, encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the image as PPM, 3 bytes a pixel, shape (length,).

        Raises:
            PillowError: If Pillow cannot decode it, or it is too large.
        """
        from PIL import ImageOps

        try:
            with self._opened(encoded) as image:
                self._check(image.size)
                # Without this, Pillow warns of palettes that are part transparent.
                upright = ImageOps.exif_transpose(image.convert("RGBA") if "transparency" in image.info else image)
                if upright.mode.startswith(_DEEPER):
                    raise PillowError(f"mode {upright.mode} has more than 8 bits a channel")
                pixels = upright.convert("RGB")
        except PillowError:
            raise
        except Exception as error:  # Every format has its own.
            raise PillowError(f"{type(error).__name__}: {error}") from error
        self._check(pixels.size)
        width, height = pixels.size
        return np.frombuffer(b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes(), np.uint8)

    def _check(self, size: tuple[int, int]) -> None:
        width, height = size
        if self._max_pixels is not None and width * height > self._max_pixels:
            raise PillowError(f"{height} x {width} are more than {self._max_pixels:,} pixels")

    def _opened(self, encoded: NDArray[np.uint8]) -> Image.Image:
        """Open an image as `Image.open` does, but for its limit on pixels, which all threads of a process share."""
        from PIL import Image

        content = encoded.tobytes()
        for name in Image.ID:
            factory, accepts = Image.OPEN[name]
            try:
                accepted = accepts is None or accepts(content[:16])
                if accepted is True and name not in _RUN_PROGRAMS:
                    return factory(io.BytesIO(content), "")
            except (SyntaxError, IndexError, TypeError, struct.error):
                continue
        raise PillowError("no format that it knows")
