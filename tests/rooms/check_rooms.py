#!/usr/bin/env python3
"""Checks that each room of src/ includes only the rooms it may use, and that no file is too long to read.

    check_rooms.py ROOT

Prints one line for each violation and exits with 1 if there is any. Standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Each room and the rooms it may include, besides its own and the public C header:
# api -> collective -> {transport, feedback -> codec} -> wire -> base
ALLOWED = {
    "base": set(),
    "wire": {"base"},
    "transport": {"wire", "base"},
    "codec": {"wire", "base"},
    "feedback": {"codec", "wire", "base"},
    "collective": {"transport", "codec", "feedback", "wire", "base"},
    "api": {"collective", "transport", "codec", "feedback", "wire", "base"},
}
# These use the library as its users do: the public headers, no room.
PUBLIC_ONLY = ("include", "examples", "bindings", "tools")

MAX_LINES = 600
CODE_FOLDERS = (
    "src",
    "include",
    "bindings",
    "python",
    "tools",
    "testing",
    "tests",
    "examples",
    "scripts",
    "cmake",
    ".ci",
)
CODE_SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py", ".sh", ".cmake", ".txt", ".in", ""}
CXX_SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
SKIPPED_FOLDERS = {"build", "__pycache__"}

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')


def files_of(folder: Path, suffixes: set[str]) -> list[Path]:
    """Files below `folder` with one of the suffixes, in a fixed order."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix in suffixes
        and (path.suffix != ".txt" or path.name == "CMakeLists.txt")  # other texts are data
        and not SKIPPED_FOLDERS.intersection(path.relative_to(folder).parts)
    )


def included_room(file: Path, included: str, src: Path) -> str | None:
    """The room that `file` reaches by `#include "included"`, or None if it is no header of a room."""
    for base in (file.parent, src):
        target = (base / included).resolve()
        if target.is_file() and target.is_relative_to(src):
            return target.relative_to(src).parts[0]
    first = Path(included).parts[0]
    return first if first in ALLOWED else None  # a room even if the header does not exist (yet)


def includes_of(file: Path) -> list[tuple[int, str]]:
    """(line number, included name) of each include of `file`."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [(number, match[1]) for number, line in enumerate(lines, 1) if (match := INCLUDE.match(line))]


def check_includes(root: Path) -> list[str]:
    """Violations of the order of rooms."""
    src = (root / "src").resolve()
    found = []
    for file in files_of(src, CXX_SUFFIXES):
        room = file.relative_to(src).parts[0]
        if room not in ALLOWED:
            found.append(f"src/{room}: not a known room; give it a place in {Path(__file__).name}")
            continue
        for number, included in includes_of(file):
            other = included_room(file, included, src)
            if other is not None and other != room and other not in ALLOWED[room]:
                may = ", ".join(sorted(ALLOWED[room])) or "no other room"
                found.append(f"src/{file.relative_to(src)}:{number}: {room} includes {other}; it may use {may}")
    for folder in PUBLIC_ONLY:
        for file in files_of(root / folder, CXX_SUFFIXES):
            for number, included in includes_of(file):
                other = included_room(file.resolve(), included, src)
                if other is not None:
                    found.append(f"{file.relative_to(root)}:{number}: {folder} includes {other}; only public headers")
    return found


def check_lengths(root: Path) -> list[str]:
    """Files of code with more than MAX_LINES lines."""
    found = []
    for folder in CODE_FOLDERS:
        for file in files_of(root / folder, CODE_SUFFIXES):
            lines = file.read_bytes().count(b"\n")
            if lines > MAX_LINES:
                found.append(f"{file.relative_to(root)}: {lines} lines, at most {MAX_LINES}; split it")
    return found


def check(root: Path) -> list[str]:
    """All violations below `root`."""
    if not files_of(root / "src", CXX_SUFFIXES):
        return [f"{root}/src: no source file there"]
    return check_includes(root) + check_lengths(root)


def main() -> int:
    """Command line."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    found = check(Path(sys.argv[1]).resolve())
    print("\n".join(found) if found else "rooms: every include and every length is as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
