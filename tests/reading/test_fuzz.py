"""Broken files end no process and harm no good image; and the fuzzer would tell if they did. See fuzz."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import MIXED, ROUND, Epoch, Fuzzer, Outcome, broken_name, compared
from tests.mutations import FORMATS, mutation, notorious, originals

MUTATIONS = int(os.environ.get("DALIREFURB_FUZZ", 2 * ROUND))
"""Two rounds: windows by compiled kernels, whole images by DALI's; those that are notorious are in them, too."""


def test_broken_files_end_no_process_and_harm_no_good_image(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    report = Fuzzer(MIXED, seed=0, found=tmp_path).run(MUTATIONS)
    assert (report.died, report.hung, report.wrong) == ([], [], [])
    assert report.broken == report.served + report.named == MUTATIONS
    assert min(report.served, report.named) > MUTATIONS // 8
    assert report.good > MUTATIONS


# The mutations


@pytest.mark.parametrize("format_", FORMATS)
def test_a_mutation_depends_on_seed_format_and_number_alone(format_: str) -> None:
    files = [mutation(5, format_, number) for number in range(40)]
    assert files == [mutation(5, format_, number) for number in reversed(range(40))][::-1]
    assert len({*files, *(mutation(6, format_, number) for number in range(40))}) > 70
    assert sum(file in originals(format_) for file in files) < 8


def test_two_rounds_have_all_formats_and_all_that_are_notorious() -> None:
    names = [broken_name(MIXED, 0, number) for number in range(2 * ROUND)]
    assert set(notorious()) <= set(names)
    assert {name.split("-")[0] for name in names} >= set(FORMATS)


# Would it tell?

SERVES = """
import json, os, signal, sys, time
first, count = map(int, sys.argv[-2:])
while count:
    some = min({round} - first % {round}, count)
    if first <= 177 < first + some:
        {trouble}
    print(json.dumps({{"broken": some}}), flush=True)
    first, count = first + some, count - some
"""


def fuzzer(trouble: str, found: Path, silent_s: float = 600) -> Fuzzer:
    program = SERVES.format(round=ROUND, trouble=trouble)
    return Fuzzer("JPEG", seed=0, found=found, silent_s=silent_s, command=(sys.executable, "-c", program))


def test_a_file_that_a_process_dies_of_is_found_and_the_rest_is_served(tmp_path: Path) -> None:
    report = fuzzer("os.kill(os.getpid(), signal.SIGSEGV)", tmp_path).run(3 * ROUND)
    assert report.died == ["JPEG-0-177 (exit code -11)"]
    assert (tmp_path / "JPEG-0-177").read_bytes() == mutation(0, "JPEG", 177)
    assert report.broken == 3 * ROUND
    assert not report.clean


def test_what_is_raised_is_told(tmp_path: Path) -> None:
    assert fuzzer("raise KeyError('lost')", tmp_path).run(2 * ROUND).died == [
        "JPEG-0-177 (exit code 1: KeyError: 'lost')"
    ]


@pytest.mark.weekly
def test_a_process_that_is_silent_hangs(tmp_path: Path) -> None:
    report = fuzzer("time.sleep(9999)", tmp_path, silent_s=10).run(2 * ROUND)
    assert report.hung == [f"JPEG-0-{ROUND} or {ROUND - 1} that follow"]
    assert report.broken == 2 * ROUND


NAMES = ["good 0", "broken 1", "good 2"]
ROWS = np.array([1])
IMAGES = np.arange(3 * 3 * 2 * 2, dtype=np.float32).reshape(3, 3, 2, 2)
PLAN = np.array([2, 1, 0])
ALL = Epoch(PLAN, PLAN, IMAGES)


def found(epochs: list[Epoch], reasons: dict[int, str], *, alike: bool = True) -> Outcome:
    return compared(epochs, [ALL] * len(epochs), reasons, rows=ROWS, names=NAMES, alike=alike)


def changed(row: int) -> Epoch:
    images = IMAGES.copy()
    images[row] += 1
    return replace(ALL, images=images)


def test_what_is_as_it_should_be_is_counted() -> None:
    replaced = replace(ALL, shown=np.array([2, 0, 0]), images=IMAGES[[0, 2, 2]])
    assert found([ALL, ALL], {}) == Outcome(broken=1, served=1, good=4)
    assert found([replaced], {1: "cut"}) == Outcome(broken=1, named=1, good=3)
    assert found([replaced], {1: "cut"}, alike=False) == Outcome(broken=1, named=1, good=2)
    assert found([changed(1)], {}) == Outcome(broken=1, served=1, good=2)


def test_what_is_wrong_is_told() -> None:
    assert found([changed(2)], {}).wrong == ["good 0, a good image, is wrong in epoch 0, row 2"]
    assert found([changed(2)], {}, alike=False).wrong == ["good 0, a good image, is wrong in epoch 0, row 2"]
    assert found([ALL, changed(1)], {}).wrong == ["broken 1 is served otherwise in epoch 1"]
    replaced = replace(ALL, shown=np.array([2, 0, 0]), images=IMAGES[[0, 2, 2]])
    assert found([replaced], {}).wrong == ["broken 1 is neither served nor named in epoch 0"]
    assert found([ALL], {2: "cut"}).wrong == ["good 2, a good file, is named: cut"]
