"""Tar files as WebDataset writes them: what is found, read, remembered and refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import resource
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dalirefurb import ImageFolder, MemoryStore, Refurbish, simple
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import Source, TarShards
from dalirefurb.source.shards import expand_braces
from tests.pictures import write_folder
from tests.test_bit_identity import assert_same, serve

Members = Iterable[tuple[str, bytes]]

PETS = [
    ("a.jpg", b"first"),
    ("a.cls", b"3"),
    ("b.JPG", b"the second"),
    ("b.cls", b"1\n"),
    ("c.png", b"third"),
    ("c.cls", b" 2"),
]


def tar_bytes(members: Members, tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def write_tar(path: Path, members: Members) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def contents(source: Source) -> list[bytes]:
    return [encoded.tobytes() for encoded in source.read(np.arange(len(source)))]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def as_shards(folder: ImageFolder, num_shards: int) -> list[bytes]:
    """Pack a folder's images in its order."""
    members: list[list[tuple[str, bytes]]] = [[] for _ in range(num_shards)]
    for index, (encoded, label) in enumerate(zip(contents(folder), folder.labels, strict=True)):
        shard = members[index * num_shards // len(folder)]
        shard += [(f"{index:03}.jpg", encoded), (f"{index:03}.cls", b"%d" % label)]
    return [tar_bytes(each) for each in members]


def test_shards_are_served_as_a_folder_of_the_same_images(tmp_path: Path, memory: MemoryFileSystem) -> None:
    folder = ImageFolder(write_folder(tmp_path / "pictures", num_samples=15))
    for number, shard in enumerate(as_shards(folder, 3)):
        (tmp_path / f"train-{number:03}.tar").write_bytes(shard)
        memory.pipe(f"/shards/train-{number:03}.tar", shard)
    planner = Refurbish(15, batch_size=4, reuse_factor=2, seed=7)
    expected, _ = serve(folder, simple(32), planner, epochs=2)
    for urls in (f"{tmp_path}/train-{{000..002}}.tar", "memory://shards/train-{000..002}.tar"):
        source = TarShards(urls)
        assert source.labels.tolist() == folder.labels.tolist()
        served, stats = serve(source, simple(32), planner, MemoryStore(), epochs=2)
        assert stats.hits > 0
        assert_same(expected, served)


def test_samples_come_in_the_order_of_shards_and_members(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "1.tar", PETS)
    second = write_tar(tmp_path / "0.tar", [("x/a.cls", b"7"), ("x/a.jpg", b"fourth")])
    source = TarShards([first, str(second)])
    assert contents(source) == [b"first", b"the second", b"third", b"fourth"]
    assert source.labels.tolist() == [3, 1, 2, 7]
    assert source.labels.dtype == np.int64
    assert [source.name(1), source.name(3)] == [f"{first}:b.JPG", f"{second}:x/a.jpg"]
    assert [each.tobytes() for each in source.read(np.array([3, 0, 3]))] == [b"fourth", b"first", b"fourth"]
    assert source.read(np.array([], np.int64)) == []
    assert (source.encoded, source.classes, source.skipped) == (True, None, 0)


def test_local_shards_are_read_without_a_copy_and_cannot_be_written(tmp_path: Path) -> None:
    source = TarShards(write_tar(tmp_path / "pets.tar", PETS))
    (one,), (other,) = source.read(np.array([1])), source.read(np.array([1]))
    assert np.shares_memory(one, other)
    assert not one.flags.writeable


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{8..11}.tar", ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("a-{0..10}.tar", [f"a-{number}.tar" for number in range(11)]),
        ("a-{2..0}", ["a-2", "a-1", "a-0"]),
        ("{a,b}/{1..2}", ["a/1", "a/2", "b/1", "b/2"]),
        ("a{,.bak}", ["a", "a.bak"]),
        ("{a}{..}{1..b}", ["{a}{..}{1..b}"]),
    ],
)
def test_braces_are_expanded_as_shells_do(pattern: str, names: list[str]) -> None:
    assert list(expand_braces(pattern)) == names


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read(tmp_path: Path, tar_format: int) -> None:
    key = f"{'folder.d/' * 40}Käfer"
    (tmp_path / "long.tar").write_bytes(tar_bytes([(f"{key}.jpg", b"beetle"), (f"{key}.cls", b"1")], tar_format))
    for _ in range(2):
        source = TarShards(tmp_path / "long.tar")
        assert source.name(0) == f"{tmp_path}/long.tar:{key}.jpg"
        assert contents(source) == [b"beetle"]


@pytest.mark.parametrize(
    ("extension", "texts", "options", "labels", "classes"),
    [
        ("cls", [b"dog", b"cat", b"dog"], {}, [1, 0, 1], ["cat", "dog"]),
        ("txt", [b"0.5", b"-1e3", b".25"], {"label": "txt"}, [0.5, -1000.0, 0.25], None),
        ("json", [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'], {"label": "json.n"}, [1, 2, 3], None),
        ("json", [b'{"n": {"m": [1, 0]}}'] * 3, {"label": "json.n.m"}, [[1, 0]] * 3, None),
        ("json", [b'{"n": "x"}', b'{"n": "y"}', b'{"n": "x"}'], {"label": "json.n"}, [0, 1, 0], ["x", "y"]),
        ("txt", [b"", b"", b""], {"label": lambda key: "abc".index(key)}, [0, 1, 2], None),
        ("txt", [b"", b"", b""], {"label": lambda key: key}, [0, 1, 2], ["a", "b", "c"]),
    ],
)
def test_labels_are_numbers_or_names_in_texts_or_json_or_from_keys(
    tmp_path: Path, extension: str, texts: list[bytes], options: dict[str, Any], labels: Any, classes: list[str] | None
) -> None:
    members = []
    for key, text in zip("abc", texts, strict=True):
        members += [(f"{key}.jpg", b"image"), (f"{key}.{extension}", text)]
    shard = write_tar(tmp_path / "shard.tar", members)
    for _ in range(2):
        source = TarShards(shard, **options)
        assert source.labels.tolist() == labels
        assert source.classes == classes


def test_samples_without_an_image_are_counted_and_other_members_ignored(tmp_path: Path) -> None:
    others = [("README", b"text"), ("._a.jpg", b"resource"), ("a.mask.png", b"mask"), ("e.cls", b"1"), ("f.json", b"")]
    shard = write_tar(tmp_path / "pets.tar", [*others, *PETS])
    for _ in range(2):
        source = TarShards(shard)
        assert contents(source) == [b"first", b"the second", b"third"]
        assert source.skipped == 2


def test_an_extension_chooses_among_images(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", [*PETS, ("a.left.png", b"left"), ("b.left.png", b"also left")])
    assert contents(TarShards(shard, image="left.png")) == [b"left", b"also left"]
    assert contents(TarShards(shard, image="jpg")) == [b"first", b"the second"]


def garble(path: Path, *, keep_time: bool) -> None:
    """Make headers unreadable, not the data."""
    status, content = path.stat(), bytearray(path.read_bytes())
    for start in range(0, len(content), 1024):
        content[start : start + 512] = bytes(range(256)) * 2
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (0 if keep_time else 1)))


def test_headers_are_read_once(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    before = TarShards(shard)
    garble(shard, keep_time=True)
    again = TarShards(shard)
    assert contents(again) == contents(before) == [b"first", b"the second", b"third"]
    assert again.fingerprint() == before.fingerprint()
    garble(shard, keep_time=False)
    with pytest.raises(ConfigurationError, match="must be a whole tar file"):
        TarShards(shard)


def test_a_shard_that_is_replaced_is_indexed_anew_and_keeps_its_bytes_while_mapped(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    old = TarShards(shard)
    view = old.read(np.array([0]))[0]
    write_tar(tmp_path / "new.tar", [("n.jpg", b"new one"), ("n.cls", b"5")]).replace(shard)
    new = TarShards(shard)
    assert contents(new) == [b"new one"]
    assert contents(old) == [b"first", b"the second", b"third"]
    assert view.tobytes() == b"first"
    assert old.fingerprint() != new.fingerprint()


def test_a_shard_that_is_cut_while_in_use_is_an_error_and_no_crash(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", [("z.jpg", b"z" * 5000), ("z.cls", b"0"), *PETS])
    source = TarShards(shard)
    os.truncate(shard, 600)
    with pytest.raises(SampleError, match=r"sample 0 \(.*pets.tar:z.jpg\): must have 5000 bytes, but 88 are there"):
        source.read(np.array([0]))
    with pytest.raises(SampleError, match="must have 10 bytes, but 0 are there: its shard has been cut; start again"):
        source.read(np.array([2]))


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"key": 1}', '{"key": {"format": 1}}'])
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: str) -> None:
    shard, index = write_tar(tmp_path / "pets.tar", PETS), tmp_path / "pets.tar.index.json"
    TarShards(shard)
    whole = index.read_text()
    index.write_text(damage)
    assert len(TarShards(shard)) == 3
    assert index.read_text() == whole


def test_an_index_is_believed_for_one_question_only(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", [*PETS, *((f"{key}.txt", b"9") for key in "abc")])
    assert TarShards(shard).labels.tolist() == [3, 1, 2]
    assert TarShards(shard, label="txt").labels.tolist() == [9, 9, 9]
    assert len(TarShards(shard, image="png")) == 1
    assert TarShards(shard).labels.tolist() == [3, 1, 2]


def test_an_index_is_beside_its_shard_or_in_a_given_folder_or_in_the_cache(tmp_path: Path, cache: Path) -> None:
    shard = write_tar(tmp_path / "data/pets.tar", PETS)
    TarShards(shard, index=tmp_path / "given")
    assert [path.parent for path in tmp_path.rglob("*.json")] == [tmp_path / "given"]
    TarShards(shard)
    assert (tmp_path / "data/pets.tar.index.json").is_file()
    (tmp_path / "data/pets.tar.index.json").unlink()
    (tmp_path / "data/pets.tar.index.json").mkdir()
    TarShards(shard)
    assert [path.parent for path in cache.rglob("*.json")] == [cache / "dalirefurb/shards"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["pets.tar", "pets.tar.index.json"]
    for options in ({}, {"index": tmp_path / "given"}):
        garble(shard, keep_time=True)
        assert len(TarShards(shard, **options)) == 3


def test_indexes_of_shards_of_one_name_do_not_meet(tmp_path: Path) -> None:
    one, other = write_tar(tmp_path / "1/pets.tar", PETS), write_tar(tmp_path / "2/pets.tar", PETS[:2])
    assert len(TarShards([one, other], index=tmp_path)) == 4
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_an_index_that_cannot_be_written_anywhere_is_told_once(tmp_path: Path) -> None:
    shards = [write_tar(tmp_path / name, PETS) for name in ("1.tar", "2.tar")]
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=r"index of 2 shards cannot be remembered.*pass a folder .* index=") as caught:
        source = TarShards(shards, index=tmp_path / "file")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(source) == 6


def test_every_cut_of_a_shard_is_refused_with_both_numbers(tmp_path: Path) -> None:
    members = [("folder/" * 20 + "long.jpg", b"x" * 1000), ("folder/" * 20 + "long.cls", b"1"), *PETS]
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        whole = tar_bytes(members, tar_format)
        needed = len(whole.rstrip(b"\0")) // 512 * 512 + 512 + 512
        for size in range(1, needed, 173):
            (tmp_path / "cut.tar").write_bytes(whole[:size])
            with pytest.raises(ConfigurationError, match=rf"cut.tar is .*byte \d+.* {size}.*: write or copy it again"):
                TarShards(tmp_path / "cut.tar")
        (tmp_path / "cut.tar").write_bytes(whole[:needed])
        assert len(TarShards(tmp_path / "cut.tar")) == 4


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    content = bytearray(shard.read_bytes())
    content[4 * 512 + 150] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"damaged header after b.JPG|after a.cls, at byte 2048 of 10240"):
        TarShards(shard)


def hard_link(path: Path) -> Path:
    (path.parent / "a.jpg").write_bytes(b"image")
    os.link(path.parent / "a.jpg", path.parent / "b.jpg")
    with tarfile.open(path, "w") as tar:
        tar.add(path.parent / "a.jpg", "a.jpg")
        tar.add(path.parent / "b.jpg", "b.jpg")
    return path


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gzip": (gzip.compress(tar_bytes(PETS)), {}, "uncompressed.*0.tar is compressed by gzip: decompress it"),
    "bzip2": (bz2.compress(tar_bytes(PETS)), {}, "compressed by bzip2"),
    "empty": (b"", {}, "0.tar is empty: write or copy it again"),
    "text": (b"text " * 999, {}, r"is none after its beginning, byte 0 of 4995 \(.*\): write or copy"),
    "no image": ([("a.gif", b""), ("b.cls", b"1")], {}, "the 1 from .*0.tar on hold none among 2 samples.*end in .bmp"),
    "no such image": (PETS, {"image": "webp"}, "images end in .webp"),
    "no label": (PETS[:3], {}, "0.tar 1 of 2 have none, the first is b.JPG, which needs a .cls of its key: name ano"),
    "no field": ([("a.jpg", b""), ("a.json", b'{"x": 1, "y": 2}')], {"label": "json.z"}, "at 'z' .*a.json has x, y"),
    "deep field": ([("a.jpg", b""), ("a.json", b'{"x": 1}')], {"label": "json.x.y"}, "field x.y, but at 'y' .* is 1"),
    "no JSON": ([("a.jpg", b""), ("a.json", b"{")], {"label": "json.x"}, r"must be JSON, but .*0.tar:a.json is none"),
    "no text": ([("a.jpg", b""), ("a.cls", b"\xff")], {}, r"text in UTF-8, but .*0.tar:a.cls is none.*label="),
    "empty label": ([("a.jpg", b""), ("a.cls", b"\n")], {}, r"must have a label, but .*0.tar:a.jpg has none: write"),
    "mixture": ([*PETS, ("d.jpg", b""), ("d.cls", b"dog")], {}, r"0.tar:d.jpg is labelled 'dog' and .*a.jpg '3'"),
    "null": ([("a.jpg", b""), ("a.json", b'{"x": null}')], {"label": "json.x"}, "0.tar:a.jpg has none"),
    "same label": ([*PETS, PETS[1]], {}, "one label, but .*0.tar holds a.cls twice: give each sample its own key"),
    "same image": ([*PETS, PETS[0]], {}, "one image, but in .*0.tar both a.jpg and a.jpg are: choose by image='jpg'"),
    "two images": ([*PETS, ("c.jpg", b"")], {}, "both c.png and c.jpg are"),
    "link": (hard_link, {"label": len}, "must be plain files, but b.jpg in .*0.tar is a link or sparse: .*dereference"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_shard_of_another_kind_is_refused_with_a_remedy(tmp_path: Path, case: str) -> None:
    given, options, message = REFUSED[case]
    path = tmp_path / "0.tar"
    if callable(given):
        given(path)
    elif isinstance(given, bytes):
        path.write_bytes(given)
    else:
        write_tar(path, given)
    with pytest.raises(ConfigurationError, match=message):
        TarShards(path, **options)


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], r"at least one shard, but are \[\]"),
        ("{root}/none-{0..1}.tar", r"none-0.tar is not \(No such file.*train-{000..099}.tar stands"),
        ("{root}", r"is not \(Is a directory\): check its address"),
        (["{root}/pets.tar", "file://{root}/pets.tar"], "named once, but .*pets.tar is named again: remove it"),
        (["{root}/pets.tar", "memory://pets.tar"], "all be local or all remote, but .*/pets.tar and memory://pets.tar"),
        ("memory://none.tar", r"memory://none.tar is not \(FileNotFoundError: "),
        ("memory://empty.tar", r"known size, but that of memory://empty.tar is 0: put a whole one"),
        ("nosuch://x.tar", r"nosuch://x.tar is not \(Protocol not known: nosuch"),
        (
            "absent://x.tar",
            r"is read by a package that is not there \(install absentfs.*\): pip install fsspec, with s3",
        ),
        ("flaky://x.tar", r"flaky://x.tar is not \(ConnectionError: reset by peer\): check its address"),
    ],
)
def test_urls_that_cannot_be_opened_are_refused_with_a_remedy(
    tmp_path: Path, urls: Any, message: str, memory: MemoryFileSystem
) -> None:
    class Flaky(MemoryFileSystem):
        protocol = "flaky"

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            return {"size": 10240}

        def open(self, *args: Any, **options: Any) -> Any:
            raise ConnectionError("reset by peer")

    fsspec.register_implementation("flaky", Flaky, clobber=True)
    fsspec.register_implementation("absent", "absentfs.FileSystem", clobber=True, errtxt="install absentfs")
    write_tar(tmp_path / "pets.tar", PETS)
    memory.pipe("/empty.tar", b"")
    given = [url.replace("{root}", str(tmp_path)) for url in ([urls] if isinstance(urls, str) else urls)]
    with pytest.raises(ConfigurationError, match=message):
        TarShards(given)


def test_more_shards_than_files_may_be_open_are_refused_with_a_remedy(tmp_path: Path) -> None:
    shards = [write_tar(tmp_path / f"{number}.tar", PETS) for number in range(20)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 5, hard))
    try:
        with pytest.raises(ConfigurationError, match=r"an open file, but only \d+ could be .* before .*tar: .*`ulimit"):
            TarShards(shards)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_empty_image_names_its_shard_and_member(tmp_path: Path) -> None:
    source = TarShards(write_tar(tmp_path / "pets.tar", [*PETS, ("d.jpg", b""), ("d.cls", b"0")]))
    with pytest.raises(SampleError, match=r"sample 3 \(.*/pets.tar:d.jpg\): is empty"):
        source.read(np.array([3]))


def test_remote_shards_are_indexed_once_and_read_by_ranges(memory: MemoryFileSystem, cache: Path) -> None:
    memory.pipe("/bucket/pets-0.tar", tar_bytes(PETS))
    memory.pipe("/bucket/pets-1.tar", tar_bytes([("d.jpg", b"fourth"), ("d.cls", b"0")]))
    source = TarShards("memory://bucket/pets-{0..1}.tar")
    assert source.name(3) == "memory://bucket/pets-1.tar:d.jpg"
    assert [each.tobytes() for each in source.read(np.array([3, 0, 1]))] == [b"fourth", b"first", b"the second"]
    assert len(list(cache.rglob("*.json"))) == 2
    memory.store["/bucket/pets-0.tar"].getbuffer()[:512] = b"x" * 512
    assert contents(TarShards("memory://bucket/pets-{0..1}.tar")) == contents(source)


def test_a_batch_of_remote_samples_is_asked_for_at_once(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cat_ranges(self: MemoryFileSystem, paths: list[str], *args: Any, **options: Any) -> list[bytes]:
        asked.append(paths)
        return AbstractFileSystem.cat_ranges(self, paths, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", cat_ranges)
    memory.pipe({f"/{number}.tar": tar_bytes(PETS) for number in range(3)})
    assert contents(TarShards("memory://{0..2}.tar")) == [b"first", b"the second", b"third"] * 3
    assert asked == [["/0.tar"] * 3 + ["/1.tar"] * 3 + ["/2.tar"] * 3]


def test_threads_read_remote_shards_at_once(memory: MemoryFileSystem) -> None:
    images = [np.random.default_rng(index).bytes(1000) for index in range(50)]
    members = [(f"{index}.jpg", image) for index, image in enumerate(images)]
    memory.pipe("/many.tar", tar_bytes(members))
    source = TarShards("memory://many.tar", label=int)
    assert source.labels.tolist() == list(range(50))
    with ThreadPoolExecutor(4) as pool:
        jobs = [np.random.default_rng(job).permutation(50) for job in range(40)]
        for indices, read in zip(jobs, pool.map(source.read, jobs), strict=True):
            assert [each.tobytes() for each in read] == [images[index] for index in indices]


def test_a_remote_shard_that_goes_or_shrinks_names_the_sample(memory: MemoryFileSystem) -> None:
    memory.pipe("/pets.tar", tar_bytes(PETS))
    source = TarShards("memory://pets.tar")
    memory.pipe("/pets.tar", tar_bytes(PETS)[:515])
    with pytest.raises(SampleError, match=r"sample 0 \(memory://pets.tar:a.jpg\): must have 5 bytes, but 3 are there"):
        source.read(np.array([0]))
    memory.rm("/pets.tar")
    with pytest.raises(SampleError, match=r"sample 1 \(memory://pets.tar:b.JPG\): cannot be read: FileNotFoundError"):
        source.read(np.array([1]))


def test_a_fingerprint_is_json_and_the_same_wherever_and_in_how_many_shards_samples_lie(
    tmp_path: Path, memory: MemoryFileSystem
) -> None:
    memory.pipe("/pets.tar", tar_bytes(PETS))
    sources = [
        TarShards(write_tar(tmp_path / "pets.tar", PETS)),
        TarShards([write_tar(tmp_path / "1.tar", PETS[:2]), write_tar(tmp_path / "2.tar", PETS[2:])]),
        TarShards("memory://pets.tar"),
    ]
    for source in sources:
        assert json.loads(json.dumps(source.fingerprint())) == sources[0].fingerprint()


def test_a_fingerprint_changes_with_names_sizes_labels_and_their_order(tmp_path: Path) -> None:
    variants: list[Members] = [
        PETS,
        PETS[2:] + PETS[:2],
        [("other.jpg", b"first"), ("other.cls", b"3"), *PETS[2:]],
        [("a.jpg", b"first."), *PETS[1:]],
        [PETS[0], ("a.cls", b"4"), *PETS[2:]],
    ]
    prints = [
        json.dumps(TarShards(write_tar(tmp_path / f"{number}.tar", members)).fingerprint())
        for number, members in enumerate(variants)
    ]
    assert len(set(prints)) == len(variants)


def test_indexing_leaves_no_file_open_but_one_per_shard(tmp_path: Path) -> None:
    shards = [write_tar(tmp_path / f"{number}.tar", PETS) for number in range(3)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = TarShards(shards)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 3
    del source
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_indexing_is_silent_without_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TarShards(write_tar(tmp_path / "pets.tar", PETS))
    assert capfd.readouterr() == ("", "")
