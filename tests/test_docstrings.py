"""What overrides a method needs no docstring of its own; whatever is new does, which ruff cannot tell."""

import importlib
import inspect
import pkgutil
from functools import cached_property
from types import FunctionType

import pytest

import dalirefurb

FOUND = pkgutil.walk_packages(dalirefurb.__path__, "dalirefurb.")
MODULES = [each.name for each in FOUND if each.name != "dalirefurb.__main__"]
METHODS = (FunctionType, property, cached_property, staticmethod, classmethod)


@pytest.mark.parametrize("module", MODULES)
def test_each_public_method_has_a_docstring_or_overrides_one_that_has(module):
    if module.startswith("dalirefurb.trainers."):
        pytest.importorskip(module, exc_type=ImportError)  # Other projects' trainers are extras.
    loaded = importlib.import_module(module)
    classes = [kind for kind in vars(loaded).values() if inspect.isclass(kind) and kind.__module__ == module]
    unsaid = [
        f"{kind.__name__}.{name}"
        for kind in classes
        for name, method in vars(kind).items()
        if not kind.__name__.startswith("_") and not name.startswith("_") and isinstance(method, METHODS)
        if name not in vars(kind).get("__annotations__", ())  # what a field is by default
        if not any(getattr(vars(base).get(name), "__doc__", None) for base in kind.__mro__)
    ]
    assert not unsaid
