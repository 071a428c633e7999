"""Annotated: a source with named targets, which move with its images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError
from dalirefurb.source import Source
from dalirefurb.source.contract import ANNOTATED, DerivedSource, Numbers
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import ObjectTarget, Target
from dalirefurb.targets.mask_images import Masks


class Annotated(DerivedSource):
    """Another source's images, with named targets: boxes, keypoints, polygons, masks, and what belongs to them.

        source = Annotated(FileList(paths, ids), {"boxes": Boxes(boxes), "labels": Objects(classes)})

    Coordinates and masks are those of the images as they are shown: upright, with EXIF orientation applied.

    Args:
        source: The other source. Its labels are not served: `Values(source.labels)` would be a target.
        targets: What each sample has beside its image, by name; they are its `annotations`.

    Raises:
        ConfigurationError: If the targets do not fit the source, or each other.
    """

    annotations: dict[str, Target]

    def __init__(self, source: Source, targets: Mapping[str, Target]) -> None:
        super().__init__(source)
        if source.annotations is not None:
            raise ConfigurationError("source must have no targets yet, but has: pass all of them together")
        if source.volumes:
            raise ConfigurationError(
                "targets move with images, but this source has volumes: pass labels of their voxels as "
                "Volumes(volumes, masks), or labels=, one of each volume"
            )
        check_targets(source, targets)
        self.annotations = dict(targets)

    def fingerprint(self) -> dict[str, Any]:
        targets = {name: [type(target).__name__, target.digest()] for name, target in self.annotations.items()}
        return {"source": ANNOTATED, "of": self._source.fingerprint(), "targets": targets}

    def refusal(self, indices: Numbers, heights: Numbers, widths: Numbers) -> tuple[int, str] | None:
        """Find a sample whose masks are missing, damaged or of another size than its image, or that is refused else."""
        if (refusal := super().refusal(indices, heights, widths)) is not None:
            return refusal
        masks = [target for target in self.annotations.values() if isinstance(target, (Masks, InstanceMasks))]
        for row, (index, *size) in enumerate(zip(indices.tolist(), heights.tolist(), widths.tolist(), strict=True)):
            for target in masks:
                if (misfit := target.misfit(index, (size[0], size[1]))) is not None:
                    return row, misfit
        return None

    def __repr__(self) -> str:
        return f"Annotated({self._source!r}, {', '.join(self.annotations)})"


def check_targets(source: Source, targets: Mapping[str, Target]) -> None:
    """Refuse targets that do not fit a source, or each other.

    Raises:
        ConfigurationError: If they do not.
    """
    remedy = 'pass such as {"boxes": Boxes(boxes)}'
    named = isinstance(targets, Mapping) and targets and all(isinstance(name, str) for name in targets)
    require(bool(named), "targets", "targets by name", targets, remedy)
    counts: dict[str, NDArray[np.int64]] = {}
    for name, target in targets.items():
        kind = type(target).__name__
        require(isinstance(target, Target), f"targets[{name!r}]", "a target of dalirefurb.targets", kind, remedy)
        if len(target) != len(source):
            raise ConfigurationError(
                f"targets[{name!r}] must be of each of the {len(source)} samples, but is of {len(target)}"
            )
        if isinstance(target, ObjectTarget):
            counts[name] = target.rows.counts
    first = next(iter(counts), "")
    for name, own in counts.items():
        if (differ := np.flatnonzero(own != counts[first])).size:
            sample = int(differ[0])
            raise ConfigurationError(
                f"a sample must have equally many objects in all targets, but {source.name(sample)} has "
                f"{counts[first][sample]} in {first!r} and {own[sample]} in {name!r}"
            )
