"""Competitors with a Python of their own, which take turns with us: a process each, told when to make a batch.

turn    start, once ▏ a batch ▏ a batch ▏ ... ▏ wait until the process and its children rest
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

import harness
from claims import Claim, say, say_speeds
from competitors import build
from competitors.rows import Job
from harness import Contender, Slice
from sources import MEMORY, listed

from dalirefurb import FileList

WORKER = Path(build.__file__).with_name("worker.py")
PYTHON = build.ENVIRONMENT / "bin" / "python"

OPTION = {"--competitors": {"type": Path, "default": PYTHON, "help": "Python of the environment they are in"}}
"""Of scripts that run competitors."""

ANSWER_S = 600.0
"""Seconds in which a competitor must answer: some write all images to a file first."""

_REST_LIMIT_S = 120.0
_CHECK_S = 0.1
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Tried:
    """One setting of a competitor.

    Attributes:
        setting: Its arguments.
        made_ahead: Batches that can be ready when its turn begins.
        rotation: Batches after which each of its workers has delivered one.
    """

    setting: dict[str, Any]
    made_ahead: int
    rotation: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.setting.items())


@dataclass(frozen=True)
class Available:
    """What runs in the competitors' environment.

    Attributes:
        settings: To be tried, for each row that can run.
        missing: Why the others cannot.
        facts: Of each row that can run: what it "resumes", and what is "kept", see `competitors.rows.Row`.
        versions: Of the packages.
    """

    settings: dict[str, list[Tried]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)


def available(python: Path = PYTHON) -> Available:
    """Ask the competitors' environment, or say that there is none."""
    if not python.exists():
        return Available(missing={"competitors' environment": "not there: run benchmarks/competitors/build.py"})
    done = subprocess.run(
        [python, WORKER, "--list", str(harness.cores())],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    if done.returncode:
        return Available(missing={"competitors' environment": done.stderr.strip().splitlines()[-1]})
    told = json.loads(done.stdout)
    rows = told["rows"].items()
    return Available(
        settings={
            name: list(starmap(Tried, zip(row["settings"], row["made_ahead"], row["rotation"], strict=True)))
            for name, row in rows
            if not row["missing"]
        },
        missing={name: row["missing"] for name, row in rows if row["missing"]},
        facts={name: row["facts"] for name, row in rows if not row["missing"]},
        versions=told["versions"],
    )


class WorkerTurns:
    """A competitor that takes turns.

    Args:
        job: What it makes.
        tried: At which setting.
        command: Runs `competitors/worker.py`, or what answers as it does.
        environment: Of its process; None: the competitors'.
        ends: Whether its process ends with each turn, so that it takes no memory in others' turns.

    Attributes:
        name: For tables and results.
        setting: What was chosen for it.
    """

    def __init__(
        self,
        job: Job,
        tried: Tried,
        command: tuple[str, ...],
        environment: Mapping[str, str] | None = None,
        *,
        ends: bool = False,
    ) -> None:
        self.name = job.row
        self.setting = str(tried)
        self._job = job
        self._command = command
        self._environment = environment
        self._tried = tried
        self._ends = ends
        self._process: subprocess.Popen[str] | None = None

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Go on; at the end wait until nothing is made ahead any more, or end its process."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env=self._environment or _environment(),
            )
            self._ask(self._process, json.dumps(asdict(self._job)))
        batches, tried = self._batches(self._process), self._tried
        yield Contender(self.name, self.setting, tried.made_ahead, batches, tried.rotation)
        if self._ends:
            self.close()
        else:
            rest(self._process.pid)

    def anew(self) -> WorkerTurns:
        """Return the same, whose process is yet to be started."""
        return WorkerTurns(self._job, self._tried, self._command, self._environment)

    def memory_bytes(self) -> int:
        """Sum what the process and all that it started have in memory, files open below /dev/shm included."""
        assert self._process is not None
        return memory_of([self._process.pid, *descendants(self._process.pid)])

    def close(self) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            process, children = self._process, descendants(self._process.pid)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait()  # Not for the end of what it says: children that hang have its output open, too.
            _kill(children)
            process.stdout.close()
            self._process = None

    def _batches(self, process: subprocess.Popen[str]) -> Generator[int, None, None]:
        while True:
            yield int(self._ask(process, ""))

    def _ask(self, process: subprocess.Popen[str], line: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
        if not ready:
            _kill([*descendants(process.pid), process.pid])
            raise RuntimeError(f"{self.name} must answer in {ANSWER_S:.0f} s, but hangs: see above what it last said")
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} must answer, but its process ended with {process.wait()}: see above")
        return answer


class Asked:
    """A script of the competitors' that answers each line with one.

    Args:
        python: Of their environment.
        script: Its name below `competitors`.
        arguments: Of the script.
    """

    def __init__(self, python: Path, script: str, *arguments: object) -> None:
        command = [str(each) for each in (python, WORKER.with_name(script), *arguments)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=_environment())

    def answer(self, line: str | None = None) -> str:
        """Return what it says to a line, or unasked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if line is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def result(
    there: Available,
    ending: str,
    entrants: Sequence[Any],
    claims: Sequence[Claim],
    slices: Sequence[Slice],
    calibration: Sequence[Slice],
) -> dict[str, Any]:
    """Print speeds, claims and what is missing, and return what is written of a comparison.

    Args:
        there: What runs in the competitors' environment.
        ending: Of the names of the rows that were wanted.
        entrants: All that took turns.
        claims: What is claimed of them.
        slices: Their slices.
        calibration: Slices in which competitors' settings were tried.
    """
    speeds = harness.speeds_of(slices)
    missing = {name: reason for name, reason in there.missing.items() if name.endswith((ending, "environment"))}
    say_speeds(speeds, claims)
    say(*(f"left out: {name}: {reason}" for name, reason in missing.items()))
    return {
        "claims": claims,
        "settings": {each.name: each.setting for each in entrants if isinstance(each, WorkerTurns)},
        "missing": missing,
        "versions": there.versions,
        "slices": slices,
        "calibration": calibration,
    }


def calibrated(
    stack: ExitStack,
    source: FileList,
    rows: Mapping[str, Sequence[Tried]],
    size: int,
    config: Any,
    python: Path,
    calibration: list[Slice],
    *,
    ends: bool = False,
) -> list[WorkerTurns]:
    """Return competitors, each at the setting that was fastest in a turn of each.

    Args:
        stack: Closes them.
        source: Files, all of which they load.
        rows: Settings that are tried, by the names of competitors.
        size: Side in pixels of the images that they make.
        config: Has `batch_size`, and `calibration_batches`, of each turn.
        python: Of their environment.
        calibration: Takes the slices.
        ends: Whether each one's process ends with each of its turns.
    """
    files, labels = listed(source)
    made = []
    for row, settings in rows.items():
        speeds: dict[WorkerTurns, float] = {}
        for tried in settings:
            job = Job(row, files, labels, size, config.batch_size, tried.setting)
            turns = WorkerTurns(job, tried, (str(python), str(WORKER)), ends=ends)
            try:
                (taken,) = harness.interleave([turns], rounds=1, timed_batches=config.calibration_batches)
            finally:
                turns.close()
            calibration.append(taken)
            speeds[turns] = taken.images_per_s
        made.append(max(speeds, key=lambda each: speeds[each]))
        stack.callback(made[-1].close)
    return made


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """List the processes that a process started, and those that they started."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except OSError:  # the thread has ended
                continue
            found += children
            waiting += children
    return found


def memory_of(pids: Sequence[int]) -> int:
    """Sum the bytes of some processes: of a shared page each its share, of a file in memory also what none has mapped.

    Who writes into such a file, and does not map it, takes that memory all the same.
    """
    mapped: defaultdict[tuple[int, int], int] = defaultdict(int)  # by device and number of the file
    files: dict[tuple[int, int], int] = {}
    memory = Path(MEMORY).stat().st_dev
    for pid in pids:
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                word, *words = line.split()
                if not word.endswith(":"):
                    major, minor = (int(part, 16) for part in words[2].split(":"))
                    mapping = os.makedev(major, minor), int(words[3])
                elif word == "Pss:":
                    mapped[mapping] += 1024 * int(words[0])
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # it was closed
                    if (found := descriptor.stat()).st_dev == memory:
                        files[memory, found.st_ino] = 512 * found.st_blocks
    return sum(mapped.values()) + sum(max(0, nbytes - mapped[file]) for file, nbytes in files.items())


def rest(pid: int) -> None:
    """Wait until a process and its descendants take less than a tenth of a core, and do not wait for one either.

    Raises:
        RuntimeError: If they work for two minutes.
    """
    began = time.perf_counter()
    while time.perf_counter() - began < _REST_LIMIT_S:
        before = _worked_s(pid)
        time.sleep(_CHECK_S)
        if _worked_s(pid) - before <= max(_CHECK_S / 10, _TICK_S) and not _has_to_do(pid):
            return
    raise RuntimeError(f"a competitor must come to rest after its turn, but worked on for {_REST_LIMIT_S:.0f} s")


def _has_to_do(pid: int) -> bool:
    """Tell whether a thread of a process or of its descendants could go on, beside others on all cores, or reads."""
    tasks = (task for each in [pid, *descendants(pid)] for task in Path(f"/proc/{each}/task").glob("*/stat"))
    for task in tasks:
        with suppress(OSError):  # it has ended
            if task.read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False


def _worked_s(pid: int) -> float:
    """Sum the CPU seconds of a process and its descendants."""
    ticks = 0
    for each in [pid, *descendants(pid)]:
        try:
            user, system = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:  # it has ended
            continue
        ticks += int(user) + int(system)
    return ticks * _TICK_S


def _environment() -> dict[str, str]:
    """Return ours, with the libraries that the competitors' environment brings, and without our packages."""
    ours = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return {**ours, **build.variables()}
