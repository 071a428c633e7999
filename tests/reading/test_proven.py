"""What DALI is given is shown by it as by Pillow, bit for bit; all that two readers may see otherwise is Pillow's."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dalirefurb import BadSamplePolicy, FileList, Prefetch, Recipe, Standard
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.dali import Graph
from dalirefurb.errors import SampleError
from dalirefurb.loader import Loader
from dalirefurb.reading.inspector import Judged, decoded, judge
from dalirefurb.reading.pillow_decoder import PillowDecoder
from dalirefurb.source.levels import Levels
from tests.mutations import ARITHMETIC, FORMATS, mutation, notorious, originals
from tests.one_batch import levels
from tests.pictures import encode, jpeg, picture
from tests.reading.test_odd_files import peak_bytes

HEIGHT, WIDTH = 47, 70
ORIENTATION = 274
BATCH = 64
LIMIT_S = 600
"""Only ends what hangs."""


def verdict_of(content: bytes) -> Judged:
    return judge(np.frombuffer(content, np.uint8), PillowDecoder(None, Levels()))


def shown(content: bytes) -> NDArray[np.uint8]:
    return decoded(np.frombuffer(content, np.uint8), Levels(), "it")


def as_pillow_shows(content: bytes) -> NDArray[np.uint8]:
    """Return what is right; where what is said of an orientation is broken, as it is stored."""
    image = Image.open(io.BytesIO(content))
    image.load()
    with suppress(SyntaxError, struct.error, ValueError):
        image = ImageOps.exif_transpose(image)
    return np.asarray(image.convert("RGB"))


def written(format_: str, mode: str = "RGB", **options: Any) -> bytes:
    return encode(picture(5, height=HEIGHT, width=WIDTH).convert(mode), format_, **options)


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[ORIENTATION] = orientation
    return found


# JPEG: segments that are put in


def entries(*told: tuple[int, int, int, int], order: str = ">", start: int = 8) -> bytes:
    """Write EXIF data of tag, type, count and value."""
    magic = b"MM\0*" if order == ">" else b"II*\0"
    kinds = {1: "Bxxx", 3: "Hxx", 4: "I", 8: "hxx", 9: "i"}
    body = b"".join(
        struct.pack(f"{order}HHI", tag, kind, count) + struct.pack(order + kinds[kind], value)
        for tag, kind, count, value in told
    )
    return magic + struct.pack(order + "IH", start, len(told)) + body + bytes(4)


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def exif_segment(data: bytes) -> bytes:
    return segment(0xE1, b"Exif\0\0" + data)


def annotated(*segments: bytes, place: int = 2) -> bytes:
    content = written("JPEG", quality=95)
    return content[:place] + b"".join(segments) + content[place:]


def behind_the_frame(*segments: bytes) -> bytes:
    return annotated(*segments, place=written("JPEG", quality=95).index(b"\xff\xc4"))


def turned(orientation: int, **options: Any) -> bytes:
    return exif_segment(entries((ORIENTATION, 3, 1, orientation), **options))


XMP = segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<rdf:Description tiff:Orientation="6"/>')
ICC = segment(0xE2, b"ICC_PROFILE\0\x01\x01" + bytes(60))
MAKER = (271, 3, 1, 5)

PROVEN: dict[str, Callable[[], bytes]] = {
    "JPEG": lambda: written("JPEG"),
    "JPEG 4:4:4": lambda: written("JPEG", subsampling=0),
    "JPEG 4:2:2": lambda: written("JPEG", subsampling=1),
    "progressive JPEG": lambda: written("JPEG", progressive=True),
    "gray JPEG": lambda: written("JPEG", "L"),
    "JPEG with restarts": lambda: written("JPEG", restart_marker_blocks=2),
    "JPEG of RGB": lambda: written("JPEG", keep_rgb=True),
    "JPEG with a profile and a comment": lambda: annotated(ICC, segment(0xFE, b"comment")),
    "JPEG with EXIF data that say nothing": lambda: annotated(exif_segment(entries(MAKER))),
    "JPEG with EXIF data and XMP": lambda: annotated(turned(6), XMP),
    "JPEG with XMP, then EXIF data": lambda: annotated(XMP, turned(3)),
    "JPEG with something behind it": lambda: written("JPEG") + bytes(5000),
    **{f"JPEG of orientation {each}": lambda each=each: annotated(turned(each)) for each in range(1, 9)},
    **{f"JPEG of orientation {each}, II": lambda each=each: annotated(turned(each, order="<")) for each in (1, 6, 8)},
    "PNG": lambda: written("PNG"),
    "PNG with alpha": lambda: written("PNG", "RGBA"),
    "gray PNG with alpha": lambda: written("PNG", "LA"),
    "gray PNG": lambda: written("PNG", "L"),
    "PNG with a palette": lambda: written("PNG", "P"),
    "PNG with a transparent colour": lambda: written("PNG", "P", transparency=3),
    "PNG of 1 bit": lambda: written("PNG", "1"),
    "PNG with a profile": lambda: written("PNG", icc_profile=b"profile"),
    "WebP": lambda: written("WEBP"),
    "lossless WebP": lambda: written("WEBP", lossless=True),
    "WebP with alpha": lambda: written("WEBP", "RGBA", lossless=True, exact=True),
    "PPM": lambda: written("PPM"),
}


@pytest.mark.parametrize("name", PROVEN)
def test_what_dali_is_given_is_shown_as_by_pillow(name: str) -> None:
    content = PROVEN[name]()
    wanted = as_pillow_shows(content)
    verdict = verdict_of(content)
    assert verdict.decoder == "dali"
    assert verdict.header is not None
    assert verdict.header[:2] == wanted.shape[:2]
    assert np.array_equal(shown(content), wanted)


@pytest.mark.parametrize("content", ARITHMETIC, ids=["sequential", "progressive"])
def test_arithmetic_jpegs_are_shown_as_the_same_image_of_huffman_codes(content: bytes) -> None:
    """Pillow's wheels do not decode them."""
    assert verdict_of(content).decoder == "dali"
    assert np.array_equal(shown(content), shown(jpeg(picture(5, height=24, width=20), quality=80)))


def test_photographs_are_shown_as_by_pillow(photos: list[Path]) -> None:
    by_pillow = 0
    for path in photos[::7]:
        content = path.read_bytes()
        by_pillow += verdict_of(content).decoder == "pillow"
        assert np.array_equal(shown(content), as_pillow_shows(content)), path
    assert by_pillow <= 1


# What two readers may see otherwise


def png_with(name: bytes, body: bytes, *, last: bool = False) -> bytes:
    content = written("PNG")
    chunk = struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    place = len(content) - 12 if last else 33
    return content[:place] + chunk + content[place:]


def webp_with(*chunks: bytes, **options: Any) -> bytes:
    body = written("WEBP", **options)[8:] + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_exif(orientation: int) -> bytes:
    data = entries((ORIENTATION, 3, 1, orientation))
    return b"EXIF" + struct.pack("<I", len(data)) + data


def _half_seen() -> Image.Image:
    image = picture(5, height=HEIGHT, width=WIDTH)
    image.putalpha(picture(6, height=HEIGHT, width=WIDTH).convert("L"))
    return image


def animated_png() -> bytes:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("blue", "yellow", "green")]
    return encode(frames[0], "PNG", save_all=True, default_image=True, append_images=frames[1:])


def twice(content: bytes, chunk: int) -> bytes:
    """Repeat the chunk of so many bytes that comes behind the header of a PNG."""
    return content[: 33 + chunk] + content[33:]


PILLOWS: dict[str, Callable[[], bytes]] = {
    **{
        f"JPEG with EXIF data of {first}, then {second}": lambda first=first, second=second: annotated(
            turned(first), turned(second)
        )
        for first in (1, 2, 3, 6)
        for second in (1, 5, 6, 7, 8)
    },
    "JPEG with EXIF data around others": lambda: annotated(turned(6), ICC, segment(0xFE, b"it"), turned(1)),
    **{
        f"JPEG of an orientation of type {kind}, {order}": lambda kind=kind, order=order: annotated(
            exif_segment(entries((ORIENTATION, kind, 1, 6), order=order))
        )
        for kind in (1, 4, 8, 9)
        for order in "<>"
    },
    "JPEG of two orientations": lambda: annotated(
        exif_segment(entries((ORIENTATION, 3, 1, 6), (ORIENTATION, 3, 1, 1)))
    ),
    "JPEG of no orientation that there is": lambda: annotated(turned(9)),
    "JPEG of orientation 0": lambda: annotated(turned(0)),
    "JPEG with EXIF data that end early": lambda: annotated(exif_segment(entries((ORIENTATION, 3, 1, 6))[:20])),
    "JPEG with EXIF data of another mark": lambda: annotated(segment(0xE1, b"Exif\0\xff" + entries((274, 3, 1, 6)))),
    "JPEG with an entry that ends early before its orientation": lambda: annotated(
        exif_segment(entries((271, 9, 5, 9999), (ORIENTATION, 3, 1, 6)))
    ),
    "JPEG with EXIF data that are none": lambda: annotated(exif_segment(b"nothing of the kind")),
    "JPEG with EXIF data behind its frame": lambda: behind_the_frame(turned(6)),
    "JPEG with XMP alone": lambda: annotated(XMP),
    "JPEG with XMP and EXIF data that say nothing": lambda: annotated(XMP, exif_segment(entries(MAKER))),
    "CMYK JPEG": lambda: written("JPEG", "CMYK"),
    "JPEG of two frames": lambda: annotated(segment(0xC0, struct.pack(">BHHB9x", 8, HEIGHT, WIDTH - 9, 3))),
    "JPEG of two frames, the wrong one last": lambda: behind_the_frame(
        segment(0xC0, struct.pack(">BHHB9x", 8, HEIGHT, WIDTH - 9, 3))
    ),
    "JPEG with a segment that nobody knows": lambda: annotated(segment(0xF7, b"what")),
    "JPEG with bytes between segments": lambda: written("JPEG")[:2] + b"\xff\xff\xff" + written("JPEG")[2:],
    "PNG with EXIF data": lambda: written("PNG", exif=exif(6)),
    "PNG with EXIF data of type LONG": lambda: png_with(b"eXIf", entries((ORIENTATION, 4, 1, 6))),
    "PNG with EXIF data at its end": lambda: png_with(b"eXIf", entries((ORIENTATION, 3, 1, 6)), last=True),
    "PNG with XMP": lambda: png_with(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<a tiff:Orientation="8"/>'),
    "PNG that is animated": animated_png,
    "PNG with a chunk that nobody knows": lambda: png_with(b"abCd", b"what"),
    "PNG of two transparent colours": lambda: twice(png_with(b"tRNS", bytes(6)), 18),
    "PNG with two palettes": lambda: twice(png_with(b"PLTE", bytes(3)), 15),
    "PNG with something behind it and no end": lambda: written("PNG")[:-12] + b"\0\0\0\0ABCD\0\0\0\0" + b"IEND",
    "WebP with EXIF data": lambda: written("WEBP", exif=exif(6)),
    "WebP with EXIF data of type LONG": lambda: webp_with(b"EXIF" + struct.pack("<I", 26) + entries((274, 4, 1, 6))),
    "WebP with a profile": lambda: written("WEBP", icc_profile=b"profile"),
    "lossy WebP with alpha": lambda: encode(_half_seen(), "WEBP"),
    "WebP with XMP": lambda: written("WEBP", xmp=b'<a tiff:Orientation="3"/>'),
    "WebP with EXIF data that its flags deny": lambda: webp_with(webp_exif(6), icc_profile=b"profile"),
    "WebP that is animated": lambda: written("WEBP", save_all=True, append_images=[picture(1, height=47, width=70)]),
    "PGM": lambda: written("PPM", "L"),
    "PPM with a comment": lambda: b"P6\n# it\n2 1\n255\nabcdef",
    "PPM of 100 levels": lambda: b"P6\n2 1\n100\nabcdef",
    "PPM with bytes behind it": lambda: written("PPM") + b"\n",
    "BMP": lambda: written("BMP"),
    "TIFF": lambda: written("TIFF"),
    "TIFF of gray and alpha": lambda: written("TIFF", "LA"),
    "TIFF of 1 bit": lambda: written("TIFF", "1"),
    "JPEG 2000": lambda: written("JPEG2000"),
    "GIF": lambda: written("GIF"),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Truncated File Read")  # They are Pillow's.
@pytest.mark.parametrize("name", PILLOWS)
def test_what_two_readers_may_see_otherwise_is_pillows(name: str) -> None:
    content = PILLOWS[name]()
    verdict = verdict_of(content)
    assert verdict.decoder == "pillow"
    try:
        wanted = as_pillow_shows(content)
    except Exception:  # Every format has its own; what Pillow refuses is refused.
        with pytest.raises(Exception, match="decoding failed"):
            shown(content)
        return
    assert verdict.header is not None
    assert verdict.header[:2] == wanted.shape[:2]
    assert np.array_equal(shown(content), wanted)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Of broken files Pillow warns in many words.
@pytest.mark.parametrize("format_", FORMATS)
def test_a_size_that_dali_is_told_is_the_one_that_pillow_shows(format_: str) -> None:
    """Two that differ end a process: here nothing is decoded by DALI."""
    given = 0
    for number in range(300):
        content = mutation(11, format_, number)
        verdict = verdict_of(content)
        if verdict.decoder != "dali":
            continue
        try:
            with Image.open(io.BytesIO(content)) as image:
                wanted = image.size[::-1]
                orientation = image.getexif().get(ORIENTATION, 1)
        except Exception:  # Every format has its own.
            continue
        given += 1
        assert verdict.header is not None
        assert verdict.header[:2] == (wanted[::-1] if orientation in (5, 6, 7, 8) else wanted), number
    assert given > {"JPEG": 20, "EXIF": 20, "WebP": 5, "PNG": 5}.get(format_, -1)


def test_a_lossless_webp_of_another_version_is_not_dalis() -> None:
    content = bytearray(written("WEBP", lossless=True))
    assert verdict_of(bytes(content)).decoder == "dali"
    content[24] |= 0x20
    assert verdict_of(bytes(content)).decoder is None


# Why not


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"not an image that can be decoded \(empty\)"),
        (b"<html>404</html>", r"not an image that can be decoded \(of no format that Pillow knows\)"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), r"not an image that can be decoded \(as PNG: broken PNG file"),
        (b"P6\n70 0\n255\n", "not an image that can be decoded"),
    ],
)
def test_the_reason_is_told(content: bytes, reason: str) -> None:
    verdict = verdict_of(content)
    assert (verdict.decoder, verdict.header) == (None, None)
    assert re.search(reason, verdict.reason)


def test_a_size_that_is_too_large_is_told_whoever_would_decode_it() -> None:
    for format_ in ("JPEG", "TIFF"):
        encoded = np.frombuffer(written(format_), np.uint8)
        verdict = judge(encoded, PillowDecoder(3_289, Levels()))
        assert verdict.decoder is None
        assert "3,289 pixels at most, but its header declares 47 x 70: pass max_pixels=3290" in verdict.reason


def test_an_image_that_is_too_large_is_never_decoded_to_find_its_orientation() -> None:
    """For that of a PNG Pillow decodes it."""
    side = 20_000
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"eXIf", entries((ORIENTATION, 3, 1, 6)))]
    chunks += [(b"IDAT", zlib.compress(bytes(side * (1 + side // 8)), 1)), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    Path("/proc/self/clear_refs").write_text("5")  # The peak is forgotten.
    before = peak_bytes()
    verdict = judge(np.frombuffer(content, np.uint8), PillowDecoder(100_000_000, Levels()))
    assert verdict.decoder is None
    assert "declares 20000 x 20000" in verdict.reason
    assert peak_bytes() - before < side * side / 4


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "PPM"])
@pytest.mark.parametrize("place", range(12))
def test_what_begins_otherwise_is_not_dalis(format_: str, place: int) -> None:
    """But for the length in a RIFF file, which is checked, all that a file begins with says what it is."""
    content = bytearray(written(format_))
    content[place] ^= 0x18
    header = verdict_of(bytes(content)).header
    if verdict_of(bytes(content)).decoder == "dali":
        assert header is not None
        assert header[:2] == Image.open(io.BytesIO(content)).size[::-1]


@pytest.mark.parametrize("place", [(24, 5), (25, 1), (25, 7), (26, 1), (27, 1), (28, 2)])
def test_a_png_of_no_kind_that_there_is_is_not_dalis(place: tuple[int, int]) -> None:
    content = bytearray(written("PNG"))
    content[place[0]] = place[1]
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    assert verdict_of(bytes(content)).decoder != "dali"


# In batches among good ones, in a process of their own

CROPPED = Recipe([Decode(), CenterCrop(40)], levels(40), 1)


def cropped(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    top, left = round((height - 40) / 2), round((width - 40) / 2)
    return pixels[top : top + 40, left : left + 40].transpose(2, 0, 1)


def reported(folder: Path) -> Iterator[tuple[Path, NDArray[np.uint8] | None]]:
    """Yield files, and what must be served of each: what lies beside it, or what Pillow shows of a JPEG."""
    for path in sorted(folder.iterdir()):
        beside = path.with_name(path.name + ".want.png")
        if path.suffix == ".jpg":
            yield path, as_pillow_shows(path.read_bytes())
        elif beside.exists():
            yield path, np.asarray(Image.open(beside).convert("RGB"))


def _serve(folder: Path, good: Path) -> None:
    """Serve each file at three places among good ones, by both kernels and policies; say what was wrong."""
    neighbours = sorted(good.iterdir())
    wanted = [cropped(as_pillow_shows(path.read_bytes())) for path in neighbours]
    for path, image in reported(folder):
        assert image is not None
        for kernels in ("dali", "numba"):
            for number, policy in enumerate((BadSamplePolicy(), BadSamplePolicy("replace"))):
                place = (0, 31, BATCH - 1)[number + (kernels == "numba")]
                paths, images = list(neighbours[: BATCH - 1]), list(wanted[: BATCH - 1])
                paths.insert(place, path)
                images.insert(place, cropped(image))
                with Loader(
                    FileList(paths, range(BATCH)),
                    CROPPED,
                    Standard(BATCH, batch_size=BATCH),
                    kernels=kernels,
                    prefetch=Prefetch(num_threads=2),
                    bad_samples=policy,
                ) as loader:
                    for _ in range(2):
                        ((served, labels),) = loader
                        difference = np.abs(served.numpy()[np.argsort(labels.numpy())] - np.stack(images)).max(
                            (1, 2, 3)
                        )
                        if difference.max() > 0:
                            print(path.name, kernels, number, np.flatnonzero(difference), flush=True)  # noqa: T201
                    if loader.bad_samples():
                        print(path.name, "is named", flush=True)  # noqa: T201
    print("done", flush=True)  # noqa: T201


@pytest.mark.weekly  # Some of them are always served in `test_reports`, and what ends a process in one of its own.
def test_reported_files_are_served_right_and_harm_no_neighbour(
    shared_data: Path, tmp_path: Path, photos: list[Path]
) -> None:
    pytest.importorskip("numba")
    if not (shared_data / "reports2").is_dir():
        pytest.skip("shared data without the second reports")
    for number in range(BATCH):
        content = jpeg(picture(number, height=48 + number % 5, width=50 + number % 7))
        (tmp_path / f"{number:02d}.jpg").write_bytes(content)
    command = [sys.executable, "-m", "tests.reading.test_proven", str(shared_data / "reports2"), str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=LIMIT_S, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_what_once_ended_a_process_is_named_or_pillows() -> None:
    for name, content in notorious().items():
        assert verdict_of(content).decoder != "dali", name
    assert all(verdict_of(content).decoder is not None for format_ in FORMATS[:4] for content in originals(format_))


def test_a_refused_sample_says_what_pillow_says(tmp_path: Path) -> None:
    (tmp_path / "cut.gif").write_bytes(written("GIF")[:-900])
    with pytest.raises(SampleError, match=r"decoding failed .*truncated"):
        FileList([tmp_path / "cut.gif"], [0])[0]


if __name__ == "__main__":
    Graph.serialize = cache(Graph.serialize)  # type: ignore[method-assign]
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
