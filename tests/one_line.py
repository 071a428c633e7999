"""Commands that must fail, in one line."""

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
