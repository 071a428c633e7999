"""SlotReader: reading of samples from a file, where they lie if they are in memory anyway, else copied into a buffer.

A failing device, or a file cut short, is an error of a copy; through a map it would be a signal, see `page_cache`.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.image_batch import Image, Images, Places
from dalirefurb.store.allocator import ALIGNMENT, rounded
from dalirefurb.store.available import available_bytes
from dalirefurb.store.disk.file_header import SAMPLES_START, Layout
from dalirefurb.store.disk.page_cache import SMALL, BlockReadAhead, Mapped, SampleReadAhead
from dalirefurb.store.disk.records import Records, sizes

_WARM_READS = 16
"""After so many in a row for which all was in memory, nothing is announced until one is not."""

_NO_BYTES = np.empty(0, np.uint8)

_LEAST_ROOM = 2
"""The memory at hand is as many times the samples' bytes, at least, if they are to stay in it."""


class CopyBuffers:
    """Memory to read into, used again and again: fresh memory costs more than what is read into it. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []
        self._lock = Lock()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return at least `nbytes`; if the largest at hand is too small, it makes way for a larger one."""
        with self._lock:
            self._free.sort(key=len)
            buffer = self._free.pop() if nbytes and self._free else _NO_BYTES
        return buffer if len(buffer) >= nbytes else np.empty(1 << (nbytes - 1).bit_length(), np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """Give a buffer back."""
        with self._lock:
            if len(buffer):
                self._free.append(buffer)


class SlotReader:
    """Reads samples, and sees whether they are as they were written.

    Args:
        fd: The file, open, and as long as its layout says.
        layout: Layout that says where the file's parts are.

    Attributes:
        buffers: Buffers that samples are copied into.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        nbytes, room = layout.samples_bytes, available_bytes()
        fits = room is None or nbytes * _LEAST_ROOM <= room
        self.buffers = CopyBuffers()
        self._fd = fd
        self._read_ahead = SampleReadAhead(fd, SAMPLES_START)
        self._mapped: Mapped | None = None
        self._warm_reads = 0
        if fits:
            with suppress(OSError):  # Some file systems map nothing, or do not tell what is in memory.
                self._mapped = Mapped(fd, SAMPLES_START + nbytes)
                if nbytes < SMALL * layout.spec.slots:
                    self._read_ahead = BlockReadAhead(fd, self._mapped, SAMPLES_START)
        # A sample is asked for whole, and its neighbour is none that comes next, unless `BlockReadAhead` says so.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def is_warm(self) -> bool:
        """Whether all is in memory, as it seems, so that there is nothing to prefetch."""
        return self._warm_reads >= _WARM_READS

    def read(self, records: Records) -> tuple[NDArray[np.bool_], Images, NDArray[np.uint8]]:
        """Read n samples.

        Returns:
            Whether the pixels of each are those that were written, shape (n,); what was read, read-only; and the
            buffer where it lies, to be given back, which is empty if it lies in the file.

        Raises:
            OSError: The device fails, or the file ends early.
        """
        nbytes, starts = sizes(records), records["start"] + SAMPLES_START
        self._read_ahead.wait(records["start"], nbytes)
        here = self._in_memory(starts)
        self._warm_reads = 0 if here is None else self._warm_reads + (len(records) > 0)
        if here is None:
            steps = rounded(nbytes, ALIGNMENT)
            offsets = np.cumsum(steps) - steps
            pixels = buffer = self.buffers.take(int(steps.sum()))
            checksums = map(xxh3_64_intdigest, self._filled(_parts(pixels, offsets, nbytes), starts))
            whole = _equal(checksums, records)
        else:
            pixels, offsets, buffer = here.pixels, starts, _NO_BYTES
            with here.watched(len(records)):
                whole = _equal(map(xxh3_64_intdigest, _parts(pixels, offsets, nbytes)), records)
        return whole, _images(pixels, offsets, records["shape"]), buffer

    def prefetch(self, records: Records) -> None:
        """Have the kernel begin to read n samples, unless it has."""
        if self._in_memory(records["start"] + SAMPLES_START) is None:
            self._read_ahead.ask(records["start"], sizes(records))

    def close(self) -> None:
        """Read nothing more ahead. Nobody may be reading."""
        self._read_ahead.close()

    def keep(self, start: int, nbytes: int) -> None:
        """Let a block stay as it is for those who look at it, whatever is written into the file from now on."""
        if self._mapped is not None:
            self._mapped.keep(SAMPLES_START + start, nbytes)

    def _in_memory(self, starts: NDArray[np.int64]) -> Mapped | None:
        """Return where n samples are in memory, as far as a few of them tell."""
        return self._mapped if self._mapped is not None and self._mapped.holds(starts) else None

    def _filled(self, parts: Iterable[memoryview], starts: NDArray[np.int64]) -> Iterator[memoryview]:
        """Copy what begins in n places of the file, each into its part."""
        for part, start in zip(parts, starts.tolist(), strict=True):
            if os.preadv(self._fd, (part,), start) != len(part):
                raise OSError(errno.EIO, "it ends early")
            yield part


def _parts(pixels: NDArray[np.uint8], offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> Iterator[memoryview]:
    """Cut out n samples."""
    return map(pixels.data.__getitem__, map(slice, offsets.tolist(), (offsets + nbytes).tolist()))


def _equal(checksums: Iterable[int], records: Records) -> NDArray[np.bool_]:
    """Tell which of n samples have the checksum that was written down."""
    found: NDArray[np.bool_] = np.fromiter(checksums, np.uint64, len(records)) == records["pixels"]
    return found


def _images(pixels: NDArray[np.uint8], offsets: NDArray[np.int64], shapes: NDArray[np.int32]) -> Images:
    """View the images that begin at n offsets, read-only."""

    def look() -> list[Image]:
        shown = pixels.view()
        shown.flags.writeable = False
        return [
            shown[offset : offset + math.prod(shape)].reshape(shape)
            for offset, shape in zip(offsets.tolist(), shapes.tolist(), strict=True)
        ]

    def locate() -> Places:
        address: int = pixels.__array_interface__["data"][0]
        return Places(address + offsets, shapes[:, :2].astype(np.int64))

    return Images.on_demand(len(shapes), look, locate)
