"""Making of loaders in the process that uses them, since a loader cannot be sent to another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dalirefurb.augment.recipe import Recipe
from dalirefurb.errors import ConfigurationError
from dalirefurb.loader import Loader
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store

Parts: TypeAlias = "tuple[Source, Recipe, Planner] | tuple[Source, Recipe, Planner, Callable[[], Store] | Store]"
"""What a loader is made of; a function makes the store where it is used, such as the class `MemoryStore`."""

Make: TypeAlias = "Callable[[], Loader] | Parts"
"""A function that makes a loader, or what it is made of."""


def check_maker(name: str, make: object) -> None:
    """Refuse an argument that makes no loader.

    Raises:
        ConfigurationError: If it is neither a function nor a loader's parts.
    """
    if not callable(make) and not (isinstance(make, tuple) and len(make) in (3, 4)):
        raise ConfigurationError(
            f"{name} must be a function that makes a Loader, or (source, recipe, planner, store), got {make!r}: pass "
            f"lambda: Loader(...), or a function of a module if it is sent to other processes"
        )


def make_loader(make: Make) -> Loader:
    """Make a loader.

    Raises:
        ConfigurationError: If the function makes something else, or the parts do not fit together.
    """
    if isinstance(make, tuple):
        source, recipe, planner, *stores = make
        return Loader(source, recipe, planner, *(store() if callable(store) else store for store in stores))
    loader = make()
    if not isinstance(loader, Loader):
        raise ConfigurationError(
            f"the function must return a dalirefurb.Loader, got {type(loader).__name__}: return Loader(...)"
        )
    return loader
