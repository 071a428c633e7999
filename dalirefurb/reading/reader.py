"""Reader: samples read on a few threads, ahead of time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dalirefurb.dali import GraphError, undecodable
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.reading.bad_samples import Substitutes
from dalirefurb.reading.formats import as_pnm
from dalirefurb.reading.inspector import Inspector, OnLook, Refused
from dalirefurb.source import Source
from dalirefurb.source.contract import Numbers
from dalirefurb.source.levels import Levels
from dalirefurb.source.storage import RETRY_S, Patience, is_page
from dalirefurb.system.threads import Background


@dataclass(frozen=True)
class Samples:
    """What a source gave for some rows.

    Attributes:
        data: Encoded images, each uint8 of shape (length,), or decoded images, each HWC uint8; one per row. Among
            encoded ones some may be decoded, where the reader passes these on.
        heights: Heights of the images in pixels, EXIF orientation applied, int64 of shape (n,).
        widths: Widths of the images in pixels, EXIF orientation applied, int64 of shape (n,).
        indices: Indices of the samples that were asked for, or of what replaces them, int64 of shape (n,).
        as_read: Encoded images as they were before any of them was encoded anew; empty where the source
            gives decoded images.
    """

    data: Sequence[NDArray[np.uint8]]
    heights: Numbers
    widths: Numbers
    indices: Numbers
    as_read: Sequence[NDArray[np.uint8]] = ()


def joined(parts: list[Samples]) -> Samples:
    """Put the rows of several reads into one."""
    return Samples(
        [sample for part in parts for sample in part.data],
        np.concatenate([part.heights for part in parts]),
        np.concatenate([part.widths for part in parts]),
        np.concatenate([part.indices for part in parts]),
        [sample for part in parts for sample in part.as_read],
    )


_POLL_S = 0.1

Held = Sequence["NDArray[np.uint8] | None"]
"""What is at hand already of some encoded samples, as it was read before; one per row, None: nothing."""

Refusal = Callable[[Numbers, Numbers], "tuple[int, str] | None"]
"""Finds, by heights and widths, the row of an image that cannot be used, and says why."""


class Reader:
    """Reads samples and their headers in the background, one job per batch.

    An encoded image is looked at when its bytes are first seen, see `Inspector`.

    Args:
        source: Source of the samples.
        max_batch_size: Largest number of samples that are read together.
        num_threads: Number of threads, each of which does one job at a time.
        max_pixels: Largest number of pixels in an encoded image; None: any size.
        refusal: Function that finds an image whose size cannot be used, see `Recipe.refusal`; None: any size can be
            used.
        asks_for_images: Whether encoded samples are wanted decoded, so that the source is asked for those that it has.
        passes_images: Whether decoded images among encoded ones, of the source's and of Pillow's, are passed on as they
            are; else as files that DALI decodes.
        on_look: Function that is told of what Pillow decodes, see `Inspector`.
        substitutes: Substitutes for samples that are refused; None: refused samples raise an error.
        retry_s: Seconds for which storage that fails is asked again.
    """

    def __init__(
        self,
        source: Source,
        *,
        max_batch_size: int,
        num_threads: int,
        max_pixels: int | None = None,
        refusal: Refusal | None = None,
        asks_for_images: bool = False,
        passes_images: bool = False,
        on_look: OnLook = lambda images, by_pillow, seconds: None,
        substitutes: Substitutes | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._source = source
        self.patience = Patience(retry_s)
        self._were_images = np.zeros(len(source) if source.encoded else 0, np.bool_)
        self.max_pixels = max_pixels
        self._refuses = refusal
        self._asks_for_images = asks_for_images and source.encoded
        self._passes_images = passes_images
        self.substitutes = substitutes
        self._inspector: Inspector | None = None
        if source.encoded:
            levels, samples = Levels(source.value_range), len(source)
            self._inspector = Inspector(samples, max_pixels, levels, name=source.name, on_look=on_look)
        # Sizes of what was read; that of targets' images is needed where these come from a store, too.
        self._sizes = None if source.annotations is None else np.zeros((len(source), 2), np.int32)
        self._max_batch_size = max_batch_size
        self._pool = Background(num_threads, name="dalirefurb-read")
        self._nothing: Future[Samples] = Future()
        self._nothing.set_result(Samples([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)))

    def read(self, indices: Numbers, versions: Numbers, held: Held = ()) -> Future[Samples]:
        """Start to read what these versions, shape (n,), are made of; what is held of it is not read, but looked at.

        The future raises `SampleError` if one of the samples cannot be used and is not replaced, `ReadError` if storage
        fails for too long, `LoaderError` if nothing good is found to replace one.
        """
        if len(indices):
            return self._pool.submit(partial(self._read, indices, versions, held))
        return self._nothing

    def sizes(self, indices: Numbers) -> tuple[Numbers, Numbers]:
        """Read some samples now, or what replaces their version 0; return heights and widths in pixels, each (n,)."""
        sizes = [(samples.heights, samples.widths) for samples in self._now(indices)]
        heights, widths = np.concatenate(sizes, axis=1)
        return heights, widths

    def known_sizes(self, indices: Numbers) -> tuple[Numbers, Numbers]:
        """Return heights and widths in pixels, each (n,), of images of a source with targets.

        Those that were not read yet, but are in a store of an earlier run, are read now.

        Raises:
            SampleError: If one of them cannot be used any more.
        """
        assert self._sizes is not None
        unknown = np.unique(indices[self._sizes[indices, 0] == 0])
        if len(unknown):
            for _ in self._now(unknown):
                pass
        heights, widths = self._sizes[indices].astype(np.int64).T
        if not heights.all():
            raise self._error(int(indices[heights.argmin()]), "its size is needed for its targets, and cannot be read")
        return heights, widths

    def lengths(self, indices: Numbers) -> Numbers:
        """Read some encoded samples now, or what replaces their version 0; return the bytes of each, shape (n,)."""
        return np.array([len(sample) for samples in self._now(indices) for sample in samples.as_read], np.int64)

    def _now(self, indices: Numbers) -> Iterator[Samples]:
        """Read version 0 of samples, as many at a time as are read together."""
        parts = (indices[i : i + self._max_batch_size] for i in range(0, len(indices), self._max_batch_size))
        return (self.read_now(part, np.zeros_like(part)) for part in parts)

    def bad(self, indices: Numbers) -> NDArray[np.bool_]:
        """Tell which samples are known to be replaced, shape (n,)."""
        return np.zeros(len(indices), np.bool_) if self.substitutes is None else self.substitutes.bad(indices)

    def reconsider(self, samples: Samples, error: GraphError) -> bool:
        """After a graph failed: find out which of its samples cannot be decoded, and do without them from now on.

        Returns:
            Whether there are any, so that it is worth while to read again.

        Raises:
            SampleError: If one cannot be decoded, and bad samples are not replaced.
        """
        if self._inspector is None:
            return False
        encoded = [row for row, sample in enumerate(samples.data) if sample.ndim == 1]
        failures = {encoded[row]: why for row, why in undecodable([samples.data[row] for row in encoded])}
        if error.row is not None:  # A GPU's decoder may refuse what a CPU's takes.
            failures.setdefault(error.row, error.reason)
        for row, reason in sorted(failures.items()):
            index, reason = int(samples.indices[row]), f"decoding failed ({reason})"
            try:
                self._inspector.give_up(index, row, samples.data[row], reason)
            except Refused as refused:
                bad = self._error(index, refused.reason, lasting=True)
                if self.substitutes is None:
                    raise bad from None
                self.substitutes.add(bad)
        return bool(failures)

    def read_now(self, indices: Numbers, versions: Numbers) -> Samples:
        """Read, and wait for it until the reader is closed; for the errors see `read`.

        Raises:
            LoaderError: It was closed.
        """
        return self.waited_for(self.read(indices, versions))

    def waited_for(self, reading: Future[Samples]) -> Samples:
        """Wait for what was read, until the reader is closed; for the errors see `read` and `read_now`."""
        while not wait([reading], timeout=_POLL_S).done:
            if self._pool.closed:
                raise LoaderError("the loader was closed while samples were read")
            self.patience.look()
        return reading.result()

    def close(self) -> None:
        """Have the threads end after their present jobs, in which none pauses any more. Never waits."""
        self._pool.close()
        self.patience.closed.set()

    def join(self) -> None:
        """Wait until the threads have ended; one whose reading hangs is left alone after a second."""
        self._pool.join()

    def _read(self, indices: Numbers, versions: Numbers, held: Held = ()) -> Samples:
        if self.substitutes is None:
            return self._together(indices, held)
        try:
            return self._instead(indices, versions, held)
        except SampleError:
            # One of them is bad, or several: one by one they tell.
            rows = (slice(row, row + 1) for row in range(len(indices)))
            return joined([self._good(indices[row], versions[row], held[row]) for row in rows])

    def _instead(self, indices: Numbers, versions: Numbers, held: Held) -> Samples:
        """Read samples, or what replaces those that are known to be bad; of these what is held is of no use."""
        assert self.substitutes is not None
        read = self.substitutes.of(indices, versions)
        if held and read is not indices:
            held = [sample if same else None for sample, same in zip(held, read == indices, strict=True)]
        return self._together(read, held)

    def _good(self, index: Numbers, version: Numbers, held: Held) -> Samples:
        """Read one sample, shape (1,), or the first one to replace it that is good."""
        assert self.substitutes is not None
        while True:
            read = self.substitutes.of(index, version)
            try:
                return self._together(read, held if read[0] == index[0] else ())
            except SampleError as error:
                self.substitutes.add(SampleError(int(read[0]), error.name, error.reason, lasting=error.lasting))

    def _together(self, indices: Numbers, held: Held) -> Samples:
        """Read samples, all of which have to be good."""
        samples = self._measured(indices, held)
        refusal = None if self._refuses is None else self._refuses(samples.heights, samples.widths)
        if refusal is None:
            refusal = self.patience.of(
                partial(self._source.refusal, indices, samples.heights, samples.widths),
                f"what belongs to sample {indices[0]} ({self._source.name(int(indices[0]))}), or to another",
            )
        if refusal is not None:
            row, reason = refusal
            raise self._error(int(indices[row]), reason)
        if self._sizes is not None:
            self._sizes[indices] = np.stack((samples.heights, samples.widths), axis=1)
        return samples

    def _measured(self, indices: Numbers, held: Held) -> Samples:
        """Take what the source has decoded, read the others, and find out the sizes of all."""
        images = self._source.images(indices) if self._asks_for_images else None
        if images is None:
            return self._looked_at(indices, held)
        sizes = images.origins.sizes
        pixels = sizes.prod(axis=1)
        rest = np.flatnonzero((pixels == 0) | (self.max_pixels is not None and pixels > (self.max_pixels or 0)))
        if not len(rest) and self._passes_images:
            return Samples(images, sizes[:, 0], sizes[:, 1], indices, images)
        data = [*images]
        if len(rest):
            read = self._looked_at(indices[rest], ())
            sizes = sizes.copy()
            sizes[rest] = np.stack((read.heights, read.widths), axis=1)
            for row, sample in zip(rest.tolist(), read.data, strict=True):
                data[row] = sample
        return Samples(self._passed_on(data), sizes[:, 0], sizes[:, 1], indices, data)

    def _passed_on(self, data: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """Return encoded samples, of which some may be decoded, as they are passed on."""
        if self._passes_images:
            return data
        return [as_pnm(sample) if sample.ndim == 3 else sample for sample in data]

    def _looked_at(self, indices: Numbers, held: Held) -> Samples:
        """Read samples and find out their sizes."""
        data = self._data(indices) if not held else self._rest(indices, held)
        if self._inspector is not None:
            as_read = list(data)
            self._check(indices, as_read)
            given = list(as_read)
            try:
                with self._pool.unbroken():  # It is in DALI's code.
                    heights, widths = self._inspector.look(indices, given)
            except Refused as refused:
                raise self._error(int(indices[refused.row]), refused.reason, lasting=True) from None
            self._were_images[indices] = True
            return Samples(self._passed_on(given), heights, widths, indices, as_read)
        images = Images.of(data)
        if images.whole is None:
            self._check(indices, images)
            sizes = np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2)
        else:  # Rows of one array are alike.
            array, _ = images.whole
            self._check(indices[:1], array[:1])
            sizes = np.full((len(indices), 2), array.shape[1:3], np.int64)
        return Samples(images, sizes[:, 0], sizes[:, 1], indices)

    def _rest(self, indices: Numbers, held: Held) -> list[NDArray[np.uint8]]:
        """Read the samples of which nothing is held; return these and the others, in order."""
        missing = indices[[sample is None for sample in held]]
        read = iter(self._data(missing) if len(missing) else ())
        return [next(read) if sample is None else sample for sample in held]

    def _data(self, indices: Numbers) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read samples; refuse what are not as many as they should be."""
        data = self._from_source(indices)
        if not isinstance(data, (np.ndarray, Images)):
            data = list(data)
        if len(data) != len(indices):
            raise LoaderError(
                f"a source must return as many samples as it is asked for, but {type(self._source).__name__} returned "
                f"{len(data)} for {len(indices)} indices: see its read"
            )
        return data

    def _check(self, indices: Numbers, samples: Iterable[NDArray[np.uint8]]) -> None:
        """Refuse what is no sample, or none of the shape that the source declares."""
        shape = self._source.image_shape
        for index, sample in zip(indices.tolist(), samples, strict=True):
            if not isinstance(sample, np.ndarray):
                raise self._unusable(index, type(sample).__name__)
            if self._source.encoded:
                fits = sample.ndim == 1
            else:
                fits = sample.ndim == 3 and sample.shape[2] == 3 and min(sample.shape) > 0
                fits &= shape is None or sample.shape == shape
            if sample.dtype != np.uint8 or not fits or not sample.flags.c_contiguous:
                raise self._unusable(index, f"{sample.dtype} of shape {sample.shape}")

    def _unusable(self, index: int, got: str) -> SampleError:
        height, width, _ = self._source.image_shape or ("height", "width", 3)
        what = f"an image, uint8 of shape ({height}, {width}, 3)"
        if self._source.encoded:
            what = "encoded bytes, uint8 of shape (length,)"
        return self._error(index, f"the source must return {what}, as a C-contiguous array, got {got}")

    def _from_source(self, indices: Numbers) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read samples; if that fails, half by half, until the culprit is alone: it is bad, or is waited for."""
        index, half = int(indices[0]), len(indices) // 2
        ask, others = (self.patience.once, f" or another of {len(indices)}") if half else (self.patience.of, "")
        try:
            return ask(partial(self._once, indices), f"sample {index} ({self._source.name(index)}){others}")
        except DalirefurbError:
            raise
        except Exception as error:
            if not half:
                reason = f"the source failed to read it ({type(error).__name__}: {error})"
                raise self._error(index, reason) from error
        return [*self._from_source(indices[:half]), *self._from_source(indices[half:])]

    def _once(self, indices: Numbers) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read samples once; a server's page where an image was is an error of reading, though not in a file."""
        samples = self._source.read(indices)
        if self._source.encoded:
            samples = list(samples)
            there = os.path.exists  # That of `Path` raises for a name that is too long, as addresses are.
            for index, sample in zip(indices.tolist(), samples, strict=False):
                if self._were_images[index] and is_page(sample) and not there(self._source.name(index)):
                    raise OSError(f"a page came where an image was: {sample[:64].tobytes()!r}")
        return samples

    def _error(self, index: int, reason: str, *, lasting: bool = False) -> SampleError:
        return SampleError(index, self._source.name(index), reason, lasting=lasting)
