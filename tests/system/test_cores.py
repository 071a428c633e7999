from __future__ import annotations

import os
from pathlib import Path

import pytest

from dalirefurb import Standard
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.system.resources import available_bytes, usable_cores, watch_others

V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/job/step\n4:memory:/job\n0::/\n"}
V2 = {"proc/self/cgroup": "0::/job/step\n"}
CPUSET = {"proc/self/cgroup": "6:cpuset:/other\n5:cpu,cpuacct:/job/step\n"}
OUTSIDE = {"proc/self/cgroup": "0::/step\n"}
BOTH = {"proc/self/cgroup": "2:memory:/job\n1:cpu:/\n0::/job/step\n"}
V1_MOUNT = "33 31 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V2_MOUNT = "41 31 0:38 {top} /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
SPACED = "41 31 0:38 / /sys/fs/control\\040groups rw shared:9 - cgroup2 cgroup2 rw\n"


def grow(root: Path, *files: dict[str, str]) -> Path:
    for name, text in {name: text for some in files for name, text in some.items()}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(group: str, quota: str, mount: str = "sys/fs/cgroup") -> dict[str, str]:
    return {f"{mount}/{group}cpu.max": f"{quota}\n"}


def v1(group: str, quota: int, mount: str = "sys/fs/cgroup/cpu", period: int = 100_000) -> dict[str, str]:
    return {
        f"{mount}/{group}cpu.cfs_quota_us": f"{quota}\n",
        f"{mount}/{group}cpu.cfs_period_us": f"{period}\n",
    }


def mounts(*lines: str, top: str = "/") -> dict[str, str]:
    return {"proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" + "".join(lines).format(top=top)}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], 8),
        ([V2, v2("job/step/", "max 100000")], 8),
        ([V2, v2("job/step/", "300000 100000")], 3),
        ([V2, v2("job/step/", "max 100000"), v2("job/", "200000 100000")], 2),
        ([V2, v2("job/step/", "200000 100000"), v2("job/", "100000 50000"), v2("", "400000 100000")], 2),
        ([V2, v2("job/step/", "150000 100000")], 2),
        ([V2, v2("job/step/", "20000 100000")], 1),
        ([V2, v2("job/step/", "9900000 100000")], 8),
        ([V1, v1("job/step/", -1)], 8),
        ([V1, v1("job/step/", 400_000)], 4),
        ([V1, v1("job/step/", -1), v1("job/", 50_000, period=20_000)], 3),
        ([V1, v1("", 100_000)], 1),
        ([V1, mounts(V1_MOUNT), v1("job/", 200_000, "sys/fs/cgroup/cpu,cpuacct")], 2),
        ([BOTH, mounts(V2_MOUNT), v2("job/", "500000 100000", "sys/fs/cgroup/unified")], 5),
        ([BOTH, v1("", 600_000), v2("job/", "500000 100000")], 5),
        ([V2, mounts(V2_MOUNT, top="/job"), v2("step/", "100000 100000", "sys/fs/cgroup/unified")], 1),
        ([V2, mounts(V2_MOUNT, top="/job"), v2("", "300000 100000", "sys/fs/cgroup/unified")], 3),
        ([V2, mounts(SPACED), v2("job/", "200000 100000", "sys/fs/control groups")], 2),
        ([V2, v2("job/step/", "nonsense")], 8),
        ([V2, v2("job/step/", "0 100000"), v2("job/", "300000 0")], 8),
        ([CPUSET, v1("other/", 100_000), v1("job/step/", 600_000)], 6),
        ([OUTSIDE, mounts(V2_MOUNT, top="/job"), v2("step/", "100000 100000", "sys/fs/cgroup/unified")], 1),
    ],
)
def test_threads_are_as_many_as_affinity_and_the_least_quota_above_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[dict[str, str]], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores(grow(tmp_path, *files)) == expected


def test_a_file_of_no_text_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of groups may be any bytes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (grow(tmp_path, V2, v2("job/", "400000 100000")) / "proc/self/cgroup").write_bytes(b"0::/job/\xff\n")
    assert usable_cores(tmp_path) == 8


def test_affinity_is_a_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores(grow(tmp_path, V2, v2("job/", "400000 100000"))) == 1


def test_the_memory_of_a_group_below_the_top_of_its_mount_is_found(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemAvailable: 5000 kB\n",
        "sys/fs/cgroup/unified/step/memory.max": "3000\n",
        "sys/fs/cgroup/unified/step/memory.current": "1000\n",
    }
    assert available_bytes(grow(tmp_path, V2, mounts(V2_MOUNT, top="/job"), files)) == 2000


def test_a_loader_takes_as_many_threads_by_default_shared_among_the_ranks_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dalirefurb.engine.prefetch.usable_cores", lambda: 6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    depths = Prefetch().depths(Standard(64, batch_size=8))
    assert depths.replicas * depths.threads_each == 3


def test_what_others_take_of_the_cores_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User, nice, system, idle, input and output, interrupts, soft ones, and what the machine's host gave to others."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    times = iter([(3.0, 1.0, 1.0, 0.0, 0.0), (6.0, 1.0, 1.5, 0.5, 9.0), (6.0, 1.0, 1.5, 0.5, 9.0)])
    monkeypatch.setattr(os, "times", times.__next__)
    monkeypatch.setattr("dalirefurb.system.resources.time.perf_counter", iter([100.0, 110.0, 110.0]).__next__)
    tick = os.sysconf("SC_CLK_TCK")
    grow(tmp_path, {"proc/stat": "cpu  1000 0 0 500 0 0 0 0 0 0\n"})
    taken = watch_others(tmp_path)
    worked = f"{1000 + 3 * tick} {tick} {2 * tick} 9999 77 {tick} {2 * tick} {tick}"
    grow(tmp_path, {"proc/stat": f"cpu  {worked} 0 0\ncpu0 1 2 3 4\n"})
    assert taken() == pytest.approx((10 - 4) / 10)
    grow(tmp_path, {"proc/stat": "cpu  1000 0 0 500 0 0 0 0 0 0\n"})
    assert taken() == 0


@pytest.mark.parametrize("files", [{}, {"proc/stat": "cpu\n"}, {"proc/stat": "cpu 1 2 3 4 5 6 7 8 9 10\n"}])
def test_where_nothing_is_told_of_others_they_take_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    """Of a machine of which this process has some cores only it may not matter what the others do."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert watch_others(grow(tmp_path, files))() == 0
