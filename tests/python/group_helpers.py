"""What tests on ranks share: groups, tensors, a module that makes all-reduces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from echo_comm.torch import EchoConfig, EchoProcessGroup


def echo_group(size: int, **settings: Any) -> EchoProcessGroup | None:
    """A group of the first `size` ranks; None on the others. All ranks must call it."""
    group = dist.new_group(list(range(size)), backend="echo")
    if not isinstance(group, EchoProcessGroup):
        return None
    group.configure(EchoConfig(**{"min_bytes": 0, "timeout_s": 10.0, **settings}))
    return group


def configure_in_turn(group: EchoProcessGroup) -> Iterator[Literal["on", "none"]]:
    """Without feedback, with feedback and a flush of few bits, with a good flush."""
    feedback: Literal["on", "none"]
    for feedback, flush_bits in (("none", 8), ("on", 4), ("on", 8)):
        config = {"min_bytes": 0, "timeout_s": 10.0, "hidden_size": 128, "flush_bits": flush_bits}
        group.configure(EchoConfig(feedback=feedback, **config))
        yield feedback


def values(rank: int, seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values that differ between ranks and seeds."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * seed + rank)).to(dtype)


class Calls(nn.Module):
    """Its forward all-reduces each tensor it is given."""

    def __init__(self, group: EchoProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, xs: list[Tensor | None]) -> list[Tensor]:
        results = []
        for x in xs:
            if x is None:
                raise RuntimeError("broken off")
            x = x.clone()
            dist.all_reduce(x, group=self.group)
            results.append(x)
        return results


def bits(x: Tensor) -> Tensor:
    """The bits of x, so that NaN compares."""
    return x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit."""
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def near(coded: Tensor, true: Tensor, bound: float = 0.15) -> bool:
    """Whether it was coded: not exact, and not far from it."""
    return bool(0 < (coded.double() - true.double()).norm() < bound * true.double().norm())


def plain_sum(x: Tensor, op: Any = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None) -> Tensor:
    """What gloo makes of it."""
    x = x.clone()
    dist.all_reduce(x, op=op, group=group)
    return x


def same_on_all_ranks(x: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether all ranks of the group hold the same bits."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, x, group=group)
    return all(same(x, other) for other in everyone)
