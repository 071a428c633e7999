"""Each script on the pages of docs/trainers runs as it is printed, on a folder of images."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.pictures import write_folder

PAGES = Path(__file__).resolve().parents[2] / "docs" / "trainers"
_BLOCK = re.compile(r"^## (?P<title>.*?)$|^```python\n(?P<script>.*?)^```$", re.MULTILINE | re.DOTALL)


def scripts(page: str) -> dict[str, str]:
    """Return the scripts of a page by the title above each; the page's name where there is none."""
    found, title = {}, page
    for match in _BLOCK.finditer((PAGES / f"{page}.md").read_text()):
        title = match["title"] or title
        if match["script"]:
            assert title not in found, f"{page}.md has two scripts below {title!r}: each needs a title of its own"
            found[title] = match["script"]
    assert found
    return found


NEEDS = {
    "timm": "timm",
    "monai": None,
    "Ignite": "ignite.engine",
    "skorch": "skorch",
    "fastai": "fastai.learner",
    "torchdata's nodes": "torchdata.nodes",
}
SCRIPTS = {title: script for page in ("timm", "monai", "others") for title, script in scripts(page).items()}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, num_samples in (("train", 20), ("val", 9)):
        write_folder(tmp_path / "photos" / name, num_samples=num_samples)
    monkeypatch.chdir(tmp_path)


def load_timm_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `import timm` find its own MixUp, and a network in the place of its models, which need torchvision."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    mixup = importlib.util.spec_from_file_location("timm.data", Path(spec.origin).parent / "data" / "mixup.py")
    assert mixup is not None
    assert mixup.loader is not None
    data, timm = importlib.util.module_from_spec(mixup), types.ModuleType("timm")
    mixup.loader.exec_module(data)

    def create_model(name: str, num_classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(432, num_classes))

    timm.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)


def test_each_script_of_the_pages_is_known() -> None:
    assert SCRIPTS.keys() == NEEDS.keys()


@pytest.mark.usefixtures("photos")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("title", NEEDS)
def test_a_script_runs_as_it_is_printed(
    title: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if title == "timm" and importlib.util.find_spec("torchvision") is None:
        load_timm_without_torchvision(monkeypatch)
    elif (needed := NEEDS[title]) is not None:
        pytest.importorskip(needed)
    np.random.seed(0)  # noqa: NPY002 - timm's
    exec(compile(SCRIPTS[title], f"{title}.py", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert title in ("skorch", "fastai", "torchdata's nodes") or len(re.findall(r"(?m)^epoch \d: ", said)) >= 2
