"""Images of a batch are found where they lie, and arrays that are packed in one come out as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import (
    ALIGNMENT,
    GREY,
    HALVED,
    RGB,
    Images,
    Places,
    aligned_empty,
    decoded_rows,
    images_at,
    layout_bytes,
    pack,
    rounded,
    row_addresses,
    unpack,
)

ROWS = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)


def addresses_of(images: Any) -> list[int]:
    return [image.ctypes.data for image in images]


def assert_located(images: Images, expected: list[NDArray[np.uint8]]) -> None:
    """They are these images, in place, by each way to look at them."""
    assert len(images) == len(expected)
    assert all(map(np.array_equal, images, expected))
    assert addresses_of(images) == images.places.addresses.tolist() == addresses_of(expected)
    assert images.places.sizes.tolist() == [[*image.shape[:2]] for image in expected]
    assert images.kinds == {(image.dtype, image.shape) for image in expected}


def test_rows_of_an_array_are_found_without_copies() -> None:
    assert_located(Images(ROWS), [*ROWS])
    some = Images.rows_of(ROWS, np.array([3, 0, 4]))
    assert_located(some, [ROWS[3], ROWS[0], ROWS[4]])
    chosen = some.chosen(np.array([2, 0]))
    assert_located(chosen, [ROWS[4], ROWS[3]])
    assert chosen.whole is not None
    assert (chosen.whole[0] is ROWS, chosen.whole[1].tolist()) == (True, [4, 3])
    assert some.chosen(np.arange(3)) is some
    assert row_addresses(ROWS).tolist() == addresses_of(ROWS)
    assert row_addresses(ROWS, np.array([2, 0])).tolist() == addresses_of([ROWS[2], ROWS[0]])
    assert row_addresses(ROWS[::2]).tolist() == addresses_of([ROWS[0], ROWS[2], ROWS[4]])


def test_images_of_several_sizes_and_owners_are_found() -> None:
    tall, wide = np.zeros((7, 2, 3), np.uint8), np.ones((2, 7, 3), np.uint8)
    mixed = Images([tall, wide])
    assert_located(mixed, [tall, wide])
    assert mixed.whole is None
    joined = Images.joined(
        4, [(np.array([1, 3]), mixed), (np.array([], np.int64), Images(())), (np.array([0, 2]), Images(ROWS[:2]))]
    )
    assert_located(joined, [ROWS[0], tall, ROWS[1], wide])
    assert_located(joined.chosen(np.array([3, 0])), [wide, ROWS[0]])
    assert Images.joined(2, [(np.arange(2), mixed), (np.array([], np.int64), Images(ROWS[:0]))]) is mixed
    assert Images.of(mixed) is mixed
    assert_located(Images.of([wide]), [wide])
    none = Images(())
    assert (len(none), none.places.sizes.shape, none.kinds) == (0, (0, 2), set())


def test_what_nobody_asks_for_is_not_looked_at_and_else_once() -> None:
    asked: list[str] = []

    def look() -> list[NDArray[np.uint8]]:
        asked.append("look")
        return [*ROWS[:2]]

    images = Images.on_demand(2, look)
    assert (len(images), asked) == (2, [])
    assert_located(images, [*ROWS[:2]])
    assert asked == ["look"]
    places = Places(np.array([7, 9]), np.array([[4, 6], [4, 6]]))
    with pytest.raises(NotImplementedError, match="on a device"):
        Images.at(places)[0]
    assert Images.at(places).places is places


def test_images_among_bytes_are_seen_in_place_and_not_written() -> None:
    content = np.arange(200, dtype=np.uint8)
    images = images_at(content, np.array([64, 3]), np.array([[2, 5, 3], [3, 1, 3]], np.int32))
    assert_located(images, [content[64:94].reshape(2, 5, 3), content[3:12].reshape(3, 1, 3)])
    assert images.places.sizes.dtype == np.int64
    assert [image.flags.writeable for image in images] == [False, False]
    assert content.flags.writeable


@pytest.mark.parametrize(
    ("image", "got"),
    [
        (np.zeros((4, 6, 3), np.int8), r"int8 of \(4, 6, 3\)"),
        (np.zeros((4, 6), np.uint8), r"uint8 of \(4, 6\)"),
        (np.zeros((4, 6, 4), np.uint8), r"uint8 of \(4, 6, 4\)"),
        (np.zeros((4, 6, 3), np.uint8)[:, ::-1], r"uint8 of \(4, 6, 3\)"),
        (np.zeros((4, 12, 3), np.uint8)[:, ::2], r"uint8 of \(4, 6, 3\)"),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_what_kernels_cannot_take_is_refused(image: NDArray[Any], got: str, together: bool) -> None:
    given: Any = np.broadcast_to(image, (2, *image.shape)) if together else [ROWS[0], image]
    with pytest.raises(LoaderError, match=f"C-contiguous uint8 of shape .*, got {got}; convert them in the source"):
        Images(given).places  # noqa: B018 - it is asked for


def test_encoded_samples_have_one_dimension() -> None:
    given = [np.zeros(9, np.uint8), ROWS[0], np.zeros(0, np.uint8), ROWS[1]]
    assert decoded_rows(given).tolist() == [1, 3]
    assert decoded_rows(given[:1]).tolist() == []
    assert decoded_rows(Images(ROWS)).tolist() == [0, 1, 2, 3, 4]
    assert decoded_rows([]).dtype == np.int64


def test_bytes_of_layouts_are_of_both_sides_rounded_up() -> None:
    for height, width in ((1, 1), (3, 4), (4, 3), (5, 7), (2, 6)):
        half = ((height + 1) // 2) * ((width + 1) // 2)
        expected = {RGB: 3 * height * width, GREY: height * width, HALVED: height * width + 2 * half}
        assert {layout: layout_bytes(layout, height, width) for layout in expected} == expected
    assert [rounded(nbytes) for nbytes in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
    assert rounded(np.array([1, 128, 129])).tolist() == [64, 128, 192]
    assert rounded(9, 8) == 16


def test_memory_begins_at_a_cache_line() -> None:
    kept = [aligned_empty(nbytes) for nbytes in (0, 1, 100, 4096) for _ in range(8)]
    assert [len(each) for each in kept[::8]] == [0, 1, 100, 4096]
    assert {each.ctypes.data % ALIGNMENT for each in kept if len(each)} == {0}


def test_packed_arrays_come_out_as_they_were_and_nothing_else_is_in_their_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fresh memory has anything in it, which a store would write to a disk."""
    arrays = {
        "image": np.arange(30, dtype=np.int16).reshape(2, 3, 5),
        "mask": np.array([[1, 2, 3]], np.uint8),
        "none": np.zeros((0, 4), np.float32),
        "number": np.array(2.5),
        "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    }
    monkeypatch.setattr(np, "empty", lambda shape, dtype: np.full(shape, 0xA5, dtype))
    image = pack(arrays)
    assert (image.dtype, image.shape[1:]) == (np.uint8, (64, 3))
    assert not (image == 0xA5).any()
    found = unpack(image)
    assert [*found] == [*arrays]
    for name, each in arrays.items():
        assert (found[name].dtype, found[name].shape) == (each.dtype, each.shape)
        assert np.array_equal(found[name], each)
        assert (found[name].ctypes.data - image.ctypes.data) % ALIGNMENT == 0
    assert not pack({}).any(axis=(1, 2))[1:].any()
    assert unpack(pack({})) == {}
