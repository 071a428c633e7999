"""How is CIFAR-10 trained with AutoAugment?

By default nothing is cached, as images this small are augmented faster than a cached one is fetched. With
--reuse-factor 3 random crop, flip and AutoAugment's first operation are cached and reused in three epochs, and its
second operation is drawn afresh every time. Copy this file, and put your own data and model in.

    python cifar10_autoaugment.py --data cifar-10-batches-py --epochs 1 --reuse-factor 3    to compare with
    python cifar10_autoaugment.py --data cifar-10-batches-py --width 64 --epochs 60         for a GPU

Each epoch prints how many images were hits, from the cache, and misses, made from the start.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
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
from torch import nn

from dalirefurb import Arrays, DalirefurbError, Evaluate, Loader, MemoryStore, Mix, Refurbish, auto_augment, evaluate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TERMINATED = threading.Event()
"""Set by SIGTERM, which clusters send before they end a job."""

NUMBERS = {
    # Reuse makes loading slower here, and images less different: see "Small images" in docs/performance.md. It pays
    # where images are files to decode, as in imagenet_randaugment.py.
    "--reuse-factor": (1, 1, 1000, "epochs in which a cached image is used; 1 caches nothing: standard training"),
    "--width": (16, 1, 4096, "channels of the first layer: 16 for two CPU cores, 64 for a GPU"),
    "--epochs": (10, 1, 10**9, "how often each image is served"),
    "--batch-size": (256, 1, 10**9, "images learned from at a time"),
    "--learning-rate": (0.1, 1e-9, 1e3, "the highest: it rises for a fifth of the batches, then falls to 0"),
    "--weight-decay": (5e-4, 0, 1e3, "pull of the weights towards 0"),
    "--label-smoothing": (0.1, 0, 1, "share of a target that all classes divide"),
    "--mixup": (0.0, 0, 1e3, "alpha of MixUp, 0 for never; 0.2 is usual"),
    "--cutmix": (0.0, 0, 1e3, "alpha of CutMix, 0 for never; 1.0 is usual"),
    "--save-every": (500, 0, 10**9, "batches from checkpoint to checkpoint within an epoch, 0 for none within"),
    "--progress-every": (10.0, 0, 1e9, "seconds from one line of progress to the next within an epoch"),
    "--seed": (0, 0, 2**63 - 1, "of order, augmentation, mixing and first weights"),
}


def read(folder: Path, part: str) -> Arrays:
    """Read the images of a part, "train" or "test", from files of either format.

    The data set's own files are pickled: data_batch_1 .. data_batch_5 and test_batch. A mosaic, such as
    train_0_airplane.webp, is a picture that holds rows and columns of 32 x 32 images, all with the label in its name.
    """
    images, labels = [], []
    try:
        for path in sorted(folder.glob("data_batch_[1-5]" if part == "train" else "test_batch")):
            batch = pickle.loads(path.read_bytes(), encoding="bytes")
            images.append(batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(batch[b"labels"])
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError) as error:
        raise ValueError(f"{path} must be a pickled batch of CIFAR-10, but cannot be read: {error!r}") from error
    for path in sorted(folder.glob(f"{part}_[0-9]_*.webp")):
        from PIL import Image

        mosaic = np.asarray(Image.open(path).convert("RGB"))
        images.append(mosaic.reshape(-1, 32, mosaic.shape[1] // 32, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3))
        labels.append([int(path.name.split("_")[1])] * len(images[-1]))
    if not images:
        files = "data_batch_1 .. data_batch_5 and test_batch, or train_<label>_<name>.webp and test_<label>_<name>.webp"
        raise FileNotFoundError(f"--data must be a folder of {files}, but {folder} holds no {part} images")
    return Arrays(np.concatenate(images), np.concatenate(labels))


def convolution(entering: int, leaving: int, *, pool: int = 1) -> nn.Module:
    """Convolve, keep the largest of `pool` x `pool` features, normalise, activate."""
    layers = nn.Conv2d(entering, leaving, 3, padding=1, bias=False), nn.MaxPool2d(pool), nn.BatchNorm2d(leaving)
    return nn.Sequential(*layers, nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(channels, channels), convolution(channels, channels))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Keep the shape, (B, channels, H, W)."""
        changed: torch.Tensor = self.body(features)
        return features + changed


def network(width: int) -> nn.Module:
    """Build a residual network of 9 layers, with `width` to 8 * `width` channels."""
    return nn.Sequential(
        convolution(3, width),
        convolution(width, 2 * width, pool=2),
        Residual(2 * width),
        convolution(2 * width, 4 * width, pool=2),
        convolution(4 * width, 8 * width, pool=2),
        Residual(8 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


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


def terminate(checkpoint: Path | None, step: int) -> NoReturn:
    """End as SIGTERM asks for, with the usual exit status."""
    told = f"saved in {checkpoint}, go on with --resume" if checkpoint else "nothing is saved without --checkpoint"
    print(f"terminated after {step} batches: {told}", file=sys.stderr)
    sys.exit(128 + signal.SIGTERM)


def train(options: argparse.Namespace, loader: Loader, test_loader: Loader, model: nn.Module) -> None:
    """Train, from the start or from a checkpoint; print a line for each epoch."""
    decay = options.weight_decay
    optimizer = torch.optim.SGD(
        model.parameters(), options.learning_rate, momentum=0.9, nesterov=True, weight_decay=decay
    )
    num_steps = options.epochs * len(loader) + 1
    rise = max(0.2, 1.5 / num_steps)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, num_steps, pct_start=rise, cycle_momentum=False
    )
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    alphas = {"mixup": options.mixup, "cutmix": options.cutmix}
    mix = Mix(10, **alphas, label_smoothing=options.label_smoothing, seed=options.seed)
    step, loss_sum = 0, torch.zeros((), device=DEVICE)
    if options.resume:
        state = restore(options.checkpoint, parts)
        step, loss_sum = state["step"], state["loss_sum"]
        if schedule.total_steps != num_steps:
            earlier = (schedule.total_steps - 1) // len(loader)
            sys.exit(
                f"error: --epochs must be {earlier}, as in {options.checkpoint}, since the learning rate follows it"
            )
        if loader.epoch >= options.epochs:
            print(f"{options.checkpoint} has all epochs: nothing is left to train")

    def save() -> None:
        """Replace the checkpoint, whole or not at all."""
        if options.checkpoint:
            state = {name: part.state_dict() for name, part in parts.items()}
            new = options.checkpoint.with_name(f"{options.checkpoint.name}.new")
            torch.save({**state, "step": step, "loss_sum": loss_sum}, new)
            new.replace(options.checkpoint)

    for epoch in range(loader.epoch, options.epochs):
        began, before, rows = time.perf_counter(), loader.stats(), 0
        told = began
        for images, labels in loader:
            images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            images, targets = mix(images, labels, step=step)  # A resumed run mixes as one never interrupted.
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step, rows = step + 1, rows + len(images)
            loss_sum += loss.detach() * len(images)
            if loader.epoch == epoch:  # After the last batch it is evaluated first.
                stop = TERMINATED.is_set()
                if stop or (options.save_every and step % options.save_every == 0):
                    save()
                if stop:
                    terminate(options.checkpoint, step)
            if (now := time.perf_counter()) - told >= options.progress_every:
                told, speed = now, rows / (now - began)
                print(f"epoch {epoch}  image {rows:,} of {loader.num_samples:,}  {speed:,.0f} images/s", flush=True)
        mean_loss = loss_sum.item() / loader.num_samples  # Waits for the GPU.
        images_per_s = rows / (time.perf_counter() - began)
        done = loader.stats() - before
        print(f"epoch {epoch}  loss {mean_loss:.4f}  {images_per_s:,.0f} images/s", end="  ")
        right = accuracy(model, test_loader)
        print(f"hits {done.hits:,}  misses {done.misses:,}  test accuracy {right:.2%}", flush=True)
        loss_sum.zero_()
        save()
        if TERMINATED.is_set():
            terminate(options.checkpoint, step)


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    check(options)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("dalirefurb").setLevel(logging.INFO)  # Such as that it compiles.
    try:
        data, test_data = read(options.data, "train"), read(options.data, "test")
        size, reuse, order = options.batch_size, options.reuse_factor, options.order
        recipe = auto_augment(32, policy="cifar10", order=order, raw=True, mean=MEAN, std=STD, channels_last=True)
        planner = Refurbish(len(data), batch_size=size, reuse_factor=reuse, seed=options.seed)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    # The test images need no store: they are arrays, and only normalised.
    test_recipe = evaluate(32, raw=True, mean=MEAN, std=STD, channels_last=True)
    test_planner = Evaluate(len(test_data), batch_size=size)
    split = recipe.split if reuse > 1 else 0
    parts = recipe.stages[:split], recipe.stages[split:]
    cached, fresh = (" > ".join(stage.name for stage in part) or "nothing" for part in parts)
    print(f"{len(data):,} images to train on, {len(test_data):,} to test on; cached: {cached}; fresh: {fresh}")
    torch.manual_seed(options.seed)
    model = network(options.width).to(DEVICE, memory_format=torch.channels_last)
    placement: dict[str, Any] = {"final_device": options.final_device, "pin_memory": DEVICE == "cuda"}
    try:
        with (
            Loader(data, recipe, planner, MemoryStore(), **placement) as loader,
            Loader(test_data, test_recipe, test_planner, **placement) as test_loader,
        ):
            train(options, loader, test_loader, model)
    except DalirefurbError as error:
        sys.exit(f"error: {error}")


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="folder of data_batch_1 ..., or of mosaics")
    add("--order", choices=("paper", "crop_last"), default="paper", help="crop and flip come first, or last (paper)")
    add(
        "--final-device",
        choices=("cpu", "gpu"),
        default=DEVICE.replace("cuda", "gpu"),
        help="where fresh parts are made",
    )
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
