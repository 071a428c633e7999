"""Tests of pytest, as many in a call as there is time for; one that kills or hangs its process is a result.

A process runs all tests that are left. Where it dies or hangs, those that it had begun have a process each.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from first_light.findings import DONE, Finding, Outcome, last_words
from first_light.processes import ROOT, Ended, run
from first_light.recorder import EVENTS

_PYTEST = ("-m", "pytest", "--rootdir", ".", "-q", "--no-header", "-p", "no:cacheprovider")
_BEGINNING_S = 120.0
_WELL = (DONE, "failed: exit status 1")
_NEVER = {"outcome": "not run", "reason": ""}
_IMPORTED = "can be imported"
_NO_TESTS = "failed: exit status 5"


@dataclass(frozen=True)
class GpuTests:
    """A step that runs some tests.

    Attributes:
        name: Of the step.
        marks: Expression of pytest's `-m`.
        paths: Where the tests are.
        out: A folder for what outlasts a call.
        workers: Tests that run at a time.
        root: Folder that `paths` are in.
        quiet_s: Time in which some test must begin or end, once one has begun, else all have hung, in seconds.
    """

    name: str
    marks: str
    paths: tuple[str, ...]
    out: Path
    workers: int = 1
    root: Path = ROOT
    quiet_s: float = 150.0

    def run(self, ends: float) -> Outcome | None:
        """Go on; return the outcome, None if time was over before."""
        began = time.time()
        if not self._listed.exists():
            if began + _BEGINNING_S > ends:
                return None
            if failed := self._list():
                return failed
        tests = self._listed.read_text().splitlines()
        while left := [test for test in tests if test not in self._over()]:
            if time.time() + 5 >= ends:
                return None
            ended = self._pytest(left, self.workers, ends)
            if ended.how in _WELL:
                never = [test for test in left if test not in self._over()]
                self._add(never, "failed", "pytest did not run it")
            elif time.time() >= ends - 1:
                return None
            elif begun := self._begun():
                for test in begun:
                    self._alone(test, ends)
            elif self._over().keys().isdisjoint(left):
                return Outcome(self.name, ended.how, time.time() - began, self._findings(tests), _said(ended))
        return Outcome(self.name, DONE, time.time() - began, self._findings(tests))

    @property
    def _listed(self) -> Path:
        return self.out / f"{self.name}.tests"

    @property
    def _events(self) -> Path:
        return self.out / f"{self.name}.events"

    def _list(self) -> Outcome | None:
        """List the tests; return an outcome if there are none. A file that cannot be imported is a test that failed."""
        options = ["--collect-only", "--continue-on-collection-errors", "-m", self.marks, *self.paths]
        ended = run([*_PYTEST, *options], limit_s=_BEGINNING_S, folder=self.root)
        lines = ended.output.splitlines()
        tests = [line for line in lines if "::" in line and line.partition("::")[0].endswith(".py")]
        if not tests:
            return Outcome(self.name, DONE if ended.how == _NO_TESTS else ended.how, ended.seconds, [], _said(ended))
        errors: dict[str, str] = {}
        for line in lines:
            if " ERROR collecting " in line:
                file = line.partition(" ERROR collecting ")[2].split()[0]
            elif line.startswith("E  "):
                errors[f"{file}::{_IMPORTED}"] = line[1:].strip()
        for test, line in errors.items():
            self._add([test], "failed", line)
        self._listed.write_text("".join(test + "\n" for test in [*tests, *errors]))
        return None

    def _pytest(self, tests: Sequence[str], workers: int, ends: float) -> Ended:
        several = ["-n", str(workers), "--max-worker-restart", "50"] if workers > 1 and _can_share() else []
        size, since, waits_s = self._size(), time.monotonic(), _BEGINNING_S

        def gone_quiet() -> bool:
            nonlocal size, since, waits_s
            if (now := self._size()) != size:
                size, since, waits_s = now, time.monotonic(), self.quiet_s
            return time.monotonic() - since > waits_s

        options = ["-p", "first_light.recorder", *several]
        return run(
            [*_PYTEST, *options, *tests],
            limit_s=max(ends - time.time(), 1),
            folder=self.root,
            variables={EVENTS: str(self._events)},
            gone_quiet=gone_quiet,
        )

    def _size(self) -> int:
        return self._events.stat().st_size if self._events.exists() else 0

    def _alone(self, test: str, ends: float) -> None:
        """Run a test that was begun when its process died or hung."""
        if time.time() + 5 >= ends:
            return
        ended = self._pytest([test], 1, ends)
        if test not in self._over() and time.time() < ends - 1:
            self._add([test], ended.how, _said(ended))

    def _lines(self) -> list[dict[str, str]]:
        lines = []
        if self._events.exists():
            for line in self._events.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # the process was killed while it wrote
                    lines.append(json.loads(line))
        return lines

    def _over(self) -> dict[str, dict[str, str]]:
        """Return the last line of each test that has ended; what is not well stays, whatever comes after."""
        over: dict[str, dict[str, str]] = {}
        for line in self._lines():
            if line["outcome"] != "begun" and over.get(line["test"], {"outcome": "passed"})["outcome"] == "passed":
                over[line["test"]] = line
        return over

    def _begun(self) -> list[str]:
        over = self._over()
        return list(dict.fromkeys(line["test"] for line in self._lines() if line["test"] not in over))

    def _add(self, tests: Sequence[str], outcome: str, reason: str) -> None:
        with self._events.open("a") as file:
            file.writelines(json.dumps({"test": test, "outcome": outcome, "reason": reason}) + "\n" for test in tests)

    def _findings(self, tests: Sequence[str]) -> list[Finding]:
        """Count the tests of each file; name those that did not pass, and say why others were skipped."""
        over, findings = self._over(), []
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            own = {test: over.get(test, _NEVER) for test in tests if test.startswith(file + "::")}
            counts = Counter(each["outcome"] for each in own.values())
            bad = counts.keys() - {"passed", "skipped"}
            seen = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
            findings.append(Finding(file, f"{len(own)} passed", seen, not bad if bad or counts["passed"] else None))
            skipped = Counter(each["reason"] for each in own.values() if each["outcome"] == "skipped")
            findings += [Finding(f"{count} tests", "pass", reason, None) for reason, count in skipped.items()]
            for test, each in own.items():
                if each["outcome"] in bad:
                    seen = f"{each['outcome']} {last_words(each['reason'])}"[-200:]
                    findings.append(Finding(test.partition("::")[2], "passes", seen, False))
        return findings


def _said(ended: Ended) -> str:
    """Return the last of what pytest printed, and of what went to standard error."""
    return f"{ended.reason}\n{ended.output.rstrip()[-1000:]}".strip()


def _can_share() -> bool:
    return importlib.util.find_spec("xdist") is not None
