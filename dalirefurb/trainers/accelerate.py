"""Accelerate: what takes the place of `accelerator.prepare` for a loader.

What Accelerate presumes of a loader, and how it is met:

* `accelerator.prepare` knows PyTorch's `DataLoader` and returns anything else as it is, so that gradient accumulation
  does not step at an epoch's end and batches stay where they are. `prepare` here takes its place, for loaders only.
* `accelerator.accumulate` and the scheduler ask `GradientState` for `end_of_dataloader` of the loader that is iterated.
  Accelerate's own loaders read a batch ahead to know it. This one knows it from the plan, so its state is never ahead.
* `gather_for_metrics` cuts the last gathered batch to `remainder` rows. With `Evaluate(pad=True)` the rows of padding
  are the last ones of all ranks together, so the cut leaves the samples. Gathering needs equally many rows on all
  ranks, so `Evaluate` without padding is refused where there are several.
* `save_state` and `load_state` save what is registered: the loader is, unless it evaluates. The file is the main
  process's; with AutoAssist it has the states of all ranks.
* `skip_first_batches`, Accelerate's function as well as the accelerator's method, makes a `DataLoader` of the
  `dataset`, `batch_sampler` and `collate_fn` of what it is given. Those of a prepared loader ask for batches by their
  numbers, so the loader is moved there, and nothing is read to be skipped. Where `load_state` has restored a place,
  skipping as many batches leads to the same one, so to do both is right.
* `total_batch_size`, `total_dataset_length` and `set_epoch` are there. The rank is found in torch.distributed, which
  the accelerator initialises: make it before the loader is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dalirefurb.engine.loader_view import Batch
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.trainers.trainer_loader import TrainerLoader, import_trainer

_ACCELERATE = import_trainer("accelerate", install="accelerate")
_STATE_MIXIN: Any = import_trainer("accelerate.data_loader", install="accelerate").DataLoaderStateMixin


def prepare(accelerator: Any, *loaders: Loader) -> Any:
    """Return what takes the place of `accelerator.prepare(*loaders)`: an `AcceleratedLoader`, or of several a tuple.

    Each is registered for `save_state` and `load_state`, but those of `Evaluate`: then a checkpoint can be evaluated on
    other samples.

    Raises:
        ConfigurationError: If what evaluates in several processes has batches of unequal sizes.
    """
    prepared = tuple(AcceleratedLoader(accelerator, loader) for loader in loaders)
    accelerator.register_for_checkpointing(*(each for each in prepared if not each.loader.planner.any_world_size))
    return prepared[0] if len(prepared) == 1 else prepared


class AcceleratedLoader(TrainerLoader, _STATE_MIXIN):  # type: ignore[misc]
    """A loader whose batches are on the accelerator's device, and which tells Accelerate where it is.

    Args:
        batch_of: Function that makes what is served of the tensors of a batch and the number of rows that only fill it
            up; by default the tensors.

    Attributes:
        dataset: What gives a batch for its number in the epoch; as long as the source.
        batch_sampler: Numbers of an epoch's batches.
        end_of_dataloader: Whether the last batch of an epoch was served last.
        remainder: Rows of the last batch, of all ranks together, that are no padding; 0 where the batch is full.
        generator: Source of the random number that a `DataLoader` draws at each pass, so that it is not torch's.
    """

    def __init__(
        self, accelerator: Any, loader: Loader, batch_of: Callable[[Batch, int], Any] = lambda batch, _: batch
    ) -> None:
        super().__init__(loader)
        planner, processes = loader.planner, accelerator.num_processes
        if planner.any_world_size and not planner.padded and processes > 1:
            raise ConfigurationError(
                f"what is gathered of {processes} processes must have equally many rows in each, got Evaluate without "
                f"padding: pass Evaluate(..., pad=True) and Loader(..., with_indices=True)"
            )
        self.gradient_state = _ACCELERATE.state.GradientState()
        self.batch_sampler = _BatchNumbers(self)
        self.dataset = _ServedBatches(self)
        self._accelerator = accelerator
        self._batch_of = batch_of
        self._processes = processes
        self._pass: Iterator[Batch] | None = None
        self._epoch = self._number = 0
        self.generator = torch.Generator()
        self.reset()

    sampler = prefetch_factor = None
    num_workers = 0

    @property
    def batch_size(self) -> int:
        """Rows of a full batch on this rank."""
        return self.loader.batch_size

    @property
    def total_batch_size(self) -> int:
        """Rows of a full batch, of all ranks together."""
        return int(self.loader.batch_size * self._processes)

    @property
    def total_dataset_length(self) -> int:
        """Samples of the source."""
        return self.loader.num_samples

    @property
    def device(self) -> torch.device | None:
        """Where batches are served; None: where the loader makes them."""
        return self._accelerator.device if self._accelerator.device_placement else None

    @staticmethod
    def collate_fn(batches: list[Any]) -> Any:
        """Return the one batch of a list."""
        return batches[0]

    def __iter__(self) -> Iterator[Any]:
        """Serve one epoch, or what is left of it."""
        self.begin()
        try:
            while self._goes_on():
                yield self._serve()
        finally:
            self.end()

    def begin(self) -> None:
        """Tell Accelerate that batches of this loader come, from where it is."""
        self._pass = iter(self.loader)
        place = self.loader.state_dict()
        self._epoch, self._number = place["epoch"], place["batch"]
        super().begin()  # Last: nobody calls `end` of what could not begin.
        self.remainder = 0

    def end(self) -> None:
        """Tell Accelerate that no more of them come."""
        super().end()
        self._pass = None

    def serve_at(self, number: int) -> Any:
        """Serve the batch of a number in the epoch; nothing before it is read."""
        if self._number != number:
            self.seek(self._epoch, number)
            self._pass, self._number = iter(self.loader), number
        return self._serve()

    def _goes_on(self) -> bool:
        return self.loader.epoch == self._epoch

    def _serve(self) -> Any:
        assert self._pass is not None
        batch = next(self._pass)
        self._number += 1
        if not self._goes_on():
            self.end_of_dataloader = True
            images = batch[0][0] if self.loader.views else batch[0]
            rows = self.loader.num_samples if self.loader.planner.padded else len(images) * self._processes
            self.remainder = rows % self.total_batch_size
        fill = int((batch[2] < 0).sum()) if self.loader.planner.padded else 0
        if self.device is not None:
            batch = _ACCELERATE.utils.send_to_device(batch, self.device, non_blocking=self._accelerator.non_blocking)
        return self._batch_of(batch, fill)


class _BatchNumbers:
    """Numbers of an epoch's batches, each in a list, as `skip_first_batches` wants them."""

    drop_last = False

    def __init__(self, prepared: AcceleratedLoader) -> None:
        self._prepared = prepared

    @property
    def batch_size(self) -> int:
        return self._prepared.batch_size

    def __len__(self) -> int:
        return len(self._prepared)

    def __iter__(self) -> Iterator[list[int]]:
        self._prepared.begin()
        try:
            for number in range(len(self)):
                yield [number]
        finally:
            self._prepared.end()

    def set_epoch(self, epoch: int) -> None:
        self._prepared.set_epoch(epoch)


class _ServedBatches:
    """Batches by their numbers in the epoch, which must be asked for in order; as long as the source."""

    def __init__(self, prepared: AcceleratedLoader) -> None:
        self._prepared = prepared

    def __len__(self) -> int:
        return self._prepared.total_dataset_length

    def __getitem__(self, number: int) -> Any:
        return self._prepared.serve_at(number)
