import errno
import logging
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from dalirefurb.cli import main
from dalirefurb.cli.arguments import parser
from dalirefurb.cli.outcome import in_options
from dalirefurb.cli.show import PICTURES
from dalirefurb.cli.techniques import OPTIONS, TECHNIQUES
from dalirefurb.demo.photographs import Photographs
from dalirefurb.engine.diagnosis import Facts, diagnose
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import how_to_install
from dalirefurb.planning.planner import Reuse
from dalirefurb.store import DiskStore, StoreSpec
from tests.one_line import error_of, without_progress

pytestmark = pytest.mark.usefixtures("traced_once")
SMALL = ["--size", "32", "--batch-size", "16", "--epochs", "2"]


@pytest.fixture
def unhurried(monkeypatch):
    """Figures of a demo are not looked at, so that nobody waits until the machine is idle."""
    monkeypatch.setattr("dalirefurb.demo.compare._IDLE_LIMIT_S", 0)
    monkeypatch.setattr("dalirefurb.demo.compare._REST_LIMIT_S", 0)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "photographs"
    with Photographs(images=48).folder(path):
        return path


def rows(output):
    """Return the figures of lines that begin with an epoch."""
    return [re.findall(r"[\d.]+", line) for line in output.splitlines() if re.match(r" +\d", line)]


SHARED = Facts(reuse=Reuse(3), slots=800, store="MemoryStore", shared=True)
TRAINED = Stats(samples=800, hits=600, misses=200, batches=100, steps=99, consumer_busy_s=9.0)


@pytest.mark.parametrize(
    ("stats", "facts", "remedy"),
    [
        (TRAINED, SHARED, "compare images/s with those of --reuse-factor 1"),
        (TRAINED, replace(SHARED, reuse=None), "compare images/s with those of standard training"),
        (TRAINED, replace(SHARED, reuse=Reuse()), "compare images/s with those of refurbishing with --reuse-factor 3"),
        (Stats(), SHARED, "train for 16 more"),
        (replace(TRAINED, hits=0, misses=800, consumer_wait_s=9.0), SHARED, "train for another epoch"),
    ],
)
def test_a_diagnosis_names_options_of_the_command(stats, facts, remedy):
    line = in_options(str(diagnose(stats, facts)), parser().parse_args(["train", "photos"]))
    assert line.endswith(f": {remedy}")
    assert "_" not in line


def test_train_prints_the_hits_and_misses_of_every_epoch(photographs, capsys):
    assert main(["train", str(photographs), *SMALL, "--epochs", "4"]) == 0
    said = capsys.readouterr()
    assert [row[0] for row in rows(said.out)] == ["0", "1", "2", "3"]
    assert [row[2:4] for row in rows(said.out)] == [["0", "48"], ["32", "16"], ["32", "16"], ["32", "16"]]
    assert all(len(row) == 9 for row in rows(said.out))
    assert (
        "48 images in 8 classes (1 other file ignored), none of them to judge by (see --val-share); 3 batches of 16"
        in said.out
    )
    assert "cached: decode > random_resized_crop > flip > rand_augment_1 (" in said.out
    assert said.out.count("images/s  ") == 1
    assert "training waited for data in " in said.out.splitlines()[-1]
    assert said.err == ""


def test_train_replaces_bad_images_and_lists_them(photographs, tmp_path, capsys):
    folder = tmp_path / "photographs"
    shutil.copytree(photographs, folder)
    bad = sorted(folder.glob("*/*.jpg"))[::16]
    for path in bad:
        path.write_bytes(b"<html>404</html>")
    assert main(["train", str(folder), *SMALL, "--on-bad-sample", "replace"]) == 0
    said = capsys.readouterr().out
    assert "\n\n3 bad images, replaced by others:\n" in said
    assert [line.split(": ")[0].strip() for line in said.splitlines()[-3:]] == [str(path) for path in bad]
    assert main(["train", str(photographs), *SMALL, "--epochs", "1", "--on-bad-sample", "replace"]) == 0
    assert capsys.readouterr().out.endswith("\n\nno bad images\n")


def test_train_with_reuse_factor_1_never_hits(photographs, capsys):
    assert main(["train", str(photographs), *SMALL, "--reuse-factor", "1"]) == 0
    said = capsys.readouterr().out
    assert [row[2:4] for row in rows(said)] == [["0", "48"], ["0", "48"]]
    assert "refurbish, reuse factor 1: nothing is cached, all is fresh: decode > " in said


def test_train_takes_few_images_as_one_batch(photographs, tmp_path, capsys):
    for path in sorted(photographs.glob("*/*.jpg"))[::10]:
        (tmp_path / path.parent.name).mkdir()
        shutil.copy(path, tmp_path / path.parent.name)
    assert main(["train", str(tmp_path), "--size", "32", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "5 images in 5 classes, none of them to judge by (see --val-share); 1 batches of 5 an epoch\n"
    )
    assert [row[2:4] for row in rows(said)] == [["0", "5"]]


@pytest.mark.parametrize(
    ("technique", "figures", "told"),
    [
        (
            ["standard"],
            [["0", "48"], ["0", "48"]],
            "standard: nothing is cached, all is fresh: decode > random_resized_crop > flip > rand_augment_1 > rand_a",
        ),
        (
            ["echo", "--echoing-factor", "1.5", "--buffer-size", "64"],
            [["24", "48"], ["24", "48"]],
            "echo, echoing factor 1.5, buffer size 64: cached: decode (",
        ),
        pytest.param(
            ["echo", "--split", "end"], [["48", "48"], ["48", "48"]], "; fresh: nothing\n", marks=pytest.mark.weekly
        ),
        (["echo", "--split", "0"], [["48", "48"], ["48", "48"]], "cached: files, as they were read ("),
        (
            ["batch_echo", "--buffer-size", "2"],
            [["48", "48"], ["48", "48"]],
            "batch_echo, echoing factor 2.0, buffer size 2: cached: decode (",
        ),
        (
            ["smartcache", "--num-cache-objects", "32", "--replace-percent", "0.25"],
            [["0", "32"], ["24", "8"]],
            "smartcache, num cache objects 32, replace percent 0.25: cached: decode (",
        ),
        pytest.param(
            ["smartcache"],
            [["0", "16"], ["14", "2"]],
            "smartcache, num cache objects 16, replace percent 0.1: cached",
            marks=pytest.mark.weekly,
        ),
        (
            ["frozen"],
            [["0", "48"], ["48", "0"]],
            "frozen: cached: decode > random_resized_crop > flip > rand_augment_1 ",
        ),
        (
            ["simplified", "--remove-layers", "2"],
            [["0", "48"], ["0", "48"]],
            "simplified, remove layers 2: nothing is cached, all is fresh: decode > random_resized_crop > flip\n",
        ),
        pytest.param(
            ["autoassist", "--lag", "40"],
            [["0", "48"], ["0", "48"]],
            "autoassist, lag 40: nothing is cached",
            marks=pytest.mark.weekly,
        ),
        (["autoassist"], [["0", "48"], ["0", "48"]], "\nof 96 samples considered 96 were trained on, 0% saved; "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and isinstance(value[0], str) else "",
)
def test_train_trains_with_every_technique(photographs, capsys, technique, figures, told):
    assert main(["train", str(photographs), *SMALL, "--technique", *technique]) == 0
    said = capsys.readouterr()
    assert told in said.out
    assert [row[2:4] for row in rows(said.out)] == figures
    assert said.err == ""


def test_every_technique_is_explained_and_has_options_that_are_explained(capsys):
    assert {option for technique in TECHNIQUES.values() for option in technique.options} == OPTIONS.keys()
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    for name, technique in TECHNIQUES.items():
        assert f"\n  {name:<12}{technique.summary}\n" in said


@pytest.mark.parametrize("split", [pytest.param("flip", marks=pytest.mark.weekly), "4"])
def test_train_splits_where_it_is_told(photographs, capsys, split):
    assert main(["train", str(photographs), *SMALL, "--split", split, "--order", "crop_last"]) == 0
    fresh = {"flip": "fresh: flip\n", "4": "fresh: random_crop > flip\n"}[split]
    assert fresh in capsys.readouterr().out


def test_train_says_the_same_figures_for_the_same_seed(photographs, capsys):
    def learned(seed):
        main(["train", str(photographs), *SMALL, "--seed", seed])
        return [row[-2:] for row in rows(capsys.readouterr().out)]

    assert learned("1") == learned("1") != learned("2")


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    status, line = error_of(capsys, "train", tmp_path / "missing")
    assert status == 2
    assert f"{tmp_path / 'missing'} is none: No such file or directory" in line


def test_a_message_of_two_lines_becomes_one(tmp_path, capsys):
    _, line = error_of(capsys, "train", tmp_path / "two\nlines")
    assert "two lines is none" in line


def test_an_empty_folder_is_one_line(tmp_path, capsys):
    status, line = error_of(capsys, "train", tmp_path)
    assert status == 2
    assert "must hold one folder per class" in line


def test_a_folder_without_images_is_one_line(tmp_path, capsys):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    status, line = error_of(capsys, "train", tmp_path)
    assert status == 2
    assert "hold no image among 1 files" in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--split", "sharpen"], "there is no stage 'sharpen' to split at; the stages are decode, random_resized_crop"),
        (["--split", "-1"], "--split must be a stage's name or a count of partial stages"),
        (["--reuse-factor", "0"], "--reuse-factor must be an int of at least 1, got 0"),
        (["--reuse-factor", "many"], "argument --reuse-factor: invalid int value: 'many'; see dalirefurb train --help"),
        (["--batch-size", "49"], "--batch-size must be an int in 1..48, got 49"),
        (["--batch-size", "0"], "--batch-size must be an int of at least 1, got 0"),
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--learning-rate", "0"], "learning rate must be a positive number, got 0.0"),
        (["--learning-rate", "nan"], "learning rate must be a positive number, got nan"),
        (["--size", "31"], "the network needs images of at least 32 pixels, got 31"),
        (["--size", "0"], "size"),
        (["--layers", "0"], "--layers must be a positive integer, got 0"),
        (["--magnitude", "31"], "--magnitude must be an int in 0..30, got 31"),
        (["--order", "random"], "argument --order: invalid choice: 'random'"),
        (["--technique", "magic"], "argument --technique: invalid choice: 'magic'"),
        (
            ["--echoing-factor", "2"],
            "--echoing-factor is for --technique echo and batch_echo, but the technique is refurbish; leave it out, or "
            "pass --technique echo",
        ),
        (
            ["--technique", "standard", "--reuse-factor", "3"],
            "--reuse-factor is for --technique refurbish, but the technique is standard; leave it out, or pass "
            "--technique refurbish",
        ),
        (
            ["--technique", "smartcache", "--buffer-size", "9"],
            "--buffer-size is for --technique echo and batch_echo, but the technique",
        ),
        (
            ["--technique", "echo", "--echoing-factor", "0.5"],
            "--echoing-factor must be a number of at least 1, got 0.5",
        ),
        (
            ["--technique", "smartcache", "--num-cache-objects", "8"],
            "--num-cache-objects must be an int in 16..48, got 8",
        ),
        (["--technique", "smartcache", "--batch-size", "0"], "--batch-size must be an int of at least 1, got 0"),
        (
            ["--technique", "simplified", "--remove-layers", "3"],
            "--remove-layers must be an int in 1..2, got 3: the operations to leave out are rand_augment_1, rand_augm",
        ),
        (["--technique", "autoassist", "--lag", "0"], "--lag must be an int of at least 1, got 0"),
        (["--colour"], "unrecognized arguments: --colour; see dalirefurb train --help"),
    ],
)
def test_an_argument_that_cannot_work_is_one_line(photographs, capsys, arguments, told):
    # A later option overrides an earlier one.
    status, line = error_of(capsys, "train", photographs, "--size", 32, "--batch-size", 16, *arguments)
    assert status == 2
    assert told in line


@pytest.mark.parametrize("content", ["this is no image", ""])
def test_a_file_that_is_no_image_is_one_line_that_names_it(photographs, tmp_path, capsys, content):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    (folder / "chelsea" / "x.jpg").write_text(content)
    status, line = error_of(capsys, "train", folder, *SMALL)
    assert status == 1
    assert f"{folder / 'chelsea' / 'x.jpg'}): " in line


def test_a_truncated_image_ends_in_one_line_or_not_at_all(photographs, tmp_path, capsys):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    image = next((folder / "chelsea").iterdir())
    image.write_bytes(image.read_bytes()[:400])
    status, line = error_of(capsys, "train", folder, *SMALL)
    assert status == 1
    assert str(image) in line


def test_an_error_leaves_no_thread(photographs, tmp_path, capsys):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    (folder / "chelsea" / "x.jpg").write_text("this is no image")
    before = set(threading.enumerate())
    error_of(capsys, "train", folder, *SMALL)
    # Reading threads can take a moment to end after the loader is closed.
    deadline = time.monotonic() + 600
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def test_no_command_is_one_line(capsys):
    status, line = error_of(capsys)
    assert status == 2
    assert line.endswith("see dalirefurb --help")


@pytest.mark.parametrize("command", ["train", "show", "demo"])
def test_help_explains_every_option(command, capsys):
    with pytest.raises(SystemExit) as exited:
        main([command, "--help"])
    assert exited.value.code == 0
    said = capsys.readouterr().out
    commands = next(action for action in parser()._actions if isinstance(action.choices, dict))
    actions = commands.choices[command]._actions
    assert len(actions) > 5
    for action in actions:
        assert action.help, action
        assert len(action.help) > 10, action
    assert "examples:\n  dalirefurb " in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--preset", "sharpen"], "argument --preset: invalid choice: 'sharpen'"),
        (["--split", "sharpen"], "there is no stage 'sharpen' to split at; the stages are decode, random_resized_crop"),
        (["--split", "-1"], "count of partial stages in 0..5, got -1"),
        (["--order", "random"], "argument --order: invalid choice: 'random'"),
        (["--preset", "simple", "--order", "crop_last"], "--order is for presets with operations, but simple has none"),
        (["--reuse-factor", "0"], "--reuse-factor must be an int of at least 1, got 0"),
        (["--reuse-factor", "13"], "--reuse-factor must be an int in 1..12, got 13: 2 or 3 is usual"),
        (["--size", "0"], "--size must be a positive integer, got 0"),
        (["--operations", "--preset", "evaluate"], "must have operations of varying magnitude"),
        (["--operations", "--preset", "yolo"], "must have operations of varying magnitude"),
        (["--preset", "yolo", "--split", "flip"], "'mosaic' takes several partial images of a batch"),
        (["--operations", "--plan"], "argument --plan: not allowed with argument --operations"),
        (["--masks", "a", "--yolo", "b"], "argument --yolo: not allowed with argument --masks"),
        (["--coco", "a", "--masks", "b"], "argument --masks: not allowed with argument --coco"),
        (["--yolo", "a", "--coco", "b"], "argument --coco: not allowed with argument --yolo"),
        (
            ["--plan", "--num-samples", "99", "--reuse-factor", "0"],
            "--reuse-factor must be an int of at least 1, got 0",
        ),
        (["--plan", "--num-samples", "99", "--epochs", "0"], "--epochs must be an int of at least 1, got 0"),
        (["--plan", "--num-samples", "0"], "--num-samples must be an int of at least 1, got 0"),
        (["--technique", "echo"], "--technique is for --plan, got echo without it; add --plan"),
        (["--lag", "3"], "--lag is for --technique autoassist, but the technique is refurbish; leave it out, or pass"),
        (
            ["--plan", "--technique", "frozen", "--reuse-factor", "2"],
            "--reuse-factor is for --technique refurbish, but",
        ),
        (
            ["--plan", "--technique", "frozen", "--num-samples", "99", "--epochs", "0"],
            "--epochs must be an int of at least 1, got 0",
        ),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_one_line(photographs, tmp_path, capsys, arguments, told):
    status, line = error_of(capsys, "show", photographs, "--out", tmp_path / "a.png", *arguments)
    assert status == 2
    assert told in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [[], ["--operations"], ["--plan"], ["--plan", "--technique", "frozen"]])
def test_a_picture_that_cannot_be_written_is_one_line(photographs, tmp_path, capsys, mode):
    out = tmp_path / "missing" / "a.png"
    numbers = ["--batch-size", 8] if "--plan" in mode else ["--size", 32]
    status, line = error_of(capsys, "show", photographs, *numbers, "--out", out, *mode)
    assert status == 2
    assert f"writing {out} fails: No such file or directory; name another with --out" in line


@pytest.mark.parametrize(
    ("arguments", "package", "module"),
    [
        ([], "scikit-image", "skimage"),
        (["FOLDER"], "matplotlib", "matplotlib"),
        (["FOLDER", "--operations"], "matplotlib", "matplotlib"),
        (["--plan"], "matplotlib", "matplotlib"),
        (["--plan", "--technique", "frozen"], "matplotlib", "matplotlib"),
    ],
)
def test_a_package_missing_for_a_picture_is_one_line(photographs, monkeypatch, capsys, arguments, package, module):
    monkeypatch.setitem(sys.modules, module, None)
    arguments = [photographs if argument == "FOLDER" else argument for argument in arguments]
    status, line = error_of(capsys, "show", *arguments, "--out", photographs / "never.png")
    assert status == 2
    assert f"but {package} cannot be found; {how_to_install('demo')}" in line


def test_pictures_of_an_empty_folder_are_one_line(tmp_path, capsys):
    status, line = error_of(capsys, "show", tmp_path, "--out", tmp_path / "a.png")
    assert status == 2
    assert "must hold one folder per class" in line


def test_pictures_of_a_file_that_is_no_image_are_one_line_that_names_it(tmp_path, capsys):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "x.jpg").write_text("this is no image")
    status, line = error_of(capsys, "show", tmp_path, "--size", 32, "--out", tmp_path / "a.png")
    assert status == 1
    assert f"{tmp_path / 'class' / 'x.jpg'}): " in line


def test_a_demo_whose_pictures_cannot_be_written_is_one_line(photographs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "drawn"
    sizes = ["--quick", "--images", 48, "--size", 32]
    status, line = error_of(capsys, "demo", *sizes, "--folder", photographs, "--out", out)
    assert status == 2
    assert f"{out} cannot be made: Not a directory; name another with --out" in line


def test_help_of_train_teaches_its_words(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for words in ("hits images whose", "misses images that", "decode, random_resized_crop, flip, rand_augment_1"):
        assert words in said


def test_help_of_show_teaches_its_words(capsys):
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for words in ("blue frames: cached", "fresh at every use", "in the paper's units", "which batches miss"):
        assert words in said


def test_the_command_line_is_imported_without_torch_and_dali():
    heavy = "import sys, dalirefurb.cli; print([m for m in ('torch', 'nvidia.dali', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_plan_is_drawn_without_torch_and_dali(tmp_path):
    arguments = ["show", "--plan", "--num-samples", "99", "--out", str(tmp_path / "plan.png")]
    program = f"""import sys, dalirefurb.cli as cli
assert cli.main({arguments!r}) == cli.main([*{arguments!r}, "--technique", "echo"]) == 0
print([m for m in ("torch", "nvidia.dali", "tqdm") if m in sys.modules])"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == 2 * f"drawn: {tmp_path / 'plan.png'}\n" + "[]\n"


def test_a_plan_of_fewer_images_than_a_batch_has_is_drawn_for_one_batch(tmp_path, capsys):
    out = tmp_path / "plan.png"
    assert main(["show", "--plan", "--num-samples", "5", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"drawn: {out}\n"


@pytest.mark.usefixtures("unhurried")
def test_the_demo_prints_a_table_of_three_runs_and_draws_pictures(tmp_path, capsys):
    out = tmp_path / "drawn"
    assert main(["demo", "--quick", "--images", "48", "--size", "32", "--out", str(out)]) == 0
    said = capsys.readouterr()
    table = said.out[said.out.index("misses per epoch") :].splitlines()
    assert [re.split(r"  +", line)[0] for line in table[1:4]] == ["standard", "refurbished", "refurbished, crop last"]
    assert [re.split(r"  +", line)[1] for line in table[1:4]] == ["48", "16", "16"]
    # It is too short to tell a speed.
    for word in ("speed-up", "images/s", "ms"):
        assert word not in said.out
    assert said.out.startswith("this takes about a minute")
    assert said.err == ""
    names = ["show.png", "operations.png", "plan.png"]
    assert table[-1] == f"drawn: {', '.join(str(out / name) for name in names)}"
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    for name in names:
        with Image.open(out / name) as image:
            assert image.format == "PNG"
            assert min(image.size) > 200


@pytest.mark.weekly
@pytest.mark.usefixtures("unhurried")
def test_a_demo_that_is_long_enough_shows_loading_alone_and_takes_the_images_that_are_there(
    photographs, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("dalirefurb.demo.compare._TURN_S", 0.01)
    monkeypatch.setattr("dalirefurb.demo.compare._IMAGES", 1)
    monkeypatch.setattr("dalirefurb.demo.compare._ROUNDS", 1)
    monkeypatch.setattr("dalirefurb.demo.compare.usable_cores", lambda: 1)
    monkeypatch.setattr("dalirefurb.cli.terminal._FIRST_S", 0.001)
    monkeypatch.setattr("dalirefurb.cli.outcome._LEVEL", logging.INFO)
    monkeypatch.setattr("dalirefurb.demo.compare._TIMED_BATCHES", 6)
    monkeypatch.setattr("dalirefurb.demo.commands.draw_all", lambda *_: [Figure() for _ in PICTURES])  # Tested above.
    image = next((photographs / "rocket").iterdir())
    made = image.stat().st_mtime_ns
    sizes = ["--images", "48", "--batch-size", "8", "--size", "32", "--epochs", "2"]
    assert main(["demo", *sizes, "--folder", str(photographs), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert image.stat().st_mtime_ns == made  # Images are kept where it is told.
    loading, training = re.findall(r"^ +images/s   speed-up.*\n(?:\S.*\n)+", said.out, re.MULTILINE)
    names = ["DataLoader", "stock DALI", "dalirefurb, standard", "dalirefurb, reuse factor 3"]
    assert [re.split(r"  +", line)[0] for line in loading.splitlines()[1:]] == names
    figures = [list(map(float, re.findall(r"  ([\d.]+)x?", line))) for line in loading.splitlines()[1:]]
    assert all(speed > 0 for speed, _ in figures)
    assert [ratio for _, ratio in figures] == pytest.approx([speed / figures[0][0] for speed, _ in figures], abs=0.1)
    names = ["standard", "refurbished", "refurbished, crop last"]
    assert [re.split(r"  +", line)[0] for line in training.splitlines()[1:]] == names
    assert "no cache shortens the network's own step" in " ".join(said.out.split())
    # What is told meanwhile is elsewhere, in whole lines, and says of which run it is.
    for what in (
        "loading alone, stock DALI, turn 1 of 2",
        "standard, epoch 2 of 2: batch",
        "refurbished, epoch 2 of 2",
    ):
        assert f"dalirefurb: {what}" in said.err
    assert without_progress(said.err) == ""
    assert multiprocessing.active_children() == []


def test_the_demo_does_not_touch_a_folder_of_others(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("mine")
    status, line = error_of(capsys, "demo", "--quick", "--folder", tmp_path)
    assert status == 2
    assert f"{tmp_path} holds other files; name another or delete it" in line
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_the_demo_does_not_take_images_of_another_seed(photographs, capsys):
    status, line = error_of(capsys, "demo", "--images", "48", "--seed", "1", "--folder", photographs)
    assert status == 2
    assert "of images 48, seed 1, but" in line
    assert "holds those of images 48, seed 0" in line


@pytest.mark.parametrize(
    ("package", "module"), [("Pillow", "PIL"), ("scikit-image", "skimage"), ("matplotlib", "matplotlib")]
)
def test_a_missing_package_is_one_line_that_says_what_to_install(monkeypatch, capsys, package, module):
    monkeypatch.setitem(sys.modules, module, None)
    status, line = error_of(capsys, "demo", "--quick")
    assert status == 2
    assert f"but {package} cannot be found; {how_to_install('demo')}" in line


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    status, line = error_of(capsys, "demo", "--quick", "--folder", tmp_path / "file" / "photographs")
    assert status == 2
    assert "must be writable" in line


def test_photographs_are_a_function_of_their_numbers(photographs, tmp_path):
    def contents(path):
        return {image.relative_to(path): image.read_bytes() for image in sorted(path.rglob("*.jpg"))}

    expected = contents(photographs)
    assert len(expected) == 48
    with Photographs(images=48).folder() as again, Photographs(images=48, seed=1).folder() as other:
        assert contents(again) == expected
        assert contents(other).keys() == expected.keys()
        assert not set(contents(other).values()) & set(expected.values())
    assert not again.exists()


def test_photographs_cost_what_photographs_of_their_size_cost(photographs):
    sizes = [image.stat().st_size for image in photographs.rglob("*.jpg")]
    assert 50_000 < sum(sizes) / len(sizes) < 110_000


def test_an_interrupted_making_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(self, content):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.write_text", interrupt)
    with pytest.raises(KeyboardInterrupt), Photographs(images=8).folder(tmp_path / "photographs"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_making_at_once_in_one_line(tmp_path, capsys, monkeypatch):
    written = []

    def fill(self, content):
        written.append(self)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr("pathlib.Path.write_bytes", fill)
    status, line = error_of(capsys, "demo", "--images", "200", "--folder", tmp_path / "photographs")
    assert status == 2
    assert "No space left on device" in line
    assert len(written) < 100
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cache(tmp_path):
    """A store's file with 12 samples in 20 slots, and the store, open."""
    path = tmp_path / "cache"
    with DiskStore(path) as store:
        store.open(StoreSpec((4, 5, 3), 20, {"seed": 3, "stages": [{"name": "decode"}]}))
        indices = np.arange(12)
        assert store.put(indices, indices * 0, [np.full((4, 5, 3), 7, np.uint8) for _ in indices]).all()
        yield path, store


def flip(path, pattern, count):
    """Change one byte in each of the first `count` places where a file has these bytes."""
    data = bytearray(path.read_bytes())
    place = 0
    for _ in range(count):
        place = data.index(pattern, place)
        data[place] ^= 1
        place += len(pattern)
    path.write_bytes(data)


def test_cache_inspect_prints_what_is_in_a_store_also_while_it_is_in_use(cache, capsys):
    path, store = cache
    assert main(["cache", "inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"in use by    this process\b.*\b{os.getpid()}\b", said)
    store.close()
    assert main(["cache", "inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"store        {path}, {path.stat().st_size / 1e3:.2f} KB\n" in said
    assert "in use by    nobody\n" in said
    assert "slots        20 of 4 x 5 x 3, together 1.20 KB\n" in said
    assert "held         12 samples, 720 B\n" in said
    assert '"seed": 3' in said
    assert '"name": "decode"' in said


def test_cache_inspect_tells_that_sizes_vary(tmp_path, capsys):
    with DiskStore(tmp_path / "cache") as store:
        store.open(StoreSpec(None, 20, {}, 5 * 10**6))
    assert main(["cache", "inspect", str(tmp_path / "cache")]) == 0
    assert "slots        20 of any size, together at most 5.00 MB\n" in capsys.readouterr().out


def test_cache_verify_ends_with_status_0_only_if_every_sample_is_intact(cache, capsys):
    path, store = cache
    store.close()
    assert main(["cache", "verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} is intact: 12 samples\n"
    flip(path, bytes([7] * 60), 2)
    assert main(["cache", "verify", str(path)]) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path} is not intact. Samples: 10 intact, 2 damaged; ")
    assert [line[: line.index(",")] for line in others] == ["  damaged: sample 0", "  damaged: sample 1"]


def test_cache_verify_names_ten_damaged_samples_and_counts_the_others(cache, capsys):
    path, store = cache
    store.close()
    flip(path, bytes([7] * 60), 12)
    assert main(["cache", "verify", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  and 2 more"


def test_cache_purge_deletes_a_store_that_nobody_uses(cache, capsys):
    path, store = cache
    status, line = error_of(capsys, "cache", "purge", path)
    assert status == 2
    assert re.search(rf"in use by this process\b.*\b{os.getpid()}\b", line)
    assert path.exists()
    store.close()
    size = path.stat().st_size
    assert main(["cache", "purge", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} is deleted: {size / 1e3:.2f} KB\n"
    assert not path.exists()


@pytest.mark.parametrize("action", ["inspect", "verify", "purge"])
def test_a_file_that_is_no_store_is_left_alone_and_one_line(tmp_path, capsys, action):
    path = tmp_path / "letter.txt"
    path.write_text("mine")
    status, line = error_of(capsys, "cache", action, path)
    assert status == 2
    assert f"{path} was not" in line
    assert path.read_text() == "mine"


@pytest.mark.parametrize("action", ["inspect", "verify", "purge"])
def test_a_folder_is_no_store(tmp_path, capsys, action):
    status, line = error_of(capsys, "cache", action, tmp_path)
    assert status == 2
    assert f"{tmp_path}, but it is no regular file" in line
    assert tmp_path.is_dir()


def test_whoever_stops_reading_gets_no_traceback(cache):
    path, _ = cache
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "dalirefurb", "cache", "inspect", str(path)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("action", ["inspect", "verify", "purge"])
def test_a_store_that_is_not_there_is_one_line(tmp_path, capsys, action):
    status, line = error_of(capsys, "cache", action, tmp_path / "missing")
    assert status == 2
    assert f"{tmp_path / 'missing'}" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "told"), [([], "ACTION"), (["clean"], "invalid choice"), (["verify"], "PATH")])
def test_a_cache_command_that_is_incomplete_is_one_line(capsys, arguments, told):
    status, line = error_of(capsys, "cache", *arguments)
    assert status == 2
    assert told in line


def test_help_of_cache_explains_its_actions(capsys):
    with pytest.raises(SystemExit):
        main(["cache", "--help"])
    said = capsys.readouterr().out
    for action in ("inspect", "verify", "purge"):
        assert f"\n  dalirefurb cache {action} " in said
        with pytest.raises(SystemExit):
            main(["cache", action, "--help"])
        assert "the file that DiskStore(PATH) was given" in " ".join(capsys.readouterr().out.split())
