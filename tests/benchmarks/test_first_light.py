import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from first_light import driver, scripts
from first_light.catalogue import PROBES, Probe
from first_light.driver import Step, work
from first_light.findings import DONE, NOT_RUN, Finding, Outcome, Record
from first_light.gpu_tests import GpuTests
from first_light.pictures import decoding, decoding_windows
from first_light.processes import ROOT, run
from first_light.table import table

from tests.benchmarks.running import BENCHMARKS

SOON = 10_000.0
FAULTS = [probe for probe in PROBES if probe.ends]
CHEAP = ["decode EXIF orientations", "served gpu/gpu", *(probe.name for probe in FAULTS)]
RIGHT = Finding("a", "b", "c", True)


def first_light(*arguments):
    command = [sys.executable, "-W", "error", str(BENCHMARKS / "first_light"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """A folder of results of cheap steps, and what was printed."""
    out = tmp_path_factory.mktemp("first_light")
    done = first_light("--dry", "--only", *CHEAP, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def test_without_a_gpu_it_says_what_was_right_and_what_was_not_run(dry):
    out, said = dry
    found = {outcome.step: outcome for outcome in Record(out / "steps.jsonl")}
    assert list(found) == [*(probe.name for probe in PROBES if probe.name in CHEAP), "two calls"]
    assert len(found["decode EXIF orientations"].findings) == 16
    assert found["served gpu/gpu"].ended == f"{NOT_RUN}it needs a GPU"
    assert all(each.right for outcome in found.values() for each in outcome.findings)
    assert "16 findings" in said
    assert "not run for want of a GPU: served gpu/gpu" in said
    assert said.endswith("all is done\n")
    assert (out / "table.txt").read_text().count("orientation ") == 16


def test_a_probe_that_dies_fails_or_hangs_is_recorded_with_its_reason(dry):
    found = {outcome.step: outcome for outcome in Record(dry[0] / "steps.jsonl")}
    assert [found[probe.name].findings[0].seen for probe in FAULTS] == [probe.ends for probe in FAULTS]
    assert "a reason that must be found" in found["a probe that fails"].reason
    assert "faults.py" in found["a probe that dies"].reason  # faulthandler says where
    assert "waiting" in found["a probe that hangs"].reason


def test_what_is_done_is_not_run_again_unless_that_is_asked_for(dry, tmp_path):
    shutil.copytree(dry[0], tmp_path, dirs_exist_ok=True)
    before = list(Record(tmp_path / "steps.jsonl"))
    wanted = ["a probe that dies", "a probe that fails"]
    again = first_light("--dry", "--only", *wanted, "--again", "a probe that dies", "--out", tmp_path)
    after = list(Record(tmp_path / "steps.jsonl"))
    assert "a probe that dies: done" in again.stderr
    assert "a probe that fails" not in again.stderr
    assert [each for each in before if each.step != "a probe that dies"] == after[: len(before) - 1]


def test_a_step_that_does_not_exist_is_refused(tmp_path):
    done = first_light("--dry", "--only", "dekode", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("there is no step dekode; there are: versions, ")


def test_a_call_in_which_no_step_has_time_is_refused(tmp_path):
    done = first_light("--dry", "--minutes", "1", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "--minutes must be at least 4, got 1: no step may take longer\n"


@pytest.mark.weekly  # Refusals are tried above, too.
def test_without_a_gpu_and_dry_there_is_one_line(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = first_light("--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "torch must find a CUDA device, but finds none: pass --dry to try the script\n"


def steps_of(begun, *seconds):
    """Steps that are over at once, if the call has so many seconds left, and tell that they began."""

    def step(number, needs):
        def carry_out(ends, first):
            begun.append(number)
            return None if time.time() + needs > ends and not first else Outcome(f"step {number}", DONE, 0.0, [RIGHT])

        return Step(f"step {number}", carry_out)

    return [step(number, needs) for number, needs in enumerate(seconds)]


def test_a_call_ends_before_the_step_that_has_no_time_left_and_the_next_begins_with_it(tmp_path):
    begun = []
    steps, record = steps_of(begun, 1, 1, 1000, 1), Record(tmp_path / "steps.jsonl")
    work(steps, record, time.time() + 100)
    assert [outcome.step for outcome in record] == ["step 0", "step 1"]
    assert begun == [0, 1, 2]
    work(steps, record, time.time() + 100)
    assert [outcome.step for outcome in record] == ["step 0", "step 1", "step 2", "step 3"]
    assert begun == [0, 1, 2, 2, 3]


def test_a_probe_that_the_end_of_a_call_cuts_short_has_no_result_but_where_it_had_the_whole_call():
    step = driver.probe_step(Probe("hangs", "faults:hang", "", limit_s=60), "cpu")
    assert step.run(time.time() + 1, False) is None
    assert step.run(time.time() + 1, True).ended == "hung: killed after 1 s"


@pytest.mark.weekly  # Probes are run above, too.
def test_a_probe_of_which_a_cpu_shows_only_that_its_code_runs_is_not_called_right():
    probe = Probe("orientations", "decoding:orientations", "", on_cpu="code")
    outcome = driver.probe_step(probe, "cpu").run(time.time() + SOON, True)
    assert outcome.ended == DONE
    assert {finding.right for finding in outcome.findings} == {None}


def test_a_line_that_a_killed_call_left_behind_is_skipped(tmp_path):
    record = Record(tmp_path / "steps.jsonl")
    record.add(Outcome("a", DONE, 1.0, [RIGHT]))
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": "b", "end')
    assert [outcome.step for outcome in record] == ["a"]


def test_every_probe_is_a_function_and_says_what_helps():
    for probe in PROBES:
        module, _, name = probe.function.partition(":")
        text = (BENCHMARKS / "first_light" / f"{module}.py").read_text()
        assert f"\ndef {name}(device: str)" in text, probe.name
        assert probe.if_wrong or probe.dry_only
    assert len({probe.name for probe in PROBES}) == len(PROBES)


def test_the_driver_imports_nothing_but_pythons_own_modules():
    code = "import sys; import first_light.driver; print(sorted({n.partition('.')[0] for n in sys.modules}))"
    modules = run(["-c", code], limit_s=60).output
    assert "first_light" in modules
    assert not [name for name in ("torch", "numpy", "nvidia", "cupy", "dalirefurb") if f"'{name}'" in modules]


@pytest.mark.parametrize("windowed", [False, True])
def test_graphs_for_a_gpu_can_be_made(windowed):
    from first_light.handing_over import blurring
    from nvidia.dali.pipeline import pipeline_def

    default = {"hw_decoder_load": None, "jpeg_fancy_upsampling": None}
    graphs = [decoding("gpu", windowed=windowed), decoding("gpu", windowed=windowed, **default)]
    for graph in [*graphs, decoding_windows("gpu"), lambda: blurring("gpu")]:
        pipeline = pipeline_def(enable_conditionals=True)(graph)(batch_size=4, num_threads=1, device_id=None)
        assert len(pipeline.serialize()) > 0
        assert [each.device for each in pipeline._graph_outputs] == ["gpu"]


TESTS = """
import os, signal
import pytest

def test_first(): pass
def test_dies(): os.kill(os.getpid(), signal.SIGSEGV)
def test_fails(): assert 1 + 1 == 3
@pytest.mark.skip(reason="not here")
def test_skips(): pass
def test_hangs(): signal.pause()
def test_last(): pass
"""


@pytest.mark.weekly
def test_a_gpu_test_that_dies_or_hangs_is_a_result_and_the_others_are_run(tmp_path):
    (tmp_path / "test_faults.py").write_text(TESTS)
    (tmp_path / "test_lacks.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "out").mkdir()
    tests = GpuTests("tests", "not gpu", (".",), tmp_path / "out", root=tmp_path, quiet_s=2)
    assert tests.run(time.time() + 60) is None  # not begun
    outcome = tests.run(time.time() + SOON)
    assert outcome.ended == DONE
    found = {finding.what: finding for finding in outcome.findings}
    counted = found["test_faults.py"]
    assert counted.hoped == "6 passed"
    assert counted.seen.startswith("2 passed, 1 died by SIGSEGV, 1 failed, 1 skipped, 1 hung: killed after ")
    wrong = {name: each.seen for name, each in found.items() if each.right is False}
    assert wrong.keys() == {
        "test_faults.py",
        "test_dies",
        "test_fails",
        "test_hangs",
        "test_lacks.py",
        "can be imported",
    }
    assert wrong["test_dies"].endswith("in test_dies")
    assert wrong["test_fails"].endswith("assert (1 + 1) == 3")
    assert "a_package_that_is_not_there" in wrong["can be imported"]
    assert found["1 tests"] == Finding("1 tests", "pass", "Skipped: not here", None)
    began = time.time()
    assert tests.run(began + SOON).findings == outcome.findings
    assert time.time() - began < 1  # nothing is run again


@pytest.mark.weekly  # It starts pytest, as the one above.
def test_a_file_whose_tests_are_all_skipped_is_not_called_right(tmp_path):
    (tmp_path / "out").mkdir()
    text = "import pytest\n@pytest.mark.skip(reason='no GPU')\ndef test_skips(): pass\n"
    (tmp_path / "test_skipped.py").write_text(text)
    outcome = GpuTests("tests", "not gpu", (".",), tmp_path / "out", root=tmp_path).run(time.time() + SOON)
    assert [finding.right for finding in outcome.findings] == [None, None]


def test_many_right_findings_are_one_line_and_wrong_ones_stay():
    many = [replace(RIGHT, what=f"right {number}") for number in range(9)]
    outcomes = [
        Outcome("good", DONE, 1.0, many),
        Outcome("bad", DONE, 1.0, [*many, Finding("wrong one", "1", "2", False), Finding("figure", "", "7", None)]),
        Outcome("dead", "died by SIGSEGV", 1.0, [], "a\nlast line"),
        Outcome("absent", f"{NOT_RUN}it needs a GPU"),
        Outcome("empty", DONE),
    ]
    lines = [line.split() for line in table(outcomes).splitlines()[1:]]
    assert [(line[0], line[-1]) for line in lines] == [
        ("good", "right"),
        ("bad", "wrong"),
        ("bad", "told"),
        ("bad", "right"),
        ("dead", "wrong"),
        ("absent", "run"),
        ("empty", "wrong"),
    ]
    assert "last line" in table(outcomes)
    assert table(outcomes, whole=True).count("right ") == 18


def script_of(tmp_path, text, **options):
    (tmp_path / "script.py").write_text(text)
    path = str(tmp_path / "script.py")
    return scripts.Script("script", (path,), tmp_path, tmp_path, lambda results: results["found"], **options)


WRITES = """
import json, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
calls = json.loads(out.read_text())["results"]["calls"] + 1 if out.exists() else 1
out.write_text(json.dumps({"results": {"found": [], "calls": calls}}))
print("call", calls)
if calls < 3:
    print("2 units are left; call this again", file=sys.stderr)
"""


def test_a_script_is_called_until_it_says_that_nothing_is_left(tmp_path):
    script = script_of(tmp_path, WRITES)
    ends = time.time() + SOON
    assert script.run(ends, first=True) is None
    assert script.run(ends, first=True) is None
    assert script.run(ends, first=True).ended == DONE
    assert (tmp_path / "script.txt").read_text() == "call 3\n"
    assert script.run(time.time() + 60, first=False) is None  # not begun
    assert json.loads((tmp_path / "script.json").read_text())["results"]["calls"] == 3


def test_a_script_without_its_data_is_not_run(tmp_path):
    script = replace(script_of(tmp_path, WRITES), data=tmp_path / "photos")
    assert script.run(time.time() + SOON, first=True).ended.startswith(f"{NOT_RUN}there is no folder")
    assert not (tmp_path / "script.json").exists()


def rival_turn(feed, images, ended=DONE):
    return {"model": "m", "cores": 4, "feed": feed, "images": images, "seconds": 1.0, "ended": ended}


@pytest.mark.parametrize(("ours", "right"), [(100, True), (96, True), (90, False)])
def test_the_best_of_ours_is_compared_with_the_best_of_the_others(ours, right):
    turns = [
        rival_turn("cpu/gpu, standard", 50),
        rival_turn("gpu/gpu, reuse factor 3", ours),
        rival_turn("stock DALI, gpu", 100),
        rival_turn("stock DALI, cpu", 0, "hung"),
        rival_turn("headspace", 900),
    ]
    failed, compared = scripts.of_rivals({"turns": turns, "missing": {}})
    assert compared.what == "m, 4 cores"
    assert failed.right is False
    assert "stock DALI, cpu, 4 cores: hung" in failed.seen
    assert compared.right is right
    assert f"gpu/gpu, reuse factor 3 {ours} images/s, stock DALI, gpu 100, headspace 900" in compared.seen


def test_claims_of_accuracy_are_right_wrong_or_told():
    claims = [
        {"name": verdict, "promise": "p", "figure": {"mean": -0.1, "half_width": 0.2}, "verdict": verdict}
        for verdict in ("met", "missed", "not shown")
    ]
    assert [each.right for each in scripts.of_accuracy({"claims": claims})] == [True, False, None]


def test_the_command_in_the_documentation_is_the_one_that_there_is():
    assert "python benchmarks/first_light" in (ROOT / "docs" / "gpu.md").read_text()
