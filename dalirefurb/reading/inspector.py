"""Inspector: which decoder takes each encoded image, and its size, found out when its bytes are first seen.

    bytes ─▶ known? ─▶ header of a proven kind? ─▶ DALI is given them as they are
               │                └─▶ else Pillow decodes, and DALI is given the pixels, or the sample is refused
               └─▶ as the last time

What DALI is given has one size, whoever reads its header: a decoder that writes beyond an image, or throws while others
work on its batch, ends the process. All that is remembered is of the very bytes: a file that is replaced during a run
is looked at anew.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb import dali
from dalirefurb.image_batch import Image
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.reading.formats import JPEG_NEAR, Header, pnm_header, proven
from dalirefurb.reading.pillow_decoder import PillowDecoder, PillowError
from dalirefurb.source.contract import Numbers
from dalirefurb.source.levels import Levels

_SEEN = np.dtype([("digest", "u8"), ("head", "i4"), ("height", "i4"), ("width", "i4"), ("by_pillow", "?")])
"""Digest of the bytes that were read, for that see `_digest`; the image's size in pixels, 0 at first; its decoder."""


OnLook = Callable[[int, int, float], None]


class Refused(Exception):  # noqa: N818 - whoever knows the sample's name makes an error of it
    """An image cannot be used: `row` among those that were looked at, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True)
class Judged:
    """What is done with an encoded image.

    Attributes:
        decoder: Which decoder takes it; None: it is refused.
        header: Its size, upright; None if it has none that can be read.
        reason: Why it is refused; empty if it is not, as far as its header tells.
    """

    decoder: Literal["dali", "pillow"] | None
    header: Header | None
    reason: str = ""


def judge(encoded: NDArray[np.uint8], pillow: PillowDecoder) -> Judged:
    """Say by its header which decoder takes an image, uint8 of shape (length,), how large it is, or why none does."""
    header = proven(encoded)
    decoder: Literal["dali", "pillow"] = "dali" if header is not None else "pillow"
    if header is None:
        try:
            header = pillow.header(encoded)
        except PillowError as error:
            return Judged(None, None, f"not an image that can be decoded ({error})")
    if not pillow.takes(header.height, header.width):
        return Judged(
            None,
            header,
            f"an image must have {pillow.max_pixels:,} pixels at most, but its header declares {header.height} x "
            f"{header.width}: pass max_pixels={header.height * header.width} if it is genuine",
        )
    return Judged(decoder, header)


def decoded(encoded: NDArray[np.uint8], levels: Levels, name: str, decode: dali.Decoder | None = None) -> Image:
    """Return an image as a loader would decode it, uint8 of shape (height, width, 3), upright.

    Args:
        encoded: Bytes of the file, shape (length,).
        levels: Levels of what is deeper than 8 bits.
        name: Name of the sample, for a warning.
        decode: Decoder for what is DALI's; by default one that all threads of the process share.

    Raises:
        Refused: If it cannot be decoded, or has too many pixels.
    """
    pillow = PillowDecoder(BadSamplePolicy().max_pixels, levels)
    verdict = judge(encoded, pillow)
    if verdict.decoder is None:
        raise Refused(0, verdict.reason)
    failed = ""
    if verdict.decoder == "dali":
        try:
            return (decode or dali.decoder(os.getpid()))(encoded)
        except dali.GraphError as error:
            failed = f"{error.reason}; "
    try:
        return pillow(encoded, name)
    except PillowError as error:
        raise Refused(0, f"decoding failed ({failed}{error})") from error


class Inspector:
    """Looks at encoded images. Thread-safe.

    Args:
        num_samples: Number of samples in the source; 21 bytes are kept for each.
        max_pixels: Largest number of pixels in an image; a larger one is refused before it is decoded. None: any size.
        levels: Levels of what is deeper than 8 bits.
        name: Function that names a sample by its index, for warnings.
        on_look: Function that is told how many images were looked at, how many of them Pillow decoded, and how many
            seconds that took.
    """

    def __init__(
        self,
        num_samples: int,
        max_pixels: int | None,
        levels: Levels,
        *,
        name: Callable[[int], str] = str,
        on_look: OnLook = lambda images, by_pillow, seconds: None,
    ) -> None:
        self._pillow = PillowDecoder(max_pixels, levels)
        self._name = name
        self._on_look = on_look
        self._lock = threading.Lock()
        self._seen = np.zeros(num_samples, _SEEN)

    def look(self, indices: Numbers, data: list[NDArray[np.uint8]]) -> tuple[Numbers, Numbers]:
        """Put what Pillow decodes in the place of samples; return heights and widths in pixels, each (n,).

        Args:
            indices: Indices of the samples, int64 of shape (n,).
            data: Encoded bytes of the samples, each uint8 of shape (length,).

        Raises:
            Refused: If one of them cannot be used.
        """
        with self._lock:
            seen = self._seen[indices]
        known = zip(seen["height"].tolist(), seen["head"].tolist(), seen["digest"].tolist(), strict=True)
        new = [
            row
            for row, (height, head, digest) in enumerate(known)
            if not (height and _digest(data[row], head) == digest)
        ]
        for row in new:
            verdict = judge(data[row], self._pillow)
            if verdict.header is None or verdict.decoder is None:
                raise Refused(row, verdict.reason)
            height, width, head = verdict.header
            seen[row] = _digest(data[row], head), head, height, width, verdict.decoder == "pillow"
        started, by_pillow = time.perf_counter(), np.flatnonzero(seen["by_pillow"])
        for row in by_pillow.tolist():
            try:
                data[row] = image = self._pillow(data[row], self._name(int(indices[row])))
            except PillowError as error:
                raise Refused(row, f"decoding failed ({error})") from error
            seen["height"][row], seen["width"][row], _ = image.shape
        self._on_look(len(data), len(by_pillow), time.perf_counter() - started if len(by_pillow) else 0.0)
        if new:
            with self._lock:
                self._seen[indices[new]] = seen[new]
        return seen["height"].astype(np.int64), seen["width"].astype(np.int64)

    def give_up(self, index: int, row: int, given: NDArray[np.uint8], reason: str) -> None:
        """Have Pillow decode from now on what DALI was given in a row, uint8 of shape (length,), and cannot decode.

        Raises:
            Refused: If Pillow cannot decode it either.
        """
        if pnm_header(given.data) is not None:
            raise Refused(row, reason)
        try:
            height, width, _ = self._pillow(given, self._name(index)).shape
        except PillowError as error:
            raise Refused(row, f"{reason}, and Pillow cannot ({error})") from error
        with self._lock:
            self._seen[index] = _digest(given), 0, height, width, True


def _digest(encoded: NDArray[np.uint8], head: int = 0) -> int:
    """Tell bytes from others: by all of them, or if there is a head, by that, the last ones, and how many there are."""
    content = encoded.data
    if not head:
        return xxh3_64_intdigest(content)
    return xxh3_64_intdigest(content[-JPEG_NEAR:], xxh3_64_intdigest(content[:head]) ^ len(content))
