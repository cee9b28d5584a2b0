"""The independent NumPy model of the specification: ECHO_ORACLE, else ../shared/reference/oracle.py."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest


def path() -> Path:
    """Its file; skips the calling test, or the module while it is imported, when it is absent."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "oracle.py"
    file = Path(os.environ.get("ECHO_ORACLE", beside))
    if not file.exists():
        pytest.skip(f"no oracle at {file}; set ECHO_ORACLE", allow_module_level=True)
    return file


def load() -> ModuleType:
    """The model as a module; skips like path()."""
    spec = importlib.util.spec_from_file_location("echo_oracle", path())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
