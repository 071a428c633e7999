"""What does a competitor's process do? Make batches when it is told to, and nothing between but what it makes ahead.

python worker.py --list CORES      a JSON object: what runs here, with which settings, or why not
python worker.py                   a job on the first line of its input, as JSON, then as in serving.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator

from competitors import data_loaders, formats, masks, mosaics, objects, volumes
from competitors.rows import Job, Row
from competitors.serving import answers, serve, version

ROWS: dict[str, Row] = data_loaders.ROWS | formats.ROWS | masks.ROWS | mosaics.ROWS | objects.ROWS | volumes.ROWS

_NAMED = (
    "torch",
    "torchvision",
    "Pillow",
    "PyTurboJPEG",
    "pycocotools",
    "spdl",
    "grain",
    "monai",
    "nibabel",
    "visionlab-slipstream",
    "litdata",
    "ffcv",
    "numba",
    "opencv-python-headless",
    "albumentations",
)


def main() -> int:
    """Answer what is asked."""
    if sys.argv[1:2] == ["--list"]:
        answers().write(json.dumps(available(int(sys.argv[2]))) + "\n")
    else:
        serve(batches_of(Job(**json.loads(sys.stdin.readline()))))
    return 0


def batches_of(job: Job) -> Generator[int, None, None]:
    """Serve batches of a competitor, and yield their sizes without end."""
    row = ROWS[job.row]
    try:
        yield from map(len, row.batches(job))
    finally:
        row.close()


def available(cores: int) -> dict[str, object]:
    """Tell for each row its settings, with batches made ahead and of a rotation, and facts, or why it cannot run."""
    rows = {}
    for name, row in ROWS.items():
        missing = row.missing()
        settings = [] if missing else row.settings(cores)
        rows[name] = {
            "missing": missing,
            "settings": settings,
            "made_ahead": [row.made_ahead(setting) for setting in settings],
            "facts": {"resumes": row.resumes, "kept": row.kept},
            "rotation": [row.rotation(setting) for setting in settings],
        }
    return {"rows": rows, "versions": {name: version(name) for name in _NAMED}}


if __name__ == "__main__":
    sys.exit(main())
