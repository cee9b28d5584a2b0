"""The c10d backend "echo": a process group that codes the sums and gathers of activations and forwards all else.

A call is coded when it passes every line of `EchoProcessGroup._reason_to_forward`; every other call goes to the inner
group untouched (inner.py). The decision depends only on values that are equal on all ranks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from echo_comm._library import EchoStateError, library_version
from echo_comm.torch.agreement import compare
from echo_comm.torch.asked import Asked, call_of, refuse_overlap, runs_again
from echo_comm.torch.config import EchoConfig, disabled_by
from echo_comm.torch.inner import ForwardingGroup, bytes_of, make_inner
from echo_comm.torch.ops import DTYPES
from echo_comm.torch.route import Call, Route, RouteCounters, State, algorithm_for, open_route
from echo_comm.torch.stats import Stats
from echo_comm.torch.work import CallQueue

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


class EchoProcessGroup(ForwardingGroup):
    """A process group over an inner group. Make it by new_group(backend="echo") and its kin, or by wrap().

    As with every process group, all ranks make the same calls in the same order, one thread at a time.
    """

    def __init__(
        self,
        inner: dist.ProcessGroup,
        store: dist.Store,
        rank: int,
        size: int,
        config: EchoConfig,
        *,
        timeout: timedelta,
        owned: bool = True,
    ) -> None:
        """inner, owned: who carries the rest, and whether it ends with this group. timeout: see configure()."""
        super().__init__(inner, store, rank, size)
        self._timeout, self._owned = timeout, owned
        self._rounds = 0  # comparisons of settings so far
        self._route: Route | None = None
        self._ended = ""  # what ended the group
        self._state: State | None = None  # residuals of the last coded call
        self._stats = Stats()
        self._forwarded: dict[
            str, list[int]
        ] = {}  # calls and bytes by reason; plain, as every forwarded call pays for it
        self._queue = CallQueue()
        self._coalescing = False
        self._told = False  # the INFO line
        self._open = threading.local()
        self.backward: Pass | None = None  # the backward pass under way, set by attach()'s hooks
        self._config, self._hidden_size = config, config.hidden_size
        self.configure(config)

    # ---- settings ------------------------------------------------------------------------------

    @property
    def config(self) -> EchoConfig:
        """Settings in force."""
        return self._config

    @property
    def hidden_size(self) -> int | None:
        """Length of the rows that are coded; None: everything is forwarded."""
        return self._hidden_size

    def configure(self, config: EchoConfig, hidden_size: int | None = None, **more: Any) -> None:
        """Replaces the settings. Collective: the ranks compare them. Those of the route are fixed once it is open.

        hidden_size: learnt, used unless the config has one. more: what else must be equal on all ranks.
        Raises EchoMismatchError on every rank, naming both sides, when they differ; EchoTimeoutError when a rank does
        not come within the group's timeout.
        """
        if self._route is not None:
            for name in ("transport", "batch_invariant", "timeout_s", "name", "residuals"):
                old, new = getattr(self._config, name), getattr(config, name)
                if old != new:
                    raise ValueError(f"EchoConfig: {name} is {new!r}, but the group is open already with {old!r}")
        if disabled_by():
            config = replace(config, disable=True)
        hidden_size = config.hidden_size or hidden_size
        if self._size > 1:
            settings = {**asdict(config), "hidden_size": hidden_size, **more}
            key = f"settings/{self._rounds}"
            self._rounds += 1
            compare(self._store, key, self._rank, self._size, settings, self._timeout, "echo group")
        self._config, self._hidden_size = config, hidden_size
        if config.disable:
            self._tell("disabled (ECHO_DISABLE or EchoConfig): all calls are forwarded")

    def _tell(self, text: str) -> None:
        if self._rank == 0 and not self._told:
            logger.info("echo %s, group %s of %d ranks: %s", library_version(), self._name or "-", self._size, text)
        self._told = True

    def open(self) -> Route | None:
        """Chooses and opens the route; the first coded call does it too. Collective. None for one rank."""
        self._refuse_ended()
        if self._route is None and self._size > 1:
            config = self._config
            self._route, reason = open_route(self._inner, self._rank, self._size, config)
            self._stats.route, self._stats.route_reason = self._route.name, reason
            self._tell(
                f"route {self._route.name} ({reason}), {config.bits} bits (flush {config.flush_bits}) in groups of 64, "
                f"rotation {'on' if config.rotation else 'off'}, feedback {config.feedback}, residuals "
                f"{config.residuals}, batch invariant {'on' if config.batch_invariant else 'off'}, "
                f"{self._route.staging_bytes} bytes shared; "
                f"forwarded: under {config.min_bytes} bytes, rows other than {self._hidden_size or 'unknown'}"
            )
        return self._route

    def _refuse_ended(self) -> None:
        if self._ended:
            raise EchoStateError(f"the group was {self._ended}")

    # ---- counters ------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """A snapshot of the counters. Waits for started calls."""
        self._queue.drain()
        sent = self._route.counters() if self._route else RouteCounters()
        snapshot = self._stats.copy()
        for reason, (calls, size) in self._forwarded.items():
            snapshot.calls += calls
            snapshot.forwarded[reason], snapshot.forwarded_bytes[reason] = calls, size
        snapshot.payload_bytes, snapshot.poisoned_groups = sent.payload_bytes, sent.poisoned_groups
        snapshot.waits, snapshot.wait_s = sent.waits, sent.wait_s
        if self._state is not None and self._route is not None:
            snapshot.residual_norms = self._state.norms()
        return snapshot

    def forwarding(self, reason: str, size: int) -> None:
        """See ForwardingGroup."""
        if self._ended:
            self._refuse_ended()
        counts = self._forwarded.get(reason)
        if counts is None:
            counts = self._forwarded[reason] = [0, 0]
        counts[0] += 1
        counts[1] += size
        # A started call on the inner route uses the inner group from another thread: it has to be over first.
        if self._route is not None and self._route.uses_inner:
            self._queue.drain()

    @property
    def active(self) -> Pass | None:
        """The forward pass that this thread has open, set by attach()'s hooks."""
        return getattr(self._open, "forward", None)

    @active.setter
    def active(self, forward: Pass | None) -> None:
        self._open.forward = forward

    def enter_embedding(self, change: int) -> None:
        """This thread enters (1) or leaves (-1) an embedding, whose sums are forwarded."""
        self._open.embeddings = getattr(self._open, "embeddings", 0) + change

    def pass_begun(self) -> None:
        """Counts a forward pass."""
        self._stats.passes += 1

    def backward_pass_begun(self) -> None:
        """Counts a backward pass."""
        self._stats.backward_passes += 1

    # ---- what may be coded, under all its names -------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, *args: Any, **kwargs: Any) -> dist.Work:  # type: ignore[override]
        """Sums over all ranks, in place: coded, or forwarded."""
        if not isinstance(opts, c10d.AllreduceOptions):  # the forms with an operation instead of options
            opts = _all_reduce_options(opts, *args, **kwargs)
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._go("all_reduce", "allreduce", tensors, tensors, opts, (tensors, opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """As allreduce() for one tensor, else forwarded."""
        opts = opts if opts is not None else c10d.AllreduceCoalescedOptions()
        return self._go("all_reduce", "allreduce_coalesced", tensors, tensors, opts, (tensors, opts))

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Sums over all ranks; each gets its part: coded, or forwarded."""
        opts = opts if opts is not None else c10d.ReduceScatterOptions()
        return self._go("reduce_scatter", "_reduce_scatter_base", [input], [output], opts, (output, input, opts))

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """As reduce_scatter_single() for one tensor, else forwarded."""
        opts = opts if opts is not None else c10d.ReduceScatterOptions()
        name = "reduce_scatter_tensor_coalesced"
        return self._go("reduce_scatter", name, inputs, outputs, opts, (outputs, inputs, opts))

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Puts the parts of all ranks together: coded, or forwarded."""
        opts = opts if opts is not None else c10d.AllgatherOptions()
        return self._go("all_gather", "_allgather_base", [output], [input], opts, (output, input, opts))

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """As all_gather_single() for one tensor, else forwarded."""
        opts = opts if opts is not None else c10d.AllgatherOptions()
        name = "allgather_into_tensor_coalesced"
        return self._go("all_gather", name, outputs, inputs, opts, (outputs, inputs, opts))

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced

    # ---- the decision --------------------------------------------------------------------------

    def _go(
        self, collective: str, name: str, wholes: list[Tensor], parts: list[Tensor], opts: Any, args: tuple[Any, ...]
    ) -> dist.Work:
        """Codes the call, or hands method `name` of the inner group its arguments."""
        reason = self._reason_to_forward(collective, wholes, parts, opts)
        if not reason:
            route = self.open()
            assert route is not None
            if collective in route.collectives:
                return self._coded(Asked(collective, wholes[0], parts[0], opts), route)
            reason = f"{route.name}_route"
        self.forwarding(reason, wholes[0].nbytes if len(wholes) == 1 else bytes_of(wholes))
        return self.forward(name, *args)

    def _reason_to_forward(self, collective: str, wholes: list[Tensor], parts: list[Tensor], opts: Any) -> str:
        config = self._config
        if self._size == 1:
            return "one_rank"
        if config.disable:
            return "disabled"
        if getattr(_exact, "depth", 0):
            return "exact"
        if len(wholes) != 1 or len(parts) != 1 or self._coalescing:
            return "coalesced"
        whole, part = wholes[0], parts[0]
        size = whole.nbytes
        if size == 0:
            return "empty"
        if size < config.min_bytes:
            return "min_bytes"
        if getattr(self._open, "embeddings", 0):
            return "embedding"
        current, reason = self._current()
        if reason:
            return reason
        if collective == "all_gather":
            if config.gather == "never" or (config.gather == "pass" and current is None):
                return "outside_pass"
        elif not (opts.reduceOp == dist.ReduceOp.SUM or opts.reduceOp == dist.ReduceOp.AVG):
            return "op"
        if whole.device.type != "cpu" or whole.layout != torch.strided:
            return "device"
        if whole.dtype not in DTYPES:
            return "dtype"
        return self._reason_of_form(collective, whole, part, current)

    def _current(self) -> tuple[Pass | None, str]:
        """The pass that a call now belongs to, if any, or why it cannot be coded."""
        if torch._C._current_graph_task_id() == -1:
            return self.active, ""
        if self.active is not None and self.active.runs_again:
            return self.active, ""
        if runs_again():
            return None, "recompute"
        return (self.backward, "") if self.backward is not None else (None, "backward")

    def _reason_of_form(self, collective: str, whole: Tensor, part: Tensor, current: Pass | None) -> str:
        hidden = self._hidden_size
        if hidden is None:
            return "no_hidden_size"
        if whole.dim() == 0 or whole.shape[-1] != hidden:
            return "row_length"
        if whole is not part:
            if part.dim() == 0 or part.shape[-1] != hidden:
                return "row_length"
            if part.dtype != whole.dtype or part.device != whole.device or part.numel() * self._size != whole.numel():
                return "parts"  # the inner group says what is wrong with it
        if collective != "all_gather" and current is not None and not current.fits(collective, whole):
            return "other_shape"
        return ""

    # ---- coded calls ---------------------------------------------------------------------------

    def _coded(self, asked: Asked, route: Route) -> dist.Work:
        config, whole, row = self._config, asked.whole, asked.whole.shape[-1]
        refuse_overlap(asked)
        state, flush = None, False
        current, _ = self._current()
        if current is not None and asked.collective != "all_gather":
            if not current.begun:
                self._queue.drain()  # started calls of the pass before use the residuals that are reset now
                self._stats.resets += config.feedback == "on"
            state, flush = current.next_site(asked.collective, whole, route, with_feedback=config.feedback == "on")
            self._state = state
        bits = config.flush_bits if flush else config.bits
        algorithm = 0
        if asked.collective == "all_reduce":
            algorithm = algorithm_for(whole.numel(), row, bits, self._size, config.batch_invariant)
        average = getattr(asked.opts, "reduceOp", None) == dist.ReduceOp.AVG
        call = Call(row, bits, flush, config.rotation, algorithm, average)
        work = self._queue.run(
            asked.collective, [asked.written], call_of(asked, route, call, state), getattr(asked.opts, "asyncOp", True)
        )
        self._count(asked, flush, state)
        return work

    def reason_to_forward_bucket(self, x: Tensor) -> str:
        """Why a bucket of gradients cannot be coded; "" if it can."""
        if self._size == 1:
            return "one_rank"
        if self._config.disable:
            return "disabled"
        if getattr(_exact, "depth", 0):
            return "exact"
        if x.device.type != "cpu":
            return "device"
        return "" if x.dtype in DTYPES and x.numel() > 0 else "dtype"

    def coded_average(self, x: Tensor, state: State | None, bits: int) -> dist.Work:
        """Starts the average of x, contiguous, over all ranks. state: residuals that belong to this tensor alone."""
        route = self.open()
        assert route is not None
        self._refuse_ended()
        config, count = self._config, x.numel()
        algorithm = algorithm_for(count, count, bits, self._size, config.batch_invariant)
        call = Call(count, bits, False, config.rotation, algorithm, True)
        asked = Asked("all_reduce", x, x, None)
        work = self._queue.run("all_reduce", [x], call_of(asked, route, call, state), True)
        self._count(asked, False, state)
        return work

    def _count(self, asked: Asked, flush: bool, state: State | None) -> None:
        stats, count = self._stats, asked.whole.numel()
        stats.calls += 1
        stats.coded += 1
        stats.collectives[asked.collective] += 1
        stats.backward += self.backward is not None and self.backward is self._current()[0]
        stats.flushes += flush
        stats.logical_bytes += count * asked.whole.element_size()
        shots = 2 if asked.collective == "all_reduce" else 1
        stats.reference_bytes += shots * (self._size - 1) / self._size * count * 2
        stats.residual_bytes = state.bytes if state is not None else stats.residual_bytes

    # ---- the rest of the process group ---------------------------------------------------------

    def getBackendName(self) -> str:
        """Name for torch."""
        return BACKEND

    def start_coalescing(self, device: torch.device) -> None:
        """Until end_coalescing() all calls are forwarded."""
        super().start_coalescing(device)
        self._coalescing = True

    def end_coalescing(self, device: torch.device) -> dist.Work:
        """See ForwardingGroup."""
        self._coalescing = False
        return super().end_coalescing(device)

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> EchoProcessGroup | None:
        """An echo group of some ranks of this one, with its settings or those of `opts` (EchoConfig, Options).

        Collective. ranks: ranks of this group. None on the others. Names and further arguments as torch's.
        """
        config = replace(self._config, hidden_size=self._hidden_size)
        if isinstance(opts, (EchoConfig, Options)):
            config, opts = opts.config if isinstance(opts, Options) else opts, None
        # Only what was given: torch 2.11 takes opts=None for an object and crashes.
        named = {"timeout": timeout, "opts": opts, "group_name": group_name, "group_desc": group_desc}
        named["device_types"] = device_types
        inner = self._inner.split_group(ranks, **{name: value for name, value in named.items() if value is not None})
        if inner is None:
            return None
        store = dist.PrefixStore("echo/", inner.get_group_store())
        split = EchoProcessGroup(inner, store, inner.rank(), inner.size(), config, timeout=timeout or self._timeout)
        split.setGroupName(inner.group_name)
        split.setGroupDesc(inner.group_desc)
        return split

    splitGroup = split_group

    def abort(self) -> None:
        """Ends coded calls under way with an error on all ranks; forwarded ones as the inner group's abort() does."""
        self._ended = self._ended or "aborted"
        self._queue.close()
        if self._route is not None:
            self._route.abort(f"abort() of rank {self._rank}")
        super().abort()

    def shutdown(self) -> None:
        """Leaves the route, after started calls, and the inner group, unless it was given."""
        self._ended = self._ended or "shut down"
        self._queue.drain()
        self._queue.close()
        route, self._route, self._state = self._route, None, None
        if route is not None:
            route.close()
        if self._owned:
            super().shutdown()


def _all_reduce_options(op: Any = None, timeout: timedelta | None = None, **named: Any) -> c10d.AllreduceOptions:
    opts = c10d.AllreduceOptions()
    op, timeout = named.get("op", op), named.get("timeout", timeout)
    if op is not None:
        opts.reduceOp = op if isinstance(op, dist.ReduceOp) else dist.ReduceOp(op)
    if timeout is not None:
        opts.timeout = timeout
    return opts


# ---- making groups -----------------------------------------------------------------------------


class Options(torch._C._distributed_c10d.Backend.Options):  # type: ignore[misc]
    """Settings of an echo group in the form that torch's device meshes take.

    init_device_mesh(..., backend_override={"tp": ("echo", Options(EchoConfig(bits=5)))})
    init_process_group() and new_group() take an EchoConfig as it is: pg_options=EchoConfig(bits=5).
    """

    def __init__(self, config: EchoConfig, timeout: timedelta = c10d.default_pg_timeout) -> None:
        """timeout: longest wait of a forwarded call."""
        super().__init__(BACKEND, timeout)
        self.config = config


@dataclass(frozen=True)
class _Given:
    """Options of wrap(): a group that is there already."""

    inner: dist.ProcessGroup
    config: EchoConfig | None


def _create(made: Any, options: Any) -> EchoProcessGroup:
    """torch's factory; `made` has the store, the ranks and the timeout, `options` is what new_group() was given."""
    store, rank, size = made.store, made.group_rank, made.group_size
    given = options if isinstance(options, _Given) else None
    config = options.config if isinstance(options, (_Given, Options)) else options
    if config is not None and not isinstance(config, EchoConfig):
        raise TypeError(f"backend 'echo' takes an EchoConfig as options, not {type(config).__name__}")
    if given:
        inner = given.inner
    else:
        ranks = list(made.global_ranks_in_group) or list(range(size))  # the default group's list is empty
        inner = make_inner(store, rank, size, made.timeout, ranks)
    return EchoProcessGroup(
        inner,
        dist.PrefixStore("echo/", store),
        rank,
        size,
        config or EchoConfig.from_env(),
        timeout=made.timeout,
        owned=given is None,
    )


def wrap(group: dist.ProcessGroup, config: EchoConfig | None = None) -> EchoProcessGroup:
    """An echo group over `group`, which carries what is not coded and stays as it is. Collective over its ranks.

    group    made by init_process_group(), new_group() or a mesh, of any backend, e.g. dist.group.WORLD
    config   None: EchoConfig.from_env()
    The result is a group of torch.distributed in every way: destroy_process_group(result) ends it, and not `group`.
    As both use one inner group, calls on either count as calls on it: all ranks make them in the same order.
    Raises TypeError for echo groups (use their configure()), ValueError for groups unknown to torch.distributed.
    """
    if isinstance(group, EchoProcessGroup):
        raise TypeError("wrap: the group is an echo group already; change its settings by configure()")
    if not isinstance(group, dist.ProcessGroup) or not group._device_types:
        raise TypeError(f"wrap: expected a process group with backends, got {type(group).__name__}")
    try:
        ranks = dist.get_process_group_ranks(group)
    except KeyError:
        raise ValueError("wrap: torch.distributed does not know the group; make it by new_group()") from None
    # new_group() would ask all ranks of the world to take part, or, with use_local_synchronization, give the later
    # groups of some ranks other names than those of the rest (torch 2.15). This is what it does inside.
    store, rank = group.get_group_store(), group.rank()
    name = c10d.GroupName(f"{group.group_name}/echo/{store.add(f'echo/wraps/{rank}', 1)}")
    wrapped, _ = c10d._new_process_group_helper(
        len(ranks),
        rank,
        ranks,
        dist.Backend(BACKEND),
        store,
        name,
        backend_options=_Given(group, config),
        timeout=c10d.default_pg_timeout,
    )
    c10d._world.pg_group_ranks[wrapped] = {global_rank: number for number, global_rank in enumerate(ranks)}
    return wrapped


def register() -> None:
    """Makes torch.distributed know the backend "echo". Importing echo_comm.torch does it."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
