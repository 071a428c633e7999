"""How is a network trained to segment volumes, with a window of them in memory, as NVIDIA Clara's SmartCache does?

Volumes are read, and their values brought to 0 .. 1, when they enter the window; a tenth of it is replaced after each
round. Of each volume several small cubes are drawn afresh every time, half of them around a labelled voxel. Copy this
file, and put your own data and model in.

    python volume_segmentation.py --images scans --masks labels --cached 50 --size 96
    python volume_segmentation.py --made 30 --cached 10 --rounds 5      balls that are drawn, to try it

Each round prints how many cubes were cut from cached volumes, and how many volumes were read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dalirefurb import DalirefurbError, Echo, Evaluate, Loader, MemoryStore, Recipe, SmartCache, Volumes
from dalirefurb.augment import (
    CenterCrop3D,
    HostStage,
    RandomCrop3D,
    RandomFlip3D,
    RandomRotate90,
    RandomShiftIntensity,
    VolumeOutput,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def scaled(volume: dict[str, Any]) -> dict[str, Any]:
    """Bring values to 0 .. 1, from the lowest to the highest hundredth; what is dear and not random belongs here."""
    image = volume["image"].astype(np.float32)
    low, high = np.percentile(image[:, ::4, ::4, ::4], (1, 99))
    return {**volume, "image": np.clip((image - low) / max(high - low, 1e-6), 0, 1)}


def recipe(size: int) -> Recipe:
    """Cache whole volumes, scaled; draw cubes of them, and all that is done to these, afresh."""
    random = [RandomCrop3D(size, foreground=0.5), RandomFlip3D(), RandomRotate90(0.2), RandomShiftIntensity(0.1)]
    return Recipe([HostStage(scaled, "scaled"), *random], VolumeOutput(size), split="crop")


def validation(size: int) -> Recipe:
    """Show the middle of each volume."""
    return Recipe([HostStage(scaled, "scaled"), CenterCrop3D(size)], VolumeOutput(size))


def network(classes: int, width: int = 8) -> nn.Module:
    """Build a small network whose result has half of the volumes' side, enlarged."""

    def convolution(entering: int, leaving: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv3d(entering, leaving, 3, stride, padding=1, bias=False)
        return [layer, nn.InstanceNorm3d(leaving, affine=True), nn.LeakyReLU(inplace=True)]

    return nn.Sequential(
        *convolution(1, width, 2),
        *convolution(width, 2 * width),
        *convolution(2 * width, 2 * width),
        nn.Conv3d(2 * width, classes, 1),
        nn.Upsample(scale_factor=2, mode="trilinear"),
    )


def loss_of(scores: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """Return the sum of cross entropy and the Dice loss."""
    shares = scores.softmax(dim=1)
    wanted = nn.functional.one_hot(masks, scores.shape[1]).movedim(-1, 1)
    both = 2 * (shares * wanted).sum((0, 2, 3, 4)) + 1
    dice = both / (shares.sum((0, 2, 3, 4)) + wanted.sum((0, 2, 3, 4)) + 1)
    return nn.functional.cross_entropy(scores, masks) + 1 - dice.mean()


@torch.no_grad()
def mean_dice(model: nn.Module, loader: Loader, classes: int) -> float:
    """Return the mean Dice coefficient of the classes that there are, but for the background."""
    both, each = torch.zeros(classes), torch.zeros(classes)
    model.eval()
    for images, masks in loader:
        found, masks = model(images.to(DEVICE)).argmax(dim=1).cpu(), masks.cpu()
        for number in range(1, classes):
            both[number] += ((found == number) & (masks == number)).sum()
            each[number] += (found == number).sum() + (masks == number).sum()
    model.train()
    return float((2 * both[each > 0] / each[each > 0]).mean())


def train(options: argparse.Namespace, loader: Loader, val_loader: Loader, model: nn.Module) -> None:
    """Train, from the start or from a checkpoint; print a line for each round."""
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=DEVICE, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for number in range(loader.epoch, options.rounds):
        before, losses = loader.stats(), []
        for images, masks in loader:
            images, masks = images.to(DEVICE, non_blocking=True), masks.to(DEVICE, non_blocking=True)
            loss = loss_of(model(images), masks)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        done = loader.stats() - before
        found = mean_dice(model, val_loader, options.classes)
        print(
            f"round {number}  loss {torch.stack(losses).mean():.4f}  hits {done.hits:,}  misses {done.misses:,}  "
            f"mean Dice {found:.1%}",
            flush=True,
        )
        if options.checkpoint:
            torch.save({name: part.state_dict() for name, part in parts.items()}, options.checkpoint)


def draw(folder: Path, count: int) -> None:
    """Make volumes of noise in which a ball of random place and size is brighter, with masks of two classes."""
    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (folder / part).mkdir()
    for number in range(count):
        shape = rng.integers(48, 72, 3)
        centre, radius = rng.integers(16, shape - 16), rng.integers(6, 14)
        away = sum((axis - middle) ** 2 for axis, middle in zip(np.ogrid[[*map(slice, shape)]], centre, strict=True))
        ball = away < radius**2
        np.save(folder / "images" / f"{number}.npy", (rng.normal(0, 100, shape) + 150 * ball).astype(np.int16))
        np.save(folder / "masks" / f"{number}.npy", ball.astype(np.uint8))


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    if bool(options.made) == bool(options.images and options.masks):
        sys.exit("error: pass --images and --masks, or --made to try it with balls that are drawn")
    torch.manual_seed(options.seed)
    with ExitStack() as stack:
        images, masks = options.images, options.masks
        if options.made:
            options.classes = 2
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            draw(folder, options.made)
            images, masks = folder / "images", folder / "masks"
        try:
            source = Volumes(sorted(images.iterdir()), sorted(masks.iterdir()))
            held_out = np.arange(len(source)) % 5 == 4
            train_set, val_set = source.subset(~held_out), source.subset(held_out)
            window = SmartCache(
                len(train_set),
                batch_size=options.batch_size,
                num_cache_objects=min(options.cached, len(train_set)),
                replace_percent=0.1,
                seed=options.seed,
            )
            planner = Echo(window, echoing_factor=options.cubes, buffer_size=8 * options.batch_size)
            loader = stack.enter_context(Loader(train_set, recipe(options.size), planner, MemoryStore()))
            val_planner = Evaluate(len(val_set), batch_size=1)
            val_loader = stack.enter_context(Loader(val_set, validation(options.val_size), val_planner, MemoryStore()))
            train(options, loader, val_loader, network(options.classes).to(DEVICE))
        except DalirefurbError as error:
            sys.exit(f"error: {error}")


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of volumes, .npy, .npz, .nii or .nii.gz")
    add("--masks", type=Path, metavar="DIR", help="folder of their labels, in the same order by name")
    add("--made", type=int, metavar="N", help="volumes that are drawn in place of both")
    add("--classes", type=int, default=2, metavar="N", help="numbers in masks, from 0, the background (2)")
    add("--size", type=int, default=32, metavar="VOXELS", help="side of the cubes, an even number (32)")
    add("--val-size", type=int, default=64, metavar="VOXELS", help="side of what is validated, an even number (64)")
    add("--cached", type=int, default=50, metavar="N", help="volumes of a round, which are in memory (50)")
    add("--cubes", type=int, default=4, metavar="N", help="cubes of each volume in a round (4)")
    add("--batch-size", type=int, default=2, metavar="N", help="cubes learned from at a time (2)")
    add("--rounds", type=int, default=10, metavar="N", help="how often the window moves on (10)")
    add("--learning-rate", type=float, default=2e-3, metavar="X", help="of AdamW (0.002)")
    add("--seed", type=int, default=0, metavar="N", help="of order, augmentation and first weights (0)")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="saved after each round; if it is there, training goes on from it",
    )
    return parser


if __name__ == "__main__":
    main()
