"""Image files: in a folder per class, or from a list, which can be a CSV file."""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.checks import at_home, path_of, require
from dalirefurb.errors import ConfigurationError, SampleError, warn
from dalirefurb.source.contract import Source, fingerprint_of_names, spread
from dalirefurb.source.labels import number_labels, warn_of_many
from dalirefurb.source.levels import ValueRange, checked_range
from dalirefurb.source.storage import is_outage, stamp_files, stamps_of

_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".avif", ".tif", ".tiff")
EXTENSIONS = (*_ENDINGS, ".ppm", ".pgm", ".pbm", ".pnm", ".jp2")
"""Endings of image files, in lower case."""

PathLike = str | os.PathLike[str]


class _Files(Source):
    """Files, each of which is an encoded image."""

    encoded = True
    _paths: list[str]

    def _path(self, index: int) -> str:
        return self._paths[index]

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [read_file(self._path(index), index) for index in self._checked(indices)]

    def name(self, index: int) -> str:
        return self._path(index)

    def content(self) -> dict[str, Any]:
        """Stamp all files: size, times of change and inode."""
        return stamp_files(map(self._path, range(len(self))))

    def stamps(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        return stamps_of(map(self._path, indices.tolist()))


class FileList(_Files):
    """Image files anywhere, with labels of any numeric kind.

    Args:
        paths: Paths of the image files, one per sample. Files are opened when they are read, not before.
        labels: Labels of the samples, numeric, shape (num_samples, *label_shape), or names, which are numbered in
            sorted order and become `classes`.
        value_range: Numbers of black and white in images deeper than 8 bits, see `Source`.

    Raises:
        ConfigurationError: There are no paths, or not one label for each.
    """

    def __init__(self, paths: Iterable[PathLike], labels: ArrayLike, *, value_range: ValueRange | None = None) -> None:
        self.value_range = checked_range(value_range)
        if isinstance(paths, (str, bytes, os.PathLike)):
            raise ConfigurationError(
                f"paths must be a sequence of paths, but is {paths!r}: pass [path]; sorted(glob.glob(pattern)) lists "
                f"files, FileList.from_csv(path) and ImageFolder(path) list them with their labels"
            )
        try:
            self._paths = [os.fsdecode(path) for path in paths]
        except TypeError as error:
            raise ConfigurationError(
                f"paths must be a sequence of paths, but are not ({error}): pass such as ['a.jpg', 'b.jpg']"
            ) from error
        self._take_labels(labels, len(self._paths), "paths")

    @classmethod
    def from_csv(
        cls,
        path: PathLike,
        *,
        image: str = "path",
        label: str = "label",
        root: PathLike | None = None,
        value_range: ValueRange | None = None,
    ) -> FileList:
        """List the files that a CSV file names, in its order.

        Args:
            path: Path of a CSV file in UTF-8 whose first row names its columns.
            image: Name of the column of paths.
            label: Name of the column of labels: numbers, or names, which are numbered in sorted order and become
                `classes`.
            root: Folder where relative paths begin; the CSV file's folder unless given.
            value_range: As for the class.

        Raises:
            ConfigurationError: The file is no such CSV file, a row has no path or no label, or of 16 paths, spread over
                the list, none is that of a file. A warning tells of some that are none.
        """
        for name, given in (("path", path), ("root", path if root is None else root)):
            require(isinstance(given, (str, os.PathLike)), name, "a path", given, "pass such as 'photos/train.csv'")
        path = at_home(path)
        try:
            with Path(path).open(encoding="utf-8-sig", newline="") as file:
                (images, labels), lines = _columns(file, path, (image, label))
        except OSError as error:
            raise ConfigurationError(
                f"path must be a readable CSV file, but {path} is none: {error.strerror}"
            ) from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigurationError(
                f"path must be a CSV file in UTF-8, but {path} is none ({error}): save it as such"
            ) from error
        if "" in images:
            row = images.index("")
            raise ConfigurationError(
                f"every row must have a path, but {path}, line {lines[row]} has none in column {image!r}: "
                "write one or remove the row"
            )
        numbers, classes = number_labels(labels, lambda row: f"{path}, line {lines[row]}")
        folder = at_home(Path(path).parent if root is None else root)
        files = cls([os.path.join(folder, name) for name in images], numbers, value_range=value_range)  # noqa: PTH118
        files.classes = classes
        warn_of_many(classes or (), len(files))
        files._look_at_some(images, folder, path)
        return files

    def _look_at_some(self, names: list[str], folder: str, csv_path: str) -> None:
        """Look whether the files of a CSV file are there, at 16 of them, spread over the list."""
        rows, there = spread(len(self), 16), os.path.exists  # That of `Path` raises for a name that is too long.
        if absent := [row for row in rows if not there(self._paths[row])]:
            places = (Path(csv_path).parent, Path(), Path(folder).parent)
            found = next((str(place) for place in places if there(place / names[absent[0]])), "where they begin")
            told = (
                f"paths in {csv_path} must lead to files, but of {len(rows)} that were looked at {len(absent)} do not, "
                f"the first is {self._paths[absent[0]]}: pass root={found!r}"
            )
            if len(absent) == len(rows):
                raise ConfigurationError(told)
            warn(told)

    def fingerprint(self) -> dict[str, Any]:
        """Hash the paths below their common folder, and the labels. Contents are not read."""
        # The first and the last path in order share what all share.
        prefix = os.path.commonprefix([min(self._paths), max(self._paths)])  # noqa: RUF071
        start = prefix.rfind(os.sep) + 1
        return fingerprint_of_names("FileList", (path[start:] for path in self._paths), self.labels)


class ImageFolder(_Files):
    """Image files in one folder per class, in torchvision's layout, order and numbering.

    A first-level folder is a class, numbered in sorted order, empty ones included; images lie in it at any
    depth. Names that begin with a dot are ignored. Symbolic links are followed. A warning tells of classes without an
    image, and of files that are left out, but for those that nobody would take for images.

    Args:
        root: The folder that holds the class folders.
        value_range: Numbers of black and white in images deeper than 8 bits, see `Source`.

    Attributes:
        skipped: Number of files that are left out: hidden ones in class folders that are not hidden, those that are not
            named as an image, and those that lie in no class folder.

    Raises:
        ConfigurationError: `root` is no folder, or holds no class folder or no image.
    """

    def __init__(self, root: PathLike, *, value_range: ValueRange | None = None) -> None:
        self.value_range = checked_range(value_range)
        remedy = "pass such as 'photos/train'; Concat([ImageFolder(one), ImageFolder(other)]) puts two together"
        is_path, wanted = isinstance(root, (str, os.PathLike)), "the path of one folder of class folders"
        require(is_path, "root", wanted, root, f"{remedy}, and FileList(paths, labels) takes files")
        self._root = str(path_of(root))
        try:
            left_out = self._scan()
        except OSError as error:
            raise ConfigurationError(
                f"must be a folder of readable folders, but {error.filename} is none: {error.strerror}",
                argument="root",
                remedy="pass the path of one folder, without a pattern",
            ) from error
        if left_out:
            warn(f"{self._root.rstrip(os.sep)}{os.sep}: {left_out}")

    def _scan(self) -> str:
        """List the classes and the paths of their images relative to the root, and say what is left out."""
        self.classes, direct, others = _list_folder(self._root)
        layout = f"{self._root} must hold one folder per class, images in them (root/class/image.jpg)"
        if not self.classes:
            found = f"{len(direct)} images directly in it" if direct else "none"
            remedy, in_code = "move them into class folders", "use FileList"
            raise ConfigurationError(f"{layout}, but holds {found}", remedy=remedy, in_code=in_code)
        self._paths = []
        counts = []
        for name in self.classes:
            before = len(self._paths)
            for folder, images, skipped in sorted(folders_below(self._root, name)):
                self._paths += [f"{folder}{os.sep}{image}" for image in images]
                others += [f"{folder}{os.sep}{other}" for other in skipped]
            counts.append(len(self._paths) - before)
        self.skipped = len(others) + len(direct)
        if not self._paths:
            raise ConfigurationError(
                f"{layout}, but its {len(self.classes)} folders hold no image among {self.skipped} files: "
                f"check the path; images end in {', '.join(sorted(EXTENSIONS))}"
            )
        self.labels, self._count = np.repeat(np.arange(len(counts), dtype=np.int64), counts), len(self._paths)
        full = [name for name, count in zip(self.classes, counts, strict=True) if count]
        warn_of_many(full, len(self))
        unnamed = [other for other in others if os.sep in other and not is_hidden(other)]
        hidden = [other for other in others if is_hidden_image(other, EXTENSIONS)]
        empty = [name for name, count in zip(self.classes, counts, strict=True) if not count]
        return _left_out(direct, unnamed, hidden, empty)

    def _path(self, index: int) -> str:
        return f"{self._root}{os.sep}{self._paths[index]}"

    def fingerprint(self) -> dict[str, Any]:
        """Hash the paths relative to the root, and the labels. Contents are not read."""
        return fingerprint_of_names("ImageFolder", self._paths, self.labels)


def read_file(path: str, index: int) -> NDArray[np.uint8]:
    """Read a whole file in four system calls, shape (length,)."""
    try:
        # A pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # To read a folder raises.
                raise SampleError(index, path, "is no regular file")
            size = status.st_size
            content = os.read(descriptor, size)
            # One call returns everything from a local file below 2 GiB.
            while len(content) < size and (more := os.read(descriptor, size - len(content))):
                content += more
        finally:
            os.close(descriptor)
    except OSError as error:
        if is_outage(error):
            raise
        raise SampleError(index, path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # Of a path that is none.
        raise SampleError(index, path, f"cannot be read: {error}") from error
    if len(content) < size:
        raise OSError(f"{len(content)} of {size} bytes came of {path}")
    if not content:
        raise SampleError(index, path, "is empty")
    return np.frombuffer(content, np.uint8)


def _columns(file: TextIO, path: str, names: tuple[str, ...]) -> tuple[list[list[str]], list[int]]:
    """Return stripped texts of the columns that the first row names so, and in which line of the file each row ends."""
    rows = csv.reader(file, strict=True)
    header = [name.strip() for name in next(rows, [])]
    for name in names:
        if header.count(name) != 1:
            count = "twice or more" if name in header else "not there"
            raise ConfigurationError(
                f"{path} must have one column {name!r}, but it is {count} in its first row, {header}: "
                "pass its name as image= or label=; commas part columns, and the first row has to name them"
            )
    places = [header.index(name) for name in names]
    columns: list[list[str]] = [[] for _ in names]
    lines = []
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise ConfigurationError(
                f"{path}, line {rows.line_num}: a row must have {len(header)} fields as the first one has, but has "
                f"{len(row)}: put fields with commas in double quotes"
            )
        for column, place in zip(columns, places, strict=True):
            column.append(row[place].strip())
        lines.append(rows.line_num)
    return columns, lines


def _list_folder(path: str) -> tuple[list[str], list[str], list[str]]:
    """Return the names of a folder's folders, of its images, and of its other files, each sorted."""
    folders, images, others = [], [], []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_dir():
                if not name.startswith("."):
                    folders.append(name)
            elif name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                images.append(name)
            else:
                others.append(name)
    return sorted(folders), sorted(images), sorted(others)


def folders_below(root: str, folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder at or below `root/folder` with its images and its other files."""
    folders, images, others = _list_folder(f"{root}{os.sep}{folder}")
    yield folder, images, others
    for name in folders:
        yield from folders_below(root, f"{folder}{os.sep}{name}")


def is_hidden(path: str) -> bool:
    """Tell whether a file's name begins with a dot."""
    return path.rpartition("/")[2].startswith(".")


def is_hidden_image(path: str, endings: tuple[str, ...]) -> bool:
    """Tell whether a hidden file is named as an image; macOS names `._a.jpg` what is none."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and not name.startswith("._") and name.lower().endswith(endings)


def _left_out(direct: list[str], unnamed: list[str], hidden: list[str], empty: list[str]) -> str:
    """Say how many of what are left out and why, and which is the first."""
    ends = f"not end as an image's ({', '.join(sorted(EXTENSIONS))})"
    said = []
    for names, one, several, why in (
        (direct, "image is left out, since it lies", "images are left out, since they lie", "in no class folder"),
        (hidden, "image is left out, since it is", "images are left out, since they are", "hidden"),
        (empty, "class folder holds", "class folders hold", "no image"),
        (unnamed, "file is left out, since its name does", "files are left out, since their names do", ends),
    ):
        more = f" and {len(names) - 1} more" * (len(names) > 1)
        said += [f"{len(names)} {several if more else one} {why}: {names[0]}{more}"] if names else []
    return "; ".join([*said, *(["FileList takes files of any name"] if unnamed else [])])
