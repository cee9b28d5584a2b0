"""Greedy generation with and without Echo, and the time to the first token."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import signature
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from echo_comm.run.job import Job, UsageError
from echo_comm.run.report import Progress
from echo_comm.torch import exact

_REPEATS = 5


@dataclass
class Texts:
    """What both runs wrote after the prompt, and the median time to the first token in seconds."""

    exact: str = ""
    echo: str = ""
    ttft_exact_s: float = 0.0
    ttft_echo_s: float = 0.0


def broadcast_ids(ids: list[int] | None) -> Tensor:
    """Token ids of rank 0 on all ranks, [1, n]."""
    box = [ids]
    dist.broadcast_object_list(box, src=0)
    return torch.tensor([box[0]])


def _next_token(network: nn.Module, hidden: Tensor) -> Tensor:
    """Chosen by rank 0, so that the ranks can never disagree."""
    token = torch.zeros(1, 1, dtype=torch.int64)
    if dist.get_rank() == 0:
        token[0, 0] = network.lm_head(hidden[:, -1]).argmax()  # type: ignore[operator]
    dist.broadcast(token, src=0)
    return token


def _cache_argument(network: nn.Module) -> str:
    """transformers renames it in 5.24."""
    return "cache" if "cache" in signature(network.model.forward).parameters else "past_key_values"  # type: ignore[union-attr]


def _generate(network: nn.Module, prompt: Tensor, count: int, end: int | None) -> tuple[list[int], float]:
    from transformers import DynamicCache

    cache = {_cache_argument(network): DynamicCache(config=network.config)}
    tokens: list[int] = []
    first_s = 0.0
    ids, start = prompt, time.perf_counter()
    while len(tokens) < count:
        output = network.model(input_ids=ids, **cache, use_cache=True)  # type: ignore[operator, union-attr]
        ids = _next_token(network, output.last_hidden_state)
        tokens.append(int(ids))
        first_s = first_s or time.perf_counter() - start
        if tokens[-1] == end:
            break
    return tokens, first_s


def compare(job: Job, network: nn.Module, tokenizer: Any, said: Progress) -> Texts:
    """Both runs on the prompt. Collective; the texts are on rank 0."""
    ids = tokenizer(job.prompt)["input_ids"] if tokenizer else None
    if tokenizer and not ids:
        raise UsageError("--prompt gives no tokens; give at least one word")
    prompt = broadcast_ids(ids)
    end = getattr(network.config, "eos_token_id", None)
    said.phase("generating")

    def run(mode: AbstractContextManager[None], count: int) -> tuple[list[int], float]:
        with mode:
            dist.barrier()
            return _generate(network, prompt, count, end)

    exact_tokens, _ = run(exact(), job.tokens)
    echo_tokens, _ = run(nullcontext(), job.tokens)
    times = [(run(exact(), 1)[1], run(nullcontext(), 1)[1]) for _ in range(_REPEATS)]  # interleaved
    texts = Texts(ttft_exact_s=median(a for a, _ in times), ttft_echo_s=median(b for _, b in times))
    if tokenizer:
        texts.exact, texts.echo = (tokenizer.decode(t, skip_special_tokens=True) for t in (exact_tokens, echo_tokens))
    return texts
