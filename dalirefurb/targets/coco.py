"""CocoDetection: images with the objects that a file in COCO's format has of them, or a Hugging Face dataset."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dalirefurb.checks import flag, path_of, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.source.contract import Numbers, digest_of, spread
from dalirefurb.source.files import FileList, PathLike
from dalirefurb.targets.annotated import Annotated
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Boxes, BoxFormat, Keypoints, Objects, Polygons, Target, Values

_LOOKED_AT = 16
"""Images that are looked for when a source is made."""


class CocoDetection(Annotated):
    """Images of a folder, with the objects that a file in COCO's format has of them.

    For each image a batch has a dictionary with "boxes" (k, 4) float32, xyxy in pixels of the served image; "labels"
    (k,) int64, the categories' ids in the file; "area" (k,) float32, as the file has it, else 0; "iscrowd" (k,) int64;
    "image_id"; and, if they are asked for, "keypoints" (k, points, 3), "polygons", and "masks" (k, H, W) uint8, as
    torchvision's models take them.

    Args:
        images: Folder of the images.
        annotations: The file, such as "annotations/instances_train2017.json".
        keypoints: Whether keypoints are served, whose whole numbers are pixels' centres; where an image is mirrored
            left and right ones swap, by their names: "left_eye" and "right_eye", "l_eye" and "r_eye", "LEye" and
            "REye", or "eye_l" and "eye_r".
        polygons: Whether outlines are served; those of crowds, which are run lengths, are left out.
        masks: Whether masks of objects are served, see `InstanceMasks`, also those of run lengths, as crowds have.
        crowds: Whether objects that are crowds are served; training usually leaves them out.
        empty: Whether images without an object are served.
        contiguous: Whether "labels" are numbered from 0 without gaps, in the order of the ids, as the trainers of
            Ultralytics and most others take them; `[*CocoDetection(...).categories]` without it are the ids.
        min_area: See `Boxes`.
        min_visible: See `Boxes`.

    Attributes:
        categories: Names of the categories by their ids, or by these numbers.

    Raises:
        ConfigurationError: If the file is not in COCO's format, or names no image.
    """

    def __init__(
        self,
        images: PathLike,
        annotations: PathLike,
        *,
        keypoints: bool = False,
        polygons: bool = False,
        masks: bool = False,
        crowds: bool = False,
        empty: bool = True,
        contiguous: bool = False,
        min_area: float = 1.0,
        min_visible: float = 0.0,
    ) -> None:
        flags = {"keypoints": keypoints, "polygons": polygons, "masks": masks}
        for name, given in (flags | {"crowds": crowds, "empty": empty, "contiguous": contiguous}).items():
            flag(name, given)
        root = path_of(images)
        require(root.is_dir(), "images", "a folder", images, "pass the folder of the images, such as 'train2017'")
        with _in_format(annotations):
            read = {"categories": [], **json.loads(path_of(annotations).read_bytes())}
            entries, rows = _of_images(read, crowds=crowds, empty=empty)
            objects = [each for row in rows for each in row]

            def column(name: str, usual: Any = None) -> list[list[Any]]:
                return [[each.get(name, usual) for each in row] for row in rows]

            ids = np.array([int(each["id"]) for each in entries])
            labels = Objects(column("category_id"))
            if labels.rows.values.dtype != np.int64:
                raise ConfigurationError(f"category_id must be a whole number, but some are {labels.rows.values.dtype}")
            targets: dict[str, Target] = {
                "boxes": Boxes(column("bbox"), "xywh", min_area=min_area, min_visible=min_visible),
                "labels": labels,
                "area": Objects([[float(area or 0) for area in row] for row in column("area")]),
                "iscrowd": Objects([[int(_is_crowd(each)) for each in row] for row in rows]),
                "image_id": Values(ids),
            }
            categories = sorted(read["categories"], key=lambda each: each["id"])
            names = {int(each["id"]): str(each.get("name", each["id"])) for each in categories}
            if contiguous:
                if not names:
                    raise ConfigurationError("contiguous=True needs the categories of the file, but it names none")
                numbers = {id_: number for number, id_ in enumerate(names)}
                targets["labels"] = Objects([[numbers[id_] for id_ in row] for row in column("category_id")])
                names = dict(enumerate(names.values()))
            if keypoints:
                targets["keypoints"] = _keypoints(column("keypoints", ()), categories)
            if polygons:
                outlines = column("segmentation", ())
                if any(isinstance(each.get("segmentation"), dict) and not _is_crowd(each) for each in objects):
                    raise ConfigurationError(
                        "polygons=True needs outlines, but an object that is no crowd has run lengths: convert them, "
                        "or leave polygons out"
                    )
                targets["polygons"] = Polygons([[[] if isinstance(o, dict) else o for o in row] for row in outlines])
            if masks:
                if (none := next((each for each in objects if not each.get("segmentation")), None)) is not None:
                    raise ConfigurationError(
                        f"masks=True needs outlines or run lengths of each object, but {none!s:.80} has none: leave "
                        f"such objects out of the file, or masks"
                    )
                targets["masks"] = InstanceMasks(column("segmentation"))
            declared = [(each.get("height") or 0, each.get("width") or 0) for each in entries]
            self._declared = np.array(declared, np.int64)
            paths = [root / each["file_name"] for each in entries]
            _look_at_some(paths, images)
        super().__init__(FileList(paths, ids), targets)
        self.categories = names

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "declared": digest_of(self._declared)}

    def refusal(self, indices: Numbers, heights: Numbers, widths: Numbers) -> tuple[int, str] | None:
        """Find an image of another size than the file says."""
        declared = self._declared[indices]
        wrong = (declared != np.stack([heights, widths], axis=1)).any(axis=1) & (declared > 0).all(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            return row, (
                f"its annotations are of an image of {declared[row][0]} x {declared[row][1]}, but it has "
                f"{heights[row]} x {widths[row]} (height x width), EXIF orientation applied"
            )
        return super().refusal(indices, heights, widths)

    def __repr__(self) -> str:
        return f"CocoDetection({len(self):,} images, {len(self.categories or ())} categories)"


def _look_at_some(paths: Sequence[Path], folder: PathLike) -> None:
    """Refuse a folder in which none of some images is."""
    some = [paths[row] for row in spread(len(paths), _LOOKED_AT)]
    if not any(map(os.path.exists, some)):  # That of `Path` raises for a name that is too long.
        raise ConfigurationError(
            f"images must be the folder of the images, but of {len(some)} that were looked at none is in {folder}, the "
            f"first is {some[0]}: pass the folder that their file names begin in"
        )


@contextmanager
def _in_format(path: PathLike) -> Iterator[None]:
    """Tell what is not in COCO's format."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"must be a file in COCO's format, with images, annotations and categories, but {path} is none "
            f"({type(error).__name__}: {error})",
            argument="annotations",
            remedy="pass such as 'annotations/instances_train2017.json'",
        ) from error


def _of_images(
    read: dict[str, Any], *, crowds: bool, empty: bool
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Return images by their ids, and the objects of each."""
    for part, needed in (("images", {"id", "file_name"}), ("annotations", {"image_id", "bbox", "category_id"})):
        for each in read[part]:
            if missing := needed - each.keys():
                raise ConfigurationError(
                    f"there must be {', '.join(sorted(missing))} in each of its {part}, as COCO's files of instances "
                    f"have, but {each!s:.80} has not"
                )
    for part in ("images", "categories"):
        if len({each["id"] for each in read[part]}) < len(read[part]):
            raise ConfigurationError(f"each of its {part} must have an id of its own, but some have the same")
    objects: dict[int, list[dict[str, Any]]] = {each["id"]: [] for each in read["images"]}
    for each in read["annotations"]:
        if each["image_id"] not in objects:
            raise ConfigurationError(f"all images of its annotations must be named, but {each['image_id']} is not")
        if crowds or not _is_crowd(each):
            objects[each["image_id"]].append(each)
    known = {each["id"] for each in read["categories"]}
    if known and (others := {each["category_id"] for each in read["annotations"]} - known):
        raise ConfigurationError(f"all categories of its annotations must be named, but {sorted(others)[0]} is not")
    entries = sorted((each for each in read["images"] if empty or objects[each["id"]]), key=lambda each: each["id"])
    if not entries:
        raise ConfigurationError("there must be images, but there is none that has an object: pass empty=True")
    return entries, [objects[each["id"]] for each in entries]


def _is_crowd(each: Mapping[str, Any]) -> bool:
    """Tell whether an object is a crowd: files say 1 or true, and of others 0, false, null or nothing."""
    return bool(int(each.get("iscrowd") or 0))


def _keypoints(values: list[list[Sequence[float]]], categories: Sequence[dict[str, Any]]) -> Keypoints:
    """Return objects' keypoints, of which the names say what swaps."""
    named = [each["keypoints"] for each in categories if each.get("keypoints")]
    if not named or any(each != named[0] for each in named):
        raise ConfigurationError(
            f"keypoints=True needs one list of keypoints' names for all categories that have some, got {len(named)} "
            f"lists: pass a file of keypoints, such as 'person_keypoints_train2017.json'"
        )
    names = named[0]
    places = {name.lower(): place for place, name in enumerate(names)}
    swapped = [
        next((places[other] for other in _mirrored(name.lower()) if places.get(other, place) != place), place)
        for place, name in enumerate(names)
    ]
    none = [0.0] * (3 * len(names))
    rows: list[Any] = [
        np.reshape([list(points) or none for points in row], (len(row), -1, 3)) if row else [] for row in values
    ]
    return Keypoints(rows, swapped=swapped, pixel_centres=True)


def _mirrored(name: str) -> list[str]:
    """Return what a keypoint may be called on the other side: left_eye is right_eye, leye is reye, eye_l is eye_r."""
    words, letters = {"left": "right", "right": "left"}, {"l": "r", "r": "l"}
    first, last = name[:1], name[-1:]
    worded = re.sub("left|right", lambda found: words[found[0]], name)
    return [worded, letters.get(first, first) + name[1:], name[:-1] + letters.get(last, last)]


def parts_of(annotations: PathLike) -> dict[str, bool]:
    """Return which of its parts a file has that `CocoDetection` serves when asked: arguments of it, to look at all."""
    with _in_format(annotations):
        read = json.loads(path_of(annotations).read_bytes())
        keypoints = any(each.get("keypoints") for each in read.get("categories", ()))
        told = [each.get("segmentation") for each in read["annotations"] if not _is_crowd(each)]
    return {"keypoints": keypoints, "polygons": any(told) and not any(isinstance(each, dict) for each in told)}


def objects_of(
    dataset: Any,
    format: BoxFormat,
    *,
    objects: str = "objects",
    boxes: str = "bbox",
    labels: str = "category",
    others: Sequence[str] = (),
    min_area: float = 1.0,
    min_visible: float = 0.0,
) -> dict[str, Target]:
    """Return the boxes and classes in a column of objects of a `datasets.Dataset`, as the targets of `Annotated`.

        Annotated(HuggingFaceImages(dataset, label="image_id"), objects_of(dataset, "xywh", others=["area"]))

    Args:
        dataset: Dataset of one split, each row of which has lists of what its objects are, or a list of objects.
        format: What the four numbers of a box are, see `Boxes`: datasets differ, and nothing in them tells it.
        objects: Name of the column.
        boxes: Name of the boxes in it, in pixels of the image, upright.
        labels: Name of the classes in it, which are numbers.
        others: Names of further numbers of each object in it, which become targets under these names.
        min_area: See `Boxes`.
        min_visible: See `Boxes`.

    Raises:
        ConfigurationError: If there is no such column, or it is of another kind.
    """
    there = list(getattr(dataset, "features", None) or ())
    require(objects in there, "objects", f"a column of the dataset, one of {', '.join(there)}", objects, "name it")
    others = [others] if isinstance(others, str) else [*others]
    if taken := {"boxes", "labels"} & {*others}:
        raise ConfigurationError(f"others must have names beside boxes and labels, got {', '.join(sorted(taken))}")
    rows = dataset.with_format(None).select_columns([objects])[:][objects]

    def column(name: str) -> list[list[Any]]:
        try:
            return [row[name] if isinstance(row, Mapping) else [each[name] for each in row] for row in rows]
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"column {objects!r} must have {name!r} of each object, but a row has none ({type(error).__name__}: "
                f"{error}): name what it has by boxes=, labels= and others="
            ) from error

    made: dict[str, Target] = {
        "boxes": Boxes(column(boxes), format, min_area=min_area, min_visible=min_visible),
        "labels": Objects(column(labels)),
    }
    return made | {name: Objects(column(name)) for name in others}
