"""attach(): where feedback begins and ends, the flush, isolation of passes, a real (small, random) Llama."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pool import Pool

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
from torch.distributed.device_mesh import init_device_mesh

import echo_comm.torch as echo
from echo_comm.torch.backend import EchoProcessGroup
from group_helpers import Calls, configure_in_turn, echo_group, same, same_on_all_ranks, values

TRANSPORTS = ("shm", "inner")


def _isolation(rank: int, transport: str) -> None:
    group = echo_group(3, hidden_size=128, transport=transport)
    assert group is not None
    calls = Calls(group)
    echo.attach(calls, group, group.config)
    a = [values(rank, site, 12, 128) for site in range(5)]
    b = [values(rank, 100 + site, 12, 128) for site in range(5)]
    calls(b)  # learns the number of sites
    alone = calls(b)
    calls(a)
    after_a = calls(b)
    with pytest.raises(RuntimeError, match="broken off"):
        calls([*a[:3], None])
    assert group.active is None
    after_broken_a = calls(b)
    calls([values(rank, 300, 40, 128)] * 5)  # a bigger tensor: residuals grow
    after_bigger = calls(b)
    for results in (after_a, after_broken_a, after_bigger):
        assert all(same(x, y) for x, y in zip(alone, results, strict=True))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pass_does_not_depend_on_earlier_ones(pool: Pool, transport: str) -> None:  # G7
    pool.run(_isolation, transport)


def _sites(rank: int) -> None:
    group = echo_group(3, hidden_size=128)
    assert group is not None
    calls = Calls(group)
    attachment = echo.attach(calls, group, group.config)
    assert attachment.sites == 0
    flushes = []
    for sites in (4, 4, 6, 6, 2, 2):
        before = attachment.stats()
        calls([values(rank, site, 8, 128) for site in range(sites)])
        spent = attachment.stats() - before
        assert (spent.passes, spent.coded) == (1, sites)
        flushes.append(spent.flushes)
        assert attachment.sites == sites
    assert flushes == [0, 1, 1, 1, 0, 1]  # a pass of another length flushes where the last one ended, or not at all


def test_the_last_site_is_the_flush_and_its_number_is_learnt_again(pool: Pool) -> None:
    pool.run(_sites)


def _flush(rank: int) -> list[float]:
    group = echo_group(3, hidden_size=128)
    assert group is not None
    calls = Calls(group)
    attachment = echo.attach(calls, group, group.config)
    xs = [values(rank, site, 64, 128) for site in range(20)]
    true = torch.stack(xs).double()
    dist.all_reduce(true, group=group)
    running = []
    for _ in configure_in_turn(group):
        results = torch.stack(calls(xs)).double()
        running.append(float((results.sum(0) - true.sum(0)).pow(2).mean().sqrt()))
    attachment.remove()
    before = group.stats()
    calls(xs)
    assert (group.stats() - before).passes == 0
    return running


def test_feedback_keeps_the_error_of_one_call_and_the_flush_pays_it(pool: Pool) -> None:  # G3
    for without, with_feedback, with_flush in pool.run(_flush):
        print(
            f"running error: without {without:.4f}, feedback {with_feedback:.4f}, feedback and flush {with_flush:.4f}"
        )
        assert with_feedback < without / 3
        assert with_flush < with_feedback / 3


def _other_shape(rank: int) -> None:
    group = echo_group(3, hidden_size=128)
    assert group is not None
    calls = Calls(group)
    attachment = echo.attach(calls, group, group.config)
    x, longer = values(rank, 1, 8, 128), values(rank, 2, 9, 128)
    calls([x, longer, x, x.bfloat16()])
    before = attachment.stats()
    results = calls([x, longer, x, x.bfloat16()])
    spent = attachment.stats() - before
    assert (spent.coded, spent.flushes, spent.forwarded["other_shape"]) == (2, 1, 2)
    exact = longer.clone()
    dist.all_reduce(exact)
    assert same(results[1], exact)


def test_a_call_of_another_shape_is_forwarded_and_the_pass_goes_on(pool: Pool) -> None:
    pool.run(_other_shape)


def _two_models(rank: int) -> None:
    group = echo_group(3, hidden_size=128)
    assert group is not None

    class Outer(nn.Module):
        """Calls a model of its own in the middle of its pass."""

        def __init__(self, inner: nn.Module | None) -> None:
            super().__init__()
            self.calls = Calls(group)
            self.box = [inner]  # not a submodule

        def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
            results = self.calls(xs[:2])
            if self.box[0] is not None:
                self.box[0]([values(rank, 50, 4, 128)] * 3)
            return results + self.calls(xs[2:])

    draft = Calls(group)
    plain, nested = Outer(None), Outer(draft)
    for module in (draft, plain, nested):
        echo.attach(module, group, group.config)
    xs = [values(rank, site, 8, 128) for site in range(5)]
    for module in (plain, nested):
        module(xs)
    assert all(same(a, b) for a, b in zip(plain(xs), nested(xs), strict=True))


def test_passes_of_two_models_do_not_mix(pool: Pool) -> None:  # G8
    pool.run(_two_models)


def _refusals(rank: int) -> None:
    group = echo_group(3, hidden_size=128)
    assert group is not None
    gemma = nn.ModuleDict({"layer": nn.ModuleDict({"post_feedforward_layernorm": nn.LayerNorm(8)})})
    with pytest.raises(echo.PostNormError, match="post_feedforward_layernorm"):
        echo.attach(gemma, group)
    echo.attach(gemma, group, echo.EchoConfig(feedback="none")).remove()
    echo.attach(gemma, group, force=True).remove()
    with pytest.raises(TypeError, match="'gloo'"):
        echo.attach(nn.Linear(2, 2), dist.group.WORLD)
    group.open()
    with pytest.raises(ValueError, match="timeout_s"):
        group.configure(echo.EchoConfig(timeout_s=5.0))


def test_post_norm_models_and_foreign_groups_are_refused(pool: Pool) -> None:  # G6
    pool.run(_refusals)


def _llama(rank: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from echo_comm.run import model

    config = LlamaConfig(
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        vocab_size=64,
        tie_word_embeddings=True,
    )
    ids = (torch.arange(200) % 64).reshape(1, 200)
    outputs = {}
    for backend in ("gloo", "echo"):
        torch.manual_seed(0)
        network = LlamaForCausalLM(config).eval()
        # Meshes of equal shape and names are one to DTensor's caches, whatever their backends: names must differ.
        mesh = init_device_mesh("cpu", (3,), mesh_dim_names=(backend,), backend_override={backend: backend})
        decoder = model.split(network, mesh)
        group = mesh.get_group(backend)
        with torch.no_grad():
            if backend == "gloo":
                outputs["gloo"] = network(ids).logits
                continue
            assert isinstance(group, EchoProcessGroup)
            attachment = echo.attach(decoder, group, echo.EchoConfig(min_bytes=0, timeout_s=10.0))
            assert (group.hidden_size, attachment.sites) == (192, 6), (group.hidden_size, attachment.sites)
            with echo.exact():
                outputs["exact"] = network(ids).logits
            before = attachment.stats()
            outputs["coded"] = network(ids).logits
            spent = attachment.stats() - before
    assert (spent.coded, spent.flushes, spent.passes) == (6, 1, 1), spent
    assert not spent.forwarded
    assert spent.ratio is not None
    assert spent.ratio > 3
    assert same(outputs["exact"], outputs["gloo"])
    assert same_on_all_ranks(outputs["coded"], group)
    error = (outputs["coded"] - outputs["gloo"]).abs().max() / outputs["gloo"].abs().max()
    assert 0 < error < 0.1, f"largest difference of the logits: {error:.4f} of the largest"

    with torch.enable_grad():  # gradients are summed exactly
        before = attachment.stats()
        network(ids, labels=ids).loss.backward()
        spent = attachment.stats() - before
    assert spent.forwarded["backward"] == 5 * 3, spent  # q, k, v, gate, up of each layer
    assert spent.coded == 6


def test_a_llama_split_by_torch_is_coded_exactly_where_it_sums(pool: Pool) -> None:
    pytest.importorskip("transformers")
    pool.run(_llama)


def _embedding(rank: int) -> None:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("words",), backend_override={"words": "echo"})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(96, 128), nn.Linear(128, 128))
    true = model[0](torch.arange(96))
    parallelize_module(model, mesh, {"0": RowwiseParallel(input_layouts=Replicate())}, src_data_rank=None)
    attachment = echo.attach(model, mesh.get_group(), echo.EchoConfig(min_bytes=0, timeout_s=10.0, hidden_size=128))
    assert attachment.sites == 0
    assert same(model[0](torch.arange(96)), true)
    model(torch.arange(96))
    stats = attachment.stats()
    assert (stats.coded, stats.forwarded) == (0, {"embedding": 2}), stats
    with pytest.raises(ValueError, match=r"cut over groups of \[\]"):
        echo.attach(nn.Linear(2, 2))


def test_a_vocabulary_cut_over_the_ranks_is_summed_exactly(pool: Pool) -> None:
    pool.run(_embedding)


def test_settings_are_checked_and_read_from_the_environment() -> None:
    config = echo.EchoConfig.from_env({"ECHO_BITS": "5", "ECHO_MIN_BYTES": "7", "ECHO_FEEDBACK": "none"})
    assert config == echo.EchoConfig(bits=5, min_bytes=7, feedback="none")
    assert echo.EchoConfig.from_env({"ECHO_DISABLE": "1"}).disable
    assert not echo.EchoConfig.from_env({"ECHO_DISABLE": "0"}).disable
    with pytest.raises(ValueError, match="ECHO_BITS is 'four'"):
        echo.EchoConfig.from_env({"ECHO_BITS": "four"})
    for wrong in ({"bits": 7}, {"feedback": "yes"}, {"min_bytes": -1}, {"transport": "tcp"}, {"timeout_s": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            echo.EchoConfig(**wrong)  # type: ignore[arg-type]
