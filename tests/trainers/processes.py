"""Two processes that train together, for the trainers' tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = """
import os, sys
from importlib import import_module

main = import_module(sys.argv[1]).main
child = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
main(sys.argv[2])
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""What is imported, which takes longer than all the rest, need not be imported again: rank 1 is forked from rank 0."""


def in_two_processes(module: str, folder: Path) -> list[Any]:
    """Run a module's `main` as ranks 0 and 1, as a launcher does; return what each has left in the folder."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    launched = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, module, str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **launched, "ACCELERATE_USE_CPU": "true"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=900)
    finally:
        with suppress(ProcessLookupError):  # Both ranks, whichever is left.
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
