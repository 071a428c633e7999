import json
import re
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import islice
from types import SimpleNamespace

import autoassist as script
import numpy as np
import pytest
import sources
import torch
from PIL import Image
from training import Evaluation, Known, Run

from dalirefurb import AutoAssist, Standard
from tests.benchmarks.running import quick as run_quick
from tests.mosaics import write_mosaics

pytestmark = pytest.mark.usefixtures("traced_once")
CONTENDERS = ["uniform", "AutoAssist", "knows how many", "knows which"]


@pytest.fixture(scope="module")
def mosaics(tmp_path_factory):
    """A folder of mosaics: for each label 3 x 4 images to train on, and 1 x 4 to test with."""
    return write_mosaics(tmp_path_factory.mktemp("data") / "mosaics", train=(3, 4), test=(1, 4))


@pytest.fixture(scope="module")
def quick(mosaics, tmp_path_factory):
    """The JSON of a quick run, and what was printed."""
    out = tmp_path_factory.mktemp("results") / "autoassist.json"
    here = SimpleNamespace(Pool=lambda _: nullcontext(SimpleNamespace(imap=map)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "get_context", lambda _: here)  # Processes that import torch cost more than they train.
        return run_quick("autoassist", out, "--seeds", 5, 6, "--data", mosaics)


@pytest.mark.weekly
def test_processes_train_as_one_does(quick, mosaics, tmp_path):
    results, _ = run_quick("autoassist", tmp_path / "autoassist.json", "--seeds", 5, 6, "--data", mosaics)
    assert results["results"] == quick[0]["results"]


def evaluation(samples, loss, test_accuracy=0.5):
    return Evaluation(samples, samples, loss, test_accuracy, hard=0.5, enrichment=1.0)


@pytest.mark.weekly
def test_every_contender_trains_with_every_seed_on_equally_many_samples(quick):
    results, said = quick
    runs = results["results"]["runs"]
    assert [(each["contender"], each["seed"]) for each in runs] == [
        (name, seed) for seed in (5, 6) for name in CONTENDERS
    ]
    for each in runs:
        assert [found["samples"] for found in each["evaluations"]] == [120, 240, 360]
        assert each["contender"] in said


@pytest.mark.weekly
def test_all_contenders_of_a_seed_are_one_until_something_is_rejected(quick):
    results, _ = quick
    for seed in (5, 6):
        runs = [each["evaluations"] for each in results["results"]["runs"] if each["seed"] == seed]
        assert len({each[0]["loss"] for each in runs}) == 1
        assert len({each[-1]["loss"] for each in runs}) == len(CONTENDERS)
    assert len({each["evaluations"][0]["loss"] for each in results["results"]["runs"]}) == 2


@pytest.mark.weekly
def test_only_uniform_sampling_rejects_nothing(quick):
    results, _ = quick
    for each in results["results"]["runs"]:
        last = each["evaluations"][-1]
        assert (last["candidates"] == last["samples"]) == (each["contender"] == "uniform")
        assert (last["accuracy"] is None) == (each["contender"] == "uniform")


@pytest.mark.weekly
def test_the_claims_follow_from_the_raw_curves(quick):
    results, said = quick
    runs = [
        Run(each["contender"], each["seed"], [Evaluation(**found) for found in each["evaluations"]])
        for each in results["results"]["runs"]
    ]
    claims = script.claims(runs, results["config"]["levels"][-1])
    assert json.loads(json.dumps([asdict(claim) for claim in claims])) == results["results"]["claims"]
    for claim in claims:
        assert claim.name in said


def test_the_logarithm_of_the_loss_is_interpolated_where_a_level_is_first_reached():
    taken = Run("", 0, [evaluation(100, 1.0), evaluation(200, 0.01, 0.7), evaluation(300, 0.2), evaluation(400, 0.01)])
    assert taken.samples_to(0.1) == pytest.approx(150)
    assert taken.test_accuracy_at(0.1) == 0.7
    assert taken.samples_to(1.0) == 100


def runs_of(uniform, assisted):
    """Make runs of seeds from losses after each 100 samples, the test accuracy being 0.6 and 0.5."""
    return [
        Run(name, seed, [evaluation(100 * (place + 1), loss, accuracy) for place, loss in enumerate(losses)])
        for name, all_losses, accuracy in (("uniform", uniform, 0.6), ("AutoAssist", assisted, 0.5))
        for seed, losses in enumerate(all_losses)
    ]


SLOW, FAST, AT_ONCE, NEVER = [1, 1, 0.1, 0.1], [1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1], [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("uniform", "assisted", "ratio", "holds"),
    [([SLOW] * 2, [FAST] * 2, 2 / 3, True), ([SLOW] * 2, [SLOW] * 2, 1, False), ([NEVER] * 2, [NEVER] * 2, 1, False)],
)
def test_the_claim_holds_if_at_least_30_percent_of_the_samples_are_spared(uniform, assisted, ratio, holds):
    claim, *accuracies = script.claims(runs_of(uniform, assisted), 0.1)
    assert claim.figure.mean == pytest.approx(ratio)
    assert claim.holds == holds
    as_good = [replace(each, holds=True) for each in accuracies]
    assert script.EXPERIMENT.holds({"claims": [claim, *as_good]}) == holds  # which the script's status says


def test_a_run_that_never_gets_there_counts_whole_and_the_claim_does_not_hold():
    runs = runs_of([NEVER] * 3, [AT_ONCE, AT_ONCE, NEVER])
    claim, *_ = script.claims(runs, 0.1)
    assert claim.figure.mean == pytest.approx((1 / 4 + 1 / 4 + 4 / 4) / 3)
    assert not claim.holds
    compared = script.compare(runs, "AutoAssist", 0.1)
    assert compared["missed"] == (1, 3)


def test_a_worse_test_accuracy_misses():
    runs = runs_of([SLOW, SLOW], [FAST, FAST])
    _, there, end = script.claims(runs, 0.1)
    assert (there.holds, end.holds) == (False, False)
    same = [replace(each, evaluations=runs[0].evaluations) for each in runs]
    assert [claim.holds for claim in script.claims(same, 0.1)] == [False, True, True]


def test_an_interval_of_five_seeds_is_students():
    interval = script.Interval.of([1, 2, 3, 4, 5])
    assert interval.mean == 3
    assert interval.half_width == pytest.approx(2.776 * np.sqrt(2.5 / 5), abs=1e-3)


def test_images_come_with_the_label_of_their_mosaic_and_in_its_order(mosaics):
    source = sources.read_mosaics(mosaics, "train", 5)
    assert source.labels.tolist() == [label for label in range(10) for _ in range(5)]
    mosaic = np.asarray(Image.open(mosaics / "train_3_name.webp").convert("RGB"))
    np.testing.assert_array_equal(np.stack(source.read(np.array([16, 19]))), [mosaic[:32, 32:64], mosaic[32:64, :32]])


def test_half_of_the_classes_can_be_rare_and_some_labels_wrong(mosaics):
    """Of 12 images of each class; what is left out and what is wrong is the same each time."""
    plain = script.Config(train_per_class=12).source(mosaics)
    rare = script.Config(train_per_class=12, rare=0.25).source(mosaics)
    assert np.bincount(plain.labels).tolist() == [12] * 10
    assert np.bincount(rare.labels).tolist() == [12] * 5 + [3] * 5
    noisy, again = (script.Config(train_per_class=12, wrong=0.2).source(mosaics) for _ in range(2))
    assert (noisy.labels != plain.labels).sum() == 24
    assert noisy.labels.tolist() == again.labels.tolist()
    for index in (0, 61, 119):
        np.testing.assert_array_equal(noisy.read(np.array([index])), plain.read(np.array([index])))
    both = script.Config(train_per_class=12, rare=0.25, wrong=0.2).source(mosaics)
    chosen = np.r_[0:60, [12 * label + place for label in range(5, 10) for place in range(3)]]
    np.testing.assert_array_equal(np.stack(both.read(np.arange(75))), np.stack(plain.read(chosen)))
    assert both.labels.tolist() == noisy.labels[chosen].tolist()


def test_a_whole_source_lies_in_the_order_of_its_indices(mosaics):
    source = sources.read_mosaics(mosaics, "train", 5)
    images, labels = sources.whole(source)
    pixels = np.stack(source.read(np.arange(50))) / 255
    expected = ((pixels - sources.MEAN) / sources.STD).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-5)
    assert labels.tolist() == source.labels.tolist()


def known(*, which):
    """Choose from 1,000 samples, of which the first 200 are hard and the threshold is 1."""
    planner = AutoAssist(Standard(1000, batch_size=100), lag=1)
    chooser = Known(torch.zeros(1000, 1), torch.arange(1000), planner, which=which)
    chooser.observe(np.ones(100, np.float32))
    chooser.evaluated(np.where(np.arange(1000) < 200, 2, 0.5).astype(np.float32))
    indices = np.concatenate([batch[2] for batch in islice(chooser.batches(), 100)])
    return chooser.report(), np.mean(indices < 200)


def test_who_knows_which_accepts_all_hard_samples_and_easy_ones_in_doubt():
    report, hard = known(which=True)
    assert report.accuracy == pytest.approx(0.8)
    assert report.accepted_fraction == pytest.approx(0.2 + 0.8 * 0.2, abs=0.02)
    assert hard == pytest.approx(0.2 / (0.2 + 0.8 * 0.2), abs=0.02)


def test_who_knows_how_many_accepts_all_samples_alike():
    report, hard = known(which=False)
    assert report.accuracy == pytest.approx(0.8)
    assert report.accepted_fraction == pytest.approx(0.2 + 0.8 * 0.2, abs=0.02)
    assert hard == pytest.approx(0.2, abs=0.02)


def test_the_threshold_is_the_moving_average_of_the_planner():
    planner = AutoAssist(Standard(10, batch_size=2), lag=1, loss_momentum=0.75)
    chooser = Known(torch.zeros(10, 1), torch.zeros(10), planner, which=True)
    for losses in ([3, 5], [8, 8]):
        chooser.observe(np.array(losses, np.float32))
    assert chooser.report().threshold == 0.75 * 4 + 0.25 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "--data must be a folder of mosaics of images, .*but nowhere holds none: pass another"),
        (["--seeds", "3", "3"], r"--seeds must be at least two, got \[3, 3\]: an interval needs a spread"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message, mosaics, capsys):
    with pytest.raises(SystemExit) as ended:
        script.EXPERIMENT.main(["--data", str(mosaics), *arguments])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)
