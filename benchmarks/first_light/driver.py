"""Driver of first light: runs what is not done yet, as long as there is time, and prints the table.

    probes        each in a process of its own with a time limit: catalogue.py
    GPU tests     pytest -m gpu, and those that need the GPU for themselves after them: gpu_tests.py
    rivals, accuracy     scripts of benchmarks: scripts.py

Nothing but Python's own modules is imported here, so that a library that does not load, dies or hangs is a result.

    python benchmarks/first_light                   eight minutes of it; call it until it says that all is done
    python benchmarks/first_light --table           what is known so far
    python benchmarks/first_light --again NAME      some steps once more
    python benchmarks/first_light --dry             without a GPU: the same code, at tiny sizes, in two minutes
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from first_light import scripts
from first_light.catalogue import PROBES, Probe
from first_light.findings import DONE, NOT_RUN, Finding, Outcome, Record
from first_light.gpu_tests import GpuTests
from first_light.processes import ROOT, run
from first_light.scripts import Script
from first_light.table import table

NEEDS_GPU = f"{NOT_RUN}it needs a GPU"

_RESULTS = ROOT / "benchmarks" / "results" / "first_light"
_DATA = ROOT.parent / "shared" / "data"
_WITHOUT_GPU = ("tests/engine/test_gpu_decoding.py", "tests/store/test_ordered_device.py")
_FEEDS = (
    "headspace",
    "cpu/cpu, reuse factor 3",
    "torchvision v2, GPU",
    "torchvision v2, workers and GPU",
    "Kornia, workers and GPU",
)
_LEAST_S, _LEAST_MINUTES = 10.0, 4
_WORKERS = 4
_CORES = (16, 8, 4, 2, 1)
_MADE = """
import sys
from pathlib import Path
from tests.mosaics import write_mosaics
from tests.pictures import write_folder
folder = Path(sys.argv[1])
write_folder(folder / "photos", num_samples=12)
write_mosaics(folder / "cifar10", train=(2, 2), test=(1, 2))
"""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: For the record.
        run: Runs it until a time, told whether it is the first of its call; returns None if time did not do.
        if_wrong: What helps.
    """

    name: str
    run: Callable[[float, bool], Outcome | None]
    if_wrong: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 0 if all is done and right."""
    began = time.time()
    options = _parser().parse_args(arguments)
    with ExitStack() as stack:
        data, out = options.data, options.out or _RESULTS
        if options.dry:
            data = Path(stack.enter_context(TemporaryDirectory()))
            out = options.out or Path(stack.enter_context(TemporaryDirectory()))
        out = out.resolve()
        steps = (_dry_steps if options.dry else _steps)(out, data)
        names, again = [step.name for step in steps], {*(options.again or [])}
        if options.list:
            print("\n".join(names))
            return 0
        refusal = None
        if unknown := {*(options.only or []), *again} - {*names}:
            refusal = f"there is no step {', '.join(sorted(unknown))}; there are: {', '.join(names)}"
        elif options.minutes < _LEAST_MINUTES:
            refusal = f"--minutes must be at least {_LEAST_MINUTES}, got {options.minutes:g}: no step may take longer"
        elif not (options.dry or options.table) and (reason := _no_gpu()):
            refusal = f"{reason}: pass --dry to try the script"
        if refusal:
            print(refusal, file=sys.stderr)
            return 2
        out.mkdir(parents=True, exist_ok=True)
        record = Record(out / "steps.jsonl")
        wanted = [step for step in steps if options.only is None or step.name in options.only]
        if not options.table:
            _forget(again, record, out)
            if options.dry:
                _make_data(data)
                _in_two_calls(wanted, record)
            else:
                work(wanted, record, began + 60 * options.minutes)
        return _tell(wanted, record, out, options)


def work(steps: Sequence[Step], record: Record, ends: float) -> None:
    """Run the steps that have no outcome, as long as there is time."""
    first = True
    for step in steps:
        if step.name in record.steps:
            continue
        if time.time() + _LEAST_S >= ends and not first:
            return
        outcome = step.run(ends, first)
        if outcome is None:
            return
        record.add(outcome)
        first = first and not outcome.was_run
        print(f"{step.name}: {outcome.ended}, {outcome.seconds:.0f} s", file=sys.stderr, flush=True)


def probe_step(probe: Probe, device: str) -> Step:
    """Make the step of a probe; without a GPU one that needs it is not run."""

    def carry_out(ends: float, first: bool) -> Outcome | None:
        if device == "cpu" and probe.on_cpu == "no":
            return Outcome(probe.name, NEEDS_GPU)
        limit_s = min(probe.limit_s, max(ends - time.time(), 1))
        ended = run(["-m", "first_light.probe", probe.function, device], limit_s=limit_s)
        if ended.hung and limit_s < probe.limit_s and not first:
            return None
        findings: list[Finding] = []
        if lines := [line for line in ended.output.splitlines() if line.startswith("{")]:
            findings = [Finding(**each) for each in json.loads(lines[-1])["findings"]]
        if device == "cpu" and probe.on_cpu == "code":
            findings = [replace(each, right=None) for each in findings]
        if probe.ends:
            seen = [Finding("how it ended", probe.ends, ended.how, ended.how == probe.ends)]
            return Outcome(probe.name, DONE, ended.seconds, seen, ended.reason)
        return Outcome(probe.name, ended.how, ended.seconds, findings, "" if ended.how == DONE else ended.reason)

    return Step(probe.name, carry_out, probe.if_wrong)


def _steps(out: Path, data: Path) -> list[Step]:
    """List what is run on a GPU."""
    photos, arrays = data / "photos", data / "cifar10"
    some = [str(count) for count in _CORES if count <= len(os.sched_getaffinity(0))]
    few = list(dict.fromkeys([some[0], *(count for count in ("4", "1") if count in some)]))
    rivals = ["gpu_rivals.py", "--rounds", "1", "--data", str(photos), "--cores", *few]
    return [
        *(probe_step(probe, "gpu") for probe in PROBES if not probe.dry_only),
        _tests(GpuTests("GPU tests", "gpu and not alone", ("tests",), out, _WORKERS)),
        _tests(GpuTests("GPU tests, alone", "gpu and alone", ("tests",), out)),
        _script(Script("rivals", tuple(rivals), out, photos, scripts.of_rivals)),
        _script(
            Script("accuracy", ("accuracy.py", "--reduced", "--data", str(arrays)), out, arrays, scripts.of_accuracy)
        ),
    ]


def _dry_steps(out: Path, data: Path) -> list[Step]:
    """List what is run without a GPU: the same steps, at tiny sizes."""
    photos, arrays = data / "photos", data / "cifar10"
    rivals = ("gpu_rivals.py", "--device", "cpu", "--data", str(photos))
    return [
        *(probe_step(probe, "cpu") for probe in PROBES),
        _tests(GpuTests("GPU tests", "not gpu", _WITHOUT_GPU, out)),
        Step("GPU tests, alone", lambda ends, first: Outcome("GPU tests, alone", NEEDS_GPU)),
        *(
            _script(Script(name, (*arguments, "--quick"), out, data, find, judged=False))
            for name, arguments, find in (
                ("rivals", (*rivals, "--feeds", *_FEEDS), scripts.of_rivals),
                ("accuracy", ("accuracy.py", "--workers", "1", "--data", str(arrays)), scripts.of_accuracy),
            )
        ),
    ]


def _tests(tests: GpuTests) -> Step:
    return Step(tests.name, lambda ends, first: tests.run(ends), "pytest prints more: run the test alone")


def _script(script: Script) -> Step:
    return Step(script.name, lambda ends, first: script.run(ends, first=first), f"see {script.name}.txt and .json")


def _in_two_calls(steps: Sequence[Step], record: Record) -> None:
    """Run steps in a call that has no time left after a few, and in another one that goes on."""
    work(steps[: max(1, len(steps) // 3)], record, time.time() + 3600)
    before = [outcome.step for outcome in record]
    work(steps, record, time.time() + 3600)
    after = [outcome.step for outcome in record]
    right = after[: len(before)] == before and len(after) == len(set(after)) == len(steps)
    seen = f"{len(before)} steps in the first, {len(after) - len(before)} others in the second"
    hoped = "the second runs what the first did not"
    record.add(Outcome("two calls", DONE, 0.0, [Finding("resuming", hoped, seen, right)]))


def _make_data(folder: Path) -> None:
    """Make a few pictures, as photographs and as mosaics."""
    ended = run(["-c", _MADE, str(folder)], limit_s=60)
    if ended.how != DONE:
        raise RuntimeError(f"pictures could not be made: {ended.how}\n{ended.reason}")


def _forget(steps: set[str], record: Record, out: Path) -> None:
    """Remove the results of some steps, and what they wrote to go on from."""
    record.forget(steps)
    for step in steps:
        for left in out.glob(f"{step}.*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _no_gpu() -> str | None:
    """Say why there is nothing to begin with; a torch that dies or hangs is a result of its probe."""
    ended = run(["-c", "import torch; print(torch.cuda.is_available())"], limit_s=120)
    if ended.how.startswith("failed"):
        return f"torch must be there, but {(ended.reason.splitlines() or [ended.how])[-1]}"
    if ended.output.strip() == "False":
        return "torch must find a CUDA device, but finds none"
    return None


def _tell(steps: Sequence[Step], record: Record, out: Path, options: argparse.Namespace) -> int:
    """Print the table and what is left; return 0 if all is done and nothing is wrong."""
    outcomes = list(record)
    (out / "table.txt").write_text(table(outcomes, whole=True) + "\n")
    print(table(outcomes, whole=options.whole))
    wrong = {
        outcome.step
        for outcome in outcomes
        if outcome.was_run and (outcome.ended != DONE or any(each.right is False for each in outcome.findings))
    }
    for line in (f"\n{step.name} is wrong: {step.if_wrong}" for step in steps if step.name in wrong):
        print(line)
    if options.dry:
        code = [probe.name for probe in PROBES if probe.on_cpu == "code" and probe.name in record.steps]
        not_run = [outcome.step for outcome in outcomes if outcome.ended == NEEDS_GPU]
        print(f"\nonly their code was run, for want of a GPU: {', '.join(code) or 'none'}")
        print(f"not run for want of a GPU: {', '.join(not_run) or 'none'}")
    left = [step.name for step in steps if step.name not in record.steps]
    print(f"\n{len(left)} steps are left ({', '.join(left)}): call this again" if left else "\nall is done")
    return 1 if wrong or left else 0


def _parser() -> argparse.ArgumentParser:
    described = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="first_light", description=__doc__, formatter_class=described)
    parser.add_argument("--dry", action="store_true", help="without a GPU, at tiny sizes")
    parser.add_argument("--minutes", type=float, default=8, help="after which a call stops, 8 by default")
    parser.add_argument("--out", type=Path, help="a folder, benchmarks/results/first_light by default; none with --dry")
    parser.add_argument("--data", type=Path, default=_DATA, help="a folder with photos/ and cifar10/")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these steps")
    parser.add_argument("--again", nargs="+", metavar="NAME", help="forget what is known of these steps first")
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    parser.add_argument("--whole", action="store_true", help="print every line of the table, right ones too")
    parser.add_argument("--list", action="store_true", help="list the steps")
    return parser
