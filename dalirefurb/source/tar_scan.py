"""A scan of a tar file for its samples: headers tell, and of the data only labels are read.

WebDataset's layout: members named `folder/key.extension` with equal `folder/key` are one sample. The key ends at the
first dot of the file's name. Extensions are read in lower case. Tar files one after another in one file, as `cat` makes
them, are read as one, as `tar --ignore-zeros` does.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from xxhash import xxh32_intdigest

from dalirefurb.errors import ConfigurationError
from dalirefurb.source.files import EXTENSIONS, is_hidden, is_hidden_image

_KEY = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_BLOCK = 512
_READ_BYTES = 1 << 20
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Scan:
    """What a shard holds, one entry per image, in the images' order.

    Attributes:
        members: Names of the images.
        offsets: Offsets in the shard where the images' contents begin, in bytes.
        sizes: Sizes of the images' contents in bytes.
        header_bytes: Sizes in bytes of the headers that end where the images' contents begin.
        headers: Hashes of the images' headers, as `header_hash` makes them.
        labels: Labels as written: texts, or JSON values; empty if labels come from elsewhere.
        left_out: Number of samples or members that are not served, and the first one's name, by the reason: "no image"
            (samples), "dots" (images whose extension has dots), "hidden" (images), "no extension" (members), "empty"
            (shards).
    """

    members: list[str]
    offsets: list[int]
    sizes: list[int]
    header_bytes: list[int]
    headers: list[int]
    labels: list[Any]
    left_out: dict[str, tuple[int, str]]


class _Image(NamedTuple):
    """An image's place; see `Scan`."""

    name: str
    offset: int
    size: int
    header_bytes: int
    header: int


def scan(
    file: IO[bytes], url: str, size: int, *, image: str | None, label: str | None, advance: Callable[[int], object]
) -> Scan:
    """Read the headers of a tar file.

    Args:
        file: Tar file, open at its beginning.
        url: Name of the tar file, for messages.
        size: Size of the tar file in bytes.
        image: The extension of images; any of an image file if not given.
        label: The extension of labels; "json.name" is what `name` says in a JSON file, "json" all of it.
        advance: Function that is called after each member with the number of bytes passed since the member before.

    Raises:
        ConfigurationError: This is no whole uncompressed tar file, or a sample has two images, or no label.
    """
    dotted_endings = EXTENSIONS if image is None else (f".{image.lower()}",)
    endings = [ending[1:] for ending in dotted_endings]
    ending, *fields_of = label.split(".") if label else [""]
    in_json = ending.lower() == "json"
    label_ending, fields = ("json", fields_of) if in_json else (label and label.lower(), None)
    images: dict[str, _Image] = {}
    labels: dict[str, Any] = {}
    # The first member of each key, and names of images that are not served.
    keys: dict[str, str] = {}
    dotted: dict[str, list[str]] = {}
    no_extension, hidden = [], []
    for member in _members(file, url, size, advance):
        if member.isdir():
            continue
        key, ending = split_name(member.name)
        if not key:
            if not is_hidden(member.name):
                no_extension.append(member.name)
            elif is_hidden_image(member.name, dotted_endings):
                hidden.append(member.name)
            continue
        keys.setdefault(key, member.name)
        if ending in endings:
            _check_plain(member, url)
            if key in images:
                raise ConfigurationError(
                    f"a sample must have one image, but in {url} both {images[key].name} and {member.name} are: "
                    "choose by image='jpg', say, or give each image a key of its own"
                )
            file.seek(member.offset)
            header = file.read(member.offset_data - member.offset)
            images[key] = _Image(member.name, member.offset_data, member.size, len(header), header_hash(header))
        elif ending == label_ending:
            _check_plain(member, url)
            if key in labels:
                raise ConfigurationError(
                    f"a sample must have one label, but {url} holds {member.name} twice: give each sample its own key"
                )
            file.seek(member.offset_data)
            labels[key] = _label(file.read(member.size), fields, f"{url}:{member.name}")
        elif ending.endswith(dotted_endings):
            dotted.setdefault(key, []).append(member.name)
    if label is not None:
        _check_labelled(images, labels, f"{label_ending}", url)
    left_out = {
        "no image": [name for key, name in keys.items() if key not in images and key not in dotted],
        "dots": [
            name for key, names in dotted.items() for name in _lost(names, images.get(key), chosen=image is not None)
        ],
        "no extension": no_extension,
        "hidden": hidden,
        "empty": [] if keys or no_extension or hidden else [""],
    }
    return Scan(
        members=[each.name for each in images.values()],
        offsets=[each.offset for each in images.values()],
        sizes=[each.size for each in images.values()],
        header_bytes=[each.header_bytes for each in images.values()],
        headers=[each.header for each in images.values()],
        labels=[] if label is None else [labels[key] for key in images],
        left_out={reason: (len(names), names[0]) for reason, names in left_out.items() if names},
    )


def _lost(names: list[str], image: _Image | None, *, chosen: bool) -> list[str]:
    """Return which images with dotted extensions are left out, and not masks and the like of a sample's own image.

    Those are of another format than it is, or the extension of images is chosen.
    """
    if image is None:
        return names
    return [] if chosen else [name for name in names if _format(name) == _format(image.name)]


def _format(name: str) -> str:
    return name.rpartition(".")[2].lower()


def header_hash(header: bytes | memoryview) -> int:
    """Hash a member's header, with the extended ones before it: they tell its name, size and time."""
    return xxh32_intdigest(header)


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
    last, end = "its beginning", 0
    archive: int | None = 0
    while archive is not None:
        # Where one tar file after another begins.
        file.seek(archive)
        try:
            tar = tarfile.TarFile(fileobj=file)
            while (member := tar.next()) is not None:
                if tar.offset > size:
                    raise _not_whole(url, f"is cut off: {member.name} ends at byte {tar.offset}, but it has {size}")
                advance(tar.offset - end)
                last, end = member.name, tar.offset
                tar.members.clear()  # type: ignore[attr-defined]  # It would remember them all.
                yield member
        except tarfile.TarError as error:
            raise _not_whole(url, f"is none after {last}, byte {end} of {size} ({error})") from error
        if archive > end:
            raise ConfigurationError(
                f"a shard must end with its tar file, but what is in {url} from byte {archive} of {size} on, after the "
                f"end behind {last}, is no tar file: write or copy it again, or cut that off"
            )
        file.seek(end)
        block = file.read(_BLOCK)
        if len(block) < _BLOCK:
            needed = f"a block of zeros ends it at byte {end + _BLOCK}"
            raise _not_whole(url, f"is cut off: {needed}, but it has {size}")
        if any(block):
            raise _not_whole(url, f"has a damaged header after {last}, at byte {end} of {size}")
        archive = _block_after_zeros(file, end)


def _block_after_zeros(file: IO[bytes], start: int) -> int | None:
    """Return where the first block that is not all zeros begins, from the block at `start` on; None if all are."""
    file.seek(start)
    while chunk := file.read(_READ_BYTES):
        zeros = len(chunk) - len(chunk.lstrip(b"\0"))
        if zeros < len(chunk):
            return (start + zeros) // _BLOCK * _BLOCK
        start += len(chunk)
    return None


def _not_whole(url: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"a shard must be a whole tar file, but {url} {reason}: write or copy it again")


def _check_plain(member: tarfile.TarInfo, url: str) -> None:
    """Refuse members whose contents are not at their place."""
    if not member.isreg() or member.issparse():
        raise ConfigurationError(
            f"images and labels must be plain files, but {member.name} in {url} is a link or sparse: "
            "write the shard with tar --dereference --hard-dereference, without --sparse"
        )


def _label(content: bytes, fields: list[str] | None, where: str) -> Any:
    """Return a text without the space around it, or what a JSON text says, or some field of it."""
    try:
        if fields is None:
            return content.decode("utf-8-sig").strip()
        value = json.loads(content)
    except ValueError as error:
        kind = "a text in UTF-8" if fields is None else "JSON"
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


def _check_labelled(images: dict[str, _Image], labels: dict[str, Any], ending: str, url: str) -> None:
    missing = [each.name for key, each in images.items() if key not in labels]
    if missing:
        raise ConfigurationError(
            f"every image must have a label, but in {url} {len(missing)} of {len(images)} have none, the first is "
            f"{missing[0]}, which needs a .{ending} of its key: name another extension by label=, or pass a function "
            "from key to label"
        )
