"""The package without torch: version, errors, communicators over plain memory."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from array import array
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from uuid import uuid4

import pytest

echo_comm = pytest.importorskip("echo_comm")
from echo_comm._library import FLOAT32, Communicator, Feedback  # noqa: E402

try:
    echo_comm.library_version()
except echo_comm.EchoError as error:
    pytest.skip(f"{error}", allow_module_level=True)


def test_works_without_torch() -> None:  # I3
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
import echo_comm, echo_comm.run.cli
print(echo_comm.library_version())
try:
    import echo_comm.torch
except ImportError as error:
    print("refused", error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(echo_comm.library_version())
    assert "refused" in result.stdout


def test_errors_carry_the_result_and_the_text() -> None:  # I7
    with pytest.raises(echo_comm.EchoArgumentError) as caught:
        Communicator("carrier-pigeon://x")
    assert caught.value.result == 1
    assert isinstance(caught.value, ValueError)
    assert "carrier-pigeon" in str(caught.value)
    with pytest.raises(echo_comm.EchoTimeoutError) as late:
        Communicator(f"shm://{uuid4().hex}?rank=0&size=2", timeout_ms=200)
    assert "rank 1" in str(late.value)


def _sum(number: int, name: str, answers: Connection) -> None:
    comm = Communicator(f"shm://{name}?rank={number}&size=2", timeout_ms=20000)
    feedback = Feedback(comm, 256)
    data = array("f", [float(number + 1)] * 256)
    address, _ = data.buffer_info()
    comm.all_reduce(address, 256, FLOAT32, feedback=feedback, bits=16)
    exact = set(data)
    comm.all_reduce(address, 256, FLOAT32, feedback=feedback, flush=True, bits=8)
    coded = (min(data), max(data))
    refused = ""
    try:
        comm.all_reduce(address, 256, FLOAT32, feedback=feedback)
        comm.all_reduce(address, 256, FLOAT32, feedback=feedback, row_length=128)
    except echo_comm.EchoStateError as error:
        refused = str(error)
    answers.send((exact, coded, feedback.norms(), feedback.bytes, comm.stats().calls, comm.transport, refused))
    answers.recv()  # stay in the job until the test is over


def _start(name: str) -> list[tuple[BaseProcess, Connection]]:
    context, ranks = multiprocessing.get_context("spawn"), []
    for number in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=_sum, args=(number, name, theirs), daemon=True)
        process.start()
        ranks.append((process, ours))
    return ranks


def test_two_processes_sum_plain_memory_and_own_their_name() -> None:
    name = uuid4().hex
    for _ in range(2):  # the name is free again after the job
        ranks = _start(name)
        try:
            for _, answers in ranks:
                assert answers.poll(30)
                exact, coded, _norms, size, calls, transport, refused = answers.recv()
                assert exact == {3.0}
                assert coded == (pytest.approx(6.0, abs=0.05), pytest.approx(6.0, abs=0.05))
                assert (calls, transport) == (3, "shm")
                assert size == 66 * (4 + 2)  # int8, 4 groups and 2 of them owned
                assert "row length" in refused
            with pytest.raises(echo_comm.EchoError, match=name) as caught:
                Communicator(f"shm://{name}?rank=0&size=2", timeout_ms=2000)
            assert caught.value.result == 2, caught.value
        finally:
            for process, answers in ranks:
                answers.send(None)
                process.join(10)
                process.kill()
