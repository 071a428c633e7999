"""timm's RandAugment by weights, of three operations and more: one stage, as each depends on all before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.leveled import Leveled, LeveledTable
from dalirefurb.augment.policies.magnitude_noise import STEADY, MagnitudeNoise, checked_noise
from dalirefurb.augment.policies.operation_layer import Fill, OperationLayer
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.timm_operations import FULL, SETS
from dalirefurb.augment.policies.timm_rand_augment import check_set, checked_magnitude, checked_probability, table_of
from dalirefurb.augment.stage import Arrays, Interpolation, Node, Parameter
from dalirefurb.checks import integer


@dataclass(frozen=True)
class TimmWeightedLayers(OperationLayer):
    """Different operations of a set, one after the other, each applied with a probability.

    Attributes:
        operations: Set of operations, see `TimmRandAugmentLayer`.
        layers: Number of operations, at most as many as the set has.
        magnitude: Magnitude of the operations; 10 is the end of their range.
        noise: How the magnitude varies.
        probability: Probability that an operation is applied.
    """

    name: str = "timm_weighted"
    interpolation: Interpolation = "bilinear"
    fill: Fill = 128
    operations: str = "weights"
    layers: int = 3
    magnitude: float = FULL
    noise: MagnitudeNoise = STEADY
    probability: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_set(self.name, self.operations)
        most = len(SETS[self.operations])
        integer(f"{self.name}: layers", self.layers, 1, most, f"{self.operations!r} has {most} operations")
        object.__setattr__(self, "magnitude", checked_magnitude(self.name, self.magnitude))
        object.__setattr__(self, "noise", checked_noise(self.name, self.noise))
        object.__setattr__(self, "probability", checked_probability(self.name, self.probability))

    @property
    def table(self) -> LeveledTable:
        """The set's operations, after the one that does nothing."""
        return table_of(tuple(SETS[self.operations]))

    @property
    def groups(self) -> Sequence[Group]:
        """See `OperationLayer.groups`."""
        return self.table.groups

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One for each operation of the set; and for each layer whether it is applied, a sign, and noise (two)."""
        return len(SETS[self.operations]) + 4 * self.layers

    @property
    def parameters(self) -> Mapping[str, Parameter]:  # type: ignore[override]
        """Operations in order."""
        return {"group": Parameter("int32", (self.layers,)), "matrix": Parameter("float32", (self.layers, 3, 3))}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for doing nothing; all others are taken for too many to be counted."""
        return np.array([(1 - self.probability) ** self.layers])

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Let exponential times, shorter ones of likelier operations, say which come first; see `Stage.draw`."""
        count, weights = len(uniforms), np.array(list(SETS[self.operations].values()), np.float64)
        times = -np.log1p(-uniforms[:, : len(weights)]) / weights
        picked = 1 + np.argsort(times, axis=1)[:, : self.layers].ravel()  # (n * layers,)
        each = uniforms[:, len(weights) :].reshape(-1, 4)
        applied = np.where(each[:, 0] < self.probability, picked, 0)
        magnitudes = self.noise.draw(np.full(len(each), self.magnitude), each[:, 2:])
        drawn = Leveled(applied, magnitudes, each[:, 1] < 0.5, np.zeros(len(each)))
        heights, widths = (np.repeat(sides, self.layers) for sides in (heights, widths))
        arrays = self.table.parameters(drawn, heights=heights, widths=widths)
        return {name: values.reshape(count, *self.parameters[name].shape) for name, values in arrays.items()}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Apply each sample's operations; call it where conditionals are enabled."""
        for place in range(self.layers):
            images = super().apply(images, {name: parameters[name][place] for name in parameters})
        return images
