"""Pasting: which objects of one image cover which of another, and what is left of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Polygons, Target
from dalirefurb.targets.ragged import Ragged

Draw = Callable[[int, NDArray[np.int64], NDArray[np.uint8]], None]
"""Draws objects of a row, given as `InstanceMasks.rows` has them, (k, 3), into (k, H, W): 1 where each is."""


def shapes_of(targets: Mapping[str, Target]) -> InstanceMasks | None:
    """Return the shapes of objects by the first target that says them; None if none does."""
    for target in targets.values():
        if isinstance(target, InstanceMasks):
            return target
        if isinstance(target, Polygons):
            return InstanceMasks.of_polygons(target)
    return None


@dataclass(frozen=True)
class Pasted:
    """What becomes of objects of B images, into each of which some of another one's are pasted.

    Rows are in pairs, of an image and of the other one, and objects are numbered in their order.

    Attributes:
        here: Which objects are pasted, or own ones that are not dropped, bool of shape (m,).
        covering: Of each pair the objects that are pasted, rows of `InstanceMasks.rows`.
        covered: Numbers, among those that are here, of those of which something is covered, int64 of shape (c,).
        boxes: What is left of these, xyxy in pixels of the partial image, float64 of shape (c, 4).
    """

    here: NDArray[np.bool_]
    covering: Sequence[NDArray[np.int64]]
    covered: NDArray[np.int64]
    boxes: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        objects: Ragged,
        chosen: Sequence[NDArray[np.bool_]],
        min_visible: float,
        draw: Draw,
        out: NDArray[np.uint8],
        submit: Callable[[Callable[[], Any]], Future[Any]],
    ) -> Pasted:
        """Draw what is pasted, and find out what is left of what it covers.

        Args:
            objects: Objects of the rows, from `InstanceMasks.rows`, of 2 B rows.
            chosen: Of each pair which objects of the other image are pasted, if they have a pixel there, B arrays.
            min_visible: Share of an object's pixels that are left, below which it is dropped.
            draw: Draws objects of a row in its partial image.
            out: 1 where something is pasted, (B, H, W), to be written.
            submit: Has something done by another thread.
        """
        parts = objects.parts()
        jobs = [
            submit(partial(_paste, pair, parts[2 * pair : 2 * pair + 2], those, min_visible, draw, out[pair]))
            for pair, those in enumerate(chosen)
        ]
        pairs = [job.result() for job in jobs]
        covered = [start + numbers for start, (_, _, numbers, _) in zip(objects.offsets[:-1:2], pairs, strict=True)]
        here = np.concatenate([each for stay, pasted, _, _ in pairs for each in (stay, pasted)])
        return cls(
            here,
            [parts[2 * pair + 1][pasted] for pair, (_, pasted, _, _) in enumerate(pairs)],
            np.cumsum(here)[np.concatenate(covered)] - 1,
            np.concatenate([boxes for _, _, _, boxes in pairs]),
        )

    def uncover(self, draw: Draw, pair: int, masks: NDArray[np.uint8]) -> None:
        """Take what is pasted into a pair's first image from masks of its objects, (k, H, W), that `draw` has drawn."""
        objects = self.covering[pair]
        if len(objects) and len(masks):
            cover = np.empty(masks.shape[1:], np.uint8)
            _unite(objects, partial(draw, 2 * pair + 1), cover)
            masks &= 1 - cover


def _unite(
    objects: NDArray[np.int64], draw: Callable[[NDArray[np.int64], NDArray[np.uint8]], None], out: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Draw objects, (k, 3), into one mask, (H, W); return which have a pixel, (k,)."""
    out[...], mask = 0, np.empty((1, *out.shape), np.uint8)
    seen = np.zeros(len(objects), np.bool_)
    for number in range(len(objects)):
        draw(objects[number : number + 1], mask)
        seen[number] = mask.any()
        out |= mask[0]
    return seen


def _paste(
    pair: int,
    objects: Sequence[NDArray[np.int64]],
    chosen: NDArray[np.bool_],
    min_visible: float,
    draw: Draw,
    out: NDArray[np.uint8],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """Paste into one image, see `Pasted.of`.

    Returns:
        Which own objects are not dropped, and which of the others are pasted; the numbers of own ones that stay though
        something of them is covered, (c,), and boxes of what is left of these, (c, 4).
    """
    own, other = objects
    stay, pasted = np.ones(len(own), np.bool_), chosen.copy()
    pasted[chosen] = _unite(other[chosen], partial(draw, 2 * pair + 1), out)
    covered, boxes = list[int](), list[list[int]]()
    mask, beside = np.empty((1, *out.shape), np.uint8), 1 - out
    for number in range(len(own) if pasted.any() else 0):
        draw(2 * pair, own[number : number + 1], mask)
        whole = np.count_nonzero(mask.view(np.bool_))
        mask &= beside
        left = np.count_nonzero(mask.view(np.bool_))
        stay[number] = left == whole or left >= max(1, min_visible * whole)
        if left < whole and stay[number]:
            covered.append(number)
            rows, columns = (np.flatnonzero(mask[0].any(axis=axis)) for axis in (1, 0))
            boxes.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    return stay, pasted, np.array(covered, np.int64), np.array(boxes, np.float64).reshape(-1, 4)
