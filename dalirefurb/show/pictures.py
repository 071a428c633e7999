"""Pictures of what the store holds and of what the network gets, taken from a loader at work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry, geometry
from dalirefurb.augment.output import Output
from dalirefurb.augment.presets import evaluate
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stages.partners import Mosaic
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.loader import Loader
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.store import MemoryStore
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Objects, ObjectTarget, Polygons
from dalirefurb.targets.mask_images import Masks
from dalirefurb.targets.objects import moved_objects
from dalirefurb.targets.ragged import Ragged

_MOST_BAD = 10
"""Samples that are left out before it is given up."""

_log = logging.getLogger("dalirefurb")

Result = TypeVar("Result")

Image = NDArray[np.uint8]
"""HWC, RGB."""

Targets = Mapping[str, Any]
"""What belongs to an image, by name, in its pixels, as in a loader's dictionaries; empty where a source has none."""


Part = tuple[int, NDArray[np.floating]]
"""Of a mosaic: the sample that a part is of, and the corners of its partial image, from the upper left one clockwise,
where they are in the served image; x and y in pixels, (4, 2), beyond its border, too."""


@dataclass(frozen=True)
class Version:
    """One draw of the partial augmentation, and what became of it.

    Attributes:
        cached: The partial image, as the store held it; where the store held the encoded image, what that image shows.
        served: The final images made from it, one for each use.
        cached_targets: What belongs to the partial image.
        served_targets: What belongs to the final images, as the loader serves it.
        parts: With a mosaic what each final image was put together of, all of it in this version; else nothing.
    """

    cached: Image
    served: list[Image]
    cached_targets: Targets
    served_targets: list[Targets]
    parts: list[list[Part]]


@dataclass(frozen=True)
class Pictures:
    """Of one sample.

    Attributes:
        sample: Index of the sample.
        original: The whole image, as the source has it.
        versions: The versions, in the order in which they were drawn.
        targets: What belongs to the whole image.
    """

    sample: int
    original: Image
    versions: list[Version]
    targets: Targets


@dataclass(frozen=True)
class Versions(Planner):
    """Serves a few samples in every epoch; all their versions begin and end together.

    Versions and servings are those that `Refurbish` plans for the first of its groups.

    Attributes:
        samples: Indices of the samples, in order.
        reuse_factor: Uses of a version, at least 1. With 1 a version is stored, too.
    """

    samples: tuple[int, ...] = field(kw_only=True)
    reuse_factor: int = field(kw_only=True)

    def __len__(self) -> int:
        """One batch per epoch."""
        return 1

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """One slot for each sample, shape (1,)."""
        return (len(self.samples),)

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        self._check(epoch, batch)
        rows, age = np.array(self.samples, np.int64), epoch % self.reuse_factor
        return BatchPlan(
            indices=rows,
            version=np.full_like(rows, epoch - age),
            serving=np.full_like(rows, epoch),
            miss=np.full(len(rows), age == 0),
            keep=np.ones(len(rows), np.bool_),
            evict=rows.copy() if age == self.reuse_factor - 1 else rows[:0],
        ).read_only()


class Album(MemoryStore):
    """A store that remembers what it held: the loader works ahead, and evicts versions before they are looked at.

    Attributes:
        pages: A copy of every image that it ever lent, by index and version.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[tuple[int, int], Image] = {}

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Copy samples in, and what the store holds of them out."""
        stored = super().put(indices, versions, samples)
        with self.get(indices, versions) as lease:
            for index, version, image in zip(indices.tolist(), versions.tolist(), lease.samples, strict=True):
                if image is not None:
                    self.pages[index, version] = image.copy()
        return stored


def of_good_samples(source: Source, count: int, make: Callable[[list[int]], Result]) -> Result:
    """Make something of samples, by their indices, that are evenly spaced among those with objects if there are some.

    As many as are wanted, or as there are. Those of which a `SampleError` is raised are left out.

    Raises:
        SampleError: If all are bad, or too many.
    """
    bad: dict[int, SampleError] = {}
    worth = np.arange(len(source))
    for target in (source.annotations or {}).values():
        if isinstance(target, ObjectTarget) and target.rows.counts.any():
            worth = np.flatnonzero(target.rows.counts)  # All of a source's have equally many objects.
    while True:
        left = np.setdiff1d(worth, list(bad))
        places = np.linspace(0, len(left) - 1, min(count, len(left))).round().astype(int)
        try:
            made = make(left[places].tolist())
        except SampleError as error:
            bad[error.index] = error
            if len(left) <= 1 or len(bad) == _MOST_BAD:
                raise
            continue
        for index, left_out in bad.items():
            _log.warning("sample %d (%s) is left out: %s", index, left_out.name, left_out.reason)
        return made


def take_pictures(
    source: Source, recipe: Recipe, samples: Sequence[int], *, reuse_factor: int, seed: int = 0
) -> list[Pictures]:
    """Serve a few samples, each once, for as many epochs as two versions of them last, and keep what passes by."""
    return _Session(source, recipe, samples, reuse_factor, seed).pictures()


def square_image(source: Source, index: int, *, size: int) -> Image:
    """Return the middle of one image, resized to `size` x `size`."""
    pages, _ = _Session(source, evaluate(size, raw=not source.encoded), [index]).serve()
    return pages[index, 0]


def levels(output: Output, images: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Undo the normalisation of an output's images, shape (B, channels, H, W); return (B, H, W, 3)."""
    pixels = images.astype(np.float64).transpose(0, 2, 3, 1) * output.stds + output.means
    return (255 * pixels).round().clip(0, 255).astype(np.uint8).repeat(3 // output.channels, axis=3)


@dataclass(frozen=True)
class _Session:
    """A few samples that are served for as many epochs as two versions of them last."""

    source: Source
    recipe: Recipe
    samples: Sequence[int]
    reuse_factor: int = 1
    seed: int = 0

    def pictures(self) -> list[Pictures]:
        """Return what passes by."""
        cached, served = self.serve()
        parts: list[list[list[Part]]] = [[[]] * len(self.samples)] * len(served)
        if isinstance(self.recipe.partner_stage, Mosaic):
            parts = self._parts(cached)
        made = []
        for row, index in enumerate(self.samples):
            original, label = self.source[index]
            versions = []
            for birth in (0, self.reuse_factor):
                image = original if self.recipe.caches_encoded else cached[index, birth]
                uses = slice(birth, birth + self.reuse_factor)
                targets = self._on_partial(index, birth, image.shape[:2], original.shape[:2])
                moved: list[Targets] = [dict(each[row]) for _, each in served[uses]]
                images, its_parts = [each[row] for each, _ in served[uses]], [each[row] for each in parts[uses]]
                versions.append(Version(image, images, targets, moved, its_parts))
            made.append(Pictures(index, original, versions, {} if self.source.annotations is None else label))
        return made

    def serve(self) -> tuple[dict[tuple[int, int], Image], list[tuple[NDArray[np.uint8], Sequence[Targets]]]]:
        """Return what the store held, and what each epoch served: (B, H, W, 3), and what belongs to each image.

        Raises:
            ConfigurationError: If there are volumes.
            SampleError: If one of the samples is bad.
        """
        source, recipe, samples = self.source, self.recipe, tuple(self.samples)
        if source.volumes or recipe.volumes:
            raise ConfigurationError("pictures are of images, but these are volumes: source[i] is the arrays of one")
        planner = Versions(
            len(source), batch_size=len(samples), seed=self.seed, samples=samples, reuse_factor=self.reuse_factor
        )
        album = Album()
        served = []
        # A loader also looks at others than it serves, which may be bad.
        settings: dict[str, Any] = {
            "prefetch": Prefetch(replicas=1, look_ahead=1),
            "bad_samples": BadSamplePolicy("replace"),
            "target_form": None if source.annotations is None else "dicts",
        }
        nothing: Sequence[Targets] = [{}] * len(samples)
        with album, _unsaid(), Loader(source, recipe, planner, album, **settings) as loader:
            # A batch is stored after it is served, but before the next one is: hence one more.
            for _ in range(2 * self.reuse_factor + 1):
                for images, targets in loader:
                    own = nothing if source.annotations is None else targets
                    served.append((levels(recipe.output, images.float().numpy()), own))
            for bad in loader.bad_samples():
                if bad.index in samples:
                    raise SampleError(bad.index, bad.name, bad.reason)
        return album.pages, served[:-1]

    def _parts(self, cached: Mapping[Any, Image]) -> list[list[list[Part]]]:
        """Return what served images were put together of, by epoch, sample and part.

        The loader says it itself: each partial image's outline is an object of its sample, and goes where objects go.
        """
        outlines: list[list[Any]] = [[] for _ in range(len(self.source))]
        for index in self.samples:
            original, _ = self.source[index]
            for birth in (0, self.reuse_factor):
                height, width = size = cached[index, birth].shape[:2]
                (maps,) = self._places(index, birth, size, original.shape[:2]).maps
                corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]]) @ maps.T
                outlines[index].append([corners[:, :2] / corners[:, 2:]])
        owners = Objects([[index] * len(each) for index, each in enumerate(outlines)])
        outlined = copy(self.source)
        outlined.annotations = {"outline": Polygons(outlines), "sample": owners}
        _, served = replace(self, source=outlined).serve()

        def of_version(number: int, told: Targets) -> list[Part]:
            objects = zip(told["sample"][number::2].tolist(), told["outline"][number::2], strict=True)
            return [(index, np.asarray(outline[0])) for index, outline in objects if outline]  # none behind a horizon

        return [
            [of_version(epoch // self.reuse_factor, each) for each in told] for epoch, (_, told) in enumerate(served)
        ]

    def _places(self, index: int, version: int, size: tuple[int, ...], source_size: tuple[int, ...]) -> Geometry:
        """Return where everything in a partial image of this size comes from."""
        (height, width), (source_height, source_width) = size, source_size
        shown, numbers = np.array([index]), np.array([version])
        return geometry(
            self.recipe,
            seed=self.seed,
            indices=shown,
            shown=shown,
            versions=numbers,
            servings=numbers,
            heights=np.array([source_height]),
            widths=np.array([source_width]),
            partial=(height, width),
        )

    def _on_partial(self, index: int, version: int, size: tuple[int, ...], source_size: tuple[int, ...]) -> Targets:
        """Return what belongs to a partial image of this size, of which the loader serves nothing."""
        targets: Mapping[str, Any] = self.source.annotations or {}
        if not targets:
            return {}
        (height, width), (source_height, source_width) = size, source_size
        places = self._places(index, version, size, source_size)
        shown, sizes = np.array([index]), np.array([source_size], np.int64)
        moved, _ = moved_objects(targets, shown, sizes, places, (height, width))
        made = {name: each.values if isinstance(each, Ragged) else each[0] for name, each in moved.items()}
        at = places.maps[0], places.lines[0]
        for name, target in targets.items():
            if isinstance(target, InstanceMasks):
                drawn = np.empty((len(made[name]), height, width), np.uint8)
                target.draw(made[name], *at, (source_height, source_width), drawn)
                made[name] = drawn
            elif isinstance(target, Masks):
                made[name] = np.empty((height, width), target.dtype)
                target.warp(index, (source_height, source_width), *at, made[name])
        return made


@contextmanager
def _unsaid() -> Iterator[None]:
    """Keep back that samples are replaced: here none is, they are left out."""
    log = logging.getLogger("dalirefurb.reading")
    log.disabled, before = True, log.disabled
    try:
        yield
    finally:
        log.disabled = before
