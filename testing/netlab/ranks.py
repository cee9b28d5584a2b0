"""One command on every host: starts it, carries its output, waits for all ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TIMED_OUT = 124  # as timeout(1)
_DRAIN_SECONDS = 2.0


@dataclass
class RunResult:
    """What became of a command on all hosts."""

    status: int  # of the first rank that failed, 128 + signal if it was killed; 124 after a timeout; else 0
    statuses: list[int]  # by rank, same notation
    seconds: float
    timed_out: bool
    output: list[bytes] = field(default_factory=list)  # by rank, both streams; only when captured


def shell_status(returncode: int) -> int:
    """Popen's code of a process in the shell's notation."""
    return returncode if returncode >= 0 else 128 - returncode


class _Output:
    """What comes out of one rank: kept, or passed on in whole lines with its number in front."""

    def __init__(self, rank: int, keep: bool) -> None:
        self.kept = b""
        self._prefix = None if keep else f"[{rank}] ".encode()
        self._pending = b""

    def add(self, data: bytes) -> None:
        if self._prefix is None:
            self.kept += data
            return
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._write(lines)

    def end(self) -> None:
        if self._pending:
            self._write([self._pending])
            self._pending = b""

    def _write(self, lines: list[bytes]) -> None:
        sys.stderr.flush()
        for line in lines:
            os.write(2, (self._prefix or b"") + line + b"\n")


Start = Callable[[int, dict[str, Any]], "subprocess.Popen[bytes]"]  # rank, options of Popen for its streams


class _Job:
    """The event loop of one run: ends of processes (pidfd) and their output, in the order they happen."""

    def __init__(self, start: Start, size: int, capture: bool) -> None:
        self._selector = selectors.DefaultSelector()
        self._handles: list[int] = []
        self.outputs = [_Output(rank, capture) for rank in range(size)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.failed: list[int] = []  # statuses that are not 0, the first failure first
        self.running = size
        for rank in range(size):
            through = rank == 0 and not capture
            streams = {} if through else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = start(rank, streams)
            self.processes.append(process)
            handle = os.pidfd_open(process.pid)
            self._handles.append(handle)
            self._selector.register(handle, selectors.EVENT_READ, (rank, False))
            if process.stdout is not None:
                os.set_blocking(process.stdout.fileno(), False)
                self._selector.register(process.stdout, selectors.EVENT_READ, (rank, True))

    def step(self, deadline: float | None) -> bool:
        """Handles what is there; False once the deadline has passed or nothing can come any more."""
        left = None if deadline is None else deadline - time.monotonic()
        if (left is not None and left <= 0) or not self._selector.get_map():
            return False
        for key, _ in self._selector.select(left):
            rank, is_output = key.data
            if is_output:
                self._read(key.fileobj, rank)
            else:
                self._selector.unregister(key.fileobj)
                self.running -= 1
                status = shell_status(self.processes[rank].wait())
                if status != 0:
                    self.failed.append(status)
        return True

    def _read(self, stream: Any, rank: int) -> None:
        data = os.read(stream.fileno(), 1 << 16)
        if data:
            self.outputs[rank].add(data)
        else:
            self._selector.unregister(stream)

    def close(self) -> None:
        for output in self.outputs:
            output.end()
        self._selector.close()
        for handle in self._handles:
            os.close(handle)
        for process in self.processes:
            if process.stdout is not None:
                process.stdout.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a rank and its children, which share the process group it leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def run_all(start: Start, size: int, timeout: float | None, capture: bool) -> RunResult:
    """Runs `start(rank, streams)` for every rank until all have ended; survivors of a failure are left to notice it.

    Rank 0 writes where we write, the others' output goes to stderr with `[rank] ` in front of each line; with
    `capture` all output is kept instead.
    """
    begin = time.monotonic()
    job: _Job | None = None
    try:
        job = _Job(start, size, capture)
        deadline = None if timeout is None else begin + timeout
        while job.running > 0 and job.step(deadline):
            pass
        seconds = time.monotonic() - begin
        timed_out = job.running > 0
        # Children of ranks go too, they may hold the pipes; what was written is still read.
        for process in job.processes:
            kill_group(process)
        drained = time.monotonic() + _DRAIN_SECONDS
        while job.step(drained):
            pass
        statuses = [shell_status(process.wait()) for process in job.processes]
        status = TIMED_OUT if timed_out else next(iter(job.failed), 0)
        return RunResult(status, statuses, seconds, timed_out, [output.kept for output in job.outputs])
    finally:
        if job is not None:
            job.close()
