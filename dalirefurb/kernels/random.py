"""Random numbers of a batch: as `rng` says, bit for bit, without an array for each step of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from dalirefurb.kernels.llvm import compiled, kept
from dalirefurb.rng import GOLDEN, MULTIPLIER_1, MULTIPLIER_2, Mix


@compiled
def _scrambled(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(30))) * MULTIPLIER_1
    value = (value ^ (value >> np.uint64(27))) * MULTIPLIER_2
    return value ^ (value >> np.uint64(31))


def mixed(
    index_keys: Any, number_keys: Any, purposes: Any, counters: Any, indices: Any, numbers: Any, rows: Any, values: Any
) -> None:
    """Compute uniforms, float64 (indices, counters), see `rng`; `rows` is room for a number of each index key."""
    for i in range(indices.size):
        index, number = np.uint64(indices[i]) * GOLDEN, np.uint64(numbers[i]) * GOLDEN
        for purpose in range(rows.size):
            of_index = _scrambled(index + index_keys[purpose])
            rows[purpose] = _scrambled((of_index ^ number_keys[purpose]) + number)
        for column in range(counters.size):
            bits = _scrambled(rows[purposes[column]] + counters[column])
            values[i, column] = np.float64(bits >> np.uint64(11)) * 2.0**-53


@cache
def compile_mix() -> Mix:
    """Compile `mixed`, or load what was compiled before, once in a process."""
    keys, integers = (types.Array(kind, 1, "C", readonly=True) for kind in (types.uint64, types.int64))
    room, result = types.uint64[::1], types.float64[:, ::1]
    mix = kept(mixed, types.void(keys, keys, integers, keys, integers, integers, room, result))

    def mix_any(*arguments: Any) -> Any:
        *keys, indices, numbers = arguments
        rows, values = np.empty(len(keys[0]), np.uint64), np.empty((len(indices), len(keys[3])))
        mix(*keys, *(np.ascontiguousarray(each, np.int64) for each in (indices, numbers)), rows, values)
        return values

    return mix_any
