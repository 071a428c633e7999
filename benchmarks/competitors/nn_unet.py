"""MONAI's transforms nearest to nnU-Net's: for each line of standard input, a number, so many windows; prints seconds.

    python nn_unet.py VOLUME SIZE        a .npz of "image" and "mask", and the side of the windows

The seconds are of CPU time of the whole process, on one thread.
"""

from __future__ import annotations

import sys
import time
from math import radians, sqrt
from typing import Any

import numpy as np


def transforms(size: int) -> Any:
    """Return them; MONAI has none for nnU-Net's contrast. Values are taken linearly between voxels, as ours."""
    from monai.transforms import (
        Compose,
        RandAdjustContrastd,
        RandAffined,
        RandFlipd,
        RandGaussianNoised,
        RandGaussianSmoothd,
        RandScaleIntensityd,
        RandSimulateLowResolutiond,
        RandSpatialCropd,
    )

    keys, sigma, turn = ("image", "mask"), (0.5, 1.0), [(-radians(30), radians(30))] * 3
    modes = {"mode": ("bilinear", "nearest"), "padding_mode": "zeros"}
    return Compose(
        [
            RandSpatialCropd(keys, (size,) * 3, random_size=False),
            RandAffined(keys, prob=0.2, rotate_range=turn, **modes),
            RandAffined(keys, prob=0.2, scale_range=[(-0.3, 0.4)] * 3, **modes),
            RandGaussianNoised("image", prob=0.1, std=sqrt(0.1)),
            RandGaussianSmoothd("image", sigma, sigma, sigma, prob=0.2),
            RandScaleIntensityd("image", factors=0.25, prob=0.15),
            RandSimulateLowResolutiond("image", prob=0.25, zoom_range=(0.5, 1.0), upsample_mode="trilinear"),
            RandAdjustContrastd("image", prob=0.1, gamma=(0.7, 1.5), invert_image=True, retain_stats=True),
            RandAdjustContrastd("image", prob=0.3, gamma=(0.7, 1.5), retain_stats=True),
            *(RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(3)),
        ]
    )


def main() -> None:
    """Make windows when asked."""
    import torch
    from monai.data import set_track_meta

    torch.set_num_threads(1)
    set_track_meta(False)
    given = np.load(sys.argv[1])
    volume = {name: torch.from_numpy(given[name]) for name in ("image", "mask")}
    volume["mask"] = volume["mask"][None]
    transform = transforms(int(sys.argv[2]))
    transform.set_random_state(0)
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            transform(volume)
        sys.stdout.write(f"{time.process_time() - began}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
