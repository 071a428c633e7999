"""Picture files: PNGs, one for each question. Plots of plans need neither torch nor DALI."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.checks import integer
from dalirefurb.errors import ConfigurationError
from dalirefurb.show.packages import require
from dalirefurb.show.plans import Comparison, History
from dalirefurb.source import Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 4
"""Samples of a sheet, evenly spaced in the source."""

MOST_USES = 12
"""Of a version on a sheet; more would not fit."""

_DPI = 100


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
        ConfigurationError: If Pillow is missing, an argument cannot work or `path` cannot be written.
    """
    require("a sheet of pictures", "Pillow")
    integer("reuse_factor", reuse_factor, 1, MOST_USES, "2 or 3 is usual, and more would not fit into a picture")
    from dalirefurb.show.pictures import take_pictures
    from dalirefurb.show.sheet import pictures_sheet

    samples = np.linspace(0, len(source) - 1, min(SAMPLES, len(source))).round().astype(int).tolist()
    pictures = take_pictures(source, recipe, samples, reuse_factor=reuse_factor, seed=seed)
    title = f"What is cached, and what the network sees: {name}, reuse factor {reuse_factor}"
    sheet = pictures_sheet(pictures, recipe, title=title, reuse_factor=reuse_factor)
    _write_png(path, lambda file: sheet.save(file, "PNG"))


def write_operations(path: Path, source: Source, *, preset: str, size: int) -> None:
    """Show what every operation of a preset does to the first sample.

    Args:
        path: Path of the PNG, which is replaced if it is there.
        source: Source of encoded images or arrays.
        preset: One of `operations.TABLES`.
        size: Side in pixels of the picture operated on; for arrays, it is their own side.

    Raises:
        ConfigurationError: If Pillow is missing, the preset has no operations or `path` cannot be written.
    """
    require("a sheet of pictures", "Pillow")
    from dalirefurb.show.operations import operate, table_of
    from dalirefurb.show.pictures import square_image
    from dalirefurb.show.sheet import operations_sheet

    table = table_of(preset)
    rows = operate(square_image(source, 0, size=size), table)
    sheet = operations_sheet(
        rows, title=f"The operations of {preset}, over the ranges of their magnitudes", note=table.note
    )
    _write_png(path, lambda file: sheet.save(file, "PNG"))


def write_plan(path: Path, comparison: Comparison) -> None:
    """Show where the misses are.

    Args:
        path: Path of the PNG, which is replaced if it is there.
        comparison: The misses that were planned in each of the three ways.

    Raises:
        ConfigurationError: If matplotlib is missing or `path` cannot be written.
    """
    require("a plot", "matplotlib")
    from dalirefurb.show.plots import plan_plot

    write_plot(path, plan_plot(comparison))


def write_history(path: Path, history: History, *, title: str) -> None:
    """Show what a planner computes, what it takes from the cache, and how often it serves a sample.

    Args:
        path: Path of the PNG, which is replaced if it is there.
        history: What the planner planned, epoch by epoch.
        title: The planner in words.

    Raises:
        ConfigurationError: If matplotlib is missing or `path` cannot be written.
    """
    require("a plot", "matplotlib")
    from dalirefurb.show.plots import history_plot

    write_plot(path, history_plot(history, title=title))


def write_plot(path: Path, figure: Figure) -> None:
    """Write a PNG, replaced if it is there.

    Raises:
        ConfigurationError: If `path` cannot be written.
    """
    _write_png(path, lambda file: figure.savefig(file, format="png", dpi=_DPI))


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


def _write_png(path: Path, save: Callable[[BinaryIO], object]) -> None:
    """Write a picture whole or not at all, if it is new."""
    content = io.BytesIO()
    save(content)
    with _writing(path):
        is_new = not path.exists()
        try:
            path.write_bytes(content.getbuffer())
        except OSError:
            if is_new:
                path.unlink(missing_ok=True)
            raise


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
