"""Fabric: loaders on Fabric's device, with a state that Fabric saves.

What Fabric presumes of a loader, and how it is met:

* `fabric.setup_dataloaders` refuses all but PyTorch's `DataLoader`; `setup_dataloaders` here takes its place.
* Its loaders put batches on the device, and so do these.
* Its loaders set the sampler's epoch at each pass, counted from 0 in each process. Here the epoch is the loader's,
  which goes on by itself and is part of the state.
* `fabric.save` and `fabric.load` save and load whatever has `state_dict` and `load_state_dict`, on all ranks together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dalirefurb.engine.loader_view import Batch
from dalirefurb.loader import Loader
from dalirefurb.trainers.trainer_loader import TrainerLoader


class FabricLoader(TrainerLoader):
    """A loader whose batches are on Fabric's device."""

    def __init__(self, fabric: Any, loader: Loader) -> None:
        super().__init__(loader)
        self._fabric = fabric

    def __iter__(self) -> Iterator[Batch]:
        """Serve one epoch, or what is left of it."""
        for batch in self.loader:
            yield self._fabric.to_device(batch)


def setup_dataloaders(fabric: Any, *loaders: Loader) -> Any:
    """Return what takes the place of `fabric.setup_dataloaders(*loaders)` of a `Fabric` that is launched.

    That is one `FabricLoader`, or a list of as many as there are loaders.
    """
    served = [FabricLoader(fabric, loader) for loader in loaders]
    return served[0] if len(served) == 1 else served
