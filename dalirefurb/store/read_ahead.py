"""What is the kernel asked to read before a store needs it? The samples, or all around them where they are small.

A disk gives a few large pieces much faster than many small ones. So where samples are small, and memory has room for
all, whole blocks are asked for: neighbours come with a sample that are wanted soon. What is in memory costs nothing.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 18
_SMALL = 1 << 14
"""Bytes below which a sample is small; the paper on data refurbishing (USENIX ATC 2021) reads those in batches, too."""


class ReadAhead:
    """Asks for parts of a file; nothing waits for them.

    Args:
        fd: The file.
        start: Where in it samples begin.
        nbytes: Of all samples.
        slots: How many they are, at most.
        fits: Whether memory has room for all.
    """

    def __init__(self, fd: int, start: int, nbytes: int, slots: int, *, fits: bool) -> None:
        self._fd = fd
        self._start = start
        self._in_blocks = fits and nbytes < _SMALL * slots

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Ask for n samples.

        Args:
            starts: First byte of each among the samples, shape (n,).
            sizes: Bytes of each, shape (n,).
        """
        if self._in_blocks:
            # A small sample is in two blocks at most.
            blocks = np.unique(np.concatenate([starts, starts + np.maximum(sizes, 1) - 1]) // _BLOCK)
            starts, sizes = blocks * _BLOCK, np.full(len(blocks), _BLOCK)
        for start, size in zip((self._start + starts).tolist(), sizes.tolist(), strict=True):
            os.posix_fadvise(self._fd, start, size, os.POSIX_FADV_WILLNEED)
