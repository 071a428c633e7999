"""How is a ResNet trained on photographs with RandAugment, when most of the augmentation is cached and reused?

Decoding, crop, flip and the first layer of RandAugment are cached and reused in as many epochs as --reuse-factor says;
the second layer is drawn afresh every time. Copy this file, and put your own model in.

    python imagenet_randaugment.py --data imagenet --coverage 0.25               cache a quarter of the images
    python imagenet_randaugment.py --data imagenet --reuse-factor 1              standard training
    python imagenet_randaugment.py --data photos --depth 18 --size 128 --batch-size 32 --epochs 5       on a CPU
    torchrun --nproc-per-node 8 imagenet_randaugment.py --data imagenet          on 8 GPUs, with an eighth of each batch

Each epoch prints how many images were hits, from the cache, and misses, made from the start.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dalirefurb import (
    DalirefurbError,
    Evaluate,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Refurbish,
    evaluate,
    rand_augment,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RANK, WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
NUMBERS = {
    "--reuse-factor": (3, "epochs in which a cached image is used; 1 caches nothing: standard training"),
    "--coverage": (1.0, "share of the images that is cached; for those that memory has no room for"),
    "--val-share": (0.1, "share of the images to evaluate on, where DIR has no folder val"),
    "--size": (224, "side of the images in pixels"),
    "--depth": (50, f"layers of the ResNet: {', '.join(map(str, BLOCKS))}"),
    "--epochs": (90, "how often each image is served"),
    "--batch-size": (256, "images learned from at a time, by all processes together"),
    "--shards": (WORLD_SIZE, "parts of a batch; every number of processes that trains, also on resuming, divides it"),
    "--learning-rate": (0.1, "the highest, for 256 images; it rises for a tenth of the batches, then falls to 0"),
    "--weight-decay": (1e-4, "pull of the weights towards 0"),
    "--label-smoothing": (0.1, "share of a target that all classes divide"),
    "--mixup": (0.0, "alpha of MixUp, 0 for never; 0.2 is usual"),
    "--cutmix": (0.0, "alpha of CutMix, 0 for never; 1.0 is usual"),
    "--save-every": (500, "batches from checkpoint to checkpoint within an epoch, 0 for none within"),
    "--seed": (0, "of order, augmentation, mixing and first weights"),
}


def read(folder: Path, share: float) -> tuple[ImageFolder | FileList, ImageFolder | FileList]:
    """Find the images to train on, and those to evaluate on."""
    images = ImageFolder(folder / "train" if (folder / "train").is_dir() else folder)
    if (folder / "val").is_dir():
        val_images = ImageFolder(folder / "val")
        if val_images.classes != images.classes:
            raise ValueError(f"train and val must hold the same class folders, but do not in {folder}")
        return images, val_images
    # Every tenth image, say: the same in every run, and alike from all classes.
    chosen = np.diff(np.floor(np.arange(len(images) + 1) * share)) > 0
    if not 0 < chosen.sum() < len(images):
        raise ValueError(f"--val-share must leave images on both sides, but {share} of {len(images)} does not")
    parts = [np.flatnonzero(part) for part in (~chosen, chosen)]
    remaining, held_out = (FileList(map(images.name, part.tolist()), images.labels[part]) for part in parts)
    return remaining, held_out


def summed(*numbers: float) -> list[float]:
    """Add up each number over all processes."""
    sums = torch.tensor(numbers, dtype=torch.float64, device=DEVICE)
    if WORLD_SIZE > 1:
        distributed.all_reduce(sums)
    return sums.tolist()


class Block(nn.Module):
    """Two convolutions of 3 x 3, or from 50 layers on a bottleneck of three, beside a shortcut."""

    def __init__(self, entering: int, width: int, leaving: int, *, stride: int) -> None:
        super().__init__()
        bottleneck = leaving != width
        layers: list[nn.Module] = [*convolution(entering, width, 1), nn.ReLU(inplace=True)] if bottleneck else []
        layers += [*convolution(width if bottleneck else entering, width, 3, stride=stride), nn.ReLU(inplace=True)]
        layers += convolution(width, leaving, 1 if bottleneck else 3)
        self.body = nn.Sequential(*layers)
        shortcut = convolution(entering, leaving, 1, stride=stride) if stride > 1 or entering != leaving else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Turn (B, entering, H, W) into (B, leaving, H / stride, W / stride)."""
        return nn.functional.relu(self.body(features) + self.shortcut(features))


def convolution(entering: int, leaving: int, size: int, *, stride: int = 1) -> list[nn.Module]:
    """Return a convolution without a bias, and its normalisation."""
    convolving = nn.Conv2d(entering, leaving, size, stride=stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolving.weight, mode="fan_out", nonlinearity="relu")
    return [convolving, nn.BatchNorm2d(leaving)]


def resnet(depth: int, num_classes: int) -> nn.Module:
    """Build a ResNet (He et al., CVPR 2016), with the stride in the bottleneck's middle."""
    layers: list[nn.Module] = [*convolution(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    entering = 64
    for stage, num_blocks in enumerate(BLOCKS[depth]):
        width = 64 * 2**stage
        leaving = 4 * width if depth >= 50 else width
        for block in range(num_blocks):
            layers.append(Block(entering, width, leaving, stride=2 if stage > 0 and block == 0 else 1))
            entering = leaving
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, num_classes))


def mix(
    images: torch.Tensor, targets: torch.Tensor, *, mixup: float, cutmix: float, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blend every image with its neighbour in the batch (MixUp), or paste a square of the neighbour into it (CutMix).

    `mixup` and `cutmix` are the papers' alpha, 0 for never; with both, each batch tosses a coin. `targets`, shape
    (B, classes), are blended in the same shares as the pixels.
    """
    if mixup == cutmix == 0:
        return images, targets
    neighbours = images.roll(1, dims=0)
    if cutmix > 0 and (mixup == 0 or rng.random() < 0.5):
        size = images.shape[-1]
        side = round(size * math.sqrt(rng.beta(cutmix, cutmix)))
        top, left = rng.integers(0, size - side, size=2, endpoint=True)
        square = (..., slice(top, top + side), slice(left, left + side))
        images = images.clone()
        images[square] = neighbours[square]
        share = (side / size) ** 2
    else:
        share = rng.beta(mixup, mixup)
        images = images.lerp(neighbours, share)
    return images, targets.lerp(targets.roll(1, dims=0), share)


@torch.no_grad()
def accuracy(model: nn.Module, loader: Loader) -> float:
    """Return the share of the images that the model gets right."""
    model.eval()
    correct = torch.zeros((), device=DEVICE)
    for images, labels in loader:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            logits = model(images.to(DEVICE, non_blocking=True))
        correct += (logits.argmax(dim=1) == labels.to(DEVICE, non_blocking=True)).sum()
    model.train()
    return correct.item() / loader.num_samples


def train(options: argparse.Namespace, loader: Loader, val_loader: Loader, model: nn.Module, num_classes: int) -> None:
    """Train, from the start or from a checkpoint; print a line for each epoch. The first process saves and prints."""
    decay = options.weight_decay
    highest = options.learning_rate * options.batch_size / 256
    optimizer = torch.optim.SGD(model.parameters(), highest, momentum=0.9, nesterov=True, weight_decay=decay)
    num_steps = options.epochs * len(loader) + 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, num_steps, pct_start=0.1, cycle_momentum=False)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    step, loss_sum = 0, torch.zeros((), device=DEVICE)
    if options.resume:
        state = torch.load(options.checkpoint, map_location=DEVICE, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        step, loss_sum = state["step"], state["loss_sum"] / WORLD_SIZE
        if schedule.total_steps != num_steps:
            earlier = (schedule.total_steps - 1) // len(loader)
            sys.exit(
                f"error: --epochs must be {earlier}, as in {options.checkpoint}, since the learning rate follows it"
            )
        if loader.epoch >= options.epochs and RANK == 0:
            print(f"{options.checkpoint} has all epochs: nothing is left to train")
    trained = DistributedDataParallel(model) if WORLD_SIZE > 1 else model

    def save() -> None:
        """Replace the checkpoint, whole or not at all."""
        (total,) = summed(loss_sum.item())
        if options.checkpoint and RANK == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            new = options.checkpoint.with_suffix(".new")
            torch.save({**state, "step": step, "loss_sum": torch.tensor(total)}, new)
            new.replace(options.checkpoint)

    for epoch in range(loader.epoch, options.epochs):
        began, before, rows = time.perf_counter(), loader.stats(), 0
        for images, labels in loader:
            images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            rng = np.random.default_rng((options.seed, step))  # A resumed run mixes as one that was never interrupted.
            targets = nn.functional.one_hot(labels, num_classes).float()
            images, targets = mix(images, targets, mixup=options.mixup, cutmix=options.cutmix, rng=rng)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = nn.functional.cross_entropy(trained(images), targets, label_smoothing=options.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step, rows = step + 1, rows + len(images)
            loss_sum += loss.detach() * len(images)
            if options.save_every and step % options.save_every == 0 and loader.epoch == epoch:
                save()
        served = min(loader.num_samples, len(loader) * options.batch_size)
        mean_loss = summed(loss_sum.item())[0] / served  # Waits for the GPU.
        seconds, done = time.perf_counter() - began, loader.stats() - before
        if WORLD_SIZE > 1:
            for averages in model.buffers():
                distributed.broadcast(averages, 0)  # So that all evaluate the model that is saved.
        right = accuracy(model, val_loader)  # That of this process's images; each is one process's.
        images_per_s, hits, misses, right = summed(rows / seconds, done.hits, done.misses, right)
        if RANK == 0:
            print(f"epoch {epoch}  loss {mean_loss:.4f}  {images_per_s:,.0f} images/s", end="  ")
            print(f"hits {hits:,.0f}  misses {misses:,.0f}  validation accuracy {right:.2%}", flush=True)
        loss_sum.zero_()
        save()


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    if options.resume and not (options.checkpoint and options.checkpoint.is_file()):
        sys.exit(f"error: --resume needs the file of an earlier run, but --checkpoint names none: {options.checkpoint}")
    if options.depth not in BLOCKS:
        sys.exit(f"error: --depth must be one of {', '.join(map(str, BLOCKS))}, got {options.depth}")
    try:
        data, val_data = read(options.data, options.val_share)
        recipe = rand_augment(options.size, order=options.order, split=options.split, channels_last=True)
        size, reuse, share = options.batch_size, options.reuse_factor, options.coverage
        numbers: dict[str, Any] = {"coverage": share, "seed": options.seed, "shards": options.shards}
        planner = Refurbish(len(data), batch_size=size, reuse_factor=reuse, **numbers)
        # Nothing is random in what is evaluated on, so each image is kept as it is, and decoded about once.
        val_planner = Evaluate(len(val_data), batch_size=min(size, len(val_data)), coverage=share)
        val_planner.for_rank(rank=RANK, world_size=WORLD_SIZE)  # Refuses fewer images than processes.
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    val_recipe = evaluate(options.size, channels_last=True)
    cached, fresh = (" > ".join(stage.name for stage in part) for part in (recipe.partial, recipe.final))
    cached = cached or "files, as they were read"
    if RANK == 0:
        print(f"{len(data):,} images to train on, {len(val_data):,} to evaluate on; cached: {cached}; fresh: {fresh}")
    if WORLD_SIZE > 1:
        if DEVICE == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    torch.manual_seed(options.seed)
    num_classes = int(max(data.labels.max(), val_data.labels.max())) + 1
    model = resnet(options.depth, num_classes).to(DEVICE, memory_format=torch.channels_last)
    placement: dict[str, Any] = {"partial_device": options.partial_device, "final_device": options.final_device}
    placement["pin_memory"] = DEVICE == "cuda"
    try:
        with (
            Loader(data, recipe, planner, MemoryStore(), **placement) as loader,
            Loader(val_data, val_recipe, val_planner, MemoryStore(), **placement) as val_loader,
        ):
            train(options, loader, val_loader, model, num_classes)
    except DalirefurbError as error:
        sys.exit(f"error: {error}")
    finally:
        if WORLD_SIZE > 1:
            distributed.destroy_process_group()


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="holds train/<class>/1.jpg, or <class>/1.jpg")
    add("--split", metavar="STAGE", help="the first stage that is fresh, such as flip")
    add("--partial-device", choices=("cpu", "gpu"), default="cpu", help="where the cached part is made (cpu)")
    add("--order", choices=("paper", "crop_last"), default="paper", help="crop and flip come first, or last (paper)")
    add(
        "--final-device", choices=("cpu", "gpu"), default=DEVICE.replace("cuda", "gpu"), help="likewise, the fresh part"
    )
    for name, (default, meaning) in NUMBERS.items():
        add(name, type=type(default), default=default, metavar="N", help=f"{meaning} ({default})")
    add("--checkpoint", type=Path, metavar="FILE", help="where model and place are saved, after every epoch at least")
    add("--resume", action="store_true", help="go on where FILE was saved, with the same other arguments")
    return parser


if __name__ == "__main__":
    main()
