"""Views with versions of their own: inside of a loader they are samples, and the training loop gets them side by side.

Planner, cache and whatever computes know views by numbers alone: view v of sample i is number v * num_samples + i, see
`planning/views.py`. The first view has the numbers of the samples, so it is what a loader without views serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.engine.finisher import Served
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.views import Views
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.source import Source, Subset
from dalirefurb.source.contract import DerivedSource


class NumberedViews(Subset):
    """Views of another source's samples, which are read once for all views that are asked for together.

    Args:
        source: The other source.
        views: Views of each sample.

    Attributes:
        labels: Labels of the other source's samples, of which `len` counts the views.
    """

    def __init__(self, source: Source, views: int) -> None:
        DerivedSource.__init__(self, source)
        self._views = views

    def __len__(self) -> int:
        return self._views * len(self._source)

    def _theirs(self, indices: Any) -> Any:
        return np.asarray(indices, np.int64) % len(self._source)

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read the samples of views, each once."""
        _, first, places = np.unique(self._theirs(indices), return_index=True, return_inverse=True)
        read = super().read(indices[first])
        if isinstance(read, Images):
            return read.chosen(places)
        if len(read) != len(first):
            return read  # The reader tells that it is wrong.
        return read[places] if isinstance(read, np.ndarray) else [read[place] for place in places.tolist()]

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "NumberedViews", "of": self._source.fingerprint(), "views": self._views}


@dataclass(frozen=True)
class OwnVersions:
    """Turns samples into views before they are planned, and rows into views of samples once they are served.

    Attributes:
        source: Source of the samples.
        planner: Planner of the samples, of all ranks together.
        views: Images of each sample.
    """

    source: Source
    planner: Planner
    views: int

    def numbered(self, bad_samples: BadSamplePolicy) -> tuple[Source, Planner]:
        """Return source and planner of the views.

        Raises:
            ConfigurationError: If they cannot be had.
        """
        planner = Views(self.planner, views=self.views)
        if self.source.annotations is not None:
            raise ConfigurationError(
                "a source with targets cannot be served in several views yet: leave views out, or take the source "
                "without its targets"
            )
        if bad_samples.on_bad_sample == "replace":
            raise ConfigurationError(
                f"with views={self.views} bad samples cannot be replaced yet, since each view would show another "
                f"sample: leave them out by source.subset(...), or pass views as recipes, views=[recipe.view(2)]"
            )
        self.planner.check_samples(len(self.source))
        return NumberedViews(self.source, self.views), planner

    def parted(self, served: Served, world_size: int) -> Served:
        """Return a rank's batch with its images by views, and the samples of its rows.

        Nothing is copied where the rank has one shard.
        """
        shards = self.planner.shards // world_size
        images: torch.Tensor = served.images
        if images.is_cuda and shards > 1:  # What is read here belongs to the stream that made it.
            images.record_stream(torch.cuda.current_stream(images.device))
        by_view = images.view(shards, self.views, -1, *images.shape[1:]).unbind(1)
        shown = served.shown.reshape(shards, self.views, -1)[:, 0].reshape(-1)
        views = tuple(view[0] if shards == 1 else torch.cat(view.unbind()) for view in by_view)
        if shards > 1 and images.is_pinned():
            views = tuple(view.pin_memory() for view in views)
        return replace(served, images=views, shown=shown)

    @contextmanager
    def naming_samples(self) -> Iterator[None]:
        """Raise the error of a view as that of its sample."""
        try:
            yield
        except SampleError as error:
            index = error.index % len(self.source)
            raise SampleError(index, error.name, error.reason, lasting=error.lasting) from error
