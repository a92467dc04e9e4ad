"""The command line as ``python -m tilewright``."""

from __future__ import annotations

import sys

from tilewright.cli import main

if __name__ == "__main__":
    sys.exit(main())
