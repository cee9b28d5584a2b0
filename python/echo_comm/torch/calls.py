"""The collectives of the C library on tensors: what route.py needs of them, in one form."""

from __future__ import annotations

from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from typing import Any

import torch
from torch import Tensor

from echo_comm._library import _OFF, _ON, BFLOAT16, FLOAT16, FLOAT32, Communicator, Feedback, _Call, check, library

CODES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
_SUM, _AVG = 0, 4  # echo_op_t

_WITH_PARTS = [c_void_p, c_void_p, c_size_t, POINTER(c_size_t), c_int, c_void_p]
_ARGUMENTS = {
    "echo_all_reduce": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p, POINTER(_Call)],
    "echo_reduce_scatter": [*_WITH_PARTS, c_void_p, POINTER(_Call)],
    "echo_all_gather": [*_WITH_PARTS, POINTER(_Call)],
}


def _function(name: str) -> Any:
    function = getattr(library(), name)
    function.restype, function.argtypes = c_int, _ARGUMENTS[name]
    return function


def _options(*, average: bool = False, rotation: bool = True, **fields: int) -> Any:
    return byref(_Call(op=_AVG if average else _SUM, rotation=_ON if rotation else _OFF, **fields))


def all_reduce(comm: Communicator, x: Tensor, state: Feedback | None, **options: Any) -> None:
    """See echo_all_reduce; in place."""
    feedback, function = state.handle if state else None, _function("echo_all_reduce")
    address, count = x.data_ptr(), x.numel()
    with comm._lock:
        check(function(address, address, count, CODES[x.dtype], comm.handle, feedback, _options(**options)))


def reduce_scatter(comm: Communicator, whole: Tensor, part: Tensor, state: Feedback | None, **options: Any) -> None:
    """See echo_reduce_scatter; equal parts."""
    feedback, function = state.handle if state else None, _function("echo_reduce_scatter")
    arguments = (whole.data_ptr(), part.data_ptr(), whole.numel(), None, CODES[whole.dtype], comm.handle, feedback)
    with comm._lock:
        check(function(*arguments, _options(**options)))


def all_gather(comm: Communicator, part: Tensor, whole: Tensor, **options: Any) -> None:
    """See echo_all_gather; equal parts."""
    function = _function("echo_all_gather")
    arguments = (part.data_ptr(), whole.data_ptr(), whole.numel(), None, CODES[whole.dtype], comm.handle)
    with comm._lock:
        check(function(*arguments, _options(**options)))
