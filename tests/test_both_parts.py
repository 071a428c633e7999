"""Kernels of both parts: rows that are computed, lent and borrowed, and batches in order."""

from collections import deque

import numpy as np
import pytest

pytest.importorskip("numba", reason="the extra `fast` is not installed")

from dalirefurb.augment import HorizontalFlip, RandAugmentLayer, RandomCrop, RandomResizedCrop
from dalirefurb.background import Background
from dalirefurb.graph import GraphError
from dalirefurb.images import Images, Rows
from dalirefurb.kernels import both_parts
from dalirefurb.kernels.both_parts import BothParts
from dalirefurb.kernels.part import KernelPart
from dalirefurb.kernels.steps import steps_of
from dalirefurb.recipe import Output, Recipe, draw
from tests.one_batch import levels

STAGES = [RandomResizedCrop(40), RandAugmentLayer("one"), HorizontalFlip(), RandomCrop(32, margin=8)]
PICTURES = [np.random.default_rng(number).integers(0, 256, (50 + number, 60, 3), np.uint8) for number in range(6)]
COUNT = len(PICTURES)
COMPUTED, LENT, BORROWED = np.array([0, 3, 4]), np.array([1, 2]), np.array([5])
NONE = Rows(np.empty(0, np.int64), Images(()))


class Decoder:
    """Stands for DALI's pipelines: samples are images already."""

    def __init__(self, shares=1):
        self.shares = shares
        self.begun = 0
        self.fails = False
        self._images = deque()

    def submit(self, feeds):
        self.begun += 1
        self._images.append(Images.of(feeds["sample"]))

    def collect(self):
        images = self._images.popleft()
        if self.fails:
            raise GraphError("no image")
        return images

    def restart(self):
        self._images.clear()


@pytest.fixture(scope="module")
def crew():
    workers = Background(2, name="workers"), Background(1, name="patient", patient=True)
    yield workers
    for each in workers:
        each.close()


def both_of(recipe, crew, decoding=None):
    return BothParts(
        steps_of(recipe.partial),
        steps_of(recipe.final),
        recipe.output,
        decoding=decoding,
        cut=False,
        workers=crew[0],
        patient=crew[1],
        num_threads=2,
        most_results=3,
    )


def alone(steps, output, crew, feeds, images):
    part = KernelPart(
        steps, output, entering="sample", decoding=None, cut=False, workers=crew[0], num_workers=2, most_results=3
    )
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
@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("split", range(len(STAGES) + 1))
def test_rows_are_those_of_each_part_alone_wherever_their_images_come_from(crew, split, decoded, dtype):
    recipe = Recipe(STAGES, Output(32, dtype=dtype), split)
    feeds = drawn(recipe)
    partial = alone(steps_of(recipe.partial), None, crew, feeds, PICTURES)
    # The last row shows the same partial image as one that is computed.
    images = [*[*partial][:5], partial[COMPUTED[1]]]
    expected = alone(steps_of(recipe.final), recipe.output, crew, feeds, images).as_tensor()
    both = both_of(recipe, crew, Decoder() if decoded else None)
    lent = Rows(LENT, Images([partial[row] for row in LENT]))
    samples = [PICTURES[row] for row in COMPUTED]
    both.submit(COMPUTED, {"sample": samples, **some(feeds, COMPUTED)}, feeds, COUNT, lent)
    seen = []

    def borrowed(computed):
        seen.extend(image.copy() for image in computed)
        return [Rows(BORROWED, computed.chosen(np.array([1])))]

    assert np.array_equal(both.collect(borrowed).as_tensor(), expected)
    for row, image in zip(COMPUTED, seen, strict=True):
        assert np.array_equal(image, partial[row])


def flipped(level):
    return [np.full((16, 16, 3), level, np.uint8)]


def begun_with(decoder, crew, batches):
    """Both parts, given a few batches of one row each."""
    recipe = Recipe([HorizontalFlip(name="early"), HorizontalFlip(name="late")], levels(16), 1)
    both = both_of(recipe, crew, decoder)
    row, mirror = np.zeros(1, np.int64), np.zeros(1, np.int32)
    for batch in range(batches):
        partial = {"sample": flipped(batch), "early/mirror": mirror}
        both.submit(row, partial, {"late/mirror": mirror}, 1, NONE)
    return both


def level_of(both):
    return both.collect(lambda images: []).as_tensor()[0, 0, 0, 0]


def test_batches_come_in_order_though_all_are_being_decoded(crew):
    decoder = Decoder()
    both = begun_with(decoder, crew, 3)
    assert decoder.begun == 3
    assert [level_of(both) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("shares", "waits"), [(1, [True, False]), (2, [False, False])])
def test_only_where_one_pipeline_decodes_those_who_hand_over_are_waited_for(crew, monkeypatch, shares, waits):
    both = begun_with(Decoder(shares), crew, 2)
    slept = []
    monkeypatch.setattr(both_parts.time, "sleep", slept.append)
    for number, wait in enumerate(waits, 1):
        level_of(both)
        both.handed_over()
        assert bool(slept) == wait, number
        slept.clear()


def test_a_batch_that_cannot_be_decoded_is_lost_and_the_next_is_not(crew):
    decoder = Decoder()
    both = begun_with(decoder, crew, 2)
    decoder.fails = True
    with pytest.raises(GraphError, match="no image"):
        level_of(both)
    decoder.fails = False
    assert level_of(both) == 1


def test_batches_in_flight_are_forgotten(crew):
    decoder = Decoder()
    both = begun_with(decoder, crew, 3)
    both.restart()
    mirror = np.zeros(1, np.int32)
    both.submit(np.zeros(1, np.int64), {"sample": flipped(7), "early/mirror": mirror}, {"late/mirror": mirror}, 1, NONE)
    assert level_of(both) == 7


def test_what_is_lent_is_finished_before_the_rest_is_decoded(crew):
    recipe = Recipe([HorizontalFlip(name="early"), HorizontalFlip(name="late")], Output(16), 1)
    both = both_of(recipe, crew, Decoder())
    mirrors = np.ones(2, np.int32)
    lent = Rows(np.array([1]), Images(flipped(9)))
    partial = {"sample": flipped(3), "early/mirror": mirrors[:1]}
    both.submit(np.array([0]), partial, {"late/mirror": mirrors}, 2, lent)
    (job,) = both._batches[0].jobs
    job.result(60)
    both.restart()


@pytest.mark.parametrize(("computed", "expected"), [([0], ["patient"]), ([], ["workers"])])
def test_who_finishes_what_is_lent_gives_way_only_where_there_is_something_to_decode(
    crew, monkeypatch, computed, expected
):
    both = both_of(Recipe([HorizontalFlip(name="early"), HorizontalFlip(name="late")], Output(16), 1), crew, Decoder())
    asked = []
    submit = Background.submit

    def noted(self, work, hands=1):
        asked.append("patient" if self is crew[1] else "workers")
        return submit(self, work, hands)

    monkeypatch.setattr(Background, "submit", noted)
    mirrors, rows = np.zeros(2, np.int32), np.array(computed, np.int64)
    partial = {"sample": flipped(3)[: len(rows)], "early/mirror": mirrors[: len(rows)]}
    both.submit(rows, partial, {"late/mirror": mirrors}, 2, Rows(np.array([1]), Images(flipped(9))))
    assert asked == expected
    both.restart()
