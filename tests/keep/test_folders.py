"""Several disks are as one folder; each sample is in one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dalirefurb import Arrays, ImageFolder, Kept
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.keep.upkeep import inspect
from tests.keep.test_kept import ALL, NUM_SAMPLES, Counted, assert_same, served
from tests.keep.test_prefix import CROPPED, photos
from tests.pictures import write_folder

__all__ = ["photos"]

pytestmark = pytest.mark.usefixtures("traced_once")


def disks(path: Path) -> list[Path]:
    return [path / "a", path / "b", path / "c"]


FORMS = ["encoded", "decoded", "planes", CROPPED.stages[:2]]


@pytest.mark.parametrize("form", FORMS, ids=["encoded", "decoded", "planes", "prefix"])
def test_each_sample_is_read_once_and_is_on_one_disk(form: Any, photos: ImageFolder, tmp_path: Path) -> None:
    source = Counted(photos)
    for _ in range(2):
        assert_same(served(Kept(source, disks(tmp_path), form=form), CROPPED), served(photos, CROPPED))
    assert sorted(source.asked) == ALL.tolist()
    found = [inspect(path).kept for path in disks(tmp_path)]
    assert sum(found) == NUM_SAMPLES
    assert min(found) >= 3


@pytest.mark.parametrize("form", FORMS, ids=["encoded", "decoded", "planes", "prefix"])
def test_a_file_that_is_missing_leaves_those_beside_it_to_be_kept(form: Any, tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path / "photos", num_samples=9))
    Path(source.name(4)).unlink()
    kept, told = Kept(source, tmp_path / "keep", form=form), list[int]()
    assert (kept.fill(told=told.append), told) == (8, [9])
    assert inspect(tmp_path / "keep").kept == 8


def test_samples_are_where_keeps_of_before_have_them(tmp_path: Path) -> None:
    kept = Kept(Arrays(np.zeros((12, 4, 4, 3), np.uint8), np.arange(12)), disks(tmp_path))
    assert kept.fill() == 12
    found = [np.flatnonzero(folder.kept(np.arange(12))).tolist() for folder in kept._folders()]
    assert found == [[0, 1, 3], [10], [2, 4, 5, 6, 7, 8, 9, 11]]


def test_a_folder_says_what_those_of_before_say_and_which_part_it_is_of_several(
    photos: ImageFolder, tmp_path: Path
) -> None:
    Kept(photos, disks(tmp_path))
    Kept(photos, tmp_path / "alone")
    Kept(photos, tmp_path / "files", form="encoded")
    of_several, alone, files = (
        json.loads((tmp_path / name / "keep.json").read_text()) for name in ("b", "alone", "files")
    )
    assert list(files) == ["format", "num_samples", "source", "form", "stamps"]
    assert list(alone) == ["format", "num_samples", "source", "form", "versions", "value_range", "stamps"]
    assert list(alone["versions"]) == ["dali", "nvimgcodec", "pillow"]
    assert len(alone["stamps"]) == 16
    assert of_several == alone | {"part": [1, 3]}


@pytest.mark.parametrize("form", ["encoded", "decoded"])
def test_a_disk_that_is_full_leaves_the_others_their_room(form: Any, photos: ImageFolder, tmp_path: Path) -> None:
    one = Kept(photos, disks(tmp_path), form=form, size=0)
    assert_same(served(one, CROPPED), served(photos, CROPPED))
    kept = Kept(photos, disks(tmp_path), form=form)
    kept._folders()[0].full = True
    count = kept.fill()
    assert inspect(disks(tmp_path)[0]).kept == 0
    assert count == sum(inspect(path).kept for path in disks(tmp_path)[1:]) > 10
    source = Counted(photos)
    again = Kept(source, disks(tmp_path), form=form)
    again._folders()[0].full = True
    assert_same(served(again, CROPPED), served(photos, CROPPED))
    assert len(set(source.asked)) == NUM_SAMPLES - count


def test_other_folders_in_their_place_are_refused(photos: ImageFolder, tmp_path: Path) -> None:
    Kept(photos, disks(tmp_path))
    with pytest.raises(StoreError, match=r"holds another: part\[0\] 2, not 0"):
        Kept(photos, disks(tmp_path)[::-1])
    with pytest.raises(StoreError, match=r"holds another: part\[1\] 3, not 2"):
        Kept(photos, disks(tmp_path)[:2])
    with pytest.raises(StoreError, match="holds another: part"):
        Kept(photos, disks(tmp_path)[0])
    with pytest.raises(ConfigurationError, match=r"must be the path of a folder, got \[\]: .* or several in a list"):
        Kept(photos, [])
    assert repr(Kept(photos, disks(tmp_path))).endswith(f"{[*map(str, disks(tmp_path))]}, form='decoded')")
    assert np.prod([inspect(path).num_samples for path in disks(tmp_path)]) == NUM_SAMPLES**3
