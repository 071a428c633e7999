"""Do lanes carry out all of a batch's work, each row once, in order, whatever fails and whoever leaves?"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba", reason="Numba is not installed")

from numba import types

from dalirefurb.augment import CenterCrop, Decode, HorizontalFlip, Resize
from dalirefurb.augment.output import Output
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.dali import Graph, GraphError
from dalirefurb.image_batch import Images, row_addresses
from dalirefurb.kernels import rows as loop
from dalirefurb.kernels.llvm import c_function, fetch_add, memory
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import LAST, DecodePipeline, DecodePipelines, shared_out
from dalirefurb.kernels.program import KernelProgram, Scratch, Work
from dalirefurb.kernels.record import DONE, WORK
from dalirefurb.kernels.rows import KernelThreadPool
from tests.one_batch import levels
from tests.pictures import jpeg, picture
from tests.pipelines import living_pipelines

SIZE = 16


@pytest.fixture
def lane() -> Iterator[DecodePipeline]:
    lane = DecodePipeline(None, max_rows=1, num_threads=3)
    yield lane
    lane.pool.close()
    lane.pool.join()


def work_of(computed: int, lent: int = 0, targets: NDArray[np.int64] | None = None) -> Work:
    """What has rows and no steps; stand-ins for kernels count in `targets`."""
    record, done = np.zeros(1, WORK), np.zeros(computed + lent, np.uint8)
    record["count"], record["done"] = len(done), done.ctypes.data
    record["targets"] = 0 if targets is None else targets.ctypes.data
    none = np.empty(0, np.int64)
    return Work(record, len(done), computed, Images(()), Scratch(), done, none, {}, kept=targets)


NO_ROWS = np.empty(0, np.int64)


class Noted:
    """Stands for a lane: it notes which rows it takes. A row of 255 cannot be decoded."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.decoded: list[list[int]] = []
        self._running: deque[NDArray[np.uint8]] = deque()

    def submit(self, work: Work, feeds: Mapping[str, Any], rows: NDArray[np.int64] = NO_ROWS) -> None:
        self.taken.append(work.taken.tolist())
        self.decoded.append(rows.tolist())
        self._running.append(np.array([sample[0] for sample in feeds.get("sample", ())], np.uint8))

    def collect(self) -> None:
        for row in np.flatnonzero(self._running.popleft() == 255).tolist():
            raise GraphError(f"Failed to decode sample #{row}")

    def restart(self) -> None:
        self._running.clear()


def noted(shares: int) -> tuple[DecodePipelines, list[Noted], Noted]:
    decoding, direct = [Noted() for _ in range(shares)], Noted()
    return DecodePipelines(decoding, direct), decoding, direct  # type: ignore[arg-type]


def samples(*firsts: int) -> dict[str, Any]:
    return {"sample": [np.array([first], np.uint8) for first in firsts]}


@pytest.mark.parametrize("shares", [1, 2, 3])
@pytest.mark.parametrize("computed", [1, 2, 5, 8])
@pytest.mark.parametrize("lent", [0, 1, 7])
def test_each_row_is_taken_once_by_the_lane_that_decodes_it(shares: int, computed: int, lent: int) -> None:
    lanes, decoding, direct = noted(shares)
    lanes.submit(work_of(computed, lent), samples(*range(computed)))
    taken = [rows for each in decoding for rows in each.taken]
    assert sorted(row for rows in taken for row in rows) == list(range(computed + lent))
    assert not direct.taken
    for each in decoding:
        for rows, decoded in zip(each.taken, each.decoded, strict=True):
            assert decoded
            assert decoded == [row for row in rows if row < computed]
    lanes.collect()


def test_what_is_lent_comes_between_what_is_computed_and_at_the_end() -> None:
    lanes, decoding, _ = noted(1)
    lanes.submit(work_of(4, 12 + LAST), samples(*range(4)))
    (rows,) = decoding[0].taken
    computed = np.array(rows) < 4
    assert computed[:-LAST].reshape(4, 4).sum(1).tolist() == [1] * 4
    assert not computed[-LAST:].any()


@pytest.mark.parametrize("shares", [1, 2])
def test_images_among_encoded_samples_are_decoded_by_nobody_and_taken_once(shares: int) -> None:
    lanes, decoding, direct = noted(shares)
    given = samples(*range(7))
    for row in (0, 3, 4):
        given["sample"][row] = np.zeros((2, 2, 3), np.uint8)
    lanes.submit(work_of(7, 5), given)
    assert sorted(row for each in decoding for rows in each.taken for row in rows) == list(range(12))
    assert sorted(row for each in decoding for rows in each.decoded for row in rows) == [1, 2, 5, 6]
    assert not direct.taken
    lanes.submit(work_of(2, 1), {"sample": [np.zeros((2, 2, 3), np.uint8)] * 2})
    assert sorted(direct.taken[0]) == [0, 1, 2]


def test_two_lanes_decode_where_each_has_two_threads_and_no_thread_is_left_out() -> None:
    expected = {1: (1, 1), 2: (1, 2), 3: (1, 3), 4: (2, 2), 5: (2, 3), 8: (2, 4)}
    assert {count: shared_out(count) for count in expected} == expected


def test_what_needs_no_decoding_goes_to_no_lane_that_decodes() -> None:
    lanes, decoding, direct = noted(2)
    lanes.submit(work_of(0, 4), {})
    assert direct.taken == [[0, 1, 2, 3]]
    assert not decoding[0].taken
    assert not decoding[1].taken
    lanes.collect()


@pytest.mark.parametrize(
    ("nbytes", "expected"), [([1, 1, 1, 1], [2, 2]), ([6, 1, 2, 3], [1, 3]), ([1, 1, 1, 9], [3, 1]), ([1, 9], [1, 1])]
)
def test_each_lane_decodes_half_of_the_bytes(nbytes: list[int], expected: list[int]) -> None:
    lanes, decoding, _ = noted(2)
    lanes.submit(work_of(len(nbytes)), {"sample": [np.zeros(size, np.uint8) for size in nbytes]})
    assert [len(each.taken[0]) for each in decoding] == expected


@pytest.mark.parametrize("bad", [(0,), (2,), (3,), (4,), (1, 4)])
def test_a_batch_that_fails_names_its_first_row_and_does_not_disturb_the_next(bad: tuple[int, ...]) -> None:
    lanes, _, _ = noted(2)
    lanes.submit(work_of(5), samples(*(255 if row in bad else row for row in range(5))))
    lanes.submit(work_of(3), samples(7, 8, 9))
    with pytest.raises(GraphError) as caught:
        lanes.collect()
    assert caught.value.row == bad[0]
    lanes.collect()


def test_what_every_lane_has_in_flight_is_forgotten() -> None:
    lanes, decoding, direct = noted(2)
    lanes.submit(work_of(4), samples(255, 255, 255, 255))
    lanes.submit(work_of(0, 2), {})
    lanes.restart()
    assert not any(each._running for each in (*decoding, direct))
    lanes.submit(work_of(3), samples(7, 8, 9))
    lanes.collect()


# With DALI


def decoding_lane() -> tuple[DecodePipeline, KernelProgram]:
    stages = (Decode(), Resize(SIZE), CenterCrop(SIZE))
    recipe = Recipe(stages, levels(SIZE), 1)
    steps = steps_of(stages[1:])
    assert steps is not None
    lane = DecodePipeline(Graph(recipe, "decoded"), max_rows=4, num_threads=2)
    return lane, KernelProgram(steps, recipe.output, encoded=True)


def work_for(program: KernelProgram, sizes: list[tuple[int, int]]) -> tuple[Work, NDArray[Any]]:
    count = len(sizes)
    results = np.full((count, 3, SIZE, SIZE), -1, np.float32)
    feeds: dict[str, Any] = {"sample": [np.zeros(1, np.uint8)] * count, "sizes": np.array(sizes)}
    heights, widths = feeds["sizes"].T
    stages, indices = (Resize(SIZE), CenterCrop(SIZE)), np.arange(count)
    drawn, _, _ = draw(stages, seed=0, indices=indices, numbers=indices, heights=heights, widths=widths)
    feeds |= {f"{stage}/{name}": rows for stage, arrays in drawn.items() for name, rows in arrays.items()}
    work = program.work(feeds, results=results, targets=row_addresses(results))
    return work.part(np.arange(count)), results


def encoded(*sizes: tuple[int, int]) -> dict[str, Any]:
    return {
        "sample": [
            np.frombuffer(jpeg(picture(seed, height=height, width=width)), np.uint8)
            for seed, (height, width) in enumerate(sizes)
        ]
    }


@pytest.mark.parametrize("other", [(30, 21), (31, 20)])
def test_an_image_of_another_size_than_its_header_says_is_named_and_nothing_is_written(other: tuple[int, int]) -> None:
    lane, program = decoding_lane()
    wrong, results = work_for(program, [(20, 30), (30, 20), (20, 30)])
    lane.submit(wrong, encoded((20, 30), other, (20, 30)), np.arange(3))
    right, others = work_for(program, [(20, 30), (30, 20)])
    lane.submit(right, encoded((20, 30), (30, 20)), np.arange(2))
    with pytest.raises(GraphError, match="another size than its header says") as caught:
        lane.collect()
    assert caught.value.row == 1
    assert (results == -1).all()
    lane.collect()
    assert (others >= 0).all()
    lane.pool.close()


def test_after_what_cannot_be_decoded_the_lane_goes_on() -> None:
    lane, program = decoding_lane()
    feeds = encoded((20, 30), (20, 30))
    feeds["sample"][1] = np.zeros(100, np.uint8)
    work, untouched = work_for(program, [(20, 30)] * 2)
    lane.submit(work, feeds, np.arange(2))
    work, results = work_for(program, [(20, 30)])
    lane.submit(work, encoded((20, 30)), np.arange(1))
    with pytest.raises(GraphError):
        lane.collect()
    assert (untouched == -1).all()
    lane.collect()
    assert (results >= 0).all()
    lane.pool.close()


# Threads


def slow(seconds: float) -> Any:
    """A stand-in for kernels: it takes a row at a time, and counts, in what targets address, those that it did."""
    microseconds = int(1e6 * seconds)
    sleep = types.ExternalFunction("usleep", types.int32(types.uint32))

    def run(address: Any, thread: Any) -> None:
        work = memory(address, (1,), WORK)[0]
        begun, count = memory(work.begun, (1,), np.int64), memory(work.targets, (1,), np.int64)
        done = memory(work.done, (work.count,), np.uint8)
        row = fetch_add(begun, 1)
        while row < work.rows:
            sleep(microseconds)
            fetch_add(count, 1)
            done[row] = DONE
            row = fetch_add(begun, 1)

    return c_function(run, types.void(types.int64, types.int64))


def counted(rows: int) -> tuple[Work, NDArray[np.int64]]:
    count = np.zeros(1, np.int64)
    return work_of(rows, targets=count).part(np.arange(rows)), count


def wait_until_begun(work: Work) -> None:
    """Wait until a thread has taken the first row."""
    begun = memory_of(int(work.record["begun"][0]))
    deadline = time.monotonic() + 600
    while not begun[0] and time.monotonic() < deadline:
        time.sleep(0.001)


def memory_of(address: int) -> NDArray[np.int64]:
    return np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * 1).from_address(address))


@pytest.fixture
def run_slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def use(seconds: float) -> None:
        run = slow(seconds)
        monkeypatch.setattr(loop, "compile_run", lambda: run)

    return use


def test_threads_and_their_owner_work_side_by_side_and_it_waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes back before all four have come in."""
    sleep = types.ExternalFunction("usleep", types.int32(types.uint32))

    def meet(address: Any, thread: Any) -> None:
        work = memory(address, (1,), WORK)[0]
        inside = memory(work.targets, (2,), np.int64)
        fetch_add(inside, 1)
        for _ in range(60_000):
            if inside[0] >= 4:
                break
            sleep(1000)
        fetch_add(inside[1:], 1)

    run = c_function(meet, types.void(types.int64, types.int64))
    monkeypatch.setattr(loop, "compile_run", lambda: run)
    pool = KernelThreadPool(3)
    for _ in range(20):
        counts = np.zeros(2, np.int64)
        pool.share(work_of(1, targets=counts))
        assert counts.tolist() == [4, 4]
    pool.close()
    pool.join()


def test_a_pool_that_is_closed_leaves_its_owner_to_work_alone(run_slowly: Callable[[float], None]) -> None:
    run_slowly(0.001)
    pool = KernelThreadPool(2)
    pool.start()
    pool.close()
    pool.join()
    assert not any(thread.is_alive() for thread in pool._threads)
    work, done = counted(5)
    pool.share(work)
    assert done[0] == 5


def test_threads_end_with_the_pool(run_slowly: Callable[[float], None]) -> None:
    run_slowly(0)
    pool = KernelThreadPool(2)
    pool.share(counted(1)[0])
    mine = pool._threads
    del pool
    for thread in mine:
        thread.join(600)
        assert not thread.is_alive()


def test_threads_that_come_late_find_nothing(run_slowly: Callable[[float], None]) -> None:
    """Many short pieces of work: threads wake up during others than those that they were woken for."""
    run_slowly(0)
    pool = KernelThreadPool(4)
    for _ in range(3000):
        work, done = counted(3)
        pool.share(work)
        assert done[0] == 3
    pool.close()
    pool.join()


def test_threads_are_known_by_their_names_and_keep_no_process_alive(lane: DecodePipeline) -> None:
    """By how these begin a loader tells its own threads from the training's."""
    other = DecodePipeline(None, max_rows=1, num_threads=2)
    pools = DecodePipelines([other], lane).pools()
    assert pools == [other.pool, lane.pool]
    assert [[thread.name for thread in pool._threads] for pool in pools] == [
        ["dalirefurb-kernels_0"],
        ["dalirefurb-kernels_0", "dalirefurb-kernels_1"],
    ]
    assert all(thread.daemon for pool in pools for thread in pool._threads)


def test_a_lane_has_the_threads_that_are_asked_for_and_one_more_where_it_decodes(lane: DecodePipeline) -> None:
    """Of those of kernels the pipeline's own is one."""
    decoding, _ = decoding_lane()
    for each, kernels, graphs in ((lane, 2, 1), (decoding, 2, 2)):
        pipeline = each._replica._pipeline
        assert pipeline is not None
        assert (len(each.pool._threads), pipeline.num_threads) == (kernels, graphs)


def test_no_thread_is_made_before_there_is_something_to_do() -> None:
    before = threading.active_count()
    lane = DecodePipeline(None, max_rows=1, num_threads=4)
    assert threading.active_count() == before
    lane.pool.close()
    lane.pool.join()


@pytest.mark.parametrize("leave", ["drop", "restart"])
def test_work_that_is_left_keeps_its_memory_until_nobody_is_at_it(
    leave: str, run_slowly: Callable[[float], None]
) -> None:
    """Pipelines know addresses only: what lies there must not be given to somebody else."""
    run_slowly(0.2)
    lane = DecodePipeline(None, max_rows=1, num_threads=1)
    work, done = counted(2)
    counts = done.copy()
    address = done.ctypes.data

    def at_end() -> None:
        counts[0] = memory_of(address)[0]

    weakref.finalize(done, at_end)
    lane.submit(work, {})
    wait_until_begun(work)
    del work, done
    if leave == "drop":
        del lane
    else:
        lane.restart()
    gc.collect()
    assert counts[0] == 2


def test_a_pipeline_that_somebody_refers_to_does_not_go_on_after_a_restart(
    run_slowly: Callable[[float], None],
) -> None:
    """The traceback of an error does, and what the pipeline was fed is gone by then."""
    run_slowly(0.1)
    lane = DecodePipeline(None, max_rows=1, num_threads=1)
    given = [counted(2) for _ in range(3)]
    for work, _ in given:
        lane.submit(work, {})
    wait_until_begun(given[0][0])
    pipeline = lane._replica._pipeline
    assert pipeline is not None
    lane.restart()
    done = [int(count[0]) for _, count in given]
    assert done[0] == 2
    assert set(done) <= {0, 2}
    time.sleep(0.5)
    assert [int(count[0]) for _, count in given] == done


def test_a_lane_goes_on_after_a_restart(lane: DecodePipeline) -> None:
    steps = steps_of((HorizontalFlip(),))
    assert steps is not None
    program = KernelProgram(steps, Output(SIZE))
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    pipelines = len(living_pipelines())
    for _ in range(3):
        results = np.full((1, 3, SIZE, SIZE), np.nan, np.float32)
        feeds = {"sample": [image], "flip/mirror": np.zeros(1, np.int32)}
        work = program.work(feeds, results=results, targets=row_addresses(results))
        lane.submit(work.part(np.arange(1)), {})
        lane.restart()
        lane.submit(work.part(np.arange(1)), {})
        lane.collect()
        assert not np.isnan(results).any()
    assert len(living_pipelines()) <= pipelines + 1
