"""Passes: which calls belong together, where feedback begins and where the flush is. numerics.md sections 1, 4, 5.

attach() registers forward hooks on a model. One forward of it is one pass: the hook in front begins it (nothing is
owed, site 0), every coded call in it is a site, and the last site pays what is owed. State never outlives a pass.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from echo_comm.torch.backend import EchoProcessGroup
from echo_comm.torch.config import EchoConfig
from echo_comm.torch.route import Route, State
from echo_comm.torch.stats import Stats

# Norms between a row-parallel layer and the residual stream, by the name of the module.
_POST_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_self_attn_layernorm")


class PostNormError(ValueError):
    """The model norms the outputs of its all-reduces before they join the residual stream: errors do not cancel."""


class Pass:
    """The calls of one forward, and what they owe."""

    def __init__(self, sites: int) -> None:
        self.sites = sites  # coded calls of a pass; 0: not known yet
        self._site = 0
        self._form: tuple[Any, ...] | None = None  # collective, count, row length and dtype of the pass
        self._state: State | None = None

    def begin(self) -> None:
        """Nothing is owed, the next call is site 0."""
        self._site, self._form = 0, None

    def end(self) -> None:
        """After a complete forward: learns the number of sites."""
        if self._site:
            self.sites = self._site

    @property
    def begun(self) -> bool:
        """Whether it has made a coded call."""
        return self._form is not None

    def fits(self, collective: str, x: Tensor) -> bool:
        """Whether the call on the whole tensor x has the form of the pass's first call."""
        return self._form is None or self._form == (collective, x.numel(), x.shape[-1], x.dtype)

    def next_site(self, collective: str, x: Tensor, route: Route, with_feedback: bool) -> tuple[State | None, bool]:
        """Residuals for the next call, and whether it is the flush."""
        if self._form is None:
            self._form = (collective, x.numel(), x.shape[-1], x.dtype)
            self._state = route.residuals(x.numel(), x.shape[-1], self._state) if with_feedback else None
        self._site += 1
        return self._state, self._state is not None and self._site == self.sites


def _echo_group(group: dist.ProcessGroup) -> EchoProcessGroup:
    if not isinstance(group, EchoProcessGroup):
        raise TypeError(
            f"attach: the group's backend is {dist.get_backend(group)!r}, expected 'echo'; make the mesh with "
            'backend_override={"tp": "echo"}'
        )
    return group


def row_parallel_modules(model: nn.Module, group: dist.ProcessGroup) -> list[nn.Module]:
    """Modules whose weight is cut along dimension 1 over `group`: their outputs are summed over the ranks."""
    found = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, DTensor) or weight.dim() != 2:
            continue
        mesh = weight.device_mesh
        if any(p.is_shard(1) and mesh.get_group(dim) is group for dim, p in enumerate(weight.placements)):
            found.append(module)
    return found


class Attachment:
    """The hooks of one model on one group; made by attach()."""

    def __init__(self, model: nn.Module, group: EchoProcessGroup, sites: int) -> None:
        self._group, self._pass = group, Pass(sites)
        self._outer: list[Pass | None] = []  # passes that were open when this one began
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._begin, prepend=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def _begin(self, _module: nn.Module, _args: Any) -> None:
        self._outer.append(self._group.active)
        self._group.active = self._pass
        self._group.pass_begun()
        self._pass.begin()

    def _end(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._group.active = self._outer.pop() if self._outer else None
        if output is not None:  # None: the forward ended by an exception
            self._pass.end()

    @property
    def sites(self) -> int:
        """Coded calls of a pass; 0: not known yet."""
        return self._pass.sites

    def stats(self) -> Stats:
        """Counters of the group."""
        return self._group.stats()

    def remove(self) -> None:
        """Undoes attach(). Calls outside passes are coded without feedback."""
        for handle in self._handles:
            handle.remove()
        if self._group.active is self._pass:
            self._group.active = None


def attach(
    model: nn.Module, group: dist.ProcessGroup, config: EchoConfig | None = None, *, force: bool = False
) -> Attachment:
    """Mark the passes of `model` for the echo group `group`.

    Registers forward hooks only; the model's code and parameters are untouched. Call it on all ranks alike, after the
    model was split, on the module whose forward is called.
    Returns a handle whose `remove()` undoes it. Raises PostNormError for models whose
    all-reduce outputs are normed before they join the residual stream, unless feedback is "none" or `force` is set.
    """
    echo_group = _echo_group(group)
    config = config or echo_group.config
    if config.feedback != "none" and not force:
        for name, _module in model.named_modules():
            if name.endswith(_POST_NORMS):
                raise PostNormError(
                    f"attach: {type(model).__name__} has a norm ({name}) between its all-reduces and the residual "
                    'stream, where feedback does not cancel errors; use EchoConfig(feedback="none"), or force=True '
                    "if you measured that it helps"
                )
    rows = row_parallel_modules(model, group)
    widths = {int(module.weight.shape[0]) for module in rows}  # type: ignore[union-attr, arg-type]
    hidden = widths.pop() if len(widths) == 1 else getattr(getattr(model, "config", None), "hidden_size", None)
    echo_group.configure(config, hidden)
    return Attachment(model, echo_group, len(rows))
