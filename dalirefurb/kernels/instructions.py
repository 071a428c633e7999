"""Instructions for pixels that Python has no word for: several bytes at a time, copies, and what caches are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dalirefurb.image_batch import ALIGNMENT
from dalirefurb.kernels.llvm import element, intrinsic

_GREY = (9798, 19235, 3735)
"""Weights of red, green and blue, whose sum is 2 ** 15."""


@intrinsic
def grey(typing_context: Any, red: Any, green: Any, blue: Any) -> Any:
    """Return the level of grey of three levels, uint8: the sum by `_GREY`, halves up.

    The weights' high and low bytes are summed each in 16 bits, of which a vector holds twice as many as of 32.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = ir.IntType(16)
        levels = [builder.zext(level, half) for level in arguments]

        def weighed(start: int, weights: list[int]) -> Any:
            total = half(start)
            for level, weight in zip(levels, weights, strict=True):
                total = builder.add(total, builder.mul(level, half(weight)))
            return total

        low = weighed(0, [weight & 255 for weight in _GREY])
        high = weighed(1 << 6, [weight >> 8 for weight in _GREY])
        return builder.trunc(builder.lshr(builder.add(high, builder.lshr(low, half(8))), half(7)), ir.IntType(8))

    return types.uint8(types.uint8, types.uint8, types.uint8), generate


def _load(bits: int, what: Any) -> Callable[..., Any]:
    @intrinsic
    def load(typing_context: Any, image: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = element(context, builder, signature, arguments, 0, 1)
            return builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)

        return what(image, offset), generate

    return load


def stream(builder: Any, value: Any, address: Any) -> None:
    """Write a value past the caches, to a multiple of `ALIGNMENT` bytes; others see it after a `fence`."""
    store = builder.store(value, address, align=ALIGNMENT)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


def picked(builder: Any, one: Any, lanes: Sequence[int], other: Any = None) -> Any:
    """Return some lanes of a vector, or of two, one behind the other."""
    order = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), [*lanes])
    return builder.shuffle_vector(one, one if other is None else other, order)


def _limited(builder: Any, numbers: Any) -> Any:
    """Return levels of 8 bits: the nearest to each of some whole numbers."""
    for sign, limit in (("<", 0), (">", 255)):
        limits = ir.Constant(numbers.type, [limit] * numbers.type.count)
        numbers = builder.select(builder.icmp_signed(sign, numbers, limits), limits, numbers)
    return builder.trunc(numbers, ir.VectorType(ir.IntType(8), numbers.type.count))


load_pixel = _load(32, types.uint32)
"""Read the four bytes at an offset, the first one lowest: a pixel and the byte after it."""

load_pair = _load(64, types.uint64)
"""Read the eight bytes at an offset, the first one lowest: two pixels and the two bytes after them."""


@intrinsic
def store_pixel(typing_context: Any, image: Any, offset: Any, pixel: Any) -> Any:
    """Write what `load_pixel` reads: four bytes, of which the last belongs to the next pixel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(element(context, builder, signature, arguments, 0, 1), ir.IntType(32).as_pointer())
        builder.store(arguments[2], address, align=1)
        return context.get_dummy_value()

    return types.void(image, offset, types.uint32), generate


@intrinsic
def store_four(typing_context: Any, image: Any, offset: Any, pixels: Any, first: Any) -> Any:
    """Write four pixels, four bytes each as `load_pixel` reads them, and four bytes more, whatever is in these."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        levels = ir.VectorType(ir.IntType(8), 16)
        target, source = (element(context, builder, signature, arguments, place, place + 1) for place in (0, 2))
        four = builder.load(builder.bitcast(source, levels.as_pointer()), align=4)
        order = [4 * pixel + channel for pixel in range(4) for channel in range(3)] + [3, 7, 11, 15]
        packed = picked(builder, four, order)
        builder.store(packed, builder.bitcast(target, levels.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(image, offset, pixels, types.int64), generate


@intrinsic
def weighed_pixels(typing_context: Any, image: Any, offset: Any, weights: Any, count: Any, bits: Any) -> Any:
    """Add pixels up, one after the other from an offset on, by int32 weights; of each, four bytes are read.

    Returns:
        The sums of the four, divided by 2 ** `bits`, rounded and limited to 0 .. 255, as bytes, the first one lowest.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, pixel = ir.IntType(32), ir.VectorType(ir.IntType(32), 4)
        levels = ir.VectorType(ir.IntType(8), 4)
        data, weight = (element(context, builder, signature, arguments, place) for place in (0, 2))
        shift = builder.trunc(arguments[4], number)
        half = builder.lshr(builder.shl(number(1), shift), number(1))

        def all_four(value: Any) -> Any:
            first = builder.insert_element(ir.Constant(pixel, ir.Undefined), value, number(0))
            return picked(builder, first, [0] * 4)

        total = cgutils.alloca_once_value(builder, all_four(half))
        with cgutils.for_range(builder, arguments[3]) as loop:
            at = builder.gep(data, [builder.add(arguments[1], builder.mul(loop.index, loop.index.type(3)))])
            source = builder.zext(builder.load(builder.bitcast(at, levels.as_pointer()), align=1), pixel)
            factor = all_four(builder.load(builder.gep(weight, [loop.index])))
            builder.store(builder.add(builder.load(total), builder.mul(source, factor)), total)
        mean = builder.ashr(builder.load(total), all_four(shift))
        return builder.bitcast(_limited(builder, mean), number)

    return types.uint32(image, types.int64, weights, types.int64, types.int64), generate


@intrinsic
def weighed_pairs(
    typing_context: Any, image: Any, offset: Any, weights: Any, first: Any, pairs: Any, row: Any, at: Any
) -> Any:
    """Add pixels up, two by two from an offset on, by int16 weights, and write the sums: four float32, one too many.

    Two bytes are read beyond the last pair. Processors have an instruction for two products of 16 bits and their sum.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, offset, _, first, pairs, _, at = arguments
        number, sums = ir.IntType(32), ir.VectorType(ir.IntType(32), 4)
        levels, halves = ir.VectorType(ir.IntType(8), 8), ir.VectorType(ir.IntType(16), 8)
        data, weight, target = (element(context, builder, signature, arguments, place) for place in (0, 2, 5))
        weight = builder.bitcast(builder.gep(weight, [first]), number.as_pointer())

        total = cgutils.alloca_once_value(builder, ir.Constant(sums, [0] * 4))
        with cgutils.for_range(builder, pairs) as loop:
            source = builder.gep(data, [builder.add(offset, builder.mul(loop.index, loop.index.type(6)))])
            pair = builder.load(builder.bitcast(source, levels.as_pointer()), align=1)
            pair = builder.zext(picked(builder, pair, [0, 3, 1, 4, 2, 5, 6, 7]), halves)
            both = builder.load(builder.gep(weight, [loop.index]), align=2)
            both = builder.insert_element(ir.Constant(sums, ir.Undefined), both, number(0))
            both = builder.bitcast(picked(builder, both, [0] * 4), halves)
            wide = ir.VectorType(number, 8)
            products = builder.mul(builder.sext(pair, wide), builder.sext(both, wide))
            added = builder.add(picked(builder, products, [0, 2, 4, 6]), picked(builder, products, [1, 3, 5, 7]))
            builder.store(builder.add(builder.load(total), added), total)
        four = builder.sitofp(builder.load(total), ir.VectorType(ir.FloatType(), 4))
        builder.store(four, builder.bitcast(builder.gep(target, [at]), four.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(image, types.int64, weights, types.int64, types.int64, row, types.int64), generate


@intrinsic
def three_to_one(typing_context: Any, near: Any, far: Any, half: Any, bits: Any) -> Any:
    """Return (3 * near + far + half) >> bits of levels or sums of 16 bits, uint16: vectors hold more of these."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(16)
        near, far = (each if each.type == number else builder.zext(each, number) for each in arguments[:2])
        half, bits = (builder.trunc(each, number) for each in arguments[2:])
        total = builder.add(builder.add(builder.mul(near, number(3)), far), half)
        return builder.lshr(total, bits)

    return types.uint16(near, far, types.int64, types.int64), generate


COLOUR_LANES = 16
"""Pixels that `store_colours` makes."""


@intrinsic
def store_colours(
    typing_context: Any, luma: Any, start: Any, blue: Any, red: Any, offset: Any, out: Any, at: Any
) -> Any:
    """Write RGB of `COLOUR_LANES` pixels, given their Y from `start` on, and their Cb and Cr from `offset` on, uint8.

    Exactly as libjpeg-turbo, whose factors have 16 bits after the point: R = Y + (91881 Cr + 2 ** 15) / 2 ** 16, where
    Cr is less 128, G of -22554 Cb - 46802 Cr, and B of 116130 Cb. Of R and B whole multiples are taken out, so that
    what is left of a factor is of 16 bits, and twice the colour too.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, start, _, _, offset, _, at = arguments
        levels, halves, wide = (ir.VectorType(ir.IntType(bits), COLOUR_LANES) for bits in (8, 16, 32))
        data = [element(context, builder, signature, arguments, place) for place in (0, 2, 3, 5)]

        def loaded(data: Any, place: Any) -> Any:
            address = builder.bitcast(builder.gep(data, [place]), levels.as_pointer())
            return builder.zext(builder.load(address, align=1), halves)

        def number(value: int, kind: Any = halves) -> Any:
            return ir.Constant(kind, [value] * COLOUR_LANES)

        def rounded(colour: Any, factor: int) -> Any:
            doubled = builder.sext(builder.shl(colour, number(1)), wide)
            product = builder.ashr(builder.mul(doubled, number(factor, wide)), number(16, wide))
            return builder.ashr(builder.add(builder.trunc(product, halves), number(1)), number(1))

        def level(*parts: Any) -> Any:
            total = parts[0]
            for part in parts[1:]:
                total = builder.add(total, part)
            return _limited(builder, total)

        y = loaded(data[0], start)
        b, r = (builder.sub(loaded(each, offset), number(128)) for each in data[1:3])
        # Processors have an instruction for two products of 16 bits and their sum.
        lanes = range(COLOUR_LANES)
        pairs = picked(builder, b, [channel * COLOUR_LANES + lane for lane in lanes for channel in range(2)], r)
        twice = ir.VectorType(ir.IntType(32), 2 * COLOUR_LANES)
        products = builder.mul(builder.sext(pairs, twice), ir.Constant(twice, [-22554, 18734] * COLOUR_LANES))
        both = builder.add(*(picked(builder, products, [2 * lane + each for lane in lanes]) for each in range(2)))
        both = builder.ashr(builder.add(both, number(1 << 15, wide)), number(16, wide))
        both = builder.sub(builder.trunc(both, halves), r)
        colours = (
            level(y, r, rounded(r, 26345)),
            level(y, both),
            level(y, builder.shl(b, number(1)), rounded(b, -14942)),
        )

        two = picked(builder, colours[0], range(2 * COLOUR_LANES), colours[1])
        third = picked(builder, colours[2], range(2 * COLOUR_LANES))
        order = [channel * COLOUR_LANES + pixel for pixel in range(COLOUR_LANES) for channel in range(3)]
        pixels = picked(builder, two, order, third)
        builder.store(pixels, builder.bitcast(builder.gep(data[3], [at]), pixels.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(luma, types.int64, blue, red, types.int64, out, types.int64), generate


@intrinsic
def copy(typing_context: Any, source: Any, start: Any, count: Any, target: Any, at: Any) -> Any:
    """Copy `count` bytes of an array, from `start` on, to another array, from `at` on, which must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, other = (element(context, builder, signature, arguments, *places) for places in ((0, 1), (3, 4)))
        cgutils.raw_memcpy(builder, other, one, arguments[2], itemsize=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, target, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, image: Any, offset: Any) -> Any:
    """Have the byte at an offset brought to the caches, with what shares its line; it need not exist."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        to_read, all_caches, data_not_code = ir.Constant(flag, 0), ir.Constant(flag, 3), ir.Constant(flag, 1)
        address = element(context, builder, signature, arguments, 0, 1)
        builder.call(function, [address, to_read, all_caches, data_not_code])
        return context.get_dummy_value()

    return types.void(image, offset), generate


@intrinsic
def touch(typing_context: Any, image: Any, offset: Any) -> Any:
    """Read the byte at an offset, so that its cache line is there: processors leave out many a `prefetch`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # An ordinary load whose value nobody takes would be optimised away.
        builder.load_atomic(element(context, builder, signature, arguments, 0, 1), "monotonic", 1)
        return context.get_dummy_value()

    return types.void(image, offset), generate
