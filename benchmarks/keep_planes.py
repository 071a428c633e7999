"""What do planes cost, that are kept in place of RGB in half the bytes? Standard on a keep of each, beside each other.

    RandAugment      what `rand_augment` does to each image, as in keep.py
    crop and flip    a crop that is resized, and a flip: the least that a training does, so planes cost the most of it

Claims, on any machine, of JPEGs of 4:2:0: planes are served at 0.85 of the speed of RGB at least, with RandAugment and
without, and have at most 0.52 of its bytes.
Bound: none is known: half the bytes come from memory, but RGB is made of them.
n: 9 rounds (`--rounds`), each a slice of every contender in turn, at least 4,096 images timed in each.

Files are photographs that are encoded anew as 4:2:0, with quality 90. Keeps lie in memory, and are filled before.

    python benchmarks/keep_planes.py                        about 5 minutes on 2 cores
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
from claims import Claim, Spread, say_speeds
from experiment import Experiment, Options
from keep import FILES, encode
from loaders import STANDARD, LoaderTurns, Loading
from sources import MEMORY, repeated

from dalirefurb import Kept, simple
from dalirefurb.keep.kept import Form
from dalirefurb.keep.upkeep import inspect

FORMS: dict[str, Form] = {"RGB": "decoded", "planes": "planes"}
LEAST_SPEED, MOST_BYTES = 0.85, 0.52


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        timed_batches: Of a slice.
        memory: Folder in memory where keeps are made.
    """

    timed_batches: int = 64
    memory: str = MEMORY


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Encode the photographs anew, fill both keeps, and let all take turns."""
    recipes = {"RandAugment": config.recipe(), "crop and flip": simple(config.size)}
    planner = config.planners()[STANDARD]
    with ExitStack() as stack:
        files, memory = (Path(stack.enter_context(TemporaryDirectory(dir=folder))) for folder in (None, config.memory))
        encode(options.data, files, FILES["4:2:0"] or 0)
        source = repeated(files, config.samples)
        keeps = {name: Kept(source, memory / name, form=form) for name, form in FORMS.items()}
        for keep in keeps.values():
            keep.fill()
        turns = []
        for recipe, made in recipes.items():
            for name, keep in keeps.items():
                turns.append(LoaderTurns(stack, f"{recipe}, {name}", keep, made, planner))
                turns[-1].settle()
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
        nbytes = {name: inspect(memory / name).nbytes / len(source) for name in FORMS}
    speeds = harness.speeds_of(slices)
    share = nbytes["planes"] / nbytes["RGB"]
    claims = [
        *(Claim.between(speeds, f"{recipe}, planes", f"{recipe}, RGB", LEAST_SPEED) for recipe in recipes),
        Claim("bytes of planes / RGB", Spread(share, share, share), most=MOST_BYTES),
    ]
    say_speeds(speeds, claims, ", ".join(f"{each / 1e3:.0f} KB an image as {name}" for name, each in nbytes.items()))
    return {"kept_bytes": nbytes, "claims": claims, "slices": slices}


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=32, rounds=9),
    quick=Config(layers=0, size=32, batch_size=4, epoch_batches=3, rounds=1, timed_batches=2, memory="/tmp"),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
