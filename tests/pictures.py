"""Pictures the tests make themselves."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, *, height: int, width: int) -> Image.Image:
    """A smooth colour gradient with blocks and a little noise: no two seeds alike, not trivial to compress."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    phase, speed = rng.uniform(0, 6, 3), rng.uniform(0.02, 0.2, (2, 3))
    waves = np.sin(rows[..., None] * speed[0] + columns[..., None] * speed[1] + phase)
    blocks = rng.integers(0, 60, (height // 8 + 1, width // 8 + 1, 3)).repeat(8, 0).repeat(8, 1)
    pixels = 90 + 60 * waves + blocks[:height, :width] + rng.normal(0, 4, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, format_: str, **options: object) -> bytes:
    """Encode with Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def jpeg(image: Image.Image, **options: object) -> bytes:
    return encode(image, "JPEG", **{"quality": 90, **options})


def write_folder(root: Path, *, num_samples: int, classes: int = 3) -> Path:
    """Write JPEGs of varying sizes, landscape and portrait, as root/<class>/<number>.jpg."""
    for index in range(num_samples):
        folder = root / f"class_{index % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = 40 + 7 * (index % 5), 40 + 11 * (index % 4)
        (folder / f"{index:03d}.jpg").write_bytes(jpeg(picture(index, height=height, width=width)))
    return root
