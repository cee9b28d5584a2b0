"""The version, from the installed distribution (its one source is project(VERSION) in CMakeLists.txt)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("echo-comm")
except PackageNotFoundError:  # the sources on PYTHONPATH, not installed
    __version__ = "0+unknown"
