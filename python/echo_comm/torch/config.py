"""Settings of an echo group. All of them must be equal on all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echo_comm._library import STORES, Store

BITS = (3, 4, 5, 6, 8, 16)


@dataclass(frozen=True)
class EchoConfig:
    """What is coded, with how many bits, and on which route.

    bits              bits of a code: 3, 4, 5, 6, 8; 16: the exact path
    flush_bits        bits of the last call of a pass, which pays what is owed: 8, or 16 (exactly)
    feedback          "on": rounding errors are carried to the next call of the pass; "none": dropped
    residuals         how rounding errors are kept between calls: "fp32", "int8", "int16"; "auto": int8, from the
                      257th call of a pass on int16
    min_bytes         smaller tensors are forwarded
    hidden_size       length of the rows that are coded; None: learnt by attach(). Unknown: all is forwarded
    gather            which all-gathers of such rows are coded: those inside a "pass" (activations; weights that are
                      gathered outside, e.g. for a checkpoint, stay exact), "always" or "never"
    transport         "shm": shared memory of one host; "inner": the inner group; "auto": the first if it can be
    rotation          mix the 64 values of a group before rounding
    batch_invariant   a token's result depends on that token's values alone, whatever the batch
    timeout_s         longest wait of a call
    threads           threads that code large tensors; None: as many as torch uses (torch.get_num_threads)
    name              name of the shared memory job; None: a random one
    disable           forward everything; ECHO_DISABLE=1 sets it on every group
    """

    bits: int = 4
    flush_bits: int = 8
    feedback: str = "on"
    residuals: Store = "auto"
    min_bytes: int = 65536
    hidden_size: int | None = None
    gather: str = "pass"
    transport: str = "auto"
    rotation: bool = True
    batch_invariant: bool = False
    timeout_s: float = 30.0
    threads: int | None = None
    name: str | None = None
    disable: bool = False

    def __post_init__(self) -> None:
        def require(valid: bool, name: str, expected: str) -> None:
            if not valid:
                raise ValueError(f"EchoConfig: {name} is {getattr(self, name)!r}, expected {expected}")

        require(self.bits in BITS, "bits", "3, 4, 5, 6, 8 or 16 (exact)")
        require(self.flush_bits in BITS, "flush_bits", "3, 4, 5, 6, 8 or 16 (exact)")
        require(self.feedback in ("on", "none"), "feedback", "'on' or 'none'")
        require(self.residuals in STORES, "residuals", "'auto', 'fp32', 'int8' or 'int16'")
        require(self.threads is None or 1 <= self.threads <= 256, "threads", "1 to 256 or None")
        require(self.min_bytes >= 0, "min_bytes", "0 or more")
        require(self.hidden_size is None or self.hidden_size > 0, "hidden_size", "a positive number or None")
        require(self.gather in ("pass", "always", "never"), "gather", "'pass', 'always' or 'never'")
        require(self.transport in ("auto", "shm", "inner"), "transport", "'auto', 'shm' or 'inner'")
        require(self.timeout_s > 0, "timeout_s", "more than 0 seconds")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> EchoConfig:
        """Defaults, changed by ECHO_BITS, ECHO_MIN_BYTES, ECHO_HIDDEN_SIZE, ECHO_FEEDBACK (on, none), ECHO_RESIDUALS,
        ECHO_DISABLE.
        """

        def number(name: str, default: Any) -> Any:
            text = environ.get(name, "")
            try:
                return int(text) if text else default
            except ValueError:
                raise ValueError(f"{name} is {text!r}, expected a whole number") from None

        return cls(
            bits=number("ECHO_BITS", cls.bits),
            min_bytes=number("ECHO_MIN_BYTES", cls.min_bytes),
            hidden_size=number("ECHO_HIDDEN_SIZE", cls.hidden_size),
            feedback=environ.get("ECHO_FEEDBACK") or cls.feedback,
            residuals=environ.get("ECHO_RESIDUALS") or cls.residuals,  # type: ignore[arg-type]  # checked above
            disable=disabled_by(environ),
        )


def disabled_by(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ECHO_DISABLE asks to forward everything, whatever the settings are."""
    return environ.get("ECHO_DISABLE", "") not in ("", "0")
