"""Competitors that serve images with their masks, which lie beside them: photograph.jpg and photograph.png."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from competitors.data_loaders import DataLoaderRow
from competitors.rows import SHORTER, WITH_MASKS, Job, Row


class MaskedRow(DataLoaderRow):
    """torchvision v2's transforms of an image and its mask, in PyTorch's DataLoader.

    Args:
        reference: Whether they are those of torchvision's reference, not a random resized crop and a flip.
    """

    packages = ("torch", "PIL", "competitors.torchvision_v2")

    def __init__(self, reference: bool) -> None:
        super().__init__("tensor")
        self._reference = reference

    def _samples(self, job: Job) -> Any:
        import torch
        from competitors import torchvision_v2 as tv
        from PIL import Image
        from torchvision import tv_tensors

        v2 = tv.v2
        crop = [v2.RandomResizedCrop(job.size, scale=(0.25, 1), antialias=True), v2.RandomHorizontalFlip()]
        if self._reference:
            resize = v2.RandomResize(*SHORTER, antialias=True)
            crop = [resize, v2.RandomHorizontalFlip(), tv.FixedSizeCrop(job.size, 0, 255)]
        transform = v2.Compose(
            [
                *crop,
                v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
                v2.Normalize(tv.MEAN, tv.STD),
            ]
        )
        decode = tv.tensor_decoder(job.setting["decoder"])

        class Masked(torch.utils.data.Dataset):  # type: ignore[type-arg, misc]
            def __len__(self) -> int:
                return len(job.files)

            def __getitem__(self, index: int) -> Any:
                image = tv_tensors.Image(decode(job.files[index]))
                with Image.open(Path(job.files[index]).with_suffix(".png")) as mask:
                    return transform(image, tv_tensors.Mask(v2.functional.pil_to_tensor(mask)[0]))

        return Masked()


ROWS: dict[str, Row] = {
    f"DataLoader, v2, {kind}, {WITH_MASKS}": MaskedRow(kind == "reference") for kind in ("crop", "reference")
}
