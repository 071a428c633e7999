"""Loader: a plan in, tensors out. It is what a training loop iterates."""

from __future__ import annotations

import json
import operator
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import torch
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device
from dalirefurb.calls import Explained
from dalirefurb.checks import epoch_of, flag, require
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.batch_tensors import BatchTensors, TargetForm, TargetTensors
from dalirefurb.engine.build import Assembler
from dalirefurb.engine.configuration import Configuration, check_kinds
from dalirefurb.engine.cursor import Cursor, restored, saved
from dalirefurb.engine.diagnosis import NOTHING_SERVED, Diagnosis
from dalirefurb.engine.finisher import Served
from dalirefurb.engine.kernel_choice import Devices, Kernels, choose_for_views, fallback_stage
from dalirefurb.engine.loader_view import Batch, EpochSampler, Mappable, OwnVersions, refuse_caller
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.engine.rank import Rank, chosen
from dalirefurb.engine.recipe_checks import behind
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.planning.assistant import Assistant, AssistantReport
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import BadSample, BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.store import Store

if TYPE_CHECKING:
    from dalirefurb.dali_iterator import RefurbIterator


class Loader(Mappable, metaclass=Explained):
    """Serves the batches that a planner plans, with the augmentation that a recipe describes.

    One pass of `for images, labels in loader` is one epoch. One that is left early is over, see `resume`.

    Where several processes train together, each has a loader made with the same arguments, and is served its rank's
    rows of every batch; the planner's `shards` say among how many a batch can be divided (any number divides those of
    `Evaluate`). All ranks have equally many batches, and their rows together are the batches that one process would be
    served, whatever their number; but with AutoAssist each rank chooses by itself.

    Args:
        source: Source of the samples and labels.
        recipe: Recipe that says what is done to the samples, and how much of it is partial.
        planner: Planner, which says which sample is served when, and whether its partial part is reused.
        store: Store where partial images wait for reuse, or encoded ones with `recipe.at(0)`; None: nothing is cached,
            every batch is computed whole.
        partial_device: Device where the partial part runs, "cpu" or "gpu".
        final_device: Device where the final part runs; with the partial part on the "gpu" it must be there, too.
        kernels: What computes: "numba", on the CPU compiled kernels that leave decoding to DALI, and from the first
            stage on that has none, such as `Custom`, all that follows; "cuda", the same kernels for a final part on a
            GPU, all of whose stages have some; or "dali", which does all. By default the first of these that can: for
            Numba's both parts must be on the CPU, and images have one size where DALI goes on.
        views: Recipes for further images of each sample, which is read, decoded and made partial once for all: with the
            recipe's partial part, and a final part, and size, of their own. Stages of one name draw alike, so
            `recipe.view(2)` is another view by the same recipe. The images of a batch are a tuple then, the recipe's
            own first. Or a number, such as 2: so many images of each sample, each by the whole recipe, with random
            numbers and cached versions of its own; with `Refurbish` these are born in turn, see
            `dalirefurb.planning.views.Views`. `Stats` and stores count each as a sample.
        prefetch: How many threads work, and how far ahead.
        target_form: What a batch has in the place of labels where the source has several targets, see
            `dalirefurb.targets`: "dicts", one for each image, as torchvision's models take them, by default; or
            "ultralytics", one for the batch.
        with_indices: Whether a batch is (images, labels, indices): the samples' indices, (B,) int64 on the host, for
            `source.name(index)` and the like; -1 for rows of padding, see `Evaluate`.
        pin_memory: Whether images and labels made on the CPU are put into pinned memory, from which
            `.to("cuda", non_blocking=True)` does not wait. Costs a copy.
        bad_samples: What happens to samples that cannot be read, decoded or used.
        rank: This process's number among those that train together, and how many these are, a divisor of the planner's
            shards: (rank, world_size). By default both are found when they are first needed: in torch.distributed if it
            is initialised, else in the environment of torchrun, mpirun or srun, else 0 of 1. With `shards` above 1
            threads, graphs and store begin then, too, on what is the CUDA device then. How many processes share this
            machine's cores and memory is found then as well, or is `Rank`'s local_world_size.

    Attributes:
        source: Source of the samples and labels.
        recipe: Recipe that says what is done to the samples.
        planner: Planner of the batches of all ranks.
        views: Recipes for further images of each sample, or how many images each has.

    Raises:
        ConfigurationError: If the parts do not fit together.
        OutOfMemoryError: If the store and what is on its way exceed the memory at hand.
    """

    _serves: ClassVar[Literal["partial", "final"]] = "final"

    num_workers = 0
    collate_fn = None
    batch_sampler = None
    generator = None

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
        views: Sequence[Recipe] | int = (),
        target_form: TargetForm | None = None,
        prefetch: Prefetch = Prefetch(),  # noqa: B008 - it is frozen
        with_indices: bool = False,
        pin_memory: bool = False,
        bad_samples: BadSamplePolicy = BadSamplePolicy(),  # noqa: B008
        rank: Rank | tuple[int, int] | tuple[int, int, int] | None = None,
    ) -> None:
        with_indices, pin_memory = flag("with_indices", with_indices), flag("pin_memory", pin_memory)
        if pin_memory and not torch.cuda.is_available():
            raise ConfigurationError(
                "pin_memory=True needs a CUDA device, and torch finds none; pass pin_memory=torch.cuda.is_available()"
            )
        check_kinds(source, recipe, planner, store, prefetch, bad_samples)
        own: OwnVersions | None = None
        if hasattr(views, "__index__") and not isinstance(views, bool):
            own = OwnVersions(source, planner, operator.index(views))
        recipes = () if own is not None else _checked_views(views)
        if planner.padded and not with_indices:
            raise ConfigurationError(
                "pad=True needs with_indices=True: rows that only fill a batch up are told by their index, -1"
            )
        devices = Devices(partial_device, final_device)
        serves, stored = self._serves, store is not None
        versions = 1 if own is None else own.views
        given = (recipe, *recipes)
        kernels = choose_for_views(kernels, given, devices, final=serves == "final", versions=versions)
        left = behind(source, given, kernels, devices, bad_samples)
        served = (source, planner) if own is None else own.numbered(bad_samples)
        configuration = Configuration(
            served[0],
            left[0],
            served[1],
            stored,
            devices,
            kernels,
            bad_samples,
            pin_memory,
            serves,
            left[1:],
            given if source.prefix else (),
        )
        fingerprint = configuration.fingerprint
        self.source, self.recipe, self.planner = source, recipe, planner
        self.views = recipes if own is None else own.views
        self._own_versions, self._versions = own, versions
        self._kernels = kernels
        dtypes = tuple(each.output.dtype for each in (recipe, *recipes) * versions)
        targets: TargetTensors | None = None
        if source.annotations is not None:
            targets = TargetTensors(source.annotations, target_form, recipe.output)
        elif target_form is not None:
            raise ConfigurationError(
                "target_form is for a source with targets, but this one has labels: pass Annotated(source, targets)"
            )
        self._tensors = BatchTensors(configuration.labels(), with_indices, pin_memory, dtypes, targets)
        self._substitutes = substitutes = bad_samples.substitutes(planner, source=fingerprint["source"])
        self._fingerprint = json.dumps(fingerprint)
        self._naming = nullcontext if own is None else own.naming_samples
        with self._naming():
            self._assembler = Assembler(configuration, store, prefetch, substitutes, chosen(rank))
        self._cursor = Cursor()
        self._finalizer = weakref.finalize(self, self._assembler.shutdown)
        self._finalizer.atexit = False

    def __len__(self) -> int:
        """Count the batches of an epoch, on every rank the same."""
        return len(self._assembler.divided)

    @property
    def rank(self) -> Rank:
        """This process's place among those that train together."""
        return self._assembler.rank

    @property
    def batch_size(self) -> int:
        """Rows of a full batch on this rank; the planner's `batch_size` is that of all ranks together."""
        return self._assembler.part.batch_size // self._versions

    @property
    def rows_per_epoch(self) -> int:
        """Rows that this rank is served in an epoch."""
        return self._assembler.part.rows_per_epoch // self._versions

    @property
    def batches_ahead(self) -> int:
        """Count the batches whose images can be made, partly at least, before they are asked for."""
        return self._assembler.depths.batches_made

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` serves, also where a loop was left early; in a loop that of its next batch."""
        return self._cursor.epoch

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch: the next one, also if the present one was left early."""
        self._assembler.check_usable()
        with self._naming():
            self._assembler.get()
        self._check_observed("the next one is served")
        return self._cursor.begin_pass(self._serve)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next; needed only to jump or to repeat.

        It is that of the next pass, or of the present one if that has served nothing yet. A pass that has begun raises
        a `LoaderError` at its next batch. The epoch that is next anyway changes nothing, also in the middle of it,
        where `load_state_dict` has gone: so it can be called before each epoch, as for PyTorch's samplers.

        Raises:
            ConfigurationError: If `epoch` is no int from 0 on, or another one than the next where an Assistant plans.
        """
        epoch = epoch_of(epoch)
        upcoming = self._cursor.upcoming_epoch
        if epoch == upcoming:
            return
        if self.planner.feedback_lag is not None:
            raise ConfigurationError(
                f"epoch must be the next one, since an Assistant plans by the losses that it has observed, got "
                f"{epoch} when {upcoming} is next: leave set_epoch out, or go back by load_state_dict"
            )
        self._cursor.move(Position(epoch, 0))

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: JSON values, one or two KB. Batches made ahead do not count as served.

        In an epoch that is left early that is its first batch that was not served, where `resume` goes on; after its
        last batch it is the next epoch. Together with `load_state_dict` this is torchdata's protocol `Stateful`.

        It is the same on all ranks, but for the bad samples that each has found, and can be loaded by any number of
        them; with `Evaluate` in the middle of an epoch by such as divide it into the same batches. Only with AutoAssist
        each rank has its own, for the same rank of as many: it holds the Assistant, 11 bytes for each row of the last
        `lag` batches.

        Raises:
            LoaderError: If the losses of the last batch were not observed.
        """
        self._check_observed("the state is taken")
        return self._state_at(self._cursor.position)

    def _state_at(self, position: Position) -> dict[str, Any]:
        assistant, division = self._assistant, self._assembler.divided.division
        seen = None if assistant is None else assistant.state()
        state = saved(position, self._own_fingerprint(), seen, division=division)
        bad = [[each.index, each.name, each.reason] for each in self.bad_samples()]
        return {**state, "bad_samples": bad} if bad else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: the rest of that epoch is served next.

        That is by the next pass, or by the present one if that has served nothing yet. A pass that has begun raises a
        `LoaderError` at its next batch.

        Raises:
            StateMismatchError: If source, recipe, planner, device, kernels or versions differ, or with AutoAssist
                the rank, or what ranks divide an epoch of `Evaluate` into, or the state is damaged; `.keys` says what.
                The loader stays where it is.
        """
        assisted = self.planner.feedback_lag is not None
        fingerprint, division = self._own_fingerprint(), self._assembler.divided.division
        position = restored(state, fingerprint, num_batches=len(self), assisted=assisted, division=division)
        substitutes = self._substitutes
        bad = substitutes.told(state.get("bad_samples", ())) if substitutes is not None else []
        if (assistant := self._assistant) is not None:
            self._assembler.get().stop()  # Nothing is planned any more.
            self._cursor.handed = 0  # It is told of no batch that was served before.
            assistant.restore(state["assistant"])
        if substitutes is not None:
            for each in bad:  # Nothing is damaged.
                substitutes.add(each)
        self._cursor.move(position)

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

    def stats(self) -> Stats:
        """Return what was done so far on this rank; subtract an earlier snapshot to get the difference."""
        engine = self._assembler.engine
        return Stats() if engine is None else engine.stats()

    def diagnose(self, since: Stats | None = None) -> Diagnosis:
        """Say whether training waits for data, and the one change that would help most; `str` of it is one line.

        It compares the time in which the training loop waits for a batch with the time from there to the next request,
        which the model should need. So validation in the middle of an epoch counts as the model's; and a model on the
        loader's cores is slowed by it, so that data cost more than the waiting: the line says so if there is no CUDA
        device, and steps compute on whatever threads of this process.

        Args:
            since: Snapshot by `stats()` from which on; by default the end of the first epoch, once enough came after.
        """
        engine = self._assembler.engine
        return NOTHING_SERVED if engine is None else engine.diagnose(since)

    def bad_samples(self) -> list[BadSample]:
        """List the samples that are replaced, with the reasons, by index: those in the quarantine, and those found.

        Batches made ahead find some, too. Each rank lists what it found. With `on_bad_sample="raise"` there are none.
        """
        return [] if self._substitutes is None else self._substitutes.report()

    def dali_iterator(self, output_map: Sequence[str] | None = None, **options: Any) -> RefurbIterator:
        """Return this loader as a `DALIGenericIterator`: batches are `[{"data": images, "label": labels}]`.

        Args:
            output_map: Names in place of these, and of "index" if the loader has indices.
            options: `auto_reset`, `last_batch_policy` and `dali_labels`, see `RefurbIterator`.
        """
        from dalirefurb.dali_iterator import RefurbIterator

        return RefurbIterator(self, output_map, **options)

    def close(self) -> None:
        """End the loader's threads and let its pipelines go; the store stays open. Closing twice does nothing.

        What DALI's pools hold of a GPU's memory, and nobody uses any more, is free for others then.
        """
        self._finalizer.detach()
        self._assembler.close()

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
    def drop_last(self) -> bool:
        """Whether samples that fill no batch wait for the next epoch."""
        return self.planner.drop_last or self.planner.shards > 1

    @property
    def sampler(self) -> EpochSampler:
        """What stands for the planner where a sampler is looked for."""
        refuse_caller(sys._getframe(1))
        return EpochSampler(self)

    @property
    def max_batch_size(self) -> NoReturn:
        """What DALI's iterators ask a pipeline for."""
        raise AttributeError(
            "a loader is no pipeline of DALI: loader.dali_iterator() is the DALIGenericIterator of its batches"
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            f"a loader serves batches in the planner's order, not by index, got {index!r}: iterate it, for images, "
            f"labels in loader; loader.source[i] shows a sample; around a Loader there needs to be no DataLoader"
        )

    def __repr__(self) -> str:
        planner, classes = self.planner, self.source.classes
        whole = "files" if self.recipe.encoded else "arrays"
        cached = " > ".join(stage.name for stage in self.recipe.partial) or f"{whole}, as they are read"
        fallback = fallback_stage(self._kernels, self.recipe, final=self._serves == "final")
        kernels = self._kernels if fallback is None else f"{self._kernels}, DALI from {fallback!r} on"
        if self.views and self._serves == "final":
            kernels += (
                f"; views: {self.views}" if isinstance(self.views, int) else f"; further views: {len(self.views)}"
            )
        return (
            f"Loader({planner.num_samples:,} samples{'' if classes is None else f' of {len(classes):,} classes'} by "
            f"{type(planner).__name__} in batches of {planner.batch_size:,}, next: {self._cursor}; "
            f"{'cached' if planner.peak_slots else 'partial'}: {cached}; kernels: {kernels})"
        )

    def _own_fingerprint(self) -> dict[str, Any]:
        """Return what a state must have been saved with; what an Assistant has seen is its rank's."""
        names = ("rank", "world_size") if self.planner.feedback_lag is not None else ()
        return {**json.loads(self._fingerprint), **dict(zip(names, self._assembler.rank, strict=False))}

    @property
    def _assistant(self) -> Assistant | None:
        """Where one plans: the Assistant, which knows of all batches that were served."""
        if self.planner.feedback_lag is None:
            return None
        assistant = self._assembler.get().assistant
        if assistant is not None and assistant.served < self._cursor.handed:
            assistant.serve()
        return assistant

    def _assisting(self) -> Assistant:
        if (assistant := self._assistant) is None:
            raise ConfigurationError(
                f"losses are for AutoAssist, but the planner is {type(self.planner).__name__}: "
                f"pass AutoAssist(planner, lag=...) to the loader"
            )
        return assistant

    def _check_observed(self, before: str) -> None:
        """Refuse to go on without the losses of the last batch."""
        if (assistant := self._assistant) is not None and assistant.observed < assistant.served:
            raise LoaderError(
                f"the losses of each batch must be observed before {before}, but those of the last batch were not: "
                f"call loader.observe(losses) after each batch, also after one whose step was interrupted"
            )

    def _serve(self) -> tuple[Batch, Position, int]:
        """Serve the next batch; return also where the one after it is, and what the Assistant has to know of then."""
        self._assembler.check_usable()
        self._check_observed("the next one is served")
        engine = self._assembler.engine
        assert engine is not None  # Since the pass began, at the latest.
        engine.seek(self._cursor.position)
        own = self._own_versions
        with self._naming():
            served = engine.take()
        if own is not None:
            served = own.parted(served, self._assembler.rank.world_size)
        batch = self._batch_of(served, engine.planner.padding(served.position.batch))
        assistant = self._assistant
        return batch, served.position.after(engine.num_batches), 0 if assistant is None else assistant.served + 1

    def _batch_of(self, served: Served, padding: int) -> Batch:
        """Return a batch as the training loop gets it; its last rows, so many, only fill it up."""
        return self._tensors.of(served, padding)


def _checked_views(views: Any) -> tuple[Recipe, ...]:
    remedy = "pass such as [recipe.view(2)], or 2 for two versions of the whole recipe"
    require(isinstance(views, (list, tuple)), "views", "a list of recipes, or a number", views, remedy)
    for view in views:
        require(isinstance(view, Recipe), "views", "recipes", view, "pass such as [recipe.view(2)]")
    return tuple(views)
