"""Competitors that write all images to a format of their own first: Slipstream, FFCV, LitData."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from competitors.data_loaders import DataLoaderRow, decoded
from competitors.rows import (
    CROP_AND_FLIP,
    LONG_EPOCH,
    Job,
    Row,
    Samples,
    Setting,
    failure,
    kept_folder,
)

_COPIES = 500.0  # more of a few samples take LitData minutes to begin with


class SlipstreamRow(Row):
    """Slipstream, which maps a file of all encoded images, or of their planes, into memory; threads share each batch.

    It decodes what was read ahead when a batch is asked for, not before. Images are resized by stb_image_resize2, with
    anti-aliasing.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2", "turbojpeg", "slipstream")
    resumes, kept = "no", "files or decoded images"

    def missing(self) -> str | None:
        """Its own decoder is compiled, and pip installs it without."""
        return super().missing() or failure(_slipstream_library)

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
        from competitors import torchvision_v2 as tv  # first: it lets torchvision in, which Slipstream imports
        from slipstream import SlipstreamDataset, SlipstreamLoader
        from slipstream.decoders import DecodeRandomResizedCrop
        from slipstream.transforms import Normalize, RandomHorizontalFlip, ToTorchImage

        folder = kept_folder(job, "slipstream")
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
            indices=np.resize(np.arange(len(job.files)), LONG_EPOCH),
            pipelines={"image": pipeline},
            image_format=job.setting["image_format"],
            use_threading=job.setting["use_threading"],
        )
        return (batch["image"] for _ in itertools.count() for batch in loader)


class FfcvRow(Row):
    """FFCV, which maps a file of all images, encoded anew or as pixels, into memory; threads share each batch.

    Images are resized by OpenCV's area interpolation.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2", "ffcv")
    resumes, kept = "no", "files or decoded images"

    def settings(self, cores: int) -> list[Setting]:
        """List images kept as JPEG, of its quality of 90, and as pixels."""
        return [{"write_mode": mode, "workers": cores} for mode in ("jpg", "raw")]

    def made_ahead(self, setting: Setting) -> int:
        """Three batches are ready, and one waits to be."""
        return 4

    def batches(self, job: Job) -> Iterator[Any]:
        """Write its file, unless it is there, and serve long shuffled epochs."""
        import numpy as np
        from competitors import torchvision_v2 as tv
        from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

        mean, std = (255 * np.asarray(levels) for levels in (tv.MEAN, tv.STD))
        loader = Loader(
            str(_beton(job)),
            batch_size=job.batch_size,
            num_workers=job.setting["workers"],
            order=OrderOption.RANDOM,
            indices=np.resize(np.arange(len(job.files)), LONG_EPOCH),
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


class LitDataRow(DataLoaderRow):
    """LitData, whose workers decode encoded images of chunks that they stream; an epoch has many shuffled copies."""

    packages = ("torch", "PIL", "competitors.torchvision_v2", "litdata")
    resumes, kept = "by sample", "files"

    def batches(self, job: Job) -> Iterator[Any]:
        """Write its chunks, unless they are there, and serve long shuffled epochs."""
        from litdata import StreamingDataLoader, StreamingDataset

        decode, transform = decoded(job, self._images)

        def made(sample: dict[str, Any]) -> tuple[Any, int]:
            return transform(decode(bytes(sample["image"]))), sample["label"]

        loader = StreamingDataLoader(
            StreamingDataset(str(_chunks(job)), shuffle=True, subsample=_COPIES, transform=made),
            batch_size=job.batch_size,
            drop_last=True,
            num_workers=job.setting["workers"],
            prefetch_factor=job.setting["prefetch_factor"],
        )
        return (images for _ in itertools.count() for images, _ in loader)


def _slipstream_library() -> object:
    """Load what Slipstream decodes with."""
    from slipstream.decoders.numba_decoder import load_library

    return load_library()


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
    from competitors import torchvision_v2 as tv
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    mode = job.setting["write_mode"]
    file = kept_folder(job, f"ffcv-{mode}") / "samples.beton"
    if not file.exists():
        begun = file.with_suffix(".begun")
        fields = {"image": RGBImageField(write_mode=mode), "label": IntField()}
        writer = DatasetWriter(str(begun), fields, _page_bytes(job.files), num_workers=job.setting["workers"])
        writer.from_indexed_dataset(Samples(job.files, job.labels, tv.decode, lambda image: image))
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


def _chunks(job: Job) -> Path:
    """Write LitData's chunks."""
    from litdata import optimize

    folder = kept_folder(job, "litdata") / "chunks"
    if not (folder / "index.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        encoded = partial(_encoded, job.files, job.labels)
        numbers, workers = list(range(len(job.files))), job.setting["workers"]
        optimize(encoded, numbers, str(folder), chunk_bytes="64MB", num_workers=workers, start_method="fork")
    return folder


def _encoded(files: Sequence[str], labels: Sequence[int], number: int) -> dict[str, Any]:
    return {"image": Path(files[number]).read_bytes(), "label": labels[number]}


ROWS: dict[str, Row] = {
    f"Slipstream, {CROP_AND_FLIP}": SlipstreamRow(),
    f"FFCV, {CROP_AND_FLIP}": FfcvRow(),
    "litdata, v2": LitDataRow("tensor"),
}
