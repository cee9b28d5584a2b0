"""Passes: which calls belong together, where feedback begins and where the flush is. numerics.md sections 1, 4, 5, 7.

attach() registers forward hooks on a model. One forward of it is one pass: the hook in front begins it (nothing is
owed, site 0), every coded call in it is a site, and the last site pays what is owed. One backward of it is a pass too,
if attach() is told so; it begins when the gradient of an output is there. A block that activation checkpointing runs
again is a pass of its own in both runs, so that both give the same bits. State never outlives a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from echo_comm.torch.backend import EchoProcessGroup
from echo_comm.torch.config import EchoConfig
from echo_comm.torch.gradients import NORMS, columns_of
from echo_comm.torch.route import Route, State
from echo_comm.torch.stats import Stats

# Norms between a row-parallel layer and the residual stream, by the name of the module.
_POST_NORMS = ("post_feedforward_layernorm", "post_mlp_layernorm", "post_self_attn_layernorm")


class PostNormError(ValueError):
    """The model norms the outputs of its all-reduces before they join the residual stream: errors do not cancel."""


# Where the sums of a backward pass are coded; exact: they are forwarded.
Backward = Literal["exact", "post_norm", "pre_norm"]


class Pass:
    """The calls of one forward or backward, and what they owe."""

    def __init__(self, sites: int, *, runs_again: bool = False) -> None:
        self.sites = sites  # coded calls of a pass; 0: not known yet
        self.runs_again = runs_again  # a checkpointed block: a forward, also inside a backward()
        self._site = 0
        self._form: tuple[Any, ...] | None = None  # collective, count, row length and dtype of the pass
        self._state: State | None = None

    def begin(self) -> None:
        """Nothing is owed, the next call is site 0."""
        self._site, self._form = 0, None

    def end(self) -> None:
        """After a complete forward or backward: learns the number of sites."""
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


def _group_of(model: nn.Module) -> EchoProcessGroup:
    """The echo group over which the weights of `model` are cut along dimension 1."""
    groups = {}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, DTensor) and weight.dim() == 2:
            for dim, placement in enumerate(weight.placements):
                if placement.is_shard(1):
                    group = weight.device_mesh.get_group(dim)
                    groups[id(group)] = group
    echo_groups = [group for group in groups.values() if isinstance(group, EchoProcessGroup)]
    if len(echo_groups) != 1:
        backends = sorted(dist.get_backend(group) for group in groups.values())
        raise ValueError(
            f"attach: the row-parallel weights of {type(model).__name__} are cut over groups of {backends}; expected "
            "is exactly one of 'echo': make the mesh or the default group with it, or give the group"
        )
    return echo_groups[0]


def row_parallel_modules(model: nn.Module, group: dist.ProcessGroup) -> list[nn.Module]:
    """Modules whose weight is cut along dimension 1 over `group`: their outputs are summed over the ranks."""
    found = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, DTensor) or weight.dim() != 2 or isinstance(module, nn.Embedding):
            continue
        mesh = weight.device_mesh
        if any(p.is_shard(1) and mesh.get_group(dim) is group for dim, p in enumerate(weight.placements)):
            found.append(module)
    return found


def _wrapped_blocks(model: nn.Module) -> list[nn.Module]:
    """What torch's CheckpointWrapper runs twice."""
    return [module._checkpoint_wrapped_module for module in model.modules() if isinstance(module, CheckpointWrapper)]


def _self_checkpointing_blocks(model: nn.Module) -> list[nn.Module]:
    """Layers of transformers that can checkpoint themselves."""
    bases = "GradientCheckpointingLayer"
    return [module for module in model.modules() if any(base.__name__ == bases for base in type(module).__mro__)]


class _CheckpointFunction:
    """In place of a transformers layer's checkpoint function: what that runs, both times, is a pass.

    The layer's own hooks run once, outside.
    """

    def __init__(self, inside: Callable[..., Any], within: Callable[[], AbstractContextManager[None]]) -> None:
        self.inside, self._within = inside, within

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.inside(partial(self._run, forward), *args, **kwargs)

    def _run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._within():
            return forward(*args, **kwargs)


class _BackwardPasses:
    """Begins and ends the backward passes of one model.

    One backward() is one pass, also where reentrant checkpointing calls backward() inside it. It begins when the first
    gradient of an output of the model arrives, and ends with the call of backward() in which that was.
    """

    def __init__(self, group: EchoProcessGroup) -> None:
        self._group, self.calls = group, Pass(0)
        self._task = -1  # number of the backward() under way, as autograd counts them

    def watch(self, output: Any) -> None:
        """Has the gradients of the forward's outputs announce themselves."""
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._begin)

    def forget(self) -> None:
        """No backward() is under way: one that ended by an exception did not say so."""
        if torch._C._current_graph_task_id() == -1:
            self._task = -1
            if self._group.backward is self.calls:
                self._group.backward = None

    def _begin(self, _grad: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if self._group.backward is self.calls and task == self._task:
            return  # another output
        self._task = task
        self.calls.begin()
        self._group.backward = self.calls
        self._group.backward_pass_begun()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._task = -1
        self.calls.end()
        if self._group.backward is self.calls:
            self._group.backward = None


def _keep_embeddings_exact(model: nn.Module, group: EchoProcessGroup) -> Iterator[RemovableHandle]:
    """Where a vocabulary is cut over the ranks, one of them has the whole row: the sum is exact, and stays so."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and isinstance(module.weight, DTensor):
            yield module.register_forward_pre_hook(lambda _module, _args: group.enter_embedding(1), prepend=True)
            yield module.register_forward_hook(lambda _module, _args, _out: group.enter_embedding(-1), always_call=True)


class Attachment:
    """The hooks of one model on one group; made by attach()."""

    def __init__(self, model: nn.Module, group: EchoProcessGroup, sites: int) -> None:
        self._group, self._pass = group, Pass(sites)
        self._block = Pass(0, runs_again=True)  # that of the checkpointed block under way
        self._blocks = 0  # checkpointed blocks entered and not left
        self._outer: list[Pass | None] = []  # passes that were open when this one began
        self._backward: _BackwardPasses | None = None
        self._replaced: list[Any] = []  # layers whose checkpoint function is ours
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._begin, prepend=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def _begin(self, _module: nn.Module, _args: Any) -> None:
        if self._backward is not None:
            self._backward.forget()
        self._outer.append(self._group.active)
        self._group.active = self._pass
        self._group.pass_begun()
        self._pass.begin()

    def _end(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._group.active = self._outer.pop() if self._outer else None
        if output is None:  # the forward ended by an exception
            return
        self._pass.end()
        if self._backward is not None and torch.is_grad_enabled():
            self._backward.watch(output)

    def add(self, handles: Iterable[RemovableHandle]) -> None:
        """Hooks that remove() takes away, too."""
        self._handles += handles

    def code_backward(self) -> None:
        """From now on backward passes are coded."""
        self._backward = _BackwardPasses(self._group)

    def checkpointed(self, block: nn.Module, sites: int) -> None:
        """Makes each run of `block` a pass of its own of `sites` coded calls (0: no flush).

        What such a pass does must not depend on anything that changes between the two runs: nothing is learnt.
        """
        self._handles += [
            block.register_forward_pre_hook(lambda _block, _args: self._enter_block(sites), prepend=True),
            block.register_forward_hook(lambda _block, _args, _output: self._leave_block(), always_call=True),
        ]

    def self_checkpointing(self, layer: Any, sites: int) -> None:
        """The same for a layer of transformers, whenever it checkpoints itself."""

        def look(_layer: nn.Module, _args: Any) -> None:
            inside = getattr(layer, "_gradient_checkpointing_func", None)
            if layer.gradient_checkpointing and inside is not None and not isinstance(inside, _CheckpointFunction):
                layer._gradient_checkpointing_func = _CheckpointFunction(inside, partial(self._block_pass, sites))
                self._replaced.append(layer)

        self._handles.append(layer.register_forward_pre_hook(look))

    @contextmanager
    def _block_pass(self, sites: int) -> Iterator[None]:
        self._enter_block(sites)
        try:
            yield
        finally:
            self._leave_block()

    def _enter_block(self, sites: int) -> None:
        if self._blocks == 0:
            self._outer.append(self._group.active)
            self._group.active = self._block
            self._block.begin()
            self._block.sites = sites
        self._blocks += 1

    def _leave_block(self) -> None:
        self._blocks -= 1
        if self._blocks == 0:
            self._group.active = self._outer.pop()

    @property
    def group(self) -> EchoProcessGroup:
        """The group whose calls are coded."""
        return self._group

    @property
    def sites(self) -> int:
        """Coded calls of a forward pass; 0: not known yet."""
        return self._pass.sites

    @property
    def backward_sites(self) -> int:
        """Coded calls of a backward pass; 0: not known yet, or backward passes are not coded."""
        return self._backward.calls.sites if self._backward is not None else 0

    def stats(self) -> Stats:
        """Counters of the group."""
        return self._group.stats()

    def remove(self) -> None:
        """Undoes attach(). Calls outside passes are coded without feedback."""
        for handle in self._handles:
            handle.remove()
        for layer in self._replaced:
            if isinstance(layer._gradient_checkpointing_func, _CheckpointFunction):
                layer._gradient_checkpointing_func = layer._gradient_checkpointing_func.inside
        if self._group.active is self._pass:
            self._group.active = None
        if self._backward is not None:
            self._backward.forget()
            self._backward = None


def attach(
    model: nn.Module,
    group: dist.ProcessGroup | None = None,
    config: EchoConfig | None = None,
    *,
    force: bool = False,
    backward: Backward = "exact",
    merge: bool | None = None,
    norms: Mapping[str, str] = NORMS,
    checkpointed: Iterable[nn.Module] = (),
) -> Attachment:
    """Mark the passes of `model` for the echo group `group`.

    Registers hooks only; the model's code and parameters are untouched. Call it on all ranks alike, after the model was
    split, on the module whose forward is called.

    group         None: the echo group over which the row-parallel weights of the model are cut
    backward      "exact": sums of gradients are forwarded. "post_norm": coded where the model makes them. "pre_norm":
                  moved in front of the norms before column-parallel layers and coded there, where feedback cancels
                  their errors; the norms' own gradients then cost an exact small sum each
    merge         column-parallel layers that share an input (q, k, v; gate, up) sum its gradient once, coded or not;
                  None: if pre_norm needs it
    norms         for pre_norm: name of a norm -> name of the module behind it
    checkpointed  blocks that torch.utils.checkpoint runs twice, besides those found by themselves (CheckpointWrapper,
                  transformers' gradient checkpointing). Each is a pass of its own: both runs give the same bits

    Returns a handle whose `remove()` undoes it. Raises PostNormError for models whose all-reduce outputs are normed
    before they join the residual stream, unless feedback is "none" or `force` is set; PlacementError where gradients
    cannot be merged or moved.
    """
    echo_group = _echo_group(group) if group is not None else _group_of(model)
    config = config or echo_group.config
    if backward not in get_args(Backward):
        raise ValueError(f"attach: backward is {backward!r}, expected one of {', '.join(get_args(Backward))}")
    if merge is False and backward == "pre_norm":
        raise ValueError('attach: backward="pre_norm" merges the sums of layers that share an input; merge is False')
    if config.feedback != "none" and not force:
        for name, _module in model.named_modules():
            if name.endswith(_POST_NORMS):
                raise PostNormError(
                    f"attach: {type(model).__name__} has a norm ({name}) between its all-reduces and the residual "
                    'stream, where feedback does not cancel errors; use EchoConfig(feedback="none"), or force=True '
                    "if you measured that it helps"
                )
    rows = row_parallel_modules(model, echo_group)
    widths = {int(module.weight.shape[0]) for module in rows}  # type: ignore[union-attr, arg-type]
    hidden = widths.pop() if len(widths) == 1 else getattr(getattr(model, "config", None), "hidden_size", None)
    columns = []
    if merge or backward == "pre_norm":
        columns = columns_of(model, echo_group, config.hidden_size or hidden, norms if backward == "pre_norm" else None)
    echo_group.configure(config, hidden, backward=backward, merge=bool(columns))

    attachment = Attachment(model, echo_group, len(rows))
    attachment.add(_keep_embeddings_exact(model, echo_group))
    attachment.add(handle for one, norm in columns for handle in one.install(norm))
    if backward != "exact":
        attachment.code_backward()

    def sites_of(block: nn.Module) -> int:
        return sum(module in rows for module in block.modules())

    for block in dict.fromkeys([*_wrapped_blocks(model), *checkpointed]):
        attachment.checkpointed(block, sites_of(block))
    for layer in _self_checkpointing_blocks(model):
        attachment.self_checkpointing(layer, sites_of(layer))
    return attachment
