"""What agents are given, `skills/dalirefurb/SKILL.md` and `llms.txt`: its blocks run, its names and pages are there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dalirefurb
import dalirefurb.augment
import dalirefurb.store
from dalirefurb import errors
from dalirefurb.augment.published import airbench, convnext, deit3, resnet_strikes_back, simclr
from tests.augment.torchvision_stand_ins import T
from tests.pictures import write_folder
from tests.test_docs import ROOT, blocks, understood

SKILL = ROOT / "skills" / "dalirefurb" / "SKILL.md"
LLMS = ROOT / "llms.txt"
NOT_OURS = {"DataLoader", "Mixup", "DALIGenericIterator", "DistributedSampler", "Dataset", "Normalize", "Trainer"}
FOR_TRAINERS = {  # without importing the trainers' packages
    name
    for path in (ROOT / "dalirefurb" / "trainers").glob("*.py")
    for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
}


def front_matter() -> dict[str, str]:
    found = re.match(r"---\n(.*?)\n---\n", SKILL.read_text(), re.DOTALL)
    assert found
    return dict(line.split(": ", 1) for line in found[1].splitlines())


def test_the_skill_says_what_it_is_and_when_to_use_it() -> None:
    matter = front_matter()
    assert matter.keys() == {"name", "description"}
    assert matter["name"] == SKILL.parent.name == "dalirefurb"
    assert "Use when" in matter["description"]
    assert len(matter["description"]) <= 1024


def test_its_python_runs_block_after_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "photos" / "train", num_samples=96)
    write_folder(tmp_path / "photos" / "val", num_samples=32)
    torchvision: Any = ModuleType("torchvision")
    torchvision.transforms = T
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    monkeypatch.chdir(tmp_path)
    python = [block for block in blocks(SKILL) if block.language == "python"]
    assert len(python) > 5
    space: dict[str, Any] = {}
    for block in python:
        exec(compile("\n" * int(block.place.split(":")[1]) + block.text, SKILL, "exec"), space)
    for value in space.values():
        if isinstance(value, dalirefurb.Loader):
            value.close()


def test_its_commands_are_understood() -> None:
    commands = [line for block in blocks(SKILL) if block.language == "sh" for line in block.text.splitlines()]
    commands += re.findall(r"`(dalirefurb [^`|]*)`", SKILL.read_text())
    assert len(commands) > 4
    for command in commands:
        understood(shlex.split(command))


def test_the_classes_that_it_names_are_there() -> None:
    """Of names between backquotes that begin with a capital and are called or raised."""
    named = set(re.findall(r"`([A-Z]\w+)(?:[.(`])", re.sub(r"```.*?```", "", SKILL.read_text(), flags=re.DOTALL)))
    modules = (dalirefurb, dalirefurb.augment, dalirefurb.planning, dalirefurb.store, errors)
    there = {"None", *(name for module in modules for name in dir(module))}
    assert named - there - NOT_OURS - FOR_TRAINERS == set()
    assert len(named) > 15


def test_the_splits_that_it_recommends_keep_what_it_says() -> None:
    names = "`rand_augment`, `trivial_augment` and the published ones do. `auto_augment` and `timm_augment` do with"
    assert names in SKILL.read_text()
    published = [airbench, convnext, deit3, resnet_strikes_back, simclr]
    others = [dalirefurb.auto_augment, dalirefurb.timm_augment]
    keep = [preset() for preset in (dalirefurb.rand_augment, dalirefurb.trivial_augment, *published)]
    keep += [preset(order="crop_last") for preset in others] + [dalirefurb.simple().at(1)]
    assert min(recipe.diversity(3) for recipe in keep) >= 0.95
    assert max(preset().diversity(3) for preset in (*others, dalirefurb.simple)) < 0.95


def test_llms_txt_is_of_its_format() -> None:
    """Of llmstxt.org: a title, a summary in a quotation, paragraphs, then lists of links, each with its description."""
    title, _, summary, *rest = LLMS.read_text().splitlines()
    assert title == "# dalirefurb"
    assert summary.startswith("> ")
    lists = rest[rest.index(next(line for line in rest if line.startswith("## "))) :]
    for line in lists:
        assert not line or line.startswith("## ") or re.fullmatch(r"- \[[^\]]+\]\([^)]+\): \S.*", line), line


def test_every_page_that_llms_txt_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", LLMS.read_text())
    assert len(links) == len(set(links)) > 8
    for link in links:
        assert link.startswith("https://") or (ROOT / link).is_file(), link


def test_llms_txt_has_every_page_of_the_docs() -> None:
    """But those that only include others: the site's first page, and what the reference's first page leads to."""
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if "reference" not in page.parts}
    pages -= {"docs/index.md", "docs/changelog.md", "docs/contributing.md"}
    assert pages - set(re.findall(r"\]\(([^)]+)\)", LLMS.read_text())) == set()
