"""Decode: the first stage of a recipe for encoded images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dalirefurb.augment.stage import Device, Node, Stage

REGIONS_ON_GPU = False
"""Whether windows are decoded alone on a GPU. nvImageCodec 0.9.0, which DALI 2.4 needs, fails there on ordinary windows
of JPEG files (github.com/NVIDIA/nvImageCodec, issue 55), so whole images are decoded and cut, which costs time only."""


@dataclass(frozen=True)
class Decode(Stage):
    """Decode encoded bytes to RGB: EXIF orientation applied, alpha dropped, 16 bits scaled to 8."""

    name: str = "decode"

    keeps_place = True

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Decode whole images on the CPU."""
        return self.decode(images, "cpu")

    def decode(self, encoded: Node, device: Device) -> Node:
        """Decode whole images; "gpu" decodes by nvJPEG from bytes on the host."""
        from nvidia.dali import fn

        return fn.decoders.image(encoded, **self._arguments(device))

    def decode_region(self, encoded: Node, device: Device, start: Node, shape: Node) -> Node:
        """Decode windows only: the same pixels as decoding the whole and slicing.

        Args:
            encoded: Bytes of the encoded image, shape (length,), on the host.
            device: Device where the pixels are wanted, "cpu" or "gpu".
            start: First row and column of the window in the oriented image, int32 (2,).
            shape: Height and width of the window in pixels, int32 (2,).
        """
        from nvidia.dali import fn

        if device == "gpu" and not REGIONS_ON_GPU:
            return fn.slice(self.decode(encoded, device), start=start, shape=shape, axes=[0, 1])
        return fn.decoders.image_slice(encoded, start=start, shape=shape, axes=[0, 1], **self._arguments(device))

    def _arguments(self, device: Device) -> dict[str, Any]:
        from nvidia.dali.types import DALIImageType

        if device == "cpu":
            return {"device": "cpu", "output_type": DALIImageType.RGB}
        return {
            "device": "mixed",
            "output_type": DALIImageType.RGB,
            # The hardware engine would take a share of each batch, so a sample's bits would depend on its neighbours.
            "hw_decoder_load": 0.0,
            # As the CPU does: else chroma is repeated, not interpolated.
            "jpeg_fancy_upsampling": True,
        }
