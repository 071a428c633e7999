"""The code blocks of README and docs: Python runs, commands are understood, output is what is printed.

Pages in folders of `docs` have tests of their own; `test_site.py` looks at links, names and figures.
"""

import ast
import doctest
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import dalirefurb
from dalirefurb import ImageFolder, MemoryStore, Refurbish, rand_augment
from dalirefurb.cli.arguments import parser
from dalirefurb.cli.explanations import CACHE, DEMO, SHOW, TRAIN
from tests.pictures import write_folder

ROOT = Path(__file__).resolve().parents[1]
TESTED_ELSEWHERE = {"batches.md", "recipes.md", "sources.md"}
"""Pages of which tests of what they speak of run the blocks, and look at what becomes of them."""

DOCS = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in TESTED_ELSEWHERE]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
DIAGRAMS = ("partial augmentation   ", "package         stands on", "planning            engine")
"""Parts of blocks of text that nothing prints."""

MYST = re.compile(r"^```\{.*?^```$", re.MULTILINE | re.DOTALL)
"""What the site's builder makes of other files, or of lists of pages."""


class Block(NamedTuple):
    """One block of code, and where it is."""

    place: str
    language: str
    text: str


def blocks(path):
    """Find the blocks between fences."""
    page, found = MYST.sub(lambda match: "\n" * match[0].count("\n"), path.read_text()), []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        place = f"{path.name}:{page[: match.start()].count(chr(10)) + 1}"
        found.append(Block(place, match[1], match[2]))
    assert page.count("\n```") + page.startswith("```") == 2 * len(found), f"{path} has a fence too many"
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
NEWCOMER = PYTHON[0]


def of_language(*languages):
    return pytest.mark.parametrize(
        "block", [block for block in BLOCKS if block.language in languages], ids=lambda block: block.place
    )


def test_every_block_is_of_a_language_that_is_tested():
    assert {block.language for block in BLOCKS} <= {"python", "sh", "text", "dockerfile"}
    assert len(PYTHON) > 5


def newcomer(folder):
    """Run the first script as a user who copies it into a file does; return what it prints."""
    (folder / "script.py").write_text(NEWCOMER.text)
    command = [sys.executable, "-W", "error", "script.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# With photographs it runs as a user who copies it into a file does: in a process, for which warnings are errors.
@pytest.mark.parametrize("given", ["made", pytest.param("photographs", marks=pytest.mark.weekly)])
def test_the_newcomers_script_trains_and_validates(tmp_path, request, monkeypatch, capsys, given):
    if given == "made":
        write_folder(tmp_path / "photos", num_samples=80)
        held_out = 8
        monkeypatch.chdir(tmp_path)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # Threads would wait for each other longer than they work.
        names = {"__name__": "__main__"}
        exec(compile(NEWCOMER.text, NEWCOMER.place, "exec"), names)
        for loader in (names["train_loader"], names["val_loader"]):
            loader.close()
        torch.set_num_threads(threads)
        lines = capsys.readouterr().out.splitlines()
    else:
        (tmp_path / "photos").symlink_to(request.getfixturevalue("shared_data") / "photos")
        held_out = 36
        lines = newcomer(tmp_path)
    *lines, verdict = lines
    assert re.match("(DETECTED|POTENTIAL|NOT DETECTED|INCONCLUSIVE|SHARED CORES): ", verdict)
    found = [re.fullmatch(r"epoch (\d): loss [\d.]+, validation accuracy ([\d.]+)%", line) for line in lines]
    assert [match and match[1] for match in found] == ["0", "1", "2", "3", "4"]
    for match in found:
        right = float(match[2]) / 100 * held_out
        assert abs(right - round(right)) < 0.05


def test_the_newcomers_script_is_short():
    assert len(NEWCOMER.text.splitlines()) <= 30


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What the blocks take for granted, the imports of those above included, and the folder where they run."""
    folder = tmp_path_factory.mktemp("docs")
    write_folder(folder / "photos" / "train", num_samples=64)
    write_folder(folder / "photos" / "val", num_samples=64)
    photos = ImageFolder(folder / "photos" / "train")
    source = photos.subset(np.arange(1024) % len(photos))
    names = {
        "images": np.zeros((256, 32, 32, 3), np.uint8),
        "labels": np.arange(256) % 10,
        "model": torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3)),
        "source": source,
        "recipe": rand_augment(32),
        "planner": Refurbish(len(source), batch_size=64, reuse_factor=3),
        "store": MemoryStore(),
        **{name: getattr(dalirefurb, name) for name in dalirefurb.__all__},
    }
    return folder, names


@pytest.mark.parametrize("block", PYTHON[1:], ids=lambda block: block.place)
def test_python_runs(given, monkeypatch, block):
    folder, names = given
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    # The only path of another machine.
    source = block.text.replace("/local/", f"{folder}/")
    space = dict(names)
    exec(compile(source, block.place, "exec"), space)
    for value in space.values():
        if isinstance(value, dalirefurb.Loader):
            value.close()


@of_language("text")
def test_text_is_what_is_printed_or_names_what_is_there(block):
    if ">>> " in block.text:
        examples = doctest.DocTestParser().get_doctest(block.text, {"dalirefurb": dalirefurb}, block.place, None, 0)
        said = []
        doctest.DocTestRunner().run(examples, out=said.append)
        assert not said, "".join(said)
    else:
        assert any(part in block.text for part in DIAGRAMS), "is it printed? Then write >>> before what prints it"


def module(path):
    """Import a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def understood(command):
    """Have a command's parser read its arguments, or find what it runs."""
    program, *arguments = command
    if program == "dalirefurb":
        if "--help" not in arguments:
            parser().parse_args(arguments)
    elif program == "torchrun":
        script = next(index for index, argument in enumerate(arguments) if argument.endswith(".py"))
        module(ROOT / arguments[script]).parser().parse_args(arguments[script + 1 :])
    elif program == "python" and arguments[0].endswith(".py"):
        ast.parse((ROOT / arguments[0]).read_text())
    elif program == "python" and (ROOT / arguments[0] / "__main__.py").exists():
        done = subprocess.run([sys.executable, *arguments, "--list"], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, command
    elif arguments[:3] == ["-m", "pip", "install"]:
        project = (ROOT / "pyproject.toml").read_text()
        for extra in re.findall(r"\[([\w-]+)\]", " ".join(arguments)):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    elif arguments[:2] == ["-m", "pytest"]:
        assert "pytest-xdist" in (ROOT / "pyproject.toml").read_text()
    elif program == "sphinx-build":
        assert '"sphinx>=' in (ROOT / "pyproject.toml").read_text()
        assert (ROOT / arguments[-2] / "conf.py").exists()
    elif program in ("ruff", "mypy"):
        assert f'"{program}>=' in (ROOT / "pyproject.toml").read_text()
    else:
        assert arguments[:1] == ["-m"], command
        assert importlib.util.find_spec(arguments[1]), command


@of_language("sh")
def test_commands_are_understood(block):
    for line in block.text.splitlines():
        for command in re.sub(r"\s# .*", "", line).split("&&"):
            understood(shlex.split(command))


@of_language("dockerfile")
def test_commands_of_a_container_are_understood(block):
    commands = re.findall(r"dalirefurb [^&]*", block.text)
    assert commands
    for command in commands:
        understood(shlex.split(command))


INLINE = [
    (page.name, command)
    for page in PAGES
    for command in re.findall(r"`(dalirefurb (?:train|show|demo|cache|doctor|tune) [^`|]*)`", page.read_text())
]
EXAMPLES = [
    (text["help"], re.split(r"\s{2,}", line.strip())[0])
    for text in (TRAIN, SHOW, DEMO, CACHE)
    for line in text["epilog"].partition("examples:")[2].splitlines()
    if line.startswith("  dalirefurb ")
]


@pytest.mark.parametrize(("place", "command"), [*INLINE, *EXAMPLES], ids=lambda value: value)
def test_commands_in_sentences_and_in_help_are_understood(place, command):
    understood(shlex.split(command))


def test_a_command_that_is_not_understood_is_found():
    with pytest.raises(SystemExit):
        understood(["dalirefurb", "train", "FOLDER", "--colour"])
    with pytest.raises(AssertionError):
        understood(["python", "-m", "pip", "install", ".[everything]"])
