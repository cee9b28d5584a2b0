"""A rank dies in the middle of its calls: the others get an error soon, on both routes, and nothing is left over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection

import pytest

from pool import TIMEOUT_S, join, leftovers

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")

NOTICE_S = 2.0  # from the death to the error, beside what the call itself takes


def _work(rank: int, folder: str, collective: str, transport: str, answers: Connection) -> None:
    import torch
    import torch.distributed as dist

    from echo_comm import EchoError
    from group_helpers import echo_group, values

    join(rank, 3, folder)
    group = echo_group(3, hidden_size=128, transport=transport, timeout_s=60.0)
    x, part = values(rank, 1, 66, 128), torch.zeros(22, 128)
    for call in range(10**6):
        if rank == 2 and call == 20:
            answers.send(time.time())
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if collective == "all_reduce":
                dist.all_reduce(x, group=group)
                continue
            work = dist.reduce_scatter_tensor(part, x, group=group, async_op=True)
            assert work is not None
            work.wait()
        except EchoError as error:
            answers.send((time.time(), f"{type(error).__name__}: {error}"))
            os._exit(0)


@pytest.mark.parametrize(
    ("collective", "transport"),
    [("all_reduce", "shm"), ("all_reduce", "inner"), ("reduce_scatter", "shm")],
    ids=["all_reduce_shm", "all_reduce_inner", "started_reduce_scatter"],
)
def test_survivors_get_an_error_when_a_peer_is_killed(collective: str, transport: str) -> None:  # D7, R7
    before, context = leftovers(), multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(3):
            ours, theirs = context.Pipe()
            arguments = (rank, folder, collective, transport, theirs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            ranks.append((process, ours))
        try:
            assert ranks[2][1].poll(TIMEOUT_S), "the ranks did not start"
            died = ranks[2][1].recv()
            for rank in range(2):
                assert ranks[rank][1].poll(30), f"rank {rank} hangs"
                noticed, text = ranks[rank][1].recv()
                print(f"rank {rank} after {noticed - died:.2f} s: {text}")
                assert noticed - died < NOTICE_S + 3.0  # the machine may be busy with other things
                assert "Error" in text
                assert transport == "inner" or collective in text, text
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
    assert leftovers() == before
