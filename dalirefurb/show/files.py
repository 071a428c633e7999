"""Picture files: PNGs, written whole or not at all. Plots of plans need neither torch nor DALI."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.errors import ConfigurationError
from dalirefurb.source import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 4
"""Samples of a sheet, evenly spaced in the source."""

MOST_USES = 12
"""Of a version on a sheet; more would not fit."""


def write_pictures(path: Path, source: Source, recipe: Recipe, *, name: str, reuse_factor: int, seed: int = 0) -> None:
    """Show a few samples: the original, what is cached of two versions, and what is made from each.

    Args:
        path: Path of the PNG, which is replaced if it is there.
        source: Source of encoded images or arrays.
        recipe: Recipe for what is done to the images, with its split.
        name: Name of the recipe.
        reuse_factor: Uses of a version, 1 .. 12.
        seed: The run's seed.

    Raises:
        ConfigurationError: If `path` cannot be written.
    """
    from dalirefurb.show.pictures import take_pictures
    from dalirefurb.show.sheet import pictures_sheet

    samples = np.linspace(0, len(source) - 1, min(SAMPLES, len(source))).round().astype(int).tolist()
    pictures = take_pictures(source, recipe, samples, reuse_factor=reuse_factor, seed=seed)
    title = f"What is cached, and what the network sees:\n{name}, reuse factor {reuse_factor}"
    write(path, pictures_sheet(pictures, recipe, title=title, reuse_factor=reuse_factor))


def write_operations(path: Path, source: Source, *, preset: str, size: int) -> None:
    """Show what every operation of a preset does to the first sample.

    Args:
        path: Path of the PNG, which is replaced if it is there.
        source: Source of encoded images or arrays.
        preset: One of `operations.TABLES`.
        size: Side in pixels of the picture operated on; for arrays, it is their own side.

    Raises:
        ConfigurationError: If `path` cannot be written.
    """
    from dalirefurb.show.operations import TABLES, operate
    from dalirefurb.show.pictures import square_image
    from dalirefurb.show.sheet import operations_sheet

    layer, note = TABLES[preset]
    rows = operate(square_image(source, 0, size=size), layer)
    title = f"The operations of {preset}, over the ranges of their magnitudes"
    write(path, operations_sheet(rows, title=title, note=note))


def write(path: Path, figure: Figure) -> None:
    """Write a figure as a PNG, which is replaced if it is there.

    Raises:
        ConfigurationError: If `path` cannot be written.
    """
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    with _writing(path):
        is_new = not path.exists()
        try:
            path.write_bytes(content.getbuffer())
        except OSError:
            if is_new:
                path.unlink(missing_ok=True)
            raise


def check_writable(path: Path) -> None:
    """Find out whether a picture can be written, before it is made. Nothing is left there.

    Raises:
        ConfigurationError: If it cannot.
    """
    with _writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file():
            path.open("r+b").close()
        elif not os.path.lexists(path):
            path.open("xb").close()
            path.unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell of a path that cannot be written, or of a full disk, as what it is."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the picture's path must be writable and have room, but writing {path} fails: "
            f"{error.strerror or error}; name another with --out"
        ) from error
