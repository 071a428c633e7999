"""Inspector: what DALI is given of each encoded image, and its size, found out when its bytes are first seen.

    bytes ─▶ known? ──────────────────────────────────────▶ as they are, of the size that is remembered
               └─▶ walked ─▶ rewritten, if need be ─▶ header read ─▶ tried alone, if in doubt

A decoder that throws while others work on its batch may end the process. So what it may throw on is found here, before
it is in any batch; the fallback decodes it, or it is refused. All that is remembered is of the very bytes: a file
that is replaced during a run is looked at anew.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.dali import GraphError, HeaderReader, plain, undecodable_windows
from dalirefurb.reading.formats import StructureError, bmp, jpeg, png, tiff
from dalirefurb.reading.formats.jpeg2000 import codestream, is_plain
from dalirefurb.reading.formats.rewriting import rewritten
from dalirefurb.reading.pillow_decoder import PillowDecoder, PillowError

_END = 1024
"""Bytes at the end of a JPEG among which its end marker is looked for; some files have others behind it."""

_SEEN = np.dtype([("digest", np.uint64), ("head", np.int32), ("height", np.int32), ("width", np.int32)])
"""Digest of the bytes that DALI was given, for that see `_digest`, and the image's size in pixels; 0 at first."""


class Refused(Exception):  # noqa: N818 - whoever knows the sample's name makes an error of it
    """An image cannot be used: `row` among those that were looked at, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


class Inspector:
    """Looks at encoded images. Thread-safe.

    An image larger than `max_pixels` is refused before it is decoded. So is one of which DALI decodes windows, but not
    the whole, or the other way round, since otherwise it would be served at one split and refused at another: a JPEG, a
    BMP or a TIFF that ends early.

    Args:
        num_samples: Number of samples in the source; 20 bytes are kept for each.
        max_batch_size: Largest number of images that are looked at together.
        max_pixels: Largest number of pixels in an image; None: any size.
        fallback: Decoder of images that DALI does not decode; None: such images are refused.
    """

    def __init__(
        self, num_samples: int, *, max_batch_size: int, max_pixels: int | None, fallback: PillowDecoder | None
    ) -> None:
        self._headers = HeaderReader(max_batch_size)
        self._max_pixels = max_pixels
        self._fallback = fallback
        self._lock = threading.Lock()
        self._seen = np.zeros(num_samples, _SEEN)
        # Digests of bytes: those that DALI is not given as they are, and those that it cannot decode.
        self._odd: set[int] = set()
        self._undecodable: set[int] = set()

    def look(
        self, indices: NDArray[np.int64], data: list[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Put what DALI is to be given in the place of samples; return heights and widths in pixels, each (n,).

        Args:
            indices: Indices of the samples, int64 of shape (n,).
            data: Encoded bytes of the samples, each uint8 of shape (length,).

        Raises:
            Refused: If one of them cannot be used.
        """
        with self._lock:
            seen = self._seen[indices]
        sources = list(data)
        heads, digests = seen["head"].tolist(), seen["digest"].tolist()
        new = [
            row
            for row, (head, digest) in enumerate(zip(heads, digests, strict=True))
            if not (head and _digest(data[row], head) == digest) and not self._is_seen(row, data, seen[row])
        ]
        if new:
            sizes = self._look_at_new(new, data)
            for row, (height, width) in zip(new, sizes.tolist(), strict=True):
                head = _head(data[row]) if data[row] is sources[row] else 0
                seen[row] = _digest(data[row], head), head, height, width
            with self._lock:
                self._seen[indices[new]] = seen[new]
        return seen["height"].astype(np.int64), seen["width"].astype(np.int64)

    def give_up(self, index: int, row: int, given: NDArray[np.uint8], reason: str) -> None:
        """Have the fallback decode from now on what DALI was given and could not decode.

        Args:
            index: Index of the sample.
            row: Row of the sample among those that DALI was given.
            given: Encoded image that DALI was given, uint8 of shape (length,).
            reason: Reason why DALI cannot decode the image.

        Raises:
            Refused: If the fallback had its turn, or cannot decode it either.
        """
        if np.array_equal(given, self._fall_back(row, given, reason)):
            raise Refused(row, reason)
        with self._lock:
            self._seen[index] = 0, 0, 0, 0

    def _is_seen(self, row: int, data: list[NDArray[np.uint8]], seen: np.void) -> bool:
        """Put what DALI is to be given in the place of one sample; tell whether its size is known."""
        if not (self._odd or seen["height"]):
            return False
        digest = _digest(data[row])
        if digest in self._odd:
            data[row] = self._given(row, data[row])
            digest = _digest(data[row])
        return bool(seen["height"] and not seen["head"] and seen["digest"] == digest)

    def _given(self, row: int, encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return what DALI is given for bytes that it is not given as they are."""
        given = rewritten(encoded)
        given = encoded if given is None else given
        undecodable = _digest(given) in self._undecodable
        return self._fall_back(row, given, "DALI cannot decode it") if undecodable else given

    def _look_at_new(self, rows: list[int], data: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
        """Find out what DALI is to be given for some rows, and return heights and widths, shape (rows, 2)."""
        for row in rows:
            self._prepare(row, data)
        try:
            sizes = np.stack(self._headers.sizes([data[row] for row in rows]), axis=1)
        except GraphError:
            sizes = np.concatenate([self._size(row, data) for row in rows])
        for place, row in enumerate(rows):
            height, width = sizes[place].tolist()
            if height < 1 or width < 1:
                reason = f"an image must have pixels, but its header declares {height} x {width}"
                data[row] = self._fall_back(row, data[row], reason)
                sizes[place] = height, width = self._size(row, data)[0].tolist()
            self._check_size(row, height, width)
        for place, why in self._try_alone([data[row] for row in rows], sizes):
            row = rows[place]
            data[row] = self._fall_back(row, data[row], f"decoding failed ({why})")
            sizes[place] = self._size(row, data)
        return sizes

    def _try_alone(self, data: list[NDArray[np.uint8]], sizes: NDArray[np.int64]) -> list[tuple[int, str]]:
        """Decode those of some samples that are in doubt; return which fail, and why."""
        streams = [codestream(sample) for sample in data]
        contained = [
            place
            for place, stream in enumerate(streams)
            if stream is not None and len(stream) < len(data[place]) and not is_plain(stream)
        ]
        doubtful = [place for place, sample in enumerate(data) if place not in contained and _is_doubtful(sample)]
        failures = []
        for places, tried, gray in ((contained, streams, True), (doubtful, data, False)):
            some = [sample for place in places if (sample := tried[place]) is not None]
            failures += [(places[row], why) for row, why in undecodable_windows(some, sizes[places], gray=gray)]
        return failures

    def _prepare(self, row: int, data: list[NDArray[np.uint8]]) -> None:
        """See to it that a header can be read without harm, and means what is shown."""
        encoded = data[row]
        try:
            codestream(encoded)
            png.check(encoded)
            tiff.check(encoded)
        except StructureError as error:
            data[row] = self._fall_back(row, encoded, f"not an image that DALI can decode ({error})")
            return
        if (other := rewritten(encoded)) is not None:
            self._odd.add(_digest(encoded))
            data[row] = other

    def _size(self, row: int, data: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
        """Read one header, of what the fallback makes of an image if need be; return height and width, shape (1, 2)."""
        try:
            return np.stack(self._headers.sizes([data[row]]), axis=1)
        except GraphError as error:
            data[row] = self._fall_back(row, data[row], f"not an image that DALI can decode ({error.reason})")
        return np.stack(self._headers.sizes([data[row]]), axis=1)

    def _check_size(self, row: int, height: int, width: int) -> None:
        if self._max_pixels is not None and height * width > self._max_pixels:
            raise Refused(
                row,
                f"an image must have {self._max_pixels:,} pixels at most, but its header declares {height} x {width}: "
                f"pass a larger max_pixels to the loader if it is genuine",
            )

    def _fall_back(self, row: int, encoded: NDArray[np.uint8], reason: str) -> NDArray[np.uint8]:
        """Encode anew what DALI cannot decode, now and whenever the same bytes are read."""
        if self._fallback is None:
            raise Refused(row, reason)
        try:
            given = self._fallback(encoded)
        except PillowError as error:
            raise Refused(row, f"{reason}, and Pillow refuses it ({error})") from error
        digest = _digest(encoded)
        self._undecodable.add(digest)
        self._odd.add(digest)
        return given


def _head(encoded: NDArray[np.uint8]) -> int:
    """Return how many bytes decide, together with the last ones, all that is found out of an image; 0: all do.

    Of a JPEG and a BMP that are not tried those before their pixels do.
    """
    if encoded[:2].tobytes() == bmp.MAGIC:
        return bmp.pixels(encoded.data)
    if not _ends(encoded):
        return 0
    return next((start + 2 for marker, start, _ in jpeg.segments(encoded.data) if marker == jpeg.SCAN), 0)


def _ends(encoded: NDArray[np.uint8]) -> bool:
    """Whether it is a JPEG with an end marker near its end."""
    return encoded[:2].tobytes() == jpeg.MAGIC and jpeg.END in encoded[-_END:].tobytes()


def _digest(encoded: NDArray[np.uint8], head: int = 0) -> int:
    """Tell bytes from others: by all of them, or if there is a head, by that, the last ones, and how many there are."""
    content = encoded.data
    if not head:
        return xxh3_64_intdigest(content)
    return xxh3_64_intdigest(content[-_END:], xxh3_64_intdigest(content[:head]) ^ len(content))


def _is_doubtful(encoded: NDArray[np.uint8]) -> bool:
    """Whether an image is to be tried alone though its header can be read.

    So is a JPEG that has no end marker near its end; a BMP that is compressed or ends early; a TIFF; a PNG or WebP with
    EXIF data, of which nvImageCodec and OpenCV may make different orientations, and one would write beyond the other's
    image; and all whose pixels are of a type that decoders may throw on.
    """
    head = encoded[:12].tobytes()
    if head.startswith(jpeg.MAGIC) and not _ends(encoded):
        return True
    if head.startswith(tiff.MAGIC) or (head.startswith(bmp.MAGIC) and not bmp.pixels(encoded.data)):
        return True
    if head.startswith(b"\x89PNG") and b"eXIf" in encoded.tobytes():
        return True
    if head.startswith(b"RIFF") and b"EXIF" in encoded.tobytes():
        return True
    return not plain(encoded)
