"""Source: the text of a recipe's kernels in CUDA C++, and what each of them needs beside images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.operations import TRUNCATE
from dalirefurb.augment.stage import Sizes
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.augment.stages.erasing import FIRST, ROW, SECOND, THIRD
from dalirefurb.augment.stages.frame import FRAME_FILL, FRAME_START
from dalirefurb.augment.stages.resize import LONG_ROWS, WHOLE_PIXELS
from dalirefurb.kernels.pixels import blur, mixing, resample, resize, warp
from dalirefurb.kernels.record import FULL, MIRROR, START, WARP_START, WIDTH

THREADS = 256
"""Those of a block."""

_FAMILIES = ("levels", "color", "crop_flip", "warp", "blur", "erasing", "mixing", "resize", "resample", "frame")

_OWN = "own"
"""Of kernels that are the user's."""

_BLUR_TABLE = 192
"""Numbers of 32 bits before the sums of `blur.gaussian`: the reach, and weights up to the largest radius."""

_CONSTANTS = {
    "THREADS": THREADS,
    "WIDTH": WIDTH,
    "MIRROR": MIRROR,
    "START": START,
    "FULL": FULL,
    "WARP_START": WARP_START,
    "FRAME_FILL": FRAME_FILL,
    "FRAME_START": FRAME_START,
    "TRUNCATE": TRUNCATE,
    "WHOLE_PIXELS": WHOLE_PIXELS,
    "LONG_ROWS": LONG_ROWS,
    "FILL": warp.FILL,
    "NOISE_ROW": f"{ROW}u",
    "NOISE_FIRST": f"{FIRST}u",
    "NOISE_SECOND": f"{SECOND}u",
    "NOISE_THIRD": f"{THIRD}u",
    "LEAST_WEIGHT": blur.LEAST_WEIGHT,
    "BLUR_TABLE": _BLUR_TABLE,
    "RESIZE_WEIGHT_BITS": resize.WEIGHT_BITS,
    "MANY_TAPS": resize.MANY_TAPS,
    "RESAMPLE_WEIGHT_BITS": resample.WEIGHT_BITS,
    "MIXING_AHEAD": mixing.ahead_bytes(0),
    "MIXING_AHEAD_A_COLUMN": mixing.ahead_bytes(1) - mixing.ahead_bytes(0),
}

Numbers = NDArray[np.float64]
"""Numbers of a step, (WIDTH, n): see `KernelCall`."""

OfImages = Callable[[Sizes, Sizes, Numbers], Any]
"""A number for each image, (n,), or for all, given heights and widths before and after a step, and its numbers."""


@dataclass(frozen=True)
class Needs:
    """What a kernel needs beside images.

    Attributes:
        room_bytes: Bytes of memory, which `prepare` and the first of two passes write.
        prepares: Whether it has a `prepare`.
        passed: Places of the first of two passes; None: there is one pass.
        moves: Whether it moves pixels alone, so that what comes out can do it in passing.
    """

    room_bytes: OfImages = lambda before, after, numbers: 0
    prepares: bool = False
    passed: OfImages | None = None
    moves: bool = False


@cache
def translated(kernel: str) -> bool:
    """Tell whether a kernel is here, given its name."""
    family, _, name = kernel.partition(".")
    text = _texts().get(f"{family}.cuh", "") if family in _FAMILIES else ""
    return re.search(rf"^(?:struct|using) {name}\b", text, re.MULTILINE) is not None


def name_of(kernel: Any) -> str | None:
    """Return the name that a kernel, or a stage of the user's, has on a GPU; None: there is none for a GPU."""
    if isinstance(kernel, KernelStage) and kernel.cuda:
        return f"{_OWN}.of_{sha256(kernel.cuda.encode()).hexdigest()}"
    return kernel if isinstance(kernel, str) and translated(kernel) else None


def own_text(stage: KernelStage) -> str:
    """Return the text of a user's kernel."""
    own = str(name_of(stage)).partition(".")[2]
    pixel = f"DEVICE Pixel pixel(const Step& step, int y, int x) {{\n{stage.cuda}\n}}"
    return f"namespace {_OWN} {{\nstruct {own} : Kernel {{\n{pixel}\n}};\n}}"


def needs(kernel: str) -> Needs:
    """Return what a kernel needs, given its name, such as "warp.nearest"."""
    return _NEEDS.get(kernel, _NOTHING)


def source(kernels: Sequence[str], own: Sequence[str] = ()) -> str:
    """Return the text of some kernels, given their names, and texts of the user's; they are numbered from 1 on."""
    texts = _texts()
    constants = [f"#define {name} {value}" for name, value in _CONSTANTS.items()]
    cases = " ".join(f"DO({number}, {name.replace('.', '::')})" for number, name in enumerate(kernels, 1))
    families = (texts[f"{family}.cuh"] for family in _FAMILIES)
    parts = [texts["step.cuh"], *families, *own, f"#define KERNELS(DO) {cases}"]
    return "\n".join([*constants, *parts, texts["launches.cuh"]])


@cache
def _texts() -> Mapping[str, str]:
    return {path.name: path.read_text() for path in files(__package__).iterdir() if path.name.endswith(".cuh")}


def _levels_of(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
    return 3 * 256


def _blurred(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
    return 4 * _BLUR_TABLE + 12 * before[0] * before[1]


def _mixed(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
    return mixing.mixed_bytes(*before, *after, numbers)


def _picked(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
    return 4 * (after[0] + after[1])


def _resized(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
    (lines, columns), (height, width, full_height, full_width) = after, _windows(numbers)
    across, down = resize.taps(width, full_width), resize.taps(height, full_height)
    return 8 * columns * across + 4 * (columns + lines + lines * down)


def _windows(numbers: Numbers) -> NDArray[np.int64]:
    """Return heights and widths of windows, and of all of what they become."""
    return numbers[[2, 3, FULL, FULL + 1]].astype(np.int64)


def _resample(radius: int) -> tuple[OfImages, OfImages]:
    """Return what kernels of a radius need: bytes, and places of the first pass."""

    def passed(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
        (lines, columns), (height, width, full_height, full_width) = after, _windows(numbers)
        rows_first = height - full_height > np.maximum(2 * (width - full_width), 0)
        return np.where(rows_first, lines * width, height * columns)

    def room_bytes(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
        (lines, columns), (height, width, full_height, full_width) = after, _windows(numbers)
        across, down = resample.taps(radius, width, full_width), resample.taps(radius, height, full_height)
        return 4 * (columns * (2 + across) + lines * (2 + down)) + 3 * passed(before, after, numbers)

    return room_bytes, passed


def _pixels(before: Sizes, after: Sizes, numbers: Numbers) -> Any:
    return before[0] * before[1]


_NOTHING, _MOVED = Needs(), Needs(moves=True)
_CUBIC, _LANCZOS = _resample(resample.BICUBIC), _resample(resample.LANCZOS)
_NEEDS = {
    "levels.contrast": Needs(lambda before, after, numbers: 4, prepares=True),
    "levels.auto_contrast": Needs(_levels_of, prepares=True),
    "levels.equalize": Needs(_levels_of, prepares=True),
    "crop_flip.flip": _MOVED,
    "crop_flip.flip_over": _MOVED,
    "crop_flip.crop": _MOVED,
    "crop_flip.crop_reflected": _MOVED,
    "crop_flip.pick": Needs(_picked, prepares=True),
    "blur.gaussian": Needs(_blurred, prepares=True, passed=_pixels),
    "mixing.begin": Needs(_mixed),
    "mixing.add": Needs(_mixed),
    "mixing.end": Needs(_mixed),
    "resize.bilinear": Needs(_resized, prepares=True),
    "resample.bicubic": Needs(_CUBIC[0], prepares=True, passed=_CUBIC[1]),
    "resample.lanczos": Needs(_LANCZOS[0], prepares=True, passed=_LANCZOS[1]),
}
_FRAMED = ("crop_flip.pick", "resize.bilinear", "resample.bicubic", "resample.lanczos")
_NEEDS |= {f"frame.{name.partition('.')[2]}": _NEEDS[name] for name in _FRAMED}
