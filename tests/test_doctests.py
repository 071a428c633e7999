"""Do the examples in docstrings give what they say?

By Python's own `doctest`: pytest would look for examples in all modules and all tests, in each of its processes, which
takes as long as to collect the tests.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import dalirefurb

_ROOT = Path(dalirefurb.__file__).parent
MODULES = {
    ".".join(("dalirefurb", *path.relative_to(_ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(_ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{error.name} is not installed")
    failed, tried = doctest.testmod(module)
    assert not failed, capsys.readouterr().out
    assert tried
