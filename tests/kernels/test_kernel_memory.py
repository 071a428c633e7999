"""Compiled code cannot fail unheard: it allocates nothing, raises nothing, and says what became of each row."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from numba import types
from numba.core.codegen import CPUCodeLibrary

from dalirefurb import Arrays, Loader, MemoryStore, Output, Prefetch, Recipe, Refurbish
from dalirefurb.augment import (
    AugMix,
    CenterCrop,
    ColorJitter,
    Cutout,
    Equalize,
    GaussianBlur,
    HorizontalFlip,
    HostStage,
    KernelStage,
    Letterbox,
    RandAugmentLayer,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ScaleJitter,
    VerticalFlip,
    timm_auto_augment,
)
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import MOST_PIXELS, Stage, draw
from dalirefurb.augment.stages.color import LONGEST_KERNEL
from dalirefurb.dali import GraphError
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, row_addresses
from dalirefurb.kernels import buffers, pipelines, program, random, rows, runner
from dalirefurb.kernels.kernel import compile_kernel, kernel_named, kernel_names
from dalirefurb.kernels.llvm import c_function, memory
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.normalize import OUTPUTS, compile_output
from dalirefurb.kernels.program import KernelProgram, Work
from dalirefurb.kernels.record import DONE, PROBLEMS, WIDTH
from dalirefurb.kernels.rows import KernelThreadPool
from tests.endings import nothing_left
from tests.engine.test_bit_identity import Batches, assert_same
from tests.faults import limited
from tests.in_turn import EACH_CHANGE
from tests.pictures import picture
from tests.stages import held

# What compiled code can do


def symbols_of(library: Any, loaded: list[bytes]) -> bytes:
    """The names in a function's code: as it was compiled just now, or as it was loaded."""
    text: bytes = loaded[-1] if library._disable_inspection else library.get_llvm_str().encode()
    return text


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Object code that is loaded."""
    seen: list[bytes] = []
    original = CPUCodeLibrary._set_compiled_object

    def noted(library: Any, code: bytes) -> None:
        seen.append(code)
        original(library, code)

    monkeypatch.setattr(CPUCodeLibrary, "_set_compiled_object", noted)
    return seen


FORBIDDEN = (b"NRT_MemInfo_alloc", b"NRT_Allocate", b".const.picklebuf")
"""Numba's runtime allocates by the first two; the third begins the name of each description of what is raised."""

COMPILED: dict[str, Callable[[], Any]] = {
    "run": rows.compile_run.__wrapped__,
    "share": rows._compile_share.__wrapped__,
    "serve": rows._compile_serve.__wrapped__,
    "setup": pipelines._compile_setup.__wrapped__,
    "operate": pipelines._compile_operate.__wrapped__,
    **{name: partial(compile_kernel.__wrapped__, name) for name in kernel_names()},
    **{name: partial(compile_output.__wrapped__, name) for name in OUTPUTS},
}


@pytest.mark.parametrize("name", COMPILED)
def test_no_c_function_allocates_or_raises(name: str, loaded: list[bytes]) -> None:
    symbols = symbols_of(COMPILED[name]()._library, loaded)
    assert b"dalirefurb" in symbols
    assert [word for word in FORBIDDEN if word in symbols] == []


def allocates(address: Any) -> None:
    np.empty(address, np.uint8)[0] = 1


def unpacks(address: Any) -> None:
    numbers = memory(address, (address,), np.int64)
    one, other = numbers
    numbers[0] = one + other


def test_what_allocates_would_be_found(loaded: list[bytes]) -> None:
    symbols = symbols_of(c_function(allocates, types.void(types.int64))._library, loaded)
    assert b"NRT_MemInfo_alloc" in symbols
    assert b".const.picklebuf" in symbols


def test_what_raises_would_be_found(loaded: list[bytes]) -> None:
    """Python would raise if there were not two numbers."""
    symbols = symbols_of(c_function(unpacks, types.void(types.int64))._library, loaded)
    assert b".const.picklebuf" in symbols
    assert b"NRT_MemInfo_alloc" not in symbols


def test_what_is_drawn_is_put_where_python_made_room(loaded: list[bytes]) -> None:
    mix = random.compile_mix.__wrapped__().__closure__[0].cell_contents
    (result,) = mix.overloads.values()
    assert [word for word in FORBIDDEN[:2] if word in symbols_of(result.library, loaded)] == []


# The memory that is provided

ROW_BYTES = 64
CASES: dict[str, tuple[Stage, ...]] = {
    "bilinear": (RandomResizedCrop(24), HorizontalFlip()),
    "nearest": (RandomResizedCrop(24, interpolation="nearest"), HorizontalFlip()),
    "window": (Resize(33), HorizontalFlip(), CenterCrop(24)),
    "nearest window": (Resize(33, "nearest"), CenterCrop(24)),
    "whole": (Resize(33), RandAugmentLayer("one", "bilinear"), RandAugmentLayer("two", "bilinear"), CenterCrop(24)),
    "nearest operations": (RandAugmentLayer("one"), RandAugmentLayer("two"), RandomResizedCrop(24)),
    "padded": (Resize(24), CenterCrop(24), RandomCrop(24, margin=8, padding=4), HorizontalFlip()),
    "colours": (Resize(33), ColorJitter(0.4, 0.4, 0.4, 0.1), Equalize(), RandomGrayscale(0.5), RandomResizedCrop(24)),
    "blurred": (GaussianBlur(255, (0.1, 90)), RandomResizedCrop(24)),
    "timm": (*timm_auto_augment("rand-m9-n2-mstd3-inc1"), *timm_auto_augment("3a"), RandomResizedCrop(24)),
    "mixed": (AugMix("one"), AugMix("two", "nearest", mixture_width=2, chain_depth=5), RandomResizedCrop(24)),
    "erased": (Cutout(16, holes=3), RandomErasing(1.0, value="pixel", count=(1, 3)), RandomResizedCrop(24)),
    "bicubic": (RandomResizedCrop(24, interpolation="bicubic"), HorizontalFlip()),
    "lanczos window": (Resize(33, "lanczos"), HorizontalFlip(), CenterCrop(24)),
    "drawn": (Resize(33, "random"), CenterCrop(24)),
    "reflected": (Resize(24), RandomCrop(24, padding=4, padding_mode="reflect"), VerticalFlip()),
    "letterbox": (Letterbox(24), Letterbox(23, interpolation="nearest", name="second"), RandomResizedCrop(24)),
    "jittered": (ScaleJitter(24), ScaleJitter(24, (0.01, 9.0), True, interpolation="bicubic", name="second")),
    "jittered sharply": (ScaleJitter((24, 24), (0.01, 9.0), place="random", interpolation="lanczos"),),
    "warps": (RandomRotation(90), RandomAffine(0, (0.2, 0.2), (0.5, 2), 10, "bilinear"), RandomResizedCrop(24)),
    "warped window": (Resize((33, 40)), RandomAffine(0, (0.2, 0.2), (0.5, 2), 10), CenterCrop(24)),
    "turned window": (Resize((40, 33)), RandomRotation(90, "bilinear"), RandomCrop(24), HorizontalFlip()),
    "perspectives": (
        RandomPerspective(1.0, 0.9),
        RandomPerspective(1.0, 0.9, "nearest", name="nearest"),
        RandomResizedCrop(24, interpolation="random"),
    ),
}


def kernels_of(*stages: Stage) -> set[Any]:
    return {kernel for step in steps_of(stages) or () for kernel in step.kernels}


_TRIED = {kernel for stages in CASES.values() for kernel in kernels_of(*stages)}
CASES |= {
    kind.__name__: (Resize(33), stages[0], RandomResizedCrop(24))
    for kind, stages in held().items()
    if kind not in (KernelStage, HostStage) and not kind.partners and kernels_of(stages[0]) - _TRIED
}
SHAPES = [(1, 1), (1, 700), (700, 1), (2, 3000), (3000, 2), (24, 24), (300, 200), (97, 131), (5, 4), (25, 33)]


def prepared(stages: tuple[Stage, ...], shapes: list[tuple[int, int]]) -> tuple[Work, NDArray[np.float32]]:
    """A batch's work, and where its results go."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]
    heights, widths = np.array(shapes).T
    indices = np.arange(len(shapes))
    drawn, _, _ = draw(stages, seed=0, indices=indices, numbers=indices, heights=heights, widths=widths)
    feeds: dict[str, Any] = {f"{stage}/{name}": each for stage, named in drawn.items() for name, each in named.items()}
    steps = steps_of(stages)
    assert steps is not None
    results = np.full((len(shapes), 3, 24, 24), np.nan, np.float32)
    work = KernelProgram(steps, Output(24)).work(
        {"sample": pictures, **feeds}, results=results, targets=row_addresses(results)
    )
    return work.part(indices), results


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("row", [None, *range(len(SHAPES))])
def test_kernels_stay_within_the_memory_that_is_computed_beforehand(case: str, row: int | None) -> None:
    """Each image alone, and all of them."""
    shapes = SHAPES if row is None else [SHAPES[row]]
    work, results = prepared(CASES[case], shapes)
    nbytes = work.scratch.nbytes
    memory = np.full(nbytes + 4096, 0xA5, np.uint8)
    work = work.with_memory(memory)
    rows.compile_run().ctypes(work.record.ctypes.data, 0)
    assert (memory[nbytes:] == 0xA5).all()
    work.check()
    assert not np.isnan(results).any()


def test_threads_that_share_a_work_have_memory_of_their_own() -> None:
    pool, (work, _) = KernelThreadPool(3), prepared(CASES["window"], SHAPES)
    provided = pool.provided(work)
    (_, scratch) = provided.kept  # type: ignore[misc]
    assert len(scratch) >= 4 * work.scratch.nbytes
    assert scratch.ctypes.data == provided.record["scratch"][0]
    pool.close()


def test_memory_is_used_again_unless_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = KernelThreadPool(1)
    small, large = (prepared(CASES["whole"], [shape])[0] for shape in ((24, 24), (30, 3000)))
    addresses = [mine.provided(work).record["scratch"][0] for work in (large, small, large)]
    assert len(set(addresses)) == 1
    assert rows.KEPT_BYTES == 256 * 1024**2, "of a training with large images, a pool keeps no more"
    monkeypatch.setattr(rows, "KEPT_BYTES", small.scratch.nbytes)
    alone = mine.provided(large)
    assert alone.record["scratch"][0] != addresses[0]
    for most, kept in ((2 * small.scratch.nbytes, True), (2 * small.scratch.nbytes - 1, False)):
        monkeypatch.setattr(rows, "KEPT_BYTES", most)
        assert (mine.provided(small).record["scratch"][0] == addresses[0]) == kept
    mine.close()


def test_work_keeps_what_it_has_addresses_of() -> None:
    """Others know its images and results by addresses alone."""
    made = [np.zeros((24, 24, 3), np.uint8), np.zeros((24, 24, 3), np.uint8), np.zeros((2, 3, 24, 24), np.float32)]
    alive = [weakref.ref(each) for each in made]
    image, at_hand, results = made
    program = KernelProgram(steps_of((HorizontalFlip(),)) or (), Output(24), split=0)
    work = program.work(
        {"sample": [image]},
        pinned=Images([at_hand]),
        final={"flip/mirror": np.zeros(2, np.int32)},
        reserve=lambda sizes: Images(np.empty((1, 24, 24, 3), np.uint8)),
        results=results,
        targets=row_addresses(results),
    ).part(np.arange(2))
    del made, image, at_hand, results
    gc.collect()
    assert [each() is None for each in alive] == [False] * 3
    del work
    gc.collect()
    assert [each() is None for each in alive] == [True] * 3


# What becomes of a row


def run(work: Work) -> None:
    work = work.with_memory(np.empty(work.scratch.nbytes, np.uint8))
    rows.compile_run().ctypes(work.record.ctypes.data, 0)
    work.check()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("field", ["room_bytes", "image_bytes"])
def test_without_memory_no_row_is_carried_out(case: str, field: str) -> None:
    work, results = prepared(CASES[case], SHAPES)
    work.record[field] = 0
    with pytest.raises(
        GraphError, match=r"did not carry out 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 \(more memory is needed than"
    ):
        run(work)
    assert np.isnan(results).all()


@pytest.mark.parametrize("case", ["window", "whole", "nearest window"])
def test_a_row_for_which_there_is_too_little_memory_is_named_and_the_others_are_right(case: str) -> None:
    shapes = [(24, 24), (24, 25), (2, 3000), (25, 24)]
    wanted, right = prepared(CASES[case], shapes)
    run(wanted)
    for field in ("room_bytes", "image_bytes"):
        work, results = prepared(CASES[case], shapes)
        smaller, _ = prepared(CASES[case], shapes[:2])
        if work.record[field] == smaller.record[field]:
            continue  # Windows of one size need the same.
        work.record[field] = smaller.record[field]
        with pytest.raises(GraphError, match=r"all of 4 rows, but did not carry out 2 \(more memory is needed than"):
            run(work)
        assert np.isnan(results[2]).all()
        others = np.array([0, 1, 3])
        assert np.array_equal(results[others], right[others])


@pytest.mark.parametrize("case", ["bilinear", "nearest", "window", "nearest window", "bicubic", "lanczos window"])
@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 6])
@pytest.mark.parametrize("value", [-1, 10_000])
def test_a_window_that_is_outside_is_named_and_not_made(case: str, number: int, value: int) -> None:
    work, results = prepared(CASES[case], [(30, 30), (40, 50)])
    arrays = work.arrays
    arrays["numbers"][0, 1, number] = value
    with pytest.raises(GraphError, match=r"did not carry out 1 \(a window must lie within its image, "):
        run(work)
    assert np.isnan(results[1]).all()
    assert not np.isnan(results[0]).any()


@pytest.mark.parametrize("stage", [RandomErasing(1.0, value="pixel"), Cutout(4)], ids=lambda stage: stage.name)
@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("before", [True, False])
def test_a_window_that_is_outside_is_named_and_not_painted(stage: Stage, number: int, before: bool) -> None:
    """It begins a pixel before its image, or has a negative side; or it ends a pixel behind it."""
    work, results = prepared((stage, CenterCrop(24)), [(30, 30), (40, 50)])
    arrays = work.arrays
    window = arrays["numbers"][0, 1]
    window[number] = -1 if before else (40, 50)[number % 2] - window[(number + 2) % 4] + 1
    with pytest.raises(GraphError, match=r"did not carry out 1 \(a window must lie within its image, "):
        run(work)
    assert np.isnan(results[1]).all()
    assert not np.isnan(results[0]).any()


def test_a_blur_of_more_than_its_longest_kernel_is_named_and_not_made() -> None:
    work, results = prepared((GaussianBlur(5), CenterCrop(24)), [(30, 30), (40, 50)])
    radii = work.arrays["numbers"][0, :, 1]
    radii[:] = LONGEST_KERNEL // 2, LONGEST_KERNEL // 2 + 1
    with pytest.raises(GraphError, match=r"did not carry out 1 \("):
        run(work)
    assert np.isnan(results[1]).all()
    assert not np.isnan(results[0]).any()


def test_what_has_no_kernel_or_is_too_large_for_one_is_named() -> None:
    for value in (len(Group), -2):
        work, _ = prepared((RandAugmentLayer(),), [(24, 24), (24, 24)])
        arrays = work.arrays
        arrays["chosen"][0, 0] = value
        with pytest.raises(GraphError, match=r"did not carry out 0 \(a step must have a kernel\)"):
            run(work)
    work, _ = prepared((RandAugmentLayer(),), [(24, 24), (24, 24)])
    (constants, *_), _ = work.kept  # type: ignore[misc]
    constants["kernels"][0] = 0
    with pytest.raises(GraphError, match=r"did not carry out 0, 1 \(a step must have a kernel\)"):
        run(work)
    work, _ = prepared((RandAugmentLayer(),), [(24, 24), (24, 24)])
    arrays = work.arrays
    arrays["chosen"][0, 1], arrays["sizes"][0, 1] = Group.WARP, (30_000, 30_000)
    with pytest.raises(GraphError, match=r"did not carry out 1 \(.* an operation is for images of at most 715,827,882"):
        run(work)


@pytest.mark.parametrize("name", [name for name in kernel_names() if name.startswith("warp.")])
def test_warps_are_of_images_whose_bytes_32_bits_count(name: str) -> None:
    for pixels in (MOST_PIXELS, MOST_PIXELS + 1):
        needed = kernel_named(name).room_bytes(1, pixels, 1, pixels, np.zeros(WIDTH))
        assert (needed < 0) == (3 * pixels >= 2**31)


def test_rows_that_nobody_began_are_named() -> None:
    work, _ = prepared(CASES["window"], SHAPES)
    begun = work.kept[1]  # type: ignore[index]
    begun[0] = len(SHAPES) - 2
    with pytest.raises(GraphError, match=r"did not carry out 0, 1, 2, 3, 4, 5, 6, 7 \(it was never begun\)"):
        run(work)


def test_an_error_that_compiled_code_drops_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba hands what a C function raises to the interpreter's hook, and goes on."""

    def fails(address: Any, thread: Any) -> None:
        np.empty(1 << 60, np.uint8)[thread] = 1

    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    failing = c_function(fails, types.void(types.int64, types.int64))
    monkeypatch.setattr(rows, "compile_run", lambda: failing)
    mine = KernelThreadPool(0)
    work, results = prepared(CASES["window"], SHAPES[:3])
    with pytest.raises(GraphError, match=r"all of 3 rows, but did not carry out 0, 1, 2 \(it was never begun\)"):
        mine.share(work)
    assert [each.exc_type for each in heard] == [MemoryError]
    assert np.isnan(results).all()
    mine.close()


# Failures once, in a training

SIZE = 32
PLANNER = Refurbish(12, batch_size=4, reuse_factor=2, seed=3)
RECIPE = Recipe([RandomCrop(SIZE, margin=8, padding=4), RandAugmentLayer(), HorizontalFlip()], Output(SIZE), split=2)
SOURCE = Arrays(np.stack([np.asarray(picture(i, height=SIZE, width=SIZE)) for i in range(12)]), np.arange(12))
BATCHES = 6


def trained() -> tuple[Batches, list[Exception]]:
    """Serve two epochs, and go on after errors, of which there are at most two."""
    served: Batches = []
    errors: list[Exception] = []
    with Loader(
        SOURCE, RECIPE, PLANNER, MemoryStore(), prefetch=Prefetch(num_threads=1, look_ahead=1, batches_per_group=1)
    ) as loader:
        batches = iter(loader)
        while len(served) < BATCHES and len(errors) < 3:
            try:
                batch = next(batches, None)
            except (LoaderError, MemoryError) as error:
                errors.append(error)
                continue
            if batch is None:
                batches = iter(loader)
                continue
            served.append((batch[0].clone(), batch[1]))
    return served, errors


@pytest.fixture(scope="module")
def wanted() -> Batches:
    served, errors = trained()
    assert not errors
    return served


class FailingArrays:
    """Stands for NumPy in the modules of kernels: one call that makes an array finds no memory."""

    MAKES = ("arange", "array", "concatenate", "empty", "full", "insert", "zeros")

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name not in self.MAKES:
            return function

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._nth:
                raise MemoryError("Unable to allocate 8 EiB")
            return function(*arguments, **named)

        return call


MAKING_ARRAYS = runner, buffers, rows, random, pipelines, program
MODULES = {each.__name__.rpartition(".")[2]: each for each in MAKING_ARRAYS}


@pytest.mark.parametrize("name", MODULES)
def test_an_array_for_which_there_is_no_memory_is_told_and_changes_nothing_that_is_served(
    name: str, wanted: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each array that a module makes in a training, in one of its own."""
    failed = arrived = 0
    with nothing_left():
        for nth in _some():
            failing = FailingArrays(nth)
            with limited(), monkeypatch.context() as patch:
                patch.setattr(MODULES[name], "np", failing)
                try:
                    served, errors = trained()
                except MemoryError:  # The loader could not be made.
                    served, errors = wanted, [MemoryError()]
            assert_same(wanted, served)
            assert len(errors) <= (failing.calls >= nth)  # What was ahead of the last batch is not told.
            if failing.calls < nth:
                break
            failed, arrived = failed + 1, arrived + len(errors)
    assert arrived > failed / 2


def _some() -> Iterator[int]:
    """Every call of the first batches, then fewer and fewer; where each change is tested, soon."""
    nth, soon = 1, 3 if EACH_CHANGE else 12
    while True:
        yield nth
        nth += 1 + nth // soon


def test_a_row_that_is_not_carried_out_fails_its_batch_alone(wanted: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each share of a batch in turn, in a run of its own."""
    part_of = Work.part
    for nth in count(1):
        calls = 0

        def cramped(self: Work, taken: NDArray[np.int64], nth: int = nth) -> Work:
            nonlocal calls
            calls += 1
            work = part_of(self, taken)
            if calls == nth and len(taken):
                work.record["room_bytes"] = 0
            return work

        with limited(), monkeypatch.context() as patch:
            patch.setattr(Work, "part", cramped)
            served, errors = trained()
        assert_same(wanted, served)
        for error in errors:
            assert "kernels must carry out all of" in str(error)
            assert "more memory is needed than was provided" in str(error)
            assert "of epoch" in str(error)
        if calls < nth:
            assert not errors
            break
    assert nth > BATCHES


def test_memory_that_the_system_does_not_have_is_refused_with_the_number_of_bytes() -> None:
    with pytest.raises(LoaderError, match=r"must have room in memory, but the system has none for 1,152,921,504,606,8"):
        buffers.aligned(1 << 60)
    assert DONE not in (0, *set(PROBLEMS))
