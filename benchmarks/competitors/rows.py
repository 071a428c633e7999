"""What is each competitor? Its best settings to choose from, and its batches, written as its documentation shows.

All read the same files and do the same: decode, crop a random part and resize it with anti-aliasing, flip, two
layers of RandAugment with nearest interpolation, float32 (B, 3, size, size), normalised. Slipstream and FFCV have no
RandAugment: they do what their rows' names end with. What they write once, before their first batch, lies in the
environment until other files are asked for.

An epoch has no end, or a million samples, so that no row waits at one for its workers to begin again.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import itertools
import json
import os
import random
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Setting = dict[str, Any]

CROP_AND_FLIP = "crop and flip"
"""Ends the name of a row that does no more than this to a decoded image."""

WITH_MASKS = "with masks"
"""Ends the name of a row that serves masks, too; see `masks`."""

WITH_OBJECTS, ANNOTATIONS = "with objects", "instances.json"
"""Ends the name of a row that serves objects, too, see `objects`; and the name of the file that has these."""

MOSAIC = "mosaic of four"
"""Ends the name of a row that puts four photographs into one, with their boxes; see `mosaics`."""

VOLUMES = "volumes"
"""Ends the name of a row that serves cubes of volumes, with labels of their voxels; see `volumes`."""

NIFTI, MASK = ".nii.gz", "_mask.nii.gz"
"""Ends of the names of a volume and of its labels."""

CUBES, HOUNSFIELD, REPLACED = 4, (-57, 164), 0.1
"""Cubes of each volume; values that become 0 and 1; share of a window that is replaced after each round."""

SHORTER = (260, 1040)
"""Pixels that torchvision's reference for segmentation resizes the shorter side to, least and most."""

_EPOCH = 1_000_000


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

    def rotation(self, setting: Setting) -> int:
        """Return after how many batches each worker has delivered as many as every other; 1 where all share each."""
        return 1

    @abstractmethod
    def batches(self, job: Job) -> Iterator[Any]:
        """Prepare what is made once; then yield the images of batch after batch, without end."""


class DataLoaderRow(Row):
    """PyTorch's DataLoader with worker processes.

    Args:
        images: "pillow" or "tensor": what torchvision's transforms work on.
    """

    packages = ("torch", "PIL", "torchvision_v2")
    collate: Callable[[Any], Any] | None = None

    def __init__(self, images: str) -> None:
        self._images = images

    def settings(self, cores: int) -> list[Setting]:
        """List 1, 1.5 and 2 times as many processes as cores, each with 2 and 4 batches ahead."""
        decoder = _tensor_decoder() if self._images == "tensor" else "pillow"
        return [
            {"decoder": decoder, "workers": workers, "prefetch_factor": ahead}
            for workers in _from_one_to_two(cores)
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
        from torch.utils.data import DataLoader

        loader = DataLoader(
            self._samples(job),
            batch_size=job.batch_size,
            sampler=_shuffled(len(job.files)),
            drop_last=True,
            num_workers=job.setting["workers"],
            prefetch_factor=job.setting["prefetch_factor"],
            persistent_workers=True,
            collate_fn=self.collate,
        )
        return (images for images, _ in loader)

    def _samples(self, job: Job) -> Any:
        import torchvision_v2 as tv

        decode = tv.decode_tensor if job.setting["decoder"] == "turbojpeg" else tv.decode
        return _Samples(job.files, job.labels, decode, tv.transforms(job.size, self._images))  # type: ignore[arg-type]


class CacheRow(DataLoaderRow):
    """MONAI's CacheDataset, which keeps what comes before the first random transform: all decoded images."""

    packages = ("torch", "PIL", "torchvision_v2", "monai.data")

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
        """List 1, 1.5 and 2 times as many threads as cores, with Pillow's decoder and its own."""
        decoders = ["pillow"] if _failure(_ffmpeg_decoder) else ["pillow", "spdl"]
        return [{"decoder": decoder, "threads": threads} for decoder in decoders for threads in _from_one_to_two(cores)]

    def made_ahead(self, setting: Setting) -> int:
        """Two batches in the sink, two before it, one in each stage's hands and one being gathered."""
        return 8

    def batches(self, job: Job) -> Iterator[Any]:
        """Serve an epoch without end from one pipeline."""
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
            .add_source(_shuffled(len(samples)))
            .pipe(samples.__getitem__, concurrency=threads)
            .aggregate(job.batch_size)
            .pipe(torch.utils.data.default_collate)
            .add_sink(2)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            for images, _ in pipeline.get_iterator():
                yield images


class SlipstreamRow(Row):
    """Slipstream, which maps a file of all encoded images, or of their planes, into memory; threads share each batch.

    It decodes what was read ahead when a batch is asked for, not before. Images are resized by stb_image_resize2, with
    anti-aliasing.
    """

    packages = ("torch", "PIL", "torchvision_v2", "turbojpeg", "slipstream")

    def missing(self) -> str | None:
        """Its own decoder is compiled, and pip installs it without."""
        return super().missing() or _failure(_slipstream_library)

    def settings(self, cores: int) -> list[Setting]:
        """List encoded images and decoded 4:2:0 planes, each read by a thread of its own and by those that decode."""
        return [
            {"image_format": image_format, "use_threading": threading, "threads": cores}
            for image_format in ("jpeg", "yuv420")
            for threading in (True, False)
        ]

    def made_ahead(self, setting: Setting) -> int:
        """Three batches that were read, and one that is being read, or none."""
        return 4 if setting["use_threading"] else 0

    def batches(self, job: Job) -> Iterator[Any]:
        """Build its cache from a folder of links, unless it is there, and serve long shuffled epochs."""
        import numpy as np
        import torchvision_v2 as tv  # first: it lets torchvision in, which Slipstream imports
        from slipstream import SlipstreamDataset, SlipstreamLoader
        from slipstream.decoders import DecodeRandomResizedCrop
        from slipstream.transforms import Normalize, RandomHorizontalFlip, ToTorchImage

        folder = _kept(job, "slipstream")
        os.environ["SLIPSTREAM_CACHE_DIR"] = str(folder)
        pipeline = [
            DecodeRandomResizedCrop(job.size, num_threads=job.setting["threads"], permute=True),  # faster on a CPU
            ToTorchImage(device="cpu"),
            RandomHorizontalFlip(),
            Normalize(tv.MEAN, tv.STD, device="cpu"),
        ]
        loader = SlipstreamLoader(
            SlipstreamDataset(local_dir=str(_image_folder(job, folder / "images")), decode_images=False),
            batch_size=job.batch_size,
            indices=np.resize(np.arange(len(job.files)), _EPOCH),
            pipelines={"image": pipeline},
            image_format=job.setting["image_format"],
            use_threading=job.setting["use_threading"],
        )
        return (batch["image"] for _ in itertools.count() for batch in loader)


class FfcvRow(Row):
    """FFCV, which maps a file of all images, encoded anew or as pixels, into memory; threads share each batch.

    Images are resized by OpenCV's area interpolation.
    """

    packages = ("torch", "PIL", "torchvision_v2", "ffcv")

    def settings(self, cores: int) -> list[Setting]:
        """List images kept as JPEG, of its quality of 90, and as pixels."""
        return [{"write_mode": mode, "workers": cores} for mode in ("jpg", "raw")]

    def made_ahead(self, setting: Setting) -> int:
        """Three batches are ready, and one waits to be."""
        return 4

    def batches(self, job: Job) -> Iterator[Any]:
        """Write its file, unless it is there, and serve long shuffled epochs."""
        import numpy as np
        import torchvision_v2 as tv
        from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

        mean, std = (255 * np.asarray(levels) for levels in (tv.MEAN, tv.STD))
        loader = Loader(
            str(_beton(job)),
            batch_size=job.batch_size,
            num_workers=job.setting["workers"],
            order=OrderOption.RANDOM,
            indices=np.resize(np.arange(len(job.files)), _EPOCH),
            pipelines={
                "image": [
                    RandomResizedCropRGBImageDecoder((job.size, job.size)),
                    RandomHorizontalFlip(),
                    NormalizeImage(mean, std, np.float32),
                    ToTensor(),
                    ToTorchImage(),
                ],
                "label": [IntDecoder(), ToTensor()],
            },
        )
        return (images for _ in itertools.count() for images, _ in loader)


def why_not(package: str) -> str | None:
    """Say why a package cannot be imported, None if it can."""
    failed = _failure(partial(importlib.import_module, package))
    return failed and f"{package}: {failed}"


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


def _from_one_to_two(cores: int) -> list[int]:
    """Return 1, 1.5 and 2 times as many."""
    return list(dict.fromkeys((cores, cores + (cores + 1) // 2, 2 * cores)))


def _shuffled(count: int) -> Iterator[int]:
    """Yield shuffled indices, again and again."""
    for epoch in itertools.count():
        order = list(range(count))
        random.Random(epoch).shuffle(order)
        yield from order


def _failure(attempt: Callable[[], object]) -> str | None:
    """Say what a function raises, None if it returns."""
    try:
        attempt()
    except Exception as error:  # whatever a package without its libraries raises
        return f"{type(error).__name__}: {error}"[:200]
    return None


def _slipstream_library() -> object:
    """Load what Slipstream decodes with."""
    from slipstream.decoders.numba_decoder import load_library

    return load_library()


def _kept(job: Job, kind: str) -> Path:
    """Return a folder for what is written once for the files of a job; that of other files is removed."""
    found = [(file, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in job.files]
    digest = hashlib.sha256(json.dumps([found, list(job.labels)]).encode()).hexdigest()[:16]
    folder = Path(sys.prefix) / "kept" / kind / digest
    if not folder.exists():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder


def _image_folder(job: Job, root: Path) -> Path:
    """Link the files of a job as a folder for each label."""
    for index, (file, label) in enumerate(zip(job.files, job.labels, strict=True)):
        link = root / f"{label:05}" / f"{index:07}{Path(file).suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(file)
    return root


def _beton(job: Job) -> Path:
    """Write FFCV's file."""
    import torchvision_v2 as tv
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    mode = job.setting["write_mode"]
    file = _kept(job, f"ffcv-{mode}") / "samples.beton"
    if not file.exists():
        begun = file.with_suffix(".begun")
        fields = {"image": RGBImageField(write_mode=mode), "label": IntField()}
        writer = DatasetWriter(str(begun), fields, _page_bytes(job.files), num_workers=job.setting["workers"])
        writer.from_indexed_dataset(_Samples(job.files, job.labels, tv.decode, lambda image: image))
        begun.rename(file)
    return file


def _page_bytes(files: Sequence[str]) -> int:
    """Return a size of FFCV's pages, a power of two, into which the largest image fits; else its writer hangs."""
    from PIL import Image

    largest = 0
    for file in set(files):
        with Image.open(file) as image:
            largest = max(largest, 3 * image.width * image.height)
    return 1 << max(23, largest.bit_length())


def _tensor_decoder() -> str:
    """Name the fastest decoder there is for tensors, whose pixels are Pillow's."""
    import torchvision_v2 as tv

    return "pillow" if _failure(tv.turbojpeg) else "turbojpeg"


def _ffmpeg_decoder() -> Callable[[str], Any]:
    """Return SPDL's decoder: a file's path in, (3, H, W) uint8 out; it fails here if FFmpeg's libraries are missing."""
    import spdl.io
    from PIL import Image

    description = spdl.io.get_video_filter_desc(pix_fmt="rgb24")

    def decode(path: str) -> Any:
        frames = spdl.io.load_image(path, filter_desc=description)
        return spdl.io.to_torch(frames).permute(2, 0, 1)

    encoded = io.BytesIO()
    Image.new("RGB", (8, 8)).save(encoded, "PNG")
    spdl.io.load_image(encoded.getvalue(), filter_desc=description)
    return decode


ROWS: dict[str, Row] = {
    "DataLoader, v2 on Pillow": DataLoaderRow("pillow"),
    "DataLoader, v2 on tensors": DataLoaderRow("tensor"),
    "SPDL, v2": SpdlRow(),
    "MONAI CacheDataset, v2": CacheRow(),
    f"Slipstream, {CROP_AND_FLIP}": SlipstreamRow(),
    f"FFCV, {CROP_AND_FLIP}": FfcvRow(),
}
