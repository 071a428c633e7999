"""The order in which a device store asks for things, held against a device that forgives nothing.

With all the library's waiting no scene has a race; without any one step of it, some scene has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from dalirefurb.engine.finals import FinalGraph
from dalirefurb.store.device import memory as device_memory
from tests.kernels.cuda_host import COMPILER
from tests.ordered_device import OrderedDevice, Wait
from tests.ordered_memory import Race
from tests.store.device_scenes import SCENES, Scene
from tests.store.device_user import IMAGES, KEYS, User

PLACES = pytest.mark.parametrize("pinned_host", [False, True], ids=["device", "pinned host"])


def played(device: OrderedDevice, scene: Scene, *, pinned_host: bool, locks: bool = True) -> OrderedDevice:
    """Play a scene to its end or its first race, its store closed at the end."""
    with pytest.MonkeyPatch.context() as monkeypatch, suppress(Race):
        device.install(monkeypatch, locks=locks)
        # Two images a kernel.
        monkeypatch.setattr(device_memory, "KERNEL_BYTES", 2 * IMAGES[0].nbytes)
        user = User(device, pinned_host)
        with user.store:
            scene(user)
    return device


@PLACES
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_can_come_too_early(scene: Scene, pinned_host: bool) -> None:
    assert played(OrderedDevice(), scene, pinned_host=pinned_host).races == []


WAITS = [
    "FinalGraph.submit: the stream is entered",
    "FinalGraph._forget: the host waits",
    *(
        [
            "CudaFinal.submit: the stream is entered",
            "_Page.take: the host waits",
            "CudaFinal.collect: the host waits",
            "CudaFinal.restart: the host waits",
            "CudaFinal.submit: the host waits",
            "CudaPartial.collect: the stream is entered",
            "CudaPartial.collect: the host waits",
            "CudaPartial.collect: the host waits (2)",
            "CudaPartial.collect: the host waits (3)",
        ]
        if COMPILER
        else []
    ),
    "DeviceSlots.gather: the store's stream waits",
    "DeviceSlots.gather: the stream is entered",
    "DeviceSlots.gather: the caller's stream waits",
    "DeviceSlots.host_images: the host waits",
    "DeviceSlots.host_images: the stream is entered",
    "DeviceSlots.host_images: the host waits (2)",
    "DeviceSlots.write: the stream is entered",
    "DeviceSlots.write: the host waits",
    "DeviceSlots.write: the host waits (2)",
    "DeviceSlots.write: the store's stream waits",
    "DeviceSlots.write: the stream is entered (2)",
    "DeviceSlots.write: the caller's stream waits",
    "_Contents.close: the host waits",
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


def found(left_out: Wait | None = None, *, locks: bool = True) -> Iterator[str]:
    """Name the scenes that have a race, each on a device of its own."""
    for scene in SCENES:
        for pinned_host in (False, True):
            device = OrderedDevice()
            device.left_out = left_out
            if played(device, scene, pinned_host=pinned_host, locks=locks).races:
                yield scene.__name__


@pytest.mark.parametrize("name", WAITS)
def test_without_any_one_step_something_can_come_too_early(name: str, named_waits: dict[str, Wait]) -> None:
    assert next(found(named_waits[name]), None)


def test_without_the_stores_lock_one_thread_does_not_wait_for_another() -> None:
    assert list(found(locks=False)) == ["threads_take_turns"]


def test_without_keeping_what_it_reads_a_graph_would_let_its_memory_go_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Forgetful(deque[Any]):
        def append(self, group: Any) -> None: ...

    make = FinalGraph.__init__

    def forgetful(graph: FinalGraph, *arguments: Any) -> None:
        make(graph, *arguments)
        graph._read = Forgetful()

    monkeypatch.setattr(FinalGraph, "__init__", forgetful)
    assert "groups_are_fed_before_one_is_collected" in found()


@PLACES
def test_a_store_that_is_closed_has_given_the_memory_of_temporary_arrays_back(pinned_host: bool) -> None:
    device = OrderedDevice()

    def closed(user: User) -> None:
        images = user.dali.images(IMAGES)
        dalis = device.nbytes("temporary")
        user.put(images)
        assert device.nbytes("temporary") > dalis
        user.store.close()
        assert device.nbytes("temporary") == dalis

    assert played(device, closed, pinned_host=pinned_host).races == []


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
