"""How many batches run together by default."""

from __future__ import annotations

import pytest

from dalirefurb import Standard
from dalirefurb.pace import set_pace


def batches_per_run(num_batches: int, batch_size: int, given: int | None = None) -> int:
    planner = Standard(num_batches * batch_size, batch_size=batch_size)
    return set_pace(planner, num_threads=2, replicas=None, look_ahead=None, batches_per_run=given).batches_per_run


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(1, 256), (64, 4), (85, 3), (86, 2), (128, 2), (129, 1), (256, 1), (1024, 1)]
)
def test_of_a_long_epoch_as_many_batches_run_together_as_fit_into_256_rows(batch_size: int, expected: int) -> None:
    assert batches_per_run(2000, batch_size) == expected


@pytest.mark.parametrize(("num_batches", "expected"), [(1, 1), (3, 1), (7, 1), (8, 2), (15, 3), (16, 4), (17, 4)])
def test_no_more_than_a_quarter_of_a_short_epoch_runs_together(num_batches: int, expected: int) -> None:
    assert batches_per_run(num_batches, 64) == expected


def test_as_many_batches_run_together_as_the_user_says() -> None:
    assert batches_per_run(8, 64, given=5) == 5
