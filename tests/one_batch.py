"""One batch through the graph, without planner, store or loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import pipeline_def

from dalirefurb.augment.output import Output
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, draw
from dalirefurb.dali import Feed, Graph, Replica
from dalirefurb.reading.inspector import Inspector
from dalirefurb.source.levels import Levels

MAX_BATCH_SIZE = 512


def levels(size: int) -> Output:
    """Leave pixels as they are: 0 .. 255."""
    return Output(size, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))


def serve(
    recipe: Recipe, samples: Sequence[NDArray[np.uint8]], *, seed: int = 0, number: int = 0
) -> NDArray[np.float32]:
    """Serve samples 0 .. n-1 with version = serving = `number`; shape (n, 3, H, W)."""
    indices = np.arange(len(samples))
    numbers = np.full_like(indices, number)
    feeds: dict[str, Feed] = {"sample": list(samples)}
    heights, widths = sizes(recipe, samples)
    for stages in (recipe.partial, recipe.final):
        arrays, heights, widths = draw(
            stages,
            seed=seed,
            indices=indices,
            numbers=numbers,
            heights=heights,
            widths=widths,
            versions=numbers,
        )
        feeds |= {f"{stage}/{name}": rows for stage, named in arrays.items() for name, rows in named.items()}
    replica = _replica(recipe)
    replica.submit(feeds)
    return np.array(replica.collect().as_tensor())


def sizes(recipe: Recipe, samples: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return heights and widths."""
    if recipe.encoded:
        inspector = Inspector(len(samples), max_pixels=None, levels=Levels())
        return inspector.look(np.arange(len(samples)), list(samples))
    shapes = np.array([sample.shape for sample in samples])
    return shapes[:, 0], shapes[:, 1]


@lru_cache(maxsize=4)
def _replica(recipe: Recipe) -> Replica:
    graph = Graph(recipe, "whole")
    serialized = graph.serialize(max_batch_size=MAX_BATCH_SIZE, num_threads=1)
    return Replica.of(graph, serialized, num_threads=1, device_id=None)


@lru_cache(maxsize=8)
def operation_pipeline(layer: OperationLayer, device: Device = "cpu", device_id: int | None = None) -> Any:
    """Return a pipeline of a layer's operations alone; all tables' operations are told apart by their parameters."""

    @pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
    def graph() -> Any:
        images = fn.external_source(name="images", dtype=types.UINT8, ndim=3, layout="HWC")
        group = fn.external_source(name="group", dtype=types.INT32, ndim=0)
        matrix = fn.external_source(name="matrix", dtype=types.FLOAT, ndim=2)
        images = images.gpu() if device == "gpu" else images
        return layer.apply(images, {"group": group, "matrix": matrix})

    return graph(batch_size=MAX_BATCH_SIZE, num_threads=2, device_id=device_id, prefetch_queue_depth=1)


def operate(
    pipeline: Any, pictures: Sequence[NDArray[np.uint8]], parameters: Mapping[str, NDArray[Any]]
) -> list[NDArray[np.uint8]]:
    """Apply one operation to each picture."""
    pipeline.feed_input("images", list(pictures))
    for name, values in parameters.items():
        pipeline.feed_input(name, values)
    (output,) = pipeline.run()
    assert output.layout() == "HWC"
    return [np.array(image) for image in output.as_cpu()]
