"""Competitors that stream samples through stages: SPDL's in threads, Grain's in processes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from competitors.rows import Job, Row, Samples, Setting, decoded, failure, from_one_to_two, shuffled, tensor_decoder


class SpdlRow(Row):
    """SPDL's pipeline of threads, with its own decoder or Pillow's."""

    packages = ("torch", "PIL", "competitors.torchvision_v2", "spdl.pipeline")
    resumes = "no"
    kept = "nothing"

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


class GrainRow(Row):
    """Grain's MapDataset, of which processes make whole batches in turn.

    Torch's generator, from which torchvision draws, is seeded for each element by the one that Grain gives for it, so
    that an iterator's state resumes exactly. In threads of one process all would draw from it at once.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2", "grain")
    resumes = "exact"
    kept = "nothing"
    _iterator: Any = None

    def settings(self, cores: int) -> list[Setting]:
        """List 1, 1.5 and 2 times as many processes as cores, with Pillow's decoder and the one for tensors."""
        return [
            {"decoder": decoder, "processes": processes, "buffer": 1}
            for decoder in dict.fromkeys(("pillow", tensor_decoder()))
            for processes in from_one_to_two(cores)
        ]

    def made_ahead(self, setting: Setting) -> int:
        """Those in a buffer of each process, one in its hands, and as many here, in its thread's."""
        return int(setting["processes"] * 2 * (setting["buffer"] + 1))

    def rotation(self, setting: Setting) -> int:
        """Every process makes a whole batch, in turn."""
        return int(setting["processes"])

    def batches(self, job: Job) -> Iterator[Any]:
        """Serve shuffled epochs that have no end."""
        self._iterator = iter(self.dataset(job))
        return (images for images, _ in self._iterator)

    def close(self) -> None:
        """Remove batches from shared memory, where they would stay."""
        self._iterator.close()

    def dataset(self, job: Job) -> Any:
        """Return the whole pipeline, whose iterator has `get_state` and `set_state`."""
        import grain
        import torch

        decode, transform = decoded(job, "tensor" if job.setting["decoder"] == "turbojpeg" else "pillow")

        def randomly(sample: tuple[Any, int], rng: Any) -> tuple[Any, int]:
            torch.manual_seed(int(rng.integers(2**63)))
            return transform(sample[0]).numpy(), sample[1]

        return (
            grain.MapDataset.source(list(zip(job.files, job.labels, strict=True)))
            .seed(0)
            .shuffle()
            .repeat()
            .map(lambda sample: (decode(sample[0]), sample[1]))
            .random_map(randomly)
            .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
            .batch(job.batch_size, drop_remainder=True)
            .mp_prefetch(
                grain.MultiprocessingOptions(job.setting["processes"], job.setting["buffer"]),
                worker_init_fn=lambda *_: torch.set_num_threads(1),
            )
            .map(lambda batch: (torch.from_numpy(batch[0]), batch[1]))
        )


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


ROWS: dict[str, Row] = {"SPDL, v2": SpdlRow(), "grain, v2": GrainRow()}
