"""What DALI cannot decode and Pillow can is served as Pillow decodes it, if the user allows it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dalirefurb import BadSamplePolicy, FileList, Loader, MemoryStore, Prefetch, Recipe, Refurbish, Standard, simple
from dalirefurb.errors import ConfigurationError, SampleError, StateMismatchError
from dalirefurb.reading.pillow_decoder import PillowDecoder, PillowError
from tests.bad_files import among_good_ones, bad_content, encoded
from tests.loading import flat_loader
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
    pytest.param(lambda: b"\xff\xd8\xff\xff\xff" + jpeg(picture(1, height=HEIGHT, width=WIDTH))[2:], id="JPEG"),
]


@pytest.mark.parametrize("make", FOREIGN)
def test_an_image_that_dali_cannot_decode_is_served_as_pillow_decodes_it(make: Any, tmp_path: Path) -> None:
    content = make()
    source = among_good_ones(tmp_path, content)
    with Loader(
        source,
        WHOLE,
        Standard(3, batch_size=3),
        prefetch=Prefetch(num_threads=1),
        bad_samples=BadSamplePolicy(fallback_decoder="pillow"),
    ) as loader:
        for _ in range(2):
            ((images, labels),) = loader
            (found,) = images[labels == 1].numpy()
            assert np.array_equal(found, on_canvas(as_pillow_opens(content)))


@pytest.mark.parametrize("make", FOREIGN[:2])
def test_without_the_fallback_it_is_refused(make: Any, tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, make())
    with pytest.raises(SampleError, match=r"sample 1 .*not an image that DALI can decode"):
        served(source, WHOLE)


def test_windows_are_those_of_the_same_image_in_a_format_of_dalis(tmp_path: Path) -> None:
    """Split 2 decodes the window by region, split 1 cuts it from the whole image."""
    image = picture(3, height=HEIGHT, width=WIDTH)
    source = among_good_ones(tmp_path, written("TGA", image))
    reference = among_good_ones(tmp_path / "png", written("PNG", image))
    for split in (1, 2):
        planner = Standard(3, batch_size=3)
        with Loader(
            source,
            WINDOW.at(split),
            planner,
            prefetch=Prefetch(num_threads=1),
            bad_samples=BadSamplePolicy(fallback_decoder="pillow"),
        ) as loader:
            ((images, labels),) = loader
        wanted = served(reference, WINDOW.at(split))
        assert np.array_equal(images.numpy()[np.argsort(labels.numpy())], wanted)


@pytest.mark.parametrize("batches_per_group", [1, 4])
@pytest.mark.parametrize(
    ("recipe", "cached"), [(WINDOW, False), (WINDOW, True), (WINDOW.at(0), True)], ids=["no store", "images", "files"]
)
@pytest.mark.parametrize("name", ["corrupt/xcsn0g01.png", "jpeg_lossless/cat-3449999_640_grayscale_8bit.jpg"])
def test_what_only_the_graph_refuses_is_decoded_by_pillow_too(
    name: str, recipe: Recipe, cached: bool, batches_per_group: int, shared_data: Path, tmp_path: Path
) -> None:
    """DALI reads the headers of these, and refuses their pixels."""
    content = (shared_data / "odd" / name).read_bytes()
    source = among_good_ones(tmp_path, content)
    reference = among_good_ones(tmp_path / "png", written("PNG", as_pillow_opens(content)))

    def stream(source: FileList, **options: Any) -> Any:
        planner = Refurbish(3, batch_size=1, reuse_factor=2)
        store = MemoryStore() if cached else None
        with flat_loader(source, recipe, planner, store, batches_per_group=batches_per_group, **options) as loader:
            return np.stack([images.numpy() for _ in range(3) for images, _ in loader])

    wanted = stream(reference)
    assert np.array_equal(stream(source, fallback_decoder="pillow"), wanted)
    assert np.array_equal(stream(source, fallback_decoder="pillow", on_bad_sample="replace"), wanted)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: written("GIF")[:-900], "not an image that DALI can decode .* and Pillow refuses it .*truncated"),
        (lambda: bad_content("JPEG cut short"), "decoding failed .* and Pillow refuses it .*truncated"),
        (lambda: encoded("BMP")[:-900], "decoding failed .* and Pillow refuses it .*truncated"),
        (lambda: bad_content("text"), "and Pillow refuses it .no format that it knows"),
    ],
)
def test_what_pillow_cannot_decode_either_stays_bad(content: Any, message: str, tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, content())
    planner = Standard(3, batch_size=3)
    with (
        Loader(source, WINDOW, planner, bad_samples=BadSamplePolicy(fallback_decoder="pillow")) as loader,
        pytest.raises(SampleError) as caught,
    ):
        next(iter(loader))
    assert caught.value.index == 1
    assert re.search(message, str(caught.value), re.DOTALL)


def test_an_image_larger_than_max_pixels_is_not_decoded(tmp_path: Path) -> None:
    content = np.frombuffer(written("GIF"), np.uint8)
    with pytest.raises(PillowError, match="47 x 70 are more than 3,289 pixels"):
        PillowDecoder(HEIGHT * WIDTH - 1)(content)
    assert len(PillowDecoder(HEIGHT * WIDTH)(content)) == len(b"P6\n70 47\n255\n") + 3 * HEIGHT * WIDTH


def test_pillows_own_limit_on_pixels_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert len(PillowDecoder(None)(np.frombuffer(written("TGA"), np.uint8))) > 3 * HEIGHT * WIDTH


def test_more_than_8_bits_are_refused_and_not_cut_off() -> None:
    deep = Image.fromarray(np.full((4, 4), 300, np.int32))
    with pytest.raises(PillowError, match="mode I has more than 8 bits a channel"):
        PillowDecoder(None)(np.frombuffer(written("TIFF", deep), np.uint8))


def test_a_format_for_which_pillow_runs_a_program_is_not_opened() -> None:
    with pytest.raises(PillowError, match="no format that it knows"):
        PillowDecoder(None)(np.frombuffer(written("EPS"), np.uint8))


def test_without_pillow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, b"bad")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="needs Pillow, which cannot be found: pip install pillow, or leave"):
        Loader(source, simple(32), Standard(3, batch_size=3), bad_samples=BadSamplePolicy(fallback_decoder="pillow"))


def test_a_state_belongs_to_the_fallback(tmp_path: Path) -> None:
    source = among_good_ones(tmp_path, written("GIF"))
    planner = Standard(3, batch_size=3)
    with Loader(source, WINDOW, planner, bad_samples=BadSamplePolicy(fallback_decoder="pillow")) as loader:
        state = loader.state_dict()
    with Loader(source, WINDOW, planner) as loader, pytest.raises(StateMismatchError) as caught:
        loader.load_state_dict(state)
    assert caught.value.keys == ("versions.pillow",)


def test_orientation_is_applied() -> None:
    content = oriented()
    upright = PillowDecoder(None)(np.frombuffer(content, np.uint8))
    assert upright.tobytes() == b"P6\n47 70\n255\n" + as_pillow_opens(content).tobytes()
