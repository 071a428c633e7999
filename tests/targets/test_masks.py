"""Masks: each pixel has the label of the source pixel that its centre is in, by NumPy and by compiled code alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from dalirefurb.augment import HorizontalFlip, RandomCrop, RandomPerspective, Resize
from dalirefurb.targets import masks
from dalirefurb.targets.masks import KINDS, MADE, Runs, warp_labels, warp_mask, warp_runs
from tests.in_turn import in_turn

SIZE = (23, 31)
FILL = 9
NO_LINES = np.empty((0, 3))

numbers = st.one_of(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]), st.floats(-3, 3))
shifts = st.one_of(st.integers(-40, 40).map(float), st.floats(-40, 40))
tilts = st.one_of(st.just(0.0), st.floats(-0.1, 0.1))


@st.composite
def any_maps(draw: Any) -> NDArray[np.float64]:
    """Maps of any kind: whole steps and broken ones, stretches, turns, horizons, and what has no inverse."""
    stretch = draw(st.booleans())
    xx, xy, yx, yy = (0.0 if stretch and mixed else draw(numbers) for mixed in (False, True, True, False))
    wx, wy = (0.0 if stretch else draw(tilts) for _ in range(2))
    third = draw(st.sampled_from([1.0, -1.0, 0.7, 0.0]))
    return np.array([[xx, xy, draw(shifts)], [yx, yy, draw(shifts)], [wx, wy, third]])


def random_labels(rng: np.random.Generator, kind: str) -> NDArray[Any]:
    height, width = rng.integers(1, 40, 2)
    return rng.integers(0, np.iinfo(kind).max, (height, width), dtype=kind, endpoint=True)


def one_by_one(labels: NDArray[Any], source_map: NDArray[np.float64], lines: NDArray[np.float64]) -> NDArray[Any]:
    made = np.full(SIZE, FILL, labels.dtype)
    for y, x in np.ndindex(*SIZE):
        (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = source_map.tolist()
        u, v = x + 0.5, y + 0.5
        third = wx * u + wy * v + w0
        if third == 0 or any(a * u + b * v + c < 0 for a, b, c in lines.tolist()):
            continue
        column, row = (xx * u + xy * v + x0) / third, (yx * u + yy * v + y0) / third
        if 0 <= column < labels.shape[1] and 0 <= row < labels.shape[0]:
            made[y, x] = labels[int(row), int(column)]
    return made


def warp_batch(
    labels: Sequence[NDArray[Any]], maps: NDArray[np.float64], size: tuple[int, int], fill: int
) -> NDArray[Any]:
    """Show masks in images that were nowhere cut off on the way."""
    made = np.empty((len(labels), *size), labels[0].dtype)
    for own, source_map, row in zip(labels, maps, made, strict=True):
        warp_mask(own, source_map, NO_LINES, fill, row)
    return made


@given(
    any_maps(),
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(-60, 60)), max_size=3),
    st.sampled_from(KINDS),
    st.integers(0, 999),
)
@example(np.eye(3), [(1.0, 0.0, -2.5)], "uint8", 0)  # A centre on the line is seen.
def test_compiled_code_shows_what_numpy_shows(
    source_map: NDArray[np.float64], lines: list[Any], kind: str, seed: int
) -> None:
    labels, borders = random_labels(np.random.default_rng(seed), kind), np.array(lines).reshape(-1, 3)
    made, expected = np.empty(SIZE, kind), np.empty(SIZE, kind)
    out = made if kind in MADE else np.empty(SIZE, np.int64)
    warp_mask(labels, source_map, borders, FILL, out)
    warp_labels(labels, source_map, borders, FILL, False, expected)
    assert np.array_equal(out, expected)
    assert np.array_equal(expected, one_by_one(labels, source_map, borders))
    warp_runs(Runs.of(labels + 1), source_map, borders, FILL, out)  # Memory is not as it was.
    warp_runs(Runs.of(labels), source_map, borders, FILL, out)
    assert np.array_equal(out, expected)
    blank = np.full(SIZE, FILL + 1, out.dtype)
    over = blank.copy()
    warp_runs(Runs.of(labels), source_map, borders, FILL, over, over=True)
    unseen = one_by_one(labels * 0, source_map, borders) == FILL
    assert np.array_equal(over, np.where(unseen, blank, expected))


@pytest.mark.parametrize("third", [0.1, 0.7, 3.0, 7.7])
def test_centres_where_two_pixels_meet_are_rounded_alike(third: float) -> None:
    """Those of a map to centres half of a pixel further, which is multiplied by a number that is not seen."""
    labels, source_map = np.arange(40 * 40, dtype=np.int32).reshape(40, 40), third * np.eye(3)
    source_map[:2, 2] = third * 0.5
    for each in (source_map, source_map[[1, 0, 2]]):
        made, expected = np.empty(SIZE, np.int32), np.empty(SIZE, np.int32)
        warp_mask(labels, each, NO_LINES, FILL, made)
        warp_labels(labels, each, NO_LINES, FILL, False, expected)
        assert np.array_equal(made, expected)
        assert np.array_equal(made, one_by_one(labels, each, NO_LINES))


@pytest.mark.parametrize(("made", "kind"), in_turn(MADE, KINDS))
def test_labels_become_any_type_also_without_a_compiler(kind: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels, lines = rng.integers(0, 100, (30, 40)).astype(kind)[::-1], np.array([[1.0, 0.5, -3]])
    source_map = np.eye(3) + rng.normal(0, 0.1, (3, 3))
    one, other, fill = np.empty(SIZE, made), np.empty(SIZE, made), 255 if made == "uint8" else -100
    warp_mask(labels, source_map, lines, fill, one)
    monkeypatch.setattr(masks, "warp_of", lambda kind, made: warp_labels)
    monkeypatch.setattr(masks, "runs_of", lambda kind, made: None)
    for warp, mask in ((warp_mask, labels), (warp_runs, Runs.of(labels))):
        warp(mask, source_map, lines, fill, other)
        assert np.array_equal(one, other)
    assert {fill} < {*one.ravel().tolist()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("third", [1.0, 2.0, -1.0])
def test_runs_are_shown_as_their_mask_where_rows_stay_rows(kind: str, third: float) -> None:
    """Of any size, mirrored or not, beyond the mask and inside of it."""
    for seed in range(150):
        rng = np.random.default_rng(seed)
        (height, width), side, shown = rng.integers(1, 40, 2), rng.integers(1, 6), rng.integers(1, 50, 2)
        colours = rng.integers(0, 3, (-(-height // side), -(-width // side)))
        labels = np.kron(colours, np.ones((side, side)))[:height, :width].astype(kind)
        source_map = np.diag([*(rng.choice([-1, 1], 2) * rng.uniform(0.05, 3, 2)), third])
        source_map[:2, 2] = rng.uniform(-20, 60, 2)
        if seed % 3 == 0:
            source_map[:2] = np.where(source_map[:2], np.round(2 * source_map[:2] + 0.5) / 2, 0)  # edges on centres
        for over in (False, True):
            made, expected = (np.full(shown, 7, MADE[seed % len(MADE)]) for _ in range(2))
            warp_runs(Runs.of(labels), source_map, NO_LINES, FILL, made, over=over)
            warp_labels(labels, source_map, NO_LINES, FILL, over, expected)
            assert np.array_equal(made, expected)


def test_flips_and_crops_move_labels_as_they_are() -> None:
    labels = random_labels(np.random.default_rng(3), "int32")
    height, width = labels.shape
    sides = np.array([height]), np.array([width])
    flip = HorizontalFlip().matrices({"mirror": np.array([1])}, *sides)
    assert np.array_equal(warp_batch([labels], flip, (height, width), FILL)[0], labels[:, ::-1])
    crop = RandomCrop(SIZE, padding=50).matrices({"start": np.array([[-4, 3]])}, *sides)
    padded = np.pad(labels, ((4, 50), (0, 50)), constant_values=FILL)
    assert np.array_equal(warp_batch([labels], crop, SIZE, FILL)[0], padded[: SIZE[0], 3 : 3 + SIZE[1]])


@pytest.mark.parametrize("size", [(20, 12), (40, 36), (17, 55)])
def test_a_resize_takes_the_labels_that_pillow_takes(size: tuple[int, int]) -> None:
    labels = np.random.default_rng(0).integers(0, 256, (40, 36), np.uint8)
    stretch = Resize(size).matrices({}, np.array([40]), np.array([36]))
    expected = Image.fromarray(labels).resize(size[::-1], Image.Resampling.NEAREST)
    assert np.array_equal(warp_batch([labels], stretch, size, FILL)[0], expected)


def test_labels_go_where_the_pixels_of_a_change_of_perspective_go() -> None:
    """All but those whose source is where two pixels meet, in single precision."""
    from tests.stages import MAKERS, made

    stage, count = RandomPerspective(0.5, 1.0, interpolation="nearest", fill=FILL), 20
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 256, (count, 60, 90), np.uint8)
    heights, widths = np.full(count, 60), np.full(count, 90)
    parameters = stage.draw(rng.random((count, stage.num_uniforms)), heights, widths)
    expected = warp_batch([*labels], stage.matrices(parameters, heights, widths), (60, 90), FILL)
    for by in MAKERS:
        images = np.stack(made(stage, [np.repeat(each[..., None], 3, axis=2) for each in labels], parameters, by=by))
        other = (images[..., 0] != expected).mean()
        assert other < 0.001
