import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import fn
from PIL import Image, ImageOps

from dalirefurb import BadSamplePolicy, Prefetch
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stages.custom import Custom
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import RandomResizedCrop
from dalirefurb.errors import SampleError
from dalirefurb.loader import Loader
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.reading.inspector import judge
from dalirefurb.reading.pillow_decoder import PillowDecoder
from dalirefurb.reading.reader import Reader
from dalirefurb.source import FileList, ImageFolder
from dalirefurb.source.levels import Levels
from dalirefurb.store import MemoryStore
from tests.bad_files import spoil
from tests.in_turn import in_turn
from tests.one_batch import levels
from tests.pictures import jpeg, picture, write_folder

HEIGHT, WIDTH, CANVAS = 47, 70, 80
ORIENTATION = 0x0112
DARK = ".* is served nearly black"
"""What a warning says of one of the odd files, which fills an eighth of its 16 bits."""

# Pillow's name, file ending, options, and by how many levels DALI's decoder may differ from Pillow's.
ORIENTED_FORMATS = [
    pytest.param("JPEG", "jpg", {"quality": 90}, 2, id="jpeg"),
    pytest.param("JPEG", "jpg", {"quality": 90, "progressive": True}, 2, id="progressive jpeg"),
    pytest.param("PNG", "png", {}, 0, id="png"),
    pytest.param("TIFF", "tif", {}, 0, id="tiff"),
    pytest.param("WEBP", "webp", {"quality": 90}, 2, id="webp"),
]


def onto_canvas(images):
    return fn.slice(
        images, start=(0, 0), shape=(CANVAS, CANVAS), axes=(0, 1), out_of_bounds_policy="pad", fill_values=[0]
    )


WHOLE = Recipe([Decode(), Custom(onto_canvas, "canvas", size=(CANVAS, CANVAS))], levels(CANVAS), 2)
WINDOW = Recipe([Decode(), RandomResizedCrop(32)], levels(32), 2)


def served(source, recipe):
    """Serve every sample once; rows are in the order of the source, whose labels count the samples."""
    planner = Standard(len(source), batch_size=len(source))
    with Loader(source, recipe, planner, prefetch=Prefetch(num_threads=1)) as loader:
        ((images, labels),) = loader
    return images.numpy()[np.argsort(labels.numpy())]


def as_pillow_opens(encoded):
    return ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB")


def on_canvas(image):
    """What `WHOLE` serves, (3, CANVAS, CANVAS)."""
    pixels = np.asarray(image, dtype=float)
    height, width = pixels.shape[:2]
    return np.pad(pixels, ((0, CANVAS - height), (0, CANVAS - width), (0, 0))).transpose(2, 0, 1)


def write_oriented(folder, format_, ending, options):
    """Write one stored image with each of the 8 orientations, and how each ought to look as PNG."""
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        file = io.BytesIO()
        tag = {"tiffinfo": {ORIENTATION: orientation}} if format_ == "TIFF" else {"exif": exif}
        picture(orientation, height=HEIGHT, width=WIDTH).save(file, format_, **tag, **options)
        for kind in ("oriented", "upright"):
            (folder / kind / str(orientation)).mkdir(parents=True)
        (folder / "oriented" / str(orientation) / f"image.{ending}").write_bytes(file.getvalue())
        as_pillow_opens(file.getvalue()).save(folder / "upright" / str(orientation) / "image.png")
    return ImageFolder(folder / "oriented"), ImageFolder(folder / "upright")


# Orientation


@pytest.mark.parametrize(("format_", "ending", "options", "tolerance"), ORIENTED_FORMATS)
def test_every_orientation_is_served_upright(tmp_path, format_, ending, options, tolerance):
    oriented, upright = write_oriented(tmp_path, format_, ending, options)
    expected = [on_canvas(Image.open(upright.name(index))) for index in range(8)]
    assert {image.shape for image in expected} == {(3, CANVAS, CANVAS)}
    assert np.abs(served(oriented, WHOLE) - expected).max() <= tolerance


@pytest.mark.parametrize(("kind", "split"), in_turn([each.id for each in ORIENTED_FORMATS], [1, 2]))
def test_windows_are_cut_from_the_upright_image(tmp_path, kind, split):
    ((format_, ending, options, tolerance),) = (each.values for each in ORIENTED_FORMATS if each.id == kind)
    """Split 2 decodes the window by region, split 1 cuts it from the whole image."""
    oriented, upright = write_oriented(tmp_path, format_, ending, options)
    recipe = WINDOW.at(split)
    assert np.abs(served(oriented, recipe) - served(upright, recipe)).max() <= tolerance


def test_sizes_from_headers_are_those_of_the_upright_image_in_the_order_asked_for(tmp_path):
    oriented, _ = write_oriented(tmp_path, "JPEG", "jpg", {})
    reader = Reader(oriented, max_batch_size=3, num_threads=1)
    heights, widths = reader.sizes(np.array([0, 4, 1, 5, 2, 6, 3, 7]))
    reader.close()
    assert list(zip(heights, widths, strict=True)) == [(HEIGHT, WIDTH), (WIDTH, HEIGHT)] * 4


# Colour spaces and depths


@pytest.mark.parametrize(
    ("mode", "format_", "options", "tolerance"),
    [
        ("L", "JPEG", {}, 2),
        ("RGB", "JPEG", {"subsampling": "4:4:4"}, 2),
        ("RGB", "JPEG", {"subsampling": "4:2:0"}, 2),
        ("CMYK", "JPEG", {}, 2),
        ("L", "PNG", {}, 0),
        ("LA", "PNG", {}, 0),
        ("RGBA", "PNG", {}, 0),
        ("P", "PNG", {}, 0),
        ("P", "PNG", {"transparency": 3}, 0),
        ("1", "PNG", {}, 0),
        ("RGBA", "WEBP", {"lossless": True, "exact": True}, 0),
        ("RGB", "WEBP", {}, 2),
        ("RGB", "BMP", {}, 0),
        ("P", "BMP", {}, 0),
        ("RGB", "TIFF", {}, 0),
        ("RGBA", "TIFF", {}, 0),
        ("CMYK", "TIFF", {}, 0),
        ("L", "TIFF", {"compression": "tiff_lzw"}, 0),
        ("P", "TIFF", {}, 1),
        ("RGB", "PPM", {}, 0),
        ("RGB", "JPEG2000", {}, 1),
    ],
    ids=str,
)
def test_colours_come_out_as_in_pillow(tmp_path, mode, format_, options, tolerance):
    image = picture(5, height=HEIGHT, width=WIDTH)
    if mode.endswith("A"):
        image.putalpha(picture(6, height=HEIGHT, width=WIDTH).convert("L"))
    path = tmp_path / "image"
    image.convert(mode).save(path, format_, **options)
    (found,) = served(FileList([path], [0]), WHOLE)
    assert np.abs(found - on_canvas(as_pillow_opens(path.read_bytes()))).max() <= tolerance


def png_16_bit(samples):
    """Encode (height, width, 1..4) uint16; Pillow writes gray ones only."""
    height, width, channels = samples.shape
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bits_become_the_nearest_of_256_levels(tmp_path, channels):
    samples = np.random.default_rng(channels).integers(0, 1 << 16, (HEIGHT, WIDTH, channels), dtype=np.uint16)
    (tmp_path / "image.png").write_bytes(png_16_bit(samples))
    (found,) = served(FileList([tmp_path / "image.png"], [0]), WHOLE)
    colours = samples[..., :3] if channels >= 3 else samples[..., :1].repeat(3, axis=2)
    assert np.abs(found - on_canvas(colours / 257)).max() <= 0.5


# Files that break loaders


KINDS = ["missing", "empty", "text", "header cut short", "JPEG cut short"]


class Unnoticed(ImageFolder):
    """A folder that does not tell a store whether its files have changed."""

    def content(self):
        return {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_among_hits_is_named(tmp_path, kind):
    """The graph counts misses only; the row it reports has to be mapped back."""
    source = Unnoticed(write_folder(tmp_path, num_samples=48))
    planner = Refurbish(48, batch_size=8, reuse_factor=2)
    *_, last = planner.epoch(1)
    index = int(last.indices[last.miss][-1])
    store = MemoryStore()
    with Loader(source, WINDOW, planner, store, prefetch=Prefetch(num_threads=1)) as loader:
        assert len(list(loader)) == 6
        state = loader.state_dict()
    spoil(Path(source.name(index)), kind)
    with Loader(source, WINDOW, planner, store, prefetch=Prefetch(num_threads=1)) as loader:
        loader.load_state_dict(state)
        with pytest.raises(SampleError) as caught:
            list(loader)
        assert loader.stats().hits > 0
    assert caught.value.index == index
    assert caught.value.name == source.name(index)


@pytest.mark.parametrize(("kind", "batches_per_group"), in_turn(KINDS, [1, 6]))
def test_batches_before_a_bad_file_are_served_and_it_is_named(tmp_path, kind, batches_per_group):
    source = ImageFolder(write_folder(tmp_path, num_samples=24))
    planner = Standard(24, batch_size=4)
    plans = list(planner.epoch(0))
    index = int(plans[3].indices[0])
    spoil(Path(source.name(index)), kind)
    with Loader(
        source, WINDOW, planner, prefetch=Prefetch(num_threads=1, look_ahead=3, batches_per_group=batches_per_group)
    ) as loader:
        batches = iter(loader)
        for _ in plans[:3]:
            next(batches)
        with pytest.raises(SampleError) as caught:
            next(batches)
    assert (caught.value.index, caught.value.name) == (index, source.name(index))
    assert f"sample {index} ({source.name(index)}): " in str(caught.value)


def outcome(loader):
    """Serve one batch of one sample: its index, and why it was refused or None."""
    try:
        images, labels = next(iter(loader))
    except SampleError as error:
        return error.index, error
    assert images.shape == (1, 3, 32, 32)
    return labels.item(), None


@pytest.mark.filterwarnings(f"ignore:{DARK}")
@pytest.mark.parametrize("split", [pytest.param(1, marks=pytest.mark.weekly), 2])
def test_every_odd_file_is_served_or_named(odd_files, split):
    """One loader meets them all, one by one: what fails does not keep it from the next.

    With split 2 windows are decoded by region, which alone would not notice that a file ends below the window.
    """
    paths = list(odd_files)
    source = FileList(paths, range(len(paths)))
    planner = Standard(len(paths), batch_size=1)
    with Loader(source, WINDOW.at(split), planner, prefetch=Prefetch(num_threads=1, look_ahead=1)) as loader:
        start = loader.state_dict()
        outcomes = {}
        for batch in range(len(paths)):
            loader.load_state_dict({**start, "batch": batch})
            index, error = outcome(loader)
            outcomes[index] = error
    assert sorted(outcomes) == list(range(len(paths)))
    refused = {index for index, error in outcomes.items() if error is not None}
    assert all(f"sample {index} ({paths[index]}): " in str(outcomes[index]) for index in refused)
    sizes = enumerate(odd_files.values())
    undecodable = {index for index, size in sizes if size is None or size[0] * size[1] > 100_000_000}
    assert refused == undecodable


def test_an_image_larger_than_max_pixels_is_refused_before_it_is_decoded(tmp_path):
    path = tmp_path / "picture.jpg"
    path.write_bytes(jpeg(picture(0, height=40, width=50)))
    source = FileList([path], [0])
    refusal = pytest.raises(
        SampleError, match=r"1,999 pixels at most, but its header declares 40 x 50: pass max_pixels=2000"
    )
    with (
        Loader(source, WINDOW, Standard(1, batch_size=1), bad_samples=BadSamplePolicy(max_pixels=1_999)) as loader,
        refusal,
    ):
        next(iter(loader))
    with Loader(source, WINDOW, Standard(1, batch_size=1), bad_samples=BadSamplePolicy(max_pixels=2_000)) as loader:
        next(iter(loader))


def test_sizes_of_odd_files_are_those_they_decode_to(odd_files):
    pillow = PillowDecoder(None, Levels())
    for path, size in odd_files.items():
        if size is not None:
            header = judge(np.fromfile(path, np.uint8), pillow).header
            assert (header.height, header.width) == size, path
