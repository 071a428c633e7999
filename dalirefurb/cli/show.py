"""`dalirefurb show`, and the pictures that `dalirefurb demo` draws. Plots are imported late, with matplotlib."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dalirefurb.augment.diversity import what_differs
from dalirefurb.augment.policies.auto_augment import POLICIES
from dalirefurb.augment.presets import auto_augment, evaluate, rand_augment, simple, timm_augment, trivial_augment
from dalirefurb.augment.published import yolo
from dalirefurb.augment.recipe import Recipe
from dalirefurb.checks import integer
from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.limits import PIXEL_BYTES, check_memory, require, whole_photographs
from dalirefurb.cli.techniques import OPTIONS, Technique, choose, flag
from dalirefurb.cli.terminal import escaped, importing, say, waiting
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.refurbish import Refurbish
from dalirefurb.show import MOST_USES
from dalirefurb.show.files import check_writable, write
from dalirefurb.source import ImageFolder, Source
from dalirefurb.system.resources import amount, budget_bytes
from dalirefurb.targets import CocoDetection, MaskFolder, YoloFolder
from dalirefurb.targets.coco import parts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRESETS: dict[str, Callable[..., Recipe]] = {
    "rand_augment": rand_augment,
    "auto_augment": auto_augment,
    **{f"auto_augment_{name}": partial(auto_augment, policy=name) for name in POLICIES if name != "imagenet"},
    "trivial_augment": trivial_augment,
    "timm_augment": timm_augment,
    "simple": simple,
    "evaluate": evaluate,
    "yolo": yolo,
}
"""By name on the command line."""

PICTURES = ("show.png", "operations.png", "plan.png")
"""Names of the demo's."""

STAGES = "stages"
"""In place of a preset: all stages are drawn."""

_WITHOUT_OPERATIONS = ("simple", "evaluate", "yolo")
_DRAWN_AS_STAGES = ("timm_augment",)
_OPERATION_PICTURES = 80
"""Of a sheet of operations, about."""

_ROW_BYTES = 64
"""Of an epoch's plan, at least: six arrays of int64 and of bool, and some that they are made from."""

_COUNT_BYTES = 24
"""Of what is counted in each epoch: served, computed, misses."""


_DEFAULTS = {"preset": "rand_augment", "size": 224, "seed": 0, "epochs": 9}
"""Of options that are None unless they are given."""

BATCH_SIZE = 64
"""Where none is given; of fewer images all are a batch."""

_AUGMENTATION, _PLAN = ("preset", "size", "order", "split"), ("num_samples", "batch_size", "epochs", "technique")
_TARGETS = ("masks", "coco", "yolo")
_OF_MODE = {
    "": {"folder", "out", *_AUGMENTATION, *_TARGETS, "seed", "reuse_factor"},
    "--operations": {"folder", "out", "preset", "size"},
    "--plan": {"folder", "out", *_PLAN, "seed", *OPTIONS},
    "--bandwidth": {*_AUGMENTATION, "batch_size", "seed"},
}
"""Options that a mode heeds, by the flag of the mode."""


def _check_heeded(options: argparse.Namespace) -> None:
    """Refuse what would be ignored; set defaults."""
    mode = "--operations" if options.operations else "--plan" if options.plan else ""
    if options.bandwidth is not None:
        if mode != "--plan":
            raise ConfigurationError(f"--bandwidth is for --plan, got {options.bandwidth} without it; add --plan")
        mode = "--bandwidth"
    for name in ("folder", "out", *_AUGMENTATION, *_PLAN, *_TARGETS, "seed", *OPTIONS):
        value = getattr(options, name)
        if value is None:
            setattr(options, name, _DEFAULTS.get(name))
        elif name not in _OF_MODE[mode]:
            modes = [each for each, heeded in _OF_MODE.items() if name in heeded]
            if mode:
                called = "FOLDER" if name == "folder" else flag(name)
                raise ConfigurationError(f"{called} changes nothing with {mode}, got {value}; leave one of them out")
            raise ConfigurationError(f"{flag(name)} is for {modes[0]}, got {value} without it; add {modes[0]}")


def show(options: argparse.Namespace) -> None:
    """Draw what is cached and what is fresh, or operations, or a plan."""
    technique = choose(options.technique or "refurbish", options)
    _check_heeded(options)
    out = options.out or Path("operations.png" if options.operations else "plan.png" if options.plan else "show.png")
    if options.bandwidth is not None:
        _show_launches(options, technique)
        return
    if options.plan:
        _show_plan(options, technique, out)
        return
    if options.operations:
        if options.preset in _WITHOUT_OPERATIONS:
            raise ConfigurationError(
                f"the preset must have operations of varying magnitude, but {options.preset} has none; pass another "
                f"--preset, or leave --operations out"
            )
        if options.preset in _DRAWN_AS_STAGES:
            raise ConfigurationError(
                f"the preset must have a table of magnitudes, but those of {options.preset} vary from image to image: "
                f"pass --preset {STAGES}, where it is drawn with all stages"
            )
        images = _OPERATION_PICTURES * (1 + (options.preset == STAGES))
        drawn = "all stages" if options.preset == STAGES else f"the operations of {options.preset}"
        told = f"drawing {drawn}"
    else:
        recipe = _recipe(options, technique)
        reuse_factor = technique.options["reuse_factor"]
        integer("reuse_factor", reuse_factor, 1, MOST_USES, "2 or 3 is usual, and more would not fit into a picture")
        images = reuse_factor
        told = f"{recipe}\n\n{what_differs(options.preset, recipe.stages, recipe.split, reuse_factor)}\n"
    check_memory(
        images * PIXEL_BYTES * options.size**2,
        f"{images} images of {options.size} x {options.size}",
        "pass a smaller --size",
    )
    require("a sheet of pictures", "matplotlib")
    check_writable(out)
    source = _source(options)
    say(told)
    with without_codec_noise(), waiting(f"drawing {escaped(out)}"):
        with importing():
            from dalirefurb.show.sheet import operations_sheet, pictures_sheet, stages_sheet

        if options.preset == STAGES:
            sheet = stages_sheet(source, size=options.size)
        elif options.operations:
            sheet = operations_sheet(source, options.preset, size=options.size)
        else:
            sheet = pictures_sheet(source, recipe, name=options.preset, reuse_factor=reuse_factor, seed=options.seed)
    write(out, sheet)
    say(f"drawn: {escaped(out)}")


def _recipe(options: argparse.Namespace, technique: Technique) -> Recipe:
    """Make the preset's recipe, split as is asked for."""
    if options.preset == STAGES:
        raise ConfigurationError(f"--preset {STAGES} is for --operations, got it without: add --operations")
    order = {} if options.order is None else {"order": options.order}
    if order and options.preset in _WITHOUT_OPERATIONS:
        raise ConfigurationError(f"--order is for presets with operations, but {options.preset} has none; leave it out")
    return technique.recipe(PRESETS[options.preset](options.size, **order), options.split)


def _show_launches(options: argparse.Namespace, technique: Technique) -> None:
    """Print what a GPU is given for a batch."""
    bandwidth = budget_bytes(options.bandwidth, available=lambda: None)
    if not bandwidth:
        raise ConfigurationError(f"--bandwidth must be above 0, got {options.bandwidth}: pass such as 2.8TB")
    if importlib.util.find_spec("numba") is None:
        raise ConfigurationError("kernels are laid out by Numba, which cannot be found: pip install numba")
    recipe, rows = _recipe(options, technique), options.batch_size or BATCH_SIZE
    with importing():
        from dalirefurb.kernels.cuda.counting import launches_of
    say(f"{recipe}\n")
    for part in launches_of(recipe, rows, seed=options.seed):
        height, width = part.size
        say(f"{part.part} part: {rows} images of {height} x {width} pixels")
        for launch in part.launches:
            stages = ", ".join(launch.stages)
            say(f"  {launch.function:8} {amount(launch.nbytes):>10}  {stages}".rstrip())
        took_ms = 1000 * part.nbytes / bandwidth
        count = f"{len(part.launches)} launch{'es' * (len(part.launches) > 1)}"
        say(f"  {count}, {amount(part.nbytes)} moved: {took_ms:.3f} ms at least, at {amount(bandwidth)} a second")


def _source(options: argparse.Namespace) -> Source:
    """Read the folder, with what belongs to its images, or take scikit-image's photographs."""
    if options.folder is None:
        for name in _TARGETS:
            if (given := getattr(options, name)) is not None:
                raise ConfigurationError(f"{flag(name)} is for images of yours, got {given} without them: name FOLDER")
        return whole_photographs()
    with waiting(f"reading {escaped(options.folder)}"):
        if options.masks is not None:
            return MaskFolder(options.folder, options.masks)
        if options.coco is not None:
            return CocoDetection(options.folder, options.coco, **parts_of(options.coco))
        if options.yolo is not None:
            return YoloFolder(options.folder, options.yolo, polygons=True)
        return ImageFolder(options.folder)


def _show_plan(options: argparse.Namespace, technique: Technique, out: Path) -> None:
    num_samples = options.num_samples
    if num_samples is not None and options.folder is not None:
        raise ConfigurationError(
            f"FOLDER changes nothing with --num-samples, got {options.folder}; leave one of them out"
        )
    if num_samples is None:
        num_samples = 10_000 if options.folder is None else len(_source(options))
    batch_size = options.batch_size or min(BATCH_SIZE, num_samples)
    planner = technique.planner(num_samples, batch_size=batch_size, seed=options.seed)
    rows = math.ceil(num_samples * technique.options.get("echoing_factor", 1))
    counted = len(planner) if options.technique is None else rows
    check_memory(
        _ROW_BYTES * rows + _COUNT_BYTES * options.epochs * counted,
        f"the plans of {options.epochs} epochs of {rows} rows",
        "pass a smaller --num-samples or fewer --epochs",
    )
    require("a plot", "matplotlib")
    check_writable(out)
    with waiting(f"planning {options.epochs} epochs, and drawing {escaped(out)}"):
        from dalirefurb.show import plots

        if options.technique is None:
            assert isinstance(planner, Refurbish)
            figure = plots.plan_plot(plots.compare_plans(planner, options.epochs))
        else:
            figure = plots.history_plot(plots.history(planner, options.epochs), title=technique.describe(planner))
    write(out, figure)
    say(f"drawn: {escaped(out)}")


def draw_all(options: argparse.Namespace, recipe: Recipe, planner: Refurbish) -> list[Figure]:
    """Draw `PICTURES`."""
    from dalirefurb.show.plots import compare_plans, plan_plot
    from dalirefurb.show.sheet import operations_sheet, pictures_sheet

    source = whole_photographs()
    uses = min(options.reuse_factor, MOST_USES)
    return [
        pictures_sheet(source, recipe, name="rand_augment", reuse_factor=uses, seed=options.seed),
        operations_sheet(source, "rand_augment", size=options.size),
        plan_plot(compare_plans(planner, epochs=9)),
    ]
