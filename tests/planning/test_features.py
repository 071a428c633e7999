import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.difficulty import FeatureTable


def image(height, width, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def bytes_of(table, index):
    return np.rint((table.rows(np.array([index]))[0] + 1) * 127.5).astype(int).tolist()


def share(pixel, size, cell, cells):
    """How much of a pixel lies in a cell, along one side."""
    low, high = Fraction(cell * size, cells), Fraction((cell + 1) * size, cells)
    return max(Fraction(0), min(high, pixel + 1) - max(low, pixel))


def area_means(pixels, cells):
    """The mean of each channel over each cell, halves rounded up, one pixel at a time in exact fractions."""
    height, width, _ = pixels.shape
    means = []
    for down, across, channel in itertools.product(range(cells), range(cells), range(3)):
        total = Fraction(0)
        for y, x in itertools.product(range(height), range(width)):
            total += share(y, height, down, cells) * share(x, width, across, cells) * int(pixels[y, x, channel])
        means.append(int(total * cells * cells / (height * width) + Fraction(1, 2)))
    return means


@given(height=st.integers(1, 11), width=st.integers(1, 11), cells=st.integers(1, 4), seed=st.integers(0, 99))
@example(height=1, width=1, cells=4, seed=0)
@example(height=8, width=8, cells=4, seed=0)
def test_features_are_the_area_means_of_the_pixels(height, width, cells, seed):
    pixels = image(height, width, seed)
    table = FeatureTable(1, resolution=cells)
    table.fill(np.array([0]), [pixels])
    assert bytes_of(table, 0) == area_means(pixels, cells)


def test_halves_are_rounded_up():
    table = FeatureTable(1, resolution=1)
    table.fill(np.array([0]), [np.array([[[0, 1, 254], [1, 2, 255]]], np.uint8)])
    assert bytes_of(table, 0) == [1, 2, 255]


def test_the_mean_of_a_large_image_is_exact():
    pixels = image(999, 1001, 0)
    table = FeatureTable(1, resolution=1)
    table.fill(np.array([0]), [pixels])
    sums = pixels.sum(axis=(0, 1), dtype=np.int64)
    assert bytes_of(table, 0) == ((2 * sums + 999 * 1001) // (2 * 999 * 1001)).tolist()
    almost_half = np.full((1000, 1000, 3), 100, np.uint8)
    almost_half[::2] += 1
    almost_half[0, 0] = 99  # the mean is 100.499998
    table.fill(np.array([0]), [almost_half])
    assert bytes_of(table, 0) == [100] * 3


SHAPES = [(8, 8), (5, 9), (8, 8), (30, 7), (5, 9), (1, 1), (9, 5), (8, 8)]


@given(order=st.permutations(range(len(SHAPES))), cut=st.integers(0, len(SHAPES)))
def test_features_depend_on_no_other_image_and_on_no_order(order, cut):
    images = [image(*shape, seed) for seed, shape in enumerate(SHAPES)]
    alone, together = (FeatureTable(len(SHAPES), resolution=4) for _ in range(2))
    for index, pixels in enumerate(images):
        alone.fill(np.array([index]), [pixels])
    for some in (order[:cut], order[cut:]):
        together.fill(np.array(some, np.int64), [images[index] for index in some])
    everything = np.arange(len(SHAPES))
    assert together.rows(everything).tolist() == alone.rows(everything).tolist()


def test_many_images_of_one_shape_are_done_in_pieces_with_the_same_result():
    images = [image(200, 300, seed) for seed in range(14)]  # 180,000 pixels each
    together = FeatureTable(14, resolution=8)
    together.fill(np.arange(14), images)
    for index, pixels in enumerate(images):
        alone = FeatureTable(14, resolution=8)
        alone.fill(np.array([index]), [pixels])
        assert bytes_of(together, index) == bytes_of(alone, index)


def test_what_is_missing_is_told_once_until_it_is_there():
    table = FeatureTable(6, resolution=2)
    assert table.missing(np.array([3, 5, 3, 0])).tolist() == [0, 3, 5]
    table.fill(np.array([3, 4]), [image(4, 4, 3), image(4, 4, 4)])
    assert table.missing(np.array([3, 5, 3, 0])).tolist() == [0, 5]
    table.fill(np.array([0, 5]), [image(4, 4, 0), image(4, 4, 5)])
    assert table.missing(np.array([3, 5, 3, 0])).tolist() == []


def test_features_lie_between_minus_one_and_one():
    table = FeatureTable(2, resolution=2)
    table.fill(np.arange(2), [np.zeros((3, 3, 3), np.uint8), np.full((3, 3, 3), 255, np.uint8)])
    assert table.rows(np.array([1, 0, 1])).tolist() == [[1.0] * 12, [-1.0] * 12, [1.0] * 12]


def test_a_table_says_what_it_takes():
    table = FeatureTable(1000, resolution=8)
    assert (table.num_samples, table.resolution) == (1000, 8)
    assert table._table.nbytes + table._there.nbytes == 193_000


@pytest.mark.parametrize(
    ("num_samples", "resolution", "message"),
    [
        (0, 8, "num_samples must be an int of at least 1, got 0: pass the planner's num_samples"),
        (9, 0, "resolution must be an int of at least 1, got 0: pass the pixels a side to judge images by"),
        (9, 8.0, "resolution must be an int of at least 1, got 8.0: pass the pixels a side to judge images by"),
    ],
)
def test_a_table_without_rows_or_columns_is_refused(num_samples, resolution, message):
    with pytest.raises(ConfigurationError) as refusal:
        FeatureTable(num_samples, resolution=resolution)
    assert str(refusal.value) == message
