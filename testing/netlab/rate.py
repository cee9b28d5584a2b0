"""The rate of a link and the token bucket that enforces it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LOWEST, _HIGHEST = 10**6, 100 * 10**9
PAYLOAD, FRAME = 1448, 1514  # bytes of a full packet: what TCP carries, what tbf counts
_SMALL_BURST = 32 * 1024  # bytes; tc's "32kb"


@dataclass(frozen=True)
class Rate:
    """Bits per second on the wire, Ethernet header included as `tbf` counts them; 0: not shaped."""

    bits: int

    @staticmethod
    def parse(text: str) -> Rate:
        """Reads tc's notation, `100mbit` or `2.5gbit`, or `none`; raises ValueError with what is allowed."""
        if text == "none":
            return Rate(0)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
        bits = round(float(found[1]) * _UNITS[found[2]]) if found else 0
        if not _LOWEST <= bits <= _HIGHEST:
            raise ValueError(f"rate '{text}': use 1mbit to 100gbit, such as 100mbit or 2.5gbit, or none")
        return Rate(bits)

    @property
    def shaped(self) -> bool:
        """Whether there is a bucket at all."""
        return self.bits > 0

    @property
    def bytes_per_second(self) -> float:
        """The same in bytes."""
        return self.bits / 8

    @property
    def burst(self) -> int:
        """Size of the bucket in bytes: 32 KiB up to 1 Gbit/s, above 100 us of the rate.

        It is what a message after a pause gets for nothing. Smaller than 100 us, and the kernel's timers cannot keep
        the rate; larger, and short messages no longer see the link they are meant to be measured on.
        """
        return _SMALL_BURST if self.bits <= 10**9 else self.bits // 8 // 10_000

    @property
    def segments(self) -> int:
        """Most packets that TCP may hand to the interface as one piece, so that a piece is at most half a bucket.

        A bucket passes pieces whole. One almost as large as the bucket has to wait until it is full, and what the
        kernel's timer is late then (50 us on a quiet virtual machine) is lost; smaller ones need more timers. Measured
        with iperf3 both ways on links of 1 Gbit/s: 740 to 840 Mbit/s with the kernel's default of 64 KiB, 875 to 905
        with a fifth of a bucket, which kept two cores busy to 80 %, 950 with half a bucket, at 20 to 30 %.
        """
        return max(1, self.burst // 2 // FRAME)

    def tbf(self) -> list[str]:
        """Arguments of `tc qdisc add dev X root`."""
        return ["tbf", "rate", f"{self.bits}bit", "burst", f"{self.burst}b", "latency", "20ms"]

    def __str__(self) -> str:
        for unit in ("gbit", "mbit"):
            if self.bits >= _UNITS[unit]:
                return f"{self.bits / _UNITS[unit]:g}{unit}"
        return "none"
