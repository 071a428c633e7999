"""Files of which parsers and decoders make different things, at times with harm, are shown by Pillow or named."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dalirefurb import Recipe, Standard
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import SampleError
from dalirefurb.reading.inspector import Inspector, Refused, judge
from dalirefurb.reading.pillow_decoder import PillowDecoder
from dalirefurb.source.levels import Levels
from tests.bad_files import among_good_ones
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.mutations import FORMATS, notorious, originals
from tests.one_batch import levels
from tests.pictures import encode, jpeg, picture
from tests.reading.test_as_pillow_shows import animated, cropped, exif
from tests.reading.test_file_formats import as_pillow_opens

HEIGHT, WIDTH, SIDE = 47, 70, 32
RECIPE = Recipe([Decode(), CenterCrop(SIDE)], levels(SIDE), 1)


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

JPEG_2000: list[dict[str, Any]] = [
    {},
    {"irreversible": True, "quality_layers": [20, 5]},
    {"tile_size": (32, 32)},
    {"precinct_size": (64, 64)},
    {"num_resolutions": 3, "progression": "RLCP"},
]


NO_RANGE = "TIFF of a type that DALI does not know"
"""Its numbers go beyond 8 bits and are cut off there by Pillow, which is nothing to serve."""

HARMFUL = {
    **notorious(),
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


def as_pillow_is_able(content: bytes) -> NDArray[np.float64] | None:
    """What `RECIPE` is to serve of a file, None if Pillow cannot decode it."""
    try:
        return cropped(content, SIDE)
    except Exception:  # Every format has its own.
        return None


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Corrupt EXIF data", "ignore:Invalid APNG")
@pytest.mark.parametrize(("name", "kernels"), in_turn(list(HARMFUL), ["dali", "numba"]))
def test_a_harmful_file_is_shown_as_pillow_shows_it_or_named(name: str, kernels: str, tmp_path: Path) -> None:
    """It is the middle one of three, of which the others come to no harm."""
    if kernels == "numba":
        pytest.importorskip("numba")
    content = HARMFUL[name]
    source = among_good_ones(tmp_path, content)
    wanted = None if name == NO_RANGE else as_pillow_is_able(content)
    planner = Standard(3, batch_size=3)
    options: dict[str, Any] = {"num_threads": 1, "kernels": kernels}
    if wanted is None:
        with flat_loader(source, RECIPE, planner, **options) as loader, pytest.raises(SampleError) as caught:
            next(iter(loader))
        assert (caught.value.index, caught.value.name) == (1, source.name(1))
    with flat_loader(source, RECIPE, planner, **options, on_bad_sample="replace", with_indices=True) as loader:
        for _ in range(2):
            ((images, _, indices),) = loader
            for image, index in zip(images.numpy(), indices.tolist(), strict=True):
                whole = cropped(Path(source.name(index)).read_bytes(), SIDE)
                assert np.abs(image - whole).max() <= 2, index
        assert [sample.index for sample in loader.bad_samples()] == [1] * (wanted is None)


def looked_at(content: bytes) -> tuple[int, int]:
    inspector = Inspector(1, max_pixels=None, levels=Levels())
    heights, widths = inspector.look(np.arange(1), [np.frombuffer(content, np.uint8)])
    return heights.item(), widths.item()


@pytest.mark.parametrize("container", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_ordinary_jpeg_2000_is_taken(mode: str, container: bool) -> None:
    content = jpeg_2000(mode, container=container)
    assert looked_at(content) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("format_", ["PNG", "WEBP"])
def test_an_image_that_exif_data_turn_is_taken(format_: str) -> None:
    turned = encode(picture(3, height=190, width=57), format_, lossless=True, exif=exif(orientation=6))
    assert looked_at(turned) == (57, 190)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_the_reason_is_told() -> None:
    reasons = {}
    for name, content in HARMFUL.items():
        try:
            looked_at(content)
        except Refused as refused:  # noqa: PERF203
            reasons[name] = refused.reason
    assert reasons.keys() == {name for name, content in HARMFUL.items() if as_pillow_is_able(content) is None} | {
        NO_RANGE
    }
    for name, reason in {
        NO_RANGE: "its pixels are int32, of which no range is declared: pass value_range=(low, high)",
        "PNG that is 2**32 - 9 pixels wide": "its header declares 41 x 4294967287 pixels, which no decoder takes",
        "PNG that is 0 pixels wide": "(as PNG",
        "JPEG 2000 whose main header ends early": "(as JPEG2000",
        "codestream without components": "(as JPEG2000: unable to determine J2K image mode",
        "JPEG 2000 that tells its size twice": "decoding failed (OSError: broken data stream",
        "container without a codestream": "decoding failed (OSError: broken data stream",
        "TIFF of 2**64 - 1 entries": "(as TIFF: Missing dimensions",
        "TIFF with a width that is no number": "not an image that can be decoded (ValueError: Invalid dimensions)",
        "TIFF whose directory ends early": "(as TIFF",
        "JPEG of 17 bits": "(as JPEG: cannot handle 17-bit layers",
        "PNM without height": "(as PPM",
    }.items():
        assert reason in reasons[name]


@pytest.mark.parametrize("options", JPEG_2000, ids=str)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_jpeg_2000_of_any_style_is_shown_as_pillow_shows_it(mode: str, options: dict[str, Any], tmp_path: Path) -> None:
    content = jpeg_2000(mode, **options)
    source = among_good_ones(tmp_path, content)
    assert np.array_equal(source[1][0], np.asarray(as_pillow_opens(content)))


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
def test_a_main_header_to_which_somebody_can_object_harms_nobody(
    marker: bytes, place: int, new: bytes, tmp_path: Path
) -> None:
    content = jpeg_2000(container=False)
    odd = changed(content, content.index(marker) + place, new)
    source = among_good_ones(tmp_path, odd)
    wanted = as_pillow_is_able(odd)
    assert judge(np.frombuffer(odd, np.uint8), PillowDecoder(None, Levels())).decoder != "dali"
    if wanted is None:
        with pytest.raises(SampleError, match=r"sample 1 .*(decoding failed|not an image that can be decoded)"):
            source[1]
    else:
        assert np.array_equal(source[1][0], np.asarray(as_pillow_opens(odd)))


def test_no_bytes_make_the_checks_fail_otherwise() -> None:
    """Whatever becomes of a header, it is taken or refused."""
    rng = np.random.default_rng(0)
    pillow = PillowDecoder(None, Levels())
    decoders = set()
    for format_ in FORMATS:
        for content in originals(format_):
            for _ in range(30):
                bad = np.frombuffer(content, np.uint8).copy()
                bad[rng.integers(0, min(120, len(bad)), 3)] = rng.integers(0, 256, 3)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow's.
                    verdict = judge(bad, pillow)
                assert (verdict.decoder is None) == bool(verdict.reason)
                assert verdict.header is None or min(verdict.header[:2]) > 0
                decoders.add(verdict.decoder)
    assert decoders == {"dali", "pillow", None}
