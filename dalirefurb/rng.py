"""Random numbers that are a function of their key: (seed, purpose, index, number).

No generator carries state, so nothing depends on history, batch composition, threads or look-ahead, and a
stage inserted into a recipe shifts no other stage's numbers. The mixing function is the finaliser of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied to a counter.
It is written in integer arithmetic that every NumPy computes alike, so a stream outlives NumPy's own generators.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


@lru_cache(maxsize=4096)
def key(seed: int, *purpose: str | int) -> np.uint64:
    """Derive a 64-bit key from a seed and what it is for.

    Purposes are hashed, never added: ("a", 1, 2) and ("a", 2, 1) have unrelated keys.
    """
    # NumPy's own integers and strings are written otherwise than Python's, differently by each version.
    parts = (int(seed), *(str(part) if isinstance(part, str) else int(part) for part in purpose))
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit values in place; a bijection, so distinct values stay distinct."""
    values ^= values >> np.uint64(30)
    values *= MULTIPLIER_1
    values ^= values >> np.uint64(27)
    values *= MULTIPLIER_2
    values ^= values >> np.uint64(31)
    return values


def uniforms(
    seed: int, purpose: str, indices: NDArray[np.int64], numbers: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Draw `count` uniforms in [0, 1) for each row, shape (n, count), for a purpose such as a stage's name.

    A row is of a sample, by its index, and of one of its versions or servings, by its number, both of shape (n,). They
    are multiples of 2**-53. Column j of a row does not depend on `count`.
    """
    return uniforms_for(seed, {purpose: count}, indices, numbers)[purpose]


def uniforms_for(
    seed: int, counts: Mapping[str, int], indices: NDArray[np.int64], numbers: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Draw for several purposes in one go, as many as each needs per row: `uniforms` of each, by its purpose."""
    index_keys, number_keys, purposes, counters = _keys(seed, tuple(counts.items()))
    values = mix(index_keys, number_keys, purposes, counters, indices, numbers)
    ends = accumulate(counts.values())
    return {purpose: values[:, end - count : end] for (purpose, count), end in zip(counts.items(), ends, strict=True)}


def _mixed(
    index_keys: NDArray[np.uint64],
    number_keys: NDArray[np.uint64],
    purposes: NDArray[np.int64],
    counters: NDArray[np.uint64],
    indices: NDArray[np.int64],
    numbers: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Compute uniforms, shape (n, all counts), of n rows; for the keys see `_keys`."""
    rows = _mix((indices.astype(np.uint64) * GOLDEN)[:, None] + index_keys)  # (n, purposes)
    rows = _mix((rows ^ number_keys) + (numbers.astype(np.uint64) * GOLDEN)[:, None])
    bits = _mix(rows.take(purposes, axis=1) + counters)  # (n, all counts)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@lru_cache(maxsize=64)
def _keys(seed: int, counts: tuple[tuple[str, int], ...]) -> tuple[NDArray[Any], ...]:
    """Return the index key and the number key of each purpose, and of each column its purpose and its counter."""
    index_keys = np.array([key(seed, purpose, "index") for purpose, _ in counts], dtype=np.uint64)
    number_keys = np.array([key(seed, purpose, "number") for purpose, _ in counts], dtype=np.uint64)
    purposes = np.repeat(np.arange(len(counts)), [count for _, count in counts])
    counters = np.concatenate([np.arange(1, count + 1, dtype=np.uint64) for _, count in counts]) * GOLDEN
    return index_keys, number_keys, purposes, counters


def sort_keys(size: int, seed: int, *purpose: str | int) -> NDArray[np.uint64]:
    """Give `size` distinct random 64-bit numbers; sorting by them is a random order without ties."""
    return numbered_keys(np.arange(size, dtype=np.uint64), key(seed, *purpose))


def numbered_keys(numbers: NDArray[np.uint64], of: np.uint64) -> NDArray[np.uint64]:
    """Give a random 64-bit number for each number, distinct ones for distinct numbers, by a key, any shape."""
    return _mix(numbers * GOLDEN + of)


def permutation(size: int, seed: int, *purpose: str | int) -> NDArray[np.int64]:
    """Order 0 .. size-1 at random, the same way for the same seed and purpose, shape (size,)."""
    return np.argsort(sort_keys(size, seed, *purpose)).astype(np.int64, copy=False)


_MOST_IN_TABLE = 512
_ROUNDS = 6
"""With four, positions a row apart have unlike values too often; with six, a million orders of 513 show nothing."""

_HALF = np.uint64(32)


class Bijections:
    """Random orders of 0 .. size-1, of several sizes, without tables: the value at any position, and back.

    Each is a Feistel network of six rounds on the rectangle of about sqrt(size) x sqrt(size) numbers that holds
    0 .. size-1; what falls outside is sent through again until it falls inside (cycle walking; Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002). Orders of up to 512 are tables: on so few numbers a network
    shuffles badly.

    Args:
        sizes: Numbers of values, each in 1..2**62.
        keys: Key of each order; another one gives another order.
    """

    def __init__(self, sizes: Sequence[int], keys: Sequence[np.uint64]) -> None:
        self._sizes = np.array(sizes, np.uint64)
        self._keys = keys
        rows = [math.isqrt(size - 1) + 1 for size in sizes]  # the square roots, rounded up
        columns = [-(-size // each) for size, each in zip(sizes, rows, strict=True)]
        self._sides = np.array([rows, columns], np.uint64)
        rounds = np.arange(1, _ROUNDS + 1, dtype=np.uint64)
        self._round_keys = _mix(rounds[:, None] * GOLDEN + np.array(keys, np.uint64))
        self._small = self._sizes <= _MOST_IN_TABLE
        self._any_small, self._all_small = bool(self._small.any()), bool(self._small.all())

    def values(self, positions: NDArray[np.int64], which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each of n positions, each in the order that `which` numbers, shape (n,)."""
        return self._moved(positions, which, backward=False)

    def positions(self, values: NDArray[np.int64], which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each of n values, each in the order that `which` numbers, shape (n,)."""
        return self._moved(values, which, backward=True)

    def _moved(self, numbers: NDArray[np.int64], which: NDArray[np.int64], *, backward: bool) -> NDArray[np.int64]:
        if self._all_small:
            return self._looked_up(numbers, which, backward=backward)
        moved = numbers.astype(np.uint64)
        if not self._any_small:
            walk(moved, which, self._sizes, self._sides, self._round_keys, backward)
            return moved.view(np.int64)
        small = self._small[which]
        large = np.flatnonzero(~small)
        some = moved[large]
        walk(some, which[large], self._sizes, self._sides, self._round_keys, backward)
        moved[large] = some
        moved[small] = self._looked_up(numbers[small], which[small], backward=backward).view(np.uint64)
        return moved.view(np.int64)

    def _looked_up(self, numbers: NDArray[np.int64], which: NDArray[np.int64], *, backward: bool) -> NDArray[np.int64]:
        starts, tables = self._tables
        found: NDArray[np.int64] = tables[int(backward)][starts[which] + numbers]
        return found

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the table of each order begins, and all small ones on end: of values, and of positions."""
        values, starts, end = [np.empty(0, np.int64)], np.zeros(len(self._sizes), np.int64), 0
        for number, (size, of) in enumerate(zip(self._sizes.tolist(), self._keys, strict=True)):
            if self._small[number]:
                starts[number] = end
                values.append(np.argsort(numbered_keys(np.arange(size, dtype=np.uint64), of)))
                end += size
        return starts, np.stack([np.concatenate(values), np.concatenate([np.argsort(each) for each in values])])


class Bijection:
    """A random order of 0 .. size-1 without a table, see `Bijections`.

    >>> order = Bijection(10, key(0, "example"))
    >>> order.values(np.arange(10)).tolist()
    [6, 0, 1, 2, 4, 9, 7, 5, 3, 8]
    >>> order.positions(np.array([6, 0])).tolist()
    [0, 1]

    Args:
        size: Number of values, in 1..2**62.
        of: Key; another one gives another order.
    """

    def __init__(self, size: int, of: np.uint64) -> None:
        self._order = Bijections([size], [of])

    def values(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each of n positions, shape (n,)."""
        return self._order.values(positions, np.zeros(len(positions), np.int64))

    def positions(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each of n values, shape (n,)."""
        return self._order.positions(values, np.zeros(len(values), np.int64))


def _walked(
    numbers: NDArray[np.uint64],
    which: NDArray[np.int64],
    sizes: NDArray[np.uint64],
    sides: NDArray[np.uint64],
    round_keys: NDArray[np.uint64],
    backward: bool,
) -> None:
    """Send n numbers through networks until each falls inside, in place.

    Args:
        numbers: Numbers, shape (n,).
        which: The network of each, shape (n,).
        sizes: Numbers of values of the networks, shape (networks,).
        sides: Rows and columns of their rectangles, shape (2, networks).
        round_keys: Shape (rounds, networks).
        backward: Whether to go from values to positions.
    """
    rows, of_round = np.arange(len(numbers)), round_keys if len(sizes) == 1 else round_keys.take(which, axis=1)
    moved, limits = numbers, sizes if len(sizes) == 1 else sizes[which]
    ranges = sides if len(sizes) == 1 else sides.take(which, axis=1)
    while len(rows):
        moved = _feistel(moved, ranges[0], ranges[1], of_round, backward)
        numbers[rows] = moved
        outside = np.flatnonzero(moved >= limits)
        rows, moved = rows[outside], moved[outside]
        if len(sizes) > 1:
            limits, ranges, of_round = limits[outside], ranges[:, outside], of_round[:, outside]


def _feistel(
    numbers: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    columns: NDArray[np.uint64],
    round_keys: NDArray[np.uint64],
    backward: bool,
) -> NDArray[np.uint64]:
    """Send numbers in 0 .. rows * columns - 1 through a network once, shape (n,).

    A number is a row and a column, each below 2**31. A round adds to one of them, modulo its range, a random number of
    the other: the upper 32 bits of a product, times the range, over 2**32.
    """
    row = numbers // columns
    column = numbers - row * columns
    added, shifted = np.empty_like(numbers), np.empty_like(numbers)
    order = range(_ROUNDS)
    for number in reversed(order) if backward else order:
        changed, other, size = (column, row, columns) if number % 2 else (row, column, rows)
        np.bitwise_xor(other, round_keys[number], out=added)
        np.multiply(added, MULTIPLIER_1, out=added)
        np.right_shift(added, _HALF, out=shifted)
        np.bitwise_xor(added, shifted, out=added)
        np.multiply(added, MULTIPLIER_2, out=added)
        np.right_shift(added, _HALF, out=added)
        np.multiply(added, size, out=added)
        np.right_shift(added, _HALF, out=added)
        if backward:
            np.subtract(size, added, out=added)  # in 1..size
        np.add(changed, added, out=changed)
        np.subtract(changed, size, out=added)  # wraps around where it would be negative
        np.minimum(changed, added, out=changed)
    return row * columns + column


mix: Callable[..., NDArray[np.float64]] = _mixed
"""What computes uniforms."""

walk: Callable[..., None] = _walked
"""What sends numbers through networks. `kernels.random` puts compiled functions in both places, which do the same."""


def generator(uniforms: NDArray[np.float64]) -> np.random.Generator:
    """Return NumPy's generator whose key two uniform numbers in [0, 1) are."""
    return np.random.Generator(np.random.Philox(key=(uniforms * 2**53).astype(np.uint64)))


BETA_DRAWS = 63
"""Uniforms that `beta` is given. It uses two at least."""


def beta(alpha: float, draws: NDArray[np.float64]) -> float:
    """Make a number of Beta(alpha, alpha) of uniforms, shape (n,), with n odd and at least 3.

    Above 1/2 by Ulrich's formula, which needs two uniforms; else by Jöhnk's, which tries pairs, and takes more than
    three of four (Devroye, "Non-Uniform Random Variate Generation", 1986, IX.3 and IX.4).
    """
    u = 1 - draws  # In (0, 1].
    if alpha > 0.5:
        spread = math.sqrt(-math.expm1(math.log(u[0]) * 2 / (2 * alpha - 1)))
        return min(1.0, max(0.0, (1 + spread * math.cos(2 * math.pi * u[1])) / 2))
    # Logarithms: the powers themselves may be 0. With any smaller alpha it is 0 or 1, too, and quotients are infinite.
    first, second = np.log(u[:-1].reshape(-1, 2).T) / max(alpha, 1e-300)
    taken = np.flatnonzero(np.logaddexp(first, second) <= 0)
    if not len(taken):  # Not once in 10**20 steps.
        return float(u[-1] < 0.5)
    return float(1 / (1 + np.exp(np.clip(second - first, -700, 700))[taken[0]]))


def between(limits: Any, uniforms: Any) -> Any:
    """Return numbers that are uniform between a low and a high one, of uniforms in [0, 1)."""
    low, high = limits
    return low + (high - low) * uniforms
