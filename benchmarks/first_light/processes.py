"""Processes with a time limit, whose end is a result: done, failed, died of a signal, hung."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType

from first_light.findings import DONE

ROOT = Path(__file__).resolve().parents[2]

_CHECK_S = 0.1
_REASON_LINES, _REASON_CHARACTERS = 20, 2000


@dataclass(frozen=True)
class Ended:
    """A process that is over.

    Attributes:
        how: `DONE`, "failed: exit status 2", "died by SIGSEGV", or "hung: ..." if it was killed for its time.
        seconds: Wall time.
        output: All that it wrote to standard output.
        errors: All that it wrote to standard error.
    """

    how: str
    seconds: float
    output: str
    errors: str

    @property
    def hung(self) -> bool:
        """Whether it was killed for its time."""
        return self.how.startswith("hung")

    @property
    def reason(self) -> str:
        """The last lines that it wrote to standard error, or where in Python it was when it died."""
        lines = self.errors.rstrip().splitlines()
        fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
        told = lines[fatal[0] :][:_REASON_LINES] if fatal else lines[-_REASON_LINES:]
        return "\n".join(told)[-_REASON_CHARACTERS:]


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    python: str | Path = sys.executable,
    folder: Path = ROOT,
    variables: Mapping[str, str] = MappingProxyType({}),
    gone_quiet: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run Python with arguments, in a session of its own, so that whatever it starts ends with it.

    Args:
        command: Arguments of Python.
        limit_s: Time after which it is killed, in seconds.
        python: Which Python.
        folder: Where it runs.
        variables: Of its environment, beside ours.
        gone_quiet: Says that it hangs before that time is over; asked ten times a second.
    """
    path = [str(ROOT / "benchmarks"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
        **variables,
    }
    began = time.monotonic()
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = subprocess.Popen(
            [python, "-X", "faulthandler", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        killed = ""
        try:
            while not killed:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_CHECK_S)
                    break
                seconds = time.monotonic() - began
                if seconds > limit_s or gone_quiet():
                    killed = f"hung: killed after {min(seconds, limit_s):.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Ended(killed or how(process.returncode), time.monotonic() - began, _read(output), _read(errors))


def how(status: int) -> str:
    """Say how a process ended, by its exit status as `subprocess` gives it."""
    if status < 0:
        return f"died by {signal.Signals(-status).name}"
    return f"failed: exit status {status}" if status else DONE


def _read(file: object) -> str:
    descriptor = file.fileno()  # type: ignore[attr-defined]
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
