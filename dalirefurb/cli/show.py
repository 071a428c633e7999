"""What does `dalirefurb show` draw, and `dalirefurb demo` before it trains? Imports come late, as in `commands`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dalirefurb.cli.techniques import Chosen, choose
from dalirefurb.cli.terminal import say
from dalirefurb.errors import ConfigurationError

if TYPE_CHECKING:
    from dalirefurb.recipe import Recipe
    from dalirefurb.source import Source

PRESETS = ("rand_augment", "auto_augment", "auto_augment_cifar10", "trivial_augment", "simple", "evaluate")
"""Names on the command line."""


def show(options: argparse.Namespace) -> None:
    """Draw what is cached and what is fresh, or operations, or a plan."""
    technique = choose(options.technique or "refurbish", options)
    if options.plan:
        _show_plan(options, technique)
        return
    if options.technique is not None:
        raise ConfigurationError(f"--technique is for --plan, got {options.technique} without it; add --plan")
    out = options.out or Path("operations.png" if options.operations else "show.png")
    source = _source(options.folder)
    from dalirefurb.show.files import write_operations, write_pictures

    if options.operations:
        write_operations(out, source, preset=options.preset, size=options.size)
    else:
        recipe = technique.recipe(_preset(options.preset, options.size, order=options.order), options.split)
        reuse_factor = technique.options["reuse_factor"]
        write_pictures(out, source, recipe, name=options.preset, reuse_factor=reuse_factor, seed=options.seed)
        say(f"{recipe}\n")
    say(f"drawn: {out}")


def _source(folder: str | None) -> Source:
    """List the images before anything slow is imported."""
    if folder is None:
        from dalirefurb.demo import whole_photographs

        return whole_photographs()
    from dalirefurb.source import ImageFolder

    return ImageFolder(folder)


def _show_plan(options: argparse.Namespace, technique: Chosen) -> None:
    num_samples = options.num_samples
    if num_samples is None:
        num_samples = 10_000 if options.folder is None else len(_source(options.folder))
    out = options.out or Path("plan.png")
    from dalirefurb.show.files import write_history, write_plan
    from dalirefurb.show.plans import compare_plans, history

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
    say(f"drawn: {out}")


def _preset(preset: str, size: int, *, order: str | None) -> Recipe:
    from dalirefurb.presets import auto_augment, evaluate, rand_augment, simple, trivial_augment

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
    from dalirefurb.demo import whole_photographs
    from dalirefurb.show.files import MOST_USES, write_operations, write_pictures, write_plan
    from dalirefurb.show.plans import compare_plans

    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the pictures' folder must be writable, but {options.out} cannot be made: {error.strerror}; "
            f"name another with --out"
        ) from error
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
