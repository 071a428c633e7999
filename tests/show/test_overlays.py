"""Is what belongs to images drawn where the pictures show it?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from dalirefurb import FileList, Output, Recipe, Volumes, evaluate, rand_augment
from dalirefurb.augment import (
    Decode,
    HorizontalFlip,
    Mosaic,
    RandomAffine,
    RandomCrop,
    RandomCrop3D,
    RandomResizedCrop,
    RandomRotation,
    VolumeOutput,
)
from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.published import yolo
from dalirefurb.augment.stage import draw
from dalirefurb.cli import main
from dalirefurb.errors import ConfigurationError
from dalirefurb.show import sheet as sheets
from dalirefurb.show.overlays import COLOURS, PARTS, classes_of, draw_parts, draw_targets
from dalirefurb.show.pictures import Pictures, Version, Versions, of_good_samples, take_pictures
from dalirefurb.show.sheet import pictures_sheet, stages_sheet
from dalirefurb.targets import Annotated, Boxes, InstanceMasks, Keypoints, Masks, Objects, Polygons
from dalirefurb.targets.coco import parts_of
from tests.targets.scenes import COLOURS as SHAPES
from tests.targets.scenes import boxed, boxes_of, masked

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 48
TURNED = Recipe([Decode(), RandomResizedCrop(SIZE, (0.5, 1.0)), HorizontalFlip(), RandomRotation(20)], Output(SIZE), 3)


@pytest.mark.parametrize(
    "recipe", [TURNED, TURNED.at(0), TURNED.at(1), evaluate(SIZE).at(2)], ids=["turned", "files", "decoded", "resized"]
)
def test_masks_say_of_cached_and_served_pictures_where_each_pixel_is_from(tmp_path: Path, recipe: Recipe) -> None:
    for taken in take_pictures(masked(tmp_path), recipe, [1, 4], reuse_factor=2):
        assert np.array_equal(taken.targets["mask"], taken.original[..., 0])
        for version in taken.versions:
            pairs = zip(
                [version.cached, *version.served], [version.cached_targets, *version.served_targets], strict=True
            )
            for image, targets in pairs:
                columns = np.asarray(targets["mask"])
                assert columns.shape == image.shape[:2]
                there = columns != 255
                assert there.mean() > 0.5
                # But for a little at borders, which are blended.
                assert np.quantile(abs(columns - image[..., 0].astype(int))[there], 0.95) <= 3


def test_boxes_are_around_what_cached_and_served_pictures_show(tmp_path: Path) -> None:
    recipe = Recipe([Decode(), RandomResizedCrop(SIZE, (0.5, 1.0)), HorizontalFlip()], Output(SIZE), "flip")
    pictures = take_pictures(boxed(tmp_path), recipe, [3, 7], reuse_factor=2, seed=5)
    for sample, taken in zip([3, 7], pictures, strict=True):
        assert taken.targets["boxes"].tolist() == [list(box) for box in boxes_of(sample)]
        for version in taken.versions:
            pairs = zip(
                [version.cached, *version.served], [version.cached_targets, *version.served_targets], strict=True
            )
            for image, targets in pairs:
                assert len(targets["boxes"])
                for box, label in zip(np.asarray(targets["boxes"]), np.asarray(targets["labels"]), strict=True):
                    rows, columns = np.nonzero((image > 127).astype(int) @ (4, 2, 1) == (SHAPES[label] > 0) @ (4, 2, 1))
                    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                    assert abs(box - found).max() < 1.1


def test_pictures_are_of_samples_that_have_objects(tmp_path: Path) -> None:
    assert of_good_samples(boxed(tmp_path), 3, lambda samples: samples) == [1, 6, 11]


def test_each_kind_is_drawn_in_its_colour_at_its_place() -> None:
    kinds = {
        "labels": Objects([[3]]),
        "boxes": Boxes([[[2, 1, 6, 4]]]),
        "points": Keypoints([[[[1, 1, 2], [4, 2, 0], [5, 2, 1]]]], pixel_centres=True),
        "outlines": Polygons([[[[2, 1, 6, 1, 6, 4]]]]),
        "mask": Masks([np.array([[0, 2], [255, 0]])]),
    }
    targets = {name: kind.one(0, (2, 2) if name == "mask" else (5, 8)) for name, kind in kinds.items()}
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_targets(axes, (100, 180, 250, 200), targets, kinds, 8)
    box, outline = axes.patches
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((120, 210), 40, 30)  # type: ignore[attr-defined]
    assert outline.get_xy().tolist()[:3] == [[120, 210], [160, 210], [160, 240]]  # type: ignore[attr-defined]
    (points,) = axes.collections
    assert np.asarray(points.get_offsets()).tolist() == [[115, 215], [155, 225]]
    (tints,) = axes.images
    assert np.asarray(tints.get_array())[..., 3].tolist() == [[0, 0.5], [0.6, 0]]
    assert classes_of([targets], kinds) == [2, 3]
    assert len({*COLOURS}) == len(COLOURS)


def test_colours_are_those_of_classes_which_begin_anew_and_of_points_places() -> None:
    masks = Masks([np.array([[0, 21], [7, 255]])], fill=7)
    points = Keypoints([[[[1, 1], [3, 3], [5, 2]]]])
    kinds = {"labels": Objects([[23]]), "boxes": Boxes([[[2, 1, 6, 4]]]), "mask": masks, "points": points}
    targets = {name: kind.one(0, (2, 2) if name == "mask" else (5, 8)) for name, kind in kinds.items()}
    targets["points"] = np.array([[[1, 1], [np.nan, np.nan], [5, 2]]])  # One of them is behind a horizon.
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_targets(axes, (0, 8, 5, 0), targets, kinds, 8)
    assert to_hex(axes.patches[0].get_edgecolor()) == COLOURS[3]
    tints = np.asarray(axes.images[0].get_array())
    assert tints[..., 3].tolist() == [[0, 0.5], [0.6, 0.5]]
    assert [to_hex(tints[0, 1]), to_hex(tints[1, 0]), to_hex(tints[1, 1])] == [COLOURS[1], "#000000", COLOURS[15]]
    (seen,) = axes.collections
    assert np.asarray(seen.get_offsets()).tolist() == [[1, 1], [5, 2]]
    assert [to_hex(colour) for colour in seen.get_facecolors()] == [COLOURS[0], COLOURS[2]]  # type: ignore[attr-defined]
    assert classes_of([targets], kinds) == [21, 23, 255]
    # No class is left out of a mask without colour, nor are other numbers than classes named.
    unfilled = Masks([np.array([[0, 3]])], fill=0)
    assert classes_of([{"mask": unfilled.one(0, (1, 2))}], {"mask": unfilled}) == [3]
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_targets(axes, (0, 2, 1, 0), {"mask": np.array([[0, 3]])}, {"mask": unfilled}, 2)
    assert np.asarray(axes.images[0].get_array())[..., 3].tolist() == [[0, 0.5]]


@pytest.mark.parametrize("labels", [[[0.25]], [[[3, 4]]]])
def test_labels_that_are_no_classes_give_no_colour_and_no_name(labels: list[Any]) -> None:
    kinds = {"labels": Objects(labels), "boxes": Boxes([[[2, 1, 6, 4]]])}
    targets = {name: kind.one(0, (5, 8)) for name, kind in kinds.items()}
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_targets(axes, (0, 16, 10, 0), targets, kinds, 4)
    assert [to_hex(box.get_edgecolor()) for box in axes.patches] == [COLOURS[0]]
    assert axes.patches[0].get_bbox().bounds == (8, 4, 16, 12)  # type: ignore[attr-defined]
    assert classes_of([targets], kinds) == []


def test_names_of_classes_have_a_place_each_beside_others_or_in_a_line_below(tmp_path: Path) -> None:
    source = boxed(tmp_path)
    source.annotations["labels"] = Objects([[12 * number, 1, 2][: number % 4] for number in range(12)])
    source.categories = {number: f"a class with a long name {number}" for number in range(140)}
    recipe = Recipe([Decode(), RandomResizedCrop(SIZE)], Output(SIZE), 1)
    axes = pictures_sheet(source, recipe, name="mine", reuse_factor=2).axes[0]
    placed = [text for text in axes.texts if text.get_text().startswith("a class with")]
    width = 6 * len(placed[0].get_text())
    lines: dict[float, list[float]] = {}
    for text in placed:
        x, y = text.get_position()
        lines.setdefault(y, []).append(x)
    assert len(placed) > 2
    assert len(lines) > 1
    assert [*lines] == sorted(lines)
    for starts in lines.values():
        assert (np.diff(starts) > width).all()
        assert starts[-1] + width < axes.get_xlim()[1]
    (heading,) = (text for text in axes.texts if text.get_text() == "original")
    assert heading.get_position()[1] > max(lines)


def test_forty_classes_are_named_at_most() -> None:
    source = Annotated(FileList(["a.png"], [0]), {"labels": Objects([[*range(50, 0, -1)]])})
    source.categories = {2: "dog"}
    targets = {"labels": np.arange(50, 0, -1)}
    placed = sheets._classes([Pictures(0, np.zeros((1, 1, 3), np.uint8), [], targets)], source, 700)
    assert [name for _, _, name, _ in placed] == ["class 1", "dog", *(f"class {number}" for number in range(3, 41))]
    assert [colour for _, _, _, colour in placed] == [*COLOURS[1:], *COLOURS, COLOURS[0]]


def test_a_stage_that_says_no_place_is_refused_by_name(tmp_path: Path) -> None:
    recipe = Recipe([Decode(), RandomResizedCrop(SIZE), AugMix()], Output(SIZE), 2)
    with pytest.raises(ConfigurationError, match="every stage must say what moves where, but 'aug_mix' does not"):
        pictures_sheet(boxed(tmp_path), recipe, name="mine", reuse_factor=2)


def test_the_command_draws_targets_of_every_form_and_names_their_classes(tmp_path, capsys, monkeypatch) -> None:
    folders = [tmp_path / name for name in ("images", "masks", "labels")]
    for folder in folders:
        folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 60), "gray").save(folders[0] / "a.jpg", exif=exif)  # It is 60 wide and 40 high.
    Image.new("L", (60, 40), 2).save(folders[1] / "a.png")
    (folders[2] / "a.txt").write_text("1 0.5 0.5 0.5 0.5\n")
    thing = {"image_id": 1, "bbox": [5, 5, 50, 30], "category_id": 7, "segmentation": [[5, 5, 55, 5, 55, 35]]}
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 40, "width": 60}],
        "annotations": [thing],
        "categories": [{"id": 7, "name": "dog"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content))
    assert parts_of(tmp_path / "coco.json") == {"keypoints": False, "polygons": True}
    said = []
    draw = pictures_sheet

    def drawn(*arguments, **options):
        sheet = draw(*arguments, **options)
        said.append([text.get_text() for text in sheet.axes[0].texts])
        return sheet

    monkeypatch.setattr("dalirefurb.show.sheet.pictures_sheet", drawn)
    common = ["--size", "32", "--preset", "simple", "--out", str(tmp_path / "a.png")]
    for option, name in (("masks", "masks"), ("coco", "coco.json"), ("yolo", "labels")):
        assert main(["show", str(folders[0]), f"--{option}", str(tmp_path / name), *common]) == 0
    masks, coco, yolo = said
    assert "class 2" in masks
    assert "on the pictures: mask; black in masks: no image, or left out; 0 is not coloured" in masks
    assert "dog" in coco
    assert "on the pictures: boxes, polygons" in coco
    assert "class 1" in yolo
    assert "on the pictures: boxes, polygons" in yolo
    capsys.readouterr()
    assert main(["show", "--masks", str(folders[1])]) == 2
    assert "--masks is for images of yours" in capsys.readouterr().err
    assert main(["show", str(folders[0]), "--plan", "--yolo", str(folders[2])]) == 2
    assert "--yolo changes nothing with --plan" in capsys.readouterr().err


def test_a_source_of_ones_own_is_drawn(tmp_path: Path) -> None:
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    source = Annotated(FileList([tmp_path / "a.png"], [0]), {"boxes": Boxes([[[0, 0, 60, 40]]])})
    source.categories = {0: "thing"}
    assert source.subset([0, 0]).categories == {0: "thing"}
    sheet = pictures_sheet(source, rand_augment(32), name="mine", reuse_factor=2)
    assert "on the pictures: boxes" in [text.get_text() for text in sheet.axes[0].texts]


def test_masks_of_objects_are_where_cached_and_served_pictures_show_them(tmp_path: Path) -> None:
    named = boxed(tmp_path)
    source = FileList([named.name(index) for index in range(len(named))], [0] * len(named))
    boxes = [boxes_of(index) for index in range(len(source))]
    outlines = [[[(x, y, end, y, end, last, x, last)] for x, y, end, last in its] for its in boxes]
    annotated = Annotated(source, {"boxes": Boxes(boxes), "masks": InstanceMasks(outlines)})
    (taken,) = take_pictures(annotated, TURNED, [3], reuse_factor=2)
    for version in taken.versions:
        pairs = zip([version.cached, *version.served], [version.cached_targets, *version.served_targets], strict=True)
        for image, targets in pairs:
            masks = np.asarray(targets["masks"])
            assert masks.shape == (len(targets["boxes"]), *image.shape[:2])
            for (x, y, end, last), mask in zip(np.asarray(targets["boxes"]), masks, strict=True):
                rows, columns = np.nonzero(mask)
                found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                assert abs(found - (x, y, end, last)).max() <= 1
    axes = Figure().add_axes((0, 0, 1, 1))
    draw_targets(axes, (0, 48, 48, 0), taken.versions[0].cached_targets, annotated.annotations or {}, SIZE)
    assert len(axes.images) == len(taken.versions[0].cached_targets["masks"])


@pytest.mark.parametrize("warps", [False, True])
@pytest.mark.parametrize("images", [4, 9])
def test_parts_of_a_mosaic_are_where_the_plan_puts_their_samples(images: int, warps: bool, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    mosaic, affine, mirror = Mosaic(160, images=images), RandomAffine(20, (0.1, 0.1), (0.5, 1.5)), HorizontalFlip()
    final, samples, window = (mosaic, *[affine] * warps, mirror), [7, 1, 4], (60, 70)
    recipe = Recipe([Decode(), RandomCrop(window), HorizontalFlip(name="turn"), *final], Output(160), "mosaic")
    taken = take_pictures(masked(tmp_path), recipe, samples, reuse_factor=2, seed=3)
    planner = Versions(12, batch_size=3, seed=3, samples=(7, 1, 4), reuse_factor=2)
    for epoch in range(4):
        plan, sides = planner.plan(epoch, 0), np.full(3, 160)
        given = {"indices": plan.indices, "numbers": plan.serving, "heights": sides, "widths": sides}
        drawn, _, _ = draw(final, seed=3, versions=plan.version, **given)
        back = affine.matrices(drawn["random_affine"], sides, sides) if warps else np.stack([np.eye(3)] * 3)
        for row, each in enumerate(taken):
            parts = each.versions[epoch // 2].parts[epoch % 2]
            others = [(row + 1 + int(2 * uniform)) % 3 for uniform in drawn["mosaic"]["partners"][row]]
            assert [sample for sample, _ in parts] == [samples[other] for other in (row, *others)]
            y, x = drawn["mosaic"]["centre"][row]
            for place, (_, outline) in enumerate(parts):
                left, top = x - 70 * (place % 2 == 0), y - 60 * (place < 2)
                if images == 9:
                    left, top = x - 35 + 70 * ((place + 1) % 3 - 1), y - 30 + 60 * ((place + 4) % 9 // 3 - 1)
                corners = [[left, top, 1], [left + 70, top, 1], [left + 70, top + 60, 1], [left, top + 60, 1]]
                wanted = (np.array(corners) @ np.linalg.inv(back[row]).T)[:, :2]
                if drawn["flip"]["mirror"][row]:
                    wanted[:, 0] = 160 - wanted[:, 0]
                assert np.abs(outline - wanted).max() <= (1e-3 if warps else 0)


def test_parts_are_outlined_within_and_named_where_they_are_seen() -> None:
    axes = Figure().add_axes((0, 0, 1, 1), xlim=(0, 300), ylim=(300, 0))
    seen, beyond = np.array([[-4, -4], [4, -4], [4, 2], [-4, 2]]), np.array([[9, 0], [12, 0], [12, 3], [9, 3]])
    draw_parts(axes, (100, 180, 260, 200), [("17", "#ff0000", seen), ("3", "#00ff00", beyond)], 8)
    one, other = axes.patches
    assert one.get_xy().tolist()[:4] == [[60, 160], [140, 160], [140, 220], [60, 220]]  # type: ignore[attr-defined]
    assert other.get_clip_box().bounds == one.get_clip_box().bounds  # type: ignore[union-attr]
    assert one.get_clip_path() is not None
    (name,) = axes.texts
    assert (name.get_text(), name.get_position(), name.get_color()) == ("17", (120, 210), "#ff0000")
    small = np.array([[0, 0], [1, 0], [1, 6], [0, 6]])
    draw_parts(axes, (100, 180, 260, 200), [("4", "#0000ff", small)], 8)
    assert [*axes.texts] == [name]  # There is no room for another.


def test_each_picture_has_on_it_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, outlined = [], []
    monkeypatch.setattr(sheets, "draw_targets", lambda _, extent, targets, *given: drawn.append((*targets, given[1])))
    monkeypatch.setattr(sheets, "draw_parts", lambda _, extent, named, width: outlined.append(int(named[0][2].max())))

    def version(number: int) -> Version:
        parts = [[(7, np.full((4, 2), 10 * number + use))] for use in (1, 2)]
        uses = [{f"use {number}.{use}": None} for use in (1, 2)]
        return Version(blank(30), [blank(40), blank(50)], {f"cached {number}": None}, uses, parts)

    def blank(width: int) -> Any:
        return np.zeros((20, width, 3), np.uint8)

    _, axes = sheets._paper(900, 900)
    pictures = Pictures(7, blank(60), [version(1), version(2)], {"original": None})
    sheets._draw_sample(axes, 10, pictures, sheets._columns(evaluate(SIZE), 2), "", {}, {7: "#ff0000"})
    versions = [[(f"cached {number}", 30), (f"use {number}.1", 40), (f"use {number}.2", 50)] for number in (1, 2)]
    assert drawn == [("original", 60), *versions[0], *versions[1]]
    assert outlined == [30, 11, 12, 30, 21, 22]
    # From the original to what is cached of each version, and from there to what is made of it.
    original, partial, final = sheets._columns(evaluate(SIZE), 2)
    tops = [10 + number * sheets._VERSION for number in (0, 1)]
    middle = sheets.CELL // 2 + sheets._FRAME
    arrows = [(line.get_xydata()[0].tolist(), line.get_ydata()[-1]) for line in axes.lines]  # type: ignore[index]
    beside = (tops[0] + tops[1]) // 2
    assert arrows == [
        way
        for top in tops
        for way in (
            ([original.end + 3, beside + middle], top + middle),
            ([partial.end + 3, top + middle], top + middle),
        )
    ]
    ends = [text.xy for text in axes.texts if hasattr(text, "xy")]
    assert ends == [(column.x, top + middle) for top in tops for column in (partial, final)]


def test_a_sheet_of_mosaics_names_samples_and_draws_what_is_shared_in_one_colour(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    sheet = pictures_sheet(boxed(tmp_path), yolo(SIZE), name="yolo", reuse_factor=1)
    said = [text.get_text() for text in sheet.axes[0].texts]
    assert [text for text in said if text.startswith("sample")] == ["sample 1", "sample 5", "sample 7", "sample 11"]
    assert any(text.startswith("outlines: parts of mosaics") for text in said)
    assert said.count("7") >= 2  # on the cached picture, and in mosaics
    named = {text.get_text(): str(text.get_color()) for text in sheet.axes[0].texts if text.get_text().isdigit()}
    assert named == dict(zip(("1", "5", "7", "11"), PARTS, strict=True))
    alone = pictures_sheet(boxed(tmp_path), yolo(SIZE, mosaic=False), name="yolo", reuse_factor=1)
    assert not any("outlines" in text.get_text() or text.get_text().isdigit() for text in alone.axes[0].texts)


def test_volumes_are_refused_by_name() -> None:
    source = Volumes([np.zeros((8, 8, 8), np.float32)] * 2)
    recipe = Recipe([RandomCrop3D(4)], VolumeOutput(4), split=0)
    for draw_it in (
        lambda: pictures_sheet(source, recipe, name="mine", reuse_factor=2),
        lambda: pictures_sheet(source, evaluate(SIZE, raw=True), name="mine", reuse_factor=2),
        lambda: stages_sheet(source, size=SIZE),
    ):
        with pytest.raises(ConfigurationError, match="pictures are of images, but these are volumes"):
            draw_it()
