"""Kernels are compiled whatever is wrong with the disk that keeps them: a full one, damaged files, no folder."""

from __future__ import annotations

import gc
import io
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import dalirefurb

pytest.importorskip("numba")

KEEPING = """
import resource, sys
from numba import types
from dalirefurb.kernels import llvm

def doubled(number):
    return 2 * number

def halved(number):
    return number // 2

if "changed" in sys.argv:
    llvm.source_digest = lambda: 0
if "full" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
numbers = types.int64(types.int64)
called, of_c = llvm.kept(doubled, numbers), llvm.c_function(halved, numbers)
print(called(21), of_c.ctypes(14), sum(called.stats.cache_hits.values()), of_c.cache_hits)
"""
COMPILED, LOADED = "42 7 0 0", "42 7 1 1"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two functions to compile, beside which Numba can keep nothing."""
    folder = tmp_path_factory.mktemp("keeping")
    for name in ("__pycache__", "numba"):
        (folder / name).touch()
    script = folder / "keeping.py"
    script.write_text(KEEPING)
    return script


@pytest.fixture(scope="module")
def kept(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is on disk after they were compiled once."""
    folder = tmp_path_factory.mktemp("kept")
    assert carry_out(script, folder) == COMPILED
    return folder


def carry_out(script: Path, folder: Path, *arguments: str) -> str:
    """Compile both, and say what they return, and how many were loaded from disk.

    In a process of its own: Numba chooses a folder once, and a limit on files holds for a whole process.
    """
    where = {
        "NUMBA_CACHE_DIR": str(folder),
        "XDG_CACHE_HOME": str(script.parent),
        "PYTHONPATH": str(Path(dalirefurb.__file__).parents[1]),
    }
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=os.environ | where, check=True, capture_output=True, text=True, timeout=900)
    return done.stdout.strip()


def files(folder: Path, ending: str) -> list[Path]:
    found = [*folder.rglob(f"*.{ending}")]
    assert len(found) == 2
    return found


def halve(paths: list[Path]) -> None:
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])


def take_names(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()
        path.mkdir()


def take_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def test_kernels_are_loaded_where_they_were_kept(script: Path, kept: Path) -> None:
    assert carry_out(script, kept) == LOADED


def test_kernels_are_compiled_where_files_of_what_they_call_have_changed(
    script: Path, kept: Path, tmp_path: Path
) -> None:
    assert carry_out(script, shutil.copytree(kept, tmp_path / "kept"), "changed") == COMPILED


@pytest.mark.weekly  # It starts a process, as the one above.
def test_kernels_are_compiled_where_the_disk_is_full(script: Path, tmp_path: Path) -> None:
    assert carry_out(script, tmp_path, "full") == COMPILED
    assert not [*tmp_path.rglob("*.nb*")]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: halve(files(folder, "nbi")), id="half an index", marks=pytest.mark.weekly),
        pytest.param(lambda folder: halve(files(folder, "nbc")), id="half of the code", marks=pytest.mark.weekly),
        pytest.param(
            lambda folder: take_names(files(folder, "nbi")),
            id="a folder at an index's place",
            marks=pytest.mark.weekly,
        ),
        pytest.param(take_folder, id="no folder that can be written", marks=pytest.mark.weekly),
    ],
)
def test_kernels_are_compiled_where_what_was_kept_is_of_no_use(
    damage: Callable[[Path], None], script: Path, kept: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(kept, tmp_path / "kept")
    damage(copied)
    assert carry_out(script, copied) == COMPILED


@pytest.mark.parametrize(
    "name", ["kernels/pixels/levels.py", "augment/policies/operations.py", "image_batch.py", "rng.py"]
)
def test_what_was_kept_is_of_no_use_where_a_number_of_the_kernels_has_changed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dalirefurb.kernels import llvm

    before, read = llvm.source_digest.__wrapped__(), Path.read_bytes

    def changed(path: Path) -> bytes:
        return read(path) + b"#" * (path.as_posix().endswith(f"dalirefurb/{name}"))

    monkeypatch.setattr(Path, "read_bytes", changed)
    assert llvm.source_digest.__wrapped__() != before


def test_what_cannot_be_kept_is_compiled_as_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from dalirefurb.kernels import llvm

    asked: list[dict[str, object]] = []

    def compiler(signature: object, **options: object) -> Callable[..., object]:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(llvm, "njit", compiler)
    assert llvm.kept(halve, "a signature") is halve
    kept, not_kept = asked
    assert kept == {**not_kept, "cache": True}
    assert not_kept == {"nogil": True, "error_model": "numpy"}


def test_as_many_are_kept_as_there_are_functions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each has an index, and code for each kind of its arguments."""
    from dalirefurb.kernels import ahead

    for name in ("one.nbi", "one.1.nbc", "one.2.nbc", "other.nbi", "other.1.nbc"):
        (tmp_path / name).touch()
    monkeypatch.setattr(ahead, "FunctionCache", lambda function: SimpleNamespace(cache_path=str(tmp_path)))
    assert ahead.kept_kernels() == (tmp_path, 2)

    def nowhere(function: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(ahead, "FunctionCache", nowhere)
    assert ahead.kept_kernels() == (None, 0)


class Terminal(io.StringIO):
    """What says of itself that somebody sits there."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "handlers"), [(Terminal, 0), (io.StringIO, 0), (Terminal, 1)])
def test_who_sits_at_a_terminal_is_told_of_slow_compiling_once(
    kind: type[io.StringIO], handlers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless the log is shown, as by the command line."""
    from numba import types

    from dalirefurb.kernels import llvm

    llvm._say_once.cache_clear()
    monkeypatch.setattr(llvm, "_SLOW_S", 0.0)
    monkeypatch.setattr(sys, "stderr", shown := kind())
    monkeypatch.setattr(logging.getLogger("dalirefurb"), "handlers", [logging.NullHandler()] * handlers)
    with caplog.at_level("INFO", "dalirefurb"):
        for number in (3, 4):

            def multiplied(value: int, number: int = number) -> int:
                return number * value

            compiled = llvm.kept(multiplied, types.int64(types.int64, types.int64))
            assert compiled(7, number) == 7 * number
    said = ["dalirefurb compiles its kernels for this processor, once: this can take a minute"]
    assert caplog.messages == said
    assert shown.getvalue().splitlines() == (said if kind is Terminal and not handlers else [])


@pytest.mark.parametrize("how", ["as usual", "failing", "one core", "inside of a program", "frozen", "kept"])
def test_another_process_compiles_from_the_other_end_where_there_is_a_core_and_an_interpreter(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dalirefurb.kernels import ahead

    compiled: list[str] = []
    begun: list[list[str]] = []

    class Child:
        def __init__(self, command: list[str], **_: object) -> None:
            if how == "failing":
                raise FileNotFoundError(2, "No such file")
            begun.append(command)

        def terminate(self) -> None:
            assert compiled == names
            begun.append(["told to end"])

        def wait(self) -> None:
            begun.append(["waited for"])

    def compile_named(name: str) -> SimpleNamespace:
        compiled.append(name)
        return SimpleNamespace(cache_hits=int(how == "kept"))

    names = ["rows", "one", "two", "three"]
    monkeypatch.setattr(ahead, "compile_named", compile_named)
    monkeypatch.setattr(ahead, "usable_cores", lambda: 1 if how == "one core" else 2)
    monkeypatch.setattr(ahead.subprocess, "Popen", Child)
    if how == "inside of a program":
        monkeypatch.setattr(sys, "executable", "/opt/app/trainer")
    if how == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    ahead._compile_all(names)
    assert compiled == names
    if how == "as usual":
        command, *last = begun
        assert command[0] == sys.executable
        assert command[3:] == ["three", "two", "one"]
        assert last == [["told to end"], ["waited for"]]
    else:
        assert begun == []


def test_all_that_any_loader_needs_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from dalirefurb.kernels import ahead, pipelines, rows
    from dalirefurb.kernels.kernel import kernel_names
    from dalirefurb.kernels.normalize import OUTPUTS

    compiled: list[str] = []
    monkeypatch.setattr(ahead, "_compile_all", compiled.extend)
    monkeypatch.setattr(pipelines, "compile_operator", lambda: compiled.append("operator"))
    monkeypatch.setattr(rows, "compile_pool", lambda: compiled.append("pool"))
    folder = ahead.compile_ahead()
    assert folder is None or folder == ahead.kept_kernels()[0]
    kernels, outputs = (f"kernel {name}" for name in kernel_names()), (f"output {name}" for name in OUTPUTS)
    assert sorted(compiled) == sorted(["rows", "mix", "walk", *kernels, *outputs, "operator", "pool"])


def test_a_loaders_own_kernels_are_compiled_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of both parts, each once, and what makes its output; of a part that DALI does there are none."""
    from dalirefurb.augment import Custom, Equalize, HorizontalFlip, Invert, RandomCrop, Stage
    from dalirefurb.augment.output import Output
    from dalirefurb.kernels import ahead

    compiled: list[list[str]] = []
    monkeypatch.setattr(ahead, "_compile_all", compiled.append)
    always = ["rows", "mix", "walk"]
    crop, equalize, invert = "kernel crop_flip.crop", "kernel levels.equalize", "kernel levels.solarize"
    own = Custom(lambda images: images, "own")
    cases: list[tuple[tuple[Stage, ...], tuple[Stage, ...], Output | None, list[str]]] = [
        ((RandomCrop(8), Equalize()), (Invert(), RandomCrop(6, name="x")), None, [crop, equalize, invert]),
        ((own,), (Invert(),), Output(8), ["output floats", invert]),
        ((Equalize(),), (HorizontalFlip(), own), Output(8, "float16"), ["output half_planes", equalize]),
    ]
    for partial, final, output, needed in cases:
        ahead.compile_for(partial, final, output)
        assert compiled.pop() == [*always, *needed]


COMPILING = """
import threading
import numba
from dalirefurb.kernels import llvm
from dalirefurb.kernels.ahead import compile_named
from dalirefurb.kernels.pipelines import _compile_operate, _compile_setup
from dalirefurb.kernels.rows import compile_run
from dalirefurb.kernels.rows import _compile_serve, _compile_share

assert numba.version_info.short in llvm._TRIED_WITH, "kernels compile slowly with this version of Numba"
before = {name: getattr(owner, name) for owner, name, _ in llvm._changes("")}
sums = []

@numba.njit
def largest(numbers):
    return max(numbers.sum(), numbers[0])

def another():
    import numpy as np
    sums.append(largest(np.arange(5)))

calls = [_compile_operate, _compile_setup, compile_run, _compile_serve, _compile_share, another]
threads = [threading.Thread(target=call) for call in calls]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
names = ["rows", "mix", "walk", "kernel levels.solarize", "output half_planes"]
others = [compile_named(name) for name in names]
another()
middle = numba.njit(lambda one, other: max(one, other) + min(one, other))
assert (sums, middle(3, 4)) == ([10, 10], 7)
assert {name: getattr(owner, name) for owner, name, _ in llvm._changes("")} == before
addresses = {call().address for call in calls[:-1]}
print(len(addresses), 0 in addresses)
"""


@pytest.mark.weekly  # It compiles most of the kernels anew.
def test_threads_that_compile_at_the_same_time_get_functions_that_are_whole(tmp_path: Path) -> None:
    script = tmp_path / "compiling.py"
    script.write_text(COMPILING)
    assert carry_out(script, tmp_path / "kept") == "5 False"


@pytest.mark.parametrize("collecting", [True, False])
def test_whether_garbage_is_collected_stays_as_it_was(collecting: bool) -> None:
    from numba import types

    from dalirefurb.kernels.llvm import c_function_not_kept

    try:
        (gc.enable if collecting else gc.disable)()
        assert c_function_not_kept(lambda number: number + 1, types.int64(types.int64)).ctypes(6) == 7
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
