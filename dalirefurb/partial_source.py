"""PartialSource: cached partial images, and what the final part is to be fed, for pipelines of the user's own.

plan ──▶ engine ──▶ PartialSource ──▶ fn.external_source ──▶ final_graph, or any operators ──▶ DALI's iterators
         read, decode, cache            the user's pipeline
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline, pipeline_def

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Node
from dalirefurb.calls import Explained, explains, no_argument
from dalirefurb.checks import epoch_of, flag, integer, require
from dalirefurb.dali import final_graph, final_inputs
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.finals import FinalFeed
from dalirefurb.engine.finisher import Served
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.engine.rank import Rank
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.planning.echo import BatchEcho
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import BadSample, BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.source.labels import check_dali_labels
from dalirefurb.store import DeviceStore, Store

Fed = tuple[NDArray[Any] | list[NDArray[Any]], ...]
"""A batch for `fn.external_source`: images, labels, perhaps indices, and the final part's parameters, of B rows."""


class PartialSource(metaclass=Explained):
    """Gives `fn.external_source` partial images that a planner chooses: computed, cached and evicted as a loader does.

    Each call returns the next batch, and ends an epoch by `StopIteration`, as DALI expects of a source:

        samples = PartialSource(source, recipe, planner, MemoryStore())

        @pipeline_def(batch_size=samples.batch_size, num_threads=4, device_id=0, enable_conditionals=True)
        def graph():
            images, labels, *parameters = fn.external_source(samples, num_outputs=samples.num_outputs, no_copy=True)
            return samples.final_graph(images.gpu(), parameters), labels

        iterator = DALIGenericIterator(graph(), ["data", "label"], auto_reset=True)

    What it gives are, in this order: partial images (H, W, 3) uint8 on the host; labels, int64 of shape (B,); the
    samples' indices, int64 of shape (B,), if they are asked for; and the parameters of the final part, which
    `final_graph` takes. All of it is drawn by (seed, sample, serving), so a pipeline has no state that is to be saved.

    Args:
        source: Source of the samples and labels.
        recipe: Recipe whose partial part is done here.
        planner: Planner, which says which sample is served when, and whether its partial part is reused.
        store: Store where partial images wait for reuse; None: nothing is cached.
        kernels: What computes the partial part: "numba", compiled kernels, or "dali", whose operators make the bits of
            `Loader(..., kernels="dali")`. By default as for `Loader`.
        views: Recipes for further outputs of each sample, of another size for example: with the same stages up to the
            split, and a final part of their own. Stages of one name draw alike.
        prefetch: How many threads work, and how far ahead.
        with_indices: Whether the samples' indices are given; -1 for rows that only fill a batch up.
        dali_labels: Whether labels, a whole number each, are as DALI's readers have them, (B, 1) int32.
        pad_last_batch: Whether a last batch that is not full is filled up by repeating its last row, as DALI's readers
            do: for iterators that are given `size=samples.epoch_size, last_batch_padded=True` and a last_batch_policy.
        bad_samples: What happens to samples that cannot be read, decoded or used.
        rank: This process's number among those that train together, and how many these are; see `Loader`.

    Attributes:
        source: Source of the samples and labels.
        recipe: Recipe whose partial part is done here.
        planner: Planner of the batches of all ranks.

    Raises:
        ConfigurationError: If the parts do not fit together.
        OutOfMemoryError: If the store and what is on its way exceed the memory at hand.
    """

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        planner: Planner,
        store: Store | None = None,
        *,
        kernels: Kernels | None = None,
        views: Sequence[Recipe] = (),
        prefetch: Prefetch = Prefetch(),  # noqa: B008 - it is frozen
        with_indices: bool = False,
        dali_labels: bool = False,
        pad_last_batch: bool = False,
        bad_samples: BadSamplePolicy = BadSamplePolicy(),  # noqa: B008
        rank: Rank | tuple[int, int] | tuple[int, int, int] | None = None,
    ) -> None:
        remedy = "pass such as [recipe.view(2)]; a Loader takes a number, too"
        require(isinstance(views, (list, tuple)), "views", "a list of recipes", views, remedy)
        dali_labels, pad_last_batch = flag("dali_labels", dali_labels), flag("pad_last_batch", pad_last_batch)
        # What is of another kind is refused by the loader.
        if dali_labels and isinstance(source, Source):
            check_dali_labels(source.labels)
        if isinstance(recipe, Recipe) and recipe.caches_encoded:
            raise ConfigurationError(
                "split 0 caches files, of which there are no partial images: use a split of 1 or more"
            )
        if isinstance(planner, Planner) and planner.feedback_lag is not None:
            raise ConfigurationError(
                "AutoAssist chooses batches by the losses of earlier ones, but DALI's pipelines take batches ahead: "
                "pass it to a Loader"
            )
        if isinstance(store, DeviceStore):
            raise ConfigurationError(
                "partial images are given on the host, but a DeviceStore has them on a GPU: pass MemoryStore()"
            )
        if pad_last_batch and isinstance(planner, Planner) and planner.may_be_short:
            raise ConfigurationError(
                "pad_last_batch=True fills up an epoch's last batch alone, but any batch of Evaluate can be smaller: "
                "pass Evaluate(..., pad=True) and with_indices=True, or leave it out"
            )
        echo = planner.planner if isinstance(planner, Fresh) else planner
        if pad_last_batch and isinstance(echo, BatchEcho) and echo.planner.rows_per_epoch % echo.batch_size:
            raise ConfigurationError(
                "pad_last_batch=True fills up an epoch's last batch alone, but BatchEcho repeats a smaller one: pass "
                "drop_last=True to the planner, or leave it out"
            )
        self._loader = _PartialLoader(
            source,
            recipe,
            planner,
            store,
            views=views,
            kernels=kernels,
            prefetch=prefetch,
            with_indices=with_indices,
            bad_samples=bad_samples,
            rank=rank,
        )
        self.source, self.recipe, self.planner = source, recipe, planner
        self._recipes = recipe, *views
        self._inputs = [len(final_inputs(each)) for each in self._recipes]
        self._dali_labels = dali_labels
        self._pads = pad_last_batch
        self._begun = self._has_pipeline = False
        self._epoch: Iterator[Any] | None = None

    def __call__(self) -> Fed:
        """Return the next batch.

        Raises:
            StopIteration: At an epoch's end; the next call begins the next epoch.
        """
        self._begun = True
        self._epoch = self._epoch or iter(self._loader)
        try:
            batch: Any = next(self._epoch)
        except StopIteration:
            self._epoch = None
            raise
        images, labels, *others = batch
        if self._dali_labels:
            labels = np.asarray(labels, np.int32)[:, None]
        if self._pads and len(labels) < self.batch_size:
            images, labels, *others = (_filled(rows, self.batch_size) for rows in (images, labels, *others))
            if self._loader.with_indices:
                others[0][len(batch[0]) :] = -1
        return (images, labels, *others)

    def final_graph(self, images: Node, parameters: Sequence[Node]) -> Any:
        """Return what the model receives: the recipe's final part as DALI's operators, inside a `pipeline_def`.

        With views it is a list, of the recipe's own and theirs.

        It is float32 for an output of bfloat16, and (B, H, W, channels) where that is `channels_last`. A recipe with
        operations that are chosen for each sample, as RandAugment has, needs `pipeline_def(enable_conditionals=True)`.

        Args:
            images: Partial images, (H, W, 3) uint8, on the device where the final part is to run.
            parameters: All that this source gives after labels and indices.

        Raises:
            TypeError: If there are not as many parameters as the final part has.
        """
        if len(parameters) != sum(self._inputs):
            raise TypeError(
                f"parameters must be all {sum(self._inputs)} of the final part, in their order, got {len(parameters)}: "
                f"pass the last outputs of fn.external_source"
            )
        made, first = [], 0
        for recipe, count in zip(self._recipes, self._inputs):  # noqa: B905 - DALI traces it without arguments
            made.append(final_graph(recipe, images, parameters[first : first + count]))
            first += count
        return made if len(self._recipes) > 1 else made[0]

    @explains
    def pipeline(self, *, num_threads: int | None = None, device_id: int | None = None, **options: Any) -> Pipeline:
        """Return a pipeline of (images, labels), and perhaps indices, for DALI's iterators and `run`.

        Further views come after the images.

        Args:
            num_threads: CPU threads of the final part; by default as many as the partial part has, see `Prefetch`.
            device_id: CUDA device of the final part; None: it runs on the CPU.
            options: Further arguments of DALI's `Pipeline`.

        Raises:
            ConfigurationError: If there is one already: each would have a part of the batches. Or if one of these is
                no such number, or `batch_size` smaller than a full batch.
            TypeError: If `Pipeline` has no such argument.
        """
        remedy = "make a new PartialSource for a new one, and load the state of this one"
        require(not self._has_pipeline, "pipeline()", "called once", "a second call", remedy)
        threads = self._loader.num_threads
        if num_threads is not None:
            remedy = "leave it out for as many as the partial part has"
            threads = integer("num_threads", num_threads, 1, None, remedy)
        if device_id is not None:
            integer("device_id", device_id, 0, None, "pass the number of a CUDA device, or leave it out for the CPU")
        rows = integer("batch_size", options.get("batch_size", self.batch_size), self.batch_size, None, "leave it out")

        def graph() -> tuple[Node, ...]:
            images, *others = fn.external_source(self, num_outputs=self.num_outputs, no_copy=True)
            known = len(others) - sum(self._inputs)
            made = self.final_graph(images if device_id is None else images.gpu(), others[known:])
            return *(made if len(self._recipes) > 1 else [made]), *others[:known]

        known = {*inspect.signature(Pipeline).parameters, "enable_conditionals", "debug"}
        for name in sorted(options.keys() - known):
            raise TypeError(f"pipeline: {no_argument(Pipeline, name)}")
        options = {"enable_conditionals": True} | options | {"batch_size": rows}
        pipeline = pipeline_def(graph)(num_threads=threads, device_id=device_id, **options)
        self._has_pipeline = True
        return pipeline

    @property
    def num_outputs(self) -> int:
        """How many outputs `fn.external_source` has of it."""
        return 2 + self._loader.with_indices + sum(self._inputs)

    @property
    def batch_size(self) -> int:
        """Rows of a full batch on this rank: the pipeline's `batch_size`."""
        return self._loader.batch_size

    @property
    def epoch_size(self) -> int:
        """Rows that this rank is served in an epoch, without those of `pad_last_batch`: the `size` of an iterator."""
        return self._loader.rows_per_epoch

    @property
    def epoch(self) -> int:
        """The epoch of the batch that is given next: after `load_state_dict` the one that goes on."""
        return self._loader.epoch

    def __len__(self) -> int:
        """Count the batches of an epoch, on every rank the same."""
        return len(self._loader)

    def state_dict(self, epoch: int, batch: int = 0) -> dict[str, Any]:
        """Return where training is, once so many batches of an epoch were used: JSON values, one or two KB.

        DALI's pipelines take batches ahead, and do not tell which of them the training loop has. It is the state of a
        `Loader` of the same arguments, and on all ranks the same.

        Args:
            epoch: Number of the epoch, from 0.
            batch: Batches of it that the training loop has used: after the loop's batch i it is i + 1.
        """
        epoch = epoch_of(epoch)
        batch = integer("batch", batch, 0, len(self), "count those of this epoch")
        return self._loader.state_at(Position(epoch + batch // len(self), batch % len(self)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken: what the first pipeline takes of it begins there.

        Raises:
            StateMismatchError: If what decides the batches differs, or the state is damaged; `.keys` says what.
            ConfigurationError: If a pipeline has taken batches of it, some of which wait there.
        """
        remedy = "load it before a pipeline runs, or make a new PartialSource and a new pipeline"
        require(not self._begun, "a state", "loaded before the first batch is taken", "one after it", remedy)
        self._loader.load_state_dict(state)

    def stats(self) -> Stats:
        """Return what was done so far on this rank; subtract an earlier snapshot to get the difference."""
        return self._loader.stats()

    def bad_samples(self) -> list[BadSample]:
        """List the samples that are replaced, with the reasons; see `Loader.bad_samples`."""
        return self._loader.bad_samples()

    def close(self) -> None:
        """End its threads; pipelines that it feeds raise an error at their next batch."""
        self._loader.close()

    def __enter__(self) -> PartialSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._loader).replace("Loader(", "PartialSource(", 1)


class _PartialLoader(Loader):
    """A loader of what `PartialSource` gives."""

    _serves: ClassVar[Literal["partial", "final"]] = "partial"

    @property
    def num_threads(self) -> int:
        """CPU threads of the pipelines."""
        depths = self._assembler.depths
        return depths.replicas * depths.threads_each

    def state_at(self, position: Position) -> dict[str, Any]:
        """Return the state of a training that is to be served what is at a position next."""
        return self._state_at(position)

    def _batch_of(self, served: Served, padding: int) -> Any:
        feed: FinalFeed = served.images
        labels = self._tensors.labels[served.shown]
        return feed.images, labels, *([served.told_indices(padding)] if self.with_indices else []), *feed.parameters


def _filled(rows: Any, count: int) -> Any:
    """Return rows, an array or a list, of which the last one is repeated until there are so many."""
    more = count - len(rows)
    if isinstance(rows, list):
        return [*rows, *rows[-1:] * more]
    return np.concatenate([rows, np.repeat(rows[-1:], more, axis=0)])
