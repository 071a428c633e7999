import time
from importlib import import_module

import pytest

from tests.benchmarks import running  # noqa: F401  which puts the scripts on the path
from tests.pictures import write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 12 images in classes."""
    return write_folder(tmp_path_factory.mktemp("data") / "pictures", num_samples=12)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on while somebody sleeps: what else the machine does takes no time."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(import_module("harness"), "wait_until_idle", lambda limit_s: True)
