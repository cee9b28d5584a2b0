"""Runs functions on several ranks, each a process, and collects what they return.

A function runs on every rank with its rank as first argument. What it raises on any rank fails the test, with the
rank's traceback. A rank that does not answer in time ends the pool: nothing is waited for without a limit.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT_S = 90.0


def join(rank: int, size: int, folder: str) -> None:
    """Makes this process rank `rank` of a default gloo group."""
    import torch
    import torch.distributed as dist

    import echo_comm.torch  # noqa: F401  (registers the backend)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)


def _serve(rank: int, size: int, folder: str, requests: Connection) -> None:
    join(rank, size, folder)
    while (request := requests.recv()) is not None:
        function, arguments = request
        try:
            requests.send((True, function(rank, *arguments)))
        except BaseException:
            requests.send((False, traceback.format_exc()))


class Pool:
    """Processes that wait for functions."""

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="echo-test-")
        context = multiprocessing.get_context("spawn")
        self._ranks = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, self._folder.name, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._ranks.append((process, ours))

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Results by rank."""
        for _, requests in self._ranks:
            requests.send((function, arguments))
        deadline, results = time.monotonic() + TIMEOUT_S, []
        for rank, (_, requests) in enumerate(self._ranks):
            assert requests.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} did not answer in {TIMEOUT_S} s"
            results.append(requests.recv())
        failures = [f"rank {rank}:\n{result}" for rank, (good, result) in enumerate(results) if not good]
        assert not failures, "\n".join(failures)
        return [result for _, result in results]

    def close(self) -> None:
        """Ends the processes."""
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._folder.cleanup()


def leftovers() -> list[str]:
    """Files of the shared memory file system."""
    return sorted(file.name for file in Path("/dev/shm").iterdir())
