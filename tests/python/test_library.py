"""The package without torch: version, errors, communicators over plain memory."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from uuid import uuid4

import pytest

echo_comm = pytest.importorskip("echo_comm")
from echo_comm import FLOAT32, Communicator, Feedback, Path  # noqa: E402

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


def _collectives(number: int, name: str, answers: Connection) -> None:
    log: list[str] = []
    table = "all_reduce 512 exact one_shot; all_reduce * coded" if number == 0 else None
    comm = Communicator(
        f"shm://{name}?rank={number}&size=2", timeout_ms=20000, table=table, log=lambda _level, line: log.append(line)
    )
    own = array("f", [float(number + 1)] * 192)
    whole = array("f", [0.0] * 192)
    source, target = own.buffer_info()[0], whole.buffer_info()[0]
    result: dict[str, object] = {"place": (comm.rank, comm.size), "table": comm.table}

    comm.all_reduce(source, 192, FLOAT32, target=target)
    result["by table"] = (set(whole), comm.last_path())
    result["chosen"] = (comm.choose("all_reduce", 192), comm.choose("all_reduce", 1024, with_feedback=True))
    comm.all_reduce(source, 192, FLOAT32, target=target, bits=16, average=True)
    result["average"] = set(whole)

    counts = [64, 128]
    part = array("f", [0.0] * counts[number])
    at = part.buffer_info()[0]
    comm.reduce_scatter(source, at, 192, FLOAT32, counts=counts, bits=16)
    result["scattered"] = list(part)
    started = comm.start_all_gather(at, target, 192, FLOAT32, counts=counts, bits=16)
    started.wait()
    result["gathered"] = (set(whole), started.test())
    with pytest.raises(echo_comm.EchoStateError, match="waited for"):
        started.wait()
    half = array("f", [0.0] * 96)
    requests = [
        comm.start_all_reduce(source, 192, FLOAT32, target=target, bits=16),
        comm.start_reduce_scatter(source, half.buffer_info()[0], 192, FLOAT32, bits=16),
    ]
    for request in requests:
        request.wait()
    result["started"] = (set(whole), set(half))

    comm.broadcast(source, 192, FLOAT32, root=1)
    result["broadcast"] = set(own)
    comm.barrier()
    result["stats"] = (comm.stats().control_calls, comm.stats().table_exact_calls)
    refused = []
    for bad in ({"counts": [192]}, {"counts": [64, 64]}, {"bits": 7}, {"colour": "red"}):
        try:
            comm.reduce_scatter(source, at, 192, FLOAT32, **bad)  # type: ignore[arg-type]
        except echo_comm.EchoArgumentError as error:
            refused.append(str(error))
    result["refused"] = refused
    answers.send(result)
    answers.recv()


def _start(name: str, work: Callable[[int, str, Connection], None] = _sum) -> list[tuple[BaseProcess, Connection]]:
    context, ranks = multiprocessing.get_context("spawn"), []
    for number in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(number, name, theirs), daemon=True)
        process.start()
        ranks.append((process, ours))
    return ranks


def _stop(ranks: list[tuple[BaseProcess, Connection]]) -> None:
    for process, answers in ranks:
        answers.send(None)
        process.join(10)
        process.kill()


def test_every_collective_of_the_library() -> None:
    ranks = _start(uuid4().hex, _collectives)
    try:
        for number, (_, answers) in enumerate(ranks):
            assert answers.poll(30)
            result = answers.recv()
            assert result["place"] == (number, 2)
            assert result["table"].splitlines()[0].split() == ["all_reduce", "512", "exact", "one_shot"]
            values, path = result["by table"]
            assert values == {3.0}
            assert isinstance(path, Path)
            assert (path.kind, path.bits, path.algorithm) == ("exact", 16, echo_comm.ONE_SHOT)
            small, large = result["chosen"]
            assert small == path
            assert (large.kind, large.bits) == ("coded", 4)
            assert result["average"] == {1.5}
            assert result["scattered"] == [3.0] * [64, 128][number]
            assert result["gathered"] == ({3.0}, True)
            assert result["started"] == ({3.0}, {3.0})
            assert result["broadcast"] == {2.0}
            assert result["stats"] == (2, 1)
            assert len(result["refused"]) == 4, result["refused"]
            for text, expected in zip(result["refused"], ("2 numbers", "128", "7", "colour"), strict=True):
                assert expected in text
    finally:
        _stop(ranks)


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
            _stop(ranks)
