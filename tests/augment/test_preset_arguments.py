"""Do the arguments of presets change what is served as they say, by kernels as by DALI's operators?"""

from __future__ import annotations

import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dalirefurb import (
    Arrays,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    auto_augment,
    evaluate,
    rand_augment,
    simple,
    timm_augment,
    trivial_augment,
)
from dalirefurb.augment import CenterCrop, HorizontalFlip, RandAugmentLayer, RandomCrop, RandomResizedCrop, Resize
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.errors import ConfigurationError
from tests.pictures import picture, write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
AUGMENTING = [rand_augment, auto_augment, trivial_augment, timm_augment]
PRESETS = [simple, evaluate, *AUGMENTING]
KERNELS: list[Kernels] = ["numba", "dali"]
HEIGHT, WIDTH = 48, 32
AS_LEVELS: dict[str, Any] = {"mean": (0, 0, 0), "std": (1 / 255, 1 / 255, 1 / 255)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=12))


def served(
    source: ImageFolder | Arrays, recipe: Recipe, kernels: Kernels, *, epochs: int = 2, store: bool = False
) -> torch.Tensor:
    rows = min(6, len(source))
    planner = (
        Refurbish(len(source), batch_size=rows, reuse_factor=2) if store else Standard(len(source), batch_size=rows)
    )
    loader = Loader(
        source, recipe, planner, MemoryStore() if store else None, kernels=kernels, prefetch=Prefetch(num_threads=1)
    )
    with loader:
        return torch.cat([images.clone() for _ in range(epochs) for images, _ in loader])


def arrays(height: int = HEIGHT, width: int = WIDTH, count: int = 12) -> Arrays:
    return Arrays(
        np.stack([np.asarray(picture(k, height=height, width=width)) for k in range(count)]), np.arange(count)
    )


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.__name__)
def test_help_tells_what_each_argument_means(preset: Any) -> None:
    told = inspect.getdoc(preset)
    assert told is not None
    for name in inspect.signature(preset).parameters:
        assert f"    {name}: " in told
    assert max(map(len, told.splitlines())) <= 120


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("preset", [simple, *AUGMENTING], ids=lambda preset: preset.__name__)
def test_the_crops_interpolation_can_be_chosen(folder: ImageFolder, preset: Any, kernels: Kernels) -> None:
    recipe = preset(32, crop_interpolation="random")
    assert recipe.stages[1] == RandomResizedCrop(32, interpolation="random")
    assert preset(32, crop_interpolation="bilinear") == preset(32)
    if preset is simple:
        some = {each: served(folder, preset(32, crop_interpolation=each), kernels) for each in ("bilinear", "bicubic")}
        drawn = served(folder, recipe, kernels)
        alike = [[torch.equal(*pair) for pair in zip(drawn, images, strict=True)] for images in some.values()]
        assert all(one != other for one, other in zip(*alike, strict=True))
        assert 0 < sum(alike[0]) < len(drawn)


# Two sides


@pytest.mark.parametrize(
    ("raw", "order"),
    [
        (False, "paper"),
        (True, "crop_last"),
        *(pytest.param(*each, marks=pytest.mark.weekly) for each in ((False, "crop_last"), (True, "paper"))),
    ],
)
def test_images_of_two_sides_are_dalis_and_the_same_cached_and_not(folder: ImageFolder, raw: bool, order: Any) -> None:
    source = arrays() if raw else folder
    recipe = rand_augment((HEIGHT, WIDTH), order=order, raw=raw, **AS_LEVELS)
    ours, theirs = (served(source, recipe, kernels) for kernels in KERNELS)
    assert ours.shape == theirs.shape == (24, 3, HEIGHT, WIDTH)
    if raw:  # else a level more or less of the resize is spread by what comes after, such as Equalize
        assert ((ours - theirs).abs() > 1).float().mean() < 0.02
    assert torch.equal(served(source, recipe, "numba", store=True).sort(0)[0].mean(0), ours_cached(source, recipe))


def ours_cached(source: ImageFolder | Arrays, recipe: Recipe) -> torch.Tensor:
    """What the plan with a store serves, without one."""
    planner = Refurbish(len(source), batch_size=6, reuse_factor=2)
    with pytest.warns(UserWarning, match="there is no store"):
        loader = Loader(source, recipe, planner, prefetch=Prefetch(num_threads=1), kernels="numba")
    with loader:
        return torch.cat([images.clone() for _ in range(2) for images, _ in loader]).sort(0)[0].mean(0)


@pytest.mark.parametrize("kernels", KERNELS)
def test_two_sides_are_height_and_width_of_the_window_that_is_taken(kernels: Kernels) -> None:
    source = arrays(60, 90)
    recipe = Recipe([CenterCrop((20, 40))], Output((20, 40), **AS_LEVELS), 0)
    images = served(source, recipe, kernels, epochs=1)
    wanted = np.stack([np.asarray(picture(k, height=60, width=90)) for k in range(12)])[:, 20:40, 25:65]
    assert {image.numpy().tobytes() for image in images} == {
        image.transpose(2, 0, 1).astype(np.float32).tobytes() for image in wanted
    }


@pytest.mark.parametrize("sides", [(56, 112), (112, 56)])
def test_what_a_crop_leaves_off_is_of_the_shorter_side(sides: tuple[int, int]) -> None:
    height, width = sides
    _, crop, *_, last, _ = rand_augment(sides, order="crop_last").stages
    assert (crop, last) == (RandomResizedCrop((height + 2, width + 2)), RandomCrop(sides, margin=2))
    assert simple(sides, raw=True).stages[0] == RandomCrop(sides, margin=14, padding=7)
    assert rand_augment(28, order="crop_last").stages[1] == RandomResizedCrop(30)
    assert rand_augment(224, order="crop_last").stages[1] == RandomResizedCrop(232)
    assert simple(4, raw=True).stages[0] == RandomCrop(4, margin=2, padding=1)


@pytest.mark.parametrize("kernels", KERNELS)
def test_two_equal_sides_are_one(folder: ImageFolder, kernels: Kernels) -> None:
    assert rand_augment((32, 32)) == rand_augment(32)
    assert rand_augment((32, 32)).fingerprint() == rand_augment(32).fingerprint()
    assert torch.equal(served(folder, simple((32, 32)), kernels), served(folder, simple(32), kernels))


# Resizing for evaluation


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_both_sides_can_be_resized_to_as_pillow_does(kernels: Kernels, interpolation: Any, tmp_path: Path) -> None:
    """Anti-aliased, and without regard to the aspect ratio."""
    (tmp_path / "a").mkdir()
    image = Image.fromarray(np.asarray(picture(1, height=120, width=200)))
    image.save(tmp_path / "a" / "b.png")
    source = ImageFolder(tmp_path)
    recipe = evaluate((50, 40), resize=(60, 44), interpolation=interpolation, **AS_LEVELS)
    assert recipe.stages[1] == Resize((60, 44), interpolation)
    (ours,) = served(source, recipe, kernels, epochs=1).numpy()
    method = {"bilinear": Image.Resampling.BILINEAR, "nearest": Image.Resampling.NEAREST}[interpolation]
    wanted = np.asarray(image.resize((44, 60), method))[5:55, 2:42].transpose(2, 0, 1).astype(int)
    # The nearest of two pixels that are as near may be another one.
    assert (np.abs(ours - wanted) > 1).mean() <= (0.05 if interpolation == "nearest" else 0)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_shorter_side_of_ones_own_is_resized_to(folder: ImageFolder, kernels: Kernels) -> None:
    assert evaluate(32, resize=32).stages[1:] == (Resize(32), CenterCrop(32))
    assert evaluate((56, 28)).stages[1:] == (Resize((64, 32)), CenterCrop((56, 28)))
    narrow, wide = (served(folder, evaluate(16, resize=side), kernels, epochs=1) for side in (16, 40))
    assert not torch.equal(narrow, wide)


def test_both_sides_differ_from_the_shorter_one_also_if_they_are_equal() -> None:
    assert Resize((64, 64)).fixed_size == (64, 64)
    assert Resize(64).fixed_size is None
    assert Resize((64, 64)) != Resize(64)
    assert json.dumps(Resize((64, 64)).fingerprint()) != json.dumps(Resize(64).fingerprint())


# Channels and types


GREY = [
    ("float32", False, False),
    ("float32", True, True),
    ("float16", True, False),
    ("float16", False, True),
    ("bfloat16", False, False),
    ("bfloat16", True, True),
]
"""Each pair of a type, whether channels are last, and whether images are stored; all triples are tried weekly."""


@pytest.mark.parametrize(
    ("dtype", "channels_last", "stored"),
    [
        pytest.param(*each, marks=[] if each in GREY else pytest.mark.weekly)
        for each in itertools.product(("float32", "float16", "bfloat16"), (False, True), (False, True))
    ],
)
def test_grey_images_are_made_of_the_colours(dtype: Any, channels_last: bool, stored: bool) -> None:
    source = arrays()
    settings: dict[str, Any] = {"dtype": dtype, "channels_last": channels_last}
    grey = simple((HEIGHT, WIDTH), raw=True, channels=1, mean=0, std=1 / 255, **settings)
    colour = simple((HEIGHT, WIDTH), raw=True, **AS_LEVELS)
    ours, theirs = (served(source, grey, kernels, store=stored) for kernels in KERNELS)
    assert torch.equal(ours, theirs)
    assert ours.shape == (24, 1, HEIGHT, WIDTH)
    assert ours.dtype == getattr(torch, dtype)
    levels = served(source, colour, "numba", store=stored).numpy().transpose(0, 2, 3, 1).astype(np.uint8)
    wanted = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in levels])
    assert np.abs(ours[:, 0].float().numpy() - wanted).max() <= 1  # Pillow's weights have one bit more


def test_what_is_grey_stays_as_it_is() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    recipe = evaluate(16, raw=True, channels=1, mean=0, std=1 / 255)
    for kernels in KERNELS:
        assert np.array_equal(served(Arrays(levels, [0]), recipe, kernels, epochs=1)[0, 0].numpy(), levels[0])


def test_of_three_means_one_channel_has_the_average() -> None:
    output = rand_augment(channels=1).output
    assert (output.mean, output.std) == (pytest.approx((0.449,)), pytest.approx((0.226,)))
    assert Output(8, mean=0.5, std=0.25) == Output(8, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_bfloat16_is_float32_rounded_as_torch_does(channels_last: bool, stored: bool) -> None:
    source, recipe = arrays(), simple((HEIGHT, WIDTH), raw=True, channels_last=channels_last)
    wanted = served(source, recipe, "numba", store=stored).to(torch.bfloat16)
    for kernels in KERNELS:
        ours = served(source, recipe.with_output(dtype="bfloat16"), kernels, store=stored)
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, wanted)


def test_a_kernels_bfloat16_is_torchs_for_any_number() -> None:
    pytest.importorskip("numba")
    from dalirefurb.kernels.program import brain_floats

    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    numbers = bits.view(np.float32)
    numbers = np.concatenate([numbers[np.isfinite(numbers)], np.float32([0, -0.0, 1.00390625, 1.01171875, 3.38e38])])
    wanted = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(brain_floats(numbers), wanted)


# Random stages


@pytest.mark.parametrize("preset", [simple, *AUGMENTING], ids=lambda preset: preset.__name__)
def test_scale_ratio_and_flip_reach_their_stages(preset: Any) -> None:
    stages = preset(32, scale=(0.5, 0.6), ratio=(1, 2), flip=0.25).stages
    assert RandomResizedCrop(32, (0.5, 0.6), (1, 2)) in stages
    assert HorizontalFlip(0.25) in stages


@pytest.mark.parametrize("kernels", KERNELS)
def test_without_chance_every_image_is_mirrored_or_none(kernels: Kernels) -> None:
    source = arrays(32, 32)
    kept, mirrored = (
        served(source, Recipe([HorizontalFlip(flip)], Output(32), 0), kernels, epochs=1) for flip in (0.0, 1.0)
    )
    assert torch.equal(mirrored, kept.flip(3))


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(
            preset, id=preset.__name__, marks=[] if preset in (rand_augment, timm_augment) else pytest.mark.weekly
        )
        for preset in AUGMENTING
    ],
)
def test_fill_is_what_is_seen_beyond_the_border(preset: Any) -> None:
    source = Arrays(np.full((40, 32, 32, 3), 200, np.uint8), np.arange(40))
    recipe = preset(32, raw=True, order="paper", fill=(9, 99, 199), split=0, **AS_LEVELS)
    layers = [stage for stage in recipe.stages if hasattr(stage, "fill")]
    recipe = Recipe(layers, recipe.output, 0)
    ours, theirs = (served(source, recipe, kernels, epochs=1) for kernels in KERNELS)
    assert (ours != theirs).float().mean() < 0.1  # Equalize is another where pictures are as small
    shown = {tuple(pixel) for pixel in ours.permute(0, 2, 3, 1).reshape(-1, 3).tolist()}
    assert (9, 99, 199) in shown
    black = Recipe([*preset(32, raw=True, order="paper").stages[2:]], recipe.output, 0)
    assert (9, 99, 199) not in {
        tuple(pixel) for pixel in served(source, black, "numba", epochs=1).permute(0, 2, 3, 1).reshape(-1, 3).tolist()
    }


def test_magnitudes_are_among_as_many_bins_as_are_said() -> None:
    assert rand_augment(magnitude=5, num_magnitude_bins=11).stages[3] == RandAugmentLayer(
        "rand_augment_1", magnitude=5, num_magnitude_bins=11
    )
    with pytest.raises(ConfigurationError, match=r"magnitude must be an int in 0\.\.10, got 11"):
        rand_augment(magnitude=11, num_magnitude_bins=11)


@pytest.mark.parametrize(
    ("preset", "arguments"),
    [
        (rand_augment, {"size": (32, 33)}),
        (rand_augment, {"scale": (0.5, 1.0)}),
        (rand_augment, {"ratio": (1.0, 1.0)}),
        (rand_augment, {"flip": 0.4}),
        (rand_augment, {"layers": 1}),
        (rand_augment, {"magnitude": 8}),
        (rand_augment, {"num_magnitude_bins": 30}),
        (auto_augment, {"policy": "cifar10"}),
        (trivial_augment, {"num_magnitude_bins": 30}),
        (timm_augment, {"config": "rand-m8"}),
        (timm_augment, {"color_jitter": 0.1}),
        *((preset, {"order": "crop_last"}) for preset in AUGMENTING),
        *((preset, {"interpolation": "bilinear"}) for preset in AUGMENTING[:3]),
        (timm_augment, {"interpolation": "nearest"}),
        *((preset, {"fill": 130}) for preset in AUGMENTING),
        (rand_augment, {"channels": 1}),
        (rand_augment, {"dtype": "bfloat16"}),
        (rand_augment, {"mean": 0.5}),
        (rand_augment, {"std": 0.5}),
    ],
)
def test_fingerprints_tell_each_argument(preset: Any, arguments: Any) -> None:
    changed = preset(**{"size": 32, **arguments}).fingerprint()
    assert changed != preset(32).fingerprint()
    assert json.loads(json.dumps(changed)) == changed


def test_fingerprints_of_before_hold() -> None:
    """What stores and states of earlier versions were made with."""
    assert rand_augment(32).fingerprint() == {
        "stages": [
            {"stage": "Decode", "version": 1, "name": "decode"},
            {
                "stage": "RandomResizedCrop",
                "version": 1,
                "size": 32,
                "scale": [0.08, 1.0],
                "ratio": [0.75, 4 / 3],
                "interpolation": "bilinear",
                "name": "random_resized_crop",
            },
            {"stage": "HorizontalFlip", "version": 1, "probability": 0.5, "name": "flip"},
            *(
                {
                    "stage": "RandAugmentLayer",
                    "version": 1,
                    "name": f"rand_augment_{layer}",
                    "interpolation": "nearest",
                    "fill": 0,
                    "magnitude": 9,
                    "num_magnitude_bins": 31,
                }
                for layer in (1, 2)
            ),
        ],
        "split": 4,
        "output": {"size": 32, "dtype": "float32", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }


@pytest.mark.parametrize(
    ("preset", "arguments", "message"),
    [
        (simple, {"size": "224"}, r"size must be a positive integer, or two as \(height, width\), got '224': pass the"),
        (simple, {"size": 224.0}, r"size must be a positive integer, or two as \(height, width\), got 224\.0"),
        (simple, {"size": (224,)}, r"got \(224,\)"),
        (simple, {"size": (3, 224, 224)}, r"got \(3, 224, 224\)"),
        (simple, {"scale": 0.5}, r"random_resized_crop: scale must be two numbers with 0 < low <= high <= 1, got 0\.5"),
        (simple, {"scale": (0.5, 2)}, r"scale must be two numbers .* <= 1, got \(0\.5, 2\)"),
        (simple, {"ratio": (2, 1)}, r"ratio must be two finite numbers with 0 < low <= high, got \(2, 1\)"),
        (simple, {"scale": (0.5, 1), "raw": True}, r"scale must be left out with raw=True, .* got \(0\.5, 1\)"),
        (simple, {"ratio": (1, 1), "raw": True}, r"ratio must be left out with raw=True, .* got \(1, 1\)"),
        (simple, {"crop_interpolation": "bicubic", "raw": True}, "crop_interpolation must be left out with raw=True"),
        (simple, {"flip": 2}, r"flip: probability must be a number in 0\.\.1, got 2"),
        (simple, {"channels": 4}, "channels must be 3, or 1 for grey images, got 4"),
        (simple, {"dtype": torch.float16}, r"dtype must be 'float32', 'float16' or 'bfloat16', got torch\.float16"),
        (simple, {"channels": 1, "mean": (0.5, 0.5)}, r"must be one number each, std positive, got \(0\.5, 0\.5\)"),
        (simple, {"mean": "imagenet"}, "mean and std must be three numbers each, std positive, got imagenet"),
        (rand_augment, {"fill": 256}, r"fill must be a level in 0 \.\. 255, or 3 of them, got 256"),
        (rand_augment, {"fill": (0.5,) * 3}, r"fill must be a level in 0 \.\. 255, or 3 of them, got \(0\.5"),
        (rand_augment, {"fill": None}, r"fill must be a level .*, got None: use 0 for black"),
        (rand_augment, {"interpolation": "bicubic"}, 'interpolation must be "nearest" or "bilinear", got \'bicubic\''),
        (
            evaluate,
            {"interpolation": "cubic"},
            'resize: interpolation must be "nearest", "bilinear", "bicubic", "lanczos"',
        ),
        (evaluate, {"resize": 1.5}, r"resize: size must be a positive integer, or two as \(height, width\), got 1\.5"),
        (
            evaluate,
            {"interpolation": "random"},
            "interpolation must be the same for all images, got 'random': pass such",
        ),
        (
            evaluate,
            {"split": 1, "raw": True},
            r"split must be a stage's name or a count of partial stages in 0\.\.0, got 1",
        ),
        (evaluate, {"resize": 256, "raw": True}, "resize must be None with raw=True, where arrays stay as they are"),
        (
            evaluate,
            {"interpolation": "bicubic", "raw": True},
            "interpolation must be left out with raw=True, where arr",
        ),
        (evaluate, {"size": 64, "resize": (32, 64)}, "center_crop: images must have at least 64 x 64 pixels, got 32"),
    ],
)
def test_arguments_that_cannot_work_are_refused(preset: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        preset(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda wrong: rand_augment(magnitude=wrong), r"magnitude must be an int in 0..30, got"),
        (lambda wrong: rand_augment(num_magnitude_bins=wrong), "num_magnitude_bins must be an int of at least 2, got"),
        (lambda wrong: RandomCrop(32, 4, padding=wrong), "random_crop: padding must be an int of at least 0, got"),
        (lambda wrong: rand_augment(channels=wrong), "channels must be 3, or 1 for grey images, got"),
        (lambda wrong: simple(32, raw=True, scale=wrong), "scale must be left out with raw=True"),
        (lambda wrong: simple(32, ratio=(1, np.inf)), "ratio must be two finite numbers with 0 < low <= high, got"),
    ],
)
@pytest.mark.parametrize("wrong", [1.0, "1", True, None])
def test_what_is_no_such_number_is_refused(make: Any, message: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(wrong)


def test_what_is_left_out_of_arrays_may_be_given_as_it_is() -> None:
    published = {"scale": (8 / 100, 1.0), "ratio": (0.75, 4 / 3), "crop_interpolation": "bilinear"}
    assert simple(32, raw=True, **published) == simple(32, raw=True)  # type: ignore[arg-type]


def test_numpys_integers_are_integers() -> None:
    wanted = rand_augment(magnitude=5, num_magnitude_bins=11)
    given = rand_augment(magnitude=np.int64(5), num_magnitude_bins=np.int64(11))  # type: ignore[arg-type]
    assert json.dumps(given.fingerprint()) == json.dumps(wanted.fingerprint())


@pytest.mark.parametrize("make", [simple, evaluate, rand_augment])
def test_raw_is_true_or_false(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="raw must be True or False, got 'no': True is for arrays"):
        make(32, raw="no")
