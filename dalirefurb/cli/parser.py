"""A parser that reports a wrong argument as every other error is reported: in one line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn

from dalirefurb.cli.terminal import complain, escaped, say

_MUST = re.compile(r"^argument ([\w-]+): must ")


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other error is reported: in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        message = escaped(_MUST.sub(r"\1 must ", message))
        complain(f"dalirefurb: error: {message}; see {self.prog} --help")
        self.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help where all is printed, which fails if it cannot be."""
        if file is sys.stdout:
            say(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)
