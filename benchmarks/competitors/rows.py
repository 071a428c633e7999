"""What is each competitor? Its best settings to choose from, and its batches, written as its documentation shows.

All read the same files and do the same: decode, crop a random part and resize it with anti-aliasing, flip, two
layers of RandAugment with nearest interpolation, float32 (B, 3, size, size), normalised. Slipstream, FFCV, OpenCV and
albumentations have no RandAugment: they do what their rows' names end with. What is written once, before a first batch,
lies in the environment until other files are asked for.

An epoch has no end, or a million samples, so that but for two rows none waits at one for its workers to begin again.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import random
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Setting = dict[str, Any]

CROP_AND_FLIP = "crop and flip"
"""Ends the name of a row that does no more than this to a decoded image."""

WITH_MASKS = "with masks"
"""Ends the name of a row that serves masks, too; see `masks`."""

WITH_OBJECTS, ANNOTATIONS = "with objects", "instances.json"
"""Ends the name of a row that serves objects, too, see `objects`; and the name of the file that has these."""

MOSAIC = "mosaic of four"
"""Ends the name of a row that puts four photographs into one, with their boxes; see `mosaics`."""

VOLUMES = "volumes"
"""Ends the name of a row that serves cubes of volumes, with labels of their voxels; see `volumes`."""

NIFTI, MASK = ".nii.gz", "_mask.nii.gz"
"""Ends of the names of a volume and of its labels."""

CUBES, HOUNSFIELD, REPLACED = 4, (-57, 164), 0.1
"""Cubes of each volume; values that become 0 and 1; share of a window that is replaced after each round."""

SHORTER = (260, 1040)
"""Pixels that torchvision's reference for segmentation resizes the shorter side to, least and most."""

LONG_EPOCH = 1_000_000
"""Samples of an epoch, where one must have an end."""


WRITTEN_ONCE = "kept"
"""Folder in the environment for what competitors write before their first batch."""


@dataclass(frozen=True)
class Job:
    """What is asked of a competitor.

    Attributes:
        row: Its name in `ROWS`.
        files: Of the samples; repeated ones count as different.
        labels: One each.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        setting: One of the row's.
    """

    row: str
    files: Sequence[str]
    labels: Sequence[int]
    size: int
    batch_size: int
    setting: Setting


class Row(ABC):
    """A competitor."""

    packages: tuple[str, ...]
    resumes: str
    """How an interrupted epoch goes on: "exact" as if it had not been, "by sample" if augmented anew, "no" if not."""
    kept: str
    """From epoch to epoch: "nothing", "files" (encoded), "decoded images", "files or decoded images" (by setting)."""

    def missing(self) -> str | None:
        """Say why it cannot run here, None if it can."""
        return next(filter(None, map(why_not, self.packages)), None)

    @abstractmethod
    def settings(self, cores: int) -> list[Setting]:
        """List what is tried on so many cores."""

    @abstractmethod
    def made_ahead(self, setting: Setting) -> int:
        """Return how many batches can be ready, or under way, before they are asked for."""

    def rotation(self, setting: Setting) -> int:
        """Return after how many batches each worker has delivered as many as every other; 1 where all share each."""
        return 1

    @abstractmethod
    def batches(self, job: Job) -> Iterator[Any]:
        """Prepare what is made once; then yield the images of batch after batch, without end."""

    def close(self) -> None:  # noqa: B027
        """Let go of what does not end with the processes."""


def why_not(package: str) -> str | None:
    """Say why a package cannot be imported, None if it can."""
    failed = failure(partial(importlib.import_module, package))
    return failed and f"{package}: {failed}"


class Samples:
    """A map-style data set of (image, label)."""

    def __init__(
        self, files: Sequence[str], labels: Sequence[int], decode: Callable[[str], Any], transform: Callable[[Any], Any]
    ) -> None:
        self._files = files
        self._labels = labels
        self._decode = decode
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._transform(self._decode(self._files[index])), self._labels[index]


def from_one_to_two(cores: int) -> list[int]:
    """Return 1, 1.5 and 2 times as many."""
    return list(dict.fromkeys((cores, cores + (cores + 1) // 2, 2 * cores)))


def shuffled(count: int) -> Iterator[int]:
    """Yield shuffled indices, again and again."""
    for epoch in itertools.count():
        order = list(range(count))
        random.Random(epoch).shuffle(order)
        yield from order


def failure(attempt: Callable[[], object]) -> str | None:
    """Say what a function raises, None if it returns."""
    try:
        attempt()
    except Exception as error:  # whatever a package without its libraries raises
        return f"{type(error).__name__}: {error}"[:200]
    return None


def kept_folder(job: Job, kind: str) -> Path:
    """Return a folder for what is written once for the files of a job; that of other files is removed."""
    found = [(file, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in job.files]
    digest = hashlib.sha256(json.dumps([found, list(job.labels)]).encode()).hexdigest()[:16]
    folder = Path(sys.prefix) / WRITTEN_ONCE / kind / digest
    if not folder.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder
