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
from dalirefurb.image_batch import Images
from dalirefurb.source.contract import Source, digest_of, spread
from dalirefurb.source.outage import is_outage
from dalirefurb.source.stamps import hash_pixels, stamp_files
from dalirefurb.source.volume_arrays import IMAGE, MASK, VolumeError, chosen, pack_volume, volume_of

_HASHED = 8
"""Arrays that are looked at to tell volumes from others."""

_DIMENSIONS = 3


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
        """Read volumes, each packed into an image, see `dalirefurb.packed`."""
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
