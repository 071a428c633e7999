"""Starts a process that an interrupt from the keyboard would end, and ends it in any case."""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


def _heed() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def interruptible(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Start `command`, its output piped; it heeds SIGINT and SIGHUP even if this process, by `&` or nohup, does not."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed, env=env) as process:
        try:
            yield process
        finally:
            process.kill()
