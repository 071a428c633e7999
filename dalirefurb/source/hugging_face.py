"""Images of a Hugging Face dataset, encoded as its table holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import Source, fingerprint_of_names, spread
from dalirefurb.source.files import read_file
from dalirefurb.source.labels import TARGETS
from dalirefurb.source.levels import ValueRange, checked_range
from dalirefurb.source.shards import place
from dalirefurb.source.storage import is_outage, stamp_files


class HuggingFaceImages(Source):
    """The images of a `datasets.Dataset`. Its formats and transforms are left out.

    Args:
        dataset: Dataset of one split, with a column of feature `Image`.
        image: Name of the column of images.
        label: Name of the column of labels: classes, numbers, lists of numbers, or names, which are numbered in sorted
            order.
        value_range: Numbers of black and white in images deeper than 8 bits, see `Source`.

    Raises:
        ConfigurationError: This is no such dataset, a column is not there or of another kind, or a row has no label.
    """

    encoded = True

    def __init__(
        self, dataset: Any, *, image: str = "image", label: str = "label", value_range: ValueRange | None = None
    ) -> None:
        self.value_range = checked_range(value_range)
        _check(dataset, image, label)
        plain = dataset.with_format(None)
        feature = dataset.features[image]
        self._images = plain.select_columns([image]).cast_column(image, type(feature)(decode=False))
        self._column = image
        values = plain.select_columns([label])[:][label]
        self._take_labels(values, len(dataset), "rows", lambda row: f"dataset[{row}][{label!r}]")
        names = getattr(dataset.features[label], "names", None)
        if names is not None:
            self.classes = list(names)

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Read rows at once, and the files that they name where they hold none."""
        rows = self._checked(indices)
        images = self._images[rows][self._column] if rows else []
        return [self._content(index, image) for index, image in zip(rows, images, strict=True)]

    def _content(self, index: int, image: Any) -> NDArray[np.uint8]:
        if image is None or (not image["bytes"] and not image["path"]):
            raise SampleError(index, self.name(index), "has no image")
        if image["bytes"]:
            return np.frombuffer(image["bytes"], np.uint8)
        return _read_address(path, index) if "://" in (path := image["path"]) else read_file(path, index)

    def name(self, index: int) -> str:
        return f"dataset[{index}][{self._column!r}]"

    def fingerprint(self) -> dict[str, Any]:
        """Hash the names of the rows' files, the labels, and 16 images; where the table lies does not count."""
        names = ((path or "").rpartition("/")[2] for path in self._paths_and_lengths()[0].to_pylist())
        return {
            **fingerprint_of_names("HuggingFaceImages", names, self.labels),
            "column": self._column,
            "images": [self._hash(row) for row in spread(len(self), 16)],
        }

    def content(self) -> dict[str, Any]:
        """Stamp the files of its tables and those that rows name, and hash what of the tables is in memory."""
        tables = [self._images.data] + [table for table in (self._images._indices,) if table is not None]
        digest = xxh3_128()
        for array in (array for table in tables for array in _in_memory(table)):
            digest.update(f"{array.offset} {len(array)}".encode())
            for buffer in array.buffers():
                digest.update(b"" if buffer is None else memoryview(buffer))
        files = [file["filename"] for file in self._images.cache_files]
        return {"in_memory": digest.hexdigest(), **stamp_files([*files, *self._named_files()])}

    def _named_files(self) -> list[str]:
        """Return the paths of rows that hold no bytes, in their order. The bytes of others are not looked at."""
        from pyarrow import compute

        paths, lengths = self._paths_and_lengths()
        named: list[str | None] = paths.filter(compute.equal(compute.fill_null(lengths, 0), 0)).to_pylist()
        # Of a file in an archive, "zip://1.jpg::all.zip", the archive.
        return [path.rpartition("::")[2].removeprefix("file://") for path in named if path]

    def _paths_and_lengths(self) -> tuple[Any, Any]:
        """Return the paths and the numbers of bytes of all rows, in their order; both can be null."""
        from pyarrow import compute

        images, indices = self._images.data.column(self._column), self._images._indices
        both = compute.struct_field(images, "path"), compute.binary_length(compute.struct_field(images, "bytes"))
        return both if indices is None else tuple(each.take(indices.column(0).to_numpy()) for each in both)


def _read_address(url: str, index: int) -> NDArray[np.uint8]:
    """Read what fsspec knows the address of, as `datasets` does, such as a file in an archive."""
    try:
        filesystem, path = place(url, {})
        content = np.frombuffer(filesystem.cat_file(path), np.uint8)
    except Exception as error:  # Every filesystem has its own.
        if isinstance(error, ConfigurationError) or is_outage(error):
            raise
        raise SampleError(index, url, f"cannot be read: {type(error).__name__}: {error}") from error
    if not len(content):
        raise SampleError(index, url, "is empty")
    return content


def _in_memory(table: Any) -> Iterator[Any]:
    """Yield the arrays of a table that are in no file."""
    for block in (block for row in getattr(table, "blocks", ()) for block in row):
        yield from _in_memory(block)
    if not hasattr(table, "blocks") and not hasattr(table, "path"):
        for column in table.columns:
            yield from column.chunks


def _check(dataset: Any, image: str, label: str) -> None:
    if isinstance(dataset, dict):
        raise ConfigurationError(
            f"dataset must be one split, but is all of {sorted(dataset)}: pass dataset['train'], say"
        )
    if not all(hasattr(dataset, name) for name in ("__len__", "cast_column", "_fingerprint")):
        raise ConfigurationError(
            f"dataset must be a datasets.Dataset, but is {type(dataset).__name__}: load it without streaming=True"
        )
    for column in (image, label):
        if column not in dataset.features:
            raise ConfigurationError(
                f"dataset must have a column {column!r}, but has {', '.join(dataset.features)}: "
                "name others by image= and label="
            )
    kind = type(dataset.features[image]).__name__
    if kind != "Image":
        raise ConfigurationError(
            f"column {image!r} must hold images, but holds {kind}: name another by image=, or cast_column it to "
            "datasets.Image()"
        )
    mode = getattr(dataset.features[image], "mode", None)
    if mode not in (None, "RGB", "RGBA", "CMYK"):
        raise ConfigurationError(
            f"images must be served in colour, but column {image!r} is Image(mode={mode!r}), which they are not read "
            f"as: cast_column it to datasets.Image(), and take Output(..., channels=1) for grey ones"
        )
    if type(dataset.features[label]).__name__ == "Image":
        raise ConfigurationError(f"column {label!r} must hold labels of whole images, but holds images: {TARGETS}")
