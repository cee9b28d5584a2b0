"""The communication hook of DistributedDataParallel: averages, feedback across steps, checkpoints, changed buckets."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pool import Pool

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
import echo_comm.torch as echo
from echo_comm import EchoArgumentError
from group_helpers import echo_group, same, same_on_all_ranks, values

TRANSPORTS = ("shm", "inner")


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 7))


def _parallel(group: Any, state: echo.DDPState | None, megabytes: float = 0.1) -> DistributedDataParallel:
    module = DistributedDataParallel(_module(), process_group=group, bucket_cap_mb=megabytes)
    if state is not None:
        module.register_comm_hook(state, echo.ddp_hook)
    return module


def _step(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad(set_to_none=True)
    module(x).square().mean().backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).double()


def _feedback(rank: int, transport: str) -> None:
    x = values(rank, 3, 16, 40)
    reference = _parallel(dist.group.WORLD, None)
    for _ in range(2):  # DDP cuts other buckets after its first step, and Gloo's sums depend on them
        plain = _step(reference, x)
    true = _flat(plain)
    errors = {}
    for feedback in (False, True):
        group = echo_group(3, transport=transport)
        assert group is not None
        state = echo.DDPState(group, feedback=feedback)
        module = _parallel(group, state)
        with echo.exact():
            for _ in range(2):
                exactly = _step(module, x)
            assert all(same(a, b) for a, b in zip(exactly, plain, strict=True))
        total = torch.zeros_like(true)
        for _ in range(30):
            gradients = _step(module, x)
            assert all(same_on_all_ranks(gradient, group) for gradient in gradients[:1])
            total += _flat(gradients)
        assert group.stats().coded >= 60, "several buckets"
        assert 0 < float((_flat(gradients) - true).norm() / true.norm()) < 0.2
        errors[feedback] = float((total - 30 * true).norm() / true.norm())
    # The same gradient thirty times: without feedback errors pile up, with it that of a step is left.
    assert errors[True] < 0.2 < 1.5 < errors[False], errors


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_step_loses_reaches_the_weights_in_the_next(pool: Pool, transport: str) -> None:
    pool.run(_feedback, transport)


def _checkpoint(rank: int, transport: str) -> None:
    group = echo_group(3, transport=transport)
    assert group is not None
    xs = [values(rank, seed, 16, 40) for seed in range(8)]
    state = echo.DDPState(group)
    module = _parallel(group, state)
    for x in xs[:4]:
        _step(module, x)
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    expected = [_step(module, x) for x in xs[4:]]

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = echo.DDPState(group)
    again.load_state_dict(saved)
    other = _parallel(group, again)
    # The first step of a new module has DDP's first buckets; the saved ones come with its second step.
    with echo.exact():
        _step(other, xs[0])
    for gradients, x in zip(expected, xs[4:], strict=True):
        assert all(same(a, b) for a, b in zip(_step(other, x), gradients, strict=True))
    assert again.state_dict()["buckets"].keys() == saved["buckets"].keys()

    with pytest.raises(EchoArgumentError, match=f"saved by rank {(rank + 1) % 3} of 3, this is rank {rank} of 3"):
        again.load_state_dict({**saved, "rank": (rank + 1) % 3})
    assert state.resets <= len(saved["buckets"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_checkpoint_goes_on_with_the_same_bits(pool: Pool, transport: str) -> None:  # G1
    pool.run(_checkpoint, transport)


def _buckets(rank: int) -> None:
    group = echo_group(3)
    assert group is not None
    x = values(rank, 3, 16, 40)
    state = echo.DDPState(group)
    _step(_parallel(group, state, 25.0), x)
    assert state.resets == 0
    module = _parallel(group, state, 0.1)
    for _ in range(2):  # the second step has other buckets under the same numbers
        _step(module, x)
    assert state.resets >= 1
    for dtype in (torch.float64, torch.bfloat16):
        module = DistributedDataParallel(_module().to(dtype), process_group=group)
        module.register_comm_hook(echo.DDPState(group), echo.ddp_hook)
        before = group.stats()
        gradients = _step(module, x.to(dtype))
        spent = group.stats() - before
        assert bool(spent.coded) == (dtype == torch.bfloat16), spent
        assert all(same_on_all_ranks(gradient, group) for gradient in gradients)
    with pytest.raises(TypeError, match="'gloo'"):
        echo.DDPState(dist.group.WORLD)
    with pytest.raises(ValueError, match="bits is 7"):
        echo.DDPState(group, bits=7)


def test_changed_buckets_start_with_nothing_owed_and_other_types_are_forwarded(pool: Pool) -> None:
    pool.run(_buckets)


def _overflow(rank: int) -> None:
    group = echo_group(3)
    assert group is not None
    module = _parallel(group, echo.DDPState(group))
    x = values(rank, 3, 16, 40)
    for _ in range(3):
        clean = _step(module, x)
    broken = x.clone()
    if rank == 1:
        broken[0, 0] = float("inf")
    assert any(bool(gradient.isnan().any()) for gradient in _step(module, broken))
    after = _step(module, x)  # as a step that a gradient scaler skipped
    assert all(bool(gradient.isfinite().all()) for gradient in after)
    assert float((_flat(after) - _flat(clean)).norm() / _flat(clean).norm()) < 0.3


def test_a_step_that_overflows_leaves_nothing_behind(pool: Pool) -> None:
    pool.run(_overflow)
