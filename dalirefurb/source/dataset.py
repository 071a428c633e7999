"""Items of a PyTorch dataset: as encoded images or as arrays, whichever the first one is; and copies for threads."""

from __future__ import annotations

import io
import os
import pickle
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.checks import flag
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import Source, digest_of, spread
from dalirefurb.source.labels import TARGETS, WORDS, as_array, checked_labels, refuse_mask
from dalirefurb.source.levels import Levels, LevelsError, ValueRange, checked_range
from dalirefurb.source.storage import Patience, is_outage

MOST_BYTES = 128 << 20
"""Of a dataset that is copied, pickled: as much as the paths of some two million files."""

_TURN = threading.RLock()
"""Who has it reads what is not copied. There is one, as datasets may have parts in common, such as an open file."""


class Copies:
    """A dataset to be read from any thread.

    Each thread reads a copy of its own, made when it first reads, of the dataset as it was when this was made: what
    one thread opens, moves or remembers in it no other one sees. Where the dataset cannot be pickled, or takes more
    than `MOST_BYTES`, threads read it one at a time, and no other such dataset meanwhile.

    Args:
        dataset: Dataset with `__getitem__`.
        thread_safe: Whether threads can read the dataset side by side; then all do, and there are no copies.
    """

    def __init__(self, dataset: Any, *, thread_safe: bool) -> None:
        self.dataset = dataset
        self._thread_safe = thread_safe
        # Before the first read: a file that is opened then could not be pickled any more.
        self._pickled = None if thread_safe else _pickled(dataset)
        self._own = threading.local()

    @property
    def copied(self) -> bool:
        """Whether each thread has a copy."""
        return self._pickled is not None

    def do_without(self) -> None:
        """Make no copies: threads read the dataset one at a time from now on."""
        self._pickled = None

    def turn(self) -> AbstractContextManager[Any]:
        """Wait until nobody else reads, where only one may; whoever has the turn can take it again.

        It is to be held until an item is taken apart: an image may be read from its file no sooner than that.
        """
        return nullcontext() if self._thread_safe or self.copied else _TURN

    def original(self, index: int) -> Any:
        """Read an item of the dataset that was given."""
        with nullcontext() if self._thread_safe else _TURN:
            return self.dataset[index]

    def __getitem__(self, index: int) -> Any:
        if (pickled := self._pickled) is None:
            return self.original(index)
        own = self._own
        if getattr(own, "pid", None) != os.getpid():  # A file that was open at a fork has one place for both processes.
            try:
                own.dataset, own.pid = pickle.loads(pickled), os.getpid()
            except Exception:  # As below.
                self.do_without()
                return self.original(index)
        return own.dataset[index]

    def __reduce__(self) -> tuple[Any, ...]:
        dataset = self.dataset if self._pickled is None else pickle.loads(self._pickled)
        return partial(Copies, thread_safe=self._thread_safe), (dataset,)


def _pickled(dataset: Any) -> bytes | None:
    """Pickle a dataset; None if that cannot be done, or takes too many bytes."""
    pickled = _Limited()
    try:
        _Pickler(pickled, protocol=pickle.HIGHEST_PROTOCOL).dump(dataset)
    except Exception:  # Whatever a user's class does that was never meant to be pickled.
        return None
    return pickled.getvalue()


def _begin_anew() -> None:
    """Let a forked child have its turn, though a thread that exists in its parent only may have had it."""
    global _TURN
    _TURN = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)


class _Limited(io.BytesIO):
    """Takes `MOST_BYTES` at most."""

    def write(self, data: Any, /) -> int:
        _refuse_above(self.tell() + memoryview(data).nbytes)
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Refuses large arrays and tensors before it copies them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            _refuse_above(value.nbytes)
        elif hasattr(type(value), "untyped_storage"):  # a tensor, which takes all its storage with it
            _refuse_above(value.untyped_storage().nbytes())
        return NotImplemented


def _refuse_above(num_bytes: int) -> None:
    if num_bytes > MOST_BYTES:
        raise pickle.PicklingError(f"a dataset that is copied must take {MOST_BYTES:,} bytes at most, got more")


_COMPARED = 16
"""Items whose labels are compared with those that the dataset lists."""


class TorchDataset(Source):
    """A map-style dataset whose items are (image, label).

    Images are encoded (bytes, or a one-dimensional uint8 array or tensor), or they are PIL images, arrays of shape
    (height, width, 3) or tensors of shape (3, height, width), of uint8 or uint16, or with `value_range` of any kind of
    number; grey ones are read as three equal channels. PIL images are taken as they lie, also where their EXIF data
    would turn them, which encoded ones are. All are encoded, or none is. Item i must be the same whenever it
    is read: leave augmentation to the recipe, and decoding too, where the dataset can give encoded images.

    As with PyTorch's worker processes each thread reads a copy of its own, made by pickle, of the dataset as it is now.
    One that cannot be pickled, or takes more than 128 MB so, is read by one thread at a time. What even copies share,
    such as a global, or a file by its number, needs a lock of the dataset's own.

    Args:
        dataset: Map-style dataset, with `__len__` and `__getitem__`.
        labels: Labels of the samples, numeric, shape (num_samples, *label_shape), or names, which are numbered in
            sorted order and become `classes`. If they are not given, `dataset.targets` or `dataset.labels`, where there
            is no `dataset.target_transform`; 16 items are read to see that these are their labels. Otherwise all items
            are read once for their labels.
        thread_safe: Whether several threads can read the dataset itself at once, as they can where an item is no more
            than a file of its own, opened and decoded. It is not copied then.
        progress: Show a bar while all items are read, on a terminal.
        value_range: Numbers of black and white in images deeper than 8 bits, see `Source`.

    Raises:
        ConfigurationError: The dataset is not map-style or empty, or its first item is no such pair or differs when
            it is read again, or labels do not fit.
        SampleError: An item cannot be read while all are read for their labels.

    Note:
        A store notices other images under equal labels only among the 16 that `fingerprint` reads. Where others have
        changed, `purge` it or take another one; or override `content`.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        labels: ArrayLike | None = None,
        thread_safe: bool = False,
        progress: bool = True,
        value_range: ValueRange | None = None,
    ) -> None:
        thread_safe, progress = flag("thread_safe", thread_safe), flag("progress", progress)
        self.value_range = checked_range(value_range)
        self._levels = Levels(value_range)
        if isinstance(dataset, (str, os.PathLike)):
            raise ConfigurationError(
                f"dataset must be a data set, got the path {str(dataset)!r}: pass ImageFolder(path) for a folder"
            )
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ConfigurationError(
                f"dataset must have __len__ and __getitem__, but {type(dataset).__name__} has not both: "
                "list(dataset) has, where items fit into memory"
            )
        self._items = Copies(dataset, thread_safe=thread_safe)
        self._num_items = len(dataset)
        if self._num_items == 0:
            raise ConfigurationError(f"dataset must have at least one item, but {type(dataset).__name__} is empty")
        self.encoded = self._look_at_the_first()
        self._take_labels(self._find_labels(labels, progress), self._num_items, "items")
        self.labels = self.labels.copy()  # As a dataset's labels may be changed in place.
        classes = getattr(dataset, "classes", None)
        if self.classes is None and isinstance(classes, list) and all(isinstance(name, str) for name in classes):
            self.classes = list(classes)

    def _look_at_the_first(self) -> bool:
        """Return whether images are encoded. Do without copies that fail, or give something else."""
        first = self._first_image(original=True)
        if self._items.copied:
            with suppress(ConfigurationError):
                if all(np.array_equal(first, self._first_image()) for _ in range(2)):
                    return first.ndim == 1
            self._items.do_without()
        if not np.array_equal(first, self._first_image(original=True)):
            raise ConfigurationError(
                f"an item must be the same whenever it is read, but {self.name(0)} differs from one time to the next: "
                "leave random transforms to the recipe"
            )
        return first.ndim == 1

    def _first_image(self, *, original: bool = False) -> NDArray[np.uint8]:
        try:
            item = Patience().of(lambda: self._item(0, original=original), self.name(0))
            return self._image(0, item[0])
        except (SampleError, _ImageError, LevelsError) as error:
            raise ConfigurationError(
                f"items must be (image, label), but {self.name(0)} is not: {getattr(error, 'reason', error)}"
            ) from error

    def _image(self, index: int, value: Any) -> NDArray[np.uint8]:
        """Return encoded bytes, shape (length,), or an image, shape (height, width, 3); C-contiguous."""
        if hasattr(value, "convert") and hasattr(value, "getbands"):  # PIL
            return np.ascontiguousarray(self._levels.of_image(value, self.name(index)))
        array = _array(value)
        ranged = self.value_range is not None and array.dtype.kind in "iuf"
        if not (array.dtype.newbyteorder("=") in (np.uint8, np.uint16) or ranged):
            raise _ImageError(
                f"an image must be uint8 from 0 to 255, or uint16, but is {array.dtype}: remove ToTensor and Normalize "
                f"from the dataset's transform, the recipe does both; or pass value_range=(low, high), the numbers of "
                f"black and white"
            )
        if array.dtype != np.uint8:
            array = self._levels.of(array, self.name(index))
        if array.ndim == 3 and array.shape[2] == 1:
            array = np.repeat(array, 3, axis=2)
        return np.ascontiguousarray(array)

    def _find_labels(self, labels: ArrayLike | None, progress: bool) -> Any:
        if labels is not None:
            return labels
        if getattr(self._items.dataset, "target_transform", None) is None:
            for attribute in ("targets", "labels"):
                found = getattr(self._items.dataset, attribute, None)
                if found is not None:
                    return self._compared(as_array(found, f"dataset.{attribute}"), attribute)
        from tqdm import tqdm

        checked_labels([self._label(0)], 1, "items", self.name)  # Before all others are read.
        indices = range(self._num_items)
        bar = tqdm(indices, "reading labels", leave=False, delay=1, disable=None if progress else True)
        try:
            return [self._label(index) for index in bar]
        except SampleError as error:  # No loader can replace it yet.
            reason = f"{error.reason}; all items are read for their labels, unless you pass labels=, one for each item"
            raise SampleError(error.index, error.name, reason) from error.__cause__

    def _compared(self, labels: NDArray[Any], attribute: str) -> NDArray[Any]:
        """Return the labels that the dataset lists, if some items spread over it have them, too."""
        remedy = (
            f"pass labels=[dataset[index][1] for index in range({self._num_items})] for those of the items, or "
            f"labels=dataset.{attribute} if these are right"
        )
        if labels.ndim == 0 or len(labels) != self._num_items:
            given = "a single one" if labels.ndim == 0 else len(labels)
            raise ConfigurationError(
                f"there must be one label per sample, but there are {given} for {self._num_items} items in "
                f"dataset.{attribute}: {remedy}"
            )
        for index in spread(self._num_items, _COMPARED):
            with suppress(SampleError):  # Whether it may be bad is for the loader to say.
                label = np.asarray(self._label(index))
                if not _same_label(label, labels[index]):
                    raise ConfigurationError(
                        f"dataset.{attribute} must hold the labels of the items, but {self.name(index)} is labelled "
                        f"{label} and {attribute}[{index}] is {labels[index]}: {remedy}"
                    )
        return labels

    def _label(self, index: int) -> Any:
        image, label = Patience().of(lambda: self._item(index), self.name(index))
        with suppress(SampleError, _ImageError, LevelsError):  # As above.
            refuse_mask(label, self.name(index), lambda: self._decoded(index, self._image(index, image)).shape[:2])
        return (
            label if isinstance(label, WORDS) else as_array(label, f"the label of {self.name(index)}", f"; {TARGETS}")
        )

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        rows = self._checked(indices)
        with self._items.turn():
            return [self._read(index) for index in rows]

    def _read(self, index: int) -> NDArray[np.uint8]:
        try:
            with self._items.turn():
                image = self._image(index, self._item(index)[0])
        except (_ImageError, LevelsError) as error:
            raise SampleError(index, self.name(index), str(error)) from None
        if (image.ndim == 1) != self.encoded:
            kinds = ("an array", "encoded") if self.encoded else ("encoded", "an array")
            reason = f"all images must be encoded or none, but this is {kinds[0]} and {self.name(0)} is {kinds[1]}"
            raise SampleError(index, self.name(index), f"{reason}: convert it in the dataset")
        if image.size == 0:
            raise SampleError(index, self.name(index), "is empty")
        return image

    def _item(self, index: int, *, original: bool = False) -> tuple[Any, Any]:
        """Return image and label as the dataset gives them, or a copy of it unless the original is asked for."""
        try:
            item = self._items.original(index) if original else self._items[index]
        except Exception as error:  # Whatever a user's dataset does.
            if is_outage(error):
                raise
            reason = f"cannot be read: {type(error).__name__}: {error}"
            raise SampleError(index, self.name(index), reason) from error
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            kind = type(item).__name__
            given = f"{kind} of {len(item)}" if isinstance(item, (tuple, list, dict)) else kind
            reason = f"must be a pair (image, label), but is {given}: pick the two in a dataset around it"
            raise SampleError(index, self.name(index), reason)
        return item[0], item[1]

    def name(self, index: int) -> str:
        return f"{type(self._items.dataset).__name__}[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        """Hash the labels, and 16 images that can be read: evenly spaced, the first and the last among them."""
        return {
            "source": "TorchDataset",
            "dataset": type(self._items.dataset).__name__,
            "num_samples": self._num_items,
            "images": [self._hash(row) for row in spread(len(self), 16)],
            "labels": digest_of(self.labels),
        }


def _same_label(label: NDArray[Any], listed: NDArray[Any]) -> bool:
    """Compare two labels as exactly as the less exact one is kept."""
    dtypes = [each.dtype for each in (label, listed) if each.dtype.kind == "f"]
    if dtypes and {label.dtype.kind, listed.dtype.kind} <= set("biuf"):
        dtype = min(dtypes, key=lambda each: each.itemsize)
        return np.array_equal(label.astype(dtype), listed.astype(dtype), equal_nan=True)
    return np.array_equal(label, listed)


class _ImageError(Exception):
    """What an item holds as an image is none."""


def _array(value: Any) -> NDArray[Any]:
    """Return encoded bytes, shape (length,), or an image, shape (height, width, 3) or (height, width, 1)."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    channels_first = not isinstance(value, np.ndarray) and hasattr(value, "numpy")
    if channels_first or isinstance(value, np.ndarray):
        array = as_array(value, "an image")
    else:
        remedy = "convert it in the dataset"
        if isinstance(value, (str, os.PathLike)):
            remedy = "return Path(path).read_bytes(), or pass all paths to FileList(paths, labels)"
        raise _ImageError(
            f"an image must be encoded bytes, a PIL image, an array or a tensor, but is {type(value).__name__}: "
            f"{remedy}"
        )
    if array.ndim == 3 and channels_first:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., np.newaxis]
    encoded = array.ndim == 1 and array.dtype == np.uint8
    if not encoded and (array.ndim != 3 or array.shape[2] not in (1, 3)):
        order = "(3, height, width)" if channels_first else "(height, width, 3)"
        raise _ImageError(
            f"an image must have shape {order}, or be encoded, but has {array.shape}: convert it in the dataset"
        )
    return array
