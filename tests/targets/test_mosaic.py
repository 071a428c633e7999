"""A mosaic shows four or nine partial images of its batch, with what belongs to each, whatever store and ranks."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("numba")

from dalirefurb import (
    Arrays,
    Evaluate,
    FileList,
    Loader,
    MemoryStore,
    Output,
    PartialSource,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
)
from dalirefurb.augment import (
    AutoAugmentFirst,
    AutoAugmentSecond,
    Custom,
    Decode,
    HorizontalFlip,
    Mosaic,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    Resize,
    Stage,
)
from dalirefurb.augment.geometry import geometry
from dalirefurb.augment.stage import draw
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.targets import Annotated, InstanceMasks, Keypoints, Masks, Polygons
from tests.targets.scenes import COLOURS, COUNT, boxed, boxes_of, coordinates, masked, sizes

SIZE, FILL = 160, 7
MOSAIC = Mosaic((SIZE, SIZE + 20), fill=FILL)

four_and_nine = pytest.mark.parametrize("mosaic", [MOSAIC, replace(MOSAIC, images=9)], ids=["four", "nine"])


def recipe_of(
    *stages: Stage, before: tuple[Stage, ...] = (), size: Any = (SIZE, SIZE + 20), mosaic: Mosaic = MOSAIC
) -> Recipe:
    return Recipe([Decode(), *before, mosaic, *stages], Output(size, mean=0.0, std=1.0), split="mosaic")


def refurbish(**options: Any) -> Refurbish:
    return Refurbish(COUNT, **{"batch_size": 6, "reuse_factor": 3, "seed": 7, **options})


def served(source: Any, recipe: Recipe, planner: Planner, store: Any = None, epochs: int = 3, **options: Any) -> Any:
    with Loader(source, recipe, planner, store, **options) as loader:
        return [copy.deepcopy(batch) for _ in range(epochs) for batch in loader]


def levels(images: torch.Tensor) -> NDArray[np.int64]:
    return (images * 255).round().long().permute(0, 2, 3, 1).numpy()


def pasted(images: list[NDArray[np.uint8]], row: int, column: int) -> NDArray[np.uint8]:
    """Four images around a point, or the first of nine with its middle there and the others around, pixel by pixel."""
    made, high, wide, places = np.full((SIZE, SIZE + 20, 3), FILL, np.uint8), 0, 0, ["NW", "NE", "SW", "SE"]
    if len(images) == 9:
        places = [".", "E", "SW", "S", "SE", "NW", "N", "NE", "W"]
        high = max(images[places.index(each)].shape[0] for each in "W.E")
        wide = max(images[places.index(each)].shape[1] for each in "N.S")
    for place, image in zip(places, images, strict=True):
        height, width = image.shape[:2]
        top, left = row - height // 2, column - width // 2
        if place[0] in "NS":
            top = row - high // 2 + (high if place[0] == "S" else -height)
        if place[-1] in "WE":
            left = column - wide // 2 + (wide if place[-1] == "E" else -width)
        for y in range(max(top, 0), min(top + height, SIZE)):
            for x in range(max(left, 0), min(left + width, SIZE + 20)):
                made[y, x] = image[y - top, x - left]
    return made


@four_and_nine
def test_it_is_images_of_the_batch_around_a_point(mosaic: Mosaic, tmp_path: Path) -> None:
    """Their versions are those that the batch serves, flipped as drawn for these; the numbers are the serving's."""
    flip, planner = HorizontalFlip(), refurbish()
    source, recipe = masked(tmp_path), recipe_of(before=(flip,), mosaic=mosaic)
    batches = iter(served(source, recipe, planner, MemoryStore(), epochs=4))
    chosen = set()
    for epoch in range(4):
        for batch in range(len(planner)):
            plan, (images, _) = planner.plan(epoch, batch), next(batches)
            sides = np.array(sizes())[plan.indices].T
            given: Any = {"seed": 7, "indices": plan.indices, "heights": sides[0], "widths": sides[1]}
            mirror = draw((flip,), numbers=plan.version, **given)[0]["flip"]["mirror"]
            drawn = draw((mosaic,), numbers=plan.serving, **given)[0]["mosaic"]
            partial = [coordinates(*sizes()[index]) for index in plan.indices.tolist()]
            partial = [image[:, ::-1] if mirrored else image for image, mirrored in zip(partial, mirror, strict=True)]
            for row, image in enumerate(levels(images)):
                others = [(row + 1 + int(5 * uniform)) % 6 for uniform in drawn["partners"][row]]
                chosen |= {(row, other) for other in others}
                wanted = pasted([partial[each] for each in (row, *others)], *drawn["centre"][row].tolist())
                assert np.array_equal(image, wanted)
            assert (drawn["centre"] >= [SIZE / 4, (SIZE + 20) / 4]).all()
            assert (drawn["centre"] < [3 * SIZE / 4, 3 * (SIZE + 20) / 4]).all()
    assert chosen == {(row, other) for row in range(6) for other in range(6) if other != row}


def test_what_comes_behind_it_is_drawn_for_the_image_that_is_served_and_not_for_the_others_in_it() -> None:
    """These may be served another time, as by `Echo`, and be of another version."""
    recipe, count = recipe_of(AutoAugmentSecond(), before=(Resize((40, 60)), AutoAugmentFirst())), 800
    rows = np.arange(count)
    owners = rows // 4 * 4
    given: Any = {"seed": 3, "indices": rows, "shown": rows, "parts": 4}
    given |= {"heights": np.full(count, 40), "widths": np.full(count, 60)}

    def behind(versions: NDArray[np.int64], servings: NDArray[np.int64]) -> NDArray[np.float64]:
        numbers: Any = {**given, "versions": versions, "servings": servings}
        return np.linalg.inv(geometry(recipe, partial=(40, 60), **numbers).maps) @ geometry(recipe, **numbers).maps

    moved = behind(rows % 5, rows % 7)
    assert np.allclose(moved, behind((rows % 5)[owners], (rows % 7)[owners]))
    assert not np.allclose(moved, behind((rows % 5)[owners], rows[owners] + 9))
    assert not np.allclose(moved, behind(rows[owners] + 9, (rows % 7)[owners]))


def test_an_image_ends_where_it_ends_though_nothing_comes_before_the_mosaic() -> None:
    """So that what reaches beyond its border, such as a box, is not in the next one."""
    rows, sides = np.arange(4), (np.full(4, 40), np.full(4, 60))
    given: Any = {"seed": 3, "indices": rows, "shown": rows, "versions": rows, "servings": rows, "parts": 4}
    found = geometry(recipe_of(), heights=sides[0], widths=sides[1], **given)
    for x, y in ((-1, 20), (61, 20), (30, -1), (30, 41), (1, 1), (59, 39)):
        place = np.linalg.inv(found.maps) @ (x, y, 1)
        seen = (np.einsum("nki,ni->nk", found.lines, place) >= 0).all(axis=1)
        beside = ((place[:, :2] < 1) | (place[:, :2] > np.array([SIZE + 20, SIZE]) - 1)).any(axis=1)  # of the whole
        assert (beside | (seen == (0 <= x <= 60 and 0 <= y <= 40))).all()
        assert not beside.all()


def assert_same(ones: Any, others: Any) -> None:
    assert len(ones) == len(others)
    for (images, masks), (its, its_masks) in zip(ones, others, strict=True):
        assert torch.equal(images, its)
        assert torch.equal(masks, its_masks)


@pytest.mark.weekly  # What finds the images is that of all such stages, see test_partners.
@four_and_nine
def test_neither_store_nor_groups_nor_threads_change_it(mosaic: Mosaic, tmp_path: Path) -> None:
    source = masked(tmp_path)
    recipe = recipe_of(RandomCrop(80), before=(HorizontalFlip(),), size=80, mosaic=mosaic)
    for batch_size in (1, 2, 5):
        planner = refurbish(batch_size=batch_size)
        alone = served(source, recipe, planner)
        for options in ({}, {"num_threads": 1}, {"num_threads": 3, "look_ahead": 6}):
            assert_same(alone, served(source, recipe, planner, MemoryStore(), prefetch=Prefetch(**options)))
        with pytest.warns(UserWarning, match="the store is smaller than the plan needs"):
            assert_same(alone, served(source, recipe, planner, MemoryStore(max_bytes=2**17)))


@four_and_nine
def test_a_training_goes_on_at_any_batch_with_the_same_mosaics(mosaic: Mosaic, tmp_path: Path) -> None:
    recipe = recipe_of(before=(HorizontalFlip(),), mosaic=mosaic)
    source, planner = masked(tmp_path), refurbish(batch_size=5)
    states = []
    with Loader(source, recipe, planner, MemoryStore()) as loader:
        wanted = []
        for _ in range(2):
            for batch in loader:
                wanted.append(copy.deepcopy(batch))
                states.append(loader.state_dict())
    for place, state in enumerate(states[:-1]):
        with Loader(source, recipe, planner, MemoryStore()) as loader:
            loader.load_state_dict(state)
            assert_same([next(iter(loader))], [wanted[place + 1]])


@four_and_nine
def test_ranks_together_serve_what_one_process_would(mosaic: Mosaic, tmp_path: Path) -> None:
    """Partners are of the sample's own shard."""
    source, recipe = masked(tmp_path), recipe_of(RandomCrop(80), size=80, mosaic=mosaic)
    planner = refurbish(batch_size=8, shards=4)
    whole = served(source, recipe, planner, MemoryStore())
    for world_size in (2, 4):
        parts = [served(source, recipe, planner, MemoryStore(), rank=(rank, world_size)) for rank in range(world_size)]
        together = [tuple(map(torch.cat, zip(*batch, strict=True))) for batch in zip(*parts, strict=True)]
        assert_same(whole, together)


@four_and_nine
def test_a_partial_image_is_computed_once_for_all_that_show_it(mosaic: Mosaic, tmp_path: Path) -> None:
    with Loader(masked(tmp_path), recipe_of(mosaic=mosaic), Standard(COUNT, batch_size=6)) as loader:
        for _ in loader:
            pass
        assert loader.stats().misses == COUNT


@pytest.mark.parametrize(
    ("stages", "most"),
    [
        ((), 0.0),
        ((RandomCrop(80), HorizontalFlip()), 0.0),
        ((RandomAffine(15, (0.1, 0.1), (0.6, 1.2), 10), RandomCrop(80)), 2.5),
    ],
)
@pytest.mark.parametrize("before", [(), (HorizontalFlip(name="turn"),), (RandomCrop(80, name="window"),)])
@four_and_nine
def test_a_mask_is_where_its_image_is(
    stages: tuple[Stage, ...], most: float, before: tuple[Stage, ...], mosaic: Mosaic, tmp_path: Path
) -> None:
    size = 80 if stages else (SIZE, SIZE + 20)
    seen = 0
    for images, masks in served(
        masked(tmp_path), recipe_of(*stages, before=before, size=size, mosaic=mosaic), refurbish(), MemoryStore()
    ):
        image, mask = levels(images), masks.numpy()
        shown, filled = image[..., 2] == 255, mask == 255
        both = shown & ~filled
        assert np.abs(image[..., 0] - mask)[both].max() <= most
        # Beside an edge another image may begin.
        assert (shown == ~filled).mean() > (0.95 if most else 0.9999)
        seen += int(both.sum())
    assert seen > 100_000


@pytest.mark.parametrize("stages", [(), (RandomCrop(120), HorizontalFlip())])
@four_and_nine
def test_boxes_outlines_keypoints_and_masks_of_all_images_are_around_what_they_were_around(
    stages: tuple[Stage, ...], mosaic: Mosaic, tmp_path: Path
) -> None:
    corners = [
        [[[left, top], [right, top], [right, bottom], [left, bottom]] for left, top, right, bottom in boxes_of(number)]
        for number in range(COUNT)
    ]
    outlines = [[[[side for corner in each for side in corner]] for each in its] for its in corners]
    more = {
        "outline": Polygons(outlines),
        "mask": InstanceMasks(outlines),
        "points": Keypoints([np.array(its, float).reshape(-1, 4, 2) for its in corners]),
    }
    files = FileList([tmp_path / f"{number}.png" for number in range(COUNT)], [0] * COUNT)
    source = Annotated(files, {**boxed(tmp_path).annotations, **more})  # type: ignore[dict-item]
    recipe, told, together = recipe_of(*stages, size=120 if stages else (SIZE, SIZE + 20), mosaic=mosaic), 0, 0
    for images, targets in served(source, recipe, refurbish(), MemoryStore()):
        for image, target in zip(levels(images), targets, strict=True):
            objects = len(target["boxes"])
            assert int(target["image_id"]) == 100 + int(target["index"])  # What is of a whole image is its own one's.
            assert tuple(target["source_size"].tolist()) == sizes()[int(target["index"])]
            if not stages:  # Its own objects are where its matrix says, as far as they are in the image.
                (left, top), most = target["matrix"][:2, 2].tolist(), (SIZE + 20, SIZE)
                moved = [np.subtract(box, [left, top] * 2) for box in boxes_of(int(target["index"]))]
                seen = [np.clip(box, 0, most * 2) for box in moved]
                own = [box.tolist() for box in seen if (box[2:] - box[:2]).min() > 8]
                assert all(box in target["boxes"].tolist() for box in own)
            assert {len(target[name]) for name in ("labels", "outline", "mask", "points")} == {objects}
            together += objects > 3  # which no image has by itself
            covered = np.zeros(image.shape[:2], bool)
            for place, label in enumerate(target["labels"].tolist()):
                left, top, right, bottom = target["boxes"][place].long().tolist()
                mask = target["mask"][place].numpy() > 0
                assert (image[top:bottom, left:right] == COLOURS[label]).all()
                rows, columns = np.nonzero(mask)
                assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (left, top, right, bottom)
                assert mask.sum() == (bottom - top) * (right - left)
                covered |= mask
                ((outline,),) = (target["outline"][place],)
                low, high = outline.min(0).values, outline.max(0).values
                assert (low <= torch.tensor([left, top])).all()
                assert (high >= torch.tensor([right, bottom])).all()
                assert torch.equal(low, target["points"][place].min(0).values)
                told += 1
            # Nothing of a colour is left without a box, but what is too small for one.
            assert ((image.max(axis=-1) == 255) & ~covered).sum() <= 4 * SIZE
    assert told > 40
    assert together > 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Recipe([Decode(), MOSAIC], Output((SIZE, SIZE + 20)), 1).at(0), "split 0: pass split='mosaic'"),
        (
            lambda: Recipe([Decode(), HorizontalFlip(), Mosaic(8)], Output(8), 1),
            "'mosaic' takes several partial images of a batch, so it must be the first stage behind the split",
        ),
        (
            lambda: Recipe([Decode(), Mosaic(8), HorizontalFlip()], Output(8), 2),
            "got decode > mosaic > flip and split 2: pass split='mosaic', or put what comes between elsewhere",
        ),
        (
            lambda: Recipe([Decode(), Resize((8, 8)), RandomApply(Mosaic(8), 0.5)], Output(8), 2),
            "inside of another one, got decode > resize > random_mosaic and split 2: take it out of 'random_mosaic'",
        ),
        (
            lambda: Recipe([Decode(), Resize((8, 8)), RandomApply(RandomChoice([Mosaic(8)]), 0.5)], Output(8), 2),
            "'mosaic' takes several partial images of a batch, so it must be the first stage behind the split",
        ),
        (lambda: Mosaic(0), "mosaic: size must be"),
        (lambda: Mosaic(8, fill=300), "mosaic: fill must be"),
        (lambda: Mosaic(8, images=5), "mosaic: images must be 4 or 9, got 5: 4 is usual"),
        (lambda: Mosaic(8, images=9.0), "mosaic: images must be 4 or 9, got 9.0: 4 is usual"),  # type: ignore[arg-type]
    ],
)
def test_it_is_refused_elsewhere_than_first_behind_the_split(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernels": "dali"}, "stage 'mosaic' takes several images of a batch, which kernels on the CPU alone do"),
        ({"final_device": "gpu"}, "stage 'mosaic' takes several images of a batch, which kernels on the CPU alone do"),
        ({"views": 2}, "targets"),
    ],
)
def test_it_is_refused_where_kernels_do_not_do_it(options: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Loader(masked(tmp_path), recipe_of(), refurbish(), MemoryStore(), **options)


def test_what_cannot_have_it_yet_says_so() -> None:
    source = Arrays(np.zeros((COUNT, 30, 30, 3), np.uint8), np.arange(COUNT))
    recipe = Recipe([Mosaic(40)], Output(40), split=0)
    for options in ({"views": [recipe.view(2)]},):
        with pytest.raises(ConfigurationError, match="a recipe with a Mosaic cannot be served in several views yet"):
            Loader(source, recipe, refurbish(), MemoryStore(), **options)
    with pytest.raises(ConfigurationError, match="a recipe with a Mosaic cannot be served by a PartialSource yet"):
        PartialSource(source, recipe, refurbish(), MemoryStore())
    with pytest.raises(ConfigurationError, match="validate with a recipe without it"):
        Loader(source, recipe, Evaluate(COUNT, batch_size=6))
    behind = Recipe([Mosaic(40), Custom(lambda node: node, "mine")], Output(40), split=0)
    with pytest.raises(ConfigurationError, match="'mosaic' takes several images of a batch"):
        Loader(source, behind, refurbish(), MemoryStore())


def test_replaced_samples_are_partners_as_they_are_shown(tmp_path: Path) -> None:
    """Masks of what is shown, not of what was planned."""
    from dalirefurb import BadSamplePolicy

    paths, masks = [], []
    source = masked(tmp_path)
    for number in range(COUNT):
        paths.append(tmp_path / f"{number}.png")
        masks.append(tmp_path / f"mask_{number}.png")
    paths[3].write_bytes(b"no image")
    broken = Annotated(FileList(paths, [0] * COUNT), {"mask": Masks(masks)})
    policy = BadSamplePolicy(on_bad_sample="replace")
    for images, shown in served(broken, recipe_of(), refurbish(), MemoryStore(), bad_samples=policy):
        image, mask = levels(images), shown.numpy()
        seen = image[..., 2] == 255
        assert np.array_equal(seen, mask != 255)
        assert np.array_equal(image[..., 0][seen], mask[seen])
    assert len(source) == COUNT
