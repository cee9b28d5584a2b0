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
from collections.abc import Callable
from ctypes import byref, c_int
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from echo_comm._library import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ONE_SHOT,
    TWO_SHOT,
    Communicator,
    EchoArgumentError,
    EchoError,
    EchoMismatchError,
    EchoPeerError,
    EchoStateError,
    EchoTimeoutError,
    Feedback,
    Store,
    check,
    library,
)
from echo_comm.torch import ops
from echo_comm.torch.config import EchoConfig

logger = logging.getLogger("echo_comm")

_CODES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
_DTYPES = {code: str(dtype).removeprefix("torch.") for dtype, code in _CODES.items()}


@dataclass(frozen=True)
class Call:
    """Options of one coded call; equal on all ranks."""

    row_length: int
    bits: int
    flush: bool
    rotation: bool
    algorithm: int

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


class Route(Protocol):
    """Sums contiguous CPU tensors in place."""

    name: str

    def residuals(self, count: int, row_length: int, earlier: State | None) -> State:
        """Residuals of a new pass over tensors of `count` elements; takes over the memory of `earlier` if it fits."""

    def all_reduce(self, x: Tensor, call: Call, state: State | None) -> None:
        """Replaces x by the sum over all ranks."""

    def counters(self) -> RouteCounters:
        """What was sent so far."""


def algorithm_for(count: int, row_length: int, bits: int, size: int, batch_invariant: bool) -> int:
    """The library's choice, so that both routes take the same algorithm."""
    algorithm = c_int()
    check(library().echo_select(count, row_length, bits, size, int(batch_invariant), byref(algorithm)))
    return algorithm.value


# ---- shared memory -----------------------------------------------------------------------------


class ShmRoute:
    """The C library moves the bytes."""

    name = "shm"

    def __init__(self, comm: Communicator, store: Store) -> None:
        self.comm, self.store = comm, store

    def residuals(self, count: int, row_length: int, earlier: State | None) -> Feedback:
        """See Route."""
        if isinstance(earlier, Feedback) and earlier.capacity >= count:
            earlier.reset()
            return earlier
        return Feedback(self.comm, count, self.store)

    def all_reduce(self, x: Tensor, call: Call, state: State | None) -> None:
        """See Route."""
        assert state is None or isinstance(state, Feedback)
        self.comm.all_reduce(
            x.data_ptr(),
            x.numel(),
            _CODES[x.dtype],
            feedback=state,
            bits=call.bits,
            flush=call.flush,
            algorithm=call.algorithm,
            rotation=call.rotation,
            row_length=call.row_length,
        )

    def counters(self) -> RouteCounters:
        """See Route."""
        stats = self.comm.stats()
        return RouteCounters(stats.payload_bytes, stats.poisoned_groups, stats.waits, stats.wait_ns * 1e-9)


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

    def next_call(self) -> ops.Residuals:
        if self.store == "auto" and self.calls == self.INT8_CALLS:
            self.residuals = self.residuals.widened()
        self.calls += 1
        return self.residuals


# Header of a call, exchanged before anything else: sequence, count, row length, dtype, bits, flags, algorithm.
_HEADER = struct.Struct("<QQIBBBBxxxxxxxx")
_ROTATION, _FEEDBACK, _FLUSH = 1, 2, 4


def _describe(header: bytes) -> str:
    sequence, count, row, dtype, bits, flags, algorithm = _HEADER.unpack(header)
    switches = [name for bit, name in ((1, "rotation"), (2, "feedback"), (4, "flush")) if flags & bit]
    kind = {ONE_SHOT: "one-shot", TWO_SHOT: "two-shot"}[algorithm]
    return (
        f"{count} elements of {_DTYPES[dtype]} (call {sequence}, rows of {row}, {bits} bits, {kind}"
        f"{''.join(', ' + name for name in switches)})"
    )


class InnerRoute:
    """The inner process group moves the bytes, the operators make and read them."""

    name = "inner"

    def __init__(self, gloo: dist.ProcessGroup, rank: int, size: int, config: EchoConfig) -> None:
        self.gloo, self.rank, self.size = gloo, rank, size
        self.timeout = timedelta(seconds=config.timeout_s)
        self.batch_invariant, self.store = config.batch_invariant, config.residuals
        self.sequence = 0
        self.sent = RouteCounters()
        self.failed: EchoError | None = None

    def residuals(self, count: int, row_length: int, earlier: State | None) -> _InnerState:
        """See Route."""
        if isinstance(earlier, _InnerState) and (earlier.count, earlier.row_length) == (count, row_length):
            earlier.reset()
            return earlier
        return _InnerState(count, row_length, self.size, self.rank, self.store)

    def all_reduce(self, x: Tensor, call: Call, state: State | None) -> None:
        """See Route."""
        if self.failed is not None:
            raise EchoStateError(f"all_reduce: the group failed earlier: {self.failed}")
        assert state is None or isinstance(state, _InnerState)
        try:
            self._agree(x, call, state is not None)
            residuals = state.next_call() if state else None
            flat = x.view(-1)
            with torch.no_grad():
                if call.algorithm == ONE_SHOT:
                    poisoned = self._one_shot(flat, call, residuals)
                else:
                    poisoned = self._two_shot(flat, call, residuals)
        except EchoError as error:
            self.failed = error
            raise
        self.sent.poisoned_groups += poisoned
        if call.flush and state is not None:
            state.reset()

    def counters(self) -> RouteCounters:
        """See Route."""
        return self.sent

    def all_gather(self, own: Tensor, patience: int = 1) -> list[Tensor]:
        """Bytes of all ranks; all send equally many. Waits `patience` times as long as a call may take."""
        everything = own.new_empty(self.size * own.numel())
        options = c10d.AllgatherOptions()
        options.timeout = self.timeout * patience
        self._finish("all-gather", lambda: self.gloo._allgather_base(everything, own, options))
        return list(everything.view(self.size, -1).unbind())

    def _all_to_all(self, sent: list[Tensor], receive: list[int]) -> list[Tensor]:
        incoming = torch.empty(sum(receive), dtype=torch.uint8)
        outgoing = torch.cat(sent)
        options = c10d.AllToAllOptions()
        options.timeout = self.timeout
        sizes = [part.numel() for part in sent]
        self._finish("all-to-all", lambda: self.gloo.alltoall_base(incoming, outgoing, receive, sizes, options))
        return list(incoming.split(receive))

    def _finish(self, what: str, start: Callable[[], Any]) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            text = " ".join(str(error).split())
            kind = EchoTimeoutError if "imed out" in text or "imeout" in text else EchoPeerError
            raise kind(f"all_reduce: {what} of call {self.sequence - 1} failed on rank {self.rank}: {text}") from None

    def _agree(self, x: Tensor, call: Call, feedback: bool) -> None:
        flags = _ROTATION * call.rotation + _FEEDBACK * feedback + _FLUSH * call.flush
        own = _HEADER.pack(self.sequence, x.numel(), call.row_length, _CODES[x.dtype], call.bits, flags, call.algorithm)
        self.sequence += 1
        headers = [
            bytes(part.tolist()) for part in self.all_gather(torch.frombuffer(bytearray(own), dtype=torch.uint8))
        ]
        self.sent.payload_bytes += (self.size - 1) * _HEADER.size
        for rank, header in enumerate(headers):
            if header != headers[0]:
                raise EchoMismatchError(
                    f"all_reduce: rank {rank} sent {_describe(header)}, rank 0 sent {_describe(headers[0])}; "
                    "all ranks must make the same calls"
                )

    def _one_shot(self, x: Tensor, call: Call, residuals: ops.Residuals | None) -> int:
        groups = (0, ops.groups_of(x.numel(), call.row_length))
        form = call.form()
        own = ops.encode(x, groups, residuals=residuals, with_owner=True, **form)
        self.sent.payload_bytes += (self.size - 1) * own.numel()
        return int(ops.decode(x, self.all_gather(own), groups, residuals=residuals, **form))

    def _two_shot(self, x: Tensor, call: Call, residuals: ops.Residuals | None) -> int:
        total = ops.groups_of(x.numel(), call.row_length)
        chunks = [ops.chunk(total, self.size, rank) for rank in range(self.size)]
        form = call.form()
        sizes = [ops.encoded_size(x.numel(), x.element_size(), call.row_length, call.bits, *chunk) for chunk in chunks]
        own = chunks[self.rank]
        empty = torch.empty(0, dtype=torch.uint8)

        # Shot 1: each foreign chunk to its owner.
        sent = [
            empty if r == self.rank else ops.encode(x, chunks[r], residuals=residuals, **form) for r in range(self.size)
        ]
        received = self._all_to_all(sent, [0 if r == self.rank else sizes[self.rank] for r in range(self.size)])
        addends = ops.reduce(
            received, x, self.rank, own, batch_invariant=self.batch_invariant, residuals=residuals, **form
        )

        # Shot 2: the encoded sum to all; chunks differ in length by a group at most, so all send the longest.
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: addends.numel()] = addends
        sums = [part[:size] for part, size in zip(self.all_gather(padded), sizes, strict=True)]
        self.sent.payload_bytes += sum(part.numel() for part in sent) + (self.size - 1) * addends.numel()

        poisoned = [
            ops.decode(x, [part], groups, residuals=residuals, **form)
            for part, groups in zip(sums, chunks, strict=True)
        ]
        return int(torch.cat(poisoned).sum())


# ---- choice ------------------------------------------------------------------------------------

_EXCHANGE_BYTES = 4096


def _exchange(route: InnerRoute, value: Any) -> list[Any]:
    """Small values of all ranks, as JSON. Waits longer than a rank may wait in vain to join the shared memory."""
    text = json.dumps(value).encode()[:_EXCHANGE_BYTES]
    own = torch.frombuffer(bytearray(text.ljust(_EXCHANGE_BYTES)), dtype=torch.uint8)
    return [json.loads(bytes(part.tolist())) for part in route.all_gather(own, patience=3)]


def _host() -> str:
    """Differs between hosts. Equal values prove nothing: only joining the shared memory does."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def open_route(gloo: dist.ProcessGroup, rank: int, size: int, config: EchoConfig) -> tuple[Route, str]:
    """Chooses and opens the route of a group; returns it with the reason. Collective."""
    inner = InnerRoute(gloo, rank, size, config)
    proposals = _exchange(
        inner,
        {"config": asdict(config), "host": _host(), "name": config.name or f"torch-{secrets.token_hex(12)}"},
    )
    first, *others = proposals
    for peer, other in enumerate(others, 1):
        if other["config"] != first["config"]:
            raise EchoMismatchError(
                f"rank {peer} has {other['config']}, rank 0 has {first['config']}; "
                "all ranks must use the same EchoConfig"
            )
    if config.transport == "inner":
        return inner, "asked for"
    hosts = {proposal["host"] for proposal in proposals}
    strict = config.transport == "shm" or config.name is not None
    if len(hosts) > 1:
        reason = f"the ranks are on {len(hosts)} hosts"
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
