"""What is kept as planes is served bit for bit as the decoder makes it, and nothing is made that no crop looks at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

pytest.importorskip("numba")

from dalirefurb import (
    Arrays,
    ImageFolder,
    Kept,
    Output,
    Recipe,
    Refurbish,
    Standard,
    evaluate,
    rand_augment,
    simple,
)
from dalirefurb.augment import CenterCrop, ColorJitter, Decode, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize
from dalirefurb.augment.kernel_call import UNTOUCHED, Code
from dalirefurb.augment.stage import Stage
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import GREY, HALVED, RGB, Images, Places, layout_bytes
from dalirefurb.keep import kept as kept_module
from dalirefurb.keep import upkeep
from dalirefurb.keep.forms import planes_of
from dalirefurb.keep.record import RECORD
from dalirefurb.kernels.kernel import compile_kernel, kernel_named
from dalirefurb.kernels.pixels import planes
from dalirefurb.kernels.record import CRAMPED, DONE, PROBLEMS, WIDTH
from dalirefurb.reading.inspector import decoded
from dalirefurb.source import Source
from dalirefurb.source.levels import Levels
from tests.in_turn import in_turn
from tests.keep.test_kept import Counted, assert_same, served, taken_in_turn
from tests.pictures import encode, jpeg, picture

pytestmark = pytest.mark.usefixtures("traced_once")

SIZE, BATCH_SIZE = 32, 6
RGB_OF = planes.rgb
OF_4_4_4, OF_4_2_2, OF_4_2_0 = 0, 1, 2
SIDES = [(1, 1), (1, 8), (2, 2), (3, 5), (4, 3), (5, 2), (7, 4), (17, 33), (16, 64), (50, 47)]


def as_array(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def as_decoded(content: bytes) -> NDArray[np.uint8]:
    return decoded(as_array(content), Levels(), "a test's")


def turned(orientation: int, **options: Any) -> bytes:
    image = picture(orientation, height=40, width=62)
    exif = image.getexif()
    exif[274] = orientation
    return jpeg(image, exif=exif, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageFolder, list[int]]:
    """Images of all kinds, and how each is kept."""
    root, kept = tmp_path_factory.mktemp("files"), []
    kinds: list[tuple[bytes, int]] = [
        *((jpeg(picture(n, height=40 + 7 * (n % 5), width=41 + 9 * (n % 4)), subsampling=2), HALVED) for n in range(7)),
        (jpeg(picture(7, height=70, width=90), subsampling=OF_4_2_0, progressive=True), HALVED),
        (jpeg(picture(8, height=3, width=5), subsampling=OF_4_2_0), HALVED),
        (jpeg(picture(9, height=50, width=70).convert("L")), GREY),
        (jpeg(picture(10, height=50, width=70), subsampling=OF_4_4_4), RGB),
        (jpeg(picture(11, height=50, width=70), subsampling=OF_4_2_2), RGB),
        (jpeg(picture(12, height=50, width=70).convert("CMYK")), RGB),
        (encode(picture(13, height=50, width=70), "PNG"), RGB),
        *(
            (turned(orientation, subsampling=OF_4_2_0), HALVED if orientation == 1 else RGB)
            for orientation in range(1, 9)
        ),
    ]
    for number, (content, layout) in enumerate(kinds):
        folder = root / f"class_{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:03d}.jpg").write_bytes(content)
        kept.append(layout)
    source = ImageFolder(root)
    return source, [kept[int(Path(source.name(index)).stem)] for index in range(len(source))]


@pytest.fixture
def never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """RGB of a whole image is made for nobody."""

    def whole(*_: Any) -> None:
        raise AssertionError("RGB of a whole image is made")

    monkeypatch.setattr(planes, "rgb", whole)


# Planes of files


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("subsampling", [OF_4_4_4, OF_4_2_2, OF_4_2_0])
@pytest.mark.parametrize("progressive", [False, True])
def test_planes_are_kept_of_4_2_0_alone_and_make_the_decoders_image(
    sides: tuple[int, int], subsampling: int, progressive: bool
) -> None:
    height, width = sides
    content = jpeg(picture(3, height=height, width=width), subsampling=subsampling, progressive=progressive, quality=75)
    image = as_decoded(content)
    found = planes_of(as_array(content), image)
    if subsampling != OF_4_2_0 or min(sides) < 2:
        assert found is None
        return
    assert found is not None
    assert found.image is image
    assert len(found.content) == height * width + 2 * -(-height // 2) * -(-width // 2)
    np.testing.assert_array_equal(planes.rgb(found.content, sides, HALVED), image)


@pytest.mark.parametrize("sides", [(1, 1), (3, 5), (17, 33)], ids=str)
def test_of_grey_files_a_third_is_kept(sides: tuple[int, int]) -> None:
    content = jpeg(picture(4, height=sides[0], width=sides[1]).convert("L"))
    found = planes_of(as_array(content), as_decoded(content))
    assert found is not None
    assert 3 * len(found.content) == found.image.size
    np.testing.assert_array_equal(planes.rgb(found.content, sides, GREY), found.image)


def cut_off() -> bytes:
    return jpeg(picture(6, height=40, width=60), subsampling=OF_4_2_0)[:400]


@pytest.mark.parametrize(
    "content",
    [
        encode(picture(5, height=20, width=30), "PNG"),
        jpeg(picture(5, height=20, width=30).convert("CMYK"), subsampling=OF_4_2_0),
        cut_off(),
        b"\xff\xd8\xff",
    ],
    ids=["png", "cmyk", "cut off", "no more than a beginning"],
)
def test_of_others_rgb_is_kept(content: bytes) -> None:
    assert planes_of(as_array(content), np.zeros((20, 30, 3), np.uint8)) is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_of_what_exif_turns_rgb_is_kept(orientation: int) -> None:
    content = turned(orientation, subsampling=OF_4_2_0)
    assert (planes_of(as_array(content), as_decoded(content)) is None) == (orientation != 1)


def test_a_decoder_that_makes_another_image_has_its_own_kept() -> None:
    content = jpeg(picture(7, height=20, width=31), subsampling=OF_4_2_0)
    image = as_decoded(content).copy()
    assert planes_of(as_array(content), image) is not None
    image[19, 30, 2] ^= 1
    assert planes_of(as_array(content), image) is None


# The kernel


def window(
    content: NDArray[np.uint8], sides: tuple[int, int], layout: float, window: tuple[int, ...], spared: int = 0
) -> tuple[int, NDArray[np.uint8]]:
    """Make a window's RGB in no more memory than is asked for; return what became of it, and the image."""
    top, left, lines, columns = window
    numbers = np.zeros(WIDTH)
    numbers[:3] = top, left, layout
    needed = max(int(kernel_named(planes.FROM_PLANES).room_bytes(*sides, lines, columns, numbers)), 0)
    nbytes = max(3 * lines * columns, 0)
    room, out = np.full(needed + 64, 0xA5, np.uint8), np.full(nbytes + 64, 0x5A, np.uint8)
    given: tuple[Any, ...] = *sides, lines, columns, numbers.ctypes.data, room.ctypes.data, needed - spared
    outcome = compile_kernel(planes.FROM_PLANES).ctypes(content.ctypes.data, *given, out.ctypes.data)
    assert (room[needed:] == 0xA5).all()
    assert (out[nbytes:] == 0x5A).all()
    return outcome, out[:nbytes]


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("layout", [GREY, HALVED])
def test_any_window_is_that_of_the_whole_image_at_any_level(sides: tuple[int, int], layout: int) -> None:
    height, width = sides
    rng = np.random.default_rng(0)
    for levels in (
        rng.integers(0, 256, layout_bytes(layout, *sides)),
        rng.choice([0, 255], layout_bytes(layout, *sides)),
    ):
        content = levels.astype(np.uint8)
        image = planes.rgb(content, sides, layout)
        for _ in range(30):
            lines, columns = (int(rng.integers(1, side + 1)) for side in sides)
            top, left = int(rng.integers(height - lines + 1)), int(rng.integers(width - columns + 1))
            outcome, made = window(content, sides, layout, (top, left, lines, columns))
            assert outcome == DONE
            expected = image[top : top + lines, left : left + columns]
            np.testing.assert_array_equal(made.reshape(lines, columns, 3), expected)


@pytest.mark.parametrize("luma", [0, 100, 255])
def test_every_colour_is_that_of_libjpegs_formula(luma: int) -> None:
    """Of its `jdcolor.c`, for all Cb and Cr: a single column of colours is not interpolated."""
    blue, red = np.divmod(np.arange(1 << 16), 256)
    sides = (1 << 17, 2)
    content = np.concatenate([np.full(1 << 18, luma), blue, red]).astype(np.uint8)
    b, r = blue - 128, red - 128
    colours = (
        luma + (91881 * r + 32768 >> 16),
        luma + (-22554 * b - 46802 * r + 32768 >> 16),
        luma + (116130 * b + 32768 >> 16),
    )
    expected = np.stack(colours, axis=1).clip(0, 255)
    made = planes.rgb(content, sides, HALVED).reshape(1 << 16, 2, 2, 3)
    np.testing.assert_array_equal(made, np.broadcast_to(expected[:, None, None], made.shape))


@pytest.mark.parametrize("bad", [(-1, 0, 4, 4), (0, -1, 4, 4), (4, 0, 4, 4), (0, 6, 4, 4), (0, 0, 0, 4), (0, 0, 4, 0)])
def test_a_window_that_is_outside_is_not_made(bad: tuple[int, ...]) -> None:
    outcome, made = window(np.zeros(200, np.uint8), (7, 9), HALVED, bad)
    assert "must lie within its image" in PROBLEMS[outcome]
    assert (made == 0x5A).all()


def test_without_memory_or_of_an_unknown_layout_nothing_is_made() -> None:
    content = np.zeros(400, np.uint8)
    for layout, spared, expected in ((HALVED, 1, {CRAMPED}), (RGB, 0, {3}), (3, 0, {3})):
        outcome, made = window(content, (7, 9), layout, (0, 0, 7, 9), spared)
        assert {outcome} == expected
        assert (made == 0x5A).all()


# What is read of them


def test_a_first_resize_reads_its_window_and_others_the_whole_image() -> None:
    layouts = np.array([HALVED, RGB, GREY, HALVED])
    sizes = np.array([[[40, 60]] * 4, [[8, 8]] * 4])
    chosen = np.array([[0, 0, 0, UNTOUCHED]])
    numbers = np.zeros((1, 4, WIDTH))
    numbers[0, :, :5] = 3, 5, 20, 30, 1
    wide, taken, given, (image_bytes, _) = planes.planes_first(layouts, Code.RESIZE, sizes, chosen, numbers.copy())
    assert wide.tolist() == [[[40, 60]] * 4, [[20, 30], [40, 60], [20, 30], [40, 60]], [[8, 8]] * 4]
    assert taken.tolist() == [[0, UNTOUCHED, 0, 0], [0, 0, 0, UNTOUCHED]]
    assert given[0, :, :3].tolist() == [[3, 5, HALVED], [0, 0, 0], [3, 5, GREY], [0, 0, HALVED]]
    assert given[1, :, :2].tolist() == [[0, 0], [3, 5], [0, 0], [3, 5]]
    assert (given[1, :, 2:5] == [20, 30, 1]).all()
    assert image_bytes == 7232, "7200 in lines of 64"
    wide, _, _, (image_bytes, _) = planes.planes_first(layouts[:1], Code.RESIZE, sizes, chosen, numbers.copy())
    assert image_bytes == 1856, "1800 of the window, and no more"
    wide, _, given, _ = planes.planes_first(layouts, Code.OTHER, sizes, chosen, numbers.copy())
    assert (wide[1] == [40, 60]).all()
    assert (given[1] == numbers[0]).all()
    wide, _, given, _ = planes.planes_first(layouts[:1], Code.CROP, sizes, chosen, numbers.copy())
    assert wide[1, 0].tolist() == [8, 8]
    numbers[0, :, 0] = 35
    wide, _, given, _ = planes.planes_first(layouts[:1], Code.CROP, sizes, chosen, numbers.copy())
    assert wide[1, 0].tolist() == [40, 60], "what is around the image is the crop's matter"
    assert given[1, 0, 0] == 35


def test_images_know_how_they_lie_and_are_rgb_to_who_does_not_ask() -> None:
    plain, lying = np.zeros((2, 4, 5, 3), np.uint8), np.ones((2, 4, 5, 3), np.uint8)
    places = Places(np.array([7, 9]), np.array([[4, 5], [4, 5]]), np.array([HALVED, RGB]))
    some = Images.on_demand(2, lambda: [*lying], lambda: places)
    assert some.places.layouts is None
    assert some.places.addresses[0] == lying.ctypes.data
    joined = Images.joined(4, [(np.array([0, 3]), Images(plain)), (np.array([1, 2]), some)])
    assert joined.origins.layouts is not None
    assert joined.origins.layouts.tolist() == [RGB, HALVED, RGB, RGB]
    assert joined.origins.addresses[1:3].tolist() == [7, 9]
    assert joined.places.addresses[2] == lying[1].ctypes.data
    chosen = joined.chosen(np.array([2, 1])).origins
    assert chosen.layouts is not None
    assert chosen.layouts.tolist() == [RGB, HALVED]
    assert joined.chosen(np.array([0, 3])).places.addresses[0] == plain.ctypes.data
    both = Images.joined(2, [(np.array([0]), Images(plain[:1])), (np.array([1]), Images(plain[1:]))])
    assert both.origins.layouts is None


# What is served


def recipe_of(*stages: Stage) -> Recipe:
    return Recipe(stages, split=len(stages), output=Output(SIZE))


RECIPES: dict[str, Recipe] = {
    "a crop first": rand_augment(SIZE),
    "decoding alone": rand_augment(SIZE).at(1),
    "a crop last": rand_augment(SIZE, order="crop_last"),
    "all partial": rand_augment(SIZE).at(len(rand_augment(SIZE).stages)),
    "a resize": evaluate(SIZE),
    "sharply": recipe_of(Decode(), RandomResizedCrop(SIZE, interpolation="bicubic"), HorizontalFlip()),
    "nearest": simple(SIZE, crop_interpolation="nearest", dtype="float16"),
    "a cut": recipe_of(Decode(), RandomCrop(SIZE, padding=40), HorizontalFlip()),
    "inside": recipe_of(Decode(), CenterCrop(2), Resize(SIZE)),
    "colours": recipe_of(Decode(), ColorJitter(0.4, 0.4, 0.4, 0.1), Resize((SIZE, SIZE))),
}


def images_of(kept: Kept) -> Images:
    images = kept.images(np.arange(len(kept)))
    assert images is not None
    return images


def full(path: Path, source: Source) -> Kept:
    Kept(source, path, form="planes").fill()
    return Kept(source, path, form="planes")


def half(path: Path, source: ImageFolder) -> Kept:
    Kept(source, path, form="planes").images(np.arange(0, len(source), 2))
    return Kept(source, path, form="planes", size=0)


FILLS: dict[str, Callable[[Path, ImageFolder], Kept]] = {
    "empty": lambda path, source: Kept(source, path, form="planes"),
    "full": full,
    "half": half,
}


@pytest.mark.parametrize(("fill", "recipe"), in_turn([*FILLS], ["a crop first", "decoding alone"]))
def test_planes_change_nothing_that_is_served(
    fill: str, recipe: str, files: tuple[ImageFolder, list[int]], tmp_path: Path
) -> None:
    source, _ = files
    planner = Standard(len(source), batch_size=BATCH_SIZE, seed=5)
    kept = FILLS[fill](tmp_path, source)
    assert_same(served(kept, RECIPES[recipe], planner), served(source, RECIPES[recipe], planner))


@pytest.mark.usefixtures("never_whole")
@pytest.mark.parametrize(("recipe", "stored"), in_turn([*RECIPES], [False, True]))
def test_whatever_the_recipe_no_whole_image_is_made_before_kernels(
    recipe: str, stored: bool, files: tuple[ImageFolder, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = files
    planner = Refurbish(len(source), batch_size=BATCH_SIZE, reuse_factor=2, seed=3)
    with monkeypatch.context() as patch:
        patch.setattr(planes, "rgb", RGB_OF)  # A keep is filled with what was compared.
        kept = full(tmp_path, source)
    each = [served(one, RECIPES[recipe], planner, stored=stored) for one in (kept, source)]
    assert_same(*each)


def test_dali_is_given_whole_images(files: tuple[ImageFolder, list[int]], tmp_path: Path) -> None:
    source, _ = files
    planner = Standard(len(source), batch_size=BATCH_SIZE, seed=5)
    kept = full(tmp_path, source)
    assert_same(
        served(kept, simple(SIZE), planner, kernels="dali"), served(source, simple(SIZE), planner, kernels="dali")
    )


def test_a_training_goes_on_with_planes_and_without(files: tuple[ImageFolder, list[int]], tmp_path: Path) -> None:
    source, _ = files
    planner = Standard(len(source), batch_size=BATCH_SIZE, seed=5)
    batches, _ = taken_in_turn([source, full(tmp_path, source)], RECIPES["a crop first"], planner)
    assert_same(batches, served(source, RECIPES["a crop first"], planner))


# What is kept


def test_each_image_is_kept_as_it_can_be_and_is_the_same(files: tuple[ImageFolder, list[int]], tmp_path: Path) -> None:
    source, layouts = files
    for kept in (Kept(source, tmp_path, form="planes"), Kept(source, tmp_path, form="planes")):
        images = images_of(kept)
        for index, image in enumerate(images):
            np.testing.assert_array_equal(image, source[index][0])
    assert (kept.planes, kept.subset([0]).planes, source.planes) == (True, True, False), "memory is counted by it"
    assert images.origins.layouts is not None
    assert images.origins.layouts.tolist() == layouts
    assert {HALVED, GREY, RGB} == {*layouts}
    assert not any(image.flags.writeable for image in images)
    sizes = images.origins.sizes.tolist()
    expected = sum(layout_bytes(layout, *size) for layout, size in zip(layouts, sizes, strict=True))
    assert upkeep.inspect(tmp_path).nbytes == expected


def test_a_file_is_read_once_for_its_image_and_its_planes(files: tuple[ImageFolder, list[int]], tmp_path: Path) -> None:
    source = Counted(files[0])
    images_of(full(tmp_path, source))
    assert sorted(source.asked) == [*range(len(source))]


@pytest.mark.parametrize("place", [0, -1], ids=["of Y", "of Cr"])
def test_a_plane_that_is_damaged_is_noticed_and_made_anew(
    place: int, files: tuple[ImageFolder, list[int]], tmp_path: Path
) -> None:
    source, layouts = files
    full(tmp_path, source)
    index = layouts.index(HALVED)
    record = np.fromfile(tmp_path / "records", RECORD)[index]
    data = np.memmap(tmp_path / "data", np.uint8, "r+")
    data[int(record["start"]) + (place if place >= 0 else int(record["nbytes"]) + place)] ^= 1
    data.flush()
    assert upkeep.verify(tmp_path) == (len(source) - 1, [index])
    images = images_of(Kept(source, tmp_path, form="planes"))
    for row, image in enumerate(images):
        np.testing.assert_array_equal(image, source[row][0])
    assert upkeep.verify(tmp_path) == (len(source), [])


def test_keeps_of_images_are_as_they_were_and_no_other_form_opens_them(
    files: tuple[ImageFolder, list[int]], tmp_path: Path
) -> None:
    source, _ = files
    kept = Kept(source, tmp_path / "images")
    kept.fill()
    records = np.fromfile(tmp_path / "images" / "records", RECORD)
    assert RECORD.itemsize == 48
    assert (records["nbytes"] == 3 * records["height"].astype(int) * records["width"]).all()
    identity = json.loads((tmp_path / "images" / "keep.json").read_text())
    assert {name: identity[name] for name in ("format", "form")} == {"format": 1, "form": "decoded"}
    images = images_of(Kept(source, tmp_path / "images"))
    assert images.origins.layouts is None
    with pytest.raises(StoreError, match=r"in one form, but .* holds another: .*form"):
        Kept(source, tmp_path / "images", form="planes")
    full(tmp_path / "planes", source)
    with pytest.raises(StoreError, match=r"in one form, but .* holds another: .*form"):
        Kept(source, tmp_path / "planes")


def test_arrays_have_no_planes(tmp_path: Path) -> None:
    images = np.zeros((3, 8, 8, 3), np.uint8)
    with pytest.raises(ConfigurationError, match=r"form='planes' is for sources of encoded samples, .* form='decoded'"):
        Kept(Arrays(images, np.arange(3)), tmp_path, form="planes")


def test_without_a_compiler_planes_are_refused(
    files: tuple[ImageFolder, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"form='planes' needs the package numba, .*: pass form='decoded'"):
        Kept(files[0], tmp_path, form="planes")
    Kept(files[0], tmp_path)


def test_who_keeps_images_loads_no_compiler() -> None:
    code = "import sys; from dalirefurb import Kept; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_photographs_are_kept_as_they_are_decoded(photos: list[Path]) -> None:
    """Sixteen, also encoded anew as 4:2:0."""
    halved = 0
    for path in photos[:: max(1, len(photos) // 16)][:16]:
        anew = jpeg(Image.open(path).convert("RGB"), subsampling=OF_4_2_0)
        for content in (path.read_bytes(), anew):
            image = as_decoded(content)
            found = planes_of(as_array(content), image)
            assert found is not None or content is not anew
            if found is not None:
                layout = HALVED if len(found.content) > image.size // 3 else GREY
                halved += layout == HALVED
                np.testing.assert_array_equal(planes.rgb(found.content, image.shape[:2], layout), image)
    assert halved >= 16


def test_images_of_several_owners_lie_as_each_has_them() -> None:
    planes = Images.at(Places(np.array([1, 2]), np.full((2, 2), 4), np.array([HALVED, GREY])))
    plain = Images.at(Places(np.array([3]), np.full((1, 2), 6)))
    joined = Images.joined(3, [(np.array([0, 2]), planes), (np.array([1]), plain)]).origins
    assert joined.layouts is not None
    assert (joined.addresses.tolist(), joined.layouts.tolist()) == ([1, 3, 2], [HALVED, RGB, GREY])
    assert Images.joined(2, [(np.array([0]), plain), (np.array([1]), plain)]).origins.layouts is None
