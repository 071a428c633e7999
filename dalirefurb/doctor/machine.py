"""The machine: cores that may be used, what keeps them busy, and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from dalirefurb.doctor.finding import Finding
from dalirefurb.store.available import available_bytes
from dalirefurb.store.memory_budget import amount
from dalirefurb.system.control_groups import text
from dalirefurb.system.cores import busy_s, usable_cores

_WATCHED_S = 1.0
_BUSY_CORES = 0.25
_FEW_CORES = 2
_LITTLE_BYTES = 2_000_000_000


def cores(root: Path = Path("/")) -> Iterator[Finding]:
    """Compare the cores that may be used with those that there are."""
    usable, there, named = usable_cores(root), os.cpu_count() or 1, len(os.sched_getaffinity(0))
    values = {"usable_cores": usable, "cores": there, "affinity_cores": named}
    said = f"{usable} of {there} may be used"
    if usable < there:
        limit = "the process's affinity" if named <= usable else "the CPU quota of its control group"
        remedy = "if it is to have more: taskset, the container's or the job's number of cores"
        yield Finding("cores", "note", f"{said}: {limit} says so", remedy, values)
    elif usable < _FEW_CORES:
        remedy = "a loader and a training loop share it: give the process two or more"
        yield Finding("cores", "slow", said, remedy, values)
    else:
        yield Finding("cores", "good", said, values=values)


def load(root: Path = Path("/")) -> Iterator[Finding]:
    """Watch for a second what other processes take of the cores."""
    before, own_before, began = busy_s(root), sum(os.times()[:4]), time.perf_counter()
    time.sleep(_WATCHED_S)
    after, own_after, ended = busy_s(root), sum(os.times()[:4]), time.perf_counter()
    if before is None or after is None:
        yield Finding("other processes", "unknown", "the system keeps no account of what its cores do")
        return
    busy, stolen = ((late - early) / (ended - began) for early, late in zip(before, after, strict=True))
    busy = max(busy - (own_after - own_before) / (ended - began), 0.0)
    values = {"busy_cores": round(busy, 2), "stolen_cores": round(stolen, 2)}
    if busy >= _BUSY_CORES:
        remedy = "wait until they are done, or give the loader cores of its own; figures of speed are of a busy machine"
        yield Finding("other processes", "slow", f"keep {busy:.1f} cores busy", remedy, values)
    else:
        yield Finding("other processes", "good", f"keep {busy:.1f} cores busy", values=values)
    if stolen >= _BUSY_CORES:
        said = f"its host takes {stolen:.1f} of its cores for others"
        yield Finding("virtual machine", "slow", said, "measure at another time, or on another machine", values)


def memory(root: Path = Path("/")) -> Iterator[Finding]:
    """Say how much memory a store may take, and whether the machine swaps."""
    available = available_bytes(root)
    if available is None:
        yield Finding("memory", "unknown", "the system keeps no account of its memory")
        return
    values = {"available_bytes": available}
    said = f"{amount(available)} are available"
    if available < _LITTLE_BYTES:
        remedy = (
            "wait until other processes are done, raise the limit of the container, or keep the cache in a DiskStore"
        )
        yield Finding("memory", "slow", said, remedy, values)
    else:
        yield Finding("memory", "good", said, values=values)
    table = dict(line.split(":", 1) for line in text(root / "proc/meminfo").splitlines() if ":" in line)
    swapped = (int(table.get("SwapTotal", "0").split()[0]) - int(table.get("SwapFree", "0").split()[0])) * 1024
    if swapped > _LITTLE_BYTES:
        remedy = "what was swapped out comes back at the speed of a disk: give stores less memory"
        yield Finding("memory", "slow", f"{amount(swapped)} are swapped out", remedy, {"swapped_bytes": swapped})
