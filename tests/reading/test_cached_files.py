"""With `recipe.at(0)` files are cached as they were read: a hit reads nothing, and all else is as if it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import (
    AutoAssist,
    BadSamplePolicy,
    Compressed,
    DiskStore,
    Echo,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    TieredStore,
    evaluate,
    rand_augment,
    simple,
)
from dalirefurb.dali import Graph
from dalirefurb.engine import cache_client, partial_sizes
from dalirefurb.engine.batch_group import BatchGroup, Position
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.engine.partial_sizes import propose_coverage
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError, StoreError
from dalirefurb.planning import BatchEcho, Frozen
from dalirefurb.reading.bad_samples import Substitutes
from dalirefurb.reading.reader import Reader
from dalirefurb.show.pictures import take_pictures
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, Lease, Store, StoreSpec
from tests.bad_files import Batches, bad_content, encoded
from tests.bad_files import assert_same as assert_alike
from tests.engine.test_bit_identity import Batches as Served
from tests.engine.test_bit_identity import assert_same, serve
from tests.in_turn import for_one, in_turn
from tests.loading import flat_loader
from tests.pictures import write_folder
from tests.reading.test_bad_samples import Counting

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("zstandard", reason="the extra `compress` is not installed")

SIZE = 32
NUM_SAMPLES = 20
EPOCHS = 4
RECIPE = rand_augment(SIZE)
FILES = RECIPE.at(0)
STANDARD = Standard(NUM_SAMPLES, batch_size=4, seed=7)
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=2, seed=7)
FROZEN = Frozen(NUM_SAMPLES, batch_size=4, seed=7)

PLANNERS = {
    "refurbishing": REFURBISH,
    "echoing": Echo(STANDARD, echoing_factor=2.5, buffer_size=9),
    "batch echoing": BatchEcho(STANDARD, echoing_factor=3),
    "SmartCache": SmartCache(NUM_SAMPLES, batch_size=4, num_cache_objects=16, replace_percent=0.25, seed=7),
    "frozen": FROZEN,
}

Make = Callable[[Path], Store]

STORES: dict[str, Make] = {
    "memory": lambda folder: MemoryStore(),
    "disk": lambda folder: DiskStore(folder / "store"),
    "tiers": lambda folder: TieredStore(memory=20_000, path=folder / "store"),
    "compressed": lambda folder: Compressed(MemoryStore(), expected_ratio=1),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


def contents(source: ImageFolder) -> list[bytes]:
    return [Path(source.name(index)).read_bytes() for index in range(len(source))]


def held(store: Store) -> list[bytes | None]:
    """What a store has of the first version of each sample."""
    with store.get(np.arange(NUM_SAMPLES), np.zeros(NUM_SAMPLES, np.int64)) as lease:
        return [None if sample is None else sample.tobytes() for sample in lease.samples]


@cache
def without_a_store(source: ImageFolder, planner: str, kernels: Kernels) -> Served:
    batches, _ = serve(source, FILES, PLANNERS[planner], kernels=kernels, epochs=EPOCHS)
    return batches


@pytest.mark.parametrize(
    ("kind", "planner", "kernels"),
    [
        # Each planner, kind of kernels, and store; weekly also what a planner plans by DALI.
        *[("memory", planner, "numba") for planner in PLANNERS],
        ("memory", "refurbishing", "dali"),
        *[pytest.param("memory", planner, "dali", marks=pytest.mark.weekly) for planner in list(PLANNERS)[1:]],
        *in_turn([kind for kind in STORES if kind != "memory"], ["refurbishing", "frozen"], ["numba"]),
    ],
)
def test_a_hit_reads_nothing_and_serves_the_same(
    planner: str, kind: str, kernels: Kernels, source: ImageFolder, tmp_path: Path
) -> None:
    planned, wanted = PLANNERS[planner], without_a_store(source, planner, kernels)
    counting = Counting(source)
    with (
        STORES[kind](tmp_path) as store,
        Loader(
            counting, FILES, planned, store, kernels=kernels, prefetch=Prefetch(look_ahead=1, batches_per_group=1)
        ) as loader,
    ):
        counting.reads.clear()  # Some were read to find out how large they are.
        served = [(images.clone(), labels) for _ in range(EPOCHS) for images, labels in loader]
        stats = loader.stats()
    assert_same(wanted, served)
    assert stats.hits > 0
    assert stats.recomputed == stats.declined == 0
    plans = [plan for epoch in range(2 * EPOCHS) for plan in planned.epoch(epoch)]
    # The batch behind those that were taken may be stored; what is ahead when the loader is closed was read, too.
    least, stored, most = (
        sum(int(plan.miss.sum()) for plan in plans[:count]) for count in (stats.batches, stats.batches + 1, None)
    )
    assert stats.stored <= stored
    assert least == stats.misses <= counting.reads.total() <= most


@pytest.mark.parametrize(
    ("recipe", "kernels"),
    for_one(
        evaluate(SIZE), [RECIPE, rand_augment(SIZE, order="crop_last"), simple(SIZE), evaluate(SIZE)], "numba", "dali"
    ),
)
def test_without_reuse_files_and_images_serve_the_same(recipe: Recipe, kernels: Kernels, source: ImageFolder) -> None:
    wanted, _ = serve(source, recipe, STANDARD, kernels=kernels, epochs=1)
    for split in (0, 1):
        served, _ = serve(source, recipe.at(split), STANDARD, kernels=kernels, epochs=1)
        assert_same(wanted, served)


def test_a_store_holds_files_byte_by_byte(source: ImageFolder) -> None:
    with MemoryStore() as store:
        serve(source, FILES, FROZEN, store, epochs=2)
        assert held(store) == contents(source)


def test_a_recipe_with_one_stage_more_than_decoding_is_served(tmp_path: Path) -> None:
    """There is no third stage to split before."""
    source = ImageFolder(write_folder(tmp_path, num_samples=NUM_SAMPLES))
    recipe = Recipe(RECIPE.stages[:2], RECIPE.output, 0)
    wanted, _ = serve(source, recipe.at(1), STANDARD, epochs=1)
    served, _ = serve(source, recipe, FROZEN, MemoryStore(), epochs=3)
    assert len(served) == 3 * len(wanted)
    assert_same(serve(source, recipe, STANDARD, epochs=1)[0], wanted)


# What is found in a file


def test_a_later_run_with_another_recipe_seed_and_kernels_reads_nothing(source: ImageFolder, tmp_path: Path) -> None:
    with DiskStore(tmp_path / "store") as store:
        serve(source, FILES, FROZEN, store, kernels="numba", epochs=2)
    recipe, planner = simple(SIZE).at(0), Frozen(NUM_SAMPLES, batch_size=5, seed=8)
    wanted, _ = serve(source, recipe, planner, kernels="dali", epochs=2)
    counting = Counting(source)
    with (
        DiskStore(tmp_path / "store") as store,
        Loader(
            counting, recipe, planner, store, kernels="dali", bad_samples=BadSamplePolicy(max_pixels=10**6)
        ) as loader,
    ):
        counting.reads.clear()
        served = [(images.clone(), labels) for _ in range(2) for images, labels in loader]
        assert loader.stats().misses == 0
    assert_same(wanted, served)
    assert not counting.reads


def test_files_of_another_source_and_images_are_refused(source: ImageFolder, tmp_path: Path) -> None:
    other = ImageFolder(write_folder(tmp_path / "other", num_samples=NUM_SAMPLES, classes=2))
    with DiskStore(tmp_path / "store") as store:
        serve(source, FILES, FROZEN, store, epochs=1)
    with DiskStore(tmp_path / "store") as store:
        with pytest.raises(StoreError, match="source"):
            Loader(other, FILES, FROZEN, store)
        with pytest.raises(StoreError, match="encoded"):
            Loader(source, RECIPE.at(1), FROZEN, store)


def test_what_a_run_was_given_stays_as_it_is_when_the_store_uses_its_room_for_others(source: ImageFolder) -> None:
    files = [np.frombuffer(file, np.uint8).reshape(-1, 1, 1) for file in contents(source)]
    indices, versions = np.arange(NUM_SAMPLES), np.zeros(NUM_SAMPLES, np.int64)
    reader = Reader(source, max_batch_size=NUM_SAMPLES, num_threads=1)
    (plan,) = Frozen(NUM_SAMPLES, batch_size=NUM_SAMPLES).epoch(1)
    with MemoryStore() as store:
        store.open(StoreSpec(None, NUM_SAMPLES, {}, NUM_SAMPLES * 4096))
        assert store.put(indices, versions, files).all()
        client = cache_client.CacheClient(reader, store, caches_encoded=True)
        cache_plan = client.lookup(BatchGroup(Position(1, 0), (plan,)))
        store.clear()
        assert store.put(indices, versions + 1, [np.zeros_like(file) for file in files]).all()
        assert not len(cache_plan.missed)
        samples = cache_plan.begin(cache_plan.reading.result())
    reader.close()
    for index, sample in zip(plan.indices.tolist(), samples.data, strict=True):
        np.testing.assert_array_equal(sample, files[index].reshape(-1))


def test_a_byte_that_was_flipped_is_read_again(source: ImageFolder, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with DiskStore(path) as store:
        serve(source, FILES, FROZEN, store, epochs=2)
    content = bytearray(path.read_bytes())
    for file in contents(source)[::3]:
        content[content.index(file) + len(file) // 2] ^= 16
    path.write_bytes(content)
    wanted, _ = serve(source, FILES, FROZEN, epochs=2)
    with DiskStore(path) as store:
        served, stats = serve(source, FILES, FROZEN, store, epochs=2)
        assert store.corrupt == stats.misses == len(contents(source)[::3])
    assert_same(wanted, served)


# Bad samples


def spoilt(folder: Path, content: bytes, *, index: int = 3) -> ImageFolder:
    """Write a folder in which one file has this content."""
    source = ImageFolder(write_folder(folder, num_samples=NUM_SAMPLES))
    Path(source.name(index)).write_bytes(content)
    return ImageFolder(folder)


def run(source: Source, store: Store | None, epochs: int = 2, **options: Any) -> Batches:
    with flat_loader(source, FILES, FROZEN, store, with_indices=True, num_threads=1, **options) as loader:
        return [tuple(part.clone() for part in batch) for _ in range(epochs) for batch in loader]


UNUSABLE = {
    "text": (bad_content("text"), "not an image that can be decoded"),
    "BMP cut short": (encoded("BMP")[:-3000], "decoding failed"),  # Its header is good.
    "PNG damaged": (bad_content("PNG damaged"), "decoding failed"),  # Only DALI's decoder notices it.
    "too large": (bad_content("too large"), "60,000 pixels at most"),
}


@pytest.mark.parametrize(("kind", "kernels"), in_turn(list(UNUSABLE), ["dali", "numba"]))
def test_a_stored_file_that_this_run_cannot_use_is_named_or_replaced_and_not_asked_for_again(
    kind: str, kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another run, which could, had stored it."""
    content, reason = UNUSABLE[kind]
    source = spoilt(tmp_path / "pictures", content)
    wanted = run(source, None, kernels=kernels, max_pixels=60_000, on_bad_sample="replace")
    monkeypatch.setattr(partial_sizes, "PROBES", 4)  # None of them is that file.
    asked: list[int] = []

    class Full(MemoryStore):
        def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
            asked.extend(indices.tolist())
            return super().get(indices, versions)

        def open(self, spec: StoreSpec) -> None:
            super().open(replace(spec, arena_bytes=10 * spec.arena_bytes))
            files = [np.frombuffer(file, np.uint8).reshape(-1, 1, 1) for file in contents(source)]
            assert self.put(np.arange(NUM_SAMPLES), np.zeros(NUM_SAMPLES, np.int64), files).all()

    options: dict[str, Any] = {"kernels": kernels, "max_pixels": 60_000, "look_ahead": 1, "batches_per_group": 1}
    assert_alike(wanted, run(source, Full(), on_bad_sample="replace", **options))
    assert asked.count(3) == 1 < asked.count(4)
    with pytest.raises(SampleError, match=reason) as caught:
        run(source, Full(), **options)
    assert caught.value.index == 3


@pytest.mark.parametrize(("index", "kernels"), in_turn([0, 3, 11, 19], ["numba", "dali"]))
def test_among_repeats_the_file_that_cannot_be_decoded_is_blamed_and_no_other(
    index: int, kernels: Kernels, tmp_path: Path
) -> None:
    """What fails is told by its row in the batch, which is not its place among what was read."""
    source = spoilt(tmp_path, bad_content("PNG damaged"), index=index)
    planner = Echo(Standard(NUM_SAMPLES, batch_size=10, seed=7), echoing_factor=2.5, buffer_size=1)
    with Loader(
        source, FILES, planner, MemoryStore(), kernels=kernels, bad_samples=BadSamplePolicy(on_bad_sample="replace")
    ) as loader:
        list(loader)
        assert [sample.index for sample in loader.bad_samples()] == [index]


def test_a_bad_file_is_not_stored(tmp_path: Path) -> None:
    source = spoilt(tmp_path, bad_content("PNG damaged"))
    with MemoryStore() as store:
        run(source, store, on_bad_sample="replace")
        assert [index for index, file in enumerate(held(store)) if file is None] == [3]


def test_what_pillow_decodes_is_stored_as_it_was_read(tmp_path: Path) -> None:
    source = spoilt(tmp_path, encoded("GIF"))
    wanted = run(source, None)
    with MemoryStore() as store:
        counting = Counting(source)
        served = run(counting, store, epochs=1)
        assert held(store) == contents(source)
        again = run(counting, store)
    assert_alike(wanted[: len(served)], served)
    assert_alike(wanted, again)


# How much room is set aside


def test_room_for_files_of_very_different_sizes_is_enough(tmp_path: Path) -> None:
    """Random bytes behind the end of a JPEG are ignored."""
    source = ImageFolder(write_folder(tmp_path, num_samples=NUM_SAMPLES))
    rng = np.random.default_rng(0)
    for index, more in enumerate(rng.lognormal(7, 1.5, NUM_SAMPLES).astype(int).tolist()):
        with Path(source.name(index)).open("ab") as file:
            file.write(rng.bytes(more) + b"\xff\xd9")
    source = ImageFolder(tmp_path)
    with MemoryStore() as store:
        _, stats = serve(source, FILES, FROZEN, store, epochs=2)
        total = sum(map(len, contents(source)))
        assert (len(store), stats.declined) == (NUM_SAMPLES, 0)
        assert total <= store.nbytes < 6 * total


def test_a_coverage_is_proposed_by_the_bytes_of_files(source: ImageFolder) -> None:
    files, images = (propose_coverage(source, recipe, REFURBISH, "1GB") for recipe in (FILES, RECIPE.at(1)))
    assert files.coverage == images.coverage == 1
    assert files.nbytes < images.nbytes / 2
    with MemoryStore() as store, Loader(source, FILES, REFURBISH, store):
        assert store.nbytes == files.nbytes


def test_the_bytes_of_a_file_are_counted_and_not_those_that_pillow_makes_of_it(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.gif")
    reader = Reader(FileList([tmp_path / "a.gif"], [0]), max_batch_size=4, num_threads=1)
    assert reader.lengths(np.zeros(5, np.int64)).tolist() == [(tmp_path / "a.gif").stat().st_size] * 5
    reader.close()


def test_a_file_larger_than_a_store_can_tell_is_read_each_time(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [len(file) for file in contents(source)]
    monkeypatch.setattr(cache_client, "_LARGEST", max(sizes) - 1)
    planner = Frozen(NUM_SAMPLES, batch_size=1, seed=7)  # More batches than are on their way at a time.
    wanted, _ = serve(source, FILES, planner, epochs=3)
    with MemoryStore() as store:
        served, stats = serve(source, FILES, planner, store, look_ahead=1, replicas=1, epochs=3)
        assert [index for index, file in enumerate(held(store)) if file is None] == [int(np.argmax(sizes))]
    assert_same(wanted, served)
    assert stats.recomputed == 2


# What it is not for


def test_what_needs_partial_images_is_refused(source: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match=r"AutoAssist looks at partial images.*split 0.*: use a split of 1"):
        Loader(source, FILES, AutoAssist(STANDARD, lag=60), MemoryStore())
    with pytest.raises(ConfigurationError, match=r"a DeviceStore is for decoded images, but split 0.*MemoryStore"):
        Loader(source, FILES, FROZEN, DeviceStore(device="cpu"))
    with pytest.raises(ConfigurationError, match=r"on one device, got partial_device='cpu' and final_device='gpu'"):
        Loader(source, FILES, FROZEN, MemoryStore(), final_device="gpu")
    with pytest.raises(ConfigurationError, match="got split 0: use a split of 1 or more"):
        Graph(FILES, "whole")


class Short(Counting):
    """A source that loses a sample."""

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return super().read(indices[: max(1, len(indices) - 1)])


def test_a_reader_reads_what_is_not_held_and_no_more(source: ImageFolder) -> None:
    indices, versions = np.array([4, 2, 9]), np.zeros(3, np.int64)
    files = [np.frombuffer(file, np.uint8) for file in contents(source)]
    counting = Counting(source)
    reader = Reader(counting, max_batch_size=4, num_threads=1)
    plain = reader.read(indices, versions).result()
    counting.reads.clear()
    samples = reader.read(indices, versions, [None, files[2], None]).result()
    assert dict(counting.reads) == {4: 1, 9: 1}
    assert [sample.tobytes() for sample in samples.data] == [files[index].tobytes() for index in (4, 2, 9)]
    assert np.array_equal(samples.heights, plain.heights)
    assert np.array_equal(samples.widths, plain.widths)
    assert len(reader.read(indices, versions, [files[4], files[2], files[9]]).result().data) == 3
    assert counting.reads.total() == 2
    reader.close()
    losing = Reader(Short(source), max_batch_size=4, num_threads=1)
    with pytest.raises(LoaderError, match="Short returned 1 for 2 indices"):
        losing.read(indices, versions, [None, files[2], None]).result()
    losing.close()


def test_a_reader_does_not_take_what_is_held_of_a_bad_sample_for_what_replaces_it(source: ImageFolder) -> None:
    """It was found to be bad after the store was asked for it."""
    substitutes = Substitutes(STANDARD)
    substitutes.add(SampleError(2, source.name(2), "bad"))
    reader = Reader(source, max_batch_size=4, num_threads=1, substitutes=substitutes)
    files = [np.frombuffer(file, np.uint8) for file in contents(source)]
    samples = reader.read(np.array([4, 2]), np.zeros(2, np.int64), [files[4], files[2]]).result()
    reader.close()
    assert samples.indices[0] == 4
    assert samples.indices[1] != 2
    assert [sample.tobytes() for sample in samples.data] == [files[index].tobytes() for index in samples.indices]


def test_pictures_of_cached_files_show_what_is_in_them(source: ImageFolder) -> None:
    (taken,) = take_pictures(source, simple(SIZE).at(0), [1], reuse_factor=2)
    assert taken.original.shape[2] == 3
    for version in taken.versions:
        assert np.array_equal(version.cached, taken.original)
        assert len(version.served) == 2
