"""What is of no kind that DALI is given is served as Pillow decodes it, whatever the policy."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    FileList,
    Loader,
    MemoryStore,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    simple,
)
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import SampleError, StateMismatchError
from dalirefurb.reading.inspector import judge
from dalirefurb.reading.pillow_decoder import PillowDecoder, PillowError
from dalirefurb.source.levels import Levels
from tests.bad_files import among_good_ones, bad_content, encoded
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.one_batch import levels
from tests.pictures import encode, jpeg, picture
from tests.reading.test_file_formats import WHOLE, WINDOW, as_pillow_opens, on_canvas, served

HEIGHT, WIDTH = 47, 70
ORIENTATION = 0x0112


def written(format_: str, image: Image.Image | None = None, **options: Any) -> bytes:
    return encode(image or picture(3, height=HEIGHT, width=WIDTH), format_, **options)


def animation() -> bytes:
    frames = [picture(seed, height=HEIGHT, width=WIDTH).quantize() for seed in range(3)]
    return written("GIF", frames[0], save_all=True, append_images=frames[1:])


def invisible() -> bytes:
    """A GIF of which one colour is transparent."""
    return written("GIF", picture(3, height=HEIGHT, width=WIDTH).quantize(), transparency=5)


def oriented() -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    return written("AVIF", exif=exif) if "AVIF" in Image.SAVE else written("PNG", exif=exif)


FOREIGN = [
    pytest.param(lambda: written("GIF"), id="GIF"),
    pytest.param(animation, id="animated GIF"),
    pytest.param(invisible, id="GIF with a transparent colour"),
    pytest.param(lambda: written("TGA"), id="TGA"),
    pytest.param(lambda: written("PCX"), id="PCX"),
    pytest.param(lambda: written("TGA", picture(3, height=HEIGHT, width=WIDTH).convert("L")), id="gray TGA"),
    pytest.param(oriented, id="AVIF with EXIF orientation"),
    pytest.param(lambda: written("JPEG", picture(3, height=HEIGHT, width=WIDTH).convert("CMYK")), id="CMYK JPEG"),
    pytest.param(lambda: written("TIFF", picture(3, height=HEIGHT, width=WIDTH).convert("1")), id="TIFF of one bit"),
    pytest.param(lambda: written("TIFF", picture(3, height=HEIGHT, width=WIDTH).convert("LA")), id="gray TIFF, alpha"),
    pytest.param(lambda: written("JPEG2000"), id="JPEG 2000"),
    pytest.param(lambda: written("BMP"), id="BMP"),
    pytest.param(lambda: b"\xff\xd8\xff\xff\xff" + jpeg(picture(1, height=HEIGHT, width=WIDTH))[2:], id="JPEG"),
]


@pytest.mark.parametrize(
    ("kind", "on_bad_sample", "kernels"),
    in_turn([each.id for each in FOREIGN], ["raise", "replace"], ["dali", "numba"]),
)
def test_an_image_of_no_proven_kind_is_served_as_pillow_decodes_it(
    kind: str, on_bad_sample: Any, kernels: Any, tmp_path: Path
) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    (content,) = (each.values[0]() for each in FOREIGN if each.id == kind)
    source = among_good_ones(tmp_path, content)
    wanted = np.asarray(as_pillow_opens(content))
    assert np.array_equal(source[1][0], wanted)
    height, width = wanted.shape[:2]
    size = (min(height, width), min(height, width))
    recipe = Recipe([Decode(), CenterCrop(size)], levels(size), 1) if kernels == "numba" else WHOLE
    policy = BadSamplePolicy(on_bad_sample)
    planner = Standard(3, batch_size=3)
    with Loader(
        source, recipe, planner, kernels=kernels, prefetch=Prefetch(num_threads=1), bad_samples=policy
    ) as loader:
        for _ in range(2):
            ((images, labels),) = loader
            (found,) = images[labels == 1].numpy()
            assert np.array_equal(found, on_canvas(wanted) if kernels == "dali" else centre(wanted, *size))
        assert loader.bad_samples() == []
        assert loader.stats().pillow_images >= 2
        assert loader.stats().pillow_s > 0


def centre(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """What a `CenterCrop` of this size serves, (3, height, width)."""
    top, left = (round((side - cut) / 2) for side, cut in zip(image.shape[:2], (height, width), strict=True))
    return image[top : top + height, left : left + width].transpose(2, 0, 1)


@pytest.mark.parametrize("make", FOREIGN)
def test_one_function_says_size_and_decoder_of_what_is_served(make: Any) -> None:
    content = make()
    verdict = judge(np.frombuffer(content, np.uint8), PillowDecoder(None, Levels()))
    assert verdict.decoder == "pillow"
    assert verdict.header is not None
    assert (verdict.header.width, verdict.header.height) == as_pillow_opens(content).size


def test_ordinary_files_are_none_of_pillows(tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, written("WEBP"))
    with Loader(source, WINDOW, Standard(3, batch_size=3)) as loader:
        list(loader)
        assert (loader.stats().pillow_images, loader.stats().pillow_s) == (0, 0)


def test_windows_are_those_of_the_same_image_in_a_format_of_dalis(tmp_path: Path) -> None:
    """Split 2 decodes the window by region, split 1 cuts it from the whole image."""
    image = picture(3, height=HEIGHT, width=WIDTH)
    source = among_good_ones(tmp_path, written("TGA", image))
    reference = among_good_ones(tmp_path / "png", written("PNG", image))
    for split in (1, 2):
        planner = Standard(3, batch_size=3)
        with Loader(source, WINDOW.at(split), planner, prefetch=Prefetch(num_threads=1)) as loader:
            ((images, labels),) = loader
        wanted = served(reference, WINDOW.at(split))
        assert np.array_equal(images.numpy()[np.argsort(labels.numpy())], wanted)


REFUSED_BY_GRAPH = ("corrupt/xcsn0g01.png", "jpeg_lossless/cat-3449999_640_grayscale_8bit.jpg")
KEPT = {"no store": (WINDOW, False), "images": (WINDOW, True), "files": (WINDOW.at(0), True)}


@pytest.mark.parametrize(("kept", "name", "batches_per_group"), in_turn([*KEPT], REFUSED_BY_GRAPH, [1, 4]))
def test_what_only_the_graph_refuses_is_decoded_by_pillow_too(
    name: str, kept: str, batches_per_group: int, shared_data: Path, tmp_path: Path
) -> None:
    """DALI reads the headers of these, and refuses their pixels."""
    recipe, cached = KEPT[kept]
    content = (shared_data / "odd" / name).read_bytes()
    source = among_good_ones(tmp_path, content)
    reference = among_good_ones(tmp_path / "png", written("PNG", as_pillow_opens(content)))

    def stream(source: FileList, **options: Any) -> Any:
        planner = Refurbish(3, batch_size=1, reuse_factor=2)
        store = MemoryStore() if cached else None
        with flat_loader(source, recipe, planner, store, batches_per_group=batches_per_group, **options) as loader:
            return np.stack([images.numpy() for _ in range(3) for images, _ in loader])

    wanted = stream(reference)
    assert np.array_equal(stream(source), wanted)
    assert np.array_equal(stream(source, on_bad_sample="replace"), wanted)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: written("GIF")[:-900], r"decoding failed \(OSError: image file is truncated"),
        (lambda: bad_content("JPEG cut short"), r"decoding failed \(OSError: image file is truncated"),
        (lambda: encoded("BMP")[:-900], r"decoding failed \(OSError: image file is truncated"),
        (lambda: bad_content("WebP cut short"), r"not an image that can be decoded \("),
        (lambda: bad_content("text"), r"not an image that can be decoded \(of no format that Pillow knows\)"),
        (lambda: bad_content("PNG damaged"), r"decoding failed \(.*, and Pillow cannot \(OSError"),
    ],
)
def test_what_pillow_cannot_decode_is_bad(content: Any, message: str, tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, content())
    planner = Standard(3, batch_size=3)
    with (
        Loader(source, WINDOW, planner) as loader,
        pytest.raises(SampleError) as caught,
    ):
        next(iter(loader))
    assert caught.value.index == 1
    assert re.search(message, str(caught.value), re.DOTALL)


def decode(content: bytes, max_pixels: int | None = None, value_range: Any = None) -> NDArray[np.uint8]:
    return PillowDecoder(max_pixels, Levels(value_range))(np.frombuffer(content, np.uint8), "photo")


def test_an_image_larger_than_max_pixels_is_not_decoded() -> None:
    content = written("GIF")
    for each in (content, content[:-900]):  # What is missing would be found.
        with pytest.raises(PillowError, match="47 x 70 are more than 3,289 pixels"):
            decode(each, HEIGHT * WIDTH - 1)
    assert decode(content, HEIGHT * WIDTH).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("max_pixels", [HEIGHT * WIDTH - 1, HEIGHT * WIDTH, None])
def test_to_read_its_header_an_image_is_decoded_if_it_is_not_too_large(
    max_pixels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, load = [], PngImageFile.load
    monkeypatch.setattr(PngImageFile, "load", lambda image: (decoded.append(image.size), load(image))[1])
    header = PillowDecoder(max_pixels, Levels()).header(np.frombuffer(written("PNG"), np.uint8))
    assert header == (HEIGHT, WIDTH, 0)
    assert bool(decoded) == (max_pixels != HEIGHT * WIDTH - 1)


def test_pillows_own_limit_on_pixels_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode(written("TGA")).shape == (HEIGHT, WIDTH, 3)


def test_numbers_of_which_no_range_is_declared_are_refused_and_not_cut_off() -> None:
    deep = written("TIFF", Image.fromarray(np.full((4, 4), 300, np.int32)))
    with pytest.raises(PillowError, match=r"int32, of which no range is declared: pass value_range=\(low, high\)"):
        decode(deep)
    assert np.array_equal(decode(deep, value_range=(0, 600)), np.full((4, 4, 3), 128))


def test_a_format_for_which_pillow_runs_a_program_is_not_opened() -> None:
    with pytest.raises(PillowError, match="of no format that Pillow knows"):
        decode(written("EPS"))


def test_a_state_belongs_to_a_version_of_pillow(tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, written("GIF"))
    planner = Standard(3, batch_size=3)
    with Loader(source, WINDOW, planner) as loader:
        state = loader.state_dict()
        assert state["fingerprint"]["versions"]["pillow"] == PIL.__version__
        for versions in ({"pillow": "1.0"}, {"pillow": None}):
            other = deepcopy(state)
            other["fingerprint"]["versions"] |= versions
            if versions["pillow"] is None:
                del other["fingerprint"]["versions"]["pillow"]
            with pytest.raises(StateMismatchError, match="of DALI or of Pillow has saved it") as caught:
                loader.load_state_dict(other)
            assert caught.value.keys == ("versions.pillow",)


def test_no_version_of_pillow_is_asked_of_what_is_decoded_already() -> None:
    source = Arrays(np.zeros((3, 40, 40, 3), np.uint8), np.arange(3))
    with Loader(source, simple(40, raw=True), Standard(3, batch_size=3)) as loader:
        assert "pillow" not in loader.state_dict()["fingerprint"]["versions"]


def test_orientation_is_applied() -> None:
    content = oriented()
    assert np.array_equal(decode(content), np.asarray(as_pillow_opens(content)))
