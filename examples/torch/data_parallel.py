"""DistributedDataParallel with the communication hook: gradients in 4 bits, what a step loses is added to the next."""

from __future__ import annotations

import torch
from _recipe import finish, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import echo_comm.torch as echo

options, mesh = start()
group, rank = mesh.get_group("tp"), mesh.get_local_rank()  # here: the data-parallel ranks

model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 16))
parallel = DistributedDataParallel(model, process_group=group)
if options.backend == "echo":
    state = echo.DDPState(group)  # state.state_dict() belongs into the checkpoint
    parallel.register_comm_hook(state, echo.ddp_hook)
data = torch.randn(32, 128, generator=torch.Generator().manual_seed(rank))
common = torch.randn(8, 128)


def step() -> tuple[Tensor, list[Tensor]]:
    parallel.zero_grad()
    parallel(data).square().mean().backward()
    with torch.no_grad():
        output = model(common)
    return output, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


finish(options, group, step)
