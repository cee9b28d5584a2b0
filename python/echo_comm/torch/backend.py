"""The c10d backend "echo": a process group that codes the all-reduces of activations and forwards all else.

An all-reduce is coded when it passes every line of `EchoProcessGroup._reason_to_forward`; every other collective goes
to the inner group untouched. The decision depends only on values that are equal on all ranks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from echo_comm._library import EchoArgumentError, library_version
from echo_comm.torch.config import EchoConfig
from echo_comm.torch.ops import DTYPES
from echo_comm.torch.route import Call, Route, RouteCounters, algorithm_for, open_route
from echo_comm.torch.stats import Stats

if TYPE_CHECKING:
    from echo_comm.torch.passes import Pass

logger = logging.getLogger("echo_comm")

BACKEND = "echo"

_exact = threading.local()


@contextmanager
def exact() -> Iterator[None]:
    """Within it, this thread's calls are all forwarded: the reference run. Enter it on all ranks alike."""
    _exact.depth = getattr(_exact, "depth", 0) + 1
    try:
        yield
    finally:
        _exact.depth -= 1


def _finished(tensors: list[Tensor]) -> dist.Work:
    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[no-any-return]


class EchoProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group over an inner gloo group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        inner_store = dist.PrefixStore("inner/", store)
        self._gloo = dist.ProcessGroupGloo(inner_store, rank, size, timeout)
        cpu, kind = torch.device("cpu"), dist.ProcessGroup.BackendType
        # Methods that Python cannot override, or that are not listed below, find the inner backend in the base class.
        self._set_default_backend(kind.CUSTOM)
        self._register_backend(cpu, kind.CUSTOM, self._gloo)
        # The overridable ones must be: the base class would run them while it holds the GIL, which the inner
        # backend's threads need to finish.
        self._inner = dist.ProcessGroup(inner_store, rank, size)
        self._inner._set_default_backend(kind.GLOO)
        self._inner._register_backend(cpu, kind.GLOO, self._gloo)

        self._rank, self._size = rank, size
        self._config = EchoConfig.from_env()
        self._hidden_size = self._config.hidden_size
        self._route: Route | None = None
        self._stats = Stats()
        self.active: Pass | None = None  # the pass that is open, set by attach()'s hooks

    # ---- settings ------------------------------------------------------------------------------

    @property
    def config(self) -> EchoConfig:
        """Settings in force."""
        return self._config

    @property
    def hidden_size(self) -> int | None:
        """Length of the rows that are coded; None: everything is forwarded."""
        return self._hidden_size

    def configure(self, config: EchoConfig, hidden_size: int | None = None) -> None:
        """Replaces the settings, on all ranks alike. Those of the route are fixed once it is open."""
        if self._route is not None:
            for name in ("transport", "batch_invariant", "timeout_s", "name"):
                old, new = getattr(self._config, name), getattr(config, name)
                if old != new:
                    raise ValueError(f"EchoConfig: {name} is {new!r}, but the group is open already with {old!r}")
        self._config = config
        self._hidden_size = config.hidden_size or hidden_size

    def open(self) -> Route | None:
        """Chooses and opens the route; the first coded call does it too. Collective. None for one rank."""
        if self._route is None and self._size > 1:
            config = self._config
            self._route, reason = open_route(self._gloo, self._rank, self._size, config)
            self._stats.route, self._stats.route_reason = self._route.name, reason
            if self._rank == 0:
                logger.info(
                    "echo %s: route %s (%s), %d ranks, %d bits (flush %d) in groups of 64, rotation %s, feedback %s, "
                    "batch invariant %s; forwarded: under %d bytes, rows other than %s",
                    library_version(),
                    self._route.name,
                    reason,
                    self._size,
                    config.bits,
                    config.flush_bits,
                    "on" if config.rotation else "off",
                    config.feedback,
                    "on" if config.batch_invariant else "off",
                    config.min_bytes,
                    self._hidden_size or "unknown",
                )
        return self._route

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        sent = self._route.counters() if self._route else RouteCounters()
        snapshot = Stats(**vars(self._stats))
        snapshot.forwarded = self._stats.forwarded.copy()
        snapshot.payload_bytes, snapshot.poisoned_groups = sent.payload_bytes, sent.poisoned_groups
        snapshot.waits, snapshot.wait_s = sent.waits, sent.wait_s
        return snapshot

    # ---- all-reduce ----------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Sums over all ranks, in place: coded, or forwarded."""
        opts = opts if opts is not None else c10d.AllreduceOptions()
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        self._stats.calls += 1
        reason = self._reason_to_forward(tensors, opts)
        if reason:
            self._stats.forwarded[reason] += 1
            return self._inner.allreduce(tensors, opts)
        self._coded(tensors[0])
        return _finished(list(tensors))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Forwarded."""
        self._stats.calls += 1
        self._stats.forwarded["coalesced"] += 1
        return self._inner.allreduce_coalesced(tensors, opts if opts is not None else c10d.AllreduceCoalescedOptions())

    def _reason_to_forward(self, tensors: list[Tensor], opts: Any) -> str:
        config = self._config
        if self._size == 1:
            return "one_rank"
        if config.disable:
            return "disabled"
        if getattr(_exact, "depth", 0):
            return "exact"
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        if getattr(opts, "reduceOp", None) != dist.ReduceOp.SUM:
            return "op"
        if len(tensors) != 1:
            return "several_tensors"
        x = tensors[0]
        if x.device.type != "cpu" or x.layout != torch.strided:
            return "device"
        if x.dtype not in DTYPES:
            return "dtype"
        if x.numel() == 0:
            return "empty"
        if x.numel() * x.element_size() < config.min_bytes:
            return "min_bytes"
        if self._hidden_size is None:
            return "no_hidden_size"
        if x.dim() == 0 or x.shape[-1] != self._hidden_size:
            return "row_length"
        if self.active is not None and not self.active.fits(x):
            return "other_shape"
        return ""

    def _coded(self, x: Tensor) -> None:
        config, count, row = self._config, x.numel(), x.shape[-1]
        if any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True)):
            raise EchoArgumentError(
                f"all_reduce: the tensor overlaps itself (shape {tuple(x.shape)}, strides {x.stride()}); "
                "pass a contiguous copy"
            )
        route = self.open()
        assert route is not None
        state, flush = None, False
        if self.active is not None:
            state, flush = self.active.next_site(x, route, with_feedback=config.feedback == "on")
        bits = config.flush_bits if flush else config.bits
        algorithm = algorithm_for(count, row, bits, self._size, config.batch_invariant)
        dense = x.detach().contiguous()  # rows in order; a strided tensor is written back below
        route.all_reduce(dense, Call(row, bits, flush, config.rotation, algorithm), state)
        if dense.data_ptr() != x.data_ptr() or not x.is_contiguous():
            x.detach().copy_(dense)

        stats = self._stats
        stats.coded += 1
        stats.flushes += flush
        stats.logical_bytes += count * x.element_size()
        stats.reference_bytes += 2 * (self._size - 1) / self._size * count * 2
        stats.residual_bytes = state.bytes if state is not None else stats.residual_bytes

    def pass_begun(self) -> None:
        """Counts a pass."""
        self._stats.passes += 1

    # ---- the rest of the process group ---------------------------------------------------------

    def getBackendName(self) -> str:
        """Name for torch."""
        return BACKEND

    def shutdown(self) -> None:
        """Leaves the route and the inner group."""
        self._route = None
        self._gloo.shutdown()


def _forwarding(name: str) -> Any:
    def method(self: EchoProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, "Forwarded."
    return method


for _name in (
    "allgather",
    "allgather_into_tensor_coalesced",
    "alltoall_base",
    "barrier",
    "broadcast",
    "recv",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "send",
):
    setattr(EchoProcessGroup, _name, _forwarding(_name))


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> EchoProcessGroup:
    return EchoProcessGroup(store, rank, size, timeout)


def register() -> None:
    """Makes torch.distributed know the backend "echo". importing echo_comm.torch does it."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
