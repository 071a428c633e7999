"""Numbers: NumPy's, torch's, arrays and lists are taken wherever numbers are, and stand for the same thing."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import dalirefurb
from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    Compressed,
    Evaluate,
    Loader,
    MemoryStore,
    Mix,
    Output,
    Prefetch,
    Rank,
    Recipe,
    Refurbish,
    Standard,
    TieredStore,
    augment,
    propose_coverage,
    simple,
    tune,
)
from dalirefurb.augment import Custom, presets, published
from dalirefurb.augment.presets import simplified
from dalirefurb.checks import plain
from dalirefurb.errors import ConfigurationError
from dalirefurb.store import DeviceStore
from dalirefurb.store.spec import StoreSpec
from tests.augment.torchvision_stand_ins import T, stand_in
from tests.in_turn import EACH_CHANGE
from tests.planners import KINDS
from tests.stages import changed, held

SIZE, SOURCE = 32, Arrays(np.zeros((8, 32, 32, 3), np.uint8), np.arange(8))
NOISE = augment.MagnitudeNoise(0.5, 10.0)
SIZED = {"size": (48, 32)}
WINDOW = {"size": (8, 9, 10), "foreground": 0.25, "fill": 1.5}
PRESET = {**SIZED, "mean": (0.5, 0.25, 0.75), "std": 0.25, "channels_last": True}
CROPPED = {**PRESET, "scale": (0.25, 1.0), "ratio": (0.75, 1.25), "flip": 0.25, "fill": (1, 2, 3)}
PLANNER = {"num_samples": 8, "batch_size": 4, "seed": 3, "shards": 2, "drop_last": True}
INNER = {"planner": Standard(8, batch_size=4)}

# What takes numbers: how to call it. All floats are the same in single and half precision.
EXAMPLES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{
        name: (getattr(augment, name), arguments)
        for name, arguments in {
            "AdjustSharpness": {"factor": 1.5},
            "AugMix": {"severity": 2.5, "mixture_width": 2, "chain_depth": 2, "alpha": 0.5, "noise": NOISE, "fill": 9},
            "AutoAugmentFirst": {"fill": 9},
            "AutoAugmentSecond": {"fill": (9, 8, 7)},
            "CenterCrop": SIZED,
            "ColorJitter": {"brightness": 0.5, "contrast": (0.5, 1.5), "saturation": 2, "hue": (-0.25, 0.25)},
            "CopyPaste": {"share": 0.75, "probability": 0.25, "min_visible": 0.5},
            "Cutout": {**SIZED, "probability": 0.25, "fill": (1, 2, 3), "holes": 2},
            "GaussianBlur": {"kernel_size": 9, "sigma": (0.5, 1.5)},
            "HorizontalFlip": {"probability": 0.25},
            "HostStage": {"function": lambda image: image, "name": "host", "revision": 2, "keeps_place": True, **SIZED},
            "KernelStage": {"function": lambda image, uniforms, out: None, "name": "own", "uniforms": 2, **SIZED},
            "Letterbox": {**SIZED, "enlarge": True, "fill": (1, 2, 3)},
            "MixUp": {"alpha": 1.5, "probability": 0.25},
            "Mosaic": {**SIZED, "fill": (1, 2, 3), "images": 9},
            "Parameter": {"dtype": "float32", "shape": (2,)},
            "Posterize": {"bits": 4},
            "RandAugmentLayer": {"magnitude": 5, "num_magnitude_bins": 11, "fill": 9},
            "RandomAffine": {
                "degrees": (-4, 8.5),
                "translate": (0.25, 0.5),
                "scale": (0.5, 1.5),
                "shear": (-1, 1, -2, 2),
                "fill": (1, 2, 3),
            },
            "RandomApply": {"stages": [augment.Invert()], "probability": 0.25},
            "RandomChoice": {"stages": [augment.Invert(), augment.Equalize()], "probabilities": (0.25, 2)},
            "RandomCrop": {**SIZED, "margin": 4, "padding": 2},
            "RandomErasing": {
                "probability": 0.25,
                "scale": (0.25, 0.5),
                "ratio": (0.5, 2),
                "value": (1, 2, 3),
                "count": (1, 2),
                "mean": (0.5, 0.25, 0.75),
                "std": (0.5, 0.25, 0.75),
            },
            "RandomGrayscale": {"probability": 0.25},
            "RandomPerspective": {"distortion_scale": 0.25, "probability": 0.75, "fill": 9},
            "RandomResizedCrop": {**SIZED, "scale": (0.25, 1.0), "ratio": (0.75, 1.25)},
            "RandomRotation": {"degrees": 15, "fill": 9},
            "Resize": SIZED,
            "ScaleJitter": {**SIZED, "cover": True, "scale": (0.25, 1.5), "fill": 9},
            "Solarize": {"threshold": 100.5},
            "SolarizeAdd": {"addition": 20, "threshold": 100},
            "TimmPolicyFirst": {"noise": NOISE, "fill": 9},
            "TimmPolicySecond": {"noise": NOISE, "fill": 9},
            "TimmRandAugmentLayer": {"magnitude": 5, "noise": NOISE, "probability": 0.25, "fill": 9},
            "TimmWeightedFirst": {"magnitude": 5, "noise": NOISE, "probability": 0.25, "fill": 9},
            "TimmWeightedLayers": {"layers": 2, "magnitude": 5, "noise": NOISE, "probability": 0.25, "fill": 9},
            "TimmWeightedSecond": {"magnitude": 5, "noise": NOISE, "probability": 0.25, "fill": 9},
            "TrivialAugmentLayer": {"num_magnitude_bins": 11, "fill": (1, 2, 3)},
            "VerticalFlip": {"probability": 0.25},
            "CenterCrop3D": {"size": (8, 9, 10), "fill": 1.5},
            "IntensityWindow": {"low": -57.5, "high": 164},
            "RandomAffine3D": {**WINDOW, "degrees": 15, "scale": (0.5, 1.5), "turned": 0.25, "scaled": 0.75},
            "RandomContrast": {"factor": (0.5, 1.5), "probability": 0.25},
            "RandomCrop3D": WINDOW,
            "RandomFlip3D": {"axes": (0, 2), "probability": 0.25},
            "RandomGamma": {"gamma": (0.5, 1.5), "probability": 0.25, "invert": True},
            "RandomGaussianNoise": {"std": 0.5, "probability": 0.25},
            "RandomGaussianSmooth": {"sigma": (0.5, 1.5), "probability": 0.25},
            "RandomLowResolution": {"zoom": (0.5, 0.75), "probability": 0.5},
            "RandomRotate90": {"probability": 0.25, "axes": (1, 2), "max_quarters": 2},
            "RandomScaleIntensity": {"factor": 0.25, "probability": 0.75},
            "RandomShiftIntensity": {"offset": 0.25, "probability": 0.75},
            "VolumeOutput": {"size": (8, 9, 10), "mean": 0.5, "std": 2.0, "channels": 2, "channels_last": False},
            "nn_unet": {"size": (8, 9, 10), "foreground": 0.25},
            "timm_auto_augment": {"config": "rand-m9", "fill": (1, 2, 3)},
        }.items()
    },
    **{
        name: (getattr(published, name, None) or getattr(presets, name), arguments)
        for name, arguments in {
            "airbench": {**PRESET, "translate": 2, "cutout": 10},
            "auto_augment": CROPPED,
            "convnext": {**PRESET, "erasing": 0.5},
            "deit3": {**PRESET, "color_jitter": 0.25},
            "evaluate": {**PRESET, "resize": (64, 48)},
            "large_scale_jitter": {**PRESET, "scale": (0.25, 1.5), "margin": 4, "fill": (1, 2, 3)},
            "rand_augment": {**CROPPED, "layers": 3, "magnitude": 5, "num_magnitude_bins": 11, "split": 2},
            "resnet_strikes_back": PRESET,
            "segmentation": {**PRESET, "size": 32, "shorter": (16, 64), "margin": 4, "fill": 9},
            "simclr": {**PRESET, "strength": 0.5, "blur": 0.25},
            "simple": {name: value for name, value in CROPPED.items() if name != "fill"},
            "timm_augment": {**CROPPED, "color_jitter": 0.25},
            "trivial_augment": {**CROPPED, "num_magnitude_bins": 11},
            "yolo": {name: value for name, value in PRESET.items() if name != "split"}
            | {"translate": 0.25, "scale": 0.25, "hsv_h": 0.25, "hsv_s": 0.5, "hsv_v": 0.5, "fliplr": 0.25},
        }.items()
    },
    "Custom": (Custom, {"function": lambda images: images, "name": "own", "revision": 2, **SIZED}),
    "Output": (Output, {**SIZED, "mean": 0.5, "std": (0.25, 0.5, 0.75), "channels": 3, "channels_last": True}),
    "Recipe": (Recipe, {"stages": [augment.Resize(SIZE)], "output": Output(SIZE), "split": 1}),
    "Recipe.at": (simple(SIZE).at, {"split": 1}),
    "Recipe.diversity": (simple(SIZE).diversity, {"reuse_factor": 3}),
    "Recipe.with_output": (simple((48, 32)).with_output, {**SIZED, "mean": (0.5, 0.25, 0.75), "std": 0.25}),
    "Recipe.view": (simple(SIZE).view, {"number": 2}),
    "simplified": (simplified, {"recipe": dalirefurb.rand_augment(SIZE), "layers": 1}),
    "Recipe.from_timm": (
        Recipe.from_timm,
        {
            "input_size": (3, 48, 48),
            "is_training": True,
            "scale": (0.25, 1.0),
            "hflip": 0.25,
            "color_jitter": (0.5, 0.25, 0.75),
            "mean": (0.5, 0.25, 0.75),
            "std": (0.25, 0.5, 0.75),
            "re_prob": 0.25,
            "re_count": 2,
        },
    ),
    "Planner.for_rank": (Standard(8, batch_size=4, shards=2).for_rank, {"rank": 1, "world_size": 2}),
    "Evaluate.for_rank": (Evaluate(8, batch_size=4).for_rank, {"rank": 1, "world_size": 2}),
    "Planner.plan": (Standard(8, batch_size=4).plan, {"epoch": 1, "batch": 1}),
    "BadSamplePolicy": (BadSamplePolicy, {"max_pixels": 1000, "retry_s": 2.5}),
    "Prefetch": (
        Prefetch,
        {
            "num_threads": 3,
            "replicas": 2,
            "look_ahead": 6,
            "batches_per_group": 2,
            "reading_threads": 5,
            "memory": 10_000,
        },
    ),
    "Compressed": (Compressed, {"store": MemoryStore(), "expected_ratio": 2.5, "num_threads": 3}),
    "DeviceStore": (DeviceStore, {"max_bytes": 1000, "device": "cpu", "pinned_host": False}),
    "MemoryStore": (MemoryStore, {"max_bytes": 1000}),
    "TieredStore": (
        lambda memory: TieredStore(memory=memory)._tiers[0].slots(StoreSpec((2, 2, 3), 200, {})),
        {"memory": 1200},
    ),
    "Mix": (Mix, {"num_classes": 3, "mixup": 0.25, "cutmix": 0.5, "label_smoothing": 0.75, "seed": 3}),
    "Loader": (
        lambda rank: repr(Loader(SOURCE, simple(SIZE, raw=True), Standard(8, batch_size=4, shards=2), rank=rank)),
        {"rank": (1, 2)},
    ),
    "Rank": (
        lambda rank, world_size, local_world_size: repr(
            Loader(
                SOURCE,
                simple(SIZE, raw=True),
                Standard(8, batch_size=4, shards=2),
                rank=Rank(rank, world_size, local_world_size),
            )
        ),
        {"rank": 1, "world_size": 2, "local_world_size": 2},
    ),
    "propose_coverage": (
        lambda budget: propose_coverage(
            SOURCE, simple(SIZE, raw=True), Refurbish(8, batch_size=4, reuse_factor=2), budget
        ),
        {"budget": 8 * SIZE * SIZE * 3},
    ),
    "Source.subset": (lambda indices: SOURCE.subset(indices).labels.tolist(), {"indices": (3, 1)}),
    "Source.__getitem__": (lambda index: SOURCE[index][1], {"index": 3}),
}

OF_NO_NUMBER = {
    # They are results, take a loader or serve one, or measure for a minute, or nothing but paths, names and data.
    *("Diagnosis", "Stats", "Verdict", "CudaPrefetch", "Broadcast", "Attached", "tune", "DalirefurbError", "Arrays"),
    *("Concat", "DiskStore", "FileList", "HuggingFaceImages", "ImageFolder", "Kept", "PartialSource", "TarShards"),
    *("TorchDataset", "Volumes"),
    "MagnitudeNoise",  # It stays what it is given, and stages make Python's numbers of it.
    *("AutoContrast", "Decode", "Equalize", "Invert", "Stage", "VolumeStage", "Voxels"),
}


def representable(value: Any) -> Any:
    """Return a value whose floats are the same in half precision."""
    if isinstance(value, tuple):
        return tuple(map(representable, value))
    return float(np.float16(value)) if isinstance(value, float) else value


# Planners, and stages that have no row above, are tried with the values by which tests of them tell arguments apart.
_OTHERS = {kind: changed(stages) for kind, stages in held().items()}
_OTHERS |= {kind: {**tried.arguments, **tried.changes} for kind, tried in KINDS.items()}
EXAMPLES |= {
    kind.__name__: (kind, {name: representable(value) for name, value in arguments.items()})
    for kind, arguments in _OTHERS.items()
    if kind.__name__ not in {*EXAMPLES, *OF_NO_NUMBER}
}

# Transforms of torchvision, whose attributes are what a user gave.
TRANSFORMS: dict[str, dict[str, Any]] = {
    "Resize": {"size": (40, 48)},
    "CenterCrop": {"size": (40, 48)},
    "RandomResizedCrop": {"size": (40, 48), "scale": (0.25, 1.0), "ratio": (0.75, 1.25)},
    "RandomCrop": {"size": (40, 48), "padding": 4, "fill": 0},
    "RandomHorizontalFlip": {"p": 0.25},
    "RandomRotation": {"degrees": (-15, 15), "fill": (1, 2, 3)},
    "RandomAffine": {"degrees": (-4, 8), "translate": (0.25, 0.5), "scale": (0.5, 1.5), "shear": (-2, 2), "fill": 9},
    "RandomPerspective": {"distortion_scale": 0.25, "p": 0.75, "fill": 9},
    "ColorJitter": {"brightness": (0.5, 1.5), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5), "hue": (-0.25, 0.25)},
    "RandomGrayscale": {"p": 0.25},
    "GaussianBlur": {"kernel_size": (9, 9), "sigma": (0.5, 1.5)},
    "RandomPosterize": {"bits": 4, "p": 0.25},
    "RandomSolarize": {"threshold": 128, "p": 0.25},
    "RandomAdjustSharpness": {"sharpness_factor": 1.5, "p": 0.25},
    "RandAugment": {"num_ops": 2, "magnitude": 9, "num_magnitude_bins": 31, "fill": (1, 2, 3)},
    "TrivialAugmentWide": {"num_magnitude_bins": 31, "fill": 9},
    "Normalize": {"mean": (0.5, 0.25, 0.75), "std": (0.25, 0.5, 0.75)},
    "RandomErasing": {"p": 0.25, "scale": (0.25, 0.5), "ratio": (0.5, 2.0), "value": (0.5, 0.25, 0.75)},
}


def others(value: Any) -> Iterator[Any]:
    """Write a value in all other ways."""
    if isinstance(value, bool):
        yield from (np.bool_(value), np.array(value), torch.tensor(value))
    elif isinstance(value, int):
        yield from (kind(value) for kind in (np.int64, np.int32, np.uint16, np.array, torch.tensor))
    elif isinstance(value, float):
        yield from (kind(value) for kind in (np.float64, np.float32, np.float16, np.longdouble, torch.tensor))
        yield np.array(value, np.float32)
    elif isinstance(value, augment.MagnitudeNoise):
        yield augment.MagnitudeNoise(np.float32(value.std), np.int64(value.most), np.bool_(value.uniform))
    elif type(value) is tuple:
        yield from ([*value], np.array(value), torch.tensor(value), torch.Size(value) if all_ints(value) else value)
        yield tuple(np.array(each)[()] for each in value)
        yield np.array(value, np.longdouble) if not all_ints(value) else np.array(value, np.int16)


def all_ints(values: tuple[Any, ...]) -> bool:
    return all(isinstance(each, int) for each in values)


def told(made: Any) -> Any:
    """Return what an object tells of itself, to the last type."""
    if isinstance(made, list):
        return [told(each) for each in made]
    parts = [repr(made)] if dataclasses.is_dataclass(made) or not hasattr(made, "__dict__") else []
    if hasattr(made, "fingerprint"):
        parts.append(json.dumps(made.fingerprint()))
    if hasattr(made, "_max_bytes") or isinstance(made, Compressed):
        parts += [f"{name}={value!r}" for name, value in vars(made).items() if isinstance(value, (int, float, tuple))]
    assert parts or isinstance(made, (int, float, str)), made
    return [re.sub(r" at 0x[0-9a-f]+", "", part) for part in parts] or repr(made)


def written(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments with one of them written otherwise, and with all of them so; for each change these alone."""
    ways = {name: [*others(value)] for name, value in arguments.items()}
    if EACH_CHANGE:
        for turn in range(max(1, *map(len, ways.values()))):
            yield {name: each[turn % len(each)] if (each := ways[name]) else arguments[name] for name in arguments}
        return
    for name, each in ((name, each) for name, several in ways.items() for each in several):
        yield {**arguments, name: each}
    yield {name: several[0] if (several := ways[name]) else value for name, value in arguments.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_other_numbers_make_the_same(name: str) -> None:
    call, arguments = EXAMPLES[name]
    expected = call(**arguments)
    assert "np." not in str(told(expected))
    for given in written(arguments):
        made = call(**given)
        assert told(made) == told(expected), given
        assert made == expected or not hasattr(type(made), "__dataclass_fields__") or name == "Planner.plan"


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_with_other_numbers_import_the_same(name: str) -> None:
    whole = vars(getattr(T, name)(**{"size": 40} if "size" in TRANSFORMS[name] else some_of(name)))

    def imported(attributes: Mapping[str, Any]) -> dict[str, Any]:
        transform = stand_in(name, **{**whole, **attributes})
        first, last = ([T.ToTensor()], []) if name in ("Normalize", "RandomErasing") else ([], [T.ToTensor()])
        cropped = [] if "size" in attributes and name != "Resize" else [T.CenterCrop((40, 48))]
        order = [transform, *cropped] if name == "Resize" else [*cropped, transform]
        return Recipe.from_torchvision(T.Compose([*order[: len(order) - 1], *first, *order[-1:], *last])).fingerprint()

    expected = imported(TRANSFORMS[name])
    for attributes in written(TRANSFORMS[name]):
        assert imported(attributes) == expected, attributes


def some_of(name: str) -> dict[str, Any]:
    """Return arguments that a transform cannot do without."""
    needed = {"RandomRotation": "degrees", "RandomAffine": "degrees", "GaussianBlur": "kernel_size"}
    needed |= {"RandomPosterize": "bits", "RandomSolarize": "threshold", "RandomAdjustSharpness": "sharpness_factor"}
    given = {needed[name]: 1} if name in needed else {}
    return {"mean": (0.5,), "std": (0.5,)} if name == "Normalize" else given


def test_every_public_thing_that_takes_numbers_is_tried() -> None:
    stages = {name for name, each in vars(augment).items() if str(getattr(each, "__module__", "")).startswith("dalire")}
    public = {*dalirefurb.__all__, *dalirefurb._MOVED, *(name for name in stages if not name.startswith("_"))}
    assert public - EXAMPLES.keys() == OF_NO_NUMBER
    numeric = re.compile(r"\b(int|float|bool|Size|Range|Interval|Channels|Fill|Budget|Split|MagnitudeNoise)\b")
    for name in public & EXAMPLES.keys() - {"Loader", "Recipe", "TieredStore", "propose_coverage", "Rank"}:
        call, arguments = EXAMPLES[name]
        numbers = {
            parameter.name
            for parameter in inspect.signature(call).parameters.values()
            if numeric.search(str(parameter.annotation)) and not {"raw", "split"} & {parameter.name}
        }
        varied = {each: value for each, value in arguments.items() if [*others(value)]}
        assert numbers - {"channels", "cutout"} <= varied.keys() | {"shards", "drop_last", "revision"}, name


def test_single_precision_is_taken_for_what_it_is_exactly() -> None:
    given = augment.HorizontalFlip(np.float32(0.1))
    assert given.probability == 0.10000000149011612 == json.loads(json.dumps(given.fingerprint()))["probability"]


@pytest.mark.parametrize("truth", [True, np.True_, np.array(True), torch.tensor(True)])
@pytest.mark.parametrize(
    "call",
    [
        augment.HorizontalFlip,
        augment.Posterize,
        augment.CenterCrop,
        Output,
        simple,
        lambda truth: Output(SIZE, std=truth),
        lambda truth: Output(SIZE, channels=truth),
        lambda truth: augment.RandomResizedCrop(SIZE, scale=(truth, truth)),
        lambda truth: augment.RandomChoice([augment.Invert(), augment.Equalize()], (truth, 1)),
        lambda truth: augment.RandAugmentLayer(fill=truth),
        lambda truth: augment.RandomRotation(9, fill=(0, 0, truth)),
        lambda truth: augment.RandomErasing(value=truth),
        lambda truth: augment.RandomErasing(count=(1, truth)),
        lambda truth: Standard(8, batch_size=truth),
        lambda truth: Standard(truth, batch_size=1),
        lambda truth: Refurbish(8, batch_size=4, reuse_factor=truth),
        lambda truth: Evaluate(8, batch_size=4, coverage=truth),
        lambda truth: Prefetch(num_threads=truth),
        lambda truth: BadSamplePolicy(max_pixels=truth),
        lambda truth: Mix(truth),
        lambda truth: Mix(3, mixup=truth),
        lambda truth: simple(SIZE).at(truth),
        lambda truth: simple(SIZE).diversity(truth),
        lambda truth: MemoryStore(max_bytes=truth).open(StoreSpec((1, 1, 3), 1, {})),
        lambda truth: tune(SOURCE, simple(SIZE, raw=True), batch_size=truth),
        lambda truth: Loader(SOURCE, simple(SIZE, raw=True), INNER["planner"], rank=(0, truth)),
        lambda truth: Loader(SOURCE, simple(SIZE, raw=True), INNER["planner"]).set_epoch(truth),
    ],
)
def test_a_bool_is_no_number(call: Callable[[Any], Any], truth: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"True"):
        call(truth)


@dataclasses.dataclass(frozen=True)
class Tinted(augment.Stage):
    """A user's stage that takes numbers."""

    strength: float
    colours: tuple[float, ...]
    name: str = "tinted"

    def apply(self, images: Any, parameters: Mapping[str, Any]) -> Any:
        """Do nothing."""
        return images


def test_a_stage_of_the_users_own_takes_other_numbers_too() -> None:
    given, same = Tinted(np.float32(0.5), np.array([0.25, 0.5])), Tinted(0.5, (0.25, 0.5))
    assert given == same
    assert hash(given) == hash(same)
    assert json.dumps(given.fingerprint()) == json.dumps(same.fingerprint())


@pytest.mark.parametrize("value", ["a", None, {"a": np.int64(1)}, b"a", NOISE, range(3)])
def test_what_is_no_number_stays_as_it_is(value: Any) -> None:
    assert plain(value) is value
