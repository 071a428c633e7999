"""Finals: what finishes the partial images of groups, where that is apart from making them.

FinalGraph      DALI's graph of the final part, or of what kernels leave to DALI
FinalKernels    kernels, where a sample has several views, or needs other samples' partial images
FinalFeeds      somebody else's graph, which gets copies

`CudaFinal` and `FinalVolumes`, of GPUs and of volumes, have modules of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stages.partners import CopyPaste, PartnerStage, partner_rows
from dalirefurb.dali import Feed, PipelineRunner
from dalirefurb.engine.cache_client import CachePlan
from dalirefurb.engine.in_flight import known
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.image_batch import Images, Rows, row_addresses
from dalirefurb.kernels.buffers import OutputBuffers
from dalirefurb.store.device.memory import scatter, within
from dalirefurb.store.device.store import DeviceLease, DeviceStore

if TYPE_CHECKING:
    from dalirefurb.kernels.program import KernelProgram, Work
    from dalirefurb.kernels.rows import KernelThreadPool


class Final(ABC):
    """Finishes groups, one after the other. It has one owner thread.

    Attributes:
        runs_ahead: Whether a group that was submitted goes on by itself, so that others can be begun meanwhile.
    """

    runs_ahead: ClassVar[bool] = False

    @abstractmethod
    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        """Begin with a group whose partial images are known.

        Args:
            cache_plan: Cache plan of the group.
            feeds: What the backend left to do; None: the partial images are to be finished, with parameters that are
                drawn here.
        """

    @abstractmethod
    def collect(self) -> Any:
        """Wait for the oldest group; return its final images, as `Finisher` takes them.

        Raises:
            GraphError: If something failed; that group is lost.
        """

    @abstractmethod
    def restart(self) -> None:
        """Forget all groups, once nothing reads what they were given."""


@dataclass(eq=False)
class FinalGraph(Final):
    """DALI's graph of the final part, where it is apart from the partial one, or of what kernels leave to DALI.

    Attributes:
        input_builder: Builder of the graph's inputs.
        runner: Runner of the graph.
        store: Store on whose device groups are laid out for the graph, if its samples are to stay there; else None.
    """

    input_builder: InputBuilder
    runner: PipelineRunner
    store: DeviceStore | None
    _read: deque[list[Rows]] = field(default_factory=deque, init=False)

    runs_ahead: ClassVar[bool] = True

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
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
        """Wait for the oldest group; return its final images as a DALI tensor list."""
        images = self.runner.collect()
        if self._read:
            self._read.popleft()
        return images

    def restart(self) -> None:
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
class FinalKernels(Final):
    """Kernels of the final part alone, where a sample has several, or needs other samples' partial images.

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

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        """Draw the parameters of a group."""
        assert feeds is None
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
        results, work, _ = self._begun.popleft()
        self.pool.share(work.part(np.arange(work.count)))
        return Images(results)

    def restart(self) -> None:
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


class FinalFeeds(Final):
    """Copies what is fed to somebody else's graph, which does the final part.

    Args:
        input_builders: Builders of the inputs, of each view one.
        most_groups: Number of groups on their way at the same time.
    """

    def __init__(self, input_builders: Sequence[InputBuilder], *, most_groups: int) -> None:
        self._input_builders = input_builders
        self._buffers = OutputBuffers(most_groups)
        self._fed: deque[FinalFeed] = deque()

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        """Draw the parameters of a group, and copy its partial images: the store may evict them."""
        assert feeds is None
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
        return self._fed.popleft()

    def restart(self) -> None:
        self._fed.clear()
