"""The C interface (include/echo_comm/echo.h) through ctypes. Needs no torch.

The library is opened at the first use, not at import. Every failing call raises EchoError or a subclass of it with
the library's text. ctypes releases the GIL during calls, so a waiting rank does not stop other threads.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Literal, get_args

BITS_EXACT = 16  # bits of the exact path
GROUP = 64  # values per group

FLOAT16, FLOAT32, BFLOAT16 = 6, 7, 9  # echo_dtype_t
ONE_SHOT, TWO_SHOT = 1, 2  # echo_algorithm_t
ON, OFF = 1, 2  # echo_switch_t
SUM, AVG = 0, 4  # echo_op_t


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

LogFn = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class _Struct(ctypes.Structure):
    """A struct of the C interface: starts with its own size, zero elsewhere, as its _INITIALIZER macro."""

    def __init__(self, **fields: object) -> None:
        super().__init__(ctypes.sizeof(self), **fields)


class Config(_Struct):
    _fields_ = [
        ("size", c_size_t),
        ("timeout_ms", c_int64),
        ("slot_bytes", c_int64),
        ("batch_invariant", c_int),
        ("log", LogFn),
        ("log_context", c_void_p),
        ("threads", c_int),
        ("table", c_char_p),
        ("tune", c_int),
    ]


class CallOptions(_Struct):
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
        ("table_exact_calls", c_uint64),
        ("control_calls", c_uint64),
    ]


class PathOfCall(_Struct):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int),
        ("algorithm", c_int),
        ("bits", c_int),
        ("segment_values", c_int64),
        ("depth", c_int),
        ("reason", c_char_p),
    ]


# In the order of echo_store_t.
Store = Literal["auto", "fp32", "int8", "int16"]
STORES = get_args(Store)

_SUM_INTO = [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, POINTER(CallOptions)]
_SCATTER = [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_int, c_void_p, c_void_p, POINTER(CallOptions)]
_GATHER = [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_int, c_void_p, POINTER(CallOptions)]

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "echo_result_string": (c_char_p, [c_int]),
    "echo_last_error": (c_char_p, []),
    "echo_version": (c_int, []),
    "echo_comm_create": (c_int, [c_char_p, POINTER(Config), POINTER(c_void_p)]),
    "echo_comm_transport": (c_char_p, [c_void_p]),
    "echo_comm_abort": (c_int, [c_void_p, c_char_p]),
    "echo_comm_destroy": (None, [c_void_p]),
    "echo_comm_stats": (c_int, [c_void_p, POINTER(CommStats)]),
    "echo_feedback_create": (c_int, [c_void_p, c_size_t, c_int, POINTER(c_void_p)]),
    "echo_feedback_reset": (c_int, [c_void_p]),
    "echo_feedback_bytes": (c_size_t, [c_void_p]),
    "echo_feedback_norms": (c_int, [c_void_p, POINTER(c_float), POINTER(c_float)]),
    "echo_feedback_save": (c_int, [c_void_p, c_void_p, POINTER(c_size_t)]),
    "echo_feedback_load": (c_int, [c_void_p, c_char_p, c_size_t]),
    "echo_feedback_destroy": (None, [c_void_p]),
    "echo_select": (c_int, [c_size_t, c_size_t, c_int, c_int, c_int, POINTER(c_int)]),
    "echo_comm_rank": (c_int, [c_void_p]),
    "echo_comm_size": (c_int, [c_void_p]),
    "echo_comm_last_path": (c_int, [c_void_p, POINTER(PathOfCall)]),
    "echo_comm_choose": (c_int, [c_void_p, c_int, c_size_t, c_int, POINTER(CallOptions), POINTER(PathOfCall)]),
    "echo_comm_table": (c_char_p, [c_void_p]),
    "echo_all_reduce": (c_int, _SUM_INTO),
    "echo_reduce_scatter": (c_int, _SCATTER),
    "echo_all_gather": (c_int, _GATHER),
    "echo_broadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p]),
    "echo_barrier": (c_int, [c_void_p]),
    "echo_all_reduce_start": (c_int, [*_SUM_INTO, POINTER(c_void_p)]),
    "echo_reduce_scatter_start": (c_int, [*_SCATTER, POINTER(c_void_p)]),
    "echo_all_gather_start": (c_int, [*_GATHER, POINTER(c_void_p)]),
    "echo_test": (c_int, [c_void_p, POINTER(c_int)]),
    "echo_wait": (c_int, [c_void_p]),
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
