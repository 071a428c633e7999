"""What options mean where they are given and where they are not, and what the command line says of its work."""

import logging
import os
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from dalirefurb.augment.presets import rand_augment
from dalirefurb.cli import limits, main, terminal
from dalirefurb.cli.arguments import parser
from dalirefurb.cli.show import _check_heeded, draw_all
from dalirefurb.cli.techniques import OPTIONS, TECHNIQUES, Number, choose
from dalirefurb.errors import LoaderError
from dalirefurb.planning.refurbish import Refurbish
from tests.one_line import error_of

OF_TECHNIQUES = {
    "standard": {},
    "refurbish": {"reuse_factor": 3},
    "echo": {"echoing_factor": 2.0, "buffer_size": None},
    "batch_echo": {"echoing_factor": 2.0, "buffer_size": 0},
    "smartcache": {"num_cache_objects": None, "replace_percent": 0.1},
    "autoassist": {"lag": 32},
    "frozen": {},
    "simplified": {"remove_layers": 1},
}


def test_what_is_not_given_is_as_the_help_says():
    assert {name: technique.options for name, technique in TECHNIQUES.items()} == OF_TECHNIQUES
    train = vars(parser().parse_args(["train", "photos"]))
    numbers = {"size": 224, "layers": 2, "magnitude": 9, "epochs": 5, "val_share": 0, "learning_rate": 0.01, "seed": 0}
    words = {"technique": "refurbish", "order": "paper", "on_bad_sample": "raise", "max_pixels": 100_000_000}
    assert (numbers | words).items() <= train.items()
    assert {name for name, value in train.items() if value is None} == {
        *OPTIONS,
        *("version", "split", "batch_size", "quarantine", "kernels"),
    }
    assert parser().parse_args(["tune"]).min_kept == 0.95
    shown = parser().parse_args(["show", "--plan"])
    _check_heeded(shown)
    assert (shown.preset, shown.size, shown.seed, shown.epochs) == ("rand_augment", 224, 0, 9)
    assert parser().parse_args(["demo"]).reuse_factor == 3


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([], (2000, 4, 64, 224)),
        (["--quick"], (128, 2, 16, 64)),
        (["--quick", "--images", "99", "--size", "96"], (99, 2, 16, 96)),
        (["--epochs", "3", "--batch-size", "8"], (2000, 3, 8, 224)),
    ],
)
def test_a_demo_does_what_is_given_and_else_little_or_much(given, taken, monkeypatch):
    done = []
    monkeypatch.setattr("dalirefurb.demo.commands.demo", done.append)
    assert main(["demo", *given]) == 0
    (options,) = done
    assert (options.images, options.epochs, options.batch_size, options.size) == taken


def test_a_number_may_be_the_least_and_the_most():
    assert [Number(int, 1, 5)(text) for text in ("1", "5")] == [1, 5]
    given = parser().parse_args(["train", "photos", "--lag", "100000", "--learning-rate", "1000", "--val-share", "0.9"])
    assert (given.lag, given.learning_rate, given.val_share) == (100_000, 1000, 0.9)


def planner_of(name, num_samples=96, batch_size=16, seed=5, **given):
    technique = choose(name, Namespace(**dict.fromkeys(OPTIONS) | given))
    return technique, technique.planner(num_samples, batch_size=batch_size, seed=seed)


def test_each_technique_plans_with_the_seed_and_names_the_numbers_that_it_chose():
    for name in TECHNIQUES:
        _, planner = planner_of(name)
        _, other = planner_of(name, seed=6)
        assert planner.plan(0, 0).indices.tolist() != other.plan(0, 0).indices.tolist(), name
    technique, planner = planner_of("smartcache")
    assert technique.describe(planner) == "smartcache, num cache objects 48, replace percent 0.1"
    assert planner_of("smartcache", num_samples=30)[1].num_cache_objects == 16  # A batch at least.
    assert planner_of("echo")[1].buffer_size == 16 * 16
    assert planner_of("echo", buffer_size=0)[1].buffer_size == 0


@pytest.mark.parametrize(
    ("arguments", "nbytes", "what"),
    [
        ([], 3 * 12 * 224**2, "3 images of 224 x 224"),
        (["--reuse-factor", "5", "--size", "100"], 5 * 12 * 100**2, "5 images of 100 x 100"),
        (["--operations", "--size", "100"], 80 * 12 * 100**2, "80 images of 100 x 100"),
        (["--operations", "--preset", "stages", "--size", "100"], 160 * 12 * 100**2, "160 images of 100 x 100"),
        # 64 bytes for a row of an epoch, and for each of 9 epochs 24 for a batch, or of any technique for a row.
        (["--plan"], 64 * 10_000 + 24 * 9 * 157, "the plans of 9 epochs of 10000 rows"),
        (["--plan", "--technique", "echo"], (64 + 24 * 9) * 20_000, "the plans of 9 epochs of 20000 rows"),
    ],
)
def test_pictures_that_the_memory_does_not_hold_are_refused(arguments, nbytes, what, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(limits, "available_bytes", lambda: nbytes - 1)
    status, line = error_of(capsys, "show", *arguments)
    assert status == 2
    needed, free = limits.amount(nbytes), limits.amount(nbytes - 1)
    assert f"memory must hold {what}, which is at least {needed}, but {free} are available: pass " in line
    monkeypatch.setattr(limits, "available_bytes", lambda: 0)
    assert "but 0 B are available: pass " in error_of(capsys, "show", *arguments)[1]
    monkeypatch.setattr(limits, "available_bytes", lambda: nbytes)
    status, line = error_of(capsys, "show", *arguments, "--out", tmp_path / "no" / "a.png")
    assert "a.png fails: No such file or directory" in line


def test_a_demo_of_more_uses_than_fit_draws_as_many_as_do(monkeypatch):
    drawn = []
    monkeypatch.setattr("dalirefurb.show.sheet.pictures_sheet", lambda *_, **given: drawn.append(given) or Figure())
    monkeypatch.setattr("dalirefurb.show.sheet.operations_sheet", lambda *_, **given: drawn.append(given) or Figure())
    options = Namespace(reuse_factor=20, seed=4, size=32)
    assert len(draw_all(options, rand_augment(32), Refurbish(40, batch_size=4, reuse_factor=20))) == 3
    assert drawn == [{"name": "rand_augment", "reuse_factor": 12, "seed": 4}, {"size": 32}]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_any_process_of_several_is_refused(rank, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, line = error_of(capsys, "train", "missing")
    assert (status, f"it is rank {rank} of 2" in line) == (2, True)


def test_a_loader_that_fails_is_no_fault_of_what_was_given(monkeypatch, tmp_path, capsys):
    def fail(*_):
        raise LoaderError("a thread died")

    monkeypatch.setattr("dalirefurb.show.plots.compare_plans", fail)
    plan = ["show", "--plan", "--num-samples", "99", "--out", tmp_path / "plan.png"]
    assert error_of(capsys, *plan) == (1, "dalirefurb: error: a thread died")


@pytest.mark.parametrize(("name", "status"), [("SIGHUP", 129), ("SIGTERM", 143), ("SIGINT", 130)])
def test_a_command_that_is_ended_says_by_what(name, status):
    program = f"""if True:
        import os, signal, sys, time
        for number in (signal.SIGHUP, signal.SIGTERM):  # Tests may be run by nohup, or in the background.
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import dalirefurb.cli.outcome
        dalirefurb.cli.outcome.run = lambda _: os.kill(os.getpid(), signal.{name}) or time.sleep(60)
        sys.argv = ["dalirefurb"]
        sys.exit(dalirefurb.cli.main())"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    word = "interrupted" if name == "SIGINT" else "terminated"
    assert (done.returncode, done.stderr) == (status, f"dalirefurb: {word}\n")


def test_a_signal_during_an_import_is_answered_after_it(monkeypatch):
    monkeypatch.setattr(terminal, "_SIGNALS", (signal.SIGUSR1,))
    before, done = signal.default_int_handler, []
    usual = signal.signal(signal.SIGUSR1, before)
    try:
        with pytest.raises(KeyboardInterrupt), terminal.importing():  # noqa: PT012 - that it goes on is looked at
            os.kill(os.getpid(), signal.SIGUSR1)
            done.append("imported")
        assert signal.getsignal(signal.SIGUSR1) is before
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert done == ["imported"]


def test_lines_of_progress_come_half_a_minute_apart_at_most(monkeypatch, caplog):
    pauses = []
    ended = SimpleNamespace(wait=lambda pause: pauses.append(pause) or len(pauses) > 6, set=lambda: None)
    monkeypatch.setattr(terminal, "threading", SimpleNamespace(Event=lambda: ended, Thread=threading.Thread))
    with caplog.at_level(logging.INFO, "dalirefurb"), terminal.waiting("testing"):
        pass
    assert pauses == [1.5, 3, 6, 12, 24, 30, 30]
    assert len(caplog.messages) == 6


def test_progress_counts_what_is_done(monkeypatch):
    told = []
    monkeypatch.setattr(terminal, "waiting", lambda what, done: told.append(done) or nullcontext())
    counts = [told[0]() for _ in terminal.counted(range(1001), "testing", "number", 1001)]
    assert (counts[0], counts[-1]) == (": number 0 of 1,001", ": number 1,000 of 1,001")


def test_of_a_long_line_both_ends_are_told(capsys):
    terminal.complain("a" * 3000 + "b" * 3000)
    assert capsys.readouterr().err == "a" * 1000 + " ... " + "b" * 1000 + "\n"
    terminal.complain("a" * 2000)
    assert capsys.readouterr().err == "a" * 2000 + "\n"


def test_pictures_name_no_option_of_training(tmp_path, capsys):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "x.jpg").write_text("this is no image")
    status, line = error_of(capsys, "show", tmp_path, "--size", 32, "--out", tmp_path / "a.png")
    assert (status, "--on-bad-sample" in line) == (1, False)


@pytest.mark.parametrize(("damaged", "more"), [(10, None), (11, "  and 1 more")])
def test_ten_damaged_samples_are_all_named(damaged, more, monkeypatch, tmp_path, capsys):
    versions = [(index, 2 * index) for index in range(damaged)]
    found = SimpleNamespace(ok=False, intact=12_345, damaged=versions, torn=7)
    monkeypatch.setattr("dalirefurb.cli.maintenance.upkeep.verify", lambda _: found)
    assert main(["cache", "verify", str(tmp_path / "cache")]) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert f"12,345 intact, {damaged} damaged; slots that do not say what they hold: 7." in first
    assert others[:10] == [f"  damaged: sample {index}, version {2 * index}" for index in range(10)]
    assert others[10:] == ([] if more is None else [more])


def test_a_keep_is_said_to_have_what_it_has_in_its_form(monkeypatch, tmp_path, capsys):
    identity = {"form": {"stages": [{"name": "decode"}, {"name": "resize"}]}}
    keep = SimpleNamespace(path=tmp_path, nbytes=2_000_000, kept=3, num_samples=4000, identity=identity)
    monkeypatch.setattr("dalirefurb.cli.maintenance.keeping.is_keep", lambda _: True)
    monkeypatch.setattr("dalirefurb.cli.maintenance.keeping.inspect", lambda _: keep)
    monkeypatch.setattr("dalirefurb.cli.maintenance.keeping.purge", lambda _: 5_000)
    assert main(["cache", "inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"keep         {tmp_path}, 2.00 MB\nkept         3 of 4,000 samples, decode > resize\n")
    monkeypatch.setattr("dalirefurb.cli.maintenance.keeping.verify", lambda _: (1234, [7, 9]))
    assert main(["cache", "verify", str(tmp_path)]) == 1
    assert "1,234 intact, 2 damaged, the first is sample 7. Nothing damaged is served" in capsys.readouterr().out
    assert main(["cache", "purge", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} is deleted: 5.00 KB\n"
