"""Output: normalised numbers, in the layout and the type that the model wants, made by one function of each kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from dalirefurb.augment.output import Output
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.kernels.instructions import copy, grey, picked, prefetch, stream
from dalirefurb.kernels.llvm import c_function, compiled, element, intrinsic, memory, with_functions
from dalirefurb.kernels.record import WORK

LANES = 16
"""Pixels that are normalised at a time."""

_CACHE_LINE = 64
"""Bytes that come from memory at a time."""

_INT, _LONG = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


def output_of(output: Output | PlainLevels) -> str:
    """Return the name of the function that makes an output, see `compile_output`."""
    if isinstance(output, PlainLevels):
        return "plain_levels"
    if output.dtype == "float32":
        return "floats" if output.channels == 3 else "grey_floats"
    if output.channels == 1:
        return "grey_halves"
    return "half_pixels" if output.channels_last else "half_planes"


def _function(*_: Any) -> None:
    """Stand for what makes an output, see `llvm.with_functions`."""


@cache
def compile_output(name: str) -> Any:
    """Compile what makes an output, or load what was compiled before, once in a process.

    Returns:
        A C function of eleven int64: the address of a `WORK`; that of an image, with its bytes; the part of it that is
        shown, see `floats`; the address of the result; and that of an image that is worked on next, with its bytes. It
        returns 0.
    """

    def run(
        address: Any,
        image: Any,
        nbytes: Any,
        start: Any,
        stride: Any,
        height: Any,
        width: Any,
        mirrored: Any,
        target: Any,
        coming: Any,
        coming_bytes: Any,
    ) -> Any:
        work = memory(address, (1,), WORK)[0]
        levels, following = memory(image, (nbytes,), np.uint8), memory(coming, (coming_bytes,), np.uint8)
        _function(work, levels, (start, stride, height, width, mirrored != 0), target, following)
        return 0

    return c_function(
        with_functions(run, f"output_{name}", _function=compiled(OUTPUTS[name])), types.int64(*[types.int64] * 11)
    )


def floats(work: Any, image: Any, view: Any, target: Any, coming: Any) -> None:
    """Subtract the mean and multiply, in float32.

    Args:
        work: The `WORK`, with the mean and the factor of each channel. If it is streamed, numbers go past the caches to
            memory, of which nothing is read first then: that takes half the time. Results are aligned then, a line is a
            multiple of `LANES`, and others see them after a `fence`.
        image: Levels of the image, pixel after pixel.
        view: Part of the image that is shown: the byte where its first line begins, bytes from line to line, height and
            width in pixels, and whether it is mirrored.
        target: Address of the normalised numbers, float32 of shape (3 * height * width,).
        coming: Levels of an image that is worked on next. On the way it is brought to the caches, as far as pixels are
            counted here: to wait for one line of it after the other takes a quarter more time for all of a final part.
    """
    start, stride, height, width, mirrored = view
    pixels, channels_last, streamed = height * width, work.channels_last != 0, work.streamed != 0
    means, scales = memory(work.means, (3,), np.float32), memory(work.scales, (3,), np.float32)
    out = memory(target, (3 * pixels,), np.float32)
    if stride == 3 * width and not mirrored:
        height, width = 1, pixels
    mean, scale = (means[0], means[1], means[2]), (scales[0], scales[1], scales[2])
    whole = width - width % LANES
    for y in range(height):
        line = start + y * stride
        for x in range(0, whole, LANES):
            at, place = line + 3 * (width - LANES - x if mirrored else x), y * width + x
            if _CACHE_LINE // LANES * place < coming.size:
                prefetch(coming, _CACHE_LINE // LANES * place)
            _tile(image, at, mirrored, mean, scale, channels_last, pixels, streamed, out, place)
        for x in range(whole, width):
            at, place = line + 3 * (width - 1 - x if mirrored else x), y * width + x
            for channel in range(3):
                number = (np.float32(image[at + channel]) - mean[channel]) * scale[channel]
                out[3 * place + channel if channels_last else channel * pixels + place] = number


@intrinsic
def _tile(
    typing_context: Any,
    image: Any,
    at: Any,
    mirrored: Any,
    mean: Any,
    scale: Any,
    channels_last: Any,
    pixels: Any,
    streamed: Any,
    out: Any,
    place: Any,
) -> Any:
    """Normalise `LANES` pixels, which begin at byte `at`, and write them from pixel `place` on: as a few vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, at, mirrored, mean, scale, channels_last, pixels, streamed, _, place = arguments
        data, target = (element(context, builder, signature, arguments, place) for place in (0, 8))
        address = builder.bitcast(builder.gep(data, [at]), ir.VectorType(ir.IntType(8), 3 * LANES).as_pointer())
        levels = builder.load(address, align=1)
        backwards = [3 * (LANES - 1 - pixel) + channel for pixel in range(LANES) for channel in range(3)]
        levels = builder.select(mirrored, picked(builder, levels, backwards), levels)

        def write(lanes: list[int], place: Any) -> None:
            channels = [lane % 3 for lane in lanes]
            numbers = builder.uitofp(builder.zext(picked(builder, levels, lanes), ir.VectorType(_INT, LANES)), _FLOATS)
            numbers = builder.fsub(numbers, _spread(builder, mean, channels))
            numbers = builder.fmul(numbers, _spread(builder, scale, channels))
            address = builder.bitcast(builder.gep(target, [place]), _FLOATS.as_pointer())
            with builder.if_else(streamed) as (past, through):
                with past:
                    stream(builder, numbers, address)
                with through:
                    builder.store(numbers, address, align=4)

        with builder.if_else(channels_last) as (by_pixels, by_planes):
            with by_pixels:
                first = builder.mul(place, ir.Constant(_LONG, 3))
                for part in range(3):
                    lanes = [LANES * part + lane for lane in range(LANES)]
                    write(lanes, builder.add(first, ir.Constant(_LONG, LANES * part)))
            with by_planes:
                for part in range(3):
                    lanes = [3 * lane + part for lane in range(LANES)]
                    write(lanes, builder.add(place, builder.mul(pixels, ir.Constant(_LONG, part))))
        return context.get_dummy_value()

    numbers = types.UniTuple(types.float32, 3)
    signature = types.void(
        image, types.int64, types.boolean, numbers, numbers, types.boolean, types.int64, types.boolean, out, types.int64
    )
    return signature, generate


def _spread(builder: Any, values: Any, channels: list[int]) -> Any:
    """Return a vector of what the channel of each lane has among three values."""
    vector = ir.Constant(_FLOATS, ir.Undefined)
    for channel in range(3):
        vector = builder.insert_element(vector, builder.extract_value(values, channel), ir.Constant(_INT, channel))
    return picked(builder, vector, channels)


def grey_floats(work: Any, image: Any, view: Any, target: Any, coming: Any) -> None:
    """Make one number of a pixel's three levels: that of its grey level; for the arguments see `floats`."""
    start, stride, height, width, mirrored = view
    means, scales = memory(work.means, (3,), np.float32), memory(work.scales, (3,), np.float32)
    out = memory(target, (height * width,), np.float32)
    for y in range(height):
        for x in range(width):
            at = np.uint64(start + y * stride + 3 * (width - 1 - x if mirrored else x))
            out[np.uint64(y * width + x)] = (np.float32(_grey_at(image, at)) - means[0]) * scales[0]


@compiled
def _grey_at(image: Any, at: Any) -> Any:
    """Return the grey level of the pixel at a byte."""
    return grey(image[at], image[at + np.uint64(1)], image[at + np.uint64(2)])


def grey_halves(work: Any, image: Any, view: Any, target: Any, coming: Any) -> None:
    """Look the numbers of grey levels up; for the arguments see `half_planes`."""
    table, out = memory(work.halves, (3, 256), np.uint16), memory(target, (image.size // 3,), np.uint16)
    for i in range(image.size // 3):
        out[i] = table[0, np.uint64(_grey_at(image, np.uint64(3 * i)))]


def half_planes(work: Any, image: Any, view: Any, target: Any, coming: Any) -> None:
    """Look float16 or bfloat16 numbers up, channel after channel, for all of an image; `target` is for their bits."""
    table, out = memory(work.halves, (3, 256), np.uint16), memory(target, (image.size,), np.uint16)
    pixels = image.size // 3
    for channel in range(3):
        for i in range(pixels):
            out[channel * pixels + i] = table[channel, np.uint64(image[np.uint64(3 * i + channel)])]


def half_pixels(work: Any, image: Any, view: Any, target: Any, coming: Any) -> None:
    """Do the same, pixel after pixel."""
    table, out = memory(work.halves, (3, 256), np.uint16), memory(target, (image.size,), np.uint16)
    for i in range(0, image.size, 3):
        for channel in range(3):
            at = np.uint64(i + channel)
            out[at] = table[channel, np.uint64(image[at])]


def plain_levels(work: Any, image: Any, view: Any, target: Any, coming: Any) -> None:
    """Copy all of an image; for the arguments see `half_planes`."""
    copy(image, 0, image.size, memory(target, (image.size,), np.uint8), 0)


OUTPUTS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (floats, grey_floats, grey_halves, half_pixels, half_planes, plain_levels)
}
"""What makes each kind of output."""
