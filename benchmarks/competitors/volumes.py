"""MONAI with volumes: scan.nii.gz and scan_mask.nii.gz, of which several cubes are cropped at a time.

Its transforms are those of Clara Train's and MONAI's examples, as its guide to fast training has them: what is not
random comes first, the indices of foreground and background too, and nothing tracks meta data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from competitors.data_loaders import DataLoaderRow
from competitors.rows import CUBES, HOUNSFIELD, MASK, NIFTI, REPLACED, VOLUMES, Job, Setting, shuffled


class VolumesRow(DataLoaderRow):
    """A `Dataset` in MONAI's DataLoader, which loads each volume anew."""

    packages = ("torch", "monai.data", "nibabel")

    def __init__(self) -> None:
        super().__init__("monai")

    def settings(self, cores: int) -> list[Setting]:
        """List as many processes as cores, and twice as many."""
        return [{"workers": workers, "prefetch_factor": 2} for workers in (cores, 2 * cores)]

    def batches(self, job: Job) -> Iterator[Any]:
        """Cache what is cached, then serve an epoch without end."""
        sampler = shuffled(len(job.files))
        loader = _loader(self._samples(job), job, sampler=sampler, persistent_workers=job.setting["workers"] > 0)
        return (batch["image"] for batch in loader)

    def _samples(self, job: Job) -> Any:
        from monai.data import Dataset

        return Dataset(_items(job), _transform(job.size))


class CachedVolumesRow(VolumesRow):
    """A `CacheDataset`; its cached volumes are not copied, as nothing here changes them."""

    kept = "decoded images"

    def settings(self, cores: int) -> list[Setting]:
        """List a thread, whose operations take one core or all, and processes.

        Threads as workers are left out: random transforms are not safe in them, as MONAI says.
        """
        return [
            *(
                {"loader": "ThreadDataLoader", "workers": 0, "threads": threads}
                for threads in dict.fromkeys((1, cores))
            ),
            {"loader": "DataLoader", "workers": cores, "prefetch_factor": 2},
        ]

    def made_ahead(self, setting: Setting) -> int:
        """Those of the workers, and of the thread: one in the buffer, one that waits for it, and one that is made."""
        buffered = 3 if setting["loader"] == "ThreadDataLoader" else 0
        return int(setting["workers"] * setting.get("prefetch_factor", 0)) + buffered

    def rotation(self, setting: Setting) -> int:
        """Every worker makes a whole batch, in turn."""
        return max(1, setting["workers"])

    def _samples(self, job: Job) -> Any:
        from monai.data import CacheDataset

        return CacheDataset(_items(job), _transform(job.size), num_workers=2, progress=False, copy_cache=False)


class SmartCacheRow(CachedVolumesRow):
    """A `SmartCacheDataset`, whose window moves on after each epoch; processes are forked anew for each, as they must.

    A job's setting has the window, too, as "cache_num".
    """

    def settings(self, cores: int) -> list[Setting]:
        """List the same, with a thread for replacements, and with as many as cores."""
        return [
            {**each, "num_replace_workers": workers}
            for each in super().settings(cores)
            for workers in dict.fromkeys((1, cores))
        ]

    def batches(self, job: Job) -> Iterator[Any]:
        """Fill the window, then serve epoch after epoch."""
        dataset = self._samples(job)
        loader = _loader(dataset, job, shuffle=True)
        dataset.start()
        while True:
            for batch in loader:
                yield batch["image"]
            dataset.update_cache()

    def _samples(self, job: Job) -> Any:
        from monai.data import SmartCacheDataset

        return SmartCacheDataset(
            _items(job),
            _transform(job.size),
            replace_rate=REPLACED,
            cache_num=job.setting["cache_num"],
            num_init_workers=2,
            num_replace_workers=job.setting["num_replace_workers"],
            progress=False,
            copy_cache=False,
        )


def _loader(dataset: Any, job: Job, **arguments: Any) -> Any:
    """Make the loader that a setting names; a batch has all cubes of some volumes."""
    import torch
    from monai.data import DataLoader, ThreadDataLoader

    torch.set_num_threads(job.setting.get("threads", 1))
    make = ThreadDataLoader if job.setting.get("loader") == "ThreadDataLoader" else DataLoader
    if job.setting["workers"]:
        arguments["prefetch_factor"] = job.setting["prefetch_factor"]
    return make(dataset, batch_size=job.batch_size // CUBES, num_workers=job.setting["workers"], **arguments)


def _items(job: Job) -> list[dict[str, str]]:
    return [{"image": file, "label": file.replace(NIFTI, MASK)} for file in job.files]


def _transform(size: int) -> Any:
    """Return what makes cubes of an item; what a `MetaTensor` tracks would cost more than twice the time."""
    from monai import transforms as each
    from monai.data import set_track_meta

    set_track_meta(False)
    both, (low, high) = ["image", "label"], HOUNSFIELD
    return each.Compose(
        [
            each.LoadImaged(both),
            each.EnsureChannelFirstd(both, channel_dim="no_channel"),
            each.ScaleIntensityRanged("image", low, high, 0, 1, clip=True),
            each.FgBgToIndicesd("label", "_fg", "_bg"),
            each.EnsureTyped(both),
            each.RandCropByPosNegLabeld(
                both,
                "label",
                (size, size, size),
                pos=1,
                neg=1,
                num_samples=CUBES,
                fg_indices_key="label_fg",
                bg_indices_key="label_bg",
            ),
            *(each.RandFlipd(both, prob=0.5, spatial_axis=axis) for axis in range(3)),
            each.RandRotate90d(both, prob=0.1, max_k=3),
            each.RandShiftIntensityd("image", offsets=0.1, prob=0.5),
        ]
    )


ROWS: dict[str, DataLoaderRow] = {
    f"MONAI {name}, {VOLUMES}": row
    for name, row in (
        ("SmartCacheDataset", SmartCacheRow()),
        ("CacheDataset", CachedVolumesRow()),
        ("Dataset", VolumesRow()),
    )
}
