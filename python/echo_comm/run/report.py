"""What the command says: phases and progress bars, the two texts, the table, the JSON file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from echo_comm import __version__
from echo_comm.run.job import Job, UsageError

if TYPE_CHECKING:
    from echo_comm.run.evaluate import Measured
    from echo_comm.run.generate import Texts
    from echo_comm.torch import EchoProcessGroup

T = TypeVar("T")


class Progress:
    """Rank 0 tells what it does: a bar on a terminal, else one line for each phase."""

    def __init__(self, speaks: bool) -> None:
        self.bars = speaks and sys.stderr.isatty()
        self._speaks = speaks

    def phase(self, what: str) -> None:
        """Begins a phase."""
        if self._speaks:
            print(f"{what} ...", flush=True)

    def bar(self, items: Iterable[T], what: str) -> Iterable[T]:
        """The items, with a bar on a terminal."""
        from tqdm import tqdm

        return tqdm(items, desc=what, leave=False, disable=not self.bars)


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def show(job: Job, group: EchoProcessGroup, texts: Texts, measured: Measured) -> None:
    """Prints the result and writes the JSON file."""
    m, passes = measured, -(-measured.tokens // job.window)
    ratio = m.reference_bytes / m.payload_bytes if m.payload_bytes else None
    stats = group.stats()
    rows = [
        ("ranks", f"{job.tp}, route {stats.route or 'none'} ({stats.route_reason or 'one rank'})"),
        ("calls per pass", f"{m.calls_per_pass:g}"),
        ("bytes per token, 16 bits", f"{m.reference_bytes / m.tokens:,.0f} sent by each rank"),
        ("bytes per token, Echo", f"{m.payload_bytes / m.tokens:,.0f}, headers and flush included"),
        ("ratio", f"{ratio:.2f} times fewer" if ratio else "nothing was sent"),
        ("KL(exact || Echo)", f"{m.kl:.5f} nats per token, {m.tokens} tokens in {passes} windows"),
        ("top-1 agreement", f"{m.top1:.4f}"),
        ("perplexity exact / Echo", f"{m.perplexity_exact:.4f} / {m.perplexity_echo:.4f}"),
        ("time to first token", f"{texts.ttft_exact_s * 1e3:.1f} ms exact / {texts.ttft_echo_s * 1e3:.1f} ms Echo"),
        ("diverged", f"{m.diverged} elements differ between the ranks"),
    ]
    if m.forwarded:
        rows.append(("forwarded", ", ".join(f"{count} {reason}" for reason, count in sorted(m.forwarded.items()))))
    if m.poisoned_groups:
        rows.append(("poisoned groups", f"{m.poisoned_groups}: NaN or infinite values in the model's activations"))
    print(f"\nprompt  {job.prompt}\nexact   {texts.exact}\nEcho    {texts.echo}")
    print(f"\nEcho {__version__}, {job.bits} bits, feedback {job.feedback}, model in {job.dtype}\n{_table(rows)}")
    if job.json_file is not None:
        result = {
            "wire_ratio": ratio,
            "kl": m.kl,
            "top1_agreement": m.top1,
            "diverged": m.diverged,
            "ranks": job.tp,
            "calls_per_pass": round(m.calls_per_pass),
            "ttft_exact_s": texts.ttft_exact_s,
            "ttft_echo_s": texts.ttft_echo_s,
        }
        try:
            Path(job.json_file).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--json {job.json_file}: {error.strerror}") from None
    sys.stdout.flush()
