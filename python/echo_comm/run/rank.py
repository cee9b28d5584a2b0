"""What one rank of `echo-comm run` does."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import echo_comm.torch as echo
from echo_comm import EchoError
from echo_comm.run import evaluate, generate, model, report
from echo_comm.run.job import Job, UsageError
from echo_comm.run.launch import failure_file

# Longest wait for a rank that converts a model.
_LOAD_TIMEOUT = timedelta(minutes=10)
_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _join_group(job: Job, rank: int, rendezvous: str) -> tuple[dist.device_mesh.DeviceMesh, echo.EchoProcessGroup]:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=job.tp, timeout=_LOAD_TIMEOUT)
    mesh = init_device_mesh("cpu", (job.tp,), mesh_dim_names=("tp",), backend_override={"tp": "echo"})
    group = mesh.get_group("tp")
    assert isinstance(group, echo.EchoProcessGroup)
    config = echo.EchoConfig.from_env()
    group.configure(
        echo.EchoConfig(
            bits=job.bits,
            feedback=job.feedback,
            residuals=job.residuals,
            min_bytes=job.min_bytes,
            name=job.name,
            disable=config.disable,
        )
    )
    try:
        group.open()  # now, so that a name in use is told before a model is loaded
    except EchoError as error:
        raise UsageError(f"the ranks could not be joined: {error}") from None
    return mesh, group


def _work(job: Job, rank: int, rendezvous: str, local_rank: int, scratch: Path | None) -> None:
    torch.set_num_threads(job.threads)
    mesh, group = _join_group(job, rank, rendezvous)
    said = report.Progress(rank == 0)

    folder = model.prepare(job, local_rank == 0, scratch, said)
    network = model.load(folder, job, said)
    decoder = model.split(network, mesh)
    try:
        echo.attach(decoder, group, group.config)
    except echo.PostNormError as error:
        raise UsageError(f"{error}; use --feedback none") from None
    tokenizer = model.tokenizer(folder) if rank == 0 else None

    with torch.no_grad():  # not inference_mode: DTensor caches nothing under it, which costs a second a pass
        texts = generate.compare(job, network, tokenizer, said)
        measured = evaluate.compare(job, network, tokenizer, group, said)
    if rank == 0:
        report.show(job, group, texts, measured)
    dist.barrier()
    dist.destroy_process_group()


def join(job: Job, rank: int, rendezvous: str, local_rank: int, scratch: Path | None = None) -> int:
    """Takes part as one rank."""
    logging.basicConfig(level=logging.WARNING)
    _work(job, rank, rendezvous, local_rank, scratch)
    return 0


def main() -> int:
    """A rank started by launch.py: its arguments are the job, its rank, the folder to meet in, the parent's id."""
    job, rank, folder = Job.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    _die_with_parent(int(sys.argv[4]))
    try:
        return join(job, rank, f"file://{folder}/rendezvous", rank, folder)
    except Exception as error:
        kind = "usage" if isinstance(error, UsageError) else "failure"
        text = str(error) if kind == "usage" else f"{type(error).__name__}: {error}"
        failure_file(folder, rank).write_text(json.dumps({"kind": kind, "text": text[:1000]}), encoding="utf-8")
        if kind == "failure":
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(2)  # no destructor may wait for the other ranks


if __name__ == "__main__":
    sys.exit(main())
