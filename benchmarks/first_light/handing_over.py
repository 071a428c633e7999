"""Hand-over probe: whether taking a batch makes the training stream wait for what DALI does after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from first_light.findings import Finding
from first_light.pictures import pipeline_of

_ROUNDS, _BATCH, _SIDE = 5, 64, 512
_BLURS = 40
_LEVELS = (50, 100, 150)
_WAITS = 0.2


@dataclass(frozen=True)
class _Way:
    """How a batch is taken, and whether by a stream of its own or by the default one."""

    take: Callable[[Any], Any]
    own_stream: bool

    def stream(self, device: str) -> AbstractContextManager[Any]:
        """Make the training stream the current one."""
        import torch

        if not self.own_stream or device == "cpu":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def waits(device: str) -> Iterator[Finding]:
    """Take the first of three batches, by DLPack's default and by `stream=-1`; time the training stream after it.

    DALI has two more batches to make then. The stream should be through at once; if it is not before they are nearly
    done, it waits for them. The default stream of CUDA has ways of its own to wait for others, so both are told.
    """
    ways = {
        f"{name}{where}": _Way(take, own)
        for name, take in (("default", _by_default), ("stream=-1", _without_waiting))
        for where, own in (("", False), (", on a stream of its own", True))
    }
    for name, reason in {name: _refused(way, device) for name, way in ways.items()}.items():
        if reason:
            yield Finding(name, "can be taken", reason, False)
            del ways[name]
    pipeline = pipeline_of(lambda: blurring(device), device)
    rounds = [{name: _round(pipeline, way, device) for name, way in ways.items()} for _ in range(_ROUNDS)]
    for name in ways:
        waited = [each[name][0] for each in rounds]
        rest = [each[name][1] for each in rounds]
        share = median(one / other for one, other in zip(waited, rest, strict=True))
        seen = f"{median(waited):.2f} ms of {median(rest):.1f} ms of later work"
        hoped = f"the stream is through in < {_WAITS} of the later work"
        yield Finding(name, hoped, seen, share < _WAITS if device == "gpu" else None)
        right = all(each[name][2] for each in rounds)
        yield Finding(f"{name}, the images", "those that DALI made", "those" if right else "others", right)


def blurring(device: str) -> Any:
    """Build a graph whose work takes a GPU a while."""
    from nvidia.dali import fn, types

    images = fn.external_source(name="images", dtype=types.UINT8, ndim=3, layout="HWC")
    if device == "cpu":
        return fn.gaussian_blur(images, window_size=3)
    images = images.gpu()
    for _ in range(_BLURS):
        images = fn.gaussian_blur(images, window_size=31)
    return images


def _refused(way: _Way, device: str) -> str | None:
    """Say why images cannot be taken so, None if they can."""
    try:
        _round(pipeline_of(lambda: blurring(device), device), way, device)
    except (BufferError, RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"[:200]
    return None


def _round(pipeline: Any, way: _Way, device: str) -> tuple[float, float, bool]:
    """Return ms until the training stream is through, ms until all is, and whether the images are right."""
    import torch

    for level in _LEVELS:
        pipeline.feed_input("images", _images(level, device))
        pipeline.schedule_run()
    (images,) = pipeline.share_outputs()
    with way.stream(device):
        began = time.perf_counter()
        tensor = way.take(images.as_tensor())
        if device == "gpu":
            torch.cuda.current_stream().synchronize()
        through = time.perf_counter()
        right = bool((tensor == _LEVELS[0]).all().item())
    for _ in _LEVELS[1:]:
        pipeline.release_outputs()
        pipeline.share_outputs()
    pipeline.release_outputs()
    if device == "gpu":
        torch.cuda.synchronize()
    return 1e3 * (through - began), 1e3 * (time.perf_counter() - began), right


@cache
def _images(level: int, device: str) -> NDArray[np.uint8]:
    count, side = (_BATCH, _SIDE) if device == "gpu" else (4, 32)
    return np.full((count, side, side, 3), level, np.uint8)


def _by_default(tensor: Any) -> Any:
    import torch.utils.dlpack

    return torch.utils.dlpack.from_dlpack(tensor)


def _without_waiting(tensor: Any) -> Any:
    """Take what is there already: `share_outputs` has waited for it."""
    import torch.utils.dlpack

    on_cpu = tensor.__dlpack_device__()[0] == 1  # kDLCPU
    return torch.utils.dlpack.from_dlpack(tensor.__dlpack__() if on_cpu else tensor.__dlpack__(stream=-1))
