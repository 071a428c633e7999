"""Probes that do not end well, to show that the others go on and that the reason is kept."""

from __future__ import annotations

import os
import signal
import sys

from first_light.findings import Finding


def die(device: str) -> list[Finding]:
    """Die of a signal, as a library does that reads where there is nothing."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def fail(device: str) -> list[Finding]:
    """Raise."""
    raise RuntimeError("a reason that must be found in the record")


def hang(device: str) -> list[Finding]:
    """Wait for what never comes."""
    sys.stderr.write("waiting\n")
    while True:
        signal.pause()
