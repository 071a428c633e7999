"""Masks of objects: beside whether each pixel's centre is in an outline, and beside masks that are warped."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.targets import InstanceMasks, instance_masks
from dalirefurb.targets.masks import warp_labels
from tests.targets.test_masks import any_maps

SIDES = HEIGHT, WIDTH = (37, 53)
NO_LINES = np.empty((1, 0, 3))
SQUARE = [3, 2, 9, 2, 9, 7, 3, 7]


def drawn(
    objects: list[Any], source_map: NDArray[np.float64], lines: NDArray[np.float64], source_size: tuple[int, int]
) -> NDArray[np.uint8]:
    """Masks of an image's objects in a served one, (k, 37, 53)."""
    masks = InstanceMasks([objects])
    made = np.zeros((len(objects), *SIDES), np.uint8)
    masks.draw(masks.rows.values, source_map, lines[0], source_size, made)
    return made


def inside(outline: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether points are in an outline: to the left of them an odd number of its edges is crossed."""
    within = np.zeros(x.shape, np.bool_)
    for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, 1, axis=0), strict=True):
        if y0 != y1:
            within ^= ((y0 <= y) != (y1 <= y)) & (x0 + (y - y0) * (x1 - x0) / (y1 - y0) <= x)
    return within


def near(outline: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether points are so near to an edge that rounding decides."""
    close = np.zeros(x.shape, np.bool_)
    points = np.stack([x, y], axis=-1)
    for one, other in zip(outline, np.roll(outline, 1, axis=0), strict=True):
        along = other - one
        share = np.clip(((points - one) @ along) / max(along @ along, 1e-300), 0, 1)
        close |= np.linalg.norm(points - one - share[..., None] * along, axis=-1) < 1e-6
    return close


def random_outlines(rng: np.random.Generator, count: int) -> list[NDArray[np.float64]]:
    """Outlines of whole and of broken coordinates, that cross themselves, and reach out of the image."""
    made = [rng.uniform(-15, 70, (rng.integers(3, 12), 2)) for _ in range(count)]
    return [np.rint(each * 2) / 2 if rng.random() < 0.5 else each for each in made]


def shown(
    objects: list[list[NDArray[np.float64]]], source_map: Any, lines: Any, source_size: tuple[int, int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of objects, found by each pixel's place in the source, and which of it rounding decides."""
    x, y = np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)
    u, v, third = np.einsum("ij,jhw->ihw", source_map, np.stack([x, y, np.ones_like(x)]))
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = np.where(third > 0, [u / third, v / third], np.nan)
    height, width = source_size
    seen, unsure = (u >= 0) & (u < width) & (v >= 0) & (v < height), np.abs(third) < 1e-9
    for a, b, c in lines[0].tolist():
        seen &= a * x + b * y + c >= 0
    for edge in (u, v, u - width, v - height):
        unsure |= np.abs(edge) < 1e-6
    u, v = np.nan_to_num(u, nan=-9), np.nan_to_num(v, nan=-9)
    masks = np.array([np.any([inside(part, u, v) for part in each], axis=0) & seen for each in objects])
    unsure = np.array([np.any([near(part, u, v) for part in each], axis=0) | unsure for each in objects])
    return masks, unsure


@given(st.integers(0, 10**6))
def test_a_pixel_is_in_an_object_if_its_centre_is_in_an_outline_of_it(seed: int) -> None:
    """In the source's own image; no pixel is left to rounding."""
    rng = np.random.default_rng(seed)
    objects = [random_outlines(rng, int(count)) for count in rng.integers(1, 4, 5)]
    expected, _ = shown(objects, np.eye(3), NO_LINES, SIDES)
    assert np.array_equal(drawn(objects, np.eye(3), NO_LINES, SIDES), expected)
    assert np.array_equal(InstanceMasks([objects]).one(0, SIDES), expected)


@given(
    any_maps(),
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(-60, 60)), max_size=3),
    st.integers(0, 10**6),
)
@example(np.eye(3), [(1.0, 0.0, -20.5), (-1.0, 0.0, 30.5)], 0)  # A centre on a line is seen.
@example(np.array([[1.0, 0, 0], [0, 1, 0], [-0.05, 0, 1]]), [], 0)  # Outlines cross the horizon.
def test_outlines_go_where_the_pixels_of_their_image_go(source_map: Any, lines: Any, seed: int) -> None:
    """By crops, flips, turns, changes of perspective and lines beyond which nothing is seen, also before a horizon."""
    if abs(np.linalg.det(source_map)) < 1e-3 or np.linalg.cond(source_map) > 1e5:
        return
    rng, borders = np.random.default_rng(seed), np.array(lines).reshape(1, -1, 3)
    borders = np.concatenate([borders, source_map[None, 2:]], axis=1)  # as geometry has it
    objects = [random_outlines(rng, int(count)) for count in rng.integers(1, 3, 4)]
    source_size = (int(rng.integers(20, 60)), int(rng.integers(20, 60)))
    made = drawn(objects, source_map, borders, source_size)
    expected, unsure = shown(objects, source_map, borders, source_size)
    assert np.array_equal(made[~unsure], expected[~unsure])
    assert unsure.mean() < 0.1


def test_what_is_compiled_does_what_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        objects = [random_outlines(rng, 2) for _ in range(3)]
        source_map = np.eye(3) + rng.normal(0, [[0.3, 0.3, 9], [0.3, 0.3, 9], [0.01, 0.01, 0.1]])
        lines = rng.normal(0, [1, 1, 20], (1, 2, 3))
        one = drawn(objects, source_map, lines, SIDES)
        with monkeypatch.context() as patch:
            patch.setattr(instance_masks, "filler", lambda: instance_masks._fill)
            other = drawn(objects, source_map, lines, SIDES)
        assert np.array_equal(one, other)


def test_flips_and_crops_of_masks_are_those_of_the_mask() -> None:
    rng = np.random.default_rng(0)
    objects = [[each] for each in random_outlines(rng, 20)]
    whole = drawn(objects, np.eye(3), NO_LINES, SIDES)
    mirror = np.array([[-1.0, 0, WIDTH], [0, 1, 0], [0, 0, 1]])
    # Centres that are on an edge belong to what is right of them, on either side.
    sure = ~shown(objects, np.eye(3), NO_LINES, SIDES)[1]
    assert (drawn(objects, mirror, NO_LINES, SIDES)[..., ::-1] == whole)[sure].all()
    moved = np.array([[1.0, 0, 7], [0, 1, -4], [0, 0, 1]])
    crop = drawn(objects, moved, NO_LINES, SIDES)
    assert np.array_equal(crop[:, 4:, : WIDTH - 7], whole[:, : HEIGHT - 4, 7:])
    assert not crop[:, :4].any()
    assert not crop[..., WIDTH - 7 :].any()


def test_rectangles_parts_and_loops_cover_the_pixels_that_coco_says() -> None:
    def mask(*outlines: list[float]) -> set[tuple[int, int]]:
        return {(int(x), int(y)) for y, x in np.argwhere(drawn([[*outlines]], np.eye(3), NO_LINES, SIDES)[0])}

    def rectangle(left: int, top: int, right: int, bottom: int) -> set[tuple[int, int]]:
        return {(x, y) for x in range(left, right) for y in range(top, bottom)}

    assert mask(SQUARE) == rectangle(3, 2, 9, 7)
    within = [5, 4, 7, 4, 7, 6, 5, 6]
    assert mask(SQUARE, within) == mask(SQUARE)  # united
    assert mask([4, 4, 5, 4, 5, 5, 4, 5]) == {(4, 4)}
    assert mask([4.4, 4.4, 4.6, 4.4, 4.6, 4.6, 4.4, 4.6]) == {(4, 4)}  # less than a pixel, around its centre
    assert mask([4.6, 4.6, 4.9, 4.6, 4.9, 4.9, 4.6, 4.9]) == set()
    assert mask([1, 3, 9, 3, 20, 3]) == set()
    beyond = [-1e9, -1e9, 1e9, -1e9, 1e9, 1e9, -1e9, 1e9]
    assert mask(beyond) == rectangle(0, 0, WIDTH, HEIGHT)
    assert mask([60, 0, 90, 0, 90, 90]) == mask([0, -9, 9, -9, 9, -1]) == set()
    twice = [0, 0, 6, 0, 6, 6, 0, 6, 0, 0, 2, 2, 4, 2, 4, 4, 2, 4, 2, 2]  # the inner square is around a hole
    assert mask(twice) == rectangle(0, 0, 6, 6) - rectangle(2, 2, 4, 4)


def test_an_image_has_any_number_of_objects() -> None:
    one_pixel = [[[x, y, x + 1, y, x + 1, y + 1, x, y + 1]] for x, y in np.ndindex(30, 10)]
    made = drawn(one_pixel, np.eye(3), NO_LINES, SIDES)
    assert [(int(x), int(y)) for _, y, x in np.argwhere(made)] == [*np.ndindex(30, 10)]
    nothing = InstanceMasks([[], [[]], []])
    assert nothing.rows.counts.tolist() == [0, 1, 0]
    assert (nothing.one(0, SIDES).shape, nothing.one(1, SIDES).any()) == ((0, *SIDES), False)
    assert drawn([], np.eye(3), NO_LINES, SIDES).shape == (0, *SIDES)


def counts_of(mask: NDArray[Any]) -> list[int]:
    """Run lengths, column by column, counted one pixel after the other."""
    counts, value = [0], 0
    for pixel in mask.T.ravel().tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return counts


def text_of(counts: list[int]) -> str:
    """COCO's compressed text, one character after the other."""
    text = ""
    for place, count in enumerate(counts):
        rest, more = count - (counts[place - 2] if place > 2 else 0), True
        while more:
            bits, rest = rest & 31, rest >> 5
            more = rest != (-1 if bits & 16 else 0)
            text += chr(48 + bits + 32 * more)
    return text


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 999))
def test_run_lengths_are_the_mask_that_they_are_of(height: int, width: int, share: float, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < share
    counts, size = counts_of(mask), [height, width]
    forms = [counts, np.array(counts), text_of(counts), text_of(counts).encode()]
    masks = InstanceMasks([[{"size": size, "counts": each} for each in forms]])
    assert {tuple(each.tolist()) for each in masks.runs.parts()} == {tuple(counts)}
    assert (masks.one(0, (height, width)) == mask).all()


def test_compressed_texts_are_read_as_pycocotools_writes_them() -> None:
    box = np.zeros((9, 11), np.uint8)
    box[2:7, 3:9], box[4, 5] = 1, 0
    (made,) = InstanceMasks([[{"size": [9, 11], "counts": "m05400MM0330000`0"}]]).one(0, (9, 11))
    assert np.array_equal(made, box)
    assert InstanceMasks([[{"size": [170, 127], "counts": "0fRe0"}]]).one(0, (170, 127)).all()
    assert not InstanceMasks([[{"size": [198, 4], "counts": "hh0"}]]).one(0, (198, 4)).any()
    large = np.zeros((146, 156), np.uint8)
    large[36:74, 31:79] = 1
    assert text_of(counts_of(large)) == "b^4V1\\3" + "0" * 93 + "Vn:"


def test_run_lengths_are_warped_as_masks_are() -> None:
    rng = np.random.default_rng(1)
    mask, lines = rng.random((30, 40)) < 0.5, np.array([[[1.0, 0.5, -9]]])
    for _ in range(10):
        source_map = np.eye(3) + rng.normal(0, [[0.2, 0.2, 5], [0.2, 0.2, 5], [0.003, 0.003, 0.1]])
        coded = {"size": mask.shape, "counts": counts_of(mask)}
        made = drawn([[SQUARE], coded, []], source_map, lines, mask.shape)
        expected = np.empty(SIDES, np.uint8)
        warp_labels(mask.astype(np.uint8), source_map, lines[0], 0, False, expected)
        assert np.array_equal(made[1], expected)
        assert not made[2].any()


REFUSED: dict[str, tuple[Any, str]] = {
    "too few pixels": ({"size": [4, 5], "counts": [1, 2]}, r"sample 1 .*of 4 x 5 pixels together, but are of 3"),
    "too many pixels": ({"size": [4, 5], "counts": [1, 29]}, "but are of 30"),
    "no size": ({"counts": [20]}, "KeyError: 'size'"),
    "below 0": ({"size": [4, 5], "counts": [-1, 21]}, "whole numbers of at least 0"),
    "broken numbers": ({"size": [4, 5], "counts": [19.5, 0.5]}, "whole numbers of at least 0"),
    "a size of one number": ({"size": 20, "counts": [20]}, "TypeError"),
    "no pixels": ({"size": [0, 5], "counts": [0]}, "0 x 5 pixels"),
    "other characters": ({"size": [4, 5], "counts": "!"}, "a compressed text, or a list, got '!'"),
    "half a text": ({"size": [4, 5], "counts": "m"}, "a compressed text"),
    "no text": ({"size": [4, 5], "counts": ""}, "a compressed text"),
    "a number without end": ({"size": [4, 5], "counts": "o" * 12 + "0"}, "a count has 13 characters"),
    "two vertices": ([[1, 2, 3, 4]], "an outline has 2 vertices"),
    "an outline that is not in a list": (SQUARE, "x and y of each vertex"),
    "numbers that are not finite": ([[1, 2, 3, float("nan"), 5, 6]], "must be finite numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mask_is_refused(name: str) -> None:
    given, said = REFUSED[name]
    with pytest.raises(ConfigurationError, match=said):
        InstanceMasks([[], [given]])


def test_other_masks_are_another_source() -> None:
    coded = {"size": [4, 5], "counts": [1, 19]}
    given = [[[[SQUARE]]], [[[SQUARE, SQUARE]]], [[[SQUARE], [SQUARE]]], [[coded]]]
    given += [[[{**coded, "size": [5, 4]}]], [[{**coded, "counts": [2, 18]}]], [[[SQUARE], coded]]]
    given += [
        [[{**coded, "counts": one}, {**coded, "counts": other}]] for one, other in (([20, 0], [20]), ([20], [0, 20]))
    ]
    digests = {InstanceMasks(each).digest() for each in given}
    assert len(digests) == len(given)
    shares = [[[[0, 0, 1, 0, 1, 1]]]]
    assert InstanceMasks(shares).digest() != InstanceMasks(shares, normalized=True).digest()
    one = InstanceMasks([[[SQUARE], coded], []])
    again = pickle.loads(pickle.dumps(one))
    assert again.digest() == one.digest()
    assert np.array_equal(again.one(0, (4, 5)), one.one(0, (4, 5)))
    assert one.take(np.array([1, 0])).rows.counts.tolist() == [0, 2]


def test_an_outline_around_the_whole_image_is_none_of_pixels_though_all_its_shares_are_0_or_1() -> None:
    whole = np.array([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
    masks = InstanceMasks([[whole]], normalized=True)
    assert masks.one(0, (4, 5)).tolist() == np.ones((1, 4, 5), np.uint8).tolist()


def test_samples_may_have_no_object_at_all() -> None:
    masks = InstanceMasks([[], []])
    assert (len(masks), masks.misfit(1, (4, 5))) == (2, None)
    assert masks.one(0, (4, 5)).shape == (0, 4, 5)


def test_masks_are_put_together_with_outlines_and_run_lengths_of_their_own() -> None:
    runs = [{"size": [2, 3], "counts": counts} for counts in ([1, 2, 3], [0, 4, 2])]
    one, other = [[[(0, 0, 2, 0, 2, 2, 0, 2)], runs[0]], []], [[runs[1], [(1, 0, 3, 0, 3, 1, 1, 1)]]]
    first, second = InstanceMasks(one), InstanceMasks(other)
    assert first.setting() == second.setting() != InstanceMasks([[]], normalized=True).setting()
    together = first.joined([second, first])
    places = [(first, 0), (first, 1), (second, 0), (first, 0), (first, 1)]
    for sample, (masks, own) in enumerate(places):
        assert np.array_equal(together.one(sample, (2, 3)), masks.one(own, (2, 3)))
    assert together.digest() == InstanceMasks([*one, *other, *one]).digest()


@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "float32"])
def test_arrays_of_pixels_are_no_outlines(kind: str) -> None:
    with pytest.raises(
        ConfigurationError, match="must be outlines, or run lengths as COCO has them, but some are arrays"
    ):
        InstanceMasks([np.zeros((2, 48, 64), kind)])
