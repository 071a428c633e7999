"""Store: slots for partially augmented samples, and no opinions about them.

    get     lends what is held; anything else is "not found"
    put     copies samples in; a full store declines, it never raises and never overwrites a live version
    reserve lends room that samples can be made in, so that put need not copy them
    evict   hides samples at once; the memory of a lent one is free when its last lease is released

The loader decides what to put and when to evict; a store only executes, and losing one costs only time.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import integer
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.spec import StoreSpec
from dalirefurb.system.resources import amount


class Lease:
    """Samples lent by a store; their slots are not reused before `release`. One thread holds it at a time.

    Attributes:
        found: Whether the store held the version asked for, shape (n,).
        images: The images that were found, without places for those that were not.
    """

    __slots__ = ("_on_release", "found", "images")

    def __init__(self, found: NDArray[np.bool_], images: Images, on_release: Callable[[], None]) -> None:
        self.found = found
        self.images = images
        self._on_release: Callable[[], None] | None = on_release

    @property
    def samples(self) -> list[Image | None]:
        """Read-only HWC uint8 images, None where not found; empty once released."""
        images, held = iter(self.images), self._on_release is not None
        return [next(images) if found else None for found in self.found.tolist()] if held else []

    def release(self) -> None:
        """Give the slots back: views taken from `samples` must not be read any more. Twice is as once."""
        on_release, self._on_release, self.images = self._on_release, None, Images(())
        if on_release is not None:
            on_release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


Keys = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Sample indices and their versions, each of shape (n,)."""

NO_KEYS: Keys = np.empty(0, np.int64), np.empty(0, np.int64)
"""None at all."""


def checked_keys(indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Keys:
    """Return two arrays of shape (n,).

    Raises:
        ConfigurationError: They are not signed integers of one equal length.
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
    return indices.astype(np.int64, copy=False), versions.astype(np.int64, copy=False)


class Taken(NamedTuple):
    """Bytes that a store sets aside, of this machine's memory, pinned memory included, and of a GPU's."""

    host: int = 0
    device: int = 0


class Contents(ABC):
    """What a store holds from `Store.open` to `Store.close`. Safe to use from several threads.

    Its methods do what those of `Store` say, which have looked at the arguments before. Leases outlive `close`; another
    thread may still ask for something after it: then a method raises `not_open()`, or finds nothing, and must not touch
    what a later opening holds.

    Never are more than `spec.slots` versions or `spec.nbytes` bytes held, evicted ones that are still lent included.
    `put` takes samples in order, and an index's older versions go first, even if the new one finds no room. Lent images
    are C-contiguous and read-only. A medium that fails costs hits: `put` answers False, `get` "not found"; only opening
    raises. A store that lasts compares its spec's `slot_shape` and `fingerprint` with what it finds (see
    `spec.differences`), raises `StoreError` if they differ, takes another number of slots, and holds what it kept.

    Attributes:
        spec: What the store is open for.
    """

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec

    @abstractmethod
    def get(self, keys: Keys) -> Lease:
        """Lend samples."""

    def prefetch(self, keys: Keys) -> None:  # noqa: B027 - most stores have nothing to do
        """Prepare to lend samples."""

    @abstractmethod
    def held(self, indices: NDArray[np.int64] | None = None) -> Keys:
        """Tell what is held."""

    def reserve(self, count: int) -> Images | None:
        """Return room for samples."""
        return None

    @abstractmethod
    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Keep samples, which fit the spec."""

    @abstractmethod
    def evict(self, indices: NDArray[np.int64], versions: NDArray[np.int64] | None = None) -> None:
        """Forget indices, or some of their versions."""

    @abstractmethod
    def retain(self, keys: Keys) -> None:
        """Forget all but these versions."""

    def close(self) -> None:  # noqa: B027 - memory goes when nobody refers to it any more
        """Let the room go; called once."""

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples."""
        return self.spec.nbytes

    @abstractmethod
    def __len__(self) -> int:
        """Count the versions held."""


class Store(metaclass=TakesNumbers):
    """Holds partially augmented samples by (index, version). Safe to use from several threads.

    Two versions of one index can be held, but putting a newer one evicts the older ones. To write a kind of store is to
    write its `Contents`, and `_open`, which makes them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._contents: Contents | None = None

    @abstractmethod
    def _open(self, spec: StoreSpec) -> Contents:
        """Set room aside, as `open` says."""

    def open(self, spec: StoreSpec) -> None:
        """Set room aside; for the spec that it is open for already, keep the contents.

        Raises:
            StoreError: The store is open for something else, or what it keeps belongs to something else.
            OutOfMemoryError: The slots exceed the memory at hand.
            ConfigurationError: This kind of store cannot hold such samples.
        """
        with self._lock:
            if self._contents is None:
                self._contents = self._open(spec)
            else:
                self._contents.spec.check_same(spec)

    def takes(self, spec: StoreSpec) -> Taken:
        """Tell how many bytes opening takes, at most; none if the store is open."""
        return self._takes(spec) if self._contents is None else Taken()

    def _takes(self, spec: StoreSpec) -> Taken:
        """Tell so of a store that is not open."""
        return Taken()

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        """Lend the samples of these indices, shape (n,), in these versions, shape (n,).

        Raises:
            StoreError: The store is not open.
        """
        return self._opened().get(checked_keys(indices, versions))

    def prefetch(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Prepare to lend these versions soon, without waiting; those that are not held are ignored."""
        self._opened().prefetch(checked_keys(indices, versions))

    def held(self, indices: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tell what the store holds, at the cost of its slots; or only what it holds of some indices, at theirs.

        Returns:
            Indices and versions, each of shape (n,), in any order, none twice.

        Raises:
            StoreError: The store is not open.
        """
        return self._opened().held(None if indices is None else checked_keys(indices, indices)[0])

    def reserve(self, count: int) -> Images | None:
        """Return room for `count` images of the slots' shape, which are made there and then put without being copied.

        What is put must not be written any more. The room is free when nobody has the images any more and the store
        holds none of them.

        Returns:
            Images whose pixels are undefined; None if the store has no room to give: then they are made elsewhere.

        Raises:
            ConfigurationError: There cannot be so many.
            StoreError: The store is not open.
        """
        return self._opened().reserve(integer("count", count, 0, None, "pass the number of images"))

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Keep n samples, each after evicting its index's older versions: copies, or what was made in the store's room.

        Returns:
            Which are held now, shape (n,): False where there is no room, True also where the version is held
            already (its pixels stay as they are).

        Raises:
            ConfigurationError: A sample does not fit the slots; nothing is stored then.
            StoreError: The store is not open.
        """
        contents, keys = self._opened(), checked_keys(indices, versions)
        contents.spec.check_samples(samples, len(keys[0]))
        return contents.put(keys, samples)

    def evict(self, indices: NDArray[np.int64], versions: NDArray[np.int64] | None = None) -> None:
        """Forget every version of these indices, shape (n,), or only these versions, shape (n,).

        What is not held is ignored, and leases stay valid.
        """
        contents = self._opened()
        if versions is None:
            contents.evict(checked_keys(indices, indices)[0])
        else:
            contents.evict(*checked_keys(indices, versions))

    def retain(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Forget everything but these indices, shape (n,), in these versions, shape (n,); leases stay valid."""
        self._opened().retain(checked_keys(indices, versions))

    def clear(self) -> None:
        """Forget everything; the store stays open and its leases stay valid."""
        self.retain(*NO_KEYS)

    def close(self) -> None:
        """Let the room go, leased views last, and forget everything that is only in memory. Twice is as once."""
        with self._lock:
            contents, self._contents = self._contents, None
            if contents is not None:
                contents.close()

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples, used or not; 0 when closed."""
        contents = self._contents
        return 0 if contents is None else contents.nbytes

    def __len__(self) -> int:
        """Count the versions held; none when closed."""
        contents = self._contents
        return 0 if contents is None else len(contents)

    def __repr__(self) -> str:
        contents = self._contents
        if contents is None:
            return f"{type(self).__name__}(not open)"
        return f"{type(self).__name__}({len(contents):,} of {contents.spec.slots:,} samples, {amount(contents.nbytes)})"

    def __reduce__(self) -> NoReturn:
        raise StoreError(
            "a store cannot be pickled or copied, since its memory and locks belong to one process: make it beside its "
            "loader, in each process, a DiskStore with a path of its own; trainers take the class, such as MemoryStore"
        )

    def _opened(self) -> Contents:
        contents = self._contents
        if contents is None:
            raise not_open()
        return contents

    def __enter__(self) -> Store:
        self._entered_pid = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        # A forked child leaves the store to its parent: a thread that exists only there may have held its lock.
        if os.getpid() == self._entered_pid:
            self.close()


class LayeredContents(Contents):
    """What other open stores hold, which are closed with it: all but `get` and `put`, which a kind of store adds."""

    def __init__(self, spec: StoreSpec, stores: Sequence[Store]) -> None:
        super().__init__(spec)
        self._stores = stores
        # Of this opening: whoever comes late must not touch what a later one holds.
        self._layers = [store._opened() for store in stores]

    def prefetch(self, keys: Keys) -> None:
        for layer in self._layers:
            layer.prefetch(keys)

    def held(self, indices: NDArray[np.int64] | None = None) -> Keys:
        held = [NO_KEYS, *(layer.held(indices) for layer in self._layers)]
        return np.concatenate([keys[0] for keys in held]), np.concatenate([keys[1] for keys in held])

    def evict(self, indices: NDArray[np.int64], versions: NDArray[np.int64] | None = None) -> None:
        for layer in self._layers:
            layer.evict(indices, versions)

    def retain(self, keys: Keys) -> None:
        for layer in self._layers:
            layer.retain(keys)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers)

    def __len__(self) -> int:
        return sum(map(len, self._layers))


def not_open() -> StoreError:
    """Return the error of using a store that is not open."""
    return StoreError("a store must be open to be used, but this one is not: call open first")
