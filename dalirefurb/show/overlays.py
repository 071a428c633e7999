"""Overlays: boxes, outlines, keypoints and masks on pictures, in one colour for each class; parts of mosaics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Polygon, Rectangle
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.transforms import Bbox, TransformedBbox
from numpy.typing import NDArray

from dalirefurb.targets import Boxes, InstanceMasks, Keypoints, Masks, Objects, Polygons

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLOURS = (
    *("#e6194b", "#3cb44b", "#ffe119", "#4363d8", "#f58231", "#911eb4", "#42d4f4", "#f032e6", "#bfef45", "#fabed4"),
    *("#469990", "#dcbeff", "#9a6324", "#fffac8", "#800000", "#aaffc3", "#808000", "#ffd8b1", "#000075", "#a9a9a9"),
)
"""Of classes, by their numbers, which begin anew where these end. Points of an object have those of their places."""

PARTS = ("#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Of the samples that parts of a mosaic are of, as many as a sheet has. The colour-blind can tell them apart."""

_CLASSES = "labels"
"""Name of what says the classes of objects."""

_MASK, _OUTSIDE = 0.5, 0.6
"""How much of a pixel is its class's colour, or black where no image is."""

_HALO: list[AbstractPathEffect] = [withStroke(linewidth=2.6, foreground="#00000080")]


def draw_targets(
    axes: Axes, extent: tuple[int, int, int, int], targets: Mapping[str, Any], kinds: Mapping[str, Any], width: int
) -> None:
    """Draw what belongs to a picture on it, cut off where it ends.

    Args:
        axes: Axes whose units are pixels.
        extent: Where the picture is: left, right, bottom and top.
        targets: What belongs to it, by name, in its own pixels; see `pictures.Targets`.
        kinds: Targets of its source by name.
        width: Width of the picture in its own pixels.
    """
    left, right, bottom, top = extent
    scale = (right - left) / width
    frame = Rectangle((left, top), right - left, bottom - top, transform=axes.transData)

    def lay(tint: NDArray[np.float64]) -> None:
        axes.imshow(tint, extent=extent, aspect="auto", interpolation="nearest", zorder=3)

    def cut(artist: Artist) -> None:
        artist.set(clip_path=frame, zorder=4)

    objects = _colours(targets, kinds)
    for name, kind in kinds.items():
        values = targets.get(name)
        if isinstance(kind, Masks):
            lay(_tinted(np.asarray(values), kind.fill))
        elif isinstance(kind, InstanceMasks):
            for mask, colour in zip(np.asarray(values), objects, strict=True):
                lay(np.where(mask[..., None] > 0, (*to_rgb(colour), _MASK), 0.0))
        elif isinstance(kind, Boxes):
            for (x, y, end, last), colour in zip(np.asarray(values) * scale, objects, strict=True):
                box = Rectangle((left + x, top + y), end - x, last - y, fill=False, edgecolor=colour, linewidth=1.3)
                box.set_path_effects(_HALO)
                cut(axes.add_patch(box))
        elif isinstance(kind, Polygons):
            for outlines, colour in zip(values or (), objects, strict=True):
                for outline in outlines:
                    vertices = np.asarray(outline) * scale + (left, top)
                    style = {"facecolor": (*to_rgb(colour), 0.35), "edgecolor": colour, "linewidth": 0.8}
                    cut(axes.add_patch(Polygon(vertices, closed=True, **style)))
        elif isinstance(kind, Keypoints):
            for points in np.asarray(values):
                seen = points[:, 2] > 0 if points.shape[1] > 2 else np.isfinite(points).all(axis=1)
                x, y = ((points[seen, :2] + kind.centre) * scale + (left, top)).T
                colours = [COLOURS[place % len(COLOURS)] for place in np.flatnonzero(seen)]
                cut(axes.scatter(x, y, s=14, c=colours, edgecolors="white", linewidths=0.6))


def draw_parts(
    axes: Axes, extent: tuple[int, int, int, int], outlines: Iterable[tuple[str, str, NDArray[Any]]], width: int
) -> None:
    """Draw where the parts of a picture are: an outline within each, and its name in the middle of what is seen of it.

    `outlines` are name and colour of each part, and its corners in the picture's own pixels, x and y, (k, 2); the other
    arguments are those of `draw_targets`.
    """
    left, right, bottom, top = extent
    within = TransformedBbox(Bbox([[left, bottom], [right, top]]), axes.transData)
    grid = np.mgrid[left + 0.5 : right, top + 0.5 : bottom].reshape(2, -1).T
    for name, colour, corners in outlines:
        places = corners * (right - left) / width + (left, top)
        drawn = axes.add_patch(Polygon(places, fill=False, edgecolor=colour, linewidth=4, zorder=5))
        drawn.set(clip_path=drawn, clip_box=within)  # So that what it shares with another part is seen of both.
        seen = grid[drawn.get_path().contains_points(grid)]
        if len(seen) and np.ptp(seen, axis=0).min() > 10:  # Else there is no room.
            x, y = seen.mean(axis=0)
            style: dict[str, Any] = {"ha": "center", "va": "center", "weight": "bold", "path_effects": _HALO}
            axes.text(x, y, name, size=9, color=colour, zorder=6, **style)


def classes_of(targets: Iterable[Mapping[str, Any]], kinds: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the classes that are in some pictures, those that are coloured, ascending."""
    found: set[int] = set()
    for each in targets:
        for name, kind in kinds.items():
            if isinstance(kind, Masks):
                found |= set(np.unique(each[name]).tolist()) - {0, kind.fill}
            elif _tells_classes(name, kind):
                found |= set(np.unique(each[name]).tolist())
    return sorted(found)


def colour_of(number: int) -> str:
    """Return the colour of a class."""
    return COLOURS[number % len(COLOURS)]


def _tells_classes(name: str, kind: Any) -> bool:
    if name != _CLASSES or not isinstance(kind, Objects):
        return False
    return kind.rows.values.dtype == np.int64 and kind.rows.values.ndim == 1


def _colours(targets: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """Return a colour for each object: its class's, or one for all where classes are not told."""
    if _tells_classes(_CLASSES, kinds.get(_CLASSES)):
        return [colour_of(int(number)) for number in targets[_CLASSES]]
    count = next((len(targets[name]) for name, kind in kinds.items() if hasattr(kind, "rows")), 0)
    return [COLOURS[0]] * count


def _tinted(mask: NDArray[Any], fill: int) -> NDArray[np.float64]:
    """Return what is laid over a picture, (height, width, 4): nothing where the number is 0."""
    table = np.array([(*to_rgb(colour), _MASK) for colour in COLOURS])
    tints: NDArray[np.float64] = table[mask % len(COLOURS)]
    tints[mask == fill] = (0, 0, 0, _OUTSIDE)
    tints[mask == 0] = 0
    return tints
