"""The inner group of an echo group: who carries what is not coded. Gloo for CPU tensors, NCCL for CUDA tensors, or a
group that the caller has already.

`ForwardingGroup` hands every call of c10d to it, under the names of torch 2.11 and of later versions, and counts them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_KINDS = dist.ProcessGroup.BackendType

# Torch 2.13 renamed some methods; callers use either name, the inner group of an older torch has only the first.
RENAMED = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}

# Never coded: they do not sum or gather activations.
NEVER_CODED = (
    "allgather",
    "allgather_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_single",
    "gather_into_tensor",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
)


def make_inner(store: dist.Store, rank: int, size: int, timeout: timedelta, ranks: list[int]) -> dist.ProcessGroup:
    """A group of Gloo for CPU tensors and, where there are GPUs, NCCL for CUDA tensors. Collective.

    ranks: the global rank of each member.
    """
    inner = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo/", store), rank, size, timeout)
    gloo.options.global_ranks_in_group = ranks  # torch reads it when it splits a group, without looking at its size
    _begin_sequence(gloo)
    inner._set_default_backend(_KINDS.GLOO)
    inner._register_backend(torch.device("cpu"), _KINDS.GLOO, gloo)
    if torch.cuda.is_available() and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.global_ranks_in_group = ranks
        nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl/", store), rank, size, options)
        _begin_sequence(nccl)
        inner._set_default_backend(_KINDS.NCCL)
        inner._register_backend(torch.device("cuda"), _KINDS.NCCL, nccl)
    return inner


def _begin_sequence(backend: Any) -> None:
    if not hasattr(dist.ProcessGroup, "all_gather_single"):  # torch < 2.13; later ones begin by themselves
        backend._set_sequence_number_for_group()


def method_of(inner: dist.ProcessGroup, name: str) -> Any:
    """A method by the newest of its names that the group has."""
    method = getattr(inner, RENAMED.get(name, name), None) or getattr(inner, name, None)
    if method is None:
        raise NotImplementedError(f"process groups of torch {torch.__version__} have no {name}")
    return method


def _kind_of(backend: Any) -> Any:
    return getattr(_KINDS, backend.name().upper(), _KINDS.CUSTOM)


def bytes_of(value: Any) -> int:
    """Bytes of a tensor, of tensors in lists; 0 for anything else."""
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(bytes_of, value)) if isinstance(value, (list, tuple)) else 0


class ForwardingGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that hands every call to `inner`. Subclasses replace what they do themselves."""

    def __init__(self, inner: dist.ProcessGroup, store: dist.Store, rank: int, size: int) -> None:
        super().__init__(rank, size)  # not with the store: that makes a group Python cannot override
        self._inner, self._store, self._rank, self._size = inner, store, rank, size
        self._name, self._desc = "", ""
        self._methods: dict[str, Any] = {}  # of the inner group, by name: every look-up costs
        # torch asks a group for its backends, and runs on them what Python cannot override: sequence numbers,
        # capabilities, hooks. What Python can override must be: the base class would run it while it holds the GIL,
        # which the inner group's threads may need to finish.
        for number, device in enumerate(sorted(inner._device_types, key=str, reverse=True)):  # CUDA's is the default
            backend = inner._get_backend(device)
            if number == 0:
                self._set_default_backend(_kind_of(backend))
            self._register_backend(device, _kind_of(backend), backend)

    # ---- what subclasses hear about --------------------------------------------------------------

    def forwarding(self, reason: str, size: int) -> None:
        """A call over `size` bytes is about to be handed to the inner group, because of `reason`."""

    def forward(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls the inner group's method, under the name that it has there."""
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = method_of(self._inner, name)
        return method(*args, **kwargs)

    # ---- names: those of this group, a given inner group keeps its own ------------------------------

    def setGroupName(self, name: str) -> None:
        """For torch."""
        self._name = name

    def getGroupName(self) -> str:
        """For torch."""
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        """For torch."""
        self._desc = desc

    def getGroupDesc(self) -> str:
        """For torch."""
        return self._desc

    def get_group_store(self) -> dist.Store:
        """For torch."""
        return self._store

    # ---- coalescing of backends that record calls (NCCL) --------------------------------------------

    def start_coalescing(self, device: torch.device) -> None:
        """For torch >= 2.13; _start_coalescing before."""
        self._inner._start_coalescing(device)

    def end_coalescing(self, device: torch.device) -> dist.Work:
        """For torch >= 2.13; _end_coalescing before."""
        return self._inner._end_coalescing(device)

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---- life ------------------------------------------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Longest wait of later forwarded calls."""
        self._inner.set_timeout(timeout)

    def abort(self) -> None:
        """Ends the calls under way with an error, as far as the inner group can; the group is unusable afterwards."""
        self._inner.abort()

    def shutdown(self) -> None:
        """Leaves the group."""
        self._inner.shutdown()


def _forwarding(name: str) -> Any:
    def method(self: ForwardingGroup, *args: Any, **kwargs: Any) -> Any:
        self.forwarding("collective", bytes_of(args[0]) if args else 0)
        return self.forward(name, *args, **kwargs)

    method.__name__, method.__doc__ = name, "Forwarded."
    return method


for _name in NEVER_CODED:
    setattr(ForwardingGroup, _name, _forwarding(_name))
    if _name in RENAMED:
        setattr(ForwardingGroup, RENAMED[_name], _forwarding(_name))
