"""PartnerStage: what a stage has in common that makes one image of several partial images of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays, Node, Parameter, Stage
from dalirefurb.checks import number
from dalirefurb.errors import ConfigurationError


class PartnerStage(Stage):
    """A stage that is given a row's partial image, and those of other rows of its batch, its partners.

    It is the first stage behind the split: a partial image serves in its own row and in those of others, so that even
    without reuse a result costs one partial image. Partners are drawn anew at each use, among the other rows of the
    batch (of the sample's shard, where there are several). It is done by kernels, on the CPU.

    One of its parameters is "partners", numbers in [0, 1) that choose them, float64 of shape (n, partners), in whose
    place kernels are given address, height and width of each partner's image.
    """

    def present(self, parameters: Arrays, others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which partners there is something of in each image, with what belongs to them, (n, partners).

        Args:
            parameters: What `draw` returned for the rows of a batch.
            others: The partners' rows, (n, partners); a row is its own partner where there is no other one.
        """
        return np.ones(others.shape, np.bool_)

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Refuse: an operator of DALI has no other images of its batch.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"stage {self.name!r} takes several images of a batch, which kernels on the CPU alone do: leave kernels "
            f"and devices out, install numba, and use no stage without a kernel, such as Custom"
        )


class PairStage(PartnerStage):
    """A stage of two images of one size, in which everything stays where it is, done with a probability.

    The first uniform chooses the partner, the second one says whether anything is done.
    """

    probability: float

    keeps_place: ClassVar[bool] = True
    partners: ClassVar[int] = 1
    parameters: ClassVar[Mapping[str, Parameter]]

    def __post_init__(self) -> None:
        number(f"{self.name}: probability", self.probability, "in 0..1", lambda p: 0 <= p <= 1, "1 is usual")

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Nothing done; all else is too much to be counted."""
        return np.array([1 - self.probability]) if self.probability < 1 else np.empty(0)

    @abstractmethod
    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw whether it is done, and numbers that choose the partners; see `Stage.draw`."""
        done = (uniforms[:, 1] < self.probability).astype(np.int32)
        return {"done": done, "partners": np.ascontiguousarray(uniforms[:, :1])}

    def present(self, parameters: Arrays, others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell where it is done, and there is another image; see `PartnerStage.present`."""
        there: NDArray[np.bool_] = (parameters["done"] > 0)[:, None] & (others != np.arange(len(others))[:, None])
        return there


def partner_rows(uniforms: NDArray[np.float64], lengths: Sequence[int], slice_rows: int) -> NDArray[np.int64]:
    """Choose for each row of consecutive batches others of its slice of its batch; itself where it is alone.

    Args:
        uniforms: Numbers in [0, 1), one for each other row that is chosen, shape (n, k).
        lengths: Numbers of rows of the batches, n together.
        slice_rows: Number of rows of a slice, all of whose samples are of one shard.

    Returns:
        Rows, int64 of shape (n, k).

    >>> partner_rows(np.array([[0.0, 0.9]] * 5), [4, 1], slice_rows=2).tolist()
    [[1, 1], [0, 0], [3, 3], [2, 2], [4, 4]]
    """
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    ends = np.repeat(np.cumsum(lengths), lengths)
    rows = np.arange(len(starts))
    first = starts + (rows - starts) // slice_rows * slice_rows
    counts = (np.minimum(first + slice_rows, ends) - first)[:, None]
    steps = 1 + np.floor(uniforms * (counts - 1)).astype(np.int64)
    chosen: NDArray[Any] = first[:, None] + ((rows - first)[:, None] + steps) % counts
    return chosen
