"""Datasets of PyTorch and Hugging Face as sources: what is read, how labels are found, what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from dalirefurb import Arrays, ImageFolder, Loader, MemoryStore, Recipe, Refurbish, rand_augment, simple
from dalirefurb.augment.published import convnext
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import HuggingFaceImages, Source, TorchDataset
from dalirefurb.source.dataset import MOST_BYTES
from tests.engine.test_bit_identity import assert_same, serve
from tests.pictures import encode, jpeg, picture, write_folder

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)


class Items(Dataset[Any]):
    """A map-style dataset of given items, which notes what is read."""

    def __init__(self, items: Sequence[Any], **attributes: Any) -> None:
        self.items = items
        self.read: list[int] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        item = self.items[index]
        return item() if callable(item) else item


def pairs(images: Sequence[Any]) -> list[tuple[Any, int]]:
    return [(image, 10 * index) for index, image in enumerate(images)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=15))


def assert_served_alike(expected: Source, actual: Source, *, size: int = 32, raw: bool = False) -> None:
    planner = Refurbish(len(expected), batch_size=4, reuse_factor=2, seed=7)
    batches, _ = serve(expected, simple(size, raw=raw), planner, epochs=2)
    served, stats = serve(actual, simple(size, raw=raw), planner, MemoryStore(), epochs=2)
    assert stats.hits > 0
    assert_same(batches, served)


def test_encoded_items_are_served_as_a_folder_of_the_same_images(folder: ImageFolder) -> None:
    items = [
        (each.tobytes(), int(label)) for each, label in zip(folder.read(np.arange(15)), folder.labels, strict=True)
    ]
    assert_served_alike(folder, TorchDataset(Items(items)))


def test_items_of_pixels_are_served_as_an_array_of_the_same_images() -> None:
    images = np.stack([np.asarray(picture(index, height=32, width=32)) for index in range(15)])
    tensors = TensorDataset(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.arange(15))
    assert_served_alike(Arrays(images, np.arange(15)), TorchDataset(tensors), raw=True)


OF_FILES = {
    "simple": simple(32),
    "rand_augment": rand_augment(32).at("flip"),
    "crop_last": rand_augment(32, order="crop_last"),
    "decoded": rand_augment(32).at(1),
    "convnext": convnext(32),
}
TRACED = ("simple",)
"""Of one with nothing to compute but a crop; kernels serve all of them."""


@pytest.mark.parametrize(
    ("recipe", "kernels"),
    [
        pytest.param(recipe, kernels, id=f"{name}-{kernels}", marks=[pytest.mark.weekly] * weekly)
        for name, recipe in OF_FILES.items()
        for kernels in ("numba", "dali")
        for weekly in [kernels == "dali" and name not in TRACED]
    ],
)
def test_pil_images_of_any_sizes_are_served_by_a_preset_for_files_as_the_files_are(
    folder: ImageFolder, recipe: Recipe, kernels: Any
) -> None:
    opened = TorchDataset(Items([(Image.fromarray(image), int(label)) for image, label in folder]))
    planner = Refurbish(len(folder), batch_size=4, reuse_factor=2, seed=7)
    expected, _ = serve(folder, recipe, planner, MemoryStore(), epochs=2, kernels=kernels)
    served, _ = serve(opened, recipe.for_arrays(), planner, MemoryStore(), epochs=2, kernels=kernels)
    assert_same(expected, served)
    assert recipe.for_arrays().for_arrays() == recipe.for_arrays()


ENCODED: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "array": lambda content: np.frombuffer(content, np.uint8),
    "tensor": lambda content: torch.frombuffer(bytearray(content), dtype=torch.uint8),
}

PIXELS: dict[str, Callable[[np.ndarray], Any]] = {
    "PIL": Image.fromarray,
    "array": lambda image: image,
    "reversed array": lambda image: np.flip(np.flip(image, 0).copy(), 0),
    "tensor": lambda image: torch.from_numpy(image.transpose(2, 0, 1).copy()),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_encoded_images_of_any_kind_are_read_byte_for_byte(kind: str) -> None:
    contents = [jpeg(picture(index, height=20, width=30)) for index in range(3)]
    source = TorchDataset(Items(pairs([ENCODED[kind](content) for content in contents])))
    assert source.encoded
    assert [each.tobytes() for each in source.read(np.array([2, 0]))] == [contents[2], contents[0]]
    assert source.labels.tolist() == [0, 10, 20]


@pytest.mark.parametrize("kind", PIXELS)
def test_images_of_any_kind_are_read_pixel_for_pixel(kind: str) -> None:
    source = TorchDataset(Items(pairs([PIXELS[kind](image) for image in IMAGES])))
    assert not source.encoded
    assert source.image_shape is None
    read = source.read(np.array([4, 1]))
    np.testing.assert_array_equal(read, IMAGES[[4, 1]])
    assert all(type(image) is np.ndarray and image.flags.c_contiguous for image in read)


@pytest.mark.parametrize(
    "grey",
    [
        Image.fromarray(IMAGES[0, ..., 0]),
        IMAGES[0, ..., 0],
        IMAGES[0, ..., :1],
        torch.from_numpy(IMAGES[0, ..., 0].copy()),
        torch.from_numpy(IMAGES[0, ..., 0].copy())[None],
    ],
)
def test_grey_images_are_read_as_three_equal_channels(grey: Any) -> None:
    (read,) = TorchDataset(Items([(grey, 0)])).read(np.array([0]))
    np.testing.assert_array_equal(read, np.stack([IMAGES[0, ..., 0]] * 3, axis=2))


@pytest.mark.parametrize("attribute", ["targets", "labels"])
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_labels_come_from_the_dataset_without_reading_all_items(attribute: str, kind: Callable[[Any], Any]) -> None:
    labels = list(range(0, 1000, 10))
    items = Items(pairs([IMAGES[0]] * 100), **{attribute: kind(labels)}, classes=["x", "y"])
    source = TorchDataset(items, thread_safe=True)
    assert source.labels.tolist() == labels
    assert source.classes == ["x", "y"]
    assert len(items.read) <= 20


def test_labels_given_are_taken_and_those_of_items_ignored() -> None:
    items = Items([(image, "whatever") for image in IMAGES], targets=[9] * 5)
    assert TorchDataset(items, labels=range(5), thread_safe=True).labels.tolist() == [0, 1, 2, 3, 4]
    assert len(items.read) <= 3


def test_labels_come_from_items_where_the_dataset_lists_none_or_transforms_them() -> None:
    for items in (Items(pairs(IMAGES)), Items(pairs(IMAGES), targets=[0] * 5, target_transform=len)):
        assert TorchDataset(items).labels.tolist() == [0, 10, 20, 30, 40]
    subset: Subset[Any] = Subset(Items(pairs(IMAGES), targets=[0, 10, 20, 30, 40]), [3, 1])
    assert TorchDataset(subset).labels.tolist() == [30, 10]


def test_labels_of_items_can_have_any_fixed_shape() -> None:
    items = [(image, torch.tensor([1.5, index])) for index, image in enumerate(IMAGES)]
    labels = TorchDataset(Items(items)).labels
    assert labels.dtype == np.float32
    assert labels.tolist() == [[1.5, index] for index in range(5)]


class Stream(IterableDataset[Any]):
    """A dataset without indices."""

    def __iter__(self) -> Iterator[Any]:
        return iter(pairs(IMAGES))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), r"__len__ and __getitem__, but Stream has not both: list\(dataset\)"),
        (Items([]), "at least one item, but Items is empty"),
        (Items([IMAGES[0]]), r"must be \(image, label\), but Items\[0\] is not: must be a pair .* is ndarray: pick"),
        (Items([(IMAGES[0], 1, 2)]), "is tuple of 3: pick the two in a dataset around it"),
        (Items([{"image": IMAGES[0], "label": 1}]), "is dict of 2: pick"),
        (Items([("a.jpg", 1)]), r"Items\[0\] is not: an image must be .* but is str: return Path\(path\).read_bytes"),
        (
            Items([(IMAGES[0] / 255, 1)]),
            "is not: an image must be uint8 from 0 to 255, or uint16, but is float64: remove ToTensor",
        ),
        (Items([(torch.rand(3, 6, 7), 1)]), "but is float32: remove ToTensor"),
        (Items([(IMAGES[0].transpose(2, 0, 1), 1)]), r"have shape \(height, width, 3\), .* but has \(3, 6, 7\): conv"),
        (Items([(torch.from_numpy(IMAGES[0]), 1)]), r"have shape \(3, height, width\), .* but has \(7, 3, 6\): conv"),
        (
            Items([(np.zeros(5, np.uint16), 1)]),
            r"have shape .*, or be encoded, but has \(5,\): convert",
        ),
        (Items([lambda: 1 / 0]), r"Items\[0\] is not: cannot be read: ZeroDivisionError: division by zero"),
        (
            Items([lambda: (np.random.default_rng().integers(0, 256, (6, 7, 3), np.uint8), 0)]),
            r"the same whenever it is read, but Items\[0\] differs .*: leave random transforms to the recipe",
        ),
        (
            Items(pairs(IMAGES), targets=[1] * 5),
            r"dataset.targets must .* Items\[0\] is labelled 0 and targets\[0\] is 1",
        ),
        (Items(pairs(IMAGES), targets=[0] * 4), "one label per sample, but there are 4 for 5 items"),
        (Items([(IMAGES[0], None)]), r"must have a label, but Items\[0\] has none"),
        (Items([(IMAGES[0], 1j)]), "labels must be numbers, or one name each, but are complex128"),
    ],
)
def test_a_dataset_of_another_kind_is_refused_with_a_remedy(dataset: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TorchDataset(dataset)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (b"encoded", IMAGES[0], r"encoded or none, but this is an array and Items\[0\] is encoded: convert it"),
        (IMAGES[0], b"encoded", r"encoded or none, but this is encoded and Items\[0\] is an array: convert it"),
        (b"encoded", b"", "is empty"),
        (IMAGES[0], IMAGES[0] / 2, "an image must be uint8 from 0 to 255, or uint16, but is float64"),
        (IMAGES[0], None, "an image must be .* but is NoneType"),
    ],
)
def test_an_item_that_differs_from_the_first_names_its_index(first: Any, second: Any, message: str) -> None:
    source = TorchDataset(Items(pairs([first, second])))
    with pytest.raises(SampleError, match=rf"sample 1 \(Items\[1\]\): .*{message}"):
        source.read(np.array([0, 1]))


def test_an_item_that_cannot_be_read_names_its_index() -> None:
    items = Items([(b"encoded", 0), lambda: {}["key"]])
    source = TorchDataset(items, labels=[0, 1])
    with pytest.raises(SampleError, match=r"sample 1 \(Items\[1\]\): cannot be read: KeyError: 'key'") as caught:
        source.read(np.array([1]))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SampleError, match=r"sample 1 .*cannot be read: .* unless you pass labels=") as caught:
        TorchDataset(items)
    assert isinstance(caught.value.__cause__, KeyError)


# ---- labels that a dataset lists


class Forwarding:
    """A part of a dataset, in another order, that has all attributes of the whole."""

    def __init__(self, whole: Any, indices: Sequence[int]) -> None:
        self.whole, self.indices = whole, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.whole[self.indices[index]]

    def __getattr__(self, name: str) -> Any:
        return (
            getattr(self.__dict__["whole"], name) if "whole" in self.__dict__ else object.__getattribute__(self, name)
        )


def listed() -> Any:
    labels = [index // 3 for index in range(30)]
    return Items([(IMAGES[0], label) for label in labels], targets=labels)


@pytest.mark.parametrize("wrong", [range(10, 30), range(20), range(29, 30), range(1, 28, 2)], ids=str)
def test_labels_that_are_not_those_of_the_items_are_refused_with_both(wrong: range) -> None:
    dataset = listed()
    for index in wrong:
        dataset.targets[index] += 1
    with pytest.raises(
        ConfigurationError, match=r"must hold the labels of the items, but Items\[\d+\] is .* and targets"
    ):
        TorchDataset(dataset)
    assert TorchDataset(dataset, labels=dataset.targets).labels.tolist() == dataset.targets
    of_items = [dataset[index][1] for index in range(30)]
    assert TorchDataset(dataset, labels=of_items).labels.tolist() == [index // 3 for index in range(30)]


def test_labels_that_are_those_of_another_dataset_are_refused_with_the_remedy() -> None:
    whole = listed()
    with pytest.raises(ConfigurationError, match=r"\[1\] is labelled 9 and targets\[1\] is 0: pass labels=\[dataset"):
        TorchDataset(Forwarding(whole, [0, *range(29, 0, -1)]))
    with pytest.raises(
        ConfigurationError, match=r"there are 30 for 12 items in dataset.targets: pass labels=.*in range\(12\)"
    ):
        TorchDataset(Forwarding(whole, range(12)))
    kept = Forwarding(whole, range(30))
    assert TorchDataset(kept).labels.tolist() == whole.targets


def test_labels_are_compared_with_items_from_the_first_to_the_last_but_with_few_of_them() -> None:
    items = Items([(IMAGES[0], index) for index in range(1000)], targets=range(1000))
    TorchDataset(items, thread_safe=True)
    assert {0, 999} <= set(items.read)
    assert np.diff(sorted(set(items.read))).max() < 70
    assert len(items.read) < 20


def test_labels_of_floats_are_compared_as_exactly_as_the_less_exact_ones_are_kept() -> None:
    scores = [index / 7 for index in range(6)] + [float("nan")]
    items = [(IMAGES[0], torch.tensor(score)) for score in scores]
    np.testing.assert_array_equal(TorchDataset(Items(items, targets=scores)).labels, scores)
    with pytest.raises(ConfigurationError, match=r"targets\[5\] is 0.71429"):
        TorchDataset(Items(items, targets=[*scores[:5], 0.71429, float("nan")]))


def test_an_item_that_cannot_be_read_is_not_compared() -> None:
    items = Items([*pairs(IMAGES)[:2], lambda: {}["key"]], targets=[0, 10, 20])
    assert TorchDataset(items).labels.tolist() == [0, 10, 20]


def test_labels_stay_those_that_the_dataset_had() -> None:
    targets = np.array([0, 10, 20, 30, 40])
    source = TorchDataset(Items(pairs(IMAGES), targets=targets))
    targets[:] = 7
    assert source.labels.tolist() == [0, 10, 20, 30, 40]


# ---- threads

MANY = np.random.default_rng(1).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
NUMBERS = list(range(len(MANY)))
inside: list[int] = []
most_inside: list[int] = []


class OfOneThread(Dataset[Any]):
    """Images in one file. Two threads in one of these at a time disturb each other. `targets` spares reading all."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(MANY.tobytes())
        self.path, self.targets = path, NUMBERS

    def __len__(self) -> int:
        return len(MANY)

    def __getitem__(self, index: int) -> Any:
        inside.append(index)
        most_inside.append(len(inside))
        try:
            return self.image(index), index
        finally:
            inside.remove(index)

    def image(self, index: int) -> Any:
        raise NotImplementedError

    def read_from(self, file: Any, index: int) -> Any:
        file.seek(index * MANY[0].nbytes)
        time.sleep(0.0005)
        return np.frombuffer(file.read(MANY[0].nbytes), np.uint8).reshape(MANY[0].shape)


class Closing(io.FileIO):
    """A file that is closed with the last who has it."""

    def __del__(self) -> None:
        self.close()


class OpenFile(OfOneThread):
    """It is opened at once, so that it cannot be pickled."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file = Closing(path)

    def image(self, index: int) -> Any:
        return self.read_from(self.file, index)


class OpenedLater(OfOneThread):
    """It is opened when it is first read, so that it can be pickled until then."""

    file: Any = None

    def image(self, index: int) -> Any:
        if self.file is None:
            self.file = Closing(self.path)
        return self.read_from(self.file, index)


class OfItsThread(OpenedLater):
    """As a connection to SQLite, it serves the thread alone that has opened it."""

    owner: int | None = None

    def image(self, index: int) -> Any:
        self.owner = self.owner or threading.get_ident()
        assert self.owner == threading.get_ident()
        return super().image(index)


class Workspace(OfOneThread):
    """Each image passes through the same memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.workspace = np.empty(MANY.shape[1:], np.uint8)

    def image(self, index: int) -> Any:
        self.workspace[:] = MANY[index]
        time.sleep(0.0005)
        return self.workspace.copy()


class Remembering(OfOneThread):
    """It remembers which image it has at hand."""

    at_hand = (0, MANY[0])

    def image(self, index: int) -> Any:
        if self.at_hand[0] != index:
            self.at_hand = (index, self.at_hand[1])
            time.sleep(0.0005)
            self.at_hand = (index, MANY[index])
        return self.at_hand[1]


class Lazily(OpenFile):
    """Its images are read when they are converted, as Pillow does."""

    def image(self, index: int) -> Any:
        return LazyImage(self, index)


class LazyImage:
    """What is asked of a PIL image."""

    mode = "RGB"

    def __init__(self, dataset: OpenFile, index: int) -> None:
        self.dataset, self.index = dataset, index
        self.info: dict[str, Any] = {}

    def getbands(self) -> tuple[str, ...]:
        return ("R", "G", "B")

    def convert(self, mode: str) -> Any:
        return Image.fromarray(self.dataset.read_from(self.dataset.file, self.index))


class PickledWithoutItsFile(OpenFile):
    """Its copies fail at every item."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "file"}


class PickledWithoutItsOrder(Remembering):
    """Its copies give other images."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.order = list(NUMBERS)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "order": NUMBERS[::-1]}

    def image(self, index: int) -> Any:
        return super().image(self.order[index])


class CopiedOnce(Remembering):
    """Only its first copy can be made."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("too many open files")
        vars(self).update(state)


class Large(Remembering):
    """It takes more memory than is copied."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rest = np.zeros(MOST_BYTES + 1, np.uint8)


class LargeTensor(Remembering):
    """Of a large tensor it has a small part."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.part = torch.empty(MOST_BYTES + 1, dtype=torch.uint8)[:3]


class LargeInAll(Remembering):
    """No part of it is large."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.parts = [bytes([part]) * (MOST_BYTES // 5 * 2) for part in range(3)]


COPIED = [OpenedLater, OfItsThread, Workspace, Remembering]
IN_TURNS = [
    *(OpenFile, Lazily, PickledWithoutItsFile, PickledWithoutItsOrder, CopiedOnce),
    *(Large, LargeTensor, LargeInAll),
]


def by_four_threads(read: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))


def read_by_threads(source: Source) -> int:
    """Read all images by four threads, which must be the right ones; return how many threads were inside at once."""
    most_inside.clear()
    together = threading.Barrier(4)

    def read(number: int) -> None:
        together.wait(600)
        order = np.random.default_rng(number).permutation(len(MANY))
        np.testing.assert_array_equal(source.read(order), MANY[order])

    by_four_threads(read)
    return max(most_inside)


@pytest.mark.parametrize("kind", [*COPIED, *IN_TURNS])
def test_a_dataset_made_for_one_thread_gives_several_threads_the_right_images(
    kind: type[OfOneThread], tmp_path: Path
) -> None:
    source = TorchDataset(kind(tmp_path / "images"))
    assert source.labels.tolist() == NUMBERS
    most = read_by_threads(source)
    assert kind in COPIED or most == 1


class Meeting(OfOneThread):
    """It gives nothing to any of four threads before all of them ask."""

    arrived = threading.Barrier(4)

    def image(self, index: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            self.arrived.wait(600)
        return MANY[index]


@pytest.mark.parametrize("thread_safe", [False, True])
def test_copies_and_datasets_that_are_thread_safe_are_read_by_several_threads_at_once(
    thread_safe: bool, tmp_path: Path
) -> None:
    assert read_by_threads(TorchDataset(Meeting(tmp_path / "images"), thread_safe=thread_safe)) == 4


def test_datasets_that_have_an_open_file_in_common_are_read_one_at_a_time(tmp_path: Path) -> None:
    whole = OpenFile(tmp_path / "images")
    parts = [range(0, 40, 2), range(1, 40, 2)]
    sources = [TorchDataset(Subset(whole, part)) for part in parts]
    most_inside.clear()

    def read(number: int) -> None:
        np.testing.assert_array_equal(sources[number % 2].read(np.arange(20)), MANY[parts[number % 2]])

    by_four_threads(read)
    assert max(most_inside) == 1


def in_child(check: Callable[[], bool]) -> bool:
    """Check something in a forked process, which is killed after a minute."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_process_reads_though_a_thread_of_its_parent_has_its_turn(tmp_path: Path) -> None:
    source = TorchDataset(OpenFile(tmp_path / "images"))
    begun, ended = threading.Event(), threading.Event()

    class Waiting(OfOneThread):
        def image(self, index: int) -> Any:
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                ended.wait(600)
            return MANY[index]

    waiting = TorchDataset(Waiting(tmp_path / "others"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(waiting.read, np.arange(1))
        assert begun.wait(600)
        try:
            assert in_child(lambda: np.array_equal(source.read(np.arange(3)), MANY[:3]))
        finally:
            ended.set()


def test_a_forked_process_reads_a_copy_of_its_own(tmp_path: Path) -> None:
    source = TorchDataset(OpenedLater(tmp_path / "images"))
    own = source._items._own.dataset.file
    own.seek(7)
    assert in_child(lambda: np.array_equal(source.read(np.arange(3)), MANY[:3]))
    assert own.tell() == 7


@pytest.mark.parametrize("kind", [OpenedLater, OpenFile])
def test_a_loader_serves_a_dataset_made_for_one_thread_as_an_array_of_its_images(
    kind: type[OfOneThread], tmp_path: Path
) -> None:
    assert_served_alike(Arrays(MANY, NUMBERS), TorchDataset(kind(tmp_path / "images")), size=8, raw=True)


def test_what_is_changed_in_a_dataset_later_is_not_seen_where_it_is_copied(tmp_path: Path) -> None:
    dataset = OpenedLater(tmp_path / "images")
    source = TorchDataset(dataset)
    before = source.fingerprint()
    dataset.read_from = lambda file, index: MANY[0]  # type: ignore[method-assign]
    read_by_threads(source)
    assert source.fingerprint() == before


def test_a_source_goes_to_another_process_though_its_dataset_has_opened_a_file(tmp_path: Path) -> None:
    dataset = OpenedLater(tmp_path / "images")
    source = TorchDataset(dataset)
    assert dataset.file is not None
    sent = pickle.loads(pickle.dumps(source))
    assert sent.fingerprint() == source.fingerprint()
    read_by_threads(sent)


class Drawn(OfOneThread):
    """Images are random, of a seed that it keeps."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.rng = np.random.default_rng(0)

    def image(self, index: int) -> Any:
        return self.rng.integers(0, 256, MANY.shape[1:], np.uint8)


def test_items_drawn_from_a_seed_that_the_dataset_keeps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="leave random transforms to the recipe"):
        TorchDataset(Drawn(tmp_path / "images"))


def test_an_item_that_cannot_be_read_has_a_place_in_the_fingerprint() -> None:
    items = [*pairs(IMAGES)[:2], lambda: {}["key"]]
    assert TorchDataset(Items(items), labels=range(3)).fingerprint()["images"][2] is None


def test_a_fingerprint_is_json_and_changes_with_images_labels_and_order() -> None:
    other = IMAGES.copy()
    other[2, 0, 0, 0] ^= 1
    variants = [IMAGES, other, IMAGES[::-1]]
    sources = [TorchDataset(Items(pairs(images))) for images in variants]
    sources += [TorchDataset(Items(pairs(IMAGES)), labels=range(5))]
    prints = [json.dumps(source.fingerprint()) for source in sources]
    assert len(set(prints)) == len(prints)
    assert TorchDataset(Items(pairs(IMAGES.copy()))).fingerprint() == json.loads(prints[0])


@pytest.fixture(scope="module")
def hugging_face() -> Any:
    return pytest.importorskip("datasets", reason="the package datasets, of Hugging Face, is not installed")


def table(hugging_face: Any, images: list[Any]) -> Any:
    """A dataset of images in bytes or in files, labelled by their numbers."""
    features = hugging_face.Features({"image": hugging_face.Image(), "label": hugging_face.Value("int64")})
    images = [{"bytes": image, "path": None} if isinstance(image, bytes) else image for image in images]
    return hugging_face.Dataset.from_dict({"image": images, "label": range(len(images))}, features=features)


@pytest.fixture
def pets(hugging_face: Any, tmp_path: Path) -> Any:
    """Images in bytes, in files and of another format, with labels of several kinds."""
    Image.fromarray(IMAGES[1]).save(tmp_path / "1.png")
    columns = {
        "image": [
            {"bytes": jpeg(Image.fromarray(IMAGES[0])), "path": None},
            {"bytes": None, "path": str(tmp_path / "1.png")},
            {"bytes": encode(Image.fromarray(IMAGES[2]), "BMP"), "path": "2.bmp"},
        ],
        "label": [1, 0, 1],
        "name": ["dog", "cat", "dog"],
        "scores": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]],
    }
    names = hugging_face.ClassLabel(names=["no", "yes"])
    scores = hugging_face.Sequence(hugging_face.Value("float32"))
    features = {"image": hugging_face.Image(), "label": names, "name": hugging_face.Value("string"), "scores": scores}
    return hugging_face.Dataset.from_dict(columns, features=hugging_face.Features(features))


def test_hugging_face_images_are_read_as_stored_whatever_the_format(pets: Any, tmp_path: Path) -> None:
    first, _, third = (Image.fromarray(image) for image in IMAGES[:3])
    expected = [jpeg(first), (tmp_path / "1.png").read_bytes(), encode(third, "BMP")]
    for dataset in (pets, pets.with_format("numpy"), pets.with_transform(lambda rows: {"image": [None] * 3})):
        source = HuggingFaceImages(dataset)
        read = source.read(np.array([2, 1, 0, 2]))
        assert [each.tobytes() for each in read] == [expected[index] for index in (2, 1, 0, 2)]
        assert source.read(np.array([], np.int64)) == []
        assert source.labels.tolist() == [1, 0, 1]
        assert source.classes == ["no", "yes"]
        assert (source.encoded, source.name(2)) == (True, "dataset[2]['image']")


def test_hugging_face_labels_can_be_names_or_lists(pets: Any) -> None:
    named = HuggingFaceImages(pets, label="name")
    assert (named.labels.tolist(), named.classes) == ([1, 0, 1], ["cat", "dog"])
    assert HuggingFaceImages(pets, label="scores").labels.tolist() == [[0.5, 1], [2, 3], [4, 5]]


def test_hugging_face_images_are_served_as_a_folder_of_the_same_images(hugging_face: Any, folder: ImageFolder) -> None:
    dataset = table(hugging_face, [each.tobytes() for each in folder.read(np.arange(15))])
    dataset = dataset.rename_column("image", "photo").add_column("kind", folder.labels)
    assert_served_alike(folder, HuggingFaceImages(dataset, image="photo", label="kind"))


def test_hugging_face_images_are_read_by_several_threads_at_once(hugging_face: Any, tmp_path: Path) -> None:
    contents = [bytes([number]) * (number + 1) for number in range(200)]
    table(hugging_face, contents).save_to_disk(tmp_path, num_shards=3)
    order = np.random.default_rng(0).permutation(200)
    source = HuggingFaceImages(hugging_face.load_from_disk(tmp_path).select(order.tolist()))

    def read(number: int) -> None:
        for _ in range(20):
            rows = np.random.default_rng(number).integers(0, 200, 16)
            assert [each.tobytes() for each in source.read(rows)] == [contents[order[row]] for row in rows]

    by_four_threads(read)


def test_a_hugging_face_fingerprint_is_json_and_changes_with_the_dataset_and_columns(pets: Any) -> None:
    sources = [HuggingFaceImages(pets), HuggingFaceImages(pets.select([1, 0])), HuggingFaceImages(pets, label="scores")]
    prints = [json.dumps(source.fingerprint()) for source in sources]
    assert len(set(prints)) == 3
    assert HuggingFaceImages(pets).fingerprint() == json.loads(prints[0])


def test_a_hugging_face_fingerprint_is_what_it_was(hugging_face: Any) -> None:
    """Else states and stores of before are refused."""
    made = HuggingFaceImages(table(hugging_face, [b"%d" % number for number in range(20)])).fingerprint()
    images = "".join(made.pop("images")).encode()
    assert (len(images), hashlib.sha256(images).hexdigest()[:16]) == (16 * 32, "923f49d2e7a1a5fd")
    assert made == {
        "source": "HuggingFaceImages",
        "num_samples": 20,
        "names": "ee7335b5850604efcafe56b78bbf8d73",
        "labels": "605153c0ea24bb0a483c0719d100b189",
        "column": "image",
    }


def test_the_same_rows_are_the_same_source_wherever_their_table_lies(
    hugging_face: Any, pets: Any, tmp_path: Path
) -> None:
    """A state goes on after rows have been saved, divided, or written as Parquet; files that they name are embedded."""
    expected = HuggingFaceImages(pets)
    pets.save_to_disk(tmp_path / "saved")
    saved = hugging_face.load_from_disk(tmp_path / "saved")
    saved.save_to_disk(tmp_path / "divided", num_shards=3)
    pets.to_parquet(tmp_path / "pets.parquet")
    others = [
        saved,
        hugging_face.load_from_disk(tmp_path / "divided"),
        hugging_face.Dataset.from_parquet(str(tmp_path / "pets.parquet"), cache_dir=str(tmp_path / "cache")),
        pets.select([2, 1, 0]).select([2, 1, 0]),
        pets.add_column("weight", [1, 2, 3]),
    ]
    assert len({pets._fingerprint, *(each._fingerprint for each in others)}) > 1
    planner = Refurbish(3, batch_size=1, reuse_factor=1)
    with Loader(expected, simple(16), planner) as loader:
        next(iter(loader))
        state, rest = loader.state_dict(), [labels.tolist() for _, labels in loader]
    for dataset in others:
        source = HuggingFaceImages(dataset)
        assert source.fingerprint() == expected.fingerprint()
        with Loader(source, simple(16), planner) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert loader.state_dict()["batch"] == 1
    assert len(rest) == 3


def test_other_rows_names_or_images_are_another_hugging_face_source(hugging_face: Any, tmp_path: Path) -> None:
    def source(contents: Sequence[bytes], names: Sequence[str | None]) -> HuggingFaceImages:
        images = [{"bytes": content, "path": name} for content, name in zip(contents, names, strict=True)]
        features = hugging_face.Features({"image": hugging_face.Image(), "label": hugging_face.Value("int64")})
        columns = {"image": images, "label": [0] * len(images)}
        return HuggingFaceImages(hugging_face.Dataset.from_dict(columns, features=features))

    one = source([b"a", b"b", b"c"], ["x/1", None, "3"])
    assert source([b"a", b"b", b"c"], ["y/1", None, "3"]).fingerprint() == one.fingerprint()
    for other in (
        source([b"a", b"B", b"c"], ["x/1", None, "3"]),
        source([b"a", b"b", b"c"], ["x/2", None, "3"]),
        source([b"a", b"c", b"b"], ["x/1", None, "3"]),
        source([b"a", b"b"], ["x/1", None]),
    ):
        assert other.fingerprint() != one.fingerprint()
    bad = source([b"a", b"", b"c"], ["x/1", None, "3"]).fingerprint()
    assert bad["images"][1] is None


def test_hugging_face_rows_that_name_files_in_archives_are_read_as_datasets_does(
    hugging_face: Any, pets: Any, tmp_path: Path
) -> None:
    contents = [jpeg(Image.fromarray(image)) for image in IMAGES[:3]]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for number, content in enumerate(contents):
            archive.writestr(f"deep/{number}.jpg", content)
    (tmp_path / "3.jpg").write_bytes(contents[0])
    addresses = [f"zip://deep/{number}.jpg::{tmp_path}/all.zip" for number in range(3)] + [f"file://{tmp_path}/3.jpg"]
    dataset = table(hugging_face, addresses)
    source = HuggingFaceImages(dataset)
    assert [each.tobytes() for each in source.read(np.array([2, 0, 3, 1]))] == [contents[row] for row in (2, 0, 0, 1)]
    np.testing.assert_array_equal(dataset[1]["image"], Image.open(io.BytesIO(contents[1])))

    def read(number: int) -> None:
        for _ in range(20):
            assert [each.tobytes() for each in source.read(np.array([number % 3, 1]))] == [
                contents[number % 3],
                contents[1],
            ]

    by_four_threads(read)
    before = source.content()
    assert before["bytes"] == 3 * (tmp_path / "all.zip").stat().st_size + len(contents[0])
    (tmp_path / "all.zip").write_bytes((tmp_path / "all.zip").read_bytes())
    assert source.content() != before


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("zip://none.jpg::{root}/all.zip", SampleError, "sample 0 .zip://none.jpg.*cannot be read: "),
        ("zip://empty.jpg::{root}/all.zip", SampleError, "sample 0 .zip://empty.jpg.*is empty"),
        ("zip://a.jpg::{root}/none.zip", SampleError, "sample 0 .*cannot be read: FileNotFoundError"),
        ("absentfs://a.jpg", ConfigurationError, "absentfs://a.jpg"),
    ],
)
def test_an_address_that_cannot_be_read_is_named(
    hugging_face: Any, address: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("empty.jpg", b"")
    source = HuggingFaceImages(table(hugging_face, [address.format(root=tmp_path)]))
    with pytest.raises(error, match=message):
        source.read(np.array([0]))


def test_a_hugging_face_row_without_an_image_names_itself(hugging_face: Any, tmp_path: Path) -> None:
    (tmp_path / "there.jpg").touch()  # An empty folder may be a disk that is away.
    rows = [None, {"bytes": None, "path": str(tmp_path / "gone.jpg")}, {"bytes": b"", "path": None}]
    source = HuggingFaceImages(table(hugging_face, rows))
    for index, reason in enumerate(["has no image", "cannot be read: No such file", "has no image"]):
        with pytest.raises(SampleError, match=reason) as caught:
            source.read(np.array([index]))
        assert caught.value.index == index


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda pets, _: {"train": pets, "test": pets},
            {},
            r"one split, but is all of \['test', 'train'\]: pass dataset",
        ),
        (lambda pets, _: pets.to_iterable_dataset(), {}, "datasets.Dataset, but is IterableDataset: .*streaming=True"),
        (lambda pets, _: [1, 2], {}, "datasets.Dataset, but is list"),
        (lambda pets, _: pets, {"image": "img"}, "a column 'img', but has image, label, name, scores: name others by"),
        (lambda pets, _: pets, {"label": "fine"}, "a column 'fine', but has image"),
        (lambda pets, _: pets, {"image": "name"}, r"'name' must hold images, but holds Value: .*cast_column"),
        (lambda pets, _: pets.select([]), {}, "at least one sample, but rows is empty"),
        (
            lambda pets, hf: pets.map(lambda row: {"name": ""}),
            {"label": "name"},
            r"but dataset\[0\]\['name'\] has none: write",
        ),
        (
            lambda pets, hf: pets.cast_column("image", hf.Image(mode="L")),
            {},
            r"in colour, but column 'image' is Image\(mode='L'\), .*: cast_column it to datasets.Image.*channels=1",
        ),
        (
            lambda pets, _: pets,
            {"label": "image"},
            "column 'image' must hold labels of whole images, but holds images:",
        ),
    ],
)
def test_a_hugging_face_dataset_of_another_kind_is_refused_with_a_remedy(
    hugging_face: Any, pets: Any, change: Callable[[Any, Any], Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HuggingFaceImages(change(pets, hugging_face), **options)
