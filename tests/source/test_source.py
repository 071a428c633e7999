"""Sources against real files and arrays: order, labels, contents, fingerprints, refusals."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import Arrays, FileList, ImageFolder, Source, TarShards
from dalirefurb.source.files import EXTENSIONS
from dalirefurb.targets import CocoDetection, MaskFolder, YoloFolder


def fill(root: Path, *names: str) -> Path:
    """Write files whose contents are their names."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def contents(source: Source) -> list[bytes]:
    return [encoded.tobytes() for encoded in source.read(np.arange(len(source)))]


NAMES = ("cat/b.jpg", "cat/a.JPEG", "cat/deep/er/c.png", "cat/deep.er/d.webp", "ant/z.bmp", "dog/y.tiff")


def test_a_folder_lists_images_in_torchvisions_order_with_its_labels(tmp_path: Path) -> None:
    source = ImageFolder(fill(tmp_path, *NAMES))
    expected, labels = [], []
    for label, name in enumerate(sorted(folder.name for folder in tmp_path.iterdir())):
        for folder, _, files in sorted(os.walk(tmp_path / name)):
            expected += [str((Path(folder) / file).relative_to(tmp_path)).encode() for file in sorted(files)]
            labels += [label] * len(files)
    assert source.classes == ["ant", "cat", "dog"]
    assert contents(source) == expected
    assert source.labels.tolist() == labels
    assert source.labels.dtype == np.int64
    assert [source.name(index) for index in range(6)] == [str(tmp_path / name.decode()) for name in expected]


def test_a_folder_counts_the_files_it_skips_and_says_which_and_why(tmp_path: Path) -> None:
    names = ("a/1.jpg", "a/notes.txt", "a/jpg", "a/._1.jpg", "a/.2.JPG", "a/.DS_Store", "a/b/x.mp4", "top.jpg", "c/3")
    with pytest.warns(UserWarning, match="left out") as caught:
        source = ImageFolder(fill(tmp_path, *names))
    assert len(source) == 1
    assert source.skipped == 8
    assert (len(caught), caught[0].filename) == (1, __file__)
    said = str(caught[0].message)
    assert said.startswith(
        f"{tmp_path}/: 1 image is left out, since it lies in no class folder: top.jpg; 1 image is left out, since it "
        "is hidden: a/.2.JPG; 1 class folder holds no image: c; 4 files are left out, since their names do not end as "
        "an image's (.avif, .bmp, .gif, .jp2, "
    )
    assert said.endswith("): a/jpg and 3 more; FileList takes files of any name")


def test_one_file_that_is_left_out_is_told_of_as_one(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="left out") as caught:
        ImageFolder(f"{fill(tmp_path, 'a/1.jpg', 'a/notes.txt')}/")
    said = str(caught[0].message)
    assert said.startswith(f"{tmp_path}/: 1 file is left out, since its name does not end as an image's (.avif, .bmp, ")
    assert said.endswith("): a/notes.txt; FileList takes files of any name")


def test_files_that_nobody_takes_for_images_are_counted_and_not_spoken_of(tmp_path: Path) -> None:
    names = ("a/1.jpg", "a/._1.jpg", "a/.DS_Store", ".directory", "README.md", "labels.csv")
    assert ImageFolder(fill(tmp_path, *names)).skipped == 5


def test_a_link_that_leads_nowhere_is_a_sample_that_names_itself(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg")
    (tmp_path / "a/2.jpg").symlink_to(tmp_path / "gone.jpg")
    source = ImageFolder(tmp_path)
    assert (len(source), source.skipped) == (2, 0)
    with pytest.raises(SampleError, match=r"a/2.jpg\): cannot be read: No such file"):
        source.read(np.array([1]))


def test_a_hidden_folder_is_no_class(tmp_path: Path) -> None:
    source = ImageFolder(fill(tmp_path, ".checkpoints/1.jpg", "a/1.jpg", "a/.cache/2.jpg"))
    assert source.classes == ["a"]
    assert len(source) == 1


def test_an_empty_class_keeps_its_number(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.warns(UserWarning, match="1 class folder holds no image: a"):
        source = ImageFolder(fill(tmp_path, "b/1.jpg"))
    assert source.classes == ["a", "b"]
    assert source.labels.tolist() == [1]


def test_a_folder_follows_links(tmp_path: Path) -> None:
    fill(tmp_path, "elsewhere/1.jpg")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a").symlink_to(tmp_path / "elsewhere")
    assert contents(ImageFolder(tmp_path / "root")) == [b"elsewhere/1.jpg"]


@pytest.mark.parametrize(
    ("names", "root", "message"),
    [
        ((), "missing", "missing is none: No such file or directory"),
        (("file",), "file", "file is none: Not a directory"),
        ((), "", "one folder per class.*but holds none"),
        (("1.jpg", "2.png"), "", "one folder per class.*but holds 2 images directly in it: move them"),
        (("a/1.mp4", "b/2.txt"), "", "its 2 folders hold no image among 2 files.*images end in .avif, .bmp"),
    ],
)
def test_a_folder_that_is_no_dataset_is_refused(
    tmp_path: Path, names: tuple[str, ...], root: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ImageFolder(fill(tmp_path, *names) / root)


def test_a_list_reads_the_files_asked_for_in_that_order(tmp_path: Path) -> None:
    fill(tmp_path, *NAMES)
    source = FileList([tmp_path / name for name in NAMES], range(6))
    read = source.read(np.array([4, 0, 4]))
    assert [encoded.tobytes().decode() for encoded in read] == [NAMES[4], NAMES[0], NAMES[4]]
    assert all(encoded.dtype == np.uint8 and encoded.ndim == 1 for encoded in read)
    assert source.encoded
    assert source.image_shape is None


@pytest.mark.parametrize(
    ("paths", "labels", "message"),
    [
        (["a", "b"], [0], "one label per sample, but there are 1 for 2 paths"),
        (["a"], 0, "one label per sample, but there are a single number for 1 paths"),
        (
            ["a", "b"],
            [2**63, 2**64 - 1],
            r"labels must fit into int64, but one is 18446744073709551615: .* np.unique\(",
        ),
        (
            ["a", "b"],
            [[0], [0, 1]],
            "labels must be convertible to one NumPy array, .*give all rows one shape",
        ),
        ([], [], "at least one sample, but paths is empty"),
        ("a.jpg", [0], r"a sequence of paths, but is 'a.jpg': pass \[path\]"),
    ],
)
def test_a_list_that_does_not_pair_is_refused(paths: Any, labels: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileList(paths, labels)


def write_csv(path: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path.write_text("".join(f"{line}\r\n" for line in lines), encoding)
    return path


def test_a_csv_file_lists_paths_beside_it_or_below_a_root(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", "b/Käfer, grün.jpg", "elsewhere/a.jpg")
    lines = ["path, label ,id", "a.jpg,7,1", '"b/Käfer, grün.jpg", 8 ,2', "", f"{tmp_path}/elsewhere/a.jpg,9,3"]
    for encoding in ("utf-8", "utf-8-sig"):
        source = FileList.from_csv(write_csv(tmp_path / "list.csv", *lines, encoding=encoding))
        assert contents(source) == [b"a.jpg", "b/Käfer, grün.jpg".encode(), b"elsewhere/a.jpg"]
        assert source.labels.tolist() == [7, 8, 9]
        assert source.labels.dtype == np.int64
        assert source.classes is None
    below = FileList.from_csv(write_csv(tmp_path / "list.csv", *lines[:2]), root=tmp_path / "elsewhere")
    assert contents(below) == [b"elsewhere/a.jpg"]


def test_names_in_a_csv_file_are_numbered_in_sorted_order(tmp_path: Path) -> None:
    fill(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    path = write_csv(tmp_path / "list.csv", "file,kind", "1.jpg,dog", "2.jpg,ant", "3.jpg,dog")
    source = FileList.from_csv(path, image="file", label="kind")
    assert source.labels.tolist() == [1, 0, 1]
    assert source.classes == ["ant", "dog"]
    assert source.fingerprint() == FileList([tmp_path / f"{n}.jpg" for n in (1, 2, 3)], [1, 0, 1]).fingerprint()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), r"one column 'path', but it is not there in its first row, \[\]: pass its name as image= or label="),
        (("path;label", "a;1"), r"not there in its first row, \['path;label'\]: .*; commas part columns"),
        (("a.jpg,1", "b.jpg,2"), r"in its first row, \['a.jpg', '1'\]: .* and the first row has to name them"),
        (("path,class", "a,1"), "'label', but it is not there"),
        (("path,label,label", "a,1,1"), "'label', but it is twice or more"),
        (("path,label",), "at least one sample, but paths is empty"),
        (("path,label", "a,1", "b,1,2"), "list.csv, line 3: a row must have 2 fields .* but has 3: put fields"),
        (("path,label", "a"), "list.csv, line 2: a row must have 2 fields .* but has 1"),
        (("path,label", "a,1", ",2"), "list.csv, line 3 has none in column 'path': write one or remove the row"),
        (
            ("path,label", '"a\nb",1', "b,"),
            "must have a label, but .*list.csv, line 4 has none: write one or remove it",
        ),
        (
            ("path,label", "a,1", "b,2", "c,x"),
            "line 4 is labelled 'x' and .*list.csv, line 2 '1': write all in one way",
        ),
        (("path,label", '"a,1'), r"in UTF-8, but .*list.csv is none \(unexpected end of data\): save it as such"),
    ],
)
def test_a_csv_file_that_is_no_list_is_refused_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileList.from_csv(write_csv(tmp_path / "list.csv", *lines))


def photos_csv(tmp_path: Path, count: int = 210) -> Path:
    """Write a list of files in `photos`, as which they are there, in a folder for lists."""
    names = [f"photos/{number}.jpg" for number in range(count)]
    fill(tmp_path, *names)
    (tmp_path / "lists").mkdir()
    return write_csv(tmp_path / "lists/all.csv", "path,label", *(f"{name},1" for name in names))


def test_a_wrong_root_is_found_when_the_list_is_read_and_the_right_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = photos_csv(tmp_path)
    told = r"paths in .*all.csv must lead to files, but of 16 that were looked at 16 do not, the first is "
    with pytest.raises(ConfigurationError, match=rf"{told}.*lists/photos/0.jpg: pass root='{tmp_path}'"):
        FileList.from_csv(path)
    with pytest.raises(ConfigurationError, match=rf"{told}/elsewhere/photos/0.jpg: pass root='where they begin'"):
        FileList.from_csv(path, root="/elsewhere")
    with pytest.raises(ConfigurationError, match=rf"{told}.*photos/photos/0.jpg: pass root='{tmp_path}'"):
        FileList.from_csv(path, root=tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"all.csv must .*: pass root='\.'"):
        FileList.from_csv("lists/all.csv")
    assert contents(FileList.from_csv("lists/all.csv", root="."))[209] == b"photos/209.jpg"


def test_some_files_of_a_list_that_are_not_there_are_warned_of(tmp_path: Path) -> None:
    path = photos_csv(tmp_path)
    for number in range(100, 210):
        (tmp_path / f"photos/{number}.jpg").unlink()
    with pytest.warns(
        UserWarning, match=r"of 16 that were looked at 8 do not, the first is .*photos/111.jpg"
    ) as caught:
        assert len(FileList.from_csv(path, root=tmp_path)) == 210
    assert (len(caught), caught[0].filename) == (1, __file__)


def test_a_csv_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none.csv is none: No such file or directory"):
        FileList.from_csv(tmp_path / "none.csv")
    with pytest.raises(ConfigurationError, match=r"latin.csv is none \('utf-8' codec .*\): save it as such"):
        FileList.from_csv(write_csv(tmp_path / "latin.csv", "path,label", "Käfer.jpg,1", encoding="latin-1"))


def test_a_file_that_cannot_be_read_names_its_sample(tmp_path: Path) -> None:
    fill(tmp_path, "good.jpg")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    reasons = {
        "missing.jpg": "cannot be read: No such file or directory",
        "empty.jpg": "is empty",
        "folder.jpg": "cannot be read: Is a directory",
        "pipe.jpg": "is no regular file",
        "nul\0.jpg": "cannot be read: embedded null byte",
    }
    source = FileList([tmp_path / name for name in ("good.jpg", *reasons)], range(6))
    for index, (name, reason) in enumerate(reasons.items(), start=1):
        with pytest.raises(SampleError) as caught:
            source.read(np.array([0, index]))
        assert (caught.value.index, caught.value.name, caught.value.reason) == (
            index,
            str(tmp_path / name),
            reason,
        )


def test_a_file_that_comes_in_parts_is_whole_and_one_that_ends_early_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "a/name/of/many/letters.jpg")
    source, read = FileList([tmp_path / "a/name/of/many/letters.jpg"], [0]), os.read
    monkeypatch.setattr("os.read", lambda descriptor, size: read(descriptor, min(size, 10)))
    assert contents(source) == [b"a/name/of/many/letters.jpg"]
    parts = iter([b"a/name", b"/of", b""])
    monkeypatch.setattr("os.read", lambda descriptor, size: next(parts))
    with pytest.raises(OSError, match=r"^9 of 26 bytes came of .*letters\.jpg"):
        source.read(np.array([0]))


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    for source in (FileList(["a", "b"], [0, 1]), Arrays(np.zeros((2, 4, 4, 3), np.uint8), [0, 1])):
        with pytest.raises(ConfigurationError, match=rf"0 \.\. 1, but lie in .*{index}"):
            source.read(np.array([0, index]))


def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg")
    source = FileList([tmp_path / "a.jpg", tmp_path], [0, 1])
    before = len(list(Path("/proc/self/fd").iterdir()))
    source.read(np.zeros(50, np.int64))
    with pytest.raises(SampleError):
        source.read(np.array([1]))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)


def test_arrays_serve_rows_without_a_copy() -> None:
    source = Arrays(IMAGES, np.arange(5))
    read = source.read(np.array([3, 1]))
    np.testing.assert_array_equal(read, IMAGES[[3, 1]])
    assert np.shares_memory(read[0], IMAGES)
    assert (source.image_shape, source.encoded, source.name(3)) == ((6, 7, 3), False, "images[3]")


@pytest.mark.parametrize("grey", [IMAGES[..., 0], IMAGES[..., :1]])
def test_grey_arrays_are_read_as_three_equal_channels(grey: np.ndarray) -> None:
    source = Arrays(grey, np.arange(5))
    (read,) = source.read(np.array([2]))
    np.testing.assert_array_equal(read, np.stack([IMAGES[2, ..., 0]] * 3, axis=2))
    assert read.flags.c_contiguous
    assert source.image_shape == (6, 7, 3)


def test_channels_first_arrays_can_be_passed_transposed() -> None:
    channels_first = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))
    (read,) = Arrays(channels_first.transpose(0, 2, 3, 1), np.arange(5)).read(np.array([4]))
    np.testing.assert_array_equal(read, IMAGES[4])
    assert read.flags.c_contiguous


def test_a_memory_map_is_read_as_plain_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    (read,) = Arrays(np.load(tmp_path / "images.npy", mmap_mode="r"), np.arange(5)).read(np.array([1]))
    np.testing.assert_array_equal(read, IMAGES[1])
    assert type(read) is np.ndarray


class Tensor:
    """What a tensor has in common with PyTorch's: `numpy()`, which can refuse."""

    def __init__(self, array: np.ndarray, error: Exception | None = None) -> None:
        self.array, self.error = array, error

    def numpy(self) -> np.ndarray:
        if self.error:
            raise self.error
        return self.array


def test_arrays_take_tensors() -> None:
    source = Arrays(Tensor(IMAGES), Tensor(np.arange(5)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(source.read(np.array([0]))[0], IMAGES[0])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            IMAGES.astype(np.float32),
            r"must be uint8 from 0 to 255, or uint16, but are float32: .*such as value_range=\(0, 1\)",
        ),
        (IMAGES.transpose(0, 3, 1, 2), r"but have \(5, 3, 6, 7\): pass images.transpose\(0, 2, 3, 1\)"),
        (np.zeros((5, 6, 7, 4), np.uint8), r"but have \(5, 6, 7, 4\): reshape them or select channels"),
        (np.zeros((5, 3072), np.uint8), r"but have \(5, 3072\): reshape"),
        (IMAGES[:, :0], r"must not be empty, but have shape \(5, 0, 7, 3\)"),
        (Tensor(IMAGES, TypeError("on cuda")), r"not \(on cuda\): .*\.detach\(\)\.cpu\(\)"),
        (IMAGES[:3], "one label per sample, but there are 5 for 3 images"),
    ],
)
def test_arrays_of_another_kind_are_refused_with_a_remedy(images: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Arrays(images, np.arange(5))


def test_files_of_all_these_endings_are_images(tmp_path: Path) -> None:
    endings = ["jpg", "jpeg", "png", "gif", "bmp", "webp", "avif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "jp2"]
    names = [f"a/{number:02d}.{case(end)}" for case in (str, str.upper) for number, end in enumerate(endings)]
    found = ImageFolder(fill(tmp_path, *names, "b/1.jpg"))
    assert (len(found), found.skipped, len(EXTENSIONS)) == (len(names) + 1, 0, len(endings))


def test_a_fingerprint_is_json_and_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    here, there = fill(tmp_path / "here", *NAMES), fill(tmp_path / "there/deeper", *NAMES)
    for make in (ImageFolder, lambda root: FileList([root / name for name in NAMES], range(6))):
        assert make(here).fingerprint() == make(there).fingerprint()
        assert json.loads(json.dumps(make(here).fingerprint())) == make(here).fingerprint()
    arrays = Arrays(IMAGES, np.arange(5)).fingerprint()
    assert json.loads(json.dumps(arrays)) == arrays == Arrays(IMAGES.copy(), list(range(5))).fingerprint()


def test_a_fingerprint_changes_with_the_names_the_labels_and_their_order(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "b/2.jpg")
    paths = ["a/1.jpg", "b/2.jpg"]
    sources = [
        ImageFolder(tmp_path),
        FileList(paths, [0, 1]),
        FileList(paths, [1, 0]),
        FileList(paths, [0.0, 1.0]),
        FileList(paths, np.array([0, 1], np.uint64)),
        FileList(paths, [[0], [1]]),
        FileList(paths[::-1], [0, 1]),
        FileList(["a/1.jpg", "b/3.jpg"], [0, 1]),
        FileList(["c1/1.jpg", "c2/1.jpg"], [0, 1]),
        FileList(["d1/1.jpg", "d2/1.jpg"], [0, 1]),
        FileList(["a/1.jpg", "b/2.jpg", "a/3.jpg"], [0, 1, 2]),
        FileList(["b/1.jpg", "a/2.jpg", "b/3.jpg"], [0, 1, 2]),
    ]
    assert len({json.dumps(source.fingerprint()) for source in sources}) == len(sources)


def test_a_fingerprint_of_arrays_changes_with_shape_labels_and_the_rows_it_samples() -> None:
    first, last = IMAGES.copy(), IMAGES.copy()
    first[0, 0, 0, 0] ^= 1
    last[-1, -1, -1, -1] ^= 1
    sources = [
        Arrays(IMAGES, np.arange(5)),
        Arrays(IMAGES, np.arange(1, 6)),
        Arrays(IMAGES.reshape(5, 7, 6, 3), np.arange(5)),
        Arrays(first, np.arange(5)),
        Arrays(last, np.arange(5)),
    ]
    assert len({json.dumps(source.fingerprint()) for source in sources}) == len(sources)
    many = np.zeros((64, 1, 1, 3), np.uint8)
    changed = [Arrays(many ^ np.eye(64, dtype=np.uint8)[row, :, None, None, None], range(64)) for row in range(64)]
    assert len({source.fingerprint()["rows"] for source in changed}) == 64


def test_a_path_can_begin_with_the_users_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for folder in ("photos/a", "masks/a", "labels/a"):
        (home / folder).mkdir(parents=True)
    for file in ("photos/a/0.png", "masks/a/0.png"):
        Image.new("RGB", (4, 4)).save(home / file)
    (home / "labels/a/0.txt").write_text("0 0.5 0.5 1 1")
    (home / "photos.csv").write_text("path,label\na/0.png,1\n")
    found = {"images": [{"id": 1, "file_name": "a/0.png"}], "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    (home / "photos.json").write_text(json.dumps(found))
    with tarfile.open(home / "photos.tar", "w") as tar:
        tar.add(home / "photos/a/0.png", "0.png")
    monkeypatch.setenv("HOME", str(home))
    sources: list[Source] = [
        ImageFolder("~/photos"),
        FileList.from_csv("~/photos.csv", root=home / "photos"),
        FileList.from_csv(home / "photos.csv", root="~/photos"),
        MaskFolder("~/photos", "~/masks"),
        YoloFolder("~/photos", "~/labels"),
        CocoDetection("~/photos", "~/photos.json"),
    ]
    assert [source.name(0) for source in sources] == [str(home / "photos/a/0.png")] * len(sources)
    for shards in ("~/photos.tar", "~/*.tar"):
        assert TarShards(shards, label=lambda _: 0).name(0).startswith(str(home))
