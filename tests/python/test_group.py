"""The c10d backend on real processes: coded calls, forwarded calls, both routes, disagreement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pool import Pool

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
import torch.distributed._functional_collectives as functional

import echo_comm.torch as echo
from echo_comm import EchoArgumentError, EchoError, EchoMismatchError, EchoSystemError
from echo_comm.torch import route
from group_helpers import Calls, echo_group, plain_sum, same, same_on_all_ranks, values

WORLDS = (2, 3)


# ---- coded calls -------------------------------------------------------------------------------

# bits, dtype, row length, rows, batch_invariant
CASES = [
    (4, torch.float32, 640, 33, False),
    (4, torch.bfloat16, 640, 33, False),
    (4, torch.float16, 100, 7, False),  # rows that are no multiple of 64
    (4, torch.float32, 64, 1, False),  # chunks that own nothing
    (4, torch.float32, 640, 40, True),
    (3, torch.float32, 128, 9, False),
    (5, torch.float32, 128, 9, False),
    (6, torch.bfloat16, 128, 9, False),
    (8, torch.float32, 128, 90, False),
    (16, torch.float32, 100, 9, False),
    (16, torch.bfloat16, 128, 9, False),
]


def _both_routes(rank: int, world: int) -> None:
    for number, (bits, dtype, row, rows, invariant) in enumerate(CASES):
        results = {}
        for transport in ("shm", "inner"):
            group = echo_group(world, bits=bits, transport=transport, hidden_size=row, batch_invariant=invariant)
            if group is None:
                continue
            calls = Calls(group)
            attachment = echo.attach(calls, group, group.config)
            xs = [values(rank, 7 * number + site, rows, row, dtype=dtype) for site in range(4)]
            calls(xs)  # learns the number of sites
            results[transport] = calls(xs)
            stats = attachment.stats()
            assert (stats.coded, stats.flushes, stats.route) == (8, 1, transport), stats
            assert not stats.forwarded, stats
            assert all(same_on_all_ranks(y, group) for y in results[transport])  # C1
            true = torch.stack([x.double() for x in xs])
            dist.all_reduce(true, group=group)
            error = (torch.stack(results[transport]).double().sum(0) - true.sum(0)).abs().max() / true.abs().max()
            assert error < 0.06, f"{transport}, case {number}: the running error is {error:.3f} of the largest sum"
        if results:
            assert all(same(a, b) for a, b in zip(results["shm"], results["inner"], strict=True)), f"case {number}"


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_and_both_routes_hold_the_same_bits(pool: Pool, world: int) -> None:
    pool.run(_both_routes, world)


def _strided(rank: int) -> None:
    group = echo_group(3, hidden_size=128)
    assert group is not None
    x = values(rank, 1, 8, 128)
    expected = x.clone()
    dist.all_reduce(expected, group=group)
    for name, view in (("every second column", torch.zeros(8, 256)[:, ::2]), ("transposed", torch.zeros(128, 8).t())):
        view.copy_(x)
        dist.all_reduce(view, group=group)
        assert same(view, expected), name
    assert group.stats().coded == 3
    repeated = x[:1].expand(8, 128)
    with pytest.raises(EchoArgumentError, match="overlaps itself"):
        dist.all_reduce(repeated, group=group)


def test_strided_tensors_are_written_back_through_their_strides(pool: Pool) -> None:  # B6
    pool.run(_strided)


def _poisoned(rank: int, transport: str) -> None:
    for world in WORLDS:
        group = echo_group(world, hidden_size=128, transport=transport)
        if group is None:
            continue
        calls = Calls(group)
        attachment = echo.attach(calls, group, group.config)
        clean, dirty = values(rank, 2, 4, 128), values(rank, 2, 4, 128)
        if rank == 1:
            dirty[2, 70] = torch.inf
        first = calls([clean, clean])
        second = calls([dirty, clean])
        broken = torch.zeros(4, 128, dtype=torch.bool)
        broken[2, 64:] = True
        assert second[0].isnan().eq(broken).all()
        assert second[1].isfinite().all()  # the residual of a poisoned group is 0, not NaN
        assert same(second[0][:2], first[0][:2])
        poisoned = torch.tensor([attachment.stats().poisoned_groups])
        dist.all_reduce(poisoned, op=dist.ReduceOp.MIN, group=group)
        assert int(poisoned) == 1, "each rank counts the group that it delivered as NaN"


@pytest.mark.parametrize("transport", ["shm", "inner"])
def test_a_non_finite_value_poisons_its_group_only(pool: Pool, transport: str) -> None:  # A6
    pool.run(_poisoned, transport)


def _futures(rank: int) -> None:
    group = echo_group(3, hidden_size=64)
    assert group is not None
    x = values(rank, 3, 4, 64)
    expected = x.clone()
    dist.all_reduce(expected, group=group)
    y = x.clone()
    work = dist.all_reduce(y, group=group, async_op=True)
    assert work is not None
    work.wait()
    assert same(y, expected)
    z = functional.wait_tensor(functional.all_reduce(x, "sum", group))
    assert same(z, expected)
    assert group.stats().coded == 3


def test_async_and_functional_calls_are_coded_too(pool: Pool) -> None:
    pool.run(_futures)


# ---- forwarded calls ---------------------------------------------------------------------------


class _SumInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def _forwarded(rank: int) -> dict[str, int]:
    group = echo_group(3, hidden_size=128, min_bytes=1024)
    assert group is not None
    x = values(rank, 4, 8, 128)
    small, wide = values(rank, 5, 1, 128), values(rank, 6, 8, 64)
    for tensor, op in ((x, dist.ReduceOp.MAX), (small, dist.ReduceOp.SUM), (wide, dist.ReduceOp.SUM)):
        assert same(plain_sum(tensor, op, group), plain_sum(tensor, op))
    for dtype in (torch.float64, torch.int64):
        assert same(plain_sum(x.to(dtype), group=group), plain_sum(x.to(dtype)))
    with echo.exact():
        assert same(plain_sum(x, group=group), plain_sum(x))
        with echo.exact():
            assert same(plain_sum(x, group=group), plain_sum(x))
        assert same(plain_sum(x, group=group), plain_sum(x))
    leaf = x.clone().requires_grad_()
    _SumInBackward.apply(leaf, group).backward(x)
    assert leaf.grad is not None
    assert same(leaf.grad, plain_sum(x))
    empty = torch.zeros(0, 128)
    dist.all_reduce(empty, group=group)
    assert group.stats().coded == 0
    assert not same(plain_sum(x, group=group), plain_sum(x))  # this one is coded

    unknown = echo_group(3)
    disabled = echo_group(3, hidden_size=128, disable=True)
    assert unknown is not None
    assert disabled is not None
    assert same(plain_sum(x, group=unknown), plain_sum(x))
    assert same(plain_sum(x, group=disabled), plain_sum(x))
    return dict(group.stats().forwarded + unknown.stats().forwarded + disabled.stats().forwarded)


def test_all_else_is_forwarded_untouched_and_counted_by_reason(pool: Pool) -> None:  # I6
    expected = {
        "op": 1,
        "min_bytes": 1,
        "row_length": 1,
        "dtype": 2,
        "exact": 3,
        "backward": 1,
        "empty": 1,
        "no_hidden_size": 1,
        "disabled": 1,
    }
    assert pool.run(_forwarded) == [expected] * 3


def _one_rank(rank: int) -> None:
    group = echo_group(1, hidden_size=64)
    if group is None:
        return
    x = values(rank, 9, 4, 64)
    x[1, 3] = torch.nan
    y = x.clone()
    dist.all_reduce(y, group=group)
    assert same(x, y)
    assert group.stats().forwarded == {"one_rank": 1}


def test_one_rank_gets_its_input_back(pool: Pool) -> None:  # B9
    pool.run(_one_rank)


# ---- disagreement and fallback -----------------------------------------------------------------


def _mismatch(rank: int, transport: str) -> str:
    text = ""
    for other in ("rows", "dtype", "bits"):
        group = echo_group(3, hidden_size=64, transport=transport)
        assert group is not None
        dist.all_reduce(values(rank, 10, 8, 64), group=group)
        dist.barrier()  # a rank that is still in this call would get the error in it
        x = values(rank, 10, 8, 64)
        if rank == 1 and other == "rows":
            x = values(rank, 10, 16, 64)
        if rank == 1 and other == "dtype":
            x = x.bfloat16()
        if rank == 1 and other == "bits":
            group._config = replace(group.config, bits=8)  # behind configure(), which would compare
        with pytest.raises(EchoMismatchError) as caught:
            dist.all_reduce(x, group=group)
        text += str(caught.value) + "\n"
        with pytest.raises(EchoError):  # the group stays unusable, it does not hang
            dist.all_reduce(values(rank, 10, 8, 64), group=group)
    return text


@pytest.mark.parametrize("transport", ["shm", "inner"])
def test_ranks_that_disagree_all_get_an_error_that_names_both_sides(pool: Pool, transport: str) -> None:  # D1
    for text in pool.run(_mismatch, transport):
        assert "512" in text, text
        assert "1024" in text, text
        assert "rank" in text, text


def _different_configs(rank: int) -> None:
    with pytest.raises(EchoMismatchError, match="EchoConfig"):
        echo_group(3, hidden_size=64, bits=4 if rank else 5)


def test_different_settings_are_refused_when_the_group_is_configured(pool: Pool) -> None:
    pool.run(_different_configs)


def _no_shared_memory(rank: int) -> str:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise EchoSystemError("shm: /dev/shm is full", 7)

    real = route.Communicator
    if rank == 1:
        route.Communicator = refuse  # type: ignore[assignment, misc]
    try:
        group = echo_group(3, hidden_size=64, timeout_s=2.0)
        assert group is not None
        x = values(rank, 12, 8, 64)
        dist.all_reduce(x, group=group)
        assert same_on_all_ranks(x, group)
        return f"{group.stats().route}: {group.stats().route_reason}"
    finally:
        route.Communicator = real  # type: ignore[misc]


def test_without_shared_memory_all_ranks_take_the_inner_route_and_say_so(pool: Pool) -> None:  # E3
    told = pool.run(_no_shared_memory)
    assert len(set(told)) == 1
    assert told[0].startswith("inner: rank"), told[0]
