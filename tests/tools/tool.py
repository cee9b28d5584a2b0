"""Starts a tool of the build folder that the environment variable ECHO_TOOLS names."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# What the tests set or leave out, they do by themselves.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ECHO_")}


def command(tool: str, *args: str) -> list[str]:
    return [str(Path(os.environ["ECHO_TOOLS"]) / tool), *args]


def run(tool: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(tool, *args), capture_output=True, text=True, timeout=600, env=ENVIRONMENT | variables, check=False
    )


# Of the library under test; gloo only where it was built in.
TRANSPORTS = ("inproc", "shm", "gloo") if os.environ.get("ECHO_HAS_GLOO") == "1" else ("inproc", "shm")


def measure(*args: str, **variables: str) -> tuple[dict[str, Any], list[dict[str, str]], str]:
    """Runs echo-perf, expects success; gives its JSON, its CSV and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        as_json, as_csv = Path(folder) / "out.json", Path(folder) / "out.csv"
        done = run("echo-perf", *args, "--json", str(as_json), "--csv", str(as_csv), **variables)
        if done.returncode != 0 or done.stderr:
            raise AssertionError(f"{args}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        with as_csv.open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        return json.loads(as_json.read_text(encoding="utf-8")), table, done.stdout
