"""Are operations, magnitudes and signs drawn as TrivialAugment says?"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from dalirefurb.augment.policies.layers import TrivialAugmentLayer
from dalirefurb.augment.policies.operations import WIDE_OPERATIONS
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import uniforms

UNLIKELY = 1e-4
COUNT = 100_000


def drawn() -> np.ndarray:
    """Uniforms from the generator that the loader draws from, shape (COUNT, 3)."""
    layer = TrivialAugmentLayer()
    return uniforms(0, layer.name, np.arange(COUNT), np.zeros(COUNT, np.int64), layer.num_uniforms)


def test_operations_magnitudes_and_signs_are_drawn_uniformly_and_independently() -> None:
    operations, bins, negated, _ = TrivialAugmentLayer().choose(drawn())
    counts = np.bincount((operations * 31 + bins) * 2 + negated, minlength=14 * 31 * 2)
    assert len(counts) == 14 * 31 * 2
    assert chisquare(counts).pvalue > UNLIKELY


def test_outcomes_are_those_that_are_drawn() -> None:
    """Where an operation has no magnitude or no sign, these do not make another outcome."""
    layer = TrivialAugmentLayer()
    operations, bins, negated, _ = layer.choose(drawn())
    ranged = np.array([each.name not in ("Identity", "AutoContrast", "Equalize") for each in WIDE_OPERATIONS])
    signed = ranged & np.array([each.name not in ("Posterize", "Solarize") for each in WIDE_OPERATIONS])
    keys = (operations * 31 + bins * ranged[operations]) * 2 + (negated & signed[operations])
    _, counts = np.unique(keys, return_counts=True)
    assert layer.outcomes.sum() == pytest.approx(1)
    assert len(counts) == len(layer.outcomes) == 3 + 2 * 31 + 9 * 31 * 2
    assert chisquare(np.sort(counts), COUNT * np.sort(layer.outcomes)).pvalue > UNLIKELY


def test_a_translation_is_in_whole_pixels_whatever_the_size() -> None:
    layer = TrivialAugmentLayer()
    translate_x = ([each.name for each in WIDE_OPERATIONS].index("TranslateX") + 0.5) / 14
    given = np.array([[translate_x, 20.5 / 31, 0.6]] * 2)
    drawn = layer.draw(given, np.array([32, 224]), np.array([32, 224]))
    assert drawn["matrix"][:, 0, 2].tolist() == [-21, -21]  # 32 * 20 / 30 = 21.3


@pytest.mark.parametrize(
    "pixels",
    [
        [0, 32],
        [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 20, 21, 22, 24, 25, 26, 28, 29, 30, 32],
    ],
)
def test_translations_are_spaced_as_by_pytorchs_linspace(pixels: list[int]) -> None:
    bins = len(pixels)
    layer = TrivialAugmentLayer(num_magnitude_bins=bins)
    translate_x = ([each.name for each in WIDE_OPERATIONS].index("TranslateX") + 0.5) / 14
    given = np.array([[translate_x, (each + 0.5) / bins, 0.6] for each in range(bins)])
    matrices = layer.draw(given, np.full(bins, 64), np.full(bins, 64))["matrix"]
    assert (-matrices[:, 0, 2]).tolist() == pixels


def test_there_may_be_another_number_of_magnitudes() -> None:
    layer = TrivialAugmentLayer(num_magnitude_bins=11)
    operations, bins, negated, _ = layer.choose(drawn())
    counts = np.bincount((operations * 11 + bins) * 2 + negated, minlength=14 * 11 * 2)
    assert len(counts) == 14 * 11 * 2
    assert chisquare(counts).pvalue > UNLIKELY
    assert len(layer.outcomes) == 3 + 2 * 11 + 9 * 11 * 2
    strongest = np.array([[([each.name for each in WIDE_OPERATIONS].index("Rotate") + 0.5) / 14, 0.999, 0.6]])
    matrix = layer.draw(strongest, np.array([32]), np.array([32]))["matrix"][0]
    assert matrix[0, 0] == pytest.approx(np.cos(np.radians(135)))


def test_a_single_magnitude_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="num_magnitude_bins must be an int of at least 2, got 1: the paper has"
    ):
        TrivialAugmentLayer(num_magnitude_bins=1)
