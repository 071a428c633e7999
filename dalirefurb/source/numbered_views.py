"""Views of samples as samples: view v of sample i is number v * num_samples + i."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import SampleError
from dalirefurb.image_batch import Images
from dalirefurb.source.contract import Source


class NumberedViews(Source):
    """Views of another source's samples, which are read once for all views that are asked for together.

    Args:
        source: The other source.
        views: Views of each sample.

    Attributes:
        labels: Labels of the other source's samples, of which `len` counts the views.
    """

    def __init__(self, source: Source, views: int) -> None:
        self._source, self._views = source, views
        self.labels, self.classes, self.value_range = source.labels, source.classes, source.value_range
        self.encoded, self.image_shape = source.encoded, source.image_shape

    def __len__(self) -> int:
        return self._views * len(self._source)

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read the samples of views, each once."""
        samples, places = np.unique(self.samples(indices), return_inverse=True)
        try:
            read = self._source.read(samples)
        except SampleError as error:  # Told by the number of a view that was asked for.
            asked = indices[self.samples(indices) == error.index]
            index = int(asked[0]) if len(asked) else error.index
            raise SampleError(index, error.name, error.reason, lasting=error.lasting) from error
        return read[places] if isinstance(read, np.ndarray) else [read[place] for place in places.tolist()]

    def samples(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of views, shape (n,)."""
        return np.asarray(indices) % len(self._source)

    def name(self, index: int) -> str:
        """Tell where the sample of a view is."""
        return self._source.name(index % len(self._source))

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples, their order and the number of views, as JSON values."""
        return {"source": "NumberedViews", "of": self._source.fingerprint(), "views": self._views}

    def content(self) -> dict[str, Any]:
        """Identify what is behind the other source now."""
        return self._source.content()

    def stamps(self, indices: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Tell samples from what they were, as the other source does."""
        return self._source.stamps(self.samples(indices))

    def images(self, indices: NDArray[np.int64]) -> Images | None:
        """Return decoded images that the other source has at hand."""
        return self._source.images(self.samples(indices))

    def refusal(
        self, indices: NDArray[np.int64], heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> tuple[int, str] | None:
        """Find a view whose sample the other source refuses."""
        return self._source.refusal(self.samples(indices), heights, widths)

    def check_labels(self) -> None:
        """Refuse labels of the sides of the images that they belong to, as the other source does."""
        self._source.check_labels()
