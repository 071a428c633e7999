"""Memory: what a loader is going to hold, held against what is free before any of it is taken.

Most of it is taken while the loader works, by DALI's pools and by batches that wait, so nothing but this would say so
early. Fewer batches are on their way then, before anything is refused; what is served stays the same.
What trains is not counted: this refuses what cannot work, not what leaves a model no room.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from dalirefurb.augment.stages.partners import CopyPaste
from dalirefurb.engine.configuration import Configuration, Way
from dalirefurb.engine.kernel_choice import Devices, begun_on_gpu, fallback_levels
from dalirefurb.engine.prefetch import Depths, Prefetch
from dalirefurb.errors import OutOfMemoryError
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.store import StoreSpec
from dalirefurb.store.base import Taken
from dalirefurb.store.device.memory import KERNEL_BYTES
from dalirefurb.system.resources import amount, available_bytes, budget_bytes
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.mask_images import Masks

DECODER_BYTES = 2**28
"""Allowance for DALI's decoder in each pipeline that decodes on the GPU, beside images."""

THREAD_BYTES = 2**22
"""Allowance for each thread that computes on the CPU, and for what DALI has for it."""

FILE_BYTES = 100_000
"""Allowance for a photograph's file, where its size is not known."""

COMPRESSION = 6
"""Bytes of a photograph that is decoded whole by those of its file, about."""

_TAKEN_GROUPS = 3
"""Groups of final images after the last step: handed over, in the model's hands, and let go but still being read."""

_WORKING_COPIES = 3
"""Copies of a group's images inside a GPU's pipeline: what an operator reads and writes, and what another waits for."""

STORE = "the store's slots"
HOST, BESIDE_STORE, DEVICE = "memory", "memory beside the store, of which Prefetch says how much,", "the GPU's memory"

Needs = dict[str, Counter[str]]
"""Bytes by what they are for, of each kind of memory; pinned memory is the host's."""

_log = logging.getLogger("dalirefurb.engine")


@dataclass(frozen=True)
class Account:
    """What decides how much memory a loader takes, beside its depths.

    Attributes:
        configuration: Configuration of the loader.
        batch_size: Rows of a batch.
        devices: Devices of the parts, and where partial images are in between.
        way: How images are made, see `Configuration.way`.
        spec: What the store is going to be opened for, which knows the mean size where sizes vary; None without one.
        store: Bytes that the store takes when it is opened.
        sample_bytes: Bytes of a volume as it is read; None: samples are images, of which more is known.
    """

    configuration: Configuration
    batch_size: int
    devices: Devices
    way: Way
    spec: StoreSpec | None = None
    store: Taken = Taken()  # noqa: RUF009
    sample_bytes: int | None = None

    @cached_property
    def row_bytes(self) -> tuple[int, int, int, int]:
        """Bytes of a sample as the source gives it, of its whole image, its partial and its final one."""
        recipe, spec, entering = self.configuration.recipe, self.spec, self.configuration.source.image_shape
        file_bytes = self._file_bytes() if recipe.encoded else FILE_BYTES
        decoded = COMPRESSION * file_bytes if entering is None else math.prod(entering)
        decoded = decoded if self.sample_bytes is None else self.sample_bytes
        sides = recipe.partial_size(None if entering is None else entering[:2])
        if sides is not None:
            partial = 3 * math.prod(sides)
        else:
            partial = -(-spec.nbytes // spec.slots) if spec is not None and not recipe.caches_encoded else decoded
        # DALI makes float32 of what is to be bfloat16.
        by_kernels = self.configuration.kernels != "dali" and self.fallback is None
        halves = ("float16", "bfloat16") if by_kernels else ("float16",)
        outputs = [each.output for each in (recipe, *self.configuration.views)]
        final = sum((2 if each.dtype in halves else 4) * each.channels * math.prod(each.sides) for each in outputs)
        final += 8 * math.prod(outputs[0].sides) * recipe.volumes  # labels of voxels
        final = partial if self.way == "fed" else final
        return file_bytes if recipe.encoded else decoded, decoded, partial, final

    @property
    def apart(self) -> bool:
        """Whether the parts are apart, see `Configuration.apart`."""
        return self.way != "whole" and not self.configuration.recipe.caches_encoded

    @cached_property
    def fallback(self) -> PlainLevels | None:
        """What kernels leave to DALI's operators; see `fallback_levels`."""
        return fallback_levels(self.configuration.kernels, self.configuration.recipe)

    @property
    def _mask_bytes(self) -> int:
        """Bytes of the masks of one served image, in a batch of those with the most objects."""
        targets = (self.configuration.source.annotations or {}).values()
        pixels = math.prod(self.configuration.recipe.output.sides)
        whole: float = sum(each.dtype.itemsize for each in targets if isinstance(each, Masks))
        most = [np.sort(each.rows.counts)[-self.batch_size :] for each in targets if isinstance(each, InstanceMasks)]
        stage = self.configuration.recipe.partner_stage
        images = 1 if stage is None else 1 + stage.partners
        whole += self.row_bytes[2] / (3 * pixels) * isinstance(stage, CopyPaste)  # What is pasted, in partial images.
        return math.ceil(pixels * (whole + images * sum(float(counts.mean()) for counts in most if len(counts))))

    @property
    def _way_bytes(self) -> int:
        """Bytes of the two images that a thread of kernels has on the way, of the largest size that a stage says.

        Where samples lie as planes there is RGB of one, too.
        """
        sizes = [stage.fixed_size for stage in self.configuration.recipe.stages if stage.fixed_size is not None]
        of_planes = self.row_bytes[1] if self.configuration.source.planes else 0
        return 6 * max((height * width for height, width in sizes), default=0) + of_planes

    @property
    def _begun_on_gpu(self) -> bool:
        """Whether kernels do the partial part on a GPU."""
        return begun_on_gpu(self.configuration.kernels, self.configuration.recipe, self.devices)

    @property
    def _cuda_bytes(self) -> tuple[int, int]:
        """Bytes that kernels on a GPU work in for an image, in the partial part and in the final one."""
        from dalirefurb.kernels.cuda.counting import row_bytes

        recipe, _, decoded, partial, _ = self.configuration.recipe, *self.row_bytes
        sides = [(math.isqrt(nbytes // 3) + 1,) * 2 for nbytes in (decoded, partial)]
        entering = self.configuration.source.image_shape
        whole = sides[0] if entering is None else entering[:2]
        between = recipe.partial_size(None if entering is None else entering[:2]) or sides[1]
        begun = row_bytes(recipe.partial[recipe.encoded :], whole) if self._begun_on_gpu else 0
        return begun, row_bytes(recipe.final, between)

    def _file_bytes(self) -> int:
        """Return the mean bytes of some of the source's files, or an allowance where its samples are none."""
        source = self.configuration.source
        try:
            rows = np.linspace(0, len(source.labels) - 1, 64).astype(int).tolist()
            return int(np.mean([Path(source.name(row)).stat().st_size for row in rows]))
        except (OSError, ValueError):
            return FILE_BYTES

    def needs(self, depths: Depths) -> Needs:
        """Count all that a loader is going to take with so many groups on their way."""
        recipe, devices, kernels = self.configuration.recipe, self.devices, self.configuration.kernels
        numba, cuda = kernels == "numba", kernels == "cuda"
        rows = depths.batches_per_group * self.batch_size
        read, decoded, partial, final = (rows * nbytes for nbytes in self.row_bytes)
        final = final * depths.hits_per_group // depths.batches_per_group
        fallback, serves_final, views = self.fallback, self.way != "fed", len(self.configuration.views)
        one_step, by_views = fallback is None and self.way in ("whole", "both"), self.way in ("together", "volumes")
        begun = depths.partial_ahead if self.apart or fallback else depths.look_ahead
        host, device = Counter({STORE: self.store.host}), Counter({STORE: self.store.device})
        decoding, leaving, finishing, entering = (
            device if each == "gpu" else host
            for each in (devices.partial, devices.leaving, devices.final, devices.entering)
        )
        waiting = depths.ready + 2 if recipe.caches_encoded else 1
        host["samples as they were read"] = (depths.read_ahead + begun + waiting) * read
        host["threads"] = depths.replicas * depths.threads_each * THREAD_BYTES
        if numba:
            host["decoding"] = recipe.encoded * decoded
            pools = 2 if by_views else 1
            host["images on their way in threads"] = pools * depths.replicas * depths.threads_each * self._way_bytes
        elif decoding is host:
            host["decoding"] = depths.replicas * max(recipe.encoded * decoded, partial)
        else:
            whole = 2 * decoded + recipe.encoded * DECODER_BYTES
            device["decoding"] = depths.replicas * (whole + (0 if self._begun_on_gpu else _WORKING_COPIES) * partial)
        if fallback and serves_final:
            of_group = 3 * math.prod(fallback.sides) * depths.hits_per_group * self.batch_size
            host["images between kernels and DALI"] = depths.groups_made * of_group
        if self.apart and numba:
            # The store has room for some.
            spare = 0 if self.spec is None or fallback else max(0, self.store.host - self.spec.nbytes)
            finishing_groups = 2 if one_step or by_views else depths.look_ahead
            partial_groups = begun + depths.ready + finishing_groups
            host["partial images on their way"] = max(0, partial_groups * partial - spare)
        elif self.apart:
            leaving["partial images on their way"] = (begun + depths.ready + depths.look_ahead) * partial
        final_groups = 1 if by_views else begun + depths.ready + 1 if one_step else depths.look_ahead
        final_groups += _TAKEN_GROUPS
        finishing["final images on their way"] = final_groups * final
        if self._mask_bytes:
            of_group = self._mask_bytes * depths.hits_per_group * self.batch_size
            host["masks on their way"] = final_groups * of_group
        longest = depths.hits_per_group * self.batch_size
        if cuda:
            partial_way, final_way = self._cuda_bytes
            device["images on their way in kernels"] = rows * partial_way + (1 + views) * longest * final_way
        elif finishing is device:
            device["work on final images"] = (1 + views) * depths.final_replicas * _WORKING_COPIES * partial
        elif not one_step and not by_views and serves_final:
            host["work on final images"] = (1 + views) * depths.final_replicas * partial
        if self.configuration.pin_memory and finishing is host:
            host["final images in pinned memory"] = (_TAKEN_GROUPS + 1) * final
        if finishing is device and self.apart and not cuda:
            device["partial images for the final part"] = (1 + views) * depths.look_ahead * partial
        if cuda and devices.leaving == "cpu":
            # A group that came is read, while the next one is laid out and one before it is copied.
            brought = (1 + views) * longest * self.row_bytes[2] * 5 // 4
            device["partial images for the final part"] = brought
            host["partial images for the final part"] = 2 * brought
        if entering is device:
            # One group is laid out; CuPy's temporary arrays are those of a put and of laying out, both there and ahead.
            device["partial images laid out"] = (not cuda) * (1 + views) * partial + 4 * min(KERNEL_BYTES, partial)
        elif finishing is device and not cuda:
            host["partial images for the final part"] = depths.look_ahead * partial
        return {HOST: host, BESIDE_STORE: host - Counter({STORE: host[STORE]}), DEVICE: device}

    def fitted(self, depths: Depths, prefetch: Prefetch) -> tuple[Depths, Needs]:
        """Return depths with which the loader fits into memory, smaller ones if need be, and what it takes with these.

        Raises:
            OutOfMemoryError: If it does not fit.
        """
        free = {BESIDE_STORE: None if prefetch.memory is None else budget_bytes(prefetch.memory)}
        free |= {HOST: available_bytes(), DEVICE: free_bytes() if self.devices.final == "gpu" else None}
        fitting, needs = depths, self.needs(depths)
        first = lack = _lack(needs, free)
        while lack and (smaller := prefetch.smaller(fitting)):
            fitting, needs = smaller, self.needs(smaller)
            lack = _lack(needs, free)
        if lack:
            kept = ", ".join(f"{name}={value}" for name, value in prefetch.chosen.items())
            in_code = "a smaller store (a coverage below 1, max_bytes, a DiskStore), fewer threads, "
            in_code += "Prefetch(num_threads=1)"
            in_code += f"; and smaller numbers, or none, in place of Prefetch({kept})" if kept else ""
            remedy = "use smaller batches, smaller images, a smaller reuse factor"
            if lack.startswith(DEVICE) and (unused := unused_bytes()):
                remedy = (
                    f"call torch.cuda.empty_cache(), since torch holds {amount(unused)} that it does not use; {remedy}"
                )
            raise OutOfMemoryError(lack, remedy=remedy, in_code=in_code)
        if first and prefetch.memory is None:
            after = vars(fitting)
            changes = [f"{name} {old} -> {after[name]}" for name, old in vars(depths).items() if old != after[name]]
            _log.warning("%s: so less is on its way (%s); the same is served", first, ", ".join(changes))
        return fitting, needs


def _lack(needs: Needs, free: dict[str, int | None]) -> str:
    """Say what does not fit, with its parts; nothing if all does."""
    for name, there in free.items():
        if there is not None and (total := needs[name].total()) > there:
            parts = ", ".join(f"{part} {amount(nbytes)}" for part, nbytes in needs[name].items() if nbytes)
            return f"{name} must hold what the loader takes, {amount(total)} ({parts}), but {amount(there)} are free"
    return ""


def unused_bytes() -> int:
    """Return the bytes of the current CUDA device's memory that torch holds, and has no tensor in."""
    return int(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def free_bytes() -> int:
    """Return the bytes of the current CUDA device's memory that nobody has."""
    return int(torch.cuda.mem_get_info()[0])
