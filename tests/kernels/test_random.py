"""Are random numbers and orders the same whoever computes them?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from dalirefurb import rng
from dalirefurb.kernels.random import compile_mix, compile_walk, use_compiled

INTEGERS = st.integers(-(2**63), 2**63 - 1)


@given(
    seed=INTEGERS,
    counts=st.dictionaries(st.text(max_size=3), st.integers(1, 5), min_size=1, max_size=4),
    rows=st.lists(st.tuples(INTEGERS, INTEGERS), max_size=6),
)
def test_compiled_numbers_are_those_of_numpy(seed, counts, rows):
    indices, numbers = np.array(rows, np.int64).reshape(-1, 2).T
    indices.flags.writeable = False
    found = []
    for mix in (compile_mix(), rng._mixed):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rng, "mix", mix)
            found.append(rng.uniforms_for(seed, counts, indices, numbers))
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    for purpose, values in theirs.items():
        assert ours[purpose].dtype == values.dtype
        assert np.array_equal(ours[purpose], values)


@given(
    sizes=st.lists(st.one_of(st.integers(513, 2000), st.integers(2001, 2**62)), min_size=1, max_size=4),
    seed=INTEGERS,
    data=st.data(),
)
def test_compiled_orders_are_those_of_numpy(sizes, seed, data):
    """Without cycle walking and with much of it: where the rectangle has a row more than the size needs."""
    orders = rng.Bijections(sizes, [rng.key(seed, number) for number in range(len(sizes))])
    which = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=40)), np.int64)
    numbers = np.array([data.draw(st.integers(0, sizes[each] - 1)) for each in which.tolist()], np.int64)
    for array in (which, numbers):
        array.flags.writeable = False
    found = []
    for walk in (compile_walk(), rng._walked):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rng, "walk", walk)
            found.append([orders.values(numbers, which).tolist(), orders.positions(numbers, which).tolist()])
    assert found[0] == found[1]


@pytest.mark.parametrize("walk", [compile_walk, lambda: rng._walked], ids=["compiled", "NumPy"])
def test_orders_of_different_sizes_are_bijections_side_by_side(walk, monkeypatch):
    """Also of sizes that leave much of their rectangle out, so that numbers walk on."""
    monkeypatch.setattr(rng, "walk", walk())
    sizes = [2000, 513, 514, 547, 599, 1025, 1999]
    orders = rng.Bijections(sizes, [rng.key(7, number) for number in range(len(sizes))])
    which = np.repeat(np.arange(len(sizes)), sizes)
    numbers = np.concatenate([np.arange(size) for size in sizes])
    values = orders.values(numbers, which)
    for each, size in enumerate(sizes):
        assert sorted(values[which == each].tolist()) == [*range(size)]
    assert np.array_equal(orders.positions(values, which), numbers)


def test_a_process_that_has_them_compiled_uses_them(monkeypatch):
    for name in ("mix", "walk"):
        monkeypatch.setattr(rng, name, getattr(rng, f"_{name}ed"))
    use_compiled()
    assert (rng.mix, rng.walk) == (compile_mix(), compile_walk())
