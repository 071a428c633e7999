"""Tune from end to end, on small images: that it works, not how fast anything is."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import dalirefurb
from dalirefurb import Arrays, FileList, ImageFolder, Recipe, rand_augment, tune
from dalirefurb.cli import main
from dalirefurb.cli.arguments import parser
from dalirefurb.errors import ConfigurationError, ReadError
from dalirefurb.tuning import measure as measuring
from dalirefurb.tuning import verify as verifying
from dalirefurb.tuning.costs import Costs
from dalirefurb.tuning.measure import measure
from dalirefurb.tuning.subjects import read_some, rows_of
from dalirefurb.tuning.tune import advise
from tests.one_line import error_of
from tests.pictures import write_folder
from tests.tuning.made import costs, machine, split, workload

QUICK = {"batch_size": 16, "limit_s": 1.0, "epochs": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    write_folder(root, num_samples=48)
    return root


@pytest.fixture(scope="module")
def plan(folder, tmp_path_factory):
    """What the command wrote, and what it printed."""
    out = tmp_path_factory.mktemp("plan")
    arguments = ["tune", str(folder), "--preset", "trivial_augment", "--size", "32", "--batch-size", "16"]
    arguments += ["--step-ms", "0.01"]
    arguments += ["--disk", str(out), "--json", str(out / "plan.json"), "--picture", str(out / "plan.png")]
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("dalirefurb.cli.tune.say", said.append)
        patch.setattr(measuring, "ROUNDS", 1)
        patch.setattr(measuring, "_SLICE_S", (0.02, 0.02))
        assert main(arguments) == 0
    assert sorted(path.name for path in out.iterdir()) == ["plan.json", "plan.png"]
    return out / "plan.json", "\n".join(said)


def test_the_command_prints_a_verdict_a_table_and_code(plan):
    _, said = plan
    assert re.match(r"(DETECTED|POTENTIAL|NOT DETECTED|INCONCLUSIVE): ", said)
    assert "standard, paper" in said
    assert "* what to take" in said
    assert "from dalirefurb import" in said


def test_the_code_it_prints_makes_a_loader(plan, tmp_path):
    code = plan[1][plan[1].index("from dalirefurb import") :].partition("\n\nwritten")[0]
    space = {}
    exec(code.replace("'/local", f"'{tmp_path}"), space)
    with space["loader"] as loader:
        images, labels = next(iter(loader))
    assert images.shape == (16, 3, 32, 32)
    assert labels.shape == (16,)


def test_the_plan_is_json_with_costs_of_every_split(plan):
    values = json.loads(plan[0].read_text())
    measured = Costs.from_dict(values["costs"])
    places = {(split.recipe, split.split) for split in measured.splits}
    # Splits that serve the same image again are left out.
    assert places == {("paper", split) for split in range(4)} | {("crop_last", split) for split in range(5)}
    assert all(split.standard_s.median > 0 and split.hit_s.median > 0 for split in measured.splits)
    assert measured.disk is not None
    assert values["workload"]["step_s"] == pytest.approx(1e-5)


def test_another_machine_is_computed_from_costs_and_nothing_is_measured(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dalirefurb.tuning.measure.measure", None)
    described = tmp_path / "big.toml"
    described.write_text(
        '[machine]\ncores = 96\ngpus = 8\nmemory = "900GB"\ndisk = "3TB"\nsource_bandwidth = "2GB"\n'
        "[training]\nnum_samples = 1_000_000_000\nbatch_size = 1024\nepochs = 90\nstep_ms = 120\n"
    )
    assert main(["tune", "--costs", str(plan[0]), "--machine", str(described)]) == 0
    said = capsys.readouterr().out
    assert "shards=8" in said or "Standard(" in said
    assert "run: 90 epochs" in said


RUN = """
import runpy, sys
for script in sys.argv[1:]:
    with runpy.run_path(script)["loader"] as loader:
        batches = [len(images) for _ in range(3) for images, labels in loader]
        stats = loader.stats()
        print(script, len(loader), batches, stats.hits > 0, stats.recomputed, stats.declined)
"""


def test_the_code_for_several_ranks_runs_in_as_many_processes(folder, tmp_path, capsys):
    image, samples, ranks = 32 * 32 * 3, 48, 2
    sized = {"image_bytes": image, "largest_bytes": image}
    made = [split(place=3, **sized), split("crop_last", 3, **sized)]
    rooms = {
        "MemoryStore()": 'memory = "1GB"',
        f"DiskStore('{tmp_path}/cache-' + os.environ[\"RANK\"])": 'memory = 0\ndisk = "1GB"',
        f"TieredStore(memory={10 * image}, path='{tmp_path}/cache-' + os.environ[\"RANK\"])": (
            f'memory = {ranks * 10 * image}\ndisk = "1GB"'
        ),
        "Standard(source, batch_size=16, shards=2)": "memory = 0",
    }
    scripts = []
    for number, (needed, room) in enumerate(rooms.items()):
        (tmp_path / "costs.json").write_text(json.dumps(advise(costs(*made), machine(), workload()).as_dict()))
        described = tmp_path / "machine.toml"
        training = f"[training]\nnum_samples = {samples}\nbatch_size = 16\nepochs = 90\n"
        described.write_text(f"[machine]\ncores = 2\ngpus = {ranks}\n{room}\n{training}")
        command = ["tune", str(folder), "--costs", str(tmp_path / "costs.json"), "--machine", str(described)]
        assert main([*command, "--preset", "trivial_augment", "--size", "32", "--disk", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        code = said[said.index("from dalirefurb") :]
        assert needed in code
        scripts.append(tmp_path / f"code_{number}.py")
        scripts[-1].write_text(code)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, *map(str, scripts)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        told, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors
        reused = ["True"] * (len(rooms) - 1) + ["False"]
        rows = [8] * 9
        assert told.splitlines() == [
            f"{script} 3 {rows} {hits} 0 0" for script, hits in zip(scripts, reused, strict=True)
        ]
    assert sorted(file.name for file in tmp_path.glob("cache-*")) == ["cache-0", "cache-1"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[machine]\ncores = 4\n", "[training]"),
        ("[machine]\ncores = 'x'\n[training]\nnum_samples = 1000\n", "cores"),
        ("[machine]\ncores = 4\nmemry = '1GB'\n[training]\nnum_samples = 1000\n", "memry"),
        ("[machine]\ncores = 4\ngpus = 3\n[training]\nnum_samples = 1000\nbatch_size = 64\n", "multiple of gpus"),
        ("[machine]\ncores = 4\nmemory = '60%'\n[training]\nnum_samples = 1000\n", "60%"),
        ("cores = ", "TOML"),
    ],
)
def test_a_machine_that_is_described_wrongly_is_refused(plan, tmp_path, capsys, text, word):
    described = tmp_path / "machine.toml"
    described.write_text(text)
    status, line = error_of(capsys, "tune", "--costs", plan[0], "--machine", described)
    assert status == 2
    assert word in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "folder"),
        (["--machine", "x.toml"], "--costs"),
        (["--costs", "missing.json"], "missing.json"),
        (["FOLDER", "--memory", "lots"], "lots"),
        (["FOLDER", "--disk", "/no/such"], "--disk must be a folder where a cache may lie, but /no/such is not there"),
        (["FOLDER", "--disk", __file__], f"but {__file__} is no folder"),
        (["FOLDER", "--json", "/no/such.json"], "name another with --json"),
        (["FOLDER", "--json", "/tmp"], "the plan's path must be writable and have room, but writing /tmp fails"),
        (["FOLDER", "--picture", "/no/such.png"], "name another with --picture"),
        (["FOLDER", "--picture", "plan.jpg"], "name it plan.png with --picture"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_before_anything_is_measured(
    folder, capsys, monkeypatch, arguments, word
):
    monkeypatch.setattr("dalirefurb.tuning.tune.measure", None)
    status, line = error_of(capsys, "tune", *(folder if each == "FOLDER" else each for each in arguments))
    assert status == 2
    assert word in line


@pytest.mark.parametrize("holds", [True, False])
def test_verifying_decides_the_exit_status(folder, capsys, monkeypatch, holds):
    class Reached:
        def __str__(self):
            return "predicted, achieved"

    Reached.holds = holds
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: [Reached()])
    monkeypatch.setattr("dalirefurb.tuning.tune.measure", lambda *_, **__: replace(costs(), batch_size=16))
    arguments = ["tune", str(folder), "--size", "32", "--batch-size", "16", "--verify"]
    assert main(arguments) == (0 if holds else 1)
    assert "predicted, achieved" in capsys.readouterr().out


def test_verifying_runs_standard_and_what_is_recommended(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "_ROUNDS", 1)
    monkeypatch.setattr(verifying, "_TURN_S", 1e9)
    monkeypatch.setattr(verifying, "_LEAST_S", 0.0)
    source, recipes = ImageFolder(folder), {"paper": rand_augment(32)}
    choice = advise(costs(), machine(), workload(num_samples=48, batch_size=16)).choice
    done = verifying.verify(choice, source, recipes, step=1e-4, disk=tmp_path, seconds=0.2)
    taken = [choice.standard.configuration, choice.recommended.configuration]
    assert [each.name for each in done] == [choice.name_of(each) for each in taken]
    for each in done:
        assert len(each.achieved) == 1
        assert min(each.achieved) > 0
        assert each.holds == (abs(each.predicted / np.median(each.achieved) - 1) <= 0.1)
    assert not list(tmp_path.iterdir())


def test_arrays_a_step_that_is_a_function_and_no_store_to_read():
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), np.uint8)
    steps = []

    def step(batch, labels):
        steps.append(batch.shape)
        time.sleep(0.001)

    advice = tune(Arrays(images, np.arange(64)), rand_augment(8, raw=True), step=step, **QUICK)
    assert set(steps) == {(16, 3, 8, 8)}
    measured = advice.choice.costs
    assert measured.step.wall_s.median >= 0.001
    assert measured.splits[0].split == 0
    assert advice.verdict is not None
    assert str(advice).splitlines()[0].startswith(str(advice.verdict))
    assert advice.code().startswith("source = source\nrecipe = recipe")


def test_a_broken_image_is_left_out_and_told(tmp_path):
    write_folder(tmp_path, num_samples=32)
    paths = sorted(map(str, tmp_path.glob("*/*.jpg")))
    (tmp_path / "gone.jpg").write_bytes(b"")
    source = FileList([*paths, str(tmp_path / "missing.jpg"), str(tmp_path / "gone.jpg")], [0] * 34)
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, epochs=3, limit_s=1.0)
    assert any("cannot be read" in note for note in measured.notes)


def test_a_source_of_which_nothing_can_be_read_says_so(tmp_path):
    with pytest.raises(ReadError, match=r"missing\.jpg"):
        tune(FileList([str(tmp_path / "missing.jpg")] * 16, [0] * 16), rand_augment(16), **QUICK)


def test_what_cannot_be_measured_is_a_line(folder, tmp_path):
    (tmp_path / "file").write_text("")
    told = []
    measured = measure(
        ImageFolder(folder),
        {"recipe": rand_augment(16)},
        batch_size=16,
        epochs=3,
        disk=tmp_path / "file",
        placements=[("cpu", "cpu"), ("gpu", "gpu")],
        limit_s=2.0,
        told=told.append,
    )
    assert any("disk" in note and "not measured" in note for note in measured.notes)
    assert measured.disk is None
    if not torch.cuda.is_available():
        assert any(note.startswith("recipe on gpu/gpu: not measured") for note in measured.notes)
        assert {split.devices for split in measured.splits} == {("cpu", "cpu")}
    assert any(line.startswith("round 1 of 3: 1 of") for line in told)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"source": "photos"}, "source"),
        ({"recipe": {}}, "recipe"),
        ({"recipe": {"a": 3}}, "recipe"),
        ({"batch_size": 0}, "batch_size"),
        ({"step": -1.0}, "step"),
        ({"min_kept": 2}, "min_kept"),
        ({"memory": "much"}, "budget"),
        ({"disk": "/no/such"}, "disk must be a folder where a cache may lie, but /no/such is not there"),
        ({"disk": 3}, "disk"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(folder, changed, name):
    arguments = {"source": ImageFolder(folder), "recipe": rand_augment(16), **QUICK, **changed}
    with pytest.raises(ConfigurationError, match=name):
        tune(arguments.pop("source"), arguments.pop("recipe"), **arguments)


def test_samples_are_taken_evenly_by_their_size(folder):
    source = ImageFolder(folder)
    samples = read_some(source)
    sizes = [source.read(np.array([index]))[0].nbytes for index in samples.indices]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(source)
    some = rows_of(samples, source, rows=12)
    chosen = sorted(some.read(np.array([row]))[0].nbytes for row in range(12))
    assert chosen == sizes[::4]
    assert len(rows_of(samples, source, rows=100)) == 100


def test_both_commands_have_batches_of_one_size():
    sizes = {parser().parse_args([command, "photos"]).batch_size for command in ("train", "tune")}
    assert sizes == {inspect.signature(tune).parameters["batch_size"].default} == {64}


def test_the_public_name_is_the_function():
    assert dalirefurb.tune is tune
    assert isinstance(rand_augment(16), Recipe)
