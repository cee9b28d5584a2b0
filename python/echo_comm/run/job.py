"""What the command was asked to do, and the error that ends it with one line."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from echo_comm._library import Store


class UsageError(Exception):
    """The user can mend it: shown as one line, exit status 2."""


@dataclass(frozen=True)
class Job:
    """Arguments of `echo-comm run`."""

    tp: int
    model: str | None
    prompt: str
    tokens: int
    min_bytes: int
    feedback: str
    residuals: Store
    bits: int
    dtype: str
    eval_tokens: int
    window: int
    name: str | None
    json_file: str | None

    @property
    def threads(self) -> int:
        """Threads of one rank."""
        return max(1, len(os.sched_getaffinity(0)) // self.tp)

    def dumps(self) -> str:
        """For the ranks' command line."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Job:
        """Inverse of dumps()."""
        return cls(**json.loads(text))


def cache_folder() -> Path:
    """Where converted models are kept: ECHO_CACHE, or echo-comm in the user's cache folder."""
    own = os.environ.get("ECHO_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echo-comm"
