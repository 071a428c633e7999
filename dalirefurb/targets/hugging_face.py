"""Objects of a Hugging Face dataset, as targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError
from dalirefurb.targets.kinds import Boxes, BoxFormat, Objects, Target


def objects_of(
    dataset: Any,
    format: BoxFormat,
    *,
    objects: str = "objects",
    boxes: str = "bbox",
    labels: str = "category",
    others: Sequence[str] = (),
    min_area: float = 1.0,
    min_visible: float = 0.0,
) -> dict[str, Target]:
    """Return the boxes and classes in a column of objects of a `datasets.Dataset`, as the targets of `Annotated`.

        Annotated(HuggingFaceImages(dataset, label="image_id"), objects_of(dataset, "xywh", others=["area"]))

    Args:
        dataset: Dataset of one split, each row of which has lists of what its objects are, or a list of objects.
        format: What the four numbers of a box are, see `Boxes`: datasets differ, and nothing in them tells it.
        objects: Name of the column.
        boxes: Name of the boxes in it, in pixels of the image, upright.
        labels: Name of the classes in it, which are numbers.
        others: Names of further numbers of each object in it, which become targets under these names.
        min_area: See `Boxes`.
        min_visible: See `Boxes`.

    Raises:
        ConfigurationError: If there is no such column, or it is of another kind.
    """
    there = list(getattr(dataset, "features", None) or ())
    require(objects in there, "objects", f"a column of the dataset, one of {', '.join(there)}", objects, "name it")
    others = [others] if isinstance(others, str) else [*others]
    if taken := {"boxes", "labels"} & {*others}:
        raise ConfigurationError(f"others must have names beside boxes and labels, got {', '.join(sorted(taken))}")
    rows = dataset.with_format(None).select_columns([objects])[:][objects]

    def column(name: str) -> list[list[Any]]:
        try:
            return [row[name] if isinstance(row, Mapping) else [each[name] for each in row] for row in rows]
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"column {objects!r} must have {name!r} of each object, but a row has none ({type(error).__name__}: "
                f"{error}): name what it has by boxes=, labels= and others="
            ) from error

    made: dict[str, Target] = {
        "boxes": Boxes(column(boxes), format, min_area=min_area, min_visible=min_visible),
        "labels": Objects(column(labels)),
    }
    return made | {name: Objects(column(name)) for name in others}
