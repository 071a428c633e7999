"""One probe, run in this process: `python -m first_light.probe FUNCTION gpu|cpu` prints one JSON line."""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict


def main() -> int:
    """Run the probe; whatever the libraries print goes to standard error."""
    place, device = sys.argv[1:]
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = place.partition(":")
    function = getattr(importlib.import_module(f"first_light.{module}"), name)
    findings = [asdict(finding) for finding in function(device)]
    answer.write(json.dumps({"findings": findings}) + "\n")
    answer.flush()
    # Threads and pools of the libraries end with the process; asked to end, some do not.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
