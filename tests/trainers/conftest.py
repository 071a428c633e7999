from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _traced_once(traced_once: None) -> None:
    """Every checkpoint is resumed by a loader of its own."""


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Networks here are tiny: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker is left alone with it."""
    items.sort(key=lambda item: "test_ray" not in item.nodeid)
