"""Loader: a plan in, tensors out. It is what a training loop iterates."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device
from dalirefurb.checks import integer
from dalirefurb.engine.assembler import Assembler
from dalirefurb.engine.backend_factory import Kernels, choose_kernels
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.build import Assembly, assemble
from dalirefurb.engine.checkpoint import restored, saved
from dalirefurb.engine.configuration import check_kinds, configuration
from dalirefurb.engine.engine import Engine
from dalirefurb.engine.prefetch import Prefetch, choose_prefetch
from dalirefurb.engine.rank import chosen
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.planning.assistant import Assistant, AssistantReport
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy, FallbackDecoder, OnBadSample
from dalirefurb.reading.quarantine import BadSample
from dalirefurb.source import Source
from dalirefurb.store import Store

if TYPE_CHECKING:
    from dalirefurb.dali_iterator import RefurbIterator

Batch = tuple[torch.Tensor, ...]
"""Images, labels and, if asked for, indices."""


class Loader:
    """Serves the batches that a planner plans, with the augmentation that a recipe describes.

    One pass of `for images, labels in loader` is one epoch. Leaving it early begins the next epoch at the next pass.

    Where several processes train together, each has a loader made with the same arguments, and is served its rank's
    rows of every batch; the planner's `shards` say among how many a batch can be divided. All ranks have equally many
    batches, and their rows together are the batches that one process would be served, whatever their number.

    Args:
        source: Source of the samples and labels.
        recipe: Recipe that says what is done to the samples, and how much of it is partial.
        planner: Planner, which says which sample is served when, and whether its partial part is reused.
        store: Store where partial images wait for reuse, or encoded ones with `recipe.at(0)`; None: nothing is cached,
            every batch is computed whole.
        partial_device: Device where the partial part runs, "cpu" or "gpu".
        final_device: Device where the final part runs; with the partial part on the "gpu" it must be there, too.
        kernels: What computes on the CPU: "numba", compiled kernels that leave only decoding to DALI, or "dali". By
            default Numba's, if it exists for the Python at hand, both parts are on the CPU and the
            recipe has no stage of the user's.
        num_threads: CPU threads of each part's pipelines; by default as many as there are cores that the
            process may use, by its affinity and the CPU quota of its control groups (containers, jobs).
        replicas: Copies of each part's pipeline; by default one per thread, at most 8. A pipeline runs one operator at
            a time, so several threads of one pipeline wait for each other, several pipelines do not. With kernels
            one pipeline decodes, from four threads on two do, whatever their number.
        look_ahead: Runs of the final part at a time, finished ones included; by default three per replica, with
            AutoAssist at most as many as its lag allows. With kernels up to two more are finished early. A run takes
            the memory of its images: 154 MB for 256 x 224 x 224 in float32.
        batches_per_run: Batches that run together; a run costs milliseconds however few its rows. By default as many as
            fit into 256 rows, of a source of arrays of one shape smaller than 224 x 224 into as many more as take no
            more memory, up to 2,048; with compiled kernels twice as many, up to 2,048, where all rows are hits; but no
            more than a quarter of an epoch, and with AutoAssist 1.
        with_indices: Whether a batch is (images, labels, indices): the samples' indices, (B,) int64 on the host, for
            `source.name(index)` and the like.
        pin_memory: Whether images and labels made on the CPU are put into pinned memory, from which
            `.to("cuda", non_blocking=True)` does not wait. Costs a copy.
        max_pixels: Pixels of one encoded image at most, which takes 3 bytes a pixel when it is decoded, and of what a
            stage makes of it, as a `Resize` does of a very long one; a larger one, perhaps a decompression bomb, is a
            bad sample. Of what is resized and cropped right after, in the same part, the crop's window alone is made,
            and counts. None: any size.
        on_bad_sample: What happens if a sample cannot be read or decoded, or is too large, or of a size that a stage
            cannot take. "raise": a `SampleError` names it. "replace": a good sample of the same shard is served
            instead, drawn anew for each version, with its own label and index, augmented as it never is in its own
            place. Which one that is depends on which samples are bad, and on nothing else. See `bad_samples`.
        quarantine: With "replace", a file of samples that are bad from the beginning: none is read or decoded. It is
            made if it is not there, and those whose contents are found to be bad are appended, one line of JSON each;
            what cannot be read, or has a size that this recipe cannot take, is not, as another run may use it. Ranks
            may share it.
        fallback_decoder: "pillow": what DALI cannot decode and Pillow can, such as GIF, is decoded by Pillow (its first
            frame), every time it is read; it takes 3 bytes a pixel from then on.
        rank: This process's number among those that train together. By default it and `world_size` are found when they
            are first needed: in torch.distributed if it is initialised, else in torchrun's environment, else 0 of 1.
            With `shards` above 1 threads, graphs and store begin then, too, on what is the CUDA device then.
        world_size: Number of these processes, a divisor of the planner's shards; given with `rank` or not at all.

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
        kernels: Kernels | None = None,
        num_threads: int | None = None,
        replicas: int | None = None,
        look_ahead: int | None = None,
        batches_per_run: int | None = None,
        with_indices: bool = False,
        pin_memory: bool = False,
        max_pixels: int | None = 100_000_000,
        on_bad_sample: OnBadSample = "raise",
        quarantine: str | os.PathLike[str] | None = None,
        fallback_decoder: FallbackDecoder | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if pin_memory and not torch.cuda.is_available():
            raise ConfigurationError(
                "pin_memory=True needs a CUDA device, and torch finds none; pass pin_memory=torch.cuda.is_available()"
            )
        check_kinds(source, recipe, planner, store)
        kernels = choose_kernels(kernels, recipe, partial_device, final_device)
        prefetch = partial(
            choose_prefetch,
            num_threads=num_threads,
            replicas=replicas,
            look_ahead=look_ahead,
            batches_per_run=batches_per_run,
            pixels=_pixels(source, recipe),
            hits_together=store is not None and kernels == "numba" and not recipe.caches_encoded,
        )
        prefetch(planner)  # Refuses what no rank could work with.
        self._planner = planner
        self._labels = _labels(source)
        policy = BadSamplePolicy(on_bad_sample, quarantine, fallback_decoder, max_pixels)
        fingerprint = configuration(
            source,
            recipe,
            planner,
            partial_device=partial_device,
            final_device=final_device,
            kernels=kernels,
            policy=policy,
        )
        substitutes = policy.substitutes(planner, source=fingerprint["source"])

        def assembled(part: Planner, prefetch: Prefetch) -> Assembly:
            return assemble(
                source,
                recipe,
                part,
                store,
                fingerprint=fingerprint,
                partial_device=partial_device,
                final_device=final_device,
                kernels=kernels,
                prefetch=prefetch,
                pin_memory=pin_memory and final_device == "cpu",
                policy=policy,
                substitutes=substitutes,
            )

        self._fingerprint = json.dumps(fingerprint)
        self._substitutes = substitutes
        self._assembler = Assembler(
            planner, chosen=chosen(rank, world_size), choose_prefetch=prefetch, assemble=assembled
        )
        self._with_indices = with_indices
        self._pin_memory = pin_memory
        self._next = Position(0, 0)
        # Whether the present pass has served a batch, and has more of them.
        self._begun = False
        self._present: weakref.ref[_Pass] | None = None
        # Batches that an Assistant has to know of; it is told of the last one when it is needed next.
        self._handed = 0
        self._owner_pid = os.getpid()
        self._finalizer = weakref.finalize(self, self._assembler.let_go)
        self._finalizer.atexit = False

    def __len__(self) -> int:
        """Count the batches of an epoch, on every rank the same."""
        return len(self._planner)

    @property
    def batch_size(self) -> int:
        """Rows of a full batch on this rank; the planner's `batch_size` is that of all ranks together."""
        return self._assembler.part.batch_size

    @property
    def batches_ahead(self) -> int:
        """Count the batches whose images can be made, partly at least, before they are asked for."""
        return self._assembler.prefetch.batches_made

    @property
    def num_samples(self) -> int:
        """Samples of the source, those of all ranks together."""
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
        self._assembler.get()
        if (left := self._present_pass()) is not None:
            left.leave(
                "a loader serves one pass at a time, but iterating it again has begun another one before this one "
                "ended: finish one first, or make a second loader"
            )
        if self._begun:
            self._next, self._begun = Position(self._next.epoch + 1, 0), False
        begun = _Pass(self, self._next.epoch)
        self._present = weakref.ref(begun)
        return begun

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next; needed only to jump or to repeat.

        It is that of the next pass, or of the present one if that has served nothing yet. A pass that has begun raises
        a `LoaderError` at its next batch. The epoch that is next anyway changes nothing, also in the middle of it,
        where `load_state_dict` has gone: so it can be called before each epoch, as for PyTorch's samplers.

        Raises:
            ConfigurationError: If `epoch` is no int from 0 on, or another one than the next where an Assistant plans.
        """
        epoch = integer("epoch", epoch, 0, None, "epochs are counted from 0")
        upcoming = self._next.epoch + self._begun
        if epoch == upcoming:
            return
        if self._planner.feedback_lag is not None:
            raise ConfigurationError(
                f"epoch must be the next one, since an Assistant plans by the losses that it has observed, got "
                f"{epoch} when {upcoming} is next: leave set_epoch out, or go back by load_state_dict"
            )
        self._go_to(Position(epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: JSON values, one or two KB. Batches made ahead do not count as served.

        In an epoch that is left early that is its first batch that was not served; after its last batch it is the next
        epoch. Together with `load_state_dict` this is torchdata's protocol `Stateful`.

        It is the same on all ranks, and can be loaded by any number of them. Only with AutoAssist each rank has its
        own, for the same rank of as many: it holds the Assistant, 11 bytes for each row of the last `lag` batches.

        Raises:
            LoaderError: If the losses of the last batch were not observed.
        """
        self._check_observed("the state is taken")
        assistant = None if self._assistant is None else self._assistant.state()
        return saved(self._next, self._own_fingerprint(), assistant)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: the rest of that epoch is served next.

        That is by the next pass, or by the present one if that has served nothing yet. A pass that has begun raises a
        `LoaderError` at its next batch.

        Raises:
            StateMismatchError: If source, recipe, planner, device, kernels or versions differ, or with AutoAssist
                the rank, or the state is damaged; `.keys` says what. The loader stays where it is.
        """
        position = restored(state, self._own_fingerprint(), num_batches=len(self), assisted=self._assistant is not None)
        if (assistant := self._assistant) is not None:
            self._engine.stop()
            self._handed = 0
            assistant.restore(state["assistant"])
        self._go_to(position)

    def _go_to(self, position: Position) -> None:
        """Make `position` the next to be served: by the present pass if it has served nothing yet, else by another."""
        if (present := self._present_pass()) is not None:
            if present.goes_on and not self._begun:
                present.epoch = position.epoch
            else:
                present.leave(
                    f"a pass that has begun must end before the loader is moved, but set_epoch or load_state_dict has "
                    f"moved it to batch {position.batch} of epoch {position.epoch}: iterate the loader again to go on "
                    f"from there"
                )
        self._next, self._begun = position, False

    def _present_pass(self) -> _Pass | None:
        """Return the pass that was begun last, if somebody has it."""
        return None if self._present is None else self._present()

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
        """Return what was done so far on this rank; subtract an earlier snapshot to get the difference."""
        begun = self._assembler.begun
        return Stats() if begun is None else begun.engine.stats()

    def bad_samples(self) -> list[BadSample]:
        """List the samples that are replaced, with the reasons, by index: those in the quarantine, and those found.

        Batches made ahead find some, too. Each rank lists what it found. With `on_bad_sample="raise"` there are none.
        """
        return [] if self._substitutes is None else self._substitutes.report()

    def dali_iterator(self) -> RefurbIterator:
        """Return this loader as a `DALIGenericIterator`: batches are `[{"data": images, "label": labels}]`."""
        from dalirefurb.dali_iterator import RefurbIterator

        return RefurbIterator(self)

    def close(self) -> None:
        """End the loader's threads and let its pipelines go; the store stays open. Closing twice does nothing.

        What DALI's pools hold of a GPU's memory, and nobody uses any more, is free for others then.
        """
        self._finalizer.detach()
        self._assembler.close()

    def __reduce__(self) -> NoReturn:
        raise LoaderError(
            "a loader cannot be pickled, since its threads and pipelines belong to one process: make it in the process "
            "that iterates, and pass on loader.state_dict() if it is to go on there"
        )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own_fingerprint(self) -> dict[str, Any]:
        """Return what a state must have been saved with; what an Assistant has seen is its rank's."""
        rank = self._assembler.rank._asdict() if self._planner.feedback_lag is not None else {}
        return {**json.loads(self._fingerprint), **rank}

    @property
    def _engine(self) -> Engine:
        return self._assembler.get().engine

    @property
    def _assistant(self) -> Assistant | None:
        """Where it plans: the Assistant, which knows of all batches that were served."""
        if self._planner.feedback_lag is None:
            return None
        assistant = self._assembler.get().assistant
        if assistant is not None and assistant.served < self._handed:
            assistant.serve()
        return assistant

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
        assert self._assembler.begun is not None  # Since the pass began, at the latest.
        engine = self._assembler.begun.engine
        engine.seek(self._next)
        served = engine.take()
        labels = torch.from_numpy(self._labels[served.indices])
        if self._pin_memory:
            labels = labels.pin_memory()
        if served.images.is_cuda:
            labels = labels.to(served.images.device, non_blocking=True)
        indices = (torch.from_numpy(served.indices.copy()),) if self._with_indices else ()
        batch = (served.images, labels, *indices)
        following = engine.after(served.position)
        handed = 0 if self._assistant is None else self._assistant.served + 1
        # Last, and nothing is called after it, so that a batch whose way here was interrupted is served again.
        self._begun, self._next, self._handed = following.batch > 0, following, handed
        return batch


class _Pass(Iterator[Batch]):
    """One epoch, or what is left of it.

    Attributes:
        epoch: Number of the epoch; None once the pass can serve nothing more.
    """

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._loader = loader
        self.epoch: int | None = epoch
        self._cut_off: str | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there is a batch that it would serve."""
        return self._loader._next.epoch == self.epoch

    def leave(self, reason: str) -> None:
        """Serve nothing more; if there is a batch that it would have served, raise this where it is asked for."""
        if self.goes_on:
            self._cut_off = reason
        self.epoch = None

    def __next__(self) -> Batch:
        if self._cut_off is not None:
            raise LoaderError(self._cut_off)
        if not self.goes_on:
            raise StopIteration
        return self._loader._serve()


def _pixels(source: Source, recipe: Recipe) -> int | None:
    """Return how many pixels a sample has, as the source or as the model has it; None if nobody knows before."""
    if source.encoded or source.image_shape is None:
        return None
    height, width, _ = source.image_shape
    return max(height * width, recipe.output.size**2)


def _labels(source: Source) -> NDArray[Any]:
    """Return labels as torch expects them: integers as int64, others as they are, in the machine's byte order."""
    dtype = np.dtype(np.int64) if source.labels.dtype.kind in "iu" else source.labels.dtype.newbyteorder("=")
    return source.labels.astype(dtype, copy=False)
