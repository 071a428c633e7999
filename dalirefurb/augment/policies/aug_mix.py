"""AugMix (Hendrycks et al., ICLR 2020): an image, blended with what chains of operations make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.leveled import Leveled, LeveledTable
from dalirefurb.augment.policies.magnitude_noise import MagnitudeNoise, checked_noise
from dalirefurb.augment.policies.mixing_weights import dirichlet
from dalirefurb.augment.policies.operation_layer import Fill, OperationLayer
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.timm_operations import AUG_MIX
from dalirefurb.augment.stage import Arrays, Interpolation, Node, Parameter
from dalirefurb.checks import integer, number, require

_DEEPEST = 3
"""Operations of a chain, at most, where their number is random."""

UNIFORM = MagnitudeNoise(uniform=True)
"""Magnitudes between none and the one that is said."""


@cache
def _table() -> LeveledTable:
    return LeveledTable(AUG_MIX)


@dataclass(frozen=True)
class AugMix(OperationLayer):
    """Blend an image with a mixture of chains, each of which applies random operations to it. Defaults are the paper's.

    The mixture's weights are drawn from Dirichlet's distribution, and its share of the result from the beta
    distribution. The result is rounded once; torchvision cuts it, and timm the mixture and the result.

    Attributes:
        severity: Greatest magnitude of the operations; 10 is the end of their range.
        mixture_width: Number of chains.
        chain_depth: Number of operations of each chain; -1: one to three, each equally likely.
        alpha: Parameter of both distributions; with 1 all weights are equally likely.
        noise: How magnitudes vary, by default uniformly between none and `severity`.
    """

    name: str = "aug_mix"
    interpolation: Interpolation = "bilinear"
    fill: Fill = 0
    severity: float = 3.0
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    noise: MagnitudeNoise = UNIFORM

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "3 is the paper's"
        severity = number(f"{self.name}: severity", self.severity, "of at least 0", lambda s: 0 <= s < math.inf, remedy)
        integer(f"{self.name}: mixture_width", self.mixture_width, 1, None, remedy)
        depth = integer(f"{self.name}: chain_depth", self.chain_depth, -1, None, "-1 draws it, from 1 to 3")
        require(depth != 0, f"{self.name}: chain_depth", "-1 or at least 1", depth, "-1 draws it, from 1 to 3")
        alpha = number(f"{self.name}: alpha", self.alpha, "above 0", lambda a: 0 < a < math.inf, "1 is the paper's")
        noise = checked_noise(self.name, self.noise)
        for name, value in (("severity", severity), ("alpha", alpha), ("noise", noise)):
            object.__setattr__(self, name, value)

    @property
    def depth(self) -> int:
        """Number of operations of a chain, at most."""
        return _DEEPEST if self.chain_depth == -1 else self.chain_depth

    @property
    def groups(self) -> Sequence[Group]:
        """See `OperationLayer.groups`."""
        return _table().groups

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """Weights of the chains, shares of the mixture and the image (two each), depths, and four for an operation."""
        return 2 * (self.mixture_width + 2) + self.mixture_width * (1 + 4 * self.depth)

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """Operations of each chain in order, and the weights of the image and of each chain."""
        chains = self.mixture_width, self.depth
        return {
            "group": Parameter("int32", chains),
            "matrix": Parameter("float32", (*chains, 3, 3)),
            "weight": Parameter("float32", (1 + self.mixture_width,)),
        }

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw weights, depths and operations; see `Stage.draw`."""
        count, width, depth = len(uniforms), self.mixture_width, self.depth
        weighing, deepening, operating = np.split(uniforms, [2 * (width + 2), 3 * width + 4], axis=1)
        weighing = weighing.reshape(count, width + 2, 2)
        mixed = dirichlet(self.alpha, weighing[:, :2])  # (n, 2): the image's share, and the mixture's
        chains = mixed[:, 1:] * dirichlet(self.alpha, weighing[:, 2:])  # (n, chains)
        each = operating.reshape(-1, 4)  # (n * chains * depth, 4)
        operations = 1 + (each[:, 0] * (len(AUG_MIX) - 1)).astype(np.int64)
        if self.chain_depth == -1:
            depths = 1 + (deepening * _DEEPEST).astype(np.int64)  # (n, chains)
            operations[(np.arange(depth) >= depths[..., None]).ravel()] = 0
        magnitudes = self.noise.draw(np.full(len(each), self.severity), each[:, 2:])
        drawn = Leveled(operations, magnitudes, each[:, 1] < 0.5, np.zeros(len(each)))
        heights, widths = (np.repeat(sides, width * depth) for sides in (heights, widths))
        arrays = _table().parameters(drawn, heights=heights, widths=widths)
        return {
            "group": arrays["group"].reshape(count, width, depth),
            "matrix": arrays["matrix"].reshape(count, width, depth, 3, 3),
            "weight": np.concatenate([mixed[:, :1], chains], axis=1).astype(np.float32),
        }

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Apply each sample's chains; call it where conditionals are enabled."""
        from dalirefurb.augment.policies.aug_mix_graph import apply_chains

        of_warps = {"interpolation": self.interpolation, "fill": self.fill_levels}
        return apply_chains(images, parameters, (self.mixture_width, self.depth), groups=self.groups, **of_warps)
