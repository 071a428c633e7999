"""Plugin of pytest that writes down each test as it begins and as it ends, so that none is lost if the process dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

EVENTS = "FIRST_LIGHT_EVENTS"
"""Environment variable: the file of the lines."""

_REASON_CHARACTERS = 600


def pytest_configure(config: Any) -> None:
    """Write in the process that reports, not in its workers."""
    if not hasattr(config, "workerinput") and EVENTS in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ[EVENTS])))


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid, outcome="begun")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the call's outcome, or that of what is before or after it if it is not well."""
        if report.when == "call" or report.outcome != "passed":
            reason = "" if report.outcome == "passed" else _reason(report.longrepr)
            self._write(test=report.nodeid, outcome=report.outcome, reason=reason[-_REASON_CHARACTERS:])

    def _write(self, **line: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _reason(told: Any) -> str:
    """Return in one line what pytest tells: (file, line, reason) of a skipped test, more of another."""
    if isinstance(told, tuple):
        return str(told[2])
    crash = getattr(told, "reprcrash", None)
    return str(told if crash is None else crash.message.partition("\n")[0])
