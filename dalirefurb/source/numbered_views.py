"""Views of samples as samples: view v of sample i is number v * num_samples + i."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Images
from dalirefurb.source.contract import Source, Subset


class NumberedViews(Subset):
    """Views of another source's samples, which are read once for all views that are asked for together.

    Args:
        source: The other source.
        views: Views of each sample.

    Attributes:
        labels: Labels of the other source's samples, of which `len` counts the views.
    """

    def __init__(self, source: Source, views: int) -> None:
        self._source, self._views = source, views
        self._indices: Any = _Again(len(source))
        self.labels, self.classes, self.value_range = source.labels, source.classes, source.value_range
        self.encoded, self.image_shape = source.encoded, source.image_shape

    def __len__(self) -> int:
        return self._views * len(self._source)

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read the samples of views, each once."""
        _, first, places = np.unique(self._indices[indices], return_index=True, return_inverse=True)
        read = super().read(indices[first])
        if isinstance(read, Images):
            return read.chosen(places)
        if len(read) != len(first):
            return read  # The reader tells that it is wrong.
        return read[places] if isinstance(read, np.ndarray) else [read[place] for place in places.tolist()]

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples, their order and the number of views, as JSON values."""
        return {"source": "NumberedViews", "of": self._source.fingerprint(), "views": self._views}


class _Again:
    """So many samples, again and again, as an array of their indices would have them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __getitem__(self, numbers: Any) -> Any:
        return np.asarray(numbers, np.int64) % self._count
