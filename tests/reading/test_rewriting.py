"""What DALI alone shows otherwise than Pillow is served as Pillow shows it: by both kernels, without the fallback."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dalirefurb.reading.formats.rewriting import rewritten
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from dalirefurb import Recipe, Standard
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import SampleError
from tests.bad_files import among_good_ones
from tests.loading import flat_loader
from tests.one_batch import levels
from tests.pictures import encode, picture
from tests.reading.test_file_formats import WINDOW, as_pillow_opens

HEIGHT, WIDTH, SIDE = 47, 70, 40
ORIENTATION, MAKER = 0x0112, 0x010F
CROPPED = Recipe([Decode(), CenterCrop(SIDE)], levels(SIDE), 1)


def xmp(orientation: int, *, element: bool = False) -> bytes:
    stated = f"><tiff:Orientation>{orientation}</tiff:Orientation></rdf:Description>"
    if not element:
        stated = f' tiff:Orientation="{orientation}"/>'
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description{stated}</rdf:RDF></x:xmpmeta>'.encode()


def written(format_: str, mode: str = "RGB", **options: Any) -> bytes:
    return encode(picture(5, height=HEIGHT, width=WIDTH).convert(mode), format_, **options)


def exif(*, orientation: int | None = None) -> Image.Exif:
    found = Image.Exif()
    found[MAKER] = "somebody"
    if orientation is not None:
        found[ORIENTATION] = orientation
    return found


def png(stated: bytes, *, compressed: bool = False, **options: Any) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", stated.decode(), zip=compressed)
    return written("PNG", pnginfo=info, **options)


def profiled_png(*, compressed: bool, **options: Any) -> bytes:
    """A PNG with EXIF data in a text, turned by a quarter, as ImageMagick wrote them."""
    profile, info = exif(orientation=6).tobytes(), PngImagePlugin.PngInfo()
    text = f"\nexif\n{len(profile):8}\n{profile.hex()[:40]}\n{profile.hex()[40:]}\n"
    info.add_text("Raw profile type exif", text, zip=compressed)
    return written("PNG", pnginfo=info, **options)


STATED: dict[str, Callable[[bytes], bytes]] = {
    "JPEG": lambda stated: written("JPEG", xmp=stated, quality=95),
    "progressive JPEG": lambda stated: written("JPEG", xmp=stated, progressive=True),
    "JPEG with other EXIF data": lambda stated: written("JPEG", xmp=stated, exif=exif()),
    "CMYK JPEG": lambda stated: without_adobe(written("JPEG", "CMYK", xmp=stated, quality=95)),
    "PNG": png,
    "PNG, compressed text": lambda stated: png(stated, compressed=True),
    "PNG with other EXIF data": lambda stated: png(stated, exif=exif()),
    "WebP": lambda stated: written("WEBP", xmp=stated, lossless=True),
    "WebP, odd length": lambda stated: written("WEBP", xmp=stated + b" " * (1 - len(stated) % 2), lossless=True),
    "WebP with other EXIF data": lambda stated: written("WEBP", xmp=stated, lossless=True, exif=exif()),
    "TIFF": lambda stated: written("TIFF", tiffinfo={700: stated}),
    "compressed TIFF": lambda stated: written("TIFF", tiffinfo={700: stated}, compression="tiff_lzw"),
    "BigTIFF": lambda stated: written("TIFF", tiffinfo={700: stated}, big_tiff=True),
}


def without_adobe(content: bytes) -> bytes:
    """Cut the segment out."""
    start = content.index(b"\xff\xee")
    assert content[start + 4 : start + 9] == b"Adobe"
    return content[:start] + content[start + 16 :]


def animated(*, hidden: bool) -> bytes:
    """An APNG of two frames; its image is the first of them, or none of them."""
    colours = [(0, 0, 255), (255, 255, 0), (0, 255, 0)][0 if hidden else 1 :]
    image, *frames = (Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in colours)
    return encode(image, "PNG", save_all=True, default_image=hidden, append_images=frames)


def served(folder: Path, content: bytes, recipe: Recipe = CROPPED, **options: Any) -> NDArray[np.float32]:
    """Serve it among other files, twice; return what came the second time."""
    source = among_good_ones(folder, content)
    with flat_loader(source, recipe, Standard(3, batch_size=3), num_threads=2, **options) as loader:
        for _ in range(2):
            ((images, labels),) = loader
    (found,) = images[labels == 1].numpy()
    return np.array(found)


def cropped(content: bytes) -> NDArray[np.float64]:
    """What `CROPPED` serves of the image as Pillow shows it."""
    pixels = np.asarray(as_pillow_opens(content), np.float64)
    height, width = pixels.shape[:2]
    top, left = round((height - SIDE) / 2), round((width - SIDE) / 2)
    return pixels[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1)


OTHERS = {
    "APNG whose image is hidden": lambda: animated(hidden=True),
    "APNG whose image is a frame": lambda: animated(hidden=False),
    "PNG with EXIF data in a text": lambda: profiled_png(compressed=False),
    "PNG with EXIF data in a packed text": lambda: profiled_png(compressed=True),
    "CMYK JPEG": lambda: without_adobe(written("JPEG", "CMYK", quality=95)),
    "progressive CMYK JPEG": lambda: without_adobe(written("JPEG", "CMYK", progressive=True)),
    "CMYK JPEG with Adobe's marker": lambda: written("JPEG", "CMYK"),
    "CMYK JPEG with EXIF orientation": lambda: without_adobe(written("JPEG", "CMYK", exif=exif(orientation=6))),
}


@pytest.mark.parametrize("fallback", [None, "pillow"])
@pytest.mark.parametrize("name", OTHERS)
def test_the_image_that_is_meant_is_served(name: str, fallback: str | None, kernels: str, tmp_path: Path) -> None:
    content = OTHERS[name]()
    found = served(tmp_path, content, kernels=kernels, fallback_decoder=fallback)
    assert np.abs(found - cropped(content)).max() <= 2


@pytest.mark.parametrize("name", STATED)
def test_an_orientation_in_xmp_alone_is_applied(name: str, kernels: str, tmp_path: Path) -> None:
    for orientation in (3, 6):
        content = STATED[name](xmp(orientation))
        assert as_pillow_opens(content).size == ((HEIGHT, WIDTH) if orientation == 6 else (WIDTH, HEIGHT))
        assert np.abs(served(tmp_path, content, kernels=kernels) - cropped(content)).max() <= 2


@pytest.mark.parametrize("element", [False, True])
@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_read_however_it_is_written(orientation: int, element: bool, tmp_path: Path) -> None:
    content = png(xmp(orientation, element=element))
    assert np.array_equal(served(tmp_path, content, kernels="dali"), cropped(content))
    assert (rewritten(np.frombuffer(content, np.uint8)) is None) == (orientation not in range(2, 9))


@pytest.mark.parametrize("split", [1, 2])
def test_windows_are_cut_from_the_upright_image(split: int, tmp_path: Path) -> None:
    """Split 2 decodes the window by region, split 1 cuts it from the whole image."""
    content = png(xmp(6))
    upright = encode(as_pillow_opens(content), "PNG")
    shown, wanted = (served(tmp_path, each, WINDOW.at(split), kernels="dali") for each in (content, upright))
    assert np.array_equal(shown, wanted)


def test_exif_has_the_last_word(tmp_path: Path) -> None:
    contents = [
        written("JPEG", xmp=xmp(3), exif=exif(orientation=6)),
        written("JPEG", xmp=xmp(3), exif=exif(orientation=1)),
        png(xmp(3), exif=exif(orientation=6)),
        profiled_png(compressed=True, exif=exif(orientation=3)),
        written("TIFF", tiffinfo={700: xmp(3), ORIENTATION: 6}),
    ]
    for content in contents:
        assert rewritten(np.frombuffer(content, np.uint8)) is None
        assert np.abs(served(tmp_path, content, kernels="dali") - cropped(content)).max() <= 2


def test_exif_data_of_a_webp_are_found_behind_any_length(kernels: str, tmp_path: Path) -> None:
    """Lossless data are of an odd number of bytes at times."""
    odd = 0
    for width in range(60, 70):
        image = picture(5, height=HEIGHT, width=width)
        content = encode(image, "WEBP", lossless=True, exif=exif(orientation=6), xmp=xmp(3))
        odd += rewritten(np.frombuffer(content, np.uint8)) is not None
        assert np.abs(served(tmp_path, content, kernels=kernels) - cropped(content)).max() <= 2
    assert 0 < odd < 10


def test_of_a_text_that_unpacks_to_very_much_little_is_unpacked() -> None:
    bomb = np.frombuffer(png(bytes(1 << 26), compressed=True), np.uint8)
    assert len(bomb) < 1 << 18
    tracemalloc.start()
    assert rewritten(bomb) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


@pytest.mark.parametrize("name", [*STATED, *OTHERS])
def test_a_file_that_is_cut_anywhere_is_served_or_named(name: str, tmp_path: Path) -> None:
    """Rewriting never raises, and what it makes of a broken file is as broken."""
    content = STATED[name](xmp(6)) if name in STATED else OTHERS[name]()
    for length in range(0, min(len(content), 900), 7):
        rewritten(np.frombuffer(content[:length], np.uint8))
    for length in (30, len(content) // 2):
        with pytest.raises(SampleError) as caught:
            served(tmp_path, content[:length], kernels="dali")
        assert caught.value.index == 1


def test_ordinary_files_are_left_as_they_are() -> None:
    contents = [written(format_) for format_ in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "JPEG2000", "GIF")]
    contents += [written("JPEG", "L"), written("JPEG", "CMYK"), written("JPEG", exif=exif(orientation=6))]
    contents += [b"", b"II", b"RIFF"]
    for content in contents:
        assert rewritten(np.frombuffer(content, np.uint8)) is None
