"""Steps that are scripts of `benchmarks`, which go on where their last call ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from first_light.findings import DONE, NOT_RUN, Finding, Outcome
from first_light.processes import ROOT, run

_SPARE_S = 45.0
_LEAST_S = 150.0
_MORE = "call this again"
_TURNS = "every feed"

Results = dict[str, Any]


@dataclass(frozen=True)
class Script:
    """A step that runs a script until it says that nothing is left.

    Attributes:
        name: Of the step, of the JSON, and of the file of what it printed last.
        arguments: The script, and what it is called with beside the time and where results go.
        out: Folder of the results.
        data: A folder that it needs.
        find: Makes findings of its results.
        judged: Whether its figures mean anything; else they are only told.
    """

    name: str
    arguments: tuple[str, ...]
    out: Path
    data: Path
    find: Callable[[Results], list[Finding]]
    judged: bool = True

    def run(self, ends: float, *, first: bool) -> Outcome | None:
        """Go on; return the outcome, None if time is over before.

        Args:
            ends: When the call ends, in seconds since 1970.
            first: Whether nothing was run in this call before: then all of its time did not do.
        """
        if not self.data.is_dir():
            return Outcome(self.name, f"{NOT_RUN}there is no folder {self._data_name}")
        left_s = ends - time.time()
        if left_s < _LEAST_S and not first:
            return None
        results = self.out / f"{self.name}.json"
        minutes = ["--minutes", f"{max(left_s - _SPARE_S, 5) / 60:.2f}"]
        ended = run(
            [str(ROOT / "benchmarks" / self.arguments[0]), *self.arguments[1:], *minutes, "--out", str(results)],
            limit_s=max(left_s + _SPARE_S, 60),
        )
        (self.out / f"{self.name}.txt").write_text(ended.output)
        unfinished = _MORE in ended.errors if ended.how == DONE else ended.hung and not first
        if unfinished:
            return None
        found = json.loads(results.read_text()) if results.exists() else None
        findings = self.find(found["results"]) if found else []
        if not self.judged:
            findings = [each if each.what == _TURNS else replace(each, right=None) for each in findings]
        reason = "" if ended.how == DONE else ended.reason
        return Outcome(self.name, ended.how, ended.seconds, findings, reason)

    @property
    def _data_name(self) -> str:
        return "/".join(self.data.parts[-3:])


def of_rivals(results: Results) -> list[Finding]:
    """Say which feeds failed or are missing, and how the best of ours compares with each of the others."""
    turns = results["turns"]
    findings = [Finding(name, "runs", f"left out: {reason}", None) for name, reason in results["missing"].items()]
    failed = [f"{turn['feed']}, {turn['cores']} cores: {turn['ended']}" for turn in turns if turn["ended"] != DONE]
    seen = "; ".join(failed) if failed else f"{len(turns)} turns"
    findings.append(Finding(_TURNS, "has its turn", seen[:300], not failed))
    for key in dict.fromkeys((turn["model"], turn["cores"]) for turn in turns):
        speeds = _speeds(turn for turn in turns if (turn["model"], turn["cores"]) == key)
        findings += _against_stock("{}, {} cores".format(*key), speeds)
    return findings


def of_accuracy(results: Results) -> list[Finding]:
    """Say what the script says of its claims."""

    def points(mean: float, half_width: float | None = None, **others: float) -> str:
        half = (others["upper"] - others["lower"]) / 2 if half_width is None else half_width
        return f"{mean:+.2f} +- {half:.2f} points"

    return [
        Finding(
            each["name"],
            each["promise"],
            points(**each["figure"]),
            {"met": True, "missed": False}.get(each["verdict"]),
        )
        for each in results["claims"]
    ]


def _speeds(turns: Any) -> dict[str, float]:
    """Return the median images/s of each feed."""
    speeds: dict[str, list[float]] = {}
    for turn in turns:
        if turn["images"]:
            speeds.setdefault(turn["feed"], []).append(turn["images"] / turn["seconds"])
    return {feed: median(each) for feed, each in speeds.items()}


def _against_stock(where: str, speeds: dict[str, float]) -> list[Finding]:
    """Compare the best of ours with the best of all others: 5 % slower counts as equal."""
    ours = {feed: speed for feed, speed in speeds.items() if "standard" in feed or "reuse factor" in feed}
    others = {feed: speed for feed, speed in speeds.items() if feed not in ours and feed != "headspace"}
    if not ours or not others:
        return []
    best, rival = max(ours, key=ours.__getitem__), max(others, key=others.__getitem__)
    seen = f"{best} {ours[best]:,.0f} images/s, {rival} {others[rival]:,.0f}"
    if "headspace" in speeds:
        seen += f", headspace {speeds['headspace']:,.0f}"
    return [Finding(where, "the best of ours is no slower", seen, ours[best] >= 0.95 * others[rival])]
