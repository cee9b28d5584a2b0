"""Ranks compare their settings before they act on them: through the store, as the group's calls depend on them."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from echo_comm._library import EchoMismatchError, EchoTimeoutError


def _differences(settings: dict[str, Any], others: dict[str, Any]) -> str:
    names = [name for name in settings if settings[name] != others.get(name)]
    return ", ".join(f"{name} {others.get(name)!r} instead of {settings[name]!r}" for name in names)


def compare(
    store: dist.Store, key: str, rank: int, size: int, settings: dict[str, Any], timeout: timedelta, what: str
) -> None:
    """Raises EchoMismatchError on every rank unless all passed equal `settings`. Collective.

    key: of this comparison, used once. EchoTimeoutError names the ranks that did not come within `timeout`.
    """
    text = json.dumps(settings, sort_keys=True).encode()
    store.set(f"{key}/{rank}/settings", text)
    store.set(f"{key}/{rank}", hashlib.sha256(text).hexdigest())  # last: who sees it finds the settings
    keys = [f"{key}/{peer}" for peer in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = [peer for peer, name in enumerate(keys) if not store.check([name])]
        raise EchoTimeoutError(
            f"{what}: ranks {missing} did not come within {timeout.total_seconds():g} s; all ranks must call it"
        ) from None
    hashes = [bytes(store.get(name)) for name in keys]
    for peer in range(size):
        if hashes[peer] != hashes[0]:
            first, other = (json.loads(store.get(f"{key}/{r}/settings")) for r in (0, peer))
            raise EchoMismatchError(
                f"{what}: rank {peer} has {_differences(first, other)} of rank 0; all ranks must use the same "
                "EchoConfig, hidden size and ECHO_ variables"
            )
