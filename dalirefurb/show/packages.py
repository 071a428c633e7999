"""Packages that only drawing needs, and what to say where they are missing."""

from __future__ import annotations

import importlib.util

from dalirefurb.errors import ConfigurationError

_MODULES = {"Pillow": "PIL", "scikit-image": "skimage", "matplotlib": "matplotlib"}


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
            'pip install "dalirefurb[demo]"'
        )
