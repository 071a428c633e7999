"""Are random numbers the same whoever computes them?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from dalirefurb import rng
from dalirefurb.kernels.random import compile_mix

INTEGERS = st.integers(-(2**63), 2**63 - 1)


@given(
    seed=INTEGERS,
    counts=st.dictionaries(st.text(max_size=3), st.integers(1, 5), min_size=1, max_size=4),
    rows=st.lists(st.tuples(INTEGERS, INTEGERS), max_size=6),
)
def test_compiled_numbers_are_those_of_numpy(seed, counts, rows):
    indices, numbers = np.array(rows, np.int64).reshape(-1, 2).T
    indices.flags.writeable = False
    ours = rng.uniforms_for(seed, counts, indices, numbers, compile_mix())
    theirs = rng.uniforms_for(seed, counts, indices, numbers)
    assert ours.keys() == theirs.keys()
    for purpose, values in theirs.items():
        assert ours[purpose].dtype == values.dtype
        assert np.array_equal(ours[purpose], values)
