"""Competitors in PyTorch's DataLoader: torchvision's v2, MONAI's data sets, OpenCV, albumentations."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from competitors.rows import (
    CROP_AND_FLIP,
    REPLACED,
    Job,
    Row,
    Samples,
    Setting,
    decoded,
    from_one_to_two,
    kept_folder,
    shuffled,
    tensor_decoder,
)


class DataLoaderRow(Row):
    """PyTorch's DataLoader with worker processes.

    Args:
        images: What is decoded: "tensor", "pillow", or what else names a decoder; torchvision works on these two.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2")
    resumes = "no"
    kept = "nothing"
    collate: Callable[[Any], Any] | None = None

    def __init__(self, images: str) -> None:
        self._images = images

    def settings(self, cores: int) -> list[Setting]:
        """List 1, 1.5 and 2 times as many processes as cores, each with 2 and 4 batches ahead."""
        decoder = tensor_decoder() if self._images == "tensor" else self._images
        return [
            {"decoder": decoder, "workers": workers, "prefetch_factor": ahead}
            for workers in from_one_to_two(cores)
            for ahead in (2, 4)
        ]

    def made_ahead(self, setting: Setting) -> int:
        """As many a worker as it was told."""
        return int(setting["workers"] * setting["prefetch_factor"])

    def rotation(self, setting: Setting) -> int:
        """Every worker makes a whole batch, in turn."""
        return int(setting["workers"])

    def batches(self, job: Job) -> Iterator[Any]:
        """Serve an epoch without end."""
        loader = self._loader(job, self._samples(job), sampler=shuffled(len(job.files)), persistent_workers=True)
        return (images for images, _ in loader)

    def _loader(self, job: Job, samples: Any, **arguments: Any) -> Any:
        from torch.utils.data import DataLoader

        return DataLoader(
            samples,
            batch_size=job.batch_size,
            drop_last=True,
            num_workers=job.setting["workers"],
            prefetch_factor=job.setting["prefetch_factor"],
            collate_fn=self.collate,
            **arguments,
        )

    def _samples(self, job: Job) -> Any:
        return Samples(job.files, job.labels, *decoded(job, self._images))


class CacheRow(DataLoaderRow):
    """MONAI's CacheDataset, which keeps what comes before the first random transform: all decoded images."""

    packages = ("torch", "PIL", "competitors.torchvision_v2", "monai.data")
    kept = "decoded images"

    def __init__(self) -> None:
        super().__init__("tensor")

    def settings(self, cores: int) -> list[Setting]:
        """List images kept as tensors and as Pillow's, with as many processes as cores and twice as many."""
        return [
            {"images": images, "workers": workers, "prefetch_factor": 2}
            for images in ("pillow", "tensor")
            for workers in (cores, 2 * cores)
        ]

    def _samples(self, job: Job) -> Any:
        from competitors import torchvision_v2 as tv
        from monai.transforms import Transform

        transform = tv.transforms(job.size, job.setting["images"])
        as_kept = tv.v2.functional.pil_to_tensor if job.setting["images"] == "tensor" else lambda image: image

        class Decode(Transform):  # type: ignore[misc]
            def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
                return {"image": as_kept(tv.decode(data["file"])), "label": data["label"]}

        def randomly(data: dict[str, Any]) -> tuple[Any, int]:
            return transform(data["image"]), data["label"]

        named = enumerate(zip(job.files, job.labels, strict=True))  # numbers tell repeated files apart
        samples = [{"number": number, "file": file, "label": label} for number, (file, label) in named]
        return self._cached(job, samples, [Decode(), randomly])

    def _cached(self, job: Job, samples: list[dict[str, Any]], transforms: list[Any]) -> Any:
        from monai.data import CacheDataset

        return CacheDataset(samples, transforms, num_workers=job.setting["workers"], progress=False, copy_cache=False)


class DiskCacheRow(CacheRow):
    """MONAI's CacheNTransDataset, which keeps each decoded image in a file; all are written before the first batch."""

    def settings(self, cores: int) -> list[Setting]:
        """List images kept as tensors: files of others it would not read again."""
        return [each for each in super().settings(cores) if each["images"] == "tensor"]

    def _cached(self, job: Job, samples: list[dict[str, Any]], transforms: list[Any]) -> Any:
        from monai.data import CacheNTransDataset
        from torch.utils.data import DataLoader

        folder = kept_folder(job, "monai")
        if len(list(folder.glob("*.pt"))) < len(samples):
            written = CacheNTransDataset(samples, [transforms[0], lambda _: 0], cache_n_trans=1, cache_dir=folder)
            for _ in DataLoader(written, batch_size=None, num_workers=job.setting["workers"]):
                pass
        return CacheNTransDataset(samples, transforms, cache_n_trans=1, cache_dir=folder)


class SmartCacheRow(CacheRow):
    """MONAI's SmartCacheDataset, which serves only its window, half of the samples, and moves it on by a tenth of that.

    An epoch is a window: between two, a thread's replacements take their places, and workers are forked anew.
    """

    def batches(self, job: Job) -> Iterator[Any]:
        """Fill the window, then serve epoch after epoch."""
        dataset = self._samples(job)
        loader = self._loader(job, dataset, shuffle=True)
        dataset.start()
        while True:
            yield from (images for images, _ in loader)
            dataset.update_cache()

    def _cached(self, job: Job, samples: list[dict[str, Any]], transforms: list[Any]) -> Any:
        from monai.data import SmartCacheDataset

        return SmartCacheDataset(
            samples,
            transforms,
            replace_rate=REPLACED,
            cache_num=max(len(samples) // 2, job.batch_size),  # at least a batch
            num_init_workers=job.setting["workers"],
            progress=False,
            copy_cache=False,
        )


class OpenCvRow(DataLoaderRow):
    """OpenCV and NumPy: a window is resized by areas, which is nearest to anti-aliasing."""

    packages = ("torch", "numpy", "cv2")

    def __init__(self) -> None:
        super().__init__("opencv")

    def _samples(self, job: Job) -> Any:
        import cv2

        def decode(file: str) -> Any:
            cv2.setNumThreads(0)
            return cv2.imread(file, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)

        return Samples(job.files, job.labels, decode, self._transform(job.size))

    def _transform(self, size: int) -> Callable[[Any], Any]:
        import cv2
        import numpy as np
        import torch
        from competitors import torchvision_v2 as tv

        mean, std = (255 * np.array(levels, np.float32)[:, None, None] for levels in (tv.MEAN, tv.STD))

        def transform(image: Any) -> Any:
            top, left, height, width = _window(*image.shape[:2])
            window = image[top : top + height, left : left + width]
            made = cv2.resize(window, (size, size), interpolation=cv2.INTER_AREA)
            if random.random() < 0.5:
                made = made[:, ::-1]
            levels = np.array(made.transpose(2, 0, 1), np.float32, order="C")
            levels -= mean
            levels /= std
            return torch.from_numpy(levels)

        return transform


class AlbumentationsRow(OpenCvRow):
    """albumentations, which resizes with OpenCV, by areas; each worker composes its own, so that no two draw alike."""

    packages = ("torch", "numpy", "cv2", "albumentations", "albumentations.pytorch")

    def _transform(self, size: int) -> Callable[[Any], Any]:
        import albumentations as each
        import cv2
        from albumentations.pytorch import ToTensorV2
        from competitors import torchvision_v2 as tv

        @cache
        def composed() -> Any:
            crop = each.RandomResizedCrop((size, size), scale=(0.08, 1), interpolation=cv2.INTER_AREA)
            return each.Compose([crop, each.HorizontalFlip(), each.Normalize(tv.MEAN, tv.STD), ToTensorV2()])

        return lambda image: composed()(image=image)["image"]


def _window(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw a window of 0.08 .. 1 of an area, of 3:4 to 4:3, as torchvision does; all if none fits.

    Returns top, left, height, width.
    """
    for _ in range(10):
        area, ratio = height * width * random.uniform(0.08, 1), (4 / 3) ** random.uniform(-1, 1)
        high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < high <= height and 0 < wide <= width:
            return random.randint(0, height - high), random.randint(0, width - wide), high, wide
    return 0, 0, height, width


ROWS: dict[str, Row] = {
    "DataLoader, v2 on Pillow": DataLoaderRow("pillow"),
    "DataLoader, v2 on tensors": DataLoaderRow("tensor"),
    "MONAI CacheDataset, v2": CacheRow(),
    "MONAI CacheNTransDataset, v2": DiskCacheRow(),
    "MONAI SmartCacheDataset, v2": SmartCacheRow(),
    f"DataLoader, OpenCV, {CROP_AND_FLIP}": OpenCvRow(),
    f"DataLoader, albumentations, {CROP_AND_FLIP}": AlbumentationsRow(),
}
