"""Batch tensors: what the training loop gets of a batch, of labels or of targets.

A source of labels       images, labels (B, ...)
one target for each      images, that target: masks (B, H, W), or values (B, ...)
several targets          images, a dictionary for each image, as torchvision's detection models take them; or one for
                         the batch, as Ultralytics' do
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.output import Dtype, Output
from dalirefurb.checks import choice
from dalirefurb.engine.finisher import Served
from dalirefurb.engine.loader_view import Batch
from dalirefurb.engine.target_maker import BatchTargets
from dalirefurb.engine.volumes import VolumeBatch
from dalirefurb.errors import ConfigurationError
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Boxes, Keypoints, Objects, ObjectTarget, Target
from dalirefurb.targets.objects import rows_of
from dalirefurb.targets.ragged import Ragged

TargetForm = Literal["dicts", "ultralytics"]
"""A dictionary for each image; or one for the batch, whose objects lie one after the other."""

ADDED, FLAT = ("index", "matrix", "source_size"), ("bboxes", "batch_idx", "cls")
"""Names beside those of targets, in each image's dictionary, and in that of a batch."""

Put = Callable[[torch.Tensor], torch.Tensor]
"""Puts a tensor into pinned memory, or on a GPU, or leaves it where it is."""


class TargetTensors:
    """Puts the targets of a batch together.

    Args:
        annotations: Targets of the source, by name.
        form: What several targets become; None: a dictionary for each image.
        output: Output of the recipe, whose size normalises coordinates where the form wants that.

    Raises:
        ConfigurationError: If the targets do not fit the form.
    """

    def __init__(self, annotations: Mapping[str, Target], form: TargetForm | None, output: Output) -> None:
        if form is not None:
            choice("target_form", form, TargetForm, "leave it out for torchvision's form")
        self._alone: str | None = None
        if form is None and len(annotations) == 1:
            ((name, target),) = annotations.items()
            self._alone = None if isinstance(target, ObjectTarget) else name
        self._form = form
        boxes = [name for name, target in annotations.items() if isinstance(target, Boxes)]
        self._boxes = boxes[0] if boxes else ""
        self._keypoints = {name for name, target in annotations.items() if isinstance(target, Keypoints)}
        height, width = output.sides
        self._sides = torch.tensor([width, height], dtype=torch.float32)
        if form == "ultralytics":
            classes = annotations.get("labels")
            numbers = isinstance(classes, Objects) and math.prod(classes.rows.values.shape[1:]) == 1
            if len(boxes) != 1 or not numbers:
                raise ConfigurationError(
                    f'target_form="ultralytics" needs one target of boxes, and the class of each object, a number, '
                    f'under the name "labels", got {", ".join(annotations)}: pass Annotated(..., {{"boxes": '
                    f'Boxes(boxes), "labels": Objects(classes)}})'
                )
            if masks := [name for name, target in annotations.items() if isinstance(target, InstanceMasks)]:
                raise ConfigurationError(
                    f'target_form="ultralytics" has no masks of objects yet, but there are {", ".join(masks)}: pass '
                    f"outlines as Polygons, or leave target_form out"
                )
        added = FLAT if form == "ultralytics" else () if self._alone is not None else ADDED
        if taken := sorted({*added} & {*annotations}):
            raise ConfigurationError(f"targets must have other names than {', '.join(taken)}, which a batch has anyway")

    def of(self, made: BatchTargets, indices: NDArray[np.int64], put: Put) -> Any:
        """Return the targets of a batch.

        Args:
            made: The targets.
            indices: Indices of the samples, (B,).
            put: Puts a tensor where the batch is; of all objects together, before they are parted.
        """
        columns = {name: _tensors(value, put) for name, value in made.values.items()}
        if self._alone is not None:
            return columns[self._alone]
        if self._form == "ultralytics":
            return self._flat(made, columns, put)
        rows: dict[str, Any] = {name: _rows(made.values[name], column) for name, column in columns.items()}
        for name, values in zip(ADDED, (indices, made.maps, made.sizes), strict=True):
            rows[name] = put(torch.from_numpy(values)).unbind()
        return [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]

    def _flat(self, made: BatchTargets, columns: Mapping[str, Any], put: Put) -> dict[str, Any]:
        """Return them as Ultralytics' trainers take them: coordinates are shares of the image's sides."""
        flat: dict[str, Any] = {}
        for name, values in columns.items():
            if name == self._boxes:
                sides = self._sides.to(values.device)
                first, last = values[:, :2] / sides, values[:, 2:] / sides
                flat["bboxes"] = torch.cat([(first + last) / 2, last - first], dim=1)
                flat["batch_idx"] = put(torch.from_numpy(rows_of(made.values[name].counts)).float())
            elif name == "labels":
                flat["cls"] = values.reshape(-1, 1).float()
            elif name in self._keypoints:
                flat[name] = torch.cat([values[..., :2] / self._sides.to(values.device), values[..., 2:]], dim=-1)
            else:
                flat[name] = values
        return flat


@dataclass(frozen=True)
class BatchTensors:
    """Puts the tensors of a batch together, in the training loop's thread and, on a GPU, in its stream.

    Attributes:
        labels: Labels of all samples, of a type that torch knows, shape (num_samples, ...).
        with_indices: Whether a batch has a third part, the samples' indices.
        pin_memory: Whether labels are put into pinned memory.
        dtypes: Types of the images, of each view one, as `Output` names them.
        targets: What puts targets together, which are in the place of labels; None: the source has none.
    """

    labels: NDArray[Any]
    with_indices: bool
    pin_memory: bool
    dtypes: tuple[Dtype, ...]
    targets: TargetTensors | None = None

    def of(self, served: Served, padding: int) -> Batch:
        """Return images, labels and perhaps indices of a batch whose last rows, so many, only fill it up."""
        if isinstance(served.images, VolumeBatch):
            return self._volumes(served, served.images, padding)
        views: list[torch.Tensor] = [*served.images] if isinstance(served.images, tuple) else [served.images]
        device = views[0].device

        def put(tensor: torch.Tensor) -> torch.Tensor:
            # A copy that the host need not wait for is one of pinned memory.
            tensor = tensor.pin_memory() if self.pin_memory or device.type == "cuda" else tensor
            return tensor.to(device, non_blocking=True) if device.type == "cuda" else tensor

        if self.targets is None:
            labels: Any = put(torch.from_numpy(self.labels[served.shown]))
        else:
            assert served.targets is not None
            labels = self.targets.of(served.targets, served.told_indices(padding), put)
        for place, (view, dtype) in enumerate(zip(views, self.dtypes, strict=True)):
            if view.is_cuda:
                # Their memory may not be written again before this stream has read them.
                view.record_stream(torch.cuda.current_stream(view.device))
            if dtype == "bfloat16":
                views[place] = view.to(torch.bfloat16)
        images: Any = tuple(views) if isinstance(served.images, tuple) else views[0]
        return self._batch(images, labels, served, padding)

    def _volumes(self, served: Served, made: VolumeBatch, padding: int) -> Batch:
        """Return volumes, labels of their voxels, or of them where there are none, and perhaps indices."""
        arrays = made.images, self.labels[served.shown] if made.masks is None else made.masks
        tensors = map(torch.from_numpy, arrays)
        images, labels = (each.pin_memory() if self.pin_memory else each for each in tensors)
        return self._batch(images, labels, served, padding)

    def _batch(self, images: Any, labels: Any, served: Served, padding: int) -> Batch:
        if not self.with_indices:
            return images, labels
        return images, labels, torch.from_numpy(served.told_indices(padding))


def _tensors(value: Any, put: Put) -> Any:
    """Return a target of a batch, of all objects together; of outlines each by itself."""
    if isinstance(value, list):
        return [[[put(torch.from_numpy(part)) for part in each] for each in image] for image in value]
    return put(torch.from_numpy(value.values if isinstance(value, Ragged) else value))


def _rows(value: Any, tensors: Any) -> Sequence[Any]:
    """Part a target by image."""
    if isinstance(value, Ragged):
        return torch.split(tensors, value.counts.tolist())
    parts: Sequence[Any] = tensors if isinstance(value, list) else tensors.unbind()
    return parts
