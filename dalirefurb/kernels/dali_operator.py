"""Kernels as an operator of DALI's pipelines: right after decoding, if anything is decoded.

So they begin when the last image is there, and the next batch is decoded when they are through, whatever Python does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import types as dali_types
from nvidia.dali.pipeline import Pipeline

from dalirefurb.dali import REPLICA_OPTIONS, Graph, Input
from dalirefurb.dali.insides import operator_of_addresses, run_signature, setup_signature
from dalirefurb.kernels.llvm import c_function, memory, source_digest
from dalirefurb.kernels.program import Work
from dalirefurb.kernels.record import WORK
from dalirefurb.kernels.thread_pool import KernelThreadPool, share

TASK = np.dtype([("work", np.int64), ("first", np.int64), ("pool", np.int64), ("wrong", np.int64)])
"""What the operator is given: the address of a `WORK`, and which of its batch's rows is the first that was decoded; the
address of a `POOL`; and where it says how many rows are of the size that is expected, before one that is not."""

TASKS = Input("task", "int64", 1)
"""The pipeline's input: the address of a task."""


def task(work: Work, first: int, pool: KernelThreadPool) -> NDArray[Any]:
    """Write down a `TASK`, shape (1,); it keeps neither."""
    return np.array([(work.record.ctypes.data, first, pool.address, -1)], TASK)


def build_pipeline(graph: Graph | None, *, max_rows: int, num_threads: int) -> Pipeline:
    """Build a pipeline that does the task of its first row once a graph has made its images; it returns nothing of use.

    Args:
        graph: Graph that makes the images; None: there are none.
        max_rows: Largest number of rows that enter the graph at a time.
        num_threads: Number of CPU threads of the graph.
    """
    threads = num_threads if graph else 1
    pipeline = Pipeline(batch_size=max_rows, num_threads=threads, device_id=None, **REPLICA_OPTIONS)
    with pipeline:
        inputs = [TASKS.node(), *([graph.trace()] if graph else [])]
        operator = operator_of_addresses()(
            _compile_operate().address,
            [dali_types.UINT8],
            [dali_types.INT64, dali_types.UINT8][: len(inputs)],
            [1],
            [1, 3][: len(inputs)],
            setup_fn=_compile_setup().address,
            batch_processing=True,
        )
        pipeline.set_outputs(operator(*inputs))
    pipeline.build()
    return pipeline


def compile_operator() -> tuple[Any, Any]:
    """Compile what DALI's operator calls: for the sizes of its outputs, and to carry out a batch."""
    return _compile_setup(), _compile_operate()


@cache
def _compile_setup() -> Any:
    """Compile what says how large outputs are: a byte each."""

    def setup(shapes: Any, _: Any, outputs: Any, __: Any, ___: Any, inputs: Any, rows: Any) -> None:
        for shape in memory(np.int64(shapes), (rows,), np.int64):
            memory(shape, (1,), np.int64)[0] = 1

    return c_function(setup, setup_signature())


@cache
def _compile_operate() -> Any:
    sources = source_digest()

    def carry_out(
        _: Any, __: Any, ___: Any, outputs: Any, samples: Any, shapes: Any, ____: Any, inputs: Any, rows: Any
    ) -> None:
        _ = sources
        places = memory(np.int64(samples), (inputs, rows), np.int64)
        given = memory(memory(places[0, 0], (1,), np.int64)[0], (1,), TASK)[0]
        work = memory(given.work, (1,), WORK)[0]
        if inputs > 1:
            sides = memory(np.int64(shapes), (inputs, rows), np.int64)
            expected = memory(work.sizes, (work.count, 2), np.int64)
            origins = memory(work.origins, (work.count,), np.int64)
            for i in range(rows):
                height_and_width, row = memory(sides[1, i], (2,), np.int64), given.first + i
                if height_and_width[0] != expected[row, 0] or height_and_width[1] != expected[row, 1]:
                    given.wrong = i
                    return
                origins[row] = places[1, i]
        share(given.pool, given.work)

    return c_function(carry_out, run_signature())
