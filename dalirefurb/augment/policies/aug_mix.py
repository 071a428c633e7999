"""AugMix (Hendrycks et al., ICLR 2020): an image, blended with what chains of operations make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import Chosen, Floats, OperationTable
from dalirefurb.augment.policies.timm_operations import AUG_MIX, MagnitudeNoise, checked_noise
from dalirefurb.augment.stage import Arrays, Fill, Interpolation, Node, Parameter
from dalirefurb.checks import integer, require

_DEEPEST = 3
"""Operations of a chain, at most, where their number is random."""

UNIFORM = MagnitudeNoise(uniform=True)
"""Magnitudes between none and the one that is said."""


_TABLE = OperationTable(AUG_MIX)


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
        self._number("severity", "of at least 0", lambda s: 0 <= s < math.inf, remedy)
        self._integer("mixture_width", 1, None, remedy)
        depth = integer(f"{self.name}: chain_depth", self.chain_depth, -1, None, "-1 draws it, from 1 to 3")
        require(depth != 0, f"{self.name}: chain_depth", "-1 or at least 1", depth, "-1 draws it, from 1 to 3")
        self._number("alpha", "above 0", lambda a: 0 < a < math.inf, "1 is the paper's")
        object.__setattr__(self, "noise", checked_noise(self.name, self.noise))

    @property
    def depth(self) -> int:
        """Number of operations of a chain, at most."""
        return _DEEPEST if self.chain_depth == -1 else self.chain_depth

    @property
    def table(self) -> OperationTable:
        return _TABLE

    @property
    def places(self) -> tuple[int, ...]:
        return (self.mixture_width, self.depth)

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """Weights of the chains, shares of the mixture and the image (two each), depths, and four for an operation."""
        return 2 * (self.mixture_width + 2) + self.mixture_width * (1 + 4 * self.depth)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Operations of each chain in order, and the weights of the image and of each chain."""
        return {**super().parameters, "weight": Parameter("float32", (1 + self.mixture_width,))}

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        weighing = uniforms[:, : 2 * (self.mixture_width + 2)].reshape(len(uniforms), self.mixture_width + 2, 2)
        mixed = dirichlet(self.alpha, weighing[:, :2])  # (n, 2): the image's share, and the mixture's
        chains = mixed[:, 1:] * dirichlet(self.alpha, weighing[:, 2:])  # (n, chains)
        weight = np.concatenate([mixed[:, :1], chains], axis=1).astype(np.float32)
        return {**super().draw(uniforms, heights, widths), "weight": weight}

    def choose(self, uniforms: Floats) -> Chosen:
        width, depth = self.places
        _, deepening, operating = np.split(uniforms, [2 * (width + 2), 3 * width + 4], axis=1)
        each = operating.reshape(-1, 4)  # (n * chains * depth, 4)
        operations = 1 + (each[:, 0] * (len(AUG_MIX) - 1)).astype(np.int64)
        if self.chain_depth == -1:
            depths = 1 + (deepening * _DEEPEST).astype(np.int64)  # (n, chains)
            operations[(np.arange(depth) >= depths[..., None]).ravel()] = 0
        magnitudes = self.noise.draw(np.full(len(each), self.severity), each[:, 2:])
        return Chosen(operations, magnitudes, each[:, 1] < 0.5)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """The image by its weight, then what each chain makes of it; the sum is rounded at the end."""

        def weighted(kernel: str, place: int) -> KernelCall:
            def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
                numbers[:, 0] = parameters["weight"][:, place]

            return KernelCall([kernel], write)

        calls = [weighted("mixing.begin", 0)]
        for chain in range(self.mixture_width):
            calls += [self._kernel_call((chain, place)) for place in range(self.depth)]
            calls.append(weighted("mixing.end" if chain == self.mixture_width - 1 else "mixing.add", chain + 1))
        return calls

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn, types

        from dalirefurb.augment.policies.operation_graph import beside

        mixture = images * beside(images, parameters["weight"][0])
        for chain in range(self.mixture_width):
            shown = images
            for place in range(self.depth):
                shown = self._apply_one(shown, parameters, (chain, place))
            mixture = mixture + shown * beside(shown, parameters["weight"][chain + 1])
        return fn.cast(mixture, dtype=types.UINT8)


_POINTS = 1 << 13
_TINY = 2.0**-54


def dirichlet(alpha: float, uniforms: Floats) -> Floats:
    """Return shares of Dirichlet's distribution, in which all have the same parameter.

    Args:
        alpha: Parameter of each share, above 0: with 1 all shares are equally likely, with more they are more alike.
        uniforms: Uniform random numbers in [0, 1), shape (n, shares, 2).

    Returns:
        Shape (n, shares); each row sums to 1.
    """
    alpha = min(max(alpha, 1e-15), 1e300)  # Beyond, shares are as there: one has all, or all have as much.
    exponential = -np.log1p(-uniforms[..., 1])
    if alpha == 1:
        logarithms = np.log(np.maximum(exponential, _TINY))
    else:
        # A gamma variable of alpha is one of alpha + 1, times a uniform number to the power of 1 / alpha. Logarithms,
        # as with a small alpha that is below all floats.
        places, cumulative = _gamma(alpha + 1)
        gammas = np.interp(uniforms[..., 0], cumulative, places)
        logarithms = np.log(np.maximum(gammas, _TINY)) - exponential / alpha
    weights = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return shares


@lru_cache(maxsize=16)
def _gamma(shape: float) -> tuple[Floats, Floats]:
    """Return points, and the gamma distribution's share below each of them; its shape is above 1."""
    most = shape + 12 * math.sqrt(shape) + 40
    places = most * np.linspace(0, 1, _POINTS) ** 2
    with np.errstate(divide="ignore"):
        density = np.exp((shape - 1) * np.log(places) - places - math.lgamma(shape))
    steps = np.diff(places) * (density[1:] + density[:-1]) / 2
    cumulative = np.concatenate([[0.0], np.cumsum(steps)])
    return places, cumulative / cumulative[-1]
