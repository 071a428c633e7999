"""What do the command lines of these scripts have in common? Arguments, refusals, and where results go."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import harness

from dalirefurb import ImageFolder
from dalirefurb.errors import ConfigurationError


def arguments(
    description: str,
    *,
    result: str,
    rounds: int | None = None,
    data: Path = harness.PHOTOS,
    kind: str = "of images per class",
) -> argparse.ArgumentParser:
    """Begin a script's arguments.

    Args:
        description: Of the script.
        result: Name of its JSON.
        rounds: Slices of each contender by default; None if it has no rounds.
        data: The default folder.
        kind: What that folder holds.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=data, help=f"a folder {kind}")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, help=f"slices of each contender, {rounds} by default")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; written only where --out says")
    parser.add_argument("--out", type=Path, help=f"results/{result} beside this script by default")
    parser.set_defaults(result=result)
    return parser


def refuse(message: str) -> NoReturn:
    """End the script for an argument that cannot work.

    Raises:
        SystemExit: With 2, as for arguments that cannot be read.
    """
    print(message, file=sys.stderr)
    raise SystemExit(2)


def check_photographs(data: Path) -> None:
    """Refuse a folder that holds no images in folders of classes."""
    try:
        ImageFolder(data)
    except ConfigurationError as error:
        refuse(f"--data must hold one folder of images per class: {error}")


def check_mosaics(data: Path) -> None:
    """Refuse a folder that holds no CIFAR-10 as mosaics."""
    if not list(data.glob("train_[0-9]_*.webp")):
        refuse(
            f"--data must be a folder of mosaics of images, train_<label>_<name>.webp and test_<label>_<name>.webp, "
            f"but {data} holds none: pass another"
        )


@contextmanager
def result_path(options: argparse.Namespace) -> Iterator[Path]:
    """Say where results go that are written bit by bit; quick ones vanish unless they are asked for."""
    if options.quick and not options.out:
        with TemporaryDirectory() as folder:
            yield Path(folder) / options.result
    else:
        yield options.out or harness.RESULTS / options.result


def write(options: argparse.Namespace, *, environment: dict[str, Any], config: Any, results: Any) -> None:
    """Write results where the arguments say; quick ones only where they are asked for."""
    out = options.out or (None if options.quick else harness.RESULTS / options.result)
    if out is not None:
        harness.write(out, environment=environment, config=config, results=results)
