"""The command line: `dalirefurb train FOLDER`, and `show`, `demo`, `cache`, `compile`, `tune` and `doctor`.

Exit status: 0 done; 1 a sample cannot be read or decoded, or is damaged in a store, the machine has failed, `doctor`
has found what will fail, `tune` has measured too little, or `tune --verify` has not reached what was predicted; 2
anything else to correct; 130 interrupted; 141 whoever read its output has gone; 143 terminated, or 129 hung up.
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
