"""The soak says what grows, and can tell a leak."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.test_benchmarks import BENCHMARKS, run

sys.path.append(str(BENCHMARKS))

import soak


def test_a_quick_soak_prints_and_writes_what_was_left_after_each_epoch_and_can_be_drawn(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    done = run("soak.py", "--quick", "--out", out)
    assert done.returncode == 0, done.stderr
    soaked = json.loads(out.read_text())["results"]["soaked"]
    assert [each["technique"] for each in soaked] == list(soak.QUICK.names or ())
    for each in soaked:
        assert each["technique"] in done.stdout
        for kind in ("resident_mb", "threads", "descriptors"):
            assert len(each[kind]) == soak.QUICK.epochs
            assert min(each[kind]) > 0
    drawn = run("plot.py", "--results", out)
    assert drawn.returncode == 0, drawn.stderr
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_every_technique_is_soaked_by_default() -> None:
    names = {technique.name for technique in soak.techniques(soak.Config())}
    assert {"standard", "AutoAssist", "SmartCache", "frozen", soak.ON_DISK, soak.IN_PART} < names
    planners = {type(technique.planner).__name__ for technique in soak.techniques(soak.Config())}
    assert planners == {"Standard", "Refurbish", "Echo", "BatchEcho", "SmartCache", "AutoAssist", "Frozen"}


@pytest.mark.parametrize(
    ("resident", "threads", "verdict"),
    [
        ([90.0, 100.0, 100.9, 99.0], [9, 9, 9, 9], "flat"),
        ([90.0, 100.0, 101.1, 99.0], [9, 9, 9, 9], "GROWS by more than 1%"),
        ([90.0, 100.0, 100.0, 99.0], [8, 9, 9, 10], "GROWS by more than 1%"),
    ],
)
def test_what_grows_after_the_second_epoch_by_more_than_a_hundredth_is_a_leak(
    resident: list[float], threads: list[int], verdict: str
) -> None:
    results = soak.Results([soak.Soaked("technique", resident, threads, [5, 5, 5, 5])])
    assert results.holds == (verdict == "flat")
    assert results.show().rstrip().endswith(verdict)
