"""`dalirefurb doctor`: examines the machine and what is installed."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from dalirefurb.cli.terminal import escaped, say
from dalirefurb.doctor import Finding, examine


def doctor(options: argparse.Namespace) -> int:
    """Print what is found; return 1 if something will fail."""
    findings: list[Finding] = []
    for finding in examine(options.folder):
        findings.append(finding)
        if not options.json:
            say(_line(finding))
    if options.json:
        say(json.dumps([asdict(finding) for finding in findings], indent=1))
    wrong = sum(finding.state == "wrong" for finding in findings)
    slow = sum(finding.state == "slow" for finding in findings)
    if not options.json:
        say(f"\n{_count(wrong, 'is', 'are')} wrong; {_count(slow, 'slows', 'slow')} a loader down")
    return 1 if wrong else 0


def _line(finding: Finding) -> str:
    remedy = f"\n{'':9}-> {finding.remedy}" if finding.remedy else ""
    return escaped(f"{finding.state:<8} {finding.topic}: {finding.said}") + remedy


def _count(number: int, one: str, several: str) -> str:
    """Say of how many things something holds.

    >>> _count(0, "is", "are"), _count(1, "is", "are"), _count(2, "is", "are")
    ('nothing is', '1 thing is', '2 things are')
    """
    things = "nothing" if not number else f"{number} thing{'s' * (number > 1)}"
    return f"{things} {several if number > 1 else one}"
