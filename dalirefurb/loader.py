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
from dalirefurb.augment.custom import Custom
from dalirefurb.augment.geometry import Device
from dalirefurb.engine import Engine
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.exchange import Position
from dalirefurb.feeds import Feeder
from dalirefurb.graph import Graph, Replica, versions
from dalirefurb.plan import Planner
from dalirefurb.reader import Reader
from dalirefurb.recipe import Recipe
from dalirefurb.source import Source
from dalirefurb.state import digest, restored, saved
from dalirefurb.stats import Stats
from dalirefurb.store import Store

if TYPE_CHECKING:
    from dalirefurb.dali_iterator import RefurbIterator

Batch = tuple[torch.Tensor, ...]
"""Images, labels and, if asked for, indices."""

_READING_THREADS = 4
_MAX_REPLICAS = 8
_ROWS_PER_RUN = 256
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
        num_threads: CPU threads in all; by default as many as the process may use.
        replicas: Copies of the DALI pipeline; by default one per thread, at most 8. A pipeline runs one operator at a
            time, so several threads of one pipeline wait for each other, several pipelines do not.
        look_ahead: Runs of the pipelines at a time, finished ones included; by default three per replica. A run takes
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
        num_threads = _positive("num_threads", num_threads, default=len(os.sched_getaffinity(0)))
        replicas = _positive("replicas", replicas, default=min(_MAX_REPLICAS, num_threads))
        look_ahead = _positive("look_ahead", look_ahead, default=3 * replicas)
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
        # A graph that caches also shows the computed images, so that what a user's stage makes can be checked.
        caching = store is not None or any(isinstance(stage, Custom) for stage in recipe.partial)
        graph = Graph(recipe, caching=caching, partial_device=partial_device, final_device=final_device)
        device_id = _device_id() if graph.needs_gpu else None
        # Runs ahead shall not span more than half an epoch: a row waits for a run ahead that computes its version.
        fitting = min(_ROWS_PER_RUN // planner.batch_size, len(planner) // (2 * look_ahead + 4))
        batches_per_run = _positive("batches_per_run", batches_per_run, default=max(1, fitting))
        max_rows = batches_per_run * planner.batch_size
        reader = Reader(source, max_batch_size=max_rows, num_threads=_READING_THREADS)
        feeder = Feeder(recipe, seed=planner.seed, entering=source.image_shape, caching=caching)
        if store is not None:
            self._open(store, source, recipe, reader, feeder.partial_size)
        threads_each = -(-num_threads // replicas)
        self._batches_ahead = (look_ahead + 1) * batches_per_run
        serialized = graph.serialize(max_batch_size=max_rows, num_threads=threads_each)
        self._engine = Engine(
            source=source,
            recipe=recipe,
            planner=planner,
            feeder=feeder,
            store=store,
            replicas=[
                Replica(graph, serialized, num_threads=threads_each, device_id=device_id) for _ in range(replicas)
            ],
            reader=reader,
            look_ahead=look_ahead,
            batches_per_run=batches_per_run,
            pin_memory=pin_memory and final_device == "cpu",
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
        """Count the batches that can be ready, or nearly so, before they are asked for."""
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
            ConfigurationError: If `epoch` is negative.
        """
        if epoch < 0:
            raise ConfigurationError(f"epoch must be at least 0, got {epoch}")
        self._pass = None
        self._next = Position(int(epoch), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training loop is: JSON values, a few KB. Batches made ahead do not count as served."""
        return saved(self._next, self._fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: the next pass serves the rest of that epoch.

        Raises:
            StateMismatchError: If source, recipe, planner, device or versions differ; `.keys` says which.
        """
        self._next = restored(state, self._fingerprint)
        self._pass = None

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
        self._engine.seek(self._next)
        served = self._engine.take()
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


def _positive(name: str, value: int | None, *, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a positive integer or None, got {value!r}")
    return value


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
