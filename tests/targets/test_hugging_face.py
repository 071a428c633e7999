"""Objects of datasets of Hugging Face; where `datasets` is not installed, of what has the same methods."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dalirefurb import Evaluate, HuggingFaceImages, Loader, evaluate
from dalirefurb.errors import ConfigurationError
from dalirefurb.targets import Annotated, objects_of

COLUMNS = [
    {"id": [4, 5], "area": [12.5, 2.0], "bbox": [[1, 2, 30, 14], [10, 8, 20, 20]], "category": [0, 3]},
    {"id": [], "area": [], "bbox": [], "category": []},
]
LISTS = [[dict(zip(row, each, strict=True)) for each in zip(*row.values(), strict=True)] for row in COLUMNS]


class Table:
    """A stand-in for a dataset."""

    def __init__(self, rows: list[Any], name: str = "objects") -> None:
        self.features = {"image": None, name: None}
        self._rows = {name: rows}

    def with_format(self, kind: None) -> Table:
        return self

    def select_columns(self, names: list[str]) -> Table:
        assert names == [*self._rows]
        return self

    def __getitem__(self, rows: slice) -> dict[str, list[Any]]:
        return {name: each[rows] for name, each in self._rows.items()}


@pytest.mark.parametrize("rows", [COLUMNS, LISTS])
def test_objects_of_a_dataset_are_targets(rows: list[Any]) -> None:
    made = objects_of(Table(rows), "xywh", others=["area"])
    assert [*made] == ["boxes", "labels", "area"]
    assert [len(each) for each in made.values()] == [2, 2, 2]
    assert made["boxes"].one(0, (40, 60)).tolist() == [[1, 2, 31, 16], [10, 8, 30, 28]]
    assert (made["labels"].one(0, (40, 60)).tolist(), made["area"].one(0, (40, 60)).tolist()) == ([0, 3], [12.5, 2])
    assert made["boxes"].one(1, (40, 60)).shape == (0, 4)
    named = objects_of(Table(rows, "things"), "xyxy", objects="things", labels="id")
    assert named["labels"].one(0, (40, 60)).tolist() == [4, 5]


def test_a_column_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="objects must be a column of the dataset, one of image, things"):
        objects_of(Table(COLUMNS, "things"), "xywh")
    with pytest.raises(ConfigurationError, match="column 'objects' must have 'class' of each object"):
        objects_of(Table(COLUMNS), "xywh", labels="class")
    with pytest.raises(ConfigurationError, match=r"column 'objects' must have 'bbox' of each object.*TypeError"):
        objects_of(Table([None, None]), "xywh")
    for none in ([], SimpleNamespace(features=None)):
        with pytest.raises(ConfigurationError, match="objects must be a column of the dataset"):
            objects_of(none, "xywh")
    with pytest.raises(ConfigurationError, match="format must be xyxy, xywh or cxcywh"):
        objects_of(Table(COLUMNS), "coco")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["boxes", "labels"])
def test_other_columns_do_not_take_the_names_of_boxes_and_labels(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"others must have names beside boxes and labels, got {name}"):
        objects_of(Table(COLUMNS), "xywh", others=["area", name])


def test_a_real_dataset_is_served_with_its_objects() -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets, of Hugging Face, is not installed")
    picture = io.BytesIO()
    Image.new("RGB", (60, 40)).save(picture, "PNG")
    images = [{"bytes": picture.getvalue(), "path": None}] * 2
    number, box = datasets.Value("float32"), datasets.Sequence(datasets.Value("float32"))
    kinds = {"id": datasets.Value("int64"), "area": number, "bbox": box, "category": datasets.Value("int64")}
    features = {"image_id": datasets.Value("int64"), "image": datasets.Image(), "objects": datasets.Sequence(kinds)}
    columns = {"image_id": [7, 8], "image": images, "objects": COLUMNS}
    dataset = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    source = Annotated(HuggingFaceImages(dataset, label="image_id"), objects_of(dataset, "xywh"))
    assert source[0][1]["boxes"].tolist() == [[1, 2, 31, 16], [10, 8, 30, 28]]
    with Loader(source, evaluate((40, 60), resize=(40, 60)), Evaluate(2, batch_size=2)) as loader:
        ((_, targets),) = loader
    assert np.allclose(targets[0]["boxes"], [[1, 2, 31, 16], [10, 8, 30, 28]])
    assert targets[1]["boxes"].shape == (0, 4)
