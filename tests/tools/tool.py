"""Starts a tool of the build folder that the environment variable ECHO_TOOLS names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# What the tests set or leave out, they do by themselves.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ECHO_")}


def command(tool: str, *args: str) -> list[str]:
    return [str(Path(os.environ["ECHO_TOOLS"]) / tool), *args]


def run(tool: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(tool, *args), capture_output=True, text=True, timeout=600, env=ENVIRONMENT | variables, check=False
    )
