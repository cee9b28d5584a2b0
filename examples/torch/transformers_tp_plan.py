"""transformers' own tensor parallelism: from_pretrained with tp_plan="auto".

transformers makes the mesh itself, on the default group: so that has the backend echo.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from _recipe import SETTINGS, finish, start
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.distributed import DistributedConfig

import echo_comm.torch as echo

options, mesh = start(default_group=True)
size = mesh.size()
config = Qwen3Config(
    hidden_size=192,
    intermediate_size=192 * size,
    num_hidden_layers=3,
    num_attention_heads=2 * size,
    num_key_value_heads=size,
    head_dim=32,
    vocab_size=256,
)
with tempfile.TemporaryDirectory() as folder:  # in your code: the model's name or folder
    folders = [folder]
    if dist.get_rank() == 0:
        Qwen3ForCausalLM(config).save_pretrained(folder)
    dist.broadcast_object_list(folders)
    plan = DistributedConfig(tp_plan="auto")
    model: Any = AutoModelForCausalLM.from_pretrained(folders[0], distributed_config=plan, dtype=torch.float32)
    dist.barrier()
group = None
if options.backend == "echo":
    # "pre_norm" costs less and is better; it sums in another order, so exact results would differ in the last bits.
    group = echo.attach(model.model, config=SETTINGS, backward="post_norm").group

ids = torch.arange(64).reshape(1, 64) * 7 % 256


def step() -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    output = model(ids, labels=ids)
    output.loss.backward()
    return output.logits, [parameter.grad for parameter in model.parameters()]


finish(options, group, step)
