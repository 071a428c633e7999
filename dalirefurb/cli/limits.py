"""Limits of a command, found out before anything is made: memory, processes, packages and photographs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dalirefurb.errors import ConfigurationError, how_to_install
from dalirefurb.source import FileList
from dalirefurb.system.processes import launched
from dalirefurb.system.resources import amount, available_bytes

_MODULES = {"Pillow": "PIL", "scikit-image": "skimage", "matplotlib": "matplotlib"}

_PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)

PIXEL_BYTES = 12
"""Of a final image: three channels in float32."""


def check_memory(nbytes: int, what: str, remedy: str) -> None:
    """Refuse what does not fit into the memory at hand, of which it needs so many bytes at least."""
    free = available_bytes()
    if free is not None and nbytes > free:
        raise ConfigurationError(
            f"memory must hold {what}, which is at least {amount(nbytes)}, but {amount(free)} are available: {remedy}"
        )


def check_alone() -> None:
    """Refuse to be one of several processes."""
    launcher = launched()
    if launcher is not None and launcher.world_size > 1:
        raise ConfigurationError(
            f"this trains in one process, but it is rank {launcher.rank} of {launcher.world_size}: start it without "
            f"torchrun, mpirun or srun, or start pipelines/imagenet_randaugment.py, which trains in several"
        )


def require(purpose: str, *packages: str) -> None:
    """Refuse to do without packages that something needs: "Pillow", "scikit-image", "matplotlib". None is imported."""
    missing = [name for name in packages if importlib.util.find_spec(_MODULES[name]) is None]
    if missing:
        raise ConfigurationError(
            f"{purpose} needs {' and '.join(packages)}, but {' and '.join(missing)} cannot be found; "
            f"{how_to_install('demo')}"
        )


def whole_photographs() -> FileList:
    """Return the photographs that scikit-image ships, each a class of its own, without importing it.

    Raises:
        ConfigurationError: If a package or a photograph is missing.
    """
    require("the use of scikit-image's photographs", "Pillow", "scikit-image")
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "data"
    absent = [name for name in _PHOTOGRAPHS if not (folder / name).is_file()]
    if absent:
        raise ConfigurationError(
            f"scikit-image's package must hold its photographs, but {', '.join(absent)} cannot be found in "
            f'{folder}; pip install --force-reinstall "scikit-image>=0.22"'
        )
    return FileList([folder / name for name in _PHOTOGRAPHS], range(len(_PHOTOGRAPHS)))
