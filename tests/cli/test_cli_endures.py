"""Does the command line bear whatever it is given: arguments, files, streams, interrupts?"""

import errno
import io
import json
import logging
import math
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

import dalirefurb
from dalirefurb.cli import main, terminal
from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.techniques import OPTIONS
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError, SampleError
from dalirefurb.loader import Loader
from dalirefurb.source import ImageFolder
from tests.interruptible import interruptible
from tests.one_line import error_of, without_progress
from tests.pictures import write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
SMALL = ["--size", "32", "--batch-size", "16", "--epochs", "2"]
PLAN = ["show", "--plan", "--num-samples", "99"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("photographs"), num_samples=48)


REFUSED = [
    ("train FOLDER --reuse-factor 99999999999999999999", "--reuse-factor must be an int of at most 1000, got 9999999"),
    ("train FOLDER --val-share 1", "--val-share must be a number of at most 0.9, got 1.0"),
    ("train FOLDER --val-share -0.1", "--val-share must be a share in 0..0.9, got -0.1"),
    ("train FOLDER --reuse-factor 0", "--reuse-factor must be an int of at least 1, got 0"),
    ("train FOLDER --reuse-factor 1e9", "argument --reuse-factor: invalid int value: '1e9'"),
    (
        "train FOLDER --technique echo --echoing-factor 1e9",
        "--echoing-factor must be a number of at most 1000, got 10000",
    ),
    (
        "train FOLDER --technique echo --echoing-factor 1e400",
        "--echoing-factor must be a number of at most 1000, got inf",
    ),
    ("train FOLDER --technique echo --echoing-factor nan", "--echoing-factor must be a number of at least 1, got nan"),
    ("train FOLDER --technique echo --buffer-size -1", "--buffer-size must be an int of at least 0, got -1"),
    (
        "train FOLDER --technique smartcache --replace-percent 2",
        "--replace-percent must be a number of at most 1, got 2.0",
    ),
    ("train FOLDER --technique smartcache --replace-percent -inf", "expected one argument"),
    ("train FOLDER --technique autoassist --lag 99999999999999999999", "--lag must be an int of at most 100000"),
    (
        "train FOLDER --technique simplified --remove-layers 99",
        "--remove-layers must be an int in 1..2, got 99: the operations to leave out are rand_augment_1, rand_a",
    ),
    ("train FOLDER --technique simplified --remove-layers -1", "--remove-layers must be an int of at least 1, got -1"),
    ("train FOLDER --epochs 99999999999999999999", "--epochs must be an int of at most 1000000000, got 9999999"),
    ("train FOLDER --size 99999999999999999999", "--size must be an int of at most 20000, got 9999999"),
    ("train FOLDER --size 31", "the network needs images of at least 32 pixels, got 31"),
    ("train FOLDER --layers 1000000", "--layers must be an int of at most 100, got 1000000"),
    ("train FOLDER --magnitude 99999999999999999999", "--magnitude must be an int in 0..30, got 99999999999999999999"),
    ("train FOLDER --learning-rate 1e300", "the learning rate must be at most 1000, got 1e+300"),
    ("train FOLDER --learning-rate 1001", "the learning rate must be at most 1000, got 1001.0: 0.01 is usual"),
    ("train FOLDER --technique autoassist --lag 100001", "--lag must be an int of at most 100000, got 100001"),
    ("train FOLDER --learning-rate inf", "the learning rate must be a positive number, got inf"),
    ("train FOLDER --learning-rate=-1", "the learning rate must be a positive number, got -1.0"),
    ("train FOLDER --max-pixels 0", "--max-pixels must be an int of at least 1, got 0"),
    ("train FOLDER --split 99", "--split must be a stage's name or a count of partial stages in 0..5"),
    ("train FOLDER --seed " + 5000 * "9", "argument --seed: invalid int value"),
    (
        "train FOLDER --quarantine bad.jsonl",
        "--on-bad-sample must be 'replace' with a quarantine, got 'raise': pass --on-bad-sample replace, or leave the "
        "quarantine out",
    ),
    (
        "train FOLDER --on-bad-sample replace --quarantine /dev/full",
        "--quarantine must be a text file that can be read and written, but /dev/full is not: it is no regular file",
    ),
    (
        "train FOLDER --on-bad-sample replace --quarantine no/bad.jsonl",
        "but no/bad.jsonl is not: its folder is not there: pass the path of a file in a folder that is there",
    ),
    (
        "train FOLDER --on-bad-sample replace --quarantine .",
        "but . is not: it is no regular file: pass the path of a file in a folder that is there",
    ),
    ("train FOLDER --kernels cuda", "argument --kernels: invalid choice: 'cuda'"),
    ("show FOLDER --size 99999", "--size must be an int of at most 20000, got 99999"),
    ("show FOLDER --operations --size 99999", "--size must be an int of at most 20000, got 99999"),
    ("show FOLDER --operations --preset simple", "must have operations of varying magnitude, but simple has none"),
    ("show FOLDER --operations --preset timm_augment", "vary from image to image: pass --preset stages, where it is"),
    ("show FOLDER --preset stages", "--preset stages is for --operations, got it without: add --operations"),
    ("show --coco FILE", "--coco is for images of yours, got FILE without them: name FOLDER"),
    ("show --yolo DIR", "--yolo is for images of yours, got DIR without them: name FOLDER"),
    ("show FOLDER --reuse-factor 99999999999999999999", "--reuse-factor must be an int of at most 1000"),
    ("show FOLDER --num-samples 9", "--num-samples is for --plan, got 9 without it; add --plan"),
    ("show FOLDER --out missing/a.png", "writing missing/a.png fails: No such file or directory"),
    ("show FOLDER --out a.jpg", "the picture is a PNG, but a.jpg is named as another kind of file: name it a.png"),
    ("show --plan --out a.svg", "the picture is a PNG, but a.svg is named as another kind of file: name it a.png"),
    ("show FOLDER --epochs 3", "--epochs is for --plan, got 3 without it; add --plan"),
    ("show FOLDER --batch-size 64", "--batch-size is for --plan, got 64 without it; add --plan"),
    ("show FOLDER --operations --seed 0", "--seed changes nothing with --operations, got 0; leave one of them out"),
    ("show FOLDER --operations --split flip", "--split changes nothing with --operations, got flip"),
    ("show FOLDER --operations --reuse-factor 2", "--reuse-factor changes nothing with --operations, got 2"),
    ("show FOLDER --operations --order paper", "--order changes nothing with --operations, got paper"),
    ("show FOLDER --operations --masks DIR", "--masks changes nothing with --operations, got DIR"),
    ("show FOLDER --technique echo", "--technique is for --plan, got echo without it; add --plan"),
    ("show FOLDER --plan --coco FILE", "--coco changes nothing with --plan, got FILE"),
    ("show --plan --bandwidth 1TB --reuse-factor 2", "--reuse-factor changes nothing with --bandwidth, got 2"),
    ("show --plan --size 224", "--size changes nothing with --plan, got 224"),
    ("show --plan --preset simple", "--preset changes nothing with --plan, got simple"),
    ("show --plan --order paper", "--order changes nothing with --plan, got paper"),
    (
        "show FOLDER --plan --num-samples 100",
        "FOLDER changes nothing with --num-samples, got ",
    ),
    ("show --plan --num-samples 9 --batch-size 10", "--batch-size must be an int in 1..9, got 10"),
    ("show --plan --operations", "not allowed with argument"),
    ("show FOLDER OTHER", "unrecognized arguments: OTHER"),
    ("show --size 1.5", "argument --size: invalid int value: '1.5'"),
    ("train", "the following arguments are required: FOLDER"),
    ("train FOLDER --epochs", "argument --epochs: expected one argument"),
    ("train FOLDER --batch-size -5", "--batch-size must be an int of at least 1, got -5"),
    ("train FOLDER --val-share nan", "--val-share must be a share in 0..0.9, got nan"),
    ("trian FOLDER", "invalid choice: 'trian'"),
    ("cache", "the following arguments are required: ACTION"),
    ("cache purge", "the following arguments are required: PATH"),
    ("cache inspect no/store", "no/store"),
    ("demo --folder", "argument --folder: expected one argument"),
    ("demo --epochs 0", "--epochs must be an int of at least 1, got 0"),
    ("demo --reuse-factor 0", "--reuse-factor must be an int of at least 1, got 0"),
    ("demo --out /dev/null/a/b", "/dev/null/a/b cannot be made: Not a directory; name another with --out"),
    ("show --plan --num-samples 1000000000000", " epochs of 1000000000000 rows, which is at least "),
    ("show --plan --num-samples 99999999999999999999", "--num-samples must be an int of at most"),
    ("show --plan --epochs 1000000000", "memory must hold the plans of 1000000000 epochs of 10000 rows"),
    ("show --plan --technique echo --echoing-factor 1e9", "--echoing-factor must be a number of at most 1000"),
    ("show --plan --batch-size 10001", "--batch-size must be an int in 1..10000, got 10001"),
    ("show --plan --batch-size 0", "--batch-size must be an int of at least 1, got 0"),
    ("show --plan --out .", "writing . fails: Is a directory"),
    ("demo --images 1000000000000", "--images must fit on the disk, but 1000000000000 take about 65000000.0 GB"),
    ("demo --images 7", "--images must be at least 8, one per class, got 7"),
    ("demo --seed -1", "--seed must be at least 0, got -1"),
    ("demo --quick --batch-size 129", "--batch-size must be an int in 1..128, got 129"),
    ("demo --size 1", "the network needs images of at least 32 pixels, got 1"),
    ("demo --folder /dev/null/a", "name another with --folder"),
    ("demo --out /dev/null", "/dev/null cannot be made: File exists; name another with --out"),
    ("cache inspect /dev/null", "/dev/null, but it is no regular file"),
]
"""Command lines, and what is said of them. FOLDER must not even be looked at."""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """What each of `REFUSED` led to: exit status, standard output and error, and what was imported."""
    program = """if True:
        import contextlib, io, json, sys
        from dalirefurb.cli import main, terminal
        results = []
        for line in json.load(sys.stdin):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status = main(line.split(" "))
                except SystemExit as exited:
                    status = exited.code
            slow = [name for name in ("torch", "nvidia.dali", "numba", "matplotlib") if name in sys.modules]
            results.append([status, out.getvalue(), err.getvalue(), slow])
        print(json.dumps(results))"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([line for line, _ in REFUSED]),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path_factory.mktemp("nothing"),
        env={**os.environ, "PYTHONPATH": str(Path(dalirefurb.__file__).parents[1])},
    )
    return dict(zip(REFUSED, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0][:60])
def test_what_cannot_work_is_refused_in_one_line_before_torch_dali_or_a_folder_is_touched(refusals, case):
    status, out, err, slow = refusals[case]
    assert (status, out, slow) == (2, "", [])
    assert err.startswith("dalirefurb: error: ")
    assert err.count("\n") == 1
    assert case[1] in err
    assert len(err) < 2500


def test_no_message_names_an_argument_of_python(refusals):
    names = "|".join(
        name
        for name in (*OPTIONS, "learning_rate", "num_samples", "batch_size", "max_pixels", "on_bad_sample")
        if "_" in name
    )
    assert not [err for _, _, err, _ in refusals.values() if re.search(rf"\b({names}|\w+=)\b", err)]


def test_images_that_fill_the_memory_are_refused(photographs, capsys, monkeypatch):
    monkeypatch.setattr("dalirefurb.engine.memory.available_bytes", lambda: 10**9)
    status, line = error_of(capsys, "train", photographs, "--size", 20000, "--batch-size", 16)
    assert status == 2
    assert re.search(
        r"memory must hold what the loader takes, .*final images on their way [\d.]+ GB.*1\.00 GB are", line
    )
    assert line.endswith(": use smaller batches, smaller images, a smaller reuse factor")


def test_a_lag_that_is_too_short_is_refused_in_options(photographs, capsys):
    status, line = error_of(capsys, "train", photographs, *SMALL, "--technique", "autoassist", "--lag", "1")
    assert status == 2
    assert re.search(r"error: --lag must be more than the \d+ batches planned ahead, got 1: pass --lag \d+$", line)


@pytest.mark.parametrize("text", ["", "a\0b"])
@pytest.mark.parametrize(
    "command",
    [
        *("train", "train x --quarantine", "show", "show --out", "show --masks", "show --coco", "show --yolo"),
        *("cache inspect", "cache verify", "cache purge", "demo --out", "demo --folder", "doctor", "keep", "keep x"),
        *("tune", "tune --disk", "tune --json", "tune --picture", "tune --costs", "tune --machine"),
    ],
)
def test_a_path_that_no_file_can_have_is_one_line(capsys, command, text):
    status, line = error_of(capsys, *command.split(), text)
    assert status == 2
    assert f"must be a path, got {text!r}; see dalirefurb" in line


@pytest.mark.parametrize("command", [["train", "missing"], ["demo", "--quick"], ["tune", "missing"]])
def test_one_process_of_several_is_refused_before_its_folder_is_looked_at(monkeypatch, capsys, command):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, line = error_of(capsys, *command)
    assert status == 2
    assert "this trains in one process, but it is rank 1 of 2: start it without torchrun" in line


ODD_NAME = "odd\n\x1b[31m" + os.fsdecode(b"\xff") + ".png"
ESCAPED_NAME = r"odd\n\x1b[31m\udcff.png"


@pytest.fixture
def odd(photographs, tmp_path):
    """A folder with a broken file of each kind, and one whose name no terminal should get."""
    folder = tmp_path / "photographs"
    shutil.copytree(photographs, folder)
    folder_of_one = folder / "class_1"
    with Image.open(next(folder_of_one.iterdir())) as image:
        for kind in ("JPEG", "PNG", "BMP", "TIFF", "PPM", "JPEG2000"):
            encoded = io.BytesIO()
            image.resize((64, 48)).save(encoded, kind)
            for share, name in ((2, "half"), (64, "header")):
                content = encoded.getvalue()[: len(encoded.getvalue()) // share]
                (folder_of_one / f"{name}_{kind}.png").write_bytes(content)
        (folder_of_one / ODD_NAME).write_bytes(encoded.getvalue()[:100])
    return folder


def test_broken_files_are_named_and_nothing_else_is_said_of_them(odd, capfd):
    assert main(["train", str(odd), *SMALL, "--on-bad-sample", "replace"]) == 0
    said = capfd.readouterr()
    first, tenth = said.err.splitlines()
    for count, line in ((1, first), (10, tenth)):
        told = f"dalirefurb: warning: bad samples are replaced by others, {count} of 61 so far, the last one sample "
        assert line.startswith(told)
        assert "; Loader.bad_samples() lists them, and `dalirefurb train` in the end" in line
    assert "\n13 bad images, replaced by others:\n" in said.out
    assert f"{odd}/class_1/{ESCAPED_NAME}: not an image" in said.out
    assert "\x1b" not in said.out


@pytest.mark.parametrize("command", [["train", *SMALL], ["show", "--size", "32"]])
def test_a_file_is_named_with_escapes_where_its_name_has_no_letters(odd, tmp_path, monkeypatch, capfd, command):
    for path in odd.glob("class_1/*"):
        if path.name != ODD_NAME:
            path.unlink()
    (odd / "class_1").rename(odd / "class_9")  # The last sample, which is drawn.
    monkeypatch.chdir(tmp_path)
    status, kind = (1, "error") if command[0] == "train" else (0, "warning")
    assert main([command[0], str(odd), *command[1:]]) == status
    said = capfd.readouterr().err
    name = re.escape(f"{odd}/class_9/{ESCAPED_NAME}")
    assert re.fullmatch(rf"dalirefurb: {kind}: sample \d+ \({name}\).*\n", said)


def test_a_picture_is_named_with_escapes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "--plan", "--num-samples", "99", "--out", ODD_NAME]) == 0
    assert capsys.readouterr().out == f"drawn: {ESCAPED_NAME}\n"
    assert [path.name for path in tmp_path.iterdir()] == [ODD_NAME]


@pytest.mark.weekly  # Names are escaped above, in this process, and of files that are read.
def test_a_name_that_standard_output_cannot_encode_is_written_with_escapes(tmp_path):
    done = run_outside(
        ["show", "--plan", "--num-samples", "99", "--out", "é.png"], cwd=tmp_path, PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "drawn: \\xe9.png\n", "")


NOISE = b"\x1b[0;31m[ERROR] \x1b[0m[png_parser] Could not retrieve image info from png stream\n"


def test_only_noise_of_codecs_is_kept_back_while_images_are_decoded(capfd):
    with without_codec_noise():
        os.write(2, b"out of paper\n")
    with without_codec_noise():
        os.write(2, NOISE)
    os.write(2, b"the usual way again\n")
    assert capfd.readouterr().err == "out of paper\nthe usual way again\n"


@pytest.mark.parametrize("error", [TypeError(), LoaderError("a thread died")])
def test_noise_is_told_where_something_unforeseen_happens(capfd, error):
    with pytest.raises(type(error)), without_codec_noise():
        fail_with_noise(error)
    assert capfd.readouterr().err == NOISE.decode()


@pytest.mark.parametrize("error", [SampleError(3, "a.png", "cannot be decoded"), OSError(errno.ENOSPC, "full")])
def test_noise_is_kept_back_where_an_error_says_what_is_wrong(capfd, error):
    with pytest.raises(type(error)), without_codec_noise():
        fail_with_noise(error)
    assert capfd.readouterr().err == ""


def fail_with_noise(error):
    os.write(2, NOISE)
    raise error


def test_python_writes_what_it_wants_while_images_are_decoded():
    program = """if True:
        import os, sys
        from dalirefurb.cli.codec_noise import without_codec_noise
        with without_codec_noise():
            sys.stderr.write("\\x1b[31mred\\x1b[0m\\n")"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr == b"\x1b[31mred\x1b[0m\n"


def test_what_a_dying_process_writes_gets_through():
    program = f"""if True:
        import os
        from dalirefurb.cli.codec_noise import without_codec_noise
        with without_codec_noise():
            os.write(2, {NOISE!r} + b"free(): invalid pointer\\n")
            os.abort()"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr == NOISE + b"free(): invalid pointer\n"


def run_outside(arguments, *, stdout=subprocess.PIPE, stderr=subprocess.PIPE, shell=None, cwd=None, **environment):
    """Run a command in a process of its own; `shell` is what a shell adds to it. Lines of progress are left out."""
    command = [sys.executable, "-m", "dalirefurb", *arguments]
    if shell is not None:
        command = ["bash", "-c", f"{shlex.join(command)} {shell}"]
    usual = {"PYTHONPATH": str(Path(dalirefurb.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    environment = {**os.environ, **usual, **environment}
    done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, check=False, cwd=cwd, env=environment)
    if done.stderr is not None:
        done.stderr = without_progress(done.stderr)
    return done


ENDED = [
    pytest.param("making images", signal.SIGTERM, 143, "terminated", marks=pytest.mark.weekly),
    pytest.param("making images", signal.SIGHUP, 129, "terminated", marks=pytest.mark.weekly),
    ("making images", signal.SIGINT, 130, "interrupted"),
    pytest.param("training", signal.SIGHUP, 129, "terminated", marks=pytest.mark.weekly),
]


@pytest.mark.parametrize(("moment", "number", "status", "told"), ENDED, ids=lambda each: getattr(each, "name", None))
def test_a_demo_that_is_ended_leaves_nothing_behind(tmp_path, tmp_path_factory, moment, number, status, told):
    """Neither images nor pictures, nor folders, nor processes. A training that gets SIGTERM is below."""
    folders = ["--folder", str(tmp_path / "new" / "photographs"), "--out", str(tmp_path / "drawn" / "here")]
    long = ["--images", "20000"] if moment == "making images" else ["--images", "64", "--epochs", "9999"]
    command = [sys.executable, "-m", "dalirefurb", "demo", "--quick", "--size", "32", *long]
    command += folders if moment == "making images" else folders[2:]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(dalirefurb.__file__).parents[1]), "TMPDIR": str(temporary)}
    # torch makes this folder, whatever it is used for.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    with interruptible(command, env=environment) as process:
        for line in process.stdout:
            if line.startswith("making" if moment == "making images" else "All decode, crop"):  # Then it trains.
                break
        process.send_signal(number)
        _, said = process.communicate(timeout=600)
    assert (process.returncode, without_progress(said)) == (status, f"dalirefurb: {told}\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["temporary"]


def without_home():
    """The environment of a process of a user that has no folder."""
    usual = {name: value for name, value in os.environ.items() if name not in ("HOME", "NUMBA_CACHE_DIR")}
    return {**usual, "PYTHONPATH": str(Path(dalirefurb.__file__).parents[1])}


@pytest.mark.parametrize(
    ("number", "status", "told"),
    [
        (signal.SIGTERM, 143, "terminated"),
        # The signals differ in what is said, which is tested above while images are made.
        pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.weekly),
    ],
)
def test_a_training_that_is_ended_says_so_at_once_and_needs_no_home(photographs, number, status, told):
    command = [sys.executable, "-m", "dalirefurb", "train", str(photographs), *SMALL, "--epochs", "99999"]
    with interruptible(command, env=without_home()) as process:
        for line in process.stdout:
            if line.startswith("    1 "):
                break
        process.send_signal(number)
        _, said = process.communicate(timeout=600)  # It does not wait for the epochs to come.
    assert (process.returncode, without_progress(said)) == (status, f"dalirefurb: {told}\n")


def test_a_signal_that_nohup_has_ignored_stays_ignored():
    program = """if True:
        import os, signal, sys
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        import dalirefurb.cli.outcome
        dalirefurb.cli.outcome.run = lambda _: os.kill(os.getpid(), signal.SIGHUP) or 7
        sys.argv = ["dalirefurb"]
        sys.exit(dalirefurb.cli.main())"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7


@pytest.fixture
def told(monkeypatch):
    """Progress is told at once."""
    monkeypatch.setattr("dalirefurb.cli.outcome._LEVEL", logging.INFO)
    monkeypatch.setattr("dalirefurb.cli.terminal._FIRST_S", 0.001)


def test_what_takes_long_is_told_into_a_pipe(photographs, capsys, told):
    assert main(["train", str(photographs), *SMALL, "--val-share", "0.25"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"^dalirefurb: starting the network and the loader \(\d+ s\)$", said, re.MULTILINE)
    assert re.search(r"^dalirefurb: epoch 0: batch \d of 3 \(\d+ s\)$", said, re.MULTILINE)
    assert re.search(r"^dalirefurb: validation: batch \d of 1 \(\d+ s\)$", said, re.MULTILINE)
    assert without_progress(said) == ""


def test_lines_of_progress_come_less_and_less_often(monkeypatch, caplog):
    monkeypatch.setattr(terminal, "_FIRST_S", 0.05)
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "dalirefurb"), terminal.waiting("testing", lambda: ": much"):
        while time.monotonic() < began + 0.6 or (not caplog.messages and time.monotonic() < began + 600):
            time.sleep(0.01)
    assert 1 <= len(caplog.messages) <= math.log2((time.monotonic() - began) / 0.05 + 1)
    assert all(re.fullmatch(r"testing: much \(\d+ s\)", message) for message in caplog.messages)
    assert not [thread for thread in threading.enumerate() if thread.name == "dalirefurb-progress"]


def test_what_is_done_soon_is_not_told(caplog):
    with caplog.at_level(logging.INFO, "dalirefurb"):
        assert [*terminal.counted(range(5), "testing", "number", 5)] == [0, 1, 2, 3, 4]
    assert caplog.messages == []


def test_the_log_is_as_it_was_after_a_command(tmp_path, capsys):
    log = logging.getLogger("dalirefurb")
    before = log.level, log.propagate, [*log.handlers]
    assert main([*PLAN, "--out", str(tmp_path / "plan.png")]) == 0
    assert main([*PLAN, "--batch-size", "999999", "--out", str(tmp_path / "plan.png")]) == 2
    assert (log.level, log.propagate, log.handlers) == before
    capsys.readouterr()


@pytest.mark.parametrize("mode", [[], pytest.param(["--operations"], marks=pytest.mark.weekly)])
def test_a_bad_image_is_left_out_of_a_picture(photographs, tmp_path, capsys, mode):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    bad = min((folder / "class_0").iterdir())
    bad.write_text("no image")
    assert main(["show", str(folder), "--size", "32", "--out", str(tmp_path / "a.png"), *mode]) == 0
    told = f"dalirefurb: warning: sample 0 ({bad}) is left out: not an image that can be decoded (of no format that"
    said = capsys.readouterr().err
    assert said.startswith(told)
    assert said.count("\n") == 1


def test_an_image_that_cannot_be_used_is_an_error_with_a_remedy(photographs, tmp_path, capsys):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    (folder / "class_1" / "bad.jpg").write_text("no image")
    _, line = error_of(capsys, "train", folder, *SMALL)
    assert line.endswith(
        "not an image that can be decoded (of no format that Pillow knows); --on-bad-sample replace goes on with "
        "another in its place"
    )


def places(folder):
    """Paths that are not what a command asks for."""
    (folder / "file").write_text("")
    (folder / "empty").mkdir()
    (folder / "no_images" / "class").mkdir(parents=True)
    (folder / "no_images" / "class" / "a.txt").write_text("no image")
    (folder / "no_classes").mkdir()
    (folder / "no_classes" / "a.jpg").write_text("no image")
    (folder / "one_bad" / "class").mkdir(parents=True)
    (folder / "one_bad" / "class" / "a.jpg").write_text("no image")
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "fifo")
    names = ["file", "empty", "no_images", "no_classes", "one_bad", "dangling", "loop", "missing", "pipe/fifo"]
    return [*(folder / name for name in [*names, "long" * 100]), Path("/dev/null"), Path("/proc/self/mem")]


COMMANDS = ["train {}", "show {}", "show {} --operations", "show {} --plan", "cache inspect {}", "cache verify {}"]
COMMANDS += [
    "cache purge {}",
    "demo --quick --folder {}/x",
    "train {} --on-bad-sample replace",
    "show --plan --out {}/x",
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_of_another_kind_is_one_line(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    for path in places(tmp_path):
        written = os.path.isdir(path) or path.name == "missing"  # noqa: PTH112 - it bears any name
        if (written and command.endswith("/x")) or (path.name == "one_bad" and "--plan" in command):
            continue
        status, line = error_of(
            capsys, *(each.format(path) for each in command.split(" ")), *SMALL[: 2 * ("train" in command)]
        )
        assert status in (1, 2), path
        assert "fault of dalirefurb" not in line, path
        assert len(line) < 2500


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(PLAN, marks=pytest.mark.weekly),
        pytest.param(["--help"], marks=pytest.mark.weekly),
        ["cache", "inspect", "x"],
    ],
)
def test_a_command_needs_no_home(tmp_path, arguments):
    command = [sys.executable, "-m", "dalirefurb", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=without_home(), capture_output=True, text=True)
    assert done.returncode == (2 if "cache" in arguments else 0)
    assert "Traceback" not in done.stderr


@pytest.mark.weekly  # A reader that has gone from the beginning is always tried, of commands that import less.
def test_a_training_of_which_only_the_first_line_is_read_ends_without_a_word(photographs):
    done = run_outside(["train", str(photographs), *SMALL, "--epochs", "50"], shell="| head -1; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (141, "")
    assert (
        done.stdout == "48 images in 3 classes, none of them to judge by (see --val-share); 3 batches of 16 an epoch\n"
    )


@pytest.mark.parametrize(
    ("arguments", "shell", "status", "said"),
    [
        (["--help"], "> /dev/full", 1, "standard output must be writable, but is not: No space left on device"),
        # Of commands that end with a line, too, one is tried weekly: it imports Matplotlib.
        pytest.param(
            [*PLAN, "--out", "/dev/null"],
            "> /dev/full",
            1,
            "standard output must be writable, but is not: No space left",
            marks=pytest.mark.weekly,
        ),
        (["--colour"], "2>&-", 2, ""),
        # Each stream is tried above, and each thing that may be wrong with it.
        pytest.param(
            ["train", "missing"], ">&-", 1, "standard output must be open, but is closed", marks=pytest.mark.weekly
        ),
        pytest.param(["train", "missing"], "2> /dev/full", 2, "", marks=pytest.mark.weekly),
        pytest.param(["--help"], ">&-", 1, "standard output must be open, but is closed", marks=pytest.mark.weekly),
        pytest.param(["train", "missing"], "2>&-", 2, "", marks=pytest.mark.weekly),
        pytest.param(["--colour"], "2> /dev/full", 2, "", marks=pytest.mark.weekly),
    ],
)
def test_a_stream_that_is_closed_or_full_costs_no_traceback(arguments, shell, status, said):
    done = run_outside(arguments, shell=shell)
    assert done.returncode == status
    assert done.stderr.count("\n") == (1 if said else 0)
    assert said in done.stderr


def test_a_picture_for_which_there_is_no_space_is_one_line(capsys):
    status, line = error_of(capsys, *PLAN, "--out", "/dev/full")
    assert status == 2
    assert "writing /dev/full fails: No space left on device; name another" in line


def test_no_file_becomes_a_stream_that_was_closed():
    program = "import os; from dalirefurb.cli.terminal import open_streams; open_streams(); print(os.open('/', 0))"
    command = f"{shlex.join([sys.executable, '-c', program])} <&- 2>&-"
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) > 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(
            pytest.param(each, marks=pytest.mark.weekly)
            for each in (["train", "--help"], [*PLAN, "--out", "/dev/null"])
        ),
    ],
)
def test_a_reader_that_has_gone_costs_no_traceback(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    done = run_outside(arguments, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


# Whether an interrupt is heeded or dropped, and before and after the first line: each is tried once.
@pytest.mark.parametrize(
    "module", ["numpy", *(pytest.param(each, marks=pytest.mark.weekly) for each in ("torch", "nvidia.dali"))]
)
def test_an_interrupt_while_something_is_imported_is_one_line(photographs, module):
    program = f"""if True:
        import os, signal, sys
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        from dalirefurb.cli import main, terminal
        sys.exit(main({["train", str(photographs), *SMALL]!r}))"""
    with interruptible([sys.executable, "-c", program]) as process:
        out, said = process.communicate(timeout=600)
    assert (process.returncode, without_progress(said)) == (130, "dalirefurb: interrupted\n")
    # What is asked for is told before anything heavy is imported.
    assert out.startswith(
        "48 images in 3 classes, none of them to judge by (see --val-share); 3 batches of 16 an epoch\n"
    ) == (module != "numpy")


@pytest.mark.weekly  # That an interrupt is heeded while something is imported is tried above.
@pytest.mark.parametrize("module", ["torch", "nvidia.dali"])
def test_an_interrupt_that_a_library_would_drop_while_it_is_imported_ends_the_command(photographs, module):
    program = f"""if True:
        import os, signal, sys
        class Dropping:
            def find_spec(self, name, path=None, target=None):
                try:
                    if name == {module!r}:
                        os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt:
                    pass
        sys.meta_path.insert(0, Dropping())
        from dalirefurb.cli import main
        sys.exit(main({["train", str(photographs), *SMALL]!r}))"""
    with interruptible([sys.executable, "-c", program]) as process:
        out, said = process.communicate(timeout=600)
    assert (process.returncode, without_progress(said)) == (130, "dalirefurb: interrupted\n")
    assert out == "48 images in 3 classes, none of them to judge by (see --val-share); 3 batches of 16 an epoch\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            MemoryError("Unable to allocate 7 TiB"),
            "there must be enough memory, but it is used up (Unable to allocate 7",
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "there must be enough memory, but"),
        (MemoryError(), "it is used up (no more can be had); ask for less"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "a\n\x1b.jpg"), r"a\n\x1b.jpg: Input/output error; see to it"),
        (OSError(errno.EIO, os.strerror(errno.EIO), b"a\xff.jpg"), r"error: a\udcff.jpg: Input/output error; see to"),
        (OSError(errno.EIO, os.strerror(errno.EIO), 7), "error: Input/output error; see to it, and start again"),
        (OSError("all\ngone"), "error: all gone; see to it, and start again"),
    ],
)
def test_what_the_machine_lacks_is_one_line(monkeypatch, tmp_path, capsys, error, said):
    monkeypatch.setattr("dalirefurb.show.plots.compare_plans", raising(error))
    status, line = error_of(capsys, *PLAN, "--out", tmp_path / "plan.png")
    assert status == 1
    assert said in line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConfigurationError(
                argument="batch_size", requirement="even", given="3", remedy="pass batch_size=4", in_code="pad=True"
            ),
            "--batch-size must be even, got 3: pass --batch-size 4",
        ),
        (ConfigurationError("must be no batch_size=3", argument="root"), "FOLDER must be no batch_size=3"),
        (
            ConfigurationError(argument="shards", requirement="1", given="2", remedy="pass shards=1"),
            "shards must be 1, got 2: pass shards=1",
        ),
        (
            OutOfMemoryError("epochs must fit in memory", remedy="use smaller images", in_code="a DiskStore"),
            "epochs must fit in memory: use smaller images",
        ),
    ],
)
def test_of_an_error_the_argument_and_the_remedy_are_told_in_options(monkeypatch, tmp_path, capsys, error, said):
    monkeypatch.setattr("dalirefurb.show.plots.compare_plans", raising(error))
    status, line = error_of(capsys, *PLAN, "--out", tmp_path / "plan.png")
    assert (status, line) == (2, f"dalirefurb: error: {said}")


def test_what_is_unforeseen_is_one_line_that_says_where_its_traceback_is(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("dalirefurb.show.plots.compare_plans", raising(TypeError("two\nlines")))
    status, line = error_of(capsys, *PLAN, "--out", tmp_path / "plan.png")
    assert status == 1
    assert "this is a fault of dalirefurb's: TypeError: two lines; please report it" in line
    kept = Path(re.search(r"with its traceback in (\S+)$", line)[1]).read_text()
    assert kept.startswith("Traceback (most recent call last):")
    assert "in _show_plan" in kept
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    status, line = error_of(capsys, *PLAN, "--out", tmp_path / "plan.png")
    assert (status, "please report it (its traceback could not be kept: [Errno 2] No such file" in line) == (1, True)


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_of_options(tmp_path, capsys):
    smartcache = ["--technique", "smartcache", "--batch-size", "8", "--num-cache-objects", "33"]
    assert main([*PLAN, *smartcache, "--out", str(tmp_path / "plan.png")]) == 0
    said = capsys.readouterr().err
    assert said.startswith(
        "dalirefurb: warning: --num-cache-objects 33 is no multiple of --batch-size 8, so the last batch of a round "
        "has 1 rows: pass --num-cache-objects 32"
    )
    assert said.count("\n") == 1


def test_what_dali_cannot_decode_is_decoded_by_pillow(photographs, tmp_path, capsys):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    Image.new("RGB", (40, 30)).save(folder / "class_1" / "really_a_gif.png", "GIF")
    assert main(["train", str(folder), *SMALL]) == 0
    assert "49 images in 3 classes" in capsys.readouterr().out


def test_images_held_out_are_judged_after_each_epoch_and_not_learned_from(photographs, capsys):
    assert main(["train", str(photographs), *SMALL, "--val-share", "0.25", "--epochs", "2"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    first, second = (line for line in lines if re.match(r" +\d", line))
    assert "48 images in 3 classes, 12 of them to judge by; 3 batches of 16 an epoch" in head
    for row in (first, second):
        epoch, _, hits, misses, *_, validation = row.split()
        assert int(hits) + int(misses) == 36, epoch
        share = 12 * float(validation.rstrip("%")) / 100
        assert abs(share - round(share)) < 0.01
    status, line = error_of(capsys, "train", photographs, *SMALL, "--val-share", 0.01)
    assert (status, "--val-share must leave images to judge by, but 0.01 of 48 is none" in line) == (2, True)


def test_bad_images_are_kept_in_a_quarantine_where_it_is_asked_for(photographs, tmp_path, capsys):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    bad = folder / "class_1" / "bad.jpg"
    bad.write_text("no image")
    quarantine = tmp_path / "bad.jsonl"
    assert main(["train", str(folder), *SMALL, "--on-bad-sample", "replace", "--quarantine", str(quarantine)]) == 0
    assert [json.loads(line)["name"] for line in quarantine.read_text().splitlines()] == [str(bad)]
    assert f"\n1 bad image, replaced by others:\n  {bad}: " in capsys.readouterr().out


def test_bad_images_to_judge_by_are_in_no_quarantine_so_that_a_second_run_takes_it(photographs, tmp_path, capsys):
    folder = shutil.copytree(photographs, tmp_path / "photographs")
    quarantine = tmp_path / "bad.jsonl"
    learned, _, _, judged = (ImageFolder(folder).name(index) for index in range(4))  # Every fourth is held out.
    for name in (learned, judged):
        Path(name).write_text("no image")
    arguments = [*SMALL, "--val-share", "0.25", "--on-bad-sample", "replace", "--quarantine", str(quarantine)]
    for _ in range(2):
        assert main(["train", str(folder), *arguments]) == 0
        assert [json.loads(line)["name"] for line in quarantine.read_text().splitlines()] == [learned]
    capsys.readouterr()


def test_an_image_is_too_large_where_it_is_said(photographs, capsys):
    status, line = error_of(capsys, "train", photographs, *SMALL, "--max-pixels", 1000)
    assert status == 1
    assert re.search(r"1,000 pixels at most, but its header declares \d+ x \d+: pass --max-pixels \d+ if", line)


@pytest.mark.parametrize("kernels", ["numba", "dali"])
def test_training_augments_with_the_kernels_asked_for(photographs, capsys, monkeypatch, kernels):
    made = []
    usual = Loader.__init__
    monkeypatch.setattr(
        Loader, "__init__", lambda self, *args, **given: (made.append(given), usual(self, *args, **given))[1]
    )
    assert main(["train", str(photographs), *SMALL, "--epochs", "1", "--kernels", kernels]) == 0
    assert [given["kernels"] for given in made] == [kernels]
    capsys.readouterr()


def test_kernels_that_are_not_installed_are_one_line(photographs, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "numba", None)
    status, line = error_of(capsys, "train", photographs, "--kernels", "numba")
    assert status == 2
    assert "--kernels numba needs Numba, which is not installed: pip install numba" in line


@pytest.mark.parametrize("earlier", [None, b"an earlier one"])
def test_a_picture_that_cannot_be_written_whole_is_not_there(tmp_path, capsys, earlier):
    if earlier is not None:
        (tmp_path / "plan.png").write_bytes(earlier)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        status, line = error_of(capsys, *PLAN, "--out", tmp_path / "plan.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert status == 2
    assert "plan.png fails: File too large; name another with --out" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["[1, 2]", "{", "\udcff", "7"])
def test_a_folder_whose_description_is_another_kind_of_file_is_not_the_demos(tmp_path, capsys, content):
    (tmp_path / "dalirefurb-demo.json").write_text(content, errors="surrogateescape")
    status, line = error_of(capsys, "demo", "--quick", "--folder", tmp_path)
    assert status == 2
    assert f"{tmp_path} holds other files; name another or delete it" in line
