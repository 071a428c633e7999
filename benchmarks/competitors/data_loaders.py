"""Competitors that read the files themselves: PyTorch's DataLoader with whatever data set, SPDL, Grain."""

from __future__ import annotations

import io
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
    failure,
    from_one_to_two,
    kept_folder,
    shuffled,
)


class DataLoaderRow(Row):
    """PyTorch's DataLoader with worker processes.

    Args:
        images: What is decoded: "tensor", "pillow", or what else names a decoder; torchvision works on these two.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2")
    resumes, kept = "no", "nothing"
    collate: Callable[[Any], Any] | None = None

    def __init__(self, images: str) -> None:
        self._images = images

    def settings(self, cores: int) -> list[Setting]:
        """List 1, 1.5 and 2 times as many processes as cores, each with 2 batches ahead, its default."""
        decoder = _tensor_decoder() if self._images == "tensor" else self._images
        return [{"decoder": decoder, "workers": workers, "prefetch_factor": 2} for workers in from_one_to_two(cores)]

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


class SpdlRow(Row):
    """SPDL's pipeline of threads, with its own decoder or Pillow's."""

    packages = ("torch", "PIL", "competitors.torchvision_v2", "spdl.pipeline")
    resumes, kept = "no", "nothing"

    def settings(self, cores: int) -> list[Setting]:
        """List 1, 1.5 and 2 times as many threads as cores, with Pillow's decoder and its own."""
        decoders = ["pillow"] if failure(_ffmpeg_decoder) else ["pillow", "spdl"]
        return [{"decoder": decoder, "threads": threads} for decoder in decoders for threads in from_one_to_two(cores)]

    def made_ahead(self, setting: Setting) -> int:
        """Two batches in the sink, two before it, one in each stage's hands and one being gathered."""
        return 8

    def batches(self, job: Job) -> Iterator[Any]:
        """Serve an epoch without end from one pipeline."""
        import torch
        from competitors import torchvision_v2 as tv
        from spdl.pipeline import PipelineBuilder

        torch.set_num_threads(1)
        if job.setting["decoder"] == "spdl":
            images, decode = "tensor", _ffmpeg_decoder()
        else:
            images, decode = "pillow", tv.decode
        samples = Samples(job.files, job.labels, decode, tv.transforms(job.size, images))  # type: ignore[arg-type]
        threads = job.setting["threads"]
        pipeline = (
            PipelineBuilder()
            .add_source(shuffled(len(samples)))
            .pipe(samples.__getitem__, concurrency=threads)
            .aggregate(job.batch_size)
            .pipe(torch.utils.data.default_collate)
            .add_sink(2)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            for images, _ in pipeline.get_iterator():
                yield images


class GrainRow(DataLoaderRow):
    """Grain's MapDataset, of which processes make whole batches in turn.

    Torch's generator, from which torchvision draws, is seeded for each element by the one that Grain gives for it, so
    that an iterator's state resumes exactly. In threads of one process all would draw from it at once.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2", "grain")
    resumes = "exact"
    _iterator: Any = None

    def settings(self, cores: int) -> list[Setting]:
        """List 1, 1.5 and 2 times as many processes as cores, with Pillow's decoder and the one for tensors."""
        return [
            {"decoder": decoder, "workers": workers, "buffer": 1}
            for decoder in dict.fromkeys(("pillow", _tensor_decoder()))
            for workers in from_one_to_two(cores)
        ]

    def made_ahead(self, setting: Setting) -> int:
        """Those in a buffer of each process, one in its hands, and as many here, in its thread's."""
        return int(setting["workers"] * 2 * (setting["buffer"] + 1))

    def batches(self, job: Job) -> Iterator[Any]:
        """Serve shuffled epochs that have no end."""
        import grain
        import torch

        decode, transform = decoded(job, "tensor" if job.setting["decoder"] == "turbojpeg" else "pillow")

        def randomly(sample: tuple[Any, int], rng: Any) -> tuple[Any, int]:
            torch.manual_seed(int(rng.integers(2**63)))
            return transform(sample[0]).numpy(), sample[1]

        self._iterator = iter(
            grain.MapDataset.source(list(zip(job.files, job.labels, strict=True)))
            .seed(0)
            .shuffle()
            .repeat()
            .map(lambda sample: (decode(sample[0]), sample[1]))
            .random_map(randomly)
            .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
            .batch(job.batch_size, drop_remainder=True)
            .mp_prefetch(
                grain.MultiprocessingOptions(job.setting["workers"], job.setting["buffer"]),
                worker_init_fn=lambda *_: torch.set_num_threads(1),
            )
        )
        return map(lambda batch: torch.from_numpy(batch[0]), self._iterator)  # noqa: C417 (holds no batch)

    def close(self) -> None:
        """Remove batches from shared memory, where they would stay."""
        self._iterator.close()


class OpenCvRow(DataLoaderRow):
    """OpenCV and NumPy: torchvision's windows are resized by areas, which is nearest to anti-aliasing."""

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
            whole = torch.from_numpy(image).permute(2, 0, 1)
            top, left, height, width = tv.v2.RandomResizedCrop.get_params(whole, (0.08, 1), (3 / 4, 4 / 3))
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


def decoded(job: Job, images: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return what decodes a file, or what it has, as a job's setting says, and what makes a sample of that image."""
    from competitors import torchvision_v2 as tv

    decode = tv.decode_tensor if job.setting["decoder"] == "turbojpeg" else tv.decode
    return decode, tv.transforms(job.size, images)  # type: ignore[arg-type]


def _tensor_decoder() -> str:
    """Name the fastest decoder there is for tensors, whose pixels are Pillow's."""
    from competitors import torchvision_v2 as tv

    return "pillow" if failure(tv.turbojpeg) else "turbojpeg"


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
    "grain, v2": GrainRow("tensor"),
    "MONAI CacheDataset, v2": CacheRow(),
    "MONAI CacheNTransDataset, v2": DiskCacheRow(),
    "MONAI SmartCacheDataset, v2": SmartCacheRow(),
    f"DataLoader, OpenCV, {CROP_AND_FLIP}": OpenCvRow(),
    f"DataLoader, albumentations, {CROP_AND_FLIP}": AlbumentationsRow(),
}
