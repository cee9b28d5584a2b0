"""The C interface (include/echo_comm/echo.h) through ctypes. Needs no torch.

The library is opened at the first use, not at import. Every failing call raises EchoError or a subclass of it with
the library's text. ctypes releases the GIL during calls, so a waiting rank does not stop other threads.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Literal, get_args

BITS_EXACT = 16  # bits of the exact path
GROUP = 64  # values per group

FLOAT16, FLOAT32, BFLOAT16 = 6, 7, 9  # echo_dtype_t
ONE_SHOT, TWO_SHOT = 1, 2  # echo_algorithm_t
_ON, _OFF = 1, 2  # echo_switch_t


class EchoError(RuntimeError):
    """A call of the library failed. `result` is its echo_result_t."""

    result = 9

    def __init__(self, text: str, result: int | None = None) -> None:
        super().__init__(text)
        if result is not None:
            self.result = result


class EchoArgumentError(EchoError, ValueError):
    """This rank's own arguments are wrong; nothing was sent, the communicator still works."""

    result = 1


class EchoStateError(EchoError):
    """Wrong order of calls, a failed communicator, or a name in use by a live job."""

    result = 2


class EchoMismatchError(EchoError):
    """Ranks disagree about a call; the text names both sides."""

    result = 3


class EchoTimeoutError(EchoError, TimeoutError):
    """A rank did not arrive in time."""

    result = 4


class EchoPeerError(EchoError, ConnectionError):
    """A rank died or left."""

    result = 5


class EchoAbortedError(EchoError):
    """Communicator.abort() was called on some rank."""

    result = 6


class EchoSystemError(EchoError, OSError):
    """An operating system call failed, e.g. not enough shared memory."""

    result = 7


_ERRORS: dict[int, type[EchoError]] = {
    error.result: error
    for error in (
        EchoArgumentError,
        EchoStateError,
        EchoMismatchError,
        EchoTimeoutError,
        EchoPeerError,
        EchoAbortedError,
        EchoSystemError,
    )
}

_LogFn = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class _Struct(ctypes.Structure):
    """A struct of the C interface: starts with its own size, zero elsewhere, as its _INITIALIZER macro."""

    def __init__(self, **fields: object) -> None:
        super().__init__(ctypes.sizeof(self), **fields)


class _Config(_Struct):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("slot_bytes", c_int64),
        ("batch_invariant", c_int),
        ("log", _LogFn),
        ("log_context", c_void_p),
        ("threads", c_int),
    ]


class _Call(_Struct):
    _fields_ = [
        ("size", c_size_t),
        ("op", c_int),
        ("bits", c_int),
        ("flush", c_int),
        ("algorithm", c_int),
        ("rotation", c_int),
        ("row_length", c_size_t),
    ]


class CommStats(_Struct):
    """Counters of a communicator since its creation; see echo_stats_t."""

    _fields_ = [
        ("size", c_size_t),
        ("calls", c_uint64),
        ("coded_calls", c_uint64),
        ("exact_calls", c_uint64),
        ("passed_calls", c_uint64),
        ("one_shot_calls", c_uint64),
        ("flush_calls", c_uint64),
        ("logical_bytes", c_uint64),
        ("payload_bytes", c_uint64),
        ("messages", c_uint64),
        ("poisoned_groups", c_uint64),
        ("waits", c_uint64),
        ("wait_ns", c_uint64),
        ("shm_bytes", c_uint64),
        ("threads", c_uint64),
    ]


# In the order of echo_store_t.
Store = Literal["auto", "fp32", "int8", "int16"]
STORES = get_args(Store)

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "echo_result_string": (c_char_p, [c_int]),
    "echo_last_error": (c_char_p, []),
    "echo_version": (c_int, []),
    "echo_comm_create": (c_int, [c_char_p, POINTER(_Config), POINTER(c_void_p)]),
    "echo_comm_transport": (c_char_p, [c_void_p]),
    "echo_comm_abort": (c_int, [c_void_p, c_char_p]),
    "echo_comm_destroy": (None, [c_void_p]),
    "echo_comm_stats": (c_int, [c_void_p, POINTER(CommStats)]),
    "echo_feedback_create": (c_int, [c_void_p, c_size_t, c_int, POINTER(c_void_p)]),
    "echo_feedback_reset": (c_int, [c_void_p]),
    "echo_feedback_bytes": (c_size_t, [c_void_p]),
    "echo_feedback_norms": (c_int, [c_void_p, POINTER(c_float), POINTER(c_float)]),
    "echo_feedback_destroy": (None, [c_void_p]),
    "echo_select": (c_int, [c_size_t, c_size_t, c_int, c_int, c_int, POINTER(c_int)]),
    "echo_all_reduce": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, POINTER(_Call)]),
}


def find_binary(pattern: str) -> Path | None:
    """A binary of the package: in lib beside this file, or where an editable install keeps it."""
    package = sys.modules["echo_comm"]
    for folder in (Path(__file__).parent, *map(Path, package.__path__)):
        found = sorted((folder / "lib").glob(pattern))
        if found:
            return found[0]
    return None


@cache
def library() -> ctypes.CDLL:
    """The loaded C library with typed functions."""
    file = find_binary("libecho_comm.so*")
    if file is None:
        raise EchoError("libecho_comm.so is not in the package echo_comm; install it: pip install .")
    loaded = ctypes.CDLL(str(file))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def check(result: int) -> None:
    """Turns an echo_result_t into an exception with the library's text."""
    if result != 0:
        text = library().echo_last_error().decode(errors="replace")
        name = library().echo_result_string(result).decode()
        raise _ERRORS.get(result, EchoError)(text or name, result)


def library_version() -> str:
    """Version of the C library that is loaded, "major.minor.patch"."""
    number = library().echo_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


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


class Communicator:
    """One rank of a communicator named by a transport URL, e.g. "shm://NAME?rank=0&size=2"."""

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int = 0,
        batch_invariant: bool = False,
        threads: int = 0,
        log: Callable[[int, str], None] | None = None,
    ) -> None:
        def forward(level: int, line: bytes, _context: int) -> None:
            assert log is not None
            log(level, line.decode(errors="replace"))

        self._log = _LogFn(forward) if log else _LogFn()  # kept alive as long as the communicator
        config = _Config(
            timeout_ms=timeout_ms, batch_invariant=_ON if batch_invariant else 0, log=self._log, threads=threads
        )
        handle = c_void_p()
        check(library().echo_comm_create(url.encode(), byref(config), byref(handle)))
        self.handle = handle
        self._lock = threading.Lock()  # the C library allows one call at a time

    @property
    def transport(self) -> str:
        """Name of the transport."""
        return str(library().echo_comm_transport(self.handle).decode())

    def all_reduce(
        self,
        address: int,
        count: int,
        dtype: int,
        *,
        feedback: Feedback | None = None,
        bits: int = 4,
        flush: bool = False,
        algorithm: int = 0,
        rotation: bool = True,
        row_length: int = 0,
    ) -> None:
        """Sums `count` elements at `address` over all ranks, in place; see echo_all_reduce."""
        switch = _ON if rotation else _OFF
        call = _Call(bits=bits, flush=int(flush), algorithm=algorithm, rotation=switch, row_length=row_length)
        state = feedback.handle if feedback is not None else None
        with self._lock:
            check(library().echo_all_reduce(address, address, count, dtype, self.handle, state, byref(call)))

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

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.close()
