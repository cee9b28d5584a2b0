#!/usr/bin/env python3
"""echo-perf: figures that fit together, results that are right, errors that are told."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
import unittest
from pathlib import Path
from typing import Any

from tool import ENVIRONMENT, command, measure, run

QUICK = ("-n", "2", "-w", "1")
BITS = {"q3": 3, "q4": 4, "q5": 5, "q6": 6, "q8": 8}
SIZES = {"float": 4, "half": 2, "bfloat16": 2}
MEASURED = {
    "time_us", "algbw", "busbw", "payload_bytes", "interface_bytes", "ratio", "rel_l2", "wrong", "diverged",
    "percentiles", "baseline_percentiles", "exact_efficiency", "vs",
}  # fmt: skip


class Bandwidth(unittest.TestCase):
    def check_row(self, row: dict[str, Any]) -> None:
        keys = {"transport", "collective", "ranks", "bytes", "count", "type", "codec", "algorithm", "path", "in_place"}
        self.assertEqual(set(row), keys | MEASURED)
        self.assertEqual(set(row["in_place"]), MEASURED)
        for place in (row, row["in_place"]):
            self.assertEqual((place["wrong"], place["diverged"]), (0, 0))
            times = place["percentiles"]
            order = [times[key] for key in ("min", "p50", "p90", "p99", "max")]
            self.assertEqual(order, sorted(order))
            self.assertGreater(times["min"], 0)
            self.assertEqual(place["time_us"], times["p50"])
            self.assertAlmostEqual(place["algbw"], row["bytes"] / place["time_us"] / 1e3)
            self.assertAlmostEqual(place["busbw"], place["algbw"] * 2 * (row["ranks"] - 1) / row["ranks"])
            self.assertGreater(place["ratio"], 0)
            self.assertEqual(place["vs"], {"exact": place["ratio"]})

    def test_json_csv_and_table_hold_the_same_figures(self) -> None:
        for transport, ranks in itertools.product(("shm", "inproc"), (2, 3)):
            with self.subTest(transport=transport, ranks=ranks):
                args = ("-b", "4K", "-e", "64K", "-f", "4", "--ranks", str(ranks), "--transport", transport)
                report, table, text = measure(*args, *QUICK)
                self.assertEqual(report["schema"], 2)
                self.assertEqual(report["env"]["host"]["cores"], len(os.sched_getaffinity(0)))
                rows = report["rows"]
                self.assertEqual([row["bytes"] for row in rows], [4096, 16384, 65536])
                lines = [line for line in text.splitlines() if not line.startswith("#")]
                for row, record, line in zip(rows, table, lines, strict=True):
                    self.check_row(row)
                    self.assertEqual((row["transport"], row["ranks"]), (transport, ranks))
                    self.assertLess(row["rel_l2"], 0.13)
                    self.assertGreater(row["rel_l2"], 0.08)
                    self.assertEqual(int(record["bytes"]), row["bytes"])
                    self.assertEqual(record["version"], report["env"]["version"])
                    self.assertAlmostEqual(float(record["time_us"]) / row["time_us"], 1, places=5)
                    in_place = row["in_place"]["ratio"]
                    self.assertAlmostEqual(float(record["in_place_ratio"]) / in_place, 1, places=5)
                    words = line.replace("|", " ").split()
                    self.assertEqual(len(words), 20)
                    self.assertEqual(words[:4], [str(row["bytes"]), str(row["count"]), "bfloat16", "sum"])
                    self.assertEqual(words[7], str(row["payload_bytes"]))
                self.assertIn("# wrong: 0, diverged: 0  OK", text)
                self.assertIn("average busbw", text)
                self.assertIn("break-even size", text)

    def test_break_even_is_where_every_larger_size_wins(self) -> None:
        report, _, text = measure("-b", "4K", "-e", "64K", "-f", "2", "--codec", "exact", *QUICK)
        expected = None
        for row in reversed(report["rows"]):
            if row["ratio"] < 1:
                break
            expected = row["bytes"]
        self.assertEqual(report["summary"]["break_even_bytes"], expected)
        self.assertIn(f"break-even size: {expected} bytes" if expected else "break-even size: none", text)

    def test_steps_in_bytes_and_sizes_in_whole_elements(self) -> None:
        report, _, _ = measure("-b", "1K", "-e", "4K", "-i", "1030", "-d", "float", *QUICK)
        self.assertEqual([row["bytes"] for row in report["rows"]], [1024, 2052, 3084])

    def test_without_check_and_baseline_nothing_is_claimed(self) -> None:
        report, table, text = measure("-b", "4K", "-e", "4K", "-c", "0", "--baseline", "none", *QUICK)
        row = report["rows"][0]
        for key in ("ratio", "rel_l2", "wrong", "diverged"):
            self.assertIsNone(row[key])
            self.assertEqual(table[0][key], "")
        self.assertEqual(row["vs"], {})
        self.assertIn("not checked", text)

    def test_more_ranks_than_cores_are_noted(self) -> None:
        ranks = len(os.sched_getaffinity(0)) + 1
        if ranks > 64:
            self.skipTest("more than 63 cores")
        report, _, text = measure("-b", "4K", "-e", "4K", "--ranks", str(ranks), "-n", "1", "-w", "0")
        self.assertIn("times mean nothing", text)
        self.assertTrue(any("times mean nothing" in note for note in report["env"]["notes"]))

    def test_one_rank_sends_nothing(self) -> None:
        report, _, _ = measure("-b", "4K", "-e", "4K", "--ranks", "1", *QUICK)
        row = report["rows"][0]
        self.assertEqual((row["payload_bytes"], row["busbw"], row["algorithm"]), (0, 0, "none"))


class Formats(unittest.TestCase):
    """Every codec, type, transport; tails that fill no group; both reductions; with and without feedback."""

    def check(self, transport: str, ranks: int, datatype: str, *args: str) -> None:
        sizes = (
            ("-b", "300", "-e", "30000", "-f", "10")
            if datatype == "float"
            else ("-b", "202", "-e", "20200", "-f", "10")
        )
        with self.subTest(transport=transport, ranks=ranks, datatype=datatype, args=args):
            common = ("--transport", transport, "--ranks", str(ranks), "-d", datatype)
            report, _, _ = measure(*sizes, *common, "-n", "1", "-w", "0", *args)
            self.assertEqual(len(report["rows"]), 3)
            for row in report["rows"]:
                for place in (row, row["in_place"]):
                    self.assertEqual((place["wrong"], place["diverged"]), (0, 0))

    def test_all_codecs_and_types_on_both_transports(self) -> None:
        for codec, datatype, transport in itertools.product((*BITS, "exact"), SIZES, ("shm", "inproc")):
            for ranks in (2, 3):
                self.check(transport, ranks, datatype, "--codec", codec)

    def test_average(self) -> None:
        for datatype, ranks in itertools.product(SIZES, (2, 3)):
            for codec in ("q3", "q4", "q8", "exact"):
                self.check("shm", ranks, datatype, "-o", "avg", "--codec", codec)

    def test_feedback_and_algorithms(self) -> None:
        for feedback, algorithm in itertools.product(("auto", "none"), ("one_shot", "two_shot")):
            self.check("inproc", 3, "bfloat16", "--feedback", feedback, "--algorithm", algorithm)
        self.check("inproc", 3, "half", "--codec", "exact", "--feedback", "fp32")

    def test_more_bits_less_error(self) -> None:
        errors = []
        for codec in (*BITS, "exact"):
            report, _, _ = measure("-b", "64K", "-e", "64K", "-d", "float", "--codec", codec, "-n", "1", "-w", "0")
            errors.append(report["rows"][0]["rel_l2"])
        self.assertEqual(errors, sorted(errors, reverse=True))
        self.assertLess(errors[-1], 1e-7)


class Payload(unittest.TestCase):
    """Bytes on the wire, from 1 Mi elements on, are what docs/algorithms.md says."""

    def check(self, ranks: int, codec: str, datatype: str, algorithm: str, *args: str) -> None:
        with self.subTest(ranks=ranks, codec=codec, datatype=datatype, algorithm=algorithm):
            size = (1 << 20) * SIZES[datatype]
            common = ("-b", str(size), "-e", str(size), "-n", "1", "-w", "0", "-c", "0", "--baseline", "none")
            report, _, _ = measure(*common, "--ranks", str(ranks), "--codec", codec, "-d", datatype, *args)
            row = report["rows"][0]
            self.assertEqual(row["algorithm"], algorithm)
            tensor = (1 << 20) * (BITS[codec] / 8 + 2 / 64) if codec in BITS else float(size)
            sent = (ranks - 1) * tensor * (1 if algorithm == "one_shot" else 2 / ranks)
            self.assertAlmostEqual(row["payload_bytes"] / sent, 1, delta=0.01)

    def test_two_ranks(self) -> None:
        for codec in BITS:
            self.check(2, codec, "bfloat16", "one_shot")
        self.check(2, "exact", "bfloat16", "one_shot")
        self.check(2, "exact", "float", "one_shot")

    def test_three_ranks(self) -> None:
        self.check(3, "q4", "bfloat16", "two_shot")
        self.check(3, "q4", "float", "one_shot", "--algorithm", "one_shot")
        self.check(3, "exact", "half", "two_shot")

    def test_large_results_are_right_too(self) -> None:
        for ranks in (2, 3):
            report, _, _ = measure("-b", "2M", "-e", "2M", "-n", "1", "-w", "0", "--ranks", str(ranks))
            row = report["rows"][0]
            self.assertEqual((row["wrong"], row["diverged"]), (0, 0))


class Usage(unittest.TestCase):
    def test_bad_usage_is_one_line_and_status_2(self) -> None:
        bad = [
            "--unknown", "word", "-b", "-b much", "-b -4", "-b 1", "-b 99999999999G", "-e 2T", "-b 8K -e 4K", "-f 0",
            "-f 2 -i 4K", "-i 1 -e 1M", "-n 0", "-w -1", "-c x", "-d int8", "-o prod", "--collective broadcast",
            "--ranks 0", "--ranks 65", "--ranks 2 --ranks 3", "--transport tcp", "--codec q7", "--baseline nccl",
            "--feedback off", "--algorithm ring", "--timeout 0",
            "--json /nowhere/out.json", "--csv /nowhere/out.csv", "-b 1T -e 1T --ranks 64",
        ]  # fmt: skip
        for args in bad:
            with self.subTest(args=args):
                done = run("echo-perf", *args.split())
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"\Aecho-perf: [^\n]+\n\Z")

    def test_help_and_version(self) -> None:
        self.assertIn("--stepfactor", run("echo-perf", "--help").stdout)
        self.assertRegex(run("echo-perf", "--version").stdout, r"\Aecho-perf \d+\.\d+\.\d+\n\Z")

    def test_output_that_cannot_be_printed_is_an_error(self) -> None:
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            args = command("echo-perf", "-b", "4K", "-e", "4K", *QUICK)
            done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)


def children_of(pid: int) -> list[int]:
    """Living children in the order of their start."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # ended meanwhile
        fields = text.rsplit(")", 1)[1].split()
        if int(fields[1]) == pid and fields[0] != "Z":
            children.append((int(fields[19]), int(stat.parent.name)))
    return [child for _, child in sorted(children)]


class Failures(unittest.TestCase):
    """What is left when a rank dies: an error that names it, and nothing else."""

    def start(self, *args: str) -> tuple[subprocess.Popen[str], list[int]]:
        """A run that would last for minutes, after its first row; with its children."""
        run_long = command("echo-perf", "-b", "4K", "-e", "1M", "-f", "256", "-n", "100000", "-c", "0", *args)
        tool = subprocess.Popen(run_long, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        expected = 1 if "inproc" in args else 3
        deadline = time.monotonic() + 60
        while len(children_of(tool.pid)) < expected or not self.joined(tool.pid):
            self.assertLess(time.monotonic(), deadline, "the ranks did not start")
            self.assertIsNone(tool.poll(), "the tool ended")
            time.sleep(0.01)
        return tool, children_of(tool.pid)

    def joined(self, pid: int) -> bool:
        """Whether the children have mapped the memory of their communicator."""
        maps = [Path(f"/proc/{child}/maps") for child in children_of(pid)]
        return all("echo_comm:" in path.read_text(encoding="utf-8") or len(maps) == 1 for path in maps)

    def gone(self, pids: list[int]) -> bool:
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def test_a_rank_that_is_killed_ends_the_others_and_is_named(self) -> None:
        tool, children = self.start("--ranks", "3", "--timeout", "20")
        os.kill(children[1], signal.SIGKILL)
        _, errors = tool.communicate(timeout=120)
        self.assertEqual(tool.returncode, 1, errors)
        lines = errors.splitlines()
        self.assertEqual(lines[0], "echo-perf: rank 1 was ended by signal 9 (Killed)")
        self.assertEqual(len(lines), 3, errors)
        self.assertRegex(lines[1], r"^echo-perf: rank 0: .*rank 1")
        self.assertRegex(lines[2], r"^echo-perf: rank 2: .*rank 1")
        self.assertTrue(self.gone(children))

    def test_a_rank_that_hangs_is_an_error_after_the_timeout(self) -> None:
        tool, children = self.start("--ranks", "3", "--timeout", "1")
        os.kill(children[2], signal.SIGSTOP)
        _, errors = tool.communicate(timeout=120)
        self.assertEqual(tool.returncode, 1, errors)
        self.assertIn("echo-perf: rank 2 did not end after another failed, and was killed", errors)
        self.assertTrue(self.gone(children))

    def test_the_process_of_threads_may_die_too(self) -> None:
        tool, children = self.start("--ranks", "2", "--transport", "inproc")
        os.kill(children[0], signal.SIGKILL)
        _, errors = tool.communicate(timeout=120)
        self.assertEqual(tool.returncode, 1)
        self.assertEqual(errors, "echo-perf: the process of all ranks was ended by signal 9 (Killed)\n")

    def test_nothing_is_left_when_the_tool_itself_is_killed(self) -> None:
        tool, children = self.start("--ranks", "3")
        tool.kill()
        tool.communicate(timeout=120)
        self.assertTrue(self.gone(children))

    def test_an_error_of_the_library_is_told(self) -> None:
        for transport in ("shm", "inproc"):
            done = run("echo-perf", "-e", "4K", *QUICK, "--transport", transport, ECHO_SHM_SLOT_BYTES="many")
            self.assertEqual(done.returncode, 1)
            self.assertIn("ECHO_SHM_SLOT_BYTES=many", done.stderr)


if __name__ == "__main__":
    unittest.main()
