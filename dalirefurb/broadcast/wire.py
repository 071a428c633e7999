"""Wire: the socket between a broadcast and a training, and memory that they share.

    Attached ──▶ `Asked`, pickled ─────────────────────────────────────────▶ Broadcast
    Attached ◀── which memory, where in it, and the memory's descriptor ◀─── Broadcast

Sockets carry whole messages, and have abstract names; memory is anonymous. So nothing of either is in a file system,
and the kernel takes both away with the last process that has them, however that ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.checks import require
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.loader_view import Batch
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError
from dalirefurb.system.resources import amount

MESSAGE = struct.Struct("<qqqq")
"""What a broadcast sends: the numbers of what was asked and of the memory, start and length of what is told there."""

MOST_BYTES = 1 << 18
"""Of a message; Linux takes none that is larger."""

_KIND_BIT, _NOT_LOOKED_AT, _SHARED = np.uint64(61), 0b000, 0b101
"""The highest bits of what Linux tells of a page: present, swapped, of a file. What was written here is of none."""

_ALIGNMENT = 64
_LONGEST_NAME = 64
_TRIES_EACH_S = 0.1
_CREDENTIALS = struct.Struct("iII")
"""The `struct ucred` of Linux: process, user, group."""

_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class Asked(NamedTuple):
    """What a training asks for.

    Attributes:
        number: Number of the question, from 1 on.
        position: Position of the batch that is asked for; None: where to begin is asked for.
        state: State to begin at; None: wherever it can.
        freed: Numbers of memory of which no tensor is left, once for each time that it was told of.
    """

    number: int
    position: Position | None = None
    state: dict[str, Any] | None = None
    freed: tuple[int, ...] = ()


class Welcome(NamedTuple):
    """What a training is told when it comes: what `Attached` says, and how many slots are in use at a time."""

    num_batches: int
    batch_size: int
    num_samples: int
    with_indices: bool
    slots: int


class Part(NamedTuple):
    """Where a tensor of a batch lies in memory, and what it is."""

    start: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Told(NamedTuple):
    """What a training is told of a batch: the loader's state behind it, and its tensors."""

    state: dict[str, Any]
    parts: tuple[Part, ...]


class Failure(NamedTuple):
    """An error on its way to another process, which may not know its class."""

    pickled: bytes
    words: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Pack an error, whatever it holds."""
        try:
            pickled = pickle.dumps(error)
        except Exception:
            pickled = b""
        return cls(pickled, f"{type(error).__name__}: {error}")

    def error(self) -> Exception:
        """Return the error, or one that says its words where it cannot be had."""
        try:
            error = pickle.loads(self.pickled)
        except Exception:
            error = None
        return error if isinstance(error, Exception) else LoaderError(f"the broadcast's loader raised {self.words}")


class SharedMemory:
    """Memory of at least 1 byte that another process maps by its descriptor; it is there as long as anybody has it.

    Attributes:
        number: Number by which it is known.
        descriptor: Its descriptor in this process.
        content: Its bytes, uint8 of shape (nbytes,).

    Raises:
        OutOfMemoryError: If there is no room.
    """

    def __init__(self, nbytes: int, number: int = 0) -> None:
        self.number = number
        self.descriptor = os.memfd_create("dalirefurb-broadcast")
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        try:
            os.posix_fallocate(self.descriptor, 0, nbytes)
        except OSError as error:
            raise OutOfMemoryError(
                f"a broadcast needs {amount(nbytes)} of shared memory for a batch, but the system has none "
                f"({error.strerror}): pass a smaller ahead, or a smaller batch_size to the planner"
            ) from error
        self.content: NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.descriptor, nbytes), np.uint8)

    @classmethod
    def of(cls, told: object) -> SharedMemory:
        """Pickle an object into memory of its own."""
        pickled = pickle.dumps(told)
        memory = cls(len(pickled))
        memory.content[:] = np.frombuffer(pickled, np.uint8)
        return memory


def mapped(descriptor: int) -> mmap.mmap:
    """Map shared memory: what others write is seen, what is written here is seen by nobody else."""
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)


def forget_writes(memory: mmap.mmap) -> None:
    """Have mapped memory be what it is to others, without what was written here."""
    content = np.frombuffer(memory, np.uint8)
    first, pages = int(content.__array_interface__["data"][0]) // mmap.PAGESIZE, -(-len(content) // mmap.PAGESIZE)
    with suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as told:
        kinds = np.frombuffer(os.pread(told.fileno(), 8 * pages, 8 * first), np.uint64) >> _KIND_BIT
        if len(kinds) == pages and ((kinds == _NOT_LOOKED_AT) | (kinds == _SHARED)).all():
            return  # Else each page would have to be mapped again, which takes longer than this.
    memory.madvise(mmap.MADV_DONTNEED)


def laid_out(batch: Batch) -> tuple[tuple[Part, ...], int]:
    """Say where each tensor of a batch is to lie, one behind the other, and where the last one ends.

    Raises:
        ConfigurationError: If they are on a GPU.
    """
    parts, end = list[Part](), 0
    for tensor in batch:
        if tensor.device.type != "cpu":
            raise ConfigurationError(
                f"a broadcast's batches must be on the CPU, whose memory processes share, but the loader's are on "
                f"{tensor.device}: leave final_device out of the loader, and move batches in each training, by "
                f"images.to(device) or CudaPrefetch(Attached(name))"
            )
        nbytes = tensor.numel() * tensor.element_size()
        strides = torch.empty_like(tensor, device="meta").stride()
        parts.append(Part(end, nbytes, tensor.dtype, tuple(tensor.shape), tuple(strides)))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(parts), end


def write(content: NDArray[np.uint8], part: Part, tensor: torch.Tensor) -> None:
    """Copy a tensor to where it is to lie."""
    dense = tensor if tensor.stride() == part.strides else torch.empty_like(tensor).copy_(tensor)
    flat = dense.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    content[part.start : part.start + part.nbytes] = flat.numpy()


def read(content: NDArray[np.uint8], part: Part) -> torch.Tensor:
    """Return the tensor that lies somewhere; it keeps the content alive."""
    flat = torch.from_numpy(content[part.start : part.start + part.nbytes])
    return flat.view(part.dtype).as_strided(part.shape, part.strides)


def listening(name: str) -> socket.socket:
    """Return a socket that trainings find by a name.

    Raises:
        ConfigurationError: If the name is none, or in use.
    """
    address, listener = _address(name), _socket()
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"name must be one that no other broadcast of this user has on this machine, but {name!r} is in use: pass "
            f"another, or end the process that serves it"
        ) from error
    listener.listen(128)
    return listener


def connected(name: str, wait_s: float) -> socket.socket:
    """Return a socket that leads to who serves by a name, who is waited for.

    Raises:
        ConfigurationError: If the name is none.
        LoaderError: If nobody serves by it, or another user does.
    """
    address, until = _address(name), time.monotonic() + wait_s
    while True:
        connection = _socket()
        try:
            connection.connect(address)
            break
        except ConnectionRefusedError as error:
            connection.close()
            if time.monotonic() >= until:
                raise LoaderError(
                    f"a broadcast must be there before a training attaches, but for {wait_s:g} s nobody of this user "
                    f"served {name!r} on this machine: begin Broadcast(loader, {name!r}) in a process of its own, "
                    f"in the same container or with the same network"
                ) from error
            time.sleep(_TRIES_EACH_S)
    if not is_own_user(connection):
        connection.close()
        raise LoaderError(f"{name!r} must be served by a process of this user, but another user's serves it")
    return connection


def is_own_user(connection: socket.socket) -> bool:
    """Tell whether the process at the other end is one of this user."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.geteuid())


def keep_from_children(connection: socket.socket) -> None:
    """Have a socket closed in forked processes, which would hide the end of this one."""
    _SOCKETS.add(connection)


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keep_from_children(made)
    return made


def _address(name: str) -> bytes:
    fits = isinstance(name, str) and 0 < len(name.encode()) <= _LONGEST_NAME
    require(fits, "name", f"a text of 1 to {_LONGEST_NAME} bytes", name, "pass such as 'photos'")
    return f"\0dalirefurb/{os.geteuid()}/{name}".encode()


def _close_in_child() -> None:
    for each in [*_SOCKETS]:
        each.close()


os.register_at_fork(after_in_child=_close_in_child)
