"""Packed samples: several arrays, such as a volume and its labels, in the bytes of one image.

Plans, stores and what is between know samples as images of bytes, whatever these mean. So arrays of any type and any
number of dimensions are cached, shared and evicted as images are: packed into one, and viewed in it again.

    number of bytes of the list │ list of arrays: name, type, shape │ first array │ second array │ ...

Each array begins at a multiple of `ALIGNMENT` bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image

ALIGNMENT = 64
"""A cache line, in bytes."""

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
    nbytes = _aligned(_LENGTH.itemsize + len(listed)) + sum(_aligned(each.nbytes) for each in arrays.values())
    image = np.empty((-(-nbytes // (3 * _WIDTH)), _WIDTH, 3), np.uint8)
    content = image.reshape(-1)
    content[: _LENGTH.itemsize].view(_LENGTH)[0] = len(listed)
    end = _LENGTH.itemsize + len(listed)
    content[_LENGTH.itemsize : end] = np.frombuffer(listed, np.uint8)
    for each in arrays.values():
        start = _aligned(end)
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
        start, dtype = _aligned(end), np.dtype(kind)
        end = start + math.prod(shape) * dtype.itemsize
        arrays[name] = content[start:end].view(dtype).reshape(shape)
    return arrays


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


IMAGE_TYPES = ("uint8", "int8", "uint16", "int16", "float32")
"""Types of a volume's values."""

MASK_TYPES = ("uint8", "int16", "int32")
"""Types of its labels, of which the smallest is taken that has them all."""

_FOREGROUND = 4096
"""Voxels of the foreground that are listed, at most."""


class VolumeError(Exception):
    """What should be a volume, and perhaps labels of its voxels, is none; its text says why."""


def volume_of(given: Any) -> dict[str, NDArray[Any]]:
    """Return a volume as it is cached: "image", (C, D, H, W), of one of `IMAGE_TYPES`, and perhaps "mask", (D, H, W).

    Args:
        given: An array (D, H, W) or (C, D, H, W), or a mapping of "image" to such a one and of "mask" to labels of the
            voxels, whole numbers (D, H, W) or (1, D, H, W); values of other keys are left out.

    Raises:
        VolumeError: If it is none.
    """
    arrays = given if isinstance(given, Mapping) else {"image": given}
    if arrays.get("image") is None:
        raise VolumeError(f'it must have an "image", but has {", ".join(map(repr, arrays))}')
    image = np.asarray(arrays["image"])
    image = image[None] if image.ndim == 3 else image
    if image.dtype.kind == "f" or image.dtype == np.bool_:
        image = image.astype(np.uint8 if image.dtype == np.bool_ else np.float32, copy=False)
    image = image.astype(image.dtype.newbyteorder("="), copy=False)
    if image.ndim != 4 or image.dtype not in IMAGE_TYPES or not image.size:
        raise VolumeError(
            f"its image must be of {', '.join(IMAGE_TYPES)}, of shape (depth, height, width) or (channels, depth, "
            f"height, width), but is {image.dtype} of {image.shape}: such as image.astype('float32') is"
        )
    volume = {"image": image}
    if arrays.get("mask") is not None:
        volume["mask"] = _labels(np.asarray(arrays["mask"]), image.shape[1:])
    return volume


def _labels(mask: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return labels of voxels as they are cached."""
    mask = mask[0] if mask.ndim == 4 and len(mask) == 1 else mask
    if mask.shape != shape:
        raise VolumeError(f"its mask must have the shape of its image, {shape}, but has {mask.shape}")
    whole = mask.dtype.kind in "biu" or (mask.dtype.kind == "f" and bool((mask == np.rint(mask)).all()))
    least, most = (mask.min(), mask.max()) if whole else (0, 0)
    limits = [np.iinfo(name) for name in MASK_TYPES]
    fitting = [each.dtype for each in limits if whole and each.min <= least and most <= each.max]
    if not fitting:
        raise VolumeError(f"its mask must be of whole numbers of 32 bits, but is {mask.dtype} from {least} to {most}")
    return mask.astype(fitting[0])


def foreground_of(mask: NDArray[Any]) -> NDArray[np.int32]:
    """List voxels whose label is above 0, 4,096 at most, spread over all of these as they lie in memory, int32 (k, 3).

    >>> foreground_of(np.array([[[0, 1], [2, 0]]])).tolist()
    [[0, 0, 1], [0, 1, 0]]
    """
    found = np.flatnonzero(mask > 0)
    if len(found) > _FOREGROUND:
        found = found[np.linspace(0, len(found) - 1, _FOREGROUND).astype(np.int64)]
    return np.stack(np.unravel_index(found, mask.shape), axis=1).astype(np.int32)


def pack_volume(volume: Arrays) -> Image:
    """Pack a volume, see `volume_of`, and list the foreground of its labels, which would take long at each use."""
    return pack({**volume, "foreground": foreground_of(volume["mask"])} if "mask" in volume else volume)
