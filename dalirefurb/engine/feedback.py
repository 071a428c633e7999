"""Feedback: what an Assistant learns of the batches that a loader has served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from dalirefurb.engine.assembler import Assembler
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.planning.assistant import Assistant, AssistantReport
from dalirefurb.planning.planner import Planner


class Feedback:
    """Keeps an Assistant abreast of the training loop; where none plans, there is nothing to do.

    Args:
        planner: Planner of the loader.
        assembler: Assembler of the loader, which has the Assistant.

    Attributes:
        handed: Number of batches that the Assistant has to know of; it is told of the last one when it is needed next.
    """

    def __init__(self, planner: Planner, assembler: Assembler) -> None:
        self._planner = planner
        self._assembler = assembler
        self.handed = 0

    @property
    def assistant(self) -> Assistant | None:
        """Where it plans: the Assistant, which knows of all batches that were served."""
        if self._planner.feedback_lag is None:
            return None
        assistant = self._assembler.get().assistant
        if assistant is not None and assistant.served < self.handed:
            assistant.serve()
        return assistant

    def after_next(self) -> int:
        """Return what `handed` is once one more batch is served."""
        return 0 if (assistant := self.assistant) is None else assistant.served + 1

    def observe(self, losses: torch.Tensor | NDArray[Any]) -> None:
        """Take the losses of the batch that was served last, see `Loader.observe`."""
        if isinstance(losses, torch.Tensor):
            losses = losses.detach().float().cpu().numpy()
        self._assisting().observe(losses)

    def report(self) -> AssistantReport:
        """Return what the Assistant did so far, see `Loader.assistant_report`."""
        return self._assisting().report()

    def check_observed(self, before: str) -> None:
        """Refuse to go on without the losses of the last batch.

        Raises:
            LoaderError: If they were not observed.
        """
        if (assistant := self.assistant) is not None and assistant.observed < assistant.served:
            raise LoaderError(
                f"the losses of each batch must be observed before {before}, but those of the last batch were not: "
                f"call loader.observe(losses) after each batch, also after one whose step was interrupted"
            )

    def state(self) -> dict[str, Any] | None:
        """Return the Assistant's state as JSON values; None where none plans."""
        return None if (assistant := self.assistant) is None else assistant.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to an Assistant's state, once nothing is planned any more."""
        if (assistant := self.assistant) is not None:
            self._assembler.get().engine.stop()
            self.handed = 0
            assistant.restore(state["assistant"])

    def _assisting(self) -> Assistant:
        if (assistant := self.assistant) is None:
            raise ConfigurationError(
                f"losses are for AutoAssist, but the planner is {type(self._planner).__name__}: "
                f"pass AutoAssist(planner, lag=...) to the loader"
            )
        return assistant
