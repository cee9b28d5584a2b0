"""The golden vectors that the C++ tests compare with are what the NumPy model of the specification says today."""

import os
import subprocess
import sys
from pathlib import Path

import oracle_model

GOLDEN = Path(__file__).resolve().parents[1] / "codec" / "golden"


def test_the_vectors_are_those_of_the_model() -> None:
    made = subprocess.run(
        [sys.executable, str(GOLDEN / "make.py")],
        env={**os.environ, "ECHO_ORACLE": str(oracle_model.path())},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert made.stdout == (GOLDEN / "vectors.txt").read_bytes()
