"""Inputs of a graph for one batch: drawn parameters beside samples or partial images, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe, draw
from dalirefurb.augment.stage import Arrays
from dalirefurb.dali import Feed
from dalirefurb.image_batch import Images
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.reading.samples import Samples
from dalirefurb.rng import Mix

Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]


class InputBuilder:
    """Lays out batches of one recipe.

    Where another sample replaces sample i of the plan, parameters are drawn as for sample -1 - i, which no plan names:
    so it becomes another image than in its own place.

    Args:
        recipe: Recipe for which parameters are drawn.
        seed: Seed of the planner, by which parameters are drawn.
        entering: Shape (height, width, 3) of the source's images, None where it varies.
        mix: Function that computes the random numbers, see `mix` of `rng.uniforms_for`; None: the default one.
    """

    def __init__(
        self, recipe: Recipe, *, seed: int, entering: tuple[int, int, int] | None, mix: Mix | None = None
    ) -> None:
        self._recipe = recipe
        self._seed = seed
        self._mix = mix
        self.partial_size = recipe.partial_size(None if entering is None else entering[:2])
        # Heights and widths where all are alike: most batches have as many rows as the one before.
        self._same: Sizes = np.empty(0, np.int64), np.empty(0, np.int64)

    def partial(self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Samples) -> dict[str, Feed]:
        """Lay out what the partial graph needs to compute these versions of the plan's samples, each of shape (n,)."""
        feeds, _ = self._partial(indices, versions, samples)
        return feeds

    def final(
        self, plan: BatchPlan, images: Sequence[NDArray[np.uint8]], shown: NDArray[np.int64] | None = None
    ) -> dict[str, Feed]:
        """Lay out what the final graph needs to serve a batch.

        Args:
            plan: Plan of the batch.
            images: Partial images of the batch, B of them.
            shown: Indices of the samples that the images show, int64 of shape (B,); by default the plan's samples.
        """

        def sizes() -> NDArray[np.int64]:
            return Images.of(images).places.sizes

        shown = plan.indices if shown is None else shown
        return {"partial": images, **self._final(plan, shown, self._sizes(len(images), sizes))}

    def both(
        self,
        plan: BatchPlan,
        rows: NDArray[np.int64],
        samples: Samples,
        shown: NDArray[np.int64],
        sizes: Callable[[Sizes], NDArray[np.int64]],
    ) -> tuple[dict[str, Feed], dict[str, Feed]]:
        """Lay out what the partial part needs to compute n rows, and the parameters of all B for the final one.

        Args:
            plan: Plan of the batch.
            rows: Rows of the batch to compute, int64 of shape (n,).
            samples: Samples of the n rows to compute.
            shown: Indices of the samples that all rows of the batch show, int64 of shape (B,).
            sizes: Function that is given heights and widths in pixels of the n partial images to compute, each of shape
                (n,), and returns heights and widths of all partial images of the batch, shape (B, 2); called only where
                they vary.
        """
        feeds: dict[str, Feed] = {}
        computed = samples.heights, samples.widths
        if len(rows):
            feeds, computed = self._partial(plan.indices[rows], plan.version[rows], samples)
        return feeds, self._final(plan, shown, self._sizes(len(plan.indices), lambda: sizes(computed)))

    def whole(self, plan: BatchPlan, samples: Samples) -> dict[str, Feed]:
        """Lay out what a graph of both parts needs to serve a batch, given its B samples."""
        feeds, sizes = self._partial(plan.indices, plan.version, samples)
        return feeds | self._final(plan, samples.indices, sizes)

    def _partial(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Samples
    ) -> tuple[dict[str, Feed], Sizes]:
        """Draw the partial part's parameters; return the inputs, and the sizes of the images to come.

        Beside what a graph is fed, "sizes" are those of the samples' images, (n, 2), for who needs to know them before.
        """
        drawn, heights, widths = draw(
            self._recipe.partial,
            seed=self._seed,
            indices=drawn_as(indices, samples.indices),
            numbers=versions,
            heights=samples.heights,
            widths=samples.widths,
            mix=self._mix,
        )
        return {"sample": samples.data, "sizes": np.stack((samples.heights, samples.widths), 1), **_named(drawn)}, (
            heights,
            widths,
        )

    def _final(self, plan: BatchPlan, shown: NDArray[np.int64], sizes: Sizes) -> dict[str, Feed]:
        """Draw the final part's parameters."""
        heights, widths = sizes
        drawn, _, _ = draw(
            self._recipe.final,
            seed=self._seed,
            indices=drawn_as(plan.indices, shown),
            numbers=plan.serving,
            heights=heights,
            widths=widths,
            versions=plan.version,
            mix=self._mix,
        )
        return _named(drawn)

    def _sizes(self, count: int, varying: Callable[[], NDArray[np.int64]]) -> Sizes:
        """Return heights and widths of `count` partial images, each (n,)."""
        if self.partial_size is None:
            heights, widths = varying().T
            return heights, widths
        if count != len(self._same[0]):
            height, width = self.partial_size
            self._same = np.full(count, height), np.full(count, width)
            for sides in self._same:
                sides.flags.writeable = False
        return self._same


def drawn_as(indices: NDArray[np.int64], shown: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index by which each row's parameters are drawn, given the plan's samples and those shown, each (n,).

    >>> drawn_as(np.array([4, 7]), np.array([4, 2])).tolist()
    [4, -8]
    """
    return indices if shown is indices else np.where(shown == indices, indices, ~indices)


def _named(drawn: dict[str, Arrays]) -> dict[str, Feed]:
    """Name arrays as the graphs name their inputs."""
    return {f"{stage}/{name}": values for stage, arrays in drawn.items() for name, values in arrays.items()}
