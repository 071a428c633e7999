"""Batches in another form: mappings, what a function makes, and copies that are under way before they are asked for."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, AutoAssist, CudaPrefetch, Loader, MemoryStore, Output, Recipe, Refurbish, Standard
from dalirefurb.augment import HorizontalFlip
from dalirefurb.engine.engine import Engine
from dalirefurb.errors import ConfigurationError, LoaderError
from tests.pictures import write_folder

COUNT, ROWS = 10, 4
SOURCE = Arrays(np.arange(COUNT * 192, dtype=np.uint16).astype(np.uint8).reshape(COUNT, 8, 8, 3), np.arange(COUNT))
RECIPE = Recipe([HorizontalFlip()], Output(8), split=1)


def make(**settings: Any) -> Loader:
    return Loader(SOURCE, RECIPE, Refurbish(COUNT, batch_size=ROWS, reuse_factor=2), MemoryStore(), **settings)


def told(batch: Any) -> list[bytes]:
    return [part.numpy().tobytes() for part in batch]


@cache
def whole_stream() -> list[list[bytes]]:
    with make() as loader:
        return [told(batch) for _ in range(4) for batch in loader]


def stream(epochs: int) -> list[list[bytes]]:
    return whole_stream()[: 3 * epochs]


def test_batches_are_mappings_with_the_names_that_are_asked_for() -> None:
    with make() as loader:
        batches = [*loader.as_dicts()]
    assert [[*batch] for batch in batches] == [["pixel_values", "labels"]] * 3
    assert [told(batch.values()) for batch in batches] == stream(1)
    with make(with_indices=True) as loader:
        (batch, *_) = loader.as_dicts("image", "target", "index")
        assert [*batch] == ["image", "target", "index"]
        assert torch.equal(batch["index"], batch["target"])
        assert [*next(iter(loader.as_dicts()))] == ["pixel_values", "labels", "indices"]


@pytest.mark.parametrize("names", [("x", "x"), (1, "y"), (["x"], "y"), ("x", "y", "x")])
def test_names_that_cannot_be_are_refused(names: Any) -> None:
    with (
        make(with_indices=len(names) > 2) as loader,
        pytest.raises(ConfigurationError, match="names must be different texts, got"),
    ):
        loader.as_dicts(*names)


def test_a_view_is_the_loader_in_all_else() -> None:
    with make() as loader:
        view = loader.map(lambda batch: batch[1].tolist())
        assert len(view) == 3
        labels = [label for batch in view for label in batch]
        assert sorted(labels) == [*range(COUNT)]
        assert (view.epoch, view.dataset, view.planner) == (1, SOURCE, loader.planner)
        view.set_epoch(7)
        assert loader.epoch == 7
        passing = iter(view)
        next(passing)
        assert view.state_dict() == loader.state_dict()
        assert repr(view) == f"{loader!r}.map(<lambda>)"
        assert repr(loader.as_dicts()) == f"{loader!r}.map(pixel_values + labels)"
        with pytest.raises(AttributeError, match="no attribute 'foo'"):
            view.foo  # noqa: B018
        with pytest.raises(
            LoaderError, match=r"a loader cannot be pickled or copied, .*: make it, and views of it, in"
        ):
            pickle.dumps(view)
        with pytest.raises(ConfigurationError, match="function must be callable, got 3"):
            loader.map(3)  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match="closed"):
        next(iter(view))
    with make() as loader:
        with loader.as_dicts() as view:
            next(iter(view))
        with pytest.raises(LoaderError, match="closed"):
            next(iter(loader))


def ask(module: str, function: str, *, given: Any, frame: str = "") -> Any:
    """Have a function of another module ask about a loader, called as another one does if that is named."""
    body = {"<genexpr>": "def ask(given): return next(isinstance(given, str) for _ in [0])"}
    names: dict[str, Any] = {"__name__": module}
    exec(body.get(function, f"def {function}(given): return given.dataset"), names)
    if frame:
        exec(f"def {frame}(self, given): return {function}(given)", names)
    return names[frame or ("ask" if function in body else function)]


@pytest.mark.parametrize(
    ("module", "function", "told"),
    [
        ("accelerate.accelerator", "prepare", "Accelerate passes by what is no DataLoader"),
        ("accelerate.data_loader", "skip_first_batches", "Accelerate passes by what is no DataLoader"),
        ("accelerate.data_loader", "prepare_data_loader", "Accelerate passes by what is no DataLoader"),
        ("ray.train.torch.train_loop_utils", "prepare_data_loader", "Ray would serve its dataset without the recipe"),
        ("ray.train.v2.torch.train_loop_utils", "prepare_data_loader", "Ray would serve its dataset without the"),
        ("lightning.fabric.fabric", "<genexpr>", "Fabric takes DataLoaders only"),
        ("lightning_fabric.fabric", "<genexpr>", "Fabric takes DataLoaders only"),
    ],
)
def test_who_would_lose_a_loaders_place_is_refused_by_name(module: str, function: str, told: str) -> None:
    with make() as loader:
        for given in (loader, loader.as_dicts()):
            message = re.escape(f"must not be given to {module}.{function} as it is: {told}")
            with pytest.raises(ConfigurationError, match=message):
                ask(module, function, given=given)(given)
            ask(f"{module}s", function, given=given)(given)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, False),
        ({"restarting": True}, False),
        ({"states": [1]}, False),
        ({"restarting": True, "states": [1]}, True),
        ({"ready": 3}, True),
        ({"restarted_on_epoch_start": True}, True),
        ({"restarted_on_epoch_end": True}, True),
        ({"restarted_on_epoch_end": True, "is_resuming": False}, False),
    ],
)
def test_lightning_is_refused_a_loader_where_it_goes_on_elsewhere(changes: dict[str, Any], lost: bool) -> None:
    told: dict[str, Any] = {"restarted_on_epoch_start": False, "restarted_on_epoch_end": False, "restarting": False}
    told |= {"is_resuming": True, "states": [], "ready": 2} | changes
    current = SimpleNamespace(ready=told.pop("ready"), processed=2)
    progress = SimpleNamespace(batch_progress=SimpleNamespace(current=current))
    fit = SimpleNamespace(epoch_loop=progress, _combined_loader_states_to_load=told.pop("states"), **told)
    with make() as loader:
        begin = ask("lightning.pytorch.loops.utilities", "_set_sampler_epoch", given=loader, frame="on_advance_start")
        if lost:
            with pytest.raises(ConfigurationError, match="Lightning does not load the loader's place"):
                begin(fit, loader)
        else:
            assert begin(fit, loader) is SOURCE


def test_views_are_made_of_views() -> None:
    with make(with_indices=True) as loader:
        halves = loader.map(lambda batch: (batch[0] / 2, *batch[1:]))
        named = halves.as_dicts("image", "target", "index").map(lambda batch: {**batch, "more": 1})
        for batch, (image, target, index) in zip([*named], make(with_indices=True), strict=True):
            assert torch.equal(batch["image"], image / 2)
            assert torch.equal(batch["target"], target)
            assert torch.equal(batch["index"], index)
            assert batch["more"] == 1
        with pytest.raises(LoaderError, match=r"not a view's: call view.loader.dali_iterator\(\)"):
            halves.dali_iterator(["data", "label"], auto_reset=True)


# CudaPrefetch, on a machine that has no GPU: what it does, in order.


COPIED = CudaPrefetch._copied


class Device:
    """What stands for a GPU."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.places: set[str] = set()
        self.on: list[str] = ["model"]


class Stream:
    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name = device, name

    def wait_stream(self, other: Stream) -> None:
        self.device.done.append(f"{self.name} waits for {other.name}")


class Copied(torch.Tensor):
    """A tensor that says by which stream it is read."""

    gpu: Device

    def record_stream(self, stream: Any) -> None:
        self.gpu.done.append(f"kept for {stream.name}")

    def to(self, device: Any, *, non_blocking: bool = False) -> Any:
        self.gpu.done.append(f"{'begun' if non_blocking else 'done'} on {device}")
        return self


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        device.on.append(stream.name)
        yield
        device.on.pop()

    def copied(prefetch: CudaPrefetch, tensor: torch.Tensor) -> torch.Tensor:
        device.done.append(f"copy on {device.on[-1]}")
        copy = tensor.clone().as_subclass(Copied)
        copy.gpu = device
        return copy

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def stream(where: Any, name: str) -> Stream:
        device.places.add(str(where))
        return Stream(device, name)

    monkeypatch.setattr(torch.cuda, "Stream", lambda where: stream(where, "side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: stream(where, device.on[-1]))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(CudaPrefetch, "_copied", copied)
    return device


def test_the_copy_of_the_next_batch_is_begun_before_a_batch_is_served(gpu: Device) -> None:
    batches = [torch.full((2,), float(k)) for k in range(3)]
    for k, batch in enumerate(CudaPrefetch(batches)):
        assert torch.equal(batch, batches[k])
        gpu.done.append(f"step {k}")
    served = ["model waits for side", "kept for model"]
    copy = ["copy on side"]
    assert gpu.done == [*copy, *served, *copy, "step 0", *served, *copy, "step 1", *served, "step 2"]


class Named(NamedTuple):
    """A batch with names."""

    image: Any
    note: str


def test_batches_keep_their_form_and_go_to_the_device_that_is_asked_for(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaPrefetch, "_copied", COPIED)
    tensor = torch.ones(2).as_subclass(Copied)
    tensor.gpu = gpu
    for batch in (Named(tensor, "a"), [tensor, 3], {"image": (tensor, None)}):
        gpu.done.clear()
        (served,) = CudaPrefetch([batch], "cuda:3")
        assert (type(served), str(served)) == (type(batch), str(batch))
        assert gpu.done == ["begun on cuda:3", "model waits for side", "kept for model"]
    assert gpu.places == {"cuda:3"}


@pytest.mark.parametrize("form", ["tuples", "mappings"])
def test_every_batch_is_served_once_and_in_order(gpu: Device, form: str) -> None:
    with make() as loader:
        prefetch = CudaPrefetch(loader.as_dicts() if form == "mappings" else loader)
        assert len(prefetch) == 3
        batches = [batch.values() if form == "mappings" else batch for _ in range(2) for batch in prefetch]
        assert [told(batch) for batch in batches] == stream(2)


# Each batch of an epoch, and the middle of the second one.
@pytest.mark.parametrize("served", [1, 2, 3, 5])
def test_a_state_is_that_of_the_batch_that_was_served_last(gpu: Device, served: int) -> None:
    wanted = stream(4)
    with make() as loader:
        prefetch, state = CudaPrefetch(loader), None
        count = 0
        while count < served:
            for _ in prefetch:
                count += 1
                if count == served:
                    state = prefetch.state_dict()
                    break
    with make() as loader:
        prefetch = CudaPrefetch(loader)
        prefetch.load_state_dict(state)
        rest = [told(batch) for _ in range(2) for batch in prefetch]
        assert rest == wanted[served:][: len(rest)]
        assert len(rest) >= 3


def test_a_pass_that_is_left_begins_the_next_epoch(gpu: Device) -> None:
    wanted = stream(2)
    for left_after in (1, 2, 3):
        with make() as loader:
            prefetch = CudaPrefetch(loader)
            for count, _ in enumerate(prefetch, 1):
                if count == left_after:
                    break
            assert [told(batch) for batch in prefetch] == wanted[3:]


def test_an_error_comes_after_the_batches_before_it(gpu: Device) -> None:
    def failing() -> Iterator[torch.Tensor]:
        yield torch.zeros(1)
        yield torch.ones(1)
        raise LoaderError("no third one")

    batches = iter(CudaPrefetch(failing()))
    assert [next(batches).item() for _ in range(2)] == [0, 1]
    with pytest.raises(LoaderError, match="no third one"):
        next(batches)


def test_a_state_is_loaded_in_the_middle_of_a_pass(gpu: Device) -> None:
    wanted = stream(1)
    with make() as loader:
        prefetch = CudaPrefetch(loader)
        begin = prefetch.state_dict()
        next(iter(prefetch))
        prefetch.load_state_dict(begin)
        assert [told(batch) for batch in prefetch] == wanted


def test_it_can_be_mapped(gpu: Device) -> None:
    with make() as loader:
        batch = next(iter(CudaPrefetch(loader).as_dicts()))
        assert isinstance(batch["pixel_values"], Copied)


def test_the_epoch_is_that_of_the_batch_that_is_served_next(gpu: Device) -> None:
    with make() as loader, make() as other:
        prefetch = CudaPrefetch(loader)
        for _ in range(2):
            for _, _ in zip(prefetch, other, strict=True):
                assert prefetch.epoch == other.epoch
            assert prefetch.epoch == other.epoch


@pytest.mark.parametrize("served", [1, 2])
def test_a_pass_ends_with_an_error_where_the_loader_was_moved(gpu: Device, served: int) -> None:
    with make() as loader:
        prefetch = CudaPrefetch(loader)
        for move in (
            lambda: prefetch.load_state_dict({**loader.state_dict(), "epoch": 5, "batch": 0}),
            lambda: prefetch.set_epoch(7),
            lambda: prefetch.sampler.set_epoch(9),
        ):
            batches = iter(prefetch)
            for _ in range(served):
                next(batches)
            move()
            assert prefetch.epoch == loader.epoch
            assert prefetch.state_dict() == loader.state_dict()
            with pytest.raises(LoaderError, match="a pass that has begun must end before the loader is moved"):
                next(batches)


def test_a_second_pass_ends_the_first_one_with_an_error(gpu: Device) -> None:
    wanted = stream(2)
    with make() as loader:
        prefetch = CudaPrefetch(loader)
        one = iter(prefetch)
        next(one)
        other = iter(prefetch)
        assert told(next(other)) == wanted[3]
        with pytest.raises(LoaderError, match="must end before the loader is moved or iterated again"):
            next(one)
        assert [told(batch) for batch in other] == wanted[4:]


def test_a_batch_whose_way_was_interrupted_is_in_the_state(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, copied, copies = stream(1), CudaPrefetch._copied, iter(range(100))

    def interrupted(prefetch: CudaPrefetch, tensor: torch.Tensor) -> torch.Tensor:
        if next(copies) == 4:  # Images of the third batch.
            raise KeyboardInterrupt
        return copied(prefetch, tensor)

    monkeypatch.setattr(CudaPrefetch, "_copied", interrupted)
    with make() as loader:
        prefetch = CudaPrefetch(loader)
        batches = iter(prefetch)
        next(batches)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        prefetch.load_state_dict(prefetch.state_dict())
        assert [told(batch) for batch in prefetch] == wanted[1:]


@pytest.mark.parametrize("served", [1, 2, 3])
def test_after_a_loop_that_was_left_the_epoch_is_the_next_one_and_resume_serves_the_rest(
    gpu: Device, served: int
) -> None:
    wanted = stream(3)
    for resumes in (False, True):
        with make() as loader:
            prefetch = CudaPrefetch(loader)
            mapped = prefetch.map(lambda batch: batch)
            for count, _ in enumerate(mapped, 1):
                if count == served:
                    break
            assert prefetch.epoch == mapped.epoch == loader.epoch == 1
            if resumes:
                assert mapped.resume() is mapped
                assert prefetch.epoch == loader.epoch == served // 3
            rest = [told(batch) for _ in range(prefetch.epoch, 2) for batch in mapped]
            assert rest == wanted[served if resumes else 3 : 6]
            assert prefetch.epoch == loader.epoch == 2


@pytest.mark.parametrize("where", ["a copy", "the loader"])
def test_an_interrupt_that_somebody_keeps_leaves_the_loop_too(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wanted, copied, take, calls = stream(2), CudaPrefetch._copied, Engine.take, iter(range(100))

    def interrupted(owner: Any, *arguments: Any) -> Any:
        if next(calls) == 2:  # The third tensor that is copied, or the third batch that is taken.
            raise KeyboardInterrupt
        return copied(owner, *arguments) if where == "a copy" else take(owner)

    with make() as loader, monkeypatch.context() as patch:
        patch.setattr(*((CudaPrefetch, "_copied") if where == "a copy" else (Engine, "take")), interrupted)
        prefetch = CudaPrefetch(loader)
        with pytest.raises(KeyboardInterrupt) as kept:
            list(prefetch)
        patch.undo()
        assert prefetch.epoch == loader.epoch == 1
        served = 0 if where == "a copy" else 1
        assert [told(batch) for _ in range(prefetch.resume().epoch, 2) for batch in prefetch] == wanted[served:]
        del kept


def test_what_cannot_be_copied_ahead_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ConfigurationError, match="needs a CUDA device, and torch finds none: iterate the loader"):
            CudaPrefetch([])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ConfigurationError, match="copies to a CUDA device, got cpu: pass such as 'cuda:0'"):
        CudaPrefetch([], "cpu")
    planner = AutoAssist(Standard(COUNT, batch_size=ROWS), lag=20)
    with (
        Loader(SOURCE, RECIPE, planner) as loader,
        pytest.raises(ConfigurationError, match="AutoAssist needs the losses of each batch before the next one"),
    ):
        CudaPrefetch(loader)


def test_the_documents_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "photos" / "train", num_samples=64, classes=2)
    monkeypatch.chdir(tmp_path)
    document = Path(__file__).parents[2] / "docs" / "batches.md"
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        exec(example, names)
    with names["loader"]:
        assert names["images"].shape == (64, 3, 256, 128)
        assert names["images"].dtype == torch.bfloat16
        assert [*names["batch"]] == ["image", "label"]
        assert names["labels"].dtype == torch.float32
