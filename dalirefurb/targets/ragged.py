"""Ragged: any number of objects for each sample, all in one array.

sample    0         1    2             offsets   0  2  2  5
values    a  b      -    c  d  e       values    a b c d e
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.source.labels import check_int64


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of values, some for each sample.

    Attributes:
        values: All rows, those of the first sample first, shape (m, ...).
        offsets: Where the rows of each sample begin, and where the last ones end, int64 of shape (n + 1,).
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(
        cls, rows: Sequence[Any], what: str, shape: tuple[int | None, ...] | None, dtype: str | None = None
    ) -> Ragged:
        """Put the rows of samples together.

        Args:
            rows: For each sample an array, or nested lists, of shape (k, *shape); an empty list where there are none.
            what: What they are, for messages.
            shape: Shape of a row; None: any, or any length, of which all have the same.
            dtype: Type of the values; by default that of the first ones that are not empty.

        Raises:
            ConfigurationError: If a sample has rows of another shape, or values that are not finite numbers.
        """
        check_listed(rows, what)
        arrays = [_rows_of(each, what, sample, shape) for sample, each in enumerate(rows)]
        filled = [array for array in arrays if len(array)]
        tails = {array.shape[1:] for array in filled}
        if len(tails) > 1:
            raise ConfigurationError(f"{what} of all samples must be of one shape, got rows of {sorted(tails)}")
        tail = next(iter(tails), tuple(length or 0 for length in shape or ()))
        made = dtype or (np.result_type(*filled) if filled else np.dtype(np.int64))
        values = np.concatenate([array.reshape(-1, *tail) for array in filled]) if filled else np.empty((0, *tail))
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int64)
        return cls(np.ascontiguousarray(values, made), offsets)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Put parts together, one after the other, all of whose rows are of one type and shape."""
        filled = [part.values for part in parts if len(part.values)] or [parts[0].values]
        counts = np.concatenate([part.counts for part in parts])
        return cls(np.concatenate(filled), np.concatenate([[0], np.cumsum(counts)]))

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows of each sample, shape (n,)."""
        return np.diff(self.offsets)

    def take(self, samples: NDArray[np.int64]) -> Ragged:
        """Return some samples, shape (k,), in any order."""
        starts, counts = self.offsets[samples], self.counts[samples]
        return Ragged(self.values[ranges(starts, counts)], np.concatenate([[0], np.cumsum(counts)]))

    def kept(self, rows: NDArray[np.bool_]) -> Ragged:
        """Return the rows that are true, of (m,)."""
        before = np.concatenate([[0], np.cumsum(rows)])
        return Ragged(self.values[rows], before[self.offsets])

    def parts(self) -> list[NDArray[Any]]:
        """Return the rows of each sample, (k, ...)."""
        return np.split(self.values, self.offsets[1:-1]) if len(self) else []


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the whole numbers of several ranges, one range after the other.

    >>> ranges(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    placed: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return placed


def check_listed(rows: object, what: str) -> None:
    """Refuse what is no list of samples, or of the objects of one.

    Raises:
        ConfigurationError: If it is none.
    """
    counted = isinstance(rows, Iterable) and hasattr(rows, "__len__") and getattr(rows, "shape", None) != ()
    if not counted or isinstance(rows, (str, bytes, Mapping)):
        raise ConfigurationError(
            f"{what} must be in a list, one of each sample, but are a {type(rows).__name__}: pass a list, with [] for "
            f"samples that have none"
        )


def _rows_of(rows: Any, what: str, sample: int, shape: tuple[int | None, ...] | None) -> NDArray[Any]:
    """Return a sample's rows, (k, *shape), which are finite numbers."""
    try:
        array = np.asarray(rows.numpy() if hasattr(rows, "numpy") else rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{what} must be numbers, but those of sample {sample} are not: {error}") from error
    if array.size == 0:
        return np.empty((0, *(length or 0 for length in shape or ())))
    own = array.shape[1:]
    fits = array.ndim > 0 and (
        shape is None
        or (len(shape) == len(own) and all(wanted in (None, it) for wanted, it in zip(shape, own, strict=True)))
    )
    if not fits or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
        wanted = "k, ..." if shape is None else ", ".join("k" if it is None else str(it) for it in (None, *shape))
        raise ConfigurationError(
            f"{what} must be finite numbers of shape ({wanted}), but those of sample {sample} are {array.dtype} of "
            f"shape {array.shape}; write [] where there are none"
        )
    check_int64(array, what, f"number those of sample {sample} from 0 on")
    return array.astype(np.int64) if array.dtype == np.uint64 else array  # Of uint64 and int64 NumPy would make floats.
