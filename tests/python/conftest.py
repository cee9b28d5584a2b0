"""Shared by the Python tests: a pool of three ranks, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Three processes that joined one default group (gloo); tests send them functions."""
    pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
    ranks = Pool(3)
    yield ranks
    ranks.close()
