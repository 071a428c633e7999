"""How much of what each technique can give does the loader reach? Images/s against each one's own bound.

Claim, on any machine: every technique reaches at least 0.90 of its bound.
Bound: its own; and what computes a share k of its partial images is at most 1 / k times as fast as standard.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, at least 4,096 images timed in each.

The bound is k * c_P + c_F seconds an image, where k is how many partial images the plan computes for each image that is
served: 1 / reuse factor, 1 / echoing factor, the share of the window that SmartCache replaces, 0 for a frozen cache.
c_P and c_F are the costs of the two parts, read and decode included, where the technique splits the recipe: the least
that was seen in the same round, of the parts by themselves at the replicas x threads that were fastest in a
calibration, and of loaders that do all of it, or the final part alone. Loaders run at their default replicas x threads.
The consumer does nothing (headspace), and losses for the Assistant are drawn.

    python benchmarks/techniques.py                        about 15 minutes on 2 cores
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np
from claims import Claim, Spread, say, table_of
from experiment import Experiment, Options
from harness import Contender, Slice
from loaders import STANDARD, LoaderTurns, Sizes, computed_share, default_placement, kept_diversity, reuse, rotation_of
from parts import Parts, both, bound, fastest
from sources import repeated

from dalirefurb import AutoAssist, Echo, Loader, Recipe, SmartCache, Standard, rand_augment
from dalirefurb.augment.presets import simplified
from dalirefurb.planning import BatchEcho, Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

SIMPLIFIED, FROZEN = "simplified", "frozen"
DIVERSITY_EPOCHS = 90
LEAST_OF_BOUND = 0.90


@dataclass(frozen=True, kw_only=True)
class Config(Sizes):
    """What is run.

    Attributes:
        factors: Reuse factors and echoing factors.
        layers: Numbers of layers that are left out.
        parts_batches: Batches that the parts are measured on.
        buffer_batches: Batches in the shuffle buffer of example echoing.
        replace_percent: Share of SmartCache's window, half the data, that is replaced after each round.
        lag: Batches between a loss and the first plan that AutoAssist makes with it.
        timed_batches: Of a slice.
        calibration_rounds: Slices of each part at each placement.
    """

    factors: tuple[int, ...] = (2, 3)
    layers: tuple[int, ...] = (1, 2)
    parts_batches: int = 6
    buffer_batches: int = 4
    replace_percent: float = 0.1
    lag: int = 32
    timed_batches: int = 64
    calibration_rounds: int = 1


@dataclass(frozen=True)
class Technique:
    """What is compared.

    Attributes:
        name: For tables and results.
        recipe: Where it splits.
        planner: What it serves.
    """

    name: str
    recipe: Recipe
    planner: Planner

    @property
    def parts(self) -> str:
        """Which of the measured parts are its own, by how many stages are in each."""
        return f", {len(self.recipe.partial)} + {len(self.recipe.final)} stages"


def techniques(config: Config) -> list[Technique]:
    """List all, with the recipe of each split where the technique wants it."""
    count, batch_size = config.samples, config.batch_size
    recipe = rand_augment(config.size)
    decoded, finished = recipe.at(1), recipe.at(len(recipe.stages))
    standard = Standard(count, batch_size=batch_size)
    compared = [
        Technique(STANDARD, recipe, standard),
        *(Technique(f"{SIMPLIFIED} by {layers}", simplified(recipe, layers), standard) for layers in config.layers),
    ]
    refurbished = config.planners(*config.factors)
    compared += [Technique(reuse(factor), recipe, refurbished[reuse(factor)]) for factor in config.factors]
    for factor in config.factors:
        echo = Echo(standard, echoing_factor=factor, buffer_size=config.buffer_batches * batch_size)
        compared.append(Technique(f"echo before augmentation {factor}", decoded, echo))
        compared.append(Technique(f"echo after augmentation {factor}", finished, echo))
        compared.append(Technique(f"batch echo {factor}", finished, BatchEcho(standard, echoing_factor=factor)))
    smart_cache = SmartCache(
        count,
        batch_size=batch_size,
        num_cache_objects=config.epoch_batches // 2 * batch_size,
        replace_percent=config.replace_percent,
    )
    return [
        *compared,
        Technique("SmartCache", recipe.at(recipe.deterministic_prefix), smart_cache),
        Technique("AutoAssist", recipe, AutoAssist(standard, lag=config.lag)),
        Technique(FROZEN, recipe, Frozen(count, batch_size=batch_size)),
    ]


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Calibrate the parts of every split, let all take turns, and divide."""
    source = config.source(options.data)
    few = repeated(options.data, config.parts_batches * config.batch_size)
    compared = techniques(config)
    parts: dict[str, list[Contender]] = {}
    calibration: list[Slice] = []
    with ExitStack() as stack:
        for technique in compared:
            if technique.parts not in parts:
                own = Parts(technique.recipe, few, batch_size=config.batch_size, label=technique.parts)
                partial, final, slices = own.calibrate(
                    rounds=config.calibration_rounds, timed_batches=max(1, config.timed_batches // 12)
                )
                calibration += slices
                parts[technique.parts] = own.alone(stack, partial, final)
        turns = [_entrant(stack, technique, source) for technique in compared]
        for entrant in turns:
            if isinstance(entrant, LoaderTurns):
                entrant.settle()
        wholes = everything_computed(compared)
        others = [_entrant(stack, each, source) for each in wholes.values() if each not in compared]
        contenders = [*turns, *others, *(part for alone in parts.values() for part in alone)]
        slices = harness.interleave(contenders, rounds=config.rounds, timed_batches=config.timed_batches)
    speeds = harness.speeds_of(slices)
    bounds = {}
    for each in compared:
        partial_only, final_only = (speeds[part.name] for part in parts[each.parts])
        whole = fastest(both(partial_only, final_only), speeds[wholes[each.parts].name])
        final = fastest(final_only, speeds[FROZEN]) if each.parts == compared[-1].parts else final_only
        bounds[each.name] = bound(whole, final, computed_share(each.planner))
    of_bound = {
        name: Claim.possible(f"{name} / its bound", speeds[name], own, LEAST_OF_BOUND) for name, own in bounds.items()
    }
    of_standard = {
        each.name: Claim.between(speeds, each.name, STANDARD, bound=most_of_standard(each)) for each in compared
    }
    served = {each.name: sum(len(plan.indices) for plan in each.planner.epoch(1)) for each in compared}
    results = [
        {
            "name": each.name,
            "parts": each.parts,
            "images_per_s": Spread.of(speeds[each.name]),
            "bound": Spread.of(bounds[each.name]),
            "computed": computed_share(each.planner),
            "served": served[each.name],
            "fresh": computed_share(each.planner) * served[each.name],
            # Share of standard's different images; outcomes that look alike count as different.
            "diversity": kept_diversity(each.recipe, each.planner, DIVERSITY_EPOCHS),
            "stats": entrant.stats if isinstance(entrant, LoaderTurns) else [],
        }
        for each, entrant in zip(compared, turns, strict=True)
    ]
    columns = {
        "technique": "{name}",
        "images/s [quartiles]": "{images_per_s:0}",
        "bound": "{bound.median:.0f}",
        "of bound [quartiles]": "{of_bound.figure:2}",
        "": "{of_bound.verdict}",
        "of standard": "{of_standard.figure.median:.2f}",
        "fresh an epoch": "{fresh:.0f} of {served}",
        "diversity": "{diversity:.3f}",
    }
    shown = zip(results, of_bound.values(), of_standard.values(), strict=True)
    say(table_of(({**each, "of_bound": own, "of_standard": standard} for each, own, standard in shown), columns))
    placements = {part.name: str(part.placement) for both in parts.values() for part in both}
    return {
        "techniques": results,
        "claims": [claim for name in bounds for claim in (of_bound[name], of_standard[name])],
        "placements": placements | dict.fromkeys(bounds, str(default_placement())),
        "slices": slices,
        "calibration": calibration,
    }


def everything_computed(compared: Sequence[Technique]) -> dict[str, Technique]:
    """Choose who computes everything at each split, by the name of its parts: one that is compared, or standard."""
    wholes: dict[str, Technique] = {}
    for each in compared:
        if computed_share(each.planner) == 1:
            wholes.setdefault(each.parts, each)
    for each in compared:
        wholes.setdefault(each.parts, Technique(f"{STANDARD}{each.parts}", each.recipe, compared[0].planner))
    return wholes


def most_of_standard(technique: Technique) -> float | None:
    """Return how many times as fast as standard it can be; None if nothing is known: it does other things, or none."""
    computed = computed_share(technique.planner)
    return 1 / computed if computed and not technique.name.startswith(SIMPLIFIED) else None


def _entrant(stack: ExitStack, technique: Technique, source: Source) -> LoaderTurns | Contender:
    """Make what takes turns. An Assistant's loader stays open: what it knows of the images is not in its state."""
    if not isinstance(technique.planner, AutoAssist):
        return LoaderTurns(stack, technique.name, source, technique.recipe, technique.planner)
    loader = stack.enter_context(Loader(source, technique.recipe, technique.planner, with_indices=True))
    losses = np.random.default_rng(0).random(len(source), np.float32)
    placement = default_placement()
    batches = _observed(loader, losses)
    return Contender(technique.name, placement, loader.batches_ahead, batches, rotation_of(loader, 1))


def _observed(loader: Loader, losses: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Generator[int, None, None]:
    """Consume epoch after epoch, telling losses that are there already, shape (num_samples,)."""
    while True:
        for _, _, indices in loader:
            loader.observe(losses[indices.numpy()])
            yield len(indices)


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=32, rounds=5),
    quick=Config(
        factors=(2,), layers=(1,), size=48, batch_size=8, epoch_batches=4, parts_batches=1, timed_batches=2, rounds=2
    ),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
