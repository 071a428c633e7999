"""The page on contracts: its classes are tests, which run here as they do in a file of the reader's."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType

from tests.guides import DOCS, scripts


@cache
def classes_of_page() -> dict[str, type]:
    """Return the classes of tests, of one module, by whose name planners are pickled."""
    module = ModuleType("tests.testing.test_your_own")
    sys.modules[module.__name__] = module
    for script in scripts(DOCS / "how-to" / "test-your-own.md"):
        for block in script.blocks:
            exec(compile(block, script.page, "exec", dont_inherit=True), vars(module))
    return {name: each for name, each in vars(module).items() if name.startswith("Test")}


globals().update(classes_of_page())


def test_the_page_has_one_of_each_kind() -> None:
    kinds = {base.__name__ for each in classes_of_page().values() for base in each.__bases__}
    assert kinds == {"StoreContract", "PlannerContract", "StageContract"}
