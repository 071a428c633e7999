"""MixUp and CopyPaste make one image of two of a batch, and of their objects what NumPy makes, whatever the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import stats

pytest.importorskip("numba")

from dalirefurb import Arrays, Evaluate, FileList, Loader, MemoryStore, Output, PartialSource, Prefetch, Recipe
from dalirefurb.augment import CopyPaste, Custom, Decode, HorizontalFlip, MixUp, RandomAffine, RandomCrop, Stage
from dalirefurb.augment.stage import draw
from dalirefurb.augment.stages.partners import PairStage, partner_rows
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.rng import generator
from dalirefurb.targets import Annotated, Boxes, InstanceMasks, Keypoints, Masks, Objects, Polygons
from tests.in_turn import EACH_CHANGE, in_turn
from tests.targets.scenes import COUNT, Box, boxes_of, masked, sizes
from tests.targets.test_instance_masks import counts_of
from tests.targets.test_loader import assert_same
from tests.targets.test_mosaic import levels, refurbish, served

SIZE, SMALL = 80, 64
BEFORE = (HorizontalFlip(), RandomCrop(SIZE, name="window"))
BEHIND = (RandomCrop(SMALL, name="behind"), HorizontalFlip(name="turn"))
STAGES = (MixUp(), CopyPaste())

Mask = NDArray[np.bool_]


def recipe_of(stage: Stage | None, *behind: Stage) -> Recipe:
    stages = [Decode(), *BEFORE, *([] if stage is None else [stage]), *behind]
    size = SMALL if behind == BEHIND else SIZE
    return Recipe(stages, Output(size, mean=0.0, std=1.0), split=len(BEFORE) + 1)


def filled(box: Sequence[int], size: tuple[int, int]) -> Mask:
    """A mask of what is in a box."""
    mask = np.zeros(size, np.bool_)
    mask[box[1] : box[3], box[0] : box[2]] = True
    return mask


def box_around(mask: Mask) -> list[int]:
    rows, columns = (np.flatnonzero(mask.any(axis=axis)).tolist() for axis in (1, 0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def corners(box: Box) -> list[list[int]]:
    left, top, right, bottom = box
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


class Sample(NamedTuple):
    """Noise with objects, whose red is 200 and their label, and what they fill, and their boxes fill, (k, h, w)."""

    image: NDArray[np.uint8]
    masks: Mask
    boxes: Mask
    labels: list[int]


def sample(number: int, ragged: bool) -> Sample:
    """None to three objects; the third one, if some are to be ragged, is full of holes, and only above in its box."""
    size, rng = sizes()[number], np.random.default_rng(number)
    image = rng.integers(0, 128, (*size, 3), np.uint8)
    boxes = np.array([filled(box, size) for box in boxes_of(number)], np.bool_).reshape(-1, *size)
    masks, labels = boxes.copy(), [3 * number + place for place in range(len(boxes))]
    if ragged and len(masks) > 2:
        masks[2] &= rng.random(size) < 0.5
        masks[2, size[0] // 4 :] = False
    for mask, label in zip(masks, labels, strict=True):
        image[mask, 0] = 200 + label
    return Sample(image, masks, boxes, labels)


def scene(folder: Path, ragged: bool = True) -> Annotated:
    """Files of samples, with masks of their objects; or, if none are ragged, with outlines and keypoints."""
    paths, every = [], [sample(number, ragged) for number in range(COUNT)]
    for number, each in enumerate(every):
        paths.append(folder / f"{number}.png")
        Image.fromarray(each.image).save(paths[-1])
    points = [[corners(box) for box in boxes_of(number)] for number in range(COUNT)]
    outlines = [[[np.ravel(corner)] for corner in its] for its in points]
    targets: dict[str, Any] = {
        "boxes": Boxes([[box_around(mask) for mask in each.boxes] for each in every]),
        "labels": Objects([each.labels for each in every]),
    }
    if ragged:
        coded = [
            [{"size": mask.shape, "counts": counts_of(mask)} if place == 2 else its[place] for place, mask in some]
            for its, some in ((its, enumerate(each.masks)) for its, each in zip(outlines, every, strict=True))
        ]
        targets["masks"] = InstanceMasks(coded)
    else:
        targets["outlines"] = Polygons(outlines)
        targets["points"] = Keypoints([np.array(its, float).reshape(-1, 4, 2) for its in points])
    return Annotated(FileList(paths, [0] * COUNT), targets)


def moved(of: Sample, mirrored: bool, start: Sequence[int], size: int) -> Sample:
    """A sample that is flipped, then cropped."""
    rows, columns = (slice(first, first + size) for first in start)

    def window(pixels: Any) -> Any:
        turned = pixels[:, ::-1] if mirrored else pixels
        return turned[rows, columns]

    masks, boxes = (np.array([*map(window, its)], np.bool_).reshape(-1, size, size) for its in (of.masks, of.boxes))
    return Sample(window(of.image), masks, boxes, of.labels)


def pasted(own: Sample, other: Sample, chosen: Mask, least: float) -> Sample:
    """Objects of another sample, over one's own."""
    chosen = chosen & other.masks.any(axis=(1, 2))
    shape = other.masks[chosen].any(axis=0)
    masks, boxes, labels = list(other.masks[chosen]), list(other.boxes[chosen]), np.array(other.labels)[chosen].tolist()
    for mask, box, label in list(zip(own.masks, own.boxes, own.labels, strict=True))[::-1]:
        left = mask & ~shape
        if left.sum() == mask.sum() or left.sum() >= max(1, least * mask.sum()):
            masks.insert(0, left)
            boxes.insert(0, box if left.sum() == mask.sum() else filled(box_around(left), mask.shape))
            labels.insert(0, label)
    image = np.where(shape[..., None], other.image, own.image)
    empty = np.zeros((0, *shape.shape), np.bool_)
    return Sample(image, np.array(masks) if masks else empty, np.array(boxes) if boxes else empty, labels)


def blended(own: Sample, other: Sample, share: float) -> Sample:
    level = share * own.image + (1 - share) * other.image
    both = (np.concatenate([getattr(own, name), getattr(other, name)]) for name in ("masks", "boxes"))
    return Sample(np.floor(level + 0.5).astype(np.uint8), *both, own.labels + other.labels)


def expected(stage: PairStage, plan: BatchPlan, behind: bool, ragged: bool, slice_rows: int = 6) -> list[Sample]:
    """What NumPy makes of a plan."""
    heights, widths = np.array(sizes())[plan.indices].T
    given: Any = {"seed": 7, "indices": plan.indices, "heights": heights, "widths": widths}
    first, *_ = draw(BEFORE, numbers=plan.version, **given)
    given |= {"heights": np.full_like(heights, SIZE), "widths": np.full_like(widths, SIZE)}
    then, *_ = draw((stage, *(BEHIND if behind else ())), numbers=plan.serving, **given)
    partial = [
        moved(sample(index, ragged), mirrored, start, SIZE)
        for index, mirrored, start in zip(
            plan.indices.tolist(), first["flip"]["mirror"], first["window"]["start"].tolist(), strict=True
        )
    ]
    drawn, made = then[stage.name], []
    others = partner_rows(drawn["partners"], [len(plan.indices)], slice_rows)[:, 0].tolist()
    for row, other in enumerate(others):
        result, its = partial[row], partial[other]
        if drawn["done"][row] and other != row and isinstance(stage, MixUp):
            result = blended(result, its, float(drawn["share"][row]))
        elif drawn["done"][row] and other != row:
            assert isinstance(stage, CopyPaste)
            chosen = generator(drawn["objects"][row]).random(len(its.labels)) < stage.share
            result = pasted(result, its, chosen, stage.min_visible)
        if behind:
            result = moved(result, False, then["behind"]["start"][row].tolist(), SMALL)
            result = moved(result, then["turn"]["mirror"][row], (0, 0), SMALL)
        made.append(result)
    return made


KINDS: list[tuple[PairStage, bool]] = [
    (MixUp(), True),
    (MixUp(0.4, 0.5), False),
    (CopyPaste(), True),
    (CopyPaste(1.0, min_visible=0.6), True),
    (CopyPaste(0.8, 0.5, 0.0), False),
]
"""Stages, and whether some masks are ragged."""


@pytest.mark.parametrize(("kind", "behind"), in_turn(KINDS, [False, True]))
def test_pixels_boxes_and_masks_are_what_numpy_makes(
    kind: tuple[PairStage, bool], behind: bool, tmp_path: Path
) -> None:
    (stage, ragged), planner = kind, refurbish()
    batches = iter(
        served(scene(tmp_path, ragged), recipe_of(stage, *(BEHIND if behind else ())), planner, MemoryStore())
    )
    told = dropped = 0
    for epoch in range(3):
        for batch in range(len(planner)):
            images, targets = next(batches)
            wanted = expected(stage, planner.plan(epoch, batch), behind, ragged)
            for image, target, its in zip(levels(images), targets, wanted, strict=True):
                assert np.array_equal(image, its.image)
                stay = its.boxes.any(axis=(1, 2))
                boxes = [box_around(each) for each in its.boxes[stay]]
                assert target["labels"].tolist() == np.array(its.labels)[stay].tolist()
                assert target["boxes"].tolist() == boxes
                if ragged:
                    assert np.array_equal(target["masks"].numpy(), its.masks[stay])
                else:
                    assert len(target["outlines"]) == len(target["points"]) == len(boxes)
                    assert [its[0].min(0).values.tolist() for its in target["outlines"]] == [
                        its.min(0).values.tolist() for its in target["points"]
                    ]
                told += len(boxes)
                dropped += len(stay) - len(boxes)
    assert told > 50
    assert dropped > 0


@pytest.mark.parametrize(
    ("stage", "batch_size"),
    [(MixUp(probability=0.0), 6), (CopyPaste(probability=0.0), 6), (CopyPaste(0.0), 6), (MixUp(), 1), (CopyPaste(), 1)],
)
def test_where_nothing_is_done_all_is_as_without_it(stage: Stage, batch_size: int, tmp_path: Path) -> None:
    """So it is where an image is alone in its batch: it is no partner of itself."""
    source, planner = scene(tmp_path), refurbish(batch_size=batch_size)
    ones, others = (served(source, recipe_of(each, *BEHIND), planner, epochs=1) for each in (stage, None))
    assert_same(ones, others)


@pytest.mark.parametrize(("stage", "batch_size"), in_turn(STAGES, [2, 5]))
def test_neither_store_nor_groups_nor_threads_change_it(stage: Stage, batch_size: int, tmp_path: Path) -> None:
    source, recipe = scene(tmp_path), recipe_of(stage, *BEHIND)
    planner = refurbish(batch_size=batch_size)
    alone = served(source, recipe, planner)
    for options in ({}, {"num_threads": 1}, {"num_threads": 3, "look_ahead": 6}):
        assert_same(alone, served(source, recipe, planner, MemoryStore(), prefetch=Prefetch(**options)))
    with pytest.warns(UserWarning, match="the store is smaller than the plan needs"):
        assert_same(alone, served(source, recipe, planner, MemoryStore(max_bytes=2**16)))


@pytest.mark.parametrize("stage", STAGES)
def test_a_training_goes_on_at_any_batch_with_the_same_images(stage: Stage, tmp_path: Path) -> None:
    source, recipe, planner = scene(tmp_path), recipe_of(stage), refurbish(batch_size=5)
    states = []
    with Loader(source, recipe, planner, MemoryStore()) as loader:
        for _ in range(2):
            states += [loader.state_dict() for _ in loader]
    wanted = served(source, recipe, planner, MemoryStore(), epochs=2)
    apart = 3 if EACH_CHANGE and isinstance(stage, MixUp) else 1
    for place, state in [*enumerate(states[:-1])][::apart]:
        with Loader(source, recipe, planner, MemoryStore()) as loader:
            loader.load_state_dict(state)
            assert_same([next(iter(loader))], [wanted[place + 1]])


@pytest.mark.parametrize(("stage", "world_size"), in_turn(STAGES, [2, 4]))
def test_ranks_together_serve_what_one_process_would(stage: PairStage, world_size: int, tmp_path: Path) -> None:
    """Partners are of the sample's own shard."""
    source, recipe = scene(tmp_path), recipe_of(stage)
    planner = refurbish(batch_size=8, shards=4)
    whole = served(source, recipe, planner, MemoryStore())
    wanted = expected(stage, planner.plan(0, 0), False, True, slice_rows=2)
    assert np.array_equal(levels(whole[0][0]), [each.image for each in wanted])
    parts = [served(source, recipe, planner, MemoryStore(), rank=(rank, world_size)) for rank in range(world_size)]
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        assert_same([*batch[0]], [image for images, _ in of_ranks for image in images])
        assert_same(batch[1], [target for _, targets in of_ranks for target in targets])


def test_a_partial_image_is_computed_once_for_all_that_show_it(tmp_path: Path) -> None:
    with Loader(scene(tmp_path), recipe_of(CopyPaste()), refurbish(reuse_factor=1)) as loader:
        for _ in loader:
            pass
        assert loader.stats().misses == COUNT


def test_masks_are_where_images_show_what_is_pasted_however_these_are_turned(tmp_path: Path) -> None:
    turn = RandomAffine(15, (0.1, 0.1), (0.8, 1.3), 5, "nearest", fill=0)
    wrong = told = 0
    for images, targets in served(
        scene(tmp_path), recipe_of(CopyPaste(0.7, min_visible=0.0), turn), refurbish(), MemoryStore()
    ):
        for image, target in zip(levels(images), targets, strict=True):
            made = np.zeros(image.shape[:2], np.int64)
            for mask, label, box in zip(
                target["masks"].numpy(), target["labels"].tolist(), target["boxes"], strict=True
            ):
                assert not (made[mask > 0]).any()  # No pixel is of two objects.
                made[mask > 0] = 200 + label
                rows, columns = np.nonzero(mask)
                left, top, right, bottom = box.tolist()
                inside = (columns > left - 1) & (columns < right) & (rows > top - 1) & (rows < bottom)
                assert inside.mean() > 0.98 if len(rows) else True
            wrong += int((made != np.where(image[..., 0] >= 200, image[..., 0], 0)).sum())
            told += int((made > 0).sum())
    assert told > 30_000
    assert wrong < 0.03 * told


@pytest.mark.parametrize("kind", [MixUp, CopyPaste])
def test_what_is_not_done_is_an_outcome_and_all_else_too_many(kind: Any) -> None:
    for probability, outcomes in ((0.0, [1.0]), (0.3, [0.7]), (1.0, [])):
        stage = kind(probability=probability)
        assert stage.outcomes.tolist() == outcomes
        assert stage.random == (probability > 0)


def test_shares_are_of_the_beta_distribution() -> None:
    rows = np.arange(1000)
    for alpha in (0.4, 1.0, 32.0):
        drawn, *_ = draw((MixUp(alpha),), seed=1, indices=rows, numbers=rows, heights=rows, widths=rows)
        assert stats.kstest(drawn["mix_up"]["share"], stats.beta(alpha, alpha).cdf).pvalue > 1e-3
        assert (drawn["mix_up"]["share"] * 2**16 % 1 == 0).all()


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_refused_where_it_cannot_be_done(stage: PairStage, tmp_path: Path) -> None:
    source, planner, kind = scene(tmp_path), refurbish(), type(stage).__name__
    recipe, by_kernels = recipe_of(stage), f"stage '{stage.name}' takes several images of a batch"
    boxes = source.annotations["boxes"]
    files = FileList([tmp_path / f"{number}.png" for number in range(COUNT)], [0] * COUNT)
    varying = Recipe([Decode(), HorizontalFlip(), stage, RandomCrop(SIZE)], Output(SIZE), split=stage.name)
    labelled = Annotated(files, {"boxes": boxes, "mask": masked(tmp_path).annotations["mask"]})
    custom = recipe_of(stage, Custom(lambda node: node, "mine"))
    for where, what, options, said in (
        (source, recipe, {"kernels": "dali"}, by_kernels),
        (source, recipe, {"final_device": "gpu"}, by_kernels),
        (files, custom, {}, by_kernels),
        (files, recipe, {}, f"{kind} '{stage.name}' is for sources with targets of objects"),
        (
            Annotated(files, {"mask": Masks([np.zeros(size, np.uint8) for size in sizes()])}),
            recipe,
            {},
            "is for sources",
        ),
        (
            labelled,
            recipe,
            {},
            f"{kind} '{stage.name}' cannot be done with a number for each pixel, but the source has",
        ),
        (source, varying, {}, f"{kind} '{stage.name}' takes two partial images of one size"),
        (source, recipe, {"planner": Evaluate(COUNT, batch_size=6)}, "validate with a recipe without it"),
    ):
        given: Any = {"planner": planner, **options}
        with pytest.raises(ConfigurationError, match=said):
            Loader(where, what, store=MemoryStore(), **given)
    arrays = Arrays(np.zeros((COUNT, 30, 30, 3), np.uint8), np.arange(COUNT))
    alone = Recipe([stage], Output(30), split=0)
    with pytest.raises(ConfigurationError, match=f"a recipe with a {kind} cannot be served in several views yet"):
        Loader(arrays, alone, planner, MemoryStore(), views=[alone.view(2)])
    with pytest.raises(ConfigurationError, match=f"a recipe with a {kind} cannot be served by a PartialSource yet"):
        PartialSource(arrays, alone, planner, MemoryStore())
    with pytest.raises(ConfigurationError, match="so it must be the first stage behind the split"):
        recipe_of(stage).at(1)
    for name in ("probability", *({"alpha"} if kind == "MixUp" else {"share", "min_visible"})):
        with pytest.raises(ConfigurationError, match=f"{stage.name}: {name} must be a number"):
            replace(stage, **{name: -0.5})  # type: ignore[type-var]
    if kind == "MixUp":
        for alpha in (0, float("inf")):
            with pytest.raises(
                ConfigurationError, match=r"mix_up: alpha must be a number above 0, got .*: 32 is usual"
            ):
                MixUp(alpha)


def test_what_helps_instead_is_said(tmp_path: Path) -> None:
    source = scene(tmp_path)
    files = FileList([tmp_path / f"{number}.png" for number in range(COUNT)], [0] * COUNT)
    with pytest.raises(ConfigurationError, match="blend images and labels of a batch by "):
        Loader(files, recipe_of(MixUp()), refurbish())
    shapeless = Annotated(files, {"boxes": source.annotations["boxes"]})
    with pytest.raises(ConfigurationError, match="pastes the shapes of objects, but the source has none, only boxes"):
        Loader(shapeless, recipe_of(CopyPaste()), refurbish())
