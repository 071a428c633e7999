"""A residual network small enough for a CPU that prepares data, too."""

from __future__ import annotations

import torch
from torch import nn

_SEEN_SIZE = 56
_PATCH = 4


class SmallResNet(nn.Module):
    """A residual network of 78,000 weights that costs a CPU core about half a millisecond per training image.

    Large images are averaged to 56 .. 111 pixels a side, which needs no gradient.
    The stem cuts the result into patches of 4 x 4; three residual blocks follow, the second and third at half the
    resolution and twice the width.

    Args:
        num_classes: Number of classes, which is the length of the output.
        size: Side of the images in pixels, at least 32.
    """

    def __init__(self, num_classes: int, *, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(max(1, size // _SEEN_SIZE)),
            nn.Conv2d(3, 16, _PATCH, stride=_PATCH, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            _ResidualBlock(16, 16, stride=1),
            _ResidualBlock(16, 32, stride=2),
            _ResidualBlock(32, 64, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, num_classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Turn images, shape (B, 3, size, size), into logits, shape (B, num_classes)."""
        logits: torch.Tensor = self.layers(images)
        return logits


class _ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels_in == channels_out
            else nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Turn features, shape (B, C, H, W), into others, at half the resolution where the stride is 2."""
        activated: torch.Tensor = nn.functional.relu(self.body(features) + self.shortcut(features))
        return activated
