"""KernelCall: a call of a compiled kernel for each image, as a stage asks for it; see `Stage.kernel_calls`.

Kernels are functions of `dalirefurb.kernels.pixels`, called by name, such as "warp.nearest". Each is given an image and
the numbers that a call's `write` makes of what the stage has drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNTOUCHED = -1
"""In place of a kernel: the image stays as it is."""

Parameters = Mapping[str, NDArray[Any]]
"""What a stage drew, by name; see `Stage.draw`."""

Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Heights and widths in pixels, each of shape (n,)."""

Numbers = NDArray[np.float64]
"""One row per image, of zeros, in whose first columns the numbers are written."""

Write = Callable[[Parameters, Sizes, Numbers], None]
"""Lays a stage's parameters out as numbers, given the heights and widths of the images that enter."""

Choose = Callable[[Parameters], NDArray[Any]]
"""From a stage's parameters to the kernel of each row, (n,), below 0 where the image stays as it is."""


class Code(IntEnum):
    """What is known of a call beside its kernels, and which numbers it takes then."""

    OTHER = 0
    """Nothing. The image keeps its size, unless its stage says otherwise."""
    RESIZE = 1
    """Row, column, height and width of a window; whether to mirror it; row and column where what it becomes is cropped;
    height and width of that."""
    CROP = 2
    """Row and column of a window."""
    FLIP = 3
    """Nothing: it is chosen or not."""
    WARP = 4
    """A map of coordinates, 3 x 3; levels where there is no source; row and column where what it becomes is cropped."""


def no_numbers(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    """Write nothing."""


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel for each image.

    Attributes:
        kernels: Kernels that rows choose among, by name, or a `KernelStage` of the user's; None: one that no row
            chooses.
        write: Function that writes each image's numbers.
        choose: Function that chooses each image's kernel; None: all take the first.
        code: What is known of the call.
        most: Function that writes, given sizes of images, numbers with which kernels need the most memory; None: they
            need no more of any than of those that `Code` says.
    """

    kernels: Sequence[Any]
    write: Write = no_numbers
    choose: Choose | None = None
    code: Code = Code.OTHER
    most: Callable[[Sizes, Numbers], None] | None = None


def where_drawn(name: str) -> Choose:
    """Choose the first kernel where a parameter is above 0, and none elsewhere."""
    return lambda parameters: np.where(parameters[name] > 0, 0, UNTOUCHED)


def columns(*names: str) -> Write:
    """Write parameters of any shapes one after the other."""

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        end = 0
        for name in names:
            start, end = end, end + math.prod(parameters[name].shape[1:])
            numbers[:, start:end] = parameters[name].reshape(-1, end - start)

    return write


def same_numbers(given: ArrayLike) -> Write:
    """Write the same numbers for every image."""
    fixed = np.asarray(given, np.float64)

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        numbers[:, : len(fixed)] = fixed

    return write


def matrix_and_fill(fill: ArrayLike, place: tuple[int, ...] = ()) -> Write:
    """Write a matrix for every image, such as a map of coordinates, and the levels where there is no source.

    Args:
        fill: Level, or one for each channel.
        place: Which of an image's matrices is meant, where it has several.
    """
    rows: Any = (slice(None), *place)

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        numbers[:, :9], numbers[:, 9:12] = parameters["matrix"][rows].reshape(-1, 9), fill

    return write
