"""Hand-over probe: whether taking a batch makes the training stream wait for what DALI does after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from first_light.findings import Finding
from first_light.pictures import pipeline_of

_ROUNDS, _BATCH, _SIDE = 5, 64, 512
_BLURS = 40
_WAITS = 0.2


def waits(device: str) -> Iterator[Finding]:
    """Take the first of three batches, by DLPack's default and by `stream=-1`; time the training stream after it.

    DALI has two more batches to make then. The stream should be through at once; if it is not before they are nearly
    done, it waits for them.
    """
    ways: dict[str, Callable[[Any], Any]] = {"default": _by_default, "stream=-1": _without_waiting}
    for name, reason in {name: _refused(take, device) for name, take in ways.items()}.items():
        if reason:
            yield Finding(name, "can be taken", reason, False)
            del ways[name]
    pipeline = pipeline_of(lambda: blurring(device), device)
    rounds = [{name: _round(pipeline, take, device) for name, take in ways.items()} for _ in range(_ROUNDS)]
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


def _refused(take: Callable[[Any], Any], device: str) -> str | None:
    """Say why images cannot be taken so, None if they can."""
    try:
        _round(pipeline_of(lambda: blurring(device), device), take, device)
    except (BufferError, RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"[:200]
    return None


def _round(pipeline: Any, take: Callable[[Any], Any], device: str) -> tuple[float, float, bool]:
    """Return ms until the training stream is through, ms until all is, and whether the images are right."""
    import torch

    count, side = (_BATCH, _SIDE) if device == "gpu" else (4, 32)
    for level in (50, 100, 150):
        pipeline.feed_input("images", np.full((count, side, side, 3), level, np.uint8))
        pipeline.schedule_run()
    (images,) = pipeline.share_outputs()
    began = time.perf_counter()
    tensor = take(images.as_tensor())
    if device == "gpu":
        torch.cuda.current_stream().synchronize()
    through = time.perf_counter()
    right = bool((tensor == 50).all().item())
    for _ in range(2):
        pipeline.release_outputs()
        pipeline.share_outputs()
    pipeline.release_outputs()
    if device == "gpu":
        torch.cuda.synchronize()
    return 1e3 * (through - began), 1e3 * (time.perf_counter() - began), right


def _by_default(tensor: Any) -> Any:
    import torch.utils.dlpack

    return torch.utils.dlpack.from_dlpack(tensor)


def _without_waiting(tensor: Any) -> Any:
    """Take what is there already: `share_outputs` has waited for it."""
    import torch.utils.dlpack

    on_cpu = tensor.__dlpack_device__()[0] == 1  # kDLCPU
    return torch.utils.dlpack.from_dlpack(tensor.__dlpack__() if on_cpu else tensor.__dlpack__(stream=-1))
