"""Sequence parallelism: reduce-scatter behind row-parallel layers, all-gather in front of column-parallel ones.

Between them each rank has its part of the tokens. Feedback is on the reduce-scatter; gathers are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from _recipe import SETTINGS, finish, start
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import echo_comm.torch as echo

HIDDEN = 256

options, mesh = start()
group, rank, size = mesh.get_group("tp"), mesh.get_local_rank(), mesh.size()


class Feed(nn.Module):
    """The part between gather and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 12 * HIDDEN, bias=False), nn.Linear(12 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


class Layer(nn.Module):
    """A residual layer on this rank's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.feed = nn.RMSNorm(HIDDEN), Feed()

    def forward(self, x: Any) -> Any:
        return x + self.feed(self.norm(x))


model = nn.Sequential(*(Layer() for _ in range(4)))
for layer in model:
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "feed": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
        "feed.up": ColwiseParallel(),
        "feed.down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }
    parallelize_module(layer, mesh, plan, src_data_rank=None)
if options.backend == "echo":
    echo.attach(model, group, SETTINGS, backward="post_norm")
data = torch.randn(16 * size, HIDDEN).chunk(size)[rank].clone()


def step() -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    x = data.clone().requires_grad_()
    output = model(DTensor.from_local(x, mesh, [Shard(0)], run_check=False))
    output.to_local().square().mean().backward()
    return output.full_tensor(), [
        gradient for gradient in (x.grad, *(p.grad for p in model.parameters())) if gradient is not None
    ]


finish(options, group, step)
