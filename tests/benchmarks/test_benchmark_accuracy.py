import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import product

import accuracy as script
import accuracy_training as training
import numpy as np
import plot
import pytest
import torch
from accuracy_cases import Case, Config, full_cases, reduced, reduced_cases
from accuracy_claims import MET, MISSED, NOT_SHOWN, Claim, claims, difference, wanted
from accuracy_statistics import Curve, Paired
from accuracy_training import Run, Task, train
from claims import Interval
from experiment import Record
from networks import NETWORKS
from PIL import Image
from scipy.stats import bootstrap

from tests.mosaics import write_mosaics

pytestmark = pytest.mark.usefixtures("traced_once")
STANDARD = Case("resnet8", "rand_augment", 0.2, least_seeds=2, most_seeds=3)
ECHO, FROZEN = replace(STANDARD, technique="echo after augmentation", factor=3), replace(STANDARD, technique="frozen")
REUSE = replace(STANDARD, technique="reuse factor", factor=3)
CONTROL = replace(REUSE, control=True)
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
        Run(group or case.group, case.name, seed, accuracy, -accuracy, [], [], [], 0, 0, "cpu")
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.mark.weekly
def test_every_case_is_trained_with_every_seed_and_compared_with_standard(quick):
    results, _, said = quick
    runs = results["results"]["runs"]
    names = [case.name for case in reduced_cases()]
    assert sorted((each["case"], each["seed"]) for each in runs) == sorted((name, s) for name in names for s in (0, 1))
    assert all(each["test_accuracy"] == pytest.approx(np.mean(each["accuracies"])) for each in runs)
    accuracy = {(each["case"], each["seed"]): each["test_accuracy"] for each in runs}
    for each in results["results"]["accuracy"]:
        assert each["case"] in said
        if each["difference"]:
            expected = np.mean([accuracy[each["case"], seed] - accuracy[each["baseline"], seed] for seed in (0, 1)])
            assert each["difference"]["mean"] == pytest.approx(expected)


@pytest.mark.weekly
def test_all_cases_serve_equally_many_images_but_not_equally_many_fresh_ones(quick):
    results, _, _ = quick
    comparisons = {each["case"]: each for each in results["results"]["accuracy"]}
    assert {each["served"] for each in comparisons.values()} == {120}
    # Four batches in each of three epochs: a third of 40 images is new in the second and third one.
    names = [case.name for case in (CONTROL, STANDARD, REUSE, ECHO, FROZEN)]
    assert [comparisons[name]["fresh"] for name in names] == [120, 120, 40 + 13 + 13, 40, 40]


@pytest.mark.weekly
def test_loading_is_timed_in_as_many_rounds_as_are_wanted(quick):
    results, _, _ = quick
    slices = results["results"]["slices"]
    assert sorted((each["contender"], each["round"]) for each in slices) == sorted(
        (f"rand_augment, {case.name}", 0) for case in reduced_cases()
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
    assert "draft" not in again
    assert len(again["results"]["calls"]) == len(results["results"]["calls"]) + 1
    for measured in ("runs", "slices", "accuracy", "claims", "curve"):
        assert again["results"][measured] == results["results"][measured]


@pytest.mark.weekly
def test_results_of_another_configuration_are_not_gone_on_with(quick, capsys):
    _, out, _ = quick
    with pytest.raises(SystemExit):
        Record(out, tiny(CONTROL, REUSE), KINDS)
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
    config = replace(tiny(CONTROL, REUSE), checkpoints=2)
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
    assert (again.accuracies, again.test_losses) == (whole.accuracies, whole.test_losses)
    assert len(again.accuracies) == config.checkpoints
    assert again.test_accuracy == whole.test_accuracy == np.mean(whole.accuracies)
    assert again.test_loss == whole.test_loss == np.mean(whole.test_losses)


def test_a_pair_is_the_same_run_until_a_version_would_have_been_reused(mosaics, tmp_path):
    config = tiny(CONTROL, REUSE)
    control, reuse = (
        train(Task(config, case, 7, mosaics, tmp_path / "run.pt", NEVER, threads=1)) for case in config.cases
    )
    assert control.losses[0] == reuse.losses[0]
    assert control.losses[1] != reuse.losses[1]


@pytest.mark.weekly
def test_cases_of_one_seed_begin_with_the_same_loss_until_a_reused_image_tells_them_apart(quick):
    results, _, _ = quick
    for seed in (0, 1):
        losses = {each["case"]: each["losses"] for each in results["results"]["runs"] if each["seed"] == seed}
        assert losses["frozen"][0] == losses["standard"][0]
        assert len({each[-1] for each in losses.values()}) == len(reduced_cases())


def test_cases_of_most_seeds_come_first_then_the_others_seed_by_seed():
    pair, control = (replace(each, least_seeds=3) for each in (REUSE, CONTROL))
    config = tiny(control, pair, STANDARD, FROZEN)
    pairs = [(case, seed) for seed in range(3) for case in (control, pair)]
    others = [(case, seed) for seed in range(2) for case in (STANDARD, FROZEN)]
    assert wanted(config, []) == [*pairs, *others]
    assert wanted(config, [*found(CONTROL, [1, 2, 3]), *found(REUSE, [1])]) == [(pair, 1), (pair, 2), *others]


def test_a_pair_more_waits_until_all_cases_have_their_least_seeds():
    config = tiny(CONTROL, REUSE, STANDARD, FROZEN)
    runs = [*found(CONTROL, [1.0, 2.0]), *found(REUSE, [1.0, 2.5]), *found(STANDARD, [1.0, 2.0]), *found(FROZEN, [1.0])]
    assert wanted(config, runs) == [(FROZEN, 1), (CONTROL, 2), (REUSE, 2)]


def test_results_are_a_draft_until_all_runs_and_the_timing_of_loading_are_there(tmp_path):
    config = replace(tiny(CONTROL, REUSE), rounds=1)
    record = Record(tmp_path / "accuracy.json", config, KINDS)
    for rows, timed, draft in (([1.0], [], True), ([1.0, 2.0], [], True), ([1.0, 2.0], [0], False)):
        record.rows = {
            "runs": [*found(CONTROL, rows), *found(REUSE, rows)],
            "slices": [script.Slice("rand_augment, frozen", "1 x 1", each, 1, 1.0, [1.0], [1.0]) for each in timed],
        }
        record.write(**script.follows(config, record))
        assert json.loads((tmp_path / "accuracy.json").read_text()).get("draft", False) is draft


@pytest.mark.parametrize(
    ("ours", "todo"),
    [
        ([1.0, 2.0], []),
        ([1.0, 2.5], [(CONTROL, 2), (REUSE, 2)]),
    ],
)
def test_a_case_gets_one_seed_more_with_its_control_until_its_difference_is_sure_enough(ours, todo):
    assert wanted(tiny(CONTROL, REUSE), [*found(CONTROL, [1.0, 2.0]), *found(REUSE, ours)]) == todo


def test_no_case_gets_more_than_its_most_seeds():
    case = replace(REUSE, most_seeds=2)
    assert wanted(tiny(CONTROL, case), [*found(CONTROL, [1.0, 2.0]), *found(case, [1.0, 9.0])]) == []


def test_a_difference_is_that_of_runs_with_the_same_seed():
    runs = [*found(CONTROL, [10.0, 20.0, 90.0]), *found(REUSE, [11.0, 21.0])]
    apart = difference(runs, REUSE, CONTROL)
    assert (apart.mean, apart.lower, apart.upper, apart.pairs) == (1.0, 1.0, 1.0, 2)
    assert apart.correlation == pytest.approx(1)
    assert difference(runs, REUSE, CONTROL, "test_loss").mean == -1.0
    assert difference(runs[:-1], REUSE, CONTROL) is None


def test_of_few_pairs_the_interval_is_students_and_of_many_a_bootstraps():
    """Those of 12 pairs are SciPy's own; a sign-flip test of three pairs that agree has p = 2 / 2**3."""
    differences = [0.1, -0.4, 0.3, 0.9, -0.2, 0.5, 0.0, 0.7, 2.5, -0.1, 0.2, 0.6]
    few = Paired.of(differences[3::2][:3], [0.0] * 3)
    interval = Interval.of(differences[3::2][:3])
    assert (few.lower, few.upper) == (interval.lower, interval.upper)
    assert few.p == 2 / 2**3
    many = Paired.of(differences, [0.0] * 12)
    expected = bootstrap((differences,), np.mean, n_resamples=9999, rng=np.random.default_rng(0)).confidence_interval
    assert (many.lower, many.upper) == (expected.low, expected.high)
    assert many.upper - many.mean > many.mean - many.lower
    assert many.p == np.mean([abs(np.dot(signs, differences)) >= 5 - 1e-9 for signs in product((-1, 1), repeat=12)])


def test_a_curve_finds_the_loss_at_each_halving_and_the_share_at_which_the_margin_is_lost():
    """Points on a line, each order at its own level; what is echoed lies beside it and changes nothing."""
    level = {"paper": 60.0, "crop_last": 58.0}
    points = [
        (f"{order} {kept}", order, kept, level[order] + 2 * np.log2(kept))
        for order in level
        for kept in (1.0, 0.9, 0.5, 0.25)
    ]
    curve = Curve.of([*points, ("echo", "paper", 0.5, 57.0)], ["echo"], margin=0.5)
    assert (curve.runs, curve.levels) == (8, pytest.approx(level))
    assert curve.halving == pytest.approx((2, 2, 2))
    assert curve.floor == pytest.approx((2**-0.25,) * 3)
    assert curve.beyond == pytest.approx({**{name: 0 for name, *_ in points}, "echo": -1})


def test_where_nothing_is_lost_no_share_is_too_small():
    points = [("reuse", "paper", kept, 60.0 - kept + noise) for kept in (1.0, 0.5, 0.3) for noise in (0, 1)]
    assert Curve.of(points, [], margin=0.5).floor[0] == 0


@pytest.mark.parametrize(
    ("mean", "half_width", "verdict"),
    [(0.1, 0.1, MET), (0.1, 0.3, NOT_SHOWN), (-0.5, 0.1, MISSED), (-0.5, 0.3, NOT_SHOWN), (0.0, 9.0, NOT_SHOWN)],
)
def test_a_verdict_needs_the_whole_interval(mean, half_width, verdict):
    claim = Claim.within("", Interval(mean, half_width), lowest=-0.3, highest=0.3, promise="")
    assert claim.verdict == verdict


def test_parity_is_claimed_of_refurbishing_and_a_loss_of_the_others():
    config = replace(tiny(CONTROL, REUSE, STANDARD, ECHO, FROZEN), margin=0.3)
    runs = [
        *found(CONTROL, [50.0, 51.0]),
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


@pytest.mark.parametrize("cases", [(STANDARD, REUSE), (CONTROL, FROZEN), (CONTROL, replace(REUSE, order="crop_last"))])
def test_a_case_without_a_baseline_is_refused(cases):
    with pytest.raises(ValueError, match="a case must have a baseline, but"):
        tiny(*cases)


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
