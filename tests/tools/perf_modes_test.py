#!/usr/bin/env python3
"""echo-perf beyond one all-reduce: other collectives and transports, baselines, tables, ranks that others start."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tool import ENVIRONMENT, TRANSPORTS, command, measure, run

QUICK = ("-b", "4K", "-e", "4K", "-n", "2", "-w", "1")
HAS_GLOO = "gloo" in TRANSPORTS
ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77


class Collectives(unittest.TestCase):
    """Every collective, type and transport, with sizes that divide neither groups nor ranks."""

    def check(self, *args: str) -> list[dict[str, Any]]:
        with self.subTest(args=args):
            report, _, _ = measure("-e", "20200", "-f", "10", "-n", "1", "-w", "0", *args)
            for place in itertools.chain(report["rows"], (row["in_place"] for row in report["rows"])):
                self.assertEqual((place["wrong"], place["diverged"]), (0, 0))
            return list(report["rows"])
        return []

    def test_all_collectives_types_and_transports_are_right(self) -> None:
        for transport, ranks in itertools.product(TRANSPORTS, (1, 2, 3, 5)):
            for collective, datatype in itertools.product(
                ("all_reduce", "reduce_scatter", "all_gather"), ("float", "half", "bfloat16")
            ):
                where = ("--transport", transport, "--ranks", str(ranks))
                self.check(*where, "--collective", collective, "-d", datatype, "-b", "404")

    def test_all_codecs_of_the_new_collectives(self) -> None:
        for collective, codec in itertools.product(
            ("reduce_scatter", "all_gather"), ("q3", "q5", "q6", "q8", "exact", "auto")
        ):
            self.check(
                "--transport", "inproc", "--ranks", "3", "--collective", collective, "--codec", codec, "-b", "202"
            )

    def test_feedback_stores_and_average(self) -> None:
        for store, collective in itertools.product(("fp32", "int8", "int16"), ("all_reduce", "reduce_scatter")):
            common = ("--transport", "inproc", "--ranks", "3", "--collective", collective, "-b", "2020")
            self.check(*common, "--feedback", store)
            self.check(*common, "--feedback", store, "-o", "avg")

    def test_bus_bandwidth_and_error_of_half_an_all_reduce(self) -> None:
        for collective in ("reduce_scatter", "all_gather"):
            rows = self.check("--transport", "inproc", "--ranks", "3", "--collective", collective, "-b", "20200")
            self.assertAlmostEqual(rows[0]["busbw"], rows[0]["algbw"] * 2 / 3)
            self.assertEqual(rows[0]["algorithm"], "none")
            self.assertTrue(0.05 < rows[0]["rel_l2"] < 0.13, rows[0]["rel_l2"])


@unittest.skipUnless(HAS_GLOO, "built without Gloo")
class Baselines(unittest.TestCase):
    def test_all_baselines_in_one_run(self) -> None:
        report, table, text = measure(*QUICK, "--transport", "gloo", "--baseline", "exact,gloo,stream", "--verbose")
        row = report["rows"][0]
        self.assertEqual(list(row["vs"]), ["exact", "gloo", "stream"])
        self.assertEqual(row["ratio"], row["vs"]["exact"])
        for place in (row, row["in_place"]):
            for name, value in place["vs"].items():
                self.assertTrue(math.isfinite(value) and value > 0)
                times = place["baseline_percentiles"][name]
                self.assertTrue(0 < times["min"] <= times["p50"] <= times["p90"] <= times["p99"])
            self.assertGreater(place["exact_efficiency"], 0)
        self.assertAlmostEqual(float(table[0]["vs_gloo"]) / row["vs"]["gloo"], 1, places=5)
        self.assertGreaterEqual(row["interface_bytes"], row["payload_bytes"])
        self.assertIn("values are fp32: the same number of elements", text)
        self.assertIn("of one TCP stream's speed", text)
        self.assertIn("lo sent", text)

    def test_gloo_is_compared_with_memory_transports_too(self) -> None:
        for transport, ranks in itertools.product(("shm", "inproc"), (1, 3)):
            args = ("--transport", transport, "--ranks", str(ranks), "--baseline", "gloo")
            report, _, text = measure(*QUICK, *args)
            row = report["rows"][0]
            self.assertEqual((list(row["vs"]), row["interface_bytes"]), (["gloo"], None))
            self.assertIsNone(row["exact_efficiency"])
            self.assertIsNone(report["summary"]["break_even_bytes"])
            self.assertNotIn("break-even", text)

    def test_one_more_rank_than_a_stream_has_ends(self) -> None:
        report, _, _ = measure(*QUICK, "--transport", "gloo", "--ranks", "3", "--baseline", "stream", "-d", "float")
        self.assertEqual(list(report["rows"][0]["vs"]), ["stream"])


class Choices(unittest.TestCase):
    """The table of choices and what the calls made of it."""

    def path(self, *args: str, **variables: str) -> tuple[dict[str, Any], str]:
        report, _, text = measure(*QUICK, "--verbose", *args, **variables)
        return report["rows"][0]["path"], text

    def test_auto_lets_the_table_decide(self) -> None:
        path, _ = self.path("--codec", "auto")
        self.assertEqual((path["kind"], path["bits"], path["reason"]), ("coded", 4, "default"))
        path, text = self.path("--codec", "auto", "--table", "all_reduce * exact one_shot", "--feedback", "none")
        self.assertEqual((path["kind"], path["bits"], path["algorithm"]), ("exact", 16, "one_shot"))
        self.assertIn("the table sends this size exactly", text)
        path, _ = self.path("--table", "all_reduce * exact")
        self.assertEqual(path["kind"], "exact", "auto is the default where there is a table")
        path, _ = self.path("--codec", "q4", "--table", "all_reduce * exact")
        self.assertEqual((path["kind"], path["bits"]), ("coded", 4))

    def test_table_of_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "table"
            file.write_text("# rows\nall_reduce 1K coded\nall_reduce * coded segment=128\n", encoding="utf-8")
            path, text = self.path("--table", f"@{file}")
        self.assertEqual(path["segment_values"], 128)
        self.assertIn("#   all_reduce 1K coded", text)

    def test_segment_and_depth(self) -> None:
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            path, _ = self.path("--segment", "640", "--depth", "2", "--collective", collective)
            self.assertEqual((path["segment_values"], path["depth"]), (640, 2))

    def test_a_measured_table_is_printed(self) -> None:
        report, _, text = measure(*QUICK, "--tune", "--transport", "inproc")
        self.assertRegex(text, r"# table of choices:\n#   all_reduce ")
        self.assertIn("reduce_scatter", report["env"]["table"])

    def test_percentiles_are_printed_on_demand(self) -> None:
        _, _, text = measure(*QUICK, "--percentiles")
        self.assertRegex(text, r"#   in place +exact +min \S+  p50 \S+  p90 \S+  p99 \S+ us")
        _, _, text = measure(*QUICK)
        self.assertNotIn("p90", text)


@unittest.skipUnless(HAS_GLOO, "built without Gloo")
class Outside(unittest.TestCase):
    """Ranks that somebody else starts."""

    def start(self, folder: str, rank: int, size: int, *args: str) -> subprocess.Popen[str]:
        where = ("--rank", str(rank), "--size", str(size), "--dir", folder, "--iface", "lo", "--timeout", "20")
        run_rank = command("echo-perf", *where, *args)
        return subprocess.Popen(run_rank, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)

    def test_rank_0_reports_for_all(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            ranks = [
                self.start(folder, rank, 3, *QUICK, "--baseline", "exact,gloo,stream", "--json", str(file))
                for rank in range(3)
            ]
            ends = [rank.communicate(timeout=120) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0, 0], ends)
            row = json.loads(file.read_text(encoding="utf-8"))["rows"][0]
        self.assertEqual((row["transport"], row["ranks"], row["wrong"], row["diverged"]), ("gloo", 3, 0, 0))
        self.assertIn("wrong: 0, diverged: 0  OK", ends[0][0])
        self.assertEqual([ends[1][0], ends[2][0]], ["", ""])

    def test_a_rank_that_dies_is_an_error_of_the_others(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            args = ("-b", "4K", "-e", "1M", "-f", "256", "-n", "1000", "-w", "0", "-c", "0")
            ranks = [self.start(folder, rank, 2, *args) for rank in range(2)]
            assert ranks[0].stdout is not None
            for line in ranks[0].stdout:
                if line.strip() and not line.startswith("#"):
                    break  # the first size is done, the second takes long
            self.assertIsNone(ranks[0].poll())
            ranks[1].kill()
            ranks[1].communicate(timeout=60)
            _, errors = ranks[0].communicate(timeout=60)
        self.assertEqual(ranks[0].returncode, 1)
        self.assertRegex(errors, r"\Aecho-perf: rank 0: [^\n]*\n\Z")


@unittest.skipUnless(HAS_GLOO, "built without Gloo")
class Lab(unittest.TestCase):
    def test_a_small_lab(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file, rows = Path(folder) / "out.json", Path(folder) / "out.csv"
            args = ("--netlab", "1gbit", "-b", "64K", "-e", "64K", "-n", "2", "-w", "1", "--baseline", "exact,stream")
            done = run("echo-perf", *args, "--json", str(file), "--csv", str(rows))
            if done.returncode == SKIPPED:
                self.assertIn("--netlab: skipped", done.stderr)
                self.skipTest(done.stderr.splitlines()[0])
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text(encoding="utf-8"))
            self.assertIn("vs_stream", rows.read_text(encoding="utf-8"))
        lab, row = report["env"]["netlab"], report["rows"][0]
        self.assertEqual((lab["rate"], lab["hosts"], lab["refused"]), ("1gbit", 2, False))
        self.assertEqual(len(lab["counters"]), 2)
        self.assertEqual((row["transport"], row["wrong"], row["diverged"]), ("gloo", 0, 0))
        self.assertGreater(row["interface_bytes"], row["payload_bytes"])
        self.assertLess(row["interface_bytes"], 1.3 * row["payload_bytes"])


class Mpi(unittest.TestCase):
    def test_next_to_mpi(self) -> None:
        tool = Path(command("echo-perf-mpi")[0])
        if not tool.exists() or shutil.which("mpirun") is None:
            self.skipTest("built without MPI, or there is no mpirun")
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", str(tool)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            args = ["-b", "4K", "-e", "64K", "-f", "16", "-n", "2", "-w", "1", "--json", str(file)]
            done = subprocess.run(
                start + args, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        self.assertEqual(
            [(row["bytes"], row["count"], row["wrong"]) for row in rows], [(4096, 2048, 0), (65536, 32768, 0)]
        )
        for row in rows:
            self.assertEqual(set(row["vs_mpi"]), {"exact_fp32", "exact_bf16", "q4_bf16"})
            self.assertTrue(all(value > 0 for value in row["vs_mpi"].values()))
        self.assertIn("# wrong: 0  OK", done.stdout)
        bad = subprocess.run(
            [*start, "-b", "4", "-e", "2"], capture_output=True, text=True, env=ENVIRONMENT, check=False
        )
        self.assertNotEqual(bad.returncode, 0)
        self.assertIn("echo-perf-mpi: --minbytes, --maxbytes: allowed:", bad.stderr)


class Plot(unittest.TestCase):
    def test_draws_or_says_what_is_missing(self) -> None:
        script = ROOT / "python" / "echo_comm" / "plot_perf.py"
        known = subprocess.run([sys.executable, "-B", str(script), "--check"], check=False).returncode
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.png"
            done = run("echo-perf", *QUICK, "--plot", str(file), ECHO_PYTHON=sys.executable)
            if known == 0:
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(file.read_bytes().startswith(b"\x89PNG"))
                done = run("echo-perf", *QUICK, "--plot", "/nowhere/out.png", ECHO_PYTHON=sys.executable)
                self.assertEqual(done.returncode, 1)
                self.assertIn("--plot: '/nowhere/out.png' was not drawn", done.stderr)
            else:
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("has no matplotlib; install it", done.stderr)

    def test_no_python(self) -> None:
        done = run("echo-perf", *QUICK, "--plot", "out.png", ECHO_PYTHON="no-such-python")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("there is no no-such-python", done.stderr)


class Usage(unittest.TestCase):
    def refused(self, args: str, *words: str) -> None:
        with self.subTest(args=args):
            done = run("echo-perf", *args.split("|"))
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, r"\Aecho-perf: [^\n]+\n\Z")
            for word in words:
                self.assertIn(word, done.stderr)

    def test_bad_values_name_the_flag_and_what_is_allowed(self) -> None:
        self.refused("--collective|ring", "--collective", "all_reduce|reduce_scatter|all_gather")
        self.refused("--codec|q7", "--codec", "q3|q4|q5|q6|q8|exact|auto")
        self.refused("--algorithm|one-shot", "--algorithm", "auto|one_shot|two_shot")
        self.refused("--feedback|on", "--feedback", "none|auto|fp32|int8|int16")
        self.refused("--transport|tcp", "--transport", "inproc|shm|gloo")
        self.refused("--baseline|exact,nccl", "--baseline", "exact|gloo|stream")
        self.refused("--baseline|exact,none", "--baseline", "or none alone")
        self.refused("--segment|0", "--segment", "1")
        self.refused("--depth|8", "--depth", "1", "7")
        self.refused("--rank|64", "--rank", "63")
        self.refused("--size|0", "--size", "64")

    def test_tables(self) -> None:
        self.refused("--table|nonsense", "--table", "expected COLLECTIVE UPTO PATH")
        self.refused("--table|@/nowhere/table", "--table", "/nowhere/table")
        self.refused("--table|", "--table")
        self.refused("--table|all_reduce * exact|--tune", "--table", "--tune")
        self.refused("--table|all_reduce * exact|--depth|1", "--table", "--depth")
        self.refused("--segment|64|--tune", "--segment", "--tune")

    def test_what_does_not_go_together(self) -> None:
        self.refused("--collective|all_gather|--op|avg", "--op", "all_gather")
        self.refused("--collective|all_gather|--feedback|int8", "--feedback", "none")
        self.refused("--collective|reduce_scatter|--algorithm|one_shot", "--algorithm", "auto")
        self.refused("--collective|all_gather|--baseline|gloo", "--baseline gloo", "exact, stream, none")
        self.refused("--baseline|stream", "--baseline stream", "exact, gloo, none")
        self.refused("--baseline|stream|--transport|gloo|--ranks|1", "--baseline stream", "--ranks 2")
        self.refused("--iface|lo", "--iface", "gloo")
        self.refused("--iface|none0|--transport|gloo", "--iface", "there are", "lo")

    def test_ranks_that_others_start(self) -> None:
        self.refused("--rank|0", "--rank", "--size")
        self.refused("--rank|0|--size|2", "--rank", "--dir")
        self.refused("--size|2", "--size", "--rank")
        self.refused("--dir|/tmp", "--dir", "--rank")
        self.refused("--rank|2|--size|2|--dir|/tmp", "--rank 2", "0 to size - 1")
        self.refused("--rank|0|--size|2|--dir|/nowhere", "--dir /nowhere")
        self.refused("--rank|0|--size|2|--dir|/tmp|--transport|shm", "--transport shm", "gloo")
        self.refused("--rank|0|--size|2|--dir|/tmp|--ranks|2", "--ranks", "--size")

    def test_the_lab(self) -> None:
        for rate in ("fast", "1", "1gbit,flows=x", "1gbit,flows=65", "1gbit,2", "1gbit,flows=1,2"):
            self.refused(f"--netlab|{rate}", "--netlab", "100mbit, 1gbit or none", "flows=N")
        self.refused("--netlab|1gbit|--ranks|17", "--ranks 17", "2 to 16")
        self.refused("--netlab|1gbit|--transport|shm", "--transport shm", "gloo")
        self.refused("--netlab|1gbit|--iface|lo", "--iface")
        self.refused("--netlab|1gbit|--netlab-dir|/nowhere", "--netlab", "--netlab-dir", "ECHO_NETLAB")


def main() -> int:
    """As unittest's own; 77 when every test of the suite was skipped, so that CTest says so."""
    program = unittest.main(exit=False)
    result = program.result
    if result.wasSuccessful() and result.testsRun > 0 and len(result.skipped) == result.testsRun:
        return SKIPPED
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent)
    sys.exit(main())
