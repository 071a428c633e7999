"""How do samples come from files without anybody waiting for them? On a few threads, ahead of time."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dalirefurb.background import Background
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError
from dalirefurb.graph import GraphError, HeaderReader, first_undecodable
from dalirefurb.source import Source

_POLL_S = 0.1
_END = 1024
"""Bytes at the end of a JPEG among which its end marker is looked for; some files have others behind it."""


@dataclass(frozen=True)
class Samples:
    """What a source gave for some rows.

    Attributes:
        data: Encoded bytes, uint8 of shape (length,), or images, HWC uint8; one per row.
        heights: Of the images in pixels, EXIF orientation applied, shape (n,).
        widths: Likewise.
    """

    data: list[NDArray[np.uint8]]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]


class Reader:
    """Reads samples and their headers in the background, one job per batch.

    A header is looked at when its sample is first read. An image larger than `max_pixels` is refused before it is
    decoded, and so is a JPEG that ends early if it cannot be decoded whole: a window of it sometimes could, so that it
    would be served at one split and refused at another.
    """

    def __init__(self, source: Source, *, max_batch_size: int, num_threads: int, max_pixels: int | None = None) -> None:
        self._source = source
        self._max_pixels = max_pixels
        self._headers = HeaderReader(max_batch_size)
        # Heights and widths that headers told, 8 bytes a sample; 0 before the first read.
        self._known = np.zeros((len(source) if source.encoded else 0, 2), dtype=np.int32)
        self._max_batch_size = max_batch_size
        self._pool = Background(num_threads, name="dalirefurb-read")

    def read(self, indices: NDArray[np.int64]) -> Future[Samples]:
        """Start to read; the future raises `SampleError` if one of the samples cannot be read."""
        if len(indices):
            return self._pool.submit(partial(self._read, indices))
        nothing: Future[Samples] = Future()
        nothing.set_result(Samples([], np.empty(0, np.int64), np.empty(0, np.int64)))
        return nothing

    def sizes(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read some samples now; return heights and widths in pixels, each of shape (n,)."""
        chunks = [
            self._read(indices[i : i + self._max_batch_size]) for i in range(0, len(indices), self._max_batch_size)
        ]
        return np.concatenate([chunk.heights for chunk in chunks]), np.concatenate([chunk.widths for chunk in chunks])

    def read_now(self, indices: NDArray[np.int64]) -> Samples:
        """Read, and wait for it until the reader is closed; for the errors see `read`.

        Raises:
            LoaderError: It was closed.
        """
        reading = self.read(indices)
        while not wait([reading], timeout=_POLL_S).done:
            if self._pool.closed:
                raise LoaderError("the loader was closed while samples were read")
        return reading.result()

    def close(self) -> None:
        """Have the threads end after their present jobs. Never waits."""
        self._pool.close()

    def join(self) -> None:
        """Wait until the threads have ended; one whose reading hangs is left alone after a second."""
        self._pool.join()

    def _read(self, indices: NDArray[np.int64]) -> Samples:
        data = self._from_source(indices)
        ndim = 1 if self._source.encoded else 3
        for index, sample in zip(indices.tolist(), data, strict=True):
            if sample.dtype != np.uint8 or sample.ndim != ndim or not sample.flags.c_contiguous:
                what = "encoded bytes, uint8 of shape (length,)" if ndim == 1 else "an HWC uint8 image"
                raise SampleError(
                    index,
                    self._source.name(index),
                    f"the source must return {what}, C-contiguous, got {sample.dtype} of shape {sample.shape}",
                )
        if not self._source.encoded:
            shapes = np.array([sample.shape[:2] for sample in data], dtype=np.int64).reshape(-1, 2)
            return Samples(data, shapes[:, 0], shapes[:, 1])
        return Samples(data, *self._encoded_sizes(indices, data))

    def _from_source(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Read samples; if that fails for a reason that names none, once more one by one, to name the culprit."""
        try:
            return self._source.read(indices)
        except DalirefurbError:
            raise
        except Exception as error:
            if len(indices) > 1:
                return [self._from_source(indices[row : row + 1])[0] for row in range(len(indices))]
            index = int(indices[0])
            reason = f"the source failed to read it ({type(error).__name__}: {error})"
            raise SampleError(index, self._source.name(index), reason) from error

    def _check(self, index: int, encoded: NDArray[np.uint8], height: int, width: int) -> None:
        """Refuse an image that is too large, or cut off."""
        if self._max_pixels is not None and height * width > self._max_pixels:
            reason = (
                f"an image must have {self._max_pixels:,} pixels at most, but its header declares {height} x {width}: "
                f"pass a larger max_pixels to the loader if it is genuine"
            )
            raise SampleError(index, self._source.name(index), reason)
        if _ends_early(encoded) and (undecodable := first_undecodable([encoded])):
            raise SampleError(index, self._source.name(index), f"decoding failed ({undecodable[1]})")

    def _encoded_sizes(
        self, indices: NDArray[np.int64], data: list[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return heights and widths; a header is read once in a run."""
        unknown = np.flatnonzero(self._known[indices, 0] == 0)
        try:
            sizes = self._headers.sizes([data[row] for row in unknown])
        except GraphError as error:
            index = int(indices[unknown[error.row or 0]])
            reason = f"not an image that DALI can decode ({error.reason})"
            raise SampleError(index, self._source.name(index), reason) from error
        for row, height, width in zip(unknown.tolist(), *(side.tolist() for side in sizes), strict=True):
            self._check(int(indices[row]), data[row], height, width)
        self._known[indices[unknown]] = np.stack(sizes, axis=1)
        known = self._known[indices].astype(np.int64)
        return known[:, 0], known[:, 1]


def _ends_early(encoded: NDArray[np.uint8]) -> bool:
    """Whether a file begins as a JPEG and has no end marker near its end; entropy-coded data cannot contain one."""
    if encoded[:2].tobytes() != b"\xff\xd8":
        return False
    return b"\xff\xd9" not in encoded[-_END:].tobytes()


def undecodable_sample(
    source: Source, indices: NDArray[np.int64], data: list[NDArray[np.uint8]], error: GraphError
) -> SampleError | None:
    """Name the sample that made a graph fail, if one did.

    Args:
        source: Where the samples are from.
        indices: Those that the graph was given, shape (n,).
        data: The same, as they were read.
        error: What the graph said.
    """
    row, reason = error.row, error.reason
    if source.encoded and row is None:
        row, reason = first_undecodable(data) or (None, reason)
    if row is None:
        return None
    index = int(indices[row])
    return SampleError(index, source.name(index), f"decoding failed ({reason})")
