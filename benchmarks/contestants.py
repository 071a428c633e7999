"""Which loaders of ours, and of stock DALI's, does against.py compare? Each by name, also in a process of its own.

python contestants.py      a job on the first line of its input, and batches as competitors/serving.py has them
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

import stock_dali
from competitors.rows import CROP_AND_FLIP, Job
from competitors.serving import serve
from harness import Contender, Placement
from loaders import KEPT, STANDARD, Loading, endless, reuse
from sources import MEMORY

from dalirefurb import FileList, Kept, Loader, MemoryStore, Recipe, Standard, simple
from dalirefurb.augment.presets import Order
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

HALF_KEPT = f"half of the {KEPT}"
CROPPED_STANDARD, CROPPED_KEPT = f"{STANDARD}, {CROP_AND_FLIP}", f"{KEPT}, {CROP_AND_FLIP}"
CROPPED_DALI = f"stock DALI, {CROP_AND_FLIP}"
STOCK = (stock_dali.NEAREST, stock_dali.DEFAULT)
CROPPED_STOCK = (CROPPED_DALI, stock_dali.DYNAMIC)

REUSE_FACTORS = (2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        reuse_factors: Of our loaders, beside standard, in the paper's order of stages.
        crop_last: Likewise, with the crop last.
        calibration_batches: Timed at each setting of a competitor, and as many more as its workers' rotation needs.
        calibration_rounds: Of stock DALI, whose two settings are nearly as fast.
    """

    reuse_factors: tuple[int, ...] = REUSE_FACTORS
    crop_last: tuple[int, ...] = (3,)
    calibration_batches: int = 4
    calibration_rounds: int = 3


@dataclass(frozen=True, kw_only=True)
class Ours:
    """A loader of ours.

    Attributes:
        recipe: What is done to an image.
        planner: What is served.
        order: Of the recipe's stages.
        reuse_factor: Of the planner.
        keep: Bytes in which decoded images may be kept; 0: none are.
    """

    recipe: Recipe
    planner: Planner
    order: Order = "paper"
    reuse_factor: int = 1
    keep: int = 0

    @property
    def different(self) -> float:
        """Share of different images among those that are served."""
        return self.recipe.diversity(self.reuse_factor) if self.reuse_factor > 1 else 1.0

    def source(self, stack: ExitStack, source: FileList) -> Source:
        """Put a keep in front of the files, if there is one; it goes with the stack."""
        if not self.keep:
            return source
        return Kept(source, stack.enter_context(TemporaryDirectory(dir=MEMORY)), size=self.keep)


def ours_name(order: Order, reuse_factor: int) -> str:
    """Name a loader of ours."""
    return f"{reuse(reuse_factor)}, {'paper' if order == 'paper' else 'crop last'}"


def whole_recipe(config: Config, decoded_bytes: int) -> dict[str, Ours]:
    """Return loaders of ours with RandAugment: standard, on keeps of all images and of half, and every reuse factor.

    Args:
        config: What is run.
        decoded_bytes: Of all images.
    """
    planners = config.planners(*{*config.reuse_factors, *config.crop_last}, drop_last=True)
    plain = Ours(recipe=config.recipe("paper"), planner=planners[STANDARD])
    orders: dict[Order, tuple[int, ...]] = {"paper": config.reuse_factors, "crop_last": config.crop_last}
    reused = {
        ours_name(order, factor): Ours(
            recipe=config.recipe(order), planner=planners[reuse(factor)], order=order, reuse_factor=factor
        )
        for order, factors in orders.items()
        for factor in factors
    }
    room = keep_bytes(config, decoded_bytes)
    kept = {KEPT: replace(plain, keep=room), HALF_KEPT: replace(plain, keep=room // 2)}
    return {STANDARD: plain, **kept, **reused}


def cropped(config: Loading, decoded_bytes: int) -> dict[str, Ours]:
    """Return what is compared with those that have no RandAugment: standard, and decoded images kept for ever."""
    planner = Standard(config.samples, batch_size=config.batch_size, drop_last=True)
    plain = Ours(recipe=simple(config.size), planner=planner)
    return {CROPPED_STANDARD: plain, CROPPED_KEPT: replace(plain, keep=keep_bytes(config, decoded_bytes))}


def keep_bytes(config: Loading, decoded_bytes: int) -> int:
    """Return what a keep of all images takes, with its records."""
    return decoded_bytes + 4096 * config.samples


def stock(name: str, config: Loading, source: FileList, placement: Placement) -> Contender:
    """Make one of stock DALI's loaders."""
    if name == stock_dali.DYNAMIC:
        return stock_dali.dynamic(config, source, placement)
    sizes = replace(config, layers=0) if name == CROPPED_DALI else config
    return replace(stock_dali.stock(sizes, source, placement, nearest=name != stock_dali.DEFAULT), name=name)


def batches_of(job: Job) -> Generator[int, None, None]:
    """Serve batches of a contestant, and yield their sizes without end."""
    setting = dict(job.setting)
    placement, decoded_bytes = setting.pop("placement"), setting.pop("decoded_bytes")
    config = Config(**setting, size=job.size, batch_size=job.batch_size)
    source = FileList(job.files, job.labels)
    if job.row in (*STOCK, *CROPPED_STOCK):
        replicas, _, threads = placement.partition("x")
        yield from stock(job.row, config, source, Placement(int(replicas), int(threads))).batches
        return
    chosen = (cropped if job.row.endswith(CROP_AND_FLIP) else whole_recipe)(config, decoded_bytes)[job.row]
    with ExitStack() as stack:
        store = stack.enter_context(MemoryStore()) if chosen.planner.peak_slots else None
        loader = Loader(chosen.source(stack, source), chosen.recipe, chosen.planner, store)
        yield from endless(stack.enter_context(loader))


if __name__ == "__main__":
    serve(batches_of(Job(**json.loads(sys.stdin.readline()))))
