import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median

import ablations
import against
import contention
import contestants
import harness
import headspace
import numpy as np
import pytest
import stock_dali
import suite as suite_script
import torch
import workers
from claims import Claim, Spread
from competitors import data_loaders, formats, rows
from competitors.data_loaders import DataLoaderRow, GrainRow, SpdlRow
from competitors.formats import FfcvRow, SlipstreamRow
from competitors.rows import Job
from loaders import STANDARD, Loading
from PIL import Image
from sources import listed

from dalirefurb import ImageFolder, Refurbish, simple
from tests.benchmarks.running import BENCHMARKS, run, speeds_of

SUITE = ["against", "splits", "headspace", "ablations", "contention", "planning"]
WORKER = BENCHMARKS / "competitors" / "worker.py"
IMAGE_ROWS = data_loaders.ROWS | formats.ROWS

# Answers as a worker does: with the length of the job's files, and goes on working for a while after its turn. What is
# started in it is counted too.
BUSY_WORKER = """
import json, subprocess, sys
job = json.loads(sys.stdin.readline())
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.6: pass\\ninput()"],
                         stdin=subprocess.PIPE)
print("ready", flush=True)
for _ in sys.stdin:
    print(len(job["files"]), flush=True)
"""


@pytest.fixture(scope="module")
def suite(folder, tmp_path_factory):
    """The folder of a quick run without competitors' environment, and what was printed."""
    out = tmp_path_factory.mktemp("results")
    none = ["--competitors", out / "none"]
    done = run("suite.py", "--quick", "--data", folder, "--out", out, *none, timeout=900)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def results(suite, name):
    return json.loads((suite[0] / f"{name}.json").read_text())["results"]


def a_slice(name, batch_s, *, number=0):
    return harness.Slice(name, "1x1", number, 10 * len(batch_s), sum(batch_s), batch_s, [])


@pytest.mark.weekly
def test_the_suite_writes_results_and_a_figure_for_each_of_its_scripts(suite):
    from PIL import Image

    out, printed = suite
    assert {path.name for path in out.iterdir()} == {f"{name}.{kind}" for name in SUITE for kind in ("json", "png")}
    for name in SUITE:
        with Image.open(out / f"{name}.png") as figure:
            assert min(figure.size) > 200
        assert f"== {name}" in printed
    assert "what did not hold:" in printed or "every claim held" in printed


@pytest.mark.parametrize(
    ("reached", "writes", "said"), [(3.0, True, None), (1.0, True, "it"), (3.0, False, "wrote no")]
)
def test_the_suite_ends_with_1_where_a_claim_is_missed_or_a_script_wrote_nothing(
    folder, tmp_path, monkeypatch, capsys, reached, writes, said
):
    """What an earlier run left is not taken for the results of one that was refused."""
    out, claim = tmp_path / "splits.json", Claim("it", Spread(1.0, reached, 3.0), least=2.0)
    out.write_text(json.dumps({"results": {"claims": [asdict(replace(claim, figure=Spread(3.0, 3.0, 3.0)))]}}))

    def main(arguments):
        if writes:
            out.write_text(json.dumps({"results": {"claims": [asdict(claim)]}}))
        return 1

    monkeypatch.setitem(suite_script.SCRIPTS, "splits", main)
    monkeypatch.setattr(suite_script.plot, "save", lambda run, path: True)
    ended = suite_script.main(["--only", "splits", "--data", str(folder), "--out", str(tmp_path)])
    assert ended == (said is not None)
    assert (said or "every claim held") in capsys.readouterr().out


@pytest.mark.weekly
def test_without_their_environment_the_competitors_are_named_as_missing_and_stock_dali_still_runs(suite):
    case = results(suite, "against")
    assert [each["name"] for each in case["competitors"]] == [
        "standard",
        "decoded images kept",
        "half of the decoded images kept",
        "reuse factor 3, paper",
        stock_dali.NEAREST,
        stock_dali.DEFAULT,
    ]
    assert [each["kept"] for each in case["competitors"]] == [
        "nothing",
        *["decoded images"] * 2,
        "partial images",
        *["nothing"] * 2,
    ]
    for each in case["competitors"]:
        assert each["first_epoch_s"] > 0.5  # It imports PyTorch.
        assert each["memory_mb"] > 50
        assert each["resumes"] == "exact"
        assert (each["different"] < 1) == (each["kept"] == "partial images")
    assert "competitors/build.py" in case["missing"]["competitors' environment"]
    assert "left out: competitors' environment" in suite[1]


@pytest.mark.weekly
def test_stock_dali_is_tried_as_one_pipeline_and_as_one_a_core_before_the_rounds(suite):
    tried = {(each["contender"], each["placement"]) for each in results(suite, "against")["calibration"]}
    placements = [str(placement) for placement in stock_dali.placements()]
    assert tried == {(name, each) for name in (stock_dali.NEAREST, stock_dali.DEFAULT) for each in placements}


@pytest.mark.weekly
def test_planning_times_every_planner_at_every_size_and_promises_what_it_costs(suite):
    plans, claims = (results(suite, "planning")[kind] for kind in ("plans", "claims"))
    names = list(dict.fromkeys(row["planner"] for row in plans))
    assert [(row["planner"], row["num_samples"]) for row in plans] == list(product(names, (1000, 10_000)))
    for row in plans:
        kinds = [f"{order} {kind}" for order in ("NumPy", "compiled") for kind in ("next", "any", "first")]
        assert min(row[kind][0] for kind in kinds) > 0
        assert 0 < row["mb"] < 20
    promised = {claim["name"]: claim["most"] for claim in claims}
    assert promised["Refurbish, compiled: us a batch"] == 150
    assert promised["Standard, NumPy: us a batch"] == 500
    assert all(promised[f"{name}: us a batch, largest / smallest"] == 1.5 for name in names)
    assert all(name in suite[1] for name in promised)


def test_every_promise_against_a_competitor_is_a_ratio_of_one_round():
    names = [
        against.STANDARD,
        contestants.ours_name("paper", 3),
        contestants.ours_name("crop_last", 3),
        stock_dali.NEAREST,
        stock_dali.DEFAULT,
        "DataLoader, v2 on Pillow",
        "DataLoader, v2 on tensors",
        "SPDL, v2",
        contestants.KEPT,
        contestants.CROPPED_STANDARD,
        contestants.CROPPED_KEPT,
        "DataLoader, OpenCV, crop and flip",
    ]
    seconds = np.random.default_rng(0).uniform(0.1, 1, (len(names), 3))
    slices = [
        a_slice(name, [each], number=number)
        for name, own in zip(names, seconds, strict=True)
        for number, each in enumerate(own)
    ]
    standard, paper, crop_last, nearest, default, pillow, tensors, spdl, kept, cropped, cropped_kept, opencv = (
        10 / seconds
    )
    loader = np.maximum(pillow, tensors)
    expected = {
        "standard / stock DALI, nearest": (standard / nearest, 1.8),
        "standard / stock DALI, default": (standard / default, 2.5),
        "standard / the better DataLoader": (standard / loader, 2.0),
        "reuse factor 3, paper / stock DALI, nearest": (paper / nearest, 4.0),
        "reuse factor 3, paper / stock DALI, default": (paper / default, 6.0),
        "reuse factor 3, paper / the better DataLoader": (paper / loader, 5.0),
        "reuse factor 3, crop last / reuse factor 3, paper": (crop_last / paper, 1.0),
        "reuse factor 3, paper / standard": (paper / standard, None),
        "decoded images kept / standard": (kept / standard, None),
        "standard / SPDL, v2": (standard / spdl, None),
        "decoded images kept / SPDL, v2": (kept / spdl, None),
        "standard, crop and flip / DataLoader, OpenCV, crop and flip": (cropped / opencv, None),
        "decoded images kept, crop and flip / DataLoader, OpenCV, crop and flip": (cropped_kept / opencv, None),
    }
    found = {claim.name: claim for claim in against.claims(slices)}
    assert set(found) == set(expected)
    for name, (rounds, least) in expected.items():
        assert found[name].figure.median == pytest.approx(median(rounds))
        assert found[name].least == least
    assert {name: each.bound for name, each in found.items() if each.bound} == {"reuse factor 3, paper / standard": 3}


@pytest.mark.parametrize(("layers", "replicas"), [(0, 2), pytest.param(1, 1, marks=pytest.mark.weekly)])
def test_stock_dali_serves_whole_batches_from_every_replica(folder, layers, replicas):
    placement = harness.Placement(replicas, 1)
    sizes = Loading(size=32, batch_size=4, layers=layers, epoch_batches=1, rounds=1)
    taken = stock_dali.stock(sizes, ImageFolder(folder), placement)
    assert [next(taken.batches) for _ in range(7)] == [4] * 7
    assert taken.made_ahead == 3 * replicas
    taken.batches.close()


@pytest.mark.parametrize("layers", [0, pytest.param(2, marks=pytest.mark.weekly)])
def test_where_there_is_no_rand_augment_stock_dali_flips_while_it_normalises(folder, layers):
    """As its documentation does: an operator less."""
    sizes = Loading(size=32, batch_size=4, layers=layers, epoch_batches=1, rounds=1)
    pipeline = stock_dali.pipeline(sizes, ImageFolder(folder), harness.Placement(1, 1))
    assert (b"__Flip" in pipeline.serialize()) == (layers > 0)


@pytest.mark.weekly
def test_the_splits_are_all_places_between_stages_with_the_diversity_they_keep(suite):
    recipe = simple(32)
    found = results(suite, "splits")["splits"]
    assert [len(each["partial"]) for each in found] == [1, 2, 3]
    for number, each in enumerate(found, 1):
        assert each["partial"] + each["final"] == [stage.name for stage in recipe.stages]
        assert each["diversity"] == pytest.approx(recipe.at(number).diversity(3))
    assert [each["preset"] for each in found] == [False, True, False]


@pytest.mark.weekly
def test_a_loop_that_is_not_bound_by_loading_is_promised_not_to_be_slower(suite):
    case = results(suite, "headspace")
    (claim,) = [each for each in case["claims"] if each["least"] is not None]
    assert claim["least"] == 0.98
    assert claim["name"] == "1 core, step 1.5: reuse factor 3 / standard"
    reused, standard = (speeds_of(case, f"{name}, 1 core, step 1.5")[0] for name in ("reuse factor 3", "standard"))
    of_standard = reused / standard
    assert claim["figure"]["median"] == pytest.approx(of_standard)
    memory = median(speeds_of(case, "from memory, step 1.5"))
    assert memory <= 1.5 * 8 / (1.5 * case["standard_s"])  # As slow as its steps are long, at least.
    fed = {"standard, 1 core", "reuse factor 3, 1 core", "from memory"}
    loading = {"standard, 1 core", "reuse factor 3, 1 core", f"{stock_dali.NEAREST}, 1 core"}
    assert {each["contender"] for each in case["slices"]} == {f"{name}, step 1.5" for name in fed} | loading


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_step_of_the_network_learns_from_the_batch():
    step = headspace.Network(32)
    before = [weights.detach().clone() for weights in step._model.parameters()]
    step(torch.randn(2, 3, 32, 32), torch.arange(2))
    assert any(not torch.equal(a, b) for a, b in zip(before, step._model.parameters(), strict=True))


def test_an_entrant_on_one_core_starts_no_thread_on_another():
    everything = os.sched_getaffinity(0)
    seen = []

    class Entrant:
        name = "anything"

        @contextmanager
        def turn(self):
            seen.append(harness.cores())
            yield harness.Contender("anything", "", 0, iter(()))

    with headspace.OnCores("it, 1 core", Entrant(), 1).turn() as contender:
        assert contender.name == "it, 1 core"
    assert seen == [1]
    assert os.sched_getaffinity(0) == everything


@pytest.mark.weekly
def test_the_share_that_a_loader_keeps_beside_busy_processes_is_of_its_own_speed_in_that_turn(suite):
    case = results(suite, "contention")
    speed = {
        (each["slice"]["contender"], each["busy"]): each["slice"]["images"] / each["slice"]["seconds"]
        for each in case["slices"]
    }
    assert len(speed) == len(case["slices"]) == 6
    for row in case["contention"]:
        name, busy = row["contender"], row["busy"]
        assert row["images_per_s"]["median"] == pytest.approx(speed[name, busy])
        assert row["share"]["median"] == pytest.approx(speed[name, busy] / speed[name, 0])
    stock = speed["stock DALI, nearest", 2] / speed["stock DALI, nearest", 0]
    claims = {claim["name"]: claim["figure"]["median"] for claim in case["claims"]}
    for name in ("standard", "reuse factor 3"):
        assert claims[f"{name}, beside 2"] == pytest.approx(speed[name, 2] / speed[name, 0] / stock)


def test_busy_processes_are_of_the_same_session_and_end_with_their_turn():
    def children():
        return {int(each) for each in Path("/proc/thread-self/children").read_text().split()}

    before = children()
    with contention.busy(2):
        busy = children() - before
        assert len(busy) == 2
        assert {os.getsid(child) for child in busy} == {os.getsid(0)}
    assert not busy & children()


@pytest.mark.weekly
def test_without_a_shuffler_misses_burst_or_scatter_and_with_both_they_do_not(suite):
    found = {each["name"]: each for each in results(suite, "ablations")["ablations"]}
    assert {batch for epoch in found["refurbish"]["misses"] for batch in epoch} == {4}
    assert [set(epoch) for epoch in found["reference counts"]["misses"]] == [{0}, {0}, {12}]
    assert len({batch for epoch in found["plain shuffle"]["misses"] for batch in epoch}) > 2
    assert {batch for epoch in found["standard"]["misses"] for batch in epoch} == {12}
    peaks = {name: each["misses_peak"] for name, each in found.items()}
    assert peaks["refurbish"] == peaks["standard"] == 1 < peaks["plain shuffle"] < peaks["reference counts"] == 3


@pytest.mark.weekly
def test_a_slice_of_an_ablation_holds_each_epoch_of_the_cycle_once(suite):
    for each in results(suite, "ablations")["slices"]:
        assert len(each["batch_s"]) == 3 * 4


@pytest.mark.weekly
def test_the_tail_of_time_per_batch_is_compared_with_standards_and_promised(suite):
    case = results(suite, "ablations")
    promised = {claim["name"]: (claim["least"], claim["most"]) for claim in case["claims"]}
    assert promised == {
        "refurbish / standard": (None, 1.15),
        "reference counts / refurbish": (1.5, None),
        "plain shuffle / refurbish": (None, None),
        "fixed work, as long as the one / the other": (None, None),
        "refurbish / fixed work, as long as refurbish": (None, None),
        "standard / fixed work, as long as standard": (None, None),
    }
    tails = {each["name"]: [ablations.tail(batch_s) for batch_s in each["batch_s"]] for each in case["ablations"]}
    ratio = tails["refurbish"][0] / tails["standard"][0]
    assert case["claims"][0]["figure"]["median"] == pytest.approx(ratio)


def test_batches_of_fixed_work_are_alike_and_longer_if_asked(monkeypatch):
    """By the processor's time, which others on the machine do not take."""
    monkeypatch.setattr(ablations.time, "perf_counter", time.process_time)
    pieces = []
    for batch_s in (0.01, 0.2):
        with ablations.FixedWork("fixed", batch_s).turn() as contender:
            pieces.append({next(contender.batches) for _ in range(3)})
    (short,), (long,) = pieces
    assert 5 * short < long


def test_the_tail_is_the_99th_over_the_50th_percentile():
    assert ablations.tail([1.0] * 99 + [3.0]) == pytest.approx(1.02)


def test_the_full_ablation_misses_equally_in_every_batch_of_256():
    planner = ablations.EXPERIMENT.config.contenders()["refurbish"]
    assert isinstance(planner, Refurbish)
    misses = [int(plan.miss.sum()) for epoch in (1, 2, 3) for plan in planner.epoch(epoch)]
    assert max(misses) - min(misses) <= 1


TRIED = workers.Tried({"workers": 2}, made_ahead=1, rotation=2)


def job(files=3):
    return Job("a competitor", [""] * files, [0] * files, 32, 2, {"workers": 2})


def test_a_competitor_makes_a_batch_for_each_that_is_asked_for_and_rests_after_its_turn():
    entrant = workers.WorkerTurns(job(), TRIED, (sys.executable, "-c", BUSY_WORKER))
    try:
        with entrant.turn() as contender:
            assert [next(contender.batches) for _ in range(3)] == [3, 3, 3]
            pid = entrant._process.pid
        assert workers._worked_s(pid) > 0.5  # the kernel counts in ticks
        (child,) = workers.descendants(pid)
        with entrant.turn() as contender:
            assert next(contender.batches) == 3
            assert entrant._process.pid == pid
        assert entrant.setting == "workers 2"
    finally:
        entrant.close()
    wait_for_end(child)


def test_a_competitor_whose_process_ends_with_its_turn_begins_anew():
    entrant = workers.WorkerTurns(job(), TRIED, (sys.executable, "-c", BUSY_WORKER), ends=True)
    pids = []
    for _ in range(2):
        with entrant.turn() as contender:
            assert next(contender.batches) == 3
            pids.append(entrant._process.pid)
            pids += workers.descendants(pids[-1])
        assert entrant._process is None
        for pid in pids:
            wait_for_end(pid)
    assert len({*pids}) == len(pids) == 4


def wait_for_end(pid):
    deadline = time.monotonic() + 600
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_memory_is_that_of_a_competitor_and_of_all_that_it_started():
    """A child has 64 MB of its own; the same process, made anew, has another."""
    code = "import json, os\ninput()\nif not os.fork():\n held = bytearray(os.urandom(1)) * (64 << 20)\n"
    code += " print('ready', flush=True)\n input()"
    entrant = workers.WorkerTurns(job(), TRIED, (sys.executable, "-S", "-c", code + "\nos.wait()"))
    other = entrant.anew()
    try:
        with entrant.turn():
            assert 64 << 20 < entrant.memory_bytes() < 100 << 20
        assert other._process is None
    finally:
        entrant.close()


def test_memory_is_that_of_a_file_in_memory_too_mapped_or_not(tmp_path):
    """Of 64 MB that are written to it half are mapped, and in both processes; a file on a disk counts not."""
    with tempfile.TemporaryDirectory(dir=workers.MEMORY) as folder:
        code = f"""import json, mmap, os
input()
disk, memory = (open(folder + "/file", "w+b") for folder in ({str(tmp_path)!r}, {folder!r}))
for file in (disk, memory):
    file.write(bytes(64 << 20))
    file.flush()
if not os.fork():
    pages = mmap.mmap(memory.fileno(), 32 << 20)
    pages[:]
    print('ready', flush=True)
    input()
os.wait()"""
        entrant = workers.WorkerTurns(job(), TRIED, (sys.executable, "-S", "-c", code))
        try:
            with entrant.turn():
                assert 64 << 20 < entrant.memory_bytes() < 100 << 20
        finally:
            entrant.close()


@pytest.mark.weekly
@pytest.mark.parametrize(
    "name", [STANDARD, contestants.KEPT, contestants.HALF_KEPT, contestants.CROPPED_KEPT, *contestants.CROPPED_STOCK]
)
def test_a_contestant_serves_batches_without_end_in_a_process_of_its_own_too(folder, name):
    source = ImageFolder(folder)
    files, labels = listed(source)
    setting = {"epoch_batches": 2, "rounds": 1, "layers": 0, "reuse_factors": (3,), "crop_last": ()}
    setting |= {"placement": "1x2", "decoded_bytes": 10_000_000}
    asked = Job(name, files[:8], labels[:8], 32, 4, setting)
    batches = contestants.batches_of(asked)
    assert [next(batches) for _ in range(5)] == [4] * 5
    batches.close()


@pytest.mark.parametrize(("code", "has_to_do"), [("while True: pass", True), ("input()", False)])
def test_who_waits_for_a_core_is_not_at_rest_and_who_waits_for_us_is(code, has_to_do):
    """Beside others on all cores it may have worked for no time at all."""
    command = [sys.executable, "-S", "-c", f"print(flush=True)\n{code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        deadline = time.monotonic() + 600
        while workers._has_to_do(process.pid) != has_to_do and time.monotonic() < deadline:
            time.sleep(0.01)
        assert workers._has_to_do(process.pid) == has_to_do
        process.kill()


def test_a_competitor_that_dies_is_named():
    entrant = workers.WorkerTurns(job(), TRIED, (sys.executable, "-c", "input(); raise SystemExit(3)"))
    with pytest.raises(RuntimeError, match="a competitor must answer, but its process ended with 3"), entrant.turn():
        pass
    entrant.close()


def test_a_competitor_that_hangs_is_named_and_ends_with_all_that_it_started(monkeypatch):
    hanging = "import os, time; print('ready', flush=True) if os.fork() else None; time.sleep(1000)"
    entrant = workers.WorkerTurns(job(), TRIED, (sys.executable, "-S", "-c", hanging))
    with entrant.turn() as contender:
        (child,) = workers.descendants(entrant._process.pid)
        monkeypatch.setattr(workers, "ANSWER_S", 0.1)
        with pytest.raises(RuntimeError, match="a competitor must answer in 0 s, but hangs"):
            next(contender.batches)
    entrant.close()
    wait_for_end(child)


@pytest.mark.weekly  # Competitors are for who runs the benchmark.
def test_a_worker_tells_for_each_competitor_how_it_can_be_set_or_why_it_cannot_run():
    command, environment = [sys.executable, str(WORKER), "--list", "2"], workers._environment()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=True)
    told = json.loads(done.stdout)
    assert set(IMAGE_ROWS) == {
        "DataLoader, v2 on Pillow",
        "DataLoader, v2 on tensors",
        "SPDL, v2",
        "grain, v2",
        "litdata, v2",
        "MONAI CacheDataset, v2",
        "MONAI CacheNTransDataset, v2",
        "MONAI SmartCacheDataset, v2",
        "DataLoader, OpenCV, crop and flip",
        "DataLoader, albumentations, crop and flip",
        "Slipstream, crop and flip",
        "FFCV, crop and flip",
    }
    assert {"DataLoader, v2, crop, with masks", "DataLoader, v2, with objects", *IMAGE_ROWS} < set(told["rows"])
    for row in told["rows"].values():
        assert bool(row["settings"]) != bool(row["missing"])
        assert len(row["settings"]) == len(row["made_ahead"]) == len(row["rotation"])
        assert row["facts"].keys() == {"resumes", "kept"}


@pytest.mark.parametrize("name", IMAGE_ROWS)
def test_a_competitor_says_what_it_resumes_and_what_it_keeps(name):
    assert IMAGE_ROWS[name].resumes in {"exact", "by sample", "no"}
    assert IMAGE_ROWS[name].kept in {"nothing", "files", "decoded images", "files or decoded images"}


def test_facts_are_told_of_rows_that_can_run(tmp_path):
    rows = {name: {"settings": [], "made_ahead": [], "rotation": [], "facts": {"kept": name}} for name in ("a", "b")}
    told = {"rows": {"a": {**rows["a"], "missing": None}, "b": {**rows["b"], "missing": "no b"}}, "versions": {}}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    python.chmod(0o755)
    assert workers.available(python).facts == {"a": {"kept": "a"}}


def test_a_data_loader_is_tried_with_one_to_two_workers_a_core():
    row = DataLoaderRow("pillow")
    settings = row.settings(2)
    assert {(each["workers"], each["prefetch_factor"]) for each in settings} == set(product((2, 3, 4), (2,)))
    assert [row.made_ahead(each) for each in settings] == [
        each["workers"] * each["prefetch_factor"] for each in settings
    ]
    assert [row.rotation(each) for each in settings] == [each["workers"] for each in settings]
    assert {each["workers"] for each in row.settings(1)} == {1, 2}


def test_where_all_threads_share_each_batch_every_batch_is_a_rotation():
    shared = [SpdlRow(), SlipstreamRow(), FfcvRow()]
    assert {row.rotation(setting) for row in shared for setting in row.settings(4)} == {1}


def test_where_processes_hand_over_to_threads_both_hold_batches():
    assert GrainRow("tensor").made_ahead({"workers": 3, "buffer": 1}) == 3 * (2 + 2)


def test_what_is_written_once_is_kept_for_the_same_files_and_removed_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    files = [tmp_path / "a.jpg", tmp_path / "b.jpg"]
    for file in files:
        file.write_bytes(b"an image")
    one, two = (Job("a row", [str(file) for file in files[:count]], [0] * count, 32, 2, {}) for count in (1, 2))
    first = rows.kept_folder(one, "a loader")
    assert rows.kept_folder(one, "a loader") == first
    other = rows.kept_folder(one, "another loader")
    second = rows.kept_folder(two, "a loader")
    assert second.is_dir()
    assert other.is_dir()
    assert not first.exists()
    files[1].write_bytes(b"a longer image")
    assert rows.kept_folder(two, "a loader") != second


def test_files_are_linked_as_a_folder_of_each_label_and_repeated_ones_count(tmp_path):
    file = tmp_path / "a.jpg"
    file.write_bytes(b"an image")
    for _ in range(2):  # the second time they are there
        root = formats._image_folder(Job("a row", [str(file)] * 3, [1, 0, 1], 32, 2, {}), tmp_path / "images")
    found = sorted(link.relative_to(root).as_posix() for link in root.glob("*/*"))
    assert found == ["00000/0000001.jpg", "00001/0000000.jpg", "00001/0000002.jpg"]
    assert all(link.read_bytes() == b"an image" for link in root.glob("*/*"))


MADE = """
import json, os, sys
from competitors.worker import ROWS, Job
job = Job(**json.loads(sys.stdin.read()))
batches = ROWS[job.row].batches(job)
made = [next(batches).clone() for _ in range(3)]
told = [[list(each.shape), str(each.dtype), each.min().item(), each.max().item(), each.mean().item()] for each in made]
print(json.dumps(told), flush=True)
ROWS[job.row].close()
os._exit(0)
"""


def in_environment(*arguments, **options):
    """Run the competitors' Python; return what it prints last, from JSON."""
    done = subprocess.run(
        [workers.PYTHON, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=WORKER.parent,
        env=workers._environment(),
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told():
    """What the competitors' environment has."""
    if not workers.PYTHON.exists():
        pytest.skip("benchmarks/competitors/build.py was not run")
    return in_environment(WORKER, "--list", "2")["rows"]


LAYOUTS = """
import json, sys
from pathlib import Path
from competitors.torchvision_operations import as_decoded
from competitors.torchvision_v2 import decode_tensor
file, arrays = sys.argv[1:]
print(json.dumps([list(image.stride()) for image in (decode_tensor(file), *as_decoded(Path(arrays)))]))
"""


@pytest.mark.weekly
def test_torchvision_crops_photographs_as_its_decoders_leave_them(told, folder, tmp_path):
    """Laid out otherwise they take it up to twice as long."""
    file = sorted(Path(folder).glob("*/*.jpg"))[0]
    np.savez(tmp_path / "photographs.npz", np.asarray(Image.open(file)))
    decoded, given = in_environment("-c", LAYOUTS, file, tmp_path / "photographs.npz")
    assert given == decoded


@pytest.mark.weekly
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", IMAGE_ROWS)
def test_a_competitor_serves_normalised_images_of_the_asked_size_that_differ(told, folder, name, place):
    if told[name]["missing"]:
        pytest.skip(told[name]["missing"])
    files = sorted(str(path) for path in Path(folder).glob("*/*.jpg"))[:8]
    asked = Job(name, files, [0] * len(files), 32, 4, told[name]["settings"][place])
    made = in_environment("-c", MADE, input=json.dumps(asdict(asked)))
    for shape, dtype, least, most, _ in made:
        assert (shape, dtype) == ([4, 3, 32, 32], "torch.float32")
        assert -2.2 < least < 0 < most < 2.7
    assert len({mean for *_, mean in made}) == 3
