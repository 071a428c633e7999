import importlib
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))


def run(script, *arguments, timeout=900):
    """Run a benchmark as its user does."""
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)}
    command = [sys.executable, "-W", "error", str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=False)


def quick(script, out, *arguments):
    """Run a benchmark with tiny sizes, in this process; return its JSON and what was printed."""
    threads = torch.get_num_threads()
    try:
        with redirect_stdout(StringIO()) as printed:
            experiment = importlib.import_module(script).EXPERIMENT
            assert experiment.main(["--quick", *map(str, arguments), "--out", str(out)]) == 0
    finally:
        torch.set_num_threads(threads)
    return json.loads(out.read_text()), printed.getvalue()


def quick_alone(script, out, *arguments):
    """Run a benchmark with tiny sizes as its user does: one that measures its process, or sets how memory is kept."""
    done = run(f"{script}.py", "--quick", *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def speeds_of(case, name):
    """Return a contender's images/s by round, from the slices in a JSON."""
    taken = sorted((each for each in case["slices"] if each["contender"] == name), key=lambda each: each["round"])
    return [each["images"] / each["seconds"] for each in taken]
