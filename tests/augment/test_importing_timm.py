"""Do timm's arguments become the stages that timm makes of them, or an error that names them?"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import Arrays, Loader, Output, Recipe, Standard
from dalirefurb.augment import (
    CenterCrop,
    ColorJitter,
    Decode,
    GaussianBlur,
    HorizontalFlip,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    Resize,
    Stage,
    VerticalFlip,
    timm_auto_augment,
)
from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD
from dalirefurb.errors import ConfigurationError

CROP = RandomResizedCrop((224, 224), interpolation="bilinear")
FLIP = HorizontalFlip()
JITTER = ColorJitter(0.4, 0.4, 0.4)


def training(**arguments: Any) -> tuple[Stage, ...]:
    recipe = Recipe.from_timm(is_training=True, **arguments)
    assert recipe.stages[0] == Decode()
    return recipe.stages[1:]


def evaluating(**arguments: Any) -> tuple[Stage, ...]:
    recipe = Recipe.from_timm(**arguments)
    assert recipe.stages[0] == Decode()
    assert recipe.split == len(recipe.stages)
    return recipe.stages[1:]


def test_by_default_training_crops_flips_and_jitters() -> None:
    assert training() == (CROP, FLIP, JITTER)
    assert Recipe.from_timm(is_training=True).output == Output(224)


TRAINING: list[tuple[dict[str, Any], tuple[Stage, ...]]] = [
    (
        {"input_size": (3, 96, 64), "scale": (0.3, 1.0), "ratio": (1, 2), "interpolation": "random"},
        (RandomResizedCrop((96, 64), (0.3, 1.0), (1, 2), "random"), FLIP, JITTER),
    ),
    (
        {"input_size": (96, 64), "ratio": (1, 2), "hflip": 0.3},
        (RandomResizedCrop((96, 64), ratio=(1, 2)), HorizontalFlip(0.3), JITTER),
    ),
    ({"hflip": 0.0, "vflip": 0.3}, (CROP, VerticalFlip(0.3), JITTER)),
    ({"color_jitter": [0.1, 0.2, 0.3]}, (CROP, FLIP, ColorJitter(0.1, 0.2, 0.3))),
    ({"color_jitter_prob": 0}, (CROP, FLIP)),
    ({"color_jitter": (0.1, 0.2, 0.3, 0.4)}, (CROP, FLIP, ColorJitter(0.1, 0.2, 0.3, 0.4))),
    ({"color_jitter": None}, (CROP, FLIP)),
    ({"color_jitter": 0.0, "gaussian_blur_prob": None}, (CROP, FLIP)),
    ({"color_jitter_prob": 0.8}, (CROP, FLIP, RandomApply(JITTER, 0.8))),
    (
        {"color_jitter": 0.0, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
        (CROP, FLIP, RandomGrayscale(0.2), RandomApply(GaussianBlur(23), 0.5)),
    ),
    (
        {"auto_augment": "3a", "grayscale_prob": 0.2, "gaussian_blur_prob": 1.0, "vflip": 0.3},
        (CROP, FLIP, VerticalFlip(0.3), *timm_auto_augment("3a"), JITTER, RandomGrayscale(0.2), GaussianBlur(23)),
    ),
    (
        {"auto_augment": "rand-m9", "interpolation": "nearest"},
        (
            RandomResizedCrop((224, 224), interpolation="nearest"),
            FLIP,
            *timm_auto_augment("rand-m9", interpolation="nearest"),
        ),
    ),
    ({"no_aug": True, "interpolation": "random"}, (Resize(224, "bilinear"), CenterCrop(224))),
    ({"no_aug": True, "input_size": (3, 96, 64)}, (Resize((96, 64)), CenterCrop((96, 64)))),
    ({"no_aug": True, "interpolation": "lanczos"}, (Resize(224, "lanczos"), CenterCrop(224))),
]


@pytest.mark.parametrize(("arguments", "stages"), TRAINING, ids=range(len(TRAINING)))
def test_arguments_of_training_are_stages(arguments: dict[str, Any], stages: tuple[Stage, ...]) -> None:
    assert training(**arguments) == stages


@pytest.mark.parametrize(
    ("config", "jittered"), [("rand-m9-mstd0.5-inc1", False), ("original", False), ("3a", True), ("rand-t3a", True)]
)
def test_policies_fill_with_the_mean_and_take_jitters_place(config: str, jittered: bool) -> None:
    mean = (0.5, 0.25, 0.75)
    policy = timm_auto_augment(config, fill=(128, 64, 191))
    assert training(auto_augment=config, mean=mean) == (CROP, FLIP, *policy, *([JITTER] if jittered else []))


def test_an_argument_that_create_transform_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="no argument 'force_color_jitter': create_transform has none: put a ColorJit"):
        training(force_color_jitter=True)


@pytest.mark.parametrize(("mode", "value"), [("const", "mean"), ("rand", "channel"), ("pixel", "pixel")])
def test_erasing_paints_what_is_0_or_noise_after_normalisation(mode: str, value: Any) -> None:
    arguments: dict[str, Any] = {
        "scale": (0.02, 1 / 3),
        "ratio": (0.3, 1 / 0.3),
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
    }
    *_, stage = training(re_prob=0.25, re_mode=mode, re_count=3)
    assert stage == RandomErasing(0.25, value=value, count=(1, 3), **arguments)
    *_, stage = training(re_prob=0.1, re_mode=mode, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    arguments |= {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    assert stage == RandomErasing(0.1, value=value, **arguments)


def test_noise_of_erasing_has_the_deviation_that_the_pages_name() -> None:
    recipe = Recipe.from_timm(input_size=64, is_training=True, re_prob=1.0, re_mode="pixel")
    recipe = Recipe(recipe.stages[-1:], recipe.output, split=0)
    source = Arrays(np.full((64, 64, 64, 3), 7, np.uint8), np.arange(64))
    with Loader(source, recipe, Standard(64, batch_size=64)) as loader:
        images, _ = next(iter(loader))
    channels = images.movedim(1, 0).flatten(1)
    background = (7 / 255 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    erased = ((channels - background[:, None]).abs() > 1e-3).any(0)
    assert 0.02 < erased.float().mean() < 1 / 3
    assert channels[:, erased].std(1).tolist() == pytest.approx([0.975] * 3, abs=0.012)
    docs = Path(__file__).resolve().parents[2] / "docs"
    assert "deviation of 0.97 to 0.98 in place of 1" in " ".join((docs / "migration" / "timm.md").read_text().split())
    assert "leaves 0.97 to 0.98 of the deviation" in (docs / "recipes.md").read_text()


EVALUATING: list[tuple[dict[str, Any], tuple[Stage, ...]]] = [
    ({}, (Resize(256), CenterCrop(224))),
    (
        {"input_size": (3, 288, 288), "crop_pct": 0.95, "interpolation": "bicubic"},
        (Resize(303, "bicubic"), CenterCrop(288)),
    ),
    ({"crop_pct": 1.0, "crop_mode": "squash"}, (Resize((224, 224)), CenterCrop(224))),
    (
        {"crop_mode": "squash", "input_size": (3, 96, 64), "interpolation": "bicubic"},
        (Resize((109, 73), "bicubic"), CenterCrop((96, 64))),
    ),
]


@pytest.mark.parametrize(("arguments", "stages"), EVALUATING, ids=range(len(EVALUATING)))
def test_arguments_of_evaluation_are_a_resize_and_a_crop(arguments: dict[str, Any], stages: tuple[Stage, ...]) -> None:
    assert evaluating(**arguments) == stages


def test_the_split_can_be_chosen() -> None:
    assert Recipe.from_timm(is_training=True).split == 3
    assert Recipe.from_timm(is_training=True, split="flip").split == 2
    assert Recipe.from_timm(is_training=True, split=0).split == 0


def test_one_channel_is_grey() -> None:
    assert Recipe.from_timm(input_size=(1, 28, 28), mean=(0.5,), std=(0.25,)).output == Output(
        28, "float32", 0.5, 0.25, channels=1
    )


def test_a_prefetcher_that_normalises_later_changes_nothing() -> None:
    assert training(use_prefetcher=True) == training()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"separate": True}, "timm's separate=True cannot be imported: images are not made in several splits"),
    ({"re_num_splits": 3}, "timm's re_num_splits=3 cannot be imported"),
    ({"tf_preprocessing": True}, "timm's tf_preprocessing=True cannot be imported"),
    ({"crop_border_pixels": 4}, "timm's crop_border_pixels=4 cannot be imported"),
    ({"naflex": True}, "timm's naflex=True cannot be imported: images of one size are made"),
    ({"patchify": True}, "timm's patchify=True cannot be imported"),
    ({"normalize": False}, "timm's normalize=False cannot be imported: pass mean="),
    ({"interpolation": "hamming"}, "timm's interpolation='hamming' cannot be imported: choose one of nearest"),
    ({"interpolation": "random"}, "timm's interpolation='random' cannot be imported"),
    ({"train_crop_mode": "rkrc", "is_training": True}, "timm's train_crop_mode='rkrc' cannot be imported: pass 'rrc'"),
    ({"crop_mode": "border"}, "timm's crop_mode='border' cannot be imported: pass 'squash'"),
    ({"input_size": (3, 96, 64)}, "pass crop_mode='squash'"),
    ({"re_mode": "noise"}, "re_mode must be const, rand or pixel"),
    ({"color_jitter": (0.4, 0.4), "is_training": True}, "timm's color_jitter=(0.4, 0.4) cannot be imported: pass one"),
    ({"crop_pct": 1.5}, "crop_pct must be a number above 0, and 1 at most, got 1.5: 0.875 is usual"),
    *(
        ({name: wrong, "is_training": True}, f"{stage}: probability must be a number in 0..1, got {wrong!r}")
        for name, stage in (
            ("color_jitter_prob", "random_color_jitter"),
            ("gaussian_blur_prob", "random_gaussian_blur"),
        )
        for wrong in ("often", 2, (0.5, 1))
    ),
    ({"crop_pct": -0.5}, "crop_pct must be a number above 0, and 1 at most, got -0.5"),
    *(({name: "no"}, f"{name} must be True or False, got 'no'") for name in ("is_training", "no_aug", "normalize")),
    ({"auto_augment": "rand-z9", "is_training": True}, "there is no 'z9' in 'rand-z9'"),
]


@pytest.mark.parametrize(("arguments", "told"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_imported_is_named_with_what_helps(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Recipe.from_timm(**arguments)
    assert told in str(refused.value)


def test_all_that_cannot_be_imported_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"timm's tf_preprocessing=True .*; timm's crop_mode='border' cannot"):
        Recipe.from_timm(tf_preprocessing=True, crop_mode="border")
    with pytest.raises(TypeError) as refused:
        Recipe.from_timm(aa="rand-m9", num_aug_splits=3, crop_mode="border", num_workers=2, re_split=False)
    told = str(refused.value).split("; ")
    assert told[0] == "Recipe.from_timm: there is no argument 'aa': it is auto_augment here"
    assert [each.split("'")[1] for each in told[1:3]] == ["num_aug_splits", "num_workers"]
    assert told[3].startswith("timm's crop_mode='border' cannot be imported")
    assert len(told) == 4


def test_a_pretrained_cfg_is_resolved_before() -> None:
    with pytest.raises(
        TypeError, match=r"pretrained_cfg has 'url', 'num_classes', too: pass \*\*timm.data.resolve_mod"
    ):
        Recipe.from_timm(url="", input_size=(3, 96, 96), num_classes=1000, interpolation="bicubic")
    text = """url file state_dict hf_hub_id hf_hub_filename source architecture tag custom_load test_input_size
        min_input_size fixed_input_size test_crop_pct num_classes label_offset label_names label_descriptions pool_size
        test_pool_size first_conv classifier license description origin_url paper_name paper_ids notes"""
    names = text.split()
    with pytest.raises(TypeError, match=f"has {', '.join(map(repr, names))}, too: pass") as refused:
        Recipe.from_timm(**dict.fromkeys(names, ""))
    assert "; " not in str(refused.value)


OF_A_MODEL = """url file state_dict hf_hub_id hf_hub_filename source architecture tag custom_load test_input_size
min_input_size fixed_input_size test_crop_pct num_classes label_offset label_names label_descriptions pool_size
test_pool_size first_conv classifier license description origin_url paper_name paper_ids notes"""


def test_all_that_only_a_pretrained_cfg_has_is_known() -> None:
    names = OF_A_MODEL.split()
    with pytest.raises(TypeError) as refused:
        Recipe.from_timm(**dict.fromkeys(names))
    assert f"pretrained_cfg has {', '.join(map(repr, names))}, too: pass" in str(refused.value)
    assert "there is no argument" not in str(refused.value)


NEUTRAL: dict[str, Any] = {
    "re_split": False,
    "num_aug_repeats": 0,
    "num_aug_splits": 0,
    "distributed": False,
    "collate_fn": None,
    "pin_memory": False,
    "fp16": False,
    "img_dtype": torch.float32,
    "use_multi_epochs_loader": False,
    "persistent_workers": True,
    "worker_seeding": "all",
    "tf_preprocessing": False,
    "num_batches": None,
    "re_num_splits": 0,
    "separate": False,
    "max_seq_len": 576,
}


OTHERS: dict[str, list[Any]] = {
    "persistent_workers": [False],
    "use_multi_epochs_loader": [True],
    "img_dtype": ["float32"],
    "patchify_channels_last": [True],
    "patchify_flatten": [True],
    "batch_choice_seed": [0],
    "batch_choice_schedule": ["constant"],
    "batch_schedule_spread": [0.65],
    "batch_schedule_random_mix": [0.1],
    "patch_size": [16],
    "device": [],
    "input_size_choices": [],
    "batch_size_choices": [],
    "batch_choice_weights": [],
    "batch_schedule_epochs": [],
}
"""Further values that ask for nothing; None does, of any."""


def test_an_argument_that_asks_for_nothing_is_taken() -> None:
    assert Recipe.from_timm(**NEUTRAL) == Recipe.from_timm()
    for name in {**NEUTRAL, **OTHERS}:
        if name not in ("tf_preprocessing", "re_num_splits", "separate"):
            assert Recipe.from_timm(**{name: None}) == Recipe.from_timm()
    for name, values in OTHERS.items():
        for value in values:
            assert Recipe.from_timm(**{name: value}) == Recipe.from_timm()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_aug_splits", 2),
        ("img_dtype", torch.bfloat16),
        ("collate_fn", len),
        ("num_batches", 7),
        ("patch_size", 14),
        *((name, True) for name in ("re_split", "distributed", "pin_memory", "fp16", "num_aug_repeats")),
        *((name, False) for name in ("patchify_channels_last", "patchify_flatten")),
        ("worker_seeding", "part"),
        ("batch_choice_schedule", "random"),
    ],
)
def test_one_that_asks_for_something_is_not(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"Recipe.from_timm: there is no argument {name!r}: \D* "):
        Recipe.from_timm(**{**NEUTRAL, name: value})


@pytest.mark.parametrize(
    ("function", "file"), [("create_loader", "loader"), ("create_transform", "transforms_factory")]
)
def test_timms_own_defaults_ask_for_nothing(function: str, file: str) -> None:
    spec = importlib.util.find_spec("timm")  # Does not import it, as it needs torchvision.
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    tree = ast.parse((Path(spec.origin).parent / "data" / f"{file}.py").read_text())
    made = next(node for node in tree.body if getattr(node, "name", "") == function)
    assert isinstance(made, ast.FunctionDef)
    arguments = made.args.args[-len(made.args.defaults) :]
    texts = {each.arg: ast.unparse(value) for each, value in zip(arguments, made.args.defaults, strict=True)}
    means = {"IMAGENET_DEFAULT_MEAN": IMAGENET_MEAN, "IMAGENET_DEFAULT_STD": IMAGENET_STD}
    defaults = {name: eval(text, {"torch": torch, **means}) for name, text in texts.items()}
    for own in ("num_workers", "device"):
        defaults.pop(own, None)
    assert Recipe.from_timm(**defaults) == Recipe.from_timm()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("aa", "it is auto_augment here"),
        ("reprob", "it is re_prob here"),
        ("remode", "it is re_mode here"),
        ("recount", "it is re_count here"),
        ("train_interpolation", "it is interpolation here"),
        ("img_size", "it is input_size here"),
        ("cutmix", r"Mix\(num_classes, cutmix=\.\.\.\)"),
        ("fp16", r"with_output\(dtype='bfloat16'\)"),
        ("num_aug_splits", "a sample is served once an epoch"),
        ("worker_seeding", r"the planner draws all numbers: Refurbish\(\.\.\., seed=0\)"),
        *(
            (name, "of another size are another loader's: leave it out")
            for name in (
                *("num_batches", "input_size_choices", "batch_size_choices", "batch_choice_weights"),
                *("batch_schedule_epochs", "batch_choice_seed", "batch_choice_schedule", "batch_schedule_spread"),
                "batch_schedule_random_mix",
            )
        ),
        *(
            (name, "images are made, not patches: leave it out")
            for name in ("patch_size", "max_seq_len", "patchify_channels_last", "patchify_flatten")
        ),
        ("mixup", "dalirefurb.Mix"),
        ("batch_size", "the planner has it"),
        ("distributed", "shards=8"),
        ("device", "TimmLoader"),
        ("pin_memory", "the loader has it"),
        ("img_dtype", "with_output"),
        ("num_aug_repeats", "a sample is served once an epoch"),
        ("re_split", "leave it out"),
        ("fp16", "with_output"),
        ("cutmix", r"dalirefurb.Mix\(num_classes, cutmix="),
        ("force_color_jitter", "in a Recipe of your own"),
        ("worker_seeding", r"Refurbish\(..., seed=0\)"),
        *(
            (name, "images and batches of another size are another loader's")
            for name in ("num_batches", "input_size_choices", "batch_size_choices", "batch_schedule_spread")
        ),
        *(
            (name, "images are made, not patches")
            for name in ("patch_size", "max_seq_len", "patchify_channels_last", "patchify_flatten")
        ),
    ],
)
def test_names_of_timms_command_line_and_of_its_loader_are_known(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Recipe.from_timm(**{name: 0.5})
