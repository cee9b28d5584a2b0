"""The backend as a c10d backend: every call under every name, async work, all ways to make a group, its end."""

from __future__ import annotations

import importlib.metadata
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pool import TIMEOUT_S, Pool

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
import torch.distributed._functional_collectives as functional
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import echo_comm.torch as echo
from echo_comm import EchoMismatchError, EchoStateError, EchoTimeoutError
from echo_comm.torch.config import EchoConfig
from echo_comm.torch.inner import RENAMED
from group_helpers import echo_group, near, plain_sum, same, same_on_all_ranks, values

WORLDS = (2, 3, 4)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    """Four ranks, for groups of 2, 3 and 4."""
    ranks = Pool(4)
    yield ranks
    ranks.close()


def _pair(world: int) -> tuple[Any, Any] | None:
    """An echo group of the first `world` ranks that knows no hidden size, and a gloo group of the same ranks."""
    plain = dist.new_group(list(range(world)), backend="gloo")
    group = echo_group(world)
    return (group, plain) if group is not None else None


# ---- every call ---------------------------------------------------------------------------------


def _public_calls(rank: int, world: int, group: Any) -> list[Tensor]:
    """Results of every function of torch.distributed on this rank."""
    x = values(rank, 8, 2 * world, 64)
    gathered, parts = [torch.zeros_like(x) for _ in range(world)], list(x.split(2))
    dist.all_gather(gathered, x, group=group)
    flat, part, turned = torch.zeros(2 * world * world, 64), torch.zeros(2, 64), torch.zeros(2 * world, 64)
    dist.all_gather_into_tensor(flat, x, group=group)
    dist.reduce_scatter_tensor(part, x, group=group)
    dist.all_to_all_single(turned, x, group=group)
    listed = torch.zeros(2, 64)
    dist.reduce_scatter(listed, parts, group=group)
    swapped = [torch.zeros(2, 64) for _ in range(world)]
    try:
        dist.all_to_all(swapped, parts, group=group)
    except RuntimeError as error:  # Gloo's answer in torch 2.11
        assert "does not support alltoall" in str(error)
    copied, summed = x.clone(), x.clone()
    dist.broadcast(copied, 1, group=group)
    dist.reduce(summed, 0, group=group)
    collected = [torch.zeros_like(x) for _ in range(world)] if rank == 0 else None
    dist.gather(x, collected, 0, group=group)
    scattered = torch.zeros(2, 64)
    dist.scatter(scattered, parts if rank == 0 else None, 0, group=group)
    average, both = x.clone(), [x[0].clone(), x[1].clone()]
    dist.all_reduce(average, op=dist.ReduceOp.AVG, group=group)
    with dist._coalescing_manager(group=group):
        for one in both:
            dist.all_reduce(one, group=group)
    dist.barrier(group=group)
    group.monitored_barrier(timedelta(seconds=20))
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": peer} for peer in range(world)]
    tensors = [*gathered, flat, part, turned, listed, *swapped, copied, scattered, average, *both]
    return tensors + ([summed, *(collected or [])] if rank == 0 else [])


def _point_to_point(rank: int, world: int, group: Any) -> list[Tensor]:
    """A ring, three ways."""
    before, after, x = (rank - 1) % world, (rank + 1) % world, values(rank, 9, 5)
    received = [torch.zeros(5) for _ in range(3)]
    ring = [dist.P2POp(dist.isend, x, after, group), dist.P2POp(dist.irecv, received[0], before, group)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    sent = dist.isend(x, after, group=group, tag=7)
    assert dist.recv(received[1], before, group=group, tag=7) == before
    assert sent is not None
    sent.wait()
    sent = dist.isend(x, after, group=group)
    assert dist.recv(received[2], None, group=group) == before  # from any rank
    assert sent is not None
    sent.wait()
    assert all(same(one, values(before, 9, 5)) for one in received)
    return received


def _async_calls(rank: int, world: int, group: Any) -> list[Tensor]:
    """Forwarded calls started and waited for later, with a chain on the future."""
    x, flat, part = values(rank, 3, world, 64), torch.zeros(world * world, 64), torch.zeros(1, 64)
    summed = x.clone()
    works = [
        dist.all_reduce(summed, group=group, async_op=True),
        dist.all_gather_into_tensor(flat, x, group=group, async_op=True),
        dist.reduce_scatter_tensor(part, x, group=group, async_op=True),
    ]
    for work in works:
        assert work is not None
        work.wait()
    assert works[0].is_completed()  # type: ignore[union-attr]
    doubled = works[0].get_future().then(lambda future: future.value()[0] * 2).wait()  # type: ignore[union-attr]
    assert torch.equal(doubled, summed * 2)
    return [summed, flat, part]


def _functional_calls(rank: int, world: int, group: Any) -> list[Tensor]:
    """The C++ operators, which find the group by its name."""
    x = values(rank, 4, 2 * world, 64)
    calls = [
        functional.all_reduce(x, "sum", group),
        functional.all_gather_tensor(x, 0, group),
        functional.reduce_scatter_tensor(x, "sum", 0, group),
        functional.all_to_all_single(x, None, None, group),
        functional.broadcast(x, 1, group),
        *functional.all_reduce_coalesced([x, x + 1], "sum", group),
        *functional.all_gather_into_tensor_coalesced([x, x[:1]], group),
        *functional.reduce_scatter_tensor_coalesced([x, x * 3], "sum", [0, 0], group),
    ]
    return [functional.wait_tensor(call) for call in calls]


def _methods(rank: int, world: int, group: Any, names: dict[str, str]) -> list[Tensor]:
    """The methods of a process group, by the names that `names` gives."""
    x, results = values(rank, 5, 2 * world, 64), []

    def call(name: str, *args: Any) -> None:
        method = getattr(group, names.get(name, name))
        method(*args).wait()

    flat, part, turned = torch.zeros(2 * world * world, 64), torch.zeros(2, 64), torch.zeros(2 * world, 64)
    call("_allgather_base", flat, x)
    call("_reduce_scatter_base", part, x)
    call("alltoall_base", turned, x, [], [], c10d.AllToAllOptions())
    flats, halves = [torch.zeros_like(flat) for _ in range(2)], [torch.zeros_like(part) for _ in range(2)]
    call("allgather_into_tensor_coalesced", flats, [x, x + 1])
    call("reduce_scatter_tensor_coalesced", halves, [x, x + 1])
    lists = [[torch.zeros_like(x) for _ in range(world)]]
    call("allgather_coalesced", [[one] for one in lists[0]], [x])
    summed, averaged = x.clone(), x.clone()
    call("allreduce", summed)
    call("allreduce", [averaged], dist.ReduceOp.AVG)
    results += [flat, part, turned, *flats, *halves, *lists[0], summed, averaged]
    return results


def _every_call(rank: int, world: int) -> None:
    pair = _pair(world)
    if pair is None:
        return
    group, plain = pair
    for calls in (_public_calls, _point_to_point, _async_calls, _functional_calls):
        ours, reference = calls(rank, world, group), calls(rank, world, plain)
        assert all(same(a, b) for a, b in zip(ours, reference, strict=True)), calls.__name__
    reference = _methods(rank, world, plain, {})
    for names in ({}, RENAMED):  # the names of torch 2.11, those of torch 2.13
        assert all(same(a, b) for a, b in zip(_methods(rank, world, group, names), reference, strict=True)), names
    stats = group.stats()
    assert set(stats.forwarded) == {"collective", "coalesced", "no_hidden_size", "outside_pass"}, stats
    assert (stats.coded, stats.calls) == (0, sum(stats.forwarded.values()))
    assert stats.forwarded_bytes["no_hidden_size"] > 2 * world * 64 * 4
    assert group._get_sequence_number_for_group() > 0


@pytest.mark.parametrize("world", WORLDS)
def test_every_call_under_every_name_gives_what_gloo_gives(four: Pool, world: int) -> None:
    four.run(_every_call, world)


# ---- ways to make a group -----------------------------------------------------------------------


def _wrapped(rank: int) -> None:
    plain = dist.new_group([1, 2, 3], backend="gloo")
    if rank == 0:
        return
    config = EchoConfig(min_bytes=0, timeout_s=10.0, hidden_size=64)
    group = echo.wrap(plain, config)
    assert (dist.get_backend(group), dist.get_backend(plain)) == ("echo", "gloo")
    assert dist.get_process_group_ranks(group) == [1, 2, 3]
    assert group.group_name != plain.group_name
    x = values(rank, 1, 8, 64)
    exact, coded = plain_sum(x, group=plain), plain_sum(x, group=group)
    assert not same(exact, coded)
    assert same_on_all_ranks(coded, group)
    assert same(plain_sum(x, dist.ReduceOp.MAX, group), plain_sum(x, dist.ReduceOp.MAX, plain))
    # The functional operators find both by name, and the given one stays what it was.
    assert same(functional.wait_tensor(functional.all_reduce(x, "sum", plain)), exact)
    assert same(functional.wait_tensor(functional.all_reduce(x, "sum", group)), coded)
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))
    assert same(functional.wait_tensor(functional.all_reduce(x, "sum", (mesh, 0))), coded)
    dist.destroy_process_group(group)
    assert same(plain_sum(x, group=plain), exact)
    with pytest.raises(TypeError, match="echo group already"):
        echo.wrap(group)
    with pytest.raises(TypeError, match="NoneType"):
        echo.wrap(None)  # type: ignore[arg-type]


def test_wrap_adds_echo_to_a_group_and_leaves_it_as_it_is(four: Pool) -> None:
    four.run(_wrapped)


def _split(rank: int) -> None:
    group = echo_group(4, hidden_size=64, bits=5)
    assert group is not None
    halves = group.split_group([0, 1] if rank < 2 else [2, 3], timedelta(seconds=20), None, f"half-{rank // 2}", "half")
    assert isinstance(halves, echo.EchoProcessGroup)
    assert (halves.size(), halves.rank(), halves.group_name) == (2, rank % 2, f"half-{rank // 2}")
    assert (halves.config.bits, halves.hidden_size) == (5, 64)
    x = values(rank, 2, 8, 64)
    y, true = x.clone(), x + values(rank ^ 1, 2, 8, 64)
    halves.allreduce([y]).wait()
    assert halves.stats().coded == 1
    assert near(y, true)
    assert (group.split_group([3], group_name="three") is None) == (rank != 3)
    other = group.split_group([0, 1, 2, 3], None, EchoConfig(hidden_size=32), "other")
    assert other is not None
    assert other.hidden_size == 32
    halves.shutdown()


def test_a_split_group_is_an_echo_group_with_the_same_settings(four: Pool) -> None:
    four.run(_split)


def _mesh(rank: int) -> None:
    config = EchoConfig(min_bytes=0, timeout_s=10.0, hidden_size=64)
    override: Any = {"tp": ("echo", echo.Options(config))}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), backend_override=override)
    group = mesh.get_group("tp")
    assert isinstance(group, echo.EchoProcessGroup)
    assert (group.config, group.hidden_size, group.size()) == (config, 64, 2)
    assert dist.get_backend(mesh.get_group("dp")) == "gloo"
    x = values(rank, 3, 8, 64)
    tp = mesh["tp"]
    partial = DTensor.from_local(x, tp, [Partial()])
    summed, scattered = partial.redistribute(tp, [Replicate()]), partial.redistribute(tp, [Shard(0)])
    with echo.exact():
        true, true_part = (partial.redistribute(tp, [to]).to_local() for to in (Replicate(), Shard(0)))
    assert near(summed.to_local(), true)
    assert near(scattered.to_local(), true_part)
    assert same_on_all_ranks(summed.to_local(), group)
    # Weights are gathered outside passes: what a checkpoint gets is exact.
    weight = torch.arange(64.0 * 64).reshape(64, 64)
    assert same(DTensor.from_local(weight.chunk(2)[rank % 2], tp, [Shard(0)]).full_tensor(), weight)
    assert group.stats().forwarded["outside_pass"] > 0
    with pytest.raises(TypeError, match="EchoConfig"):
        dist.new_group(backend="echo", pg_options="four bits")


def test_a_mesh_takes_echo_with_its_settings_for_one_dimension(four: Pool) -> None:
    four.run(_mesh)


class _Block(nn.Module):
    """What a compiler sees of a tensor-parallel layer."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        y = functional.all_reduce(x * 2, "sum", self.group)
        parts = functional.reduce_scatter_tensor(y + 1, "sum", 0, self.group)
        return functional.all_gather_tensor(parts, 0, self.group) * 3


def _compiled(rank: int) -> None:
    group = echo_group(2, hidden_size=64, gather="always")
    if group is None:
        return

    def in_place(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + 1

    for function in (_Block(group), in_place):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in (4, 6, 8):  # varying numbers of tokens
            x = values(rank, 6, rows, 64)
            before = group.stats()
            results = function(x), compiled(x)
            assert same(*results)
            assert (group.stats() - before).coded == (6 if isinstance(function, _Block) else 2)
    x = values(rank, 7, 8, 64)
    assert torch.allclose(torch.compile(_Block(group), fullgraph=True)(x), _Block(group)(x))  # inductor
    with echo.exact():
        assert group.stats().forwarded == {}
        assert same(torch.compile(in_place, fullgraph=True, backend="aot_eager")(x), in_place(x))
        assert group.stats().forwarded["exact"] == 2


def test_compiled_graphs_call_the_group_like_eager_code(four: Pool) -> None:  # H1, H3
    four.run(_compiled)


def _default_group(rank: int, folder: str, answers: Any) -> None:
    torch.set_num_threads(1)
    try:
        for number, backend in enumerate(("echo", "cpu:gloo,cuda:echo")):
            options = EchoConfig(min_bytes=0, hidden_size=64, timeout_s=10.0)
            where = f"file://{folder}/rendezvous{number}"
            timeout = timedelta(seconds=30)
            dist.init_process_group(
                backend, init_method=where, rank=rank, world_size=2, timeout=timeout, pg_options=options
            )
            assert isinstance(dist.group.WORLD, echo.EchoProcessGroup)
            x = values(rank, 1, 8, 64)
            assert same_on_all_ranks(plain_sum(x), dist.group.WORLD)
            assert dist.group.WORLD.stats().coded == 1
            again = dist.new_group(timeout=timedelta(seconds=5))  # the backend is inherited, the settings are not
            assert isinstance(again, echo.EchoProcessGroup)
            assert again.config == EchoConfig.from_env()
            if hasattr(dist.Backend, "_ensure_backend_registered") and number == 0:
                split = dist.split_group(split_ranks=[[0, 1]])
                assert isinstance(split, echo.EchoProcessGroup)
                assert same_on_all_ranks(plain_sum(x, group=split), split)
                assert split.stats().coded == 1
            c10d._set_pg_timeout(timedelta(seconds=20), again)
            dist.barrier()
            dist.destroy_process_group()
            with pytest.raises(EchoStateError, match="shut down"):
                plain_sum(x, group=again)
        answers.send("")
    except BaseException as error:
        answers.send(repr(error))
        raise


def _run_apart(target: Any, *arguments: Any, ranks: int = 2) -> list[Any]:
    """Runs target(rank, *arguments, answers) in new processes; what each sends."""
    context, processes = multiprocessing.get_context("spawn"), []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(rank, *arguments, theirs), daemon=True)
        process.start()
        processes.append((process, ours))
    try:
        results = []
        for rank, (_, answers) in enumerate(processes):
            assert answers.poll(TIMEOUT_S), f"rank {rank} hangs"
            results.append(answers.recv())
        return results
    finally:
        for process, _ in processes:
            process.kill()
            process.join()


def test_echo_can_be_the_default_group_made_anew_and_inherited() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert _run_apart(_default_group, folder) == ["", ""]


def test_the_entry_point_is_a_function_that_registers() -> None:  # I3
    (entry,) = importlib.metadata.entry_points(group="torch.distributed.backends", name="echo")
    entry.load()()
    assert "ECHO" in dist.Backend._plugins
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        pytest.skip(f"torch {torch.__version__} discovers no backends; import echo_comm.torch")
    script = (
        "import torch.distributed as d; d.init_process_group('echo', store=d.HashStore(), rank=0, world_size=1);"
        "print(type(d.group.WORLD).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "EchoProcessGroup" in done.stdout, done.stderr


# ---- agreement, announcements, the end ----------------------------------------------------------


def _disagreement(rank: int) -> None:
    config = EchoConfig(min_bytes=0, bits=4 if rank else 6, hidden_size=64)
    with pytest.raises(EchoMismatchError, match=r"rank 1 has bits 4 instead of 6 of rank 0"):
        dist.new_group(backend="echo", pg_options=config)
    group = echo_group(4)
    assert group is not None
    with pytest.raises(EchoMismatchError, match="rank 2 has hidden_size 128 instead of 64"):
        group.configure(EchoConfig(), hidden_size=128 if rank == 2 else 64)
    x = values(rank, 1, 4, 64)
    assert same(plain_sum(x, group=group), plain_sum(x))  # the old settings are in force
    if rank == 3:
        os.environ["ECHO_DISABLE"] = "1"
    try:
        with pytest.raises(EchoMismatchError, match="rank 3 has disable True instead of False"):
            group.configure(EchoConfig())
    finally:
        os.environ.pop("ECHO_DISABLE", None)
    late = dist.new_group(backend="echo", timeout=timedelta(seconds=1))
    assert isinstance(late, echo.EchoProcessGroup)
    if rank:  # rank 0 forgets
        with pytest.raises(EchoTimeoutError, match=r"ranks \[0\] did not come within 1 s"):
            late.configure(EchoConfig())


def test_settings_that_differ_are_refused_on_all_ranks_and_both_are_named(four: Pool) -> None:  # D1
    four.run(_disagreement)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _announced(rank: int) -> list[str]:
    handler, logger = _Lines(), logging.getLogger("echo_comm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for transport in ("shm", "inner"):
            group = echo_group(2, hidden_size=64, transport=transport)
            if group is not None:
                for _ in range(3):
                    plain_sum(values(rank, 1, 8, 64), group=group)
        os.environ["ECHO_DISABLE"] = "1"
        group = echo_group(2, hidden_size=64)
        if group is not None:
            x = values(rank, 2, 8, 64)
            plain_sum(x, group=group)
            stats = group.stats()
            assert (stats.coded, stats.forwarded["disabled"]) == (0, 1)
        return handler.lines
    finally:
        os.environ.pop("ECHO_DISABLE", None)
        logger.removeHandler(handler)


def test_each_group_says_once_what_it_does(four: Pool) -> None:  # I8
    lines, *others = four.run(_announced)
    assert others == [[], [], []]
    shm, inner, disabled = lines
    for word in ("route shm", "2 ranks", "4 bits (flush 8)", "feedback on", "bytes shared", "forwarded: under 0 bytes"):
        assert word in shm, shm
    assert "route inner (asked for)" in inner
    assert "ECHO_DISABLE" in disabled


def _ended(rank: int) -> None:
    x = values(rank, 1, 8, 64)
    for end in ("shutdown", "abort"):
        group = echo_group(4, hidden_size=64)
        assert group is not None
        plain_sum(x, group=group)
        dist.barrier()
        getattr(group, end)()
        with pytest.raises(EchoStateError, match="the group was"):
            plain_sum(x, group=group)
        dist.barrier()


def test_an_ended_group_says_so(four: Pool) -> None:
    four.run(_ended)
