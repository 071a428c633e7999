"""CudaPrefetch: copies the next batch to a GPU while the model works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from dalirefurb.engine.loader_view import LoaderView
from dalirefurb.errors import ConfigurationError, LoaderError


class CudaPrefetch(LoaderView):
    """Serves a loader's batches on a GPU. The copy of the next one is under way when a batch is served.

    The copy has a CUDA stream of its own, for which the training loop's stream waits before it reads. It overlaps with
    the model's step where the batches are in pinned memory: `Loader(..., pin_memory=True)`. What is on the GPU already
    is not copied, so that a loader with `final_device="gpu"` needs none of this.

    `state_dict` and `epoch` tell the position of the batch that was served last, not of the one that is on its way.

    No GPU has run it yet: it is tested by the order of its calls.

    Args:
        loader: Loader, or a view of one, or any iterable of batches: tensors, and tuples, lists and mappings of them.
        device: Device that the batches are copied to; by default the CUDA device that is current now.

    Raises:
        ConfigurationError: If there is no such device, or the loader's planner needs the losses of each batch before
            the next one.
    """

    def __init__(self, loader: Any, device: torch.device | str | int | None = None) -> None:
        super().__init__(loader)
        if not torch.cuda.is_available():
            raise ConfigurationError(
                "CudaPrefetch needs a CUDA device, and torch finds none: iterate the loader itself, its batches are on "
                "the CPU"
            )
        self.device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
        if self.device.type != "cuda":
            raise ConfigurationError(
                f"CudaPrefetch copies to a CUDA device, got {self.device}: pass such as 'cuda:0', or leave it out"
            )
        planner = getattr(loader, "planner", None)
        if getattr(planner, "feedback_lag", None) is not None:
            raise ConfigurationError(
                "CudaPrefetch takes a batch ahead, but AutoAssist needs the losses of each batch before the next one: "
                "copy in the training loop, by .to(device, non_blocking=True)"
            )
        self._place: tuple[Any, Any] | None = None
        self._present: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        self._place = None
        return self._serve(iter(self.loader))

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` serves; within a pass that of its next batch; see `Loader.epoch`."""
        return int(self.loader.epoch if self._present is None else self.state_dict()["epoch"])

    def state_dict(self) -> Any:
        """Return the loader's state behind the batch that was served last, or the loader's, if it was moved since."""
        now = self.loader.state_dict()
        return self._place[0] if self._place is not None and now == self._place[1] else now

    def load_state_dict(self, state: Any) -> None:
        """Go to where `state` was taken; see `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)
        self._place = None

    def _position(self) -> Any:
        """Return the loader's state, if it has one."""
        save = getattr(self.loader, "state_dict", None)
        return None if save is None else save()

    def _serve(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._present = batches
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        try:
            before, ahead = self._position(), self._begun(next(batches, None), stream)
            while ahead is not None:
                batch, behind = ahead, self._position()
                current = torch.cuda.current_stream(self.device)
                current.wait_stream(stream)
                _each(batch, partial(_recorded, stream=current))
                failure = None
                try:
                    ahead = self._begun(next(batches, None), stream)
                except Exception as error:  # It belongs to the next batch; this one is good.
                    failure = error
                except BaseException:  # An interrupt: this one is not served either.
                    self._place = before, self._position()
                    raise
                self._place = behind, self._position()
                before, reached = self._place
                yield batch
                if failure is not None:
                    raise failure
                if ahead is not None and self._position() != reached:
                    raise LoaderError(
                        "a pass that has begun must end before the loader is moved or iterated again, but it was: "
                        "iterate CudaPrefetch again to go on from there"
                    )
            self._place = None
        finally:
            if self._present is batches:
                self._present = None
            del batches  # Or a traceback that is kept would keep it, and the loader's pass would seem to go on.

    def _begun(self, taken: Any, stream: torch.cuda.Stream) -> Any:
        """Begin to copy a batch that was taken; None, where there was none, stays."""
        if taken is None:
            return None
        with torch.cuda.stream(stream):
            return _each(taken, self._copied)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)


def _each(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to all tensors of a batch; what is no tensor stays as it is."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {name: _each(part, function) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each(part, function) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_each(part, function) for part in batch)
    return batch


def _recorded(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    """Keep a tensor's memory until the stream has read it."""
    tensor.record_stream(stream)
    return tensor
