"""`python -m dalirefurb` is `dalirefurb`."""

import sys

from dalirefurb.cli import main

if __name__ == "__main__":
    sys.exit(main())
