"""Whatever stages a recipe has, in any order: the store and the split change nothing but time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dalirefurb import Arrays, Loader, MemoryStore, Output, Prefetch, Recipe, Refurbish, Standard
from dalirefurb.augment import (
    AdjustSharpness,
    AugMix,
    AutoAugmentFirst,
    AutoAugmentSecond,
    AutoContrast,
    CenterCrop,
    ColorJitter,
    Custom,
    Cutout,
    Decode,
    Equalize,
    GaussianBlur,
    HorizontalFlip,
    HostStage,
    Invert,
    KernelStage,
    Letterbox,
    MagnitudeNoise,
    Posterize,
    RandAugmentLayer,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ScaleJitter,
    Solarize,
    SolarizeAdd,
    Stage,
    TimmPolicyFirst,
    TimmPolicySecond,
    TimmRandAugmentLayer,
    TimmWeightedFirst,
    TimmWeightedLayers,
    TimmWeightedSecond,
    TrivialAugmentLayer,
    VerticalFlip,
)
from dalirefurb.augment.geometry import unmapped
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.planning.planner import Planner
from dalirefurb.store import Store
from dalirefurb.targets import Annotated, Boxes, Masks
from dalirefurb.targets.kinds import Target
from tests.in_turn import EACH_CHANGE
from tests.stages import held

pytestmark = pytest.mark.usefixtures("traced_once")
HEIGHT, WIDTH, COUNT, BATCH_SIZE, EPOCHS = 26, 34, 11, 4, 3
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, HEIGHT, WIDTH, 3), np.uint8)
SOURCE = Arrays(IMAGES, np.arange(COUNT))
TARGETS: dict[str, Target] = {
    "mask": Masks([image[..., 0] for image in IMAGES]),
    "boxes": Boxes([[(x, 3, x + 11, 3 + 2 * x) for x in range(1, 1 + row % 4)] for row in range(COUNT)]),
}
ANNOTATED = Annotated(SOURCE, TARGETS)
"""For recipes all of whose stages say where they put things."""

Make = Callable[[str], Stage | list[Stage]]
"""From a stage's name to the stage, or to several that belong together."""

KEEP_SIZE: dict[str, Make] = {
    "flip": lambda name: HorizontalFlip(name=name),
    "always flipped": lambda name: HorizontalFlip(1.0, name),
    "rand_augment": lambda name: RandAugmentLayer(name, fill=(1, 2, 3)),
    "rand_augment, bilinear": lambda name: RandAugmentLayer(name, "bilinear", magnitude=30),
    "trivial_augment": lambda name: TrivialAugmentLayer(name),
    "auto_augment": lambda name: [AutoAugmentFirst(f"{name}_1"), AutoAugmentSecond(f"{name}_2", first=f"{name}_1")],
    "timm": lambda name: TimmRandAugmentLayer(name, operations="increasing", noise=MagnitudeNoise(0.5)),
    "timm, weighted": lambda name: TimmWeightedLayers(name, operations="3aw"),
    "three_augment": lambda name: TimmPolicyFirst(name, policy="3a"),
    "augmix": lambda name: AugMix(name, severity=9, mixture_width=2),
    "jitter": lambda name: ColorJitter(0.4, 0.4, 0.4, 0.2, name=name),
    "grey": lambda name: RandomGrayscale(0.5, name=name),
    "blur": lambda name: GaussianBlur(5, name=name),
    "solarize": lambda name: Solarize(100, name=name),
    "posterize": lambda name: Posterize(3, name=name),
    "invert": lambda name: Invert(name=name),
    "equalize": lambda name: Equalize(name=name),
    "auto_contrast": lambda name: AutoContrast(name=name),
    "sharpness": lambda name: AdjustSharpness(1.7, name=name),
    "solarize_add": lambda name: SolarizeAdd(60, name=name),
    "erasing": lambda name: RandomErasing(0.7, name=name),
    "erasing, noise": lambda name: RandomErasing(0.7, value="pixel", count=(1, 3), name=name),
    "cutout": lambda name: Cutout(9, 0.8, name=name),
    "vertical flip": lambda name: VerticalFlip(name=name),
    "rotation": lambda name: RandomRotation(40, fill=(1, 2, 3), name=name),
    "affine": lambda name: RandomAffine(20, (0.2, 0.1), (0.7, 1.5), 10, "bilinear", name=name),
    "perspective": lambda name: RandomPerspective(0.6, 0.7, name=name),
    "perspective, nearest": lambda name: RandomPerspective(0.6, 0.7, "nearest", name=name),
}
COMPILED: dict[str, Make] = {
    "own": lambda name: KernelStage(shifted, name, uniforms=1),
    "host": lambda name: HostStage(noisy, name, keeps_place=True),
}
"""Of stages that DALI cannot run."""

TO_SIZE: dict[str, Make] = {
    "resized crop": lambda name: RandomResizedCrop((HEIGHT, WIDTH), (0.3, 1.0), name=name),
    "nearest resized crop": lambda name: RandomResizedCrop((HEIGHT, WIDTH), interpolation="nearest", name=name),
    "sharp resized crop": lambda name: RandomResizedCrop((HEIGHT, WIDTH), interpolation="lanczos", name=name),
    "resized crop, drawn": lambda name: RandomResizedCrop((HEIGHT, WIDTH), interpolation="random", name=name),
    "letterbox": lambda name: Letterbox((HEIGHT, WIDTH), place="random", name=name),
    "scale jitter": lambda name: ScaleJitter((HEIGHT, WIDTH), (0.3, 1.5), fill=(1, 2, 3), name=name),
    "sharp scale jitter": lambda name: ScaleJitter(
        (HEIGHT, WIDTH), (0.3, 1.5), cover=True, place="center", interpolation="bicubic", name=name
    ),
    "reflected crop": lambda name: RandomCrop((HEIGHT, WIDTH), padding=4, padding_mode="reflect", name=name),
    "bicubic, any crop": lambda name: [
        Resize((HEIGHT + 9, WIDTH + 3), "bicubic", f"{name}_resize"),
        RandomCrop((HEIGHT, WIDTH), name=f"{name}_crop"),
    ],
    "padded crop": lambda name: RandomCrop((HEIGHT, WIDTH), margin=6, padding=3, name=name),
    "resized, cropped": lambda name: [
        Resize((HEIGHT + 4, WIDTH + 4), name=f"{name}_resize"),
        RandomCrop((HEIGHT, WIDTH), margin=4, name=f"{name}_crop"),
    ],
    "resized, centre": lambda name: [Resize(40, name=f"{name}_resize"), CenterCrop((HEIGHT, WIDTH), f"{name}_crop")],
}


def drawn_kinds() -> set[type[Stage]]:
    """Return the kinds of stages in recipes that are drawn."""
    return {type(each) for make in {**KEEP_SIZE, **COMPILED, **TO_SIZE}.values() for each in _listed(make("stage"))}


def named_anew(stage: Stage, name: str, **changes: Any) -> Stage:
    return replace(stage, name=name, **changes)  # type: ignore[type-var]


def of_squares(stage: Stage, name: str) -> list[Stage]:
    """Return a stage that takes no other images, between resizes."""
    before, after = Resize((HEIGHT, HEIGHT), name=f"{name}_before"), Resize((HEIGHT, WIDTH), name=f"{name}_after")
    return [before, named_anew(stage, name), after]


def shifted(image: Any, uniforms: Any, out: Any) -> None:
    """Darken by a random amount."""
    less = int(100 * uniforms[0])
    for i in range(image.size):
        out.flat[i] = max(image.flat[i] - less, 0)


def noisy(image: Any, rng: np.random.Generator) -> Any:
    """Write noise to the image itself."""
    image |= rng.integers(0, 16, image.shape, np.uint8)
    return image


def _listed(made: Stage | list[Stage]) -> list[Stage]:
    return made if isinstance(made, list) else [made]


BESIDE = {Decode, RandomApply, RandomChoice, Custom, TimmPolicySecond, TimmWeightedFirst, TimmWeightedSecond}
"""Kinds that recipes have anyhow, that go with another one, or that a file of their own tries."""

_BEFORE = drawn_kinds()
for kind, (stage, *_) in held().items():
    if kind in BESIDE | _BEFORE or stage.partners:
        continue
    if stage.refusal(*np.array([[HEIGHT], [WIDTH]])):
        TO_SIZE[kind.__name__] = partial(of_squares, stage)
        continue
    stays = [side.tolist() for side in stage.output_sizes(*np.array([[HEIGHT], [WIDTH]]))] == [[HEIGHT], [WIDTH]]
    changes = {} if stays else {"size": (HEIGHT, WIDTH)}
    (KEEP_SIZE if stays else TO_SIZE)[kind.__name__] = partial(named_anew, stage, **changes)


@st.composite
def stages_of(draw: st.DrawFn, kernels: Kernels) -> list[Stage]:
    """Draw one to five stages; what keeps the size may be inside of others that choose."""
    keep = {**KEEP_SIZE, **(COMPILED if kernels == "numba" else {})}
    alone = {name: make for name, make in keep.items() if name != "auto_augment"}
    stages: list[Stage] = []
    for place in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["keep", "keep", "keep", "to size", "apply", "choice"]))
        name = f"stage_{place}"
        if kind in ("keep", "to size"):
            kinds = keep if kind == "keep" else TO_SIZE
            stages += _listed(kinds[draw(st.sampled_from(sorted(kinds)))](name))
            continue
        names = draw(st.lists(st.sampled_from(sorted(alone)), min_size=1, max_size=3, unique=True))
        inner = [stage for number, each in enumerate(names) for stage in _listed(alone[each](f"inner_{number}"))]
        stages.append(RandomApply(inner, 0.6, name) if kind == "apply" else RandomChoice([*inner, []], name=name))
    return stages


def served(
    recipe: Recipe, planner: Planner, store: Store | None, kernels: Kernels, epochs: int = EPOCHS
) -> list[torch.Tensor]:
    """All images, and masks, boxes and how many each image has, where there are any."""
    options = Prefetch(num_threads=2, replicas=1, look_ahead=2)
    source = SOURCE if unmapped(recipe) else ANNOTATED
    with Loader(source, recipe, planner, store, kernels=kernels, prefetch=options) as loader:
        batches = [(images.clone(), targets) for _ in range(epochs) for images, targets in loader]
    images = torch.cat([images for images, _ in batches])
    if source is SOURCE:
        return [images]
    targets = [target for _, batch in batches for target in batch]
    boxes = [target["boxes"] for target in targets]
    counts = torch.tensor([len(each) for each in boxes])
    return [images, torch.stack([target["mask"] for target in targets]), torch.cat(boxes), counts]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def check(stages: list[Stage], kernels: Kernels, split: int, channels: int) -> None:
    """Compare what a split serves with and without a store, and, without reuse, with what no split serves."""
    output = Output((HEIGHT, WIDTH), "float16" if channels == 1 else "float32", channels=1 if channels == 1 else 3)
    recipe = Recipe(stages, output, min(split, len(stages)))
    planner = Refurbish(COUNT, batch_size=BATCH_SIZE, reuse_factor=2, seed=5)
    assert same(served(recipe, planner, None, kernels), served(recipe, planner, MemoryStore(), kernels))
    standard = Standard(COUNT, batch_size=BATCH_SIZE, seed=5)
    once = Refurbish(COUNT, batch_size=BATCH_SIZE, reuse_factor=1, seed=5)
    whole = served(recipe.at(0), standard, None, kernels, epochs=2)
    assert same(whole, served(recipe, once, MemoryStore(), kernels, epochs=2))
    assert whole[0].std() > 0


def settled(function: Callable[..., None]) -> Callable[..., None]:
    """Let an example take its time: it makes four loaders. Where each change is tested there are fewer."""
    examples = 2 if EACH_CHANGE else min(12, settings.default.max_examples // 3)
    profile = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples)
    return profile(function)


SPLIT, CHANNELS = st.integers(0, 5), st.sampled_from([1, 3])


@settled
@given(stages_of("numba"), SPLIT, CHANNELS)
def test_compiled_kernels_serve_the_same_whatever_the_stages_the_store_and_the_split(
    stages: list[Stage], split: int, channels: int
) -> None:
    pytest.importorskip("numba")
    check(stages, "numba", split, channels)


@settled
@given(stages_of("dali"), SPLIT, CHANNELS)
def test_dalis_operators_serve_the_same_whatever_the_stages_the_store_and_the_split(
    stages: list[Stage], split: int, channels: int
) -> None:
    check(stages, "dali", split, channels)


EACH = [*KEEP_SIZE, *COMPILED, *TO_SIZE]


@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param(EACH[place::9], id=f"every ninth from {place}") for place in range(9)),
        *(pytest.param([name], id=name, marks=pytest.mark.weekly) for name in EACH),
    ],
)
def test_each_stage_serves_the_same_whatever_the_store_and_the_split(names: list[str]) -> None:
    """Each is drawn, whatever hypothesis draws: with others, and weekly by itself."""
    pytest.importorskip("numba")
    makes = {**KEEP_SIZE, **COMPILED, **TO_SIZE}
    stages = [stage for number, name in enumerate(names) for stage in _listed(makes[name](f"stage_{number}"))]
    check([*stages, HorizontalFlip(name="last")], "numba", len(stages), 3)
