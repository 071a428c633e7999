"""Do the pages for newcomers run, and do they name what is there, and all that those come from?"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from tests.guides import MIGRATION, SCRIPTS, Script, missing, public_names, run
from tests.pictures import write_folder

THEIRS = {"T.", "weights.", "torch.cuda.", "torch.distributed.", "L.", "trainer."}
"""Owners of names that are of PyTorch or torchvision."""


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, num_samples in (("train", 64), ("val", 64)):
        write_folder(tmp_path / "photos" / part, num_samples=num_samples)
    monkeypatch.chdir(tmp_path)
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def _process() -> Iterator[None]:
    """What scripts set for the process is set back; networks are so small that threads would only wait."""
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("photos", "_process")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "script",
    [script for script in SCRIPTS if not script.of_trainers],
    ids=lambda script: f"{script.page.stem}-{script.title}",
)
def test_a_page_runs(script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
    run(script, monkeypatch, model=model)
    if script.page in MIGRATION:
        assert len(re.findall(r"(?m)^epoch \d: ", capsys.readouterr().out)) >= 2


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
