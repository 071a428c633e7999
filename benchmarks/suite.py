"""What holds when everything is measured in one run? Each script of the suite, its figure, and its claims.

against     images/s beside every other loader that runs here, reuse factors 1 to 5
splits      every place to split a recipe at
headspace   on fewer and more cores, and with training steps of every length
ablations   without either shuffler: misses, and time per batch
contention  beside busy processes: the share of its speed that each loader keeps
planning    planning and drawing for up to 10 billion samples

python benchmarks/competitors/build.py                  once: the environment of the other loaders
python benchmarks/suite.py                              about 115 minutes on 2 quiet cores; into results/
python benchmarks/suite.py --only ablations planning    some of it
python benchmarks/suite.py --quick --out FOLDER         a minute; its figures mean nothing
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import ablations
import against
import contention
import experiment
import headspace
import planning
import plot
import splits
import workers
from claims import Claim


def _planning(arguments: Sequence[str]) -> int:
    """Run it in a light process: it measures memory in others, which import what this one does."""
    return subprocess.run([sys.executable, planning.__file__, *arguments], check=False).returncode


SCRIPTS: dict[str, Callable[[Sequence[str]], int]] = {
    "against": against.EXPERIMENT.main,
    "splits": splits.EXPERIMENT.main,
    "headspace": headspace.EXPERIMENT.main,
    "ablations": ablations.EXPERIMENT.main,
    "contention": contention.EXPERIMENT.main,
    "planning": _planning,
}
_WITHOUT_DATA = {"planning"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, one script after the other, and draw each figure; end with 1 as they do."""
    options = _parser().parse_args(arguments)
    if options.quick and options.out is None:
        experiment.refuse("--quick makes figures that mean nothing: say with --out FOLDER where they go")
    folder = options.out or experiment.RESULTS
    experiment.check_photographs(options.data)
    broken = []
    for name in options.only:
        out = folder / f"{name}.json"
        print(f"\n== {name}\n", flush=True)
        given = ["--out", str(out), *(["--quick"] if options.quick else [])]
        given += [] if name in _WITHOUT_DATA else ["--data", str(options.data)]
        before = out.stat().st_mtime_ns if out.exists() else None
        status = SCRIPTS[name]([*given, "--competitors", str(options.competitors)] if name == "against" else given)
        gc.collect()
        if not out.exists() or out.stat().st_mtime_ns == before:
            broken.append(f"{name}: it wrote no results, and ended with {status}")
            continue
        run = json.loads(out.read_text())
        plot.save(run, out.with_suffix(".png"))
        broken += [f"{name}: {claim.name}" for claim in map(Claim.read, run["results"]["claims"]) if not claim.holds]
    print("\nwhat did not hold:" if broken else "\nevery claim held", *broken, sep="\n    ")
    return 1 if broken and not options.quick else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run the whole suite.")
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS), help="some of the scripts")
    parser.add_argument("--data", type=Path, default=experiment.PHOTOS, help="a folder of images per class")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--out", type=Path, help="a folder; results/ beside this script by default")
    parser.add_argument(
        "--competitors", type=Path, default=workers.PYTHON, help="Python of the environment they are in"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
