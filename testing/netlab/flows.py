"""Competing traffic: iperf3 flows in both directions between host 0 and host 1.

How much they moved is read from the kernel's own counters of their receiving sockets, at the moments that matter: what
iperf3 prints at its end covers its whole life, not the time of the command.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable

from .errors import LabError
from .system import command

PORTS = (47701, 47702)  # of the flows from host 0 to 1 and from 1 to 0
_START_SECONDS = 10.0
_FLOWING = 64 << 10  # bytes that each flow must have moved to count as running; a control connection moves far less


class Flows:
    """`number` flows in each direction, running from construction to close()."""

    def __init__(
        self,
        number: int,
        popen: Callable[[int, list[str]], subprocess.Popen[bytes]],
        hosts: list[str],
        addresses: list[str],
        congestion_control: str,
    ) -> None:
        self.number = number
        self._hosts = hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for sender, port in enumerate(PORTS):
                self._processes.append(popen(1 - sender, ["iperf3", "-s", "-p", str(port)]))
            self._wait(self._listen, "iperf3 does not listen")
            for sender, port in enumerate(PORTS):
                peer = ["-c", addresses[1 - sender], "-p", str(port)]
                many = ["-P", str(number), "-t", "86400", "-C", congestion_control]
                self._processes.append(popen(sender, ["iperf3", *peer, *many]))
            # Moved something, and goes on moving.
            nothing: list[dict[str, int]] = [{}, {}]
            self._wait(lambda: self._all_moved(nothing), "the competing flows do not start")
            before = self._by_flow()
            self._wait(lambda: self._all_moved(before), "the competing flows do not go on")
        except BaseException:
            self.close()
            raise

    def received(self) -> list[int]:
        """Payload bytes so far, from host 0 to host 1 and back."""
        return [sum(flows.values()) for flows in self._by_flow()]

    def alive(self) -> bool:
        """Whether all of it is still running: flows that ended early make a busy link an idle one."""
        return all(process.poll() is None for process in self._processes)

    def close(self) -> None:
        """Stops all flows."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _by_flow(self) -> list[dict[str, int]]:
        """Bytes received per connection, for each direction."""
        result = []
        for sender, port in enumerate(PORTS):
            text = command("ss", "-N", self._hosts[1 - sender], "-tinHO", "state", "established", f"sport = :{port}")
            flows: dict[str, int] = {}
            for line in text.splitlines():
                received = re.search(r"\bbytes_received:(\d+)", line)
                flows[line.split()[3]] = int(received[1]) if received else 0
            result.append(flows)
        return result

    def _listen(self) -> bool:
        return all(
            command("ss", "-N", self._hosts[1 - sender], "-tlnH", f"sport = :{port}").strip()
            for sender, port in enumerate(PORTS)
        )

    def _all_moved(self, before: list[dict[str, int]]) -> bool:
        """Whether every flow received more than _FLOWING since `before`."""
        return all(
            sum(count - old.get(key, 0) > _FLOWING for key, count in now.items()) >= self.number
            for now, old in zip(self._by_flow(), before, strict=True)
        )

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not holds():
            if time.monotonic() > deadline or not self.alive():
                raise LabError(f"{otherwise} ({self.number} flows each way, ports {PORTS[0]} and {PORTS[1]})")
            time.sleep(0.02)
