"""Does a batch that two pipelines share come out as if one had decoded it?"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dalirefurb.graph import GraphError
from dalirefurb.images import Images
from dalirefurb.kernels.decoding import Decoding


class Levels:
    """A runner that makes an image of each sample's first byte; 255 fails."""

    def __init__(self) -> None:
        self.running: deque[np.ndarray[Any, Any]] = deque()

    def submit(self, feeds: Mapping[str, Any]) -> None:
        self.running.append(np.array([sample[0] for sample in feeds["sample"]], np.uint8))

    def collect(self) -> Images:
        levels = self.running.popleft()
        for row in np.flatnonzero(levels == 255).tolist():
            raise GraphError(f"Failed to decode sample #{row}")
        return Images([np.full((2, 2, 3), level, np.uint8) for level in levels])

    def restart(self) -> None:
        self.running.clear()


def feeds(*levels: int) -> dict[str, Any]:
    return {"sample": [np.array([level], np.uint8) for level in levels]}


def levels(images: Images) -> list[int]:
    return [int(image[0, 0, 0]) for image in images]


@pytest.mark.parametrize("shares", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_images_come_in_order(shares: int, count: int) -> None:
    decoding = Decoding(Levels(), shares)
    decoding.submit(feeds(*range(count)))
    decoding.submit(feeds(*range(100, 100 + count)))
    assert levels(decoding.collect()) == list(range(count))
    assert levels(decoding.collect()) == list(range(100, 100 + count))


@pytest.mark.parametrize(
    ("nbytes", "expected"), [([1, 1, 1, 1], [2, 2]), ([6, 1, 2, 3], [1, 3]), ([1, 1, 1, 9], [3, 1]), ([1, 9], [1, 1])]
)
def test_each_pipeline_decodes_half_of_the_bytes(nbytes: list[int], expected: list[int]) -> None:
    runner = Levels()
    Decoding(runner, 2).submit({"sample": [np.zeros(size, np.uint8) for size in nbytes]})
    assert [len(rows) for rows in runner.running] == expected


@pytest.mark.parametrize("bad", [(0,), (4,), (1, 4)])
def test_a_batch_that_fails_names_its_first_row_and_does_not_disturb_the_next(bad: tuple[int, ...]) -> None:
    decoding = Decoding(Levels(), 2)
    decoding.submit(feeds(*(255 if row in bad else row for row in range(5))))
    decoding.submit(feeds(7, 8, 9))
    with pytest.raises(GraphError) as caught:
        decoding.collect()
    assert caught.value.row == bad[0]
    assert levels(decoding.collect()) == [7, 8, 9]
