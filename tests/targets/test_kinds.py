"""What targets are made of, what of it is refused, and what files say of it."""

from __future__ import annotations

import errno
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import Evaluate, FileList, Loader, MemoryStore, Refurbish, Standard, Volumes, evaluate
from dalirefurb.augment import Decode, HorizontalFlip, RandomCrop, Resize
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import DerivedSource
from dalirefurb.targets import (
    Annotated,
    Boxes,
    CocoDetection,
    InstanceMasks,
    Keypoints,
    MaskFolder,
    Masks,
    Objects,
    Polygons,
    Values,
    YoloFolder,
    objects_of,
)
from dalirefurb.targets.kinds import Target
from dalirefurb.targets.mask_images import _BESIDE, MaskError
from dalirefurb.targets.masks import Runs, runs_of
from dalirefurb.targets.ragged import Ragged
from tests.targets.test_hugging_face import Table

PATHS = ["a.jpg", "b.jpg", "c.jpg"]
TRIANGLE = [[1, 2], [3, 4], [5, 7]]
SMALL = [[0, 0], [1, 0], [1, 1]]


def source() -> FileList:
    return FileList(PATHS, [0, 0, 0])


def test_numbers_of_all_samples_are_of_one_type_that_has_them_all() -> None:
    for given in ([[1, 2], [0.5]], [[0.5], [1, 2]], [[], [True], [2], [0.25]]):
        rows = Objects(given).rows
        assert rows.values.dtype == np.float32
        assert [part.tolist() for part in rows.parts()] == given


def test_whole_numbers_stay_so_whatever_their_types() -> None:
    large = 2**53 + 1  # which no float has
    rows = Objects([np.array([large], np.uint64), [large], np.array([3], np.uint8), np.array([], np.uint64)]).rows
    assert (rows.values.dtype, rows.values.tolist()) == (np.int64, [large, large, 3])


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("uint8", "int64"),
        ("int16", "int64"),
        ("int64", "int64"),
        ("float64", "float32"),
        ("float16", "float32"),
        ("bool", "bool"),
    ],
)
def test_numbers_of_images_and_of_objects_are_of_the_types_that_losses_take(given: str, made: str) -> None:
    values = np.array([0, 1, 1], given)
    for target in (Values(values), Objects([values])):
        found = target.one(0, (4, 4))
        assert (found.dtype, np.atleast_1d(found).tolist()) == (np.dtype(made), [0, 1, 1][: found.size])


def test_rows_of_samples_are_found_in_any_order() -> None:
    rows = Ragged.of([[[1, 2]], [], [[3, 4], [5, 6], [7, 8]]], "pairs", (2,))
    assert (len(rows), rows.counts.tolist(), rows.values.dtype) == (3, [1, 0, 3], np.int64)
    taken = rows.take(np.array([2, 1, 0, 2]))
    assert [part.tolist() for part in taken.parts()] == [
        [[3, 4], [5, 6], [7, 8]],
        [],
        [[1, 2]],
        [[3, 4], [5, 6], [7, 8]],
    ]
    kept = taken.kept(np.array([False, True, False, True, True, False, False]))
    assert [part.tolist() for part in kept.parts()] == [[[5, 6]], [], [[1, 2]], [[3, 4]]]
    nothing = Ragged.of([[], []], "pairs", (2,))
    assert (nothing.values.shape, nothing.take(np.array([1])).counts.tolist()) == ((0, 2), [0])


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_boxes_are_corners_whatever_they_are_given_as(form: Any) -> None:
    given = {"xyxy": [2, 3, 12, 23], "xywh": [2, 3, 10, 20], "cxcywh": [7, 13, 10, 20]}[form]
    boxes = Boxes([[given], [], torch.tensor([given, given])], form)
    assert boxes.rows.values.tolist() == [[2, 3, 12, 23]] * 3
    assert boxes.rows.counts.tolist() == [1, 0, 2]


def test_shares_may_reach_out_of_the_image_by_its_side() -> None:
    given = [[-1, -0.5, 1.2, 2]]
    assert Boxes([given], normalized=True).one(0, (20, 10)).tolist() == [[-10, -10, 12, 40]]
    with pytest.raises(ConfigurationError, match=r"go from -1\.01 to 2"):
        Boxes([[[-1.01, -0.5, 1.2, 2]]], normalized=True)


def test_what_a_source_refuses_by_itself_stays_refused() -> None:
    class Picky(DerivedSource):
        def fingerprint(self) -> dict[str, Any]:
            return {}

        def refusal(self, indices: Any, heights: Any, widths: Any) -> tuple[int, str] | None:
            return 1, f"{heights[1]} x {widths[1]}"

    found = Annotated(Picky(source()), {"id": Values([1, 2, 3])})
    assert found.refusal(np.array([2, 0]), np.array([4, 5]), np.array([6, 7])) == (1, "5 x 7")


def test_targets_without_an_object_take_the_type_and_shape_of_the_others() -> None:
    files, points = source(), [[[1.5, 2.5, 2], [3, 4, 1]]]
    none = Annotated(files, {"points": Keypoints([[], [], []]), "scores": Objects([[], [], []])})
    some = Annotated(files, {"points": Keypoints([points, [], []]), "scores": Objects([[0.5], [], []])})
    for both, place in ((none + some, 3), (some + none, 0)):
        targets: Any = both.annotations
        assert [len(each) for each in targets.values()] == [6, 6]
        assert targets["points"].one(place, (9, 9)).tolist() == points
        assert targets["scores"].one(place, (9, 9)).dtype == np.float32


REFUSED: dict[str, tuple[Any, str]] = {
    "corners the wrong way": (
        lambda: Boxes([[], [[5, 5, 2, 9]]]),
        r"one of sample 1 is \[5.0, 5.0, 2.0, 9.0\].*format",
    ),
    "three numbers": (
        lambda: Boxes([[[1, 2, 3]]]),
        r"finite numbers of shape \(k, 4\), but those of sample 0.*\(1, 3\)",
    ),
    "no numbers": (lambda: Boxes([[[1, 2, 3, float("nan")]]]), "finite numbers"),
    "texts": (lambda: Objects([["cat"]]), "finite numbers of shape"),
    "a format": (lambda: Boxes([[]], "yolo"), "format must be xyxy, xywh or cxcywh, got 'yolo'"),
    "a share": (lambda: Boxes([[]], min_visible=2), "min_visible must be a number in 0..1"),
    "points": (lambda: Keypoints([[[[1, 2, 3, 4]]]]), "x and y, or x, y and visibility, got 4"),
    "a swap": (lambda: Keypoints([[[[1, 2], [3, 4]]]], swapped=(0, 0)), "swapped must be each of the places 0..1 once"),
    "odd outlines": (lambda: Polygons([[[[1, 2, 3]]]]), "polygons must be x and y of each vertex"),
    "an outline that is not in a list": (
        lambda: Polygons([[TRIANGLE]]),
        r"an outline has 1 vertices, \[\[1.0, 2.0\]\]",
    ),
    "values of two shapes": (lambda: Objects([torch.ones(2), torch.ones(3, 2)]), "of one shape"),
    "uneven values": (lambda: Objects([[1, [2, 3]]]), "must be numbers, but those of sample 0 are not"),
    "values that are too large": (lambda: Values(np.array([2**64 - 1], np.uint64)), "must fit into int64"),
    "shapes that differ": (lambda: Keypoints([[[[1, 2]]], [[[1, 2], [3, 4]]]]), "of one shape"),
    "pixels as shares": (lambda: Boxes([[[10, 10, 40, 50]]], normalized=True), "must be shares 0..1.*go from 10 to 50"),
    "outlines of pixels as shares": (lambda: Polygons([[[TRIANGLE]]], normalized=True), "polygons must be shares 0..1"),
    "a swap that does not come back": (
        lambda: Keypoints([[[[1, 2], [3, 4], [5, 6]]]], swapped=(1, 2, 0)),
        "two by two or staying",
    ),
    "a swap that is no list": (lambda: Keypoints([[]], swapped=3), "swapped must be each of the places.*got 3"),  # type: ignore[arg-type]
    "values with a gradient": (lambda: Values(torch.ones(3, requires_grad=True)), "values must be convertible.*detach"),
    "values that are ragged": (lambda: Values([[1], [1, 2]]), "values must be convertible.*one shape"),
    "nothing in place of none": (lambda: Boxes([None]), r"write \[\] where there are none"),
    "masks of three channels": (
        lambda: Masks([np.zeros((4, 4, 3), np.uint8)]),
        r"number 0 is uint8 of shape \(4, 4, 3\)",
    ),
    "masks of shares": (lambda: Masks([np.zeros((4, 4))]), r"number 0 is float64 of shape \(4, 4\): pass such as"),
    "a path": (lambda: Masks("a.png"), "masks must be a list of paths"),
    "an array of no axis": (lambda: Masks(np.array(5)), r"masks must be a list of paths.*got array\(5\)"),
    "a number as an array": (lambda: Boxes(np.array(5)), "boxes must be in a list, one .*but are a ndarray"),
    "a number as a tensor": (lambda: Polygons(torch.tensor(5)), "polygons must be in a list, one .*but are a Tensor"),
    "an image": (lambda: Masks([Image.new("L", (2, 2))]), r"number 0 is a Pillow image: pass such as np.asarray"),
    "a fill": (lambda: Masks(["a.png"], dtype="uint8", fill=-1), "fill must be an int in 0..255"),
    "a type": (lambda: Masks(["a.png"], dtype="float32"), "dtype must be one of uint8, int16, int32, int64"),
    "a budget": (lambda: Masks(["a.png"], keep="much"), "a budget must be bytes as an int.*got 'much'"),
    "shares as pixels": (lambda: Boxes([[[0.1, 0.2, 0.5, 1]]]), "boxes must be in pixels, but go from 0.1 to 1"),
    "outlines of shares as pixels": (lambda: Polygons([[[[0, 0, 0.5, 0, 1, 1]]]]), "polygons must be in pixels"),
    "points of shares as pixels": (lambda: Keypoints([[[[0.5, 0.5, 2]]]]), "keypoints must be in pixels"),
    "objects that are too large": (lambda: Objects([[2**64 - 1]]), "values of objects must fit into int64.*sample 0"),
    "no list": (lambda: Boxes(None), "boxes must be in a list, one of each sample, but are a NoneType"),  # type: ignore[arg-type]
    "what can be counted once": (lambda: Boxes(iter([[]])), "boxes must be in a list, one .*but are a list_iterator"),  # type: ignore[arg-type]
    "outlines that can be counted once": (lambda: Polygons(iter([[]])), "polygons must be in a list, one of each"),  # type: ignore[arg-type]
    "no list of outlines": (lambda: Polygons([[5]]), "polygons must be x and y of each vertex.*not iterable"),  # type: ignore[list-item]
    "masks that can be counted once": (lambda: InstanceMasks(iter([[]])), "masks of objects must be in a list, one of"),  # type: ignore[arg-type]
    "one mask": (lambda: InstanceMasks([1]), "masks of objects of sample 0 must be in a list"),  # type: ignore[list-item]
    "with a gradient": (lambda: Boxes([torch.ones(1, 4, requires_grad=True)]), "must be numbers.*detach"),
    "names": (lambda: Values(["a"]), "values must be numbers, one row for each sample"),
    "labels": (lambda: Annotated(source(), {"labels": [1, 2, 3]}), r"targets\['labels'\] must be a target of"),  # type: ignore[dict-item]
    "none": (lambda: Annotated(source(), {}), "targets must be targets by name"),
    "too few": (lambda: Annotated(source(), {"boxes": Boxes([[]])}), "each of the 3 samples, but is of 1"),
    "counts": (
        lambda: Annotated(source(), {"boxes": Boxes([[], [], []]), "labels": Objects([[], [1], []])}),
        r"b\.jpg has 0 in 'boxes' and 1 in 'labels'",
    ),
    "volumes": (
        lambda: Annotated(Volumes([np.zeros((2, 2, 2))]), {"id": Values([1])}),
        "this source has volumes: pass labels of their voxels as Volumes",
    ),
    "values of two types put together": (
        lambda: Annotated(source(), {"id": Values([1, 2, 3])}) + Annotated(source(), {"id": Values([1, 2, 0.5])}),
        r"'id' of source number 1 is \('Values', \('float32', \(\)\)\) and that of another \('Values', \('int64'",
    ),
    "points with and without visibility put together": (
        lambda: (
            Annotated(source(), {"p": Keypoints([[[[1, 2]]], [], []])})
            + Annotated(source(), {"p": Keypoints([[[[1, 2, 2]]], [], []])})
        ),
        r"'p' of source number 1 is .*\(1, 3\)\)\) and that of another .*\(1, 2\)\)\)",
    ),
    "twice": (
        lambda: Annotated(Annotated(source(), {"id": Values([1, 2, 3])}), {"id": Values([1, 2, 3])}),
        "must have no targets yet",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_target_is_refused(name: str) -> None:
    make, said = REFUSED[name]
    with pytest.raises(ConfigurationError, match=said):
        make()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Boxes([[[1, 2, 3, 4]], []]), Boxes([[], [[1, 2, 3, 4]]])),
        (Boxes([[[1, 2, 3, 4]]]), Boxes([[[1, 2, 3, 5]]])),
        (Boxes([[]]), Boxes([[]], min_visible=0.5)),
        (Boxes([[[0, 0, 1, 1]]]), Boxes([[[0, 0, 1, 1]]], normalized=True)),
        (Polygons([[[SMALL]]]), Polygons([[[SMALL]]], normalized=True)),
        (Keypoints([[[[1, 2], [3, 4]]]]), Keypoints([[[[1, 2], [3, 4]]]], swapped=(1, 0))),
        (Polygons([[[[1, 2, 3, 4, 5, 6]]]]), Polygons([[[[1, 2, 3, 4, 5, 7]]]])),
        (Polygons([[[TRIANGLE, TRIANGLE]]]), Polygons([[[TRIANGLE], [TRIANGLE]]])),
        (
            Polygons([[[TRIANGLE, [[8, 9], *SMALL]]]]),
            Polygons([[[[*TRIANGLE, [8, 9]], SMALL]]]),
        ),
        (Objects([[1]]), Objects([[2]])),
        (Values([1, 2]), Values([1, 3])),
        (Masks(["m/a.png", "m/b.png"]), Masks(["m/a.png", "m/c.png"])),
        (Masks(["a.png", "b.png"]).take(np.array([0])), Masks(["a.png", "b.png"]).take(np.array([1]))),
        (Masks(["a.png"]), Masks(["a.png"], fill=0)),
        (Masks(["a.png", np.zeros((2, 2), int)]), Masks([np.zeros((2, 2), int), "a.png"])),
        (Masks([np.zeros((2, 2), int)]), Masks([np.ones((2, 2), int)])),
        (Masks([np.zeros((2, 2), int)] * 3), Masks([*[np.zeros((2, 2), int)] * 2, np.ones((2, 2), int)])),
        (Boxes([[]]), Boxes([[]], min_area=5)),
        (Keypoints([[[[1, 2]]]]), Keypoints([[[[1, 2]]]], pixel_centres=True)),
        (Keypoints([[[[0, 1]]]]), Keypoints([[[[0, 1]]]], normalized=True)),
    ],
)
def test_other_targets_are_another_source(one: Target, other: Target) -> None:
    assert one.digest() != other.digest()
    again: Target = pickle.loads(pickle.dumps(one))
    assert again.digest() == one.digest()


def test_masks_are_kept_as_runs_of_one_number_as_far_as_there_is_room(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    masks: list[NDArray[Any]] = [
        np.zeros((3, 4), np.uint8),
        rng.integers(0, 3, (9, 7)).astype(np.uint8),
        rng.integers(0, 2**16, (5, 6)).astype(np.uint16),
    ]
    paths = []
    for number, mask in enumerate(masks):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(mask).save(paths[-1])
        assert np.array_equal(Runs.of(mask).mask(), mask)
    target = Masks(paths, keep=_BESIDE + 10)
    for _ in range(2):
        for number, mask in enumerate(masks):
            read = target.read(number)
            assert (read.tolist(), read.dtype) == (mask.tolist(), mask.dtype)
    paths[0].unlink()  # It was kept: 5 bytes are room for the one run of it.
    assert target.take(np.array([2, 0])).read(1).tolist() == masks[0].tolist()
    assert sorted(target._keep._runs) == [0]
    twice = Masks(paths, keep=2 * (_BESIDE + 5))
    for number in (0, 0, 1):  # As where two threads decode one at once: its memory is counted once.
        twice._keep.put(number, Runs.of(masks[0]))
    assert sorted(twice._keep._runs) == [0, 1]


def test_masks_of_a_part_are_told_from_those_of_the_whole() -> None:
    whole = Masks([np.full((2, width), width, np.uint8) for width in (3, 4, 5)])
    part = whole.take(np.array([1, 0]))
    assert part.misfit(0, (2, 4)) is None
    assert whole.misfit(1, (9, 9)) is None  # It was found to fit.
    for masks, sample in ((part, 1), (whole, 0)):
        assert masks.misfit(sample, (2, 4)) == (
            "its mask masks[0]: it must have the size of the image, 2 x 4, EXIF orientation applied, but has 2 x 3"
        )
    joined = part.joined([whole.take(np.array([2])), whole.take(np.array([0, 2]))])
    assert [joined.read(sample)[0, 0] for sample in range(5)] == [4, 3, 5, 3, 5]
    assert [joined.name(sample) for sample in (1, 2, 4)] == ["masks[0]", "masks[5]", "masks[8]"]
    assert joined.misfit(0, (9, 9)) is None
    assert joined.misfit(2, (9, 9)) is not None


def test_a_palettes_numbers_are_taken_and_not_its_colours(tmp_path: Path) -> None:
    image = Image.new("P", (3, 2), 5)
    image.putpalette([level for level in range(256) for _ in range(3)][::-1])
    image.save(tmp_path / "mask.png")
    assert Masks([tmp_path / "mask.png"]).read(0).tolist() == [[5, 5, 5], [5, 5, 5]]
    Image.new("1", (3, 2), 1).save(tmp_path / "mask.png")
    assert Masks([tmp_path / "mask.png"]).read(0).tolist() == [[1, 1, 1], [1, 1, 1]]
    Image.frombytes("I;16B", (2, 1), b"\1\2\0\3").save(tmp_path / "mask.tif")
    assert Masks([tmp_path / "mask.tif"]).read(0).tolist() == [[0x102, 3]]


@pytest.mark.parametrize(("stated", "shown"), [(3, [[6, 5, 4], [3, 2, 1]]), (6, [[4, 1], [5, 2], [6, 3]])])
def test_a_mask_is_turned_as_its_own_file_states(tmp_path: Path, stated: int, shown: list[list[int]]) -> None:
    path, exif = tmp_path / "mask.png", Image.Exif()
    exif[274] = stated
    image = Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], np.uint8))
    image.save(path, exif=exif)
    assert Masks([path]).read(0).tolist() == shown
    image.save(path, exif=b"broken")
    assert Masks([path]).read(0).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (300, "fit into uint8, but go from 0 to 300: pass dtype='int64'"),
        (-1, "fit into uint8, but go from -1 to 0: pass dtype='int64'"),
        (-(2**31) - 1, "fit into int32, but go from -2147483649 to 0"),
        (2**31, "fit into int32, but go from 0 to 2147483648"),
    ],
)
def test_numbers_that_a_batch_has_not_make_a_bad_sample(number: int, said: str) -> None:
    target = Masks([np.array([[0, number]]), np.array([[0, 255]])], dtype="uint8")
    assert target.misfit(0, (1, 2)) == f"its mask masks[0]: its numbers must {said}"
    assert target.misfit(1, (1, 2)) is None
    assert target.one(1, (1, 2)).tolist() == [[0, 255]]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("bool", "uint8"),
        ("uint8", "uint8"),
        ("int8", "int32"),
        ("uint16", "uint16"),
        ("uint32", "int32"),
        ("int64", "int32"),
    ],
)
def test_arrays_of_any_whole_numbers_are_masks_of_three_types(given: str, taken: str) -> None:
    found = Masks([np.array([[0, 1]], given)]).one(0, (1, 2))
    assert (found.dtype, found.tolist()) == (np.dtype(taken), [[0, 1]])


def test_each_of_several_masks_has_to_fit() -> None:
    size = {"size": [5, 4], "counts": [20]}
    targets = {
        "one": Masks([np.zeros((4, 5), int)] * 3),
        "two": Masks([np.zeros(shape, int) for shape in ((4, 5), (4, 5), (5, 4))]),
        "each": InstanceMasks([[], [size], []]),
    }
    found = Annotated(source(), targets)

    def refusal(*rows: int) -> Any:
        return found.refusal(np.array(rows), np.full(len(rows), 4), np.full(len(rows), 5))

    assert refusal(0) is None
    row, said = refusal(0, 2)
    assert (row, said[:23]) == (1, "its mask masks[2]: it m")
    row, said = refusal(0, 0, 1)
    assert (row, said[:31]) == (2, "run lengths of its masks must b")


def test_storage_of_masks_that_fails_is_no_fault_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: str, index: int) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr("dalirefurb.targets.mask_images.read_file", failing)
    with pytest.raises(OSError, match=r"Input/output error: 'a\.png'"):
        Masks(["a.png"]).misfit(0, (1, 2))


def test_paths_of_masks_may_be_in_an_array() -> None:
    assert Masks(np.array(["a.png", "b.png"])).name(1) == "b.png"  # type: ignore[arg-type]


def test_what_is_looked_at_are_copies_that_fit_their_image(tmp_path: Path) -> None:
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    images, mask = FileList([tmp_path / "a.png"], [0]), np.zeros((4, 5), np.uint8)
    found = Annotated(images, {"mask": Masks([mask]), "three": Values(np.zeros((1, 3)))})
    for _ in range(2):
        target = found[0][1]
        assert not target["mask"].any()
        assert not target["three"].any()
        target["mask"] += 1
        target["three"] += 1
    with pytest.raises(SampleError, match="must have the size of the image, 4 x 5, EXIF orientation"):
        Annotated(images, {"mask": Masks([mask.T])})[0]


@pytest.mark.skipif(runs_of("uint8", "int64") is None, reason="without a compiler masks are made of runs")
def test_a_mask_that_was_shown_is_shown_from_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    Image.fromarray(mask).save(tmp_path / "mask.png")
    target = Masks([tmp_path / "mask.png"])
    for _ in range(2):
        shown = np.empty((3, 4), np.int64)
        target.warp(0, (3, 4), np.eye(3), np.empty((0, 3)), shown)
        assert np.array_equal(shown, mask)
        monkeypatch.setattr(Runs, "mask", None)
    monkeypatch.undo()
    with pytest.raises(MaskError, match="the size of the image, 4 x 3, EXIF orientation applied, but has 3 x 4"):
        target.warp(0, (4, 3), np.eye(3), np.empty((0, 3)), shown)


def test_masks_of_a_folder_belong_to_images_at_the_same_place(tmp_path: Path) -> None:
    for place in ("one/a", "two/a", "two/b"):
        for folder, ending in (("images", ".jpg"), ("masks", "_seg.png")):
            path = tmp_path / folder / (place + ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (5, 4), len(place) + ord(place[-1]) + ord(place[0])).save(path)
    found = MaskFolder(tmp_path / "images", tmp_path / "masks", suffix="_seg")
    assert len(found) == 3
    for index in range(3):
        image, target = found[index]
        assert found.name(index).endswith(".jpg")
        place = Path(found.name(index)).relative_to(tmp_path / "images").with_suffix("")
        assert found.annotations["mask"].name(index) == str(tmp_path / "masks" / f"{place}_seg.png")  # type: ignore[attr-defined]
        assert (image.shape, target["mask"].shape) == ((4, 5, 3), (4, 5))
    with pytest.raises(ConfigurationError, match=r"^masks must .*of one/a\.jpg there is no one/a\.png: pass suffix="):
        MaskFolder(tmp_path / "images", tmp_path / "masks")
    (tmp_path / "masks/two/a_seg.png").unlink()
    (tmp_path / "masks/two/b_seg.tif").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"^masks must .*there are two/b_seg\.png and two/b_seg\.tif: remove"):
        MaskFolder(tmp_path / "images", tmp_path / "masks", suffix="_seg")
    (tmp_path / "masks/two/b_seg.tif").unlink()
    Image.new("L", (5, 4)).save(tmp_path / "masks/two/a.png")  # is none that ends so
    with pytest.warns(UserWarning, match=r"one/a\.jpg is a JPEG"):
        back = MaskFolder(tmp_path / "masks", tmp_path / "images", image_suffix="_seg", fill=7, dtype="uint8", keep=9)
    assert repr(back.annotations["mask"]) == "Masks(2, uint8, fill=7)"
    assert back.annotations["mask"]._keep.budget == 9  # type: ignore[attr-defined]
    assert [Path(back.annotations["mask"].name(row)).stem for row in range(2)] == ["a", "b"]  # type: ignore[attr-defined]
    gap = MaskFolder(tmp_path / "images", tmp_path / "masks", suffix="_seg")
    with (
        Loader(gap, evaluate(32), Evaluate(3, batch_size=3)) as loader,
        pytest.raises(SampleError, match=r"a\.jpg.*its mask .*two/a_seg\.png"),
    ):
        next(iter(loader))
    with pytest.raises(ConfigurationError, match="masks must be a folder"):
        MaskFolder(tmp_path / "images", tmp_path / "nowhere")


def test_what_lies_in_hidden_folders_is_no_image(tmp_path: Path) -> None:
    for place in ("images/a.png", "images/.ipynb_checkpoints/a-checkpoint.png", "images/part/b.png", "images/.c.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / place)
    found = MaskFolder(tmp_path / "images", tmp_path / "images")
    assert [Path(found.name(index)).name for index in range(len(found))] == ["a.png", "b.png"]
    (tmp_path / "images/part/again").symlink_to(tmp_path / "images")  # Once in each round, without end.
    with pytest.raises(ConfigurationError, match=r"^images must be a folder of readable folders, but .*: Too many"):
        MaskFolder(tmp_path / "images", tmp_path / "images")


def coco(folder: Path, **changes: Any) -> Path:
    """A file in COCO's format of three images, of which the second has no object."""
    for number in (7, 8, 9):
        Image.new("RGB", (60, 40), (number, 0, 0)).save(folder / f"{number}.jpg")
    person = {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"]}
    box = {"image_id": 9, "bbox": [5, 6, 20, 10], "category_id": 1, "area": 150.5, "iscrowd": 0}
    content = {
        "images": [{"id": number, "file_name": f"{number}.jpg", "height": 40, "width": 60} for number in (9, 7, 8)],
        "annotations": [
            {
                **box,
                "keypoints": [10, 8, 2, 7, 9, 1, 0, 0, 0],
                "segmentation": [[5, 6, 25, 6, 25, 16], [5, 6, 6, 7, 8, 9]],
            },
            {**box, "category_id": 3, "iscrowd": 1, "segmentation": {"counts": [0, 9], "size": [3, 3]}},
            {**box, "image_id": 7, "bbox": [0, 0, 60, 40], "category_id": 3, "segmentation": []},
        ],
        "categories": [{"id": 3, "name": "dog"}, person],
        **changes,
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_a_file_in_cocos_format_says_all_of_its_objects(tmp_path: Path) -> None:
    found = CocoDetection(tmp_path, coco(tmp_path), keypoints=True, polygons=True)
    assert found.categories == {1: "person", 3: "dog"}
    ids = [int(found[index][1]["image_id"]) for index in range(3)]
    assert ids == [7, 8, 9]
    _, target = found[2]
    assert target["boxes"].tolist() == [[5, 6, 25, 16]]
    assert (target["labels"].tolist(), target["area"].tolist(), target["iscrowd"].tolist()) == ([1], [150.5], [0])
    assert target["keypoints"].tolist() == [[[10, 8, 2], [7, 9, 1], [0, 0, 0]]]
    assert [outline.tolist() for outline in target["polygons"][0]] == [
        [[5, 6], [25, 6], [25, 16]],
        [[5, 6], [6, 7], [8, 9]],
    ]
    assert found[1][1]["boxes"].shape == (0, 4)
    assert found[0][1]["polygons"] == [[]]
    assert found.annotations["keypoints"].swapped == (0, 2, 1)  # type: ignore[attr-defined]
    crowds = CocoDetection(tmp_path, coco(tmp_path), crowds=True, polygons=True, empty=False)
    assert [int(crowds[index][1]["image_id"]) for index in range(2)] == [7, 9]
    assert crowds[1][1]["iscrowd"].tolist() == [0, 1]
    assert [len(outlines) for outlines in crowds[1][1]["polygons"]] == [2, 0]


@pytest.mark.parametrize(
    ("names", "swapped"),
    [
        (["Nose", "LEye", "REye", "Ear"], (0, 2, 1, 3)),
        (["l_eye", "r_ear", "L_ear", "r_eye"], (3, 2, 1, 0)),
        (["hip_l", "heel", "hip_r", "upper right", "upper left", "eel"], (2, 1, 0, 4, 3, 5)),
    ],
)
def test_names_of_keypoints_say_which_ones_swap(tmp_path: Path, names: list[str], swapped: tuple[int, ...]) -> None:
    path = coco(tmp_path, annotations=[], categories=[{"id": 1, "keypoints": names}])
    found = CocoDetection(tmp_path, path, keypoints=True)
    assert found.annotations["keypoints"].swapped == swapped  # type: ignore[attr-defined]
    assert found.categories == {1: "1"}
    path = coco(tmp_path, annotations=[], categories=[{"id": 1, "keypoints": names}, {"id": 2, "keypoints": ["tail"]}])
    with pytest.raises(ConfigurationError, match=r"one list of keypoints' names for all categories .* got 2"):
        CocoDetection(tmp_path, path, keypoints=True)


def test_keypoints_and_polygons_are_mirrored_with_their_image(tmp_path: Path) -> None:
    found = CocoDetection(tmp_path, coco(tmp_path), keypoints=True, polygons=True)
    recipe = Recipe([Decode(), RandomCrop((40, 60)), HorizontalFlip(1.0)], Output((40, 60)), split=1)
    with Loader(found, recipe, Refurbish(3, batch_size=3, reuse_factor=1), MemoryStore()) as loader:
        ((_, targets),) = loader
    (target,) = (each for each in targets if int(each["image_id"]) == 9)
    assert target["boxes"].tolist() == [[35, 6, 55, 16]]
    # The left eye is where the right one would be, which is not labelled.
    assert target["keypoints"].tolist() == [[[49, 8, 2], [0, 0, 0], [52, 9, 1]]]
    assert target["polygons"][0][0].tolist() == [[55, 6], [35, 6], [35, 16]]
    assert (len(target["polygons"]), len(target["polygons"][0])) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"categories": [{"name": "dog"}]}, "must be a file in COCO's format"),
        ({"categories": [{"id": 8, "name": "dog"}]}, "all categories of its annotations must be named, but 1 is not"),
        ({"images": [{"id": 7, "file_name": "7.jpg"}] * 2}, "must have an id of its own"),
        ({"annotations": [{"image_id": 7, "bbox": [0, 0, 1, 1]}]}, "must be category_id in each of its annotations"),
        ({"images": None}, "must be a file in COCO's format"),
        ({"annotations": [{"image_id": 77, "bbox": [0, 0, 1, 1], "category_id": 1}]}, "but 77 is not"),
        ({"annotations": [{"image_id": 7, "bbox": [0, 0, -1, 1], "category_id": 1}]}, "second corner"),
        ({"annotations": [{"image_id": 7, "bbox": [0, 0, 1, 1], "category_id": 1.0}]}, "must be a whole number"),
        ({"categories": [{"id": 1}, {"id": 1}]}, "each of its categories must have an id of its own"),
    ],
)
def test_what_is_not_in_cocos_format_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        CocoDetection(tmp_path, coco(tmp_path, **changes))
    with pytest.raises(ConfigurationError, match="must be a file in COCO's format"):
        CocoDetection(tmp_path, tmp_path / "nothing.json")
    with pytest.raises(ConfigurationError, match="images must be a folder"):
        CocoDetection(tmp_path / "nowhere", tmp_path / "nothing.json")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigurationError, match=r"of 3 that were looked at none is in .*elsewhere, the first is"):
        CocoDetection(tmp_path / "elsewhere", coco(tmp_path))
    with pytest.raises(ConfigurationError, match="of 1 that were looked at none is in"):
        CocoDetection(tmp_path, coco(tmp_path, images=[{"id": 7, "file_name": f"{'a' * 300}.jpg"}], annotations=[]))
    things = {"image_id": 7, "bbox": [0, 0, 9, 9], "category_id": 1, "segmentation": {"counts": [0, 9], "size": [3, 3]}}
    path = coco(tmp_path, annotations=[things])
    with pytest.raises(ConfigurationError, match="an object that is no crowd has run lengths"):
        CocoDetection(tmp_path, path, polygons=True)
    (tmp_path / "8.jpg").unlink()
    assert len(CocoDetection(tmp_path, path)) == 3


@pytest.mark.parametrize(("crowd", "other"), [(1, 0), (True, False), (1, None), ("1", "0")])
def test_crowds_are_told_in_any_words(tmp_path: Path, crowd: Any, other: Any) -> None:
    box = {"image_id": 7, "bbox": [0, 0, 9, 9], "category_id": 1}
    path = coco(tmp_path, annotations=[{**box, "iscrowd": crowd}, {**box, "iscrowd": other, "bbox": [1, 1, 5, 5]}])
    assert CocoDetection(tmp_path, path)[0][1]["boxes"].tolist() == [[1, 1, 6, 6]]
    told = CocoDetection(tmp_path, path, crowds=True)[0][1]["iscrowd"]
    assert (told.tolist(), told.dtype) == ([1, 0], np.int64)


def test_classes_can_be_numbered_without_gaps(tmp_path: Path) -> None:
    found = CocoDetection(tmp_path, coco(tmp_path), crowds=True, contiguous=True)
    assert found.categories == found.subset([0]).categories == {0: "person", 1: "dog"}
    assert found.annotations["labels"].rows.values.tolist() == [1, 0, 1]  # type: ignore[attr-defined]
    assert found.fingerprint() != CocoDetection(tmp_path, coco(tmp_path), crowds=True).fingerprint()
    with pytest.raises(ConfigurationError, match="contiguous=True needs the categories of the file"):
        CocoDetection(tmp_path, coco(tmp_path, categories=[]), contiguous=True)


def test_an_image_of_another_size_than_its_annotations_are_of_is_a_bad_sample(tmp_path: Path) -> None:
    whole, told = CocoDetection(tmp_path, coco(tmp_path)), {"height": 40, "width": 60}
    named = [{"id": number, "file_name": f"{number}.jpg"} for number in (7, 8, 9)]
    path = coco(tmp_path, images=[named[0] | {"width": 0, "height": 9}, named[1] | told, named[2]])
    assert CocoDetection(tmp_path, path).fingerprint() != whole.fingerprint()
    Image.new("RGB", (40, 60)).save(tmp_path / "8.jpg")
    refusal = CocoDetection(tmp_path, path).refusal(np.array([2, 0, 1]), np.array([7, 8, 60]), np.array([7, 9, 40]))
    assert refusal is not None
    assert refusal[0] == 2  # The row, whose sample has another number.
    with (
        Loader(CocoDetection(tmp_path, path), evaluate(32), Evaluate(3, batch_size=3)) as loader,
        pytest.raises(SampleError, match=r"8\.jpg.*annotations are of an image of 40 x 60, but it has 60 x 40"),
    ):
        next(iter(loader))


def test_limits_of_boxes_are_those_that_were_said(tmp_path: Path) -> None:
    limits = {"min_area": 9.0, "min_visible": 0.25}
    yolo(tmp_path / "yolo")
    made = [
        CocoDetection(tmp_path, coco(tmp_path), **limits).annotations,
        YoloFolder(tmp_path / "yolo/images", tmp_path / "yolo/labels", **limits).annotations,
        objects_of(Table([{"bbox": [], "category": []}]), "xywh", **limits),
    ]
    for targets in made:
        boxes: Any = targets["boxes"]
        assert (boxes.min_area, boxes.min_visible) == (9, 0.25)


def yolo(folder: Path, **lines: str) -> YoloFolder:
    """Images of three sizes, two of which have a file."""
    for number, size in enumerate(((60, 40), (80, 80), (50, 100))):
        path = folder / "images" / "part" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(path)
    (folder / "labels" / "part").mkdir(parents=True, exist_ok=True)
    written = {"0": "1 0.5 0.5 0.5 0.25\n\n0 0 0 0.5 0 0.5 1\n", "2": "0 0.25 0.25 0.5 0.5", **lines}
    for name, text in written.items():
        (folder / "labels" / "part" / f"{name}.txt").write_text(text)
    return YoloFolder(folder / "images", folder / "labels", names=["cat", "dog"], polygons=True, min_visible=0.1)


def test_objects_of_yolos_files_are_shares_of_their_images_sides(tmp_path: Path) -> None:
    found = yolo(tmp_path)
    assert found.classes == ["cat", "dog"]
    recipe = Recipe([Decode(), Resize((100, 200))], Output((100, 200)), split=1)
    with Loader(found, recipe, Evaluate(3, batch_size=3)) as loader:
        ((_, targets),) = loader
    by_index = {int(target["index"]): target for target in targets}
    assert by_index[0]["boxes"].tolist() == [[50, 37.5, 150, 62.5], [0, 0, 100, 100]]
    assert by_index[0]["labels"].tolist() == [1, 0]
    assert [len(outlines) for outlines in by_index[0]["polygons"]] == [0, 1]
    assert by_index[0]["polygons"][1][0].tolist() == [[0, 0], [100, 0], [100, 100]]
    assert by_index[1]["boxes"].shape == (0, 4)
    assert by_index[2]["boxes"].tolist() == [[0, 0, 100, 50]]
    image, target = found[0]  # in pixels
    assert image.shape == (40, 60, 3)
    assert target["boxes"].tolist() == [[15, 15, 45, 25], [0, 0, 30, 40]]
    assert target["polygons"][1][0].tolist() == [[0, 0], [30, 0], [30, 40]]
    named = YoloFolder(tmp_path / "images", tmp_path / "labels", names={3: "dog", 0: "cat"})
    assert named.classes == ["cat", "1", "2", "dog"]
    rounded = yolo(tmp_path, **{"2": "0 0.5 -0.009 0.5 1.009"})  # As is written of what reaches to an edge.
    assert np.allclose(rounded[2][1]["boxes"], [[12.5, -51.35, 37.5, 49.55]])
    (tmp_path / "labels/part/2.txt").write_text("4000000000 0.5 0.5 0.1 0.1")
    with pytest.raises(ConfigurationError, match=r"part/2\.txt, line 1: it must be a class, and centre"):
        YoloFolder(tmp_path / "images", tmp_path / "labels")
    (tmp_path / "labels/part/2.txt").write_bytes(b"\xff\xfe0 0.5")
    with pytest.raises(ConfigurationError, match=r"part/2\.txt must be a text file of objects, but cannot be read"):
        YoloFolder(tmp_path / "images", tmp_path / "labels")


@pytest.mark.parametrize(
    "line",
    [
        "cat 0.5 0.5 0.1 0.1",
        "0 0.5 0.5 0.1",
        "0.5 0.5 0.5 0.1 0.1",
        "2 0.5 0.5 0.1 0.1",
        "0 0 0 1 1 0.5",
        "-1 0 0 1 1",
        "0 .5 .5 .2 .2 .4 .5 2 .5 .5 2",
        "1 250 100 50 40",
        "inf 0.5 0.5 0.1 0.1",
        "0 -0.011 0.5 0.1 0.1",
        "0 0.5 0.5 0.1 1.011",
    ],
)
def test_a_line_of_another_format_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"labels/part/1\.txt, line 2: it must be a class below 2, and centre"):
        yolo(tmp_path, **{"1": f"0 0.5 0.5 0.1 0.1\n{line}\n"})
    with pytest.raises(ConfigurationError, match=r"part/0\.jpg there is no .*part/0\.txt"):
        YoloFolder(tmp_path / "images", tmp_path / "images")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": "cat"}, "names must be a list of the classes' names, or a mapping from their numbers, got 'cat'"),
        ({"names": {"cat": 0}}, "names must be a list of the classes' names"),
        ({"keypoints": 17}, "keypoints must be a number of points, and 2 or 3 numbers each, got 17"),
        ({"labels": None}, "labels must be a folder, got None"),
        ({"names": {"cat", "dog"}}, "names must be a list of the classes' names"),
        ({"keypoints": "17"}, "keypoints must be a number of points"),
        ({"keypoints": (17.5, 2)}, "keypoints must be a number of points"),
        ({"swapped": (1, 0)}, r"swapped must be left out where keypoints is, got \(1, 0\)"),
        ({"images": ["a.png"], "labels": "there"}, "labels must be a path for each of 1 images, got 'there'"),
    ],
)
def test_arguments_of_other_kinds_are_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    arguments: Any = {"images": tmp_path, "labels": tmp_path, **given}
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ConfigurationError, match=said):
        YoloFolder(**arguments)


def data_set(folder: Path, labels: str, yaml: str) -> Path:
    """Two images of 60 x 40 in a folder for each of two parts, and the file that tells of them."""
    for part in ("train", "val"):
        for number in range(2):
            path = folder / "images" / part / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (60, 40)).save(path)
        (folder / "labels" / part).mkdir(parents=True)
        (folder / "labels" / part / "1.txt").write_text(labels)
    path = folder / "data.yaml"
    path.write_text(yaml)
    return path


OUTLINE = "1 0 0 0.5 0 0.5 1 0 1"
NAMES = "names: {0: cat, 1: dog}\n"


@pytest.mark.parametrize(
    ("told", "images"),
    [
        ("train: images/train", ["train/0", "train/1"]),
        ("train: [images/val, images/train]", ["val/0", "val/1", "train/0", "train/1"]),
        ("train: listed.txt", ["val/1", "train/1"]),
        ("path: .\ntrain: ../images/train", ["train/0", "train/1"]),  # as Roboflow's files have it
        ("path: images\ntrain: val\nval: val\n", ["val/0", "val/1"]),
    ],
)
def test_a_data_set_is_read_from_its_file(told: str, images: list[str], tmp_path: Path) -> None:
    path = data_set(tmp_path, OUTLINE, told + (NAMES if "\nval:" in told else f"\nval: images/val\n{NAMES}"))
    (tmp_path / "listed.txt").write_text("images/val/1.jpg\n\n./images/train/1.jpg\n")
    found = YoloFolder.from_yaml(path, masks=True, polygons=True)
    assert found.classes == ["cat", "dog"]
    places = [Path(found.name(index)).relative_to(tmp_path / "images") for index in range(len(found))]
    assert [str(place.with_suffix("")) for place in places] == images
    for index, image in enumerate(images):
        target = found[index][1]
        if image.endswith("0"):
            assert target["boxes"].shape == (0, 4)
            continue
        assert target["boxes"].tolist() == [[0, 0, 30, 40]]
        assert target["polygons"][0][0].tolist() == [[0, 0], [30, 0], [30, 40], [0, 40]]
        (mask,) = target["masks"]
        assert mask[:, :30].all()
        assert not mask[:, 30:].any()
    assert len(YoloFolder.from_yaml(path, "val")) == 2


def test_a_data_sets_file_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_set(tmp_path, OUTLINE, "train: images/train\nnames: [no, 2]\nflip_idx: [0]\n")
    monkeypatch.chdir(tmp_path)
    found = YoloFolder.from_yaml("data.yaml")
    assert found[1][1]["boxes"].tolist() == [[0, 0, 30, 40]]
    assert found.classes == ["False", "2"]  # as YAML reads these
    named = YoloFolder("images", "labels", names=(name for name in ("cat", "dog")))  # type: ignore[arg-type]
    assert named.categories == {0: "cat", 1: "dog"}


def test_labels_are_looked_for_by_the_last_folder_of_images(tmp_path: Path) -> None:
    path = data_set(tmp_path / "images", OUTLINE, f"train: images/train\n{NAMES}")
    assert YoloFolder.from_yaml(path)[1][1]["boxes"].tolist() == [[0, 0, 30, 40]]


def test_poses_have_points_which_swap_where_an_image_is_mirrored(tmp_path: Path) -> None:
    path = data_set(
        tmp_path,
        "0 0.5 0.5 1 1  0.25 0.5 2  0.5 0.25 1  0 0 0",
        "train: images/train\nnames: [cat]\nkpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n",
    )
    found = YoloFolder.from_yaml(path)
    assert found[1][1]["keypoints"].tolist() == [[[15, 20, 2], [30, 10, 1], [0, 0, 0]]]
    assert found[1][1]["boxes"].tolist() == [[0, 0, 60, 40]]
    mirrored = Recipe([Decode(), HorizontalFlip(1.0), Resize((80, 60))], Output((80, 60)), split=1)
    with Loader(found, mirrored, Standard(2, batch_size=2)) as loader:
        ((_, targets),) = loader
    target = next(each for each in targets if len(each["boxes"]))
    assert target["keypoints"].tolist() == [[[30, 20, 1], [45, 40, 2], [0, 0, 0]]]
    folders = tmp_path / "images/train", tmp_path / "labels/train"
    assert found.fingerprint() != YoloFolder(*folders, names=["cat"], keypoints=(3, 3)).fingerprint()
    with pytest.raises(ConfigurationError, match=r"line 1: .* width and height, and 2 points of 2 numbers"):
        YoloFolder(*folders, keypoints=(2, 2))
    with pytest.raises(ConfigurationError, match="keypoints must be a number of points, and 2 or 3 numbers each"):
        YoloFolder(*folders, keypoints=(3, 4))
    (folders[1] / "1.txt").write_text("0 0.5 0.5 1 1  0.25 40")
    with pytest.raises(ConfigurationError, match=r"line 1: .* width and height, and 1 points of 2 numbers, as shares"):
        YoloFolder(*folders, keypoints=(1, 2))


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("names: [cat]\n", "must be a data set's file with 'names' and 'train'"),
        ("train: images/train\n", "must be a data set's file with 'names' and 'train'"),
        ("- 1\n", "must be a data set's file with 'names' and 'train'"),
        ("train: [", "must be a data set's file, but cannot be read"),
        (f"train: images/other\n{NAMES}", "'train' of .* must be there, but there is no .*images/other"),
        (f"train: {'a' * 300}\n{NAMES}", "'train' of .* must be there, but there is no .*aaa"),
        (f"train: labels/train\n{NAMES}", "train must be a folder of image files"),
    ],
)
def test_a_data_sets_file_that_says_too_little_is_named(yaml: str, said: str, tmp_path: Path) -> None:
    path = data_set(tmp_path, OUTLINE, yaml)
    with pytest.raises(ConfigurationError, match=said):
        YoloFolder.from_yaml(path)
    with pytest.raises(ConfigurationError, match="must be a data set's file, but cannot be read"):
        YoloFolder.from_yaml(tmp_path / "none.yaml")


def test_without_pyyaml_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data_set(tmp_path, OUTLINE, f"train: images/train\n{NAMES}")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match="PyYAML must be installed: pip install pyyaml"):
        YoloFolder.from_yaml(path)


def test_masks_need_outlines(tmp_path: Path) -> None:
    path = data_set(tmp_path, f"{OUTLINE}\n0 0.5 0.5 1 1", f"train: images/train\n{NAMES}")
    with pytest.raises(ConfigurationError, match=r"^masks need an outline of each object, but one in .*1\.txt"):
        YoloFolder.from_yaml(path, masks=True)
    with pytest.raises(ConfigurationError, match=r"^labels must lie in their folder as images do in theirs, but of"):
        YoloFolder([tmp_path / "images/train/0.jpg"], [tmp_path / "none.txt"], names=["one"])
    with pytest.raises(ConfigurationError, match="labels must be a path for each of 1 images, got"):
        YoloFolder([tmp_path / "images/train/0.jpg"], [])


def test_outlines_of_a_sample_can_come_from_anywhere() -> None:
    polygons = Polygons([(iter([outline]) for outline in ([0, 0, 9, 0, 9, 9], [3, 3, 9, 3, 9, 9])), []])  # type: ignore[list-item]
    assert [len(each) for each in polygons.rows.parts()] == [2, 0]
    assert [part.tolist() for part in polygons.one(0, (20, 20))[1]] == [[[3, 3], [9, 3], [9, 9]]]


def test_masks_in_jpegs_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"should be in files that keep their numbers, but b\.JPG is a JPEG") as told:
        Masks(["a.png", "b.JPG", "c.jpeg"])
    assert [each.filename for each in told] == [__file__]
