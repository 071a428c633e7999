"""Residual networks (He et al., CVPR 2016) in plain torch, which learn from the images.

    name         stem                           blocks in a stage   of convolutions    images of   weights
    resnet8      3 x 3, every second            1 1 1               2, 16 channels     32 x 32     78,042
    resnet18     3 x 3                          2 2 2 2             2, 64 channels     32 x 32     11,173,962
    imagenet50   7 x 7, every second, pooled    3 4 6 3             3, 64 channels     224 x 224   23,528,522

Each further stage has twice the channels at half the resolution. Weights are counted with 10 classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Architecture:
    """A residual network.

    Attributes:
        blocks: Of each stage.
        width: Channels that the first stage works on.
        block: Of convolutions.
        small: Whether the stem is that for images of 32 x 32.
        stride: Of a small stem.
    """

    blocks: tuple[int, ...]
    width: int = 64
    block: Callable[[int, int, int], Block] = pair
    small: bool = True
    stride: int = 1

    def __call__(self, num_classes: int) -> nn.Module:
        """Build it."""
        size, stride = (3, self.stride) if self.small else (7, 2)
        layers = [convolution(3, self.width, size, stride), nn.ReLU(inplace=True)]
        if not self.small:
            layers.append(nn.MaxPool2d(3, 2, 1))
        entering = self.width
        for stage, count in enumerate(self.blocks):
            for number in range(count):
                width, stride = self.width * 2**stage, 2 if stage > 0 and number == 0 else 1
                layers.append(self.block(entering, width, stride))
                entering = width * (_BOTTLENECK if self.block is bottleneck else 1)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, num_classes))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "resnet8": Architecture((1, 1, 1), width=16, stride=2),
    "resnet18": Architecture((2, 2, 2, 2)),
    "imagenet50": Architecture((3, 4, 6, 3), block=bottleneck, small=False),
}
"""Build a network for a number of classes; of a training image of 32 x 32 resnet8 costs a core half a millisecond."""
