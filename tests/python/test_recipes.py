"""The recipes of examples/torch, each as a user runs it: exact as on Gloo, bit for bit, and near when coded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")

FOLDER = Path(__file__).parents[2] / "examples" / "torch"
# Largest errors of outputs and gradients, relative; sums in backward passes.
RECIPES = {
    "parallelize_module": (0.15, 0.2, 15),
    "transformers_tp_plan": (0.15, 0.2, 15),
    "megatron_pair": (0.1, 0.15, 4),
    "sequence_parallel": (0.1, 0.25, 8),
    "data_parallel": (0.0, 0.25, 0),
}


def _run(recipe: str, ranks: int, backend: str) -> Any:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    done = subprocess.run(
        [*command, str(FOLDER / f"{recipe}.py"), "--backend", backend],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str, ranks: int) -> None:
    if "transformers" in (FOLDER / f"{recipe}.py").read_text(encoding="utf-8"):
        pytest.importorskip("transformers")
    gloo, report = (_run(recipe, ranks, name) for name in ("gloo", "echo"))
    assert report["exact"] == gloo["exact"]
    print(report)
    output_error, gradient_error, backward = RECIPES[recipe]
    assert report["output_error"] <= output_error
    assert 0 < report["gradient_error"] <= gradient_error
    assert report["ranks_agree"]
    assert report["coded_in_backward"] == backward
    assert report["coded"] > backward
    assert report["times_fewer_bytes"] > 2.5
