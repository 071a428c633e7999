"""How is a detector trained, with boxes that move with their images, and judged in the images as they were?

Decoding and the scale jitter are cached and reused in three epochs; the crop and the flip are drawn afresh every time,
and boxes go where their images go. The network is a small CenterNet (Zhou et al., "Objects as Points", 2019): for each
class a map of objects' centres, and at each centre how far the sides of the box are. Copy this file, and put your own
data and network in.

    python detection.py --images train2017 --annotations instances_train2017.json
    python detection.py --made 300 --epochs 5      shapes that are drawn, to try it

Each epoch prints how many images were hits, from the cache, and misses, made from the start; and the mean average
precision at an intersection over union of 0.5, of boxes in pixels of the source's images.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dalirefurb import DalirefurbError, Evaluate, Loader, MemoryStore, Output, Recipe, Refurbish
from dalirefurb.augment import Decode, Letterbox
from dalirefurb.augment.published import large_scale_jitter
from dalirefurb.targets import CocoDetection

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRIDE = 4
"""Pixels of an image for each place of the maps."""

Target = Mapping[str, torch.Tensor]


class Detector(nn.Module):
    """Finds centres of objects, (B, classes, H / 4, W / 4), and how far sides are, in places, (B, 4, H / 4, W / 4)."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()

        def convolution(entering: int, leaving: int, stride: int = 1) -> list[nn.Module]:
            layer = nn.Conv2d(entering, leaving, 3, stride, padding=1, bias=False)
            return [layer, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]

        layers = [*convolution(3, width, 2), *convolution(width, 2 * width, 2)]
        self.encoder = nn.Sequential(*layers, *convolution(2 * width, 4 * width), *convolution(4 * width, 4 * width))
        self.centres, self.sides = nn.Conv2d(4 * width, classes, 1), nn.Conv2d(4 * width, 4, 1)
        nn.init.constant_(self.centres.bias, -3.0)  # type: ignore[arg-type]

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores of centres before the sigmoid, and distances to left, top, right and bottom."""
        features = self.encoder(images)
        return self.centres(features), functional.softplus(self.sides(features))


def loss_of(found: tuple[torch.Tensor, torch.Tensor], targets: Sequence[Target]) -> torch.Tensor:
    """Return the focal loss of centres, and the distance of sides at the centres that there are."""
    scores, sides = found
    wanted, loss, count = torch.zeros_like(scores), scores.new_zeros(()), 0
    _, _, height, width = scores.shape
    ys, xs = torch.arange(height, device=scores.device)[:, None] + 0.5, torch.arange(width, device=scores.device) + 0.5
    for row, target in enumerate(targets):
        boxes, labels = target["boxes"].to(scores) / STRIDE, target["labels"].to(scores.device)
        centres, extent = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        places = centres.long().clamp_min(0).minimum(torch.tensor([width - 1, height - 1], device=boxes.device))
        spread = (extent.min(dim=1).values / 6).clamp_min(0.5)[:, None, None]
        apart = (xs - places[:, 0, None, None] - 0.5) ** 2 + (ys - places[:, 1, None, None] - 0.5) ** 2
        for label, spot in zip(labels.tolist(), torch.exp(-apart / (2 * spread**2)), strict=True):
            wanted[row, label] = wanted[row, label].maximum(spot)
        middle = places + 0.5
        distances = torch.cat([middle - boxes[:, :2], boxes[:, 2:] - middle], dim=1)
        own = sides[row, :, places[:, 1], places[:, 0]].T
        loss = loss + functional.smooth_l1_loss(own, distances, reduction="sum") / 4
        count += len(boxes)
    share = scores.sigmoid()
    hit = wanted == 1
    focal = torch.where(
        hit,
        (1 - share) ** 2 * functional.logsigmoid(scores),
        (1 - wanted) ** 4 * share**2 * functional.logsigmoid(-scores),
    )
    return (loss - focal.sum()) / max(count, 1)


@torch.no_grad()
def detected(model: nn.Module, images: torch.Tensor, most: int = 50) -> list[tuple[torch.Tensor, ...]]:
    """Return boxes, xyxy in pixels, classes and scores of each image: of the highest centres among their neighbours."""
    scores, sides = model(images.to(DEVICE))
    share = scores.sigmoid()
    share = share * (functional.max_pool2d(share, 3, 1, 1) == share)
    _, _, height, width = scores.shape
    best, places = share.flatten(1).topk(min(most, share[0].numel()))
    found: list[tuple[torch.Tensor, ...]] = []
    for row, (own, at) in enumerate(zip(best.cpu(), places.cpu(), strict=True)):
        labels, y, x = at // (height * width), at % (height * width) // width, at % width
        left, top, right, bottom = sides[row].cpu()[:, y, x]
        x, y = x + 0.5, y + 0.5
        found.append((STRIDE * torch.stack([x - left, y - top, x + right, y + bottom], dim=1), labels, own))
    return found


def in_source(boxes: torch.Tensor, target: Target) -> torch.Tensor:
    """Return boxes of a served image in pixels of the source's image, cut off where that ends."""
    x, y = boxes[:, [0, 2, 2, 0]].double(), boxes[:, [1, 1, 3, 3]].double()
    back = torch.stack([x, y, torch.ones_like(x)], dim=-1) @ target["matrix"].cpu().T
    corners = back[..., :2] / back[..., 2:]
    height, width = target["source_size"].tolist()
    made = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    return made.clamp(min=0).minimum(torch.tensor([width, height, width, height]).double())


def mean_average_precision(model: nn.Module, loader: Loader, classes: int, least: float = 0.5) -> float:
    """Return the mean over classes of the area below precision and recall, where boxes agree by `least` at least."""
    hits: list[list[tuple[float, bool]]] = [[] for _ in range(classes)]
    there = torch.zeros(classes)
    model.eval()
    for images, targets in loader:
        for (boxes, labels, scores), target in zip(detected(model, images), targets, strict=True):
            real, own = in_source(target["boxes"].cpu(), target), target["labels"].cpu()
            there += torch.bincount(own, minlength=classes)
            overlaps = ious(in_source(boxes, target), real) * (labels[:, None] == own)
            taken = torch.zeros(len(real), dtype=torch.bool)
            for row, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
                free = overlaps[row] * ~taken
                hit = len(real) > 0 and bool(free.max() >= least)
                if hit:
                    taken[free.argmax()] = True
                hits[label].append((score, hit))
    model.train()
    areas = []
    for own_hits, count in zip(hits, there.tolist(), strict=True):
        if count:
            ordered = np.array([hit for _, hit in sorted(own_hits, key=lambda each: -each[0])], np.float64)
            right = np.cumsum(ordered)
            precision = np.maximum.accumulate((right / np.arange(1, len(right) + 1))[::-1])[::-1]
            areas.append(float((precision * ordered).sum() / count))
    return float(np.mean(areas)) if areas else 0.0


def ious(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of each of n boxes with each of m, (n, m)."""
    low, high = one[:, None, :2].maximum(other[:, :2]), one[:, None, 2:].minimum(other[:, 2:])
    both = (high - low).clamp(min=0).prod(dim=2)
    areas = [(each[:, 2:] - each[:, :2]).prod(dim=1) for each in (one, other)]
    return both / (areas[0][:, None] + areas[1] - both).clamp(min=1e-9)


def train(options: argparse.Namespace, loader: Loader, val_loader: Loader, model: nn.Module, classes: int) -> None:
    """Train, from the start or from a checkpoint; print a line for each epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=DEVICE, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for epoch in range(loader.epoch, options.epochs):
        before, losses = loader.stats(), []
        for images, targets in loader:
            loss = loss_of(model(images.to(DEVICE, non_blocking=True)), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
        done = loader.stats() - before
        found = mean_average_precision(model, val_loader, classes)
        print(
            f"epoch {epoch}  loss {torch.stack(losses).mean():.4f}  hits {done.hits:,}  misses {done.misses:,}  "
            f"mAP {found:.1%}",
            flush=True,
        )
        if options.checkpoint:
            torch.save({name: part.state_dict() for name, part in parts.items()}, options.checkpoint)


def draw(folder: Path, count: int) -> tuple[Path, Path]:
    """Make images of discs and boxes of random colours, places and sizes; return their folder and their annotations."""
    from PIL import Image, ImageDraw

    rng, (images, annotations) = np.random.default_rng(0), (folder / "images", folder / "instances.json")
    images.mkdir()
    made: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    made["categories"] = [{"id": number, "name": name} for number, name in ((1, "disc"), (2, "box"))]
    for number in range(count):
        image = Image.fromarray(rng.integers(0, 100, (96, 128, 3), np.uint8))
        for kind, shape in ((1, "ellipse"), (2, "rectangle")):
            x, y, side = (int(each) for each in (rng.integers(0, 80), rng.integers(0, 50), rng.integers(20, 45)))
            colour = tuple(rng.integers(120, 256, 3).tolist())
            getattr(ImageDraw.Draw(image), shape)((x, y, x + side - 1, y + side - 1), fill=colour)
            own = {"id": len(made["annotations"]) + 1, "image_id": number, "category_id": kind, "iscrowd": 0}
            made["annotations"].append({**own, "bbox": [x, y, side, side], "area": side * side})
        made["images"].append({"id": number, "file_name": f"{number}.png", "height": 96, "width": 128})
        image.save(images / f"{number}.png")
    annotations.write_text(json.dumps(made))
    return images, annotations


def main(arguments: Sequence[str] | None = None) -> None:
    """Put data, loaders and model together, and train."""
    options = parser().parse_args(arguments)
    if bool(options.made) == bool(options.images and options.annotations):
        sys.exit("error: pass --images and --annotations, or --made to try it with shapes that are drawn")
    torch.manual_seed(options.seed)
    with ExitStack() as stack:
        images, annotations = options.images, options.annotations
        if options.made:
            images, annotations = draw(Path(stack.enter_context(tempfile.TemporaryDirectory())), options.made)
        try:
            source = CocoDetection(images, annotations, contiguous=True, min_visible=0.3)
            classes = len(source.categories or ())
            held_out = np.arange(len(source)) % 10 == 9
            train_set, val_set = source.subset(~held_out), source.subset(held_out)
            planner = Refurbish(
                len(train_set), batch_size=options.batch_size, reuse_factor=options.reuse_factor, seed=options.seed
            )
            val_planner = Evaluate(len(val_set), batch_size=min(options.batch_size, len(val_set)))
            recipe = large_scale_jitter(options.size, scale=(0.5, 1.5), margin=options.size // 8)
            whole = Recipe([Decode(), Letterbox(options.size)], Output(options.size, mean=0.0, std=1.0))
            loader = stack.enter_context(Loader(train_set, recipe, planner, MemoryStore()))
            val_loader = stack.enter_context(Loader(val_set, whole, val_planner, MemoryStore()))
            train(options, loader, val_loader, Detector(classes).to(DEVICE), classes)
        except DalirefurbError as error:
            sys.exit(f"error: {error}")


def parser() -> argparse.ArgumentParser:
    """Say what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--images", type=Path, metavar="DIR", help="folder of images")
    add("--annotations", type=Path, metavar="FILE", help="file in COCO's format that has their objects")
    add("--made", type=int, metavar="N", help="shapes that are drawn in place of both")
    add("--size", type=int, default=64, metavar="PIXELS", help="side of the images, a multiple of 8 (64)")
    add("--batch-size", type=int, default=16, metavar="N", help="images learned from at a time (16)")
    add("--reuse-factor", type=int, default=3, metavar="N", help="epochs in which a cached image is used (3)")
    add("--epochs", type=int, default=10, metavar="N", help="how often each image is served (10)")
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
