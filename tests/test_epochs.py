"""Which epoch is served, whatever order a training loop or its framework calls the loader in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, AutoAssist, Loader, MemoryStore, Mix, Output, Prefetch, Recipe, Refurbish
from dalirefurb.engine.engine import Engine
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.planning.planner import Planner
from dalirefurb.trainers.timm import TimmLoader
from tests.in_turn import in_turn

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 8
NUM_SAMPLES = 11
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=2, seed=3)
SOURCE = Arrays(np.zeros((NUM_SAMPLES, SIZE, SIZE, 3), np.uint8), np.arange(NUM_SAMPLES))
PLACES = {
    tuple(plan.indices.tolist()): f"{epoch}.{batch}"
    for epoch in range(8)
    for batch, plan in enumerate(REFURBISH.epoch(epoch))
}
"""Each batch by its labels: epoch and number. An epoch has three."""


def make(planner: Planner = REFURBISH) -> Loader:
    return Loader(
        SOURCE,
        Recipe([], Output(SIZE), split=0),
        planner,
        MemoryStore(),
        prefetch=Prefetch(num_threads=1),
        kernels="dali",
    )


def state(loader: Loader, place: str) -> dict[str, Any]:
    epoch, batch = map(int, place.split("."))
    return {**loader.state_dict(), "epoch": epoch, "batch": batch}


def served(batch: tuple[Any, ...]) -> str:
    return PLACES[tuple(batch[1].tolist())]


def carry_out(loader: Loader, steps: str) -> list[str]:
    """Do what a training loop does, step by step; return each batch that it is served, and each end that it sees.

    iter            begin a pass                     set=2       set_epoch(2)
    next            take a batch of it               load=1.2    load a state of epoch 1, batch 2
    rest            take all that is left of it      epoch       a pass of its own, whole
    state           take the state                   leave       a pass of its own, one batch
    """
    seen: list[str] = []
    present: Iterator[Any] = iter(())
    for step in steps.split():
        name, _, value = step.partition("=")
        if name == "iter":
            present = iter(loader)
        elif name == "set":
            loader.set_epoch(int(value))
        elif name == "load":
            loader.load_state_dict(state(loader, value))
        elif name == "epoch":
            seen += [served(batch) for batch in loader]
        elif name == "leave":
            seen.append(next(served(batch) for batch in loader))
        elif name == "state":
            seen.append("at={epoch}.{batch}".format_map(loader.state_dict()))
        else:
            try:
                taken = [next(present)] if name == "next" else list(present)
            except LoaderError as error:
                seen.append("moved" if "must end before the loader is moved" in str(error) else str(error))
            else:
                seen += [served(batch) for batch in taken] or ["end"]
    return seen


SEQUENCES = [
    # A pass that has served nothing follows.
    ("iter set=0 rest", "0.0 0.1 0.2"),
    ("iter set=4 rest", "4.0 4.1 4.2"),
    ("iter load=2.1 rest", "2.1 2.2"),
    ("iter load=0.0 rest", "0.0 0.1 0.2"),
    ("iter set=4 set=2 rest epoch", "2.0 2.1 2.2 3.0 3.1 3.2"),
    ("iter load=2.1 set=4 rest", "4.0 4.1 4.2"),
    ("iter set=4 load=2.1 rest", "2.1 2.2"),
    ("epoch iter set=1 rest", "0.0 0.1 0.2 1.0 1.1 1.2"),
    ("epoch iter set=0 rest", "0.0 0.1 0.2 0.0 0.1 0.2"),
    ("leave iter set=0 rest", "0.0 0.0 0.1 0.2"),
    ("iter iter set=0 rest", "0.0 0.1 0.2"),
    # The epoch that is next anyway changes nothing.
    ("set=0 epoch set=1 epoch", "0.0 0.1 0.2 1.0 1.1 1.2"),
    ("leave set=1 epoch", "0.0 1.0 1.1 1.2"),
    ("iter next set=1 rest epoch", "0.0 0.1 0.2 1.0 1.1 1.2"),
    ("load=1.2 set=1 epoch epoch", "1.2 2.0 2.1 2.2"),
    ("load=1.2 iter set=1 rest epoch", "1.2 2.0 2.1 2.2"),
    ("iter load=1.2 set=1 rest epoch", "1.2 2.0 2.1 2.2"),
    ("load=1.1 leave set=2 epoch", "1.1 2.0 2.1 2.2"),
    ("load=1.1 iter set=1 next set=2 rest", "1.1 1.2"),
    # Another one does not.
    ("load=1.2 set=3 epoch", "3.0 3.1 3.2"),
    ("load=1.2 set=3 set=1 epoch", "1.0 1.1 1.2"),
    ("leave set=0 epoch", "0.0 0.0 0.1 0.2"),
    ("leave load=0.2 epoch epoch", "0.0 0.2 1.0 1.1 1.2"),
    # A pass that has begun raises, as often as it is asked; the next one is where it should be.
    ("iter next set=0 next rest epoch", "0.0 moved moved 0.0 0.1 0.2"),
    ("iter next set=4 rest epoch", "0.0 moved 4.0 4.1 4.2"),
    ("iter next load=2.1 rest epoch", "0.0 moved 2.1 2.2"),
    ("iter next load=0.1 next epoch", "0.0 moved 0.1 0.2"),
    ("load=1.1 iter next set=1 rest epoch", "1.1 moved 1.0 1.1 1.2"),
    ("iter next set=4 iter rest", "0.0 4.0 4.1 4.2"),
    ("iter next set=4 iter set=5 rest", "0.0 5.0 5.1 5.2"),
    # One that has ended stays so.
    ("iter next next next set=0 rest epoch", "0.0 0.1 0.2 end 0.0 0.1 0.2"),
    ("iter rest set=0 rest", "0.0 0.1 0.2 end"),
    ("iter rest load=0.1 rest epoch", "0.0 0.1 0.2 end 0.1 0.2"),
    ("iter rest rest epoch", "0.0 0.1 0.2 end 1.0 1.1 1.2"),
    ("load=0.2 iter next load=0.2 rest epoch", "0.2 end 0.2"),
    # The state is that of the next batch.
    ("iter state set=4 state next state", "at=0.0 at=4.0 4.0 at=4.1"),
    ("iter load=1.2 state set=1 state next state", "at=1.2 at=1.2 1.2 at=2.0"),
    ("iter next set=1 state rest state", "0.0 at=0.1 0.1 0.2 at=1.0"),
    ("iter next set=0 state next state", "0.0 at=0.0 moved at=0.0"),
    ("leave set=1 state iter state next state", "0.0 at=0.1 at=1.0 1.0 at=1.1"),
]


@pytest.mark.parametrize(("steps", "expected"), SEQUENCES, ids=[steps for steps, _ in SEQUENCES])
def test_every_order_of_calls_serves_the_epochs_that_it_says(steps: str, expected: str) -> None:
    with make() as loader:
        assert carry_out(loader, steps) == expected.split()


Train = Callable[[Loader, Any, range], Iterator[Any]]
"""Serves some epochs as a framework does, of a loader or of the DALI iterator in front of it."""


def like_pytorch(loader: Loader, batches: Any, epochs: range) -> Iterator[Any]:
    """Say which epoch it is, then begin the pass."""
    for epoch in epochs:
        loader.set_epoch(epoch)
        yield from batches


def like_lightning(loader: Loader, batches: Any, epochs: range) -> Iterator[Any]:
    """Begin the pass, then say which epoch it is, and take as many batches as there are."""
    for epoch in epochs:
        present = iter(batches)
        loader.set_epoch(epoch)
        yield from islice(present, len(loader) - loader.state_dict()["batch"])


def like_ignite(loader: Loader, batches: Any, epochs: range) -> Iterator[Any]:
    """Begin one pass beforehand, and another whenever one is found to have ended."""
    present = iter(batches)
    for epoch in epochs:
        loader.set_epoch(epoch)
        for _ in range(len(loader) - loader.state_dict()["batch"]):
            if (batch := next(present, None)) is None:
                present = iter(batches)
                batch = next(present)
            yield batch


TRAINERS = [like_pytorch, like_lightning, like_ignite]
EVERY = [f"{epoch}.{batch}" for epoch in range(2) for batch in range(3)]


def of_dali(batch: Any) -> str:
    return served((batch[0]["data"], batch[0]["label"]))


@pytest.mark.parametrize(("train", "front"), in_turn(TRAINERS, ["loader", "DALI's iterator"]))
def test_a_framework_that_sets_each_epoch_is_served_every_batch_and_its_states_resume(train: Train, front: str) -> None:
    def begin(loader: Loader, epochs: range) -> Iterator[str]:
        if front == "loader":
            return map(served, train(loader, loader, epochs))
        return map(of_dali, train(loader, loader.dali_iterator(), epochs))

    with make() as loader:
        seen, states = [], [loader.state_dict()]
        for place in begin(loader, range(2)):
            seen.append(place)
            states.append(loader.state_dict())
    assert seen == EVERY
    for number, saved in enumerate(states[:-1]):
        with make() as resumed:
            resumed.load_state_dict(saved)
            assert list(begin(resumed, range(saved["epoch"], 2))) == EVERY[number:]


def test_a_loader_with_an_assistant_follows_as_others_do_but_to_the_next_epoch_only() -> None:
    planner = AutoAssist(REFURBISH, lag=20)
    losses = np.ones(4)
    with make(planner) as loader:
        start = loader.state_dict()
        present = iter(loader)
        loader.set_epoch(0)
        first = [batch[1].tolist() for batch in present if loader.observe(losses) is None]
        assert len(first) == 3
        present = iter(loader)
        with pytest.raises(ConfigurationError, match="got 0 when 1 is next"):
            loader.set_epoch(0)
        loader.load_state_dict(start)
        loader.set_epoch(0)
        assert next(present)[1].tolist() == first[0]
        loader.observe(losses)
        loader.set_epoch(1)
        assert next(present)[1].tolist() == first[1]
        loader.observe(losses)
        loader.load_state_dict(start)
        with pytest.raises(LoaderError, match="must end before the loader is moved"):
            next(present)
        assert [batch[1].tolist() for batch in loader if loader.observe(losses) is None] == first


# ---- a loop that is left early


Look = Callable[[Any, int], BaseException | None]
"""Takes so many batches, and leaves the loop; returns what it was left by, which keeps the frames on its way."""


def by_break(batches: Any, count: int) -> None:
    for number, _ in enumerate(batches, 1):
        if number == count:
            break


def by_islice(batches: Any, count: int) -> None:
    assert len(list(islice(batches, count))) == count


def by_a_look(batches: Any, count: int) -> None:
    look = iter(batches)
    for _ in range(count):
        next(look)


def by_an_interrupt_of_the_step(batches: Any, count: int) -> BaseException | None:
    try:
        for number, _ in enumerate(batches, 1):
            if number == count:
                raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        return error
    return None


def by_an_error_of_the_step(batches: Any, count: int) -> BaseException | None:
    try:
        for number, _ in enumerate((batch for batch in batches), 1):
            assert number < count
    except AssertionError as error:
        return error
    return None


def while_a_batch_is_waited_for(by: type[BaseException]) -> Look:
    def leave(batches: Any, count: int) -> BaseException | None:
        take, taken = Engine.take, iter(range(count))

        def interrupted(engine: Engine) -> Any:
            if next(taken, None) is None:
                raise by("here")
            return take(engine)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "take", interrupted)
            try:
                for _ in batches:
                    pass
            except by as error:
                return error
        return None

    return leave


LEAVE: dict[str, Look] = {
    "break": by_break,
    "islice": by_islice,
    "a look": by_a_look,
    "an interrupt of the step": by_an_interrupt_of_the_step,
    "an error of the step": by_an_error_of_the_step,
    "an interrupt while a batch is waited for": while_a_batch_is_waited_for(KeyboardInterrupt),
    "an error where a batch is made": while_a_batch_is_waited_for(LoaderError),
}
FRONTS: dict[str, tuple[Callable[[Loader], Any], Callable[[Any], str]]] = {
    "the loader": (lambda loader: loader, served),
    "a view": (lambda loader: loader.map(lambda batch: batch), served),
    "mappings": (lambda loader: loader.as_dicts(), lambda batch: served(tuple(batch.values()))),
    "DALI's iterator": (lambda loader: loader.dali_iterator(), of_dali),
    "timm's": (
        lambda loader: TimmLoader(loader, mixup=Mix(NUM_SAMPLES, label_smoothing=0.1)),
        lambda batch: of_targets(batch),
    ),
}


def of_targets(batch: Any) -> str:
    return served((batch[0], batch[1].argmax(1)))


def left() -> Iterator[Any]:
    """Yield fronts and ways to leave a loop.

    Each way is tried in front of the loader, and in front of each other thing a way that closes its generator, one
    that keeps its frames, and one that raises inside of it; the rest weekly.
    """
    everywhere = {"break", "an error of the step", "an interrupt while a batch is waited for"}
    for front, left_by in product(FRONTS, LEAVE):
        chosen = front == "the loader" or left_by in everywhere
        yield pytest.param(front, left_by, marks=[] if chosen else pytest.mark.weekly)


@pytest.mark.parametrize(("front", "left_by"), list(left()))
def test_after_a_loop_that_was_left_text_epoch_and_the_next_loop_agree(front: str, left_by: str) -> None:
    of, place = FRONTS[front]
    with make() as loader:
        batches = of(loader)
        kept = LEAVE[left_by](batches, 2)
        assert loader.epoch == 1
        assert "next: batch 0 of epoch 1, or by resume() batch 2 of epoch 0;" in repr(loader)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 2)
        seen = []
        for epoch in range(loader.epoch, 3):
            assert loader.epoch == epoch
            seen += [f"{epoch} {place(batch)}" for batch in batches]
        assert seen == ["1 1.0", "1 1.1", "1 1.2", "2 2.0", "2 2.1", "2 2.2"]
        assert loader.epoch == 3
        assert "next: batch 0 of epoch 3;" in repr(loader)
        del kept


@pytest.mark.parametrize(("front", "left_by"), list(left()))
def test_resume_goes_on_where_a_loop_was_left_and_epochs_are_counted_from_there(front: str, left_by: str) -> None:
    of, place = FRONTS[front]
    with make() as loader:
        batches = of(loader)
        kept = LEAVE[left_by](batches, 2)
        if front == "DALI's iterator":
            loader.resume()
        else:
            assert batches.resume() is batches
        assert loader.epoch == 0
        assert "next: batch 2 of epoch 0;" in repr(loader)
        seen = [f"{epoch} {place(batch)}" for epoch in range(loader.epoch, 2) for batch in batches]
        assert seen == ["0 0.2", "1 1.0", "1 1.1", "1 1.2"]
        del kept


def test_resume_changes_nothing_where_no_loop_was_left_and_may_be_called_twice() -> None:
    with make() as loader:
        assert carry_out(loader.resume(), "epoch leave") == ["0.0", "0.1", "0.2", "1.0"]
        assert [served(batch) for batch in loader.resume().resume()] == ["1.1", "1.2"]
        assert [served(batch) for batch in loader.resume()] == ["2.0", "2.1", "2.2"]


def test_within_a_loop_the_epoch_is_that_of_its_next_batch_also_where_an_error_was_caught() -> None:
    with make() as loader:
        assert loader.epoch == 0
        batches = iter(loader)
        for expected in (0, 0, 1):
            next(batches)
            assert loader.epoch == expected
        batches = iter(loader)
        next(batches)
        while_a_batch_is_waited_for(LoaderError)(batches, 0)
        assert loader.epoch == 2
        next(batches)
        assert loader.epoch == 1
        assert "next: batch 2 of epoch 1;" in repr(loader)


def test_another_thread_that_asks_while_a_batch_is_waited_for_is_told_the_present_epoch() -> None:
    with make() as loader:
        take, told = Engine.take, []

        def asked(engine: Engine) -> Any:
            thread = Thread(target=lambda: told.append(loader.epoch))
            thread.start()
            thread.join()
            return take(engine)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "take", asked)
            list(loader)
        assert told == [0, 0, 0]


def test_an_assisted_loop_that_was_interrupted_in_its_step_goes_on_once_the_losses_are_observed() -> None:
    with make(AutoAssist(REFURBISH, lag=20)) as loader:
        ((first, _),) = islice(loader, 1)
        for go_on in (loader.resume, lambda: next(iter(loader))):
            with pytest.raises(LoaderError, match=r"call loader.observe\(losses\) after each batch, .*interrupted"):
                go_on()
        loader.observe(torch.ones(len(first), dtype=torch.bfloat16, requires_grad=True))
        assert loader.resume().epoch == 0
