"""What happened to the all-reduces of a group, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class Stats:
    """Counters of a group on this rank; they only grow. Two snapshots subtract.

    calls             all-reduces = coded + all forwarded ones
    forwarded         calls handed to the inner group untouched, by reason
    passes, flushes   passes begun; last calls of passes, which pay what is owed
    logical_bytes     bytes of the coded tensors
    reference_bytes   bytes that a 16-bit two-shot all-reduce of them sends from one rank: 2 (W-1)/W * n * 2
    payload_bytes     bytes that this rank sent instead: codes, scales and headers
    poisoned_groups   groups of 64 delivered as NaN because a non-finite value was in them
    waits, wait_s     waits for other ranks and the time spent in them (shared memory route)
    residual_bytes    memory of the residuals
    """

    calls: int = 0
    coded: int = 0
    forwarded: Counter[str] = field(default_factory=Counter)
    passes: int = 0
    flushes: int = 0
    logical_bytes: int = 0
    reference_bytes: float = 0.0
    payload_bytes: int = 0
    poisoned_groups: int = 0
    waits: int = 0
    wait_s: float = 0.0
    residual_bytes: int = 0
    route: str = ""
    route_reason: str = ""

    def __sub__(self, earlier: Stats) -> Stats:
        """What happened since `earlier`; route and memory are those of now."""
        result = Stats(route=self.route, route_reason=self.route_reason, residual_bytes=self.residual_bytes)
        for item in fields(Stats):
            if item.name not in ("route", "route_reason", "residual_bytes"):
                setattr(result, item.name, getattr(self, item.name) - getattr(earlier, item.name))
        return result

    @property
    def ratio(self) -> float | None:
        """How many times fewer bytes than 16 bits; None when nothing was sent."""
        return self.reference_bytes / self.payload_bytes if self.payload_bytes else None
