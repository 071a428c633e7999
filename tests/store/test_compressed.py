"""Compressed stores: pixels come back, photographs shrink, and what has no room is computed again.

That they keep a store's promises is tested with the other stores, in `test_store`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dalirefurb import ImageFolder, MemoryStore, Refurbish, simple
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.store import DiskStore, StoreSpec
from dalirefurb.store.compressed import Compressed
from tests.engine.test_bit_identity import assert_same, serve
from tests.pictures import write_folder


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def kept(store: Compressed, samples: list[np.ndarray]) -> list[np.ndarray | None]:
    """Put samples into an empty store, and lend them."""
    indices = np.arange(len(samples))
    store.put(indices, indices * 0, samples)
    with store.get(indices, indices * 0) as lease:
        return list(lease.samples)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=20),
    st.integers(1, 5),
    st.booleans(),
)
def test_samples_come_back_bit_for_bit_whatever_their_shapes_and_in_order(
    shapes: list[tuple[int, int, int]], num_threads: int, flat: bool
) -> None:
    samples = [noise(*shape, seed=seed) // (100 if flat else 1) for seed, shape in enumerate(shapes)]
    with Compressed(MemoryStore(), expected_ratio=1, num_threads=num_threads) as store:
        store.open(StoreSpec(None, len(samples), {}, sum(sample.nbytes for sample in samples)))
        for sample, expected in zip(kept(store, samples), samples, strict=True):
            assert sample is not None
            np.testing.assert_array_equal(sample, expected)


@pytest.mark.parametrize(
    "shape",
    [(5000, 1, 1), (43, 42, 3), (43, 43, 3), (1, 700, 3), (2, 43, 3), (224, 224, 3), (225, 60, 3), (255, 60, 3)],
)
def test_samples_of_long_and_of_short_rows_come_back_bit_for_bit(shape: tuple[int, int, int]) -> None:
    sample = noise(*shape)
    with Compressed(MemoryStore(), expected_ratio=1) as store:
        store.open(StoreSpec(None, 1, {}, sample.nbytes))
        np.testing.assert_array_equal(kept(store, [sample])[0], sample)


def test_a_view_with_gaps_comes_back_bit_for_bit() -> None:
    sample = noise(8, 8, 4)[::2, ::-1, :3]
    with Compressed(MemoryStore(), expected_ratio=1) as store:
        store.open(StoreSpec((4, 8, 3), 1, {}))
        np.testing.assert_array_equal(kept(store, [sample])[0], sample)


def test_photographs_find_room_in_the_share_that_is_expected(photos: list[Path]) -> None:
    samples = [np.asarray(Image.open(path).convert("RGB").resize((224, 224))) for path in photos[::8]]
    with Compressed(MemoryStore()) as store:
        store.open(StoreSpec((224, 224, 3), len(samples), {}))
        assert store.nbytes < 0.67 * sum(sample.nbytes for sample in samples)
        assert np.mean([sample is not None for sample in kept(store, samples)]) > 0.95


def test_samples_that_compress_less_than_expected_are_declined() -> None:
    with Compressed(MemoryStore(), expected_ratio=2) as store:
        store.open(StoreSpec((32, 32, 3), 8, {}))
        held = [sample is not None for sample in kept(store, [noise(32, 32, 3, seed=seed) for seed in range(8)])]
    assert held == [True] * 4 + [False] * 4


def test_it_takes_what_the_other_store_sets_aside() -> None:
    spec = StoreSpec((32, 32, 3), 8, {})
    with Compressed(MemoryStore(), expected_ratio=2) as store:
        taken = store.takes(spec)
        store.open(spec)
        assert taken == (store.nbytes, 0)
        assert store.nbytes == 8 * (32 * 32 * 3 // 2 + 128)
        assert store.takes(spec) == (0, 0)


def test_what_cannot_be_decompressed_is_lent_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise MemoryError

    index, sample = np.array([0]), noise(8, 8, 3)
    with Compressed(MemoryStore(), expected_ratio=1) as store:
        store.open(StoreSpec((8, 8, 3), 1, {}))
        store.put(index, index, [sample])
        with monkeypatch.context() as patch:
            patch.setattr("dalirefurb.store.compressed._decompress", fail)
            with pytest.raises(MemoryError):
                store.get(index, index)
        store.evict(index)
        assert store.put(index, index, [sample])[0]


@pytest.mark.parametrize("split", [None, 1])
@pytest.mark.parametrize("expected_ratio", [1, 50])
def test_a_compressed_store_serves_the_same_tensors(tmp_path: Path, split: int | None, expected_ratio: float) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=23))
    recipe = simple(32) if split is None else simple(32).at(split)
    planner = Refurbish(23, batch_size=6, reuse_factor=3)
    expected, _ = serve(source, recipe, planner)
    served, stats = serve(source, recipe, planner, Compressed(MemoryStore(), expected_ratio=expected_ratio))
    assert_same(expected, served)
    assert stats.hits > 0
    assert (stats.recomputed > 0) == (stats.declined > 0) == (expected_ratio > 1)


def test_a_file_of_compressed_samples_is_no_file_of_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Compressed(DiskStore(path), expected_ratio=1) as store:
        store.open(StoreSpec((4, 5, 3), 2, {"seed": 1}))
    with Compressed(DiskStore(path), expected_ratio=1) as store:
        with pytest.raises(StoreError, match=r"samples\.seed 1, not 2"):
            store.open(StoreSpec((4, 5, 3), 2, {"seed": 2}))
        with pytest.raises(StoreError, match=r"slot_shape\[0\] 4, not 5"):
            store.open(StoreSpec((5, 5, 3), 2, {"seed": 1}))
    with DiskStore(path) as plain, pytest.raises(StoreError, match="compression"):
        plain.open(StoreSpec(None, 2, {"seed": 1}, 500))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expected_ratio": 0.5}, "expected_ratio must be a number of at least 1, got 0.5: pass the bytes of some"),
        ({"expected_ratio": float("nan")}, "expected_ratio must be a number of at least 1, got nan"),
        ({"expected_ratio": "2"}, "expected_ratio must be a number of at least 1, got .2."),
        ({"num_threads": 0}, "num_threads must be an int of at least 1, got 0: leave it out"),
        ({"num_threads": 1.5}, "num_threads must be an int of at least 1, got 1.5"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Compressed(MemoryStore(), **arguments)


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        ConfigurationError, match=r'zstandard.* cannot be found; python -m pip install "dalirefurb\[compress\]"'
    ):
        Compressed(MemoryStore())
