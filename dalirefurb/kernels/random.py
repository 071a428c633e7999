"""Random numbers and random orders: as `rng` says, bit for bit, without an array for each step of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from dalirefurb import rng
from dalirefurb.kernels.llvm import compiled, kept
from dalirefurb.rng import GOLDEN, MULTIPLIER_1, MULTIPLIER_2


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


@compiled
def _added(other: Any, round_key: Any, side: Any) -> Any:
    """Return a random number below `side` for a number."""
    bits = (other ^ round_key) * MULTIPLIER_1
    bits = (bits ^ (bits >> np.uint64(32))) * MULTIPLIER_2
    return ((bits >> np.uint64(32)) * side) >> np.uint64(32)


def walked(numbers: Any, which: Any, sizes: Any, sides: Any, round_keys: Any, backward: Any) -> None:
    """Send numbers through networks until each falls inside, in place, as `rng` does, bit for bit."""
    rounds = round_keys.shape[0]
    for i in range(numbers.size):
        network = which[i]
        rows, columns, size = sides[0, network], sides[1, network], sizes[network]
        number = numbers[i]
        while True:
            row = number // columns
            column = number - row * columns
            if backward:
                for turn in range(rounds - 2, -1, -2):
                    column += columns - _added(row, round_keys[turn + 1, network], columns)
                    column = min(column, column - columns)  # wraps around where it would be negative
                    row += rows - _added(column, round_keys[turn, network], rows)
                    row = min(row, row - rows)
            else:
                for turn in range(0, rounds, 2):
                    row += _added(column, round_keys[turn, network], rows)
                    row = min(row, row - rows)
                    column += _added(row, round_keys[turn + 1, network], columns)
                    column = min(column, column - columns)
            number = row * columns + column
            if number < size:
                break
        numbers[i] = number


def use_compiled() -> None:
    """Have compiled code compute random numbers and orders in this process from now on: the same, sooner."""
    rng.mix, rng.walk = compile_mix(), compile_walk()


@cache
def compile_walk() -> Any:
    """Compile `walked`, or load what was compiled before, once in a process."""
    numbers, whole = types.uint64[::1], types.Array(types.int64, 1, "C", readonly=True)
    keys, sides = (types.Array(types.uint64, dimensions, "C", readonly=True) for dimensions in (1, 2))
    walk = kept(walked, types.void(numbers, whole, keys, sides, sides, types.boolean))

    def walk_any(numbers: Any, which: Any, *networks: Any) -> None:
        walk(numbers, np.ascontiguousarray(which, np.int64), *networks)

    return walk_any


@cache
def compile_mix() -> Any:
    """Compile `mixed`, or load what was compiled before, once in a process."""
    keys, integers = (types.Array(kind, 1, "C", readonly=True) for kind in (types.uint64, types.int64))
    room, result = types.uint64[::1], types.float64[:, ::1]
    mix = kept(mixed, types.void(keys, keys, integers, keys, integers, integers, room, result))

    def mix_any(*arguments: Any) -> Any:
        *keys, indices, numbers = arguments
        assert len(indices) == len(numbers)
        rows, values = np.empty(len(keys[0]), np.uint64), np.empty((len(indices), len(keys[3])))
        mix(*keys, *(np.ascontiguousarray(each, np.int64) for each in (indices, numbers)), rows, values)
        return values

    return mix_any
