"""How fast is it beside what else there is? Images/s of every loader that runs here, first epochs, and memory.

Claims, on 2 cores:
    standard at least 1.8 times stock DALI with nearest interpolation, 2.5 times stock DALI as it comes, and 2.0 times
    the better of PyTorch's DataLoaders;
    refurbished at reuse factor 3, in the paper's order, at least 4, 6 and 5 times these; more with the crop last.
Bound: a reuse factor of n brings at most n times standard.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, an epoch of 8 batches of 256 timed in each.

Like for like: the same files from the page cache; decode, random resized crop of 0.08 .. 1 of the area with
anti-aliasing, flip, two layers of RandAugment of magnitude 9 with nearest interpolation but where a row says default,
float32 (256, 3, 224, 224), normalised. Those that have no RandAugment, and loaders of ours beside them, crop and flip
alone, in rounds of their own, after the others have let go of their memory. The consumer does nothing. Each competitor
runs as was fastest for it in a calibration, whose slices are in the JSON; our loaders run as they come, are made anew
for each slice, and serve an epoch before their first. Competitors with an environment of their own
(competitors/build.py) are a process for each slice, so that none takes memory in others' turns; what it can have made
ahead is served before it is timed, as of all. Without that environment the suite runs on what is there.

Alone: after its turns each has a process of its own for one epoch, from its start, imports and all that it writes of
the images included, and the memory of all its processes after that, with files below /dev/shm; a page that some share
counts once. Our kernels are compiled by then, as `dalirefurb compile` does it: cold_start.py has what that takes.

HyCache caches, for a given memory, what saves most time: of two layers of RandAugment behind a crop nothing but the
decoded image, so its choice where half of them fit is a row of ours.

    python benchmarks/competitors/build.py              once, minutes
    python benchmarks/against.py                        about 75 minutes on 2 cores, with 20 GB
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice
from typing import Any

import contestants
import harness
import numpy as np
import stock_dali
import workers
from claims import Claim, Spread, claim_table, say, table_of
from competitors.rows import CROP_AND_FLIP, MOSAIC, VOLUMES, WITH_MASKS, WITH_OBJECTS, WRITTEN_ONCE, Job
from contestants import HALF_KEPT, REUSE_FACTORS, Config, Ours, ours_name
from experiment import Experiment, Options
from harness import Contender, Entrant, Placement, Slice
from loaders import KEPT, STANDARD, LoaderTurns, default_placement
from PIL import Image
from sources import MEMORY, listed

from dalirefurb import FileList, Kept

DATA_LOADER = "DataLoader"

ELSEWHERE = {
    "HyCache's own code": "on no package index; asks for CPLEX and DALI 1.31",
    "Seneca's own code": "a build of PyTorch 1.11 for CUDA 11.7, beside Redis",
}
"""What no environment here has, and why."""

_COLUMNS = {
    "loader": "{name}",
    "setting": "{setting}",
    "images/s [quartiles]": "{images_per_s:0}",
    "first epoch, s": "{first_epoch_s:.1f}",
    "MB": "{memory_mb:.0f}",
    "different": "{different:.2f}",
    "resumes": "{resumes}",
    "keeps": "{kept}",
}
_OURS = (STANDARD, KEPT, HALF_KEPT, "reuse factor")
_MB = 1e6


@dataclass(frozen=True)
class Facts:
    """What a loader does beside being fast.

    Attributes:
        resumes: What an epoch goes on with that was interrupted: "exact": the images that it would have had; "by
            sample": its samples, augmented anew; "no": it begins again.
        kept: Between epochs: "nothing", "files", "decoded images", "partial images".
        different: Share of different images among those that it serves.
    """

    resumes: str
    kept: str
    different: float = 1.0


@dataclass(frozen=True)
class Alone:
    """One loader in a process of its own.

    Attributes:
        first_epoch_s: From the start of the process, in seconds.
        memory_mb: Of all its processes after that, and of files that they have in memory, in MB.
    """

    first_epoch_s: float
    memory_mb: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Whoever takes turns.

    Attributes:
        turns: What takes them.
        setting: As it runs.
        facts: About it.
        alone: Has it in a process of its own.
        ours: What it is, if it is ours.
    """

    turns: Entrant
    setting: str
    facts: Facts
    alone: workers.WorkerTurns
    ours: Ours | None = None


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Calibrate the competitors, and let all that do the same work take turns, then run alone."""
    there = workers.available(options.competitors)
    missing = {**there.missing, **ELSEWHERE}
    decoded = _decoded_bytes(config.source(options.data))
    rows = [row for row in there.settings if not row.endswith((WITH_MASKS, WITH_OBJECTS, MOSAIC, VOLUMES))]
    calibration: list[Slice] = []
    slices: list[Slice] = []
    competitors: list[dict[str, Any]] = []
    groups = (
        (False, contestants.whole_recipe, contestants.STOCK),
        (True, contestants.cropped, contestants.CROPPED_STOCK),
    )
    for less, make, stock in groups:
        own = {row: there.settings[row] for row in rows if row.endswith(CROP_AND_FLIP) is less}
        if less and not own:
            continue
        taken = Turns(config, options, decoded, there.facts, calibration)
        found = taken.take(make(config, decoded), stock, own)
        slices += found
        speeds = harness.speeds_of(found)
        for entry in taken.entries:
            alone = taken.alone(entry)
            competitors.append(
                {
                    "name": entry.turns.name,
                    "setting": entry.setting,
                    "ours": entry.ours is not None,
                    "order": entry.ours and entry.ours.order,
                    "reuse_factor": entry.ours.reuse_factor if entry.ours else 1,
                    "images_per_s": Spread.of(speeds[entry.turns.name]),
                    **asdict(entry.facts),
                    **asdict(alone),
                }
            )
    judged = claims(slices)
    say(
        table_of(competitors, _COLUMNS),
        claim_table(judged),
        *(f"left out: {name}: {reason}" for name, reason in missing.items()),
    )
    return {
        "competitors": competitors,
        "claims": judged,
        "files_in_memory": MEMORY,  # whose files are counted as memory
        "missing": missing,
        "versions": there.versions,
        "slices": slices,
        "calibration": calibration,
    }


class Turns:
    """Loaders that do the same, in turn, and each alone.

    Args:
        config: Sizes.
        options: Of the command line.
        decoded_bytes: Of all images.
        facts: Of competitors with an environment of their own, by row.
        calibration: Takes the slices in which settings are tried.

    Attributes:
        entries: Whoever took turns.
    """

    def __init__(
        self,
        config: Config,
        options: Options,
        decoded_bytes: int,
        facts: Mapping[str, Mapping[str, str]],
        calibration: list[Slice],
    ) -> None:
        self.entries: list[Entry] = []
        self._config = config
        self._options = options
        self._decoded_bytes = decoded_bytes
        self._facts = facts
        self._calibration = calibration
        self._source = config.source(options.data)

    def take(
        self, ours: Mapping[str, Ours], stock: Sequence[str], rows: Mapping[str, Sequence[workers.Tried]]
    ) -> list[Slice]:
        """Calibrate competitors, let them and loaders of ours take turns, and let go of all of them.

        Args:
            ours: Our loaders.
            stock: Names of stock DALI's.
            rows: Competitors with an environment of their own, and the settings that are tried.

        Returns:
            The slices.
        """
        config, source = self._config, self._source
        with ExitStack() as stack:
            loaders = []
            for name, each in ours.items():
                files = each.source(stack, source)
                if isinstance(files, Kept):
                    files.fill()
                loaders.append(LoaderTurns(stack, name, files, each.recipe, each.planner))
                keeps = "decoded images" if each.keep else "partial images" if each.reuse_factor > 1 else "nothing"
                facts = Facts("exact", keeps, each.different)
                self._add(loaders[-1], default_placement(), facts, ours=each)
            for name in stock:
                contender = self._stock(name)
                stack.callback(contender.batches.close)
                self._add(contender, contender.placement, Facts("exact", "nothing"))  # with DALI's own checkpoints
            python, tried = self._options.competitors, self._calibration
            for worker in workers.calibrated(stack, source, rows, config.size, config, python, tried, ends=True):
                facts = Facts(**self._facts[worker.name])
                self.entries.append(Entry(turns=worker, setting=worker.setting, facts=facts, alone=worker.anew()))
            for loader in loaders:
                loader.settle()
            entrants = [entry.turns for entry in self.entries]
            return harness.interleave(entrants, rounds=config.rounds, timed_batches=config.epoch_batches)

    def alone(self, entry: Entry) -> Alone:
        """Have one of them serve an epoch in a process of its own; what competitors write once they write anew."""
        shutil.rmtree(self._options.competitors.parents[1] / WRITTEN_ONCE, ignore_errors=True)
        began = time.perf_counter()
        try:
            with entry.alone.turn() as contender:
                for _ in islice(contender.batches, self._config.epoch_batches):
                    pass
                return Alone(time.perf_counter() - began, entry.alone.memory_bytes() / _MB)
        finally:
            entry.alone.close()

    def _add(self, turns: Entrant, placement: Placement | str, facts: Facts, ours: Ours | None = None) -> None:
        """Add one that runs here; its process is another one of this Python."""
        config, source = self._config, self._source
        setting = {each.name: getattr(config, each.name) for each in fields(config)}
        size, batch_size = setting.pop("size"), setting.pop("batch_size")
        setting |= {"placement": str(placement), "decoded_bytes": self._decoded_bytes}
        files, labels = listed(source)
        job = Job(turns.name, files, labels, size, batch_size, setting)
        once = workers.Tried(setting, made_ahead=0, rotation=1)
        alone = workers.WorkerTurns(job, once, (sys.executable, contestants.__file__), os.environ)
        self.entries.append(Entry(turns=turns, setting=str(placement), facts=facts, alone=alone, ours=ours))

    def _stock(self, name: str) -> Contender:
        at = partial(contestants.stock, name, self._config, self._source)
        if name == stock_dali.DYNAMIC:
            return at(Placement(1, harness.cores()))
        best, slices = harness.calibrate(
            at,
            rounds=self._config.calibration_rounds,
            timed_batches=self._config.calibration_batches,
            among=stock_dali.placements(),
        )
        self._calibration += slices
        return at(best)


def claims(slices: Sequence[Slice]) -> list[Claim]:
    """Divide figures of one round by each other; what did not run is left out."""
    speeds = harness.speeds_of(slices)
    loaders = [name for name in speeds if name.startswith(DATA_LOADER) and not name.endswith(CROP_AND_FLIP)]
    better = "the better DataLoader"
    of_all = {**speeds, better: np.max([speeds[name] for name in loaders], axis=0).tolist()} if loaders else speeds
    rivals = [name for name in (stock_dali.NEAREST, stock_dali.DEFAULT, better) if name in of_all]
    refurbished, crop_last = ours_name("paper", 3), ours_name("crop_last", 3)
    least = {STANDARD: (1.8, 2.5, 2.0), refurbished: (4.0, 6.0, 5.0)}
    made = [
        Claim.between(of_all, name, rival, promised)
        for name, promises in least.items()
        if name in speeds
        for rival, promised in zip(rivals, promises, strict=False)
    ]
    if {crop_last, refurbished} <= set(speeds):
        made.append(Claim.between(speeds, crop_last, refurbished, 1.0))
    reused = {ours_name("paper", factor): factor for factor in REUSE_FACTORS}
    made += [Claim.between(speeds, name, STANDARD, bound=n) for name, n in reused.items() if name in speeds]
    made += [Claim.between(speeds, name, STANDARD) for name in (KEPT, HALF_KEPT) if name in speeds]
    named = {*rivals, *loaders}
    others = [name for name in speeds if name not in named and not name.startswith(_OURS)]
    for name in sorted(others):
        kind = f", {CROP_AND_FLIP}" if name.endswith(CROP_AND_FLIP) else ""
        made += [Claim.between(speeds, ours + kind, name) for ours in (STANDARD, KEPT) if ours + kind in speeds]
    return made


def _decoded_bytes(source: FileList) -> int:
    """Sum the bytes of all images once they are decoded."""
    files, _ = listed(source)
    nbytes: dict[str, int] = {}
    for file in set(files):
        with Image.open(file) as image:
            nbytes[file] = 3 * image.width * image.height
    return sum(nbytes[file] for file in files)


EXPERIMENT = Experiment(
    measure,
    Config(epoch_batches=8, rounds=5),
    quick=Config(
        layers=0,
        size=48,
        batch_size=8,
        epoch_batches=4,
        rounds=1,
        reuse_factors=(3,),
        crop_last=(),
        calibration_batches=2,
        calibration_rounds=1,
    ),
    options=workers.OPTION,
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
