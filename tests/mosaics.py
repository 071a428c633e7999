"""Writes mosaics of small images, as CIFAR-10 is stored for the benchmarks: noise, whose brightness tells the label."""

from pathlib import Path

import numpy as np
from PIL import Image

Grid = tuple[int, int]
"""Images of a column and of a row."""


def write_mosaics(folder: Path, *, train: Grid, test: Grid) -> Path:
    """Write two mosaics for each of ten labels into a new folder."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for label in range(10):
        for part, (rows, columns) in (("train", train), ("test", test)):
            mosaic = rng.integers(0, 60, (32 * rows, 32 * columns, 3), np.uint8) + 20 * label
            Image.fromarray(mosaic.astype(np.uint8)).save(folder / f"{part}_{label}_name.webp", lossless=True)
    return folder
