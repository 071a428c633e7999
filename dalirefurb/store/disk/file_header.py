"""The layout of a store's file: a header that says what it was opened for, samples, and a table of them.

    header    magic, format, checksum, and the spec as JSON; in its last page, who uses the file
    samples   blocks of whole pages, or of cache lines where a sample is less than a page
    table     a record for each slot, see `records`

A file that does not begin with the magic is somebody else's and is never written to.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from xxhash import xxh3_64_intdigest

from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import ALIGNMENT, rounded
from dalirefurb.store.disk.records import RECORD_BYTES
from dalirefurb.store.spec import StoreSpec

PAGE = 4096

HOLDER_BYTES = PAGE
SAMPLES_START = 64 * 1024
HOLDER_START = SAMPLES_START - HOLDER_BYTES

_FORMAT = 2
_MAGIC = b"dalirefurb store"
# Magic, format, and length and checksum of the JSON that follows.
_PREFIX = struct.Struct("<16sIIQ")


@dataclass(frozen=True)
class Layout:
    """Where a file's parts are, in bytes."""

    spec: StoreSpec

    @cached_property
    def alignment(self) -> int:
        """Bytes that blocks begin at, and are written in, multiples of.

        Whole pages are written without being read first. But of samples that are less than a page several are in one,
        so that less is read.
        """
        shape = self.spec.slot_shape
        return ALIGNMENT if shape is not None and math.prod(shape) < PAGE else PAGE

    @property
    def samples_bytes(self) -> int:
        """Size of all blocks. In an arena each sample may need up to a page more than its pixels."""
        spec = self.spec
        if spec.slot_shape is None:
            return rounded(spec.arena_bytes, PAGE) + spec.slots * PAGE
        return spec.slots * rounded(math.prod(spec.slot_shape), self.alignment)

    @property
    def table_start(self) -> int:
        """Where the table begins."""
        return SAMPLES_START + self.samples_bytes

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.table_start + self.spec.slots * RECORD_BYTES


def identity(spec: StoreSpec) -> int:
    """Return a number that ties records to what their samples come from, whatever the number of slots."""
    return int(xxh3_64_intdigest(json.dumps([spec.slot_shape, spec.fingerprint], sort_keys=True).encode()))


def write_header(fd: int, spec: StoreSpec) -> None:
    """Write what a file is opened for.

    Raises:
        ConfigurationError: It is too long.
    """
    text = json.dumps(asdict(spec)).encode()
    limit = HOLDER_START - _PREFIX.size
    if len(text) > limit:
        raise ConfigurationError(
            f"a store's fingerprint must be at most {limit} bytes of JSON, but the header has {len(text)}: "
            "put digests in place of long tables"
        )
    os.pwrite(fd, _PREFIX.pack(_MAGIC, _FORMAT, len(text), xxh3_64_intdigest(text)) + text, 0)


def read_header(fd: int, path: Path) -> StoreSpec | None:
    """Read what a file was opened for; None if it is damaged.

    Raises:
        StoreError: The file is no store, or one of another format.
    """
    prefix = os.pread(fd, _PREFIX.size, 0)
    if not prefix.startswith(_MAGIC):
        raise StoreError(f"a store's file must be made by a store, but {path} was not: use another path")
    if len(prefix) < _PREFIX.size:
        return None
    _, version, length, checksum = _PREFIX.unpack(prefix)
    if version != _FORMAT:
        raise StoreError(
            f"a store's file must have format {_FORMAT}, but {path} has {version}: "
            "use another path, or delete the file and fill it anew"
        )
    text = os.pread(fd, min(length, SAMPLES_START), _PREFIX.size)
    if xxh3_64_intdigest(text) != checksum:
        return None
    fields = json.loads(text)
    shape = fields.pop("slot_shape")
    return StoreSpec(slot_shape=None if shape is None else tuple(shape), **fields)
