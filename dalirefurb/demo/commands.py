"""`dalirefurb train` and `dalirefurb demo`. They import torch and DALI after what can be checked without."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from dalirefurb.augment.presets import rand_augment
from dalirefurb.augment.recipe import Recipe
from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.limits import check_alone, require
from dalirefurb.cli.outcome import in_options
from dalirefurb.cli.show import BATCH_SIZE, PICTURES, draw_all
from dalirefurb.cli.techniques import choose
from dalirefurb.cli.terminal import escaped, importing, one_line, say, waiting
from dalirefurb.demo.photographs import Photographs
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.reading.bad_samples import BadSample, BadSamplePolicy
from dalirefurb.show.files import check_folder, write, writing
from dalirefurb.source import ImageFolder, Source
from dalirefurb.system.resources import usable_cores


def train(options: argparse.Namespace) -> None:
    """Train on a folder, and print a row per epoch."""
    technique = choose(options.technique, options)
    check_alone()
    bad_samples = BadSamplePolicy(options.on_bad_sample, options.quarantine, max_pixels=options.max_pixels)
    if options.kernels == "numba" and importlib.util.find_spec("numba") is None:  # before a folder is read
        raise ConfigurationError(
            "--kernels numba needs Numba, which is not installed: pip install numba, or leave it out"
        )
    preset = rand_augment(options.size, layers=options.layers, magnitude=options.magnitude, order=options.order)
    recipe = technique.recipe(preset, options.split)
    with waiting(f"reading {escaped(options.folder)}"):
        images = ImageFolder(options.folder)
    source, held_out = _parted(images, options.val_share)
    batch_size = options.batch_size or min(BATCH_SIZE, len(source))
    planner = technique.planner(len(source), batch_size=batch_size, seed=options.seed)
    judged = "none of them to judge by (see --val-share)"
    if held_out is not None:
        judged = f"{len(held_out):,} of them to judge by"
    say(f"{_count(images)}, {judged}; {len(planner)} batches of {planner.batch_size} an epoch")
    with ExitStack() as stack:
        stack.enter_context(without_codec_noise())
        with waiting("starting the network and the loader"):
            with importing():
                from dalirefurb.demo.training import Trainer

            _share_cores()
            trainer = Trainer(
                source,
                recipe,
                planner,
                epochs=options.epochs,
                learning_rate=options.learning_rate,
                kernels=options.kernels,
                bad_samples=bad_samples,
            )
            stack.enter_context(trainer)
            if held_out is not None:
                trainer.hold_out(held_out, kernels=options.kernels, bad_samples=replace(bad_samples, quarantine=None))
        say(f"{technique.describe(planner)}: {_stages(recipe, trainer.store.nbytes)}")
        say(
            "\nepoch  images/s     hits   misses  waiting  ms/batch: median    95 %    loss  accuracy (training)"
            + ("" if held_out is None else "  (validation)")
        )
        for _ in range(options.epochs):
            report = trainer.epoch()
            say(
                f"{report.epoch:>5}  {report.images_per_s:>8.0f}  {report.stats.hits:>7}  {report.stats.misses:>7}"
                f"  {report.waiting:>7.0%}  {report.batch_ms(50):>16.1f}  {report.batch_ms(95):>6.1f}"
                f"  {report.loss:>6.3f}  {report.accuracy:>8.1%}"
                + ("" if held_out is None else f"{'':11}  {trainer.validation_accuracy():>12.1%}")
            )
        say(f"\n{in_options(str(trainer.loader.diagnose()), options)}")
        if planner.feedback_lag is not None:
            told = trainer.loader.assistant_report()
            say(
                f"\nof {told.candidates} samples considered {told.accepted} were trained on, {told.saved:.0%} saved; "
                f"the Assistant judges {told.accuracy:.0%} rightly"
            )
        if options.on_bad_sample == "replace":
            say(f"\n{_replaced(trainer.loader.bad_samples())}")


def _parted(source: ImageFolder, share: float) -> tuple[Source, Source | None]:
    """Return the images to learn from, and those to judge by: every tenth, say, alike from all classes."""
    if not share:
        return source, None
    held_out = np.diff(np.floor(np.arange(len(source) + 1) * share)) > 0
    if not held_out.any():
        raise ConfigurationError(
            f"--val-share must leave images to judge by, but {share} of {len(source)} is none: pass a larger share"
        )
    return source.subset(~held_out), source.subset(held_out)


def demo(options: argparse.Namespace) -> None:
    """Make images, draw what the library does, load alone, train in three ways, and print tables."""
    require("the demo", "Pillow", "scikit-image", "matplotlib")
    photographs = Photographs(options.images, options.seed)
    photographs.is_made(options.folder)
    check_alone()
    numbers = {"batch_size": options.batch_size, "seed": options.seed}
    refurbish = Refurbish(options.images, reuse_factor=options.reuse_factor, **numbers)
    paper, crop_last = (rand_augment(options.size, order=order) for order in ("paper", "crop_last"))
    check_folder(options.out, PICTURES)
    say(f"this takes about {_duration(options)}, and half a minute more where kernels are not compiled yet")
    with ExitStack() as stack:
        source = ImageFolder(stack.enter_context(photographs.folder(options.folder)))
        stack.enter_context(without_codec_noise())
        with waiting("starting the network and the loaders, and drawing"):
            with importing():
                from dalirefurb.demo.compare import compare, explanation, load_alone, loading_table, table, tells_speed
                from dalirefurb.demo.training import Trainer

            _share_cores()
            trainers = {}
            # Runs take turns: the fewer batches are made ahead, the more of an epoch is made, and timed, in its turn.
            ahead = Prefetch(look_ahead=2, batches_per_group=1)
            for name, recipe, planner in (
                ("standard", paper, Standard(options.images, **numbers)),
                ("refurbished", paper, refurbish),
                ("refurbished, crop last", crop_last, refurbish),
            ):
                trainer = Trainer(source, recipe, planner, epochs=options.epochs, prefetch=ahead)
                trainers[name] = stack.enter_context(trainer)
            drawn = draw_all(options, paper, refurbish)
            step_ms = 1e3 * trainers["standard"].step_alone_s()
        loading = {}
        if tells_speed(options.epochs, len(refurbish)):
            loading = load_alone(source, paper, refurbish)
            say(f"\nloading alone, without a network:\n\n{loading_table(loading)}")
        runs = compare(trainers, epochs=options.epochs)
    after = "after" if options.epochs > 1 else "of"
    say(
        f"\ntraining the same network: medians {after} the first epoch, which only misses; "
        f"reuse factor {options.reuse_factor}:\n\n"
        f"{table(runs)}\n\n{explanation(runs, step_ms=step_ms, loading=loading)}"
    )
    # All at the end: a demo that is interrupted leaves nothing.
    paths = [options.out / name for name in PICTURES]
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
    for path, figure in zip(paths, drawn, strict=True):
        write(path, figure)
    say(f"\ndrawn: {', '.join(map(escaped, paths))}")


def _duration(options: argparse.Namespace) -> str:
    """Say how long the demo takes, about, by what it took on two cores of an AMD EPYC."""
    minutes = round((45 + options.images * (0.02 + 0.014 * options.epochs) / usable_cores()) / 60)
    return f"{minutes} minutes" if minutes > 1 else "a minute"


def _share_cores() -> None:
    """Leave half the cores to the loader. torch's threads wait by spinning, which slows both where they are full."""
    import torch

    torch.set_num_threads(max(1, usable_cores() // 2))


def _count(source: ImageFolder) -> str:
    """Say how much there is."""
    assert source.classes is not None
    classes = "1 class" if len(source.classes) == 1 else f"{len(source.classes)} classes"
    skipped = "" if not source.skipped else f" ({source.skipped} other file{'s' * (source.skipped > 1)} ignored)"
    return f"{len(source)} images in {classes}{skipped}"


def _stages(recipe: Recipe, cache_bytes: int) -> str:
    """Say what is cached, and what is fresh."""
    partial, final = (" > ".join(stage.name for stage in stages) for stages in (recipe.partial, recipe.final))
    if cache_bytes == 0:
        return f"nothing is cached, all is fresh: {' > '.join(filter(None, (partial, final)))}"
    partial, final = partial or "files, as they were read", final or "nothing"
    return f"cached: {partial} ({cache_bytes / 1e6:.0f} MB); fresh: {final}"


def _replaced(samples: Sequence[BadSample]) -> str:
    """List bad samples."""
    if not samples:
        return "no bad images"
    lines = (f"  {escaped(sample.name)}: {escaped(one_line(sample.reason))}" for sample in samples)
    return "\n".join([f"{len(samples)} bad image{'s' * (len(samples) > 1)}, replaced by others:", *lines])
