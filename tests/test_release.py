"""What is released: metadata, what PyPI shows of README.md, versions that were tried, and what the workflows call."""

from __future__ import annotations

import json
import re
import runpy
import stat
import sys
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.test_docs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
CITATION = (ROOT / "CITATION.cff").read_text()
WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TRIED = json.loads((ROOT / ".ci" / "versions.json").read_text())
ROWS = {(row["asked"], row["dependencies"]): row for row in TRIED["rows"]}


def shown(page: str) -> str:
    """Change a page as the build does for PyPI."""
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        page = re.sub(rule["pattern"], rule["replacement"], page)
    return page


def test_pypi_shows_no_link_and_no_picture_that_it_does_not_have() -> None:
    page = shown((ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)]+)\)", page) + re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert "![" not in re.sub(r"!\[[^\]]*\]\(https://", "", page)


def test_links_become_their_text_and_pictures_of_the_repository_go() -> None:
    page = "See [the\nstages](docs/stages.md#x), [below](#b) and [a paper](https://a.b/c).\n\n"
    assert (
        shown(f'{page}![p](p.png)\n\n<img src="q.png">\nEnd')
        == "See the\nstages, below and [a paper](https://a.b/c).\n\nEnd"
    )


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {VERSION}\n" in CITATION
    assert re.search(rf"^## {re.escape(VERSION)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_citation_names_the_papers_authors() -> None:
    assert re.findall(r"family-names: (\w+)", CITATION) == ["Lee", "Lee", "Ha", "Lee", "Hyun", "Shin", "Chun"]
    assert "https://www.usenix.org/conference/atc21/presentation/lee" in (ROOT / "README.md").read_text()
    assert "https://www.usenix.org/conference/atc21/presentation/lee" in CITATION


def test_workflows_call_what_can_be_run() -> None:
    for name, workflow in WORKFLOWS.items():
        called = re.findall(r"- run: (?:python )?(\.ci/[\w.]+)", workflow)
        assert called, name
        for path in called:
            mode = (ROOT / path).stat().st_mode
            assert path.endswith(".py") or mode & stat.S_IXUSR, path


def test_only_the_job_that_uploads_may_name_itself_to_pypi() -> None:
    jobs = WORKFLOWS["release.yml"].partition("\njobs:\n")[2]
    uploading = jobs[jobs.index("\n  upload:\n") :]
    assert jobs.count("id-token: write") == uploading.count("id-token: write") == 1
    assert "needs: [build, test]" in uploading
    assert "secrets." not in jobs


def test_the_page_of_versions_is_made_of_the_results() -> None:
    assert (ROOT / "docs" / "versions.md").read_text() == runpy.run_path(str(ROOT / ".ci" / "versions.py"))["page"](
        TRIED
    )


def test_each_python_of_the_classifiers_was_tried() -> None:
    named = set(re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text()))
    assert named == {python for python, _ in ROWS}
    assert min(map(Version, named)) in SpecifierSet(PROJECT["project"]["requires-python"])


@pytest.mark.parametrize("row", TRIED["rows"], ids=lambda row: f"{row['asked']} {row['dependencies']}")
def test_what_is_allowed_passes(row: dict[str, Any]) -> None:
    """What failed, failed by a version of a test's package that is not allowed any more."""
    assert row["passed"] > 300
    bounds = map(Requirement, PROJECT["project"]["optional-dependencies"]["test"])
    (hypothesis,) = (each for each in bounds if each.name == "hypothesis")
    for reason in row["failed"].values():
        assert reason.startswith("hypothesis.errors.Flaky"), reason
        assert row["packages"]["hypothesis"] not in hypothesis.specifier


@pytest.mark.parametrize("dependency", PROJECT["project"]["dependencies"])
def test_the_least_version_of_a_dependency_was_tried(dependency: str) -> None:
    """Or the least that has a wheel for the oldest Python."""
    needed = Requirement(dependency)
    (bound,) = (Version(each.version) for each in needed.specifier if each.operator == ">=")
    tried = Version(ROWS["3.10", "least"]["packages"][needed.name])
    assert tried.release[: len(bound.release)] == bound.release
