"""Are the presets what they say?"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    auto_augment,
    evaluate,
    rand_augment,
    simple,
    timm_augment,
    trivial_augment,
)
from dalirefurb.augment.presets import simplified
from dalirefurb.augment.published import airbench, convnext, deit3, resnet_strikes_back, simclr
from dalirefurb.augment.stage import Device
from dalirefurb.augment.stages.crop import CenterCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import Resize
from dalirefurb.dali import Graph, Part
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source import Source
from tests.in_turn import in_turn
from tests.one_batch import levels, serve
from tests.pictures import picture, write_folder

SIZE = 32
AS_LEVELS: dict[str, Any] = {"mean": (0, 0, 0), "std": (1 / 255, 1 / 255, 1 / 255)}
AUGMENTING: dict[str, Callable[..., Recipe]] = {
    "rand_augment": rand_augment,
    "auto_augment": auto_augment,
    "trivial_augment": trivial_augment,
    "timm_augment": timm_augment,
}


def stages(recipe: Recipe) -> tuple[list[str], list[str]]:
    """Names of the partial and of the final stages."""
    return [stage.name for stage in recipe.partial], [stage.name for stage in recipe.final]


CROP = ["decode", "random_resized_crop"]
V0 = ["flip", "auto_augment_1", "auto_augment_2"]


@pytest.mark.parametrize(
    ("recipe", "partial", "final"),
    [
        (simple(), CROP, ["flip"]),
        (simple(raw=True), ["random_crop"], ["flip"]),
        (evaluate(), ["decode", "resize", "center_crop"], []),
        (evaluate(raw=True), [], []),
        (rand_augment(), [*CROP, "flip", "rand_augment_1"], ["rand_augment_2"]),
        (rand_augment(layers=1, raw=True), ["random_crop", "flip"], ["rand_augment_1"]),
        (auto_augment(), [*CROP, "flip", "auto_augment_1"], ["auto_augment_2"]),
        (auto_augment(order="crop_last"), [*CROP, "auto_augment_1", "auto_augment_2"], ["random_crop", "flip"]),
        (trivial_augment(), [*CROP, "flip"], ["trivial_augment"]),
        (trivial_augment(order="crop_last", raw=True), ["trivial_augment"], ["random_crop", "flip"]),
        (timm_augment(), [*CROP, "flip", "rand_augment_1"], ["rand_augment_2"]),
        (timm_augment(config="augmix", order="crop_last"), [*CROP, "aug_mix"], ["random_crop", "flip"]),
        (timm_augment(config="3a"), [*CROP, "flip", "three_augment"], ["color_jitter"]),
        (timm_augment(config="rand-n1-t3a"), [*CROP, "flip", "rand_augment_1"], ["color_jitter"]),
        (timm_augment(config="3a", color_jitter=0), [*CROP, "flip"], ["three_augment"]),
        (timm_augment(config="v0", color_jitter=0.3), [*CROP, *V0], ["color_jitter"]),
        (auto_augment(split="auto_augment_1"), [*CROP, "flip"], ["auto_augment_1", "auto_augment_2"]),
        (evaluate(split=1), ["decode"], ["resize", "center_crop"]),
    ],
)
def test_stages_have_the_documented_names_order_and_split(recipe: Recipe, partial: list[str], final: list[str]) -> None:
    assert stages(recipe) == (partial, final)


@pytest.mark.parametrize("raw", [False, True])
def test_without_its_last_layers_a_recipe_is_the_preset_that_has_fewer(raw: bool) -> None:
    recipe = rand_augment(SIZE, layers=3, raw=raw)
    assert simplified(recipe) == rand_augment(SIZE, layers=2, raw=raw)
    assert simplified(recipe, 2) == rand_augment(SIZE, layers=1, raw=raw)
    assert simplified(recipe, 3) == simplified(trivial_augment(SIZE, raw=raw)) == simple(SIZE, raw=raw)
    assert simplified(auto_augment(SIZE, raw=raw), 2) == simple(SIZE, raw=raw)


@pytest.mark.parametrize(
    ("recipe", "partial", "final"),
    [
        (auto_augment(), [*CROP, "flip"], ["auto_augment_1"]),
        (auto_augment(order="crop_last"), [*CROP, "auto_augment_1"], ["random_crop", "flip"]),
        (auto_augment(split="flip"), CROP, ["flip", "auto_augment_1"]),
        (rand_augment(split=1), ["decode"], ["random_resized_crop", "flip", "rand_augment_1"]),
        (rand_augment(split=5), [*CROP, "flip", "rand_augment_1"], []),
    ],
)
def test_without_its_last_layer_a_recipe_is_split_where_it_was(
    recipe: Recipe, partial: list[str], final: list[str]
) -> None:
    assert stages(simplified(recipe)) == (partial, final)
    assert simplified(recipe).output == recipe.output


@pytest.mark.parametrize(
    ("recipe", "layers", "argument", "told"),
    [
        (rand_augment(), 3, "layers", "an int in 1..2, got 3: the operations to leave out are rand_augment_1, rand_au"),
        (rand_augment(), 0, "layers", "an int in 1..2, got 0: the operations to leave out are rand_augment_1, rand_au"),
        (rand_augment(), True, "layers", "an int in 1..2, got True"),
        (simple(), 1, "recipe", "one with operations, got ['decode', 'random_resized_crop', 'flip']: pass such as ra"),
    ],
)
def test_more_layers_than_there_are_cannot_be_left_out(recipe: Recipe, layers: int, argument: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        simplified(recipe, layers)
    assert str(refusal.value).startswith(f"{argument} must be {told}")


@pytest.mark.parametrize("name", AUGMENTING)
def test_an_unknown_order_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="order must be 'paper' or 'crop_last', got 'first'"):
        AUGMENTING[name](order="first")


PARTS: tuple[Part, ...] = ("partial", "final", "whole")


@pytest.mark.parametrize(
    ("make", "place"),
    in_turn(
        [auto_augment, trivial_augment, timm_augment, evaluate],
        [(False, "gpu"), (True, "cpu"), (False, "cpu"), (True, "gpu")],  # Files are decoded on both.
    ),
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_preset_can_be_placed_on_a_gpu(make: Callable[..., Recipe], place: tuple[bool, Device]) -> None:
    raw, partial_device = place
    recipe = make(SIZE, raw=raw, channels_last=True)
    for part in PARTS:
        graph = Graph(recipe, part, partial_device, "gpu")
        assert len(graph.serialize(max_batch_size=4, num_threads=1)) > 100


# evaluate


def png(image: np.ndarray) -> np.ndarray:
    """Encode without loss."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)


@pytest.mark.parametrize(("height", "width"), [(300, 402), (401, 300), (100, 150), (256, 257), (256, 256)])
def test_evaluate_resizes_the_shorter_side_to_256_and_crops_224_from_the_centre(height: int, width: int) -> None:
    image = np.asarray(picture(0, height=height, width=width))
    (served,) = serve(evaluate(**AS_LEVELS), [png(image)])
    (resized,) = serve(Recipe([Resize(256)], levels(256), 0), [image])
    long = 256 * max(height, width) // min(height, width)
    assert resized.shape == (3, *((256, long) if height < width else (long, 256)))
    row, column = (round((side - 224) / 2.0) for side in resized.shape[1:])
    assert np.array_equal(served, resized[:, row : row + 224, column : column + 224])


@pytest.mark.parametrize(("size", "shorter_side"), [(224, 256), (32, 37), (384, 439)])
def test_evaluate_resizes_to_8_7_of_the_size(size: int, shorter_side: int) -> None:
    assert evaluate(size).stages == (Decode(), Resize(shorter_side), CenterCrop(size))


def epochs_of(source: Source, recipe: Recipe, store: MemoryStore | None) -> list[torch.Tensor]:
    planner = Refurbish(len(source), batch_size=5, reuse_factor=3)
    with Loader(source, recipe, planner, store, prefetch=Prefetch(num_threads=2)) as loader:
        served = [images.clone() for _ in range(3) for images, _ in loader]
        assert (loader.stats().hits > 0) == (store is not None)
        assert loader.stats().recomputed == 0 or store is None
    return served


@pytest.mark.parametrize("split", [None, "resize", "center_crop"])
def test_evaluate_serves_the_same_bits_cached_and_not(tmp_path: Any, split: str | None) -> None:
    folder = ImageFolder(write_folder(tmp_path, num_samples=13))
    expected = epochs_of(folder, evaluate(SIZE), None)
    served = epochs_of(folder, evaluate(SIZE, split=split), MemoryStore())
    assert all(torch.equal(one, other) for one, other in zip(expected, served, strict=True))


def test_evaluate_leaves_arrays_as_they_are() -> None:
    images = np.stack([np.asarray(picture(k, height=SIZE, width=SIZE)) for k in range(6)])
    planner = Refurbish(6, batch_size=6, reuse_factor=2)
    with Loader(Arrays(images, np.arange(6)), evaluate(SIZE, raw=True, **AS_LEVELS), planner, MemoryStore()) as loader:
        for _ in range(2):
            ((served, labels),) = list(loader)
            assert np.array_equal(served.numpy().transpose(0, 2, 3, 1), images[labels.numpy()])


@pytest.mark.parametrize("split", [1, 2])
def test_images_too_small_for_a_centre_crop_are_refused_by_the_loader(tmp_path: Any, split: int) -> None:
    source = FileList(sorted(write_folder(tmp_path, num_samples=4).rglob("*.jpg")), np.arange(4))
    recipe = Recipe([Decode(), CenterCrop(64)], Output(64), split)
    message = r"sample \d \(.*\.jpg\): center_crop: images must have at least 64 x 64 pixels, got \d+ x \d+; put a"
    with (
        Loader(source, recipe, Refurbish(4, batch_size=4, reuse_factor=2), prefetch=Prefetch(num_threads=1)) as loader,
        pytest.raises(SampleError, match=message),
    ):
        list(loader)


def test_the_size_that_counts_is_that_of_what_enters_the_stage() -> None:
    heights, widths = np.array([80, 10]), np.array([80, 300])
    recipe = Recipe([Decode(), CenterCrop(64)], Output(64), 1)
    assert recipe.refusal(heights, widths) == (
        1,
        "center_crop: images must have at least 64 x 64 pixels, got 10 x 300; put a resize before it",
    )
    assert evaluate(64).refusal(heights, widths) is None


@pytest.mark.parametrize(
    "preset",
    [
        *(simple, evaluate, rand_augment, auto_augment, trivial_augment, timm_augment),
        *(airbench, convnext, deit3, resnet_strikes_back, simclr),
    ],
)
def test_types_of_all_arguments_can_be_looked_up(preset: Callable[..., Recipe]) -> None:
    hints = get_type_hints(preset)
    assert hints.keys() == {*inspect.signature(preset).parameters, "return"}
    assert hints["channels_last"] is bool
