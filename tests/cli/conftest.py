import logging

import pytest


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    """Nothing is told of what takes long, which a busy machine decides: tests of that set it back."""
    monkeypatch.setattr("dalirefurb.cli.outcome._LEVEL", logging.WARNING)
