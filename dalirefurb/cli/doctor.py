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
        say(f"\n{_count(wrong, 'thing is', 'things are')} wrong, {_count(slow, 'makes', 'make')} a loader slower")
    return 1 if wrong else 0


def _line(finding: Finding) -> str:
    remedy = f"\n{'':9}-> {finding.remedy}" if finding.remedy else ""
    return escaped(f"{finding.state:<8} {finding.topic}: {finding.said}") + remedy


def _count(number: int, one: str, several: str) -> str:
    return f"{number or 'no'} {one if number == 1 else several}"
