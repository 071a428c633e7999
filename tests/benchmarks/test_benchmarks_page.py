"""Does `benchmarks/README.md` have every script, every file of results, and commands that are understood?"""

from __future__ import annotations

import importlib
import re
import shlex

import pytest

from tests.benchmarks.running import BENCHMARKS
from tests.test_docs import blocks

PAGE = BENCHMARKS / "README.md"
LINKS = re.findall(r"\]\(([^)]+)\)", PAGE.read_text())
COMMANDS = [
    shlex.split(re.sub(r"\s# .*", "", command))
    for block in blocks(PAGE)
    for line in block.text.splitlines()
    for command in line.split("&&")
]


def test_every_script_and_folder_is_linked_to_once() -> None:
    scripts = {path.name for path in BENCHMARKS.glob("*.py")}
    folders = {path.parent.name for path in BENCHMARKS.glob("*/*.py")}
    assert sorted(LINKS) == sorted(scripts | folders | {"../docs/gpu.md"})


def test_every_file_of_results_is_of_a_script_or_named() -> None:
    named = set(re.findall(r"(?:results/)?(\w+)\.(?:json|png)", PAGE.read_text()))
    for path in (BENCHMARKS / "results").iterdir():
        assert f"{path.stem}.py" in LINKS or path.stem in named, path.name


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_is_understood(command: list[str]) -> None:
    program, *arguments = command
    assert program == "python"
    if arguments[:3] == ["-m", "pip", "install"]:
        return
    script = BENCHMARKS.parent / arguments[0]
    assert script.is_file(), script
    experiment = getattr(importlib.import_module(script.stem), "EXPERIMENT", None) if script.stem != "build" else None
    if experiment is not None:
        experiment.parser().parse_args(arguments[1:])


def test_scripts_take_as_long_as_their_own_first_lines_say() -> None:
    """Minutes of the table; what a script says in words ("about half an hour on 2 cores") is compared as a number."""
    words = {"half an hour": 30, "an hour": 60, "about two": 2, "about five": 5, "five": 5, "three": 3, "ten": 10}
    words |= {"twenty": 20, "fifteen": 15, "two": 2, "nine": 9, "eight": 8, "seven": 7, "about a": 1}
    for name, told in re.findall(r"^\| \[(\w+)\.py\]\(\w+\.py\) \|[^|]*\| (\d+) min", PAGE.read_text(), re.MULTILINE):
        header = (BENCHMARKS / f"{name}.py").read_text().split('"""')[1]
        line = next(line for line in header.splitlines() if re.match(rf"\s*python benchmarks/{name}\.py  ", line))
        said = re.split(r"\.py\s{2,}", line)[1]
        minutes = re.search(r"(\d+) minutes", said)
        number = int(minutes[1]) if minutes else next(value for word, value in words.items() if word in said)
        assert number == int(told), (name, said)
