"""GPU memory: what a loader is going to take of it, held against what is free before anything is taken.

Most of it is taken by DALI's pools while the loader works, so nothing but this check would say early that it does not
fit. What trains on the GPU is not counted: the check refuses what cannot work, not what leaves a model no room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.backend_factory import Devices
from dalirefurb.engine.prefetch import Depths
from dalirefurb.errors import OutOfMemoryError
from dalirefurb.store import Store, StoreSpec, available
from dalirefurb.store.device.gather import KERNEL_BYTES
from dalirefurb.store.memory_budget import amount

DECODER_BYTES = 2**28
"""Allowance for DALI's decoder in each pipeline that decodes on the GPU, beside images."""

DECODED_BYTES = 500 * 400 * 3
"""Allowance for a photograph that is decoded whole, where its size is not known."""

_TAKEN_GROUPS = 3
"""Groups of final images after the last step: handed over, in the model's hands, and let go but still being read."""

_WORKING_COPIES = 3
"""Copies of a group's images inside a pipeline: what an operator reads and writes, and what another one waits for."""


@dataclass(frozen=True)
class GroupSizes:
    """What one batch group's images take, in bytes, at most.

    Attributes:
        decoded: Images as they were decoded, or as the source has them.
        partial: Partial images.
        final: Final images.
    """

    decoded: int
    partial: int
    final: int

    @classmethod
    def of(cls, recipe: Recipe, entering: tuple[int, ...] | None, spec: StoreSpec | None, rows: int) -> GroupSizes:
        """Return the sizes of groups of so many rows.

        Args:
            recipe: Recipe that says what is done to the samples.
            entering: Shape (H, W, C) of each of the source's images, if it is known.
            spec: What the store is opened for, which knows the mean size where sizes vary; None without a store.
            rows: Rows of the longest group.
        """
        decoded = DECODED_BYTES if entering is None else math.prod(entering)
        sides = recipe.partial_size(None if entering is None else (entering[0], entering[1]))
        if sides is not None:
            partial = 3 * math.prod(sides)
        else:
            partial = -(-spec.nbytes // spec.slots) if spec is not None and not recipe.caches_encoded else decoded
        output = recipe.output
        itemsize = 2 if output.dtype == "float16" else 4
        return cls(rows * decoded, rows * partial, rows * itemsize * output.channels * math.prod(output.sides))


@dataclass(frozen=True)
class GpuMemory:
    """What a loader takes, in bytes, by what it is for.

    Attributes:
        device: Amounts of the GPU's memory.
        pinned: Amounts of the host's memory that the GPU reaches, which is never swapped.
    """

    device: dict[str, int]
    pinned: dict[str, int]

    def check(self) -> None:
        """Refuse what does not fit into the memory that is free now.

        Raises:
            OutOfMemoryError: If it does not.
        """
        for name, needed, free in (
            ("the GPU's memory", self.device, free_bytes()),
            ("pinned memory", self.pinned, available.available_bytes()),
        ):
            total = sum(needed.values())
            if free is not None and total > free:
                parts = ", ".join(f"{part} {amount(nbytes)}" for part, nbytes in needed.items() if nbytes)
                raise OutOfMemoryError(
                    f"{name} must hold what the loader takes of it, which is {amount(total)} ({parts}), but "
                    f"{amount(free)} are free: use a smaller store (a coverage below 1, a smaller reuse factor, a "
                    f"MemoryStore), pass prefetch=Prefetch(replicas=1, look_ahead=1, batches_per_group=1), or a "
                    f"smaller batch size to the planner"
                )


def free_bytes() -> int:
    """Return the bytes of the current CUDA device's memory that nobody has."""
    free, _ = torch.cuda.mem_get_info()
    return int(free)


def gpu_memory(
    depths: Depths,
    devices: Devices,
    sizes: GroupSizes,
    *,
    apart: bool,
    encoded: bool,
    store: Store | None = None,
    spec: StoreSpec | None = None,
) -> GpuMemory:
    """Count all that a loader is going to take on a GPU, and in pinned memory.

    Args:
        depths: Numbers of pipelines and of groups on their way.
        devices: Devices of the parts, and where partial images are in between.
        sizes: Sizes of the longest group.
        apart: Whether each part has pipelines of its own.
        encoded: Whether the source's samples are encoded.
        store: Store of partial images; None without one.
        spec: What the store is going to be opened for.
    """
    decodes, finishes = devices.partial == "gpu", devices.final == "gpu"
    partial_groups = depths.partial_ahead + depths.ready + depths.look_ahead
    final_groups = depths.look_ahead + _TAKEN_GROUPS + (0 if apart else depths.ready + 1)
    pipelines = depths.final_replicas if apart else depths.replicas
    device, pinned = dict[str, int](), dict[str, int]()
    if store is not None and spec is not None:
        device["the store's slots"] = store.gpu_bytes(spec, pinned=False)
        pinned["the store's slots"] = store.gpu_bytes(spec, pinned=True)
    if decodes:
        whole = 2 * sizes.decoded + encoded * DECODER_BYTES
        device["decoding"] = depths.replicas * (whole + _WORKING_COPIES * sizes.partial)
    if finishes:
        device["final images on their way"] = final_groups * sizes.final
        device["work on final images"] = pipelines * _WORKING_COPIES * sizes.partial
    if finishes and apart:
        device["partial images for the final part"] = depths.look_ahead * sizes.partial
    if devices.entering == "gpu":
        # One group is laid out; CuPy's temporary arrays are those of a put and of laying out, on their way and there.
        device["partial images laid out"] = sizes.partial + 4 * min(KERNEL_BYTES, sizes.partial)
    elif finishes:
        pinned["partial images for the final part"] = depths.look_ahead * sizes.partial
    if decodes and apart:
        where = device if devices.leaving == "gpu" else pinned
        where["partial images on their way"] = partial_groups * sizes.partial
    return GpuMemory(device, pinned)
