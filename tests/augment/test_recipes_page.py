"""Does `docs/recipes.md` run, and say what presets' splits keep? Torchvision is stood in for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dalirefurb import ImageFolder, Recipe, Refurbish
from dalirefurb.augment import published
from dalirefurb.augment.importing.timm import CreateTransform
from tests.augment.torchvision_stand_ins import T
from tests.pictures import write_folder
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "recipes.md"
BLOCKS = blocks(PAGE)
ROWS = re.findall(
    r"^\| `(\w+\(.*?\))` \| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text(), re.MULTILINE
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), num_samples=12))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_python_runs(block: Any, source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert block.language == "python"
    torchvision: Any = ModuleType("torchvision")
    torchvision.transforms = T
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    space: dict[str, Any] = {"source": source, "planner": Refurbish(len(source), batch_size=6, reuse_factor=2)}
    exec(compile(block.text, block.place, "exec"), space)
    if isinstance(space.get("recipe"), Recipe):
        assert space["recipe"].diversity(3) >= 0.95


def test_the_table_of_presets_says_what_their_splits_keep() -> None:
    assert len(ROWS) == 9
    for call, stage, *kept in ROWS:
        recipe = eval(call, vars(published).copy())
        assert recipe.stages[recipe.split].name == stage
        shares = [recipe.diversity(2), recipe.diversity(3), recipe.at(recipe.split + 1).diversity(3)]
        assert [f"{share:.2f}" for share in shares] == kept, call


def test_what_the_page_names_is_there() -> None:
    assert "`help(dalirefurb.augment.importing.timm.CreateTransform)`" in Path(PAGE).read_text()
    assert CreateTransform.__doc__
