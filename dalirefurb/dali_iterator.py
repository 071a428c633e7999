"""A `DALIGenericIterator` in front of a loader, for loops that are written for DALI's iterator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from nvidia.dali import types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from dalirefurb.calls import Explained, Words
from dalirefurb.checks import flag, require
from dalirefurb.dali.insides import describe
from dalirefurb.engine.loader_view import Batch
from dalirefurb.errors import ConfigurationError
from dalirefurb.source.labels import check_dali_labels

DaliBatch = list[dict[str, torch.Tensor]]

_TO_HAVE = {
    LastBatchPolicy.DROP: "pass drop_last=True to the planner",
    LastBatchPolicy.FILL: "pass drop_last=True to the planner, whose batches are all full, or to validate "
    "Evaluate(..., pad=True) and Loader(..., with_indices=True)",
    LastBatchPolicy.PARTIAL: "leave drop_last and shards out, or take Evaluate(...)",
}


class RefurbIterator(DALIGenericIterator, metaclass=Explained):  # type: ignore[misc]
    """Serves a loader's batches as `[{"data": images, "label": labels}]`, with `"index"` if the loader has indices.

    An epoch ends with `StopIteration`; the next `for` loop serves the next epoch, also where DALI's own would go on
    with an epoch that was left early: `loader.resume()` does so here.

    Args:
        loader: Loader that serves the batches.
        output_map: Names of images and labels, and of the indices if there are any; None: those above.
        auto_reset: Whether the next epoch begins without a call of `reset`; "yes" and "no" are the same.
        last_batch_policy: What is expected of a last batch that is not full; it must be what the planner does. None:
            whatever that is.
        dali_labels: Whether labels, a whole number each, are as DALI's readers have them, (B, 1) int32; else they are
            as the source has them, (B,) int64.

    Raises:
        ConfigurationError: If names do not fit the batch, or the planner does something else with the last batch.
    """

    INSTEAD: ClassVar[Words] = {
        **dict.fromkeys(
            ("reader_name", "size"),
            "the planner knows the number of samples, and the loader which rank it is: leave it out",
        ),
        **dict.fromkeys(
            ("fill_last_batch", "last_batch_padded"), "pass last_batch_policy, which must be what the planner does"
        ),
        "dynamic_shape": "images of a batch are of one size: leave it out",
        "prepare_first_batch": "the loader begins when it is first iterated: leave it out",
        "pipelines": "the loader takes their place: leave it out",
    }

    def __init__(
        self,
        loader: Any,
        output_map: Sequence[str] | None = None,
        *,
        auto_reset: bool | str = True,
        last_batch_policy: LastBatchPolicy | None = None,
        dali_labels: bool = False,
    ) -> None:
        if loader.views:
            raise ConfigurationError(
                "a DALI iterator serves one image of each sample, but this loader has views: iterate the loader, or "
                "pass views= to a PartialSource, which DALI's own iterators take"
            )
        dali_labels = flag("dali_labels", dali_labels)
        if dali_labels:
            source = loader.source
            if source.annotations is not None or len(source.volumes) > 1:
                raise ConfigurationError(
                    "dali_labels is for labels, but the source has targets, or masks: leave it out"
                )
            check_dali_labels(source.labels)
        parts = ["data", "label", "index"] if loader.with_indices else ["data", "label"]
        names = parts if output_map is None else output_map
        texts = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        wanted = f"different names of {', '.join(parts)}"
        require(texts and len({*names}) == len(names) == len(parts), "output_map", wanted, names, f"as {parts}")
        said = isinstance(auto_reset, str) and auto_reset in ("yes", "no")
        resets = auto_reset == "yes" if said else flag("auto_reset", auto_reset, "True is usual")
        policy = _check_policy(loader, last_batch_policy)
        self._loader = loader
        self._names = [*names]
        self._resets = resets
        self._dali_labels = dali_labels
        self._epoch: Iterator[DaliBatch] | None = None
        self._ended = False
        # The base class wants a pipeline to describe; the loader's own belong to another thread.
        pipeline = Pipeline(batch_size=loader.batch_size, num_threads=1, device_id=None)
        pipeline.set_outputs(types.Constant(np.zeros(1, np.uint8)))
        super().__init__([pipeline], ["data"], auto_reset=resets, prepare_first_batch=False)
        describe(self, loader.rows_per_epoch, policy)

    def __iter__(self) -> Iterator[DaliBatch]:
        """Begin an epoch, which is over when the loop lets go of it."""
        if self._ended:
            return iter([])
        self._epoch = None
        return chain(map(self._named, iter(self._loader)), self._end())  # An error would end a generator of it all.

    def __next__(self) -> DaliBatch:
        self._epoch = self._epoch or iter(self)
        try:
            return next(self._epoch)
        except StopIteration:
            self._epoch = None
            raise

    def reset(self) -> None:
        """Make the next batch the first of an epoch; at an epoch's end there is nothing to do with `auto_reset`."""
        self._epoch, self._ended = None, False

    def _end(self) -> Iterator[DaliBatch]:
        self._ended = not self._resets
        yield from ()

    def _named(self, batch: Batch) -> DaliBatch:
        images, labels, *indices = batch
        if self._dali_labels:
            labels = labels.to(torch.int32).unsqueeze(1)
        return [dict(zip(self._names, (images, labels, *indices), strict=True))]

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self._loader)

    def checkpoints(self) -> list[Any]:
        """Refuse: the state is the loader's."""
        raise NotImplementedError("DALI's checkpoints do not cover the cache; use Loader.state_dict")


def _check_policy(loader: Any, wanted: LastBatchPolicy | None) -> LastBatchPolicy:
    """Return what a loader's planner does with a last batch that is not full, if it is what is wanted."""
    planner = loader.planner
    own = LastBatchPolicy.DROP if loader.drop_last else LastBatchPolicy.PARTIAL
    own = LastBatchPolicy.FILL if planner.padded else own
    if wanted is None:
        return own
    remedy = "pass such as LastBatchPolicy.DROP, or leave it out"
    require(isinstance(wanted, LastBatchPolicy), "last_batch_policy", "a LastBatchPolicy", wanted, remedy)
    full = planner.num_samples % planner.batch_size == 0
    if own is LastBatchPolicy.PARTIAL:  # An echo's batches are as many as it repeats.
        full = loader.rows_per_epoch == len(loader) * loader.batch_size
    alike = planner.batch_size % loader.rank.world_size == 0  # What one rank may call its batches, all may.
    if wanted is own or (full and alike):
        return own
    raise ConfigurationError(
        f"last_batch_policy must be what the planner does, {own.name}, got {wanted.name}: leave it out, or "
        f"{_TO_HAVE[wanted]}"
    )
