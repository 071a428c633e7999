"""What all trainers' loaders share: states of ranks, jumps, makers."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
import torch

from dalirefurb import AutoAssist, Loader, MemoryStore, Prefetch, Standard, simple
from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.trainers.trainer_loader import TrainerLoader, check_maker, import_trainer, make_loader
from tests.trainers.streams import (
    BATCH_SIZE,
    EPOCHS,
    NUM_SAMPLES,
    assisted_loader,
    losses_of,
    plain_loop,
    refurbish,
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


def test_with_autoassist_a_state_has_those_of_all_ranks_and_each_goes_on_with_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = source(), simple(32, raw=True), AutoAssist(refurbish(shards=2), lag=8)
    states = []
    for rank in range(2):
        with Loader(*parts, prefetch=Prefetch(1), rank=(rank, 2, 1)) as loader:
            for images, _ in islice(loader, 2):
                loader.observe(losses_of(images))
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert states[0]["fingerprint"] != states[1]["fingerprint"]

    def gather(told: list[Any], own: Any) -> None:
        told[:] = [states[0], json.loads(json.dumps(own))]

    for name, answer in (("is_available", True), ("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    with Loader(*parts, prefetch=Prefetch(1), rank=(1, 2, 1)) as loader:
        held = TrainerLoader(loader)
        held.load_state_dict({"ranks": states})
        assert json.loads(json.dumps(loader.state_dict())) == states[1]
        assert held.state_dict() == {"ranks": states}
    plain = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE, shards=2)
    with Loader(*parts[:2], plain, prefetch=Prefetch(1), rank=(1, 2, 1)) as loader:
        assert TrainerLoader(loader).state_dict() == loader.state_dict(), "it is that of every rank"


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
