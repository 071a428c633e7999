"""CudaFinal: the final part by kernels on a GPU, in the place of DALI's graph of it.

The finish thread waits for a group before it hands it over, and for no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.dali import Feed
from dalirefurb.engine.cache_plan import CachePlan
from dalirefurb.engine.cuda_queue import CudaQueue
from dalirefurb.engine.finals import Final
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.image_batch import Images, Places
from dalirefurb.store.device.memory import within
from dalirefurb.store.device.store import DeviceLease


class CudaFinal(Final):
    """Kernels of the final part on a GPU.

    Args:
        input_builder: Builder of the parameters.
        queue: Queue of their program, which is split before its first step.
    """

    runs_ahead = True

    def __init__(self, input_builder: InputBuilder, queue: CudaQueue) -> None:
        self._input_builder = input_builder
        self._queue, self._memory = queue, queue.memory
        # Final images of each group on its way, what waits for them, and what is read until then.
        self._groups: deque[tuple[torch.Tensor, Callable[[], None], list[object]]] = deque()

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        """Queue all that finishes a group."""
        assert feeds is None
        count = len(cache_plan.plan.indices)
        brought, addresses, sizes, read = self._entering(cache_plan, count)
        parameters = self._input_builder.final_parameters(cache_plan.plan, cache_plan.shown, sizes)
        output = self._queue.program.output
        assert isinstance(output, Output)
        try:
            with self._memory.on_stream():
                results = self._queue.device.empty(output, count)
                targets = results.data_ptr() + results[:1].nbytes * np.arange(count)
                images = Images.at(Places(addresses, sizes))
                work = self._queue.program.work({}, pinned=images, final=parameters, targets=targets)
                self._groups.append((results, self._queue.add(work, addresses, brought), read))
        except BaseException:
            # Nobody collects this group, but its images may be read still.
            self._memory.synchronize()
            raise

    def collect(self) -> torch.Tensor:
        """Wait for the oldest group; return its final images."""
        images, wait, _read = self._groups.popleft()
        wait()
        return images

    def restart(self) -> None:
        self._memory.synchronize()
        self._groups.clear()

    def _entering(
        self, cache_plan: CachePlan, count: int
    ) -> tuple[list[tuple[int, NDArray[np.uint8]]], NDArray[np.int64], NDArray[np.int64], list[object]]:
        """Find a group's partial images.

        Returns:
            Rows whose image is on the host, with it; the addresses of the others, (B,); heights and widths, (B, 2); and
            what has to stay until they are read.
        """
        xp = self._memory.xp
        addresses, sizes = np.zeros(count, np.int64), np.zeros((count, 2), np.int64)
        brought: list[tuple[int, NDArray[np.uint8]]] = []
        read: list[object] = []
        others = cache_plan.unpinned_images()
        lease = None if cache_plan.asked is None else cache_plan.asked.lease
        slots = lease.places(self._memory) if isinstance(lease, DeviceLease) else None
        if slots is not None:
            rows = cache_plan.found()
            addresses[rows], sizes[rows] = slots.addresses, slots.sizes
        else:
            others.append(cache_plan.pinned_images())
        for rows, images in others:
            whole = within(xp, images) if self._memory.device_id is not None else None
            if whole is not None:
                array, places = whole
                addresses[rows] = self._memory.address(array) + array[:1].nbytes * places
                sizes[rows] = array.shape[1:3]
                read.append(images)
            else:
                sizes[rows] = images.places.sizes if len(images) else 0
                brought += zip(rows.tolist(), images, strict=True)
        return brought, addresses, sizes, read
