"""Fixtures that tests of reading have in common."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

Odd = dict[Path, tuple[tuple[int, int] | None, bool]]
"""Odd files, each with the height and the width that DALI decodes it to, if it does, and whether Pillow does."""


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
            able, _, shape = row["dali_cpu_rgb"].partition("(")
            height, width = shape.removesuffix(", 3)").split(", ") if able == "ok " else (0, 0)
            size = (int(height), int(width)) if able == "ok " else None
            files[shared_data / "odd" / row["file"]] = size, row["pillow"].startswith("ok")
    assert len(files) == 125
    return files
