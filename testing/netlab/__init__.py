"""Hosts for tests and benchmarks on one machine: network namespaces behind a bridge, with links of a known rate.

Start at `lab.py` (a laboratory from open to close). `rate.py` says how a link is shaped, `linkcheck.py` how that is
verified before anything is measured, `ranks.py` runs one command on every host, `flows.py` makes competing traffic,
`leftovers.py` finds what killed runs left behind, `system.py` talks to the kernel. docs/netlab.md is the manual.
"""

from __future__ import annotations

from .errors import LabError, LinkRefused, NotHere
from .lab import Lab
from .ranks import RunResult
from .rate import Rate

__all__ = ["Lab", "LabError", "LinkRefused", "NotHere", "Rate", "RunResult"]
