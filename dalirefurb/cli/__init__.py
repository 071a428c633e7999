"""The command line: `dalirefurb train FOLDER`, and `show`, `demo`, `cache` and `compile`.

Exit status: 0 done; 1 a sample cannot be read or decoded, or is damaged in a store, or the machine has failed; 2
anything else to correct; 130 interrupted; 141 whoever read its output has gone.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments`, or else the command line, names; return the exit status."""
    try:
        # Whatever takes time is imported where an interrupt is waited for.
        from dalirefurb.cli.outcome import run

        return run(arguments)
    except KeyboardInterrupt:
        with suppress(AttributeError, OSError):
            sys.stderr.write("dalirefurb: interrupted\n")
        return 130
    finally:
        if arguments is None:
            # The process is about to end: another interrupt ends it at once, without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
