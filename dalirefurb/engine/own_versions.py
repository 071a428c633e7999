"""Views with versions of their own: inside of a loader they are samples, and the training loop gets them side by side.

Planner, cache and whatever computes know views by numbers alone, see `planning/views.py`. The first view has the
numbers of the samples, so it is what a loader without views serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from dalirefurb.engine.finisher import Served
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.views import Views
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.source.numbered_views import NumberedViews


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
        if len(self.source) != self.planner.num_samples:
            raise ConfigurationError(
                f"planner and source must have the same number of samples, got {self.planner.num_samples} and "
                f"{len(self.source)}; pass len(source) to the planner"
            )
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
        indices = served.indices.reshape(shards, self.views, -1)[:, 0].reshape(-1)
        views = tuple(view[0] if shards == 1 else torch.cat(view.unbind()) for view in by_view)
        if shards > 1 and images.is_pinned():
            views = tuple(view.pin_memory() for view in views)
        return replace(served, images=views, indices=indices)

    @contextmanager
    def naming_samples(self) -> Iterator[None]:
        """Raise the error of a view as that of its sample."""
        try:
            yield
        except SampleError as error:
            index = error.index % len(self.source)
            raise SampleError(index, error.name, error.reason, lasting=error.lasting) from error
