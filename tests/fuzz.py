"""Serves broken files among good ones, in processes of their own, and tells what became of both.

    python -m tests.fuzz --mutations 21000 --seed 1 --found /tmp/found

breaks 3,000 files of each format, serves them at random places among as many good ones in batches of 64, by either
kernels, decoded by window or whole, and prints what became of them. The exit code is 1 if a process died or hung, a
good image was wrong, a broken file was neither served nor named, or DALI was given one that it sees otherwise than
Pillow. A process that
dies is asked again with half of the files, until one is left; that is written into the folder `--found`.
"""

from __future__ import annotations

import argparse
import io
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dalirefurb import BadSamplePolicy, Loader, Prefetch, Recipe, Standard, evaluate, simple
from dalirefurb.dali import Graph
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.planning.batch_plan import Indices
from dalirefurb.reading.inspector import Refused, decoded, judge
from dalirefurb.reading.pillow_decoder import PillowDecoder
from dalirefurb.source import Source
from dalirefurb.source.levels import Levels
from tests.mutations import FORMATS, mutation, notorious, originals

BATCH = 64
BATCHES = 4
ROUND = BATCH * BATCHES // 2
"""Broken files that are served together: half of the rows of all batches, at random places."""

SIZE = 32
MAX_PIXELS = 300_000
SILENT_S = 240.0
"""A process that has not finished a round for so long hangs."""

MIXED = "mixed"

TOLERANCE = 2
"""Levels by which DALI may differ from Pillow."""

_TRIES = 3
"""A process that dies of some files may survive them at times."""


@dataclass
class Outcome:
    """What became of files, good and broken.

    Attributes:
        broken: Broken files that were given to loaders.
        served: Broken files of which an image was served, whatever it shows.
        named: Broken files that are among a loader's bad samples, with a reason.
        good: Images of good files that were compared with what they are without broken ones.
        wrong: What is not as it should be, in words.
    """

    broken: int = 0
    served: int = 0
    named: int = 0
    good: int = 0
    wrong: list[str] = field(default_factory=list)

    def __iadd__(self, other: Outcome) -> Outcome:
        for each in fields(Outcome):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


class Files(Source):
    """Encoded files in memory."""

    encoded = True

    def __init__(self, contents: Sequence[bytes], names: Sequence[str]) -> None:
        self._contents = [np.frombuffer(content, np.uint8) for content in contents]
        self._names = names
        self.labels = np.arange(len(contents))

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [self._contents[index] for index in self._checked(indices)]

    def name(self, index: int) -> str:
        return self._names[index]

    def fingerprint(self) -> dict[str, Any]:
        return {"files": len(self)}


def broken_name(format_: str, seed: int, number: int) -> str:
    """Name a broken file; of the format "mixed" each format's in turn, and those that are notorious."""
    if format_ == MIXED:
        number, turn = divmod(number, len(FORMATS) + 1)
        if turn == len(FORMATS):
            known = list(notorious())
            return known[number % len(known)]
        format_ = FORMATS[turn]
    return f"{format_}-{seed}-{number}"


def broken_file(format_: str, seed: int, number: int, folder: Path | None = None) -> tuple[str, bytes]:
    """Name a broken file, and return it."""
    name = broken_name(format_, seed, number)
    if name in notorious():
        return name, notorious()[name]
    format_, _, own_number = name.split("-")
    return name, mutation(seed, format_, int(own_number), folder)


# One round: what becomes of some broken files?


def good_files() -> list[bytes]:
    """Fill all rows: two files of each format, one landscape and one portrait."""
    some = [content for format_ in FORMATS for content in originals(format_)[:2]]
    return [some[index % len(some)] for index in range(BATCH * BATCHES)]


def places() -> NDArray[np.int64]:
    """Draw which rows of `good_files` are broken instead, shape (ROUND,); the planner draws where they are served."""
    return np.sort(np.random.default_rng(0).permutation(BATCH * BATCHES)[:ROUND])


@dataclass(frozen=True)
class Epoch:
    """What was served in one epoch: rows in serving order.

    Attributes:
        planned: Samples that the plan asks for, shape (n,).
        shown: Samples that were served, those that replace others included, shape (n,).
        images: Shape (n, 3, SIZE, SIZE).
    """

    planned: Indices
    shown: Indices
    images: NDArray[np.float32]


def served(
    files: Sequence[bytes],
    names: Sequence[str],
    recipe: Recipe,
    *,
    kernels: Kernels,
    epochs: int,
) -> tuple[list[Epoch], dict[int, str]]:
    """Serve epochs; return them, and the reasons why samples are bad."""
    planner = Standard(len(files), batch_size=BATCH, seed=3)
    with Loader(
        Files(files, names),
        recipe,
        planner,
        kernels=kernels,
        prefetch=Prefetch(num_threads=2, replicas=1, batches_per_group=1),
        with_indices=True,
        bad_samples=BadSamplePolicy(max_pixels=MAX_PIXELS, on_bad_sample="replace"),
    ) as loader:
        found = []
        for epoch in range(epochs):
            batches = [tuple(part.numpy().copy() for part in batch) for batch in loader]
            images, _, shown = (np.concatenate(parts) for parts in zip(*batches, strict=True))
            found.append(Epoch(np.concatenate([plan.indices for plan in planner.epoch(epoch)]), shown, images))
        return found, {sample.index: sample.reason for sample in loader.bad_samples()}


class Rounds:
    """Serves rounds of broken files, and compares good images with what they are without broken ones."""

    def __init__(self, format_: str, seed: int, folder: Path | None) -> None:
        self._format = format_
        self._seed = seed
        self._folder = folder
        self._good = good_files()
        self._wanted: dict[tuple[Kernels, bool], list[Epoch]] = {}

    def round(self, first: int, count: int) -> Outcome:
        """Serve broken files of these numbers; a number's place and settings are the same in every round."""
        numbers = np.arange(first, first + count)
        rows = places()[numbers % ROUND]
        files, names = list(self._good), [f"good {index}" for index in range(len(self._good))]
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            names[row], files[row] = broken_file(self._format, self._seed, number, self._folder)
        turn = first // ROUND
        kernels: Kernels = "dali" if turn % 2 else "numba"
        whole = turn % 4 in (1, 2)
        recipe, epochs = (evaluate(SIZE), 2) if whole else (simple(SIZE), 1)
        if (kernels, whole) not in self._wanted:
            wanted, none = served(self._good, names, recipe, kernels=kernels, epochs=epochs)
            assert not none, none
            self._wanted[kernels, whole] = wanted
        epoch, reasons = served(files, names, recipe, kernels=kernels, epochs=epochs)
        outcome = compared(epoch, self._wanted[kernels, whole], reasons, rows=rows, names=names, alike=whole)
        outcome.wrong += [each for row in rows.tolist() for each in seen_otherwise(files[row], names[row])]
        settings = f"kernels {kernels}, {'whole' if whole else 'window'}"
        outcome.wrong = [f"{each} ({settings})" for each in outcome.wrong]
        return outcome


def seen_otherwise(content: bytes, name: str) -> Iterator[str]:
    """Say what DALI, if it is given a file, sees otherwise than Pillow, which may refuse it."""
    encoded = np.frombuffer(content, np.uint8)
    verdict = judge(encoded, PillowDecoder(MAX_PIXELS, Levels()))
    if verdict.decoder != "dali" or verdict.header is None:
        return
    try:
        with Image.open(io.BytesIO(content)) as image:
            wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB"), np.int16)
    except Exception:  # Every format has its own.
        return
    if wanted.shape[:2] != verdict.header[:2]:
        yield f"{name} is said to be {verdict.header[:2]}, and Pillow shows {wanted.shape[:2]}"
        return
    with suppress(Refused):
        shown = decoded(encoded, Levels(), name)
        if np.abs(shown - wanted).max() > TOLERANCE:
            yield f"{name} is shown otherwise than by Pillow"


def compared(
    epochs: Sequence[Epoch],
    wanted: Sequence[Epoch],
    reasons: dict[int, str],
    *,
    rows: Indices,
    names: Sequence[str],
    alike: bool,
) -> Outcome:
    """Compare what was served with what is served without broken files.

    Args:
        epochs: What was served.
        wanted: What is served where there are good files in place of the broken ones.
        reasons: Why samples are bad, by index.
        rows: Indices of broken files.
        names: Of all files.
        alike: Whether an image looks the same whenever and in whose place it is served.
    """
    outcome = Outcome(broken=len(rows))
    image_of = dict(zip(wanted[0].shown.tolist(), wanted[0].images, strict=True))
    first_image: dict[int, NDArray[np.float32]] = {}
    broken = set(rows.tolist())
    for number, (epoch, other) in enumerate(zip(epochs, wanted, strict=True)):
        for row, (planned, shown) in enumerate(zip(epoch.planned.tolist(), epoch.shown.tolist(), strict=True)):
            image = epoch.images[row]
            if shown in broken:
                if alike and not np.array_equal(first_image.setdefault(shown, image), image):
                    outcome.wrong.append(f"{names[shown]} is served otherwise in epoch {number}")
            elif alike or planned == shown:
                outcome.good += 1
                if not np.array_equal(image, image_of[shown] if alike else other.images[row]):
                    outcome.wrong.append(f"{names[shown]}, a good image, is wrong in epoch {number}, row {row}")
            if planned != shown and not reasons.get(planned):
                outcome.wrong.append(f"{names[planned]} is neither served nor named in epoch {number}")
    outcome.wrong += [f"{names[index]}, a good file, is named: {reasons[index]}" for index in set(reasons) - broken]
    outcome.named = len(broken & set(reasons))
    outcome.served = len(broken) - outcome.named
    return outcome


# Processes


@dataclass
class Report(Outcome):
    """What became of files in several processes.

    Attributes:
        died: Files that processes ended of, or files among which they are, and how.
        hung: Files among which are those that processes hung of.
    """

    died: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether all is as it should be."""
        return not (self.died or self.hung or self.wrong)


@dataclass(frozen=True)
class End:
    """How a process ended that served files: its exit code, None if it hung, and the last that it said."""

    code: int | None
    said: str = ""

    def __str__(self) -> str:
        return f"exit code {self.code}" + (f": {self.said}" if (self.code or 0) > 0 else "")


@dataclass(frozen=True)
class Fuzzer:
    """Has processes serve broken files.

    Attributes:
        format_: One of FORMATS, or MIXED.
        seed: Of the mutations.
        folder: Where there are files to break; None: those of `mutations`.
        found: A folder for files that processes die of; None: they are only named.
        silent_s: Seconds without a finished round after which a process hangs.
        command: Starts a process that serves.
    """

    format_: str
    seed: int
    folder: Path | None = None
    found: Path | None = None
    silent_s: float = SILENT_S
    command: tuple[str, ...] = (sys.executable, "-m", "tests.fuzz")

    def run(self, mutations: int) -> Report:
        """Serve so many broken files, in a process for as long as it lives."""
        report, first = Report(), 0
        while first < mutations:
            *outcomes, end = self._process(first, mutations - first)
            for outcome in outcomes:
                assert isinstance(outcome, Outcome)
                report += outcome
                first += outcome.broken
            assert isinstance(end, End)
            if end.code != 0:
                count = min(ROUND - first % ROUND, mutations - first)
                report.broken += count
                if end.code is None:
                    report.hung.append(
                        f"{broken_file(self.format_, self.seed, first, self.folder)[0]} or {count - 1} that follow"
                    )
                else:
                    report.died.append(self._narrowed(first, count, end))
                first += count
        return report

    def _process(self, first: int, count: int) -> Iterator[Outcome | End]:
        """Serve some broken files; yield what became of each round, and how the process ended."""
        files = () if self.folder is None else ("--files", str(self.folder))
        command = [*self.command, *files, "--serve", self.format_, str(self.seed), str(first), str(count)]
        with (
            tempfile.TemporaryFile() as noise,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=noise) as process,
        ):
            assert process.stdout is not None
            try:
                while select.select([process.stdout], [], [], self.silent_s)[0]:
                    line = process.stdout.readline()
                    if not line:
                        code = process.wait()
                        noise.seek(0)
                        said = noise.read().decode(errors="replace").strip().splitlines()
                        yield End(code, said[-1] if said else "")
                        return
                    yield Outcome(**json.loads(line))
                yield End(None)
            finally:
                process.kill()

    def _narrowed(self, first: int, count: int, end: End) -> str:
        """Find which of some files a process ends of, and name it."""
        while count > 1:
            half = count // 2
            for start, some in ((first, half), (first + half, count - half)):
                ends = (list(self._process(start, some))[-1] for _ in range(_TRIES))
                found = next((each for each in ends if isinstance(each, End) and each.code != 0), None)
                if found is not None:
                    first, count, end = start, some, found
                    break
            else:
                break
        name, content = broken_file(self.format_, self.seed, first, self.folder)
        if count > 1:
            return f"{name} or {count - 1} that follow ({end})"
        if self.found is not None:
            self.found.mkdir(parents=True, exist_ok=True)
            (self.found / name.replace(" ", "_")).write_bytes(content)
        return f"{name} ({end})"


def _serve(format_: str, seed: int, first: int, count: int, folder: Path | None) -> None:
    """Print a line of JSON for each round, in a process of its own."""
    Graph.serialize = cache(Graph.serialize)  # type: ignore[method-assign]  # That costs more than a round.
    rounds, last = Rounds(format_, seed, folder), first + count
    while first < last:
        some = min(ROUND - first % ROUND, last - first)
        sys.stdout.write(json.dumps(vars(rounds.round(first, some))) + "\n")
        sys.stdout.flush()
        first += some


def _line(name: str, report: Report) -> str:
    return (
        f"{name:10s} {report.broken:6d} broken: {report.served:6d} served, {report.named:6d} named; "
        f"{report.good:8d} good images compared, {len(report.wrong)} wrong; "
        f"{len(report.died)} died, {len(report.hung)} hung\n"
    )


def main() -> int:
    """Print what becomes of broken files; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=21_000, help="of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=[*FORMATS, MIXED])
    parser.add_argument("--files", type=Path, help="a folder of files to break, in place of made ones")
    parser.add_argument("--found", type=Path, help="a folder for files that processes die of")
    parser.add_argument("--processes", type=int, default=1, help="formats at a time")
    parser.add_argument("--serve", nargs=4, metavar=("FORMAT", "SEED", "FIRST", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        format_, *numbers = options.serve
        _serve(format_, *map(int, numbers), options.files)
        return 0
    share = -(-options.mutations // len(options.formats))
    clean = True
    with ThreadPoolExecutor(options.processes) as pool:
        reports = pool.map(
            lambda name: Fuzzer(name, options.seed, options.files, options.found).run(share), options.formats
        )
        for name, report in zip(options.formats, reports, strict=True):
            sys.stdout.write(_line(name, report))
            for trouble in (*report.died, *report.hung, *report.wrong):
                sys.stdout.write(f"    {trouble}\n")
            sys.stdout.flush()
            clean &= report.clean
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
