"""A coded call as c10d asks for it, and as what a route can carry out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from echo_comm._library import EchoArgumentError, EchoError
from echo_comm.torch.inner import bytes_of
from echo_comm.torch.route import Call, Route, State


@dataclass(frozen=True)
class Asked:
    """A call as c10d asks for it."""

    collective: str  # all_reduce, reduce_scatter or all_gather
    whole: Tensor  # the tensor of all ranks: what is summed, or what is gathered
    part: Tensor  # this rank's part of it; all_reduce: the same tensor
    opts: Any

    @property
    def written(self) -> Tensor:
        """Where the result goes."""
        return self.part if self.collective == "reduce_scatter" else self.whole


def runs_again() -> bool:
    """Whether, in a backward(), activation checkpointing runs a part of the forward again (or create_graph is set).

    The bodies of autograd functions run without gradients, so that these do not tell alone.
    """
    if torch.is_grad_enabled():
        return True
    node = torch._C._current_autograd_node()
    if node is not None and "Checkpoint" in node.name():
        return True
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and "recomputation" in getattr(hooks[0], "__qualname__", "")


def refuse_overlap(asked: Asked) -> None:
    """Raises where two elements of the result have one place."""
    x = asked.written
    if any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True)):
        raise EchoArgumentError(
            f"{asked.collective}: the tensor overlaps itself (shape {tuple(x.shape)}, strides {x.stride()}); "
            "pass a contiguous copy"
        )


def call_of(asked: Asked, route: Route, call: Call, state: State | None) -> Callable[[], None]:
    """The call as a function. Routes take contiguous tensors: strided ones are copied there and back."""
    whole, part = asked.whole.detach(), asked.part.detach()

    def run() -> None:
        try:
            go()
        except EchoError as error:
            if asked.collective in str(error):
                raise
            what = f"{asked.collective} of {bytes_of(whole)} bytes ({tuple(whole.shape)}, {whole.dtype}, {route.name})"
            raise type(error)(f"{what}: {error}", error.result) from None

    def go() -> None:
        if asked.collective == "all_reduce":
            dense = whole.contiguous()
            route.all_reduce(dense, call, state)
        elif asked.collective == "reduce_scatter":
            dense = part if part.is_contiguous() else torch.empty(part.shape, dtype=part.dtype)
            route.reduce_scatter(whole.contiguous(), dense, call, state)
        else:
            dense = whole if whole.is_contiguous() else torch.empty(whole.shape, dtype=whole.dtype)
            route.all_gather(part.contiguous(), dense, call)
        written = asked.written.detach()
        if not written.is_contiguous():
            written.copy_(dense)

    return run
