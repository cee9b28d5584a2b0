#!/usr/bin/env python3
"""Wrong results are noticed: the tools run with a library in front that changes one element."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tool import TRANSPORTS, run

PRELOAD = os.environ["ECHO_CORRUPT"]


class Corrupt(unittest.TestCase):
    def measure(self, *args: str, **variables: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            common = ("-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--json", str(file))
            done = run("echo-perf", *common, *args, LD_PRELOAD=PRELOAD, **variables)
            self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
            self.assertIn("FAILED", done.stdout)
            return json.loads(file.read_text(encoding="utf-8"))["rows"][0]

    def test_wrong_on_all_ranks(self) -> None:
        for transport in ("shm", "inproc"):
            for datatype in ("float", "half", "bfloat16"):
                row = self.measure("--transport", transport, "-d", datatype)
                # Two calls on each of two ranks; the same everywhere.
                self.assertEqual((row["wrong"], row["diverged"]), (4, 0))
                self.assertEqual((row["in_place"]["wrong"], row["in_place"]["diverged"]), (4, 0))

    def test_wrong_on_one_rank(self) -> None:
        row = self.measure("--ranks", "3", CORRUPT_RANK="2")
        # Two calls; and all that are compared: these, one of random data, one after the timed ones.
        self.assertEqual((row["wrong"], row["diverged"]), (2, 4))
        self.assertEqual((row["in_place"]["wrong"], row["in_place"]["diverged"]), (2, 4))

    def test_wrong_on_one_rank_of_other_collectives_and_transports(self) -> None:
        for transport in TRANSPORTS:
            common = ("--ranks", "3", "--transport", transport)
            row = self.measure(*common, CORRUPT_RANK="1")
            self.assertEqual((row["wrong"], row["diverged"]), (2, 4))
            row = self.measure(*common, "--collective", "all_gather", CORRUPT_RANK="1")
            self.assertEqual((row["wrong"], row["diverged"]), (2, 4))
            row = self.measure(*common, "--collective", "reduce_scatter", CORRUPT_RANK="1")
            self.assertEqual((row["wrong"], row["diverged"]), (2, 0))  # no two ranks hold the same part

    def test_wrong_bytes_of_codecs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            args = ("--feedback", "none,int8", "--target", "all", "--time", "0", "--json", str(file))
            for values in ("1000", "1000000"):
                done = run("echo-perf", "codec", *args, "--values", values, LD_PRELOAD=PRELOAD)
                rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
                if {row["target"] for row in rows} == {"reference"}:
                    self.skipTest("built without vector codecs")
                self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
                for row in rows:
                    self.assertEqual(row["wrong"], 0 if row["target"] == "reference" else 1, row)
                self.assertIn(f"# wrong: {sum(row['wrong'] for row in rows)}  FAILED", done.stdout)

    def test_the_doctor_notices(self) -> None:
        done = run("echo-info", "--doctor", LD_PRELOAD=PRELOAD)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"shm, 2 processes +FAILED: .* wrong element")
        if "gloo" in TRANSPORTS:
            self.assertRegex(done.stdout, r"gloo, 2 processes +FAILED: .* wrong element")
        self.assertRegex(done.stdout, r"inproc, 2 threads +FAILED: .* wrong element")


if __name__ == "__main__":
    unittest.main()
