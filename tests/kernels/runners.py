"""Kernel runners of some steps."""

from __future__ import annotations

from typing import Any

from dalirefurb.augment.output import Output
from dalirefurb.kernels.buffers import OutputBuffers
from dalirefurb.kernels.lower import KernelOp
from dalirefurb.kernels.pipelines import DecodePipelines
from dalirefurb.kernels.program import KernelProgram
from dalirefurb.kernels.rows import KernelThreadPool
from dalirefurb.kernels.runner import KernelRunner


def runner_of(
    steps: tuple[KernelOp, ...],
    output: Output | None,
    pipelines: DecodePipelines,
    pool: KernelThreadPool | None = None,
    **settings: Any,
) -> KernelRunner:
    """Return what runs steps; without an output they end with partial images."""
    if output is None:
        settings["split"] = len(steps)
    program = KernelProgram(steps, output, **settings)
    return KernelRunner(program, pipelines, pool or KernelThreadPool(0), OutputBuffers(3))
