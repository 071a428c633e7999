"""Image files of seven formats, and ways to break them: a mutation is a function of seed, format and number.

An eighth, "EXIF", is JPEG, PNG and WebP with EXIF data, XMP and ICC profiles that were made to confuse.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.pictures import encode, picture

FORMATS = ("JPEG", "PNG", "BMP", "WebP", "TIFF", "PNM", "JPEG2000", "EXIF")

_MAGIC: dict[str, tuple[bytes, ...]] = {
    "JPEG": (b"\xff\xd8",),
    "PNG": (b"\x89PNG",),
    "BMP": (b"BM",),
    "WebP": (b"RIFF",),
    "TIFF": (b"II", b"MM"),
    "PNM": (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6", b"P7"),
    "JPEG2000": (b"\0\0\0\x0cjP", b"\xff\x4f"),
    "EXIF": (b"\xff\xd8", b"\x89PNG", b"RIFF"),
}
"""What files begin with."""

_LARGE = 300_000
"""Bytes of a file that would take long."""

_HEAD = 160
"""Most that a decoder is told lies in so many bytes from the start."""

_SIDEWAYS = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
"""EXIF that says orientation 6: rows are shown as columns."""

_XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
"""XMP that says the same."""

_TELLING = (0, 1, 2, 3, 4, 8, 16, 24, 32, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1)
"""Numbers at which programs go wrong."""


@cache
def originals(format_: str) -> tuple[bytes, ...]:
    """Return whole files of a format, small, of many kinds: colours, depths, compressions, orientations."""
    return tuple(_ORIGINALS[format_]())


def mutation(seed: int, format_: str, number: int, folder: Path | None = None) -> bytes:
    """Return one of a format's files, broken in one to four ways; where it has check sums they often fit again.

    With a folder it is one of those that are in it or below, if it has any of the format.
    """
    rng = np.random.default_rng((seed, FORMATS.index(format_), number))
    files = (() if folder is None else found(folder, format_)) or originals(format_)
    content = files[rng.integers(len(files))]
    if format_ == "EXIF":
        for _ in range(rng.choice((1, 1, 2, 3))):
            content = _annotated(content, rng)
        if rng.random() < 0.7:
            return mended(content)
    for _ in range(min(int(rng.geometric(0.6)), 4)):
        content = _WAYS[rng.integers(len(_WAYS))](content, files, rng) or content
    if rng.random() < 0.7:
        content = mended(content)
    return content


@cache
def found(folder: Path, format_: str) -> tuple[bytes, ...]:
    """Return the files of a format in a folder and below it, but for large ones."""
    files = (path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size < _LARGE)
    return tuple(content for content in files if content.startswith(_MAGIC[format_]))


def mended(content: bytes) -> bytes:
    """Make the check sums of a PNG's chunks, or the length of a RIFF file, fit what is there."""
    if content.startswith(b"RIFF"):
        return b"RIFF" + struct.pack("<I", max(len(content) - 8, 0)) + content[8:]
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        return content
    chunks, at = bytearray(content), 8
    while at + 12 <= len(chunks):
        end = at + 8 + int.from_bytes(chunks[at : at + 4], "big")
        if end + 4 > len(chunks):
            break
        chunks[end : end + 4] = zlib.crc32(chunks[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(chunks)


# Ways to break a file

Way = Callable[[bytes, tuple[bytes, ...], np.random.Generator], bytes]


def _bytes(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Change a few bytes anywhere."""
    changed = bytearray(content)
    for place in rng.integers(len(changed), size=rng.integers(1, 9)):
        changed[place] = rng.integers(256)
    return bytes(changed)


def _head(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Change a few bytes near the start."""
    changed = bytearray(content)
    for place in rng.integers(min(len(changed), _HEAD), size=rng.integers(1, 4)):
        changed[place] = rng.choice((0, 1, 127, 128, 255, rng.integers(256)))
    return bytes(changed)


def _lengths(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Write a telling number of 1, 2 or 4 bytes over what may be a length, or move that length a little."""
    size = int(rng.choice((1, 2, 4)))
    order = "big" if rng.random() < 0.5 else "little"
    place = int(rng.integers(max(min(len(content), _HEAD) if rng.random() < 0.8 else len(content), 5) - size))
    was = int.from_bytes(content[place : place + size], order)
    told = int(rng.choice((*_TELLING, was + 1, was - 1, was * 2, was // 2, was + 256)))
    return content[:place] + (told % 256**size).to_bytes(size, order) + content[place + size :]


def _cut(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Leave the end out: anywhere, or near the start or the end, where headers and trailers are."""
    place = rng.integers(len(content))
    near = int(rng.integers(1, _HEAD))
    return content[: max(int(rng.choice((place, near, len(content) - near))), 1)]


def _splice(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Go on with another file of the format, from the same place or from elsewhere."""
    other = files[rng.integers(len(files))]
    place = int(rng.integers(len(content)))
    return content[:place] + other[place if rng.random() < 0.5 else rng.integers(len(other)) :]


def _leave_out(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Leave some bytes out."""
    place, count = int(rng.integers(len(content))), int(rng.integers(1, 33))
    return content[:place] + content[place + count :]


def _repeat(content: bytes, files: tuple[bytes, ...], rng: np.random.Generator) -> bytes:
    """Have some bytes twice."""
    place, count = int(rng.integers(len(content))), int(rng.integers(1, 33))
    return content[: place + count] + content[place:]


_WAYS: tuple[Way, ...] = (_bytes, _head, _lengths, _lengths, _cut, _splice, _leave_out, _repeat)


# Annotations that confuse


def _annotated(content: bytes, rng: np.random.Generator) -> bytes:
    """Put EXIF data, now and then XMP or a part of an ICC profile, between any two parts of a file."""
    if content.startswith(b"\xff\xd8"):
        segments = (
            b"\xe1Exif\0\0" + _exif(rng),
            b"\xe1http://ns.adobe.com/xap/1.0/\0" + _XMP.replace(b"6", str(rng.integers(10)).encode()),
            b"\xe2ICC_PROFILE\0" + bytes(rng.integers(0, 4, 2).tolist()) + bytes(rng.integers(0, 256, 40).tolist()),
        )
        segment = segments[rng.choice(3, p=(0.7, 0.15, 0.15))]
        added = b"\xff" + segment[:1] + struct.pack(">H", len(segment) + 1) + segment[1:]
        places = [2]
        while content[places[-1] + 1] != 0xDA and places[-1] + 4 < len(content):
            places.append(places[-1] + 2 + int.from_bytes(content[places[-1] + 2 : places[-1] + 4], "big"))
    elif content.startswith(b"\x89PNG"):
        data = _exif(rng)
        added = struct.pack(">I", len(data)) + b"eXIf" + data + struct.pack(">I", zlib.crc32(b"eXIf" + data))
        places = [33, len(content) - 12]
    else:
        data = _exif(rng)
        added = b"EXIF" + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
        places = [len(content)] if content[12:16] != b"VP8X" else [30, len(content)]
    place = places[rng.integers(len(places))]
    return content[:place] + added + content[place:]


def _exif(rng: np.random.Generator) -> bytes:
    """Say an orientation, once, twice or not at all, in any type of number; lengths and places are right mostly."""
    order = str(rng.choice(("<", ">")))
    entries = b"".join(
        struct.pack(
            order + "HHIHH",
            rng.choice((274, 274, 274, 271, 256, 34665)),
            rng.choice((3, 3, 3, 3, 3, 4, rng.integers(14))),
            rng.choice((1, 1, 1, 1, 1, 0, 2)),
            rng.integers(10),
            rng.choice((0, 0, 0, 0, 6)),
        )
        for _ in range(rng.choice((1, 1, 1, 1, 0, 2, 3)))
    )
    start = 8 if rng.random() < 0.8 else int(rng.choice(_TELLING))
    count = len(entries) // 12 if rng.random() < 0.9 else int(rng.integers(65536))
    magic = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return magic + struct.pack(order + "IH", start % 2**32, count) + entries + bytes(4)


# Whole files

_LANDSCAPE, _PORTRAIT = (41, 150), (150, 41)


def _picture(mode: str = "RGB", size: tuple[int, int] = _LANDSCAPE) -> Image.Image:
    height, width = size
    return picture(len(mode) + height, height=height, width=width).convert(mode)


def _saved(format_: str, mode: str = "RGB", size: tuple[int, int] = _LANDSCAPE, **options: object) -> bytes:
    return encode(_picture(mode, size), format_, **options)


def _deep(format_: str) -> bytes:
    """Save 16 bits a pixel."""
    return encode(_picture("L").convert("I;16"), format_)


ARITHMETIC = tuple(
    base64.b64decode(text)
    for text in (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYnKSopGR8tMC"
        "0oMCUoKSj/2wBDAQcHBwoIChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCj/yQARCAAY"
        "ABQDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AK8ttxyjTSf0sq2vUYebPrdgA81iUE44Up0yPuMBTOmONUukDK9FfgEEkD"
        "7dKfzDnYb4u9d/leAJxHDQ7RTgVbeaS7N4vd6jtOxA4NmJPkFOylvbO0KAiH/PaX6LdIegR5oQ/9k=",
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYnKSopGR8tMC"
        "0oMCUoKSj/2wBDAQcHBwoIChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCj/ygARCAAY"
        "ABQDASIAAhEBAxEB/8wABgAQARD/2gAMAwEAAhADEAAAAf8AVQI21ntlpDwh0qF3iaZ0ol6Y4P/MAAQQBf/aAAgBAQABBQIELJaO/qAt4P/MAA"
        "QRBf/aAAgBAwEBPwETj7lF8tXu0P/MAAQRBf/aAAgBAgEBPwE4gFauXoLG/8wABBAF/9oACAEBAAY/AsD/zAAEEAX/2gAIAQEAAT8hm+I5yN/G"
        "/9oADAMBAAIAAwAAABC8WYn/zAAEEQX/2gAIAQMBAT8QTCYZRkY/y33/zAAEEQX/2gAIAQIBAT8QwyBqzXPoQP/MAAQQBf/aAAgBAQABPxDYuW"
        "ruy4gIgDXAgOWCvlLuOqFkv7SkwRHMn7MMoTD/2Q==",
    )
)
"""`encode(picture(5, height=24, width=20), "JPEG", quality=80)`, by `jpegtran -arithmetic`: sequential, progressive."""


def _jpegs() -> list[bytes]:
    return [
        *ARITHMETIC,
        _saved("JPEG"),
        _saved("JPEG", size=_PORTRAIT, subsampling=0),
        _saved("JPEG", progressive=True),
        _saved("JPEG", restart_marker_blocks=2),
        _saved("JPEG", "L"),
        _saved("JPEG", "CMYK"),
        _saved("JPEG", exif=_SIDEWAYS),
        _saved("JPEG", size=_PORTRAIT, exif=_SIDEWAYS),
        _saved("JPEG", size=_PORTRAIT, xmp=_XMP),
    ]


def _pngs() -> list[bytes]:
    return [
        _saved("PNG"),
        _saved("PNG", size=_PORTRAIT),
        _saved("PNG", "RGBA"),
        _saved("PNG", "LA"),
        _saved("PNG", "P"),
        _saved("PNG", "1"),
        _saved("PNG", exif=_SIDEWAYS[6:]),
        _saved("PNG", size=_PORTRAIT, exif=_SIDEWAYS[6:]),
        _saved("PNG", size=_PORTRAIT, pnginfo=_noted()),
        _deep("PNG"),
        _saved("PNG", save_all=True, append_images=[_picture(size=_LANDSCAPE), _picture(size=(20, 30))]),
    ]


def _noted() -> PngInfo:
    note = PngInfo()
    note.add_itxt("XML:com.adobe.xmp", _XMP.decode())
    return note


def _bmps() -> list[bytes]:
    return [
        _saved("BMP"),
        _saved("BMP", size=_PORTRAIT),
        _saved("BMP", "L"),
        _saved("BMP", "P"),
        _saved("BMP", "1"),
        _saved("BMP", "RGBA"),
        _top_down_bmp(),
        _deep_bmp(),
        _run_length_bmp(),
    ]


def _top_down_bmp() -> bytes:
    """Tell a negative height: rows from the top."""
    content = _saved("BMP")
    return content[:22] + struct.pack("<i", -_LANDSCAPE[0]) + content[26:]


def _deep_bmp() -> bytes:
    """Write 16 bits a pixel, 5, 6 and 5 of them for each colour."""
    height, width = 33, 60
    rows = np.random.default_rng(0).integers(0, 65536, (height, width), dtype=np.uint16).tobytes()
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 16, 3, len(rows), 2835, 2835, 0, 0) + masks
    start = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + rows


def _run_length_bmp() -> bytes:
    """Write a 4-bit palette BMP, run-length encoded, which Pillow reads but does not write."""
    height, width = 33, 60
    rows = b"".join(bytes((width, 17 * (row % 16), 0, 0)) for row in range(height)) + b"\0\1"
    palette = b"".join(bytes((16 * shade, 255 - 16 * shade, 8 * shade, 0)) for shade in range(16))
    start = 14 + 40 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 4, 2, len(rows), 2835, 2835, 16, 16)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + palette + rows


def _webps() -> list[bytes]:
    return [
        _saved("WEBP"),
        _saved("WEBP", size=_PORTRAIT),
        _saved("WEBP", "RGBA"),
        _saved("WEBP", lossless=True),
        _saved("WEBP", exif=_SIDEWAYS),
        _saved("WEBP", size=_PORTRAIT, exif=_SIDEWAYS),
        _saved("WEBP", size=_PORTRAIT, icc_profile=b"profile" * 9, xmp=_XMP, exif=_SIDEWAYS),
        _saved("WEBP", save_all=True, append_images=[_picture("L").convert("RGB")], duration=40),
    ]


def _tiffs() -> list[bytes]:
    compressed = [_saved("TIFF", compression=name) for name in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")]
    return [
        _saved("TIFF"),
        _saved("TIFF", size=_PORTRAIT),
        *compressed,
        *(_saved("TIFF", mode) for mode in ("L", "RGBA", "P", "F", "I", "CMYK")),
        _saved("TIFF", "1", compression="group4"),
        _saved("TIFF", size=_PORTRAIT, tiffinfo={274: 6}),
        _saved("TIFF", big_tiff=True),
        _saved("TIFF", save_all=True, append_images=[_picture(size=_PORTRAIT)]),
        _deep("TIFF"),
    ]


def _pnms() -> list[bytes]:
    return [
        _saved("PPM"),
        _saved("PPM", size=_PORTRAIT),
        _saved("PPM", "L"),
        _saved("PPM", "1"),
        _saved("PPM", "F"),
        b"P3\n# made by hand\n14 13\n255\n" + b"10 20 30 " * 182,
        b"P2\n14 13\n255\n" + b"10 " * 182,
        b"P1\n14 13\n" + b"1 0 " * 91,
        b"P6\n14 13\n65535\n" + b"ab" * 546,
        b"P7\nWIDTH 14\nHEIGHT 13\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" + b"abc" * 182,
    ]


def _jpeg2000s() -> list[bytes]:
    return [
        _saved("JPEG2000"),
        _saved("JPEG2000", size=_PORTRAIT),
        _saved("JPEG2000", "L"),
        _saved("JPEG2000", "LA"),
        _saved("JPEG2000", "RGBA"),
        _saved("JPEG2000", irreversible=True, quality_mode="rates", quality_layers=[8, 2]),
        _saved("JPEG2000", tile_size=(32, 32)),
        _saved("JPEG2000", no_jp2=True),
        _deep("JPEG2000"),
        _saved("JPEG2000", size=_PORTRAIT, no_jp2=True, progression="RPCL"),
    ]


_ORIGINALS: dict[str, Callable[[], list[bytes]]] = {
    "JPEG": _jpegs,
    "PNG": _pngs,
    "BMP": _bmps,
    "WebP": _webps,
    "TIFF": _tiffs,
    "PNM": _pnms,
    "JPEG2000": _jpeg2000s,
    "EXIF": lambda: [*_jpegs()[2:7], *_jpegs(), *_pngs()[:3], *_webps()[:3]],
}


# Files that once ended a process, or harmed others in their batch


@cache
def notorious() -> dict[str, bytes]:
    """Return a file of each kind, by what is wrong with it."""
    return {
        "BMP of a type that DALI does not know": _run_length_bmp(),
        "TIFF of a type that DALI does not know": _with_tag(_saved("TIFF", "I"), 339, 1),
        "PNG that is 2**32 - 9 pixels wide": _with_size(2**32 - 9, 41),
        "PNG of which both sides are negative": _with_size(2**32 - 1, 2**32 - 1),
        "PNG that is 0 pixels wide": _with_size(0, 41),
        "JPEG 2000 whose main header ends early": _jpeg2000s()[0].partition(b"\xff\x52")[0] + b"\xff\x52\x00",
        "JPEG 2000 whose coding style is impossible": _jpeg2000s()[0].replace(b"\xff\x52\0\x0c", b"\xff\x52\0\x0d"),
        "JPEG 2000 with tiles that are 0 wide": _with_tiles(_jpeg2000s()[0], 0, 41),
        "codestream with tiles that are 0 high": _with_tiles(_jpeg2000s()[-1], 150, 0),
        "codestream without components": _with_components(_jpeg2000s()[-1], 0),
        "JPEG 2000 that tells its size twice": _told_twice(_jpeg2000s()[0]),
        "WebP whose orientation one reader sees": _cut_riff(_webps()[5]),
        "PNG whose orientation one reader sees": _with_broken_sum(_pngs()[7], b"eXIf"),
        "TIFF that is told to be 1 pixel wide, too": _with_tag(_tiffs()[0], 284, 1, as_tag=256),
        "TIFF that is told to have more rows": _with_tag(_tiffs()[0], 284, 5000, as_tag=257),
        "TIFF whose directory is 2**63 bytes away": b"II+\0\x08\0\0\0" + struct.pack("<Q", 2**63) + _tiffs()[0],
        "TIFF of 2**64 - 1 entries": b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**64 - 1) + _tiffs()[0],
        **{
            f"JPEG that says orientations {first}, then {second}": _told_apart(first, second)
            for first, second in _APART
        },
        "animated PNG that jumps": _pngs()[-1].replace(b"fcTL", b"ecTL", 1),
        "animated PNG whose frame ends early": _pngs()[-1].replace(b"fdAT\0\0\0\2", b"fdAT\0\0\0\7", 1),
    }


_APART = ((1, 6), (6, 1), (2, 5), (3, 8))
"""Orientations that two readers of one file may see, one the first, the other the last."""


def _told_apart(first: int, second: int) -> bytes:
    segments = (_SIDEWAYS.replace(b"\0\x06\0", bytes((0, each, 0))) for each in (first, second))
    content = _saved("JPEG", size=_PORTRAIT)
    return (
        content[:2] + b"".join(b"\xff\xe1" + struct.pack(">H", len(each) + 2) + each for each in segments) + content[2:]
    )


def _with_size(width: int, height: int) -> bytes:
    content = _saved("PNG")
    return mended(content[:16] + struct.pack(">II", width, height) + content[24:])


def _with_tiles(content: bytes, width: int, height: int) -> bytes:
    place = content.index(b"\xff\x4f\xff\x51") + 24
    return content[:place] + struct.pack(">II", width, height) + content[place + 8 :]


def _with_components(content: bytes, count: int) -> bytes:
    place = content.index(b"\xff\x4f\xff\x51") + 40
    return content[:place] + struct.pack(">H", count) + content[place + 2 :]


def _told_twice(content: bytes) -> bytes:
    """Give a container a second header before its own, with another size; one reader takes the first, one the last."""
    start = content.index(b"jp2h") - 4
    stop = start + int.from_bytes(content[start : start + 4], "big")
    place = content.index(b"ihdr") + 4
    other = content[start:place] + struct.pack(">II", 41, 159) + content[place + 8 : stop]
    return content[:start] + other + content[start:]


def _cut_riff(content: bytes) -> bytes:
    return content[:4] + struct.pack("<I", len(content) - 28) + content[8:]


def _with_broken_sum(content: bytes, name: bytes) -> bytes:
    """Break the check sum of the chunk before the one that is named."""
    place = content.index(name) - 5
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _with_tag(content: bytes, tag: int, value: int, *, as_tag: int | None = None) -> bytes:
    """Set a number in a TIFF's first directory, perhaps under another tag."""
    (start,) = struct.unpack_from("<I", content, 4)
    for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", content, start)[0], 12):
        if struct.unpack_from("<H", content, place) == (tag,):
            return content[:place] + struct.pack("<HHII", as_tag or tag, 3, 1, value) + content[place + 12 :]
    raise AssertionError(f"no tag {tag}")
