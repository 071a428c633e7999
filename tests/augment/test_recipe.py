import json
import math
import textwrap
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pytest
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from dalirefurb import BadSamplePolicy, ImageFolder, Prefetch, evaluate, rng
from dalirefurb.augment import Cutout, Invert, Parameter, RandomApply, RandomErasing, RandomGrayscale
from dalirefurb.augment.output import Output
from dalirefurb.augment.policies.layers import RandAugmentLayer
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage, draw
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.custom import Custom
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.geometry import RandomPerspective
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize
from dalirefurb.dali import Graph
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.loader import Loader
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.source import Arrays
from dalirefurb.store import MemoryStore
from tests.in_turn import in_turn
from tests.one_batch import levels, serve
from tests.pictures import picture, write_folder

STAGES = (Decode(), RandomResizedCrop(36), RandomCrop(32, margin=4), HorizontalFlip())
SIDE = 8
NAMES = ["decode", "random_resized_crop", "random_crop", "flip"]
RAW = (RandomCrop(32, margin=8, padding=4), HorizontalFlip())


def invert(images):
    return 255 - images


def darken(images):
    return fn.cast_like(images * 0.5, images)


def noisy(images):
    return fn.cast_like(fn.noise.gaussian(images, stddev=3.0), images)


def if_noisy(images):
    if fn.random.coin_flip() == 1:
        images = fn.brightness(images, brightness=0.5)
    return images


@dataclass(frozen=True)
class Noisy(Stage):
    name: str = "noisy"

    def apply(self, images, parameters):
        return noisy(images)


def halve(images):
    return fn.resize(images, size=(16, 16))


# Splits


@pytest.mark.parametrize("split", [1, 2, 3, 4])
def test_a_split_by_number_counts_the_partial_stages(split):
    recipe = Recipe(STAGES, Output(32), split)
    assert [stage.name for stage in recipe.partial] == NAMES[:split]
    assert [stage.name for stage in recipe.final] == NAMES[split:]


@pytest.mark.parametrize("split", [1, 2, 3])
def test_the_final_part_begins_at_the_stage_named_as_split(split):
    recipe = Recipe(STAGES, Output(32), NAMES[split])
    assert recipe == Recipe(STAGES, Output(32), split)
    assert recipe.split == split
    assert recipe.final[0].name == NAMES[split]


def test_at_changes_the_split_and_nothing_else():
    recipe = Recipe(STAGES, Output(32), 1)
    moved = recipe.at("flip")
    assert (moved.stages, moved.output, moved.split) == (STAGES, Output(32), 3)
    assert moved.at(1) == recipe


def test_arrays_can_have_nothing_partial_and_everything_final():
    recipe = Recipe(RAW, Output(32), 0)
    assert not recipe.encoded
    assert recipe.partial == ()
    assert recipe.final == RAW


def test_encoded_images_can_be_cached_as_they_were_read():
    recipe = Recipe(STAGES, Output(32), 0)
    assert recipe.encoded
    assert recipe.caches_encoded
    assert (recipe.partial, recipe.final) == ((), STAGES)
    assert Recipe(STAGES, Output(32), "decode") == recipe
    assert not recipe.at(1).caches_encoded
    assert not Recipe(RAW, Output(32), 0).caches_encoded


@pytest.mark.parametrize("split", range(5))
def test_a_recipe_for_arrays_has_all_stages_but_decoding(split):
    recipe = Recipe(STAGES, Output(32), split).for_arrays()
    assert recipe == Recipe(STAGES[1:], Output(32), max(split - 1, 0)) == recipe.for_arrays()


@pytest.mark.parametrize("split", [-1, 5, 2.0, True], ids=repr)
def test_a_split_outside_the_stages_is_refused(split):
    message = rf"in 0..4, got {split!r}: the stages are {', '.join(NAMES)}"
    with pytest.raises(ConfigurationError, match=message):
        Recipe(STAGES, Output(32), split)


def test_all_stages_are_partial_where_none_is_random_and_no_split_is_given():
    stages = (Decode(), Resize(36), CenterCrop(32))
    assert Recipe(stages, Output(32)) == Recipe(stages, Output(32), split=3) == evaluate(32, resize=36)
    assert Recipe([], Output(32)).split == 0


def test_a_split_must_be_given_where_stages_are_random():
    drawn = ", ".join(stage.name for stage in STAGES if stage.random)
    with pytest.raises(ConfigurationError, match=f"stages are random, here {drawn}: .* such as split='{NAMES[-1]}'"):
        Recipe(STAGES, Output(32))


@pytest.mark.parametrize("split", [-1, 3, False, 0.0], ids=repr)
def test_a_split_outside_the_stages_for_arrays_is_refused(split):
    with pytest.raises(ConfigurationError, match=rf"in 0..2, got {split!r}: the stages are random_crop, flip"):
        Recipe(RAW, Output(32), split)


def test_a_split_at_an_unknown_stage_is_refused():
    with pytest.raises(ConfigurationError, match=f"no stage 'flop' to split at; the stages are {', '.join(NAMES)}"):
        Recipe(STAGES, Output(32), "flop")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Recipe(HorizontalFlip(), Output(32), 0), "stages must be a list of stages, got HorizontalFlip"),
        (
            lambda: Recipe([3], Output(32), 0),
            "stages must be stages of dalirefurb.augment, got 3: make one of your own",
        ),
        (lambda: Recipe([HorizontalFlip()], 32, 0), r"output must be an Output, got 32: pass such as Output\(224\)"),
        (lambda: Custom(invert, "invert", size=0), "invert: size must be a positive integer, or two as"),
        (lambda: Recipe(RAW, Output(32), 0).view(1.5), "number must be an int of at least 1, got 1.5"),
        (lambda: Recipe([*RAW[:1], Decode(), Decode("b")], Output(32), 0), "but 'decode' is at place 1"),
    ],
)
def test_what_makes_no_recipe_is_refused(make, told):
    with pytest.raises(ConfigurationError, match=told):
        make()


@pytest.mark.parametrize(
    ("sides", "refused", "max_pixels"),
    [
        ([(50, 60), (100, 100)], None, 20_000),
        ([(50, 60), (100, 100)], None, None),
        ([(2**23, 1)], None, None),
        (
            [(50, 60), (100, 201)],
            (1, "pad: an image must have 20,000 pixels at most, but one of 100 x 201 would"),
            20_000,
        ),
        ([(201, 100), (100, 100)], (0, "become 402 x 100: pass max_pixels=40200 if it is genuine, or crop"), 40_000),
        ([(1, 1), (2**23 + 1, 1), (2**24, 1)], (1, "16,777,216 pixels a side at most, but one of 8388609 x 1"), None),
    ],
)
def test_the_first_image_of_which_a_stage_makes_too_large_a_one_is_told(sides, refused, max_pixels):
    class Twice(HorizontalFlip):
        def output_sizes(self, heights, widths):
            return 2 * heights, widths

    heights, widths = np.array(sides).T
    stages = [HorizontalFlip(), Twice(name="pad"), HorizontalFlip(name="other"), RandomCrop(1, name="crop")]
    found = Recipe(stages, Output(1), 2).refusal(heights, widths, max_pixels=max_pixels)
    assert (found is None) == (refused is None)
    if refused is not None:
        assert found[0] == refused[0]
        assert refused[1] in found[1]


def test_what_is_resized_is_as_large_as_it_is_made_which_is_the_window_of_a_crop_in_the_same_part():
    recipe, sides = Recipe([Resize(64), CenterCrop(32)], Output(32), 2), (np.array([1]), np.array([10_000]))
    assert recipe.refusal(*sides, max_pixels=10**6) is None
    row, told = recipe.at(1).refusal(*sides, max_pixels=10**6)
    assert row == 0
    assert (
        "would become 64 x 640000: pass max_pixels=40960000 if it is genuine, or crop right after it, in the sa" in told
    )
    assert (recipe.at(1).partial_size((1, 100)), recipe.at(1).final_size((1, 100))) == ((64, 6400), (32, 32))
    assert Recipe([HorizontalFlip()], Output(32), 1).final_size((20, 30)) == (20, 30)


def test_stages_of_one_name_are_refused():
    stages = [*STAGES, HorizontalFlip(), RandomCrop(32, margin=0)]
    with pytest.raises(ConfigurationError, match=r"but 'flip', 'random_crop' occurs more than once; pass name="):
        Recipe(stages, Output(32), 1)


@pytest.mark.parametrize("around", [lambda stage: stage, RandomApply], ids=["alone", "inside"])
def test_a_stage_whose_name_is_no_text_is_refused(around):
    with pytest.raises(
        ConfigurationError, match="the name of HorizontalFlip must be a text, got 7: pass such as name="
    ):
        Recipe([around(HorizontalFlip(name=7))], Output(32), 1)


def test_decoding_that_does_not_come_first_is_refused():
    with pytest.raises(ConfigurationError, match="decoding must come first, but 'late' is at place 2"):
        Recipe([*STAGES[:2], Decode("late"), *STAGES[2:]], Output(32), 1)


@pytest.mark.parametrize(
    ("stages", "found"),
    [
        (STAGES, "32 x 32"),
        ((Decode(), RandomResizedCrop(48)), "48 x 48"),
        ((Decode(),), "sizes that depend on the input"),
        ((Decode(), Resize(28)), "sizes that depend on the input"),
        ((Decode(), Custom(halve, "halve", size=(28, 16))), "28 x 16"),
        (RAW, "32 x 32"),
    ],
)
def test_a_recipe_that_leaves_another_size_than_the_output_is_refused(stages, found):
    with pytest.raises(ConfigurationError, match=f"the output's size 28 x 28, got {found}; end with a crop or"):
        Recipe(stages, Output(28), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float64"}, "dtype must be 'float32', 'float16' or 'bfloat16', got 'float64': .* cast"),
        ({"mean": (0.5,)}, r"mean and std must be three numbers each, std positive, got \(0.5,\) and"),
        ({"std": (1, 1)}, r"got .* and \(1, 1\)"),
        ({"mean": (0.5,) * 4}, r"three numbers each, std positive, got \(0.5, 0.5, 0.5, 0.5\) and"),
        ({"mean": True}, "three numbers each, std positive, got True and"),
        ({"std": (1, True, 1)}, r"std positive, got .* and \(1, True, 1\)"),
        ({"std": (1, 0, 1)}, r"got .* and \(1, 0, 1\)"),
        ({"std": (1, math.nan, 1)}, r"std positive, got .* and \(1, nan, 1\)"),
        ({"std": (1, 1, math.inf)}, r"std positive, got .* and \(1, 1, inf\)"),
        (
            {"dtype": "float16", "std": (1, 1e-6, 1)},
            r"at most 65,504, the most that float16 holds, .* up to 544,000 for pixels .*1e-06.*: pass .*'float32'$",
        ),
        (
            {"dtype": "float16", "mean": (0.5, 0, 0.5), "std": (1.52e-5,) * 3},
            r"up to 65,789\.5 for .* with mean \(0\.5, 0, ",
        ),
        (
            {"dtype": "float16", "mean": (0.5, 1, 0.5), "std": (1.52e-5,) * 3},
            r"up to 65,789\.5 for .* with mean \(0\.5, 1, ",
        ),
        (
            {"dtype": "bfloat16", "mean": (0, 1, 0), "std": (1, 1 / 3.395e38, 1)},
            r"at most 3\.38953e\+38, the most that bfloat16 holds",
        ),
        ({"std": (1, 1, 1e-39)}, r"at most 3\.40282e\+38, the most that float32 holds, .*: pass a larger std$"),
        ({"mean": (123.7, 116.3, 103.5)}, r"pixels in 0 \.\. 1, got \(123.7, .*divide mean and std by 255"),
        ({"mean": (0, -0.1, 0)}, r"pixels in 0 \.\. 1, got"),
        ({"size": 0}, "output: size must be a positive integer, .*, got 0"),
        ({"channels_last": "NHWC"}, "output: channels_last must be True or False, got 'NHWC': pass a bool"),
    ],
)
def test_an_impossible_output_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        replace(Output(32), **changes)
    with pytest.raises(ConfigurationError, match=message):
        Recipe(STAGES, Output(32), 1).with_output(**changes)


@pytest.mark.parametrize("kernels", ["numba", "dali"])
@pytest.mark.parametrize("mean", [0, 0.25, 1])
def test_the_least_std_that_is_accepted_makes_finite_values_of_black_and_white(kernels, mean):
    images = np.repeat(np.array([0, 255, 127, 1], np.uint8), SIDE * SIDE * 3).reshape(4, SIDE, SIDE, 3)
    least = max(mean, 1 - mean) / 65504
    output = Output(SIDE, dtype="float16", mean=(mean,) * 3, std=(least,) * 3)
    with pytest.raises(ConfigurationError, match="the most that float16 holds"):
        replace(output, std=(least, least, 0.999 * least))
    with Loader(
        Arrays(images, np.arange(4)), Recipe([], output, 0), Standard(4, batch_size=4), kernels=kernels
    ) as loader:
        ((served, _),) = loader
    assert served.isfinite().all()
    assert served.abs().max() == 65504


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_half_precision_does_not_hold_other_types_may(dtype):
    assert Output(32, dtype, std=1e-30).dtype == dtype


def test_with_output_changes_the_output_and_nothing_else():
    recipe = Recipe(STAGES, Output(32), 2)
    assert recipe.with_output(dtype="float16") == Recipe(STAGES, Output(32, "float16"), 2)


@pytest.mark.parametrize(
    ("stages", "count"),
    [
        (STAGES, 1),
        ((Decode(), Resize(48), Custom(invert, "invert"), RandomCrop(32, margin=16)), 3),
        ((Decode(), Custom(invert, "fit", size=(32, 32))), 2),
        (
            (
                Decode(),
                Resize((32, 32)),
                HorizontalFlip(1.0, "mirror"),
                RandomGrayscale(0.0),
                RandomApply([Invert()], 1.0),
                RAW[1],
            ),
            5,
        ),
        (RAW, 0),
        ((), 0),
    ],
)
def test_the_deterministic_prefix_ends_before_the_first_random_stage(stages, count):
    recipe = Recipe(stages, Output(32), len(stages))
    assert recipe.deterministic_prefix == count


@pytest.mark.parametrize(
    ("split", "entering", "size"),
    [
        (1, None, None),
        (1, (50, 60), (50, 60)),
        (2, None, None),
        (2, (50, 60), (40, 48)),
        (3, None, (36, 36)),
        (4, (50, 60), (32, 32)),
    ],
)
def test_the_partial_size_is_known_where_no_stage_leaves_it_open(split, entering, size):
    stages = [Decode(), Resize(40), RandomResizedCrop(36), RandomCrop(32, margin=4)]
    assert Recipe(stages, Output(32), split).partial_size(entering) == size


# Random numbers


def test_a_stage_inserted_or_moved_shifts_no_other_stages_numbers():
    given = {
        "seed": 3,
        "indices": np.arange(50),
        "numbers": np.full(50, 2),
        "heights": np.full(50, 40),
        "widths": np.full(50, 40),
    }
    crop, flip, layer = RandomCrop(40, margin=0), HorizontalFlip(), RandAugmentLayer()
    short, _, _ = draw((crop, flip), **given)
    long, _, _ = draw((layer, flip, RandomResizedCrop(40), HorizontalFlip(name="again"), crop), **given)
    for stage, arrays in short.items():
        assert all(np.array_equal(values, long[stage][name]) for name, values in arrays.items())
    assert not np.array_equal(long["flip"]["mirror"], long["again"]["mirror"])


def test_stages_are_drawn_with_the_sizes_that_enter_them():
    stages = (Resize(40), RandomResizedCrop(36), RandomCrop(32, margin=4))
    heights, widths = np.array([80, 50]), np.array([120, 60])
    arrays, out_heights, out_widths = draw(
        stages, seed=0, indices=np.arange(2), numbers=np.zeros(2, np.int64), heights=heights, widths=widths
    )
    uniforms = rng.uniforms(0, "random_resized_crop", np.arange(2), np.zeros(2, np.int64), 40)
    expected = stages[1].draw(uniforms, np.array([40, 40]), np.array([60, 48]))
    assert arrays["resize"]["size"].tolist() == [[40, 60], [40, 48]]
    assert np.array_equal(arrays["random_resized_crop"]["shape"], expected["shape"])
    assert out_heights.tolist() == out_widths.tolist() == [32, 32]


# A user's own stages


@pytest.mark.parametrize("split", [0, 1, 2, 3])
def test_a_custom_stage_works_in_the_partial_and_in_the_final_part(split):
    images = [np.asarray(picture(k, height=32, width=32)) for k in range(8)]
    recipe = Recipe([Custom(darken, "darken"), HorizontalFlip(), Custom(invert, "invert")], levels(32), split)
    plain = serve(Recipe([HorizontalFlip()], levels(32), 0), images)
    # Halving rounds halves to even on the way back to uint8.
    assert np.abs(serve(recipe, images) - (255 - plain / 2)).max() <= 0.5


def test_a_custom_stage_may_be_a_lambda_and_change_the_size():
    images = [np.asarray(picture(k, height=32, width=32)) for k in range(3)]
    crop = Custom(lambda node: fn.crop(node, crop=(16, 16), crop_pos_x=0.0, crop_pos_y=0.0), "corner", size=(16, 16))
    served = serve(Recipe([crop], levels(16), 1), images)
    assert np.array_equal(served, np.stack(images)[:, :16, :16].transpose(0, 3, 1, 2))


def test_a_custom_stage_that_is_no_function_is_refused():
    with pytest.raises(ConfigurationError, match="stage 'invert': function must be callable, got 3: pass a function"):
        Custom(3, "invert")


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_a_partial_part_that_leaves_another_size_than_declared_is_refused_with_and_without_a_store(store):
    images = np.stack([np.asarray(picture(k, height=32, width=32)) for k in range(8)])
    recipe = Recipe([Custom(halve, "halve"), HorizontalFlip()], Output(32), 2)
    planner = Refurbish(8, batch_size=4, reuse_factor=2)
    with (
        Loader(Arrays(images, np.arange(8)), recipe, planner, store, prefetch=Prefetch(num_threads=1)) as loader,
        pytest.raises(
            LoaderError, match=r"shape \(32, 32, 3\), got uint8 of \(16, 16, 3\).*halve, flip\) makes another"
        ),
    ):
        list(loader)


class Vertical(HorizontalFlip):
    """Turns what a flip mirrors upside down."""

    def apply(self, images, parameters):
        return fn.flip(images, horizontal=0, vertical=parameters["mirror"])


class Inverted(RandomCrop):
    """Inverts what a crop leaves."""

    def apply(self, images, parameters):
        return 255 - super().apply(images, parameters)


class InvertedWindow(RandomResizedCrop):
    """Inverts what a resized crop leaves."""

    def apply(self, images, parameters):
        return 255 - super().apply(images, parameters)


@pytest.mark.parametrize(
    ("derived", "encoded"),
    in_turn(
        [
            (Vertical(), HorizontalFlip(), lambda image: image[::-1, ::-1]),
            (Inverted(16, margin=8), RandomCrop(16, margin=8), lambda image: 255 - image),
            (InvertedWindow(16), RandomResizedCrop(16), lambda image: 255 - image),
        ],
        [True, False],
    ),
)
def test_what_is_derived_from_a_stage_does_what_it_says_in_either_part(derived, encoded, tmp_path):
    """Neither kernels nor fused operators take it for the stage that it is derived from."""
    own, shipped, change = derived
    pixels = np.stack([np.asarray(picture(k, height=24, width=24)) for k in range(8)])
    source = Arrays(pixels, np.arange(8))
    if encoded:
        source = ImageFolder(write_folder(tmp_path, num_samples=8))
    size = 24 if isinstance(own, HorizontalFlip) else 16

    def served(stage, split):
        stages = [Decode(), Resize(24), CenterCrop(24), stage] if encoded else [stage]
        stages = [Decode(), stage] if encoded and isinstance(stage, RandomResizedCrop) else stages
        recipe = Recipe(stages, levels(size), len(stages) - 1 + split)
        with Loader(source, recipe, Standard(8, batch_size=8), kernels="dali") as loader:
            ((images, _),) = loader
        return images.numpy().transpose(0, 2, 3, 1)

    wanted = served(shipped, 1)
    for split in (0, 1):
        for image, plain in zip(served(own, split), wanted, strict=True):
            same = isinstance(own, HorizontalFlip) and np.array_equal(image, plain)
            # Where a window is decoded alone, its borders may differ by a level.
            assert same or np.abs(image - change(plain)).max() <= 2


def as_float(images):
    return fn.cast(images, dtype=types.DALIDataType.FLOAT)


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_a_partial_part_that_leaves_floats_is_refused_with_and_without_a_store(store):
    images = np.stack([np.asarray(picture(k, height=32, width=32)) for k in range(8)])
    recipe = Recipe([Custom(as_float, "as_float")], Output(32), 1)
    planner = Refurbish(8, batch_size=4, reuse_factor=2)
    with (
        Loader(Arrays(images, np.arange(8)), recipe, planner, store, prefetch=Prefetch(num_threads=1)) as loader,
        pytest.raises(LoaderError, match=r"must leave uint8 images.*got float32.*as_float"),
    ):
        list(loader)


@pytest.mark.parametrize("store", [None, MemoryStore()])
def test_a_final_part_that_leaves_another_size_than_declared_is_refused(store):
    images = np.stack([np.asarray(picture(k, height=32, width=32)) for k in range(8)])
    recipe = Recipe([Custom(halve, "halve")], Output(32), 0)
    planner = Refurbish(8, batch_size=4, reuse_factor=2)
    with (
        Loader(Arrays(images, np.arange(8)), recipe, planner, store, prefetch=Prefetch(num_threads=1)) as loader,
        pytest.raises(LoaderError, match=r"output's size 32 x 32, got 16 x 16.*halve"),
    ):
        list(loader)


def test_arrays_of_another_size_than_the_recipes_are_refused():
    with pytest.raises(ConfigurationError, match="size 24 x 24, but makes 32 x 32"):
        Loader(
            Arrays(np.zeros((8, 32, 32, 3), np.uint8), np.arange(8)),
            Recipe([HorizontalFlip()], Output(24), 0),
            Refurbish(8, batch_size=4, reuse_factor=2),
        )


@pytest.mark.parametrize(("part", "split"), [("final", 0), ("partial", 1), ("whole", 0)])
def test_dalis_own_random_operators_are_refused_by_name(part, split):
    graph = Graph(Recipe([Noisy()], Output(32), split), part)
    with pytest.raises(ConfigurationError, match=r"a stage uses DALI's random operator 'noise__Gaussian'.*in a Stage"):
        graph.serialize(max_batch_size=4, num_threads=1)


def test_a_custom_stage_that_draws_is_refused_when_it_is_made_with_the_lines_of_a_stage():
    told = r"stage 'noisy' uses DALI's random operator 'noise__Gaussian'.*in a Stage of your own"
    with pytest.raises(ConfigurationError, match=told) as refused:
        Custom(noisy, "noisy")
    lines = textwrap.dedent(str(refused.value).partition("\n")[2])
    space = {"dataclass": dataclass, "ClassVar": ClassVar, "Stage": Stage, "Parameter": Parameter, "np": np, "fn": fn}
    exec(lines, space)
    Graph(Recipe([space["Drawn"]()], Output(32), 0), "whole").serialize(max_batch_size=4, num_threads=1)


@pytest.mark.parametrize("function", [if_noisy, lambda images: defined_nowhere(images), lambda images: None])  # noqa: F821
def test_what_cannot_be_traced_by_itself_is_left_to_the_graph(function):
    stage = Custom(function, "stage")
    with pytest.raises((ConfigurationError, NameError, TypeError)):
        Graph(Recipe([stage], Output(32), 0), "whole").serialize(max_batch_size=4, num_threads=1)


def test_a_custom_stage_can_be_made_while_a_pipeline_is_defined():
    with Pipeline(batch_size=1, num_threads=1, device_id=None) as pipeline:
        Custom(invert, "invert")
        assert Pipeline.current() is pipeline


def test_a_custom_stages_size_is_what_later_stages_draw_for():
    stages = (Custom(invert, "smaller", size=(40, 40)), RandomCrop(32, margin=8))
    rows = np.arange(5)
    drawn, heights, widths = draw(
        stages, seed=0, indices=rows, numbers=rows, heights=np.full(5, 99), widths=np.full(5, 77)
    )
    assert drawn["random_crop"]["start"].shape == (5, 2)
    assert heights.tolist() == widths.tolist() == [32] * 5


# Fingerprints


def test_an_outputs_fingerprint_differs_when_any_field_does():
    changes = {"size": 33, "dtype": "float16", "mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0), "channels": 1}
    assert changes.keys() == {field.name for field in fields(Output)} - {"channels_last"}
    variants = [Output(32), *(replace(Output(32), **{name: value}) for name, value in changes.items())]
    assert len({json.dumps(variant.fingerprint()) for variant in variants}) == len(variants)


@pytest.mark.parametrize(
    "make",
    [
        lambda one: RandomResizedCrop(8, scale=(0.5, one), ratio=(one, one)),
        lambda one: HorizontalFlip(one),
        lambda one: RandomGrayscale(one),
        lambda one: RandomPerspective(one, one),
        lambda one: RandomErasing(one),
        lambda one: Cutout(4, probability=one),
        lambda one: RandomApply(Invert(), one),
    ],
)
def test_a_number_written_as_an_int_is_the_same_configuration(make):
    """A store's file is told by the text of its fingerprint."""
    assert json.dumps(make(1).fingerprint()) == json.dumps(make(1.0).fingerprint())


def test_stages_of_different_kinds_with_equal_fields_have_different_fingerprints():
    assert Decode("x").fingerprint() != HorizontalFlip(name="x").fingerprint()
    assert Resize(32, name="x").fingerprint() != RandomResizedCrop(32, name="x").fingerprint()


def test_a_recipes_fingerprint_covers_stages_their_order_split_and_output():
    crop, flip = RandomCrop(32, margin=8), HorizontalFlip()
    variants = [
        Recipe([crop, flip], Output(32), 1),
        Recipe([flip, crop], Output(32), 1),
        Recipe([crop], Output(32), 1),
        Recipe([crop, HorizontalFlip(0.4)], Output(32), 1),
        Recipe([crop, flip], Output(32), 2),
        Recipe([crop, flip], Output(32, "float16"), 1),
    ]
    assert len({json.dumps(variant.fingerprint()) for variant in variants}) == len(variants)
    assert Recipe([crop, flip], Output(32), "flip").fingerprint() == variants[0].fingerprint()


def test_a_recipes_fingerprint_survives_being_saved_and_loaded():
    stages = [RandomResizedCrop(32), Custom(invert, "invert")]
    fingerprint = Recipe([*stages, Custom(halve, "halve", size=(16, 16))], Output(16), 1).fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint


def test_a_custom_stages_fingerprint_does_not_see_its_function():
    assert Custom(invert, "mine").fingerprint() == Custom(darken, "mine").fingerprint()


def test_stages_that_can_take_no_image_are_refused_when_the_recipe_is_made():
    message = "center_crop: images must have at least 32 x 32 pixels, got 20 x 20; put a resize before it"
    with pytest.raises(ConfigurationError, match=message):
        Recipe([Decode(), RandomResizedCrop(20), CenterCrop(32)], Output(32), split=1)
    with pytest.raises(ConfigurationError, match=r"random_crop: images must be 40 x 40 pixels .* got 36 x 36"):
        Recipe([Decode(), RandomResizedCrop(36), HorizontalFlip(), RandomCrop(32, margin=8)], Output(32), split=1)


def test_arrays_that_a_stage_cannot_take_are_refused_when_the_loader_is_made():
    source = Arrays(np.zeros((8, 20, 20, 3), np.uint8), np.arange(8))
    recipe = Recipe([HorizontalFlip(), CenterCrop(32)], Output(32), split=1)
    with pytest.raises(ConfigurationError, match="center_crop: images must have at least 32 x 32 pixels, got 20 x 20"):
        Loader(
            source,
            recipe,
            Refurbish(8, batch_size=4, reuse_factor=2),
            bad_samples=BadSamplePolicy(on_bad_sample="replace"),
        )


@pytest.mark.parametrize(
    ("stages", "least", "crop"),
    [
        ([Resize(31), CenterCrop(32)], 32, "center_crop"),
        ([Resize(31), HorizontalFlip(), CenterCrop((32, 40))], 32, "center_crop"),
        ([Resize(27), RandomCrop(32, padding=2)], 28, "random_crop"),
    ],
)
def test_a_resize_that_leaves_too_little_for_a_crop_is_refused_when_the_recipe_is_made(stages, least, crop):
    output = Output(stages[-1].size)
    message = f"resize: size must be at least {least}, since {crop} is for images of no shorter sides, got {least - 1}:"
    with pytest.raises(ConfigurationError, match=message):
        Recipe([Decode(), *stages], output, split=1)
    assert Recipe([Decode(), Resize(least), *stages[1:]], output, split=1).split == 1
    for again in (Resize((80, 80), name="again"), RandomResizedCrop((80, 80))):
        assert Recipe([Decode(), stages[0], again, *stages[1:]], output, split=1).split == 1


def test_evaluate_resizes_to_no_less_than_it_crops():
    with pytest.raises(ConfigurationError, match=r"resize: size must be at least 224, .*, got 100"):
        evaluate(224, resize=100)
