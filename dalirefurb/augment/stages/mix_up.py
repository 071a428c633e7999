"""MixUp of images with objects: two images of a batch, blended, and what is in both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes
from dalirefurb.augment.stage import Arrays, Parameter
from dalirefurb.augment.stages.partners import PairStage
from dalirefurb.checks import number
from dalirefurb.rng import BETA_DRAWS, beta

_STEPS = 2**16
"""Shares are multiples of one of so many, with which a blend is exact in integers."""


@dataclass(frozen=True)
class MixUp(PairStage):
    """Blend an image with another one of its batch, as detectors are trained: the objects of both are the row's.

    Each level is share * own + (1 - share) * other, rounded to the nearest one, halves up. The share is drawn for each
    image from Beta(alpha, alpha), in steps of 2 ** -16. With 32, as YOLOX and Ultralytics have it, both are seen about
    equally (Z. Zhang et al., Bag of Freebies for Training Object Detection Neural Networks, 2019). An object counts as
    a whole, whatever its image's share.

    It is the first stage behind the split, and partial images are of one size; how others are drawn, see `Mosaic`. An
    image that is alone in its batch stays as it is. Labels of images are not blended: `dalirefurb.Mix` does that, and a
    source without objects is refused. It is done by kernels, on the CPU.

    Attributes:
        alpha: Both parameters of the Beta distribution of shares, above 0.
        probability: Probability that an image is blended.
    """

    alpha: float = 32.0
    probability: float = 1.0
    name: str = "mix_up"

    num_uniforms: ClassVar[int] = 2 + BETA_DRAWS
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "done": Parameter("int32"),
        "partners": Parameter("float64", (1,)),
        "share": Parameter("float64"),
    }
    """Whether an image is blended, what chooses the other one, and the own image's share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = "above 0"
        number(f"{self.name}: alpha", self.alpha, limits, lambda alpha: 0 < alpha < math.inf, "32 is usual")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw shares, 1 where nothing is blended, and numbers that choose the others; see `Stage.draw`."""
        drawn = super().draw(uniforms, heights, widths)
        shares = np.array([beta(self.alpha, row) for row in uniforms[:, 2:]], np.float64)
        shares = np.where(drawn["done"] > 0, np.rint(_STEPS * shares) / _STEPS, 1.0)
        return {**drawn, "done": (shares < 1).astype(np.int32), "share": shares}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """Two images are blended."""

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, :3] = parameters["partners"].reshape(len(numbers), -1)
            numbers[:, 3] = _STEPS * parameters["share"]

        return [KernelCall(["partners.mix_up"], write)]
