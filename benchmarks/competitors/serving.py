"""A process that makes batches when it is told to, and nothing between but what it makes ahead.

◀ ready                        when the first batch can be asked for
▶ an empty line    ◀ images of the batch that was made
▶ end of input     it ends
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Generator
from importlib import metadata
from typing import TextIO


def answers() -> TextIO:
    """Answer on what was standard output; what libraries print goes to standard error."""
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    return told


def version(distribution: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def serve(sizes: Generator[int, None, None]) -> None:
    """Ask for a batch at each line of the input, and say how many images it has."""
    told = answers()
    told.write("ready\n")
    for _ in sys.stdin:
        told.write(f"{next(sizes)}\n")
    told.flush()
    sizes.close()
    # Worker processes and threads of the libraries end with this one; asked to end, some take seconds.
    os._exit(0)
