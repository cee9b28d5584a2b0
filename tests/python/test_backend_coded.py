"""What is coded beside the plain all-reduce: averages, reduce-scatter, all-gather; started calls; what goes wrong."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pool import Pool

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
import torch.distributed._functional_collectives as functional

import echo_comm.torch as echo
from echo_comm import EchoAbortedError, EchoArgumentError, EchoError, EchoMismatchError, EchoTimeoutError
from group_helpers import configure_in_turn, echo_group, near, plain_sum, same, same_on_all_ranks, values

WORLDS = (2, 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _scatter(x: Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> Tensor:
    part = x.new_zeros(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    dist.reduce_scatter_tensor(part, x, op=op, group=group)
    return part


def _gather(x: Tensor, group: Any) -> Tensor:
    whole = x.new_zeros(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x, group=group)
    return whole


# ---- what is coded ------------------------------------------------------------------------------


def _coded(rank: int, world: int) -> None:
    for row in (128, 100):  # 100 is no multiple of 64: its rows are padded, nothing else
        results: dict[str, list[Tensor]] = {}
        for transport in ("shm", "inner"):
            group = echo_group(world, transport=transport, hidden_size=row, gather="always")
            if group is None:
                continue
            results[transport] = []
            for number, dtype in enumerate(DTYPES):
                x = values(rank, number, 6 * world, row, dtype=dtype)
                with echo.exact():
                    true = plain_sum(x.float(), group=group)
                    everything = _gather(x, group)
                average, gathered = plain_sum(x, dist.ReduceOp.AVG, group), _gather(x, group)
                part, part_average = _scatter(x, group), _scatter(x, group, dist.ReduceOp.AVG)
                own = true[6 * rank : 6 * rank + 6]
                assert near(average, true / world)
                assert near(gathered, everything)
                assert all(same_on_all_ranks(one, group) for one in (average, gathered))  # C1
                if transport == "shm":
                    assert near(part, own)
                    assert near(part_average, own / world)
                else:  # the inner route has no reduce-scatter
                    with echo.exact():
                        assert same(part, _scatter(x, group))
                results[transport] += [average, gathered]
            stats = group.stats()
            scatters = 2 * len(DTYPES)
            assert stats.collectives["all_gather"] == stats.collectives["all_reduce"] == len(DTYPES)
            if transport == "shm":
                assert stats.collectives["reduce_scatter"] == scatters
                assert stats.forwarded["inner_route"] == 0
            else:
                assert stats.forwarded["inner_route"] == scatters
            assert stats.ratio is not None
            assert stats.ratio > 1.5
        for shm, inner in zip(results.get("shm", []), results.get("inner", []), strict=True):
            assert same(shm, inner)


@pytest.mark.parametrize("world", WORLDS)
def test_averages_reduce_scatter_and_all_gather_are_coded_alike_on_both_routes(pool: Pool, world: int) -> None:
    pool.run(_coded, world)


class _Scatters(nn.Module):
    """A forward of sequence parallelism: reduce-scatters, and a gather of each part."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, xs: list[Tensor]) -> tuple[Tensor, Tensor]:
        parts = [_scatter(x, self.group) for x in xs]
        return torch.stack(parts), torch.stack([_gather(part, self.group) for part in parts])


def _feedback(rank: int) -> list[float]:
    group = echo_group(3, hidden_size=128)
    assert group is not None
    scatters = _Scatters(group)
    attachment = echo.attach(scatters, group, group.config)
    xs = [values(rank, site, 48, 128) for site in range(20)]
    with echo.exact():
        true, _ = scatters(xs)
    scatters(xs)  # learns the number of sites
    running = []
    for feedback in configure_in_turn(group):
        before = attachment.stats()
        parts, wholes = scatters(xs)
        spent = attachment.stats() - before
        assert spent.collectives == {"reduce_scatter": 20, "all_gather": 20}, spent
        assert (spent.passes, spent.resets, spent.flushes) == (1, feedback == "on", feedback == "on")
        assert spent.residual_norms == (0.0, 0.0)  # no feedback, or paid by the flush
        assert all(near(whole, _exact_gather(part, group)) for part, whole in zip(parts, wholes, strict=True))
        running.append(float((parts.double().sum(0) - true.double().sum(0)).pow(2).mean().sqrt()))
    with pytest.raises(ZeroDivisionError):
        scatters([xs[0], xs[1], _Broken()])  # type: ignore[list-item]
    owed = attachment.stats().residual_norms
    assert owed[0] > 0, "the sender owes what it rounded"
    return running


class _Broken:
    @property
    def shape(self) -> Any:
        raise ZeroDivisionError

    def new_zeros(self, *_sizes: int) -> Tensor:
        raise ZeroDivisionError


def _exact_gather(part: Tensor, group: Any) -> Tensor:
    with echo.exact():
        return _gather(part, group)


def test_feedback_of_reduce_scatter_keeps_the_error_of_one_call(pool: Pool) -> None:  # G3
    for without, with_feedback, with_flush in pool.run(_feedback):
        print(f"without {without:.4f}, feedback {with_feedback:.4f}, feedback and flush {with_flush:.4f}")
        assert with_feedback < without / 3
        assert with_flush < with_feedback / 3


def _strided(rank: int) -> None:
    group = echo_group(3, hidden_size=128, gather="always")
    assert group is not None
    x = values(rank, 1, 6, 128)
    strided = torch.zeros(6, 256)[:, ::2].copy_(x)
    part, whole = torch.zeros(2, 256)[:, ::2], torch.zeros(128, 18).t()
    dist.reduce_scatter_tensor(part, strided, group=group)
    group._allgather_base(whole, strided).wait()  # torch's function refuses strided outputs
    assert same(part, _scatter(x, group))
    assert same(whole, _gather(x, group))
    assert same(strided, x)
    with pytest.raises(EchoArgumentError, match="reduce_scatter: the tensor overlaps itself"):
        dist.reduce_scatter_tensor(torch.zeros(1, 128).expand(2, 128), x, group=group)
    assert group.stats().coded == 4


def test_strided_parts_and_wholes_are_coded_through_their_strides(pool: Pool) -> None:  # B6
    pool.run(_strided)


def _reasons(rank: int) -> None:
    group = echo_group(3, hidden_size=64, min_bytes=3 * 2 * 64 * 4)
    assert group is not None
    plain, x = dist.group.WORLD, values(rank, 1, 6, 64)
    calls = {
        "outside_pass": lambda chosen: _gather(x, chosen),
        "min_bytes": lambda chosen: _scatter(x[:3], chosen),
        "row_length": lambda chosen: _scatter(x.reshape(-1), chosen),
        "op": lambda chosen: _scatter(x, chosen, dist.ReduceOp.MAX),
        "dtype": lambda chosen: _scatter(x.double(), chosen),
    }
    for number, (reason, call) in enumerate(calls.items(), 1):
        assert same(call(group), call(plain)), reason
        stats = group.stats()
        assert stats.forwarded[reason] == 1, stats
        assert (stats.coded, stats.calls) == (0, number)
    assert stats.forwarded_bytes["dtype"] == 6 * 64 * 8
    assert stats.forwarded_bytes["outside_pass"] == 18 * 64 * 4
    for chosen in (group, plain):  # a wrong size is refused with the inner group's words
        with pytest.raises((RuntimeError, ValueError)):
            dist.reduce_scatter_tensor(torch.zeros(5, 64), x, group=chosen)
    assert group.stats().forwarded["parts"] == 1


def test_halves_that_are_not_coded_are_forwarded_and_counted_by_reason(pool: Pool) -> None:  # I6
    pool.run(_reasons)


# ---- started calls ------------------------------------------------------------------------------


def _started(rank: int, transport: str) -> None:
    group = echo_group(3, hidden_size=64, transport=transport, gather="always")
    assert group is not None
    xs = [values(rank, number, 48, 64) for number in range(4)]
    expected = [plain_sum(x, group=group) for x in xs]
    gathered, halved = _gather(xs[0], group), _scatter(xs[0], group)
    others = [x.clone() for x in xs]
    works = [dist.all_reduce(y, group=group, async_op=True) for y in others]
    whole, part, broadcast = torch.zeros(144, 64), torch.zeros(16, 64), xs[3].clone()
    works.append(dist.all_gather_into_tensor(whole, xs[0], group=group, async_op=True))
    works.append(dist.broadcast(broadcast, 1, group=group, async_op=True))  # forwarded in between
    works.append(dist.reduce_scatter_tensor(part, xs[0], group=group, async_op=True))
    chained = works[0].get_future().then(lambda future: 2 * future.value()[0])  # type: ignore[union-attr]
    assert torch.equal(chained.wait(), 2 * expected[0])
    for work in works:
        assert work is not None
        assert work.wait()
    for work in works[:4]:
        assert work is not None
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    assert all(same(a, b) for a, b in zip([*others, whole, part], [*expected, gathered, halved], strict=True))
    assert same(broadcast, values(1, 3, 48, 64))
    assert same(works[1].result()[0], expected[1])  # type: ignore[union-attr]
    assert same(functional.wait_tensor(functional.all_reduce(xs[2], "sum", group)), expected[2])
    late = xs[0].clone()
    if rank == 0:
        dist.recv(torch.zeros(1), 1)  # the others wait for rank 0 ...
    work = dist.all_reduce(late, group=group, async_op=True)
    assert work is not None
    if rank == 1:
        with pytest.raises(EchoTimeoutError, match=r"not finished after 0\.05 s"):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed()
        dist.send(torch.zeros(1), 0)  # ... until this one has seen that it does
    work.wait()
    assert same(late, expected[0])


@pytest.mark.parametrize("transport", ["shm", "inner"])
def test_started_calls_give_the_same_bits_and_have_real_futures(pool: Pool, transport: str) -> None:
    pool.run(_started, transport)


def _failing(rank: int) -> None:
    group = echo_group(3, hidden_size=64)
    assert group is not None
    plain_sum(values(rank, 1, 8, 64), group=group)
    dist.barrier()
    work = dist.all_reduce(values(rank, 1, 16 if rank == 2 else 8, 64), group=group, async_op=True)
    assert work is not None
    future = work.get_future()
    with pytest.raises(EchoMismatchError, match="1024"):
        work.wait()
    with pytest.raises(EchoMismatchError, match="1024"):
        future.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), EchoMismatchError)
    with pytest.raises(EchoError):
        functional.wait_tensor(functional.all_reduce(values(rank, 1, 8, 64), "sum", group))
    # What is not coded goes on: all ranks are still in step.
    with echo.exact():
        assert same(plain_sum(values(rank, 2, 8, 64), group=group), plain_sum(values(rank, 2, 8, 64)))


def test_errors_of_started_calls_reach_waiters_and_futures_on_all_ranks(pool: Pool) -> None:  # D1, I7
    pool.run(_failing)


# ---- ranks that miss ----------------------------------------------------------------------------


def _divided(rank: int) -> None:
    """Rank 2's tensor is under the floor: the others code, it forwards. All get an error within the timeouts."""
    config = echo.EchoConfig(min_bytes=1024, timeout_s=1.0, hidden_size=64)
    group = dist.new_group(backend="echo", timeout=timedelta(seconds=3), pg_options=config)
    assert isinstance(group, echo.EchoProcessGroup)
    plain_sum(values(rank, 1, 8, 64), group=group)
    before = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        plain_sum(values(rank, 1, 1 if rank == 2 else 8, 64), group=group)
    assert time.monotonic() - before < 20
    if rank != 2:
        assert isinstance(caught.value, EchoTimeoutError)
    dist.barrier()


def _aborted(rank: int, transport: str) -> None:
    group = echo_group(3, hidden_size=64, transport=transport, timeout_s=3.0)
    assert group is not None
    plain_sum(values(rank, 1, 8, 64), group=group)
    dist.barrier()
    if rank == 2:
        dist.recv(torch.zeros(1), 0)
        group.abort()
    else:
        work = dist.all_reduce(values(rank, 1, 8, 64), group=group, async_op=True)
        if rank == 0:
            dist.send(torch.zeros(1), 2)
        assert work is not None
        with pytest.raises(EchoAbortedError if transport == "shm" else EchoError):
            work.wait()
    dist.barrier()


def test_ranks_that_part_ways_all_get_an_error_in_time(pool: Pool) -> None:  # D2, I2
    pool.run(_divided)
    for transport in ("shm", "inner"):
        pool.run(_aborted, transport)
