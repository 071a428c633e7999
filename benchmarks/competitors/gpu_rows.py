"""Competitors that augment on a GPU, as their documentation shows it: torchvision's v2, and Kornia.

    row                               worker processes      the GPU, on the stream of the training step
    torchvision v2, GPU               read                  decode (nvJPEG), all transforms, image by image
    torchvision v2, workers and GPU   read, decode, crop    flip, RandAugment, normalise, image by image
    Kornia, workers and GPU           read, decode, crop    flip, RandAugment, normalise, batch by batch

A v2 transform draws once for a whole batch, so images are augmented one by one to be as varied as the others'.
Kornia's RandAugment chooses the operations for a batch, and strengths for each image: less varied, and faster for it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from competitors.rows import why_not
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LAYERS, _MAGNITUDE = 2, 9
PREFETCHED = 2
"""Batches that each worker has ahead, DataLoader's default."""


@dataclass(frozen=True)
class Samples:
    """What is loaded.

    Attributes:
        files: Of the images.
        labels: One each.
        size: Side of the images that the model receives, in pixels.
        batch_size: Images of a batch.
        workers: Processes that load.
        device: Where images are augmented, "cuda" or "cpu".
    """

    files: Sequence[str]
    labels: Sequence[int]
    size: int
    batch_size: int
    workers: int
    device: str


class GpuRow(ABC):
    """A competitor."""

    packages: tuple[str, ...] = ("competitors.torchvision_v2",)

    def missing(self) -> str | None:
        """Say why it cannot run here, None if it can."""
        return next(filter(None, map(why_not, self.packages)), None)

    @abstractmethod
    def prepare(self, samples: Samples) -> None:
        """Make what augments."""

    def load(self, path: str) -> Any:
        """Do a worker's part: an image that was decoded and cropped, (3, size, size) uint8."""
        from competitors.torchvision_v2 import decode

        return self._crop(decode(path))

    @abstractmethod
    def augment(self, images: Any) -> torch.Tensor:
        """Do the GPU's part; return (B, 3, size, size) float32, normalised."""

    def collate(self, batch: list[tuple[Any, int]]) -> tuple[Any, torch.Tensor]:
        """Put the images of a batch together."""
        images, labels = zip(*batch, strict=True)
        return torch.stack(images), torch.tensor(labels)

    def batches(self, samples: Samples) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield what workers make, epoch after epoch."""
        loader: DataLoader[Any] = DataLoader(
            _Loaded(self, samples),
            batch_size=samples.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=samples.workers,
            prefetch_factor=PREFETCHED,
            persistent_workers=True,
            multiprocessing_context="fork",
            collate_fn=self.collate,
            pin_memory=samples.device == "cuda",
        )
        while True:
            yield from loader

    def _make_crop(self, size: int) -> None:
        """Make the transform that crops a Pillow image and makes it a tensor."""
        from competitors.torchvision_v2 import v2

        self._crop = v2.Compose([v2.RandomResizedCrop(size, scale=(0.08, 1), antialias=True), v2.PILToTensor()])


class V2(GpuRow):
    """Torchvision's v2.

    Args:
        on_gpu: Whether the GPU decodes and crops, too.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu

    def prepare(self, samples: Samples) -> None:
        """Make the transforms of one image."""
        from competitors.torchvision_v2 import InterpolationMode, v2

        crop = [v2.RandomResizedCrop(samples.size, scale=(0.08, 1), antialias=True)] if self._on_gpu else []
        self._device = samples.device
        self._make_crop(samples.size)
        self._transform = v2.Compose(
            [
                *crop,
                v2.RandomHorizontalFlip(),
                v2.RandAugment(_LAYERS, _MAGNITUDE, interpolation=InterpolationMode.NEAREST),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def load(self, path: str) -> Any:
        """Read, and where the GPU does not, decode and crop."""
        return (
            torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
            if self._on_gpu
            else super().load(path)
        )

    def collate(self, batch: list[tuple[Any, int]]) -> tuple[Any, torch.Tensor]:
        """Encoded images have different lengths."""
        if not self._on_gpu:
            return super().collate(batch)
        images, labels = zip(*batch, strict=True)
        return list(images), torch.tensor(labels)

    def augment(self, images: Any) -> torch.Tensor:
        """Transform image by image."""
        decoded = self._decoded(images) if self._on_gpu else images.to(self._device, non_blocking=True)
        return torch.stack([self._transform(image) for image in decoded])

    def _decoded(self, encoded: list[torch.Tensor]) -> Any:
        """Decode on the GPU; the CPU, where this is only tried, has no compiled decoder without its own torch."""
        if self._device == "cpu":
            from competitors.torchvision_v2 import v2

            opened = (Image.open(io.BytesIO(each.numpy().tobytes())).convert("RGB") for each in encoded)
            return [v2.functional.pil_to_tensor(image) for image in opened]
        from torchvision.io import ImageReadMode, decode_jpeg

        return decode_jpeg(encoded, mode=ImageReadMode.RGB, device=self._device)


class Kornia(GpuRow):
    """Kornia."""

    packages = ("competitors.torchvision_v2", "kornia.augmentation")

    def prepare(self, samples: Samples) -> None:
        """Make the transforms of a batch."""
        import kornia.augmentation as augmentation
        from kornia.augmentation.auto import RandAugment

        self._device = samples.device
        self._make_crop(samples.size)
        self._transform = torch.nn.Sequential(
            augmentation.RandomHorizontalFlip(p=0.5),
            RandAugment(n=_LAYERS, m=_MAGNITUDE),
            augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        ).to(self._device)

    @torch.no_grad()
    def augment(self, images: Any) -> torch.Tensor:
        """Transform the batch, as levels from 0 to 1."""
        levels = images.to(self._device, non_blocking=True).float() / 255
        augmented: torch.Tensor = self._transform(levels)
        return augmented


class _Loaded(Dataset[Any]):
    """A row's worker part, sample by sample."""

    def __init__(self, row: GpuRow, samples: Samples) -> None:
        self._row, self._samples = row, samples

    def __len__(self) -> int:
        return len(self._samples.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._row.load(self._samples.files[index]), self._samples.labels[index]


GPU_ROWS: dict[str, GpuRow] = {
    "torchvision v2, GPU": V2(on_gpu=True),
    "torchvision v2, workers and GPU": V2(on_gpu=False),
    "Kornia, workers and GPU": Kornia(),
}
