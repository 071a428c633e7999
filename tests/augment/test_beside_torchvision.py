"""Is what is imported what torchvision and timm do: their images, where nothing is random, or else their distributions?

`benchmarks/competitors/build.py` shows how torchvision is had beside a torch for the CPU; timm is then
`pip install --no-deps timm`, with pyyaml, huggingface_hub and safetensors.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chi2_contingency

from dalirefurb import FileList, Loader, Recipe, Standard
from dalirefurb.augment import ColorJitter, RandAugmentLayer, RandomErasing, RandomResizedCrop, TrivialAugmentLayer
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import OPERATIONS, WIDE_OPERATIONS, BinnedTable, Chosen, Group
from dalirefurb.augment.policies.timm_operations import OPERATIONS as TIMMS
from dalirefurb.errors import ConfigurationError
from tests.augment.public_recipes import RECIPES, Torchvision
from tests.augment.test_importing_torchvision import ONE_BY_ONE
from tests.augment.torchvision_stand_ins import T
from tests.pictures import encode, picture

DRAWS = 20000
LEAST = 1e-4
"""Probability of a difference as large, below which two samples are not of one distribution."""


def _imported_torchvision() -> Any:
    """Import torchvision. Beside a torch without CUDA its compiled operators are declared, which no transform calls."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        torchvision.declared = library
    return torchvision


@pytest.fixture(scope="module")
def torchvision() -> Any:
    """Return torchvision with its transforms."""
    try:
        module = _imported_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed")
    import torchvision.transforms.v2  # noqa: F401

    return module


@pytest.fixture(scope="module")
def timm(torchvision: Any) -> Any:
    """Return timm with its data."""
    try:
        import timm
        import timm.data
    except ImportError:
        pytest.skip("timm is not installed")
    return timm


@pytest.fixture(params=["v1", "v2"])
def transforms(torchvision: Any, request: pytest.FixtureRequest) -> Any:
    return torchvision.transforms if request.param == "v1" else torchvision.transforms.v2


# Their objects are as the stand-ins


@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
@pytest.mark.parametrize(
    "name", [name for name, public in RECIPES.items() if isinstance(public, Torchvision) and not public.refused]
)
def test_public_recipes_are_imported_as_from_stand_ins(transforms: Any, name: str) -> None:
    public = RECIPES[name]
    assert isinstance(public, Torchvision)
    real, ours = (Recipe.from_torchvision(public.transforms(module), **public.arguments) for module in (transforms, T))
    assert real == ours


@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
@pytest.mark.parametrize(("make", "stage"), ONE_BY_ONE, ids=[stage.name for _, stage in ONE_BY_ONE])
def test_a_transform_is_a_stage_with_its_arguments(transforms: Any, make: Callable[[Any], Any], stage: Any) -> None:
    crop, tensor = transforms.CenterCrop(32), transforms.ToTensor()
    recipe = Recipe.from_torchvision([crop, transforms.Compose([make(transforms), tensor])])
    assert recipe.stages[2:] == (stage,)


CHANNELS: list[Callable[[Any], list[Any]]] = [
    lambda t: [t.ToTensor()],
    lambda t: [t.Grayscale(), t.ToTensor()],
    lambda t: [t.Grayscale(), t.Grayscale(3), t.ToTensor()],
    lambda t: [t.Grayscale(3), t.Grayscale(1), t.ToTensor(), t.Normalize((0.5,), (0.5,))],
    lambda t: [t.Lambda(lambda image: image.convert("RGB")), t.ToTensor(), t.Normalize((0.5,) * 3, (0.5,) * 3)],
    lambda t: [t.ColorJitter(0.4, 0.4, 0.4, 0.1), t.RandomGrayscale(0.5), t.RandAugment(), t.ToTensor()],
    lambda t: [t.RGB() if hasattr(t, "RGB") else t.Grayscale(3), t.ToTensor()],
]


@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("make", CHANNELS, ids=range(len(CHANNELS)))
def test_there_are_as_many_channels_as_theirs(transforms: Any, make: Callable[[Any], list[Any]], mode: str) -> None:
    theirs = transforms.Compose([transforms.CenterCrop(16), *make(transforms)])
    image = picture(0, height=20, width=24).convert(mode)
    recipe = Recipe.from_torchvision(theirs, channels=len(image.getbands()))
    assert recipe.output.channels == len(theirs(image))


def test_one_channel_is_normalized_by_three_means_as_theirs(torchvision: Any) -> None:
    for t in (torchvision.transforms, torchvision.transforms.v2):
        chain = [t.CenterCrop(8), t.Grayscale(), t.PILToTensor(), t.ConvertImageDtype(torch.float32)]
        theirs = t.Compose([*chain, t.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))])
        image = picture(0, height=20, width=24)
        if t is torchvision.transforms:
            with pytest.raises(RuntimeError, match="doesn't match"):
                theirs(image)
            with pytest.raises(ConfigurationError, match="Normalize of one channel by three numbers"):
                Recipe.from_torchvision(theirs)
        else:
            assert Recipe.from_torchvision(theirs).output.channels == len(theirs(image)) == 3


def test_weights_are_imported_with_and_without_calls(torchvision: Any) -> None:
    from torchvision.models import ResNet50_Weights

    weights = ResNet50_Weights.DEFAULT
    made = Recipe.from_torchvision(weights.transforms())
    assert Recipe.from_torchvision(weights.transforms) == Recipe.from_torchvision(weights) == made


# Their images


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write images without loss, landscape and portrait, larger and smaller than what is made of them."""
    folder = tmp_path_factory.mktemp("pictures")
    sides = [(300, 400), (401, 299), (260, 260), (120, 90), (64, 333), (511, 257)]
    for number, (height, width) in enumerate(sides):
        (folder / f"{number}.png").write_bytes(encode(picture(number, height=height, width=width), "PNG"))
    return sorted(folder.iterdir())


def _levels(images: torch.Tensor, recipe: Recipe) -> np.ndarray:
    mean, std = (torch.tensor(each)[:, None, None] for each in (recipe.output.means, recipe.output.stds))
    return ((images * std + mean) * 255).numpy()


def _differences(paths: Sequence[Path], recipe: Recipe, theirs: Callable[[Image.Image], torch.Tensor]) -> np.ndarray:
    """Return by how many levels the images of both differ, (n, 3, height, width)."""
    with Loader(FileList(paths, np.arange(len(paths))), recipe, Standard(len(paths), batch_size=len(paths))) as loader:
        ((images, labels),) = [(images.clone(), labels.clone()) for images, labels in loader]
    wanted = torch.stack([theirs(Image.open(paths[label]).convert("RGB")) for label in labels.tolist()])
    difference: np.ndarray = np.abs(_levels(images, recipe) - _levels(wanted, recipe))
    return difference


def _differs(paths: Sequence[Path], recipe: Recipe, theirs: Callable[[Image.Image], torch.Tensor]) -> float:
    """Return by how many levels they differ, at most."""
    return float(_differences(paths, recipe, theirs).max())


@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
@pytest.mark.parametrize("interpolation", ["BILINEAR", "BICUBIC", "LANCZOS"])
def test_torchvisions_evaluation_is_within_a_level(transforms: Any, paths: list[Path], interpolation: str) -> None:
    mode = transforms.InterpolationMode[interpolation]
    normalize = transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    chain = [transforms.Resize(80, mode), transforms.CenterCrop(64), transforms.ToTensor(), normalize]
    theirs = transforms.Compose(chain)
    assert _differs(paths, Recipe.from_torchvision(theirs), theirs) < 1.01


def test_nearest_pixels_are_theirs_but_where_two_are_as_near(torchvision: Any, paths: list[Path]) -> None:
    t = torchvision.transforms
    theirs = t.Compose([t.Resize((80, 72), t.InterpolationMode.NEAREST), t.ToTensor()])
    assert (_differences(paths, Recipe.from_torchvision(theirs), theirs) > 0.01).mean() < 0.05


def test_bilinear_pixels_are_within_a_level_but_those_at_the_border(torchvision: Any, paths: list[Path]) -> None:
    """Pillow leaves out what is beyond the border, DALI and kernels repeat the border there."""
    t = torchvision.transforms
    theirs = t.Compose([t.Resize((80, 72)), t.ToTensor()])
    differences = _differences(paths, Recipe.from_torchvision(theirs), theirs)
    assert differences[:, :, 1:-1, 1:-1].max() < 1.01
    assert 2 < differences.max() < 16


def test_the_transforms_of_weights_are_within_a_level(torchvision: Any, paths: list[Path]) -> None:
    from torchvision.models import ResNet50_Weights

    theirs = ResNet50_Weights.DEFAULT.transforms()
    assert _differs(paths, Recipe.from_torchvision(theirs), theirs) < 1.01


EVALUATIONS: list[dict[str, Any]] = [
    {"input_size": (3, 224, 224)},
    {"input_size": 96, "crop_pct": 0.95, "interpolation": "bicubic"},
    {"input_size": (3, 96, 64), "crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bicubic"},
    {"input_size": 48, "is_training": True, "no_aug": True, "interpolation": "bicubic"},
]


@pytest.mark.parametrize("arguments", EVALUATIONS, ids=range(len(EVALUATIONS)))
def test_timms_evaluation_is_within_a_level(timm: Any, paths: list[Path], arguments: dict[str, Any]) -> None:
    assert _differs(paths, Recipe.from_timm(**arguments), timm.data.create_transform(**arguments)) < 1.01


@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.RandomSolarize(100, p=1.0),
        lambda t: t.RandomPosterize(3, p=1.0),
        lambda t: t.RandomAdjustSharpness(2, p=1.0),
        lambda t: t.RandomEqualize(p=1.0),
        lambda t: t.Grayscale(3),
        lambda t: t.Pad(4, padding_mode="reflect"),
    ],
    ids=["solarize", "posterize", "sharpness", "equalize", "grey", "pad"],
)
def test_transforms_without_chance_are_within_a_level(
    transforms: Any, paths: list[Path], make: Callable[[Any], Any]
) -> None:
    one = make(transforms)
    crop = transforms.RandomCrop(72 if type(one).__name__ == "Pad" else 64)
    theirs = transforms.Compose([transforms.CenterCrop(64), one, crop, transforms.ToTensor()])
    assert _differs(paths, Recipe.from_torchvision(theirs), theirs) < 1.01


# Their distributions


def _same(ours: Mapping[str, Any] | Sequence[Any], theirs: Mapping[str, Any] | Sequence[Any]) -> None:
    """Compare how often each outcome comes."""
    outcomes = sorted({*ours, *theirs}, key=str)
    counts = np.array([[list(each).count(outcome) for outcome in outcomes] for each in (ours, theirs)])
    assert chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue > LEAST


def _same_numbers(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compare distributions of numbers in ten bins of equally many of both."""
    borders = np.unique(np.quantile(np.concatenate([ours, theirs]), np.linspace(0, 1, 11)[1:-1]))
    counts = np.array([np.bincount(np.digitize(each, borders), minlength=len(borders) + 1) for each in (ours, theirs)])
    assert chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue > LEAST


def _drawn(stage: Any, height: int, width: int) -> Mapping[str, np.ndarray]:
    uniforms = np.random.default_rng(5).random((DRAWS, stage.num_uniforms))
    drawn: Mapping[str, np.ndarray] = stage.draw(uniforms, np.full(DRAWS, height), np.full(DRAWS, width))
    return drawn


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - timm draws from it
    torch.manual_seed(3)


def _same_windows(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compare windows (row, column, height, width), (n, 4): each number, and area and ratio."""
    for mine, other in zip(ours.T, theirs.T, strict=True):
        _same_numbers(mine, other)
    _same_numbers(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    _same_numbers(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3])


@pytest.mark.parametrize(("height", "width"), [(300, 400), (60, 500)])
def test_crops_are_distributed_as_torchvisions_and_timms(timm: Any, torchvision: Any, height: int, width: int) -> None:
    recipe = Recipe.from_timm(is_training=True, scale=(0.2, 1.0), ratio=(0.5, 2.0), interpolation="random")
    stage = recipe.stages[1]
    assert isinstance(stage, RandomResizedCrop)
    drawn = _drawn(stage, height, width)
    ours = np.concatenate([drawn["start"], drawn["shape"]], axis=1)
    image = Image.new("RGB", (width, height))
    kinds = [torchvision.transforms.RandomResizedCrop, timm.data.transforms.RandomResizedCropAndInterpolation]
    for kind in kinds:
        _same_windows(ours, np.array([kind.get_params(image, (0.2, 1.0), (0.5, 2.0)) for _ in range(DRAWS)]))


def test_erased_windows_are_distributed_as_torchvisions(torchvision: Any) -> None:
    transform = torchvision.transforms.RandomErasing(1.0)
    image = torch.zeros(3, 60, 80)
    theirs = [transform.get_params(image, transform.scale, transform.ratio, [0.0])[:4] for _ in range(DRAWS)]
    drawn = _drawn(RandomErasing(1.0), 60, 80)["window"][:, 0]
    _same_windows(drawn, np.array(theirs))


@pytest.mark.parametrize("count", [1, 2])
def test_erased_pixels_are_distributed_as_timms(timm: Any, count: int) -> None:
    """How many are erased, and where the first and last row with one is."""
    *_, stage = Recipe.from_timm(is_training=True, re_prob=0.6, re_count=count).stages
    erase = timm.data.random_erasing.RandomErasing(0.6, mode="const", max_count=count, device="cpu")
    windows = _drawn(stage, 40, 50)["window"][:4000]

    def shown(erased: np.ndarray) -> tuple[int, int, int]:
        rows = np.flatnonzero(erased.any(axis=1))
        return int(erased.sum()), int(rows[0]) if len(rows) else -1, int(rows[-1]) if len(rows) else -1

    ours, theirs = [], []
    for of_image in windows:
        erased = np.zeros((40, 50), bool)
        for row, column, height, width in of_image:
            erased[row : row + height, column : column + width] = True
        ours.append(shown(erased))
        theirs.append(shown((erase(torch.ones(3, 40, 50))[0] == 0).numpy()))
    for mine, other in zip(np.array(ours).T, np.array(theirs).T, strict=True):
        _same_numbers(mine, other)


@pytest.mark.parametrize("kind", ["RandAugment", "TrivialAugmentWide"])
def test_operations_come_as_often_as_torchvisions(torchvision: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    auto_augment, theirs = torchvision.transforms.autoaugment, []
    monkeypatch.setattr(
        auto_augment, "_apply_op", lambda image, name, magnitude, **_: theirs.append((name, magnitude)) or image
    )
    transform, image = getattr(auto_augment, kind)(), Image.new("RGB", (331, 331))
    tensor = torchvision.transforms.ToTensor()
    while len(theirs) < DRAWS:
        transform(image)
    crop = torchvision.transforms.CenterCrop(64)
    layer = Recipe.from_torchvision([crop, transform, tensor]).stages[2]
    assert isinstance(layer, (RandAugmentLayer, TrivialAugmentLayer))
    choice = layer.choose(np.random.default_rng(5).random((DRAWS, layer.num_uniforms)))
    names = [layer.table.operations[number].name for number in choice.operations.tolist()]
    _same(names, [name for name, _ in theirs[:DRAWS]])


@pytest.mark.parametrize(
    ("operations", "policy", "num_bins"),
    [
        (OPERATIONS, "RandAugment", 31),
        (OPERATIONS, "AutoAugment", 10),
        (WIDE_OPERATIONS, "TrivialAugmentWide", 31),
        (WIDE_OPERATIONS, "TrivialAugmentWide", 27),
    ],
)
def test_the_magnitude_of_every_bin_is_torchvisions(
    torchvision: Any, operations: Any, policy: str, num_bins: int
) -> None:
    """Translations are by as many whole pixels, of several sides."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("without vectors PyTorch spaces numbers otherwise")
    table, bins = BinnedTable(operations, num_bins), np.arange(num_bins)
    for height, width in ((662, 331), (32, 224), (993, 1655)):
        size = () if policy == "TrivialAugmentWide" else ((height, width),)
        theirs = getattr(torchvision.transforms, policy)()._augmentation_space(num_bins, *size)
        for number, each in enumerate(operations):
            if not each.ranged:
                continue
            magnitudes, signed = theirs[each.name]
            assert signed == each.signed
            for negated in {False, each.signed}:
                choice = Chosen(np.full(num_bins, number), bins, np.full(num_bins, negated))
                sides = {"heights": np.full(num_bins, height), "widths": np.full(num_bins, width)}
                matrices = table.parameters(choice, **sides)["matrix"]
                wanted = magnitudes.tolist() if not negated else [-magnitude for magnitude in magnitudes.tolist()]
                if each.name in ("TranslateX", "TranslateY"):
                    assert matrices[:, int(each.name == "TranslateY"), 2].tolist() == [
                        -int(pixels) for pixels in wanted
                    ]
                elif each.name == "Posterize":
                    assert matrices[:, 0, 0].tolist() == [256 - 2 ** (8 - bits) for bits in wanted]
                else:
                    exact = np.array([each.matrix(one) for one in wanted])
                    assert np.allclose(matrices[:, :2, :2], exact[:, :2, :2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-m5-n3-p0.7", "rand-m9-t3a"])
def test_operations_come_as_often_as_timms(timm: Any, config: str) -> None:
    policy, theirs = timm.data.auto_augment.rand_augment_transform(config, {"translate_const": 100}), []
    for operation in policy.ops:
        operation.aug_fn = lambda image, *_, name=operation.name, **__: theirs.append(TIMMS[name].group.name) or image
    image, layers = Image.new("RGB", (8, 8)), policy.num_layers
    for _ in range(DRAWS // layers):
        policy(image)
    theirs += [Group.IDENTITY.name] * (DRAWS // layers * layers - len(theirs))
    stage = Recipe.from_timm(is_training=True, auto_augment=config).stages[3]
    assert isinstance(stage, OperationLayer)
    _same([Group(group).name for group in _drawn(stage, 64, 64)["group"].tolist()], theirs)


HAPPENING: list[tuple[Callable[[Any], Any], str, int]] = [
    (lambda t: t.RandomHorizontalFlip(0.3), "mirror", 1),
    (lambda t: t.RandomVerticalFlip(0.3), "mirror", 1),
    (lambda t: t.RandomGrayscale(0.2), "grey", 1),
    (lambda t: t.RandomApply([t.RandomInvert(1.0)], p=0.8), "skipped", 0),
    (lambda t: t.RandomSolarize(1, 0.1), "skipped", 0),
]


@pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")
@pytest.mark.parametrize(
    ("make", "parameter", "value"), HAPPENING, ids=["flip", "vertical", "grey", "apply", "solarize"]
)
def test_what_happens_at_random_happens_as_often(transforms: Any, make: Any, parameter: str, value: int) -> None:
    transform, image = make(transforms), Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3) * 20)
    theirs = [transform(image).tobytes() != image.tobytes() for _ in range(DRAWS)]
    stage = Recipe.from_torchvision([transforms.CenterCrop(2), transform, transforms.ToTensor()]).stages[2]
    _same((_drawn(stage, 2, 2)[parameter] == value).tolist(), theirs)


def test_colour_jitter_is_distributed_as_torchvisions(torchvision: Any) -> None:
    transform = torchvision.transforms.ColorJitter(0.4, 0.3, 0.2, 0.1)
    ranges = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
    theirs = [transform.get_params(*ranges) for _ in range(DRAWS)]
    tensor, crop = torchvision.transforms.ToTensor(), torchvision.transforms.CenterCrop(64)
    stage = Recipe.from_torchvision([crop, transform, tensor]).stages[2]
    assert isinstance(stage, ColorJitter)
    drawn = _drawn(stage, 64, 64)
    orders = drawn["operation"]
    _same([tuple(order) for order in orders.tolist()], [tuple(order.tolist()) for order, *_ in theirs])
    for number in range(4):
        ours = drawn["factor"][:, :, 0, 0][orders == number]
        _same_numbers(ours, np.array([factors[number] for _, *factors in theirs]))
