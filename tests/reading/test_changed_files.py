"""A file that changes during a run is served as it is then, or named: whatever was known of what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import ImageFolder, Loader, Standard, simple
from dalirefurb.errors import SampleError
from dalirefurb.reading import inspector
from dalirefurb.reading.formats import as_pnm
from dalirefurb.reading.inspector import Inspector
from dalirefurb.source import Source
from dalirefurb.source.levels import Levels
from tests.bad_files import Batches, assert_same, bad_content, encoded, expected
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.pictures import jpeg, picture, write_folder
from tests.reading.test_file_formats import as_pillow_opens
from tests.reading.test_pillow_decoder import written

NUM_SAMPLES = 12
AHEAD = 8
"""Epochs of which some batches may have been read before a file was changed."""

PLANNER = Standard(NUM_SAMPLES, batch_size=6, seed=3)
CHANGED = (2, 7, 9)


@pytest.fixture
def source(tmp_path: Path) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path / "pictures", num_samples=NUM_SAMPLES))


def loader_of(source: Source, kernels: str, split: int = 2, **options: Any) -> Loader:
    recipe = simple(32, split=split)
    return flat_loader(
        source, recipe, PLANNER, kernels=kernels, num_threads=2, look_ahead=1, batches_per_group=1, with_indices=True,
        **options,
    )  # fmt: skip


def epoch(loader: Loader) -> Batches:
    return [tuple(part.clone() for part in batch) for batch in loader]


def later_epoch(loader: Loader) -> Batches:
    """Serve the first epoch of which nothing was read before."""
    for _ in range(AHEAD):
        epoch(loader)
    return epoch(loader)


def write(source: ImageFolder, index: int, content: bytes) -> None:
    """Replace a file as programs do that mean it: at once."""
    path = Path(source.name(index))
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


@pytest.mark.parametrize("split", [1, 2])
def test_a_file_that_is_replaced_is_served_by_its_own_size(kernels: str, split: int, source: ImageFolder) -> None:
    """What came before is upright, and what comes then is lying, smaller and larger."""
    with loader_of(source, kernels, split) as loader:
        epoch(loader)
        for number, index in enumerate(CHANGED):
            write(source, index, jpeg(picture(90 + index, height=20 + 60 * number, width=150)))
        found = later_epoch(loader)
    with loader_of(source, kernels, split) as loader:
        loader.set_epoch(AHEAD + 1)
        assert_same(epoch(loader), found)


def test_both_kernels_go_on_with_another_kind_of_file(kernels: str, source: ImageFolder) -> None:
    with loader_of(source, kernels) as loader:
        epoch(loader)
        for index, format_ in zip(CHANGED, ("BMP", "PNG", "TIFF"), strict=True):
            write(source, index, encoded(format_, seed=index))
        found = later_epoch(loader)
    with loader_of(source, kernels) as loader:
        loader.set_epoch(AHEAD + 1)
        assert_same(epoch(loader), found)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    in_turn(
        ["text", "JPEG cut short", "PNG damaged", "WebP cut short", "TIFF cut short", "too large", "empty"],
        ["dali", "numba"],
    ),
)
def test_a_file_that_breaks_is_named(kernels: str, kind: str, source: ImageFolder) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    with loader_of(source, kernels, max_pixels=60_000) as loader:
        epoch(loader)
        write(source, 7, bad_content(kind))
        with pytest.raises(SampleError) as caught:
            later_epoch(loader)
    assert (caught.value.index, caught.value.name) == (7, source.name(7))


def test_files_that_break_are_replaced(kernels: str, source: ImageFolder) -> None:
    broken = dict(zip(CHANGED, ("text", "JPEG cut short", "PNG damaged"), strict=True))
    with loader_of(source, kernels, on_bad_sample="replace") as loader:
        epoch(loader)
        assert loader.bad_samples() == []
        for index, kind in broken.items():
            write(source, index, bad_content(kind))
        found = later_epoch(loader)
        assert [sample.index for sample in loader.bad_samples()] == sorted(broken)
    wanted = expected(source, simple(32, split=2), PLANNER, epochs=AHEAD + 2, bad=set(broken))[-len(PLANNER) :]
    for batch, other in zip(wanted, found, strict=True):
        assert torch.equal(batch[2], other[2])
        assert (batch[0] - other[0]).abs().max() < (1e-6 if kernels == "dali" else 1.01 / 255 / 0.224)


def test_a_file_that_is_repaired_is_served_where_bad_ones_raise(kernels: str, source: ImageFolder) -> None:
    good = Path(source.name(7)).read_bytes()
    with loader_of(source, kernels) as loader:
        wanted = epoch(loader)
    for kind in ("text", "PNG damaged"):
        with loader_of(source, kernels) as loader:
            write(source, 7, bad_content(kind))
            with pytest.raises(SampleError):
                epoch(loader)
            write(source, 7, good)
            loader.set_epoch(0)
            assert_same(wanted, epoch(loader))


@pytest.mark.parametrize("back", [False, True])
def test_pillow_decodes_what_it_is_given_and_nothing_else(kernels: str, back: bool, source: ImageFolder) -> None:
    """A JPEG becomes a GIF, or a GIF a JPEG."""
    contents = [Path(source.name(7)).read_bytes(), written("GIF", picture(7, height=90, width=30))]
    before, after = reversed(contents) if back else contents
    write(source, 7, before)
    with loader_of(source, kernels) as loader:
        epoch(loader)
        write(source, 7, after)
        found = later_epoch(loader)
    with loader_of(source, kernels) as loader:
        loader.set_epoch(AHEAD + 1)
        assert_same(epoch(loader), found)


def test_a_header_is_read_once_of_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Inspector(4, max_pixels=None, levels=Levels())
    files = [np.frombuffer(jpeg(picture(seed, height=40 + seed, width=50)), np.uint8) for seed in range(3)]
    files.append(np.frombuffer(written("GIF", picture(3, height=43, width=50)), np.uint8))
    read: list[int] = []
    real = inspector.judge
    monkeypatch.setattr(inspector, "judge", lambda *some: (read.append(len(some[0])), real(*some))[1])
    for _ in range(3):
        heights, widths = seen.look(np.arange(4), list(files))
    assert (heights.tolist(), widths.tolist()) == ([40, 41, 42, 43], [50] * 4)
    assert read == [len(file) for file in files]
    heights, _ = seen.look(np.arange(4), [files[0], files[0], *files[2:]])
    assert heights.tolist() == [40, 40, 42, 43]
    assert read[4:] == [len(files[0])]


def test_a_byte_that_changes_in_a_header_is_seen(source: ImageFolder) -> None:
    """The header's bytes tell a JPEG from others, and its last ones, and how many there are."""
    seen = Inspector(1, max_pixels=None, levels=Levels())
    content = Path(source.name(7)).read_bytes()
    height, width = picture_size(content)
    frame = content.index(b"\xff\xc0") + 5
    taller = content[:frame] + (height + 8).to_bytes(2, "big") + content[frame + 2 :]
    for some, expected_height in ((content, height), (taller, height + 8), (content, height)):
        heights, widths = seen.look(np.arange(1), [np.frombuffer(some, np.uint8)])
        assert (heights.item(), widths.item()) == (expected_height, width)


def test_of_other_files_than_jpegs_all_bytes_are_looked_at() -> None:
    """Two begin alike, end alike, and are of one length."""
    seen = Inspector(1, max_pixels=None, levels=Levels())
    for height, width in ((40, 50), (50, 40), (40, 50)):
        file = as_pnm(np.zeros((height, width, 3), np.uint8))
        heights, widths = seen.look(np.arange(1), [file])
        assert (heights.item(), widths.item()) == (height, width)


def picture_size(content: bytes) -> tuple[int, int]:
    width, height = as_pillow_opens(content).size
    return height, width
