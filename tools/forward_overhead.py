"""What the backend "echo" costs on calls that it forwards: time of an all-reduce on it against plain Gloo's.

    scripts/env python tools/forward_overhead.py [--bytes 1024] [--ranks 2] [--calls 200] [--rounds 41]

Each round times the same calls on both groups, one after the other, in alternating order. Prints, for rank 0 and in
microseconds a call, the median of each group's rounds and the median of their differences: of the time that passed,
and of the processor time of the calling thread, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

import echo_comm.torch  # noqa: F401  (registers the backend)

CLOCKS = {"time that passed": time.perf_counter, "processor time": time.thread_time}


def _time(group: dist.ProcessGroup, x: torch.Tensor, calls: int) -> list[float]:
    """Microseconds a call, by clock."""
    dist.barrier(group=group)
    begin = [clock() for clock in CLOCKS.values()]
    for _ in range(calls):
        dist.all_reduce(x, group=group)
    return [(clock() - start) / calls * 1e6 for clock, start in zip(CLOCKS.values(), begin, strict=True)]


def _rank(rank: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=options.ranks)
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "echo")}
    x = torch.zeros(options.bytes // 4)
    times: dict[str, list[list[float]]] = {name: [] for name in groups}
    for number in range(options.rounds + 2):
        for name in list(groups) if number % 2 else reversed(list(groups)):
            spent = _time(groups[name], x, options.calls)
            if number >= 2:  # the first two warm up
                times[name].append(spent)
    if rank == 0:
        print(f"{options.bytes} bytes, {options.ranks} ranks, {options.rounds} rounds of {options.calls} calls")
        for number, clock in enumerate(CLOCKS):
            gloo, echo = ([spent[number] for spent in times[name]] for name in ("gloo", "echo"))
            extra = statistics.median(a - b for a, b in zip(echo, gloo, strict=True))
            plain, forwarded = statistics.median(gloo), statistics.median(echo)
            print(f"{clock}: gloo {plain:.1f}, echo {forwarded:.1f}, difference {extra:+.1f} ({extra / plain:+.1%})")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("bytes", 1024), ("ranks", 2), ("calls", 200), ("rounds", 41)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=_rank, args=(rank, folder, options)) for rank in range(options.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main()
