"""Codec noise: what DALI's codecs write to file descriptor 2 about a broken image, without the image's name.

There is no switch for it, and several threads write pieces of lines. So while a command decodes, descriptor 2 leads to
another process, which runs this file. It hands on what is written, burst by burst, but keeps the bursts that have a
codec's line in them; these it hands on only if the command dies. What Python writes goes where it always goes.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from typing import TextIO

_NOISE = re.compile(
    rb"\x1b\[[\d;]*m"  # nvImageCodec, which colours its lines
    rb"|\[ ?(?:ERROR|WARN|INFO|FATAL):\d+@[\d.]+\]"  # OpenCV
    rb"|libpng (?:error|warning): "
    rb"|\b(?:Corrupt JPEG data|Premature end of JPEG file|unknown JFIF revision|Unknown Adobe color transform code"
    rb"|Invalid SOS parameters for sequential JPEG|Inconsistent progression sequence)\b"
    # libtiff: the function at fault.
    rb"|^_?(?:TIFF|LZW|Fax|ZIP|PixarLog|LogL|LERC|ZSTD|WebP|O?JPEG|PackBits|Thunder|NeXT|Dump|JBIG|LZMA)\w*: ",
    re.MULTILINE,
)
_SILENCE_S = 0.5
"""That ends a burst. A thread may have to wait for a core in the middle of a line."""

_KEPT_BYTES = 65536
_DONE = b"\0done\0"
_END_S = 5.0


@contextmanager
def without_codec_noise() -> Iterator[None]:
    """Keep from the user what codecs write about images that are broken: who reads them names them, too."""
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")  # Heeded where DALI is not imported yet.
    # What ends a whole group of processes must not end the other process before this one.
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        command = [sys.executable or "python3", "-I", "-S", __file__]
        keeping = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:
        keeping = None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if keeping is None:  # Where there can be no other process, noise is borne.
        yield
        return
    # Python's own standard error goes where it always went, and so does descriptor 2 in the end.
    usual = sys.stderr
    encoding = getattr(usual, "encoding", None)
    with (
        keeping,
        ExitStack() as last,
        os.fdopen(os.dup(2), "w", buffering=1, encoding=encoding, errors="backslashreplace") as real,
        redirect_stderr(real if _is_2(usual) else usual),
    ):
        last.callback(keeping.kill)  # Also where a signal's answer raises below: others may hold descriptor 2 for ever.
        assert keeping.stdin is not None
        done = True
        try:
            os.dup2(keeping.stdin.fileno(), 2)
            keeping.stdin.close()
            yield
        except Exception as error:
            from dalirefurb.errors import DalirefurbError, LoaderError  # The other process has no use for them.

            done = isinstance(error, (DalirefurbError, OSError)) and not isinstance(error, LoaderError)
            raise
        finally:
            if done:
                with suppress(OSError):
                    os.write(2, _DONE)
            os.dup2(real.fileno(), 2)
            keeping.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                keeping.wait(_END_S)


def _is_2(stream: TextIO) -> bool:
    """Tell whether a stream leads to descriptor 2; one that a test or a notebook puts there may have none."""
    try:
        return stream.fileno() == 2
    except (AttributeError, OSError):
        return False


def keep_noise(source: int, target: int) -> None:
    r"""Copy bursts from one descriptor to another, but those with noise only if the end comes unannounced.

    >>> def copied(*writes):
    ...     (reading, writing), (result, target) = os.pipe(), os.pipe()
    ...     os.write(writing, b"".join(writes))
    ...     os.close(writing)
    ...     keep_noise(reading, target)
    ...     os.close(target)
    ...     return os.read(result, 1000)
    >>> copied(b"out of paper\n", _DONE), copied(b"\x1b[0;31m[ERROR] \x1b[0m[png_parser]\n", _DONE)
    (b'out of paper\n', b'')
    >>> copied(b"libpng error: bad\n", b"free(): invalid pointer\n")
    b'libpng error: bad\nfree(): invalid pointer\n'
    """
    burst, kept, noisy = b"", b"", False
    while True:
        silent = not select.select([source], [], [], _SILENCE_S)[0]
        read = b"" if silent else os.read(source, _KEPT_BYTES)
        ended = not silent and not read
        burst += read
        done = ended and burst.endswith(_DONE)
        if done:
            burst = burst[: -len(_DONE)]
        if ended or (silent and burst.endswith(b"\n")) or len(burst) > _KEPT_BYTES:
            noisy = noisy or _NOISE.search(burst) is not None
            if noisy:
                kept = (kept + burst)[-_KEPT_BYTES:]
            else:
                os.write(target, burst)
            burst, noisy = b"", noisy and not silent
        if ended:
            if not done:
                os.write(target, kept)
            return


if __name__ == "__main__":
    keep_noise(0, 2)
