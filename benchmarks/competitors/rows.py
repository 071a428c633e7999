"""What is each competitor? Its best settings to choose from, and its batches, written as its documentation shows.

All read the same files and do the same: decode, crop a random part and resize it with anti-aliasing, flip, two
layers of RandAugment with nearest interpolation, float32 (B, 3, size, size), normalised.
"""

from __future__ import annotations

import importlib
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Setting = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is asked of a competitor.

    Attributes:
        row: Its name in `ROWS`.
        files: Of the samples; repeated ones count as different.
        labels: One each.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        setting: One of the row's.
    """

    row: str
    files: Sequence[str]
    labels: Sequence[int]
    size: int
    batch_size: int
    setting: Setting


class Row(ABC):
    """A competitor."""

    packages: tuple[str, ...]

    def missing(self) -> str | None:
        """Say why it cannot run here, None if it can."""
        return next(filter(None, map(why_not, self.packages)), None)

    @abstractmethod
    def settings(self, cores: int) -> list[Setting]:
        """List what is tried on so many cores."""

    @abstractmethod
    def made_ahead(self, setting: Setting) -> int:
        """Return how many batches can be ready, or under way, before they are asked for."""

    @abstractmethod
    def batches(self, job: Job) -> Iterator[int]:
        """Make epoch after epoch; yield the number of images of each batch."""


class DataLoaderRow(Row):
    """PyTorch's DataLoader with worker processes.

    Args:
        images: "pillow" or "tensor": what torchvision's transforms work on.
    """

    packages = ("torch", "PIL", "torchvision_v2")

    def __init__(self, images: str) -> None:
        self._images = images

    def settings(self, cores: int) -> list[Setting]:
        """List as many processes as cores, and half as many more."""
        return [{"workers": workers} for workers in dict.fromkeys((cores, cores + (cores + 1) // 2))]

    def made_ahead(self, setting: Setting) -> int:
        """Two batches a worker, which is DataLoader's default."""
        return int(2 * setting["workers"])

    def batches(self, job: Job) -> Iterator[int]:
        """Serve shuffled epochs from workers that stay."""
        return _loaded(self._samples(job), job)

    def _samples(self, job: Job) -> Any:
        import torchvision_v2 as tv

        return _Samples(job.files, job.labels, tv.decode, tv.transforms(job.size, self._images))  # type: ignore[arg-type]


class CacheRow(DataLoaderRow):
    """MONAI's CacheDataset, which keeps what comes before the first random transform: all decoded images."""

    packages = ("torch", "PIL", "torchvision_v2", "monai.data")

    def __init__(self) -> None:
        super().__init__("tensor")

    def settings(self, cores: int) -> list[Setting]:
        """List images kept as tensors and as Pillow's."""
        return [{"workers": cores, "images": images} for images in ("pillow", "tensor")]

    def _samples(self, job: Job) -> Any:
        import torchvision_v2 as tv
        from monai.data import CacheDataset
        from monai.transforms import Transform

        transform = tv.transforms(job.size, job.setting["images"])
        as_kept = tv.v2.ToImage() if job.setting["images"] == "tensor" else lambda image: image

        class Decode(Transform):  # type: ignore[misc]
            def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
                return {"image": as_kept(tv.decode(data["file"])), "label": data["label"]}

        def randomly(data: dict[str, Any]) -> tuple[Any, int]:
            return transform(data["image"]), data["label"]

        samples = [{"file": file, "label": label} for file, label in zip(job.files, job.labels, strict=True)]
        return CacheDataset(
            samples, [Decode(), randomly], num_workers=job.setting["workers"], progress=False, copy_cache=False
        )


class SpdlRow(Row):
    """SPDL's pipeline of threads, with its own decoder or Pillow's."""

    packages = ("torch", "PIL", "torchvision_v2", "spdl.pipeline")

    def settings(self, cores: int) -> list[Setting]:
        """List as many threads as cores with either decoder, and half as many more with Pillow's."""
        threads = dict.fromkeys((cores, cores + (cores + 1) // 2))
        own = [] if _no_ffmpeg() else [{"threads": cores, "decoder": "spdl"}]
        return [*({"threads": n, "decoder": "pillow"} for n in threads), *own]

    def made_ahead(self, setting: Setting) -> int:
        """Two batches in the sink, two before it, one in each stage's hands and one being gathered."""
        return 8

    def batches(self, job: Job) -> Iterator[int]:
        """Serve shuffled epochs without end from one pipeline."""
        import torch
        import torchvision_v2 as tv
        from spdl.pipeline import PipelineBuilder

        torch.set_num_threads(1)
        if job.setting["decoder"] == "spdl":
            images, decode = "tensor", _ffmpeg_decoder()
        else:
            images, decode = "pillow", tv.decode
        samples = _Samples(job.files, job.labels, decode, tv.transforms(job.size, images))  # type: ignore[arg-type]
        threads = job.setting["threads"]
        pipeline = (
            PipelineBuilder()
            .add_source(_forever(len(samples)))
            .pipe(samples.__getitem__, concurrency=threads)
            .aggregate(job.batch_size)
            .pipe(torch.utils.data.default_collate)
            .add_sink(2)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            for batch, _ in pipeline.get_iterator():
                yield len(batch)


def why_not(package: str) -> str | None:
    """Say why a package cannot be imported, None if it can."""
    try:
        importlib.import_module(package)
    except Exception as error:  # whatever a package without its libraries raises
        return f"{package}: {type(error).__name__}: {error}"[:200]
    return None


class _Samples:
    """A map-style data set of (image, label)."""

    def __init__(
        self, files: Sequence[str], labels: Sequence[int], decode: Callable[[str], Any], transform: Callable[[Any], Any]
    ) -> None:
        self._files = files
        self._labels = labels
        self._decode = decode
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._transform(self._decode(self._files[index])), self._labels[index]


def _loaded(samples: Any, job: Job) -> Iterator[int]:
    """Serve a data set through a DataLoader."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        samples,
        batch_size=job.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=job.setting["workers"],
        persistent_workers=True,
    )
    while True:
        for batch, _ in loader:
            yield len(batch)


def _forever(count: int) -> Iterator[int]:
    """Yield shuffled indices, epoch after epoch."""
    for epoch in itertools.count():
        order = list(range(count))
        random.Random(epoch).shuffle(order)
        yield from order


def _no_ffmpeg() -> bool:
    """Whether SPDL's decoder does not work here."""
    try:
        _ffmpeg_decoder()
    except Exception:  # SPDL raises RuntimeError where FFmpeg's libraries are missing
        return True
    return False


def _ffmpeg_decoder() -> Callable[[str], Any]:
    """Return SPDL's decoder: a file's path in, (3, H, W) uint8 out."""
    import spdl.io

    description = spdl.io.get_video_filter_desc(pix_fmt="rgb24")

    def decode(path: str) -> Any:
        frames = spdl.io.load_image(path, filter_desc=description)
        return spdl.io.to_torch(frames).permute(2, 0, 1)

    return decode


ROWS: dict[str, Row] = {
    "DataLoader, v2 on Pillow": DataLoaderRow("pillow"),
    "DataLoader, v2 on tensors": DataLoaderRow("tensor"),
    "SPDL, v2": SpdlRow(),
    "MONAI CacheDataset, v2": CacheRow(),
}
