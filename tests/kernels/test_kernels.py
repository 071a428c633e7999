"""Do kernels make the pixels that DALI's operators make, as nearly as `docs/kernels.md` says?"""

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

pytest.importorskip("numba")

from numba import njit

from dalirefurb.augment import CenterCrop, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize, Solarize
from dalirefurb.augment.kernel_call import Code
from dalirefurb.augment.output import Output
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.policies.layers import RandAugmentLayer, TrivialAugmentLayer
from dalirefurb.augment.policies.operations import Chosen, Group
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images
from dalirefurb.kernels import program
from dalirefurb.kernels.buffers import Buffers, OutputBuffers
from dalirefurb.kernels.llvm import fetch_add
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from dalirefurb.kernels.program import Work
from tests.augment.test_operations import CASES, OURS, PICTURES, TABLES, WARPS
from tests.kernels.runners import runner_of
from tests.one_batch import MAX_BATCH_SIZE, levels, operate, operation_pipeline, serve, sizes

FILL = (10, 20, 30)
NAMES = sorted({case.name for case in CASES} - {"Equalize"})
OF_OPENCV = {*WARPS, "Color"}
LANES = 16
"""Columns that OpenCV handles at a time; it rounds twice in those that are left over, once in the others."""


@pytest.fixture(scope="module")
def pipelines():
    lane = DecodePipeline(None, max_rows=1, num_threads=2)
    yield DecodePipelines([], lane)
    lane.pool.close()


@pytest.fixture(scope="module")
def layer(request):
    return RandAugmentLayer(interpolation=request.param, fill=FILL)


@pytest.fixture(scope="module")
def pipeline(layer):
    return operation_pipeline(layer)


def part(stages, output, pipelines):
    return runner_of(steps_of(tuple(stages)), output, pipelines)


def parameters_of(recipe, samples):
    """What is drawn for each stage."""
    indices = np.arange(len(samples))
    heights, widths = sizes(recipe, samples)
    numbers = np.zeros_like(indices)
    arrays, _, _ = draw(
        recipe.stages, seed=0, indices=indices, numbers=numbers, heights=heights, widths=widths, versions=numbers
    )
    return arrays


def served(recipe, samples, pipelines):
    """What `serve` returns, made by kernels."""
    arrays = parameters_of(recipe, samples)
    feeds = {f"{stage}/{name}": rows for stage, named in arrays.items() for name, rows in named.items()}
    whole = part(recipe.stages, recipe.output, pipelines)
    whole.submit({"sample": samples, **feeds})
    return whole.collect().as_tensor()


def noise(*shapes):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


# Operations


def batches(name):
    """Every picture with every magnitude and sign of an operation, of every policy, as many at a time as fit."""
    kinds, matrices, group = [], [], 0
    heights, widths, _ = np.array([picture.shape for picture in PICTURES.values()]).T
    for case in CASES:
        if case.name == name:
            row = [operation.name for operation in OURS[case.policy]].index(name)
            choice = Chosen(*(np.full(len(PICTURES), value) for value in (row, case.bin, case.negated)))
            parameters = TABLES[case.policy].parameters(choice, heights=heights, widths=widths)
            group = parameters["group"][0]
            kinds += PICTURES
            matrices += list(parameters["matrix"])
    for start in range(0, len(kinds), MAX_BATCH_SIZE):
        some = slice(start, start + MAX_BATCH_SIZE)
        groups = np.full(len(kinds[some]), group, np.int32)
        yield kinds[some], {"group": groups, "matrix": np.array(matrices[some], np.float32)}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        *[("nearest", name) for name in NAMES],
        # Warps alone interpolate.
        *[pytest.param("bilinear", name, marks=[] if name in WARPS else pytest.mark.weekly) for name in NAMES],
    ],
    indirect=["layer"],
)
def test_an_operation_is_dalis_at_every_magnitude_but_for_what_is_stated(layer, pipeline, pipelines, name):
    kernels = part([layer], None, pipelines)
    for kinds, parameters in batches(name):
        pictures = [PICTURES[kind] for kind in kinds]
        kernels.submit({"sample": pictures, **{f"{layer.name}/{key}": rows for key, rows in parameters.items()}})
        expected = operate(pipeline, pictures, parameters)
        for kind, ours, theirs in zip(kinds, kernels.collect(), expected, strict=True):
            width = ours.shape[1]
            in_lanes = width // LANES * LANES if name in OF_OPENCV else width
            assert np.array_equal(ours[:, :in_lanes], theirs[:, :in_lanes]), kind
            if name == "Color" or layer.interpolation == "bilinear":
                assert np.abs(ours.astype(int) - theirs).max() <= 1, kind


def test_a_nearest_warp_differs_from_dalis_in_few_of_the_columns_left_over(pipelines):
    layer = RandAugmentLayer(fill=FILL)
    kernels, pipeline = part([layer], None, pipelines), operation_pipeline(layer)
    different = count = 0
    for name in WARPS:
        for kinds, parameters in batches(name):
            pictures = [PICTURES[kind] for kind in kinds]
            kernels.submit({"sample": pictures, **{f"{layer.name}/{key}": rows for key, rows in parameters.items()}})
            for ours, theirs in zip(kernels.collect(), operate(pipeline, pictures, parameters), strict=True):
                different += (ours != theirs).sum()
                count += ours.size
    assert different / count < 1e-4


@pytest.mark.parametrize(
    "stages",
    [
        [AutoAugmentFirst("first"), AutoAugmentSecond("second", first="first")],
        [TrivialAugmentLayer()],
        [RandAugmentLayer("one"), RandAugmentLayer("two")],
    ],
)
def test_every_policys_layers_serve_what_dali_serves(pipelines, stages):
    recipe = Recipe(stages, levels(64), 0)
    pictures = noise(*[(64, 64)] * 200)
    groups = [drawn["group"] for drawn in parameters_of(recipe, pictures).values()]
    alike = ~np.any(np.equal(groups, Group.EQUALIZE), axis=0)
    assert 100 < alike.sum() < 200
    assert np.array_equal(served(recipe, pictures, pipelines)[alike], serve(recipe, pictures)[alike])


def equalized(pictures, pipelines):
    layer = RandAugmentLayer()
    kernels, count = part([layer], None, pipelines), len(pictures)
    matrices = np.zeros((count, 3, 3), np.float32)
    groups = np.full(count, Group.EQUALIZE, np.int32)
    kernels.submit({"sample": pictures, f"{layer.name}/group": groups, f"{layer.name}/matrix": matrices})
    return list(kernels.collect())


def assert_equalized_as_by_pillow(pictures, pipelines):
    for picture, ours in zip(pictures, equalized(pictures, pipelines), strict=True):
        assert np.array_equal(ours, np.asarray(ImageOps.equalize(Image.fromarray(picture))))


def test_equalize_is_pillows_at_every_size(pipelines):
    rng = np.random.default_rng(0)
    sizes = [(1, 1), (1, 9), (9, 1), (15, 17), (16, 16), (17, 15), (2, 127), (2, 128), (32, 32), (33, 31), (224, 224)]
    pictures = list(PICTURES.values())
    for size in sizes:
        for spread in (1, 2, 60, 256):
            pictures.append(rng.integers(0, spread, (*size, 3)).astype(np.uint8))
            pictures.append((255 - rng.integers(0, spread, (*size, 3)) ** 2 // 256).astype(np.uint8))
            pictures.append(np.full((*size, 3), rng.integers(0, 256, 3), np.uint8))
    assert_equalized_as_by_pillow(pictures, pipelines)


def test_equalize_is_pillows_where_most_pixels_are_of_the_highest_level_or_of_the_lowest(pipelines):
    """Where a level's step is a whole pixel or two, more levels would come of it than there are."""
    pictures = []
    for count in (254, 255, 256, 509, 510, 511, 600):
        for most, others in ((255, 10), (0, 255), (200, 100)):
            picture = np.full((32, 32, 3), most, np.uint8)
            picture.reshape(-1, 3)[:count] = others
            pictures.append(picture)
    assert_equalized_as_by_pillow(pictures, pipelines)


def test_equalize_is_pillows_on_small_photographs(pipelines, shared_data):
    mosaics = [np.asarray(Image.open(path)) for path in sorted((shared_data / "cifar10").glob("test_*.webp"))]
    tiles = [np.ascontiguousarray(mosaic[:32, x : x + 32]) for mosaic in mosaics for x in range(0, 320, 32)]
    assert tiles[0].shape == (32, 32, 3)
    assert_equalized_as_by_pillow(tiles, pipelines)


# Geometry

SHAPES = [(300, 320), (97, 130), (64, 64), (1, 1), (1, 50), (50, 1), (3, 700), (700, 3), (65, 500)]


@pytest.mark.parametrize("flipped", [False, True])
def test_a_bilinear_crop_is_dalis_within_one_level(pipelines, flipped):
    stages = [RandomResizedCrop(64), *([HorizontalFlip()] if flipped else [])]
    recipe = Recipe(stages, levels(64), 0)
    pictures = noise(*SHAPES * 4)
    difference = np.abs(served(recipe, pictures, pipelines) - serve(recipe, pictures))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.02


@pytest.mark.parametrize("flipped", [False, True])
def test_a_nearest_crop_is_dalis(pipelines, flipped):
    stages = [RandomResizedCrop(64, interpolation="nearest"), *([HorizontalFlip()] if flipped else [])]
    recipe = Recipe(stages, levels(64), 0)
    pictures = noise(*SHAPES * 4)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


def test_a_resized_and_cropped_photograph_is_dalis_within_one_level(pipelines):
    recipe = Recipe([Resize(72), CenterCrop(64)], levels(64), 0)
    pictures = noise((300, 320), (97, 130), (72, 72), (200, 90), (65, 500))
    assert np.abs(served(recipe, pictures, pipelines) - serve(recipe, pictures)).max() <= 1


@pytest.mark.parametrize(
    ("crop", "size"),
    [
        (RandomCrop(32, margin=8), 40),
        (RandomCrop(32, margin=8, padding=4), 32),
        (RandomCrop(32, margin=8, padding=4, padding_mode="reflect"), 32),
        (RandomCrop(32), 41),
        (RandomCrop(32, padding=6), 41),
        (CenterCrop(32), 37),
    ],
)
def test_crops_and_flips_are_dalis(pipelines, crop, size):
    recipe = Recipe([crop, HorizontalFlip()], levels(32), 0)
    pictures = noise(*[(size, size)] * 100)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


def test_a_crop_larger_than_its_image_is_padded_on_all_sides(pipelines):
    recipe = Recipe([RandomCrop(32, margin=40, padding=20), HorizontalFlip()], levels(32), 0)
    pictures = noise(*[(32, 32)] * 100)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


@pytest.mark.parametrize("channels_last", [False, True])
def test_windows_of_mirrored_windows_are_dalis(pipelines, channels_last):
    stages = [HorizontalFlip(), RandomCrop(40, margin=8), HorizontalFlip(name="again"), CenterCrop(23)]
    recipe = Recipe(stages, Output(23, channels_last=channels_last), 0)
    pictures = noise(*[(48, 48)] * 40)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


# The output


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_output_is_dalis(pipelines, dtype, channels_last):
    recipe = Recipe([HorizontalFlip()], Output(33, dtype, channels_last=channels_last), 0)
    pictures = noise(*[(33, 33)] * 20)
    ours, theirs = served(recipe, pictures, pipelines), serve(recipe, pictures)
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


def test_bfloat16_is_rounded_as_torch_does(pipelines):
    """Also half between two numbers, to the even one."""
    high = np.array([0x0000, 0x0001, 0x3F80, 0x3F81, 0x437F, 0xBF80, 0xC0A1, 0x8001], np.uint32)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    numbers = (high[:, None] << 16 | low).view(np.float32)
    rounded = torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(program.brain_floats(numbers), rounded)
    pictures = noise(*[(8, 12)] * 4)
    floats, brains = (
        served(Recipe([HorizontalFlip()], Output((8, 12), dtype), 0), pictures, pipelines)
        for dtype in ("float32", "bfloat16")
    )
    assert np.array_equal(torch.from_numpy(floats).bfloat16().view(torch.int16).numpy().view(np.uint16), brains)


@pytest.mark.parametrize("channels_last", [False, True])
def test_numbers_that_go_past_the_caches_are_the_same(pipelines, monkeypatch, channels_last):
    output = Output(48, channels_last=channels_last)
    recipe = Recipe([RandomCrop(48, margin=8), HorizontalFlip()], output, 0)
    pictures = noise(*[(56, 56)] * 20)
    assert not program.streamed(output, len(pictures))
    kept = served(recipe, pictures, pipelines).copy()
    monkeypatch.setattr(program, "STREAMED_BYTES", 1)
    assert program.streamed(output, len(pictures))
    assert np.array_equal(served(recipe, pictures, pipelines), kept)


def test_a_batch_goes_past_the_caches_if_it_is_large_and_its_lines_are_whole_vectors():
    assert program.streamed(Output(224), 64)
    assert not program.streamed(Output(224), 16)
    assert not program.streamed(Output(32), 256)
    assert not program.streamed(Output(230), 256)
    assert program.streamed(Output((230, 224)), 64)
    assert not program.streamed(Output((224, 230)), 256)
    assert not program.streamed(Output(224, "float16"), 256)


def test_images_of_another_size_than_the_outputs_are_refused(pipelines):
    recipe = Recipe([HorizontalFlip()], levels(33), 0)
    with pytest.raises(LoaderError, match=r"images of the output's size 33 x 33, got 30 x 33"):
        served(recipe, noise((30, 33)), pipelines)


# Which stages have kernels


def test_a_flip_after_a_resize_costs_no_step_of_its_own():
    steps = steps_of((RandomResizedCrop(8), HorizontalFlip(), HorizontalFlip(name="again")))
    assert [step.code for step in steps] == [Code.RESIZE, Code.FLIP]


def test_a_users_variant_of_a_stage_has_no_kernel():
    class Blurred(RandAugmentLayer):
        def apply(self, images, parameters):
            return images

    class Other(CenterCrop):
        def apply(self, images, parameters):
            return images

    class Named(CenterCrop):
        """One that says nothing else of pixels."""

    assert steps_of((HorizontalFlip(), Blurred())) is None
    assert steps_of((Other(8),)) is None
    assert [step.kernels for step in steps_of((Named(8),))] == [("crop_flip.crop",)]


def test_a_variant_with_more_calls_than_its_stage_loses_none_after_a_resize():
    class Twice(RandomCrop):
        @property
        def kernel_calls(self):
            return [*super().kernel_calls, *Solarize(100).kernel_calls]

    steps = steps_of((Resize((24, 24)), Twice(16, margin=8), HorizontalFlip()))
    assert [step.kernels for step in steps] == [
        ("resize.bilinear",),
        ("crop_flip.crop",),
        ("levels.solarize",),
        ("crop_flip.flip",),
    ]


def test_a_variant_that_mirrors_another_way_is_no_flip_on_the_way():
    class Over(HorizontalFlip):
        VERTICAL = True

    steps = steps_of((Resize((24, 24)), Over()))
    assert [(step.kernels, step.mirror) for step in steps] == [
        (("resize.bilinear",), None),
        (("crop_flip.flip_over",), None),
    ]


# A batch's shares and memory


def test_pixels_do_not_depend_on_how_a_batch_is_shared_out(pipelines):
    recipe = Recipe([RandomResizedCrop(32), HorizontalFlip(), RandAugmentLayer()], Output(32), 0)
    pictures = noise(*SHAPES * 3)
    together = served(recipe, pictures, pipelines).copy()
    for count in (1, 4, 5):
        assert np.array_equal(served(recipe, pictures[:count], pipelines), together[:count])


def test_threads_and_their_owner_take_rows_of_one_batch_until_none_is_left(monkeypatch):
    """Whoever comes takes one row more than there is for it, and none is taken twice.

    A thread that was late for a batch comes to the next one twice: it was called twice.
    """
    count, threads, batches = 5000, 4, 20
    begun = []
    part_of = Work.part

    def noted(self, taken):
        mine = part_of(self, taken)
        if len(taken) == count:
            begun.append((mine, mine.kept[1]))
        return mine

    monkeypatch.setattr(Work, "part", noted)
    lane = DecodePipeline(None, max_rows=1, num_threads=threads + 1)
    kernels = part([HorizontalFlip()], None, DecodePipelines([], lane))
    pictures = noise((count, 8, 8))[0]
    for _ in range(batches):
        kernels.submit({"sample": pictures, "flip/mirror": np.ones(count, np.int32)})
        assert np.array_equal(kernels.collect().as_tensor(), pictures[:, :, ::-1])
    lane.pool.close()
    lane.pool.join()
    came = [taken[0] - count for _, taken in begun]
    assert len(came) == batches
    assert min(came) >= 1  # the owner
    assert batches < sum(came) <= batches * (1 + threads)


def test_no_two_threads_take_the_same_row():
    @njit(nogil=True)
    def take(begun, rows):
        for place in range(rows.size):
            rows[place] = fetch_add(begun, 1)

    take(np.zeros(1, np.int64), np.empty(0, np.int64))  # compiles
    threads, each = 4, 1_000_000
    begun, rows, all_there = np.zeros(1, np.int64), np.empty((threads, each), np.int64), threading.Barrier(threads)

    def work(mine):
        all_there.wait(600)
        take(begun, mine)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, rows))
    assert np.array_equal(np.sort(rows, axis=None), np.arange(threads * each))


def test_sources_stay_as_they_are(pipelines):
    recipe = Recipe([RandAugmentLayer("one"), RandAugmentLayer("two"), HorizontalFlip()], Output(32), 0)
    pictures = noise(*[(32, 32)] * 50)
    copies = [picture.copy() for picture in pictures]
    served(recipe, pictures, pipelines)
    assert all(np.array_equal(*pair) for pair in zip(pictures, copies, strict=True))


def test_memory_is_lent_again_once_no_part_of_it_is_referred_to():
    buffers = Buffers(3)
    first = buffers.take((4, 6), "float32")
    address, row = first.ctypes.data, first[2:3].T
    del first
    assert buffers.take((4, 6), "float32").ctypes.data != address
    del row
    again = [buffers.take((4, 6), "float32") for _ in range(2)]
    assert address in [each.ctypes.data for each in again]


def test_memory_that_was_lent_at_once_for_a_while_is_not_kept_for_good():
    buffers = Buffers(3)
    tracemalloc.start()
    many = [buffers.take((1 << 20,), "uint8") for _ in range(20)]
    assert tracemalloc.get_traced_memory()[0] > 20 << 20
    del many
    assert tracemalloc.get_traced_memory()[0] < 5 << 20
    tracemalloc.stop()


def test_as_much_memory_as_is_said_is_kept():
    buffers = Buffers(5)
    lent = [buffers.take((7, 7), "uint8") for _ in range(5)]
    addresses = {each.ctypes.data for each in lent}
    while lent:
        lent.pop()
    lent = [buffers.take((7, 7), "uint8") for _ in range(5)]
    assert {each.ctypes.data for each in lent} == addresses


def test_batches_of_many_sizes_take_the_memory_of_the_largest():
    """Three at a time, as runs follow each other; how many rows a run computes varies."""
    buffers, rng = Buffers(3), np.random.default_rng(0)
    kept = [buffers.take((64, 3), "uint8") for _ in range(3)]
    largest = {each.ctypes.data for each in kept}
    kept = []
    seen = set()
    for rows in rng.integers(1, 65, 200).tolist():
        kept = [*kept[-1:], buffers.take((rows, 3), "uint8")]
        kept[-1][:] = rows
        seen.add(kept[-1].ctypes.data)
        assert all((each == len(each)).all() for each in kept)
    assert seen == largest


@pytest.mark.parametrize("kind", [(2, 6, 4, 3), (2, 4, 6, 3)])
def test_room_of_a_store_is_taken_for_images_of_its_shape_alone(kind):
    room = Images(np.zeros(kind, np.uint8))
    images = OutputBuffers(3, lambda count: room).partials(np.array([[4, 6]] * 2))
    assert [image.shape for image in images] == [(4, 6, 3)] * 2
    assert (images is room) == (kind[1:] == (4, 6, 3))


def test_a_part_that_is_restarted_goes_on_with_what_comes_after(pipelines):
    recipe = Recipe([HorizontalFlip()], levels(16), 0)
    kernels = part(recipe.stages, recipe.output, pipelines)
    flips = {"flip/mirror": np.zeros(3, np.int32)}
    kernels.submit({"sample": noise(*[(16, 16)] * 3), **flips})
    kernels.restart()
    pictures = [np.full((16, 16, 3), level, np.uint8) for level in range(3)]
    kernels.submit({"sample": pictures, **flips})
    assert np.array_equal(kernels.collect().as_tensor()[:, 0, 0, 0], [0, 1, 2])
