"""Numbers that a launcher puts into a process's environment, as torchrun does."""

from __future__ import annotations

import os

from dalirefurb.errors import ConfigurationError


def told(name: str) -> int | None:
    """Return the number that an environment variable holds; None if it is not set.

    Raises:
        ConfigurationError: If it is not a whole number.
    """
    value = os.environ.get(name)
    if value is None:
        return None
    if not value.strip().isdecimal():
        raise ConfigurationError(
            f"the environment variable {name} must be a whole number, got {value!r}: start with torchrun, or unset it"
        )
    return int(value)


def local_processes() -> int:
    """Count the processes that the launcher started on this machine, this one included; they share cores and memory."""
    return max(1, told("LOCAL_WORLD_SIZE") or 1)
