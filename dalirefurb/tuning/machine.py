"""Machines to compute for: this one, or one that a TOML file describes.

[machine]                        all ranks together
cores = 96
gpus = 8                         ranks, one for each
memory = "900GB"                 that caches may take
disk = "3.5TB"                   the same of a local disk; left out: none
device_memory = "320GB"          the same of all GPUs' memory; left out: none
page_cache = "200GB"             memory beside that; left out: none
core_speed = 1.2                 times as fast as the cores measured; left out: as fast
source_bandwidth = "2GB"         a second, of a network file system; left out: as measured
disk_read = "6GB"                a second; left out: as measured
disk_write = "3GB"

[training]
num_samples = 1_281_167
batch_size = 1024                of all ranks together
epochs = 90
step_ms = 120                    of a rank's part of a batch; left out: nothing but loading
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dalirefurb.checks import integer, number, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.store.available import available_bytes
from dalirefurb.store.memory_budget import budget_bytes
from dalirefurb.system.cores import usable_cores
from dalirefurb.tuning.model import Machine, Workload

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BYTES = {
    "memory": "memory_bytes",
    "disk": "disk_bytes",
    "device_memory": "device_bytes",
    "page_cache": "page_cache_bytes",
    "source_bandwidth": "source_bytes_per_s",
    "disk_read": "disk_read_bytes_per_s",
    "disk_write": "disk_write_bytes_per_s",
}
_MACHINE = {"cores", "gpus", "core_speed", *_BYTES}
_TRAINING = {"num_samples", "batch_size", "epochs", "step_ms"}


def this_machine(memory_bytes: int, disk_bytes: int, device_bytes: int = 0) -> Machine:
    """Return this machine with these budgets; memory beside them is the page cache's."""
    spare = max(0, (available_bytes() or 0) - memory_bytes)
    return Machine(usable_cores(), memory_bytes, disk_bytes, device_bytes, spare)


def free_device_bytes() -> int:
    """Return the free bytes of the current CUDA device; 0 where there is none."""
    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes of a folder's disk; None where they cannot be asked for."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def read_machine(path: Path) -> tuple[Machine, Workload]:
    """Read what a file describes.

    Raises:
        ConfigurationError: If it cannot be read, or says what it cannot say.
    """
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            f"a machine must be described by a TOML file, but {path} cannot be read as one: {error}; "
            f"see `dalirefurb tune --help`"
        ) from error
    machine, training = (
        _table(values, name, known) for name, known in (("machine", _MACHINE), ("training", _TRAINING))
    )
    ranks = integer("gpus", machine.get("gpus", 1), 1, None, "pass the number of processes that train together")
    nbytes = {
        field: budget_bytes(machine[name], available=lambda: None) for name, field in _BYTES.items() if name in machine
    }
    remedy = "write a multiple of gpus"
    batch_size = integer("batch_size", training.get("batch_size", 64), 1, None, remedy)
    require(batch_size % ranks == 0, "batch_size", f"a multiple of gpus = {ranks}", batch_size, remedy)
    seconds = (
        number("step_ms", training.get("step_ms", 0), "of at least 0", lambda ms: ms >= 0, "left out: no step") / 1e3
    )
    return (
        Machine(
            integer("cores", machine.get("cores"), 1, None, "write the number of cores"),
            ranks=ranks,
            core_speed=number(
                "core_speed", machine.get("core_speed", 1.0), "above 0", lambda speed: speed > 0, "1 is usual"
            ),
            **{"memory_bytes": 0, **nbytes},
        ),
        Workload(
            integer("num_samples", training.get("num_samples"), batch_size, None, "write the samples of an epoch"),
            batch_size,
            integer("epochs", training.get("epochs", 90), 1, None, "write the number of epochs"),
            seconds,
        ),
    )


def _table(values: Mapping[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    """Return one table of the file, which may hold known names only."""
    table = values.get(name)
    require(isinstance(table, dict), f"[{name}]", "a table of the file", table, f"write [{name}], and its values below")
    unknown = sorted(set(table or {}) - known)
    require(not unknown, f"[{name}]", f"of {', '.join(sorted(known))}", ", ".join(unknown), "leave out what is unknown")
    return dict(table or {})
