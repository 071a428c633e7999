"""A bad sample is named, or replaced by a good one: always the same, whatever is cached, and counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import (
    Arrays,
    AutoAssist,
    BadSamplePolicy,
    DiskStore,
    Echo,
    Evaluate,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    TorchDataset,
    evaluate,
    simple,
)
from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.resize import Resize
from dalirefurb.dali import GraphError
from dalirefurb.engine.partial_sizes import propose_coverage
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError, StateMismatchError, StoreError
from dalirefurb.planning import BatchEcho, Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import BadSample, Quarantine, Substitutes
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.targets import Annotated, Values
from dalirefurb.testing.plans import owned
from tests.bad_files import (
    BAD,
    CONTENT_IS_BAD,
    MAX_PIXELS,
    NUM_SAMPLES,
    Batches,
    among_good_ones,
    assert_same,
    bad_content,
    encoded,
    expected,
    spoil,
    write_bad_folder,
)
from tests.engine.test_bit_identity import STORES, ForgetfulStore, LeakyStore, SmallStore
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.lossy import Meddle
from tests.pictures import encode, write_folder

SIZE = 32
EPOCHS = 3
RECIPE = simple(SIZE)
BEFORE, AFTER = simple(SIZE, split=1), simple(SIZE, split=3)
STANDARD = Standard(NUM_SAMPLES, batch_size=6, seed=7)
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7)
ECHO = Echo(STANDARD, echoing_factor=2.5, buffer_size=12)

TECHNIQUES = {
    "refurbishing": (RECIPE, REFURBISH),
    "echoing before augmentation": (BEFORE, ECHO),
    "refurbishing of files": (RECIPE.at(0), REFURBISH),
    "echoing after augmentation": (AFTER, ECHO),
    "echoing before decoding": (RECIPE.at(0), ECHO),
    "batch echoing": (BEFORE, BatchEcho(STANDARD, echoing_factor=2.5)),
    "SmartCache": (
        BEFORE,
        SmartCache(NUM_SAMPLES, batch_size=4, num_cache_objects=20, replace_percent=0.25, seed=7),
    ),
    "frozen cache": (RECIPE, Frozen(NUM_SAMPLES, batch_size=6, seed=7)),
}


class Counting(ImageFolder):
    """A folder that counts how often each sample is read."""

    def __init__(self, folder: ImageFolder) -> None:
        vars(self).update(vars(folder))
        self.reads: Counter[int] = Counter()

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        self.reads.update(indices.tolist())
        return super().read(indices)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return write_bad_folder(tmp_path_factory.mktemp("pictures"))


@cache
def wanted_of(source: ImageFolder, recipe: Recipe, planner: Planner, *, epochs: int = EPOCHS) -> Batches:
    """What is to be served of the folder of bad files."""
    return expected(source, recipe, planner, epochs=epochs, bad=set(BAD))


def replacing(
    source: Source, recipe: Recipe, planner: Planner, store: MemoryStore | None = None, **options: Any
) -> Loader:
    return flat_loader(
        source,
        recipe,
        planner,
        store,
        on_bad_sample="replace",
        with_indices=True,
        **{"num_threads": 1, "batches_per_group": 1, "kernels": "dali", "max_pixels": MAX_PIXELS, **options},
    )


def endless(loader: Loader) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        for batch in loader:
            yield tuple(part.clone() for part in batch)


def served(loader: Loader, batches: int, meddle: Meddle | None = None, store: MemoryStore | None = None) -> Batches:
    found: Batches = []
    for number, batch in enumerate(islice(endless(loader), batches)):
        found.append(batch)
        if meddle is not None and store is not None:
            meddle(store, number % len(loader))
    return found


# What is served


@pytest.mark.parametrize(("technique", "cached"), in_turn(list(TECHNIQUES), [True, False]))
def test_a_bad_sample_is_replaced_by_what_its_key_says(technique: str, cached: bool, source: ImageFolder) -> None:
    recipe, planner = TECHNIQUES[technique]
    wanted = wanted_of(source, recipe, planner)
    with replacing(source, recipe, planner, MemoryStore() if cached else None) as loader:
        assert_same(wanted, served(loader, len(wanted)))
        stats = loader.stats()
    plans = [plan for epoch in range(EPOCHS) for plan in planner.epoch(epoch)]
    assert stats.replaced == sum(int(np.isin(plan.indices, list(BAD)).sum()) for plan in plans) > 0
    assert (stats.hits > 0) == cached
    if cached:
        assert stats.recomputed == stats.declined == 0


@pytest.mark.parametrize(("stored", "recipe"), in_turn([store.values for store in STORES[1:]], [RECIPE, RECIPE.at(0)]))
def test_tensors_are_the_same_whatever_the_store_does(
    stored: tuple[type[MemoryStore], Meddle], recipe: Recipe, source: ImageFolder
) -> None:
    kind, meddle = stored
    store = kind()
    wanted = wanted_of(source, recipe, REFURBISH)
    with replacing(source, recipe, REFURBISH, store) as loader:
        assert_same(wanted, served(loader, len(wanted), meddle, store))


KEPT = {"images": (RECIPE, True), "files": (RECIPE.at(0), True), "no store": (RECIPE, False)}
OPTIONS = [
    {"look_ahead": 1},
    {"look_ahead": 7, "num_threads": 2, "replicas": 3},
    {"batches_per_group": 3, "look_ahead": 2},
    {"batches_per_group": 9, "num_threads": 2},
]


@pytest.mark.parametrize(("options", "kept"), in_turn(OPTIONS, list(KEPT)), ids=str)
def test_tensors_are_the_same_with_other_look_ahead_and_batches_per_group(
    options: dict[str, int], kept: str, source: ImageFolder
) -> None:
    recipe, cached = KEPT[kept]
    wanted = wanted_of(source, recipe, REFURBISH)
    with replacing(source, recipe, REFURBISH, MemoryStore() if cached else None, **options) as loader:
        assert_same(wanted, served(loader, len(wanted)))


def test_tensors_are_the_same_after_resuming_at_any_batch(source: ImageFolder) -> None:
    wanted = wanted_of(source, RECIPE, REFURBISH, epochs=2)
    with replacing(source, RECIPE, REFURBISH, MemoryStore()) as loader:
        state = loader.state_dict()
    for batch in range(1, len(wanted)):
        with replacing(source, RECIPE, REFURBISH, MemoryStore()) as loader:
            loader.load_state_dict({**state, "epoch": batch // 4, "batch": batch % 4})
            assert_same(wanted[batch:], served(loader, len(wanted) - batch))


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.at(0)], ids=["images", "files"])
def test_what_replaces_a_sample_is_not_stored_for_a_later_run(recipe: Recipe, source: ImageFolder) -> None:
    """The later run does not know yet which samples are bad."""
    store = MemoryStore()
    wanted = wanted_of(source, recipe, REFURBISH, epochs=2)
    with replacing(source, recipe, REFURBISH, store, look_ahead=1) as loader:
        served(loader, len(loader))
        state = loader.state_dict()
    with replacing(source, recipe, REFURBISH, store) as loader:
        loader.load_state_dict(state)
        assert_same(wanted[len(REFURBISH) :], served(loader, len(REFURBISH)))
        assert loader.stats().hits > 0


def test_at_reuse_factor_1_every_split_serves_the_same(source: ImageFolder) -> None:
    wanted = wanted_of(source, RECIPE, STANDARD, epochs=2)
    for split in (0, 1, 2, 3):
        with replacing(source, RECIPE.at(split), STANDARD) as loader:
            assert_same(wanted, served(loader, len(wanted)))


def test_good_samples_are_served_once_an_epoch_but_for_replacements(source: ImageFolder) -> None:
    with replacing(source, RECIPE, REFURBISH, MemoryStore()) as loader:
        for epoch in range(EPOCHS):
            planned = np.concatenate([plan.indices for plan in REFURBISH.epoch(epoch)])
            shown = torch.cat([indices for _, _, indices in loader]).numpy()
            assert np.array_equal(shown[~np.isin(planned, list(BAD))], planned[~np.isin(planned, list(BAD))])
            assert not np.isin(shown, list(BAD)).any()


def test_no_image_comes_twice(source: ImageFolder) -> None:
    with replacing(source, RECIPE, STANDARD) as loader:
        images = torch.cat([batch[0] for batch in served(loader, EPOCHS * len(loader))])
    assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_a_replacement_is_of_the_same_shard_and_drawn_for_each_version() -> None:
    planner = Standard(60, batch_size=6, seed=3, shards=3)
    substitutes = Substitutes(planner)
    bad = owned(planner, 1)[::2]
    for index in bad.tolist():
        substitutes.add(SampleError(index, "", ""))
    indices, versions = np.repeat(bad, 50), np.tile(np.arange(50), len(bad))
    found = substitutes.of(indices, versions)
    assert set(found.tolist()) == set(owned(planner, 1)[1::2].tolist())
    assert np.array_equal(substitutes.of(owned(planner, 0), owned(planner, 0)), owned(planner, 0))


def test_kernels_replace_the_same_samples(source: ImageFolder) -> None:
    """Their pixels are DALI's but for a level."""
    pytest.importorskip("numba")
    wanted = wanted_of(source, RECIPE, REFURBISH, epochs=2)
    with replacing(source, RECIPE, REFURBISH, kernels="numba") as loader:
        found = served(loader, len(wanted))
    with replacing(source, RECIPE, REFURBISH, MemoryStore(), kernels="numba") as loader:
        assert_same(found, served(loader, len(wanted)))
    for (images, labels, indices), (others, *rest) in zip(wanted, found, strict=True):
        assert torch.equal(labels, rest[0])
        assert torch.equal(indices, rest[1])
        assert (images - others).abs().max() < 1.01 / 255 / 0.224


@pytest.mark.parametrize("decoded", ["BMP", "16-bit PNG"])
def test_the_bad_one_behind_what_pillow_decodes_is_named_replaced_and_quarantined(decoded: str, tmp_path: Path) -> None:
    """Of a batch's rows kernels give DALI the encoded ones alone: its rows are others."""
    pytest.importorskip("numba")
    deep = Image.fromarray(np.linspace(0, 65535, 60 * 80).astype(np.uint16).reshape(60, 80))
    by_pillow = encoded("BMP") if decoded == "BMP" else encode(deep, "PNG")
    damaged = bad_content("PNG damaged")  # Only the graph notices it.
    paths = [tmp_path / str(number) for number in range(6)]
    contents = by_pillow, encoded("JPEG"), by_pillow, damaged, encoded("PNG"), damaged
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    source, quarantine = FileList(paths, range(6)), tmp_path / "bad.jsonl"
    given = source, evaluate(SIZE), Evaluate(6, batch_size=6)
    with replacing(*given, kernels="numba", quarantine=quarantine) as loader:
        ((_, _, indices),) = served(loader, 1)
        assert [(each.index, each.name) for each in loader.bad_samples()] == [(3, str(paths[3])), (5, str(paths[5]))]
    assert [json.loads(line)["index"] for line in quarantine.read_text().splitlines()] == [3, 5]
    assert indices[[0, 1, 2, 4]].tolist() == [0, 1, 2, 4]
    assert set(indices.tolist()) == {0, 1, 2, 4}
    with Loader(*given, kernels="numba") as loader, pytest.raises(SampleError, match="decoding failed") as caught:
        next(iter(loader))
    assert caught.value.index == 3


# AutoAssist


def assisted(source: ImageFolder, store: MemoryStore | None, *, stops: tuple[int, ...]) -> tuple[Batches, list[str]]:
    """Serve 26 batches with losses that tell samples apart; stop and resume after some."""
    planner = AutoAssist(STANDARD, lag=12)
    found: Batches = []
    state = None
    for first, last in zip((0, *stops), (*stops, 26), strict=True):
        with replacing(source, RECIPE, planner, store, look_ahead=1) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in islice(endless(loader), last - first):
                found.append(batch)
                loader.observe(batch[2].numpy() % 5 + 0.5)
            state = loader.state_dict()
            report = [sample.name for sample in loader.bad_samples()]
    return found, report


def test_an_assistant_plans_the_same_whatever_is_cached_and_after_a_resume(source: ImageFolder) -> None:
    """After a resume, features are computed on demand."""
    wanted, report = assisted(source, None, stops=())
    assert len(report) == len(BAD)
    assert_same(wanted, assisted(source, MemoryStore(), stops=())[0])
    assert_same(wanted, assisted(source, MemoryStore(), stops=(13, 20))[0])


@pytest.mark.parametrize("on_demand", [False, True])
def test_an_assistant_sees_black_images_in_place_of_bad_samples(on_demand: bool, source: ImageFolder) -> None:
    planner = AutoAssist(STANDARD, lag=12)
    with replacing(source, RECIPE, planner, look_ahead=1) as loader:
        assistant = loader._assistant
        assert assistant is not None
        if on_demand:
            inputs = assistant._difficulty.inputs(np.arange(NUM_SAMPLES))
        else:
            for _, _, indices in islice(loader, len(STANDARD)):
                loader.observe(np.ones(len(indices)))
            assert not len(assistant.features.missing(np.arange(NUM_SAMPLES)))
            inputs = assistant._difficulty.inputs(np.arange(NUM_SAMPLES))
        assert len(loader.bad_samples()) == len(BAD)
    black = np.flatnonzero((inputs[:, :-1] == inputs[:, :-1].min()).all(axis=1))
    assert black.tolist() == sorted(BAD)


# What is reported, and not tried again


def test_the_report_lists_the_bad_samples_and_the_reasons(source: ImageFolder) -> None:
    with replacing(source, RECIPE, STANDARD) as loader:
        assert loader.bad_samples() == []
        served(loader, len(loader))
        report = loader.bad_samples()
    assert {sample.index: sample.name for sample in report} == {index: source.name(index) for index in BAD}
    assert [sample.index for sample in report] == sorted(BAD)
    reasons = {BAD[sample.index]: sample.reason for sample in report}
    assert "No such file" in reasons["missing"]
    assert reasons["empty"] == "is empty"
    assert "not an image that can be decoded" in reasons["text"]
    assert "60,000 pixels at most, but its header declares 300 x 201" in reasons["too large"]
    for kind in ("JPEG cut short", "PNG damaged", "TIFF cut short"):
        assert reasons[kind].startswith("decoding failed (")


@pytest.mark.parametrize("store", [None, MemoryStore, SmallStore, LeakyStore, ForgetfulStore])
def test_a_sample_known_to_be_bad_is_not_read_again(store: type[MemoryStore] | None, source: ImageFolder) -> None:
    counting = Counting(source)
    with replacing(counting, RECIPE, REFURBISH, store and store()) as loader:
        served(loader, len(loader))
        before = counting.reads.copy()
        served(loader, EPOCHS * len(loader))
        after = counting.reads - before
    assert not BAD.keys() & after.keys()
    assert after.keys()


def test_all_bad_samples_of_a_run_are_found_at_once(tmp_path: Path) -> None:
    """Half are bad; they are read once, and the run is made once more, however many they are."""
    source = ImageFolder(write_folder(tmp_path, num_samples=NUM_SAMPLES))
    bad = range(0, NUM_SAMPLES, 2)
    for index in bad:
        spoil(Path(source.name(index)), "PNG damaged")
    counting, planner = Counting(source), Standard(NUM_SAMPLES, batch_size=NUM_SAMPLES)
    with replacing(counting, RECIPE, planner, look_ahead=1) as loader:
        assert_same(expected(source, RECIPE, planner, epochs=1, bad=set(bad)), served(loader, 1))
        assert [sample.index for sample in loader.bad_samples()] == list(bad)
    reads = [counting.reads[index] for index in bad]
    assert max(reads) <= 1 + 4  # batches begun before the first has failed read them, too


def test_samples_in_quarantine_are_never_read_and_serve_the_same(source: ImageFolder, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    wanted = wanted_of(source, RECIPE, REFURBISH, epochs=1)
    with replacing(source, RECIPE, REFURBISH, quarantine=path) as loader:
        assert_same(wanted, served(loader, len(wanted)))
        report = loader.bad_samples()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["index"]: line["name"] for line in lines} == {i: source.name(i) for i in CONTENT_IS_BAD}
    counting = Counting(source)
    with replacing(counting, RECIPE, REFURBISH, quarantine=path) as loader:
        quarantined = loader.bad_samples()
        assert_same(wanted, served(loader, len(wanted)))
        assert loader.bad_samples() == report
    assert quarantined == [sample for sample in report if sample.index in CONTENT_IS_BAD]
    assert not CONTENT_IS_BAD & counting.reads.keys()
    assert len(path.read_text().splitlines()) == len(CONTENT_IS_BAD)


def test_a_sample_in_quarantine_is_not_taken_from_a_store_either(tmp_path: Path) -> None:
    source, path = ImageFolder(write_folder(tmp_path, num_samples=NUM_SAMPLES)), tmp_path / "bad.jsonl"
    store = MemoryStore()
    with replacing(source, RECIPE, REFURBISH, store, look_ahead=1) as loader:
        served(loader, len(loader))
        state = loader.state_dict()
    quarantine = Quarantine(path, num_samples=NUM_SAMPLES, source=source.fingerprint())
    for index in BAD:
        quarantine.add(BadSample(index, source.name(index), "looks bad"))
    wanted = wanted_of(source, RECIPE, REFURBISH, epochs=2)[len(REFURBISH) :]
    with replacing(source, RECIPE, REFURBISH, store, quarantine=path) as loader:
        loader.load_state_dict(state)
        assert_same(wanted, served(loader, len(wanted)))
        assert loader.stats().hits > 0


def test_what_replaces_a_bad_sample_is_not_stored_as_that_one(source: ImageFolder) -> None:
    """Else it would be served for it, with its label, by a loader that does not know yet that it is bad."""
    store = MemoryStore()
    with replacing(source, RECIPE, REFURBISH, store) as loader:
        served(loader, 2 * len(loader))
        assert loader.stats().replaced > 0
        held = {*store.held()[0].tolist()}
    assert len(held) > 0
    assert not held & {*BAD}


def test_a_state_has_all_bad_samples_that_are_known(source: ImageFolder, tmp_path: Path) -> None:
    path, known = tmp_path / "bad.jsonl", [BadSample(index, source.name(index), "looks bad") for index in range(12)]
    quarantine = Quarantine(path, num_samples=NUM_SAMPLES, source=source.fingerprint())
    for sample in known:
        quarantine.add(sample)
    with replacing(source, RECIPE, STANDARD, quarantine=path) as loader:
        state = loader.state_dict()
    with replacing(source, RECIPE, STANDARD) as loader:
        loader.load_state_dict(state)
        assert loader.bad_samples() == known
    other, mine = tmp_path / "mine.jsonl", BadSample(12, source.name(12), "looks bad")
    Quarantine(other, num_samples=NUM_SAMPLES, source=source.fingerprint()).add(mine)
    with replacing(source, RECIPE, STANDARD, quarantine=other) as loader:
        loader.load_state_dict(state)
        assert loader.bad_samples() == [*known, mine]


def test_a_quarantine_that_cannot_be_written_any_more_costs_one_warning(source: ImageFolder, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with replacing(source, RECIPE, STANDARD, quarantine=folder / "bad.jsonl") as loader:
        (folder / "bad.jsonl").unlink()
        folder.rmdir()
        with pytest.warns(UserWarning, match=r"bad\.jsonl cannot be written") as caught:
            served(loader, len(loader))
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON\n", "line 1 of .* is 'no JSON': delete the line, or pass the path of another file"),
        ('{"source": "other", "index": 3, "name": "x.jpg", "reason": "y"}\n', r"about sample 3 \(x.jpg\) of another"),
        ("\xff", "must be a text file that can be read and written"),
    ],
)
def test_a_quarantine_of_another_kind_or_source_is_refused(
    content: str, message: str, source: ImageFolder, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=message):
        replacing(source, RECIPE, STANDARD, quarantine=tmp_path / "bad.jsonl")


def test_a_quarantine_whose_last_line_was_left_without_its_end_goes_on_with_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    samples = [BadSample(index, f"{index}.jpg", "looks bad") for index in range(3)]
    for sample in samples:
        Quarantine(path, num_samples=3, source={}).add(sample)
        path.write_text(path.read_text().rstrip("\n"))
    assert Quarantine(path, num_samples=3, source={}).samples == samples
    path.write_text(path.read_text().replace("\n", "\n\n") + "\n \n")
    assert Quarantine(path, num_samples=3, source={}).samples == samples
    with pytest.raises(ConfigurationError, match=r"line 5 of .* is about sample 2 \(2\.jpg\) of another one"):
        Quarantine(path, num_samples=2, source={})


def test_a_line_of_a_quarantine_that_was_written_in_part_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    first, second = BadSample(0, "0.jpg", "looks bad"), BadSample(1, "1.jpg", "looks bad")
    Quarantine(path, num_samples=3, source={}).add(first)
    whole = path.read_bytes()
    Quarantine(path, num_samples=3, source={}).add(second)
    line = path.read_bytes()[len(whole) :].rstrip()
    for written in range(len(line)):
        path.write_bytes(whole + line[:written])
        quarantine = Quarantine(path, num_samples=3, source={})
        assert quarantine.samples == [first]
        quarantine.add(second)
        assert Quarantine(path, num_samples=3, source={}).samples == [first, second]


def test_the_users_home_folder_can_begin_the_path_of_a_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    BadSamplePolicy("replace", quarantine="~/bad.jsonl")
    Quarantine("~/bad.jsonl", num_samples=3, source={}).add(BadSample(1, "1.jpg", "looks bad"))
    assert "1.jpg" in (tmp_path / "bad.jsonl").read_text()


def test_a_quarantine_in_no_folder_is_refused(source: ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pass the path of a file in a folder that is there"):
        replacing(source, RECIPE, STANDARD, quarantine=tmp_path / "nowhere" / "bad.jsonl")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "."])
def test_what_is_no_file_is_no_quarantine_and_is_not_read_without_end(path: str) -> None:
    with pytest.raises(ConfigurationError, match=f"but {path} is not: it is no regular file"):
        Quarantine(path, num_samples=3, source={})


# What cannot be replaced, or is not to be


def test_without_a_good_sample_in_sight_the_error_says_how_many_are_bad(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=30))
    for index in range(30):
        Path(source.name(index)).rename(Path(source.name(index)).with_suffix(".gone"))
    planner = Standard(30, batch_size=6)
    message = r"to replace sample \d+, but 128 that were drawn are bad, as are at least \d+ of the 30 samples of its "
    with replacing(source, RECIPE, planner) as loader, pytest.raises(LoaderError, match=message) as caught:
        next(iter(loader))
    assert "cannot be read: No such file or directory; " in str(caught.value)


def test_of_a_shard_without_a_good_sample_its_own_bad_ones_are_told() -> None:
    planner = Standard(60, batch_size=6, seed=3, shards=2)
    substitutes, mine = Substitutes(planner), owned(planner, 1)
    for index in (*mine.tolist(), *owned(planner, 0)[:7].tolist()):
        substitutes.add(SampleError(index, "", f"of {int(index in mine)}"))
    with pytest.raises(
        LoaderError, match=r"at least 30 of the 30 samples of its shard \((sample \d+ \(\): of 1; ){3}\.\.\.\)"
    ):
        substitutes.of(mine[:2], np.zeros(2, np.int64))


def test_of_three_bad_samples_all_are_named() -> None:
    substitutes = Substitutes(Standard(3, batch_size=3))
    for index in range(3):
        substitutes.add(SampleError(index, "", f"of {index}"))
    with pytest.raises(LoaderError, match=r"3 of the 3 .*: of 0; sample 1 \(\): of 1; sample 2 \(\): of 2\): see"):
        substitutes.of(np.arange(3), np.zeros(3, np.int64))


def test_where_all_samples_are_bad_the_error_alone_tells_it(caplog: pytest.LogCaptureFixture) -> None:
    substitutes = Substitutes(Standard(10, batch_size=2))
    for index in range(10):
        substitutes.add(SampleError(index, "", ""))
    assert [each.split(" so far")[0] for each in caplog.messages] == ["bad samples are replaced by others, 1 of 10"]


@pytest.mark.parametrize("batches_per_group", [1, 4])
def test_what_only_the_graph_refuses_is_named_where_bad_samples_raise(
    batches_per_group: int, source: ImageFolder
) -> None:
    names = [source.name(index) for index in (9, 0, 1, 3, 4, 10, 7, 8)]
    files = FileList(names, range(8))
    planner = Standard(8, batch_size=2)
    with Loader(
        files, RECIPE, planner, prefetch=Prefetch(num_threads=1, batches_per_group=batches_per_group)
    ) as loader:
        plans = list(planner.epoch(0))
        batches = iter(loader)
        good = next(number for number, plan in enumerate(plans) if np.isin(plan.indices, [0, 5]).any())
        for _ in range(good):
            next(batches)
        with pytest.raises(SampleError, match="decoding failed") as caught:
            next(batches)
    assert caught.value.index in plans[good].indices
    assert caught.value.name in (names[0], names[5])
    assert loader.bad_samples() == []


RAW = simple(SIZE, raw=True)


class Refusing(Arrays):
    """Raw images of which some cannot be read, or not the first time."""

    def __init__(self, num_samples: int, refused: set[int], *, once: bool = False) -> None:
        images = np.random.default_rng(0).integers(0, 255, (num_samples, SIZE, SIZE, 3), np.uint8)
        super().__init__(images, np.arange(num_samples))
        self._refused, self._once = refused, once

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        for index in self._refused & set(indices.tolist()):
            if self._once:
                self._refused.remove(index)
            raise SampleError(index, self.name(index), "cannot be read")
        return super().read(indices)


def test_runs_of_several_batches_are_made_again_as_often_as_they_fail() -> None:
    planner = Standard(16, batch_size=2)
    plans = list(planner.epoch(0))
    source = Refusing(16, {int(plans[0].indices[0]), int(plans[7].indices[0])}, once=True)
    with Loader(source, RAW, planner, prefetch=Prefetch(batches_per_group=2, look_ahead=1)) as loader:
        assert len(list(loader)) == 8


def test_raw_images_are_replaced_too() -> None:
    bad = {1, 5, 9}
    source, planner = Refusing(12, bad), Refurbish(12, batch_size=4, reuse_factor=2)
    with replacing(source, RAW, planner) as loader:
        wanted = served(loader, 6)
        assert {sample.index for sample in loader.bad_samples()} == bad
    with replacing(source, RAW, planner, MemoryStore()) as loader:
        assert_same(wanted, served(loader, 6))
    assert not set(torch.cat([labels for _, labels, _ in wanted]).tolist()) & bad


def test_sizes_of_bad_samples_are_those_of_what_replaces_them(source: ImageFolder) -> None:
    substitutes = Substitutes(STANDARD)
    reader = Reader(source, max_batch_size=5, num_threads=1, max_pixels=MAX_PIXELS, substitutes=substitutes)
    heights, widths = reader.sizes(np.arange(NUM_SAMPLES))
    reader.close()
    assert len(heights) == len(widths) == NUM_SAMPLES
    assert {sample.index for sample in substitutes.report()} == BAD.keys() - {9, 10}  # their headers are good


def test_a_size_of_what_is_replaced_now_is_not_made_up_for_its_targets(tmp_path: Path) -> None:
    """Its image is in a store of an earlier run."""
    files = FileList([tmp_path / f"{index}.png" for index in range(6)], range(6))
    for index in range(1, 6):
        Image.new("RGB", (20, 10)).save(files.name(index))
    source = Annotated(files, {"id": Values(range(6))})
    substitutes = Substitutes(Standard(6, batch_size=2))
    with closing(Reader(source, max_batch_size=4, num_threads=1, substitutes=substitutes)) as reader:
        assert [sizes.tolist() for sizes in reader.known_sizes(np.array([3, 1]))] == [[10, 10], [20, 20]]
        with pytest.raises(SampleError, match=r"sample 0 .*its size is needed for its targets, and cannot be read"):
            reader.known_sizes(np.array([3, 0]))


# Settings


def test_a_state_belongs_to_what_is_done_about_bad_samples(source: ImageFolder) -> None:
    with Loader(source, RECIPE, STANDARD, kernels="dali") as loader:
        state = loader.state_dict()
    assert not {"on_bad_sample", "max_pixels"} & state["fingerprint"].keys()
    with replacing(source, RECIPE, STANDARD) as loader, pytest.raises(StateMismatchError) as caught:
        loader.load_state_dict(state)
    assert caught.value.keys == ("max_pixels", "on_bad_sample")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_bad_sample": "skip"}, "on_bad_sample must be 'raise' or 'replace', got 'skip'"),
        ({"quarantine": "bad.jsonl"}, "on_bad_sample must be 'replace' with a quarantine, got 'raise': pass on_bad_s"),
        ({"max_pixels": 0}, "max_pixels must be an int of at least 1, got 0: None for any size"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], message: str, source: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match=message):
        flat_loader(source, RECIPE, STANDARD, **options)


def of_sizes(sizes: list[tuple[int, int]]) -> TorchDataset:
    """Images of these heights and widths, each filled with its index, which is its label, too."""
    images = [np.full((*size, 3), index, np.uint8) for index, size in enumerate(sizes)]
    return TorchDataset([(image, 0) for image in images], labels=np.arange(len(images)), thread_safe=True)


@pytest.mark.parametrize("kernels", [None, "dali"])
@pytest.mark.parametrize("split", [0, 1])
def test_an_image_too_small_for_a_stage_is_replaced_and_not_quarantined(
    tmp_path: Path, split: int, kernels: Literal["dali"] | None
) -> None:
    source = of_sizes([{3: (20, 48), 11: (40, 31)}.get(index, (40, 48)) for index in range(16)])
    recipe = Recipe([CenterCrop(32)], Output(32, mean=(0, 0, 0), std=(1 / 255,) * 3), split=split)
    planner = Refurbish(16, batch_size=4, reuse_factor=2)
    options: dict[str, Any] = {"on_bad_sample": "replace", "quarantine": tmp_path / "bad.jsonl", "kernels": kernels}
    with flat_loader(source, recipe, planner, MemoryStore(), **options) as loader:
        for _ in range(3):
            for pictures, labels in loader:
                shown = pictures[:, 0, 0, 0].round().long()
                assert shown.tolist() == labels.tolist()
                assert not {3, 11} & {*shown.tolist()}
        assert [(sample.index, sample.reason) for sample in loader.bad_samples()] == [
            (3, "center_crop: images must have at least 32 x 32 pixels, got 20 x 48; put a resize before it"),
            (11, "center_crop: images must have at least 32 x 32 pixels, got 40 x 31; put a resize before it"),
        ]
    path = tmp_path / "bad.jsonl"
    assert not path.exists() or not path.read_text()


def test_an_image_of_another_size_than_a_random_crop_takes_is_named() -> None:
    source = of_sizes([(20 if index == 5 else 40, 40) for index in range(8)])
    recipe = Recipe([RandomCrop(32, margin=8)], Output(32), split=0)
    with (
        Loader(source, recipe, Standard(8, batch_size=4)) as loader,
        pytest.raises(SampleError, match=r"sample 5 .*: random_crop: images must be 40 x 40 pixels .* got 20 x 40"),
    ):
        list(loader)


def test_a_stored_image_that_the_final_part_cannot_take_is_never_served(tmp_path: Path) -> None:
    """A file is filled under a final part that takes any image, and opened for one that refuses small ones."""
    source = of_sizes([(24 if index == 5 else 40, 48) for index in range(8)])

    def recipe(first: Stage) -> Recipe:
        return Recipe([HorizontalFlip(), first, CenterCrop(32, name="square")], Output(32), split=1)

    planner = Frozen(8, batch_size=4)
    with DiskStore(tmp_path / "cache") as store, Loader(source, recipe(Resize(32)), planner, store) as loader:
        list(loader)
    for first, views in ((CenterCrop(32), []), (Resize(32), [recipe(CenterCrop(32))])):
        policy = BadSamplePolicy(on_bad_sample="replace")
        with DiskStore(tmp_path / "cache") as store, pytest.raises(StoreError, match="final_stages"):
            Loader(source, recipe(first), planner, store, views=views, bad_samples=policy)


def test_a_coverage_is_proposed_for_images_that_a_loader_takes() -> None:
    source = of_sizes([(20 if index == 5 else 40, 48) for index in range(8)])
    recipe = Recipe([HorizontalFlip(), CenterCrop(32)], Output(32), split=1)
    with pytest.raises(SampleError, match=r"sample 5 .*: center_crop: images must have at least 32 x 32 pixels"):
        propose_coverage(source, recipe, Refurbish(8, batch_size=4, reuse_factor=2), "1MB")


class Odd(Arrays):
    """Raw images of which number 3 is another thing."""

    def __init__(self, images: NDArray[np.uint8], odd: Any) -> None:
        super().__init__(images, np.arange(len(images)))
        self._odd = odd

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [self._odd if index == 3 else self._images[index] for index in indices.tolist()]


@pytest.mark.parametrize("kernels", ["dali", None])
@pytest.mark.parametrize(
    ("odd", "got"),
    [
        (np.zeros((SIZE, SIZE, 1), np.uint8), rf"uint8 of shape \({SIZE}, {SIZE}, 1\)"),
        (np.zeros((SIZE, SIZE, 4), np.uint8), rf"uint8 of shape \({SIZE}, {SIZE}, 4\)"),
        (np.zeros((SIZE, SIZE + 1, 3), np.uint8), rf"uint8 of shape \({SIZE}, {SIZE + 1}, 3\)"),
        (np.zeros((0, SIZE, 3), np.uint8), rf"uint8 of shape \(0, {SIZE}, 3\)"),
        (np.zeros((SIZE, SIZE, 6), np.uint8)[..., ::2], rf"uint8 of shape \({SIZE}, {SIZE}, 3\)"),
        (np.zeros((SIZE, SIZE, 3)), "float64"),
        ([[0]], "list"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_image_of_the_declared_shape_is_named_or_replaced(odd: Any, got: str, kernels: Any) -> None:
    images = np.random.default_rng(0).integers(0, 255, (12, SIZE, SIZE, 3), np.uint8)
    planner = Standard(12, batch_size=4)
    with (
        Loader(Odd(images, odd), RAW, planner, kernels=kernels) as loader,
        pytest.raises(SampleError, match=rf"sample 3 \(images\[3\]\): .*\({SIZE}, {SIZE}, 3\).* got {got}"),
    ):
        list(loader)
    with Loader(
        Odd(images, odd), RAW, planner, kernels=kernels, bad_samples=BadSamplePolicy(on_bad_sample="replace")
    ) as loader:
        assert len(list(loader)) == 3
        assert [sample.index for sample in loader.bad_samples()] == [3]


@pytest.mark.parametrize(
    ("read", "got"),
    [
        (np.zeros((4, SIZE, SIZE, 3), np.float32), "float32 of shape"),
        (np.zeros((4, SIZE, SIZE + 1, 3), np.uint8), rf"uint8 of shape \({SIZE}, {SIZE + 1}, 3\)"),
        (np.zeros((4, SIZE, SIZE, 4), np.uint8), rf"uint8 of shape \({SIZE}, {SIZE}, 4\)"),
        (np.zeros((4, SIZE, SIZE, 6), np.uint8)[..., ::2], rf"uint8 of shape \({SIZE}, {SIZE}, 3\)"),
    ],
)
def test_one_array_of_what_are_no_images_of_the_declared_shape_is_refused_as_its_rows_are(read: Any, got: str) -> None:
    source: Any = Arrays(np.zeros((4, SIZE, SIZE, 3), np.uint8), np.arange(4))
    source.read = lambda indices: read[: len(indices)]
    told = rf"sample 2 \(images\[2\]\): .*\({SIZE}, {SIZE}, 3\).* got {got}"
    with closing(Reader(source, max_batch_size=4, num_threads=1)) as reader, pytest.raises(SampleError, match=told):
        reader.sizes(np.array([2, 1]))


def test_what_is_no_image_of_any_shape_and_no_encoded_one_is_named(source: ImageFolder) -> None:
    of_any = Odd(np.ones((4, SIZE, SIZE, 3), np.uint8), np.zeros((0, SIZE, 3), np.uint8))
    of_any.image_shape = None
    wanted = "the source must return"
    with (
        closing(Reader(of_any, max_batch_size=4, num_threads=1)) as reader,
        pytest.raises(
            SampleError, match=rf"sample 3 .*: {wanted} an image, uint8 of shape \(height, width, 3\), .*\(0, "
        ),
    ):
        reader.sizes(np.arange(4))
    of_any.encoded = True
    with (
        closing(Reader(of_any, max_batch_size=4, num_threads=1)) as reader,
        pytest.raises(
            SampleError, match=rf"sample 0 .*: {wanted} encoded bytes, uint8 of shape \(length,\), .*\({SIZE}, "
        ),
    ):
        reader.sizes(np.arange(3))


@pytest.mark.parametrize("raw", [False, True])
def test_a_store_filled_with_images_that_are_too_large_now_is_refused(source: ImageFolder, raw: bool) -> None:
    """Else what is served would depend on what it holds."""
    store = MemoryStore()
    planner = Refurbish(NUM_SAMPLES, batch_size=5, reuse_factor=2)
    given: Any = source, RECIPE, planner
    if raw:
        given = of_sizes([(40 + index, 48) for index in range(NUM_SAMPLES)]), RECIPE.for_arrays(), planner
    policy = BadSamplePolicy(on_bad_sample="replace", max_pixels=None)
    with Loader(*given, store, bad_samples=policy, kernels="dali") as loader:
        list(loader)
    with pytest.raises(StoreError, match="max_pixels"):
        replacing(*given, store)


@pytest.mark.parametrize("kind", ["text", "WebP cut short", "PNG damaged"])
def test_what_is_raised_has_no_chain_of_dalis_tracebacks(tmp_path: Path, kind: str) -> None:
    source = among_good_ones(tmp_path / "files", bad_content(kind))
    with Loader(source, RECIPE, Standard(3, batch_size=3)) as loader, pytest.raises(SampleError) as caught:
        next(iter(loader))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "nvImageCodec" not in str(caught.value)


def test_that_samples_are_replaced_is_logged_now_and_at_ten_times_as_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = ImageFolder(write_folder(tmp_path / "files", num_samples=40))
    for index in range(12):
        Path(source.name(index)).write_text("no image")
    policy = BadSamplePolicy("replace", quarantine=tmp_path / "bad.jsonl")
    planner = Standard(40, batch_size=8)
    for told in ([1, 10], []):
        caplog.clear()
        with caplog.at_level("INFO", "dalirefurb"), Loader(source, RECIPE, planner, bad_samples=policy) as loader:
            for _ in loader:
                pass
        said = [each for each in caplog.messages if each.startswith("bad samples are replaced by others, ")]
        assert [int(each.split(" ")[6]) for each in said] == told
        assert all("of 40 so far" in each and "Loader.bad_samples() lists them" in each for each in said)
    assert caplog.messages.count("12 samples that the quarantine names are replaced by others") == 1


@pytest.mark.parametrize("row", [0, 2])
def test_what_a_gpus_decoder_alone_refuses_is_pillows_from_then_on(tmp_path: Path, row: int) -> None:
    indices = np.arange(4)
    write_folder(tmp_path, num_samples=4)
    with closing(Reader(ImageFolder(tmp_path), max_batch_size=4, num_threads=1, passes_images=True)) as reader:
        samples = reader.read_now(indices, np.zeros(4, np.int64))
        assert reader.reconsider(samples, GraphError(f"Failed to decode sample #{row} : nothing"))
        again = reader.read_now(indices, np.zeros(4, np.int64))
    assert [sample.ndim == 3 for sample in again.data] == (indices == row).tolist()
