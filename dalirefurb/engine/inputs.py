"""Inputs of a graph for one batch: drawn parameters beside samples or partial images, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import as_inputs, draw
from dalirefurb.dali import Feed, final_inputs
from dalirefurb.image_batch import Images
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.reading.reader import Samples


class InputBuilder:
    """Lays out batches of one recipe.

    Args:
        recipe: Recipe for which parameters are drawn.
        seed: Seed of the planner, by which parameters are drawn.
        entering: Shape (height, width, 3) of the source's images, None where it varies.
        num_samples: Number of samples, where their further views have numbers of their own; None: they have none.

    Attributes:
        partial_size: Height and width of partial images, None where they vary.
    """

    def __init__(
        self, recipe: Recipe, *, seed: int, entering: tuple[int, int, int] | None, num_samples: int | None = None
    ) -> None:
        self._recipe = recipe
        self._seed = seed
        self._num_samples = num_samples
        self.partial_size = recipe.partial_size(None if entering is None else entering[:2])

    @cached_property
    def final_names(self) -> list[str]:
        """Names of the final part's parameters, in the order of `final_inputs`."""
        return [declared.name for declared in final_inputs(self._recipe)]

    def partial(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Samples
    ) -> tuple[dict[str, Feed], NDArray[np.int64]]:
        """Lay out what the partial graph needs to compute these versions of the plan's samples, each of shape (n,).

        Returns:
            The inputs, and heights and widths in pixels of the images to come, int64 of shape (n, 2). Beside what a
            graph is fed, the input "sizes" has those of the samples' images, (n, 2), and "index" their indices, (n,).
        """
        drawn, *sides = draw(
            self._recipe.partial,
            seed=self._seed,
            indices=indices,
            numbers=versions,
            heights=samples.heights,
            widths=samples.widths,
            shown=samples.indices,
        )
        entering = np.stack((samples.heights, samples.widths), axis=1)
        beside = {"sizes": entering, "index": self._told(samples.indices)}
        return {"sample": samples.data, **beside, **as_inputs(drawn)}, np.stack(sides, axis=1)

    def final(self, plan: BatchPlan, images: Sequence[NDArray[np.uint8]], shown: NDArray[np.int64]) -> dict[str, Feed]:
        """Lay out what the final graph needs to serve a batch, of whose B images these are the partial ones.

        They show the samples of these indices, int64 of shape (B,).
        """
        sizes = Images.of(images).places.sizes if self.partial_size is None else None
        return {"partial": images, **self.final_parameters(plan, shown, sizes)}

    def whole(self, plan: BatchPlan, samples: Samples) -> dict[str, Feed]:
        """Lay out what a graph of both parts needs to serve a batch, given its B samples."""
        feeds, sizes = self.partial(plan.indices, plan.version, samples)
        return feeds | self.final_parameters(plan, samples.indices, sizes)

    def final_parameters(
        self, plan: BatchPlan, shown: NDArray[np.int64], sizes: NDArray[np.int64] | None
    ) -> dict[str, Feed]:
        """Draw the final part's parameters for all B rows of a batch; beside them "index" is `shown`.

        Partial images show samples of these indices, (B,). Their heights and widths in pixels, int64 of shape (B, 2),
        are not looked at where all have one size.
        """
        count = len(plan.indices)
        if self.partial_size is not None:
            heights, widths = (np.full(count, side) for side in self.partial_size)
        else:
            assert sizes is not None
            heights, widths = sizes.T
        drawn, _, _ = draw(
            self._recipe.final,
            seed=self._seed,
            indices=plan.indices,
            numbers=plan.serving,
            heights=heights,
            widths=widths,
            versions=plan.version,
            shown=shown,
        )
        return {"index": self._told(shown), **as_inputs(drawn)}

    def _told(self, shown: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples that errors name, (n,), for what images show."""
        return shown if self._num_samples is None else shown % self._num_samples
