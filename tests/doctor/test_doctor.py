"""The doctor finds what is wrong, says what to do about it, and never fails itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from dalirefurb.cli import main
from dalirefurb.doctor import Finding, examine, findings
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.resources import amount
from tests.pictures import picture, write_folder

GB = 1 << 20
"""In the units of /proc/meminfo."""


def of(topic: str, findings: Iterator[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.topic == topic]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with plenty of everything, and nothing else to do."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {64 * GB} kB\nMemAvailable: {48 * GB} kB\nSwapTotal: {8 * GB} kB\nSwapFree: {8 * GB} kB\n"
    )
    (tmp_path / "proc/stat").write_text("cpu  100 0 50 9000 0 0 0 0 0 0\n")
    return tmp_path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed, to be changed."""
    there = {"nvidia-dali-cuda120": "2.4.0", "torch": "2.11.0+cu130", "numpy": "2.1.0", "numba": "0.68.1"}
    monkeypatch.setattr(findings, "_installed", lambda: there)
    monkeypatch.setattr(findings, "_of_torch", lambda: 12)
    return there


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan 7 2025\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for {}  {{}}  Release Build  (builder@host)  Tue Jan 7 2025\n"


def with_driver(root: Path, version: str, *, said: str = CLOSED) -> Path:
    where = root / "proc/driver/nvidia"
    where.mkdir(parents=True)
    (where / "version").write_text(said.format(version))
    return root


# Packages


def test_what_fits_together_is_good(installed: dict[str, str], root: Path) -> None:
    installed["cupy-cuda12x"] = "14.0.0"
    found = [*findings.versions(), *findings.cuda(with_driver(root, "570.86.15"))]
    assert [finding.state for finding in found] == ["good", "good"]
    assert "nvidia-dali-cuda120 2.4.0" in found[0].said
    assert found[1].said == "driver 570, for CUDA 12 and older"
    built = {"nvidia-dali-cuda120": 12, "cupy-cuda12x": 12, "torch": 12}
    assert found[1].values == built | {"driver": "570"}
    installed.pop("cupy-cuda12x")
    _, missing = findings.cuda(root)
    assert (missing.state, missing.said) == ("note", "CuPy is not installed")
    assert missing.remedy.startswith("for a DeviceStore: ")


def test_versions_of_all_that_counts_are_told(installed: dict[str, str]) -> None:
    others = {"cupy": "14.0.0", "pillow": "12.0", "matplotlib": "3.10", "zstandard": "0.25"}
    installed.update(others | {"scipy": "1.16", "nvidia-dali-cuda130": "2.4.0"})
    first, *_ = findings.versions()
    *known, _, _, _, _ = first.values
    assert known == ["python", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "torch", "numpy", "numba"]
    assert first.values.items() >= others.items()
    told = ", numba 0.68.1, cupy 14.0.0, pillow 12.0, matplotlib 3.10, zstandard 0.25; "
    assert f"torch 2.11.0+cu130, numpy 2.1.0{told}" in first.said
    assert "scipy" not in first.said


def test_without_numba_a_loader_is_slower_and_no_kernels_are_looked_for(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings.importlib.util, "find_spec", lambda name: None)
    (finding,) = of("kernels", findings.versions())
    assert (finding.state, finding.said) == ("slow", "Numba is not installed, so DALI's operators do everything")
    assert finding.remedy.startswith("pip install numba")
    assert [*findings.kernels()] == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_an_open_driver_is_one(installed: dict[str, str], root: Path, machine: str) -> None:
    found, *_ = findings.cuda(with_driver(root, "570.86.15", said=OPEN.format(machine)))
    assert (found.state, found.said) == ("good", "driver 570, for CUDA 12 and older")


def test_two_wheels_of_dali_are_wrong_and_so_is_none(installed: dict[str, str]) -> None:
    installed["nvidia-dali-cuda130"] = "2.4.0"
    (finding,) = of("DALI", findings.versions())
    assert finding.state == "wrong"
    assert "nvidia-dali-cuda120 and nvidia-dali-cuda130" in finding.said
    assert "they share a folder" in finding.remedy
    installed.pop("nvidia-dali-cuda120")
    installed.pop("nvidia-dali-cuda130")
    assert of("DALI", findings.versions())[0].said.endswith("there is none")


@pytest.mark.parametrize(("version", "sign"), [("2.5.0", "<2.5"), ("2.5", "<2.5"), ("2.3.1", ">=2.4")])
def test_a_version_outside_of_the_projects_bounds_is_wrong(
    installed: dict[str, str], version: str, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ["nvidia-dali-cuda120<2.5,>=2.4", "torch>=2.4", "cupy-cuda12x[ctk]>=99; extra == 'gpu'"]
    monkeypatch.setattr(findings.metadata, "requires", lambda _: needed)
    installed.update({"nvidia-dali-cuda120": version, "cupy-cuda12x": "14.0.0"})
    (finding,) = (each for each in findings.versions() if each.state == "wrong")
    assert finding.said == f"nvidia-dali-cuda120 must be {sign}, but {version} is installed"
    assert finding.remedy.startswith("pip install 'nvidia-dali-cuda120")


def test_a_version_is_at_its_bound_however_many_zeros_either_has(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings.metadata, "requires", lambda _: ["numpy>=2.1.0,<2.2"])
    for version in ("2.1", "2.1.0"):
        installed["numpy"] = version
        assert of("numpy", findings.versions()) == []
    monkeypatch.setattr(findings.metadata, "requires", lambda _: ["torch<2.11.5", "numpy>=2.1.1"])
    installed["torch"] = "2.11+cu130"  # What follows the sign is of the build.
    assert [finding.topic for finding in findings.versions() if finding.state == "wrong"] == ["numpy"]


def test_a_numpy_that_is_too_new_for_numba_is_wrong(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"dalirefurb": ["numpy>=1.26"], "numba": ["numpy<2.6,>=1.22", "llvmlite<0.51,>=0.50.0dev0"]}
    monkeypatch.setattr(findings.metadata, "requires", needed.__getitem__)
    assert of("numpy", findings.versions()) == []
    installed["numpy"] = "2.6.0"
    (finding,) = of("numpy", findings.versions())
    assert (finding.state, finding.said) == ("wrong", "numpy must be <2.6, but 2.6.0 is installed")
    installed.pop("numba")
    assert of("numpy", findings.versions()) == []


def test_a_driver_that_is_too_old_and_packages_of_different_cuda_are_wrong(
    installed: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_of_torch", lambda: 13)
    installed["cupy-cuda13x"] = "14.0.0"
    found = [finding for finding in findings.cuda(with_driver(root, "550.54.14")) if finding.state == "wrong"]
    assert [finding.said for finding in found] == [
        "cupy-cuda13x is built for CUDA 13, but the driver is for CUDA 12",
        "torch is built for CUDA 13, but the driver is for CUDA 12",
        "CuPy is built for CUDA 13, and DALI for CUDA 12",
    ]


@pytest.mark.parametrize(
    ("driver", "newest"), [("580", 13), ("579", 12), ("525", 12), ("524", 11), ("450", 11), ("449", 10)]
)
def test_each_driver_is_for_the_cuda_that_nvidias_table_has(
    driver: str, newest: int, installed: dict[str, str], root: Path
) -> None:
    found, *_ = findings.cuda(with_driver(root, f"{driver}.10.11"))
    assert found.said == f"driver {driver}, for CUDA {newest} and older"


@pytest.mark.parametrize(
    ("version", "cuda"),
    [("cuda: Optional[str] = '12.8'", 12), ("cuda = '13.0'", 13), ("cuda: Optional[str] = None", None), ("", None)],
)
def test_the_cuda_of_pytorch_is_read_in_its_files(
    version: str, cuda: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.9.0+cu99'\nnot_cuda = '7.1'\n{version}\nhip = '6.1'\n")
    there = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(findings.importlib.util, "find_spec", lambda name: there)
    assert findings._of_torch() == cuda
    monkeypatch.setattr(findings.importlib.util, "find_spec", lambda name: None)
    assert findings._of_torch() is None


def test_two_wheels_of_cupy_are_both_named(installed: dict[str, str], root: Path) -> None:
    installed.update({"cupy-cuda12x": "14.0.0", "cupy-cuda13x": "14.0.0"})
    found = [finding.said for finding in findings.cuda(with_driver(root, "580.65.06")) if finding.state == "wrong"]
    assert found == ["CuPy is built for CUDA 12 and 13, and DALI for CUDA 12"]


def test_a_cupy_without_a_wheel_of_dali_is_no_contradiction(installed: dict[str, str], root: Path) -> None:
    installed.pop("nvidia-dali-cuda120")
    installed["cupy-cuda12x"] = "14.0.0"
    assert [finding.state for finding in findings.cuda(with_driver(root, "570.86.15"))] == ["good"]


def test_versions_are_of_what_is_imported_first_by_the_names_that_others_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [("Torch", "2.9"), ("torch", "2.8"), ("Pillow", "12.0"), ("nvidia_dali_cuda120", "2.4.0"), (None, "1")]
    made = [SimpleNamespace(metadata={"Name": name}, version=version) for name, version in there]
    monkeypatch.setattr(findings.metadata, "distributions", lambda: made)
    assert findings._installed() == {"torch": "2.9", "pillow": "12.0", "nvidia-dali-cuda120": "2.4.0"}
    monkeypatch.setattr(findings.metadata, "requires", lambda _: ())
    first, *_ = findings.versions()
    assert "nvidia-dali-cuda120 2.4.0, torch 2.9, pillow 12.0; " in first.said


def test_a_pytorch_for_the_cpu_beside_a_gpu_is_told(
    installed: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_of_torch", lambda: None)
    found = [finding for finding in findings.cuda(with_driver(root, "570.86.15")) if finding.state == "slow"]
    assert [finding.said for finding in found] == ["PyTorch is built for the CPU alone"]


def test_a_machine_without_a_driver_runs_on_the_cpu(installed: dict[str, str], root: Path) -> None:
    (finding,) = findings.cuda(root)
    assert (finding.state, finding.said) == ("note", "there is no NVIDIA driver: all runs on the CPU")


# Kernels


@pytest.mark.parametrize(
    ("folder", "kept", "states", "said"),
    [
        (None, 0, ["slow"], "there is no folder where compiled kernels can be kept"),
        (Path("/k"), 0, ["note"], "none is compiled yet; the first loader does it, and keeps them in /k"),
        (Path("/k"), 7, ["good"], "7 compiled functions are kept in /k"),
    ],
)
def test_it_is_told_whether_kernels_are_compiled_and_kept(
    folder: Path | None, kept: int, states: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalirefurb.kernels.ahead.kept_kernels", lambda: (folder, kept))
    monkeypatch.setattr(findings.sys, "gettrace", lambda: None)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    found = [*findings.kernels()]
    assert [finding.state for finding in found] == states
    assert found[0].said.startswith(said)
    assert found[0].values == {"folder": None if folder is None else "/k", "kept": kept}
    monkeypatch.delenv("NUMBA_DISABLE_JIT")
    assert [finding.state for finding in findings.kernels()] == states
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setattr(findings.sys, "gettrace", lambda: len)
    assert [finding.state for finding in findings.kernels()] == [*states, "wrong", "note"]


# The machine


def test_processes_beside_and_a_host_that_takes_cores_away_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(_: float) -> None:
        (root / "proc/stat").write_text("cpu  400 0 50 9000 0 0 0 200 0 0\n")

    monkeypatch.setattr(findings.time, "sleep", later)
    times = iter([9.0, 10.0])
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(times))
    load, host = findings.load(root)
    assert (load.state, load.said) == ("slow", "keep 3.0 cores busy")
    assert (host.state, host.said) == ("slow", "its host takes 2.0 of its cores for others")


@pytest.mark.parametrize(
    ("busy", "stolen", "own_s", "states", "values"),
    [
        (100, 0, 0.0, ["slow"], (0.5, 0.0)),
        (100, 0, 0.6, ["good"], (0.2, 0.0)),  # What the doctor takes itself.
        (100, 0, 1.4, ["good"], (0.0, 0.0)),  # It is counted more finely.
        (48, 0, 0.0, ["good"], (0.24, 0.0)),
        (0, 52, 0.0, ["good", "slow"], (0.0, 0.26)),
        (0, 48, 0.0, ["good"], (0.0, 0.24)),
    ],
)
def test_a_quarter_of_a_core_is_told(
    busy: int,
    stolen: int,
    own_s: float,
    states: list[str],
    values: tuple[float, float],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In two seconds; the system counts hundredths of them."""

    def later(_: float) -> None:
        (root / "proc/stat").write_text(f"cpu  {100 + busy} 0 50 9000 0 0 0 {stolen} 0 0\n")

    monkeypatch.setattr(findings.time, "sleep", later)
    times, own = iter([5.0, 7.0]), iter([(1.0, 0.0, 0.0, 0.0, 9.0), (1.0 + own_s, 0.0, 0.0, 0.0, 11.0)])
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(findings.os, "times", lambda: next(own))
    found = [*findings.load(root)]
    assert [finding.state for finding in found] == states
    assert (found[0].values["busy_cores"], found[0].values["stolen_cores"]) == values


@pytest.mark.parametrize(
    ("usable", "affinity", "said"),
    [
        (2, 2, "the process's affinity says so"),
        (2, 4, "the CPU quota of its control group says so"),
        (2, 8, "the CPU quota of its control group says so"),
        (8, 8, "8 of 8"),
    ],
)
def test_what_limits_the_cores_is_told(usable: int, affinity: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "usable_cores", lambda: usable)
    monkeypatch.setattr(findings.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(findings.os, "sched_getaffinity", lambda _: set(range(affinity)))
    (finding,) = findings.cores()
    assert said in finding.said
    assert finding.values == {"usable_cores": usable, "cores": 8, "affinity_cores": affinity}
    assert (finding.state, bool(finding.remedy)) == (("note", True) if usable < 8 else ("good", False))


@pytest.mark.parametrize(("cores", "state"), [(1, "slow"), (2, "good")])
def test_one_core_is_too_few(cores: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "usable_cores", lambda: cores)
    monkeypatch.setattr(findings.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(findings.os, "sched_getaffinity", lambda _: set(range(cores)))
    (finding,) = findings.cores()
    assert finding.state == state
    assert ("give the process two or more" in finding.remedy) == (state == "slow")


def test_a_machine_at_rest_is_good(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.time, "sleep", lambda _: None)
    (finding,) = findings.load(root)
    assert (finding.state, finding.values["busy_cores"]) == ("good", 0.0)


@pytest.mark.parametrize(
    ("available", "state"), [(0, "slow"), (1 * GB, "slow"), (1_953_124, "slow"), (1_953_125, "good")]
)
def test_little_memory_is_told(root: Path, available: int, state: str) -> None:
    (root / "proc/meminfo").write_text(f"MemAvailable: {available} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    (finding,) = findings.memory(root)
    assert finding.state == state
    assert finding.values["available_bytes"] == available * 1024


def test_swapping_is_told(root: Path) -> None:
    (root / "proc/meminfo").write_text(f"MemAvailable: {9 * GB} kB\nSwapTotal: {8 * GB} kB\nSwapFree: {3 * GB} kB\n")
    _, finding = findings.memory(root)
    assert (finding.state, finding.said) == ("slow", "5.37 GB are swapped out")
    assert finding.values == {"swapped_bytes": 5 * GB * 1024}
    (root / "proc/meminfo").write_text(f"MemAvailable: {9 * GB} kB\nSwapTotal: {8 * GB} kB\nSwapFree: {7 * GB} kB\n")
    assert len([*findings.memory(root)]) == 1


def test_what_the_system_does_not_tell_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.time, "sleep", lambda _: None)
    assert [finding.state for finding in (*findings.load(tmp_path), *findings.memory(tmp_path))] == ["unknown"] * 2


# Storage


def test_a_data_set_in_the_page_cache_is_told(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", num_samples=6)
    for path in folder.rglob("*.jpg"):
        path.read_bytes()
    finding, *_ = findings.data_set(folder)
    share = finding.values.get("page_cache_share")
    if share is None:
        pytest.skip("the temporary folder's file system does not say what is in the page cache")
    assert (share, finding.state) == (1.0, "note")
    assert finding.said == "100% of 6 of its files is in the page cache"


def test_a_data_set_on_the_disk_is_measured(tmp_path: Path, page_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "images", num_samples=6)
    monkeypatch.setattr(findings, "is_cached", lambda *_: False)
    first, second, *_ = findings.data_set(folder)
    assert (first.state, first.values["page_cache_share"]) == ("good", 0.0)
    assert float(second.values["files_per_s"] or 0) > 0


def test_files_of_which_nothing_is_known_are_not_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "images", num_samples=6)
    first, second, third, *_ = (path for path in folder.rglob("*") if path.is_file())
    first.write_bytes(b"")
    read: list[Path] = []
    monkeypatch.setattr(findings, "_cached_share", {first: None, second: 0.0, third: 0.5}.get)
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), whole(path))[1])
    told, measured, *_ = findings.data_set(folder)
    assert told.said.startswith("25% of 2 of its files")
    assert read[0] == second
    assert measured.values["files_per_s"]


def test_a_slow_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "disk_speeds", lambda _: (5e7, 4e7, 5e9))
    (finding,) = findings.temporary_folder()
    assert finding.state == "slow"
    said = "written at 50.00 MB/s, read at 40.00 MB/s from the disk and at 5.00 GB/s from the page cache"
    assert said in finding.said
    assert finding.remedy.startswith("put a DiskStore on a local disk that is faster")
    assert [*finding.values.values()][1:] == [5e7, 4e7, 5e9]
    assert [*finding.values][1:] == ["write_bytes_per_s", "read_bytes_per_s", "page_cache_bytes_per_s"]
    monkeypatch.setattr(findings, "disk_speeds", lambda _: (5e7, 1e8, 5e9))
    (finding,) = findings.temporary_folder()
    assert (finding.state, finding.remedy) == ("good", "")


def test_shared_memory_is_as_fast_as_it_was_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "disk_speeds", lambda _: (1e9, 2e9, 3e9))
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    monkeypatch.setattr(findings.Path, "is_dir", lambda _: True)
    (finding,) = findings.shared_memory()
    assert finding.said.startswith("64.00 MB free, written at 1.00 GB/s and read at 2.00 GB/s; ")
    assert finding.values == {"free_bytes": 64_000_000, "write_bytes_per_s": 1e9, "read_bytes_per_s": 2e9}
    monkeypatch.setattr(findings.Path, "is_dir", lambda _: False)
    assert [finding.state for finding in findings.shared_memory()] == ["note"]


def test_speeds_are_bytes_a_second_of_a_file_that_is_dropped_from_the_page_cache_and_takes_half_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock takes a tenth of a second: of 16 MB 8 are written, and read twice."""
    clock = count(90)
    dropped: list[int] = []
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(clock) / 10)
    monkeypatch.setattr(findings.os, "posix_fadvise", lambda *given: dropped.append(given[3]))
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda _: SimpleNamespace(free=16 << 20))
    written, *read = findings.disk_speeds(tmp_path)
    assert written == pytest.approx((8 << 20) / 0.2)
    assert read == [pytest.approx((8 << 20) / 0.3)] * 2  # The end of the file is found at another look.
    assert dropped == [findings.os.POSIX_FADV_DONTNEED]
    # However much room there is, no more than a quarter of a GB; here of 12 MB, which take three looks.
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr(findings, "_MOST_BYTES", 12 << 20)
    assert findings.disk_speeds(tmp_path)[0] == pytest.approx((12 << 20) / 0.3)


def test_a_quarter_of_a_gigabyte_is_written_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    class File(BytesIO):
        def write(self, content: bytes) -> int:  # type: ignore[override]
            written.append(len(content))
            return super().write(b"some") if len(written) == 1 else 0

        def fileno(self) -> int:
            return 0

    clock = count(9000)
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(clock) / 1000)
    monkeypatch.setattr(findings.tempfile, "TemporaryFile", lambda **_: File())
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda _: SimpleNamespace(free=8 << 40))
    for name in ("fdatasync", "posix_fadvise"):
        monkeypatch.setattr(findings.os, name, lambda *_: None)
    findings.disk_speeds(tmp_path)
    assert sum(written) == 256 << 20


def test_a_file_is_looked_for_in_the_page_cache_at_its_beginning_middle_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, bool | None] = {0: True, 5000: False, 9999: False}
    (tmp_path / "a").write_bytes(bytes(10_000))
    monkeypatch.setattr(findings, "is_cached", lambda _, place: held[place])
    assert findings._cached_share(tmp_path / "a") == pytest.approx(1 / 3)
    held[5000] = None
    assert findings._cached_share(tmp_path / "a") == 0.5
    held.update({0: None, 9999: None})
    assert findings._cached_share(tmp_path / "a") is None
    (tmp_path / "a").write_bytes(b"")
    assert findings._cached_share(tmp_path / "a") is None


def test_speeds_are_of_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    assert min(findings.disk_speeds(tmp_path)) > 0
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_writes_slowly_is_not_written_to_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(findings.os, "fdatasync", flushed.append)
    monkeypatch.setattr(findings, "_LONGEST_S", 1e-9)
    assert min(findings.disk_speeds(tmp_path)) > 0
    assert len(flushed) == 1


@pytest.mark.parametrize(("cached", "state", "share"), [(3, "note", 0.5), (2, "good", 0.333)])
def test_of_a_data_set_half_of_which_is_in_the_page_cache_that_is_told_and_what_is_not_is_read(
    cached: int, state: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is there in part is neither."""
    folder = write_folder(tmp_path / "images", num_samples=6)
    files = sorted(folder.rglob("*.jpg"))
    files[0].rename(files[0].with_suffix(".JPG"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    shares = dict.fromkeys(files, 0.0) | dict.fromkeys(files[: cached + 1], 1.0) | {files[0]: 0.25, files[1]: 0.75}
    read: list[Path] = []
    whole = Path.read_bytes
    monkeypatch.setattr(findings, "_cached_share", shares.get)
    monkeypatch.setattr(findings, "_kinds", lambda _: ())
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), whole(path))[1])
    clock = iter([9.0, 9.5, 11.0, 11.0])
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(clock))
    told, measured = findings.data_set(folder)
    assert (told.state, told.values["page_cache_share"]) == (state, share)
    assert set(read) <= {path for path in files if not shares[path]}
    nbytes = sum(path.stat().st_size for path in read)
    assert len(read) == 2
    assert measured.values == {"files_per_s": 1, "read_bytes_per_s": round(nbytes / 2)}
    assert measured.said == f"one thread reads 1 files/s from its disk, {amount(nbytes / 2)}/s"


def test_of_a_folder_without_images_it_is_said_what_images_are(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "folder.jpg").mkdir()
    (finding,) = findings.data_set(tmp_path)
    assert (finding.state, finding.said) == ("note", f"{tmp_path} holds no images")
    assert finding.remedy.startswith("pass the folder of a data set; images end with .avif, .bmp, ")


def test_of_a_large_data_set_files_from_all_of_its_first_ones_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[list[Path]] = []
    for number in range(230):
        (tmp_path / f"{number}.jpg").write_bytes(b"it")
    monkeypatch.setattr(findings, "_kinds", lambda files: looked_at.append(files) or ())
    monkeypatch.setattr(findings, "_cached_share", lambda _: 1.0)
    (finding,) = findings.data_set(tmp_path)
    assert finding.said.startswith("100% of 200 of its files")
    order = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert looked_at == [order[:200:4]]
    # Of those that lie on the disk fifty are read.
    read: list[Path] = []
    monkeypatch.setattr(findings, "_cached_share", lambda _: 0.0)
    monkeypatch.setattr(findings, "_LONGEST_S", 600.0)
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), b"it")[1])
    assert len([*findings.data_set(tmp_path)]) == 2
    assert read == order[:50]


def test_a_data_set_that_is_read_slowly_is_not_read_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "images", num_samples=6)
    monkeypatch.setattr(findings, "is_cached", lambda *_: False)
    monkeypatch.setattr(findings, "_LONGEST_S", 1e-9)
    opened: list[Path] = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (opened.append(path), read(path))[1])
    *_, kinds = findings.data_set(folder)
    assert kinds.said == "DALI decodes all of 1 files that were looked at"
    assert len(opened) == 2


def test_it_is_told_which_share_of_a_data_set_pillow_decodes_and_how_long_that_takes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", num_samples=6)
    *_, room, kinds = findings.data_set(folder)
    assert (kinds.state, kinds.said) == ("good", "DALI decodes all of 6 files that were looked at")
    assert kinds.values == {"pillow_share": 0.0, "pillow_s_per_file": None}
    picture(0, height=40, width=40).save(folder / "class_0" / "a.gif")
    (folder / "class_0" / "b.tif").write_bytes(b"no image")
    *_, still, kinds = findings.data_set(folder)
    assert still.values == room.values, "means are of the files whose sizes are known"
    assert min(room.values["file_bytes"], room.values["decoded_bytes"]) > 0  # type: ignore[type-var]
    assert kinds.state == "note"
    assert kinds.said.startswith("Pillow decodes 2 of 8 files that were looked at, in ")
    assert kinds.said.endswith(" ms each; 1 of 2 it cannot decode")
    assert kinds.remedy == "they are of no kind that DALI is given: as JPEG, PNG or WebP of 8 bits they would be"
    assert kinds.values["pillow_share"] == 0.25
    assert float(kinds.values["pillow_s_per_file"] or 0) > 0
    for number in range(4):
        picture(0, height=40, width=40).save(folder / "class_0" / f"c{number}.gif")
    *_, kinds = findings.data_set(folder)
    assert (kinds.state, kinds.values["pillow_share"]) == ("slow", 0.5)
    for path in folder.rglob("*.jpg"):
        path.rename(path.with_suffix(".bmp"))
        picture(0, height=40, width=40).save(path.with_suffix(".bmp"))
    *_, kinds = findings.data_set(folder)
    assert (kinds.state, kinds.values["pillow_share"]) == ("slow", 1.0)


def test_the_time_of_a_file_that_pillow_decodes_is_the_mean_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock takes a thousandth of a second."""
    clock = count(9000)
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(clock) / 1000)
    files = [tmp_path / name for name in ("a.gif", "b.png", "c.gif", "d.png", "e.gif")]
    for path in files:
        picture(0, height=40, width=40).save(path)
    *_, kinds = findings._kinds(files)
    assert kinds.said.endswith("Pillow decodes 3 of 5 files that were looked at, in 1.0 ms each")
    assert kinds.values == {"pillow_share": 0.6, "pillow_s_per_file": pytest.approx(0.001)}


def test_it_is_told_what_an_image_takes_in_each_form_and_for_how_many_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "available_bytes", lambda: 1_000_000)
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda _: SimpleNamespace(free=8_000_000))
    folder = tmp_path / "images"
    folder.mkdir()
    for name, side in (("a", 40), ("b", 60)):
        picture(0, height=side, width=side).save(folder / f"{name}.png")
    nbytes = sum(path.stat().st_size for path in folder.iterdir()) // 2
    *_, forms, _ = findings.data_set(folder)
    assert forms.values == {"file_bytes": nbytes, "decoded_bytes": 3 * (1600 + 3600) // 2}
    assert "and 7.80 KB decoded; there is room for 128 decoded in memory and " in forms.said
    assert forms.said.endswith(" and 1,025 decoded in the temporary folder's disk")
    assert "Kept(source, '/dev/shm/keep') decodes each once" in forms.remedy


def test_files_are_not_decoded_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_LONGEST_S", 1e-9)
    *_, kinds = findings.data_set(write_folder(tmp_path / "images", num_samples=6))
    assert kinds.said == "DALI decodes all of 1 files that were looked at"


# As a whole


def test_what_hangs_is_a_finding_and_what_it_found_before_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hanging(*_: object) -> Iterator[Finding]:
        yield Finding("shared memory", "good", "is there")
        released.wait(600)

    monkeypatch.setattr("dalirefurb.doctor._LONGEST_S", 0.5)
    monkeypatch.setattr(findings, "versions", lambda: iter([Finding("packages", "good", "some")]))
    for name in ("cuda", "kernels"):
        monkeypatch.setattr(findings, name, lambda *_: iter(()))
    for name in ("cores", "load", "memory"):
        monkeypatch.setattr(findings, name, lambda *_: iter(()))
    monkeypatch.setattr(findings, "shared_memory", hanging)
    monkeypatch.setattr(findings, "temporary_folder", hanging)
    try:
        found = [*examine()]
    finally:
        released.set()
    assert [(finding.topic, finding.state) for finding in found[:3]] == [
        ("packages", "good"),
        ("shared memory", "good"),
        ("shared memory", "unknown"),
    ]
    assert (found[-1].topic, found[-1].state) == ("temporary folder", "unknown")
    assert all("within" in finding.said for finding in found if finding.state == "unknown")


def test_all_examinations_end_at_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[str, float] = {}
    monkeypatch.setattr("dalirefurb.doctor._found_until", lambda end, topic, _: ends.update({topic: end}) or ())
    assert [*examine(tmp_path)] == []
    assert [*ends] == [
        *("packages", "CUDA", "kernels", "cores", "other processes", "memory", "shared memory", "temporary folder"),
        "data set",
    ]
    assert len({*ends.values()}) == 1


def test_an_examination_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[Finding]:
        raise OSError(5, "Input/output\nerror")

    for name in ("shared_memory", "temporary_folder", "load"):
        monkeypatch.setattr(findings, name, broken)
    found = [finding for finding in examine() if finding.state == "unknown"]
    assert [finding.topic for finding in found] == ["other processes", "shared memory", "temporary folder"]
    assert all(finding.said.startswith("could not be examined (OSError: [Errno 5]") for finding in found)
    assert not any("\n" in finding.said for finding in found)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be a folder of a data set"):
        next(examine(tmp_path / "none"))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the command finds."""
    findings = [Finding("cores", "good", "2"), Finding("disk", "slow", "is slow", "buy one", {"bytes_per_s": 3.5})]
    monkeypatch.setattr("dalirefurb.cli.maintenance.examine", lambda folder: iter(findings))
    return findings


def test_the_command_prints_findings_and_remedies(found: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == (
        "good     cores: 2\nslow     disk: is slow\n         -> buy one\n\n"
        "nothing is wrong; 1 thing slows a loader down\n"
    )
    found.append(Finding("DALI", "wrong", "is missing"))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("1 thing is wrong; 1 thing slows a loader down\n")


def test_the_command_prints_json(found: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert [each["topic"] for each in written] == [finding.topic for finding in found]
    assert written[1] == {
        "topic": "disk",
        "state": "slow",
        "said": "is slow",
        "remedy": "buy one",
        "values": {"bytes_per_s": 3.5},
    }
    found.append(Finding("DALI", "wrong", "is missing"))
    assert main(["doctor", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_this_machine_is_examined_without_a_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", num_samples=3)
    assert main(["doctor", str(folder), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert {"packages", "GPU", "cores", "memory", "temporary folder", "data set"} <= {each["topic"] for each in written}
    assert "unknown" not in {each["state"] for each in written if each["topic"] != "data set"}
