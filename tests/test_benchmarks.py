import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from dalirefurb import FileList, ImageFolder, Loader, Standard, rand_augment
from tests.pictures import write_folder

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import harness  # noqa: E402
import parts  # noqa: E402
import throughput as throughput_script  # noqa: E402

LOADERS = ["standard", "reuse factor 2", "reuse factor 3", "every sample a hit"]
PARTS = ["partial-only", "final-only"]
ROUNDS = 2


def run(script, *arguments):
    """Run a benchmark as its user does."""
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
    command = [sys.executable, "-W", "error", str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "pictures", num_samples=12)


@pytest.fixture(scope="module")
def throughput(folder, tmp_path_factory):
    """The JSON of a quick run, where it lies, and what was printed."""
    out = tmp_path_factory.mktemp("results") / "throughput.json"
    done = run("throughput.py", "--quick", "--order", "crop_last", "--data", folder, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), out, done.stdout


def contender(batches, *, name="", made_ahead=0):
    return harness.Contender(name, harness.Placement(1, 1), made_ahead, batches)


def test_every_contender_has_a_slice_in_every_round(throughput):
    results, _, _ = throughput
    (case,) = results["results"]
    taken = [(each["contender"], each["round"]) for each in case["slices"]]
    assert sorted(taken) == sorted((name, number) for name in LOADERS + PARTS for number in range(ROUNDS))
    for each in case["slices"]:
        assert each["images"] == case["batch_size"] * len(each["batch_s"])
        assert each["seconds"] == pytest.approx(sum(each["batch_s"]), abs=1e-4)


def test_the_summary_follows_from_the_raw_slices(throughput):
    results, _, _ = throughput
    (case,) = results["results"]
    speeds = {
        name: [each["images"] / each["seconds"] for each in sorted_slices(case, name)] for name in LOADERS + PARTS
    }
    costs = [(1 / partial, 1 / final) for partial, final in zip(*(speeds[name] for name in PARTS), strict=True)]
    bounds = {n: [1 / (partial / n + final) for partial, final in costs] for n in (2, 3)}
    claims = {claim["name"]: claim["figure"]["median"] for claim in case["claims"]}
    for n in (2, 3):
        refurbished = speeds[f"reuse factor {n}"]
        of_bound = [speed / bound for speed, bound in zip(refurbished, bounds[n], strict=True)]
        assert claims[f"reuse factor {n} / its bound"] == pytest.approx(median(of_bound))
        speedup = [speed / standard for speed, standard in zip(refurbished, speeds["standard"], strict=True)]
        assert claims[f"reuse factor {n} / standard"] == pytest.approx(median(speedup))
    hits = [hit / final for hit, final in zip(speeds["every sample a hit"], speeds["final-only"], strict=True)]
    assert claims["every sample a hit / final-only"] == pytest.approx(median(hits))


def sorted_slices(case, name):
    return sorted((each for each in case["slices"] if each["contender"] == name), key=lambda each: each["round"])


def test_both_parts_are_tried_at_every_placement_before_the_rounds(throughput):
    results, _, _ = throughput
    (case,) = results["results"]
    tried = {(each["contender"], each["placement"]) for each in case["calibration"]}
    assert tried == {(name, str(placement)) for name in PARTS for placement in harness.placements()}


def test_the_tables_name_every_contender_and_every_promise(throughput):
    _, _, printed = throughput
    for text in [*LOADERS, *PARTS, "reuse factor 3 / standard", "2.3", "0.92"]:
        assert text in printed


def test_the_results_describe_the_machine_but_name_no_host_and_no_folder(throughput, folder):
    results, out, _ = throughput
    assert set(results["environment"]) >= {"cpu", "cores", "python", "dali", "torch", "numpy", "commit", "date"}
    assert results["config"]["data"] == "pictures"
    text = out.read_text()
    for private in (socket.gethostname(), str(folder.parent), str(BENCHMARKS.parent)):
        assert private not in text


def test_a_plot_is_drawn_from_the_results_alone(throughput, tmp_path):
    from PIL import Image

    _, out, _ = throughput
    done = run("plot.py", "--results", out, "--out", tmp_path / "plot.png")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "plot.png") as plot:
        assert min(plot.size) > 400
    assert "harness" not in (BENCHMARKS / "plot.py").read_text()


def test_a_plot_without_results_is_refused_with_the_remedy(tmp_path):
    done = run("plot.py", "--results", tmp_path / "none.json")
    assert done.returncode == 2
    assert "run that first" in done.stderr


def test_data_that_is_no_folder_of_images_is_refused(tmp_path):
    done = run("throughput.py", "--quick", "--data", tmp_path / "none")
    assert done.returncode == 2
    assert "--data must hold one folder of images per class" in done.stderr


def test_planning_prints_and_writes_time_memory_and_drawing(tmp_path):
    done = run("planning.py", "--quick", "--out", tmp_path / "planning.json")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "planning.json").read_text())
    assert [(result["unit"], result["most"]) for result in results["results"]] == [
        ("s", 0.3),
        ("s", None),
        ("MB", 100.0),
        ("us a sample", None),
        ("us a sample", 2.0),
    ]
    for result in results["results"]:
        assert min(result["samples"]) > 0
        assert result["name"] in done.stdout


def test_batches_made_ahead_are_never_timed():
    def batches():
        for _ in range(5):
            yield 1
        while True:
            time.sleep(0.01)
            yield 1

    (taken,) = harness.interleave([contender(batches(), made_ahead=5)], rounds=1, timed_batches=4)
    assert min(taken.batch_s) >= 0.01
    assert taken.images == 4


@pytest.mark.parametrize("placement", [None, harness.Placement(3, 1)])
def test_a_loader_makes_no_more_batches_ahead_than_are_left_untimed(folder, placement):
    source = throughput_script._repeated(folder, 12)
    with ExitStack() as stack:
        taken = throughput_script._loader(stack, source, rand_augment(32), Standard(12, batch_size=4), "", placement)
        next(taken.batches)
        engine = taken.batches.gi_frame.f_locals["loader"]._engine
        assert taken.placement.replicas == len(engine._replicas)
        # One batch is handed over and not taken.
        assert taken.made_ahead >= engine._look_ahead + 1
        taken.batches.close()


def test_every_second_round_runs_backwards():
    def forever():
        while True:
            yield 1

    contenders = [contender(forever(), name=name) for name in "abc"]
    slices = harness.interleave(contenders, rounds=3, timed_batches=1)
    assert [each.contender for each in slices] == list("abccbaabc")
    assert [each.round for each in slices] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_calibration_returns_the_fastest_placement():
    best = harness.placements()[-1]

    def make(placement):
        def batches():
            while True:
                time.sleep(0.001 if placement == best else 0.01)
                yield 1

        return harness.Contender("", placement, 0, batches())

    placement, slices = harness.calibrate(make, rounds=1, timed_batches=3)
    assert placement == best
    assert len(slices) == len(harness.placements())


def test_with_every_sample_a_hit_only_epoch_0_misses_and_each_epoch_serves_each_sample_once():
    planner = parts.AllHits(12, batch_size=4, drop_last=True)
    for epoch in range(3):
        plans = list(planner.epoch(epoch))
        assert sorted(np.concatenate([plan.indices for plan in plans])) == list(range(12))
        for plan in plans:
            assert set(plan.miss.tolist()) == {epoch == 0}
            assert plan.keep.all()
            assert not len(plan.evict)
            assert not plan.version.any()
            assert set(plan.serving.tolist()) == {epoch}


@pytest.mark.parametrize("order", ["paper", "crop_last"])
def test_the_two_parts_one_after_the_other_make_the_images_that_a_loader_serves(folder, order):
    images = ImageFolder(folder)
    source = FileList([images.name(index) for index in range(8)], images.labels[:8])
    recipe = rand_augment(32, order=order)
    planner = Standard(8, batch_size=4)
    with Loader(source, recipe, planner) as loader:
        served = np.concatenate([batch.numpy() for batch, _ in loader])
    of_index = dict(zip(np.concatenate([plan.indices for plan in planner.epoch(0)]).tolist(), served, strict=True))

    halves = parts.Parts(recipe, source, batch_size=4)
    halves.make_partial_images(harness.Placement(2, 1))
    outputs = halves._run(halves._trace_final, harness.Placement(1, 1), halves._final_feeds)
    for indices, output in zip(halves._indices, outputs, strict=True):
        expected = np.stack([of_index[index] for index in indices.tolist()])
        np.testing.assert_array_equal(np.asarray(output.as_tensor()), expected)
