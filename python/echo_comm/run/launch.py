"""Starts the ranks of a job on this host, watches them and ends them: none outlives the command.

Each rank is a process of its own (python -m echo_comm.run.rank). They meet at a file in a temporary folder; a rank
that fails leaves its reason there. The kernel kills the ranks when this process dies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from echo_comm.run.job import Job, UsageError

# How long the other ranks may take to notice that one has failed.
_GRACE_S = 3.0


def run(job: Job) -> int:
    """Runs the job to its end: the ranks of torchrun if it started this process, else ranks of our own."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from echo_comm.run import rank

        return rank.join(job, int(os.environ["RANK"]), "env://", int(os.environ.get("LOCAL_RANK", "0")))
    previous = signal.signal(signal.SIGTERM, _exit_on_term)
    try:
        with tempfile.TemporaryDirectory(prefix="echo-comm-") as folder:
            return _Ranks(job, Path(folder)).wait()
    finally:
        signal.signal(signal.SIGTERM, previous)


def _exit_on_term(_number: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


class _Ranks:
    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def wait(self) -> int:
        """Until all ranks ended well, or one did not."""
        try:
            for rank in range(self.job.tp):
                self.processes.append(self._start(rank))
            while any(process.poll() is None for process in self.processes):
                if any(process.poll() for process in self.processes):
                    self._wait_for_others()
                    break
                time.sleep(0.02)
            self._raise_failure()
            return 0
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
            for process in self.processes:
                process.wait()

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {"OMP_NUM_THREADS": str(self.job.threads), **os.environ, "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-m", "echo_comm.run.rank", self.job.dumps(), str(rank), str(self.folder)]
        show = rank == 0 and sys.stderr.isatty()  # progress bars
        with self._output(rank).open("wb") as output:
            # A session of its own: Ctrl-C comes to this process alone, which ends the ranks.
            return subprocess.Popen(
                [*command, str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=None if show else output,
                start_new_session=True,
            )

    def _output(self, rank: int) -> Path:
        return self.folder / f"stderr-{rank}"

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
            time.sleep(0.02)

    def _raise_failure(self) -> None:
        """The cause is the first of: a killed rank, a rank's usage error, any other error (most are consequences)."""
        ended = {rank: process.poll() for rank, process in enumerate(self.processes)}
        if not any(ended.values()):
            return
        if os.environ.get("ECHO_DEBUG") == "1":
            for rank in ended:
                sys.stderr.write(self._output(rank).read_text(encoding="utf-8", errors="replace"))
        for rank, status in ended.items():
            if status is not None and status < 0:
                name = signal.Signals(-status).name
                raise UsageError(f"rank {rank} was killed ({name}), the others were ended; start the command again")
        reasons = [
            (rank, json.loads(file.read_text(encoding="utf-8")))
            for rank in ended
            if (file := self._file(rank)).exists()
        ]
        for kind in ("usage", "failure"):
            for rank, reason in reasons:
                if reason["kind"] == kind:
                    text = " ".join(str(reason["text"]).split())
                    raise UsageError(text if kind == "usage" else f"rank {rank} failed: {text}")
        rank = next(rank for rank, status in ended.items() if status)
        raise UsageError(f"rank {rank} ended with status {ended[rank]}; set ECHO_DEBUG=1 to see why")

    def _file(self, rank: int) -> Path:
        return failure_file(self.folder, rank)


def failure_file(folder: Path, rank: int) -> Path:
    """Where a rank leaves the reason why it failed."""
    return folder / f"failure-{rank}.json"
