"""Cache plan: where each row of a batch group gets its partial image, and what the store is to keep."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.engine.batch_group import BatchGroup
from dalirefurb.engine.in_flight import InFlightImages, SharedRows, known
from dalirefurb.image_batch import Image, Images, Rows
from dalirefurb.planning.batch_plan import BatchPlan, Indices
from dalirefurb.reading.reader import Samples
from dalirefurb.store import Lease

_LARGEST = (1 << 31) - 1
"""Bytes of an encoded sample that a store can keep: it counts the sides of what it holds in 32 bits."""


class AskedRows(NamedTuple):
    """Rows that the store was asked for.

    Attributes:
        rows: Rows of the group, ascending, int64 of shape (n,); the store may have found only some of them.
        lease: What it has found, and pinned until the lease is released.
    """

    rows: NDArray[np.int64]
    lease: Lease


@dataclass(frozen=True, eq=False)
class CachePlan:
    """A batch group whose rows are pinned in the store, shared with other rows, or computed.

    Nothing of it changes but what the lease holds. What is not known yet is a future, and known once the groups before
    it have come as far.

    Attributes:
        group: The batch group.
        compute: Rows of the group to compute, ascending, int64 of shape (n,).
        reading: Future of the source's samples for `compute`, in the order of its rows.
        kept: Whether the plan keeps the image of each of `compute` beyond the group, bool of shape (n,).
        asked: Rows that the store was asked for, with its lease; None without a store.
        shared: Rows whose images are computed for other rows.
        computed: Images of `compute`.
        pasted: Of each batch what `CopyPaste` pastes: above 0 where pixels of a row's partner are, uint8 of shape
            (B, H, W). Known before the images, if there is such a stage.
    """

    group: BatchGroup
    compute: NDArray[np.int64]
    reading: Future[Samples]
    kept: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    asked: AskedRows | None = None
    shared: Sequence[SharedRows] = ()
    computed: InFlightImages = field(default_factory=InFlightImages)
    pasted: Future[Sequence[NDArray[np.uint8]]] = field(default_factory=Future)

    @property
    def plan(self) -> BatchPlan:
        """The plan of all rows."""
        return self.group.plan

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are made for this group, ascending, int64: neither pinned nor shared."""
        return self.compute

    def begin(self, samples: Samples) -> Samples:
        """Make known which samples were read; return those to compute from."""
        self.computed.shown.set_result(samples.indices)
        return samples

    @cached_property
    def shown(self) -> Indices:
        """Index of the sample that each row shows, the plan's or what replaces it, int64 of shape (B,)."""
        if not len(self.compute) and not self.shared:
            return self.plan.indices
        shown = self.plan.indices.copy()
        if len(self.compute):
            shown[self.compute] = known(self.computed.shown)
        for rows, images, places in self.shared:
            shown[rows] = known(images.shown)[places]
        return shown

    def partial_sizes(self) -> NDArray[np.int64]:
        """Return heights and widths of all partial images, shape (B, 2), once those to compute are known."""
        sizes = np.empty((len(self.plan.indices), 2), np.int64)
        sizes[self.compute] = known(self.computed.sizes)
        rows, images = self.pinned_images()
        sizes[rows] = images.places.sizes
        for rows, images_elsewhere, places in self.shared:
            sizes[rows] = known(images_elsewhere.sizes)[places]
        return sizes

    def partial_images(self) -> Images:
        """Return the partial image of each row, once they are computed."""
        return Images.joined(len(self.plan.indices), [*self.unpinned_images(), self.pinned_images()])

    def found(self) -> NDArray[np.int64]:
        """Return the rows that the store had, int64."""
        return np.empty(0, np.int64) if self.asked is None else self.asked.rows[self.asked.lease.found]

    def pinned_images(self) -> Rows:
        """Return the rows that the store has, with their partial images."""
        if self.asked is None:
            return Rows(np.empty(0, np.int64), Images(()))
        return Rows(self.found(), self.asked.lease.images)

    def unpinned_images(self) -> list[Rows]:
        """Return all other rows with their partial images, once they are computed."""
        return [Rows(self.compute, known(self.computed.images)), *self.shared_images()]

    def shared_images(self) -> list[Rows]:
        """Return the rows whose images are computed for others, with these images, once they are computed."""
        return [Rows(rows, known(images.images).chosen(places)) for rows, images, places in self.shared]

    def storable(self) -> NDArray[np.int64]:
        """Return the places among `compute` of what the store is to keep: what shows the plan's own sample."""
        return np.flatnonzero(self.kept & (known(self.computed.shown) == self.plan.indices[self.compute]))

    def to_store(self, places: NDArray[np.int64]) -> Sequence[Image]:
        """Return what the store is given of some of `compute`, by their places among these, shape (p,)."""
        return known(self.computed.images).chosen(places)

    def release(self) -> None:
        """Give back what the store has pinned."""
        if self.asked is not None:
            self.asked.lease.release()


@dataclass(frozen=True, eq=False)
class EncodedCachePlan(CachePlan):
    """A batch group whose samples the store keeps encoded: `compute` are all rows that are not shared.

    Attributes:
        held: Whether the store had the sample of each of `compute`, bool of shape (n,).
    """

    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are read for this group, ascending, int64."""
        return self.compute[~self.held]

    def found(self) -> NDArray[np.int64]:
        """Return the rows that the store had, int64."""
        return self.compute[self.held]

    def begin(self, samples: Samples) -> Samples:
        """Make known what was read, or the store had; return the samples of all rows, shape (B,)."""
        super().begin(samples)
        self.computed.images.set_result(Images(samples.data))
        self.computed.sizes.set_result(np.stack((samples.heights, samples.widths), axis=1))
        if not self.shared:
            return samples
        sizes = self.partial_sizes()
        return Samples([*self.partial_images()], sizes[:, 0], sizes[:, 1], self.shown)

    def storable(self) -> NDArray[np.int64]:
        places, files = super().storable(), self.reading.result().as_read
        return places[[len(files[place]) <= _LARGEST for place in places.tolist()]] if len(places) else places

    def to_store(self, places: NDArray[np.int64]) -> Sequence[Image]:
        files = self.reading.result().as_read
        return [files[place].reshape(-1, 1, 1) for place in places.tolist()]
