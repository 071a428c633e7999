"""Copy probes: how fast images get to the device, and the device store alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from first_light.findings import Finding

_SHAPE = (224, 224, 3)
_BATCH, _TIMES = 256, 20


def rates(device: str) -> Iterator[Finding]:
    """Copy batches as torch does: from pinned and from ordinary memory, as uint8 and as float32."""
    import torch

    there = "cuda" if device == "gpu" else "cpu"
    for dtype in (torch.uint8, torch.float32):
        for pinned in (True, False) if device == "gpu" else (False,):
            batch = torch.zeros((_BATCH, *_SHAPE), dtype=dtype, pin_memory=pinned)
            out = torch.empty_like(batch, device=there)
            rate = _images_per_s(lambda batch=batch, out=out: out.copy_(batch, non_blocking=True), device)  # type: ignore[misc]
            memory = "pinned" if pinned else "ordinary"
            seen = f"{rate:,.0f} images/s, {rate * batch[0].nbytes / 1e9:.1f} GB/s"
            yield Finding(f"{memory} memory to the device, {str(dtype)[6:]}", "", seen, None)


def store(device: str) -> Iterator[Finding]:
    """Put and gather in the device's memory: it must be faster than copying the batch from the host."""
    yield from _store(device, pinned_host=False, least_of_copy=1.0)


def pinned_store(device: str) -> Iterator[Finding]:
    """Put and gather in pinned memory of the host: it should be nearly as fast as copying the batch."""
    yield from _store(device, pinned_host=True, least_of_copy=0.5)


def _store(device: str, *, pinned_host: bool, least_of_copy: float) -> Iterator[Finding]:
    import torch

    from dalirefurb.store import DeviceStore, StoreSpec

    slots = 4096 if device == "gpu" else 512
    with DeviceStore(pinned_host=pinned_host, device=device) as store:  # type: ignore[arg-type]
        store.open(StoreSpec(_SHAPE, slots, {}))
        for start in range(0, slots, _BATCH):
            rows = np.arange(start, start + _BATCH)
            store.put(rows, np.zeros_like(rows), [np.full(_SHAPE, row % 251, np.uint8) for row in rows])
        order = np.random.default_rng(0).permutation(slots)[:_BATCH]
        out = _empty(device)

        def gather() -> None:
            with store.get(order, np.zeros_like(order)) as lease:
                assert lease.found.all()
                lease.gather(out, np.arange(_BATCH))  # type: ignore[attr-defined]

        rate = _images_per_s(gather, device)
        host = out.get() if device == "gpu" else out
        right = bool((host == (order % 251).astype(np.uint8)[:, None, None, None]).all())
    yield Finding("gathered", "what was put", "that" if right else "something else", right)
    seen = f"{rate:,.0f} images/s"
    if device == "gpu":
        batch = torch.zeros((_BATCH, *_SHAPE), dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(batch, device="cuda")
        copied = _images_per_s(lambda: there.copy_(batch, non_blocking=True), device)
        hoped = f">= {least_of_copy} of a copy's {copied:,.0f} images/s"
        yield Finding("gathering", hoped, seen, rate >= least_of_copy * copied)
    else:
        yield Finding("gathering", "", seen, None)


def _empty(device: str) -> Any:
    if device == "cpu":
        return np.empty((_BATCH, *_SHAPE), np.uint8)
    import cupy

    return cupy.empty((_BATCH, *_SHAPE), np.uint8)


def _images_per_s(act: Callable[[], object], device: str) -> float:
    """Time as many batches as are told on top, twice, and take the second time."""
    import torch

    for _ in range(2):
        if device == "gpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_TIMES):
            act()
        if device == "gpu":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return _TIMES * _BATCH / seconds
