"""One stage alone, on images of any sizes, by DALI's operators or by kernels; and what it draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.stage import Arrays, Stage
from dalirefurb.testing import StageContract
from dalirefurb.testing.stage import dali_maker, kernel_maker

Picture = NDArray[np.uint8]
Maker = Literal["dali", "kernels"]

MAKERS: tuple[Maker, ...] = ("dali", "kernels")

AUGMENT = Path(__file__).with_name("augment")

cached_dali_maker = lru_cache(maxsize=64)(dali_maker)


def drawn(stage: Stage, pictures: Sequence[Picture], seed: int = 0) -> Arrays:
    """Draw for pictures, from the generator that the loader draws from."""
    heights, widths, _ = np.array([picture.shape for picture in pictures]).T
    indices = np.arange(len(pictures))
    return stage.draw(rng.uniforms(seed, stage.name, indices, 0 * indices, stage.num_uniforms), heights, widths)


def drawn_for_size(
    stage: Stage, *, height: int, width: int, rows: int = 20_000, seed: int = 0
) -> tuple[NDArray[np.float64], Arrays]:
    """Draw for `rows` samples of one size; return the uniforms, too."""
    indices = np.arange(rows)
    uniforms = rng.uniforms(seed, stage.name, indices, 0 * indices, stage.num_uniforms)
    return uniforms, stage.draw(uniforms, np.full(rows, height), np.full(rows, width))


def made(
    stage: Stage, pictures: Sequence[Picture], parameters: Mapping[str, NDArray[Any]] | None = None, *, by: Maker
) -> list[Picture]:
    """Apply a stage to pictures, by default with what it draws."""
    if by == "kernels":
        pytest.importorskip("numba")
    maker = cached_dali_maker(stage) if by == "dali" else kernel_maker(stage)
    assert maker is not None
    return maker(pictures, drawn(stage, pictures) if parameters is None else parameters)


def repeated(count: int, **parameters: Any) -> dict[str, NDArray[Any]]:
    """Give each of `count` pictures the same parameters."""
    return {name: np.repeat(np.asarray(value)[None], count, axis=0) for name, value in parameters.items()}


@cache
def held() -> Mapping[type[Stage], Sequence[Stage]]:
    """Return every kind of stage that a test of `tests/augment` holds to the contract: one, and others beside it.

    A new one needs a class derived from `StageContract` in a file there: tests of recipes, of kernels and of numbers
    find it by this.
    """
    texts = {path.stem: path.read_text() for path in sorted(AUGMENT.glob("test_*.py"))}
    modules = {name: import_module(f"tests.augment.{name}") for name, text in texts.items() if "StageContract" in text}
    ours = modules["test_stage_contract"]
    kinds = {type(stages[0]): stages for stages in ours.ALL}
    for contract in _derived(StageContract):
        if contract.__module__.startswith("tests.augment.") and contract is not ours.TestStage:
            stages = contract().stages()
            kinds.setdefault(type(stages[0]), stages)
    return kinds


def _derived(parent: type[StageContract]) -> Iterator[type[StageContract]]:
    for child in parent.__subclasses__():
        yield child
        yield from _derived(child)


def changed(stages: Sequence[Stage]) -> dict[str, Any]:
    """Return fields of a stage with another value each, as those beside it have it alone."""
    first, *others = stages
    names = [each.name for each in fields(first)]  # type: ignore[arg-type]
    differing = [[name for name in names if getattr(other, name) != getattr(first, name)] for other in others]
    return {each[0]: getattr(other, each[0]) for each, other in zip(differing, others, strict=True) if len(each) == 1}
