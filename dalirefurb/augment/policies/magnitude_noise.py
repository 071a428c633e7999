"""MagnitudeNoise: how a magnitude varies about the one that a policy says, as in timm."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dalirefurb.augment.policies.operations import Floats
from dalirefurb.checks import number, plain, require

QUANTILES = 32
"""Values that stand for all that a magnitude can be, where outcomes are counted."""


class MagnitudeNoise(NamedTuple):
    """Distribution of magnitudes, which are cut to 0 .. `most`.

    Attributes:
        std: Standard deviation of the normal distribution about the magnitude; 0: it does not vary.
        most: Greatest magnitude.
        uniform: Whether magnitudes are uniform between 0 and the one that is said instead.
    """

    std: float = 0.0
    most: float = 10.0
    uniform: bool = False

    def draw(self, magnitudes: Floats, uniforms: Floats) -> Floats:
        """Vary magnitudes.

        Args:
            magnitudes: Magnitudes that a policy says, shape (n,).
            uniforms: Uniform random numbers in [0, 1), shape (n, 2).
        """
        if self.uniform:
            magnitudes = magnitudes * uniforms[:, 0]
        elif self.std > 0:
            # Box and Muller's transform: exactly normal.
            radii = np.sqrt(-2 * np.log1p(-uniforms[:, 0]))
            magnitudes = magnitudes + self.std * radii * np.cos(2 * math.pi * uniforms[:, 1])
        cut: Floats = np.clip(magnitudes, 0, self.most)
        return cut

    def quantiles(self, magnitude: float) -> Floats:
        """Return magnitudes that are equally likely, shape (`QUANTILES`,)."""
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        if self.uniform:
            magnitudes = magnitude * middles
        elif self.std > 0:
            magnitudes = np.array([NormalDist(magnitude, self.std).inv_cdf(middle) for middle in middles.tolist()])
        else:
            magnitudes = np.full(QUANTILES, float(magnitude))
        cut: Floats = np.clip(magnitudes, 0, self.most)
        return cut


STEADY = MagnitudeNoise()
"""None: magnitudes are those that are said."""


def checked_noise(name: str, noise: Any) -> MagnitudeNoise:
    """Return the noise of a stage's magnitudes as it is written down.

    Raises:
        ConfigurationError: If it is none.
    """
    given = isinstance(noise, tuple) and len(noise) == 3
    require(given, f"{name}: noise", "a MagnitudeNoise", noise, "pass such as MagnitudeNoise(std=0.5)")
    std, most, uniform = map(plain, noise)
    std = number(f"{name}: std", std, "of at least 0", lambda std: 0 <= std < math.inf, "0.5 is usual")
    most = number(f"{name}: most", most, "above 0", lambda most: 0 < most < math.inf, "10 is usual")
    require(isinstance(uniform, bool), f"{name}: uniform", "True or False", uniform, "False is usual")
    return MagnitudeNoise(std, most, uniform)
