"""A DiskStore whose process is killed, whose bytes turn, whose disk is full, or whose file goes away."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dalirefurb.errors import StoreError
from dalirefurb.store import DiskStore, StoreSpec
from dalirefurb.store.disk import file_lock, slot_file
from dalirefurb.store.disk.layout import (
    HOLDER_BYTES,
    HOLDER_START,
    PAGE,
    RECORD_BYTES,
    SAMPLES_START,
    Layout,
    Table,
    identity,
    read_table,
)
from dalirefurb.system.resources import amount
from tests.store import test_disk_store
from tests.store.test_disk_store import FINGERPRINT, SHAPE, image

SLOTS = 4
BLOCK = 2 * PAGE
TABLE = Layout(StoreSpec(SHAPE, SLOTS, {})).table_start

opened = partial(test_disk_store.opened, slots=SLOTS)
fill = partial(test_disk_store.fill, count=SLOTS)
held = partial(test_disk_store.held, count=SLOTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 16]))


KINDS: dict[str, Any] = {
    "fixed": {"slot_shape": SHAPE},
    "small": {"slot_shape": (20, 30, 3)},
    "arena": {"slot_shape": None, "arena_bytes": 200_000},
}


def write_at_random(path: Path, seed: int, begun: int) -> None:
    """Put and evict until killed, in a store of another size each time; close `begun` after the first samples."""
    rng = np.random.default_rng(seed)
    kind = KINDS[path.name]
    store = opened(path, slots=int(rng.integers(10, 40)), **kind)
    while True:
        indices, versions = rng.integers(0, 50, 8), rng.integers(0, 3, 8)
        shapes = [kind["slot_shape"] or (int(h), 50, 3) for h in rng.integers(1, 200, 8)]
        rows = zip(indices, versions, shapes, strict=True)
        store.put(indices, versions, [image((index, version), shape) for index, version, shape in rows])
        if begun >= 0:
            os.close(begun)
            begun = -1
        store.evict(rng.integers(0, 50, 4))


def kill_writers(folder: Path, processes: int) -> None:
    """Kill processes that write, each after a random time, and check after each that nothing wrong is served."""
    rng = random.Random(0)
    served = 0
    for number in range(processes):
        path = folder / list(KINDS)[number % len(KINDS)]
        waiting, begun = os.pipe()
        pid = os.fork()
        if not pid:
            write_at_random(path, number, begun)
        os.close(begun)
        if number // len(KINDS) % 3 == 0:
            os.read(waiting, 1)
        os.close(waiting)
        time.sleep(rng.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not path.exists():
            continue
        with opened(path, slots=25, **KINDS[path.name]) as store:
            indices, versions = (axis.ravel() for axis in np.meshgrid(np.arange(50), np.arange(3)))
            with store.get(indices, versions) as lease:
                for index, version, sample in zip(indices, versions, lease.samples, strict=True):
                    if sample is not None:
                        np.testing.assert_array_equal(sample, image((int(index), int(version)), sample.shape))
                        served += 1
            assert store.corrupt == 0
        assert DiskStore.verify(path).ok
        assert {each.name for each in folder.iterdir()} <= set(KINDS)
    assert served > processes // 3


def test_processes_killed_while_they_write_leave_stores_that_open_and_serve_nothing_wrong(tmp_path: Path) -> None:
    processes = os.environ.get("DALIREFURB_KILLED_WRITERS", "10")
    program = (
        "import sys; from pathlib import Path; from tests.store.test_disk_faults import kill_writers; "
        "kill_writers(Path(sys.argv[1]), int(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path), processes], check=True)


@pytest.mark.parametrize("place", [0, 1, 3000, 5999])
def test_a_pixel_that_turned_is_caught_counted_and_computed_again(path: Path, place: int) -> None:
    with opened(path) as store:
        fill(store)
        flip(path, _start(path, 2) + place)
        assert held(store) == [0, 1, 3]
        assert (store.corrupt, len(store)) == (1, SLOTS - 1)
        assert store.put(np.array([2]), np.array([4]), [image(2)])[0]
        assert held(store) == [0, 1, 2, 3]


def test_each_sample_that_turned_counts(path: Path) -> None:
    with opened(path) as store:
        fill(store)
        for index in (1, 2):
            flip(path, _start(path, index))
        assert held(store) == [0, 3]
        assert (store.corrupt, len(store)) == (2, SLOTS - 2)


def begin(*_: Any) -> None:
    """Do nothing: the sample was put just now."""


def lend(path: Path, store: DiskStore) -> None:
    assert held(store) == [0, 1, 2, 3]


def keep_lent(path: Path, store: DiskStore) -> None:
    store.get(np.arange(SLOTS), 2 * np.arange(SLOTS))


def announce(path: Path, store: DiskStore) -> None:
    store.prefetch(np.arange(SLOTS), 2 * np.arange(SLOTS))


def reopen(path: Path, store: DiskStore) -> None:
    store.close()
    store.open(StoreSpec(SHAPE, SLOTS, FINGERPRINT))


@pytest.mark.parametrize("lent", ["page_cache", "copying"])
@pytest.mark.parametrize("stage", [begin, lend, keep_lent, announce, reopen])
def test_a_byte_that_is_flipped_before_a_sample_is_lent_where_it_lies_or_as_a_copy_is_a_miss(
    path: Path, lent: str, stage: Callable[[Path, DiskStore], None], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(lent)
    with opened(path) as store:
        fill(store)
        place = _start(path, 2) + 3000
        stage(path, store)
        flip(path, place)
        assert held(store) == [0, 1, 3]
        assert store.corrupt == 1


def test_a_byte_that_is_flipped_while_the_store_is_closed_is_a_miss(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    flip(path, _start(path, 2))
    with opened(path) as store:
        assert held(store) == [0, 1, 3]


def test_a_byte_that_is_flipped_while_a_copy_is_lent_does_not_show(path: Path, copying: None) -> None:
    with opened(path) as store:
        fill(store)
        lease = store.get(np.array([2]), np.array([4]))
        flip(path, _start(path, 2))
        np.testing.assert_array_equal(lease.samples[0], image(2))


def test_a_byte_that_is_flipped_while_a_sample_is_lent_where_it_lies_shows_until_it_is_released(
    path: Path, page_cache: None
) -> None:
    with opened(path) as store:
        fill(store)
        with store.get(np.array([2]), np.array([4])) as lease:
            flip(path, _start(path, 2))
            assert (lease.samples[0] != image(2)).sum() == 1
        assert held(store) == [0, 1, 3]


def _start(path: Path, index: int) -> int:
    """Return where a sample of `fill` begins in the file."""
    (slot,) = np.flatnonzero([image(index).tobytes() == block for block in _blocks(path)])
    return SAMPLES_START + int(slot) * BLOCK


def _blocks(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[SAMPLES_START + slot * BLOCK :][: np.prod(SHAPE)] for slot in range(SLOTS)]


@pytest.mark.parametrize("place", range(RECORD_BYTES))
def test_a_record_that_turned_is_not_believed(path: Path, place: int) -> None:
    with opened(path) as store:
        fill(store)
    flip(path, TABLE + RECORD_BYTES + place)
    found = DiskStore.verify(path)
    assert (found.intact, found.torn, found.ok) == (SLOTS - 1, 1, False)
    with opened(path) as store:
        assert len(held(store)) == len(store) == SLOTS - 1
        fill(store)
    assert DiskStore.verify(path).ok


def test_what_lies_between_samples_does_not_matter(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    flip(path, SAMPLES_START + BLOCK - 1)
    assert DiskStore.verify(path).ok
    with opened(path) as store:
        assert held(store) == [0, 1, 2, 3]


def test_verify_names_the_versions_that_are_damaged(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    (first,) = np.flatnonzero([image(2).tobytes() == block for block in _blocks(path)])
    flip(path, SAMPLES_START + int(first) * BLOCK + 77)
    found = DiskStore.verify(path)
    assert (found.intact, found.damaged, found.torn, found.ok) == (SLOTS - 1, ((2, 4),), 0, False)


def test_what_the_device_fails_to_read_is_damaged_to_who_verifies(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        fill(store)
    broken, read = _start(path, 2), os.pread

    def fail(fd: int, nbytes: int, start: int) -> bytes:
        if start == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, nbytes, start)

    monkeypatch.setattr(os, "pread", fail)
    found = DiskStore.verify(path)
    assert (found.intact, found.damaged, found.torn, found.ok) == (SLOTS - 1, ((2, 4),), 0, False)


def test_a_record_of_another_configuration_is_not_believed(path: Path, tmp_path: Path) -> None:
    with opened(path) as store:
        fill(store)
    other = DiskStore(tmp_path / "other")
    other.open(StoreSpec(SHAPE, SLOTS, {"name": "other"}))
    other.close()
    content = bytearray((tmp_path / "other").read_bytes())
    content[SAMPLES_START:] = path.read_bytes()[SAMPLES_START:]
    (tmp_path / "other").write_bytes(content)
    other.open(StoreSpec(SHAPE, SLOTS, {"name": "other"}))
    assert len(other) == 0
    other.close()


@pytest.mark.parametrize(
    ("index", "start"), [(9, 0), (0, 5 * BLOCK), (9, 2 * SLOTS * BLOCK)], ids=["block", "version", "beyond the samples"]
)
def test_a_record_that_contradicts_another_or_the_file_is_dropped(path: Path, index: int, start: int) -> None:
    slots = 2 * SLOTS
    layout = Layout(StoreSpec(SHAPE, slots, FINGERPRINT))
    with opened(path, slots=slots) as store:
        fill(store)
    with path.open("r+b") as file:
        records = read_table(file.fileno(), layout.table_start, slots)
        assert (records["index"][0], records["start"][0]) == (0, 0)
        table = Table(file.fileno(), layout.table_start, identity(layout.spec), records)
        key = np.array([index]), np.array([index])
        table.set(np.array([SLOTS]), key, np.array([start]), records["pixels"][:1], np.array([SHAPE]))
    with opened(path, slots=slots) as store:
        assert len(held(store)) == len(store) == SLOTS
        others = np.arange(100, 100 + SLOTS)
        assert store.put(others, others, [image(other) for other in others]).all()
        assert len(held(store)) == SLOTS
        assert not store.put(np.array([8]), np.array([8]), [image(8)])[0]
    assert DiskStore.verify(path).ok


def test_a_damaged_header_is_written_anew_with_a_warning(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    flip(path, 40)
    with pytest.raises(StoreError, match=f"must be intact, but that of {path} is damaged: open it .* cache purge"):
        DiskStore.inspect(path)
    with pytest.warns(
        UserWarning, match=f"header of the store {path} was damaged and is written anew: .* may be lost"
    ) as told:
        store = opened(path)
    assert [each.filename for each in told] == [test_disk_store.__file__]
    assert held(store) == [0, 1, 2, 3]
    store.close()
    assert DiskStore.inspect(path).held == SLOTS


def test_a_file_that_ends_in_its_header_has_a_damaged_one(path: Path) -> None:
    opened(path).close()
    os.truncate(path, 20)
    with pytest.raises(StoreError, match=f"must be intact, but that of {path} is damaged"):
        DiskStore.inspect(path)
    with pytest.warns(UserWarning, match="was damaged and is written anew"):
        store = opened(path)
    fill(store)
    assert held(store) == [0, 1, 2, 3]
    store.close()


def test_a_damaged_store_can_be_purged(path: Path) -> None:
    opened(path).close()
    flip(path, 40)
    DiskStore.purge(path)
    assert not path.exists()


def test_a_store_that_does_not_fit_on_its_disk_is_refused_with_both_numbers(path: Path) -> None:
    with pytest.raises(StoreError, match=r"needs \d+\.\d\d [GT]B more and \d+\.\d\d [GT]B are free: use a smaller"):
        opened(path, slots=10**4, slot_shape=(4000, 5000, 3))
    assert not path.exists()


def test_what_a_file_lacks_is_compared_with_what_this_user_may_take_of_its_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        fill(store)
    lacks = (Layout(StoreSpec(SHAPE, 2 * SLOTS, FINGERPRINT)).nbytes - path.stat().st_size) // 8
    for free in (lacks - 1, lacks):
        disk = SimpleNamespace(f_bavail=free, f_bfree=1000 + free, f_blocks=9000 + free, f_frsize=8, f_bsize=512)
        monkeypatch.setattr(os, "fstatvfs", lambda _, disk=disk: disk)
        if free < lacks:
            expected = f"needs {amount(8 * lacks)} more and {amount(8 * free)} are free: use a smaller"
            with pytest.raises(StoreError, match=expected):
                opened(path, slots=2 * SLOTS)
    with opened(path, slots=2 * SLOTS) as store:
        assert held(store) == [0, 1, 2, 3]


def test_a_disk_that_fills_up_meanwhile_gets_its_room_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take_a_part(fd: int, start: int, nbytes: int) -> None:
        os.truncate(fd, start + nbytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(path) as store:
        fill(store)
    before = path.stat().st_size
    monkeypatch.setattr(os, "posix_fallocate", take_a_part)
    with pytest.raises(
        StoreError, match=r"needs \d+\.\d\d KB more and .*B are free \(No space left on device\): use a smaller"
    ):
        opened(path, slots=2 * SLOTS)
    assert path.stat().st_size == before


LIMITED = """
import resource, signal, sys, warnings
from pathlib import Path
from tests.store.test_disk_faults import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, limit = Path(sys.argv[1]), int(sys.argv[2])
"""


def limited(path: Path, limit: int, program: str) -> None:
    """Run a program in which files cannot grow beyond `limit` bytes, nor be written there."""
    code = f"{LIMITED}\n{program}"
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(path), str(limit)], check=True)


def test_a_store_that_cannot_be_set_aside_is_refused_and_what_was_there_is_kept(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    before = path.stat().st_size
    limited(
        path,
        before,
        """
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for place in (path, path.with_name("new")):
    with pytest.raises(StoreError, match=r"needs [1-9].* [KM]B more and .*B are free \\(File too large\\): use a"):
        opened(place, slots=100 * SLOTS)
""",
    )
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_size == before
    with opened(path) as store:
        assert held(store) == [0, 1, 2, 3]


def test_a_file_that_cannot_be_read_when_it_is_opened_is_refused_and_left_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(path) as store:
        fill(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        expected = f"must be readable and writable, but {path} is not (Input/output error): repair it, or use another"
        with pytest.raises(StoreError, match=re.escape(expected)):
            opened(path)
    with opened(path) as store:
        assert held(store) == [0, 1, 2, 3]


def test_a_file_that_cannot_be_locked_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    expected = f"must be lockable, but {path} is not (No locks available): use a path on a local disk"
    with pytest.raises(StoreError, match=re.escape(expected)):
        opened(path)


@pytest.mark.parametrize("signature", [b"null", b"[]", b"{}", b'{"pid": 1}', b"\xff", b""])
def test_who_uses_a_file_is_another_process_where_it_is_not_said(
    path: Path, signature: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "PATIENCE_S", 0.0)
    with opened(path):
        with path.open("r+b") as file:
            file.seek(HOLDER_START)
            file.write(signature.ljust(HOLDER_BYTES, b"\0"))
        with pytest.raises(StoreError, match=f"{path} is in use by another process: close it there"):
            opened(path)
        assert DiskStore.inspect(path).holder == "another process"


def test_what_a_file_has_already_is_not_said_to_be_needed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, start: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(slot_file, "_allocate", refuse)
    path.write_bytes(bytes(60_000))
    with path.open("r+b") as file, pytest.raises(StoreError, match=r"needs 20\.\d* KB more"):
        slot_file._set_aside(file.fileno(), 80_000, path)


@pytest.mark.parametrize(("writable", "count"), [(5000, 0), (2 * BLOCK, 2)], ids=["samples", "records"])
def test_a_full_disk_stops_storing_with_one_warning_and_what_is_held_is_served(
    path: Path, writable: int, count: int
) -> None:
    limited(
        path,
        SAMPLES_START + writable,
        """
store = opened(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
indices = np.arange(SLOTS)
with pytest.warns(UserWarning, match="cannot be written .*: what it holds is served, .*; make room and open") as seen:
    stored = store.put(indices, 2 * indices, [image(index) for index in indices])
for _ in range(2):
    assert not store.put(indices[2:], 2 * indices[2:], [image(index) for index in indices[2:]]).any()
assert len(seen) == 1
assert held(store) == np.flatnonzero(stored).tolist()
assert len(store) == COUNT
assert not store.put(indices[:1] + 9, indices[:1], [image(9)])[0]
store.evict(indices)
assert len(store) == 0
""".replace("COUNT", str(count)),
    )
    with opened(path) as store:
        fill(store)
        assert held(store) == [0, 1, 2, 3]


READ_ONLY = """
import os
if os.getuid() == 0:
    os.setuid(65534)
with pytest.raises(StoreError, match="must be readable and writable, but .* is not .Permission denied.: make its"):
    opened(path)
"""


def test_a_folder_that_cannot_be_written_is_refused(path: Path) -> None:
    for folder in path.parents:
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)
    path.parent.chmod(0o555)
    limited(path, 0, READ_ONLY)
    path.parent.chmod(0o755)
    assert not path.exists()


def use_in_vain(store: DiskStore, message: str) -> None:
    """Use a store that has lost its file, and see one warning."""
    indices = np.arange(SLOTS)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            assert held(store) == []
            store.prefetch(indices, 2 * indices)
            assert not store.put(indices, 2 * indices, [image(index) for index in indices]).any()
            store.evict(indices)
            store.clear()
    (warning,) = seen
    assert message in str(warning.message)
    assert "everything is computed from here on; leave its file alone, and open it again" in str(warning.message)


def test_a_store_removed_while_in_use_holds_nothing_more_with_one_warning(path: Path) -> None:
    store = opened(path)
    fill(store)
    lease = store.get(np.array([1]), np.array([2]))
    path.unlink()
    use_in_vain(store, f"{path} was removed while in use")
    np.testing.assert_array_equal(lease.samples[0], image(1))
    lease.release()
    store.close()
    assert not list(path.parent.iterdir())
    with opened(path) as store:
        fill(store)
        assert held(store) == [0, 1, 2, 3]


def test_a_removed_store_gives_its_room_back_when_nothing_of_it_is_lent_any_more(path: Path) -> None:
    store = opened(path)
    fill(store)
    with path.open("rb") as file:
        leases = [store.get(np.array([1]), np.array([2])) for _ in range(2)]
        path.unlink()
        with pytest.warns(UserWarning, match="was removed while in use"):
            assert held(store) == []
        for lease in leases:
            assert os.fstat(file.fileno()).st_size > 0
            np.testing.assert_array_equal(lease.samples[0], image(1))
            lease.release()
        assert os.fstat(file.fileno()).st_size == 0
        store.close()


def test_a_store_cut_short_while_something_is_lent_says_that_it_may_have_been_served_wrong(
    path: Path, page_cache: None
) -> None:
    with opened(path) as store:
        fill(store)
        lease = store.get(np.array([1]), np.array([2]))
        os.truncate(path, SAMPLES_START)
        with pytest.raises(StoreError, match=f"but {path} was cut short while samples were lent, .*: go back to the"):
            lease.release()


def test_a_store_that_is_found_cut_short_while_reading_lends_nothing_and_says_so_once(
    path: Path, copying: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def cut_first(fd: int, *arguments: Any) -> int:
        os.truncate(path, SAMPLES_START)
        return read(fd, *arguments)

    with opened(path) as store:
        fill(store)
        monkeypatch.setattr(os, "preadv", cut_first)
        with pytest.warns(UserWarning, match="ends early") as seen:
            assert held(store) == []
        assert len(seen) == 1
        assert store.corrupt == 0


def test_a_read_for_which_there_is_no_memory_leaves_nothing_lent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise MemoryError

    with opened(path) as store:
        fill(store)
        with monkeypatch.context() as patch:
            patch.setattr("dalirefurb.store.disk.slot_file.SlotReader.read", read)
            with pytest.raises(MemoryError):
                store.get(np.array([1]), np.array([2]))
        assert not len(store._opened().slot_table.pinned)  # type: ignore[attr-defined]
        assert held(store) == [0, 1, 2, 3]


def test_a_store_cut_short_while_something_is_lent_can_be_closed(path: Path) -> None:
    store = opened(path)
    fill(store)
    lease = store.get(np.array([1]), np.array([2]))
    os.truncate(path, SAMPLES_START)
    with pytest.warns(UserWarning, match="was cut short while in use"):
        store.close()
    lease.release()


def test_a_store_cut_short_while_in_use_holds_nothing_more_with_one_warning(path: Path) -> None:
    store = opened(path)
    fill(store)
    os.truncate(path, SAMPLES_START)
    use_in_vain(store, f"{path} was cut short while in use")
    store.close()
    with opened(path) as store:
        assert len(store) == 0
        fill(store)


@pytest.mark.parametrize("operation", ["preadv", "fstat"])
def test_a_device_that_cannot_be_read_is_left_alone_after_one_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = opened(path)
    fill(store)
    monkeypatch.setattr(os, operation, fail)
    use_in_vain(store, f"{path} cannot be read (Input/output error) while in use")
    monkeypatch.undo()
    store.close()
    with opened(path) as store:
        assert held(store) == [0, 1, 2, 3]
