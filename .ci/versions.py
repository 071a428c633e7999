"""Versions of Python and of dependencies that tests pass with: for each a fresh environment and the wheel.

    python .ci/versions.py --python 3.10 3.11 3.12 3.13     # versions or paths, as uv understands them: about an hour
    python .ci/versions.py --page                           # docs/versions.md, anew from .ci/versions.json

Every Python is tried with the least and with the newest dependencies that pyproject.toml allows and that have a wheel
for it, those of the tests among them. It needs uv (`python -m pip install uv`), and downloads PyTorch with CUDA's
libraries: some 3 GB for each version of it. An environment is deleted when its tests are done; what uv cached is not.
Rows of other Pythons in the JSON file stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".ci" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
RESOLUTIONS = {"least": "lowest-direct", "newest": "highest"}
SHOWN = {"PyTorch": "torch", "DALI": "nvidia-dali-cuda120", "NumPy": "numpy", "Numba": "numba"}
TESTS = (
    "tests/test_mix.py",
    "tests/engine/test_bit_identity.py",
    "tests/engine/test_hand_over.py",
    "tests/kernels/test_color_kernels.py",
    "tests/store/test_store.py",
    "tests/planning/test_refurbish.py",
    "tests/dali/test_insides.py",
    "tests/cli/test_train.py",
)
"""A minute or two on two quiet cores: plans, whole loaders, kernels, stores, DALI's insides and the command line."""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command; return it with what it printed."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def passed_or_not(report: Path) -> dict[str, Any]:
    """Count a report's tests, and name those that failed with the first line of why."""
    counts, failed = {"passed": 0, "skipped": 0}, {}
    for case in ET.parse(report).iter("testcase"):
        reasons = [child for child in case if child.tag in ("failure", "error")]
        if reasons:
            failed[f"{case.get('classname')}::{case.get('name')}"] = (reasons[0].get("message") or "").split("\n")[0]
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return {**counts, "failed": failed}


def try_out(python: str, dependencies: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """Install the wheel and its dependencies for a Python, and run tests; return a row of the table."""
    requirements, environment, tests = folder / "requirements.txt", folder / "environment", folder / "project"
    uv_pip = ("uv", "pip")
    install = (*uv_pip, "install", "--python", environment)
    steps: tuple[tuple[str | Path, ...], ...] = (
        ("uv", "venv", "--python", python, environment),
        (
            *(
                *uv_pip,
                "compile",
                "pyproject.toml",
                "--extra",
                "test",
                "--python",
                environment,
                "--only-binary",
                ":all:",
            ),
            *("--resolution", RESOLUTIONS[dependencies], "--output-file", requirements),
        ),
        (*install, "--requirements", requirements),
        (*install, "--no-deps", wheel),
        (*uv_pip, "check", "--python", environment),
        (environment / "bin" / "dalirefurb", "--version"),
    )
    row: dict[str, Any] = {"dependencies": dependencies}
    for step in steps:
        done = run(*step)
        if done.returncode:
            return row | {"stopped": " ".join(done.stdout.split())[-600:]}
    interpreter = environment / "bin" / "python"
    row["python"] = run(interpreter, "-c", "import platform; print(platform.python_version())").stdout.strip()
    listed = json.loads(run(*uv_pip, "list", "--python", environment, "--format", "json").stdout.splitlines()[-1])
    row["packages"] = {package["name"]: package["version"] for package in listed}
    tests.mkdir()
    (folder / "tmp").mkdir()
    shutil.copytree(ROOT / "tests", tests / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tests)  # without dalirefurb beside it: the wheel is what is tested
    report = folder / "report.xml"
    done = run(
        *(interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS),
        cwd=tests,
        HYPOTHESIS_PROFILE="few",
        NUMBA_CACHE_DIR=str(folder / "kernels"),
        TMPDIR=str(folder / "tmp"),
    )
    if not report.exists():
        return row | {"stopped": " ".join(done.stdout.split())[-600:]}
    return row | passed_or_not(report)


def add(row: dict[str, Any]) -> None:
    """Write a row into the JSON file, in place of the one of the same Python and dependencies."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"notes": [], "rows": []}
    rows = {(each["asked"], each["dependencies"]): each for each in results["rows"]}
    rows[row["asked"], row["dependencies"]] = row
    # Pythons by their numbers, "least" before "newest".
    results["rows"] = [rows[key] for key in sorted(rows, key=lambda key: (*map(int, key[0].split(".")), key[1]))]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def page(results: dict[str, Any]) -> str:
    """Make docs/versions.md."""
    lines = [
        "# Versions",
        "",
        "Each Python with the least and with the newest dependencies that `pyproject.toml` allows and that have a",
        "wheel for it: the wheel is installed into a fresh environment, then tests run of plans, whole loaders,",
        "kernels, stores, DALI's insides and the command line. `python .ci/versions.py` does it; its results are",
        "`.ci/versions.json`.",
        "",
        "| Python | dependencies | of these | tests |",
        "|---|---|---|---|",
    ]
    for row in results["rows"]:
        versions = [f"{name} {row['packages'][key]}" for name, key in SHOWN.items() if key in row.get("packages", {})]
        counts = (
            [f"{row['passed']} passed", f"{len(row['failed'])} failed"] if "passed" in row else ["not run, see below"]
        )
        cells = [row.get("python", row["asked"]), row["dependencies"], ", ".join(versions), ", ".join(counts)]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for row in results["rows"]:
        title = f"Python {row.get('python', row['asked'])}, {row['dependencies']}"
        if "stopped" in row:
            lines.append(f"- {title}: `{row['stopped']}`")
        lines.extend(f"- {title}: `{name}`: {reason}" for name, reason in row.get("failed", {}).items())
    return "\n".join([*lines, *results["notes"]]).rstrip() + "\n"


def _asked(python: str) -> str:
    """Say which minor version a path or a version is, so that no path is written down."""
    found = run("uv", "python", "find", python)
    if found.returncode:
        return python if "/" not in python else Path(python).name
    told = run(found.stdout.strip().splitlines()[-1], "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    return told.stdout.strip()


def main() -> int:
    """Try all that is asked for; return whether something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="VERSION_OR_PATH", help="what uv takes: 3.12, or a path"
    )
    parser.add_argument("--dependencies", nargs="+", choices=RESOLUTIONS, default=[*RESOLUTIONS], help="default: both")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    arguments = parser.parse_args()
    failed = False
    for dependencies in [] if arguments.page else arguments.dependencies:
        for python in arguments.python:
            asked = _asked(python)
            with tempfile.TemporaryDirectory(prefix="versions-") as name:
                folder = Path(name)
                built = run("uv", "build", "--wheel", "--out-dir", folder)
                if built.returncode:
                    raise SystemExit(built.stdout)
                (wheel,) = folder.glob("*.whl")
                commit = run("git", "rev-parse", "--short", "HEAD").stdout.strip()
                row = {"asked": asked, "commit": commit, **try_out(python, dependencies, wheel, folder)}
            row["date"] = datetime.now(timezone.utc).date().isoformat()
            row["machine"] = f"{platform.system()} {platform.machine()}"
            failed |= bool(row.get("failed")) or "stopped" in row
            print(asked, dependencies, row.get("stopped") or {key: row[key] for key in ("passed", "failed", "skipped")})
            add(row)
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
