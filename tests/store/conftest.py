"""Fixtures that tests of stores have in common."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _traced_once(traced_once: None) -> None:
    """What is stored is in question, and not how the graph that makes it is made."""
