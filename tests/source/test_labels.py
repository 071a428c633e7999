"""Labels of every kind of source: names are numbered, and what belongs to no whole image is refused by name."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dalirefurb import Arrays, Concat, Evaluate, FileList, ImageFolder, Loader, TarShards, TorchDataset, evaluate
from dalirefurb.errors import ConfigurationError
from dalirefurb.source import Source
from tests.pictures import jpeg
from tests.source.test_dataset_source import Items
from tests.source.test_source import fill, write_csv
from tests.source.test_tar_shards import write_tar

HEIGHT, WIDTH, COUNT = 20, 24, 3
PICTURES = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), dtype=np.uint8)
MASKS = np.zeros((COUNT, HEIGHT, WIDTH), np.int64)
NOT_SUPPORTED = "as masks, boxes and keypoints do, is a target, and no label: pass such as Annotated"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of the pictures, in a folder for each class."""
    root = tmp_path_factory.mktemp("pictures")
    names = [root / f"class_{index % 2}" / f"{index}.jpg" for index in range(COUNT)]
    for path, pixels in zip(names, PICTURES, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(Image.fromarray(pixels)))
    return names


def items(*labels: Any) -> Items:
    return Items([(pixels, label) for pixels, label in zip(PICTURES, labels, strict=False)])


def tensor_pairs(label: Any) -> Items:
    return Items([(torch.from_numpy(pixels.transpose(2, 0, 1).copy()), label) for pixels in PICTURES])


MASKED: dict[str, Callable[[list[Path]], Source]] = {
    "an array": lambda _: TorchDataset(items(*MASKS)),
    "with a channel behind": lambda _: TorchDataset(items(*MASKS[..., np.newaxis])),
    "with a channel before": lambda _: TorchDataset(tensor_pairs(torch.zeros(1, HEIGHT, WIDTH))),
    "of an upright picture": lambda _: TorchDataset(
        Items([(PICTURES[0].transpose(1, 0, 2), mask.T) for mask in MASKS])
    ),
    "of another picture's direction": lambda _: TorchDataset(items(*MASKS.transpose(0, 2, 1))),
    "of an encoded image": lambda paths: TorchDataset(Items([(path.read_bytes(), MASKS[0]) for path in paths])),
    "nested lists": lambda _: TorchDataset(items(*MASKS.tolist()), labels=MASKS.tolist()),
    "of images of several sizes": lambda _: TorchDataset(
        Items([(PICTURES[0, :size], MASKS[0, :size]) for size in (8, 12)])
    ),
    "listed by the dataset": lambda _: TorchDataset(
        Items([(PICTURES[0], MASKS[0]), (PICTURES[1], MASKS[1])], targets=list(MASKS[:2]))
    ),
    "for an array": lambda _: Arrays(PICTURES, MASKS),
    "for files": lambda paths: FileList(paths, MASKS[..., np.newaxis]),
}


@pytest.mark.parametrize("make", MASKED.values(), ids=MASKED)
def test_a_label_of_its_images_sides_is_refused_since_only_the_image_would_be_augmented(
    make: Callable[[list[Path]], Source], paths: list[Path]
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"is an array of the image's sides, \(.*only the image would be au"
    ) as it:
        make(paths)
    assert NOT_SUPPORTED in str(it.value)


@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (7, 5)])
def test_a_label_that_is_an_image_of_pillow_is_refused_whatever_its_size(
    size: tuple[int, int], paths: list[Path]
) -> None:
    mask = Image.new("L", size)
    for make in (
        lambda: TorchDataset(items(mask, mask)),
        lambda: TorchDataset(items(mask, mask), labels=[mask, mask]),
        lambda: FileList(paths, [mask] * COUNT),
        lambda: Arrays(PICTURES, [mask] * COUNT),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match=f"is a PIL image, and only the image would .*{NOT_SUPPORTED}"):
            make()


def test_masks_are_found_before_all_items_are_read() -> None:
    dataset = Items([(PICTURES[0], MASKS[0])] * 50)
    with pytest.raises(ConfigurationError, match=r"that of Items\[0\] is an array"):
        TorchDataset(dataset, thread_safe=True)
    assert set(dataset.read) == {0}


def test_labels_that_become_masks_later_are_refused_by_the_loader(paths: list[Path]) -> None:
    source = ImageFolder(paths[0].parent.parent)
    source.labels = MASKS
    with pytest.raises(ConfigurationError, match="is an array of the image's sides"):
        Loader(source, evaluate(16), Evaluate(COUNT, batch_size=2))


PARTS: dict[str, Callable[[Source], Source]] = {
    "all": lambda source: source,
    "some": lambda source: source.subset([0, 1]),
    "several": lambda source: Concat([source, source]),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (list(range(COUNT)), r"labels must be a NumPy array of numbers, but are a list: assign np.array\(labels\)"),
        (torch.arange(COUNT), "but are a Tensor: assign"),
        (np.array(["cat"] * COUNT), r"but are <U3: .*np.unique\(labels, return_inverse=True\)"),
        (np.arange(COUNT - 1), rf"one label per sample, but there are {COUNT - 1} for {COUNT}: assign as many"),
        (np.arange(COUNT + 1), rf"one label per sample, but there are {COUNT + 1} for {COUNT}: assign as many"),
    ],
)
def test_labels_that_were_assigned_and_are_none_are_refused(
    part: str, given: Any, message: str, paths: list[Path]
) -> None:
    """Fewer of them left samples out, and others failed somewhere within."""

    def load(source: Source) -> Loader:
        chosen = PARTS[part](source)
        return Loader(chosen, evaluate(16), Evaluate(len(chosen), batch_size=2))

    for source in (ImageFolder(paths[0].parent.parent), FileList(paths, [0] * COUNT)):
        source.labels = given
        with pytest.raises(ConfigurationError, match=message):
            load(source)


@pytest.mark.parametrize("shape", [(), (10,), (WIDTH,), (2, 2), (HEIGHT, 3, WIDTH), (4, HEIGHT), (5, 5, 5)])
def test_other_labels_of_any_shape_stay(shape: tuple[int, ...], paths: list[Path]) -> None:
    labels = np.arange(COUNT * int(np.prod(shape)), dtype=np.float32).reshape(COUNT, *shape)
    for source in (
        TorchDataset(items(*labels)),
        Arrays(PICTURES, labels),
        FileList(paths, labels),
        FileList(paths, labels.tolist()),
    ):
        np.testing.assert_array_equal(source.labels, labels)
        assert source.classes is None


def test_a_first_file_that_cannot_be_read_keeps_no_labels_from_being_taken(tmp_path: Path) -> None:
    assert FileList([tmp_path / "gone.jpg"], MASKS[:1]).labels.shape == (1, HEIGHT, WIDTH)


BOXES: dict[str, list[Any]] = {
    "mappings": [{"boxes": torch.zeros(2, 4), "labels": torch.zeros(2)}] * 2,
    "annotations": [[{"boxes": [1, 2, 3, 4], "labels": 7}]] * 2,
    "annotations, several of the second": [[{"boxes": [1, 2, 3, 4], "labels": 7}], [{"boxes": [1], "labels": 1}] * 2],
}


@pytest.mark.parametrize("labels", BOXES.values(), ids=BOXES)
def test_boxes_with_fields_are_refused_with_their_names(labels: list[Any]) -> None:
    dataset = items(*labels)
    with pytest.raises(ConfigurationError, match=r"that of Items\[0\] has the fields boxes, labels: ch.*") as refusal:
        TorchDataset(dataset)
    assert NOT_SUPPORTED in str(refusal.value)
    assert 1 not in dataset.read


@pytest.mark.parametrize("labels", [[np.zeros((1, 4)), np.zeros((3, 4))], [[], [{"boxes": 1}]], [[1, [2, 3]], [4]]])
def test_labels_of_several_shapes_are_told_what_is_missing(labels: list[Any], paths: list[Path]) -> None:
    for make in (lambda: TorchDataset(items(*labels)), lambda: FileList(paths[:2], labels)):
        with pytest.raises(ConfigurationError, match=NOT_SUPPORTED):
            make()


NAMES = ["dog", "cat", "dog"]
NAMED: dict[str, Callable[[list[Path]], Source]] = {
    "a list": lambda paths: FileList(paths, NAMES),
    "a tuple": lambda paths: FileList(paths, tuple(NAMES)),
    "an array": lambda paths: FileList(paths, np.array(NAMES)),
    "an array of objects": lambda paths: FileList(paths, np.array(NAMES, object)),
    "for an array": lambda _: Arrays(PICTURES, NAMES),
    "of items": lambda _: TorchDataset(items(*NAMES)),
    "listed by a dataset": lambda _: TorchDataset(items(*NAMES), labels=NAMES),
    "of a dataset's targets": lambda _: TorchDataset(
        Items([(pixels, name) for pixels, name in zip(PICTURES, NAMES, strict=True)], targets=NAMES)
    ),
    "whose dataset lists them otherwise": lambda _: TorchDataset(
        Items([(pixels, name) for pixels, name in zip(PICTURES, NAMES, strict=True)], classes=["dog", "cat"])
    ),
}


@pytest.mark.parametrize("make", NAMED.values(), ids=NAMED)
def test_names_are_numbered_in_sorted_order_as_those_of_folders(
    make: Callable[[list[Path]], Source], paths: list[Path]
) -> None:
    source = make(paths)
    assert source.labels.tolist() == [1, 0, 1]
    assert source.labels.dtype == np.int64
    assert source.classes == ["cat", "dog"]
    assert all(type(name) is str for name in source.classes)
    assert source.class_to_idx == {"cat": 0, "dog": 1}


@pytest.mark.parametrize(
    ("texts", "labels", "dtype"),
    [
        (["-3", "+4", "007"], [-3, 4, 7], np.int64),
        (["-3", 4, "0.5"], [-3, 4, 0.5], np.float64),
        (["1e2", "2.5E-1", "3"], [100, 0.25, 3], np.float64),
        (["5.", ".5", "-1e+1"], [5, 0.5, -10], np.float64),
    ],
)
def test_numbers_are_read_as_they_are_written(
    texts: list[Any], labels: list[Any], dtype: Any, paths: list[Path]
) -> None:
    source = FileList(paths, texts)
    assert (source.labels.tolist(), source.labels.dtype, source.classes) == (labels, dtype, None)


def test_the_largest_number_that_int64_has_is_a_label(paths: list[Path]) -> None:
    assert FileList(paths, np.full(COUNT, 2**63 - 1, np.uint64)).labels.tolist() == [2**63 - 1] * COUNT
    with pytest.raises(ConfigurationError, match="integer labels must fit into int64, but one is 9223372036854775808"):
        FileList(paths, np.array([0, 1, 2**63], np.uint64))


def test_names_and_their_numbers_are_one_state(paths: list[Path]) -> None:
    assert FileList(paths, NAMES).fingerprint() == FileList(paths, [1, 0, 1]).fingerprint()


def test_one_long_text_does_not_make_all_labels_long(paths: list[Path]) -> None:
    """An array of texts has the room of the longest for each: here 40 GB."""
    names = ["x" * 1_000_000, *["y"] * 9_999]
    assert FileList(paths[:1] * 10_000, names).labels.sum() == 9_999


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", None], r"every sample must have a label, but .*1.jpg has none"),
        (["cat", ""], r"every sample must have a label, but .*1.jpg has none"),
        (["cat", "3"], r"all numbers or all names, but .*0.jpg is labelled 'cat' and .*1.jpg '3'"),
        (["cat", 3], r"all numbers or all names, but .*0.jpg is labelled 'cat' and .*1.jpg 3: "),
        (["cat"], "one label per sample, but there are 1 for 2 paths"),
        (None, "one label per sample, but there are a single number for 2 paths"),
        (["masks/0.png", "masks/1.png"], f"but are paths of images, as masks/0.png: .*{NOT_SUPPORTED}"),
        (['{"kind": "cat", "box": 3}'] * 2, r"0.jpg has the fields kind, box: choose one .*label='json.kind'\) does\)"),
    ],
)
def test_texts_that_name_no_classes_are_refused(labels: Any, message: str, paths: list[Path]) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileList(paths[:2], labels)


def shard_of(tmp_path: Path, texts: list[str], ending: str = "json") -> Path:
    members = []
    for number, text in enumerate(texts):
        members += [(f"{number:03d}.jpg", b"image"), (f"{number:03d}.{ending}", text.encode())]
    return write_tar(tmp_path / "shard.tar", members)


def test_json_with_fields_as_labels_is_refused_with_a_way_to_choose_one(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, [json.dumps({"label": number % 2, "caption": "a"}) for number in range(4)])
    for _ in range(2):  # Read, and remembered.
        with pytest.raises(ConfigurationError, match=r"000.jpg has the fields label, caption: .*label='json.label'\)"):
            TarShards(shard, label="json")
    assert TarShards(shard, label="json.label").labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("texts", "labels", "classes"),
    [
        (['"dog"', '"cat"', ' "dog"\n'], [1, 0, 1], ["cat", "dog"]),
        (["3", "1", "2"], [3, 1, 2], None),
        (["[0.5, 1]", "[1, 2]", "[0, 0]"], [[0.5, 1], [1, 2], [0, 0]], None),
    ],
)
def test_json_is_read_as_what_it_says(
    texts: list[str], labels: list[Any], classes: list[str] | None, tmp_path: Path
) -> None:
    source = TarShards(shard_of(tmp_path, texts), label="json")
    assert (source.labels.tolist(), source.classes) == (labels, classes)


MANY = [f"id-{number:02d}" for number in range(24)]


def csv_of(tmp_path: Path, names: list[str]) -> Source:
    files = [f"{number}.jpg" for number in range(len(names))]
    rows = [f"{file},{name}" for file, name in zip(files, names, strict=True)]
    return FileList.from_csv(write_csv(fill(tmp_path, *files) / "list.csv", "path,label", *rows))


def folder_of(tmp_path: Path, names: list[str]) -> Source:
    return ImageFolder(fill(tmp_path / "root", *(f"{name}/{number}.jpg" for number, name in enumerate(names))))


TOLD: dict[str, Callable[[Path, list[str]], Source]] = {
    "shards": lambda tmp_path, names: TarShards(shard_of(tmp_path, names, "txt"), label="txt"),
    "keys": lambda tmp_path, names: TarShards(
        shard_of(tmp_path, names), label=lambda key: names[int(key)], index=tmp_path
    ),
    "csv": csv_of,
    "list": lambda _, names: FileList(names, names),
    "items": lambda _, names: TorchDataset(Items([(PICTURES[0], name) for name in names])),
    "folder": folder_of,
}


@pytest.mark.parametrize("make", TOLD.values(), ids=TOLD)
def test_nearly_as_many_classes_as_samples_are_warned_of(
    make: Callable[[Path, list[str]], Source], tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="24 classes are nearly as many as the 24 samples.*'id-00'") as caught:
        make(tmp_path, MANY)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="11 classes are nearly as many as the 20 samples"):
        make(tmp_path / "other", [*MANY[:11], *MANY[:9]])


@pytest.mark.parametrize("make", TOLD.values(), ids=TOLD)
@pytest.mark.parametrize("names", [MANY[:12] * 2, MANY[:19]])
def test_half_as_many_classes_and_few_samples_are_not_warned_of(
    make: Callable[[Path, list[str]], Source], names: list[str], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(make(tmp_path, names)) == len(names)
