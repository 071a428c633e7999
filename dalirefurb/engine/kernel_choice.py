"""Kernel choice: whether Numba's kernels, those in CUDA or DALI's operators compute a recipe, and how far."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Device, Stage, leaving
from dalirefurb.augment.stages.custom import OnCPU
from dalirefurb.errors import ConfigurationError, how_to_install
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.kernels.lower import steps_of


@dataclass(frozen=True)
class Devices:
    """Where the parts of a recipe run, and where partial images are in between.

    Attributes:
        partial: Device where the partial part runs.
        final: Device where the final part runs.
        leaving: Device where partial images leave the partial part.
        entering: Device where partial images enter the final part.
    """

    partial: Device = "cpu"
    final: Device = "cpu"
    leaving: Device = "cpu"
    entering: Device = "cpu"


Kernels = Literal["numba", "cuda", "dali"]
"""What computes: on the CPU kernels compiled by Numba up to a stage that has none; parts on a GPU by the same kernels
in CUDA; or DALI's operators alone."""


def choose_kernels(kernels: Kernels | None, recipe: Recipe, devices: Devices, *, final: bool = True) -> Kernels:
    """Fill in what is None: Numba, if it is installed, both parts run on the CPU and the first stages have kernels.

    Or CUDA, if CuPy is installed, the final part runs on a GPU and all of its stages have kernels. Which stages run by
    which on the CPU, see `done_by_kernels`, depends neither on the split nor on whether there is a store. If the final
    part is not computed here, DALI's operators do it elsewhere.

    Raises:
        ConfigurationError: If they cannot be had.
    """
    chosen = _chosen(kernels, recipe, devices)
    partners = recipe.partner_stage
    if final and partners is not None and (chosen != "numba" or done_by_kernels(recipe) < len(recipe.stages)):
        partners.apply(None, {})  # Which refuses.
    done = recipe.split if begun_on_gpu(chosen, recipe, devices) else done_by(chosen, recipe, devices) or 0
    others = recipe.partial[done:] if chosen == "cuda" else recipe.stages[done if final else min(done, recipe.split) :]
    for stage in others:
        for each in (stage, *stage.nested):
            if not isinstance(each, OnCPU):
                continue
            if not final and stage in recipe.final:
                raise ConfigurationError(
                    f"stage {each.name!r} is run by kernels, but the final part is your pipeline's, of DALI's "
                    f"operators: split the recipe behind it, or make it of these by Stage or Custom"
                )
            each.apply(None, {})  # Which refuses.
    return chosen


def done_by_kernels(recipe: Recipe) -> int:
    """Return how many first stages kernels can do, decoding included: from the first without a kernel on DALI goes on.

    DALI is fed one array of them, so with none of them if that stage does not get images of one size from each recipe.
    """
    first = next(
        (place for place, stage in enumerate(recipe.stages) if place >= recipe.encoded and steps_of((stage,)) is None),
        len(recipe.stages),
    )
    return first if first == len(recipe.stages) or leaving(recipe.stages[:first], None) is not None else 0


def fallback_stage(kernels: Kernels, recipe: Recipe, *, final: bool) -> str | None:
    """Name the stage where Numba's kernels end and DALI goes on, in both parts or the partial one; None: nowhere."""
    stages = recipe.stages if final else recipe.partial
    done = done_by_kernels(recipe)
    return stages[done].name if kernels == "numba" and done < len(stages) else None


def done_by(kernels: Kernels, recipe: Recipe, devices: Devices) -> int | None:
    """Return how many first stages kernels do on the CPU, decoding included; None if DALI does all there."""
    if kernels == "numba":
        return done_by_kernels(recipe)
    ours = kernels == "cuda" and devices.partial == "cpu" and steps_of(recipe.partial[recipe.encoded :]) is not None
    return recipe.split if ours else None


def begun_on_gpu(kernels: Kernels, recipe: Recipe, devices: Devices) -> bool:
    """Tell whether kernels do the partial part on a GPU, where DALI decodes alone."""
    return kernels == "cuda" and devices.partial == "gpu" and _has_cuda(recipe.partial[recipe.encoded :])


def _has_cuda(stages: tuple[Stage, ...]) -> bool:
    """Tell whether all of some stages have kernels for a GPU."""
    from dalirefurb.kernels.cuda.source import name_of

    steps = steps_of(stages)
    return steps is not None and all(each is None or name_of(each) for step in steps for each in step.kernels)


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # A stand-in, which has no spec.
        return True


def _cuda_refusal(recipe: Recipe, devices: Devices) -> str | None:
    """Say why the final part cannot be done by kernels on a GPU; None if it can."""
    if devices.final != "gpu":
        return f"is for a final part on a GPU, got final_device={devices.final!r}"
    if recipe.caches_encoded:
        return "is for decoded partial images, but split 0 caches encoded ones"
    if not all(map(_installed, ("cupy", "numba"))):
        return f"needs CuPy and Numba, which are not all installed ({how_to_install('gpu')})"
    if not _has_cuda(recipe.final):
        return "needs stages that have kernels for a GPU, but one of the final part has none"
    return None


def _chosen(kernels: Kernels | None, recipe: Recipe, devices: Devices) -> Kernels:
    on_cpu = devices.partial == devices.final == "cpu"
    installed = _installed("numba")
    done = done_by_kernels(recipe)
    some = done == len(recipe.stages) or done > recipe.encoded
    refused = _cuda_refusal(recipe, devices)
    if kernels is None:
        return "numba" if on_cpu and installed and some else "cuda" if refused is None else "dali"
    if kernels not in get_args(Kernels):
        raise ConfigurationError(f"kernels must be one of {get_args(Kernels)} or None, got {kernels!r}")
    if kernels == "cuda" and refused is not None:
        raise ConfigurationError(f"kernels='cuda' {refused}: leave kernels out")
    if kernels != "numba":
        return kernels
    if not on_cpu:
        raise ConfigurationError(
            f"kernels='numba' is for the CPU, got partial_device={devices.partial!r} and "
            f"final_device={devices.final!r}: leave kernels out"
        )
    if not installed:
        raise ConfigurationError(
            "kernels='numba' needs Numba, which is not installed: pip install numba, or leave kernels out"
        )
    if not some:
        names = [stage.name for stage in recipe.stages[recipe.encoded :] if steps_of((stage,)) is None]
        raise ConfigurationError(
            f"kernels='numba' needs stages that have kernels before {names[0]!r}, which has none, and to leave it "
            f"images of one size: leave kernels out"
        )
    return kernels


def choose_for_views(
    kernels: Kernels | None, recipes: Sequence[Recipe], devices: Devices, *, final: bool = True, versions: int = 1
) -> Kernels:
    """Choose for all views of a sample, `versions` by each recipe, what computes them.

    That is kernels if all their stages have some, else DALI alone.

    Raises:
        ConfigurationError: If they cannot be had.
    """
    if recipes[0].volumes:
        _check_volumes(kernels, devices, views=versions * len(recipes), final=final)
        return "numba"
    if not final:
        for view in recipes[1:]:
            choose_kernels(None, view, devices, final=False)  # Which refuses what only kernels run.
        return choose_kernels(kernels, recipes[0], devices, final=False)
    chosen = [choose_kernels(kernels, recipe, devices) for recipe in recipes]
    if len(recipes) == 1:
        return chosen[0]
    lacking = [
        stage.name for recipe in recipes for stage in recipe.stages[recipe.encoded :] if steps_of((stage,)) is None
    ]
    if len({*chosen}) == 1 and not (lacking and chosen[0] == "numba"):
        return chosen[0]
    if kernels is not None:
        raise ConfigurationError(
            f"kernels={kernels!r} needs kernels for all stages where there are views, but {lacking[0]!r} has none: "
            f"leave kernels out"
        )
    return choose_for_views("dali", recipes, devices)


def _check_volumes(kernels: Kernels | None, devices: Devices, *, views: int, final: bool) -> None:
    """Refuse what cannot be had of volumes."""
    for holds, what, remedy in (
        (devices.partial == devices.final == "cpu", "on a GPU", "leave the devices out"),
        (kernels in (None, "numba"), f"by kernels={kernels!r}", "leave kernels out"),
        (views <= 1, "in several views", "pass Echo(planner, ...) for several windows of each volume"),
        (final, "by a PartialSource", "pass the recipe to a Loader"),
        (_installed("numba"), "without Numba", "pip install numba"),
    ):
        if not holds:
            raise ConfigurationError(f"volumes cannot be made {what}: {remedy}")


def compile_kernels(kernels: Kernels, recipe: Recipe, devices: Devices, *, final: bool = True) -> None:
    """Compile what a recipe needs on the CPU, its final part perhaps; what was compiled is loaded."""
    done, encoded = done_by(kernels, recipe, devices), recipe.encoded
    if done is None or recipe.volumes:
        return
    from dalirefurb.kernels.ahead import compile_for
    from dalirefurb.kernels.random import use_compiled

    final = final and kernels == "numba"
    split = min(max(recipe.split, encoded), done) if final else done
    output = (fallback_levels(kernels, recipe) or recipe.output) if final else None
    stages = recipe.stages if final else recipe.partial
    compile_for(stages[encoded:split], stages[split:done], output)
    use_compiled()


def fallback_levels(kernels: Kernels, recipe: Recipe) -> PlainLevels | None:
    """Return what DALI's operators go on with behind Numba's kernels; None if these do all, or are not chosen."""
    done = done_by_kernels(recipe)
    if kernels != "numba" or done == len(recipe.stages):
        return None
    sides = leaving(recipe.stages[:done], None)
    assert sides is not None
    return PlainLevels(sides)
