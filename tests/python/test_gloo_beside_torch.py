"""Echo's own Gloo in a process that also holds torch's copy of it: both all-reduce, whichever was loaded first."""

from __future__ import annotations

import ctypes
import multiprocessing
import tempfile
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

TIMEOUT_S = 60.0
COUNT = 4096


def _join_torch(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/torch",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def _sum_with_torch(rank: int) -> bool:
    import torch
    import torch.distributed as dist

    x = torch.full((COUNT,), float(rank + 1))
    dist.all_reduce(x)
    return bool((x == 3.0).all())


def _work(rank: int, folder: str, torch_first: bool, answers: Connection) -> None:
    from echo_comm import BITS_EXACT, FLOAT32, Communicator

    try:
        here = Path(folder)
        if torch_first:
            _join_torch(rank, here)
        comm = Communicator(f"gloo+file://{here}/echo?rank={rank}&size=2&iface=lo", timeout_ms=int(1000 * TIMEOUT_S))
        if not torch_first:
            _join_torch(rank, here)
        right = []
        for _ in range(5):  # in turn, so that both are in use at the same time
            right.append(_sum_with_torch(rank))
            values = (ctypes.c_float * COUNT)(*([float(rank + 1)] * COUNT))
            comm.all_reduce(ctypes.addressof(values), COUNT, FLOAT32, bits=BITS_EXACT)
            right.append(all(value == 3.0 for value in values))
        answers.send((comm.transport, all(right)))
        comm.close()
    except Exception as error:
        answers.send((f"{type(error).__name__}: {error}", False))


@pytest.mark.parametrize("torch_first", [True, False], ids=["torch_first", "echo_first"])
def test_both_all_reduce_in_one_process(torch_first: bool) -> None:
    pytest.importorskip("torch")
    library = pytest.importorskip("echo_comm._library", reason="echo_comm is not installed: scripts/test installs it")
    if library.find_binary("libecho_comm_gloo.so") is None:
        pytest.skip("echo_comm was built without Gloo: install libgloo-dev and build again")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "echo").mkdir()
        ranks = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, folder, torch_first, theirs), daemon=True)
            process.start()
            theirs.close()
            ranks.append((process, ours))
        try:
            for rank, (_, answers) in enumerate(ranks):
                assert answers.poll(TIMEOUT_S), f"rank {rank} hangs"
                assert answers.recv() == ("gloo", True), f"rank {rank}"
            for process, _ in ranks:
                process.join(TIMEOUT_S)
                assert process.exitcode == 0
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
