"""The command line: `dalirefurb train FOLDER`, `dalirefurb show`, `dalirefurb demo` and `dalirefurb cache`.

Exit status: 0 done; 1 a sample cannot be read or decoded, or is damaged in a store; 2 anything else to correct; 130
interrupted; 141 whoever read its output has gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from dalirefurb.cli.arguments import parser
from dalirefurb.errors import DalirefurbError, SampleError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments`, or else the command line, names; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.command(options) or 0
    except DalirefurbError as error:
        # A message from a decoder can have several lines.
        sys.stderr.write(f"dalirefurb: error: {' '.join(str(error).split())}\n")
        return 1 if isinstance(error, SampleError) else 2
    except KeyboardInterrupt:
        sys.stderr.write("dalirefurb: interrupted\n")
        return 130
    except BrokenPipeError:
        # Else the interpreter would complain when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status
