import importlib
import json
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from statistics import median

import dali_pipelines
import echo_slow_source
import experiment
import harness
import loaders
import numpy as np
import parts
import planning
import plot
import pytest
import small_images
import throughput as throughput_script
from sources import SlowSource, repeated

from dalirefurb import (
    Arrays,
    Echo,
    FileList,
    ImageFolder,
    Kept,
    Loader,
    Prefetch,
    Refurbish,
    SmartCache,
    Standard,
    rand_augment,
)
from dalirefurb.engine.closable_queue import ClosableQueue
from dalirefurb.engine.finisher import Served
from dalirefurb.keep.upkeep import inspect
from dalirefurb.planning import BatchEcho, Frozen
from tests.benchmarks.running import BENCHMARKS, quick, run, speeds_of
from tests.mosaics import write_mosaics

pytestmark = pytest.mark.usefixtures("traced_once")
LOADERS = ["standard", "reuse factor 2", "reuse factor 3", "reuse factor 4", "every sample a hit"]
PARTS = ["partial-only", "final-only"]
ROUNDS = 1


@pytest.fixture(scope="module")
def throughput(folder, tmp_path_factory):
    """The JSON of a quick run, where it lies, and what was printed."""
    out = tmp_path_factory.mktemp("results") / "throughput.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "keep_memory", lambda: None)  # Later tests would have that memory, too.
        written, printed = quick("throughput", out, "--order", "crop_last", "--rounds", ROUNDS, "--data", folder)
    return written, out, printed


@pytest.fixture(scope="module")
def techniques(folder, tmp_path_factory):
    """The JSON of a quick run of all techniques, where it lies, and what was printed."""
    out = tmp_path_factory.mktemp("results") / "techniques.json"
    written, printed = quick("techniques", out, "--rounds", 1, "--data", folder)
    return written, out, printed


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
    speeds = {name: speeds_of(case, name) for name in LOADERS + PARTS}
    costs = [(1 / partial, 1 / final) for partial, final in zip(*(speeds[name] for name in PARTS), strict=True)]
    # The cheapest way that was seen of each: both parts alone or standard, the final part alone or in a loader.
    wholes = [min(sum(cost), 1 / standard) for cost, standard in zip(costs, speeds["standard"], strict=True)]
    finals = [1 / max(both) for both in zip(speeds["final-only"], speeds["every sample a hit"], strict=True)]
    bounds = {n: [1 / ((w - f) / n + f) for w, f in zip(wholes, finals, strict=True)] for n in (2, 3)}
    claims = {claim["name"]: claim["figure"]["median"] for claim in case["claims"]}
    for n in (2, 3):
        refurbished = speeds[f"reuse factor {n}"]
        of_bound = [speed / bound for speed, bound in zip(refurbished, bounds[n], strict=True)]
        assert claims[f"reuse factor {n} / its bound"] == pytest.approx(median(of_bound))
        speedup = [speed / standard for speed, standard in zip(refurbished, speeds["standard"], strict=True)]
        assert claims[f"reuse factor {n} / standard"] == pytest.approx(median(speedup))
    hits = [hit / final for hit, final in zip(speeds["every sample a hit"], speeds["final-only"], strict=True)]
    assert claims["every sample a hit / final-only"] == pytest.approx(median(hits))


def test_both_parts_are_tried_at_every_placement_before_the_rounds(throughput):
    results, _, _ = throughput
    (case,) = results["results"]
    tried = {(each["contender"], each["placement"]) for each in case["calibration"]}
    assert tried == {(name, str(placement)) for name in PARTS for placement in harness.placements()}


def test_the_tables_name_every_contender_and_every_promise(throughput):
    _, _, printed = throughput
    for text in [*LOADERS, *PARTS, "reuse factor 3 / standard"]:
        assert text in printed
    assert "2.3" in printed or "IMPOSSIBLE" in printed  # Tiny windows can be above what is possible.


@pytest.mark.parametrize("batch_size", [64, 256])
def test_large_batches_are_held_to_their_bounds(batch_size):
    names = [*LOADERS, *PARTS]
    speeds = {name: [100.0, 101.0] for name in names}
    bounds = {name: [100.0, 100.0] for name in LOADERS[:-1]}
    claims = throughput_script.claims(speeds, bounds, "crop_last", batch_size)
    promised = {claim.name: claim.least for claim in claims if claim.least and "standard" not in claim.name}
    least = dict.fromkeys((f"{name} / its bound" for name in LOADERS[1:-1]), 0.90)
    assert promised == ({**least, "every sample a hit / final-only": 0.95} if batch_size == 256 else {})
    assert {claim.bound for claim in claims if claim.name.endswith("its bound")} == {1}
    gains = {claim.name: claim.bound for claim in claims if claim.name.endswith("/ standard")}
    assert gains == {f"reuse factor {n} / standard": n for n in (2, 3, 4)}


def test_the_results_describe_the_machine_but_name_no_host_and_no_folder(throughput, folder):
    results, out, _ = throughput
    assert set(results["environment"]) >= {"cpu", "cores", "python", "dali", "torch", "numpy", "commit", "date"}
    assert results["config"]["data"] == "pictures"
    text = out.read_text()
    for private in (socket.gethostname(), str(folder.parent), str(BENCHMARKS.parent)):
        assert private not in text


@pytest.mark.parametrize("script", ["throughput", pytest.param("techniques", marks=pytest.mark.weekly)])
def test_a_plot_is_drawn_from_the_results_alone(script, request, tmp_path):
    from PIL import Image

    _, out, _ = request.getfixturevalue(script)
    done = run("plot.py", "--results", out, "--out", tmp_path / "plot.png")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "plot.png") as plot:
        assert min(plot.size) > 400
    assert "harness" not in (BENCHMARKS / "plot.py").read_text()


@pytest.mark.parametrize(
    ("results", "remedy"),
    [(None, "run that first"), ({"groups": []}, "read the table"), ([{"kernel": "flip"}], "read the table")],
)
def test_a_plot_without_results_that_have_one_is_refused_with_the_remedy(
    results, remedy, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "results.json"
    if results is not None:
        path.write_text(json.dumps({"results": results}))
    monkeypatch.setattr(sys, "argv", ["plot.py", "--results", str(path)])
    assert plot.main() == 2
    assert re.fullmatch(rf"--results must .*results.json (is|has) none: {remedy}.*\n", capsys.readouterr().err)


# Partial images computed per image served, and stages in both parts.
COMPUTED = {
    "standard": (1, (4, 1)),
    "simplified by 1": (1, (3, 1)),
    "reuse factor 2": (1 / 2, (4, 1)),
    "echo before augmentation 2": (1 / 2, (1, 4)),
    "echo after augmentation 2": (1 / 2, (5, 0)),
    "batch echo 2": (1 / 2, (5, 0)),
    "SmartCache": (2 / 16, (1, 4)),
    "AutoAssist": (1, (4, 1)),
    "frozen": (0, (4, 1)),
}


@pytest.mark.weekly
def test_every_technique_is_compared_with_the_bound_of_its_own_split_and_reuse(techniques):
    results, _, printed = techniques
    case = results["results"]
    assert [each["name"] for each in case["techniques"]] == list(COMPUTED)
    claims = {claim["name"]: claim for claim in case["claims"]}
    for name, (computed, (partial, final)) in COMPUTED.items():
        (speed,) = speeds_of(case, name)
        parts = f", {partial} + {final} stages"
        (partial_speed,), (final_speed,) = (speeds_of(case, f"{part}{parts}") for part in PARTS)
        everything = name if name.startswith("simplified") else "standard" if final == 1 else f"standard{parts}"
        whole = min(1 / partial_speed + 1 / final_speed, 1 / speeds_of(case, everything)[0])
        if (partial, final) == (4, 1):
            final_speed = max(final_speed, speeds_of(case, "frozen")[0])
        of_bound = speed * (computed * (whole - 1 / final_speed) + 1 / final_speed)
        assert claims[f"{name} / its bound"]["figure"]["median"] == pytest.approx(of_bound)
        assert claims[f"{name} / its bound"]["least"] == 0.9
        assert claims[f"{name} / standard"]["figure"]["median"] == pytest.approx(speed / speeds_of(case, "standard")[0])
        assert name in printed


@pytest.mark.weekly
def test_fresh_samples_and_diversity_are_those_of_the_plan(techniques):
    results, _, _ = techniques
    found = {each["name"]: each for each in results["results"]["techniques"]}
    fresh = {name: (each["fresh"], each["served"]) for name, each in found.items()}
    assert fresh["standard"] == fresh["AutoAssist"] == (32, 32)
    assert fresh["reuse factor 2"] == (16, 32)
    assert fresh["batch echo 2"] == fresh["echo after augmentation 2"] == (32, 64)
    assert fresh["SmartCache"] == (2, 16)
    assert fresh["frozen"] == (0, 32)
    recipe = rand_augment(48)
    for name in ("standard", "SmartCache", "AutoAssist", "echo before augmentation 2"):
        assert found[name]["diversity"] == pytest.approx(1)
    assert found["reuse factor 2"]["diversity"] == pytest.approx(recipe.diversity(2), abs=0.005)
    for name in ("echo after augmentation 2", "batch echo 2"):
        assert found[name]["diversity"] == pytest.approx(0.5)
    assert found["frozen"]["diversity"] == pytest.approx(recipe.diversity(90))


@pytest.mark.weekly
def test_loaders_compute_what_their_plans_say_and_nothing_twice(techniques):
    results, _, _ = techniques
    for each in results["results"]["techniques"]:
        for stats in each["stats"]:
            assert stats["hits"] + stats["misses"] == stats["samples"] > 0
            assert each["name"] != "frozen" or stats["misses"] == 0
            assert each["name"] not in {"standard", "simplified by 1"} or stats["hits"] == 0


@pytest.mark.parametrize(
    ("planner", "computed"),
    [
        (Standard(32, batch_size=4), 1),
        (Refurbish(33, batch_size=4, reuse_factor=3), 1 / 3),
        (Echo(Standard(32, batch_size=4), echoing_factor=2.5, buffer_size=8), 1 / 2.5),
        (BatchEcho(Standard(32, batch_size=4), echoing_factor=4), 1 / 4),
        (SmartCache(32, batch_size=4, num_cache_objects=20, replace_percent=0.2), 0.2),
        (Frozen(32, batch_size=4), 0),
    ],
)
def test_the_share_that_a_plan_computes_is_what_the_technique_says(planner, computed):
    assert loaders.computed_share(planner) == pytest.approx(computed)


def test_the_diversity_of_a_plan_weighs_versions_by_how_often_they_are_served():
    recipe = rand_augment(32)
    planner = Refurbish(30, batch_size=5, reuse_factor=3)
    # In two epochs the third that is evicted between them has 20 versions, served once; the others 20, served twice.
    expected = (20 + 40 * recipe.diversity(2)) / 60
    assert loaders.kept_diversity(recipe, planner, 2) == pytest.approx(expected)


def test_a_loader_goes_on_in_its_next_turn_with_a_warm_store(folder):
    planner = Refurbish(12, batch_size=4, reuse_factor=3)
    with ExitStack() as stack:
        turns = loaders.LoaderTurns(stack, "", repeated(folder, 12), rand_augment(32), planner)
        for taken in (4, 3):
            with turns.turn() as contender:
                warmed = contender.made_ahead
                for _ in range(taken):
                    next(contender.batches)
        state = turns._state
    assert [stats.batches for stats in turns.stats] == [warmed + 4, warmed + 3]
    assert 3 * state["epoch"] + state["batch"] == 2 * warmed + 7
    computed = [stats.misses / stats.samples for stats in turns.stats]
    assert computed[0] > computed[1] > 0


@pytest.mark.parametrize(("batches", "group"), [(2, 1), (32, 8)])
def test_a_rotation_of_a_loader_is_of_whole_groups(folder, batches, group):
    """Whose batches arrive at once: a slice that ends within one has waited for all of it, and counts a part."""
    source = repeated(folder, 4 * batches)
    with ExitStack() as stack:
        turns = loaders.LoaderTurns(stack, "", source, rand_augment(32), Standard(len(source), batch_size=4))
        with turns.turn() as contender:
            depths = contender.batches.gi_frame.f_locals["loader"]._assembler.depths
            assert (depths.batches_per_group, contender.rotation) == (group, group * depths.replicas)


def test_a_keep_that_is_compared_is_full_before_the_first_turn(folder, tmp_path):
    source = repeated(folder, 8)
    kept = Kept(source, tmp_path / "keep")
    sizes = loaders.Compared(size=32, batch_size=4, epoch_batches=2, rounds=1)
    with ExitStack() as stack:
        turns = sizes.turns(stack, source, kept, rand_augment(32))
        assert [turn.name for turn in turns] == ["standard", "reuse factor 3", "decoded images kept"]
        assert inspect(tmp_path / "keep").kept == 8


def test_a_slow_source_gives_one_sample_at_a_time_however_many_threads_read():
    images = np.arange(40 * 4 * 4 * 3, dtype=np.uint8).reshape(40, 4, 4, 3)
    source = SlowSource(Arrays(images, np.zeros(40)), wait_s=0.005)
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(source.read, np.arange(40).reshape(8, 5)))
    assert time.perf_counter() - began >= 0.2
    np.testing.assert_array_equal(np.concatenate(read), images)


def test_a_slow_source_waits_and_does_not_compute():
    source = SlowSource(Arrays(np.zeros((4, 4, 4, 3), np.uint8), np.zeros(4)), wait_s=0.05)
    began = time.process_time()
    source.read(np.arange(4))
    assert time.process_time() - began < 0.1


@pytest.mark.weekly
def test_the_gain_of_echoing_is_compared_with_the_ratio_measured_in_the_same_rounds(folder, tmp_path):
    written, printed = quick("echo_slow_source", tmp_path / "echo.json", "--rounds", 2, "--data", folder)
    arrays, files = written["results"]
    for result in (arrays, files):
        none, factor = speeds_of(result, "no echoing"), result["echoing_factor"]
        claims = {claim["name"]: claim for claim in result["claims"]}
        for name in ("example echo before augmentation", "batch echo"):
            of_r = [echo / alone / factor for echo, alone in zip(speeds_of(result, name), none, strict=True)]
            claim = claims[f"{name} / no echoing / R"]
            assert claim["figure"]["median"] == pytest.approx(median(of_r))
            assert claim["least"] == (0.9 if result is arrays else None)
            assert name in printed


def test_decoded_photographs_repeat_as_the_files_do(folder):
    files = repeated(folder, 30)
    arrays = echo_slow_source.decoded(files, folder, 16)
    images = np.stack(arrays.read(np.arange(30)))
    assert images.shape == (30, 16, 16, 3)
    np.testing.assert_array_equal(images[:12], images[12:24])
    np.testing.assert_array_equal(images[:6], images[24:])
    assert len(np.unique(images[:12].reshape(12, -1), axis=0)) == 12


@pytest.mark.weekly
def test_smart_cache_is_compared_with_no_cache_in_steps_per_second(folder, tmp_path):
    written, printed = quick("smart_cache_large_images", tmp_path / "smart.json", "--data", folder)
    results = written["results"]
    gains = [a / b for a, b in zip(speeds_of(results, "SmartCache"), speeds_of(results, "no cache"), strict=True)]
    (claim,) = results["claims"]
    assert claim["figure"]["median"] == pytest.approx(median(gains))
    assert claim["least"] == 3
    assert results["computed"] == {"no cache": 1, "SmartCache": pytest.approx(2 / 12)}
    assert "SmartCache / no cache" in printed


@pytest.mark.weekly  # Kernels are compared with DALI's in tests/kernels.
def test_kernels_are_compared_with_dali_stage_by_stage(folder, tmp_path):
    pytest.importorskip("numba")
    out = tmp_path / "kernels.json"
    written, printed = quick("kernels", out, "--data", folder)
    stages = {each["name"]: each for each in written["results"]["kernels"]}
    assert {"crop, resize, flip", "RandAugment layer, nearest", "- Equalize", "output"} < set(stages)
    for each in stages.values():
        assert len(each["dali_us"]) == len(each["kernels_us"]) > 1
        assert each["name"] in printed
        ratios = [dali / ours for dali, ours in zip(each["dali_us"], each["kernels_us"], strict=True)]
        assert each["ratio"]["median"] == pytest.approx(median(ratios))
    for each in written["results"]["own_loops"]:
        ratios = [own / built_in for own, built_in in zip(each["own_us"], each["built_in_us"], strict=True)]
        assert each["claim"]["figure"]["median"] == pytest.approx(median(ratios))
        assert each["claim"]["most"] == 1.2


@pytest.mark.weekly
def test_a_cold_start_compiles_what_a_warm_one_finds(folder, tmp_path):
    pytest.importorskip("numba")
    written, printed = quick("cold_start", tmp_path / "cold.json", "--data", folder)
    cold, warm = written["results"]["starts"]
    assert (cold["kind"], warm["kind"]) == ("cold", "warm")
    assert all(start[step] > 0 for start in (cold, warm) for step in ("torch_s", "source_s", "loader_s", "batch_s"))
    (claim,) = written["results"]["claims"]
    assert claim["figure"]["median"] == cold["loader_s"]
    assert claim["most"] == 8
    assert "seconds of a cold Loader(), simple" in printed


def test_planning_asks_for_batches_on_end_for_any_and_for_the_first_of_epochs():
    config = planning.EXPERIMENT.config
    planner = config.planners(10_000)["Refurbish"]
    asked = config.asked(planner, 0)
    numbers = [len(planner) * epoch + batch for epoch, batch in asked["next"]]
    assert numbers == list(range(numbers[0], numbers[0] + config.batches))
    assert len(set(asked["any"])) > config.batches / 2
    assert {batch for _, batch in asked["first"]} == {0}
    for epoch, batch in chain.from_iterable(asked.values()):
        assert len(planner.plan(epoch, batch).indices) > 0


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("batches", "seconds"), [(5, 0.0), (2, 0.05)])
def test_a_slice_has_the_batches_and_the_seconds_that_are_asked_for(batches, seconds):
    def forever():
        while True:
            time.sleep(0.001)
            yield 1

    (taken,) = harness.interleave([contender(forever())], rounds=1, timed_batches=batches, timed_s=seconds)
    assert taken.images == len(taken.batch_s) >= batches
    assert taken.seconds >= seconds
    assert taken.images == batches or taken.seconds - taken.batch_s[-1] < seconds


@pytest.mark.usefixtures("clock")
def test_a_slice_of_so_many_seconds_is_ramped_up_for_a_third_of_them():
    asked = []

    def batches():
        while True:
            asked.append(time.perf_counter())
            time.sleep(0.001)
            yield 1

    (taken,) = harness.interleave([contender(batches())], rounds=1, timed_batches=1, timed_s=0.3)
    assert 0.09 <= asked[-len(taken.batch_s)] - asked[0] < 0.3


@pytest.mark.parametrize("options", [{}, {"prefetch": Prefetch(replicas=3, num_threads=3)}], ids=["default", "three"])
def test_a_loader_makes_no_more_batches_ahead_than_are_left_untimed(folder, options, monkeypatch):
    made = []

    def put(handover, items, put=ClosableQueue.put):
        made.extend(item for item in items if isinstance(item, Served))
        put(handover, items)

    monkeypatch.setattr(ClosableQueue, "put", put)
    source = repeated(folder, 12)
    with ExitStack() as stack:
        planner = Standard(12, batch_size=4)
        turns = loaders.LoaderTurns(stack, "", source, rand_augment(32), planner, **options)
        with turns.turn() as taken:
            loader = taken.batches.gi_frame.f_locals["loader"]
            assert harness.wait_until_idle(60)
            warm = loader.batches_ahead
            assert 0 < len(made) - warm <= taken.made_ahead == loader.batches_ahead
            assert options or taken.placement.replicas == loader._assembler.depths.replicas


def test_what_is_made_anew_is_warm_in_its_turn_and_gone_after_it():
    served, gone = [], []

    def batches():
        try:
            while True:
                served.append(1)
                yield 1
        finally:
            gone.append(len(served))

    entrant = harness.MadeAnew("anew", lambda: harness.Contender("anew", harness.Placement(1, 1), 2, batches()))
    for turn in range(2):
        served.clear()
        with entrant.turn():
            assert len(served) == 6
            assert len(gone) == turn
        assert gone == [6] * (turn + 1)


def test_every_second_round_runs_backwards():
    def forever():
        while True:
            yield 1

    contenders = [contender(forever(), name=name) for name in "abc"]
    slices = harness.interleave(contenders, rounds=3, timed_batches=1)
    assert [each.contender for each in slices] == list("abccbaabc")
    assert [each.round for each in slices] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.usefixtures("clock")
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


@pytest.mark.parametrize(("order", "split"), [("paper", None), ("crop_last", None), ("paper", 1), ("paper", 5)])
def test_the_two_parts_one_after_the_other_make_the_images_that_a_loader_serves(folder, order, split):
    images = ImageFolder(folder)
    source = FileList([images.name(index) for index in range(8)], images.labels[:8])
    recipe = rand_augment(32, order=order, split=split)
    planner = Standard(8, batch_size=4)
    with Loader(source, recipe, planner) as loader:
        served = np.concatenate([batch.numpy() for batch, _ in loader])
    of_index = dict(zip(np.concatenate([plan.indices for plan in planner.epoch(0)]).tolist(), served, strict=True))

    halves = parts.Parts(recipe, source, batch_size=4)
    halves.make_partial_images(harness.Placement(2, 1))
    outputs = halves._run("final", harness.Placement(1, 1), halves._final_feeds)
    for indices, output in zip(halves._indices, outputs, strict=True):
        expected = np.stack([of_index[index] for index in indices.tolist()])
        np.testing.assert_array_equal(np.asarray(output.as_tensor()), expected)


@pytest.mark.weekly
def test_on_small_arrays_each_reuse_factor_is_compared_with_standard_and_its_bound(tmp_path):
    pytest.importorskip("numba")
    mosaics = write_mosaics(tmp_path / "mosaics", train=(4, 8), test=(1, 1))
    out = tmp_path / "small.json"
    written, printed = quick("small_images", out, "--data", mosaics)
    rand, auto = written["results"]
    assert (rand["policy"], auto["policy"]) == ("rand_augment", "auto_augment")
    for case in (rand, auto):
        assert case["policy"] in printed
        claims = {claim["name"]: claim for claim in case["claims"]}
        standard, *alone, hits = (speeds_of(case, name) for name in ("standard", *PARTS, "every sample a hit"))
        wholes = [min(1 / p + 1 / f, 1 / s) for p, f, s in zip(*alone, standard, strict=True)]
        finals = [1 / max(f, hit) for f, hit in zip(alone[1], hits, strict=True)]
        for name, factor in {"standard": 1, "reuse factor 2": 2, "reuse factor 3": 3}.items():
            speeds = speeds_of(case, name)
            costs = zip(speeds, wholes, finals, strict=True)
            of_bound = [speed * ((whole - final) / factor + final) for speed, whole, final in costs]
            assert claims[f"{name} / its bound"]["figure"]["median"] == pytest.approx(median(of_bound))
            if factor > 1:
                claim = claims[f"{name} / standard"]
                ratios = [ours / theirs for ours, theirs in zip(speeds, standard, strict=True)]
                assert claim["figure"]["median"] == pytest.approx(median(ratios))
                assert claim["least"] == 1.0


@pytest.mark.parametrize(
    ("script", "must"),
    [(throughput_script, "hold one folder of images per class"), (small_images, "be a folder of mosaics")],
    ids=["throughput", "small_images"],
)
def test_data_of_another_kind_is_refused_in_one_line(script, must, tmp_path, capsys):
    with pytest.raises(SystemExit) as exited:
        script.EXPERIMENT.main(["--quick", "--data", str(tmp_path / "none")])
    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"--data must {must}")
    assert said.count("\n") == 1


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("script", "cases", "contenders", "claimed"),
    [
        ("keep", ["as they are", "4:2:0", "4:4:4"], 7, "kept in memory / standard"),
        ("dali_pipelines", [], 14, "late pipeline, dali, standard / loader, dali, standard"),
        ("views", [], 8, "two views, SimCLR, a loader each"),
        ("keep_planes", [], 4, "RandAugment, planes / RandAugment, RGB"),
    ],
)
def test_keeps_and_pipelines_take_turns_with_loaders(folder, tmp_path, monkeypatch, script, cases, contenders, claimed):
    monkeypatch.setattr(experiment, "keep_memory", lambda: None)  # Later tests would have that memory, too.
    written, printed = quick(script, tmp_path / "x.json", "--data", folder)
    results = written["results"]
    for case in [results[name] for name in cases] or [results]:
        assert len({each["contender"] for each in case["slices"]}) == contenders == len(case["slices"])
    assert sum(each["name"].endswith(claimed) for each in results["claims"]) == max(1, len(cases))
    assert claimed in printed


def test_a_loader_with_a_stage_of_ones_own_cannot_be_faster_than_without():
    config = dali_pipelines.EXPERIMENT.config
    names = [f"{kind}, {plan}" for kind in dali_pipelines.KINDS for plan in ("standard", "reuse factor 3")]
    claims = dali_pipelines.claims(config, {name: [2.0] if name.startswith("own") else [1.0] for name in names})
    assert [each.name for each in claims if each.impossible] == [
        f"own stage, {plan} / loader, {plan}" for plan in ("standard", "reuse factor 3")
    ]


@pytest.mark.weekly
def test_a_keep_of_half_of_the_files_fetches_the_other_half_in_each_epoch(folder, tmp_path):
    written, printed = quick("keep_slow", tmp_path / "x.json", "--data", folder)
    results = written["results"]
    cases = [name for name in ("slow", "http") if name in results]
    assert cases == ["slow", "http"] or "http is left out" in printed
    for name in cases:
        (taken,) = results[name]["rounds"]
        (whole,), (first, later) = taken["none"], taken["half"]
        assert first["bytes"] == whole["bytes"] >= results[name]["file_bytes"]
        assert 0 < later["bytes"] < whole["bytes"]
        assert 0 < taken["kept"] < 12
    assert [(each["least"], each["most"]) for each in results["claims"]] == len(cases) * [
        (0.95, None),
        (None, 0.51),
        (None, None),
    ]


@pytest.mark.weekly
def test_masks_are_made_beside_photographs_and_loaded_with_them(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "keep_memory", lambda: None)
    out, nowhere = tmp_path / "x.json", tmp_path / "python"
    written, printed = quick("segmentation", out, "--data", folder, "--competitors", nowhere)
    results = written["results"]
    served = {"standard", "reuse factor 3", "decoded images kept", "every image a hit"}
    assert {each["contender"] for each in results["slices"]} == {
        f"{kind}, {name}" for kind in ("crop", "reference") for name in served
    }
    found = [(each["name"], each["least"], each["bound"]) for each in results["claims"]]
    assert found == [
        claim
        for kind in ("crop", "reference")
        for claim in (
            (f"{kind}, reuse factor 3 / {kind}, standard", 2, 3),
            (f"{kind}, reuse factor 3 / what its costs allow", 0.9, None),
            (f"{kind}, decoded images kept / {kind}, standard", None, None),
            (f"{kind}, every image a hit / {kind}, standard", None, None),
        )
    ]
    assert "left out: competitors' environment: not there" in printed


@pytest.mark.weekly
@pytest.mark.parametrize("script", ["detection", "mosaic"])
def test_objects_are_made_beside_photographs_and_loaded_with_them(folder, tmp_path, monkeypatch, script):
    pytest.importorskip("numba")
    monkeypatch.setattr(experiment, "keep_memory", lambda: None)
    out, nowhere = tmp_path / "x.json", tmp_path / "python"
    written, printed = quick(script, out, "--data", folder, "--competitors", nowhere)
    results = written["results"]
    unshared = ["standard, unshared", "reuse factor 3, unshared"] if script == "mosaic" else []
    contenders = {"standard", "reuse factor 3", "decoded images kept", *unshared}
    assert {each["contender"] for each in results["slices"]} == contenders
    found = [(each["name"], each["least"], each["bound"]) for each in results["claims"]]
    assert found[:2] == [("reuse factor 3 / standard", None, 3), ("decoded images kept / standard", None, None)]
    assert (
        found[2:]
        == [
            ("standard / standard, unshared", 1.8, 4),
            ("reuse factor 3 / standard, unshared", 2.2, 12),
            ("reuse factor 3 / reuse factor 3, unshared", None, 4),
        ][: 3 * bool(unshared)]
    )
    assert "left out: competitors' environment: not there" in printed


def test_smart_caches_bound_is_of_hits_and_of_the_misses_that_are_left():
    bounds = importlib.import_module("claims").bounds_of([4.0, 8.0], [1.0, 2.0], 1 / 8)
    assert bounds == pytest.approx([1 / (1 / 4 + 3 / 4 / 8), 1 / (1 / 8 + 3 / 8 / 8)])


@pytest.mark.weekly
def test_scans_are_made_and_their_cubes_loaded(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    pytest.importorskip("nibabel")
    monkeypatch.setattr(experiment, "keep_memory", lambda: None)
    written, printed = quick("volumes", tmp_path / "x.json", "--competitors", tmp_path / "python")
    results = written["results"]
    assert {each["contender"] for each in results["slices"]} == {"SmartCache", "Frozen", "Standard"}
    found = [(each["name"], each["least"], each["bound"]) for each in results["claims"]]
    assert found == [
        ("SmartCache / Standard", 3, pytest.approx(8)),
        ("SmartCache / its bound", 0.9, 1),
        ("Frozen / SmartCache", None, None),
    ]
    assert "left out: competitors' environment: not there" in printed


@pytest.mark.weekly
def test_windows_are_augmented_as_nn_unet_does_it(tmp_path):
    pytest.importorskip("numba")
    written, _ = quick("nn_unet", tmp_path / "x.json", "--competitors", tmp_path / "python")
    results = written["results"]
    assert results["seconds_a_window"].keys() == {"nn_unet, nothing reused", "nn_unet, reuse factor 3"}
    assert [each["bound"] for each in results["claims"]] == [3]


@pytest.mark.weekly
def test_trainings_that_share_a_loader_are_compared_with_one(folder, tmp_path):
    written, printed = quick("broadcast", tmp_path / "x.json", "--data", folder)
    turns = written["results"]["turns"]
    assert [(each["loader"], each["attached"]) for each in turns] == [
        (name, count) for name in ("standard", "reuse factor 3") for count in (0, 1, 2)
    ]
    assert all(each["images"] == 24 and len(each["trainings_s"]) == each["attached"] for each in turns)
    assert "standard: 2 attached / 1 attached" in printed
