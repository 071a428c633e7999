"""A plan in, tensors out: the object a training loop iterates."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.assistant import Assistant, AssistantReport
from dalirefurb.augment.custom import Custom
from dalirefurb.augment.geometry import Device
from dalirefurb.autoassist import AutoAssist
from dalirefurb.downstream import Downstream
from dalirefurb.engine import Engine, Plans
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.exchange import Exchange
from dalirefurb.features import FeatureTable
from dalirefurb.feeds import Feeder
from dalirefurb.graph import Graph, Part, Replicas, versions
from dalirefurb.on_demand import OnDemand
from dalirefurb.pace import set_pace
from dalirefurb.plan import BatchPlan, Planner
from dalirefurb.reader import Reader
from dalirefurb.recipe import Recipe
from dalirefurb.runs import Position, numbered, planned
from dalirefurb.source import Source
from dalirefurb.state import digest, restored, saved
from dalirefurb.stats import Stats, Tally
from dalirefurb.store import Store
from dalirefurb.upstream import Upstream, Watch

if TYPE_CHECKING:
    from dalirefurb.dali_iterator import RefurbIterator

Batch = tuple[torch.Tensor, ...]
"""Images, labels and, if asked for, indices."""

_READING_THREADS = 4
_SIZE_PROBES = 256


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
    ) -> None:
        _check_fit(source, recipe, planner)
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
        self._fingerprint = {
            "source": source.fingerprint(),
            "recipe": recipe.fingerprint(),
            "planner": planner.fingerprint(),
            "partial_device": partial_device,
            "versions": versions(),
        }
        if planner.peak_slots == 0:
            store = None
        # Partial images can be seen where the parts are apart: by the store, by an Assistant, and by the check of what
        # a user's stage makes.
        custom = any(isinstance(stage, Custom) for stage in recipe.partial)
        apart = store is not None or custom or isinstance(planner, AutoAssist)
        max_rows = pace.batches_per_run * planner.batch_size
        reader = Reader(source, max_batch_size=max_rows, num_threads=_READING_THREADS)
        feeder = Feeder(recipe, seed=planner.seed, entering=source.image_shape)
        if store is not None:
            self._open(store, source, recipe, reader, feeder.partial_size)
        exchange = Exchange(reader, store)
        tally = Tally()

        def replicas_of(part: Part, count: int = pace.replicas) -> Replicas:
            graph = Graph(recipe, part, partial_device, final_device)
            return Replicas(
                graph,
                count,
                max_batch_size=max_rows,
                num_threads=pace.threads_each,
                device_id=_device_id() if graph.needs_gpu else None,
            )

        self._assistant: Assistant | None = None
        watch = None
        if isinstance(planner, AutoAssist):
            features = FeatureTable(len(source), resolution=planner.resolution)
            compute = OnDemand(source, reader, feeder, lambda: replicas_of("partial", 1), max_rows=max_rows)
            self._assistant = Assistant(planner, features, compute)
            watch = _watch(features)
        self._batches_ahead = pace.batches_made
        self._engine = Engine(
            plans=_plans(planner, self._assistant, exchange),
            upstream=Upstream(
                source=source,
                recipe=recipe,
                exchange=exchange,
                feeder=feeder,
                replicas=replicas_of("partial" if apart else "whole"),
                part="partial" if apart else "whole",
                in_flight=pace.partial_ahead if apart else pace.look_ahead,
                admitted=pace.admitted,
                watch=watch,
                tally=tally,
            ),
            downstream=Downstream(
                recipe=recipe,
                exchange=exchange,
                feeder=feeder,
                replicas=replicas_of("final") if apart else None,
                in_flight=pace.look_ahead,
                pin_memory=pin_memory and final_device == "cpu",
                tally=tally,
            ),
            reader=reader,
            num_batches=len(planner),
            batches_per_run=pace.batches_per_run,
            tally=tally,
        )
        self._with_indices = with_indices
        self._pin_memory = pin_memory
        self._next = Position(0, 0)
        self._pass: _Pass | None = None
        self._owner_pid = os.getpid()
        self._finalizer = weakref.finalize(self, self._engine.close)
        self._finalizer.atexit = False

    def _open(self, store: Store, source: Source, recipe: Recipe, reader: Reader, size: tuple[int, int] | None) -> None:
        partial: dict[str, Any] = {key: self._fingerprint[key] for key in ("source", "partial_device", "versions")}
        partial |= {"seed": self._planner.seed, "stages": [stage.fingerprint() for stage in recipe.partial]}
        slots = self._planner.peak_slots
        key = digest(partial)
        if size is not None:
            store.open((*size, 3), slots=slots, fingerprint=key)
        else:
            nbytes = _arena_bytes(slots, source, recipe, reader, self._planner.seed)
            store.open(None, slots=slots, fingerprint=key, arena_bytes=nbytes)

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
        if self._pass is not None and self._pass.begun:
            self._next = Position(self._next.epoch + 1, 0)
        self._pass = _Pass(self, self._next.epoch)
        return self._pass

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass serves; needed only to jump or to repeat.

        Raises:
            ConfigurationError: If `epoch` is negative, or another one than the next where an Assistant plans.
        """
        if epoch < 0:
            raise ConfigurationError(f"epoch must be at least 0, got {epoch}")
        upcoming = self._next.epoch + (self._pass is not None and self._pass.begun)
        if self._assistant is not None:
            if epoch != upcoming:
                raise ConfigurationError(
                    f"epoch must be the next one, since an Assistant plans by the losses that it has observed, got "
                    f"{epoch} when {upcoming} is next: leave set_epoch out, or go back by load_state_dict"
                )
            return
        self._pass = None
        self._next = Position(int(epoch), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: JSON values, a few KB. Batches made ahead do not count as served.

        With AutoAssist it holds the Assistant, too: 11 bytes for each row of the last `lag` batches.

        Raises:
            LoaderError: If the losses of the last batch were not observed.
        """
        self._check_observed("the state is taken")
        assistant = None if self._assistant is None else self._assistant.state()
        return saved(self._next, self._fingerprint, assistant)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: the next pass serves the rest of that epoch.

        Raises:
            StateMismatchError: If source, recipe, planner, device or versions differ; `.keys` says which.
        """
        self._next = restored(state, self._fingerprint)
        self._pass = None
        if self._assistant is not None:
            self._engine.stop()
            self._assistant.restore(state["assistant"])

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
        self._finalizer()

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
        if self._assistant is not None:
            self._assistant.serve()
        self._next = self._engine.after(served.position)
        labels = torch.from_numpy(self._labels[served.indices])
        if self._pin_memory:
            labels = labels.pin_memory()
        labels = labels.to(served.images.device, non_blocking=True)
        if self._with_indices:
            return served.images, labels, torch.from_numpy(served.indices.copy())
        return served.images, labels


class _Pass(Iterator[Batch]):
    """One epoch, or what is left of it."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self.begun = False

    def __next__(self) -> Batch:
        loader = self._loader
        if loader._pass is not self or loader._next.epoch != self._epoch:
            if loader._pass is self:
                loader._pass = None
            raise StopIteration
        self.begun = True
        batch = loader._serve()
        if loader._next.epoch != self._epoch:
            loader._pass = None
        return batch


def _check_fit(source: Source, recipe: Recipe, planner: Planner) -> None:
    if len(source) != planner.num_samples:
        raise ConfigurationError(
            f"planner and source must have the same number of samples, got {planner.num_samples} and {len(source)}; "
            f"pass len(source) to the planner"
        )
    shape, size = source.image_shape, recipe.output.size
    if shape is not None and recipe.final_size(shape[:2]) != (size, size):
        height, width = recipe.final_size(shape[:2]) or ("?", "?")
        raise ConfigurationError(
            f"the recipe must leave images of the output's size {size} x {size}, but makes {height} x {width} of the "
            f"source's {shape[0]} x {shape[1]}; make the recipe for the size of the source's images"
        )
    if source.encoded != recipe.encoded:
        needs, gives = ("encoded images", "arrays") if recipe.encoded else ("arrays", "encoded images")
        raise ConfigurationError(
            f"the recipe starts from {needs}, but the source gives {gives}; "
            f"make the recipe with raw={not source.encoded}"
        )


def _plans(planner: Planner, assistant: Assistant | None, exchange: Exchange) -> Plans:
    """Return what plans from a position on."""

    def plans(start: Position) -> Iterator[tuple[Position, BatchPlan]]:
        if assistant is not None:
            assistant.rewind()
            return numbered(iter(assistant.plan, None), start, len(planner))
        exchange.begin(planner, start)
        return planned(planner, start)

    return plans


def _watch(features: FeatureTable) -> Watch:
    """Return what puts the features of each sample's version 0 into their table."""

    def watch(plan: BatchPlan, rows: NDArray[np.int64], images: list[NDArray[np.uint8]]) -> None:
        places = np.flatnonzero(plan.version[rows] == 0)
        if len(places):
            features.fill(plan.indices[rows[places]], [images[place] for place in places.tolist()])

    return watch


def _labels(source: Source) -> NDArray[Any]:
    """Return labels as torch expects them: integers as int64, others as they are, in the machine's byte order."""
    dtype = np.dtype(np.int64) if source.labels.dtype.kind in "iu" else source.labels.dtype.newbyteorder("=")
    return source.labels.astype(dtype, copy=False)


def _device_id() -> int:
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "a part is placed on 'gpu', but torch finds no CUDA device; use partial_device='cpu', final_device='cpu'"
        )
    return torch.cuda.current_device()


def _arena_bytes(slots: int, source: Source, recipe: Recipe, reader: Reader, seed: int) -> int:
    """Estimate what `slots` partial images of varying size take, from the headers of some samples.

    The sum of many sizes is close to normal: its mean, four standard deviations, and room for gaps between images.
    """
    probes = rng.permutation(len(source), seed, "size probes")[:_SIZE_PROBES]
    heights, widths = reader.sizes(probes)
    for stage in recipe.partial:
        heights, widths = stage.output_sizes(heights, widths)
    nbytes = 3.0 * heights * widths
    return int(1.1 * slots * nbytes.mean() + 4 * slots**0.5 * nbytes.std() + 4 * nbytes.max())
