"""A loader ends however it is left: by an interrupt, a fork, the garbage collector, or the end of the interpreter."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import islice
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import dalirefurb
from dalirefurb import AutoAssist, ImageFolder, Loader, MemoryStore, Prefetch, Refurbish, Standard, simple
from dalirefurb.engine.backends import PartialBackend
from dalirefurb.engine.cursor import EpochPass
from dalirefurb.errors import LoaderError, SampleError
from dalirefurb.planning import BatchEcho, Frozen
from dalirefurb.planning.planner import Planner
from tests.endings import nothing_left, threads, wait_for_threads
from tests.engine.test_bit_identity import Batches, assert_same
from tests.interruptible import interruptible
from tests.loading import flat_loader
from tests.pictures import write_folder

SIZE = 32
NUM_SAMPLES = 14
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=2)
LIMIT_S = 600


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return root


@pytest.fixture(scope="module")
def source(root: Path) -> ImageFolder:
    return ImageFolder(root)


def make(source: ImageFolder, planner: Planner = REFURBISH, **changes: Any) -> Loader:
    return flat_loader(
        source,
        simple(SIZE),
        planner,
        MemoryStore(),
        **{"num_threads": 1, "look_ahead": 1, "kernels": "dali", **changes},
    )


# ---- the garbage collector


def test_a_loader_that_is_collected_in_the_middle_of_an_epoch_leaves_nothing(source: ImageFolder) -> None:
    with nothing_left():
        loader = make(source)
        iterator = iter(loader)
        next(iterator)
        assert threads()
        del loader, iterator  # no collection is needed: nothing refers to itself
        wait_for_threads()


@pytest.mark.parametrize("kernels", ["dali", None])
def test_a_loader_in_a_cycle_is_collected_too_and_gives_back_what_was_lent(
    kernels: Literal["dali"] | None, source: ImageFolder
) -> None:
    store = MemoryStore()
    with nothing_left():
        trainer: dict[str, Any] = {"loader": Loader(source, simple(SIZE), REFURBISH, store, kernels=kernels)}
        trainer["trainer"] = trainer
        for _ in range(2):
            next(iter(trainer["loader"]))
        trainer["batches"] = iter(trainer["loader"])
        del trainer
    with Loader(source, simple(SIZE), REFURBISH, store, kernels=kernels) as loader:
        for _ in range(5):
            for _ in loader:
                pass
        assert loader.stats().declined == 0


def test_a_pass_that_is_left_keeps_the_loader_working(source: ImageFolder) -> None:
    with nothing_left(), make(source) as loader:
        for _ in range(5):
            assert len(list(islice(loader, 1))) == 1
            gc.collect()
        assert len(list(loader)) == 4


def test_closing_leaves_nothing(source: ImageFolder) -> None:
    with nothing_left():
        for _ in range(3):
            with make(source, replicas=2) as loader:
                next(iter(loader))


def test_a_closed_loader_keeps_no_store_and_no_image(source: ImageFolder) -> None:
    store = MemoryStore()
    gone = weakref.ref(store)
    loader = Loader(source, simple(SIZE), REFURBISH, store, prefetch=Prefetch(num_threads=1, batches_per_group=2))
    del store
    gc.disable()  # What is in no cycle goes at once.
    try:
        with loader:
            next(iter(loader))
        assert gone() is None
        assert loader.stats().batches == 1
    finally:
        gc.enable()


@pytest.mark.parametrize("batches_per_group", [1, 2])
def test_a_loader_that_raised_is_collected_too(source: ImageFolder, batches_per_group: int) -> None:
    class Failing(ImageFolder):
        def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
            if 5 in indices:
                raise ValueError("cannot be read")
            return super().read(indices)

    def used() -> weakref.ref[Loader]:
        loader = make(Failing(source._root), batches_per_group=batches_per_group)
        with pytest.raises(SampleError, match="cannot be read"):
            list(loader)
        return weakref.ref(loader)

    with nothing_left():
        loader = used()
        gc.collect()
        assert loader() is None


def test_a_thread_that_does_not_end_is_named(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dalirefurb.engine.engine._END_S", 0.1)
    hanging = threading.Event()

    class HangingStore(MemoryStore):
        def prefetch(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
            if not hanging.wait(0):
                hanging.wait(LIMIT_S)

    loader = Loader(source, simple(SIZE), REFURBISH, HangingStore(), kernels="dali")
    loader._assembler.get().seek(loader._cursor.position)
    with pytest.raises(LoaderError, match=r"dalirefurb-prepare is still in wait \(.*threading\.py:\d+\)"):
        loader.close()
    hanging.set()
    wait_for_threads()


def test_on_a_gpu_closing_returns_what_dalis_pools_hold(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the pipelines are gone."""
    alive: list[int] = []
    pipelines = weakref.WeakSet[Any]()
    monkeypatch.setattr("nvidia.dali.backend.ReleaseUnusedMemory", lambda: alive.append(len(pipelines)))
    loader = make(source)
    next(iter(loader))
    engine = loader._assembler.get()
    engine._factory._device_id = 0
    assert engine._preparer is not None
    assert isinstance(engine._preparer.backend, PartialBackend)
    pipelines.add(engine._preparer.backend._runner)
    loader.close()
    assert alive == [0]


# ---- an interrupt from the keyboard

INTERRUPTED = """
import os, sys, time
import torch
import nvidia.dali.fn, nvidia.dali.pipeline
from dalirefurb import ImageFolder, Loader, MemoryStore, Refurbish, simple

class Slow(ImageFolder):
    def read(self, indices):
        if when == "waiting":
            os.write(1, b"ready\\n")  # at once: several threads read
            time.sleep(1000)
        return super().read(indices)

for when in sys.argv[2:]:  # Forked before DALI is used: it is imported once.
    child = os.fork()
    if not child:
        os.dup2(os.open(os.path.join(sys.argv[1], when), os.O_CREAT | os.O_WRONLY), 2)
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

source = Slow(sys.argv[1] + "/pictures")
loader = Loader(source, simple(32), Refurbish(len(source), batch_size=4, reuse_factor=2), MemoryStore(), kernels="dali")
while True:
    for images, labels in loader:
        if loader.epoch == 3:
            os.write(1, b"ready\\n")
"""


@pytest.mark.weekly
def test_an_interrupt_ends_the_process_with_one_traceback(root: Path, tmp_path: Path) -> None:
    """While it waits, also for a file that takes 1,000 s to read."""
    (tmp_path / "pictures").symlink_to(root)
    scenes = ["waiting", "training"]
    with interruptible([sys.executable, "-c", INTERRUPTED, str(tmp_path), *scenes]) as process:
        assert process.stdout is not None
        for when in scenes:
            child = int(process.stdout.readline())
            assert process.stdout.readline() == "ready\n"
            os.kill(child, signal.SIGINT)
            while (line := process.stdout.readline()) == "ready\n":
                pass
            assert int(line) == -signal.SIGINT
            errors = (tmp_path / when).read_text()
            assert errors.splitlines()[-1] == "KeyboardInterrupt"
            assert errors.count("Traceback") == 1
            assert "Exception ignored" not in errors
        assert process.wait(LIMIT_S) == 0


class Interrupt:
    """Interrupts this thread at its n-th line within the package."""

    def __init__(self, line: int) -> None:
        self.lines_left = line
        self.last_line = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return None
        # Signals are handled at calls: not in the line that only returns, nor between a block's end and its `__exit__`.
        returning = frame.f_code is EpochPass.__next__.__code__ and frame.f_lineno >= RETURN_LINE
        leaving = frame.f_lineno < self.last_line and getline(file, frame.f_lineno).lstrip().startswith("with ")
        self.last_line = frame.f_lineno
        if event == "line" and not returning and not leaving:
            self.lines_left -= 1
            if self.lines_left == 0:
                raise KeyboardInterrupt
        return self


PACKAGE = str(Path(dalirefurb.__file__).parent)
RETURN_LINE = max(line for _, _, line in EpochPass.__next__.__code__.co_lines() if line is not None)


@pytest.mark.parametrize(
    "planner",
    [
        pytest.param(REFURBISH, id="Refurbish"),
        pytest.param(AutoAssist(REFURBISH, lag=32), id="AutoAssist", marks=pytest.mark.weekly),
    ],
)
def test_an_interrupt_at_any_line_of_next_loses_no_batch(source: ImageFolder, planner: Planner) -> None:
    def observe(loader: Loader, labels: torch.Tensor) -> None:
        if isinstance(planner, AutoAssist):
            loader.observe(labels.float())

    served: Batches = []
    interrupts = 0
    tracer = sys.gettrace()
    with nothing_left(), make(source, planner) as loader:
        batches = iter(loader)
        for line in range(1, 1000):
            interrupted = True
            interrupt = Interrupt(line)
            sys.settrace(interrupt)
            try:
                batch = next(batches, None)
                interrupted = False
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                sys.settrace(tracer)
            if interrupted:
                batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
            else:
                served.append(batch)
                observe(loader, batch[1])
            if not interrupted and batch is not None:
                break
    assert interrupts > 30
    with make(source, planner) as loader:
        expected: Batches = []
        while len(expected) < len(served):
            for images, labels in loader:
                expected.append((images, labels))
                observe(loader, labels)
    assert_same(expected[: len(served)], served)


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("name", ["dalirefurb-prepare", "dalirefurb-finish"])
def test_a_thread_that_an_interrupt_overtook_disturbs_nobody_when_it_runs_at_last(
    source: ImageFolder, name: str, numbered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thread.start() waits until the thread is there, and can be interrupted before; then nobody can join it."""
    with make(source, look_ahead=2) as loader:
        expected = [batch for _ in range(3) for batch in loader]
    begin, wait = threading.Thread._bootstrap_inner, threading.Event.wait  # type: ignore[attr-defined]
    late: list[threading.Thread] = []
    interrupts: list[threading.Event] = []
    gate = threading.Event()

    def overtaken(thread: threading.Thread) -> None:
        def started() -> None:
            late.append(thread)
            wait(gate, LIMIT_S)
            threading.Event.set(event)

        if thread.name == name and not late:
            if numbered:  # It has an `ident` then.
                event = thread._started  # type: ignore[attr-defined]
                event.set = started
            else:
                late.append(thread)
                wait(gate, LIMIT_S)
        begin(thread)

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        if interrupts or threading.current_thread() is not threading.main_thread():
            return wait(event, timeout)
        while not late:  # Other threads are started first; this one may be late before anybody waits for it.
            if wait(event, 0.01):
                return True
        interrupts.append(event)
        raise KeyboardInterrupt

    with make(source, look_ahead=2) as loader:
        monkeypatch.setattr(threading.Thread, "_bootstrap_inner", overtaken)
        monkeypatch.setattr(threading.Event, "wait", interrupted)
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        monkeypatch.undo()
        first = next(batches)
        gate.set()
        assert_same([first, *batches, *(batch for _ in range(2) for batch in loader)], expected)
        late[0].join(LIMIT_S)
        assert not late[0].is_alive()


@pytest.mark.usefixtures("traced_once")
def test_a_thread_is_waited_for_also_after_that_was_interrupted(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes a thread for ended whose `join` was interrupted; the interpreter then ended in the midst of it."""
    began, gate, ended = threading.Event(), threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def work(*_: object) -> None:
        began.set()
        gate.wait(LIMIT_S)
        ended.set()

    def once_it_waits(do: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            frame, names = sys._current_frames().get(main), set[str]()
            while frame is not None:
                names.add(frame.f_code.co_name)
                frame = frame.f_back
            if "_has_ended" in names or "_wait_for" in names:
                break
            time.sleep(0.001)
        do()

    loader = make(source)
    engine = loader._assembler.get()
    monkeypatch.setattr(engine._preparer, "work", work)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        engine.seek(loader._cursor.position)
        assert began.wait(LIMIT_S)
        interrupt = partial(once_it_waits, partial(signal.pthread_kill, main, signal.SIGINT))
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            engine.stop()
    finally:
        signal.signal(signal.SIGINT, heeded)
    threading.Thread(target=once_it_waits, args=(gate.set,), daemon=True).start()
    loader.close()
    closed_late = ended.is_set()
    gate.set()
    assert closed_late
    wait_for_threads()


def test_what_no_thread_came_to_finish_is_given_back(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    with Loader(
        source, simple(SIZE), REFURBISH, store, prefetch=Prefetch(num_threads=1, batches_per_group=1)
    ) as loader:
        list(loader)
        engine = loader._assembler.get()
        engine.stop()
        monkeypatch.setattr(engine._finisher, "work", lambda *_: None)
        engine.seek(loader._cursor.position)
        deadline = time.monotonic() + LIMIT_S
        while len(engine._prepared) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store._contents is not None
        assert len(store._contents.slot_table.pinned)
        engine.stop()
        assert not len(store._contents.slot_table.pinned)


# ---- forks

FORKED = """
import gc, os, signal, sys, time
from dalirefurb import DiskStore, ImageFolder, Loader, Prefetch, Refurbish, simple
from dalirefurb.errors import LoaderError, SampleError

def leave():
    pass

def use():
    global loader, batches
    try:
        next(batches)
    except LoaderError as error:
        print(error, flush=True)
    loader.close()
    del loader, batches
    gc.collect()

source = ImageFolder(sys.argv[1])
planner = Refurbish(len(source), batch_size=4, reuse_factor=2)
parts = source, simple(32), planner
with DiskStore(sys.argv[2]) as store, Loader(*parts, store, prefetch=Prefetch(num_threads=2), kernels="dali") as loader:
    batches = iter(loader)
    next(batches)
    children = {}
    for what in (leave, use):
        child = os.fork()
        if not child:
            what()
            sys.exit(7)
        children[child] = what.__name__
    deadline = time.monotonic() + 500
    for child, name in children.items():
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
        print(name, os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs")
    rest = len(list(batches)) + len(list(loader))
    print(rest, "batches,", loader.stats().recomputed, "recomputed")
"""


def test_a_forked_child_ends_and_the_parent_goes_on(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKED, str(root), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stderr == ""
    refusal, *lines = done.stdout.splitlines()
    assert "cannot be used in a forked process" in refusal
    assert lines == ["leave 7", "use 7", "7 batches, 0 recomputed"]


# ---- what the training loop does to its tensors


@pytest.mark.usefixtures("traced_once")
@pytest.mark.parametrize(
    ("split", "planner", "kernels"),
    [
        (2, REFURBISH, "dali"),
        (2, REFURBISH, None),
        (3, BatchEcho(Standard(NUM_SAMPLES, batch_size=4), echoing_factor=3), None),
        (3, Frozen(NUM_SAMPLES, batch_size=4), "dali"),
        (2, Standard(NUM_SAMPLES, batch_size=4), None),
        pytest.param(
            3, BatchEcho(Standard(NUM_SAMPLES, batch_size=4), echoing_factor=3), "dali", marks=pytest.mark.weekly
        ),
        pytest.param(3, Frozen(NUM_SAMPLES, batch_size=4), None, marks=pytest.mark.weekly),
        pytest.param(2, Standard(NUM_SAMPLES, batch_size=4), "dali", marks=pytest.mark.weekly),
    ],
)
def test_what_is_done_to_served_tensors_changes_nothing_that_is_served_later(
    split: int, planner: Planner, kernels: Literal["dali"] | None, source: ImageFolder
) -> None:
    served: list[Batches] = []
    for change in (False, True):
        batches: Batches = []
        with Loader(
            source,
            simple(SIZE, split=split),
            planner,
            MemoryStore(),
            prefetch=Prefetch(batches_per_group=2),
            kernels=kernels,
        ) as loader:
            for _ in range(3):
                for images, labels in loader:
                    batches.append((images.clone(), labels.clone()))
                    if change:
                        images.zero_()
                        labels.zero_()
        served.append(batches)
    assert_same(*served)


def test_a_tensor_that_is_kept_is_never_written_again(source: ImageFolder) -> None:
    with make(source, batches_per_group=2) as loader:
        kept = [(images, images.clone()) for _ in range(6) for images, _ in loader]
    assert_same(*([(images, images) for images in side] for side in zip(*kept, strict=True)))
