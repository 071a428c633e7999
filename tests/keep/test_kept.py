"""What is kept is served as the source itself would serve it, whoever filled the folder, and however far."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import (
    Arrays,
    AutoAssist,
    BadSamplePolicy,
    Concat,
    DiskStore,
    Echo,
    Evaluate,
    FileList,
    ImageFolder,
    Kept,
    Loader,
    MemoryStore,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    TarShards,
    TieredStore,
    evaluate,
    propose_coverage,
    rand_augment,
    simple,
)
from dalirefurb.errors import ConfigurationError, SampleError, StoreError
from dalirefurb.keep import kept as kept_module
from dalirefurb.keep.folder import KeepFolder
from dalirefurb.keep.record import RECORD, believable, written
from dalirefurb.keep.upkeep import inspect
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.formats import as_pnm
from dalirefurb.source import Source
from dalirefurb.source.levels import Levels
from dalirefurb.system.resources import amount
from tests.in_turn import EACH_CHANGE, for_one, weekly
from tests.pictures import encode, jpeg, picture, write_folder
from tests.resuming import losses_of

pytestmark = pytest.mark.usefixtures("traced_once")

SIZE, NUM_SAMPLES, BATCH_SIZE = 32, 23, 6
TABLE_BYTES = 10 * 48
KILLS = int(os.environ.get("DALIREFURB_KILLED_KEEPERS", "12" if EACH_CHANGE else "100"))
STANDARD = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE, seed=5)
RECIPE = rand_augment(SIZE)
ALL = np.arange(NUM_SAMPLES)


def unknown(indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Stamp nothing."""
    return np.zeros(len(indices), np.uint64)


Batches = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """JPEGs, one of them turned by EXIF; a PNG that Pillow decodes, of 16 bits; one in grey."""
    root = write_folder(tmp_path_factory.mktemp("photos"), num_samples=NUM_SAMPLES)
    exif = picture(50, height=40, width=60).getexif()
    exif[274] = 6
    (root / "class_0" / "000.jpg").write_bytes(jpeg(picture(50, height=40, width=60), exif=exif))
    deep = Image.fromarray((np.arange(50 * 44) * 29).astype(np.uint16).reshape(50, 44))
    (root / "class_1" / "001.jpg").write_bytes(encode(deep, "PNG"))
    (root / "class_2" / "002.jpg").write_bytes(jpeg(picture(52, height=47, width=51).convert("L")))
    return ImageFolder(root)


class Counted(Source):
    """A source that counts what is read of it."""

    def __init__(self, source: Source, delay_s: float = 0.0) -> None:
        self._source, self._delay_s = source, delay_s
        self.labels, self.encoded, self.classes = source.labels, source.encoded, source.classes
        self.asked: list[int] = []

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        self.asked += indices.tolist()
        time.sleep(self._delay_s * len(indices))
        return self._source.read(indices)

    def name(self, index: int) -> str:
        return self._source.name(index)

    def fingerprint(self) -> dict[str, Any]:
        return self._source.fingerprint()

    def stamps(self, indices: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        return self._source.stamps(indices)


class Unstamped(Counted):
    def stamps(self, indices: NDArray[np.int64]) -> None:
        return None


def served(
    source: Source,
    recipe: Recipe = RECIPE,
    planner: Planner = STANDARD,
    *,
    epochs: int = 2,
    stored: bool = False,
    **settings: Any,
) -> Batches:
    store = MemoryStore() if stored else None
    batches: Batches = []
    with Loader(source, recipe, planner, store, **settings) as loader:
        for _ in range(epochs):
            for images, labels, *_ in loader:
                batches.append((images.clone(), labels.clone()))
                if isinstance(planner, AutoAssist):
                    loader.observe(losses_of(images))
    return batches


def assert_same(left: Batches, right: Batches) -> None:
    assert len(left) == len(right) > 0
    for (images, labels), (others, other_labels) in zip(left, right, strict=True):
        torch.testing.assert_close(images, others, rtol=0, atol=0)
        torch.testing.assert_close(labels, other_labels, rtol=0, atol=0)


def taken_in_turn(sources: Sequence[Any], recipe: Recipe, planner: Planner, count: int = 8) -> tuple[list[Any], str]:
    """Take batches of new loaders of each source in turn, from the state of the one before; and the last state."""
    state, batches = "", []
    for number in range(count):
        with Loader(sources[number % len(sources)], recipe, planner) as loader:
            if state:
                loader.load_state_dict(json.loads(state))
            images, labels = next(iter(loader))
            batches.append((images.clone(), labels.clone()))
            state = json.dumps(loader.state_dict())
    return batches, state


def half_full(path: Path, source: Source) -> Kept:
    """Keep some of the samples, and have no room for more."""
    Kept(source, path).images(ALL[::2])
    return Kept(source, path, size=0)


def wiped(path: Path, source: Source) -> Kept:
    """Keep samples, and damage the bytes of every third one, and the record of another."""
    kept = Kept(source, path)
    kept.images(ALL)
    data, records = (np.memmap(path / name, np.uint8, "r+") for name in ("data", "records"))
    starts = records[: 48 * NUM_SAMPLES].reshape(-1, 48)[:, :8].copy().view(np.uint64)[:, 0]
    for start in starts[::3].tolist():
        data[start + 100 : start + 200] ^= 255
    records[48:60] = 7
    return Kept(source, path)


FILLS: dict[str, Callable[[Path, Source], Kept]] = {
    "empty": lambda path, source: Kept(source, path),
    "filled by another": lambda path, source: (Kept(source, path).images(ALL), Kept(source, path))[1],
    "half full": half_full,
    "without room": lambda path, source: Kept(source, path, size=0),
    "damaged": wiped,
    "of files": lambda path, source: Kept(source, path, form="encoded"),
    "of files, and decoded": lambda path, source: Kept(Kept(source, path / "a", form="encoded"), path / "b"),
}

RECIPES: dict[str, Recipe] = {
    "a crop first": RECIPE,
    "a crop last": rand_augment(SIZE, order="crop_last"),
    "all partial": RECIPE.at(len(RECIPE.stages)),
    "decoding alone": RECIPE.at(1),
    "files": RECIPE.at(0),
    "a resize": evaluate(SIZE),
    "halves": simple(SIZE, dtype="float16"),
}


@pytest.mark.parametrize(("fill", "kernels"), for_one("half full", [*FILLS], "numba", "dali"))
def test_a_keep_changes_nothing_that_is_served(fill: str, kernels: Any, photos: ImageFolder, tmp_path: Path) -> None:
    assert_same(served(FILLS[fill](tmp_path, photos), kernels=kernels), served(photos, kernels=kernels))


@pytest.mark.parametrize("stored", [*weekly(False), True])  # Without a store each fill is tried above.
@pytest.mark.parametrize(("recipe", "kernels"), for_one("a resize", [*RECIPES], "numba", "dali"))
def test_whatever_the_recipe(recipe: str, kernels: Any, stored: bool, photos: ImageFolder, tmp_path: Path) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=2, seed=3)
    kept = half_full(tmp_path, photos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = [
            served(source, RECIPES[recipe], planner, epochs=3, stored=stored, kernels=kernels)
            for source in (kept, photos)
        ]
    assert_same(*each)


@pytest.mark.parametrize(
    "planner",
    [
        Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=3, shards=2),
        SmartCache(NUM_SAMPLES, batch_size=BATCH_SIZE, num_cache_objects=12, replace_percent=0.5),
        AutoAssist(STANDARD, lag=9),
        # A keep asks for what these ask for, each sample once or several times.
        *weekly(Echo(STANDARD, echoing_factor=2, buffer_size=4), Evaluate(NUM_SAMPLES, batch_size=BATCH_SIZE)),
    ],
    ids=lambda planner: type(planner).__name__,
)
def test_whatever_the_planner(planner: Planner, photos: ImageFolder, tmp_path: Path) -> None:
    kept = Kept(photos, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(
            served(kept, planner=planner, epochs=3, stored=True), served(photos, planner=planner, epochs=3, stored=True)
        )


def test_a_training_goes_on_with_a_keep_and_without(photos: ImageFolder, tmp_path: Path) -> None:
    batches, _ = taken_in_turn([photos, Kept(photos, tmp_path)], RECIPE, STANDARD)
    assert_same(batches, served(photos))


@pytest.mark.parametrize("world_size", [2, *weekly(4)])
def test_ranks_share_one_folder(world_size: int, photos: ImageFolder, tmp_path: Path) -> None:
    source, planner = Counted(photos), Refurbish(NUM_SAMPLES, batch_size=8, reuse_factor=2, shards=4, seed=1)
    for rank in range(world_size):
        kept = Kept(source, tmp_path)
        each = (served(read, planner=planner, stored=True, rank=(rank, world_size)) for read in (kept, photos))
        assert_same(*each)
    assert len(source.asked) == len(set(source.asked)), "a rank makes nothing that another one has made"


def test_images_that_are_kept_decoded_are_refused_where_a_gpus_decoder_would_make_others(
    photos: ImageFolder, tmp_path: Path
) -> None:
    told = r"kept decoded are the CPU's, but partial_device is 'gpu', .* pass Kept\(..., form='encoded'\)"
    for source in (Kept(photos, tmp_path), Kept(photos, tmp_path).subset(range(NUM_SAMPLES))):
        with pytest.raises(ConfigurationError, match=told):
            Loader(source, RECIPE, STANDARD, partial_device="gpu", final_device="gpu", kernels="dali")


def test_nothing_is_read_of_what_is_kept(photos: ImageFolder, tmp_path: Path) -> None:
    source = Counted(photos)
    kept = Kept(source, tmp_path)
    with Loader(kept, RECIPE, STANDARD) as loader:
        for _ in range(3):
            for _ in loader:
                pass
        assert loader.stats().files == 0
    assert sorted(source.asked) == ALL.tolist()
    Kept(source, tmp_path).images(ALL)
    assert sorted(source.asked) == ALL.tolist(), "another process reads nothing"


@pytest.mark.parametrize("fill", ["empty", "half full"])
@pytest.mark.parametrize("kernels", ["numba", "dali"])
def test_kernels_take_images_where_they_lie_and_only_dali_is_given_them_as_files(
    kernels: Any, fill: str, photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def as_file(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        written.append(image.tobytes())
        return as_pnm(image)

    monkeypatch.setattr("dalirefurb.reading.reader.as_pnm", as_file)
    kept = FILLS[fill](tmp_path, photos)
    with Loader(kept, RECIPE, STANDARD, kernels=kernels, prefetch=Prefetch(num_threads=1)) as loader:
        assert sum(len(labels) for _, labels in loader) == NUM_SAMPLES
    images = {image.tobytes() for image in kept.images(ALL) or () if image.size}
    # Pillow's images, of files that are not kept, are written, too.
    assert images <= {*written} if kernels == "dali" else not written
    assert (len(images) < NUM_SAMPLES) == (fill == "half full")


def test_images_are_views_of_the_folder_and_cannot_be_changed(photos: ImageFolder, tmp_path: Path) -> None:
    images = Kept(photos, tmp_path).images(ALL)
    again = Kept(photos, tmp_path).images(ALL)
    assert images is not None
    assert again is not None
    for index, (image, other) in enumerate(zip(images, again, strict=True)):
        np.testing.assert_array_equal(image, photos[index][0])
        np.testing.assert_array_equal(image, other)
        assert not other.flags.writeable


def test_parts_of_a_keep_and_several_together_are_served_from_it(photos: ImageFolder, tmp_path: Path) -> None:
    source = Counted(photos)
    kept = Kept(source, tmp_path)
    chosen = np.array([7, 3, 3, 20, 11, 0])
    planner = Standard(len(chosen), batch_size=3)
    assert_same(served(kept.subset(chosen), planner=planner), served(photos.subset(chosen), planner=planner))
    both, planner = Concat([photos, kept]), Standard(2 * NUM_SAMPLES, batch_size=8)
    assert_same(served(both, planner=planner), served(Concat([photos, photos]), planner=planner))
    read = [*source.asked]
    served(both, planner=planner)
    assert source.asked == read


def test_arrays_of_a_slow_data_set_are_kept(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), np.uint8)
    source = Counted(Arrays(images, np.arange(NUM_SAMPLES)))
    kept, recipe = Kept(source, tmp_path), simple(SIZE, raw=True)
    assert_same(served(kept, recipe), served(Arrays(images, np.arange(NUM_SAMPLES)), recipe))
    assert sorted(source.asked) == ALL.tolist()
    with pytest.raises(ConfigurationError, match="this one gives images: pass form='decoded'"):
        Kept(source, tmp_path / "other", form="encoded")


def test_a_changed_file_is_noticed_by_who_begins_later(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES)
    source = ImageFolder(root)
    Kept(source, tmp_path / "keep").images(ALL)
    changed = jpeg(picture(99, height=52, width=61))
    Path(source.name(4)).write_bytes(changed)
    images = Kept(source, tmp_path / "keep").images(ALL)
    assert images is not None
    np.testing.assert_array_equal(images[4], source[4][0])
    assert_same(served(Kept(source, tmp_path / "keep")), served(source))


@pytest.mark.parametrize("how", ["alone", "stored", "stamped together", "nested"])
def test_a_changed_file_is_noticed_by_the_next_loader_of_the_same_keep(how: str, tmp_path: Path) -> None:
    """Else a store that says what the files are now would be filled with what they were."""

    class Together(Unstamped):
        def content(self) -> dict[str, Any]:
            return self._source.content()

    photos = ImageFolder(write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES))
    source = Together(photos) if how == "stamped together" else photos
    keep = inner = Kept(source, tmp_path / "keep", form="encoded")
    planner = Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=2)
    before = served(keep, planner=planner)
    Path(photos.name(4)).write_bytes(jpeg(picture(99, height=52, width=61)))
    if how == "nested":
        keep = Kept(inner, tmp_path / "another")
    expected = served(photos, planner=planner)
    assert any(not torch.equal(images, others) for (images, _), (others, _) in zip(before, expected, strict=True))
    assert_same(served(keep, planner=planner, stored=how.startswith("st")), expected)


def test_two_processes_that_know_a_sample_as_different_ones_do_not_put_it_in_turns(tmp_path: Path) -> None:
    class Told(Unstamped):
        def __init__(self, images: NDArray[np.uint8]) -> None:
            super().__init__(Arrays(images, ALL))
            self.images_there = images

        def fingerprint(self) -> dict[str, Any]:
            return {"of": "both"}

        def content(self) -> dict[str, Any]:
            return {"first": int(self.images_there[0, 0, 0, 0])}

    images = np.random.default_rng(0).integers(1, 255, (NUM_SAMPLES, 16, 16, 3), np.uint8)
    before, after = Told(images), Told(255 - images)
    keeps = [Kept(source, tmp_path, size="9MB") for source in (before, after)]
    for _ in range(4):
        for keep, source in zip(keeps, (before, after), strict=True):
            np.testing.assert_array_equal(np.stack([*keep.read(ALL)]), source.images_there)
    assert (inspect(tmp_path).kept, keeps[0]._folders()[0].nbytes) == (NUM_SAMPLES, 2 * images.nbytes)
    assert sorted(after.asked) == ALL.tolist()


def test_a_file_that_changed_while_storage_was_away_is_noticed_once_it_is_back(tmp_path: Path) -> None:
    root, away = write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES), tmp_path / "away"
    source = ImageFolder(root)
    before = [image.copy() for image in Kept(source, tmp_path / "keep").images(ALL) or ()]
    root.rename(away)
    kept = Kept(source, tmp_path / "keep")
    for old, image in zip(before, kept.images(ALL) or (), strict=True):
        np.testing.assert_array_equal(image, old)
    away.rename(root)
    Path(source.name(4)).write_bytes(jpeg(picture(99, height=52, width=61)))
    images = kept.images(ALL)
    assert images is not None
    np.testing.assert_array_equal(images[4], source[4][0])
    np.testing.assert_array_equal(images[5], before[5])


def test_a_keep_that_began_while_storage_was_away_is_of_the_same_files_later(tmp_path: Path) -> None:
    root, away = write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES), tmp_path / "away"
    source = ImageFolder(root)
    root.rename(away)
    Kept(source, tmp_path / "keep")
    away.rename(root)
    assert Kept(source, tmp_path / "keep").fill() == NUM_SAMPLES


def test_what_is_kept_is_served_where_its_files_are_out_of_reach(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES))
    expected = served(source)
    Kept(source, tmp_path / "keep").fill()
    (tmp_path / "photos").rename(tmp_path / "away")
    assert_same(served(Kept(source, tmp_path / "keep")), expected)


def test_a_file_that_changes_while_it_is_read_is_read_again_by_who_begins_later(tmp_path: Path) -> None:
    photos = ImageFolder(write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES))

    class Changing(Counted):
        def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
            read = super().read(indices)
            if 4 in indices and self.asked.count(4) == 1:
                Path(self.name(4)).write_bytes(jpeg(picture(99, height=52, width=61)))
            return read

    source = Changing(photos)
    first, then = (Kept(source, tmp_path / "keep").images(ALL) for _ in range(2))
    assert first is not None
    assert then is not None
    assert first[4].shape != then[4].shape
    np.testing.assert_array_equal(then[4], photos[4][0])


@pytest.mark.parametrize("form", ["decoded", "encoded"])
def test_changed_shards_are_noticed(form: Any, tmp_path: Path) -> None:
    def shard(first: int) -> TarShards:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for number in range(4):
                file = jpeg(picture(first + number, height=40, width=40)).ljust(4000, b"\0")  # of equal sizes
                for name, content in ((f"{number}.jpg", file), (f"{number}.cls", b"0")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return TarShards(str(tmp_path / "a.tar"))

    planner = Standard(4, batch_size=2)
    served(Kept(shard(0), tmp_path / "keep", form=form), planner=planner)
    source = shard(10)
    assert_same(served(Kept(source, tmp_path / "keep", form=form), planner=planner), served(source, planner=planner))


@pytest.mark.parametrize("openings", [1, 2], ids=["threads", "processes"])
def test_what_others_make_is_waited_for_however_slow_the_source_is(
    openings: int, photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalirefurb.keep.kept._LEAST_PATIENCE_S", 0.01)
    source = Counted(photos, delay_s=0.03)
    one, *others = (Kept(source, tmp_path, form="encoded") for _ in range(openings))
    other = others[0] if others else one
    other.read(ALL[11:21])  # Of how long it takes a process knows by what it has made.
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.read, ALL[:10])
        while 0 not in source.asked:
            time.sleep(0.001)
        other.read(ALL[9:10])
        first.result()
    assert sorted(source.asked) == [*range(10), *range(11, 21)]


def test_what_is_kept_while_it_is_waited_for_is_not_read_again_by_who_waits(
    photos: ImageFolder, tmp_path: Path
) -> None:
    source = Counted(photos, delay_s=0.03)
    kept = Kept(source, tmp_path, form="encoded", size=48 * NUM_SAMPLES + 2 * len(photos.read(ALL[1:2])[0]))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kept.read, ALL[1:8])
        while 7 not in source.asked:
            time.sleep(0.001)
        (again,) = kept.read(ALL[1:2])
        first.result()
    assert kept._folders()[0].full
    np.testing.assert_array_equal(again, photos.read(ALL[1:2])[0])
    assert sorted(source.asked) == [*range(1, 8)]


def test_bad_files_are_the_loaders_matter(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", num_samples=NUM_SAMPLES)
    source = ImageFolder(root)
    Path(source.name(3)).write_bytes(b"no image")
    kept = Kept(source, tmp_path / "keep")
    with pytest.raises(SampleError, match="sample 3 "):
        served(kept)
    replaced = BadSamplePolicy("replace")
    assert_same(served(kept, bad_samples=replaced), served(source, bad_samples=replaced))
    small = BadSamplePolicy("replace", max_pixels=2500)
    assert_same(served(kept, bad_samples=small), served(source, bad_samples=small))


def test_a_folder_holds_one_form_of_one_source(photos: ImageFolder, tmp_path: Path) -> None:
    Kept(photos, tmp_path / "keep")
    with pytest.raises(StoreError, match="holds another: form 'decoded', not 'encoded'"):
        Kept(photos, tmp_path / "keep", form="encoded")
    with pytest.raises(StoreError, match="holds another: num_samples"):
        Kept(photos.subset([0, 1]), tmp_path / "keep")
    with pytest.raises(ConfigurationError, match="form must be one of"):
        Kept(photos, tmp_path, form="decode")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="path must be the path of a folder, got 3"):
        Kept(photos, 3)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"read, written and locked, but .* is not \(File name too long\)"):
        Kept(photos, tmp_path / ("x" * 300))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="must be one that can be read, written and locked, but"):
        Kept(photos, tmp_path / "file")
    (tmp_path / "keep" / "keep.json").write_text("{")
    with pytest.raises(StoreError, match=r"is damaged: pass another folder, or delete keep\.json, room,"):
        Kept(photos, tmp_path / "keep")


def test_the_users_home_folder_can_begin_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    write_folder(home / "photos", num_samples=4)
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    photos = ImageFolder("~/photos")
    shard = here / "a.tar"
    with tarfile.open(shard, "w") as tar:
        tar.add(photos.name(0), "a.jpg")
    assert len(TarShards(shard, label=lambda _: 0, index="~/index")) == 1
    assert Kept(photos, Path("~/keep"), form="encoded").fill() == 4
    planner, policy = Refurbish(4, batch_size=2, reuse_factor=2), BadSamplePolicy("replace", "~/bad.jsonl")
    assert propose_coverage(photos, simple(SIZE), planner, "50%", path="~/store").coverage == 1
    with Loader(photos, simple(SIZE), planner, DiskStore("~/store"), bad_samples=policy) as loader:
        next(iter(loader))
    assert DiskStore.inspect("~/store").path == home / "store"
    with Loader(photos, simple(SIZE), planner, TieredStore(memory=1, path="~/tiered", disk="50%")) as loader:
        next(iter(loader))
    DiskStore.purge("~/tiered")
    DiskStore.purge(Path("~/store"))
    assert {each.name for each in home.iterdir()} == {"photos", "index", "keep", "bad.jsonl"}
    assert [each.name for each in here.iterdir()] == ["a.tar"]


def test_it_says_what_is_kept_and_where(photos: ImageFolder, tmp_path: Path) -> None:
    assert repr(Kept(photos, tmp_path)) == f"Kept({photos!r}, '{tmp_path}', form='decoded')"


def test_a_keep_can_be_sent_to_a_process_and_survives_a_fork(photos: ImageFolder, tmp_path: Path) -> None:
    kept = Kept(photos, tmp_path)
    kept.images(ALL[:5])
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, bytes([len(kept.images(ALL[3:7]))]))
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"\4"
    os.wait()
    assert inspect(tmp_path).kept == 7, "a child keeps, too"
    assert_same(served(pickle.loads(pickle.dumps(kept))), served(photos))


def test_threads_of_a_forked_child_open_the_folder_once(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays_s = iter((0.2, 0.8))

    def slow(value_range: Any) -> Levels:
        time.sleep(next(delays_s))
        return Levels(value_range)

    kept = Kept(photos, tmp_path)
    reader, writer = os.pipe()
    monkeypatch.setattr("dalirefurb.keep.kept.Levels", slow)
    if os.fork() == 0:
        with ThreadPoolExecutor(2) as pool:
            opened = [*pool.map(lambda _: kept._folders(), range(2))]
        os.write(writer, bytes([opened[0][0] is opened[1][0] is kept._folders()[0]]))
        os._exit(0)
    assert os.read(reader, 1) == b"\1"
    os.wait()


def test_a_claim_is_one_processs_and_ends_with_it(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path, {}, 10, 1 << 20)
    program = (
        "import sys, time; from pathlib import Path; from dalirefurb.keep.folder import KeepFolder;"
        "folder = KeepFolder(Path(sys.argv[1]), {}, 10, 1 << 20);"
        "print(folder.claim([3, 4]), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"[3, 4]\n"
        assert folder.claim([3, 4, 5, 6]) == [5, 6]
        folder.release([5])
        assert folder.claim([5, 6]) == [5], "a thread does not take what another one makes"
        other.kill()
        other.wait()
        assert folder.claim([3, 4]) == [3, 4]


def test_a_child_of_a_process_that_was_killed_does_not_keep_its_claims(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from dalirefurb.keep.folder import KeepFolder;"
        "folder = KeepFolder(Path(sys.argv[1]), {}, 10, 1 << 20);"
        "claimed = folder.claim([3, 4]);"
        "os.fork() and print(claimed, flush=True);"
        "sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"[3, 4]\n"
        other.kill()
        other.wait()
        folder, deadline = KeepFolder(tmp_path, {}, 10, 1 << 20), time.monotonic() + 60
        while not (claimed := folder.claim([3, 4])) and time.monotonic() < deadline:  # It may only just have begun.
            time.sleep(0.01)
        assert claimed == [3, 4]


def test_claims_end_with_the_opening_that_made_them(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path, {}, 10, 1 << 20)
    assert folder.claim([3, 4]) == [3, 4]
    other = KeepFolder(tmp_path, {}, 10, 1 << 20)
    assert other.claim([3, 4]) == []
    del folder
    gc.collect()
    assert other.claim([3, 4]) == [3, 4]


def test_of_data_that_end_early_what_is_there_is_served(tmp_path: Path) -> None:
    folder, image = KeepFolder(tmp_path, {}, 4, 1 << 20), np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    assert folder.put(1, 0, image)
    assert folder.put(2, 0, image)
    os.truncate(tmp_path / "data", 300)
    samples, kept = folder.find(np.array([0, 1, 2, 1, 0, 2]), unknown)
    assert kept.tolist() == [False, True, False, True, False, False]
    np.testing.assert_array_equal(samples[1], image)
    assert samples[2].size == 0


def test_there_is_room_for_so_many_bytes_and_what_came_first_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = KeepFolder(tmp_path, {}, 10, TABLE_BYTES + 1000)
    image = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    assert [folder.put(index, 0, image) for index in range(4)] == [True, True, True, False]
    assert folder.full
    assert "is full: it has 3 of 10 samples in the 1.48 KB that it may take" in caplog.text
    samples, kept = folder.find(np.arange(10), unknown)
    assert kept.tolist() == [True] * 3 + [False] * 7
    for sample in samples[:3]:
        np.testing.assert_array_equal(sample, image)
    larger = KeepFolder(tmp_path, {}, 10, TABLE_BYTES + 2000)
    assert larger.put(4, 0, image[:5])
    samples, kept = folder.find(np.array([4, 5]), unknown)
    assert kept.tolist() == [True, False]
    np.testing.assert_array_equal(samples[0], image[:5])
    exact = KeepFolder(tmp_path / "exact", {}, 10, TABLE_BYTES + 640 + 300)  # in blocks of 64 bytes
    assert [exact.put(index, 0, image) for index in range(4)] == [True, True, True, False]


def test_what_another_process_puts_in_the_place_of_a_sample_is_not_taken_for_it(tmp_path: Path) -> None:
    """Of two folders of files that have the same names and labels, say."""
    own, other = (KeepFolder(tmp_path, {}, 3, 1 << 20) for _ in range(2))
    images = [np.full((8, 8, 3), level, np.uint8) for level in (1, 2)]
    assert own.put(1, 11, images[0])
    assert own.find(np.array([1]), lambda _: np.array([11], np.uint64))[1].all()
    assert other.put(1, 22, images[1])
    assert not own.find(np.array([1]), lambda _: np.array([11], np.uint64))[1].any()
    samples, kept = other.find(np.array([1]), lambda _: np.array([22], np.uint64))
    assert kept.all()
    np.testing.assert_array_equal(samples[0], images[1])


def test_a_sample_whose_stamp_was_never_known_is_made_anew_once_it_is(tmp_path: Path) -> None:
    index = np.array([1])
    assert KeepFolder(tmp_path, {}, 3, 1 << 20).put(1, 0, np.full((8, 8, 3), 7, np.uint8))
    folder = KeepFolder(tmp_path, {}, 3, 1 << 20)
    assert folder.find(index, unknown)[1].all()
    assert not folder.find(index, lambda _: np.array([5], np.uint64))[1].any()


def test_a_record_of_which_any_byte_is_another_names_no_sample() -> None:
    record, size = written(4, start=64, nbytes=100, height=5, width=7, stamp=11, digest=13), RECORD.itemsize
    assert believable(record, np.array([4])).all()
    assert record["check"][0] == 5196607643943923859, "keeps of before are read"
    assert not believable(record, np.array([5])).any()
    changed = np.repeat(record, size)
    np.einsum("ii->i", changed.view(np.uint8).reshape(size, size))[:] ^= 1  # of each another byte
    assert not believable(changed, np.full(size, 4)).any()


@pytest.mark.parametrize("room", [bytes(16), b""], ids=["behind", "empty"])
def test_room_that_samples_have_is_not_given_away_after_a_crash_of_the_machine(room: bytes, tmp_path: Path) -> None:
    images = [np.full((8, 8, 3), level, np.uint8) for level in range(4)]
    folder = KeepFolder(tmp_path, {}, 4, 1 << 20)
    for index in range(3):
        folder.put(index, 0, images[index])
    del folder
    (tmp_path / "room").write_bytes(room)
    folder = KeepFolder(tmp_path, {}, 4, 1 << 20)
    folder.put(3, 0, images[3])
    samples, kept = folder.find(np.arange(4), unknown)
    assert kept.all()
    for sample, image in zip(samples, images, strict=True):
        np.testing.assert_array_equal(sample, image)


@pytest.mark.parametrize("after", ["a crash of the machine", "copying"])
def test_where_room_may_be_behind_it_is_counted_of_all_samples(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, path = [np.full((8, 8, 3), level, np.uint8) for level in range(4)], tmp_path / "keep"
    folder = KeepFolder(path, {}, 4, 1 << 20)
    for index in range(3):
        folder.put(index, 0, images[index])
    del folder
    with (path / "room").open("r+b") as room:
        room.write(bytes(8))
    if after == "copying":
        path = shutil.copytree(path, tmp_path / "copy")
    else:
        monkeypatch.setattr("dalirefurb.keep.folder.boot_id", lambda: "another start")
    monkeypatch.setattr("dalirefurb.keep.folder._ROWS", 2)
    folder = KeepFolder(path, {}, 4, 1 << 20)
    folder.put(3, 0, images[3])
    samples, kept = folder.find(np.arange(4), unknown)
    assert kept.all()
    for sample, image in zip(samples, images, strict=True):
        np.testing.assert_array_equal(sample, image)


def test_the_table_has_its_room_from_the_beginning(tmp_path: Path) -> None:
    """Else a full memory would end the process where the table is looked at."""
    KeepFolder(tmp_path, {}, 100_000, 1 << 30)
    assert (tmp_path / "records").stat().st_blocks * 512 >= 48 * 100_000


def test_files_that_are_somebody_elses_are_left_alone(photos: ImageFolder, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"mine")
    with pytest.raises(StoreError, match=r"must say in keep\.json what it holds, but .* has files of such names"):
        Kept(photos, tmp_path)
    assert (tmp_path / "data").read_bytes() == b"mine"
    with pytest.raises(StoreError, match="must say in"):
        Kept(photos, tmp_path)


def test_a_folder_that_is_deleted_while_it_is_opened_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, times = os.open, []

    def meddled(path: Any, *arguments: Any) -> int:
        descriptor = opened(path, *arguments)
        if str(path).endswith("/data"):
            times.append(path)
            if len(times) == 1:
                (tmp_path / "records").unlink()
        return descriptor

    monkeypatch.setattr(os, "open", meddled)
    folder = KeepFolder(tmp_path, {}, 4, 1 << 20)
    assert len(times) == 2
    image = np.ones((8, 8, 3), np.uint8)
    assert folder.put(2, 0, image)
    assert KeepFolder(tmp_path, {}, 4, 1 << 20).find(np.arange(4), unknown)[1].tolist() == [False, False, True, False]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_file_that_another_process_renames_while_its_room_is_counted_does_not_matter(
    looks: int, photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, stat, seen = tmp_path / "keep.json.new", os.stat, []

    def meddled(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path) == str(draft):
            seen.append(path)
            if len(seen) > looks:
                draft.unlink(missing_ok=True)
        return stat(path, *arguments, **options)

    Kept(photos, tmp_path).fill()
    draft.touch()
    monkeypatch.setattr(os, "stat", meddled)
    assert Kept(photos, tmp_path).fill() == NUM_SAMPLES
    assert seen


def test_other_files_of_the_same_names_are_refused_and_a_few_changed_ones_are_not(tmp_path: Path) -> None:
    roots = [write_folder(tmp_path / name, num_samples=NUM_SAMPLES) for name in ("a", "b")]
    one, other = map(ImageFolder, roots)
    Kept(one, tmp_path / "keep").fill()
    with pytest.raises(StoreError, match="holds those of others that have the same names and labels"):
        Kept(other, tmp_path / "keep")
    os.utime(one.name(0))
    assert_same(served(Kept(one, tmp_path / "keep")), served(one))


def test_a_keep_that_can_only_be_read_is_served_from_and_nothing_is_added(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kept(photos, tmp_path).images(ALL[::2])
    opened = os.open

    def guarded(path: Any, flags: int, *arguments: Any) -> int:
        if str(path).startswith(str(tmp_path)) and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *arguments)

    monkeypatch.setattr(os, "open", guarded)
    source = Counted(photos)
    with pytest.raises(StoreError, match="holds another"):
        Kept(photos.subset(ALL), tmp_path)
    kept = Kept(photos, tmp_path)
    assert_same(served(kept), served(photos))
    images = Kept(source, tmp_path).images(ALL)
    assert images is not None
    assert [image.size > 0 for image in images] == [index % 2 == 0 for index in ALL]
    assert not source.asked


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS], ids=errno.errorcode.get)
def test_a_folder_that_may_not_be_written_is_served_from(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, image = os.open, np.full((8, 8, 3), 7, np.uint8)
    assert KeepFolder(tmp_path, {}, 3, 1 << 20).put(1, 0, image)

    def guarded(path: Any, flags: int, *arguments: Any) -> int:
        if str(path).startswith(str(tmp_path)) and flags & os.O_RDWR:
            raise OSError(number, os.strerror(number), path)
        return opened(path, flags, *arguments)

    monkeypatch.setattr(os, "open", guarded)
    folder = KeepFolder(tmp_path, {}, 3, 1 << 20)
    assert folder.full
    samples, kept = folder.find(np.arange(3), unknown)
    assert kept.tolist() == [False, True, False]
    np.testing.assert_array_equal(samples[1], image)


def room_said(caplog: pytest.LogCaptureFixture) -> str:
    """The bytes that a full keep said that it may take."""
    (line,) = [record.getMessage() for record in caplog.records if "is full" in record.getMessage()]
    caplog.clear()
    return line.partition("samples in the ")[2].partition(" that it may take")[0]


def test_a_share_is_of_what_is_free_and_of_what_is_held(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In memory of no more than this process and those that train beside it may take."""
    free, path = {"disk": 100_000, "memory": 10**9}, tmp_path / "keep"
    monkeypatch.setattr(kept_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=free["disk"]))
    monkeypatch.setattr(kept_module, "available_bytes", lambda: free["memory"])
    monkeypatch.setattr(kept_module, "local_processes", lambda: 3)
    Kept(photos, path, size="50%").fill()
    assert room_said(caplog) == "50.00 KB"
    held = sum(each.stat().st_blocks * 512 for each in path.iterdir())
    Kept(photos, path, size="50%").fill()
    assert room_said(caplog) == amount((100_000 + held) // 2)
    free["memory"] = 20_000
    Kept(photos, tmp_path / "on a disk", size="50%").fill()
    assert room_said(caplog) == "50.00 KB"
    monkeypatch.setattr(kept_module, "_MEMORY", str(tmp_path))
    Kept(photos, tmp_path / "in memory", size="50%").fill()
    assert room_said(caplog) == "30.00 KB"


def test_what_others_take_meanwhile_is_not_there_for_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as stores, of memory; once they let go of it, the keep goes on."""
    others, path, images = 0, tmp_path / "keep", [np.full((64, 64, 3), level, np.uint8) for level in range(40)]
    whole = 2 * len(images) * images[0].nbytes

    def free() -> int:
        return whole - others - sum(each.stat().st_blocks * 512 for each in path.glob("*"))

    monkeypatch.setattr(kept_module, "_MEMORY", str(tmp_path))
    monkeypatch.setattr(kept_module, "available_bytes", free)
    monkeypatch.setattr(kept_module, "local_processes", lambda: 1)
    kept = Kept(Arrays(images, range(len(images))), path, size="80%")
    others = whole - 20 * images[0].nbytes
    assert kept.fill() in range(13, 18), "80 % of 20 images, in pages, a few records, and looked at now and then"
    assert "is full: it has" in caplog.text
    assert caplog.text.rstrip().endswith("read in each epoch, as long as it may take no more")
    np.testing.assert_array_equal(kept.read(np.arange(len(images))), images)
    others = 0
    assert kept.fill() == len(images)
    np.testing.assert_array_equal(kept.read(np.arange(len(images))), images)
    assert caplog.text.count("is full") == 1


def test_images_that_another_decoder_or_another_range_would_make_are_others(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [photos.name(index) for index in range(NUM_SAMPLES)]
    for form in ("decoded", "encoded"):
        Kept(FileList(names, photos.labels, value_range=(0, 4095)), tmp_path / form, form=form)
    same = FileList(names, photos.labels, value_range=(0, 2047))
    with pytest.raises(StoreError, match=r"holds another: value_range\[1\] 4095\.0, not 2047\.0"):
        Kept(same, tmp_path / "decoded")
    monkeypatch.setattr(kept_module, "pillow_version", lambda: "another")
    with pytest.raises(StoreError, match=r"holds another: value_range.*; versions\.pillow '.*', not 'another'"):
        Kept(same, tmp_path / "decoded")
    Kept(same, tmp_path / "encoded", form="encoded")


def test_a_full_keep_says_so_once(photos: ImageFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(photos, tmp_path, size="60KB")
    served(kept)
    (line,) = [record.getMessage() for record in caplog.records if "is full" in record.getMessage()]
    assert re.search(r"is full: it has \d+ of 23 samples in the 60\.00 KB that it may take", line)


def test_a_sample_that_a_source_fails_to_read_keeps_no_others_from_being_filled_in(
    photos: ImageFolder, tmp_path: Path
) -> None:
    class Failing(Counted):
        def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]]:
            if 3 in indices:
                raise ValueError("conversion from LAB to RGB not supported")
            return super().read(indices)

    assert Kept(Failing(photos), tmp_path, form="encoded").fill() == NUM_SAMPLES - 1


def test_nothing_is_read_to_fill_a_keep_that_is_full(photos: ImageFolder, tmp_path: Path) -> None:
    source = Counted(photos)
    kept = Kept(source, tmp_path, form="encoded", size=0)
    assert [kept.fill(), kept.fill()] == [0, 0]
    assert sorted(source.asked) == ALL.tolist()


def test_a_servers_page_is_not_kept_as_a_file(tmp_path: Path, photos: ImageFolder) -> None:
    class Server(Counted):
        away = True

        def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]]:
            page = np.frombuffer(b"<!DOCTYPE html><html>try again</html>", np.uint8)
            return [
                page if self.away and index == 3 else file
                for index, file in zip(indices, super().read(indices), strict=True)
            ]

    server = Server(photos)
    kept = Kept(server, tmp_path, form="encoded")
    assert kept.read(ALL)[3][:1].tobytes() == b"<"
    server.away = False
    np.testing.assert_array_equal(kept.read(ALL)[3], photos.read(ALL[3:4])[0])


@pytest.mark.parametrize(
    "odd", [lambda image: image[..., :1], lambda image: image.astype(np.float32)], ids=["one channel", "floats"]
)
def test_what_a_source_should_not_give_is_not_kept_but_refused_each_time(
    odd: Callable[..., Any], tmp_path: Path
) -> None:
    class Odd(Counted):
        def read(self, indices: NDArray[np.int64]) -> Any:
            return [
                image if index != 2 else odd(image) for index, image in zip(indices, super().read(indices), strict=True)
            ]

    arrays = Arrays(np.zeros((NUM_SAMPLES, SIZE, SIZE, 3), np.uint8), np.arange(NUM_SAMPLES))
    kept = Kept(Odd(arrays), tmp_path)
    for _ in range(2):
        with pytest.raises(SampleError, match="sample 2 "):
            served(kept, simple(SIZE, raw=True))


def test_labels_that_were_assigned_are_another_source_of_the_same_images(photos: ImageFolder, tmp_path: Path) -> None:
    kept = Kept(photos, tmp_path)
    assert kept.fingerprint() == photos.fingerprint()
    prints = [photos.fingerprint()]
    for _ in range(2):
        kept.labels = kept.labels + 1
        prints.append(kept.fingerprint())
    assert all(one != two for one, two in combinations(prints, 2))
    kept.labels = photos.labels.copy()
    assert kept.fingerprint() == photos.fingerprint()
    assert pickle.loads(pickle.dumps(Kept(photos, tmp_path))).fingerprint() == photos.fingerprint()


def test_a_concatenation_is_kept_also_where_not_all_parts_have_stamps(photos: ImageFolder, tmp_path: Path) -> None:
    both, planner = Concat([photos, Unstamped(photos)]), Standard(2 * NUM_SAMPLES, batch_size=8)
    kept = Kept(both, tmp_path)
    assert_same(served(kept, planner=planner), served(both, planner=planner))
    assert Concat([photos, Kept(photos, tmp_path / "one")]).images(ALL[:0]) is not None
    assert Concat([photos, photos]).images(ALL[:0]) is None


class Logged(Counted):
    """A source that writes down what is read of it, for several processes."""

    def __init__(self, source: Source, log: str) -> None:
        super().__init__(source)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        os.write(self._log, indices.astype(np.int64).tobytes())
        return super().read(indices)


def keepers(root: str, keep: str, form: Any, log: str, kills: int) -> None:
    """Have four processes fill one folder, and kill one after the other of them, each replaced by a new one."""
    rng = np.random.default_rng(0)

    def start(seed: int) -> int:
        """Fork before DALI is used: only imported, it need not be imported again."""
        if pid := os.fork():
            return pid
        kept = Kept(Logged(ImageFolder(root), log), keep, form=form)
        ask, order = kept.images if form == "decoded" else kept.read, np.random.default_rng(seed)
        for _ in range(20):
            for part in np.array_split(order.permutation(len(kept)), 4):
                ask(part)
        os._exit(0)

    running = [start(seed) for seed in range(4)]
    for number in range(kills):
        time.sleep(rng.random() * 0.2)
        os.kill(running[number % 4], signal.SIGKILL)
        os.waitpid(running[number % 4], 0)
        running[number % 4] = start(4 + number)
    assert [os.waitpid(pid, 0)[1] for pid in running] == [0] * 4


@pytest.mark.parametrize(
    ("form", "kills"),
    [
        ("decoded", KILLS),
        *(
            pytest.param(*each, marks=pytest.mark.weekly)
            for each in (("decoded", 0), ("encoded", KILLS), ("encoded", 0))
        ),
    ],
)
def test_four_processes_make_each_sample_once_but_for_those_that_are_killed(
    form: Any, kills: int, photos: ImageFolder, tmp_path: Path
) -> None:
    program = "import sys; from tests.keep.test_kept import keepers; keepers(*sys.argv[1:5], int(sys.argv[5]))"
    arguments = [photos._root, str(tmp_path / "keep"), form, str(tmp_path / "log"), str(kills)]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, timeout=300)
    made = np.bincount(np.fromfile(tmp_path / "log", np.int64), minlength=NUM_SAMPLES)
    assert made.min() >= 1
    assert (made - 1).sum() <= 6 * kills, "only what a killed one had claimed is made again"
    source = Counted(photos)
    kept = Kept(source, tmp_path / "keep", form=form)
    samples = kept.images(ALL) if form == "decoded" else kept.read(ALL)
    assert samples is not None
    assert not source.asked
    for index, (sample, file) in enumerate(zip(samples, photos.read(ALL), strict=True)):
        np.testing.assert_array_equal(sample, photos[index][0] if form == "decoded" else file)


def test_a_disk_without_room_is_warned_of_once_and_serves_the_same(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(photos, tmp_path)
    kept.images(ALL[:4])

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dalirefurb.keep.folder.write_all", full)
    with pytest.warns(UserWarning, match=r"cannot be written \(No space left on device\)") as caught:
        assert_same(served(kept), served(photos))
    assert sum("cannot be written" in str(each.message) for each in caught) == 1


def test_a_folder_that_others_lock_for_long_is_added_to_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalirefurb.keep.folder._PATIENCE_S", 0.0)
    folder, other = (KeepFolder(tmp_path, {}, 3, 1 << 20) for _ in range(2))
    image = np.full((8, 8, 3), 7, np.uint8)
    assert folder.put(0, 0, image)
    with (
        other._alone(),
        pytest.warns(UserWarning, match=r"written \(another process has had its lock for 0 s"),
    ):
        assert not folder.put(1, 0, image)
    assert (folder.full, other.full) == (True, False)
    assert other.put(1, 0, image)
    assert folder.find(np.arange(3), unknown)[1].tolist() == [True, True, False]


def test_a_folder_that_cannot_be_locked_any_more_serves_what_it_holds(
    photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    kept = Kept(photos, tmp_path, form="encoded")
    kept.read(ALL[:4])
    monkeypatch.setattr("dalirefurb.keep.folder._locked", refuse)
    with pytest.warns(UserWarning, match=r"cannot be written \(No locks available\): what it holds is served"):
        files = kept.read(ALL)
    for file, expected in zip(files, photos.read(ALL), strict=True):
        np.testing.assert_array_equal(file, expected)
    assert inspect(tmp_path).kept == 4


def test_what_storage_fails_to_read_is_left_to_the_loader_and_kept_later(photos: ImageFolder, tmp_path: Path) -> None:
    class Away(Counted):
        away = True

        def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
            if self.away:
                raise TimeoutError("it does not answer")
            return super().read(indices)

    source = Away(photos)
    kept = Kept(source, tmp_path)
    assert not any(image.size for image in kept.images(ALL) or ())
    source.away = False
    for index, image in enumerate(kept.images(ALL) or ()):
        np.testing.assert_array_equal(image, photos[index][0])
    assert inspect(tmp_path).kept == NUM_SAMPLES


def test_a_folder_that_was_removed_is_an_empty_one_to_who_begins_later(photos: ImageFolder, tmp_path: Path) -> None:
    kept = Kept(photos, tmp_path / "keep")
    kept.images(ALL)
    shutil.rmtree(tmp_path / "keep")
    assert_same(served(kept), served(photos))
    assert_same(served(Kept(photos, tmp_path / "keep")), served(photos))


def test_other_paths_of_the_same_files_are_another_source(photos: ImageFolder, tmp_path: Path) -> None:
    names = [photos.name(index) for index in range(NUM_SAMPLES)]
    Kept(FileList(names, photos.labels), tmp_path)
    assert_same(served(Kept(FileList(names, photos.labels), tmp_path)), served(photos))
    with pytest.raises(StoreError, match=r"source\.labels"):
        Kept(FileList(names, photos.labels + 1), tmp_path)
