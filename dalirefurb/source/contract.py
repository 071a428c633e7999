"""Source: samples by index, each with a label.

A source is read at any indices, in any order, from any thread, and remembers nothing between reads.
"""

from __future__ import annotations

import hashlib
import importlib
import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.calls import Explained, Words, instead
from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images, unpack
from dalirefurb.source.labels import as_array, check_assigned, checked_labels, refuse_mask, warn_of_many
from dalirefurb.source.levels import Levels, ValueRange
from dalirefurb.source.storage import Patience

ANNOTATED = "Annotated"
"""What the fingerprint of a source with targets calls it."""

Numbers = NDArray[np.int64]
"""Whole numbers of some samples, such as their indices, shape (n,)."""

NOT_AT_HAND = np.empty((0, 0, 3), np.uint8)
"""In the place of an image, see `Source.images`."""


class Source(metaclass=Explained):
    """Samples with labels. `source[i]` is one to look at: the decoded image and its label.

    Attributes:
        labels: Labels of the samples, numeric, shape (num_samples, *label_shape).
        encoded: Whether `read` returns encoded images; otherwise it returns HWC images.
        image_shape: Shape (height, width, 3) of the images where every image has that shape, otherwise None.
        classes: Names of the classes that integer labels stand for, where they are known.
        value_range: Numbers of black and white in images deeper than 8 bits, such as (0, 4095) for those of a 12-bit
            scanner that are stored in 16 bits; None: the least and the largest number that each image declares.
        categories: Names of the classes that targets stand for, by their numbers, where they are known.
        volumes: Names of the arrays of each sample, where samples are volumes, see `Volumes`; of images there are none.
        annotations: Targets by name, which move with the images, see `dalirefurb.targets`; None: labels are all.
        prefix: First stages of a recipe, through which the images have gone already, see `Kept`.
        planes: Whether decoded images can lie as their planes, of which RGB is made while the loader works.
    """

    INSTEAD: ClassVar[Words] = {
        "targets": "labels are in source.labels, one row for each sample",
        **dict.fromkeys(
            ("samples", "imgs"),
            "the path of sample i is source.name(i), its label source.labels[i], and source[i] shows it",
        ),
    }

    labels: NDArray[Any]
    encoded: bool
    image_shape: tuple[int, int, int] | None = None
    classes: list[str] | None = None
    value_range: ValueRange | None = None
    categories: Mapping[int, str] | None = None
    volumes: tuple[str, ...] = ()
    annotations: Mapping[str, Any] | None = None
    prefix: tuple[Any, ...] = ()
    planes: bool = False
    _count: int | None = None
    """Of samples that are there to be read, where that is known."""

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "" if self.image_shape is None else f" of {' x '.join(map(str, self.image_shape[:2]))}"
        classes = "" if self.classes is None else f", {len(self.classes):,} classes"
        encoded = "encoded " if self.encoded else ""
        return f"{type(self).__name__}({len(self):,} {encoded}images{shape}{classes})"

    def __getitem__(self, index: SupportsIndex) -> tuple[NDArray[np.uint8], Any]:
        """Return a sample to look at: its image, (height, width, 3) uint8 as a loader decodes it, and its label.

        In the place of the label are targets, if there are any: by name, in pixels of this image. Of volumes it is the
        volume, (channels, depth, height, width), and the labels of its voxels, if there are any.

        Raises:
            IndexError: If there is no such sample.
            SampleError: If it is gone or cannot be decoded.
            OSError: If its storage fails.
        """
        try:
            count, row = len(self), operator.index(index)
        except TypeError:
            raise TypeError(
                f"a source is indexed by one int at a time, got {index!r}: source.subset([...]) is a source of some "
                f"samples, and source.read(np.array([...])) gives several as they are stored"
            ) from None
        if not -count <= row < count:
            raise IndexError(f"an index must be in {-count}..{count - 1}, got {row}: the source has {count} samples")
        row %= count
        (sample,) = self.read(np.array([row]))
        label = self.labels[row]
        if self.volumes:
            arrays = unpack(sample)
            return arrays["image"].copy(), arrays["mask"].copy() if "mask" in arrays else label
        image = self._decoded(row, sample)
        if self.annotations is not None:
            size = image.shape[0], image.shape[1]
            return image, {name: target.one(row, size) for name, target in self.annotations.items()}
        return image, label.item() if np.ndim(label) == 0 else label.copy()

    def _decoded(self, index: int, encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Decode a sample to look at, or copy one that is an image already."""
        if encoded.ndim == 3:
            return np.array(encoded)
        # By name, since what decodes is a floor above: a source by itself needs no DALI.
        reading = importlib.import_module("dalirefurb.reading.inspector")
        try:
            image: NDArray[np.uint8] = reading.decoded(encoded, Levels(self.value_range), self.name(index))
        except reading.Refused as refused:
            raise SampleError(index, self.name(index), refused.reason, lasting=True) from refused
        return image

    def __getattr__(self, name: str) -> Any:
        """Say where names of other libraries are found here."""
        place = instead(type(self), name)
        told = "" if place is None else f": {place}"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{told}", name=name, obj=self)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class by its name, as torchvision's data sets have it; empty where names are not known."""
        return {name: label for label, name in enumerate(self.classes or ())}

    @abstractmethod
    def read(self, indices: Numbers) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        """Read n samples, in the order of `indices`, shape (n,).

        Returns:
            C-contiguous arrays, which can be read-only: encoded bytes of shape (length,), or images of shape
            (height, width, 3). Images of one shape are best returned as one array, (n, height, width, 3).

        Raises:
            SampleError: A sample is of no use, now and later.
            OSError: Storage fails, or a network, about which a loader asks again.
            ConfigurationError: An index is out of range.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """Tell where sample `index` is, for messages."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples and their order, as JSON values, the same wherever they lie.

        A training goes on, on any machine, where this is the same. Pixels are not read, or only a few.
        """

    def content(self) -> dict[str, Any]:
        """Identify what is behind the samples now, as JSON values: by bytes, or by stamps of files on this machine.

        A store serves what it holds only where this is the same. Asked for whenever a loader with a store begins.
        What is not told here is not noticed: where images change under equal names and labels, a source that tells
        nothing, as by default, needs another store, or an emptied one.
        """
        return {}

    def stamps(self, indices: Numbers) -> NDArray[np.uint64] | None:
        """Tell samples as they are from what they were, uint64 of shape (n,), 0 where it cannot be told.

        None: `content` tells it of all together.

        What keeps samples one by one, such as `Kept`, asks for it.
        """
        return None

    def look_anew(self) -> None:
        """Ask for stamps of what is kept once more, when it is next used: a loader begins."""

    def images(self, indices: Numbers) -> Images | None:
        """Return decoded images of encoded samples, upright, as a loader decodes them; None: there are none at hand.

        One that is empty, of shape (0, 0, 3), is not at hand: the sample is to be read.
        """
        return None

    def refusal(self, indices: Numbers, heights: Numbers, widths: Numbers) -> tuple[int, str] | None:
        """Find a sample, of those that were read, that cannot be used though its image can.

        Args:
            indices: Indices of the samples, shape (n,).
            heights: Heights of their images in pixels, upright, shape (n,).
            widths: Widths of their images in pixels, upright, shape (n,).

        Returns:
            Its row, and what is wrong with it; None if there is none.
        """
        return None

    def subset(self, indices: ArrayLike) -> Subset:
        """Return a `Subset` of the samples: a part to train on, or one where rare classes come more often.

        Raises:
            ConfigurationError: If they are not its indices.
        """
        return Subset(self, indices)

    def __add__(self, other: object) -> Source:
        """Return the samples of both as a source, as `Concat` does."""
        return Concat([self, other])  # type: ignore[list-item]

    def _take_labels(self, labels: Any, count: int, items: str, where: Callable[[int], str] | None = None) -> None:
        """Set `labels`, and `classes` where they are names; to be called by a constructor, once it can read."""
        if isinstance(labels, (list, tuple)) and labels and count:
            refuse_mask(labels[0], self.name(0))
        self.labels, self.classes = checked_labels(labels, count, items, where or self.name)
        self._count = count
        warn_of_many(self.classes or (), count)
        self.check_labels()

    def check_labels(self) -> None:
        """Refuse labels that were assigned and are none, or not one for each sample, and such as have to be augmented.

        These are of the sides of the images that they belong to.

        Raises:
            ConfigurationError: If they are no labels, or the first one is of that kind.
        """
        check_assigned(self.labels, self._count)
        if self.volumes:
            return
        with suppress(SampleError, OSError):  # Whether it may be bad is for the loader to say.
            refuse_mask(self.labels[0], self.name(0), lambda: self[0][0].shape[:2])

    def _hash(self, index: int) -> str | None:
        """Hash a sample as it is read; None stands for one that cannot be."""
        try:
            (sample,) = Patience().of(lambda: self.read(np.array([index])), self.name(index))
            return digest_of(np.asarray(sample))
        except (SampleError, OSError):  # What is not decoded before it is an image may be bad, too.
            return None

    def _checked(self, indices: Numbers) -> list[int]:
        """Turn indices into a list, and refuse those out of range."""
        indices = np.asarray(indices)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise ConfigurationError(
                f"indices must lie in 0 .. {len(self) - 1}, but lie in {indices.min()} .. {indices.max()}: "
                "plan for as many samples as the source has"
            )
        values: list[int] = indices.tolist()
        return values


class DerivedSource(Source):
    """Samples of another source, which says of them what a subclass does not say otherwise.

    Raises:
        ConfigurationError: If it is no source.
    """

    def __init__(self, source: Source) -> None:
        require(isinstance(source, Source), "source", "a source", source, "pass such as ImageFolder(path)")
        source.check_labels()
        self._source, self._count = source, len(source)
        self.labels, self.classes, self.categories = source.labels, source.classes, source.categories
        self.encoded, self.image_shape, self.value_range = source.encoded, source.image_shape, source.value_range
        self.annotations, self.volumes, self.prefix = source.annotations, source.volumes, source.prefix
        self.planes = source.planes

    def _theirs(self, indices: Any) -> Any:
        """Return the indices of samples in the other source, of one, or of several, shape (n,)."""
        return indices

    def read(self, indices: Numbers) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        return self._source.read(indices)

    def name(self, index: int) -> str:
        return self._source.name(int(self._theirs(index)))

    def content(self) -> dict[str, Any]:
        return self._source.content()

    def stamps(self, indices: Numbers) -> NDArray[np.uint64] | None:
        return self._source.stamps(self._theirs(indices))

    def look_anew(self) -> None:
        self._source.look_anew()

    def images(self, indices: Numbers) -> Images | None:
        return self._source.images(self._theirs(indices))

    def refusal(self, indices: Numbers, heights: Numbers, widths: Numbers) -> tuple[int, str] | None:
        return self._source.refusal(self._theirs(indices), heights, widths)


class Subset(DerivedSource):
    """Samples of another source, in any order.

    One that is named twice is two samples, each with random numbers, and cached versions, of its own.

    Args:
        source: The other source.
        indices: Which of its samples, integers of shape (n,), at least one; or a mask, bool of shape (num_samples,).

    Raises:
        ConfigurationError: If they are not such indices.
    """

    def __init__(self, source: Source, indices: ArrayLike) -> None:
        super().__init__(source)
        chosen = as_array(indices, "a subset's indices")
        if chosen.dtype == np.bool_ and chosen.shape == (len(source),):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
            raise ConfigurationError(
                f"a subset's indices must be at least one integer, in one dimension, or a mask of {len(source)}, got "
                f"{chosen.dtype} of shape {chosen.shape}: pass such as np.arange(10), or source.labels == 3"
            )
        if chosen.min() < 0 or chosen.max() >= len(source):
            raise ConfigurationError(
                f"a subset's indices must lie in 0 .. {len(source) - 1}, but lie in {chosen.min()} .. {chosen.max()}: "
                f"count from 0, to len(source) - 1 at most"
            )
        self._indices = chosen.astype(np.int64)
        self.labels, self._count = source.labels[self._indices], len(self._indices)
        if source.annotations is not None:
            self.annotations = {name: each.take(self._indices) for name, each in source.annotations.items()}

    def read(self, indices: Numbers) -> Sequence[NDArray[np.uint8]] | NDArray[np.uint8]:
        rows = self._theirs(self._checked(indices))
        try:
            return self._source.read(rows)
        except SampleError as error:
            raise renumbered(error, rows, indices) from error

    def _theirs(self, indices: Any) -> Any:
        return self._indices[indices]

    def fingerprint(self) -> dict[str, Any]:
        digest = hashlib.sha256(self._indices.astype("<i8").tobytes()).hexdigest()
        return {"source": "Subset", "of": self._source.fingerprint(), "samples": len(self), "indices": digest}


_ALIKE: Sequence[tuple[str, Callable[[Source], Any], str]] = (
    ("have gone through the same stages", lambda each: each.prefix, "keep both by Kept(..., form=) of the same stages"),
    ("be encoded alike", lambda each: each.encoded, "TorchDataset(source) is one with decoded images"),
    ("be of volumes, all of them with masks or none, or of images", lambda each: each.volumes, "train on one by one"),
    ("have labels of one shape", lambda each: each.labels.shape[1:], "reshape the one's"),
    ("have the same classes", lambda each: each.classes, "if all mean the same, assign the one's"),
    ("have the same value_range", lambda each: each.value_range, "pass it to both"),
    ("have targets of the same names", lambda each: each.annotations and {*each.annotations}, "give both Annotated"),
    ("have the same categories", lambda each: each.categories, "if all mean the same, assign the one's"),
)
"""What sources that are put together must do, what says whether they do, and what helps."""


class Concat(Source):
    """The samples of several sources, one source after the other.

    Args:
        sources: The sources, at least one; all encoded or none, with labels of one shape, and with the same classes;
            and with targets of the same names, kinds and arguments, or none.

    Raises:
        ConfigurationError: If they do not fit together.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        if isinstance(sources, Source) or not isinstance(sources, Iterable):
            raise ConfigurationError("sources must be several in a list, got one by itself: pass [source, ...]")
        sources = [*sources]
        if not sources:
            raise ConfigurationError("there must be a source to put together, got none: pass at least one")
        first = sources[0]
        for number, source in enumerate(sources):
            if not isinstance(source, Source):
                raise ConfigurationError(
                    f"what is put together must be sources, but number {number} is a {type(source).__name__}: pass "
                    f"such as ImageFolder(path), or TorchDataset(dataset)"
                )
            source.check_labels()
            for what, of, remedy in _ALIKE:
                if (given := of(source)) != (wanted := of(first)):
                    raise ConfigurationError(
                        f"sources that are put together must {what}, but number {number} has {given!r:.80} and the "
                        f"first one {wanted!r:.80}: {remedy}"
                    )
        self._sources = tuple(sources)
        self._ends = np.cumsum([len(source) for source in sources])
        self._count = int(self._ends[-1])
        # Of uint64 and int64 NumPy would make floats.
        labels = [source.labels for source in sources]
        self.labels = np.concatenate([each.astype(np.int64) if each.dtype.kind == "u" else each for each in labels])
        shapes = {source.image_shape for source in sources}
        self.encoded, self.classes, self.value_range = first.encoded, first.classes, first.value_range
        self.image_shape = first.image_shape if len(shapes) == 1 else None
        self.categories, self.volumes, self.prefix = first.categories, first.volumes, first.prefix
        self.planes = any(source.planes for source in sources)
        if first.annotations is not None:
            self.annotations = {
                name: _joined_targets(name, [source.annotations[name] for source in sources if source.annotations])
                for name in first.annotations
            }

    def read(self, indices: Numbers) -> Any:
        """Read samples, each from its source; images stay where their sources have them."""
        rows = np.array(self._checked(indices), np.int64)
        parts = []
        for source, places, own in self._owners(rows):
            try:
                read = source.read(own)
            except SampleError as error:
                raise renumbered(error, own, rows[places]) from error
            parts.append((places, Images.of(read)))
        samples = Images.joined(len(rows), parts)
        return list(samples) if self.encoded else samples

    def name(self, index: int) -> str:
        owner = int(np.searchsorted(self._ends, index, side="right"))
        return self._sources[owner].name(index - self._start(owner))

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "Concat", "of": [source.fingerprint() for source in self._sources]}

    def content(self) -> dict[str, Any]:
        contents = [source.content() for source in self._sources]
        return {"of": contents} if any(contents) else {}

    def stamps(self, indices: Numbers) -> NDArray[np.uint64] | None:
        stamps = np.zeros(len(indices), np.uint64)
        for source, places, own in self._owners(indices):
            if (found := source.stamps(own)) is None:
                return None
            stamps[places] = found
        return stamps

    def look_anew(self) -> None:
        for source in self._sources:
            source.look_anew()

    def images(self, indices: Numbers) -> Images | None:
        parts, some = [], False
        for source, places, own in self._owners(indices):
            found = source.images(own)
            some |= found is not None
            parts.append((places, Images([NOT_AT_HAND] * len(own)) if found is None else found))
        return Images.joined(len(indices), parts) if some else None

    def refusal(self, indices: Numbers, heights: Numbers, widths: Numbers) -> tuple[int, str] | None:
        for source, places, own in self._owners(indices):
            if (refusal := source.refusal(own, heights[places], widths[places])) is not None:
                return int(places[refusal[0]]), refusal[1]
        return None

    def _owners(self, rows: Numbers) -> Iterator[tuple[Source, Numbers, Numbers]]:
        """Yield each source that has some of the rows, which of them, and their indices in it."""
        owners = np.searchsorted(self._ends, rows, side="right")
        # Of no rows at all, what each source says of none.
        for owner in np.unique(owners).tolist() if len(rows) else range(len(self._sources)):
            places = np.flatnonzero(owners == owner)
            yield self._sources[owner], places, rows[places] - self._start(owner)

    def _start(self, owner: int) -> int:
        """Return where a source's samples begin."""
        return int(self._ends[owner]) - len(self._sources[owner])


def _joined_targets(name: str, targets: Sequence[Any]) -> Any:
    """Put the targets of one name of several sources together.

    Raises:
        ConfigurationError: If they are of several kinds, or of other arguments.
    """
    settings = [target.setting() for target in targets]
    first = next((each for each in settings if each[-1] != ()), settings[0])
    for number, each in enumerate(settings):
        # Where there is no object the shape of a row is not told.
        if each != first and each != (*first[:-1], ()):
            raise ConfigurationError(
                f"targets that are put together must be of one kind, with the same arguments, but {name!r} of source "
                f"number {number} is {each} and that of another {first}: make both alike"
            )
    return targets[0].joined(targets[1:])


def renumbered(error: SampleError, inner: Numbers, own: Numbers) -> SampleError:
    """Return the error of a source as that of another, which has the same samples by indices of its own, each (n,)."""
    rows = np.flatnonzero(inner == error.index)
    index = int(own[rows[0]]) if len(rows) else error.index
    return SampleError(index, error.name, error.reason, lasting=error.lasting)


def fingerprint_of_names(source: str, names: Iterable[str], labels: NDArray[Any]) -> dict[str, Any]:
    """Identify samples by their names, in order, and their labels."""
    return {
        "source": source,
        "num_samples": len(labels),
        "names": digest_of("\0".join(names)),
        "labels": digest_of(labels),
    }


def without_targets(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Return what a source's fingerprint says of its images and labels: caches of images know no targets."""
    of = fingerprint.get("of")
    if fingerprint.get("source") == ANNOTATED:
        return without_targets(fingerprint["of"])
    if isinstance(of, dict):
        return {**fingerprint, "of": without_targets(of)}
    return {**fingerprint, "of": list(map(without_targets, of))} if isinstance(of, list) else fingerprint


def spread(count: int, most: int) -> list[int]:
    """Return `most` of `count` rows at most, evenly spaced, the first and the last among them."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, most).astype(np.int64)).tolist()
    return rows


def digest_of(*parts: str | NDArray[Any]) -> str:
    """Hash texts and arrays, these with types and shapes."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, str):
            made.update(os.fsencode(part))
        else:
            made.update(repr((part.dtype.str, part.shape)).encode())
            made.update(np.ascontiguousarray(part).data)
    return made.hexdigest()
