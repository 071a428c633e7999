"""How is a network trained to segment, with masks that move with their images?

Decoding and the crop are cached and reused in three epochs; the flip, how far a crop is turned, and colours are drawn
afresh every time. Masks go where their images go. Copy this file, and put your own data and model in.

    python segmentation.py --images photos --masks masks --classes 21
    python segmentation.py --made 200 --epochs 3      shapes that are drawn, to try it

Each epoch prints how many images were hits, from the cache, and misses, made from the start.
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

from dalirefurb import DalirefurbError, Evaluate, Loader, MemoryStore, Output, Recipe, Refurbish, evaluate
from dalirefurb.augment import ColorJitter, Decode, HorizontalFlip, RandomResizedCrop, RandomRotation
from dalirefurb.targets import MaskFolder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IGNORED = 255
"""Of masks: what lies outside of the image, and what nobody has labelled."""


def recipe(size: int) -> Recipe:
    """Cache the crop; draw the rest afresh."""
    crop = RandomResizedCrop(size, (0.25, 1.0))
    stages = [Decode(), crop, HorizontalFlip(), RandomRotation(10), ColorJitter(0.4, 0.4, 0.4, 0.1)]
    return Recipe(stages, Output(size), split="flip")


def network(classes: int, width: int = 16) -> nn.Module:
    """Build a small network whose result has a quarter of the images' side, enlarged."""

    def convolution(entering: int, leaving: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(entering, leaving, 3, stride, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *convolution(3, width, 2),
        *convolution(width, 2 * width, 2),
        *convolution(2 * width, 4 * width),
        *convolution(4 * width, 4 * width),
        nn.Conv2d(4 * width, classes, 1),
        nn.Upsample(scale_factor=4, mode="bilinear"),
    )


@torch.no_grad()
def mean_iou(model: nn.Module, loader: Loader, classes: int) -> float:
    """Return the mean intersection over union of the classes that there are."""
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    model.eval()
    for images, masks in loader:
        found, masks = model(images.to(DEVICE)).argmax(dim=1).cpu(), masks.cpu()
        told = masks != IGNORED
        counts += torch.bincount(classes * masks[told] + found[told], minlength=classes**2).reshape(classes, classes)
    model.train()
    both, either = counts.diag(), counts.sum(0) + counts.sum(1) - counts.diag()
    return float((both[either > 0] / either[either > 0]).mean())


def train(options: argparse.Namespace, loader: Loader, val_loader: Loader, model: nn.Module) -> None:
    """Train, from the start or from a checkpoint; print a line for each epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=DEVICE, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for epoch in range(loader.epoch, options.epochs):
        before, losses = loader.stats(), []
        for images, masks in loader:
            images, masks = images.to(DEVICE, non_blocking=True), masks.to(DEVICE, non_blocking=True)
            loss: torch.Tensor = nn.functional.cross_entropy(model(images), masks, ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        done = loader.stats() - before
        found = mean_iou(model, val_loader, options.classes)
        print(
            f"epoch {epoch}  loss {torch.stack(losses).mean():.4f}  hits {done.hits:,}  misses {done.misses:,}  "
            f"mean IoU {found:.1%}",
            flush=True,
        )
        if options.checkpoint:
            torch.save({name: part.state_dict() for name, part in parts.items()}, options.checkpoint)


def draw(folder: Path, count: int) -> None:
    """Make images of a disc and a box of random colours, places and sizes, with masks of three classes."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (folder / part).mkdir()
    for number in range(count):
        image = Image.fromarray(rng.integers(0, 256, (96, 128, 3), np.uint8))
        mask = Image.new("L", image.size)
        for kind, shape in ((1, "ellipse"), (2, "rectangle")):
            x, y, side = rng.integers(0, 80), rng.integers(0, 50), rng.integers(20, 45)
            place = (int(x), int(y), int(x + side), int(y + side))
            colour = rng.integers(0, 256, 3)
            colour[kind] = 255
            getattr(ImageDraw.Draw(image), shape)(place, fill=tuple(map(int, colour)))
            getattr(ImageDraw.Draw(mask), shape)(place, fill=kind)
        image.save(folder / "images" / f"{number}.png")
        mask.save(folder / "masks" / f"{number}.png")


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    if bool(options.made) == bool(options.images and options.masks):
        sys.exit("error: pass --images and --masks, or --made to try it with shapes that are drawn")
    torch.manual_seed(options.seed)
    with ExitStack() as stack:
        images, masks = options.images, options.masks
        if options.made:
            options.classes = 3
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            draw(folder, options.made)
            images, masks = folder / "images", folder / "masks"
        try:
            source = MaskFolder(images, masks, fill=IGNORED)
            held_out = np.arange(len(source)) % 10 == 9
            train_set, val_set = source.subset(~held_out), source.subset(held_out)
            planner = Refurbish(
                len(train_set), batch_size=options.batch_size, reuse_factor=options.reuse_factor, seed=options.seed
            )
            val_planner = Evaluate(len(val_set), batch_size=min(options.batch_size, len(val_set)))
            loader = stack.enter_context(Loader(train_set, recipe(options.size), planner, MemoryStore()))
            val_loader = stack.enter_context(Loader(val_set, evaluate(options.size), val_planner, MemoryStore()))
            train(options, loader, val_loader, network(options.classes).to(DEVICE))
        except DalirefurbError as error:
            sys.exit(f"error: {error}")


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of images, at any depth")
    add("--masks", type=Path, metavar="DIR", help="folder of their masks, at the same places")
    add("--made", type=int, metavar="N", help="shapes that are drawn in place of both")
    add("--classes", type=int, default=21, metavar="N", help="numbers in masks, from 0; 255 is ignored (21)")
    add("--size", type=int, default=64, metavar="PIXELS", help="side of the images, a multiple of 4 (64)")
    add("--batch-size", type=int, default=16, metavar="N", help="images learned from at a time (16)")
    add("--reuse-factor", type=int, default=3, metavar="N", help="epochs in which a cached crop is used (3)")
    add("--epochs", type=int, default=10, metavar="N", help="how often each image is served (10)")
    add("--learning-rate", type=float, default=1e-3, metavar="X", help="of AdamW (0.001)")
    add("--seed", type=int, default=0, metavar="N", help="of order, augmentation and first weights (0)")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="saved after each epoch; if it is there, training goes on from it",
    )
    return parser


if __name__ == "__main__":
    main()
