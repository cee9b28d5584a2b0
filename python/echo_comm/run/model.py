"""Converts, loads and splits a Llama- or Qwen-type model.

A GGUF file is converted once, by one rank of the host: loading it through transformers takes half a minute, the
converted folder (safetensors in the cache, keyed by the file's content) a second.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from echo_comm.run.job import Job, UsageError
from echo_comm.run.report import Progress
from echo_comm.run.source import check_config, check_folder, converted, is_model, model_file

# ---- convert -----------------------------------------------------------------------------------


def _convert(file: Path, tp: int, target: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        check_config(AutoConfig.from_pretrained(**where).to_dict(), tp)
        network = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        network.hf_quantizer = None  # the weights are plain fp32 now
        if hasattr(network.config, "quantization_config"):
            del network.config.quantization_config
        network.save_pretrained(target)
        AutoTokenizer.from_pretrained(**where).save_pretrained(target)
    except UsageError:
        raise
    except Exception as error:  # whatever the reader says about a broken or foreign file
        raise UsageError(
            f"{file}: cannot be read as a model ({type(error).__name__}: {error}); get the file again"
        ) from None


def _converted(file: Path, tp: int, scratch: Path | None, said: Progress) -> Path:
    target = converted(file)
    if is_model(target):
        return target
    said.phase(f"converting {file.name} (once)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    except OSError:  # no cache can be written: for this job only
        if scratch is None:
            raise UsageError(
                f"the cache {target.parent} cannot be written; set ECHO_CACHE to a folder that can"
            ) from None
        _convert(file, tp, scratch / target.name)
        return scratch / target.name
    try:
        _convert(file, tp, unfinished)
        try:
            unfinished.rename(target)  # a whole folder or none
        except OSError:
            if not is_model(target):  # else another job was faster
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def prepare(job: Job, convert: bool, scratch: Path | None, said: Progress) -> Path:
    """A model folder that all ranks of this host can load; one of them makes it. Collective."""
    path = model_file(job)
    folder: Path | None = path
    if path.is_file():
        folder = _converted(path, job.tp, scratch, said) if convert else None
    folders: list[Path | None] = [None] * job.tp
    dist.all_gather_object(folders, folder)
    local = next(known for known in folders if known is not None and known.exists())
    check_folder(local, job.tp)
    return local


# ---- load and split ----------------------------------------------------------------------------


def load(folder: Path, job: Job, said: Progress) -> nn.Module:
    """The whole model on this rank; its files are mapped, so the ranks of a host share them."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    if not said.bars:
        transformers_logging.disable_progress_bar()
    said.phase("loading the model")
    try:
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, job.dtype))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"{folder}: cannot be loaded as a language model ({error}); check the folder") from None
    return network.eval()


def tokenizer(folder: Path) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{folder}: has no tokenizer that can be loaded ({error})") from None


def split(network: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Cuts every layer over the ranks with torch's own tensor parallelism; returns the decoder."""
    decoder = getattr(network, "model", None)
    plan = {
        **{f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate_proj", "up_proj")},
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for layer in getattr(decoder, "layers", [nn.Module()]):
        for name in plan:
            try:
                layer.get_submodule(name)
            except AttributeError:
                raise UsageError(
                    f"{type(network).__name__} has no {name} in its layers; use a Llama- or Qwen-type model"
                ) from None
        parallelize_module(layer, mesh, plan, src_data_rank=None)  # every rank has the same weights
    assert isinstance(decoder, nn.Module)
    return decoder
