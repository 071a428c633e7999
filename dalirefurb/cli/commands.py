"""The commands. They import torch and DALI when they run, after what can be checked without."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.memory import PIXEL_BYTES, check_memory
from dalirefurb.cli.show import draw_all, make_folder
from dalirefurb.cli.techniques import choose
from dalirefurb.cli.terminal import escaped, one_line, say
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.cores import usable_cores

if TYPE_CHECKING:
    from dalirefurb.augment.recipe import Recipe
    from dalirefurb.cli.train import EpochReport, Trainer
    from dalirefurb.planning.assistant import AssistantReport
    from dalirefurb.planning.planner import Planner
    from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
    from dalirefurb.reading.quarantine import BadSample
    from dalirefurb.source import ImageFolder

FULL = {"images": 2000, "epochs": 5, "batch_size": 64, "size": 224}
"""What the demo does by default."""

QUICK = {"images": 128, "epochs": 2, "batch_size": 16, "size": 64}
"""What it does with --quick."""


def train(options: argparse.Namespace) -> None:
    """Train on a folder, and print a row per epoch."""
    technique = choose(options.technique, options)
    _check_alone()
    bad_samples = _bad_samples(options)
    from dalirefurb.augment.presets import rand_augment

    preset = rand_augment(options.size, layers=options.layers, magnitude=options.magnitude, order=options.order)
    recipe = technique.recipe(preset, options.split)
    source = _source(options.folder)
    planner = technique.planner(len(source), batch_size=options.batch_size, seed=options.seed)
    _check_room(planner, options.size)
    with ExitStack() as stack:
        stack.enter_context(without_codec_noise())
        from dalirefurb.cli.train import Trainer

        _share_cores()
        trainer = stack.enter_context(
            Trainer(
                source,
                recipe,
                planner,
                epochs=options.epochs,
                learning_rate=options.learning_rate,
                kernels=options.kernels,
                bad_samples=bad_samples,
                progress=True,
            )
        )
        say(f"{_count(source)}; {len(planner)} batches of {planner.batch_size} an epoch")
        say(f"{technique.describe(planner)}: {_stages(recipe, trainer)}")
        say("\nepoch  images/s     hits   misses  waiting  ms/batch: median    95 %    loss  accuracy (training)")
        for _ in range(options.epochs):
            say(_row(trainer.epoch()))
        if trainer.assistant is not None:
            say(f"\n{_assisted(trainer.assistant)}")
        if options.on_bad_sample == "replace":
            say(f"\n{_replaced(trainer.bad_samples)}")


def _check_alone() -> None:
    """Refuse to be one of several processes."""
    from dalirefurb.system.launch_env import told

    if told("RANK") is not None and (told("WORLD_SIZE") or 1) > 1:
        raise ConfigurationError(
            f"this trains in one process, but it is rank {told('RANK')} of {told('WORLD_SIZE')}: start it without "
            f"torchrun, or start pipelines/imagenet_randaugment.py, which trains in several"
        )


def _bad_samples(options: argparse.Namespace) -> BadSamplePolicy:
    """Return what is said of bad images; refuse it, and what is said of kernels, if it cannot work."""
    from dalirefurb.reading.bad_sample_policy import BadSamplePolicy

    policy = BadSamplePolicy(options.on_bad_sample, options.quarantine, options.fallback_decoder, options.max_pixels)
    policy.fallback()
    if options.quarantine is not None:
        _check_quarantine(options.quarantine)
    if options.kernels == "numba" and importlib.util.find_spec("numba") is None:
        raise ConfigurationError(
            "--kernels numba needs Numba, which cannot be found; pip install numba, or leave it out"
        )
    return policy


def _check_quarantine(path: Path) -> None:
    """Refuse what is no file, and has perhaps no end, and a file that could not be made."""
    try:
        fits = path.is_file() or (path.parent.is_dir() and not path.exists())
    except OSError:
        fits = False
    if not fits:
        raise ConfigurationError(
            f"--quarantine must be a text file that can be read and written, but {path} is not: pass the path of a "
            f"file in a folder that is there"
        )


def _check_room(planner: Planner, size: int) -> None:
    """Refuse images of which the batches that are made ahead fill the memory."""
    from dalirefurb.engine.prefetch import Prefetch

    depths = Prefetch().depths(planner)
    batches = min(len(planner), depths.look_ahead * depths.batches_per_group)
    check_memory(
        batches * planner.batch_size * PIXEL_BYTES * size**2,
        f"{batches} batches of {planner.batch_size} images of {size} x {size}",
        "pass a smaller --size or --batch-size",
    )


def _source(folder: Path) -> ImageFolder:
    """List the images before anything slow is imported."""
    from dalirefurb.source import ImageFolder

    return ImageFolder(folder)


def demo(options: argparse.Namespace) -> None:
    """Make images, draw what the library does, train in three ways, print a table, and draw that, too."""
    from dalirefurb.cli.demo import HEIGHT, WIDTH, Photographs
    from dalirefurb.show.packages import require

    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    require("the demo", "Pillow", "scikit-image", "matplotlib")
    photographs = Photographs(options.images, options.seed)
    photographs.is_made(options.folder)
    from dalirefurb.augment.presets import rand_augment
    from dalirefurb.planning.refurbish import Refurbish

    def planner(num_samples: int, reuse_factor: int) -> Refurbish:
        return Refurbish(num_samples, batch_size=options.batch_size, reuse_factor=reuse_factor, seed=options.seed)

    _check_alone()
    paper, crop_last = (rand_augment(options.size, order=order) for order in ("paper", "crop_last"))
    _check_room(planner(options.images, options.reuse_factor), options.size)
    make_folder(options.out)
    with ExitStack() as stack:
        folder = stack.enter_context(photographs.folder(options.folder, progress=True))
        source = _source(folder)
        stack.enter_context(without_codec_noise())
        from dalirefurb.cli.compare import compare, explanation, plot, table
        from dalirefurb.cli.train import Trainer
        from dalirefurb.engine.prefetch import Prefetch
        from dalirefurb.show.files import write_plot

        def trainer(recipe: Recipe, reuse_factor: int) -> Trainer:
            # Runs take turns: the fewer batches are made ahead, the more of an epoch is made, and timed, in its turn.
            return stack.enter_context(
                Trainer(
                    source,
                    recipe,
                    planner(len(source), reuse_factor),
                    epochs=options.epochs,
                    prefetch=Prefetch(look_ahead=2, batches_per_group=1),
                    progress=True,
                )
            )

        _share_cores()
        trainers = {
            "standard": trainer(paper, 1),
            "refurbished": trainer(paper, options.reuse_factor),
            "refurbished, crop last": trainer(crop_last, options.reuse_factor),
        }
        drawn = draw_all(options, paper)
        step_ms = 1e3 * trainers["standard"].step_alone_s()
        images = f"{len(source)} JPEGs of {WIDTH} x {HEIGHT} pixels"
        say(
            f"{images} in {len(source.classes or ())} classes. "
            f"Each run trains the same network, epoch by epoch in turn:\n"
        )
        runs = compare(trainers, epochs=options.epochs, say=say)
    after = (
        "after the first epoch, which only misses" if options.epochs > 1 else "of the first epoch, which only misses"
    )
    say(f"\nmedians {after}; reuse factor {options.reuse_factor}:\n")
    say(table(runs))
    say(f"\n{explanation(runs, step_ms=step_ms)}")
    drawn.append(options.out / "table.png")
    write_plot(drawn[-1], plot(runs, caption=f"{images}, reuse factor {options.reuse_factor}\nmedians {after}"))
    say(f"\ndrawn: {', '.join(map(escaped, drawn))}")


def _share_cores() -> None:
    """Leave half the cores to the loader. torch's threads wait by spinning, which slows both where they are full."""
    import torch

    torch.set_num_threads(max(1, usable_cores() // 2))


def _count(source: ImageFolder) -> str:
    """Say how much there is.

    >>> _count(type("Source", (), {"classes": ["cat", "dog"], "skipped": 1, "__len__": lambda self: 10})())
    '10 images in 2 classes (1 other file ignored)'
    """
    assert source.classes is not None
    classes = "1 class" if len(source.classes) == 1 else f"{len(source.classes)} classes"
    skipped = "" if not source.skipped else f" ({source.skipped} other file{'s' * (source.skipped > 1)} ignored)"
    return f"{len(source)} images in {classes}{skipped}"


def _stages(recipe: Recipe, trainer: Trainer) -> str:
    """Say what is cached, and what is fresh."""
    partial, final = (" > ".join(stage.name for stage in stages) for stages in (recipe.partial, recipe.final))
    if trainer.cache_bytes == 0:
        return f"nothing is cached, all is fresh: {' > '.join(filter(None, (partial, final)))}"
    partial, final = partial or "files, as they were read", final or "nothing"
    return f"cached: {partial} ({trainer.cache_bytes / 1e6:.0f} MB); fresh: {final}"


def _replaced(samples: Sequence[BadSample]) -> str:
    """List bad samples.

    >>> print(_replaced([]))
    no bad images
    """
    if not samples:
        return "no bad images"
    lines = (f"  {escaped(sample.name)}: {escaped(one_line(sample.reason))}" for sample in samples)
    return "\n".join([f"{len(samples)} bad image{'s' * (len(samples) > 1)}, replaced by others:", *lines])


def _assisted(report: AssistantReport) -> str:
    return (
        f"of {report.candidates} samples considered {report.accepted} were trained on, {report.saved:.0%} saved; "
        f"the Assistant judges {report.accuracy:.0%} rightly"
    )


def _row(report: EpochReport) -> str:
    return (
        f"{report.epoch:>5}  {report.images_per_s:>8.0f}  {report.hits:>7}  {report.misses:>7}"
        f"  {report.waiting:>7.0%}  {report.batch_ms(50):>16.1f}  {report.batch_ms(95):>6.1f}"
        f"  {report.loss:>6.3f}  {report.accuracy:>8.1%}"
    )
