"""A run is recorded once, and resumed from each of its states: what is served then must be the rest of the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

import torch

from dalirefurb import AutoAssist, Loader
from dalirefurb.planning.planner import Planner
from tests.engine.test_bit_identity import Batches, assert_same
from tests.in_turn import EACH_CHANGE

Resume = Callable[[], AbstractContextManager[Loader]]
"""Makes a loader, with a store of its own."""


@dataclass(frozen=True)
class Record:
    """What a run served.

    Attributes:
        states: As JSON, before each batch; one more after the last.
        batches: All of them.
    """

    states: list[str]
    batches: Batches


def losses_of(images: torch.Tensor) -> torch.Tensor:
    """Bright images are hard."""
    return images.mean(dim=(1, 2, 3)) + 3


def batches_of(loader: Loader, planner: Planner) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Train epoch after epoch, without end."""
    while True:
        for images, labels in loader:
            if isinstance(planner, AutoAssist):
                loader.observe(losses_of(images))
            yield images.clone(), labels.clone()


def record(loader: Loader, planner: Planner, *, epochs: int) -> Record:
    """Train, and ask for the state after each batch."""
    states, batches = [json.dumps(loader.state_dict())], []
    for batch in islice(batches_of(loader, planner), epochs * len(planner)):
        batches.append(batch)
        states.append(json.dumps(loader.state_dict()))
    return Record(states, batches)


def assert_resumes_everywhere(
    recorded: Record, planner: Planner, resume: Resume, *, cold_at: Iterable[int] | None = None
) -> None:
    """Resume from every state, each time with a new loader and store, and again and again with the same ones.

    After an epoch and a batch the state is the record's, from where another place goes on; a few serve the whole rest.
    Where each change is tested it is some of the states.

    Args:
        recorded: Run that is resumed.
        planner: Planner of the run.
        resume: Maker of loaders.
        cold_at: Places, counted in batches, to resume from with a new loader and store; by default all.
    """
    places = range(len(recorded.batches))
    to_the_end = {0, 1, len(planner)}
    for place in some(places if cold_at is None else cold_at):
        with resume() as cold:
            _assert_goes_on(cold, planner, recorded, place, len(places) if place in to_the_end else len(planner) + 1)
    with resume() as warm:
        for place in some(places):
            _assert_goes_on(warm, planner, recorded, place, len(planner) + 1)
        assert (warm.stats().hits > 0) == (planner.peak_slots > 0)


def some(places: Iterable[int]) -> list[int]:
    """Return all places; where each change is tested, of many of them four, which are those of other batches."""
    all_of = list(places)
    if not EACH_CHANGE:
        return all_of
    step = max(1, len(all_of) // 4)
    return all_of[:: step + 1 - step % 2]  # An odd step does not fall on the same batch of each epoch.


def _assert_goes_on(loader: Loader, planner: Planner, recorded: Record, place: int, count: int) -> None:
    """Load a state; serve so many batches that follow it, or all that there are."""
    for _ in range(2):
        loader.load_state_dict(json.loads(recorded.states[place]))
        assert json.dumps(loader.state_dict()) == recorded.states[place]
    expected = recorded.batches[place : place + count]
    assert_same(expected, list(islice(batches_of(loader, planner), len(expected))))
    assert json.dumps(loader.state_dict()) == recorded.states[place + len(expected)]
