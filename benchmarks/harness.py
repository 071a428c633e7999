"""How is a figure taken that can be compared? Contenders take turns in one run, and figures are ratios of one round.

    round 0   standard ▏ reuse factor 2 ▏ reuse factor 3 ▏ ...
    round 1   ... ▏ reuse factor 3 ▏ reuse factor 2 ▏ standard          every second round runs backwards

    one slice   wait until the process is idle ▏ batches made ahead, ramp: not timed ▏ timed batches

A machine that is slower for a minute slows all contenders of that round alike. Batches that a contender made ahead
in the idle time before its turn cost it nothing, so they are served first and never timed. A slice that lasts for at
least some seconds has a ramp of a third of them: memory that was let go of in the last turn comes back page by page,
and a contender that needs a millisecond for a batch writes to new pages for longer than its first batches.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dalirefurb.system.cores import usable_cores
from dalirefurb.system.idle import wait_until_idle

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PHOTOS, CIFAR10 = DATA / "photos", DATA / "cifar10"

_RAMP_BATCHES = 2
_RAMP_SHARE = 1 / 3
_IDLE_LIMIT_S = 60.0
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


@dataclass(frozen=True)
class Placement:
    """How cores are shared out.

    Attributes:
        replicas: Pipelines that batches are dealt to in turn.
        threads: Of each pipeline.
    """

    replicas: int
    threads: int

    def __str__(self) -> str:
        return f"{self.replicas}x{self.threads}"


class Entrant(Protocol):
    """Whoever takes turns."""

    @property
    def name(self) -> str:
        """For tables and results."""

    def turn(self) -> AbstractContextManager[Contender]:
        """Serve batches for one turn, and let go of what is not needed until the next."""


@dataclass(frozen=True)
class Contender:
    """Something that serves batches.

    Attributes:
        name: For tables and results.
        placement: Where it runs, or how it is set.
        made_ahead: Batches that can be ready when its turn begins.
        batches: Serves a batch at each step and yields its number of images, without end.
    """

    name: str
    placement: Placement | str
    made_ahead: int
    batches: Generator[int, None, None]

    def turn(self) -> AbstractContextManager[Contender]:
        """Go on: nothing is let go of between turns."""
        return nullcontext(self)


@dataclass(frozen=True)
class Slice:
    """One turn of one contender.

    Attributes:
        contender: Its name.
        placement: Replicas x threads, or its setting.
        round: From 0.
        images: Served while the clock ran.
        seconds: From the arrival of the last batch that is not timed to that of the last one.
        batch_s: Time between arrivals, one per timed batch.
    """

    contender: str
    placement: str
    round: int
    images: int
    seconds: float
    batch_s: list[float]

    @property
    def images_per_s(self) -> float:
        """Throughput of the slice."""
        return self.images / self.seconds


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a figure taken once a round."""

    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise the rounds."""
        lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return cls(lower, median, upper)

    def show(self, decimals: int) -> str:
        """Write median and quartiles."""
        return f"{self.median:.{decimals}f} [{self.lower:.{decimals}f}, {self.upper:.{decimals}f}]"


@dataclass(frozen=True)
class Claim:
    """One figure that can fall short.

    Attributes:
        name: What is compared with what.
        figure: Over the rounds.
        least: What the median is promised to reach, None if nothing is.
        most: What the median is promised not to exceed, None if nothing is.
    """

    name: str
    figure: Spread
    least: float | None = None
    most: float | None = None

    @classmethod
    def ratio(
        cls,
        name: str,
        upper: Sequence[float],
        lower: Sequence[float],
        least: float | None = None,
        most: float | None = None,
    ) -> Claim:
        """Divide figures of one round by each other."""
        return cls(name, Spread.of([a / b for a, b in zip(upper, lower, strict=True)]), least, most)

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Claim:
        """Make it of its JSON."""
        return cls(written["name"], Spread(**written["figure"]), written["least"], written["most"])

    @property
    def holds(self) -> bool:
        """Whether the median is where it is promised to be; without a promise it is."""
        above = self.least is None or self.figure.median >= self.least
        return above and (self.most is None or self.figure.median <= self.most)

    @property
    def verdict(self) -> str:
        """Say what is promised and whether it holds."""
        if self.least is not None:
            return f"{'reaches' if self.holds else 'MISSES'} {self.least}"
        if self.most is not None:
            return f"{'within' if self.holds else 'EXCEEDS'} {self.most}"
        return "reported"

    def show(self) -> list[str]:
        """Write a row of a table: name, figure, verdict."""
        return [self.name, self.figure.show(2 if self.figure.median < 10 else 1), self.verdict]


def keep_memory() -> None:
    """Have the process keep what is let go of, for the next contender, where malloc is glibc's.

    Else, on a virtual machine, its host is told of it two seconds later (Linux's free page reporting), and what the
    host then does takes time from some batches of whoever has the next turn.
    """
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, -1)


def cores() -> int:
    """Count the cores that this process may use."""
    return usable_cores()


def placements() -> list[Placement]:
    """List one core alone, every way of sharing out all cores, and more replicas than cores."""
    whole = [Placement(replicas, cores() // replicas) for replicas in range(1, cores() + 1) if cores() % replicas == 0]
    return list(dict.fromkeys([Placement(1, 1), *whole, Placement(cores() + 1, 1), Placement(2 * cores(), 1)]))


def interleave(contenders: Sequence[Entrant], *, rounds: int, timed_batches: int, timed_s: float = 0.0) -> list[Slice]:
    """Give each contender a slice in every round, of at least so many batches and seconds."""
    slices: list[Slice] = []
    for number in range(rounds):
        turns = contenders if number % 2 == 0 else contenders[::-1]
        for entrant in turns:
            with entrant.turn() as contender:
                slices.append(time_slice(contender, number, timed_batches, timed_s))
    return slices


def by_round(slices: Sequence[Slice], name: str) -> list[Slice]:
    """Return a contender's slices, one per round."""
    return sorted((each for each in slices if each.contender == name), key=lambda each: each.round)


def per_round(slices: Sequence[Slice], name: str) -> list[float]:
    """Return a contender's images/s, one figure per round."""
    return [each.images_per_s for each in by_round(slices, name)]


def calibrate(
    make: Callable[[Placement], Contender],
    *,
    rounds: int,
    timed_batches: int,
    timed_s: float = 0.0,
    among: Sequence[Placement] | None = None,
) -> tuple[Placement, list[Slice]]:
    """Run a contender at every placement in turn, or at some; return the fastest by medians, and the slices.

    It is made anew for each slice: several at a time may need more memory than there is.
    """
    tried = placements() if among is None else among
    trials = [MadeAnew(str(placement), partial(make, placement)) for placement in tried]
    slices = interleave(trials, rounds=rounds, timed_batches=timed_batches, timed_s=timed_s)

    def speed(placement: Placement) -> float:
        return float(np.median([each.images_per_s for each in slices if each.placement == str(placement)]))

    return max(tried, key=speed), slices


@dataclass(frozen=True)
class MadeAnew:
    """A contender that is there only while it has its turn.

    Attributes:
        name: For tables and results.
        make: Makes it.
    """

    name: str
    make: Callable[[], Contender]

    @contextmanager
    def turn(self) -> Generator[Contender, None, None]:
        """Make the contender, let it touch the memory that it writes to, and let it go."""
        contender = self.make()
        try:
            for _ in islice(contender.batches, 2 * (contender.made_ahead + 1)):
                pass
            yield contender
        finally:
            contender.batches.close()


def time_slice(contender: Contender, number: int, timed_batches: int, timed_s: float) -> Slice:
    """Let a contender come to rest, have what it made ahead, and time it; `number` is that of the round."""
    if not wait_until_idle(_IDLE_LIMIT_S):
        raise RuntimeError(f"contenders must come to rest between slices, but worked on for {_IDLE_LIMIT_S:.0f} s")
    _serve(contender, contender.made_ahead + _RAMP_BATCHES, timed_s * _RAMP_SHARE)
    images, arrivals = _serve(contender, timed_batches, timed_s)
    return Slice(
        contender=contender.name,
        placement=str(contender.placement),
        round=number,
        images=images,
        seconds=arrivals[-1] - arrivals[0],
        batch_s=np.diff(arrivals).round(6).tolist(),
    )


def _serve(contender: Contender, batches: int, seconds: float) -> tuple[int, list[float]]:
    """Serve at least so many batches and for so long; return the images, and when it began and each batch arrived."""
    images = 0
    arrivals = [time.perf_counter()]
    while len(arrivals) <= batches or arrivals[-1] - arrivals[0] < seconds:
        images += next(contender.batches)
        arrivals.append(time.perf_counter())
    return images, arrivals


def environment() -> dict[str, Any]:
    """Describe the machine and the software, without names of hosts or folders. Asked before the run, for the load."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "dali": _version("nvidia-dali-cuda120") or _version("nvidia-dali-cuda130"),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "dalirefurb": _version("dalirefurb"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def write(path: Path, *, environment: dict[str, Any], config: Any, results: Any) -> None:
    """Write one run: where and what was run, and everything that was measured. Dataclasses become objects."""
    run = {"environment": environment, "config": config, "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1, default=asdict) + "\n")


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    lines = [heading, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    return "\n".join(
        "   ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Ask git about the project, None where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
