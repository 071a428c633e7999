"""Random numbers that are a function of their key: (seed, purpose, index, number).

No generator carries state, so nothing depends on history, batch composition, threads or look-ahead, and a
stage inserted into a recipe shifts no other stage's numbers. The mixing function is the finaliser of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied to a counter.
It is written in integer arithmetic that every NumPy computes alike, so a stream outlives NumPy's own generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mix = Callable[..., NDArray[np.float64]]
"""Computes uniforms as `_mixed` does, of the same arguments."""

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
    """Draw `count` uniforms in [0, 1) for each row.

    Args:
        seed: The run's seed.
        purpose: What the numbers are for; a stage's name.
        indices: Sample indices, shape (n,).
        numbers: Which draw of each sample, shape (n,): its version or its serving.
        count: Uniforms per row.

    Returns:
        Shape (n, count), multiples of 2**-53. Column j of a row does not depend on `count`.
    """
    return uniforms_for(seed, {purpose: count}, indices, numbers)[purpose]


def uniforms_for(
    seed: int,
    counts: Mapping[str, int],
    indices: NDArray[np.int64],
    numbers: NDArray[np.int64],
    mix: Mix | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Draw for several purposes in one go: `uniforms` of each, by its purpose.

    Args:
        seed: As of `uniforms`, and so are `indices` and `numbers`.
        counts: How many per row each purpose needs.
        indices: Shape (n,).
        numbers: Shape (n,).
        mix: Another way to compute the same, faster perhaps.
    """
    index_keys, number_keys, purposes, counters = _keys(seed, tuple(counts.items()))
    values = (mix or _mixed)(index_keys, number_keys, purposes, counters, indices, numbers)
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
    counters = np.arange(size, dtype=np.uint64) * GOLDEN
    counters += key(seed, *purpose)
    return _mix(counters)


def permutation(size: int, seed: int, *purpose: str | int) -> NDArray[np.int64]:
    """Order 0 .. size-1 at random, the same way for the same seed and purpose, shape (size,)."""
    return np.argsort(sort_keys(size, seed, *purpose)).astype(np.int64, copy=False)
