"""The order in which a device store asks for things, held against a device that forgives nothing.

Each scene is what somebody may do with a store. With all the library's waiting no scene has a race; without any one
step of it, some scene has.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dalirefurb.engine.backends import FinalGraph
from dalirefurb.image_batch import Images
from dalirefurb.store import StoreSpec
from dalirefurb.store.device import gather as gathering
from dalirefurb.store.device.batch_buffer import BatchBuffer
from dalirefurb.store.device.store import DeviceLease, DeviceStore
from tests.ordered_device import OrderedDevice, Wait
from tests.ordered_memory import Allocation, Race

SHAPE = (4, 5, 3)
SLOTS = 6
KEYS = np.arange(SLOTS)
NEWER = np.ones(SLOTS, np.int64)
IMAGES = np.random.default_rng(0).integers(0, 200, (SLOTS, *SHAPE), dtype=np.uint8)
OTHERS = IMAGES[::-1] + np.uint8(1)
EMPTY = 222


class Dali:
    """What DALI does on its own stream; the memory of its images is written again as soon as nobody has them."""

    def __init__(self, device: OrderedDevice) -> None:
        self._device, self._stream = device, device.stream("DALI's stream")
        self._fed: deque[Any] = deque()

    def images(self, values: np.ndarray) -> Images:
        """Make images and wait for them."""
        cuda = self._device.cupy.cuda
        memory = cuda.Memory(values.nbytes)
        array = self._device.cupy.ndarray(values.shape, np.uint8, cuda.MemoryPointer(memory, 0))
        with self._stream:
            array[:] = self._device.cupy.asarray(values)
        self._stream.synchronize()
        weakref.finalize(memory, self._write_again, memory.allocation).atexit = False
        return Images(array)

    def _write_again(self, allocation: Allocation) -> None:
        with self._device.guard, suppress(Race):
            allocation.touch(self._stream.queue(), allocation.bytes, writes=True)

    def submit(self, feeds: Any) -> None:
        """Copy a batch on the current stream, as `feed_input` does, and work on it."""
        batch = feeds["partial"]
        copied = self._device.cupy.full(batch.shape, 0, np.uint8)
        copied[:] = batch
        self._stream.wait_event(self._device.current.record())
        self._fed.append(copied)

    def collect(self) -> np.ndarray:
        copied: np.ndarray = self._fed.popleft().get(stream=self._stream)
        return copied


class User:
    """Somebody with a store and a stream of their own."""

    def __init__(self, device: OrderedDevice, pinned_host: bool) -> None:
        self.device, self.cupy = device, device.cupy
        self.stream = device.stream("the caller's stream")
        self.dali = Dali(device)
        self.store = DeviceStore(pinned_host=pinned_host)
        self.store.open(StoreSpec(SHAPE, SLOTS, {}))

    def get(self, keys: np.ndarray = KEYS, versions: np.ndarray | None = None) -> DeviceLease:
        lease = self.store.get(keys, np.zeros_like(keys) if versions is None else versions)
        assert isinstance(lease, DeviceLease)
        return lease

    def put(self, samples: Any, keys: np.ndarray = KEYS, version: int = 0) -> None:
        assert self.store.put(keys, np.full(len(keys), version), samples).all()

    def batch(self) -> Any:
        return self.cupy.full((SLOTS, *SHAPE), EMPTY, np.uint8)

    def gathered(self, keys: np.ndarray = KEYS, versions: np.ndarray | None = None) -> Any:
        """Gather on the current stream, and let the lease go at once."""
        out = self.batch()
        with self.get(keys, versions) as lease:
            lease.gather(out, np.arange(len(keys)))
        return out


def put_from_a_stream_that_goes_on(user: User) -> None:
    """The caller writes the array before, and writes it again after."""
    with user.stream:
        array = user.cupy.asarray(IMAGES)
        user.put(array)
        array.fill(EMPTY)
        assert (user.gathered().get() == IMAGES).all()


def gathered_into_a_batch_in_use(user: User) -> None:
    """The caller's stream reads and writes the batch before, and reads it after."""
    user.put(list(IMAGES))
    with user.stream, user.get() as lease:
        out, before = user.batch(), user.batch()
        before[:] = out
        lease.gather(out, KEYS[::-1])
        after = user.batch()
        after[:] = out
        assert (after.get() == IMAGES[::-1]).all()


def gathered_from_the_default_stream(user: User) -> None:
    """Which waits for no stream of the store's on its own."""
    user.put(list(IMAGES))
    assert (user.gathered().get() == IMAGES).all()


def slots_are_taken_again(user: User) -> None:
    """The slots are free, but what was gathered from them may not be there yet."""
    user.put(list(IMAGES))
    with user.stream:
        out = user.gathered()
        user.store.evict(KEYS[:3])
        user.put(list(OTHERS[:3]), KEYS[:3], 1)
        # By newer versions, without evicting.
        user.put(list(OTHERS[3:]), KEYS[3:], 1)
        assert (out.get() == IMAGES).all()
        assert (user.gathered(versions=NEWER).get() == OTHERS).all()


def slots_are_taken_again_from_the_device(user: User) -> None:
    with user.stream:
        user.put(user.cupy.asarray(IMAGES))
        out = user.gathered()
        user.put(user.cupy.asarray(OTHERS), version=1)
        assert (out.get() == IMAGES).all()
    user.put(user.dali.images(IMAGES), version=2)
    assert (user.gathered(versions=2 * NEWER).get() == IMAGES).all()


def looked_at_on_the_host(user: User) -> None:
    """What was put may not be there yet; what is lent stays until it is released."""
    with user.stream:
        user.put(user.cupy.asarray(IMAGES[:4]), KEYS[:4])
    with user.get(KEYS[:4]) as lease:
        assert (np.stack(lease.samples) == IMAGES[:4]).all()  # type: ignore[arg-type]
        user.store.evict(KEYS[:4])
        user.put(list(OTHERS[4:]), KEYS[4:])
        assert (np.stack(lease.samples) == IMAGES[:4]).all()  # type: ignore[arg-type]
    with user.stream:
        user.put(user.cupy.asarray(OTHERS[:4]), KEYS[:4], 1)
    with user.get(KEYS[:4], NEWER[:4]) as lease:
        assert (np.stack(list(lease.images)) == OTHERS[:4]).all()


def memory_of_dali_is_put(user: User) -> None:
    """All of an array, and some rows of one; its memory goes when the call returns."""
    user.put(user.dali.images(IMAGES[:3]), KEYS[:3])
    user.put(user.dali.images(OTHERS).chosen(KEYS[::-2]), KEYS[[1, 3, 5]], 1)
    with user.get(KEYS, np.array([0, 1, 0, 1, 0, 1])) as lease:
        assert lease.found.tolist() == [True, True, True, True, False, True]
        expected = np.stack([IMAGES[0], OTHERS[5], IMAGES[2], OTHERS[3], OTHERS[1]])
        out = user.batch()
        lease.gather(out, KEYS)
        assert (out.get()[lease.found] == expected).all()


def another_stores_pinned_samples_are_put(user: User) -> None:
    other = User(user.device, pinned_host=True)
    other.put(list(IMAGES))
    with other.get() as lease:
        user.put(lease.images)
    other.put(list(OTHERS), version=1)
    assert (user.gathered().get() == IMAGES).all()


def groups_are_laid_out_and_fed(user: User) -> None:
    """As the engine does: hits are gathered, DALI's images scattered, the host's too; then the store moves on."""
    buffer = BatchBuffer(user.store, max_rows=SLOTS, max_groups=2)
    inputs: Any = SimpleNamespace(final=lambda plan, images, shown: {"partial": images})
    graph = FinalGraph(inputs, user.dali, buffer)  # type: ignore[arg-type]
    for version in range(5):
        values = IMAGES + np.uint8(version)
        user.put(list(values[:2]), KEYS[:2], version)
        computed = user.dali.images(values)
        others = [(KEYS[2:4], computed.chosen(KEYS[2:4])), (KEYS[4:], Images(list(values[4:])))]
        with user.get(KEYS[:2], np.full(2, version)) as lease:
            plan: Any = SimpleNamespace(
                plan=SimpleNamespace(indices=KEYS),
                shown=None,
                pinned=(KEYS[:2], lease),
                unpinned_images=partial(list, others),
            )
            graph.submit(plan)
        user.put(computed.chosen(KEYS[2:4]), KEYS[2:4], version)
        del plan, computed, others
        if version > 0:
            assert (graph.collect() == values - np.uint8(1)).all()


def groups_are_laid_out_before_one_is_fed(user: User) -> None:
    """What they were made of goes meanwhile."""
    user.put(list(IMAGES[:3]), KEYS[:3])
    buffer = BatchBuffer(user.store, max_rows=SLOTS, max_groups=2)
    batches = []
    for values in (IMAGES, OTHERS):
        with user.get(KEYS[:3]) as lease:
            batches.append(buffer.fill(SLOTS, lease, KEYS[:3], [(KEYS[3:], user.dali.images(values[3:]))]))
    for batch, values in zip(batches, (IMAGES, OTHERS), strict=True):
        with buffer.on_stream():
            user.dali.submit({"partial": batch})
        assert (user.dali.collect() == np.concatenate([IMAGES[:3], values[3:]])).all()


def no_room_halfway_through_a_put(user: User) -> None:
    """The store declines, and whoever gave the images may write them again."""
    user.device.arrays_left = 4
    assert not user.store.put(KEYS, 0 * KEYS, user.dali.images(IMAGES)).any()
    user.device.arrays_left = None
    user.put(user.dali.images(OTHERS))
    assert (user.gathered().get() == OTHERS).all()


def no_room_halfway_through_a_group(user: User) -> None:
    """The group is lost, and whoever gave the images may write them again."""
    buffer = BatchBuffer(user.store, max_rows=SLOTS, max_groups=1)
    with user.get(KEYS[:0]) as lease:
        user.device.arrays_left = 4
        with suppress(MemoryError):
            buffer.fill(SLOTS, lease, KEYS[:0], [(KEYS, user.dali.images(IMAGES))])
        assert user.device.arrays_left == 0
        user.device.arrays_left = None
        batch = buffer.fill(SLOTS, lease, KEYS[:0], [(KEYS, user.dali.images(OTHERS))])
    with buffer.on_stream():
        user.dali.submit({"partial": batch})
    assert (user.dali.collect() == OTHERS).all()


def closed_while_the_device_works(user: User) -> None:
    user.put(list(IMAGES))
    lease = user.get()
    user.store.close()
    out = user.batch()
    lease.gather(out, KEYS)
    lease.release()
    assert (out.get() == IMAGES).all()


def threads_take_turns(user: User) -> None:
    """No thread waits for another but by the store."""

    def one() -> None:
        with user.device.stream("a thread's stream"):
            user.put(user.cupy.asarray(IMAGES[:3]), KEYS[:3])
        user.put(list(IMAGES[3:]), KEYS[3:])

    def two() -> None:
        with user.device.stream("a thread's stream"):
            assert (user.gathered().get() == IMAGES).all()
        with user.get() as lease:
            assert (np.stack(lease.samples) == IMAGES).all()  # type: ignore[arg-type]

    def three() -> None:
        user.store.evict(KEYS)
        user.put(list(OTHERS), version=1)
        assert (user.gathered(versions=NEWER).get() == OTHERS).all()

    user.device.run(one, two, three)


SCENES = [
    put_from_a_stream_that_goes_on,
    gathered_into_a_batch_in_use,
    gathered_from_the_default_stream,
    slots_are_taken_again,
    slots_are_taken_again_from_the_device,
    looked_at_on_the_host,
    memory_of_dali_is_put,
    another_stores_pinned_samples_are_put,
    groups_are_laid_out_and_fed,
    groups_are_laid_out_before_one_is_fed,
    no_room_halfway_through_a_put,
    no_room_halfway_through_a_group,
    closed_while_the_device_works,
    threads_take_turns,
]
PLACES = pytest.mark.parametrize("pinned_host", [False, True], ids=["device", "pinned host"])
Scene = Callable[[User], None]


def played(device: OrderedDevice, scene: Scene, *, pinned_host: bool, locks: bool = True) -> OrderedDevice:
    """Play a scene to its end or its first race, its store closed at the end."""
    with pytest.MonkeyPatch.context() as monkeypatch, suppress(Race):
        device.install(monkeypatch, locks=locks)
        # Two images a kernel.
        monkeypatch.setattr(gathering, "_KERNEL_BYTES", 2 * IMAGES[0].nbytes)
        user = User(device, pinned_host)
        with user.store:
            scene(user)
    return device


@PLACES
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_can_come_too_early(scene: Scene, pinned_host: bool) -> None:
    assert played(OrderedDevice(), scene, pinned_host=pinned_host).races == []


WAITS = [
    "backends.submit: the stream is entered",
    "batch_buffer.fill: the stream is entered",
    "batch_buffer.fill: the host waits",
    "slots.gather: the store's stream waits",
    "slots.gather: the stream is entered",
    "slots.gather: the caller's stream waits",
    "slots.host_images: the host waits",
    "slots.host_images: the stream is entered",
    "slots.host_images: the host waits (2)",
    "slots.write: the stream is entered",
    "slots.write: the host waits",
    "slots.write: the host waits (2)",
    "slots.write: the store's stream waits",
    "slots.write: the stream is entered (2)",
    "slots.write: the caller's stream waits",
    "store.close: the host waits",
]


@pytest.fixture(scope="module")
def named_waits() -> dict[str, Wait]:
    """All steps by which the library orders anything, as the scenes come by them."""
    device = OrderedDevice()
    for scene in SCENES:
        for pinned_host in (False, True):
            played(device, scene, pinned_host=pinned_host)
    return device.named_waits()


def test_every_step_of_the_librarys_waiting_is_left_out_below(named_waits: dict[str, Wait]) -> None:
    assert sorted(named_waits) == sorted(WAITS)


def found(**arguments: Any) -> list[str]:
    """Name the scenes that have a race, on a device that is made anew for each."""

    def races(scene: Scene, pinned_host: bool) -> list[str]:
        device = OrderedDevice()
        device.left_out = left_out
        return played(device, scene, pinned_host=pinned_host, **arguments).races

    left_out = arguments.pop("left_out", None)
    return [scene.__name__ for scene in SCENES for pinned_host in (False, True) if races(scene, pinned_host)]


@pytest.mark.parametrize("name", WAITS)
def test_without_any_one_step_something_can_come_too_early(name: str, named_waits: dict[str, Wait]) -> None:
    assert found(left_out=named_waits[name])


def test_without_the_stores_lock_one_thread_does_not_wait_for_another() -> None:
    assert found(locks=False) == ["threads_take_turns"]


def test_without_keeping_what_it_reads_a_buffer_would_let_its_memory_go_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forgetful(list[Any]):
        def __setitem__(self, place: Any, value: Any) -> None: ...

    make = BatchBuffer.__init__

    def forgetful(buffer: BatchBuffer, *arguments: Any, **options: Any) -> None:
        make(buffer, *arguments, **options)
        buffer._read = Forgetful(buffer._read)

    monkeypatch.setattr(BatchBuffer, "__init__", forgetful)
    assert "groups_are_laid_out_before_one_is_fed" in found()


@PLACES
def test_threads_that_use_a_store_together_have_no_race(pinned_host: bool) -> None:
    def together(user: User) -> None:
        def work(keys: np.ndarray) -> None:
            with user.device.stream("a thread's stream"):
                for version in range(20):
                    values = IMAGES[keys] + np.uint8(version)
                    samples = [list(values), user.cupy.asarray(values), user.dali.images(values)][version % 3]
                    user.put(samples, keys, version)
                    versions = np.full(len(keys), version)
                    assert (user.gathered(keys, versions).get()[: len(keys)] == values).all()
                    with user.get(keys, versions) as lease:
                        user.store.evict(keys)
                        assert (np.stack(list(lease.images)) == values).all()

        user.device.run(*(partial(work, KEYS[first : first + 2]) for first in (0, 2)), together=True)

    assert played(OrderedDevice(), together, pinned_host=pinned_host).races == []
