"""One batch through the graph, without planner, store or loader."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.graph import Feed, Graph, HeaderReader, Replica
from dalirefurb.recipe import Output, Recipe, draw

MAX_BATCH_SIZE = 512


def levels(size: int) -> Output:
    """Leave pixels as they are: 0 .. 255."""
    return Output(size, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))


def serve(
    recipe: Recipe, samples: Sequence[NDArray[np.uint8]], *, seed: int = 0, number: int = 0
) -> NDArray[np.float32]:
    """Serve samples 0 .. n-1 with version = serving = `number`; shape (n, 3, H, W)."""
    indices = np.arange(len(samples))
    feeds: dict[str, Feed] = {"sample": list(samples)}
    heights, widths = sizes(recipe, samples)
    for stages in (recipe.partial, recipe.final):
        arrays, heights, widths = draw(
            stages,
            seed=seed,
            indices=indices,
            numbers=np.full_like(indices, number),
            heights=heights,
            widths=widths,
        )
        feeds |= {f"{stage}/{name}": rows for stage, named in arrays.items() for name, rows in named.items()}
    replica = _replica(recipe)
    replica.submit(feeds)
    return np.array(replica.collect()[0])


def sizes(recipe: Recipe, samples: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return heights and widths."""
    if recipe.encoded:
        return HeaderReader(MAX_BATCH_SIZE).sizes(samples)
    shapes = np.array([sample.shape for sample in samples])
    return shapes[:, 0], shapes[:, 1]


@lru_cache(maxsize=4)
def _replica(recipe: Recipe) -> Replica:
    graph = Graph(recipe, caching=False)
    serialized = graph.serialize(max_batch_size=MAX_BATCH_SIZE, num_threads=1)
    return Replica(graph, serialized, num_threads=1, device_id=None)
