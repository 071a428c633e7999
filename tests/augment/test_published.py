"""Are presets of published trainings what the papers say, and do splits keep what `diversity` says?"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, ImageFolder, Loader, MemoryStore, Output, Recipe, Refurbish, Standard, rand_augment
from dalirefurb.augment import (
    CenterCrop,
    ColorJitter,
    Decode,
    GaussianBlur,
    HorizontalFlip,
    Letterbox,
    Mosaic,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    Resize,
    ScaleJitter,
    timm_auto_augment,
)
from dalirefurb.augment.policies.auto_augment import AutoAugmentSecond
from dalirefurb.augment.published import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    airbench,
    convnext,
    deit3,
    large_scale_jitter,
    resnet_strikes_back,
    segmentation,
    simclr,
    yolo,
)
from dalirefurb.errors import ConfigurationError
from tests.augment.drawn_images import kept
from tests.augment.test_public_recipes import IMPORTED, imported
from tests.pictures import picture, write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
PRESETS: dict[str, Recipe] = {
    "resnet_strikes_back": resnet_strikes_back(),
    "resnet_strikes_back A3": resnet_strikes_back(procedure="A3"),
    "deit3": deit3(),
    "deit3 simple": deit3(crop="simple"),
    "convnext": convnext(),
    "airbench96": airbench(),
    "airbench94": airbench(translate=2, cutout=0),
    "large_scale_jitter": large_scale_jitter(640, margin=64),
    "segmentation": segmentation(margin=32),
    "simclr": simclr(),
    "simclr for CIFAR-10": simclr(32, strength=0.5, blur=0.0),
}
CROP = RandomResizedCrop(224, interpolation="bicubic")
BEGIN = [Decode(), CROP, HorizontalFlip()]


def size_of(recipe: Recipe) -> tuple[int, int]:
    """Return the size of the images that are counted: arrays are as large as the output."""
    return (300, 400) if recipe.encoded else recipe.output.sides


# What they are


def test_resnet_strikes_back_is_timms_rand_augment() -> None:
    assert [*resnet_strikes_back().stages] == [*BEGIN, *timm_auto_augment("rand-m7-mstd0.5-inc1")]
    third = resnet_strikes_back(procedure="A3")
    assert third.output == Output(160)
    assert [*third.stages[3:]] == timm_auto_augment("rand-m6-mstd0.5-inc1")
    assert resnet_strikes_back(128, procedure="A3").output.size == 128


def test_deit3_is_3_augment_and_jitter() -> None:
    policy = [*timm_auto_augment("3a"), ColorJitter(0.3, 0.3, 0.3)]
    assert [*deit3().stages] == [*BEGIN, *policy]
    simple = [Decode(), Resize(224, "bicubic"), RandomCrop(224, padding=4, padding_mode="reflect"), HorizontalFlip()]
    assert [*deit3(crop="simple").stages] == [*simple, *policy]
    assert deit3(crop="simple", crop_interpolation="bilinear").stages[1] == Resize(224, "bilinear")


def test_deit3_with_a_simple_crop_splits_at_its_own_stages() -> None:
    names = [stage.name for stage in deit3(64, crop="simple").stages]
    assert names == ["decode", "resize", "random_crop", "flip", "three_augment", "color_jitter"]
    for split in ("resize", "random_crop", 6):
        recipe = deit3(64, crop="simple", split=split)
        assert len(recipe.partial) == (split if isinstance(split, int) else names.index(split))


def test_convnext_is_rand_augment_and_erasing_by_noise() -> None:
    erasing = RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "pixel")
    assert [*convnext().stages] == [*BEGIN, *timm_auto_augment("rand-m9-mstd0.5-inc1"), erasing]
    assert len(convnext(erasing=0.0).stages) == 5


def test_what_is_not_wanted_of_a_recipe_is_left_out_and_the_crops_interpolation_may_be_chosen() -> None:
    assert [*deit3(color_jitter=0).stages] == [*BEGIN, *timm_auto_augment("3a")]
    assert airbench(translate=0).stages[0] == HorizontalFlip()
    assert len(airbench(translate=0).stages) == 2
    for preset in (resnet_strikes_back, deit3, convnext, simclr):
        assert preset(64, crop_interpolation="nearest").stages[1] == RandomResizedCrop(64, interpolation="nearest")
        assert preset(64, split="flip").split == 2


def test_what_is_painted_by_timms_recipes_is_of_the_mean_and_the_deviation_that_are_said() -> None:
    *_, layer, erasing = convnext(mean=(0.5, 0.25, 0.75), std=0.1).stages
    assert layer == timm_auto_augment("rand-m9-mstd0.5-inc1", fill=(128, 64, 191))[-1]
    assert isinstance(erasing, RandomErasing)
    assert (erasing.mean, erasing.std) == ((0.5, 0.25, 0.75), (0.1, 0.1, 0.1))


def test_airbench_mirrors_shifts_and_cuts_out() -> None:
    share = 144 / 1024
    hole = RandomErasing(1.0, (share, share), (1.0, 1.0), "mean", mean=CIFAR10_MEAN, std=CIFAR10_STD)
    crop = RandomCrop(32, 8, 4, padding_mode="reflect")
    assert [*airbench().stages] == [HorizontalFlip(), crop, hole]
    small = RandomCrop(32, 4, 2, padding_mode="reflect")
    assert [*airbench(translate=2, cutout=0).stages] == [HorizontalFlip(), small]
    assert airbench((32, 64)).stages[-1] == replace(hole, scale=(share / 2, share / 2))


def test_the_square_of_airbench_is_whole_and_anywhere() -> None:
    stage = airbench().stages[-1]
    uniforms = np.random.default_rng(3).random((4000, stage.num_uniforms))
    window = stage.draw(uniforms, np.full(4000, 32), np.full(4000, 32))["window"][:, 0]
    assert (window[:, 2:] == 12).all()
    for axis in (0, 1):
        assert {*window[:, axis].tolist()} == {*range(21)}


def test_simclr_is_jitter_grey_and_blur() -> None:
    jitter, blur = ColorJitter(0.8, 0.8, 0.8, 0.2), GaussianBlur(23)
    assert [*simclr().stages] == [*BEGIN, RandomApply(jitter, 0.8), RandomGrayscale(0.2), RandomApply(blur, 0.5)]
    assert simclr().output == Output(224, mean=0.0, std=1.0)
    weak = [*simclr(32, strength=0.5, blur=0.0).stages[3:]]
    assert weak == [RandomApply(ColorJitter(0.4, 0.4, 0.4, 0.1), 0.8), RandomGrayscale(0.2)]
    assert simclr((320, 160)).stages[-1] == RandomApply(GaussianBlur(17), 0.5)


def test_detectors_and_segmentation_jitter_scales() -> None:
    """The numbers of torchvision's references for training."""
    jitter = ScaleJitter(1024, (0.1, 2.0), fill=(123, 117, 104))
    assert [*large_scale_jitter().stages] == [Decode(), jitter, HorizontalFlip()]
    assert large_scale_jitter().output == Output(1024, mean=0.0, std=1.0)
    share = 480 / 544
    wider = ScaleJitter((704, 544), (share * 0.8, share * 1.25), fill=0, place="center")
    made = large_scale_jitter((640, 480), scale=(0.8, 1.25), margin=64, fill=0).stages
    assert [*made] == [Decode(), wider, RandomCrop((640, 480), 64), HorizontalFlip()]
    covering = ScaleJitter(480, (260 / 480, 1040 / 480), cover=True)
    assert [*segmentation().stages] == [Decode(), covering, HorizontalFlip()]
    assert segmentation().output == Output(480)
    assert segmentation(fill=9).stages[1] == replace(covering, fill=9)


def test_yolo_is_a_mosaic_at_twice_the_size_of_which_the_middle_is_left() -> None:
    """The documented numbers; shifts are shares of what is served."""
    affine = {"scale": (0.5, 1.5), "interpolation": "bilinear", "fill": 114}
    last = [HorizontalFlip(0.5), ColorJitter(brightness=0.4, saturation=0.7, hue=0.015)]
    first = [Decode(), Resize(480)]
    whole = RandomAffine(0, (0.05, 0.05), **affine)  # type: ignore[arg-type]
    assert [*yolo().stages] == [*first, Mosaic(1280, 114), whole, CenterCrop(640), *last]
    alone = RandomAffine(0, (0.1, 0.1), **affine)  # type: ignore[arg-type]
    assert [*yolo(mosaic=False).stages] == [*first, Letterbox(640), alone, *last]
    assert yolo().output == Output(640, mean=0.0, std=1.0)
    assert (*yolo().partial,) == (*yolo(mosaic=False).partial,) == (*first,)
    own = yolo((64, 96), translate=0.2, scale=0.25, hsv_h=0.0, hsv_s=0.1, hsv_v=0.2, fliplr=0.0).stages
    assert own[1:4] == (
        Resize(48),
        Mosaic((128, 192), 114),
        RandomAffine(0, (0.1, 0.1), (0.75, 1.25), None, "bilinear", 114),
    )
    assert own[5:] == (HorizontalFlip(0.0), ColorJitter(brightness=0.2, saturation=0.1))


def test_the_last_epochs_without_mosaics_are_served_from_the_same_store(tmp_path: Any) -> None:
    pytest.importorskip("numba")
    source, planner = ImageFolder(write_folder(tmp_path, num_samples=9)), Refurbish(9, batch_size=3, reuse_factor=3)
    with MemoryStore() as store:
        with Loader(source, yolo(32), planner, store) as loader:
            for _ in loader:
                pass
        with Loader(source, yolo(32, mosaic=False), planner, store) as loader:
            loader.set_epoch(1)
            closed = torch.cat([images.clone() for images, _ in loader])
            assert (loader.stats().hits, loader.stats().misses) == (6, 3)
    with Loader(source, yolo(32, mosaic=False), planner) as loader:
        loader.set_epoch(1)
        assert torch.equal(closed, torch.cat([images.clone() for images, _ in loader]))


@pytest.mark.parametrize("margin", [0, 32])
def test_the_shorter_side_is_as_long_as_is_said(margin: int) -> None:
    jitter = segmentation(margin=margin).stages[1]
    uniforms = np.array([[0.0, 0.5, 0.5], [1 - 1e-6, 0.5, 0.5]])
    sizes = jitter.draw(uniforms, np.array([480, 640]), np.array([640, 480]))["size"]
    assert sizes.min(axis=1).tolist() == [260, 1039]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: resnet_strikes_back(procedure="A4"), "procedure must be A1, A2 or A3, got 'A4'"),  # type: ignore[arg-type]
        (lambda: deit3(crop="center"), "crop must be random_resized or simple"),  # type: ignore[arg-type]
        (lambda: airbench(cutout=32), "cutout must be less than 32, got 32"),
        (lambda: airbench((64, 32), cutout=40), "cutout must be less than 32, got 40"),
        (lambda: airbench(cutout=-12), "cutout must be an int of at least 0, got -12"),
        (lambda: yolo(scale=-0.1), "scale must be a number from 0 to below 1, got -0.1"),
        (lambda: yolo(translate=-0.1), "translate must be a number in 0..1, got -0.1"),
        (lambda: segmentation(shorter=(260, 2**24)), "shorter must be two numbers of pixels with 0 < low <= high, got"),
        (lambda: segmentation(shorter=(500, 260)), "shorter must be two numbers of pixels with 0 < low <= high, got"),
        (lambda: large_scale_jitter(scale=(0, 1)), "^scale must be two finite numbers with 0 < low <= high, got"),
        (lambda: large_scale_jitter(scale=(1, float("inf"))), "^scale must be two finite numbers with 0 < low <= high"),
        (lambda: large_scale_jitter(margin=-1), "margin must be an int of at least 0, got -1: pass pixels"),
        (lambda: airbench(translate=-1), "^translate must be an int of at least 0, got -1: 4 is airbench96's"),
        (lambda: airbench(translate="4"), "^translate must be an int of at least 0, got '4'"),  # type: ignore[arg-type]
        (lambda: convnext(erasing=1.5), "random_erasing: probability must be a number in 0..1, got 1.5"),
        (lambda: simclr(blur=-1), "random_gaussian_blur: probability must be a number in 0..1, got -1"),
        (lambda: resnet_strikes_back(0), "size must be a positive integer"),
        (lambda: deit3((224, 160), crop="simple"), "size must be one number with crop='simple'"),
        (lambda: segmentation((480, 320)), "size must be one number"),
        (lambda: segmentation(shorter=(0, 500)), "shorter must be two numbers of pixels"),
        (lambda: segmentation(margin=-1), "margin must be an int of at least 0"),
        (lambda: large_scale_jitter(margin=0.5), "margin must be an int"),  # type: ignore[arg-type]
        (lambda: yolo(mosaic=0.5), "mosaic must be True or False, got 0.5: it is done always or never"),  # type: ignore[arg-type]
        (lambda: yolo(scale=1), "scale must be a number from 0 to below 1, got 1"),
        (lambda: yolo(translate=2), "translate must be a number in 0..1, got 2"),
    ],
)
def test_what_the_papers_do_not_have_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make()


ALL = [resnet_strikes_back, deit3, convnext, airbench, simclr, large_scale_jitter, segmentation, yolo]


@pytest.mark.parametrize("preset", ALL)
def test_the_output_and_the_split_are_those_that_are_said(preset: Any) -> None:
    said = {"dtype": "float16", "mean": 0.25, "std": 0.5, "channels_last": True}
    recipe = preset(**said, **({} if preset is yolo else {"split": 0}))
    assert recipe.output == Output(preset().output.size, **said)
    assert recipe.split == (2 if preset is yolo else 0)


@pytest.mark.parametrize("preset", ALL)
def test_help_tells_every_argument_and_what_is_mixed(preset: Any) -> None:
    told = inspect.getdoc(preset) or ""
    for name in inspect.signature(preset).parameters:
        assert f"\n    {name}: " in told
    assert "Beside it: " in told or "Nothing is mixed" in told


# What splits keep


@pytest.mark.parametrize(
    "name",
    [
        *PRESETS,
        # Recipes that others publish differ in numbers; some are always counted.
        *(pytest.param(name, marks=pytest.mark.weekly if place % 4 else []) for place, name in enumerate(IMPORTED)),
    ],
)
def test_what_a_split_keeps_is_what_is_counted(name: str) -> None:
    recipe = PRESETS[name] if name in PRESETS else imported(name)
    assert recipe.diversity(3) >= 0.95
    for split in {recipe.split, len(recipe.stages) - 1}:
        counted = kept(recipe.at(split), 3, samples=600, size=size_of(recipe))
        assert counted == pytest.approx(recipe.at(split).diversity(3), abs=0.025)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_prints_what_its_splits_keep(name: str) -> None:
    recipe = PRESETS[name]
    assert f"and {recipe.diversity(3):.2f} at 3" in str(recipe)


def test_a_crop_and_a_flip_at_the_end_keep_nearly_everything() -> None:
    recipe = rand_augment(224, order="crop_last")
    assert recipe.diversity(3) > 0.99
    assert kept(recipe, 3, samples=2000) > 0.99


def test_erasing_at_the_end_keeps_nearly_everything_if_it_is_certain_and_else_what_is_before_it_is_needed() -> None:
    erasing = {probability: Recipe([*BEGIN, RandomErasing(probability)], Output(224), 3) for probability in (0.25, 1.0)}
    assert erasing[1.0].diversity(3) > 0.99
    assert kept(erasing[1.0], 3, samples=500) > 0.99
    assert erasing[0.25].diversity(3) < 0.6
    assert convnext().at("random_erasing").diversity(3) < 0.6
    assert convnext().at("flip").diversity(3) < 0.99 < convnext().at("random_resized_crop").diversity(3)


# What is served


def test_another_view_is_of_the_same_samples_and_looks_different(tmp_path: Any) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=12))
    planner = Refurbish(len(source), batch_size=6, reuse_factor=2)
    views = []
    for number in (1, 2):
        recipe = simclr(32).view(number)
        assert all(stage.name.endswith(f"_{number}") for stage in recipe.stages)
        with Loader(source, recipe, planner, MemoryStore()) as loader:
            views.append([(images.clone(), labels.clone()) for images, labels in loader])
    for (one, of_one), (other, of_other) in zip(*views, strict=True):
        assert torch.equal(of_one, of_other)
        assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_view_renames_what_follows_another_stage() -> None:
    recipe = Recipe.from_timm(is_training=True, auto_augment="original").view(2)
    *_, first, second = recipe.stages
    assert (first.name, second.name) == ("auto_augment_1_2", "auto_augment_2_2")
    assert second.follows == first
    assert not isinstance(second, AutoAugmentSecond)
    with pytest.raises(ConfigurationError, match="number must be an int of at least 1, got 0"):
        recipe.view(0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.weekly if " " in name else []) for name in PRESETS]
)
def test_a_preset_serves_the_same_with_a_store_and_without(name: str, tmp_path: Any) -> None:
    recipe = PRESETS[name]
    if recipe.encoded:
        source: Any = ImageFolder(write_folder(tmp_path, num_samples=6))
    else:
        source = Arrays(np.stack([picture(number, height=32, width=32) for number in range(6)]), np.arange(6))
    served = []
    for store in (None, MemoryStore()):
        with Loader(source, recipe, Refurbish(6, batch_size=3, reuse_factor=2), store) as loader:
            served.append(torch.cat([images.clone() for _ in range(2) for images, _ in loader]))
    assert torch.equal(*served)


def test_a_recipe_for_evaluation_is_cached_whole(tmp_path: Any) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=6))
    recipe = Recipe.from_timm(input_size=32)
    assert recipe.final == ()
    with Loader(source, recipe, Standard(6, batch_size=6)) as loader:
        assert next(iter(loader))[0].shape == (6, 3, 32, 32)
