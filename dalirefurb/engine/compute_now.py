"""Partial images of a few samples, computed beside the batch groups on their way, while the prepare thread waits.

Needed seldom: for features that an Assistant does not have, which is after a resume, and at the end of its first epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dalirefurb.dali import GraphError, PipelineRunner, images_in
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images
from dalirefurb.kernels.host import StageRaised
from dalirefurb.reading.reader import Reader

Computed = tuple[NDArray[np.int64], Images]


@dataclass(eq=False)
class ComputeNow:
    """Makes partial images of version 0; of samples that are replaced, black ones.

    Attributes:
        reader: Reader of the samples.
        input_builder: Builder of the graph's inputs.
        build: Function that makes replicas of the partial graph; called when they are first needed.
        max_rows: Largest number of rows in one batch.
    """

    reader: Reader
    input_builder: InputBuilder
    build: Callable[[], PipelineRunner]
    max_rows: int
    _replicas: PipelineRunner | None = field(default=None, init=False)

    def __call__(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Compute the images of these samples, shape (n,).

        Raises:
            SampleError: If one cannot be read or decoded, and is not replaced.
            LoaderError: If the graph fails for another reason.
        """
        images: list[NDArray[np.uint8]] = []
        for start in range(0, len(indices), self.max_rows):
            some = indices[start : start + self.max_rows]
            computed: Computed | None = None
            while computed is None:
                computed = self._computed(some)
            images += unless_replaced(some, *computed)
        return images

    def _computed(self, indices: NDArray[np.int64]) -> Computed | None:
        """Return the samples shown, and their images; None if there are bad ones among them, which are known now."""
        self._replicas = self._replicas or self.build()
        versions = np.zeros_like(indices)
        samples = self.reader.read_now(indices, versions)
        feeds, _ = self.input_builder.partial(indices, versions, samples)
        try:
            self._replicas.submit(feeds)
            return samples.indices, images_in(self._replicas.collect())
        except GraphError as error:
            if not isinstance(error, StageRaised) and self.reader.reconsider(samples, error):
                return None
            raise LoaderError(f"computing features failed in the graph: {error.reason}") from error.__cause__
        except BaseException:  # What was submitted may be there still, and would be taken for what comes next.
            self._replicas.restart()
            raise


def unless_replaced(
    indices: NDArray[np.int64], shown: NDArray[np.int64], images: Sequence[NDArray[np.uint8]]
) -> list[NDArray[np.uint8]]:
    """Return images of the samples asked for, shape (n,), black where another one is shown."""
    return [
        image if good else np.zeros_like(image) for image, good in zip(images, (indices == shown).tolist(), strict=True)
    ]
