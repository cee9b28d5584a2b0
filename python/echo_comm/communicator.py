"""Communicators over plain memory: the collectives of the C library (include/echo_comm/echo.h). Needs no torch.

Tensors are given as the address of their first element, a count and one of FLOAT16, FLOAT32, BFLOAT16. Of an array from
`array` that is `data.buffer_info()[0]`, of NumPy `x.ctypes.data`, of torch `x.data_ptr()`. The memory belongs to the
caller and must stay where it is until the call has returned (a started call: until wait() has).

A communicator may be used by any thread, by one at a time: calls wait for each other.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Sequence
from ctypes import Array, byref, c_float, c_int, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from echo_comm._library import (
    AVG,
    OFF,
    ON,
    STORES,
    SUM,
    CallOptions,
    CommStats,
    Config,
    EchoArgumentError,
    EchoStateError,
    LogFn,
    PathOfCall,
    Store,
    check,
    library,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing.Unpack is there from Python 3.11 on, with TypedDict from 3.12

Collective = Literal["all_reduce", "reduce_scatter", "all_gather"]  # in the order of echo_collective_t, from 1 on
PathKind = Literal["forward", "exact", "coded"]  # echo_path_kind_t, from 1 on


class Options(TypedDict, total=False):
    """Options of a call, equal on all ranks; see echo_call_t."""

    average: bool  # AVG instead of SUM
    bits: int  # 3, 4, 5, 6, 8 or 16 (exact); 0: by the table, else 4, or 8 with flush
    flush: bool  # last call of the pass
    algorithm: int  # ONE_SHOT, TWO_SHOT; 0: by size
    rotation: bool  # default True
    row_length: int  # elements of a row; 0: one row


def _call(options: Options) -> CallOptions:
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise EchoArgumentError(
            f"unknown options {', '.join(sorted(unknown))}; there are {', '.join(Options.__annotations__)}"
        )
    return CallOptions(
        op=AVG if options.get("average") else SUM,
        bits=options.get("bits", 0),
        flush=int(options.get("flush", False)),
        algorithm=options.get("algorithm", 0),
        rotation=ON if options.get("rotation", True) else OFF,
        row_length=options.get("row_length", 0),
    )


@dataclass(frozen=True)
class Path:
    """How a call goes, and why; see echo_path_t."""

    kind: PathKind
    algorithm: int  # ONE_SHOT or TWO_SHOT of an all-reduce, else 0
    bits: int
    segment_values: int
    depth: int
    reason: str

    @classmethod
    def _of(cls, path: PathOfCall) -> Path:
        kind = get_args(PathKind)[path.kind - 1]
        return cls(kind, path.algorithm, path.bits, path.segment_values, path.depth, path.reason.decode())


class Feedback:
    """Residuals of one pass at a time, for tensors of up to `capacity` elements.

    store: how they are kept, "fp32", "int8" or "int16"; "auto": int8, from the 257th call of a pass on int16.
    """

    def __init__(self, comm: Communicator, capacity: int, store: Store = "auto") -> None:
        handle = c_void_p()
        check(library().echo_feedback_create(comm.handle, capacity, STORES.index(store), byref(handle)))
        self.handle, self.capacity = handle, capacity

    def reset(self) -> None:
        """Begins a new pass."""
        check(library().echo_feedback_reset(self.handle))

    def norms(self) -> tuple[float, float]:
        """What the pass owes on this rank: largest magnitude in the sender and in the owner residual."""
        sender, owner = c_float(), c_float()
        check(library().echo_feedback_norms(self.handle, byref(sender), byref(owner)))
        return sender.value, owner.value

    def save(self) -> builtins.bytes:
        """The pass as bytes, for a checkpoint. Between calls; see echo_feedback_save."""
        size = c_size_t()
        check(library().echo_feedback_save(self.handle, None, byref(size)))
        state = create_string_buffer(size.value)
        check(library().echo_feedback_save(self.handle, state, byref(size)))
        return state.raw

    def load(self, state: builtins.bytes) -> None:
        """Goes on with a pass that save() of the same rank gave; see echo_feedback_load."""
        if not isinstance(state, builtins.bytes):
            raise EchoArgumentError(f"Feedback.load: expected the bytes of save(), got {type(state).__name__}")
        check(library().echo_feedback_load(self.handle, state, len(state)))

    @property
    def bytes(self) -> int:
        """Memory held."""
        return int(library().echo_feedback_bytes(self.handle))

    def close(self) -> None:
        """Frees the residuals; the object is unusable afterwards."""
        handle, self.handle = self.handle, c_void_p()
        library().echo_feedback_destroy(handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.close()


class Request:
    """A started call. Its buffers and residuals belong to it until wait() has returned."""

    def __init__(self, handle: c_void_p, feedback: Feedback | None) -> None:
        self._handle, self._feedback = handle, feedback

    def test(self) -> bool:
        """Whether the call has ended, well or not. Never waits."""
        done = c_int(1)
        if self._handle:
            check(library().echo_test(self._handle, byref(done)))
        return done.value != 0

    def wait(self) -> None:
        """Waits for the call and raises what went wrong in it. Once."""
        handle, self._handle = self._handle, c_void_p()
        if not handle:
            raise EchoStateError("this request has been waited for")
        check(library().echo_wait(handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):  # the memory it works on would otherwise be let go under it
            library().echo_wait(self._handle)


class Communicator:
    """One rank of a communicator named by a transport URL, e.g. "shm://NAME?rank=0&size=2"; see echo_comm_create.

    timeout_ms: longest wait of creation and of any call; 0: the library's default, 30 s.
    table: rows of the table of choices or "@FILE"; tune: measure it now (docs/tuning.md). Rank 0's counts.
    threads: threads that code large calls; 0: the library's choice. log: receives level (0, 1) and line.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int = 0,
        batch_invariant: bool = False,
        threads: int = 0,
        table: str | None = None,
        tune: bool | None = None,
        log: Callable[[int, str], None] | None = None,
    ) -> None:
        def forward(level: int, line: bytes, _context: int) -> None:
            assert log is not None
            log(level, line.decode(errors="replace"))

        self._log = LogFn(forward) if log else LogFn()  # kept alive as long as the communicator
        config = Config(
            timeout_ms=timeout_ms,
            batch_invariant=ON if batch_invariant else 0,
            log=self._log,
            threads=threads,
            table=None if table is None else table.encode(),
            tune=0 if tune is None else ON if tune else OFF,
        )
        handle = c_void_p()
        check(library().echo_comm_create(url.encode(), byref(config), byref(handle)))
        self.handle = handle
        self._lock = threading.Lock()  # the C library allows one call at a time

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""
        return int(library().echo_comm_rank(self.handle))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(library().echo_comm_size(self.handle))

    @property
    def transport(self) -> str:
        """Name of the transport."""
        return str(library().echo_comm_transport(self.handle).decode())

    # ---- collectives: `source` and `target` are addresses; see this module's text

    def all_reduce(
        self,
        source: int,
        count: int,
        dtype: int,
        *,
        target: int | None = None,
        feedback: Feedback | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Sums `count` elements over all ranks, into `target` or in place; see echo_all_reduce."""
        into = source if target is None else target
        arguments = (source, into, count, dtype, self.handle, _state(feedback), byref(_call(options)))
        with self._lock:
            check(library().echo_all_reduce(*arguments))

    def reduce_scatter(
        self,
        source: int,
        target: int,
        count: int,
        dtype: int,
        *,
        counts: Sequence[int] | None = None,
        feedback: Feedback | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Sums the `count` elements at `source` over all ranks; `target` becomes this rank's part of the sum.

        counts: elements of each rank's part; None: equal parts. See echo_reduce_scatter.
        """
        parts, state = self._parts(counts), _state(feedback)
        arguments = (source, target, count, parts, dtype, self.handle, state, byref(_call(options)))
        with self._lock:
            check(library().echo_reduce_scatter(*arguments))

    def all_gather(
        self,
        source: int,
        target: int,
        count: int,
        dtype: int,
        *,
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Puts the parts of all ranks (`source`) together in `target`, `count` elements; see echo_all_gather."""
        arguments = (source, target, count, self._parts(counts), dtype, self.handle, byref(_call(options)))
        with self._lock:
            check(library().echo_all_gather(*arguments))

    def broadcast(self, address: int, count: int, dtype: int, *, root: int) -> None:
        """Copies `count` elements of rank `root` to all, in place, bit for bit."""
        with self._lock:
            check(library().echo_broadcast(address, address, count, dtype, root, self.handle))

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        with self._lock:
            check(library().echo_barrier(self.handle))

    # ---- the same without waiting for them

    def start_all_reduce(
        self,
        source: int,
        count: int,
        dtype: int,
        *,
        target: int | None = None,
        feedback: Feedback | None = None,
        **options: Unpack[Options],
    ) -> Request:
        """Starts all_reduce()."""
        into, request = source if target is None else target, c_void_p()
        arguments = (source, into, count, dtype, self.handle, _state(feedback), byref(_call(options)))
        with self._lock:
            check(library().echo_all_reduce_start(*arguments, byref(request)))
        return Request(request, feedback)

    def start_reduce_scatter(
        self,
        source: int,
        target: int,
        count: int,
        dtype: int,
        *,
        counts: Sequence[int] | None = None,
        feedback: Feedback | None = None,
        **options: Unpack[Options],
    ) -> Request:
        """Starts reduce_scatter()."""
        parts, state, request = self._parts(counts), _state(feedback), c_void_p()
        arguments = (source, target, count, parts, dtype, self.handle, state, byref(_call(options)))
        with self._lock:
            check(library().echo_reduce_scatter_start(*arguments, byref(request)))
        return Request(request, feedback)

    def start_all_gather(
        self,
        source: int,
        target: int,
        count: int,
        dtype: int,
        *,
        counts: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Request:
        """Starts all_gather()."""
        request = c_void_p()
        arguments = (source, target, count, self._parts(counts), dtype, self.handle, byref(_call(options)))
        with self._lock:
            check(library().echo_all_gather_start(*arguments, byref(request)))
        return Request(request, None)

    # ---- which way calls go

    def last_path(self) -> Path:
        """How the last collective that succeeded went; EchoStateError before the first."""
        path = PathOfCall()
        check(library().echo_comm_last_path(self.handle, byref(path)))
        return Path._of(path)

    def choose(
        self, collective: Collective, count: int, *, with_feedback: bool = False, **options: Unpack[Options]
    ) -> Path:
        """How such a call would go, without making it; `count` elements of the whole tensor. Equal on all ranks."""
        path, names = PathOfCall(), get_args(Collective)
        if collective not in names:
            raise EchoArgumentError(f"collective {collective!r}; there are {', '.join(names)}")
        number = names.index(collective) + 1
        call = byref(_call(options))
        check(library().echo_comm_choose(self.handle, number, count, int(with_feedback), call, byref(path)))
        return Path._of(path)

    @property
    def table(self) -> str:
        """The table of choices in use, one row a line; "" when the built-in rules alone count."""
        with self._lock:
            return str(library().echo_comm_table(self.handle).decode())

    def stats(self) -> CommStats:
        """Counters since creation."""
        stats = CommStats()
        check(library().echo_comm_stats(self.handle, byref(stats)))
        return stats

    def abort(self, reason: str) -> None:
        """Makes calls in progress and all later ones fail on every rank."""
        check(library().echo_comm_abort(self.handle, reason.encode()))

    def close(self) -> None:
        """Leaves; peers that still wait for this rank get EchoPeerError."""
        handle, self.handle = self.handle, c_void_p()
        library().echo_comm_destroy(handle)

    def _parts(self, counts: Sequence[int] | None) -> Array[c_size_t] | None:
        if counts is None:
            return None
        if len(counts) != self.size or min(counts) < 0:
            raise EchoArgumentError(f"counts {list(counts)} must be {self.size} numbers that are not negative")
        return (c_size_t * len(counts))(*counts)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.close()


def _state(feedback: Feedback | None) -> c_void_p | None:
    return feedback.handle if feedback is not None else None
