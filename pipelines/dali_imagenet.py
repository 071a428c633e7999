"""How is refurbishing put into a training script that is written for DALI's pipelines and iterators?

    python dali_imagenet.py --data imagenet --plain              DALI alone: read, decode, crop, RandAugment, normalise
    python dali_imagenet.py --data imagenet                      its first half cached, and reused in 3 epochs
    torchrun --nproc-per-node 8 dali_imagenet.py --data imagenet

Two pipelines, one loop. What the second one needs beside the first is in `refurbished` and in the lines behind "if not
options.plain". Put your own model in.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug.rand_augment import rand_augment as dalis_rand_augment
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

from dalirefurb import ImageFolder, MemoryStore, PartialSource, Refurbish, rand_augment

ON_GPU = torch.cuda.is_available()
RANK, WORLD_SIZE, DEVICE_ID = (
    int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
)
MEAN, STD = [255 * level for level in (0.485, 0.456, 0.406)], [255 * level for level in (0.229, 0.224, 0.225)]


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def plain(folder: str, size: int) -> Any:
    """Read, decode and augment every image anew."""
    encoded, labels = fn.readers.file(
        file_root=folder, shard_id=RANK, num_shards=WORLD_SIZE, random_shuffle=True, pad_last_batch=True, name="Reader"
    )
    images = fn.decoders.image_random_crop(
        encoded, device="mixed" if ON_GPU else "cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    images = fn.resize(images, size=[size, size])
    images = fn.flip(images, horizontal=fn.random.coin_flip())
    images = dalis_rand_augment(images, n=2, m=9, shape=[size, size])
    return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", mean=MEAN, std=STD), labels


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def refurbished(samples: PartialSource) -> Any:
    """Take images that are cropped, flipped and augmented once; the second layer of RandAugment is drawn here."""
    images, labels, *parameters = fn.external_source(samples, num_outputs=samples.num_outputs, no_copy=True)
    return samples.final_graph(images.gpu() if ON_GPU else images, parameters), labels


def network(num_classes: int) -> torch.nn.Module:
    """Put yours here."""
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 32, 7, stride=4), torch.nn.ReLU()]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(32 * 64, num_classes)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print a line for each epoch."""
    options = parser().parse_args(arguments)
    source = ImageFolder(options.data)
    rows = options.batch_size // WORLD_SIZE
    threads: dict[str, Any] = {"num_threads": options.threads, "device_id": DEVICE_ID if ON_GPU else None}
    if options.plain:
        pipeline = plain(options.data, options.size, batch_size=rows, **threads)
        iterator = DALIClassificationIterator(
            pipeline, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
        )
    if not options.plain:
        reuse = {"reuse_factor": options.reuse_factor, "shards": WORLD_SIZE}
        planner = Refurbish(len(source), batch_size=options.batch_size, **reuse)
        samples = PartialSource(source, rand_augment(options.size), planner, MemoryStore(), dali_labels=True)
        pipeline = refurbished(samples, batch_size=rows, **threads)
        iterator = DALIClassificationIterator(pipeline, auto_reset=True)

    device = torch.device("cuda", DEVICE_ID) if ON_GPU else torch.device("cpu")
    if WORLD_SIZE > 1:
        torch.distributed.init_process_group("nccl" if ON_GPU else "gloo")
    model: torch.nn.Module = network(len(source.classes or ())).to(device)
    if WORLD_SIZE > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for epoch in range(options.epochs):
        began, served, loss = time.perf_counter(), 0, torch.zeros(())
        for batch in iterator:
            images, labels = batch[0]["data"], batch[0]["label"].squeeze(-1).long().to(device)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            served += len(images)
        speed = served / (time.perf_counter() - began)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {served:,} images of rank {RANK}, {speed:,.0f} images/s")
    if WORLD_SIZE > 1:
        torch.distributed.destroy_process_group()


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="holds a folder for each class")
    add("--plain", action="store_true", help="DALI alone, without a cache")
    add("--reuse-factor", type=int, default=3, metavar="N", help="epochs in which a cached image is used (3)")
    add("--size", type=int, default=224, metavar="N", help="side of the images in pixels (224)")
    add("--batch-size", type=int, default=256, metavar="N", help="images of all processes together (256)")
    add("--threads", type=int, default=4, metavar="N", help="threads of the pipeline on the CPU (4)")
    add("--epochs", type=int, default=90, metavar="N", help="how often each image is served (90)")
    return parser


if __name__ == "__main__":
    main()
