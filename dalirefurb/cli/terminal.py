"""Where do a command's words go?"""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
