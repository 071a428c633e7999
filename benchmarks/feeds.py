"""Feeds of a model: loaders at each placement, and stock DALI as its users write it.

    feed                    partial   final   stock DALI: what the same images cost without planner, store and split
    cpu/cpu                 CPU       CPU     cpu   all on the CPU
    cpu/gpu                 CPU       GPU
    gpu/gpu                 GPU       GPU     gpu   decoding by nvJPEG, the rest on the GPU

A feed takes its turn and lets go of the device again; what it cached stays for its next turn.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import harness
import stock_dali
import torch
from harness import Contender, Placement
from loaders import Batch, LoaderTurns, Loading, Step, take_step
from nvidia.dali.plugin.pytorch import DALIClassificationIterator

from dalirefurb import FileList, MemoryStore, Refurbish, rand_augment
from dalirefurb.augment.stage import Device
from dalirefurb.store import DeviceStore

_LAYERS = 2


@dataclass(frozen=True)
class Feed:
    """Who feeds.

    Attributes:
        partial_device: Where the partial part runs; stock DALI runs everything there.
        final_device: Where the final part runs.
        reuse_factor: 1 for standard; stock DALI has none.
        stock: Whether it is stock DALI.
        hardware: Whether stock DALI may use a GPU's JPEG engine, as it does by default; the loaders never do.
    """

    partial_device: Device
    final_device: Device
    reuse_factor: int = 1
    stock: bool = False
    hardware: bool = True

    @property
    def name(self) -> str:
        """For tables and results."""
        if self.stock:
            return f"stock DALI, {self.final_device}" + ("" if self.hardware else ", no JPEG engine")
        reuse = f"reuse factor {self.reuse_factor}" if self.reuse_factor > 1 else "standard"
        return f"{self.partial_device}/{self.final_device}, {reuse}"

    @property
    def needs_gpu(self) -> bool:
        """Whether any of it runs there."""
        return self.final_device == "gpu"

    def entrant(
        self, stack: ExitStack, source: FileList, size: int, batch_size: int, take: Step
    ) -> StockFeed | LoaderTurns:
        """Make what takes turns.

        Args:
            stack: Closes the store of a loader, which is where the partial part runs, and full already.
            source: Of samples.
            size: Side of the images, in pixels.
            batch_size: Images of a batch.
            take: What is done with each batch.
        """
        if self.stock:
            return StockFeed(self, source, size, batch_size, take)
        turns = LoaderTurns(
            stack,
            self.name,
            source,
            rand_augment(size, layers=_LAYERS),
            Refurbish(len(source), batch_size=batch_size, reuse_factor=self.reuse_factor, drop_last=True),
            take,
            make_store=DeviceStore if self.partial_device == "gpu" else MemoryStore,
            partial_device=self.partial_device,
            final_device=self.final_device,
            pin_memory=torch.cuda.is_available(),
        )
        turns.settle()
        return turns


class StockFeed:
    """Stock DALI with its own iterator, which does what the loaders do; for the arguments see `Feed.entrant`."""

    def __init__(self, feed: Feed, source: FileList, size: int, batch_size: int, take: Step) -> None:
        self.name = feed.name
        self._feed, self._source, self._size, self._batch_size, self._take = feed, source, size, batch_size, take

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Make the pipeline, run it, and let it go."""
        sizes = Loading(size=self._size, batch_size=self._batch_size, layers=_LAYERS, epoch_batches=1, rounds=1)
        placement, device = Placement(1, harness.cores()), self._feed.final_device
        pipeline = stock_dali.pipeline(sizes, self._source, placement, device=device, hardware=self._feed.hardware)
        iterator = DALIClassificationIterator(pipeline, size=-1, auto_reset=True)
        served: list[Batch] = []
        batches, step = self._batches(iterator, served), partial(take_step, self._take, served)
        yield Contender(self.name, placement, stock_dali.QUEUE + 1, batches, step=step)
        batches.close()

    def _batches(self, iterator: Any, served: list[Batch]) -> Generator[int, None, None]:
        for (batch,) in iterator:
            served[:] = [(batch["data"], batch["label"].squeeze(-1).long())]
            yield len(batch["label"])


_PLACEMENTS: tuple[tuple[Device, Device], ...] = (("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu"))
FEEDS = (
    *(Feed(partial, final, reuse) for partial, final in _PLACEMENTS for reuse in (1, 3)),
    Feed("cpu", "cpu", stock=True),
    Feed("gpu", "gpu", stock=True),
    Feed("gpu", "gpu", stock=True, hardware=False),
)
