"""Fixtures that tests of reading have in common."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

Odd = dict[Path, tuple[int, int] | None]
"""Odd files, each with its height and width, upright, as Pillow decodes it; None if it cannot, or opens no bombs."""

_SIZE = re.compile(r"ok (\w+) .*?(\d+)x(\d+)(?: orient=(\d))?")


@pytest.fixture(scope="module", autouse=True)
def _traced_once(traced_once: None) -> None:
    """What is read is in question, and not how the graph that decodes it is made."""


@pytest.fixture(params=["dali", "numba"])
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "numba":
        pytest.importorskip("numba")
    return str(request.param)


@pytest.fixture(scope="session")
def odd_files(shared_data: Path) -> Odd:
    files: Odd = {}
    with (shared_data / "odd" / "index.tsv").open() as index:
        for row in csv.DictReader(index, delimiter="\t"):
            files[shared_data / "odd" / row["file"]] = _upright(row["pillow"])
    assert len(files) == 125
    return files


def _upright(told: str) -> tuple[int, int] | None:
    """Read what Pillow says of a file: of a TIFF it tells the size that it has when it is turned."""
    found = _SIZE.match(told)
    if found is None:
        return None
    format_, width, height, orientation = found.groups()
    sides = int(height), int(width)
    return sides[::-1] if int(orientation or 1) > 4 and format_ != "TIFF" else sides
