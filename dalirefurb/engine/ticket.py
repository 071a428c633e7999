"""Ticket: one run on its way, what it has pinned, shared and computed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.engine.batch_group import Position, Run
from dalirefurb.engine.in_flight import Borrowed, Computed, InFlightVersions
from dalirefurb.image_batch import Image, Images, Rows
from dalirefurb.planning.batch_plan import BatchPlan, Indices
from dalirefurb.reading.samples import Samples
from dalirefurb.store import Lease

_LARGEST = (1 << 31) - 1
"""Bytes of an encoded sample that a store can keep: it counts the sides of what it holds in 32 bits."""


@dataclass
class Ticket:
    """One run on its way.

    Attributes:
        run: Run of batches that the ticket is for.
        plan: Plan of the run: the rows of all its batches.
        rows: Rows of the run to compute, ascending, int64 of shape (n,).
        reading: Future of the source's samples for `rows`, in the order of `rows`.
        computed: The partial images of `rows`.
        stored: Whether the image of each of `rows` is to go into the store, bool of shape (n,).
        lease: Lease of the images that the store lends for the rows in `leased`, or None.
        leased: Rows of the run that the store was asked for, ascending, int64; the store may have found only some of
            them.
        in_flight: Slots of the versions that the run computes, which `InFlightVersions.remove` needs.
        borrowed: Rows whose images are computed for other rows.
        shown: Index of the sample that each row of the run shows, the plan's or what replaces it, int64 of shape (B,).
        images: Final images of the run where one graph, or kernels, make both parts: a DALI tensor list, or what can be
            used like one.
        samples: Samples that the images are computed from, once that has begun; None before.
    """

    run: Run
    plan: BatchPlan
    rows: NDArray[np.int64]
    reading: Future[Samples]
    computed: Computed = field(default_factory=Computed)
    stored: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    lease: Lease | None = None
    leased: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    in_flight: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    borrowed: list[Borrowed] = field(default_factory=list)
    shown: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    images: Any = None
    samples: Samples | None = None

    @property
    def position(self) -> Position:
        """Which batch is the first."""
        return self.run.position

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are made for this run, ascending: neither lent nor borrowed."""
        return self.rows

    def begin(self, samples: Samples) -> Samples:
        """Be given what was read; return what is to be computed from. The runs before it have begun."""
        self.computed.indices = samples.indices
        self.shown = self.samples_shown()
        self.samples = samples
        return samples

    def made(self, places: NDArray[np.int64]) -> Sequence[Image]:
        """Return what the store is to keep of some of `rows`, given their places among these, shape (n,)."""
        return self.computed.images.chosen(places)

    def samples_shown(self) -> Indices:
        """Find out which sample each row shows, shape (B,); asked before the images."""
        if not len(self.rows) and not self.borrowed:
            return self.plan.indices
        shown = self.plan.indices.copy()
        if len(self.rows):
            shown[self.rows] = self.computed.indices
        for rows, computed, places in self.borrowed:
            shown[rows] = computed.indices[places]
        return shown

    def partial_sizes(self) -> NDArray[np.int64]:
        """Return heights and widths of partial images, shape (B, 2); the runs before it have set theirs."""
        sizes = np.empty((len(self.plan.indices), 2), np.int64)
        sizes[self.rows] = self.computed.sizes
        rows, images = self.lent_images()
        sizes[rows] = images.places.sizes
        for rows, computed, places in self.borrowed:
            sizes[rows] = computed.sizes[places]
        return sizes

    def partial_images(self) -> Images:
        """Return the partial image of each row; the runs before it have computed theirs."""
        return Images.joined(len(self.plan.indices), [*self.computed_images(), self.lent_images()])

    def lent_images(self) -> Rows:
        """Return rows that the store lends, with their partial images."""
        if self.lease is None:
            return Rows(self.leased, Images(()))
        return Rows(self.leased[self.lease.found], self.lease.images)

    def computed_images(self) -> list[Rows]:
        """Return rows that the store did not lend, with their partial images; asked once, as above."""
        return [Rows(self.rows, self.computed.images), *self.borrowed_images()]

    def borrowed_images(self) -> list[Rows]:
        """Return those computed for other rows; asked once, when these are there."""
        borrowed = [Rows(rows, computed.images.chosen(places)) for rows, computed, places in self.borrowed]
        self.borrowed = []  # Else each run in a chain of borrowers would keep all before it in memory.
        return borrowed

    def forget(self, in_flight: InFlightVersions) -> None:
        """Have no other run wait for its images."""
        slots, self.in_flight = self.in_flight, np.empty(0, np.int64)
        in_flight.remove(slots)

    def release(self) -> None:
        """Give back what the store lent."""
        if self.lease is not None:
            self.lease.release()


@dataclass
class EncodedTicket(Ticket):
    """One run on its way, whose samples wait encoded: `rows` are all that are not borrowed.

    Attributes:
        held: Whether the store had the sample of each of `rows`, bool of shape (n,).
    """

    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are read for this run, ascending."""
        return self.rows[~self.held]

    def begin(self, samples: Samples) -> Samples:
        """Be given what was read, or the store had; return the samples of all rows, shape (B,)."""
        super().begin(samples)
        self.stored &= np.array([len(sample) <= _LARGEST for sample in samples.as_read], np.bool_)
        self.computed.images = Images(samples.data)
        self.computed.sizes = np.stack((samples.heights, samples.widths), axis=1)
        if self.borrowed:
            sizes = self.partial_sizes()
            samples = Samples([*self.partial_images()], sizes[:, 0], sizes[:, 1], self.shown)
        self.samples = samples
        return samples

    def made(self, places: NDArray[np.int64]) -> Sequence[Image]:
        """Return the files of some rows as they were read, as `Ticket.made` says, each of shape (length, 1, 1)."""
        samples = self.reading.result().as_read
        return [samples[place].reshape(-1, 1, 1) for place in places.tolist()]
