"""What does a store promise? Slots for partially augmented samples, and no opinions about them.

    get     lends what is held; anything else is "not found"
    put     copies samples in; a full store declines, it never raises and never overwrites a live version
    evict   hides samples at once; the memory of a lent one is free when its last lease is released

The loader decides what to put and when to evict; a store only executes, and losing one costs only time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, StoreError

Image = NDArray[np.uint8]
"""A partially augmented sample, HWC."""

Keys = tuple[list[int], list[int]]
"""Sample indices and their versions, each of length n."""


@dataclass(frozen=True)
class Opening:
    """What a store is opened for.

    Attributes:
        slot_shape: (H, W, C) of every sample, or None when samples vary in size and share one byte arena.
        slots: The most versions held at one time, evicted ones that are still lent included.
        fingerprint: Identifies the source and the partial augmentation that the samples come from.
        arena_bytes: Size of the arena; 0 with fixed slots.
    """

    slot_shape: tuple[int, int, int] | None
    slots: int
    fingerprint: str
    arena_bytes: int = 0

    def __post_init__(self) -> None:
        shape = self.slot_shape
        if shape is not None and (len(shape) != 3 or min(shape) < 1):
            raise ConfigurationError(
                f"slot_shape must be (height, width, channels), each at least 1, but is {shape}: "
                "pass None if samples vary in size"
            )
        if self.slots < 0:
            raise ConfigurationError(f"slots must be at least 0, but is {self.slots}: pass the plan's peak_slots")
        if (shape is None) != (self.arena_bytes > 0):
            raise ConfigurationError(
                f"arena_bytes must be positive if slot_shape is None, otherwise 0, but is {self.arena_bytes} "
                f"with slot_shape {shape}: size the arena, or fix the slots"
            )

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples."""
        return self.arena_bytes if self.slot_shape is None else self.slots * math.prod(self.slot_shape)

    def check_same(self, other: Opening) -> None:
        """Refuse to open an open store for something else.

        Raises:
            StoreError: An attribute differs; the message names each with both values.
        """
        pairs = ((field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        differences = [f"{name} {mine!r}, not {theirs!r}" for name, mine, theirs in pairs if mine != theirs]
        if differences:
            raise StoreError(f"the store is open for {'; '.join(differences)}: close it first")

    def check_samples(self, samples: Sequence[Image], count: int) -> None:
        """Refuse samples that do not fit the slots.

        Raises:
            ConfigurationError: There are not `count`, or one is no HWC uint8 image of the slots' shape.
        """
        if len(samples) != count:
            raise ConfigurationError(f"put needs one sample per index, but got {len(samples)} for {count} indices")
        for row, sample in enumerate(samples):
            if sample.dtype != np.uint8 or sample.ndim != 3 or sample.size == 0:
                raise ConfigurationError(
                    f"samples must be non-empty HWC uint8 images, but number {row} is {sample.dtype} of "
                    f"shape {sample.shape}: end the partial augmentation with a stage that returns HWC uint8"
                )
            if self.slot_shape is not None and sample.shape != self.slot_shape:
                raise ConfigurationError(
                    f"samples must have the slots' shape {self.slot_shape}, but number {row} has "
                    f"{sample.shape}: open the store with slot_shape=None if samples vary in size"
                )


def checked_keys(indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Keys:
    """Turn two integer arrays of shape (n,) into lists.

    Raises:
        ConfigurationError: They are not integers of one equal length.
    """
    indices, versions = np.asarray(indices), np.asarray(versions)
    if indices.ndim != 1 or indices.shape != versions.shape:
        raise ConfigurationError(
            f"indices and versions must be one-dimensional and equally long, but have shapes "
            f"{indices.shape} and {versions.shape}: pass one version per index"
        )
    if indices.size and not indices.dtype.kind == versions.dtype.kind == "i":
        raise ConfigurationError(
            f"indices and versions must be signed integers, but are {indices.dtype} and {versions.dtype}: "
            "convert them with .astype(np.int64)"
        )
    return indices.tolist(), versions.tolist()


class Lease:
    """Samples lent by a store; their slots are not reused before `release`. One thread holds it at a time.

    Attributes:
        found: Whether the store held the version asked for, shape (n,).
        samples: Read-only HWC uint8 views of the slots, None where not found; empty once released.
    """

    __slots__ = ("_on_release", "found", "samples")

    def __init__(self, found: NDArray[np.bool_], samples: list[Image | None], on_release: Callable[[], None]) -> None:
        self.found = found
        self.samples = samples
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Give the slots back: views taken from `samples` must not be read any more. Twice is as once."""
        on_release, self._on_release, self.samples = self._on_release, None, []
        if on_release is not None:
            on_release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Store(ABC):
    """Holds partially augmented samples by (index, version). Safe to use from several threads.

    Two versions of one index can be held, but putting a newer one evicts the older ones.
    """

    @abstractmethod
    def open(
        self,
        slot_shape: tuple[int, int, int] | None,
        *,
        slots: int,
        fingerprint: str,
        arena_bytes: int = 0,
    ) -> None:
        """Set memory aside; with the arguments it is open with already, keep the contents. See `Opening`.

        Raises:
            StoreError: The store is open for something else.
            OutOfMemoryError: The slots exceed the memory at hand.
        """

    @abstractmethod
    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        """Lend the samples of these indices, shape (n,), in these versions, shape (n,); nothing is copied.

        Raises:
            StoreError: The store is not open.
        """

    def prefetch(  # noqa: B027 - most stores have nothing to do
        self, indices: NDArray[np.int64], versions: NDArray[np.int64]
    ) -> None:
        """Prepare to lend these versions soon, without waiting; those that are not held are ignored."""

    @abstractmethod
    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Copy n samples in, each after evicting its index's older versions.

        Returns:
            Which are held now, shape (n,): False where there is no room, True also where the version is held
            already (its pixels stay as they are).

        Raises:
            ConfigurationError: A sample does not fit the slots; nothing is stored then.
            StoreError: The store is not open.
        """

    @abstractmethod
    def evict(self, indices: NDArray[np.int64]) -> None:
        """Forget every version of these indices, shape (n,); indices that are not held are ignored."""

    @abstractmethod
    def retain(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Forget everything but these indices, shape (n,), in these versions, shape (n,); leases stay valid."""

    def clear(self) -> None:
        """Forget everything; the store stays open and its leases stay valid."""
        self.retain(np.empty(0, np.int64), np.empty(0, np.int64))

    @abstractmethod
    def close(self) -> None:
        """Forget everything and let the memory go, leased views last; closing twice does nothing."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes set aside for samples, used or not; 0 when closed."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the versions held."""

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
