"""Cores that this process may use: those that its affinity names, within its control groups' CPU quota.

`root` is the folder that holds `proc` and `sys`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dalirefurb.system.control_groups import groups, text


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process can keep busy, at least 1.

    A quota of one and a half cores counts as two: one thread alone would leave half a core unused.
    """
    named = len(os.sched_getaffinity(0))
    return max(1, min([named, *(math.ceil(quota) for quota in _quotas(root))]))


def busy_s(root: Path = Path("/")) -> tuple[float, float] | None:
    """Return the seconds that all cores have worked, and those that a host had them wait; None if it is not told."""
    fields = text(root / "proc/stat").partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(int, fields[1:9])
    second = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft_interrupts) / second, stolen / second


def watch_others(root: Path = Path("/")) -> Callable[[], float]:
    """Watch what keeps the machine's cores busy beside this process, and what its host gives to others.

    Returns:
        Function that tells how many cores that took since, on average; 0 where Linux's accounts are missing, or this
        process has only some of the machine's cores, so that it may not matter.
    """

    def others_s() -> float:
        told = busy_s(root)
        if told is None or (os.cpu_count() or 0) > usable_cores(root):
            return math.nan
        return sum(told) - sum(os.times()[:4])  # its children's, too, that have ended

    began, before = time.perf_counter(), others_s()

    def taken() -> float:
        share = (others_s() - before) / max(time.perf_counter() - began, 1e-9)
        return max(0.0, share) if share == share else 0.0

    return taken


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quota of each control group that holds this process, in cores; those without one are left out."""
    for group in groups("cpu", root):
        if group.version == 2:
            quota, _, period = group.read("cpu.max").strip().partition(" ")
        else:
            quota, period = group.read("cpu.cfs_quota_us").strip(), group.read("cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            yield int(quota) / int(period)
