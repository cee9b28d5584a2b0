"""Layers in the manner of Megatron-LM, with its f and g: f in front of the norm, where feedback works best."""

from __future__ import annotations

import torch
from _recipe import SETTINGS, finish, start
from torch import Tensor, nn

import echo_comm.torch as echo

HIDDEN = 256

options, mesh = start()
group, rank, size = mesh.get_group("tp"), mesh.get_local_rank(), mesh.size()


class Layer(nn.Module):
    """A residual layer: its two matrices are cut over the ranks, its norm is replicated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        up = torch.randn(HIDDEN, 4 * HIDDEN) / HIDDEN**0.5  # the same on all ranks, which keep a part of it
        down = torch.randn(4 * HIDDEN, HIDDEN) / (4 * HIDDEN) ** 0.5
        self.up = nn.Parameter(up.chunk(size, 1)[rank].clone())
        self.down = nn.Parameter(down.chunk(size, 0)[rank].clone())
        # Behind f every rank has a part of the gradient, the norm's included.
        echo.sum_gradients([self.norm.weight], group)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(echo.copy_to_ranks(x, group))  # f
        return x + echo.sum_over_ranks(torch.relu(y @ self.up) @ self.down, group)  # g


model = nn.Sequential(*(Layer() for _ in range(4)))
if options.backend == "echo":
    config = echo.EchoConfig(min_bytes=SETTINGS.min_bytes, hidden_size=HIDDEN)  # nothing here to learn it from
    echo.attach(model, group, config, backward="post_norm")  # sums stay where the code makes them
data = torch.randn(2, 32, HIDDEN)


def step() -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    x = data.clone().requires_grad_()
    output = model(x)
    output.square().mean().backward()
    return output, [gradient for gradient in (x.grad, *(p.grad for p in model.parameters())) if gradient is not None]


finish(options, group, step)
