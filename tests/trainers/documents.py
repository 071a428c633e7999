"""Code blocks of pages in Markdown."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "trainers"


def python_blocks(page: Path) -> list[str]:
    """Return a page's blocks of Python, each on the lines that it has in the page, so that errors name these."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in blocks]


def run_page(page: Path) -> dict[str, object]:
    """Run a page's blocks one after another, as one script; return its names."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), names)
    return names
