"""Competitors that serve images with objects, which a file in COCO's format beside the images has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from competitors.data_loaders import DataLoaderRow
from competitors.rows import ANNOTATIONS, WITH_OBJECTS, Job, Row


class DetectionRow(DataLoaderRow):
    """torchvision's reference for detection with large scale jitter, its data set of COCO's included, in a DataLoader.

    Outlines become masks by pycocotools, before images are augmented. A batch is a list of images and a list of
    dictionaries, as the reference's `collate_fn` makes it.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2", "pycocotools")

    def __init__(self) -> None:
        super().__init__("tensor")

    @staticmethod
    def collate(samples: Any) -> Any:
        """Part images from targets."""
        return tuple(zip(*samples, strict=True))

    def _samples(self, job: Job) -> Any:
        import torch
        from competitors import torchvision_v2 as tv
        from pycocotools import mask as coco
        from torchvision import tv_tensors

        v2 = tv.v2
        transform = v2.Compose(
            [
                v2.ScaleJitter(target_size=(job.size, job.size), antialias=True),
                tv.FixedSizeCrop(job.size, (123, 117, 104), 0),
                v2.RandomHorizontalFlip(),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                v2.SanitizeBoundingBoxes(),
            ]
        )
        decode = tv.tensor_decoder(job.setting["decoder"])
        read = json.loads(Path(job.files[0]).with_name(ANNOTATIONS).read_text())
        rows: dict[int, list[Any]] = {each["id"]: [] for each in read["images"]}
        for each in read["annotations"]:
            rows[each["image_id"]].append(each)
        objects = [rows[each["id"]] for each in read["images"]]

        class Detection(torch.utils.data.Dataset):  # type: ignore[type-arg, misc]
            def __len__(self) -> int:
                return len(job.files)

            def __getitem__(self, index: int) -> Any:
                image, own = decode(job.files[index]), objects[index]
                height, width = image.shape[-2:]
                masks = [coco.decode(coco.frPyObjects(each["segmentation"], height, width)).any(axis=2) for each in own]
                boxes = torch.tensor([each["bbox"] for each in own], dtype=torch.float32).reshape(-1, 4)
                boxes[:, 2:] += boxes[:, :2]
                found = {
                    "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
                    "labels": torch.tensor([each["category_id"] for each in own], dtype=torch.int64),
                    "masks": tv_tensors.Mask(
                        torch.stack([torch.from_numpy(each).to(torch.uint8) for each in masks])
                        if masks
                        else torch.zeros((0, height, width), dtype=torch.uint8)
                    ),
                }
                return transform(tv_tensors.Image(image), found)

        return Detection()


ROWS: dict[str, Row] = {f"DataLoader, v2, {WITH_OBJECTS}": DetectionRow()}
