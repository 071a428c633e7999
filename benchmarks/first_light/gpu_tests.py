"""Tests of pytest, as many in a call as there is time for; one that kills or hangs its process is a result.

A process runs all tests that are left. Where it dies or hangs, those that it had begun have a process each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from first_light.findings import DONE, Finding, Outcome
from first_light.processes import Ended, run
from first_light.recorder import EVENTS

_LISTING_S = 120.0
_FAILING = ("failed: exit status 1",)


@dataclass(frozen=True)
class GpuTests:
    """A step that runs some tests.

    Attributes:
        name: Of the step.
        marks: Expression of pytest's `-m`.
        paths: Where the tests are.
        out: A folder for what outlasts a call.
        workers: Tests that run at a time.
        quiet_s: Time in which some test must begin or end, else all have hung, in seconds.
    """

    name: str
    marks: str
    paths: tuple[str, ...]
    out: Path
    workers: int = 1
    quiet_s: float = 150.0

    def run(self, ends: float) -> Outcome | None:
        """Go on; return the outcome, None if time was over before."""
        began = time.time()
        if not self._listed.exists():
            listing = self._list()
            if listing is not None:
                return listing
        tests = self._listed.read_text().splitlines()
        while left := [test for test in tests if test not in self._over()]:
            if time.time() + 5 >= ends:
                return None
            ended = self._pytest(left, self.workers, ends - time.time())
            if ended.how in (DONE, *_FAILING):
                never = [test for test in left if test not in self._over()]
                self._add(never, "failed", "pytest did not run it")
            elif time.time() >= ends - 1:
                return None
            elif begun := self._begun():
                for test in begun:
                    self._alone(test, ends)
            else:
                return Outcome(self.name, ended.how, time.time() - began, self._findings(tests), ended.reason)
        return Outcome(self.name, DONE, time.time() - began, self._findings(tests))

    @property
    def _listed(self) -> Path:
        return self.out / f"{self.name}.tests"

    @property
    def _events(self) -> Path:
        return self.out / f"{self.name}.events"

    def _list(self) -> Outcome | None:
        """List the tests; return an outcome if that does not work or there are none."""
        options = ["--collect-only", "-q", "-m", self.marks, "-p", "no:cacheprovider", *self.paths]
        ended = run(["-m", "pytest", *options], limit_s=_LISTING_S)
        if ended.how != DONE:
            return Outcome(self.name, ended.how, ended.seconds, [], (ended.output + ended.errors)[-2000:])
        self._listed.write_text("".join(line + "\n" for line in ended.output.splitlines() if "::" in line))
        return None

    def _pytest(self, tests: Sequence[str], workers: int, limit_s: float) -> Ended:
        several = ["-n", str(workers), "--max-worker-restart", "50"] if workers > 1 and _can_share() else []
        options = ["-q", "-p", "no:cacheprovider", "-p", "first_light.recorder", "--no-header", *several]
        quiet_since, size = time.monotonic(), -1

        def gone_quiet() -> bool:
            nonlocal quiet_since, size
            now = self._events.stat().st_size if self._events.exists() else 0
            if now != size:
                quiet_since, size = time.monotonic(), now
            return time.monotonic() - quiet_since > self.quiet_s

        os.environ[EVENTS] = str(self._events)
        return run(["-m", "pytest", *options, *tests], limit_s=limit_s, gone_quiet=gone_quiet)

    def _alone(self, test: str, ends: float) -> None:
        """Run a test that was begun when its process died or hung."""
        limit_s = min(self.quiet_s, ends - time.time())
        if limit_s < 1:
            return
        ended = self._pytest([test], 1, limit_s)
        cut_short = ended.hung and limit_s < self.quiet_s
        if test not in self._over() and not cut_short:
            self._add([test], ended.how, ended.reason)

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
        """Count the tests of each file, and name those that did not pass, with the end of the reason."""
        over, findings = self._over(), []
        for file in dict.fromkeys(test.partition("::")[0] for test in tests):
            own = [test for test in tests if test.startswith(file + "::")]
            outcomes = {test: over.get(test, {"outcome": "not run", "reason": ""}) for test in own}
            counts = Counter(each["outcome"] for each in outcomes.values())
            seen = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
            bad = {test: each for test, each in outcomes.items() if each["outcome"] not in ("passed", "skipped")}
            findings.append(Finding(file, f"{len(own)} passed", seen, not bad))
            for test, each in outcomes.items():
                last = (each.get("reason") or "").strip().splitlines()[-1:]
                if test in bad:
                    said = " ".join([each["outcome"], *last])[-200:]
                    findings.append(Finding(test.partition("::")[2], "passes", said, False))
                elif each["outcome"] == "skipped":
                    findings.append(
                        Finding(test.partition("::")[2], "passes", " ".join(["skipped", *last])[-200:], None)
                    )
        return findings


def _can_share() -> bool:
    return importlib.util.find_spec("xdist") is not None
