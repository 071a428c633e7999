"""Geometry: where a stage says that things come from is where its pixels come from, by kernels and by DALI's operators.

Images show their own coordinates: a pixel's red is its column, its green its row, its blue 255 where there is a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dalirefurb import Arrays, FileList, MemoryStore, Recipe, Refurbish
from dalirefurb.augment import (
    AugMix,
    AutoAugmentFirst,
    AutoAugmentSecond,
    CenterCrop,
    Custom,
    Cutout,
    Decode,
    GaussianBlur,
    HorizontalFlip,
    HostStage,
    Invert,
    KernelStage,
    Letterbox,
    RandAugmentLayer,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ScaleJitter,
    Stage,
    TimmRandAugmentLayer,
    TimmWeightedLayers,
    TrivialAugmentLayer,
    VerticalFlip,
)
from dalirefurb.augment.geometry import geometry, unmapped
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import Chosen, Group
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.planner import Planner
from dalirefurb.testing.stage import coordinates, predicted
from tests.augment.test_stage_contract import ALL
from tests.in_turn import EACH_CHANGE, in_turn
from tests.loading import flat_loader
from tests.one_batch import levels
from tests.stages import MAKERS, Maker, drawn, held, made

KERNELS = ["dali", *(["numba"] if find_spec("numba") else [])]
SIZE = 120
NEAREST: dict[str, Any] = {"interpolation": "nearest"}
BILINEAR: dict[str, Any] = {"interpolation": "bilinear"}


def furthest(
    maps: NDArray[np.float64], images: NDArray[Any], sides: NDArray[np.int64], within: float = 0.0
) -> tuple[float, float]:
    """Compare images of coordinates with where maps say that they come from.

    Args:
        maps: Maps to the sources, (n, 3, 3).
        images: What is made of the sources, (n, H, W, 3).
        sides: Widths and heights of the sources, (n, 2).
        within: Pixels from the source's border that a pixel's source must have to be looked at.

    Returns:
        How far sources are, in pixels of x or y, at most; and how deep inside is what shows no source.
    """
    places = predicted(maps, *images.shape[1:3])
    depth = np.minimum(places + 0.5, sides[:, None, None] - 0.5 - places).min(axis=3)  # above 0 inside
    shown = images[..., 2] == 255
    apart = np.abs(images[..., :2] - places).max(axis=3)
    return apart[shown & (depth > within)].max(initial=0.0), depth[~shown].max(initial=0.0)


def rows_served(
    stages: Sequence[Stage], split: int, kernels: str, *, sides: tuple[int, int] = (240, 200)
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float32]]]:
    """Yield maps and images of batches of three epochs, of which most rows are hits; for each change, of two."""
    count, (height, width) = 24, sides
    source = Arrays(np.repeat(coordinates(height, width)[None], count, axis=0), np.arange(count))
    recipe, planner = Recipe(list(stages), levels(SIZE), split), Refurbish(count, batch_size=8, reuse_factor=3, seed=5)
    with flat_loader(source, recipe, planner, MemoryStore(), kernels=kernels) as loader:
        for epoch in range(2 if EACH_CHANGE else 3):
            for batch, (images, shown) in enumerate(loader):
                yield maps_of(recipe, planner, epoch, batch, shown.numpy(), sides), images.numpy().transpose(0, 2, 3, 1)
        assert loader.stats().hits > 0 or split == 0


def maps_of(
    recipe: Recipe, planner: Planner, epoch: int, batch: int, shown: NDArray[np.int64], sides: Any
) -> NDArray[np.float64]:
    plan = planner.plan(epoch, batch)
    height, width = np.broadcast_to(np.array(sides), (len(shown), 2)).T
    return geometry(
        recipe,
        seed=planner.seed,
        indices=plan.indices,
        shown=shown,
        versions=plan.version,
        servings=plan.serving,
        heights=height,
        widths=width,
    ).maps


@dataclass
class Case:
    """Stages, and how far sources may be, in pixels of the source.

    Attributes:
        stages: The stages.
        apart: Pixels of x or y, at most: half of one of each image on the way, and where levels are blended a rounding.
        within: Pixels from the source's border from which on sources are compared.
        all_shown: Whether all that is inside of the source is shown: not where warps turn what was cropped.
    """

    stages: Sequence[Stage]
    apart: float
    within: float = 0.0
    all_shown: bool = False


CROP = RandomResizedCrop(SIZE, scale=(0.2, 1.0), **NEAREST)
SMOOTH_CROP = RandomResizedCrop(SIZE, scale=(0.2, 1.0))
ROTATION = RandomRotation(20)
AFFINE = RandomAffine(15, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=10)
PERSPECTIVE = RandomPerspective(0.4, 0.7, **NEAREST)
POLICY: Any = (
    ("Rotate", 0.8, 9, "ShearX", 0.8, 9),
    ("TranslateX", 0.8, 5, "TranslateY", 0.8, 5),
    ("ShearY", 0.8, 9, "Rotate", 0.8, 5),
)
FIRST = AutoAugmentFirst("first", policy=POLICY)
SECOND = AutoAugmentSecond("second", policy=POLICY, first="first")

CASES = {
    "crop and flips": Case([CROP, HorizontalFlip(), VerticalFlip(), Cutout(16, 0.5)], 0.501),
    "random crop": Case([RandomCrop(SIZE), HorizontalFlip()], 0, all_shown=True),
    "padding": Case([Resize((100, 100), **NEAREST), RandomCrop(SIZE, margin=36, padding=28)], 0.501, all_shown=True),
    "resize and crop": Case([Resize(150, **NEAREST), CenterCrop(SIZE), VerticalFlip()], 0.501, all_shown=True),
    "letterbox": Case([Letterbox(SIZE, **NEAREST), HorizontalFlip()], 1.01, all_shown=True),
    "scale jitter": Case([ScaleJitter(SIZE, (0.4, 2.0), place="random", **NEAREST)], 1.26, all_shown=True),
    "smooth scale jitter": Case([ScaleJitter(SIZE, (0.4, 2.0), cover=True), HorizontalFlip()], 1.3, 8, all_shown=True),
    "rotation": Case([CROP, ROTATION], 1.46),
    "affine": Case([CROP, AFFINE], 1.46),
    "perspective": Case([CROP, PERSPECTIVE], 1.46),
    "all": Case([CROP, HorizontalFlip(), ROTATION, AFFINE, PERSPECTIVE], 3.48),
    "choices": Case(
        [CROP, RandomChoice([HorizontalFlip(1.0), ROTATION, []]), RandomApply([AFFINE, VerticalFlip()], 0.5)], 2.4
    ),
    "policy": Case([CROP, FIRST, SECOND], 2.5),
    "smooth crop": Case([SMOOTH_CROP, HorizontalFlip()], 0.61, 8, all_shown=True),
    "cubic crop": Case([RandomResizedCrop(SIZE, scale=(0.2, 1.0), interpolation="bicubic")], 0.52, 8, all_shown=True),
    "smooth resize": Case([Resize(150, "lanczos"), CenterCrop(SIZE)], 0.51, 8, all_shown=True),
    "smooth warps": Case([SMOOTH_CROP, RandomRotation(20, **BILINEAR), RandomPerspective(0.4)], 1.6, 8),
}


ALONE = ["rotation", "affine", "perspective", "smooth crop"]
"""Those whose stages are in others, of more stages, too: only weekly."""


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        *in_turn([name for name in CASES if name not in ALONE], KERNELS),
        *(pytest.param(*case, marks=pytest.mark.weekly) for case in product(ALONE, KERNELS)),
    ],
)
def test_a_served_pixel_comes_from_where_the_maps_say(name: str, kernels: str) -> None:
    """At every split, for each change at every third one, of computed and of cached images."""
    case = CASES[name]
    for split in range(len(case.stages), -1, -3 if EACH_CHANGE else -1):
        for maps, images in rows_served(case.stages, split, kernels):
            apart, missing = furthest(maps, np.rint(images), np.array([[200, 240]]), case.within)
            assert apart <= case.apart
            assert missing == 0 or not case.all_shown


def test_sources_that_replace_others_are_mapped_as_they_are_drawn(tmp_path: Path) -> None:
    """Files of several sizes, of which some are broken."""
    sides = np.array([(200 - 3 * index, 140 + 4 * index) for index in range(16)])
    paths = [tmp_path / f"{index}.png" for index in range(16)]
    for path, (height, width) in zip(paths, sides.tolist(), strict=True):
        Image.fromarray(coordinates(height, width)).save(path)
    broken = [3, 8]
    for index in broken:
        paths[index].write_bytes(b"no image")
    recipe = Recipe([Decode(), CROP, HorizontalFlip()], levels(SIZE), "flip")
    planner = Refurbish(16, batch_size=4, reuse_factor=2, seed=1)
    source, replaced = FileList(paths, range(16)), 0
    with flat_loader(source, recipe, planner, MemoryStore(), on_bad_sample="replace") as loader:
        for epoch in range(3):
            for batch, (images, labels) in enumerate(loader):
                shown = labels.numpy()
                maps = maps_of(recipe, planner, epoch, batch, shown, sides[shown])
                apart, missing = furthest(maps, images.numpy().transpose(0, 2, 3, 1).round(), sides[shown, ::-1])
                assert apart <= 0.51
                assert missing == 0
                replaced += int((shown != planner.plan(epoch, batch).indices).sum())
    assert replaced == 3 * len(broken)


WARPS: list[Stage] = [ROTATION, AFFINE, PERSPECTIVE, RandomPerspective(1.0, **NEAREST)]


@pytest.mark.parametrize(("stage", "by"), in_turn(WARPS, MAKERS), ids=lambda each: getattr(each, "name", each))
def test_a_warp_shows_the_source_pixel_that_is_nearest_wherever_there_is_one(stage: Stage, by: Maker) -> None:
    """Within half of a pixel, but for single precision."""
    pictures = [coordinates(height, width) for height, width in ((240, 200), (97, 250), (33, 34), (9, 1)) * 20]
    heights, widths = np.array([picture.shape[:2] for picture in pictures]).T
    parameters = drawn(stage, pictures)
    maps = stage.matrices(parameters, heights, widths)
    assert maps is not None
    for row, image in enumerate(made(stage, pictures, parameters, by=by)):
        apart, missing = furthest(maps[row : row + 1], image[None], np.array([[widths[row], heights[row]]]))
        assert apart <= 0.5001
        assert missing <= 0.0001


# Operations of policies

LAYERS: list[OperationLayer] = [
    RandAugmentLayer(),
    AutoAugmentFirst(),
    TrivialAugmentLayer(),
    TimmRandAugmentLayer(**NEAREST, fill=0),
]


@pytest.mark.parametrize(("layer", "by"), in_turn(LAYERS, MAKERS), ids=lambda each: getattr(each, "name", each))
def test_operations_at_their_ends_come_from_where_they_say(layer: OperationLayer, by: Maker) -> None:
    """Either way; translations by whole pixels exactly."""
    table: Any = layer.table
    warps = [row for row, operation in enumerate(table.operations) if operation.group is Group.WARP]
    assert len(warps) == 5
    last = getattr(table, "num_bins", 11) - 1
    rows, magnitudes, signs = (
        each.ravel() for each in np.meshgrid(warps, [1, last // 2, last], [False, True], indexing="ij")
    )
    whole = np.array([table.operations[row].name in ("TranslateX", "TranslateY") for row in rows])
    for height, width in ((240, 200), (97, 250), (33, 34)):
        sizes = {"heights": np.full(len(rows), height), "widths": np.full(len(rows), width)}
        parameters = table.parameters(Chosen(rows, magnitudes, signs), **sizes)
        images = np.stack(made(layer, [coordinates(height, width)] * len(rows), parameters, by=by))
        maps = layer.matrices(parameters, **sizes)
        assert maps is not None
        for some, most in ((whole, 0.0), (~whole, 0.501)):
            apart, missing = furthest(maps[some], images[some], np.array([[width, height]]))
            assert apart <= most
            assert missing <= 0.001


@pytest.mark.parametrize("by", MAKERS)
def test_operations_one_after_the_other_in_one_stage_are_composed(by: Maker) -> None:
    layer = TimmWeightedLayers("layers", "nearest", 0, probability=0.9)
    pictures = [coordinates(60, 80)] * 200
    parameters = drawn(layer, pictures)
    moving = np.isin(parameters["group"], [Group.IDENTITY, Group.WARP]).all(axis=1)
    assert 80 < moving.sum() < 200
    maps = layer.matrices(parameters, np.full(200, 60), np.full(200, 80))
    assert maps is not None
    images = np.stack(made(layer, pictures, parameters, by=by))
    apart, _ = furthest(maps[moving], images[moving], np.array([[80, 60]]))
    assert apart <= 1.4
    assert np.array_equal(maps[(parameters["group"] != Group.WARP).all(axis=1)][0], np.eye(3))


# What is said, and by whom

UNKNOWN = {AugMix, Custom, HostStage, KernelStage}
"""Stages that do not say where things go: they blend several places, or nobody knows, unless a `HostStage` is told."""


@pytest.mark.parametrize("kind", [kind for kind in held() if not kind.partners], ids=lambda kind: kind.__name__)
def test_every_stage_says_where_things_go_or_is_listed(kind: type[Stage]) -> None:
    stage = held()[kind][0]
    before = [] if stage.follows is None else [stage.follows]
    recipe = Recipe([*before, stage, CenterCrop(32, name="last")], levels(32), 0)
    assert unmapped(recipe) == ([stage.name] if kind in UNKNOWN else [])


def test_stages_that_keep_places_say_so() -> None:
    named = {kind.__name__ for kind in [type(stages[0]) for stages in ALL] + [Decode] if kind.keeps_place}
    assert named == {
        *("AdjustSharpness", "AutoContrast", "ColorJitter", "Cutout", "Decode", "Equalize", "GaussianBlur", "Invert"),
        *("Posterize", "RandomErasing", "RandomGrayscale", "Solarize", "SolarizeAdd"),
    }
    for stage in (Cutout(8), RandomErasing(), GaussianBlur(3), Invert()):
        maps = stage.matrices({}, np.array([5, 9]), np.array([7, 8]))
        assert np.array_equal(maps, [np.eye(3)] * 2)  # type: ignore[arg-type]


def test_it_is_in_no_fingerprint() -> None:
    others = [stages[0] for kind, stages in held().items() if kind is not HostStage]  # Of which it is a field.
    assert not {name for stage in others for name in stage.fingerprint() if name in ("keeps_place", "matrices")}


@dataclass(frozen=True)
class OtherPixels(HorizontalFlip):
    """A flip of the user's own, which does something else."""

    def apply(self, images: Any, parameters: Any) -> Any:
        return images


@dataclass(frozen=True)
class OtherPlaces(RandAugmentLayer):
    """A layer of operations that says where things go, but not in which steps."""

    def matrices(self, parameters: Any, heights: Any, widths: Any) -> Any:
        return np.tile(np.diag([2.0, 2.0, 1.0]), (len(heights), 1, 1))


@dataclass(frozen=True)
class OtherColours(HorizontalFlip):
    """A stage of colours that is derived from a flip."""

    keeps_place = True

    def apply(self, images: Any, parameters: Any) -> Any:
        return images


@dataclass(frozen=True)
class Moving(Invert):
    """A stage of the user's own that is derived from one of colours, and moves something."""

    def apply(self, images: Any, parameters: Any) -> Any:
        return images


class KeepsPlace(Custom):
    """A function of the user's own that changes colours."""

    keeps_place = True


@dataclass(frozen=True)
class OtherChances(HorizontalFlip):
    """A flip that is drawn otherwise."""

    def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
        return {"mirror": np.ones(len(uniforms), np.int32)}


def test_a_class_with_another_apply_says_anew_where_things_go() -> None:
    mirror, sides = {"mirror": np.array([1])}, (np.array([4]), np.array([6]))
    assert OtherPixels().matrices(mirror, *sides) is None
    assert Moving().matrices({}, *sides) is None
    (step,) = OtherPlaces().steps({}, *sides)
    assert np.array_equal(step, [np.diag([2, 2, 1])])
    (unpadded,) = RandomCrop(4, padding_mode="reflect").matrices({"start": np.array([[1, 2]])}, *sides)  # type: ignore[misc]
    assert np.array_equal(unpadded, [[1, 0, 2], [0, 1, 1], [0, 0, 1]])
    assert np.array_equal(OtherColours().matrices(mirror, *sides), [np.eye(3)])  # type: ignore[arg-type]
    assert np.array_equal(OtherChances().matrices(mirror, *sides), [[[-1, 0, 6], [0, 1, 0], [0, 0, 1]]])
    own = KeepsPlace(lambda images: images ^ 255, "own")
    assert np.array_equal(own.matrices({}, *sides), [np.eye(3)])  # type: ignore[arg-type]
    assert {*own.fingerprint()} == {*Custom(own.function, "own").fingerprint()}


def test_a_stage_without_is_named_wherever_it_is() -> None:
    unknown = Custom(lambda images: images, "own")
    stages = [CenterCrop(SIZE), RandomApply(unknown), RandomChoice([unknown, []]), unknown]
    recipe = Recipe(stages, levels(SIZE), 0)
    assert unmapped(recipe) == ["random_own", "either_own", "own"]
    rows = np.arange(2)
    with pytest.raises(ConfigurationError, match=r"where it puts things, but 'random_own', 'either_own', 'own' does"):
        geometry(
            recipe,
            seed=0,
            indices=rows,
            shown=rows,
            versions=rows,
            servings=rows,
            heights=np.full(2, 200),
            widths=np.full(2, 200),
        )


@pytest.mark.parametrize("cached", [False, True])
def test_what_was_cut_off_is_told_by_lines_of_partial_images_and_of_served_ones(cached: bool) -> None:
    """Of a picture that is wider than high, and of one that is larger than what is served."""
    rows, size = np.arange(8), (40, 100)
    last = [CenterCrop((16, 20), name="last")] if cached else []
    stages = [CenterCrop(size), RandomRotation(40, **NEAREST), *last]
    recipe = Recipe(stages, levels((16, 20) if cached else size), 2 if cached else 0)
    sides: dict[str, Any] = {"heights": np.full(8, 60), "widths": np.full(8, 120), "shown": rows}
    drawn: dict[str, Any] = {"seed": 0, "indices": rows, "versions": rows, "servings": rows}
    found = geometry(recipe, **drawn, **sides, partial=size if cached else None)
    x, y = np.meshgrid(np.arange(100) + 0.5, np.arange(40) + 0.5)
    pixels = np.stack([x, y, np.ones_like(x)]).reshape(3, -1)
    places = (found.maps @ pixels)[:, :2]
    kept = ((places > 10) & (places < np.array([[110], [50]]))).all(axis=1)
    assert 0.5 < kept.mean() < 0.95
    assert np.array_equal((found.lines @ pixels >= 0).all(axis=1), kept)


@pytest.mark.parametrize("distortion", [0.5, 1.0])
def test_the_middle_of_an_image_is_before_the_horizon(distortion: float) -> None:
    stage, rows = RandomPerspective(distortion, 1.0), 5000
    uniforms = np.random.default_rng(0).random((rows, stage.num_uniforms))
    heights, widths = np.full(rows, 40), np.full(rows, 60)
    parameters = stage.draw(uniforms, heights, widths)
    maps = stage.matrices(parameters, heights, widths)
    ends = np.linalg.inv(maps) @ np.array([30, 20, 1])
    assert (ends[:, 2] > 0).all()
    turned = maps[:, 2, 2] < 0
    assert turned.any() == (distortion == 1.0)
    assert np.array_equal(np.where(turned[:, None, None], -maps, maps), parameters["matrix"].astype(float))
