"""The doctor finds what is wrong, says what to do about it, and never fails itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dalirefurb.cli import main
from dalirefurb.doctor import Finding, examine, findings
from dalirefurb.errors import ConfigurationError
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
    installed["nvidia-dali-cuda120"] = version
    (finding,) = of("nvidia-dali-cuda120", findings.versions())
    assert finding.state == "wrong"
    assert finding.said == f"nvidia-dali-cuda120 must be {sign}, but {version} is installed"
    assert finding.remedy.startswith("pip install 'nvidia-dali-cuda120")


def test_a_version_is_at_its_bound_however_many_zeros_either_has(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings.metadata, "requires", lambda _: ["numpy>=2.1.0,<2.2"])
    for version in ("2.1", "2.1.0"):
        installed["numpy"] = version
        assert of("numpy", findings.versions()) == []


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


def test_two_wheels_of_cupy_are_both_named(installed: dict[str, str], root: Path) -> None:
    installed.update({"cupy-cuda12x": "14.0.0", "cupy-cuda13x": "14.0.0"})
    found = [finding.said for finding in findings.cuda(with_driver(root, "580.65.06")) if finding.state == "wrong"]
    assert found == ["CuPy is built for CUDA 12 and 13, and DALI for CUDA 12"]


def test_a_pytorch_for_the_cpu_beside_a_gpu_is_told(
    installed: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_of_torch", lambda: None)
    found = [finding for finding in findings.cuda(with_driver(root, "570.86.15")) if finding.state == "slow"]
    assert [finding.said for finding in found] == ["PyTorch is built for the CPU alone"]


def test_a_machine_without_a_driver_runs_on_the_cpu(installed: dict[str, str], root: Path) -> None:
    (finding,) = findings.cuda(root)
    assert (finding.state, finding.said) == ("note", "there is no NVIDIA driver: all runs on the CPU")


# The machine


def test_processes_beside_and_a_host_that_takes_cores_away_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(_: float) -> None:
        (root / "proc/stat").write_text("cpu  400 0 50 9000 0 0 0 200 0 0\n")

    monkeypatch.setattr(findings.time, "sleep", later)
    times = iter([0.0, 1.0])
    monkeypatch.setattr(findings.time, "perf_counter", lambda: next(times))
    load, host = findings.load(root)
    assert (load.state, load.said) == ("slow", "keep 3.0 cores busy")
    assert (host.state, host.said) == ("slow", "its host takes 2.0 of its cores for others")


@pytest.mark.parametrize(
    ("usable", "affinity", "said"),
    [(2, 2, "the process's affinity says so"), (2, 8, "the CPU quota of its control group says so"), (8, 8, "8 of 8")],
)
def test_what_limits_the_cores_is_told(usable: int, affinity: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "usable_cores", lambda: usable)
    monkeypatch.setattr(findings.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(findings.os, "sched_getaffinity", lambda _: set(range(affinity)))
    (finding,) = findings.cores()
    assert said in finding.said


def test_a_machine_at_rest_is_good(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.time, "sleep", lambda _: None)
    (finding,) = findings.load(root)
    assert (finding.state, finding.values["busy_cores"]) == ("good", 0.0)


@pytest.mark.parametrize(("available", "state"), [(1 * GB, "slow"), (48 * GB, "good")])
def test_little_memory_is_told(root: Path, available: int, state: str) -> None:
    (root / "proc/meminfo").write_text(f"MemAvailable: {available} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    (finding,) = findings.memory(root)
    assert finding.state == state
    assert finding.values["available_bytes"] == available * 1024


def test_swapping_is_told(root: Path) -> None:
    (root / "proc/meminfo").write_text(f"MemAvailable: {9 * GB} kB\nSwapTotal: {8 * GB} kB\nSwapFree: {3 * GB} kB\n")
    _, finding = findings.memory(root)
    assert (finding.state, finding.said) == ("slow", "5.37 GB are swapped out")


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
    first, second, *_ = (path for path in folder.rglob("*") if path.is_file())
    first.write_bytes(b"")
    read: list[Path] = []
    monkeypatch.setattr(findings, "_cached_share", {first: None, second: 0.0}.get)
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), whole(path))[1])
    told, measured, *_ = findings.data_set(folder)
    assert told.said.startswith("0% of 1 of its files")
    assert read[0] == second
    assert measured.values["files_per_s"]


def test_a_slow_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "disk_speeds", lambda _: (5e7, 4e7, 5e9))
    (finding,) = findings.temporary_folder()
    assert finding.state == "slow"
    assert "read at 40.00 MB/s from the disk and at 5.00 GB/s from the page cache" in finding.said


def test_speeds_are_of_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    assert min(findings.disk_speeds(tmp_path)) > 0
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_writes_slowly_is_not_written_to_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(findings.os, "fdatasync", flushed.append)
    monkeypatch.setattr(findings, "_LONGEST_S", 1e-9)
    assert min(findings.disk_speeds(tmp_path)) > 0
    assert len(flushed) == 1


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
    *_, kinds = findings.data_set(folder)
    assert (kinds.state, kinds.said) == ("good", "DALI decodes all of 6 files that were looked at")
    assert kinds.values == {"pillow_share": 0.0, "pillow_s_per_file": None}
    picture(0, height=40, width=40).save(folder / "class_0" / "a.gif")
    (folder / "class_0" / "b.tif").write_bytes(b"no image")
    *_, kinds = findings.data_set(folder)
    assert kinds.state == "note"
    assert kinds.said.startswith("Pillow decodes 25% of 8 files that were looked at, in ")
    assert kinds.said.endswith(" ms each; 1 of 2 it cannot decode")
    assert kinds.remedy == "they are of no kind that DALI is given: as JPEG, PNG or WebP of 8 bits they would be"
    assert kinds.values["pillow_share"] == 0.25
    assert float(kinds.values["pillow_s_per_file"] or 0) > 0
    for path in folder.rglob("*.jpg"):
        path.rename(path.with_suffix(".bmp"))
        picture(0, height=40, width=40).save(path.with_suffix(".bmp"))
    *_, kinds = findings.data_set(folder)
    assert (kinds.state, kinds.values["pillow_share"]) == ("slow", 1.0)


def test_it_is_told_what_an_image_takes_in_each_form_and_for_how_many_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "available_bytes", lambda: 1_000_000)
    folder = tmp_path / "images"
    folder.mkdir()
    for name, side in (("a", 40), ("b", 60)):
        picture(0, height=side, width=side).save(folder / f"{name}.png")
    nbytes = sum(path.stat().st_size for path in folder.iterdir()) // 2
    *_, forms, _ = findings.data_set(folder)
    assert forms.values == {"file_bytes": nbytes, "decoded_bytes": 3 * (1600 + 3600) // 2}
    assert "and 7.80 KB decoded; there is room for 128 decoded in memory and " in forms.said
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
    assert written[1]["values"] == {"bytes_per_s": 3.5}


def test_this_machine_is_examined_without_a_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "images", num_samples=3)
    assert main(["doctor", str(folder), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert {"packages", "GPU", "cores", "memory", "temporary folder", "data set"} <= {each["topic"] for each in written}
    assert "unknown" not in {each["state"] for each in written if each["topic"] != "data set"}
