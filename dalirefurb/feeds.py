"""What goes into the graph for one batch? Drawn parameters, samples and cached images, laid out row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays
from dalirefurb.graph import Feed
from dalirefurb.plan import BatchPlan
from dalirefurb.reader import Samples
from dalirefurb.recipe import Recipe, draw

_NO_BYTES = np.empty(0, np.uint8)
_NO_IMAGE = np.empty((0, 0, 3), np.uint8)

Images = Sequence[NDArray[np.uint8] | None]


class Feeder:
    """Lays out batches of one recipe. Rows that the graph will discard are empty, or 0.

    Args:
        recipe: Whose parameters are drawn.
        seed: The run's.
        entering: Shape of the source's images, None where it varies.
        caching: Whether the graph takes cached images.
    """

    def __init__(self, recipe: Recipe, *, seed: int, entering: tuple[int, int, int] | None, caching: bool) -> None:
        self._recipe = recipe
        self._seed = seed
        self._caching = caching
        self._no_sample = _NO_BYTES if recipe.encoded else _NO_IMAGE
        self._nothing = {
            stage.name: {
                name: np.empty((0, *parameter.shape), parameter.dtype) for name, parameter in stage.parameters.items()
            }
            for stage in recipe.partial
        }
        self.partial_size = recipe.partial_size(None if entering is None else entering[:2])

    def lay_out(self, plan: BatchPlan, rows: NDArray[np.int64], samples: Samples, cached: Images) -> dict[str, Feed]:
        """Draw every parameter of a batch and lay out the graph's inputs.

        Args:
            plan: The batch, B rows.
            rows: Which of them are computed, ascending, shape (n,).
            samples: The source's samples for those n rows.
            cached: Partial images of the others, None at the computed rows, length B.
        """
        count = len(plan.indices)
        partial, heights, widths = self._draw_partial(plan, rows, samples)
        heights, widths = self._sizes(rows, heights, widths, cached)
        final, _, _ = draw(
            self._recipe.final,
            seed=self._seed,
            indices=plan.indices,
            numbers=plan.serving,
            heights=heights,
            widths=widths,
            versions=plan.version,
        )
        feeds: dict[str, Feed] = {name: _spread(values, rows, count) for name, values in _named(partial)}
        feeds |= _named(final)
        feeds["sample"] = self._lay_out_samples(rows, samples, count)
        if self._caching:
            feeds["hit"] = np.array([image is not None for image in cached])
            feeds["cached"] = [_NO_IMAGE if image is None else image for image in cached]
        return feeds

    def _lay_out_samples(self, rows: NDArray[np.int64], samples: Samples, count: int) -> Feed:
        """Place the computed rows' samples among empty ones; one array where all are empty, since lists take time."""
        if not len(rows):
            return np.empty((count, *self._no_sample.shape), np.uint8)
        data = [self._no_sample] * count
        for row, sample in zip(rows.tolist(), samples.data, strict=True):
            data[row] = sample
        return data

    def _draw_partial(
        self, plan: BatchPlan, rows: NDArray[np.int64], samples: Samples
    ) -> tuple[dict[str, Arrays], NDArray[np.int64], NDArray[np.int64]]:
        """Draw the partial part's parameters for the computed rows; see `recipe.draw`."""
        if not len(rows):
            return self._nothing, rows, rows
        return draw(
            self._recipe.partial,
            seed=self._seed,
            indices=plan.indices[rows],
            numbers=plan.version[rows],
            heights=samples.heights,
            widths=samples.widths,
        )

    def _sizes(
        self, rows: NDArray[np.int64], heights: NDArray[np.int64], widths: NDArray[np.int64], cached: Images
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return heights and widths of all partial images, each (B,), given those of the computed rows, (n,)."""
        sizes = np.empty((len(cached), 2), dtype=np.int64)
        if self.partial_size is not None:
            sizes[:] = self.partial_size
            return sizes[:, 0], sizes[:, 1]
        for row, image in enumerate(cached):
            if image is not None:
                sizes[row] = image.shape[:2]
        sizes[rows, 0] = heights
        sizes[rows, 1] = widths
        return sizes[:, 0], sizes[:, 1]


def _named(drawn: dict[str, Arrays]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Name arrays as the graph names its inputs."""
    for stage, arrays in drawn.items():
        for name, values in arrays.items():
            yield f"{stage}/{name}", values


def _spread(values: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Place the computed rows' parameters among all rows, shape (count, ...)."""
    if len(rows) == count:
        return values
    spread = np.zeros((count, *values.shape[1:]), dtype=values.dtype)
    spread[rows] = values
    return spread
