"""What every stage promises, whatever it does: of each one that a recipe can have, and of users' functions."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

from dalirefurb import augment
from dalirefurb.augment import (
    AdjustSharpness,
    AugMix,
    AutoAugmentFirst,
    AutoAugmentSecond,
    AutoContrast,
    CenterCrop,
    ColorJitter,
    CopyPaste,
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
    MixUp,
    Mosaic,
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
    timm_auto_augment,
)
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.published import yolo
from dalirefurb.testing import StageContract
from tests.augment.test_erasing import STAGES as ERASING
from tests.in_turn import EACH_CHANGE
from tests.stages import held


def varied(stage: Stage, *others: Stage, **changes: Any) -> list[Stage]:
    """Return a stage, others of its kind, and for each change one that differs from it in that."""
    return [stage, *others, *(replace(stage, **{name: value}) for name, value in changes.items())]


def inverted(images: Any) -> Any:
    return fn.cast_like(255 - images, images)


def darkened(image: Any, uniforms: Any, out: Any) -> None:
    factor = uniforms[0]
    for i in range(image.size):
        out.flat[i] = int(image.flat[i] * factor)


def noisy(image: Any, rng: Any) -> Any:
    return image | rng.integers(0, 8, dtype="uint8")


TIMM = {"name": "layer", "interpolation": "nearest", "fill": 0, "noise": MagnitudeNoise(0.5, 10, False)}
WEIGHTED = {"operations": "3aw", "magnitude": 9, "probability": 1}
LAYER = {"name": "layer", "interpolation": "bilinear", "fill": 128}

EXACT: list[list[Stage]] = [
    varied(CenterCrop(32), size=33, name="crop"),
    varied(RandomCrop(32), size=33, margin=32, padding=4, name="crop", padding_mode="reflect"),
    varied(HorizontalFlip(), probability=0.4, name="mirror"),
    varied(VerticalFlip(), probability=0.4, name="mirror"),
    varied(RandomGrayscale(), probability=0.2, name="grey"),
    varied(Solarize(), threshold=100, name="invert_bright"),
    varied(SolarizeAdd(40), addition=41, threshold=100, name="add"),
    varied(Posterize(4), bits=3, name="coarse"),
    varied(Invert(), name="negative"),
    varied(AutoContrast(), name="stretch"),
    varied(
        RandomErasing(),
        *(stage for stage in ERASING[1:] if isinstance(stage, RandomErasing)),
        probability=0.4,
        scale=(0.02, 0.4),
        ratio=(0.3, 3.0),
        value="pixel",
        count=2,
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
        name="erasing",
    ),
    varied(Cutout(16), ERASING[-1], size=(16, 8), probability=0.5, fill=(1, 2, 3), holes=2, name="holes"),
    varied(RandomApply(Invert()), stages=Solarize(), probability=0.4, name="some"),
    varied(RandomChoice([Invert(), []]), stages=[Solarize(), []], probabilities=(1, 2), name="either"),
]
"""Stages of which kernels make what DALI's operators make."""

WITHIN_A_LEVEL: list[list[Stage]] = [
    varied(
        RandomResizedCrop(32),
        RandomResizedCrop(32, interpolation="random"),
        size=33,
        scale=(0.1, 1.0),
        ratio=(0.5, 2.0),
        interpolation="nearest",
        name="crop",
    ),
    varied(Resize(32), Resize(32, "random"), size=33, interpolation="nearest", name="smaller"),
    varied(
        Letterbox(32),
        size=(33, 20),
        fill=(1, 2, 3),
        enlarge=False,
        place="random",
        interpolation="nearest",
        name="frame",
    ),
    varied(
        ScaleJitter(32),
        size=(33, 20),
        scale=(0.5, 1.0),
        cover=True,
        fill=128,
        place="center",
        interpolation="nearest",
        name="frame",
    ),
    varied(GaussianBlur(3), kernel_size=5, sigma=(0.1, 1.0), name="blur"),
    varied(AdjustSharpness(2.0), factor=1.5, name="sharpen"),
]

APART: list[list[Stage]] = [
    varied(RandomRotation(30), degrees=20, interpolation="bilinear", fill=128, name="rotation"),
    varied(
        RandomAffine(30),
        degrees=20,
        translate=(0.1, 0.2),
        scale=(0.5, 2.0),
        shear=10,
        interpolation="bilinear",
        fill=(1, 2, 3),
        name="affine",
    ),
    varied(
        RandomPerspective(),
        distortion_scale=0.4,
        probability=0.4,
        interpolation="nearest",
        fill=128,
        name="perspective",
    ),
    varied(RandAugmentLayer(), **LAYER, magnitude=8, num_magnitude_bins=11),
    varied(TrivialAugmentLayer(), **{**LAYER, "fill": (1, 2, 3)}, num_magnitude_bins=11),
    varied(AutoAugmentFirst(), **LAYER, policy="cifar10"),
    varied(AutoAugmentSecond(), **LAYER, policy="cifar10", first="other"),
    varied(
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        ColorJitter(),
        brightness=(0.5, 1.0),
        contrast=(0.5, 1.0),
        saturation=(0.5, 1.0),
        hue=(0.0, 0.2),
        name="jitter",
    ),
    varied(Equalize(), name="equal"),
    varied(
        TimmRandAugmentLayer(),
        *timm_auto_augment("rand-m9-n1-mstd0.5-inc1"),
        name="layer",
        interpolation="nearest",
        fill=0,
        operations="increasing",
        magnitude=9,
        noise=MagnitudeNoise(0.5),
        probability=1,
    ),
    varied(TimmPolicyFirst(), **TIMM, policy="v0"),
    varied(TimmPolicySecond(), **TIMM, policy="v0", first="other"),
    varied(TimmWeightedFirst(), **TIMM, **WEIGHTED),
    varied(TimmWeightedSecond(), **TIMM, **WEIGHTED, first="other"),
    varied(TimmWeightedLayers(), **TIMM, **WEIGHTED, layers=4),
    varied(
        AugMix(),
        AugMix(chain_depth=2),
        name="mix",
        interpolation="nearest",
        fill=128,
        severity=4,
        mixture_width=2,
        chain_depth=3,
        alpha=2,
        noise=MagnitudeNoise(0.5),
    ),
    varied(Custom(inverted, "invert"), name="negative", revision=2, size=(32, 32)),
    varied(KernelStage(darkened, "dark", uniforms=1), name="darker", uniforms=2, size=8, revision=2, cuda="return 0;"),
    varied(HostStage(noisy, "noise"), name="more", size=(33, 57), keeps_place=True, revision=2),
]
"""Stages whose kernels are further from DALI's operators, see `docs/kernels.md`, or which have one of both."""

ALL = [*EXACT, *WITHIN_A_LEVEL, *APART]


class TestStage(StageContract):
    """Each of our stages is held to the contract."""

    sizes = (*StageContract.sizes, (8, 300), (375, 9), (1, 1))

    @pytest.fixture(autouse=True, params=ALL, ids=lambda stages: type(stages[0]).__name__)
    def _case(self, request: pytest.FixtureRequest) -> None:
        self.case: Sequence[Stage] = request.param
        if EACH_CHANGE and self.case in APART and "what_is_made" in request.node.name:
            pytest.skip("runs weekly, or without HYPOTHESIS_PROFILE=ci: other tests look at these pixels")
        self.levels_apart = 0 if self.case in EXACT else 1 if self.case in WITHIN_A_LEVEL else None
        if isinstance(self.case[0], (OperationLayer, RandomApply, RandomChoice)):  # They change colours, too.
            self.pixels_apart = None

    def stages(self) -> Sequence[Stage]:
        return self.case


class TestRandomCropOfAMargin(StageContract):
    levels_apart = 0
    sizes = ((40, 40), (40, 40), (41, 41), (32, 32), (36, 36))

    def stages(self) -> Sequence[Stage]:
        changes = {"size": 33, "margin": 9, "padding": 4, "name": "crop", "padding_mode": "reflect"}
        return varied(RandomCrop(32, margin=8), RandomCrop(32, margin=8, padding=2), **changes)


class TestRandomResizedCropOfExtremes(StageContract):
    sizes = ((375, 500), (1, 1000), (5000, 10), (300, 20))

    def stages(self) -> Sequence[Stage]:
        changes: Mapping[str, Any] = {"size": 223, "scale": (0.1, 1.0), "ratio": (0.5, 2.0), "name": "crop"}
        return varied(RandomResizedCrop(224, interpolation="nearest"), **changes, interpolation="bilinear")


class TestDecode(StageContract):
    def stages(self) -> Sequence[Stage]:
        return Decode(), Decode("read")

    def test_what_is_made_of_an_image_depends_on_it_alone_and_is_as_large_as_is_said(self) -> None:
        """It takes encoded images, and `tests/reading` looks at what it makes of them."""


class TestMosaic(StageContract):
    pixels_apart = None

    def stages(self) -> Sequence[Stage]:
        return varied(Mosaic(32), size=33, fill=(1, 2, 3), images=9, name="put")

    def test_what_is_made_of_an_image_depends_on_it_alone_and_is_as_large_as_is_said(self) -> None:
        """It takes several images, and `tests/targets` looks at what it makes of them."""


class TestMixUp(TestMosaic):
    def stages(self) -> Sequence[Stage]:
        return varied(MixUp(), alpha=0.4, probability=0.5, name="blend")


class TestCopyPaste(TestMosaic):
    def stages(self) -> Sequence[Stage]:
        return varied(CopyPaste(), share=0.4, probability=0.6, min_visible=0.3, name="paste")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomRotation(0, fill=255),
        lambda: RandomAffine(0, (0, 1), shear=0),
        lambda: RandomPerspective(1.0, fill=(0, 255, 255)),
        lambda: ColorJitter(hue=0.5),
        lambda: ColorJitter(hue=(-0.5, 0.5)),
        lambda: RandomErasing(scale=(1, 1)),
        lambda: RandomErasing(mean=(0, 1, 0), std=(0, 1, 0)),
        lambda: AugMix(severity=0),
        lambda: TimmRandAugmentLayer(magnitude=0),
        lambda: RandAugmentLayer(magnitude=30),
        lambda: augment.RandomAffine3D(8, degrees=0),
        lambda: augment.RandomAffine3D(8, degrees=180),
        lambda: yolo(translate=0, scale=0),
        lambda: yolo(translate=1, hsv_h=0.5),
    ],
)
def test_the_ends_of_what_is_allowed_are_allowed(make: Any) -> None:
    assert make() == make()


@pytest.mark.parametrize("kind", [kind for kind in held() if kind is not Decode], ids=lambda kind: kind.__name__)
def test_a_stage_goes_to_another_process_before_it_was_used_and_after(kind: type[Stage]) -> None:
    for stage in held()[kind]:
        taken = stage.num_uniforms + (0 if stage.follows is None else stage.follows.num_uniforms)
        before = pickle.loads(pickle.dumps(stage))
        sides, uniforms = np.full(3, 40), np.random.default_rng(0).random((3, taken))
        if stage.refusal(sides, sides) is None:
            drawn = stage.draw(uniforms, sides, sides)
            for other in (before, pickle.loads(pickle.dumps(stage))):
                assert other == stage
                assert all(
                    np.array_equal(drawn[name], rows) for name, rows in other.draw(uniforms, sides, sides).items()
                )


def test_every_stage_is_held_to_the_contract() -> None:
    """Here, or where else it is tested."""
    public = {each for each in vars(augment).values() if inspect.isclass(each) and issubclass(each, Stage)} - {Stage}
    of_volumes = {each for each in public if issubclass(each, augment.VolumeStage)}
    tried = "".join(path.read_text() for path in (Path(__file__).parents[1] / "volumes").glob("*.py"))
    assert [each for each in of_volumes if not re.search(rf"\b{each.__name__}\b", tried)] == []
    assert public == held().keys() | of_volumes
