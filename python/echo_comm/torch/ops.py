"""The operators `torch.ops.echo`: the codec, for code that moves the bytes itself. numerics.md sections 2 and 3.

`encode` turns a range of groups into bytes, `reduce` sums what the ranks sent for a chunk and encodes the sum,
`decode` turns bytes into values. Residuals are explicit arguments that the calls change: fp32, rotated domain, 64
values for each group. Tensors must be contiguous and on the CPU; there is no rule for gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from echo_comm._library import BITS_EXACT, GROUP, find_binary, library

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _load() -> None:
    file = find_binary("libecho_torch.so")
    if file is None:
        raise ImportError(
            "echo_comm was built without its PyTorch operators, because torch >= 2.11 was missing at build time; "
            "install torch, then rebuild: pip install --no-build-isolation --force-reinstall --no-deps ."
        )
    library()  # first, so that its own errors are not hidden behind the loader's
    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        raise ImportError(
            f"{file.name} cannot be loaded (needs torch >= 2.11, found {torch.__version__}): {error.__cause__ or error}"
        ) from None


_load()


# ---- groups ------------------------------------------------------------------------------------


def groups_of(count: int, row_length: int = 0) -> int:
    """Number of groups of a tensor; groups start anew at each row. row_length 0: one row."""
    row = row_length or max(count, 1)
    if count % row:
        raise ValueError(f"row_length {row_length} does not divide {count} elements")
    return count // row * -(-row // GROUP)


def chunk(groups: int, size: int, rank: int) -> tuple[int, int]:
    """The groups that `rank` owns."""
    return groups * rank // size, groups * (rank + 1) // size


def encoded_size(count: int, itemsize: int, row_length: int, bits: int, begin: int, end: int) -> int:
    """Bytes of the encoded groups [begin, end) of a tensor: codes and scales, or the elements on the exact path."""
    if bits != BITS_EXACT:
        return (end - begin) * (GROUP * bits // 8 + 2)
    row = row_length or max(count, 1)
    per_row = -(-row // GROUP)

    def elements_before(group: int) -> int:
        return group // per_row * row + min(group % per_row * GROUP, row)

    return (elements_before(end) - elements_before(begin)) * itemsize


Store = Literal["fp32", "int8", "int16"]


def _zeros(groups: int, store: Store) -> Tensor:
    if store == "fp32":
        return torch.zeros(groups, GROUP)
    if store == "int8":
        return torch.zeros(groups * (GROUP + 2), dtype=torch.int8)
    return torch.zeros(groups * (GROUP + 1), dtype=torch.int16)


def _widened(residual: Tensor) -> Tensor:
    values = residual.numel() // (GROUP + 2) * GROUP
    return torch.cat([residual[:values].to(torch.int16), residual[values:].view(torch.int16)])


def largest(residual: Tensor) -> float:
    """Largest magnitude of a residual, however it is kept."""
    if residual.numel() == 0:
        return 0.0
    if residual.dtype == torch.float32:
        return float(residual.abs().max())
    kept = GROUP + 2 // residual.element_size()  # elements for one group: its values, its scale
    values, scales = residual.split([residual.numel() // kept * GROUP, residual.numel() // kept * (kept - GROUP)])
    magnitudes = values.view(-1, GROUP).to(torch.int32).abs().amax(1)
    return float((magnitudes * scales.view(torch.bfloat16).float()).max())


@dataclass(frozen=True)
class Residuals:
    """What rank `rank` of `size` owes in a pass: the sender residual of the tensor, the owner residual of its chunk.

    Kept as float32 tensors of 64 values a group; or as int8 or int16 tensors: 64 values for each group, then the bytes
    of one bf16 scale for each group (numerics.md section 8). All zero: nothing is owed.
    """

    sender: Tensor
    owner: Tensor
    owner_begin: int

    @classmethod
    def zeros(cls, groups: int, size: int, rank: int, store: Store = "fp32") -> Residuals:
        """Of a new pass."""
        begin, end = chunk(groups, size, rank)
        return cls(_zeros(groups, store), _zeros(end - begin, store), begin)

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self.sender.nbytes + self.owner.nbytes

    def widened(self) -> Residuals:
        """The same values, kept as int16 instead of int8."""
        return Residuals(_widened(self.sender), _widened(self.owner), self.owner_begin)

    def reset(self) -> None:
        """Begins a new pass."""
        self.sender.zero_()
        self.owner.zero_()

    def __iter__(self) -> Iterator[Tensor | int]:
        return iter((self.sender, self.owner, self.owner_begin))


NO_RESIDUALS = (None, None, 0)


# ---- operators ---------------------------------------------------------------------------------


def _refuse_grad(*tensors: Tensor) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError("echo: rounding has no gradient; call under torch.no_grad() or with a detached tensor")


def encode(
    x: Tensor,
    groups: tuple[int, int],
    *,
    row_length: int = 0,
    bits: int = 4,
    rotation: bool = True,
    residuals: Residuals | None = None,
    with_owner: bool = False,
) -> Tensor:
    """Bytes of the groups of `x`. with_owner: the owner residual is added on its groups and becomes 0 (one-shot)."""
    _refuse_grad(x)
    sender, owner, begin = residuals or NO_RESIDUALS
    owner = owner if with_owner else None
    return torch.ops.echo.encode(x, sender, owner, begin, row_length, bits, rotation, *groups)


def reduce(
    encoded: Sequence[Tensor],
    x: Tensor,
    rank: int,
    groups: tuple[int, int],
    *,
    row_length: int = 0,
    bits: int = 4,
    rotation: bool = True,
    batch_invariant: bool = False,
    divisor: int = 1,
    residuals: Residuals | None = None,
) -> Tensor:
    """Sums what the ranks sent for this rank's chunk and encodes the sum. encoded[rank] is not read."""
    _refuse_grad(x)
    state = residuals or NO_RESIDUALS
    return torch.ops.echo.reduce(
        list(encoded), x, *state, row_length, rank, bits, rotation, batch_invariant, divisor, *groups
    )


def decode(
    out: Tensor,
    encoded: Sequence[Tensor],
    groups: tuple[int, int],
    *,
    row_length: int = 0,
    divisor: int = 1,
    add: bool = False,
    bits: int = 4,
    rotation: bool = True,
    residuals: Residuals | None = None,
) -> Tensor:
    """Writes the groups of `out`: one part is a sum, several are added in rank order. Returns [poisoned groups].

    add: out += decoded instead, in fp32 and rounded once.
    """
    _refuse_grad(out)
    state = residuals or NO_RESIDUALS
    return torch.ops.echo.decode(out, list(encoded), *state, row_length, divisor, add, bits, rotation, *groups)


# ---- shape-only kernels, for torch.compile -----------------------------------------------------


@torch.library.register_fake("echo::encode")
def _encode_fake(x, sender, owner, owner_begin, row_length, bits, rotation, group_begin, group_end):  # type: ignore[no-untyped-def]
    size = encoded_size(x.numel(), x.element_size(), row_length, bits, group_begin, group_end)
    return x.new_empty([size], dtype=torch.uint8)


@torch.library.register_fake("echo::reduce")
def _reduce_fake(  # type: ignore[no-untyped-def]
    encoded,
    x,
    sender,
    owner,
    owner_begin,
    row_length,
    rank,
    bits,
    rotation,
    batch_invariant,
    divisor,
    group_begin,
    group_end,
):
    size = encoded_size(x.numel(), x.element_size(), row_length, bits, group_begin, group_end)
    return x.new_empty([size], dtype=torch.uint8)


@torch.library.register_fake("echo::decode")
def _decode_fake(  # type: ignore[no-untyped-def]
    out, encoded, sender, owner, owner_begin, row_length, divisor, add, bits, rotation, group_begin, group_end
):
    return out.new_empty([1], dtype=torch.int64)
