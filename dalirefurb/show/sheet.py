"""A sheet of cached and fresh pictures, told apart by colour, in frames and headings alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL.Image import Image

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.show.canvas import CACHED, FRESH, GREY, LINE, Canvas, line_height, text_width, wrap
from dalirefurb.show.operations import MAGNITUDES, Row
from dalirefurb.show.pictures import Pictures

CELL = 144
"""Side of a picture's square in pixels."""

_OPERATION_CELL = 128
_MARGIN = 24
_FRAME = 4
_GAP = 10
_ARROW = 44
_TITLE, _HEADING, _TEXT, _SMALL = 22, 16, 14, 13


@dataclass(frozen=True)
class _Column:
    """Cells below one heading.

    Attributes:
        x: Left side of the first cell's picture in pixels.
        cells: Number of cells.
        heading: Text in the coloured bar.
        text: Text below the coloured bar.
        colour: Colour of the bar and the frames.
    """

    x: int
    cells: int
    heading: str
    text: str
    colour: str

    @property
    def width(self) -> int:
        """Of all cells with their frames."""
        return self.cells * (CELL + 2 * _FRAME) + (self.cells - 1) * _GAP

    @property
    def end(self) -> int:
        """First pixel to the right of the last frame."""
        return self.x - _FRAME + self.width

    def cell(self, number: int) -> int:
        """Return where a cell's picture begins."""
        return self.x + number * (CELL + 2 * _FRAME + _GAP)


def pictures_sheet(pictures: Sequence[Pictures], recipe: Recipe, *, title: str, reuse_factor: int) -> Image:
    """Draw for each sample the original, and for each version the cached picture and those made from it.

    Args:
        pictures: The pictures of the samples, one item for each sample.
        recipe: The recipe that made the pictures.
        title: The title, at the top of the sheet.
        reuse_factor: Uses of each version.
    """
    again = ", drawn anew" if _random(recipe.partial) else ", made anew"
    columns = _columns(recipe, reuse_factor)
    width = columns[-1].end + _MARGIN
    inner = width - 2 * _MARGIN
    title_lines = wrap(title, _TITLE, inner)
    legend = _legend(columns, reuse_factor)
    texts = [wrap(column.text, _SMALL, column.width) for column in columns]
    kept = (
        f"This split keeps {recipe.diversity(reuse_factor):.2f} of standard training's different images "
        f"at reuse factor {reuse_factor}."
    )
    kept_lines = wrap(kept, _TEXT, inner)

    bar = line_height(_HEADING) + 6
    line = CELL + 2 * _FRAME + line_height(_SMALL) + 6
    sample = len(pictures[0].versions) * line + 2 * _GAP
    top = _MARGIN + len(title_lines) * line_height(_TITLE) + _legend_height(legend, inner) + _GAP
    first = top + bar + 6 + max(map(len, texts)) * line_height(_SMALL) + _GAP
    end = first + len(pictures) * sample
    canvas = Canvas(width, end + len(kept_lines) * line_height(_TEXT) + _MARGIN)

    y = canvas.lines(_MARGIN, _MARGIN, title_lines, size=_TITLE)
    _draw_legend(canvas, y, legend, inner)
    for column, lines in zip(columns, texts, strict=True):
        canvas.block(column.x - _FRAME, top, column.width, bar, column.colour)
        canvas.centred(column.x - _FRAME, top + 4, column.width, column.heading, size=_HEADING, colour="white")
        canvas.lines(column.x - _FRAME, top + bar + 6, lines, size=_SMALL)
    for number, each in enumerate(pictures):
        y = first + number * sample
        canvas.block(_MARGIN, y, inner, 1, LINE)
        _draw_sample(canvas, y + _GAP + _FRAME, each, columns, line, again)
    canvas.block(_MARGIN, end, inner, 1, LINE)
    canvas.lines(_MARGIN, end + _GAP, kept_lines, size=_TEXT)
    return canvas.image


def _draw_sample(
    canvas: Canvas, top: int, pictures: Pictures, columns: tuple[_Column, _Column, _Column], line: int, again: str
) -> None:
    """Draw one sample's pictures, a version in each line.

    Args:
        canvas: The canvas to draw on.
        top: Upper edge of the first version's pictures, in pixels.
        pictures: The sample's pictures.
        columns: The columns of the original, the partial and the final images.
        line: Distance from one version to the next, in pixels.
        again: What is said of all versions but the first.
    """
    original, partial, final = columns
    # Beside the middle of all versions' lines.
    middle = top + ((len(pictures.versions) - 1) * line + CELL) // 2
    canvas.picture(original.x, middle - CELL // 2, pictures.original, CELL)
    epoch = 0
    for place, version in enumerate(pictures.versions):
        y = top + place * line
        centre, below = y + CELL // 2, y + CELL + _FRAME + 3
        canvas.arrow(original.end + 3, middle, partial.x - _FRAME - 3, centre)
        canvas.arrow(partial.end + 3, centre, final.x - _FRAME - 3, centre)
        canvas.picture(partial.x, y, version.cached, CELL, frame=_FRAME, colour=partial.colour)
        name = f"version {place + 1}{again if place else ''}"
        canvas.centred(partial.x, below, CELL, name, size=_SMALL, colour=partial.colour)
        for use, picture in enumerate(version.served):
            canvas.picture(final.cell(use), y, picture, CELL, frame=_FRAME, colour=final.colour)
            canvas.centred(final.cell(use), below, CELL, f"epoch {epoch}", size=_SMALL, colour=final.colour)
            epoch += 1


def operations_sheet(rows: Sequence[Row], *, title: str, note: str) -> Image:
    """Draw each operation's pictures in a row, below each its magnitude."""
    units = [row.unit or "no magnitude" for row in rows]
    label = max(*(text_width(row.name, _HEADING) for row in rows), *(text_width(unit, _SMALL) for unit in units))
    step = _OPERATION_CELL + _GAP
    left = _MARGIN + label + 2 * _GAP
    width = left + MAGNITUDES * step - _GAP + _MARGIN
    inner = width - 2 * _MARGIN
    title_lines, note_lines = wrap(title, _TITLE, inner), wrap(note, _TEXT, inner)
    line = _OPERATION_CELL + line_height(_SMALL) + _GAP
    top = _MARGIN + len(title_lines) * line_height(_TITLE) + len(note_lines) * line_height(_TEXT) + _GAP
    canvas = Canvas(width, top + len(rows) * line + _MARGIN)
    y = canvas.lines(_MARGIN, _MARGIN, title_lines, size=_TITLE)
    canvas.lines(_MARGIN, y, note_lines, size=_TEXT, colour=GREY)
    for place, (row, unit) in enumerate(zip(rows, units, strict=True)):
        y = top + place * line
        names = y + (_OPERATION_CELL - line_height(_HEADING) - line_height(_SMALL)) // 2
        canvas.text(_MARGIN, names, row.name, size=_HEADING)
        canvas.text(_MARGIN, names + line_height(_HEADING), unit, size=_SMALL, colour=GREY)
        for number, (magnitude, picture) in enumerate(zip(row.magnitudes, row.pictures, strict=True)):
            x = left + number * step
            canvas.picture(x, y, picture, _OPERATION_CELL)
            canvas.centred(x, y + _OPERATION_CELL + 3, _OPERATION_CELL, magnitude, size=_SMALL)
    return canvas.image


def _columns(recipe: Recipe, reuse_factor: int) -> tuple[_Column, _Column, _Column]:
    """Lay out the columns.

    What is not cached is fresh, at reuse factor 1 the partial part, too. What comes out of the cache and does not
    change afterwards is not fresh.
    """
    cached = reuse_factor > 1
    fresh = not cached or _random(recipe.final)
    whole = "the file, decoded" if recipe.encoded else "the array's image"
    original = _Column(_MARGIN + _FRAME, 1, "original", whole, GREY)
    partial = _Column(
        original.end + _ARROW + _FRAME,
        1,
        "cached:" if cached else "not cached:",
        _names(recipe.partial) if not recipe.caches_encoded else "the file, as it was read",
        CACHED if cached else FRESH,
    )
    final = _Column(
        partial.end + _ARROW + _FRAME,
        reuse_factor,
        "fresh at every use:" if fresh else "the same at every use:",
        _names(recipe.final),
        FRESH if fresh else CACHED,
    )
    return original, partial, final


def _random(stages: Sequence[Stage]) -> bool:
    return any(stage.random for stage in stages)


def _names(stages: Sequence[Stage]) -> str:
    return ", ".join(stage.name for stage in stages) or "nothing"


def _legend(columns: Sequence[_Column], reuse_factor: int) -> list[tuple[str, str]]:
    """Return the colours that occur, and what they mean."""
    meanings = {
        CACHED: f"cached: made once, used in {reuse_factor} epochs, then made anew",
        FRESH: "fresh: drawn anew in every epoch, seen by the network",
    }
    used = {column.colour for column in columns}
    return [(colour, meaning) for colour, meaning in meanings.items() if colour in used]


def _legend_places(legend: Sequence[tuple[str, str]], inner: int) -> list[tuple[int, int]]:
    """Return where entries stand, side by side, or below one another where there is no room."""
    places: list[tuple[int, int]] = []
    x = y = 0
    for _, text in legend:
        width = line_height(_TEXT) + text_width(text, _TEXT)
        if x and x + width > inner:
            x, y = 0, y + line_height(_TEXT)
        places.append((x, y))
        x += width + 3 * _GAP
    return places


def _legend_height(legend: Sequence[tuple[str, str]], inner: int) -> int:
    return _legend_places(legend, inner)[-1][1] + line_height(_TEXT) + _GAP


def _draw_legend(canvas: Canvas, top: int, legend: Sequence[tuple[str, str]], inner: int) -> None:
    swatch = _TEXT
    for (colour, text), (x, y) in zip(legend, _legend_places(legend, inner), strict=True):
        canvas.block(_MARGIN + x, top + y + 2, swatch, swatch, colour)
        canvas.text(_MARGIN + x + line_height(_TEXT), top + y, text, size=_TEXT)
