"""CONTRIBUTING and the architecture: every file, module and name that they send a reader to is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dalirefurb"
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]
ROOTS = (ROOT, PACKAGE)
"""Where paths of the pages begin: both say `tests/planners.py` and `planning/planner.py`."""

MADE = {"dist/", "apply", "close"}
"""What a command makes, and names of what the reader writes."""

_PATH = re.compile(r"\.?\w[\w.-]*(?:/[\w.-]+)*/?")
_ENDING = re.compile(r"\.(py|md|toml|cff|yml)$")
_NAME = re.compile(r"(?:\w+\.)*\w+(?:\(.*\))?")
_WHERE = re.compile(r"((?:`[^`]+`(?:,? and |,? or |, )?)+) (?:in|of) ((?:`[^`]+`(?:,? and |, )?)+)")


@cache
def spans(page: Path) -> tuple[str, ...]:
    """Return what a page has in code of its sentences, with blocks of code left out."""
    return tuple(sorted(set(re.findall(r"`([^`\n]+)`", text_of(page.read_text())))))


def text_of(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def is_path(code: str) -> bool:
    return bool(_PATH.fullmatch(code) and ("/" in code or _ENDING.search(code)))


def found(path: str) -> list[Path]:
    """Return the files or folders that a path of a page stands for; tests and workflows need no folder."""
    path = re.sub(r"/NAME\.py$", "", path).rstrip("/")
    there = [root / path for root in ROOTS if (root / path).exists()]
    if there or "/" in path:
        return there
    return [*(ROOT / "tests").rglob(path), *(ROOT / ".github").rglob(path)]


@cache
def words() -> frozenset[str]:
    """Return all words of the code, and of what it is built by."""
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks")
    files = [file for folder in folders for file in folder.rglob("*.py") if file != Path(__file__)]
    files += [ROOT / "pyproject.toml", *(ROOT / ".github").rglob("*.yml")]
    texts = "".join(file.read_text() for file in files)
    return frozenset(re.findall(r"\w+", texts)) | {file.stem for file in files} | {file.parent.name for file in files}


def broken(page: str) -> Iterator[str]:
    """Name the paths of a page's text that lead nowhere, and the names that are not where it says, or nowhere."""
    text = text_of(page)
    for code in sorted(set(re.findall(r"`([^`\n]+)`", text)) - MADE):
        if is_path(code):
            if not found(code):
                yield code
        elif _NAME.fullmatch(code) and (lost := {*re.findall(r"\w+", re.sub(r"\(.*", "", code))} - words()):
            yield f"{code}: {lost}"
    for names, places in _WHERE.findall(re.sub(r"\s+", " ", text)):
        files = [file for place in re.findall(r"`([^`]+)`", places) if is_path(place) for file in found(place)]
        for code in re.findall(r"`([^`]+)`", names):
            if _NAME.fullmatch(code) and not is_path(code):
                name = re.findall(r"\w+", re.sub(r"\(.*", "", code))[-1]
                yield from (f"{code} in {file.name}" for file in files if not _has(file, name))


def _has(place: Path, name: str) -> bool:
    files = place.rglob("*.py") if place.is_dir() else [place]
    return any(re.search(rf"\b{name}\b", file.read_text()) for file in files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_names_of_a_page_are_there(page: Path) -> None:
    assert sum(map(is_path, spans(page))) > 50
    assert not [*broken(page.read_text())]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`dali/insides.py`, `tests/planners.py`, `kernels/pixels`, `test_ranks.py`, `store/NAME.py`, `Recipe`", []),
        ("`augment/crop.py`", ["augment/crop.py"]),
        ("`crop.py`", ["crop.py"]),
        ("`test_nothing.py`", ["test_nothing.py"]),
        ("`shop/NAME.py`", ["shop/NAME.py"]),
        ("`_RECIPES_OF_ALL`", ["_RECIPES_OF_ALL: {'_RECIPES_OF_ALL'}"]),
        ("`OurStore` in `tests/store/test_store.py`", []),
        ("`OurStore` and `TECHNIQUES`\nin `tests/store/test_store.py`", ["TECHNIQUES in test_store.py"]),
        ("`TECHNIQUES` in `tests/planners.py`", ["TECHNIQUES in planners.py"]),
    ],
)
def test_what_leads_nowhere_is_found(text: str, wrong: list[str]) -> None:
    assert [*broken(text)] == wrong
