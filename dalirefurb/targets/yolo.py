"""YoloFolder: images in one folder, and a text file of objects for each of them in another, as Ultralytics has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError
from dalirefurb.source.files import FileList, PathLike
from dalirefurb.targets.annotated import Annotated
from dalirefurb.targets.kinds import Boxes, Objects, Polygons, Target
from dalirefurb.targets.mask_folder import image_files

_BOX = 5
"""Numbers of an object with a box: its class, centre, width and height."""


_BEYOND = 0.01
"""Of an image's side, that a number may be outside, as roundings are."""


class YoloFolder(Annotated):
    """Images of a folder, at any depth, with text files of objects at the same place in another one.

        images/train/0001.jpg    labels/train/0001.txt        YoloFolder("images/train", "labels/train")

    A line is an object: its class, and x and y of its centre, width and height; or its class, and x and y of each
    vertex of its outline, whose box is around it. All are shares of the image's sides. Files of poses are not read. An
    image without a file has no object. For each image a batch has "boxes" (k, 4) float32, xyxy in pixels of the served
    image, "labels" (k,) int64, and, if they are asked for, "polygons".

    Args:
        images: Folder of the images; hidden files are left out.
        labels: Folder of the text files.
        names: Names of the classes, a list or a mapping from their numbers, which become `classes`.
        polygons: Whether outlines are served; an object with a box has none.
        min_area: See `Boxes`.
        min_visible: See `Boxes`.

    Raises:
        ConfigurationError: If there are no images, or a file is of another format.
    """

    def __init__(
        self,
        images: PathLike,
        labels: PathLike,
        *,
        names: Sequence[str] | Mapping[int, str] | None = None,
        polygons: bool = False,
        min_area: float = 1.0,
        min_visible: float = 0.0,
    ) -> None:
        if isinstance(names, Mapping):
            names = [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]
        remedy = "pass such as 'coco8/labels/train'"
        require(Path(labels).is_dir(), "labels", "a folder", labels, remedy)
        places = image_files(images, "images")
        files = [Path(labels) / Path(place).with_suffix(".txt") for place in places]
        if not any(file.exists() for file in files):
            raise ConfigurationError(
                f"labels must lie in {labels} as images do in {images}, but of {places[0]} there is no {files[0]}",
                argument="labels",
            )
        objects = [_objects(file, names) for file in files]
        boxes = Boxes(
            [[_box(each) for each in image] for image in objects],
            "cxcywh",
            normalized=True,
            min_area=min_area,
            min_visible=min_visible,
        )
        targets: dict[str, Target] = {
            "boxes": boxes,
            "labels": Objects([[int(each[0]) for each in image] for image in objects]),
        }
        if polygons:
            outlines = [[[] if len(each) == _BOX else [each[1:]] for each in image] for image in objects]
            targets["polygons"] = Polygons(outlines, normalized=True)
        paths = [Path(images) / place for place in places]
        super().__init__(FileList(paths, np.zeros(len(paths), np.int64)), targets)
        self.classes = None if names is None else [*names]
        self.categories = None if names is None else dict(enumerate(names))


def _objects(path: Path, names: Sequence[str] | None) -> list[NDArray[np.float64]]:
    """Read the lines of a file, as numbers; none where there is no file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} must be a text file of objects, but cannot be read: {error}") from error
    found: list[NDArray[np.float64]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = np.array([float(word) for word in line.split()])
        except ValueError:
            values = np.empty(0)
        named = names is None or (len(values) > 0 and values[0] < len(names))
        whole = len(values) > 0 and values[0] >= 0 and values[0] == int(values[0])
        fits = len(values) == _BOX or (len(values) > _BOX + 1 and len(values) % 2 == 1)
        shares = fits and -_BEYOND <= values[1:].min() <= values[1:].max() <= 1 + _BEYOND
        if not (shares and whole and named):
            among = "" if names is None else f" below {len(names)}"
            raise ConfigurationError(
                f"{path}, line {number}: it must be a class{among}, and centre, width and height, or the vertices of "
                f"an outline, as shares of the image's sides, got {line!r:.80}"
            )
        found.append(values)
    return found


def _box(values: NDArray[np.float64]) -> Any:
    """Return centre, width and height of an object."""
    if len(values) == _BOX:
        return values[1:]
    points = values[1:].reshape(-1, 2)
    low, high = points.min(axis=0), points.max(axis=0)
    return np.concatenate([(low + high) / 2, high - low])
