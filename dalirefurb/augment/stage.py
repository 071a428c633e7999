"""Stage: parameters drawn on the host, then applied by the graph.

Drawing and applying are apart: `draw` turns uniforms into one array per parameter (numpy, vectorised over
samples), the loader feeds those arrays to the pipeline, and `apply` uses them as DALI operators. A stage holds no
random state and never sees which batch a sample is in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.kernel_call import KernelCall
from dalirefurb.augment.kernel_call import Sizes as Sizes
from dalirefurb.augment.maps import unmoved
from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import CheckedFields, choice, plain, require
from dalirefurb.errors import ConfigurationError

Size = int | tuple[int, int]
"""Side of squares in pixels, or (height, width)."""

LONGEST_SIDE = 2**24
"""Pixels, of what a stage makes: DALI takes sizes in single precision."""


def checked_size(name: str, size: object, *, side: str = "the side in pixels") -> Size:
    """Return a size as it is written down: an int for squares, else a tuple.

    Args:
        name: Name of the argument.
        size: Value of the argument, an int or two.
        side: What a single number stands for, for messages.

    Raises:
        ConfigurationError: If it is not one or two positive integers.
    """
    given = plain(size)
    sides = given if isinstance(given, tuple) else (given, given)
    holds = len(sides) == 2 and all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in sides)
    wanted = "a positive integer, or two as (height, width)"
    require(holds, name, wanted, given, f"pass {side}, such as 224, or (256, 128)")
    height, width = sides
    return height if height == width else (height, width)


def sides_of(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


Node = Any
"""A DALI `DataNode`: one batch of tensors inside a graph under construction."""

Arrays = dict[str, NDArray[Any]]
"""A stage's parameters, by name; each array has one row per sample."""

Device = Literal["cpu", "gpu"]

Interpolation = Literal["nearest", "bilinear"]

Fill = int | tuple[int, int, int]
"""A level for all channels, or one for each."""

MOST_PIXELS = (2**31 - 1) // 3
"""Of an image whose coordinates are mapped, at most: kernels have 32 bits for where a pixel's levels are."""


@dataclass(frozen=True)
class Parameter(metaclass=TakesNumbers):
    """One per-sample input of a stage.

    Attributes:
        dtype: Type of the values, "float32", "float64", "int32" or "uint8".
        shape: Shape for one sample; () for a scalar.
    """

    dtype: str
    shape: tuple[int, ...] = ()


class Stage(CheckedFields, metaclass=TakesNumbers):
    """One step of a recipe. Subclasses are frozen dataclasses with a `name`; their fields are their fingerprint.

    So `num_uniforms`, `parameters` and `code_version` are class attributes, not fields; and NumPy's numbers, arrays and
    lists that a constructor is given are Python's numbers and tuples in the fields. Derive from this class: fused
    operators know the library's stages by class, and leave what is derived from one of them to its `apply`.

    Attributes:
        name: Name of the stage, unique within a recipe; it keys the stage's random numbers.
        code_version: Version of the stage, raised when the same fields come to mean other pixels.
        num_uniforms: Number of uniform numbers taken per sample.
        keeps_place: Whether everything in an image stays where it is, whatever is drawn; see `matrices`.
        partners: Number of further images of the batch that go into each; above 0 for a `PartnerStage` alone.
    """

    name: str
    code_version: ClassVar[int] = 1
    num_uniforms: ClassVar[int] = 0
    keeps_place: ClassVar[bool] = False
    partners: ClassVar[int] = 0

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take what is said of places for one `apply` only: a class with another one says it anew."""
        super().__init_subclass__(**arguments)
        own = vars(cls).keys()
        if "apply" in own and "keeps_place" not in own:
            cls.keeps_place = False
        if not own.isdisjoint(("apply", "keeps_place")) and "matrices" not in own:
            cls.matrices = Stage.matrices  # type: ignore[method-assign]
        if not own.isdisjoint(("apply", "keeps_place", "matrices")) and "steps" not in own:
            cls.steps = Stage.steps  # type: ignore[method-assign]

    @property
    def random(self) -> bool:
        """Whether two draws can differ: not of a flip whose probability is 1."""
        return self.num_uniforms > 0 and (type(self).outcomes is Stage.outcomes or 1.0 not in self.outcomes)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Inputs of the graph that this stage needs."""
        return {}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Probabilities of the distinguishable outcomes, shape (k,); (1.0,) if deterministic.

        What is missing to a sum of 1 is shared by so many outcomes that no two draws of these are expected to agree:
        all of it, an empty array, by default for a stage that takes uniforms. By these `random` is told.
        """
        return np.empty(0) if self.num_uniforms else np.ones(1)

    @property
    def follows(self) -> Stage | None:
        """An earlier stage whose choice this one's depends on; its uniforms come before this one's in `draw`."""
        return None

    @property
    def joint_outcomes(self) -> NDArray[np.float64]:
        """Probabilities of pairs: an outcome of the stage that this one follows, and one of its own, shape (k, m)."""
        return self.outcomes[None, :]

    @property
    def nested(self) -> tuple[Stage, ...]:
        """All stages inside of this one, however deep."""
        return ()

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Turn uniforms into parameters.

        Args:
            uniforms: Uniform random numbers in [0, 1), shape (n, num_uniforms). If the stage follows another one, that
                stage's numbers come before them, in further columns.
            heights: Heights in pixels of the images that enter the stage, shape (n,).
            widths: Widths in pixels of the images that enter the stage, shape (n,).

        Returns:
            C-contiguous arrays of shape (n, *parameter.shape), one per parameter.

        Raises:
            ConfigurationError: If what is drawn depends on what `refusal` refuses an image for.
        """
        return {}

    def output_sizes(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Sizes:
        """Return the sizes of the images that leave the stage; by default `fixed_size`, or else those that enter it."""
        if self.fixed_size is None:
            return heights, widths
        height, width = self.fixed_size
        return np.full_like(heights, height), np.full_like(widths, width)

    @abstractmethod
    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Transform HWC uint8 images to HWC uint8 images, as DALI operators on the images' device.

        It is called where DALI's conditionals are enabled. Every node of `parameters` must be used: DALI knows no input
        that no operator has.

        Args:
            images: HWC uint8 images, on "cpu" or "gpu".
            parameters: The arrays of `draw` as CPU nodes.
        """

    @property
    def kernel_calls(self) -> Sequence[KernelCall] | None:
        """Calls of compiled kernels, one after the other, that make the stage's pixels on a CPU; None: there are none.

        The library's own: which numbers a kernel takes may change. A class that overrides `apply` and not this is run
        by DALI's operators; `KernelStage` has a kernel of your own.
        """
        return None

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width of every image that leaves the stage, or None if they depend on what enters."""
        return None

    def matrices(
        self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        """Say where everything goes, so that boxes, keypoints and masks can move with the image; see `maps`.

        Args:
            parameters: What `draw` returned for n images; n may be 0.
            heights: Heights in pixels of the images that enter the stage, shape (n,).
            widths: Widths in pixels of the images that enter the stage, shape (n,).

        Returns:
            Maps from coordinates (x, y, 1) in the result to those in the image that enters, (n, 3, 3); (0, 0) is the
            outer corner. None: not known, as by default, unless the class says `keeps_place`.
        """
        return unmoved(len(heights)) if self.keeps_place else None

    def steps(
        self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> Sequence[NDArray[np.float64]] | None:
        """Return the maps of `matrices` one after the other, where there are several images between; by default one.

        An image between ends where the one that enters ends.
        """
        maps = self.matrices(parameters, heights, widths)
        return None if maps is None else [maps]

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find the first image, of those of these heights and widths, (n,), that the stage cannot take.

        Returns:
            Its row, and what is wrong with it; None if all can be taken.
        """
        return None

    def _first_unfit(
        self, unfit: NDArray[np.bool_], sizes: Sizes, must: str, remedy: str = "put a resize before it"
    ) -> tuple[int, str] | None:
        """Return the first row that is `unfit`, (n,), and what its image `must` do, if there is one; see `refusal`."""
        if not unfit.any():
            return None
        row, (heights, widths) = int(unfit.argmax()), sizes
        return row, f"{self.name}: images must {must}, got {heights[row]} x {widths[row]}; {remedy}"

    def _called(self, field: str) -> str:
        return f"{self.name}: {field}"

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides which pixels the stage makes, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"stage": type(self).__name__, "version": self.code_version, **values}


AnyStage = TypeVar("AnyStage", bound=Stage)


@dataclass(frozen=True)
class SizedStage(Stage):
    """A stage that images of one size leave.

    Attributes:
        size: Side of the result in pixels, or its height and width.
    """

    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(f"{self.name}: size", self.size))

    @property
    def fixed_size(self) -> tuple[int, int]:
        """Height and width of `size`."""
        return sides_of(self.size)


def outcomes_between(*limits: Any) -> NDArray[np.float64]:
    """Return the outcomes of numbers that are uniform between some: one, or too many to be counted."""
    return np.ones(1) if all(low == high for low, high in limits) else np.empty(0)


def check_fill(name: str, fill: object, or_else: str = "or 3 of them", remedy: str = "use 0 for black") -> None:
    """Refuse what is neither a level nor a tuple of three.

    Raises:
        ConfigurationError: If it is something else.
    """
    levels = fill if isinstance(fill, tuple) else (fill,) * 3
    fits = len(levels) == 3 and all(type(level) is int and 0 <= level <= 255 for level in levels)
    require(fits, name, f"a level in 0 .. 255, {or_else}", fill, remedy)


def fill_levels(fill: Fill) -> tuple[int, ...]:
    """Return the levels of a fill, one for each channel."""
    return (fill,) * 3 if isinstance(fill, int) else fill


class WarpingStage(Stage):
    """A stage that maps coordinates, at least of some images, which keep their size. Subclasses say how."""

    name: str
    interpolation: Interpolation
    fill: Fill

    def __post_init__(self) -> None:
        choice(f"{self.name}: interpolation", self.interpolation, Interpolation)
        check_fill(f"{self.name}: fill", self.fill)

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image whose pixels kernels cannot count; see `Stage.refusal`."""
        vast = heights * widths > MOST_PIXELS
        return self._first_unfit(vast, (heights, widths), f"have {MOST_PIXELS:,} pixels at most")

    def warp(self, images: Node, matrix: Node) -> Node:
        """Warp by OpenCV's perspective, in a third of the time of `fn.warp_affine`, and a tenth if bilinear.

        Then it takes coordinates in steps of 1/32 pixel and blends the outermost pixels with `fill`, where Pillow
        repeats them.
        """
        from nvidia.dali import fn
        from nvidia.dali.types import DALIInterpType

        types = {"nearest": DALIInterpType.INTERP_NN, "bilinear": DALIInterpType.INTERP_LINEAR}
        fill = [float(level) for level in fill_levels(self.fill)]
        return fn.experimental.warp_perspective(
            images, matrix=matrix, interp_type=types[self.interpolation], fill_value=fill
        )


def leaving(
    stages: Sequence[Stage], entering: tuple[int, int] | None, *, refuse: bool = True
) -> tuple[int, int] | None:
    """Return height and width of what leaves some stages, None where they vary.

    Args:
        stages: Stages in order.
        entering: Height and width of what enters them, None where they vary.
        refuse: Whether a size that a stage cannot take is refused.

    Raises:
        ConfigurationError: If one is.
    """
    size = entering
    for stage in stages:
        if size is None:
            size = stage.fixed_size
            continue
        entered = np.array(size[:1]), np.array(size[1:])
        if refuse and (refusal := stage.refusal(*entered)):
            raise ConfigurationError(refusal[1])
        heights, widths = stage.output_sizes(*entered)
        size = int(heights[0]), int(widths[0])
    return size


def renamed(stage: AnyStage, name_of: Callable[[str], str]) -> AnyStage:
    """Return a stage of another name, which keys its random numbers; one that follows another names that one anew."""
    names = {"name": name_of(stage.name)}
    if stage.follows is not None:
        names["first"] = name_of(stage.follows.name)
    made: AnyStage = replace(stage, **names)  # type: ignore[type-var]
    return made


def draw(
    stages: tuple[Stage, ...],
    *,
    seed: int,
    indices: NDArray[np.int64],
    numbers: NDArray[np.int64],
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
    versions: NDArray[np.int64] | None = None,
    shown: NDArray[np.int64] | None = None,
) -> tuple[dict[str, Arrays], NDArray[np.int64], NDArray[np.int64]]:
    """Draw every parameter of consecutive stages.

    Args:
        stages: The partial stages or the final ones.
        seed: The run's seed.
        indices: Sample indices, shape (n,).
        numbers: The samples' versions for partial stages, their servings for final ones, shape (n,).
        heights: Heights of the images that enter the first stage, in pixels, shape (n,).
        widths: Widths of the images that enter the first stage, in pixels, shape (n,).
        versions: Versions of the partial images, shape (n,): for final stages that follow a partial one.
        shown: Samples that the images show, shape (n,); None: those of `indices`. Where another one replaces sample i,
            parameters are drawn as for sample -1 - i, which no plan names: so it becomes another image than in its own
            place.

    Returns:
        Each stage's arrays by its name, and the heights and widths that leave the last stage.
    """
    arrays = {}
    if shown is not None and shown is not indices:
        indices = np.where(shown == indices, indices, ~indices)
    counts = {stage.name: stage.num_uniforms for stage in stages if stage.parameters}
    uniforms = rng.uniforms_for(seed, counts, indices, numbers) if counts else {}
    followed = [stage.follows for stage in stages if stage.follows is not None]
    earlier = {stage.name: stage.num_uniforms for stage in followed if stage.name not in counts}
    if earlier:
        assert versions is not None
        uniforms |= rng.uniforms_for(seed, earlier, indices, versions)
    for stage in stages:
        if stage.name in counts:
            given = uniforms[stage.name]
            if stage.follows is not None:
                given = np.concatenate([uniforms[stage.follows.name], given], axis=1)
            arrays[stage.name] = stage.draw(given, heights, widths)
        heights, widths = stage.output_sizes(heights, widths)
    return arrays, heights, widths


def as_inputs(drawn: Mapping[str, Arrays]) -> dict[str, NDArray[Any]]:
    """Name what `draw` returned as graphs and kernels name their inputs: "<stage>/<parameter>"."""
    return {f"{stage}/{name}": values for stage, arrays in drawn.items() for name, values in arrays.items()}
