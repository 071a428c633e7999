"""A `DALIGenericIterator` in front of a loader, for loops that are written for DALI's iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from dalirefurb.dali.insides import set_size
from dalirefurb.engine.batch_tensors import Batch
from dalirefurb.engine.data_loader_shape import DataLoaderShape

DaliBatch = list[dict[str, torch.Tensor]]


class RefurbIterator(DALIGenericIterator):  # type: ignore[misc]
    """Serves a loader's batches as `[{"data": images, "label": labels}]`, with `"index"` if the loader has indices.

    An epoch ends with `StopIteration`; the next `for` loop serves the next epoch, with or without a call of `reset` in
    between, also where DALI's own would go on with an epoch that was left early: `loader.resume()` does so here.
    """

    def __init__(self, loader: DataLoaderShape) -> None:
        self._loader = loader
        self._epoch: Iterator[DaliBatch] | None = None
        # The base class wants a pipeline to describe; the loader's own belong to another thread.
        pipeline = Pipeline(batch_size=loader.batch_size, num_threads=1, device_id=None)
        pipeline.set_outputs(types.Constant(np.zeros(1, np.uint8)))
        self._names = ["data", "label", "index"] if loader.with_indices else ["data", "label"]
        super().__init__([pipeline], self._names, auto_reset=True, prepare_first_batch=False)
        set_size(self, loader.num_samples)

    def __iter__(self) -> Iterator[DaliBatch]:
        """Begin an epoch, which is over when the loop lets go of it."""
        self.reset()
        return map(self._named, self._loader)

    def __next__(self) -> DaliBatch:
        self._epoch = self._epoch or iter(self)
        try:
            return next(self._epoch)
        except StopIteration:
            self.reset()
            raise

    def reset(self) -> None:
        """Make the next batch the first of an epoch; at an epoch's end there is nothing to do."""
        self._epoch = None

    def _named(self, batch: Batch) -> DaliBatch:
        return [dict(zip(self._names, batch, strict=True))]

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self._loader)

    def checkpoints(self) -> list[Any]:
        """Refuse: the state is the loader's.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("DALI's checkpoints do not cover the cache; use Loader.state_dict")
