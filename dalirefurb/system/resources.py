"""Resources: cores and memory that this process may still use, budgets in bytes, and what owners of memory leave.

What was set aside and never touched is free to the system, though it is promised. So whoever sets memory aside, or is
going to, says how much of it is untouched, as long as it lives; what is touched the system knows.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from dalirefurb.checks import path_of, plain
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.control_groups import groups, text
from dalirefurb.system.processes import local_processes


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
    that train together on this machine share all of it equally, see `system/processes.py`. What stores and loaders of
    this process are going to take is not available. `root` is the folder that holds `proc` and `sys`.
    """
    amounts, promised = [*_machine(root), *_groups(root)], promised_bytes() if root == Path("/") else 0
    return max(0, min(amounts) // local_processes() - promised) if amounts else None


def bytes_on_disk(path: str | PathLike[str], *, processes: int = 1) -> int | None:
    """Return the bytes that a file can have, with those that it has, or that a folder can have more; None: not told.

    Where processes share the disk, each with a file of its own, it is an equal part of what is free.
    """
    path = path_of(path)
    try:
        present = path.stat().st_size if path.is_file() else 0
        return shutil.disk_usage(path if path.is_dir() else path.absolute().parent).free // processes + present
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


Budget = int | str
"""Bytes, or words for them."""

_UNITS = {"B": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for ending, base in (("B", 1000), ("iB", 1024))
}
_FORM = re.compile(rf"(\d+(?:\.\d+)?)\s*(%|{'|'.join(_UNITS)})")


def budget_bytes(budget: Budget, *, available: Callable[[], int | None] = available_bytes) -> int:
    """Return a budget in bytes, rounded down.

    Args:
        budget: Bytes as an int, or a number and a unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of
            1024), or % of what is available.
        available: Function that tells what is available, in bytes; it is asked for a share only. By default the memory
            a process can still take.

    Raises:
        ConfigurationError: If it is no budget, or a share of something unknown.

    Example:
        >>> budget_bytes("1.5GB"), budget_bytes("2 KiB"), budget_bytes("60%", available=lambda: 1000)
        (1500000000, 2048, 600)
    """
    budget = plain(budget)
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    form = _FORM.fullmatch(budget.strip()) if isinstance(budget, str) else None
    number = Decimal(form[1]) if form else Decimal(0)
    if form is None or (form[2] == "%" and number > 100):
        raise ConfigurationError(
            "a budget must be bytes as an int of at least 0, or text such as '16GB', '500MiB' or '60%', got "
            f"{budget!r}: write a number and one of %, B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
        )
    if form[2] != "%":
        return int(number * _UNITS[form[2]])
    whole = available()
    if whole is None:
        raise ConfigurationError(
            f"a budget of {budget!r} must be a share of a known amount, but how much is available cannot be found out "
            "here: pass bytes, such as '16GB'"
        )
    return int(number * whole / 100)


def checked_budget(budget: Budget | None) -> Budget | None:
    """Return a budget, or None for none, to be turned into bytes when they are known; refuse what is no budget."""
    if budget is not None:
        budget_bytes(budget, available=lambda: 0)
    return budget


def amount(nbytes: float) -> str:
    """Write bytes in a unit that leaves them readable.

    >>> amount(15_432_196_608), amount(3_072), amount(1_000), amount(999)
    ('15.43 GB', '3.07 KB', '1.00 KB', '999 B')
    """
    unit = next(power for power in (4, 3, 2, 1, 0) if nbytes >= 1000**power or power == 0)
    name = ("B", "KB", "MB", "GB", "TB")[unit]
    return f"{nbytes / 1000**unit:.{2 if unit else 0}f} {name}"


_Value = TypeVar("_Value")


class _Remainder(weakref.ref[Any], Generic[_Value]):
    """What one owner leaves."""

    __slots__ = ("value",)
    value: _Value


class Remains(Generic[_Value]):
    """What owners leave when they are gone, the latest last; any thread may let an owner go.

    No line of Python runs when an owner goes, as one of `weakref.finalize` would: an interrupt from the keyboard that
    came in it would be lost, and the value with it.

    Args:
        most: Largest number of values kept until they are taken: of more, the earliest go. None keeps all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._left: deque[_Remainder[_Value]] = deque(maxlen=most)
        self._expected: dict[int, tuple[weakref.ref[Any], ...]] = {}

    def __len__(self) -> int:
        """Count the values that are left."""
        return len(self._left)

    def expect(self, owner: object, value: _Value) -> None:
        """Have a value be left once nobody refers to its owner any more."""
        remainder = _Remainder[_Value](owner, self._left.append)
        remainder.value = value
        key = id(remainder)
        self._expected[key] = remainder, weakref.ref(owner, partial(self._expected.pop, key))

    def take(self) -> _Value:
        """Take the value that was left last.

        Raises:
            IndexError: If none is left.
        """
        return self._left.pop().value
