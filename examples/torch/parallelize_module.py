"""torch's parallelize_module on a Qwen3-type model: one line for the mesh, one for the model."""

from __future__ import annotations

from typing import Any

import torch
from _recipe import SETTINGS, finish, start
from torch import Tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import Qwen3Config, Qwen3ForCausalLM

import echo_comm.torch as echo

options, mesh = start()
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
model: Any = Qwen3ForCausalLM(config)
group = mesh.get_group("tp")
for layer in model.model.layers:
    plan = {
        **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ColwiseParallel()),
        **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), ColwiseParallel()),
        **dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), RowwiseParallel()),
    }
    parallelize_module(layer, mesh, plan, src_data_rank=None)
    # Qwen3's norms of queries and keys see this rank's heads only: their gradients are sums, too.
    echo.sum_gradients([layer.self_attn.q_norm.weight, layer.self_attn.k_norm.weight], group)
if options.backend == "echo":
    echo.attach(model.model, group, SETTINGS, backward="post_norm")

ids = torch.arange(64).reshape(1, 64) * 7 % 256


def step() -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    output = model(ids, labels=ids)
    output.loss.backward()
    return output.logits, [parameter.grad for parameter in model.parameters()]


finish(options, group, step)
