"""How is a detector trained on mosaics, as the YOLO family is, and without them in its last epochs?

Images are decoded and resized once for a few epochs. At every use four of a batch are put together, scaled, shifted,
mirrored and coloured anew: nothing that is random is cached, so reuse costs no diversity. In the last epochs
(`--close-mosaic`) each image is alone: that is another recipe, whose cached part is the same, so it has another loader
and the same store. A batch has the objects of all its images one after the other, `cls`, `bboxes` and `batch_idx`, as
Ultralytics' trainers take them. The network is small: for each class a map of the places that have an object's centre,
and at each place where the centre is in it and how large the box is. Copy this file, and put your own data and network
in.

    python detection_mosaic.py --images images/train2017 --labels labels/train2017 --names person bicycle ...
    python detection_mosaic.py --made 300 --epochs 12      shapes that are drawn, to try it

Each epoch prints whether it had mosaics, how many images were hits, from the cache, and misses, made from the start;
and the mean average precision at an intersection over union of 0.5, of whole images in a frame.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dalirefurb import DalirefurbError, Evaluate, Loader, MemoryStore, Output, Recipe, Refurbish
from dalirefurb.augment import Decode, Letterbox
from dalirefurb.augment.published import yolo
from dalirefurb.targets import YoloFolder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRIDE = 4
"""Pixels of an image for each place of the maps."""

Objects = Mapping[str, torch.Tensor]
"""Of a batch: "cls" (n, 1); "bboxes" (n, 4), centre and sides as shares of the image's; "batch_idx" (n,)."""


class Detector(nn.Module):
    """Scores centres, (B, classes, H / 4, W / 4), and says boxes, (B, 4, H / 4, W / 4).

    A box is where in its place the centre is, 0..1, and its sides, in places.
    """

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()

        def convolution(entering: int, leaving: int, stride: int = 1) -> list[nn.Module]:
            layer = nn.Conv2d(entering, leaving, 3, stride, padding=1, bias=False)
            return [layer, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]

        layers = [*convolution(3, width, 2), *convolution(width, 2 * width, 2)]
        self.encoder = nn.Sequential(*layers, *convolution(2 * width, 4 * width), *convolution(4 * width, 4 * width))
        self.centres, self.boxes = nn.Conv2d(4 * width, classes, 1), nn.Conv2d(4 * width, 4, 1)
        nn.init.constant_(self.centres.bias, -3.0)  # type: ignore[arg-type]

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores of centres before the sigmoid, and boxes."""
        features = self.encoder(images)
        offsets, sides = self.boxes(features).chunk(2, dim=1)
        return self.centres(features), torch.cat([offsets.sigmoid(), functional.softplus(sides)], dim=1)


def loss_of(found: tuple[torch.Tensor, torch.Tensor], objects: Objects) -> torch.Tensor:
    """Return the focal loss of centres, and the distance of boxes at the centres that there are."""
    scores, boxes = found
    _, classes, height, width = scores.shape
    rows, labels = objects["batch_idx"].to(DEVICE).long(), objects["cls"].to(DEVICE)[:, 0].long()
    real = objects["bboxes"].to(DEVICE) * torch.tensor([width, height, width, height], device=DEVICE)
    x, y = real[:, 0].long().clamp(max=width - 1), real[:, 1].long().clamp(max=height - 1)
    # The neighbours of a centre are no mistakes: how much so falls off with the distance, and with how small a box is.
    ys, xs = torch.arange(height, device=DEVICE)[:, None], torch.arange(width, device=DEVICE)
    spread = (real[:, 2:].amin(dim=1) / 6).clamp(min=0.5)[:, None, None]
    spots = torch.exp(-((xs - x[:, None, None]) ** 2 + (ys - y[:, None, None]) ** 2) / (2 * spread**2))
    wanted = torch.zeros_like(scores).flatten(0, 1)
    for plane, spot in zip((rows * classes + labels).tolist(), spots, strict=True):
        wanted[plane] = wanted[plane].maximum(spot)
    wanted, share = wanted.view_as(scores), scores.sigmoid()
    focal = torch.where(
        wanted == 1,
        (1 - share) ** 2 * functional.logsigmoid(scores),
        (1 - wanted) ** 4 * share**2 * functional.logsigmoid(-scores),
    )
    told = torch.cat([real[:, :2] - torch.stack([x, y], dim=1), real[:, 2:]], dim=1)
    apart = functional.smooth_l1_loss(boxes[rows, :, y, x], told, reduction="sum") / 4
    return (apart - focal.sum()) / max(len(real), 1)


@torch.no_grad()
def detected(model: nn.Module, images: torch.Tensor, most: int = 50) -> list[tuple[torch.Tensor, ...]]:
    """Return boxes (k, 4), centre and sides as shares, classes and scores: of centres above all their neighbours."""
    scores, boxes = (each.cpu() for each in model(images.to(DEVICE)))
    share = scores.sigmoid()
    share = share * (functional.max_pool2d(share, 3, 1, 1) == share)
    _, _, height, width = scores.shape
    best, places = share.flatten(1).topk(min(most, share[0].numel()))
    found: list[tuple[torch.Tensor, ...]] = []
    for own, at, row in zip(best, places, boxes, strict=True):
        labels, y, x = at // (height * width), at % (height * width) // width, at % width
        own_boxes = row[:, y, x].T + torch.stack([x, y, torch.zeros_like(x), torch.zeros_like(y)], dim=1)
        found.append((own_boxes / torch.tensor([width, height, width, height]), labels, own))
    return found


def mean_average_precision(model: nn.Module, loader: Loader, classes: int, least: float = 0.5) -> float:
    """Return the mean over classes of the area below precision and recall, where boxes agree by `least` at least."""
    hits: list[list[tuple[float, bool]]] = [[] for _ in range(classes)]
    there = torch.zeros(classes)
    model.eval()
    for images, objects in loader:
        own = objects["cls"][:, 0].long().cpu()
        there += torch.bincount(own, minlength=classes)
        for row, (boxes, labels, scores) in enumerate(detected(model, images)):
            of_row = objects["batch_idx"].cpu() == row
            overlaps = ious(boxes, objects["bboxes"].cpu()[of_row]) * (labels[:, None] == own[of_row])
            taken = torch.zeros(overlaps.shape[1], dtype=torch.bool)
            for place, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
                free = overlaps[place] * ~taken
                hit = len(free) > 0 and bool(free.max() >= least)
                if hit:
                    taken[free.argmax()] = True
                hits[label].append((score, hit))
    model.train()
    areas = []
    for own_hits, count in zip(hits, there.tolist(), strict=True):
        if count:
            ordered = np.array([hit for _, hit in sorted(own_hits, key=lambda each: -each[0])], np.float64)
            precision = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
            areas.append(float((np.maximum.accumulate(precision[::-1])[::-1] * ordered).sum() / count))
    return float(np.mean(areas)) if areas else 0.0


def ious(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of each of n boxes with each of m, centres and sides, (n, m)."""
    low = (one[:, :2] - one[:, 2:] / 2)[:, None].maximum(other[:, :2] - other[:, 2:] / 2)
    high = (one[:, :2] + one[:, 2:] / 2)[:, None].minimum(other[:, :2] + other[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(dim=2)
    return both / (one[:, 2:].prod(dim=1)[:, None] + other[:, 2:].prod(dim=1) - both).clamp(min=1e-9)


def train(
    options: argparse.Namespace, loaders: Sequence[partial[Loader]], val_loader: Loader, model: nn.Module, classes: int
) -> None:
    """Train, from the start or from a checkpoint, with one loader after the other; print a line for each epoch."""
    optimizer, begin = torch.optim.AdamW(model.parameters(), options.learning_rate), 0
    chosen = {name: getattr(options, name) for name in ("size", "batch_size", "reuse_factor", "seed")}
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=DEVICE, weights_only=True)
        if state["chosen"] != chosen:
            sys.exit(
                f"error: {options.checkpoint} is of {state['chosen']}, got {chosen}: pass the same, or another file"
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"]
    closing = max(options.epochs - options.close_mosaic, 0)
    for make, first, end in zip(loaders, (0, closing), (closing, options.epochs), strict=True):
        if max(first, begin) >= end:
            continue
        with make() as loader:
            loader.set_epoch(max(first, begin))
            for epoch in range(max(first, begin), end):
                before, losses = loader.stats(), []
                for images, objects in loader:
                    loss = loss_of(model(images.to(DEVICE, non_blocking=True)), objects)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    losses.append(loss.detach())
                done = loader.stats() - before
                found = mean_average_precision(model, val_loader, classes)
                print(
                    f"epoch {epoch}  {'mosaic' if end == closing else 'alone'}  loss {torch.stack(losses).mean():.4f}  "
                    f"hits {done.hits:,}  misses {done.misses:,}  mAP {found:.1%}",
                    flush=True,
                )
                if options.checkpoint:
                    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**parts, "epoch": epoch + 1, "chosen": chosen}, options.checkpoint)


def draw(folder: Path, count: int) -> tuple[Path, Path]:
    """Make images of discs and boxes of random colours, places and sizes; return their folder and that of objects."""
    from PIL import Image, ImageDraw

    rng, (images, labels) = np.random.default_rng(0), (folder / "images", folder / "labels")
    images.mkdir()
    labels.mkdir()
    for number in range(count):
        image, lines = Image.fromarray(rng.integers(0, 100, (96, 128, 3), np.uint8)), []
        for kind, shape in enumerate(("ellipse", "rectangle")):
            x, y, side = (int(each) for each in (rng.integers(0, 80), rng.integers(0, 50), rng.integers(20, 45)))
            colour = tuple(rng.integers(120, 256, 3).tolist())
            getattr(ImageDraw.Draw(image), shape)((x, y, x + side - 1, y + side - 1), fill=colour)
            lines.append(f"{kind} {(x + side / 2) / 128} {(y + side / 2) / 96} {side / 128} {side / 96}\n")
        image.save(images / f"{number}.png")
        (labels / f"{number}.txt").write_text("".join(lines))
    return images, labels


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    if bool(options.made) == bool(options.images and options.labels and options.names):
        sys.exit("error: pass --images, --labels and --names, or --made to try it with shapes that are drawn")
    torch.manual_seed(options.seed)
    with ExitStack() as stack:
        images, labels, names = options.images, options.labels, options.names
        if options.made:
            images, labels = draw(Path(stack.enter_context(tempfile.TemporaryDirectory())), options.made)
            names = ["disc", "box"]
        try:
            source = YoloFolder(images, labels, names=names, min_visible=0.1)
            held_out = np.arange(len(source)) % 10 == 9
            train_set, val_set = source.subset(~held_out), source.subset(held_out)
            planner = Refurbish(
                len(train_set), batch_size=options.batch_size, reuse_factor=options.reuse_factor, seed=options.seed
            )
            store, make = stack.enter_context(MemoryStore()), partial(Loader, target_form="ultralytics")
            recipes = [yolo(options.size, mosaic=mosaic) for mosaic in (True, False)]
            loaders = [partial(make, train_set, each, planner, store) for each in recipes]
            whole = Recipe([Decode(), Letterbox(options.size)], Output(options.size, mean=0.0, std=1.0))
            val_planner = Evaluate(len(val_set), batch_size=min(options.batch_size, len(val_set)))
            val_loader = stack.enter_context(make(val_set, whole, val_planner, MemoryStore()))
            train(options, loaders, val_loader, Detector(len(names)).to(DEVICE), len(names))
        except DalirefurbError as error:
            sys.exit(f"error: {error}")


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of images")
    add("--labels", type=Path, metavar="DIR", help="folder of text files of their objects, as YOLO's")
    add("--names", nargs="+", metavar="NAME", help="names of the classes")
    add("--made", type=int, metavar="N", help="shapes that are drawn in place of all three")
    add("--size", type=int, default=64, metavar="PIXELS", help="side of the images, a multiple of 8 (64)")
    add("--batch-size", type=int, default=16, metavar="N", help="images learned from at a time (16)")
    add("--reuse-factor", type=int, default=3, metavar="N", help="epochs in which a cached image is used (3)")
    add("--epochs", type=int, default=30, metavar="N", help="how often each image is served (30)")
    add("--close-mosaic", type=int, default=10, metavar="N", help="last epochs, which are without mosaics (10)")
    add("--learning-rate", type=float, default=2e-3, metavar="X", help="of AdamW (0.002)")
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
