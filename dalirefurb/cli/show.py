"""`dalirefurb show`, and the pictures that `dalirefurb demo` draws. Imports come late, as in `commands`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.memory import PIXEL_BYTES, check_memory
from dalirefurb.cli.techniques import Chosen, choose, flag
from dalirefurb.cli.terminal import escaped, say
from dalirefurb.errors import ConfigurationError

if TYPE_CHECKING:
    from dalirefurb.augment.recipe import Recipe
    from dalirefurb.source import Source

PRESETS = ("rand_augment", "auto_augment", "auto_augment_cifar10", "trivial_augment", "simple", "evaluate")
"""Names on the command line."""

_WITHOUT_OPERATIONS = ("simple", "evaluate")
_OPERATION_PICTURES = 80
"""Of a sheet of operations, about."""

_ROW_BYTES = 64
"""Of an epoch's plan, at least: six arrays of int64 and of bool, and some that they are made from."""

_COUNT_BYTES = 24
"""Of what is counted in each epoch: served, computed, misses."""


def show(options: argparse.Namespace) -> None:
    """Draw what is cached and what is fresh, or operations, or a plan."""
    technique = choose(options.technique or "refurbish", options)
    out = options.out or Path("operations.png" if options.operations else "plan.png" if options.plan else "show.png")
    if options.plan:
        _show_plan(options, technique, out)
        return
    for name in ("technique", "num_samples"):
        if (value := getattr(options, name)) is not None:
            raise ConfigurationError(f"{flag(name)} is for --plan, got {value} without it; add --plan")
    from dalirefurb.checks import integer
    from dalirefurb.show.files import MOST_USES, check_writable, write_operations, write_pictures

    if options.operations:
        if options.preset in _WITHOUT_OPERATIONS:
            raise ConfigurationError(
                f"the preset must have operations of varying magnitude, but {options.preset} has none; pass another "
                f"--preset, or leave --operations out"
            )
        integer("size", options.size, 1, None, "224 is usual")
        images = _OPERATION_PICTURES
    else:
        recipe = technique.recipe(_preset(options.preset, options.size, order=options.order), options.split)
        reuse_factor = technique.options["reuse_factor"]
        integer("reuse_factor", reuse_factor, 1, MOST_USES, "2 or 3 is usual, and more would not fit into a picture")
        images = reuse_factor
    check_memory(
        images * PIXEL_BYTES * options.size**2,
        f"{images} images of {options.size} x {options.size}",
        "pass a smaller --size",
    )
    check_writable(out)
    source = _source(options.folder)
    with without_codec_noise():
        if options.operations:
            write_operations(out, source, preset=options.preset, size=options.size)
        else:
            write_pictures(out, source, recipe, name=options.preset, reuse_factor=reuse_factor, seed=options.seed)
            say(f"{recipe}\n")
    say(f"drawn: {escaped(out)}")


def _source(folder: Path | None) -> Source:
    """List the images before anything slow is imported."""
    if folder is None:
        from dalirefurb.cli.demo import whole_photographs

        return whole_photographs()
    from dalirefurb.source import ImageFolder

    return ImageFolder(folder)


def _show_plan(options: argparse.Namespace, technique: Chosen, out: Path) -> None:
    from dalirefurb.checks import integer
    from dalirefurb.show.files import check_writable, write_history, write_plan
    from dalirefurb.show.plans import compare_plans, history

    if "reuse_factor" in technique.options:
        integer("reuse_factor", technique.options["reuse_factor"], 1, None, "2 or 3 is usual")
    num_samples = options.num_samples
    if num_samples is None:
        num_samples = 10_000 if options.folder is None else len(_source(options.folder))
    integer("num_samples", num_samples, 1, None, "images of a data set")
    integer("batch_size", options.batch_size, 1, num_samples, "a batch cannot exceed num_samples")
    rows = math.ceil(num_samples * technique.options.get("echoing_factor", 1))
    counted = rows // options.batch_size if options.technique is None else rows
    check_memory(
        _ROW_BYTES * rows + _COUNT_BYTES * options.epochs * counted,
        f"the plans of {options.epochs} epochs of {rows} rows",
        "pass a smaller --num-samples or fewer --epochs",
    )
    check_writable(out)
    if options.technique is None:
        comparison = compare_plans(
            num_samples=num_samples,
            batch_size=options.batch_size,
            reuse_factor=technique.options["reuse_factor"],
            epochs=options.epochs,
            seed=options.seed,
        )
        write_plan(out, comparison)
    else:
        planner = technique.planner(num_samples, batch_size=options.batch_size, seed=options.seed)
        write_history(out, history(planner, options.epochs), title=technique.describe(planner))
    say(f"drawn: {escaped(out)}")


def _preset(preset: str, size: int, *, order: str | None) -> Recipe:
    from dalirefurb.augment.presets import auto_augment, evaluate, rand_augment, simple, trivial_augment

    without_order: dict[str, Callable[..., Recipe]] = {"simple": simple, "evaluate": evaluate}
    if preset not in without_order:
        ordered: dict[str, Callable[..., Recipe]] = {
            "rand_augment": rand_augment,
            "auto_augment": auto_augment,
            "auto_augment_cifar10": partial(auto_augment, policy="cifar10"),
            "trivial_augment": trivial_augment,
        }
        return ordered[preset](size, order=order or "paper")
    if order is not None:
        raise ConfigurationError(f"--order is for presets with operations, but {preset} has none; leave it out")
    return without_order[preset](size)


def draw_all(options: argparse.Namespace, recipe: Recipe) -> list[Path]:
    """Draw what needs no training. It comes before training, so that a folder that cannot be written costs no time."""
    from dalirefurb.cli.demo import whole_photographs
    from dalirefurb.show.files import MOST_USES, write_operations, write_pictures, write_plan
    from dalirefurb.show.plans import compare_plans

    pictures, operations, plan = drawn = [options.out / f"{name}.png" for name in ("show", "operations", "plan")]
    source = whole_photographs()
    write_pictures(
        pictures,
        source,
        recipe,
        name="rand_augment",
        reuse_factor=min(options.reuse_factor, MOST_USES),
        seed=options.seed,
    )
    write_operations(operations, source, preset="rand_augment", size=options.size)
    write_plan(
        plan,
        compare_plans(
            num_samples=options.images,
            batch_size=options.batch_size,
            reuse_factor=options.reuse_factor,
            epochs=9,
            seed=options.seed,
        ),
    )
    return drawn


def make_folder(path: Path) -> None:
    """Make the folder for the pictures, unless it is there.

    Raises:
        ConfigurationError: If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the pictures' folder must be writable, but {path} cannot be made: {error.strerror}; "
            f"name another with --out"
        ) from error
