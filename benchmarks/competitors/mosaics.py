"""A competitor that makes mosaics of four photographs, with the boxes of all four, as detectors are trained."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from competitors.data_loaders import DataLoaderRow
from competitors.rows import ANNOTATIONS, MOSAIC, Job, Row, Setting

_FILL, _SHORTER = 114, 480


class MosaicRow(DataLoaderRow):
    """OpenCV and NumPy in a DataLoader: each sample reads, decodes and resizes its own file and three others.

    Then as ours: four around a random point at twice the size, one affine map to the size, a flip, and value,
    saturation and hue, these by tables as detectors have them. A batch is images and a list of tensors.
    """

    packages = ("torch", "numpy", "cv2")

    def __init__(self) -> None:
        super().__init__("opencv")

    def settings(self, cores: int) -> list[Setting]:
        """List as many processes as cores, and twice as many."""
        return [{"workers": workers, "prefetch_factor": 2} for workers in (cores, 2 * cores)]

    @staticmethod
    def collate(samples: Any) -> Any:
        """Stack images, and part boxes from them: tensors, which go from process to process in shared memory."""
        import torch

        images, boxes = zip(*samples, strict=True)
        return torch.stack(images), [torch.from_numpy(each) for each in boxes]

    def _samples(self, job: Job) -> Any:
        import cv2
        import numpy as np
        import torch

        read = json.loads(Path(job.files[0]).with_name(ANNOTATIONS).read_text())
        rows: dict[int, list[Any]] = {each["id"]: [] for each in read["images"]}
        for each in read["annotations"]:
            left, top, width, height = each["bbox"]
            rows[each["image_id"]].append([left, top, left + width, top + height, each["category_id"]])
        objects = [np.array(rows[each["id"]], np.float32).reshape(-1, 5) for each in read["images"]]
        size, whole = job.size, 2 * job.size
        shorter = _SHORTER * size // 640

        def loaded(index: int) -> Any:
            image = cv2.imread(job.files[index])
            scale = shorter / min(image.shape[:2])
            image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
            return image, objects[index] * [scale, scale, scale, scale, 1]

        def mosaic(index: int) -> Any:
            canvas, found = np.full((whole, whole, 3), _FILL, np.uint8), []
            x, y = (int(random.uniform(0.25, 0.75) * whole) for _ in range(2))
            for part, each in enumerate([index, *random.choices(range(len(job.files)), k=3)]):
                image, boxes = loaded(each)
                height, width = image.shape[:2]
                left, top = x - width if part % 2 == 0 else x, y - height if part < 2 else y
                first, last, low, high = max(left, 0), min(left + width, whole), max(top, 0), min(top + height, whole)
                canvas[low:high, first:last] = image[low - top : high - top, first - left : last - left]
                boxes[:, [0, 2]] += left
                boxes[:, [1, 3]] += top
                found.append(boxes)
            return canvas, np.concatenate(found)

        def colours(image: Any) -> Any:
            hue, saturation, value = (random.uniform(1 - most, 1 + most) for most in (0.015, 0.7, 0.4))
            levels = np.arange(256, dtype=np.float32)
            tables = (levels * hue % 180, (levels * saturation).clip(0, 255), (levels * value).clip(0, 255))
            planes = cv2.split(cv2.cvtColor(image, cv2.COLOR_BGR2HSV))
            made = [cv2.LUT(plane, table.astype(np.uint8)) for plane, table in zip(planes, tables, strict=True)]
            return cv2.cvtColor(cv2.merge(made), cv2.COLOR_HSV2RGB)

        class Mosaics(torch.utils.data.Dataset):  # type: ignore[type-arg, misc]
            def __len__(self) -> int:
                return len(job.files)

            def __getitem__(self, index: int) -> Any:
                cv2.setNumThreads(0)
                canvas, boxes = mosaic(index)
                scale = random.uniform(0.5, 1.5)
                x, y = (size / 2 - scale * whole / 2 + random.uniform(-0.1, 0.1) * size for _ in range(2))
                matrix = np.array([[scale, 0, x], [0, scale, y]], np.float32)
                image = cv2.warpAffine(canvas, matrix, (size, size), borderValue=(_FILL,) * 3)
                boxes[:, :4] = boxes[:, :4] * scale + [x, y, x, y]
                boxes[:, :4] = boxes[:, :4].clip(0, size)
                boxes = boxes[((boxes[:, 2:4] - boxes[:, :2]) > 1).all(axis=1)]
                image = colours(image)
                if random.random() < 0.5:
                    image = image[:, ::-1]
                    boxes[:, [0, 2]] = size - boxes[:, [2, 0]]
                levels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
                return levels.float() / 255, boxes

        return Mosaics()


ROWS: dict[str, Row] = {f"DataLoader, OpenCV, {MOSAIC}": MosaicRow()}
