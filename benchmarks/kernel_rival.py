"""A process that does by torchvision's v2 what `kernels.py` compares."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from claims import say
from competitors import build
from kernel_subjects import Images


class Torchvision:
    """A process that does the same by torchvision, see `competitors/torchvision_operations.py`.

    Args:
        python: Interpreter of an environment that has torchvision.
        photographs: Images that enter what crops.
        images: Images that enter all else.
    """

    def __init__(self, python: Path, photographs: Images, images: Images) -> None:
        self._folder = TemporaryDirectory()
        paths = [Path(self._folder.name) / f"{name}.npz" for name in ("photographs", "images")]
        for path, given in zip(paths, (photographs, images), strict=True):
            np.savez(path, *given)
        script = Path(__file__).parent / "competitors" / "torchvision_operations.py"
        command = [str(each) for each in (python, script, *paths)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.names: list[str] = json.loads(self._process.stdout.readline() or "[]")

    def turn(self, name: str, batches: int) -> float:
        """Return the microseconds of an image."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\t{batches}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()
        self._folder.cleanup()


def torchvision(python: Path | None, photographs: Images, images: Images) -> Torchvision | None:
    """Start torchvision's process; None where its environment is not there."""
    python = python or build.ENVIRONMENT / "bin" / "python"
    if not python.exists():
        say("torchvision is left out: python benchmarks/competitors/build.py makes its environment")
        return None
    return Torchvision(python, photographs, images)
