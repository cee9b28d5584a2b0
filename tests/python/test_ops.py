"""The operators as torch sees them: schema, shape-only kernels, torch.compile, argument checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
from echo_comm.torch import ops

ROWS, ROW, GROUPS = 6, 100, 12


def _tensor(seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, ROW, generator=torch.Generator().manual_seed(seed))


def _arguments(bits: int, dtype: torch.dtype, feedback: bool) -> dict[str, tuple[Any, ...]]:
    x = _tensor().to(dtype)
    residuals = ops.Residuals.zeros(GROUPS, 2, 0) if feedback else None
    state = tuple(residuals) if residuals else (None, None, 0)
    part = torch.ops.echo.encode(x, None, None, 0, ROW, bits, True, 0, 6)
    return {
        "encode": (x, *state, ROW, bits, True, 0, GROUPS),
        "reduce": ([part, part], x, *state, ROW, 0, bits, True, False, 1, 0, 6),
        "decode": (x, [part], *state, ROW, 1, False, bits, True, 0, 6),
    }


@pytest.mark.parametrize("name", ["encode", "reduce", "decode"])
@pytest.mark.parametrize(
    ("bits", "dtype", "feedback"),
    [(4, torch.float32, True), (5, torch.bfloat16, False), (16, torch.float16, True)],
)
def test_opcheck(name: str, bits: int, dtype: torch.dtype, feedback: bool) -> None:  # H1
    operator = getattr(torch.ops.echo, name).default
    # No rule for gradients exists, so there is no autograd registration to check.
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, _arguments(bits, dtype, feedback)[name], test_utils=tests)


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8, 16])
def test_encoded_size_is_what_encode_writes(bits: int) -> None:
    for dtype in ops.DTYPES:
        x = _tensor().to(dtype)
        for begin, end in ((0, GROUPS), (0, 0), (1, 2), (1, 7), (11, 12)):
            expected = ops.encoded_size(x.numel(), x.element_size(), ROW, bits, begin, end)
            assert ops.encode(x, (begin, end), row_length=ROW, bits=bits).numel() == expected


@pytest.mark.parametrize("dtype", ops.DTYPES)
@pytest.mark.parametrize("store", ["fp32", "int8", "int16"])
def test_same_bytes_for_any_number_of_threads(dtype: torch.dtype, store: ops.Store) -> None:
    """Large tensors are coded in parts by torch's threads; also with other groups than all of them."""
    groups, row = 16384, 192
    x = torch.randn(groups // 3, row, generator=torch.Generator().manual_seed(5)).to(dtype)
    whole = ops.groups_of(x.numel(), row)
    results = []
    for threads in (1, 2, 5):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            residuals, out, produced = ops.Residuals.zeros(whole, 2, 1, store), x.clone(), []
            for range_ in ((0, whole), (17, whole - 1)):
                sent = ops.encode(x, range_, row_length=row, residuals=residuals, with_owner=True)
                parts = [sent, sent]
                produced += [sent, ops.decode(out, parts, range_, row_length=row, residuals=residuals), out.clone()]
            own = ops.chunk(whole, 2, 1)
            part = ops.encode(x, own, row_length=row)
            produced += [ops.reduce([part, part], x, 1, own, row_length=row, residuals=residuals)]
            results.append([*produced, residuals.sender, residuals.owner])
        finally:
            torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", ops.DTYPES)
def test_decode_adds_to_the_output(dtype: torch.dtype) -> None:
    x, before = _tensor().to(dtype), _tensor(3).to(dtype)
    encoded, decoded, out = ops.encode(x, WHOLE, row_length=ROW), torch.empty_like(x), before.clone()
    ops.decode(decoded, [encoded], WHOLE, row_length=ROW)
    ops.decode(out, [encoded], WHOLE, row_length=ROW, add=True)
    if dtype == torch.float32:
        assert torch.equal(out, before + decoded)
    exact = torch.empty_like(x, dtype=torch.float32)
    ops.decode(exact, [encoded], WHOLE, row_length=ROW)  # the codes do not depend on the type they are decoded to
    assert torch.equal(out, (before.float() + exact).to(dtype))


def test_residuals_of_different_kinds_are_refused() -> None:
    kinds = ops.Residuals(ops.Residuals.zeros(GROUPS, 1, 0).sender, ops.Residuals.zeros(GROUPS, 1, 0, "int8").owner, 0)
    with pytest.raises(RuntimeError, match="sender is float32, owner int8"):
        ops.encode(_tensor(), WHOLE, row_length=ROW, residuals=kinds, with_owner=True)
    short = ops.Residuals(torch.zeros(65 * GROUPS, dtype=torch.int8), torch.zeros(0, dtype=torch.int8), 0)
    with pytest.raises(RuntimeError, match="no multiple of the 66 of a group"):
        ops.encode(_tensor(), WHOLE, row_length=ROW, residuals=short)


def test_compiled_whole_and_for_any_number_of_rows() -> None:  # H1
    def sum_of_two(x: torch.Tensor, y: torch.Tensor, sender: torch.Tensor) -> torch.Tensor:
        groups, row = x.shape[0] * 2, x.shape[1]
        mine = torch.ops.echo.encode(x * 2, sender, None, 0, row, 4, True, 0, groups)
        other = torch.ops.echo.encode(y * 2, None, None, 0, row, 4, True, 0, groups)
        out = torch.empty_like(x)
        poisoned = torch.ops.echo.decode(out, [mine, other], None, None, 0, row, 1, False, 4, True, 0, groups)
        return out + 1 + poisoned

    compiled = torch.compile(sum_of_two, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (6, 6, 9):
        x, y = torch.randn(rows, ROW), torch.randn(rows, ROW)
        residuals = [torch.zeros(rows * 2, 64) for _ in range(2)]
        for _ in range(3):  # the state that the compiled function changes is seen outside it
            assert torch.equal(sum_of_two(x, y, residuals[0]), compiled(x, y, residuals[1]))
            assert torch.equal(*residuals)
        assert residuals[0].abs().max() > 0


Call = Callable[[torch.Tensor], Any]
WHOLE = (0, GROUPS)
BAD: dict[str, tuple[Call, str]] = {
    "not contiguous": (lambda x: ops.encode(x.t(), WHOLE), "x is not contiguous"),
    "float64": (lambda x: ops.encode(x.double(), WHOLE), "x is float64, expected float32, bfloat16 or float16"),
    "row length": (lambda x: ops.encode(x, WHOLE, row_length=7), "row_length 7 does not divide the 600 elements"),
    "negative row length": (lambda x: ops.encode(x, WHOLE, row_length=-1), "row_length is -1"),
    "bits": (lambda x: ops.encode(x, WHOLE, row_length=ROW, bits=7), "bits"),
    "groups": (lambda x: ops.encode(x, (0, 13), row_length=ROW), r"\[0, 13\) of a tensor of 12 groups"),
    "groups reversed": (lambda x: ops.encode(x, (5, 4), row_length=ROW), r"\[5, 4\)"),
    "residual size": (
        lambda x: ops.encode(x, WHOLE, row_length=ROW, residuals=ops.Residuals.zeros(11, 1, 0)),
        "sender has 704 values, the tensor's 12 groups need 768",
    ),
    "residual type": (
        lambda x: torch.ops.echo.encode(x, torch.zeros(768).bfloat16(), None, 0, ROW, 4, True, 0, 12),
        "sender is bfloat16, expected float32",
    ),
    "owner range": (
        lambda x: torch.ops.echo.encode(x, None, torch.zeros(2, 64), 11, ROW, 4, True, 0, 12),
        "owner has 128 values from group 11",
    ),
    "payload size": (
        lambda x: ops.decode(x, [torch.zeros(33, dtype=torch.uint8)], (0, 1), row_length=ROW),
        r"encoded\[0\] has 33 bytes, groups \[0, 1\) take 34",
    ),
    "payload type": (
        lambda x: ops.decode(x, [torch.zeros(34)], (0, 1), row_length=ROW),
        "encoded is float32, expected uint8",
    ),
    "no payload": (lambda x: ops.decode(x, [], (0, 1), row_length=ROW), "parts"),
    "rank": (lambda x: ops.reduce([torch.zeros(34, dtype=torch.uint8)], x, 1, (0, 1), row_length=ROW), "rank is 1"),
    "divisor": (
        lambda x: ops.decode(x, [torch.zeros(34, dtype=torch.uint8)], (0, 1), row_length=ROW, divisor=0),
        "divisor",
    ),
    "gradient": (lambda x: ops.encode(x.requires_grad_(), WHOLE, row_length=ROW), "has no gradient"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_before_memory_is_touched(case: str) -> None:  # A14, B5, B6, H2
    call, text = BAD[case]
    x = _tensor()
    before = x.clone()
    with pytest.raises(RuntimeError, match=text):
        call(x)
    assert torch.equal(x.detach(), before)


def test_views_at_odd_offsets_give_the_same_bytes() -> None:  # B5
    x = _tensor().flatten()
    for dtype in ops.DTYPES:
        memory = torch.zeros(x.numel() + 3, dtype=dtype)
        expected = ops.encode(x.to(dtype), (0, 10))
        for offset in (1, 2, 3):
            view = memory[offset : offset + x.numel()]
            view.copy_(x)
            assert torch.equal(ops.encode(view, (0, 10)), expected)


def test_decode_writes_its_groups_and_nothing_else() -> None:  # A12
    x = _tensor().flatten()
    part = ops.encode(x, (2, 5))
    out = torch.full_like(x, 7.0)
    ops.decode(out, [part], (2, 5))
    assert out[:128].eq(7).all()
    assert out[320:].eq(7).all()
    assert out[128:320].ne(7).all()
