"""Images that say where each of their pixels is from, with what belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import FileList
from dalirefurb.targets import Annotated, Boxes, Masks, Objects, Values

COUNT = 12
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)

Box = tuple[int, int, int, int]


def coordinates(height: int, width: int) -> NDArray[np.uint8]:
    """An image whose red is the column and whose green is the row of each pixel; its blue is 255."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([columns, rows, np.full_like(rows, 255)], axis=-1).astype(np.uint8)


def sizes() -> list[tuple[int, int]]:
    """Heights and widths of the images, no two alike."""
    return [(90 + 7 * number, 200 - 9 * number) for number in range(COUNT)]


def masked(folder: Path) -> Annotated:
    """Files of coordinates, each with a mask of its columns as a file."""
    paths, masks = [], []
    for number, (height, width) in enumerate(sizes()):
        image = coordinates(height, width)
        paths.append(folder / f"{number}.png")
        masks.append(folder / f"mask_{number}.png")
        Image.fromarray(image).save(paths[-1])
        Image.fromarray(image[..., 0]).save(masks[-1])
    return Annotated(FileList(paths, [0] * COUNT), {"mask": Masks(masks)})


def boxes_of(number: int) -> list[Box]:
    """Boxes of an image, none to three, that do not overlap."""
    height, width = sizes()[number]
    third = width // 3
    return [(10 + third * each, 20 + number, third * (each + 1), height - 15 - number) for each in range(number % 4)]


def boxed(folder: Path, **options: Any) -> Annotated:
    """Files that are black but for a rectangle of a colour in each of their boxes."""
    paths = []
    for number, (height, width) in enumerate(sizes()):
        image = np.zeros((height, width, 3), np.uint8)
        for colour, (left, top, right, bottom) in zip(COLOURS, boxes_of(number), strict=False):
            image[top:bottom, left:right] = colour
        paths.append(folder / f"{number}.png")
        Image.fromarray(image).save(paths[-1])
    rows = [boxes_of(number) for number in range(COUNT)]
    targets = {
        "boxes": Boxes(rows, **options),
        "labels": Objects([list(range(len(row))) for row in rows]),
        "image_id": Values(100 + np.arange(COUNT)),
    }
    return Annotated(FileList(paths, [0] * COUNT), targets)
