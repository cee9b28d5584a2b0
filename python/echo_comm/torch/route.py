"""The two ways the bytes of a coded call can go; both give the same bits.

shm     the C library's shared memory transport: all ranks on one host
inner   byte collectives of the inner process group around the operators: any hosts

The route of a group is chosen once, by all ranks alike, at its first coded call.
"""

from __future__ import annotations

import json
import logging
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from echo_comm._library import (
    ONE_SHOT,
    TWO_SHOT,
    EchoAbortedError,
    EchoArgumentError,
    EchoError,
    EchoMismatchError,
    EchoPeerError,
    EchoStateError,
    EchoTimeoutError,
    Store,
    check,
    library,
)
from echo_comm.communicator import Communicator, Feedback
from echo_comm.torch import calls, ops
from echo_comm.torch.calls import CODES
from echo_comm.torch.config import EchoConfig
from echo_comm.torch.inner import method_of

logger = logging.getLogger("echo_comm")

_DTYPES = {code: str(dtype).removeprefix("torch.") for dtype, code in CODES.items()}


@dataclass(frozen=True)
class Call:
    """Options of one coded call; equal on all ranks."""

    row_length: int
    bits: int
    flush: bool
    rotation: bool
    algorithm: int  # of an all-reduce, else 0
    average: bool = False  # divide the sum by the number of ranks

    def form(self) -> dict[str, Any]:
        """The part that the codec needs."""
        return {"row_length": self.row_length, "bits": self.bits, "rotation": self.rotation}


@dataclass
class RouteCounters:
    """What a route has sent and met so far."""

    payload_bytes: int = 0
    poisoned_groups: int = 0
    waits: int = 0
    wait_s: float = 0.0


class State(Protocol):
    """Residuals of one pass at a time, as a route keeps them."""

    @property
    def bytes(self) -> int:
        """Memory held."""

    def reset(self) -> None:
        """Begins a new pass."""

    def norms(self) -> tuple[float, float]:
        """What the pass owes on this rank: largest magnitude in the sender and in the owner residual."""

    def save(self) -> Any:
        """The pass, for a checkpoint: tensors and plain values."""

    def load(self, saved: Any) -> None:
        """Goes on with what save() of the same rank, route and shape gave."""


class Route(Protocol):
    """Sums and gathers contiguous CPU tensors. One call at a time."""

    name: str
    collectives: frozenset[str]  # what it can do
    uses_inner: bool  # whether calls use the inner group
    staging_bytes: int  # memory shared by the ranks

    def residuals(self, count: int, row_length: int, earlier: State | None) -> State:
        """Residuals of a new pass over tensors of `count` elements; takes over the memory of `earlier` if it fits."""

    def all_reduce(self, x: Tensor, call: Call, state: State | None) -> None:
        """Replaces x by the sum over all ranks."""

    def reduce_scatter(self, whole: Tensor, part: Tensor, call: Call, state: State | None) -> None:
        """Writes this rank's part of the sum of `whole` over all ranks."""

    def all_gather(self, part: Tensor, whole: Tensor, call: Call) -> None:
        """Writes the parts of all ranks, in rank order, to `whole`."""

    def counters(self) -> RouteCounters:
        """What was sent so far."""

    def abort(self, reason: str) -> None:
        """Makes the call under way and all later ones fail. From any thread."""

    def close(self) -> None:
        """Leaves. No call may be under way."""


def algorithm_for(count: int, row_length: int, bits: int, size: int, batch_invariant: bool) -> int:
    """The library's choice, so that both routes take the same algorithm."""
    algorithm = c_int()
    check(library().echo_select(count, row_length, bits, size, int(batch_invariant), byref(algorithm)))
    return algorithm.value


# ---- shared memory -----------------------------------------------------------------------------


class ShmRoute:
    """The C library moves the bytes."""

    name = "shm"
    collectives = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
    uses_inner = False

    def __init__(self, comm: Communicator, store: Store) -> None:
        self.comm, self.store = comm, store
        self.staging_bytes = int(comm.stats().shm_bytes)

    def residuals(self, count: int, row_length: int, earlier: State | None) -> Feedback:
        """See Route."""
        if isinstance(earlier, Feedback) and earlier.capacity >= count:
            earlier.reset()
            return earlier
        return Feedback(self.comm, count, self.store)

    def all_reduce(self, x: Tensor, call: Call, state: State | None) -> None:
        """See Route."""
        assert state is None or isinstance(state, Feedback)
        calls.all_reduce(
            self.comm,
            x,
            state,
            flush=call.flush,
            algorithm=call.algorithm,
            average=call.average,
            **call.form(),
        )

    def reduce_scatter(self, whole: Tensor, part: Tensor, call: Call, state: State | None) -> None:
        """See Route."""
        assert state is None or isinstance(state, Feedback)
        calls.reduce_scatter(self.comm, whole, part, state, flush=call.flush, average=call.average, **call.form())

    def all_gather(self, part: Tensor, whole: Tensor, call: Call) -> None:
        """See Route."""
        calls.all_gather(self.comm, part, whole, **call.form())

    def counters(self) -> RouteCounters:
        """See Route."""
        stats = self.comm.stats()
        return RouteCounters(stats.payload_bytes, stats.poisoned_groups, stats.waits, stats.wait_ns * 1e-9)

    def abort(self, reason: str) -> None:
        """See Route."""
        self.comm.abort(reason)

    def close(self) -> None:
        """See Route."""
        self.comm.close()


# ---- inner group -------------------------------------------------------------------------------


class _InnerState:
    """As Feedback of the C library: "auto" is int8, from call 257 of a pass on int16."""

    INT8_CALLS = 256

    def __init__(self, count: int, row_length: int, size: int, rank: int, store: Store) -> None:
        self.count, self.row_length, self.size, self.rank, self.store = count, row_length, size, rank, store
        self.calls = 0
        self.residuals = self._zeros()

    def _zeros(self) -> ops.Residuals:
        store = "int8" if self.store == "auto" else self.store
        return ops.Residuals.zeros(ops.groups_of(self.count, self.row_length), self.size, self.rank, store)

    @property
    def bytes(self) -> int:
        return self.residuals.bytes

    def reset(self) -> None:
        widened = self.store == "auto" and self.calls > self.INT8_CALLS
        self.calls = 0
        if widened:
            self.residuals = self._zeros()
        else:
            self.residuals.reset()

    def norms(self) -> tuple[float, float]:
        return ops.largest(self.residuals.sender), ops.largest(self.residuals.owner)

    def save(self) -> dict[str, Any]:
        shape = (self.count, self.row_length, self.size, self.rank)
        return {
            "shape": shape,
            "calls": self.calls,
            "sender": self.residuals.sender.clone(),
            "owner": self.residuals.owner.clone(),
        }

    def load(self, saved: Any) -> None:
        shape = (self.count, self.row_length, self.size, self.rank)
        if not isinstance(saved, dict):
            raise EchoArgumentError("residuals: they were saved on the route shm, this group uses the route inner")
        if tuple(saved["shape"]) != shape:
            raise EchoArgumentError(
                f"residuals: saved with (count, row, size, rank) {saved['shape']}, expected {shape}"
            )
        widened = (
            self.residuals.widened() if self.store == "auto" and saved["calls"] > self.INT8_CALLS else self.residuals
        )
        for name in ("sender", "owner"):
            kept, own = saved[name], getattr(widened, name)
            if (kept.dtype, kept.shape) != (own.dtype, own.shape):
                raise EchoArgumentError(
                    f"residuals: the saved {name} residual is {kept.dtype} {tuple(kept.shape)}, expected {own.dtype} "
                    f"{tuple(own.shape)}"
                )
        self.residuals = ops.Residuals(saved["sender"].clone(), saved["owner"].clone(), widened.owner_begin)
        self.calls = saved["calls"]

    def next_call(self) -> ops.Residuals:
        if self.store == "auto" and self.calls == self.INT8_CALLS:
            self.residuals = self.residuals.widened()
        self.calls += 1
        return self.residuals


# Header of a call, exchanged before anything else: sequence, count, row length, dtype, bits, flags, kind. The kind is
# that of the algorithm of an all-reduce, or that of an all-gather.
_HEADER = struct.Struct("<QQIBBBBxxxxxxxx")
_FLAGS = {"rotation": 1, "feedback": 2, "flush": 4, "average": 8}
_ALL_GATHER = 3
_KINDS = {ONE_SHOT: "one-shot", TWO_SHOT: "two-shot", _ALL_GATHER: "all-gather"}


def _describe(header: bytes) -> str:
    sequence, count, row, dtype, bits, flags, kind = _HEADER.unpack(header)
    switches = [name for name, bit in _FLAGS.items() if flags & bit]
    return (
        f"{count} elements of {_DTYPES[dtype]} (call {sequence}, rows of {row}, {bits} bits, {_KINDS[kind]}"
        f"{''.join(', ' + name for name in switches)})"
    )


class InnerRoute:
    """The inner process group moves the bytes, the operators make and read them.

    No reduce-scatter: no operator adds an unrounded addend and leaves the sum uncoded.
    """

    name = "inner"
    collectives = frozenset({"all_reduce", "all_gather"})
    uses_inner = True
    staging_bytes = 0

    def __init__(self, inner: dist.ProcessGroup, rank: int, size: int, config: EchoConfig) -> None:
        self.inner, self.rank, self.size = inner, rank, size
        self.timeout = timedelta(seconds=config.timeout_s)
        self.batch_invariant, self.store = config.batch_invariant, config.residuals
        self.sequence = 0
        self.sent = RouteCounters()
        self.what = "open"
        self.failed: EchoError | None = None

    def residuals(self, count: int, row_length: int, earlier: State | None) -> _InnerState:
        """See Route."""
        if isinstance(earlier, _InnerState) and (earlier.count, earlier.row_length) == (count, row_length):
            earlier.reset()
            return earlier
        return _InnerState(count, row_length, self.size, self.rank, self.store)

    def all_reduce(self, x: Tensor, call: Call, state: State | None) -> None:
        """See Route."""
        assert state is None or isinstance(state, _InnerState)
        with self._one_call("all_reduce"):
            self._agree(x, call, call.algorithm, state is not None)
            residuals = state.next_call() if state else None
            flat = x.view(-1)
            if call.algorithm == ONE_SHOT:
                poisoned = self._one_shot(flat, call, residuals)
            else:
                poisoned = self._two_shot(flat, call, residuals)
        self.sent.poisoned_groups += poisoned
        if call.flush and state is not None:
            state.reset()

    def reduce_scatter(self, whole: Tensor, part: Tensor, call: Call, state: State | None) -> None:
        """Not among its collectives."""
        raise EchoStateError("reduce_scatter: the inner route has none")

    def all_gather(self, part: Tensor, whole: Tensor, call: Call) -> None:
        """See Route. Every rank decodes what it sent itself, too: all hold the same bytes."""
        with self._one_call("all_gather"):
            self._agree(whole, call, _ALL_GATHER, False)
            groups = (0, ops.groups_of(part.numel(), call.row_length))
            own = ops.encode(part.view(-1), groups, **call.form())
            self.sent.payload_bytes += (self.size - 1) * own.numel()
            outs = whole.view(self.size, -1).unbind()
            for out, encoded in zip(outs, self._gather_bytes(own), strict=True):
                self.sent.poisoned_groups += int(ops.decode(out, [encoded], groups, **call.form()))

    @contextmanager
    def _one_call(self, what: str) -> Iterator[None]:
        """Names the call in errors; after one the route is unusable, as ranks may be out of step."""
        if self.failed is not None:
            raise EchoStateError(f"{what}: the group failed earlier: {self.failed}")
        self.what = what
        try:
            with torch.no_grad():
                yield
        except EchoError as error:
            self.failed = self.failed or error
            raise

    def abort(self, reason: str) -> None:
        """See Route. Byte collectives under way end with the inner group's abort(), or their timeout."""
        self.failed = self.failed or EchoAbortedError(reason)

    def close(self) -> None:
        """See Route."""
        self.failed = self.failed or EchoStateError("the group was shut down")

    def counters(self) -> RouteCounters:
        """See Route."""
        return self.sent

    def _gather_bytes(self, own: Tensor, patience: int = 1) -> list[Tensor]:
        everything = own.new_empty(self.size * own.numel())
        options = c10d.AllgatherOptions()
        options.timeout = self.timeout * patience
        self._finish("all-gather", lambda: method_of(self.inner, "_allgather_base")(everything, own, options))
        return list(everything.view(self.size, -1).unbind())

    def _all_to_all(self, sent: list[Tensor], receive: list[int]) -> list[Tensor]:
        incoming = torch.empty(sum(receive), dtype=torch.uint8)
        outgoing = torch.cat(sent)
        options = c10d.AllToAllOptions()
        options.timeout = self.timeout
        sizes = [part.numel() for part in sent]
        arguments = (incoming, outgoing, receive, sizes, options)
        self._finish("all-to-all", lambda: method_of(self.inner, "alltoall_base")(*arguments))
        return list(incoming.split(receive))

    def _finish(self, what: str, start: Callable[[], Any]) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            text = " ".join(str(error).split())
            kind = EchoTimeoutError if "imed out" in text or "imeout" in text else EchoPeerError
            raise kind(f"{self.what}: {what} of call {self.sequence - 1} failed on rank {self.rank}: {text}") from None

    def _agree(self, x: Tensor, call: Call, kind: int, feedback: bool) -> None:
        switches = {"rotation": call.rotation, "feedback": feedback, "flush": call.flush, "average": call.average}
        flags = sum(_FLAGS[name] for name, on in switches.items() if on)
        own = _HEADER.pack(self.sequence, x.numel(), call.row_length, CODES[x.dtype], call.bits, flags, kind)
        self.sequence += 1
        headers = [
            bytes(part.tolist()) for part in self._gather_bytes(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        ]
        self.sent.payload_bytes += (self.size - 1) * _HEADER.size
        for rank, header in enumerate(headers):
            if header != headers[0]:
                raise EchoMismatchError(
                    f"{self.what}: rank {rank} sent {_describe(header)}, rank 0 sent {_describe(headers[0])}; "
                    "all ranks must make the same calls"
                )

    def _one_shot(self, x: Tensor, call: Call, residuals: ops.Residuals | None) -> int:
        groups = (0, ops.groups_of(x.numel(), call.row_length))
        form = call.form()
        own = ops.encode(x, groups, residuals=residuals, with_owner=True, **form)
        self.sent.payload_bytes += (self.size - 1) * own.numel()
        divisor = self._divisor(call)
        return int(ops.decode(x, self._gather_bytes(own), groups, residuals=residuals, divisor=divisor, **form))

    def _divisor(self, call: Call) -> int:
        return self.size if call.average else 1

    def _two_shot(self, x: Tensor, call: Call, residuals: ops.Residuals | None) -> int:
        total = ops.groups_of(x.numel(), call.row_length)
        chunks = [ops.chunk(total, self.size, rank) for rank in range(self.size)]
        form, divisor = call.form(), self._divisor(call)
        sizes = [ops.encoded_size(x.numel(), x.element_size(), call.row_length, call.bits, *chunk) for chunk in chunks]
        own = chunks[self.rank]
        empty = torch.empty(0, dtype=torch.uint8)

        # Shot 1: each foreign chunk to its owner.
        sent = [
            empty if r == self.rank else ops.encode(x, chunks[r], residuals=residuals, **form) for r in range(self.size)
        ]
        received = self._all_to_all(sent, [0 if r == self.rank else sizes[self.rank] for r in range(self.size)])
        addends = ops.reduce(
            received,
            x,
            self.rank,
            own,
            batch_invariant=self.batch_invariant,
            divisor=divisor,
            residuals=residuals,
            **form,
        )

        # Shot 2: the encoded sum to all; chunks differ in length by a group at most, so all send the longest.
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: addends.numel()] = addends
        sums = [part[:size] for part, size in zip(self._gather_bytes(padded), sizes, strict=True)]
        self.sent.payload_bytes += sum(part.numel() for part in sent) + (self.size - 1) * addends.numel()

        poisoned = [
            ops.decode(x, [part], groups, residuals=residuals, divisor=divisor, **form)
            for part, groups in zip(sums, chunks, strict=True)
        ]
        return int(torch.cat(poisoned).sum())


# ---- choice ------------------------------------------------------------------------------------

_EXCHANGE_BYTES = 4096


def _exchange(route: InnerRoute, value: Any) -> list[Any]:
    """Small values of all ranks, as JSON. Waits longer than a rank may wait in vain to join the shared memory."""
    text = json.dumps(value).encode()[:_EXCHANGE_BYTES]
    own = torch.frombuffer(bytearray(text.ljust(_EXCHANGE_BYTES)), dtype=torch.uint8)
    return [json.loads(bytes(part.tolist())) for part in route._gather_bytes(own, patience=3)]


def _host() -> str:
    """Differs between hosts, and between network namespaces (containers), which hide the socket that ranks join at.

    Equal values prove nothing: only joining the shared memory does.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return boot


def open_route(group: dist.ProcessGroup, rank: int, size: int, config: EchoConfig) -> tuple[Route, str]:
    """Chooses and opens the route of a group over the inner `group`; returns it with the reason. Collective.

    All ranks have the same config.
    """
    inner = InnerRoute(group, rank, size, config)
    if config.transport == "inner":
        return inner, "asked for"
    proposals = _exchange(inner, {"host": _host(), "name": config.name or f"torch-{secrets.token_hex(12)}"})
    first = proposals[0]
    hosts = {proposal["host"] for proposal in proposals}
    strict = config.transport == "shm" or config.name is not None
    if len(hosts) > 1:
        reason = f"the ranks are on {len(hosts)} hosts or in {len(hosts)} network namespaces"
        if strict:
            raise EchoStateError(f"shared memory was asked for, but {reason}")
        return inner, reason

    comm, outcome = None, ["", 0]
    try:
        comm = Communicator(
            f"shm://{first['name']}?rank={rank}&size={size}",
            timeout_ms=int(config.timeout_s * 1000),
            batch_invariant=config.batch_invariant,
            threads=config.threads or torch.get_num_threads(),
        )
    except EchoError as error:
        outcome = [str(error)[:600], error.result]
    failures = [(peer, *entry) for peer, entry in enumerate(_exchange(inner, outcome)) if entry[1]]
    if not failures and comm is not None:
        return ShmRoute(comm, config.residuals), "all ranks joined one shared memory region"
    if comm is not None:
        comm.close()
    peer, text, result = failures[0]
    if result == EchoArgumentError.result:  # e.g. a malformed variable: no reason to take another route
        raise EchoArgumentError(str(text))
    if strict:
        raise EchoStateError(str(text), int(result))
    if rank == 0:
        logger.warning("echo: shared memory is not used, rank %d could not join it: %s", peer, text)
    return inner, f"rank {peer} could not join shared memory: {text}"
