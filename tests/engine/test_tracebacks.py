"""What is printed of an error that came about in a loader's threads, or where its graph was made."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dalirefurb import (
    Arrays,
    Custom,
    Evaluate,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Recipe,
    Refurbish,
    Standard,
    TorchDataset,
    evaluate,
    simple,
)
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.engine.preparer import Preparer
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError, shortened
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.planner import Planner
from tests.pictures import write_folder

SIZE = 32
COUNT = 16
MOST_LINES = 30
LABELS = list(range(COUNT))
REUSED = Refurbish(COUNT, batch_size=4, reuse_factor=2)
TOLD = "each stage is applied once, to make a loader, and must return nodes of DALI's that run no Python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=COUNT))


def failing(make: Callable[[], Any], *, kind: type[Exception]) -> tuple[Any, str]:
    """Make a loader, or a view of one, and iterate it; return the error that comes of it, and what is printed."""
    try:
        with make() as loader:
            for _ in loader:
                pass
    except kind as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        assert len([line for line in text.splitlines() if line.strip()]) <= MOST_LINES, text
        assert "_autograph" not in text
        return error, text
    raise AssertionError("nothing was raised")


class OwnError(Exception):
    def __init__(self, number: int, word: str) -> None:
        super().__init__(f"{word} {number}")
        self.number = number


def raising(images: Any) -> Any:
    raise OwnError(7, "no")  # the line of a stage that raises


def out_of_bounds(images: Any) -> Any:
    from nvidia.dali import fn

    return fn.slice(images, 40.0, 50.0, axes=[0], normalized_anchor=False, normalized_shape=False)


def of_python(images: Any) -> Any:
    from nvidia.dali import fn

    return fn.python_function(images, function=lambda image: image)


def with_stage(source: ImageFolder, function: Callable[..., Any], part: str, planner: Planner = REUSED) -> Loader:
    stages = [*simple(SIZE).stages, Custom(function, "mine", size=(SIZE, SIZE))]
    recipe = Recipe(stages, Output(SIZE), split=4 if part == "partial" else 3)
    return Loader(source, recipe, planner, MemoryStore())


@pytest.mark.parametrize("part", ["partial", "final"])
def test_a_stage_that_raises_is_shown_with_its_line_type_attributes_and_what_it_is_called_for(
    folder: ImageFolder, part: str
) -> None:
    error, text = failing(lambda: with_stage(folder, raising, part), kind=OwnError)
    assert (error.number, str(error).splitlines()[0]) == (7, "no 7")
    if sys.version_info >= (3, 11):
        assert str(error) == "no 7"
    assert 'raise OwnError(7, "no")' in text
    assert TOLD in text


def test_a_graph_that_is_made_when_ranks_are_known_fails_as_shortly(folder: ImageFolder) -> None:
    planner = Refurbish(COUNT, batch_size=4, reuse_factor=2, shards=2)
    _, text = failing(lambda: with_stage(folder, raising, "final", planner), kind=OwnError)
    assert 'raise OwnError(7, "no")' in text
    assert TOLD in text


def test_a_stage_that_would_call_python_later_is_told_what_it_must_return(folder: ImageFolder) -> None:
    _, text = failing(lambda: with_stage(folder, of_python, "final"), kind=RuntimeError)
    assert "Could not serialize the operator: `nvidia.dali.fn.python_function`" in text
    assert TOLD in text


@pytest.mark.parametrize("part", ["partial", "final"])
def test_an_operator_of_a_stage_that_fails_later_is_shown_with_the_stages_line(folder: ImageFolder, part: str) -> None:
    _, text = failing(lambda: with_stage(folder, out_of_bounds, part), kind=LoaderError)
    assert "return fn.slice(images, 40.0, 50.0" in text
    assert "batch 0 of epoch 0 failed in the graph: Slice can't be placed out of bounds" in text
    assert "GraphError" not in text


def test_a_stage_that_numba_cannot_compile_is_shown_with_its_line() -> None:
    def undefined(image: Any, uniforms: Any, out: Any) -> None:
        out[:] = image.undefined

    source = Arrays(np.zeros((COUNT, SIZE, SIZE, 3), np.uint8), LABELS)
    recipe = Recipe([KernelStage(undefined, "mine")], Output(SIZE), split=0)
    _, text = failing(lambda: Loader(source, recipe, Standard(COUNT, batch_size=4)), kind=ConfigurationError)
    assert "out[:] = image.undefined" in text
    assert "must be a function that Numba compiles" in text


class Failing(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        if index == 7:
            missing: dict[str, int] = {}
            missing["the user's key"]  # the user's line
        return np.zeros((SIZE, SIZE, 3), np.uint8), index

    def __len__(self) -> int:
        return COUNT


PLANNERS: dict[str, Planner] = {
    "standard": Standard(COUNT, batch_size=4),
    "refurbished": REUSED,
    "batches echoed": BatchEcho(Standard(COUNT, batch_size=4), echoing_factor=2),
    "samples echoed": Echo(Standard(COUNT, batch_size=4), echoing_factor=2, buffer_size=4),
    "evaluated": Evaluate(COUNT, batch_size=4),
}


@pytest.mark.parametrize("kernels", ["numba", "dali"])
@pytest.mark.parametrize("planner", PLANNERS)
def test_a_dataset_that_raises_is_shown_with_its_line_and_the_samples_name(planner: str, kernels: Any) -> None:
    def make() -> Loader:
        source, preset = TorchDataset(Failing(), labels=LABELS), evaluate if planner == "evaluated" else simple
        return Loader(source, preset(SIZE).for_arrays(), PLANNERS[planner], MemoryStore(), kernels=kernels)

    error, text = failing(make, kind=SampleError)
    assert (error.index, error.name) == (7, "Failing[7]")
    assert isinstance(error.__cause__, KeyError)
    assert 'missing["the user\'s key"]' in text
    assert 'sample 7 (Failing[7]): cannot be read: KeyError: "the user\'s key"; see to it' in text
    assert text.count("Traceback") == 2


def test_a_source_that_raises_is_shown_from_its_read_on() -> None:
    def found() -> Any:
        raise TypeError("of the source")  # a line further in

    class Own(Arrays):
        def read(self, indices: NDArray[np.int64]) -> Any:
            return found()

    source = Own(np.zeros((COUNT, SIZE, SIZE, 3), np.uint8), LABELS)
    _, text = failing(
        lambda: Loader(source, simple(SIZE).for_arrays(), Standard(COUNT, batch_size=4)), kind=SampleError
    )
    assert "return found()" in text
    assert 'raise TypeError("of the source")' in text


@pytest.mark.parametrize("kernels", ["numba", "dali"])
@pytest.mark.parametrize("harm", ["truncated", "no image", "gone"])
def test_a_file_that_is_broken_is_named_in_a_few_lines(tmp_path: Path, harm: str, kernels: Any) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=COUNT))
    victim = next(tmp_path.rglob("003.jpg"))
    if harm == "truncated":
        victim.write_bytes(victim.read_bytes()[:-200])
    elif harm == "no image":
        victim.write_text("none")
    else:
        victim.unlink()
    error, text = failing(
        lambda: Loader(source, simple(SIZE), REUSED, MemoryStore(), kernels=kernels), kind=SampleError
    )
    assert error.name == str(victim)
    assert f"SampleError: sample {error.index} ({victim}): " in text


def test_a_planner_of_the_users_keeps_its_own_error_and_line(folder: ImageFolder) -> None:
    class Own(Standard):
        def plan(self, epoch: int, batch: int) -> BatchPlan:
            if batch:
                raise ZeroDivisionError("of the planner")
            return super().plan(epoch, batch)

    _, text = failing(lambda: Loader(folder, simple(SIZE), Own(COUNT, batch_size=4)), kind=ZeroDivisionError)
    assert 'raise ZeroDivisionError("of the planner")' in text


def test_a_function_of_a_view_is_shown_with_its_line(folder: ImageFolder) -> None:
    def function(batch: Any) -> Any:
        raise KeyError("of the function")

    _, text = failing(lambda: Loader(folder, simple(SIZE), Standard(COUNT, batch_size=4)).map(function), kind=KeyError)
    assert 'raise KeyError("of the function")' in text


def test_what_nobody_meant_to_raise_is_shown_with_all_of_its_way(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Preparer, "_collect", lambda *_: None)
    with (
        Loader(folder, simple(SIZE), Standard(COUNT, batch_size=4)) as loader,
        pytest.raises(AttributeError) as caught,
    ):
        next(iter(loader))
    names = [entry.name for entry in caught.traceback]
    assert {"take", "work", "_finish", "_collect"} <= {*names}


def test_an_interrupt_while_a_batch_is_waited_for_is_a_few_lines(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    with Loader(folder, simple(SIZE), Standard(COUNT, batch_size=4)) as loader:
        wait, here = threading.Condition.wait, threading.get_ident()

        def interrupted(condition: threading.Condition, timeout: float | None = None) -> bool:
            if threading.get_ident() == here:
                raise KeyboardInterrupt
            return wait(condition, timeout)

        batches = iter(loader)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Condition, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt) as caught:
                list(batches)
        assert len(caught.traceback) <= 4
        assert len([*batches]) <= 4


def test_causes_that_lead_in_a_circle_are_shortened_too() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert shortened(one) is one
