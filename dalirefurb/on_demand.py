"""What do a few samples' partial images look like? Computed beside the runs on their way, while the caller waits.

Needed seldom: for features that an Assistant does not have, which is after a resume, and at the end of its first epoch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import LoaderError
from dalirefurb.feeds import Feeder
from dalirefurb.graph import GraphError, Replicas, views
from dalirefurb.reader import Reader, undecodable_sample
from dalirefurb.source import Source


class OnDemand:
    """Makes partial images of version 0.

    Args:
        source: Named in errors.
        reader: Reads the samples.
        feeder: Lays out the graph's inputs.
        build: Makes replicas of the partial graph, when they are first needed.
        max_rows: Of one batch.
    """

    def __init__(
        self, source: Source, reader: Reader, feeder: Feeder, build: Callable[[], Replicas], *, max_rows: int
    ) -> None:
        self._source = source
        self._reader = reader
        self._feeder = feeder
        self._build = build
        self._max_rows = max_rows
        self._replicas: Replicas | None = None

    def __call__(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Compute the images of these samples, shape (n,).

        Raises:
            SampleError: If one cannot be read or decoded.
            LoaderError: If the graph fails for another reason.
        """
        self._replicas = self._replicas or self._build()
        images: list[NDArray[np.uint8]] = []
        for start in range(0, len(indices), self._max_rows):
            some = indices[start : start + self._max_rows]
            samples = self._reader.read_now(some)
            self._replicas.submit(self._feeder.partial(some, np.zeros_like(some), samples))
            try:
                images += views(self._replicas.collect())
            except GraphError as error:
                sample = undecodable_sample(self._source, some, samples.data, error)
                raise sample or LoaderError(f"computing features failed in the graph: {error.reason}") from error
        return images
