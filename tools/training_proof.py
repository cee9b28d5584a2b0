"""Trains one model with exact and with coded sums, and compares: losses, gradients, agreement of the ranks.

    scripts/env python tools/training_proof.py --out FOLDER [--steps 300] [--tp 2] [--only NAME]
    scripts/env python tools/training_proof.py --out FOLDER --report [--figure FILE.svg]

A Qwen3-type model of 12 layers (192 wide, 5 million weights, bytes as tokens) learns Python's own documentation,
split over --tp processes by torch's parallelize_module, AdamW, fp32. Runs over the same text:

    exact       all sums forwarded
    moved       the same from weights that differ by a thousandth: how far exact runs come apart by themselves
    none        all sums coded with 4 bits, without feedback
    post_norm   with feedback, both ways; sums of gradients where the model makes them
    pre_norm    with feedback, both ways; sums of gradients in front of the norms

At steps 1, 100 and 300 (and the last) the coded gradients are compared with the exact ones of the same weights.
A finished run leaves FOLDER/NAME.json; started again, only the others are run. The report prints the mean loss of the
last 20 steps, its distance from the exact run's, and the errors of the gradients by thirds of the layers.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gradient_error import compare, gradients
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import echo_comm.torch as echo
from echo_comm.run import evaluate, model

RUNS = {
    "exact": ("exact", "on"),
    "moved": ("exact", "on"),
    "none": ("post_norm", "none"),
    "post_norm": ("post_norm", "on"),
    "pre_norm": ("pre_norm", "on"),
}
BATCH, LENGTH, WARM_UP, RATE = 4, 256, 30, 2e-3


def _network() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=12,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            vocab_size=256,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
        )
    ).train()


def _batches(steps: int) -> Tensor:
    text = torch.frombuffer(bytearray(evaluate.text().encode()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(1)
    begins = torch.randint(len(text) - LENGTH, (steps, BATCH), generator=generator)
    return torch.stack([torch.stack([text[begin : begin + LENGTH] for begin in row]) for row in begins]).long()


def _digest(network: Any) -> str:
    """Of the weights that all ranks hold."""
    whole = hashlib.sha256()
    for name, parameter in network.named_parameters():
        if not isinstance(parameter, DTensor):
            whole.update(name.encode() + parameter.detach().numpy().tobytes())
    return whole.hexdigest()


def _gradient_errors(network: Any, ids: Tensor, coded: dict[str, Tensor]) -> dict[str, float]:
    with echo.exact():
        true = gradients(network, ids, contextlib.nullcontext())
    return compare(network, coded, true)


def _train(rank: int, name: str, steps: int, mesh: Any) -> dict[str, Any]:
    backward, feedback = RUNS[name]
    network = _network()
    if name == "moved":
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1 + 1e-3 * torch.randn(parameter.shape))
    decoder = model.split(network, mesh)
    group = mesh.get_group("tp")
    for layer in decoder.layers:  # type: ignore[union-attr]
        heads = (layer.self_attn.q_norm, layer.self_attn.k_norm)  # type: ignore[union-attr]
        echo.sum_gradients([norm.weight for norm in heads], group)  # type: ignore[union-attr, misc]
    config = echo.EchoConfig(min_bytes=0, feedback=feedback, disable=backward == "exact")
    attachment = echo.attach(decoder, group, config, backward=backward)  # type: ignore[arg-type]
    before = attachment.stats()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    losses, errors, began = [], {}, time.monotonic()
    for step, ids in enumerate(_batches(steps), 1):
        for settings in optimizer.param_groups:
            settings["lr"] = RATE * min(1.0, step / WARM_UP)
        optimizer.zero_grad(set_to_none=True)
        loss = network(ids, labels=ids).loss
        loss.backward()
        if backward != "exact" and step in (1, 100, 300, steps):
            kept = {n: p.grad for n, p in network.named_parameters()}
            coded = {
                n: (g.to_local() if isinstance(g, DTensor) else g).clone() for n, g in kept.items() if g is not None
            }
            errors[step] = _gradient_errors(network, ids, coded)
            for n, parameter in network.named_parameters():
                parameter.grad = kept[n]
        optimizer.step()
        losses.append(float(loss.detach()))
        if rank == 0 and step % 20 == 0:
            print(
                f"{name}: step {step}, loss {sum(losses[-20:]) / 20:.4f}, {time.monotonic() - began:.0f} s", flush=True
            )
    stats = attachment.stats() - before
    attachment.remove()
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, (_digest(network), losses))
    return {
        "losses": losses,
        "gradient_errors": errors,
        "ranks_agree": all(digest == digests[0] for digest in digests),
        "coded": stats.coded,
        "backward": stats.backward,
        "forwarded": dict(stats.forwarded),
        "ratio": stats.ratio,
    }


def _rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=options.tp)
    mesh = init_device_mesh("cpu", (options.tp,), mesh_dim_names=("tp",), backend_override={"tp": "echo"})
    for name in [options.only] if options.only else RUNS:
        file = options.out / f"{name}.json"
        done = [file.exists()]
        dist.broadcast_object_list(done)  # rank 0's view counts
        if done[0]:
            continue
        result = _train(rank, name, options.steps, mesh)
        if rank == 0:
            unfinished = file.with_suffix(".part")
            unfinished.write_text(json.dumps(result), encoding="utf-8")
            unfinished.rename(file)
    dist.barrier()
    dist.destroy_process_group()


def _report(options: argparse.Namespace) -> None:
    results = {name: json.loads((options.out / f"{name}.json").read_text(encoding="utf-8")) for name in RUNS}
    last = {name: sum(result["losses"][-20:]) / 20 for name, result in results.items()}
    print("run        loss    over exact  ranks agree  sums coded (backward)  bytes, times fewer")
    for name, result in results.items():
        above = f"{last[name] / last['exact'] - 1:+.2%}"
        sums = f"{result['coded']} ({result['backward']})"
        ratio = f"{result['ratio']:.2f}" if result["ratio"] else "-"
        print(f"{name:9}  {last[name]:.4f}  {above:>10}  {result['ranks_agree']!s:11}  {sums:21}  {ratio}")
    print("\ngradients  step   error   first  middle    last  cosine")
    for name, result in results.items():
        for step, row in result["gradient_errors"].items():
            figures = "  ".join(f"{row[part]:6.4f}" for part in ("all", "first", "middle", "last", "cosine"))
            print(f"{name:9}  {step:>4}  {figures}")
    if options.figure:
        _draw({name: result["losses"] for name, result in results.items()}, options.figure)


def _draw(losses: dict[str, list[float]], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (whole, end) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    styles = {"exact": "-", "moved": "-", "none": ":", "post_norm": "--", "pre_norm": "-."}
    for name, values in losses.items():
        smooth = [sum(values[max(0, at - 9) : at + 1]) / min(10, at + 1) for at in range(len(values))]
        for axes, begin in ((whole, 0), (end, len(values) // 2)):
            axes.plot(range(begin + 1, len(values) + 1), smooth[begin:], styles[name], label=name, linewidth=1.2)
    for axes in (whole, end):
        axes.set_xlabel("step")
        axes.set_ylabel("loss, mean of 10 steps")
        axes.grid(alpha=0.3)
    whole.legend()
    figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None)


def main() -> None:
    """Starts the ranks, or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--only", choices=RUNS)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--figure")
    options = parser.parse_args()
    if options.report:
        return _report(options)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(_rank, (folder, options), nprocs=options.tp, start_method="spawn")
    return None


if __name__ == "__main__":
    main()
