import pytest

from tests.benchmarks import running  # noqa: F401  which puts the scripts on the path
from tests.pictures import write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 12 images in classes."""
    return write_folder(tmp_path_factory.mktemp("data") / "pictures", num_samples=12)
