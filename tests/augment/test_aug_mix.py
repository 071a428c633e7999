"""Does AugMix draw weights, depths and operations as published, and blend what its chains make?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps
from scipy.stats import beta, chisquare, kstest

from dalirefurb.augment.policies.aug_mix import AugMix, dirichlet
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.timm_operations import AUG_MIX
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Arrays
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import uniforms
from tests.augment.test_operations import PICTURES
from tests.one_batch import levels, serve

COUNT = 30_000
SIDE = 64
UNLIKELY = 1e-4


def _numbers(count: int, name: str = "test") -> NDArray[np.float64]:
    return uniforms(0, name, np.arange(COUNT), np.zeros(COUNT, np.int64), count)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1, 1.7, 3, 40])
@pytest.mark.parametrize("shares", [1, 2, 3, 5])
def test_shares_are_of_dirichlets_distribution(alpha: float, shares: int) -> None:
    """Each share, and each sum of some, has a beta distribution."""
    drawn = dirichlet(alpha, _numbers(2 * shares).reshape(COUNT, shares, 2))
    assert np.allclose(drawn.sum(axis=1), 1, atol=1e-12)
    assert (drawn >= 0).all()
    for some in range(1, shares):
        expected = beta(some * alpha, (shares - some) * alpha)
        assert kstest(drawn[:, :some].sum(axis=1), expected.cdf).pvalue > UNLIKELY


def test_shares_are_finite_at_the_ends_of_the_uniform_numbers() -> None:
    ends = np.array([0.0, 1 - 2.0**-53])
    corners = np.stack(np.meshgrid(*[ends] * 4), axis=-1).reshape(-1, 2, 2)
    for alpha in (5e-324, 1e-100, 1e-3, 1, 1e3, 1.7e308):
        assert np.isfinite(dirichlet(alpha, corners)).all()


def test_with_the_least_alpha_one_has_all_and_with_the_largest_all_have_as_much() -> None:
    numbers = _numbers(6).reshape(COUNT, 3, 2)
    least = dirichlet(5e-324, numbers)
    assert (np.sort(least, axis=1) == [0, 0, 1]).all()
    assert chisquare(least.sum(axis=0)).pvalue > UNLIKELY
    assert np.allclose(dirichlet(1.7e308, numbers), 1 / 3, atol=1e-4)


def _drawn(stage: AugMix) -> Arrays:
    sides = np.full(COUNT, SIDE)
    return stage.draw(_numbers(stage.num_uniforms, stage.name), sides, sides)


@pytest.mark.parametrize("stage", [AugMix(), AugMix(mixture_width=2, chain_depth=4, alpha=0.5)])
def test_chains_are_drawn_independently_and_uniformly(stage: AugMix) -> None:
    drawn = _drawn(stage)
    groups, weights = drawn["group"], drawn["weight"]
    assert groups.shape == (COUNT, stage.mixture_width, stage.depth)
    assert {name: (str(array.dtype), array.shape[1:]) for name, array in drawn.items()} == {
        name: (each.dtype, each.shape) for name, each in stage.parameters.items()
    }
    assert np.allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert kstest(weights[:, 0], beta(stage.alpha, stage.alpha).cdf).pvalue > UNLIKELY
    others = (stage.mixture_width - 1) * stage.alpha
    mixed = weights[weights[:, 0] < 0.99]  # The others are too near 1 for single precision.
    assert kstest(mixed[:, 1] / (1 - mixed[:, 0]), beta(stage.alpha, others).cdf).pvalue > UNLIKELY
    depths = (groups != Group.IDENTITY).sum(axis=2)
    each = [operation.group for operation in AUG_MIX[1:]]
    shares = np.array([each.count(group) for group in Group]) / len(each)
    for chain in range(stage.mixture_width):
        counts = np.bincount(depths[:, chain], minlength=stage.depth + 1)[1:]
        if stage.chain_depth == -1:
            assert chisquare(counts).pvalue > UNLIKELY
        else:
            assert counts[-1] == COUNT
        for place in range(stage.depth):
            happened = groups[:, chain, place]
            counts = np.bincount(happened[happened != Group.IDENTITY], minlength=len(Group))
            assert chisquare(counts[shares > 0], counts.sum() * shares[shares > 0]).pvalue > UNLIKELY
    assert np.unique(groups[:, 0, 0] * 20 + groups[:, 1, 0]).size == np.count_nonzero(shares) ** 2


def test_magnitudes_are_uniform_up_to_the_severity() -> None:
    stage = AugMix(severity=5, mixture_width=1, chain_depth=1)
    drawn = _drawn(stage)
    warps = drawn["matrix"][drawn["group"] == Group.WARP]
    sheared = warps[(warps[:, 1, 0] == 0) & (warps[:, 0, 1] != 0)]
    assert kstest(sheared[:, 0, 1], "uniform", (-0.15, 0.3)).pvalue > UNLIKELY
    moved = warps[(warps[:, :2, :2] == np.eye(2)).all(axis=(1, 2)) & (warps[:, 0, 2] != 0)]
    assert kstest(moved[:, 0, 2] / SIDE, "uniform", (-0.15, 0.3)).pvalue > UNLIKELY


def test_what_chains_make_is_blended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One chain solarizes and then posterizes, the other one inverts: all exact, so that only rounding is left."""
    stage = AugMix(mixture_width=2, chain_depth=2)
    photo = np.ascontiguousarray(PICTURES["photo"][:SIDE, :SIDE])
    rng = np.random.default_rng(0)
    weights = rng.dirichlet([1, 1, 1], 30).astype(np.float32)

    def drawn(_: AugMix, uniforms: NDArray[np.float64], heights: Any, widths: Any) -> Arrays:
        count = len(uniforms)
        matrices = np.zeros((count, 2, 2, 3, 3), np.float32)
        matrices[:, 0, 0, 0, 0], matrices[:, 0, 1, 0, 0], matrices[:, 1, 0, 0, 0] = 1 - 100, 256 - 32, 1
        groups = [[Group.SOLARIZE, Group.POSTERIZE], [Group.SOLARIZE, Group.IDENTITY]]
        return {"group": np.array([groups] * count, np.int32), "matrix": matrices, "weight": weights}

    monkeypatch.setattr(AugMix, "draw", drawn)
    image = Image.fromarray(photo)
    one = np.asarray(ImageOps.posterize(ImageOps.solarize(image, 100), 3))
    chains = np.stack([photo, one, np.asarray(ImageOps.invert(image))]).astype(np.float64)
    expected = np.tensordot(weights.astype(np.float64), chains, 1)  # (30, side, side, 3)
    served = serve(Recipe([stage], levels(SIDE), 0), [photo] * 30).transpose(0, 2, 3, 1)
    assert abs(served - expected).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"severity": -1}, "aug_mix: severity must be a number of at least 0, got -1: 3 is the paper's"),
        ({"severity": float("inf")}, "aug_mix: severity must be a number of at least 0, got inf"),
        ({"alpha": float("inf")}, "aug_mix: alpha must be a number above 0, got inf"),
        ({"mixture_width": 0}, "aug_mix: mixture_width must be an int of at least 1, got 0: 3 is the paper's"),
        ({"chain_depth": 0}, "aug_mix: chain_depth must be -1 or at least 1, got 0: -1 draws it"),
        ({"chain_depth": -2}, "aug_mix: chain_depth must be an int of at least -1, got -2: -1 draws it"),
        ({"alpha": 0}, "aug_mix: alpha must be a number above 0, got 0: 1 is the paper's"),
        ({"noise": 0.5}, r"aug_mix: noise must be a MagnitudeNoise, got 0\.5: pass such as MagnitudeNoise"),
        ({"fill": 256}, r"fill must be a level in 0 \.\. 255, or 3 of them, got 256"),
        ({"interpolation": "cubic"}, "aug_mix: interpolation must be"),
    ],
)
def test_arguments_that_cannot_work_are_refused_with_a_remedy(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AugMix(**arguments)
