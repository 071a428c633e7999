import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


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
