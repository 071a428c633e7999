"""Forms of what is kept: a JPEG's planes in place of RGB, and images that are behind the first stages of recipes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from dalirefurb.augment.recipe import refusal_of
from dalirefurb.augment.stage import Stage, as_inputs, draw, leaving
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import GREY, HALVED, Images
from dalirefurb.kernels import VERSION
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.source import Source

if TYPE_CHECKING:
    from dalirefurb.kernels.program import KernelProgram
    from dalirefurb.kernels.rows import KernelThreadPool


_4_2_0 = 2
"""Of Pillow's `get_sampling`."""


@dataclass(frozen=True)
class Planes:
    """An image that is made, and what is kept of it.

    Attributes:
        image: The image, upright, uint8 of shape (height, width, 3).
        content: Its planes, uint8 of shape (nbytes,), see `image_batch.HALVED`.
    """

    image: NDArray[np.uint8]
    content: NDArray[np.uint8]


def planes_of(encoded: NDArray[np.uint8], image: NDArray[np.uint8]) -> Planes | None:
    """Return the planes of a JPEG of 4:2:0, or in grey; None if these do not make the same image.

    Pillow gives them: Y as the grey image, and Cb and Cr of the image at half its size, where they are as they are
    stored. Of an image that EXIF turns, they would make the one that is not turned.

    Args:
        encoded: Bytes of the file, shape (length,).
        image: The image as a loader decodes it, upright, uint8 of shape (height, width, 3).
    """
    try:
        found = _found(encoded.tobytes(), *image.shape[:2])
    except Exception:  # Pillow's: it is no JPEG, or one of which the decoder knew better.
        return None
    if found is None:
        return None
    from dalirefurb.kernels.pixels.planes import rgb  # Who keeps no planes needs no compiler.

    layout, content = found
    return Planes(image, content) if np.array_equal(rgb(content, image.shape[:2], layout), image) else None


def _found(encoded: bytes, height: int, width: int) -> tuple[int, NDArray[np.uint8]] | None:
    """Return a layout, and what may be the planes of an image of this size; None: there are none of such a layout."""
    luma = JpegImageFile(io.BytesIO(encoded))
    if luma.size != (width, height) or luma.mode not in ("L", "RGB"):
        return None
    grey = luma.mode == "L"
    if not grey and (min(height, width) < 2 or get_sampling(luma) != _4_2_0):
        return None
    luma.draft("L", None)
    levels = np.asarray(luma)
    if grey:
        return GREY, levels.reshape(-1).copy()
    colours = JpegImageFile(io.BytesIO(encoded))
    colours.draft("YCbCr", (width // 2, height // 2))
    halves = np.asarray(colours)
    if halves.shape != ((height + 1) // 2, (width + 1) // 2, 3):
        return None
    return HALVED, np.concatenate([levels.reshape(-1), *(halves[:, :, each].reshape(-1) for each in (1, 2))])


class Prefix:
    """Makes what stages leave of images, by the kernels by which a loader would make it.

    Args:
        stages: First stages of recipes, decoding included.
        source: Source whose samples enter the first of them.

    Attributes:
        image_shape: Shape (height, width, 3) of what is made, None where it varies.

    Raises:
        ConfigurationError: If what they make cannot be kept.
    """

    def __init__(self, stages: Sequence[Any], source: Source) -> None:
        encoded, names = source.encoded, ", ".join(getattr(stage, "name", repr(stage)) for stage in stages)
        if not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise ConfigurationError(
                f"form must be 'decoded', 'encoded', or the first stages of a recipe, got [{names}]: pass such as "
                f"recipe.stages[:2]"
            )
        if isinstance(stages[0], Decode) != encoded or len(stages) == encoded:
            raise ConfigurationError(
                f"form must be {'Decode and what follows' if encoded else 'stages behind decoding'} where a source "
                f"gives {'encoded images' if encoded else 'images'}, got {names}: 'decoded' keeps images as they are"
            )
        if source.annotations is not None:
            raise ConfigurationError(
                f"form=[{names}] is for a source without targets, which would not move along: pass form='decoded'"
            )
        if find_spec("numba") is None:
            raise ConfigurationError(f"form=[{names}] needs Numba, which is not installed: pip install numba")
        from dalirefurb.kernels.lower import steps_of

        for stage in stages:
            if stage.random:
                raise ConfigurationError(
                    f"what is kept is the same in every epoch, but {stage.name!r} is random: end form= before it"
                )
            if not isinstance(stage, Decode) and steps_of((stage,)) is None:
                raise ConfigurationError(
                    f"what is kept is made by compiled kernels, but {stage.name!r} has none: end form= before it"
                )
        self.stages = tuple(stages)
        shape = source.image_shape
        size = leaving(self.stages, None if shape is None else shape[:2])
        self.image_shape = None if size is None else (*size, 3)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides what is made of an image, as JSON values."""
        return {"stages": [stage.fingerprint() for stage in self.stages], "kernels": f"numba {VERSION}"}

    def refusal(self, images: Sequence[NDArray[np.uint8]]) -> tuple[int, str] | None:
        """Find an image that a stage cannot take, or of which one makes too large a one: its row, and why."""
        return refusal_of([self.stages], *_sides(images), max_pixels=BadSamplePolicy().max_pixels)

    def kernels(self) -> tuple[KernelProgram, KernelThreadPool]:
        """Return what makes images, for one thread."""
        from dalirefurb.kernels.lower import steps_of
        from dalirefurb.kernels.program import KernelProgram
        from dalirefurb.kernels.rows import KernelThreadPool

        steps = steps_of(tuple(stage for stage in self.stages if not isinstance(stage, Decode)))
        assert steps is not None
        return KernelProgram(steps, None, split=len(steps)), KernelThreadPool(0)

    def made(self, images: Sequence[NDArray[np.uint8]], kernels: tuple[KernelProgram, KernelThreadPool]) -> Images:
        """Return what the stages leave of images of which none is refused."""
        from dalirefurb.kernels.buffers import OutputBuffers

        (program, pool), (heights, widths) = kernels, _sides(images)
        nothing = np.zeros(len(images), np.int64)
        drawn, _, _ = draw(self.stages, seed=0, indices=nothing, numbers=nothing, heights=heights, widths=widths)
        work = program.work({"sample": images, **as_inputs(drawn)}, reserve=OutputBuffers(0).partials)
        pool.share(work.part(np.arange(len(images))))
        return work.partials


def _sides(images: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    heights, widths = np.array([image.shape[:2] for image in images], np.int64).T
    return heights, widths
