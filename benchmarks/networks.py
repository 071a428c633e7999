"""What learns from the images? Residual networks (He et al., CVPR 2016) in plain torch.

    name       stem                      blocks in a stage, channels of the first   made for images of   weights
    resnet8    3 x 3, every second       1 1 1     16                               32 x 32              78,042
    resnet18   3 x 3                     2 2 2 2   64                               32 x 32              11,173,962

Each further stage has twice the channels at half the resolution. Weights are counted with 10 classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, entering: int, leaving: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(entering, leaving, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(leaving, leaving, 3, 1),
        )
        alike = stride == 1 and entering == leaving
        self.shortcut = nn.Identity() if alike else _convolution(entering, leaving, 1, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Turn features, shape (B, entering, H, W), into (B, leaving, H / stride, W / stride)."""
        activated: torch.Tensor = nn.functional.relu(self.body(features) + self.shortcut(features))
        return activated


def residual(blocks: tuple[int, ...], *, width: int, stem_stride: int, num_classes: int) -> nn.Module:
    """Build a network with so many blocks in each stage, `width` channels in the first."""
    layers: list[nn.Module] = [_convolution(3, width, 3, stem_stride), nn.ReLU(inplace=True)]
    entering = width
    for stage, count in enumerate(blocks):
        leaving = width * 2**stage
        for block in range(count):
            layers.append(Block(entering, leaving, stride=2 if stage > 0 and block == 0 else 1))
            entering = leaving
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entering, num_classes))


def resnet8(num_classes: int) -> nn.Module:
    """Build a network that costs a CPU core half a millisecond per training image of 32 x 32."""
    return residual((1, 1, 1), width=16, stem_stride=2, num_classes=num_classes)


def resnet18(num_classes: int) -> nn.Module:
    """Build ResNet-18 with the stem that is usual for images of 32 x 32."""
    return residual((2, 2, 2, 2), width=64, stem_stride=1, num_classes=num_classes)


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"resnet8": resnet8, "resnet18": resnet18}


def _convolution(entering: int, leaving: int, size: int, stride: int) -> nn.Module:
    """Convolve and normalise."""
    return nn.Sequential(
        nn.Conv2d(entering, leaving, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(leaving)
    )
