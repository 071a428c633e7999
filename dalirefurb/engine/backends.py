"""Three ways to compute a group's images, chosen by devices, kernels and store, and what finishes them.

PartialBackend     partial images are made; `FinalGraph`, or what takes its place, finishes them
WholeBackend       one graph, or kernels, make final images; nobody sees what is in between
BothPartsBackend   kernels make both, of what was decoded and of what the store has pinned
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.partners import CopyPaste, PartnerStage, partner_rows
from dalirefurb.dali import Feed, PipelineRunner
from dalirefurb.engine.cache_plan import CachePlan
from dalirefurb.engine.in_flight import known
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, Rows, row_addresses
from dalirefurb.kernels.buffers import OutputBuffers
from dalirefurb.reading.reader import Samples
from dalirefurb.store.device.memory import scatter, within
from dalirefurb.store.device.store import DeviceLease, DeviceStore

if TYPE_CHECKING:
    from dalirefurb.kernels.program import KernelProgram, Work
    from dalirefurb.kernels.runner import KernelRunner
    from dalirefurb.kernels.thread_pool import KernelThreadPool

Look = Callable[[Any], Images]
"""Shows the images that a runner made, where they are."""


class ComputeBackend(ABC):
    """Makes the images of batch groups. It has one owner thread.

    Args:
        input_builder: Builder of the runner's inputs.
        runner: Runner of a graph, or of kernels.
        leaves_rest: Whether the runner leaves the last stages to a `FinalGraph`.
    """

    def __init__(self, input_builder: InputBuilder, runner: PipelineRunner, *, leaves_rest: bool = False) -> None:
        self._input_builder = input_builder
        self._runner = runner
        self._leaves_rest = leaves_rest
        self._drawn: deque[dict[str, Feed]] = deque()

    @abstractmethod
    def submit(self, cache_plan: CachePlan, samples: Samples) -> None:
        """Start one group, of which these samples are to be computed, without waiting for it."""

    @abstractmethod
    def collect(self, cache_plan: CachePlan) -> Any:
        """Wait for the oldest group, and make its partial images known.

        Returns:
            Its final images, a DALI tensor list or what can be used like one, if they are made here; what `FinalGraph`
            is fed, if the runner leaves it stages; otherwise None.

        Raises:
            GraphError: If the graph failed; that group is lost.
            LoaderError: If a stage made of another size or type than it declares.
        """

    def handed_over(self) -> None:  # noqa: B027 - most have nothing to do then
        """Be told that the finish thread has the group collected last."""

    def restart(self) -> None:
        """Forget all groups in flight."""
        self._runner.restart()
        self._drawn.clear()

    def _made(self, images: Any, drawn: dict[str, Feed]) -> Any:
        """Return what `collect` does, given the images of the runner, and what was drawn for the group."""
        return {**drawn, "partial": images.as_tensor()} if self._leaves_rest else images


class PartialBackend(ComputeBackend):
    """Makes partial images.

    Args:
        input_builder: Builder of the graph's inputs.
        runner: Runner of the partial graph.
        look: Function that shows the images that the runner made, where they are.
        stages: Stages of the partial part, which an error names where one of them is wrong.
    """

    def __init__(
        self, input_builder: InputBuilder, runner: PipelineRunner, look: Look, stages: tuple[Stage, ...]
    ) -> None:
        super().__init__(input_builder, runner)
        self._look = look
        self._stages = stages

    def submit(self, cache_plan: CachePlan, samples: Samples) -> None:
        """Draw the parameters and feed a replica; where there is nothing to compute, there is nothing to do."""
        plan, rows = cache_plan.plan, cache_plan.compute
        if len(rows):
            feeds, _ = self._input_builder.partial(plan.indices[rows], plan.version[rows], samples)
            self._runner.submit(feeds)

    def collect(self, cache_plan: CachePlan) -> None:
        """Make the group's partial images known."""
        images = self._checked(self._look(self._runner.collect())) if len(cache_plan.compute) else Images(())
        cache_plan.computed.images.set_result(images)

    def _checked(self, images: Images) -> Images:
        """Refuse what a stage made of another size or type than it declares."""
        expected = self._input_builder.partial_size
        for dtype, shape in images.kinds:
            right_size = expected is None or shape[:2] == expected
            if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or not right_size:
                raise LoaderError(
                    f"the partial part must leave uint8 images of shape {(*(expected or ('H', 'W')), 3)}, got "
                    f"{dtype} of {shape}; one of its stages ({names(self._stages)}) makes "
                    f"another size or type than it declares"
                )
        return images


class WholeBackend(ComputeBackend):
    """Makes final images of samples, by a runner of both parts at once."""

    def submit(self, cache_plan: CachePlan, samples: Samples) -> None:
        """Draw the parameters and feed a replica."""
        feeds = self._input_builder.whole(cache_plan.plan, samples)
        self._runner.submit(feeds)
        self._drawn.append({name: values for name, values in feeds.items() if name != "sample"})

    def collect(self, cache_plan: CachePlan) -> Any:
        """Return the group's final images, or what the rest is fed."""
        drawn = self._drawn.popleft()
        return self._made(self._runner.collect(), drawn)


class BothPartsBackend(ComputeBackend):
    """Makes partial images and final ones, by kernels of both parts."""

    _runner: KernelRunner

    def submit(self, cache_plan: CachePlan, samples: Samples) -> None:
        """Draw the parameters, begin to decode, and to finish what the store has pinned."""
        plan, rows, builder = cache_plan.plan, cache_plan.compute, self._input_builder
        partial, sizes = builder.partial(plan.indices[rows], plan.version[rows], samples) if len(rows) else ({}, None)
        if builder.partial_size is None:
            cache_plan.computed.sizes.set_result(np.empty((0, 2), np.int64) if sizes is None else sizes)
            sizes = cache_plan.partial_sizes()
        final = builder.final_parameters(plan, cache_plan.shown, sizes)
        self._runner.submit(partial, final, rows=rows, count=len(plan.indices), pinned=cache_plan.pinned_images())
        self._drawn.append(final)

    def collect(self, cache_plan: CachePlan) -> Any:
        """Make the group's partial images known, and return its final ones, or what the rest is fed."""
        drawn = self._drawn.popleft()
        cache_plan.computed.images.set_result(self._runner.collect_partial())
        return self._made(self._runner.finish(cache_plan.shared_images()), drawn)

    def handed_over(self) -> None:
        """Leave Python's lock to the finish thread."""
        self._runner.handed_over()


@dataclass(eq=False)
class FinalGraph:
    """DALI's graph of the final part, where it is apart from the partial one, or of what kernels leave to DALI.

    It has one owner thread.

    Attributes:
        input_builder: Builder of the graph's inputs.
        runner: Runner of the graph.
        store: Store on whose device groups are laid out for the graph, if its samples are to stay there; else None.
        goes_on: Whether a group that was submitted goes on by itself, so that others can be begun meanwhile.
    """

    input_builder: InputBuilder
    runner: PipelineRunner
    store: DeviceStore | None
    _read: deque[list[Rows]] = field(default_factory=deque, init=False)

    goes_on: ClassVar[bool] = True

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        """Feed a replica with a group whose partial images are known.

        Args:
            cache_plan: Cache plan of the group.
            feeds: What the backend left to do; None: its partial images are to be finished, with parameters that are
                drawn here.
        """
        if feeds is not None:
            self.runner.submit(feeds)
            return
        plan, shown = cache_plan.plan, cache_plan.shown
        if self.store is None:
            self.runner.submit(self.input_builder.final(plan, cache_plan.partial_images(), shown))
            return
        others = cache_plan.unpinned_images()
        self._read.append(others)
        try:
            with self.store.memory.on_stream():
                images = _laid_out(self.store, cache_plan, others)
                # It is copied on that stream, so that its memory may be that of the next group.
                self.runner.submit(self.input_builder.final(plan, images, shown))
        except BaseException:
            # Nobody collects this group, but it may be read and written still.
            self._forget()
            raise

    def collect(self) -> Any:
        """Wait for the oldest group; return its final images as a DALI tensor list.

        Raises:
            GraphError: If the graph failed; that group is lost.
        """
        images = self.runner.collect()
        if self._read:
            self._read.popleft()
        return images

    def restart(self) -> None:
        """Forget all groups in flight."""
        self.runner.restart()
        self._forget()

    def _forget(self) -> None:
        """Let go of what groups are made of that nobody will collect, once it is not read any more."""
        if self.store is not None:
            self.store.memory.synchronize()
            self._read.clear()


def _laid_out(store: DeviceStore, cache_plan: CachePlan, others: Sequence[Rows]) -> Any:
    """Lay a group out, (B, H, W, C) uint8, on the store's stream; what others have on the device is read later."""
    assert cache_plan.asked is not None
    asked, lease = cache_plan.asked
    assert isinstance(lease, DeviceLease)
    xp = store.memory.xp
    out = xp.empty((len(cache_plan.plan.indices), *store.slot_shape), np.uint8)
    # First what leaves all other rows undefined.
    lease.gather(out, asked)
    for rows, images in others:
        whole = within(xp, images)
        array, places = ([*images], np.arange(len(rows))) if whole is None else whole
        scatter(xp, out, rows.tolist(), array, places.tolist())
    return out


@dataclass(eq=False)
class FinalKernels:
    """Kernels of the final part alone, where a sample has several, or needs other samples' partial images.

    It has one owner thread, as `FinalGraph` has.

    Attributes:
        input_builder: Builder of the parameters.
        program: Program of the final part, split before its first step.
        pool: Threads that help the owner.
        buffers: Buffers for results.
        stage: Stage that makes one image of several of a batch; None: there is none.
        slice_rows: Number of rows of a batch whose samples are of one shard.
    """

    input_builder: InputBuilder
    program: KernelProgram
    pool: KernelThreadPool
    buffers: OutputBuffers
    stage: PartnerStage | None = None
    slice_rows: int = 0
    _begun: deque[tuple[NDArray[Any], Work, Any]] = field(default_factory=deque, init=False)

    goes_on: ClassVar[bool] = False

    def submit(self, cache_plan: CachePlan, _: object = None) -> None:
        """Draw the parameters of a group whose partial images are known."""
        partial, output = cache_plan.partial_images(), self.program.output
        assert output is not None
        sizes = partial.places.sizes if self.input_builder.partial_size is None else None
        final = self.input_builder.final_parameters(cache_plan.plan, cache_plan.shown, sizes)
        if self.stage is not None:
            lengths = [len(plan.indices) for plan in cache_plan.group.plans]
            drawn = np.asarray(final[f"{self.stage.name}/partners"])
            others = partial.places.of(partner_rows(drawn, lengths, self.slice_rows))
            places = np.empty((*others.addresses.shape, 3))  # A double has room for any address that there is.
            places[..., 0], places[..., 1:] = others.addresses, others.sizes
            final[f"{self.stage.name}/partners"] = places
        if isinstance(self.stage, CopyPaste):
            shapes = np.concatenate([row_addresses(each) for each in known(cache_plan.pasted)])
            final[f"{self.stage.name}/objects"] = shapes.astype(np.float64)
        results = self.buffers.results(output, len(partial))
        work = self.program.work({}, pinned=partial, final=final, results=results, targets=row_addresses(results))
        self._begun.append((results, work, final))

    def collect(self) -> Images:
        """Finish the oldest group; return its final images.

        Raises:
            GraphError: If the kernels failed; that group is lost.
        """
        results, work, _ = self._begun.popleft()
        self.pool.share(work.part(np.arange(work.count)))
        return Images(results)

    def restart(self) -> None:
        """Forget all groups."""
        self._begun.clear()


@dataclass(frozen=True)
class FinalFeed:
    """What the final part of some rows is fed, where somebody else's graph does it.

    Attributes:
        images: Partial images, (B, H, W, 3) uint8, or B of different sizes; as long as anybody refers to them, or to a
            part of them, their memory is not used again.
        parameters: Parameters of the final part, in the order of `final_inputs`, each of B rows; of one view after the
            other.
    """

    images: NDArray[np.uint8] | list[NDArray[np.uint8]]
    parameters: list[NDArray[Any]]

    def __getitem__(self, rows: slice) -> FinalFeed:
        """Return some rows."""
        return FinalFeed(self.images[rows], [values[rows] for values in self.parameters])


class FinalFeeds:
    """Takes the place of `FinalGraph` where somebody else's graph does the final part: copies what that is fed.

    Args:
        input_builders: Builders of the inputs, of each view one.
        most_groups: Number of groups on their way at the same time.
    """

    goes_on = False

    def __init__(self, input_builders: Sequence[InputBuilder], *, most_groups: int) -> None:
        self._input_builders = input_builders
        self._buffers = OutputBuffers(most_groups)
        self._fed: deque[FinalFeed] = deque()

    def submit(self, cache_plan: CachePlan, _: None = None) -> None:
        """Draw the parameters of a group whose partial images are known, and copy these: the store may evict them."""
        partial = cache_plan.partial_images()
        parameters = []
        for builder in self._input_builders:
            drawn = builder.final(cache_plan.plan, partial, cache_plan.shown)
            parameters += [np.asarray(drawn[name]) for name in builder.final_names]
        copies = self._buffers.partials(partial.places.sizes)
        for copy, image in zip(copies, partial, strict=True):
            np.copyto(copy, image)
        self._fed.append(FinalFeed(copies.as_tensor() if copies.is_dense_tensor() else [*copies], parameters))

    def collect(self) -> FinalFeed:
        """Return what the oldest group is fed."""
        return self._fed.popleft()

    def restart(self) -> None:
        """Forget all groups."""
        self._fed.clear()


def names(stages: tuple[Stage, ...]) -> str:
    """List the names of stages."""
    return ", ".join(stage.name for stage in stages)
