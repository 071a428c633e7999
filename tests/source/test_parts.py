"""Some samples of a source, and several sources together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    Concat,
    Evaluate,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Recipe,
    Refurbish,
    evaluate,
    simple,
)
from dalirefurb.augment import HorizontalFlip
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import Source, TorchDataset, Volumes
from dalirefurb.source.contract import renumbered
from tests.pictures import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), num_samples=12, classes=3))


def arrays(count: int, first: int = 0) -> Arrays:
    images = np.arange(first, first + count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    return Arrays(images, np.arange(first, first + count))


def read(source: Source, indices: Any) -> list[bytes]:
    return [np.asarray(sample).tobytes() for sample in source.read(np.array(indices))]


def test_a_subset_has_the_samples_that_were_named_in_their_order(folder: ImageFolder) -> None:
    some = folder.subset([7, 0, 7, 3])
    assert len(some) == 4
    assert read(some, [3, 0, 2]) == read(folder, [3, 7, 7])
    assert some.labels.tolist() == folder.labels[[7, 0, 7, 3]].tolist()
    assert [some.name(index) for index in range(4)] == [folder.name(index) for index in (7, 0, 7, 3)]
    assert (some.classes, some.encoded, some.image_shape) == (folder.classes, True, None)
    assert some.content() == folder.content()


def test_a_mask_chooses_too(folder: ImageFolder) -> None:
    some = folder.subset(folder.labels == 1)
    assert set(some.labels.tolist()) == {1}
    assert len(some) == int((folder.labels == 1).sum())


def test_other_samples_or_another_order_are_another_source(folder: ImageFolder) -> None:
    prints = [folder.subset(indices).fingerprint() for indices in ([0, 1], [1, 0], [0, 2])]
    assert prints[0] == folder.subset(np.array([0, 1], np.int32)).fingerprint()
    assert prints[0] != prints[1] != prints[2] != prints[0]


def test_several_sources_are_read_one_after_the_other() -> None:
    both = Concat([arrays(3), arrays(4, first=3)])
    assert len(both) == 7
    assert both.image_shape == (8, 8, 3)
    assert read(both, [6, 0, 3, 2]) == read(arrays(7), [6, 0, 3, 2])
    assert both.labels.tolist() == list(range(7))
    assert (both.name(2), both.name(3)) == ("images[2]", "images[0]")
    assert both.fingerprint() != Concat([arrays(4), arrays(3, first=4)]).fingerprint()
    assert both.content() == {"of": [arrays(3).content(), arrays(4, first=3).content()]}


def test_sources_of_several_sizes_and_of_untold_contents_are_put_together() -> None:
    one, other, untold = (
        arrays(2),
        Arrays(np.ones((1, 5, 6, 3), np.uint8), [7]),
        TorchDataset([(np.ones((4, 4, 3), np.uint8), 0)]),
    )
    both = Concat([one, other, untold])
    assert both.image_shape is None
    assert [both[index][0].shape for index in (1, 2, 3)] == [(8, 8, 3), (5, 6, 3), (4, 4, 3)]
    assert both.content() == {"of": [one.content(), other.content(), {}]}
    assert (untold + untold).content() == {}
    one.categories = other.categories = {3: "cat"}
    assert (one + other).categories == {3: "cat"}


class Picky(Arrays):
    """Refuses the samples of even indices."""

    def refusal(self, indices: Any, heights: Any, widths: Any) -> tuple[int, str] | None:
        rows = np.flatnonzero(indices % 2 == 0)
        return (int(rows[0]), f"{indices[rows[0]]}: {heights[rows[0]]} x {widths[rows[0]]}") if len(rows) else None


def test_what_one_of_several_sources_refuses_is_the_row_of_the_whole() -> None:
    both = Concat([arrays(3), Picky(np.zeros((3, 8, 8, 3), np.uint8), np.zeros(3))])
    heights, widths = np.array([4, 5, 6, 7]), np.array([14, 15, 16, 17])
    assert both.refusal(np.array([4, 0, 5, 3]), heights, widths) == (2, "2: 6 x 16")
    assert both.subset([3, 0, 4, 5]).refusal(np.array([2, 1, 3, 0]), heights, widths) == (2, "2: 6 x 16")
    assert both.refusal(np.array([0, 4, 2]), heights[:3], widths[:3]) is None


def test_sources_can_be_added(folder: ImageFolder) -> None:
    first, rest = folder.subset([2, 0]), folder.subset([1])
    together = first + rest
    assert together.fingerprint() == Concat([first, rest]).fingerprint()
    assert together.labels.tolist() == folder.labels[[2, 0, 1]].tolist()
    for other in (1, "a.jpg", None):
        with pytest.raises(ConfigurationError, match="what is put together must be sources, but number 1 is a"):
            first + other  # type: ignore[operator]


def test_sources_of_decoded_images_and_of_files_are_put_together_as_the_error_says(folder: ImageFolder) -> None:
    arrays = TorchDataset(folder.subset([1]))
    with pytest.raises(ConfigurationError, match=r"TorchDataset\(source\) is one with decoded images"):
        arrays + folder
    both = arrays + TorchDataset(folder)
    np.testing.assert_array_equal(both[0][0], folder[1][0])
    np.testing.assert_array_equal(both[1][0], folder[0][0])


def test_each_repeat_is_a_sample_with_versions_of_its_own() -> None:
    """As oversampling needs it: two views of one image in an epoch are drawn apart, and both are cached."""
    recipe = Recipe([HorizontalFlip(name="partial"), HorizontalFlip(name="final")], Output(8), split=1)
    images = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
    source = Arrays(images, np.zeros(1)).subset([0] * 32)
    planner = Refurbish(32, batch_size=8, reuse_factor=2)
    with MemoryStore() as store, Loader(source, recipe, planner, store) as loader:
        served = torch.cat([images for _ in range(4) for images, _ in loader])
        stats = loader.stats()
    assert len(torch.unique(served, dim=0)) == 2
    assert stats.recomputed == 0
    assert stats.hits > 0


def test_stamps_are_those_of_the_sources_that_have_the_samples(folder: ImageFolder) -> None:
    """Bit for bit: a number of 64 bits each."""
    both, own = Concat([folder.subset([7, 2]), folder]), folder.stamps(np.arange(12))
    stamps = both.stamps(np.array([3, 0, 13, 1]))
    assert own is not None
    assert stamps is not None
    assert (stamps.dtype, stamps.tolist()) == (np.uint64, own[[1, 7, 11, 2]].tolist())
    assert Concat([arrays(2)]).stamps(np.arange(2)) is None


def test_a_bad_sample_that_was_not_asked_for_keeps_its_index() -> None:
    error = renumbered(SampleError(7, "there", "is broken"), np.array([5, 3]), np.array([0, 1]))
    assert (error.index, error.name, error.reason) == (7, "there", "is broken")
    error = renumbered(SampleError(3, "there", "is broken", lasting=True), np.array([5, 3]), np.array([0, 1]))
    assert (error.index, error.lasting) == (1, True)  # so that a quarantine takes it


@pytest.mark.parametrize("outer", ["subset", "concat"])
def test_a_bad_file_is_named_by_the_index_that_the_loader_knows(
    folder: ImageFolder, outer: str, tmp_path: Path
) -> None:
    (tmp_path / "other.jpg").touch()
    missing = FileList([folder.name(0), str(tmp_path / "gone.jpg"), folder.name(1)], folder.labels[:3])
    source = missing.subset([2, 0, 1]) if outer == "subset" else Concat([missing.subset([0, 2]), missing.subset([1])])
    with pytest.raises(SampleError, match=r"sample 2 \(.*gone\.jpg\): cannot be read") as caught:
        source.read(np.arange(3))
    assert caught.value.index == 2
    policy, planner = BadSamplePolicy("replace"), Refurbish(3, batch_size=3, reuse_factor=2)
    with Loader(source, simple(32), planner, MemoryStore(), bad_samples=policy, with_indices=True) as loader:
        for _ in range(2):
            for _, _, indices in loader:
                assert 2 not in indices.tolist()
        assert [sample.index for sample in loader.bad_samples()] == [2]


def test_a_part_held_out_is_evaluated_beside_the_part_that_is_trained_on(folder: ImageFolder) -> None:
    held_out = np.arange(12) % 4 == 0
    planner = Evaluate(3, batch_size=2)
    with Loader(folder.subset(held_out), evaluate(32), planner, MemoryStore()) as loader:
        labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == folder.labels[held_out].tolist()


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "a subset's indices must be at least one integer, .* got float64 of shape"),
        ([0.5], "got float64 of shape .1,.: pass such as np.arange"),
        ([[0, 1]], "got int64 of shape .1, 2."),
        ([True, False], "a mask of 12, got bool of shape .2,."),
        ([12], "indices must lie in 0 .. 11, but lie in 12 .. 12: count from 0"),
        ([-1], "indices must lie in 0 .. 11"),
    ],
)
def test_indices_that_name_no_samples_are_refused(folder: ImageFolder, indices: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        folder.subset(indices)


def test_sources_that_do_not_fit_together_are_refused(folder: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match="must be encoded alike, but number 1 has True and the first one Fa"):
        Concat([arrays(2), folder])
    with pytest.raises(ConfigurationError, match="must have the same classes"):
        Concat([folder, FileList([folder.name(0)], [0])])
    pairs, triples = (Arrays(np.zeros((2, 8, 8, 3), np.uint8), np.zeros((2, size))) for size in (2, 3))
    for one in (arrays(2), pairs):
        with pytest.raises(ConfigurationError, match=r"must have labels of one shape, but number 1 has \(3,\) and the"):
            Concat([one, triples])
    volumes = [np.zeros((2, 2, 2))]
    for other in (arrays(1), TorchDataset([(np.ones((4, 4, 3), np.uint8), 0)]), Volumes(volumes)):
        with pytest.raises(ConfigurationError, match="must be of volumes, all of them with masks or none"):
            Concat([Volumes(volumes, masks=volumes), other])
    with pytest.raises(ConfigurationError, match="there must be a source to put together, got none"):
        Concat([])
    with pytest.raises(ConfigurationError, match=r"sources must be several in a list, got one by itself"):
        Concat(folder)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be sources, but number 1 is a str: pass such as ImageFolder"):
        Concat([folder, "photos"])  # type: ignore[list-item]


def test_integer_labels_of_any_type_stay_integers_together() -> None:
    sources = [Arrays(np.zeros((2, 8, 8, 3), np.uint8), np.arange(2, dtype=dtype)) for dtype in (np.uint64, np.int64)]
    both = Concat(each for each in sources)
    assert both.labels.dtype == np.int64
    assert both.labels.tolist() == [0, 1, 0, 1]
