"""Tune from end to end, on small images: that it works, not how fast anything is."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dalirefurb
from dalirefurb import Arrays, FileList, ImageFolder, Output, Recipe, rand_augment, simple, trivial_augment, tune
from dalirefurb.augment import Decode, HorizontalFlip, Mosaic, Resize
from dalirefurb.cli import main
from dalirefurb.cli.arguments import BATCH_SIZE, parser
from dalirefurb.cli.tune import OF_MEASUREMENT, TUNED
from dalirefurb.engine.partial_sizes import PartialSizes
from dalirefurb.engine.stats import Stats, Verdict
from dalirefurb.errors import ConfigurationError, DalirefurbError, ReadError, StoreError
from dalirefurb.planning.refurbish import Frozen
from dalirefurb.store import MemoryStore
from dalirefurb.tuning import choice as choosing
from dalirefurb.tuning import measure as measuring
from dalirefurb.tuning import tune as advising
from dalirefurb.tuning import turns as turning
from dalirefurb.tuning.choice import Verified
from dalirefurb.tuning.costs import Costs, Key, Spread, StepCosts
from dalirefurb.tuning.measure import _Measurement, measure
from dalirefurb.tuning.model import Configuration, Workload, predict
from dalirefurb.tuning.tune import advise, check_disk, this_machine, turns_of, verify
from dalirefurb.tuning.turns import Slice, Turns, read_some
from tests.one_line import error_of
from tests.pictures import write_folder
from tests.tuning.made import costs, machine, split, steady, workload

pytestmark = pytest.mark.usefixtures("traced_once")
QUICK = {"batch_size": 16, "limit_s": 1.0, "epochs": 10}
PLENTY = "3600"
"""Seconds that are not needed: turns are made short."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    write_folder(root, num_samples=48)
    return root


def make_small(patch):
    """Have what takes turns be small, and its turns as short as can be: as many turns, of the few batches they need."""
    patch.setattr(advising, "_MOST_ROWS", 48)
    patch.setattr(measuring, "_ENCODED_ROWS", 48)
    patch.setattr(measuring, "_ARRAY_ROWS", (64, 64))
    patch.setattr(turning, "_HAND_OVERS_S", 0.0)
    patch.setattr(turning, "_MOST_STEPS", 9)
    patch.setattr(turning, "_IDLE_S", 0.0)
    patch.setattr("dalirefurb.doctor.findings._LONGEST_S", 0.0)
    for module in (measuring, advising):
        patch.setattr(module, "_SLICE_S", (0.0, 0.0))


def make_short(patch):
    """Have all be measured in small, short turns, which are as good as long ones on a quiet machine."""
    make_small(patch)
    patch.setattr(choosing, "NOISY", float("inf"))


@pytest.fixture(scope="module")
def plan(folder, tmp_path_factory):
    """What the command wrote, and what it printed."""
    out = tmp_path_factory.mktemp("plan")
    arguments = ["tune", str(folder), "--preset", "trivial_augment", "--size", "32", "--batch-size", "16"]
    arguments += ["--step-ms", "0.01", "--limit", PLENTY]
    arguments += ["--disk", str(out), "--json", str(out / "plan.json"), "--picture", str(out / "plan.png")]
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr("dalirefurb.cli.tune.say", said.append)
        make_short(patch)
        patch.setattr(measuring, "disk_speeds", lambda _: (1e9, 2e9, 3e9))
        assert main(arguments) == 0
    assert sorted(path.name for path in out.iterdir()) == ["plan.json", "plan.png"]
    return out / "plan.json", "\n".join(said)


def test_the_command_prints_a_verdict_a_table_and_code(plan):
    _, said = plan
    assert re.match(r"(DETECTED|POTENTIAL|NOT DETECTED|INCONCLUSIVE): ", said)
    assert "standard loading (crop first)" in said
    assert said.count(": predicted ") in (2, 3)
    assert "* what to take" in said
    assert "from dalirefurb import" in said
    assert said.endswith(f"\nwritten: {plan[0]}\ndrawn: {plan[0].with_suffix('.png')}")


def test_the_code_it_prints_makes_a_loader(plan, tmp_path):
    code = plan[1][plan[1].index("from dalirefurb import") :].partition("\n\nwritten")[0]
    space = {}
    exec(re.sub("'/(local|dev/shm)", f"'{tmp_path}", code), space)
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
    assert (measured.disk.write_bytes_per_s, measured.disk.read_bytes_per_s) == (1e9, 2e9)
    assert any(split.put_s for split in measured.splits)
    assert values["workload"]["step_s"] == pytest.approx(1e-5)
    assert values["workload"]["step_cpu_s"] == 0


def test_another_machine_is_computed_from_costs_and_nothing_is_measured(plan, tmp_path, capsys, monkeypatch):
    make_short(monkeypatch)
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
    assert re.search(r"trivial_augment\(32[,)]", said), "the code is of what was measured"


def elsewhere(tmp_path, described, *options, made=None):
    """Compute for a machine that is described, and return what is written."""
    (tmp_path / "costs.json").write_text(json.dumps(advise(made or costs(), machine(), workload()).as_dict()))
    (tmp_path / "machine.toml").write_text(described)
    files = ["--costs", str(tmp_path / "costs.json"), "--machine", str(tmp_path / "machine.toml")]
    assert main(["tune", *files, *options, "--json", str(tmp_path / "out.json")]) == 0
    return json.loads((tmp_path / "out.json").read_text())


def test_a_machine_and_a_training_are_as_their_file_says_and_else_as_is_usual(tmp_path, capsys):
    sizes = {"memory": 1, "disk": 2, "device_memory": 3, "page_cache": 4}
    speeds = {"source_bandwidth": 5, "disk_read": 6, "disk_write": 7}
    told = "".join(f'{name} = "{number}GB"\n' for name, number in (sizes | speeds).items())
    training = "[training]\nnum_samples = 50000\nbatch_size = 512\nepochs = 12\nstep_ms = 8\n"
    written = elsewhere(
        tmp_path, f"[machine]\ncores = 24\ngpus = 4\ncore_speed = 1.5\n{told}{training}", "--min-kept", "0.8"
    )
    nbytes = ("memory_bytes", "disk_bytes", "device_bytes", "page_cache_bytes")
    per_s = ("source_bytes_per_s", "disk_read_bytes_per_s", "disk_write_bytes_per_s")
    numbers = {name: number * 10**9 for name, number in zip((*nbytes, *per_s), range(1, 8), strict=True)}
    assert written["machine"] == {"cores": 24, "ranks": 4, "core_speed": 1.5, **numbers}
    run = {"num_samples": 50_000, "batch_size": 512, "epochs": 12, "step_s": 0.008, "step_cpu_s": 0.0}
    assert (written["workload"], written["min_kept"]) == (run, 0.8)
    written = elsewhere(tmp_path, "[machine]\ncores = 24\n[training]\nnum_samples = 64\n")
    usual = {"ranks": 1, "core_speed": 1.0, **dict.fromkeys(nbytes, 0), **dict.fromkeys(per_s)}
    assert written["machine"] == {"cores": 24, **usual}
    run = {"num_samples": 64, "batch_size": 64, "epochs": 90, "step_s": 0.0, "step_cpu_s": 0.0}
    assert (written["workload"], written["min_kept"]) == (run, 0.95)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("recipe", "made"), [("paper", "rand_augment(224)"), ("crop_last", "rand_augment(224, order='crop_last')")]
)
def test_the_code_makes_the_order_that_is_recommended(recipe, made, tmp_path, capsys):
    described = '[machine]\ncores = 2\nmemory = "99GB"\n[training]\nnum_samples = 1000\n'
    of_both = costs(*(split(order, hit_ms=0.01 if order == recipe else 0.5) for order in ("paper", "crop_last")))
    elsewhere(tmp_path, described, made=of_both)
    assert f"recipe = {made}.at(4)" in capsys.readouterr().out


def test_what_is_given_on_the_command_line_is_tuned_with(folder, tmp_path, capsys, monkeypatch):
    given, made = {}, []

    def tuned(source, recipes, *, told, **arguments):
        assert len(source) == 48
        made.append(recipes)
        given.update(arguments)
        return advise(costs(), machine(), workload())

    monkeypatch.setattr("dalirefurb.tuning.tune.tune", tuned)
    numbers = ["--batch-size", "16", "--epochs", "7", "--step-ms", "2.5", "--min-kept", "0.5", "--limit", "77"]
    assert main(["tune", str(folder), *numbers, "--memory", "3GB", "--disk", str(tmp_path)]) == 0
    on = {"memory": "3GB", "disk": tmp_path}
    assert given == {"batch_size": 16, "epochs": 7, "step": 0.0025, "min_kept": 0.5, "limit_s": 77.0} | on
    assert main(["tune", str(folder)]) == 0
    usual = {name: each.default for name, each in inspect.signature(tune).parameters.items()}
    assert given == {name: usual[name] for name in given}
    assert main(["tune", str(folder), "--preset", "trivial_augment", "--size", "48"]) == 0
    presets = [rand_augment, rand_augment, partial(trivial_augment, 48)]
    sizes = [[224], [224], []]
    assert made == [
        {order: preset(*size, order=order) for order in ("paper", "crop_last")}
        for preset, size in zip(presets, sizes, strict=True)
    ]
    said = capsys.readouterr().out
    assert said.count("recipe = rand_augment(224") == 2
    assert said.count("recipe = trivial_augment(48") == 1
    assert (
        said.count("source = Kept(ImageFolder(" + repr(str(folder))) + said.count(f"ImageFolder({str(folder)!r})\n")
        == 3
    )


def test_costs_of_a_machine_that_cannot_be_are_one_line(plan, tmp_path, capsys):
    values = json.loads(plan[0].read_text())
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(values | {"machine": values["machine"] | {"cores": 0}}))
    status, line = error_of(capsys, "tune", "--costs", other)
    assert status == 2
    assert "cannot be read as one: cores must be an int of at least 1, got 0" in line


def written(path, **others):
    """Write costs as the command would."""
    path.write_text(json.dumps(advise(costs(), machine(), workload()).as_dict() | others))
    return path


@pytest.mark.parametrize(
    ("option", "given", "measured"), [("--size", "224", 32), ("--preset", "rand_augment", TUNED[1])]
)
def test_what_costs_were_measured_with_cannot_be_another(tmp_path, capsys, option, given, measured):
    path = written(tmp_path / "plan.json", **{option.removeprefix("--"): measured})
    assert main(["tune", "--costs", str(path), option, str(measured)]) == 0
    assert f"{measured}" in capsys.readouterr().out
    status, line = error_of(capsys, "tune", "--costs", path, option, given)
    assert status == 2
    assert f"{option} must be what the costs were measured with, {measured}, got {given}: leave it out" in line


def test_costs_that_were_edited_by_hand_are_refused_by_what_does_not_fit(tmp_path, capsys):
    path = written(tmp_path / "plan.json", costs=costs().as_dict() | {"read_s": "fast"})
    status, line = error_of(capsys, "tune", "--costs", path)
    assert status == 2
    assert "cannot be read as one: costs.read_s must be a number of at least 0, got 'fast': leave it as it was" in line


@pytest.mark.parametrize("content", ["[]", "{}", "{", "7", "\udcff", '{"costs": 1, "machine": 2, "workload": 3}'])
def test_another_file_than_costs_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "plan.json"
    path.write_text(content, errors="surrogateescape")
    status, line = error_of(capsys, "tune", "--costs", path)
    assert status == 2
    assert (
        f"error: --costs must be a file that dalirefurb tune --json wrote, but {path} cannot be read as one: " in line
    )
    assert line.endswith("; write it anew")


@pytest.mark.parametrize("size", [0, "32", 1.5])
def test_costs_of_a_size_that_no_image_has_are_one_line(tmp_path, capsys, size):
    status, line = error_of(capsys, "tune", "--costs", written(tmp_path / "plan.json", size=size))
    assert (status, "cannot be read as one: size must be an int of at least 1, got" in line) == (2, True)


def test_costs_of_another_preset_than_there_is_are_one_line(plan, tmp_path, capsys):
    other = tmp_path / "plan.json"
    other.write_text(json.dumps(json.loads(plan[0].read_text()) | {"preset": "none"}))
    status, line = error_of(capsys, "tune", "--costs", other)
    assert status == 2
    assert "must be a file that dalirefurb tune --json wrote" in line


RUN = """
import os, runpy, sys
import numba, torch  # Once for all ranks: most of what it takes to start one. Each imports DALI itself.

ranks = int(os.environ["WORLD_SIZE"])
children = {}
for rank in range(ranks):
    if not (child := os.fork()):
        break
    children[child] = rank
else:
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
os.environ["RANK"] = str(rank)
sys.stdout = open(f"{sys.argv[1]}.{rank}", "w")
for script in sys.argv[1:]:
    with runpy.run_path(script)["loader"] as loader:
        batches = [len(images) for _ in range(3) for images, labels in loader]
        stats = loader.stats()
        print(script, len(loader), batches, stats.hits > 0, stats.recomputed, stats.declined, flush=True)
"""


def codes_for_ranks(ranks, samples, folder, tmp_path, capsys):
    """Return what to paste for machines with room in memory, on disk, on both and nowhere; each rank has its share."""
    image = 32 * 32 * 3
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
    codes = []
    for needed, room in rooms.items():
        (tmp_path / "costs.json").write_text(json.dumps(advise(costs(*made), machine(), workload()).as_dict()))
        described = tmp_path / "machine.toml"
        training = f"[training]\nnum_samples = {samples}\nbatch_size = 16\nepochs = 90\n"
        described.write_text(f"[machine]\ncores = 2\ngpus = {ranks}\n{room}\n{training}")
        command = ["tune", str(folder), "--costs", str(tmp_path / "costs.json"), "--machine", str(described)]
        assert main([*command, "--preset", "trivial_augment", "--size", "32", "--disk", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        codes.append(said[said.index("from dalirefurb") :])
        assert needed in codes[-1]
        assert ("\nimport os\n" in codes[-1]) == ("os.environ" in codes[-1])
        assert "recipe = trivial_augment(32" in codes[-1]  # These costs do not say what they were measured with.
    return codes


def test_the_code_for_several_ranks_parts_the_room_among_them(folder, tmp_path, capsys):
    assert len(codes_for_ranks(2, 48, folder, tmp_path, capsys)) == 4


@pytest.mark.weekly
def test_the_code_for_several_ranks_runs_in_as_many_processes(folder, tmp_path, capsys):
    ranks, scripts = 2, []
    for number, code in enumerate(codes_for_ranks(ranks, 48, folder, tmp_path, capsys)):
        scripts.append(tmp_path / f"code_{number}.py")
        scripts[-1].write_text(code)
    sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, *map(str, scripts)]
    done = subprocess.run(command, env=os.environ | sizes, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        told = (tmp_path / f"{scripts[0].name}.{rank}").read_text()
        reused = ["True"] * (len(scripts) - 1) + ["False"]
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
        (
            "[machine]\ncores = 4\n[training]\nnum_samples = 1000\nbatch_size = 0\n",
            "error: batch_size of [training] must be an int of at least 1, got 0",
        ),
        ("[machine]\ncores = 4\n[training]\nnum_samples = 63\n", "num_samples must be an int of at least 64, got 63"),
        ("[machine]\ncores = 4\n[training]\nnum_samples = 1000\nepochs = 0\n", "error: epochs of [training] must be"),
        (
            "[machine]\ncores = 4\ncore_speed = inf\n[training]\nnum_samples = 1000\n",
            "error: core_speed must be a number",
        ),
        ("[machine]\ncores = 4\n[training]\nnum_samples = 1000\nstep_ms = inf\n", "error: step_ms of [training] must"),
        *(
            (f"[machine]\ncores = 4\n{name} = 0\n[training]\nnum_samples = 1000\n", f"error: {name} must be more than")
            for name in ("source_bandwidth", "disk_read", "disk_write")
        ),
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
        (["--costs", "plan.json", "--step-ms", "50"], "--step-ms changes nothing with --costs, got 50.0; leave one"),
        (["--costs", "plan.json", "--memory", "4GB"], "--memory changes nothing with --costs, got 4GB"),
        (["--costs", "plan.json", "--epochs", "9"], "or describe machine and training with --machine FILE"),
        (["--costs", "plan.json", "--verify"], "--verify changes nothing with --costs"),
        *(
            (["--costs", "plan.json", option, usual], f"{option} changes nothing with --costs, got {usual}")
            for option, usual in (("--batch-size", "64"), ("--epochs", "90"), ("--memory", "60%"), ("--limit", "120"))
        ),
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


def turns(choice, *_, off=(1.0, 1.0), **__):
    """Turns in which standard and what was chosen reached so many times what was predicted."""
    found = [choice.standard, *[choice.recommended] * (not choice.leave_off)]
    return [
        Verified(row, choice.name_of(row.configuration), row.images_per_s, (times * row.images_per_s,) * 3)
        for row, times in zip(found, off, strict=False)
    ]


@pytest.mark.parametrize(("off", "status"), [((1.0, 1.0), 0), ((1.09, 1.09), 0), ((1.12, 1.0), 1), ((1.0, 0.9), 1)])
def test_verifying_decides_the_exit_status(folder, capsys, monkeypatch, off, status):
    monkeypatch.setattr("dalirefurb.tuning.tune.verify", partial(turns, off=off))
    monkeypatch.setattr("dalirefurb.tuning.tune.measure", lambda *_, **__: replace(costs(), batch_size=16))
    arguments = ["tune", str(folder), "--size", "32", "--batch-size", "16"]
    assert main([*arguments, "--verify"]) == status
    assert main(arguments) == 0
    assert ": predicted 1,429 images/s, achieved " in capsys.readouterr().out


def test_standard_what_is_to_be_recommended_and_the_best_other_take_turns(folder, tmp_path, monkeypatch):
    make_short(monkeypatch)
    source, recipes = ImageFolder(folder), {"paper": rand_augment(32)}
    made = costs(split(place=3), split())
    choice = advise(made, machine(disk_bytes=1 << 40), workload(num_samples=48, batch_size=16))
    told = []
    done = verify(choice, source, recipes, step=1e-4, disk=tmp_path, told=told.append)
    taken = [choice.standard.configuration, choice.recommended.configuration, choosing.rival(choice)]
    assert [each.prediction.configuration for each in done] == taken
    assert len({each.split.split for each in taken[1:]}) == 2
    for each in done:
        assert len(each.achieved) == 3
        assert min(each.achieved) > 0
        assert each.holds == (abs(each.predicted / np.median(each.achieved) - 1) <= 0.1)
    rounds = [[line.split(": ")[1] for line in told if line.startswith(f"round {number} of 3")] for number in (1, 2, 3)]
    names = [each.name for each in done]
    assert rounds == [names, names[::-1], names]
    assert not list(tmp_path.iterdir())


def test_arrays_a_step_that_is_a_function_and_no_store_to_read(monkeypatch):
    make_short(monkeypatch)
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), np.uint8)
    steps = []

    def step(batch, labels):
        steps.append(batch.shape)
        time.sleep(0.001)

    recipe = simple(8, raw=True)
    advice = tune(Arrays(images, np.arange(64)), recipe, step=step, **QUICK | {"limit_s": float(PLENTY)})
    assert set(steps) == {(16, 3, 8, 8)}
    measured = advice.costs
    assert measured.step.wall_s.median >= 0.001
    assert measured.step.cpu_s > 0
    assert measured.read_s == 0
    assert measured.splits[0].split == 0
    assert str(advice).splitlines()[0].startswith(str(advice.verdict))
    assert advice.code().startswith("source = source\nrecipe = recipe")
    check_measured(advice)


def check_measured(advice):
    """Check that what is recommended, if anything, was measured: all splits, and it beside standard."""
    made = advice.costs
    if advice.recommended is None:
        assert advice.verdict is Verdict.INCONCLUSIVE
        assert re.search(r"; needs about \d+ s more.*: tune\(limit_s=\d+\), or --limit \d+$", advice.missing)
        with pytest.raises(DalirefurbError, match="nothing is: "):
            advice.code()
        assert "take " not in str(advice)
        return
    assert not advice.missing
    assert all(min(split.standard_s.n, split.hit_s.n) >= 3 for split in made.splits)
    rounds = [(each.prediction, len(each.achieved)) for each in advice.verified]
    assert (advice.recommended, 3) in rounds
    assert (advice.standard, 3) in rounds
    assert "* what to take" in str(advice)
    assert advice.code()


BUSY = "print('busy', flush=True)\nwhile True: pass"


BOTH_ORDERS = {order: rand_augment(32, order=order) for order in ("paper", "crop_last")}


# Without enough time and with it; enough for two orders takes half a minute of the busy processes.
@pytest.mark.parametrize(
    ("limit_s", "recipes"),
    [
        (1.0, BOTH_ORDERS),
        pytest.param(30.0, {"recipe": simple(32)}, marks=pytest.mark.weekly),
        *(pytest.param(limit_s, BOTH_ORDERS, marks=pytest.mark.weekly) for limit_s in (3.0, 30.0)),
    ],
)
def test_beside_two_busy_processes_it_recommends_only_what_it_has_measured(folder, monkeypatch, limit_s, recipes):
    make_small(monkeypatch)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in busy:
            process.stdout.readline()
        check_measured(tune(ImageFolder(folder), recipes, step=0.01, **QUICK | {"limit_s": limit_s}))
    finally:
        for process in busy:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("others", [0.1, pytest.param(1.3, marks=pytest.mark.weekly)])
def test_without_enough_time_the_command_recommends_nothing_and_says_what_it_needs(
    folder, tmp_path, capsys, monkeypatch, others
):
    monkeypatch.setattr(measuring, "watch_others", lambda: lambda: others)
    plan, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    arguments = ["tune", str(folder), "--size", "32", "--batch-size", "16", "--limit", "1"]
    assert main([*arguments, "--json", str(plan), "--picture", str(picture)]) == 1
    said = capsys.readouterr().out
    found = re.match(
        r"INCONCLUSIVE: measured (\d+) of 11 splits in all 3 rounds; needs about (\d+) s more(.*?): "
        r"tune\(limit_s=(\d+)\), or",
        said,
    )
    assert int(found[1]) < 11
    # Beside others as much again may do, without them.
    quiet = ", while nothing else works on this machine" if others > 1 else ""
    assert (found[3], int(found[4]) == 10 or not quiet) == (quiet, True)
    assert "nothing is recommended" in said
    assert "import" not in said
    values = json.loads(plan.read_text())
    assert values["recommended"] is None
    assert f"INCONCLUSIVE: {values['missing']}\n" in said
    assert picture.stat().st_size > 0
    assert main(["tune", "--costs", str(plan)]) == 1
    assert "import" not in capsys.readouterr().out


@pytest.mark.weekly  # What fails in its turns is tried below.
def test_a_loader_that_fails_in_a_round_is_no_candidate_and_is_told_once(folder, monkeypatch):
    make_short(monkeypatch)
    usual = Turns.slice

    def slice_of(self, *arguments):
        if type(self.planner) is Frozen and self.recipe.split == 2:
            raise StoreError("no room")
        return usual(self, *arguments)

    monkeypatch.setattr(Turns, "slice", slice_of)
    advice = tune(ImageFolder(folder), simple(32), **QUICK | {"limit_s": float(PLENTY)})
    assert advice.costs.notes.count("recipe, cached after the resized crop, hits: not measured: no room") == 1
    assert 2 not in {split.split for split in advice.costs.splits}
    check_measured(advice)


def test_where_its_turns_fail_nothing_is_recommended(folder, monkeypatch):
    def fail(*_, **__):
        raise StoreError("no room")

    monkeypatch.setattr("dalirefurb.tuning.tune.verify", fail)
    monkeypatch.setattr("dalirefurb.tuning.tune.measure", lambda *_, **__: replace(costs(), batch_size=16))
    advice = tune(ImageFolder(folder), {"paper": rand_augment(32)}, **QUICK)
    assert "had 0 of 3 turns" in advice.missing
    assert "note: turns of what is to be recommended: not measured: no room" in str(advice)
    check_measured(advice)


def test_a_broken_image_is_left_out_and_told(tmp_path, monkeypatch):
    make_small(monkeypatch)
    write_folder(tmp_path, num_samples=32)
    paths = sorted(map(str, tmp_path.glob("*/*.jpg")))
    (tmp_path / "gone.jpg").write_bytes(b"")
    (tmp_path / "words.jpg").write_bytes(b"no image")  # Only who decodes it finds that out.
    names = [str(tmp_path / f"{name}.jpg") for name in ("missing", "gone", "words")]
    source = FileList([*paths, *names], [0] * 35)
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, limit_s=1.0)
    assert any("cannot be read" in note for note in measured.notes)


def test_what_other_processes_took_of_the_cores_is_told(tmp_path, monkeypatch):
    make_small(monkeypatch)
    monkeypatch.setattr(measuring, "watch_others", lambda: lambda: 1.3)
    source = ImageFolder(write_folder(tmp_path, num_samples=32))
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, limit_s=1.0)
    assert "other processes took 1.3 cores while it measured: figures are those of what was left" in measured.notes
    monkeypatch.setattr(measuring, "watch_others", lambda: lambda: 0.1)
    usual, stats = Turns.slice, Stats(planning_s=1.0, preparing_s=2.0, storing_s=4.0, samples=100)
    monkeypatch.setattr(Turns, "slice", lambda *given: replace(usual(*given), stats=stats))
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, limit_s=1.0)
    assert not any("other processes" in note for note in measured.notes)
    assert measured.serial_s == pytest.approx(3 / 100)


def test_a_source_of_which_nothing_can_be_read_says_so(tmp_path):
    with pytest.raises(ReadError, match=r"missing\.jpg"):
        tune(FileList([str(tmp_path / "missing.jpg")] * 16, [0] * 16), rand_augment(16), **QUICK)


def test_what_cannot_be_measured_is_a_line(folder, tmp_path, monkeypatch):
    make_small(monkeypatch)
    (tmp_path / "file").write_text("")
    told = []
    measured = measure(
        ImageFolder(folder),
        {"recipe": rand_augment(16)},
        batch_size=16,
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
        ({"recipe": 3}, "recipe must be a Recipe, or several by name, got 3"),
        ({"recipe": {"a": 3}}, "recipe"),
        ({"batch_size": 0}, "batch_size"),
        ({"step": -1.0}, "step"),
        ({"step": float("inf")}, "step must be a number above 0, or a function, got inf"),
        ({"limit_s": float("inf")}, "limit_s must be a number above 0, got inf"),
        ({"limit_s": 10**400}, "limit_s must be a number above 0, got 1000"),
        ({"min_kept": 2}, "min_kept"),
        ({"told": "lines"}, "told must be a function of a line, got 'lines'"),
        ({"memory": "much"}, "budget"),
        ({"disk": "/no/such"}, "disk must be a folder where a cache may lie, but /no/such is not there"),
        ({"disk": 3}, "disk"),
        ({"placements": []}, "placements"),
        ({"placements": ("cpu", "cpu")}, "placements"),
        ({"placements": [("gpu", "cpu")]}, "placements"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(folder, changed, name):
    arguments = {"source": ImageFolder(folder), "recipe": rand_augment(16), **QUICK, **changed}
    with pytest.raises(ConfigurationError, match=name):
        tune(arguments.pop("source"), arguments.pop("recipe"), **arguments)


def test_a_folder_that_cannot_be_written_is_no_place_for_a_cache(tmp_path, monkeypatch):
    assert check_disk(str(tmp_path)) == tmp_path
    monkeypatch.setattr(advising.os, "access", lambda *_: False)
    with pytest.raises(ConfigurationError, match=f"but {tmp_path} cannot be written: make it, pass another one"):
        check_disk(tmp_path)


@pytest.mark.parametrize("fails", ["first", "second", "third", "both of them"])
def test_a_recipe_that_cannot_be_served_takes_no_other_out(fails, monkeypatch):
    monkeypatch.setattr(measuring, "Turns", lambda *_, **__: None)
    keys = {name: Key(name, ("cpu", "cpu"), 0, 1, False) for name in ("first", "second", "third", "fourth")}
    bad = {keys["first"], keys["second"]} if fails == "both of them" else {keys[fails]}
    measured = SimpleNamespace(standards=[*keys.values()], recipes=dict.fromkeys(keys), loaders={}, slices={})
    measured._rows, measured.batch_size = lambda: range(64), 8
    measured._slice = lambda key, *_: None if key in bad else key
    _Measurement._add_standards(measured)
    assert measured.standards == [key for key in keys.values() if key not in bad]


def test_budgets_are_shares_of_what_there_is_and_the_run_is_what_was_measured(folder, tmp_path, monkeypatch):
    given, verified = {}, {}

    def measured(*_, **arguments):
        given.update(arguments)
        return replace(costs(), batch_size=16, step=StepCosts(steady(0.001), 0.0005))

    monkeypatch.setattr(advising, "measure", measured)
    monkeypatch.setattr(advising, "verify", lambda *_, **arguments: verified.update(arguments) or [])
    monkeypatch.setattr(advising, "available_bytes", lambda: 10**10)
    monkeypatch.setattr(advising, "bytes_on_disk", lambda _: 10**11)
    monkeypatch.setattr(advising, "free_bytes", lambda: 10**12)
    monkeypatch.setattr(advising.torch.cuda, "is_available", lambda: True)
    source, step, said = ImageFolder(folder), (lambda images, labels: None), list[str]().append
    limits = {"epochs": 7, "min_kept": 0.8, "limit_s": 60}
    advice = tune(source, rand_augment(32), batch_size=16, step=step, disk=tmp_path, told=said, **limits)
    for passed_on in (given, verified):
        assert (passed_on["step"], passed_on["disk"], passed_on["told"]) == (step, tmp_path, said)
    on = advice.machine
    assert (on.memory_bytes, on.disk_bytes, on.device_bytes) == (6 * 10**9, 8 * 10**10, 4 * 10**11)
    assert on.page_cache_bytes == 4 * 10**9
    assert (advice.workload, advice.min_kept) == (Workload(48, 16, 7, 0.001, 0.0005), 0.8)
    assert given["placements"] == (("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu"))
    assert (given["limit_s"], verified["seconds"], verified["disk"]) == (60, 15, tmp_path)
    monkeypatch.setattr(advising.torch.cuda, "is_available", lambda: False)
    advice = tune(source, rand_augment(32), batch_size=16, memory="1GB", device_memory="2GB")
    assert (advice.machine.memory_bytes, advice.machine.disk_bytes, advice.machine.device_bytes) == (
        10**9,
        0,
        2 * 10**9,
    )
    assert (given["placements"], advice.min_kept, advice.workload.epochs) == ((("cpu", "cpu"),), 0.95, 90)


@pytest.mark.parametrize(
    ("seconds", "fit", "rows"),
    [(30.0, 10**6, 33 * 256), (30.0, 3, 3 * 256), (1.0, 10**6, 8 * 256), (1000.0, 10**6, 128 * 256)],
)
def test_turns_are_of_as_many_rows_as_there_is_time_and_room_for_and_of_that_share_of_the_memory(
    seconds, fit, rows, monkeypatch
):
    given, slices = [], []

    def turns_of(configuration, source, *arguments):
        given.append((configuration, len(source), arguments[3]))
        return SimpleNamespace(slice=lambda each_s, step: slices.append(each_s) or SimpleNamespace(image_s=0.001))

    monkeypatch.setattr(advising, "turns_of", turns_of)
    monkeypatch.setattr(advising, "read_some", lambda _: SimpleNamespace(rows=range))
    monkeypatch.setattr(advising, "batches_that_fit", lambda nbytes, size: fit)
    on = machine(memory_bytes=2_000_000_000, disk_bytes=1 << 50, page_cache_bytes=0)
    choice = advise(costs(split()), on, workload())
    done = verify(choice, None, {}, seconds=seconds)
    small = replace(on, memory_bytes=int(rows / 100_000 * 2_000_000_000))
    assert {each[1:] for each in given} == {(rows, small.memory_bytes)}
    assert choice.recommended.configuration.tier == "tiered"
    for each, (configuration, *_) in zip(done, given, strict=True):
        assert each.prediction == predict(choice.costs, on, workload(), configuration)
        expected = predict(choice.costs, small, workload(num_samples=rows), configuration)
        assert each.predicted == expected.images_per_s
    assert {0.5 <= each <= 4.0 for each in slices} == {True}


@pytest.mark.parametrize("sizes", [(1000, 9000), (9000, 1000)])
def test_turns_have_room_for_the_largest_images_of_all_that_take_them(sizes, monkeypatch):
    asked, turns = [], SimpleNamespace(slice=lambda *_: SimpleNamespace(image_s=0.001))
    monkeypatch.setattr(advising, "turns_of", lambda *_: turns)
    monkeypatch.setattr(advising, "read_some", lambda _: SimpleNamespace(rows=range))
    monkeypatch.setattr(advising, "batches_that_fit", lambda *given: asked.append(given) or 1)
    first, second = sizes  # What is faster is recommended, and the other one its rival.
    splits = split(place=3, image_bytes=first, hit_ms=0.3), split(place=4, image_bytes=second, hit_ms=0.05)
    assert len(verify(advise(costs(*splits), machine(), workload()), None, {}, seconds=1.0)) == 3
    assert asked == [(9000, 256)]


def test_what_takes_turns_is_cached_where_and_as_far_as_it_is_to_be(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Turns, "fill", lambda self: None)
    monkeypatch.setattr(advising, "DeviceStore", type("DeviceStore", (MemoryStore,), {}))
    source, recipes = ImageFolder(folder), {"paper": rand_augment(32)}
    found = []
    for tier in ("none", "memory", "disk", "tiered", "device"):
        reuse_factor, coverage = (1, 1.0) if tier == "none" else (3, 0.4)
        devices = ("gpu", "gpu") if tier == "device" else ("cpu", "gpu")
        made = Configuration(split(place=3, devices=devices), reuse_factor, coverage, tier)
        with ExitStack() as stack:
            turns = turns_of(made, source, recipes, 16, tmp_path, 12_345, stack)
        planner = turns.planner
        found.append((type(turns.store).__name__, type(planner).__name__, turns.recipe.split))
        assert (planner.batch_size, len(planner), turns.devices) == (16, 3, devices)
        assert tier == "none" or (planner.reuse_factor, planner.coverage) == (3, 0.4)
    stores = ["MemoryStore", "DiskStore", "TieredStore", "DeviceStore"]
    assert found == [("NoneType", "Standard", 4), *((store, "Refurbish", 3) for store in stores)]


def test_of_images_made_of_several_the_only_split_is_measured_and_else_all_that_tell_something():
    mosaic = Recipe([Decode(), Resize((32, 32)), Mosaic(32), HorizontalFlip()], Output(32), 2)
    for recipe, splits in ((mosaic, [2]), (rand_augment(32), [1, 2, 3, 4])):
        measured = _Measurement(None, {"paper": recipe}, [STANDARD], 16, None, 90.0, print, 0.0)
        added = []
        measured._add_split = lambda hits, at, to=added: to.append((hits.split, at.split))
        measured._partial_sizes = lambda recipe: recipe.split
        measured._add_splits()
        assert added == [(split, split) for split in splits]
        assert [*measured.sizes.values()] == [0] * (recipe is not mosaic)
        assert measured.notes == []


def test_what_takes_turns_is_named_by_what_it_serves():
    measured = _Measurement(None, {"paper": rand_augment(32)}, [STANDARD], 16, None, 90.0, print, 0.0)
    keys = STANDARD, HITS._replace(split=0), HITS, REUSED._replace(on_disk=True)
    assert [measured._name_of(key) for key in keys] == [
        "standard loading (crop first)",
        "crop first, cached before the decode, hits",
        "crop first, cached after the flip, hits",
        "crop first, cached after the flip, reuse factor 2 on the disk",
    ]


def test_what_is_measured_works_on_its_own_devices(monkeypatch):
    given, devices = [], ("cpu", "gpu")
    monkeypatch.setattr(turning, "Loader", lambda *_, **options: given.append(options))
    Turns(None, None, None, devices=devices)._loader()
    assert (given[0]["partial_device"], given[0]["final_device"]) == devices
    monkeypatch.setattr(measuring, "Turns", lambda *_, **options: SimpleNamespace(**options, fill=list))
    measured = _Measurement(None, {"paper": rand_augment(32)}, [], 16, None, 90.0, print, 0.0)
    for key in (HITS._replace(devices=devices), REUSED._replace(devices=devices)):
        measured._add(key, range(48), MemoryStore())
        assert measured.loaders[key].devices == devices


def test_room_slices_and_steps_are_those_of_a_batch(monkeypatch):
    monkeypatch.setattr(turning, "available_bytes", lambda: 8_000_000_000)
    assert (turning.batches_that_fit(1e6, 10), turning.batches_that_fit(0, 10)) == (100, sys.maxsize)
    monkeypatch.setattr(turning, "available_bytes", lambda: None)
    assert turning.batches_that_fit(1 << 20, 8) == 128
    # Three rounds; a turn takes 0.8 s beside its slices.
    found = [turning.slice_s(left_s, [4.0, 1.0], (0.3, 1.0)) for left_s in (0.0, 9.6, 100.0)]
    assert found == [0.3, pytest.approx(0.32), 1.0]
    wall, cpu = count(0), count(0)
    monkeypatch.setattr(turning.time, "perf_counter", lambda: next(wall) / 2)
    monkeypatch.setattr(turning.time, "process_time", lambda: 3 * next(cpu))
    monkeypatch.setattr(turning.torch.cuda, "is_available", lambda: False)
    assert turning.step_s(lambda *_: None, (None, None)) == (0.5, 1.0)
    monkeypatch.setattr(turning.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(turning.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    assert turning.copied_s(torch.zeros(4, 3)) == 0.5 / 4


def test_a_slice_is_timed_from_batch_to_batch_and_by_images(folder, monkeypatch):
    """The clock goes on by a second at each look, the processor's by two; what was made ahead is not timed."""

    class Serving(SimpleNamespace):
        def __iter__(self):
            return iter([(None, range(4))] * 3)

        def stats(self):
            return Stats(batches=next(taken))

    wall, cpu, taken = count(0), count(0), count(5)
    monkeypatch.setattr(turning, "wait_until_idle", lambda _: None)
    monkeypatch.setattr(turning.time, "perf_counter", lambda: float(next(wall)))
    monkeypatch.setattr(turning.time, "process_time", lambda: 2.0 * next(cpu))
    monkeypatch.setattr(
        Turns, "_loader", lambda *_: nullcontext(Serving(batches_ahead=2, state_dict=lambda: {"at": 1}))
    )
    turns = Turns(None, None, None)
    found = turns.slice(6.0)
    assert (found.image_s, found.cpu_s, found.batch_s) == (6 / 24, 2 / 24, (1.0,) * 6)
    assert found.stats.batches == 1
    assert turns._state == {"at": 1}


@pytest.mark.parametrize(
    ("encoded", "samples", "nbytes", "rows"),
    [
        (True, 99, 0.0, 10 * 112),
        (True, 10**6, 0.0, 10 * 112),
        (False, 99, 0.0, 74 * 112),
        (False, 20_000, 0.0, 179 * 112),
        (False, 10**6, 0.0, 293 * 112),
        (True, 99, 1.0, 5 * 112),
    ],
)
def test_an_epoch_to_measure_with_is_long_enough_and_has_room(encoded, samples, nbytes, rows, monkeypatch):
    monkeypatch.setattr(measuring, "batches_that_fit", lambda nbytes, size: 5 if nbytes else sys.maxsize)
    source = type("Sized", (SimpleNamespace,), {"__len__": lambda self: samples})(encoded=encoded)
    measured = SimpleNamespace(samples=SimpleNamespace(source=source, rows=lambda rows: rows), batch_size=112)
    assert _Measurement._rows(measured, nbytes) == rows


def test_of_samples_that_cannot_be_read_those_beside_them_are_taken(folder, tmp_path):
    source = ImageFolder(folder)
    paths = [source.name(index) for index in range(len(source))]
    paths[5:5] = [str(tmp_path / "gone.jpg")]
    samples = read_some(FileList(paths, [0] * len(paths)))
    assert samples.unreadable == 1
    assert sorted(samples.indices.tolist()) == [index for index in range(len(paths)) if index != 5]
    sizes = [os.stat(path).st_size for path in paths if "gone" not in path]  # noqa: PTH116
    assert samples.mean_bytes == pytest.approx(np.mean(sizes))


def test_a_sample_is_read_in_its_share_of_the_time_that_all_took(monkeypatch):
    clock = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(turning, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(turning, "_lengths", lambda _, job: ({int(job[0]): 9}, [ReadError("gone")] * (len(job) - 1)))
    assert read_some(Arrays(np.zeros((12, 4, 4, 3), np.uint8), np.zeros(12))).read_s == pytest.approx(2.0 / 12)


def test_memory_beside_the_budget_is_the_page_caches(monkeypatch):
    monkeypatch.setattr("dalirefurb.tuning.tune.available_bytes", lambda: 10_000)
    assert this_machine(6000, 0).page_cache_bytes == 4000
    assert this_machine(11_000, 0).page_cache_bytes == 0
    on = this_machine(6000, 5000, 3000)
    assert (on.memory_bytes, on.disk_bytes, on.device_bytes, on.page_cache_bytes) == (6000, 5000, 3000, 4000)


@pytest.mark.parametrize(
    ("reuse_factor", "read_s", "taken", "encoded"),
    [(1, 0.0095, 0.003 / 2, True), (1, 0.001, 0.01, True), (3, 0.0095, 0.01, True), (1, 0.0095, 0.01, False)],
)
def test_of_standard_the_time_in_which_cores_wait_for_the_source_is_not_counted(
    reuse_factor, read_s, taken, encoded, monkeypatch
):
    """It is that of both cores together: an image costs each half of what it takes."""
    monkeypatch.setattr("dalirefurb.tuning.measure.usable_cores", lambda: 2)
    key = Key("paper", ("cpu", "cpu"), 2, reuse_factor, False)
    samples = SimpleNamespace(source=SimpleNamespace(encoded=encoded), read_s=read_s)
    measured = SimpleNamespace(slices={key: [SimpleNamespace(image_s=0.01, cpu_s=0.003)] * 3}, samples=samples)
    assert _Measurement._image_s(measured, key).median == pytest.approx(taken)


STANDARD = Key("paper")
HITS = STANDARD._replace(split=3, reuse_factor=None)
REUSED, OTHER = HITS._replace(reuse_factor=2), HITS._replace(split=1)


@pytest.mark.parametrize(
    ("taken", "left_out", "others", "told"),
    [
        ((3, 3, 3), [], 0.0, ""),
        # Filling took 0.6 for two, 0.9 with another, and a turn 0.5 / 6: 1.1 x (0.1 + 0.9 + 12 x 0.5 / 6) x 120.
        ((3, 2, 1), [OTHER], 0.0, "measured 1 of 3 splits in all 3 rounds; needs about 150 s more: tune(limit_s=270)"),
        ((3, 3, 2), [], 0.0, "measured 1 of 2 splits in all 3 rounds; needs about 50 s more: tune(limit_s=170)"),
        ((3, 3, 2), [OTHER], 0.2, "measured 1 of 3 splits in all 3 rounds; needs about 120 s more: tune(limit_s=240)"),
        (
            (3, 3, 3),
            [OTHER],
            0.3,
            "measured 2 of 3 splits in all 3 rounds; needs about 120 s more, while nothing else ",
        ),
    ],
)
def test_what_there_was_no_time_for_is_said_and_the_time_that_it_needs(taken, left_out, others, told):
    keys = (STANDARD, HITS, REUSED)
    slices = {key: [None] * count for key, count in zip(keys, taken, strict=True)}
    measured = SimpleNamespace(loaders=dict.fromkeys(keys), slices=slices, left_out=left_out, standards=[STANDARD])
    measured.limit_s, measured._elapsed = 120, lambda: 1.2
    missing = _Measurement._missing(measured, 0.1, 0.7, others)
    assert missing.startswith(told)
    assert bool(missing) == bool(told)


def test_rounds_go_back_and_forth_and_each_turn_is_as_long_as_its_weight(monkeypatch):
    turns, said = [], []

    def slice_of(key, seconds, name):
        turns.append((key, seconds))
        return None if key == REUSED else "a slice"

    monkeypatch.setattr(measuring, "step_s", lambda *_: (0.5, 0.25))
    measured = SimpleNamespace(loaders=dict.fromkeys([STANDARD, HITS, REUSED]), told=said.append, first=STANDARD)
    measured.slices, measured.step_s, measured.limit_s = {key: [] for key in measured.loaders}, [], 100
    measured._elapsed, measured._name_of, measured._hand_over = (
        lambda: 0.5,
        lambda key: "it",
        lambda: said.append("handed"),
    )
    measured._slice = slice_of
    _Measurement._take_turns(measured, len, None)
    there = [(STANDARD, 4.0), (HITS, 1.0), (REUSED, 2.0)]
    assert turns == [*there, *there[::-1], *there]
    assert measured.step_s == [(0.5, 0.25)] * 3
    assert {key: len(slices) for key, slices in measured.slices.items()} == {STANDARD: 3, HITS: 3, REUSED: 0}
    rounds = [f"round {number} of 3: {place} of 3, it" for number in (1, 2, 3) for place in (1, 2, 3)]
    assert said == [*rounds[:3], "handed", *rounds[3:6], "handed", *rounds[6:], "handed"]
    measured._elapsed = lambda: 1.2  # Time is over.
    turns.clear()
    _Measurement._take_turns(measured, None, None)
    assert turns == []


def test_costs_are_made_of_all_rounds_and_say_what_they_are_of(monkeypatch):
    monkeypatch.setattr(measuring, "usable_cores", lambda: 3)
    monkeypatch.setattr(measuring, "watch_others", lambda: lambda: 0.3)
    monkeypatch.setattr(measuring, "copied_s", lambda images: float(images.sum()))
    monkeypatch.setattr(measuring, "disk_speeds", lambda disk: (len(disk), 7.0, 0.0))
    times = [(1.0, 0.5), (2.0, 0.5), (4.0, 0.0)]
    rounds = [
        Slice(image_s, 0.1, (image_s,) * 2, Stats(planning_s=1.0, preparing_s=prepared, storing_s=9, samples=samples))
        for samples, (image_s, prepared) in enumerate(times, 1)
    ]

    class Rounds(_Measurement):
        def _add_standards(self):
            self.loaders[STANDARD] = SimpleNamespace(batch=lambda: (torch.ones(2, 3), None))

        def _add_splits(self):
            self.sizes[HITS] = PartialSizes(None, 100.0, 5.0, 200)

        def _add_disk(self):
            self.hand_over_s[STANDARD] = [0.1, 0.3, 0.2]

        def _take_turns(self, step, batch):
            assert (step, batch[0].shape) == (0.25, (2, 3))
            self.slices |= {STANDARD: rounds, HITS: rounds[:1], REUSED: []}

        def _missing(self, ready, filled, others):
            return f"some, {others}"

    samples = SimpleNamespace(unreadable=2, read_s=0.0625, mean_bytes=77.0, source=SimpleNamespace(encoded=True))
    recipes, began = {"paper": rand_augment(32).at(3)}, time.perf_counter()
    made = Rounds(samples, recipes, [STANDARD], 16, "disk", 90.0, lambda line: None, began).run(0.25)
    assert [split.split for split in made.splits] == [3]
    assert (made.splits[0].standard_s, made.splits[0].hit_s) == (Spread(2, 1.5, 3, 3), Spread(1, 1, 1, 1))
    assert replace(made, splits=()) == Costs(
        cores=3,
        batch_size=16,
        splits=(),
        read_s=0.0625,
        encoded_bytes=77.0,
        serial_s=4 / 6,
        hand_over_s=0.2,
        reused_hand_over_s=0.2,
        copy_s=6.0,
        step=StepCosts(Spread(0.25, 0.25, 0.25, 3)),
        miss_spread=1.125,
        notes=(
            "2 of the samples looked at cannot be read; they are left out",
            "other processes took 0.3 cores while it measured: figures are those of what was left",
        ),
        limit_s=90.0,
        missing="some, 0.3",
    )


@pytest.mark.parametrize(("image_s", "times"), [(0.004, 2), (0.006, 1)])
def test_hand_overs_of_long_batches_are_measured_once(image_s, times):
    asked = []
    turns = SimpleNamespace(hand_over=lambda wait_s: asked.append(wait_s) or 1e-4)
    measured = SimpleNamespace(batch_size=10, first=STANDARD, usual=HITS, hand_over_s={}, notes=[])
    measured.loaders, measured._name_of = {STANDARD: turns, REUSED: turns}, lambda key: "it"
    measured.slices = {STANDARD: [SimpleNamespace(image_s=image_s)] * 3}
    for _ in range(2):
        _Measurement._hand_over(measured)
    assert measured.hand_over_s == {STANDARD: [1e-4] * times, REUSED: [1e-4] * times}
    assert asked == [pytest.approx(1.5 * 10 * image_s)] * 2 * times


def test_samples_are_taken_evenly_by_their_size(folder):
    source = ImageFolder(folder)
    samples = read_some(source)
    sizes = [source.read(np.array([index]))[0].nbytes for index in samples.indices]
    assert sizes == sorted(sizes)
    assert len(sizes) == len(source)
    some = samples.rows(12)
    chosen = sorted(some.read(np.array([row]))[0].nbytes for row in range(12))
    assert chosen == sizes[::4]
    assert len(samples.rows(100)) == 100


def test_both_commands_have_batches_of_one_size():
    # Of train so many, or as many as there are images; of tune so many, unless costs are there already.
    assert {parser().parse_args([command, "photos"]).batch_size for command in ("train", "tune")} == {None}
    sizes = {BATCH_SIZE, OF_MEASUREMENT["batch_size"]}
    assert sizes == {inspect.signature(tune).parameters["batch_size"].default} == {64}


def test_the_public_name_is_the_function():
    assert dalirefurb.tune is tune
    assert isinstance(rand_augment(16), Recipe)
