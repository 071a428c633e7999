"""Small samples, written and read: by a store in batches, and by a file each.

    write   all of them
    warm    read all in a random order, from the page cache
    cold    the same from the disk, three times: what it gives at once varies

A store reads as a loader has it read, told beforehand what comes; whoever reads a file each reads one after the other.
An .npy file tells the shape of its sample, as a store does. Files of bare pixels, which tell nothing, are the least
that can be done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from claims import Claim, Spread, claim_table, say, table
from numpy.typing import NDArray
from page_cache import StoreReads, Usage, drop

from dalirefurb.planning import Frozen
from dalirefurb.store import DiskStore, StoreSpec

STORE = "DiskStore"
FILES = "a file of bare pixels each"
ARRAYS = "an .npy file each"
STEPS = ("write", "warm", "cold")
LEAST_GAIN = 20.0

_BATCH_SIZE = 256
_COLD_READS = 3

Images = NDArray[np.uint8]
"""Samples, shape (n, H, W, C)."""


class Keeper:
    """Whoever keeps samples in a folder.

    Args:
        folder: Which, empty.
        images: The samples.
    """

    def __init__(self, folder: Path, images: Images) -> None:
        self._planner = Frozen(len(images), batch_size=min(_BATCH_SIZE, len(images)))

    def write(self, images: Images) -> None:
        """Write all samples."""
        raise NotImplementedError

    def read(self) -> None:
        """Read all samples, each time in another order."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is open."""


class OneFile(Keeper):
    """All samples in one store."""

    def __init__(self, folder: Path, images: Images) -> None:
        super().__init__(folder, images)
        height, width, channels = images.shape[1:]
        self._store = DiskStore(folder / "store")
        self._store.open(StoreSpec((height, width, channels), len(images), {}))
        self._reads = StoreReads(STORE, self._store, self._planner)

    def write(self, images: Images) -> None:
        """Write batch after batch."""
        indices = np.arange(len(images))
        for start in range(0, len(images), _BATCH_SIZE):
            rows = indices[start : start + _BATCH_SIZE]
            self._store.put(rows, np.zeros_like(rows), list(images[start : start + _BATCH_SIZE]))

    def read(self) -> None:
        """Read batch after batch."""
        with self._reads.turn() as contender:
            for _ in islice(contender.batches, len(self._planner)):
                pass

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class FileEach(Keeper):
    """Each sample in a file of its own: its pixels, and nothing else."""

    def __init__(self, folder: Path, images: Images) -> None:
        super().__init__(folder, images)
        self._paths = [folder / f"{index:06d}.npy" for index in range(len(images))]
        self._shape = images.shape[1:]
        self._epoch = 0

    def write(self, images: Images) -> None:
        """Write file after file."""
        for path, image in zip(self._paths, images, strict=True):
            self._save(path, image)

    def read(self) -> None:
        """Read file after file."""
        self._epoch += 1
        for plan in self._planner.epoch(self._epoch):
            for index in plan.indices.tolist():
                self._load(self._paths[index])

    def _save(self, path: Path, image: Images) -> None:
        path.write_bytes(image.tobytes())

    def _load(self, path: Path) -> Images:
        return np.frombuffer(path.read_bytes(), np.uint8).reshape(self._shape)


class ArrayEach(FileEach):
    """Each sample in a file of its own, as NumPy writes arrays."""

    def _save(self, path: Path, image: Images) -> None:
        np.save(path, image)

    def _load(self, path: Path) -> Images:
        array: Images = np.load(path)
        return array


KEEPERS: dict[str, Callable[[Path, Images], Keeper]] = {STORE: OneFile, FILES: FileEach, ARRAYS: ArrayEach}


def _step(work: Callable[[], None], keeper: str, name: str, number: int, images: Images) -> dict[str, Any]:
    """Do it, and look at the clock: microseconds a sample, and bytes fetched from the disk for each byte of samples."""
    before, began = Usage.now(0), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - began, Usage.now(len(images)) - before
    scale = 1e6 / len(images)
    return {
        "keeper": keeper,
        "name": name,
        "round": number,
        "us": scale * seconds,
        "cpu_us": scale * used.cpu_s,
        "from_disk": used.disk_bytes / images.nbytes,
    }


def compare_small(images: Images, folder: Path, *, rounds: int) -> dict[str, Any]:
    """Let all take turns, each time in an empty folder."""
    steps: list[dict[str, Any]] = []
    for number in range(rounds):
        for name in list(KEEPERS) if number % 2 == 0 else reversed(KEEPERS):
            with TemporaryDirectory(dir=folder) as own:
                steps += _turn(name, images, Path(own), number)

    def taken(keeper: str, name: str, figure: str = "us") -> list[float]:
        return [step[figure] for step in steps if (step["keeper"], step["name"]) == (keeper, name)]

    claims = []
    for files in (FILES, ARRAYS):
        for name in STEPS:
            least = LEAST_GAIN if files == ARRAYS and name != "write" else None
            claims.append(Claim.ratio(f"{name}: {STORE} / {files}", taken(files, name), taken(STORE, name), least))
    figures = {"us": "us a sample", "cpu_us": "CPU us a sample", "from_disk": "from disk"}
    rows = [
        [f"{keeper}, {name}", *(f"{Spread.of(taken(keeper, name, figure)):1}" for figure in figures)]
        for keeper in KEEPERS
        for name in STEPS
    ]
    heading = f"{len(images)} samples of {images[0].nbytes} B"
    say(table([heading, *figures.values()], rows), claim_table(claims))
    return {"num_samples": len(images), "sample_bytes": images[0].nbytes, "claims": claims, "steps": steps}


def _turn(name: str, images: Images, folder: Path, number: int) -> list[dict[str, Any]]:
    with closing(KEEPERS[name](folder, images)) as keeper:
        steps = [_step(lambda: keeper.write(images), name, "write", number, images)]
        steps.append(_step(keeper.read, name, "warm", number, images))
        os.sync()
        for _ in range(_COLD_READS):
            drop(folder.iterdir())
            steps.append(_step(keeper.read, name, "cold", number, images))
    return steps
