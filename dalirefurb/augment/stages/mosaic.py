"""Mosaic: several images of a batch in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes
from dalirefurb.augment.maps import Maps, placed
from dalirefurb.augment.stage import Arrays, Fill, Parameter, SizedStage, check_fill, fill_levels
from dalirefurb.augment.stages.partners import PartnerStage


@dataclass(frozen=True)
class Mosaic(PartnerStage, SizedStage):
    """Put four images around a random point: the sample's own above on the left, and three others of its batch.

    Each touches that point with a corner, keeps its size, and is cut off where the result ends; beyond it is `fill`.
    The point is in the middle half of either side. So it is made in many a detector's training, at twice the side of
    what a crop, or an affine map and a crop, leave of it (A. Bochkovskiy et al., YOLOv4, 2020).

    It is the first stage behind the split: a partial image serves in its own row and in those of three others, on
    average, so that even without reuse a mosaic costs one partial image and not four. The others are drawn anew at each
    use, among the other rows of the batch (of the sample's shard, where there are several), and one may come twice.
    Boxes, masks and other targets of all four are the row's; labels are those of its own image. It is done by kernels,
    on the CPU.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        fill: Level 0 .. 255, or one for each of 3 channels, where there is no image.
    """

    fill: Fill = 114
    name: str = "mosaic"

    partners: ClassVar[int] = 3
    num_uniforms: ClassVar[int] = 2 + partners

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fill(f"{self.name}: fill", self.fill)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Row and column of the point; numbers that choose the others.

        Kernels are given the others in place of these: address, height and width of each.
        """
        return {"centre": Parameter("int32", (2,)), "partners": Parameter("float64", (self.partners,))}

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw points, and numbers that choose the others; see `Stage.draw`."""
        centres = np.floor((0.25 + 0.5 * uniforms[:, :2]) * self.fixed_size).astype(np.int32)
        return {"centre": centres, "partners": np.ascontiguousarray(uniforms[:, 2:])}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """Four images are copied."""
        levels = fill_levels(self.fill)

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, :2], numbers[:, 2:5] = parameters["centre"], levels
            numbers[:, 5:14] = parameters["partners"].reshape(len(numbers), -1)

        return [KernelCall(["partners.mosaic"], write)]

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        """Say where the sample's own image is; see `Stage.matrices`."""
        return self.part_matrices(np.zeros(len(heights), np.int64), parameters, heights, widths)

    def part_matrices(
        self, parts: NDArray[np.int64], parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> Maps:
        """Say where an image of each row is, of these heights and widths in pixels, (n,).

        Args:
            parts: Which of the images, (n,): 0 is the sample's own, above on the left, then from left to right.
            parameters: What `draw` returned.
            heights: Heights of these images.
            widths: Widths of these images.

        Returns:
            Maps from coordinates in the result to those in the image, (n, 3, 3).
        """
        rows, columns = np.asarray(parameters["centre"], np.float64).reshape(-1, 2).T
        left, top = np.where(parts % 2 == 0, columns - widths, columns), np.where(parts < 2, rows - heights, rows)
        return placed(-np.stack([left, top], axis=1))
