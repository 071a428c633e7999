from argparse import Namespace
from contextlib import ExitStack
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from dalirefurb.augment.presets import rand_augment, simple
from dalirefurb.cli import main
from dalirefurb.demo import commands
from dalirefurb.demo.compare import TimedRun, explanation, table
from dalirefurb.demo.training import EpochReport, SmallResNet, Trainer
from dalirefurb.engine.stats import Stats
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.source import Arrays, ImageFolder
from tests.pictures import write_folder

SIZE = 32


def red_and_blue(num_samples):
    """Noise that is a little redder or bluer: easy, but not at once."""
    random = np.random.default_rng(0)
    labels = np.arange(num_samples) % 2
    images = random.integers(0, 200, (num_samples, SIZE, SIZE, 3))
    images[labels == 0, :, :, 0] += 30
    images[labels == 1, :, :, 2] += 30
    return Arrays(images.astype(np.uint8), labels)


def trainer(*, num_samples=70, reuse_factor=2, epochs=4, seed=0, **arguments):
    planner = Refurbish(num_samples, batch_size=16, reuse_factor=reuse_factor, seed=seed)
    recipe = simple(SIZE, raw=True)
    return Trainer(red_and_blue(num_samples), recipe, planner, epochs=epochs, **arguments)


def report(*, batch_s=(1.0, 1.0), wait_s=0.0, rows=(10, 10), misses=0, accuracy=0.5):
    return EpochReport(
        epoch=0,
        rows=np.array(rows),
        batch_s=np.array(batch_s),
        stats=Stats(hits=sum(rows) - misses, misses=misses, consumer_wait_s=wait_s),
        loss=1.0,
        accuracy=accuracy,
    )


def test_training_learns():
    with trainer() as training:
        reports = [training.epoch() for _ in range(4)]
    assert reports[-1].loss < 0.6 * reports[0].loss
    assert reports[-1].accuracy > 0.9 > reports[0].accuracy


@pytest.mark.parametrize("reuse_factor", [1, 2])
def test_an_epoch_counts_its_hits_and_misses(reuse_factor):
    with trainer(reuse_factor=reuse_factor, epochs=3) as training:
        reports = [training.epoch() for _ in range(3)]
    expected = {1: [70, 70, 70], 2: [70, 35, 35]}[reuse_factor]
    assert [report.stats.misses for report in reports] == expected
    assert [report.stats.hits for report in reports] == [70 - misses for misses in expected]
    assert [report.epoch for report in reports] == [0, 1, 2]


def test_an_epoch_reports_every_batch_also_the_short_last_one():
    with trainer(epochs=1) as training:
        epoch = training.epoch()
    assert epoch.rows.tolist() == [16, 16, 16, 16, 6]
    assert epoch.batch_s.shape == (5,)
    assert 0 <= epoch.waiting < 1


def test_the_seed_decides_what_is_learned_and_global_random_state_does_not_change():
    def loss(seed):
        with trainer(epochs=1, seed=seed) as training:
            return training.epoch().loss

    before = torch.get_rng_state()
    first = loss(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert loss(1) == first != loss(2)


def test_an_assistant_is_told_every_samples_loss_and_chooses_by_it(monkeypatch):
    planner = AutoAssist(Standard(64, batch_size=4), lag=16, accuracy_momentum=0.5)
    told = []
    with Trainer(red_and_blue(64), simple(SIZE, raw=True), planner, epochs=6) as training:
        observe = training.loader.observe
        monkeypatch.setattr(training.loader, "observe", lambda losses: (told.append(losses.clone()), observe(losses)))
        reports = [training.epoch() for _ in range(6)]
        assistant = training.loader.assistant_report()
    assert assistant.accepted == 6 * 64 == sum(len(losses) for losses in told)
    assert assistant.candidates > 1.1 * assistant.accepted
    losses = torch.cat(told).reshape(6, 16, 4)
    assert losses.mean(dim=(1, 2)).tolist() == pytest.approx([report.loss for report in reports])
    assert (losses.std(dim=2) > 0).all()
    assert all(report.stats.misses == 64 and report.stats.hits == 0 for report in reports)


def test_the_loss_learned_from_is_the_mean_of_the_samples_losses():
    with trainer(epochs=1) as training:
        images, labels = torch.rand(5, 3, SIZE, SIZE), torch.tensor([0, 1, 0, 1, 1])
        training._gradients(2 * images[:3], labels[:3])  # Of which nothing is left.
        losses, correct = training._gradients(images, labels)
        gradients = [weight.grad.clone() for weight in training._model.parameters()]
        training._model.zero_grad()
        logits = training._model(images)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        assert losses.shape == (5,)
        assert correct.tolist() == [bool(logit.argmax() == label) for logit, label in zip(logits, labels, strict=True)]
        assert losses.mean().item() == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item())
        for mine, weight in zip(gradients, training._model.parameters(), strict=True):
            assert torch.allclose(mine, weight.grad, rtol=1e-4, atol=1e-6)


def test_images_held_out_change_nothing_that_is_learned():
    class Held(list):
        num_samples = 10

    with trainer(epochs=1) as training:
        training._validation = Held([(torch.rand(5, 3, SIZE, SIZE), torch.arange(5) % 2)] * 2)
        before = [value.clone() for value in training._model.state_dict().values()]
        first = training.validation_accuracy()
        assert first == training.validation_accuracy()
        assert training._model.training
        assert all(map(torch.equal, before, training._model.state_dict().values()))
        assert first in {number / 10 for number in range(11)}


def test_a_step_is_measured_on_a_whole_batch(monkeypatch):
    """The median of nine, which take 64, 49, ..., 0 s."""
    with trainer(epochs=1) as training:
        taken, now = [], [0.0]

        def step(images, labels):
            taken.append(images.shape)
            now[0] += (9 - len(taken)) ** 2
            return labels, 0

        monkeypatch.setattr(training, "_gradients", step)
        monkeypatch.setattr("dalirefurb.demo.training.time.perf_counter", lambda: now[0])
        assert training.step_alone_s() == 16
    assert taken == [(16, 3, SIZE, SIZE)] * 9


def test_any_seed_of_a_planner_will_do():
    with trainer(epochs=1, seed=10**30) as training:
        assert training.epoch().loss > 0


def test_measuring_a_step_changes_no_weight():
    with trainer(epochs=1) as training:
        before = [weight.clone() for weight in training._model.parameters()]
        assert training.step_alone_s() > 0
        assert all(map(torch.equal, before, training._model.parameters()))


def test_a_batch_is_timed_from_the_end_of_the_one_before(monkeypatch):
    """Of the third the step takes 5 s; each look at the clock a second."""
    with trainer(epochs=1) as training:
        now, steps = [0.0], []
        usual = training._gradients

        def gradients(*batch):
            steps.append(batch)
            now[0] += 5 * (len(steps) == 3)
            return usual(*batch)

        def clock():
            now[0] += 1
            return now[0]

        monkeypatch.setattr(training, "_gradients", gradients)
        monkeypatch.setattr("dalirefurb.demo.training.time", SimpleNamespace(perf_counter=clock))
        assert training.epoch().batch_s.tolist() == [1, 1, 6, 1, 1]


def test_the_learning_rate_rises_to_what_is_given_and_falls_to_nothing():
    with trainer(epochs=4, learning_rate=0.5) as training:
        rates, weights = [], training._optimizer
        weights.register_step_pre_hook(lambda *_: rates.append(weights.param_groups[0]["lr"]))
        for _ in range(4):
            training.epoch()
    highest = rates.index(max(rates))
    assert len(rates) == 20
    assert rates[highest] == pytest.approx(0.5, rel=0.01)
    assert 2 <= highest <= 4  # after 15 % of the steps
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[-1] < 0.01


def test_images_held_out_are_decoded_once_and_judged_without_augmentation(tmp_path):
    """By a network that takes an image for of the second class where its middle is bright."""

    class Bright(torch.nn.Module):
        def forward(self, images):
            level = images[:, :, 15:17, 15:17].mean(dim=(1, 2, 3))
            return torch.stack([-level, level], dim=1)

    folder = tmp_path / "images"
    for number, (label, level) in enumerate(((0, 20), (0, 30), (0, 220), (1, 240), (1, 250), (1, 230), (1, 210))):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), (level,) * 3).save(folder / str(label) / f"{number}.png")
    with trainer(epochs=1) as training:
        training.hold_out(ImageFolder(folder))
        training._model = Bright()
        assert training.validation_accuracy() == 6 / 7  # all but the third
        assert training.validation_accuracy() == 6 / 7
        judged = training._validation.stats()
    assert (judged.samples, judged.misses, judged.hits) == (14, 7, 7)


@pytest.mark.parametrize(("size", "pooled"), [(32, 1), (111, 1), (112, 2), (224, 4)])
def test_the_network_is_as_large_as_it_is_said_to_be(size, pooled):
    network, shapes = SmallResNet(1000, size=size), []
    assert network.layers[0].kernel_size == pooled
    blocks = [layer for layer in network.layers if type(layer).__name__ == "_ResidualBlock"]
    for block in blocks:
        block.register_forward_hook(lambda _, given, made: shapes.append(made.shape[1:]))
    network(torch.zeros(1, 3, size, size))
    side = size // pooled // 4
    half = (side + 1) // 2
    assert shapes == [(16, side, side), (32, half, half), (64, (half + 1) // 2, (half + 1) // 2)]
    weights = sum(each.numel() for each in SmallResNet(10, size=size).parameters())
    assert round(weights, -3) == 78_000
    # What a block adds is added to what it is given.
    first = blocks[0].eval()
    torch.nn.init.zeros_(first.body[-1].weight)
    features = torch.rand(1, 16, 5, 5)
    assert torch.equal(first(features), features)


@pytest.mark.parametrize("size", [32, 33, 55, 64, 112, 224, 256])
def test_the_network_takes_images_of_any_size_from_32_pixels(size):
    logits = SmallResNet(5, size=size)(torch.zeros(1, 3, size, size))
    assert logits.shape == (1, 5)


def test_throughput_and_percentiles_are_those_of_the_batches():
    epoch = report(rows=(10, 10, 5), batch_s=(3.0, 1.0, 1.0), wait_s=3.5)
    assert epoch.images_per_s == 5
    assert epoch.batch_ms(50) == 1000
    assert epoch.waiting == pytest.approx(0.7)


def test_batches_made_ahead_can_be_left_out():
    epoch = report(rows=(10, 10, 5), batch_s=(3.0, 1.0, 1.0), wait_s=3.5)
    assert epoch.after(1).images_per_s == 7.5
    assert epoch.after(3) is epoch


def many(seconds):
    """Times and rows of enough batches."""
    return {"batch_s": 50 * (seconds,), "rows": 50 * (10,)}


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_that_is_too_short_tells_no_speeds(epochs):
    """One epoch only misses, and a few batches are over before their times mean anything."""
    batches = many(1.0) if epochs == 1 else {}
    runs = [TimedRun(name, epochs * [report(**batches, misses=10)]) for name in ("standard", "refurbished")]
    said = table(runs) + explanation(runs, step_ms=70, loading={})
    assert table(runs).splitlines()[0].split() == ["misses", "per", "epoch", "accuracy"]
    told = "All of it works. So few batches do not tell how fast it is: for that pass more --images, more --epochs."
    assert explanation(runs, step_ms=70, loading={}).replace("\n", " ").startswith(f"{told} Accuracy is that of ")
    assert said.endswith("a few points mean little at this size.")
    for word in ("speed-up", "images/s", "ms"):
        assert word not in said
    learned = [report(misses=10, accuracy=share) for share in (0.25, 0.75)]
    assert table([TimedRun("standard", learned)]).splitlines()[1].split() == ["standard", "10", "75.0%"]


def test_a_table_leaves_the_first_epoch_out_and_divides_by_the_first_run():
    slow = TimedRun("standard", [report(**many(9.0), misses=20), report(**many(1.0), misses=20, accuracy=0.25)])
    fast = TimedRun("refurbished", [report(**many(9.0)), report(**many(0.5), misses=10, accuracy=0.75)])
    header, first, second = table([slow, fast]).splitlines()
    assert header.split() == ["images/s", "speed-up", "misses", "per", "epoch", "ms", "per", "batch", "accuracy"]
    assert first.split() == ["standard", "10", "1.00x", "20", "1000.0", "25.0%"]
    assert second.split() == ["refurbished", "20", "2.00x", "10", "500.0", "75.0%"]
    assert len(header) == len(first) == len(second)


def test_a_run_is_timed_by_medians_without_what_was_made_ahead():
    ahead, slow = (
        {"batch_s": (0.1, *50 * (1.0,)), "rows": 51 * (10,)},
        {"batch_s": (*40 * (1.0,), *11 * (9.0,)), "rows": 51 * (10,)},
    )
    reports = [report(**many(99.0)), report(**ahead, misses=3), report(**slow, misses=8), report(**slow, misses=4)]
    run = TimedRun("it", reports, made_ahead=1)
    assert run.images_per_s == pytest.approx(500 / (39 + 11 * 9))
    assert run.batch_ms == 1000
    assert run.misses == 4


def test_the_explanation_says_why_training_gains_less_than_loading():
    runs = [
        TimedRun(name, 2 * [report(**many(seconds))]) for name, seconds in (("standard", 1.0), ("refurbished", 0.5))
    ]
    loading = {"DataLoader": 10.0, "stock DALI": 15.0, "standard": 20.0, "reuse factor 3": 50.0}
    said = " ".join(explanation(runs, step_ms=70, loading=loading).split())
    assert "Training gains 2.00 times where loading alone gains 2.50: no cache shortens the network's own step" in said
    assert "7% of standard's time (70 of 1000 ms per batch)" in said
    assert "per batch). Accuracy is that of the last epoch's" in said


class Learning(ExitStack):
    """A trainer that is told what to do, and says what it did."""

    made: ClassVar[list] = []

    def __init__(self, source, recipe, planner, **arguments):
        super().__init__()
        self.made.append((source, recipe, planner, arguments))
        self.store = SimpleNamespace(nbytes=12_000_000)
        told = SimpleNamespace(candidates=120, accepted=90, saved=0.25, accuracy=0.8)
        self.loader = SimpleNamespace(
            diagnose=lambda: "it waited: pass reuse_factor=5", bad_samples=list, assistant_report=lambda: told
        )

    def hold_out(self, source, **arguments):
        self.made.append((source, arguments))

    def validation_accuracy(self):
        return 0.125

    def epoch(self):
        stats = Stats(hits=700, misses=300, consumer_wait_s=3.0)
        rows, batch_s = np.full(20, 50), np.array([*19 * [0.25], 7.25])
        return EpochReport(epoch=4, rows=rows, batch_s=batch_s, stats=stats, loss=1.5, accuracy=0.75)


@pytest.fixture
def learning(monkeypatch):
    """What `Learning` is given; and how often cores are shared out to it."""
    shared = []
    monkeypatch.setattr("dalirefurb.demo.training.Trainer", Learning)
    monkeypatch.setattr("dalirefurb.demo.commands._share_cores", lambda: shared.append(1))
    monkeypatch.setattr(Learning, "made", [])
    yield Learning.made
    assert shared == [1]


def test_train_prints_what_its_columns_say_and_trains_with_what_is_given(tmp_path, capsys, learning):
    folder = write_folder(tmp_path, num_samples=48)
    augmentation = ["--size", "32", "--layers", "3", "--magnitude", "5", "--order", "crop_last"]
    training = [
        "--epochs",
        "1",
        "--learning-rate",
        "0.5",
        "--val-share",
        "0.25",
        "--seed",
        "7",
        "--max-pixels",
        "99999",
    ]
    assert (
        main(["train", str(folder), *augmentation, *training, "--on-bad-sample", "replace", "--kernels", "dali"]) == 0
    )
    (source, recipe, planner, given), (held_out, validated) = learning
    assert (len(source), len(held_out), planner.batch_size, planner.seed) == (36, 12, 36, 7)
    assert recipe == rand_augment(32, layers=3, magnitude=5, order="crop_last")
    policy = BadSamplePolicy("replace", max_pixels=99_999)
    assert given == {"epochs": 1, "learning_rate": 0.5, "kernels": "dali", "bad_samples": policy}
    assert validated == {"kernels": "dali", "bad_samples": policy}
    head, kept, _, columns, row, *_, diagnosis, _, bad = capsys.readouterr().out.splitlines()
    assert head == "48 images in 3 classes, 12 of them to judge by; 1 batches of 36 an epoch"
    assert "(12 MB); fresh: " in kept
    # 1000 images in 12 s; a quarter of the time it waited.
    assert row.split() == ["4", "83", "700", "300", "25%", "250.0", "600.0", "1.500", "75.0%", "12.5%"]
    assert columns == f"{COLUMNS}  (validation)"
    assert len(row) == len(columns)
    assert (diagnosis, bad) == ("it waited: pass --reuse-factor 5", "no bad images")


COLUMNS = "epoch  images/s     hits   misses  waiting  ms/batch: median    95 %    loss  accuracy (training)"


@pytest.mark.filterwarnings("default")
def test_of_a_training_by_losses_it_is_told_what_that_left_out(tmp_path, capsys, learning):
    folder = write_folder(tmp_path, num_samples=5, classes=1)
    for name in ("a.txt", "b.txt"):
        (folder / "class_0" / name).touch()
    assert main(["train", str(folder), "--size", "32", "--epochs", "1", "--technique", "autoassist"]) == 0
    assert len(learning) == 1  # None are held out.
    head, _, _, columns, row, *_, told = capsys.readouterr().out.splitlines()
    assert head.startswith("5 images in 1 class (2 other files ignored), none of them to judge by (see --val-share); ")
    assert (columns, len(row.split())) == (COLUMNS, 9)
    assert told == "of 120 samples considered 90 were trained on, 25% saved; the Assistant judges 80% rightly"


@pytest.mark.parametrize(
    ("split", "nbytes", "said"),
    [
        (0, 7_600_000, "cached: files, as they were read (8 MB); fresh: decode > random_resized_crop > flip"),
        (2, 7_600_000, "cached: decode > random_resized_crop (8 MB); fresh: flip"),
        (3, 7_600_000, "cached: decode > random_resized_crop > flip (8 MB); fresh: nothing"),
        (3, 0, "nothing is cached, all is fresh: decode > random_resized_crop > flip"),
    ],
)
def test_what_is_cached_and_what_is_fresh_is_said(split, nbytes, said):
    assert commands._stages(simple(32, split=split), nbytes) == said


@pytest.mark.parametrize(
    ("images", "epochs", "cores", "said"),
    [(2000, 4, 2, "2 minutes"), (2000, 4, 4, "a minute"), (20_000, 9, 2, "25 minutes")],
)
def test_a_demo_says_about_how_long_it_takes(images, epochs, cores, said, monkeypatch):
    monkeypatch.setattr(commands, "usable_cores", lambda: cores)
    assert commands._duration(Namespace(images=images, epochs=epochs)) == said
