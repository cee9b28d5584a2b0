"""The command `echo-comm run` from outside: results, bad input, signals. Nothing may be left over, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pool import leftovers

pytest.importorskip("echo_comm.torch", reason="echo_comm is not installed: scripts/test installs it")
pytest.importorskip("transformers", reason="the model runner needs transformers")

COMMAND = [sys.executable, "-m", "echo_comm.run.cli", "run"]
WORDS = "the of and a to in is that for it as be this with are by or not an on which from at if can".split()
SMALL = ["--tokens", "4", "--eval-tokens", "64", "--window", "32"]


def _make_model(folder: Path, **changes: int) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**{"num_hidden_layers": 2, "vocab_size": len(vocabulary), **sizes, **changes})
    config.eos_token_id = None
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with 4 heads and 2 KV heads."""
    return _make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.netns
@pytest.mark.slow
def test_torchrun_on_two_hosts(model: Path, tmp_path: Path) -> None:
    """Two hosts of the network lab, a rank on each."""
    lab = [sys.executable, str(Path(__file__).parents[2] / "testing" / "netlab")]
    if subprocess.run([*lab, "check"], capture_output=True, check=False).returncode == 77:
        pytest.skip("the network lab cannot run here: python3 testing/netlab check says why")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "{rank}"]
    torchrun += ["--nproc-per-node", "1", "--master-addr", "10.77.0.1", "--master-port", "29500"]
    command = ["-m", "echo_comm.run.cli", "run", "--tp", "2", "--model", str(model), "--min-bytes", "0", *SMALL]
    done = subprocess.run(
        [
            *lab,
            "run",
            "--hosts",
            "2",
            "--timeout",
            "200",
            "--",
            *torchrun,
            *command,
            "--json",
            str(tmp_path / "out.json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["ranks"], result["diverged"]) == (2, 0)
    assert "route inner (the ranks are on 2 hosts" in done.stdout


# In the environment of everything these tests start; other jobs on the machine are none of their business.
_MARK = "ECHO_TEST_RUN"


def _processes() -> set[int]:
    """Ranks started by these tests that are alive."""
    mark = f"{_MARK}={os.getpid()}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                running = " Z " not in (entry / "stat").read_text()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"echo_comm.run.rank" in command and running and mark in environment.split(b"\0"):
                found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def nothing_left_over():
    """No process and no shared memory outlives a test."""
    os.environ[_MARK] = str(os.getpid())
    before = (_processes(), leftovers())
    yield
    deadline = time.monotonic() + 5
    while (_processes() - before[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes() - before[0]
    assert not set(leftovers()) - set(before[1])


def _run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


def _one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, (result.returncode, result.stderr)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("echo-comm: ")
    return lines[0]


def test_a_model_on_two_ranks(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = _run("--tp", "2", "--model", str(model), "--prompt", "this is the", *SMALL, "--json", str(file))
    assert result.returncode == 0, result.stderr
    assert "top-1 agreement" in result.stdout
    measured = json.loads(file.read_text())
    keys = ["wire_ratio", "kl", "top1_agreement", "diverged", "ranks", "calls_per_pass", "ttft_exact_s", "ttft_echo_s"]
    assert list(measured) == keys
    assert (measured["diverged"], measured["ranks"], measured["calls_per_pass"]) == (0, 2, 4)
    assert measured["wire_ratio"] > 2  # flush of one call in four at 8 bits
    assert 0 <= measured["kl"] < 0.1


def test_one_rank_and_a_floor(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    one = _run("--tp", "1", "--model", str(model), "--prompt", "it is", *SMALL, "--json", str(file))
    assert one.returncode == 0, one.stderr
    measured = json.loads(file.read_text())
    assert (measured["kl"], measured["top1_agreement"], measured["wire_ratio"]) == (0, 1, None)


BAD = {
    "tp 0": (["--tp", "0"], "from 1 to 64"),
    "tp 65": (["--tp", "65"], "from 1 to 64"),
    "tp text": (["--tp", "three"], "'three'"),
    "tokens": (["--tokens", "-3"], "'-3'"),
    "bits": (["--bits", "7"], "7"),
    "feedback": (["--feedback", "maybe"], "maybe"),
    "unknown option": (["--fast"], "--fast"),
    "prompt": (["--prompt", "  "], "--prompt is empty"),
    "model": (["--model", "no/such/model"], "no/such/model"),
    "json": (["--json", "/nowhere/result.json"], "/nowhere/result.json"),
    "json folder": (["--json", "/tmp"], "/tmp"),
    "name": (["--name", "a/b"], "'a/b'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_end_with_one_line(case: str) -> None:
    arguments, text = BAD[case]
    result = _run(*arguments, timeout=20)
    assert text in _one_line(result)
    assert result.stdout == ""


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'gguf' else real(name, package)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(COMMAND, capture_output=True, text=True, timeout=20, check=False, env=environment)
    assert "pip install gguf" in _one_line(result)


def test_files_that_are_no_models(tmp_path: Path, model: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model")
    assert "not a GGUF file" in _one_line(_run("--model", str(other)))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(range(256)))
    assert "broken.gguf" in _one_line(_run("--tp", "1", "--model", str(broken)))
    (tmp_path / "folder").mkdir()
    assert "config.json" in _one_line(_run("--model", str(tmp_path / "folder")))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"model_type": "llama", "num_attention_heads": "x", "intermediate_size": 6}',
        '{"model_type": "llama", "num_attention_heads": -4, "intermediate_size": 8}',
        '{"model_type": "llama", "num_attention_heads": 4.5, "intermediate_size": 8}',
        '{"model_type": "llama"}',
    ],
)
def test_a_config_that_describes_no_model(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    _one_line(_run("--tp", "2", "--model", str(tmp_path)))


def test_heads_that_the_ranks_cannot_share(model: Path) -> None:
    line = _one_line(_run("--tp", "3", "--model", str(model)))
    assert "4 heads and 2 KV heads" in line
    assert "--tp 1 or 2" in line


def _start(model: Path, *arguments: str) -> subprocess.Popen[str]:
    """A job that runs for minutes, in the middle of its work."""
    long = ["--tokens", "4000", "--tp", "2", "--model", str(model), "--prompt", "this is the"]
    before = _processes()
    process = subprocess.Popen(
        [*COMMAND, *long, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs these tests in the background lets its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("generating"):
            break
    started = len(_processes() - before)
    if started != 2:
        process.kill()
        _, stderr = process.communicate(timeout=10)
        pytest.fail(f"{started} ranks are running: {stderr}")
    return process


def test_a_name_in_use_by_a_live_job(model: Path) -> None:
    name = f"test-{os.getpid()}"
    process = _start(model, "--name", name)
    try:
        assert name in _one_line(_run("--tp", "2", "--model", str(model), "--name", name))
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 130


def test_a_killed_rank_ends_the_job_and_is_named(model: Path) -> None:  # D7
    before = _processes()
    process = _start(model)
    victim = max(_processes() - before)  # ranks start in order
    os.kill(victim, signal.SIGKILL)
    started = time.monotonic()
    _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - started < 8
    assert process.returncode == 2
    assert len(stderr.splitlines()) == 1
    assert "rank 1 was killed (SIGKILL)" in stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signals_to_the_command_end_its_ranks(model: Path, number: signal.Signals, status: int) -> None:
    process = _start(model)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == status
    assert "Traceback" not in stderr
