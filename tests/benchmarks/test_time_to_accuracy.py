from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import plot
import pytest
import time_to_accuracy as script
import torch
from PIL import Image
from time_to_accuracy import Config, Point, Run

from dalirefurb import Arrays, Loader, Standard, rand_augment
from tests.benchmarks.running import quick
from tests.mosaics import write_mosaics

NAMES = ["standard", "decoded images kept", "reuse factor 2", "reuse factor 3", "echo after augmentation 3", "frozen"]
COURSE = Run("standard", 0, [Point(2.0, 10, 20.0), Point(4.0, 20, 40.0), Point(6.0, 30, 30.0)], 0.5)


@pytest.mark.parametrize(("accuracy", "seconds"), [(10, 0), (15, 1), (20, 2), (35, 3.5), (40, 4), (41, 6)])
def test_the_time_to_an_accuracy_is_between_two_points_or_the_whole(accuracy, seconds):
    """Ten classes are guessed right in a tenth at the start."""
    assert COURSE.seconds_to(accuracy) == pytest.approx(seconds)


def test_the_time_to_standards_accuracy_is_compared_with_the_time_that_takes_standard():
    """Which has 30 % at its end, and first after 3 of its 6 seconds: another one that has it then is no sooner."""
    other = replace(COURSE, contender="frozen", points=[Point(3.0, 10, 30.0), Point(6.0, 30, 30.0)])
    (claim,) = script._claims([COURSE, other], ["standard", "frozen"])
    assert claim.figure.median == pytest.approx(1)


def test_images_are_enlarged_in_their_order_and_with_their_labels(tmp_path):
    mosaics = write_mosaics(tmp_path / "mosaics", train=(3, 4), test=(1, 4))
    small = script.read_mosaics(mosaics, "train", 2)
    source = script.enlarged(mosaics, "train", 2, 64, tmp_path / "files")
    assert source.labels.tolist() == sorted(small.labels.tolist())
    for index in range(len(source)):
        image = np.asarray(Image.open(source.name(index)).resize((32, 32), Image.Resampling.BOX), int)
        own = np.asarray(small[int(source.name(index).split("/")[-1][:-4])][0], int)
        assert np.abs(image - own).mean() < 12


def test_weights_are_copied_at_equal_times(monkeypatch):
    """Of a training of 6 seconds by a clock that goes on by one at each look, three times."""
    now = iter(range(100))
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: float(next(now))))
    source = Arrays(np.zeros((16, 32, 32, 3), np.uint8), np.arange(16) % 10)
    config = Config(size=32, batch_size=4, seconds=6.0, points=3)
    before = torch.random.get_rng_state()
    with Loader(source, rand_augment(32, raw=True), Standard(16, batch_size=4)) as loader:
        copies = list(script.train(config, loader, 0))
    torch.random.set_rng_state(before)
    assert [(seconds, images) for seconds, images, _ in copies] == [(2, 8), (4, 16), (6, 24)]
    first, last = ({name: each.clone() for name, each in weights.items()} for _, _, weights in (copies[0], copies[-1]))
    assert any(not torch.equal(first[name], last[name]) for name in first)


@pytest.mark.weekly
def test_all_are_trained_for_as_long_and_compared_with_standard(tmp_path):
    mosaics = write_mosaics(tmp_path / "mosaics", train=(3, 4), test=(1, 4))
    written, printed = quick("time_to_accuracy", tmp_path / "q.json", "--data", mosaics)
    results = written["results"]
    assert [each["contender"] for each in results["runs"]] == NAMES
    for each in results["runs"]:
        assert len(each["points"]) <= 2
        assert each["points"][-1]["seconds"] >= written["config"]["seconds"]
        assert each["contender"] in printed
    assert [claim["name"].partition(":")[0] for claim in results["claims"]] == NAMES[1:]
    assert plot.drawing(written) is plot.figures.draw_time_to_accuracy
    assert plot.save(written, tmp_path / "q.png")
