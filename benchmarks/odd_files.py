"""What do files cost that Pillow decodes, since they are of no kind that DALI is given?

Claim, on any machine: a folder of which 1 % is such files, at least 0.97 of one without, at standard.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a slice of every folder in turn, 12 batches of 256 timed in each.

Of the photographs every hundredth, or all, are written anew as TIFF, BMP, CMYK JPEG, GIF, and gray PNG of 16 bits in
turn. Nothing is reused: so every file is decoded at every use. The consumer does nothing.

    python benchmarks/odd_files.py                        4 minutes on 2 cores
    python benchmarks/odd_files.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import io
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options
from loaders import STANDARD, LoaderTurns, Loading
from PIL import Image

from dalirefurb import FileList

KINDS = (("TIFF", "RGB"), ("BMP", "RGB"), ("JPEG", "CMYK"), ("GIF", "P"), ("PNG", "I;16"))
"""Pillow's formats and modes."""


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        every: Of so many files one is odd, in each folder beside the one without.
        timed_batches: Of a slice.
    """

    every: tuple[int, ...] = (100, 1)
    timed_batches: int = 12


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let the folders take turns."""
    source = config.source(options.data)
    paths = [source.name(index) for index in range(len(source))]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        odd = _written_anew(dict.fromkeys(paths), Path(folder))
        sources = {STANDARD: source} | {
            _name(every): FileList(
                [odd[path] if number % every == 0 else path for number, path in enumerate(paths)], source.labels
            )
            for every in config.every
        }
        (planner,) = config.planners().values()
        turns = [LoaderTurns(stack, name, each, config.recipe(), planner) for name, each in sources.items()]
        for each in turns:
            each.settle()
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
        pillow_s = {turn.name: turn.stats[-1].pillow_s / max(turn.stats[-1].pillow_images, 1) for turn in turns}
    speeds = harness.speeds_of(slices)
    claims = [
        Claim.between(speeds, _name(every), STANDARD, least=0.97 if every >= 100 else None) for every in config.every
    ]
    rows = [[name, f"{Spread.of(speeds[name]):0}", f"{1000 * pillow_s[name]:.1f}"] for name in sources]
    say(table(["files that Pillow decodes", "images/s [quartiles]", "ms each"], rows))
    say(claim_table(claims))
    return {
        "folders": [
            {"name": name, "images_per_s": Spread.of(speeds[name]), "pillow_s": pillow_s[name]} for name in sources
        ],
        "claims": claims,
        "slices": slices,
    }


def _name(every: int) -> str:
    return f"{100 // every} % odd"


def _written_anew(paths: dict[str, None], folder: Path) -> dict[str, Path]:
    """Write each file as another kind; return where, by its own path."""
    odd: dict[str, Path] = {}
    for number, path in enumerate(paths):
        format_, mode = KINDS[number % len(KINDS)]
        with Image.open(io.BytesIO(Path(path).read_bytes())) as image:
            pixels = image.convert("RGB").convert("L" if mode == "I;16" else mode)
        odd[path] = folder / f"{number}.{format_.lower()}"
        if mode == "I;16":
            pixels = pixels.convert("I").point(lambda level: level * 257).convert("I;16")
        pixels.save(odd[path], format_)
    return odd


EXPERIMENT = Experiment(
    measure,
    Config(epoch_batches=12, rounds=5),
    quick=Config(layers=0, size=32, batch_size=8, epoch_batches=3, rounds=1, timed_batches=2),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
