"""The command line: `dalirefurb train FOLDER`, and `show`, `demo`, `tune`, `cache`, `keep`, `compile` and `doctor`.

Its exit statuses are those of `EPILOG` in `cli/explanations.py`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn


class Terminated(KeyboardInterrupt):
    """A signal asks the process to end: what it has begun is undone, as after an interrupt from the keyboard."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments`, or else the command line, names; return the exit status."""
    try:
        if arguments is None:
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored.
                    signal.signal(number, _terminate)
        # Whatever takes time is imported where an interrupt is waited for.
        from dalirefurb.cli.outcome import run

        return run(arguments)
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if isinstance(interrupt, Terminated) else signal.SIGINT
        with suppress(AttributeError, OSError):
            sys.stderr.write(f"dalirefurb: {'interrupted' if number == signal.SIGINT else 'terminated'}\n")
        return 128 + number
    finally:
        if arguments is None:
            # The process is about to end: another interrupt ends it at once, without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _terminate(number: int, _: Any) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # Another one would disturb what is undone.
    raise Terminated(number)
