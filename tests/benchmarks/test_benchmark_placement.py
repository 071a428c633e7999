import json
import multiprocessing
import os
import signal
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import islice
from pathlib import Path

import numpy as np
import placement as script
import pytest
import torch
from feeds import FEEDS
from harness import cores, stepped
from networks import NETWORKS
from placement_units import ALONE, HEADSPACE, Config, Turn, Workload, feed_names

from dalirefurb import Arrays

SIZE, BATCH = 32, 4


@pytest.fixture(scope="module")
def arrays():
    images = np.random.default_rng(0).integers(0, 256, (8, SIZE, SIZE, 3), np.uint8)
    return Arrays(images, np.arange(8))


def turn(feed, *, images=100, seconds=1.0, step_ms=None, model=ALONE, count=1, number=0):
    return Turn("photographs", count, model, number, feed, images, seconds, step_ms)


def first_batches(entrant, taken, count):
    with entrant.turn() as contender:
        assert list(islice(stepped(contender), count)) == [BATCH] * count
    return taken


@pytest.mark.weekly  # A script for a GPU.
@pytest.mark.parametrize("feed", [feed for feed in FEEDS if not feed.needs_gpu], ids=lambda feed: feed.name)
def test_every_feed_serves_normalised_images_with_labels_of_its_source(feed, arrays):
    taken = []
    with ExitStack() as stack:

        def take(images, labels):
            taken.append((images.clone(), labels.clone()))

        first_batches(feed.entrant(stack, arrays, SIZE, BATCH, take), taken, 4)
    for images, labels in taken:
        assert images.shape == (BATCH, 3, SIZE, SIZE)
        assert images.dtype == torch.float32
        assert 0.3 < images.std() < 3
        assert labels.shape == (BATCH,)
        assert labels.dtype == torch.int64
    assert {int(label) for _, labels in taken for label in labels} == set(range(8))


def test_a_loader_that_has_settled_begins_its_turn_with_hits(arrays):
    with ExitStack() as stack:
        entrant = FEEDS[1].entrant(stack, arrays, SIZE, BATCH, lambda *_: None)
        assert entrant._state["epoch"] >= 1
        first_batches(entrant, [], 1)
        assert entrant.stats[0].hits > entrant.stats[0].misses


@pytest.fixture(scope="module")
def quick(folder, tmp_path_factory):
    """The JSON of a quick run on photographs, and what was printed."""
    mosaics = tmp_path_factory.mktemp("mosaics")
    (mosaics / "train_0_none.webp").touch()
    out = tmp_path_factory.mktemp("results") / "placement.json"
    arguments = ["--quick", "--data", folder, "--arrays", mosaics, "--out", out]
    with redirect_stdout(StringIO()) as said:
        assert script.EXPERIMENT.main([*map(str, arguments)]) == 0
    return json.loads(out.read_text()), said.getvalue()


@pytest.mark.weekly
def test_each_feed_that_needs_no_gpu_has_a_turn_and_then_nothing_is_left(quick):
    results, said = quick
    if torch.cuda.is_available():
        pytest.skip("with a GPU there are more feeds")
    feeds = ["cpu/cpu, standard", "cpu/cpu, reuse factor 3", "stock DALI, cpu", HEADSPACE]
    assert [each["feed"] for each in results["results"]["turns"]] == feeds
    assert all(feed in said for feed in feeds)
    config = script.EXPERIMENT.quick
    assert script.left(config, []) != []
    assert script.left(config, [Turn(**each) for each in results["results"]["turns"]]) == []


def test_all_units_are_listed_until_their_turns_are_there(monkeypatch):
    monkeypatch.setattr(script.harness, "cores", lambda: 4)
    config = Config()
    units = script.left(config, [])
    assert len(set(units)) == len(units) == 3 * 2 * 3 * 3  # workloads' models, cores 4, 2, 1, rounds
    assert {unit.round for unit in units[: len(units) // 3]} == {0}
    assert {unit.model for unit in units[:6]} == {ALONE}
    first = units[0]
    done = Turn(first.workload.data, first.cores, first.model, first.round, "", 1, 1.0, None)
    assert script.left(config, [done]) == units[1:]


def misbehave(config, unit, photographs, arrays, feeds, report):
    """Take the turns of feeds in a process, each as its name says."""
    for feed in feeds:
        report.send(feed)
        if feed == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if feed == "hangs":
            signal.pause()
        report.send(unit.turn(feed, images=7, seconds=1.0, step_ms=None))


def never_begin(*_):
    raise SystemExit(4)


@pytest.mark.weekly
def test_a_feed_that_ends_its_process_or_hangs_is_a_result_and_the_others_have_their_turns(monkeypatch):
    """However long processes take to begin and to end: time is short only for the feed that hangs, once it does."""
    told, limits = script._told, {"turn": 900}

    def patient(report, limit_s):
        answer = told(report, limits["turn"])
        if answer == "hangs":
            limits["turn"] = 0
            monkeypatch.setattr(script, "_ENDING_S", 0)
        return answer

    monkeypatch.setattr(script, "_told", patient)
    monkeypatch.setattr(script, "take_turns", misbehave)
    monkeypatch.setattr(script, "_ENDING_S", 900)
    unit = script.left(Config(), [])[0]
    feeds = ["first", "dies", "second", "hangs"]
    turns = list(script.turns_of(Config(), unit, Path(), Path(), feeds))
    failed = {"dies": f"ended with {-signal.SIGSEGV}", "hangs": "hung"}
    assert [(each.feed, each.images, each.failure) for each in turns] == [
        (feed, 0 if feed in failed else 7, failed.get(feed)) for feed in feeds
    ]
    assert all(each.is_of(unit) for each in turns)
    assert multiprocessing.active_children() == []


@pytest.mark.weekly
def test_a_process_in_which_no_feed_begins_is_an_error(monkeypatch):
    monkeypatch.setattr(script, "take_turns", never_begin)
    unit = script.left(Config(), [])[0]
    with pytest.raises(RuntimeError, match=r"ended with 4 before one of \['a'\] began"):
        list(script.turns_of(Config(), unit, Path(), Path(), ["a"]))


def test_a_failure_is_told_in_the_table():
    config = replace(Config(), workloads=(Workload("photographs", 32, 1, 1, (ALONE,)),))
    turns = [turn("a", images=100), replace(turn("b", images=0, seconds=0.0), failure="hung")]
    said = script.show(config, turns)
    assert [line.split() for line in said.splitlines() if "hung" in line] == [["b", "hung"]]


def test_more_cores_than_there_are_are_left_out():
    assert {unit.cores for unit in script.left(Config(), [])} == {
        count for count in (1, 2, 4, 8, 16) if count <= cores()
    }


def test_what_a_feed_takes_is_the_longer_step_of_the_same_round():
    turns = [
        turn("a", step_ms=12.0, number=0),
        turn(HEADSPACE, step_ms=10.0, number=0),
        turn("a", step_ms=23.0, number=1),
        turn(HEADSPACE, step_ms=20.0, number=1),
        turn("a", step_ms=99.0, number=2),
    ]
    assert script.taken_ms(turns, "a") == [2.0, 3.0]


def test_a_table_has_a_row_for_each_feed_and_a_column_for_each_number_of_cores():
    workload = Workload("photographs", 32, 1, 1, (ALONE, "resnet8"))
    config = replace(Config(), workloads=(workload,))
    turns = [
        turn("a", images=100, count=1),
        turn("a", images=300, count=2),
        turn("b", step_ms=3.0, model="resnet8"),
        turn(HEADSPACE, step_ms=1.0, model="resnet8"),
    ]
    said = script.show(config, turns)
    assert "1 cores" in said
    assert "2 cores" in said
    assert "300 [too few rounds]" in said
    assert "+2.0 ms" in said


def test_there_is_a_feed_for_each_placement_with_and_without_reuse_and_stock_dali_on_both():
    assert [feed.name for feed in FEEDS] == [
        "cpu/cpu, standard",
        "cpu/cpu, reuse factor 3",
        "cpu/gpu, standard",
        "cpu/gpu, reuse factor 3",
        "gpu/gpu, standard",
        "gpu/gpu, reuse factor 3",
        "stock DALI, cpu",
        "stock DALI, gpu",
        "stock DALI, gpu, no JPEG engine",
    ]


def test_arrays_have_no_turn_without_the_jpeg_engine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = {unit.workload.data: feed_names(unit) for unit in script.left(Config(), [])}
    assert set(names["photographs"]) - set(names["arrays"]) == {"stock DALI, gpu, no JPEG engine"}


def test_every_model_of_the_configuration_can_be_built():
    models = {model for workload in Config().workloads for model in workload.models} - {ALONE}
    assert models <= NETWORKS.keys()
