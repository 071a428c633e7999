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
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    # While torch and DALI are imported, an interrupt ends the process without a traceback.
    INTERRUPTED = signal.signal(signal.SIGINT, signal.SIG_DFL)

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
    Mix,
    Refurbish,
    evaluate,
    rand_augment,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RANK, WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
TERMINATED = threading.Event()
"""Set by SIGTERM, which clusters send before they end a job."""

NUMBERS = {
    "--reuse-factor": (3, 1, 1000, "epochs in which a cached image is used; 1 caches nothing: standard training"),
    "--coverage": (1.0, 0, 1, "share of the images that is cached; for those that memory has no room for"),
    "--val-share": (0.1, 0, 1, "share of the images to evaluate on, where DIR has no folder val"),
    "--size": (224, 32, 20_000, "side of the images in pixels"),
    "--depth": (50, min(BLOCKS), max(BLOCKS), f"layers of the ResNet: {', '.join(map(str, BLOCKS))}"),
    "--epochs": (90, 1, 10**9, "how often each image is served"),
    "--batch-size": (256, 1, 10**9, "images learned from at a time, by all processes together"),
    "--shards": (
        WORLD_SIZE,
        1,
        10**9,
        "parts of a batch; every number of processes that trains, also on resuming, divides it",
    ),
    "--learning-rate": (
        0.1,
        1e-9,
        1e3,
        "the highest, for 256 images; it rises for a tenth of the batches, then falls to 0",
    ),
    "--weight-decay": (1e-4, 0, 1e3, "pull of the weights towards 0"),
    "--label-smoothing": (0.1, 0, 1, "share of a target that all classes divide"),
    "--mixup": (0.0, 0, 1e3, "alpha of MixUp, 0 for never; 0.2 is usual"),
    "--cutmix": (0.0, 0, 1e3, "alpha of CutMix, 0 for never; 1.0 is usual"),
    "--save-every": (500, 0, 10**9, "batches from checkpoint to checkpoint within an epoch, 0 for none within"),
    "--progress-every": (10.0, 0, 1e9, "seconds from one line of progress to the next within an epoch"),
    "--seed": (0, 0, 2**63 - 1, "of order, augmentation, mixing and first weights"),
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


def check(options: argparse.Namespace) -> None:
    """Refuse now what would end the training later."""
    for flag, (_, least, most, _) in NUMBERS.items():
        value = getattr(options, flag[2:].replace("-", "_"))
        if not least <= value <= most:
            sys.exit(f"error: {flag} must be in {least}..{most}, got {value}")
    path, resume = options.checkpoint, options.resume
    if resume and not (path and path.is_file()):
        sys.exit(f"error: --resume needs the file of an earlier run, but --checkpoint names none: {path}")
    if path and path.exists() and not resume:
        sys.exit(f"error: {path} is there already: go on from it with --resume, or delete it")
    if path and not os.access(path.parent, os.W_OK):
        sys.exit(f"error: --checkpoint must be a file in a folder that can be written, but {path.parent} is none")


def restore(path: Path, parts: dict[str, Any]) -> dict[str, Any]:
    """Load a checkpoint into model, optimizer, schedule and loader; return all of it."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=DEVICE, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    except DalirefurbError:
        raise
    except Exception as error:
        sys.exit(
            f"error: {path} must be a checkpoint of a run with the same arguments ({' '.join(str(error).split())})"
        )
    return state


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


def all_terminated(step: int) -> bool:
    """Tell whether to stop: in every 16th step, as all processes together see it, since all have to stop in one."""
    if WORLD_SIZE == 1 or step % 16:
        return WORLD_SIZE == 1 and TERMINATED.is_set()
    return summed(TERMINATED.is_set())[0] > 0


def terminate(checkpoint: Path | None, step: int) -> NoReturn:
    """End as SIGTERM asks for, with the usual exit status."""
    told = f"saved in {checkpoint}, go on with --resume" if checkpoint else "nothing is saved without --checkpoint"
    if RANK == 0:
        print(f"terminated after {step} batches: {told}", file=sys.stderr)
    sys.exit(128 + signal.SIGTERM)


def train(options: argparse.Namespace, loader: Loader, val_loader: Loader, model: nn.Module, num_classes: int) -> None:
    """Train, from the start or from a checkpoint; print a line for each epoch. The first process saves and prints."""
    decay = options.weight_decay
    highest = options.learning_rate * options.batch_size / 256
    optimizer = torch.optim.SGD(model.parameters(), highest, momentum=0.9, nesterov=True, weight_decay=decay)
    num_steps = options.epochs * len(loader) + 1
    rise = max(0.1, 1.5 / num_steps)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, num_steps, pct_start=rise, cycle_momentum=False)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    alphas = {"mixup": options.mixup, "cutmix": options.cutmix}
    mix = Mix(num_classes, **alphas, label_smoothing=options.label_smoothing, seed=options.seed)
    step, loss_sum = 0, torch.zeros((), device=DEVICE)
    if options.resume:
        state = restore(options.checkpoint, parts)
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
            new = options.checkpoint.with_name(f"{options.checkpoint.name}.new")
            torch.save({**state, "step": step, "loss_sum": torch.tensor(total)}, new)
            new.replace(options.checkpoint)

    for epoch in range(loader.epoch, options.epochs):
        began, before, rows = time.perf_counter(), loader.stats(), 0
        told = began
        for images, labels in loader:
            images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            images, targets = mix(images, labels, step=step)  # A resumed run mixes as one never interrupted.
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = nn.functional.cross_entropy(trained(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step, rows = step + 1, rows + len(images)
            loss_sum += loss.detach() * len(images)
            if loader.epoch == epoch:  # After the last batch it is evaluated first.
                stop = all_terminated(step)
                if stop or (options.save_every and step % options.save_every == 0):
                    save()
                if stop:
                    terminate(options.checkpoint, step)
            if RANK == 0 and (now := time.perf_counter()) - told >= options.progress_every:
                told, speed = now, rows / (now - began)
                print(f"epoch {epoch}  image {rows:,} of {loader.num_samples:,}  {speed:,.0f} images/s", flush=True)
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
        if all_terminated(0):
            terminate(options.checkpoint, step)


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    check(options)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("dalirefurb").setLevel(logging.INFO)  # Such as that it compiles.
    if options.depth not in BLOCKS:
        sys.exit(f"error: --depth must be one of {', '.join(map(str, BLOCKS))}, got {options.depth}")
    try:
        data, val_data = read(options.data, options.val_share)
        recipe = rand_augment(options.size, order=options.order, split=options.split, channels_last=True)
        size, reuse, share = options.batch_size, options.reuse_factor, options.coverage
        numbers: dict[str, Any] = {"coverage": share, "seed": options.seed, "shards": options.shards}
        planner = Refurbish(len(data), batch_size=size, reuse_factor=reuse, **numbers)
        # Nothing is random in what is evaluated on, so each image is kept as it is, and decoded about once.
        val_planner = Evaluate(len(val_data), batch_size=size, coverage=share)
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
    add("--final-device", choices=("cpu", "gpu"), default=DEVICE.replace("cuda", "gpu"), help="where the fresh part is")
    for name, (default, _, _, meaning) in NUMBERS.items():
        add(name, type=type(default), default=default, metavar="N", help=f"{meaning} ({default})")
    add("--checkpoint", type=Path, metavar="FILE", help="where model and place are saved, after every epoch at least")
    add("--resume", action="store_true", help="go on where FILE was saved, with the same other arguments")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGINT, INTERRUPTED)
    signal.signal(signal.SIGTERM, lambda *_: TERMINATED.set())
    try:
        main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Another one ends it at once.
        print("interrupted; --resume goes on from the last checkpoint, if there is one", file=sys.stderr)
        sys.exit(130)
