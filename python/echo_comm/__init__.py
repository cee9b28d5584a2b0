"""Echo: tensor-parallel collectives that send 4 bits instead of 16.

import echo_comm          the C library: version, errors, communicators over plain memory; needs no torch
import echo_comm.torch    the c10d backend "echo", the operators torch.ops.echo, attach() and exact()
"""

from echo_comm._library import (
    EchoAbortedError,
    EchoArgumentError,
    EchoError,
    EchoMismatchError,
    EchoPeerError,
    EchoStateError,
    EchoSystemError,
    EchoTimeoutError,
    library_version,
)
from echo_comm._version import __version__

__all__ = [
    "EchoAbortedError",
    "EchoArgumentError",
    "EchoError",
    "EchoMismatchError",
    "EchoPeerError",
    "EchoStateError",
    "EchoSystemError",
    "EchoTimeoutError",
    "__version__",
    "library_version",
]
