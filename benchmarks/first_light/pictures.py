"""Pictures that probes decode, pipelines that decode them, and how far apart two decoders are."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from first_light.findings import Finding

Sample = NDArray[np.uint8]
Windows = tuple[NDArray[np.int32], NDArray[np.int32]]
"""First rows and columns, and heights and widths, (n, 2) each."""

MAX_BATCH_SIZE = 512
_ORIENTATION = 0x0112


def jpegs(**options: Any) -> list[Sample]:
    """Encode small pictures, some of a photograph's size, and one that a decoder may take another way for."""
    from tests.pictures import jpeg, picture

    sides = [(40 + 7 * (i % 5), 40 + 11 * (i % 4)) for i in range(16)] + [(375, 500), (500, 333), (1100, 1000)]
    pictures = [picture(seed, height=height, width=width) for seed, (height, width) in enumerate(sides)]
    return [sample(jpeg(each, **options)) for each in pictures]


def oriented(orientation: int, **options: Any) -> Sample:
    """Encode a picture that is shown in one of EXIF's eight orientations."""
    from tests.pictures import jpeg, picture

    tags = Image.Exif()
    tags[_ORIENTATION] = orientation
    return sample(jpeg(picture(orientation, height=60, width=200), exif=tags, **options))


def sample(encoded: bytes) -> Sample:
    """Return bytes as DALI takes them."""
    return np.frombuffer(encoded, np.uint8)


def by_pillow(encoded: Sample) -> Sample:
    """Decode upright with Pillow, which knows nothing of DALI."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded.tobytes()))).convert("RGB"))


def pipeline_of(graph: Callable[[], Any], device: str) -> Any:
    """Build a pipeline as the library's are built."""
    from nvidia.dali.pipeline import pipeline_def

    pipeline = pipeline_def(enable_conditionals=True)(graph)(
        batch_size=MAX_BATCH_SIZE,
        num_threads=4,
        device_id=0 if device == "gpu" else None,
        prefetch_queue_depth=1,
        exec_dynamic=True,
    )
    pipeline.build()
    return pipeline


def made(graph: Callable[[], Any], feeds: Mapping[str, Any], device: str) -> list[Sample]:
    """Run a graph once; return its images on the host."""
    pipeline = pipeline_of(graph, device)
    for name, feed in feeds.items():
        pipeline.feed_input(name, feed)
    (output,) = pipeline.run()
    return [np.array(image) for image in (output.as_cpu() if device == "gpu" else output)]


def decoded(samples: Sequence[Sample], device: str, windows: Windows | None = None, **arguments: Any) -> list[Sample]:
    """Decode as the library does, or with other arguments; of each image the whole, or a window by `image_slice`."""
    return made(decoding(device, windowed=windows is not None, **arguments), _feeds(samples, windows), device)


def decoded_windows(samples: Sequence[Sample], device: str, windows: Windows) -> list[Sample]:
    """Decode windows as the library does."""
    return made(decoding_windows(device), _feeds(samples, windows), device)


def decoding(device: str, *, windowed: bool = False, **arguments: Any) -> Callable[[], Any]:
    """Return a graph that decodes as the library does, but for some arguments, which are left out where they are None.

    Args:
        device: Where the images are wanted, "cpu" or "gpu".
        windowed: Whether windows are decoded alone.
        arguments: Of DALI's decoder.
    """
    from nvidia.dali import fn

    from dalirefurb.augment.stages.decode import Decode

    every = Decode()._arguments("gpu" if device == "gpu" else "cpu") | arguments
    given = {name: value for name, value in every.items() if value is not None}

    def graph() -> Any:
        if not windowed:
            return fn.decoders.image(_encoded(), **given)
        start, shape = _window()
        return fn.decoders.image_slice(_encoded(), start=start, shape=shape, axes=[0, 1], **given)

    return graph


def decoding_windows(device: str) -> Callable[[], Any]:
    """Return a graph that decodes windows as the library does."""
    from dalirefurb.augment.stages.decode import Decode

    return lambda: Decode().decode_region(_encoded(), "gpu" if device == "gpu" else "cpu", *_window())


def _encoded() -> Any:
    from nvidia.dali import fn, types

    return fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)


def _window() -> tuple[Any, Any]:
    from nvidia.dali import fn, types

    start, shape = (fn.external_source(name=name, dtype=types.INT32, ndim=1) for name in ("start", "shape"))
    return start, shape


def _feeds(samples: Sequence[Sample], windows: Windows | None) -> dict[str, Any]:
    return {"encoded": list(samples), **dict(zip(("start", "shape"), windows or (), strict=bool(windows)))}


def windows_in(images: Sequence[Sample]) -> Windows:
    """Choose a window of a quarter of each image, at a random place."""
    rng = np.random.default_rng(0)
    sides = np.array([image.shape[:2] for image in images])
    shapes = np.maximum(sides // 2, 1)
    return rng.integers(0, sides - shapes + 1).astype(np.int32), shapes.astype(np.int32)


def cut(images: Sequence[Sample], windows: Windows) -> list[Sample]:
    """Cut windows from whole images."""
    places = zip(images, *windows, strict=True)
    return [image[row : row + height, column : column + width] for image, (row, column), (height, width) in places]


def differences(ones: Sequence[Sample], others: Sequence[Sample]) -> NDArray[np.int64]:
    """Return the difference of each level of each channel of each pixel, in levels.

    Raises:
        ValueError: If an image has another shape than its partner.
    """
    for one, other in zip(ones, others, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"an image is {one.shape}, and {other.shape} by the other decoder")
    return np.concatenate(
        [np.abs(one.astype(np.int64) - other).ravel() for one, other in zip(ones, others, strict=True)]
    )


def near(what: str, ones: Sequence[Sample], others: Sequence[Sample], *, mean: float, told: bool = False) -> Finding:
    """Find whether images are alike: in the mean, and with few levels far away, as codecs differ."""
    try:
        levels = differences(ones, others)
    except ValueError as error:
        return Finding(what, "the same shape", str(error), False)
    far = float((levels > 8).mean())
    right = bool(levels.mean() <= mean and far < 0.01)
    seen = f"mean {levels.mean():.2f}, {100 * far:.2f} % beyond 8, at most {levels.max()} levels"
    return Finding(what, f"mean <= {mean:g} levels, < 1 % beyond 8", seen, None if told else right)


def same(what: str, ones: Sequence[Sample], others: Sequence[Sample], *, told: bool = False) -> Finding:
    """Find whether images are the same bit for bit."""
    differing = [row for row, (a, b) in enumerate(zip(ones, others, strict=True)) if not np.array_equal(a, b)]
    seen = f"images {differing[:8]} of {len(ones)} differ" if differing else f"{len(ones)} images the same"
    return Finding(what, "the same bits", seen, None if told else not differing)
