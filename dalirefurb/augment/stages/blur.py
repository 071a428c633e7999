"""Gaussian blur."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes
from dalirefurb.augment.stage import Arrays, Node, Parameter, Stage, outcomes_between
from dalirefurb.checks import Interval, integer, require
from dalirefurb.rng import between

LONGEST_KERNEL = 255
"""Pixels; compiled kernels have room for as many weights."""

LEAST_SIGMA = 0.001
"""Pixels; what is less blurs nothing either, but its square is lost in single precision."""


@dataclass(frozen=True)
class GaussianBlur(Stage):
    """Blur with a Gaussian kernel of random width, within 1 level of torchvision's; the border is mirrored.

    SimCLR, and what came after it, blur half of the images of 224 pixels with a kernel of 23, a tenth of the side:
    `RandomApply(GaussianBlur(23), 0.5)`. torchvision refuses images with a side of less than half a kernel, which here
    are mirrored more than once.

    Attributes:
        kernel_size: Side of the kernel in pixels, an odd number.
        sigma: Standard deviation of the Gaussian in pixels, at least 0.001, or its least and greatest, drawn uniformly.
    """

    kernel_size: int
    sigma: float | Interval = (0.1, 2.0)
    name: str = "gaussian_blur"

    num_uniforms = 1
    keeps_place = True
    parameters: ClassVar[Mapping[str, Parameter]] = {"sigma": Parameter("float32")}

    def __post_init__(self) -> None:
        name, remedy = f"{self.name}: kernel_size", "pass an odd number, such as 23"
        size = integer(name, self.kernel_size, 1, LONGEST_KERNEL, remedy)
        require(size % 2 == 1, name, "odd", size, f"pass {size - 1} or {size + 1}")
        wanted, remedy = "a number of at least 0.001, or two with 0.001 <= low <= high", "(0.1, 2.0) is usual"
        if not isinstance(self.sigma, tuple):
            self._number("sigma", "of at least 0.001", lambda sigma: LEAST_SIGMA <= sigma < math.inf, remedy)
            object.__setattr__(self, "sigma", (self.sigma, self.sigma))
        self._interval("sigma", wanted, lambda low, high: LEAST_SIGMA <= low <= high < math.inf, remedy)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return outcomes_between(self.sigma)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        return {"sigma": between(self.sigma, uniforms[:, 0]).astype(np.float32)}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, 0], numbers[:, 1] = parameters["sigma"], self.kernel_size // 2

        return [KernelCall(["blur.gaussian"], write)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        return fn.gaussian_blur(images, sigma=parameters["sigma"], window_size=self.kernel_size)
