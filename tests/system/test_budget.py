"""Budgets: which texts are amounts of bytes, and which are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dalirefurb.errors import ConfigurationError
from dalirefurb.system import resources
from dalirefurb.system.resources import (
    Budget,
    amount,
    available_bytes,
    budget_bytes,
    bytes_on_disk,
    checked_budget,
    promise_to,
)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0, 0),
        (np.int64(7), 7),
        ("12B", 12),
        ("16GB", 16 * 10**9),
        ("2.01GB", 2_010_000_000),
        (" 1.5 TB ", 1_500_000_000_000),
        ("500MiB", 500 * 2**20),
        ("1 KiB", 1024),
        ("60%", 600),
        ("12.5 %", 125),
        ("33.39%", 333),
        ("100%", 1000),
    ],
)
def test_a_budget_is_a_number_of_bytes_or_a_number_and_a_unit(budget: Budget, expected: int) -> None:
    value = budget_bytes(budget, available=lambda: 1000)
    assert (type(value), value) == (int, expected)


def test_a_share_is_of_the_memory_at_hand_unless_told_otherwise() -> None:
    available = available_bytes()
    assert available is not None
    assert 0.4 * available < budget_bytes("50%") < 0.6 * available


@pytest.mark.parametrize(
    "budget", ["", "16", "GB", "16gb", "-1GB", "1e3GB", "101%", "1,5GB", "16GB 2MB", -1, True, 0.5]
)
def test_what_is_no_budget_is_refused_with_examples(budget: Budget) -> None:
    with pytest.raises(ConfigurationError, match=r"'16GB', '500MiB' or '60%', got .*: write a number and one of %, B"):
        budget_bytes(budget)


def test_a_share_of_what_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"a budget of '60%' must be a share of a known .*: pass bytes"):
        budget_bytes("60%", available=lambda: None)


def test_what_a_disk_has_room_for_is_of_the_folder_itself_or_of_a_files_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may be where another disk begins."""
    asked: list[Path] = []
    usage = SimpleNamespace(disk_usage=lambda path: asked.append(Path(path)) or SimpleNamespace(free=100))
    monkeypatch.setattr("dalirefurb.system.resources.shutil", usage)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(bytes(7))
    for path, expected in ((tmp_path / "file", 107), ("file", 107), (tmp_path / "new", 100), (tmp_path, 100)):
        assert bytes_on_disk(path) == expected
    assert asked == [tmp_path] * 4


def test_of_a_disk_that_cannot_be_asked_nothing_is_told(tmp_path: Path) -> None:
    assert bytes_on_disk(tmp_path / "none" / "file") is None
    with pytest.raises(ConfigurationError, match="a path must be that of a file or a folder, got ''"):
        bytes_on_disk("")


class Taking:
    """What is going to take so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self.untouched_bytes = nbytes


def test_what_this_process_is_going_to_take_is_of_its_own_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine that is described, as in tests, nobody here takes anything."""
    monkeypatch.setattr(resources, "_takers", type(resources._takers)())
    monkeypatch.setattr(resources, "_machine", lambda root: [1000])
    monkeypatch.setattr(resources, "_groups", lambda root: [1001])
    monkeypatch.setattr(resources, "local_processes", lambda: 2)
    takers = [Taking(60), Taking(40)]
    for taker in takers:
        promise_to(taker)
    assert (available_bytes(), available_bytes(tmp_path)) == (400, 500)
    takers[0].untouched_bytes = 450
    assert available_bytes() == 10
    takers[1].untouched_bytes = 51
    assert available_bytes() == 0
    del taker, takers
    assert available_bytes() == 500


def test_to_check_a_budget_nobody_asks_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks may have to be waited for, who ask when they make a loader."""

    def asked() -> int:
        raise AssertionError

    monkeypatch.setattr(resources, "local_processes", asked)
    assert [*map(checked_budget, (None, 0, 7, "60%"))] == [None, 0, 7, "60%"]
    with pytest.raises(ConfigurationError, match="a budget must be bytes"):
        checked_budget("lots")


@pytest.mark.parametrize(
    ("nbytes", "written"),
    [
        (0, "0 B"),
        (999_999, "1000.00 KB"),
        (10**6, "1.00 MB"),
        (10**9 - 1, "1000.00 MB"),
        (10**9, "1.00 GB"),
        (10**12, "1.00 TB"),
        (2.5e15, "2500.00 TB"),
    ],
)
def test_an_amount_is_written_in_the_largest_unit_that_it_has(nbytes: float, written: str) -> None:
    assert amount(nbytes) == written
