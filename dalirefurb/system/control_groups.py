"""Control groups of Linux: this process's own and all above it, as folders of files with limits.

Version 1 has a tree of groups for each controller, version 2 one for all; many machines have both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Controller = Literal["cpu", "memory"]


class ControlGroup(NamedTuple):
    """One control group of version 1 or 2, and the folder of its files."""

    folder: Path
    version: int

    def read(self, name: str) -> str:
        """Return what a file says; nothing where there is none, as in a group without this limit."""
        return text(self.folder / name)


def groups(controller: Controller, root: Path = Path("/")) -> Iterator[ControlGroup]:
    """Yield the groups that hold this process, from its own up to the highest that it can see.

    `root` is the folder that holds `proc` and `sys`.
    """
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        for top, mount in _mounts(controller, version, root):
            # In a container a mount can begin at the container's group, and the path name groups above it.
            below = Path(path).relative_to(top) if Path(path).is_relative_to(top) else Path(path.lstrip("/"))
            group = mount / below
            for folder in (group, *group.parents):
                if not folder.is_relative_to(mount):
                    break
                yield ControlGroup(folder, version)


def text(path: Path) -> str:
    """Read a file, or nothing where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _mounts(controller: str, version: int, root: Path) -> list[tuple[str, Path]]:
    """Return where groups are mounted, or else should be: the group at the top of each mount, and its folder."""
    found = []
    for line in text(root / "proc/self/mountinfo").splitlines():
        place, _, kind = line.partition(" - ")
        fields, (system, _, options) = place.split(" "), kind.split(" ", 2)
        if (system, version) == ("cgroup2", 2) or (
            (system, version) == ("cgroup", 1) and controller in options.split(",")
        ):
            found.append((_unescaped(fields[3]), root / _unescaped(fields[4]).lstrip("/")))
    usual = root / "sys/fs/cgroup"
    return found or [("/", usual if version == 2 else usual / controller)]


def _unescaped(field: str) -> str:
    r"""Return a path as it is called.

    >>> _unescaped(r"/with\040space")
    '/with space'
    """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
