#!/usr/bin/env python3
"""echo-perf codec: the rows that were asked for, counted bytes, results equal to the reference codec's."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tool import ENVIRONMENT, command, run

QUICK = ("--time", "0", "--values", "1000")
SCALE = 2 / 64  # bytes per value
SIZES = {"float": 4, "half": 2, "bf16": 2}
STORES = {"none": 0.0, "fp32": 4.0, "int8": 1 + SCALE, "int16": 2 + SCALE}
SCHEMA = [
    "stage", "bits", "rotation", "feedback", "type", "target", "threads", "values", "gbps", "memcpy_ratio",
    "bytes_per_value",
]  # fmt: skip
MORE = ["ranks", "add", "wrong", "roofline_ratio", "memcpy_gbps", "ns_per_value"]


def codec(*args: str) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Runs echo-perf codec, expects success; gives its rows, its environment and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        done = run("echo-perf", "codec", *args, "-J", str(file))
        if done.returncode != 0 or done.stderr:
            raise AssertionError(f"{args}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        report = json.loads(file.read_text(encoding="utf-8"))
        if list(report) != ["schema", "env", "rows"] or report["schema"] != 1:
            raise AssertionError(f"keys {list(report)}, schema {report['schema']}")
        return report["rows"], report["env"], done.stdout


def targets() -> list[str]:
    """The codecs of this processor."""
    return json.loads(run("echo-info", "--json", "-").stdout)["codecs"]


class Report(unittest.TestCase):
    def test_rows_hold_the_keys_of_the_schema_in_order_and_figures_that_fit_together(self) -> None:
        rows, env, text = codec("--values", "65536", "--time", "0.001")
        for row in rows:
            self.assertEqual(list(row), SCHEMA + MORE)
            for key in ("gbps", "memcpy_ratio", "memcpy_gbps", "ns_per_value"):
                self.assertTrue(math.isfinite(row[key]) and row[key] > 0, row)
            size = SIZES[row["type"]]
            self.assertAlmostEqual(row["gbps"] * row["ns_per_value"] / size, 1)
            self.assertAlmostEqual(row["memcpy_gbps"] / row["gbps"] / row["memcpy_ratio"], 1)
            self.assertAlmostEqual(row["roofline_ratio"], row["bytes_per_value"] / (2 * size))
        self.assertIn("cores", env["host"])
        self.assertIn("# wrong: 0  OK", text)

    def test_the_table_shows_the_same_rows(self) -> None:
        rows, _, text = codec(*QUICK, "--bits", "3,8", "-d", "half", "--rotation", "off,on")
        lines = [line.replace("|", " ").split() for line in text.splitlines() if not line.startswith("#")]
        for row, words in zip(rows, lines, strict=True):
            rotation, add = ("on" if row[key] else "off" for key in ("rotation", "add"))
            named = [
                row["stage"], row["bits"], rotation, row["feedback"], row["ranks"], add, row["type"], row["target"],
                row["threads"], row["values"],
            ]  # fmt: skip
            self.assertEqual(words[:10], [str(word) for word in named])
            self.assertEqual(len(words), 17)
            self.assertAlmostEqual(float(words[15]), row["bytes_per_value"], places=3)

    def test_the_default_rows_are_those_with_targets(self) -> None:
        rows, _, _ = codec("--time", "0", "--values", "64,65536")
        kinds = [
            ("encode", False, "none", 1), ("encode", True, "int8", 1), ("encode", True, "fp32", 1),
            ("decode", False, "none", 1), ("decode", True, "none", 1), ("reduce", True, "int8", 4),
        ]  # fmt: skip
        got = [(row["stage"], row["rotation"], row["feedback"], row["ranks"]) for row in rows]
        self.assertEqual(got, kinds + kinds)
        self.assertEqual([row["values"] for row in rows], [64] * 6 + [65536] * 6)
        self.assertEqual({(row["bits"], row["type"], row["threads"]) for row in rows}, {(4, "bf16", 1)})

    def test_more_threads_than_cores_are_noted(self) -> None:
        self.assertIn("times mean nothing", codec(*QUICK, "--threads", "256", "--stage", "encode")[2])


class Product(unittest.TestCase):
    """Every combination once, right in every byte."""

    def test_every_combination_is_a_row_once(self) -> None:
        args = ("--stage", "encode,reduce,decode", "--bits", "3,4,5,6,8", "--feedback", ",".join(STORES))
        more = ("--rotation", "on,off", "-d", "float,half,bf16", "--ranks", "2,8", "--add", "on,off")
        rows, _, _ = codec(*args, *more, "--time", "0", "--values", "200")
        common = list(itertools.product((3, 4, 5, 6, 8), (True, False), SIZES))
        expected = {
            ("encode", *one, store, 1, False) for one, store in itertools.product(common, STORES)
        } | {
            ("reduce", *one, store, ranks, False) for one, store, ranks in itertools.product(common, STORES, (2, 8))
        } | {
            ("decode", *one, "none", 1, add) for one, add in itertools.product(common, (True, False))
        }  # fmt: skip
        keys = ("stage", "bits", "rotation", "type", "feedback", "ranks", "add")
        got = [tuple(row[key] for key in keys) for row in rows]
        self.assertEqual(len(got), len(set(got)))
        self.assertEqual(set(got), expected)
        self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_every_codec_can_be_forced_and_is_named(self) -> None:
        names = targets()
        self.assertIn("reference", names)
        rows, _, _ = codec(*QUICK, "--target", "all", "--feedback", "int8,int16")
        self.assertEqual([row["target"] for row in rows], names * 5)
        self.assertEqual({row["wrong"] for row in rows}, {0})
        for name in names:
            rows, _, _ = codec(*QUICK, "--target", name, "--stage", "decode")
            self.assertEqual([row["target"] for row in rows], [name])

    def test_without_a_target_it_is_the_codec_in_use(self) -> None:
        self.assertEqual({row["target"] for row in codec(*QUICK)[0]}, {targets()[0]})
        done = run("echo-perf", "codec", *QUICK, "--stage", "encode", ECHO_CODEC="reference")
        self.assertRegex(done.stdout, r"\n *encode .* reference ")

    def test_threads_and_sizes(self) -> None:
        values = "1,63,64,65,4097,600001"
        rows, _, _ = codec("--time", "0", "--threads", "1,2,3,7", "--values", values, "--feedback", "int8")
        got = [(row["values"], row["threads"]) for row in rows[::3]]
        self.assertEqual(got, list(itertools.product(map(int, values.split(",")), (1, 2, 3, 7))))
        self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_numbers_may_have_units(self) -> None:
        self.assertEqual(codec("--time", "0", "--values", "4K", "--stage", "decode")[0][0]["values"], 4096)


class Traffic(unittest.TestCase):
    """Bytes per value as counted by hand."""

    def check(self, expected: float, *args: str) -> None:
        with self.subTest(args=args):
            rows, _, _ = codec("--time", "0", "--values", "6400", *args)
            self.assertEqual(len(rows), 1)
            self.assertAlmostEqual(rows[0]["bytes_per_value"], expected, places=12)

    def test_encode(self) -> None:
        for feedback, residual in STORES.items():
            args = ("--stage", "encode", "--feedback", feedback)
            self.check(2 + 0.5 + SCALE + 2 * residual, *args)
            self.check(4 + 1 + SCALE + 2 * residual, *args, "--bits", "8", "-d", "float")
            self.check(2 + 0.375 + SCALE + 2 * residual, *args, "--bits", "3", "-d", "half")
        self.check(4.59375, "--stage", "encode", "--feedback", "int8")

    def test_reduce_reads_the_others_and_writes_the_sum_and_both_residuals(self) -> None:
        for ranks, feedback in itertools.product((2, 4, 8), STORES):
            args = ("--stage", "reduce", "--ranks", str(ranks), "--feedback", feedback)
            self.check(2 + ranks * (0.5 + SCALE) + 4 * STORES[feedback], *args)

    def test_decode(self) -> None:
        self.check(2 + 0.5 + SCALE, "--stage", "decode")
        self.check(2 + 2 + 0.5 + SCALE, "--stage", "decode", "--add", "on")
        self.check(4 + 0.75 + SCALE, "--stage", "decode", "--bits", "6", "-d", "float")

    def test_the_last_group_is_stored_whole(self) -> None:
        rows, _, _ = codec("--time", "0", "--values", "65", "--stage", "encode", "--feedback", "int8")
        self.assertAlmostEqual(rows[0]["bytes_per_value"], (65 * 2 + 2 * (32 + 2) + 2 * 2 * (64 + 2)) / 65)


class Usage(unittest.TestCase):
    def fails(self, *args: str, **variables: str) -> str:
        done = run("echo-perf", "codec", *args, **variables)
        self.assertEqual((done.returncode, done.stdout), (2, ""), args)
        self.assertRegex(done.stderr, r"\Aecho-perf codec: [^\n]+\n\Z")
        return done.stderr

    def test_bad_usage_is_one_line_and_status_2(self) -> None:
        bad = [
            "--unknown", "word", "--stage", "--stage encoder", "--stage encode,", "--stage encode,,decode", "--bits 7",
            "--bits 4,16", "--feedback on", "--rotation yes", "--add 1", "-d bf16,double", "--target AVX9",
            "--target ,", "--threads 0", "--threads 257", "--threads 1,x", "--threads -1", "--ranks 1", "--ranks 65",
            "--values 0", "--values 64,0", "--values -64", "--values 4X", "--values 2048G",
            "--values 99999999999999999999", "--values 1024G", "--bits 4 --bits 8", "--time -1", "--time long",
            "-J /nowhere/out.json",
        ]  # fmt: skip
        for args in bad:
            with self.subTest(args=args):
                self.fails(*args.split())
        self.fails("--stage", "")

    def test_an_unknown_target_is_told_those_that_there_are(self) -> None:
        for name in (*targets(), "all"):
            self.assertIn(name, self.fails("--target", "AVX9"))
            self.assertIn(name, self.fails(ECHO_CODEC="AVX9"))

    def test_help(self) -> None:
        self.assertIn("echo-perf codec", run("echo-perf", "--help").stdout)
        text = run("echo-perf", "codec", "--help").stdout
        for word in ("--stage", "--target", "counts each byte"):
            self.assertIn(word, text)

    def test_output_that_cannot_be_printed_is_an_error(self) -> None:
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            args = command("echo-perf", "codec", *QUICK)
            done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    unittest.main()
