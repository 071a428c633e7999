import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali.pipeline import pipeline_def
from PIL import Image
from scipy.stats import chisquare, kstest

from dalirefurb import rng
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize
from dalirefurb.dali import Input
from dalirefurb.errors import ConfigurationError
from tests.one_batch import levels, serve, sizes
from tests.pictures import picture

UNLIKELY = 1e-4

sides = st.integers(1, 5000)
scales = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple)
ratios = st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(sorted).map(tuple)


def drawn(stage, *, height, width, rows=20_000, seed=0):
    """Draw for `rows` samples of one size, from the generator that the loader draws from."""
    indices = np.arange(rows)
    uniforms = rng.uniforms(seed, stage.name, indices, np.zeros_like(indices), stage.num_uniforms)
    return uniforms, stage.draw(uniforms, np.full(rows, height), np.full(rows, width))


def chequered(count, size):
    """Images whose pixel in row i and column j is (i, j, number of the image)."""
    row, column = np.mgrid[0:size, 0:size]
    return [np.stack([row, column, np.full_like(row, k)], axis=2).astype(np.uint8) for k in range(count)]


# RandomResizedCrop


def published_window(uniforms, height, width, scale, ratio):
    """torchvision.transforms.RandomResizedCrop.get_params in plain Python: (row, column, height, width).

    Its numbers come from `uniforms`, four for each attempt, in the order in which torchvision draws them.
    """
    numbers = iter(uniforms)
    for _ in range(10):
        target_area = height * width * (scale[0] + (scale[1] - scale[0]) * next(numbers))
        log_ratio = math.log(ratio[0]), math.log(ratio[1])
        aspect_ratio = math.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * next(numbers))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        row, column = next(numbers), next(numbers)
        if 0 < w <= width and 0 < h <= height:
            return math.floor(row * (height - h + 1)), math.floor(column * (width - w + 1)), h, w
    in_ratio = width / height
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (64, 64), (31, 200), (1, 1000), (3, 3), (10, 5000), (1, 1)])
@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1), (3 / 4, 4 / 3)), ((0.9, 1), (0.5, 2)), ((0.2, 0.2), (1, 1))])
def test_windows_are_those_of_the_published_procedure(size, scale, ratio):
    height, width = size
    uniforms, arrays = drawn(RandomResizedCrop(224, scale, ratio), height=height, width=width, rows=500)
    windows = np.concatenate([arrays["start"], arrays["shape"]], axis=1).tolist()
    assert windows == [list(published_window(row, height, width, scale, ratio)) for row in uniforms.tolist()]


@pytest.mark.parametrize(
    ("size", "ratio", "window"),
    [
        ((1, 1000), (3 / 4, 4 / 3), (0, 499, 1, 1)),
        ((1000, 1), (3 / 4, 4 / 3), (499, 0, 1, 1)),
        ((5000, 10), (3 / 4, 4 / 3), (2493, 0, 13, 10)),
        ((10, 5000), (3 / 4, 4 / 3), (0, 2493, 10, 13)),
        ((1, 1), (3, 4), (0, 0, 1, 1)),
        ((1, 1), (0.2, 0.3), (0, 0, 1, 1)),
    ],
)
def test_an_image_that_no_attempt_fits_gets_the_central_window(size, ratio, window):
    height, width = size
    _, arrays = drawn(RandomResizedCrop(224, ratio=ratio), height=height, width=width, rows=200)
    windows = np.concatenate([arrays["start"], arrays["shape"]], axis=1)
    assert (windows == window).all()


@given(height=sides, width=sides, scale=scales, ratio=ratios, seed=st.integers(0, 99))
def test_a_window_always_lies_inside_its_image_and_is_never_empty(height, width, scale, ratio, seed):
    _, arrays = drawn(RandomResizedCrop(224, scale, ratio), height=height, width=width, rows=20, seed=seed)
    assert (arrays["start"] >= 0).all()
    assert (arrays["shape"] >= 1).all()
    assert (arrays["start"] + arrays["shape"] <= (height, width)).all()


def test_the_area_is_uniform_and_the_ratio_uniform_in_its_logarithm():
    stage = RandomResizedCrop(224, scale=(0.1, 0.5))
    _, arrays = drawn(stage, height=3000, width=3000)
    height, width = arrays["shape"].T.astype(float)
    assert kstest(height * width / 3000**2, "uniform", (0.1, 0.4)).pvalue > UNLIKELY
    low, high = np.log(stage.ratio)
    assert kstest(np.log(width / height), "uniform", (low, high - low)).pvalue > UNLIKELY


def test_every_place_of_a_window_is_equally_likely():
    _, arrays = drawn(RandomResizedCrop(8, scale=(0.25, 0.25), ratio=(1, 1)), height=20, width=20)
    assert (arrays["shape"] == 10).all()
    places = arrays["start"] @ [11, 1]
    assert chisquare(np.bincount(places, minlength=121)).pvalue > UNLIKELY


def test_windows_of_one_image_differ_between_versions():
    stage = RandomResizedCrop(224)
    windows = [
        draw(
            (stage,),
            seed=0,
            indices=np.array([3]),
            numbers=np.array([version]),
            heights=np.array([375]),
            widths=np.array([500]),
        )[0][stage.name]
        for version in range(20)
    ]
    assert len({(*window["start"][0], *window["shape"][0]) for window in windows}) == 20


@pytest.mark.parametrize(("interpolation", "filter_"), [("nearest", "NEAREST"), ("bilinear", "BILINEAR")])
def test_crops_of_photographs_are_resized_as_pillow_does(photos, interpolation, filter_):
    """Nearest: equal. Bilinear: within 1 level of 255, save for the outermost pixels, within 24.

    Where the filter reaches over the window's border, DALI repeats the border, Pillow leaves that part out.
    """
    stage = RandomResizedCrop(224, interpolation=interpolation)
    recipe = Recipe([Decode(), stage], levels(224), 2)
    paths = photos[::24]
    encoded = [np.fromfile(path, np.uint8) for path in paths]
    heights, widths = sizes(recipe, encoded)
    indices = np.arange(len(paths))
    arrays, _, _ = draw((stage,), seed=0, indices=indices, numbers=0 * indices, heights=heights, widths=widths)
    windows = arrays[stage.name]
    served = serve(recipe, encoded)
    for path, image, start, shape in zip(paths, served, windows["start"], windows["shape"], strict=True):
        box = (start[1], start[0], start[1] + shape[1], start[0] + shape[0])
        cropped = Image.open(path).convert("RGB").crop(box)
        expected = np.asarray(cropped.resize((224, 224), Image.Resampling[filter_])).transpose(2, 0, 1)
        difference = np.abs(image - expected)
        if interpolation == "nearest":
            assert difference.max() == 0
        else:
            assert difference[:, 1:-1, 1:-1].max() <= 1
            assert difference.max() <= 24
            assert difference.mean() <= 0.25


@pytest.mark.parametrize("field", ["scale", "ratio"])
@pytest.mark.parametrize("interval", [(0, 1), (0.5, 0.4), (-1, 1), (math.nan, 1)])
def test_an_impossible_interval_is_refused(field, interval):
    with pytest.raises(ConfigurationError, match=rf"crop: {field} must be two (finite )?numbers with 0 < low"):
        RandomResizedCrop(224, **{field: interval})


def test_more_than_the_whole_area_is_refused():
    with pytest.raises(ConfigurationError, match=r"scale must be .* <= 1, got \(0.5, 1.5\)"):
        RandomResizedCrop(224, scale=(0.5, 1.5))
    assert RandomResizedCrop(224, ratio=(0.5, 1.5)).ratio == (0.5, 1.5)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "224"])
@pytest.mark.parametrize(
    "make", [RandomResizedCrop, Resize, CenterCrop, lambda size: RandomCrop(size, margin=2), Output]
)
def test_a_size_that_is_no_positive_integer_is_refused(make, size):
    with pytest.raises(ConfigurationError, match=rf"size must be a positive integer, .*, got {size!r}"):
        make(size)


# Resize


@given(height=sides, width=sides, size=st.integers(1, 1024))
def test_resize_makes_the_shorter_side_the_size_and_rounds_the_longer_down(height, width, size):
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = size, int(size * long / short)  # torchvision's _compute_resized_output_size
    expected = (new_long, new_short) if width <= height else (new_short, new_long)
    heights, widths = Resize(size).output_sizes(np.array([height]), np.array([width]))
    assert (heights[0], widths[0]) == expected
    arrays = Resize(size).draw(np.empty((1, 0)), np.array([height]), np.array([width]))
    assert arrays["size"].astype(np.int64).tolist() == [list(expected)]


def test_resize_makes_images_of_the_sizes_it_announces():
    images = [np.asarray(picture(k, height=h, width=w)) for k, (h, w) in enumerate([(31, 40), (57, 24), (20, 20)])]
    stage = Resize(20)
    for image in images:
        (height,), (width,) = stage.output_sizes(np.array(image.shape[:1]), np.array(image.shape[1:2]))
        (served,) = serve(Recipe([stage], levels(20), 0), [image])
        assert served.shape == (3, height, width)
        expected = Image.fromarray(image).resize((int(width), int(height)), Image.Resampling.BILINEAR)
        difference = np.abs(served - np.asarray(expected).transpose(2, 0, 1))
        assert difference[:, 1:-1, 1:-1].max() <= 1


# CenterCrop


@pytest.mark.parametrize("size", [1, 7, 8])
def test_a_centre_crop_cuts_where_torchvision_does(size):
    """Halves are rounded to even, so an odd margin of 1 or 5 goes to the end, one of 3 or 7 to the start."""
    images = [image[:height, :width] for (image,) in [chequered(1, 16)] for height in range(8, 16) for width in (8, 13)]
    for split in (0, 1):
        served = serve(Recipe([CenterCrop(size)], levels(size), split), [image.copy() for image in images])
        for image, crop in zip(images, served, strict=True):
            row, column = (round((side - size) / 2.0) for side in image.shape[:2])
            assert np.array_equal(crop, image[row : row + size, column : column + size].transpose(2, 0, 1))


@pytest.mark.parametrize(("height", "width"), [(31, 40), (40, 31), (1, 1)])
def test_a_centre_crop_of_a_smaller_image_is_refused(height, width):
    message = f"center_crop: images must have at least 32 x 32 pixels, got {height} x {width}; put a resize before it"
    with pytest.raises(ConfigurationError, match=message):
        drawn(CenterCrop(32), height=height, width=width)


def test_a_centre_crop_has_one_outcome_and_announces_its_size():
    stage = CenterCrop(32)
    assert not stage.random
    assert stage.outcomes.tolist() == [1.0]
    assert stage.fixed_size == (32, 32)
    assert [sizes.tolist() for sizes in stage.output_sizes(np.array([40, 50]), np.array([60, 33]))] == [[32, 32]] * 2


# RandomCrop


@pytest.mark.parametrize("padding", [0, 4])
def test_every_place_of_a_random_crop_is_equally_likely(padding):
    stage = RandomCrop(32, margin=8, padding=padding)
    _, arrays = drawn(stage, height=40 - 2 * padding, width=40 - 2 * padding)
    row, column = arrays["start"].T + padding
    assert chisquare(np.bincount(row * 9 + column, minlength=81)).pvalue > UNLIKELY
    assert len(stage.outcomes) == 81
    assert stage.outcomes.sum() == pytest.approx(1)


@pytest.mark.parametrize("margin", [0, 1, 2, 7, 8, 31])
def test_a_random_crop_cuts_where_it_was_drawn(margin):
    stage = RandomCrop(16, margin=margin)
    images = chequered(200, 16 + margin)
    uniforms, _ = drawn(stage, height=16 + margin, width=16 + margin, rows=200)
    places = np.floor(uniforms * (margin + 1)).astype(int)
    for split in (0, 1):  # fused into normalisation, or a step of its own
        served = serve(Recipe([stage], levels(16), split), images)
        for image, crop, (row, column) in zip(images, served, places, strict=True):
            assert np.array_equal(crop, image[row : row + 16, column : column + 16].transpose(2, 0, 1))


def test_a_random_crop_pads_with_black():
    stage = RandomCrop(32, margin=8, padding=4)
    images = [image + 1 for image in chequered(200, 32)]
    uniforms, _ = drawn(stage, height=32, width=32, rows=200)
    places = np.floor(uniforms * 9).astype(int)
    for split in (0, 1):
        served = serve(Recipe([stage], levels(32), split), images)
        for image, crop, (row, column) in zip(images, served, places, strict=True):
            padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
            assert np.array_equal(crop, padded[row : row + 32, column : column + 32].transpose(2, 0, 1))


@pytest.mark.parametrize("crop", [RandomCrop(28, margin=4), RandomCrop(32, margin=8, padding=4)], ids=["crop", "pad"])
def test_every_split_of_crop_and_flip_serves_the_same_bits(crop):
    images = [np.asarray(picture(k, height=32, width=32)) for k in range(64)]
    recipe = Recipe([crop, HorizontalFlip()], Output(crop.size), 0)
    fused = serve(recipe, images)
    assert all(np.array_equal(serve(recipe.at(split), images), fused) for split in (1, 2))


def test_an_image_of_another_size_is_refused():
    with pytest.raises(ConfigurationError, match=r"random_crop: images must be 32 x 32 pixels .* got 32 x 33; put a"):
        drawn(RandomCrop(32, margin=8, padding=4), height=32, width=33)


@pytest.mark.parametrize("field", ["margin", "padding"])
def test_a_negative_margin_or_padding_is_refused(field):
    with pytest.raises(ConfigurationError, match=f"random_crop: {field} must be an int of at least 0, got -1"):
        RandomCrop(32, **{"margin": 2, field: -1})


# HorizontalFlip


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_a_flip_happens_with_its_probability(probability):
    stage = HorizontalFlip(probability)
    _, arrays = drawn(stage, height=32, width=32)
    deviation = 4 * math.sqrt(probability * (1 - probability) / 20_000)
    assert abs(arrays["mirror"].mean() - probability) <= deviation
    assert stage.outcomes.tolist() == [probability, 1 - probability]


@pytest.mark.parametrize("split", [0, 1])
def test_a_flip_mirrors_left_and_right_exactly(split):
    images = [np.asarray(picture(k, height=33, width=33)) for k in range(40)]
    stage = HorizontalFlip()
    _, arrays = drawn(stage, height=33, width=33, rows=40)
    assert set(arrays["mirror"]) == {0, 1}
    served = serve(Recipe([stage], levels(33), split), images)
    for image, mirror, flipped in zip(images, arrays["mirror"], served, strict=True):
        expected = image[:, ::-1] if mirror else image
        assert np.array_equal(flipped, expected.transpose(2, 0, 1))


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan, "mirrored"])
def test_an_impossible_probability_is_refused(probability):
    with pytest.raises(ConfigurationError, match=f"flip: probability must be a number in 0..1, got {probability!r}"):
        HorizontalFlip(probability)


# The output


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3)])
def test_normalisation_is_pixel_minus_mean_over_std(dtype, tolerance):
    """Every level of every channel; float16 has a spacing of 2e-3 between 2 and 4."""
    level = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = np.stack([level, level.T, level[::-1]], axis=2).copy()
    output = Output(16, dtype=dtype)
    (served,) = serve(Recipe([], output, 0), [image])
    assert served.dtype == dtype
    expected = (image / 255 - output.mean) / output.std
    assert np.abs(served - expected.transpose(2, 0, 1)).max() <= tolerance


# Decoding by region


def _regions():
    encoded = Input("sample", "uint8", 1).node()
    start, shape = Input("start", "int32", 1).node(), Input("shape", "int32", 1).node()
    return Decode().decode(encoded, "cpu"), Decode().decode_region(encoded, "cpu", start, shape)


@pytest.fixture(scope="module")
def regions():
    """A function from encoded bytes and windows to the whole image and its windows, decoded by region."""
    pipeline = pipeline_def(_regions)(batch_size=64, num_threads=1, device_id=None, prefetch_queue_depth=1)
    pipeline.build()

    def decode(encoded, starts, shapes):
        pipeline.feed_input("sample", [encoded] * len(starts))
        pipeline.feed_input("start", starts)
        pipeline.feed_input("shape", shapes)
        pipeline.schedule_run()
        whole, windows = pipeline.share_outputs()
        pipeline.release_outputs()
        return np.array(whole[0]), [np.array(windows[i]) for i in range(len(windows))]

    return decode


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {"format": "JPEG", "subsampling": "4:2:0"}),
        ("RGB", {"format": "JPEG", "subsampling": "4:2:2"}),
        ("RGB", {"format": "JPEG", "subsampling": "4:4:4"}),
        ("RGB", {"format": "JPEG", "progressive": True}),
        ("L", {"format": "JPEG"}),
        ("CMYK", {"format": "JPEG"}),
        ("RGB", {"format": "PNG"}),
        ("RGBA", {"format": "PNG"}),
        ("P", {"format": "PNG"}),
        ("RGB", {"format": "WEBP"}),
        ("RGB", {"format": "WEBP", "lossless": True}),
        ("RGB", {"format": "BMP"}),
        ("RGB", {"format": "TIFF"}),
        ("L", {"format": "TIFF", "compression": "tiff_lzw"}),
        ("RGB", {"format": "PPM"}),
    ],
    ids=str,
)
def test_decoding_a_region_equals_decoding_the_whole_and_slicing(regions, mode, options):
    height, width = 93, 151
    file = io.BytesIO()
    picture(1, height=height, width=width).convert(mode).save(file, **options)
    _, arrays = drawn(RandomResizedCrop(8, scale=(0.001, 1), ratio=(0.1, 10)), height=height, width=width, rows=60)
    corners = [
        (0, 0, height, width),
        (height - 1, width - 1, 1, 1),
        (height - 7, 0, 7, width),
        (0, width - 1, height, 1),
    ]
    starts = np.concatenate([arrays["start"], np.array(corners, np.int32)[:, :2]])
    shapes = np.concatenate([arrays["shape"], np.array(corners, np.int32)[:, 2:]])
    whole, windows = regions(np.frombuffer(file.getvalue(), np.uint8), starts, shapes)
    assert whole.shape == (height, width, 3)
    for window, (row, column), (h, w) in zip(windows, starts, shapes, strict=True):
        assert np.array_equal(window, whole[row : row + h, column : column + w])


def test_a_crop_fused_with_decoding_serves_the_bits_of_a_crop_after_it(photos):
    encoded = [np.fromfile(path, np.uint8) for path in photos[::40]]
    recipe = Recipe([Decode(), RandomResizedCrop(64)], levels(64), 2)
    assert np.array_equal(serve(recipe, encoded), serve(recipe.at(1), encoded))
