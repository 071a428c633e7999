"""Entry of first light: `python benchmarks/first_light`; see `first_light.driver`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from first_light.driver import main

    raise SystemExit(main())
