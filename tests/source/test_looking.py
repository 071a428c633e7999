"""source[i]: a decoded image and its label; and sources that are sent to other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import tarfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from dalirefurb import Arrays, Concat, FileList, ImageFolder, Loader, Output, Recipe, Standard, TarShards, TorchDataset
from dalirefurb.augment import Decode, Resize
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import Source
from tests.bad_files import bad_content
from tests.pictures import picture, write_folder

SIZE = 24


def shards_of(folder: ImageFolder, path: Path) -> Path:
    """Write the folder's images and labels into a shard, in order."""
    with tarfile.open(path, "w") as tar:
        for index, label in enumerate(folder.labels.tolist()):
            for ending, content in (("jpg", Path(folder.name(index)).read_bytes()), ("cls", str(label).encode())):
                name = path.parent / "member"
                name.write_bytes(content)
                tar.add(name, f"{index:03d}.{ending}")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), num_samples=9, classes=3))


@pytest.fixture(scope="module")
def sources(folder: ImageFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    images = np.stack([np.asarray(picture(k, height=20, width=30)) for k in range(9)])
    paths = [folder.name(index) for index in range(9)]
    arrays = Arrays(images, folder.labels)
    mapped = tmp_path_factory.mktemp("mapped") / "images.npy"
    np.save(mapped, images)
    return {
        "ImageFolder": folder,
        "FileList": FileList(paths, np.arange(18).reshape(9, 2)),
        "Arrays": arrays,
        "a memory map": Arrays(np.load(mapped, mmap_mode="r"), folder.labels),
        "TarShards": TarShards(shards_of(folder, tmp_path_factory.mktemp("shards") / "a.tar")),
        "TorchDataset": TorchDataset([(image, k) for k, image in enumerate(images)]),
        "Concat": Concat([folder, folder]),
        "Concat of arrays": Concat([arrays, arrays.subset([8, 0])]),
        "Subset": folder.subset([8, 8, 0]),
    }


NAMES = [
    "ImageFolder",
    "FileList",
    "Arrays",
    "a memory map",
    "TarShards",
    "TorchDataset",
    "Concat",
    "Concat of arrays",
    "Subset",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_what_the_loader_would_decode(sources: dict[str, Source], name: str) -> None:
    source = sources[name]
    shown = [source[index] for index in range(len(source))]
    assert all(image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 for image, _ in shown)
    first: list[Any] = [Decode()] if source.encoded else []
    recipe = Recipe([*first, Resize((SIZE, SIZE), "nearest")], Output(SIZE, mean=0, std=1 / 255), 0)
    again = Recipe(recipe.stages[len(first) :], recipe.output, 0)
    pictures = TorchDataset([(image, index) for index, (image, _) in enumerate(shown)])
    with Loader(pictures, again, Standard(len(shown), batch_size=len(shown))) as loader:
        ((resized, places),) = loader
        wanted = dict(zip(places.tolist(), resized.clone(), strict=True))
    seen = set()
    with Loader(source, recipe, Standard(len(source), batch_size=1), with_indices=True) as loader:
        for images, labels, indices in loader:
            (index,) = indices.tolist()
            assert torch.equal(images[0], wanted[index])
            assert np.array_equal(labels[0].numpy(), shown[index][1])
            seen.add(index)
    assert seen == set(wanted)


def test_a_photograph_is_upright(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    image = picture(3, height=16, width=40)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a" / "a.jpg", exif=exif, quality=95)
    shown, label = ImageFolder(tmp_path)[0]
    assert shown.shape == (40, 16, 3)
    assert np.abs(shown.astype(int) - np.rot90(np.asarray(image), -1)).mean() < 8
    assert label == 0
    assert isinstance(label, int)


def test_a_source_is_a_sequence_of_samples(folder: ImageFolder) -> None:
    assert len(list(folder)) == 9
    assert np.array_equal(folder[-1][0], folder[8][0])
    assert np.array_equal(folder[np.int64(2)][0], folder[2][0])
    batches = DataLoader(folder, batch_size=1)  # type: ignore[arg-type]
    assert [int(label) for _, label in batches] == folder.labels.tolist()


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (9, IndexError, r"an index must be in -9\.\.8, got 9: the source has 9 samples"),
        (-10, IndexError, r"in -9\.\.8, got -10"),
        (slice(0, 2), TypeError, r"one int at a time, got slice\(0, 2, None\): source\.subset"),
        ("cat", TypeError, "one int at a time, got 'cat'"),
        (1.0, TypeError, r"one int at a time, got 1\.0"),
    ],
)
def test_what_is_no_index_is_refused(folder: ImageFolder, index: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        folder[index]


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, num_samples=2, classes=1)
    broken = tmp_path / "class_0" / "001.jpg"
    for content in (b"no image", broken.read_bytes()[:400], bad_content("PNG damaged")):
        broken.write_bytes(content)
        with pytest.raises(SampleError, match=r"sample 1 \(.*001\.jpg\): ") as refusal:
            ImageFolder(tmp_path)[1]
        assert refusal.value.index == 1
    assert re.fullmatch(r"decoding failed \(.+; .+\)", refusal.value.reason)  # by DALI, and then by Pillow
    assert ImageFolder(tmp_path)[0][0].ndim == 3
    broken.write_bytes(b"P6\n20000 20000\n255\n")
    with pytest.raises(SampleError, match="100,000,000 pixels at most, but its header declares 20000 x 20000"):
        ImageFolder(tmp_path)[1]


def look(source: Source) -> list[tuple[bytes, Any]]:
    return [(image.tobytes(), np.asarray(label).tolist()) for image, label in source]


@pytest.mark.parametrize("name", NAMES)
def test_a_pickled_source_has_the_same_samples(sources: dict[str, Source], name: str) -> None:
    source = sources[name]
    sent = pickle.loads(pickle.dumps(source))
    assert look(sent) == look(source)
    assert sent.fingerprint() == source.fingerprint()
    assert sent.content() == source.content()


@pytest.mark.parametrize(
    "method", [*(pytest.param(each, marks=pytest.mark.weekly) for each in ("spawn", "forkserver")), "fork"]
)
def test_sources_are_sent_to_spawned_processes_and_used_in_forked_ones(method: str, sources: dict[str, Source]) -> None:
    wanted = [look(source) for source in sources.values()]  # The decoder is in use when processes are forked.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(look, sources.values(), timeout=600)) == wanted


def test_pickled_shards_are_those_that_they_were(folder: ImageFolder, tmp_path: Path) -> None:
    path = shards_of(folder, tmp_path / "a.tar")
    sent = pickle.dumps(TarShards(path))
    assert len(sent) < os.path.getsize(path)  # noqa: PTH202
    path.write_bytes(path.read_bytes())
    os.utime(path, (1, 1))
    with pytest.raises(ConfigurationError, match=r"a\.tar has been written again or is another one here: make the sou"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"every shard must be readable, but .*a\.tar is not"):
        pickle.loads(sent)


def test_images_of_several_arrays_stay_where_they_are(sources: dict[str, Source]) -> None:
    source = sources["Concat of arrays"]
    images = source.read(np.array([0, 9, 8, 10]))
    whole = sources["Arrays"]
    wanted = whole.read(np.array([0, 8, 8, 0]))
    assert images.places.addresses.tolist() == wanted.places.addresses.tolist()  # type: ignore[union-attr]
    assert images.places.sizes.tolist() == [[20, 30]] * 4  # type: ignore[union-attr]
    (of_one,) = {tuple(source.read(np.array([1, 2])).whole[1])}  # type: ignore[union-attr]
    assert of_one == (1, 2)


def test_the_documents_examples_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "photos" / "train", num_samples=101, classes=4)
    for index in range(3, 90, 4):
        (tmp_path / f"photos/train/class_3/{index:03d}.jpg").unlink()
    for folder in (tmp_path / "photos/train").iterdir():
        for k, file in enumerate(sorted(folder.iterdir())):
            for copy in range(2):
                (folder / f"{k}_{copy}.jpg").write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    document = Path(__file__).parents[2] / "docs" / "sources.md"
    looking, arrays, balancing = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    names: dict[str, Any] = {"images": np.zeros((128, 32, 32, 3), np.uint8), "labels": np.arange(128) % 10}
    exec(arrays, names)
    with names["loader"] as loader:
        assert sum(len(labels) for _, labels in loader) == 128
    exec(looking, names)
    assert look(names["together"]) == look(names["source"])
    assert names["name"] == "class_0"
    exec(balancing, names)
    counts, balanced = names["counts"], names["balanced"]
    assert counts.min() < counts.max()
    assert np.bincount(balanced.labels).tolist() == [counts.max()] * 4
    shown: dict[str, list[bytes]] = {}
    with names["loader"] as loader:
        for images, labels in loader:
            for image, label in zip(images, labels.tolist(), strict=True):
                shown.setdefault(label, []).append(image.numpy().tobytes())
    assert [len(images) for images in shown.values()] == [counts.max()] * 4
    assert all(len(set(images)) == len(images) for images in shown.values())  # also of the rare class
