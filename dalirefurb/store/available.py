"""How much memory can a process still take? The least of what the machine and its control groups leave."""

from __future__ import annotations

from pathlib import Path

from dalirefurb.launcher import local_processes


def available_bytes(root: Path = Path("/")) -> int | None:
    """Estimate the bytes that can be allocated without swapping; None where Linux's accounts are missing.

    Page cache counts as available, on the machine (MemAvailable) and in a control group: it is given up. Processes that
    torchrun started on this machine share all of it equally.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    amounts = [*_machine(root), *_groups(root)]
    return max(0, min(amounts)) // local_processes() if amounts else None


def _machine(root: Path) -> list[int]:
    """Return MemAvailable in bytes."""
    amounts = _table(root / "proc/meminfo")
    return [amounts["MemAvailable:"] * 1024] if "MemAvailable:" in amounts else []


def _groups(root: Path) -> list[int]:
    """Return what each control group above this process leaves, in bytes; unlimited ones are left out."""
    rooms = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "")
            mount = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            mount = root / "sys/fs/cgroup/memory"
        else:
            continue
        # A limit holds for all groups below it. In a container only the top of the path may exist.
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            rooms += _room(folder, *names)
    return rooms


def _room(folder: Path, limit_name: str, usage_name: str, prefix: str) -> list[int]:
    """Return one group's limit less what it uses beside page cache."""
    limit, usage = _text(folder / limit_name).strip(), _text(folder / usage_name).strip()
    if not (limit.isdecimal() and usage.isdecimal()):
        return []
    amounts = _table(folder / "memory.stat")
    cached = sum(amounts.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    return [int(limit) - max(0, int(usage) - cached)]


def _table(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _text(path: Path) -> str:
    """Read a file, or nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
