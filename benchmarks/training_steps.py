"""Training steps that are timed: of a network of `networks` in bf16, or of none. Nothing but torch is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from networks import NETWORKS
from torch import nn

ALONE = "loading alone"
HEADSPACE = "headspace"


class Timer:
    """Times steps on the clock, or by what a GPU notes between them.

    At most one step waits on a GPU for the one before it, as in a loop that looks at its loss now and then.

    Args:
        device: Where steps are taken.
    """

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._marks: list[tuple[Any, Any]] = []

    def time(self, step: Callable[[], None]) -> None:
        """Take a step."""
        began = self._mark()
        step()
        ended = self._mark()
        if self._on_gpu and self._marks:
            self._marks[-1][1].synchronize()
        self._marks.append((began, ended))

    def times_ms(self) -> list[float]:
        """Return the time of each step, and forget all."""
        marks, self._marks = self._marks, []
        if not self._on_gpu:
            return [1e3 * (ended - began) for began, ended in marks]
        torch.cuda.synchronize()
        return [began.elapsed_time(ended) for began, ended in marks]

    def median_ms(self, last: int) -> float | None:
        """Return the median time of the last steps, None if there were none, and forget all."""
        times = self.times_ms()[-last:]
        return median(times) if times else None

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class Model:
    """Takes batches: a training step in bf16, or nothing but their way to the device.

    Args:
        name: Of `NETWORKS`, or `ALONE`.
        num_classes: Of the labels.
        device: Where steps are taken.
    """

    def __init__(self, name: str, num_classes: int, device: str) -> None:
        self._device, self._timer = device, Timer(device)
        self._model: nn.Module | None = None
        if name != ALONE:
            model = NETWORKS[name](num_classes).to(self._device)
            self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def take(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Bring a batch to the device and learn from it."""
        images, labels = (each.to(self._device, non_blocking=True) for each in (images, labels))
        if self._model is not None:
            self._timer.time(partial(self._step, self._model, images, labels))
        elif self._device == "cuda":
            torch.cuda.current_stream().synchronize()

    def step_ms(self, last: int) -> float | None:
        """Return the median time of the last steps, and forget all."""
        return self._timer.median_ms(last)

    def _step(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
