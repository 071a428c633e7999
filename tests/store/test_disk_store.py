"""What a DiskStore keeps from one opening to the next, for whom, and what can be learned from outside."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.store import DiskStore, Lease, StoreSpec
from dalirefurb.store.disk import file_lock, slot_file
from dalirefurb.store.disk import page_cache as pages
from dalirefurb.store.disk.layout import PAGE, RECORD, SAMPLES_START, Table, read_table

SHAPE = (40, 50, 3)
SLOTS = 8
FINGERPRINT = {"seed": 1, "stages": [{"name": "flip", "version": 1}], "source": "photos"}

Arguments = dict[str, Any]
FIXED: Arguments = {"slot_shape": SHAPE}
ARENA: Arguments = {"slot_shape": None, "arena_bytes": 6000 * SLOTS}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def drop(path: Path) -> None:
    """Let nothing of a file be in the page cache, unless somebody maps it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def lent_in_place(store: DiskStore) -> bool:
    """Whether what is lent lies where it lies in the file, and not in memory of its own."""
    first, second = (store.get(np.array([0]), np.array([0])) for _ in range(2))
    np.testing.assert_array_equal(first.samples[0], image(0))
    return np.shares_memory(first.samples[0], second.samples[0])


@pytest.fixture(params=[FIXED, ARENA], ids=["fixed slots", "arena"])
def kind(request: pytest.FixtureRequest) -> Arguments:
    value: Arguments = request.param
    return value


def opened(path: Path, **changes: Any) -> DiskStore:
    store = DiskStore(path)
    store.open(StoreSpec(**{**FIXED, "slots": SLOTS, "fingerprint": FINGERPRINT, **changes}))
    return store


def image(key: int | tuple[int, int], shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(key).integers(0, 256, shape, dtype=np.uint8)


def fill(store: DiskStore, count: int = SLOTS) -> None:
    """Put versions 2 * index of indices below `count`."""
    indices = np.arange(count)
    assert store.put(indices, 2 * indices, [image(index) for index in indices]).all()


def held(store: DiskStore, count: int = SLOTS) -> list[int]:
    """The indices of `fill` that the store holds, with the pixels that they were put with."""
    indices = np.arange(count)
    with store.get(indices, 2 * indices) as lease:
        for index in np.flatnonzero(lease.found):
            np.testing.assert_array_equal(lease.samples[index], image(index))
        return np.flatnonzero(lease.found).tolist()


def test_a_store_opened_again_holds_what_was_not_evicted(path: Path, kind: Arguments) -> None:
    with opened(path, **kind) as store:
        fill(store)
        store.evict(np.array([2, 5]))
    with opened(path, **kind) as store:
        assert len(store) == SLOTS - 2
        assert held(store) == [0, 1, 3, 4, 6, 7]
        assert store.put(np.array([2, 5]), np.array([9, 9]), [image(2), image(5)]).all()


def test_what_an_evicted_but_lent_slot_held_is_gone_after_opening_again(path: Path) -> None:
    store = opened(path)
    fill(store)
    lease = store.get(np.array([3]), np.array([6]))
    store.evict(np.array([3]))
    store.close()
    np.testing.assert_array_equal(lease.samples[0], image(3))
    with opened(path) as store:
        assert held(store) == [0, 1, 2, 4, 5, 6, 7]


def test_a_store_with_more_slots_keeps_everything(path: Path, kind: Arguments) -> None:
    with opened(path, **kind) as store:
        fill(store)
    more = {**kind, "slots": 3 * SLOTS, **({"arena_bytes": 6000 * 3 * SLOTS} if "arena_bytes" in kind else {})}
    with opened(path, **more) as store:
        assert held(store) == list(range(SLOTS))
        fill(store, 3 * SLOTS)
    with opened(path, **more) as store:
        assert held(store, 3 * SLOTS) == list(range(3 * SLOTS))


def test_a_store_with_fewer_slots_keeps_what_fits_and_takes_less_room(path: Path, kind: Arguments) -> None:
    with opened(path, **kind) as store:
        fill(store)
        before = path.stat().st_size
    fewer = {**kind, "slots": 3, **({"arena_bytes": 6000 * 3} if "arena_bytes" in kind else {})}
    with opened(path, **fewer) as store:
        assert 1 <= len(held(store)) == len(store) <= 3
        assert path.stat().st_size < before
        store.clear()
        fill(store, 3)
    with opened(path, **kind) as store:
        assert held(store) == [0, 1, 2]


def test_a_store_with_fewer_slots_keeps_what_was_in_its_last_ones(path: Path) -> None:
    with opened(path, **ARENA) as store:
        fill(store)
        store.evict(np.array([0, 1, 2, 3, 7]))
    with opened(path, **ARENA, slots=3) as store:
        assert held(store) == [4, 5, 6]


def test_a_store_takes_whole_pages_and_nothing_beside_its_file(path: Path) -> None:
    with opened(path) as store:
        assert store.nbytes == SLOTS * 2 * PAGE
        assert path.stat().st_blocks * 512 >= store.nbytes
        fill(store)
    assert list(path.parent.iterdir()) == [path]


def test_a_copy_has_its_memory_to_itself_until_it_is_released(path: Path, copying: None) -> None:
    with opened(path) as store:
        fill(store)
        first, second = (store.get(np.array([0]), np.array([0])) for _ in range(2))
        (lent,) = first.samples
        assert not np.shares_memory(lent, second.samples[0])
        first.release()
        again, third = (store.get(np.array([1]), np.array([2])) for _ in range(2))
        assert np.shares_memory(lent, again.samples[0])
        assert not np.shares_memory(lent, third.samples[0])


@pytest.mark.parametrize(
    ("room", "in_place"), [(2 * SLOTS * 2 * PAGE, True), (2 * SLOTS * 2 * PAGE - 1, False), (None, True)]
)
def test_what_is_in_the_page_cache_is_lent_where_it_lies_if_memory_has_room_for_twice_the_samples(
    path: Path, page_cache: None, monkeypatch: pytest.MonkeyPatch, room: int | None, in_place: bool
) -> None:
    monkeypatch.setattr(slot_file, "available_bytes", lambda: room)
    with opened(path) as store:
        fill(store)
        assert lent_in_place(store) == in_place


@pytest.mark.parametrize(("room", "blocks"), [(6_144_000, True), (6_143_999, False), (None, True)])
def test_small_samples_are_read_ahead_in_blocks_if_memory_has_room_for_twice_all(
    path: Path, page_cache: None, monkeypatch: pytest.MonkeyPatch, room: int | None, blocks: bool
) -> None:
    read, announced = [], []
    monkeypatch.setattr(slot_file, "available_bytes", lambda: room)
    with opened(path, slot_shape=(32, 32, 3), slots=1000) as store:
        indices = np.arange(2)
        assert store.put(indices, indices, [image(index)[:32, :32].copy() for index in indices]).all()
        monkeypatch.setattr(pages.Mapped, "has", lambda *_: False)
        monkeypatch.setattr(pages.Mapped, "bring", lambda _, start, buffer: read.append((start, len(buffer))) or 0)
        monkeypatch.setattr(os, "posix_fadvise", lambda _, start, nbytes, __: announced.append((start, nbytes)))
        store.prefetch(indices, indices)
        store.get(indices, indices).release()
        monkeypatch.undo()
    assert read == ([(1 << 16, 1 << 18)] if blocks else [])
    assert announced == ([(1 << 16, 1 << 18)] if blocks else [(1 << 16, 3072), ((1 << 16) + 3072, 3072)])


@pytest.mark.parametrize("lacks", ["the constant", "the call"])
def test_a_python_that_cannot_ask_what_is_in_memory_copies(
    path: Path, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def without_flags(fd: int, buffers: Any, offset: int, *flags: int) -> int:
        if flags:
            raise NotImplementedError("preadv2")
        return read(fd, buffers, offset)

    if lacks == "the constant":
        monkeypatch.delattr(os, "RWF_NOWAIT")
    else:
        monkeypatch.setattr(os, "preadv", without_flags)
    with opened(path) as store:
        fill(store)
        assert not lent_in_place(store)
        assert held(store) == list(range(SLOTS))


def test_a_table_is_read_and_written_whole_however_little_the_system_moves_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.preadv, os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, start: write(fd, memoryview(data)[:100], start))
        with path.open("wb+") as file:
            records = np.zeros(40, RECORD)
            records["index"] = np.arange(40)
            Table(file.fileno(), 4096, 0, records).write()
            patch.setattr(os, "preadv", lambda fd, buffers, start: read(fd, [buffers[0][:100]], start))
            np.testing.assert_array_equal(read_table(file.fileno(), 4096, 40), records)
            assert not read_table(file.fileno(), 4096, 50)[40:]["index"].any()


def test_where_the_file_system_does_not_tell_what_is_in_memory_samples_are_announced_and_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = []
    monkeypatch.setattr(pages.Mapped, "has", lambda *_: False)
    with opened(path, slot_shape=(32, 32, 3), slots=1000) as store:
        index = np.array([0])
        assert store.put(index, index, [image(0)[:32, :32].copy()]).all()
        monkeypatch.setattr(os, "posix_fadvise", lambda _, start, nbytes, __: announced.append((start, nbytes)))
        store.prefetch(index, index)
        first, second = (store.get(index, index) for _ in range(2))
        assert not np.shares_memory(first.samples[0], second.samples[0])
        monkeypatch.undo()
    assert announced == [(1 << 16, 3072)]


def test_a_store_that_is_closed_reads_no_more(path: Path, page_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def bring(*_: Any) -> int:
        began.set()
        assert goes_on.wait(600)
        return 1

    store = opened(path, slot_shape=(32, 32, 3), slots=1000)
    index = np.array([0])
    assert store.put(index, index, [image(0)[:32, :32].copy()]).all()
    monkeypatch.setattr(pages.Mapped, "has", lambda *_: False)
    monkeypatch.setattr(pages.Mapped, "bring", bring)
    store.prefetch(index, index)
    assert began.wait(600)
    threading.Timer(0.05, goes_on.set).start()
    store.close()
    assert goes_on.is_set()
    assert "dalirefurb-read-ahead" not in [thread.name for thread in threading.enumerate()]


def test_small_samples_share_pages_and_are_what_they_were_whatever_happens_to_their_neighbours(path: Path) -> None:
    shape, slots = (20, 30, 3), 50
    indices = np.arange(slots)
    samples = np.random.default_rng(0).integers(0, 256, (slots, *shape), np.uint8)

    def check(lease: Lease, rows: np.ndarray) -> None:
        np.testing.assert_array_equal(np.stack(lease.samples), samples[rows])

    store = opened(path, slot_shape=shape, slots=slots)
    assert store.put(indices, indices, list(samples)).all()
    assert store.nbytes == slots * 1856
    lease = store.get(indices[::3], indices[::3])
    store.evict(indices[1::3])
    assert store.put(indices[1::3], indices[1::3] + slots, list(~samples[1::3])).all()
    check(lease, indices[::3])
    store.close()
    with opened(path, slot_shape=shape, slots=slots) as store:
        kept = np.delete(indices, indices[1::3])
        with store.get(kept, kept) as found:
            check(found, kept)
        store.clear()
        assert store.put(indices, indices, list(~samples)).all()
    check(lease, indices[::3])
    lease.release()


def test_what_is_not_in_the_page_cache_is_copied_and_then_lent_where_it_lies(path: Path, page_cache: None) -> None:
    with opened(path) as store:
        fill(store)
    drop(path)
    with opened(path) as store:
        indices = np.arange(SLOTS)
        first, second, third = (store.get(indices, 2 * indices) for _ in range(3))
        assert not np.shares_memory(first.samples[0], second.samples[0])
        assert np.shares_memory(second.samples[0], third.samples[0])
        for lease in (first, second):
            for index, sample in enumerate(lease.samples):
                np.testing.assert_array_equal(sample, image(index))


def test_where_a_sample_is_not_in_the_page_cache_those_beside_it_are_copied_too(
    path: Path, page_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        fill(store)
        monkeypatch.setattr(pages.Mapped, "has", lambda _, start: start < SAMPLES_START + PAGE)
        assert lent_in_place(store)
        first, second = (store.get(np.array([0, 1]), np.array([0, 2])) for _ in range(2))
        assert not np.shares_memory(first.samples[0], second.samples[0])
        np.testing.assert_array_equal(first.samples[1], image(1))


def test_a_file_that_cannot_be_mapped_is_copied_from(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(pages.mmap, "mmap", refuse)
    with opened(path) as store:
        fill(store)
        assert not lent_in_place(store)
        assert held(store) == list(range(SLOTS))


def test_where_looking_waits_for_the_disk_samples_are_copied_for_a_while(
    path: Path, page_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        fill(store)
        assert lent_in_place(store)
        waited = iter([0, 1])
        monkeypatch.setattr(pages, "waits", lambda: next(waited))
        store.get(np.array([0]), np.array([0]))
        monkeypatch.undo()
        assert not lent_in_place(store)
        monkeypatch.setattr(pages.time, "monotonic", lambda: float("inf"))
        assert lent_in_place(store)


def test_a_lease_shows_the_same_when_its_block_is_written_after_closing(path: Path, kind: Arguments) -> None:
    store = opened(path, **kind)
    fill(store)
    indices = np.arange(SLOTS)
    lease = store.get(indices, 2 * indices)
    store.close()
    with opened(path, **kind) as store:
        store.clear()
        assert store.put(indices, indices, [image(index + SLOTS) for index in indices]).all()
    for index, sample in enumerate(lease.samples):
        np.testing.assert_array_equal(sample, image(index))
    lease.release()


@pytest.mark.parametrize("evicted", [False, True])
def test_a_sample_that_is_being_written_is_not_found_yet_but_can_be_evicted(
    path: Path, monkeypatch: pytest.MonkeyPatch, evicted: bool
) -> None:
    write = os.pwritev
    index = np.array([0])

    def meanwhile(fd: int, parts: list[memoryview], place: int) -> int:
        assert held(store, 1) == []
        if evicted:
            store.evict(index)
        return write(fd, parts, place)

    monkeypatch.setattr(os, "pwritev", meanwhile)
    with opened(path, slots=1) as store:
        assert store.put(index, index, [image(0)])[0] == (not evicted)
        assert held(store, 1) == ([] if evicted else [0])
        assert store.corrupt == 0
        assert store.put(index, index + 1, [image(0)])[0] == (not evicted)


def test_a_read_that_is_interrupted_keeps_no_slot(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    indices = np.arange(SLOTS)
    with opened(path) as store:
        fill(store)
        with monkeypatch.context() as patch:
            patch.setattr(slot_file.SlotReader, "read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.get(indices, 2 * indices)
        store.evict(indices)
        fill(store)
        assert held(store) == indices.tolist()


def test_of_samples_whose_writing_is_interrupted_those_before_are_held_and_the_others_keep_no_slot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, indices = os.pwritev, np.arange(SLOTS)
    writes = iter(range(SLOTS))

    def interrupted(fd: int, parts: list[memoryview], place: int) -> int:
        if next(writes) == 3:
            raise KeyboardInterrupt
        return write(fd, parts, place)

    with opened(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fill(store)
        assert held(store) == [0, 1, 2]
        assert len(store) == 3
        fill(store)
        assert held(store) == indices.tolist()


def test_closing_waits_for_who_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reached, go = slot_file.SlotReader.read, threading.Event(), threading.Event()
    found: list[list[int]] = []

    def slow(*given: Any) -> Any:
        reached.set()
        assert go.wait(600)
        return read(*given)

    store = opened(path)
    fill(store)
    monkeypatch.setattr(slot_file.SlotReader, "read", slow)
    monkeypatch.setattr(pages.Mapped, "holds", lambda *_: False)  # It is read by the file's number.
    reader = threading.Thread(target=lambda: found.append(held(store, 2)))
    reader.start()
    assert reached.wait(600)
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(0.05)
    go.set()
    reader.join(600)
    closer.join(600)
    assert found == [[0, 1]]


def test_another_fingerprint_is_refused_by_the_keys_that_differ_and_costs_nothing(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    other = {"seed": 2, "stages": [{"name": "flip", "version": 3}], "source": "photos", "device": "gpu"}
    expected = (
        f"{path} holds samples of another: device nothing, not 'gpu'; seed 1, not 2; stages[0].version 1, not 3: "
        f"use another path, or delete it by `dalirefurb cache purge {path}`"
    )
    with pytest.raises(StoreError, match=re.escape(expected)):
        opened(path, fingerprint=other)
    with opened(path) as store:
        assert held(store) == list(range(SLOTS))


def test_a_fingerprint_of_tuples_is_one_of_lists_and_true_is_not_one(path: Path) -> None:
    with opened(path, fingerprint={"size": (1, 2), "flag": True}) as store:
        fill(store)
    with opened(path, fingerprint={"flag": True, "size": [1, 2]}) as store:
        assert len(store) == SLOTS
    with pytest.raises(StoreError, match="flag True, not 1: use"):
        opened(path, fingerprint={"size": (1, 2), "flag": 1})


def test_many_differences_are_counted_and_long_values_cut(path: Path) -> None:
    opened(path, fingerprint={str(key): "x" * 200 for key in range(9)}).close()
    with pytest.raises(StoreError, match=r"0 'x{79}\.\.\., not nothing; .*; and 4 more: use another path"):
        opened(path, fingerprint={})
    with pytest.raises(StoreError, match=r"; 5 'x{79}\.\.\., not nothing; and 1 more: use another path"):
        opened(path, fingerprint={str(key): "x" * 200 for key in (0, 7, 8)})


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [
        ({"key": object()}, "must consist of JSON values, but Object of type object is not JSON serializable: use"),
        ({"key": float("nan")}, "must consist of JSON values, but Out of range float values"),
        ({"key": "x" * 70_000}, r"at most 614\d\d bytes of JSON, but the header has 70\d\d\d: put digests"),
    ],
)
def test_a_fingerprint_that_no_header_can_hold_is_refused(
    path: Path, fingerprint: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        opened(path, fingerprint=fingerprint)
    assert not path.exists()


def test_another_sample_shape_is_refused(path: Path) -> None:
    opened(path).close()
    with pytest.raises(StoreError, match=r"slot_shape \(40, 50, 3\), not None: use another path"):
        opened(path, **ARENA)


@pytest.mark.parametrize("content", [b"x", b"dalirefurb", b"\xff\xd8\xff\xe0 a photograph" * 9])
def test_a_file_that_is_no_store_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (opened, DiskStore.inspect, DiskStore.verify, DiskStore.purge):
        with pytest.raises(StoreError, match=f"must be made by a store, but {path} was not: use another path"):
            use(path)
    assert path.read_bytes() == content


def test_a_file_of_another_format_is_refused(path: Path) -> None:
    opened(path).close()
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\x07")
    with pytest.raises(StoreError, match=f"must have format 2, but {path} has 7: use another path"):
        opened(path)


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with opened(path) as store:
        fill(store)
        assert held(store) == list(range(SLOTS))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent/store", "absent/store is not (No such file or directory): make its folder"),
        (".", "is a folder: pass the path of a file in it"),
        ("/dev/null", "kept in a regular file, but /dev/null is none: use another path"),
    ],
)
def test_a_path_that_cannot_be_a_store_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(StoreError, match=re.escape(message)):
        opened(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_no_store_and_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    for use in (DiskStore.inspect, DiskStore.verify, DiskStore.purge):
        with pytest.raises(StoreError, match=f"must be a store at {path}, but it is no regular file: name the file"):
            use(path)
    with pytest.raises(StoreError, match=f"kept in a regular file, but {path} is none: use another path"):
        opened(path)
    assert path.exists()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_sets_nothing_aside_is_given_zeros(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, nbytes: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with opened(path, slots=300) as store:
        assert path.stat().st_blocks * 512 >= store.nbytes > 2_000_000
        fill(store)
    with opened(path, slots=300) as store:
        assert held(store) == list(range(SLOTS))


HOLD = """
import sys
from pathlib import Path
from tests.store.test_disk_store import opened
store = opened(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def user(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open."""
    monkeypatch.setattr(file_lock, "PATIENCE_S", 0.05)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_store_in_use_is_refused_by_the_name_of_its_user_and_can_be_inspected(
    path: Path, user: subprocess.Popen[str]
) -> None:
    expected = f"one user at a time, but {path} is in use by process {user.pid} on .*: close it there .by store.close"
    for use in (opened, DiskStore.verify, DiskStore.purge):
        with pytest.raises(StoreError, match=expected):
            use(path)
    assert f"process {user.pid} on " in str(DiskStore.inspect(path).holder)


def test_a_dead_users_store_is_taken_over(path: Path, user: subprocess.Popen[str]) -> None:
    os.kill(user.pid, signal.SIGKILL)
    user.wait()
    assert DiskStore.inspect(path).holder is None
    with opened(path) as store:
        fill(store)


def test_a_second_store_of_one_process_is_refused_until_the_first_is_closed_or_gone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "PATIENCE_S", 0.05)
    first = opened(path)
    with pytest.raises(StoreError, match=f"in use by this process, {os.getpid()} on"):
        opened(path)
    first.close()
    second = opened(path)
    del second
    opened(path).close()


def test_a_child_that_was_forked_meanwhile_does_not_keep_a_closed_file_locked(path: Path) -> None:
    with opened(path):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:  # It lives until the pipe's other end is closed.
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
    try:
        opened(path).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_forked_child_has_the_files_that_were_opened_after_a_store_was_closed(path: Path, tmp_path: Path) -> None:
    """They have the numbers of what is kept from children while the store is open."""
    opened(path).close()
    other = tmp_path / "other"
    other.write_bytes(b"content")
    files = [os.open(other, os.O_RDONLY) for _ in range(8)]
    if not (child := os.fork()):
        os._exit(sum(os.read(file, 7) != b"content" for file in files))
    for file in files:
        os.close(file)
    assert os.waitpid(child, 0)[1] == 0


FORK = """
import os, sys
from pathlib import Path
from tests.store.test_disk_store import opened
store = opened(Path(sys.argv[1]))
if os.fork():
    print("open", flush=True)
sys.stdin.read()
"""


def test_a_child_of_a_user_that_was_killed_does_not_keep_its_file_locked(path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORK, str(path)], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()
        process.wait()
        opened(path).close()  # The child still waits for the end of its input.


def test_a_file_that_is_deleted_before_it_is_locked_is_made_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = file_lock.lock
    paths = [path]

    def delete_first(fd: int, path: Path) -> None:
        while paths:
            paths.pop().unlink()
        lock(fd, path)

    opened(path).close()
    monkeypatch.setattr(file_lock, "lock", delete_first)
    with opened(path) as store:
        fill(store)
    assert DiskStore.inspect(path).held == SLOTS


def test_a_file_that_another_user_writes_before_it_is_locked_is_not_deleted_by_who_made_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = file_lock.lock

    def overtaken(fd: int, path: Path) -> None:
        monkeypatch.setattr(file_lock, "lock", lock)
        with opened(path) as store:
            fill(store)
        lock(fd, path)

    monkeypatch.setattr(file_lock, "lock", overtaken)
    with pytest.raises(StoreError, match=f"{path} holds samples of another: .* use another path"):
        opened(path, fingerprint={})
    assert DiskStore.inspect(path).held == SLOTS


def test_inspect_says_what_is_held_and_for_what(path: Path, kind: Arguments) -> None:
    with opened(path, **kind) as store:
        fill(store)
        store.evict(np.array([1]))
    found = DiskStore.inspect(path)
    assert (found.held, found.held_bytes, found.holder) == (SLOTS - 1, (SLOTS - 1) * 6000, None)
    assert (found.nbytes, found.path) == (path.stat().st_size, path)
    assert (found.spec.slots, found.spec.fingerprint) == (SLOTS, FINGERPRINT)
    assert found.spec.slot_shape == kind["slot_shape"]


def test_verify_reads_everything_and_writes_nothing(path: Path, kind: Arguments) -> None:
    with opened(path, **kind) as store:
        fill(store)
    before = path.read_bytes()
    found = DiskStore.verify(path)
    assert (found.intact, found.damaged, found.torn, found.ok) == (SLOTS, (), 0, True)
    assert path.read_bytes() == before


def test_several_verify_at_a_time_and_nobody_writes_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "PATIENCE_S", 0.0)
    opened(path).close()
    with file_lock.reading(path) as fd:
        file_lock.lock(fd, path, shared=True)
        assert DiskStore.verify(path).ok
        for use in (opened, DiskStore.purge):
            with pytest.raises(StoreError, match="one user at a time"):
                use(path)


def test_purge_deletes_the_file_and_says_how_large_it_was(path: Path) -> None:
    opened(path).close()
    nbytes = path.stat().st_size
    assert DiskStore.purge(path) == nbytes
    assert not list(path.parent.iterdir())
    for use in (DiskStore.inspect, DiskStore.verify, DiskStore.purge):
        with pytest.raises(StoreError, match=f"must be a store at {path}, but it cannot be read"):
            use(path)
