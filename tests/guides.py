"""Pages for newcomers, in `docs/migration` and `docs/how-to`: their scripts, run as a reader runs them.

On a page of migration what is below "Before" is a script of its own, of another library; all other blocks are one
script. On a page that says how to do something each block is a script.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import dalirefurb
from dalirefurb import Loader

DOCS = Path(__file__).resolve().parents[1] / "docs"
MIGRATION, HOW_TO = (sorted((DOCS / folder).glob("*.md")) for folder in ("migration", "how-to"))
_PART = re.compile(r"^## (?P<title>.*?)$|^```python\n(?P<block>.*?)^```$", re.MULTILINE | re.DOTALL)
_TRAINERS = ("lightning", "monai")
"""Packages whose pages are run among the tests of trainers, where they are installed."""


class Script(NamedTuple):
    """Blocks of a page that are run one after another, each on the lines that it has in the page."""

    page: Path
    title: str
    blocks: tuple[str, ...]

    @property
    def needs(self) -> list[str]:
        """Names of the packages that are imported, but for those that are always there."""
        trees = [node for block in self.blocks for node in ast.walk(ast.parse(block))]
        names = {alias.name for node in trees if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in trees if isinstance(node, ast.ImportFrom) and node.module}
        known = {*sys.stdlib_module_names, "dalirefurb", "numpy", "torch", "nvidia"}
        return sorted({name.partition(".")[0] for name in names} - known)

    @property
    def of_trainers(self) -> bool:
        """Whether it is run among the tests of trainers."""
        return self.page.stem in _TRAINERS


def scripts(page: Path) -> list[Script]:
    """Find the scripts of a page."""
    text, title = page.read_text(), ""
    found: dict[str, list[str]] = {}
    for match in _PART.finditer(text):
        title = match["title"] or title
        if match["block"]:
            line = text.count("\n", 0, match.start("block"))
            name = f"line {line}" if page in HOW_TO else "before" if title == "Before" else "page"
            found.setdefault(name, []).append("\n" * line + match["block"])
    assert text.count("```python\n") == sum(map(len, found.values())), f"{page} has a block that is not run"
    return [Script(page, name, tuple(blocks)) for name, blocks in found.items()]


SCRIPTS = [script for page in [*MIGRATION, *HOW_TO] for script in scripts(page)]


def run(script: Script, monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    """Run a script in the current folder, which stands for /local, or skip it where a package is missing.

    Buckets are in memory.

    Args:
        script: Script.
        monkeypatch: Fixture.
        given: What the script takes for granted.

    Returns:
        Its names.
    """
    for package in script.needs:
        _provide(package, script.title, monkeypatch)
    names: dict[str, Any] = {"__name__": "__main__", **given}
    try:
        for block in script.blocks:
            here = re.sub(r"\b(s3|gs)://", "memory://", block.replace("/local/", f"{Path.cwd()}/"))
            exec(compile(here, script.page, "exec", dont_inherit=True), names)
    finally:
        for value in names.values():
            loader = getattr(value, "loader", value)
            if isinstance(loader, Loader):
                loader.close()
    return names


def _provide(package: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a package that can be imported: the real one, or for recipes torchvision's transforms as stand-ins."""
    there = importlib.util.find_spec(package) is not None
    if package in ("torchvision", "timm") and importlib.util.find_spec("torchvision") is not None:
        from tests.augment.test_beside_torchvision import _imported_torchvision

        _imported_torchvision()
    elif package == "torchvision" and title == "page":
        from tests.augment.torchvision_stand_ins import T

        torchvision: Any = ModuleType("torchvision")
        torchvision.transforms = T
        monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    elif package == "timm" and there and title == "page":
        from tests.trainers.test_pages import load_timm_without_torchvision

        load_timm_without_torchvision(monkeypatch)
    elif package in ("torchvision", "timm") or not there:
        pytest.skip(f"{package if not there else 'torchvision'} is not installed")


def public_names() -> set[str]:
    """Return what a user may call by a name of ours: exports, stages, targets, and methods of what is exported."""
    from dalirefurb import augment, planning, targets
    from dalirefurb.augment import published
    from dalirefurb.trainers.timm import TimmLoader

    trainers = {TimmLoader.__name__, "RefurbDataModule", "LogStats", "ObserveLosses"}
    exported = [getattr(dalirefurb, name) for name in dalirefurb.__all__]
    methods = {name for each in exported for name in dir(each)}
    return {
        *dalirefurb.__all__,
        *dir(augment),
        *dir(published),
        *dir(planning),
        *dir(targets),
        *methods,
        *trainers,
        "len",
        "next",
        "range",
        "reset",
    }


def missing(page: str, names: set[str]) -> set[str]:
    """Return which of some names no row of a page's tables has in its first column."""
    first = "".join(re.findall(r"^\| (.*?) \|", (DOCS / "migration" / f"{page}.md").read_text(), re.MULTILINE))
    return names - {*re.findall(r"\w+", first)}
