"""What somebody may do with a device store, scene by scene: right only if everything waits for what it needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from dalirefurb.augment import HorizontalFlip
from dalirefurb.augment.output import Output
from dalirefurb.engine.cache_client import AskedRows
from dalirefurb.engine.cuda import CudaFinal, CudaPartial, CudaQueue
from dalirefurb.engine.finals import FinalGraph
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, Rows
from dalirefurb.kernels.cuda.program import CudaProgram
from dalirefurb.kernels.lower import steps_of
from tests.kernels.cuda_host import COMPILER
from tests.ordered_device import Lock
from tests.store.device_user import EMPTY, IMAGES, KEYS, NEWER, OTHERS, SHAPE, SLOTS, User


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
    for some in (KEYS[:5], KEYS[5:]):
        with other.get(some) as lease:
            user.put(lease.images, some)
    other.put(list(OTHERS), version=1)
    assert (user.gathered().get() == IMAGES).all()


def final_graph(user: User) -> FinalGraph:
    inputs: Any = SimpleNamespace(final=lambda plan, images, shown: {"partial": images})
    return FinalGraph(inputs, user.dali, user.store)  # type: ignore[arg-type]


def planned(rows: np.ndarray, lease: Any, *others: tuple[np.ndarray, Images], count: int = SLOTS) -> Any:
    """Plan a group of which some rows are in the store."""
    return SimpleNamespace(
        plan=SimpleNamespace(indices=np.arange(count)),
        shown=None,
        asked=AskedRows(rows, lease),
        found=lambda: rows[lease.found],
        unpinned_images=partial(list, others),
    )


def groups_are_laid_out_and_fed(user: User) -> None:
    """As the engine does: hits are gathered, DALI's images scattered, the host's too; then the store moves on."""
    graph = final_graph(user)
    for version in range(5):
        values = IMAGES + np.uint8(version)
        user.put(list(values[:2]), KEYS[:2], version)
        computed = user.dali.images(values)
        others = [(KEYS[2:4], computed.chosen(KEYS[2:4])), (KEYS[4:], Images(list(values[4:])))]
        with user.get(KEYS[:2], np.full(2, version)) as lease:
            graph.submit(planned(KEYS[:2], lease, *others))
        user.put(computed.chosen(KEYS[2:4]), KEYS[2:4], version)
        del computed, others
        if version > 0:
            assert (graph.collect() == values - np.uint8(1)).all()


def groups_are_fed_before_one_is_collected(user: User) -> None:
    """What they were made of goes meanwhile, and they have one memory."""
    user.put(list(IMAGES[:3]), KEYS[:3])
    graph = final_graph(user)

    def submit(values: np.ndarray) -> None:
        with user.get(KEYS[:3]) as lease:
            graph.submit(planned(KEYS[:3], lease, (KEYS[3:], user.dali.images(values[3:]))))

    submit(IMAGES)
    submit(OTHERS)
    assert (graph.collect() == IMAGES).all()
    submit(IMAGES)
    assert (graph.collect() == np.concatenate([IMAGES[:3], OTHERS[3:]])).all()
    assert (graph.collect() == IMAGES).all()


def a_group_is_laid_out_and_not_fed(user: User) -> None:
    """It is lost, and the images that it was made of go before they were read."""
    graph = final_graph(user)
    with user.get(KEYS[:0]) as lease:
        user.dali.refuses = True
        with suppress(LoaderError):
            graph.submit(planned(KEYS[:0], lease, (KEYS, user.dali.images(IMAGES))))
        user.dali.refuses = False
        graph.submit(planned(KEYS[:0], lease, (KEYS, user.dali.images(OTHERS))))
    assert (graph.collect() == OTHERS).all()


def groups_are_forgotten(user: User) -> None:
    """After a jump the images that they were made of go before they were read."""
    graph = final_graph(user)
    with user.get(KEYS[:0]) as lease:
        graph.submit(planned(KEYS[:0], lease, (KEYS, user.dali.images(IMAGES))))
        graph.restart()
        assert not graph._read
        graph.submit(planned(KEYS[:0], lease, (KEYS, user.dali.images(OTHERS))))
    assert (graph.collect() == OTHERS).all()


def cuda_final(user: User) -> CudaFinal:
    """Kernels that mirror each image, and serve its levels as they are."""
    steps = steps_of((HorizontalFlip(1.0),))
    assert steps is not None
    output = Output(SHAPE[:2], mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    inputs: Any = SimpleNamespace(final_parameters=lambda plan, shown, sizes: MIRRORED)
    return CudaFinal(inputs, CudaQueue(CudaProgram(steps, output, split=0), user.kernels))


MIRRORED = {"flip/mirror": np.ones(SLOTS, np.int32)}


class Decoder:
    """DALI's decoder: what is encoded are an image's levels, one behind the other."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._given: list[Any] = []

    def submit(self, feeds: Any) -> None:
        """Take samples."""
        self._given.append(np.stack(feeds["sample"]).reshape(-1, *SHAPE))

    def collect(self) -> Any:
        """Return a tensor list of images on the device."""
        images = self._user.dali.images(self._given.pop(0))
        array = images.whole[0]  # type: ignore[index]
        tensor = SimpleNamespace(data_ptr=lambda: array.data.ptr)
        return SimpleNamespace(shape=lambda: [SHAPE] * len(images), as_reshaped_tensor=lambda _: tensor)

    def restart(self) -> None:
        """Forget what was taken."""
        self._given.clear()


def cuda_partial(user: User, leaving: Any) -> CudaPartial:
    """Kernels that mirror each image that is decoded."""
    steps = steps_of((HorizontalFlip(1.0),))
    assert steps is not None
    return CudaPartial(CudaQueue(CudaProgram(steps, None, split=1), user.kernels), Decoder(user), leaving)


def encoded(images: np.ndarray) -> dict[str, Any]:
    """What a `CudaPartial` is given: of each second image its levels, as if they were encoded; others are decoded."""
    samples = [image if row % 2 else image.reshape(-1) for row, image in enumerate(images)]
    return {"sample": samples, "sizes": np.full((len(images), 2), SHAPE[:2]), "index": KEYS, **MIRRORED}


def groups_are_begun_by_kernels(user: User) -> None:
    """What was decoded goes once it is collected; what was made is put, finished and let go."""
    begun, final = cuda_partial(user, "gpu"), cuda_final(user)
    for version in range(4):
        values = IMAGES + np.uint8(version)
        begun.submit(encoded(values))
        made = begun.collect()
        user.put(made.chosen(KEYS[:2]), KEYS[:2], version)
        with user.get(KEYS[:2], np.full(2, version)) as lease:
            final.submit(planned(KEYS[:2], lease, Rows(KEYS[2:], made.chosen(KEYS[2:]))))
        del made
        if version > 0:
            assert (user.shown(final.collect()) == (values - np.uint8(1))[:, :, ::-1]).all()


def groups_that_kernels_began_leave_for_the_host(user: User) -> None:
    begun = cuda_partial(user, "cpu")
    for version in range(4):
        begun.submit(encoded(IMAGES + np.uint8(version)))
        begun.submit(encoded(OTHERS))
        for values in (IMAGES + np.uint8(version), OTHERS):
            assert (np.stack([*begun.collect()]) == values[:, :, ::-1]).all()


def a_group_that_kernels_began_fails_halfway(user: User) -> None:
    """What was launched before may still read what was decoded, which goes with the group."""
    begun, launched = cuda_partial(user, "gpu"), user.kernels.launch

    def fails(*arguments: Any) -> None:
        launched(*arguments)
        raise RuntimeError("the next launch is not taken")

    begun.submit(encoded(IMAGES))
    user.kernels.launch = fails  # type: ignore[method-assign]
    with suppress(RuntimeError):
        begun.collect()
    user.kernels.launch = launched  # type: ignore[method-assign]
    begun.submit(encoded(OTHERS))
    assert (begun.collect().whole[0].get() == OTHERS[:, :, ::-1]).all()


def groups_are_finished_by_kernels(user: User) -> None:
    """Slots are read where they are and taken again, images of DALI go, what the host has is copied on the way."""
    final = cuda_final(user)
    for version in range(5):
        values = IMAGES + np.uint8(version)
        user.put(list(values[:2]), KEYS[:2], version)
        computed = user.dali.images(values)
        others = [Rows(KEYS[2:4], computed.chosen(KEYS[2:4])), Rows(KEYS[4:], Images(list(values[4:])))]
        with user.get(KEYS[:2], np.full(2, version)) as lease:
            final.submit(planned(KEYS[:2], lease, *others))
        user.put(computed.chosen(KEYS[2:4]), KEYS[2:4], version)
        del computed, others
        if version > 0:
            assert (user.shown(final.collect()) == values - np.uint8(1)).all()


def more_groups_by_kernels_are_begun_than_there_are_pages(user: User) -> None:
    final = cuda_final(user)
    with user.get(KEYS[:0]) as lease:
        for version in range(4):
            final.submit(planned(KEYS[:0], lease, Rows(KEYS, Images(list(IMAGES + np.uint8(version))))))
    for version in range(4):
        assert (user.shown(final.collect()) == IMAGES + np.uint8(version)).all()


def groups_by_kernels_are_forgotten(user: User) -> None:
    """After a jump, or an error, the images that they were made of go before they were read."""
    final = cuda_final(user)
    with user.get(KEYS[:0]) as lease:
        final.submit(planned(KEYS[:0], lease, Rows(KEYS, user.dali.images(IMAGES))))
        final.restart()
        final.submit(planned(KEYS[:0], lease, Rows(KEYS, user.dali.images(OTHERS))))
        assert (user.shown(final.collect()) == OTHERS).all()


def a_group_by_kernels_fails_halfway(user: User) -> None:
    """What was launched before may still read the images of DALI, which go with the group."""
    final = cuda_final(user)
    launched = user.kernels.launch

    def fails(*arguments: Any) -> None:
        launched(*arguments)
        raise RuntimeError("the next launch is not taken")

    with user.get(KEYS[:0]) as lease:
        user.kernels.launch = fails  # type: ignore[method-assign]
        with suppress(RuntimeError):
            final.submit(planned(KEYS[:0], lease, Rows(KEYS, user.dali.images(IMAGES))))
        user.kernels.launch = launched  # type: ignore[method-assign]
        final.submit(planned(KEYS[:0], lease, Rows(KEYS, user.dali.images(OTHERS))))
    assert (user.shown(final.collect()) == OTHERS).all()


def no_room_halfway_through_a_put(user: User) -> None:
    """The store declines, and whoever gave the images may write them again."""
    user.device.arrays_left = 4
    assert not user.store.put(KEYS, 0 * KEYS, user.dali.images(IMAGES)).any()
    assert user.device.arrays_left == 0
    user.device.arrays_left = None
    user.put(user.dali.images(OTHERS))
    assert (user.gathered().get() == OTHERS).all()


def no_room_halfway_through_a_group(user: User) -> None:
    """The group is lost, and whoever gave the images may write them again."""
    graph = final_graph(user)
    with user.get(KEYS[:0]) as lease:
        user.device.arrays_left = 4
        with suppress(MemoryError):
            graph.submit(planned(KEYS[:0], lease, (KEYS, user.dali.images(IMAGES))))
        assert user.device.arrays_left == 0
        user.device.arrays_left = None
        graph.submit(planned(KEYS[:0], lease, (KEYS, user.dali.images(OTHERS))))
    assert (graph.collect() == OTHERS).all()


def closed_while_the_device_works(user: User) -> None:
    """A lease outlives its store."""
    user.put(list(IMAGES))
    out = user.batch()
    with user.get() as lease:
        user.store.close()
        lease.gather(out, KEYS)
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


def a_lease_goes_from_thread_to_thread(user: User) -> None:
    """One takes it, another gathers, a third looks and puts newer versions: as the engine's threads do."""
    user.put(list(IMAGES))
    handed: list[Any] = []
    hand_over = Lock(user.device)

    def one() -> None:
        with hand_over:
            handed.append(user.store.get(KEYS, 0 * KEYS))

    def two() -> None:
        with hand_over, user.device.stream("a thread's stream"):
            handed.append(user.batch())
            handed[0].gather(handed[1], KEYS)
            handed[1] = handed[1].get()

    def three() -> None:
        with hand_over:
            assert (np.stack(handed[0].samples) == IMAGES).all()
            handed[0].release()
        user.put(list(OTHERS), version=1)

    user.device.run(one, two, three)
    assert (handed[1] == IMAGES).all()
    assert (user.gathered(versions=NEWER).get() == OTHERS).all()


Scene = Callable[[User], None]

SCENES: list[Scene] = [
    put_from_a_stream_that_goes_on,
    gathered_into_a_batch_in_use,
    gathered_from_the_default_stream,
    slots_are_taken_again,
    slots_are_taken_again_from_the_device,
    looked_at_on_the_host,
    memory_of_dali_is_put,
    another_stores_pinned_samples_are_put,
    groups_are_laid_out_and_fed,
    groups_are_fed_before_one_is_collected,
    a_group_is_laid_out_and_not_fed,
    groups_are_forgotten,
    *(
        [
            groups_are_finished_by_kernels,
            more_groups_by_kernels_are_begun_than_there_are_pages,
            groups_by_kernels_are_forgotten,
            a_group_by_kernels_fails_halfway,
            groups_are_begun_by_kernels,
            groups_that_kernels_began_leave_for_the_host,
            a_group_that_kernels_began_fails_halfway,
        ]
        if COMPILER
        else []
    ),
    no_room_halfway_through_a_put,
    no_room_halfway_through_a_group,
    closed_while_the_device_works,
    threads_take_turns,
    a_lease_goes_from_thread_to_thread,
]
