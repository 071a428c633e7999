"""Are the operations Pillow's, at every magnitude, and drawn as RandAugment says?"""

from __future__ import annotations

import numpy as np
import pytest
import skimage.data
from nvidia.dali import fn, types
from nvidia.dali.pipeline import pipeline_def
from PIL import Image, ImageEnhance, ImageOps
from scipy.stats import chisquare

from dalirefurb.augment.operations import OPERATIONS, Choice, Group, OperationTable
from dalirefurb.augment.rand_augment import RandAugmentLayer
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import uniforms

NUM_BINS = 31
NAMES = [operation.name for operation in OPERATIONS]
WARPS = [operation.name for operation in OPERATIONS if operation.group is Group.WARP]
LEVELS_FROM_PILLOW = {
    "Identity": 0,
    "TranslateX": 0,
    "TranslateY": 0,
    "Contrast": 1,
    "Brightness": 1,
    "Color": 2,
    "Sharpness": 1,
    "Posterize": 0,
    "Solarize": 0,
    "AutoContrast": 1,
}


def _pictures() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    photo = Image.fromarray(skimage.data.astronaut())
    cat = Image.fromarray(skimage.data.chelsea())
    return {
        "photo": np.asarray(photo.resize((130, 97))),
        "cat": np.asarray(cat.resize((331, 120))),
        "noise": rng.integers(0, 256, (64, 61, 3), np.uint8),
        "flat noise": (rng.random((50, 40, 3)) ** 3 * 100 + 60).astype(np.uint8),
        "one pixel": np.full((1, 1, 3), 77, np.uint8),
        "one row": rng.integers(0, 256, (1, 9, 3), np.uint8),
        "one column": rng.integers(0, 256, (9, 1, 3), np.uint8),
        "two rows": rng.integers(0, 256, (2, 3, 3), np.uint8),
        "nine pixels": rng.integers(0, 256, (3, 3, 3), np.uint8),
        "constant": np.full((20, 30, 3), (200, 0, 255), np.uint8),
    }


PICTURES = _pictures()
PHOTOS = ("photo", "cat")


def _graph(layer: RandAugmentLayer, device: str = "cpu"):
    @pipeline_def(enable_conditionals=True)
    def graph():
        images = fn.external_source(name="images", dtype=types.UINT8, ndim=3, layout="HWC")
        group = fn.external_source(name="group", dtype=types.INT32, ndim=0)
        matrix = fn.external_source(name="matrix", dtype=types.FLOAT, ndim=2)
        images = images.gpu() if device == "gpu" else images
        return layer.apply(images, {"group": group, "matrix": matrix})

    return graph(batch_size=512, num_threads=2, device_id=None, prefetch_queue_depth=1)


def _run(pipeline, pictures, parameters):
    pipeline.feed_input("images", pictures)
    for name, array in parameters.items():
        pipeline.feed_input(name, array)
    (output,) = pipeline.run()
    assert output.layout() == "HWC"
    return [np.array(output[row]) for row in range(len(output))]


@pytest.fixture(scope="module")
def pipeline():
    return _graph(RandAugmentLayer())


@pytest.fixture(scope="module")
def bilinear_pipeline():
    return _graph(RandAugmentLayer(interpolation="bilinear", fill=(10, 20, 30)))


def _lookup(name: str, keys: list[tuple[int, bool]], picture: np.ndarray):
    bins, negated = np.array(keys).T
    sizes = np.full((2, len(keys)), [[picture.shape[0]], [picture.shape[1]]])
    return OperationTable(OPERATIONS, NUM_BINS).parameters(
        Choice(np.full(len(keys), NAMES.index(name)), bins, negated.astype(bool)),
        heights=sizes[0],
        widths=sizes[1],
    )


def _keys(name: str) -> list[tuple[int, bool]]:
    signs = (False, True) if OPERATIONS[NAMES.index(name)].signed else (False,)
    return [(magnitude_bin, sign) for magnitude_bin in range(NUM_BINS) for sign in signs]


def _source(name: str, magnitude_bin: int, negated: bool, width: int, height: int) -> np.ndarray:
    """The affine map from destination to source as torchvision publishes it, shape (2, 3)."""
    strength = (-1 if negated else 1) * magnitude_bin / (NUM_BINS - 1)
    if name == "ShearX":
        return np.array([[1, 0.3 * strength, 0], [0, 1, 0]])
    if name == "ShearY":
        return np.array([[1, 0, 0], [0.3 * strength, 1, 0]])
    if name in ("TranslateX", "TranslateY"):
        side = width if name == "TranslateX" else height
        pixels = (150 * side * magnitude_bin) // (331 * (NUM_BINS - 1)) * (-1 if negated else 1)
        return np.array([[1, 0, -pixels * (name == "TranslateX")], [0, 1, -pixels * (name == "TranslateY")]])
    angle = np.deg2rad(30 * strength)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.array([width / 2, height / 2])
    return np.column_stack([turn, centre - turn @ centre])


def _pillow(name: str, picture: np.ndarray, magnitude_bin: int, negated: bool, **warp) -> np.ndarray:
    image = Image.fromarray(picture)
    strength = magnitude_bin / (NUM_BINS - 1)
    signed = -strength if negated else strength
    if name in WARPS:
        matrix = _source(name, magnitude_bin, negated, image.width, image.height)
        if name == "Rotate" and not warp:
            return np.asarray(image.rotate(30 * signed, Image.Resampling.NEAREST, fillcolor=(0, 0, 0)))
        mode, fill = warp.get("mode", Image.Resampling.NEAREST), warp.get("fill", (0, 0, 0))
        return np.asarray(image.transform(image.size, Image.Transform.AFFINE, tuple(matrix.flat), mode, fillcolor=fill))
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return np.asarray(getattr(ImageEnhance, name)(image).enhance(1 + 0.9 * signed))
    unsigned = {
        "Identity": lambda: image,
        "Posterize": lambda: ImageOps.posterize(image, 8 - round(magnitude_bin / ((NUM_BINS - 1) / 4))),
        "Solarize": lambda: ImageOps.solarize(image, 255 - 255 * strength),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
    }
    return np.asarray(unsigned[name]())


def _differences(pipeline, name: str, picture: np.ndarray, **warp) -> np.ndarray:
    """Absolute differences from Pillow, shape (keys, height, width, 3)."""
    keys = _keys(name)
    got = _run(pipeline, [picture] * len(keys), _lookup(name, keys, picture))
    wanted = [_pillow(name, picture, *key, **warp) for key in keys]
    return np.abs(np.stack(got).astype(int) - np.stack(wanted))


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("name", LEVELS_FROM_PILLOW)
def test_an_operation_is_pillows_to_the_stated_levels_at_every_magnitude(pipeline, name, kind):
    differences = _differences(pipeline, name, PICTURES[kind])
    assert differences.max() <= LEVELS_FROM_PILLOW[name]
    if name in ("Brightness", "Contrast", "AutoContrast") and differences[0].size > 1000:
        assert (differences > 0).mean() < 0.05
    if name == "Color":
        assert (differences > 1).mean() < 0.001


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("name", WARPS)
def test_a_warp_shows_at_every_pixel_the_nearest_source_or_one_that_is_as_near(pipeline, name, kind):
    picture = PICTURES[kind]
    height, width = picture.shape[:2]
    padded = np.pad(picture, ((1, 1), (1, 1), (0, 0)))
    keys = _keys(name)
    rows, columns = np.mgrid[:height, :width] + 0.5
    for key, got in zip(keys, _run(pipeline, [picture] * len(keys), _lookup(name, keys, picture)), strict=True):
        matrix = _source(name, *key, width, height)
        x = matrix[0, 0] * columns + matrix[0, 1] * rows + matrix[0, 2]
        y = matrix[1, 0] * columns + matrix[1, 1] * rows + matrix[1, 2]
        explained = np.zeros((height, width), bool)
        for nudge_x in (-1e-3, 1e-3):
            for nudge_y in (-1e-3, 1e-3):
                column = np.clip(np.floor(x + nudge_x).astype(int), -1, width) + 1
                row = np.clip(np.floor(y + nudge_y).astype(int), -1, height) + 1
                explained |= (got == padded[row, column]).all(axis=2)
        assert explained.all(), key


@pytest.mark.parametrize("name", WARPS)
def test_a_warp_of_a_photograph_differs_from_pillows_in_few_pixels(pipeline, name):
    for kind in PHOTOS:
        differing = (_differences(pipeline, name, PICTURES[kind]) > 0).any(axis=3).mean(axis=(1, 2))
        assert differing.mean() < 0.01
        assert differing.max() < 0.1


@pytest.mark.parametrize("name", WARPS)
def test_a_bilinear_warp_is_near_pillows_away_from_the_borders(bilinear_pipeline, name):
    photo = PICTURES["photo"]
    fill = (10, 20, 30)
    differences = _differences(bilinear_pipeline, name, photo, mode=Image.Resampling.BILINEAR, fill=fill).max(axis=3)
    assert np.mean(differences > 4) < 0.02
    assert differences[0].max() == 0


def test_equalize_is_within_two_levels_of_pillows_from_224_pixels_on(pipeline):
    for photo in (skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee()):
        picture = np.asarray(Image.fromarray(photo).resize((224, 224)))
        assert _differences(pipeline, "Equalize", picture).max() <= 2


def test_equalize_leaves_one_pixel_and_constant_pictures_alone(pipeline):
    for kind in ("one pixel", "constant"):
        assert _differences(pipeline, "Equalize", PICTURES[kind]).max() == 0


def test_pixels_do_not_depend_on_the_other_samples_of_the_batch(pipeline):
    layer = RandAugmentLayer()
    pictures = list(PICTURES.values()) * 8
    indices = np.arange(len(pictures))
    heights, widths, _ = np.array([picture.shape for picture in pictures]).T
    numbers = uniforms(0, layer.name, indices, indices, 2)
    together = _run(pipeline, pictures, layer.draw(numbers, heights, widths))
    for row in range(0, len(pictures), 7):
        only = slice(row, row + 1)
        (alone,) = _run(pipeline, pictures[only], layer.draw(numbers[only], heights[only], widths[only]))
        assert alone.dtype == np.uint8
        assert np.array_equal(alone, together[row])


def test_a_warp_fills_what_has_no_source_with_the_given_levels(bilinear_pipeline):
    picture = np.full((40, 40, 3), 255, np.uint8)
    (shifted,) = _run(bilinear_pipeline, [picture], _lookup("TranslateX", [(30, False)], picture))
    assert (shifted[:, :18] == (10, 20, 30)).all()
    assert (shifted[:, 18:] == 255).all()


def test_the_graph_can_be_made_for_images_on_a_gpu():
    assert len(_graph(RandAugmentLayer(), "gpu").serialize()) > 0


def test_outcomes_are_drawn_uniformly_by_operation_and_sign():
    layer = RandAugmentLayer()
    count = 56_000
    indices = np.arange(count)
    sizes = np.full(count, 224)
    drawn = layer.draw(uniforms(0, layer.name, indices, indices, 2), sizes, sizes)
    keys = np.column_stack([drawn["group"], drawn["matrix"].reshape(count, 9)])
    _, counts = np.unique(keys, axis=0, return_counts=True)
    assert layer.outcomes.sum() == pytest.approx(1)
    assert len(counts) == len(layer.outcomes) == 23
    assert chisquare(np.sort(counts), count * np.sort(layer.outcomes)).pvalue > 1e-3


def test_a_draw_takes_the_magnitude_and_the_sizes_of_the_sample():
    layer = RandAugmentLayer(magnitude=30)
    translate_x = (NAMES.index("TranslateX") + 0.5) / len(NAMES)
    drawn = layer.draw(np.array([[translate_x, 0.4], [translate_x, 0.6]]), np.array([10, 10]), np.array([331, 662]))
    assert drawn["matrix"][:, 0, 2].tolist() == [150, -300]
    assert drawn["matrix"].flags.c_contiguous
    assert {name: (str(array.dtype), array.shape[1:]) for name, array in drawn.items()} == {
        name: (parameter.dtype, parameter.shape) for name, parameter in layer.parameters.items()
    }


@pytest.mark.parametrize("layer_bins", [2, 11, 31])
def test_offsets_are_cut_to_whole_pixels_as_integers_would_be(layer_bins):
    widths = np.arange(1, 2000)
    for magnitude_bin in range(layer_bins):
        drawn = OperationTable(OPERATIONS, layer_bins).parameters(
            Choice(np.full(len(widths), NAMES.index("TranslateX")), magnitude_bin, np.ones(len(widths), bool)),
            heights=widths,
            widths=widths,
        )
        whole = 150 * widths * magnitude_bin // (331 * (layer_bins - 1))
        assert np.array_equal(drawn["matrix"][:, 0, 2], whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"magnitude": 31}, r"magnitude must be in 0 \.\. 30, got 31: lower it"),
        ({"magnitude": -1}, r"magnitude must be in 0 \.\. 30, got -1"),
        (
            {"magnitude": 0, "num_magnitude_bins": 1},
            "num_magnitude_bins must be at least 2, got 1: the paper has 31",
        ),
        ({"interpolation": "cubic"}, 'interpolation must be "nearest" or "bilinear", got \'cubic\': choose'),
        ({"fill": 256}, r"fill must be a level in 0 \.\. 255, or 3 of them, got 256: use 0"),
        ({"fill": (1, 2)}, r"fill must be a level in 0 \.\. 255, or 3 of them, got \(1, 2\)"),
    ],
)
def test_arguments_that_cannot_work_are_refused_with_a_remedy(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        RandAugmentLayer(**arguments)
