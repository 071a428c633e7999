"""Starts a process that an interrupt from the keyboard would end, and ends it in any case."""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial


@contextmanager
def interruptible(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Start `command`, its output piped; it heeds SIGINT even if this process, a job in the background, does not."""
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed, env=env) as process:
        try:
            yield process
        finally:
            process.kill()
