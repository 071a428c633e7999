"""A keep can be filled, looked at, verified and deleted from outside, also while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dalirefurb import Arrays, ImageFolder, Kept
from dalirefurb.cli import main, maintenance
from dalirefurb.errors import SampleError, StoreError
from dalirefurb.keep import upkeep
from dalirefurb.keep.record import RECORD
from tests.pictures import write_folder

COUNT = 7


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", num_samples=COUNT)


def test_the_command_line_fills_looks_at_verifies_and_deletes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, told = tmp_path / "keep", []
    waiting = maintenance.waiting
    monkeypatch.setattr(maintenance, "waiting", lambda *given: (told.append(given), waiting(*given))[1])
    assert main(["keep", str(photos), str(keep)]) == 0
    assert [what for what, *_ in told] == [f"reading {photos}", "keeping"]
    assert told[1][1]() == ": 7 of 7"
    said = capsys.readouterr().out
    assert f"{keep} has 7 of 7 samples" in said
    assert f"source = Kept(ImageFolder({str(photos)!r}), {str(keep)!r}, form='decoded')" in said
    assert main(["cache", "inspect", str(keep)]) == 0
    said = capsys.readouterr().out
    assert "kept         7 of 7 samples, decoded\n" in said
    assert '"source": "ImageFolder"' in said
    assert main(["cache", "verify", str(keep)]) == 0
    assert capsys.readouterr().out == f"{keep} is intact: 7 samples\n"
    data = np.memmap(keep / "data", np.uint8, "r+")
    data[100] ^= 255
    data.flush()
    assert main(["cache", "verify", str(keep)]) == 1
    assert "6 intact, 1 damaged, the first is sample " in capsys.readouterr().out
    assert main(["cache", "purge", str(keep)]) == 0
    assert "is deleted: " in capsys.readouterr().out
    assert not keep.exists()
    assert main(["cache", "purge", str(keep)]) == 2


def test_room_is_as_the_command_line_says(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keep", str(photos), str(tmp_path / "keep"), "--size", "6.4KB", "--form", "encoded"]) == 0
    found = upkeep.inspect(tmp_path / "keep")
    assert 0 < found.kept < COUNT
    assert found.nbytes <= 6_000
    said = capsys.readouterr().out
    assert f"has {found.kept} of 7 samples" in said
    assert said.endswith(f"{str(tmp_path / 'keep')!r}, form='encoded')\n")
    assert main(["keep", str(photos), str(tmp_path / "other"), "--size", "much"]) == 2


def test_of_a_keep_of_some_samples_these_are_counted_and_named(photos: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    Kept(ImageFolder(photos), keep).images(np.array([1, 4, 6]))
    records = np.memmap(keep / "records", RECORD, "r+")
    data = np.memmap(keep / "data", np.uint8, "r+")
    data[int(records["start"][4])] ^= 1
    assert upkeep.verify(keep) == (2, [4])
    records["digest"][6] ^= 1
    records.flush()
    found = upkeep.inspect(keep)
    assert (found.num_samples, found.kept, found.nbytes) == (COUNT, 2, int(records["nbytes"][[1, 4]].sum()))
    assert upkeep.verify(keep) == (1, [4])


def test_what_else_lies_in_the_folder_is_left_alone(photos: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    Kept(ImageFolder(photos), keep).fill()
    (keep / "letter.txt").write_text("mine")
    assert upkeep.inspect(keep).nbytes == upkeep.purge(keep) > 10_000
    assert [path.name for path in keep.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("form", ["decoded", "encoded"])
def test_a_file_that_is_gone_does_not_keep_others_from_it(form: Any, photos: Path, tmp_path: Path) -> None:
    source = ImageFolder(photos)
    Path(source.name(2)).unlink()
    assert Kept(source, tmp_path / "keep", form=form).fill() == COUNT - 1


def test_broken_files_are_not_kept_and_do_not_keep_others_from_it(photos: Path, tmp_path: Path) -> None:
    source = ImageFolder(photos)
    Path(source.name(2)).write_bytes(b"no image")
    done: list[int] = []
    assert Kept(source, tmp_path / "keep").fill(told=done.append) == COUNT - 1
    assert done == [COUNT]


def test_of_many_samples_it_is_told_how_far_it_is(tmp_path: Path) -> None:
    done: list[int] = []
    source = Arrays(np.zeros((130, 2, 2, 3), np.uint8), np.arange(130))
    assert Kept(source, tmp_path).fill(told=done.append) == 130
    assert sorted(done) == [43, 86, 130]


def test_what_a_source_fails_to_read_is_nobodys_claim(photos: Path, tmp_path: Path) -> None:
    source = ImageFolder(photos)
    Path(source.name(2)).unlink()
    kept = Kept(source, tmp_path / "keep", form="encoded")
    with pytest.raises(SampleError):
        kept.read(np.array([1, 2]))
    (other,) = Kept(source, tmp_path / "keep", form="encoded")._folders()
    assert other.claim([1, 2]) == [1, 2]


@pytest.mark.parametrize("content", ["[]", '"keep"', '{"stamps": 3}'])
def test_a_description_that_is_none_is_told_of_where_a_keep_is_opened_and_looked_at(
    content: str, photos: Path, tmp_path: Path
) -> None:
    source, keep = ImageFolder(photos), tmp_path / "keep"
    Kept(source, keep)
    (keep / "keep.json").write_text(content)
    with pytest.raises(StoreError, match=r"is damaged: pass another folder, or delete keep\.json, room,"):
        Kept(source, keep)
    with pytest.raises(StoreError, match=r"there must be a keep at .*, but it cannot be read"):
        upkeep.inspect(keep)


def test_a_keep_without_data_is_told_of_where_it_is_verified_and_filled_anew(photos: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    Kept(ImageFolder(photos), keep).fill()
    (keep / "data").unlink()
    with pytest.raises(StoreError, match=r"there must be a keep at .*, but it cannot be read .*data"):
        upkeep.verify(keep)
    Kept(ImageFolder(photos), keep).fill()
    assert upkeep.verify(keep) == (COUNT, [])
