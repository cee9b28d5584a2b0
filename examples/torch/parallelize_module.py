"""torch's parallelize_module on a Qwen3-type model: one line for the mesh, one for the model."""

from __future__ import annotations

from typing import Any

from _recipe import SETTINGS, finish, language_step, small_qwen3, start
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import Qwen3ForCausalLM

import echo_comm.torch as echo

options, mesh = start()
model: Any = Qwen3ForCausalLM(small_qwen3(mesh.size()))
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

finish(options, group, language_step(model))
