"""Which samples does a tar file hold, and where? Its headers tell; of its data only labels are read.

WebDataset's layout: members named `folder/key.extension` with equal `folder/key` are one sample. The key ends at the
first dot of the file's name. Extensions are read in lower case.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from dalirefurb.errors import ConfigurationError
from dalirefurb.source.files import EXTENSIONS

_KEY = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_BLOCK = 512
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Scan:
    """What a shard holds, one entry per image, in the images' order.

    Attributes:
        members: Names of the images.
        offsets: Where their contents begin, in bytes.
        sizes: Of their contents, in bytes.
        labels: As written: texts, or JSON values; empty if labels come from elsewhere.
        skipped: How many samples have no image.
    """

    members: list[str]
    offsets: list[int]
    sizes: list[int]
    labels: list[Any]
    skipped: int


def scan(
    file: IO[bytes], url: str, size: int, *, image: str | None, label: str | None, advance: Callable[[int], object]
) -> Scan:
    """Read the headers of a tar file.

    Args:
        file: At its beginning.
        url: Its name, for messages.
        size: In bytes.
        image: The extension of images; any that DALI decodes if not given.
        label: The extension of labels; "json.name" is what `name` says in a JSON file.
        advance: Called with the number of bytes after each member.

    Raises:
        ConfigurationError: This is no whole uncompressed tar file, or a sample has two images, or no label.
    """
    endings = [ending[1:] for ending in EXTENSIONS] if image is None else [image.lower()]
    in_json = label is not None and label.startswith("json.")
    label_ending, fields = ("json", label.split(".")[1:]) if label and in_json else (label, [])
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, Any] = {}
    keys = set()
    for member in _members(file, url, size, advance):
        key, ending = split_name(member.name)
        if not key or member.isdir():
            continue
        keys.add(key)
        if ending in endings:
            _check_plain(member, url)
            if key in images:
                raise ConfigurationError(
                    f"a sample must have one image, but in {url} both {images[key][0]} and {member.name} are: "
                    "choose by image='jpg', say, or give each image a key of its own"
                )
            images[key] = member.name, member.offset_data, member.size
        elif ending == label_ending:
            _check_plain(member, url)
            if key in labels:
                raise ConfigurationError(
                    f"a sample must have one label, but {url} holds {member.name} twice: give each sample its own key"
                )
            file.seek(member.offset_data)
            labels[key] = _label(file.read(member.size), fields, f"{url}:{member.name}")
    if label is not None:
        _check_labelled(images, labels, f"{label_ending}", url)
    return Scan(
        members=[name for name, _, _ in images.values()],
        offsets=[offset for _, offset, _ in images.values()],
        sizes=[size for _, _, size in images.values()],
        labels=[] if label is None else [labels[key] for key in images],
        skipped=len(keys) - len(images),
    )


def split_name(name: str) -> tuple[str, str]:
    """Split a member's name into key and extension; both are empty where it has none.

    >>> split_name("train/cat.1/07.seg.PNG")
    ('train/cat.1/07', 'seg.png')
    """
    match = _KEY.fullmatch(name)
    return (match[1], match[2].lower()) if match else ("", "")


def _members(file: IO[bytes], url: str, size: int, advance: Callable[[int], object]) -> Iterator[tarfile.TarInfo]:
    """Yield the members, and make sure that the file holds all of them."""
    start = file.read(_BLOCK)
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise ConfigurationError(
                f"shards must be uncompressed, so that samples can be read at random, but {url} is compressed by "
                f"{name}: decompress it (images hardly shrink)"
            )
    file.seek(0)
    last, end = "its beginning", 0
    try:
        tar = tarfile.TarFile(fileobj=file)
        while (member := tar.next()) is not None:
            if tar.offset > size:
                raise _truncated(url, f"{member.name} ends at byte {tar.offset}", size)
            advance(tar.offset - end)
            last, end = member.name, tar.offset
            tar.members.clear()  # type: ignore[attr-defined]  # It would remember them all.
            yield member
    except tarfile.TarError as error:
        raise ConfigurationError(
            f"a shard must be a whole tar file, but {url} is none after {last}, byte {end} of {size} ({error}): "
            "write or copy it again"
        ) from error
    file.seek(end)
    block = file.read(_BLOCK)
    if len(block) < _BLOCK:
        raise _truncated(url, f"a block of zeros ends it at byte {end + _BLOCK}", size)
    if any(block):
        raise ConfigurationError(
            f"a shard must be a whole tar file, but {url} has a damaged header after {last}, at byte {end} of {size}: "
            "write or copy it again"
        )


def _truncated(url: str, needed: str, size: int) -> ConfigurationError:
    return ConfigurationError(
        f"a shard must be a whole tar file, but {url} is cut off: {needed}, but it has {size}: write or copy it again"
    )


def _check_plain(member: tarfile.TarInfo, url: str) -> None:
    """Refuse members whose contents are not at their place."""
    if not member.isreg() or member.issparse():
        raise ConfigurationError(
            f"images and labels must be plain files, but {member.name} in {url} is a link or sparse: "
            "write the shard with tar --dereference --hard-dereference, without --sparse"
        )


def _label(content: bytes, fields: list[str], where: str) -> Any:
    """Return a text without the space around it, or what some field of a JSON text holds."""
    try:
        if not fields:
            return content.decode().strip()
        value = json.loads(content)
    except ValueError as error:
        kind = "JSON" if fields else "a text in UTF-8"
        raise ConfigurationError(
            f"labels must be {kind}, but {where} is none ({error}): name another extension by label="
        ) from error
    for field in fields:
        if not isinstance(value, dict) or field not in value:
            given = f"has {', '.join(value)}" if isinstance(value, dict) else f"is {value!r}"
            raise ConfigurationError(
                f"labels must be in the field {'.'.join(fields)}, but at {field!r} {where} {given}: "
                "name the field by label='json.field'"
            )
        value = value[field]
    return value


def _check_labelled(images: dict[str, tuple[str, int, int]], labels: dict[str, Any], ending: str, url: str) -> None:
    missing = [name for key, (name, _, _) in images.items() if key not in labels]
    if missing:
        raise ConfigurationError(
            f"every image must have a label, but in {url} {len(missing)} of {len(images)} have none, the first is "
            f"{missing[0]}, which needs a .{ending} of its key: name another extension by label=, or pass a function "
            "from key to label"
        )
