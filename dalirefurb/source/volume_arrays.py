"""Volumes as they are cached: which types they have, which voxels are the foreground, and what is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image
from dalirefurb.packed import Arrays, pack

IMAGE, MASK, FOREGROUND = "image", "mask", "foreground"
"""Names of a volume's values, of the labels of its voxels, and of where some of these are above 0."""

IMAGE_TYPES = ("uint8", "int8", "uint16", "int16", "float32")
"""Types of a volume's values."""

MASK_TYPES = ("uint8", "int16", "int32")
"""Types of its labels, of which the smallest is taken that has them all."""

_FOREGROUND = 4096
"""Voxels of the foreground that are listed, at most."""

_DIMENSIONS = 3


class VolumeError(Exception):
    """What should be a volume, and perhaps labels of its voxels, is none; its text says why."""


def volume_of(image: Any, mask: Any = None) -> dict[str, NDArray[Any]]:
    """Return a volume as it is cached: "image", (C, D, H, W), of one of `IMAGE_TYPES`, and perhaps "mask", (D, H, W).

    Args:
        image: Values, (D, H, W) or (C, D, H, W).
        mask: Labels of the voxels, whole numbers (D, H, W) or (1, D, H, W); None: there are none.

    Raises:
        VolumeError: If it is none.
    """
    image = _array(image, IMAGE)
    image = image[None] if image.ndim == _DIMENSIONS else image
    dtype = _image_type(image) if image.ndim == _DIMENSIONS + 1 and image.size else None
    if dtype is None:
        raise VolumeError(
            f"its image must be of {', '.join(IMAGE_TYPES)}, of shape (depth, height, width) or (channels, depth, "
            f"height, width), but is {image.dtype} of {image.shape}: such as image.astype('float32') is"
        )
    volume = {IMAGE: image.astype(dtype, copy=False)}
    if mask is not None:
        volume[MASK] = _labels(_array(mask, MASK), image.shape[1:])
    return volume


def _array(given: Any, name: str) -> NDArray[Any]:
    """Return an array; a list of volumes, or of pairs, is none."""
    if not hasattr(given, "__array__"):
        raise VolumeError(
            f"its {name} must be one array, but is a {type(given).__name__}: where several windows of each volume are "
            f"wanted pass Echo(planner, ...) and RandomCrop3D"
        )
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise VolumeError(f"its {name} must be an array, but NumPy cannot read it: {error}") from error


def _image_type(image: NDArray[Any]) -> str | None:
    """Return the type that has all values of an image; None if there is none."""
    if image.dtype == np.bool_:
        return "uint8"
    if image.dtype.kind == "f":
        limit = float(np.finfo(np.float32).max)
        beyond = image.dtype.itemsize > np.dtype(np.float32).itemsize and np.any(
            np.isfinite(image) & (np.abs(image) > limit)
        )
        return None if beyond else "float32"
    if image.dtype.kind not in "iu":
        return None
    native = image.dtype.newbyteorder("=").name
    return native if native in IMAGE_TYPES else _smallest(image, [each for each in IMAGE_TYPES if "int" in each])


def _smallest(array: NDArray[Any], types: Any) -> str | None:
    """Return the first of some types of whole numbers that has all numbers of an array."""
    least, most = array.min(), array.max()
    return next((name for name in types if np.iinfo(name).min <= least and most <= np.iinfo(name).max), None)


def _labels(mask: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return labels of voxels as they are cached."""
    mask = mask[0] if mask.ndim == _DIMENSIONS + 1 and len(mask) == 1 else mask
    if mask.shape != shape:
        raise VolumeError(f"its mask must have the shape of its image, {shape}, but has {mask.shape}")
    whole = mask.dtype.kind in "biu" or (mask.dtype.kind == "f" and bool((mask == np.rint(mask)).all()))
    dtype = _smallest(mask, MASK_TYPES) if whole else None
    if dtype is None:
        given = f"{mask.dtype} from {mask.min()} to {mask.max()}" if whole else f"{mask.dtype} with others, or NaN"
        raise VolumeError(f"its mask must be of whole numbers of 32 bits, but is {given}")
    return mask.astype(dtype)


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
    return pack({**volume, FOREGROUND: foreground_of(volume[MASK])} if MASK in volume else volume)


def chosen(given: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what a function made: the values of some keys, or an array by itself.

    Args:
        given: A mapping, or an array, if there is one key.
        keys: Key of the image, and perhaps of the mask.

    Raises:
        VolumeError: If one is missing, or if labels of voxels would be left out.
    """
    if not isinstance(given, Mapping):
        if len(keys) > 1:
            raise VolumeError(f"a mapping of {' and '.join(map(repr, keys))} is wanted, got a {type(given).__name__}")
        return (given,)
    if missing := [key for key in keys if given.get(key) is None]:
        raise VolumeError(f"it must have {' and '.join(map(repr, keys))}, but lacks {missing[0]!r}")
    shape = np.shape(given[keys[0]])[-_DIMENSIONS:]
    alike = [key for key, value in given.items() if key not in keys and np.shape(value)[-_DIMENSIONS:] == shape]
    if alike and len(keys) == 1 and shape:
        raise VolumeError(
            f"what belongs to its voxels would be left out, {', '.join(map(repr, alike))}: pass keys=({keys[0]!r}, "
            f"{alike[0]!r}) for labels of voxels, or leave it out"
        )
    return tuple(given[key] for key in keys)
