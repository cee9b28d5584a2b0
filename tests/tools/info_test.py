#!/usr/bin/env python3
"""echo-info: what it tells is true, --doctor finds what is right and what is wrong."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unittest
from pathlib import Path

from tool import TRANSPORTS, run


class Info(unittest.TestCase):
    def test_tells_versions_formats_transports_variables_and_host(self) -> None:
        done = run("echo-info", ECHO_TIMEOUT_MS="1234")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for word in ("echo_comm", "q4", "4.25 bits a value", "inproc", "shm", "ECHO_DEBUG", "memfd", "cores"):
            self.assertIn(word, done.stdout)
        self.assertRegex(done.stdout, r"ECHO_TIMEOUT_MS +1234:")
        self.assertRegex(done.stdout, r"ECHO_SHM_SLOT_BYTES +unset")
        self.assertNotIn("doctor", done.stdout)

    def test_json_says_the_same(self) -> None:
        done = run("echo-info", "--json", "-", ECHO_DEBUG="0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        info = json.loads(done.stdout)
        self.assertEqual(info["schema"], 1)
        self.assertEqual(info["version"], info["library_version"])
        self.assertEqual({f["name"]: f["group_bytes"] for f in info["formats"]}["q4"], 34)
        self.assertEqual([f["bits"] for f in info["formats"]], [3, 4, 5, 6, 8, 16])
        self.assertIn("reference", info["codecs"])
        self.assertIn(info["active_codec"], info["codecs"])
        self.assertEqual(info["transports"], ["inproc", "shm", "gloo"])
        self.assertIsInstance(info["host"]["cpu_features"], list)
        self.assertEqual(info["environment"]["ECHO_DEBUG"]["value"], "0")
        self.assertIsNone(info["environment"]["ECHO_TIMEOUT_MS"]["value"])
        self.assertEqual(info["host"]["cores"], len(os.sched_getaffinity(0)))
        self.assertNotIn("doctor", info)

    def test_every_variable_that_the_library_reads_is_told(self) -> None:
        source = Path(__file__).resolve().parents[2] / "src" / "base" / "env.cpp"
        variables = json.loads(run("echo-info", "--json", "-").stdout)["environment"]
        read = set(re.findall(r'"(ECHO_[A-Z_]+)"', source.read_text(encoding="utf-8")))
        self.assertEqual(read, set(variables))

    def test_doctor_finds_nothing_wrong_here(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "info.json"
            done = run("echo-info", "--doctor", "--json", str(file))
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            self.assertIn("OK: Echo works on this host.", done.stdout)
            doctor = json.loads(file.read_text(encoding="utf-8"))["doctor"]
        self.assertTrue(doctor["ok"])
        checks = {check["name"]: check["detail"] for check in doctor["checks"]}
        self.assertEqual(len(checks), 10)
        self.assertIn("lo 127.0.0.1 mtu", checks["interfaces"])
        self.assertRegex(checks["ports"], r"on [1-9]\d* interface")
        self.assertRegex(checks["NUMA nodes"], r"node0: |not told")
        self.assertIn("codec ", checks["processor"])
        self.assertIn("libecho_comm_gloo.so" if "gloo" in TRANSPORTS else "not built in", checks["gloo, 2 processes"])
        self.assertTrue(all(check["ok"] and check["problem"] == "" for check in doctor["checks"]))

    def test_doctor_names_a_wrong_variable(self) -> None:
        done = run("echo-info", "--doctor", ECHO_SHM_SLOT_BYTES="many")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"environment +FAILED: .*ECHO_SHM_SLOT_BYTES=many")

    def test_bytes_that_are_no_text_do_not_break_the_json(self) -> None:
        done = run("echo-info", "--json", "-", ECHO_DEBUG=os.fsdecode(b"\xff"))
        self.assertEqual(done.returncode, 0)
        json.loads(done.stdout)

    def test_bad_usage_is_one_line_and_status_2(self) -> None:
        for args in (["--unknown"], ["word"], ["--json"], ["--json", "/nowhere/file"], ["--json", "-", "--json", "-"]):
            with self.subTest(args=args):
                done = run("echo-info", *args)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, r"\Aecho-info: [^\n]+\n\Z")

    def test_help_and_version(self) -> None:
        self.assertIn("--doctor", run("echo-info", "--help").stdout)
        self.assertRegex(run("echo-info", "--version").stdout, r"\Aecho-info \d+\.\d+\.\d+\n\Z")


if __name__ == "__main__":
    unittest.main()
