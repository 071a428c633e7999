import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from dalirefurb import rng

ROWS = 1 << 15
UNLIKELY = 1e-6

GOLDEN_KEYS = [0x490A32D6978C23C8, 0xC899F0F44B8F7719]
GOLDEN_UNIFORMS = [
    [413209414498129, 7207319588648318, 6421555238219356],
    [4065932495091178, 5887653018703101, 6514303981016281],
    [3958038988319328, 8570607389096051, 6244357660142152],
]
GOLDEN_ORDER = [280234818304, 911379388876, 611890084568, 457063408841]
GOLDEN_PERMUTATION = [4, 0, 5, 10, 9, 11, 3, 7, 6, 1, 2, 8]


def draw(*, seed=0, purpose="flip", first=0, number=0, count=1, rows=ROWS):
    indices = np.arange(first, first + rows)
    return rng.uniforms(seed, purpose, indices, np.full(rows, number), count)


def assert_even(cells, size):
    """Chi-square: all `size` cells are equally likely."""
    expected = len(cells) / size
    statistic = ((np.bincount(cells, minlength=size) - expected) ** 2 / expected).sum()
    assert UNLIKELY < chi2.sf(statistic, size - 1) < 1 - UNLIKELY


def assert_unrelated(first, second):
    """No linear correlation, and all 16 x 16 cells of the unit square are equally likely."""
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first))
    assert_even((first * 16).astype(int) * 16 + (second * 16).astype(int), 256)


@pytest.mark.parametrize("chunk", range(8))
def test_a_bijection_of_any_size_takes_each_value_once_and_goes_back(chunk):
    for size in range(1 + chunk, 2001, 8):
        order = rng.Bijection(size, rng.key(0, "test", size))
        values = order.values(np.arange(size))
        assert np.sort(values).tolist() == list(range(size))
        assert order.positions(values).tolist() == list(range(size))


@given(size=st.integers(1, 2**62), data=st.data())
def test_a_large_bijection_goes_there_and_back_and_stays_inside(size, data):
    order = rng.Bijection(size, rng.key(1, "test"))
    some = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True)))
    for there, back in ((order.values, order.positions), (order.positions, order.values)):
        moved = there(some)
        assert 0 <= moved.min() <= moved.max() < size
        assert len(set(moved.tolist())) == len(some)
        assert back(moved).tolist() == some.tolist()


@given(data=st.data())
def test_orders_of_several_sizes_are_each_as_alone(data):
    sizes = data.draw(st.lists(st.one_of(st.integers(1, 600), st.integers(1, 10**12)), min_size=1, max_size=5))
    keys = [rng.key(2, number) for number in range(len(sizes))]
    which = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=30)), np.int64)
    numbers = np.array([data.draw(st.integers(0, sizes[each] - 1)) for each in which.tolist()], np.int64)
    together = rng.Bijections(sizes, keys)
    alone = [rng.Bijection(size, of) for size, of in zip(sizes, keys, strict=True)]
    for name in ("values", "positions"):
        expected = [
            int(getattr(alone[a], name)(np.array([b]))[0])
            for a, b in zip(which.tolist(), numbers.tolist(), strict=True)
        ]
        assert getattr(together, name)(numbers, which).tolist() == expected


SIZES = [513, 700, *(pytest.param(size, marks=pytest.mark.weekly) for size in (3, 12, 100, 500, 1200))]
"""Of orders: tables and networks, and those where networks are worst: just above the largest table."""


@pytest.mark.parametrize("size", SIZES)
def test_every_position_has_every_value_equally_often_over_keys(size):
    trials = max(400, 400_000 // size)
    bins = min(size, 20)
    counts = np.zeros((bins, bins))
    for trial in range(trials):
        values = rng.Bijection(size, rng.key(trial, "even")).values(np.arange(size))
        np.add.at(counts, (np.arange(size) * bins // size, values * bins // size), 1)
    rows = np.bincount(np.arange(size) * bins // size, minlength=bins)
    expected = trials * np.outer(rows, rows) / size
    statistic = ((counts - expected) ** 2 / expected).sum() * (size - 1) / size
    assert UNLIKELY < chi2.sf(statistic, (bins - 1) ** 2) < 1 - UNLIKELY


@pytest.mark.parametrize("size", SIZES)
def test_pairs_of_positions_have_every_pair_of_values_equally_often(size):
    """Neighbours, and positions a row or a column of the network's rectangle apart: what a weak network would keep."""
    side = int(np.sqrt(size))
    trials = 40_000
    for first, second in ((0, 1), (0, side), (1, 2 * side)):
        if second >= size or second == first:
            continue
        orders = rng.Bijections([size] * trials, [rng.key(trial, "pairs") for trial in range(trials)])
        one, other = (orders.values(np.full(trials, place), np.arange(trials)) for place in (first, second))
        assert_even((other - one) % size - 1, size - 1)
        assert_even(one, size)


@pytest.mark.parametrize("size", SIZES)
def test_neighbours_stay_together_and_numbers_stay_in_place_as_often_as_by_chance(size):
    trials = max(400, 200_000 // size)
    kept = fixed = 0
    for trial in range(trials):
        values = rng.Bijection(size, rng.key(trial, "neighbours")).values(np.arange(size))
        kept += np.count_nonzero(abs(np.diff(values)) == 1)
        fixed += np.count_nonzero(values == np.arange(size))
    assert abs(kept - trials * 2 * (size - 1) / size) < 6 * np.sqrt(2 * trials)
    assert abs(fixed - trials) < 6 * np.sqrt(trials)


@pytest.mark.parametrize("size", [700, 10**6, 10**12, 2**62])
def test_orders_of_two_keys_have_nothing_to_do_with_each_other(size):
    some = np.unique(np.linspace(0, size - 1, 50_000).astype(np.int64))
    first, second = (rng.Bijection(size, rng.key(0, "keys", number)).values(some) / size for number in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(some))
    assert abs(np.corrcoef(first, some / size)[0, 1]) < 5 / np.sqrt(len(some))
    if len(some) > 10_000:
        assert_even((first * 16).astype(int) * 16 + (second * 16).astype(int), 256)


def test_a_bijection_is_as_it_always_was():
    order = rng.Bijection(10**12, rng.key(7, "golden"))
    assert order.values(np.arange(4)).tolist() == GOLDEN_ORDER


@given(
    rows=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**31)), min_size=1, max_size=20),
    data=st.data(),
)
def test_a_row_does_not_depend_on_which_other_rows_are_drawn_or_in_which_order(rows, data):
    indices, numbers = np.array(rows).T
    together = rng.uniforms(5, "crop", indices, numbers, 3)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=20)))
    assert np.array_equal(rng.uniforms(5, "crop", indices[chosen], numbers[chosen], 3), together[chosen])


@given(fewer=st.integers(0, 8), more=st.integers(8, 40))
def test_a_column_does_not_depend_on_how_many_are_drawn(fewer, more):
    assert np.array_equal(draw(count=fewer, rows=7), draw(count=more, rows=7)[:, :fewer])


def test_drawing_leaves_the_indices_and_numbers_as_they_were():
    indices, numbers = np.arange(5), np.arange(5)
    rng.uniforms(0, "crop", indices, numbers, 2)
    assert np.array_equal(indices, np.arange(5))
    assert np.array_equal(numbers, np.arange(5))


def test_no_rows_and_no_columns_are_fine():
    assert draw(rows=0, count=3).shape == (0, 3)
    assert draw(rows=3, count=0).shape == (3, 0)


@pytest.mark.parametrize("column", [0, 1, 39])
@pytest.mark.parametrize("number", [0, 1, 1_000_000])
def test_uniforms_fill_the_unit_interval_evenly(number, column):
    values = draw(number=number, count=40)[:, column]
    assert values.min() >= 0
    assert values.max() < 1
    assert_even((values * 256).astype(int), 256)


def test_uniforms_of_one_sample_over_its_servings_are_even():
    values = rng.uniforms(0, "flip", np.full(ROWS, 17), np.arange(ROWS), 1)[:, 0]
    assert_even((values * 256).astype(int), 256)


def test_the_lowest_bits_of_uniforms_are_even():
    values = draw()[:, 0] * 2**53
    assert np.array_equal(values, np.floor(values))
    assert_even(values.astype(np.int64) % 256, 256)


@pytest.mark.parametrize(
    "other",
    [
        {"first": 1},
        {"first": 64},
        {"number": 1},
        {"number": 2},
        {"number": ROWS},
        {"seed": 1},
        {"seed": -1},
        {"seed": 2**64},
        {"purpose": "flips"},
        {"purpose": "crop"},
    ],
    ids=str,
)
def test_neighbouring_keys_are_unrelated(other):
    assert_unrelated(draw()[:, 0], draw(**other)[:, 0])


@pytest.mark.parametrize("distance", [1, 2, 4, 39])
def test_neighbouring_draws_of_a_row_are_unrelated(distance):
    values = draw(count=40)
    assert_unrelated(values[:, 0], values[:, distance])
    assert_unrelated(values[:, 0], np.roll(values[:, distance], 1))


def test_index_and_number_do_not_stand_in_for_each_other():
    index, number = np.divmod(np.arange(ROWS), 300)
    assert_unrelated(rng.uniforms(0, "flip", index, number, 1)[:, 0], rng.uniforms(0, "flip", number, index, 1)[:, 0])
    assert_unrelated(
        rng.uniforms(0, "flip", index, number, 1)[:, 0],
        rng.uniforms(0, "flip", index + 1, number - 1 + 300, 1)[:, 0],
    )


def test_all_uniforms_of_a_run_are_distinct():
    index, number = np.divmod(np.arange(ROWS), 128)
    values = rng.uniforms(0, "flip", index, number, 8)
    assert len(np.unique(values)) == values.size


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "a", 1, 2), (0, "a", 2, 1)),
        ((0, "a", 1, 2), (1, "a", 0, 2)),
        ((0, "a", 12), (0, "a", 1, 2)),
        ((0, "a", 1), (0, "a", "1")),
        ((0, "a", "b"), (0, "ab")),
        ((0, "a"), (0, "a", 0)),
    ],
)
def test_purposes_are_told_apart(one, other):
    assert rng.key(*one) != rng.key(*other)
    assert not np.array_equal(rng.permutation(50, *one), rng.permutation(50, *other))


def test_numpy_integers_mean_what_python_integers_mean():
    # The values are written out, since `key` remembers what it gave for an equal purpose.
    assert rng.key(np.int64(3), np.str_("epoch"), np.int32(4)) == 0x8B7DF197387E6D44
    assert rng.key(3, "epoch", 4) == 0x8B7DF197387E6D44


@given(size=st.integers(0, 300), seed=st.integers(), purpose=st.text(max_size=5))
def test_a_permutation_holds_each_number_once(size, seed, purpose):
    order = rng.permutation(size, seed, purpose)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(size))


def test_a_permutation_puts_every_number_anywhere():
    orders = np.array([rng.permutation(8, 0, "order", epoch) for epoch in range(4000)])
    for place in range(8):
        assert_even(orders[:, place], 8)
    assert_even(orders[:, 0] * 8 + orders[:, 1] - orders[:, 0] - (orders[:, 1] > orders[:, 0]), 56)


def test_keys_of_numbers_are_distinct_and_each_is_its_numbers_own():
    numbers = np.arange(ROWS, dtype=np.uint64)
    keys = rng.numbered_keys(numbers, rng.key(3, "order"))
    assert len(np.unique(keys)) == ROWS
    assert np.array_equal(rng.numbered_keys(numbers[:10], rng.key(3, "order")), keys[:10])


def test_the_stream_is_the_published_one():
    """Other values are a breaking change: every run's images and batches change with them."""
    assert rng.key(0) == GOLDEN_KEYS[0]
    assert rng.key(7, "flip", 3, "a") == GOLDEN_KEYS[1]
    values = rng.uniforms(7, "flip", np.array([0, 1, 1_281_166]), np.array([0, 5, 89]), 3)
    assert (values * 2**53).astype(np.int64).tolist() == GOLDEN_UNIFORMS
    assert rng.permutation(12, 7, "order", 3).tolist() == GOLDEN_PERMUTATION
