"""How do torchvision's transforms do what our recipe does? `v2`, on Pillow's images or on tensors.

Torchvision's wheels are built for CUDA. Beside a torch without it, its compiled operators do not load, and importing
it fails at the operators that it describes to the compiler. Declared, they let it in; no transform here calls them, all
are torch's or Pillow's own code. Its JPEG decoder is compiled, too, so TurboJPEG, which that one calls as well, decodes
for tensors, or Pillow where TurboJPEG is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image

_MISSING = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

try:
    from torchvision.transforms import InterpolationMode, v2
except RuntimeError:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declared = torch.library.Library("torchvision", "DEF")
    for _schema in _MISSING:
        _declared.define(_schema)
    from torchvision.transforms import InterpolationMode, v2

Images = Literal["pillow", "tensor"]
"""What the transforms work on."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def transforms(size: int, images: Images) -> Callable[[Any], torch.Tensor]:
    """Return what makes a decoded image, Pillow's or (3, H, W) uint8, a (3, size, size) float32 tensor."""
    begin = [v2.ToImage()] if images == "tensor" else []
    end = [] if images == "tensor" else [v2.ToImage()]
    return v2.Compose(
        [
            *begin,
            v2.RandomResizedCrop(size, scale=(0.08, 1), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(2, 9, interpolation=InterpolationMode.NEAREST),
            *end,
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


class FixedSizeCrop(v2.Transform):  # type: ignore[misc]
    """Crop where a side is larger, anywhere; pad on the right and below where it is smaller, as the references do.

    Args:
        size: Side of the result in pixels.
        image: Fill of an image.
        other: Fill of all else.
    """

    def __init__(self, size: int, image: Any, other: int) -> None:
        super().__init__()
        self._size, self._image, self._other = size, image, other

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Draw where to crop; the image comes first."""
        height, width = v2.functional.get_size(flat_inputs[0])
        kept = [min(side, self._size) for side in (height, width)]
        lacks = [self._size - side for side in kept]
        places = (int(torch.randint(side - own + 1, ())) for side, own in zip((height, width), kept, strict=True))
        return {"window": [*places, *kept], "padding": [0, 0, lacks[1], lacks[0]]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Crop and pad an image, its masks or its boxes."""
        from torchvision import tv_tensors

        made = v2.functional.crop(inpt, *params["window"])
        fill = self._image if isinstance(inpt, tv_tensors.Image) else self._other
        return v2.functional.pad(made, params["padding"], fill=fill) if any(params["padding"]) else made


def decode(file: str | Path | bytes) -> Image.Image:
    """Decode a file, or what it has, with Pillow."""
    with Image.open(BytesIO(file) if isinstance(file, bytes) else file) as image:
        return image.convert("RGB")


def decode_tensor(file: str | Path | bytes) -> torch.Tensor:
    """Decode a file or its bytes to (3, H, W) uint8, to Pillow's pixels: with TurboJPEG, where it fails with Pillow."""
    try:
        encoded = file if isinstance(file, bytes) else Path(file).read_bytes()
        pixels = turbojpeg().decode(encoded, pixel_format=0)  # RGB
    except OSError:
        return v2.functional.pil_to_tensor(decode(file))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def tensor_decoder(name: str) -> Callable[[str], torch.Tensor]:
    """Return what decodes a file to (3, H, W) uint8: "turbojpeg", or Pillow."""
    return decode_tensor if name == "turbojpeg" else lambda file: v2.functional.pil_to_tensor(decode(file))


@cache
def turbojpeg() -> Any:
    """Load TurboJPEG."""
    from turbojpeg import TurboJPEG

    return TurboJPEG()
