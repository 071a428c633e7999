"""Random shares that sum to 1: Dirichlet's distribution; of two shares, each has the beta distribution."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dalirefurb.augment.policies.leveled import Floats

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
