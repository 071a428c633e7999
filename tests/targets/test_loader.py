"""Targets through a loader: they are where the served images show them, and the same however these were made."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import (
    BadSamplePolicy,
    Broadcast,
    Concat,
    Custom,
    DiskStore,
    Evaluate,
    FileList,
    Kept,
    Loader,
    MemoryStore,
    Output,
    PartialSource,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    evaluate,
    rand_augment,
)
from dalirefurb.augment import (
    Decode,
    HorizontalFlip,
    RandomAffine,
    RandomCrop,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    Stage,
    VerticalFlip,
)
from dalirefurb.augment.geometry import Geometry, geometry
from dalirefurb.errors import ConfigurationError, SampleError, StateMismatchError
from dalirefurb.planning import Frozen
from dalirefurb.source import Source
from dalirefurb.source.contract import without_targets
from dalirefurb.store import Store
from dalirefurb.targets import Annotated, Boxes, InstanceMasks, Keypoints, Masks, Objects, Polygons, Values
from tests.in_turn import EACH_CHANGE, in_turn
from tests.targets.scenes import COLOURS, COUNT, boxed, boxes_of, masked, sizes

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 96
CROP = RandomResizedCrop(SIZE, (0.3, 1.0), interpolation="nearest")
MOVES: dict[str, tuple[list[Stage], float]] = {
    "crop and flip": ([CROP, HorizontalFlip()], 0.0),
    "both flips": ([CROP, HorizontalFlip(), VerticalFlip()], 0.0),
    "padded crop": ([Resize((SIZE, SIZE), "nearest"), RandomCrop(SIZE, padding=9)], 1.0),
    "rotation": ([CROP, RandomRotation(25)], 2.5),
    "affine": ([CROP, RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10)], 2.5),
    "perspective": ([CROP, RandomPerspective(0.4, 0.8, "nearest")], 2.5),
    "four": ([CROP, HorizontalFlip(), RandomRotation(15), RandomAffine(10, (0.1, 0.1))], 4.0),
}
"""Stages, and how many pixels of the source the image may lie beside the mask, which is resampled once."""


def recipe_of(stages: Sequence[Stage], split: int | str = 1) -> Recipe:
    return Recipe([Decode(), *stages], Output(SIZE, mean=0.0, std=1.0), split=split)


def served(
    source: Source, recipe: Recipe, epochs: int = 3, store: Store | None = None, **options: Any
) -> list[tuple[Any, ...]]:
    """All batches of some epochs, by reuse factor 3."""
    planner = Refurbish(len(source), batch_size=5, reuse_factor=3, seed=7)
    with Loader(source, recipe, planner, MemoryStore() if store is None else store, **options) as loader:
        return [copy.deepcopy(batch) for _ in range(epochs) for batch in loader]


def levels(images: torch.Tensor) -> NDArray[np.int64]:
    """Levels of images, (B, H, W, 3)."""
    return (images * 255).round().long().permute(0, 2, 3, 1).numpy()


def assert_same(one: Any, other: Any) -> None:
    """Tensors in any lists and dictionaries are equal, as are their types."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same([*one.values()], [*other.values()])
    else:
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            assert_same(each, its)


@pytest.mark.parametrize(("name", "kernels"), in_turn([*MOVES], ["numba", "dali"]))
def test_a_mask_is_where_its_image_is(tmp_path: Path, name: str, kernels: Any) -> None:
    stages, most = MOVES[name]
    seen = outside = 0
    for split in (1, *(() if EACH_CHANGE else (2,)), len(stages) + 1):
        for images, masks in served(masked(tmp_path), recipe_of(stages, split), kernels=kernels):
            assert (masks.dtype, masks.shape) == (torch.int64, (len(images), SIZE, SIZE))
            image, mask = levels(images), masks.numpy()
            shown, filled = image[..., 2] == 255, mask == 255
            both = shown & ~filled
            assert np.abs(image[..., 0] - mask)[both].max() <= most
            # Where one of them ends the other one does, but for a pixel of the edge.
            assert (shown == ~filled).mean() > (0.97 if most else 0.9999)
            seen, outside = seen + int(both.sum()), outside + int(filled.sum())
    assert seen > 100 * outside or name not in ("crop and flip", "both flips")
    assert outside > 0 or name in ("crop and flip", "both flips")


@pytest.mark.parametrize("name", ["crop and flip", "rotation", "affine", "perspective"])
def test_a_box_is_around_what_it_was_around(tmp_path: Path, name: str) -> None:
    stages, _ = MOVES[name]
    told = 0
    for images, targets in served(boxed(tmp_path), recipe_of(stages, 2), epochs=4):
        for image, target in zip(levels(images), targets, strict=True):
            assert target["boxes"].shape == (len(target["labels"]), 4)
            for box, label in zip(target["boxes"].numpy(), target["labels"].tolist(), strict=True):
                rows, columns = np.nonzero((image == COLOURS[label]).all(axis=-1))
                if len(rows) > 40:
                    around = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                    # The hull of a turned box is cut off, so what is seen of the box need not fill it.
                    cut = name != "crop and flip" and not (box.min() > 0 and box.max() < SIZE)
                    more = (box - around) * [-1, -1, 1, 1]
                    assert more.min() >= -1.6, (box, around)
                    assert cut or more.max() <= 1.6, (box, around)
                    told += 1
            gone = set(range(len(boxes_of(int(target["image_id"]) - 100)))) - set(target["labels"].tolist())
            for label in gone:
                assert (image == COLOURS[label]).all(axis=-1).sum() <= 4
    assert told > 50


def test_a_dictionary_for_each_image_has_what_leads_back_to_the_source(tmp_path: Path) -> None:
    source = boxed(tmp_path)
    recipe, planner = evaluate(SIZE), Evaluate(COUNT, batch_size=5)
    seen = []
    with Loader(source, recipe, planner, MemoryStore()) as loader:
        for images, targets in loader:
            assert len(images) == len(targets)
            for target in targets:
                assert [*target] == ["boxes", "labels", "image_id", "index", "matrix", "source_size"]
                index = int(target["index"])
                assert int(target["image_id"]) == 100 + index
                assert tuple(target["source_size"].tolist()) == sizes()[index]
                corners = torch.cat(
                    [target["boxes"].double().reshape(-1, 2), torch.ones(len(target["boxes"]) * 2, 1)], 1
                )
                back = corners @ target["matrix"].T
                back = (back[:, :2] / back[:, 2:]).reshape(-1, 4)
                given = torch.tensor(boxes_of(index), dtype=torch.float64).reshape(-1, 4)[target["labels"]]
                whole = ((target["boxes"] > 0) & (target["boxes"] < SIZE)).all(1)
                assert torch.allclose(back[whole], given[whole], atol=1e-3)
                seen.append(index)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize(("scene", "kernels"), in_turn([masked, boxed], ["numba", "dali"]))
def test_neither_store_nor_groups_change_a_target(tmp_path: Path, scene: Any, kernels: Any) -> None:
    source, recipe = scene(tmp_path), rand_augment(SIZE)
    wanted = served(source, recipe, kernels=kernels)
    planner = Refurbish(len(source), batch_size=5, reuse_factor=3, seed=7)
    with pytest.warns(UserWarning, match="no store"):
        unstored = Loader(source, recipe, planner, kernels=kernels)
    with unstored as loader:
        assert_same([batch for _ in range(3) for batch in loader], wanted)
    small = MemoryStore(max_bytes="500KB")
    assert_same(served(source, recipe, store=small, kernels=kernels), wanted)
    grouped = Prefetch(batches_per_group=3, look_ahead=2)
    assert_same(served(source, recipe, prefetch=grouped, kernels=kernels), wanted)
    kept = Kept(source, tmp_path / "keep")
    assert_same(served(kept, recipe, kernels=kernels), wanted)


@pytest.mark.parametrize("scene", [masked, boxed])
def test_a_training_goes_on_at_any_batch_with_its_targets(tmp_path: Path, scene: Any) -> None:
    source, recipe = scene(tmp_path), rand_augment(SIZE)
    wanted = served(source, recipe)

    def loader() -> Loader:
        planner = Refurbish(len(source), batch_size=5, reuse_factor=3, seed=7)
        return Loader(source, recipe, planner, DiskStore(tmp_path / "cache"))

    def endless(loader: Loader) -> Iterator[Any]:
        while True:
            yield from loader

    for place in range(0, len(wanted), 4 if EACH_CHANGE else 1):  # 4: another batch of each of the epochs
        (tmp_path / "cache").unlink(missing_ok=True)
        with loader() as first:
            for _ in islice(endless(first), place):
                pass
            state = json.dumps(first.state_dict())
        # The sizes of hits were never read by this loader.
        with loader() as second:
            second.load_state_dict(json.loads(state))
            assert_same([*islice(endless(second), len(wanted) - place)], wanted[place:])


def test_ranks_share_the_targets_of_a_batch(tmp_path: Path) -> None:
    source, recipe = boxed(tmp_path), rand_augment(SIZE)
    whole, halves = (
        [
            [batch for _ in range(2) for batch in loader]
            for rank in ranks
            for loader in [
                Loader(
                    source,
                    recipe,
                    Refurbish(COUNT, batch_size=4, reuse_factor=3, shards=2),
                    MemoryStore(),
                    rank=rank,
                )
            ]
        ]
        for ranks in ([(0, 1)], [(0, 2), (1, 2)])
    )
    for batch, one, other in zip(*whole, *halves, strict=True):
        assert_same(batch[1], [*one[1], *other[1]])


def test_little_of_an_object_is_dropped_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    recipe = recipe_of([CROP], 1)
    all_of_them, most = (
        [target for _, targets in served(boxed(tmp_path, min_visible=share), recipe) for target in targets]
        for share in (0.0, 0.9)
    )
    dropped = 0
    for every, visible in zip(all_of_them, most, strict=True):
        kept = [row for row, label in enumerate(every["labels"].tolist()) if label in visible["labels"].tolist()]
        assert torch.equal(every["boxes"][kept], visible["boxes"])
        dropped += len(every["labels"]) - len(kept)
    assert dropped > 5


def test_ultralytics_form_is_flat_and_normalised(tmp_path: Path) -> None:
    """By the width and the height of what is served, which differ here; of a keypoint's visibility nothing is."""
    boxed_only, recipe, (height, width) = boxed(tmp_path), rand_augment((64, SIZE)), (64, SIZE)
    points = [[[[box[0], box[1], 2], [box[2], box[3], 1]] for box in boxes_of(number)] for number in range(COUNT)]
    source = Annotated(boxed_only._source, {**boxed_only.annotations, "points": Keypoints(points)})
    dicts, flat = served(source, recipe), served(source, recipe, target_form="ultralytics")
    for (_, one), (_, other) in zip(dicts, flat, strict=True):
        boxes, places = (torch.cat([target[name] for target in one]) for name in ("boxes", "points"))
        centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        shares = torch.tensor([width, height, width, height])
        assert torch.allclose(other["bboxes"], torch.cat([centres, sides], 1) / shares)
        assert torch.allclose(other["points"], places / torch.tensor([width, height, 1]))
        assert other["cls"].flatten().tolist() == torch.cat([target["labels"] for target in one]).tolist()
        assert other["cls"].shape == (len(boxes), 1)
        counts = torch.tensor([len(target["boxes"]) for target in one])
        assert other["batch_idx"].tolist() == torch.arange(len(one)).repeat_interleave(counts).tolist()


def test_a_subset_has_its_own_targets_and_labels_are_no_part_of_them(tmp_path: Path) -> None:
    source = boxed(tmp_path)
    some = source.subset([7, 3, 3])
    image, target = some[0]
    assert image.shape == (*sizes()[7], 3)
    assert target["boxes"].tolist() == [list(box) for box in boxes_of(7)]
    assert (target["labels"].tolist(), int(target["image_id"])) == ([0, 1, 2], 107)
    with Loader(some, evaluate(SIZE), Evaluate(3, batch_size=3)) as loader:
        ((_, targets),) = loader
    assert [int(each["image_id"]) for each in targets] == [107, 103, 103]
    assert some.fingerprint() != source.subset([7, 3, 2]).fingerprint()


def test_sources_with_the_same_targets_are_put_together(tmp_path: Path) -> None:
    images = boxed(tmp_path)._source
    labels = [[number] * 2 for number in range(COUNT)]
    outlines = [[[[[number, 0], [20, number], [9, 9]]], []] for number in range(COUNT)]
    masks = [np.full(size, number, np.uint8) for number, size in enumerate(sizes())]

    def of(rows: list[int], **changes: Any) -> Annotated:
        targets = {
            "labels": Objects([labels[row] for row in rows]),
            "outlines": Polygons([outlines[row] for row in rows]),
            "mask": Masks([masks[row] for row in rows]),
            "id": Values(rows),
        }
        return Annotated(images.subset(rows), targets | changes)

    both = Concat([of([4, 2]), of([3]), of([5, 1])]).subset([4, 0, 2])
    for row, number in enumerate([1, 4, 3]):
        _, target = both[row]
        assert (target["labels"].tolist(), int(target["id"])) == ([number, number], number)
        assert [[part.tolist() for part in each] for each in target["outlines"]] == outlines[number]
        assert np.array_equal(target["mask"], masks[number])
    with Loader(both, evaluate(SIZE), Evaluate(3, batch_size=3)) as loader:
        ((_, targets),) = loader
    assert [int(each["mask"].unique()) for each in targets] == [1, 4, 3]
    empty = of([3], labels=Objects([[]]), outlines=Polygons([[]]))
    assert Concat([empty, of([2])])[1][1]["labels"].tolist() == [2, 2]
    wrong = of([3], mask=Masks([masks[4]]))
    with (
        Loader(Concat([of([4, 2]), wrong]), evaluate(SIZE), Evaluate(3, batch_size=3)) as loader,
        pytest.raises(SampleError, match=r"sample 2 .*3\.png.*its mask .*must have the size of the image"),
    ):
        next(iter(loader))
    with pytest.raises(ConfigurationError, match=r"'mask' of source number 1 is \('Masks', 'int64', 0\)"):
        Concat([of([1]), of([2], mask=Masks([masks[2]], fill=0))])
    with pytest.raises(ConfigurationError, match=r"targets of the same names, but number 1 has None"):
        Concat([of([1]), images.subset([2])])
    named = of([2])
    named.categories = {1: "cat"}
    with pytest.raises(ConfigurationError, match=r"the same categories, but number 1 has \{1: 'cat'\}"):
        Concat([of([1]), named])


def broken(folder: Path, kind: str) -> Annotated:
    """Masks of which the third one cannot be used."""
    source = masked(folder)
    path = folder / "mask_2.png"
    if kind == "missing":
        path.unlink()
    elif kind == "cut off":
        path.write_bytes(path.read_bytes()[:60])
    elif kind == "of another size":
        Image.new("L", (30, 40)).save(path)
    else:
        Image.new("RGB", sizes()[2][::-1]).save(path)
    return source


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "cannot be read: No such file"),
        ("cut off", "cannot be decoded"),
        ("of another size", "must have the size of the image, 104 x 182, EXIF orientation applied, but has 40 x 30"),
        ("of three channels", "must be an image of one channel"),
    ],
)
def test_a_mask_that_cannot_be_used_makes_a_bad_sample(tmp_path: Path, kind: str, said: str) -> None:
    source = broken(tmp_path, kind)
    with pytest.raises(SampleError, match=rf"2\.png.*mask_2\.png.*{said}"):
        served(source, rand_augment(SIZE), epochs=1)
    planner = Refurbish(COUNT, batch_size=5, reuse_factor=3)
    policy = BadSamplePolicy("replace")
    with Loader(source, recipe_of([CROP]), planner, MemoryStore(), bad_samples=policy, with_indices=True) as loader:
        for images, masks, indices in (batch for _ in range(3) for batch in loader):
            assert 2 not in indices.tolist()
            assert np.array_equal(levels(images)[..., 0], masks.numpy())
        (bad,) = loader.bad_samples()
    assert (bad.index, said.split(",")[0] in bad.reason) == (2, True)


def test_what_targets_cannot_go_through_is_refused_by_name(tmp_path: Path) -> None:
    source = boxed(tmp_path)
    planner = Standard(COUNT, batch_size=4)
    recipe = recipe_of([CROP, Custom(lambda images: images, "mine")])
    with pytest.raises(ConfigurationError, match=r"every stage must say what moves where, but 'mine' does not"):
        Loader(source, recipe, planner)

    mirroring = [Resize((SIZE, SIZE)), RandomCrop(SIZE, padding=9, padding_mode="reflect")]
    with pytest.raises(ConfigurationError, match=r"'random_crop' does not, as what blends or mirrors places cannot"):
        Loader(source, recipe_of(mirroring), planner)
    one = np.eye(3)
    for wrong in (one, np.tile(one[:2], (4, 1, 1)), np.full((4, 3, 3), np.nan)):
        moved = type("Moved", (Custom,), {"matrices": lambda stage, *given, wrong=wrong: wrong})
        with (
            Loader(source, recipe_of([CROP, moved(lambda images: images, "moved")]), planner) as loader,
            pytest.raises(ConfigurationError, match=r"moved: matrices must return finite maps of shape \(4, 3, 3\)"),
        ):
            next(iter(loader))

    class Still(Custom):
        keeps_place = True

    Loader(source, recipe_of([CROP, Still(lambda images: images, "mine")]), planner).close()
    recipe = rand_augment(SIZE)
    with pytest.raises(ConfigurationError, match=r"in several views yet: leave views out"):
        Loader(source, recipe, planner, views=[recipe.view(2)])
    with pytest.raises(ConfigurationError, match=r"by a PartialSource yet: pass it to a Loader"):
        PartialSource(source, recipe, planner)
    with Loader(source, recipe, planner) as loader:
        with pytest.raises(ConfigurationError, match=r"batches with targets cannot be shared yet"):
            Broadcast(loader, "targets")
        with pytest.raises(ConfigurationError, match=r"dali_labels is for labels"):
            loader.dali_iterator(dali_labels=True)
        (batch,) = next(loader.dali_iterator())
        assert len(batch["label"]) == len(batch["data"]) == 4
    with pytest.raises(ConfigurationError, match=r"target_form is for a source with targets"):
        Loader(source._source, recipe, planner, target_form="dicts")
    with pytest.raises(ConfigurationError, match=r'needs one target of boxes.*under the name "labels"'):
        Loader(masked(tmp_path), recipe, planner, target_form="ultralytics")
    shares = Objects([np.zeros((len(boxes_of(number)), 3)) for number in range(COUNT)])
    several = Annotated(source._source, {**source.annotations, "labels": shares})
    with pytest.raises(ConfigurationError, match=r"the class of each object, a number"):
        Loader(several, recipe, planner, target_form="ultralytics")
    named = Annotated(source._source, {"index": Objects([[]] * COUNT)})
    with pytest.raises(ConfigurationError, match=r"other names than index"):
        Loader(named, recipe, planner)
    flat = Annotated(source._source, {**source.annotations, "cls": Values(np.arange(COUNT))})
    with pytest.raises(ConfigurationError, match=r"other names than cls, which"):
        Loader(flat, recipe, planner, target_form="ultralytics")
    with pytest.raises(ConfigurationError, match=r"target_form must be"):
        Loader(source, recipe, planner, target_form="yolo")  # type: ignore[arg-type]
    two = Annotated(source._source, {**source.annotations, "others": source.annotations["boxes"]})
    with pytest.raises(ConfigurationError, match=r"needs one target of boxes, .* got boxes, labels, image_id, others"):
        Loader(two, recipe, planner, target_form="ultralytics")


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *((None, name) for name in ("index", "matrix", "source_size")),
        *(("ultralytics", name) for name in ("bboxes", "batch_idx", "cls")),
    ],
)
def test_a_target_cannot_have_a_name_that_a_batch_has_anyway(tmp_path: Path, form: Any, name: str) -> None:
    source = boxed(tmp_path)
    named = Annotated(source._source, {**source.annotations, name: Values(np.arange(COUNT))})
    with pytest.raises(ConfigurationError, match=rf"targets must have other names than {name}, which a batch has"):
        Loader(named, evaluate(SIZE), Evaluate(COUNT, batch_size=4), target_form=form)
    other = "ultralytics" if form is None else None
    Loader(named, evaluate(SIZE), Evaluate(COUNT, batch_size=4), target_form=other).close()  # type: ignore[arg-type]


def test_one_target_is_served_alone_unless_dictionaries_are_asked_for(tmp_path: Path) -> None:
    source, parts = masked(tmp_path), (evaluate(SIZE), Evaluate(COUNT, batch_size=6))
    with Loader(source, *parts) as loader, Loader(source, *parts, target_form="dicts") as other:
        for (_, masks), (_, targets) in zip(loader, other, strict=True):
            assert [[*each] for each in targets] == [["mask", "index", "matrix", "source_size"]] * 6
            assert torch.equal(torch.stack([each["mask"] for each in targets]), masks)


def test_a_class_may_be_a_column_of_its_own(tmp_path: Path) -> None:
    source = boxed(tmp_path)
    columns = Objects([np.arange(len(boxes_of(number)))[:, None] for number in range(COUNT)])
    both = (source, Annotated(source._source, {**source.annotations, "labels": columns}))
    one, other = (served(each, evaluate(SIZE), epochs=1, target_form="ultralytics") for each in both)
    for (_, flat), (_, targets) in zip(one, other, strict=True):
        assert_same(targets, flat)


def test_masks_of_arrays_are_as_those_of_files(tmp_path: Path) -> None:
    source = masked(tmp_path)
    arrays = [source[index][1]["mask"] for index in range(COUNT)]
    same = Annotated(source._source, {"mask": Masks(arrays)})
    recipe = rand_augment(SIZE)
    wanted = served(source, recipe)
    assert_same(served(same, recipe), wanted)
    filled_in = ("uint8", 7), ("int32", -100), ("int64", -1)
    for dtype, fill in filled_in[1:2] if EACH_CHANGE else filled_in:
        filled = Annotated(source._source, {"mask": Masks(arrays, dtype=dtype, fill=fill)})
        for (_, one), (_, other) in zip(served(filled, recipe), wanted, strict=True):
            assert str(one.dtype) == f"torch.{dtype}"
            assert torch.equal(one.long(), torch.where(other == 255, fill, other))


def test_padding_is_told_in_each_images_dictionary(tmp_path: Path) -> None:
    source, planner = boxed(tmp_path), Evaluate(COUNT, batch_size=5, pad=True)
    with Loader(source, evaluate(SIZE), planner, with_indices=True) as loader:
        batches = list(loader)
    for images, targets, indices in batches:
        assert [int(target["index"]) for target in targets] == indices.tolist()
        assert len(images) == len(targets) == 5
    assert [int(target["index"]) for target in batches[-1][1]].count(-1) == 3


def test_every_tensor_of_a_batch_is_put_where_the_batch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of a batch together, not one by one."""
    put: list[torch.Tensor] = []

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        put.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    boxes, polygons = [[[1, 2, 30, 40]]] * COUNT, [[[[[1, 2], [30, 2], [30, 40]]]]] * COUNT
    plain = boxed(tmp_path)._source
    source = Annotated(plain, {"boxes": Boxes(boxes), "labels": Objects([[1]] * COUNT), "outlines": Polygons(polygons)})
    for form in (None, "ultralytics"):
        put.clear()
        with Loader(
            source, evaluate(SIZE), Evaluate(COUNT, batch_size=6), pin_memory=True, target_form=form, kernels="numba"
        ) as loader:
            batches = [targets for _, targets in loader]
        own = [each for each in put if each.shape[-2:] != (SIZE, SIZE)]
        outlines = [
            part
            for targets in batches
            for image in (targets["outlines"] if form else [target["outlines"] for target in targets])
            for each in image
            for part in each
        ]
        assert len(outlines) > 0
        assert all(isinstance(part, torch.Tensor) for part in outlines)
        assert len(own) == 2 * (2 + (3 if form is None else 1)) + len(outlines)


def test_no_object_in_a_whole_data_set_is_no_fault(tmp_path: Path) -> None:
    nothing: list[Any] = [[]] * COUNT
    targets = {"boxes": Boxes(nothing), "points": Keypoints(nothing, swapped=(1, 0)), "outlines": Polygons(nothing)}
    with Loader(
        Annotated(boxed(tmp_path)._source, targets), rand_augment(SIZE), Standard(COUNT, batch_size=6)
    ) as loader:
        for _, batch in loader:
            assert {tuple(target["boxes"].shape) for target in batch} == {(0, 4)}
            assert {tuple(target["points"].shape) for target in batch} == {(0, 2, 3)}
            assert [target["outlines"] for target in batch] == [[]] * len(batch)


def test_points_of_keypoints_keep_their_convention(tmp_path: Path) -> None:
    """Mirrored, whole numbers that are pixels' centres are others than those that are corners."""
    recipe = Recipe([Decode(), Resize((SIZE, SIZE), "nearest"), HorizontalFlip(1.0)], Output(SIZE), split=1)
    points = [[[[0.0, 0.0, 2], [width - 1, height - 1, 1]]] for height, width in sizes()]
    source = boxed(tmp_path)._source
    both = {"centres": Keypoints(points, pixel_centres=True), "corners": Keypoints(points)}
    with Loader(Annotated(source, both), recipe, Standard(COUNT, batch_size=6)) as loader:
        for _, targets in loader:
            for target in targets:
                height, width = target["source_size"].tolist()
                first, last = target["centres"][0].tolist()
                x, y = SIZE / width / 2, SIZE / height / 2
                assert np.allclose(first, [SIZE - x - 0.5, y - 0.5, 2], atol=1e-4)
                assert np.allclose(last, [x - 0.5, SIZE - y - 0.5, 1], atol=1e-4)
                assert np.allclose(target["corners"][0, 1], [2 * x, SIZE - 2 * y, 1], atol=1e-4)


def test_a_row_says_the_same_whatever_else_is_in_its_batch(tmp_path: Path) -> None:
    source = boxed(tmp_path)
    recipe = recipe_of([CROP, RandomRotation((0.0, 20.0)), RandomAffine(5, (0.1, 0.1))], 2)
    planner = Standard(COUNT, batch_size=COUNT, seed=3)
    plan = planner.plan(0, 0)
    heights, widths = np.array(sizes())[plan.indices].T

    def of(rows: NDArray[np.int64]) -> Geometry:
        given = {"versions": plan.version[rows], "servings": plan.serving[rows]}
        shown = plan.indices[rows]
        return geometry(recipe, seed=3, indices=shown, shown=shown, heights=heights[rows], widths=widths[rows], **given)

    whole = of(np.arange(COUNT))
    assert (whole.lines != (0, 0, 1)).any()
    for row in range(COUNT):
        alone = of(np.array([row]))
        assert np.array_equal(alone.maps[0], whole.maps[row])
        own = [line for line in whole.lines[row].tolist() if line != [0, 0, 1]]
        assert alone.lines[0].tolist() == own
    with Loader(source, recipe, planner) as loader:
        ((_, targets),) = loader
    assert len(targets) == COUNT


def test_what_an_image_has_is_the_same_however_many_are_in_its_batch(tmp_path: Path) -> None:
    """Threads write the masks of some rows each."""
    plain, rows = masked(tmp_path), []
    outlines = [[[[0, 0, width, 0, width, height]]] for height, width in sizes()]
    source = Annotated(plain._source, {**plain.annotations, "masks": InstanceMasks(outlines)})
    for batch_size in (1, COUNT):
        with Loader(source, evaluate(SIZE), Evaluate(COUNT, batch_size=batch_size)) as loader:
            rows.append([target for _, targets in loader for target in targets])
    assert_same(*rows)
    assert all(int(target["masks"].sum()) > 0 for target in rows[0])


def test_a_loader_ends_while_masks_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their storage hangs; who leaves the loop does not wait for it."""
    source, hangs = masked(tmp_path), threading.Event()
    usual = Masks.warp
    reads = 0

    def slow(masks: Masks, *given: Any, **options: Any) -> None:
        nonlocal reads
        reads += 1
        if reads > 2 * COUNT:
            hangs.wait(60)
        usual(masks, *given, **options)

    monkeypatch.setattr(Masks, "warp", slow)
    loader = Loader(source, recipe_of([CROP]), Refurbish(COUNT, batch_size=4, reuse_factor=3), MemoryStore())
    for number, _ in enumerate(loader):
        if number == 0:
            break
    began = time.monotonic()
    loader.close()
    hangs.set()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("split", [0, 3])
def test_caches_of_images_know_no_targets(tmp_path: Path, split: int) -> None:
    """Other targets are another training, of the same images, or of the same files."""
    recipe, planner = rand_augment(SIZE).at(split), Refurbish(COUNT, batch_size=4, reuse_factor=3)
    one, other = boxed(tmp_path), boxed(tmp_path, min_visible=0.5)
    path = tmp_path / "cache"
    with Loader(one, recipe, planner, DiskStore(path)) as loader:
        for _ in loader:
            pass
        state = loader.state_dict()
    with Loader(other, recipe, planner, DiskStore(path)) as loader:
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state)
        loader.set_epoch(1)
        for _ in loader:
            pass
        assert loader.stats().hits > 0
    Kept(one, tmp_path / "keep").fill()
    assert Kept(other, tmp_path / "keep").fill() == COUNT
    subset, its = one.subset([1, 2]), other.subset([1, 2])
    assert without_targets(subset.fingerprint()) == without_targets(its.fingerprint()) != subset.fingerprint()


def test_masks_of_a_group_that_cannot_be_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, planner, read, let_go = masked(tmp_path), Standard(COUNT, batch_size=4), list[int](), threading.Event()
    monkeypatch.setattr(Masks, "warp", lambda _, index, *__, **___: read.append(index))
    Path(source.name(7)).unlink()
    with Loader(source, recipe_of([CROP]), planner) as loader:
        preparer = loader._assembler.get()._preparer
        assert preparer is not None
        assert preparer.targets is not None
        pool = preparer.targets.pool
        done = threading.Barrier(1 + len(pool._threads))
        for _ in pool._threads:
            pool.submit(let_go.wait)
        plan = planner.plan(0, 0)
        plans = [replace(plan, indices=np.arange(first, first + 4)) for first in (0, 4)]
        group: Any = SimpleNamespace(group=SimpleNamespace(plans=plans), shown=np.arange(8), pasted=Future())
        with pytest.raises(SampleError, match=r"7\.png"):
            preparer.targets.begin(group)
        for _ in pool._threads:
            pool.submit(done.wait)
        let_go.set()
        done.wait()
    assert read == []


@pytest.mark.parametrize("height", [30, 24])
def test_a_loader_serves_masks_as_their_files_are_when_it_begins(tmp_path: Path, height: int) -> None:
    """Also where their images have another size by now, which what was kept of the masks has not."""
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    masks = [tmp_path / f"mask_{number}.png" for number in range(4)]

    def write(height: int, label: int) -> None:
        for path, mask in zip(paths, masks, strict=True):
            Image.new("RGB", (40, height)).save(path)
            Image.new("L", (40, height), label).save(mask)

    write(30, 1)
    source = Annotated(FileList(paths, [0] * 4), {"mask": Masks(masks)})
    for label, samples in ((1, [0, 1, 2, 3]), (2, [3, 1])):
        write(30 if label == 1 else height, label)
        part, planner = source.subset(samples), Standard(len(samples), batch_size=2)
        with Loader(part, recipe_of([Resize((SIZE, SIZE), "nearest")], 2), planner) as loader:
            for _, shown in loader:
                assert shown.unique().tolist() == [label]
    assert (source[0][1]["mask"] == 2).all()


def assert_masks_are_of_their_images(loader: Loader) -> None:
    """Serve an epoch of coordinates whose masks are the columns."""
    for images, masks in loader:
        assert np.array_equal(levels(images)[..., 0], masks.numpy())


def test_an_image_in_a_store_whose_mask_is_gone_since_is_replaced(tmp_path: Path) -> None:
    images, recipe, policy = masked(tmp_path)._source, recipe_of([CROP], 2), BadSamplePolicy("replace")
    for replaced in (0, 1):
        source = Annotated(images, {"mask": Masks([tmp_path / f"mask_{number}.png" for number in range(COUNT)])})
        planner, store = Frozen(COUNT, batch_size=4), DiskStore(tmp_path / "cache")
        with store, Loader(source, recipe, planner, store, bad_samples=policy) as loader:
            assert_masks_are_of_their_images(loader)
            assert [bad.index for bad in loader.bad_samples()] == [3] * replaced
            assert (loader.stats().replaced, loader.stats().hits > 0) == (replaced, replaced > 0)
        (tmp_path / "mask_3.png").unlink(missing_ok=True)


@pytest.mark.parametrize("batches_per_group", [1, 3])
def test_masks_that_break_while_a_loader_serves_them_are_replaced(tmp_path: Path, batches_per_group: int) -> None:
    images, paths = masked(tmp_path)._source, [tmp_path / f"mask_{number}.png" for number in range(COUNT)]
    source = Annotated(images, {"mask": Masks(paths, keep=0)})
    planner, prefetch = Refurbish(COUNT, batch_size=4, reuse_factor=3), Prefetch(batches_per_group=batches_per_group)
    options: dict[str, Any] = {"prefetch": prefetch, "bad_samples": BadSamplePolicy("replace")}
    with Loader(source, recipe_of([CROP], 2), planner, MemoryStore(), **options) as loader:
        assert_masks_are_of_their_images(loader)
        for number in (3, 4, 8):
            paths[number].write_bytes(b"broken")
        for _ in range(20):  # Masks of some epochs may have been read ahead.
            assert_masks_are_of_their_images(loader)
        assert [bad.index for bad in loader.bad_samples()] == [3, 4, 8]
        replaced = loader.stats().replaced
        assert_masks_are_of_their_images(loader)
        assert loader.stats().replaced == replaced + 3
