"""Sizes of partial images in bytes: exact where recipe or source fix them; else samples tell about."""

from __future__ import annotations

from dataclasses import dataclass

from dalirefurb import rng
from dalirefurb.augment.recipe import Recipe
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source

_PROBES = 256
_CHANNELS = 3


@dataclass(frozen=True)
class PartialSizes:
    """Bytes of what is cached: partial images, or encoded ones.

    Attributes:
        slot_shape: Shape (H, W, C) of each partial image, None where the sizes vary.
        mean_bytes: Mean size of a partial image in bytes.
        std_bytes: Standard deviation of the sizes of partial images in bytes.
        largest_bytes: Size in bytes of the largest partial image that was seen.
        mean_error_bytes: Standard error of `mean_bytes` in bytes; 0 if all images were seen.
    """

    slot_shape: tuple[int, int, int] | None
    mean_bytes: float
    std_bytes: float = 0.0
    largest_bytes: float = 0.0
    mean_error_bytes: float = 0.0

    def arena_bytes(self, slots: int) -> int:
        """Return the size of an arena for this many images of varying size; 0 where slots are fixed.

        The sum of many sizes is close to normal: its mean, four standard deviations of it and of the mean's estimate,
        and room for gaps between images.
        """
        if self.slot_shape is not None:
            return 0
        unsure = slots**0.5 * self.std_bytes + slots * self.mean_error_bytes
        return int(1.1 * slots * self.mean_bytes + 4 * unsure + 4 * self.largest_bytes)


def partial_sizes(source: Source, recipe: Recipe, reader: Reader, *, seed: int) -> PartialSizes:
    """Find out how large the partial images of a source are; where they vary, some samples are read, chosen by a seed.

    Raises:
        SampleError: A sample cannot be used, and the reader does not replace bad ones.
    """
    entering = source.image_shape
    size = recipe.partial_size(None if entering is None else entering[:2])
    if size is not None:
        shape = (*size, _CHANNELS)
        return PartialSizes(shape, float(size[0] * size[1] * _CHANNELS))
    probes = rng.permutation(len(source), seed, "size probes")[:_PROBES]
    if recipe.caches_encoded:
        nbytes = reader.lengths(probes)
    else:
        heights, widths = reader.sizes(probes)
        for stage in recipe.partial:
            heights, widths = stage.output_sizes(heights, widths)
        nbytes = _CHANNELS * heights * widths
    std, largest = float(nbytes.std()), float(nbytes.max())
    error = std / len(nbytes) ** 0.5 if len(nbytes) < len(source) else 0.0
    return PartialSizes(None, float(nbytes.mean()), std, largest, error)
