"""Stages that move nothing: random colours, grey, AutoAugment's SolarizeAdd, and Gaussian blur."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes, same_numbers, where_drawn
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Arrays, Node, Parameter, Stage, outcomes_between
from dalirefurb.checks import Interval, integer, require
from dalirefurb.rng import between

JITTERS = ("brightness", "contrast", "saturation", "hue")
"""The operations of `ColorJitter`, in the order of their numbers."""


@dataclass(frozen=True)
class ColorJitter(Stage):
    """Change brightness, contrast, saturation and hue by random factors, in a random order.

    The procedure is torchvision's: factors are uniform, operations that can change nothing are left out, and levels are
    whole numbers after each of them. docs/stages.md says how far these may be from torchvision's.

    Attributes:
        brightness: Greatest change b of the factor of brightness, which is in max(0, 1 - b) .. 1 + b, or its least and
            greatest.
        contrast: The same of contrast.
        saturation: The same of saturation.
        hue: Greatest turn h of the hue, 0 .. 0.5, which is in -h .. h, or its least and greatest. 1 is a full turn.
    """

    brightness: float | Interval = 0
    contrast: float | Interval = 0
    saturation: float | Interval = 0
    hue: float | Interval = 0
    name: str = "color_jitter"

    num_uniforms = 1 + len(JITTERS)  # the order, and a factor of each
    keeps_place = True

    def __post_init__(self) -> None:
        for name in JITTERS[:3]:
            if not isinstance(getattr(self, name), tuple):
                self._number(name, "of at least 0", lambda change: 0 <= change < math.inf, _USUAL)
                change = getattr(self, name)
                object.__setattr__(self, name, (max(0.0, 1 - change), 1 + change))
            wanted = "a number of at least 0, or two with 0 <= low <= high"
            self._interval(name, wanted, lambda low, high: 0 <= low <= high < math.inf, _USUAL)
        if not isinstance(self.hue, tuple):
            self._number("hue", "in 0..0.5", lambda turn: 0 <= turn <= 0.5, _USUAL_HUE)
            object.__setattr__(self, "hue", (0.0 - self.hue, self.hue))
        wanted = "a number in 0..0.5, or two with -0.5 <= low <= high <= 0.5"
        self._interval("hue", wanted, lambda low, high: -0.5 <= low <= high <= 0.5, _USUAL_HUE)

    @property
    def ranges(self) -> NDArray[np.float64]:
        """Least and greatest factor of each of `JITTERS`, shape (4, 2)."""
        return np.array([getattr(self, name) for name in JITTERS])

    @property
    def changing(self) -> tuple[int, ...]:
        """Which of `JITTERS` can change something."""
        neutral = (1.0, 1.0, 1.0, 0.0)
        return tuple(i for i, name in enumerate(JITTERS) if getattr(self, name) != (neutral[i], neutral[i]))

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Operations in order, as places in `changing`, if there are two; their factors f, each with 1 - f below it."""
        count = len(self.changing)
        order = {"operation": Parameter("int32", (count,))} if count > 1 else {}
        return {**order, "factor": Parameter("float32", (count, 2, 1))} if count else {}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """The orders, if no factor varies."""
        if np.ptp(self.ranges, axis=1).any():
            return np.empty(0)
        orders = math.factorial(len(self.changing))
        return np.full(orders, 1 / orders)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        changing = list(self.changing)
        orders = np.array(list(permutations(range(len(changing)))), np.int32)
        operations = orders[(uniforms[:, 0] * len(orders)).astype(np.int64)]  # (n, changing)
        factors = between(self.ranges[changing].T, uniforms[:, 1:][:, changing])  # (n, changing)
        factors = np.take_along_axis(factors, operations, axis=1)[..., None, None]  # (n, changing, 1, 1)
        columns = np.concatenate([factors, 1 - factors], axis=2).astype(np.float32)
        drawn = {"operation": operations, "factor": columns}
        return {name: drawn[name] for name in self.parameters}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """For each place in the order the operation that comes there, with its factor f, and 1 - f."""
        kernels = [("levels.brightness", "levels.contrast", "color.blend", "color.hue")[each] for each in self.changing]

        def at(place: int) -> KernelCall:
            def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
                numbers[:, 0], numbers[:, 3] = parameters["factor"][:, place, :, 0].T

            def choose(parameters: Parameters) -> NDArray[np.int32]:
                return parameters["operation"][:, place]

            return KernelCall(kernels, write, choose if len(kernels) > 1 else None)

        return [at(place) for place in range(len(kernels))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from dalirefurb.augment.policies.operation_graph import BRANCHES, choose

        jitters = (BRANCHES[Group.BRIGHTNESS], BRANCHES[Group.CONTRAST], BRANCHES[Group.COLOR], _turn_hue)
        branches = [jitters[each] for each in self.changing]
        for place in range(len(branches)):
            factor = parameters["factor"][place]
            if len(branches) == 1:
                images = branches[0](images, factor)
            else:
                images = choose(dict(enumerate(branches)), parameters["operation"][place], images, factor)
        return images


def _turn_hue(images: Node, factor: Node) -> Node:
    """Turn the hue, 6 to a full turn; a channel is v - chroma * clamp(min(k, 4 - k), 0, 1), k its distance in hue."""
    from nvidia.dali import fn, types
    from nvidia.dali import math as dali

    from dalirefurb.augment.policies.operation_graph import beside

    red, green, blue = (images[:, :, channel : channel + 1] for channel in range(3))
    value = dali.max(red, dali.max(green, blue))
    chroma = (value - dali.min(red, dali.min(green, blue))) * 1.0
    scale = 1.0 / dali.max(chroma, 1.0)
    red, green, blue, value = red * 1.0, green * 1.0, blue * 1.0, value * 1.0
    of_green = (green == value) * ((blue - red) * scale + 2.0) + (green != value) * ((red - green) * scale + 4.0)
    hue = (red == value) * ((green - blue) * scale) + (red != value) * of_green
    channels = types.Constant(np.array([[[5, 3, 1]]], np.float32), device=images.device)
    distance = hue + beside(images, factor[0, 0] * 6.0) + channels
    distance = distance - dali.floor(distance * (1 / 6)) * 6.0
    share = dali.clamp(dali.min(distance, 4.0 - distance), 0.0, 1.0)
    return fn.cast(value - chroma * share, dtype=types.UINT8)


_USUAL, _USUAL_HUE = "0.4 is usual, 0 changes nothing", "0.1 is usual, 0 changes nothing"


@dataclass(frozen=True)
class RandomGrayscale(Stage):
    """Show the grey picture, in three equal channels, with a probability, within 1 level of torchvision and Pillow.

    Attributes:
        probability: Probability of grey.
    """

    probability: float = 0.1
    name: str = "random_grayscale"

    num_uniforms = 1
    keeps_place = True
    parameters: ClassVar[Mapping[str, Parameter]] = {"grey": Parameter("int32")}

    def __post_init__(self) -> None:
        self._share(remedy="0.1 is usual")

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return np.array([self.probability, 1 - self.probability])

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        return {"grey": (uniforms[:, 0] < self.probability).astype(np.int32)}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall(["color.grayscale"], choose=where_drawn("grey"))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from dalirefurb.augment.policies.operation_graph import grey_picture

        grey = parameters["grey"]
        if grey:  # noqa: SIM108 - DALI traces statements
            shown = grey_picture(images)
        else:
            shown = images
        return shown


@dataclass(frozen=True)
class SolarizeAdd(Stage):
    """Add to the levels below a threshold, up to 255, exactly as AutoAugment and timm.

    Attributes:
        addition: What is added to a level, -255 .. 255.
        threshold: Least level 0 .. 255 that stays; with 256 none does.
    """

    addition: int
    threshold: int = 128
    name: str = "solarize_add"

    keeps_place = True

    def __post_init__(self) -> None:
        remedy = "levels are 0 .. 255"
        for name, least, most in (("addition", -255, 255), ("threshold", 0, 256)):
            integer(f"{self.name}: {name}", getattr(self, name), least, most, remedy)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall(["color.solarize_add"], same_numbers((self.addition, self.threshold)))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn
        from nvidia.dali.types import DALIDataType

        levels = np.arange(256)
        table = np.where(levels < self.threshold, (levels + self.addition).clip(0, 255), levels)
        return fn.lookup_table(images, keys=levels.tolist(), values=table.tolist(), dtype=DALIDataType.UINT8)


LONGEST_KERNEL = 255
"""Pixels; compiled kernels have room for as many weights."""

LEAST_SIGMA = 0.001
"""Pixels; what is less blurs nothing either, but its square is lost in single precision."""


@dataclass(frozen=True)
class GaussianBlur(Stage):
    """Blur with a Gaussian kernel of random width, within 1 level of torchvision's; the border is mirrored.

    SimCLR, and what came after it, blur half of the images of 224 pixels with a kernel of 23, a tenth of the side:
    `RandomApply(GaussianBlur(23), 0.5)`. torchvision refuses images with a side of less than half a kernel, which here
    are mirrored more than once.

    Attributes:
        kernel_size: Side of the kernel in pixels, an odd number.
        sigma: Standard deviation of the Gaussian in pixels, at least 0.001, or its least and greatest, drawn uniformly.
    """

    kernel_size: int
    sigma: float | Interval = (0.1, 2.0)
    name: str = "gaussian_blur"

    num_uniforms = 1
    keeps_place = True
    parameters: ClassVar[Mapping[str, Parameter]] = {"sigma": Parameter("float32")}

    def __post_init__(self) -> None:
        name, remedy = f"{self.name}: kernel_size", "pass an odd number, such as 23"
        size = integer(name, self.kernel_size, 1, LONGEST_KERNEL, remedy)
        require(size % 2 == 1, name, "odd", size, f"pass {size - 1} or {size + 1}")
        wanted, remedy = "a number of at least 0.001, or two with 0.001 <= low <= high", "(0.1, 2.0) is usual"
        if not isinstance(self.sigma, tuple):
            self._number("sigma", "of at least 0.001", lambda sigma: LEAST_SIGMA <= sigma < math.inf, remedy)
            object.__setattr__(self, "sigma", (self.sigma, self.sigma))
        self._interval("sigma", wanted, lambda low, high: LEAST_SIGMA <= low <= high < math.inf, remedy)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return outcomes_between(self.sigma)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        return {"sigma": between(self.sigma, uniforms[:, 0]).astype(np.float32)}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, 0], numbers[:, 1] = parameters["sigma"], self.kernel_size // 2

        return [KernelCall(["blur.gaussian"], write)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        return fn.gaussian_blur(images, sigma=parameters["sigma"], window_size=self.kernel_size)
