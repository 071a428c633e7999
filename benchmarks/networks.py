"""What learns from the images? Residual networks (He et al., CVPR 2016) in plain torch.

    name         stem                           blocks in a stage   of convolutions    images of   weights
    resnet8      3 x 3, every second            1 1 1               2, 16 channels     32 x 32     78,042
    resnet18     3 x 3                          2 2 2 2             2, 64 channels     32 x 32     11,173,962
    resnet50     3 x 3                          3 4 6 3             3, 64 channels     32 x 32     23,520,842
    imagenet18   7 x 7, every second, pooled    2 2 2 2             2, 64 channels     224 x 224   11,181,642
    imagenet50   7 x 7, every second, pooled    3 4 6 3             3, 64 channels     224 x 224   23,528,522

Each further stage has twice the channels at half the resolution. Weights are counted with 10 classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

_BOTTLENECK = 4


class Block(nn.Module):
    """Convolutions beside a shortcut.

    Args:
        channels: Before the first convolution, and after each.
        sizes: Of each convolution's kernel; one of 3 x 3 takes the stride.
        stride: Of the block.
    """

    def __init__(self, channels: Sequence[int], sizes: Sequence[int], *, stride: int) -> None:
        super().__init__()
        strided = sizes.index(3)
        layers: list[nn.Module] = []
        for place, ((entering, leaving), size) in enumerate(zip(pairwise(channels), sizes, strict=True)):
            layers += [convolution(entering, leaving, size, stride if place == strided else 1), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        alike = stride == 1 and channels[0] == channels[-1]
        self.shortcut = nn.Identity() if alike else convolution(channels[0], channels[-1], 1, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Turn features, shape (B, channels[0], H, W), into (B, channels[-1], H / stride, W / stride)."""
        activated: torch.Tensor = nn.functional.relu(self.body(features) + self.shortcut(features))
        return activated


def convolution(entering: int, leaving: int, size: int, stride: int) -> nn.Module:
    """Convolve and normalise."""
    return nn.Sequential(
        nn.Conv2d(entering, leaving, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(leaving)
    )


def pair(entering: int, width: int, stride: int) -> Block:
    """Build a block of two 3 x 3 convolutions."""
    return Block([entering, width, width], [3, 3], stride=stride)


def bottleneck(entering: int, width: int, stride: int) -> Block:
    """Build a block that works on a quarter of the channels it leaves."""
    return Block([entering, width, width, _BOTTLENECK * width], [1, 3, 1], stride=stride)


def residual(
    stem: Sequence[nn.Module],
    blocks: Sequence[int],
    *,
    width: int,
    num_classes: int,
    block: Callable[[int, int, int], Block] = pair,
) -> nn.Module:
    """Build a network with so many blocks in each stage, the first of which works on `width` channels."""
    layers = [*stem]
    entering = width
    for stage, count in enumerate(blocks):
        for number in range(count):
            layers.append(block(entering, width * 2**stage, 2 if stage > 0 and number == 0 else 1))
            entering = width * 2**stage * (_BOTTLENECK if block is bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, num_classes))


def resnet8(num_classes: int) -> nn.Module:
    """Build a network that costs a CPU core half a millisecond per training image of 32 x 32."""
    return residual(_small_stem(16, 2), (1, 1, 1), width=16, num_classes=num_classes)


def resnet18(num_classes: int) -> nn.Module:
    """Build ResNet-18 with the stem that is usual for images of 32 x 32."""
    return residual(_small_stem(64, 1), (2, 2, 2, 2), width=64, num_classes=num_classes)


def resnet50(num_classes: int) -> nn.Module:
    """Build ResNet-50 likewise."""
    return residual(_small_stem(64, 1), (3, 4, 6, 3), width=64, num_classes=num_classes, block=bottleneck)


def imagenet18(num_classes: int) -> nn.Module:
    """Build ResNet-18."""
    return residual(_large_stem(), (2, 2, 2, 2), width=64, num_classes=num_classes)


def imagenet50(num_classes: int) -> nn.Module:
    """Build ResNet-50."""
    return residual(_large_stem(), (3, 4, 6, 3), width=64, num_classes=num_classes, block=bottleneck)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "imagenet18": imagenet18,
    "imagenet50": imagenet50,
}


def _small_stem(width: int, stride: int) -> list[nn.Module]:
    return [convolution(3, width, 3, stride), nn.ReLU(inplace=True)]


def _large_stem() -> list[nn.Module]:
    return [convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
