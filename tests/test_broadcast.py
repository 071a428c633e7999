"""Several trainings take the batches of one loader: each gets what one of its own would serve, whatever others do."""

from __future__ import annotations

import copy
import errno
import gc
import json
import math
import os
import pickle
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    Attached,
    AutoAssist,
    BadSamplePolicy,
    Broadcast,
    Evaluate,
    ImageFolder,
    Loader,
    MemoryStore,
    Recipe,
    Refurbish,
    Standard,
    evaluate,
    rand_augment,
    simple,
)
from dalirefurb.broadcast import server, wire
from dalirefurb.broadcast.window import Made, Training, Window
from dalirefurb.engine.batch_group import Position
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError, SampleError, StateMismatchError
from dalirefurb.system.resources import promised_bytes
from tests.broadcast_training import digest
from tests.endings import nothing_left, wait_for_threads
from tests.faults import limited
from tests.in_turn import in_turn
from tests.pictures import write_folder

pytestmark = pytest.mark.usefixtures("traced_once")

ROOT = Path(__file__).resolve().parents[1]
SIZE, NUM_SAMPLES, BATCH_SIZE = 32, 23, 6
PLANNER = Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=2, seed=3)
BATCHES = len(PLANNER)
EPOCHS = 4
LIMIT_S = 600
NAME = f"test-{os.getpid()}"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), num_samples=NUM_SAMPLES))


def make(source: ImageFolder, **settings: Any) -> Loader:
    return Loader(source, rand_augment(SIZE), PLANNER, MemoryStore(), with_indices=True, **settings)


@pytest.fixture(scope="module")
def stream(source: ImageFolder) -> list[str]:
    """Digests of what a loader of one's own serves."""
    with make(source) as loader:
        return [digest(batch) for _ in range(EPOCHS) for batch in loader]


@contextmanager
def broadcast(source: ImageFolder, **settings: Any) -> Iterator[Broadcast]:
    with limited(), make(source) as loader, Broadcast(loader, NAME, **settings) as made:
        yield made
    wait_for_threads()


class Process:
    """A training in another process; see `broadcast_training`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.broadcast_training"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def ask(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def told(self) -> Any:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert "raised" not in answer, answer
        return answer["returned"]

    def raised(self) -> tuple[str, str]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        return answer["raised"], answer["message"]

    def do(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.told()

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for each in processes:
        each.end()


@pytest.fixture
def trainings(pool: list[Process]) -> Iterator[Callable[[int], list[Process]]]:
    """Start so many processes, or take those that there are; those that were killed are replaced."""

    def started(count: int) -> list[Process]:
        for each in [each for each in pool if each.process.poll() is not None]:
            each.end()
            pool.remove(each)
        pool.extend(Process() for _ in range(count - len(pool)))
        return pool[:count]

    yield started
    for each in pool:
        if each.process.poll() is None:
            each.do("close")


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait, for long on a busy machine."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


Started = Callable[[int], list[Process]]


def attach(processes: list[Process]) -> None:
    for each in processes:
        each.ask("attach", NAME)
    assert [each.told() for each in processes] == [0] * len(processes)


def test_each_gets_the_stream_of_a_loader_of_its_own(
    source: ImageFolder, stream: list[str], trainings: Started
) -> None:
    processes = trainings(3)
    with broadcast(source, trainings=3) as served:
        attach(processes)
        assert served.attached == 3
        for each in processes:
            each.ask("take", 3 * BATCHES)
        for each in processes:
            assert each.told() == stream[: 3 * BATCHES]
        stats = served._loader.stats()
        assert 3 * BATCHES <= stats.batches <= 3 * BATCHES + 5, "each batch is made once, and a few ahead"
        assert stats.hits > 0
        for each in processes:
            each.do("close")
        served.wait()
        assert [each.do("shared") for each in processes] == [0, 0, 0]


def test_who_is_killed_disturbs_nobody(source: ImageFolder, stream: list[str], trainings: Started) -> None:
    killed, idle, *others = processes = trainings(4)
    with ExitStack() as stack, broadcast(source, trainings=4, ahead=1) as served:
        attach(processes)
        stack.callback(os.kill, idle.do("fork"), signal.SIGKILL)  # What it has started lives on.
        assert killed.do("take", 2) == stream[:2]
        for each in others:
            each.ask("take", 3 * BATCHES)
        killed.ask("take", 100)  # It dies while it waits for the idle one, and this one with a batch.
        idle.do("take", 1)
        for each in (killed, idle):
            each.process.send_signal(signal.SIGKILL)
            each.process.wait()
        wait_until(lambda: served.attached == 2)
        for each in others:
            assert each.told() == stream[: 3 * BATCHES]


def test_who_lets_others_wait_is_let_go_and_told(source: ImageFolder, stream: list[str], trainings: Started) -> None:
    slow, fast = processes = trainings(2)
    with broadcast(source, trainings=2, ahead=2, patience=0.3) as served:
        attach(processes)
        assert slow.do("take", 2) == stream[:2]
        assert fast.do("take", 3 * BATCHES) == stream[: 3 * BATCHES]
        assert served.attached == 1
        assert slow.do("last") == stream[1], "what it has stays good"
        for _ in range(2):
            slow.ask("take", 1)
            kind, message = slow.raised()
            assert kind == "LoaderError"
            assert "must not let others wait for more than 0.3 s, but this one did, at batch 1 of epoch 0" in message
        state = slow.do("state")
        assert (state["epoch"], state["batch"]) == (0, 2)
        with make(source) as loader:
            loader.load_state_dict(state)
            assert digest(next(iter(loader))) == stream[2]
        assert slow.do("attach", NAME) == 3
        slow.ask("take", 2)
        assert fast.do("take", 2) == stream[3 * BATCHES :][:2]
        assert slow.told() == stream[3 * BATCHES :][:2]


def test_nobody_is_let_go_where_nobody_waits(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source, trainings=2, ahead=1, patience=1e-3), both() as (one, other):
        for number in range(2 * BATCHES):
            assert taken(one, 1) == stream[number : number + 1]
            time.sleep(0.01)
            assert taken(other, 1) == stream[number : number + 1]


def test_who_has_come_and_asks_for_no_batch_yet_does_not_wait(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source, ahead=1, patience=1e-3) as served, Attached(NAME) as first, Attached(NAME) as other:
        one = Endless(first)
        assert taken(one, 1) == stream[:1]
        wait_until(lambda: served._window.full)
        assert other.epoch == 0, "it could have the first batch still"
        time.sleep(0.02)
        assert taken(one, 1) == stream[1:2]


def test_with_endless_patience_the_slowest_is_waited_for(source: ImageFolder, stream: list[str]) -> None:
    with (
        broadcast(source, trainings=2, ahead=1, patience=math.inf) as served,
        both() as (one, other),
        ThreadPoolExecutor(1) as pool,
    ):
        fast = pool.submit(taken, one, BATCHES)
        wait_until(lambda: served._window.full and any(each.asked is not None for each in served._window.trainings))
        assert taken(other, BATCHES) == stream[:BATCHES]
        assert fast.result() == stream[:BATCHES]


def test_who_was_let_go_can_go_on_where_a_state_says(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source, trainings=2, ahead=1, patience=0.05), both() as (fast, slow):
        assert taken(fast, BATCHES) == stream[:BATCHES]
        state = slow.loader.state_dict()
        with pytest.raises(LoaderError, match="must not let others wait"):
            next(slow)
        fast.loader.close()
        # Of bad samples as many as no message has room for.
        slow.loader.load_state_dict({**state, "epoch": 2, "batch": 1, "bad_samples": [*range(200_000)]})
        assert taken(Endless(slow.loader), 2) == stream[2 * BATCHES + 1 :][:2]


@contextmanager
def both() -> Iterator[tuple[Any, Any]]:
    """Attach twice, in this process."""
    with Attached(NAME) as one, Attached(NAME) as other:
        assert one.epoch == other.epoch == 0
        yield Endless(one), Endless(other)


class Endless:
    """A training that goes on epoch after epoch."""

    def __init__(self, loader: Attached | Loader) -> None:
        self.loader = loader
        self.batches: Any = iter(())

    def __next__(self) -> Any:
        while (batch := next(self.batches, None)) is None:
            self.batches = iter(self.loader)
        return batch

    def __iter__(self) -> Any:
        return self


def taken(training: Any, count: int) -> list[str]:
    return [digest(batch) for batch in islice(training, count)]


def test_a_batch_that_is_made_when_the_only_training_has_gone_back_is_none_of_its() -> None:
    told: Any = None
    window, training = Window(Position(0, 0), ahead=2), Training(told)
    window.trainings.append(training)
    assert window.place(training, Position(3, 1)) == window.begin_next() == Position(3, 1)
    assert window.place(training, Position(1, 2)) == Position(1, 2)
    assert not window.put(Position(3, 1), Made(told, 0, 1), BATCHES)
    assert window.get(Position(3, 1)) is None
    assert window.begin_next() == Position(1, 2)
    assert window.put(Position(1, 2), Made(told, 0, 1), BATCHES)
    assert window.begin_next() == Position(1, 3)


def test_before_it_has_begun_trainings_can_begin_before_the_loaders_place() -> None:
    told: Any = None
    window, trainings = Window(Position(2, 0), ahead=2), [Training(told), Training(told)]
    window.trainings += trainings
    assert window.place(trainings[0], None) == Position(2, 0)
    assert window.place(trainings[1], Position(1, 1)) == Position(1, 1)
    assert window.begin_next() == Position(1, 1)


def test_who_waits_for_a_broadcast_waits_for_trainings_to_come_and_go(source: ImageFolder) -> None:
    with broadcast(source) as served, ThreadPoolExecutor(1) as pool:
        over = pool.submit(served.wait)
        with Attached(NAME) as training:
            next(iter(training))
            assert not over.done()
        over.result(LIMIT_S)
        assert served.attached == 0


def test_who_comes_late_begins_with_the_next_epoch(source: ImageFolder, stream: list[str], trainings: Started) -> None:
    first, late = trainings(2)
    with broadcast(source, ahead=1):
        first.do("attach", NAME)
        assert first.do("take", 2) == stream[:2]
        assert late.do("attach", NAME) == 1
        late.ask("take", BATCHES + 1)
        assert first.do("take", 2 * BATCHES - 1) == stream[2 : 2 * BATCHES + 1]
        assert late.told() == stream[BATCHES : 2 * BATCHES + 1]


def test_a_training_goes_on_where_its_state_says(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source, ahead=1), ExitStack() as stack:
        with Attached(NAME) as first:
            assert taken(Endless(first), 6) == stream[:6]
            state = json.loads(json.dumps(first.state_dict()))
        again = stack.enter_context(Attached(NAME))  # alone: at any place, before or behind
        with pytest.raises(
            ConfigurationError, match=r"state must be a mapping that state_dict returned, got 'state\.pt'"
        ):
            again.load_state_dict("state.pt")  # type: ignore[arg-type]
        for epoch, batch in ((1, 2), (0, 1), (3, 0), (1, 2)):
            again.load_state_dict({**state, "epoch": epoch, "batch": batch})
            assert again.epoch == epoch
            training = Endless(again)
            assert taken(training, 2) == stream[epoch * BATCHES + batch :][:2]
        with Attached(NAME) as other:
            with pytest.raises(LoaderError, match=r"of batch 3 of epoch 0, and the first that is there is batch 3 of"):
                other.load_state_dict({**state, "epoch": 0, "batch": 3})
            with pytest.raises(StateMismatchError, match="these differ: planner") as refused:
                other.load_state_dict({**state, "fingerprint": {**state["fingerprint"], "planner": {}}})
            assert refused.value.keys == ("planner",)
            other.load_state_dict({**state, "epoch": 2, "batch": 1})  # still to come
            assert taken(training, 3) == stream[2 * BATCHES :][:3]
            assert taken(Endless(other), 1) == stream[2 * BATCHES + 1 :][:1]


def test_all_come_again_each_with_its_own_state(source: ImageFolder, stream: list[str]) -> None:
    with make(source) as loader:
        state = loader.state_dict()
    with broadcast(source, trainings=2, ahead=3), Attached(NAME) as one, Attached(NAME) as other:
        one.load_state_dict({**state, "epoch": 1, "batch": 3})
        other.load_state_dict({**state, "epoch": 1, "batch": 1})
        assert taken(Endless(other), 3) == stream[BATCHES + 1 :][:3]
        assert taken(Endless(one), 3) == stream[BATCHES + 3 :][:3]


def test_the_broadcast_goes_on_where_its_loader_is(source: ImageFolder, stream: list[str]) -> None:
    with make(source) as loader:
        assert taken(Endless(loader), 6) == stream[:6]
        with limited(), Broadcast(loader, NAME), Attached(NAME) as training:
            assert (training.epoch, len(training)) == (1, BATCHES)
            assert taken(Endless(training), 4) == stream[6:10]


def test_an_epoch_that_is_left_early_is_over_or_goes_on(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source), Attached(NAME) as training:
        assert [digest(batch) for batch, _ in zip(training, range(2), strict=False)] == stream[:2]
        state = training.state_dict()
        assert (training.epoch, state["epoch"], state["batch"]) == (1, 0, 3)
        assert [digest(batch) for batch in training.resume()] == stream[3:BATCHES]
        next(iter(training))
        assert [digest(batch) for batch in training] == stream[2 * BATCHES : 3 * BATCHES]
        names = training.as_dicts()
        assert {*next(iter(names))} == {"pixel_values", "labels", "indices"}
        assert (training.batch_size, training.num_samples, training.with_indices) == (BATCH_SIZE, NUM_SAMPLES, True)


def test_batches_stay_good_as_long_as_they_are_kept(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source, trainings=2, ahead=1) as served, both() as (one, other):
        kept = []
        for number in range(3 * BATCHES):
            kept.append(next(one))
            assert taken(other, 1) == stream[number : number + 1]
        assert 0 <= served.untouched_bytes < 7 * served._batch_bytes, "what is kept is the training's own matter"
        one.loader.close()
        assert taken(other, BATCHES) == stream[3 * BATCHES :]
        assert [digest(batch) for batch in kept] == stream[: 3 * BATCHES]
    assert [digest(batch) for batch in kept] == stream[: 3 * BATCHES]


def test_memory_of_batches_that_were_kept_is_let_go_of_with_them(source: ImageFolder) -> None:
    def shared() -> int:
        return sum("memfd:dalirefurb-broadcast" in line for line in Path("/proc/self/maps").read_text().splitlines())

    with broadcast(source, ahead=1) as served, Attached(NAME) as training:
        kept = [*islice(Endless(training), 4 * BATCHES)]
        assert shared() > len(kept)
        kept.clear()
        next(iter(training))
        # Both ends are in this process, and beside slots each question's answer may be there.
        assert shared() <= 2 * served._window.most_slots + 3
        training.close()
        gc.collect()
        assert shared() > 0
        served.close()
        gc.collect()
        assert shared() == 0, "nothing is held of what is closed"


def test_a_validation_without_indices_goes_on_where_its_state_says() -> None:
    source = Arrays(np.zeros((10, 16, 16, 3), np.uint8), np.arange(10))
    parts = source, evaluate(16, raw=True), Evaluate(10, batch_size=4)
    with Loader(*parts) as loader:
        next(iter(loader))
        state = loader.state_dict()
        expected = [labels.tolist() for _, labels in loader.resume()]
    with limited(), Loader(*parts) as loader, Broadcast(loader, NAME), Attached(NAME) as training:
        with pytest.raises(StateMismatchError, match="divide an epoch into the same batches"):
            training.load_state_dict({**state, "division": [5, 5]})
        training.load_state_dict(state)
        assert not training.with_indices
        assert [batch["labels"].tolist() for batch in training.as_dicts()] == expected


def test_a_state_has_the_bad_samples_that_the_loader_found(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=NUM_SAMPLES))
    Path(source.name(7)).write_bytes(b"no image")
    planner, policy = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE), BadSamplePolicy("replace")
    with limited(), Loader(source, simple(SIZE), planner, bad_samples=policy) as loader, Broadcast(loader, NAME):
        with Attached(NAME) as training:
            assert len([*training]) == BATCHES
            state = training.state_dict()
        assert state["bad_samples"] == [[each.index, each.name, each.reason] for each in loader.bad_samples()]
        assert (state["epoch"], [index for index, _, _ in state["bad_samples"]]) == (1, [7])


@pytest.mark.parametrize("bit", [61, 0], ids=["pages are told apart", "pages are not told apart"])
def test_what_is_written_into_a_batch_nobody_else_sees(
    source: ImageFolder, stream: list[str], monkeypatch: pytest.MonkeyPatch, bit: int
) -> None:
    monkeypatch.setattr(wire, "_KIND_BIT", np.uint64(bit))
    with broadcast(source, trainings=2), both() as (one, other):
        for number in range(4 * BATCHES):
            images, labels, indices = next(one)
            assert digest((images, labels, indices)) == stream[number], "nor later, where the memory is used again"
            images.numpy()[...] = 7
            labels.zero_()
            assert taken(other, 1) == stream[number : number + 1]


def test_little_memory_is_taken_as_long_as_nobody_keeps_batches(source: ImageFolder, stream: list[str]) -> None:
    with broadcast(source, trainings=2, ahead=2) as served, both() as (one, other):
        for number in range(4 * BATCHES):
            for training in (one, other):
                for batch in islice(training, 1):
                    assert digest(batch) == stream[number]
                    del batch
        assert served._window._last_number <= served._window.most_slots == 5


def test_as_many_batches_are_made_ahead_as_are_asked_for(source: ImageFolder) -> None:
    with broadcast(source, ahead=2) as served, Attached(NAME) as training:
        next(iter(training))
        wait_until(lambda: served._window.full)
        with served._changed:
            assert repr(served).endswith("next: batch 3 of epoch 0; 1 attached)"), "0 is at work, 1 and 2 are ahead"


@pytest.mark.parametrize(
    ("serving", "labels"),
    in_turn(
        [
            (simple(16, raw=True, dtype="bfloat16"), Standard(10, batch_size=4)),
            (simple(16, raw=True, dtype="float16", channels_last=True), Standard(10, batch_size=4)),
            (simple(16, raw=True), Standard(10, batch_size=1)),
            (simple(16, raw=True).with_output(channels=1), Standard(10, batch_size=5)),
            (evaluate(16, raw=True), Evaluate(10, batch_size=4, pad=True)),
        ],
        [np.arange(10), np.eye(10, 3, dtype=np.float32), np.arange(10) > 4],
    ),
)
def test_whatever_the_batches_are_made_of(serving: tuple[Recipe, Any], labels: Any) -> None:
    recipe, planner = serving
    images = np.random.default_rng(0).integers(0, 256, (10, 16, 16, 3), np.uint8)
    source = Arrays(images, labels)
    with Loader(source, recipe, planner, with_indices=True) as loader:
        alone = [(digest(batch), sum(each.nbytes for each in batch)) for _ in range(2) for batch in loader]
    with limited(), Loader(source, recipe, planner, with_indices=True) as loader:
        promised = promised_bytes()
        with Broadcast(loader, NAME) as served, Attached(NAME) as training:
            counted = served.untouched_bytes
            assert promised_bytes() - promised == counted
            assert [digest(batch) for _ in range(2) for batch in training] == [told for told, _ in alone]
    needed = 7 * max(nbytes for _, nbytes in alone)
    assert needed <= counted < 1.05 * needed + 7 * 8 * 3 * planner.batch_size, "numbers may have 8 bytes each"


def test_an_error_reaches_all_behind_the_batches_before_it(tmp_path: Path, trainings: Started) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=NUM_SAMPLES))
    planner = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE)
    bad = int(planner.plan(0, 2).indices[1])
    Path(source.name(bad)).write_bytes(b"no image")
    with Loader(source, simple(SIZE), planner) as loader, pytest.raises(SampleError) as expected:
        list(loader)
    processes = trainings(2)
    with limited(), Loader(source, simple(SIZE), planner) as loader, Broadcast(loader, NAME, trainings=2) as served:
        attach(processes)
        for each in processes:
            assert len(each.do("take", 2)) == 2
            each.ask("take", 1)
            assert each.raised() == ("SampleError", str(expected.value))
        with pytest.raises(SampleError, match=re.escape(str(expected.value))):
            served.wait()
        with pytest.raises(SampleError) as late, Attached(NAME) as training:
            training.state_dict()
        assert late.value.index == bad


def test_an_error_of_an_unknown_class_is_told_in_words() -> None:
    class UnknownError(Exception):
        pass

    told = wire.Failure.of(UnknownError("broken")).error()
    assert isinstance(told, LoaderError)
    assert str(told) == "the broadcast's loader raised UnknownError: broken"


SERVE = """
import sys, time
from dalirefurb import Broadcast, ImageFolder, Loader, Standard, simple

source = ImageFolder(sys.argv[1])
loader = Loader(source, simple(32), Standard(len(source), batch_size=6))
served = Broadcast(loader, sys.argv[2])
print("there", flush=True)
time.sleep(600)
"""


def test_who_serves_may_be_killed_and_leaves_nothing(source: ImageFolder, trainings: Started) -> None:
    (waiting,) = trainings(1)
    before = {*Path("/dev/shm").iterdir()}
    command = [sys.executable, "-c", SERVE, str(source._root), NAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        with limited(), Attached(NAME) as training:
            batch = next(iter(training))
            told = digest(batch)
            assert waiting.do("attach", NAME) == 0, "the first batch is there still"
            waiting.ask("take", 100)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert waiting.raised()[0] == "LoaderError"
            assert digest(batch) == told
            with pytest.raises(LoaderError, match=f"serves the broadcast {NAME!r} must live as long as trainings do"):
                next(training.resume().__iter__())
            state = training.state_dict()
            assert (state["epoch"], state["batch"]) == (0, 1)
    assert {*Path("/dev/shm").iterdir()} == before
    with pytest.raises(LoaderError, match=f"for 0 s nobody of this user served {NAME!r} on this machine"):
        Attached(NAME, wait_s=0)


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """Let this process open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    spare = [os.open(os.devnull, os.O_RDONLY)]
    while spare[-1] < highest:
        spare.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in spare:
            os.close(each)


def test_who_may_open_no_more_files_is_told_and_goes_on_once_there_are_some(source: ImageFolder) -> None:
    with Loader(source, simple(32), Standard(len(source), batch_size=6)) as loader:
        stream = taken(loader, 4)
    command = [sys.executable, "-c", SERVE, str(source._root), NAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        with ExitStack() as ending, limited(), Attached(NAME) as training:
            ending.callback(process.kill)
            kept = [next(iter(training))]
            for more in (0, 1):
                with (
                    few_files(more),
                    pytest.raises(LoaderError, match=r"none of the [\d,]+ that this process may have"),
                ):
                    next(iter(training.resume()))
                kept += islice(training.resume(), 2)
            assert [digest(batch) for batch in kept] == stream


def test_nothing_is_left(source: ImageFolder) -> None:
    with nothing_left(), limited(), make(source) as loader:
        with Broadcast(loader, NAME) as served:
            training = Attached(NAME)
            batches = iter(training)
            next(batches)
            del training, batches  # It is not closed.
            wait_until(lambda: served.attached == 0)
            with Attached(NAME) as training:
                kept = [*training]
        with Broadcast(loader, NAME, trainings=2), Attached(NAME) as training:
            assert training.epoch in (2, 3)  # None comes: it does not begin.
        del kept, training


def test_closing_ends_all_and_can_be_done_twice(source: ImageFolder) -> None:
    with broadcast(source) as served, Attached(NAME) as training:
        batches = iter(training)
        next(batches)
        served.close()
        served.close()
        served.wait()
        with pytest.raises(LoaderError, match="has ended, or closed it"):
            list(batches)
        training.close()
        with pytest.raises(LoaderError, match=r"this end of the broadcast .* is closed"):
            next(iter(training))


def test_an_interrupt_loses_no_batch(source: ImageFolder, stream: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = socket.recv_fds
    calls = [0]

    def interrupted(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] % 8 == 3:
            select.select(arguments[:1], [], [])  # It comes once the answer is there.
        told = original(*arguments) if calls[0] % 4 != 3 else None
        if told is None:
            raise KeyboardInterrupt
        return told

    with broadcast(source, ahead=1) as serving, Attached(NAME) as training:
        batches = iter(training)
        monkeypatch.setattr(socket, "recv_fds", interrupted)
        served: list[str] = []
        while len(served) < 4 * BATCHES:
            with suppress(KeyboardInterrupt):
                batch = next(batches, None)
                if batch is None:
                    batches = iter(training)
                else:
                    served.append(digest(batch))
        assert served == stream[: 4 * BATCHES]
        assert calls[0] > 4 * BATCHES
        assert serving._window._last_number <= serving._window.most_slots, "no memory is lost, either"


def test_a_batch_that_was_told_of_twice_stays_good(
    source: ImageFolder, stream: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(connection: socket.socket, *_: Any) -> Any:
        select.select([connection], [], [])
        raise KeyboardInterrupt

    with broadcast(source, ahead=1), Attached(NAME) as training:
        assert training.epoch == 0
        batches = iter(training)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "recv_fds", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        kept = next(batches)
        assert [digest(batch) for batch in batches] == stream[1:BATCHES]
        assert taken(Endless(training), 2 * BATCHES) == stream[BATCHES : 3 * BATCHES]
        assert digest(kept) == stream[0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_or_pickled_one_is_refused(source: ImageFolder) -> None:
    with broadcast(source) as served, Attached(NAME) as training:
        assert repr(training) == f"Attached({NAME!r}, not attached yet)"
        next(iter(training))
        if not (child := os.fork()):
            with suppress(BaseException):
                for use in (lambda: next(iter(training)), served.wait):
                    with pytest.raises(LoaderError, match="fork"):
                        use()
                served.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        next(iter(training))
        for each in (served, training):
            with pytest.raises(LoaderError, match="cannot be pickled or copied"):
                pickle.dumps(each)
            with pytest.raises(LoaderError, match="cannot be pickled or copied"):
                copy.copy(each)
        assert re.search(r"next: batch \d of epoch \d; 1 attached\)$", repr(served))
        assert repr(training).startswith(f"Attached({NAME!r}, next: batch 0 of epoch 2, or by resume()")


def test_memory_that_the_system_does_not_give_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OutOfMemoryError, match=r"needs 70\.00 KB of shared memory .* none \(No space left"):
        wire.SharedMemory(70_000)


@pytest.mark.parametrize(("call", "number"), [("posix_fallocate", errno.ENOSPC), ("memfd_create", errno.EMFILE)])
def test_where_not_even_telling_has_room_nobody_waits_for_ever(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with broadcast(source) as served, Attached(NAME) as training:
        assert training.epoch == 0
        monkeypatch.setattr(os, call, fail)
        with pytest.raises(LoaderError, match="has ended, or closed it"):
            next(iter(training))
        with pytest.raises((OutOfMemoryError, OSError), match=os.strerror(number)):
            served.wait()
        with pytest.raises(LoaderError, match="has ended, or closed it"):
            Attached(NAME)


def test_who_waits_is_told_of_what_ends_a_broadcast_before_anybody_is_there(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def fail(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def wait() -> None:
        try:
            served.wait()
        except OSError as error:
            told.append(str(error))

    with broadcast(source) as served:
        monkeypatch.setattr(socket.socket, "accept", fail)
        with pytest.raises(LoaderError, match="has ended, or closed it"):
            Attached(NAME)
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(20)
        assert told == [str(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))]


def test_who_waits_is_told_of_what_ends_a_broadcast_that_has_begun(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang_up = Broadcast._hang_up

    def fail(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def slowly(self: Broadcast) -> None:
        hang_up(self)
        over.exception(LIMIT_S)  # Who waits runs first.

    with broadcast(source) as served, Attached(NAME) as training, ThreadPoolExecutor(1) as pool:
        next(iter(training))
        monkeypatch.setattr(Broadcast, "_hang_up", slowly)
        over = pool.submit(served.wait)
        monkeypatch.setattr(socket.socket, "accept", fail)
        with pytest.raises(LoaderError, match="has ended, or closed it"):
            Attached(NAME)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            over.result(LIMIT_S)


def test_processes_of_other_users_are_turned_away(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    told: Any = SimpleNamespace(getsockopt=lambda *_: wire._CREDENTIALS.pack(7, 8, 9))
    for user, own in ((7, False), (8, True), (9, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert wire.is_own_user(told) == own
    monkeypatch.undo()
    with broadcast(source) as served:
        for end, message in ((wire, "must be served by a process of this user"), (server, "has ended, or closed it")):
            with monkeypatch.context() as patch:
                patch.setattr(end, "is_own_user", lambda _: False)
                with pytest.raises(LoaderError, match=message):
                    Attached(NAME)
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: 7)
            wire.listening(NAME).close()  # Each user has names of his own.
        with Attached(NAME) as training:
            next(iter(training))
            assert served.attached == 1


def test_what_cannot_be_shared_is_refused(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(source) as loader:
        view: Any = loader.as_dicts()
        with pytest.raises(ConfigurationError, match="loader must be a Loader, and no view of one"):
            Broadcast(view, NAME)
        for name in ("", "x" * 65, "\u00e4" * 33, 3):
            with pytest.raises(ConfigurationError, match="name must be a text of 1 to 64 bytes"):
                Broadcast(loader, name)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="name must be a text of 1 to 64 bytes"):
                Attached(name)  # type: ignore[arg-type]
        for name, value in (("trainings", 0), ("ahead", 0), ("patience", 0), ("patience", math.nan)):
            with pytest.raises(ConfigurationError, match=f"{name} must be"):
                Broadcast(loader, NAME, **{name: value})  # type: ignore[arg-type]
        in_use = pytest.raises(ConfigurationError, match="is in use: pass another")
        with Broadcast(loader, NAME, patience=math.inf) as fits, make(source) as second, in_use:
            needed = fits.untouched_bytes
            Broadcast(second, NAME)
        monkeypatch.setattr(server, "available_bytes", lambda: needed)
        Broadcast(loader, NAME).close()
        monkeypatch.setattr(server, "available_bytes", lambda: 500_000)
        with pytest.raises(OutOfMemoryError, match=r"must hold 7 batches in shared memory, 516\.77 KB, but 500"):
            Broadcast(loader, NAME)
        monkeypatch.setattr(server, "available_bytes", lambda: 0)
        with pytest.raises(OutOfMemoryError, match="but 0 B are free"):
            Broadcast(loader, NAME)
        monkeypatch.setattr(server, "available_bytes", lambda: None)  # Where the system does not say.
        Broadcast(loader, NAME).close()
    assist = AutoAssist(Standard(NUM_SAMPLES, batch_size=BATCH_SIZE), lag=9)
    of_views = pytest.raises(ConfigurationError, match="serves one image of each sample, but the loader has views")
    recipe, standard = rand_augment(SIZE).at(1), Standard(NUM_SAMPLES, batch_size=BATCH_SIZE)
    with Loader(source, recipe, standard, views=[recipe.view(2)]) as viewed, of_views:
        Broadcast(viewed, NAME)
    of_one = pytest.raises(ConfigurationError, match="AutoAssist chooses batches by the losses of one training")
    with Loader(source, rand_augment(SIZE), assist) as loader, of_one:
        Broadcast(loader, NAME)
    with pytest.raises(ConfigurationError, match=r"must be on the CPU, .* but the loader's are on meta"):
        wire.laid_out((torch.empty(2, 2, device="meta"),))


def test_a_broadcast_is_waited_for(source: ImageFolder, stream: list[str], trainings: Started) -> None:
    (early,) = trainings(1)
    early.ask("attach", NAME)
    time.sleep(0.3)
    with broadcast(source):
        assert early.told() == 0
        assert early.do("take", 2) == stream[:2]


@pytest.mark.weekly
def test_the_scripts_of_the_page_run(source: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "how-to" / "sweeps.md").read_text().replace('"photos"', repr(NAME))
    serve, train, resume = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    write_folder(tmp_path / "photos" / "train", num_samples=64)
    (tmp_path / "serve.py").write_text(serve)
    (tmp_path / "train.py").write_text(train)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> subprocess.Popen[str]:
        whole = [sys.executable, "-W", "error", *command]
        return subprocess.Popen(whole, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    processes = [run("serve.py"), run("train.py", "0.1"), run("train.py", "0.01")]
    said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert re.search(r"% of (19|2\d)\d samples hit", said[0])
    for told in said[1:]:
        assert re.findall(r"epoch (\d)", told) == ["0", "1", "2"]
    monkeypatch.chdir(tmp_path)
    photos = ImageFolder("photos/train")
    planner = Refurbish(len(photos), batch_size=16, reuse_factor=3)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
    with limited(), Loader(photos, rand_augment(64), planner, MemoryStore()) as loader, Broadcast(loader, NAME):
        names: dict[str, Any] = {"model": model, "torch": torch, "Attached": Attached}
        exec(resume + "    epoch, batch = loader.epoch, next(iter(loader))\n", names)
        assert names["epoch"] == 3
