"""MixUp and CutMix: batches in which every image is blended with another, and their soft targets.

MixUp (Zhang et al., ICLR 2018) blends pixels, CutMix (Yun et al., ICCV 2019) pastes a box of the other image; both
blend the targets in the same shares. As in torchvision's `v2.MixUp` and `v2.CutMix` an image is mixed with the one
before it in the batch, whose order is random already, and a batch has one share, drawn from Beta(alpha, alpha).

All choices are functions of (seed, step), so a run that is resumed mixes as one that was never interrupted. Processes
that train together draw the same for a step; give each a seed of its own if they should not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dalirefurb.calls import TakesNumbers, Words
from dalirefurb.checks import CheckedFields, integer, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import BETA_DRAWS, beta, uniforms

_DRAWS = 3 + BETA_DRAWS
"""Uniforms of a step: one for the kind, one pair for the box, and those of the share."""


@dataclass(frozen=True)
class Mix(CheckedFields, metaclass=TakesNumbers):
    """MixUp, CutMix, or either at random, of batches.

        mix = Mix(num_classes=1000, mixup=0.2, cutmix=1.0, label_smoothing=0.1)
        for step, (images, labels) in enumerate(loader):
            images, targets = mix(images, labels, step=step)
            loss = torch.nn.functional.cross_entropy(model(images), targets)

    Attributes:
        num_classes: Number of classes, which is the length of a target.
        mixup: Alpha of MixUp: 0 for never; 0.2 is usual. With `cutmix`, too, each step tosses a coin.
        cutmix: Alpha of CutMix: 0 for never; 1.0 is usual, all shares of the area are equally likely then.
        label_smoothing: Share of a target that all classes divide equally, 0..1. Do not smooth again in the loss.
        seed: Seed of all choices.

    Raises:
        ConfigurationError: If one of them cannot work.
    """

    INSTEAD: ClassVar[Words] = {
        **dict.fromkeys(("alpha", "mixup_alpha", "cutmix_alpha"), "mixup= and cutmix= are alphas, 0 for never"),
        **dict.fromkeys(("prob", "switch_prob"), "each batch is mixed; with both alphas each step tosses a coin"),
        "smoothing": "it is label_smoothing here",
    }

    num_classes: int
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._integer("num_classes", 1, None, "pass the number of classes")
        self._integer("seed", None, None, "any integer will do")
        for name in ("mixup", "cutmix"):
            self._number(name, "from 0 on", lambda alpha: 0 <= alpha < math.inf, "it is the papers' alpha, 0 for never")
        self._share("label_smoothing", "it is a share of the target")

    def __call__(self, images: torch.Tensor, labels: torch.Tensor, *, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix a batch. What is given is not changed; without alphas the images are returned as they are.

        Args:
            images: Images, floating point of shape (B, C, H, W), on any device, in any memory format.
            labels: Classes, an integer type of shape (B,), or targets, floating point of shape (B, num_classes), on the
                same device.
            step: Number of the batch in the run, from 0 on: equal numbers mean equal choices.

        Returns:
            Images, as they were given but mixed, and targets, float32 of shape (B, num_classes); each sums up to 1.

        Raises:
            ConfigurationError: If the tensors are not as said, or the step is none.
        """
        integer("step", step, 0, None, "count the batches of the run")
        _check_tensors(images, labels)
        targets = self._targets(images, labels)
        # Columns are a purpose each, so that none depends on how many another needs.
        draws = uniforms(self.seed, "mix", np.array([0]), np.array([step]), _DRAWS)[0]
        cuts = self.cutmix > 0 and (self.mixup == 0 or draws[0] < 0.5)
        if cuts:
            images, share = _pasted(images, beta(self.cutmix, draws[3:]), draws[1:3].tolist())
        elif self.mixup > 0:
            share = beta(self.mixup, draws[3:])
            images = images.lerp(_before(images), share)
        else:
            share = 0.0
        if share > 0:
            targets = targets.lerp(_before(targets), share)
        if self.label_smoothing > 0:
            targets = targets * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes
        return images, targets

    def _targets(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return a target for each label, float32 of shape (B, num_classes)."""
        rows = len(images)
        soft = labels.is_floating_point()
        shape = (rows, self.num_classes) if soft else (rows,)
        if labels.shape[1:] == images.shape[2:]:
            raise ConfigurationError(
                f"labels must be of whole images, but these are masks of shape {tuple(labels.shape)}, of which no "
                f"blend is defined: leave Mix out"
            )
        if labels.shape != shape or labels.dtype == torch.bool or labels.is_complex():
            remedies = {(rows,): "pass classes as integers", (rows, 1): "pass labels.flatten()"}
            remedies[rows, self.num_classes] = "pass labels.float()"
            remedy = remedies.get(tuple(labels.shape), "several labels of an image cannot be mixed so")
            raise ConfigurationError(
                f"labels must be classes of shape ({rows},) or targets of shape ({rows}, {self.num_classes}), "
                f"got {labels.dtype} of shape {tuple(labels.shape)}: {remedy}"
            )
        if soft:
            return labels.float()
        labels = labels.long()  # Of the other unsigned types torch knows no least.
        # On a GPU it would wait to look at them; there torch itself stops at a class that is none.
        if labels.device.type == "cpu" and rows and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            least, most = int(labels.min()), int(labels.max())
            raise ConfigurationError(
                f"labels must be classes in 0..{self.num_classes - 1}, got {least}..{most}: "
                + ("leave samples without a class out" if least < 0 else "pass a larger num_classes")
            )
        return torch.nn.functional.one_hot(labels, self.num_classes).float()


def _check_tensors(images: torch.Tensor, labels: torch.Tensor) -> None:
    for name, given in (("images", images), ("labels", labels)):
        remedy = "mix what the loader serves; of objects with boxes nothing is mixed, so leave Mix out there"
        remedy = "mix each view by itself" if isinstance(given, tuple) else remedy
        require(isinstance(given, torch.Tensor), name, "a tensor", type(given).__name__, remedy)
    require(
        images.ndim == 4 and images.is_floating_point(),
        "images",
        "floating point of shape (B, C, H, W)",
        f"{images.dtype} of shape {tuple(images.shape)}",
        "mix what the loader serves; volumes are not mixed, so leave Mix out there",
    )
    height, width = images.shape[2:]
    require(height * width > 0, "images", "of a pixel at least", f"{height} x {width}", "see what made them")


def _before(rows: torch.Tensor) -> torch.Tensor:
    """Put before each row's place the row before it, and the last row before the first."""
    return torch.cat([rows[-1:], rows[:-1]])


def _pasted(images: torch.Tensor, share: float, centre: list[float]) -> tuple[torch.Tensor, float]:
    """Paste a box of the image before into each image; return also the share of the area that it has.

    The box has the image's sides times the square root of the share, around a centre that may be anywhere, and ends
    where the image does: so its share of the area may be less than was drawn.
    """
    height, width = images.shape[-2:]
    bounds = []
    for side, place in zip((height, width), centre, strict=True):
        middle, half = int(place * side), int(side * math.sqrt(share) / 2)
        bounds.append((max(0, middle - half), min(side, middle + half)))
    (top, bottom), (left, right) = bounds
    box = (..., slice(top, bottom), slice(left, right))
    mixed = images.clone()
    mixed[box] = _before(images[box])
    return mixed, (bottom - top) * (right - left) / (height * width)
