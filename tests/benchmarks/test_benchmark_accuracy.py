import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import accuracy as script
import accuracy_training as training
import numpy as np
import plot
import pytest
import torch
from accuracy_cases import Case, Config, full_cases, reduced, reduced_cases
from accuracy_claims import MET, MISSED, NOT_SHOWN, Claim, claims, difference, wanted
from accuracy_training import Run, Task, train
from claims import Interval
from experiment import Record
from networks import NETWORKS
from PIL import Image

from tests.mosaics import write_mosaics

pytestmark = pytest.mark.usefixtures("traced_once")
CASES = ["standard", "reuse factor 3", "echo after augmentation 3", "frozen"]
STANDARD, REUSE, ECHO, FROZEN = reduced_cases()
NEVER = float("inf")
KINDS = {"runs": Run, "slices": script.Slice}


@pytest.fixture(scope="module")
def mosaics(tmp_path_factory):
    """A folder of mosaics: for each label 4 images to train on, and 2 to test with."""
    return write_mosaics(tmp_path_factory.mktemp("data") / "mosaics", train=(1, 4), test=(1, 2))


@pytest.fixture(scope="module")
def quick(mosaics, tmp_path_factory):
    """The JSON of a quick run, where it lies, and what was printed: weekly, as trainings are tested one by one."""
    out = tmp_path_factory.mktemp("results") / "accuracy.json"
    with redirect_stdout(StringIO()) as said:
        assert script.main(["--quick", "--workers", "1", "--data", str(mosaics), "--out", str(out)]) == 0
    return json.loads(out.read_text()), out, said.getvalue()


def tiny(*cases):
    """Configure three epochs of four steps."""
    return replace(
        reduced(),
        data="mosaics",
        train_per_class=4,
        test_per_class=2,
        batch_size=10,
        epochs=3,
        buffer_batches=2,
        cases=cases,
    )


def found(case, accuracies, group=None):
    """Make the runs of a case with seeds 0, 1, ..."""
    return [
        Run(group or case.group, case.name, seed, accuracy, [], 0, 0, "cpu") for seed, accuracy in enumerate(accuracies)
    ]


@pytest.mark.weekly
def test_every_case_is_trained_with_every_seed_and_compared_with_standard(quick):
    results, _, said = quick
    runs = results["results"]["runs"]
    assert sorted((each["case"], each["seed"]) for each in runs) == sorted((name, s) for name in CASES for s in (0, 1))
    accuracy = {(each["case"], each["seed"]): each["test_accuracy"] for each in runs}
    for each in results["results"]["accuracy"]:
        expected = np.mean([accuracy[each["case"], seed] - accuracy["standard", seed] for seed in (0, 1)])
        assert (each["difference"] or {"mean": 0})["mean"] == pytest.approx(expected)
        assert each["case"] in said


@pytest.mark.weekly
def test_all_cases_serve_equally_many_images_but_not_equally_many_fresh_ones(quick):
    results, _, _ = quick
    comparisons = {each["case"]: each for each in results["results"]["accuracy"]}
    assert [comparisons[name]["served"] for name in CASES] == [120] * 4
    # Four batches in each of three epochs: a third of 40 images is new in the second and third one.
    assert [comparisons[name]["fresh"] for name in CASES] == [120, 40 + 13 + 13, 40, 40]


@pytest.mark.weekly
def test_loading_is_timed_in_as_many_rounds_as_are_wanted(quick):
    results, _, _ = quick
    slices = results["results"]["slices"]
    assert sorted((each["contender"], each["round"]) for each in slices) == sorted(
        (f"rand_augment, {name}", 0) for name in CASES
    )


@pytest.mark.weekly
def test_a_second_call_has_nothing_to_do_and_leaves_no_checkpoints(quick, mosaics):
    results, out, _ = quick
    assert not out.with_suffix(".checkpoints").exists()
    _, config = script.EXPERIMENT.read(["--quick", "--data", str(mosaics)])
    record = Record(out, config, KINDS)
    assert wanted(config, record.rows["runs"]) == []
    record.write(**script.follows(config, record))
    again = json.loads(out.read_text())
    assert len(again["results"]["calls"]) == len(results["results"]["calls"]) + 1
    for measured in ("runs", "slices", "accuracy", "claims"):
        assert again["results"][measured] == results["results"][measured]


@pytest.mark.weekly
def test_results_of_another_configuration_are_not_gone_on_with(quick, capsys):
    _, out, _ = quick
    with pytest.raises(SystemExit):
        Record(out, tiny(STANDARD, REUSE), KINDS)
    assert re.search(
        r"must be a result of this configuration, but is another's: pass another --out", capsys.readouterr().err
    )


@pytest.mark.weekly
def test_a_plot_is_drawn_from_the_results_alone(quick, tmp_path):
    _, out, _ = quick
    run = json.loads(out.read_text())
    assert plot.drawing(run) is plot.figures.draw_accuracy
    assert plot.save(run, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as picture:
        assert min(picture.size) > 400


def test_a_run_that_is_cut_off_after_any_epoch_ends_as_one_that_is_not(mosaics, tmp_path, monkeypatch):
    config = tiny(STANDARD, REUSE)
    task = Task(config, REUSE, 7, mosaics, tmp_path / "run.pt", NEVER, threads=1)
    whole = train(task)
    assert not task.checkpoint.exists()
    assert train(replace(task, ends=0)) is None
    for _ in range(config.epochs - 1):
        with monkeypatch.context() as patched:
            # Time is over as soon as an epoch has been saved.
            saved = training.Training.save

            def save(self, path, saved=saved):
                saved(self, path)
                raise TimeoutError

            patched.setattr(training.Training, "save", save)
            with pytest.raises(TimeoutError):
                train(task)
    again = train(task)
    assert again.losses == whole.losses
    assert len(again.losses) == config.epochs
    assert again.test_accuracy == whole.test_accuracy


@pytest.mark.weekly
def test_cases_of_one_seed_begin_with_the_same_loss_until_a_reused_image_tells_them_apart(quick):
    results, _, _ = quick
    for seed in (0, 1):
        losses = {each["case"]: each["losses"] for each in results["results"]["runs"] if each["seed"] == seed}
        assert losses["frozen"][0] == losses["standard"][0]
        assert len({each[-1] for each in losses.values()}) == len(CASES)


def test_all_least_seeds_are_run_before_any_more():
    config = replace(tiny(STANDARD, REUSE), least_seeds=2)
    assert wanted(config, []) == [(STANDARD, 0), (REUSE, 0), (STANDARD, 1), (REUSE, 1)]
    assert wanted(config, [*found(STANDARD, [1, 2]), *found(REUSE, [1])]) == [(REUSE, 1)]


@pytest.mark.parametrize(
    ("ours", "todo"),
    [
        ([1.0, 2.0], []),
        ([1.0, 2.5], [(STANDARD, 2), (REUSE, 2)]),
    ],
)
def test_a_case_gets_one_seed_more_with_its_standard_until_its_difference_is_sure_enough(ours, todo):
    config = replace(tiny(STANDARD, REUSE), least_seeds=2)
    assert wanted(config, [*found(STANDARD, [1.0, 2.0]), *found(REUSE, ours)]) == todo


def test_no_case_gets_more_than_its_most_seeds():
    case = replace(REUSE, most_seeds=2)
    config = replace(tiny(STANDARD, case), least_seeds=2)
    assert wanted(config, [*found(STANDARD, [1.0, 2.0]), *found(case, [1.0, 9.0])]) == []


def test_a_difference_is_that_of_runs_with_the_same_seed():
    runs = [*found(STANDARD, [10.0, 20.0, 90.0]), *found(REUSE, [11.0, 21.0])]
    assert difference(runs, REUSE, STANDARD) == Interval(1.0, 0.0)
    assert difference(runs[:-1], REUSE, STANDARD) is None


@pytest.mark.parametrize(
    ("mean", "half_width", "verdict"),
    [(0.1, 0.1, MET), (0.1, 0.3, NOT_SHOWN), (-0.5, 0.1, MISSED), (-0.5, 0.3, NOT_SHOWN), (0.0, 9.0, NOT_SHOWN)],
)
def test_a_verdict_needs_the_whole_interval(mean, half_width, verdict):
    claim = Claim.within("", Interval(mean, half_width), lowest=-0.3, highest=0.3, promise="")
    assert claim.verdict == verdict


def test_parity_is_claimed_of_refurbishing_and_a_loss_of_the_others():
    config = replace(tiny(STANDARD, REUSE, ECHO, FROZEN))
    runs = [
        *found(STANDARD, [50.0, 51.0]),
        *found(REUSE, [50.1, 51.1]),
        *found(ECHO, [49.0, 50.0]),
        *found(FROZEN, [51.0, 52.0]),
    ]
    assert [(claim.promise, claim.verdict) for claim in claims(config, runs)] == [
        ("within 0.3 points", MET),
        ("less accurate", MET),
        ("less accurate", MISSED),
    ]


def test_standard_with_resnet18_must_reach_93_percent():
    standard = Case("resnet18", "rand_augment", 0.2)
    config = replace(tiny(standard, replace(standard, removed=1)))
    (claim,) = claims(config, found(standard, [92.0, 92.1]))
    assert (claim.promise, claim.verdict) == ("at least 93 %", MISSED)


def test_names_tell_the_cases_of_a_group_apart():
    for group in Config().groups:
        assert len({case.name for case in group}) == len(group)
    assert len(set(full_cases())) == len(full_cases())


def test_every_case_can_be_planned_and_described():
    config = Config()
    for case in config.cases:
        assert case.network in NETWORKS
        planner, recipe = config.planner(case, 0), case.recipe()
        assert planner.num_samples == 50_000
        assert config.steps % len(planner) == 0
        assert 0 < recipe.diversity(3) <= 1


def test_a_group_begins_with_its_standard():
    with pytest.raises(ValueError, match="a group must begin with its standard"):
        tiny(REUSE, STANDARD)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.weekly if "50" in each else []) for each in NETWORKS]
)
def test_a_network_turns_images_into_logits_and_has_the_weights_that_its_module_lists(name):
    network = NETWORKS[name](10)
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    listed = re.search(rf"{name} .* ([\d,]+)\n", sys.modules["networks"].__doc__).group(1)
    assert sum(each.numel() for each in network.parameters()) == int(listed.replace(",", ""))


def test_a_folder_without_mosaics_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        script.main(["--data", str(tmp_path)])
    assert ended.value.code == 2
    assert "--data must be a folder of mosaics of images" in capsys.readouterr().err


def test_the_reduced_comparison_is_an_experiment_of_its_own_with_its_own_results():
    assert (script.REDUCED.file_name, script.EXPERIMENT.file_name) == ("accuracy_reduced.json", "accuracy.json")
    assert script.REDUCED.config == reduced()
