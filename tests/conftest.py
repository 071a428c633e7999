import gc
import logging
import os
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from dalirefurb.store.disk import slot_file
from tests.in_turn import EACH_CHANGE

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=8, deadline=None, derandomize=True)
settings.register_profile("few", max_examples=8, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_collection_finish():
    """Have the garbage collector, which tests and trainers call often, look past modules and tests: they stay."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Leave out what takes long where each change is tested; every week, and where a user runs the tests, it runs."""
    if EACH_CHANGE:
        for item in items:
            if item.get_closest_marker("weekly"):
                item.add_marker(pytest.mark.skip(reason="runs weekly, or without HYPOTHESIS_PROFILE=ci"))


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    """Commands do not tell what takes long, which a busy machine decides; tests of that set it back."""
    monkeypatch.setattr("dalirefurb.cli.outcome._LEVEL", logging.WARNING)


_PIPELINES = (
    *(("tests.one_batch", name) for name in ("_replica", "operation_pipeline")),
    ("tests.stages", "cached_dali_maker"),
    ("tests.bad_files", "_replica"),
)
"""Caches of functions that make pipelines."""


@pytest.fixture(autouse=True, scope="module")
def _no_pipelines_left():
    """Pipelines that a module's tests leave go with it: loaders count the time of every thread at each epoch."""
    yield
    for module, name in _PIPELINES:
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()
    if sum(1 for _ in Path("/proc/self/task").iterdir()) > 16:
        gc.collect()


@pytest.fixture(scope="module")
def traced_once():
    """Each graph is traced once: that is most of the time of what makes the same loader hundreds of times."""
    from dalirefurb.dali import Graph  # what needs no graph need not import DALI

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "serialize", cache(Graph.serialize))
        yield


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data, beside the project."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "shared" / "data").is_dir():
            return folder / "shared" / "data"
    pytest.skip("there is no folder shared/data beside the project")


@pytest.fixture(scope="session")
def photos(shared_data):
    """Paths of 364 photographs in 14 classes."""
    return sorted((shared_data / "photos").glob("*/*.jpg"))


@pytest.fixture
def copying(monkeypatch):
    """Memory has no room for the files of stores, so what is read from them is copied."""
    monkeypatch.setattr(slot_file, "available_bytes", lambda: 0)


@pytest.fixture
def page_cache(tmp_path):
    """The temporary folder's file system says what is in the page cache, and lets it be dropped."""
    probe = tmp_path / "probe"
    probe.write_bytes(b"x")
    with probe.open("rb") as file:

        def is_there():
            try:
                return os.preadv(file.fileno(), (bytearray(1),), 0, os.RWF_NOWAIT) == 1
            except (OSError, AttributeError, NotImplementedError):
                return False

        before = is_there()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not before or is_there():
            pytest.skip("the temporary folder's file system does not say what is in the page cache")
    probe.unlink()
