"""Files of which parsers and decoders make different things, at times with harm, are named before DALI sees them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dalirefurb import Loader, Standard, simple
from dalirefurb.errors import SampleError
from dalirefurb.reading.formats import StructureError
from dalirefurb.reading.formats.jpeg2000 import codestream, is_plain
from dalirefurb.reading.formats.tiff import check as check_tiff
from dalirefurb.reading.inspector import Inspector, Refused
from tests.bad_files import among_good_ones
from tests.pictures import encode, jpeg, picture
from tests.reading.test_rewriting import animated, exif

HEIGHT, WIDTH = 47, 70


def jpeg_2000(mode: str = "RGB", *, container: bool = True, **options: Any) -> bytes:
    return encode(picture(3, height=HEIGHT, width=WIDTH).convert(mode), "JPEG2000", no_jp2=not container, **options)


def changed(content: bytes, start: int, new: bytes) -> bytes:
    return content[:start] + new + content[start + len(new) :]


def with_size(place: int, new: bytes, *, container: bool) -> bytes:
    """Change what a codestream's size segment says, so many bytes behind its marker."""
    content = jpeg_2000(container=container)
    return changed(content, content.index(b"\xff\x51") + place, new)


def of_two_sizes(*, apart: bool) -> bytes:
    """Say another size in a container before the right one, in the same header or in one before it."""
    content = jpeg_2000()
    start = content.index(b"ihdr") - 4
    other = changed(content[start : start + 22], 8, struct.pack(">II", HEIGHT, WIDTH + 9))
    if apart:
        header = struct.pack(">I", 30) + b"jp2h" + other
        return content[: start - 8] + header + content[start - 8 :]
    (length,) = struct.unpack_from(">I", content, start - 8)
    return content[: start - 8] + struct.pack(">I", length + 22) + b"jp2h" + other + content[start:]


def of_size_in(length: int) -> bytes:
    """Say the size of a container in fewer or more bytes."""
    content = jpeg_2000()
    start = content.index(b"ihdr") - 4
    (header,) = struct.unpack_from(">I", content, start - 8)
    size = struct.pack(">I", length + 8) + content[start + 4 : start + 8 + length]
    return content[: start - 8] + struct.pack(">I", header - 14 + length) + b"jp2h" + size + content[start + 22 :]


def tiff(*, bits: int = 8, again: tuple[int, int, int] | None = None, kind: int = 3) -> bytes:
    """A gray TIFF, with one more entry if asked for: tag, type, value; `kind` is the type of the width."""
    pixels = (np.arange(HEIGHT * WIDTH) % 200).astype(f"<u{bits // 8}").tobytes()
    entries = [(256, kind, WIDTH), (257, 3, HEIGHT), (258, 3, bits), (259, 3, 1), (262, 3, 1), (273, 4, 8)]
    entries += [(277, 3, 1), (278, 3, HEIGHT), (279, 4, len(pixels)), (339, 3, 1), *([again] if again else [])]
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in sorted(entries))
    head = struct.pack("<2sHI", b"II", 42, 8 + len(pixels))
    return head + pixels + struct.pack("<H", len(entries)) + directory + bytes(4)


def of_many_bits(format_: str) -> bytes:
    """Say in a header that pixels have 17 bits, for which nvImageCodec has no type."""
    if format_ == "JPEG 2000":
        return with_size(40, b"\x10", container=False)
    content = jpeg(picture(0, height=HEIGHT, width=WIDTH))
    return changed(content, content.index(b"\xff\xc0") + 4, b"\x11")


def sideways(format_: str) -> bytes:
    """A portrait that EXIF data turn."""
    options = {"lossless": True} if format_ == "WEBP" else {}
    return encode(picture(3, height=190, width=57), format_, exif=exif(orientation=6), **options)


def seen_by_one_reader(format_: str) -> bytes:
    """EXIF data behind where OpenCV takes a WebP to end, or in a chunk of PNG whose checksum is wrong."""
    content = sideways(format_)
    if format_ == "WEBP":
        return changed(content, 4, struct.pack("<I", content.index(b"EXIF") - 8))
    return changed(content, content.index(b"eXIf") + 4, b"XX")


HARMFUL: dict[str, Callable[[], bytes]] = {
    "tiles without width": lambda: with_size(22, bytes(4), container=True),
    "tiles without height, no container": lambda: with_size(26, bytes(4), container=False),
    "no components": lambda: with_size(38, bytes(2), container=True),
    "no columns": lambda: with_size(41, b"\0", container=False),
    "bad main header in a container": lambda: changed(jpeg_2000(), jpeg_2000().index(b"\xff\x52") + 2, b"\0\3"),
    "container without a codestream": lambda: jpeg_2000().replace(b"jp2c", b"jp2x"),
    "container cut in its main header": lambda: jpeg_2000()[: jpeg_2000().index(b"\xff\x52") + 6],
    "two sizes in a container": lambda: of_two_sizes(apart=False),
    "two headers in a container": lambda: of_two_sizes(apart=True),
    "size in fewer bytes": lambda: of_size_in(13),
    "box of one byte": lambda: changed(jpeg_2000(), 12, b"\0\0\0\1"),
    "TIFF of two widths": lambda: tiff(again=(256, 3, 1)),
    "TIFF of two heights": lambda: tiff(again=(257, 4, 150)),
    "TIFF with a width that is no number": lambda: tiff(kind=2),
    "TIFF whose directory ends early": lambda: tiff()[:-90],
    "TIFF of 32 bits": lambda: tiff(bits=32),
    "JPEG of 17 bits": lambda: of_many_bits("JPEG"),
    "codestream of 17 bits": lambda: of_many_bits("JPEG 2000"),
    "WebP turned by one reader": lambda: seen_by_one_reader("WEBP"),
    "APNG cut in its animation": lambda: animated(hidden=True)[:-40],
    "PNM without height": lambda: b"P5\n70 0\n255\n" + bytes(100),
    "BMP cut a little short": lambda: bmp()[:-1],
}


def bmp() -> bytes:
    return encode(picture(3, height=HEIGHT, width=WIDTH), "BMP")


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_file_is_named(name: str, kernels: str, tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, HARMFUL[name]())
    with (
        Loader(source, simple(32), Standard(3, batch_size=3), num_threads=1, kernels=kernels) as loader,
        pytest.raises(SampleError) as caught,
    ):
        next(iter(loader))
    assert (caught.value.index, caught.value.name) == (1, source.name(1))


def looked_at(content: bytes) -> tuple[int, int]:
    inspector = Inspector(1, max_batch_size=1, max_pixels=None, fallback=None)
    heights, widths = inspector.look(np.arange(1), [np.frombuffer(content, np.uint8)])
    return heights.item(), widths.item()


@pytest.mark.parametrize("container", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_ordinary_jpeg_2000_is_taken(mode: str, container: bool) -> None:
    """Of gray images and of those with alpha, too, the codestream can be tried alone."""
    content = jpeg_2000(mode, container=container)
    assert looked_at(content) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("format_", ["PNG", "WEBP"])
def test_an_image_that_exif_data_turn_is_taken(format_: str) -> None:
    assert looked_at(sideways(format_)) == (57, 190)


def test_the_reason_is_told() -> None:
    reasons = {}
    for name, make in HARMFUL.items():
        with pytest.raises(Refused) as caught:
            looked_at(make())
        reasons[name] = caught.value.reason
    assert "tiles of 47 x 0 pixels make no image" in reasons["tiles without width"]
    assert "0 components, each of 1 x 1 pixels, make no image" in reasons["no components"]
    assert "it has no codestream" in reasons["container without a codestream"]
    assert "decoding failed" in reasons["bad main header in a container"]
    for name in ("two sizes in a container", "two headers in a container"):
        assert "its size must be told once before its codestream, but is 2 times" in reasons[name]
    assert "its size must be told in 14 bytes, not 13" in reasons["size in fewer bytes"]
    assert "a box of 1 bytes cannot be at byte 12" in reasons["box of one byte"]
    assert "its width must be told once, as one number, but is 2 times" in reasons["TIFF of two widths"]
    assert "its first directory ends early" in reasons["TIFF whose directory ends early"]
    for name in ("TIFF of 32 bits", "JPEG of 17 bits", "codestream of 17 bits"):
        assert "its pixels are of a type that DALI does not know" in reasons[name]
    assert "must have pixels, but its header declares 0 x 70" in reasons["PNM without height"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"irreversible": True, "quality_layers": [20, 5]},
        {"tile_size": (32, 32)},
        {"precinct_size": (64, 64)},
        {"num_resolutions": 3, "progression": "RLCP"},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_ordinary_containers_are_not_tried(mode: str, options: dict[str, Any]) -> None:
    """Their main headers are plain."""
    stream = codestream(np.frombuffer(jpeg_2000(mode, **options), np.uint8))
    assert stream is not None
    assert is_plain(stream)


@pytest.mark.parametrize(
    ("marker", "place", "new"),
    [
        (b"\xff\x51", 2, b"\0\x30"),  # the size is longer than its components need
        (b"\xff\x51", 6, bytes(4)),  # no columns
        (b"\xff\x51", 14, b"\0\0\0\x60"),  # the image begins where it has ended
        (b"\xff\x51", 22, b"\0\0\0\1\0\0\0\1\0\0\0\1"),  # the first tile lies outside
        (b"\xff\x51", 40, b"\x25"),  # 38 bits
        (b"\xff\x51", 44, b"\0"),  # a component without pixels
        (b"\xff\x52", 1, b"\x53"),  # no style, but one of a component
        (b"\xff\x52", 2, b"\0\3"),
        (b"\xff\x52", 4, b"\1"),  # precincts that are not there
        (b"\xff\x52", 6, b"\0\0"),  # no layers
        (b"\xff\x52", 8, b"\2"),  # colours are mixed in a way that is not known
        (b"\xff\x52", 9, b"\x21"),  # halved 33 times
        (b"\xff\x52", 10, b"\7\7"),  # blocks too large
        (b"\xff\x52", 13, b"\2"),  # a transform that is not known
        (b"\xff\x5c", 2, b"\0\4"),  # quantisation of too few bands
        (b"\xff\x5c", 4, b"\2"),
        (b"\xff\x64", 1, b"\x5f"),  # a comment becomes an order of packets
    ],
)
def test_a_main_header_to_which_somebody_can_object_is_not_plain(marker: bytes, place: int, new: bytes) -> None:
    content = jpeg_2000(container=False)
    assert is_plain(np.frombuffer(content, np.uint8))
    odd = changed(content, content.index(marker) + place, new)
    assert not is_plain(np.frombuffer(odd, np.uint8))


def test_other_files_have_no_codestream_and_no_directory() -> None:
    for content in (b"", b"II", b"\xff", bmp(), jpeg(picture(0, height=20, width=20))):
        assert codestream(np.frombuffer(content, np.uint8)) is None
        check_tiff(np.frombuffer(content, np.uint8))


def test_the_codestream_of_a_container_is_its_content() -> None:
    content, alone = (np.frombuffer(jpeg_2000(container=container), np.uint8) for container in (True, False))
    stream, itself = codestream(content), codestream(alone)
    assert stream is not None
    assert itself is not None
    assert stream.tobytes() == alone.tobytes() == itself.tobytes()


def test_no_bytes_make_the_checks_fail_otherwise() -> None:
    """Whatever becomes of a header, it is taken or refused."""
    rng = np.random.default_rng(0)
    for content in (jpeg_2000(), jpeg_2000(container=False), tiff()):
        for _ in range(1500):
            bad = np.frombuffer(content, np.uint8).copy()
            places = rng.integers(0, 120, 3) if content[:2] != b"II" else rng.integers(-130, 0, 3)
            bad[places] = rng.integers(0, 256, 3)
            try:
                if (stream := codestream(bad)) is not None:
                    is_plain(stream)
                check_tiff(bad)
            except StructureError:
                pass
