"""A command that was ended: the process that keeps codec noise ends, and it is an interrupt."""

import errno
import io
import os
import signal
import subprocess
from argparse import Namespace
from typing import Any

import pytest

from dalirefurb.cli import Terminated, codec_noise, outcome
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


@pytest.mark.parametrize(
    ("pieces", "copied"),
    [
        ([b"libpng er", None, b"ror: bad\n", None], b""),
        ([b"out of ", None, b"paper\n", None], b"out of paper\n"),
        ([b"libpng error: bad\n", None, b"out of paper\n"], b"out of paper\n"),
    ],
)
def test_a_line_is_looked_at_once_it_is_whole(
    pieces: list[bytes | None], copied: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long its second half takes: where a piece is None it is silent for a while."""
    (reading, writing), (result, target) = os.pipe(), os.pipe()
    left = iter([*pieces, codec_noise._DONE])

    def selected(*_: Any) -> tuple[list[int], list[int], list[int]]:
        piece = next(left, b"")
        if piece is None:
            return [], [], []
        os.write(writing, piece) if piece else os.close(writing)
        return [reading], [], []

    monkeypatch.setattr(codec_noise.select, "select", selected)
    codec_noise.keep_noise(reading, target)
    os.close(target)
    assert os.read(result, 1000) == copied
    os.close(result)
    os.close(reading)


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[33mcolours\x1b[0m",
        *(f"[{level}:0@1.234] global loadsave.cpp:2" for level in ("ERROR", " WARN", " INFO", "FATAL")),
        *("libpng error: bad", "libpng warning: bad"),
        *(
            "Corrupt JPEG data: 3 extraneous bytes",
            "Premature end of JPEG file",
            "Warning: unknown JFIF revision number",
        ),
        *("Unknown Adobe color transform code 7", "Invalid SOS parameters for sequential JPEG"),
        "Inconsistent progression sequence in JPEG data",
        *(f"{name}: bad" for name in ("TIFFReadDirectory", "_TIFFVSetField", "LZWDecode", "Fax4Decode", "ZIPDecode")),
        *(f"{name}: bad" for name in ("PixarLogDecode", "LogLuvDecode24", "LERCDecode", "ZSTDDecode", "WebPDecode")),
        *(f"{name}: bad" for name in ("JPEGLib", "OJPEGSubsamplingCorrect", "PackBitsDecode", "ThunderDecode")),
        *(f"{name}: bad" for name in ("NeXTDecode", "DumpModeDecode", "JBIGDecode", "LZMADecode")),
    ],
)
def test_a_line_of_any_codec_is_kept_back(line: str) -> None:
    (reading, writing), (result, target) = os.pipe(), os.pipe()
    os.write(writing, f"{line}\n".encode() + codec_noise._DONE)
    os.close(writing)
    codec_noise.keep_noise(reading, target)
    os.close(target)
    assert os.read(result, 1000) == b""
    os.close(result)
    os.close(reading)


@pytest.mark.parametrize("started", [True, False])
def test_noise_is_borne_where_there_can_be_no_other_process_and_signals_are_as_they_were(
    started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    if not started:
        monkeypatch.setattr(subprocess, "Popen", fail)
    monkeypatch.delenv("OPENCV_LOG_LEVEL", raising=False)
    usual = signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    with without_codec_noise():
        before = signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        assert os.environ["OPENCV_LOG_LEVEL"] == "SILENT"
    assert before.isdisjoint((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    with without_codec_noise():
        before = signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    assert signal.SIGHUP in before  # One that was blocked is not let through.
    assert not any(map(codec_noise._is_2, (io.StringIO(), Namespace())))  # As where a notebook takes what is written.


@pytest.mark.parametrize(("done", "copied"), [(True, b""), (False, b"..." + b"free(): invalid pointer\n")])
def test_of_much_noise_in_one_burst_the_end_is_kept_for_whom_a_command_dies(
    done: bool, copied: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than is looked at together: what follows the line of a codec without a pause is of the same burst."""
    pieces = [b"libpng error: bad\n" + b"." * codec_noise._KEPT_BYTES, b"..." * 1000, b"free(): invalid pointer\n"]
    left, written = iter([*pieces, *[codec_noise._DONE] * done, b""]), list[bytes]()
    monkeypatch.setattr(codec_noise.select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(codec_noise.os, "read", lambda *_: next(left))
    monkeypatch.setattr(codec_noise.os, "write", lambda _, data: written.append(data))
    codec_noise.keep_noise(0, 0)
    monkeypatch.undo()
    told = b"".join(written)
    assert told.endswith(copied)
    assert len(told) == (0 if done else codec_noise._KEPT_BYTES)


def test_much_that_is_written_without_a_pause_is_handed_on_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of it is held than is looked at together, and what was just read."""
    piece, written = b"out of paper\n" * 4000, list[bytes]()
    left = iter([piece] * 6 + [codec_noise._DONE, b""])
    monkeypatch.setattr(codec_noise.select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(codec_noise.os, "read", lambda *_: next(left))
    monkeypatch.setattr(codec_noise.os, "write", lambda _, data: written.append(data))
    codec_noise.keep_noise(0, 0)
    monkeypatch.undo()
    assert b"".join(written) == piece * 6
    assert max(map(len, written)) <= codec_noise._KEPT_BYTES + len(piece)


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
