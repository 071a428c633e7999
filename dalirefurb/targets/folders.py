"""Folders of images with targets in another one: MaskFolder, a mask for each, and YoloFolder, as Ultralytics has it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import flag, path_of, plain, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.source.files import EXTENSIONS, FileList, PathLike, folders_below
from dalirefurb.system.resources import Budget
from dalirefurb.targets.annotated import Annotated
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Boxes, Keypoints, Objects, Polygons, Target
from dalirefurb.targets.mask_images import Masks

if TYPE_CHECKING:
    from typing_extensions import Self


class MaskFolder(Annotated):
    """Image files in a folder, at any depth, and their masks at the same place in another one.

        images/city/0001.jpg    masks/city/0001.png        MaskFolder("images", "masks")
        images/0001.jpg         masks/0001_mask.png        MaskFolder("images", "masks", suffix="_mask")
        images/a_photo.png      masks/a_labels.png         MaskFolder(..., image_suffix="_photo", suffix="_labels")

    An image without a mask is a bad sample, which is told, or replaced, when it is read, see `BadSamplePolicy`. A batch
    is `images, masks`.

    Args:
        images: Folder of the images; hidden files and folders are left out.
        masks: Folder of the masks.
        suffix: What a mask's name ends in, before its file's ending, beside the image's name.
        image_suffix: What an image's name ends in that its mask's has not.
        fill: See `Masks`.
        dtype: See `Masks`.
        keep: See `Masks`.

    Raises:
        ConfigurationError: If there are no images, or no image has a mask.
    """

    def __init__(
        self,
        images: PathLike,
        masks: PathLike,
        *,
        suffix: str = "",
        image_suffix: str = "",
        fill: int = 255,
        dtype: str = "int64",
        keep: Budget = "10%",
    ) -> None:
        paths, found = image_files(images, "images"), image_files(masks, "masks")
        by_place: dict[str, str] = {}
        for place in found:
            if (other := by_place.setdefault(_stem(place), place)) != place:
                raise ConfigurationError(
                    f"must have a name of its own each, but there are {other} and {place}: remove one",
                    argument="masks",
                )
        root, mask_root = path_of(images), path_of(masks)
        paths = [place for place in paths if _stem(place).endswith(image_suffix)]
        wanted = [_stem(place).removesuffix(image_suffix) + suffix for place in paths]
        if not any(place in by_place for place in wanted):
            first = f"of {paths[0]} there is no {wanted[0]}.png" if paths else f"no image ends in {image_suffix}"
            raise ConfigurationError(
                f"must lie in {mask_root} as images do in {root}, but {first}: pass suffix= if their names end "
                f"in more, or a list of paths to Masks",
                argument="masks",
            )
        source = FileList([root / place for place in paths], np.zeros(len(paths), np.int64))
        files = [mask_root / by_place.get(place, f"{place}.png") for place in wanted]
        super().__init__(source, {"mask": Masks(files, fill=fill, dtype=dtype, keep=keep)})


def image_files(folder: PathLike, name: str) -> list[str]:
    """List a folder's image files, at any depth, by their places in it, sorted; what is hidden is left out."""
    remedy = "pass the path of one folder, such as 'photos/images'"
    require(isinstance(folder, (str, os.PathLike)) and path_of(folder).is_dir(), name, "a folder", folder, remedy)
    try:
        below = folders_below(str(path_of(folder)), ".")
        images = sorted(str(Path(inner) / file) for inner, files, _ in below for file in files)
    except OSError as error:
        raise ConfigurationError(
            f"must be a folder of readable folders, but {error.filename} is none: {error.strerror}", argument=name
        ) from error
    require(bool(images), name, "a folder of image files", folder, f"images end in {', '.join(sorted(EXTENSIONS))}")
    return images


def _stem(place: str) -> str:
    """Return a file's place without its ending."""
    return str(Path(place).with_suffix(""))


_BOX = 5
"""Numbers of an object with a box: its class, centre, width and height."""

_NUMBERS = (2, 3)
"""Of a point: x and y, and its visibility."""

_LAST_CLASS = int(np.iinfo(np.int32).max)
"""Number of a class, at most."""

_BEYOND = 0.01
"""Of an image's side, that a number may be outside, as roundings are."""


class YoloFolder(Annotated):
    """Images of a folder, at any depth, with text files of objects at the same place in another one.

        images/train/0001.jpg    labels/train/0001.txt        YoloFolder("images/train", "labels/train")

    A line is an object: its class, and x and y of its centre, width and height, and of poses its points; or its class,
    and x and y of each vertex of its outline, whose box is around it. All are shares of the image's sides. An image
    without a file has no object. For each image a batch has "boxes" (k, 4) float32, xyxy in pixels of the served
    image, "labels" (k,) int64, and, if they are asked for, "polygons", "masks" and "keypoints".

    Args:
        images: Folder of the images, what is hidden is left out; or the path of each image.
        labels: Folder of the text files; or the path of one for each image.
        names: Names of the classes, a list or a mapping from their numbers, which become `classes`.
        polygons: Whether outlines are served; an object with a box has none.
        masks: Whether masks of objects are served, see `InstanceMasks`, for which each must have an outline.
        keypoints: Of poses, how many points an object has, and how many numbers each, as `kpt_shape` of the data set's
            file says, such as (17, 3): x, y and visibility.
        swapped: See `Keypoints`; it is `flip_idx` of that file.
        min_area: See `Boxes`.
        min_visible: See `Boxes`.

    Raises:
        ConfigurationError: If there are no images, or a file is of another format.
    """

    def __init__(
        self,
        images: PathLike | Sequence[PathLike],
        labels: PathLike | Sequence[PathLike],
        *,
        names: Sequence[str] | Mapping[int, str] | None = None,
        polygons: bool = False,
        masks: bool = False,
        keypoints: Sequence[int] | None = None,
        swapped: Sequence[int] | None = None,
        min_area: float = 1.0,
        min_visible: float = 0.0,
    ) -> None:
        polygons, masks = flag("polygons", polygons), flag("masks", masks)
        numbered = isinstance(names, Mapping) and all(isinstance(each, int) for each in names)
        listed = isinstance(names, Iterable) and not isinstance(names, (str, set, frozenset, Mapping))
        wanted = "a list of the classes' names, or a mapping from their numbers"
        require(names is None or numbered or listed, "names", wanted, names, "pass such as ['cat', 'dog']")
        if isinstance(names, Mapping):
            names = [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]
        classes = None if names is None else [*map(str, names)]
        posed, keypoints = keypoints is not None, plain(keypoints)
        if keypoints is None:
            remedy = "say how many points there are, such as keypoints=(17, 3)"
            require(swapped is None, "swapped", "left out where keypoints is", swapped, remedy)
        else:
            pair = isinstance(keypoints, tuple) and len(keypoints) == len(_NUMBERS) and keypoints[1] in _NUMBERS
            pair = pair and isinstance(keypoints[0], int) and keypoints[0] > 0
            require(pair, "keypoints", "a number of points, and 2 or 3 numbers each", keypoints, "(17, 3) is COCO's")
        paths, files = _beside(images, labels)
        objects = [_objects(file, classes, keypoints) for file in files]
        boxes = Boxes(
            [[_box(each, posed) for each in image] for image in objects],
            "cxcywh",
            normalized=True,
            min_area=min_area,
            min_visible=min_visible,
        )
        targets: dict[str, Target] = {
            "boxes": boxes,
            "labels": Objects([[int(each[0]) for each in image] for image in objects]),
        }
        outlines = [[[] if posed or len(each) == _BOX else [each[1:]] for each in image] for image in objects]
        if polygons:
            targets["polygons"] = Polygons(outlines, normalized=True)
        if masks:
            if without := [file for file, image in zip(files, outlines, strict=True) if not all(image)]:
                raise ConfigurationError(
                    f"need an outline of each object, but one in {without[0]} has a box alone: leave masks out, or "
                    f"give it an outline",
                    argument="masks",
                )
            targets["masks"] = InstanceMasks(outlines, normalized=True)
        if keypoints is not None:
            points = [np.reshape([each[_BOX:] for each in image], (-1, *keypoints)) for image in objects]
            targets["keypoints"] = Keypoints(points, swapped=swapped, normalized=True)
        super().__init__(FileList(paths, np.zeros(len(paths), np.int64)), targets)
        self.classes, self.categories = classes, None if classes is None else dict(enumerate(classes))

    @classmethod
    def from_yaml(cls, path: PathLike, part: str = "train", **options: Any) -> Self:
        """Read a data set's file, such as "coco8.yaml": where its images are, names of classes, and points of poses.

        Folders are looked for below `path` of the file, and that beside the file. Labels are where images are, with
        "labels" in place of the last "images" of their path. Nothing is downloaded.

        Args:
            path: The file, for which PyYAML must be installed.
            part: Which images: "train", "val" or "test". It may be a folder, a list of folders, or a text file with
                the path of an image in each line.
            options: See above, without `images`, `labels`, `names`, `keypoints` and `swapped`, which the file says.

        Raises:
            ConfigurationError: If PyYAML is missing, or the file is of another format, or there are no such images.
        """
        read = _yaml(path)
        entries = read.get(part)
        entries = entries if isinstance(entries, list) else [entries]
        told = bool(entries) and all(isinstance(entry, str) for entry in entries) and "names" in read
        require(told, "path", f"a data set's file with 'names' and {part!r}", path, "pass such as 'coco8.yaml'")
        root = path_of(path).parent / (read.get("path") or "")
        images: list[PathLike] = []
        for entry in entries:
            found = next(filter(os.path.exists, (root / entry, root / entry.removeprefix("../"))), None)
            if found is None:
                raise ConfigurationError(f"{part!r} of {path} must be there, but there is no {root / entry}")
            if found.is_dir():
                images += [found / place for place in image_files(found, part)]
            else:
                images += [found.parent / line.strip() for line in found.read_text().splitlines() if line.strip()]
        posed = read.get("kpt_shape")
        own = {"names": read["names"], "keypoints": posed, "swapped": read.get("flip_idx") if posed else None}
        return cls(images, [_labels_of(Path(image)) for image in images], **own, **options)


def _yaml(path: PathLike) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigurationError(
            f"to read {path} PyYAML must be installed: pip install pyyaml, or pass images, labels and names"
        ) from error
    try:
        read = yaml.safe_load(path_of(path).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} must be a data set's file, but cannot be read: {error}") from error
    return read if isinstance(read, dict) else {}


def _labels_of(image: Path) -> Path:
    """Return where the text file of an image is."""
    return Path(re.sub("^(.*/)?images/", r"\1labels/", image.as_posix())).with_suffix(".txt")


def _beside(images: Any, labels: Any) -> tuple[list[Path], list[Path]]:
    """Return paths of images, and of the text files of their objects."""
    if isinstance(images, (str, os.PathLike)):
        folder = isinstance(labels, (str, os.PathLike)) and path_of(labels).is_dir()
        require(folder, "labels", "a folder", labels, "pass such as 'coco8/labels/train'")
        places = [Path(place) for place in image_files(images, "images")]
        paths = [path_of(images) / place for place in places]
        files = [path_of(labels) / place.with_suffix(".txt") for place in places]
    else:
        paths = [Path(each) for each in images]
        files = [] if isinstance(labels, (str, os.PathLike)) else [Path(each) for each in labels]
        wanted, given = f"a path for each of {len(paths)} images", len(files) if files else labels
        require(len(paths) == len(files) > 0, "labels", wanted, given, "give an image one each")
    if not any(map(os.path.exists, files)):
        raise ConfigurationError(
            f"must lie in their folder as images do in theirs, but of {paths[0]} there is no {files[0]}",
            argument="labels",
        )
    return paths, files


def _objects(path: Path, names: Sequence[str] | None, keypoints: Sequence[int] | None) -> list[NDArray[np.float64]]:
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
        whole = len(values) > 0 and 0 <= values[0] <= _LAST_CLASS and values[0] == int(values[0])
        if keypoints is None:
            fits, places = len(values) == _BOX or (len(values) > _BOX + 1 and len(values) % 2 == 1), values[1:]
            wanted = "the vertices of an outline"
        else:
            fits = len(values) == _BOX + math.prod(keypoints)
            points = values[_BOX:].reshape(-1, keypoints[1]) if fits else np.empty((0, 2))
            places = np.append(values[1:_BOX], points[:, :2])
            wanted = f"{keypoints[0]} points of {keypoints[1]} numbers"
        shares = fits and -_BEYOND <= places.min() <= places.max() <= 1 + _BEYOND
        if not (shares and whole and named):
            among = "" if names is None else f" below {len(names)}"
            raise ConfigurationError(
                f"{path}, line {number}: it must be a class{among}, and centre, width and height, "
                f"{'or' if keypoints is None else 'and'} {wanted}, as shares of the image's sides, got {line!r:.80}"
            )
        found.append(values)
    return found


def _box(values: NDArray[np.float64], posed: bool) -> Any:
    """Return centre, width and height of an object."""
    if posed or len(values) == _BOX:
        return values[1:_BOX]
    points = values[1:].reshape(-1, 2)
    low, high = points.min(axis=0), points.max(axis=0)
    return np.concatenate([(low + high) / 2, high - low])
