"""Text, frames and pictures on a sheet, at exact pixels, by Pillow; text is measured beforehand."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

BACKGROUND = "#fbfbf8"
INK = "#1f2328"
GREY = "#6a7178"
LINE = "#c4c9ce"

CACHED = "#0072b2"
"""Blue and vermilion can be told apart by the colour-blind, and on gray prints."""

FRESH = "#c24f00"

_LEADING = 5


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's own font, which has no letters beyond Latin's."""
    loaded = ImageFont.load_default(size=size)
    assert isinstance(loaded, ImageFont.FreeTypeFont)  # Pillow is built with FreeType wherever there is a wheel.
    return loaded


def text_width(text: str, size: int) -> int:
    """Return the width of one line in pixels."""
    return int(np.ceil(font(size).getlength(text)))


def line_height(size: int) -> int:
    """Return the distance from one line to the next."""
    return sum(font(size).getmetrics()) + _LEADING


def wrap(text: str, size: int, width: int) -> list[str]:
    """Break text into lines of at most `width` pixels, at spaces; a word that is too long is broken anywhere."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and text_width(f"{line} {word}", size) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        line = word
        while text_width(line, size) > width:
            fits = max(1, max(end for end in range(len(line)) if text_width(line[:end], size) <= width))
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line] if line else lines


def fitted(picture: NDArray[np.uint8], cell: int) -> Image.Image:
    """Fit a picture into a square cell: small ones are enlarged by a whole factor, so that every pixel stays."""
    image = Image.fromarray(picture)
    longest = max(image.size)
    if longest <= cell:
        return image.resize(
            (image.width * (cell // longest), image.height * (cell // longest)), Image.Resampling.NEAREST
        )
    sides = [max(1, round(side * cell / longest)) for side in image.size]
    return image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)


class Canvas:
    """A sheet of paper. Places are those of the upper left corner, in pixels.

    Args:
        width: Width in pixels.
        height: Height in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGB", (width, height), BACKGROUND)
        self._draw = ImageDraw.Draw(self.image)

    def text(self, x: int, y: int, text: str, *, size: int, colour: str = INK) -> None:
        """Write one line."""
        self._draw.text((x, y), text, font=font(size), fill=colour)

    def lines(self, x: int, y: int, lines: list[str], *, size: int, colour: str = INK) -> int:
        """Write lines; return where the next one would begin."""
        for line in lines:
            self.text(x, y, line, size=size, colour=colour)
            y += line_height(size)
        return y

    def centred(self, x: int, y: int, width: int, text: str, *, size: int, colour: str = INK) -> None:
        """Write one line in the middle of `width` pixels."""
        self.text(x + (width - text_width(text, size)) // 2, y, text, size=size, colour=colour)

    def block(self, x: int, y: int, width: int, height: int, colour: str) -> None:
        """Fill a rectangle."""
        self._draw.rectangle((x, y, x + width - 1, y + height - 1), fill=colour)

    def arrow(self, x: int, y: int, to_x: int, to_y: int, *, colour: str = GREY) -> None:
        """Draw a line that bends half-way, with a head that points right."""
        middle, head = (x + to_x) // 2, 6
        self._draw.line([(x, y), (middle, y), (middle, to_y), (to_x - head, to_y)], fill=colour, width=2)
        self._draw.polygon([(to_x, to_y), (to_x - 2 * head, to_y - head), (to_x - 2 * head, to_y + head)], fill=colour)

    def picture(
        self, x: int, y: int, picture: NDArray[np.uint8], cell: int, *, frame: int = 1, colour: str = LINE
    ) -> None:
        """Put a picture in the middle of a square cell, and a frame around it."""
        image = fitted(picture, cell)
        x, y = x + (cell - image.width) // 2, y + (cell - image.height) // 2
        self.block(x - frame, y - frame, image.width + 2 * frame, image.height + 2 * frame, colour)
        self.image.paste(image, (x, y))
