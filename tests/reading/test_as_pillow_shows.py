"""What DALI alone shows otherwise than Pillow is served as Pillow shows it, by both kernels."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, PngImagePlugin

from dalirefurb import Recipe, Standard
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import SampleError
from dalirefurb.reading.inspector import Inspector, Judged, judge
from dalirefurb.reading.pillow_decoder import PillowDecoder
from dalirefurb.source.levels import Levels
from tests.bad_files import among_good_ones
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.one_batch import levels
from tests.pictures import encode, picture
from tests.reading.test_file_formats import WINDOW, as_pillow_opens

HEIGHT, WIDTH, SIDE = 47, 70, 40
ORIENTATION, MAKER = 0x0112, 0x010F
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
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


def judged(content: bytes) -> Judged:
    return judge(np.frombuffer(content, np.uint8), PillowDecoder(None, Levels()))


def cropped(content: bytes, side: int = SIDE) -> NDArray[np.float64]:
    """What `CROPPED`, or one to another side, serves of the image as Pillow shows it."""
    pixels = np.asarray(as_pillow_opens(content), np.float64)
    height, width = pixels.shape[:2]
    top, left = round((height - side) / 2), round((width - side) / 2)
    return pixels[top : top + side, left : left + side].transpose(2, 0, 1)


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


@pytest.mark.parametrize(
    ("name", "on_bad_sample", "kernels"), in_turn(list(OTHERS), ["raise", "replace"], ["dali", "numba"])
)
def test_the_image_that_is_meant_is_served(name: str, on_bad_sample: str, kernels: str, tmp_path: Path) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    content = OTHERS[name]()
    found = served(tmp_path, content, kernels=kernels, on_bad_sample=on_bad_sample)
    assert np.array_equal(found, cropped(content))


@pytest.mark.parametrize(("name", "orientation", "kernels"), in_turn(list(STATED), [3, 6], ["dali", "numba"]))
def test_an_orientation_in_xmp_alone_is_applied(name: str, orientation: int, kernels: str, tmp_path: Path) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    content = STATED[name](xmp(orientation))
    assert as_pillow_opens(content).size == ((HEIGHT, WIDTH) if orientation == 6 else (WIDTH, HEIGHT))
    assert np.array_equal(served(tmp_path, content, kernels=kernels), cropped(content))


@pytest.mark.parametrize(("orientation", "element"), in_turn(range(10), [False, True]))
def test_every_orientation_is_read_however_it_is_written(orientation: int, element: bool, tmp_path: Path) -> None:
    content = png(xmp(orientation, element=element))
    assert np.array_equal(served(tmp_path, content, kernels="dali"), cropped(content))


@pytest.mark.parametrize("split", [1, 2])
def test_windows_are_cut_from_the_upright_image(split: int, tmp_path: Path) -> None:
    """Split 2 decodes the window by region, split 1 cuts it from the whole image."""
    content = png(xmp(6))
    upright = encode(as_pillow_opens(content), "PNG")
    shown, wanted = (served(tmp_path, each, WINDOW.at(split), kernels="dali") for each in (content, upright))
    assert np.array_equal(shown, wanted)


def test_exif_has_the_last_word(kernels: str, tmp_path: Path) -> None:
    contents = [
        written("JPEG", xmp=xmp(3), exif=exif(orientation=6)),
        written("JPEG", xmp=xmp(3), exif=exif(orientation=1)),
        png(xmp(3), exif=exif(orientation=6)),
        profiled_png(compressed=True, exif=exif(orientation=3)),
        written("TIFF", tiffinfo={700: xmp(3), ORIENTATION: 6}),
    ]
    assert [judged(content).decoder for content in contents] == ["dali", "dali", "pillow", "pillow", "pillow"]
    for content in contents:
        assert np.abs(served(tmp_path, content, kernels=kernels) - cropped(content)).max() <= 2


def test_exif_data_of_a_webp_are_found_behind_any_length(kernels: str, tmp_path: Path) -> None:
    """Lossless data are of an odd number of bytes at times."""
    odd = 0
    for width in range(60, 70):
        image = picture(5, height=HEIGHT, width=width)
        content = encode(image, "WEBP", lossless=True, exif=exif(orientation=6), xmp=xmp(3))
        start = content.index(b"VP8L") + 4
        odd += int.from_bytes(content[start : start + 4], "little") % 2
        assert np.array_equal(served(tmp_path, content, kernels=kernels), cropped(content))
    assert 0 < odd < 10


def test_a_text_that_unpacks_to_very_much_is_not_unpacked() -> None:
    content = png(bytes(1 << 26), compressed=True)
    assert len(content) < 1 << 18
    tracemalloc.start()
    verdict = judged(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdict.decoder is None
    assert "Decompressed data too large" in verdict.reason
    assert peak < 1 << 24


@pytest.mark.parametrize("name", [*STATED, *OTHERS])
def test_a_file_that_is_cut_anywhere_is_served_or_named(name: str, tmp_path: Path) -> None:
    """No header makes anything raise, and none that is cut in its data is shown in part."""
    content = STATED[name](xmp(6)) if name in STATED else OTHERS[name]()
    for length in range(0, min(len(content), 900), 7):
        verdict = judged(content[:length])
        assert (verdict.decoder is None) == bool(verdict.reason)
    for length in (30, len(content) // 2):
        if length > 30 and name == "APNG whose image is hidden":  # Its animation alone is cut.
            assert np.array_equal(served(tmp_path, content[:length], kernels="dali"), cropped(content))
            continue
        with pytest.raises(SampleError) as caught:
            served(tmp_path, content[:length], kernels="dali")
        assert caught.value.index == 1


ORDINARY = {
    "JPEG": lambda: written("JPEG"),
    "progressive JPEG": lambda: written("JPEG", progressive=True),
    "gray JPEG": lambda: written("JPEG", "L"),
    "JPEG with EXIF orientation": lambda: written("JPEG", exif=exif(orientation=6)),
    "JPEG with other EXIF data": lambda: written("JPEG", exif=exif()),
    "JPEG with a colour profile": lambda: written("JPEG", icc_profile=PROFILE),
    "PNG": lambda: written("PNG"),
    "PNG with alpha": lambda: written("PNG", "RGBA"),
    "PNG with a palette": lambda: written("PNG", "P"),
    "PNG with a colour profile": lambda: written("PNG", icc_profile=PROFILE),
    "WebP": lambda: written("WEBP"),
    "WebP without loss": lambda: written("WEBP", lossless=True),
    "WebP with alpha": lambda: written("WEBP", "RGBA"),
    "PPM": lambda: written("PPM"),
}
"""What nearly all files of a data set are: none of them may be slow."""

ODD = {
    "CMYK JPEG": lambda: written("JPEG", "CMYK"),
    "PNG of 16 bits": lambda: encode(Image.fromarray(np.full((4, 4), 300, np.uint16)), "PNG"),
    "WebP with EXIF data": lambda: written("WEBP", exif=exif()),
    "PGM": lambda: written("PPM", "L"),
    **{format_: partial(written, format_) for format_ in ("TIFF", "BMP", "JPEG2000", "GIF", "TGA", "ICO")},
    **{f"orientation in XMP: {name}": partial(make, xmp(6)) for name, make in STATED.items()},
    **OTHERS,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_are_given_to_dali_as_they_are(name: str, tmp_path: Path) -> None:
    content = ORDINARY[name]()
    given = [np.frombuffer(content, np.uint8)]
    (same,) = given
    heights, widths = Inspector(1, max_pixels=None, levels=Levels()).look(np.arange(1), given)
    assert given[0] is same
    assert (widths.item(), heights.item()) == as_pillow_opens(content).size
    assert judged(content).decoder == "dali"
    assert np.abs(served(tmp_path, content, kernels="dali") - cropped(content)).max() <= 2


@pytest.mark.parametrize("name", ODD)
def test_pillow_is_given_all_others(name: str) -> None:
    content = ODD[name]()
    assert judged(content).decoder == "pillow"


@pytest.mark.parametrize("content", [b"", b"I", b"II", b"RIFF", b"P6", b"\xff\xd8", b"\x89PNG"])
def test_what_is_hardly_there_is_refused(content: bytes) -> None:
    verdict = judged(content)
    assert (verdict.decoder, verdict.header) == (None, None)
    assert verdict.reason.startswith("not an image that can be decoded (")
