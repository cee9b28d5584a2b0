"""Data parallelism: a communication hook for DistributedDataParallel that sends gradients in few bits.

    model = DistributedDataParallel(model, process_group=group)      # an echo group of the data-parallel ranks
    model.register_comm_hook(DDPState(group), ddp_hook)

What rounding loses of a bucket in one step is added to the same bucket in the next, so that it reaches the weights
later instead of never. Unlike the residuals of a pass these live as long as the training: they belong into the
checkpoint (state_dict) and are forgotten when DDP cuts other buckets.
"""

# No `from __future__ import annotations`: DDP looks at the types that its hook declares.
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from echo_comm._library import EchoArgumentError
from echo_comm.torch.backend import EchoProcessGroup
from echo_comm.torch.config import BITS
from echo_comm.torch.route import State


class _Bucket:
    """What is owed of one bucket."""

    def __init__(self, count: int, dtype: torch.dtype, state: State | None) -> None:
        self.count, self.dtype, self.state = count, dtype, state

    def fits(self, x: Tensor) -> bool:
        return (self.count, self.dtype) == (x.numel(), x.dtype)


class DDPState:
    """What ddp_hook() needs from step to step. One for each DistributedDataParallel module.

    group      the echo group of the module's process_group; its settings count, but for bits and feedback
    bits       3, 4, 5, 6, 8, or 16: the exact path
    feedback   whether what rounding loses is added to the next step
    """

    def __init__(self, group: dist.ProcessGroup, *, bits: int = 4, feedback: bool = True) -> None:
        if not isinstance(group, EchoProcessGroup):
            raise TypeError(
                f"DDPState: the group's backend is {dist.get_backend(group)!r}, expected 'echo'; make it by "
                'new_group(backend="echo") or wrap()'
            )
        if bits not in BITS:
            raise ValueError(f"DDPState: bits is {bits!r}, expected one of {', '.join(map(str, BITS))}")
        self.group, self.bits, self.feedback = group, bits, feedback
        self.resets = 0  # buckets that were forgotten because DDP cut others
        self._buckets: dict[int, _Bucket] = {}
        self._loaded: dict[int, dict[str, Any]] = {}  # of load_state_dict, until their buckets come

    def residuals_of(self, index: int, x: Tensor) -> State | None:
        """Residuals of bucket `index`, whose gradients are x."""
        if not self.feedback:
            return None
        bucket = self._buckets.get(index)
        if bucket is None or not bucket.fits(x):
            self.resets += bucket is not None
            route = self.group.open()
            assert route is not None
            bucket = _Bucket(x.numel(), x.dtype, route.residuals(x.numel(), x.numel(), None))
            loaded = self._loaded.pop(index, None)
            if loaded is not None and (loaded["count"], loaded["dtype"]) == (x.numel(), str(x.dtype)):
                assert bucket.state is not None
                bucket.state.load(loaded["state"])
            self._buckets[index] = bucket
        return bucket.state

    def state_dict(self) -> dict[str, Any]:
        """What is owed, of this rank: every rank saves its own. Between steps."""
        self.group.stats()  # waits for started calls
        buckets = {
            index: {"count": bucket.count, "dtype": str(bucket.dtype), "state": bucket.state.save()}
            for index, bucket in self._buckets.items()
            if bucket.state is not None
        }
        return {"rank": self.group.rank(), "size": self.group.size(), "buckets": {**self._loaded, **buckets}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from state_dict() of the same rank. Buckets that come with another size start with nothing owed."""
        saved, own = (state["rank"], state["size"]), (self.group.rank(), self.group.size())
        if saved != own:
            raise EchoArgumentError(
                f"DDPState: saved by rank {saved[0]} of {saved[1]}, this is rank {own[0]} of {own[1]}; what is owed "
                "belongs to one rank: start without it"
            )
        self._buckets = {}
        self._loaded = dict(state["buckets"])


def ddp_hook(state: DDPState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Averages a bucket of gradients over the ranks in few bits; see DDPState. For register_comm_hook()."""
    x, group = bucket.buffer(), state.group
    if group.reason_to_forward_bucket(x):
        x.mul_(1.0 / group.size())  # as DDP itself: under exact() the results are the same, bit for bit
        return group.allreduce([x]).get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]
    work = group.coded_average(x, state.residuals_of(bucket.index(), x), state.bits)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]
