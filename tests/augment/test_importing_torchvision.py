"""Do torchvision's transforms become the stages that they are, in their order, or an error that names them?"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dalirefurb import Arrays, Loader, Output, Recipe, Standard
from dalirefurb.augment import (
    AdjustSharpness,
    AutoAugmentFirst,
    AutoAugmentSecond,
    AutoContrast,
    CenterCrop,
    ColorJitter,
    Decode,
    Equalize,
    GaussianBlur,
    HorizontalFlip,
    Invert,
    Posterize,
    RandAugmentLayer,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    Solarize,
    Stage,
    TrivialAugmentLayer,
    VerticalFlip,
)
from dalirefurb.augment.importing.assembly import distinct
from dalirefurb.errors import ConfigurationError
from tests.augment.torchvision_stand_ins import T, lightly_blur, lightly_solarization, of_v2, stand_in
from tests.pictures import picture

MODE = T.InterpolationMode
END = (T.ToTensor(),)
CROP = T.CenterCrop(32)


def imported(*transforms: Any, **arguments: Any) -> Recipe:
    return Recipe.from_torchvision(T.Compose(list(transforms)), **arguments)


def stages_of(*transforms: Any, end: Any = END, **arguments: Any) -> tuple[Stage, ...]:
    """Return the stages between decoding and the output, of transforms of images of 32 x 32 pixels."""
    recipe = imported(CROP, *transforms, *end, **arguments)
    assert recipe.stages[:2] == (Decode(), CenterCrop((32, 32)))
    return recipe.stages[2:]


def refusal(*transforms: Any, **arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        imported(*transforms, **arguments)
    return str(refused.value)


ONE_BY_ONE: list[tuple[Callable[[Any], Any], Stage]] = [
    (lambda t: t.Resize(32), Resize(32)),
    (lambda t: t.Resize([32]), Resize(32)),
    (lambda t: t.Resize((32, 32), t.InterpolationMode.BICUBIC), Resize((32, 32), "bicubic")),
    (lambda t: t.Resize(32, t.InterpolationMode.LANCZOS, antialias=None), Resize(32, "lanczos")),
    (lambda t: t.Resize(32, t.InterpolationMode.NEAREST), Resize(32, "nearest")),
    *(
        (lambda t, number=number: t.Resize(32, number), Resize(32, name))  # type: ignore[misc]
        for number, name in enumerate(("nearest", "lanczos", "bilinear", "bicubic"))
    ),
    (
        lambda t: t.RandomResizedCrop(32, (0.2, 1), (1, 2), t.InterpolationMode.BICUBIC),
        RandomResizedCrop((32, 32), (0.2, 1), (1, 2), "bicubic"),
    ),
    (lambda t: t.RandomHorizontalFlip(0.3), HorizontalFlip(0.3)),
    (lambda t: t.RandomVerticalFlip(0.3), VerticalFlip(0.3)),
    (lambda t: t.RandomRotation(15, t.InterpolationMode.BILINEAR, fill=9), RandomRotation((-15, 15), "bilinear", 9)),
    (
        lambda t: t.RandomAffine((1, 5), (0.1, 0.2), (0.9, 1.1), 10, fill=(1, 2, 3)),
        RandomAffine((1, 5), (0.1, 0.2), (0.9, 1.1), (-10, 10), "nearest", (1, 2, 3)),
    ),
    (lambda t: t.RandomAffine(7), RandomAffine(7)),
    (lambda t: t.RandomAffine(7, shear=(-10, 10, -5, 5)), RandomAffine(7, shear=(-10, 10, -5, 5))),
    (lambda t: t.RandomPerspective(0.3, 0.7), RandomPerspective(0.3, 0.7)),
    (lambda t: t.ColorJitter(0.4, 0.3, 0.2, 0.1), ColorJitter(0.4, 0.3, 0.2, 0.1)),
    (lambda t: t.ColorJitter((0.5, 2.0)), ColorJitter((0.5, 2.0))),
    (lambda t: t.RandomGrayscale(0.3), RandomGrayscale(0.3)),
    (lambda t: t.GaussianBlur(9, 0.7), GaussianBlur(9, 0.7)),
    (lambda t: t.RandomInvert(1.0), Invert()),
    (lambda t: t.RandomPosterize(3, 1.0), Posterize(3)),
    (lambda t: t.RandomSolarize(99, 0.2), RandomApply(Solarize(99), 0.2)),
    (lambda t: t.RandomAdjustSharpness(2, 1.0), AdjustSharpness(2)),
    (lambda t: t.RandomAutocontrast(1.0), AutoContrast()),
    (lambda t: t.RandomEqualize(1.0), Equalize()),
    (lambda t: t.RandomInvert(0.2), RandomApply(Invert(), 0.2)),
    (lambda t: t.RandomPosterize(3, 0.2), RandomApply(Posterize(3), 0.2)),
    (lambda t: t.RandomAdjustSharpness(2, 0.2), RandomApply(AdjustSharpness(2), 0.2)),
    (lambda t: t.RandomAutocontrast(0.2), RandomApply(AutoContrast(), 0.2)),
    (lambda t: t.RandomEqualize(0.2), RandomApply(Equalize(), 0.2)),
    (lambda t: t.GaussianBlur(9, (0.2, 0.7)), GaussianBlur(9, (0.2, 0.7))),
    (lambda t: t.Resize(32, t.InterpolationMode.NEAREST_EXACT), Resize(32, "nearest")),
    (
        lambda t: t.RandomPerspective(0.3, 0.7, t.InterpolationMode.NEAREST, (1, 2, 3)),
        RandomPerspective(0.3, 0.7, "nearest", (1, 2, 3)),
    ),
    (
        lambda t: t.TrivialAugmentWide(11, t.InterpolationMode.BILINEAR, [1, 2, 3]),
        TrivialAugmentLayer("trivial_augment", "bilinear", (1, 2, 3), 11),
    ),
    (lambda t: t.Grayscale(3), RandomGrayscale(1.0, "grayscale")),
    (lambda t: t.RandomCrop(32), RandomCrop((32, 32), 0)),
    (lambda t: t.RandomCrop(32, padding=4), RandomCrop((32, 32), 8, 4)),
    (lambda t: t.RandomCrop(32, padding=4, fill=(0, 0, 0)), RandomCrop((32, 32), 8, 4)),
    (
        lambda t: t.RandomCrop(32, padding=[2, 2], padding_mode="reflect"),
        RandomCrop((32, 32), 4, 2, padding_mode="reflect"),
    ),
    (lambda t: lightly_blur(0.5, (0.1, 2.0)), RandomApply(GaussianBlur(17), 0.5)),
    (lambda t: lightly_solarization(1.0), Solarize(128)),
    (lambda t: lightly_solarization(1.0, 99), Solarize(99)),
]


@pytest.mark.parametrize(("make", "stage"), ONE_BY_ONE, ids=[stage.name for _, stage in ONE_BY_ONE])
def test_a_transform_is_a_stage_with_its_arguments(make: Callable[[Any], Any], stage: Stage) -> None:
    assert stages_of(make(T)) == (stage,)


def test_every_stage_has_a_name_of_its_own_whatever_they_were_called() -> None:
    named = [HorizontalFlip(name=name) for name in ("a", "a_2", "a", "a", "a_2")]
    assert [stage.name for stage in distinct(named)] == ["a", "a_2", "a_3", "a_4", "a_2_2"]


def test_transforms_of_version_2_are_the_same() -> None:
    flip, grey = of_v2("RandomHorizontalFlip", "_geometry", p=0.3), of_v2("RandomGrayscale", "_color", p=0.3)
    assert stages_of(flip, grey) == (HorizontalFlip(0.3), RandomGrayscale(0.3))


def test_policies_are_as_many_stages_as_there_are_operations() -> None:
    layers = [RandAugmentLayer(f"rand_augment_{layer}", "nearest", 0, 5, 11) for layer in (1, 2, 3)]
    assert stages_of(T.RandAugment(3, 5, 11)) == (*layers,)
    (layer,) = stages_of(T.RandAugment(1, interpolation=MODE.BILINEAR, fill=7))
    assert layer == RandAugmentLayer("rand_augment_1", "bilinear", 7)
    first = AutoAugmentFirst("auto_augment_1", "bilinear", 7, "cifar10")
    second = AutoAugmentSecond("auto_augment_2", "bilinear", 7, "cifar10", first.name)
    policy = T.AutoAugment(T.AutoAugmentPolicy.CIFAR10, MODE.BILINEAR, 7)
    assert stages_of(policy) == (first, second)


def test_of_two_policies_each_operation_follows_its_own() -> None:
    first, second, again, last = stages_of(T.AutoAugment(), T.AutoAugment(T.AutoAugmentPolicy.SVHN))
    assert second.follows == first
    assert last.follows == again
    assert (again.name, last.name) == ("auto_augment_1_2", "auto_augment_2_2")


def test_transforms_are_chosen_among_and_applied_at_random() -> None:
    jitter, blur = T.ColorJitter(0.4), T.GaussianBlur(9)
    assert stages_of(T.RandomApply([jitter], 0.8)) == (RandomApply(ColorJitter(0.4), 0.8),)
    both = RandomApply([ColorJitter(0.4), GaussianBlur(9)], 0.8)
    assert stages_of(T.RandomApply([T.Compose([jitter, blur])], 0.8)) == (both,)
    chosen = RandomChoice([[ColorJitter(0.4)], [GaussianBlur(9)], []], (2, 3, 1))
    nothing = of_v2("Identity", "_misc")
    assert stages_of(T.RandomChoice([jitter, blur, nothing], [2, 3, 1])) == (chosen,)
    flips = T.RandomChoice([T.RandomApply([T.RandomInvert(0.5)], 0.5), blur])
    (nested,) = stages_of(flips)
    assert nested == RandomChoice([[RandomApply(RandomApply(Invert(), 0.5), 0.5)], [GaussianBlur(9)]])


def test_choices_of_one_class_have_names_of_their_own() -> None:
    """As torchvision's have none: quarter turns, blurs, and what is nested."""
    turns = [T.RandomRotation([angle, angle]) for angle in (0, 90, 180)]
    (choice,) = stages_of(T.RandomChoice(turns))
    assert isinstance(choice, RandomChoice)
    assert [stage.name for stage in choice.inner] == ["random_rotation", "random_rotation_2", "random_rotation_3"]
    blurs = T.RandomChoice([T.GaussianBlur(3), T.RandomApply([T.GaussianBlur(5), T.GaussianBlur(7)], 0.5)])
    (nested,) = stages_of(T.RandomChoice([blurs, [T.GaussianBlur(9), T.GaussianBlur(3)], blurs]))
    assert isinstance(nested, RandomChoice)
    assert len({stage.name for stage in nested.inner}) == 4
    assert [len(branch) for branch in nested.branches] == [1, 2, 1]
    assert len({stage.name for stage in stages_of(T.RandomChoice(turns), T.RandomChoice(turns))}) == 2
    always = [T.RandomApply([T.RandomInvert(1.0)], 1.0)] * 2
    assert stages_of(T.RandomApply(always, 0.5)) == (RandomApply([Invert(), Invert("invert_2")], 0.5),)


def _convert_image_to_rgb(image: Any) -> Any:
    """CLIP's."""
    return image.convert("RGB")


def _convert_if_needed(image: Any) -> Any:
    if isinstance(image, Image.Image) and image.mode != "RGB":
        image = image.convert("RGB")
    return image


class _ToMode:
    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __call__(self, image: Any) -> Any:
        return image.convert(self.mode)


class _Module(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        return image.convert("RGB")


@pytest.mark.parametrize(
    "convert",
    [
        _convert_image_to_rgb,
        _convert_if_needed,
        lambda image: image.convert("RGB") if isinstance(image, PIL.Image.Image) else image,
        lambda image: image.convert("RGB"),
        T.Lambda(lambda image: image.convert("RGB")),
        T.Lambda(_convert_image_to_rgb),
        _ToMode("RGB"),
        _Module(),
        torch.nn.Identity(),
        T.RandomApply([_convert_image_to_rgb]),
    ],
)
def test_conversions_to_rgb_are_nothing(convert: Any) -> None:
    assert stages_of(convert, T.RandomHorizontalFlip()) == (HorizontalFlip(),)


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.convert("L").convert("RGB"),
        lambda image: image.convert("L"),
        lambda image: image.convert("HSV"),
        lambda image: image.convert("RGB").rotate(0),
        lambda image: image if np.random.default_rng().random() else image.convert("L"),
        lambda image, convert=abs: convert(image),
        lambda image, *, convert=abs: image.convert("RGB"),
        (lambda mode: lambda image: image.convert(mode))("RGB"),
        _ToMode("L"),
        T.Lambda(lambda image: image.convert("P").convert("RGB")),
    ],
)
def test_what_does_more_than_convert_to_rgb_is_refused(change: Any) -> None:
    assert "cannot be imported" in refusal(CROP, change, *END)


def test_a_grey_channel_that_is_repeated_is_three() -> None:
    for repeat in (
        lambda x: x.repeat(3, 1, 1),
        lambda x: x.expand(3, -1, -1),
        lambda x: torch.cat([x, x, x]),
        lambda x: x.repeat_interleave(3, 0),
        lambda x: torch.stack([x.squeeze()] * 3),
        lambda x: x if x.shape[0] == 3 else x.expand(3, x.size(1), -1) if x.dim() == 3 else x,
    ):
        assert imported(CROP, T.ToTensor(), T.Lambda(repeat), channels=1).output.channels == 3
    assert "Lambda cannot be imported" in refusal(CROP, T.ToTensor(), T.Lambda(lambda x: x.repeat(3, 1, 1)))
    assert "Lambda cannot be imported" in refusal(CROP, T.ToTensor(), T.Lambda(lambda x: x.repeat(1, 1, 2)))


def test_what_happens_always_or_never_is_no_choice() -> None:
    inner = [T.ColorJitter(0.4), T.GaussianBlur(9)]
    assert stages_of(T.RandomApply(inner, 1.0)) == (ColorJitter(0.4), GaussianBlur(9))
    assert stages_of(T.RandomApply(inner, 0.0), T.RandomInvert(0.0), T.RandomVerticalFlip(0.0)) == ()
    assert stages_of(*END, T.RandomErasing(0.0), end=()) == ()


def test_containers_are_one_sequence_with_names_of_their_own() -> None:
    flip = T.RandomHorizontalFlip()
    sequence = stand_in("Sequential", "torch.nn.modules.container", transforms=[flip, T.Compose([flip])])
    stages = stages_of([flip], sequence)
    assert [stage.name for stage in stages] == ["flip", "flip_2", "flip_3"]


def test_a_torch_sequence_is_a_container() -> None:
    """Its modules are found by iterating, for it has no list of transforms."""
    recipe = Recipe.from_torchvision([CROP, torch.nn.Sequential(), *END])
    assert [stage.name for stage in recipe.stages] == ["decode", "center_crop"]


MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
UNIT = {"mean": (0, 0, 0), "std": (1, 1, 1)}
ENDS: list[tuple[list[Any], Output]] = [
    ([T.ToTensor()], Output(32, "float32", (0, 0, 0), (1, 1, 1))),
    ([T.PILToTensor(), T.ConvertImageDtype(torch.float16)], Output(32, "float16", (0, 0, 0), (1, 1, 1))),
    (
        [of_v2("ToImage", "_type_conversion"), of_v2("ToDtype", "_misc", dtype=torch.bfloat16, scale=True)],
        Output(32, "bfloat16", (0, 0, 0), (1, 1, 1)),
    ),
    (
        [T.ToTensor(), T.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])],
        Output(32, "float32", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    ),
    ([T.ToTensor(), T.Normalize(0.5, [0.25])], Output(32, "float32", (0.5,) * 3, (0.25,) * 3)),
    (
        [T.ToTensor(), T.Normalize(torch.tensor(MEAN, dtype=torch.float64), np.array(STD))],
        Output(32, "float32", MEAN, STD),
    ),
    ([of_v2("ToDtype", "_misc", dtype=torch.float16, scale=True), T.ToPILImage(), T.ToTensor()], Output(32, **UNIT)),
    ([T.PILToTensor(), of_v2("ToDtype", "_misc", dtype=torch.uint8, scale=True), T.ToTensor()], Output(32, **UNIT)),
    (
        [T.ToTensor(), of_v2("ToDtype", "_misc", dtype=torch.float16, scale=False)],
        Output(32, "float16", (0, 0, 0), (1, 1, 1)),
    ),
    ([T.ToTensor(), T.Normalize((0.5,), (0.25,))], Output(32, "float32", (0.5,) * 3, (0.25,) * 3)),
    ([T.Grayscale(), T.ToTensor(), T.Normalize((0.5,), (0.25,))], Output(32, "float32", 0.5, 0.25, channels=1)),
    ([T.ToTensor(), T.ToPILImage(), T.ToTensor()], Output(32, "float32", (0, 0, 0), (1, 1, 1))),
]


@pytest.mark.parametrize(("end", "output"), ENDS, ids=range(len(ENDS)))
def test_conversions_and_normalisation_are_the_output(end: list[Any], output: Output) -> None:
    recipe = imported(CROP, *end)
    assert recipe.output == output
    assert recipe.stages == (Decode(), CenterCrop((32, 32)))


@pytest.mark.parametrize(
    ("transforms", "entering", "channels", "grey"),
    [
        ([T.Grayscale(), T.Grayscale(3)], 3, 3, 1),
        ([T.Grayscale(3), T.Grayscale()], 3, 1, 1),
        ([T.Grayscale(1), of_v2("RGB", "_color")], 3, 3, 1),
        ([T.Grayscale(1), T.RandomInvert(1.0)], 3, 1, 1),
        ([of_v2("RGB", "_color")], 3, 3, 0),
        ([], 1, 1, 0),
        ([T.RandomInvert(1.0)], 1, 1, 0),
        ([T.Grayscale()], 1, 1, 0),
        ([T.Grayscale(3)], 1, 3, 0),
        ([of_v2("RGB", "_color")], 1, 3, 0),
        ([T.Lambda(lambda image: image.convert("RGB"))], 1, 3, 0),
    ],
)
def test_there_are_as_many_channels_as_transforms_and_images_have(
    transforms: list[Any], entering: int, channels: int, grey: int
) -> None:
    recipe = imported(CROP, *transforms, *END, channels=entering)
    assert recipe.output.channels == channels
    assert sum(isinstance(stage, RandomGrayscale) for stage in recipe.stages) == grey


def test_version_2_normalizes_one_channel_by_three_means_to_three() -> None:
    normalize = of_v2("Normalize", "_misc", mean=list(MEAN), std=list(STD))
    recipe = imported(CROP, T.Grayscale(), T.ToTensor(), normalize)
    assert recipe.output == Output(32, "float32", MEAN, STD)
    assert recipe.stages[2:] == (RandomGrayscale(1.0, "grayscale"),)
    assert imported(CROP, T.ToTensor(), normalize, channels=1).output.channels == 3


def test_grey_images_are_served_in_one_channel_as_they_are() -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 1), np.uint8).repeat(3, axis=3)
    recipe = imported(T.ToTensor(), T.Normalize((0.1307,), (0.3081,)), raw=True, size=28, channels=1)
    assert (recipe.output.mean, recipe.output.std) == ((0.1307,), (0.3081,))
    with Loader(Arrays(images, np.arange(8)), recipe, Standard(8, batch_size=8)) as loader:
        ((served, labels),) = [(batch.clone(), labels.numpy()) for batch, labels in loader]
    wanted = (torch.from_numpy(images[labels, ..., 0]).float()[:, None] / 255 - 0.1307) / 0.3081
    assert torch.allclose(served, wanted, atol=1e-5)


def test_channels_are_one_or_three() -> None:
    with pytest.raises(ConfigurationError, match="channels must be 3, or 1 for grey images, got 4: choose one"):
        imported(CROP, *END, channels=4)


def test_grey_images_are_made_by_the_output_unless_colours_are_changed_later() -> None:
    assert stages_of(T.Grayscale(), T.RandomHorizontalFlip()) == (HorizontalFlip(),)
    grey = RandomGrayscale(1.0, "grayscale")
    assert stages_of(T.Grayscale(), T.RandomSolarize(9, 1.0)) == (grey, Solarize(9))
    assert stages_of(T.Grayscale(), T.RandomSolarize(9, 1.0), T.RandomHorizontalFlip()) == (
        grey,
        Solarize(9),
        HorizontalFlip(),
    )
    for third in (3, 1):  # The last one only is the output's.
        stages = stages_of(T.Grayscale(3), T.RandomSolarize(9, 1.0), T.Grayscale(third))
        assert stages[:2] == (grey, Solarize(9))
        assert len(stages) == third // 3 + 2


ERASED = {"probability": 0.3, "scale": (0.02, 0.33), "ratio": (0.3, 3.3)}
NORMALIZED = (T.ToTensor(), T.Normalize(MEAN, STD))
TENSOR_OF_LEVELS = (T.PILToTensor(),)
ERASURES: list[tuple[Any, Any, dict[str, Any]]] = [
    (NORMALIZED, 0, {"value": "mean", "mean": MEAN, "std": STD}),
    (NORMALIZED, "random", {"value": "pixel", "mean": MEAN, "std": STD}),
    (NORMALIZED, (0.25, 0.2, -0.1), {"value": (51, 77, 61)}),
    (END, 0, {"value": (0, 0, 0)}),
    (END, (1.0, 0.2, 0.0), {"value": (255, 51, 0)}),
    (TENSOR_OF_LEVELS, 7, {"value": (7, 7, 7)}),
]


@pytest.mark.parametrize(("before", "value", "painted"), ERASURES, ids=range(len(ERASURES)))
def test_what_is_erased_has_the_colour_that_it_has_after_normalisation(
    before: Any, value: Any, painted: dict[str, Any]
) -> None:
    end = END if before is TENSOR_OF_LEVELS else ()
    (stage,) = stages_of(*before, T.RandomErasing(0.3, value=value), end=end)
    assert stage == RandomErasing(**ERASED, **painted)


def test_version_2_keeps_erasings_values_otherwise() -> None:
    for value, painted in (([0.0], "mean"), (None, "pixel")):
        erasing = of_v2("RandomErasing", "_augment", p=0.3, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=value)
        assert stages_of(*NORMALIZED, erasing, end=()) == (RandomErasing(**ERASED, value=painted, mean=MEAN, std=STD),)


def test_pixels_in_0_to_1_are_turned_before_black() -> None:
    turned = stages_of(*END, T.RandomRotation(9, fill=(0, 0, 0)), end=())
    assert turned == (RandomRotation((-9, 9), fill=(0, 0, 0)),)


def test_what_only_moves_pixels_may_come_after_normalisation() -> None:
    moves = T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomCrop(32), T.CenterCrop(32)
    assert stages_of(*NORMALIZED, *moves, end=()) == (
        HorizontalFlip(),
        VerticalFlip(),
        RandomCrop((32, 32), 0),
        CenterCrop((32, 32), "center_crop_2"),
    )
    assert "RandomRotation after Normalize" in refusal(CROP, *NORMALIZED, T.RandomRotation(9))


def test_what_follows_normalisation_does_not_make_other_pixels_of_them() -> None:
    half = T.ConvertImageDtype(torch.float16)
    for again in (half, T.ToTensor(), T.PILToTensor(), of_v2("ToPureTensor", "_type_conversion")):
        (stage,) = stages_of(*NORMALIZED, again, T.RandomErasing(0.3), end=())
        assert stage == RandomErasing(**ERASED, value="mean", mean=MEAN, std=STD)
        assert "ColorJitter after Normalize" in refusal(CROP, *NORMALIZED, again, T.ColorJitter(0.4))
    assert imported(CROP, *NORMALIZED, half).output == Output(32, "float16", MEAN, STD)


def test_a_resize_of_tensors_picks_pillows_pixels_and_is_anti_aliased() -> None:
    for before, resize in (
        ((), T.Resize(32, antialias="warn")),
        (TENSOR_OF_LEVELS, T.Resize(32, antialias=True)),
        ((of_v2("ToPureTensor", "_type_conversion"),), T.Resize(32, antialias=True)),
    ):
        assert stages_of(*before, resize) == (Resize(32),)
    assert stages_of(*TENSOR_OF_LEVELS, T.Resize(32, MODE.NEAREST_EXACT)) == (Resize(32, "nearest"),)
    for again in ("warn", None):
        assert "Resize(antialias=" in refusal(CROP, *TENSOR_OF_LEVELS, T.Resize(32, antialias=again), *END)
    pure = of_v2("ToPureTensor", "_type_conversion")
    assert "Resize(antialias=None)" in refusal(CROP, pure, T.Resize(32, antialias=None), *END)


def test_a_pad_and_the_crop_after_it_are_one_stage() -> None:
    """Flips may be between them, for all sides are padded alike."""
    between = stages_of(T.Pad(4), T.RandomHorizontalFlip(), T.RandomCrop(32))
    assert between == (HorizontalFlip(), RandomCrop((32, 32), 8, 4))
    between = stages_of(T.Pad(4), T.RandomVerticalFlip(), T.RandomCrop(32))
    assert between == (VerticalFlip(), RandomCrop((32, 32), 8, 4))
    assert "Pad cannot be imported" in refusal(CROP, T.Pad(4), T.ColorJitter(0.4), T.RandomCrop(32), *END)
    assert stages_of(T.Pad(4, padding_mode="reflect"), T.RandomCrop(32)) == (
        RandomCrop((32, 32), 8, 4, padding_mode="reflect"),
    )


def test_arrays_that_are_padded_and_cropped_have_the_crops_size() -> None:
    recipe = imported(T.RandomCrop(32, padding=4), *END, raw=True)
    assert recipe.stages == (RandomCrop((32, 32), 8, 4),)
    assert imported(T.RandomCrop(32, padding=4, pad_if_needed=True), *END, raw=True).stages == recipe.stages
    flipped = imported(T.RandomHorizontalFlip(), T.RandomCrop(32, padding=4), *END, raw=True)
    assert flipped.stages == (HorizontalFlip(), RandomCrop((32, 32), None, 4))
    assert imported(T.RandomHorizontalFlip(), *END, raw=True, size=32).output.size == 32
    assert "pass size=" in refusal(T.RandomHorizontalFlip(), *END, raw=True)


def test_a_crop_of_images_of_any_size_takes_them_as_they_are() -> None:
    recipe = imported(T.Resize(40), T.RandomCrop(32), *END)
    assert recipe.stages[2] == RandomCrop((32, 32))
    assert recipe.split == 2
    of_two_sides = imported(T.Resize((40, 44)), T.RandomCrop(32), *END)
    assert of_two_sides.stages[2] == RandomCrop((32, 32))
    assert imported(T.Resize(40), T.RandomCrop((32, 24)), *END).stages[2] == RandomCrop((32, 24))


def test_transforms_of_weights_are_a_resize_and_a_crop() -> None:
    def weights(**changes: Any) -> Any:
        values = {"crop_size": [32], "resize_size": [36], "mean": list(MEAN), "std": list(STD), "antialias": True}
        values |= {"interpolation": MODE.BICUBIC, **changes}
        return stand_in("ImageClassification", "torchvision.transforms._presets", **values)

    recipe = Recipe.from_torchvision(weights())
    assert recipe.stages == (Decode(), Resize(36, "bicubic"), CenterCrop(32))
    assert recipe.output == Output(32, "float32", MEAN, STD)
    assert recipe.split == 3
    of_two_sides = Recipe.from_torchvision(weights(resize_size=[36, 40], crop_size=[32, 24]))
    assert of_two_sides.stages == (Decode(), Resize((36, 40), "bicubic"), CenterCrop((32, 24)))
    with pytest.raises(ConfigurationError, match=r"ImageClassification\(antialias=False\) cannot be imported: resizes"):
        Recipe.from_torchvision(weights(antialias=False))


def test_transforms_of_weights_may_be_given_before_they_are_made() -> None:
    values = {"resize_size": [36], "mean": list(MEAN), "std": list(STD), "antialias": True}
    values["interpolation"] = MODE.BILINEAR
    kind = type("ImageClassification", (), {"__module__": "torchvision.transforms._presets"})

    def init(self: Any, **given: Any) -> None:
        vars(self).update(values | {name: [side] for name, side in given.items()})

    kind.__init__ = init  # type: ignore[misc]
    transforms = functools.partial(kind, crop_size=32)
    weights = enum.Enum("weights", {"DEFAULT": SimpleNamespace(transforms=transforms)}).DEFAULT
    type(weights).transforms = property(lambda member: member.value.transforms)  # type: ignore[attr-defined]
    made = Recipe.from_torchvision(kind(crop_size=32))
    assert Recipe.from_torchvision(transforms) == Recipe.from_torchvision(weights) == made


def test_transforms_of_weights_that_are_no_classifiers_are_refused_by_name() -> None:
    """Of those of detectors torchvision has the class alone, without what it is made with."""
    kind = type("ObjectDetection", (), {"__module__": "torchvision.transforms._presets"})
    weights = enum.Enum("weights", {"DEFAULT": SimpleNamespace(transforms=kind)}).DEFAULT
    type(weights).transforms = property(lambda member: member.value.transforms)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"^ObjectDetection cannot be imported"):
        Recipe.from_torchvision(weights)


def test_a_dict_of_transforms_is_refused_with_its_keys() -> None:
    with pytest.raises(ConfigurationError, match=r"a dict of 'train', 'val' cannot be imported: pass one, such as"):
        Recipe.from_torchvision({"train": T.Compose([CROP, *END]), "val": T.Compose([CROP, *END])})


def test_a_crop_that_need_not_pad_is_a_crop() -> None:
    crop = RandomCrop((32, 32))
    needed = {"pad_if_needed": True}
    assert imported(T.Resize(32), T.RandomCrop(32, **needed), *END).stages[2] == crop
    assert stages_of(T.RandomCrop(32, **needed)) == (RandomCrop((32, 32), 0),)
    assert stages_of(T.Resize((30, 30)), T.RandomCrop(32, 1, **needed))[1] == RandomCrop((32, 32), 0, 1)
    assert imported(T.RandomCrop(32, **needed), *END, raw=True, size=36).stages == (RandomCrop((32, 32), 4),)


def test_grey_with_a_probability_is_random_grey_until_pixels_are_normalised() -> None:
    (grey,) = stages_of(T.RandomApply([T.Grayscale(3)], 0.2))
    assert grey == RandomApply(RandomGrayscale(1.0, "grayscale"), 0.2)
    assert "Grayscale after Normalize cannot be" in refusal(CROP, *NORMALIZED, T.RandomApply([T.Grayscale(3)], 0.2))


def test_what_is_left_out_is_told_to_whom_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "dalirefurb"):
        stages_of(_convert_image_to_rgb)
    assert caplog.messages == ["_convert_image_to_rgb only makes 3 equal channels, so it is no stage"]


def test_an_object_that_holds_transforms_is_refused_with_these() -> None:
    preset = stand_in("ClassificationPresetTrain", "presets", transforms=T.Compose([CROP, *END]))
    assert "pass torchvision's transforms, such as its .transforms, or" in refusal(preset)


def test_the_split_can_be_chosen() -> None:
    transforms = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *END]
    assert imported(*transforms).split == 1
    assert imported(*transforms, split="flip").split == 2
    assert imported(*transforms, split=0).split == 0


REFUSED: list[tuple[list[Any], str]] = [
    ([CROP], "a transform that makes levels cannot be imported: end it with ToTensor"),
    ([T.Resize(32), *END], "must leave images of one size, but theirs is that of what enters: end with a crop"),
    ([T.Lambda(abs)], "Lambda cannot be imported: leave it out if it only converts images to RGB"),
    ([abs], "the function abs cannot be imported: leave it out if it only converts images to RGB"),
    ([type(T.RandomHorizontalFlip())], "the class RandomHorizontalFlip cannot be imported: pass one that is made"),
    ([T.Grayscale(), T.RandomRotation(9, fill=(1, 2, 3))], "RandomRotation of one channel with fill=(1, 2, 3)"),
    ([T.Grayscale(), T.ToTensor(), T.RandomErasing(value=(1, 0, 0))], "value=(1, 0, 0)) of one channel cannot be"),
    ([T.Grayscale(), T.ToTensor(), T.Normalize(0.5, 1), T.RandomErasing(value="random")], "noise and colours have"),
    ([T.Grayscale(), *NORMALIZED], "Normalize of one channel by three numbers cannot be imported: pass one mean"),
    ([T.ToTensor(), T.Normalize((0.5, 0.4), 1)], "Normalize(mean=[0.5, 0.4], std=[1]) cannot be imported: pass one"),
    ([T.RandomApply([of_v2("RGB", "_color")]), T.RandomApply([T.Grayscale()])], "Grayscale inside of another"),
    ([T.RandomOrder([])], "RandomOrder cannot be imported: write its transforms in one order"),
    ([T.FiveCrop(32)], "FiveCrop cannot be imported: make one view"),
    ([T.AugMix()], "AugMix cannot be imported: its operations are not timm's"),
    *(
        ([of_v2(name, "_any")], f"{name} cannot be imported: {told}")
        for name, told in (
            ("TenCrop", "make one view of a sample: CenterCrop"),
            ("CutMix", "mix batches after the loader by dalirefurb.Mix"),
            ("RandomResize", "write it and the crop after it as one stage, dalirefurb.augment.ScaleJitter"),
            ("ScaleJitter", "write it and the crop after it as one stage, dalirefurb.augment.ScaleJitter"),
            ("RandomShortestSize", "write it and the crop after it as one stage, dalirefurb.augment.ScaleJitter"),
            ("RandomPhotometricDistort", "use ColorJitter inside of RandomApply"),
            ("LinearTransformation", "do it on the model's side, to batches"),
        )
    ),
    *(
        ([T.ToTensor(), each], f"{type(each).__name__} of pixels in 0..1 cannot be imported: put it before ToTensor")
        for each in (T.RandomPosterize(3), T.RandomEqualize(), T.RandAugment(), T.AutoAugment(), T.TrivialAugmentWide())
    ),
    *(
        ([T.ToTensor(), T.RandomApply([each])], f"{type(each).__name__} inside of another transform cannot be import")
        for each in (
            *(T.RandomErasing(), T.Pad(4), T.Grayscale(), T.PILToTensor(), T.ToPILImage(), T.Normalize(0.5, 0.5)),
            *(T.ConvertImageDtype(torch.float32), of_v2("ImageClassification", "_presets")),
            *(of_v2(name, "_type_conversion") for name in ("ToImage", "ToPureTensor", "ToDtype")),
        )
    ),
    ([of_v2("MixUp", "_augment")], "MixUp cannot be imported: mix batches after the loader by dalirefurb.Mix"),
    ([of_v2("GaussianNoise", "_misc")], "GaussianNoise cannot be imported: write it as a HostStage"),
    ([T.RandomResizedCrop(32, antialias=False)], "RandomResizedCrop(antialias=False) cannot be imported: resizes here"),
    ([T.PILToTensor(), T.Resize(32, antialias=None)], "Resize(antialias=None) cannot be imported"),
    ([T.PILToTensor(), T.Resize(32, MODE.NEAREST)], "pass InterpolationMode.NEAREST_EXACT"),
    ([T.Resize(32, MODE.BOX)], "Resize(interpolation='box') cannot be imported: choose one of nearest, bilinear"),
    ([T.Resize(None, max_size=64)], "(max_size=64) cannot be imported: pass the length of the shorter side alone"),
    ([T.Resize(None)], "Resize(size=None) cannot be imported: pass the length of the shorter side"),
    ([T.RandomRotation(9, fill=(1, 2))], "RandomRotation(fill=(1, 2)) cannot be imported: pass a level 0 .. 255"),
    ([T.RandAugment(interpolation=MODE.BICUBIC)], "choose one of nearest, bilinear"),
    ([T.RandomRotation(9, expand=True)], "RandomRotation(expand=True) cannot be imported: leave expand out"),
    ([T.RandomAffine(9, center=(1, 2))], "RandomAffine(center=(1, 2)) cannot be imported: leave center out"),
    ([T.RandomRotation(9, fill=0.5)], "RandomRotation(fill=0.5) cannot be imported: pass a level 0 .. 255"),
    ([T.GaussianBlur((3, 5))], "GaussianBlur(kernel_size=(3, 5)) cannot be imported: pass one odd number"),
    ([T.RandomCrop(32, padding=(1, 2))], "RandomCrop(padding=(1, 2)) cannot be imported: pad all sides"),
    ([T.RandomCrop(32, padding=4, fill=9)], "RandomCrop that adds another level than 0 cannot be imported"),
    ([T.Pad(4, fill=9), T.RandomCrop(32)], "Pad that adds another level than 0 cannot be imported: pass fill=0"),
    ([T.Pad((1, 2)), T.RandomCrop(32)], "Pad(padding=(1, 2)) cannot be imported: pad all sides by as many pixels"),
    ([T.Pad(4, padding_mode="edge"), T.RandomCrop(32)], "Pad(padding_mode='edge') cannot be imported: pass 'constant'"),
    ([T.RandomCrop(32, padding=4, padding_mode="edge")], "pass 'constant' or 'reflect'"),
    ([T.RandomCrop(32, pad_if_needed=True)], "put a Resize to its size or more before it, or pass size="),
    ([T.Resize(31), T.RandomCrop(32, pad_if_needed=True)], "RandomCrop(pad_if_needed=True) cannot be imported"),
    *(
        ([T.Resize(sides), T.RandomCrop(32, pad_if_needed=True)], "RandomCrop(pad_if_needed=True) cannot be imported")
        for sides in ((40, 30), (30, 40))
    ),
    ([T.Pad(4), *END], "Pad cannot be imported: put RandomCrop after it"),
    ([T.Pad(4)], "Pad cannot be imported: put RandomCrop after it"),
    ([T.Pad(4), T.RandomCrop(32, padding=4)], "pad once"),
    ([T.Normalize(MEAN, STD)], "put ToTensor or ToDtype(torch.float32, scale=True) before it"),
    ([*NORMALIZED, T.Normalize(MEAN, STD)], "and have it once"),
    ([*NORMALIZED, T.ColorJitter(0.4)], "ColorJitter after Normalize cannot be imported: put it before"),
    ([*NORMALIZED, T.RandomCrop(32, padding=4)], "put it before Normalize"),
    ([*NORMALIZED, T.Grayscale()], "Grayscale after Normalize cannot be imported"),
    ([*NORMALIZED, T.ToPILImage()], "ToPILImage after Normalize cannot be imported"),
    *(
        ([T.ToTensor(), transform], f"{name} of pixels in 0..1 cannot be imported: put it before ToTensor")
        for name, transform in {
            "RandomSolarize": T.RandomSolarize(0.5),
            "RandomPosterize": T.RandomPosterize(4),
            "RandomEqualize": T.RandomEqualize(),
            "RandAugment": T.RandAugment(),
            "AutoAugment": T.AutoAugment(),
            "TrivialAugmentWide": T.TrivialAugmentWide(),
        }.items()
    ),
    ([T.ToTensor(), T.RandomRotation(9, fill=1)], "RandomRotation of pixels in 0..1 cannot be imported"),
    ([T.RandomErasing()], "RandomErasing of an image cannot be imported: put it after ToTensor"),
    ([T.ToTensor(), T.RandomErasing(value="random")], "RandomErasing(value='random') before Normalize"),
    ([T.ToTensor(), T.RandomErasing(value=2.0)], "RandomErasing(value=2.0) cannot be imported: pass another value"),
    ([T.RandomApply([T.RandomCrop(32)])], "RandomCrop inside of another transform cannot be imported: put it outside"),
    ([T.RandomApply(END)], "ToTensor inside of another transform cannot be imported"),
    ([T.RandomApply([T.Pad(4)])], "Pad inside of another transform cannot be imported: put it outside"),
    ([T.ToTensor(), T.RandomApply([T.RandomErasing()])], "RandomErasing inside of another transform cannot be"),
    (
        [of_v2("ToDtype", "_misc", dtype=torch.float32, scale=False)],
        "ToDtype(torch.float32, scale=False) cannot be imported: pass scale=True",
    ),
    ([of_v2("ToDtype", "_misc", dtype=torch.float64, scale=True)], "ToDtype(torch.float64) cannot be imported"),
    ([T.ToTensor(), T.ConvertImageDtype(torch.uint8)], "ConvertImageDtype(torch.uint8) cannot be imported"),
    ([stand_in("RandomResizedCropAndInterpolation", "timm.data.transforms")], "pass Recipe.from_timm what timm's"),
    ([stand_in("HorizontalFlip", "albumentations.augmentations.geometric")], "it resizes without anti-aliasing"),
    ([stand_in("Compose", "albumentations.core.composition", transforms=[])], "albumentations's Compose cannot be imp"),
    ([stand_in("DINOTransform", "lightly.transforms.dino_transform")], "a recipe makes one view"),
    ([stand_in("Cutout", "util.cutout")], "Cutout of util.cutout cannot be imported: pass torchvision's transforms"),
]


@pytest.mark.parametrize(("transforms", "told"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_imported_is_named_with_what_helps(transforms: list[Any], told: str) -> None:
    assert told in refusal(*transforms)


POOL = (
    [make(T) for make, _ in ONE_BY_ONE]
    + [each for transforms, _ in REFUSED for each in transforms]
    + [CROP, *NORMALIZED]
)


@given(st.lists(st.sampled_from(POOL), max_size=8), st.booleans(), st.sampled_from([None, 32, (32, 48)]))
def test_whatever_is_given_becomes_a_recipe_or_one_line(transforms: list[Any], raw: bool, size: Any) -> None:
    try:
        recipe = imported(*transforms, *END, raw=raw, size=size)
    except ConfigurationError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert recipe.diversity(3) >= 0.95


def test_what_is_imported_is_served() -> None:
    """By kernels, as by DALI's operators: the same numbers as those of the recipe written by hand."""
    images = np.stack([picture(number, height=32, width=32) for number in range(8)])
    transforms = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *NORMALIZED, T.RandomErasing(0.5)]
    ours = imported(*transforms, raw=True)
    erasing = RandomErasing(0.5, value="mean", mean=MEAN, std=STD)
    by_hand = Recipe([RandomCrop(32, 8, 4), HorizontalFlip(), erasing], Output(32, "float32", MEAN, STD), ours.split)
    served = []
    for recipe in (ours, by_hand):
        with Loader(Arrays(images, np.arange(8)), recipe, Standard(8, batch_size=8)) as loader:
            served.append([batch.clone() for batch, _ in loader])
    assert torch.equal(served[0][0], served[1][0])
