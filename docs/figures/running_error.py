"""Error of the running sum over one pass, with and without feedback, on recorded partial sums of a real model.

    scripts/env python docs/figures/running_error.py          writes running_error.svg beside this file

Needs traces/smollm2_135m_tp4_t32.npy under ECHO_DATA: what each of four ranks adds in the 60 all-reduces of one
forward pass. All four ranks are simulated here with the operators that the process group uses.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from echo_comm.torch import ops


def load() -> torch.Tensor:
    """Partial sums [60 calls, 4 ranks, elements], fp32."""
    file = Path(os.environ.get("ECHO_DATA", "../shared/data")) / "traces" / "smollm2_135m_tp4_t32.npy"
    if not file.exists():
        sys.exit(f"no recorded partial sums at {file}; set ECHO_DATA")
    bits = np.load(file).astype(np.uint32) << 16
    return torch.from_numpy(bits.view(np.float32)).flatten(2)


def two_shot(inputs: torch.Tensor, bits: int, residuals: list[ops.Residuals | None]) -> torch.Tensor:
    """The sum that every rank receives."""
    size, count = inputs.shape
    groups = ops.groups_of(count)
    chunks = [ops.chunk(groups, size, rank) for rank in range(size)]
    out = torch.empty(count)
    for owner, own in enumerate(chunks):
        sent = [
            torch.empty(0, dtype=torch.uint8)
            if rank == owner
            else ops.encode(inputs[rank], own, bits=bits, residuals=residuals[rank])
            for rank in range(size)
        ]
        total = ops.reduce(sent, inputs[owner], owner, own, bits=bits, residuals=residuals[owner])
        ops.decode(out, [total], own, bits=bits)
    return out


def relative_errors(traces: torch.Tensor, *, feedback: bool, flush_bits: int | None = None) -> list[float]:
    """|running sum - exact| / |exact| after each call."""
    calls, size, count = traces.shape
    groups = ops.groups_of(count)
    residuals = [ops.Residuals.zeros(groups, size, rank) if feedback else None for rank in range(size)]
    exact, running, errors = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64), []
    for site in range(calls):
        bits = flush_bits if flush_bits and site == calls - 1 else 4
        running += two_shot(traces[site].contiguous(), bits, residuals)
        exact += traces[site].double().sum(0)
        errors.append(float((running - exact).norm() / exact.norm()))
    return errors


def main() -> None:
    """Draws the figure and prints its end points."""
    traces = load()
    curves = {
        "4 bits, no feedback": relative_errors(traces, feedback=False),
        "4 bits, feedback": relative_errors(traces, feedback=True),
        "4 bits, feedback, 8-bit flush": relative_errors(traces, feedback=True, flush_bits=8),
    }
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    for (name, errors), color in zip(curves.items(), ("#b03a2e", "#7f8c8d", "#1f618d"), strict=True):
        axes.semilogy(range(1, len(errors) + 1), errors, label=f"{name}: {errors[-1]:.4f} at the end", color=color)
        print(f"{name}: {errors[-1]:.5f}")
    axes.set_xlabel("call of the pass (two per layer)")
    axes.set_ylabel("error of the residual stream, relative")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "echo"
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
