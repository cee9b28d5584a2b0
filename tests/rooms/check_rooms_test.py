#!/usr/bin/env python3
"""Plants violations in a small tree and expects check_rooms.py to find each of them, and nothing else."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from check_rooms import MAX_LINES, check

CLEAN = {
    "src/base/error.hpp": "#pragma once\n",
    "src/wire/layout.hpp": '#pragma once\n#include "base/error.hpp"\n',
    "src/codec/group.hpp": '#include "wire/layout.hpp"\n#include "echo_comm/echo.h"\n#include <vector>\n',
    "src/codec/group.cpp": '#include "group.hpp"\n',
    "src/transport/shm/shm.cpp": '#include "../../base/error.hpp"\n',
    "src/feedback/feedback.hpp": '#include "base/error.hpp"\n',
    "src/collective/two_shot.cpp": '#include "codec/group.hpp"\n#include "feedback/feedback.hpp"\n',
    "src/api/comm.cpp": '#include "collective/two_shot.hpp"\n#include "base/error.hpp"\n',
    "examples/lesson.cpp": '#include "echo_comm/echo.h"\n',
    "python/module.py": "x = 1\n" * MAX_LINES,
}


class CheckRooms(unittest.TestCase):
    """One test a rule."""

    def violations(self, planted: dict[str, str]) -> list[str]:
        """What the check says of the clean tree with `planted` files added or replaced."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in {**CLEAN, **planted}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check(root)

    def test_a_clean_tree_has_none(self) -> None:
        self.assertEqual(self.violations({}), [])

    def test_each_forbidden_edge_is_found(self) -> None:
        for room, other in [
            ("base", "wire"),
            ("wire", "codec"),
            ("codec", "transport"),
            ("codec", "feedback"),
            ("transport", "codec"),
            ("transport", "feedback"),
            ("feedback", "transport"),
            ("codec", "collective"),
            ("collective", "api"),
        ]:
            with self.subTest(room=room, other=other):
                found = self.violations({f"src/{room}/planted.cpp": f'\n#include "{other}/any.hpp"\n'})
                self.assertEqual(len(found), 1, found)
                self.assertIn(f"src/{room}/planted.cpp:2: {room} includes {other}", found[0])

    def test_a_way_round_through_dots_is_found(self) -> None:
        found = self.violations({"src/transport/shm/planted.hpp": '#include "../../codec/group.hpp"\n'})
        self.assertEqual(len(found), 1, found)

    def test_examples_and_public_headers_see_no_room(self) -> None:
        for name in ("examples/a.cpp", "include/echo_comm/a.hpp", "bindings/torch/a.cpp", "tools/a/a.cpp"):
            with self.subTest(name=name):
                self.assertEqual(len(self.violations({name: '#include "base/error.hpp"\n'})), 1)

    def test_an_unknown_room_is_found(self) -> None:
        self.assertEqual(len(self.violations({"src/cellar/planted.cpp": "\n"})), 1)

    def test_a_long_file_is_found(self) -> None:
        for name in ("python/long.py", "tests/wire/long.cpp", "scripts/long"):
            with self.subTest(name=name):
                self.assertEqual(len(self.violations({name: "\n" * (MAX_LINES + 1)})), 1)

    def test_an_empty_tree_is_no_success(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(len(check(Path(folder))), 1)


if __name__ == "__main__":
    unittest.main()
