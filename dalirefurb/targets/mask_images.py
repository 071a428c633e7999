"""Masks: a number for each pixel of an image, from files or arrays; what was decoded is kept as run lengths.

Files of masks are slow to decode, a millisecond or two, and mostly of few colours in large areas. So a mask that was
decoded once is kept as the values of its runs and their lengths, a few kilobytes, from which it is there in 0.1 ms.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from dalirefurb.calls import Explained
from dalirefurb.checks import integer, is_list, require
from dalirefurb.errors import ConfigurationError, SampleError, warn
from dalirefurb.source.contract import digest_of, spread
from dalirefurb.source.files import read_file
from dalirefurb.source.storage import is_outage, stamps_of
from dalirefurb.system.resources import Budget, available_bytes, budget_bytes
from dalirefurb.targets.kinds import Target
from dalirefurb.targets.masks import KINDS, MADE, Labels, Matrix, Runs, warp_mask, warp_runs

_MODES = {"1": np.uint8, "L": np.uint8, "P": np.uint8, "I;16": np.uint16, "I;16B": np.uint16, "I": np.int32}
"""Of Pillow, whose pixels are one whole number each, and the type that has them."""


_BESIDE = 400
"""Bytes that Python takes for a mask that is kept, about."""

_HASHED = 64
"""Arrays that are looked at to tell masks from others."""


class MaskError(Exception):
    """A mask cannot be used; its text says why."""


class _Keep:
    """Masks that were decoded, as far as there is room. Thread-safe."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._room: int | None = None
        self._runs: dict[int, tuple[Runs, int]] = {}
        self._lock = threading.Lock()

    def get(self, number: int, stamp: int = 0) -> Runs | None:
        """Return what is kept of a file that has this stamp, see `stamps_of`; 0: of whatever it is by now."""
        runs, its = self._runs.get(number, (None, 0))
        return runs if stamp in (0, its) else None

    def put(self, number: int, runs: Runs, stamp: int = 0) -> None:
        """Keep what was decoded of a file that has this stamp, in place of what was there."""
        room = budget_bytes(self.budget, available=available_bytes) if self._room is None else self._room
        with self._lock:
            self._room = room if self._room is None else self._room
            if number in self._runs:
                self._room += _nbytes(self._runs.pop(number)[0])
            if (nbytes := _nbytes(runs)) <= self._room:
                self._runs[number] = runs, stamp
                self._room -= nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _Keep, (self.budget,)


def _nbytes(runs: Runs) -> int:
    """Return how many bytes a mask takes that is kept."""
    return runs.values.nbytes + runs.lengths.nbytes + _BESIDE


class Masks(Target, metaclass=Explained):
    """A whole number for each pixel, such as its class. A batch has them as (B, H, W), of the served images' size.

    A mask is warped once, by all that the recipe's stages do to coordinates together, and each pixel takes the number
    of the nearest one.

    Args:
        masks: For each sample the path of an image of one channel, or an array (height, width) of whole numbers, in the
            size of the sample's image, upright; an EXIF orientation that a file states is applied. Of an image with a
            palette the numbers are taken, not the colours.
        fill: Number of pixels that lie outside of the source's image; 255 is what is ignored in usual data sets.
        dtype: Type of the batch's tensor, as NumPy names it; int64 is what `torch.nn.functional.cross_entropy` takes.
        keep: Memory for masks of files that were decoded, as run lengths: such as "2GB", or a share of what is free.

    Raises:
        ConfigurationError: If they are no paths, or no such arrays.
    """

    def __init__(self, masks: Sequence[Any], *, fill: int = 255, dtype: str = "int64", keep: Budget = "10%") -> None:
        remedy = "pass such as sorted(glob.glob('masks/*.png'))"
        require(is_list(masks), "masks", "a list of paths, or of arrays", masks, remedy)
        require(dtype in MADE, "dtype", f"one of {', '.join(MADE)}", dtype, "int64 is usual")
        self.dtype = np.dtype(dtype)
        limits = np.iinfo(self.dtype)
        self.fill = integer("fill", fill, int(limits.min), int(limits.max), "255 is usual")
        budget_bytes(keep, available=lambda: 0)  # Refused here, not by a thread that reads.
        self._masks = [_given(mask, number) for number, mask in enumerate(masks)]
        lossy = [mask for mask in self._masks if isinstance(mask, str) and mask.lower().endswith((".jpg", ".jpeg"))]
        if lossy:
            warn(
                f"masks should be in files that keep their numbers, but {lossy[0]} is a JPEG, in which those beside "
                f"edges are others: write PNG files, or where there are only black and white, train on mask > 127",
            )
        self._numbers = np.arange(len(self._masks))
        self._fits = np.zeros(len(self._masks), np.bool_)
        self._keep = _Keep(keep)

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, samples: NDArray[np.int64]) -> Masks:
        """Return those of some samples; what was decoded is kept once."""
        return self._with(_numbers=self._numbers[samples])

    def joined(self, others: Sequence[Any]) -> Masks:
        """Return those of all samples, these first; what was decoded before is decoded anew."""
        parts = [self, *others]
        starts = np.cumsum([0, *(len(each._masks) for each in parts[:-1])])
        return self._with(
            _masks=[mask for each in parts for mask in each._masks],
            _numbers=np.concatenate([each._numbers + start for each, start in zip(parts, starts, strict=True)]),
            _fits=np.concatenate([each._fits for each in parts]),
            _keep=_Keep(self._keep.budget),
        )

    def setting(self) -> tuple[Any, ...]:
        return "Masks", str(self.dtype), self.fill

    def name(self, sample: int) -> str:
        """Tell where a sample's mask is."""
        mask = self._masks[self._numbers[sample]]
        return mask if isinstance(mask, str) else f"masks[{self._numbers[sample]}]"

    def read(self, sample: int) -> NDArray[Any]:
        """Return a sample's mask, (height, width), of its file's type.

        Raises:
            MaskError: If it cannot be used.
            OSError: If storage fails.
        """
        number = int(self._numbers[sample])
        mask = self._masks[number]
        if isinstance(mask, np.ndarray):
            self._masks[number] = mask = _of_kind(mask)
            return mask
        stamp = int(stamps_of([mask])[0])  # Before it is read: it may change meanwhile.
        kept = self._keep.get(number, stamp)
        if kept is not None:
            return kept.mask()
        decoded = _decoded(mask, sample)
        self._keep.put(number, Runs.of(decoded), stamp)
        return decoded

    def look_anew(self) -> None:
        """Have each file asked once more, when it is next used, whether it is still what was kept of it."""
        self._fits[self._numbers] = False

    def one(self, sample: int, size: tuple[int, int]) -> NDArray[Any]:
        try:
            return np.array(self.fitting(sample, size))
        except MaskError as error:
            raise SampleError(sample, self.name(sample), str(error), lasting=True) from error

    def misfit(self, sample: int, size: tuple[int, int]) -> str | None:
        """Say why a sample's mask cannot be used with its image, of such a height and width; None if it can.

        What was found to fit is not looked at again.
        """
        try:
            if not self._fits[self._numbers[sample]]:
                self.fitting(sample, size)
        except MaskError as error:
            return f"its mask {self.name(sample)}: {error}"
        return None

    def fitting(self, sample: int, size: tuple[int, int]) -> NDArray[Any]:
        """Return a sample's mask, which has the height and width of its image; see `read`."""
        mask = self.read(sample)
        if mask.shape != size:
            raise MaskError(
                f"it must have the size of the image, {size[0]} x {size[1]}, EXIF orientation applied, but has "
                f"{mask.shape[0]} x {mask.shape[1]}"
            )
        limits = np.iinfo(self.dtype)
        number = self._numbers[sample]
        fits = self._fits[number] or np.can_cast(mask.dtype, self.dtype)
        if not fits and not limits.min <= mask.min() <= mask.max() <= limits.max:
            raise MaskError(
                f"its numbers must fit into {self.dtype}, but go from {mask.min()} to {mask.max()}: pass dtype='int64'"
            )
        self._fits[number] = True
        return mask

    def warp(
        self, sample: int, size: tuple[int, int], source_map: Matrix, lines: Matrix, out: Labels, *, over: bool = False
    ) -> None:
        """Show a sample's mask, which must have the height and width of its image, in a served one; see `warp_labels`.

        Raises:
            MaskError: If it cannot be used.
            OSError: If storage fails.
        """
        number = int(self._numbers[sample])
        kept = self._keep.get(number) if self._fits[number] else None
        if kept is not None and kept.shape == size:
            warp_runs(kept, source_map, lines, self.fill, out, over=over)
        else:
            warp_mask(self.fitting(sample, size), source_map, lines, self.fill, out, over=over)

    def digest(self) -> str:
        """Hash the names of files from where they differ on, pixels of some arrays, evenly spaced, and the fill."""
        masks = [self._masks[number] for number in self._numbers.tolist()]
        paths = [mask for mask in masks if isinstance(mask, str)]
        start = os.path.commonprefix(paths).rfind(os.sep) + 1  # noqa: RUF071 - folders that begin alike, too
        arrays = [masks[row] for row in spread(len(masks), _HASHED) if isinstance(masks[row], np.ndarray)]
        names = [mask[start:] if isinstance(mask, str) else "" for mask in masks] if paths else []
        return digest_of("\0".join(names), *arrays, np.array([len(self), self.fill]))

    def __repr__(self) -> str:
        return f"Masks({len(self):,}, {self.dtype}, fill={self.fill})"


def _given(mask: Any, number: int) -> str | NDArray[Any]:
    """Return the path of a file, or an array (height, width) of whole numbers."""
    if isinstance(mask, (str, os.PathLike)):
        return os.fsdecode(mask)
    if not hasattr(mask, "__array__") or isinstance(mask, Image.Image):
        what = "a Pillow image" if isinstance(mask, Image.Image) else f"a {type(mask).__name__}"
    elif (array := np.asarray(mask)).ndim == 2 and array.dtype.kind in "biu" and array.size:
        return array
    else:
        what = f"{array.dtype} of shape {array.shape}"
    raise ConfigurationError(
        f"masks must be paths, or arrays of whole numbers of shape (height, width), but number {number} is {what}: "
        f"pass such as np.asarray(image), mask[..., 0], mask.argmax(-1) or mask.astype('uint8')"
    )


def _of_kind(mask: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers of pixels as a mask of one of `KINDS`, without a copy if possible."""
    if mask.dtype in KINDS:
        return mask
    limits = np.iinfo(np.int32)
    if mask.dtype.kind != "b" and not limits.min <= mask.min() <= mask.max() <= limits.max:
        raise MaskError(f"its numbers must fit into int32, but go from {mask.min()} to {mask.max()}")
    return mask.astype(np.uint8 if mask.dtype.kind == "b" else np.int32)


def _decoded(path: str, sample: int) -> NDArray[Any]:
    """Read and decode a file, (height, width)."""
    try:
        encoded = read_file(path, sample)
        with Image.open(io.BytesIO(encoded.data)) as image:
            dtype = _MODES.get(image.mode)
            if dtype is None:
                raise MaskError(
                    f"it must be an image of one channel, such as a grey or a palette PNG, got mode {image.mode!r}: "
                    f"write the number of each colour instead"
                )
            image.load()
            with suppress(Exception):  # Whatever Pillow meets in broken EXIF data, of which images take none either.
                ImageOps.exif_transpose(image, in_place=True)
            return np.ascontiguousarray(np.asarray(image), dtype)
    except SampleError as error:
        raise MaskError(error.reason) from error
    except UnidentifiedImageError as error:
        raise MaskError("it cannot be decoded (of no format that Pillow knows)") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if is_outage(error):
            raise
        raise MaskError(f"it cannot be decoded ({error})") from error
