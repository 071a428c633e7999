"""What can be asked for on the command line? The arguments, and the help that explains them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dalirefurb.cli.commands import FULL, QUICK, demo, train
from dalirefurb.cli.show import PRESETS, show

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

_SHOW_DESCRIPTION = """\
Draw what refurbishing does to images, into a PNG.

For four images of FOLDER: the original; what the partial augmentation made of it, which is cached; and what the final
augmentation made of that, afresh in each epoch. Then the same for the second version, drawn anew. All is drawn as
training with this seed draws it. Without FOLDER, the images are photographs that ship with scikit-image."""

_SHOW_EPILOG = """\
what is drawn:
  dalirefurb show               blue frames: cached. Orange frames: fresh at every use
  dalirefurb show --operations  the first image under each operation of the preset, at several magnitudes in the
                                paper's units
  dalirefurb show --plan        which epochs and which batches miss, that is, read and augment from the start: with
                                refurbishing, and without its two ways to spread misses evenly

Pictures need pip install "dalirefurb[demo]".

examples:
  dalirefurb show                                     RandAugment, its second layer is fresh
  dalirefurb show photos/ --order crop_last           only crop and flip are fresh
  dalirefurb show photos/ --split flip                see what is cached if it ends before the flip
  dalirefurb show --operations --preset trivial_augment --out wide.png
  dalirefurb show --plan --num-samples 1281167 --batch-size 1024"""

_DEMO_DESCRIPTION = """\
Make a folder of JPEGs from photographs that ship with scikit-image, train on it with and without refurbishing,
and print a table. Also draw it, and the pictures of dalirefurb show. Takes one to two minutes on two cores.
Needs pip install "dalirefurb[demo]"."""

_DEMO_EPILOG = """\
examples:
  dalirefurb demo
  dalirefurb demo --folder photos   keep the images, then: dalirefurb train photos
  dalirefurb demo --quick           a few seconds; its figures mean nothing"""


_FOLDER = "one folder per class, images in them: FOLDER/cat/1.jpg"


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other error is reported: in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"dalirefurb: error: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Build the parser; it sets `command`, a function of the options."""
    root = _Parser(prog="dalirefurb", description=_DESCRIPTION)
    parsers = root.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(
        function: Callable[[argparse.Namespace], None], summary: str, description: str, epilog: str
    ) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = parsers.add_parser(
            function.__name__,
            help=summary,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(command=function)
        return made

    _add_train(command(train, "train on a folder of images", _TRAIN_DESCRIPTION, _TRAIN_EPILOG))
    _add_show(command(show, "draw what is cached, and what the network sees", _SHOW_DESCRIPTION, _SHOW_EPILOG))
    _add_demo(command(demo, "see what refurbishing brings on this machine", _DEMO_DESCRIPTION, _DEMO_EPILOG))
    return root


def _add_train(train_parser: argparse.ArgumentParser) -> None:
    train_parser.add_argument("folder", metavar="FOLDER", help=_FOLDER)
    group = train_parser.add_argument_group("refurbishing")
    _add_reuse_factor(group)
    _add_split(group, default="the last layer of RandAugment is final, or crop and flip with --order crop_last")
    group = train_parser.add_argument_group("augmentation")
    _add_size(group)
    group.add_argument(
        "--layers",
        type=int,
        default=2,
        metavar="N",
        help="operations of RandAugment applied to an image, one after the other (2)",
    )
    group.add_argument("--magnitude", type=int, default=9, metavar="M", help="of these operations, 0 .. 30 (9)")
    _add_order(group, default="paper")
    group = train_parser.add_argument_group("training")
    group.add_argument("--epochs", type=int, default=5, metavar="N", help="how often each image is served (5)")
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="images learned from at a time (64)")
    group.add_argument(
        "--learning-rate", type=float, default=0.01, metavar="X", help="the highest of AdamW's schedule (0.01)"
    )
    _add_seed(group, "of order, augmentation and initial weights")


def _add_show(show_parser: argparse.ArgumentParser) -> None:
    show_parser.add_argument("folder", metavar="FOLDER", nargs="?", help=_FOLDER)
    modes = show_parser.add_mutually_exclusive_group()
    modes.add_argument("--operations", action="store_true", help="draw the preset's operations instead")
    modes.add_argument("--plan", action="store_true", help="draw the misses of epochs and batches instead")
    show_parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the PNG; one that is there is replaced (show.png, operations.png or plan.png)",
    )
    _add_reuse_factor(show_parser)
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
    _add_size(group)
    group = show_parser.add_argument_group("with --plan")
    group.add_argument(
        "--num-samples", type=int, metavar="N", help="images of the data set (those of FOLDER, or 10000)"
    )
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="images served at a time (64)")
    group.add_argument("--epochs", type=int, default=9, metavar="N", help="how often each image is served (9)")


def _add_demo(demo_parser: argparse.ArgumentParser) -> None:
    demo_parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep the images there, and use them again; by default they are deleted in the end",
    )
    demo_parser.add_argument(
        "--out",
        type=Path,
        default=Path("dalirefurb-demo"),
        metavar="DIR",
        help="for the pictures; made if it is not there (dalirefurb-demo)",
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
    _add_seed(demo_parser, "of everything random")


def _add_reuse_factor(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--reuse-factor",
        type=int,
        default=3,
        metavar="N",
        help="epochs in which a cached image is used before it is made anew. 2 and 3 are usual, 1 caches nothing: "
        "standard training. More is faster, but the network sees fewer different images (3)",
    )


def _add_split(group: argparse._ActionsContainer, *, default: str) -> None:
    group.add_argument(
        "--split",
        type=_split,
        metavar="STAGE|N",
        help="where the final augmentation begins: a stage's name (see --order), or how many stages are partial. "
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


def _add_size(group: argparse._ActionsContainer) -> None:
    group.add_argument("--size", type=int, default=224, metavar="PIXELS", help="side of the images (224)")


def _add_seed(group: argparse._ActionsContainer, of: str) -> None:
    group.add_argument("--seed", type=int, default=0, metavar="N", help=f"{of} (0)")


def _split(text: str) -> str | int:
    return int(text) if text.lstrip("-").isdecimal() else text
