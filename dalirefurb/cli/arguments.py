"""What can be asked for on the command line? The arguments, and the help that explains them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from dalirefurb.cli.commands import FULL, QUICK, demo, train

_DESCRIPTION = """\
Data refurbishing: train on images whose augmentation is partly cached and reused."""

_TRAIN_DESCRIPTION = """\
Train a small residual network on the images of FOLDER, and show what the data cost.

An image is decoded, cropped, flipped and changed by layers of RandAugment. The first of these stages are the
partial augmentation: its result is cached and reused in as many epochs as the reuse factor says. The others are
the final augmentation, drawn afresh every time, so that the network sees a new image in every epoch."""

_TRAIN_EPILOG = """\
what is printed for each epoch:
  images/s   throughput of training, data preparation and the network's step included
  hits       images whose partial augmentation came from the cache
  misses     images that were read, decoded and augmented from the start. The first epoch only misses; later
             ones miss 1 / reuse factor of the images
  waiting    share of the time in which the network waited for data. The rest are its own steps, which are
             slower, too, while data preparation keeps the same cores busy
  ms/batch   time from batch to batch, the median and the 95th percentile
  loss, accuracy
             of the network on the augmented training images, as it learns from them

examples:
  dalirefurb train photos/                          reuse factor 3, the paper's order of stages
  dalirefurb train photos/ --reuse-factor 1         standard training, to compare with
  dalirefurb train photos/ --order crop_last        only crop and flip are fresh: faster, nearly as diverse
  dalirefurb train photos/ --split flip --layers 1  cache what comes before the flip"""

_DEMO_DESCRIPTION = """\
Make a folder of JPEGs from photographs that ship with scikit-image, train on it with and without refurbishing,
and print a table. Takes one to two minutes on two cores. Needs pip install "dalirefurb[demo]"."""

_DEMO_EPILOG = """\
examples:
  dalirefurb demo
  dalirefurb demo --folder photos   keep the images, then: dalirefurb train photos
  dalirefurb demo --quick           a few seconds; its figures mean nothing"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other error is reported: in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"dalirefurb: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Build the parser; it sets `command`, a function of the options."""
    root = _Parser(prog="dalirefurb", description=_DESCRIPTION)
    parsers = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter

    train_parser = parsers.add_parser(
        "train",
        help="train on a folder of images",
        description=_TRAIN_DESCRIPTION,
        epilog=_TRAIN_EPILOG,
        formatter_class=raw,
    )
    train_parser.set_defaults(command=train)
    train_parser.add_argument("folder", metavar="FOLDER", help="one folder per class, images in them: FOLDER/cat/1.jpg")
    group = train_parser.add_argument_group("refurbishing")
    _add_reuse_factor(group)
    group.add_argument(
        "--split",
        type=_split,
        metavar="STAGE|N",
        help="where the final augmentation begins: a stage's name (see --order), or how many stages are partial. "
        "By default the last layer of RandAugment is final, or crop and flip with --order crop_last",
    )
    group = train_parser.add_argument_group("augmentation")
    group.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the images (224)")
    group.add_argument(
        "--layers",
        type=int,
        default=2,
        metavar="N",
        help="operations of RandAugment applied to an image, one after the other (2)",
    )
    group.add_argument("--magnitude", type=int, default=9, metavar="M", help="of these operations, 0 .. 30 (9)")
    group.add_argument(
        "--order",
        choices=("paper", "crop_last"),
        default="paper",
        help="of the stages. paper: decode, random_resized_crop, flip, rand_augment_1, rand_augment_2, ...; "
        "crop_last: decode, random_resized_crop, rand_augment_1, rand_augment_2, ..., random_crop, flip (paper)",
    )
    group = train_parser.add_argument_group("training")
    group.add_argument("--epochs", type=int, default=5, metavar="N", help="how often each image is served (5)")
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="images learned from at a time (64)")
    group.add_argument(
        "--learning-rate", type=float, default=0.01, metavar="X", help="the highest of AdamW's schedule (0.01)"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of order, augmentation and initial weights (0)"
    )

    demo_parser = parsers.add_parser(
        "demo",
        help="see what refurbishing brings on this machine",
        description=_DEMO_DESCRIPTION,
        epilog=_DEMO_EPILOG,
        formatter_class=raw,
    )
    demo_parser.set_defaults(command=demo)
    demo_parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep the images there, and use them again; by default they are deleted in the end",
    )
    demo_parser.add_argument("--quick", action="store_true", help="little of everything, to try whether it works")
    _add_reuse_factor(demo_parser)
    for name, meaning in (
        ("images", "JPEGs made, about 65 KB each"),
        ("epochs", "of each run"),
        ("batch_size", "images learned from at a time"),
        ("size", "side in pixels of the images that the network sees"),
    ):
        demo_parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            metavar="N",
            help=f"{meaning} ({FULL[name]}; {QUICK[name]} with --quick)",
        )
    demo_parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (0)")
    return root


def _add_reuse_factor(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--reuse-factor",
        type=int,
        default=3,
        metavar="N",
        help="epochs in which a cached image is used before it is made anew. 2 and 3 are usual, 1 caches nothing: "
        "standard training. More is faster, but the network sees fewer different images (3)",
    )


def _split(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdecimal() else text
