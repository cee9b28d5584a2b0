"""The network lab from outside: links, runs, counters, flows, and that nothing is left over whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTING = Path(__file__).resolve().parents[2] / "testing"
sys.path.insert(0, str(TESTING))

from netlab import Lab, LabError, LinkRefused, NotHere, Rate, leftovers, linkcheck, system  # noqa: E402

pytestmark = pytest.mark.netns

COMMAND = [sys.executable, str(TESTING / "netlab")]
PYTHON = sys.executable


def _why_not() -> str | None:
    if lacks := system.missing(flows=True):
        return "; ".join(lacks)
    try:
        system.probe(f"{leftovers.new_run()}-probe")
    except (NotHere, LabError) as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def machine() -> None:
    """Skips what needs namespaces, with the reason."""
    if reason := _why_not():
        pytest.skip(f"the network lab cannot run here: {reason}")


def _ours(owner: int) -> list[str]:
    """Namespaces and folders of runs of one process."""
    folders = [system.NETNS, Path(tempfile.gettempdir())]
    return [str(entry) for folder in folders if folder.exists() for entry in folder.glob(f"echolab-{owner}-*")]


@pytest.fixture
def clean(machine: None) -> Iterator[None]:
    """The root namespace is as before, and this process leaves nothing."""

    def root() -> set[tuple[str, str]]:
        links = json.loads(system.command("ip", "-j", "link"))
        return {(link["ifname"], link.get("master", "")) for link in links}

    before = root()
    yield
    assert root() == before
    assert _ours(os.getpid()) == []


def _run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


def _lab(*command: str, rate: str = "none", **options: str) -> subprocess.CompletedProcess[str]:
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return _run("run", "--rate", rate, *words, "--", *command)


# Sends argv[3] bytes from rank 0 to rank 1, over the lab's address of rank 1.
_TRANSFER = """
import os, socket, sys, time
rank, address, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if rank == 1:
    with socket.create_server((address, 5000), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        connection = server.accept()[0]
        left = size
        while left and (data := connection.recv(1 << 20)):
            left -= len(data)
        connection.sendall(b"x")
        sys.exit(left != 0)
deadline = time.monotonic() + 10
while True:
    try:
        connection = socket.create_connection((address, 5000), 5)
        break
    except ConnectionRefusedError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.01)
connection.sendall(bytes(size))
sys.exit(connection.recv(1) != b"x")
"""


def _transfer(address: str, size: int) -> list[str]:
    return [PYTHON, "-c", _TRANSFER, "{rank}", address, str(size)]


@pytest.mark.parametrize(
    ("text", "bits", "burst"),
    [("100mbit", 10**8, 32768), ("1gbit", 10**9, 32768), ("2.5gbit", 25 * 10**8, 31250), ("10gbit", 10**10, 125000)],
)
def test_the_bucket_is_32_kib_up_to_1_gbit_and_100_us_above(text: str, bits: int, burst: int) -> None:
    rate = Rate.parse(text)
    assert (rate.bits, rate.burst, str(rate)) == (bits, burst, text)


@pytest.mark.parametrize("text", ["", "fast", "-1mbit", "0mbit", "1kbit", "1000gbit", "100 mbit", "1e3mbit", "100"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use 1mbit to 100gbit"):
        Rate.parse(text)


def test_without_root_it_skips_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotHere, match="root"):
        Lab().open()
    monkeypatch.setenv("PATH", "/nowhere")
    assert any("iproute2" in lack for lack in system.missing(flows=False))
    result = subprocess.run([*COMMAND, "check"], capture_output=True, text=True, check=False, timeout=20)
    assert result.returncode == 77
    assert "iproute2" in result.stderr


BAD = {
    "no command": ["run"],
    "one host": ["run", "--hosts", "1", "--", "true"],
    "too many hosts": ["run", "--hosts", "17", "--", "true"],
    "rate": ["run", "--rate", "quick", "--", "true"],
    "flows": ["run", "--flows", "-1", "--", "true"],
    "timeout": ["run", "--timeout", "0", "--", "true"],
    "json": ["run", "--json", "/nowhere/x.json", "--", "true"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_end_with_status_2(case: str) -> None:
    result = _run(*BAD[case])
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""


def test_check_says_that_it_can_run(clean: None) -> None:
    result = _run("check")
    assert (result.returncode, result.stdout) == (0, "the network lab can run here\n")


@pytest.mark.parametrize("address", ["10.77.0.2", "fdec:77::2"])
def test_hosts_reach_each_other_and_counters_match_what_was_sent(clean: None, address: str) -> None:
    size = 4 << 20
    with Lab(2, "100mbit", check=False) as lab:
        before = lab.counters()
        result = lab.run(_transfer(address, size), timeout=20, capture=True)
        assert result.statuses == [0, 0], result.output
        moved = [late - early for late, early in zip(lab.counters(), before, strict=True)]
    for count in (moved[0].tx_bytes, moved[0].wire_tx_bytes, moved[1].rx_bytes, moved[1].wire_rx_bytes):
        assert size <= count <= 1.07 * size, moved
    assert moved[1].tx_bytes < 0.05 * size, moved


def test_the_interface_is_eth0_and_alone(clean: None) -> None:
    with Lab(3, "none", check=False) as lab:
        result = lab.run(["ls", "/sys/class/net"], timeout=20, capture=True)
        assert result.output == [b"eth0\nlo\n"] * 3
        text = system.command("ip", "-n", lab.host(2), "addr", "show", "eth0")
        assert "mtu 1500" in text and "10.77.0.3/16" in text and "fdec:77::3/64" in text


def test_a_shaped_link_passes_the_check(clean: None) -> None:
    with Lab(3, "100mbit") as lab:
        assert {(m.sender, m.receiver) for m in lab.measured} == {(0, 1), (1, 0), (2, 0), (0, 2)}
        assert {m.size for m in lab.measured} == set(linkcheck.SIZES)
        assert all(0.85 <= m.share(lab.rate) <= 1.02 for m in lab.measured), lab.measured


WRONG = {
    "a bucket of 512 kb": "rate 100mbit burst 512kb latency 20ms",
    "a bucket of 48 kb": "rate 100mbit burst 48kb latency 20ms",
    "half the rate": "rate 50mbit burst 32kb latency 20ms",
    "a tenth more rate": "rate 110mbit burst 32kb latency 20ms",
}


@pytest.mark.parametrize("case", WRONG)
def test_a_link_that_is_not_as_asked_for_is_refused(clean: None, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(Rate, "tbf", lambda self: ["tbf", *WRONG[case].split()])
    with pytest.raises(LinkRefused, match=r"85-102 %.*host 0 to 1.*MB/s = .* of 100mbit") as refused:
        Lab(2, "100mbit").open()
    assert any(not measured.accepted(Rate.parse("100mbit")) for measured in refused.value.measured)


def test_a_large_bucket_is_refused_at_1_gbit_too(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "tbf rate 1gbit burst 512kb latency 20ms".split()
    monkeypatch.setattr(Rate, "tbf", lambda self: wrong)
    with pytest.raises(LinkRefused, match="64 KiB"):
        Lab(2, "1gbit").open()


def test_connections_use_the_congestion_control_asked_for(clean: None) -> None:
    for name in ("cubic", "reno"):
        with Lab(2, "none", cc=name) as lab:  # the link check compares both ends of its connections
            assert lab.measured
    with pytest.raises(LabError, match="nosuch"):
        Lab(2, "none", cc="nosuch").open()


def test_placeholders_and_environment(clean: None) -> None:
    shell = 'echo "{rank} {size} {address} {iface} {other} $ECHO_NETLAB_RANK $ECHO_NETLAB_ADDRESS6"; touch {dir}/{rank}'
    with Lab(2, "none", check=False) as lab:
        result = lab.run(["sh", "-c", shell], capture=True, timeout=20)
        assert result.output[1] == b"1 2 10.77.0.2 eth0 {other} 1 fdec:77::2\n"
        assert sorted(entry.name for entry in lab.folder.iterdir()) == ["0", "1"]
    assert not lab.folder.exists()


def test_output_of_rank_0_passes_and_others_are_marked(clean: None, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = _lab("sh", "-c", "echo from {rank}; echo error {rank} >&2", json=str(file))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "from 0\n"
    lines = result.stderr.splitlines()
    assert "error 0" in lines and "[1] from 1" in lines and "[1] error 1" in lines
    report = json.loads(file.read_text())
    assert (report["status"], report["statuses"], report["congestion_control"]) == (0, [0, 0], "cubic")
    assert len(report["check"]) == 2 * len(linkcheck.SIZES) and len(report["counters"]) == 2


EXITS = {
    "success": ("exit 0", 0),
    "one fails": ("exit $(( {rank} * 7 ))", 7),
    "the first failure counts": ("[ {rank} = 1 ] || sleep 0.5; exit $(( {rank} + 3 ))", 4),
    "killed": ("[ {rank} = 0 ] || kill -9 $$", 137),
}


@pytest.mark.parametrize("case", EXITS)
def test_the_exit_status_is_that_of_the_first_rank_that_failed(clean: None, case: str) -> None:
    script, status = EXITS[case]
    assert _lab("sh", "-c", script).returncode == status


def test_a_command_that_does_not_exist_and_one_that_takes_too_long(clean: None) -> None:
    missing = _lab("no-such-command")
    assert (missing.returncode, "no-such-command" in missing.stderr) == (127, True)
    begin = time.monotonic()
    late = _lab("sh", "-c", "sleep 60 & wait", timeout="0.3")
    assert (late.returncode, "killed after 0.3 s" in late.stderr) == (124, True)
    assert time.monotonic() - begin < 20


def test_flows_share_the_link(clean: None) -> None:
    size = 2 << 20
    with Lab(2, "100mbit", check=False) as lab:
        alone = lab.run(_transfer("10.77.0.2", size), timeout=20).seconds
        with lab.flows(2) as traffic:
            busy = lab.run(_transfer("10.77.0.2", size), timeout=40)
        assert busy.statuses == [0, 0]
        assert busy.seconds > 1.5 * alone
        # Back they have the link to themselves, there they share it; never more than the link carries.
        assert 0.2 * 12.5e6 < traffic.goodput[0] < 1.02 * 12.5e6, traffic
        assert 0.2 * 12.5e6 < traffic.goodput[1] < 1.02 * 12.5e6, traffic


def test_two_labs_at_a_time_do_not_see_each_other(clean: None) -> None:
    with Lab(2, "none", check=False) as first, Lab(2, "none", check=False) as second:
        (first.folder / "mine").touch()
        assert second.removed == []
        result = second.run(["sh", "-c", "ls {dir}"], capture=True, timeout=20)
        assert result.output == [b"", b""]
        assert first.run(_transfer("10.77.0.2", 1000), timeout=20).statuses == [0, 0]
        assert second.counters()[1].rx_bytes < 1000


def test_an_exception_removes_all(clean: None) -> None:
    with pytest.raises(ZeroDivisionError), Lab(2, "none", check=False) as lab:
        sleeper = lab.popen(1, ["sleep", "100"])
        raise ZeroDivisionError
    assert sleeper.wait(5) == -signal.SIGKILL


def _start() -> tuple[subprocess.Popen[str], list[int]]:
    """A lab in the middle of its work, and processes inside it: one of them left its rank's session."""
    script = "setsid sleep 1000 & echo $!; exec sleep 1000"
    process = subprocess.Popen(
        [*COMMAND, "run", "--rate", "none", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    first = int(process.stdout.readline())
    names = {Path(entry).name for entry in _ours(process.pid) if "/netns/" in entry}
    assert len(names) == 3, process.pid
    inside = system.processes_inside(names)
    assert first in inside
    return process, inside


def _gone(process: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def _wait_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 5
    while not all(map(_gone, processes)):
        assert time.monotonic() < deadline, processes
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_all(clean: None, number: signal.Signals) -> None:
    process, inside = _start()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 128 + number, stderr
    assert f"stopped by {number.name}" in stderr
    assert _ours(process.pid) == []
    _wait_gone(inside)


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.25, 0.35, 0.5])
def test_a_signal_while_the_lab_is_made_removes_all(clean: None, delay: float) -> None:
    """At any moment: there is nothing to wait for, so several are tried. A second signal changes nothing."""
    arguments = ["run", "--hosts", "4", "--rate", "none", "--", "sleep", "1000"]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(delay)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)  # the former: Python had not started yet
    assert _ours(process.pid) == []


def test_after_sigkill_the_next_run_removes_what_is_left_and_says_so(clean: None) -> None:
    process, inside = _start()
    process.kill()
    process.wait(timeout=20)
    for stream in (process.stdout, process.stderr):  # no reading to the end: what left its session still holds them
        assert stream is not None
        stream.close()
    assert _ours(process.pid) != []
    with Lab(2, "none", check=False) as other:
        assert any(f"echolab-{process.pid}-" in run for run in other.removed)
        assert _ours(process.pid) == []
        _wait_gone(inside)
        assert other.run(["true"], timeout=20).statuses == [0, 0]
