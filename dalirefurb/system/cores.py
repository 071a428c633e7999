"""Cores that this process may use: those that its affinity names, within its control groups' CPU quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from dalirefurb.system.control_groups import groups


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process can keep busy, at least 1.

    A quota of one and a half cores counts as two: one thread alone would leave half a core unused.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    named = len(os.sched_getaffinity(0))
    return max(1, min([named, *(math.ceil(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quota of each control group that holds this process, in cores; those without one are left out."""
    for group in groups("cpu", root):
        if group.version == 2:
            quota, _, period = group.read("cpu.max").strip().partition(" ")
        else:
            quota, period = group.read("cpu.cfs_quota_us").strip(), group.read("cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            yield int(quota) / int(period)
