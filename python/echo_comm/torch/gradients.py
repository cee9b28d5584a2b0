"""Where gradients of activations are summed over the ranks: once for layers that share an input, at a place of choice.

A column-parallel layer has its own input on every rank and a part of the output; the gradient of its input is the sum
of what the ranks find. Frameworks sum it layer by layer, behind the norm's backward: q, k and v of one input make three
sums. The hooks here hand such layers a replicated DTensor whose gradient stays partial, and sum once, either at the
shared input (merge) or in front of the norm (pre_norm; numerics.md section 7). There the sums join the residual stream
of gradients with weight 1, so that feedback cancels their errors; the norm then sees partial gradients, and those of
its own parameters are summed exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.hooks import RemovableHandle

from echo_comm.torch.backend import exact

# The norm in front of a block of column-parallel layers: children of one module, by name.
NORMS = {
    "input_layernorm": "self_attn",
    "post_attention_layernorm": "mlp",
    "attention_norm": "attention",
    "ffn_norm": "feed_forward",
    "ln_1": "attn",
    "ln_2": "mlp",
}


class PlacementError(ValueError):
    """The model's gradients cannot be summed where it was asked for."""


# ---- the pair of Megatron-LM -----------------------------------------------------------------------


class _CopyToRanks(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:  # type: ignore[override]
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        total = grad.clone(memory_format=torch.contiguous_format)  # others may hold the same gradient
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _SumOverRanks(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:  # type: ignore[override]
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


def copy_to_ranks(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, whose gradient is the sum of the gradients that the ranks of `group` find: Megatron-LM's f.

    x is equal on all ranks; each uses it for a part of what follows. Not differentiable twice.
    """
    return _CopyToRanks.apply(x, group)  # type: ignore[no-any-return]


def sum_over_ranks(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of x over the ranks of `group`; its gradient is handed through unchanged: Megatron-LM's g.

    What follows is computed alike on all ranks. Not differentiable twice.
    """
    return _SumOverRanks.apply(x, group)  # type: ignore[no-any-return]


def sum_gradients(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> list[RemovableHandle]:
    """Sums the gradients of replicated parameters over `group`, exactly, in each backward.

    For weights that every rank holds and applies to its own part of the activations, as the norms of queries and keys
    (Qwen3): each rank finds a part of their gradient. Returns handles whose remove() undoes it.
    """
    return [
        parameter.register_hook(partial(_sum_exactly, group=group))
        for parameter in parameters
        if parameter.requires_grad
    ]


class _Replicated(torch.autograd.Function):  # type: ignore[misc]
    """A local tensor as a replicated DTensor, as DTensor.from_local, but its gradient is not summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh) -> DTensor:  # type: ignore[override]
        return DTensor.from_local(x.view_as(x), mesh, [Replicate()], run_check=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        assert isinstance(grad, DTensor)
        (placement,) = grad.placements
        local = grad.to_local()
        if placement.is_partial():
            return local, None
        if not placement.is_replicate():
            raise PlacementError(f"the gradient of a column-parallel layer's input is {placement}, expected Partial")
        # The sum that follows would count a sum again on every rank.
        return (local if grad.device_mesh.get_local_rank() == 0 else torch.zeros_like(local)), None


def _sum_exactly(grad: Tensor, group: dist.ProcessGroup) -> Tensor:
    local = grad.to_local() if isinstance(grad, DTensor) else grad
    total = local.clone(memory_format=torch.contiguous_format)
    with exact():
        dist.all_reduce(total, group=group)
    if isinstance(grad, DTensor):
        return DTensor.from_local(total, grad.device_mesh, grad.placements, run_check=False)
    return total


# ---- layers that share an input --------------------------------------------------------------------


def _is_column_parallel(module: nn.Module, group: dist.ProcessGroup) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Linear) or not isinstance(weight, DTensor):
        return False
    mesh = weight.device_mesh
    return any(p.is_shard(0) and mesh.get_group(dim) is group for dim, p in enumerate(weight.placements))


class Columns:
    """Column-parallel children of one module, which share an input, and the norm that makes it (pre_norm) or None."""

    def __init__(
        self, name: str, parent: nn.Module, layers: dict[str, nn.Linear], group: dist.ProcessGroup, norm: str | None
    ) -> None:
        self.name, self.parent, self.layers, self.norm = name, parent, layers, norm
        self._group, self._mesh = group, next(iter(layers.values())).weight.device_mesh
        self._input: Tensor | None = None  # as the parent hands it to its layers
        self._copied: Tensor | None = None  # what they get instead
        if self._mesh.ndim != 1:
            raise PlacementError(f"{name}: its layers are cut over {self._mesh.ndim} dimensions of a mesh, expected 1")

    def install(self, norm: nn.Module | None) -> Iterator[RemovableHandle]:
        """Hooks of the layers, their parent and the norm."""
        if norm is not None:
            yield norm.register_forward_pre_hook(self._before_norm)
            yield norm.register_forward_hook(self._after_norm)
            yield from sum_gradients(norm.parameters(), self._group)
        for layer in self.layers.values():
            yield layer.register_forward_pre_hook(self._before_layer, prepend=True)
        yield self.parent.register_forward_hook(self._done, always_call=True)

    def _before_norm(self, _norm: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        x = args[0]
        if not (torch.is_grad_enabled() and x.requires_grad):
            return None
        return (copy_to_ranks(x, self._group), *args[1:])

    def _after_norm(self, _norm: nn.Module, _args: Any, output: Tensor) -> None:
        self._input = self._copied = output if torch.is_grad_enabled() and output.requires_grad else None

    def _before_layer(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        x = args[0]
        if not (torch.is_grad_enabled() and x.requires_grad):
            return None
        if x is not self._input:
            if self.norm is not None:
                names = [name for name, one in self.layers.items() if one is layer]
                raise PlacementError(
                    f"{self.name}.{names[0]}: its input is not the very tensor that {self.norm} returned, so gradients "
                    'cannot be summed in front of that norm; use backward="post_norm"'
                )
            self._input, self._copied = x, copy_to_ranks(x, self._group)
        assert self._copied is not None
        return (_Replicated.apply(self._copied, self._mesh), *args[1:])

    def _done(self, _parent: nn.Module, _args: Any, _output: Any) -> None:
        self._input = self._copied = None  # they hold the graph


def columns_of(
    model: nn.Module, group: dist.ProcessGroup, hidden_size: int | None, norms: Mapping[str, str] | None
) -> list[tuple[Columns, nn.Module | None]]:
    """The layers of `model` that share inputs of `hidden_size`, with their norms if `norms` (see NORMS) is given.

    Raises PlacementError where a norm's output goes to more than column-parallel layers, or where there are none.
    """
    found: list[tuple[Columns, nn.Module | None]] = []
    modules = dict(model.named_modules())
    for name, parent in modules.items():
        layers = {
            child: module
            for child, module in parent.named_children()
            if _is_column_parallel(module, group) and module.weight.shape[1] == hidden_size
        }
        if not layers:
            continue
        path, _, block = name.rpartition(".")
        candidates = [f"{path}.{norm}".lstrip(".") for norm, behind in (norms or {}).items() if behind == block]
        norm = next((candidate for candidate in candidates if candidate in modules), None)
        if norm is not None:
            _refuse_other_readers(name, parent, layers, hidden_size)
        elif len(layers) == 1:
            continue  # nothing to merge, and no norm to go in front of
        found.append((Columns(name, parent, layers, group, norm), modules[norm] if norm is not None else None))
    if not found or (norms is not None and all(norm is None for _, norm in found)):
        wanted = " behind a norm (" + ", ".join(f"{a} -> {b}" for a, b in norms.items()) + ")" if norms else ""
        raise PlacementError(f"{type(model).__name__} has no column-parallel layers of {hidden_size} inputs{wanted}")
    return found


def _refuse_other_readers(name: str, parent: nn.Module, layers: dict[str, nn.Linear], hidden: int | None) -> None:
    """A replicated layer behind the norm would have its gradient counted once for each rank."""
    for path, parameter in parent.named_parameters():
        if path.rpartition(".")[0] in layers or parameter.dim() < 2 or hidden not in parameter.shape:
            continue
        if isinstance(parameter, DTensor) and parameter.dim() == 2 and any(p.is_shard(1) for p in parameter.placements):
            continue  # row-parallel
        raise PlacementError(
            f"{name}.{path} {tuple(parameter.shape)} may read the norm's output too and is not column-parallel, so "
            'gradients cannot be summed in front of the norm; use backward="post_norm"'
        )
