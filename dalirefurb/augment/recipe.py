"""Recipe: the ordered stages of an augmentation, and where they split into a partial and a final part.

encoded ─▶ decode ─▶ random_resized_crop ─▶ flip ─▶ rand_augment_1 ┊ rand_augment_2 ─▶ output
           └───────────── partial: cached, reused ───────────────┘ ┊ └──── final: fresh ────┘
                                                                 split

Split before all stages, a recipe for encoded images caches these as they were read: decoding is final, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.diversity import diversity
from dalirefurb.augment.output import Output, VolumeOutput
from dalirefurb.augment.stage import LONGEST_SIDE, Size, Sizes, Stage, leaving, renamed
from dalirefurb.augment.stages.choice import check_stages
from dalirefurb.augment.stages.custom import HostStage
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.partners import PartnerStage
from dalirefurb.augment.stages.resize import refuse_crops, window_of
from dalirefurb.augment.volumes.stages import VolumeStage
from dalirefurb.calls import TakesNumbers, explains
from dalirefurb.checks import integer, plain, require
from dalirefurb.errors import ConfigurationError


@dataclass(frozen=True)
class Recipe(metaclass=TakesNumbers):
    """Stages in order, of which the first `split` are partial, and the output, which is always final.

    Attributes:
        stages: The stages in order, with unique names. A recipe for encoded images begins with `Decode`, one for arrays
            does not.
        output: What the model receives.
        split: Number of stages that are partial. On construction also a stage's name: the final part begins there. With
            0 and encoded images nothing but reading is partial: what is cached is encoded. May be left out where no
            stage is random: all are partial then.
    """

    stages: tuple[Stage, ...]
    output: Output
    split: int

    def __init__(self, stages: tuple[Stage, ...] | list[Stage], output: Output, split: int | str | None = None) -> None:
        require(isinstance(stages, (tuple, list)), "stages", "a list of stages", stages, "pass such as [Decode(), ...]")
        check_stages(
            stages, "make one of your own of a DALI function by Custom(function, name), see dalirefurb.augment"
        )
        require(isinstance(output, Output), "output", "an Output", output, "pass such as Output(224)")
        object.__setattr__(self, "stages", tuple(stages))
        object.__setattr__(self, "output", output)
        for stage in stages:
            inner = [each.name for each in stage.nested if isinstance(each, VolumeStage)]
            if inner:
                raise ConfigurationError(
                    f"{inner[0]!r} is a stage of volumes, which draws by itself whether it is done, but is inside of "
                    f"{stage.name!r}: pass it alone, with its probability"
                )
            if not isinstance(stage, HostStage) and isinstance(stage, VolumeStage) != self.volumes:
                theirs, own = ("images", "volumes") if self.volumes else ("volumes", "images")
                raise ConfigurationError(
                    f"{stage.name!r} is a stage of {theirs}, but the output is of {own}: pass stages of {own}, or "
                    f"{'an Output' if self.volumes else 'a VolumeOutput'}"
                )
        names = [stage.name for stage in self.stages]
        misplaced = [stage.name for stage in self.stages[1:] if isinstance(stage, Decode)]
        if misplaced:
            raise ConfigurationError(
                f"decoding must come first, but {misplaced[0]!r} is at place {names.index(misplaced[0])}"
            )
        for place, stage in enumerate(self.stages):
            follows, before = stage.follows, self.stages[:place]
            if follows is not None and follows not in before:
                alike = ", ".join(str(each) for each in before if type(each) is type(follows))
                raise ConfigurationError(
                    f"{stage.name!r} must come after {follows}, but before it there is {alike or 'no such stage'}; "
                    f"put that stage before it, and give both the same settings"
                )
        object.__setattr__(self, "split", _partial_stages(self.stages, split))
        for place, stage in enumerate(self.stages):
            inside = [each.name for each in stage.nested if each.partners]
            if inside or (stage.partners and place != self.split):
                remedy = f"pass split={stage.name!r}, or put what comes between elsewhere"
                raise ConfigurationError(
                    f"{(inside or [stage.name])[0]!r} takes several partial images of a batch, so it must be the first "
                    f"stage behind the split, and not inside of another one, got {' > '.join(names)} and split "
                    f"{self.split}: {f'take it out of {stage.name!r}' if inside else remedy}"
                )
        if isinstance(output, VolumeOutput):
            _check_volumes(self.stages, output)
        refuse_crops(self.stages)
        size = None if self.volumes else leaving(self.stages, None)
        if (self.encoded or size is not None) and size != output.sides:
            raise ConfigurationError(
                f"the last stage must leave images of the output's size {output.sides_text}, "
                f"got {'sizes that depend on the input' if size is None else f'{size[0]} x {size[1]}'}; "
                f"end with a crop or a resize to that size"
            )

    @classmethod
    @explains
    def from_torchvision(
        cls,
        transform: Any,
        *,
        split: int | str | None = None,
        raw: bool = False,
        size: Size | None = None,
        channels: int = 3,
    ) -> Recipe:
        """Return what torchvision's transforms do to an image; see docs/recipes.md for what differs in pixels.

        Args:
            transform: Transforms of either version, such as a `Compose`, down to `ToTensor` or `ToDtype`, `Normalize`.
            split: See `at`; None: the last one that keeps 0.95 of standard training's different images at reuse
                factor 3, as `diversity(3)` tells.
            raw: Whether the recipe is for arrays, in place of encoded images.
            size: Side, or height and width, of the images that enter, in pixels; None: any.
            channels: Number of channels that torchvision is given: 1 of grey images, such as MNIST's; 3 of all others.

        Raises:
            ConfigurationError: If a transform cannot be imported; the message tells what to use instead.
        """
        from dalirefurb.augment.importing.torchvision import imported

        return cls(*imported(transform, split=split, raw=raw, size=size, channels=channels))

    @classmethod
    def from_timm(cls, *, split: int | str | None = None, **arguments: Any) -> Recipe:
        """Return what timm's `create_transform` makes of its arguments; see docs/recipes.md for what differs in pixels.

        Args:
            split: See `from_torchvision`.
            arguments: Arguments of `create_transform`, see `dalirefurb.augment.importing.timm.CreateTransform`.

        Raises:
            ConfigurationError: If something cannot be imported; the message tells what to use instead.
        """
        from dalirefurb.augment.importing.timm import imported

        return cls(*imported(split, **arguments))

    @property
    def encoded(self) -> bool:
        """Whether the recipe starts from encoded bytes, not from arrays."""
        return bool(self.stages) and isinstance(self.stages[0], Decode)

    @property
    def volumes(self) -> bool:
        """Whether it is for volumes, not for images."""
        return isinstance(self.output, VolumeOutput)

    @property
    def caches_encoded(self) -> bool:
        """Whether what is cached is encoded images, as they were read."""
        return self.encoded and self.split == 0

    @property
    def partial(self) -> tuple[Stage, ...]:
        """The stages whose result is cached."""
        return self.stages[: self.split]

    @property
    def final(self) -> tuple[Stage, ...]:
        """The stages applied afresh at every use."""
        return self.stages[self.split :]

    @property
    def partner_stage(self) -> PartnerStage | None:
        """The stage that makes one image of several partial images of a batch, if any: the first of the final."""
        first = next(iter(self.final), None)
        return first if isinstance(first, PartnerStage) else None

    @property
    def deterministic_prefix(self) -> int:
        """How many stages come before the first random one: the longest part that needs caching only once."""
        return next((i for i, stage in enumerate(self.stages) if stage.random), len(self.stages))

    def at(self, split: int | str) -> Recipe:
        """Return the same stages, split elsewhere.

        Args:
            split: A stage's name ("the final part begins here") or a count of partial stages. With 0 encoded images
                are cached as they were read, for sources that are slow to read.
        """
        return Recipe(self.stages, self.output, split)

    def with_output(self, **changes: Any) -> Recipe:
        """Return the same stages with another output, such as `dtype="float16"`."""
        return Recipe(self.stages, replace(self.output, **changes), self.split)

    def for_arrays(self) -> Recipe:
        """Return the same stages without decoding: for a source of uint8 arrays (H, W, 3) of any sizes, or PIL images.

        A recipe for arrays stays as it is. Where decoded pixels were cached nothing is partial then.

        Example:
            >>> from dalirefurb import rand_augment
            >>> recipe = rand_augment(224).for_arrays()
            >>> [stage.name for stage in recipe.partial]
            ['random_resized_crop', 'flip', 'rand_augment_1']
        """
        return Recipe(self.stages[1:], self.output, max(self.split - 1, 0)) if self.encoded else self

    def view(self, number: int) -> Recipe:
        """Return the same stages with names, and so random numbers, of their own: for another view of each sample.

        Loaders with the same planner serve the same samples; these recipes make other images of them.

        Args:
            number: Number of the view, at least 1: the names end in it.
        """
        number = integer("number", number, 1, None, "the first view is 1")
        stages = [renamed(stage, lambda name: f"{name}_{number}") for stage in self.stages]
        return Recipe(stages, self.output, self.split)

    def partial_size(self, entering: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return height and width of what is cached, or None where they vary.

        Args:
            entering: Size of the source's images, None where it varies.
        """
        return leaving(self.partial, entering)

    def final_size(self, entering: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return height and width of what enters the output, likewise."""
        return leaving(self.stages, entering)

    def refusal(
        self, heights: NDArray[np.int64], widths: NDArray[np.int64], *, max_pixels: int | None = None
    ) -> tuple[int, str] | None:
        """Find an image that a stage cannot take, or of which one makes too large a one: its row, and why.

        What a stage makes counts only as far as it is made: of an image that is resized and cropped right after, in the
        same part, that is the window.

        Args:
            heights: Heights of the images in pixels, shape (n,).
            widths: Widths of the images in pixels, shape (n,).
            max_pixels: The most pixels that an image made by a stage may have; None: any size.
        """
        return refusal_of((self.partial, self.final), heights, widths, max_pixels=max_pixels)

    def diversity(self, reuse_factor: int) -> float:
        """Return the share of standard training's different images that this split keeps, 1 / reuse_factor .. 1.

        Raises:
            ConfigurationError: If `reuse_factor` is not a positive integer.
        """
        uses = integer("reuse_factor", reuse_factor, 1, None, "2 or 3 is usual")
        return diversity(self.stages, self.split, uses)

    def __str__(self) -> str:
        """Draw a table: the stages, and the diversity that is kept if the final part begins at each of them."""
        return _table(self.stages, self.output, self.split)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the served values, as JSON."""
        values = {
            "stages": [stage.fingerprint() for stage in self.stages],
            "split": self.split,
            "output": self.output.fingerprint(),
        }
        # As it looks once it was saved and loaded: tuples become lists.
        as_loaded: dict[str, Any] = json.loads(json.dumps(values))
        return as_loaded


def refusal_of(
    parts: Sequence[Sequence[Stage]], heights: NDArray[np.int64], widths: NDArray[np.int64], *, max_pixels: int | None
) -> tuple[int, str] | None:
    """Find an image that a stage of some parts cannot take; see `Recipe.refusal`."""
    for part in parts:
        for place, stage in enumerate(part):
            if refusal := stage.refusal(heights, widths):
                return refusal
            if stage.fixed_size is not None:
                return None  # What follows was asked when the recipe was made.
            entered = heights, widths
            heights, widths = stage.output_sizes(heights, widths)
            if window_of(stage, part[place + 1 :]) is not None or type(stage).output_sizes is Stage.output_sizes:
                continue
            if refusal := _too_large(stage.name, entered, (heights, widths), max_pixels):
                return refusal
    return None


def _partial_stages(stages: Sequence[Stage], split: int | str | None) -> int:
    """Return the number of partial stages, of what a user says of it; None: all stages, if none is random.

    Raises:
        ConfigurationError: If there is no such split, or none is said and a stage is random.
    """
    names, drawn = [stage.name for stage in stages], [stage.name for stage in stages if stage.random]
    if split is None and drawn:
        raise ConfigurationError(
            f"split must be given where stages are random, here {', '.join(drawn)}: pass the name of the stage where "
            f"the final part begins, which is drawn afresh for every use, such as split={drawn[-1]!r}"
        )
    if split is None:
        return len(names)
    if isinstance(split, str) and split not in names:
        raise ConfigurationError(f"there is no stage {split!r} to split at; the stages are {', '.join(names)}")
    count = names.index(split) if isinstance(split, str) else plain(split)
    holds = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= len(names)
    wanted = f"a stage's name or a count of partial stages in 0..{len(names)}"
    require(holds, "split", wanted, count, f"the stages are {', '.join(names)}")
    return int(count)


def _check_volumes(stages: Sequence[Stage], output: VolumeOutput) -> None:
    """Refuse stages of volumes that cannot leave those of the output.

    Raises:
        ConfigurationError: If it is known that they do not.
    """
    shape = None
    for stage in stages:
        if isinstance(stage, HostStage) and stage.size is not None:
            raise ConfigurationError(
                f"{stage.name!r}: size is for images, got {stage.size}: leave it out, since a function of volumes may "
                f"make any"
            )
        shape = stage.leaves(shape) if isinstance(stage, VolumeStage) else None
    if shape is not None and shape != output.size:
        raise ConfigurationError(
            f"the last stage must leave volumes of the output's size {output.sides_text}, got "
            f"{' x '.join(map(str, shape))}; end with a crop to that size"
        )


def _too_large(name: str, entered: Sizes, made: Sizes, max_pixels: int | None) -> tuple[int, str] | None:
    """Find an image of which a stage makes too large a one: its row, and why; None if there is none.

    Args:
        name: Name of the stage.
        entered: Sizes of the images that enter the stage.
        made: Sizes of those that it makes of them.
        max_pixels: The most pixels that one may have; None: any number.
    """
    heights, widths = made
    long = np.maximum(heights, widths) > LONGEST_SIDE
    vast = heights * widths > (np.inf if max_pixels is None else max_pixels)
    if not (long | vast).any():
        return None
    row = int((long | vast).argmax())
    most, remedy = f"{LONGEST_SIDE:,} pixels a side", "leave it out"
    if not long[row]:
        most, remedy = f"{max_pixels:,} pixels", f"pass max_pixels={heights[row] * widths[row]} if it is genuine"
    return row, (
        f"{name}: an image must have {most} at most, but one of {entered[0][row]} x {entered[1][row]} would "
        f"become {heights[row]} x {widths[row]}: {remedy}, or crop right after it, in the same part"
    )


_REUSE_FACTORS = (2, 3)


def _table(stages: Sequence[Stage], output: Output, split: int) -> str:
    """Draw the stages, of which the first `split` are partial, and what a split at each of them keeps."""
    steps = [(stage.name, "yes" if stage.random else "no", _counted(stage.outcomes)) for stage in stages]
    steps.append((f"output {output.sides_text}, {output.dtype}", "no", "1"))
    rows = [["stage", "part", "random", "outcomes", *(f"kept at {factor}" for factor in _REUSE_FACTORS)]]
    for place, (name, random, outcomes) in enumerate(steps):
        kept = [f"{diversity(stages, place, factor):.2f}" for factor in _REUSE_FACTORS]
        rows.append([name, "partial" if place < split else "final", random, outcomes, *kept])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if column < 3 else '>'}{width}}}" for column, width in enumerate(widths))
    here = " and ".join(f"{diversity(stages, split, factor):.2f} at {factor}" for factor in _REUSE_FACTORS)
    return "\n".join(
        [
            *(form.format(*row) for row in rows),
            "kept: of standard training's different images, at a reuse factor, if the final part begins there;",
            f"this split keeps {here}",
        ]
    )


def _counted(outcomes: NDArray[np.float64]) -> str:
    """Return how many outcomes there are; see `Stage.outcomes`."""
    return str(np.count_nonzero(outcomes)) if outcomes.sum() > 1 - 1e-9 else "many"
