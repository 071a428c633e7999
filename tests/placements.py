"""Where the parts can run, and the store be: what is said of a GPU holds on the CPU too, where all can see it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from dalirefurb import MemoryStore
from dalirefurb.augment.stage import Device
from dalirefurb.store import Store
from dalirefurb.store.device.store import DeviceStore

Placement = tuple[Device, Device]
"""Of the partial part and of the final one."""

StoreKind = Literal["memory", "device", "pinned host"]

ON_CPU: Placement = ("cpu", "cpu")
ON_GPU: list[Placement] = [("cpu", "gpu"), ("gpu", "gpu")]

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PLACEMENTS = [
    pytest.param(ON_CPU, id="cpu/cpu"),
    *(pytest.param(placement, marks=NEEDS_GPU, id="/".join(placement)) for placement in ON_GPU),
]

WITH_STORES = [
    pytest.param(ON_CPU, "device", id="cpu/cpu, device"),
    *(
        pytest.param(placement, kind, marks=NEEDS_GPU, id=f"{'/'.join(placement)}, {kind}")
        for placement in ON_GPU
        for kind in ("memory", "device", "pinned host")
    ),
]
"""On the CPU the device's store alone: it goes the way that one on a GPU goes, and the other has tests of its own."""


def store_kind(kind: StoreKind) -> type[Store]:
    return MemoryStore if kind == "memory" else DeviceStore


def arguments_of(kind: StoreKind, placement: Placement) -> dict[str, Any]:
    """Return what a store of this kind is made with, to be where the final part is."""
    _, final_device = placement
    if kind == "memory":
        return {}
    if final_device == "gpu":
        pytest.importorskip("cupy")
    return {"device": final_device, "pinned_host": kind == "pinned host"}


def make_store(kind: StoreKind, placement: Placement) -> Store:
    return store_kind(kind)(**arguments_of(kind, placement))
