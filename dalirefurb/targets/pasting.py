"""Pasting: which objects of one image cover which of another, and what is left of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Polygons, Target
from dalirefurb.targets.ragged import Ragged

Draw = Callable[[int, NDArray[np.int64], NDArray[np.uint8]], None]
"""Draws objects of a row, given as `InstanceMasks.rows` has them, (k, 3), into (k, H, W): 1 where each is."""


def shapes_of(targets: Mapping[str, Target]) -> InstanceMasks | None:
    """Return the shapes of objects by the first target that says them; None if none does."""
    found = next((each for each in targets.values() if isinstance(each, (InstanceMasks, Polygons))), None)
    return InstanceMasks.of_polygons(found) if isinstance(found, Polygons) else found


@dataclass(frozen=True)
class Pasted:
    """What becomes of the objects of images, into each of which some of another one's are pasted.

    Attributes:
        objects: Objects of rows in pairs, an image and the other one, as `InstanceMasks.rows` has them, m in all.
        here: Which are pasted, or are own ones that are not dropped, (m,).
        left: Boxes of what is left of those that are covered in part, xyxy in pixels of the partial image, (m, 4); NaN
            elsewhere.
        places: Where everything in served images comes from in partial ones.
    """

    objects: Ragged
    here: NDArray[np.bool_]
    left: NDArray[np.float64]
    places: Geometry

    @classmethod
    def of(cls, objects: Ragged, places: Geometry) -> Pasted:
        """Begin with all of them, none of which is covered."""
        count = len(objects.values)
        return cls(objects, np.ones(count, np.bool_), np.full((count, 4), np.nan), places)

    def paste(
        self, pair: int, chosen: NDArray[np.bool_], min_visible: float, draw: Draw, out: NDArray[np.uint8]
    ) -> None:
        """Find out what becomes of the objects of a pair, and write 1 where something is pasted, else 0.

        Args:
            pair: Number of the pair.
            chosen: Which objects of the other image are pasted, if they have a pixel there.
            min_visible: Share of an object's pixels that are left, below which it is dropped.
            draw: Draws objects of a row in its partial image.
            out: Pixels of the partial image, (H, W), to be written.
        """
        first, second, end = self.objects.offsets[2 * pair : 2 * pair + 3].tolist()
        self.here[second:end] = chosen
        self.here[second:end] = self._unite(pair, draw, out)
        mask, beside = np.empty((1, *out.shape), np.uint8), 1 - out
        for number in range(first, second if out.any() else first):
            draw(2 * pair, self.objects.values[number : number + 1], mask)
            whole = np.count_nonzero(mask.view(np.bool_))
            mask &= beside
            left = np.count_nonzero(mask.view(np.bool_))
            self.here[number] = left == whole or left >= max(1, min_visible * whole)
            if 0 < left < whole:
                rows, columns = (np.flatnonzero(mask[0].any(axis=axis)) for axis in (1, 0))
                self.left[number] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1

    def uncover(self, draw: Draw, pair: int, masks: NDArray[np.uint8]) -> None:
        """Take what is pasted from masks of a pair's own objects, (k, H, W), in the image that `draw` draws in."""
        cover = np.empty(masks.shape[1:], np.uint8)
        if len(masks) and self._unite(pair, draw, cover).any():
            masks &= 1 - cover

    def _unite(self, pair: int, draw: Draw, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Draw what is pasted into one mask, (H, W); tell which of the other's objects are, and have a pixel, (n,)."""
        own = slice(*self.objects.offsets[2 * pair + 1 : 2 * pair + 3])
        out[...], mask, seen = 0, np.empty((1, *out.shape), np.uint8), self.here[own].copy()
        for number in np.flatnonzero(seen).tolist():
            draw(2 * pair + 1, self.objects.values[own][number : number + 1], mask)
            seen[number] = mask.any()
            out |= mask[0]
        return seen
