"""What is installed, and whether it fits together; PyTorch and DALI, which are slow to load, are not."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from dalirefurb.doctor.finding import Finding
from dalirefurb.errors import how_to_install
from dalirefurb.system.control_groups import text

_DALI = re.compile(r"nvidia-dali-cuda(\d+)\d$")
_CUPY = re.compile(r"cupy-cuda(\d+)x$")
_OPTIONAL = ("cupy", "pillow", "matplotlib", "zstandard")
_NEWEST_CUDA_OF_DRIVERS = ((580, 13), (525, 12), (450, 11))
"""The least driver of each major version of CUDA, as NVIDIA's table of compatibility has them."""


def versions() -> Iterator[Finding]:
    """Look at the versions of what must be there."""
    installed = _installed()
    dali = [name for name in installed if _DALI.match(name)]
    shown = {"python": platform.python_version(), **{name: installed[name] for name in sorted(dali)}}
    shown |= {name: installed[name] for name in ("torch", "numpy", "numba", *_OPTIONAL) if name in installed}
    said = ", ".join(f"{name} {version}" for name, version in shown.items())
    yield Finding("packages", "good", f"{said}; {platform.system()} {platform.machine()}", values=shown)
    if len(dali) != 1:
        said = f"one wheel of DALI must be installed, but there is {' and '.join(sorted(dali)) or 'none'}"
        remedy = "uninstall all of them, then install one: they share a folder"
        yield Finding("DALI", "wrong", said, remedy)
    # Numba refuses to be imported beside a NumPy that it does not know.
    owners = ["dalirefurb", *(["numba"] if "numba" in installed else [])]
    for requirement in dict.fromkeys(each for owner in owners for each in metadata.requires(owner) or ()):
        if "extra ==" not in requirement:
            yield from _unmet(requirement, installed)
    if importlib.util.find_spec("numba") is None:
        said = "Numba is not installed, so DALI's operators do everything"
        yield Finding("kernels", "slow", said, "pip install numba: kernels take half the time or less")


def _unmet(requirement: str, installed: dict[str, str]) -> Iterator[Finding]:
    """Compare what is installed with lower and upper bounds of a requirement."""
    name, _, bounds = re.fullmatch(r"([\w.-]+)(\[.*\])?([^;]*)(?:;.*)?", requirement).groups()  # type: ignore[union-attr]
    if name not in installed:
        return
    version = _numbers(installed[name])
    for sign, bound in re.findall(r"(>=|<)\s*([\d.]+)", bounds):
        holds = version >= _numbers(bound) if sign == ">=" else version < _numbers(bound)
        if not holds:
            said = f"{name} must be {sign}{bound}, but {installed[name]} is installed"
            yield Finding(name, "wrong", said, f"pip install '{name}{bounds.strip()}'")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in [*re.findall(r"\d+", version.partition("+")[0]), 0, 0, 0][:3])


def _installed() -> dict[str, str]:
    """Return the version of each distribution, by its name in lower case."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


def cuda(root: Path = Path("/")) -> Iterator[Finding]:
    """Compare the driver with what DALI, CuPy and PyTorch were built for."""
    installed = _installed()
    # Of open modules it is "Kernel Module for x86_64  570.86".
    told = re.search(r"Kernel Module.*?\s(\d+)\.\d", text(root / "proc/driver/nvidia/version"))
    built = {name: int(found[1]) for name in installed for pattern in (_DALI, _CUPY) if (found := pattern.match(name))}
    torch_cuda = _of_torch()
    values: dict[str, float | str | None] = {**built, "torch": torch_cuda, "driver": told and told[1]}
    if told is None:
        yield Finding("GPU", "note", "there is no NVIDIA driver: all runs on the CPU", values=values)
        return
    driver = int(told[1])
    newest = next((major for least, major in _NEWEST_CUDA_OF_DRIVERS if driver >= least), 10)
    yield Finding("GPU", "good", f"driver {driver}, for CUDA {newest} and older", values=values)
    for name, major in {**built, **({"torch": torch_cuda} if torch_cuda else {})}.items():
        if major > newest:
            said = f"{name} is built for CUDA {major}, but the driver is for CUDA {newest}"
            yield Finding("GPU", "wrong", said, "install a newer driver, or the package's wheel for an older CUDA")
    if torch_cuda is None:
        remedy = "install a build with CUDA, as pytorch.org says: batches stay on the CPU, and none is on the GPU"
        yield Finding("GPU", "slow", "PyTorch is built for the CPU alone", remedy)
    dali, cupy = ([built[name] for name in built if pattern.match(name)] for pattern in (_DALI, _CUPY))
    if not cupy:
        remedy = f"for a DeviceStore: {how_to_install('gpu')}; for CUDA 13 see docs/gpu.md"
        yield Finding("GPU", "note", "CuPy is not installed", remedy)
    elif dali and cupy != dali:
        of_cupy, of_dali = (" and ".join(map(str, majors)) for majors in (cupy, dali))
        said = f"CuPy is built for CUDA {of_cupy}, and DALI for CUDA {of_dali}"
        yield Finding("GPU", "wrong", said, "install both for the same, see docs/gpu.md")


def _of_torch() -> int | None:
    """Return the major version of CUDA that PyTorch was built for, without loading it; None: for the CPU alone."""
    spec = importlib.util.find_spec("torch")
    where = [Path(folder) / "version.py" for folder in (spec.submodule_search_locations or ())] if spec else []
    found = re.search(r"^cuda\b.*?=\s*'(\d+)", text(where[0]) if where else "", re.MULTILINE)
    return int(found[1]) if found else None


def kernels() -> Iterator[Finding]:
    """Say whether kernels are compiled, and kept where they can be."""
    if importlib.util.find_spec("numba") is None:
        return
    from dalirefurb.kernels.ahead import kept_kernels

    folder, kept = kept_kernels()
    values = {"folder": None if folder is None else str(folder), "kept": kept}
    if folder is None:
        said = "there is no folder where compiled kernels can be kept: each process compiles them anew"
        yield Finding("kernels", "slow", said, "set NUMBA_CACHE_DIR to a folder that can be written", values)
    elif not kept:
        said = f"none is compiled yet; the first loader does it, and keeps them in {folder}"
        yield Finding("kernels", "note", said, "in images of containers: dalirefurb compile", values)
    else:
        yield Finding("kernels", "good", f"{kept} compiled functions are kept in {folder}", values=values)
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        remedy = "unset it: what is meant for a debugger makes every pixel Python's"
        yield Finding("kernels", "wrong", "NUMBA_DISABLE_JIT is set, so nothing is compiled", remedy)
    if sys.gettrace() is not None:
        yield Finding("kernels", "note", "a debugger or a measure of coverage is at work, which slows Python down")
