"""Contracts of stores, planners and stages: classes of tests to derive from, which pytest runs on one of your own.

They need pytest and Hypothesis, which nothing else of the package imports.
"""

from __future__ import annotations

from dalirefurb.errors import how_to_install

try:
    import hypothesis as hypothesis
    import pytest
except ImportError as error:
    raise ImportError(
        f"dalirefurb.testing needs pytest and hypothesis, but {error.name} cannot be imported: {how_to_install('test')}"
    ) from error
else:
    for _module in ("planner", "plans", "stage", "store", "store_machine"):
        pytest.register_assert_rewrite(f"{__name__}.{_module}")

from dalirefurb.testing.planner import PlannerContract as PlannerContract
from dalirefurb.testing.stage import StageContract as StageContract
from dalirefurb.testing.store import StoreContract as StoreContract
from dalirefurb.testing.store_machine import StoreMachine as StoreMachine
