"""Are operations drawn as RandAugment says?"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from dalirefurb.augment.policies.layers import RandAugmentLayer
from dalirefurb.augment.policies.operations import OPERATIONS, BinnedTable, Chosen
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import uniforms

NAMES = [operation.name for operation in OPERATIONS]


def test_outcomes_are_drawn_uniformly_by_operation_and_sign():
    layer = RandAugmentLayer()
    count = 56_000
    indices = np.arange(count)
    sizes = np.full(count, 224)
    drawn = layer.draw(uniforms(0, layer.name, indices, indices, 2), sizes, sizes)
    keys = np.column_stack([drawn["group"], drawn["matrix"].reshape(count, 9)])
    _, counts = np.unique(keys, axis=0, return_counts=True)
    assert layer.outcomes.sum() == pytest.approx(1)
    assert len(counts) == len(layer.outcomes) == 23
    assert chisquare(np.sort(counts), count * np.sort(layer.outcomes)).pvalue > 1e-3


def test_a_draw_takes_the_magnitude_and_the_sizes_of_the_sample():
    layer = RandAugmentLayer(magnitude=30)
    translate_x = (NAMES.index("TranslateX") + 0.5) / len(NAMES)
    drawn = layer.draw(np.array([[translate_x, 0.4], [translate_x, 0.6]]), np.array([10, 10]), np.array([331, 662]))
    assert drawn["matrix"][:, 0, 2].tolist() == [150, -300]
    assert drawn["matrix"].flags.c_contiguous
    assert {name: (str(array.dtype), array.shape[1:]) for name, array in drawn.items()} == {
        name: (parameter.dtype, parameter.shape) for name, parameter in layer.parameters.items()
    }


def test_batches_of_other_heights_or_widths_get_the_numbers_of_their_own():
    layer, given = RandAugmentLayer(), np.random.default_rng(0).random((99, 2))
    for sides in ((40, 60), (40, 90), (20, 90)):
        heights, widths = (np.full(99, side) for side in sides)
        fresh = RandAugmentLayer().draw(given, heights, widths)
        assert np.array_equal(layer.draw(given, heights, widths)["matrix"], fresh["matrix"])


@pytest.mark.parametrize("layer_bins", [2, 11, 31])
def test_offsets_are_cut_to_whole_pixels_as_integers_would_be(layer_bins):
    widths = np.arange(1, 2000)
    for magnitude_bin in range(layer_bins):
        drawn = BinnedTable(OPERATIONS, layer_bins).parameters(
            Chosen(np.full(len(widths), NAMES.index("TranslateX")), magnitude_bin, np.ones(len(widths), bool)),
            heights=widths,
            widths=widths,
        )
        whole = 150 * widths * magnitude_bin // (331 * (layer_bins - 1))
        assert np.array_equal(drawn["matrix"][:, 0, 2], whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"magnitude": 31}, r"magnitude must be an int in 0\.\.30, got 31: lower it"),
        ({"magnitude": -1}, r"magnitude must be an int in 0\.\.30, got -1"),
        (
            {"magnitude": 0, "num_magnitude_bins": 1},
            "num_magnitude_bins must be an int of at least 2, got 1: the paper has 31",
        ),
        ({"interpolation": "cubic"}, 'interpolation must be "nearest" or "bilinear", got \'cubic\': choose'),
        ({"fill": 256}, r"fill must be a level in 0 \.\. 255, or 3 of them, got 256: use 0"),
        ({"fill": (1, 2)}, r"fill must be a level in 0 \.\. 255, or 3 of them, got \(1, 2\)"),
    ],
)
def test_arguments_that_cannot_work_are_refused_with_a_remedy(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        RandAugmentLayer(**arguments)
