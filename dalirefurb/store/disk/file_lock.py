"""The lock of a store's file: one process at a time; the kernel frees that of one that ends, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dalirefurb.errors import StoreError
from dalirefurb.store.disk.layout import HOLDER_BYTES, HOLDER_START

PATIENCE_S = 1.0
"""How long a lock is waited for: a process that was killed takes a moment to end, and one that only looks to look."""

_KEPT_FROM_CHILDREN: set[int] = set()


def open_locked(path: Path) -> tuple[int, bool]:
    """Open a file to read and write, made if need be, and keep everybody else from it.

    Returns:
        Its descriptor, and whether it was made, and nobody has written into it.

    Raises:
        StoreError: Somebody else uses it, or it cannot be opened.
    """
    while True:
        try:
            try:
                fd, is_new = os.open(path, os.O_RDWR), False
            except FileNotFoundError:
                fd, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            continue
        except IsADirectoryError as error:
            raise StoreError(
                f"a store is kept in a file of its own, but {path} is a folder: pass the path of a file in it"
            ) from error
        except OSError as error:
            raise StoreError(
                f"a store's file must be readable and writable, but {path} is not ({error.strerror}): "
                "make its folder, give yourself the permission, or use another path"
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StoreError(f"a store is kept in a regular file, but {path} is none: use another path")
            lock(fd, path)
        except BaseException:
            os.close(fd)
            raise
        # Before it was locked somebody else may have used it first, and its last user may have deleted it.
        status = os.fstat(fd)
        if status.st_nlink:
            keep_from_children(fd)
            return fd, is_new and not status.st_size
        os.close(fd)


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """Open a file that exists to read it meanwhile, unlocked.

    Raises:
        StoreError: It cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise StoreError(f"there must be a store at {path}, but it cannot be read ({error.strerror})") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StoreError(f"there must be a store at {path}, but it is no regular file: name the file itself")
        yield fd
    finally:
        os.close(fd)


def lock(fd: int, path: Path, *, shared: bool = False) -> None:
    """Lock an open file against everybody else, or only against those that write.

    Raises:
        StoreError: Somebody else uses it, or its file system knows no locks.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise StoreError(
                    f"a store has one user at a time, but {path} is in use by {_signer(fd)}: "
                    "close it there (by store.close(), since a loader leaves its store open), wait for it to end, or "
                    "use another path (each rank of a run needs its own)"
                ) from None
        except OSError as error:
            raise StoreError(
                f"a store's file must be lockable, but {path} is not ({error.strerror}): use a path on a local disk"
            ) from error
        time.sleep(0.01)


def keep_from_children(fd: int) -> None:
    """Have forked children see an empty file here, until `close`: they would go on with the lock of who is killed."""
    _KEPT_FROM_CHILDREN.add(fd)


def holder(fd: int) -> str | None:
    """Name the process that uses an open file; None if there is none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _signer(fd)
    fcntl.flock(fd, fcntl.LOCK_UN)
    return None


def close(fd: int, owner_pid: int) -> None:
    """Unlock and close a file.

    Children that were forked by others than Python share the lock, which closing alone would leave to them; and a child
    must not take it away from `owner_pid`.
    """
    _KEPT_FROM_CHILDREN.discard(fd)
    try:
        if os.getpid() == owner_pid:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def sign(fd: int) -> None:
    """Write into a locked file who uses it."""
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    os.pwrite(fd, text.ljust(HOLDER_BYTES, b"\0"), HOLDER_START)


def _signer(fd: int) -> str:
    """Name the process that signed a file last."""
    try:
        signature = json.loads(os.pread(fd, HOLDER_BYTES, HOLDER_START).rstrip(b"\0"))
        pid, host = signature["pid"], signature["host"]
    except (ValueError, TypeError, KeyError):
        return "another process"
    return f"{'this process,' if pid == os.getpid() else 'process'} {pid} on {host}"


def _let_go_in_child() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in _KEPT_FROM_CHILDREN:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
    _KEPT_FROM_CHILDREN.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
