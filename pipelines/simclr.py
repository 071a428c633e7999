"""How is a network trained by SimCLR, on pairs of views that are reused in ever new pairs?

Each image is served in two views, which have a cached version each. At reuse factor 2 one of the two is computed anew
in every epoch, so that a file is decoded once an epoch and no two versions come together twice; colours and blur are
drawn afresh every time. No labels are used. Copy this file, and put your own data and network in.

    python simclr.py --data photos/train
    python simclr.py --made 400 --epochs 5      shapes that are drawn, to try it

Each epoch prints the loss, how many views were hits, from the cache, and misses, made from the start, and for which
share of the views the nearest one in its batch is the other view of the same image.
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

from dalirefurb import DalirefurbError, ImageFolder, Loader, MemoryStore, Refurbish
from dalirefurb.augment.published import simclr

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network(width: int = 16, features: int = 64) -> nn.Module:
    """Build a small encoder with SimCLR's projection behind it; without its last three layers it is the encoder."""

    def convolution(entering: int, leaving: int) -> list[nn.Module]:
        layer = nn.Conv2d(entering, leaving, 3, 2, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *convolution(3, width),
        *convolution(width, 2 * width),
        *convolution(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 4 * width),
        nn.ReLU(inplace=True),
        nn.Linear(4 * width, features),
    )


def nt_xent(projected: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of SimCLR (Chen et al., ICML 2020), and the share of views whose nearest one is their own other.

    Args:
        projected: Of the first views of n images, then of the second ones, in the same order, shape (2n, features).
        temperature: By which similarities are divided.
    """
    count = len(projected) // 2
    directions = nn.functional.normalize(projected)
    alike = directions @ directions.T / temperature
    alike = alike.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=alike.device), -torch.inf)
    others = torch.arange(2 * count, device=alike.device).roll(count)
    found = (alike.argmax(dim=1) == others).float().mean()
    return nn.functional.cross_entropy(alike, others), found


def train(options: argparse.Namespace, loader: Loader, model: nn.Module) -> None:
    """Train, from the start or from a checkpoint; print a line for each epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=DEVICE, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for epoch in range(loader.epoch, options.epochs):
        before, losses, shares = loader.stats(), [], []
        for views, _ in loader:
            images = torch.cat([view.to(DEVICE, non_blocking=True) for view in views])
            loss, found = nt_xent(model(images), options.temperature)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            shares.append(found)
        done = loader.stats() - before
        print(
            f"epoch {epoch}  loss {torch.stack(losses).mean():.4f}  hits {done.hits:,}  misses {done.misses:,}  "
            f"pairs found {torch.stack(shares).mean():.1%}",
            flush=True,
        )
        if options.checkpoint:
            torch.save({name: part.state_dict() for name, part in parts.items()}, options.checkpoint)


def draw(folder: Path, count: int) -> None:
    """Make images of boxes and discs of random colours, places and sizes, in a folder as `ImageFolder` reads it."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    (folder / "made").mkdir()
    for number in range(count):
        image = Image.new("RGB", (96, 96), tuple(rng.integers(0, 256, 3).tolist()))
        for shape in ("ellipse", "rectangle") * 3:
            x, y, side = rng.integers(0, 70), rng.integers(0, 70), rng.integers(15, 45)
            place = (int(x), int(y), int(x + side), int(y + side))
            getattr(ImageDraw.Draw(image), shape)(place, fill=tuple(rng.integers(0, 256, 3).tolist()))
        image.save(folder / "made" / f"{number}.png")


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loader and network together, and train."""
    options = parser().parse_args(arguments)
    if bool(options.made) == bool(options.data):
        sys.exit("error: pass --data, or --made to try it with shapes that are drawn")
    torch.manual_seed(options.seed)
    with ExitStack() as stack:
        folder = options.data
        if options.made:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            draw(folder, options.made)
        try:
            source = ImageFolder(folder)
            planner = Refurbish(
                len(source),
                batch_size=options.batch_size,
                reuse_factor=options.reuse_factor,
                drop_last=True,
                seed=options.seed,
            )
            loader = stack.enter_context(Loader(source, simclr(options.size), planner, MemoryStore(), views=2))
            train(options, loader, network().to(DEVICE))
        except DalirefurbError as error:
            sys.exit(f"error: {error}")


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of images, with a folder for each class, which is not used")
    add("--made", type=int, metavar="N", help="shapes that are drawn in its place")
    add("--size", type=int, default=64, metavar="PIXELS", help="side of the images (64)")
    add("--batch-size", type=int, default=64, metavar="N", help="images learned from at a time, in two views each (64)")
    add("--reuse-factor", type=int, default=2, metavar="N", help="epochs in which a cached version is used (2)")
    add("--temperature", type=float, default=0.5, metavar="X", help="of the loss (0.5)")
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
