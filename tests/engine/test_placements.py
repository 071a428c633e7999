"""What a loader promises holds wherever its parts run and its store is: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import gc
import math
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from itertools import islice, pairwise
from typing import Any

import pytest
import torch

from dalirefurb import ImageFolder, Loader, MemoryStore, Recipe, Refurbish, auto_augment, rand_augment, simple
from dalirefurb.dali import release_unused_memory
from dalirefurb.store import Store
from tests.endings import nothing_left
from tests.engine.test_bit_identity import Batches, assert_same, serve
from tests.in_turn import EACH_CHANGE
from tests.live import Live, watch
from tests.loading import flat_loader
from tests.lossy import LOSSES, WIPED, losing
from tests.occupied import Spin
from tests.pictures import write_folder
from tests.placements import ON_CPU, PLACEMENTS, WITH_STORES, Placement, StoreKind, arguments_of, make_store, store_kind
from tests.resuming import assert_resumes_everywhere, batches_of, record

SIZE = 32
NUM_SAMPLES = 15
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=3, seed=7)
EPOCHS = 3
MANY = Refurbish(60, batch_size=3, reuse_factor=3, seed=7)
LARGE = Refurbish(60, batch_size=20, reuse_factor=3)
LOSING: dict[str, Any] = {"kernels": "dali", "look_ahead": 1, "epochs": EPOCHS}
LIMIT_S = 600.0

Elsewhere = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=MANY.num_samples))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


def recipe_for(placement: Placement, size: int = SIZE) -> Recipe:
    """On the CPU other tests look at every operation, and building a graph of all of them takes a while."""
    return simple(size) if placement == ON_CPU else rand_augment(size)


def make(
    folder: ImageFolder, placement: Placement, store: Store | None, *, recipe: Recipe | None = None, **changes: Any
) -> Loader:
    partial_device, final_device = placement
    return flat_loader(
        folder,
        recipe or recipe_for(placement),
        changes.pop("planner", REFURBISH),
        store,
        partial_device=partial_device,
        final_device=final_device,
        **{"kernels": "dali", "num_threads": 1, "look_ahead": 2, **changes},
    )


@pytest.fixture(scope="module")
def expected(folder: ImageFolder) -> Callable[[Placement], Batches]:
    """What is served at each placement without a store, copied at once, by a device that has nothing else to do."""

    def serve_alone(placement: Placement) -> Batches:
        with make(folder, placement, None, look_ahead=1) as loader:
            return list(islice(batches_of(loader, REFURBISH), EPOCHS * len(REFURBISH)))

    return cache(serve_alone)


@pytest.fixture(scope="module")
def expected_of_many(many: ImageFolder) -> Callable[[Placement], Batches]:
    """What is served of many samples without a store."""
    return cache(lambda placement: serve(many, recipe_for(placement), MANY, placement=placement, **LOSING)[0])


@pytest.mark.parametrize("how", [*LOSSES, WIPED])
@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_tensors_are_the_same_whatever_the_store_loses(
    placement: Placement, kind: StoreKind, how: str, expected_of_many: Any, many: ImageFolder
) -> None:
    """Epochs are longer than what is on its way at a time, which no store can lose."""
    lossy, meddle = losing(how, store_kind(kind))
    with lossy(**arguments_of(kind, placement)) as store:
        served, stats = serve(many, recipe_for(placement), MANY, store, meddle=meddle, placement=placement, **LOSING)
    assert_same(expected_of_many(placement), served)
    assert stats.hits > 0
    assert stats.recomputed > 0


@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_restoring_serves_the_same_remaining_tensors(
    placement: Placement, kind: StoreKind, folder: ImageFolder
) -> None:
    @contextmanager
    def resume() -> Iterator[Loader]:
        with make_store(kind, placement) as store, make(folder, placement, store, look_ahead=1) as loader:
            yield loader

    with make(folder, placement, None, num_threads=2, replicas=2) as loader:
        recorded = record(loader, REFURBISH, epochs=EPOCHS)
    assert_resumes_everywhere(recorded, REFURBISH, resume)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_loaders_used_in_turns_serve_what_each_serves_alone(placement: Placement, folder: ImageFolder) -> None:
    """They differ in recipe, seed, size and store, so that what went to the wrong one would be seen."""
    count = EPOCHS * len(REFURBISH)
    other_seed = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=3, seed=8)
    second = simple(SIZE) if placement == ON_CPU else auto_augment(SIZE)
    makes: list[Callable[[], Loader]] = [
        lambda: make(folder, placement, stores.enter_context(make_store("device", placement))),
        lambda: make(folder, placement, stores.enter_context(make_store("device", placement)), planner=other_seed),
        lambda: make(folder, placement, stores.enter_context(MemoryStore()), recipe=second, planner=other_seed),
        lambda: make(folder, placement, None, recipe=simple(SIZE + 8), replicas=2),
    ]
    alone: list[Batches] = []
    for each in makes:
        with ExitStack() as stores, each() as loader:
            alone.append(list(islice(batches_of(loader, REFURBISH), count)))
    in_turns: list[Batches] = [[] for _ in makes]
    with ExitStack() as stores, ExitStack() as loaders:
        streams = [batches_of(loaders.enter_context(each()), REFURBISH) for each in makes]
        for _ in range(count):
            for served, stream in zip(in_turns, streams, strict=True):
                served.append(next(stream))
    for served, others in zip(alone, in_turns, strict=True):
        assert_same(served, others)


@pytest.fixture
def elsewhere(placement: Placement) -> Elsewhere:
    """Go to a stream of the user's own; on a GPU that is otherwise kept busy, and lets this stream's work go first."""
    return _elsewhere(placement, late=False)


@pytest.fixture
def later(placement: Placement) -> Elsewhere:
    """Go to a stream of the user's own, on which nothing is done for a while."""
    return _elsewhere(placement, late=True)


def _elsewhere(placement: Placement, *, late: bool) -> Elsewhere:
    if placement == ON_CPU:
        return ExitStack
    cupy = pytest.importorskip("cupy")
    spin, others = Spin(cupy), cupy.cuda.Stream(non_blocking=True)
    reading = cupy.cuda.Stream(non_blocking=True, priority=-1)

    @contextmanager
    def go() -> Iterator[None]:
        with reading if late else others:
            (spin.stream if late else spin.device)()
        with torch.cuda.stream(torch.cuda.ExternalStream(reading.ptr)):
            yield

    return go


def synchronize(placement: Placement) -> None:
    if placement != ON_CPU:
        torch.cuda.synchronize()


@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_images_are_all_there_once_they_are_served_whichever_stream_reads_them(
    placement: Placement, kind: StoreKind, elsewhere: Elsewhere, expected: Any, folder: ImageFolder
) -> None:
    read: Batches = []
    with make_store(kind, placement) as store, make(folder, placement, store) as loader:
        for images, labels in islice(_epochs(loader), len(expected(placement))):
            with elsewhere():
                copied = images.clone()
            read.append((copied, labels))
        synchronize(placement)
    assert_same(expected(placement), read)


@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_a_batch_that_is_dropped_is_not_written_before_it_was_read(
    placement: Placement, kind: StoreKind, later: Elsewhere, expected: Any, folder: ImageFolder
) -> None:
    read: Batches = []
    with make_store(kind, placement) as store, make(folder, placement, store) as loader:
        batches = islice(_epochs(loader), len(expected(placement)))
        while (batch := next(batches, None)) is not None:
            with later():
                copied = batch[0].clone()
            read.append((copied, batch[1]))
            del batch
        synchronize(placement)
    assert_same(expected(placement), read)


@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_a_batch_that_is_kept_is_never_written_again(
    placement: Placement, kind: StoreKind, expected: Any, folder: ImageFolder
) -> None:
    with make_store(kind, placement) as store, make(folder, placement, store) as loader:
        kept = list(islice(_epochs(loader), len(expected(placement))))
    synchronize(placement)
    assert_same(expected(placement), kept)


@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_what_is_done_to_served_tensors_changes_nothing_that_is_served_later(
    placement: Placement, kind: StoreKind, expected: Any, folder: ImageFolder
) -> None:
    served: Batches = []
    with make_store(kind, placement) as store, make(folder, placement, store, batches_per_group=2) as loader:
        for images, labels in islice(_epochs(loader), len(expected(placement))):
            served.append((images.clone(), labels.clone()))
            images.zero_()
            labels.zero_()
    assert_same(expected(placement), served)


def _epochs(loader: Loader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Serve epoch after epoch, without end, and hold no batch."""
    while True:
        yield from loader


@pytest.fixture
def used(placement: Placement) -> Iterator[Callable[[], int]]:
    """Bytes that are in use and cannot be given back: of the GPU's memory, or of Python's and NumPy's."""
    if placement != ON_CPU:
        yield _used_on_gpu
        return
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


def _used_on_gpu() -> int:
    """Have all pools give back what nobody uses."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    release_unused_memory()
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    free, total = torch.cuda.mem_get_info()
    return total - free


def once_below(limit: float, used: Callable[[], int]) -> int:
    """Return what is used once it is at most `limit`, or after a while: DALI lets images go later."""
    deadline = time.monotonic() + LIMIT_S
    while (now := used()) > limit and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return now


@pytest.mark.alone
@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_nothing_that_any_loader_had_is_alive_after_it(
    placement: Placement, kind: StoreKind, folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what its store had, of each loader: also of one that is left in the middle, jumps, or is not closed."""
    ends: list[Callable[[Loader], None]] = [Loader.close, lambda loader: loader.set_epoch(5), lambda loader: None]
    with make_store(kind, placement) as store, make(folder, placement, store) as loader:
        next(iter(loader))
    del store, loader
    live = watch(monkeypatch)

    def use_a_loader(end: Callable[[Loader], None]) -> None:
        with make_store(kind, placement) as store:
            loader = make(folder, placement, store)
            batches = _epochs(loader)
            for _ in islice(batches, len(REFURBISH) + 2):
                pass
            assert any(owner.endswith("device.store") for owner in live()) == (kind != "memory")
            end(loader)
            batches.close()  # type: ignore[attr-defined]

    for end in ends if EACH_CHANGE else [*ends, *ends]:
        with nothing_left():
            use_a_loader(end)
        assert once(live, Counter()) == Counter()


def once(live: Live, wanted: Counter[str]) -> Counter[str]:
    """Return what is alive once it is what is wanted, or after a while: DALI lets go later."""
    deadline = time.monotonic() + LIMIT_S
    while (now := live()) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return now


@pytest.mark.parametrize(("placement", "kind"), WITH_STORES)
def test_loaders_their_images_and_their_stores_give_their_memory_back(
    placement: Placement, kind: StoreKind, used: Callable[[], int], folder: ImageFolder, many: ImageFolder
) -> None:
    """All but what there is once a process: a CUDA context, loaded kernels, DALI's decoders and its thread for a GPU.

    So nothing is asked of the first loader but that its images and its store go. DALI takes and gives memory in blocks
    of up to 64 MiB, so on a GPU the images are some 380 MB, and the store and what it is laid out in 31 MB each.
    """
    on_cpu = placement == ON_CPU
    source, planner, loaders = (folder, REFURBISH, 3) if on_cpu else (many, LARGE, 5)
    recipe = recipe_for(placement, size=96 if on_cpu else 512)
    held: list[int] = []

    def use_a_loader() -> int:
        """Note what is in use while only images and a store are kept; return the bytes of these."""
        with make_store(kind, placement) as store:
            with make(source, placement, store, planner=planner, recipe=recipe, replicas=2) as loader:
                served = list(islice(_epochs(loader), 2 * len(planner)))
            del loader
            kept = (0 if on_cpu else sum(images.nbytes for images, _ in served)) + store.nbytes * (kind == "device")
            held.append(once_below((held[-1] if held[1:] else math.inf) + kept / 4, used))
        del served, store
        assert once_below(held[-1] - kept / 2, used) <= held[-1] - kept / 2
        return kept

    use_a_loader()
    with nothing_left():
        kept = [use_a_loader() for _ in range(loaders)]
    # What something allocates once in a process makes one step, a leak as many as there were loaders.
    assert min(after - before for before, after in pairwise(held[1:])) <= kept[-1] / 4
