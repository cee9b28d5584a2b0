"""transformers' own tensor parallelism: from_pretrained with tp_plan="auto".

transformers makes the mesh itself, on the default group: so that has the backend echo.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from _recipe import SETTINGS, finish, language_step, small_qwen3, start
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM
from transformers.distributed import DistributedConfig

import echo_comm.torch as echo

options, mesh = start(default_group=True)
with tempfile.TemporaryDirectory() as folder:  # in your code: the model's name or folder
    folders = [folder]
    if dist.get_rank() == 0:
        Qwen3ForCausalLM(small_qwen3(mesh.size())).save_pretrained(folder)
    dist.broadcast_object_list(folders)
    plan = DistributedConfig(tp_plan="auto")
    model: Any = AutoModelForCausalLM.from_pretrained(folders[0], distributed_config=plan, dtype=torch.float32)
    dist.barrier()
group = None
if options.backend == "echo":
    # "pre_norm" costs less and is better; it sums in another order, so exact results would differ in the last bits.
    group = echo.attach(model.model, config=SETTINGS, backward="post_norm").group

finish(options, group, language_step(model))
