"""Three ways to compute a run's images, chosen by devices, kernels and store.

PartialBackend     a graph makes partial images; another one finishes them, see `FinishThread`
WholeBackend       one graph, or kernels, make final images; nobody sees what is in between
BothPartsBackend   kernels make both, of what was decoded and of what the store lends
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Stage
from dalirefurb.dali import PipelineRunner
from dalirefurb.engine.inputs import InputBuilder, Sizes
from dalirefurb.engine.ticket import Ticket
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, Rows
from dalirefurb.reading.samples import Samples

if TYPE_CHECKING:
    from dalirefurb.kernels.both_parts import BothParts

View = Callable[[Any], Images]
"""Views the images that a runner made."""


class ComputeBackend(ABC):
    """Makes the images of runs. It has one owner thread."""

    @abstractmethod
    def submit(self, ticket: Ticket, samples: Samples) -> None:
        """Start one run, of which these samples are to be computed, without waiting for it."""

    @abstractmethod
    def collect(self, ticket: Ticket) -> None:
        """Wait for the oldest run, and give it its images.

        Raises:
            GraphError: If the graph failed; that run is lost.
            LoaderError: If a stage made of another size or type than it declares.
        """

    def handed_over(self) -> None:  # noqa: B027 - most have nothing to do then
        """Be told that the finish thread has the run collected last."""

    @abstractmethod
    def restart(self) -> None:
        """Forget all runs in flight."""


class PartialBackend(ComputeBackend):
    """Makes partial images.

    Args:
        input_builder: Builder of the graph's inputs.
        runner: Runner of the partial graph.
        view: Function that views the images which the partial graph made.
        stages: Stages of the partial part, which an error names where one of them is wrong.
    """

    def __init__(
        self, input_builder: InputBuilder, runner: PipelineRunner, view: View, stages: tuple[Stage, ...]
    ) -> None:
        self._input_builder = input_builder
        self._runner = runner
        self._view = view
        self._stages = stages

    def submit(self, ticket: Ticket, samples: Samples) -> None:
        """Draw the parameters and feed a replica; where there is nothing to compute, there is nothing to do."""
        plan, rows = ticket.plan, ticket.rows
        if len(rows):
            self._runner.submit(self._input_builder.partial(plan.indices[rows], plan.version[rows], samples))

    def collect(self, ticket: Ticket) -> None:
        """Give the run its partial images."""
        if len(ticket.rows):
            ticket.computed.images = self._checked(self._view(self._runner.collect()))

    def restart(self) -> None:
        """Forget all runs in flight."""
        self._runner.restart()

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
    """Makes final images of samples.

    Args:
        input_builder: Builder of the runner's inputs.
        runner: Runner of both parts at once.
    """

    def __init__(self, input_builder: InputBuilder, runner: PipelineRunner) -> None:
        self._input_builder = input_builder
        self._runner = runner

    def submit(self, ticket: Ticket, samples: Samples) -> None:
        """Draw the parameters and feed a replica."""
        self._runner.submit(self._input_builder.whole(ticket.plan, samples))

    def collect(self, ticket: Ticket) -> None:
        """Give the run its final images."""
        ticket.images = self._runner.collect()

    def restart(self) -> None:
        """Forget all runs in flight."""
        self._runner.restart()


class BothPartsBackend(ComputeBackend):
    """Makes partial images and final ones.

    Args:
        input_builder: Builder of the kernels' inputs.
        parts: The kernels of both parts.
    """

    def __init__(self, input_builder: InputBuilder, parts: BothParts) -> None:
        self._input_builder = input_builder
        self._parts = parts

    def submit(self, ticket: Ticket, samples: Samples) -> None:
        """Draw the parameters, begin to decode, and to finish what the store lends."""

        def sizes(computed: Sizes) -> NDArray[np.int64]:
            ticket.computed.sizes = np.stack(computed, axis=1)
            return ticket.partial_sizes()

        partial, final = self._input_builder.both(ticket.plan, ticket.rows, samples, ticket.shown, sizes)
        self._parts.submit(ticket.rows, partial, final, len(ticket.plan.indices), ticket.lent_images())

    def collect(self, ticket: Ticket) -> None:
        """Give the run its partial and its final images."""

        def borrowed(images: Images) -> list[Rows]:
            ticket.computed.images = images
            return ticket.borrowed_images()

        ticket.images = self._parts.collect(borrowed)

    def handed_over(self) -> None:
        """Leave Python's lock to the finish thread."""
        self._parts.handed_over()

    def restart(self) -> None:
        """Forget all runs in flight."""
        self._parts.restart()


def names(stages: tuple[Stage, ...]) -> str:
    """List the names of stages."""
    return ", ".join(stage.name for stage in stages)
