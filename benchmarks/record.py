"""How does a benchmark outlast its calls? Its JSON is what was measured so far, and the next call goes on from it.

call 1   unit ▏ unit ▏ un|                    time is over: the unit that was cut off is not in the JSON
call 2                  unit ▏ unit ▏ ...     environments of all calls are kept
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import command
import harness
import torch


class Record:
    """Rows of measurements, written anew whenever some are added.

    Args:
        path: Of the JSON, where an earlier call may have left it.
        config: A dataclass of what is run; an earlier call must have run the same.
        kinds: The dataclass of each kind of rows.

    Attributes:
        rows: By kind, in the order in which they were added.
    """

    def __init__(self, path: Path, config: Any, kinds: Mapping[str, type]) -> None:
        self._path, self._config = path, config
        self._calls: list[dict[str, Any]] = []
        self.rows: dict[str, list[Any]] = {kind: [] for kind in kinds}
        if path.exists():
            found = json.loads(path.read_text())
            if found["config"] != json.loads(json.dumps(asdict(config))):
                command.refuse(f"{path} must be a result of this configuration, but is another's: pass another --out")
            self._calls = found["results"]["calls"]
            self.rows = {kind: [make(**row) for row in found["results"][kind]] for kind, make in kinds.items()}
        self._calls.append({**harness.environment(), "gpu": gpu()})

    def write(self, **follows: Any) -> None:
        """Replace the JSON, whole or not at all, by all rows and what follows from them."""
        new = self._path.with_suffix(".new")
        results = {**follows, **self.rows, "calls": self._calls}
        harness.write(new, environment=self._calls[0], config=self._config, results=results)
        new.replace(self._path)


def gpu() -> str | None:
    """Name the GPU, None where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
