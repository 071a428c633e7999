"""Call: one call of a kernel for each image, as a stage is lowered to; and the numbers that several stages write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.augment.stage import Sizes

UNTOUCHED = -1
"""In place of a kernel: the image stays as it is."""

Parameters = Mapping[str, NDArray[Any]]
"""What a stage drew, by name; see `Stage.draw`."""

Numbers = NDArray[np.float64]
"""One row per image, shape (n, `lower.WIDTH`), of zeros."""


class Call(NamedTuple):
    """What a `lower.KernelOp` says of a call, in the same words.

    Attributes:
        kernels: Names of the kernels that rows choose among; None: one that no row chooses.
        write: Function that lays the stage's parameters out as numbers.
        choose: Function from the stage's parameters to the kernel of each row, `UNTOUCHED` where the image stays as it
            is; None: all take the first.
    """

    kernels: tuple[str | None, ...]
    write: Callable[[Parameters, Sizes, Numbers], None]
    choose: Callable[[Parameters], NDArray[Any]] | None = None


def write_same(given: ArrayLike, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    """Write the same numbers for every image."""
    fixed = np.asarray(given, np.float64)
    numbers[:, : len(fixed)] = fixed


def write_map(fill: tuple[int, ...], parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    """Write a matrix for every image, such as a map of coordinates, and the levels where there is no source."""
    numbers[:, :9], numbers[:, 9:12] = parameters["matrix"].reshape(-1, 9), fill


def if_drawn(name: str, parameters: Parameters) -> NDArray[Any]:
    """Choose the first kernel where a parameter is 1, and none where it is 0."""
    return np.where(parameters[name] > 0, 0, UNTOUCHED)
