"""Is noise normal, and the same whoever makes it?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn, types
from nvidia.dali.pipeline import pipeline_def
from scipy.stats import chisquare, norm

from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD
from dalirefurb.augment.stages.erasing import FIRST, KEYS, ROW, SECOND, THIRD, Noise, byte_sums, paint_noise

UNLIKELY = 1e-4


def one_sum(key: int, row: int, place: int) -> int:
    """The sum of eight bytes, in Python's own whole numbers."""
    bits = (key * THIRD + row * ROW + place) % 2**32
    bits = (bits ^ bits >> 16) * FIRST % 2**32
    bits = (bits ^ bits >> 13) * SECOND % 2**32
    bits ^= bits >> 16
    more = (bits ^ bits >> 15) * THIRD % 2**32
    more ^= more >> 13
    return sum(bits.to_bytes(4, "little")) + sum(more.to_bytes(4, "little"))


def distribution() -> np.ndarray:
    """The probability of each sum of eight bytes."""
    one = np.full(256, 1 / 256)
    chances = one
    for _ in range(7):
        chances = np.convolve(chances, one)
    return chances


def test_a_sum_is_that_of_eight_bytes() -> None:
    keys = np.array([0, 1, 12345, KEYS - 1], np.int32)
    for row in (0, 1, 77, 65535):
        expected = [[one_sum(key, row, place) for place in range(50)] for key in keys.tolist()]
        assert byte_sums(keys, row, 50).tolist() == expected


@pytest.mark.parametrize("along", ["keys", "rows", "columns"])
def test_sums_are_those_of_independent_bytes(along: str) -> None:
    if along == "keys":
        sums = byte_sums(np.arange(100_000, dtype=np.int32), 3, 3)[:, 1]
    elif along == "rows":
        sums = np.concatenate([byte_sums(np.array([5], np.int32), row, 3)[0] for row in range(30_000)])
    else:
        sums = byte_sums(np.array([9], np.int32), 0, 100_000)[0]
    chances = distribution()
    # Of fewer than that many the test is not for; the tails are one class each.
    likely = np.flatnonzero(chances * len(sums) >= 20)
    first, last = likely[0], likely[-1]
    observed = np.bincount(sums.clip(first, last), minlength=last + 1)[first:]
    expected = chances[first : last + 1].copy()
    expected[0], expected[-1] = chances[: first + 1].sum(), chances[last:].sum()
    assert chisquare(observed, expected * len(sums)).pvalue > UNLIKELY
    lag_correlation = np.corrcoef(sums[:-1], sums[1:])[0, 1]
    assert abs(lag_correlation) <= 4 / np.sqrt(len(sums))


def test_a_sum_of_eight_bytes_is_normal_to_the_stated_share() -> None:
    shares = np.cumsum(distribution())
    deviation = np.sqrt(8 * (256**2 - 1) / 12)
    normal = norm.cdf((np.arange(2041) + 0.5 - 1020) / deviation)
    assert np.abs(shares - normal).max() <= 0.004
    assert 1020 / deviation == pytest.approx(4.9, abs=0.05)


def test_levels_have_the_mean_and_the_deviation_asked_for() -> None:
    sums = byte_sums(np.arange(200_000, dtype=np.int32))
    levels = Noise.of((0.5, 0.4, 0.6), (0.05, 0.1, 0.02)).levels(sums)
    assert np.allclose(levels.mean(axis=0) / 255, (0.5, 0.4, 0.6), atol=1e-3)
    assert np.allclose(levels.std(axis=0) / 255, (0.05, 0.1, 0.02), rtol=1e-2)
    assert np.array_equal(levels, np.rint(levels))


def test_levels_are_cut_off_at_black_and_white() -> None:
    sums = byte_sums(np.arange(200_000, dtype=np.int32))
    levels = Noise.of(IMAGENET_MEAN, IMAGENET_STD).levels(sums)
    assert levels.min() == 0
    assert levels.max() == 255
    below = norm.cdf((0.5 / 255 - np.array(IMAGENET_MEAN)) / IMAGENET_STD)
    assert np.allclose((levels == 0).mean(axis=0), below, atol=0.005)


def test_noise_as_wide_as_its_image_is_the_same_where_it_is_pasted() -> None:
    """On a GPU it is made so, since DALI reads all that it pastes by the lines of the first image there."""
    noise = Noise.of(IMAGENET_MEAN, IMAGENET_STD)
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in [(20, 33), (7, 5), (40, 9)] * 4]
    windows = np.array(
        [
            (top, left, rows, columns)
            for height, width in [picture.shape[:2] for picture in pictures]
            for top, left in [rng.integers(0, (height, width))]
            for rows, columns in [rng.integers(0, (height - top + 1, width - left + 1))]
        ],
        np.int32,
    )
    keys = rng.integers(0, KEYS, len(pictures)).astype(np.int32)

    @pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
    def graph() -> Any:
        images = fn.external_source(name="images", dtype=types.UINT8, ndim=3, layout="HWC")
        window = fn.external_source(name="window", dtype=types.INT32, ndim=1)
        key = fn.external_source(name="key", dtype=types.INT32, ndim=0)
        narrow = paint_noise(images, window, key, noise, as_wide=False)
        return narrow, paint_noise(images, window, key, noise, as_wide=True)

    pipeline = graph(batch_size=len(pictures), num_threads=2, device_id=None)
    for name, values in (("images", pictures), ("window", windows), ("key", keys)):
        pipeline.feed_input(name, values)
    narrow, wide = (list(map(np.asarray, each)) for each in pipeline.run())
    assert all(map(np.array_equal, narrow, wide))
    assert not all(map(np.array_equal, narrow, pictures))
