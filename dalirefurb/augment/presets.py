"""Recipes as published, ready to use.

Each preset is for encoded images or, with `raw=True`, for small HWC uint8 arrays such as CIFAR-10's: there the random
resized crop is replaced by padding and a random crop, as is customary. Arguments that all have are written once, in
`Shared`, `Serving` and `Cropping`, and what all mean in `ARGUMENTS`; editors and `help(rand_augment)` show every one.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD, Channels, Dtype, Output
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst, AutoAugmentSecond, Policy
from dalirefurb.augment.policies.layers import OperationLayer, RandAugmentLayer, TrivialAugmentLayer
from dalirefurb.augment.policies.timm_strings import TIMM_FILL, timm_auto_augment
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Fill, Interpolation, Size, Stage
from dalirefurb.augment.stages.color import ColorJitter
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import RATIO, SCALE, RandomResizedCrop, Resize, ResizeInterpolation
from dalirefurb.calls import explains
from dalirefurb.checks import flag, integer, require

if TYPE_CHECKING:
    from typing_extensions import Unpack

Preset = TypeVar("Preset", bound=Callable[..., Recipe])
Order = Literal["paper", "crop_last"]
Split = int | str | None
Range = tuple[float, float]


class Shared(TypedDict, total=False):
    """Arguments of all recipes."""

    split: Split
    dtype: Dtype
    channels_last: bool
    mean: Channels
    std: Channels


class Serving(Shared, total=False):
    """Arguments of all presets."""

    raw: bool
    channels: Literal[1, 3]


class Cropping(Serving, total=False):
    """Arguments of all presets that augment."""

    scale: Range
    ratio: Range
    crop_interpolation: ResizeInterpolation
    flip: float


SERVING: Mapping[str, Any] = {
    "split": None,
    "raw": False,
    "dtype": "float32",
    "channels": 3,
    "channels_last": False,
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
}
CROPPING: Mapping[str, Any] = {
    "scale": SCALE,
    "ratio": RATIO,
    "crop_interpolation": "bilinear",
    "flip": 0.5,
    **SERVING,
}
"""Defaults, in the order in which signatures show these."""

ARGUMENTS = {
    "size": "Side of the images that the model receives, in pixels, or (height, width).",
    "resize": "Length in pixels that the shorter side is resized to before the crop, or height and width of what is "
    "resized without regard to the aspect ratio, as torchvision's `Resize`; None: 8/7 of `size`, of both sides if it "
    "has two.",
    "layers": "Number of operations that are applied to an image, one after the other: the paper's N.",
    "magnitude": "Magnitude of the operations, 0 .. num_magnitude_bins - 1: the paper's M.",
    "num_magnitude_bins": "Number of magnitudes between no effect and the strongest, at least 2.",
    "policy": 'Name of a policy, such as the paper\'s "imagenet", "cifar10" and "svhn"; or your own: a list of '
    'sub-policies such as ("Rotate", 0.7, 2, "TranslateX", 0.3, 9), each of operation, probability and magnitude '
    "0 .. 9, twice.",
    "config": "String of timm's, see `dalirefurb.augment.timm_auto_augment`.",
    "color_jitter": "Greatest change of brightness, contrast and saturation after the operations, 0 for none; None: "
    "0.4 after 3-Augment, none after others, as timm.",
    "order": '"paper": crop, flip, operations; the last operation is final. "crop_last": the operations work on an '
    "image a little larger, and a random crop and a flip come last and are final. These cost next to nothing and keep "
    "nearly all diversity, so the cached part can be all the rest.",
    "interpolation": 'Interpolation of shears, translations and rotations, "nearest" or "bilinear".',
    "fill": "Level 0 .. 255 where an operation moves a border into the image, or one for each of three channels.",
    "scale": "Least and greatest share of the image's area that the random resized crop takes.",
    "ratio": "Least and greatest width divided by height of what the random resized crop takes.",
    "crop_interpolation": 'Interpolation of the random resized crop, "nearest", "bilinear", "bicubic", "lanczos", or '
    '"random": for each image bilinear or bicubic, as timm.',
    "flip": "Probability that an image is mirrored.",
    "split": 'Name of a stage ("the final part begins here"), a count of partial stages, or None: what the preset '
    "says.",
    "raw": "Whether the recipe is for arrays of the size of `size`, in place of encoded images.",
    "dtype": 'Type of the images that the model receives, "float32", "float16" or "bfloat16".',
    "channels": "Number of channels that the model receives: 3, or 1 for grey images, made after all operations.",
    "channels_last": "Whether the images' memory is in NHWC order; the shape is (B, channels, height, width) all the "
    "same.",
    "mean": "Means of the channels, subtracted from pixels in 0..1; one number is for all of them, and for one channel "
    "three are averaged.",
    "std": "Standard deviations of the channels, by which the pixels are divided after that; likewise.",
}
"""What arguments mean that several presets have."""


def preset(*, shared: Mapping[str, Any] = CROPPING, **own: str) -> Callable[[Preset], Preset]:
    """Show in a preset's documentation what its arguments mean, in the signature's order, and pass all that it shares.

    Args:
        shared: Defaults of the arguments that it shares with others: of its `**` in the signature.
        own: What arguments mean that this preset alone has, or that mean something else in it.
    """
    meanings = {**ARGUMENTS, **own}

    def with_arguments(preset: Preset) -> Preset:
        own = inspect.signature(preset)
        parameters = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        for name, default in shared.items():
            hint = Cropping.__annotations__[name].__forward_arg__
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        signature = own.replace(parameters=parameters)
        told = "\n".join(
            textwrap.fill(f"{name}: {meanings[name]}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8)
            for name in signature.parameters
        )

        @functools.wraps(preset)
        def called(*args: Any, **kwargs: Any) -> Recipe:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            flag("raw", bound.kwargs.get("raw", False), "True is for arrays, in place of encoded images")
            return preset(*bound.args, **bound.kwargs)

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        called.__annotations__["return"] = signature.return_annotation
        called.__doc__ = f"{inspect.cleandoc(preset.__doc__ or '')}\n\nArgs:\n{told}\n"
        return explains(called)  # type: ignore[return-value]

    return with_arguments


@preset()
def simple(size: Size = 224, **shared: Unpack[Cropping]) -> Recipe:
    """Crop and flip. By default the flip is final.

    The stages are named decode, random_resized_crop or random_crop, flip.
    """
    return _augmenting(size, [], **shared)


@preset(shared=SERVING, interpolation='Interpolation of the resize, "nearest", "bilinear", "bicubic" or "lanczos".')
def evaluate(
    size: Size = 224,
    *,
    resize: Size | None = None,
    interpolation: ResizeInterpolation = "bilinear",
    **shared: Unpack[Serving],
) -> Recipe:
    """Resize the shorter side to 8/7 of `size`, and crop the centre: 256 and 224. Arrays stay as they are.

    Nothing is random, and by default everything is partial: an image can be cached whole.

    The stages are named decode, resize, center_crop.
    """
    output, raw, split = output_of(size, shared), shared["raw"], shared["split"]
    require(
        interpolation != "random", "interpolation", "the same for all images", interpolation, "pass such as bicubic"
    )
    if raw:
        require(resize is None, "resize", "None with raw=True, where arrays stay as they are", resize, "leave it out")
        wanted = "left out with raw=True, where arrays stay as they are"
        require(interpolation == "bilinear", "interpolation", wanted, interpolation, "leave it out")
        return Recipe([], output, 0 if split is None else split)
    if resize is None:
        # Where a random resized crop trains on images of two sides, it does not keep the aspect ratio either.
        sides = [round(side * 8 / 7) for side in output.sides]
        resize = sides[0] if isinstance(output.size, int) else (sides[0], sides[1])
    stages = [Decode(), Resize(resize, interpolation), CenterCrop(size)]
    return Recipe(stages, output, len(stages) if split is None else split)


@preset()
def rand_augment(
    size: Size = 224,
    *,
    layers: int = 2,
    magnitude: int = 9,
    num_magnitude_bins: int = 31,
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    fill: Fill = 0,
    **shared: Unpack[Cropping],
) -> Recipe:
    """RandAugment (Cubuk et al. 2019, section 3), with torchvision's table of magnitudes.

    The operations' stages are named rand_augment_1, rand_augment_2, ...; before them, or around them, are decode,
    random_resized_crop (or random_crop), and flip.
    """
    layers = integer("layers", layers, 1, None, "use simple() for none")
    operations = [
        RandAugmentLayer(f"rand_augment_{layer}", interpolation, fill, magnitude, num_magnitude_bins)
        for layer in range(1, layers + 1)
    ]
    return _augmenting(size, operations, order, **shared)


@preset()
def auto_augment(
    size: Size = 224,
    *,
    policy: Policy = "imagenet",
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    fill: Fill = 0,
    **shared: Unpack[Cropping],
) -> Recipe:
    """AutoAugment (Cubuk et al., CVPR 2019), a stage for each of the two operations of a sub-policy.

    The operations' stages are named auto_augment_1 and auto_augment_2.
    """
    first = AutoAugmentFirst("auto_augment_1", interpolation, fill, policy)
    second = AutoAugmentSecond("auto_augment_2", interpolation, fill, policy, first.name)
    return _augmenting(size, [first, second], order, **shared)


@preset()
def trivial_augment(
    size: Size = 224,
    *,
    num_magnitude_bins: int = 31,
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    fill: Fill = 0,
    **shared: Unpack[Cropping],
) -> Recipe:
    """TrivialAugment (Müller and Hutter, ICCV 2021), with the paper's wide ranges: one operation at any magnitude.

    The operation's stage is named trivial_augment.
    """
    operations = [TrivialAugmentLayer("trivial_augment", interpolation, fill, num_magnitude_bins)]
    return _augmenting(size, operations, order, **shared)


@preset()
def timm_augment(
    size: Size = 224,
    *,
    config: str = "rand-m9-mstd0.5-inc1",
    color_jitter: float | None = None,
    order: Order = "paper",
    interpolation: Interpolation = "bilinear",
    fill: Fill = TIMM_FILL,
    **shared: Unpack[Cropping],
) -> Recipe:
    """Augment as timm does with a string, such as "rand-m9-mstd0.5-inc1", "augmix-m3-w3", "original" or "3a".

    `dalirefurb.augment.timm_auto_augment` tells what strings may say. The operations' stages are named rand_augment_1,
    rand_augment_2, ..., auto_augment_1 and auto_augment_2, aug_mix or three_augment; color_jitter may follow.
    """
    operations = timm_auto_augment(config, interpolation=interpolation, fill=fill)
    jitter = (0.4 if "3a" in config else 0.0) if color_jitter is None else color_jitter
    if jitter:
        operations.append(ColorJitter(jitter, jitter, jitter))
    return _augmenting(size, operations, order, **shared)


@explains
def simplified(recipe: Recipe, layers: int = 1) -> Recipe:
    """Leave the last operations out: augmentation that costs less, to compare reuse with.

    What was final stays so; where none of it is left, the last stage becomes final. So `simplified(rand_augment())` is
    `rand_augment(layers=1)`, and `simplified(rand_augment(), 2)` is `simple()`.

    Args:
        recipe: A recipe with operations: RandAugment, AutoAugment, TrivialAugment.
        layers: Number of operations to leave out, at least 1; the last ones are left out.

    Raises:
        ConfigurationError: If the recipe does not have as many.
    """
    operations = [stage.name for stage in recipe.stages if isinstance(stage, OperationLayer)]
    stages = [stage.name for stage in recipe.stages]
    require(bool(operations), "recipe", "one with operations", stages, "pass such as rand_augment()")
    remedy = f"the operations to leave out are {', '.join(operations)}"
    layers = integer("layers", layers, 1, len(operations), remedy)
    left = [stage for stage in recipe.stages if stage.name not in operations[-layers:]]
    split = sum(stage in left for stage in recipe.partial)
    if recipe.final and split == len(left):
        split = max(split - 1, 0)
    return Recipe(left, recipe.output, split)


def output_of(size: Size, shared: Mapping[str, Any]) -> Output:
    """Return the output of the arguments that a preset shares with others."""
    names = {field.name for field in fields(Output)}
    return Output(size, **{name: given for name, given in shared.items() if name in names})


def _augmenting(
    size: Size,
    operations: Sequence[Stage],
    order: Order = "paper",
    *,
    scale: Range,
    ratio: Range,
    crop_interpolation: ResizeInterpolation,
    flip: float,
    **serving: Any,
) -> Recipe:
    """Crop and flip, before operations or after them as `order` says."""
    output, raw, split = output_of(size, serving), serving["raw"], serving["split"]
    sides = output.sides
    margin = max(2, round(min(sides) / 28))  # room for 9 x 9 crops at 224 pixels, 3.6 % of the side
    padding = max(1, min(sides) // 8)  # 4 pixels for 32 x 32
    padded_crop = RandomCrop(sides, margin=2 * padding, padding=padding)
    if raw:
        usual = ("scale", scale, SCALE), ("ratio", ratio, RATIO), ("crop_interpolation", crop_interpolation, "bilinear")
        for name, given, published in usual:
            remedy = "leave it out, or make a Recipe of your own"
            wanted = "left out with raw=True, where no random resized crop is"
            require(given == published, name, wanted, given, remedy)

    def resized(more: int) -> list[Stage]:
        size = sides[0] + more, sides[1] + more
        return [] if raw else [Decode(), RandomResizedCrop(size, scale, ratio, crop_interpolation)]

    if order == "paper":
        stages = [*(resized(0) or [padded_crop]), HorizontalFlip(flip), *operations]
        final = stages[-1].name
    else:
        require(order == "crop_last", "order", "'paper' or 'crop_last'", order, "choose one")
        last = padded_crop if raw else RandomCrop(sides, margin=margin)
        stages = [*resized(margin), *operations, last, HorizontalFlip(flip)]
        final = last.name
    return Recipe(stages, output, final if split is None else split)
