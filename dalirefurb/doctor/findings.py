"""Findings of an examination: what is installed, the machine, its memory and disks, and what the page cache holds."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from dalirefurb.errors import how_to_install
from dalirefurb.source.files import EXTENSIONS
from dalirefurb.store.disk.page_cache import is_cached
from dalirefurb.system.control_groups import text
from dalirefurb.system.resources import amount, available_bytes, busy_s, usable_cores

State = Literal["good", "note", "slow", "wrong", "unknown"]
"""All is well; to be known when figures are read; a loader will be slower than it could be; something will fail."""


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        topic: Thing that was examined, such as "memory".
        state: How it is.
        said: What was found, in words.
        remedy: What to do about it; empty if nothing is to be done.
        values: Figures, each with its unit in its name.
    """

    topic: str
    state: State
    said: str
    remedy: str = ""
    values: Mapping[str, float | str | None] = field(default_factory=dict)

    def unless(self, holds: bool, state: State, remedy: str) -> Finding:
        """Return this finding, or where something holds one in another state, with what to do about it."""
        return replace(self, state=state, remedy=remedy) if holds else self


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


_WATCHED_S = 1.0
_BUSY_CORES = 0.25
_FEW_CORES = 2
_LITTLE_BYTES = 2_000_000_000

_BLOCK = os.urandom(4 << 20)
_LONGEST_S = 1.0
_MOST_BYTES = 256 << 20
_FILES_LOOKED_AT = 200
_FILES_READ = 50
_SLOW_BYTES_PER_S = 100e6
_MOSTLY = 0.5
_MOST_PIXELS = 100_000_000


def cores() -> Iterator[Finding]:
    """Compare the cores that may be used with those that there are."""
    usable, there, named = usable_cores(), os.cpu_count() or 1, len(os.sched_getaffinity(0))
    values = {"usable_cores": usable, "cores": there, "affinity_cores": named}
    said = f"{usable} of {there} may be used"
    if usable < there:
        limit = "the process's affinity" if named <= usable else "the CPU quota of its control group"
        remedy = "if it is to have more: taskset, the container's or the job's number of cores"
        yield Finding("cores", "note", f"{said}: {limit} says so", remedy, values)
    else:
        remedy = "a loader and a training loop share it: give the process two or more"
        yield Finding("cores", "good", said, values=values).unless(usable < _FEW_CORES, "slow", remedy)


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
    remedy = "wait until they are done, or give the loader cores of its own; figures of speed are of a busy machine"
    found = Finding("other processes", "good", f"keep {busy:.1f} cores busy", values=values)
    yield found.unless(busy >= _BUSY_CORES, "slow", remedy)
    if stolen >= _BUSY_CORES:
        said = f"its host takes {stolen:.1f} of its cores for others"
        yield Finding("virtual machine", "slow", said, "measure at another time, or on another machine", values)


def memory(root: Path = Path("/")) -> Iterator[Finding]:
    """Say how much memory a store may take, and whether the machine swaps."""
    available = available_bytes(root)
    if available is None:
        yield Finding("memory", "unknown", "the system keeps no account of its memory")
        return
    remedy = "wait until other processes are done, raise the limit of the container, or keep the cache in a DiskStore"
    found = Finding("memory", "good", f"{amount(available)} are available", values={"available_bytes": available})
    yield found.unless(available < _LITTLE_BYTES, "slow", remedy)
    table = dict(line.split(":", 1) for line in text(root / "proc/meminfo").splitlines() if ":" in line)
    swapped = (int(table.get("SwapTotal", "0").split()[0]) - int(table.get("SwapFree", "0").split()[0])) * 1024
    if swapped > _LITTLE_BYTES:
        remedy = "what was swapped out comes back at the speed of a disk: give stores less memory"
        yield Finding("memory", "slow", f"{amount(swapped)} are swapped out", remedy, {"swapped_bytes": swapped})


def shared_memory() -> Iterator[Finding]:
    """Say how much shared memory there is, and how fast it is."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("shared memory", "note", "there is none at /dev/shm; the library needs none")
        return
    free = shutil.disk_usage(folder).free
    written, read, _ = disk_speeds(folder)
    values = {"free_bytes": free, "write_bytes_per_s": written, "read_bytes_per_s": read}
    said = f"{amount(free)} free, written at {amount(written)}/s and read at {amount(read)}/s"
    yield Finding("shared memory", "good", f"{said}; the library needs none, PyTorch's workers do", values=values)


def temporary_folder() -> Iterator[Finding]:
    """Measure the disk of the temporary folder, where a `DiskStore` often is."""
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    written, from_disk, from_cache = disk_speeds(folder)
    values = {
        "free_bytes": free,
        "write_bytes_per_s": written,
        "read_bytes_per_s": from_disk,
        "page_cache_bytes_per_s": from_cache,
    }
    said = (
        f"{folder}: {amount(free)} free, written at {amount(written)}/s, read at {amount(from_disk)}/s from "
        f"the disk and at {amount(from_cache)}/s from the page cache"
    )
    remedy = "put a DiskStore on a local disk that is faster, or keep less in it: coverage, or a smaller image size"
    yield Finding("temporary folder", "good", said, values=values).unless(from_disk < _SLOW_BYTES_PER_S, "slow", remedy)


def data_set(folder: Path) -> Iterator[Finding]:
    """Say how much of a data set's first files the page cache holds, and how fast the others are read."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS and path.is_file())
    files = list(islice(found, _FILES_LOOKED_AT))
    if not files:
        remedy = f"pass the folder of a data set; images end with {', '.join(sorted(EXTENSIONS))}"
        yield Finding("data set", "note", f"{folder} holds no images", remedy)
        return
    shares = {path: share for path in files if (share := _cached_share(path)) is not None}
    values: dict[str, float | str | None] = {"files_looked_at": len(files)}
    if shares:
        share = sum(shares.values()) / len(shares)
        values["page_cache_share"] = round(share, 3)
        said = f"{share:.0%} of {len(shares)} of its files is in the page cache"
        remedy = "what is measured now reads memory; a larger data set, or a first epoch elsewhere, reads the disk"
        yield Finding("data set", "good", said, values=values).unless(share >= _MOSTLY, "note", remedy)
    cold = [path for path, share in shares.items() if share == 0.0][:_FILES_READ]
    if cold:
        began, nbytes, count = time.perf_counter(), 0, 0
        while count < len(cold) and (not count or time.perf_counter() - began < _LONGEST_S):
            nbytes += len(cold[count].read_bytes())
            count += 1
        seconds = time.perf_counter() - began
        speed, rate = nbytes / seconds, count / seconds
        said = f"one thread reads {rate:,.0f} files/s from its disk, {amount(speed)}/s"
        yield Finding("data set", "good", said, values={"files_per_s": round(rate), "read_bytes_per_s": round(speed)})
    yield from _kinds(files[:: -(-len(files) // _FILES_READ)])


def _kinds(files: list[Path]) -> Iterator[Finding]:
    """Say what some files take, decoded, too, which share Pillow decodes, and how long it takes it.

    Not more of them are looked at than are read in a second.
    """
    from dalirefurb.reading.formats import proven
    from dalirefurb.reading.pillow_decoder import PillowDecoder, PillowError
    from dalirefurb.source.levels import Levels

    decode, began = PillowDecoder(_MOST_PIXELS, Levels()), time.perf_counter()
    looked_at, odd, broken, seconds, sizes = 0, 0, 0, 0.0, list[tuple[int, int]]()
    while looked_at < len(files) and (not looked_at or time.perf_counter() - began < _LONGEST_S):
        content, name = np.frombuffer(files[looked_at].read_bytes(), np.uint8), str(files[looked_at])
        looked_at += 1
        if (header := proven(content)) is not None:
            sizes.append((len(content), 3 * header.height * header.width))
        else:
            started = time.perf_counter()
            try:
                decode(content, name)
            except PillowError:
                broken += 1
            seconds += time.perf_counter() - started
            odd += 1
    if sizes:
        encoded, decoded = (sum(each) // len(sizes) for each in zip(*sizes, strict=True))
        free = shutil.disk_usage(tempfile.gettempdir()).free
        rooms = {"memory": available_bytes() or 0, "the temporary folder's disk": free}
        said = f"an image takes {amount(encoded)} as a file and {amount(decoded)} decoded; there is room for "
        said += " and ".join(f"{nbytes // decoded:,} decoded in {place}" for place, nbytes in rooms.items())
        remedy = "where all have room, Kept(source, '/dev/shm/keep') decodes each once, which costs no diversity"
        values: dict[str, float | str | None] = {"file_bytes": encoded, "decoded_bytes": decoded}
        yield Finding("data set", "good", said, remedy, values)
    values = {"pillow_share": round(odd / looked_at, 3), "pillow_s_per_file": seconds / odd if odd else None}
    files_said = f"{looked_at} files that were looked at"
    if not odd:
        yield Finding("data set", "good", f"DALI decodes all of {files_said}", values=values)
        return
    said = f"Pillow decodes {odd} of {files_said}, in {1000 * seconds / odd:.1f} ms each"
    said += f"; {broken} of {odd} it cannot decode" * (broken > 0)
    remedy = "they are of no kind that DALI is given: as JPEG, PNG or WebP of 8 bits they would be"
    yield Finding("data set", "slow" if odd >= _MOSTLY * looked_at else "note", said, remedy, values)


def disk_speeds(folder: Path) -> tuple[float, float, float]:
    """Return the bytes per second that a folder's disk takes, that it gives, and that the page cache gives.

    A file is written there, dropped from the page cache, which shared memory never is, read twice, and deleted.

    Raises:
        OSError: If no file can be written there.
    """
    most = min(_MOST_BYTES, shutil.disk_usage(folder).free // 2)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began, blocks = time.perf_counter(), 0
        while not blocks or (blocks * len(_BLOCK) < most and time.perf_counter() - began < _LONGEST_S):
            file.write(_BLOCK)
            blocks += 1
            os.fdatasync(file.fileno())  # Block by block: what a slow disk has not yet would take long at the end.
        speeds = [blocks * len(_BLOCK) / (time.perf_counter() - began)]
        with suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = bytearray(len(_BLOCK))
        for _ in range(2):
            file.seek(0)
            began, nbytes = time.perf_counter(), 0
            while (not nbytes or time.perf_counter() - began < _LONGEST_S) and (count := file.readinto(buffer)):
                nbytes += count
            speeds.append(nbytes / (time.perf_counter() - began))
    return speeds[0], speeds[1], speeds[2]


def _cached_share(path: Path) -> float | None:
    """Return the share of a file's beginning, middle and end that the page cache holds; None if it is not told."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return None
        held = [is_cached(file.fileno(), place) for place in sorted({0, size // 2, size - 1})]
    known = [each for each in held if each is not None]
    return sum(known) / len(known) if known else None
