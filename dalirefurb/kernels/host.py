"""Host functions: Python functions that kernels call, by addresses as compiled ones, with Python's lock."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.stages.custom import HostStage
from dalirefurb.dali import GraphError
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Image
from dalirefurb.kernels.record import DONE, RAISED

_C_FUNCTION = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 10)
"""As `kernel.SIGNATURE` has it."""


class StageRaised(GraphError):  # noqa: N818 - it is the user's error that it tells
    """A function of the user's raised an error.

    Args:
        stage: Its stage.
        sample: Index of the sample; None: not known.
        error: The error.
    """

    def __init__(self, stage: HostStage, sample: int | None, error: Exception) -> None:
        of = "a sample" if sample is None else f"sample {sample}, which source.name({sample}) names"
        super().__init__("")
        self.__cause__ = error
        self.reason = (
            f"stage {stage.name!r} must not fail, but of {of}, its function raised {type(error).__name__}: {error}"
        )
        self.args = (self.reason,)


class HostFunction:
    """A stage's function as kernels call it, which must be kept as long as they may.

    Args:
        stage: The stage.

    Attributes:
        address: Address of a C function, as `compile_kernel` returns it.

    Raises:
        ConfigurationError: If two runs on one image differ.
    """

    def __init__(self, stage: HostStage) -> None:
        _try(stage)
        self._stage = stage
        self._called = _C_FUNCTION(self._call)
        self._raised: dict[int, Exception] = {}
        self.address: int = ctypes.cast(self._called, ctypes.c_void_p).value or 0

    def raised(self, numbers: int, sample: int | None) -> StageRaised | None:
        """Return, and forget, what it has raised that was given the numbers at an address, of such a sample."""
        error = self._raised.pop(numbers, None)
        return None if error is None else StageRaised(self._stage, sample, error)

    def _call(
        self, image: int, height: int, width: int, lines: int, columns: int, numbers: int, _: int, __: int, out: int
    ) -> int:
        _stay()
        self._raised.pop(numbers, None)  # of an earlier batch that nobody asked about
        try:
            count = self._stage.num_uniforms
            given = _at(image, (height, width, 3)).copy()
            uniforms = _at(numbers, (8 * count,)).view(np.float64) if count else np.empty(0)
            _at(out, (lines, columns, 3))[...] = made(self._stage, given, uniforms, (lines, columns))
        except BaseException as error:
            # Python would print what an interrupt raises here, and go on.
            told = error if isinstance(error, Exception) else RuntimeError(f"it raised {type(error).__name__}")
            self._raised[numbers] = told
            return RAISED
        return DONE


_THREAD = threading.local()


def _stay() -> None:
    """Have Python know a thread of DALI's from its first call to its end: else `threading.local` is anew in each."""
    if not hasattr(_THREAD, "stays"):
        _THREAD.stays = True
        ctypes.pythonapi.PyGILState_Ensure()


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object
_WRITABLE = 0x200


def _at(address: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """View memory as an array."""
    return np.frombuffer(_view(address, math.prod(shape), _WRITABLE), np.uint8).reshape(shape)


def made(stage: HostStage, image: Image, uniforms: NDArray[np.float64], size: tuple[int, int] | None) -> Image:
    """Return what a stage's function makes of an image.

    Args:
        stage: The stage.
        image: Image, (h, w, 3) uint8, which the function may change.
        uniforms: The stage's random numbers, two or none.
        size: Height and width of what it is to make, in pixels; None: any.

    Raises:
        ConfigurationError: If it makes something else.
    """
    function: Callable[..., Any] = stage.function
    given = (image, rng.generator(uniforms)) if stage.num_uniforms else (image,)
    result = np.asarray(function(*given))
    wanted = (*(size or result.shape[:2]), 3)
    if result.dtype != np.uint8 or result.ndim != 3 or result.shape != wanted:
        raise ConfigurationError(
            f"it must return uint8 levels of shape {wanted}, got {result.dtype} of {result.shape}: "
            + ("declare HostStage(..., size=...)" if result.dtype == np.uint8 else "pass such as image.astype('uint8')")
        )
    return result


def _try(stage: HostStage) -> None:
    """Run a stage's function twice on a small image."""
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    # What makes one size may do so of images of another one alone.
    size, uniforms = None if stage.size else image.shape[:2], np.full(stage.num_uniforms, 0.5)
    try:
        once, again = (made(stage, image.copy(), uniforms, size).copy() for _ in range(2))
    except ConfigurationError as error:
        raise ConfigurationError(f"stage {stage.name!r}: {error}") from error
    except Exception:  # It may need a larger image; if not, a batch's own images tell.
        return
    if not np.array_equal(once, again):
        raise ConfigurationError(
            f"stage {stage.name!r} must make each image by image and rng alone, but two runs on one image differ: take "
            f"all random numbers from rng, and pass such as int(rng.integers(2**31)) where a library wants a seed"
        )
