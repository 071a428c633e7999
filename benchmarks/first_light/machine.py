"""Machine probes: what is installed, and whether it can be imported in every order."""

from __future__ import annotations

import importlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from typing import Any

from first_light.findings import Finding

_LIMIT_S = 60
_USES = {
    "torch": "import torch; torch.zeros(1, device='{torch}')",
    "CuPy": "import cupy; cupy.zeros(1).get()",
    "DALI": "import nvidia.dali.fn",
}


def versions(device: str) -> Iterator[Finding]:
    """Tell versions; the packages must load, and be of one CUDA."""
    names = ("numpy", "torch", "nvidia.dali", "nvidia.nvimgcodec", "numba", *(["cupy"] if device == "gpu" else []))
    packages = {name: package for name in names if not isinstance(package := _imported(name), str)}
    for name in names:
        seen = packages[name].__version__ if name in packages else str(_imported(name))
        yield Finding(name, "can be imported", seen, name in packages)
    yield Finding("Python", "", platform.python_version(), None)
    if "numpy" in packages:
        from experiment import environment

        where = environment()
        yield Finding("CPU", "", f"{where['cores']} cores, {where['cpu']}", None)
        changed = " and changes that are not committed" if where["uncommitted_changes"] else ""
        yield Finding("commit", "", f"{where['commit']}{changed}", None)
    if device == "gpu" and len(packages) == len(names):
        yield from _of_the_gpu(packages)


def import_order(device: str) -> Iterator[Finding]:
    """Import and use the packages in every order, in a process each."""
    uses = {name: use for name, use in _USES.items() if device == "gpu" or name != "CuPy"}
    for order in permutations(uses):
        code = "; ".join(uses[name] for name in order).format(torch="cuda" if device == "gpu" else "cpu")
        try:
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_LIMIT_S)
            last = (done.stderr.strip().splitlines() or [""])[-1]
            seen = "all work" if done.returncode == 0 else f"exit status {done.returncode}: {last[-150:]}"
        except subprocess.TimeoutExpired:
            seen = f"hangs: killed after {_LIMIT_S} s"
        yield Finding(" before ".join(order), "all work", seen, seen == "all work")


def _imported(name: str) -> Any:
    """Return a package, or why it cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a package without its libraries raises
        return f"{type(error).__name__}: {error}"[:200]


def _of_the_gpu(packages: dict[str, Any]) -> Iterator[Finding]:
    torch, cupy = packages["torch"], packages["cupy"]
    free, total = torch.cuda.mem_get_info()
    yield Finding("GPU", "", f"{torch.cuda.get_device_name()}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free", None)
    yield Finding("CUDA of torch", "", str(torch.version.cuda), None)
    runtime, driver = cupy.cuda.runtime.runtimeGetVersion(), cupy.cuda.runtime.driverGetVersion()
    of_dali = int(packages["nvidia.dali"].__cuda_version__)
    same = runtime // 1000 == of_dali // 1000
    yield Finding("CUDA of CuPy and DALI", "one major version", f"CuPy {runtime}, DALI {of_dali}", same)
    yield Finding("driver", f"at least CUDA {runtime}", f"CUDA {driver}", driver >= runtime)
