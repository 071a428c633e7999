"""KernelOp: one call of a kernel for each image, with the numbers that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, Choose, Code, KernelCall, Numbers, Parameters, Write
from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.crop import HorizontalFlip
from dalirefurb.augment.stages.custom import KernelStage

WIDTH = 16
"""Numbers of a step, at most."""

MIRROR, START, FULL = 4, 5, 7
"""Which numbers of a RESIZE say whether to mirror; where a crop begins; and what the size would be without it."""

KernelName = str | KernelStage
"""The library's kernels by name, such as "warp.nearest"; of the user's own the stage."""


@dataclass(frozen=True)
class KernelOp:
    """One call of a kernel for each image.

    Attributes:
        code: Code that says what is known of the step.
        stage: Stage whose parameters the kernels take.
        kernels: Kernels that rows choose among; None: one that no row chooses.
        write: Function that lays the stage's parameters out as numbers, given the heights and widths of the images that
            enter.
        choose: Function from the stage's parameters to the kernel of each row, int64 (n,), below 0 where the image
            stays as it is; None: all take the first.
        inside: Names of the stages that the stage is inside of, from the recipe's on.
        taken: Parameters of these, as "<stage>/<parameter>", each with the value without which the image stays.
        mirror: Flip that the kernel does on the way; None: it does none.
        crop: CROP after the kernel and its flip, of which only the window is made; None: there is none.
    """

    code: Code
    stage: Stage
    kernels: tuple[KernelName | None, ...]
    write: Write
    choose: Choose | None = None
    inside: tuple[str, ...] = ()
    taken: tuple[tuple[str, int], ...] = ()
    mirror: HorizontalFlip | None = None
    crop: KernelOp | None = None

    @classmethod
    def of(cls, stage: Stage, call: KernelCall) -> KernelOp:
        """Return a call that a stage asks for."""
        return cls(call.code, stage, tuple(call.kernels), call.write, call.choose)

    def output_sizes(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Sizes:
        """Return the sizes of the images that it makes of such, (n,)."""
        heights, widths = self.stage.output_sizes(heights, widths)
        return (heights, widths) if self.crop is None else self.crop.output_sizes(heights, widths)

    def lay_out(self, drawn: Mapping[str, Any], sizes: Sizes, chosen: NDArray[np.int64], numbers: Numbers) -> None:
        """Write what each image is given.

        Args:
            drawn: Parameters of all stages, as "<stage>/<parameter>".
            sizes: Heights and widths of the images that enter, in pixels.
            chosen: Kernel of each image, (n,), to be written where it is not the first.
            numbers: Numbers of each image, shape (n, `WIDTH`), to be written.
        """
        parameters = self._parameters(drawn)
        self.write(parameters, sizes, numbers)
        if self.choose is not None:
            chosen[:] = self.choose(parameters)
        for name, value in self.taken:
            chosen[np.asarray(drawn[name]) != value] = UNTOUCHED
        if self.mirror is not None:
            numbers[:, MIRROR] = drawn[f"{self.mirror.name}/mirror"]
        if self.code == Code.RESIZE:
            full = self.stage.output_sizes(*sizes)
            numbers[:, FULL], numbers[:, FULL + 1] = full
            if self.crop is not None:
                self.crop.write(self.crop._parameters(drawn), full, numbers[:, START:FULL])

    def largest(self, sizes: Sizes) -> Numbers:
        """Return numbers with which kernels need the most memory, for images of these heights and widths, (n,)."""
        numbers = np.zeros((len(sizes[0]), WIDTH))
        if self.code == Code.RESIZE:
            numbers[:, 2], numbers[:, 3] = sizes
            numbers[:, FULL], numbers[:, FULL + 1] = self.stage.output_sizes(*sizes)
        return numbers

    def _parameters(self, drawn: Mapping[str, Any]) -> Parameters:
        return {name: np.asarray(drawn[named(self.inside, self.stage, name)]) for name in self.stage.parameters}


def named(inside: tuple[str, ...], stage: Stage, parameter: str) -> str:
    """Return the name of an input: a parameter of a stage, which may be inside of others."""
    outermost, *others = *inside, stage.name
    return f"{outermost}/{'.'.join((*others, parameter))}"
