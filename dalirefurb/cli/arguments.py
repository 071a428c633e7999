"""The command line's arguments, each with its help."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NoReturn

from dalirefurb.cli import explanations, maintenance
from dalirefurb.cli.show import BATCH_SIZE, PRESETS, STAGES, show
from dalirefurb.cli.techniques import OPTIONS, TECHNIQUES, Number, flag, learning_rate, owners_of, path
from dalirefurb.cli.terminal import complain, escaped, say
from dalirefurb.cli.tune import MEASURED_WITH, OF_MEASUREMENT, TUNED, tune

_ANY = Number(int)

_MOST = 1_000_000_000
"""Where a number decides how much is done, rather than fits a limit of its own."""

_MOST_SAMPLES = 10**15

_LARGEST = 20_000
"""Side of an image in pixels: operations refuse what is not much larger."""

_SIZE = Number(int, 1, _LARGEST, "must be a positive integer, got {}")

_SEEN = Number(int, 32, _LARGEST, "the network needs images of at least 32 pixels, got {}")

_FOLDER = "one folder per class, images in them: FOLDER/cat/1.jpg"

_FULL = {"images": 2000, "epochs": 4, "batch_size": 64, "size": 224}
"""What the demo does by default."""

_QUICK = {"images": 128, "epochs": 2, "batch_size": 16, "size": 64}
"""What it does with --quick."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other error is reported: in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        message = escaped(re.sub(r"^argument ([\w-]+): must ", r"\1 must ", message))
        complain(f"dalirefurb: error: {message}; see {self.prog} --help")
        self.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown here, so that the command's own help is named and not that of all commands."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help where all is printed, which fails if it cannot be."""
        if file is sys.stdout:
            say(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        say(f"dalirefurb {metadata.version('dalirefurb')}")
        parser.exit()


def parser() -> Parser:
    """Build the parser; it sets `command`, a function of the options."""
    root = Parser(prog="dalirefurb", description=explanations.DESCRIPTION, epilog=explanations.EPILOG)
    root.add_argument("--version", action=_Version, nargs=0, help="print the version, and end")
    parsers = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, texts, command, add_arguments in (
        ("train", explanations.TRAIN, _train, _add_train),
        ("show", explanations.SHOW, show, _add_show),
        ("demo", explanations.DEMO, _demo, _add_demo),
        ("tune", explanations.TUNE, tune, _add_tune),
        ("cache", explanations.CACHE, None, _add_cache),
        ("keep", explanations.KEEP, maintenance.keep, _add_keep),
        ("compile", explanations.COMPILE, maintenance.compile_kernels, lambda _: None),
        ("doctor", explanations.DOCTOR, maintenance.doctor, _add_doctor),
    ):
        made = parsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
        made.set_defaults(command=command)
        add_arguments(made)
    return root


def _train(options: argparse.Namespace) -> None:
    """Train; what only this command and the next one need is loaded now."""
    import_module("dalirefurb.demo.commands").train(options)


def _demo(options: argparse.Namespace) -> None:
    """Run the demo, with what was not given as --quick says."""
    for name, value in (_QUICK if options.quick else _FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    import_module("dalirefurb.demo.commands").demo(options)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", nargs="?", help="of a data set, whose disk is looked at")
    parser.add_argument("--json", action="store_true", help="print all findings and figures as JSON")


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", help=_FOLDER)
    group = parser.add_argument_group("technique")
    group.add_argument(
        "--technique",
        choices=TECHNIQUES,
        default="refurbish",
        metavar="NAME",
        help=f"{', '.join(TECHNIQUES)}: see below (refurbish)",
    )
    for name in OPTIONS:
        _add_option(group, name)
    _add_split(
        group,
        "the last layer of RandAugment is final, or crop and flip with --order crop_last; of echo, batch_echo and "
        "smartcache all but decoding",
    )
    group = parser.add_argument_group("augmentation")
    _add_number(group, "--size", 224, "side of the images", _SEEN, "PIXELS")
    layers = Number(int, 1, 100, "must be a positive integer, got {}")
    _add_number(group, "--layers", 2, "operations of RandAugment applied to an image, one after the other", layers)
    _add_number(group, "--magnitude", 9, "of these operations, 0 .. 30", letter="M")
    _add_order(group, default="paper")
    group = parser.add_argument_group("training")
    epochs = Number(int, 1, _MOST, "must be at least 1, got {}")
    _add_number(group, "--epochs", 5, "rounds of training and report", epochs)
    at_a_time = "images learned from at a time, or of fewer images all"
    _add_number(group, "--batch-size", BATCH_SIZE, at_a_time, Number(int, 1), late=True)
    share = Number(float, 0, 0.9, "must be a share in 0..0.9, got {}")
    _add_number(
        group, "--val-share", 0, "share of the images that is not learned from, but judged after each epoch", share, "X"
    )
    _add_number(group, "--learning-rate", 0.01, "the highest of AdamW's schedule", learning_rate, "X")
    group.add_argument(
        "--on-bad-sample",
        choices=("raise", "replace"),
        default="raise",
        metavar="ACTION",
        help="if an image cannot be decoded. raise: stop, and name it; replace: train on another one in its place, and "
        "list them all in the end (raise)",
    )
    _add_number(group, "--seed", 0, "of order, augmentation and initial weights")
    group = parser.add_argument_group("odd images and machines")
    group.add_argument(
        "--quarantine",
        type=path,
        metavar="FILE",
        help="with --on-bad-sample replace: bad images are written there, and never read again by a later run",
    )
    _add_number(group, "--max-pixels", 100_000_000, "of an image; a larger one is bad", Number(int, 1))
    group.add_argument(
        "--kernels",
        choices=("numba", "dali"),
        metavar="NAME",
        help="what augments. numba: compiled kernels, which need Numba; dali: DALI's operators (numba, if it is "
        "installed)",
    )


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", nargs="?", help=_FOLDER)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--operations", action="store_true", help="draw the preset's operations instead")
    modes.add_argument("--plan", action="store_true", help="draw the misses of epochs and batches instead")
    parser.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help="the PNG; one that is there is replaced (show.png, operations.png or plan.png)",
    )
    _add_option(parser, "reuse_factor")
    _add_number(parser, "--seed", 0, "of augmentation and order", late=True)
    group = parser.add_argument_group("what belongs to the images, which lie in FOLDER at any depth then")
    targets = group.add_mutually_exclusive_group()
    targets.add_argument("--masks", type=path, metavar="DIR", help="masks, in the places of their images")
    targets.add_argument("--coco", type=path, metavar="FILE", help="boxes, outlines and keypoints in COCO's format")
    targets.add_argument("--yolo", type=path, metavar="DIR", help="text files of boxes or outlines, as YOLO's")
    group = parser.add_argument_group("augmentation")
    group.add_argument(
        "--preset",
        choices=(*PRESETS, STAGES),
        metavar="NAME",
        help=f"the stages: {', '.join(PRESETS)}; with --operations also {STAGES}, all that there are (rand_augment)",
    )
    _add_order(group, default=None)
    _add_split(group, "the last operation is final, or crop and flip with --order crop_last")
    _add_number(group, "--size", 224, "side of the images", _SIZE, "PIXELS", late=True)
    group = parser.add_argument_group("with --plan")
    samples, those = Number(int, 1, _MOST_SAMPLES), "those of FOLDER, or 10000"
    _add_number(group, "--num-samples", those, "images of the data set", samples, late=True)
    at_a_time = "images served at a time, or of fewer images all"
    _add_number(group, "--batch-size", BATCH_SIZE, at_a_time, Number(int, 1), late=True)
    _add_number(group, "--epochs", 9, "planned, from the first", Number(int, 1, _MOST), late=True)
    group.add_argument(
        "--technique", choices=TECHNIQUES, metavar="NAME", help=f"draw the plan of one: {', '.join(TECHNIQUES)}"
    )
    for name in OPTIONS:
        if name != "reuse_factor":
            _add_option(group, name)
    group.add_argument(
        "--bandwidth",
        metavar="BYTES",
        help="of a GPU's memory in a second, such as 2.8TB: print what kernels launch there for a batch of the preset, "
        "what that moves, and how long it takes at least; no GPU is needed",
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder",
        type=path,
        metavar="DIR",
        help="keep the images there, and use them again; by default they are deleted in the end",
    )
    parser.add_argument(
        "--out",
        type=path,
        default=Path("dalirefurb-demo"),
        metavar="DIR",
        help="for the pictures; made if it is not there (dalirefurb-demo)",
    )
    parser.add_argument("--quick", action="store_true", help="little of everything, to try whether it works")
    _add_option(parser, "reuse_factor", late=False)
    images = Number(int, 8, _MOST_SAMPLES, "must be at least 8, one per class, got {}; 2000 is usual")
    for name, kind, meaning in (
        ("images", images, "JPEGs made, about 65 KB each"),
        ("epochs", Number(int, 1, _MOST), "of each run"),
        ("batch_size", Number(int, 1), "images learned from at a time"),
        ("size", _SEEN, "side in pixels of the images that the network sees"),
    ):
        _add_number(parser, flag(name), f"{_FULL[name]}; {_QUICK[name]} with --quick", meaning, kind, late=True)
    _add_number(
        parser,
        "--seed",
        0,
        "of everything random",
        Number(int, 0, refusal="must be at least 0, got {}; any such number will do"),
    )


def _add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", nargs="?", help=_FOLDER)
    group = parser.add_argument_group("what is trained")
    group.add_argument(
        "--preset", choices=TUNED, metavar="NAME", help=f"{', '.join(TUNED)} ({MEASURED_WITH['preset']})"
    )
    _add_number(group, "--size", MEASURED_WITH["size"], "side of the images", _SIZE, "PIXELS", late=True)
    rows = OF_MEASUREMENT["batch_size"]
    _add_number(group, "--batch-size", rows, "images learned from at a time", Number(int, 1), late=True)
    _add_number(group, "--epochs", OF_MEASUREMENT["epochs"], "of the run", Number(int, 1, _MOST), late=True)
    step_ms = "milliseconds that the model's step takes on a batch at hand"
    _add_number(group, "--step-ms", None, step_ms, Number(float, 0.001, 1e9), "MS")
    group = parser.add_argument_group("what it may take")
    group.add_argument("--memory", metavar="BUDGET", help='of a cache, such as "16GB" (60%%)')
    group.add_argument("--disk", type=path, metavar="DIR", help="a folder on a disk where a cache may lie, too")
    share = Number(float, 0, 1)
    _add_number(group, "--min-kept", 0.95, "least share of the different images to keep", share, "X")
    seconds = Number(float, 1, 86_400)
    _add_number(group, "--limit", OF_MEASUREMENT["limit"], "seconds to measure for, about", seconds, "S", late=True)
    group = parser.add_argument_group("results")
    group.add_argument("--json", type=path, metavar="FILE", help="write all of it there, and the costs measured")
    group.add_argument("--picture", type=path, metavar="FILE", help="draw images/s against reuse factors, a PNG")
    group.add_argument("--verify", action="store_true", help="exit status 1 if turns are not as fast as predicted")
    group = parser.add_argument_group("another machine")
    group.add_argument("--costs", type=path, metavar="FILE", help="compute from what --json wrote, and measure nothing")
    group.add_argument(
        "--machine", type=path, metavar="FILE", help="compute for the machine that a TOML file describes"
    )


def _add_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=path, metavar="FOLDER", help=_FOLDER)
    parser.add_argument("path", type=path, metavar="KEEP", help="folder where samples are kept, made if need be")
    parser.add_argument(
        "--form",
        choices=("decoded", "planes", "encoded"),
        default="decoded",
        help="images, images in half the bytes, or files as they are (decoded)",
    )
    parser.add_argument(
        "--size", default="80%", metavar="BUDGET", help='bytes at most, such as "200GB" (80%% of the disk)'
    )


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parsers = parser.add_subparsers(title="what to do", required=True, metavar="ACTION")
    for function, summary in (
        (maintenance.inspect, "print what is in it, and what it was made for"),
        (maintenance.verify, "read it through: exit status 1 if a sample is damaged"),
        (maintenance.purge, "delete it, unless it is in use, or no store"),
    ):
        made = parsers.add_parser(function.__name__, help=summary, description=f"{summary.capitalize()}.")
        made.add_argument(
            "path", type=path, metavar="PATH", help="the file that DiskStore(PATH) was given, or Kept's folder"
        )
        made.set_defaults(command=function)


def _add_number(
    group: argparse._ActionsContainer,
    name: str,
    usual: float | str | None,
    meaning: str,
    kind: Callable[[str], float] = _ANY,
    letter: str = "N",
    late: bool = False,
) -> None:
    """Add a number with a default, which the command sets where it is late: so it can tell what was given."""
    told = "" if usual is None else f" ({usual})"
    group.add_argument(name, type=kind, default=None if late else usual, metavar=letter, help=f"{meaning}{told}")


def _add_option(group: argparse._ActionsContainer, name: str, *, late: bool = True) -> None:
    """Add a technique's option."""
    (limits, meaning), owners = OPTIONS[name], owners_of(name)
    usual, letter = TECHNIQUES[owners[0]].options[name], "N" if limits.kind is int else "X"
    of = "" if name == "reuse_factor" else f"{' and '.join(owners)}: "
    _add_number(group, flag(name), usual, f"{of}{meaning}", limits, letter, late)


def _add_split(group: argparse._ActionsContainer, default: str) -> None:
    group.add_argument(
        "--split",
        type=_split,
        metavar="STAGE|N",
        help="where the final augmentation begins: a stage's name (see --order), how many stages are partial, or end: "
        f"all are. By default {default}",
    )


def _add_order(group: argparse._ActionsContainer, *, default: str | None) -> None:
    group.add_argument(
        "--order",
        choices=("paper", "crop_last"),
        default=default,
        help="of the stages. paper: decode, random_resized_crop, flip, rand_augment_1, rand_augment_2, ...; "
        "crop_last: decode, random_resized_crop, rand_augment_1, rand_augment_2, ..., random_crop, flip (paper)",
    )


def _split(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdecimal() else text
