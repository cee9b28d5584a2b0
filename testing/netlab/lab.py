"""A laboratory from open to close.

host 0                 host 1          W namespaces RUN-h0, RUN-h1, ...; eth0 of host r has 10.77.0.(r+1)/16 and
 eth0                   eth0           fdec:77::(r+1)/64
  |  shaped              |  shaped     egress of eth0: what the host sends
  p0  shaped             p1  shaped    egress of the port: what the host receives
   \\____ bridge br0 ____/              one more namespace, RUN-br; the root namespace holds nothing of it
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from . import leftovers, linkcheck, system
from .errors import LabError, LinkRefused, NotHere
from .flows import Flows
from .ranks import RunResult, kill_group, run_all
from .rate import Rate
from .system import Counters, command

INTERFACE = "eth0"
_HOSTS = range(2, 17)
_SLOW_START = "ipv4/tcp_slow_start_after_idle"


@dataclass
class Traffic:
    """Competing flows during one piece of work: payload bytes from host 0 to 1 and back."""

    flows: int
    received: tuple[int, int] = (0, 0)
    seconds: float = 0.0  # between the two looks at the flows' counters

    @property
    def goodput(self) -> tuple[float, float]:
        """Payload bytes per second."""
        return (self.received[0] / self.seconds, self.received[1] / self.seconds) if self.seconds else (0.0, 0.0)


class Lab:
    """Hosts joined by links of one rate. A context manager: made and checked on entry, removed on exit.

    hosts   2 to 16
    rate    of every link, in each direction: `100mbit`, `2.5gbit`, `none`
    cc      TCP's congestion control for connections between hosts
    check   whether to refuse links that do not have their rate (LinkRefused); figures are in `measured`

    Raises NotHere when this machine cannot do it. Use it from the main thread: the kernel ends ranks when the thread
    that started them ends.
    """

    def __init__(self, hosts: int = 2, rate: str | Rate = "1gbit", cc: str = "cubic", check: bool = True) -> None:
        if hosts not in _HOSTS:
            raise ValueError(f"{hosts} hosts: use {_HOSTS.start} to {_HOSTS.stop - 1}")
        self.size = hosts
        self.rate = Rate.parse(rate) if isinstance(rate, str) else rate
        self.cc = cc
        self.removed: list[str] = []  # leftovers of killed runs
        self.measured: list[linkcheck.Measured] = []
        self.name = leftovers.new_run()
        self.folder = Path(tempfile.gettempdir(), self.name)
        self._check = check
        self._processes: list[subprocess.Popen[bytes]] = []
        self._open = False

    def open(self) -> None:
        """Makes everything, or nothing."""
        if lacks := system.missing(flows=False):
            raise NotHere("the network lab needs " + "; ".join(lacks))
        self._open = True
        atexit.register(self.close)
        try:
            self.removed = leftovers.remove_leftovers()
            system.probe(f"{self.name}-probe")
            self.folder.mkdir(mode=0o700)
            self._make_bridge()
            for rank in range(self.size):
                self._make_host(rank)
            if self._check:
                self.check_links()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all processes of the laboratory and removes it; may be called again."""
        if not self._open:
            return
        for process in self._processes:
            if process.poll() is None:
                kill_group(process)
        leftovers.remove_run(self.name)
        for process in self._processes:
            process.wait()
        self._open = False
        atexit.unregister(self.close)

    def __enter__(self) -> Lab:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def host(self, rank: int) -> str:
        """The namespace of a rank."""
        return f"{self.name}-h{rank}"

    @property
    def bridge(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}-br"

    def address(self, rank: int) -> str:
        """The IPv4 address of a rank."""
        return f"10.77.0.{rank + 1}"

    def address6(self, rank: int) -> str:
        """The IPv6 address of a rank."""
        return f"fdec:77::{rank + 1:x}"

    def _make_bridge(self) -> None:
        command("ip", "netns", "add", self.bridge)
        # The bridge only carries frames; without addresses of its own it adds nothing to the hosts' counters.
        system.write_sysctl(self.bridge, "ipv6/conf/default/disable_ipv6", "1")
        command("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        command("ip", "-n", self.bridge, "link", "set", "br0", "up")

    def _make_host(self, rank: int) -> None:
        host, port = self.host(rank), f"p{rank}"
        command("ip", "netns", "add", host)
        system.write_sysctl(host, "ipv6/conf/default/accept_dad", "0")  # addresses work at once
        # Both ends are born where they belong, so the root namespace never sees them.
        pair = ["type", "veth", "peer", "name", INTERFACE, "mtu", "1500", "netns", host]
        command("ip", "-n", self.bridge, "link", "add", port, "mtu", "1500", *pair)
        command("ip", "-n", self.bridge, "link", "set", port, "master", "br0", "up")
        command("ip", "-n", host, "link", "set", "lo", "up")
        command("ip", "-n", host, "link", "set", INTERFACE, "up")
        if self.rate.shaped:
            # With two hosts a port gets what the other host's eth0 lets out: a second bucket of the same rate would
            # only cost timers. It still counts.
            at_port = self.rate.tbf() if self.size > 2 else ["pfifo", "limit", "1000"]
            command("tc", "-n", self.bridge, "qdisc", "add", "dev", port, "root", *at_port)
            command("ip", "-n", host, "link", "set", INTERFACE, "gso_max_segs", str(self.rate.segments))
            command("tc", "-n", host, "qdisc", "add", "dev", INTERFACE, "root", *self.rate.tbf())
        for version, address, network in (
            ("-4", f"{self.address(rank)}/16", "10.77.0.0/16"),
            ("-6", f"{self.address6(rank)}/64", "fdec:77::/64"),
        ):
            # The congestion control belongs to the route: the namespace's sysctl takes only what the machine allows to
            # everybody (often not cubic), and allowing more would change the whole machine.
            command("ip", version, "-n", host, "addr", "add", address, "dev", INTERFACE, "noprefixroute")
            route = ["route", "add", network, "dev", INTERFACE, "congctl", self.cc]
            command("ip", version, "-n", host, *route)
        with contextlib.suppress(OSError):
            system.write_sysctl(host, "ipv4/tcp_congestion_control", self.cc)

    def slow_start_after_idle(self) -> bool:
        """The kernel's setting inside the hosts: whether a pause above the retransmission timeout resets the window."""
        return system.read_sysctl(self.host(0), _SLOW_START) != "0"

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of hosts that together use both shapers of every link: (0,1), (2,3), ...; an odd last one with 0."""
        last = [(self.size - 1, 0)] if self.size % 2 else []
        return [(rank, rank + 1) for rank in range(0, self.size - 1, 2)] + last

    def check_links(self) -> None:
        """Measures all pairs in both directions, into `measured`; LinkRefused at the first link that is not right."""
        self.measured = []
        for pair in self.pairs():
            for ends in (pair, pair[::-1]):
                self._check_link(ends)
        for rank in range(self.size):  # what TCP learned from the check is no business of the measured program
            command("ip", "-n", self.host(rank), "tcp_metrics", "flush")

    def _check_link(self, ends: tuple[int, int]) -> None:
        sender, receiver = ends
        try:
            path = linkcheck.Path((self.host(sender), self.host(receiver)), self.address(receiver), self.cc)
            try:
                measured = linkcheck.measure(path, ends, self.rate)
            finally:
                path.close()
        except OSError as error:
            raise LabError(f"link check from host {sender} to host {receiver}: {error}") from error
        self.measured += measured
        if not all(result.accepted(self.rate) for result in measured):
            limits = f"{100 * linkcheck.LOWEST:.0f}-{100 * linkcheck.HIGHEST:.0f} %"
            text = f"links must reach {limits} of their rate (docs/netlab.md says how it is measured)"
            raise LinkRefused(f"{text}: {'; '.join(result.describe(self.rate) for result in measured)}", self.measured)

    def counters(self) -> list[Counters]:
        """Counters of eth0 by rank; subtract two to know what happened in between."""
        ports = system.shapers(self.bridge) if self.rate.shaped else {}
        result = []
        for rank in range(self.size):
            counted = system.interface_counters(self.host(rank), INTERFACE)
            if self.rate.shaped:
                counted.wire_tx_bytes, dropped = system.shapers(self.host(rank))[INTERFACE]
                counted.wire_rx_bytes, dropped_in = ports[f"p{rank}"]
                counted.dropped = dropped + dropped_in
            result.append(counted)
        return result

    def _names(self, rank: int) -> dict[str, str]:
        return {
            "rank": str(rank),
            "size": str(self.size),
            "dir": str(self.folder),
            "address": self.address(rank),
            "address6": self.address6(rank),
            "iface": INTERFACE,
        }

    def popen(self, rank: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on a host; {rank}, {size}, {dir}, {address}, {address6}, {iface} are replaced in `argv`.

        The same values are in its environment as ECHO_NETLAB_RANK and so on. `options` go to subprocess.Popen. It is
        killed with the laboratory, whatever ends that.
        """
        names = self._names(rank)
        words = []
        for word in argv:
            for name, value in names.items():
                word = word.replace(f"{{{name}}}", value)
            words.append(word)
        if not words or shutil.which(words[0]) is None:
            raise FileNotFoundError(f"command not found: {words[0] if words else '(none)'}")
        base: Mapping[str, str] = options.pop("env", None) or os.environ
        environment = {**base, **{f"ECHO_NETLAB_{name.upper()}": value for name, value in names.items()}}
        options = {"stdin": subprocess.DEVNULL, **options}
        prepare = system.die_with(os.getpid())
        # `ip netns exec` also shows the host's own /sys/class/net, and becomes the command: same process.
        words = ["ip", "netns", "exec", self.host(rank), *words]
        process = subprocess.Popen(words, env=environment, start_new_session=True, preexec_fn=prepare, **options)
        self._processes.append(process)
        return process

    def run(self, argv: Sequence[str], timeout: float | None = None, capture: bool = False) -> RunResult:
        """Runs a command on every host and waits for all; see ranks.run_all."""
        return run_all(lambda rank, streams: self.popen(rank, argv, **streams), self.size, timeout, capture)

    @contextlib.contextmanager
    def flows(self, number: int) -> Iterator[Traffic]:
        """Competing flows in each direction between host 0 and 1 while the block runs; what they moved afterwards."""
        traffic = Traffic(number)
        if number == 0:
            yield traffic
            return
        if lacks := system.missing(flows=True):
            raise NotHere("competing flows need " + "; ".join(lacks))
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = Flows(
            number,
            lambda rank, argv: self.popen(rank, argv, **quiet),
            [self.host(0), self.host(1)],
            [self.address(0), self.address(1)],
            self.cc,
        )
        try:
            before, begin = running.received(), time.monotonic()
            yield traffic
            if not running.alive():
                raise LabError("competing flows ended before the command did")
            after, traffic.seconds = running.received(), time.monotonic() - begin
            traffic.received = (after[0] - before[0], after[1] - before[1])
        finally:
            running.close()
