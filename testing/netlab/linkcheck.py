"""Checks a shaped link before it is used: does a message after a pause move at the rate of the link?

One connection per direction, warmed up, then messages of 64 KiB to 8 MiB, each after a pause that fills the bucket
(10 ms, longer only where 10 ms of the rate are less than two buckets). Of each message we take

    seconds   from the sender's clock before its send() to the kernel's receive time of the last byte in the receiving
              namespace (SO_TIMESTAMPNS: not when Python woke up), less the delay of a single byte taken the same way
    goodput   (payload - credit) / seconds, credit = bucket * 1448 / 1514: the payload that a full bucket lets pass at
              once. Without this term a correct link "moves" 64 KiB at twice its rate.

The right answer is 1448/1514 = 95.6 % of the rate for every size: 1448 bytes of payload in a frame of 1514, which is
what tbf counts. 64 KiB guards the bucket (measured at 1 Gbit/s: one of 40 KiB gives 111 %, of 48 KiB 123 %), 8 MiB the
rate.
Disturbances (a busy machine, a late wake-up) only ever add time, so the fastest try counts: one try above the limit
proves a wrong link, and a link is too slow only when none of its tries was fast enough (3 to 10 for short messages).
About 60 us stay at every try, most likely because the last piece waits for the timers of two shapers and a virtual
machine serves a timer 30 to 50 us late. So a message may take 100 us longer than the lower limit says, which matters
for the short ones only (64 KiB at 1 Gbit/s: 286 us). The upper limit has no such allowance.

Slow start has no part in it: the connection is warm, and the pause is far below the retransmission timeout (at least
200 ms) after which the kernel would start anew. Sizes below two buckets (only above 5 Gbit/s) are sent, not judged.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .errors import LabError
from .rate import FRAME, PAYLOAD, Rate
from .system import inside

SIZES = (64 << 10, 256 << 10, 1 << 20, 8 << 20)
LOWEST, HIGHEST = 0.85, 1.02
_IDLE = 0.010
_TIMERS = 100e-6  # seconds that a message may take longer than the lower limit says
# A message that takes this many seconds at most gets so many tries, at least and at most. Noise hardly hurts long ones.
_TRIES = ((0.05, 3, 10), (0.2, 1, 5), (float("inf"), 1, 2))
_TIMEOUT = 20.0
_SO_TIMESTAMPNS = 35


@dataclass
class Measured:
    """One size in one direction. Bytes per second; `tries` are goodputs in the order they were taken."""

    sender: int
    receiver: int
    size: int
    judged: bool
    tries: list[float] = field(default_factory=list)
    with_bucket: float = 0.0  # payload / seconds of the fastest try, the bucket's gift included

    @property
    def goodput(self) -> float:
        """The fastest try."""
        return max(self.tries)

    def share(self, rate: Rate) -> float:
        """Goodput as a part of the rate."""
        return self.goodput / rate.bytes_per_second

    def accepted(self, rate: Rate) -> bool:
        """Whether the link does what it should, as far as this size can tell."""
        if not self.judged:
            return True
        longest = self.counted(rate) / (LOWEST * rate.bytes_per_second) + _TIMERS
        return self.counted(rate) / self.goodput <= longest and self.share(rate) <= HIGHEST

    def counted(self, rate: Rate) -> float:
        """The payload that has to move at the rate of the link: what a full bucket lets pass at once is left out."""
        return max(self.size - rate.burst * PAYLOAD / FRAME, 0.0) if rate.shaped else float(self.size)

    def describe(self, rate: Rate) -> str:
        """One line for people."""
        text = f"host {self.sender} to {self.receiver}, {self.size >> 10} KiB: {self.goodput / 1e6:.2f} MB/s"
        if rate.shaped:
            text += f" = {100 * self.share(rate):.1f} % of {rate}"
            if not self.judged:
                text += " (not judged: no larger than two buckets)"
            elif self.accepted(rate) and self.share(rate) < LOWEST:
                text += " (accepted: not 100 us too late)"
        return f"{text}, {len(self.tries)} tries"


class Path:
    """A TCP connection from one host to another."""

    def __init__(self, hosts: tuple[str, str], address: str, congestion_control: str) -> None:
        sending, receiving = hosts
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(inside(receiving, lambda: socket.create_server((address, 0))))
            listener.settimeout(_TIMEOUT)
            end = listener.getsockname()
            self._out = stack.enter_context(inside(sending, lambda: socket.create_connection(end, _TIMEOUT)))
            self._in = stack.enter_context(listener.accept()[0])
            for connection in (self._out, self._in):
                connection.settimeout(_TIMEOUT)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
                if used != congestion_control:
                    raise LabError(f"connections use congestion control {used}, {congestion_control} was asked for")
            self._in.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._pool = stack.enter_context(ThreadPoolExecutor(1))
            self._buffer = bytearray(SIZES[-1])
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Ends the connection, and with it a receiver that still waits."""
        with contextlib.suppress(OSError):
            self._in.shutdown(socket.SHUT_RDWR)
        self._stack.close()

    def _receive(self, size: int) -> int:
        """Reads `size` bytes; returns when the kernel got the last of them, in nanoseconds of the wall clock."""
        arrived = 0
        while size > 0:
            count, control, _, _ = self._in.recvmsg_into([memoryview(self._buffer)[:size]], 64)
            if count == 0:
                raise LabError("the connection of the link check was closed")
            size -= count
            arrived = time.time_ns()  # in case the kernel has no time for us: later, so never in a link's favour
            for level, kind, data in control:
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                    seconds, nanoseconds = struct.unpack("qq", data)
                    arrived = seconds * 10**9 + nanoseconds
        return arrived

    def send(self, size: int, idle: float) -> float:
        """Sends one message after a pause; seconds from before the send to the arrival of its last byte."""
        message = memoryview(bytes(size))
        received = self._pool.submit(self._receive, size)
        time.sleep(idle)
        start = time.time_ns()
        self._out.sendall(message)
        return (received.result() - start) / 1e9


def measure(path: Path, ends: tuple[int, int], rate: Rate) -> list[Measured]:
    """Sends all sizes over a path."""
    idle = max(_IDLE, 2 * rate.burst / rate.bytes_per_second) if rate.shaped else _IDLE
    path.send(SIZES[2], 0)
    delay = min(path.send(1, 0.001) for _ in range(20))
    results = []
    for size in SIZES:
        result = Measured(*ends, size, judged=rate.shaped and size >= 2 * rate.burst)
        expected = size / rate.bytes_per_second if rate.shaped else 0.0
        least, most = next(tries for limit, *tries in _TRIES if expected <= limit)
        for number in range(most):
            if number >= least and (result.accepted(rate) or result.share(rate) > HIGHEST):
                break
            seconds = max(path.send(size, idle) - delay, 1e-9)
            goodput = result.counted(rate) / seconds
            if not result.tries or goodput > result.goodput:
                result.with_bucket = size / seconds
            result.tries.append(goodput)
        results.append(result)
    return results
