"""A folder in which a third of the files is bad, each in another way, and what is to be served from it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb import FileList, ImageFolder, rng
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.dali import Graph, Replica, undecodable
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.formats import as_pnm
from dalirefurb.reading.inspector import Inspector
from dalirefurb.source import Source
from dalirefurb.source.levels import Levels
from tests.pictures import encode, jpeg, picture, write_folder

NUM_SAMPLES = 24
MAX_PIXELS = 60_000
BAD = {
    2: "missing",
    5: "text",
    6: "JPEG cut short",
    9: "PNG damaged",
    10: "PNG damaged",
    13: "too large",
    17: "empty",
    20: "TIFF cut short",
}
CONTENT_IS_BAD = {index for index, kind in BAD.items() if kind not in ("missing", "empty")}

Batches = list[tuple[torch.Tensor, ...]]


def encoded(format_: str, *, seed: int = 0) -> bytes:
    return encode(picture(seed, height=60, width=80), format_)


def bad_content(kind: str) -> bytes:
    """Only the graph notices a PNG that is damaged; of a TIFF the windows above the cut could be decoded."""
    good, png = jpeg(picture(0, height=60, width=80)), encoded("PNG")
    start = png.index(b"IDAT") + 90
    return {
        "text": b"<html>404</html>",
        "JPEG cut short": good[: len(good) // 2],
        "header cut short": good[:100],
        "PNG damaged": png[:start] + bytes(200) + png[start + 200 :],
        "WebP cut short": encoded("WEBP")[:-300],
        "TIFF cut short": encoded("TIFF")[:-3000],
        "too large": jpeg(picture(0, height=300, width=201)),
        "empty": b"",
    }[kind]


def spoil(path: Path, kind: str) -> None:
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(bad_content(kind))


def among_good_ones(folder: Path, content: bytes) -> FileList:
    """Write three files, of which the second is this one."""
    folder.mkdir(exist_ok=True)
    paths = [folder / str(number) for number in range(3)]
    for path, each in zip(paths, (encoded("JPEG", seed=0), content, encoded("PNG", seed=2)), strict=True):
        path.write_bytes(each)
    return FileList(paths, range(3))


def write_bad_folder(root: Path) -> ImageFolder:
    """Write the samples; labels are classes."""
    source = ImageFolder(write_folder(root, num_samples=NUM_SAMPLES))
    for index, kind in BAD.items():
        spoil(Path(source.name(index)), kind)
    return source


def replacement(planner: Planner, index: int, version: int, bad: set[int]) -> int:
    """Draw samples of the shard until one is good."""
    if index not in bad:
        return index
    (shard,) = planner.owners(np.array([index])).tolist()
    owned = planner.members(shard, np.arange(planner.shard_samples[shard]))
    (numbers,) = rng.uniforms(planner.seed, "replacement", np.array([index]), np.array([version]), 128)
    return next(each for each in (int(owned[int(number * len(owned))]) for number in numbers) if each not in bad)


def files_of(samples: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Write what Pillow has decoded as DALI is given it."""
    return [as_pnm(sample) if sample.ndim == 3 else sample for sample in samples]


def expected(source: Source, recipe: Recipe, planner: Planner, *, epochs: int, bad: set[int]) -> Batches:
    """Compute images, labels and indices row by row: each is the image of what replaces it, drawn as sample -1 - i."""
    replica = _replica(recipe)
    batches: Batches = []
    for epoch in range(epochs):
        for plan in planner.epoch(epoch):
            shown = np.array(
                [
                    replacement(planner, *pair, bad)
                    for pair in zip(plan.indices.tolist(), plan.version.tolist(), strict=True)
                ]
            )
            drawn = np.array(
                [index if index == j else -1 - index for index, j in zip(plan.indices, shown, strict=True)]
            )
            inspector, samples = Inspector(len(shown), max_pixels=None, levels=Levels()), list(source.read(shown))
            as_read, rows = list(samples), np.arange(len(shown))
            inspector.look(rows, samples)
            for row, reason in undecodable(files_of(samples)):
                inspector.give_up(row, row, samples[row], reason)
            heights, widths = inspector.look(rows, as_read)
            feeds: dict[str, list[NDArray[np.uint8]] | NDArray[np.generic]] = {"sample": files_of(as_read)}
            for stages, numbers in ((recipe.partial, plan.version), (recipe.final, plan.serving)):
                arrays, heights, widths = draw(
                    stages,
                    seed=planner.seed,
                    indices=drawn,
                    numbers=numbers,
                    heights=heights,
                    widths=widths,
                    versions=plan.version,
                )
                feeds |= {f"{stage}/{name}": rows for stage, named in arrays.items() for name, rows in named.items()}
            replica.submit(feeds)
            images = torch.from_numpy(np.array(replica.collect().as_tensor()))
            batches.append((images, torch.from_numpy(source.labels[shown]), torch.from_numpy(shown)))
    return batches


def assert_same(wanted: Batches, served: Batches) -> None:
    assert len(wanted) == len(served)
    for number, (batch, other) in enumerate(zip(wanted, served, strict=True)):
        for name, values, others in zip(("images", "labels", "indices"), batch, other, strict=True):
            assert torch.equal(values, others), f"{name} of batch {number}"


@lru_cache(maxsize=16)
def _replica(recipe: Recipe) -> Replica:
    graph = Graph(recipe.at(1) if recipe.caches_encoded else recipe, "whole")
    return Replica.of(graph, graph.serialize(max_batch_size=64, num_threads=1), num_threads=1, device_id=None)
