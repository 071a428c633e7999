"""Kernels of both parts: rows that are computed, pinned and shared, and batches in order."""

import io

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("numba", reason="Numba is not installed")

from dalirefurb.augment import (
    Decode,
    HorizontalFlip,
    HostStage,
    RandAugmentLayer,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.dali import Graph, GraphError, cut_window
from dalirefurb.image_batch import Images, Rows
from dalirefurb.kernels import runner as runner_module
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from dalirefurb.kernels.rows import KernelThreadPool
from tests.kernels.runners import runner_of
from tests.one_batch import levels

STAGES = [RandomResizedCrop(40), RandAugmentLayer("one"), HorizontalFlip(), RandomCrop(32, margin=8)]
PICTURES = [np.random.default_rng(number).integers(0, 256, (50 + number, 60, 3), np.uint8) for number in range(6)]
COUNT = len(PICTURES)
COMPUTED, PINNED, SHARED = np.array([0, 3, 4]), np.array([1, 2]), np.array([5])


@pytest.fixture(scope="module")
def pool():
    pool = KernelThreadPool(1)
    yield pool
    pool.close()


class Watched(DecodePipelines):
    """DecodePipelines that note what becomes of batches, and fail when they are told."""

    def __init__(self, *, in_turn=False):
        super().__init__([], DecodePipeline(None, max_rows=1, num_threads=2))
        self.turns = in_turn
        self.fails = False

    @property
    def in_turn(self):
        return self.turns

    def collect(self):
        super().collect()
        if self.fails:
            raise GraphError("no image")


def both_of(recipe, pool, pipelines=None):
    steps = steps_of(recipe.partial)
    return runner_of((*steps, *steps_of(recipe.final)), recipe.output, pipelines or Watched(), pool, split=len(steps))


def decoding_both(recipe, pool, shares):
    """Both parts of a recipe after decoding, by so many pipelines; a window that comes first is cut on the way."""
    encoded = Recipe([Decode(), *recipe.stages], recipe.output, recipe.split + 1)
    window = cut_window(encoded)
    graph = Graph(encoded, "decoded")
    pipelines = [DecodePipeline(graph, max_rows=COUNT, num_threads=2) for _ in range(shares)]
    steps = steps_of(recipe.partial)
    return runner_of(
        (*steps, *steps_of(recipe.final)),
        recipe.output,
        DecodePipelines(pipelines, DecodePipeline(None, max_rows=1, num_threads=2)),
        pool,
        split=len(steps),
        encoded=True,
        window=window and window.name,
    )


def png(picture):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "png")
    return np.frombuffer(file.getvalue(), np.uint8)


def alone(steps, output, feeds, images):
    part = runner_of(steps, output, Watched())
    part.submit({"sample": images, **feeds})
    return part.collect()


def drawn(recipe):
    heights, widths = np.array([picture.shape[:2] for picture in PICTURES]).T
    numbers = np.zeros(COUNT, np.int64)
    arrays, _, _ = draw(
        recipe.stages,
        seed=0,
        indices=np.arange(COUNT),
        numbers=numbers,
        heights=heights,
        widths=widths,
        versions=numbers,
    )
    return {f"{stage}/{name}": rows for stage, named in arrays.items() for name, rows in named.items()}


def some(feeds, rows):
    return {name: values[rows] for name, values in feeds.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("decoding", [0, 1, 2])
@pytest.mark.parametrize("split", range(len(STAGES) + 1))
def test_rows_are_those_of_each_part_alone_wherever_their_images_come_from(pool, split, decoding, dtype):
    recipe = Recipe(STAGES, Output(32, dtype=dtype), split)
    feeds = drawn(recipe)
    partial = alone(steps_of(recipe.partial), None, feeds, PICTURES)
    # The last row shows the same partial image as one that is computed.
    images = [*[*partial][:5], partial[COMPUTED[1]]]
    expected = alone(steps_of(recipe.final), recipe.output, feeds, images).as_tensor()
    both = decoding_both(recipe, pool, decoding) if decoding else both_of(recipe, pool)
    pinned = Rows(PINNED, Images([partial[row] for row in PINNED]))
    pictures = [PICTURES[row] for row in COMPUTED]
    samples = [png(picture) for picture in pictures] if decoding else pictures
    sizes = np.array([picture.shape[:2] for picture in pictures])
    computed = {"sample": samples, "sizes": sizes, **some(feeds, COMPUTED)}
    both.submit(computed, feeds, rows=COMPUTED, count=COUNT, pinned=pinned)
    images = both.collect_partial()
    seen = [image.copy() for image in images]
    assert np.array_equal(both.finish([Rows(SHARED, images.chosen(np.array([1])))]).as_tensor(), expected)
    for row, image in zip(COMPUTED, seen, strict=True):
        assert np.array_equal(image, partial[row])


def test_a_batch_of_which_images_at_hand_alone_have_other_sizes_is_made_of_these(pool):
    recipe = Recipe([Resize((32, 32))], Output(32), 0)
    feeds, both = some(drawn(recipe), slice(2)), both_of(recipe, pool)
    for width in (30, 60):
        other = np.ascontiguousarray(PICTURES[1][:, :width])
        pinned = Rows(np.array([1]), Images([other]))
        both.submit({"sample": PICTURES[:1]}, feeds, rows=np.array([0]), count=2, pinned=pinned)
        expected = alone(steps_of(recipe.final), recipe.output, feeds, [PICTURES[0], other])
        assert np.array_equal(both.collect().as_tensor(), expected.as_tensor())


def flipped(level):
    return [np.full((16, 16, 3), level, np.uint8)]


def test_of_an_image_at_hand_that_a_function_fails_of_the_sample_is_named(pool):
    def picky(image):
        if image[0, 0, 0] == 200:
            raise KeyError("no such colour")
        return image

    both = both_of(Recipe([HostStage(picky, "picky")], levels(16), 0), pool)
    pinned = Rows(np.array([0]), Images(flipped(200)))
    computed = {"sample": flipped(100), "index": np.array([7])}
    both.submit(computed, {"index": np.array([9, 7])}, rows=np.array([1]), count=2, pinned=pinned)
    with pytest.raises(GraphError, match=r"stage 'picky' must not fail, but of sample 9, which source\.name"):
        both.collect()


def begun_with(pipelines, pool, batches):
    """Both parts, given a few batches of one row each."""
    recipe = Recipe([HorizontalFlip(name="early"), HorizontalFlip(name="late")], levels(16), 1)
    both = both_of(recipe, pool, pipelines)
    mirror = np.zeros(1, np.int32)
    for batch in range(batches):
        partial = {"sample": flipped(batch), "early/mirror": mirror}
        both.submit(partial, {"late/mirror": mirror})
    return both


def level_of(both):
    return both.collect().as_tensor()[0, 0, 0, 0]


def test_batches_come_in_order_though_all_are_begun(pool):
    both = begun_with(Watched(), pool, 3)
    assert [level_of(both) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("in_turn", "waits"), [(True, [True, False]), (False, [False, False])])
def test_only_where_one_lane_decodes_those_who_hand_over_are_waited_for(pool, monkeypatch, in_turn, waits):
    both = begun_with(Watched(in_turn=in_turn), pool, 2)
    slept = []
    monkeypatch.setattr(runner_module.time, "sleep", slept.append)
    for number, wait in enumerate(waits, 1):
        level_of(both)
        both.handed_over()
        assert len(slept) == wait, number
        assert all(0 < seconds < 0.005 for seconds in slept)
        slept.clear()


def test_a_batch_that_cannot_be_decoded_is_lost_and_the_next_is_not(pool):
    pipelines = Watched()
    both = begun_with(pipelines, pool, 2)
    pipelines.fails = True
    with pytest.raises(GraphError, match="no image"):
        level_of(both)
    pipelines.fails = False
    assert level_of(both) == 1


def test_batches_in_flight_are_forgotten(pool):
    pipelines = Watched()
    both = begun_with(pipelines, pool, 3)
    both.restart()
    assert not pipelines._running
    mirror = np.zeros(1, np.int32)
    both.submit({"sample": flipped(7), "early/mirror": mirror}, {"late/mirror": mirror})
    assert level_of(both) == 7
