"""The last kernel: normalised numbers, in the layout and the type that the model wants."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from dalirefurb.kernels.buffers import ALIGNMENT
from dalirefurb.kernels.llvm import compiled, grey, intrinsic, prefetch

LANES = 16
"""Pixels that are normalised at a time."""

_CACHE_LINE = 64
"""Bytes that come from memory at a time."""

_INT, _LONG = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


@compiled
def normalise(
    image: Any, view: Any, means: Any, scales: Any, channels_last: Any, streamed: Any, out: Any, coming: Any
) -> None:
    """Subtract the mean and multiply, in float32.

    Args:
        image: Levels of the image, pixel after pixel.
        view: Part of the image that is normalised: the byte where its first line begins, bytes from line to line,
            height and width in pixels, and whether it is mirrored.
        means: Mean of each channel, shape (3,).
        scales: Factor of each channel, shape (3,).
        channels_last: Whether `out` holds pixel after pixel, or channel after channel.
        streamed: Whether numbers go past the caches to memory, of which nothing is read first then: that takes half
            the time. `out` is aligned then, a line is a multiple of `LANES`, and others see it after a `fence`.
        out: Normalised numbers, float32 of shape (3 * height * width,).
        coming: Levels of an image that is worked on next. On the way it is brought to the caches, as far as pixels are
            counted here: to wait for one line of it after the other takes a quarter more time for all of a final part.
    """
    start, stride, height, width, mirrored = view
    pixels = height * width
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
        image, at, mirrored, mean, scale, channels_last, pixels, streamed, out, place = arguments
        data, target = (
            context.make_array(kind)(context, builder, array).data
            for kind, array in ((signature.args[0], image), (signature.args[8], out))
        )
        address = builder.bitcast(builder.gep(data, [at]), ir.VectorType(ir.IntType(8), 3 * LANES).as_pointer())
        levels = builder.load(address, align=1)
        backwards = [3 * (LANES - 1 - pixel) + channel for pixel in range(LANES) for channel in range(3)]
        levels = builder.select(mirrored, _picked(builder, levels, backwards), levels)

        def write(lanes: list[int], place: Any) -> None:
            channels = [lane % 3 for lane in lanes]
            numbers = builder.uitofp(builder.zext(_picked(builder, levels, lanes), ir.VectorType(_INT, LANES)), _FLOATS)
            numbers = builder.fsub(numbers, _spread(builder, mean, channels))
            numbers = builder.fmul(numbers, _spread(builder, scale, channels))
            address = builder.bitcast(builder.gep(target, [place]), _FLOATS.as_pointer())
            with builder.if_else(streamed) as (past, through):
                with past:
                    store = builder.store(numbers, address, align=ALIGNMENT)
                    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INT, 1)]))
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


def _picked(builder: Any, vector: Any, lanes: list[int]) -> Any:
    """Return some lanes of a vector."""
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_INT, len(lanes)), lanes))


def _spread(builder: Any, values: Any, channels: list[int]) -> Any:
    """Return a vector of what the channel of each lane has among three values."""
    vector = ir.Constant(_FLOATS, ir.Undefined)
    for channel in range(3):
        vector = builder.insert_element(vector, builder.extract_value(values, channel), ir.Constant(_INT, channel))
    return _picked(builder, vector, channels)


@compiled
def normalise_grey(image: Any, view: Any, means: Any, scales: Any, out: Any) -> None:
    """Make one number of a pixel's three levels: that of its grey level; for the arguments see `normalise`."""
    start, stride, height, width, mirrored = view
    for y in range(height):
        for x in range(width):
            at = np.uint64(start + y * stride + 3 * (width - 1 - x if mirrored else x))
            out[np.uint64(y * width + x)] = (np.float32(_grey_at(image, at)) - means[0]) * scales[0]


@compiled
def _grey_at(image: Any, at: Any) -> Any:
    """Return the grey level of the pixel at a byte."""
    return grey(np.int32(image[at]), np.int32(image[at + np.uint64(1)]), np.int32(image[at + np.uint64(2)]))


@compiled
def half_grey(image: Any, table: Any, out: Any) -> None:
    """Look the numbers of grey levels up; for the arguments see `half_planes`."""
    for i in range(image.size // 3):
        out[i] = table[0, np.uint64(_grey_at(image, np.uint64(3 * i)))]


@compiled
def half_planes(image: Any, table: Any, out: Any) -> None:
    """Look float16 or bfloat16 numbers up, channel after channel; table and result hold their bits, uint16 (3, 256)."""
    pixels = image.size // 3
    for channel in range(3):
        for i in range(pixels):
            out[channel * pixels + i] = table[channel, np.uint64(image[np.uint64(3 * i + channel)])]


@compiled
def half_pixels(image: Any, table: Any, out: Any) -> None:
    """Do the same, pixel after pixel."""
    for i in range(0, image.size, 3):
        for channel in range(3):
            at = np.uint64(i + channel)
            out[at] = table[channel, np.uint64(image[at])]
