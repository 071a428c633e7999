"""Backends: three ways to compute a group's images, chosen by devices, kernels and store.

PartialBackend     partial images are made; a `Final` finishes them
WholeBackend       one graph, or kernels, make final images; nobody sees what is in between
BothPartsBackend   kernels make both, of what was decoded and of what the store has pinned
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dalirefurb.augment.stage import Stage
from dalirefurb.dali import Feed, PipelineRunner
from dalirefurb.engine.cache_client import CachePlan
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images
from dalirefurb.reading.reader import Samples

if TYPE_CHECKING:
    from dalirefurb.kernels.runner import KernelRunner

Look = Callable[[Any], Images]
"""Shows the images that a runner made, where they are."""


class ComputeBackend(ABC):
    """Makes the images of batch groups. It has one owner thread.

    Args:
        input_builder: Builder of the runner's inputs.
        runner: Runner of a graph, or of kernels.
        falls_back: Whether the runner leaves the last stages to a `FinalGraph`.
    """

    def __init__(self, input_builder: InputBuilder, runner: PipelineRunner, *, falls_back: bool = False) -> None:
        self._input_builder = input_builder
        self._runner = runner
        self._falls_back = falls_back
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
        return {**drawn, "partial": images.as_tensor()} if self._falls_back else images


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


def names(stages: tuple[Stage, ...]) -> str:
    """List the names of stages."""
    return ", ".join(stage.name for stage in stages)
