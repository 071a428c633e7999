"""Fixtures that tests of sources have in common."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _traced_once(traced_once: None) -> None:
    """What a source gives is in question, and not how the graph that decodes it is made."""
