"""Volumes: arrays of voxels from files, from memory or from a function, perhaps with a label of each voxel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.checks import integer, require
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.packed import VolumeError, pack_volume, volume_of
from dalirefurb.source.contract import Source, digest_of, spread
from dalirefurb.source.outage import is_outage
from dalirefurb.source.stamps import hash_pixels, stamp_files

_HASHED = 8
"""Arrays that are looked at to tell volumes from others."""

_NIFTI = (".nii", ".nii.gz")


class Volumes(Source):
    """Volumes (depth, height, width), or (channels, depth, height, width), and perhaps labels of their voxels.

        Volumes(sorted(glob.glob("scans/*.nii.gz")), sorted(glob.glob("labels/*.nii.gz")))
        Volumes(arrays, labels=[0, 1, ...])
        Volumes([{"image": "a.nii.gz", "label": "a_seg.nii.gz"}, ...], load=prepare)

    They keep their type, one of uint8, int8, uint16, int16 and float32; float64 becomes float32. `source[i]` is a
    volume with its channels, and the labels of its voxels or of all of it. A batch is `images, masks`, or `images,
    labels` where there are no masks.

    Args:
        volumes: Paths of files, .npy, .npz (the array "image", or the only one), .nii, .nii.gz (by nibabel) or .zarr
            (by zarr); or arrays; or whatever `load` takes.
        masks: For each volume the path of its labels, or an array, whole numbers of its shape without channels; None:
            there are none.
        labels: Label of each volume as a whole, numeric, shape (num_samples, *label_shape); None: 0.
        load: Function that is called in place of reading files, such as what of a MONAI pipeline comes before the first
            random transform: from an item of `volumes`, or with masks from {"image": ..., "mask": ...}, to an array or
            a mapping of "image" to one and of "mask" to another. Several threads call it at a time. What it makes is
            cached, so with a store it is called once for what stays there.
        revision: Revision of `load`, to be raised when it makes other volumes: a store cannot look into it.

    Raises:
        ConfigurationError: If there are none, or not as many masks or labels.
    """

    encoded = False
    volumes = True

    def __init__(
        self,
        volumes: Sequence[Any],
        masks: Sequence[Any] | None = None,
        *,
        labels: ArrayLike | None = None,
        load: Callable[[Any], Any] | None = None,
        revision: int = 1,
    ) -> None:
        for name, given in (("volumes", volumes), ("masks", masks)):
            listed = (
                isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes)) and len(given) > 0
            )
            holds = listed or (given is None and name == "masks")
            require(holds, name, "a list of at least one path or array", given, "pass such as sorted(glob.glob(...))")
        if masks is not None and len(masks) != len(volumes):
            raise ConfigurationError(
                f"each volume must have a mask, but there are {len(volumes)} volumes and {len(masks)} masks: list them "
                f"in the same order, sorted by name for example"
            )
        require(load is None or callable(load), "load", "a function of one volume's item", load, "leave it out")
        self._volumes, self._masks, self._load = list(volumes), None if masks is None else list(masks), load
        self._revision = integer("revision", revision, 0, None, "raise it when load makes other volumes")
        if load is None:
            for each in (*self._volumes, *(self._masks or ())):
                if not isinstance(each, (str, os.PathLike)) and not hasattr(each, "__array__"):
                    raise ConfigurationError(
                        f"volumes must be paths or arrays, but one is a {type(each).__name__}: pass load=, a function "
                        f"that makes an array of it"
                    )
        self._take_labels(np.zeros(len(volumes), np.int64) if labels is None else labels, len(volumes), "volumes")

    def read(self, indices: NDArray[np.int64]) -> Images:
        """Read volumes, each packed into an image, see `dalirefurb.packed`."""
        return Images([self._packed(index) for index in self._checked(indices)])

    def _packed(self, index: int) -> NDArray[np.uint8]:
        volume = self._volumes[index]
        given = volume if self._masks is None else {"image": volume, "mask": self._masks[index]}
        try:
            if self._load is not None:
                return pack_volume(volume_of(self._load(given)))
            parts = given if self._masks is not None else {"image": volume}
            return pack_volume(volume_of({name: _array(each, name) for name, each in parts.items()}))
        except VolumeError as error:
            raise SampleError(index, self.name(index), str(error), lasting=True) from error
        except OSError as error:
            if is_outage(error):
                raise
            raise SampleError(index, self.name(index), f"cannot be read: {error.strerror or error}") from error

    def name(self, index: int) -> str:
        """Return the path, or the row."""
        volume = self._volumes[index]
        paths = _paths(volume)
        return paths[0] if paths else f"volumes[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        """Hash names of files from where they differ on, 8 arrays, evenly spaced, the labels, and what loads them."""
        items = [*self._volumes, *(self._masks or ())]
        paths = [path for each in items for path in _paths(each)]
        start = os.path.commonprefix(paths).rfind(os.sep) + 1  # noqa: RUF071 - folders that begin alike, too
        arrays = [np.asarray(items[row]) for row in spread(len(items), _HASHED) if hasattr(items[row], "__array__")]
        load = "" if self._load is None else getattr(self._load, "__qualname__", type(self._load).__qualname__)
        return {
            "source": "Volumes",
            "num_samples": len(self),
            "masks": self._masks is not None,
            "names": digest_of("\0".join(path[start:] for path in paths), *arrays),
            "labels": digest_of(self.labels),
            "load": load,
            "revision": self._revision,
        }

    def content(self) -> dict[str, Any]:
        """Stamp all files, and hash all arrays."""
        items = [*self._volumes, *(self._masks or ())]
        arrays = [hash_pixels(np.atleast_1d(np.asarray(each))) for each in items if hasattr(each, "__array__")]
        return stamp_files(path for each in items for path in _paths(each)) | ({"arrays": arrays} if arrays else {})

    def __repr__(self) -> str:
        labelled = "" if self._masks is None else " with labels of their voxels"
        return f"Volumes({len(self):,} volumes{labelled})"


def _paths(item: Any) -> list[str]:
    """Return the paths in an item of a list of volumes: itself, or values of a mapping."""
    values = item.values() if isinstance(item, Mapping) else (item,)
    return [os.fsdecode(each) for each in values if isinstance(each, (str, os.PathLike))]


def _array(given: Any, name: str) -> NDArray[Any]:
    """Return an array, or read it from a file.

    Raises:
        VolumeError: If the file has none.
        OSError: If storage fails.
    """
    if not isinstance(given, (str, os.PathLike)):
        return np.asarray(given)
    path = os.fsdecode(given)
    try:
        return _read(path, name)
    except (OSError, VolumeError):
        raise
    except ImportError as error:
        raise VolumeError(f"{path} needs {error.name}: pip install {error.name}") from error
    except Exception as error:
        raise VolumeError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def _read(path: str, name: str) -> NDArray[Any]:
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
    if kind.endswith(_NIFTI):
        import nibabel

        return np.asanyarray(nibabel.load(path).dataobj)
    if Path(kind).suffix == ".zarr":
        import zarr

        return np.asarray(zarr.open(path, mode="r")[...])
    raise VolumeError(f"{path} must end in .npy, .npz, .nii, .nii.gz or .zarr: pass load=, a function that reads it")
