"""A user's own loops over pixels beside the library's kernels that do the same, in turns."""

from __future__ import annotations

from typing import Any

import numpy as np
from claims import Claim
from kernel_subjects import Images, Subject, kernel_runner, turn

from dalirefurb.augment import KernelStage, RandAugmentLayer, Solarize
from dalirefurb.augment.policies.operations import OPERATIONS, Chosen


def inverted_above(image: Any, uniforms: Any, out: Any) -> None:
    """Invert the levels from 128 on, as `Solarize`: a user's own loop."""
    for i in range(image.size):
        level = image.flat[i]
        out.flat[i] = np.uint8(255) - level if level >= 128 else level


def brightened(image: Any, uniforms: Any, out: Any) -> None:
    """Brighten as RandAugment's operation does at magnitude 9, level by level."""
    factor, shift = np.float32(1.27), np.float32(-0.498)
    for i in range(image.size):
        level = np.float32(image.flat[i]) * factor + shift
        level = min(max(level, np.float32(0)), np.float32(255)) + np.float32(0.5)
        out.flat[i] = np.uint8(np.int32(level))


def brightened_by_channel(image: Any, uniforms: Any, out: Any) -> None:
    """Do the same by row, column and channel: vectors of one channel are shuffled out of pixels and back."""
    factor, shift = np.float32(1.27), np.float32(-0.498)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            for channel in range(3):
                level = np.float32(image[y, x, channel]) * factor + shift
                level = min(max(level, np.float32(0)), np.float32(255)) + np.float32(0.5)
                out[y, x, channel] = np.uint8(np.int32(level))


def own_loops(images: Images, *, threads: int, rounds: int, batches: int) -> list[dict[str, Any]]:
    """Let a user's own loops take turns with the library's kernels."""
    layer = RandAugmentLayer()
    row = [operation.name for operation in OPERATIONS].index("Brightness")
    sides, bins = np.full(len(images), len(images[0])), np.full(len(images), 9)
    choice = Chosen(np.full(len(images), row), bins, np.zeros(len(images), np.bool_))
    brightness = {layer.name: layer.table.parameters(choice, heights=sides, widths=sides)}
    results = []
    for function, theirs in (
        (inverted_above, Subject("Solarize", (Solarize(),), images, {})),
        (brightened, Subject("Brightness", (layer,), images, brightness)),
        (brightened_by_channel, Subject("Brightness, by row, column and channel", (layer,), images, brightness)),
    ):
        own = Subject(theirs.name, (KernelStage(function, "own"),), images, {})
        runners = [(kernel_runner(subject, threads), subject.feeds("sample")) for subject in (own, theirs)]
        times: list[list[float]] = [[], []]
        for number in range(rounds + 1):
            for place in (0, 1) if number % 2 else (1, 0):
                times[place].append(turn(*runners[place], batches, len(images)))
        ratios = [mine / built_in for mine, built_in in zip(times[0][1:], times[1][1:], strict=True)]
        results.append(
            {
                "name": theirs.name,
                "own_us": times[0][1:],
                "built_in_us": times[1][1:],
                "claim": Claim.ratio(f"KernelStage / built in, {theirs.name}", ratios, [1] * len(ratios), most=1.2),
            }
        )
    return results
