import sys
from contextlib import ExitStack
from itertools import islice

import gpu_rivals
import pytest
import rival_turn
import torch
from competitors.gpu_rows import GPU_ROWS
from feeds import FEEDS
from first_light.findings import DONE
from gpu_rivals import Config, RivalTurn
from harness import stepped
from networks import NETWORKS
from sources import repeated
from training_steps import ALONE, HEADSPACE

from tests.benchmarks.running import quick


def turn(feed, *, model="imagenet50", cores=1, number=0, step_ms=10.0, augment_ms=None, ended=DONE, images=100):
    return RivalTurn(feed, model, cores, number, ended, images, 1.0, step_ms, augment_ms)


@pytest.mark.weekly  # A script for a GPU.
@pytest.mark.parametrize("feed", [feed for feed in FEEDS if not feed.needs_gpu], ids=lambda feed: feed.name)
def test_every_feed_serves_normalised_images_with_labels_of_its_source(feed, folder):
    taken = []

    def take(images, labels):
        taken.append((images.clone(), labels.clone()))

    with ExitStack() as stack:
        entrant = feed.entrant(stack, repeated(folder, 8), 32, 4, take)
        with entrant.turn() as contender:
            assert list(islice(stepped(contender), 4)) == [4] * 4
    for images, labels in taken:
        assert (images.shape, images.dtype) == ((4, 3, 32, 32), torch.float32)
        assert 0.3 < images.std() < 3
        assert (labels.shape, labels.dtype) == ((4,), torch.int64)
    assert {int(label) for _, labels in taken for label in labels} == {*repeated(folder, 8).labels.tolist()}


def test_a_loader_that_has_settled_begins_its_turn_with_hits(folder):
    with ExitStack() as stack:
        entrant = FEEDS[1].entrant(stack, repeated(folder, 8), 32, 4, lambda *_: None)
        assert entrant._state["epoch"] >= 1
        with entrant.turn() as contender:
            next(contender.batches)
        assert entrant.stats[0].hits > entrant.stats[0].misses


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


def test_every_model_of_the_configuration_can_be_built():
    assert {*Config().models} - {ALONE} <= NETWORKS.keys()


@pytest.mark.weekly
def test_feeds_that_are_there_have_their_turns_on_a_cpu_and_the_others_are_named(folder, tmp_path):
    feeds = [HEADSPACE, "cpu/cpu, reuse factor 3", *GPU_ROWS]
    arguments = ["--device", "cpu", "--data", folder, "--python", sys.executable, "--feeds", *feeds]
    results, said = quick("gpu_rivals", tmp_path / "rivals.json", *arguments)
    turns, missing = results["results"]["turns"], results["results"]["missing"]
    assert [(each["model"], each["feed"], each["ended"]) for each in turns] == [
        (model, name, DONE)
        for model in (ALONE, "resnet8")
        for name in feeds
        if name not in missing and (model, name) != (ALONE, HEADSPACE)
    ]
    assert missing.keys() <= GPU_ROWS.keys()
    assert all(f"left out: {name}: " in said for name in missing)
    assert all(each["images"] > 0 for each in turns)
    assert all((each["step_ms"] is None) == (each["model"] == ALONE) for each in turns)
    assert results["config"]["device"] == "cpu"
    assert "shows only that the script runs" in said


def test_what_a_rival_made_ahead_is_served_before_the_clock_runs(monkeypatch):
    """Two workers have two batches each; none of the four that they had before is among those that are timed."""
    asked = []

    def batches():
        for number in range(100):
            asked.append(number)
            yield 4

    monkeypatch.setattr(rival_turn, "_of_a_row", lambda *_: batches())
    monkeypatch.setattr(rival_turn.os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    job = rival_turn.Job(next(iter(GPU_ROWS)), [], [1], 32, 4, 2, "resnet8", "cpu", warm_batches=1, timed_batches=3)
    assert rival_turn.measured(job)["images"] == 12
    assert len(asked) == 2 * 2 + 1 + 3


def refused(capsys, *arguments):
    with pytest.raises(SystemExit, match="2"):
        gpu_rivals.EXPERIMENT.main([*map(str, arguments)])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_cpu_writes_no_results_among_those_of_a_gpu(capsys, folder):
    assert "pass --out FILE" in refused(capsys, "--device", "cpu", "--data", folder)


def test_without_a_gpu_it_is_refused_in_one_line(capsys, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu" in refused(capsys, "--data", folder, "--out", tmp_path / "q.json")


def test_a_feed_that_does_not_exist_is_refused(capsys, folder, tmp_path):
    arguments = ["--device", "cpu", "--data", folder, "--out", tmp_path / "q.json", "--feeds", "ffcv"]
    assert "got ['ffcv']" in refused(capsys, *arguments)


def test_a_gpu_has_all_feeds_and_all_rivals_and_a_cpu_those_that_need_no_gpu():
    assert gpu_rivals.feed_names("cuda") == [HEADSPACE, *(feed.name for feed in FEEDS), *GPU_ROWS]
    ours = ["cpu/cpu, standard", "cpu/cpu, reuse factor 3", "stock DALI, cpu"]
    assert gpu_rivals.feed_names("cpu") == [HEADSPACE, *ours, *GPU_ROWS]


def test_what_is_taken_is_the_longer_step_and_the_augmentation_before_it():
    turns = [
        turn(HEADSPACE),
        turn("dali", step_ms=11.5),
        turn("kornia", step_ms=10.5, augment_ms=4.0),
        turn("kornia", number=1, step_ms=99.0),
        turn("kornia", cores=2, step_ms=99.0),
        turn("dead", ended="died by SIGSEGV", images=0),
    ]
    assert gpu_rivals.taken_ms(turns, "dali", 1) == [1.5]
    assert gpu_rivals.taken_ms(turns, "kornia", 1) == [4.5]
    assert gpu_rivals.taken_ms(turns, "dead", 1) == []
    said = gpu_rivals.show(Config(), turns)
    assert "100 [too few rounds] +4.5 ms" in said
    assert "died by SIGSEGV" in said


def test_turns_that_are_there_are_not_taken_again(monkeypatch):
    monkeypatch.setattr(gpu_rivals.harness, "cores", lambda: 4)
    config = Config(cores=(8, 4, 1), models=("m",))
    every = gpu_rivals.left(config, [], ["a", "b"])
    assert every[:3] == [(0, "m", 4, "a"), (0, "m", 4, "b"), (0, "m", 1, "a")]
    assert every[4] == (1, "m", 4, "b")
    assert len(set(every)) == 2 * 2 * 2
    assert gpu_rivals.left(config, [turn("a", model="m", cores=4)], ["a", "b"]) == every[1:]
    alone = gpu_rivals.left(Config(models=(ALONE, "m")), [], [HEADSPACE, "a"])
    assert alone[:3] == [(0, ALONE, 4, "a"), (0, ALONE, 2, "a"), (0, ALONE, 1, "a")]
    assert alone[3:5] == [(0, "m", 4, HEADSPACE), (0, "m", 4, "a")]
