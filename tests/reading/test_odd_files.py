"""All odd files among good ones: training ends, the report lists what cannot be decoded, and memory stays bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import FileList, Loader, MemoryStore, Refurbish, simple
from tests.bad_files import assert_same, expected
from tests.pictures import write_folder
from tests.reading.conftest import Odd
from tests.reading.test_bad_samples import replacing, served
from tests.reading.test_file_formats import DARK

pytestmark = pytest.mark.filterwarnings(f"ignore:{DARK}")
RECIPE = simple(32)
MAX_PIXELS = 30_000_000


@pytest.fixture(scope="module")
def files(odd_files: Odd, tmp_path_factory: pytest.TempPathFactory) -> FileList:
    """The odd files, and after them as many good ones as make 200."""
    others = sorted(write_folder(tmp_path_factory.mktemp("good"), num_samples=75).glob("*/*.jpg"))
    return FileList([*odd_files, *others], range(200))


@pytest.fixture(scope="module")
def undecodable(odd_files: Odd) -> set[int]:
    """What Pillow cannot decode, and what is too large."""
    sizes = enumerate(odd_files.values())
    return {number for number, size in sizes if size is None or size[0] * size[1] > MAX_PIXELS}


def loader_of(files: FileList, planner: Refurbish, **options: Any) -> Loader:
    options |= {"num_threads": 2, "batches_per_group": None, "max_pixels": MAX_PIXELS}
    return replacing(files, RECIPE, planner, MemoryStore(), **options)


def peak_bytes() -> int:
    """The most memory that the process had since that was forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_what_cannot_be_decoded_is_replaced_and_listed(files: FileList, undecodable: set[int]) -> None:
    """A bomb among them would take 2.7 GB to decode."""
    planner = Refurbish(200, batch_size=20, reuse_factor=2, seed=1, shards=2)
    wanted = expected(files, RECIPE, planner, epochs=2, bad=undecodable)
    Path("/proc/self/clear_refs").write_text("5")  # Its peak is forgotten.
    before = peak_bytes()
    with loader_of(files, planner) as loader:
        assert_same(wanted[:13], served(loader, 13))
        state = loader.state_dict()
        report = loader.bad_samples()
    assert peak_bytes() - before < 1_500_000_000
    assert {sample.index for sample in report} == undecodable
    assert all(sample.name == files.name(sample.index) for sample in report)
    with loader_of(files, planner) as loader:
        loader.load_state_dict(state)
        assert_same(wanted[13:], served(loader, 7))
    shown = torch.cat([indices for _, _, indices in wanted[:10]]).numpy()
    planned = np.concatenate([plan.indices for plan in planner.epoch(0)])
    good = ~np.isin(planned, list(undecodable))
    assert sorted(shown[good].tolist()) == sorted(set(range(200)) - undecodable)


@pytest.mark.weekly
def test_two_ranks_serve_the_same_together(files: FileList, undecodable: set[int]) -> None:
    planner = Refurbish(200, batch_size=20, reuse_factor=2, seed=1, shards=2)
    wanted = expected(files, RECIPE, planner, epochs=1, bad=undecodable)
    parts = []
    for rank in range(2):
        with loader_of(files, planner, rank=(rank, 2)) as loader:
            parts.append(served(loader, 10))
    both = [tuple(torch.cat(halves) for halves in zip(*batches, strict=True)) for batches in zip(*parts, strict=True)]
    assert_same(wanted, both)


@pytest.mark.weekly  # The first test and that of `test_file_formats` say so, too.
def test_what_dali_cannot_decode_and_pillow_can_is_served(
    odd_files: Odd, files: FileList, undecodable: set[int]
) -> None:
    """Among them GIF, AVIF, icons, and JPEGs with junk in their headers."""
    planner = Refurbish(200, batch_size=20, reuse_factor=2, seed=1)
    with loader_of(files, planner) as loader:
        shown = torch.cat([indices for _, _, indices in served(loader, 10)])
        refused = {sample.index for sample in loader.bad_samples()}
    assert refused == undecodable
    assert len(refused) == 27
    assert set(range(len(odd_files))) - undecodable <= set(shown.tolist())
