"""Names that say whose they are, and removal of what is left when their owner is gone.

A run is named `echolab-PID-START-RANDOM`, START being the time at which process PID started, in the kernel's ticks:
the name alone tells whether its owner lives, even after the number was given to another process. There are no state
files to go stale. Namespaces are called RUN-SUFFIX, the shared folder has the run's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from pathlib import Path

from .errors import LabError
from .system import NETNS, command, processes_inside

_RUN = re.compile(r"(echolab-(\d+)-(\d+)-[0-9a-f]{8})(-[a-z0-9]+)?")
_KILL_SECONDS = 5.0


def _start_time(process: int) -> int | None:
    """When the process started, None if it is gone or about to be (a zombie holds nothing any more)."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    columns = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    return None if columns[0] in "ZX" else int(columns[19])


def new_run() -> str:
    """A name for a run of this process."""
    return f"echolab-{os.getpid()}-{_start_time(os.getpid())}-{secrets.token_hex(4)}"


def _listed(folder: Path) -> list[tuple[str, str, bool]]:
    """(entry, run, owner lives) of everything in the folder that is named like ours."""
    found = []
    for entry in folder.iterdir() if folder.exists() else []:
        match = _RUN.fullmatch(entry.name)
        if match:
            found.append((entry.name, match[1], _start_time(int(match[2])) == int(match[3])))
    return found


def remove_run(run: str) -> None:
    """Ends all processes in the namespaces of `run`, then removes its namespaces and its folder; any may be gone."""
    names = {entry for entry, owner, _ in _listed(NETNS) if owner == run}
    if names:
        _kill_inside(names)
    for name in sorted(names):
        _delete(name)
    shutil.rmtree(Path(tempfile.gettempdir(), run), ignore_errors=True)


def _delete(name: str) -> None:
    try:
        command("ip", "netns", "delete", name)
    except LabError:
        # Another run may be removing the same leftover. After a reboot the name can be a file with nothing mounted.
        with contextlib.suppress(OSError):
            (NETNS / name).unlink()
        if (NETNS / name).exists():
            raise


def _kill_inside(names: set[str]) -> None:
    """Repeats until nothing is left: a process may fork while the list is read."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (found := [p for p in processes_inside(names) if _start_time(p) is not None]) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)


def remove_leftovers() -> list[str]:
    """Removes the runs whose process is gone and returns their names. Live runs are not touched."""
    entries = [*_listed(NETNS), *_listed(Path(tempfile.gettempdir()))]
    gone = sorted({run for _, run, lives in entries if not lives})
    for run in gone:
        remove_run(run)
    return gone
