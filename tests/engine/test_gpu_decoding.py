"""What is decoded at each placement: upright, whatever is beside it, and every kind of file as on the CPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dalirefurb import FileList, MemoryStore, Recipe, Refurbish, Standard
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import RandomResizedCrop
from dalirefurb.reading.bad_samples import BadSamplePolicy
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.one_batch import levels
from tests.pictures import encode, jpeg, picture
from tests.placements import ON_CPU, PLACEMENTS, Placement
from tests.reading.conftest import Odd, odd_files  # noqa: F401 - a fixture

Served = dict[int, NDArray[np.float32]]

SIZE = 48
ORIENTATION = 0x0112
WINDOW = Recipe([Decode(), RandomResizedCrop(SIZE)], levels(SIZE), 2)
MAX_PIXELS = 2_000_000

# Mode, Pillow's name of the format, its options.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grey jpeg": ("L", "JPEG", {}),
    "cmyk jpeg": ("CMYK", "JPEG", {}),
    "progressive jpeg": ("RGB", "JPEG", {"progressive": True}),
    "4:4:4 jpeg": ("RGB", "JPEG", {"subsampling": 0}),
    "4:2:2 jpeg": ("RGB", "JPEG", {"subsampling": 1}),
    "png": ("RGB", "PNG", {}),
    "grey png": ("L", "PNG", {}),
    "png with alpha": ("RGBA", "PNG", {}),
    "png with a palette": ("P", "PNG", {}),
    "png of 16 bits": ("I;16", "PNG", {}),
    "bmp": ("RGB", "BMP", {}),
    "tiff": ("RGB", "TIFF", {}),
    "webp": ("RGB", "WEBP", {"quality": 90}),
}


def of_kind(kind: str, seed: int) -> bytes:
    mode, format_, options = KINDS[kind]
    image = picture(seed, height=90, width=121)
    if mode == "I;16":
        return encode(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), format_)
    return encode(image.convert(mode), format_, **options)


def write(folder: Path, files: Sequence[bytes]) -> FileList:
    """Write files, whose labels count them."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03d}" for number in range(len(files))]
    for path, encoded in zip(paths, files, strict=True):
        path.write_bytes(encoded)
    return FileList(paths, range(len(files)))


def served(source: FileList, recipe: Recipe, placement: Placement, *, batch_size: int | None = None) -> Served:
    """Serve every sample once; return the image of each."""
    planner = Standard(len(source), batch_size=batch_size or len(source))
    partial_device, final_device = placement
    with flat_loader(
        source,
        recipe,
        planner,
        partial_device=partial_device,
        final_device=final_device,
        kernels="dali",
        num_threads=1,
        with_indices=True,
    ) as loader:
        batches = [(indices.tolist(), images.cpu().numpy()) for images, _, indices in loader]
    return {index: image for indices, images in batches for index, image in zip(indices, images, strict=True)}


def assert_near(placement: Placement, expected: Served, found: Served, levels_on_cpu: int = 2) -> None:
    """Codecs of a GPU round otherwise: few levels, but for a few pixels; another window would be far away."""
    assert expected.keys() == found.keys()
    for index in expected:
        difference = np.abs(expected[index] - found[index])
        if placement == ON_CPU:
            assert difference.max() <= levels_on_cpu, index
        else:
            assert difference.mean() < 1.5, index
            assert (difference > 8).mean() < 0.01, index


@pytest.mark.parametrize(("format_", "split"), in_turn(["jpeg", "progressive jpeg", "png"], [1, 2]))
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_windows_of_all_orientations_are_cut_from_the_upright_image(
    tmp_path: Path, placement: Placement, format_: str, split: int
) -> None:
    """A CPU decodes the window alone where the crop is partial; a GPU decodes the whole and cuts it.

    What is expected is cut from images that Pillow turned upright.
    """
    oriented, upright = [], []
    for orientation in range(1, 9):
        tags = Image.Exif()
        tags[ORIENTATION] = orientation
        options = {"progressive": True} if format_ == "progressive jpeg" else {}
        name = "PNG" if format_ == "png" else "JPEG"
        encoded = encode(picture(orientation, height=170, width=250), name, exif=tags, **options)
        oriented.append(encoded)
        upright.append(encode(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))), "PNG"))
    recipe = WINDOW.at(split)
    expected = served(write(tmp_path / "upright", upright), recipe, ON_CPU)
    assert_near(placement, expected, served(write(tmp_path / "oriented", oriented), recipe, placement))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> FileList:
    """One file of each kind among JPEG files of a few sizes, two of them large."""
    sides = [(40, 60), (61, 47), (240, 320), (480, 640), (1100, 1000)]
    files = [jpeg(picture(seed, height=height, width=width)) for seed, (height, width) in enumerate(sides)]
    return write(tmp_path_factory.mktemp("mixed"), [*files, *(of_kind(kind, 9) for kind in KINDS)])


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_neighbours_in_a_batch_change_no_bit_of_a_sample(mixed: FileList, placement: Placement, split: int) -> None:
    """Alone, three together and all together."""
    recipe = WINDOW.at(split)
    together = served(mixed, recipe, placement)
    for batch_size in (1, 3):
        others = served(mixed, recipe, placement, batch_size=batch_size)
        for index, image in together.items():
            np.testing.assert_array_equal(image, others[index], err_msg=f"{index} in batches of {batch_size}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_file_of_each_kind_is_decoded_as_on_the_cpu(tmp_path: Path, placement: Placement, kind: str) -> None:
    """Split 1 decodes the whole image, which on the CPU is not how split 2 decodes a window of it."""
    source = write(tmp_path / "kind", [of_kind(kind, seed) for seed in range(3)])
    expected = served(source, WINDOW.at(1), ON_CPU)
    assert_near(placement, expected, served(source, WINDOW, placement))


@pytest.mark.filterwarnings("ignore::dalirefurb.source.levels.NearlyBlackWarning")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_odd_files_are_served_as_on_the_cpu_or_named(
    odd_files: Odd,  # noqa: F811
    photos: list[Path],
    placement: Placement,
) -> None:
    """Three files of each kind among photographs, twice, the second time partly from a store.

    What the CPU cannot decode, a GPU's decoder may; what it names must be something that the CPU names, too. Where
    both show the same sample it must look the same.
    """
    folders: dict[str, list[Path]] = {}
    for path in odd_files:
        folders.setdefault(path.parent.name, []).append(path)
    files = [path for kind, paths in folders.items() if kind != "huge" for path in paths[:3]]
    source = FileList([*files, *photos[:20]], range(len(files) + 20))
    by_cpu, bad_on_cpu = rows_of(source, ON_CPU)
    rows, bad = rows_of(source, placement)
    assert bad_on_cpu
    assert bad <= bad_on_cpu
    shown_by_both = [row for row, (one, other) in enumerate(zip(by_cpu, rows, strict=True)) if one[0] == other[0]]
    assert len(shown_by_both) >= 2 * (len(source) - len(bad_on_cpu))
    far = {rows[row][0] for row in shown_by_both if np.abs(by_cpu[row][1] - rows[row][1]).mean() > 3}
    assert [source.name(index) for index in far] == []


def rows_of(source: FileList, placement: Placement) -> tuple[list[tuple[int, NDArray[np.float32]]], set[int]]:
    """Serve two epochs with a store; return index and image of each row, and the samples that were replaced."""
    planner = Refurbish(len(source), batch_size=16, reuse_factor=2, seed=1)
    partial_device, final_device = placement
    with (
        MemoryStore() as store,
        flat_loader(
            source,
            WINDOW,
            planner,
            store,
            partial_device=partial_device,
            final_device=final_device,
            kernels="dali",
            bad_samples=BadSamplePolicy("replace", max_pixels=MAX_PIXELS),
            with_indices=True,
        ) as loader,
    ):
        rows = [
            (int(index), image)
            for _ in range(2)
            for images, _, indices in loader
            for index, image in zip(indices, images.cpu().numpy(), strict=True)
        ]
        assert loader.stats().hits > 0
        return rows, {sample.index for sample in loader.bad_samples()}
