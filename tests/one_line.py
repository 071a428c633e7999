"""Commands that must fail, in one line."""

import re

from dalirefurb.cli import main


def error_of(capsys, *arguments):
    """Run a command that must fail; return its exit status and the one line that it says."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exited:
        status = exited.code
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("dalirefurb: error: ")
    return status, lines[0]


def without_progress(said):
    """Leave out lines that only tell how long something takes."""
    return re.sub(r"^dalirefurb: (?:.* \(\d+ s\)|compiles its kernels .*)\n", "", said, flags=re.MULTILINE)
