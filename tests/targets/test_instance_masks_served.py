"""Masks of objects through a loader: they are where their images show them, and the same however these were made."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import BadSamplePolicy, DiskStore, Evaluate, FileList, Loader, MemoryStore, Refurbish, evaluate
from dalirefurb.augment import Decode, HorizontalFlip, RandomCrop, Resize
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.targets import Annotated, Boxes, CocoDetection, InstanceMasks, Objects
from tests.targets.scenes import COLOURS, COUNT, boxed, sizes
from tests.targets.test_instance_masks import counts_of, inside, text_of
from tests.targets.test_kinds import coco
from tests.targets.test_loader import CROP, MOVES, SIZE, assert_same, levels, recipe_of, served


def ellipse(box: tuple[int, int, int, int]) -> NDArray[np.float64]:
    left, top, right, bottom = box
    turn = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    x, y = left + right + (right - left) * np.cos(turn), top + bottom + (bottom - top) * np.sin(turn)
    return np.stack([x, y], axis=1) / 2


def outlined(folder: Path, **options: Any) -> Annotated:
    """Files that are black but for ellipses in a colour each: two outlines, one outline, and run lengths."""
    paths, masks, boxes = list[Path](), list[list[Any]](), list[list[Any]]()
    for number, (height, width) in enumerate(sizes()):
        third = width // 3
        own = [(8 + third * each, 20 + number, third * (each + 1), height - 15 - number) for each in range(number % 4)]
        x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
        image, objects = np.zeros((height, width, 3), np.uint8), list[Any]()
        for place, box in enumerate(own):
            parts = [ellipse(box)]
            if place == 0:
                middle = (box[0] + box[2]) // 2
                parts = [ellipse((box[0], box[1], middle - 1, box[3])), ellipse((middle + 1, box[1], box[2], box[3]))]
            covered = np.any([inside(part, x, y) for part in parts], axis=0)
            image[covered] = COLOURS[place]
            objects.append({"size": covered.shape, "counts": text_of(counts_of(covered))} if place == 2 else parts)
        paths.append(folder / f"{number}.png")
        Image.fromarray(image).save(paths[-1])
        masks.append(objects)
        boxes.append(own)
    targets = {
        "boxes": Boxes(boxes, **options),
        "labels": Objects([list(range(len(row))) for row in boxes]),
        "masks": InstanceMasks(masks),
    }
    return Annotated(FileList(paths, [0] * COUNT), targets)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        *((name, "numba") for name in ("both flips", "padded crop", "rotation", "perspective", "four")),
        *((name, "dali") for name in ("both flips", "rotation")),
    ],
)
def test_a_mask_is_where_its_object_is(tmp_path: Path, name: str, kernels: Any) -> None:
    stages, most = MOVES[name]
    source, told = outlined(tmp_path), 0
    for images, targets in served(source, recipe_of(stages, 2), epochs=2, kernels=kernels):
        for image, target in zip(levels(images), targets, strict=True):
            assert (target["masks"].dtype, target["masks"].shape[1:]) == (torch.uint8, (SIZE, SIZE))
            assert len(target["masks"]) == len(target["boxes"])
            for mask, label in zip(target["masks"].numpy() == 1, target["labels"].tolist(), strict=True):
                there = (image == COLOURS[label]).all(axis=-1)
                # Images are resampled by each stage, each time by half a pixel at most.
                edge = np.zeros_like(mask)
                for axis in (0, 1):
                    edge |= (np.roll(mask, 1, axis) != mask) | (np.roll(mask, -1, axis) != mask)
                if most < 4:
                    edge[[0, -1]] = edge[:, [0, -1]] = True
                    grown = edge.copy()
                    for dy, dx in np.ndindex(7, 7):
                        grown |= np.roll(edge, (dy - 3, dx - 3), (0, 1))
                    assert (mask == there)[~(grown if most else edge)].all()
                assert (mask != there).sum() <= 60 + 0.25 * mask.sum()
                told += int(mask.sum() > 100)
    assert told > 25


def test_neither_store_nor_groups_nor_a_resume_change_a_mask(tmp_path: Path) -> None:
    source = outlined(tmp_path, min_visible=0.3)
    recipe = recipe_of(MOVES["affine"][0], 1)
    wanted = served(source, recipe)
    planner = Refurbish(COUNT, batch_size=5, reuse_factor=3, seed=7)
    with pytest.warns(UserWarning, match="no store"):
        unstored = Loader(source, recipe, planner)
    with unstored as loader:
        assert_same([batch for _ in range(3) for batch in loader], wanted)
    with pytest.warns(UserWarning, match="smaller than the plan needs"):
        assert_same(served(source, recipe, store=MemoryStore(max_bytes="500KB")), wanted)
    for place in (1, 4):
        (tmp_path / "cache").unlink(missing_ok=True)
        with Loader(source, recipe, planner, DiskStore(tmp_path / "cache")) as first:
            batches = (batch for _ in range(3) for batch in first)
            assert_same([*islice(batches, place)], wanted[:place])
            state = json.dumps(first.state_dict())
        with Loader(source, recipe, planner, DiskStore(tmp_path / "cache")) as second:
            second.load_state_dict(json.loads(state))
            rest = [batch for _ in range(3) for batch in second]
            assert_same(rest[: len(wanted) - place], wanted[place:])
    with Loader(source.subset([3, 7, 3]), evaluate(SIZE), Evaluate(3, batch_size=3)) as loader:
        ((_, (one, other, again)),) = loader
    assert torch.equal(one["masks"], again["masks"])
    assert [len(each["masks"]) for each in (one, other)] == [len(each["boxes"]) for each in (one, other)] == [2, 3]


def test_dropped_objects_lose_their_masks_and_are_counted(tmp_path: Path) -> None:
    counts = list[int]()
    for share in (0.0, 0.9):
        source = outlined(tmp_path, min_area=0.0, min_visible=share)
        planner = Refurbish(COUNT, batch_size=5, reuse_factor=3, seed=7)
        with Loader(source, recipe_of([CROP]), planner, MemoryStore()) as loader:
            targets = [target for _ in range(3) for _, batch in loader for target in batch]
            dropped = loader.stats().dropped_objects
        own = [source.annotations["boxes"].rows.counts[int(target["index"])] for target in targets]
        assert dropped == sum(own) - sum(len(target["boxes"]) for target in targets)
        assert all(len(target["masks"]) == len(target["boxes"]) == len(target["labels"]) for target in targets)
        counts.append(dropped)
    assert counts[0] < counts[1]


def test_masks_of_a_coco_file_are_those_of_its_segmentation(tmp_path: Path) -> None:
    crowd = {"counts": [60 * 10, 40, 60 * 30 - 40], "size": [40, 60]}
    box = {"image_id": 9, "bbox": [5, 6, 20, 10], "category_id": 1}
    things = [
        {**box, "segmentation": [[5, 6, 25, 6, 25, 16, 5, 16]]},
        {**box, "iscrowd": 1, "segmentation": crowd},
        {**box, "segmentation": {**crowd, "counts": text_of(crowd["counts"])}},  # type: ignore[arg-type]
    ]
    found = CocoDetection(tmp_path, coco(tmp_path, annotations=things), masks=True, crowds=True)
    masks = found[2][1]["masks"]
    assert masks.shape == (3, 40, 60)
    assert masks[0].sum() == masks[0, 6:16, 5:25].sum() == 200
    assert masks[1].sum() == masks[1, :, 15].sum() == 40
    assert np.array_equal(masks[1], masks[2])
    assert len(CocoDetection(tmp_path, tmp_path / "instances.json", masks=True)[2][1]["masks"]) == 2
    recipe = Recipe([Decode(), RandomCrop((40, 60)), HorizontalFlip(1.0)], Output((40, 60)), split=1)
    with Loader(found, recipe, Refurbish(3, batch_size=3, reuse_factor=1), MemoryStore()) as loader:
        ((_, targets),) = loader
    by_id = {int(target["image_id"]): target["masks"] for target in targets}
    assert np.array_equal(by_id[9], masks[..., ::-1])
    assert by_id[7].shape == (0, 40, 60)
    with pytest.raises(ConfigurationError, match=r"of each object, but .*'bbox'.* has none"):
        CocoDetection(tmp_path, coco(tmp_path, annotations=[{**box, "segmentation": []}]), masks=True)


def test_run_lengths_of_another_size_make_a_bad_sample(tmp_path: Path) -> None:
    plain = boxed(tmp_path)._source
    coded = [{"size": [*size], "counts": [size[0] * size[1]]} for size in sizes()]
    coded[2] = {"size": [30, 40], "counts": [1200]}
    source = Annotated(plain, {"masks": InstanceMasks([[each] for each in coded])})
    said = r"2\.png.*run lengths of its masks must be of the size of the image, 104 x 182, .*but are of 30 x 40"
    with pytest.raises(SampleError, match=said):
        served(source, evaluate(SIZE), epochs=1)
    with pytest.raises(SampleError, match=r"must be of the size of the image, 104 x 182"):
        source[2]
    # Images that a store has were not judged by these targets.
    planner = Evaluate(COUNT, batch_size=6)
    with Loader(plain, evaluate(SIZE), planner, DiskStore(tmp_path / "cache")) as loader:
        assert len([*loader]) == 2
    with Loader(source, evaluate(SIZE), planner, DiskStore(tmp_path / "cache")) as loader, pytest.raises(SampleError):
        list(loader)
    with Loader(source, evaluate(SIZE), planner, bad_samples=BadSamplePolicy("replace")) as loader:
        assert sum(len(targets) for _, targets in loader) == COUNT


def test_ultralytics_form_has_no_masks_of_objects(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no masks of objects yet, but there are masks: pass outlines as"):
        Loader(outlined(tmp_path), evaluate(SIZE), Evaluate(COUNT, batch_size=6), target_form="ultralytics")


def test_shares_are_of_the_images_sides(tmp_path: Path) -> None:
    source = boxed(tmp_path)._source
    masks = InstanceMasks([[[[0, 0, 0.5, 0, 0.5, 1, 0, 1]]]] * COUNT, normalized=True)
    recipe = Recipe([Decode(), Resize((SIZE, SIZE))], Output(SIZE), split=1)
    with Loader(Annotated(source, {"masks": masks}), recipe, Evaluate(COUNT, batch_size=6)) as loader:
        for _, targets in loader:
            for target in targets:
                assert target["masks"][0, :, : SIZE // 2].all()
                assert target["masks"].sum() == SIZE * SIZE // 2
    assert masks.one(0, (10, 8)).sum() == 40
