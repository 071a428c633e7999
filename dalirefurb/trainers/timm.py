"""Timm's loader: what timm's `train.py` and `validate.py` ask of the loaders that they train with.

It takes the place of what `timm.data.create_loader` returns. That is a `PrefetchLoader`, which moves batches to the
device, normalises and mixes them; a loader's images are normalised already, so it does the rest. Timm itself is not
imported. Written for timm 1.0.31.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from dalirefurb.checks import require
from dalirefurb.engine.loader_view import LoaderView
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.mix import Mix

Mixup = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""What mixes a batch's images and targets, as `timm.data.Mixup` does."""

Served = tuple[torch.Tensor, torch.Tensor]
"""Images and targets of a batch."""


class TimmLoader(LoaderView):
    """Serves a loader's batches as timm's scripts expect them: on the device, normalised once, mixed.

    All else of it is the loader's, `state_dict` and `load_state_dict` too; timm's checkpoints do not hold a state.

    Args:
        loader: Loader that serves the batches, or a view of one, such as `loader.map(function)`, whose batches are
            images and targets as well.
        device: Device that images and labels are moved to; None: they stay where the loader makes them.
        mixup: What mixes each batch, `timm.data.Mixup(...)` or a `Mix`; None: nothing does. It takes the place of
            `FastCollateMixup`, and is not for validation. A `Mix` draws by the batch's number in the run.

    Raises:
        ConfigurationError: If `loader` is none, or serves indices, too, or `mixup` cannot mix its batches.
    """

    def __init__(
        self, loader: Loader | LoaderView, *, device: torch.device | str | None = None, mixup: Mixup | Mix | None = None
    ) -> None:
        known = isinstance(loader, (Loader, LoaderView))
        require(known, "loader", "a dalirefurb.Loader", loader, "others go to timm as they are")
        indexed = isinstance(loader, Loader) and loader.with_indices
        require(not indexed, "with_indices", "False, since timm's batches are (images, targets)", True, "leave it out")
        if mixup is not None:
            _check_mixup(mixup, loader)
        super().__init__(loader)
        self.device = None if device is None else torch.device(device)
        self._mixup = mixup
        self._mixup_enabled = mixup is not None

    def __iter__(self) -> Iterator[Served]:
        """Begin an epoch.

        Raises:
            ConfigurationError: If a `PrefetchLoader` asks for it, which would normalise the images once more, or a
                batch is not images and targets, or cannot be mixed.
        """
        # A PrefetchLoader asks for nothing else that would tell it from a training loop.
        caller = sys._getframe(1).f_locals.get("self")
        if any(kind.__name__ == "PrefetchLoader" for kind in type(caller).__mro__):
            raise ConfigurationError(
                "images must be normalised once, but a PrefetchLoader normalises what the loader's recipe has "
                "normalised already: give timm the TimmLoader itself, and pass it device=... and mixup=..."
            )
        return map(self._served, iter(self._step, None), self.loader)

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

    def _step(self) -> int:
        """Return the number in the run of the batch that is served next, asked before each; 0 if nothing depends on it.

        Counting them would count one whose way here was interrupted, and which is served again.
        """
        if not isinstance(self._mixup, Mix):
            return 0
        state = self.loader.state_dict()
        return int(state["epoch"] * len(self) + state["batch"])

    def _served(self, step: int, batch: Any) -> Served:
        device = self.device
        images, targets = (each if device is None else each.to(device, non_blocking=True) for each in _checked(batch))
        return self._mixed(images, targets, step)

    def _mixed(self, images: torch.Tensor, targets: torch.Tensor, step: int) -> Served:
        """Mix a batch; where mixing is off, what makes soft targets of the labels goes on doing so."""
        mixup = self._mixup
        if isinstance(mixup, Mix):
            mixup = mixup if self._mixup_enabled else replace(mixup, mixup=0.0, cutmix=0.0)
            return mixup(images, targets, step=step)
        softens = hasattr(mixup, "mixup_enabled")
        if mixup is None or not (self._mixup_enabled or softens):
            return images, targets
        if softens and len(images) % 2:
            raise ConfigurationError(
                f"timm's Mixup needs an even number of images in each batch, got {len(images)}: pass the planner an "
                f"even batch_size and drop_last=True, or mix by dalirefurb.Mix"
            )
        return mixup(images, targets)

    def _levels(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor([255 * value for value in values], device=self.device).view(1, -1, 1, 1)


def _check_mixup(mixup: Mixup | Mix, loader: Loader | LoaderView) -> None:
    """Refuse what cannot mix a loader's batches: it takes samples, or nothing at all, or has too few classes."""
    require(callable(mixup), "mixup", "callable", mixup, "pass timm.data.Mixup(...) or a dalirefurb.Mix")
    if any(kind.__name__ == "FastCollateMixup" for kind in type(mixup).__mro__):
        raise ConfigurationError(
            "mixup must mix whole batches, but FastCollateMixup mixes samples while it collates them: pass timm's "
            "Mixup with the same arguments"
        )
    classes = getattr(mixup, "num_classes", None)
    # What a view makes of labels is not known.
    labels = loader.source.labels if isinstance(loader, Loader) else None
    if not isinstance(classes, int) or labels is None or labels.dtype.kind not in "iu" or labels.ndim != 1:
        return
    least, most = int(labels.min()), int(labels.max())
    if not 0 <= least <= most < classes:
        raise ConfigurationError(
            f"labels must be classes in 0..{classes - 1}, since mixup has num_classes={classes}, got {least}..{most}: "
            + ("number them from 0 on" if least < 0 else f"pass num_classes={most + 1}, or more")
        )


def _checked(batch: Any) -> Served:
    """Return a batch's images and targets; refuse what else a function given to `loader.map` may have made."""
    parts = batch if isinstance(batch, (tuple, list)) else None
    if parts is None or len(parts) != 2 or not all(isinstance(each, torch.Tensor) for each in parts):
        kinds = "" if parts is None else f" of {', '.join(type(each).__name__ for each in parts) or 'nothing'}"
        raise ConfigurationError(
            f"batches must be (images, targets), two tensors, for timm, but the loader's view serves a "
            f"{type(batch).__name__}{kinds}: have the function that is given to map return (images, targets)"
        )
    images, targets = parts
    return images, targets
