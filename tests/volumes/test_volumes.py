"""Volumes are served as their plan says, voxel by voxel, whatever the store, the split, the threads and the ranks."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("numba")

from dalirefurb import (
    Arrays,
    Attached,
    AutoAssist,
    BadSamplePolicy,
    Broadcast,
    Concat,
    DiskStore,
    Echo,
    Evaluate,
    Loader,
    MemoryStore,
    Output,
    PartialSource,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    Volumes,
    image_batch,
    propose_coverage,
    tune,
)
from dalirefurb.augment import (
    CenterCrop3D,
    HorizontalFlip,
    HostStage,
    IntensityWindow,
    RandomApply,
    RandomCrop3D,
    RandomFlip3D,
    RandomRotate90,
    RandomScaleIntensity,
    RandomShiftIntensity,
    Stage,
    VolumeOutput,
    VolumeStage,
    Voxels,
)
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError, SampleError, StoreError
from dalirefurb.image_batch import pack, unpack
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.source.volumes import VolumeError, foreground_of, volume_of
from dalirefurb.store import DeviceStore
from tests.in_turn import in_turn
from tests.volumes.reference import batch_of, noise, volumes

COUNT, SEED = 10, 5
GIVEN = volumes(COUNT)
STAGES: tuple[Stage, ...] = (
    IntensityWindow(-100, 150),
    RandomCrop3D((13, 12, 11), foreground=0.5, fill=0.25),
    RandomFlip3D((0, 2)),
    HostStage(noise, "noise"),
    RandomScaleIntensity(0.3),
    RandomCrop3D((8, 10, 8), name="final_crop"),
    RandomRotate90(0.7, axes=(0, 2)),
    RandomShiftIntensity(),
)


def recipe_of(split: int | str = "final_crop", *stages: Stage, **output: Any) -> Recipe:
    return Recipe(stages or STAGES, VolumeOutput((8, 10, 8), **output), split)


def source_of(given: Any = GIVEN) -> Volumes:
    return Volumes([image for image, _ in given], [mask for _, mask in given])


def refurbish(**options: Any) -> Refurbish:
    return Refurbish(COUNT, **{"batch_size": 4, "reuse_factor": 2, "seed": SEED, **options})


def served(source: Any, recipe: Recipe, planner: Planner, store: Any = None, epochs: int = 3, **options: Any) -> Any:
    with Loader(source, recipe, planner, store, **options) as loader:
        return [copy.deepcopy(batch) for _ in range(epochs) for batch in loader]


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for batch, wanted in zip(one, other, strict=True)
        for a, b in zip(batch, wanted, strict=True)
    )


def expected(recipe: Recipe, planner: Planner, epochs: int = 3, given: Any = GIVEN) -> Any:
    plans = [planner.plan(epoch, batch) for epoch in range(epochs) for batch in range(len(planner))]
    return [batch_of(recipe, plan, given, SEED) for plan in plans]


@pytest.mark.parametrize("split", range(len(STAGES) + 1))
def test_every_split_serves_what_its_stages_make_one_after_the_other(split: int) -> None:
    recipe, planner = recipe_of(split), refurbish()
    assert same(served(source_of(), recipe, planner, MemoryStore()), expected(recipe, planner))


@pytest.mark.parametrize("split", range(len(STAGES) + 1))
def test_at_reuse_factor_1_every_split_serves_the_same(split: int) -> None:
    planner = Standard(COUNT, batch_size=4, seed=SEED)
    assert same(served(source_of(), recipe_of(split), planner), served(source_of(), recipe_of(0), planner))


@pytest.mark.parametrize(("dtype", "channels"), in_turn(["uint8", "int8", "uint16", "int16", "float32"], [1, 3]))
def test_values_of_every_type_are_served(dtype: str, channels: int) -> None:
    given = volumes(6, dtype, channels)
    stages = RandomCrop3D((8, 10, 8)), RandomFlip3D(), RandomRotate90(1.0, axes=(0, 2))
    recipe = recipe_of(1, *stages, channels=channels, mean=3.0, std=2.0, mask_dtype="uint8")
    planner = Refurbish(6, batch_size=3, reuse_factor=3, seed=SEED)
    found = served(source_of(given), recipe, planner, MemoryStore())
    assert same(found, expected(recipe, planner, given=given))
    assert found[0][0].dtype == torch.float32
    assert found[0][1].dtype == torch.uint8


def test_half_precision_is_that_of_single_rounded() -> None:
    planner = refurbish()
    whole, half = (served(source_of(), recipe_of(dtype=dtype), planner) for dtype in ("float32", "float16"))
    assert all(torch.equal(one[0].half(), other[0]) for one, other in zip(whole, half, strict=True))


def test_the_store_changes_nothing(tmp_path: Path) -> None:
    recipe, planner = recipe_of(), refurbish()
    plain = served(source_of(), recipe, planner)
    assert same(plain, expected(recipe, planner))
    with pytest.warns(UserWarning, match="smaller than the plan needs"):
        assert same(served(source_of(), recipe, planner, MemoryStore(max_bytes=60_000)), plain)
    for store in (MemoryStore(), DiskStore(tmp_path / "store")):
        with store:
            assert same(served(source_of(), recipe, planner, store, prefetch=Prefetch(num_threads=3)), plain)


def test_batches_that_are_made_together_are_served_as_they_are_one_by_one() -> None:
    recipe, planner, found, ahead = recipe_of(), refurbish(), [], []
    without, crop, alone = Volumes([image for image, _ in GIVEN]), recipe_of(1, CenterCrop3D((8, 10, 8))), []
    for together in (1, 2):
        prefetch = Prefetch(num_threads=1, batches_per_group=together)
        found.append(served(source_of(), recipe, planner, MemoryStore(), prefetch=prefetch))
        alone.append(served(without, crop, planner, prefetch=prefetch, epochs=1))
        with Loader(source_of(), recipe, planner, MemoryStore(), prefetch=prefetch) as loader:
            ahead.append(loader.batches_ahead)
    assert same(*found)
    assert same(*alone)
    assert ahead[1] == 2 * ahead[0]


def test_a_wiped_store_changes_nothing() -> None:
    recipe, planner, store = recipe_of(), refurbish(), MemoryStore()
    plain = served(source_of(), recipe, planner)
    with Loader(source_of(), recipe, planner, store) as loader:
        found = []
        for _ in range(3):
            for batch in loader:
                found.append(copy.deepcopy(batch))
                store.clear()
    assert same(found, plain)


def test_what_is_cached_is_not_read_again() -> None:
    read = []

    def load(item: int) -> dict[str, Any]:
        read.append(item)
        image, mask = GIVEN[item]
        return {"image": image, "label": mask, "other": "is left out"}

    source = Volumes(range(COUNT), load=load, keys=("image", "label"))
    planner = SmartCache(COUNT, batch_size=3, num_cache_objects=6, replace_percent=0.5, seed=SEED)
    recipe = recipe_of(0)
    with Loader(source, recipe, planner, MemoryStore()) as loader:
        found = [copy.deepcopy(batch) for _ in range(3) for batch in loader]
        stats = loader.stats()
    assert stats.misses == 6 + 3 + 3
    # Two for the fingerprint, four to know how large they are; then what enters, in these rounds and the next ones.
    plans = [planner.plan(number, batch) for number in range(12) for batch in range(len(planner))]
    entering = Counter(index for plan in plans for index in plan.indices[plan.miss].tolist())
    assert Counter(read[6:]) <= entering
    assert same(found, expected(recipe, planner))


def test_a_training_goes_on_at_every_batch() -> None:
    recipe, planner = recipe_of(), refurbish()
    whole = served(source_of(), recipe, planner, MemoryStore(), epochs=2)
    for stop in range(len(whole)):
        store = MemoryStore()
        with Loader(source_of(), recipe, planner, store) as loader:
            left = iter(batch for _ in range(2) for batch in loader)
            first = [copy.deepcopy(next(left)) for _ in range(stop)]
            state = loader.state_dict()
        with Loader(source_of(), recipe, planner, store) as loader:
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
            rest = [copy.deepcopy(batch) for _ in range(2 - state["epoch"] if stop else 2) for batch in loader]
        assert same(first + rest, whole)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_serve_together_what_one_would(world_size: int) -> None:
    recipe, planner = recipe_of(), refurbish(shards=4, batch_size=4)
    whole = served(source_of(), recipe, planner)
    parts = [served(source_of(), recipe, planner, MemoryStore(), rank=(rank, world_size)) for rank in range(world_size)]
    together = [
        [torch.cat([part[batch][place] for part in parts]) for place in range(2)] for batch in range(len(whole))
    ]
    assert same(together, whole)


def test_several_windows_of_a_volume_are_an_echo() -> None:
    recipe, planner = recipe_of("crop"), Echo(Standard(COUNT, batch_size=4, seed=SEED), echoing_factor=3, buffer_size=6)
    assert same(served(source_of(), recipe, planner, MemoryStore(), epochs=1), expected(recipe, planner, epochs=1))


def test_without_masks_labels_are_those_of_whole_volumes() -> None:
    source = Volumes([image for image, _ in GIVEN], labels=np.arange(COUNT) * 2)
    planner = refurbish()
    for images, labels, indices in served(source, recipe_of(1, CenterCrop3D((8, 10, 8))), planner, with_indices=True):
        assert labels.tolist() == (2 * indices).tolist()
        for image, index in zip(images, indices.tolist(), strict=True):
            volume = GIVEN[index][0]
            starts = [(there - side) // 2 for there, side in zip(volume.shape[1:], (8, 10, 8), strict=True)]
            window = tuple(slice(begin, begin + side) for begin, side in zip(starts, (8, 10, 8), strict=True))
            assert np.array_equal(image[0], volume[0][window])
    assert source[3][1] == 6


def test_an_evaluation_sees_each_volume_once() -> None:
    source, planner = source_of(), Evaluate(COUNT, batch_size=4)
    found = served(source, recipe_of(1, CenterCrop3D((8, 10, 8))), planner, epochs=1)
    assert sum(len(images) for images, _ in found) == COUNT


@settings(max_examples=200)
@given(st.data())
def test_any_chain_shows_what_numpy_makes(data: st.DataObject) -> None:
    from dalirefurb.engine.volumes import carried_through

    side = st.integers(1, 9)
    shape = data.draw(st.tuples(side, side, side))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = data.draw(st.sampled_from(["uint8", "int16", "float32"]))
    image, mask = rng.integers(0, 200, (2, *shape)).astype(dtype), rng.integers(0, 2, shape).astype(np.uint8)
    kinds = {
        "crop": lambda: RandomCrop3D(data.draw(st.tuples(side, side, side)), data.draw(st.sampled_from([0, 0.7])), 5.0),
        "center": lambda: CenterCrop3D(data.draw(st.tuples(side, side, side)), fill=9.0),
        "flip": lambda: RandomFlip3D(),
        "turn": lambda: RandomRotate90(0.8, axes=data.draw(st.sampled_from([(0, 1), (2, 0), (1, 2)]))),
        "window": lambda: IntensityWindow(20, 150),
        "scale": lambda: RandomScaleIntensity(0.5),
        "shift": lambda: RandomShiftIntensity(3.0),
    }
    names = data.draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=6))
    stages: list[Any] = [kinds[name]() for name in names]
    drawn = [rng.random(stage.num_uniforms) for stage in stages]
    from tests.volumes.reference import one

    wanted = image, mask
    for stage, uniforms in zip(stages, drawn, strict=True):
        wanted = one(stage, *wanted, uniforms.tolist())
    named = [stage_named(stage, f"{place}") for place, stage in enumerate(stages)]
    uniforms = {f"{place}/uniforms": each for place, each in enumerate(drawn)}
    made = carried_through(named, {"image": image, "mask": mask}, uniforms, 0).made()
    assert made["image"].dtype == wanted[0].dtype
    assert np.array_equal(made["image"], wanted[0])
    assert np.array_equal(made["mask"], wanted[1])


def test_what_was_filled_up_around_a_window_keeps_its_value_though_the_volume_goes_on_there() -> None:
    from dalirefurb.engine.volumes import carried_through

    image = np.arange(9**3, dtype=np.int16).reshape(1, 9, 9, 9)
    stages = [CenterCrop3D(3, name="a"), CenterCrop3D(7, 5.0, name="b"), CenterCrop3D(8, 6.0, name="c")]
    (made,) = carried_through(stages, {"image": image}, {}, 0).made()["image"]
    window = np.pad(image[0, 3:6, 3:6, 3:6], 2, constant_values=5)
    assert np.array_equal(made, np.pad(window, (1, 0), constant_values=6))


def stage_named(stage: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(stage, name=name)


class Halved(VolumeStage):
    """A stage as a user derives it."""

    name = "halved"

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        voxels.scale(0.5, 1.0)

    def fingerprint(self) -> dict[str, Any]:
        return {"stage": "Halved"}


class Limited(VolumeStage):
    name = "limited"

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        voxels.clip(-0.5, 20.5)

    def fingerprint(self) -> dict[str, Any]:
        return {"stage": "Limited"}


def test_limits_of_whole_numbers_may_lie_between_them() -> None:
    volumes = [image[:, :8, :10, :8].copy() for image, _ in GIVEN]
    for split in (0, 1):
        for images, _, indices in served(Volumes(volumes), recipe_of(split, Limited()), refurbish(), with_indices=True):
            wanted = [np.clip(volumes[index].astype(np.float32), -0.5, 20.5) for index in indices.tolist()]
            assert np.array_equal(images, np.stack(wanted))


class Cut(VolumeStage):
    name = "cut"

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        voxels.compute(lambda image: image[..., 1:])

    def fingerprint(self) -> dict[str, Any]:
        return {"stage": "Cut"}


def test_what_a_stage_of_ones_own_computes_has_the_shape_of_its_image() -> None:
    recipe = recipe_of(0, CenterCrop3D((8, 10, 9)), Cut())
    told = r"must have the shape of its image, \(1, 8, 10, 9\), but has \(1, 8, 10, 8\): crop, or resample"
    with pytest.raises(LoaderError, match=told):
        served(Volumes([image for image, _ in GIVEN]), recipe, refurbish())


def test_labels_that_the_outputs_type_has_not_are_refused() -> None:
    masks = [np.full(image.shape[1:], 70_000, np.int32) for image, _ in GIVEN]
    source = Volumes([image for image, _ in GIVEN], masks)
    recipe = recipe_of(0, CenterCrop3D((8, 10, 8)), mask_dtype="uint8")
    told = r"labels must fit into uint8, but those of sample \d are int32: pass VolumeOutput\(..., mask_dtype='int64'"
    with pytest.raises(LoaderError, match=told):
        served(source, recipe, refurbish())


def test_a_stage_of_ones_own_changes_values() -> None:
    recipe = recipe_of(0, CenterCrop3D((8, 10, 8)), Halved())
    plain, halved = (
        served(source_of(), each, refurbish()) for each in (recipe_of(0, CenterCrop3D((8, 10, 8))), recipe)
    )
    assert all(torch.equal(one[0] * 0.5 + 1, other[0]) for one, other in zip(plain, halved, strict=True))


def test_what_a_function_raises_is_told_with_its_stage_and_sample() -> None:
    def fails(volume: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no such organ")

    for split in (0, 2):
        recipe = recipe_of(split, CenterCrop3D((8, 10, 8)), HostStage(fails, "mine"))
        with pytest.raises(LoaderError, match=r"'mine'.*sample \d.*no such organ") as raised:
            served(source_of(), recipe, refurbish(), MemoryStore())
        assert isinstance(raised.value.__cause__, RuntimeError)
    for wrong in (lambda volume: volume["image"], lambda volume: {**volume, "image": volume["image"][0, 0]}):
        recipe = recipe_of(0, CenterCrop3D((8, 10, 8)), HostStage(wrong, "mine"))
        with pytest.raises(LoaderError, match="'mine'"):
            served(source_of(), recipe, refurbish())


def test_files_of_every_kind_are_read(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    image, mask = (each.copy() for each in GIVEN[0])
    np.save(tmp_path / "a.npy", image[0])
    np.savez(tmp_path / "a.npz", image=image, mask=mask)
    nibabel.save(nibabel.Nifti1Image(image[0], np.eye(4)), tmp_path / "a.nii.gz")
    nibabel.save(nibabel.Nifti1Image(mask.astype(np.uint8), np.eye(4)), tmp_path / "a_mask.nii")
    for volume, labels in (("a.npy", "a.npz"), ("a.npz", "a.npz"), ("a.nii.gz", "a_mask.nii")):
        source = Volumes([tmp_path / volume], [str(tmp_path / labels)])
        found, labelled = source[0]
        assert np.array_equal(found, image)
        assert np.array_equal(labelled, mask)
        assert source.name(0) == str(tmp_path / volume)
    np.savez(tmp_path / "ALONE.NPZ", scan=image)
    (tmp_path / "ALONE.NPZ.npz").rename(tmp_path / "ALONE.NPZ")
    assert np.array_equal(Volumes([tmp_path / "ALONE.NPZ"])[0][0], image)
    np.savez(tmp_path / "b.npz", scan=image, other=mask)
    with pytest.raises(SampleError, match=r"b\.npz must have an array 'image', or one alone, but has scan, other"):
        Volumes([tmp_path / "b.npz"])[0]


def test_a_zarr_array_is_read(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    image, mask = (each.copy() for each in GIVEN[0])
    for name, array in (("a.zarr", image[0]), ("a_mask.zarr", mask)):
        zarr.open(str(tmp_path / name), mode="w", shape=array.shape, chunks=(4, 4, 4), dtype=array.dtype)[...] = array
    found, labelled = Volumes([tmp_path / "a.zarr"], [f"{tmp_path / 'a_mask.zarr'}/"])[0]
    assert np.array_equal(found, image)
    assert np.array_equal(labelled, mask)


@pytest.mark.parametrize("change", [Path.touch, Path.unlink, lambda file: file.write_bytes(b"other")])
def test_a_volume_that_is_a_folder_has_changed_if_a_file_in_it_has(change: Any, tmp_path: Path) -> None:
    """Such as a chunk of a .zarr, or a slice of a DICOM series, which is written anew in its place."""
    file = tmp_path / "scan" / "c" / "0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"bytes")
    os.utime(file, ns=(0, 0))
    (tmp_path / "other").write_bytes(b"")
    source = Volumes([tmp_path / "scan", tmp_path / "other"], load=lambda _: np.zeros((2, 2, 2), np.uint8))
    before = source.content()
    assert before == source.content()
    assert before["bytes"] == 5
    change(file)
    assert source.content()["stamps"] != before["stamps"]


@pytest.mark.parametrize("change", [Path.touch, Path.unlink, lambda file: file.write_bytes(b"other")])
def test_a_file_behind_links_inside_of_a_folder_counts_though_they_lead_in_circles(change: Any, tmp_path: Path) -> None:
    scan, file = tmp_path / "scan", tmp_path / "large disk" / "c" / "0"
    scan.mkdir()
    file.parent.mkdir(parents=True)
    file.write_bytes(b"bytes")
    os.utime(file, ns=(0, 0))
    (tmp_path / "other disk").mkdir()
    for link, target in ((scan / "chunks", file.parents[1]), (file.parents[1] / "up", scan), (scan / "self", scan)):
        link.symlink_to(target)
    (scan / "twice").symlink_to(scan / "chunks")
    source = Volumes([scan], load=lambda _: np.zeros((2, 2, 2), np.uint8))
    before = source.content()
    assert before == source.content()
    assert before["bytes"] == 5
    change(file)
    changed = source.content()
    assert changed["stamps"] != before["stamps"]
    (scan / "twice").unlink()
    (scan / "twice").symlink_to(scan)
    assert source.content()["stamps"] != changed["stamps"]


def test_a_folder_that_each_volume_names_is_looked_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.npy").write_bytes(b"x")
    walked, walk = [], os.walk
    monkeypatch.setattr(
        "dalirefurb.source.storage.os.walk", lambda path, **each: walked.append(path) or walk(path, **each)
    )
    monkeypatch.setattr("dalirefurb.source.storage._THREADS", 1)
    cases = [{"root": tmp_path, "name": number} for number in range(200)]
    Volumes(cases, load=lambda _: np.zeros((2, 2, 2), np.uint8)).content()
    assert walked == [str(tmp_path)]


def test_voxels_to_leave_out_are_no_foreground() -> None:
    labels = np.array([[[-1, 0], [2, 1]]], np.int16)
    assert foreground_of(labels).tolist() == [[0, 1, 0], [0, 1, 1]]


def test_a_bad_volume_is_named_or_replaced(tmp_path: Path) -> None:
    paths = []
    for number, (image, _) in enumerate(GIVEN):
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], image)
    paths[4].write_bytes(paths[4].read_bytes()[:1000])
    paths[7].unlink()
    recipe, planner = recipe_of(1, CenterCrop3D((8, 10, 8))), refurbish()
    with pytest.raises(SampleError, match=r"\d\.npy"):
        served(Volumes(paths), recipe, planner)
    with Loader(Volumes(paths), recipe, planner, bad_samples=BadSamplePolicy("replace")) as loader:
        assert sum(len(images) for images, _ in loader) > 0
        for _ in loader:
            pass
        assert {bad.index for bad in loader.bad_samples()} == {4, 7}


def test_sources_of_volumes_are_put_together_and_parted() -> None:
    source = source_of()
    both = Concat([source.subset([0, 1, 2, 3, 4]), source.subset([5, 6, 7, 8, 9])])
    assert same(served(both, recipe_of(), refurbish()), served(source, recipe_of(), refurbish()))
    assert np.array_equal(both[7][0], GIVEN[7][0])


def test_changed_files_are_noticed(tmp_path: Path) -> None:
    paths = []
    for number, (image, _) in enumerate(GIVEN):
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], image)
    recipe, planner = recipe_of(1, CenterCrop3D((8, 10, 8))), refurbish()
    served(Volumes(paths), recipe, planner, DiskStore(tmp_path / "store"))
    np.save(paths[0], GIVEN[0][0] + 1)
    with pytest.raises(StoreError, match="content"):
        Loader(Volumes(paths), recipe, planner, DiskStore(tmp_path / "store"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0, 1, 2, 3], [0, 2, 1, 3]),
        (np.arange(200), np.array([*range(100), 101, 100, *range(102, 200)])),
        ([(1, 2), (3, 4)], [(1, 3), (2, 4)]),
        ([{"number": 1}, {"number": 2}], [{"number": 2}, {"number": 1}]),
        (["a.npy", 1], [1, "a.npy"]),
        ([{"number": 1}, {"number": 2}], [{"number": 1}, {"other": 2}]),
        (["a", "b", "c", "d"], ["a", "c", "b", "d"]),
        ([["a", "b"], "c"], ["a", ["b", "c"]]),
        (["a.npy", GIVEN[0][0]], [GIVEN[0][0], "a.npy"]),
        ([GIVEN[0][0], GIVEN[1][0], GIVEN[2][0]], [GIVEN[0][0], GIVEN[3][0], GIVEN[2][0]]),
    ],
)
def test_other_items_are_another_source(one: Any, other: Any) -> None:
    """Whatever the first and the last of them make, which alone are looked at."""
    prints = [Volumes(items, load=lambda item: GIVEN[0][0]).fingerprint() for items in (one, one, other)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (np.zeros((2, 2)), "shape"),
        (np.full((2, 2, 2), 10**6) * [-1, 1], "astype"),
        (np.full((2, 2, 2), 1e300), "astype"),
        (np.zeros((0, 2, 2)), "shape"),
        (None, "one array"),
        ([np.zeros((2, 2, 2))] * 2, "Echo"),
        ({"label": np.zeros((2, 2, 2))}, "lacks 'image'"),
        ({"image": np.zeros((2, 2, 2)), "label": np.zeros((2, 2, 2))}, "'label': pass keys"),
        ({"image": np.zeros((2, 2, 2)), "mask": None}, "lacks 'mask'"),
        (np.zeros((2, 2, 2)), "a mapping of 'image' and 'mask'"),
        ({"image": np.zeros((2, 2, 2)), "mask": np.zeros((2, 2, 3))}, "its mask must have the shape of its image"),
        (
            {"image": np.zeros((2, 2, 2, 2)), "mask": np.zeros((2, 2, 2, 2))},
            "its mask must have the shape of its image",
        ),
        ({"image": np.zeros((2, 2, 2)), "mask": np.full((2, 2, 2), 0.5)}, "mask must be of whole numbers"),
        ({"image": np.zeros((2, 2, 2)), "mask": np.full((2, 2, 2), np.nan)}, "mask must be of whole numbers .*or NaN"),
        ({"image": np.zeros((2, 2, 2)), "mask": np.full((2, 2, 2), 2**40)}, "mask must be of whole numbers of 32"),
    ],
)
def test_what_is_no_volume_is_refused_by_name(given: Any, told: str) -> None:
    source = Volumes([0], load=lambda item: given, keys=("image", "mask") if "mask" in told else None)
    with pytest.raises(SampleError, match=told):
        source[0]


def test_what_cannot_be_served_is_refused() -> None:
    source, recipe, planner = source_of(), recipe_of(), refurbish()
    for make, told in (
        (lambda: Recipe([HorizontalFlip()], VolumeOutput(8), 0), "stage of images"),
        (lambda: Recipe([RandomCrop3D(8)], Output(8), 0), "stage of volumes"),
        (lambda: Loader(source, Recipe([HorizontalFlip()], Output(8), 0), planner), "VolumeOutput"),
        (lambda: Loader(source, recipe, planner, final_device="gpu"), "GPU"),
        (lambda: Loader(source, recipe, planner, kernels="dali"), "kernels"),
        (lambda: Loader(source, recipe, planner, views=[recipe.view(2)]), "views"),
        (lambda: Loader(source, recipe, planner, views=2), "views"),
        (lambda: PartialSource(source, recipe, planner), "PartialSource"),
        (lambda: tune(source, recipe, batch_size=4), "not of volumes"),
        (
            lambda: Loader(source, recipe, planner, DeviceStore(device="cpu")),
            "DeviceStore is for images, got a recipe for",
        ),
        (lambda: Volumes([]), "at least one"),
        (lambda: Volumes("scan.nii"), "list"),
        (lambda: Volumes([3]), "load="),
        (lambda: Volumes(["a.npy"], ["b.npy", "c.npy"]), "2 masks"),
        (lambda: Volumes([np.zeros((2, 2, 2))], [None]), "NoneType"),
        (lambda: Volumes([0], load=abs, keys=()), "one or two texts"),
        (lambda: Volumes(["a.npy"], keys=("image", "label")), "with load"),
        (lambda: Volumes(["a.npy"], ["b.npy"], labels=[3]), "pass labels of voxels as masks"),
        (lambda: Volumes([np.zeros((2, 2, 2))], labels=np.zeros((1, 2, 2, 2))), "pass labels of voxels as masks"),
        (lambda: source + Volumes([GIVEN[0][0]]), "all of them with masks or none"),
        (lambda: Loader(source, recipe, AutoAssist(Standard(COUNT, batch_size=4), lag=200)), "AutoAssist"),
        *(
            (lambda after=after: recipe_of(0, CenterCrop3D(4), *after), "8 x 10 x 8, got 4 x 4 x 4")
            for after in ((), (RandomFlip3D(),), (RandomShiftIntensity(),), (RandomRotate90(),))
        ),
        (
            lambda: recipe_of(0, RandomCrop3D((8, 10, 8)), RandomRotate90()),
            "rotate90: what is turned must be as long along axis 0 as along axis 1, got 8 x 10 x 8: pass axes=",
        ),
        (lambda: recipe_of(0, HostStage(noise, "mine", size=8)), "size is for images"),
        (lambda: recipe_of(0, RandomApply(RandomFlip3D(), 0.5)), "inside of"),
        (lambda: recipe_of(0, RandomApply(RandomApply(RandomFlip3D(), 0.5), 0.5, "both")), "inside of 'both'"),
        (lambda: VolumeOutput(8, channels_last=True), "channels_last"),
        (lambda: RandomFlip3D((True, False)), "0, 1, 2"),
        (lambda: RandomCrop3D(0), "positive"),
        (lambda: Volumes(np.array(5)), "volumes must be a list of at least one path or array, got array(5)"),
        (lambda: Volumes(["a.nii"], np.array(5)), "masks must be a list of at least one path or array, got array(5)"),
        (lambda: VolumeOutput(8, "bfloat16"), 'dtype must be "float32" or "float16"'),  # type: ignore[arg-type]
        (lambda: VolumeOutput(8, mask_dtype="uint16"), "mask_dtype must be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError) as raised:
            make()
        assert told in str(raised.value)
    with (
        Loader(source, recipe, planner) as loader,
        pytest.raises(ConfigurationError, match="dali_labels is for labels"),
    ):
        loader.dali_iterator(dali_labels=True)
    with pytest.raises(LoaderError, match="4 x 4 x 4"):
        served(
            source,
            recipe_of(0, HostStage(lambda volume: {k: v[..., :4, :4, :4] for k, v in volume.items()}, "cut")),
            planner,
        )


def test_a_recipe_for_volumes_wants_a_source_of_them_and_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Arrays(np.zeros((COUNT, 8, 8, 3), np.uint8), np.arange(COUNT))
    with pytest.raises(
        ConfigurationError, match=r"the recipe is for volumes, but the source has images: pass Volumes\("
    ):
        Loader(images, recipe_of(), refurbish())
    monkeypatch.setattr("dalirefurb.engine.kernel_choice._installed", lambda _: False)
    with pytest.raises(ConfigurationError, match="volumes cannot be made without Numba: pip install numba"):
        Loader(source_of(), recipe_of(), refurbish())


def test_what_may_leave_the_outputs_size_is_taken() -> None:
    """Of what a function of the user's leaves nothing is known, and what is never turned keeps its shape."""

    def twice(volume: dict[str, Any]) -> dict[str, Any]:
        return {name: each.repeat(2, -1).repeat(2, -2).repeat(2, -3) for name, each in volume.items()}

    for stages in (
        (CenterCrop3D((4, 5, 4)), HostStage(twice, "twice")),
        (RandomCrop3D((8, 10, 8)), RandomRotate90(0.0)),
    ):
        (images, _), *_ = served(source_of(), recipe_of(0, *stages), refurbish(), epochs=1)
        assert images.shape == (4, 1, 8, 10, 8)


def test_an_axis_may_be_given_alone() -> None:
    assert RandomFlip3D(2) == RandomFlip3D((2,))  # type: ignore[arg-type]
    assert RandomFlip3D(2).axes == (2,)  # type: ignore[arg-type]


def test_an_output_may_be_changed_in_one_field() -> None:
    recipe = recipe_of(mean=3.0, std=2.0)
    for change in ({"dtype": "float16"}, {"mask_dtype": "uint8"}, {"std": 4.0}, {"mean": 1.0}):
        assert recipe.with_output(**change) == recipe_of(**{"mean": 3.0, "std": 2.0, **change})


def test_an_outputs_fingerprint_differs_when_any_field_does() -> None:
    changes: dict[str, Any] = {"size": (8, 8, 9), "dtype": "float16", "mean": 1.0, "std": 2.0, "channels": 2}
    changes["mask_dtype"] = "uint8"
    assert changes.keys() == {field.name for field in fields(VolumeOutput)} - {"channels_last"}
    outputs = [VolumeOutput(8), *(VolumeOutput(**{"size": 8, name: value}) for name, value in changes.items())]
    assert len({str(output.fingerprint()) for output in outputs}) == len(outputs)


def test_a_file_of_unknown_kind_and_a_missing_package_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.mha").write_bytes(b"x")
    with pytest.raises(SampleError, match=r"load="):
        Volumes([tmp_path / "a.mha"])[0]
    for package in ("nibabel", "zarr"):
        monkeypatch.setitem(__import__("sys").modules, package, None)
    (tmp_path / "a.nii").write_bytes(b"x")
    with pytest.raises(SampleError, match=r"pip install nibabel"):
        Volumes([tmp_path / "a.nii"])[0]
    with pytest.raises(SampleError, match=r"a\.zarr needs zarr: pip install zarr"):
        Volumes([tmp_path / "a.zarr"])[0]


def test_values_take_a_type_that_has_them_all() -> None:
    for values, dtype in (
        ([False, True], "uint8"),
        (np.array([-3, 9], ">i2"), "int16"),
        ([-1, 255], "int16"),
        ([0, 65535], "uint16"),
        ([0.5, np.inf], "float32"),
        ([-1e300, 1e300], None),
        ([0, 65536], None),
    ):
        if dtype is None:
            with pytest.raises(VolumeError, match=r"its image must be of .* such as image\.astype"):
                volume_of(np.array(values)[None, None])
            continue
        image = volume_of(np.array(values)[None, None])["image"]
        assert (image.dtype, image.ravel().tolist()) == (np.dtype(dtype), np.array(values).tolist())


def test_other_masks_are_another_source_with_other_contents(tmp_path: Path) -> None:
    mask = np.ones((2, 2, 2), np.uint8)
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, mask)
    given: list[Any] = [mask, 2 * mask, tmp_path / "a.npy", tmp_path / "b.npy"]
    sources = [Volumes([np.zeros((2, 2, 2))], [each]) for each in given]
    assert len({json.dumps(source.fingerprint()) for source in sources[:3]}) == 3
    assert len({json.dumps(source.content()) for source in sources}) == 4
    both = [Volumes([GIVEN[0][0]] * 2, [tmp_path / "a.npy", tmp_path / name]) for name in ("a.npy", "b.npy")]
    assert both[0].fingerprint() != both[1].fingerprint()


def test_what_load_makes_of_the_first_and_the_last_is_part_of_the_fingerprint() -> None:
    prints = [
        Volumes(range(5), load=lambda item, other=other: GIVEN[item == other][0]).fingerprint() for other in (0, 2, 4)
    ]
    assert len({json.dumps(each) for each in prints}) == 3


def test_packed_arrays_are_what_they_were() -> None:
    arrays = {"a": np.arange(5.0), "b": np.ones((2, 3, 1), np.int16)[:, ::-1], "c": np.empty((0, 3), np.int32)}
    found = unpack(pack(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].ctypes.data % 8 == 0


def test_packed_bytes_are_those_of_the_arrays_whatever_lay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"a": np.arange(5.0), "b": np.ones((2, 3, 1), np.int16)}
    made = []
    for left in (0, 255):
        monkeypatch.setattr(image_batch.np, "empty", lambda shape, dtype, left=left: np.full(shape, left, dtype))
        made.append(pack(arrays))
    assert np.array_equal(*made)


def test_labels_take_the_smallest_type() -> None:
    image = np.zeros((1, 1, 2))
    for values, dtype in (([0, 255], "uint8"), ([-1, 3], "int16"), ([0, 70_000], "int32"), ([0.0, 2.0], "uint8")):
        assert volume_of(image, np.array(values)[None, None])["mask"].dtype == dtype


def test_of_a_large_foreground_some_voxels_are_kept_from_the_first_to_the_last() -> None:
    mask = np.ones((20, 20, 20), np.uint8)
    kept = np.ravel_multi_index(tuple(foreground_of(mask).T), mask.shape)
    assert (len(kept), kept[0], kept[-1], {*np.diff(kept).tolist()}) == (4096, 0, 7999, {1, 2})


def test_tensors_are_volumes_whether_they_have_gradients_or_not() -> None:
    tensors = [torch.from_numpy(image.astype(np.float32)).requires_grad_() for image, _ in GIVEN]
    assert np.array_equal(Volumes(tensors)[3][0], GIVEN[3][0])


def test_memory_is_counted_for_volumes_as_they_are_read() -> None:
    source = Volumes(range(8), load=lambda item: np.full((64, 128, 128), item, np.int16))
    recipe, planner = Recipe([RandomCrop3D(8)], VolumeOutput(8), 1), Standard(8, batch_size=4)
    with pytest.raises(OutOfMemoryError, match="samples as they were read"):
        Loader(source, recipe, planner, prefetch=Prefetch(memory="20MB"))


def test_a_store_has_room_for_volumes_as_they_are_cached_not_as_they_are_read() -> None:
    large = Volumes(range(8), load=lambda item: np.full((32, 64, 64), item, np.int16))
    for size, nbytes in ((8, 8**3 * 2), ((40, 80, 80), 40 * 80 * 80 * 2)):  # smaller than what is read, and larger
        store, planner = MemoryStore(), Frozen(8, batch_size=4)
        with Loader(large, Recipe([RandomCrop3D(size)], VolumeOutput(size), 1), planner, store) as loader:
            for _ in range(2):
                for _batch in loader:
                    pass
            assert 8 * nbytes < store.nbytes < 13 * (nbytes + 1000), "8 volumes, a tenth more, and four of the largest"
            assert loader.stats().recomputed == 0


def test_a_store_tells_volumes_by_what_load_makes_of_them() -> None:
    store, recipe, planner = MemoryStore(), recipe_of(0, CenterCrop3D((8, 10, 8))), Frozen(4, batch_size=4)
    for number in (3, 7):
        source = Volumes(range(4), load=lambda item, number=number: np.full((9, 10, 11), item + number, np.int16))
        with Loader(source, recipe, planner, store) as loader:
            (images, _), *_ = loader
            assert sorted(images[:, 0, 0, 0, 0].tolist()) == [number, number + 1, number + 2, number + 3]
        store.close()


def test_a_compressed_file_whose_checksum_is_wrong_is_bad(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    path, rng = tmp_path / "a.nii.gz", np.random.default_rng(0)
    nibabel.save(nibabel.Nifti1Image(rng.integers(0, 99, (20, 20, 20, 2), np.int16), np.eye(4)), path)
    found, _ = Volumes([path])[0]
    assert found.shape == (2, 20, 20, 20)
    whole = path.read_bytes()
    for place in (-6, len(whole) // 2):
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(broken)
        with pytest.raises(SampleError, match=r"a\.nii\.gz"):
            Volumes([path])[0]


@pytest.mark.parametrize("fill", [0.5, -1024.0])
def test_what_a_type_has_not_may_be_filled_in_at_every_split(fill: float) -> None:
    given = volumes(4, "uint8")
    stages = CenterCrop3D((20, 21, 22), fill), RandomFlip3D()
    planner = Standard(4, batch_size=2, seed=SEED)
    for split in range(3):
        recipe = Recipe(stages, VolumeOutput((20, 21, 22)), split)
        plans = [planner.plan(epoch, batch) for epoch in range(2) for batch in range(2)]
        singles = [(image.astype(np.float32), mask) for image, mask in given]
        wanted = [batch_of(recipe, plan, singles, SEED) for plan in plans]
        assert same(served(source_of(given), recipe, planner, epochs=2), wanted)


class Larger(VolumeStage):
    """Shows more than there is, and a voxel of the foreground first."""

    name = "larger"

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        voxels.crop((-4, -4, -4), (20, 20, 20), 7.0)
        first = voxels.foreground()[0].tolist()
        voxels.crop(first, (8, 10, 8), 9.0)

    def fingerprint(self) -> dict[str, Any]:
        return {"stage": "Larger"}


def test_a_stage_of_ones_own_may_crop_what_is_filled_at_every_split() -> None:
    stages = CenterCrop3D(16, fill=3), RandomFlip3D(), Larger()
    planner = Standard(COUNT, batch_size=4, seed=SEED)
    first, *others = (served(source_of(), recipe_of(split, *stages), planner) for split in range(4))
    assert all(same(each, first) for each in others)
    image, mask = np.zeros((1, 4, 4, 4), np.int16), np.ones((4, 4, 4), np.uint8)
    from dalirefurb.engine.volumes import Shown

    for wrong in (
        lambda voxels: voxels.crop((0.5, 1, 1), 2),
        lambda voxels: voxels.crop((1, 1), 2),
        lambda voxels: voxels.crop((0, 0, 0), (0, 1, 1)),
        lambda voxels: voxels.flip(-1),
        lambda voxels: voxels.flip(3),
        lambda voxels: voxels.turn(1, (1, 1)),
        lambda voxels: voxels.turn(1, (0, 3)),
        lambda voxels: voxels.turn(1, (0, 1, 2)),
    ):
        with pytest.raises(ConfigurationError):
            wrong(Shown({"image": image, "mask": mask}))


def test_a_coverage_is_proposed_for_images_alone() -> None:
    with pytest.raises(ConfigurationError, match="source must be a source of images, not of volumes, got Volumes"):
        propose_coverage(source_of(), recipe_of(), refurbish(), "1GB")


def test_a_broadcast_serves_volumes_and_labels_of_their_voxels_and_counts_the_memory_of_both() -> None:
    recipe, planner, name = recipe_of(), refurbish(), f"volumes {os.getpid()}"
    with Loader(source_of(), recipe, planner, MemoryStore()) as loader, Broadcast(loader, name, ahead=1) as broadcast:
        counted = broadcast.untouched_bytes
        with Attached(name) as attached:
            given = [copy.deepcopy(batch) for batch in attached]
            to_come = broadcast.untouched_bytes
    assert same(given, expected(recipe, planner, epochs=1))
    assert 0 <= to_come < counted
    assert broadcast.untouched_bytes == 0
    slots, batch_bytes = 1 + 3, max(sum(each.nbytes for each in batch) for batch in given)
    assert slots * batch_bytes <= counted < 1.1 * slots * batch_bytes
