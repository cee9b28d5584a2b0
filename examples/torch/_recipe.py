"""What the recipes share: a group of torchrun's processes on Gloo or Echo, and the comparison of exact and coded.

Run a recipe by

    torchrun --nproc-per-node 2 examples/torch/RECIPE.py [--backend echo|gloo]

Prints JSON: digests of the exact results of each rank (equal on both backends) and, on Echo, what coding changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import echo_comm.torch as echo

SETTINGS = echo.EchoConfig(min_bytes=0)  # the models here are small; the default floor is 64 KiB


def start(default_group: bool = False) -> tuple[argparse.Namespace, DeviceMesh]:
    """Joins the processes; a mesh of one dimension, "tp", on the backend that was asked for.

    default_group: the backend is that of the default group, too, for code that makes its meshes itself.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("echo", "gloo"), default="echo")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(options.backend if default_group else "gloo")
    size = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",), backend_override={"tp": options.backend})
    return options, mesh


def small_qwen3(ranks: int) -> Any:
    """Settings of a Qwen3-type model whose heads and width can be cut over the ranks."""
    from transformers import Qwen3Config

    return Qwen3Config(
        hidden_size=192,
        intermediate_size=192 * ranks,
        num_hidden_layers=3,
        num_attention_heads=2 * ranks,
        num_key_value_heads=ranks,
        head_dim=32,
        vocab_size=256,
    )


def language_step(model: Any) -> Callable[[], tuple[Tensor, list[Tensor]]]:
    """A training step of a language model on one text: its logits and gradients."""
    ids = torch.arange(64).reshape(1, 64) * 7 % 256

    def step() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        output = model(ids, labels=ids)
        output.loss.backward()
        return output.logits, [parameter.grad for parameter in model.parameters()]

    return step


def _local(x: Tensor) -> Tensor:
    return (x.to_local() if isinstance(x, DTensor) else x).detach().clone()


def _digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in tensors)).hexdigest()[:16]


def _error(coded: list[Tensor], exact: list[Tensor]) -> float:
    sums = torch.zeros(2, dtype=torch.float64)
    for a, b in zip(coded, exact, strict=True):
        sums += torch.stack([(a.double() - b.double()).square().sum(), b.double().square().sum()])
    dist.all_reduce(sums)
    return float((sums[0] / sums[1]).sqrt())


def finish(options: argparse.Namespace, group: Any, step: Callable[[], tuple[Tensor, list[Tensor]]]) -> None:
    """Calls `step` (forward and backward; returns the output and the gradients) exactly and coded, and compares."""

    def run() -> tuple[Tensor, list[Tensor]]:
        output, gradients = step()
        return _local(output), [_local(gradient) for gradient in gradients]

    with echo.exact():
        run()  # frameworks may do their sums in another order the first time
        output, gradients = run()
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, _digest([output, *gradients]))
    report: dict[str, Any] = {"backend": options.backend, "exact": digests}
    if isinstance(group, echo.EchoProcessGroup):
        run()  # learns how many sums a pass has
        before = group.stats()
        coded, coded_gradients = run()
        spent = group.stats() - before
        outputs: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(outputs, _digest([coded]))
        report |= {
            "output_error": _error([coded], [output]),
            "gradient_error": _error(coded_gradients, gradients),
            "ranks_agree": len(set(outputs)) == 1,
            "coded": spent.coded,
            "coded_in_backward": spent.backward,
            "forwarded": dict(spent.forwarded),
            "times_fewer_bytes": spent.ratio,
        }
    if dist.get_rank() == 0:
        print(json.dumps(report, indent=1))
    dist.barrier()
    dist.destroy_process_group()
