"""What happened to the calls of a group, and why."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field, fields

# What is a state of now, not a count: a difference of two snapshots takes it from the later one.
_STATES = ("route", "route_reason", "residual_bytes", "residual_norms")


@dataclass
class Stats:
    """Counters of a group on this rank; they only grow. Two snapshots subtract.

    calls             calls of c10d on the group = coded + all forwarded ones
    collectives       coded calls by collective: all_reduce, reduce_scatter, all_gather
    forwarded         calls handed to the inner group untouched, by reason (docs/pytorch.md)
    forwarded_bytes   bytes of their tensors on this rank, by reason
    backward          coded calls that were made in backward passes
    passes, backward_passes, flushes   passes begun; last calls of passes, which pay what is owed
    resets            how often residuals were set to zero: first calls of passes with feedback
    logical_bytes     bytes of the coded tensors, whole
    reference_bytes   bytes that one rank sends for them in 16 bits: 2 (W-1)/W * n * 2 for a two-shot all-reduce,
                      half of that for a reduce-scatter or an all-gather
    payload_bytes     bytes that this rank sent instead: codes, scales and headers
    poisoned_groups   groups of 64 delivered as NaN because a non-finite value was in them
    waits, wait_s     waits for other ranks and the time spent in them (shared memory route)
    residual_bytes    memory of the residuals
    residual_norms    what is owed right now: largest magnitude in the sender and in the owner residual of the pass
                      that made the last coded call; 0 after a flush
    """

    calls: int = 0
    coded: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    forwarded: Counter[str] = field(default_factory=Counter)
    forwarded_bytes: Counter[str] = field(default_factory=Counter)
    backward: int = 0
    passes: int = 0
    backward_passes: int = 0
    flushes: int = 0
    resets: int = 0
    logical_bytes: int = 0
    reference_bytes: float = 0.0
    payload_bytes: int = 0
    poisoned_groups: int = 0
    waits: int = 0
    wait_s: float = 0.0
    residual_bytes: int = 0
    residual_norms: tuple[float, float] = (0.0, 0.0)
    route: str = ""
    route_reason: str = ""

    def copy(self) -> Stats:
        """A snapshot."""
        return deepcopy(self)

    def __sub__(self, earlier: Stats) -> Stats:
        """What happened since `earlier`; route, memory and norms are those of now."""
        result = Stats()
        for item in fields(Stats):
            now, then = getattr(self, item.name), getattr(earlier, item.name)
            setattr(result, item.name, now if item.name in _STATES else now - then)
        return result

    @property
    def ratio(self) -> float | None:
        """How many times fewer bytes than 16 bits; None when nothing was sent."""
        return self.reference_bytes / self.payload_bytes if self.payload_bytes else None
