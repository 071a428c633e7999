"""CudaLauncher: what runs the launches of `BatchLaunches`, by CuPy, on the current CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels.cuda.program import Launch
from dalirefurb.kernels.cuda.source import THREADS

OPTIONS = ("-std=c++17", "-fmad=false")
"""Those of NVRTC: sums and products are not fused, and divisions and roots are IEEE's, as they come."""


class CudaLauncher:
    """Runs a source on the CUDA device that is current, on CuPy's current stream.

    NVRTC compiles it when it is made: that takes seconds, once for each kind of GPU, since CuPy keeps what it made on
    disk.

    Args:
        text: Source, see `source`.

    Raises:
        ConfigurationError: If it cannot be compiled.
    """

    def __init__(self, text: str) -> None:
        import cupy

        module = cupy.RawModule(code=text, options=OPTIONS)
        try:
            self._functions = {name: module.get_function(name) for name in ("prepare", "pass", "pixels", "output")}
        except cupy.cuda.compiler.CompileException as error:
            raise ConfigurationError(f"NVRTC must compile the kernels for this GPU, but says: {error}") from error

    def launch(self, launch: Launch, rows: int, page: int) -> None:
        """Queue one launch, for so many rows, given the address of the page of `BatchLaunches`."""
        function: Any = self._functions[launch.function]
        function((launch.blocks, rows), (THREADS,), (np.int64(page), np.int64(launch.step)))
