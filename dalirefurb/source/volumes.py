"""Volumes: arrays of voxels from files, from memory or from a function, perhaps with a label of each voxel."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.checks import integer, is_list, require
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Arrays, Image, Images, pack
from dalirefurb.source.contract import Source, digest_of, spread
from dalirefurb.source.storage import hash_pixels, is_outage, stamp_files

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


_HASHED = 8
"""Arrays that are looked at to tell volumes from others."""


class Volumes(Source):
    """Volumes (depth, height, width), or (channels, depth, height, width), and perhaps labels of their voxels.

        Volumes(sorted(glob.glob("scans/*.nii.gz")), sorted(glob.glob("labels/*.nii.gz")))
        Volumes(arrays, labels=[0, 1, ...])
        Volumes([{"image": "a.nii.gz", "label": "a_seg.nii.gz"}, ...], load=prepare, keys=("image", "label"))

    They keep their type, one of uint8, int8, uint16, int16 and float32; float64 becomes float32, longer integers the
    smallest of these that has them all. `source[i]` is a volume with its channels, and the labels of its voxels, or of
    all of it. A batch is `images, masks`, or `images, labels` where there are no masks.

    The axes are those of the array: of a NIfTI file x, y and z, as nibabel has them, and channels come first.

    Args:
        volumes: Paths of files, .npy, .npz (the array "image", or the only one), .nii, .nii.gz (by nibabel) or .zarr
            (by zarr); or arrays; or whatever `load` takes.
        masks: For each volume the path of its labels, or an array, whole numbers of its shape without channels; None:
            there are none, or `load` makes them.
        labels: Label of each volume as a whole, numeric, shape (num_samples, *label_shape), where there are no masks;
            None: 0.
        load: Function that is called in place of reading files, such as what of a MONAI pipeline comes before the first
            random transform: from an item of `volumes`, or with masks from {"image": ..., "mask": ...}, to an array or
            a mapping. Several threads call it at a time. What it makes is cached; but up to six volumes are read
            whenever a loader is made, for their sizes and the fingerprint.
        keys: Of the mapping that `load` returns, the key of the volume, and of the labels of its voxels if there are
            any: by default ("image", "mask") with masks, else ("image",).
        revision: Revision of `load`, to be raised when it makes other volumes: a store looks at two of them alone.

    Raises:
        ConfigurationError: If there are none, or not as many masks or labels.
    """

    encoded = False

    def __init__(
        self,
        volumes: Sequence[Any],
        masks: Sequence[Any] | None = None,
        *,
        labels: ArrayLike | None = None,
        load: Callable[[Any], Any] | None = None,
        keys: Sequence[str] | None = None,
        revision: int = 1,
    ) -> None:
        remedy = "pass such as sorted(glob.glob(...)), or range(len(dataset)) and load=dataset.__getitem__"
        for name, given in (("volumes", volumes), ("masks", [None] if masks is None else masks)):
            require(is_list(given) and len(given) > 0, name, "a list of at least one path or array", given, remedy)
        if masks is not None and len(masks) != len(volumes):
            raise ConfigurationError(
                f"each volume must have a mask, but there are {len(volumes)} volumes and {len(masks)} masks: list them "
                f"in the same order, sorted by name for example"
            )
        require(load is None or callable(load), "load", "a function of one volume's item", load, "leave it out")
        self._keys = (IMAGE, MASK)[: 1 if masks is None else 2] if keys is None else tuple(keys)
        fits = 1 <= len(self._keys) <= len((IMAGE, MASK)) and all(isinstance(each, str) for each in self._keys)
        fits &= masks is None or len(self._keys) > 1
        require(fits, "keys", "one or two texts, two with masks", keys, 'pass such as ("image", "label")')
        require(keys is None or load is not None, "keys", "given with load", keys, "leave them out")
        self.volumes = (IMAGE, MASK)[: len(self._keys)]
        self._items, self._masks = list(map(_detached, volumes)), None if masks is None else list(map(_detached, masks))
        self._load = load
        self._revision = integer("revision", revision, 0, None, "raise it when load makes other volumes")
        if load is None:
            for each in (*self._items, *(self._masks or ())):
                if not isinstance(each, (str, os.PathLike)) and not hasattr(each, "__array__"):
                    raise ConfigurationError(
                        f"volumes and masks must be paths or arrays, but one is a {type(each).__name__}: pass load=, a "
                        f"function that makes an array of it, or leave out what has no mask"
                    )
        self._take_labels(np.zeros(len(volumes), np.int64) if labels is None else labels, len(volumes), "volumes")
        if labels is not None and (self.labels.ndim > _DIMENSIONS or MASK in self.volumes):
            raise ConfigurationError(
                "labels must be of whole volumes, where there are no masks of their voxels: pass labels of voxels as "
                "masks, and what else belongs to a volume by with_indices=True and a table of your own"
            )

    def read(self, indices: NDArray[np.int64]) -> Images:
        """Read volumes, each packed into an image, see `dalirefurb.image_batch`."""
        return Images([self._packed(index) for index in self._checked(indices)])

    def _packed(self, index: int) -> NDArray[np.uint8]:
        item = self._items[index]
        given = item if self._masks is None else {IMAGE: item, MASK: self._masks[index]}
        try:
            if self._load is not None:
                return pack_volume(volume_of(*chosen(self._load(given), self._keys)))
            parts = given if self._masks is not None else {IMAGE: item}
            return pack_volume(volume_of(*(_read(each, name) for name, each in parts.items())))
        except VolumeError as error:
            raise SampleError(index, self.name(index), str(error), lasting=True) from error
        except OSError as error:
            if is_outage(error):
                raise
            raise SampleError(index, self.name(index), f"cannot be read: {error.strerror or error}") from error

    def name(self, index: int) -> str:
        return next(_paths(self._items[index]), f"volumes[{index}]")

    def fingerprint(self) -> dict[str, Any]:
        """Hash names of files from where they differ on, numbers, some arrays, labels, and what `load` makes of two."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        items = [*self._items, *(self._masks or ())]
        paths = [path for each in items for path in _paths(each)]
        start = os.path.commonprefix(paths).rfind(os.sep) + 1  # noqa: RUF071 - folders that begin alike, too
        arrays = [np.asarray(items[row]) for row in spread(len(items), _HASHED) if hasattr(items[row], "__array__")]
        others = [_told(each) for each in items]
        texts = "\0".join(path[start:] for path in paths), "\0".join(others if any(others) else ())
        made = [] if self._load is None else [self._hash(index) for index in sorted({0, len(self) - 1})]
        return {
            "source": "Volumes",
            "num_samples": len(self),
            "arrays": list(self.volumes),
            "names": digest_of(*texts, *arrays),
            "labels": digest_of(self.labels),
            "made": made,
            "revision": self._revision,
        }

    def content(self) -> dict[str, Any]:
        """Stamp all files, and hash all arrays."""
        items = [*self._items, *(self._masks or ())]
        arrays = [hash_pixels(np.atleast_1d(np.asarray(each))) for each in items if hasattr(each, "__array__")]
        return stamp_files(path for each in items for path in _paths(each)) | ({"arrays": arrays} if arrays else {})

    def __repr__(self) -> str:
        labelled = " with labels of their voxels" if MASK in self.volumes else ""
        return f"Volumes({len(self):,} volumes{labelled})"


def _detached(item: Any) -> Any:
    """Return a tensor without its gradient, which NumPy would refuse; anything else as it is."""
    return item.detach() if hasattr(item, "__array__") and hasattr(item, "detach") else item


def _paths(item: Any) -> Iterator[str]:
    """Yield the paths in an item of a list of volumes: itself, or what a mapping or a list has, at any depth."""
    if isinstance(item, (str, os.PathLike)):
        yield os.fsdecode(item)
    elif isinstance(item, (Mapping, list, tuple)):
        for each in item.values() if isinstance(item, Mapping) else item:
            yield from _paths(each)


def _told(item: Any) -> str:
    """Write what an item of a list of volumes has, and where, but for its paths and the values of its arrays."""
    if isinstance(item, (str, os.PathLike)):
        return ""
    if isinstance(item, Mapping):
        return f"{{{', '.join(f'{name!r}: {_told(each)}' for name, each in item.items())}}}"
    if isinstance(item, (list, tuple)):
        return f"[{', '.join(map(_told, item))}]"
    if isinstance(item, (int, float, complex, np.generic)):
        return repr(item.item() if isinstance(item, np.generic) else item)
    return type(item).__name__


def _read(given: Any, name: str) -> NDArray[Any]:
    """Return an array, or read it from a file.

    Raises:
        VolumeError: If the file has none.
        OSError: If storage fails.
    """
    if not isinstance(given, (str, os.PathLike)):
        array: NDArray[Any] = given
        return array
    path = os.fsdecode(given)
    try:
        return _decoded(path, name)
    except VolumeError:
        raise
    except ImportError as error:
        raise VolumeError(f"{path} needs {error.name}: pip install {error.name}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise VolumeError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def _decoded(path: str, name: str) -> NDArray[Any]:
    kind = path.lower()
    if kind.endswith(".npy"):
        array: NDArray[Any] = np.load(path)
        return array
    if kind.endswith(".npz"):
        with np.load(path) as arrays:
            only = arrays.files[0] if len(arrays.files) == 1 else name
            if only not in arrays.files:
                raise VolumeError(
                    f"{path} must have an array {name!r}, or one alone, but has {', '.join(arrays.files)}"
                )
            return np.asarray(arrays[only])
    if kind.endswith((".nii", ".nii.gz")):
        import nibabel

        image = nibabel.load(path)
        if kind.endswith(".gz"):  # nibabel stops before the checksum.
            image = type(image).from_bytes(gzip.decompress(Path(path).read_bytes()))
        array = np.asanyarray(image.dataobj)
        return np.moveaxis(array, -1, 0) if array.ndim > _DIMENSIONS else array
    if Path(kind).suffix == ".zarr":
        import zarr

        return np.asarray(zarr.open(path, mode="r")[...])
    raise VolumeError(f"{path} must end in .npy, .npz, .nii, .nii.gz or .zarr: pass load=, a function that reads it")
