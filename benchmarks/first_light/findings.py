"""Findings: what a step hoped to see, and what it saw. Nothing is imported here but Python's own modules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

DONE = "done"
NOT_RUN = "not run: "

Verdict = Literal["right", "wrong", "told", "not run"]


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        what: What was looked at.
        hoped: What should be seen.
        seen: What was seen.
        right: Whether that is what was hoped for; None where a figure is only told.
    """

    what: str
    hoped: str
    seen: str
    right: bool | None

    @property
    def verdict(self) -> Verdict:
        """For the table."""
        return "told" if self.right is None else "right" if self.right else "wrong"


@dataclass(frozen=True)
class Outcome:
    """How a step ended, and what it found.

    Attributes:
        step: Name of the step.
        ended: `DONE`, or how else it ended: "failed", "died by SIGSEGV", "hung: ...", or `NOT_RUN` and why.
        seconds: Wall time.
        findings: What it found before.
        reason: The last lines of what it wrote to standard error, where it did not end well.
    """

    step: str
    ended: str
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    reason: str = ""

    @classmethod
    def read(cls, written: dict[str, Any]) -> Outcome:
        """Make it of its JSON."""
        return cls(**{**written, "findings": [Finding(**each) for each in written["findings"]]})

    @property
    def was_run(self) -> bool:
        """Whether anything was tried."""
        return not self.ended.startswith(NOT_RUN)


def last_words(reason: str) -> str:
    """Return the line of a reason that says most: the last one, or the place where a process died."""
    lines = [line.strip() for line in reason.strip().splitlines()] or [""]
    places = [number for number, line in enumerate(lines) if line.endswith("(most recent call first):")]
    return lines[places[0] + 1] if places and places[0] + 1 < len(lines) else lines[-1]


class Record:
    """Outcomes that outlast a call: a JSON line each, appended as each step ends.

    Args:
        path: Of the lines, where an earlier call may have left some.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Outcome]:
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                if line.endswith("}"):  # else the call was killed while it wrote it
                    yield Outcome.read(json.loads(line))

    @property
    def steps(self) -> set[str]:
        """Names of the steps that have an outcome."""
        return {outcome.step for outcome in self}

    def add(self, outcome: Outcome) -> None:
        """Append an outcome."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def forget(self, steps: set[str]) -> None:
        """Remove the outcomes of some steps, so that they are run again."""
        kept = [outcome for outcome in self if outcome.step not in steps]
        new = self._path.with_suffix(".new")
        new.write_text("".join(json.dumps(asdict(each)) + "\n" for each in kept))
        new.replace(self._path)
