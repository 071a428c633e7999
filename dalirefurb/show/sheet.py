"""Sheets of pictures at exact pixels, by matplotlib. Cached and fresh ones are told apart by colour."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dalirefurb.augment.diversity import what_differs
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.checks import integer
from dalirefurb.show import BACKGROUND, CACHED, FRESH, GREY, INK, LINE, MOST_USES
from dalirefurb.show.operations import MAGNITUDES, TABLES, Row, draws, operate
from dalirefurb.show.overlays import PARTS, classes_of, colour_of, draw_parts, draw_targets
from dalirefurb.show.pictures import Image, Part, Pictures, Targets, of_good_samples, square_image, take_pictures
from dalirefurb.source import Source
from dalirefurb.targets import Boxes, Keypoints, Masks, Polygons

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SAMPLES = 4
"""Of a sheet, evenly spaced in the source."""

CELL = 144
"""Side of a picture's square in pixels."""

_OPERATION_CELL = 128
_NAMES = 166
_MARGIN = 24
_FRAME = 4
_GAP = 10
_STEP = CELL + 2 * _FRAME + _GAP
_ARROW = 44
_BAR = 28

_TITLE, _HEADING, _TEXT, _SMALL = 15, 11, 10, 9
"""Sizes of letters in points."""

_TITLE_LINE, _LINE, _SMALL_LINE = 27, 18, 15
"""Heights of lines in pixels."""

_VERSION = _STEP + _LINE
"""From one version to the next, downwards, in pixels."""

_SWATCH = 12
"""Side of a square in a class's colour in pixels."""

_MOST_CLASSES = 40
"""That are named."""

_LETTER = 7
"""Width of a small letter in pixels, about."""


@dataclass(frozen=True)
class _Column:
    """Cells with coloured frames, from pixel `x` on, below a bar with a heading and a text."""

    x: int
    cells: int
    heading: str
    text: str
    colour: str

    @property
    def width(self) -> int:
        """Of all cells with their frames."""
        return self.cells * _STEP - _GAP

    @property
    def end(self) -> int:
        """First pixel to the right of the last frame."""
        return self.x + self.width


def pictures_sheet(source: Source, recipe: Recipe, *, name: str, reuse_factor: int, seed: int = 0) -> Figure:
    """Draw for a few samples the original, and for each of two versions the cached picture and those made from it.

    On them is drawn what belongs to them, if the source has targets: boxes, outlines and masks in a colour for each
    class, keypoints in one for each place.

    Raises:
        ConfigurationError: If there is no room for so many uses.
    """
    integer("reuse_factor", reuse_factor, 1, MOST_USES, "2 or 3 is usual, and more would not fit into a picture")
    take = partial(take_pictures, source, recipe, reuse_factor=reuse_factor, seed=seed)
    pictures = of_good_samples(source, _SAMPLES, take)
    columns = _columns(recipe, reuse_factor)
    texts = [textwrap.fill(column.text, column.width // _LETTER) for column in columns]
    meanings = {
        CACHED: f"cached: made once, used in {reuse_factor} epochs, then made anew",
        FRESH: "fresh: drawn anew in every epoch, seen by the network",
    }
    used = [colour for colour in meanings if colour in {column.colour for column in columns}]
    width = columns[-1].end - _MARGIN
    said = what_differs(name, recipe.stages, recipe.split, reuse_factor).splitlines()
    if pictures[0].versions[0].parts[0]:
        said.append("outlines: parts of mosaics, with colour and number of their samples, in the version of their line")
    legend = [(meanings[colour], colour) for colour in used]
    legend += [(line, INK) for text in said for line in textwrap.wrap(text, width // _LETTER)]
    kinds = source.annotations or {}
    legend += [(line, INK) for line in _on_pictures(kinds)]
    colours = {each.sample: PARTS[place] for place, each in enumerate(pictures)}
    classes = _classes(pictures, source, width)
    below = _MARGIN + 2 * _TITLE_LINE + len(legend) * _LINE
    bars = below + max((row + 1 for _, row, _, _ in classes), default=0) * _LINE + 2 * _GAP
    first = bars + _BAR + max(1 + text.count("\n") for text in texts) * _LINE + 2 * _GAP
    sample = len(pictures[0].versions) * _VERSION + 2 * _GAP
    end = first + len(pictures) * sample
    figure, axes = _paper(width + 2 * _MARGIN, end + _MARGIN)

    title = f"What is cached, and what the network sees:\n{name}, reuse factor {reuse_factor}"
    _write(axes, _MARGIN, _MARGIN, title, _TITLE)
    for place, (line, colour) in enumerate(legend):
        _write(axes, _MARGIN, _MARGIN + 2 * _TITLE_LINE + place * _LINE, line, _TEXT, colour)
    for x, row, called, colour in classes:
        _fill(axes, x, below + row * _LINE + 3, _SWATCH, _SWATCH, colour)
        _write(axes, x + _SWATCH + 5, below + row * _LINE, called, _TEXT)
    for column, text in zip(columns, texts, strict=True):
        _fill(axes, column.x, bars, column.width, _BAR, column.colour)
        _write(axes, column.x + column.width / 2, bars + 6, column.heading, _HEADING, "white", ha="center")
        _write(axes, column.x, bars + _BAR + _GAP, text)
    again = ", drawn anew" if _random(recipe.partial) else ", made anew"
    for number, each in enumerate(pictures):
        _fill(axes, _MARGIN, first + number * sample, width, 1, LINE)
        _draw_sample(axes, first + number * sample + _GAP, each, columns, again, kinds, colours)
    _fill(axes, _MARGIN, end, width, 1, LINE)
    return figure


def _draw_sample(
    axes: Axes,
    top: int,
    pictures: Pictures,
    columns: tuple[_Column, _Column, _Column],
    again: str,
    kinds: Mapping[str, Any],
    colours: Mapping[int, str],
) -> None:
    """Draw one sample's pictures, a version in each line; `again` is said of all versions but the first."""
    original, partial, final = columns

    def draw(x: int, y: int, picture: Image, targets: Targets, parts: Sequence[Part] = (), **style: Any) -> None:
        extent = _draw_picture(axes, x, y, picture, CELL, **style)
        draw_targets(axes, extent, targets, kinds, picture.shape[1])
        if parts:
            named = [(str(sample), colours[sample], outline) for sample, outline in parts]
            draw_parts(axes, extent, named, picture.shape[1])

    beside = top + (len(pictures.versions) - 1) * _VERSION // 2
    mosaic = bool(pictures.versions[0].parts[0])
    draw(original.x, beside, pictures.original, pictures.targets, name=f"sample {pictures.sample}" if mosaic else "")
    epoch = 0
    for place, version in enumerate(pictures.versions):
        y = top + place * _VERSION
        _draw_arrow(axes, original.end, beside, partial.x, y)
        _draw_arrow(axes, partial.end, y, final.x, y)
        name = f"version {place + 1}{again if place else ''}"
        height, width = version.cached.shape[:2]
        own = [(pictures.sample, np.array([[0, 0], [width, 0], [width, height], [0, height]]))] * mosaic
        draw(partial.x, y, version.cached, version.cached_targets, own, frame=_FRAME, colour=partial.colour, name=name)
        for use, (picture, targets) in enumerate(zip(version.served, version.served_targets, strict=True)):
            x = final.x + use * _STEP
            earlier = [each for each in range(use) if np.array_equal(version.served[each], picture)]
            name = f"epoch {epoch}" + (f", as in {epoch - use + earlier[0]}" if earlier else "")
            draw(x, y, picture, targets, version.parts[use], frame=_FRAME, colour=final.colour, name=name)
            epoch += 1


def _on_pictures(kinds: Mapping[str, Any]) -> list[str]:
    """Say what is drawn on pictures."""
    drawn = [name for name, kind in kinds.items() if isinstance(kind, Boxes | Keypoints | Masks | Polygons)]
    if not drawn:
        return []
    masks = any(isinstance(kind, Masks) for kind in kinds.values())
    black = "; black in masks: no image, or left out; 0 is not coloured" if masks else ""
    return [f"on the pictures: {', '.join(drawn)}{black}"]


def _classes(pictures: Sequence[Pictures], source: Source, width: int) -> list[tuple[int, int, str, str]]:
    """Return the classes in pictures: where each is written, in which line, its name and its colour."""
    placed, x, row = [], _MARGIN, 0
    for number in classes_of((each.targets for each in pictures), source.annotations or {})[:_MOST_CLASSES]:
        name = (source.categories or {}).get(number, f"class {number}")
        step = _SWATCH + 5 + len(name) * _LETTER + _GAP
        if x + step > _MARGIN + width:
            x, row = _MARGIN, row + 1
        placed.append((x, row, name, colour_of(number)))
        x += step
    return placed


def operations_sheet(source: Source, preset: str, *, size: int) -> Figure:
    """Draw what every operation of a preset of `TABLES` does to the first sample: a row, below each its magnitude.

    The picture operated on has sides of `size` pixels, or of arrays their own.
    """
    layer, note = TABLES[preset]
    rows = operate(_first_picture(source, size), layer)
    return _rows_sheet(rows, f"The operations of {preset}, over the ranges of their magnitudes", note)


def stages_sheet(source: Source, *, size: int) -> Figure:
    """Draw what every stage does to the first sample, several times where it is random; see `operations_sheet`."""
    note = "Each is drawn at random as training draws it, by itself; recipes are made of them, see dalirefurb.augment."
    return _rows_sheet(draws(_first_picture(source, size)), "The stages of recipes", note)


def _first_picture(source: Source, size: int) -> Image:
    return of_good_samples(source, 1, lambda samples: square_image(source, samples[0], size=size))


def _rows_sheet(rows: Sequence[Row], title: str, note: str) -> Figure:
    """Draw rows of pictures, with names at their left."""
    top, left = _MARGIN + _TITLE_LINE + _LINE + _GAP, _MARGIN + _NAMES
    step = _OPERATION_CELL + _GAP
    figure, axes = _paper(left + MAGNITUDES * step - _GAP + _MARGIN, top + len(rows) * (step + _LINE) + _MARGIN)
    _write(axes, _MARGIN, _MARGIN, title, _TITLE)
    _write(axes, _MARGIN, _MARGIN + _TITLE_LINE, note, _TEXT, GREY)
    for place, row in enumerate(rows):
        y = top + place * (step + _LINE)
        _write(axes, _MARGIN, y + step / 2 - _LINE - 2, row.name, _HEADING)
        for number, line in enumerate(textwrap.wrap(row.unit or "no magnitude", _NAMES // _LETTER - 1)):
            _write(axes, _MARGIN, y + step / 2 + number * _SMALL_LINE, line, colour=GREY)
        for number, (magnitude, picture, used) in enumerate(zip(row.magnitudes, row.pictures, row.used, strict=True)):
            frame, colour = (_FRAME, FRESH) if used else (1, LINE)
            x, above = left + number * step + 1 - frame, y + 1 - frame
            _draw_picture(axes, x, above, picture, _OPERATION_CELL, frame=frame, colour=colour, name=magnitude)
    return figure


def _columns(recipe: Recipe, reuse_factor: int) -> tuple[_Column, _Column, _Column]:
    """Lay out the columns.

    What is not cached is fresh, at reuse factor 1 the partial part, too. What comes out of the cache and does not
    change afterwards is not fresh.
    """
    cached = reuse_factor > 1
    fresh = not cached or _random(recipe.final)
    whole = "the file, decoded" if recipe.encoded else "the array's image"
    original = _Column(_MARGIN, 1, "original", whole, GREY)
    heading, colour = ("cached:", CACHED) if cached else ("not cached:", FRESH)
    names = "the file, as it was read" if recipe.caches_encoded else _names(recipe.partial)
    partial = _Column(original.end + _ARROW, 1, heading, names, colour)
    heading, colour = ("fresh at every use:", FRESH) if fresh else ("the same at every use:", CACHED)
    final = _Column(partial.end + _ARROW, reuse_factor, heading, _names(recipe.final), colour)
    return original, partial, final


def _random(stages: Sequence[Stage]) -> bool:
    return any(stage.random for stage in stages)


def _names(stages: Sequence[Stage]) -> str:
    return ", ".join(stage.name for stage in stages) or "nothing"


def _paper(width: int, height: int) -> tuple[Figure, Axes]:
    """Return a figure and its axes, whose units are pixels, counted from the upper left corner."""
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=BACKGROUND)
    figure.set_layout_engine("none")  # Whatever a user's settings say: places are in pixels.
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


def _write(
    axes: Axes, x: float, y: float, text: str, size: float = _SMALL, colour: str = INK, ha: str = "left"
) -> None:
    """Write text below a place."""
    axes.text(x, y, text, size=size, color=colour, ha=ha, va="top", parse_math=False)


def _fill(axes: Axes, x: int, y: int, width: int, height: int, colour: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, color=colour, linewidth=0))


def _draw_arrow(axes: Axes, x: int, y: int, to_x: int, to_y: int) -> None:
    """Draw an arrow between two frames, from right to left side, given their upper corners. It bends half-way."""
    middle, y, to_y = (x + to_x) // 2, y + CELL // 2 + _FRAME, to_y + CELL // 2 + _FRAME
    axes.plot([x + 3, middle, middle], [y, y, to_y], color=GREY)
    head = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.5, "mutation_scale": 14, "shrinkA": 0, "shrinkB": 2}
    axes.annotate("", (to_x, to_y), (middle, to_y), arrowprops=head)


def _draw_picture(
    axes: Axes, x: int, y: int, picture: Image, cell: int, *, frame: int = 1, colour: str = LINE, name: str = ""
) -> tuple[int, int, int, int]:
    """Put a picture in the middle of a square cell, with a frame around it and its name below; return where it is.

    Small ones are enlarged by a whole factor, so that pixels stay.
    """
    longest = max(picture.shape)
    factor = cell // longest if longest <= cell else cell / longest
    height, width = (max(1, round(factor * side)) for side in picture.shape[:2])
    left, top = x + frame + (cell - width) // 2, y + frame + (cell - height) // 2
    _fill(axes, left - frame, top - frame, width + 2 * frame, height + 2 * frame, colour)
    extent = (left, left + width, top + height, top)
    axes.imshow(picture, extent=extent, aspect="auto", interpolation="antialiased", zorder=2)
    below = y + cell + 2 * frame + 2
    _write(axes, x + frame + cell / 2, below, name, colour=INK if colour == LINE else colour, ha="center")
    return extent
