"""The command line: `run` and `check`. Exit status: the command's own, or one of the lab's below."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from . import leftovers, system
from .errors import LabError, LinkRefused, NotHere
from .lab import Lab, Traffic
from .ranks import RunResult
from .rate import Rate

SCHEMA = 1
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SKIP, LAB_FAILED, NOT_FOUND = 77, 125, 127  # 77 as automake and CTest; the others as env(1) and timeout(1)


class Stopped(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stop_once() -> None:
    """Makes the first stopping signal raise Stopped; later ones cannot disturb the removal that follows."""
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopped:
            stopped.append(number)
            raise Stopped(number)

    for number in STOPPING:
        signal.signal(number, stop)


def _say(text: str) -> None:
    print(f"netlab: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="netlab", description="Hosts as network namespaces, links of a known rate.")
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("check", help="say whether the lab can run here (exit status 77: it cannot)")
    run = commands.add_parser("run", help="run a command on every host")
    run.add_argument("--hosts", type=int, default=2, help="2 to 16")
    run.add_argument("--rate", default="1gbit", help="of every link, such as 100mbit or 2.5gbit; none: not shaped")
    run.add_argument("--flows", type=int, default=0, help="competing iperf3 flows in each direction, host 0 and 1")
    run.add_argument("--cc", default="cubic", help="TCP's congestion control, flows included")
    run.add_argument("--timeout", type=float, help="seconds for the command; then it is killed, exit status 124")
    run.add_argument("--json", type=Path, metavar="FILE", help="write figures there")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="with {rank}, {size}, {dir}, ...")
    return parser


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.action == "run":
        if arguments.command[:1] == ["--"]:
            del arguments.command[0]
        if not arguments.command:
            parser.error("no command; put it after --")
        if not 0 <= arguments.flows <= 64:
            parser.error(f"--flows {arguments.flows}: use 0 to 64")
        if arguments.timeout is not None and not arguments.timeout > 0:
            parser.error(f"--timeout {arguments.timeout}: use seconds above 0")
        if arguments.json is not None and not arguments.json.parent.is_dir():
            parser.error(f"--json {arguments.json}: there is no such folder")
    return arguments


def main(argv: list[str]) -> int:
    """Runs one command line and returns the exit status."""
    arguments = _arguments(argv)
    _stop_once()
    try:
        status = _check() if arguments.action == "check" else _run(arguments)
    except Stopped as stopped:
        _say(f"stopped by {signal.Signals(stopped.number).name}")
        status = 128 + stopped.number
    except NotHere as error:
        _say(f"skipped: {error}")
        status = SKIP
    except FileNotFoundError as error:
        _say(str(error))
        status = NOT_FOUND
    except (LabError, OSError) as error:
        _say(str(error))
        status = LAB_FAILED
    return status


def _check() -> int:
    if lacks := system.missing(flows=False):
        raise NotHere("the network lab needs " + "; ".join(lacks))
    system.probe(f"{leftovers.new_run()}-probe")
    without = system.missing(flows=True)
    print("the network lab can run here" + (f"; --flows needs {'; '.join(without)}" if without else ""))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    try:
        lab = Lab(arguments.hosts, arguments.rate, arguments.cc)
    except ValueError as error:
        _say(str(error))
        return 2
    report: dict[str, Any] = {}
    # Twice, because one signal can interrupt one of them at any point, and only the first signal raises.
    try:
        try:
            return _in_lab(lab, arguments, report)
        finally:
            lab.close()
    finally:
        lab.close()
        if arguments.json is not None and report:
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _in_lab(lab: Lab, arguments: argparse.Namespace, report: dict[str, Any]) -> int:
    try:
        lab.open()
    except LinkRefused:
        report.update(_setting(lab, arguments), refused=True)
        raise
    finally:
        if lab.removed:
            _say(f"removed what killed runs had left: {', '.join(lab.removed)}")
    for measured in lab.measured:
        _say(measured.describe(lab.rate))
    report.update(_setting(lab, arguments), refused=False)
    report["slow_start_after_idle"] = lab.slow_start_after_idle()
    with lab.flows(arguments.flows) as traffic:
        before = lab.counters()
        result = lab.run(arguments.command, arguments.timeout)
        after = lab.counters()
    report.update(_outcome(result, traffic))
    report["counters"] = [asdict(late - early) for early, late in zip(before, after, strict=True)]
    if traffic.flows:
        megabytes = [goodput / 1e6 for goodput in traffic.goodput]
        _say(f"{traffic.flows} flows each way moved {megabytes[0]:.1f} MB/s from host 0 to 1, {megabytes[1]:.1f} back")
    for rank, status in enumerate(result.statuses):
        if status != 0:
            _say(f"rank {rank} ended with status {status}")
    if result.timed_out:
        _say(f"killed after {arguments.timeout:g} s")
    return result.status


def _setting(lab: Lab, arguments: argparse.Namespace) -> dict[str, Any]:
    rate: Rate = lab.rate
    return {
        "schema": SCHEMA,
        "kernel": platform.release(),
        "hosts": lab.size,
        "rate": str(rate),
        "rate_bits_per_s": rate.bits,
        "burst_bytes": rate.burst if rate.shaped else 0,
        "congestion_control": lab.cc,
        "command": arguments.command,
        "check": [
            {
                **asdict(measured),
                "goodput": measured.goodput,
                "share": measured.share(rate) if rate.shaped else None,
                "accepted": measured.accepted(rate),
            }
            for measured in lab.measured
        ],
    }


def _outcome(result: RunResult, traffic: Traffic) -> dict[str, Any]:
    return {
        "status": result.status,
        "statuses": result.statuses,
        "timed_out": result.timed_out,
        "seconds": result.seconds,
        "flows": {
            "each_way": traffic.flows,
            "received_bytes": list(traffic.received),
            "seconds": traffic.seconds,
            "goodput": list(traffic.goodput),
        },
    }
