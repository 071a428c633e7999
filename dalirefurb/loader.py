"""A plan in, tensors out: the object a training loop iterates."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.assembly import assemble
from dalirefurb.assistant import Assistant, AssistantReport
from dalirefurb.augment.geometry import Device
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.pace import set_pace
from dalirefurb.plan import Planner, integer
from dalirefurb.recipe import Recipe
from dalirefurb.runs import Position
from dalirefurb.source import Source
from dalirefurb.state import restored, saved
from dalirefurb.stats import Stats
from dalirefurb.store import Store

if TYPE_CHECKING:
    from dalirefurb.dali_iterator import RefurbIterator

Batch = tuple[torch.Tensor, ...]
"""Images, labels and, if asked for, indices."""


class Loader:
    """Serves the batches that a planner plans, with the augmentation that a recipe describes.

    One pass of `for images, labels in loader` is one epoch. Leaving it early begins the next epoch at the next pass.

    Args:
        source: Where samples and labels come from.
        recipe: What is done to them, and how much of it is partial.
        planner: Which sample is served when, and whether its partial part is reused.
        store: Where partial images wait for reuse; None: nothing is cached, every batch is computed whole.
        partial_device: Where the partial part runs, "cpu" or "gpu".
        final_device: Where the final part runs; with the partial part on the "gpu" it must be there, too.
        num_threads: CPU threads of each part's pipelines; by default as many as the process may use.
        replicas: Copies of each part's pipeline; by default one per thread, at most 8. A pipeline runs one operator at
            a time, so several threads of one pipeline wait for each other, several pipelines do not.
        look_ahead: Runs of the final part at a time, finished ones included; by default three per replica. A run takes
            the memory of its images: 154 MB for 256 x 224 x 224 in float32.
        batches_per_run: Batches that run together; a run costs milliseconds however few its rows. By default as many as
            fit into 256 rows, if the epoch is long enough that runs ahead span no more than half of it.
        with_indices: Whether a batch is (images, labels, indices): the samples' indices, (B,) int64 on the host, for
            `source.name(index)` and the like.
        pin_memory: Whether images and labels made on the CPU are put into pinned memory, from which
            `.to("cuda", non_blocking=True)` does not wait. Costs a copy.
        max_pixels: Of one encoded image, which takes 3 bytes a pixel when it is decoded; a larger one, perhaps a
            decompression bomb, is a `SampleError`. None: any size.

    Raises:
        ConfigurationError: If the parts do not fit together.
        OutOfMemoryError: If the store's slots exceed the memory at hand.
    """

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        planner: Planner,
        store: Store | None = None,
        *,
        partial_device: Device = "cpu",
        final_device: Device = "cpu",
        num_threads: int | None = None,
        replicas: int | None = None,
        look_ahead: int | None = None,
        batches_per_run: int | None = None,
        with_indices: bool = False,
        pin_memory: bool = False,
        max_pixels: int | None = 100_000_000,
    ) -> None:
        if pin_memory and not torch.cuda.is_available():
            raise ConfigurationError(
                "pin_memory=True needs a CUDA device, and torch finds none; pass pin_memory=torch.cuda.is_available()"
            )
        pace = set_pace(
            planner,
            num_threads=num_threads,
            replicas=replicas,
            look_ahead=look_ahead,
            batches_per_run=batches_per_run,
        )
        self._planner = planner
        self._labels = _labels(source)
        assembly = assemble(
            source,
            recipe,
            planner,
            store,
            partial_device=partial_device,
            final_device=final_device,
            pace=pace,
            pin_memory=pin_memory and final_device == "cpu",
            max_pixels=None if max_pixels is None else integer("max_pixels", max_pixels, 1, None, "None for any size"),
        )
        self._fingerprint = json.dumps(assembly.fingerprint)
        self._assistant = assembly.assistant
        self._engine = assembly.engine
        self._batches_ahead = pace.batches_made
        self._with_indices = with_indices
        self._pin_memory = pin_memory
        self._next = Position(0, 0)
        # Which pass is the present one, and whether it has served a batch.
        self._pass = 0
        self._begun = False
        self._owner_pid = os.getpid()
        self._finalizer = weakref.finalize(self, self._engine.let_go)
        self._finalizer.atexit = False

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self._planner)

    @property
    def batch_size(self) -> int:
        """Samples of a full batch."""
        return self._planner.batch_size

    @property
    def batches_ahead(self) -> int:
        """Count the batches whose images can be made, partly at least, before they are asked for."""
        return self._batches_ahead

    @property
    def num_samples(self) -> int:
        """Samples of the source."""
        return self._planner.num_samples

    @property
    def with_indices(self) -> bool:
        """Whether a batch has a third part, the samples' indices."""
        return self._with_indices

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; after a pass that was left early, still the epoch that was left."""
        return self._next.epoch

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch: the next one, also if the present one was left early."""
        self._check_usable()
        self._go_to(Position(self._next.epoch + 1, 0) if self._begun else self._next)
        return _Pass(self, self._next.epoch, self._pass)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass serves; needed only to jump or to repeat.

        Raises:
            ConfigurationError: If `epoch` is negative, or another one than the next where an Assistant plans.
        """
        if epoch < 0:
            raise ConfigurationError(f"epoch must be at least 0, got {epoch}")
        upcoming = self._next.epoch + self._begun
        if self._assistant is not None:
            if epoch != upcoming:
                raise ConfigurationError(
                    f"epoch must be the next one, since an Assistant plans by the losses that it has observed, got "
                    f"{epoch} when {upcoming} is next: leave set_epoch out, or go back by load_state_dict"
                )
            return
        self._go_to(Position(int(epoch), 0))

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: JSON values, a few KB. Batches made ahead do not count as served.

        In an epoch that is left early that is its first batch that was not served; after its last batch it is the next
        epoch. Together with `load_state_dict` this is torchdata's protocol `Stateful`. With AutoAssist it holds the
        Assistant, too: 11 bytes for each row of the last `lag` batches.

        Raises:
            LoaderError: If the losses of the last batch were not observed.
        """
        self._check_observed("the state is taken")
        assistant = None if self._assistant is None else self._assistant.state()
        return saved(self._next, json.loads(self._fingerprint), assistant)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: the next pass serves the rest of that epoch.

        Raises:
            StateMismatchError: If source, recipe, planner, device or versions differ, or the state is damaged; `.keys`
                says what. The loader stays where it is.
        """
        position = restored(
            state, json.loads(self._fingerprint), num_batches=len(self), assisted=self._assistant is not None
        )
        if self._assistant is not None:
            self._engine.stop()
            self._assistant.restore(state["assistant"])
        self._go_to(position)

    def _go_to(self, position: Position) -> None:
        """Make `position` the next to be served; a pass that goes on ends."""
        self._next = position
        self._pass += 1
        self._begun = False

    def observe(self, losses: torch.Tensor | NDArray[Any]) -> None:
        """Tell the Assistant how the model did on the batch that was served last: needed once after each batch.

        Args:
            losses: Each sample's own loss (`reduction="none"`), shape (B,), in the order of the batch.

        Raises:
            ConfigurationError: If the planner is not AutoAssist, or the losses are not one finite number a row.
        """
        if isinstance(losses, torch.Tensor):
            losses = losses.detach().float().cpu().numpy()
        self._assisting().observe(losses)

    def assistant_report(self) -> AssistantReport:
        """Return what the Assistant did so far.

        Raises:
            ConfigurationError: If the planner is not AutoAssist.
        """
        return self._assisting().report()

    def _check_observed(self, before: str) -> None:
        if self._assistant is not None and self._assistant.observed < self._assistant.served:
            raise LoaderError(
                f"the losses of each batch must be observed before {before}, but those of the last batch were not: "
                f"call loader.observe(losses) after each batch"
            )

    def _assisting(self) -> Assistant:
        if self._assistant is None:
            raise ConfigurationError(
                f"losses are for AutoAssist, but the planner is {type(self._planner).__name__}: "
                f"pass AutoAssist(planner, lag=...) to the loader"
            )
        return self._assistant

    def stats(self) -> Stats:
        """Return what was done so far; subtract an earlier snapshot to get the difference."""
        return self._engine.stats()

    def dali_iterator(self) -> RefurbIterator:
        """Return this loader as a `DALIGenericIterator`: batches are `[{"data": images, "label": labels}]`."""
        from dalirefurb.dali_iterator import RefurbIterator

        return RefurbIterator(self)

    def close(self) -> None:
        """End the loader's threads and let its pipelines go; the store stays open. Closing twice does nothing."""
        self._finalizer.detach()
        self._engine.close()

    def __reduce__(self) -> NoReturn:
        raise LoaderError(
            "a loader cannot be pickled, since its threads and pipelines belong to one process: make it in the process "
            "that iterates, and pass on loader.state_dict() if it is to go on there"
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if not self._finalizer.alive:
            raise LoaderError("the loader is closed; make a new one")
        if os.getpid() != self._owner_pid:
            raise LoaderError(
                "a loader cannot be used in a forked process, since DALI's threads do not survive a fork; "
                "make it in the process that iterates"
            )

    def _serve(self) -> Batch:
        self._check_usable()
        self._check_observed("the next one is served")
        self._engine.seek(self._next)
        served = self._engine.take()
        labels = torch.from_numpy(self._labels[served.indices])
        if self._pin_memory:
            labels = labels.pin_memory()
        labels = labels.to(served.images.device, non_blocking=True)
        indices = (torch.from_numpy(served.indices.copy()),) if self._with_indices else ()
        batch = (served.images, labels, *indices)
        following = self._engine.after(served.position)
        # Last, and nothing is called after it, so that a batch whose way here was interrupted is served again.
        if self._assistant is not None:
            self._assistant.serve()
        self._begun, self._next = following.batch > 0, following
        return batch


class _Pass(Iterator[Batch]):
    """One epoch, or what is left of it."""

    def __init__(self, loader: Loader, epoch: int, number: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self._number = number

    def __next__(self) -> Batch:
        loader = self._loader
        if loader._pass != self._number or loader._next.epoch != self._epoch:
            raise StopIteration
        return loader._serve()


def _labels(source: Source) -> NDArray[Any]:
    """Return labels as torch expects them: integers as int64, others as they are, in the machine's byte order."""
    dtype = np.dtype(np.int64) if source.labels.dtype.kind in "iu" else source.labels.dtype.newbyteorder("=")
    return source.labels.astype(dtype, copy=False)
