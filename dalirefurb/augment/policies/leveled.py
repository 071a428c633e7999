"""Operations whose magnitude is any real number: matrices by formulas, where `OperationTable` looks bins up.

A matrix is a sum: one that is constant, and one or two others times arguments that depend on the magnitude. So the
matrices of a batch are computed at once, and only arguments are an operation's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Arrays

Floats = NDArray[np.float64]

Arguments = Callable[[Floats, Floats], Floats | tuple[Floats, Floats]]
"""From magnitudes, (n,), negated where the operation is, and uniforms, (n,), to one or two arguments, (n,) each."""


def _nothing(magnitudes: Floats, uniforms: Floats) -> Floats:
    return np.zeros_like(magnitudes)


def numbers(*entries: tuple[int, int, float]) -> Floats:
    """Return a matrix of zeros but for entries, each a row, a column and a value.

    Returns:
        Shape (3, 5): the 3x3 matrix of a group, and the shares of the picture's width and height in the offset of a
        warp, its third column.
    """
    matrix = np.zeros((3, 5))
    for row, column, value in entries:
        matrix[row, column] = value
    return matrix


@dataclass(frozen=True)
class LeveledOperation:
    """One operation at any magnitude.

    Attributes:
        name: Name of the operation.
        group: The computation that the operation belongs to.
        arguments: What the magnitude means.
        constant: Matrix without the arguments, shape (3, 5), see `numbers`.
        slopes: Matrices that are multiplied by the arguments.
        signed: Whether the magnitude is negated half of the time.
    """

    name: str
    group: Group
    arguments: Arguments = _nothing
    constant: Floats = field(default_factory=numbers)
    slopes: Sequence[Floats] = ()
    signed: bool = False

    @property
    def ranged(self) -> bool:
        """Whether the magnitude matters."""
        return self.arguments is not _nothing


class Leveled(NamedTuple):
    """What n samples get.

    Attributes:
        operations: Rows of a table, shape (n,).
        magnitudes: Magnitudes, at least 0, shape (n,).
        negated: Whether a signed operation is negated, shape (n,).
        uniforms: Uniform numbers for operations that are random beside their magnitude, shape (n,).
    """

    operations: NDArray[np.int64]
    magnitudes: Floats
    negated: NDArray[np.bool_]
    uniforms: Floats


class LeveledTable:
    """Operations, and the matrices of a batch.

    Attributes:
        operations: The rows of the table, one for each operation; the first one does nothing.
        groups: Groups of the operations, in order.
    """

    def __init__(self, operations: Sequence[LeveledOperation]) -> None:
        self.operations = tuple(operations)
        self.groups = tuple(sorted({operation.group for operation in operations}))
        self._groups = np.array([operation.group for operation in operations], np.int32)
        self._constants = np.array([operation.constant for operation in operations])  # (operations, 3, 5)

    def parameters(self, drawn: Leveled, *, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Compute the numbers of each sample.

        Args:
            drawn: What each of n samples gets.
            heights: Heights of the images in pixels, shape (n,).
            widths: Widths of the images in pixels, shape (n,).

        Returns:
            One array for each of `operations.PARAMETERS`.
        """
        matrices = self._constants.take(drawn.operations, axis=0)  # (n, 3, 5)
        order = np.argsort(drawn.operations, kind="stable")
        ends = np.searchsorted(drawn.operations[order], np.arange(len(self.operations)), side="right").tolist()
        for operation, begin, end in zip(self.operations, [0, *ends], ends, strict=False):
            if begin < end and operation.ranged:
                rows = order[begin:end]
                given = drawn.magnitudes[rows], drawn.negated[rows], drawn.uniforms[rows]
                matrices[rows] = _matrices(operation, *given)
        matrices[:, :, 2] += matrices[:, :, 3] * widths[:, None] + matrices[:, :, 4] * heights[:, None]
        return {"group": self._groups.take(drawn.operations), "matrix": matrices[:, :, :3].astype(np.float32)}


def _matrices(operation: LeveledOperation, magnitudes: Floats, negated: NDArray[np.bool_], uniforms: Floats) -> Floats:
    """Return an operation's matrices at magnitudes, (n,), which are negated here, shape (n, 3, 5)."""
    if operation.signed:
        np.negative(magnitudes, out=magnitudes, where=negated)
    matrices = operation.constant
    for values, slope in zip(np.atleast_2d(operation.arguments(magnitudes, uniforms)), operation.slopes, strict=True):
        matrices = matrices + values[:, None, None] * slope
    return matrices
