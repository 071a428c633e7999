"""Thirty training recipes that people publish, with their sources: arguments as facts, to be imported or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from tests.augment.torchvision_stand_ins import T, lightly_blur, lightly_solarization, stand_in

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

RAND_AUGMENT = "rand-m9-mstd0.5-inc1"


class Timm(NamedTuple):
    """Arguments of timm's `create_transform`, and words of the refusal, if there is one."""

    source: str
    arguments: Mapping[str, Any]
    refused: str | None = None


class Torchvision(NamedTuple):
    """Transforms of a module such as torchvision's, what else `from_torchvision` is told, and words of the refusal."""

    source: str
    transforms: Callable[[Any], Any]
    arguments: Mapping[str, Any] = {}
    refused: str | None = None


def _timm(**arguments: Any) -> dict[str, Any]:
    return {"input_size": (3, 224, 224), "is_training": True, "interpolation": "bicubic", **arguments}


def _reference(t: Any, size: int, policy: Any = None, erasing: float = 0.0, interpolation: str = "BILINEAR") -> Any:
    """torchvision's references/classification/presets.py: crop, flip, policy, tensor, erasing."""
    mode = t.InterpolationMode[interpolation]
    return t.Compose(
        [
            t.RandomResizedCrop(size, interpolation=mode),
            t.RandomHorizontalFlip(0.5),
            *([policy(mode)] if policy else []),
            t.PILToTensor(),
            t.ConvertImageDtype(torch.float),
            t.Normalize(**IMAGENET),
            *([t.RandomErasing(p=erasing)] if erasing else []),
        ]
    )


def _view(
    t: Any,
    size: int = 224,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    interpolation: str = "BILINEAR",
    jitter: tuple[float, float, float, float],
    then: Any = (),
) -> Any:
    """A view of lightly's: crop, flips, colour jitter with 0.8, grey with 0.2, then more."""
    return t.Compose(
        [
            t.RandomResizedCrop(size, scale=scale, interpolation=t.InterpolationMode[interpolation]),
            t.RandomHorizontalFlip(p=0.5),
            t.RandomVerticalFlip(p=0.0),
            t.RandomApply([t.ColorJitter(*jitter)], p=0.8),
            t.RandomGrayscale(p=0.2),
            *then,
            t.ToTensor(),
            t.Normalize(**IMAGENET),
        ]
    )


def _cifar(t: Any, *moving: Any, levels: tuple[list[float], list[float]]) -> Any:
    """Transforms that move pixels, and what normalises them by numbers of levels."""
    mean, std = ([level / 255 for level in each] for each in levels)
    return t.Compose([*moving, t.ToTensor(), t.Normalize(mean, std)])


RECIPES: Mapping[str, Timm | Torchvision] = {
    # timm's arguments
    "DeiT": Timm(
        "facebookresearch/deit main.py",
        _timm(auto_augment=RAND_AUGMENT, color_jitter=0.3, re_prob=0.25, re_mode="pixel"),
    ),
    "DeiT III": Timm("facebookresearch/deit augment.py, README_revenge.md", _timm(auto_augment="3a", color_jitter=0.3)),
    "ResNet strikes back A1": Timm("arXiv:2110.00476, table 2", _timm(auto_augment="rand-m7-mstd0.5-inc1")),
    "ResNet strikes back A3": Timm(
        "arXiv:2110.00476, table 2", _timm(input_size=(3, 160, 160), auto_augment="rand-m6-mstd0.5-inc1")
    ),
    "ConvNeXt": Timm(
        "facebookresearch/ConvNeXt main.py", _timm(auto_augment=RAND_AUGMENT, re_prob=0.25, re_mode="pixel", re_count=1)
    ),
    "Swin": Timm(
        "microsoft/Swin-Transformer config.py", _timm(auto_augment=RAND_AUGMENT, re_prob=0.25, re_mode="pixel")
    ),
    "MAE, fine-tuning": Timm(
        "facebookresearch/mae main_finetune.py",
        _timm(auto_augment=RAND_AUGMENT, color_jitter=None, re_prob=0.25, re_mode="pixel"),
    ),
    "EfficientNet-B2 with RandAugment": Timm(
        "timm's docs, training scripts",
        _timm(
            interpolation="random",
            input_size=(3, 256, 256),
            auto_augment="rand-m9-mstd0.5",
            re_prob=0.2,
            re_mode="pixel",
        ),
    ),
    "SE-ResNeXt-26-T": Timm(
        "timm's docs, training scripts", _timm(interpolation="random", re_prob=0.4, re_mode="pixel")
    ),
    "MobileNetV3-Large": Timm(
        "timm's docs, training scripts",
        _timm(interpolation="random", auto_augment="rand-m9-mstd0.5", re_prob=0.2, re_mode="pixel"),
    ),
    "ResNeXt-50 with RandAugment": Timm(
        "timm's docs, training scripts",
        _timm(interpolation="random", auto_augment="rand-m7-mstd0.5-inc1", re_prob=0.4, re_mode="pixel", re_count=3),
    ),
    "ResNet-50 with JSD loss": Timm(
        "timm's docs, training scripts",
        _timm(
            interpolation="random",
            auto_augment=RAND_AUGMENT,
            re_prob=0.6,
            re_mode="pixel",
            re_num_splits=3,
            separate=True,
        ),
        refused="re_num_splits=3",
    ),
    "NaFlexViT": Timm("timm's NaFlex training", _timm(naflex=True), refused="naflex=True"),
    "MMPretrain's Swin": Timm(
        "open-mmlab/mmpretrain imagenet_bs64_swin_224.py",
        _timm(auto_augment=RAND_AUGMENT, re_prob=0.25, re_mode="rand"),
    ),
    "MMPretrain's ResNet strikes back": Timm(
        "open-mmlab/mmpretrain imagenet_bs256_rsb_a12.py", _timm(auto_augment="rand-m7-mstd0.5-inc1")
    ),
    # torchvision's references: presets.py, with what README.md's command lines say
    "torchvision's ResNet-50, first weights": Torchvision("pytorch/vision references", lambda t: _reference(t, 224)),
    "torchvision's ResNet-50, second weights": Torchvision(
        "pytorch/vision references",
        lambda t: _reference(t, 176, lambda mode: t.TrivialAugmentWide(interpolation=mode), 0.1),
    ),
    "torchvision's MobileNetV3": Torchvision(
        "pytorch/vision references", lambda t: _reference(t, 224, lambda mode: t.AutoAugment(interpolation=mode), 0.2)
    ),
    "torchvision's ViT-B/16": Torchvision(
        "pytorch/vision references", lambda t: _reference(t, 224, lambda mode: t.RandAugment(interpolation=mode))
    ),
    "torchvision's EfficientNetV2-S": Torchvision(
        "pytorch/vision references",
        lambda t: _reference(t, 300, lambda mode: t.TrivialAugmentWide(interpolation=mode), 0.1),
    ),
    "torchvision's Swin-T": Torchvision(
        "pytorch/vision references",
        lambda t: _reference(t, 224, lambda mode: t.TrivialAugmentWide(interpolation=mode), 0.25, "BICUBIC"),
        refused="TrivialAugmentWide.interpolation='bicubic'.",
    ),
    "torchvision's AugMix": Torchvision(
        "pytorch/vision references",
        lambda t: _reference(t, 224, lambda mode: t.AugMix(interpolation=mode)),
        refused="AugMix cannot be imported",
    ),
    # self-supervised
    "lightly's SimCLR": Torchvision(
        "lightly-ai/lightly simclr_transform.py",
        lambda t: _view(t, jitter=(0.8, 0.8, 0.8, 0.2), then=[lightly_blur(0.5)]),
    ),
    "lightly's BYOL, second view": Torchvision(
        "lightly-ai/lightly byol_transform.py",
        lambda t: _view(t, jitter=(0.4, 0.4, 0.2, 0.1), then=[lightly_blur(0.1), lightly_solarization(0.2)]),
    ),
    "lightly's DINO, local view": Torchvision(
        "lightly-ai/lightly dino_transform.py",
        lambda t: _view(
            t,
            96,
            scale=(0.05, 0.4),
            interpolation="BICUBIC",
            jitter=(0.4, 0.4, 0.2, 0.1),
            then=[lightly_blur(0.5), lightly_solarization(0.0)],
        ),
    ),
    "lightly's MoCo v1": Torchvision(
        "lightly-ai/lightly moco_transform.py", lambda t: _view(t, scale=(0.2, 1.0), jitter=(0.4, 0.4, 0.4, 0.4))
    ),
    "lightly's two views at once": Torchvision(
        "lightly-ai/lightly multi_view_transform.py",
        lambda t: stand_in("SimCLRTransform", "lightly.transforms.simclr_transform", transforms=[]),
        refused="a recipe makes one view",
    ),
    "MAE, pre-training": Torchvision(
        "facebookresearch/mae main_pretrain.py",
        lambda t: t.Compose(
            [
                t.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=t.InterpolationMode.BICUBIC),
                t.RandomHorizontalFlip(),
                t.ToTensor(),
                t.Normalize(**IMAGENET),
            ]
        ),
    ),
    # CIFAR
    "MMPretrain's ResNet for CIFAR-10": Torchvision(
        "open-mmlab/mmpretrain cifar10_bs16.py",
        lambda t: _cifar(
            t,
            t.RandomCrop(32, padding=4),
            t.RandomHorizontalFlip(0.5),
            levels=([125.307, 122.961, 113.8575], [51.5865, 50.847, 51.255]),
        ),
        {"raw": True},
    ),
    "Wide residual networks": Torchvision(
        "szagoruyko/wide-residual-networks pytorch/main.py",
        lambda t: _cifar(
            t,
            t.Pad(4, padding_mode="reflect"),
            t.RandomHorizontalFlip(),
            t.RandomCrop(32),
            levels=([125.3, 123.0, 113.9], [63.0, 62.1, 66.7]),
        ),
        {"raw": True},
    ),
}
"""Recipes by name."""

STAND_INS = T
