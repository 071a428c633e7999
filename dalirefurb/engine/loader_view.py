"""Loader views: a loader whose batches come in another form, and which is that loader in all else.

Planner, cache and whatever computes know views by numbers alone: view v of sample i is number v * num_samples + i, see
`planning/views.py`. The first view has the numbers of the samples, so it is what a loader without views serves.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.calls import Explained, explains
from dalirefurb.checks import require
from dalirefurb.engine.finisher import Served
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.views import Views
from dalirefurb.reading.bad_samples import BadSamplePolicy
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


_ACCELERATE = (
    "Accelerate passes by what is no DataLoader: it would not save the loader's place, nor step at an epoch's end, nor "
    "skip batches; give loaders to dalirefurb.trainers.accelerate.prepare(accelerator, loader) in its place"
)
_FABRIC = "Fabric takes DataLoaders only; dalirefurb.trainers.fabric.setup_dataloaders(fabric, loader) takes its place"
_RAY = "Ray would serve its dataset without the recipe; iterate the loader, which finds its rank by itself"
_LIGHTNING = (
    "Lightning does not load the loader's place where it reads the loader before its own state (as for "
    "trainer.estimated_stepping_batches), from ends of epochs with max_steps, or where a step had only begun; pass "
    "datamodule=RefurbDataModule(lambda: Loader(...)) of dalirefurb.trainers.lightning, which goes on from any "
    "checkpoint, this one too"
)
_REFUSED = {
    ("accelerate.accelerator", "prepare"): _ACCELERATE,
    ("accelerate.data_loader", "skip_first_batches"): _ACCELERATE,
    ("accelerate.data_loader", "prepare_data_loader"): _ACCELERATE,
    ("ray.train.torch.train_loop_utils", "prepare_data_loader"): _RAY,
    ("ray.train.v2.torch.train_loop_utils", "prepare_data_loader"): _RAY,
    ("lightning.fabric.fabric", "<genexpr>"): _FABRIC,
    ("lightning_fabric.fabric", "<genexpr>"): _FABRIC,
}


def refuse_caller(frame: FrameType) -> None:
    """Refuse a function, by its frame, that asks about a loader, if it would lose the loader's place.

    Raises:
        ConfigurationError: If it is one of those.
    """
    module, function, caller = str(frame.f_globals.get("__name__")), frame.f_code.co_name, frame.f_back
    reason = _REFUSED.get((module, function))
    if function == "_set_sampler_epoch" and caller is not None and caller.f_code.co_name == "on_advance_start":
        reason = _LIGHTNING if _is_lost(caller.f_locals["self"]) else None
    if reason is not None:
        raise ConfigurationError(f"a loader must not be given to {module}.{function} as it is: {reason}")


def _is_lost(fit: Any) -> bool:
    """Tell whether Lightning's loop goes on elsewhere than a loader that was given to the trainer itself."""
    batches = fit.epoch_loop.batch_progress.current
    not_loaded = fit.restarting and fit._combined_loader_states_to_load
    counted_wrong = batches.ready != batches.processed or fit.restarted_on_epoch_start or fit.restarted_on_epoch_end
    return bool(fit.is_resuming and (not_loaded or counted_wrong))


Batch = tuple[Any, ...]
"""Images, of views a tuple of them, labels and, if asked for, indices."""

Batches = TypeVar("Batches", bound="Mappable")


class Mappable(ABC):
    """What has batches that can be had in another form, or from where a loop over them was left."""

    @property
    @abstractmethod
    def with_indices(self) -> bool:
        """Whether a batch has a third part, the samples' indices."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """What `isinstance` asks for, of classes that this is none of."""
        refuse_caller(sys._getframe(1))
        return type(self)

    def resume(self: Batches) -> Batches:
        """Go on where the last loop was left, by `break`, an error or an interrupt: the next pass serves the rest.

        What was served is not served again, also if its step was interrupted. `for images, labels in loader.resume()`
        begins at once. Where no loop was left, nothing changes; with AutoAssist losses are to be observed before.
        """
        moved: Any = self
        moved.load_state_dict(moved.state_dict())
        return self

    @explains
    def map(self, function: Callable[[Any], Any]) -> MappedLoader:
        """Return this loader with batches in another form; all else of it, its position above all, is shared.

        Args:
            function: Function of a batch, `(images, labels)` and perhaps indices, that returns what is served.
        """
        require(callable(function), "function", "callable", function, "pass a function of one batch")
        return MappedLoader(self, function)

    @explains
    def as_dicts(self, images: str = "pixel_values", labels: str = "labels", indices: str = "indices") -> MappedLoader:
        """Return this loader with mappings for batches, as `model(**batch)` of Hugging Face's models takes them.

        Args:
            images: Name of the images in a batch.
            labels: Name of the labels.
            indices: Name of the samples' indices, which are there if the loader was made with `with_indices=True`.
        """
        names = (images, labels, indices) if self.with_indices else (images, labels)
        distinct = all(isinstance(name, str) for name in names) and len({*names}) == len(names)
        require(distinct, "names", "different texts", names, "pass such as images='image', labels='label'")

        def named(batch: tuple[Any, ...]) -> dict[str, Any]:
            return dict(zip(names, batch, strict=True))

        named.__name__ = " + ".join(names)
        return self.map(named)

    def __enter__(self: Batches) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what works for it; what was served stays good."""

    def __reduce__(self) -> NoReturn:
        raise LoaderError(
            "a loader cannot be pickled or copied, since its threads and pipelines belong to one process: make it, and "
            "views of it, in the process that iterates, and pass on loader.state_dict() if it is to go on there"
        )


class EpochSampler:
    """Stands for a loader's planner where a sampler is looked for, whose `set_epoch` many training loops call."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Count the samples that can be served in an epoch."""
        return int(self._loader.num_samples)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next, see `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)


class LoaderView(Mappable, metaclass=Explained):
    """Stands for a loader: its length, position, state, statistics and all other names are that loader's.

    Args:
        loader: Loader whose batches are served, or a view of one.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, see `Loader.__iter__`."""
        return iter(self.loader)

    @property
    def with_indices(self) -> bool:
        return bool(self.loader.with_indices)

    def dali_iterator(self, *_: object, **__: object) -> NoReturn:
        """Refuse, since it would serve the loader's own batches."""
        raise LoaderError(
            "a DALI iterator serves a loader's own batches, not a view's: call view.loader.dali_iterator()"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # Asked for before there is one, as pickle does.
            raise AttributeError(name)
        refuse_caller(sys._getframe(1))
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loader!r})"

    def close(self) -> None:
        """Close the loader."""
        self.loader.close()


class MappedLoader(LoaderView):
    """Serves what a function makes of each batch.

    Args:
        loader: Loader whose batches the function is given.
        function: Function of a batch, called in the thread that iterates, right before the batch is served.
    """

    def __init__(self, loader: Any, function: Callable[[Any], Any]) -> None:
        super().__init__(loader)
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        return map(self._function, self.loader)

    def __repr__(self) -> str:
        return f"{self.loader!r}.map({getattr(self._function, '__name__', self._function)})"
