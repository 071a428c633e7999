"""Tune from end to end, on small images: that it works, not how fast anything is."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dalirefurb
from dalirefurb import Arrays, FileList, ImageFolder, Recipe, rand_augment, simple, tune
from dalirefurb.cli import main
from dalirefurb.cli.arguments import BATCH_SIZE, parser
from dalirefurb.cli.tune import OF_MEASUREMENT, TUNED
from dalirefurb.engine.stats import Verdict
from dalirefurb.errors import ConfigurationError, DalirefurbError, ReadError, StoreError
from dalirefurb.planning.refurbish import Frozen
from dalirefurb.tuning import choice as choosing
from dalirefurb.tuning import measure as measuring
from dalirefurb.tuning import tune as advising
from dalirefurb.tuning import turns as turning
from dalirefurb.tuning.choice import Verified
from dalirefurb.tuning.costs import Costs, Key
from dalirefurb.tuning.measure import _Measurement, measure
from dalirefurb.tuning.tune import advise, this_machine, verify
from dalirefurb.tuning.turns import Turns, read_some
from tests.one_line import error_of
from tests.pictures import write_folder
from tests.tuning.made import costs, machine, split, workload

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
    assert measured.disk is not None
    assert values["workload"]["step_s"] == pytest.approx(1e-5)


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
    source = FileList([*paths, str(tmp_path / "missing.jpg"), str(tmp_path / "gone.jpg")], [0] * 34)
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, limit_s=1.0)
    assert any("cannot be read" in note for note in measured.notes)


def test_what_other_processes_took_of_the_cores_is_told(tmp_path, monkeypatch):
    make_small(monkeypatch)
    monkeypatch.setattr(measuring, "watch_others", lambda: lambda: 1.3)
    source = ImageFolder(write_folder(tmp_path, num_samples=32))
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, limit_s=1.0)
    assert "other processes took 1.3 cores while it measured: figures are those of what was left" in measured.notes
    monkeypatch.setattr(measuring, "watch_others", lambda: lambda: 0.1)
    measured = measure(source, {"recipe": rand_augment(16)}, batch_size=16, limit_s=1.0)
    assert not any("other processes" in note for note in measured.notes)


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


def test_memory_beside_the_budget_is_the_page_caches(monkeypatch):
    monkeypatch.setattr("dalirefurb.tuning.tune.available_bytes", lambda: 10_000)
    assert this_machine(6000, 0).page_cache_bytes == 4000
    assert this_machine(11_000, 0).page_cache_bytes == 0


@pytest.mark.parametrize(
    ("reuse_factor", "read_s", "taken"), [(1, 0.0095, 0.003 / 2), (1, 0.001, 0.01), (3, 0.0095, 0.01)]
)
def test_of_standard_the_time_in_which_cores_wait_for_the_source_is_not_counted(
    reuse_factor, read_s, taken, monkeypatch
):
    """It is that of both cores together: an image costs each half of what it takes."""
    monkeypatch.setattr("dalirefurb.tuning.measure.usable_cores", lambda: 2)
    key = Key("paper", ("cpu", "cpu"), 2, reuse_factor, False)
    samples = SimpleNamespace(source=SimpleNamespace(encoded=True), read_s=read_s)
    measured = SimpleNamespace(slices={key: [SimpleNamespace(image_s=0.01, cpu_s=0.003)] * 3}, samples=samples)
    assert _Measurement._image_s(measured, key).median == pytest.approx(taken)


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
