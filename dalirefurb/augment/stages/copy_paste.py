"""CopyPaste: objects of another image of a batch, pasted into an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes
from dalirefurb.augment.stage import Arrays, Parameter
from dalirefurb.augment.stages.partners import PairStage
from dalirefurb.checks import number
from dalirefurb.rng import generator


@dataclass(frozen=True)
class CopyPaste(PairStage):
    """Paste objects of another image of the batch over an image, where they are in theirs.

    It is Simple Copy-Paste (G. Ghiasi et al., CVPR 2021). Shapes are those of the first target of `InstanceMasks` or
    `Polygons`, filled in the partial image, with sharp edges: pixels there are the other image's. The pasted objects
    come after the image's own ones. Of these, masks lose what is covered, and boxes of which something is covered
    become those of what is left in the partial image, in whole pixels. Keypoints and outlines stay as they are.

    It is the first stage behind the split, and partial images are of one size; how others are drawn, see `Mosaic`.
    Into an image that is alone in its batch nothing is pasted. It is done by kernels, on the CPU.

    Attributes:
        share: Probability 0 .. 1 with which each object of the other image is pasted, if it has a pixel in it.
        probability: Probability that anything is pasted into an image.
        min_visible: Share 0 .. 1 of an object's pixels that are left, below which it is dropped with all that is known
            of it; one without any pixel left always is.
    """

    share: float = 0.5
    probability: float = 1.0
    min_visible: float = 0.1
    name: str = "copy_paste"

    num_uniforms: ClassVar[int] = 4
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "done": Parameter("int32"),
        "partners": Parameter("float64", (1,)),
        "objects": Parameter("float64", (2,)),
    }
    """Whether something is pasted, and what chooses the other image, and its objects.

    Kernels are given the address of the shape in place of the last: uint8, a byte a pixel, above 0 where it is.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in (("share", "0.5"), ("min_visible", "0.1")):
            own = getattr(self, name)
            number(f"{self.name}: {name}", own, "in 0..1", lambda share: 0 <= share <= 1, f"{usual} is usual")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw numbers that choose the other images, and their objects; see `Stage.draw`."""
        return {**super().draw(uniforms, heights, widths), "objects": np.ascontiguousarray(uniforms[:, 2:])}

    def chosen(self, drawn: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
        """Tell which of so many objects are pasted, (count,), by a row of the parameter "objects", (2,)."""
        return generator(drawn).random(count) < self.share

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """Pixels are copied from two images."""

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, :3], numbers[:, 3] = parameters["partners"].reshape(len(numbers), -1), parameters["objects"]

        return [KernelCall(["partners.copy_paste"], write)]
