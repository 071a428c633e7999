"""Tar files as WebDataset writes them: what is found, read, remembered and refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import resource
import tarfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dalirefurb import ImageFolder
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import TarShards
from dalirefurb.source.shards import expand_braces
from tests.pictures import write_folder
from tests.source.test_dataset_source import assert_served_alike
from tests.source.test_source import contents

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


def damaged(members: Members) -> bytes:
    """A tar file of small members in which a byte of the third one's header is another."""
    content = bytearray(tar_bytes(members))
    content[4 * 512 + 150] ^= 1
    return bytes(content)


def write_tar(path: Path, members: Members) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


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
    for urls in (f"{tmp_path}/train-{{000..002}}.tar", "memory://shards/train-{000..002}.tar"):
        assert_served_alike(folder, TarShards(urls))


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
    assert source.content()["bytes"] == first.stat().st_size + second.stat().st_size
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
        ("a-{8..010}.tar", ["a-008.tar", "a-009.tar", "a-010.tar"]),
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


def test_a_pattern_stands_for_the_shards_that_match_sorted(tmp_path: Path) -> None:
    """Here, and at any address; a name that holds a pattern's signs stands for itself where there is such a file."""
    filesystem = fsspec.filesystem("memory")
    for number in (10, 2, 1):
        members = [(f"{number}.jpg", str(number).encode()), (f"{number}.cls", b"1")]
        write_tar(tmp_path / f"train-{number:02d}.tar", members)
        filesystem.pipe(f"/stars/train-{number:02d}.tar", tar_bytes(members))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in filesystem.glob("/stars/*"):
            archive.writestr(path[1:], filesystem.cat_file(path))
    write_tar(tmp_path / "odd[1].tar", PETS)
    for pattern in (
        f"{tmp_path}/train-*.tar",
        f"{tmp_path.parent}/**/{tmp_path.name}/**/train-*.tar",
        tmp_path / "train-??.tar",
        f"file://{tmp_path}/{{train,val}}-0[12].tar",
        "memory://stars/train-*.tar",
        "memory://**/stars/train-*.tar",
        f"zip://stars/train-*.tar::{tmp_path}/all.zip",
        f"simplecache::zip://stars/train-*.tar::file://{tmp_path}/all.zip",
        "simplecache::memory://stars/train-*.tar",
    ):
        if "val" in str(pattern):
            with pytest.raises(
                ConfigurationError, match=r"stand for shards, but .*/val-0\[12\].tar does for none: check"
            ):
                TarShards(pattern)
        else:
            assert contents(TarShards(pattern)) == [b"1", b"2", b"10"]
    assert TarShards("simplecache::memory://stars/train-*.tar").name(0).startswith("simplecache::memory://")
    assert contents(TarShards(f"{tmp_path}/odd[1].tar")) == [b"first", b"the second", b"third"]
    assert contents(TarShards([f"{tmp_path}/odd*.tar", f"{tmp_path}/train-0*.tar"]))[-1] == b"2"
    for pattern in (f"{tmp_path}/none-*.tar", "memory://stars/none-*.tar"):
        with pytest.raises(ConfigurationError, match=rf"stand for shards, but {re.escape(pattern)} does for none"):
            TarShards(pattern)


@pytest.mark.parametrize(
    ("extension", "texts", "options", "labels", "classes"),
    [
        ("cls", [b"dog", b"cat", b"dog"], {}, [1, 0, 1], ["cat", "dog"]),
        ("txt", [b"0.5", b"-1e3", b".25"], {"label": "txt"}, [0.5, -1000.0, 0.25], None),
        ("json", [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'], {"label": "json.n"}, [1, 2, 3], None),
        ("json", [b'{"n": {"m": [1, 0]}}'] * 3, {"label": "json.n.m"}, [[1, 0]] * 3, None),
        ("json", [b'{"n": "x"}', b'{"n": "y"}', b'{"n": "x"}'], {"label": "json.n"}, [0, 1, 0], ["x", "y"]),
        ("CLS", [b"1", b"0", b"2"], {"label": "CLS"}, [1, 0, 2], None),
        ("cls", [b"\xef\xbb\xbf1\r\n", b"0\r\n", b"2"], {}, [1, 0, 2], None),  # As Windows' editors write texts.
        ("cls", [b"\xef\xbb\xbfdog", b"cat", b"dog"], {}, [1, 0, 1], ["cat", "dog"]),
        ("Json", [b'{"N": 1}', b'{"N": 2}', b'{"N": 3}'], {"label": "JSON.N"}, [1, 2, 3], None),
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


def left_out(*args: Any, **options: Any) -> tuple[TarShards, str]:
    """Return shards that leave something out, and what they say of it."""
    with pytest.warns(UserWarning, match="is left out") as caught:
        source = TarShards(*args, **options)
    assert (len(caught), caught[0].filename) == (1, __file__)
    return source, str(caught[0].message)


def test_what_is_left_out_is_counted_and_said_with_the_first_of_each_kind(tmp_path: Path) -> None:
    others = [("README", b"text"), (".a.jpg", b"hidden"), ("e.cls", b"1"), ("f.json", b"")]
    silent = [("._a.jpg", b"macOS"), (".DS_Store", b"macOS"), ("a.mask.png", b"mask")]
    shard = write_tar(tmp_path / "pets.tar", [*others, *silent, *PETS])
    empty = write_tar(tmp_path / "empty.tar", [])
    for _ in range(2):  # Read, and remembered.
        source, said = left_out([shard, empty])
        assert contents(source) == [b"first", b"the second", b"third"]
        assert source.skipped == 3
        assert said.startswith(
            f"of the shards, the 2 from {shard} on, is left out: 2 samples without an image, which ends in .avif, "
        )
        assert said.endswith(
            f" (the first: {shard}:e.cls); 1 image hidden by a dot (the first: {shard}:.a.jpg); 1 member "
            f"without an extension (the first: {shard}:README); 1 shard without members (the first: {empty})"
        )


def test_images_whose_names_have_dots_are_counted_each_and_said(tmp_path: Path) -> None:
    dotted = [(f"img.v{number}.{ending}", b"x") for number in range(3) for ending in ("jpg", "cls")]
    source, said = left_out(write_tar(tmp_path / "0.tar", [*PETS, *dotted, ("b.2.jpg", b"x")]))
    assert contents(source) == [b"first", b"the second", b"third"]
    assert source.skipped == 4
    assert "0.tar on, is left out: 4 images with a dot before that of the extension" in said
    assert f"(the first: {tmp_path}/0.tar:img.v0.jpg)" in said
    with pytest.raises(ConfigurationError, match=r"on hold none, but 3 images with a dot .* name it a-1.jpg"):
        TarShards(write_tar(tmp_path / "1.tar", dotted))


def test_masks_beside_an_image_are_not_spoken_of_but_others_of_its_format_are_unless_it_is_chosen(
    tmp_path: Path,
) -> None:
    shard = write_tar(tmp_path / "pets.tar", [*PETS, ("a.mask.png", b"mask"), ("b.left.jpg", b"left")])
    assert left_out(shard)[0].skipped == 1
    source, said = left_out(shard, image="jpg")
    assert contents(source) == [b"first", b"the second"]
    assert "is left out: 1 sample without an image, which ends in .jpg (the first: " in said
    assert said.endswith(f"(the first: {shard}:c.png)")


def test_an_extension_chooses_among_images(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", [*PETS, ("a.left.png", b"left"), ("b.left.png", b"also left")])
    for ending, expected in (("left.png", [b"left", b"also left"]), ("jpg", [b"first", b"the second"])):
        source, said = left_out(shard, image=ending)
        assert contents(source) == contents(left_out(shard, image=ending.upper())[0]) == expected
        assert f"1 sample without an image, which ends in .{ending} (" in said


def test_tar_files_one_after_another_in_one_are_all_served(tmp_path: Path, memory: MemoryFileSystem) -> None:
    parts = [PETS, *([(f"{key}.jpg", key.encode()), (f"{key}.cls", b"9")] for key in "xyz")]
    whole = b"".join(tar_bytes(part) for part in parts)
    (tmp_path / "all.tar").write_bytes(whole)
    memory.pipe("/all.tar", whole)
    # Also without the zeros at an end that only fill a record, and with more of them than are read at once.
    ends = [tar_bytes(part).rstrip(b"\0") for part in parts]
    padded = [end + bytes(-len(end) % 512 + 512 * zeros) for end, zeros in zip(ends, (1, 2, 5000, 1), strict=True)]
    (tmp_path / "tight.tar").write_bytes(b"".join(padded))
    for url in (tmp_path / "all.tar", tmp_path / "tight.tar", "memory://all.tar"):
        for _ in range(2):
            source = TarShards(url)
            assert contents(source) == [b"first", b"the second", b"third", b"x", b"y", b"z"]
            assert source.labels.tolist() == [3, 1, 2, 9, 9, 9]


@pytest.mark.parametrize("tail", [b"\n", b"x" * 512, b"text " * 999, tar_bytes(PETS)[100:]])
def test_what_follows_a_tar_file_and_is_none_is_refused(tmp_path: Path, tail: bytes) -> None:
    shard = tmp_path / "0.tar"
    shard.write_bytes(tar_bytes(PETS) + tail)
    size = 10240 + len(tail)
    with pytest.raises(
        ConfigurationError,
        match=rf"0.tar from byte 10240 of {size} on, after the end behind c.cls, is no .*cut that off",
    ):
        TarShards(shard)


def test_a_second_tar_file_that_is_cut_or_damaged_is_refused(tmp_path: Path) -> None:
    shard = tmp_path / "0.tar"
    second = [(f"second/{name}", content) for name, content in PETS]
    shard.write_bytes(tar_bytes(PETS) + tar_bytes(second)[:600])
    with pytest.raises(
        ConfigurationError, match=r"0.tar is cut off: second/a.jpg ends at byte 11264, but it has 10840"
    ):
        TarShards(shard)
    shard.write_bytes(tar_bytes(PETS) + damaged(second))
    with pytest.raises(ConfigurationError, match=r"damaged header after second/a.cls, at byte 12288 of 20480"):
        TarShards(shard)


def remember(index: Path, **changes: Any) -> None:
    """Change what an index says."""
    index.write_text(json.dumps({**json.loads(index.read_text()), **changes}))


def test_headers_are_read_once(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    before = TarShards(shard)
    remember(tmp_path / "pets.tar.index.json", labels=["7", "8", "9"])
    again = TarShards(shard)
    assert contents(again) == contents(before) == [b"first", b"the second", b"third"]
    assert again.labels.tolist() == [7, 8, 9]
    os.utime(shard)
    assert TarShards(shard).labels.tolist() == [3, 1, 2]


OTHER = [("b.JPG", b"other"), ("b.cls", b"8"), ("a.jpg", b"for oldest"), ("a.cls", b"7\n"), *PETS[4:]]


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_shard_written_again_with_equal_size_and_a_pinned_time_is_indexed_anew(tmp_path: Path, how: str) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    for turn in range(3):
        members = (PETS, OTHER)[turn % 2]
        status = shard.stat()
        written = write_tar(shard if how == "in place" else tmp_path / "new", members)
        os.utime(written, ns=(status.st_atime_ns, status.st_mtime_ns))
        written.replace(shard)
        assert (shard.stat().st_size, shard.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        source = TarShards(shard)
        assert contents(source) == [content for name, content in members if not name.endswith("cls")]
        assert source.labels.tolist() == [int(content) for name, content in members if name.endswith("cls")]


def test_a_shard_written_again_at_once_is_indexed_anew_however_coarse_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("time.time_ns", lambda: shard.stat().st_ctime_ns + 5_000_000)
    TarShards(shard)
    TarShards(shard)  # Remembered: nothing is read, nothing is waited for.
    assert waits == [0.015]
    os.utime(shard)
    monkeypatch.setattr("time.time_ns", lambda: shard.stat().st_ctime_ns + 20_000_000)
    TarShards(shard)
    assert waits == [0.015]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("folder", ["", "folder/" * 40])
def test_an_index_that_is_stale_whatever_the_times_say_serves_no_other_members_bytes(
    tmp_path: Path, tar_format: int, folder: str
) -> None:
    shard = tmp_path / "pets.tar"
    shard.write_bytes(tar_bytes([(folder + name, content) for name, content in PETS], tar_format))
    TarShards(shard)
    index = tmp_path / "pets.tar.index.json"
    key = json.loads(index.read_text())["key"]
    swapped = [PETS[4], PETS[1], PETS[2], PETS[3], PETS[0], PETS[5]]  # First and third, of equal sizes.
    shard.write_bytes(tar_bytes([(folder + name, content) for name, content in swapped], tar_format))
    status = shard.stat()
    key["shard"] |= {"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns, "inode": status.st_ino}
    remember(index, key=key)
    source = TarShards(shard)
    assert source.name(0).endswith("a.jpg")
    reason = r"a.jpg must have 5 bytes, .* not where it was indexed: its shard has been written again; start again"
    with pytest.raises(OSError, match=reason):
        source.read(np.array([0]))
    assert source.read(np.array([1]))[0].tobytes() == b"the second"
    assert sorted(contents(TarShards(shard))) == [b"first", b"the second", b"third"]


def test_a_shard_that_is_written_in_place_during_a_run_names_the_samples_that_are_gone(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "pets.tar", PETS)
    source = TarShards(shard)
    with shard.open("r+b") as file:
        file.write(tar_bytes([("n.jpg", b"newer"), ("n.cls", b"3"), *PETS[2:]]))
    with pytest.raises(OSError, match=r"a.jpg.*is not where it was indexed"):
        source.read(np.array([0]))
    assert source.read(np.array([2]))[0].tobytes() == b"third"
    assert TarShards(shard).name(0).endswith("n.jpg")


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
    with pytest.raises(OSError, match=r"pets.tar:z.jpg must have 5000 bytes, but 88 are there: its shard has been cut"):
        source.read(np.array([0]))
    with pytest.raises(OSError, match="must have 10 bytes, but 0 are there: its shard has been cut; start again"):
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
    assert len(left_out(shard, image="png")[0]) == 1
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
    for options, folder in (({}, cache), ({"index": tmp_path / "given"}, tmp_path / "given")):
        (index,) = folder.rglob("*.json")
        remember(index, labels=["7", "8", "9"])
        assert TarShards(shard, **options).labels.tolist() == [7, 8, 9]


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


def hard_link(path: Path) -> Path:
    (path.parent / "a.jpg").write_bytes(b"image")
    os.link(path.parent / "a.jpg", path.parent / "b.jpg")
    with tarfile.open(path, "w") as tar:
        tar.add(path.parent / "a.jpg", "a.jpg")
        tar.add(path.parent / "b.jpg", "b.jpg")
    return path


def sparse(path: Path) -> Path:
    """A file of which some zeros are left out."""
    header = tarfile.TarInfo("a.jpg")
    header.size, header.pax_headers = 5, {"GNU.sparse.map": "0,2,8,3", "GNU.sparse.size": "11"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(header, io.BytesIO(b"image"))
    return path


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gzip": (gzip.compress(tar_bytes(PETS)), {}, "uncompressed.*0.tar is compressed by gzip: decompress it"),
    "bzip2": (bz2.compress(tar_bytes(PETS)), {}, "compressed by bzip2"),
    "empty": (b"", {}, "0.tar is empty: write or copy it again"),
    "text": (b"text " * 999, {}, r"is none after its beginning, byte 0 of 4995 \(.*\): write or copy"),
    "no image": (
        [("a.mp4", b""), ("b.cls", b"1")],
        {},
        "the 1 from .*0.tar on hold none, but 2 samples.*ends in .avif, .bmp",
    ),
    "no such image": (PETS, {"image": "webp"}, "3 samples without an image, which ends in .webp .*: check"),
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
    "same image in two tar files": (tar_bytes(PETS[:2]) * 2, {}, "one image, but in .* both a.jpg and a.jpg are"),
    "damaged header": (damaged(PETS), {}, r"damaged header after b.JPG|after a.cls, at byte 2048 of 10240"),
    "two images": ([*PETS, ("c.jpg", b"")], {}, "both c.png and c.jpg are"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(600), {}, "compressed by zstd"),
    "xz": (lzma.compress(tar_bytes(PETS)), {}, "compressed by xz"),
    "sparse": (sparse, {"label": len}, "must be plain files, but a.jpg in .*0.tar is a link or sparse: .*dereference"),
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
        ("zip://x.tar::{root}/none.zip", r"x.tar::.*/none.zip is not \(FileNotFoundError: .*check its address"),
        ("zip://*.tar::{root}/none.zip", r"\*.tar::.*/none.zip is not \(FileNotFoundError: .*check its address"),
        ("shut://*.tar", r"shut://\*.tar is not \(PermissionError: not yours\): check its address"),
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

    class Shut(MemoryFileSystem):
        protocol = "shut"

        def glob(self, path: str, **options: Any) -> Any:
            raise PermissionError("not yours")

    fsspec.register_implementation("shut", Shut, clobber=True)
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
    memory.store["/bucket/pets-0.tar"].getbuffer()[512 + 512 + 512] ^= 1  # In a label.
    assert TarShards("memory://bucket/pets-{0..1}.tar").labels.tolist() == source.labels.tolist()


TOLD_OF_FILES = (
    *("ETag", "etag", "VersionId", "version_id", "generation", "blob_id", "sha", "Content-MD5", "content_md5"),
    *("md5Hash", "crc32c", "Digest", "content_hash", "checksum", "mtime", "modified", "modify", "LastModified"),
    *("last_modified", "Last-Modified", "modificationTime", "updated", "created", "ino"),
)
"""What filesystems tell of a file, by which another one is told."""


def test_a_remote_shard_is_indexed_anew_when_its_filesystem_tells_of_another_or_of_its_size_only(
    memory: MemoryFileSystem, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, str] = {}

    def info(self: MemoryFileSystem, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.store[path].getbuffer()), "type": "file", **told}

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    other = [PETS[0], ("a.cls", b"4"), *PETS[2:]]
    for told in ({"ETag": "1"}, {"Last-Modified": "then"}, {"etag": "1", "Content-MD5": "2"}, {"md5Hash": "3"}):
        memory.pipe("/pets.tar", tar_bytes(PETS))
        assert TarShards("memory://pets.tar").labels.tolist() == [3, 1, 2]
        memory.pipe("/pets.tar", tar_bytes(other))
        before = TarShards("memory://pets.tar")
        assert before.labels.tolist() == [3, 1, 2]  # Remembered.
        told |= {list(told)[-1]: "new"}
        after = TarShards("memory://pets.tar")
        assert after.labels.tolist() == [4, 1, 2]
        assert after.content() != before.content()
    contents_told = set()
    for name in TOLD_OF_FILES:
        for value in "12":
            told = {name: value}
            contents_told.add(json.dumps(TarShards("memory://pets.tar").content()))
    assert len(contents_told) == 2 * len(TOLD_OF_FILES)
    told = {}
    for members, label in ((PETS, 3), (other, 4)):
        memory.pipe("/pets.tar", tar_bytes(members))
        assert TarShards("memory://pets.tar").labels.tolist() == [label, 1, 2]


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


def test_each_filesystem_is_asked_for_its_own_shards(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe({f"/{number}.tar": tar_bytes(PETS[2 * number : 2 * number + 2]) for number in (0, 2)})
    write_tar(tmp_path / "1.tar", PETS[2:4])
    source = TarShards(["memory://0.tar", f"simplecache::file://{tmp_path}/1.tar", "memory://2.tar"])
    assert [each.tobytes() for each in source.read(np.array([1, 2, 0, 1]))] == [
        *(b"the second", b"third", b"first", b"the second")
    ]


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


def test_a_remote_shard_that_is_written_again_shrinks_or_goes_names_the_sample(memory: MemoryFileSystem) -> None:
    memory.pipe("/pets.tar", tar_bytes(PETS))
    source = TarShards("memory://pets.tar")
    memory.pipe("/pets.tar", tar_bytes([("n.jpg", b"newer"), *PETS[1:]]))
    with pytest.raises(OSError, match=r"memory://pets.tar:a.jpg.*is not where it was indexed"):
        source.read(np.array([0]))
    assert source.read(np.array([1]))[0].tobytes() == b"the second"
    memory.pipe("/pets.tar", tar_bytes(PETS)[:515])
    with pytest.raises(OSError, match=r"memory://pets.tar:a.jpg must have 5 bytes, but 3 are there: the rest is lost"):
        source.read(np.array([0]))
    memory.rm("/pets.tar")
    with pytest.raises(OSError, match=r"memory://pets.tar:b.JPG: FileNotFoundError"):
        source.read(np.array([1]))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"<!DOCTYPE html>Back soon", "a page came: b'<!DOCTYPE html>Back soon'"),
        (bytes(5000), "the server ignored the range, but shards need one that gives ranges"),
    ],
)
def test_what_comes_in_place_of_a_range_is_told(
    given: bytes, why: str, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/pets.tar", tar_bytes(PETS))
    source = TarShards("memory://pets.tar")
    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", lambda self, paths, *_, **__: [given] * len(paths))
    with pytest.raises(OSError, match=rf"memory://pets.tar:a.jpg must have 5 bytes, .*{why}"):
        source.read(np.array([0]))


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
