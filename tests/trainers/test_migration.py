"""Do the pages that lead from MONAI and Lightning run, and do they name all arguments that are there?"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from tests.guides import SCRIPTS, Script, missing, run
from tests.pictures import write_folder


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, num_samples in (("train", 20), ("val", 9)):
        write_folder(tmp_path / "photos" / part, num_samples=num_samples)
    for folder in ("scans", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(10):
        scan = np.random.default_rng(number).normal(0, 80, (36, 40, 34)).astype(np.int16)
        np.save(tmp_path / "scans" / f"{number}.npy", scan)
        np.save(tmp_path / "masks" / f"{number}.npy", (scan > 100).astype(np.uint8))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("photos")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "script",
    [script for script in SCRIPTS if script.of_trainers],
    ids=lambda script: f"{script.page.stem}-{script.title}",
)
def test_a_page_runs(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    run(script, monkeypatch)


def test_every_argument_of_monais_data_sets_has_a_row() -> None:
    data = pytest.importorskip("monai.data")
    for dataset in (data.CacheDataset, data.PersistentDataset):
        assert not missing("monai", {*inspect.signature(dataset.__init__).parameters} - {"self"})
