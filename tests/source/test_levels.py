"""Images deeper than 8 bits are served from the range that they declare or the user says, whatever they come in."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import Arrays, FileList, ImageFolder, Loader, Standard, TorchDataset
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import Source
from dalirefurb.source.levels import Levels, LevelsError
from tests.one_batch import levels

HEIGHT, WIDTH = 12, 16
GRAY = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
COLOURS = np.random.default_rng(1).integers(0, 65536, (HEIGHT, WIDTH, 3), dtype=np.uint16)
SCANNED = GRAY >> 4
"""Of 12 bits, as they are stored in 16."""


def nearest(values: NDArray[Any], high: int = 65535) -> NDArray[np.int64]:
    """The nearest levels, by whole numbers."""
    rounded = (2 * 255 * values.astype(np.int64) + high) // (2 * high)
    return np.clip(rounded, 0, 255)


def rgb(levels_of_gray: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(levels_of_gray[..., np.newaxis], 3, axis=2)


def png(values: NDArray[np.uint16]) -> bytes:
    """Encode (height, width) or (height, width, 2..4) of 16 bits; Pillow writes gray ones only."""
    values = values.reshape(*values.shape[:2], -1)
    height, width, channels = values.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def tiff(values: NDArray[Any], *, white_is_zero: bool = False, order: str = "<", bits: int | None = None) -> bytes:
    """Write gray numbers, or colours, uncompressed."""
    height, width = values.shape[:2]
    channels = values.shape[2] if values.ndim == 3 else 1
    depth = bits or 8 * values.dtype.itemsize
    photometric = 2 if channels == 3 else 0 if white_is_zero else 1
    body = values.astype(values.dtype.newbyteorder(order)).tobytes()
    if bits == 12:
        pairs = values.reshape(height, -1, 2).astype(np.uint32)
        packed = pairs[..., 0] << 12 | pairs[..., 1]
        body = np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255], axis=-1).astype(np.uint8).tobytes()
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    tags = {256: width, 257: height, 258: depth, 259: 1, 262: photometric, 273: 0, 277: channels, 278: height}
    tags |= {279: len(body), 339: kind}
    extra = struct.pack(order + "HHH", depth, depth, depth) if channels == 3 else b""
    start = 8 + 2 + 12 * len(tags) + 4
    entries = b""
    for tag, value in sorted(tags.items()):
        if tag == 258 and extra:
            entries += struct.pack(order + "HHII", tag, 3, 3, start)
        elif tag in (273, 279):
            entries += struct.pack(order + "HHII", tag, 4, 1, start + len(extra) if tag == 273 else value)
        else:
            entries += struct.pack(order + "HHIHH", tag, 3, 1, value, 0)
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(order + "IH", 8, len(tags)) + entries + bytes(4) + extra + body


def pgm(values: NDArray[np.uint16], highest: int) -> bytes:
    kind = ">u2" if highest > 255 else np.uint8
    return b"P5\n%d %d\n%d\n" % (values.shape[1], values.shape[0], highest) + values.astype(kind).tobytes()


def files(folder: Path, *contents: bytes, **options: Any) -> FileList:
    paths = [folder / f"{number}.png" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return FileList(paths, range(len(paths)), **options)


def served(source: Source) -> NDArray[np.float32]:
    """Serve the first sample, (height, width, 3)."""
    recipe = Recipe([Decode(), CenterCrop((HEIGHT, WIDTH))], levels_of(), 1)
    recipe = recipe if source.encoded else recipe.for_arrays()
    with Loader(source, recipe, Standard(len(source), batch_size=len(source))) as loader:
        ((images, labels),) = loader
    image: NDArray[np.float32] = images[labels == 0][0].numpy().transpose(1, 2, 0)
    return image


def levels_of() -> Any:
    return levels((HEIGHT, WIDTH))  # type: ignore[arg-type]


DECLARED: dict[str, tuple[Callable[[], bytes], Callable[[], NDArray[Any]]]] = {
    "gray PNG": (lambda: png(GRAY), lambda: rgb(nearest(GRAY))),
    "PNG of gray and alpha": (lambda: png(np.stack([GRAY, GRAY[::-1]], -1)), lambda: rgb(nearest(GRAY))),
    "PNG of colours": (lambda: png(COLOURS), lambda: nearest(COLOURS)),
    "PNG of colours and alpha": (
        lambda: png(np.concatenate([COLOURS, GRAY[..., None]], -1)),
        lambda: nearest(COLOURS),
    ),
    "TIFF": (lambda: tiff(GRAY), lambda: rgb(nearest(GRAY))),
    "TIFF, big-endian": (lambda: tiff(GRAY, order=">"), lambda: rgb(nearest(GRAY))),
    "TIFF of which white is zero": (lambda: tiff(GRAY, white_is_zero=True), lambda: rgb(255 - nearest(GRAY))),
    "TIFF of 12 bits": (lambda: tiff(SCANNED, bits=12), lambda: rgb(nearest(SCANNED, 4095))),
    "PGM": (lambda: pgm(GRAY, 65535), lambda: rgb(nearest(GRAY))),
    "PGM of 4095": (lambda: pgm(SCANNED, 4095), lambda: rgb(nearest(SCANNED, 4095))),
    "PGM of 15": (lambda: pgm(GRAY >> 12, 15), lambda: rgb(nearest(GRAY >> 12, 15))),
}


@pytest.mark.parametrize("name", DECLARED)
def test_what_a_file_declares_is_black_to_white(name: str, tmp_path: Path) -> None:
    make, wanted = DECLARED[name]
    source = files(tmp_path, make())
    image, _ = source[0]
    assert np.array_equal(image, wanted())
    assert np.array_equal(served(source), wanted())


def test_deep_colours_of_a_tiff_are_those_that_pillow_shows(tmp_path: Path) -> None:
    """Pillow gives their upper 8 bits."""
    image, _ = files(tmp_path, tiff(COLOURS))[0]
    assert np.array_equal(image, COLOURS >> 8)
    dark = files(tmp_path, tiff(COLOURS >> 4))
    largest = f"{int(COLOURS.max() >> 12) * 257:,}"  # Of its upper 8 bits.
    with pytest.warns(
        UserWarning, match=f"{dark.name(0)} is served nearly black: its largest number is {largest}, of 65"
    ):
        assert np.array_equal(dark[0][0], COLOURS >> 12)


def test_the_brightest_of_a_deep_jpeg_2000_are_white(shared_data: Path) -> None:
    """Pillow's own rounding makes them black."""
    path = shared_data / "reports2" / "jp2_rgb12.jp2"
    if not path.exists():
        pytest.skip("shared data without the second reports")
    image, _ = FileList([path], [0])[0]
    assert np.array_equal(image, np.asarray(Image.open(f"{path}.want.png")))


def pil(values: NDArray[Any]) -> Image.Image:
    return Image.fromarray(values)


def source_of(kind: str, *images: NDArray[np.uint16], folder: Path, **options: Any) -> Source:
    if kind == "files":
        return files(folder, *map(png, images), **options)
    if kind == "Arrays":
        return Arrays(np.stack(images), range(len(images)), **options)
    make: Callable[[NDArray[np.uint16]], Any] = {
        "PIL": lambda values: Image.open(io.BytesIO(png(values))),
        "array": lambda values: values,
        "tensor": lambda values: pytest.importorskip("torch").from_numpy(values[np.newaxis].copy()),
        "bytes": png,
    }[kind]
    return TorchDataset([(make(values), number) for number, values in enumerate(images)], **options)


KINDS = ["files", "Arrays", "PIL", "array", "tensor", "bytes"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_pixels_are_served_alike_from_anywhere(kind: str, tmp_path: Path) -> None:
    assert np.array_equal(served(source_of(kind, GRAY, folder=tmp_path)), rgb(nearest(GRAY)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_fills_little_of_its_range_is_warned_of_by_name(kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        source = source_of(kind, GRAY, SCANNED, folder=tmp_path)
        served(source)
    (message,) = [str(each.message) for each in caught]
    assert message.startswith(f"{source.name(1)} is served nearly black: its largest number is 4,084, of 65,535")
    assert "value_range=(0, 4095)" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_that_is_said_is_black_to_white(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, SCANNED, folder=tmp_path, value_range=(100, 3000))
    wanted = rgb(np.clip(np.rint((SCANNED.astype(float) - 100) / 2900 * 255), 0, 255))
    assert np.array_equal(served(source), wanted)
    assert np.array_equal(source[0][0], wanted)


def test_colours_take_a_range_too(tmp_path: Path) -> None:
    source = files(tmp_path, png(COLOURS >> 4), value_range=(0, 4095))
    assert np.array_equal(served(source), nearest(COLOURS >> 4, 4095))
    with pytest.raises(SampleError, match=r"16 bits, of which Pillow gives 8.*store it as a PNG"):
        files(tmp_path, tiff(COLOURS), value_range=(0, 4095))[0]


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_deep_colours_of_a_jpeg_2000_are_the_nearest_levels(mode: str, tmp_path: Path) -> None:
    """Of 12 bits, as which its header tells colours of 8: they are as far above the middle of what there is."""
    colours, buffer = (COLOURS >> 8).astype(np.uint8), io.BytesIO()
    Image.fromarray(colours).convert(mode).save(buffer, "JPEG2000", irreversible=False, no_jp2=True, num_resolutions=1)
    content = bytearray(buffer.getvalue())
    for component in range(len(mode)):
        content[42 + 3 * component] = 12 - 1
    source = files(tmp_path, bytes(content))
    assert np.array_equal(source[0][0], nearest(colours.astype(int) - 128 + 2048, 4095))


def test_gray_and_alpha_of_a_jpeg_2000_of_8_bits_is_shown(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("LA", (WIDTH, HEIGHT), (100, 30)).save(buffer, "JPEG2000")
    assert (files(tmp_path, buffer.getvalue())[0][0] == 100).all()


def test_numbers_below_0_are_dark_ones_of_their_range() -> None:
    """As those of computed tomography, in Hounsfield units."""
    values = np.array([[[-2000, -1024, 0, 1023, 3000]]], np.int16)
    wanted = rgb(np.array([[0, 0, 128, 255, 255]], np.uint8))
    assert np.array_equal(Arrays(values, [0], value_range=(-1024, 1023))[0][0], wanted)
    assert np.array_equal(TorchDataset([(values[0], 0)], value_range=(-1024, 1023))[0][0], wanted)


def test_deep_colours_in_an_array_stay_colours() -> None:
    deep = np.stack([COLOURS, COLOURS[::-1]])
    source = Arrays(deep, [0, 1])
    assert np.array_equal(source[1][0], nearest(COLOURS[::-1], 65535))
    assert source.image_shape == source[0][0].shape == COLOURS.shape


def test_of_a_range_that_is_said_nothing_is_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Levels((0, 65535)).of(SCANNED, "it").max() < 32


def test_files_of_8_bits_beside_deep_ones_stay_as_they_are(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pil((GRAY >> 8).astype(np.uint8)).save(buffer, "PNG")
    source = files(tmp_path, buffer.getvalue(), png(SCANNED), value_range=(0, 4095))
    assert np.array_equal(served(source), rgb(GRAY >> 8))
    pixels = rgb((GRAY >> 8).astype(np.uint8))
    assert np.array_equal(TorchDataset([(pixels, 0)], value_range=(0, 4095))[0][0], pixels)
    assert np.array_equal(Arrays(pixels[np.newaxis], [0], value_range=(0, 4095))[0][0], pixels)


@pytest.mark.parametrize("mode", ["P", "RGBA", "RGBa", "LA", "La"])
def test_alpha_is_dropped_and_what_it_has_darkened_is_as_it_was(mode: str) -> None:
    """Nor does Pillow warn."""
    colour = (200,) if mode in ("LA", "La") else (200, 100, 50)
    if mode == "P":
        image = Image.new(mode, (WIDTH, HEIGHT), 1)
        image.putpalette([0, 0, 0, *colour])
        image.info["transparency"] = bytes([255, 51])
    else:
        image = Image.new(mode.upper(), (WIDTH, HEIGHT), (*colour, 51)).convert(mode)
    shown = Levels().of_image(image, "it")
    assert shown.shape == (HEIGHT, WIDTH, 3)
    assert (shown == colour).all()


def test_one_warning_names_the_first_and_black_is_no_fault(tmp_path: Path) -> None:
    source = files(tmp_path, *[png(SCANNED)] * 3)
    with pytest.warns(UserWarning, match="nearly black") as caught:
        served(source)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served(files(tmp_path, png(np.zeros_like(GRAY))))
        served(files(tmp_path, png(np.full_like(GRAY, 8192))))


FLOATS = GRAY / np.float32(65535)


def test_numbers_without_a_range_are_refused_and_with_one_served(tmp_path: Path) -> None:
    for content in (tiff(FLOATS), tiff(GRAY.astype(np.int32))):
        with pytest.raises(SampleError, match="of which no range is declared: pass value_range="):
            files(tmp_path, content)[0]
    source = files(tmp_path, tiff(FLOATS), value_range=(0, 1))
    assert np.abs(source[0][0] - rgb(FLOATS * 255)).max() <= 0.51
    assert np.array_equal(TorchDataset([(FLOATS, 0)], value_range=(0, 1))[0][0], source[0][0])
    assert np.array_equal(Arrays(FLOATS[np.newaxis], [0], value_range=(0, 1))[0][0], source[0][0])
    with pytest.raises(ConfigurationError, match=r"uint8 from 0 to 255, or uint16, but is float32.*value_range"):
        TorchDataset([(FLOATS, 0)])
    with pytest.raises(ConfigurationError, match=r"uint8 from 0 to 255, or uint16, but are float32.*value_range"):
        Arrays(FLOATS[np.newaxis], [0])
    with pytest.raises(LevelsError, match="not finite"):
        Levels((0, 1)).of(np.full((2, 2), np.nan), "it")
    one_of_two = Arrays(np.stack([FLOATS, np.full_like(FLOATS, np.nan)]), [0, 1], value_range=(0, 1))
    with pytest.raises(SampleError, match=r"sample 1 \(images\[1\]\): some of its pixels are not finite"):
        one_of_two.read(np.array([0, 1]))


def test_numbers_of_16_bits_are_taken_in_either_order_of_bytes() -> None:
    """As readers of big-endian TIFF files give them."""
    turned = GRAY.astype(">u2")
    expected = Arrays(GRAY[np.newaxis], [0])[0][0]
    assert np.array_equal(Arrays(turned[np.newaxis], [0])[0][0], expected)
    assert np.array_equal(TorchDataset([(turned, 0)])[0][0], expected)


@pytest.mark.parametrize(
    "given", [(5, 5), (9, 1), "16 bits", (1,), (True, 5), 4095, (0, np.inf), (-np.inf, 1), (0, np.nan)]
)
def test_a_range_must_be_two_numbers(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"value_range must be two numbers, low < high, got"):
        files(tmp_path, b"", value_range=given)


@pytest.mark.parametrize("given", [[0, 4095], np.array([0, 4095]), (np.float32(0), np.int64(4095))])
def test_a_range_is_two_numbers_however_they_are_written(given: Any, tmp_path: Path) -> None:
    assert files(tmp_path, b"", value_range=given).value_range == (0.0, 4095.0)


def test_a_range_decides_states_and_goes_with_parts(tmp_path: Path) -> None:
    plain, ranged = (files(tmp_path, png(SCANNED), **options) for options in ({}, {"value_range": (0, 4095)}))
    recipe = Recipe([Decode(), CenterCrop((HEIGHT, WIDTH))], levels_of(), 1)
    with Loader(ranged, recipe, Standard(1, batch_size=1)) as loader:
        state = loader.state_dict()
    with Loader(plain, recipe, Standard(1, batch_size=1)) as loader, pytest.raises(Exception, match="value_range"):
        loader.load_state_dict(state)
    assert ranged.subset([0]).value_range == (ranged + ranged).value_range == (0.0, 4095.0)
    with pytest.raises(ConfigurationError, match="must have the same value_range"):
        ranged + plain


def test_every_source_takes_a_range(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(png(SCANNED))
    (tmp_path / "list.csv").write_text("path,label\na/0.png,1\n")
    for source in (
        ImageFolder(tmp_path, value_range=(0, 4095)),
        FileList.from_csv(tmp_path / "list.csv", value_range=(0, 4095)),
    ):
        assert np.array_equal(source[0][0], rgb(nearest(SCANNED, 4095)))
