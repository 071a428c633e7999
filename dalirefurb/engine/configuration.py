"""Configuration of a loader: what decides its batches, checked before anything is built."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.geometry import unmapped
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stages.custom import Custom
from dalirefurb.calls import INSTEAD, NEEDED
from dalirefurb.dali import Graph, cut_window, versions
from dalirefurb.engine.kernel_choice import Devices, Kernels, begun_on_gpu, done_by, done_by_kernels, fallback_levels
from dalirefurb.engine.prefetch import Depths, Prefetch
from dalirefurb.engine.recipe_checks import check_partners, makes_alike
from dalirefurb.errors import ConfigurationError, warn
from dalirefurb.kernels import VERSION
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import DerivedPlanner, Planner
from dalirefurb.planning.refurbish import Refurbish
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.planning.views import Views
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.reading.pillow_decoder import pillow_version
from dalirefurb.source import Source
from dalirefurb.store import Store
from dalirefurb.targets.annotated import check_targets

_OF_OTHERS = {"torchvision", "timm", "monai"}
"""Packages that have classes of the same names as ours."""


Way = Literal["whole", "both", "together", "apart", "fed", "volumes"]
"""How images are made: in one step that nobody looks into; by kernels of both parts; partial ones, finished by kernels
once all of a batch are there, or each by itself, or by a pipeline of the user's; or volumes."""

_PARTS: Mapping[str, Any] = {
    "source": Source,
    "recipe": Recipe,
    "planner": Planner,
    "store": Store | None,
    "prefetch": Prefetch,
    "bad_samples": BadSamplePolicy,
}
"""The kind of each part of a loader, in the order of its arguments."""


def check_kinds(*parts: object) -> None:
    """Refuse what is of another kind than it should be, an argument at another one's place for example.

    Raises:
        ConfigurationError: If one is.
    """
    for (name, kind), given in zip(_PARTS.items(), parts, strict=True):
        if not isinstance(given, kind):
            wanted = kind.__name__ if name in ("prefetch", "bad_samples") else name
            raise ConfigurationError(
                argument=name,
                requirement=f"a {wanted}",
                given=_kind_of(given),
                remedy=f"{_meant(name, given)}; the order is Loader(source, recipe, planner, store)",
            )


def _meant(name: str, given: Any) -> str:
    """Say what to pass, by what was probably meant."""
    path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if name == "source" and path:
        return f"pass ImageFolder({path!r}) for a folder of class folders"
    if name == "source" and hasattr(given, "indices") and isinstance(getattr(given, "dataset", None), Source):
        return "pass source.subset(subset.indices)"
    if name == "source" and hasattr(given, "dataset"):
        return "a loader takes a DataLoader's place: pass TorchDataset(dataset) for its dataset"
    if name == "source" and hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        others = "FileList(paths, labels) for paths, TorchDataset(dataset) for a torch Dataset"
        return f"{NEEDED[name]}, {others}, HuggingFaceImages(dataset) for one of Hugging Face's"
    if name == "recipe" and _package_of(given) == "torchvision":
        return "pass Recipe.from_torchvision(transforms)"
    if name == "store" and str(given).partition(":")[0] in ("cpu", "gpu", "cuda"):
        return INSTEAD["device"]
    if name == "store" and path:
        return f"pass DiskStore({path!r}) for a file, MemoryStore(max_bytes={path!r}) for an amount of memory"
    return NEEDED[name]


def _kind_of(given: object) -> str:
    """Say what was given in place of what should be."""
    if given is None:
        return "none"
    if isinstance(given, type):
        return f"the class {given.__name__} itself"
    name, package = type(given).__name__, _package_of(given)
    if package in _OF_OTHERS:
        return f"{package}'s {name}"
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _package_of(given: object) -> str:
    return type(given).__module__.partition(".")[0]


@dataclass(frozen=True)
class Configuration:
    """What a loader is made of; for the attributes see `Loader`.

    Attributes:
        planner: Planner of the batches of all ranks.
        stored: Whether there is a store, where partial images wait for reuse.
        serves: Images that are served: "final" ones, or "partial" ones with all that the final part needs.
        views: Recipes with the same partial part, whose final part is done, too.
        given: All recipes as they were given, where the source has done their first stages; see `behind`.

    Raises:
        ConfigurationError: If the parts do not fit together.
    """

    source: Source
    recipe: Recipe
    planner: Planner
    stored: bool
    devices: Devices
    kernels: Kernels
    bad_samples: BadSamplePolicy
    pin_memory: bool
    serves: Literal["partial", "final"] = "final"
    views: tuple[Recipe, ...] = ()
    given: tuple[Recipe, ...] = ()

    def __post_init__(self) -> None:
        recipe, devices = self.recipe, self.devices
        _check_fit(self.source, recipe, self.planner)
        if self.source.annotations is not None:
            check_targets(self.source, self.source.annotations)
            _check_targets(recipe, self.serves == "partial", self.views)
        _check_views(recipe, self.views, alike=self.serves == "partial")
        check_partners(self.source, recipe, self.planner, partial=self.serves == "partial", views=len(self.views))
        for view in self.views:
            _check_size(self.source, view)
        _check_draws((recipe, *self.views), self.planner)
        if not self.stored and self.planner.peak_slots and not isinstance(self.planner, Evaluate):
            named = type(self.planner.planner if isinstance(self.planner, Views) else self.planner).__name__
            warn(
                f"{named} reuses partial images, but there is no store to keep them in: "
                f"each use computes it again, and nothing is gained: pass MemoryStore() after the planner",
            )
        if recipe.caches_encoded and devices.partial != devices.final:
            raise ConfigurationError(
                f"with split 0 decoding is final, so both parts must be on one device, got partial_device="
                f"{devices.partial!r} and final_device={devices.final!r}: pass {devices.final!r} for both, or a split "
                f"of 1 or more"
            )
        if devices.partial == "gpu" and self.source.images(np.empty(0, np.int64)) is not None:
            raise ConfigurationError(
                "images that are kept decoded are the CPU's, but partial_device is 'gpu', whose decoder makes others: "
                "pass Kept(..., form='encoded'), or partial_device='cpu'"
            )
        if Graph(traced(recipe), "final", devices.partial, devices.final).needs_gpu:
            _check_gpu()

    def refusal(
        self, heights: NDArray[np.int64], widths: NDArray[np.int64], *, max_pixels: int | None
    ) -> tuple[int, str] | None:
        """Find an image that a stage of any view cannot take; see `Recipe.refusal`."""
        refusals = (recipe.refusal(heights, widths, max_pixels=max_pixels) for recipe in (self.recipe, *self.views))
        return next(filter(None, refusals), None)

    def depths(self, planner: Planner, prefetch: Prefetch) -> Depths:
        """Return how many threads work, and how far ahead, for a rank's part of the planner.

        Raises:
            ConfigurationError: If no rank could work so far ahead.
        """
        shape, pixels = self.source.image_shape, None
        if self.recipe.volumes:
            return prefetch.of_volumes(planner)
        served = sum(math.prod(each.output.sides) for each in (self.recipe, *self.views))
        if not self.source.encoded and shape is not None:
            pixels = max(shape[0] * shape[1], served)
        numba = self.kernels == "numba"
        together = numba and self.stored and not self.recipe.caches_encoded
        return prefetch.depths(
            planner,
            pixels=pixels,
            served=served,
            hits_together=together and not _always_misses(planner),
            devices=(self.devices.partial, self.devices.final),
            apart=self.apart(planner),
            by_kernels=numba and self.way(planner) != "fed" and fallback_levels("numba", self.recipe) is None,
        )

    def apart(self, planner: Planner) -> bool:
        """Tell whether the parts of a rank's rows are apart, so that partial images can be seen; with split 0, never.

        The store looks at them, an Assistant, the check of what a user's stage makes, and whoever finishes them.
        """
        custom = any(isinstance(stage, Custom) for stage in self.recipe.partial)
        kept = self.stored and planner.peak_slots > 0
        elsewhere = self.serves == "partial" or self.kernels == "cuda" or self.finished_together
        seen = kept or custom or planner.feedback_lag is not None or elsewhere
        return seen and not self.recipe.caches_encoded

    def way(self, planner: Planner) -> Way:
        """Return how the images of a rank's rows are made: the backend, and what finishes its partial images."""
        if self.recipe.volumes:
            return "volumes"
        if not (self.apart(planner) or self.finished_together):
            return "whole"
        if self.serves == "partial":
            return "fed"
        if self.kernels == "numba" and self.finished_together:
            return "together"
        return "both" if self.kernels == "numba" and done_by_kernels(self.recipe) >= self.recipe.split else "apart"

    @property
    def finished_together(self) -> bool:
        """Whether all partial images of a batch are there before one is finished: of views, of partners, of volumes."""
        return len(self.views) > 0 or self.recipe.partner_stage is not None or self.recipe.volumes

    @property
    def slice_rows(self) -> int:
        """Rows of a batch whose samples are of one shard."""
        return self.planner.batch_size // self.planner.shards

    def labels(self) -> NDArray[Any]:
        """Return labels as torch expects them: integers as int64, others as they are, in the machine's byte order."""
        labels = self.source.labels
        dtype = np.dtype(np.int64) if labels.dtype.kind in "iu" else labels.dtype.newbyteorder("=")
        return labels.astype(dtype, copy=False)

    @property
    def whole(self) -> tuple[Recipe, ...]:
        """The recipe and those of all views, with what the source has done of them."""
        return self.given or (self.recipe, *self.views)

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the batches, as JSON values, the same on all ranks; a source looks at all names."""
        value_range, (recipe, *views) = self.source.value_range, self.whole
        return {
            "source": self.source.fingerprint() | ({} if value_range is None else {"value_range": [*value_range]}),
            "recipe": recipe.fingerprint(),
            "planner": self.planner.fingerprint(),
            "partial_device": self.devices.partial,
            "kernels": self._made_by,
            **({"views": [view.fingerprint() for view in views]} if views else {}),
            **({"final": "dali"} if self.serves == "partial" and self.kernels == "numba" else {}),
            "versions": versions() | ({"pillow": pillow_version()} if recipe.encoded else {}),
            **self.bad_samples.fingerprint(),
        }

    @property
    def _made_by(self) -> str:
        """Name what computes: kernels make the same bits on a CPU and on a GPU."""
        if done_by(self.kernels, self.recipe, self.devices) is not None:
            return f"numba {VERSION}"
        if begun_on_gpu(self.kernels, self.recipe, self.devices):
            return f"cuda {VERSION} behind decoding"
        return f"cuda {VERSION}" if self.kernels == "cuda" else self.kernels


def _check_views(recipe: Recipe, views: tuple[Recipe, ...], *, alike: bool) -> None:
    """Refuse views that cannot share partial images; and, if need be, views that would be alike."""
    shared = next((place for place, stage in enumerate(recipe.stages) if stage.random), len(recipe.stages))
    remedy = f"split the recipe where the views part: with recipe = recipe.at({shared}), views=[recipe.view(2)]"
    seen = [recipe]
    for view in views:
        same = len(view.partial) == len(recipe.partial) and all(map(makes_alike, recipe.partial, view.partial))
        if view.caches_encoded or not same:
            raise ConfigurationError(
                f"views must be recipes whose partial part is that of the recipe, got "
                f"{' > '.join(each.name for each in view.partial) or 'split 0'}: {remedy}"
            )
        if not alike and any(view.final == each.final and view.output == each.output for each in seen):
            raise ConfigurationError(
                "views must differ, but stages of the same names and settings draw the same random numbers: pass "
                "recipe.view(2), recipe.view(3), ..."
            )
        seen.append(view)


def _always_misses(planner: Planner) -> bool:
    """Tell whether each batch has rows to compute, as batches that miss equally, within one, do; if in doubt, not."""
    reuse = planner.reuse
    return reuse is not None and reuse.even and planner.batch_size * reuse.misses >= 2


def _check_fit(source: Source, recipe: Recipe, planner: Planner) -> None:
    planner.check_samples(len(source))
    source.check_labels()
    if bool(source.volumes) != recipe.volumes:
        raise ConfigurationError(
            "the source has volumes, but the recipe is for images: end it with a VolumeOutput"
            if source.volumes
            else "the recipe is for volumes, but the source has images: pass Volumes(paths)"
        )
    _check_size(source, recipe)
    if recipe.caches_encoded and planner.feedback_lag is not None:
        raise ConfigurationError(
            "AutoAssist looks at partial images, but split 0 caches encoded ones: use a split of 1 or more"
        )
    if recipe.volumes and planner.feedback_lag is not None:
        raise ConfigurationError("AutoAssist looks at partial images, but these are volumes: pass another planner")
    if source.encoded != recipe.encoded:
        raise ConfigurationError(
            "the recipe starts from encoded images, but the source gives arrays: take recipe.for_arrays(), or have the "
            "source give the bytes of files"
            if recipe.encoded
            else "the recipe starts from arrays, but the source gives encoded images: make it without raw=True, or "
            "for_arrays()"
        )


def _check_size(source: Source, recipe: Recipe) -> None:
    shape, output = source.image_shape, recipe.output
    if shape is not None and recipe.final_size(shape[:2]) != output.sides:
        height, width = recipe.final_size(shape[:2]) or ("?", "?")
        raise ConfigurationError(
            f"the recipe must leave images of the output's size {output.sides_text}, but makes {height} x {width} of "
            f"the source's {shape[0]} x {shape[1]}; make the recipe for the size of the source's images"
        )


def _check_targets(recipe: Recipe, partial: bool, views: tuple[Recipe, ...]) -> None:
    """Refuse what targets cannot go through."""
    if names := unmapped(recipe):
        raise ConfigurationError(
            f"where a source has targets every stage must say what moves where, but {', '.join(map(repr, names))} does "
            f"not, as what blends or mirrors places cannot: leave it out; a stage of your own says keeps_place = True "
            f"if it moves nothing, else it has matrices(), see Stage"
        )
    if partial or views:
        raise ConfigurationError(
            f"a source with targets cannot be served {'by a PartialSource' if partial else 'in several views'} yet: "
            f"{'pass it to a Loader' if partial else 'leave views out'}, or take the source without its targets"
        )


def _check_draws(recipes: Sequence[Recipe], planner: Planner) -> None:
    """Warn of a SmartCache that would serve a draw as long as a sample stays, and of an Evaluate that would draw."""
    while isinstance(planner, DerivedPlanner) and not isinstance(planner, Fresh):
        planner = planner.planner
    recipe, stages = recipes[0], [stage for each in recipes for stage in each.stages]
    if isinstance(planner, Evaluate) and (drawn := [stage.name for stage in stages if stage.random]):
        warn(
            f"with Evaluate nothing should be random, since each image is to be judged as it is, got "
            f"{', '.join(drawn)} in the recipe: pass evaluate({recipe.output.size})",
        )
    if isinstance(planner, Refurbish) and planner.reuse_factor > 1 and not any(each.random for each in stages):
        warn(
            "with Refurbish something in the recipe should be random, else versions that are made anew are as those "
            "before: pass Evaluate(...) to validate, or Frozen(...) to cache all images once",
        )
    random = [stage.name for stage in recipe.partial if stage.random]
    if random and isinstance(planner, SmartCache):
        warn(
            f"with SmartCache the partial part should not be random, since a sample is served as it was drawn when it "
            f"entered until it is replaced, got {', '.join(random)} in it: pass recipe.at(recipe.deterministic_prefix)",
        )


def traced(recipe: Recipe) -> Recipe:
    """Return the recipe by which graphs and kernels are made.

    Where what is cached is encoded, they do both parts together, which make the same at every split. One behind a
    window lets this be decoded alone; else a resize stays together with the crop that may follow it.
    """
    if not recipe.caches_encoded:
        return recipe
    behind = recipe.at(min(2, len(recipe.stages)))
    return behind if cut_window(behind) else recipe.at(1)


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "a part is placed on 'gpu', but torch finds no CUDA device; use partial_device='cpu', final_device='cpu'"
        )
