"""Both runs on the same text: how far the distributions of the next token are apart, and what was sent for it.

The text is Python's own documentation of its topics (pydoc_data.topics): on every host that has Python, public, and
equal for equal Python versions. One window is one pass. Each rank judges its share of the positions of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from echo_comm.run.generate import broadcast_ids
from echo_comm.run.job import Job, UsageError
from echo_comm.run.report import Progress
from echo_comm.torch import EchoProcessGroup, exact

_CHARACTERS_PER_TOKEN = 8  # more than any text needs; only bounds what is tokenised


@dataclass
class Measured:
    """Over the whole evaluation. kl: mean KL(exact || Echo) per token in nats."""

    tokens: int
    kl: float
    top1: float
    perplexity_exact: float
    perplexity_echo: float
    diverged: int
    calls_per_pass: float
    reference_bytes: float
    payload_bytes: float
    forwarded: dict[str, int]
    poisoned_groups: int


def text() -> str:
    """The evaluation text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _judge(network: nn.Module, exact_hidden: Tensor, echo_hidden: Tensor, ids: Tensor) -> Tensor:
    """Sums over this rank's positions: KL, equal top-1, both negative log likelihoods, positions with a next token."""
    rank, size, length = dist.get_rank(), dist.get_world_size(), ids.shape[1]
    begin, end = length * rank // size, length * (rank + 1) // size
    p, q = (
        torch.log_softmax(network.lm_head(hidden[0, begin:end]).float(), dim=-1)  # type: ignore[operator]
        for hidden in (exact_hidden, echo_hidden)
    )
    targets = ids[0, begin + 1 : min(end + 1, length)]
    rows = torch.arange(targets.numel())
    return torch.stack(
        [
            (p.exp() * (p - q)).sum(dtype=torch.float64),
            (p.argmax(-1) == q.argmax(-1)).sum().double(),
            -p[rows, targets].sum(dtype=torch.float64),
            -q[rows, targets].sum(dtype=torch.float64),
            torch.tensor(float(targets.numel()), dtype=torch.float64),
        ]
    )


def _diverged(hidden: Tensor) -> int:
    """Elements whose bits differ between any rank and rank 0."""
    bits = hidden.contiguous().view(torch.int32 if hidden.element_size() == 4 else torch.int16).int()
    everyone = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, bits)
    differs = torch.zeros(bits.shape, dtype=torch.bool)
    for other in everyone[1:]:
        differs |= other != everyone[0]
    return int(differs.sum())


def compare(job: Job, network: nn.Module, tokenizer: Any, group: EchoProcessGroup, said: Progress) -> Measured:
    """The exact and the coded run over the text. Collective."""
    ids = None
    if tokenizer:
        part = text()[: job.eval_tokens * _CHARACTERS_PER_TOKEN]
        ids = tokenizer(part, verbose=False)["input_ids"][: job.eval_tokens]
    tokens = broadcast_ids(ids)
    if tokens.shape[1] < job.eval_tokens:
        raise UsageError(f"--eval-tokens {job.eval_tokens}: the text has {tokens.shape[1]} tokens; ask for fewer")

    sums, diverged = torch.zeros(5, dtype=torch.float64), 0
    windows = [window for window in tokens.split(job.window, dim=1) if window.shape[1] > 1]
    judged = sum(window.shape[1] for window in windows)
    before, coded_passes = group.stats(), 0
    said.phase(f"evaluating {judged} tokens in windows of {job.window}")
    for window in said.bar(windows, "evaluating"):
        with exact():
            expected = network.model(input_ids=window, use_cache=False).last_hidden_state  # type: ignore[operator, union-attr]
        coded = network.model(input_ids=window, use_cache=False).last_hidden_state  # type: ignore[operator, union-attr]
        coded_passes += 1
        diverged += _diverged(coded)
        sums += _judge(network, expected, coded, window)
    spent = group.stats() - before
    sent = torch.tensor([spent.reference_bytes, float(spent.payload_bytes)], dtype=torch.float64)
    dist.all_reduce(sums)
    dist.all_reduce(sent)
    kl, top1, exact_loss, echo_loss, targets = sums.tolist()
    spent.forwarded.pop("exact", None)  # the reference run
    return Measured(
        tokens=judged,
        kl=kl / judged,
        top1=top1 / judged,
        perplexity_exact=exp(exact_loss / targets),
        perplexity_echo=exp(echo_loss / targets),
        diverged=diverged,
        calls_per_pass=(spent.coded + sum(spent.forwarded.values())) / coded_passes,
        reference_bytes=float(sent[0]) / job.tp,
        payload_bytes=float(sent[1]) / job.tp,
        forwarded=dict(+spent.forwarded),
        poisoned_groups=spent.poisoned_groups,
    )
