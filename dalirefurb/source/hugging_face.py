"""How are the images of a Hugging Face dataset served? Encoded, as its table holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import Source, checked_labels, hash_array
from dalirefurb.source.files import read_file
from dalirefurb.source.labels import number_labels


class HuggingFaceImages(Source):
    """The images of a `datasets.Dataset`. Its formats and transforms are left out.

    Args:
        dataset: One split, with a column of feature `Image`.
        image: That column.
        label: The column of labels: classes, numbers, lists of numbers, or names, which are numbered in sorted order.

    Raises:
        ConfigurationError: This is no such dataset, a column is not there or of another kind, or a row has no label.
    """

    encoded = True

    def __init__(self, dataset: Any, *, image: str = "image", label: str = "label") -> None:
        _check(dataset, image, label)
        plain = dataset.with_format(None)
        feature = dataset.features[image]
        self._images = plain.select_columns([image]).cast_column(image, type(feature)(decode=False))
        self._column = image
        self._fingerprint = str(dataset._fingerprint)
        values = plain.select_columns([label])[:][label]
        numbers, self.classes = number_labels(values, lambda row: f"dataset[{row}]")
        names = getattr(dataset.features[label], "names", None)
        if names is not None:
            self.classes = list(names)
        self.labels = checked_labels(numbers, len(dataset), "rows")

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
        return read_file(image["path"], index)

    def name(self, index: int) -> str:
        """Return row and column."""
        return f"dataset[{index}][{self._column!r}]"

    def fingerprint(self) -> dict[str, Any]:
        """Take the dataset's own, and hash the labels."""
        return {
            "source": "HuggingFaceImages",
            "num_samples": len(self),
            "dataset": self._fingerprint,
            "column": self._column,
            "labels": hash_array(self.labels),
        }


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
