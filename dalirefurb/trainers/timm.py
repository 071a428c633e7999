"""Timm's loader: what timm's `train.py` and `validate.py` ask of the loaders that they train with.

It takes the place of what `timm.data.create_loader` returns. That is a `PrefetchLoader`, which moves batches to the
device, normalises and mixes them; a loader's images are normalised already, so it does the rest. Timm itself is not
imported. Written for timm 1.0.31.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dalirefurb.checks import require
from dalirefurb.engine.data_loader_shape import EpochSampler
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.source import Source

Mixup = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""What mixes a batch's images and targets, as `timm.data.Mixup` does."""


class TimmLoader:
    """Serves a loader's batches as timm's scripts expect them: on the device, normalised once, mixed.

    Args:
        loader: Loader that serves the batches.
        device: Device that images and labels are moved to; None: they stay where the loader makes them.
        mixup: What mixes each batch, such as `timm.data.Mixup(...)`; None: nothing does. It takes the place of
            `FastCollateMixup`, and is not for validation.

    Raises:
        ConfigurationError: If `loader` is none, or serves indices, too.
    """

    batch_sampler = None

    def __init__(self, loader: Loader, *, device: torch.device | str | None = None, mixup: Mixup | None = None) -> None:
        require(isinstance(loader, Loader), "loader", "a dalirefurb.Loader", loader, "others go to timm as they are")
        if loader.with_indices:
            raise ConfigurationError(
                "with_indices must be False, since timm's batches are (images, targets), got True: leave it out"
            )
        self.loader = loader
        self.device = None if device is None else torch.device(device)
        self._mixup = mixup
        self._mixup_enabled = mixup is not None

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Begin an epoch.

        Raises:
            ConfigurationError: If a `PrefetchLoader` asks for it, which would normalise the images once more.
        """
        # A PrefetchLoader asks for nothing else that would tell it from a training loop.
        caller = sys._getframe(1).f_locals.get("self")
        if any(kind.__name__ == "PrefetchLoader" for kind in type(caller).__mro__):
            raise ConfigurationError(
                "images must be normalised once, but a PrefetchLoader normalises what the loader's recipe has "
                "normalised already: give timm the TimmLoader itself, and pass it device=... and mixup=..."
            )
        return self._batches(iter(self.loader))

    @property
    def dataset(self) -> Source:
        """The loader's source."""
        return self.loader.source

    @property
    def sampler(self) -> EpochSampler:
        """What has `set_epoch`."""
        return self.loader.sampler

    @property
    def mean(self) -> torch.Tensor:
        """Means that the recipe subtracts, in levels, as a `PrefetchLoader` has them: shape (1, channels, 1, 1)."""
        return self._levels(self.loader.recipe.output.means)

    @property
    def std(self) -> torch.Tensor:
        """Standard deviations that the recipe divides by, in levels, shape (1, channels, 1, 1)."""
        return self._levels(self.loader.recipe.output.stds)

    @property
    def mixup_enabled(self) -> bool:
        """Whether batches are mixed; `train.py --mixup-off-epoch` ends it."""
        return self._mixup_enabled

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        self._mixup_enabled = enabled and self._mixup is not None
        mixup: Any = self._mixup
        if hasattr(mixup, "mixup_enabled"):  # It goes on making soft targets of the labels.
            mixup.mixup_enabled = self._mixup_enabled

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is served next; `train.py` calls it of what it calls `dataset_train`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where training is, see `Loader.state_dict`; timm's checkpoints do not hold it."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, see `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)

    def _batches(self, batches: Iterator[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, targets in batches:
            if self.device is not None:
                images = images.to(self.device, non_blocking=True)
                targets = targets.to(self.device, non_blocking=True)
            if self._mixup is not None and (self._mixup_enabled or hasattr(self._mixup, "mixup_enabled")):
                images, targets = self._mixup(images, targets)
            yield images, targets

    def _levels(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor([255 * value for value in values], device=self.device).view(1, -1, 1, 1)
