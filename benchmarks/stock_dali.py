"""DALI's own operators, used as its documentation shows: nothing is reused.

Files are read and shuffled by DALI, cropped while they are decoded, resized, flipped, augmented by `auto_aug` and
normalised. `auto_aug` interpolates linearly unless it is told otherwise; torchvision and we take the nearest pixel.
Its dynamic mode, without a graph, has no `auto_aug`, and makes nothing ahead.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import Any

import harness
import torch
from harness import Contender, Placement
from loaders import Loading
from nvidia.dali import fn, types
from nvidia.dali.auto_aug import rand_augment
from nvidia.dali.pipeline import Pipeline, pipeline_def
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from sources import listed

from dalirefurb import FileList
from dalirefurb.augment.stage import Device

NEAREST = "stock DALI, nearest"
DEFAULT = "stock DALI, default"
DYNAMIC = "stock DALI, dynamic mode, crop and flip"

_CROP = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
_NORMALISED = {
    "dtype": types.DALIDataType.FLOAT,
    "output_layout": "CHW",
    "mean": [255 * value for value in (0.485, 0.456, 0.406)],
    "std": [255 * value for value in (0.229, 0.224, 0.225)],
}
QUEUE = 2


def placements() -> list[Placement]:
    """List what its users choose from: one pipeline with all threads, and a pipeline a core."""
    return list(dict.fromkeys([Placement(1, harness.cores()), Placement(harness.cores(), 1)]))


def stock(config: Loading, source: FileList, placement: Placement, *, nearest: bool = True) -> Contender:
    """Make pipelines that share out the files and are asked in turn; with no layers the last operator flips, too."""
    iterators = [
        DALIClassificationIterator(
            pipeline(config, source, placement, nearest=nearest, shard=shard),
            size=-1,
            last_batch_padded=True,
            auto_reset=True,
        )
        for shard in range(placement.replicas)
    ]
    made_ahead = placement.replicas * (QUEUE + 1)
    name = NEAREST if nearest else DEFAULT
    return Contender(name, placement, made_ahead, _batches(iterators), placement.replicas)


def dynamic(config: Loading, source: FileList, placement: Placement) -> Contender:
    """Make a loop over a reader in dynamic mode, on as many threads as there are cores."""
    return Contender(DYNAMIC, placement, 0, _dynamic_batches(config, source))


def _dynamic_batches(config: Loading, source: FileList) -> Generator[int, None, None]:
    from nvidia.dali.experimental import dynamic as ndd  # where it is needed: it starts threads

    files, labels = listed(source)
    ndd.set_num_threads(harness.cores())
    reader = ndd.readers.File(files=files, labels=labels, random_shuffle=True)
    while True:
        for encoded, label in reader.next_epoch(batch_size=config.batch_size):
            images = ndd.decoders.image_random_crop(encoded, **_CROP, device="cpu")
            images = ndd.resize(images, resize_x=config.size, resize_y=config.size, antialias=True)
            mirror = ndd.random.coin_flip(batch_size=config.batch_size)
            images = ndd.crop_mirror_normalize(images, mirror=mirror, **_NORMALISED)
            served, _ = images.torch(), label.torch()
            yield len(served)


def _batches(iterators: list[Any]) -> Generator[int, None, None]:
    while True:
        for iterator in iterators:
            (batch,) = next(iterator)
            yield len(batch["data"])


def pipeline(
    config: Loading,
    source: FileList,
    placement: Placement,
    *,
    nearest: bool = True,
    shard: int = 0,
    device: Device = "cpu",
    hardware: bool = True,
) -> Pipeline:
    """Make one pipeline, which does on a GPU all but reading, where `hardware` says whether its JPEG engine helps."""
    files, labels = listed(source)
    decoder: dict[str, Any] = {"device": "mixed" if device == "gpu" else "cpu"}
    if not hardware:
        decoder["hw_decoder_load"] = 0.0

    @pipeline_def(enable_conditionals=True)
    def graph() -> Any:
        encoded, label = fn.readers.file(
            files=files, labels=labels, random_shuffle=True, shard_id=shard, num_shards=placement.replicas
        )
        images = fn.decoders.image_random_crop(encoded, **_CROP, **decoder)
        images = fn.resize(images, resize_x=config.size, resize_y=config.size, antialias=True)
        mirror = fn.random.coin_flip()
        if not config.layers:
            return fn.crop_mirror_normalize(images, mirror=mirror, **_NORMALISED), label
        interpolation = {"interp_type": types.DALIInterpType.INTERP_NN} if nearest else {}
        images = fn.flip(images, horizontal=mirror)
        images = rand_augment.rand_augment(images, n=config.layers, m=9, **interpolation)
        return fn.crop_mirror_normalize(images, **_NORMALISED), label

    # `auto_aug` warns of its own deprecated operators, whatever the filters say.
    with warnings.catch_warnings(record=True):
        return graph(
            batch_size=config.batch_size,
            num_threads=placement.threads,
            device_id=torch.cuda.current_device() if device == "gpu" else None,
            seed=shard + 1,
            prefetch_queue_depth=QUEUE,
        )
