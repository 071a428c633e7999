"""Files of which parsers and decoders make different things, at times with harm, are named before DALI sees them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dalirefurb.reading.formats.jpeg2000 import codestream, is_plain
from dalirefurb.reading.formats.tiff import check as check_tiff

from dalirefurb import Loader, Prefetch, Standard, simple
from dalirefurb.errors import SampleError
from dalirefurb.reading.formats import StructureError
from dalirefurb.reading.inspector import Inspector, Refused
from tests.bad_files import among_good_ones
from tests.mutations import UNFIT, notorious, originals
from tests.pictures import encode, jpeg, picture
from tests.reading.test_rewriting import animated, exif

HEIGHT, WIDTH = 47, 70


def jpeg_2000(mode: str = "RGB", *, container: bool = True, **options: Any) -> bytes:
    return encode(picture(3, height=HEIGHT, width=WIDTH).convert(mode), "JPEG2000", no_jp2=not container, **options)


def changed(content: bytes, start: int, new: bytes) -> bytes:
    return content[:start] + new + content[start + len(new) :]


def with_size(place: int, new: bytes) -> bytes:
    """Change what a codestream's size segment says, so many bytes behind its marker."""
    content = jpeg_2000(container=False)
    return changed(content, content.index(b"\xff\x51") + place, new)


def of_two_sizes() -> bytes:
    """Say another size in the header of a container before the right one."""
    content = jpeg_2000()
    start = content.index(b"ihdr") - 4
    other = changed(content[start : start + 22], 8, struct.pack(">II", HEIGHT, WIDTH + 9))
    (length,) = struct.unpack_from(">I", content, start - 8)
    return content[: start - 8] + struct.pack(">I", length + 22) + b"jp2h" + other + content[start:]


def of_size_in(length: int) -> bytes:
    """Say the size of a container in fewer or more bytes."""
    content = jpeg_2000()
    start = content.index(b"ihdr") - 4
    (header,) = struct.unpack_from(">I", content, start - 8)
    size = struct.pack(">I", length + 8) + content[start + 4 : start + 8 + length]
    return content[: start - 8] + struct.pack(">I", header - 14 + length) + b"jp2h" + size + content[start + 22 :]


def of_many_bits(format_: str) -> bytes:
    """Say in a header that pixels have 17 bits, for which nvImageCodec has no type."""
    if format_ == "JPEG 2000":
        return with_size(40, b"\x10")
    content = jpeg(picture(0, height=HEIGHT, width=WIDTH))
    return changed(content, content.index(b"\xff\xc0") + 4, b"\x11")


TIFF = originals("TIFF")[0]
BMP = originals("BMP")[0]

HARMFUL = {
    **{name: content for name, content in notorious().items() if name in UNFIT},
    "no columns": with_size(41, b"\0"),
    "bad main header in a container": changed(jpeg_2000(), jpeg_2000().index(b"\xff\x52") + 2, b"\0\3"),
    "container without a codestream": jpeg_2000().replace(b"jp2c", b"jp2x"),
    "two sizes in a container": of_two_sizes(),
    "size in fewer bytes": of_size_in(13),
    "box of one byte": changed(jpeg_2000(), 12, b"\0\0\0\1"),
    "TIFF with a width that is no number": changed(TIFF, TIFF.index(struct.pack("<H", 256)) + 2, b"\2"),
    "TIFF whose directory ends early": TIFF[:90],
    "JPEG of 17 bits": of_many_bits("JPEG"),
    "codestream of 17 bits": of_many_bits("JPEG 2000"),
    "APNG cut in its animation": animated(hidden=True)[:-40],
    "PNM without height": b"P5\n70 0\n255\n" + bytes(100),
    "BMP cut a little short": BMP[:-1],
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_file_is_named(name: str, kernels: str, tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, HARMFUL[name])
    with (
        Loader(
            source, simple(32), Standard(3, batch_size=3), prefetch=Prefetch(num_threads=1), kernels=kernels
        ) as loader,
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
    turned = encode(picture(3, height=190, width=57), format_, lossless=True, exif=exif(orientation=6))
    assert looked_at(turned) == (57, 190)


def test_the_reason_is_told() -> None:
    reasons = {}
    for name, content in HARMFUL.items():
        with pytest.raises(Refused) as caught:
            looked_at(content)
        reasons[name] = caught.value.reason
    assert "tiles of 41 x 0 pixels make no image" in reasons["JPEG 2000 with tiles that are 0 wide"]
    assert "0 components, each of 1 x 1 pixels, make no image" in reasons["codestream without components"]
    assert "it has no codestream" in reasons["container without a codestream"]
    assert "decoding failed" in reasons["bad main header in a container"]
    for name in ("two sizes in a container", "JPEG 2000 that tells its size twice"):
        assert "its size must be told once before its codestream, but is 2 times" in reasons[name]
    assert "its size must be told in 14 bytes, not 13" in reasons["size in fewer bytes"]
    assert "a box of 1 bytes cannot be at byte 12" in reasons["box of one byte"]
    told = reasons["TIFF that is told to be 1 pixel wide, too"]
    assert "its width must be told once, as one number, but is 2 times" in told
    assert "its first directory ends early" in reasons["TIFF whose directory ends early"]
    for name in ("TIFF of a type that DALI does not know", "JPEG of 17 bits", "codestream of 17 bits"):
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
    for content in (b"", b"II", b"\xff", BMP, jpeg(picture(0, height=20, width=20))):
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
    for content in (jpeg_2000(), jpeg_2000(container=False), TIFF):
        for _ in range(1500):
            bad = np.frombuffer(content, np.uint8).copy()
            bad[rng.integers(0, 120, 3)] = rng.integers(0, 256, 3)
            try:
                if (stream := codestream(bad)) is not None:
                    is_plain(stream)
                check_tiff(bad)
            except StructureError:
                pass
