"""What batch groups compute is found by others, and only while they are on their way."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb.engine.in_flight import InFlightImages, InFlightVersions, part_repeats

PAIRS = st.tuples(st.integers(-2, 6), st.integers(0, 2))


def keys(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


@given(pairs=st.lists(PAIRS, max_size=12))
@example(pairs=[(4, 1), (7, 1), (4, 0), (4, 1), (7, 0), (4, 0)])
def test_repeats_are_told_from_the_first_of_each(pairs: list[tuple[int, int]]) -> None:
    first, repeats, places = part_repeats(*keys(pairs))
    assert first.tolist() == [row for row, pair in enumerate(pairs) if pair not in pairs[:row]]
    assert repeats.tolist() == [row for row, pair in enumerate(pairs) if pair in pairs[:row]]
    assert [pairs[first[place]] for place in places.tolist()] == [pairs[row] for row in repeats.tolist()]


@given(
    steps=st.lists(st.one_of(st.lists(PAIRS, unique=True, max_size=6), st.integers(0, 9)), min_size=1, max_size=20),
    asked=st.lists(PAIRS, max_size=12),
)
@example(steps=[[(0, 0)], [], 1], asked=[(0, 0)])  # a group that computes nothing ends beside another
def test_it_answers_as_a_dictionary_does(
    steps: list[list[tuple[int, int]] | int], asked: list[tuple[int, int]]
) -> None:
    """A list of pairs is a group that begins; a number, that the group at this place among those on their way ends."""
    in_flight = InFlightVersions()
    groups: list[tuple[InFlightImages, list[tuple[int, int]]]] = []
    expected: dict[tuple[int, int], tuple[InFlightImages, int]] = {}
    for step in steps:
        if isinstance(step, list):
            new = [pair for pair in step if pair not in expected]
            images = in_flight.add(*keys(new))
            groups.append((images, new))
            expected |= {pair: (images, place) for place, pair in enumerate(new)}
        elif step < len(groups):
            images, gone = groups.pop(step)
            in_flight.remove(images)
            in_flight.remove(images)
            for pair in gone:
                del expected[pair]
        shared = in_flight.find(*keys(asked))
        found = {
            row: (images, place)
            for rows, images, places in shared
            for row, place in zip(rows.tolist(), places.tolist(), strict=True)
        }
        assert found == {row: expected[pair] for row, pair in enumerate(asked) if pair in expected}
        assert sum(len(rows) for rows, _, _ in shared) == len(found)
    for images, _ in groups:
        in_flight.remove(images)
    assert in_flight.find(*keys(asked)) == []


def test_what_ended_gives_its_slots_to_what_begins() -> None:
    in_flight = InFlightVersions()
    for number in range(5):
        images = in_flight.add(*keys([(number, 0), (number, 1)]))
        assert sorted(images.slots.tolist()) == [0, 1]
        in_flight.remove(images)
