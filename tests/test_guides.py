"""Do the pages for newcomers run, and do they name what is there, and all that those come from?"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from tests.guides import DOCS, HOW_TO, MIGRATION, SCRIPTS, Script, public_names, run
from tests.pictures import write_folder

PAGES = [*MIGRATION, *HOW_TO]
THEIRS = {"T.", "weights.", "torch.cuda.", "torch.distributed.", "L.", "trainer."}
"""Owners of names that are of PyTorch or torchvision."""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, num_samples in (("train", 20), ("val", 9)):
        write_folder(tmp_path / "photos" / part, num_samples=num_samples)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("photos")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "script",
    [script for script in SCRIPTS if not script.of_trainers],
    ids=lambda script: f"{script.page.stem}-{script.title}",
)
def test_a_page_runs(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(script, monkeypatch)
    if script.page in MIGRATION:
        assert len(re.findall(r"(?m)^epoch \d: ", capsys.readouterr().out)) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_pages(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).resolve().exists(), target


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.stem)
def test_what_a_table_names_as_ours_is_there(page: Path) -> None:
    known = public_names()
    for row in re.findall(r"^\| .* \|$", page.read_text(), re.MULTILINE):
        ours = row.strip("| ").split(" | ")[1]
        for code in re.findall(r"`([^`]+)`", ours):
            for owner, name in re.findall(r"(?<![\w.])((?:\w+\.)*)(\w+)\(", code):
                assert name in known or owner in THEIRS, f"{name} in {row}"


def arguments_of(function: object) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self", "args", "kwargs"}  # type: ignore[arg-type]


def test_every_argument_of_a_data_loader_has_a_row() -> None:
    assert missing("dataloader", arguments_of(torch.utils.data.DataLoader.__init__)) <= {"pin_memory_device"}


def test_every_argument_of_dalis_iterator_has_a_row() -> None:
    assert not missing("dali", arguments_of(DALIGenericIterator.__init__))


def test_every_argument_of_timms_create_loader_has_a_row() -> None:
    spec = importlib.util.find_spec("timm")  # Does not import it, as it needs torchvision.
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    tree = ast.parse((Path(spec.origin).parent / "data" / "loader.py").read_text())
    create = next(node for node in tree.body if getattr(node, "name", "") == "create_loader")
    assert isinstance(create, ast.FunctionDef)
    assert not missing("timm", {argument.arg for argument in create.args.args})


def missing(page: str, names: set[str]) -> set[str]:
    """Return which of some names no row of a page's tables has in its first column."""
    first = "".join(re.findall(r"^\| (.*?) \|", (DOCS / "migration" / f"{page}.md").read_text(), re.MULTILINE))
    return names - {*re.findall(r"\w+", first)}
