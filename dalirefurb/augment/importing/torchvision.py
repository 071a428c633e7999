"""What torchvision's transforms, of either version, do to an image, as stages: read in order, down to the output."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from dalirefurb.augment.importing.assembly import Parts, distinct, maybe, parts_of, refuse
from dalirefurb.augment.importing.torchvision_stages import (
    CONVERSIONS,
    LIGHTLY,
    STAGES,
    Given,
    Pixels,
    anti_aliased,
    channels_after,
    fill_of,
    fills_black,
    interpolation_of,
    kind,
    size_of,
)
from dalirefurb.augment.stage import Size, Stage, checked_size, leaving, sides_of
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop, VerticalFlip
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize
from dalirefurb.calls import Words, instead
from dalirefurb.checks import flag, plain, require
from dalirefurb.errors import ConfigurationError

_log = logging.getLogger("dalirefurb")

_MOVING = (HorizontalFlip, VerticalFlip, CenterCrop, RandomCrop)
"""Stages that only move pixels, so that what these are does not matter, if nothing is added to them."""

_OF_LEVELS = {"RandomPosterize", "RandomSolarize", "RandomEqualize", "RandAugment", "AutoAugment", "TrivialAugmentWide"}
"""Transforms whose numbers are levels."""

_OWN = "write it as a HostStage of its function, or as a KernelStage, a loop over pixels, see docs/stages.md"
_SIZED = (
    "write it and the crop after it as one stage, dalirefurb.augment.ScaleJitter, with cover=True for shorter sides"
)
_MIXED = "mix batches after the loader by dalirefurb.Mix"
_PAD = "put RandomCrop after it, with nothing but flips between, or leave it out"
_AFTER_PAD = ("RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip")

_OUTSIDE = ("RandomCrop", "RandomErasing", "Grayscale", "RGB", "Pad", "ImageClassification")
"""Transforms that must not be inside of others, beside `CONVERSIONS`."""

_ORIGINS = {
    "torchvision": "",
    "timm": "pass Recipe.from_timm what timm's create_transform was given",
    "albumentations": "it resizes without anti-aliasing, as no stage does: use torchvision's transforms",
    "lightly": "a recipe makes one view: pass its .transform, a Compose, for each view another",
}
"""Projects whose transforms are known, and what takes the place of them."""

_CONTAINERS = ("Compose", "Sequential", "ModuleList")


class _Reader:
    """Transforms read so far.

    Attributes:
        stages: Stages of these.
        pixels: What pixels are after them.
        size: Height and width of the images that enter, None where they vary.
        raw: Whether these are arrays, which a padded crop brings back to their size.
        padding: A `Pad` that a crop must follow, None: there is none.
    """

    INSTEAD: ClassVar[Words] = {
        "Lambda": f"leave it out if it only converts images to RGB, which they are here; else {_OWN}",
        "RandomOrder": "write its transforms in one order; a ColorJitter draws the order of its own",
        "FiveCrop": "make one view of a sample: CenterCrop",
        "TenCrop": "make one view of a sample: CenterCrop",
        "MixUp": _MIXED,
        "CutMix": _MIXED,
        "AugMix": "its operations are not timm's, which are here: Recipe.from_timm(auto_augment='augmix-m3-w3', ...)",
        "RandomResize": _SIZED,
        "ScaleJitter": _SIZED,
        "RandomShortestSize": _SIZED,
        "RandomPhotometricDistort": "use ColorJitter inside of RandomApply",
        "LinearTransformation": "do it on the model's side, to batches",
        "Pad": _PAD,
    }

    def __init__(self, size: tuple[int, int] | None, raw: bool, channels: int) -> None:
        self.stages: list[Stage] = []
        self.pixels = Pixels(channels)
        self.size, self.raw = size, raw
        self.padding: Any = None

    def read(self, transform: Any) -> None:
        """Read a transform, or several in a container."""
        transform = _made(transform)
        if _contains(transform):
            for each in _inside(transform):
                self.read(each)
            return
        if channels := self._channels_after(transform):
            named = getattr(transform, "__name__", kind(transform))
            _log.info("%s only makes %d equal channels, so it is no stage", named, channels)
            self.pixels.channels = channels
            return
        transform = _known(transform)
        name = kind(transform)
        if self.padding is not None and name not in _AFTER_PAD:
            refuse("Pad", _PAD)
        if name in CONVERSIONS:
            CONVERSIONS[name](self.pixels, transform)
        elif name == "Pad":
            self.padding = transform
        elif name == "RandomCrop":
            self.stages.append(self._random_crop(transform))
        elif name == "RandomErasing":
            self.stages += [self.pixels.erasing(transform)] if transform.p else []
        elif name == "Grayscale":
            self._read_grayscale(transform)
        elif name == "ImageClassification":
            self._read_evaluation(transform)
        else:
            self.stages += self._stages_of(transform)

    def _channels_after(self, transform: Any) -> int | None:
        """Return how many channels `RGB` or a function of the user's makes; None for what does anything else."""
        if kind(transform) == "RGB":
            return 3
        theirs = type(transform).__module__.partition(".")[0] in _ORIGINS and kind(transform) != "Lambda"
        if theirs or not callable(getattr(transform, "lambd", transform)):
            return None
        return channels_after(transform, self.pixels.channels, image=self.pixels.given == Given.IMAGE)

    def _stages_of(self, transform: Any) -> list[Stage]:
        """Return the stages of a transform that may be inside of another one."""
        if self._channels_after(transform) == self.pixels.channels:
            return []
        transform = _known(transform)
        name = kind(transform)
        if name == "RandomApply":
            inner = self._several(transform.transforms)
            if transform.p in (0, 1):
                return [each for stage in inner for each in maybe(stage, transform.p)]
            return [RandomApply(inner, float(transform.p))] if inner else []
        if name == "RandomChoice":
            options = [self._several([each]) for each in transform.transforms]
            named = iter(distinct([stage for option in options for stage in option]))
            options = [[next(named) for _ in option] for option in options]
            return [RandomChoice(options, None if transform.p is None else tuple(map(float, transform.p)))]
        table = LIGHTLY if type(transform).__module__.startswith("lightly.") else STAGES
        as_many = name == "Grayscale" and transform.num_output_channels == self.pixels.channels
        if name in (*CONVERSIONS, *_OUTSIDE) and not as_many:
            refuse(f"{name} inside of another transform", "put it outside")
        if name not in table:
            refuse(name, instead(_Reader, name) or _OWN)
        stages = table[name](transform)
        if stages:
            self._check_place(transform, stages)
        return stages

    def _several(self, transforms: Iterable[Any]) -> list[Stage]:
        """Return the stages of transforms inside of another one."""
        stages: list[Stage] = []
        for each in transforms:
            stages += self._several(_inside(each)) if _contains(each) else self._stages_of(each)
        return distinct(stages)

    def _check_place(self, transform: Any, stages: list[Stage]) -> None:
        """Refuse a transform that makes other pixels of what it is given here."""
        name, given = kind(transform), self.pixels.given
        if given == Given.NORMALIZED and not all(isinstance(stage, _MOVING) for stage in stages):
            refuse(f"{name} after Normalize", "put it before")
        if self.pixels.channels == 1 and isinstance(fill_of(transform), tuple):
            refuse(f"{name} of one channel with fill={transform.fill!r}", "pass one level")
        if given == Given.UNIT and (name in _OF_LEVELS or not fills_black(transform)):
            refuse(f"{name} of pixels in 0..1", "put it before ToTensor or ToDtype, where levels are 0 .. 255")
        if any(isinstance(stage, (Resize, RandomResizedCrop)) for stage in stages):
            anti_aliased(transform, image=given == Given.IMAGE)

    def _random_crop(self, transform: Any) -> RandomCrop:
        """Return the stage of a `RandomCrop`, and of the `Pad` before it."""
        pad, self.padding = self.padding or transform, None
        size, padding, mode = sides_of(size_of(transform)), _one_padding(pad), getattr(pad, "padding_mode", "constant")
        if pad is not transform and _one_padding(transform):
            refuse("Pad before a RandomCrop with padding", "pad once")
        if mode not in ("constant", "reflect"):
            refuse(f"{kind(pad)}(padding_mode={mode!r})", "pass 'constant' or 'reflect'")
        other = not fills_black(pad) or self.pixels.given == Given.NORMALIZED
        if padding and mode == "constant" and other:
            refuse(f"{kind(pad)} that adds another level than 0", "pass fill=0, and put it before Normalize")
        entering = leaving(self.stages, self.size, refuse=False)
        if entering is None and self.raw and padding and not self.stages:
            entering = self.size = size
        least = leaving(self.stages, self.size or (1, 1), refuse=False) or size
        smaller = any(side + 2 * padding < cut for side, cut in zip(least, size, strict=True))
        if smaller and getattr(transform, "pad_if_needed", False):
            refuse("RandomCrop(pad_if_needed=True)", "put a Resize to its size or more before it, or pass size=")
        margins = set() if entering is None else {entering[axis] + 2 * padding - size[axis] for axis in (0, 1)}
        margin = margins.pop() if len(margins) == 1 else None
        return RandomCrop(size, margin, padding, padding_mode="reflect" if mode == "reflect" else "constant")

    def _read_grayscale(self, transform: Any) -> None:
        if self.pixels.given == Given.NORMALIZED:
            refuse("Grayscale after Normalize", "put it before")
        self.stages += STAGES["Grayscale"](transform) if self.pixels.channels == 3 else []
        self.pixels.channels = transform.num_output_channels

    def _read_evaluation(self, transform: Any) -> None:
        """Read the transform that comes with torchvision's weights."""
        anti_aliased(transform, image=self.pixels.given == Given.IMAGE)
        resize, crop = (
            tuple(side) if len(side) == 2 else side[0] for side in (transform.resize_size, transform.crop_size)
        )
        self.stages += [Resize(resize, interpolation_of(transform)), CenterCrop(crop)]
        self.pixels.to_tensor(transform)
        self.pixels.normalize(transform)

    def without_grey(self) -> list[Stage]:
        """Return the stages, without grey that the output makes: where colours are not looked at after it."""
        places = [place for place, stage in enumerate(self.stages) if stage.name == "grayscale"]
        last = places[-1] if places and self.pixels.channels == 1 else len(self.stages)
        only_moved = all(isinstance(stage, _MOVING) for stage in self.stages[last + 1 :])
        return self.stages[:last] + self.stages[last + 1 :] if only_moved else self.stages


def _contains(transform: Any) -> bool:
    """Whether it is a container of transforms, one after the other."""
    theirs = type(transform).__module__.startswith(("torch.nn.", "torchvision."))
    return isinstance(transform, (list, tuple)) or (kind(transform) in _CONTAINERS and theirs)


def _made(given: Any) -> Any:
    """Return transforms made, if they only need that: of weights, or of `weights.transforms` without its call."""
    if isinstance(given, Mapping):
        refuse(f"a dict of {', '.join(map(repr, given))}", f"pass one, such as transforms{[*given][:1]}")
    if isinstance(given, type):
        refuse(f"the class {given.__name__}", f"pass one that is made: {given.__name__}(...)")
    made = given.transforms if isinstance(given, Enum) and hasattr(given, "transforms") else given
    return made() if isinstance(made.func if isinstance(made, partial) else made, type) else made


def _inside(container: Any) -> Iterable[Any]:
    """Return the transforms of a container."""
    inner: Iterable[Any] = getattr(container, "transforms", container)
    return inner


def _known(transform: Any) -> Any:
    """Return a transform with Python's numbers; refuse one that is not torchvision's, nor one of lightly's."""
    name, module = kind(transform), type(transform).__module__
    origin = module.partition(".")[0]
    if inspect.isroutine(transform):
        refuse(f"the function {transform.__name__}", _Reader.INSTEAD["Lambda"])
    if origin not in _ORIGINS:
        own = ", such as its .transforms" if hasattr(transform, "transforms") else ""
        refuse(f"{name} of {module}", f"pass torchvision's transforms{own}, or {_OWN}")
    if origin != "torchvision" and not (origin == "lightly" and name in LIGHTLY):
        refuse(f"{origin}'s {name}", _ORIGINS[origin])
    known = copy.copy(transform)
    vars(known).update((each, plain(value)) for each, value in vars(transform).items())
    return known


def _one_padding(transform: Any) -> int:
    """Return how many pixels a transform adds to each side."""
    given: Any = getattr(transform, "padding", 0) or 0
    sides = list(given) if isinstance(given, (list, tuple)) else [given]
    if len({*sides}) > 1:
        refuse(f"{kind(transform)}(padding={given!r})", "pad all sides by as many pixels")
    return int(sides[0])


def imported(transform: Any, *, split: int | str | None, raw: bool, size: Size | None, channels: int) -> Parts:
    """Return what becomes a recipe of transforms; see `Recipe.from_torchvision` and `assembly.parts_of`.

    Raises:
        ConfigurationError: If there are no stages for these.
    """
    require(channels in (1, 3), "channels", "3, or 1 for grey images", channels, "choose one")
    flag("raw", raw, "True is for arrays, in place of encoded images")
    reader = _Reader(None if size is None else sides_of(checked_size("size", size)), raw, channels)
    reader.read(transform)
    if reader.padding is not None:
        refuse("Pad", _PAD)
    after = leaving(reader.stages, reader.size, refuse=False)
    if after is None:
        remedy = "pass size=, that of the arrays, or end with a crop" if raw else "end with a crop, such as CenterCrop"
        raise ConfigurationError(
            f"transforms must leave images of one size, but theirs is that of what enters: {remedy}"
        )
    return parts_of(reader.without_grey(), reader.pixels.output(after), split, raw=raw)
