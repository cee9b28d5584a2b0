"""The operators against the independent NumPy model, bit for bit: codes, scales, residuals, outputs.

All ranks are simulated in one process, with the steps that the process group takes over its inner route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import oracle_model

oracle = oracle_model.load()
ops = pytest.importorskip("echo_comm.torch.ops", reason="echo_comm is not installed: scripts/test installs it")

BITS = (3, 4, 5, 6, 8)
EXACT = 16
GROUP = 64
Array = np.ndarray


@dataclass
class Ranks:
    """All ranks of a pass, through the operators."""

    world: int
    count: int
    row: int = 0
    rotation: bool = True
    feedback: bool = True
    batch_invariant: bool = False
    dtype: torch.dtype = torch.float32
    store: ops.Store = "fp32"

    def __post_init__(self) -> None:
        self.groups = ops.groups_of(self.count, self.row)
        self.chunks = [ops.chunk(self.groups, self.world, rank) for rank in range(self.world)]
        self.residuals = [
            ops.Residuals.zeros(self.groups, self.world, r, self.store) if self.feedback else None
            for r in range(self.world)
        ]
        self.poisoned = 0

    def _form(self, bits: int) -> dict[str, object]:
        return {"row_length": self.row, "bits": bits, "rotation": self.rotation}

    def two_shot(self, xs: list[torch.Tensor], bits: int) -> list[torch.Tensor]:
        """What every rank receives; bits 16 is the exact path."""
        if self.world == 1:
            return [xs[0].clone()]
        form, empty = self._form(bits), torch.empty(0, dtype=torch.uint8)
        sums = []
        sent = {
            (rank, owner): ops.encode(xs[rank], self.chunks[owner], residuals=self.residuals[rank], **form)
            for rank in range(self.world)
            for owner in range(self.world)
            if rank != owner
        }
        for owner, own in enumerate(self.chunks):
            received = [empty if rank == owner else sent[rank, owner] for rank in range(self.world)]
            residuals = self.residuals[owner]
            sums.append(
                ops.reduce(
                    received, xs[owner], owner, own, batch_invariant=self.batch_invariant, residuals=residuals, **form
                )
            )
        return self._decode([[part] for part in sums], self.chunks, form)

    def one_shot(self, xs: list[torch.Tensor], bits: int) -> list[torch.Tensor]:
        """What every rank receives."""
        if self.world == 1:
            return [xs[0].clone()]
        form, whole = self._form(bits), (0, self.groups)
        sent = [
            ops.encode(x, whole, residuals=e, with_owner=True, **form) for x, e in zip(xs, self.residuals, strict=True)
        ]
        return self._decode([sent], [whole], form)

    def _decode(self, parts: list, ranges: list, form: dict) -> list[torch.Tensor]:  # type: ignore[type-arg]
        outs = []
        for rank in range(self.world):
            out = torch.full((self.count,), 7.0, dtype=self.dtype)
            for encoded, groups in zip(parts, ranges, strict=True):
                poisoned = ops.decode(out, encoded, groups, residuals=self.residuals[rank], **form)
                self.poisoned += int(poisoned) if rank == 0 else 0
            outs.append(out)
        return outs


def same_bits(a: Array, b: Array) -> bool:
    """Equal bit for bit; every NaN counts as the canonical one."""
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    equal = a.view(np.uint32) == b.view(np.uint32)
    return bool((equal | (np.isnan(a) & np.isnan(b))).all())


def kept(residual: torch.Tensor) -> Array:
    """Values of a residual tensor, a row for each group."""
    if residual.dtype == torch.float32:
        return residual.numpy()
    groups = residual.nbytes // (GROUP * residual.element_size() + 2)
    scales = residual[groups * GROUP :].view(torch.bfloat16).float()
    return (residual[: groups * GROUP].view(groups, GROUP).float() * scales[:, None]).numpy()


def same_values(a: Array, b: Array) -> bool:
    """As same_bits; a zero may have lost its sign in an integer."""
    return same_bits(a + np.float32(0), b + np.float32(0))


def compare(ranks: Ranks, calls: list[tuple[str, int]], inputs: Callable[[int, int], Array]) -> None:
    """Runs the calls of a pass through both and compares everything after each."""
    model = oracle.Pass(
        ranks.world,
        ranks.count,
        ranks.row or None,
        rotation=ranks.rotation,
        feedback=ranks.feedback,
        residuals=ranks.store,
        batch_invariant=ranks.batch_invariant,
    )
    for site, (method, bits) in enumerate(calls):
        xs = [inputs(site, rank) for rank in range(ranks.world)]
        expected = model.exact(xs) if method == "exact" else getattr(model, method)(xs, bits)
        tensors = [torch.from_numpy(x.copy()) for x in xs]
        outs = ranks.one_shot(tensors, bits) if method == "one_shot" else ranks.two_shot(tensors, bits)
        where = f"{ranks}, call {site}: {method} with {bits} bits"
        for rank, out in enumerate(outs):
            assert same_bits(out.numpy(), expected), f"output of rank {rank}; {where}"
        for rank, e in enumerate(ranks.residuals if ranks.world > 1 else []):
            if e is not None:
                assert same_values(kept(e.sender), model.sender[rank]), f"sender residual of rank {rank}; {where}"
                assert same_values(kept(e.owner), model.owner[rank]), f"owner residual of rank {rank}; {where}"
    if not any(method == "exact" for method, _ in calls) and ranks.world > 1:
        assert ranks.poisoned == model.poisoned


def normal(count: int, scale: float = 1.0) -> Callable[[int, int], Array]:
    """Inputs that depend on site and rank."""

    def make(site: int, rank: int) -> Array:
        return (np.random.default_rng(1000 * site + rank).standard_normal(count) * scale).astype(np.float32)

    return make


CALLS = [("two_shot", 4), ("one_shot", 4), ("exact", EXACT), ("two_shot", 5), ("two_shot", 8), ("one_shot", 3)]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rotation", [True, False])
def test_codes_and_scales(bits: int, rotation: bool) -> None:
    """Bytes on the wire: all codes, then all scales."""
    rng = np.random.default_rng(bits)
    values = (rng.standard_normal(40 * GROUP) * np.exp2(rng.integers(-60, 60, 40).repeat(GROUP))).astype(np.float32)
    groups = oracle.to_groups(values)
    codes, scales, residual, _ = oracle.encode(oracle.rotate(groups) if rotation else groups, bits)
    state = ops.Residuals.zeros(40, 1, 0)
    encoded = ops.encode(torch.from_numpy(values), (0, 40), bits=bits, rotation=rotation, residuals=state).numpy()
    assert encoded.size == 40 * (8 * bits + 2)
    assert np.array_equal(encoded[: 40 * 8 * bits].reshape(40, -1), oracle.pack(codes, bits))
    assert np.array_equal(encoded[40 * 8 * bits :].view(np.uint16), scales)
    assert same_bits(state.sender.numpy(), residual)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 127, 128, 129, 640, 1000])
def test_every_world_and_size(world: int, count: int) -> None:
    """B1, B2, B10: chunks of any size, also empty ones, and all three algorithms in one pass."""
    compare(Ranks(world, count), CALLS, normal(count))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("rotation", [True, False])
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("batch_invariant", [True, False])
@pytest.mark.parametrize("row", [0, 64, 100, 576])
def test_the_product_of_options(bits: int, rotation: bool, feedback: bool, batch_invariant: bool, row: int) -> None:
    """A9: no option takes another path than the specification's."""
    count = 4 * (row or 250)
    calls = [("two_shot", bits), ("two_shot", bits)]
    if not batch_invariant:
        calls += [("one_shot", bits), ("exact", EXACT), ("one_shot", bits)]
    for world in (2, 3, 4):
        ranks = Ranks(world, count, row, rotation=rotation, feedback=feedback, batch_invariant=batch_invariant)
        compare(ranks, calls, normal(count))


def test_a_whole_pass_deep() -> None:
    """Sixty calls, heavy tails, the residuals carried all the way."""

    def heavy(site: int, rank: int) -> Array:
        rng = np.random.default_rng(7000 * site + rank)
        return (rng.standard_normal(1152) ** 5 * np.exp2(rng.integers(-20, 20))).astype(np.float32)

    compare(Ranks(4, 1152, 576), [("two_shot", 4)] * 59 + [("two_shot", 8)], heavy)


@pytest.mark.parametrize("store", ["int8", "int16"])
@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
@pytest.mark.parametrize("rotation", [True, False])
def test_residuals_kept_as_integers(store: ops.Store, bits: int, rotation: bool) -> None:
    """numerics.md section 8, every world size, both algorithms in turn, groups of very different size."""

    def inputs(site: int, rank: int) -> Array:
        rng = np.random.default_rng(900 * site + rank)
        x = rng.standard_normal(700) * np.exp2(np.repeat(rng.integers(-116, 20, 7), 100))
        x[site * 64 : site * 64 + 64] = 0
        return x.astype(np.float32)

    for world in (1, 2, 3, 4, 5, 7, 8):
        ranks = Ranks(world, 700, 100, rotation=rotation, store=store, batch_invariant=world == 5)
        methods = ["two_shot"] if world == 5 else ["two_shot", "one_shot"]
        compare(ranks, [(method, bits) for method in methods * 3], inputs)


@pytest.mark.parametrize("store", ["int8", "int16"])
def test_poisoned_groups_leave_no_integer_residual(store: ops.Store) -> None:
    """A3, A6: NaN, infinity and a call after them; nothing of it stays owed."""

    def inputs(site: int, rank: int) -> Array:
        x = normal(5 * GROUP)(site, rank)
        if site == 1 and rank == 1:
            x[70], x[140], x[200] = np.nan, np.inf, 2.0**124
        return x

    for method in ("two_shot", "one_shot"):
        compare(Ranks(3, 5 * GROUP, store=store), [(method, 4)] * 4, inputs)


SPECIAL = {
    "nan first": (0, np.nan),
    "nan middle": (31, np.nan),
    "nan last": (63, np.nan),
    "inf": (5, np.inf),
    "minus inf": (5, -np.inf),
    "largest": (9, np.finfo(np.float32).max),
    "2^124": (9, 2.0**124),
    "below 2^124": (9, -np.nextafter(np.float32(2.0**124), np.float32(0))),
    "below 2^-100": (0, 2.0**-101),
    "2^-100": (0, 2.0**-100),
    "denormal": (0, 1e-42),
    "minus zero": (0, -0.0),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("method", ["two_shot", "one_shot", "exact"])
@pytest.mark.parametrize("rotation", [True, False])
def test_special_groups(name: str, method: str, rotation: bool) -> None:
    """A3, A4, A6, R3, R4: one special group among normal ones, on one rank and on all."""
    at, value = SPECIAL[name]
    count, bits = 5 * GROUP, EXACT if method == "exact" else 4
    for world in (2, 3, 5):
        for ranks_with_it in ({0}, {world - 1}, set(range(world))):

            def special(site: int, rank: int, ranks_with_it: set[int] = ranks_with_it) -> Array:
                x = normal(count)(site, rank)
                x[2 * GROUP : 3 * GROUP] = 0
                if site == 1 and rank in ranks_with_it:
                    x[2 * GROUP + at] = value
                return x

            compare(Ranks(world, count, rotation=rotation), [(method, bits)] * 3, special)


def test_zero_groups_on_some_ranks() -> None:
    """A4: all zero, zero on one rank, zero on all but one."""
    for zeros in ({0, 1, 2}, {1}, {0, 2}):

        def inputs(site: int, rank: int, zeros: set[int] = zeros) -> Array:
            x = normal(300)(site, rank)
            if rank in zeros:
                x[64:192] = 0
            return x

        for method in ("two_shot", "one_shot"):
            compare(Ranks(3, 300), [(method, 4)] * 3, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["two_shot", "one_shot"])
def test_sixteen_bit_tensors(dtype: torch.dtype, method: str) -> None:
    """Inputs widened exactly, outputs rounded to nearest even once; no other type in between (A1, A14)."""
    world, count = 3, 1000
    ranks, model = Ranks(world, count, dtype=dtype), oracle.Pass(world, count)
    for site in range(4):
        xs = [torch.from_numpy(normal(count)(site, rank)).to(dtype) for rank in range(world)]
        expected = getattr(model, method)([x.float().numpy() for x in xs], 4)
        for out in getattr(ranks, method)(xs, 4):
            assert torch.equal(out, torch.from_numpy(expected).to(dtype))
        for rank in range(world):
            assert same_bits(ranks.residuals[rank].sender.numpy(), model.sender[rank])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_exact_path_of_sixteen_bit_tensors(dtype: torch.dtype) -> None:
    """What the type's rounding drops stays in the residual, and coded calls before it are paid."""
    world, count = 4, 1000

    def round_to_type(x: Array) -> Array:
        return torch.from_numpy(x.copy()).to(dtype).float().numpy()

    ranks, model = Ranks(world, count, dtype=dtype), oracle.Pass(world, count)
    for site, method in enumerate(("two_shot", "exact", "two_shot", "exact", "exact")):
        xs = [torch.from_numpy(normal(count)(site, rank)).to(dtype) for rank in range(world)]
        wide = [x.float().numpy() for x in xs]
        expected = model.exact(wide, round_to_type) if method == "exact" else model.two_shot(wide, 4)
        for out in ranks.two_shot(xs, EXACT if method == "exact" else 4):
            assert torch.equal(out, torch.from_numpy(expected).to(dtype)), (site, method)
        for rank in range(world):
            assert same_bits(ranks.residuals[rank].sender.numpy(), model.sender[rank]), (site, method, rank)
            assert same_bits(ranks.residuals[rank].owner.numpy(), model.owner[rank]), (site, method, rank)
