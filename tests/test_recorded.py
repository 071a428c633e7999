"""What seeds, fingerprints, states and stores mean is what was recorded, some of it of earlier versions.

Where a test here fails a change has broken what users have: raise the planner's or the stage's `code_version`, or the
kernels' `VERSION`, say so in CHANGELOG.md, and record anew by `python -m tests.test_recorded`. What is new is recorded
before a release; until then it may still change. The store, the state and the batches are of an earlier version, and
are only replaced when `VERSION` is raised.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dalirefurb import (
    Arrays,
    Concat,
    DiskStore,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Recipe,
    Refurbish,
    TarShards,
    TorchDataset,
    Volumes,
)
from dalirefurb.augment import Custom, HostStage, KernelStage, Stage
from dalirefurb.augment.presets import auto_augment, evaluate, rand_augment, simple, timm_augment, trivial_augment
from dalirefurb.augment.stage import Arrays as Drawn
from dalirefurb.augment.stage import draw
from dalirefurb.kernels import VERSION
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.views import Views
from dalirefurb.targets import Annotated, Boxes
from dalirefurb.testing.stage import kernel_maker
from tests.augment.test_published import PRESETS
from tests.planners import KINDS, digest
from tests.stages import held

RECORDED = Path(__file__).with_name("golden")
STORE, SERVED = RECORDED / "store.bin.gz", RECORDED / "served.json"
FOUR: dict[str, Callable[..., Recipe]] = {
    preset.__name__: preset for preset in (rand_augment, auto_augment, trivial_augment, timm_augment)
}
"""Recipes whose first batches are recorded."""

DIGITS = 5
"""Significant ones of drawn numbers: sines and powers differ in the last bits between processors."""

OF_USERS = (Custom, HostStage, KernelStage)
"""What these make is the user's."""


def digest_of(*arrays: Any) -> str:
    values = blake2b(digest_size=8)
    for array in arrays:
        values.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    return values.hexdigest()


def rounded(values: NDArray[Any]) -> NDArray[Any]:
    """Round numbers to the digits that all processors agree on; whole ones stay."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(divide="ignore"):
        places = np.where(values, DIGITS - 1 - np.floor(np.log10(np.abs(values.astype(np.float64)))), 0)
    return np.asarray(np.rint(values * 10.0**places), np.int64)


def plans() -> dict[str, Any]:
    """Fingerprints and plans of planners of every kind, with one set of arguments and with all of them changed."""
    planners: dict[str, Planner] = {
        "Views": Views(Refurbish(24, batch_size=4, reuse_factor=2), views=2),
        "Views, all else": Views(Refurbish(25, batch_size=2, reuse_factor=3, shards=2, seed=1), views=3),
    }
    for kind, tried in KINDS.items():
        planners[kind.__name__] = kind(**tried.arguments)
        planners[f"{kind.__name__}, all else"] = kind(**{**tried.arguments, **tried.changes})
    return {
        name: {"fingerprint": json.loads(json.dumps(planner.fingerprint())), "epochs": digest(planner, range(5))}
        for name, planner in planners.items()
    }


def cases() -> Iterator[tuple[str, Stage]]:
    for kind, stages in held().items():
        if not issubclass(kind, OF_USERS):
            yield from ((f"{kind.__name__} {number}", stage) for number, stage in enumerate(stages))


def drawn_for(stage: Stage, rows: int) -> tuple[tuple[int, int], Drawn]:
    """Return the first of some sizes that a stage takes, and what it draws for images of that."""
    sizes = [
        np.full((2, rows), np.array(size)[:, None]) for size in ((97, 131), (64, 64), (41, 41), (40, 40), (32, 32))
    ]
    heights, widths = next(size for size in sizes if stage.refusal(*size) is None)
    indices = np.arange(rows)
    numbers = {"indices": indices, "numbers": indices % 5, "versions": indices % 5}
    drawn, *_ = draw((stage,), seed=3, heights=heights, widths=widths, **numbers)
    return (heights[0], widths[0]), drawn.get(stage.name, {})


def stages() -> dict[str, Any]:
    """Fingerprints of stages, and what they draw for images of one size."""
    made = {}
    for name, stage in cases():
        _, drawn = drawn_for(stage, rows=200)
        values = [rounded(drawn[each]) for each in sorted(drawn)]
        made[name] = {"fingerprint": json.loads(json.dumps(stage.fingerprint())), "drawn": digest_of(*values)}
    return made


def recipes() -> dict[str, Any]:
    """Fingerprints of all presets, with their outputs and splits, as digests; those of stages are told above."""
    made = {preset.__name__: preset() for preset in (simple, evaluate, *FOUR.values())} | PRESETS
    return {
        name: blake2b(json.dumps(each.fingerprint()).encode(), digest_size=8).hexdigest() for name, each in made.items()
    }


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """An image with gradients, edges and fine structure, by whole numbers alone."""
    row, column, channel = np.ogrid[:height, :width, :3]
    levels = row * 3 + column * (4 - channel) + row * column // 7 + 40 * channel + 90 * ((row // 16 + column // 16) % 2)
    return (30 + (levels & 255) * 3 // 4).astype(np.uint8)  # With room for what stretches levels.


def pixels() -> dict[str, str]:
    """What kernels make of an image, of nine draws each."""
    made = {}
    for name, stage in cases():
        maker = None if stage.partners else kernel_maker(stage)
        if maker is not None:
            size, drawn = drawn_for(stage, rows=9)
            images = maker([picture(*size)] * 9, drawn)
            made[name] = digest_of(*(part for image in images for part in (image.shape, image)))
    return made


def sources() -> dict[str, Any]:
    """Fingerprints of sources, which stores and states have: of files wherever they lie, that are not read."""
    images, names = [picture(6, 7 + number) for number in range(3)], ["cat/1.png", "cat/2.png", "dog/3.jpg"]
    labels, volumes = np.arange(3), [picture(4, 5 + number).transpose(2, 0, 1) for number in range(3)]
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in names]
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"any")
        with tarfile.open(Path(folder, "some.tar"), "w") as tar:
            for number, name in enumerate(("1.png", "1.cls", "2.png", "2.cls")):
                member = tarfile.TarInfo(name)
                member.size = len(text := f"{number}{name}"[: 1 + number // 2].encode())
                tar.addfile(member, io.BytesIO(text))
        listed = FileList(files, ["b", "a", "b"])
        made = {
            "Arrays": Arrays(np.stack([picture(6, 7)] * 3), labels),
            "FileList": listed,
            "ImageFolder": ImageFolder(folder),
            "TarShards": TarShards(Path(folder, "some.tar")),
            "TorchDataset": TorchDataset(list(zip(images, labels + 0.5, strict=True))),
            "Subset": listed.subset([2, 0]),
            "Concat": Concat([listed, listed.subset([1])]),
            "Annotated": Annotated(listed, {"boxes": Boxes([[[0, 1, 2, 3]], [], [[1, 1, 2, 2], [0, 0, 4, 4]]])}),
            "Volumes": Volumes(volumes, labels=labels),
            "Volumes, masks": Volumes(volumes, [each > 90 for each in volumes]),
            "Volumes, files": Volumes(files, files[::-1]),
            "Volumes, load": Volumes([{"row": row} for row in range(3)], load=lambda item: volumes[item["row"]]),
            "Volumes, all else": Volumes(
                range(3), load=lambda row: {"a": volumes[row], "b": volumes[row] > 90}, keys=("a", "b"), revision=2
            ),
        }
        return {name: json.loads(json.dumps(source.fingerprint())) for name, source in made.items()}


RECORDS = {"plans": plans, "stages": stages, "recipes": recipes, "pixels": pixels, "sources": sources}


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_what_was_recorded(name: str) -> None:
    if name == "pixels":
        pytest.importorskip("numba", reason="Numba is not installed")
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    made = RECORDS[name]()
    assert {each: made.get(each) for each in recorded} == recorded


def loader(recipe: Recipe, store: MemoryStore | DiskStore) -> Loader:
    number, row, column, channel = np.ogrid[:12, :40, :48, :3]
    levels = row * (3 + number) + column * (5 - channel) + row * column // 7 + 40 * channel + 17 * number
    source = Arrays((levels & 255).astype(np.uint8), np.arange(12))
    return Loader(source, recipe, Refurbish(12, batch_size=4, reuse_factor=2, seed=5), store)


def endless(loader: Loader) -> Iterator[str]:
    while True:
        yield from (digest_of(*batch) for batch in loader)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was recorded of an earlier version; what else is installed counts as what was there."""
    pytest.importorskip("numba", reason="Numba is not installed")
    recorded: dict[str, Any] = json.loads(SERVED.read_text())
    there = recorded["state"]["fingerprint"]["versions"]
    monkeypatch.setattr("dalirefurb.engine.configuration.versions", lambda: there)
    assert recorded["state"]["fingerprint"]["kernels"] == f"numba {VERSION}", "record a store of this VERSION"
    return recorded


@pytest.mark.parametrize("preset", FOUR)
def test_batches_are_those_of_an_earlier_version(served: dict[str, Any], preset: str) -> None:
    with closing(loader(FOUR[preset](24).for_arrays(), MemoryStore())) as made:
        assert list(islice(endless(made), 24)) == served["batches"][preset]


def test_a_store_and_a_state_of_an_earlier_version_are_gone_on_with(served: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "store.bin").write_bytes(gzip.decompress(STORE.read_bytes()))
    with closing(loader(rand_augment(24).for_arrays(), DiskStore(tmp_path / "store.bin"))) as made:
        made.load_state_dict(served["state"])
        assert list(islice(endless(made), 17)) == served["batches"]["rand_augment"][7:]
        stats = made.stats()
    assert stats.recomputed == 0
    assert stats.hits + stats.misses == 17 * 4
    assert stats.misses == served["misses"]


if __name__ == "__main__":
    for name, record in RECORDS.items():
        (RECORDED / f"{name}.json").write_text(json.dumps(record(), indent=1) + "\n")
