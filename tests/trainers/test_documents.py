"""Pages about trainers: every block of Python runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pictures import write_folder
from tests.trainers.documents import PAGES, python_blocks, run_page

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("trainer", ["lightning", "accelerate", "transformers"])
def test_every_block_of_a_page_runs(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(trainer, reason=f"the package {trainer} is not installed")
    for part, images in (("train", 20), ("val", 10)):
        write_folder(tmp_path / "photos" / part, num_samples=images)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    run_page(PAGES / f"{trainer}.md")


def test_blocks_are_found_on_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```sh\nls\n```\n\n```python\nx = 1\n```\n\n```python\ny = x + oops\n```\n")
    assert [block.strip() for block in python_blocks(page)] == ["x = 1", "y = x + oops"]
    with pytest.raises(NameError) as told:
        run_page(page)
    assert told.traceback[-1].lineno + 1 == 12
