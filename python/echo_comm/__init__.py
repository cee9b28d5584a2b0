"""Echo: tensor-parallel collectives that send 4 bits instead of 16.

import echo_comm          the C library: version, errors, communicators over plain memory; needs no torch
import echo_comm.torch    the c10d backend "echo", the operators torch.ops.echo, attach() and exact()
"""

from echo_comm._library import (
    BFLOAT16,
    BITS_EXACT,
    FLOAT16,
    FLOAT32,
    ONE_SHOT,
    TWO_SHOT,
    CommStats,
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
from echo_comm.communicator import Communicator, Feedback, Options, Path, Request

__all__ = [
    "BFLOAT16",
    "BITS_EXACT",
    "FLOAT16",
    "FLOAT32",
    "ONE_SHOT",
    "TWO_SHOT",
    "CommStats",
    "Communicator",
    "EchoAbortedError",
    "EchoArgumentError",
    "EchoError",
    "EchoMismatchError",
    "EchoPeerError",
    "EchoStateError",
    "EchoSystemError",
    "EchoTimeoutError",
    "Feedback",
    "Options",
    "Path",
    "Request",
    "__version__",
    "library_version",
]
