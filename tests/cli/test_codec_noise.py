"""A command that was ended: the process that keeps codec noise ends, and it is an interrupt."""

import signal
import subprocess
from argparse import Namespace

import pytest

from dalirefurb.cli import Terminated, outcome
from dalirefurb.cli.codec_noise import without_codec_noise


def test_it_ends_where_waiting_for_it_fails_and_others_hold_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when torch's `DataLoader` raises for a worker that was terminated."""
    wait = subprocess.Popen.wait

    def fail_once_limited(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is not None:
            raise RuntimeError("a worker is gone")
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", fail_once_limited)
    with pytest.raises(RuntimeError, match="a worker is gone"), without_codec_noise():
        holder = subprocess.Popen(["sleep", "20"])
    ended_first = holder.poll() is None
    holder.kill()
    holder.wait()
    assert ended_first


def test_an_error_that_an_interrupt_brings_about_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch raises for a worker that was terminated with the command."""

    def command(options: Namespace) -> int:
        try:
            raise Terminated(signal.SIGTERM)
        finally:
            raise RuntimeError("a worker is gone")

    made = Namespace(parse_args=lambda arguments: Namespace(command=command))
    monkeypatch.setattr(outcome, "parser", lambda: made)
    with pytest.raises(Terminated):
        outcome.run([])
