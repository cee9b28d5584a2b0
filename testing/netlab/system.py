"""The kernel's side: iproute2, code that runs inside a namespace, counters, what this machine lacks."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from .errors import LabError, NotHere

NETNS = Path("/run/netns")  # where iproute2 keeps the names
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def command(*arguments: str) -> str:
    """Runs ip, tc or ss and returns its output; LabError holds what it said."""
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=False, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{' '.join(arguments)}: {error}") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(arguments)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def inside(namespace: str, function: Callable[[], T]) -> T:
    """Calls `function` in a thread of its own inside the namespace: a socket made there stays there."""
    result: list[T] = []
    failure: list[BaseException] = []

    def enter() -> None:
        try:
            handle = os.open(NETNS / namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _LIBC.setns(handle, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns to {namespace}")
            finally:
                os.close(handle)
            result.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def write_sysctl(namespace: str, name: str, value: str) -> None:
    """Sets net.NAME of one namespace; raises OSError if the kernel does not let it."""
    inside(namespace, lambda: Path("/proc/sys/net", name).write_text(value))


def read_sysctl(namespace: str, name: str) -> str:
    """Reads net.NAME of one namespace."""
    return inside(namespace, lambda: Path("/proc/sys/net", name).read_text().strip())


def die_with(parent: int) -> Callable[[], None]:
    """For Popen's preexec_fn: the kernel kills the child when its parent, process `parent`, is gone."""
    prctl = _LIBC.prctl  # looked up here: after fork only the call itself is safe

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return prepare


@dataclass
class Counters:
    """What went through eth0 of one host, or a difference of two such.

    The interface's own numbers count a segment that offloads have not yet cut into packets with one header only.
    wire_*: from the shapers, which count every header and see what they pass on; 0 on links without a rate.
    dropped: packets that a shaper dropped because its queue of 20 ms was full.
    """

    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_packets: int = 0
    tx_packets: int = 0
    wire_rx_bytes: int = 0
    wire_tx_bytes: int = 0
    dropped: int = 0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


def interface_counters(namespace: str, interface: str) -> Counters:
    """Bytes and packets of an interface since it exists."""
    text = inside(namespace, lambda: Path("/proc/thread-self/net/dev").read_text())
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            columns = [int(number) for number in numbers.split()]
            return Counters(rx_bytes=columns[0], rx_packets=columns[1], tx_bytes=columns[8], tx_packets=columns[9])
    raise LabError(f"namespace {namespace} has no interface {interface}")


def shapers(namespace: str) -> dict[str, tuple[int, int]]:
    """Bytes passed on and packets dropped by the queue that was set for each interface in the namespace."""
    rows: list[dict[str, Any]] = json.loads(command("tc", "-n", namespace, "-s", "-j", "qdisc", "show"))
    return {row["dev"]: (int(row["bytes"]), int(row["drops"])) for row in rows if row.get("kind") in ("tbf", "pfifo")}


def processes_inside(namespaces: set[str]) -> list[int]:
    """Processes that live in one of the namespaces."""
    inodes = set()
    for name in namespaces:
        try:
            inodes.add((NETNS / name).stat().st_ino)
        except OSError:
            continue
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/net").stat().st_ino in inodes:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def missing(flows: bool) -> list[str]:
    """What this machine or user lacks, in words; empty when the laboratory can run. Makes nothing."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root (namespaces and shaping need CAP_SYS_ADMIN and CAP_NET_ADMIN)")
    tools = {"ip": "iproute2", "tc": "iproute2", **({"ss": "iproute2", "iperf3": "iperf3"} if flows else {})}
    for tool, package in tools.items():
        if shutil.which(tool) is None:
            lacks.append(f"the command {tool} (Debian package {package})")
    return lacks


def probe(namespace: str) -> None:
    """Makes and removes one namespace with all that a laboratory is made of; NotHere names what the kernel refused."""
    steps = [
        ("network namespaces", ["ip", "netns", "add", namespace]),
        ("bridges", ["ip", "-n", namespace, "link", "add", "br0", "type", "bridge"]),
        ("veth pairs", ["ip", "-n", namespace, "link", "add", "p0", "type", "veth", "peer", "name", "p1"]),
        ("tbf", f"tc -n {namespace} qdisc add dev p0 root tbf rate 1gbit burst 32kb latency 20ms".split()),
    ]
    try:
        for what, arguments in steps:
            try:
                command(*arguments)
            except LabError as error:
                raise NotHere(f"the kernel does not let us use {what}: {error}") from error
    finally:
        if (NETNS / namespace).exists():
            command("ip", "netns", "delete", namespace)
