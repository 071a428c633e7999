"""One stage alone, on images of any sizes, by DALI's operators or by kernels; and what it draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import pipeline_def

from dalirefurb import rng
from dalirefurb.augment.stage import Arrays, Device, Stage

Picture = NDArray[np.uint8]
Maker = Literal["dali", "kernels"]

MAKERS: tuple[Maker, ...] = ("dali", "kernels")

_MAX_BATCH_SIZE = 256


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
    given = drawn(stage, pictures) if parameters is None else parameters
    return _by_dali(stage, pictures, given) if by == "dali" else _by_kernels(stage, pictures, given)


def repeated(count: int, **parameters: Any) -> dict[str, NDArray[Any]]:
    """Give each of `count` pictures the same parameters."""
    return {name: np.repeat(np.asarray(value)[None], count, axis=0) for name, value in parameters.items()}


@lru_cache(maxsize=64)
def stage_pipeline(stage: Stage, device: Device = "cpu") -> Any:
    """Return a pipeline of a stage alone."""

    @pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
    def graph() -> Any:
        images = fn.external_source(name="images", dtype=types.UINT8, ndim=3, layout="HWC")
        parameters = {
            name: fn.external_source(name=name, dtype=_DTYPES[parameter.dtype], ndim=len(parameter.shape))
            for name, parameter in stage.parameters.items()
        }
        return stage.apply(images.gpu() if device == "gpu" else images, parameters)

    return graph(batch_size=_MAX_BATCH_SIZE, num_threads=2, device_id=None, prefetch_queue_depth=1)


_DTYPES = {"float32": types.FLOAT, "int32": types.INT32, "uint8": types.UINT8}


def _by_dali(stage: Stage, pictures: Sequence[Picture], parameters: Mapping[str, NDArray[Any]]) -> list[Picture]:
    pipeline = stage_pipeline(stage)
    pipeline.feed_input("images", list(pictures))
    for name, values in parameters.items():
        pipeline.feed_input(name, values)
    (output,) = pipeline.run()
    assert output.layout() == "HWC"
    images = [np.array(image) for image in output.as_cpu()]
    assert all(image.dtype == np.uint8 for image in images)
    return images


def _by_kernels(stage: Stage, pictures: Sequence[Picture], parameters: Mapping[str, NDArray[Any]]) -> list[Picture]:
    pytest.importorskip("numba")
    from dalirefurb.kernels.lower import steps_of
    from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
    from tests.kernels.runners import runner_of

    steps = steps_of((stage,))
    assert steps is not None
    runner = runner_of(steps, None, DecodePipelines([], DecodePipeline(None, max_rows=1, num_threads=1)))
    named = {f"{stage.name}/{name}": values for name, values in parameters.items()}
    runner.submit({"sample": list(pictures), **named})
    return [np.array(image) for image in runner.collect()]
