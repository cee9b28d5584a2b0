"""`python3 testing/netlab ...`: makes the folder importable as the package it is, then runs the command line."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from netlab.cli import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
