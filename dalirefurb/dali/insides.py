"""DALI's insides: each use of what DALI does not promise, with the reason why nothing that it promises will do.

These are private names, how compiled functions are called, and the wording of errors. No other module uses any.
`tests/dali/test_insides.py` has a test for each, which says what a new version of DALI has changed.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

from nvidia.dali.pipeline import Pipeline

THREADS = "[DALI]"
"""Beginning of the names that the system has for DALI's threads: nothing public lists them."""


def random_operator(pipeline: Pipeline) -> str | None:
    """Name a pipeline's first operator that draws random numbers by itself; None if it has none.

    `Pipeline._ops`, and the schema behind each one's `_op`: nothing public lists a pipeline's operators, or tells which
    take a seed. The pipeline must be serialised or built.
    """
    for operator in pipeline._ops:
        if operator._op.schema.HasRandomSeedArg():
            name: str = operator._op.schema.Name()
            return name
    return None


def shut_down(pipeline: Pipeline) -> None:
    """End a pipeline's threads now, and wait for them, though others may still refer to it.

    `Pipeline._shutdown`: by what is public a pipeline ends when nobody refers to it any more.
    """
    pipeline._shutdown()


def abandon_pipelines() -> None:
    """Keep DALI from shutting down a parent's pipelines in a forked child: it would wait for the parent's threads.

    `Pipeline._pipes`: nothing public lists the pipelines that are ended at exit, or takes one off that list.
    """
    pipelines: set[Any] = getattr(Pipeline, "_pipes", set())
    for reference in pipelines:
        pipeline = reference()
        if pipeline is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipeline))
    pipelines.clear()


def describe(iterator: Any, num_samples: int, policy: Any) -> None:
    """Set what a `DALIGenericIterator` says of an epoch: its `size` on this rank, and its `LastBatchPolicy`.

    `DALIGenericIterator._size` and `_last_batch_policy`: its constructor's `size` is deprecated, and warns, where no
    reader is named, and without a size it knows no policy but FILL.
    """
    iterator._size, iterator._last_batch_policy = num_samples, policy


@cache
def operator_of_addresses() -> Any:
    """Return DALI's Numba operator for functions given as addresses: see `run_signature` and `setup_signature`.

    `NumbaFunction._get_run_fn_cpu` and `_get_setup_fn_cpu`: the public operator takes Python functions only. It would
    compile them for seconds, each time, and run a batch's samples one after the other.
    """
    from nvidia.dali.plugin.numba import NumbaFunction

    class _Compiled(NumbaFunction):
        """DALI's operator, of C functions that are there already."""

        def _get_run_fn_cpu(self, run_fn: int, *_: Any) -> int:
            return run_fn

        def _get_setup_fn_cpu(self, setup_fn: int) -> int:
            return setup_fn

    return _Compiled


def run_signature() -> Any:
    """Return Numba's signature of a function that makes the outputs of a batch.

    `NumbaFunction._run_fn_sig`: with which arguments DALI calls such a function is documented nowhere. They are the
    addresses of the outputs' samples, shapes and numbers of dimensions, and how many outputs there are; the same of the
    inputs; and the number of rows. Samples and shapes are addresses in turn, of shape (outputs or inputs, rows), and of
    a shape each element is an int64.
    """
    from numba import types

    address, number = types.uint64, types.int32
    return types.void(address, address, address, number, address, address, address, number, number)


def setup_signature() -> Any:
    """Return Numba's signature of a function that says how large the outputs of a batch are.

    `NumbaFunction._setup_fn_sig`: as for `run_signature`, without the addresses of samples.
    """
    from numba import types

    address, number = types.uint64, types.int32
    return types.void(address, address, number, address, address, number, number)


def reason_of(message: str) -> str:
    """Return an operator's own message, without what DALI says around it.

    DALI raises a `RuntimeError`, of which nothing but the text tells what failed.
    """
    inner = re.search(r"encountered:\s*(.*?)\s*(?:Current pipeline object|$)", message, re.DOTALL)
    return (inner.group(1) if inner else message).strip()


def users_lines(message: str) -> str:
    """Return a message of DALI's without this package's lines of code: only its text tells which lines led there."""
    return re.sub(rf'^ *File "{re.escape(str(Path(__file__).parents[1]))}.*\n.*\n', "", message, flags=re.MULTILINE)


def traced(error: Exception, told: str) -> Exception:
    """Return what a function raised while DALI traced it, with the function's lines and a sentence as a note.

    `ag_error_metadata`: the tracer raises another error, whose text alone has the lines; tracebacks are of other files.
    """
    raised: Any = error
    if hasattr(error, "ag_error_metadata"):
        raised, told = error.__context__ or error, f"{users_lines(str(error))}\n{told}"
    raised.__notes__ = [*getattr(raised, "__notes__", ()), told]
    if sys.version_info < (3, 11):  # It prints no notes.
        raised.args = (f"{raised}\n{told}",)
    return cast("Exception", raised.with_traceback(None))


def failed_row(message: str) -> int | None:
    """Return the row of the sample that could not be decoded, where a message names it: nothing but the text does."""
    named = re.search(r"[Ff]ailed to decode sample #(\d+)", message)
    return int(named.group(1)) if named else None


def decoding_reason(reason: str) -> str:
    """Say of the only sample of a batch why it could not be decoded, without its row: only the text tells it.

    Args:
        reason: Operator's own message, as of `reason_of`.
    """
    said = reason.removeprefix("Failed to decode sample #0 :").strip()
    return said or "its data are damaged, or end early"
