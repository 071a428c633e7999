"""The command line's arguments, each with its help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from dalirefurb.cli import cache, explanations
from dalirefurb.cli.commands import FULL, QUICK, demo, train
from dalirefurb.cli.numbers import Whole, learning_rate, path
from dalirefurb.cli.parser import Parser
from dalirefurb.cli.show import PRESETS, show
from dalirefurb.cli.techniques import MOST_REUSE, OPTIONS, TECHNIQUES, flag, owners_of

_NETWORK_SIZE = 32

_TOO_SMALL = f"the network needs images of at least {_NETWORK_SIZE} pixels, got {{}}"

_MOST = 1_000_000_000
"""Where a number decides how much is done, rather than fits a limit of its own."""

_LARGEST = 20_000
"""Side of an image in pixels: operations refuse what is not much larger."""

_FOLDER = "one folder per class, images in them: FOLDER/cat/1.jpg"


def parser() -> argparse.ArgumentParser:
    """Build the parser; it sets `command`, a function of the options."""
    root = Parser(prog="dalirefurb", description=explanations.DESCRIPTION, epilog=explanations.EPILOG)
    parsers = root.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def added(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = parsers.add_parser(
            name,
            help=summary,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        return made

    def command(
        function: Callable[[argparse.Namespace], None], summary: str, description: str, epilog: str
    ) -> argparse.ArgumentParser:
        made = added(function.__name__, summary, description, epilog)
        made.set_defaults(command=function)
        return made

    _add_train(command(train, "train on a folder of images", explanations.TRAIN_DESCRIPTION, explanations.TRAIN_EPILOG))
    _add_show(
        command(
            show,
            "draw what is cached, and what the network sees",
            explanations.SHOW_DESCRIPTION,
            explanations.SHOW_EPILOG,
        )
    )
    _add_demo(
        command(
            demo,
            "see what refurbishing brings on this machine",
            explanations.DEMO_DESCRIPTION,
            explanations.DEMO_EPILOG,
        )
    )
    _add_cache(
        added(
            "cache",
            "look after the file of a DiskStore",
            explanations.CACHE_DESCRIPTION,
            explanations.CACHE_EPILOG,
        )
    )
    return root


def _add_train(train_parser: argparse.ArgumentParser) -> None:
    train_parser.add_argument("folder", type=path, metavar="FOLDER", help=_FOLDER)
    group = train_parser.add_argument_group("technique")
    group.add_argument(
        "--technique",
        choices=TECHNIQUES,
        default="refurbish",
        metavar="NAME",
        help=f"{', '.join(TECHNIQUES)}: see below (refurbish)",
    )
    _add_options(group)
    _add_split(
        group,
        default="the last layer of RandAugment is final, or crop and flip with --order crop_last; of echo, batch_echo "
        "and smartcache all but decoding",
    )
    group = train_parser.add_argument_group("augmentation")
    _add_size(group, Whole(_NETWORK_SIZE, _LARGEST, _TOO_SMALL))
    group.add_argument(
        "--layers",
        type=Whole(1, 100, "must be a positive integer, got {}"),
        default=2,
        metavar="N",
        help="operations of RandAugment applied to an image, one after the other (2)",
    )
    group.add_argument("--magnitude", type=Whole(), default=9, metavar="M", help="of these operations, 0 .. 30 (9)")
    _add_order(group, default="paper")
    group = train_parser.add_argument_group("training")
    group.add_argument(
        "--epochs",
        type=Whole(1, _MOST, "must be at least 1, got {}"),
        default=5,
        metavar="N",
        help="rounds of training and report (5)",
    )
    group.add_argument(
        "--batch-size", type=Whole(1), default=64, metavar="N", help="images learned from at a time (64)"
    )
    group.add_argument(
        "--learning-rate", type=learning_rate, default=0.01, metavar="X", help="the highest of AdamW's schedule (0.01)"
    )
    group.add_argument(
        "--on-bad-sample",
        choices=("raise", "replace"),
        default="raise",
        metavar="ACTION",
        help="if an image cannot be decoded. raise: stop, and name it; replace: train on another one in its place, and "
        "list them all in the end (raise)",
    )
    _add_seed(group, "of order, augmentation and initial weights")
    group = train_parser.add_argument_group("odd images and machines")
    group.add_argument(
        "--quarantine",
        type=path,
        metavar="FILE",
        help="with --on-bad-sample replace: bad images are written there, and never read again by a later run",
    )
    group.add_argument(
        "--fallback-decoder",
        choices=("pillow",),
        metavar="NAME",
        help="pillow: decode with it what DALI cannot decode, such as GIF",
    )
    group.add_argument(
        "--max-pixels",
        type=Whole(1),
        default=100_000_000,
        metavar="N",
        help="of an image; a larger one is bad (100000000)",
    )
    group.add_argument(
        "--kernels",
        choices=("numba", "dali"),
        metavar="NAME",
        help="what augments. numba: compiled kernels, which need Numba; dali: DALI's "
        "operators (numba, if it is installed)",
    )


def _add_show(show_parser: argparse.ArgumentParser) -> None:
    show_parser.add_argument("folder", type=path, metavar="FOLDER", nargs="?", help=_FOLDER)
    modes = show_parser.add_mutually_exclusive_group()
    modes.add_argument("--operations", action="store_true", help="draw the preset's operations instead")
    modes.add_argument("--plan", action="store_true", help="draw the misses of epochs and batches instead")
    show_parser.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help="the PNG; one that is there is replaced (show.png, operations.png or plan.png)",
    )
    _add_option(show_parser, "reuse_factor", kind=Whole(None, MOST_REUSE))
    _add_seed(show_parser, "of augmentation and order")
    group = show_parser.add_argument_group("augmentation")
    group.add_argument(
        "--preset",
        choices=PRESETS,
        default=PRESETS[0],
        metavar="NAME",
        help=f"the stages: {', '.join(PRESETS)} ({PRESETS[0]})",
    )
    _add_order(group, default=None)
    _add_split(group, default="the last operation is final, or crop and flip with --order crop_last")
    _add_size(group, Whole(None, _LARGEST))
    group = show_parser.add_argument_group("with --plan")
    group.add_argument(
        "--num-samples",
        type=Whole(None, 10**15),
        metavar="N",
        help="images of the data set (those of FOLDER, or 10000)",
    )
    group.add_argument("--batch-size", type=Whole(1), default=64, metavar="N", help="images served at a time (64)")
    group.add_argument("--epochs", type=Whole(1, _MOST), default=9, metavar="N", help="planned, from the first (9)")
    group.add_argument(
        "--technique",
        choices=TECHNIQUES,
        metavar="NAME",
        help=f"draw the plan of one: {', '.join(TECHNIQUES)}",
    )
    _add_options(group, without="reuse_factor")


def _add_demo(demo_parser: argparse.ArgumentParser) -> None:
    demo_parser.add_argument(
        "--folder",
        type=path,
        metavar="DIR",
        help="keep the images there, and use them again; by default they are deleted in the end",
    )
    demo_parser.add_argument(
        "--out",
        type=path,
        default=Path("dalirefurb-demo"),
        metavar="DIR",
        help="for the pictures; made if it is not there (dalirefurb-demo)",
    )
    demo_parser.add_argument("--quick", action="store_true", help="little of everything, to try whether it works")
    _add_option(demo_parser, "reuse_factor", default=3)
    for name, limits, meaning in (
        ("images", (None, 10**15), "JPEGs made, about 65 KB each"),
        ("epochs", (1, _MOST), "of each run"),
        ("batch_size", (1,), "images learned from at a time"),
        ("size", (_NETWORK_SIZE, _LARGEST, _TOO_SMALL), "side in pixels of the images that the network sees"),
    ):
        demo_parser.add_argument(
            flag(name),
            type=Whole(*limits),
            metavar="N",
            help=f"{meaning} ({FULL[name]}; {QUICK[name]} with --quick)",
        )
    _add_seed(demo_parser, "of everything random")


def _add_cache(cache_parser: argparse.ArgumentParser) -> None:
    parsers = cache_parser.add_subparsers(title="what to do", required=True, metavar="ACTION")
    for function, summary in (
        (cache.inspect, "print what is in it, and what it was made for"),
        (cache.verify, "read it through: exit status 1 if a sample is damaged"),
        (cache.purge, "delete it, unless it is in use, or no store"),
    ):
        made = parsers.add_parser(function.__name__, help=summary, description=f"{summary.capitalize()}.")
        made.add_argument("path", type=path, metavar="PATH", help="the file that DiskStore(PATH) was given")
        made.set_defaults(command=function)


def _add_options(group: argparse._ActionsContainer, *, without: str = "") -> None:
    for name in OPTIONS:
        if name != without:
            _add_option(group, name)


def _add_option(
    group: argparse._ActionsContainer,
    name: str,
    *,
    default: float | None = None,
    kind: Callable[[str], float] | None = None,
) -> None:
    """Add a technique's option. By default it is None, so that one that was given can be told from one that was not."""
    option, owners = OPTIONS[name], owners_of(name)
    usual = TECHNIQUES[owners[0]].options[name]
    of = "" if name == "reuse_factor" else f"{' and '.join(owners)}: "
    group.add_argument(
        flag(name),
        type=kind or option.kind,
        default=default,
        metavar=option.letter,
        help=f"{of}{option.help}{'' if usual is None else f' ({usual})'}",
    )


def _add_split(group: argparse._ActionsContainer, *, default: str) -> None:
    group.add_argument(
        "--split",
        type=_split,
        metavar="STAGE|N",
        help="where the final augmentation begins: a stage's name (see --order), how many stages are partial, or end: "
        "all are. "
        f"By default {default}",
    )


def _add_order(group: argparse._ActionsContainer, *, default: str | None) -> None:
    group.add_argument(
        "--order",
        choices=("paper", "crop_last"),
        default=default,
        help="of the stages. paper: decode, random_resized_crop, flip, rand_augment_1, rand_augment_2, ...; "
        "crop_last: decode, random_resized_crop, rand_augment_1, rand_augment_2, ..., random_crop, flip (paper)",
    )


def _add_size(group: argparse._ActionsContainer, kind: Whole) -> None:
    group.add_argument("--size", type=kind, default=224, metavar="PIXELS", help="side of the images (224)")


def _add_seed(group: argparse._ActionsContainer, of: str) -> None:
    group.add_argument("--seed", type=Whole(), default=0, metavar="N", help=f"{of} (0)")


def _split(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdecimal() else text
