"""A store that was filled before the images behind the same names and labels changed serves none of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dalirefurb import Arrays, Compressed, DiskStore, ImageFolder, Loader, MemoryStore, TieredStore, evaluate
from dalirefurb.errors import StoreError
from dalirefurb.planning import Frozen
from dalirefurb.source import FileList, HuggingFaceImages, Source, TarShards
from dalirefurb.source.storage import hash_pixels, stamp_files
from dalirefurb.store import Store
from tests.engine.test_bit_identity import assert_same, serve
from tests.pictures import jpeg, picture
from tests.source.test_tar_shards import tar_bytes

SIZE = 32
NUM_SAMPLES = 12
PLANNER = Frozen(NUM_SAMPLES, batch_size=4)
RAW = evaluate(SIZE, raw=True)

Make = Callable[[Path], Source]


def encoded(number: int) -> bytes:
    return jpeg(picture(number, height=40, width=48))


def write(root: Path, numbers: list[int]) -> None:
    """Write files of two classes, over those that are there, and a shard and a table of the same."""
    members = []
    for index, number in enumerate(numbers):
        path = root / f"{'ab'[index % 2]}/{index:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
        members += [(f"{index:02}.jpg", encoded(number)), (f"{index:02}.cls", b"%d" % (index % 2))]
    (root / "shard.tar").write_bytes(tar_bytes(members))
    (root / "list.csv").write_text(
        "path,label\n" + "".join(f"{'ab'[index % 2]}/{index:02}.jpg,{index % 2}\n" for index in range(len(numbers)))
    )


def paths(root: Path) -> list[Path]:
    return sorted(root.rglob("*.jpg"), key=lambda path: path.name)


def hugging_face(root: Path) -> Source:
    """A table in memory whose rows name files."""
    datasets = pytest.importorskip("datasets", reason="the package datasets, of Hugging Face, is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [str(path) for path in paths(root)], "label": [index % 2 for index in range(NUM_SAMPLES)]}
    return HuggingFaceImages(datasets.Dataset.from_dict(columns, features=features))


SOURCES: dict[str, Make] = {
    "folder": ImageFolder,
    "list": lambda root: FileList(paths(root), np.arange(NUM_SAMPLES) % 2),
    "csv": lambda root: FileList.from_csv(root / "list.csv"),
    "shards": lambda root: TarShards(root / "shard.tar"),
    "Hugging Face": hugging_face,
}


def rows_of(images: np.ndarray) -> Arrays:
    return Arrays(images, np.arange(len(images)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "data", list(range(NUM_SAMPLES)))
    return tmp_path / "data"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """A store at one path, opened anew each time."""
    opened: list[Store] = []

    def make() -> Store:
        for store in opened:
            store.close()
        opened.append(DiskStore(tmp_path / "cache"))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def replaced(path: Path, content: bytes) -> None:
    """Put another file in a file's place, of equal times."""
    status = path.stat()
    (path.parent / "new").write_bytes(content)
    os.utime(path.parent / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    (path.parent / "new").replace(path)


@pytest.mark.parametrize("name", SOURCES)
def test_a_store_is_refused_when_files_were_replaced_under_the_same_names(
    name: str, root: Path, disk: Callable[[], Store]
) -> None:
    before = SOURCES[name](root)
    old, _ = serve(before, evaluate(SIZE), PLANNER, disk(), epochs=2)
    again, stats = serve(SOURCES[name](root), evaluate(SIZE), PLANNER, disk(), epochs=1)
    assert_same(old[:3], again)
    assert stats.hits == NUM_SAMPLES
    write(root, list(range(NUM_SAMPLES, 2 * NUM_SAMPLES)))
    after = SOURCES[name](root)
    with pytest.raises(StoreError, match=r"content\.\S+ .* \(content: files of the source were changed.*: .*purge"):
        serve(after, evaluate(SIZE), PLANNER, disk(), epochs=1)
    disk().close()
    DiskStore.purge(root.parent / "cache")
    new, _ = serve(after, evaluate(SIZE), PLANNER, None, epochs=1)
    assert_same(new, serve(after, evaluate(SIZE), PLANNER, disk(), epochs=1)[0])
    assert not any(np.array_equal(one[0], other[0]) for one, other in zip(old, new, strict=False))


@pytest.mark.parametrize("name", ["folder", "list"])
def test_a_source_made_before_files_were_replaced_is_noticed_by_the_next_loader(
    name: str, root: Path, disk: Callable[[], Store]
) -> None:
    source = SOURCES[name](root)
    serve(source, evaluate(SIZE), PLANNER, disk(), epochs=1)
    replaced(paths(root)[3], paths(root)[4].read_bytes())
    with pytest.raises(StoreError, match="content"):
        serve(source, evaluate(SIZE), PLANNER, disk(), epochs=1)


@pytest.mark.parametrize("kind", ["memory", "tiered", "compressed"])
def test_stores_of_every_kind_notice_files_that_were_replaced(kind: str, root: Path, tmp_path: Path) -> None:
    if kind == "compressed":
        pytest.importorskip("zstandard")
    path = tmp_path / "cache"
    makes: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "tiered": lambda: TieredStore(memory=10_000, path=path),
        "compressed": lambda: Compressed(DiskStore(path)),
    }
    source = FileList(paths(root), range(NUM_SAMPLES))
    with makes[kind]() as store:
        serve(source, evaluate(SIZE), PLANNER, store, epochs=1)
        _, stats = serve(source, evaluate(SIZE), PLANNER, store, epochs=1)
        assert stats.hits == NUM_SAMPLES
        replaced(paths(root)[0], encoded(99))
        with pytest.raises(StoreError, match=r"content.*close it first"):
            serve(source, evaluate(SIZE), PLANNER, store, epochs=1)
    if kind != "memory":
        with makes[kind]() as store, pytest.raises(StoreError, match=r"content.*purge"):
            serve(source, evaluate(SIZE), PLANNER, store, epochs=1)


def test_a_store_is_refused_when_three_of_three_hundred_rows_of_an_array_were_corrected(
    disk: Callable[[], Store],
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (300, SIZE, SIZE, 3), dtype=np.uint8)
    corrected = images.copy()
    corrected[[1, 77, 298]] ^= 1
    planner = Frozen(300, batch_size=100)
    old, _ = serve(rows_of(images), RAW, planner, disk(), epochs=1)
    again, stats = serve(rows_of(images.copy()), RAW, planner, disk(), epochs=1)
    assert_same(old, again)
    assert stats.hits == 300
    with pytest.raises(StoreError, match=r"content.pixels '\w+', not '\w+' \(content: .*or its array\)"):
        serve(rows_of(corrected), RAW, planner, disk(), epochs=1)


def test_an_array_that_was_changed_in_place_is_noticed_by_the_next_loader() -> None:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), dtype=np.uint8)
    source = rows_of(images)
    with MemoryStore() as store:
        serve(source, RAW, PLANNER, store, epochs=1)
        images[5, 0, 0, 0] ^= 1
        with pytest.raises(StoreError, match=r"content\.pixels"):
            serve(source, RAW, PLANNER, store, epochs=1)


def test_every_byte_of_an_array_counts_and_where_it_lies_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalirefurb.source.storage._HASHED_BYTES", 300)
    images = np.random.default_rng(0).integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    alike = [
        np.load(tmp_path / "images.npy", mmap_mode="r"),
        channels_first.transpose(0, 2, 3, 1),
        np.repeat(images, 2, axis=0)[::2],
        np.asfortranarray(images),
    ]
    assert {hash_pixels(each) for each in alike} == {hash_pixels(images)}
    hashes = {hash_pixels(images), hash_pixels(images.reshape(7, 5, 6, 3)), hash_pixels(images[::-1])}
    for place in range(images.size):
        other = images.copy()
        other.flat[place] ^= 1
        hashes.add(hash_pixels(other))
    assert len(hashes) == images.size + 3


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: replaced(path, bytes(path.stat().st_size)),
        lambda path: os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1)),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.symlink_to(path.with_name("2.jpg"))),
    ],
)
def test_a_stamp_changes_with_what_is_done_to_any_file(tmp_path: Path, change: Callable[[Path], Any]) -> None:
    files = [tmp_path / f"{number}.jpg" for number in range(35)]
    for file in files:
        file.write_bytes(b"image")
    before = stamp_files(map(str, files))
    assert stamp_files(map(str, files)) == before == json.loads(json.dumps(before))
    assert before["bytes"] == 35 * 5
    assert stamp_files(map(str, files[::-1])) != before
    change(files[-2])
    assert stamp_files(map(str, files)) != before


def test_a_file_that_is_written_in_place_with_its_old_size_and_time_changes_the_stamp(tmp_path: Path) -> None:
    file = tmp_path / "image.jpg"
    file.write_bytes(b"old")
    before = stamp_files([str(file)])
    file.write_bytes(b"new")
    os.utime(file, ns=(0, file.stat().st_mtime_ns))
    pinned = stamp_files([str(file)])
    assert pinned["bytes"] == before["bytes"]
    assert pinned != before
    os.utime(file, ns=(0, 0))
    assert stamp_files([str(file)])["last_change"] >= pinned["last_change"] > "2000"


def test_the_hash_of_pixels_tells_shapes_of_the_same_bytes_apart() -> None:
    pixels, shapes = np.arange(48, dtype=np.uint8), [(2, 4, 2, 3), (2, 2, 4, 3), (4, 2, 2, 3)]
    assert len({hash_pixels(pixels.reshape(shape)) for shape in shapes}) == len(shapes)


def test_a_file_that_is_absent_is_no_error_and_counts_once_it_is_there(tmp_path: Path) -> None:
    source = FileList([tmp_path / "absent.jpg", "nul\0.jpg"], [0, 1])
    before = source.content()
    assert before["bytes"] == 0
    (tmp_path / "absent.jpg").write_bytes(b"image")
    assert source.content() != before


def test_a_store_that_is_begun_twice_while_storage_is_away_does_not_take_its_files_for_the_same(
    root: Path, disk: Callable[[], Store]
) -> None:
    source, away = FileList(paths(root), range(NUM_SAMPLES)), root.with_name("away")
    root.rename(away)
    with Loader(source, evaluate(SIZE), PLANNER, disk()) as loader:
        away.rename(root)
        assert len([*loader]) == len(PLANNER)
    write(root, list(range(NUM_SAMPLES, 2 * NUM_SAMPLES)))
    root.rename(away)
    with pytest.raises(StoreError, match=r"content\.away_at '\S+', not '\S+' \(content: files of the source"):
        Loader(source, evaluate(SIZE), PLANNER, disk())


def test_what_is_gone_from_storage_that_is_there_and_what_is_no_path_is_the_same_each_time(root: Path) -> None:
    for name in (str(root / "a" / "gone.jpg"), "https://nowhere/1.jpg", "modality/1", "1", "nul\0.jpg", ""):
        assert stamp_files([name]) == stamp_files([name])
    assert stamp_files([str(root / "gone" / "1.jpg")]) != stamp_files([str(root / "gone" / "1.jpg")])


def test_a_training_goes_on_with_a_copy_of_its_files_while_a_store_does_not(
    root: Path, tmp_path: Path, disk: Callable[[], Store]
) -> None:
    shutil.copytree(root, tmp_path / "copy")
    for make in SOURCES.values():
        if make is hugging_face:  # Whose own fingerprint tells paths.
            continue
        here, there = make(root), make(tmp_path / "copy")
        assert here.fingerprint() == there.fingerprint()
        assert here.content() != there.content()


def test_a_source_of_the_users_that_tells_no_content_has_its_store_kept(root: Path, disk: Callable[[], Store]) -> None:
    class Untold(FileList):
        def content(self) -> dict[str, Any]:
            return Source.content(self)

    source = Untold(paths(root), range(NUM_SAMPLES))
    assert source.content() == {}
    serve(source, evaluate(SIZE), PLANNER, disk(), epochs=1)
    replaced(paths(root)[0], encoded(99))
    assert serve(source, evaluate(SIZE), PLANNER, disk(), epochs=1)[1].hits == NUM_SAMPLES


def test_a_hugging_face_content_tells_of_tables_in_files_and_in_memory_and_of_named_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets, of Hugging Face, is not installed")
    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    (tmp_path / "named.jpg").write_bytes(b"image")

    def table(content: bytes) -> Any:
        images = [{"bytes": content, "path": "not.there"}, {"bytes": None, "path": str(tmp_path / "named.jpg")}, None]
        return datasets.Dataset.from_dict({"image": images, "label": [0, 1, 2]}, features=features)

    one = HuggingFaceImages(table(b"one"))
    assert one.content() == HuggingFaceImages(table(b"one")).content()
    assert one.content() != HuggingFaceImages(table(b"two")).content()
    assert one.content()["bytes"] == 5
    assert HuggingFaceImages(table(b"one").select([0, 2])).content()["bytes"] == 0
    parts = [table(b"one").select(rows) for rows in ([0, 2], [2, 0], range(1), range(2, 3))]
    assert len({HuggingFaceImages(part).content()["in_memory"] for part in parts}) == len(parts)
    unnamed = table(b"one").select([0])
    unnamed.save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    saved = datasets.load_from_disk(tmp_path / "saved")
    both = datasets.concatenate_datasets([saved, unnamed])
    assert HuggingFaceImages(both).content() != HuggingFaceImages(saved).content()
    sources = [HuggingFaceImages(each) for each in (saved, saved.select([0]), both, table(b"one"))]
    before = [source.content() for source in sources]
    assert [each["bytes"] for each in before[:3]] == [file.stat().st_size] * 3
    replaced(file, file.read_bytes())
    replaced(tmp_path / "named.jpg", b"other")
    assert all(source.content() != each for source, each in zip(sources, before, strict=True))
