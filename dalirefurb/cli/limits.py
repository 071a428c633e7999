"""Checks of what one process on this machine can do, before anything is made."""

from __future__ import annotations

import importlib.util

from dalirefurb.errors import ConfigurationError, how_to_install
from dalirefurb.store import available
from dalirefurb.store.memory_budget import amount
from dalirefurb.system.launch_env import launched

_MODULES = {"Pillow": "PIL", "scikit-image": "skimage", "matplotlib": "matplotlib"}

PIXEL_BYTES = 12
"""Of a final image: three channels in float32."""


def check_memory(nbytes: int, what: str, remedy: str) -> None:
    """Refuse what does not fit into the memory at hand.

    Args:
        nbytes: The least memory that is needed, in bytes.
        what: What needs the memory, for the message.
        remedy: What to do if the memory is too small, for the message.

    Raises:
        ConfigurationError: If it does not fit.
    """
    free = available.available_bytes()
    if free is not None and nbytes > free:
        raise ConfigurationError(
            f"memory must hold {what}, which is at least {amount(nbytes)}, but {amount(free)} are available: {remedy}"
        )


def check_alone() -> None:
    """Refuse to be one of several processes.

    Raises:
        ConfigurationError: If this is one.
    """
    launcher = launched()
    if launcher is not None and launcher.world_size > 1:
        raise ConfigurationError(
            f"this trains in one process, but it is rank {launcher.rank} of {launcher.world_size}: start it without "
            f"torchrun, mpirun or srun, or start pipelines/imagenet_randaugment.py, which trains in several"
        )


def require(purpose: str, *packages: str) -> None:
    """Look for packages, without importing them.

    Args:
        purpose: What needs the packages, for the message.
        packages: Names of the packages to install: "Pillow", "scikit-image" or "matplotlib".

    Raises:
        ConfigurationError: If some cannot be found.
    """
    missing = [name for name in packages if importlib.util.find_spec(_MODULES[name]) is None]
    if missing:
        raise ConfigurationError(
            f"{purpose} needs {' and '.join(packages)}, but {' and '.join(missing)} cannot be found; "
            f"{how_to_install('demo')}"
        )
