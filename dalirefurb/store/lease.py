"""Lease: samples that a store has lent, whose slots are pinned until it is released."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images


class Lease:
    """Samples lent by a store; their slots are not reused before `release`. One thread holds it at a time.

    Attributes:
        found: Whether the store held the version asked for, shape (n,).
        images: The images that were found, without places for those that were not.
    """

    __slots__ = ("_on_release", "_samples", "found", "images")

    def __init__(self, found: NDArray[np.bool_], images: Images, on_release: Callable[[], None]) -> None:
        self.found = found
        self.images = images
        self._samples: list[Image | None] | None = None
        self._on_release: Callable[[], None] | None = on_release

    @property
    def samples(self) -> list[Image | None]:
        """Read-only HWC uint8 images, None where not found; empty once released."""
        if self._samples is None:
            images = iter(self.images)
            self._samples = [next(images) if found else None for found in self.found.tolist()]
        return self._samples

    def release(self) -> None:
        """Give the slots back: views taken from `samples` must not be read any more. Twice is as once."""
        on_release, self._on_release, self._samples, self.images = self._on_release, None, [], Images(())
        if on_release is not None:
            on_release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
