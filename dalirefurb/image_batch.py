"""The images of a batch: in one array, or each in memory of its own; and several arrays in the bytes of one image.

Kernels ask for addresses. Whoever made room for images knows them; asked array by array, NumPy takes longer than the
bookkeeping of a whole batch.

Plans, stores and what is between know samples as images of bytes, whatever these mean. So arrays of any type and any
number of dimensions are cached, shared and evicted as images are: packed into one, and viewed in it again.

    number of bytes of the list │ list of arrays: name, type, shape │ first array │ second array │ ...

Each array begins at a cache line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import LoaderError

Image = NDArray[np.uint8]
"""A partially augmented sample, HWC."""

Bytes = TypeVar("Bytes", int, NDArray[np.int64])

ALIGNMENT = 64
"""A cache line, in bytes: where images begin, and what is packed or kept; files rely on it."""


def rounded(nbytes: Bytes, alignment: int = ALIGNMENT) -> Bytes:
    """Round numbers of bytes up to multiples of `alignment`."""
    return -(-nbytes // alignment) * alignment


def aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Allocate untouched bytes that begin at a multiple of `ALIGNMENT`, shape (nbytes,)."""
    unaligned = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -unaligned.ctypes.data % ALIGNMENT
    return unaligned[start : start + nbytes]


RGB, GREY, HALVED = 0, 1, 2
"""How an image lies: pixel after pixel; as levels of grey, which all three channels have; or as the planes of a JPEG of
4:2:0, Y, Cb and Cr behind each other, the last two of half the height and width, rounded up."""


def layout_bytes(layout: int, heights: Bytes, widths: Bytes) -> Bytes:
    """Return the bytes of images of a height and width that lie so."""
    if layout == HALVED:
        return heights * widths + 2 * ((heights + 1) // 2) * ((widths + 1) // 2)
    return (1 if layout == GREY else 3) * heights * widths


class Places(NamedTuple):
    """Where n C-contiguous images lie.

    Attributes:
        addresses: Memory addresses of the images' first bytes, int64 of shape (n,).
        sizes: Heights and widths of the images in pixels, int64 of shape (n, 2).
        layouts: How each lies, such as `HALVED`, int64 of shape (n,); None: all are RGB.
    """

    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    layouts: NDArray[np.int64] | None = None

    @classmethod
    def of_rows(cls, array: NDArray[Any], rows: NDArray[np.int64]) -> Places:
        """Return the places of some rows, shape (n,), of one array, (N, H, W, 3)."""
        return cls(row_addresses(array, rows), np.full((len(rows), 2), array.shape[1:3], np.int64))

    def of(self, rows: NDArray[np.int64]) -> Places:
        """Return the places of some images."""
        return Places(self.addresses[rows], self.sizes[rows], None if self.layouts is None else self.layouts[rows])


class Rows(NamedTuple):
    """Some rows of a batch, with their images.

    Attributes:
        rows: Rows of the batch that have images here, ascending, int64 of shape (n,).
        images: Images of the rows, HWC uint8, n of them.
    """

    rows: NDArray[np.int64]
    images: Images


class Images(Sequence[NDArray[Any]]):
    """The images of one batch; to be used like a DALI tensor list.

    Args:
        images: Images of the batch: one array of all of them, which may be on a device, or a sequence of arrays, one
            per image.

    Attributes:
        whole: The array that has all images, and which of its rows the images are, int64 of shape (n,); None if no one
            array has all.
    """

    def __init__(self, images: Any) -> None:
        self._count = len(images)
        self._look: Callable[[], Any] = lambda: images
        self._locate: Callable[[], Places] | None = None
        self.whole: tuple[Any, NDArray[np.int64]] | None = None
        if hasattr(images, "shape"):
            self.whole = images, np.arange(self._count)

    @classmethod
    def of(cls, images: Any) -> Images:
        """Return what these are already, or make it of them."""
        return images if isinstance(images, cls) else cls(images)

    @classmethod
    def on_demand(cls, count: int, look: Callable[[], Any], locate: Callable[[], Places] | None = None) -> Images:
        """Say how to find `count` images, and where they lie if somebody knows: asked once at most, if at all."""
        images = cls(())
        images._count, images._look, images._locate = count, look, locate
        return images

    @classmethod
    def at(cls, places: Places) -> Images:
        """Return images by their places, which may be on a device: the host does not look at them."""
        return cls.on_demand(len(places.sizes), _unseen, lambda: places)

    @classmethod
    def rows_of(cls, array: NDArray[Any], rows: NDArray[np.int64]) -> Images:
        """Return some rows, shape (n,), of one array, shape (N, H, W, 3), without copying them."""
        images = cls.on_demand(
            len(rows), lambda: [array[row] for row in rows.tolist()], lambda: Places.of_rows(array, rows)
        )
        images.whole = array, rows
        return images

    @classmethod
    def joined(cls, count: int, parts: Sequence[tuple[NDArray[np.int64], Images]]) -> Images:
        """Put the images of several owners together, given the rows, out of `count`, of each one's, ascending."""
        parts = [part for part in parts if len(part[0])]
        if len(parts) == 1 and len(parts[0][0]) == count:
            return parts[0][1]

        def look() -> list[NDArray[Any]]:
            images: list[Any] = [None] * count
            for rows, part in parts:
                for row, image in zip(rows.tolist(), part, strict=True):
                    images[row] = image
            return images

        def locate() -> Places:
            addresses, sizes, layouts = (
                np.empty(count, np.int64),
                np.empty((count, 2), np.int64),
                np.zeros(count, np.int64),
            )
            for rows, part in parts:
                addresses[rows], sizes[rows], own = part.origins
                layouts[rows] = RGB if own is None else own
            return Places(addresses, sizes, layouts if layouts.any() else None)

        return cls.on_demand(count, look, locate)

    def chosen(self, rows: NDArray[np.int64]) -> Images:
        """Return the images of some rows, shape (n,)."""
        if np.array_equal(rows, np.arange(len(self))):
            return self
        chosen = Images.on_demand(
            len(rows), lambda: [self[row] for row in rows.tolist()], lambda: self.origins.of(rows)
        )
        if self.whole is not None:
            chosen.whole = self.whole[0], self.whole[1][rows]
        return chosen

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        return self._images[row]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self._images)

    @cached_property
    def _images(self) -> Any:
        return self._look()

    @cached_property
    def places(self) -> Places:
        """Where they lie, all as RGB, which is made of those that lie otherwise.

        Raises:
            LoaderError: One is not C-contiguous uint8 of shape (H, W, 3).
        """
        return self.origins if self.origins.layouts is None else _located(self._images)

    @cached_property
    def origins(self) -> Places:
        """Where they lie, as they do, for who knows the layouts; errors are those of `places`."""
        return _located(self._images) if self._locate is None else self._locate()

    @property
    def kinds(self) -> set[tuple[np.dtype[Any], tuple[int, ...]]]:
        """The different dtypes and shapes."""
        if self.whole is not None:
            return {(self.whole[0].dtype, self.whole[0].shape[1:])}
        return {(image.dtype, image.shape) for image in self._images}

    def is_dense_tensor(self) -> bool:
        """Tell whether all images are one array."""
        return isinstance(self._images, np.ndarray)

    def as_tensor(self) -> NDArray[Any]:
        """Return that array."""
        array: NDArray[Any] = self._images
        return array


def _unseen() -> Any:
    raise NotImplementedError("images on a device are not looked at by the host")


def images_at(content: NDArray[np.uint8], offsets: NDArray[np.int64], shapes: NDArray[np.integer[Any]]) -> Images:
    """View the images that begin at n offsets of some bytes, each of its shape, (n, 3), read-only."""

    def look() -> list[Image]:
        shown = content.view()
        shown.flags.writeable = False
        return [
            shown[offset : offset + math.prod(shape)].reshape(shape)
            for offset, shape in zip(offsets.tolist(), shapes.tolist(), strict=True)
        ]

    def locate() -> Places:
        address: int = content.__array_interface__["data"][0]
        return Places(address + offsets, shapes[:, :2].astype(np.int64))

    return Images.on_demand(len(shapes), look, locate)


def decoded_rows(samples: Sequence[NDArray[Any]] | NDArray[Any]) -> NDArray[np.int64]:
    """Return which of some samples are images, and not encoded, int64 of shape (d,)."""
    if isinstance(samples, Images):
        return np.arange(len(samples))
    return np.array([row for row, sample in enumerate(samples) if sample.ndim == 3], np.int64)


def row_addresses(array: NDArray[Any], rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the address of each of some rows of an array, shape (n,); of all if None."""
    start: int = array.__array_interface__["data"][0]
    return start + array.strides[0] * (np.arange(len(array), dtype=np.int64) if rows is None else rows)


def _located(images: NDArray[Any] | Sequence[NDArray[Any]]) -> Places:
    """Find out where images lie."""
    if isinstance(images, np.ndarray) and len(images):
        _check(images[0])
        return Places.of_rows(images, np.arange(len(images), dtype=np.int64))
    for image in images:
        _check(image)
    return Places(
        np.array([image.__array_interface__["data"][0] for image in images], np.int64),
        np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2),
    )


def _check(image: NDArray[Any]) -> None:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.flags.c_contiguous:
        raise LoaderError(
            f"images must be C-contiguous uint8 of shape (H, W, 3), got {image.dtype} of {image.shape}; "
            f"convert them in the source"
        )


_WIDTH = 64
"""Of the image, in pixels of three bytes: so a row is whole cache lines."""

_LENGTH = np.dtype("<i8")

Arrays = Mapping[str, NDArray[Any]]
"""The arrays of a sample, by name."""


def pack(arrays: Arrays) -> Image:
    """Return an image, uint8 of shape (n, 64, 3), that has copies of some arrays.

    >>> image = pack({"image": np.ones((1, 2, 3, 4), np.int16), "mask": np.zeros((2, 3, 4), np.uint8)})
    >>> image.shape, {name: each.shape for name, each in unpack(image).items()}
    ((2, 64, 3), {'image': (1, 2, 3, 4), 'mask': (2, 3, 4)})
    """
    listed = json.dumps([[name, each.dtype.str, each.shape] for name, each in arrays.items()]).encode()
    nbytes = rounded(_LENGTH.itemsize + len(listed)) + sum(rounded(each.nbytes) for each in arrays.values())
    image = np.empty((-(-nbytes // (3 * _WIDTH)), _WIDTH, 3), np.uint8)
    content = image.reshape(-1)
    content[: _LENGTH.itemsize].view(_LENGTH)[0] = len(listed)
    end = _LENGTH.itemsize + len(listed)
    content[_LENGTH.itemsize : end] = np.frombuffer(listed, np.uint8)
    for each in arrays.values():
        start = rounded(end)
        content[end:start] = 0
        end = start + each.nbytes
        content[start:end].view(each.dtype).reshape(each.shape)[...] = each
    content[end:] = 0
    return image


def unpack(image: Image) -> dict[str, NDArray[Any]]:
    """View the arrays of a packed sample."""
    content = image.reshape(-1)
    end = _LENGTH.itemsize + int(content[: _LENGTH.itemsize].view(_LENGTH)[0])
    arrays: dict[str, NDArray[Any]] = {}
    for name, kind, shape in json.loads(content[_LENGTH.itemsize : end].tobytes()):
        start, dtype = rounded(end), np.dtype(kind)
        end = start + math.prod(shape) * dtype.itemsize
        arrays[name] = content[start:end].view(dtype).reshape(shape)
    return arrays
