"""Samples that scripts load: photographs from files, CIFAR-10 from mosaics, and any of them behind a slow line."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import Arrays, FileList, ImageFolder, Loader, Prefetch, Standard, evaluate
from dalirefurb.source import Source

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Of CIFAR-10, by channel."""

SIDE = 32
"""Of its images, in pixels."""

MEMORY = "/dev/shm"
"""Where files are in memory."""

_APART_S = 0.2
"""After which nobody comes any more who was in line."""

AT_ONCE = 500
"""Images that pass a network at once when nothing is learned."""


def repeated(data: Path, num_samples: int) -> FileList:
    """Repeat a folder's images until there are `num_samples`."""
    folder = ImageFolder(data)
    rows = [index % len(folder) for index in range(num_samples)]
    return FileList([folder.name(row) for row in rows], folder.labels[rows])


def listed(source: FileList) -> tuple[list[str], list[int]]:
    """Return the files of a source, and their labels."""
    return [source.name(index) for index in range(len(source))], source.labels.tolist()


def read_mosaics(folder: Path, part: str, per_class: int) -> Arrays:
    """Read the first images of each class from the mosaics of "train" or "test"."""
    images, labels = [], []
    for path in sorted(folder.glob(f"{part}_[0-9]_*.webp")):
        with Image.open(path) as mosaic:
            pixels = np.asarray(mosaic.convert("RGB"))
        rows = pixels.reshape(-1, SIDE, pixels.shape[1] // SIDE, SIDE, 3).swapaxes(1, 2)  # of images
        images.append(rows.reshape(-1, SIDE, SIDE, 3)[:per_class])
        labels.append(np.full(len(images[-1]), int(path.name.split("_")[1])))
    return Arrays(np.concatenate(images), np.concatenate(labels))


def whole(source: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Serve every sample of CIFAR-10 once, normalised; return images and labels in the order of their indices."""
    planner = Standard(len(source), batch_size=min(AT_ONCE, len(source)))
    images = torch.empty(len(source), 3, SIDE, SIDE)
    labels = torch.empty(len(source), dtype=torch.int64)
    recipe = evaluate(SIDE, raw=True, mean=MEAN, std=STD)
    with Loader(source, recipe, planner, prefetch=Prefetch(num_threads=1, look_ahead=1), with_indices=True) as loader:
        for some, classes, indices in loader:
            images[indices], labels[indices] = some, classes
    return images, labels


class Line:
    """A line of limited bandwidth, in which all threads wait, one behind the other, and which computes nothing.

    Args:
        wait_s: Seconds a sample.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, samples: int = 1) -> None:
        """Wait in line, then as long as so many samples take."""
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + samples * self._wait_s
            arrival = self._free_at
        time.sleep(max(0.0, arrival - time.perf_counter()))

    def rest(self) -> None:
        """Wait until nobody is in line: who is closed leaves it no sooner."""
        while (left_s := self._free_at - time.perf_counter()) > -_APART_S:
            time.sleep(max(_APART_S, left_s))


class SlowSource(Source):
    """Another source behind a line.

    Args:
        source: Whose samples.
        wait_s: Seconds a sample, however many threads read.
    """

    def __init__(self, source: Source, wait_s: float) -> None:
        self._source = source
        self.line = Line(wait_s)
        self.labels = source.labels
        self.encoded = source.encoded
        self.image_shape = source.image_shape
        self.classes = source.classes

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Wait in line for them, and return them."""
        self.line.wait(len(indices))
        return [*self._source.read(indices)]

    def name(self, index: int) -> str:
        """Tell where sample `index` is, for messages."""
        return self._source.name(index)

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples; waiting does not change them."""
        return self._source.fingerprint()
