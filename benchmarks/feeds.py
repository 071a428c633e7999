"""Feeds of a model: loaders at each placement, and stock DALI as its users write it.

    feed                    partial   final   stock DALI: what the same images cost without planner, store and split
    cpu/cpu                 CPU       CPU     cpu   all on the CPU
    cpu/gpu                 CPU       GPU
    gpu/gpu                 GPU       GPU     gpu   decoding by nvJPEG, the rest on the GPU

A feed takes its turn and lets go of the device again; what it cached stays for its next turn.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import harness
import torch
from harness import Contender, Placement
from loaders import Batch, LoaderTurns, Step, take_step
from nvidia.dali import fn, types
from nvidia.dali.auto_aug.rand_augment import rand_augment as dali_rand_augment
from nvidia.dali.pipeline import pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from sources import MEAN, STD, listed

from dalirefurb import FileList, MemoryStore, Refurbish, rand_augment
from dalirefurb.augment.stage import Device
from dalirefurb.store import DeviceStore

_LAYERS, _MAGNITUDE = 2, 9
_PREFETCHED = 2


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
            rand_augment(size, layers=_LAYERS, magnitude=_MAGNITUDE, mean=MEAN, std=STD),
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
        with warnings.catch_warnings(record=True):  # DALI's auto_aug uses names that DALI deprecates.
            pipeline = pipeline_def(enable_conditionals=True)(_photographs)(
                self._source,
                self._size,
                device=self._feed.final_device,
                hardware=self._feed.hardware,
                batch_size=self._batch_size,
                num_threads=harness.cores(),
                device_id=torch.cuda.current_device() if torch.cuda.is_available() else None,
                prefetch_queue_depth=_PREFETCHED,
            )
            iterator = DALIGenericIterator([pipeline], ["data", "label"], auto_reset=True)
        served: list[Batch] = []
        batches, step = self._batches(iterator, served), partial(take_step, self._take, served)
        yield Contender(self.name, Placement(1, harness.cores()), _PREFETCHED, batches, step=step)
        batches.close()

    def _batches(self, iterator: Any, served: list[Batch]) -> Generator[int, None, None]:
        while True:
            for (batch,) in iterator:
                served[:] = [(batch["data"], batch["label"].squeeze(-1).long())]
                yield len(batch["label"])


def _augmented(images: Any, size: int) -> Any:
    """Flip, do RandAugment as torchvision interpolates it, normalise."""
    images = fn.flip(images, horizontal=fn.random.coin_flip())
    images = dali_rand_augment(
        images, n=_LAYERS, m=_MAGNITUDE, shape=(size, size), interp_type=types.INTERP_NN, monotonic_mag=False
    )
    mean, std = ([255 * share for share in shares] for shares in (MEAN, STD))
    return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std)


def _photographs(source: FileList, size: int, *, device: Device, hardware: bool) -> tuple[Any, Any]:
    files, labels = listed(source)
    encoded, labels = fn.readers.file(files=files, labels=labels, random_shuffle=True, name="reader")
    decoder: dict[str, Any] = {"device": "mixed" if device == "gpu" else "cpu"}
    if not hardware:
        decoder["hw_decoder_load"] = 0.0
    images = fn.decoders.image_random_crop(
        encoded, **decoder, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    return _augmented(fn.resize(images, size=[size, size]), size), labels


_PLACEMENTS: tuple[tuple[Device, Device], ...] = (("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu"))
FEEDS = (
    *(Feed(partial, final, reuse) for partial, final in _PLACEMENTS for reuse in (1, 3)),
    Feed("cpu", "cpu", stock=True),
    Feed("gpu", "gpu", stock=True),
    Feed("gpu", "gpu", stock=True, hardware=False),
)
