"""Shape of a `torch.utils.data.DataLoader`: what its users, and the frameworks made for it, look for in a loader."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator
from typing import NoReturn, TypeVar

from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.batch_tensors import Batch, BatchTensors
from dalirefurb.engine.loader_view import Mappable, refuse_caller
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

Shape = TypeVar("Shape", bound="DataLoaderShape")


class EpochSampler:
    """Stands for a loader's planner where a sampler is looked for, whose `set_epoch` many training loops call.

    Args:
        loader: Loader whose epoch is set.
        num_samples: Number of rows that an epoch has, at most.
    """

    def __init__(self, loader: DataLoaderShape, num_samples: int) -> None:
        self._loader = loader
        self._num_samples = num_samples

    def __len__(self) -> int:
        """Count the samples that can be served in an epoch."""
        return self._num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next, see `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)


class DataLoaderShape(Mappable):
    """What a loader is made of, under its own names and under those of PyTorch's `DataLoader`.

    Attributes:
        source: Source of the samples and labels.
        recipe: Recipe that says what is done to the samples.
        planner: Planner of the batches of all ranks.
    """

    source: Source
    recipe: Recipe
    planner: Planner
    _tensors: BatchTensors
    num_workers = 0
    collate_fn = None
    batch_sampler = None
    generator = None

    @property
    def dataset(self) -> Source:
        """The source."""
        refuse_caller(sys._getframe(1))
        return self.source

    @property
    def num_samples(self) -> int:
        """Samples of the source, those of all ranks together."""
        return self.planner.num_samples

    @property
    def with_indices(self) -> bool:
        """Whether a batch has a third part, the samples' indices."""
        return self._tensors.with_indices

    @property
    def pin_memory(self) -> bool:
        """Whether what is made on the CPU is put into pinned memory."""
        return self._tensors.pin_memory

    @property
    def max_batch_size(self) -> NoReturn:
        """What DALI's iterators ask a pipeline for."""
        raise AttributeError(
            "a loader is no pipeline of DALI: loader.dali_iterator() is the DALIGenericIterator of its batches"
        )

    @property
    def drop_last(self) -> bool:
        """Whether samples that fill no batch wait for the next epoch."""
        return self.planner.drop_last or self.planner.shards > 1

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Rows of a full batch on this rank."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the batches of an epoch."""

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next."""

    @abstractmethod
    def close(self) -> None:
        """End what works for the loader."""

    @property
    def sampler(self) -> EpochSampler:
        """What stands for the planner where a sampler is looked for."""
        refuse_caller(sys._getframe(1))
        return EpochSampler(self, self.planner.num_samples)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            f"a loader serves batches in the planner's order, not by index, got {index!r}: iterate it, for images, "
            f"labels in loader; loader.source[i] shows a sample; around a Loader there needs to be no DataLoader"
        )

    def __enter__(self: Shape) -> Shape:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
