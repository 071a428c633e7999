"""What options mean where they are given and where they are not, and what the command line says of its work."""

import errno
import io
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from dalirefurb.augment.presets import auto_augment, evaluate, rand_augment, simple, timm_augment, trivial_augment
from dalirefurb.augment.published import yolo
from dalirefurb.cli import limits, main, outcome, terminal
from dalirefurb.cli.arguments import parser
from dalirefurb.cli.show import PRESETS, _check_heeded, draw_all
from dalirefurb.cli.techniques import OPTIONS, TECHNIQUES, Number, choose
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.planning.echo import Echo
from dalirefurb.planning.refurbish import Refurbish, Standard
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


def test_the_version_is_that_of_what_is_installed(monkeypatch, capsys):
    monkeypatch.setattr("dalirefurb.cli.arguments.metadata.version", {"dalirefurb": "9.8.7"}.get)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "dalirefurb 9.8.7\n")


def test_a_number_may_be_the_least_and_the_most():
    assert [Number(int, 1, 5)(text) for text in ("1", "5")] == [1, 5]
    given = parser().parse_args(["train", "photos", "--lag", "100000", "--learning-rate", "1000", "--val-share", "0.9"])
    assert (given.lag, given.learning_rate, given.val_share) == (100_000, 1000, 0.9)


def test_each_number_of_a_technique_has_its_limits():
    limits = {name: (number.kind, number.least, number.most) for name, (number, _) in OPTIONS.items()}
    assert limits == {
        "reuse_factor": (int, 1, 1000),
        "echoing_factor": (float, 1, 1000),
        "buffer_size": (int, 0, math.inf),
        "num_cache_objects": (int, 1, math.inf),
        "replace_percent": (float, 0, 1),
        "lag": (int, 1, 100_000),
        "remove_layers": (int, 1, math.inf),
    }


LIMITS = {
    "size": {"train": (32, 20_000), "show": (1, 20_000), "demo": (32, 20_000), "tune": (1, 20_000)},
    "batch_size": dict.fromkeys(("train", "show", "demo", "tune"), (1, math.inf)),
    "epochs": dict.fromkeys(("train", "show", "demo", "tune"), (1, 10**9)),
    "seed": {"train": (-math.inf, math.inf), "show": (-math.inf, math.inf), "demo": (0, math.inf)},
    "layers": {"train": (1, 100)},
    "magnitude": {"train": (-math.inf, math.inf)},  # which the preset refuses
    "val_share": {"train": (0, 0.9)},
    "max_pixels": {"train": (1, math.inf)},
    "num_samples": {"show": (1, 10**15)},
    "images": {"demo": (8, 10**15)},
    "step_ms": {"tune": (0.001, 1e9)},
    "min_kept": {"tune": (0, 1)},
    "limit": {"tune": (1, 86_400)},
}
CHOICES = {
    "technique": dict.fromkeys(("train", "show"), OF_TECHNIQUES),
    "order": dict.fromkeys(("train", "show"), ("paper", "crop_last")),
    "on_bad_sample": {"train": ("raise", "replace")},
    "kernels": {"train": ("numba", "dali")},
    "preset": {"show": (*PRESETS, "stages"), "tune": ("rand_augment", "auto_augment", "trivial_augment")},
    "form": {"keep": ("decoded", "planes", "encoded")},
}


TOLD = {
    "train": {
        "technique": "refurbish",
        "size": "224",
        "layers": "2",
        "magnitude": "9",
        "order": "paper",
        "epochs": "5",
        "batch_size": "64",
        "val_share": "0",
        "learning_rate": "0.01",
        "on_bad_sample": "raise",
        "seed": "0",
        "max_pixels": "100000000",
        "kernels": "numba, if it is installed",
    },
    "show": {
        "out": "show.png, operations.png or plan.png",
        "seed": "0",
        "preset": "rand_augment",
        "order": "paper",
        "size": "224",
        "num_samples": "those of FOLDER, or 10000",
        "batch_size": "64",
        "epochs": "9",
    },
    "demo": {
        "out": "dalirefurb-demo",
        "images": "2000; 128 with --quick",
        "epochs": "4; 2 with --quick",
        "batch_size": "64; 16 with --quick",
        "size": "224; 64 with --quick",
        "seed": "0",
    },
    "tune": {
        "preset": "rand_augment",
        "size": "224",
        "batch_size": "64",
        "epochs": "90",
        "memory": "60%%",
        "min_kept": "0.95",
        "limit": "120",
    },
    "keep": {"form": "decoded", "size": "80%% of the disk"},
}
"""What the help says of options that are not given."""


def test_the_help_of_each_option_says_what_is_done_where_it_is_not_given():
    commands = next(action for action in parser()._actions if isinstance(action.choices, dict)).choices
    technical = {"reuse_factor": "3", "echoing_factor": "2.0", "replace_percent": "0.1", "lag": "32"}
    for command, made in commands.items():
        ends = {action.dest: re.search(r" \(([^()]*)\)$", action.help or "") for action in made._actions}
        told = {name: end[1] for name, end in ends.items() if end}
        options = {name: usual for name, usual in told.items() if name in OPTIONS}
        assert {name: usual for name, usual in told.items() if name not in OPTIONS} == TOLD.get(command, {}), command
        if command in ("train", "show"):
            assert options == technical | {"remove_layers": "1"}


def test_each_option_of_each_command_has_its_limits_and_its_choices():
    commands = next(action for action in parser()._actions if isinstance(action.choices, dict)).choices
    limits, choices = {}, {}
    for command, made in commands.items():
        for action in made._actions:
            if isinstance(action.type, Number) and action.dest not in OPTIONS:
                limits.setdefault(action.dest, {})[command] = (action.type.least, action.type.most)
            elif action.choices and command != "cache":
                choices.setdefault(action.dest, {})[command] = tuple(action.choices)
    assert limits == LIMITS
    assert choices == {name: {of: tuple(each) for of, each in them.items()} for name, them in CHOICES.items()}


def test_each_preset_is_the_one_of_its_name():
    policies = {f"auto_augment_{name}": auto_augment(32, policy=name) for name in ("cifar10", "svhn")}
    others = (rand_augment, auto_augment, trivial_augment, timm_augment, simple, evaluate, yolo)
    assert {name: preset(32) for name, preset in PRESETS.items()} == policies | {
        preset.__name__: preset(32) for preset in others
    }


@pytest.mark.parametrize(
    ("name", "split"),
    [("standard", 4), ("echo", 1), ("batch_echo", 1), ("smartcache", 1), ("simplified", 3), ("frozen", 4)],
)
def test_a_technique_splits_where_it_is_best_or_where_it_is_told(name, split):
    technique, preset = choose(name, Namespace(**dict.fromkeys(OPTIONS))), rand_augment(32, split=4)
    recipe = technique.recipe(preset, None)
    assert recipe.split == split
    assert len(recipe.stages) == (4 if name == "simplified" else 5)
    for given, wanted in (("end", len(recipe.stages)), (0, 0), (2, 2), ("flip", 2)):
        assert technique.recipe(preset, given).split == wanted


HEEDED = {
    "": ["folder", "out", "preset", "size", "order", "split", "masks", "coco", "yolo", "seed", "reuse_factor"],
    "operations": ["folder", "out", "preset", "size"],
    "plan": ["folder", "out", "num_samples", "batch_size", "epochs", "technique", "seed", *OPTIONS],
    "bandwidth": ["preset", "size", "order", "split", "batch_size", "seed"],
}


@pytest.mark.parametrize("mode", HEEDED)
def test_what_a_picture_does_not_heed_is_refused(mode):
    names = {name for heeded in HEEDED.values() for name in heeded}
    assert names <= vars(parser().parse_args(["show"])).keys()
    for name in names:
        options = parser().parse_args(["show"])
        options.operations, options.plan = mode == "operations", mode in ("plan", "bandwidth")
        options.bandwidth = "1TB" if mode == "bandwidth" else None
        setattr(options, name, 0)  # Whatever is given: 0 is not none.
        with nullcontext() if name in HEEDED[mode] else pytest.raises(ConfigurationError, match="got 0"):
            _check_heeded(options)
            assert getattr(options, name) == 0


@pytest.mark.parametrize(("mode", "name"), [([], "show"), (["--operations"], "operations"), (["--plan"], "plan")])
def test_a_picture_that_is_not_named_is_in_the_present_folder(mode, name, monkeypatch, capsys):
    def refuse(path):
        raise ConfigurationError(f"{path} is not written")

    monkeypatch.setattr("dalirefurb.cli.show.check_writable", refuse)
    assert error_of(capsys, "show", *mode) == (2, f"dalirefurb: error: {name}.png is not written")


def test_a_plan_is_of_the_technique_and_the_numbers_that_are_given(monkeypatch, tmp_path, capsys):
    drawn = []

    def history(planner, epochs):
        drawn.extend([planner, epochs])

    monkeypatch.setattr("dalirefurb.show.plots.history", history)
    monkeypatch.setattr("dalirefurb.show.plots.history_plot", lambda _, title: drawn.append(title) or Figure())
    numbers = ["--num-samples", "90", "--batch-size", "9", "--seed", "4", "--epochs", "3"]
    technique = ["--technique", "echo", "--echoing-factor", "1.5", "--buffer-size", "0"]
    assert main(["show", "--plan", *numbers, *technique, "--out", str(tmp_path / "a.png")]) == 0
    planner = Echo(Standard(90, batch_size=9, seed=4), echoing_factor=1.5, buffer_size=0)
    assert drawn == [planner, 3, "echo, echoing factor 1.5, buffer size 0"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "said", "drawn"),
    [
        (
            ["--reuse-factor", "2", "--seed", "3", "--size", "40", "--split", "flip", "--order", "crop_last"],
            "drawn anew at every use: flip\nrand_augment keeps ",
            ("pictures", rand_augment(40, order="crop_last").at("flip"), "rand_augment", 2, 3),
        ),
        (["--preset", "simple"], "\nsimple keeps ", ("pictures", simple(224), "simple", 3, 0)),
        (
            ["--operations", "--preset", "trivial_augment", "--size", "40"],
            "drawing the operations of trivial_augment\n",
            ("operations", "trivial_augment", 40),
        ),
        (["--operations"], "drawing the operations of rand_augment\n", ("operations", "rand_augment", 224)),
        (["--operations", "--preset", "stages", "--size", "50"], "drawing all stages\n", ("stages", 50)),
    ],
)
def test_a_sheet_is_of_what_is_asked_for(given, said, drawn, monkeypatch, tmp_path, capsys):
    made = []

    def pictures(source, recipe, *, name, reuse_factor, seed):
        made.append((len(source), "pictures", recipe, name, reuse_factor, seed))

    def operations(source, preset, *, size):
        made.append((len(source), "operations", preset, size))

    def stages(source, *, size):
        made.append((len(source), "stages", size))

    for function in (pictures, operations, stages):
        monkeypatch.setattr(
            f"dalirefurb.show.sheet.{function.__name__}_sheet", lambda *a, _=function, **b: _(*a, **b) or Figure()
        )
    monkeypatch.setattr("dalirefurb.cli.show.without_codec_noise", nullcontext)
    out = tmp_path / "a.png"
    assert main(["show", *given, "--out", str(out)]) == 0
    assert made == [(8, *drawn)]
    told = capsys.readouterr().out
    assert said in told
    assert told.endswith(f"drawn: {out}\n")
    assert out.stat().st_size > 0


def test_what_is_compiled_is_said_to_be_kept_where_it_is(monkeypatch, capsys):
    clock = iter([3.0, 5.25])
    monkeypatch.setattr("dalirefurb.cli.maintenance.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr("dalirefurb.cli.maintenance.importlib.util.find_spec", lambda _: True)
    monkeypatch.setattr("dalirefurb.kernels.ahead.compile_ahead", lambda: "/k\n")
    assert main(["compile"]) == 0
    told = "compiling the kernels for this processor\nthey are there after 2.2 s, kept in /k\\n\n"
    assert capsys.readouterr().out == told
    monkeypatch.setattr("dalirefurb.cli.maintenance.importlib.util.find_spec", lambda _: None)
    status, line = error_of(capsys, "compile")
    assert status == 2
    assert "kernels are compiled by Numba, which cannot be found: pip install numba; without it DALI's" in line


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


def test_where_nobody_knows_how_much_memory_there_is_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "available_bytes", lambda: None)
    limits.check_memory(10**18, "all of it", "pass less")


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


def test_one_process_that_a_launcher_started_is_alone(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "missing is none: No such file or directory" in error_of(capsys, "train", "missing")[1]


def test_photographs_that_are_missing_are_named(monkeypatch, tmp_path, capsys):
    """As where a package is made smaller than it is."""
    (tmp_path / "data").mkdir()
    for name in limits._PHOTOGRAPHS[1:-1]:
        (tmp_path / "data" / name).touch()
    usual = limits.importlib.util.find_spec

    def found(name):
        return SimpleNamespace(origin=str(tmp_path / "__init__.py")) if name == "skimage" else usual(name)

    monkeypatch.setattr(limits.importlib.util, "find_spec", found)
    status, line = error_of(capsys, "show", "--out", tmp_path / "a.png")
    assert status == 2
    assert f"but astronaut.png, rocket.jpg cannot be found in {tmp_path / 'data'}; pip install" in line


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


def test_of_several_signals_during_an_import_the_first_is_answered(monkeypatch):
    monkeypatch.setattr(terminal, "_SIGNALS", (signal.SIGUSR1, signal.SIGUSR2))
    told = []
    usual = [signal.signal(number, lambda number, _: told.append(number)) for number in terminal._SIGNALS]
    try:
        with terminal.importing():
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert told == []
        assert told == [signal.SIGUSR2]
    finally:
        for number, answer in zip(terminal._SIGNALS, usual, strict=True):
            signal.signal(number, answer)


@pytest.mark.parametrize("answer", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_signal_that_no_function_answers_is_left_as_it_is_during_an_import(answer, monkeypatch):
    """One that is ignored, as by nohup, stays so: nothing is called."""
    monkeypatch.setattr(terminal, "_SIGNALS", (signal.SIGUSR1,))
    usual = signal.signal(signal.SIGUSR1, answer)
    try:
        with terminal.importing():
            assert signal.getsignal(signal.SIGUSR1) is answer
            if answer is signal.SIG_IGN:
                os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is answer
    finally:
        signal.signal(signal.SIGUSR1, usual)


def test_another_thread_than_the_main_one_imports_as_usual(monkeypatch):
    """As where a notebook's server calls a command: only the main one can choose how signals are answered."""
    monkeypatch.setattr(terminal, "_SIGNALS", (signal.SIGUSR1,))
    done, usual = [], signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def work():
        with suppress(ValueError), terminal.importing():
            done.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    signal.signal(signal.SIGUSR1, usual)
    assert done == [signal.default_int_handler]


def test_what_cannot_be_complained_of_is_left_unsaid_and_what_cannot_be_said_is_an_error(monkeypatch):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        terminal.complain("wrong")
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(terminal.OutputError, match="must be writable, but is not: No space left on device"):
        terminal.say("done")

    def broken(*_):
        raise BrokenPipeError

    monkeypatch.setattr(terminal, "_write", broken)
    with pytest.raises(BrokenPipeError):
        terminal.say("done")


def test_what_a_stream_cannot_encode_is_written_with_escapes():
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii") as stream:
        terminal._write(stream, "caf\xe9 \u2192")
        assert written.getvalue() == b"caf\\xe9 \\u2192\n"


def test_what_the_library_logs_of_itself_names_it_once(capsys, monkeypatch):
    log = logging.getLogger("dalirefurb.kernels")

    def command(_):
        log.warning("dalirefurb compiles %s", "kernels\x1b")
        log.warning("3 of 4 are\nleft out: pass batch_size=4")

    made = Namespace(parse_args=lambda arguments: Namespace(command=command, batch_size=None))
    monkeypatch.setattr(outcome, "parser", lambda: made)
    assert outcome.run([]) == 0
    assert capsys.readouterr().err.splitlines() == [
        r"dalirefurb: warning: compiles kernels\x1b",
        "dalirefurb: warning: 3 of 4 are left out: pass --batch-size 4",
    ]


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
    identity["form"] = "encoded"
    assert main(["cache", "inspect", str(tmp_path)]) == 0
    assert "3 of 4,000 samples, encoded\nidentity\n" in capsys.readouterr().out
    monkeypatch.setattr("dalirefurb.cli.maintenance.keeping.verify", lambda _: (1234, [7, 9]))
    assert main(["cache", "verify", str(tmp_path)]) == 1
    assert "1,234 intact, 2 damaged, the first is sample 7. Nothing damaged is served" in capsys.readouterr().out
    assert main(["cache", "purge", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} is deleted: 5.00 KB\n"


@pytest.mark.parametrize("command", ["train", "show"])
def test_the_help_says_for_which_techniques_a_number_is(command, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for start in (
        "--reuse-factor N epochs in which",
        "--echoing-factor X echo and batch_echo: how often",
        "--buffer-size N echo and batch_echo: images",
        "--num-cache-objects N smartcache: images",
        "--replace-percent X smartcache: share",
        "--lag N autoassist: batches",
        "--remove-layers N simplified: operations",
    ):
        assert f" {start} " in said


def test_the_help_says_what_each_command_is_for(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    said = capsys.readouterr().out
    for command in ("train", "show", "demo", "tune", "cache", "keep", "compile", "doctor"):
        assert re.search(rf"^ +{command} +[a-z]+ ", said, re.MULTILINE), command
