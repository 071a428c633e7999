"""What all trainers' loaders share: states of ranks, jumps, makers."""

from __future__ import annotations

import json

import pytest

from dalirefurb import MemoryStore, Standard, simple
from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.trainers.trainer_loader import TrainerLoader, check_maker, import_trainer, make_loader
from tests.trainers.streams import (
    BATCH_SIZE,
    EPOCHS,
    NUM_SAMPLES,
    assisted_loader,
    losses_of,
    plain_loop,
    source,
    step_of,
    training_loader,
)

BATCHES = -(-NUM_SAMPLES // BATCH_SIZE)


def test_a_jump_leads_to_any_batch_and_past_an_epochs_last_one_to_the_next_epoch() -> None:
    with training_loader() as loader:
        expected, held = plain_loop(loader), TrainerLoader(loader)
        for step in reversed(range(len(expected))):
            epoch, batch = divmod(step, BATCHES)
            held.seek(epoch, batch)
            assert step_of(*next(iter(loader))) == expected[step]
            if batch == 0 and epoch > 0:
                held.seek(epoch - 1, BATCHES)
                assert step_of(*next(iter(loader))) == expected[step]
        before = loader.stats().batches
        held.seek(EPOCHS - 1, 1)
        assert loader.stats().batches == before


def test_an_epoch_is_left_only_if_some_of_it_was_served() -> None:
    with training_loader() as loader:
        held = TrainerLoader(loader)
        held.leave_epoch()
        assert loader.state_dict()["epoch"] == 0
        next(iter(loader))
        held.leave_epoch()
        held.leave_epoch()
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)


def test_an_assistant_cannot_jump_but_stays_where_it_is() -> None:
    with assisted_loader() as loader:
        held = TrainerLoader(loader)
        for images, _ in loader:
            loader.observe(losses_of(images))
            break
        held.seek(0, 1)
        with pytest.raises(ConfigurationError, match="got batch 3 of epoch 0 when batch 1 of epoch 0 is next"):
            held.seek(0, 3)


def test_states_of_ranks_are_refused_by_another_number_of_them_and_a_loaders_own_is_taken() -> None:
    with assisted_loader() as loader:
        held = TrainerLoader(loader)
        state = json.loads(json.dumps(held.state_dict()))
        assert state == loader.state_dict()
        held.load_state_dict(state)
        with pytest.raises(StateMismatchError, match=r"as many ranks as saved it, which were 2, got 1: train on"):
            held.load_state_dict({"ranks": [state, state]})
        assert len(held) == BATCHES


def test_a_trainer_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(ImportError, match=r"not_there\.part must be installed .*: pip install not-there"):
        import_trainer("not_there.part", "nor_this", install="not-there")
    assert import_trainer("not_there", "json", install="json") is json


def test_loaders_are_made_of_functions_and_of_parts_with_a_store_or_what_makes_one() -> None:
    planner = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE)
    with make_loader(training_loader) as loader:
        assert loader.batch_size == BATCH_SIZE
    for stores in ((), (MemoryStore(),), (MemoryStore,), (lambda: MemoryStore(max_bytes=2**20),)):
        with make_loader((source(), simple(32, raw=True), planner, *stores)) as loader:
            assert loader.planner is planner
    with pytest.raises(ConfigurationError, match=r"must return a dalirefurb\.Loader, got list: return Loader"):
        make_loader(list)
    parts = (source(), simple(32, raw=True), planner)
    for wrong in (3, parts[:2], (*parts, MemoryStore, MemoryStore), None):
        with pytest.raises(ConfigurationError, match="val must be a function that makes a Loader, or"):
            check_maker("val", wrong)
