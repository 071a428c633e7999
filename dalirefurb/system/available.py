"""Memory that a process can still take: the least of what the machine and its control groups leave.

What was set aside and never touched is free to the system, though it is promised. So whoever sets memory aside, or is
going to, says how much of it is untouched, as long as it lives; what is touched the system knows.
"""

from __future__ import annotations

import shutil
from os import PathLike
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from dalirefurb.checks import path_of
from dalirefurb.system.control_groups import groups, text
from dalirefurb.system.sharing import local_processes


class Taker(Protocol):
    """What takes memory bit by bit: a store's contents, a loader's engine."""

    @property
    def untouched_bytes(self) -> int:
        """Bytes that it may take yet."""


_NAMES = ("memory.max", "memory.current")
_NAMES_OF_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")

_takers: WeakValueDictionary[int, Taker] = WeakValueDictionary()


def available_bytes(root: Path = Path("/")) -> int | None:
    """Estimate the bytes that can be allocated without swapping; None where Linux's accounts are missing.

    Page cache counts as available, on the machine (MemAvailable) and in a control group: it is given up. Processes
    that train together on this machine share all of it equally, see `system/sharing.py`. What stores and loaders of
    this process are going to take is not available. `root` is the folder that holds `proc` and `sys`.
    """
    amounts, promised = [*_machine(root), *_groups(root)], promised_bytes() if root == Path("/") else 0
    return max(0, min(amounts) // local_processes() - promised) if amounts else None


def bytes_on_disk(path: str | PathLike[str]) -> int | None:
    """Return the bytes that a file can have, with those that it has, or that a folder can have more; None: not told."""
    path = path_of(path)
    try:
        present = path.stat().st_size if path.is_file() else 0
        return shutil.disk_usage(path if path.is_dir() else path.absolute().parent).free + present
    except OSError:
        return None


def promise_to(taker: Taker) -> None:
    """Count what a taker has not touched yet as taken, as long as it lives."""
    _takers[id(taker)] = taker


def promised_bytes() -> int:
    """Return what is promised in this process, and not touched yet."""
    takers = (reference() for reference in _takers.valuerefs())  # A list, whoever adds to it meanwhile.
    return sum(taker.untouched_bytes for taker in takers if taker is not None)


def _machine(root: Path) -> list[int]:
    """Return MemAvailable in bytes."""
    amounts = _table(text(root / "proc/meminfo"))
    return [amounts["MemAvailable:"] * 1024] if "MemAvailable:" in amounts else []


def _groups(root: Path) -> list[int]:
    """Return each control group's limit in bytes, less what it uses beside page cache; unlimited ones are left out."""
    rooms = []
    for group in groups("memory", root):
        names, total = (_NAMES, "") if group.version == 2 else (_NAMES_OF_VERSION_1, "total_")
        limit, usage = (group.read(name).strip() for name in names)
        if limit.isdecimal() and usage.isdecimal():
            amounts = _table(group.read("memory.stat"))
            cached = sum(amounts.get(f"{total}{kind}_file", 0) for kind in ("active", "inactive"))
            rooms.append(int(limit) - max(0, int(usage) - cached))
    return rooms


def _table(lines: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    rows = (line.split() for line in lines.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
