"""How are the items of a PyTorch dataset served? As encoded images or as arrays, whichever the first one is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import Source, as_array, checked_labels, hash_array


class TorchDataset(Source):
    """A map-style dataset whose items are (image, label).

    Images are encoded (bytes, or a one-dimensional uint8 array or tensor), or they are PIL images, uint8 arrays of
    shape (height, width, 3) or uint8 tensors of shape (3, height, width); grey ones are read as three equal
    channels. All are encoded, or none is. Item i must be the same whenever it is read: leave augmentation to the
    recipe, and decoding too, where the dataset can give encoded images.

    Args:
        dataset: With `__len__` and `__getitem__`.
        labels: Shape (num_samples, *label_shape). Otherwise `dataset.targets` or `dataset.labels`, where there is no
            `dataset.target_transform`; otherwise all items are read once for their labels.
        thread_safe: Whether items can be read by several threads at once; otherwise one waits for another.
        progress: Show a bar while all items are read, on a terminal.

    Raises:
        ConfigurationError: The dataset is not map-style or empty, or its first item is no such pair or differs when
            it is read again, or labels do not fit.
        SampleError: An item cannot be read while all are read for their labels.
    """

    def __init__(
        self, dataset: Any, *, labels: ArrayLike | None = None, thread_safe: bool = True, progress: bool = True
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ConfigurationError(
                f"dataset must have __len__ and __getitem__, but {type(dataset).__name__} has not both: "
                "list(dataset) has, where items fit into memory"
            )
        self._dataset = dataset
        self._turn: AbstractContextManager[Any] = nullcontext() if thread_safe else threading.Lock()
        self._num_items = len(dataset)
        if self._num_items == 0:
            raise ConfigurationError(f"dataset must have at least one item, but {type(dataset).__name__} is empty")
        self.encoded = self._look_at_the_first()
        self.labels = checked_labels(self._find_labels(labels, progress), self._num_items, "items")
        classes = getattr(dataset, "classes", None)
        if isinstance(classes, list) and all(isinstance(name, str) for name in classes):
            self.classes = list(classes)

    def _look_at_the_first(self) -> bool:
        """Return whether images are encoded."""
        try:
            first, again = (_image(self._item(0)[0]) for _ in range(2))
        except (SampleError, _ImageError) as error:
            raise ConfigurationError(
                f"items must be (image, label), but {self.name(0)} is not: {getattr(error, 'reason', error)}"
            ) from error
        if not np.array_equal(first, again):
            raise ConfigurationError(
                f"an item must be the same whenever it is read, but {self.name(0)} differs from one time to the next: "
                "leave random transforms to the recipe"
            )
        return first.ndim == 1

    def _find_labels(self, labels: ArrayLike | None, progress: bool) -> Any:
        if labels is not None:
            return labels
        if getattr(self._dataset, "target_transform", None) is None:
            for attribute in ("targets", "labels"):
                found = getattr(self._dataset, attribute, None)
                if found is not None:
                    self._compare_first_label(found, attribute)
                    return found
        return list(self._read_labels(progress))

    def _compare_first_label(self, labels: Any, attribute: str) -> None:
        label, listed = as_array(self._item(0)[1], "a label"), as_array(labels[0], "a label")
        if not np.array_equal(label, listed):
            raise ConfigurationError(
                f"dataset.{attribute} must hold the labels of the items, but {self.name(0)} is labelled {label} and "
                f"{attribute}[0] is {listed}: pass labels="
            )

    def _read_labels(self, progress: bool) -> Iterator[NDArray[Any]]:
        from tqdm import tqdm

        indices = range(self._num_items)
        for index in tqdm(indices, "reading labels", leave=False, delay=1, disable=None if progress else True):
            yield as_array(self._item(index)[1], f"the label of {self.name(index)}")

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Read items one by one."""
        return [self._read(index) for index in self._checked(indices)]

    def _read(self, index: int) -> NDArray[np.uint8]:
        try:
            image = _image(self._item(index)[0])
        except _ImageError as error:
            raise SampleError(index, self.name(index), str(error)) from error
        if (image.ndim == 1) != self.encoded:
            kinds = ("an array", "encoded") if self.encoded else ("encoded", "an array")
            reason = f"all images must be encoded or none, but this is {kinds[0]} and {self.name(0)} is {kinds[1]}"
            raise SampleError(index, self.name(index), f"{reason}: convert it in the dataset")
        if image.size == 0:
            raise SampleError(index, self.name(index), "is empty")
        return image

    def _item(self, index: int) -> tuple[Any, Any]:
        """Return image and label as the dataset gives them."""
        try:
            with self._turn:
                item = self._dataset[index]
        except Exception as error:  # Whatever a user's dataset does.
            reason = f"cannot be read: {type(error).__name__}: {error}"
            raise SampleError(index, self.name(index), reason) from error
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            given = (
                f"{type(item).__name__} of {len(item)}"
                if isinstance(item, (tuple, list, dict))
                else type(item).__name__
            )
            raise SampleError(
                index,
                self.name(index),
                f"must be a pair (image, label), but is {given}: pick the two in a dataset around it",
            )
        return item[0], item[1]

    def name(self, index: int) -> str:
        """Return the dataset's class and the index."""
        return f"{type(self._dataset).__name__}[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        """Hash the labels, and 16 images that can be read: evenly spaced, the first and the last among them."""
        rows = np.unique(np.linspace(0, self._num_items - 1, 16).astype(np.int64))
        return {
            "source": "TorchDataset",
            "dataset": type(self._dataset).__name__,
            "num_samples": self._num_items,
            "images": [self._hash(index) for index in rows.tolist()],
            "labels": hash_array(self.labels),
        }

    def _hash(self, index: int) -> str | None:
        try:
            return hash_array(self._read(index))
        except SampleError:
            return None


class _ImageError(Exception):
    """What an item holds as an image is none."""


def _image(value: Any) -> NDArray[np.uint8]:
    """Return encoded bytes, shape (length,), or an image, shape (height, width, 3); C-contiguous."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    channels_first = False
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # PIL
        array = np.asarray(value.convert("RGB"))
    else:
        channels_first = not isinstance(value, np.ndarray) and hasattr(value, "numpy")
        if not channels_first and not isinstance(value, np.ndarray):
            raise _ImageError(
                f"an image must be encoded bytes, a PIL image, an array or a tensor, but is {type(value).__name__}: "
                "convert it in the dataset"
            )
        array = as_array(value, "an image")
    if array.dtype != np.uint8:
        raise _ImageError(
            f"an image must be uint8 from 0 to 255, but is {array.dtype}: "
            "remove ToTensor and Normalize from the dataset's transform, the recipe does both"
        )
    if array.ndim == 3 and channels_first:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., np.newaxis]
    if array.ndim == 3 and array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    if array.ndim != 1 and (array.ndim != 3 or array.shape[2] != 3):
        order = "(3, height, width)" if channels_first else "(height, width, 3)"
        raise _ImageError(
            f"an image must have shape {order}, or be encoded, but has {array.shape}: convert it in the dataset"
        )
    return np.ascontiguousarray(array)
